"""What the tests of ring 1 share: building sets by hand, and feeding decoders in any split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol
from zlib import crc32

import pytest
from hypothesis import strategies as st

from odradek.core.interfaces import DecoderOptions
from odradek.errors import CorruptMessage, OdradekError
from odradek.types import Columns, Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.compression import compress
from odradek.wire.kafka07.message_set import MessageSetDecoder

PARTITION = TopicPartition("t", 0, 1)
DEFAULTS = DecoderOptions()


def listed(columns: Columns) -> Columns:
    """The same columns as lists, whichever engine they come from; without the errors, which do not compare."""
    inner = None if columns.inner_indexes is None else list(columns.inner_indexes)
    return Columns(list(columns.values), list(columns.positions), list(columns.next_positions), inner)


class Decoded(NamedTuple):
    """Everything a decoder has to say about some bytes, the columns as lists."""

    columns: Columns
    corrupt: dict[int, tuple[object, ...]]
    error: tuple[object, ...]
    reports: list[tuple[object, ...]]
    position: int
    fetch_position: int


def shape(error: OdradekError | None) -> tuple[object, ...]:
    """Errors do not compare; their positional arguments are their whole state."""
    return () if error is None else (type(error), *error.args)


class Decode(Protocol):
    def __call__(
        self, data: bytes, *, cuts: Sequence[int] = (), start: int = 0, options: DecoderOptions = ...
    ) -> Decoded: ...


@pytest.fixture(scope="session")
def decode() -> Decode:
    """Decode bytes that start at a log position, fed in pieces cut at the given indexes."""

    def run(data: bytes, *, cuts: Sequence[int] = (), start: int = 0, options: DecoderOptions = DEFAULTS) -> Decoded:
        decoder = MessageSetDecoder(PARTITION, Position(start), options)
        edges = [0, *sorted(cuts), len(data)]
        for a, b in pairwise(edges):
            decoder.feed(memoryview(data[a:b]))
        columns = decoder.take()
        return Decoded(
            listed(columns),
            {row: shape(error) for row, error in columns.corrupt.items()},
            shape(decoder.error),
            [shape(report) for report in decoder.take_reports()],
            decoder.position,
            decoder.fetch_position,
        )

    return run


def entry(payload: bytes, *, magic: int = 1, attributes: int = 0, crc: int | None = None) -> bytes:
    """One entry, written field by field as specification 2.1 draws it; `crc` makes a wrong one."""
    crc = crc32(payload) if crc is None else crc
    body = bytes([magic]) + (bytes([attributes]) if magic else b"") + crc.to_bytes(4, "big") + payload
    return len(body).to_bytes(4, "big") + body


@pytest.fixture(name="entry", scope="session")
def entry_fixture() -> Callable[..., bytes]:
    return entry


@pytest.fixture(scope="session")
def wrapper() -> Callable[[CompressionType, bytes], bytes]:
    """A wrapper around an inner set."""
    return lambda compression, inner: entry(compress(compression, inner), attributes=compression)


@pytest.fixture(scope="session")
def any_log(wrapper: Callable[[CompressionType, bytes], bytes]) -> st.SearchStrategy[bytes]:
    """Log bytes with anything in them: both magics, damage, stray bytes, wrappers in wrappers."""
    small = st.binary(max_size=12)
    leaf = st.one_of(
        st.builds(entry, small, magic=st.sampled_from([0, 1]), attributes=st.sampled_from([0, 0, 4, 0xFC])),
        st.builds(entry, small, magic=st.integers(0, 3), attributes=st.integers(0, 255)),
        st.builds(entry, small, crc=st.just(7)),
        st.binary(max_size=6),
    )
    compressions = st.sampled_from([CompressionType.GZIP, CompressionType.SNAPPY])
    return st.recursive(
        st.lists(leaf, max_size=5).map(b"".join),
        lambda inner: st.lists(st.one_of(leaf, st.builds(wrapper, compressions, inner)), max_size=4).map(b"".join),
        max_leaves=6,
    )


@pytest.fixture(scope="session")
def corrupt_message() -> Callable[[int, str], tuple[object, ...]]:
    """The shape of a CorruptMessage at a position of the test's partition."""
    return lambda position, reason: (CorruptMessage, "t/1-0", position, reason)
