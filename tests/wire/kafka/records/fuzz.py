"""Hostile bytes against the record formats of Kafka 0.8 to 4.x.

    python -m tests.wire.kafka.records.fuzz --count 200000 --seed 7

mutates valid record sets of every format, with their CRCs put right more often than not, so that the damage is met at
every depth. Deterministic for a seed and the versions of the compression libraries. Exit code 1 at the first input that
breaks the rule of `fuzz_one`; it is printed in hexadecimal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from unittest.mock import patch
from zlib import crc32

import cramjam
from tests import fuzzing
from tests.fuzzing import Mutation, cut, double, flip, mutate, overwrite, remove
from tests.wire.kafka.records.reading import read

from odradek import engine as engines
from odradek.core.interfaces import DecoderOptions
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.encode import encode_batch, encode_message_set

BOUND = 1 << 16
MODES = [
    DecoderOptions(max_message_bytes=BOUND, max_decompressed_bytes=BOUND, corrupt=how)
    for how in ("fail", "skip", "raw")
]
ROW_BYTES = 1200
"""What the pure engine takes for a record without key, value and headers, at most, several times over."""


# ---- LZ4 with an offset of 0 --------------------------------------------------------------------------------

liblz4_decompress = cramjam.lz4.decompress_block_into


def decompress_valid_offsets(block: memoryview, content: memoryview, length: int) -> int:
    """Refuse an LZ4 block with an offset of 0, which liblz4 reads as zeros: the one known difference of the engines."""
    if has_zero_offset(bytes(block)):
        raise cramjam.DecompressionError("an offset of 0")
    return liblz4_decompress(block, content, length)


def has_zero_offset(block: bytes) -> bool:
    """Whether one of its sequences has an offset of 0. What is cut or too long is for the decompressor to refuse."""
    at = 0
    while at < len(block):
        token = block[at]
        literals, at = lz4_length(block, at + 1, token >> 4)
        at += literals
        if block[at : at + 2] == b"\0\0":
            return True
        _, at = lz4_length(block, at + 2, token & 15)
    return False


def lz4_length(block: bytes, at: int, length: int) -> tuple[int, int]:
    """Add the bytes at an index that belong to the length of a sequence; return it and the index behind them."""
    more = length == 15
    while more and at < len(block):
        length, more, at = length + block[at], block[at] == 255, at + 1
    return length, at


# ---- the rule -----------------------------------------------------------------------------------------------


@patch.object(cramjam.lz4, "decompress_block_into", decompress_valid_offsets)
def fuzz_one(data: bytes) -> None:
    """Check the rule for one input: nothing is raised; any split, deferred or not, and either engine read the same;
    positions never move back. The input chooses how damage is treated and how it is split."""
    before = engines.active.NAME
    seed = crc32(data)
    cuts = sorted({seed % 7, seed % 31, seed % 257, seed % (len(data) + 1)})
    start = seed % 3
    options = MODES[seed // 3 % 3]
    later = options._replace(defer_decompression=True)
    try:
        engines.use("pure")
        expected = read(data, (), options, start)
        assert expected.fetch_position >= expected.position >= start
        assert all(row[0] >= start for row in expected.rows)
        if seed & 1 << 20:
            assert read(data, cuts, later, start) == expected, f"{options.corrupt} depends on the split"
        engines.use("compiled")
        assert read(data, (), options, start) == expected, f"{options.corrupt} differs on the compiled engine"
        if not seed & 1 << 20:
            assert read(data, cuts, later, start) == expected, f"{options.corrupt} differs when it is split"
    finally:
        engines.use(before)


def allocation_limit(data: bytes) -> int:
    """A bound for what the input or the configured limit can become as rows of lists."""
    return ROW_BYTES * max(len(data), BOUND) // 7


# ---- material -----------------------------------------------------------------------------------------------

VALUES = [b"one", None, b"three" * 20, b""]
KEYS = [None, b"k", b"", b"key"]
HEADERS = [(), (("name", b"value"), ("", None)), (), (("\N{SNOWMAN}", b""),)]
TIMES = [1600000000000, 1600000000001, 1599999999999, -1]


def material() -> list[bytes]:
    """Valid record sets of every kind."""
    sets = [
        encode_batch(VALUES, KEYS, HEADERS, TIMES, compression=compression, base_offset=offset)
        for compression in CompressionType
        for offset in (0, 100)
    ]
    sets.append(encode_batch([b"x"], producer_id=7, producer_epoch=1, base_sequence=5, is_transactional=True))
    marker = b"\0\0\0\0\0\0"
    sets.append(encode_batch([marker], [marker[:4]], producer_id=7, producer_epoch=1, is_control=True, base_offset=9))
    sets.append(encode_batch([bytes(2 * BOUND)], compression=CompressionType.ZSTD))
    for magic in (0, 1):
        times = TIMES if magic else None
        for compression in list(CompressionType)[:4]:
            sets.append(encode_message_set(VALUES, KEYS, times, magic=magic, compression=compression))
        sets.append(encode_message_set([bytes(2 * BOUND)], magic=magic, compression=CompressionType.LZ4))
    return [*sets, sets[0] + sets[3] + sets[-2], sets[1][:40], b""]


NUMBERS = [-2, -1, 0, 1, 4, 13, 14, 48, 49, 127, 128, 255, 256, 32767, BOUND, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]


number = fuzzing.number(NUMBERS, (1, 2, 4, 8))
MUTATIONS: list[Mutation] = [overwrite, flip, number, number, remove, double, cut]


def with_checksums(data: bytearray) -> None:
    """Put length and CRC of the first entry right, as far as there is one."""
    if len(data) < 62:
        return
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    if data[16] == 2:
        data[17:21] = engines.active.crc32c(bytes(data[21:])).to_bytes(4, "big")
    else:
        data[12:16] = crc32(data[16:]).to_bytes(4, "big")


def hostile(rng: random.Random, valid: Sequence[bytes]) -> bytes:
    """One input: valid bytes, mutated, their CRC perhaps put right, with others behind or in front of them."""
    data = bytearray(rng.choice(valid))
    mutate(rng, data, MUTATIONS)
    if rng.randrange(4):
        with_checksums(data)
    match rng.randrange(4):
        case 0:
            data += rng.choice(valid)
        case 1:
            data[:0] = rng.choice(valid)
    if data and not rng.randrange(4):
        rng.choice(MUTATIONS)(rng, data)
    return bytes(data)


# ---- the script ---------------------------------------------------------------------------------------------


def inputs(count: int, seed: int) -> Iterator[bytes]:
    """So many hostile inputs."""
    rng, valid = random.Random(seed), material()
    for _ in range(count):
        yield hostile(rng, valid)


def run(count: int, seed: int, alive: Callable[[], object] = lambda: None) -> int:
    """Give the exit code. `alive` is called every thousand inputs."""
    sampling = fuzzing.Sampling(50, allocation_limit)
    return fuzzing.run_inputs(fuzz_one, inputs(count, seed), lambda data: ("", data), sampling, seed=seed, alive=alive)


if __name__ == "__main__":
    fuzzing.main(run, __doc__)
