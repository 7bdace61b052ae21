"""Decode and encode rates of the 0.7 codec: bytes of a log to columns, payloads to a message set.

    python benchmarks/codec.py [--quick]

Decoding feeds a SetDecoder as a connection does, in chunks of 64 KiB and of 1 MiB, and takes the rows in between.
Compressed logs are made of wrappers as a producer makes them, around 256 KiB each, of text that gzip shrinks to about a
third. The limit is the least a Python loop has to do - decompress with the bare library, cut out every payload and
check its crc, or the reverse - without looking out for damage, limits, ends of chunks, or positions.
Lines that end in `alone` put the bare decompression by itself in relation to that limit.

To compare two branches run it on each, in turns, and compare ratios; differences within the spread are noise.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial

import cramjam

from _common import Case, Stopwatch, compare, quick
from odradek.core.interfaces import DecoderOptions
from odradek.types import KiB, MiB, Position, TopicPartition
from odradek.wire.compression import Codec, decompress
from odradek.wire.kafka07.message_set import SetDecoder, encode_set, entry_bytes

BATCH_BYTES = 256 * KiB
"""What `Tuning.batch_bytes` says."""

HEAD = struct.Struct(">iHI")
AT_MOST = 6.0
"""Times the limit; about 1 to 2 was measured."""

PARTITION = TopicPartition("bench", 1, 0)


def payloads(count: int, size: int) -> list[bytes]:
    """Different ones, of words: about as compressible as log lines."""
    chance = random.Random(7)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(500)]
    text = b" ".join(chance.choices(words, k=count * size // 4))
    return [text[start : start + size] for start in range(0, count * size, size)]


def batches(values: list[bytes]) -> list[list[bytes]]:
    rows = max(1, BATCH_BYTES // entry_bytes(len(values[0])))
    return [values[start : start + rows] for start in range(0, len(values), rows)]


# ---- the limits ---------------------------------------------------------------------------------------------


def bare_decode(data: bytes) -> list[bytes]:
    values, position, stop, unpack, crc_of = [], 0, len(data), HEAD.unpack_from, zlib.crc32
    while position < stop:
        length, _, crc = unpack(data, position)
        end = position + 4 + length
        value = data[position + 10 : end]
        assert crc_of(value) == crc
        values.append(value)
        position = end
    return values


def bare_encode(values: list[bytes]) -> bytes:
    parts, pack, crc_of = [], HEAD.pack, zlib.crc32
    for value in values:
        parts.append(pack(len(value) + 6, 0x100, crc_of(value)))
        parts.append(value)
    return b"".join(parts)


def bare_library(codec: Codec) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    """Compress and decompress, without framing of Kafka's."""
    if codec is Codec.GZIP:
        return partial(zlib.compress, wbits=31), partial(zlib.decompress, wbits=31)
    if codec is Codec.SNAPPY:
        raw = cramjam.snappy
        return (lambda data: bytes(raw.compress_raw(data))), (lambda data: bytes(raw.decompress_raw(data)))
    return bytes, bytes


# ---- the cases ----------------------------------------------------------------------------------------------


def decode(log: list[bytes], chunk: int, expected: int) -> Stopwatch:
    """The log, in chunks that arrive one after the other."""
    data = b"".join(log)
    chunks = [data[start : start + chunk] for start in range(0, len(data), chunk)]
    decoder = SetDecoder(PARTITION, Position(0), DecoderOptions())
    decoded = 0
    with Stopwatch() as watch:
        for received in chunks:
            decoder.feed(memoryview(received))
            decoded += len(decoder.take().values)
    assert decoder.error is None
    assert (decoded, decoder.position) == (expected, len(data))
    return watch


def decode_limit(packed: list[bytes], codec: Codec) -> Stopwatch:
    _, unpack = bare_library(codec)
    with Stopwatch() as watch:
        for data in packed:
            bare_decode(unpack(data))
    return watch


def encode(runs: list[list[bytes]], codec: Codec, plain: int) -> Stopwatch:
    with Stopwatch() as watch:
        encoded = [encode_set(run, codec) for run in runs]
    if codec is Codec.NONE:
        assert sum(map(len, encoded)) == plain
    else:
        inner = (decompress(codec, data[entry_bytes(0) :], 2 * BATCH_BYTES) for data in encoded)
        assert sum(map(len, inner)) == plain
    return watch


def encode_limit(runs: list[list[bytes]], codec: Codec) -> Stopwatch:
    pack, _ = bare_library(codec)
    with Stopwatch() as watch:
        for run in runs:
            pack(bare_encode(run))
    return watch


def library(packed: list[bytes], codec: Codec) -> Stopwatch:
    _, unpack = bare_library(codec)
    with Stopwatch() as watch:
        for data in packed:
            unpack(data)
    return watch


def cases(total: int, size: int, codec: Codec) -> Iterator[Case]:
    values = payloads(total // size, size)
    runs = batches(values)
    plain = [bare_encode(run) for run in runs]
    packed = [bare_library(codec)[0](data) for data in plain]
    log = [encode_set(run, codec) for run in runs]
    count, width = len(values), sum(map(len, plain))
    name = f"{size} B, {codec.name.lower()}"
    least = partial(decode_limit, packed, codec)
    for chunk in (64 * KiB, MiB):
        run = partial(decode, log, chunk, count)
        yield Case(f"decode {name}, by {chunk // KiB} KiB", count, width, run, least, AT_MOST)
    if codec:
        yield Case(f"decompress {name}, alone", count, width, partial(library, packed, codec), least, AT_MOST)
    yield Case(
        f"encode {name}", count, width, partial(encode, runs, codec, width), partial(encode_limit, runs, codec), AT_MOST
    )


def main() -> None:
    short = quick(__doc__)
    total, turns = (2 * MiB, 3) if short else (32 * MiB, 9)
    compare([case for codec in Codec for size in (100, 1000) for case in cases(total, size, codec)], turns)


if __name__ == "__main__":
    main()
