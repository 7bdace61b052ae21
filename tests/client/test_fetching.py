"""The way in: two fetches under way, turns, and what is held meanwhile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest

from odradek.client.consumer import broker_fetcher, fetch_settings
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.interfaces import LogDecoder, PartitionFetch
from odradek.errors import BrokerError, Unreachable
from odradek.testing import MemoryCluster
from odradek.testing.memory.broker import MemoryBrokerClient
from odradek.types import EARLIEST, LATEST, KiB, Position, TopicPartition

from ..payloads import payload
from .one_member import consuming, make_cluster, numbered, tp, until
from .reading import held, next_values, reading, values_of

pytestmark = pytest.mark.anyio

QUICK = Backoff(first_s=0.0001, max_s=0.001)


class InFlight:
    """The fetches that are under way."""

    def __init__(self) -> None:
        self.now: list[set[LogDecoder]] = []
        self.most = 0

    def begin(self, decoders: set[LogDecoder]) -> None:
        assert not any(decoders & others for others in self.now), "a decoder in two fetches at the same time"
        self.now.append(decoders)
        self.most = max(self.most, len(self.now))


@pytest.fixture
def in_flight(monkeypatch: pytest.MonkeyPatch) -> InFlight:
    requests = InFlight()
    fetch = MemoryBrokerClient.fetch

    async def watched(client: MemoryBrokerClient, fetches: Sequence[PartitionFetch], **options: Any) -> None:
        decoders = {part.decoder for part in fetches}
        requests.begin(decoders)
        try:
            await fetch(client, fetches, **options)
        finally:
            requests.now.remove(decoders)

    monkeypatch.setattr(MemoryBrokerClient, "fetch", watched)
    return requests


# ---- long polls ---------------------------------------------------------------------------------------------


async def test_open_readers_poll_over_connections_of_their_own_and_later_ones_take_those_that_are_free() -> None:
    async with MemoryCluster({"t": 1}).connect() as k, k.reader("t") as first:
        async with k.reader("t") as second:
            assert [each._fetcher.poll_purpose for each in (first, second)] == ["poll", "poll 1"]
        async with k.reader("t") as third, MemoryCluster({"t": 1}).connect() as other, other.reader("t") as fourth:
            assert [each._fetcher.poll_purpose for each in (third, fourth)] == ["poll 1", "poll"]


# ---- two fetches at a time ----------------------------------------------------------------------------------


async def test_two_fetches_are_in_flight_and_no_partition_is_in_both(in_flight: InFlight) -> None:
    async with reading(make_cluster(*[500] * 4), until=LATEST, tuning=Tuning(fetch_bytes=1000)) as reader:
        values = await values_of(reader)
    assert sorted(values) == numbered(2000)
    assert in_flight.most == 2


async def test_one_partition_is_in_one_fetch_at_a_time(in_flight: InFlight) -> None:
    async with reading(make_cluster(2000), until=LATEST, tuning=Tuning(fetch_bytes=1000)) as reader:
        assert await values_of(reader) == numbered(2000)
    assert in_flight.most == 1


async def test_quiet_partitions_share_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_settings, "LONG_POLL_S", 0.01)
    cluster = make_cluster(*[0] * 20)
    async with reading(cluster):
        await until(lambda: len(cluster.requests("fetch")) >= 10)
    assert all(len(request.partitions) == 20 for request in cluster.requests("fetch")[1:9])


async def test_a_loss_that_both_fetches_meet_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = make_cluster(*[500] * 4)
    async with reading(cluster, until=LATEST, tuning=Tuning(fetch_bytes=1000, backoff=QUICK)) as reader:
        await anext(reader)
        cluster.hold("fetch")
        await cluster.wait_for_held("fetch", 2)
        cluster.fail("fetch", Unreachable("tcp", "memory-1:9092", "Connection refused"), times=4)
        cluster.release("fetch")
        await until(lambda: "Connection refused" in caplog.text)
        assert len(await values_of(reader)) == 2000 - 1
    assert caplog.text.count("; retrying") == caplog.text.count("Connection refused") == 1


@pytest.mark.parametrize("operation", ["fetch", "positions"])
async def test_an_error_of_all_partitions_of_a_broker_is_logged_once(
    operation: Literal["fetch", "positions"], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker_fetcher, "TOGETHER_S", 1000)  # the line comes at the end of the reader
    cluster = make_cluster(*[1] * 200)
    error = BrokerError(6, "NOT_LEADER_OR_FOLLOWER", retriable=True, refresh_metadata=True)
    async with reading(cluster, tuning=Tuning(backoff=QUICK)) as reader:
        cluster.fail(operation, error, times=200)
        for number in range(200):
            reader.seek(tp(number), Position(0) if operation == "fetch" else EARLIEST)
        assert len(await next_values(reader, 200)) == 200
    assert caplog.text.count("NOT_LEADER_OR_FOLLOWER") == 1
    line = re.search(
        r"t/\d+: .*NOT_LEADER_OR_FOLLOWER \(code 6\); retrying; (\d+) more with the same error: (t/\d+, ){3}\.\.\.$",
        caplog.text,
        re.MULTILINE,
    )
    assert line is not None
    assert 150 < int(line[1]) < 200  # a partition that has failed may fail again before others do


async def test_a_broker_that_leaves_while_fetches_are_in_flight() -> None:
    cluster = make_cluster(*[500] * 4)
    async with reading(cluster, until=LATEST, tuning=Tuning(fetch_bytes=1000, backoff=QUICK)) as reader:
        first = await anext(reader)
        cluster.hold("fetch")
        await cluster.wait_for_held("fetch", 2)
        cluster.stop_broker(1)
        await anyio.wait_all_tasks_blocked()
        cluster.release("fetch")
        cluster.start_broker(1)
        values = [payload(first.value), *await values_of(reader)]
    assert sorted(values) == numbered(2000)


async def test_a_slow_broker_does_not_keep_the_records_of_another_one_back() -> None:
    cluster = MemoryCluster(topics={"t": 2}, brokers=2)
    for n in range(2):
        cluster.append("t", numbered(500, 500 * n), partition=n)
    cluster.hold("fetch", broker=1)
    async with reading(cluster, until=LATEST, tuning=Tuning(fetch_bytes=1000)) as reader:
        assert [(await anext(reader)).value for _ in range(500)] == numbered(500, 500)
        await cluster.wait_for_held("fetch", broker=1)
        cluster.release("fetch", broker=1)
        assert await values_of(reader) == numbered(500)


# ---- turns and room -----------------------------------------------------------------------------------------


def large_records(partitions: int, each: int) -> MemoryCluster:
    """Every record counts 210 bytes."""
    cluster = MemoryCluster(topics={"t": partitions})
    for n in range(partitions):
        cluster.append("t", [bytes(200)] * each, partition=n)
    return cluster


async def test_many_partitions_take_turns_within_the_budget() -> None:
    """A share of the budget is less than a request: only some partitions hold something at a time, all in turn."""
    read_ahead_bytes, tuning = 256 * KiB, Tuning(fetch_bytes=8 * KiB)
    seen: list[TopicPartition] = []
    cluster = large_records(100, 200)
    async with reading(cluster, until=LATEST, read_ahead_bytes=read_ahead_bytes, tuning=tuning) as reader:
        async for batch in reader.batches():
            assert held(reader) <= read_ahead_bytes
            seen.append(batch.partition)
    assert len(set(seen)) == 100
    rounds = len(seen) // 100
    assert len(set(seen[:300])) == 100 and rounds >= 4, "nobody was left waiting while others came again and again"


async def test_what_a_turn_costs_does_not_depend_on_how_many_partitions_there_are() -> None:
    cluster = MemoryCluster(topics={"t": 300})
    for n in range(3):
        cluster.append("t", [b"x" * 1000] * 200, partition=n)
    async with cluster.connect() as k:
        reader = k.reader("t", read_ahead_bytes=160 * KiB, tuning=Tuning(fetch_bytes=10_000))
        settings = reader._fetcher.settings
        policy = settings.policy._replace(idle=Backoff(first_s=3600, max_s=3600), long_poll_s=0)
        reader._fetcher.settings = settings._replace(policy=policy)
        async with reader:
            await anyio.wait_all_tasks_blocked()
            before = len(cluster.requests("fetch"))
            rows = 0
            while rows < 600:
                rows += len(await anext(reader.batches()))
            later = cluster.requests("fetch")[before:]
    assert later and all(request.partitions.keys() <= {tp(0), tp(1), tp(2)} for request in later)


async def test_a_stream_nobody_reads_does_not_starve_the_other() -> None:
    cluster = large_records(40, 200)
    options: dict[str, Any] = {"read_ahead_bytes": 128 * KiB, "tuning": Tuning(fetch_bytes=4 * KiB)}
    async with consuming(cluster, streams=2, **options) as consumer:
        rows = 0
        with anyio.fail_after(60):
            async for batch in consumer.streams[1].batches():
                batch.done()
                rows += len(batch)
                assert held(consumer) <= 128 * KiB
                if rows == 20 * 200:
                    break


async def test_partitions_that_are_held_back_with_all_the_room_do_not_starve_the_others() -> None:
    cluster = large_records(40, 200)
    async with reading(cluster, read_ahead_bytes=64 * KiB, tuning=Tuning(fetch_bytes=4 * KiB)) as reader:
        await anyio.wait_all_tasks_blocked()
        full = [p for p, cursor in reader._fetcher.cursors.items() if cursor.queue.rows]
        reader.pause(*full)
        rows = 0
        with anyio.fail_after(60):
            while rows < (40 - len(full)) * 200:
                rows += len(await anext(reader.batches()))
        assert 0 < len(full) < 40
