"""Answers to fetches: what is delivered, what is left out, and where to go on."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Iterator, Sequence
from zlib import crc32

import pytest
from tests.wire.kafka.records.reading import PARTITION, chunks, read

from odradek import engine
from odradek.core.interfaces import DecoderOptions
from odradek.engine import HeaderColumns, PackedBytes
from odradek.errors import ConfigError, CorruptMessage, MessageTooLarge
from odradek.types import Position
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.batch import BatchHeader, batch_header
from odradek.wire.kafka.records.decoder import RecordDecoder
from odradek.wire.kafka.records.encode import encode_batch, encode_message_set
from odradek.wire.kafka.records.entries import EpochSpan

pytestmark = pytest.mark.usefixtures("either_engine")

SKIP, RAW, LATER = (
    DecoderOptions(corrupt="skip"),
    DecoderOptions(corrupt="raw"),
    DecoderOptions(defer_decompression=True),
)
GZIP, LZ4, ZSTD = CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD


def batch(*values: bytes | None, base: int = 0, last_delta: int | None = None, **options: object) -> bytes:
    """Return a batch, if wanted with another last offset than its records'."""
    data = bytearray(encode_batch(values, base_offset=base, **options))  # type: ignore[arg-type]
    if last_delta is not None:
        data[23:27] = last_delta.to_bytes(4, "big")
    return with_checksums(data)


def with_checksums(data: bytearray) -> bytes:
    data[17:21] = engine.active.crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def empty_batch(base: int, last_delta: int) -> bytes:
    data = bytearray(batch(b"x", base=base, last_delta=last_delta)[:61])
    data[8:12], data[57:61] = (49).to_bytes(4, "big"), bytes(4)
    return with_checksums(data)


def marker(base: int, kind: int, producer_id: int) -> bytes:
    key = struct.pack(">hh", 0, kind)
    return batch(bytes(6), base=base, keys=[key], producer_id=producer_id, is_control=True, is_transactional=True)


def offsets(data: bytes, **options: object) -> list[int]:
    return [row[0] for row in read(data, **options).rows]  # type: ignore[arg-type]


def wrapper(magic: int, inner: list[tuple[int, bytes]], outer: int, attributes: int = 1) -> bytes:
    """Return a gzip wrapper around messages with these offsets, itself with this one."""
    plain = b"".join(entry(magic, offset, value, 0) for offset, value in inner)
    return entry(magic, outer, gzip.compress(plain), attributes, 77)


def entry(magic: int, offset: int, value: bytes, attributes: int, time: int = 5) -> bytes:
    times = time.to_bytes(8, "big") if magic else b""
    body = bytes((magic, attributes)) + times + b"\xff" * 4 + len(value).to_bytes(4, "big") + value
    return struct.pack(">qiI", offset, len(body) + 4, crc32(body)) + body


# ---- positions ----------------------------------------------------------------------------------------------


def test_records_below_the_offset_asked_for_are_left_out() -> None:
    data = batch(*[b"x"] * 5, base=100) + batch(b"y", base=105)
    assert offsets(data, start=103) == [103, 104, 105]
    old = encode_message_set([b"a", b"b", b"c"], magic=1, compression=GZIP)
    assert offsets(old, start=1) == [1, 2]
    assert offsets(encode_message_set([b"a", b"b", b"c"], magic=0), start=2) == [2]
    assert read(batch(b"x", base=5), start=9).fetch_position == 9


def test_the_last_record_resumes_behind_its_batch_even_if_others_were_compacted_away() -> None:
    reading = read(batch(b"a", b"b", b"c", base=10, last_delta=9))
    assert reading.next_positions == [11, 12, 20]
    assert reading.fetch_position == 20


def test_a_batch_without_records_moves_the_position() -> None:
    reading = read(empty_batch(10, 9) + batch(b"x", base=25))
    assert ([row[0] for row in reading.rows], reading.fetch_position) == ([25], 26)
    assert read(empty_batch(10, 9)).fetch_position == 20


