"""Readers and consumers by Arrow table: the same rows, bounded, resumable right behind each table."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import anyio
import pyarrow as pa
import pytest

import odradek.arrow
from odradek import engine as engines
from odradek.batch import Batch
from odradek.client.consumer.consumer import Consumer
from odradek.client.consumer.group_batches import GroupTable
from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.errors import ConfigError, CorruptMessage
from odradek.types import LATEST, Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

from ..columns import ENGINES, damage, using
from .consuming import LogDriver, tp

pytestmark = pytest.mark.anyio

SIZE = 16
"""Bytes of one entry of `numbered`."""


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % n for n in range(first, first + count)]


def values(table: pa.Table) -> list[bytes]:
    return [row["value"] for row in table.select(["value"]).to_pylist()]


def by_partition(*tables: pa.Table) -> dict[TopicPartition, list[bytes]]:
    values: dict[TopicPartition, list[bytes]] = defaultdict(list)
    for table in tables:
        table.validate(full=True)
        for row in table.to_pylist():
            values[TopicPartition(row["topic"], row["partition"], row["broker"])].append(row["value"])
    return values


async def read_ahead(reader: Reader, rows: int) -> None:
    """Wait until so many rows are there to be taken."""
    with anyio.fail_after(10):
        while sum(cursor.rows for cursor in reader._fetcher.cursors.values()) < rows:
            await anyio.lowlevel.checkpoint()


def make_driver(
    compressions: tuple[CompressionType, ...] = (
        CompressionType.NONE,
        CompressionType.GZIP,
        CompressionType.SNAPPY,
    ),
) -> LogDriver:
    """A partition in each codec, two hundred records each, three to an entry where they are compressed."""
    driver = LogDriver(t=len(compressions))
    for n, compression in enumerate(compressions):
        rows = numbered(200, 1000 * n)
        for at in range(0, 200, 3):
            driver.write(tp(n), rows[at : at + 3], compression)
    return driver


# ---- readers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("max_bytes", [1, 6, 100, 1 << 20])
async def test_tables_have_every_row_in_order_and_end_where_batches_end(engine: str, max_bytes: int) -> None:
    with using(engine):
        async with Reader(make_driver(), "t", until=LATEST, tuning=Tuning(fetch_bytes=500)) as reader:
            tables = [table async for table in reader.arrow(max_bytes=max_bytes)]
    assert by_partition(*tables) == {tp(n): numbered(200, 1000 * n) for n in range(3)}
    assert all(table.schema == odradek.arrow.schema() for table in tables)
    assert max(sum(map(len, values(table))) for table in tables) <= max(max_bytes, 6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("max_bytes", [6, 50, 300])
async def test_a_bookmark_between_two_tables_resumes_exactly_there(engine: str, max_bytes: int) -> None:
    """Also inside a compressed wrapper, where no position exists."""
    driver, options, tables = make_driver(), dict[str, Any](), list[pa.Table]()
    with using(engine):
        while sum(table.num_rows for table in tables) < 600:
            async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=700), **options) as reader:
                async for table in reader.arrow(max_bytes=max_bytes):
                    tables.append(table)
                    if len(tables) % 17 == 0:
                        break
                options = {"start": reader.bookmark()}
    assert by_partition(*tables) == {tp(n): numbered(200, 1000 * n) for n in range(3)}


async def test_positions_lie_right_behind_the_last_table() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(10))
    async with Reader(driver, "t", until=LATEST) as reader:
        tables = reader.arrow(max_bytes=4 * 6)
        for n in (4, 8, 10):
            table = await anext(tables)
            assert reader.positions() == {tp(): n * SIZE}
            assert table["nextOffset"].to_pylist()[-1] == n * SIZE
        with pytest.raises(StopAsyncIteration):
            await anext(tables)


async def test_records_batches_and_tables_of_one_reader_take_turns() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(9))
    async with Reader(driver, "t", until=LATEST) as reader:
        assert values(await anext(reader.arrow(max_bytes=12))) == numbered(2)
        assert (await anext(reader.batches(max_records=1))).values == numbered(1, 2)
        assert values(await anext(reader.arrow())) == numbered(6, 3)


async def test_an_error_comes_behind_the_rows_before_it_and_the_others_go_on() -> None:
    driver = LogDriver()
    driver.write(tp(0), numbered(3))
    driver.write(tp(1), numbered(5, 10))
    driver.logs[tp(0)][-1] ^= 1
    async with Reader(driver, "t", until=LATEST) as reader:
        tables: list[pa.Table] = []
        with pytest.raises(CorruptMessage, match="t/1-0"):
            async for table in reader.arrow():
                tables.append(table)
        tables += [table async for table in reader.arrow()]
    assert by_partition(*tables) == {tp(0): numbered(2), tp(1): numbered(5, 10)}


@pytest.mark.parametrize("engine", ENGINES)
async def test_raw_entries_say_what_is_wrong_with_them(engine: str) -> None:
    driver = LogDriver(t=1)
    bad = damage(encode_set([b"bad"]))
    driver.write(tp(), [b"good"])
    driver.logs[tp()] += bad
    driver.write(tp(), [b"good"])
    with using(engine):
        async with Reader(driver, "t", until=LATEST, corrupt="raw", tuning=Tuning(fetch_bytes=14)) as reader:
            tables = [table async for table in reader.arrow()]
    assert all(table.schema == odradek.arrow.schema(errors=True) for table in tables)
    assert [(row["value"], row["error"]) for table in tables for row in table.to_pylist()] == [
        (b"good", None),
        (bad, "CRC mismatch"),
        (b"good", None),
    ]


async def test_a_table_may_wait_to_be_filled() -> None:
    driver = LogDriver(t=2)
    async with Reader(driver, "t", tuning=Tuning(fetch_idle=0.001)) as reader:
        tables: list[pa.Table] = []

        async def read() -> None:
            tables.append(await anext(reader.arrow(max_bytes=4000, max_wait=3600)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            for n in range(8):
                driver.write(tp(n % 2), [b"x" * 100])
                await read_ahead(reader, n + 1)
            assert not tables
            driver.write(tp(), [b"x" * 4000])
    assert tables[0].num_rows == 8


async def test_a_table_waits_no_longer_than_it_may() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(3))
    async with Reader(driver, "t", tuning=Tuning(fetch_idle=0.001)) as reader:
        with anyio.fail_after(30):
            assert values(await anext(reader.arrow(max_wait=0.02))) == numbered(3)


async def test_a_table_does_not_wait_for_what_will_never_come() -> None:
    driver = LogDriver(t=2)
    driver.write(tp(), numbered(3))
    async with Reader(driver, "t", until=LATEST) as reader:
        with anyio.fail_after(30):
            assert [values(table) async for table in reader.arrow(max_wait=3600)] == [numbered(3)]
    full = LogDriver(t=1)
    full.write(tp(), [b"x" * 990] * 500)
    async with Reader(full, "t", read_ahead_bytes=100_000, tuning=Tuning(fetch_bytes=20_000)) as reader:
        with anyio.fail_after(30):  # more than may be read ahead
            assert (await anext(reader.arrow(max_wait=3600))).num_rows > 20


async def test_what_killed_the_background_is_raised_while_a_table_is_filled() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(3))
    async with Reader(driver, "t", tuning=Tuning(fetch_idle=0.001)) as reader, anyio.create_task_group() as tasks:

        async def read() -> None:
            with pytest.raises(RuntimeError, match="watcher died"):
                await anext(reader.arrow(max_wait=3600))

        tasks.start_soon(read)
        await read_ahead(reader, 3)
        driver.metadata.fail(RuntimeError("watcher died"))


@pytest.mark.parametrize("max_wait", [0.0, 0.001])
async def test_cancelling_a_wait_for_a_table_moves_nothing(max_wait: float) -> None:
    driver = make_driver()
    tables: list[pa.Table] = []
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=100, fetch_idle=0.001)) as reader:
        steps = 0
        while sum(table.num_rows for table in tables) < 600:
            steps += 1
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:

                    async def cancel(after: int = steps % 7, scope: anyio.CancelScope = scope) -> None:
                        for _ in range(after):
                            await anyio.lowlevel.checkpoint()
                        scope.cancel()

                    tasks.start_soon(cancel)
                    async for table in reader.arrow(max_bytes=40, max_wait=max_wait):
                        tables.append(table)
                    tasks.cancel_scope.cancel()
    assert by_partition(*tables) == {tp(n): numbered(200, 1000 * n) for n in range(3)}
    assert steps > 5


async def test_rows_whose_table_cannot_be_made_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> pa.Table:
        raise MemoryError

    driver = make_driver()
    async with Reader(driver, "t", until=LATEST) as reader:
        tables = reader.arrow(max_bytes=100)
        before = await anext(tables)
        bookmark = reader.bookmark()
        with monkeypatch.context() as patch:
            patch.setattr(odradek.arrow, "table", fail)
            for _ in range(3):
                with pytest.raises(MemoryError):
                    await anext(reader.arrow(max_bytes=50))
        assert reader.bookmark() == bookmark
        all_tables = [before] + [table async for table in reader.arrow(max_bytes=100)]
    assert by_partition(*all_tables) == {tp(n): numbered(200, 1000 * n) for n in range(3)}


async def test_pain_memory_is_bounded_with_a_slow_taker_of_tables() -> None:
    driver = LogDriver(t=4)
    for n in range(4):
        driver.write(tp(n), [b"x" * 90] * 10_000)
    read_ahead_bytes = 400_000
    async with Reader(
        driver, "t", read_ahead_bytes=read_ahead_bytes, until=LATEST, tuning=Tuning(fetch_bytes=32_768)
    ) as reader:
        rows = 0
        async for table in reader.arrow(max_bytes=50_000):
            assert sum(cursor.held_bytes for cursor in reader._fetcher.cursors.values()) <= read_ahead_bytes
            assert 90 * table.num_rows <= 50_000
            rows += table.num_rows
            await anyio.lowlevel.checkpoint()
    assert rows == 40_000


@pytest.mark.parametrize("engine", ENGINES)
async def test_pain_batches_into_data_frames_are_slow(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """confluent-kafka-python#252, pykafka#732. No record is made on the way, and of packed values no object at all."""

    def refuse(*_: object) -> Any:
        raise AssertionError("an object for a row")

    driver = LogDriver(t=1)
    driver.write(tp(), [b"x" * 90] * 1000)
    with using(engine):
        async with Reader(driver, "t", until=LATEST) as reader:
            for kind in (Batch, engines.PackedBytes):
                monkeypatch.setattr(kind, "__iter__", refuse)
            monkeypatch.setattr(engines.PackedBytes, "tolist", refuse)
            tables = [table async for table in reader.arrow()]
            monkeypatch.undo()
    assert [value for table in tables for value in values(table)] == [b"x" * 90] * 1000


