"""Batches that stay encoded: the same rows as decoded ones, and passed on as they are."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.kafka.record_sets import rows_of
from tests.kafka_logs import with_crc
from tests.wire.kafka.records import fuzz
from tests.wire.kafka.records.reading import PARTITION, chunks, read

from odradek.core.interfaces import DecoderOptions
from odradek.errors import ConfigError, CorruptMessage
from odradek.types import Columns, Position
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records import encoded, entries
from odradek.wire.kafka.records.batch import batch_header
from odradek.wire.kafka.records.decoder import RecordDecoder
from odradek.wire.kafka.records.encode import encode_batch, encode_message_set, passed_on

pytestmark = pytest.mark.usefixtures("either_engine")

LARGE = encoded.MIN_BYTES
KEEP_LZ4 = DecoderOptions(keep_encoded="lz4", defer_decompression=True)
KEEP_PLAIN = DecoderOptions(keep_encoded="none")
noise = random.Random(5).randbytes


def large(base: int = 0, *, rows: int = 3, **options: Any) -> bytes:
    """Return a batch that may stay encoded."""
    values, times = [noise(LARGE) for _ in range(rows)], [7_000 + row for row in range(rows)]
    return encode_batch(values, timestamps=times, base_offset=base, **{"compression": CompressionType.LZ4, **options})


def small(base: int, **options: Any) -> bytes:
    return encode_batch([b"small"], timestamps=[9], base_offset=base, **options)


def taken(data: bytes, options: DecoderOptions = KEEP_LZ4, start: int = 0, cuts: Sequence[int] = ()) -> Columns:
    decoder = RecordDecoder(PARTITION, Position(start), options)
    decoder.start_response()
    for chunk in chunks(data, cuts):
        decoder.feed(chunk)
    decoder.decompress_deferred()
    assert decoder.error is None
    return decoder.take()


def kinds(columns: Columns) -> list[tuple[bool, int]]:
    """Return of each part whether it is encoded, and how many rows it has."""
    return [(part.encoded is not None, len(part)) for part in columns.parts]


def changed(data: bytes, **fields: bytes) -> bytes:
    """Return a batch with other bytes in some places (`at_N`), and the CRC for them."""
    made = bytearray(data)
    for name, value in fields.items():
        at = int(name.removeprefix("at_"))
        made[at : at + len(value)] = value
    return with_crc(bytes(made))


# ---- what stays encoded ------------------------------------------------------------------------------------------


def test_a_large_batch_is_handed_over_as_it_is() -> None:
    data = large(10)
    columns = taken(data, start=10)
    assert columns.encoded == (data, 3, 10, CompressionType.LZ4, 7002)
    assert kinds(columns) == [(True, 3)]
    assert (len(columns), list(columns.positions), list(columns.next_positions)) == (3, [10, 11, 12], [11, 12, 13])
    assert columns.payload_bytes == columns.memory_bytes == len(data)
    assert rows_of(columns) == read(data).rows


@pytest.mark.parametrize(
    ("data", "start"),
    [
        (large(compression=CompressionType.GZIP), 0),
        (small(0, compression=CompressionType.LZ4), 0),
        (large(), 1),
        (changed(large(), at_23=(3).to_bytes(4, "big")), 0),
        (changed(large(), at_21=(CompressionType.LZ4 | 8).to_bytes(2, "big")), 0),
        (changed(large(), at_21=(CompressionType.LZ4 | 64).to_bytes(2, "big")), 0),
        (encode_batch([noise(LARGE)], compression=CompressionType.LZ4), 0),
        (encode_message_set([noise(LARGE)], magic=1, compression=CompressionType.LZ4), 0),
    ],
    ids=["other compression", "small", "begun", "compacted", "append time", "delete horizon", "no times", "magic 1"],
)
def test_what_another_log_would_not_take_as_it_is_is_decoded(data: bytes, start: int) -> None:
    columns = taken(data, start=start)
    assert columns.encoded is None and kinds(columns) == [(False, len(columns))]
    assert rows_of(columns) == read(data, start=start).rows != []


@pytest.mark.parametrize("options", [KEEP_LZ4, KEEP_LZ4._replace(defer_decompression=False)])
def test_parts_are_in_the_order_of_the_log(options: DecoderOptions) -> None:
    data = small(0) + small(1) + large(2) + large(5, rows=2) + small(7) + large(8, compression=CompressionType.ZSTD)
    columns = taken(data, options)
    assert kinds(columns) == [(False, 2), (True, 3), (True, 2), (False, 4)]
    assert list(columns.positions) == list(range(11))
    assert rows_of(columns) == read(data).rows


def test_plain_batches_stay_encoded_too_if_they_are_large() -> None:
    data = b"".join([small(0), small(1), large(2, compression=CompressionType.NONE), small(5), large(6)])
    columns = taken(data, KEEP_PLAIN)
    assert kinds(columns) == [(False, 2), (True, 3), (False, 4)]
    assert rows_of(columns) == read(data).rows


def test_control_batches_and_hidden_transactions_are_left_out() -> None:
    marker = encode_batch([bytes(6)], [b"\0\0\0\1"], base_offset=3, producer_id=5, is_control=True)
    data = large(0, producer_id=5, is_transactional=True) + marker + large(4, producer_id=6, is_transactional=True)
    decoder = RecordDecoder(PARTITION, Position(0), KEEP_LZ4)
    decoder.start_response(lambda batch, _: batch.producer_id == 5)
    decoder.feed(memoryview(data))
    decoder.decompress_deferred()
    columns = decoder.take()
    assert kinds(columns) == [(True, 3)] and columns.positions[0] == 0
    assert decoder.position == decoder.fetch_position == 7


def test_a_checksum_is_checked() -> None:
    data = bytearray(large())
    data[-1] ^= 1
    decoder = RecordDecoder(PARTITION, Position(0), KEEP_LZ4)
    decoder.start_response()
    decoder.feed(memoryview(data))
    decoder.decompress_deferred()
    assert isinstance(decoder.error, CorruptMessage) and "CRC mismatch" in str(decoder.error)
    assert len(decoder.take()) == 0


@pytest.mark.parametrize("corrupt", ["skip", "raw"])
def test_damage_that_is_found_late_cannot_be_left_out(corrupt: str) -> None:
    with pytest.raises(ConfigError, match="keep_encoded needs corrupt='fail'"):
        RecordDecoder(PARTITION, Position(0), KEEP_LZ4._replace(corrupt=corrupt))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (changed(large(), at_61=b"\xff" * 8), "lz4"),
        (
            changed(
                large(compression=CompressionType.NONE), at_57=(2).to_bytes(4, "big"), at_23=(1).to_bytes(4, "big")
            ),
            "2 of 2",
        ),
        (changed(large(compression=CompressionType.NONE), at_61=b"\xff" * 8), "0 of 3 records"),
        (changed(large(), at_57=(9).to_bytes(4, "big"), at_23=(8).to_bytes(4, "big")), "3 of 9 records"),
    ],
    ids=["compressed", "bytes behind", "record", "too few"],
)
def test_damage_inside_is_raised_when_records_are_asked_for(data: bytes, reason: str) -> None:
    columns = taken(data, DecoderOptions(keep_encoded="lz4" if data[22] else "none"))
    assert columns.encoded is not None
    for name in ("values", "keys", "timestamps"):
        with pytest.raises(CorruptMessage, match=reason) as raised:
            getattr(columns, name)
        assert (raised.value.partition, raised.value.position) == (str(PARTITION), 0)


@pytest.mark.parametrize("count", [(1 << 20) + 1, (1 << 31) - 1])
def test_more_records_than_can_be_are_no_reason_to_keep_a_batch(count: int) -> None:
    fields = {"at_57": count.to_bytes(4, "big"), "at_23": (count - 1).to_bytes(4, "big")}
    decoder = RecordDecoder(PARTITION, Position(0), KEEP_LZ4)
    decoder.start_response()
    decoder.feed(memoryview(changed(large(), **fields)))
    decoder.decompress_deferred()
    assert isinstance(decoder.error, CorruptMessage)
    assert len(decoder.take()) <= 3


def test_hostile_bytes_are_read_or_refused_as_without_keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "MIN_BYTES", 1)
    monkeypatch.setattr(entries, "MIN_BYTES", 1)
    kept = 0
    for number, data in enumerate(fuzz.inputs(1500, 11)):
        compression = ("none", "gzip", "snappy", "lz4", "zstd")[number % 5]
        options = fuzz.MODES[0]._replace(keep_encoded=compression, defer_decompression=bool(number & 8))
        decoder = RecordDecoder(PARTITION, Position(0), options)
        decoder.start_response()
        for chunk in chunks(data, [len(data) // 3]):
            decoder.feed(chunk)
        decoder.decompress_deferred()
        parts, rows, damage = decoder.take().parts, [], None
        for part in parts:
            kept += part.encoded is not None
            try:
                rows += rows_of(part)
            except CorruptMessage as error:
                damage = error
                break
        expected = read(data, (), fuzz.MODES[0])
        if damage is None:
            assert (rows, decoder.position) == (expected.rows, expected.position)
            assert (decoder.error is None) == (expected.error == ())
        else:
            assert rows == expected.rows[: len(rows)] and expected.error != ()
    assert kept > 50


# ---- rows of them ------------------------------------------------------------------------------------------------


def test_whole_batches_stay_encoded_in_a_slice() -> None:
    columns = taken(small(0) + large(1) + large(4) + large(7))
    assert kinds(columns.slice(1, 7)) == [(True, 3), (True, 3)]
    assert kinds(columns.slice(2, 8)) == [(False, 2), (True, 3), (False, 1)]
    assert kinds(columns.slice(4, 7)) == [(True, 3)] and columns.slice(4, 7).encoded is not None
    assert list(columns.slice(2, 8).positions) == list(range(2, 8))
    assert len(columns.slice(3, 3)) == 0 and rows_of(columns.slice(3, 3)) == []


def test_encoded_and_decoded_parts_are_joined() -> None:
    first, second, third = taken(large(0)), taken(small(3)), taken(small(4) + large(5))
    joined = Columns.concat([first, second, third])
    assert kinds(joined) == [(True, 3), (False, 1), (False, 1), (True, 3)]
    assert rows_of(joined) == [row for part in (first, second, third) for row in rows_of(part)]
    assert kinds(Columns.concat([second, first])) == [(False, 1), (True, 3)]


def test_pickled_columns_are_decoded() -> None:
    columns = taken(large(0) + small(3))
    assert rows_of(pickle.loads(pickle.dumps(columns))) == rows_of(columns)


@given(
    st.lists(st.sampled_from(["small", "lz4", "gzip", "plain", "gap"]), max_size=6),
    st.sampled_from(["lz4", "none", "gzip"]),
    st.integers(0, 12),
    st.lists(st.integers(0, 300_000), max_size=4),
    st.data(),
)
def test_any_log_reads_the_same(kept: list[str], keep: str, start: int, cuts: list[int], data: st.DataObject) -> None:
    log, offset = b"", 0
    for kind in kept:
        if kind == "small":
            log, offset = log + small(offset), offset + 1
        elif kind == "gap":
            offset += 2
        else:
            compression = CompressionType.named("none" if kind == "plain" else kind)
            log, offset = log + large(offset, rows=2, compression=compression), offset + 2
    options = DecoderOptions(keep_encoded=keep, defer_decompression=bool(offset % 2))
    expected = read(log, start=start)
    assert read(log, cuts, options, start) == expected
    columns = taken(log, options, start, cuts)
    first = data.draw(st.integers(0, len(columns)))
    stop = data.draw(st.integers(first, len(columns)))
    assert rows_of(columns.slice(first, stop)) == expected.rows[first:stop]
    assert rows_of(Columns.concat([columns.slice(0, first), columns.slice(first, len(columns))])) == expected.rows


# ---- passed on ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize(
    "was", [{}, {"producer_id": 9, "producer_epoch": 3, "base_sequence": 77, "is_transactional": True}]
)
def test_a_batch_is_passed_on_with_the_records_it_had(transactional: bool, was: dict[str, Any]) -> None:
    data = changed(large(1000, **was), at_12=b"\0\0\0\x05")
    made = passed_on(data, 11, 2, 40, is_transactional=transactional)
    header, before = batch_header(memoryview(made)), batch_header(memoryview(data))
    assert (header.base_offset, header.leader_epoch) == (0, -1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (11, 2, 40)
    assert header.is_transactional is transactional and header.compression == CompressionType.LZ4
    assert (header.record_count, header.max_timestamp) == (before.record_count, before.max_timestamp)
    assert made[61:] == data[61:]
    assert [row[1:] for row in read(made).rows] == [row[1:] for row in read(data, start=1000).rows]


def test_a_batch_of_its_own_producer_is_the_bytes_that_it_was() -> None:
    mine = {"producer_id": 11, "producer_epoch": 2, "base_sequence": 40, "is_transactional": True}
    data = large(**mine)
    assert passed_on(data, 11, 2, 40, is_transactional=True) == data


def test_the_least_size_is_what_the_decoder_goes_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "MIN_BYTES", 1)
    monkeypatch.setattr(entries, "MIN_BYTES", 1)
    assert kinds(taken(small(0) + small(1), KEEP_PLAIN)) == [(True, 1), (True, 1)]
