"""Readers and consumers by Arrow table: the same rows, bounded, resumable right behind each table."""

from __future__ import annotations

import sys
from typing import Any

import anyio
import anyio.lowlevel
import pyarrow as pa
import pytest

import odradek.arrow
from odradek.client.consumer.consumer import Consumer
from odradek.client.consumer.group_batches import GroupTable
from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.errors import ConfigError, CorruptMessage, Unreachable
from odradek.testing import MemoryCluster
from odradek.types import LATEST, Position

from .one_member import consuming, make_cluster, numbered, tp, until
from .reading import cancelled_after, held, reading
from .table_rows import by_partition, tables_past_failures, values

pytestmark = pytest.mark.anyio

THREE = {tp(n): numbered(200, 200 * n) for n in range(3)}
"""What `make_cluster(200, 200, 200)` has."""


async def read_ahead(reader: Reader | Consumer, rows: int) -> None:
    """Wait until so many rows are there to be taken."""
    await until(lambda: sum(cursor.queue.rows for cursor in reader._fetcher.cursors.values()) >= rows)


# ---- readers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [1, 6, 100, 1 << 20])
async def test_tables_have_every_row_in_order_and_end_where_batches_end(max_bytes: int) -> None:
    async with reading(make_cluster(200, 200, 200), until=LATEST, tuning=Tuning(fetch_bytes=500)) as reader:
        tables = [table async for table in reader.arrow(max_bytes=max_bytes)]
    assert by_partition(*tables) == THREE
    assert all(table.schema == odradek.arrow.schema() for table in tables)
    assert max(sum(map(len, values(table))) for table in tables) <= max(max_bytes, 6)


@pytest.mark.parametrize("max_bytes", [6, 50, 300])
async def test_a_bookmark_between_two_tables_resumes_exactly_there(max_bytes: int) -> None:
    cluster, options, tables = make_cluster(200, 200, 200), dict[str, Any](), list[pa.Table]()
    while sum(table.num_rows for table in tables) < 600:
        async with reading(cluster, until=LATEST, tuning=Tuning(fetch_bytes=700), **options) as reader:
            async for table in reader.arrow(max_bytes=max_bytes):
                tables.append(table)
                if len(tables) % 17 == 0:
                    break
            options = {"start": reader.bookmark()}
    assert by_partition(*tables) == THREE


async def test_positions_lie_right_behind_the_last_table() -> None:
    async with reading(make_cluster(10), until=LATEST) as reader:
        tables = reader.arrow(max_bytes=4 * 6)
        for n in (4, 8, 10):
            table = await anext(tables)
            assert reader.positions() == {tp(): n}
            assert table["nextOffset"].to_pylist()[-1] == n
        with pytest.raises(StopAsyncIteration):
            await anext(tables)


async def test_records_batches_and_tables_of_one_reader_take_turns() -> None:
    async with reading(make_cluster(9), until=LATEST) as reader:
        assert values(await anext(reader.arrow(max_bytes=12))) == numbered(2)
        assert (await anext(reader.batches(max_records=1))).values == numbered(1, 2)
        assert values(await anext(reader.arrow())) == numbered(6, 3)


async def test_an_error_comes_behind_the_rows_before_it_and_the_others_go_on() -> None:
    cluster = make_cluster(3, 5)
    cluster.corrupt(tp(0), 2)
    async with reading(cluster, until=LATEST) as reader:
        tables: list[pa.Table] = []
        with pytest.raises(CorruptMessage, match="t/0"):
            async for table in reader.arrow():
                tables.append(table)
        tables += [table async for table in reader.arrow()]
    assert by_partition(*tables) == {tp(0): numbered(2), tp(1): numbered(5, 3)}


