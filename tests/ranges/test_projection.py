"""Batches of exactly the schema that Spark demands, with every value where it belongs."""

from __future__ import annotations

import random
from array import array
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.interfaces import DecoderOptions
from odradek.engine import PackedBytes
from odradek.errors import CorruptMessage
from odradek.ranges.projection import (
    BATCH_BYTES,
    BATCH_ROWS,
    COLUMNS,
    ERROR,
    SMALL_ROWS,
    Projection,
    columns,
    join_small,
)
from odradek.types import Columns, Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set

P = TopicPartition("orders", 1, 3)
NAMES = [column.name for column in COLUMNS]


def packed(values: list[bytes], kind: str, before: bytes = b"") -> PackedBytes:
    """As the compiled engine lays them out, behind some bytes that belong to others."""
    offsets = [len(before) + end for end in (0, *accumulate(map(len, values)))]
    return PackedBytes(memoryview(array(kind, offsets)), memoryview(before + b"".join(values)))


def numbers(values: list[int], kind: str = "q") -> memoryview:
    return memoryview(array(kind, values))


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


LAYOUTS = [
    pytest.param(lambda v: v, list, id="lists"),
    pytest.param(lambda v: packed(v, "i"), numbers, id="packed"),
    pytest.param(lambda v: packed(v, "q", b"before"), numbers, id="packed large"),
]


@pytest.mark.parametrize(("values", "integers"), LAYOUTS)
def test_every_value_is_where_it_belongs(values: Any, integers: Any) -> None:
    whole_rows = Columns(values([b"one", b"", b"three"]), integers([10, 20, 20]), integers([20, 20, 40]))
    inner = whole_rows.replace(inner_indexes=[0, 0, 1] if integers is list else numbers([0, 0, 1], "i"))
    (batch,) = Projection().batches(P, inner)
    assert batch.schema == Projection().schema
    batch.validate(full=True)
    assert batch.to_pydict() == {
        "key": [None] * 3,
        "value": [b"one", b"", b"three"],
        "topic": ["orders"] * 3,
        "partition": [1] * 3,
        "offset": [10, 20, 20],
        "timestamp": [None] * 3,
        "timestampType": [-1] * 3,
        "broker": [3] * 3,
        "index": [0, 0, 1],
        "nextOffset": [20, 20, 40],
    }
    (plain,) = Projection().batches(P, whole_rows)
    assert plain.column("index").to_pylist() == [0, 0, 0]


def test_packed_payloads_and_positions_are_shared_not_copied() -> None:
    payload = packed([b"x" * 100] * 50, "i")
    positions = numbers(list(range(50)))
    (batch,) = Projection().batches(P, Columns(payload, positions, positions))
    data = batch.column("value").buffers()[2]
    assert data is not None
    assert data.address == pa.py_buffer(payload.data).address
    offsets = batch.column("offset").buffers()[1]
    assert offsets is not None
    assert offsets.address == pa.py_buffer(positions).address


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=50), st.sampled_from("iq"), st.binary(max_size=9))
def test_lists_and_packed_columns_give_the_same(values: list[bytes], kind: str, before: bytes) -> None:
    positions = list(range(len(values)))
    plain = Columns(values, positions, positions)
    compiled = Columns(packed(values, kind, before), numbers(positions), numbers(positions))
    assert list(Projection().batches(P, plain)) == list(Projection().batches(P, compiled))


def test_what_a_decoder_makes_of_a_log_arrives() -> None:
    data = encode_set([b"a", b"b"]) + encode_set([b"c", b"d"], CompressionType.GZIP) + encode_set([b"e"])
    decoder = MessageSetDecoder(P, Position(100), DecoderOptions())
    decoder.feed(memoryview(data))
    records = rows(list(Projection().batches(P, decoder.take())))
    assert [(row["value"], row["index"]) for row in records] == [(b"a", 0), (b"b", 0), (b"c", 0), (b"d", 1), (b"e", 0)]
    assert [row["offset"] for row in records[:3]] == [100, 111, 122]
    assert records[2]["offset"] == records[2]["nextOffset"] == records[3]["offset"]
    assert records[-1]["nextOffset"] == 100 + len(data)


