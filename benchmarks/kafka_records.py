"""Cost of the records of Kafka 0.8 to 4.x: decoding and encoding of batches, against the codecs of other clients.

    python benchmarks/kafka_records.py [--quick]

The interpreter keeps free memory, as one does that has been running for a while (`keep_free_memory`).

Batches of 16 KiB hold 150 records of 100 B without keys, 30 of them in each millisecond. A response to a fetch has 64
batches of a partition, 1 MiB; the lines with "16 KiB" have one. Every side checks the CRCs.

- `objects`: each value, key, offset and timestamp is a Python object, in four lists. The limit makes the same four
  lists out of the same bytes, by reading these four fields of each of its records.
- `Arrow`: an Arrow record batch with all fields. The limit is the same as for objects.
- `values`: a list of the values; offsets and timestamps stay columns of integers. The limit makes the same list.
- `records`: a `Record` each, by iterating over the batch. The limit reads the four fields and keeps nothing.
- `encoded`: a batch out of lists of values and timestamps. The limit appends each record to its builder.

The limit of the compiled engine is aiokafka's codec, which is compiled, too; that of the pure engine is kafka-python's,
which is plain Python. Compression of records, with its bounds, checks and framing, is compared with the bare library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, NamedTuple

import cramjam
import snappy
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from _common import Case, Stopwatch, compare
from _results import results
from odradek import engine
from odradek.batch import Batch
from odradek.core.interfaces import DecoderOptions
from odradek.types import Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.batch import HEADER_BYTES
from odradek.wire.kafka.records.compression import compress, decompress
from odradek.wire.kafka.records.decoder import RecordDecoder
from odradek.wire.kafka.records.encode import encode_batch

PARTITION = TopicPartition("t", 0)
BATCH, VALUE_BYTES, SNAPPY_BLOCK = 150, 100, 32768
RESPONSE_BATCHES = 64
TIME, PER_MILLISECOND = 1_700_000_000_000, 30
FREE_BYTES, ARENA_OBJECTS = 64 << 20, 3000
"""Free memory that the interpreter keeps, and fewer objects than an arena of 1 MiB has."""
COMPRESSED = (CompressionType.LZ4, CompressionType.SNAPPY, CompressionType.ZSTD)

OBJECTS_GOAL, ARROW_GOAL, ENCODE_GOAL, PURE_GOAL, LIBRARY_GOAL = 5.0, 10.0, 4.0, 1.5, 0.85

Work = Callable[[], object]


def values(count: int, *, text: bool = False) -> list[bytes]:
    """Return values of 100 B; text, which compresses about threefold, or noise."""
    rng = Random(7)
    if not text:
        return [rng.randbytes(VALUE_BYTES) for _ in range(count)]
    words = [rng.randbytes(6).hex().encode() for _ in range(200)]
    return [b" ".join(rng.choices(words, k=8))[:VALUE_BYTES] for _ in range(count)]


def timestamps(count: int) -> list[int]:
    return [TIME + row // PER_MILLISECOND for row in range(count)]


class Log(NamedTuple):
    """Records, and the responses that hold them."""

    values: list[bytes]
    timestamps: list[int]
    responses: list[bytes]

    @property
    def size(self) -> int:
        """Bytes of all responses."""
        return sum(map(len, self.responses))


def log(count: int, response_batches: int = RESPONSE_BATCHES) -> Log:
    payloads, times = values(count), timestamps(count)
    batches = []
    for start in range(0, count, BATCH):
        rows = slice(start, start + BATCH)
        batches.append(encode_batch(payloads[rows], None, None, times[rows], base_offset=start))
    starts = range(0, len(batches), response_batches)
    return Log(payloads, times, [b"".join(batches[start : start + response_batches]) for start in starts])


def keep_free_memory() -> list[bytes]:
    """Make the interpreter keep free memory for objects, as one does that has been running for a while.

    Otherwise it may give the memory of every list back to the system and ask for it again, depending on what else
    happens to be there, and all sides wait for the system more than for their own work. Returns what keeps the memory.
    """
    objects = [bytes(VALUE_BYTES) for _ in range(FREE_BYTES // (VALUE_BYTES + 44))]
    return objects[::ARENA_OBJECTS]


def timed(work: Work) -> Stopwatch:
    with Stopwatch() as watch:
        work()
    return watch


# ---- decoding -----------------------------------------------------------------------------------------------


def decoded(data: Log) -> Iterator[Batch]:
    decoder = RecordDecoder(PARTITION, Position(0), DecoderOptions())
    for response in data.responses:
        decoder.start_response()
        decoder.feed(memoryview(response))
        assert decoder.error is None
        yield Batch(PARTITION, decoder.take())


def as_lists(data: Log) -> Iterator[tuple[list[Any], ...]]:
    for batch in decoded(data):
        columns = batch.columns
        assert columns.timestamps is not None
        keys = [None] * len(batch) if columns.keys is None else list(columns.keys)
        offsets, times = columns.positions, columns.timestamps
        if isinstance(offsets, memoryview) and isinstance(times, memoryview):
            yield batch.values, keys, offsets.tolist(), times.tolist()
        else:
            yield batch.values, keys, list(offsets), list(times)


def to_objects(data: Log) -> None:
    assert sum(len(offsets) for _, _, offsets, _ in as_lists(data)) == len(data.values)


def to_values(data: Log) -> None:
    assert sum(len(batch.values) for batch in decoded(data)) == len(data.values)


def to_records(data: Log) -> None:
    count = 0
    for batch in decoded(data):
        for _ in batch:
            count += 1
    assert count == len(data.values)


def to_arrow(data: Log) -> None:
    assert sum(batch.to_arrow().num_rows for batch in decoded(data)) == len(data.values)


def batches_of(reader: Callable[[bytes], Any], response: bytes) -> Iterator[Any]:
    records = reader(response)
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        yield batch


def peer_lists(reader: Callable[[bytes], Any], data: Log) -> Iterator[tuple[list[Any], ...]]:
    for response in data.responses:
        payloads: list[Any] = []
        keys: list[Any] = []
        offsets: list[Any] = []
        times: list[Any] = []
        for batch in batches_of(reader, response):
            for record in batch:
                payloads.append(record.value)
                keys.append(record.key)
                offsets.append(record.offset)
                times.append(record.timestamp)
        yield payloads, keys, offsets, times


def peer_objects(reader: Callable[[bytes], Any], data: Log) -> None:
    assert sum(len(offsets) for _, _, offsets, _ in peer_lists(reader, data)) == len(data.values)


def peer_values(reader: Callable[[bytes], Any], data: Log) -> None:
    count = 0
    for response in data.responses:
        payloads = [record.value for batch in batches_of(reader, response) for record in batch]
        count += len(payloads)
    assert count == len(data.values)


def peer_records(reader: Callable[[bytes], Any], data: Log) -> None:
    count = 0
    for response in data.responses:
        for batch in batches_of(reader, response):
            for record in batch:
                _ = record.value, record.key, record.offset, record.timestamp
                count += 1
    assert count == len(data.values)


def check_lists(data: Log) -> None:
    """Make sure that every side reads the same out of the bytes."""
    ours = list(as_lists(data))
    assert [value for lists in ours for value in lists[0]] == data.values
    assert [time for lists in ours for time in lists[3]] == data.timestamps
    for reader in (AiokafkaRecords, KafkaPythonRecords):
        assert list(peer_lists(reader, data)) == ours


# ---- encoding -----------------------------------------------------------------------------------------------


def write(data: Log) -> None:
    for start in range(0, len(data.values), BATCH):
        rows = slice(start, start + BATCH)
        assert encode_batch(data.values[rows], None, None, data.timestamps[rows])


def peer_write(builder: Callable[..., Any], data: Log) -> None:
    payloads, times = data.values, data.timestamps
    for start in range(0, len(payloads), BATCH):
        batch = builder(2, 0, 0, -1, -1, -1, 1 << 30)
        for row in range(start, start + BATCH):
            batch.append(row - start, times[row], None, payloads[row], [])
        assert batch.build()


def on(name: str, work: Work) -> Work:
    def run() -> None:
        before = engine.active.NAME
        engine.use(name)
        try:
            work()
        finally:
            engine.use(before)

    return run


# ---- the cases ----------------------------------------------------------------------------------------------


def case(
    name: str, engine_name: str, data: Log, ours: Callable[[Log], None], peer: Work, floor: float, goal: float | None
) -> Case:
    run = partial(timed, on(engine_name, partial(ours, data)))
    return Case(name, len(data.values), data.size, run, partial(timed, peer), floor, goal)


def compiled_cases(count: int) -> Iterator[Case]:
    large, small = log(count), log(count, 1)
    check_lists(small)
    lists = partial(peer_objects, AiokafkaRecords)
    for name, data, ours, peer, floor, goal in (
        ("decoded to objects", large, to_objects, lists, 1.2, OBJECTS_GOAL),
        ("decoded to Arrow", large, to_arrow, lists, 1.5, ARROW_GOAL),
        ("decoded to values", large, to_values, partial(peer_values, AiokafkaRecords), 1.2, None),
        ("decoded to records", large, to_records, partial(peer_records, AiokafkaRecords), 0.2, None),
        ("decoded to objects, 16 KiB", small, to_objects, lists, 0.8, None),
        ("decoded to Arrow, 16 KiB", small, to_arrow, lists, 0.2, None),
        ("encoded", large, write, partial(peer_write, AiokafkaBuilder), 1.2, ENCODE_GOAL),
    ):
        yield case(name, "compiled", data, ours, partial(peer, data), floor, goal)


def pure_cases(count: int) -> Iterator[Case]:
    data = log(count)
    peer = partial(peer_objects, KafkaPythonRecords, data)
    yield case("decoded to objects", "pure", data, to_objects, peer, 1.0, PURE_GOAL)
    peer = partial(peer_write, KafkaPythonBuilder, data)
    yield case("encoded", "pure", data, write, peer, 1.0, PURE_GOAL)


def library(compression: CompressionType, plain: bytes, packed: bytes) -> tuple[Work, Work]:
    """Return how the bare library packs these bytes, and unpacks what our encoder made of them."""
    if compression is CompressionType.SNAPPY:
        blocks = [plain[start : start + SNAPPY_BLOCK] for start in range(0, len(plain), SNAPPY_BLOCK)]
        raw = [snappy.compress(block) for block in blocks]
        return lambda: [*map(snappy.compress, blocks)], lambda: b"".join(map(snappy.uncompress, raw))
    if compression is CompressionType.LZ4:
        return partial(cramjam.lz4.compress, plain), partial(cramjam.lz4.decompress, packed)
    return partial(cramjam.zstd.compress, plain, level=3), partial(cramjam.zstd.decompress, packed)


def repeated(rounds: int, work: Work) -> Stopwatch:
    with Stopwatch() as watch:
        for _ in range(rounds):
            work()
    return watch


def library_cases(count: int) -> Iterator[Case]:
    for batches, size_name in ((RESPONSE_BATCHES, "1 MiB"), (1, "16 KiB")):
        records = values(BATCH * batches, text=True)
        plain = engine.active.encode_batch(records, None, None, timestamps(len(records)))[HEADER_BYTES:]
        rounds = max(1, count // len(records))
        for compression in COMPRESSED:
            packed = compress(compression, plain, magic=2)
            pack, unpack = library(compression, plain, packed)
            name, moved, size = compression.name.lower(), rounds * len(records), rounds * len(plain)
            unpack_ours = partial(decompress, compression, memoryview(packed), 1 << 30, magic=2)
            pack_ours = partial(compress, compression, plain, magic=2)
            for done, ours, bare in (("decompressed", unpack_ours, unpack), ("compressed", pack_ours, pack)):
                run, limit = partial(repeated, rounds, ours), partial(repeated, rounds, bare)
                yield Case(f"{name}, {size_name} {done}", moved, size, run, limit, 0.3, LIBRARY_GOAL)


def main() -> None:
    kept = keep_free_memory()
    with results(__file__, __doc__) as report:
        count, rounds = (9600, 3) if report.quick else (96_000, 15)
        limit = "Limit: aiokafka's compiled codec."
        compare(report, "Records, compiled engine", limit, list(compiled_cases(count)), rounds, computing=True)
        limit = "Limit: kafka-python's codec."
        compare(report, "Records, pure engine", limit, list(pure_cases(count // 8)), rounds, computing=True)
        limit = "Limit: the bare library on the same bytes."
        compare(report, "Compression of records", limit, list(library_cases(count // 2)), rounds, computing=True)
    assert kept


if __name__ == "__main__":
    main()
