"""Columns for tests: decoded by each engine there is, and packed by hand."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from hypothesis import strategies as st

from odradek import engine as engines
from odradek.core.interfaces import DecoderOptions
from odradek.engine import PackedBytes
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


def packed(columns: Columns, kind: str = "i") -> Columns:
    """These columns as the compiled engine would give them."""
    inner = columns.inner_indexes
    return columns._replace(
        values=pack(list(columns.values), kind),
        positions=numbers(columns.positions),
        next_positions=numbers(columns.next_positions),
        inner_indexes=None if inner is None else numbers(inner, "i"),
    )


def plain(values: Sequence[bytes], position: int = 0) -> Columns:
    """Columns of plain messages, as lists."""
    ends = list(accumulate((len(value) + 10 for value in values), initial=position))
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