def test_a_batch_with_lower_offsets_does_not_move_the_position_back() -> None:
    data = batch(b"a", base=500) + batch(b"b", base=100)
    for cuts in ((), (len(data) // 2,)):
        reading = read(data, cuts=cuts)
        assert ([row[0] for row in reading.rows], reading.fetch_position) == ([500, 100], 501)


def test_compacted_wrappers_count_from_their_last_message() -> None:
    inner = [(0, b"a"), (3, b"b"), (7, b"c")]
    assert offsets(wrapper(1, inner, 107)) == [100, 103, 107]
    assert offsets(wrapper(1, inner, 0)) == [0, 3, 7]
    assert offsets(wrapper(0, [(100, b"a"), (104, b"b")], 104)) == [100, 104]
    bad = read(wrapper(1, inner, 5))
    assert bad.error == (
        CorruptMessage, "t/3", 0, "entry at offset 5: a compressed message at offset 5 whose last message is number 7"
    )  # fmt: skip


@pytest.mark.parametrize("options", [DecoderOptions(), LATER])
def test_the_last_message_of_a_wrapper_has_no_negative_number(options: DecoderOptions) -> None:
    bad = read(wrapper(1, [(0, b"a"), (-1 << 63, b"b")], 1 << 62), (), options)
    reason = f"a compressed message at offset {1 << 62} whose last message is number {-1 << 63}"
    assert (bad.rows, bad.error) == ([], (CorruptMessage, "t/3", 0, f"entry at offset {1 << 62}: {reason}"))


def test_a_wrapper_whose_time_the_broker_set_gives_it_to_all() -> None:
    assert [row[1:3] for row in read(wrapper(1, [(0, b"a"), (1, b"b")], 9, attributes=9)).rows] == [(77, 1)] * 2
    assert [row[1:3] for row in read(wrapper(1, [(0, b"a"), (1, b"b")], 9)).rows] == [(5, 0)] * 2
    assert [row[1:3] for row in read(entry(1, 3, b"x", 8)).rows] == [(5, 1)]


def test_one_answer_may_mix_all_formats() -> None:
    data = entry(0, 0, b"a", 0) + entry(1, 1, b"b", 0) + wrapper(1, [(0, b"c"), (1, b"d")], 3) + batch(b"e", base=4)
    reading = read(data)
    assert [(row[0], row[2], row[4]) for row in reading.rows] == [
        (0, -1, b"a"), (1, 0, b"b"), (2, 0, b"c"), (3, 0, b"d"), (4, 0, b"e")
    ]  # fmt: skip


def test_the_partial_tail_is_forgotten_when_the_next_answer_begins() -> None:
    first, second = batch(b"a", base=0), batch(b"b", base=1)
    decoder = RecordDecoder(PARTITION, Position(0), DecoderOptions())
    decoder.start_response()
    decoder.feed(memoryview(first + second[:30]))
    assert (decoder.partial_bytes, decoder.pending_bytes, decoder.fetch_position) == (30, 30 + len(first), 1)
    decoder.start_response()
    decoder.feed(memoryview(second))
    assert list(decoder.take().values) == [b"a", b"b"]
    assert (decoder.partial_bytes, decoder.position, decoder.error) == (0, 2, None)


def test_what_fills_an_answer_after_down_conversion_is_ignored() -> None:
    filler = struct.pack(">qi", -1, 1 << 30) + bytes(20)
    data = entry(1, 0, b"a", 0) + filler
    for cuts in ((), range(len(data))):
        assert offsets(data, cuts=cuts) == [0]
    decoder = RecordDecoder(PARTITION, Position(0), DecoderOptions())
    decoder.feed(memoryview(data))
    decoder.feed(memoryview(data))
    assert (decoder.partial_bytes, decoder.error) == (0, None)
    decoder.start_response()
    decoder.feed(memoryview(entry(1, 1, b"b", 0)))
    assert list(decoder.take().values) == [b"a", b"b"]


def test_reset_forgets_everything_and_goes_on_elsewhere() -> None:
    decoder = RecordDecoder(PARTITION, Position(0), DecoderOptions())
    decoder.feed(memoryview(batch(b"a") + b"\0" * 12))
    assert isinstance(decoder.error, CorruptMessage)
    assert "at 0" in repr(decoder)
    assert "length field says 0" in repr(decoder)
    decoder.reset(Position(40))
    decoder.feed(memoryview(batch(b"b", base=40)))
    assert decoder.position == 40
    assert list(decoder.take().values) == [b"b"]
    assert (decoder.position, decoder.pending_bytes) == (41, 0)
    assert not decoder.error


# ---- leader epochs ------------------------------------------------------------------------------------------


def of_epoch(epoch: int, data: bytes) -> bytes:
    """Return a batch as the leader of this epoch stores it: the checksum does not cover it."""
    return data[:12] + epoch.to_bytes(4, "big", signed=True) + data[16:]


def epochs_read(data: bytes, cuts: Sequence[int], options: DecoderOptions, start: int) -> tuple[list[EpochSpan], int]:
    decoder = RecordDecoder(PARTITION, Position(start), options)
    decoder.start_response()
    for chunk in chunks(data, cuts):
        decoder.feed(chunk)
    decoder.decompress_deferred()
    decoder.take()
    return decoder.take_epochs(), decoder.leader_epoch


@pytest.mark.parametrize("compression", [CompressionType.NONE, GZIP])
@pytest.mark.parametrize("options", [DecoderOptions(), LATER])
@pytest.mark.parametrize("cuts", [(), (30,), range(0, 1000, 7)])
def test_every_record_has_the_epoch_of_its_own_batch(
    compression: CompressionType, options: DecoderOptions, cuts: Sequence[int]
) -> None:
    data = b"".join(
        of_epoch(epoch, batch(b"x", b"y", base=base, compression=compression))
        for base, epoch in ((4, 3), (6, 3), (8, 3), (12, 5), (20, 6))  # with holes that compaction has left
    )
    assert epochs_read(data, cuts, options, 5) == ([(4, 12, 3), (12, 20, 5), (20, 22, 6)], 6)


def test_epochs_are_taken_once_and_go_on_behind_them() -> None:
    decoder = RecordDecoder(PARTITION, Position(0), DecoderOptions())
    for base, expected in ((0, [(0, 1, 3)]), (5, [(1, 6, 3)])):
        decoder.start_response()
        decoder.feed(memoryview(of_epoch(3, batch(b"x", base=base))))
        assert decoder.take_epochs() == expected
        assert decoder.take_epochs() == []
        assert decoder.leader_epoch == 3


def test_behind_a_damaged_batch_the_epoch_is_not_known() -> None:
    """That of the batch before it would have the log taken for truncated where the damaged one begins another epoch."""
    damaged = bytearray(of_epoch(4, batch(b"b", base=1)))
    damaged[-1] ^= 1
    data = of_epoch(3, batch(b"a")) + bytes(damaged)
    assert epochs_read(data, (), SKIP, 0) == ([(0, 1, 3)], -1)
    assert epochs_read(data + of_epoch(4, batch(b"c", base=2)), (), SKIP, 0) == ([(0, 1, 3), (2, 3, 4)], 4)


def test_a_deferred_batch_hides_the_epoch_of_the_one_before_it() -> None:
    decoder = RecordDecoder(PARTITION, Position(0), LATER)
    decoder.start_response()
    decoder.feed(memoryview(of_epoch(3, batch(b"a"))))
    assert decoder.leader_epoch == 3
    decoder.feed(memoryview(of_epoch(4, batch(b"b", base=1, compression=GZIP))))
    assert decoder.leader_epoch == -1
    decoder.decompress_deferred()
    assert decoder.leader_epoch == 4


def test_old_formats_have_no_epoch() -> None:
    data = of_epoch(3, batch(b"a")) + entry(1, 1, b"b", 0) + entry(0, 2, b"c", 0)
    assert epochs_read(data, (), DecoderOptions(), 0) == ([(0, 1, 3)], -1)


def test_a_reset_to_where_it_is_keeps_the_epoch_and_any_other_forgets_it() -> None:
    decoder = RecordDecoder(PARTITION, Position(7), DecoderOptions(), 2)
    decoder.reset(Position(7))
    assert decoder.leader_epoch == 2
    decoder.feed(memoryview(of_epoch(3, batch(b"a", base=7))))
    decoder.take()
    decoder.reset(Position(8))
    assert decoder.leader_epoch == 3
    decoder.reset(Position(7))
    assert (decoder.leader_epoch, decoder.take_epochs()) == (-1, [])


# ---- transactions -------------------------------------------------------------------------------------------


def test_control_batches_are_shown_to_the_filter_and_to_nobody_else() -> None:
    seen: list[tuple[int, int, bool, int | None]] = []

    def committed(header: BatchHeader, control: int | None) -> bool:
        seen.append((header.last_offset, header.producer_id, header.is_transactional, control))
        return header.producer_id != 7

    data = (
        batch(b"aborted", base=0, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
        + batch(b"kept", base=1, compression=ZSTD)
        + marker(2, 0, 7)
        + marker(3, 9, 8)
    )
    for options in (DecoderOptions(), LATER):
        seen.clear()
        reading = read(data, options=options, is_visible=committed)
        assert [row[4] for row in reading.rows] == [b"kept"]
        assert reading.fetch_position == 4
        assert seen == [(0, 7, True, None), (2, 7, True, 0), (3, 8, True, 9)]


def test_an_empty_control_batch_is_of_no_known_type() -> None:
    seen: list[int | None] = []

    def shown(_: BatchHeader, control: int | None) -> bool:
        seen.append(control)
        return True

    data = bytearray(empty_batch(4, 0))
    data[22] |= 32
    assert read(with_checksums(data), is_visible=shown).fetch_position == 5
    assert seen == [-1]


def test_a_control_batch_that_cannot_be_read_is_damage() -> None:
    reading = read(batch(b"x", base=3, keys=[b"\0"], is_control=True))
    assert reading.error == (
        CorruptMessage, "t/3", 0, "entry at offset 3: a control batch whose record cannot be read"
    )  # fmt: skip


def test_the_delete_horizon_of_a_batch_is_known() -> None:
    data = bytearray(batch(b"x", timestamps=[1234]))
    assert batch_header(memoryview(data)).delete_horizon is None
    data[22] |= 64
    assert batch_header(memoryview(with_checksums(data))).delete_horizon == 1234


# ---- damage -------------------------------------------------------------------------------------------------


def damaged(data: bytes, at: int = -1) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


THREE = batch(b"a", base=0) + damaged(batch(b"b", b"c", base=1)) + batch(b"d", base=3)


def test_damage_ends_the_partition_behind_what_came_before_it() -> None:
    decoder = RecordDecoder(PARTITION, Position(0), DecoderOptions())
    decoder.feed(memoryview(THREE))
    error = decoder.error
    assert isinstance(error, CorruptMessage)
    assert str(error) == (
        't/3 at 1: entry at offset 1: CRC mismatch (corrupt="skip" continues behind it, corrupt="raw" hands over its '
        "bytes)"
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert list(decoder.take().values) == [b"a"]
    assert decoder.position == 1


def test_a_damaged_batch_is_left_out_and_reported() -> None:
    reading = read(THREE, options=SKIP)
    assert [row[4] for row in reading.rows] == [b"a", b"d"]
    assert reading.reports == [("t/3", 1, "entry at offset 1: CRC mismatch")]
    assert reading.fetch_position == 4


def test_a_damaged_batch_is_handed_over_as_it_is() -> None:
    reading = read(THREE, options=RAW)
    assert [(row[0], row[2]) for row in reading.rows] == [(0, 0), (1, -1), (3, 0)]
    assert reading.rows[1][4] == damaged(batch(b"b", b"c", base=1))
    assert (reading.next_positions, list(reading.corrupt)) == ([1, 3, 4], [1])


def test_damage_in_a_header_never_hides_the_batches_behind_it() -> None:
    far = bytearray(batch(b"b", base=1))
    far[23] = 0x70  # the last offset delta, under a CRC that does not match any more
    reading = read(batch(b"a") + bytes(far) + batch(b"c", base=2), options=SKIP)
    assert [row[4] for row in reading.rows] == [b"a", b"c"]
    assert read(bytes(far), options=SKIP, start=1).fetch_position == 2


def test_a_damaged_batch_of_which_compaction_left_some_records_is_skipped_as_a_whole() -> None:
    data = damaged(batch(b"a", b"b", base=10, last_delta=499))
    assert read(data, options=SKIP, start=10).fetch_position == 510
    later = DecoderOptions(corrupt="skip", defer_decompression=True)
    packed = damaged(batch(b"a", b"b", base=10, last_delta=499, compression=LZ4))
    assert read(packed, options=later, start=10).fetch_position == 510


@pytest.mark.parametrize(("count", "last_delta"), [(0, 499), (2, 0), (2, (1 << 31) - 1), (-1, 5)])
def test_damaged_headers_that_cannot_be_move_the_position_by_one(count: int, last_delta: int) -> None:
    data = bytearray(batch(b"a", b"b", base=10, last_delta=last_delta))
    data[57:61] = count.to_bytes(4, "big", signed=True)
    assert read(damaged(bytes(data)), options=SKIP, start=10).fetch_position == 11


def test_records_in_front_of_damage_inside_a_batch_are_delivered() -> None:
    data = bytearray(batch(b"aa", b"bb", b"cc", base=10))
    data[-5] = 0x7F  # the length of the last value
    whole = with_checksums(data)
    failed = read(whole, start=10)
    assert failed.error == (CorruptMessage, "t/3", 12, "entry at offset 10: record 3 of 3 is damaged or missing")
    assert ([row[0] for row in failed.rows], failed.position) == ([10, 11], 12)
    raw = read(whole, options=RAW)
    assert [row[0] for row in raw.rows] == [10, 11, 12]
    assert (raw.rows[2][4], raw.next_positions) == (whole, [11, 12, 13])


def test_bytes_behind_the_last_record_are_damage() -> None:
    data = bytearray(batch(b"a", base=10) + b"more")
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    reading = read(with_checksums(data), options=SKIP, start=10)
    assert reading.reports == [("t/3", 10, "entry at offset 10: 4 bytes behind 1 records")]
    assert (reading.next_positions, reading.fetch_position) == ([11], 11)


@pytest.mark.parametrize(
    ("at", "change", "reason"),
    [
        (22, 7, "unknown compression 7"),
        (23, 0x80, "offsets 5 to -2147483643, which cannot be"),
        (57, 0x80, "-2147483647 records"),
    ],
)
def test_headers_that_cannot_be_are_damage(at: int, change: int, reason: str) -> None:
    data = bytearray(batch(b"a", base=5))
    data[at] |= change
    assert read(with_checksums(data), start=5).error == (CorruptMessage, "t/3", 5, f"entry at offset 5: {reason}")


def test_a_damaged_message_inside_a_wrapper_is_one_row() -> None:
    plain = entry(1, 0, b"a", 0) + damaged(entry(1, 1, b"b", 0)) + entry(1, 2, b"c", 0)
    data = entry(1, 12, gzip.compress(plain), 1)
    assert read(data).error == (CorruptMessage, "t/3", 11, "entry at offset 11: CRC mismatch")
    skipped = read(data, options=SKIP)
    assert ([row[4] for row in skipped.rows], len(skipped.reports)) == ([b"a", b"c"], 1)
    raw = read(data, options=RAW)
    assert [row[0] for row in raw.rows] == [10, 11, 12]
    assert raw.rows[1][4] == damaged(entry(1, 1, b"b", 0))


def test_damage_that_was_not_asked_for_is_not_reported() -> None:
    assert read(THREE, options=SKIP, start=3).reports == []


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        (b"", "a compressed message with nothing in it"),
        (entry(1, 0, b"x", 0)[:-1], "the messages inside a compressed one do not fill it"),
        (entry(1, 0, b"x", 1), "a compressed message inside a compressed one"),
        (b"\0" * 16 + b"\2" + b"\0" * 60, "a message of magic 2 inside a compressed one"),
    ],
)
def test_wrappers_hold_nothing_but_plain_messages(inner: bytes, reason: str) -> None:
    data = entry(1, 4, gzip.compress(inner), 1)
    assert read(data).error == (CorruptMessage, "t/3", 0, f"entry at offset 4: {reason}")


def test_messages_whose_fields_do_not_fit_are_damage() -> None:
    def put(body: bytes) -> bytes:
        return struct.pack(">qiI", 3, len(body) + 4, crc32(body)) + body

    def reason(body: bytes) -> object:
        return read(put(body)).error[-1]

    assert (
        reason(b"\0\0" + b"\xff" * 4 + b"\0\0\0\1ab") == "entry at offset 3: the fields of the message do not fill it"
    )
    assert reason(b"\0\1" + b"\xff" * 8) == "entry at offset 3: a compressed message whose value does not fill it"
    assert reason(b"\0\1" + b"\x7f" * 8) == f"entry at offset 3: a key of {0x7F7F7F7F} bytes in a message of 26"
    assert (
        reason(b"\0\4" + b"\xff" * 4 + bytes(4))
        == "entry at offset 3: compression 4 in magic 0, which does not have it"
    )
    far = entry(0, (1 << 63) - 1, b"x", 0)
    assert read(far).error[-1] == f"entry at offset {(1 << 63) - 1}: an offset that cannot be"
    assert read(far, options=RAW).next_positions == [(1 << 63) - 1]


def test_lengths_and_magics_that_cannot_be_are_always_errors() -> None:
    good = batch(b"a")
    for head, reason in [
        (struct.pack(">qiib", 1, 13, 0, 2), "an entry whose length field says 13"),
        (struct.pack(">qiib", 1, 48, 0, 2), "an entry whose length field says 48"),
        (struct.pack(">qiib", 1, 99, 0, 3), "unknown magic 3"),
    ]:
        for options in (DecoderOptions(), SKIP, RAW, LATER):
            for first in (good, batch(b"a", compression=LZ4)):
                reading = read(first + head, options=options)
                assert (reading.error, len(reading.rows)) == ((CorruptMessage, "t/3", 1, reason), 1)


def test_what_no_option_passes_over_does_not_advise_one() -> None:
    decoder = RecordDecoder(PARTITION, Position(0), SKIP)
    decoder.feed(memoryview(batch(b"a") + struct.pack(">qiib", 1, 13, 0, 2)))
    assert decoder.error is not None
    assert decoder.error.hint == "nothing says where the next one begins: read on from a later offset"


def test_entries_over_the_limit_are_errors_before_they_are_whole() -> None:
    head = struct.pack(">qiib", 8, 1 << 20, 0, 2)
    reading = read(head, options=DecoderOptions(max_message_bytes=1000))
    assert reading.error == (MessageTooLarge, "t/3", 8, (1 << 20) + 12, 1000, "max_message_bytes")


@pytest.mark.parametrize("compression", list(CompressionType)[1:])
def test_what_grows_beyond_the_limit_is_damage(compression: CompressionType) -> None:
    options = DecoderOptions(max_decompressed_bytes=5000)
    data = batch(bytes(100_000), compression=compression)
    assert "grows beyond 5000 bytes" in str(read(data, options=options).error)
    if compression is not ZSTD:
        old = encode_message_set([bytes(100_000)], compression=compression)
        assert "more than" in str(read(old, options=options).error)
    rows = encode_message_set([b""] * 200, compression=GZIP)
    assert "grows beyond 10000 bytes" in str(read(rows, options=DecoderOptions(max_decompressed_bytes=10_000)).error)
    assert "grows beyond 5000 bytes" in str(read(batch(*[b""] * 200, compression=compression), options=options).error)


def read_in_parts(data: bytes, decoder: RecordDecoder, size: int) -> list[list[int]]:
    """Read a log as fetches do, each from `fetch_position` on: the offsets that each brings."""
    parts = list[list[int]]()
    while not parts or parts[-1]:
        start = next((at for at in entry_starts(data) if next_offset(data, at) > decoder.fetch_position), len(data))
        decoder.start_response()
        for chunk in chunks(data[start:], range(size, len(data), size)):
            decoder.feed(chunk)
        decoder.decompress_deferred()
        assert decoder.pending_bytes < 15_000
        parts.append(list(decoder.take().positions))
    return parts[:-1]


def entry_starts(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        yield at
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")


def next_offset(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "big") + 1


@pytest.mark.parametrize("size", [37, 1 << 20])
@pytest.mark.parametrize("defer", [False, True])
@pytest.mark.parametrize("compression", [None, *list(CompressionType)[1:]])
def test_a_response_grows_no_more_than_its_limit_and_the_rest_is_fetched_again(
    compression: CompressionType | None, defer: bool, size: int
) -> None:
    options = DecoderOptions(max_decompressed_bytes=10_000, defer_decompression=defer)
    if compression is None:
        data = b"".join(wrapper(1, [(0, bytes(4000))], offset) for offset in range(8))
    else:
        data = b"".join(batch(bytes(4000), base=offset, compression=compression) for offset in range(8))
    plain = batch(b"x", base=8)
    parts = read_in_parts(data + plain, RecordDecoder(PARTITION, Position(0), options), size)
    assert [offset for part in parts for offset in part] == list(range(9))
    assert [len(part) for part in parts] == [3, 3, 3]


def test_damage_behind_what_a_response_may_grow_to_is_an_error_of_the_next_one() -> None:
    good = [batch(bytes(4000), base=offset, compression=LZ4) for offset in range(4)]
    data = b"".join(good) + damaged(batch(b"x", base=4, compression=LZ4))
    decoder = RecordDecoder(PARTITION, Position(0), LATER._replace(max_decompressed_bytes=10_000))
    decoder.feed(memoryview(data))
    decoder.decompress_deferred()
    assert (list(decoder.take().positions), decoder.error, decoder.fetch_position) == ([0, 1, 2], None, 3)
    decoder.start_response()
    decoder.feed(memoryview(data[3 * len(good[0]) :]))
    decoder.decompress_deferred()
    assert list(decoder.take().positions) == [3]
    assert isinstance(decoder.error, CorruptMessage)


# ---- deferred decompression ---------------------------------------------------------------------------------


def test_compressed_batches_wait_and_everything_behind_them_too() -> None:
    first, second, third = batch(b"a"), batch(b"b", base=1, compression=LZ4), batch(b"c", base=2)
    decoder = RecordDecoder(PARTITION, Position(0), LATER)
    decoder.feed(memoryview(first + second + third))
    assert decoder.deferred_bytes == len(second) + len(third)
    assert (decoder.position, decoder.fetch_position) == (0, 3)
    assert list(decoder.take().values) == [b"a"]
    assert (decoder.position, decoder.pending_bytes) == (1, len(second) + len(third))
    decoder.decompress_deferred()
    assert list(decoder.take().values) == [b"b", b"c"]
    assert (decoder.deferred_bytes, decoder.position) == (0, 3)


def test_the_next_answer_may_begin_before_the_deferred_part_is_decompressed() -> None:
    decoder = RecordDecoder(PARTITION, Position(0), LATER)
    decoder.start_response()
    decoder.feed(memoryview(batch(b"a", b"b", compression=ZSTD)))
    decoder.start_response(lambda header, _: header.base_offset != 2)
    hidden = batch(b"hidden", base=2, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    decoder.feed(memoryview(hidden + entry(1, 3, b"c", 0)))
    decoder.decompress_deferred()
    assert list(decoder.take().values) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "last", [wrapper(1, [(0, b"a")], (1 << 63) - 1), batch(b"x", base=(1 << 63) - 1, compression=GZIP)]
)
def test_no_deferred_entry_moves_the_next_fetch_beyond_all_offsets(last: bytes) -> None:
    decoder = RecordDecoder(PARTITION, Position(0), SKIP._replace(defer_decompression=True))
    decoder.start_response()
    decoder.feed(memoryview(last))
    assert decoder.fetch_position == (1 << 63) - 1
    decoder.decompress_deferred()
    assert decoder.fetch_position == (1 << 63) - 1


def test_damage_stops_a_deferring_decoder_before_the_next_fetch_is_sent() -> None:
    decoder = RecordDecoder(PARTITION, Position(0), LATER)
    bad = damaged(batch(b"b", base=1, compression=LZ4))
    decoder.feed(memoryview(batch(b"a", compression=LZ4) + bad + batch(b"c", base=2)))
    assert (decoder.fetch_position, decoder.error) == (1, None)
    decoder.decompress_deferred()
    assert (list(decoder.take().values), decoder.position) == ([b"a"], 1)
    assert isinstance(decoder.error, CorruptMessage)


# ---- columns ------------------------------------------------------------------------------------------------


def test_columns_are_there_only_where_a_record_has_something_in_them() -> None:
    def columns(data: bytes) -> tuple[bool, ...]:
        decoder = RecordDecoder(PARTITION, Position(0), DecoderOptions())
        decoder.feed(memoryview(data))
        taken = decoder.take()
        assert taken.inner_indexes is None
        wanted = (taken.keys, taken.headers, taken.timestamps, taken.timestamp_types)
        return tuple(column is not None for column in wanted)

    assert columns(entry(0, 0, b"x", 0)) == (False, False, False, False)
    assert columns(batch(b"x")) == (False, False, True, True)
    assert columns(batch(b"x", keys=[b""])) == (True, False, True, True)
    assert columns(batch(b"x", headers=[(("a", None),)])) == (False, True, True, True)


def test_the_compiled_engine_packs_columns() -> None:
    engine.use("compiled")
    decoder = RecordDecoder(PARTITION, Position(0), DecoderOptions())
    plain = batch(b"x", base=0)
    rest = batch(b"y", None, base=1, keys=[b"k", None], headers=[(), (("a", None), ("b", b"c"))], timestamps=[5, 6])
    decoder.feed(memoryview(plain + rest))
    taken = decoder.take()
    assert isinstance(taken.values, PackedBytes)
    assert isinstance(taken.keys, PackedBytes)
    assert isinstance(taken.headers, HeaderColumns)
    assert taken.values == [b"x", b"y", None]
    assert taken.keys == [None, b"k", None]
    assert taken.headers == [(), (), (("a", None), ("b", b"c"))]
    assert isinstance(taken.timestamps, memoryview)
    assert isinstance(taken.timestamp_types, memoryview)
    assert (taken.timestamps.format, taken.timestamp_types.format) == ("q", "b")


def test_names_of_headers_that_are_not_utf8_are_replaced_in_part() -> None:
    data = bytearray(batch(b"x", headers=[(("abc", b"v"),)]))
    data[data.index(b"abc") + 1] = 0xCB
    assert read(with_checksums(data)).rows[0][5] == (("a\N{REPLACEMENT CHARACTER}c", b"v"),)


def test_how_to_treat_damage_is_one_of_three() -> None:
    with pytest.raises(ConfigError, match="'lose' is not one of fail, skip, raw"):
        RecordDecoder(PARTITION, Position(0), DecoderOptions(corrupt="lose"))
