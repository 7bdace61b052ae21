"""Where a consumer begins: at a time, and again at what its group has committed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.client.one_member import consuming, make_cluster, numbered, tp, until

import odradek as od
from odradek.errors import ConfigError, OdradekError
from odradek.testing import MemoryCluster

pytestmark = pytest.mark.anyio


def timed(count: int = 10) -> MemoryCluster:
    """A topic with a record in each second from 1000 on."""
    cluster = MemoryCluster(topics={"t": 1})
    for n, value in enumerate(numbered(count)):
        cluster.append("t", [od.ProducerRecord(value, timestamp=1000 * (1000 + n))])
    return cluster


@pytest.mark.parametrize(("seconds", "first"), [(0, 0), (1003, 3), (1003.5, 4), (2000, 10)])
async def test_without_a_committed_position_a_consumer_begins_at_a_time(seconds: float, first: int) -> None:
    cluster = timed()
    async with consuming(cluster, start=od.AtTime(seconds)) as consumer:
        cluster.append("t", [b"new"])
        assert (await anext(consumer)).position == first
    assert cluster.committed("g") == {tp(): first + 1}


async def test_a_committed_position_counts_more_than_a_time() -> None:
    cluster = timed()
    cluster.set_committed("g", {tp(): 2})
    async with consuming(cluster, start=od.AtTime(1005)) as consumer:
        assert (await anext(consumer)).position == 2


async def test_a_time_is_stored_like_a_position() -> None:
    cluster = timed()
    async with consuming(cluster, start=od.AtTime(1005)) as consumer:
        assert await consumer.commit() == {tp(): 5}


async def test_a_time_that_no_broker_can_look_up_is_looked_up_again() -> None:
    cluster = timed()
    cluster.fail("positions", OdradekError("not now"))
    async with consuming(cluster, start=od.AtTime(1005)) as consumer:
        assert (await anext(consumer)).position == 5


async def test_a_position_out_of_range_is_reset_to_the_time() -> None:
    cluster = timed()
    cluster.set_committed("g", {tp(): 99})
    async with consuming(cluster, start=od.AtTime(1007)) as consumer:
        assert (await anext(consumer)).position == 7


async def test_a_position_is_no_start_for_a_whole_topic() -> None:
    cluster = timed()
    with pytest.raises(TypeError, match=r"start must be EARLIEST, LATEST or AtTime\(seconds\), not int"):
        async with consuming(cluster, start=5):
            pass


# ---- seek_to_committed ----------------------------------------------------------------------------------------


async def test_seeking_to_what_is_committed_delivers_again_what_came_since() -> None:
    cluster = make_cluster(10, 10)
    cluster.set_committed("g", {tp(0): 2})
    async with consuming(cluster, start=od.LATEST) as consumer:
        batch = await anext(consumer.batches(max_records=3))
        assert batch.position == 2
        assert await consumer.seek_to_committed() == {tp(0): 2}
        assert not batch.done(), "it was moved"
        assert (await anext(consumer.batches(max_records=3))).position == 2
        await until(lambda: consumer.positions() == {tp(0): 5, tp(1): 10})


async def test_only_the_partitions_named_are_sought() -> None:
    cluster = make_cluster(10, 10)
    cluster.set_committed("g", {tp(0): 2, tp(1): 4})
    async with consuming(cluster) as consumer:
        await anext(consumer.batches())
        await anext(consumer.batches())
        assert await consumer.seek_to_committed(tp(1)) == {tp(1): 4}
        assert consumer.positions() == {tp(0): 10, tp(1): 4}


async def test_an_error_and_a_cancellation_change_nothing() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        await anext(consumer.batches(max_records=3))
        cluster.fail("committed", OdradekError("refused"))
        with pytest.raises(OdradekError, match="refused"):
            await consumer.seek_to_committed()
        cluster.hold("committed")
        with anyio.move_on_after(0.02) as scope:
            await consumer.seek_to_committed()
        assert scope.cancelled_caught and consumer.positions() == {tp(): 3}
        cluster.heal()


async def test_a_partition_that_is_revoked_meanwhile_is_left_out() -> None:
    cluster = make_cluster(10, 10)
    cluster.set_committed("g", {tp(0): 2, tp(1): 4})
    sought: list[dict[Any, Any]] = []
    async with consuming(cluster) as consumer, anyio.create_task_group() as tasks:

        async def seek() -> None:
            sought.append(await consumer.seek_to_committed())

        cluster.hold("committed")
        tasks.start_soon(seek)
        await anyio.wait_all_tasks_blocked()
        cluster.revoke("g", tp(1))
        await until(lambda: consumer.partitions == [tp(0)])
        cluster.heal()
    assert sought == [{tp(0): 2}]


async def test_a_partition_that_is_not_assigned_is_refused() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        with pytest.raises(ConfigError, match="t/5 is not currently assigned"):
            await consumer.seek_to_committed(tp(5))


@asynccontextmanager
async def open_transaction(cluster: MemoryCluster) -> AsyncIterator[anyio.Event]:
    """A transaction with one record, which ends when the event is set."""
    opened, ends = anyio.Event(), anyio.Event()

    async def write(producer: od.Producer) -> None:
        async with producer.transaction():
            await producer.send("t", b"open")
            opened.set()
            await ends.wait()

    async with (
        cluster.connect() as k,
        k.producer(transactional_id="x") as producer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(write, producer)
        await opened.wait()
        yield ends
        ends.set()


@pytest.mark.parametrize("failures", [0, 1], ids=["at once", "asked again"])
async def test_latest_of_read_committed_is_where_an_open_transaction_begins(failures: int) -> None:
    """Its records can be read from its end on, which is later."""
    cluster = MemoryCluster(topics={"t": 1})
    if failures:
        cluster.fail("positions", OdradekError("not now"), times=failures)
    async with (
        open_transaction(cluster) as ends,
        consuming(cluster, start=od.LATEST, isolation="read_committed") as consumer,
    ):
        await until(lambda: bool(consumer.positions()))
        ends.set()
        with anyio.fail_after(10):
            assert (await anext(consumer)).value == b"open"


async def test_a_reader_that_is_sought_to_the_end_goes_on_where_an_open_transaction_begins() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    async with (
        open_transaction(cluster) as ends,
        cluster.connect() as k,
        k.reader("t", isolation="read_committed") as reader,
    ):
        reader.seek(tp(), od.LATEST)
        await until(lambda: bool(reader.positions()))
        ends.set()
        with anyio.fail_after(10):
            assert (await anext(reader)).value == b"open"
