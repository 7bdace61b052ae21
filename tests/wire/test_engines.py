"""The decoder in lock step on every engine: whatever the bytes, their split and the buffers they come in, all have the
same rows, errors, positions and accounts after every feed.

Beside the real engines runs one without a loop of its own, which leaves every entry to the careful way through it.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire import fuzz

from odradek import engine as engines
from odradek.core.interfaces import DecoderOptions
from odradek.engine import Buffer, Engine, PackedBytes
from odradek.engine import interface as seam
from odradek.engine.columns import PlainColumns
from odradek.errors import OdradekError
from odradek.types import Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set

Steps = Sequence[tuple[bytes, bool, bool]]
"""Pieces of a log; whether to open and to take behind each."""


class CarefulValues:
    def __init__(self) -> None:
        self.values: list[bytes] = []

    @property
    def payload_bytes(self) -> int:
        return len(b"".join(self.values))

    def __len__(self) -> int:
        return len(self.values)

    def decode_run(self, data: Buffer, start: int, stop: int) -> int:
        return start

    def append(self, value: Buffer) -> None:
        self.values.append(bytes(value))

    def tolist(self) -> list[bytes]:
        return self.values


class CarefulRows:
    def __init__(self) -> None:
        self.rows: list[tuple[bytes, int, int, int]] = []

    def __len__(self) -> int:
        return len(self.rows)

    def decode_run(self, data: Buffer, start: int, stop: int, base: int = 0, max_entry: int = engines.NO_LIMIT) -> int:
        return start

    def append(self, value: Buffer, position: int, next_position: int, inner_index: int = 0) -> None:
        self.rows.append((bytes(value), position, next_position, inner_index))

    def add_wrapper(self, values: seam.PayloadBuilder, position: int, next_position: int) -> None:
        last = len(values) - 1
        for i, value in enumerate(values.tolist()):
            self.append(value, position, next_position if i == last else position, i)

    def take(self) -> PlainColumns:
        """As the compiled engine gives them."""
        ends = array("q", [0])
        for value, *_ in self.rows:
            ends.append(ends[-1] + len(value))
        data = memoryview(b"".join(row[0] for row in self.rows))
        positions = memoryview(array("q", [row[1] for row in self.rows]))
        nexts = memoryview(array("q", [row[2] for row in self.rows]))
        inner = memoryview(array("i", [row[3] for row in self.rows]))
        self.rows = []
        return PlainColumns(PackedBytes(memoryview(ends), data), positions, nexts, inner if any(inner) else None)


class Careful:
    """Enough of an engine for a decoder."""

    NAME = "careful"
    ColumnBuilder = CarefulRows
    PayloadBuilder = CarefulValues
    crc32 = staticmethod(engines.engine("pure").crc32)
    unpack = staticmethod(engines.engine("pure").unpack)


CAREFUL = cast(Engine, Careful())


class Runner:
    """A decoder on one engine; it gets its bytes as `bytes`, or in one buffer that is used again and again."""

    def __init__(self, engine: Engine, reused: bool, options: DecoderOptions) -> None:
        self.engine = engine
        self.buffer = bytearray(1 << 20) if reused else None
        engines.active = engine
        self.decoder = MessageSetDecoder(TopicPartition("t", 0, 1), Position(1000), options)

    def step(self, chunk: bytes, opens: bool, takes: bool) -> tuple[object, ...]:
        engines.active = self.engine
        if self.buffer is None:
            self.decoder.feed(memoryview(chunk))
        else:
            self.buffer[: len(chunk)] = chunk
            self.decoder.feed(memoryview(self.buffer)[: len(chunk)])
            self.buffer[: len(chunk)] = b"#" * len(chunk)
        fed = self.state()
        if opens:
            self.decoder.decompress_deferred()
        opened = self.state()
        return fed, opened, self.taken() if takes else None, self.state()

    def state(self) -> tuple[object, ...]:
        d = self.decoder
        return d.position, d.fetch_position, d.pending_bytes, d.deferred_bytes, shape(d.error)

    def taken(self) -> tuple[object, ...]:
        c = self.decoder.take()
        inner = None if c.inner_indexes is None else list(c.inner_indexes)
        errors = {row: shape(error) for row, error in c.corrupt.items()}
        reports = [shape(report) for report in self.decoder.take_reports()]
        return c.payload_bytes, list(c.values), list(c.positions), list(c.next_positions), inner, errors, reports


def shape(error: OdradekError | None) -> tuple[object, ...]:
    return () if error is None else (type(error), *error.args)


@pytest.fixture(autouse=True, scope="module")
def restored() -> Iterator[None]:
    before = engines.active
    yield
    engines.active = before


def run(engines: Sequence[Engine], steps: Steps, options: DecoderOptions) -> None:
    first, *others = [Runner(engine, reused, options) for engine in engines for reused in (False, True)]
    for step in steps:
        expected = first.step(*step)
        for other in others:
            assert other.step(*step) == expected, other.engine.NAME


@st.composite
def options(draw: st.DrawFn, least: int) -> DecoderOptions:
    """`least`: for limits that hostile bytes reach, or never do."""
    return DecoderOptions(
        max_message_bytes=draw(st.sampled_from([60, 300, 1 << 16, 1 << 20])),
        max_decompressed_bytes=max(least, draw(st.sampled_from([200, 1000, 9000, 1 << 16]))),
        corrupt=draw(st.sampled_from(["fail", "skip", "raw"])),
        defer_decompression=draw(st.booleans()),
    )


@st.composite
def steps(draw: st.DrawFn, log: bytes) -> Steps:
    cuts = sorted(draw(st.lists(st.integers(0, len(log)), max_size=8)))
    chunks = [log[a:b] for a, b in pairwise([0, *cuts, len(log)])]
    return [(chunk, draw(st.booleans()), draw(st.booleans())) for chunk in chunks] + [(b"", True, True)]


GENEROUS = 1 << 22
"""What nothing made here grows to: only where a run ends decides which messages come out in front of a bomb."""


@given(data=st.data())
def test_the_run_loops_see_what_the_careful_way_sees(
    data: st.DataObject, any_log: st.SearchStrategy[bytes], engines: list[Engine]
) -> None:
    log = data.draw(any_log)
    run([CAREFUL, *engines], data.draw(steps(log)), data.draw(options(GENEROUS)))


@given(data=st.data(), seed=st.integers(0, 1 << 32))
def test_hostile_bytes_are_the_same_to_all(data: st.DataObject, seed: int, engines: list[Engine]) -> None:
    """Mutated sets, cut, nested, with their CRCs put right, and bombs."""
    log = fuzz.hostile(random.Random(seed), fuzz.material())
    run(engines, data.draw(steps(log)), data.draw(options(0)))
    run([CAREFUL, *engines], data.draw(steps(log)), data.draw(options(GENEROUS)))


@given(data=st.data(), magics=st.lists(st.integers(0, 1), max_size=30), scale=st.sampled_from([3, 300, 9000, 70_000]))
def test_runs_of_any_sizes_are_the_same_to_all(
    data: st.DataObject, magics: list[int], scale: int, engines: list[Engine]
) -> None:
    """Around and beyond the windows that are cut out of a reused buffer."""
    sizes = [data.draw(st.integers(0, scale)) for _ in magics]
    log = b"".join(encode_set([bytes(size)], magic=magic) for size, magic in zip(sizes, magics, strict=True))
    tail = data.draw(
        st.sampled_from([b"", b"\0\0\0\x09\1", b"\xff\xff\xff\xff" * 3, encode_set([b"x"], CompressionType.GZIP)])
    )
    run([CAREFUL, *engines], data.draw(steps((log + tail)[: 1 << 20])), data.draw(options(GENEROUS)))
