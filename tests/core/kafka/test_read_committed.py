"""The filter over aborted transactions, alone and in the decoder of a fetched log."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from odradek.core.interfaces import DecoderOptions
from odradek.core.kafka.read_committed import ABORT_MARKER, COMMIT_MARKER, committed_only
from odradek.types import Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.messages.data import AbortedTransaction
from odradek.wire.kafka.records.batch import BatchHeader, batch_header
from odradek.wire.kafka.records.decoder import RecordDecoder
from odradek.wire.kafka.records.encode import encode_batch

Step = tuple[BatchHeader, int | None]

UNKNOWN_MARKER = 99


def aborted(*entries: tuple[int, int]) -> list[AbortedTransaction]:
    return [AbortedTransaction(producer_id=producer, first_offset=offset) for producer, offset in entries]


def written(offset: int, producer: int, compression: CompressionType = CompressionType.NONE) -> bytes:
    """Return a batch of one record, in a transaction if there is a producer."""
    return encode_batch(
        [b"%d" % offset],
        base_offset=offset,
        producer_id=producer,
        is_transactional=producer >= 0,
        compression=compression,
    )


def ended(offset: int, producer: int, control_type: int) -> bytes:
    key = struct.pack(">hh", 0, control_type)
    return encode_batch(
        [bytes(6)], [key], base_offset=offset, producer_id=producer, is_transactional=True, is_control=True
    )


def data(offset: int, producer: int = -1) -> Step:
    return batch_header(memoryview(written(offset, producer))), None


def marker(offset: int, producer: int, control_type: int) -> Step:
    return batch_header(memoryview(ended(offset, producer, control_type))), control_type


def visible(steps: list[Step], *entries: tuple[int, int]) -> list[bool]:
    is_visible = committed_only(aborted(*entries))
    return [is_visible(batch, control_type) for batch, control_type in steps]


def test_two_interleaved_producers_of_which_one_aborts() -> None:
    batches = [
        data(0, 1),
        data(1, 2),
        data(2),
        data(3, 1),
        marker(4, 1, ABORT_MARKER),
        data(5, 2),
        marker(6, 2, COMMIT_MARKER),
        data(7, 1),  # the next transaction of the producer that aborted
    ]
    assert visible(batches, (1, 0)) == [False, True, True, False, False, True, False, True]


def test_a_transaction_counts_from_its_first_offset_on() -> None:
    batches = [data(4, 1), marker(5, 1, COMMIT_MARKER), data(9, 1), marker(10, 1, ABORT_MARKER)]
    assert visible(batches, (1, 6)) == [True, False, False, False]


def test_aborted_transactions_come_in_any_order() -> None:
    batches = [data(0, 1), marker(1, 1, ABORT_MARKER), data(2, 1), marker(3, 1, ABORT_MARKER)]
    assert visible(batches, (1, 2), (1, 0)) == [False] * 4


def test_control_batches_of_unknown_types_are_never_visible() -> None:
    batch, control_type = marker(0, -1, UNKNOWN_MARKER)
    assert not committed_only(None)(batch, control_type)


def decoded(*responses: tuple[bytes, list[AbortedTransaction] | None], deferred: bool = False) -> list[bytes | None]:
    """Return the values that a log decoder delivers of some responses, each read as committed or (None) as it is."""
    decoder = RecordDecoder(TopicPartition("t", 0), Position(0), DecoderOptions(defer_decompression=deferred))
    for records, transactions in responses:
        decoder.start_response(None if transactions is None else committed_only(transactions))
        decoder.feed(memoryview(records))
    decoder.decompress_deferred()
    assert decoder.error is None
    return list(decoder.take().values)


def test_a_log_decoder_delivers_committed_records_only() -> None:
    log = b"".join(
        [written(0, 1), written(1, 2), written(2, -1), ended(3, 1, ABORT_MARKER), ended(4, 2, COMMIT_MARKER)]
    )
    assert decoded((log, aborted((1, 0)))) == [b"1", b"2"]
    assert decoded((log, None)) == [b"0", b"1", b"2"]


def test_every_response_has_its_own_aborted_transactions_even_if_decoding_is_deferred() -> None:
    zstd = CompressionType.ZSTD
    first = written(0, 1, zstd) + written(1, 2, zstd)
    second = written(2, 1, zstd) + ended(3, 1, ABORT_MARKER) + written(4, 1, zstd)
    for deferred in (False, True):
        assert decoded((first, aborted((1, 0))), (second, aborted((1, 0))), deferred=deferred) == [b"1", b"4"]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["data", "commit", "abort"])), max_size=40),
)
def test_exactly_the_data_of_aborted_transactions_is_hidden(steps: list[tuple[int, str]]) -> None:
    open_at: dict[int, list[int]] = {}
    batches: list[Step] = []
    expected: list[bool] = []
    entries: list[tuple[int, int]] = []
    for offset, (producer, step) in enumerate(steps):
        if step == "data":
            batches.append(data(offset, producer))
            open_at.setdefault(producer, []).append(offset)
            expected.append(True)
            continue
        offsets = open_at.pop(producer, [])
        if step == "abort" and offsets:
            entries.append((producer, offsets[0]))
            for hidden in offsets:
                expected[hidden] = False
        batches.append(marker(offset, producer, ABORT_MARKER if step == "abort" else COMMIT_MARKER))
        expected.append(False)
    assert visible(batches, *entries) == expected
