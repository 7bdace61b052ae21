"""Compressed batches of magic 2, and those of transactions, in runs: what engines take, and leave to their caller."""

from __future__ import annotations

import struct
from functools import partial

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.fuzz import plain

from odradek import engine as engines
from odradek.engine import NO_LIMIT
from odradek.wire.compression import CompressionType, compress
from odradek.wire.kafka.records.encode import encode_batch

PURE, COMPILED = engines.engine("pure"), engines.engine("compiled")
IN_RUNS = [CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD]
LIMIT = 1 << 20
HEADER_BYTES, ROW_BYTES = 61, 64
VALUES = [b"one", None, b"two" * 30_000]
BODY_BYTES = len(encode_batch(VALUES)) - HEADER_BYTES
NONE = -(1 << 63)


def with_body(batch: bytes, body: bytes, compression: CompressionType) -> bytes:
    """The batch with other bytes behind its header, and its length, codec and CRC as that needs them."""
    data = bytearray(batch[:HEADER_BYTES] + body)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[22] = compression
    data[17:21] = COMPILED.crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def run(data: bytes, limit: int = LIMIT, first: int = 0) -> tuple[object, ...]:
    """What a run takes, and its rows."""
    made = COMPILED.RecordBuilder()
    return *made.decode_batches(data, 0, len(data), first, NO_LIMIT, limit), plain(made.take())


def is_taken(body: bytes, compression: CompressionType) -> bool:
    data = with_body(encode_batch(VALUES), body, compression)
    end = run(data)[0]
    assert end in (0, len(data))
    return bool(end)


@pytest.mark.parametrize("compression", IN_RUNS)
@given(
    rows=st.lists(st.lists(st.binary(max_size=300) | st.none(), min_size=1, max_size=6), min_size=1, max_size=4),
    first=st.integers(0, 25),
)
@settings(deadline=None)
def test_a_run_of_them_has_the_rows_of_the_same_batches_without_compression(
    compression: CompressionType, rows: list[list[bytes | None]], first: int
) -> None:
    each = [(values, CompressionType.NONE if index == 2 else compression) for index, values in enumerate(rows)]
    made = [encode_batch(v, base_offset=6 * i, compression=c) for i, (v, c) in enumerate(each)]
    same = b"".join(encode_batch(values, base_offset=6 * i) for i, values in enumerate(rows))
    data = b"".join(made)
    end, behind, decompressed, taken = run(data, first=first)
    _, expected, _, plain_rows = run(same, first=first)
    assert (end, behind, taken) == (len(data), expected, plain_rows)
    sizes = [len(encode_batch(v)) - HEADER_BYTES + ROW_BYTES * len(v) for v, compressed in each if compressed]
    assert decompressed == sum(sizes)
    assert COMPILED.check_batches(data, 0, len(data), NO_LIMIT, LIMIT, False) == (end, behind)


@pytest.mark.parametrize("compression", IN_RUNS)
def test_they_end_a_run_that_may_not_decompress_and_any_run_of_the_pure_engine(compression: CompressionType) -> None:
    first = encode_batch([b"plain"])
    data = first + encode_batch(VALUES, base_offset=1, compression=compression)
    assert run(data, limit=0)[:3] == (len(first), 1, 0)
    assert PURE.RecordBuilder().decode_batches(data, 0, len(data), 0, NO_LIMIT, LIMIT) == (len(first), 1, 0)
    for engine in (PURE, COMPILED):
        assert engine.check_batches(data, 0, len(data), NO_LIMIT, 0, False) == (len(first), 1)


@pytest.mark.parametrize("compression", IN_RUNS)
def test_their_limit_counts_each_record(compression: CompressionType) -> None:
    data = encode_batch(VALUES, compression=compression)
    limit = BODY_BYTES + ROW_BYTES * len(VALUES)
    assert run(data, limit)[:3] == (len(data), 3, limit)
    assert run(data, limit - 1)[:3] == (0, NONE, 0)


@pytest.mark.parametrize("compression", IN_RUNS)
def test_their_limit_is_that_of_all_in_a_run(compression: CompressionType) -> None:
    data = encode_batch(VALUES, compression=compression)
    size = BODY_BYTES + ROW_BYTES * len(VALUES)
    assert run(data * 3, 3 * size)[:3] == (3 * len(data), 3, 3 * size)
    assert run(data * 3, 3 * size - 1)[:3] == (2 * len(data), 3, 2 * size)


