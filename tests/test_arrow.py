"""Columns as Arrow: the same rows, a stable schema, no copies."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek import arrow
from odradek.batch import Batch
from odradek.engine import PackedBytes
from odradek.errors import ConfigError
from odradek.ranges.projection import columns as spark_columns
from odradek.types import NO_TIMESTAMP, Columns, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

from .columns import ENGINES, LOGS, RECORDS, TP, damage, decode, numbers, pack, packed, plain, using

Row = dict[str, Any]
Made = pa.RecordBatch | pa.Table


def rows_of(*batches: Batch, errors: bool = False) -> list[Row]:
    """What Arrow should make of these."""
    rows: list[Row] = []
    for batch in batches:
        for n, record in enumerate(batch):
            row = {
                "key": record.key,
                "value": record.value,
                "topic": record.topic,
                "partition": record.partition.partition,
                "offset": record.position,
                "timestamp": None if record.timestamp is None else at(record.timestamp),
                "timestampType": -1 if record.timestamp_type is None else record.timestamp_type.value,
                "broker": None if record.partition.broker < 0 else record.partition.broker,
                "index": record.inner_index,
                "nextOffset": record.next_position,
                "headers": [{"key": name, "value": value} for name, value in record.headers],
            }
            if errors:
                row["error"] = batch.corrupt[n].reason if n in batch.corrupt else None
            rows.append(row)
    return rows


def at(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def check(made: Made, expected: Sequence[Row]) -> None:
    made.validate(full=True)
    assert made.to_pylist() == expected


def addresses(array: pa.Array[Any]) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer is not None]


def address(view: memoryview) -> int:
    return pa.py_buffer(view).address


# ---- the schema ---------------------------------------------------------------------------------------------


def test_the_schema_is_what_the_pages_say() -> None:
    header: list[pa.Field[Any]] = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
    always: list[pa.Field[Any]] = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.dictionary(pa.int32(), pa.int32()), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("timestampType", pa.int32(), nullable=False),
        pa.field("broker", pa.dictionary(pa.int32(), pa.int32())),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("nextOffset", pa.int64(), nullable=False),
        pa.field("headers", pa.list_(pa.struct(header)), nullable=False),
    ]
    error: pa.Field[Any] = pa.field("error", pa.string())
    assert arrow.schema() == pa.schema(always)
    assert arrow.schema(errors=True) == pa.schema([*always, error])
    large = arrow.schema(large=True)
    assert list(large)[:2] == [pa.field("key", pa.large_binary()), pa.field("value", pa.large_binary())]
    assert list(large)[2:] == always[2:]


def test_the_names_are_those_of_the_spark_source() -> None:
    assert arrow.schema().names == [column.name for column in spark_columns(headers=True)]


def test_every_way_to_arrow_gives_this_schema() -> None:
    lists, buffers, huge = plain([b"one"]), packed(plain([b"one"])), packed(plain([b"one"]), "q")
    for columns in (lists, buffers, plain([]), packed(plain([]))):
        assert Batch(TP, columns).to_arrow().schema == arrow.schema()
        assert arrow.table([(TP, columns)]).schema == arrow.schema()
        assert arrow.table([(TP, columns)], errors=True).schema == arrow.schema(errors=True)
    assert arrow.table([]).schema == arrow.schema()
    assert arrow.table([], errors=True).schema == arrow.schema(errors=True)
    assert Batch(TP, huge).to_arrow().schema == arrow.schema(large=True)
    assert arrow.table([(TP, lists), (TP, huge), (TP, buffers)]).schema == arrow.schema(large=True)


# ---- the rows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@given(LOGS, st.integers(0, 5), st.integers(0, 30))
def test_what_was_decoded_is_what_arrow_has(engine: str, log: bytes, start: int, stop: int) -> None:
    with using(engine):
        batch = Batch(TP, decode(log, "raw", 1 << 40).slice(start, stop))
        check(batch.to_arrow(), rows_of(batch, errors=bool(batch.corrupt)))
        check(arrow.table([(TP, batch.columns)], errors=True), rows_of(batch, errors=True))


@given(LOGS, st.sampled_from(["i", "q"]), st.integers(0, 5), st.integers(0, 30))
def test_buffers_and_their_slices_become_the_same_rows(log: bytes, kind: str, start: int, stop: int) -> None:
    with using("pure"):
        batch = Batch(TP, packed(decode(log, "skip"), kind).slice(start, stop))
        made = batch.to_arrow()
        check(made, rows_of(batch))
        assert made.schema.field("value").type == (pa.binary() if kind == "i" else pa.large_binary())


def test_nothing_is_copied() -> None:
    columns = packed(decode(encode_set([b"a", b"b"], CompressionType.GZIP) + encode_set([b"c" * 50] * 1000)))
    for part in (columns, columns.slice(1, 900)):
        made = Batch(TP, part).to_arrow()
        assert isinstance(part.values, PackedBytes) and isinstance(part.inner_indexes, memoryview)
        assert isinstance(part.positions, memoryview) and isinstance(part.next_positions, memoryview)
        assert addresses(made["value"]) == [address(part.values.offsets), address(part.values.data)]
        assert addresses(made["offset"]) == [address(part.positions)]
        assert addresses(made["nextOffset"]) == [address(part.next_positions)]
        assert addresses(made["index"]) == [address(part.inner_indexes)]
    zeros = Batch(TP, packed(plain([b"x"] * 10))).to_arrow()
    assert addresses(zeros["index"]) == addresses(zeros["topic"])[:1] == addresses(zeros["broker"])[:1]


@pytest.mark.parametrize("engine", ENGINES)
def test_arrow_outlives_what_it_was_made_of(engine: str) -> None:
    with using(engine):
        made = Batch(TP, decode(encode_set([b"%d" % n for n in range(1000)]))).to_arrow()
        others = [decode(encode_set([b"zzz"] * 1000)) for _ in range(10)]
    assert made["value"].to_pylist() == [b"%d" % n for n in range(1000)] and others


def test_messages_of_a_wrapper_are_counted() -> None:
    inner = encode_set([b"two", b"three"], CompressionType.SNAPPY)
    made = Batch(TP, decode(encode_set([b"one", inner[10:]], CompressionType.GZIP) + encode_set([b"four"]))).to_arrow()
    assert made["value"].to_pylist()[0] == b"one" and made["index"].to_pylist()[:2] == [0, 1]
    assert made["index"].to_pylist()[-1] == 0 and len(set(made["offset"].to_pylist())) == 2


def test_a_damaged_message_tells_why() -> None:
    entry = damage(encode_set([b"bad"]))
    batch = Batch(TP, decode(encode_set([b"good"]) + entry, "raw"))
    assert batch.to_arrow().to_pylist()[1]["value"] == entry
    assert batch.to_arrow()["error"].to_pylist() == [None, "CRC mismatch"]
    assert "error" not in Batch(TP, decode(encode_set([b"good"]), "raw")).to_arrow().schema.names


def test_keys_headers_and_times_are_in_their_fields() -> None:
    columns = plain([b"one", None]).replace(
        keys=[b"k", None],
        headers=[(("h", b"1"), ("h", None)), ()],
        timestamps=[1500, NO_TIMESTAMP],
        timestamp_types=[1, NO_TIMESTAMP],
    )
    batch = Batch(TP, columns)
    check(batch.to_arrow(), rows_of(batch))
    check(arrow.table([(TP, columns), (TP, columns)]), rows_of(batch, batch))
    first, second = batch.to_arrow().to_pylist()
    assert first["timestamp"] == datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    assert first["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert (second["value"], second["timestamp"], second["timestampType"], second["headers"]) == (None, None, -1, [])


@given(RECORDS, st.sampled_from(["i", "q"]), st.data())
def test_records_of_every_kind_become_rows(columns: Columns, kind: str, data: st.DataObject) -> None:
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 12), st.integers(0, 12))))
    for part in (columns, packed(columns, kind)):
        batch = Batch(TopicPartition("t", 1), part.slice(start, stop))
        check(batch.to_arrow(), rows_of(batch, errors=bool(batch.corrupt)))
        both = [(TP, part), (batch.partition, batch.columns)]
        check(arrow.table(both, errors=True), rows_of(Batch(TP, part), batch, errors=True))


def test_lists_of_more_than_a_binary_array_can_count_become_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_BINARY_BYTES", 5)
    assert Batch(TP, plain([b"12345"])).to_arrow().schema == arrow.schema()
    made = Batch(TP, plain([b"12345", b"6"])).to_arrow()
    assert made.schema == arrow.schema(large=True) and made["value"].to_pylist() == [b"12345", b"6"]


# ---- tables of many partitions ------------------------------------------------------------------------------

PARTITIONS = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 2), st.integers(-1, 2))
SIZES = st.integers(0, 5) | st.integers(60, 70)


@given(st.lists(st.tuples(PARTITIONS, SIZES, st.sampled_from(["", "i", "q"])), max_size=8))
def test_a_table_has_all_rows_of_its_parts_in_order(shapes: list[tuple[TopicPartition, int, str]]) -> None:
    parts: list[arrow.Part] = []
    for n, (partition, size, kind) in enumerate(shapes):
        columns = plain([b"%d-%d" % (n, row) for row in range(size)], 1000 * n)
        parts.append((partition, packed(columns, kind) if kind else columns))
    check(arrow.table(parts), rows_of(*(Batch(*part) for part in parts)))


@pytest.mark.parametrize("engine", ENGINES)
@given(st.lists(LOGS, min_size=1, max_size=4))
def test_wrappers_and_damage_in_joined_parts(engine: str, logs: list[bytes]) -> None:
    with using(engine):
        parts = [(TP._replace(partition=n), decode(log, "raw")) for n, log in enumerate(logs)]
        check(arrow.table(parts, errors=True), rows_of(*(Batch(*part) for part in parts), errors=True))


def test_small_neighbours_share_a_chunk_and_large_parts_are_not_copied() -> None:
    small, large = packed(plain([b"x"])), packed(plain([b"x" * 100] * 2000))
    few_and_long = packed(plain([b"x" * 200_000]))
    parts = [(TP._replace(partition=n), c) for n, c in enumerate([small, small, large, small, few_and_long, small])]
    made = arrow.table(parts)
    assert [len(chunk) for chunk in made["value"].chunks] == [2, 2000, 1, 1, 1]
    assert isinstance(large.values, PackedBytes)
    assert addresses(made["value"].chunks[1])[1] == address(large.values.data)
    assert made["partition"].to_pylist() == [0, 1, *[2] * 2000, 3, 4, 5]


def test_joined_parts_may_have_different_columns() -> None:
    full = Columns([None, b"v"], [7, 8], [8, 9], [0, 1], [b"k", None], [(("h", b"1"),), ()], [5, NO_TIMESTAMP], [0, 0])
    parts = [(TP._replace(partition=n), c) for n, c in enumerate([plain([b"one"]), full, packed(plain([b"two"]))])]
    made = arrow.table(parts)
    assert made["value"].num_chunks == 1
    check(made, rows_of(*(Batch(*part) for part in parts)))


def test_the_chunks_of_a_table_share_their_dictionaries() -> None:
    """A file in Arrow's own format may have only one for each column."""
    columns = packed(plain([b"x"] * 100))
    made = arrow.table([(TopicPartition(topic, n, 1), columns) for topic in "ab" for n in range(3)])
    with pa.BufferOutputStream() as sink:
        with pa.ipc.new_file(sink, made.schema) as writer:
            writer.write_table(made)
        assert pa.ipc.open_file(sink.getvalue()).read_all().to_pylist() == made.to_pylist()


def test_parquet_takes_tables_as_they_come() -> None:
    one = arrow.table([(TP, packed(plain([b"one"] * 100))), (TP._replace(topic="other"), plain([b"two"]))])
    two = arrow.table([(TP._replace(broker=9), packed(plain([b"three"])))])
    file = io.BytesIO()
    with pq.ParquetWriter(file, one.schema) as writer:
        writer.write_table(one)
        writer.write_table(two)
    assert pq.read_table(file).to_pylist() == one.to_pylist() + two.to_pylist()


# ---- without pyarrow ----------------------------------------------------------------------------------------


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "odradek.arrow")
    with pytest.raises(ConfigError, match=r"odradek\[arrow\]"):
        Batch(TP, plain([b"one"])).to_arrow()


def test_offsets_outside_their_data_are_detected_by_the_validation() -> None:
    """A batch is built without looking at its rows; Arrow's own check is there for columns from elsewhere."""
    columns = Columns(PackedBytes(numbers([0, 99], "i"), memoryview(b"x")), [0], [11])
    with pytest.raises(pa.ArrowInvalid):
        Batch(TP, columns).to_arrow().validate(full=True)
    assert Batch(TP, columns.replace(values=pack([b"x"]))).to_arrow().num_rows == 1
