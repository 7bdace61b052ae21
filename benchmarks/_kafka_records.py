"""What records of Kafka 0.8 to 4.x cost: decoding and encoding batches, against other Python clients' codecs.

    python benchmarks/kafka_records.py [--quick]

Batches of 150 records with values of 100 B and a timestamp each, 16 KiB, as producers make them; 64 of them, 1 MiB, are
the answer to a fetch. The limits: aiokafka's codec, which is compiled, and for the pure engine kafka-python's, which is
plain Python. "Objects" are the values as
`bytes`, as `Batch.values` has them; "records" are `Record` objects with all their fields. aiokafka's records have their
fields read (value, key, offset, timestamp), as it makes them only then. All check the CRCs.

Compression of records, with its bounds, checks and framing, is compared with the bare library that it runs on.

Needs aiokafka (`pip install aiokafka`) and kafka-python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

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
from odradek.wire.kafka.records.compression import compress, decompress
from odradek.wire.kafka.records.decoder import RecordDecoder
from odradek.wire.kafka.records.encode import encode_batch

PARTITION = TopicPartition("t", 0)
BATCH, VALUE_BYTES, SNAPPY_BLOCK = 150, 100, 32768
TIME = 1_700_000_000_000

Work = Callable[[], object]


def values(count: int, *, text: bool = False) -> list[bytes]:
    """Return values of 100 B; text, which compresses about threefold, or noise."""
    rng = Random(7)
    if not text:
        return [rng.randbytes(VALUE_BYTES) for _ in range(count)]
    words = [rng.randbytes(6).hex().encode() for _ in range(200)]
    return [b" ".join(rng.choices(words, k=8))[:VALUE_BYTES] for _ in range(count)]


def encoded(payloads: list[bytes]) -> list[bytes]:
    """Return the answers to fetches, of 64 batches each, 1 MiB."""
    made = []
    for start in range(0, len(payloads), BATCH):
        part = payloads[start : start + BATCH]
        times = [TIME + number for number in range(len(part))]
        made.append(encode_batch(part, None, None, times, base_offset=start))
    return [b"".join(made[start : start + 64]) for start in range(0, len(made), 64)]


def timed(work: Work) -> Stopwatch:
    with Stopwatch() as watch:
        work()
    return watch


# ---- work ---------------------------------------------------------------------------------------------------


def decoded(answers: list[bytes]) -> Iterator[Batch]:
    decoder = RecordDecoder(PARTITION, Position(0), DecoderOptions())
    for answer in answers:
        decoder.start_response()
        decoder.feed(memoryview(answer))
        assert decoder.error is None
        yield Batch(PARTITION, decoder.take())


def as_objects(answers: list[bytes], count: int) -> None:
    assert sum(len(batch.values) for batch in decoded(answers)) == count


def as_records(answers: list[bytes], count: int) -> None:
    assert sum(len(list(batch)) for batch in decoded(answers)) == count


def as_arrow(answers: list[bytes], count: int) -> None:
    assert sum(batch.to_arrow().num_rows for batch in decoded(answers)) == count


def in_batches(reader: Callable[[bytes], Any], answers: list[bytes]) -> Iterator[Any]:
    for answer in answers:
        records = reader(answer)
        while records.has_next():
            yield records.next_batch()


def by_aiokafka(answers: list[bytes], count: int) -> None:
    seen = 0
    for batch in in_batches(AiokafkaRecords, answers):
        assert batch.validate_crc()
        for record in batch:
            fields = record.value, record.key, record.offset, record.timestamp
            seen += len(fields) == 4
    assert seen == count


def by_kafka_python(answers: list[bytes], count: int) -> None:
    seen = 0
    for batch in in_batches(KafkaPythonRecords, answers):
        assert batch.validate_crc()
        seen += sum(1 for _ in batch)
    assert seen == count


def write(payloads: list[bytes], times: list[int]) -> None:
    for start in range(0, len(payloads), BATCH):
        assert encode_batch(payloads[start : start + BATCH], None, None, times[start : start + BATCH])


def write_by_aiokafka(payloads: list[bytes], times: list[int]) -> None:
    for start in range(0, len(payloads), BATCH):
        builder = AiokafkaBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
        for row in range(start, start + BATCH):
            builder.append(row - start, times[row], None, payloads[row], [])
        assert builder.build()


def write_by_kafka_python(payloads: list[bytes], times: list[int]) -> None:
    for start in range(0, len(payloads), BATCH):
        builder = KafkaPythonBuilder(2, 0, False, -1, -1, -1, 1 << 30)
        for row in range(start, start + BATCH):
            builder.append(row - start, times[row], None, payloads[row], [])
        assert builder.build()


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


def plain_cases(count: int) -> Iterator[Case]:
    payloads, times = values(count), [TIME + number for number in range(count)]
    answers = encoded(payloads)
    size = sum(map(len, answers))
    read_limit = partial(timed, partial(by_aiokafka, answers, count))
    for name, work, floor, goal in (
        ("decoded to objects", as_objects, 2.5, 5.0),
        ("decoded to records", as_records, 0.8, None),
        ("decoded to Arrow", as_arrow, 4.0, 10.0),
    ):
        run = partial(timed, on("compiled", partial(work, answers, count)))
        yield Case(name, count, size, run, read_limit, floor, goal)
    run = partial(timed, on("compiled", partial(write, payloads, times)))
    limit = partial(timed, partial(write_by_aiokafka, payloads, times))
    yield Case("encoded", count, size, run, limit, 2.0, 4.0)


def pure_cases(count: int) -> Iterator[Case]:
    payloads, times = values(count), [TIME + number for number in range(count)]
    answers = encoded(payloads)
    size = sum(map(len, answers))
    run = partial(timed, on("pure", partial(as_objects, answers, count)))
    yield Case("decoded", count, size, run, partial(timed, partial(by_kafka_python, answers, count)), 1.0, 1.5)
    run = partial(timed, on("pure", partial(write, payloads, times)))
    limit = partial(timed, partial(write_by_kafka_python, payloads, times))
    yield Case("encoded", count, size, run, limit, 1.0, 1.5)


def library(compression: CompressionType, plain: bytes) -> tuple[bytes, Work, Work]:
    """Return what our encoder makes of records, and how the bare library packs and unpacks them."""
    packed = compress(compression, plain, magic=2)
    if compression is CompressionType.SNAPPY:
        blocks = [plain[at : at + SNAPPY_BLOCK] for at in range(0, len(plain), SNAPPY_BLOCK)]
        raw = [snappy.compress(block) for block in blocks]
        return packed, lambda: [*map(snappy.compress, blocks)], lambda: b"".join(map(snappy.uncompress, raw))
    if compression is CompressionType.LZ4:
        return packed, partial(cramjam.lz4.compress, plain), partial(cramjam.lz4.decompress, packed)
    return packed, partial(cramjam.zstd.compress, plain, level=3), partial(cramjam.zstd.decompress, packed)


def codec_cases(count: int) -> Iterator[Case]:
    times = [TIME] * count
    plain = engine.active.encode_batch(values(count, text=True), None, None, times)[61:]
    for compression in (CompressionType.LZ4, CompressionType.SNAPPY, CompressionType.ZSTD):
        packed, pack, unpack = library(compression, plain)
        name, size = compression.name.lower(), len(plain)
        ours = partial(timed, partial(decompress, compression, memoryview(packed), 1 << 30, magic=2))
        yield Case(f"{name}, decompressed", count, size, ours, partial(timed, unpack), 0.5, 0.85)
        ours = partial(timed, partial(compress, compression, plain, magic=2))
        yield Case(f"{name}, compressed", count, size, ours, partial(timed, pack), 0.5, 0.85)


def main() -> None:
    with results(__file__, __doc__) as report:
        count, turns = (3000, 3) if report.quick else (30_000, 9)
        limit = "Limit: aiokafka's compiled codec."
        compare(report, "Compiled engine", limit, list(plain_cases(count)), turns, computing=True)
        limit = "Limit: kafka-python's codec."
        compare(report, "Pure engine", limit, list(pure_cases(count // 10)), turns, computing=True)
        limit = "Limit: the bare library on the same bytes."
        compare(report, "Compression of records", limit, list(codec_cases(count)), turns, computing=True)


if __name__ == "__main__":
    main()