async def test_options_that_cannot_work_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(LogDriver(), "t")
    with pytest.raises(ConfigError, match="max_bytes"):
        reader.arrow(max_bytes=0)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "odradek.arrow")
    with pytest.raises(ConfigError, match=r"odradek\[arrow\]"):
        reader.arrow()


# ---- consumers ----------------------------------------------------------------------------------------------


def make_consumer(driver: LogDriver, **options: Any) -> Consumer:
    settings: dict[str, Any] = {"group": "g", "commit_every": None, "tuning": Tuning(fetch_idle=0.001), **options}
    return Consumer(driver, "t", **settings)


def group_driver(*counts: int) -> LogDriver:
    driver = LogDriver(t=len(counts))
    for n, count in enumerate(counts):
        driver.write(tp(n), numbered(count, 1000 * n))
    driver.initial = dict.fromkeys(map(tp, range(len(counts))), 0)
    return driver


async def test_only_tables_that_are_done_are_committed() -> None:
    driver = group_driver(10)
    async with make_consumer(driver) as consumer:
        tables = consumer.arrow(max_bytes=4 * 6)
        first, second = [await anext(tables) for _ in range(2)]
        assert isinstance(first, GroupTable) and values(first.table) == numbered(4)
        assert repr(first) == "<GroupTable 4 rows of 1 partitions>"
        assert second.done()
        assert await consumer.commit() == {tp(): 0}, "contiguous"
        assert first.done()
        assert await consumer.commit() == {tp(): 8 * SIZE}
    async with make_consumer(driver) as consumer:
        assert values((await anext(consumer.arrow())).table) == numbered(2, 8)


