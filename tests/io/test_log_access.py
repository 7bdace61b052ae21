"""What brokers say of logs as wholes, by `core.interfaces.LogAccess`, on brokers without a network."""

from __future__ import annotations

import pytest
from tests.client.kafka07_bytes import BROKER, Kafka07LogBroker, Kafka07LogDriver, tp

from odradek.core.interfaces import BYTES, RECORDS, Extent, SplitPoint
from odradek.errors import Unreachable
from odradek.testing import MemoryCluster
from odradek.types import AtTime, Position, PositionSpec, TopicPartition

pytestmark = pytest.mark.anyio

STARTS = (0, 100, 250)
"""Where the segments of a log begin; they were written to until the times 10, 20 and 30."""

END = 400


class Segments(Kafka07LogBroker):
    """A broker whose logs have these segments."""

    async def positions(self, partition: TopicPartition, at: PositionSpec | AtTime, count: int = 1) -> list[Position]:
        await self.respond()
        known = [END, *reversed(STARTS)]
        if isinstance(at, AtTime):
            known = [start for start, time in zip(reversed(STARTS), (30, 20, 10), strict=True) if time <= at.seconds]
        elif at is PositionSpec.EARLIEST:
            known = known[-1:]
        return [Position(position) for position in known[:count]]


def segmented() -> Kafka07LogDriver:
    driver = Kafka07LogDriver()
    driver.brokers[BROKER] = Segments(BROKER, driver)
    return driver


async def test_an_extent_of_0_7_has_the_starts_of_all_segments() -> None:
    driver = segmented()
    assert (driver.logs.unit, driver.logs.names_brokers, driver.logs.values_only) == (BYTES, True, True)
    gone = TopicPartition("t", 0, 99)
    assert await driver.logs.extents([tp(0), gone]) == {tp(0): Extent(0, END, (*STARTS, END), BROKER.id)}


@pytest.mark.parametrize(
    ("time", "start", "ending"), [(5, 0, 0), (10, 0, 100), (25, 100, 250), (30, 250, 400), (99, 250, 400)]
)
async def test_a_time_of_0_7_is_that_of_the_newest_segment_not_written_to_since(
    time: float, start: int, ending: int
) -> None:
    logs, times = segmented().logs, {tp(0): AtTime(time)}
    assert await logs.positions_at(times) == {tp(0): start}
    assert await logs.positions_at(times, ending=True) == {tp(0): ending}


async def test_a_cut_of_0_7_moves_to_the_next_message_that_is_proved() -> None:
    driver = Kafka07LogDriver()
    first = driver.write(tp(0), [b"a" * 50])
    end = driver.write(tp(0), [b"b" * 50] * 3)
    assert await driver.logs.boundary(SplitPoint(tp(0), first - 5, 0, end), 1000) == first
    assert await driver.logs.boundary(SplitPoint(tp(0), end, 0, end), 1000) == end
    assert driver.b1.fetches  # the bytes in front of the cut


async def test_errors_that_may_pass_are_raised_and_a_log_that_refuses_proves_nothing() -> None:
    driver = Kafka07LogDriver()
    end = driver.write(tp(0), [b"a" * 50] * 3)
    beyond = SplitPoint(tp(0), end + 500, end + 400, end + 600)
    assert await driver.logs.boundary(beyond, 1000) is None
    driver.b1.down = True
    with pytest.raises(Unreachable):
        await driver.logs.boundary(SplitPoint(tp(0), 70, 0, end), 1000)
    away = SplitPoint(TopicPartition("t", 0, 99), 70, 0, end)
    assert await driver.logs.boundary(away, 1000) is None


async def test_every_offset_is_a_boundary() -> None:
    cluster = MemoryCluster(topics={"orders": 2})
    cluster.append("orders", [b"%d" % n for n in range(6)], partition=0)
    p, q = TopicPartition("orders", 0), TopicPartition("orders", 1)
    async with cluster.connect() as k:
        logs = k.driver.logs
        assert (logs.unit, logs.names_brokers, logs.values_only) == (RECORDS, False, False)
        await k.partitions("orders")
        extents = await logs.extents([p, q])
        assert {partition: extent[:2] for partition, extent in extents.items()} == {p: (0, 6), q: (0, 0)}
        assert extents[p].topic_id
        assert await logs.boundary(SplitPoint(p, 3, 0, 6), 1000) == 3
        assert await logs.positions_at({p: AtTime(0.0)}, ending=True) == {p: 0}


def test_a_closed_driver_says_what_its_positions_count() -> None:
    k = MemoryCluster().connect()
    logs = k.driver.logs
    assert (logs.unit.name, logs.names_brokers, logs.values_only) == ("records", False, False)
