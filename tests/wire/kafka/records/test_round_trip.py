"""What is written is read again, in every format, with any split, on either engine."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.kafka.records.reading import read

from odradek import engine as engines
from odradek.core.interfaces import DecoderOptions
from odradek.engine import Headers
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.encode import encode_batch, encode_message_set

strings = st.none() | st.binary(max_size=200) | st.binary(min_size=1, max_size=8).map(lambda part: part * 3000)
names = st.text(st.characters(codec="utf-8"), max_size=10)
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=10)), max_size=3).map(tuple)
times = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 1 << 41)
rows = st.lists(st.tuples(strings, strings, headers, times), min_size=1, max_size=12)
cuts = st.lists(st.integers(0, 400), max_size=5)
ENGINES = ("pure", "compiled")


@settings(deadline=None)
@given(
    rows=rows,
    cuts=cuts,
    compression=st.sampled_from(CompressionType),
    engine=st.sampled_from(ENGINES),
    defer=st.booleans(),
    base_offset=st.integers(0, 1 << 40),
)
def test_record_batches(
    rows: list[tuple[bytes | None, bytes | None, Headers, int]],
    cuts: list[int],
    compression: CompressionType,
    engine: str,
    defer: bool,
    base_offset: int,
) -> None:
    values, keys = [row[0] for row in rows], [row[1] for row in rows]
    pairs, timestamps = [row[2] for row in rows], [row[3] for row in rows]
    before = engines.active.NAME
    engines.use(engine)
    try:
        data = encode_batch(values, keys, pairs, timestamps, compression=compression, base_offset=base_offset)
        reading = read(data + data[:30], cuts, DecoderOptions(defer_decompression=defer), start=base_offset)
    finally:
        engines.use(before)
    expected = [(base_offset + i, time, 0, key, value, pair) for i, (value, key, pair, time) in enumerate(rows)]
    assert (reading.error, reading.rows) == ((), expected)
    assert reading.next_positions == list(range(base_offset + 1, base_offset + len(rows) + 1))


@settings(deadline=None)
@given(
    rows=rows,
    cuts=cuts,
    magic=st.sampled_from([0, 1]),
    compression=st.sampled_from(list(CompressionType)[:4]),
    engine=st.sampled_from(ENGINES),
    defer=st.booleans(),
)
def test_message_sets(
    rows: list[tuple[bytes | None, bytes | None, Headers, int]],
    cuts: list[int],
    magic: int,
    compression: CompressionType,
    engine: str,
    defer: bool,
) -> None:
    values, keys = [row[0] for row in rows], [row[1] for row in rows]
    timestamps = [row[3] for row in rows] if magic else None
    before = engines.active.NAME
    engines.use(engine)
    try:
        data = encode_message_set(values, keys, timestamps, magic=magic, compression=compression)
        reading = read(data, cuts, DecoderOptions(defer_decompression=defer))
    finally:
        engines.use(before)
    expected = [
        (i, time if magic else -1, 0 if magic else -1, key, value, ()) for i, (value, key, _, time) in enumerate(rows)
    ]
    assert (reading.error, reading.rows) == ((), expected)


@given(data=st.binary(max_size=400), cuts=cuts)
def test_any_bytes_are_read_or_refused_alike(data: bytes, cuts: list[int]) -> None:
    before = engines.active.NAME
    readings = []
    for engine in ENGINES:
        engines.use(engine)
        readings += [read(data), read(data, cuts), read(data, cuts, DecoderOptions(defer_decompression=True))]
    engines.use(before)
    assert all(reading == readings[0] for reading in readings)