@pytest.mark.parametrize("engine", [PURE, COMPILED])
def test_a_checksum_is_looked_at_unless_it_is_known(engine: engines.Engine) -> None:
    data = bytearray(encode_batch([b"a", b"b"]))
    data[17] ^= 1
    assert engine.RecordBuilder().decode_batches(data, 0, len(data), 0) == (0, NONE, 0)
    assert engine.check_batches(data, 0, len(data), NO_LIMIT, LIMIT, False) == (0, NONE)
    made = engine.RecordBuilder()
    assert made.decode_batches(data, 0, len(data), 0, checked=True) == (len(data), 2, 0)
    assert made.take().value_list() == [b"a", b"b"]


def test_what_few_writers_make_is_left_to_the_caller() -> None:
    body = encode_batch(VALUES)[HEADER_BYTES:]
    snappy, lz4, zstd = (bytes(compress(each, body)) for each in IN_RUNS)
    assert all(map(is_taken, (snappy, lz4, zstd), IN_RUNS))
    assert is_taken(bytes(cramjam.snappy.compress_raw(body)), CompressionType.SNAPPY)  # as librdkafka does
    assert not is_taken(bytes(compress(CompressionType.GZIP, body)), CompressionType.GZIP)
    left = {
        CompressionType.SNAPPY: [
            snappy[:8] + struct.pack(">ii", 2, 1) + snappy[16:],  # another version
            snappy + b"\0",
            snappy + bytes(4),
            snappy[:-1],
            b"",
        ],
        CompressionType.LZ4: [
            bytes(compress(CompressionType.LZ4, body, 1)),  # blocks with checksums
            lz4 + b"\0",
            lz4[:-4],
            lz4[:-1],
            b"",
        ],
        CompressionType.ZSTD: [
            zstd + zstd,
            zstd + b"\x50\x2a\x4d\x18\0\0\0\0",  # a skippable frame
            zstd[:-1],
            b"",
            bytes(cramjam.zstd.compress(body))[:4] + b"\x01" + bytes(20),  # a dictionary
        ],
    }
    for compression, bodies in left.items():
        for index, each in enumerate(bodies):
            assert not is_taken(each, compression), (compression, index)


@pytest.mark.parametrize(("window", "taken"), [(17 << 3, True), ((17 << 3) + 1, False)])
def test_a_window_is_at_most_that_of_every_reader(window: int, taken: bool) -> None:
    body = encode_batch([b"a" * 70])[HEADER_BYTES:]
    raw_block = (len(body) << 3 | 1).to_bytes(3, "little")
    frame = b"\x28\xb5\x2f\xfd\0" + bytes([window]) + raw_block + body
    data = with_body(encode_batch([b"a" * 70]), frame, CompressionType.ZSTD)
    assert run(data)[0] == (len(data) if taken else 0)


@pytest.mark.parametrize("compression", IN_RUNS)
def test_records_that_are_damaged_inside_end_the_run_without_a_row_of_their_batch(compression: CompressionType) -> None:
    first = encode_batch([b"whole"], compression=compression)
    body = encode_batch([b"a", b"b"])[HEADER_BYTES:]
    for damaged in (body[:-1], body + b"\0", b"\x7f" + body[1:]):
        data = first + with_body(encode_batch([b"a", b"b"]), bytes(compress(compression, damaged)), compression)
        end, _, decompressed, rows = run(data)
        assert (end, decompressed) == (len(first), len(encode_batch([b"whole"])) - HEADER_BYTES + ROW_BYTES)
        assert rows == run(first)[3]


@pytest.mark.parametrize("engine", [PURE, COMPILED])
def test_batches_of_transactions_are_taken_where_all_are_delivered_and_control_batches_never(
    engine: engines.Engine,
) -> None:
    encode = partial(encode_batch, producer_id=7, producer_epoch=1, base_sequence=5, is_transactional=True)
    data = encode([b"a", b"b"])
    control = encode([b"\0" * 6], [b"\0\0\0\1"], base_offset=2, is_control=True)
    both = data + control
    for transactional, taken in ((True, (len(data), 2)), (False, (0, NONE))):
        made = engine.RecordBuilder()
        assert made.decode_batches(both, 0, len(both), 0, NO_LIMIT, LIMIT, transactional) == (*taken, 0)
        assert engine.check_batches(both, 0, len(both), NO_LIMIT, LIMIT, transactional) == taken
        assert made.take().value_list() == [b"a", b"b"][: taken[1] if transactional else 0]