async def test_a_table_of_several_partitions_commits_them_all() -> None:
    driver = group_driver(3, 5)
    async with make_consumer(driver) as consumer:
        rows = 0
        async for batch in consumer.arrow(max_wait=0.01):
            rows += batch.table.num_rows
            assert batch.done()
            if rows == 8:
                break
        await consumer.commit()
        assert driver.store.stored == {tp(0): 3 * SIZE, tp(1): 5 * SIZE}


async def test_done_says_when_a_partition_was_taken_away() -> None:
    driver = group_driver(3, 3)
    async with make_consumer(driver, revoke_within=0.01) as consumer:
        batch = await anext(consumer.arrow(max_wait=0.05))
        await driver.member.revoke()
        assert batch.done() is False
        await driver.member.assign(tp(0))
        assert await consumer.commit() == {}
    assert driver.store.stored == {tp(0): 0, tp(1): 0}


async def test_one_partition_sought_elsewhere_does_not_keep_the_others_from_being_done() -> None:
    driver = group_driver(3, 3)
    async with make_consumer(driver) as consumer:
        batch = await anext(consumer.arrow(max_wait=0.05))
        assert {row["partition"] for row in batch.table.to_pylist()} == {0, 1}
        consumer.seek(tp(0), Position(0))
        assert batch.done() is False
        await consumer.commit()
        assert driver.store.stored == {tp(0): 0, tp(1): 3 * SIZE}


async def test_each_stream_has_tables_of_its_own_partitions() -> None:
    driver = group_driver(3, 3)
    driver.initial = {tp(0): 0, tp(1): 1}
    async with make_consumer(driver, streams=2) as consumer:
        for n, stream in enumerate(consumer.streams):
            assert by_partition((await anext(stream.arrow())).table) == {tp(n): numbered(3, 1000 * n)}


async def test_rows_of_a_group_whose_table_cannot_be_made_hold_no_commit_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> pa.Table:
        raise MemoryError

    driver = group_driver(10)
    async with make_consumer(driver) as consumer:
        (await anext(consumer.arrow(max_bytes=12))).done()
        with monkeypatch.context() as patch:
            patch.setattr(odradek.arrow, "table", fail)
            with pytest.raises(MemoryError):
                await anext(consumer.arrow(max_bytes=24))
        assert await consumer.commit() == {tp(): 2 * SIZE}
        batch = await anext(consumer.arrow())
        assert values(batch.table) == numbered(8, 2)
        assert batch.done() and await consumer.commit() == {tp(): 10 * SIZE}
