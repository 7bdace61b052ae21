"""Decode and encode rates of the 0.7 engine: bytes of a log to columns, payloads to a message set.

    python benchmarks/engine.py [--quick]

The codec in use; where that is the compiled one, the pure one as well. A log is fed to a MessageSetDecoder as a
connection
does: 1 MiB at a time, out of a buffer, and what is there is taken in between: as `columns` (nothing is made of them),
as `values` (one `bytes` a record, in a list), as `records` (one `Record` each, by iterating over the batch) or as an
`arrow` record batch. Encoding makes message sets of 256 KiB, from a list of `bytes` or from what an Arrow array holds.
Compressed logs are made of such sets, of text that gzip shrinks to about a third.

The limit of what is not compressed is optimised pure Python, one loop that does the least there is to do: cut out every
payload and check its crc, or the reverse, without looking out for damage, limits, ends of chunks, or positions. The
limit of what is compressed is the bare decompressor, or compressor, by itself. The limit of two threads is one;
what the machine has cores for at the time is what two threads reach in `zlib.crc32`, which holds no lock either.

To compare two branches run it on each, in turns, and compare ratios; differences within the spread are noise.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from threading import Thread

import cramjam
import pyarrow as pa

from _common import Case, Stopwatch, compare
from _results import results
from odradek import engine as engines
from odradek.batch import Batch
from odradek.core.interfaces import DecoderOptions
from odradek.types import Columns, KiB, MiB, Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set, entry_bytes

BATCH_BYTES = 256 * KiB
"""What batches of producers for 0.7 have."""

CHUNK_BYTES = MiB
"""What a connection reads at a time."""

HEAD = struct.Struct(">iHI")
PARTITION = TopicPartition("bench", 0, 1)
SIZES = (100, 1000)
IN_USE = engines.active.NAME

VIEWS_GOAL, ARROW_GOAL, ENCODE_GOAL, COMPRESSED_GOAL, THREADS_GOAL = 6.0, 10.0, 8.0, 0.9, 1.9
COMPILED_FLOOR, PURE_FLOOR, COMPRESSED_FLOOR, PURE_COMPRESSED_FLOOR, THREADS_FLOOR = 0.5, 0.08, 0.08, 0.02, 0.1
THREAD_ROUNDS = 8
"""Starting a thread must not count."""


def payloads(count: int, size: int) -> list[bytes]:
    """Different ones, of words: about as compressible as log lines."""
    chance = random.Random(7)
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(500)]
    text = b" ".join(chance.choices(words, k=count * size // 4))
    return [text[start : start + size] for start in range(0, count * size, size)]


def batches(values: list[bytes]) -> list[list[bytes]]:
    rows = max(1, BATCH_BYTES // entry_bytes(len(values[0])))
    return [values[start : start + rows] for start in range(0, len(values), rows)]


def packed(values: list[bytes]) -> engines.PackedBytes:
    """As they are in an Arrow array."""
    _, offsets, data = pa.array(values, pa.binary()).buffers()
    assert offsets is not None
    assert data is not None
    return engines.PackedBytes(memoryview(offsets).cast("B").cast("i"), memoryview(data).cast("B"))


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


def bare_library(compression: CompressionType) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    """Compress and decompress, without framing of Kafka's."""
    if compression is CompressionType.GZIP:
        return partial(zlib.compress, wbits=31), partial(zlib.decompress, wbits=31)
    raw = cramjam.snappy
    return (lambda data: bytes(raw.compress_raw(data))), (lambda data: bytes(raw.decompress_raw(data)))


def each(work: Callable[[bytes], object], parts: list[bytes]) -> Stopwatch:
    with Stopwatch() as watch:
        for part in parts:
            work(part)
    return watch


def each_list(work: Callable[[list[bytes]], object], runs: list[list[bytes]]) -> Stopwatch:
    with Stopwatch() as watch:
        for run in runs:
            work(run)
    return watch


# ---- what is measured ---------------------------------------------------------------------------------------

Use = Callable[[Columns], int]
"""Makes something of columns; says how many rows it saw."""


def columns(taken: Columns) -> int:
    return len(taken.values)


def values(taken: Columns) -> int:
    return len(Batch(PARTITION, taken).values)


def records(taken: Columns) -> int:
    deque(Batch(PARTITION, taken), maxlen=0)
    return len(taken.values)


def arrow(taken: Columns) -> int:
    return int(Batch(PARTITION, taken).to_arrow().num_rows)


def drain(log: memoryview, use: Use) -> int:
    """The log, in chunks that arrive one after the other."""
    decoder, rows = MessageSetDecoder(PARTITION, Position(0), DecoderOptions()), 0
    for start in range(0, len(log), CHUNK_BYTES):
        decoder.feed(log[start : start + CHUNK_BYTES])
        rows += use(decoder.take())
    assert decoder.error is None
    assert decoder.position == len(log)
    return rows


def decode(engine: str, log: memoryview, use: Use, expected: int) -> Stopwatch:
    engines.use(engine)
    with Stopwatch() as watch:
        rows = drain(log, use)
    assert rows == expected
    return watch


def crc(log: memoryview) -> None:
    for start in range(0, len(log), CHUNK_BYTES):
        zlib.crc32(log[start : start + CHUNK_BYTES])


