"""Fetching from a replica that the leader prefers (KIP-392)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import pytest

from odradek.client.consumer.reader import Reader
from odradek.core.interfaces import PartitionFetch
from odradek.errors import BrokerError
from odradek.types import Broker, TopicPartition

from .consuming import LogBroker, LogDriver, tp

pytestmark = pytest.mark.anyio

LONG_S = 10.0


class LeaderThatPrefers(LogBroker):
    """Names broker 2 for every partition, and hands out nothing itself."""

    async def fetch(self, fetches: Sequence[PartitionFetch], *, max_wait: float = 0.0, min_bytes: int = 1) -> None:
        self.fetches.append({fetch.decoder.partition: fetch.max_bytes for fetch in fetches})
        await anyio.lowlevel.checkpoint()
        for fetch in fetches:
            fetch.start()
            fetch.preferred_replica = 2


class ReplicaDriver(LogDriver):
    def broker(self, broker: Broker, *, purpose: str) -> LogBroker:
        kind = LeaderThatPrefers if broker.id == 1 else LogBroker
        return self.brokers.setdefault(broker, kind(broker, self))

    @property
    def b2(self) -> LogBroker:
        return self.broker(self.addresses[2], purpose="fetch")


def make_driver() -> ReplicaDriver:
    driver = ReplicaDriver(t=1)
    driver.live(1, 2)
    driver.write(tp(0), [b"a", b"b"])
    return driver


async def read(reader: Reader, count: int) -> list[bytes | None]:
    with anyio.fail_after(LONG_S):
        return [(await anext(reader)).value for _ in range(count)]


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(LONG_S):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def test_records_come_from_the_replica_that_the_leader_names() -> None:
    driver = make_driver()
    async with Reader(driver, "t") as reader:
        assert await read(reader, 2) == [b"a", b"b"]
        driver.write(tp(0), [b"c"])
        assert await read(reader, 1) == [b"c"]
    assert len(driver.b1.fetches) == 1


async def test_after_an_error_of_the_replica_the_leader_is_asked_again() -> None:
    driver = make_driver()
    where: TopicPartition = tp(0)
    driver.b2.errors[where] = BrokerError(1, "OFFSET_OUT_OF_RANGE", retriable=True, refresh_metadata=True)
    async with Reader(driver, "t") as reader:
        await until(lambda: len(driver.b1.fetches) > 1)
        driver.b2.errors.clear()
        assert await read(reader, 2) == [b"a", b"b"]


async def test_a_replica_that_is_gone_leaves_the_partition_to_its_leader() -> None:
    driver = make_driver()
    async with Reader(driver, "t") as reader:
        assert await read(reader, 2) == [b"a", b"b"]
        asked = len(driver.b1.fetches)
        driver.live(1)
        await until(lambda: len(driver.b1.fetches) > asked)
