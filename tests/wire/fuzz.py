"""Hostile bytes against everything in ring 1 that reads bytes.

    python -m tests.wire.fuzz --count 200000 --seed 7

mutates valid requests, responses and message sets, damaged ones with their CRCs put right included, so that the damage
is met at every depth. Deterministic for a seed. Exit code 1 at the first input that breaks the rule of `fuzz_one`; it
is printed in hexadecimal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from zlib import crc32

from tests import fuzzing
from tests.frames import FrameReader, encode_fetch, encode_multifetch
from tests.fuzzing import Mutation, cut, double, flip, mutate, overwrite, remove

from odradek import engine as engines
from odradek.core.interfaces import DecoderOptions
from odradek.errors import LocalProtocolError, OdradekError, RemoteProtocolError
from odradek.types import Position, TopicPartition
from odradek.wire.compression import CompressionError, CompressionType
from odradek.wire.kafka07.compression import compress, decompress
from odradek.wire.kafka07.entries import scan
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set
from odradek.wire.kafka07.requests import (
    Fetch,
    MultiFetch,
    MultiProduce,
    Offsets,
    Produce,
    Request,
    decode_request,
    encode_request,
)
from odradek.wire.kafka07.responses import (
    FetchReply,
    MultiFetchReply,
    OffsetsReply,
    encode_offsets,
)

BOUND = 1 << 16  # what every limit is set to
PARTITION = TopicPartition("t", 0, 1)
MODES = [
    DecoderOptions(max_message_bytes=BOUND, max_decompressed_bytes=BOUND, corrupt=how)
    for how in ("fail", "skip", "raw")
]
STATUS = Path("/proc/self/status")
MORE_SPACE = 8 << 20  # what one input may add to the process: some arenas of Python's. A length field makes 2 GiB.


def built(name: str) -> bool:
    try:
        engines.engine(name)
    except ImportError:
        return False
    return True


ENGINES = [engines.engine(name) for name in engines.ENGINES if built(name)]


# ---- the rule -----------------------------------------------------------------------------------------------


def fuzz_one(data: bytes) -> None:
    """Whatever the bytes: no exception but odradek's own; every split of them means the same as the whole, opened now
    or later; and every engine reads the same. The input chooses how damage is treated."""
    read_frames(data)
    read_request(data)
    read_compressed(data)
    read_scan(data)
    cuts = cuts_of(data)
    read_set_everywhere(data, cuts, MODES[crc32(data) % len(MODES)])
    for read in (read_fetch, read_multifetch, read_offsets):
        assert read(data, cuts) == read(data, ()), f"{read.__name__} depends on the split"


def allocation_limit(data: bytes) -> int:
    """Four times the input or the configured bound, whichever is more, and a page or two for Python itself."""
    return 4 * max(len(data), BOUND) + 8192


def address_space() -> int:
    """The most address space (bytes) this process ever had: what the compiled engine allocates shows here, touched or
    not. 0 where the system does not tell."""
    if not STATUS.exists():
        return 0
    return 1024 * int(STATUS.read_bytes().partition(b"VmPeak:")[2].split(maxsplit=1)[0])


def cuts_of(data: bytes) -> list[int]:
    """A few places to cut, near the start more often than not, the same ones for the same bytes."""
    seed = crc32(data)
    return sorted({seed % 7, seed % 31, seed % 257, seed % (len(data) + 1)})


def chunks(data: bytes, cuts: Sequence[int]) -> list[memoryview]:
    edges = [0, *(min(cut, len(data)) for cut in cuts), len(data)]
    return [memoryview(data[a:b]) for a, b in pairwise(edges)]


def read_frames(data: bytes) -> None:
    reader = FrameReader(BOUND)
    try:
        bodies = reader.feed(data)
    except RemoteProtocolError:
        return
    framed = sum(4 + len(body) for body in bodies)
    assert framed + reader.pending_bytes <= len(data)


def read_request(data: bytes) -> None:
    try:
        request = decode_request(data)
    except RemoteProtocolError:
        return
    try:
        again = b"".join(encode_request(request))[4:]
    except LocalProtocolError:
        return  # a topic that was not UTF-8 may have grown
    assert decode_request(again) == request


def read_compressed(data: bytes) -> None:
    for compression in (CompressionType.GZIP, CompressionType.SNAPPY):
        with suppress(CompressionError):
            assert len(decompress(compression, data, BOUND)) <= BOUND


def read_scan(data: bytes) -> None:
    entries = scan(data, 5, BOUND)
    read = b"".join(entry.raw for entry in entries)
    assert entries.end is not None
    assert entries.end.position == 5 + len(read)
    assert data.startswith(read)


def read_set_everywhere(data: bytes, cuts: Sequence[int], options: DecoderOptions) -> None:
    before = engines.active
    later = options._replace(defer_decompression=len(data) % 2 == 0)
    try:
        engines.active, *others = ENGINES
        expected = read_set(data, (), options)
        assert read_set(data, cuts, later) == expected, f"{options.corrupt} depends on the split"
        for engines.active in others:
            name = engines.active.NAME
            assert read_set(data, (), options) == expected, f"{options.corrupt} differs on the {name} engine"
            assert read_set(data, cuts, later) == expected, f"{options.corrupt} differs when split, {name} engine"
    finally:
        engines.active = before


def read_set(data: bytes, cuts: Sequence[int], options: DecoderOptions) -> tuple[object, ...]:
    decoder = MessageSetDecoder(PARTITION, Position(0), options)
    for chunk in chunks(data, cuts):
        decoder.feed(chunk)
    decoder.decompress_deferred()
    columns = decoder.take()
    positions, nexts = list(columns.positions), list(columns.next_positions)
    inner = None if columns.inner_indexes is None else list(columns.inner_indexes)
    assert len(columns.values) == len(positions) == len(nexts)
    assert inner is None or len(positions) == len(inner)
    assert decoder.error or decoder.fetch_position == len(data)
    assert positions == sorted(positions)
    reports = [report.args for report in decoder.take_reports()]
    rows = list(columns.values), positions, nexts, inner
    return rows, [*columns.corrupt], reports, state(decoder.error), decoder.position


def state(error: OdradekError | None) -> tuple[object, ...]:
    return () if error is None else (type(error), *error.args)


class Collector(bytearray):
    def feed(self, data: memoryview) -> None:
        self.extend(data)


def read_reply(reply: FetchReply | OffsetsReply, data: bytes, cuts: Sequence[int]) -> tuple[object, ...]:
    used = 0
    try:
        for chunk in chunks(data, cuts):
            took = reply.feed(chunk)
            used += took
            assert reply.done or took == len(chunk)
        return used, reply.done, reply.result() if reply.done else None
    except OdradekError as error:
        return state(error)


def read_fetch(data: bytes, cuts: Sequence[int]) -> tuple[object, ...]:
    sink = Collector()
    return read_reply(FetchReply([sink], BOUND), data, cuts), bytes(sink)


def read_multifetch(data: bytes, cuts: Sequence[int]) -> tuple[object, ...]:
    sinks = [Collector() for _ in range(len(data) % 4)]
    return read_reply(MultiFetchReply(sinks, BOUND), data, cuts), [bytes(sink) for sink in sinks]


def read_offsets(data: bytes, cuts: Sequence[int]) -> tuple[object, ...]:
    return (read_reply(OffsetsReply(1000), data, cuts),)


# ---- material -----------------------------------------------------------------------------------------------


def material() -> list[bytes]:
    """Valid bytes of every kind."""
    plain = encode_set([b"one", b"", b"three", bytes(range(60))])
    mixed = encode_set([b"old", b""], magic=0) + plain
    packed = [
        encode_set([b"one", b"two", b"x" * 40], compression)
        for compression in (CompressionType.GZIP, CompressionType.SNAPPY)
    ]
    nested = [
        wrap(compression, a + b)
        for compression in (CompressionType.GZIP, CompressionType.SNAPPY)
        for a in packed
        for b in packed
    ]
    bombs = [
        encode_set([bytes(2 * BOUND)], compression) for compression in (CompressionType.GZIP, CompressionType.SNAPPY)
    ]
    requests: list[Request] = [
        Produce("topic", 0, plain),
        Fetch("topic", 1, 1 << 40, 300),
        MultiFetch((Fetch("a", 0, 0, 1), Fetch("b", 1, 2, 3))),
        MultiProduce((Produce("a", 0, packed[0]), Produce("b", -1, mixed))),
        Offsets("topic", 0, -1, 10),
    ]
    answers = [encode_fetch(0, mixed), encode_multifetch([(0, plain), (3, b""), (0, b"x")]), encode_offsets([56, 0])]
    frames = [b"".join(buffers) for buffers in [*map(encode_request, requests), *answers]]
    streams = [
        compress(CompressionType.GZIP, plain) * 2,
        compress(CompressionType.SNAPPY, plain),
        compress(CompressionType.SNAPPY, plain)[20:],
    ]
    return [plain, mixed, *packed, *nested, *bombs, *frames, *(frame[4:] for frame in frames), *streams, b""]


def wrap(compression: CompressionType, inner: bytes) -> bytes:
    return engines.active.encode_run([compress(compression, inner)], compression)


NUMBERS = [
    0,
    1,
    4,
    5,
    6,
    9,
    10,
    127,
    128,
    255,
    256,
    32767,
    65535,
    BOUND,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
]


number = fuzzing.number(NUMBERS, (1, 2, 4))
MUTATIONS: list[Mutation] = [overwrite, flip, number, number, remove, double, cut]


def hostile(rng: random.Random, valid: Sequence[bytes]) -> bytes:
    """One input: valid bytes, mutated, perhaps put into a wrapper whose CRC is right, mutated again, and so on."""
    data = bytearray(rng.choice(valid))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        mutate(rng, data, MUTATIONS)
        match rng.randrange(6):
            case 0:
                data = bytearray(engines.active.encode_run([bytes(data)], rng.randrange(4)))
            case 1 | 2:
                data = bytearray(wrap(rng.choice([CompressionType.GZIP, CompressionType.SNAPPY]), bytes(data)))
            case 3:
                data += rng.choice(valid)
    return bytes(data)


# ---- the script ---------------------------------------------------------------------------------------------


def inputs(count: int, seed: int) -> Iterator[bytes]:
    """So many hostile inputs."""
    rng, valid = random.Random(seed), material()
    for _ in range(count):
        yield hostile(rng, valid)


def within_address_space(data: bytes) -> None:
    """Check the rule, and that the process hardly grows."""
    space = address_space()
    fuzz_one(data)
    assert (grown := address_space() - space) <= MORE_SPACE, f"the process grew by {grown} bytes"


def run(count: int, seed: int, alive: Callable[[], object] = lambda: None) -> int:
    """Give the exit code. `alive` is called every thousand inputs."""
    sampling = fuzzing.Sampling(20, allocation_limit)
    return fuzzing.run_inputs(
        within_address_space, inputs(count, seed), lambda data: ("", data), sampling, seed=seed, alive=alive
    )


if __name__ == "__main__":
    fuzzing.main(run, __doc__)