def in_threads(work: Callable[[memoryview], object], log: memoryview, count: int) -> Stopwatch:
    """The whole log in each of so many threads."""
    threads = [Thread(target=work, args=(log,)) for _ in range(count)]
    with Stopwatch() as watch:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return watch


def one_after_the_other(work: Callable[[memoryview], object], log: memoryview, count: int) -> Stopwatch:
    with Stopwatch() as watch:
        for _ in range(count):
            work(log)
    return watch


def encode(
    engine: str, runs: list[list[bytes]] | list[engines.PackedBytes], compression: CompressionType, plain: int
) -> Stopwatch:
    engines.use(engine)
    with Stopwatch() as watch:
        size = sum(len(encode_set(run, compression)) for run in runs)  # none is kept: the limit keeps none either
    assert size == plain if compression is CompressionType.NONE else size < plain
    return watch


# ---- the cases ----------------------------------------------------------------------------------------------


def floors(compiled: float, pure: float) -> list[tuple[str, float]]:
    """The engines to measure: the preferred one only where it is in use."""
    every = [("compiled", compiled), ("pure", pure)]
    return every if IN_USE == "compiled" else every[1:]


def plain_cases(total: int, size: int) -> Iterator[Case]:
    rows = payloads(total // size, size)
    count, log = len(rows), b"".join(map(bare_encode, batches(rows)))
    received, sets = memoryview(bytearray(log)), [bare_encode(run) for run in batches(rows)]
    least = partial(each, bare_decode, sets)
    goals: dict[Use, float | None] = {columns: None, values: VIEWS_GOAL, records: None, arrow: ARROW_GOAL}
    for engine, floor in floors(COMPILED_FLOOR, PURE_FLOOR):
        for use, goal in goals.items():
            yield Case(
                f"{engine}, {use.__name__}, {size} B",
                count,
                len(log),
                partial(decode, engine, received, use, count),
                least,
                floor,
                goal if engine == "compiled" else None,
            )


def encode_cases(total: int, size: int) -> Iterator[Case]:
    runs = batches(payloads(total // size, size))
    count, width = sum(map(len, runs)), len(b"".join(map(bare_encode, runs)))
    least = partial(each_list, bare_encode, runs)
    for engine, floor in floors(COMPILED_FLOOR, PURE_FLOOR):
        for source, rows in (("list", runs), ("arrow", list(map(packed, runs)))):
            goal = ENCODE_GOAL if (engine, source) == ("compiled", "arrow") else None
            run = partial(encode, engine, rows, CompressionType.NONE, width)
            yield Case(f"{engine}, from {source}, {size} B", count, width, run, least, floor, goal)


def compressed_cases(total: int, size: int, compression: CompressionType) -> Iterator[Case]:
    rows = payloads(total // size, size)
    runs, name = batches(rows), f"{compression.name.lower()}, {size} B"
    plain, (pack, unpack) = [bare_encode(run) for run in runs], bare_library(compression)
    count, width = len(rows), sum(map(len, plain))
    log = memoryview(bytearray(b"".join(encode_set(run, compression) for run in runs)))
    alone, alone_back = partial(each, unpack, [pack(data) for data in plain]), partial(each, pack, plain)
    for engine, floor in floors(COMPRESSED_FLOOR, PURE_COMPRESSED_FLOOR):
        goal = COMPRESSED_GOAL if engine == "compiled" else None
        run = partial(decode, engine, log, columns, count)
        yield Case(f"decode {name}, {engine}", count, width, run, alone, floor, goal)
        run = partial(encode, engine, runs, compression, width)
        yield Case(f"encode {name}, {engine}", count, width, run, alone_back, floor)


def thread_cases(total: int, size: int) -> Iterator[Case]:
    log = b"".join(map(bare_encode, batches(payloads(total // size, size)))) * THREAD_ROUNDS
    received, count = memoryview(bytearray(log)), 2 * THREAD_ROUNDS * (total // size)
    decoding: tuple[str, Callable[[memoryview], object]] = ("columns", partial(drain, use=columns))
    for name, work in (decoding, ("zlib.crc32", crc)):
        many, one = partial(in_threads, work, received, 2), partial(one_after_the_other, work, received, 2)
        goal = THREADS_GOAL if work is not crc else None
        yield Case(f"two threads, {name}, {size} B", count, 2 * len(log), many, one, THREADS_FLOOR, goal)


def main() -> None:
    with results(__file__, __doc__) as measured:
        total, rounds = (2 * MiB, 3) if measured.quick else (32 * MiB, 9)
        plain = [case for size in SIZES for case in plain_cases(total, size)]
        compare(measured, "Decode", "Limit: an optimised loop of pure Python.", plain, rounds, computing=True)
        sets = [case for size in SIZES for case in encode_cases(total, size)]
        compare(measured, "Encode", "Limit: an optimised loop of pure Python.", sets, rounds, computing=True)
        packs = [
            case
            for compression in (CompressionType.GZIP, CompressionType.SNAPPY)
            for size in SIZES
            for case in compressed_cases(total, size, compression)
        ]
        compare(measured, "Compressed", "Limit: the compression library alone.", packs, rounds, computing=True)
        if IN_USE != "compiled":
            return
        engines.use("compiled")
        pairs = [case for size in SIZES for case in thread_cases(total, size)]
        compare(measured, "Two threads", "Limit: one thread that does the same.", pairs, rounds)


if __name__ == "__main__":
    main()
