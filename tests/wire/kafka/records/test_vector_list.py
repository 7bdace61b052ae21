"""Record sets of the vector list (specification 8.1) that are not in the vector file."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import cramjam
import pytest
import snappy
from tests.wire.kafka.records.reading import read

from odradek import engine as engines
from odradek.wire import lz4
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.batch import batch_header, control_type
from odradek.wire.kafka.records.encode import encode_batch, encode_message_set

pytestmark = pytest.mark.usefixtures("either_engine")

KEYS, VALUES, TIMES = [b"k1", None, b"k3"], [b"v1", b"v2", None], [1000, 1001, 1005]
XERIAL = b"\x82SNAPPY\0" + (1).to_bytes(4, "big") * 2


def based(message_set: bytes, offset: int) -> bytes:
    """Return the wrapper with another offset, as the broker writes it."""
    return offset.to_bytes(8, "big") + message_set[8:]


def wrapper(
    magic: int, compression: int, inner: bytes, offset: int, *, time: int = 1005, log_append: bool = False
) -> bytes:
    attributes = compression | (8 if log_append else 0)
    times = None if magic == 0 else [time]
    return engines.active.encode_messages([inner], None, times, magic, attributes, offset)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compression", list(CompressionType)[:4])
def test_wrappers_of_both_old_formats_in_every_compression(magic: int, compression: CompressionType) -> None:
    """Offsets of inner messages: absolute in magic 0, relative to the last in magic 1."""
    if magic:
        data = encode_message_set(VALUES, KEYS, TIMES, magic=1, compression=compression)
    else:
        data = encode_message_set(VALUES, KEYS, magic=0, compression=compression)
    if compression and magic:
        data = based(data, 102)
    reading = read(data)
    first = 100 if compression and magic else 0
    assert [row[0] for row in reading.rows] == [first, first + 1, first + 2]
    assert [row[1] for row in reading.rows] == (TIMES if magic else [-1] * 3)
    assert [row[3:5] for row in reading.rows] == list(zip(KEYS, VALUES, strict=True))


@pytest.mark.parametrize(("hash_magic", "checksum"), [(True, 0x1A), (False, 0x82)])
def test_the_header_checksum_of_lz4_frames_is_that_of_the_format(hash_magic: bool, checksum: int) -> None:
    frame = lz4.compress(b"x" * 100, hash_magic=hash_magic)
    assert frame[:7] == bytes.fromhex("04224d18 60 40") + bytes([checksum])
    in_old_format = encode_message_set(VALUES, magic=0 if hash_magic else 1, compression=CompressionType.LZ4)
    assert frame[:7] in in_old_format


def test_blocks_of_lz4_frames_are_written_as_independent() -> None:
    frame = lz4.compress(bytes(range(256)) * 1024)
    assert frame[4] & 0x20
    linked = frame[:4] + bytes([frame[4] & ~0x20]) + frame[5:]
    inner = encode_message_set(VALUES, magic=1)
    data = wrapper(1, 3, linked, 2)
    assert read(data).error and not read(wrapper(1, 3, lz4.compress(inner), 2)).error


def test_the_log_append_time_of_a_wrapper_replaces_the_times_of_its_messages() -> None:
    inner = encode_message_set(VALUES, KEYS, TIMES, magic=1)
    reading = read(wrapper(1, 1, gzip.compress(inner), 102, time=7777, log_append=True))
    assert [(row[0], row[1], row[2]) for row in reading.rows] == [(100, 7777, 1), (101, 7777, 1), (102, 7777, 1)]


@pytest.mark.parametrize("kind", [0, 1])
def test_both_markers_end_a_transaction_and_are_not_delivered(kind: int) -> None:
    key = b"\0\0" + kind.to_bytes(2, "big")
    data = encode_batch(
        [bytes.fromhex("0000 00000005")], [key], None, [123456],
        producer_id=4000, producer_epoch=3, is_transactional=True, is_control=True, base_offset=50,
    )  # fmt: skip
    header = batch_header(memoryview(data))
    assert header.is_control and control_type(header, data[61:]) == kind
    assert read(data).rows == [] and read(data).fetch_position == 51


def test_a_wrapper_of_magic_1_with_offset_0_has_offsets_as_its_producer_wrote_them() -> None:
    data = wrapper(1, 1, gzip.compress(encode_message_set(VALUES, KEYS, TIMES, magic=1)), 0)
    assert [row[0] for row in read(data).rows] == [0, 1, 2]


@pytest.mark.parametrize(
    "pack",
    [
        lambda inner: bytes(snappy.compress(inner)),
        lambda inner: XERIAL + block(inner),
        lambda inner: XERIAL + block(inner[:20]) + XERIAL + block(inner[20:]),
        lambda inner: XERIAL + b"".join(block(inner[at : at + 7]) for at in range(0, len(inner), 7)),
    ],
    ids=["a raw block", "xerial", "two headers", "many blocks"],
)
def test_snappy_is_read_raw_and_in_every_framing_of_xerial(pack: Callable[[bytes], bytes]) -> None:
    inner = encode_message_set(VALUES, KEYS, TIMES, magic=1)
    reading = read(wrapper(1, 2, pack(inner), 102))
    assert (reading.error, [row[0] for row in reading.rows]) == ((), [100, 101, 102])


def block(data: bytes) -> bytes:
    packed = bytes(cramjam.snappy.compress_raw(data))
    return len(packed).to_bytes(4, "big") + packed


def test_gzip_may_have_two_members() -> None:
    inner = encode_message_set(VALUES, KEYS, TIMES, magic=1)
    reading = read(wrapper(1, 1, gzip.compress(inner[:30]) + gzip.compress(inner[30:]), 102))
    assert (reading.error, [row[0] for row in reading.rows]) == ((), [100, 101, 102])


def test_a_batch_may_begin_at_the_last_sequence() -> None:
    data = encode_batch(VALUES, KEYS, producer_id=4000, producer_epoch=0, base_sequence=2**31 - 1)
    assert batch_header(memoryview(data)).base_sequence == 2**31 - 1
    assert len(read(data).rows) == 3


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**62, "80808080808080808001"),
        (-(2**62), "ffffffffffffffff7f"),
    ],
)
def test_time_differences_are_zigzag_varints(number: int, encoded: str) -> None:
    """The second record's time against the first: the third field of a record, after its length and attributes."""
    data = encode_batch([None, None], None, None, [0, number])
    second = data[61 + 7 :]
    assert second[2:].startswith(bytes.fromhex(encoded))
    assert [row[1] for row in read(data).rows] == [0, number]
