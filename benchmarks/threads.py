"""Decoding and encoding in several threads: how many times as fast as in one.

    python benchmarks/threads.py [--quick]

Each thread does the whole work by itself, on record batches of 1 MiB with values of 100 B: decoding to columns, where
no objects are made; decoding to a list of values; encoding from a list of values, and from packed bytes as an Arrow
array has them. The limit is the same work in one thread, in turns. `zlib.crc32`, which holds no lock of the interpreter
while it works, shows how many cores the machine has to give at the time.

With the lock of the interpreter (GIL), objects are made by one thread at a time. Run it with a free-threaded
interpreter, too: it needs nothing but odradek with its compiled engine.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from threading import Barrier, Thread
from time import perf_counter

from _results import Line, results
from odradek import engine
from odradek.batch import Batch
from odradek.core.interfaces import DecoderOptions
from odradek.types import MiB, Position, TopicPartition
from odradek.wire.kafka.records.decoder import RecordDecoder
from odradek.wire.kafka.records.encode import encode_batch

PARTITION = TopicPartition("t", 0)
VALUE = bytes(range(100))
RECORDS = 10_000
"""In a batch, which makes it 1 MiB."""

TIMES = [1_700_000_000_000] * RECORDS
COUNTS = tuple(sorted({1, 2, os.cpu_count() or 1, 2 * (os.cpu_count() or 1)}))
"""Numbers of threads."""

Work = Callable[[], object]


def decode(data: bytes, *, to_values: bool) -> None:
    decoder = RecordDecoder(PARTITION, Position(0), DecoderOptions())
    decoder.start_response()
    decoder.feed(memoryview(data))
    columns = decoder.take()
    assert decoder.error is None
    rows = Batch(PARTITION, columns).values if to_values else columns.values
    assert len(rows) == RECORDS


def encode(values: list[bytes] | engine.PackedBytes, size: int) -> None:
    assert len(encode_batch(values, None, None, TIMES)) == size


def works() -> Mapping[str, Work]:
    values = [VALUE] * RECORDS
    data = encode_batch(values, None, None, TIMES)
    ends = memoryview(bytearray(b"".join((row * 100).to_bytes(4, sys.byteorder) for row in range(RECORDS + 1))))
    packed = engine.PackedBytes(ends.cast("i"), memoryview(VALUE * RECORDS))
    return {
        "decode to columns": partial(decode, data, to_values=False),
        "decode to values": partial(decode, data, to_values=True),
        "encode from a list": partial(encode, values, len(data)),
        "encode from packed bytes": partial(encode, packed, len(data)),
        "zlib.crc32": partial(zlib.crc32, bytes(MiB)),
    }


def rate(work: Work, threads: int, repeats: int) -> float:
    """Return how often so many threads do the work together in a second."""
    barrier = Barrier(threads + 1)

    def run() -> None:
        barrier.wait()
        for _ in range(repeats):
            work()

    running = [Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    barrier.wait()
    begin = perf_counter()
    for thread in running:
        thread.join()
    return threads * repeats / (perf_counter() - begin)


def main() -> None:
    with results(__file__, __doc__) as measured:
        repeats, rounds = (3, 2) if measured.quick else (100, 9)
        lock = "with" if getattr(sys, "_is_gil_enabled", lambda: True)() else "without"
        title = f"Threads, Python {sys.version_info[0]}.{sys.version_info[1]} {lock} the GIL"
        rows, lines = [], []
        for name, work in works().items():
            rates = [[rate(work, threads, repeats) for threads in COUNTS] for _ in range(rounds)]
            ratios = [median(seen[which] / seen[0] for seen in rates) for which in range(len(COUNTS))]
            rows.append([name, f"{median(seen[0] for seen in rates):,.0f}", *(f"{ratio:.2f}" for ratio in ratios[1:])])
            lines.append(Line(name, [(float(count), ratio) for count, ratio in zip(COUNTS, ratios, strict=True)]))
        head = ["work on 1 MiB", "a second", *(f"{count} threads, ratio" for count in COUNTS[1:])]
        measured.table(title, "Limit: the same in one thread.", head, rows)
        measured.chart(title, "times as fast as one thread", lines=lines, across="threads")


if __name__ == "__main__":
    main()