# ---- sizes ---------------------------------------------------------------------------------------------------


def test_batches_have_no_more_rows_and_bytes_than_they_should() -> None:
    values = [random.Random(n).randbytes(30) for n in range(BATCH_ROWS + 10)]
    positions = list(range(len(values)))
    few = list(Projection().batches(P, Columns(values, positions, positions)))
    assert [batch.num_rows for batch in few] == [BATCH_ROWS, 10]
    assert [row["value"] for row in rows(few)] == values
    large = [bytes(BATCH_BYTES // 4)] * 9 + [bytes(2 * BATCH_BYTES)] + [b""]
    for column in (large, packed(large, "i"), packed(large, "q")):
        sizes = [b.num_rows for b in Projection().batches(P, Columns(column, positions[:11], positions[:11]))]
        assert sizes == [4, 4, 1, 1, 1]


def test_no_rows_make_no_batches() -> None:
    assert list(Projection().batches(P, Columns([], [], []))) == []


def test_small_batches_are_joined_in_order() -> None:
    def batches(sizes: list[int]) -> list[pa.RecordBatch]:
        projection, number = Projection(columns()[1:5]), 0
        made: list[pa.RecordBatch] = []
        for partition, size in enumerate(sizes):
            values = [b"%d" % (number + n) for n in range(size)]
            positions = list(range(size))
            made += projection.batches(TopicPartition("t", partition, 0), Columns(values, positions, positions))
            number += size
        return made

    several = batches([100] * 250)
    joined = list(join_small(several))
    assert [batch.num_rows for batch in joined] == [SMALL_ROWS, SMALL_ROWS, 5000]
    assert rows(joined) == rows(several)
    assert {batch.schema for batch in joined} == {several[0].schema}
    big = batches([SMALL_ROWS, 1, SMALL_ROWS])
    assert [batch.num_rows for batch in join_small(iter(big))] == [SMALL_ROWS, SMALL_ROWS + 1]
    assert list(join_small([])) == []
    assert list(join_small([big[0].slice(0, 0)])) == []


# ---- what 0.7 does not have ----------------------------------------------------------------------------------


def test_a_log_without_a_broker_has_none_in_its_rows() -> None:
    (batch,) = Projection().batches(TopicPartition("t", 0), Columns([b"x"], [0], [11]))
    assert batch.column("broker").to_pylist() == [None]


def test_keys_timestamps_and_headers_have_their_columns() -> None:
    later = Columns(
        [b"a", None], [0, 1], [1, 2], None, [b"k", None], [(("h", b"1"), ("h", None)), ()], [1500, -1], [0, -1]
    )
    first, second = rows(list(Projection(columns(headers=True)).batches(P, later)))
    assert (first["key"], first["timestampType"], first["headers"]) == (
        b"k",
        0,
        [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    )
    assert first["timestamp"].timestamp() == 1.5
    assert (second["key"], second["timestamp"], second["headers"]) == (None, None, None)


def test_dead_rows_say_in_a_column_of_their_own_what_is_wrong() -> None:
    damaged = {1: CorruptMessage("orders/3-1", 11, "CRC mismatch")}
    headers = [(("error", b"of the sender"),), ()]
    dead = Columns([b"good", b"raw"], [0, 11], [11, 20], headers=headers, corrupt=damaged)
    first, second = rows(list(Projection(columns(headers=True, errors=True)).batches(P, dead)))
    assert (first["error"], first["headers"]) == (None, [{"key": "error", "value": b"of the sender"}])
    assert (second["error"], second["headers"]) == ("CRC mismatch", None)


def test_an_error_far_down_is_in_its_own_batch() -> None:
    count = BATCH_ROWS + 5
    damaged = {BATCH_ROWS + 1: CorruptMessage("orders/3-1", 11, "CRC mismatch")}
    positions = numbers(list(range(count)))
    dead = Columns([b""] * count, positions, positions, corrupt=damaged)
    first, second = Projection([ERROR]).batches(P, dead)
    assert first.column(0).null_count == BATCH_ROWS
    assert [value is None for value in second.column(0).to_pylist()] == [True, False, True, True, True]
