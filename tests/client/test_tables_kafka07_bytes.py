"""Arrow tables of byte logs: rows of compressed messages, by each engine, and damaged entries."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import odradek.arrow
from odradek import engine as engines
from odradek.batch import Batch
from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.errors import CorruptMessage
from odradek.types import LATEST
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

from ..columns import ENGINES, damage, using
from .kafka07_bytes import Kafka07LogDriver, tp
from .one_member import numbered
from .reading import cancelled_after
from .table_rows import by_partition, tables_past_failures, values

pytestmark = pytest.mark.anyio


def make_driver(
    compressions: tuple[CompressionType, ...] = (
        CompressionType.NONE,
        CompressionType.GZIP,
        CompressionType.SNAPPY,
    ),
) -> Kafka07LogDriver:
    """A partition in each codec, two hundred records each, three to an entry where they are compressed."""
    driver = Kafka07LogDriver(t=len(compressions))
    for n, compression in enumerate(compressions):
        rows = numbered(200, 1000 * n)
        for at in range(0, 200, 3):
            driver.write(tp(n), rows[at : at + 3], compression)
    return driver


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


async def test_an_error_comes_behind_the_rows_before_it_and_the_others_go_on() -> None:
    driver = Kafka07LogDriver()
    driver.write(tp(0), numbered(3))
    driver.write(tp(1), numbered(5, 10))
    driver.stored[tp(0)][-1] ^= 1
    async with Reader(driver, "t", until=LATEST) as reader:
        tables: list[pa.Table] = []
        with pytest.raises(CorruptMessage, match="t/1-0"):
            async for table in reader.arrow():
                tables.append(table)
        tables += [table async for table in reader.arrow()]
    assert by_partition(*tables) == {tp(0): numbered(2), tp(1): numbered(5, 10)}


@pytest.mark.parametrize("engine", ENGINES)
async def test_raw_entries_say_what_is_wrong_with_them(engine: str) -> None:
    driver = Kafka07LogDriver(t=1)
    bad = damage(encode_set([b"bad"]))
    driver.write(tp(), [b"good"])
    driver.stored[tp()] += bad
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


@pytest.mark.parametrize("max_wait", [0.0, 0.001])
async def test_cancelling_a_wait_for_a_table_moves_nothing(max_wait: float) -> None:
    driver = make_driver()
    tables: list[pa.Table] = []
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=100, fetch_idle=0.001)) as reader:
        steps = 0
        while sum(table.num_rows for table in tables) < 600:
            steps += 1
            async with cancelled_after(steps % 7):
                async for table in reader.arrow(max_bytes=40, max_wait=max_wait):
                    tables.append(table)
    assert by_partition(*tables) == {tp(n): numbered(200, 1000 * n) for n in range(3)}
    assert steps > 5


async def test_rows_whose_table_cannot_be_made_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = make_driver()
    async with Reader(driver, "t", until=LATEST) as reader:
        tables = await tables_past_failures(reader, monkeypatch)
    assert by_partition(*tables) == {tp(n): numbered(200, 1000 * n) for n in range(3)}


@pytest.mark.parametrize("engine", ENGINES)
async def test_pain_batches_into_data_frames_are_slow(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """confluent-kafka-python#252, pykafka#732. No record is made on the way, and of packed values no object at all."""

    def refuse(*_: object) -> Any:
        raise AssertionError("an object for a row")

    driver = Kafka07LogDriver(t=1)
    driver.write(tp(), [b"x" * 90] * 1000)
    with using(engine):
        async with Reader(driver, "t", until=LATEST) as reader:
            for kind in (Batch, engines.PackedBytes):
                monkeypatch.setattr(kind, "__iter__", refuse)
            monkeypatch.setattr(engines.PackedBytes, "tolist", refuse)
            tables = [table async for table in reader.arrow()]
            monkeypatch.undo()
    assert [value for table in tables for value in values(table)] == [b"x" * 90] * 1000
