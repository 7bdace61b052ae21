"""Columns for tests: decoded by each engine there is, and packed by hand."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st

from odradek import engine as engines
from odradek.core.interfaces import DecoderOptions, ProducerRecord
from odradek.core.produce.packed_records import PackedRecords
from odradek.engine import DecodedColumns, HeaderColumns, Headers, PackedBytes
from odradek.engine.columns import COLUMN_NAMES
from odradek.errors import CorruptMessage
from odradek.types import Columns, Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set

TP = TopicPartition("orders", 1, 3)


def _importable(name: str) -> bool:
    try:
        engines.engine(name)
    except ImportError:
        return False
    return True


ENGINES = [name for name in engines.ENGINES if _importable(name)]


@contextmanager
def using(engine: str) -> Iterator[None]:
    before = engines.active.NAME
    engines.use(engine)
    try:
        yield
    finally:
        engines.use(before)


def pack(values: Sequence[bytes | None], kind: str = "i") -> PackedBytes:
    """As the compiled engine gives them: offsets of 4 bytes (`i`) or 8 (`q`)."""
    strings = [value or b"" for value in values]
    ends = array(kind, accumulate(map(len, strings), initial=0))
    validity = memoryview(bytes(value is not None for value in values)) if None in values else None
    return PackedBytes(memoryview(ends), memoryview(b"".join(strings)), validity)


def numbers(values: Sequence[int], kind: str = "q") -> memoryview:
    return memoryview(array(kind, values))


def pack_headers(rows: Sequence[Headers], kind: str = "i") -> HeaderColumns:
    """The same for headers."""
    ends = array("i", accumulate(map(len, rows), initial=0))
    pairs = [pair for row in rows for pair in row]
    names = pack([name.encode() for name, _ in pairs], kind)
    return HeaderColumns(memoryview(ends), names, pack([value for _, value in pairs], kind))


def packed(columns: Columns, kind: str = "i") -> Columns:
    """These columns as the compiled engine would give them."""
    c = columns
    return columns.replace(
        values=pack(list(c.values), kind),
        positions=numbers(c.positions),
        next_positions=numbers(c.next_positions),
        inner_indexes=None if c.inner_indexes is None else numbers(c.inner_indexes, "i"),
        keys=None if c.keys is None else pack(list(c.keys), kind),
        headers=None if c.headers is None else pack_headers(c.headers, kind),
        timestamps=None if c.timestamps is None else numbers(c.timestamps),
        timestamp_types=None if c.timestamp_types is None else numbers(c.timestamp_types, "b"),
    )


def listed(columns: Columns | DecodedColumns) -> list[Any]:
    """Its columns, of which None is not there."""
    return [getattr(columns, name) for name in COLUMN_NAMES]


def plain(values: Sequence[bytes | None], position: int = 0) -> Columns:
    """Columns of plain messages, as lists."""
    ends = list(accumulate((len(value or b"") + 10 for value in values), initial=position))
    return Columns(list(values), ends[:-1], ends[1:])


def decode(data: bytes, corrupt: str = "fail", position: int = 0) -> Columns:
    """By the engine in use."""
    decoder = MessageSetDecoder(TP, Position(position), DecoderOptions(corrupt=corrupt))
    decoder.feed(memoryview(data))
    assert decoder.error is None
    return decoder.take()


def damage(entry: bytes) -> bytes:
    """An entry with another checksum than its own."""
    return entry[:9] + bytes([entry[9] ^ 0xFF]) + entry[10:]


def _entries() -> st.SearchStrategy[bytes]:
    values = st.lists(st.binary(max_size=20), max_size=4)
    plain = st.builds(encode_set, values, magic=st.sampled_from([0, 1]))
    wrapped = st.builds(encode_set, values, st.sampled_from([CompressionType.GZIP, CompressionType.SNAPPY]))
    nested = st.builds(
        lambda a, b: encode_set([*a, encode_set(b, CompressionType.GZIP)[10:]], CompressionType.GZIP), values, values
    )
    broken = st.builds(lambda value: damage(encode_set([value])), st.binary(max_size=20))
    return st.one_of(plain, wrapped, nested, broken)


LOGS = st.lists(_entries(), max_size=8).map(b"".join)
"""Logs with messages of both magics, wrappers, and damage."""


_STRINGS = st.none() | st.binary(max_size=8)
_HEADERS = st.lists(st.tuples(st.text(max_size=4), _STRINGS), max_size=3).map(tuple)


@st.composite
def _records(draw: st.DrawFn) -> Columns:
    values = draw(st.lists(_STRINGS, max_size=12))
    rows = len(values)

    def column(of: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(of, min_size=rows, max_size=rows))

    columns = plain(values)
    if draw(st.booleans()):
        columns = columns.replace(inner_indexes=column(st.integers(0, 9)))
    if draw(st.booleans()):
        columns = columns.replace(keys=column(_STRINGS))
    if draw(st.booleans()):
        columns = columns.replace(headers=column(_HEADERS))
    if draw(st.booleans()):
        times = column(st.integers(-1, 1 << 41))
        columns = columns.replace(timestamps=times, timestamp_types=column(st.integers(-1, 1)))
    damaged = draw(st.sets(st.integers(0, rows - 1), max_size=2)) if rows else set()
    return columns.replace(corrupt={row: CorruptMessage(str(TP), row, "CRC mismatch") for row in sorted(damaged)})


RECORDS = _records()
"""Columns, as lists, of records with and without values, keys, headers, times, inner indexes and damage."""


# ---- to be written ----------------------------------------------------------------------------------------------


def packed_records(rows: Sequence[ProducerRecord], kind: str = "i") -> PackedRecords:
    """These records in columns; either all of them have a timestamp, or none."""
    times = [row.timestamp for row in rows if row.timestamp is not None]
    return PackedRecords(
        pack([row.value for row in rows], kind),
        pack([row.key for row in rows], kind),
        pack_headers([tuple(row.headers) for row in rows], kind),
        numbers(times) if times else None,
    )


PRODUCER_RECORDS = st.lists(
    st.builds(ProducerRecord, _STRINGS, _STRINGS, _HEADERS, st.integers(0, 1 << 41)), max_size=8
).flatmap(lambda rows: st.sampled_from([rows, [row._replace(timestamp=None) for row in rows]]))
"""Records to be written: either all of them have a timestamp, or none."""