async def test_raw_entries_say_what_is_wrong_with_them() -> None:
    cluster = make_cluster(3)
    cluster.corrupt(tp(), 1)
    async with reading(cluster, until=LATEST, corrupt="raw", tuning=Tuning(fetch_bytes=14)) as reader:
        tables = [table async for table in reader.arrow()]
    assert all(table.schema == odradek.arrow.schema(errors=True) for table in tables)
    assert [(row["value"], row["error"]) for table in tables for row in table.to_pylist()] == [
        (b"000000", None),
        (b"000001", "CRC mismatch"),
        (b"000002", None),
    ]


async def test_a_table_may_wait_to_be_filled() -> None:
    cluster = make_cluster(0, 0)
    async with reading(cluster) as reader:
        tables: list[pa.Table] = []

        async def read() -> None:
            tables.append(await anext(reader.arrow(max_bytes=4000, max_wait=3600)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            for n in range(8):
                cluster.append("t", [b"x" * 100], partition=n % 2)
                await read_ahead(reader, n + 1)
            assert not tables
            cluster.append("t", [b"x" * 4000])
    assert tables[0].num_rows == 8


async def test_a_table_waits_no_longer_than_it_may() -> None:
    async with reading(make_cluster(3)) as reader:
        with anyio.fail_after(30):
            assert values(await anext(reader.arrow(max_wait=0.02))) == numbered(3)


async def test_a_table_does_not_wait_for_what_will_never_come() -> None:
    async with reading(make_cluster(3, 0), until=LATEST) as reader:
        with anyio.fail_after(30):
            assert [values(table) async for table in reader.arrow(max_wait=3600)] == [numbered(3)]
    full = MemoryCluster(topics={"t": 1})
    full.append("t", [b"x" * 990] * 500)
    async with reading(full, read_ahead_bytes=100_000, tuning=Tuning(fetch_bytes=20_000)) as reader:
        with anyio.fail_after(30):  # more than may be read ahead
            assert (await anext(reader.arrow(max_wait=3600))).num_rows > 20


async def test_what_killed_the_background_is_raised_while_a_table_is_filled() -> None:
    cluster = make_cluster(3)
    async with reading(cluster) as reader, anyio.create_task_group() as tasks:

        async def read() -> None:
            with pytest.raises(Unreachable, match="Connection refused"):
                await anext(reader.arrow(max_wait=3600))

        tasks.start_soon(read)
        await read_ahead(reader, 3)
        cluster.fail("watch", Unreachable("tcp", "memory-1:9092", "Connection refused"))


@pytest.mark.parametrize("max_wait", [0.0, 0.001])
async def test_cancelling_a_wait_for_a_table_moves_nothing(max_wait: float) -> None:
    cluster = make_cluster(200, 200, 200)
    cluster.clock.hold()
    tables: list[pa.Table] = []
    async with reading(cluster, until=LATEST, tuning=Tuning(fetch_bytes=100)) as reader:
        cluster.delay("fetch", 1.0)  # an answer for each step
        steps = 0
        while sum(table.num_rows for table in tables) < 600:
            steps += 1
            cluster.clock.advance(1.0)
            async with cancelled_after(steps % 7):
                async for table in reader.arrow(max_bytes=40, max_wait=max_wait):
                    tables.append(table)
    assert by_partition(*tables) == THREE
    assert steps > 5


async def test_rows_whose_table_cannot_be_made_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reading(make_cluster(200, 200, 200), until=LATEST) as reader:
        tables = await tables_past_failures(reader, monkeypatch)
    assert by_partition(*tables) == THREE


async def test_pain_memory_is_bounded_with_a_slow_taker_of_tables() -> None:
    cluster = MemoryCluster(topics={"t": 4})
    for n in range(4):
        cluster.append("t", [b"x" * 90] * 5000, partition=n)
    read_ahead_bytes, tuning = 400_000, Tuning(fetch_bytes=32_768)
    async with reading(cluster, read_ahead_bytes=read_ahead_bytes, until=LATEST, tuning=tuning) as reader:
        rows = 0
        async for table in reader.arrow(max_bytes=50_000):
            assert held(reader) <= read_ahead_bytes
            assert 90 * table.num_rows <= 50_000
            rows += table.num_rows
            await anyio.lowlevel.checkpoint()
    assert rows == 20_000


def test_options_that_cannot_work_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = make_cluster().connect().reader("t")
    with pytest.raises(ConfigError, match="max_bytes"):
        reader.arrow(max_bytes=0)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "odradek.arrow")
    with pytest.raises(ConfigError, match=r"odradek\[arrow\]"):
        reader.arrow()


# ---- consumers ----------------------------------------------------------------------------------------------


async def test_only_tables_that_are_done_are_committed() -> None:
    cluster = make_cluster(10)
    async with consuming(cluster) as consumer:
        tables = consumer.arrow(max_bytes=4 * 6)
        first, second = [await anext(tables) for _ in range(2)]
        assert isinstance(first, GroupTable) and values(first.table) == numbered(4)
        assert repr(first) == "<GroupTable 4 rows of 1 partitions>"
        assert second.done()
        assert await consumer.commit() == {tp(): 0}, "contiguous"
        assert first.done()
        assert await consumer.commit() == {tp(): 8}
    async with consuming(cluster) as consumer:
        assert values((await anext(consumer.arrow())).table) == numbered(2, 8)


async def test_a_table_of_several_partitions_commits_them_all() -> None:
    cluster = make_cluster(3, 5)
    async with consuming(cluster) as consumer:
        await read_ahead(consumer, 8)
        batch = await anext(consumer.arrow())
        assert by_partition(batch.table) == {tp(0): numbered(3), tp(1): numbered(5, 3)}
        assert batch.done()
        await consumer.commit()
        assert cluster.committed("g") == {tp(0): 3, tp(1): 5}


async def test_done_says_when_a_partition_was_taken_away() -> None:
    cluster = make_cluster(3, 3)
    async with consuming(cluster, revoke_within=0.01) as consumer:
        await read_ahead(consumer, 6)
        batch = await anext(consumer.arrow())
        cluster.revoke("g", tp(0), tp(1))
        await until(lambda: not consumer.assignment)
        assert batch.done() is False
        cluster.restore("g")
        await until(lambda: consumer.assignment)
        assert await consumer.commit() == {}
    assert cluster.committed("g") == {tp(0): 0, tp(1): 0}


async def test_one_partition_sought_elsewhere_does_not_keep_the_others_from_being_done() -> None:
    cluster = make_cluster(3, 3)
    async with consuming(cluster) as consumer:
        await read_ahead(consumer, 6)
        batch = await anext(consumer.arrow())
        assert {row["partition"] for row in batch.table.to_pylist()} == {0, 1}
        consumer.seek(tp(0), Position(0))
        assert batch.done() is False
        await consumer.commit()
        assert cluster.committed("g") == {tp(0): 0, tp(1): 3}


async def test_each_stream_has_tables_of_its_own_partitions() -> None:
    async with consuming(make_cluster(3, 3), streams=2) as consumer:
        for n, stream in enumerate(consumer.streams):
            assert by_partition((await anext(stream.arrow())).table) == {tp(n): numbered(3, 3 * n)}


async def test_rows_of_a_group_whose_table_cannot_be_made_hold_no_commit_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> pa.Table:
        raise MemoryError

    async with consuming(make_cluster(10)) as consumer:
        (await anext(consumer.arrow(max_bytes=12))).done()
        with monkeypatch.context() as patch:
            patch.setattr(odradek.arrow, "table", fail)
            with pytest.raises(MemoryError):
                await anext(consumer.arrow(max_bytes=24))
        assert await consumer.commit() == {tp(): 2}
        batch = await anext(consumer.arrow())
        assert values(batch.table) == numbered(8, 2)
        assert batch.done() and await consumer.commit() == {tp(): 10}
