"""What a decoder delivers of transactions, by what the response to its fetch says of them."""

from __future__ import annotations

import pytest

from odradek import engine as engines
from odradek.core.interfaces import DecoderOptions
from odradek.core.kafka.leader_epochs import LeaderEpochs
from odradek.core.kafka.read_committed import ABORT_MARKER, COMMIT_MARKER
from odradek.io.kafka.log_decoder import KafkaLogDecoder
from odradek.types import Position, TopicPartition
from odradek.wire.kafka.messages.data import AbortedTransaction
from odradek.wire.kafka.records.encode import encode_batch

PRODUCER, OTHER = 7, 8


def batch(value: bytes, base: int, producer: int) -> bytes:
    return encode_batch([value], producer_id=producer, producer_epoch=0, is_transactional=True, base_offset=base)


def marker(base: int, producer: int, kind: int) -> bytes:
    key = bytes((0, 0, 0, kind))
    fields = {"producer_id": producer, "producer_epoch": 0, "base_offset": base}
    return encode_batch([bytes(6)], [key], is_transactional=True, is_control=True, **fields)  # type: ignore[arg-type]


LOG = (
    encode_batch([b"plain"])
    + batch(b"one", 1, PRODUCER)
    + batch(b"two", 2, OTHER)
    + marker(3, OTHER, ABORT_MARKER)
    + batch(b"three", 4, PRODUCER)
    + marker(5, PRODUCER, COMMIT_MARKER)
    + batch(b"four", 6, OTHER)
)
ALL = [b"plain", b"one", b"two", b"three", b"four"]
TWO_ABORTED = [AbortedTransaction(producer_id=OTHER, first_offset=2)]


@pytest.mark.parametrize("defer", [False, True])
@pytest.mark.parametrize("name", ["pure", "compiled"])
@pytest.mark.parametrize(
    ("committed", "aborted", "expected"),
    [
        (False, None, ALL),
        (False, TWO_ABORTED, ALL),
        (True, TWO_ABORTED, [value for value in ALL if value != b"two"]),
        (True, [], ALL),  # what the broker does not name was committed
        (True, None, ALL),
    ],
)
def test_only_what_a_response_names_as_aborted_is_left_out(
    name: str, committed: bool, aborted: list[AbortedTransaction] | None, expected: list[bytes], defer: bool
) -> None:
    before = engines.active.NAME
    engines.use(name)
    try:
        options = DecoderOptions(read_committed=committed, defer_decompression=defer)
        decoder = KafkaLogDecoder(TopicPartition("t", 0), Position(0), options, LeaderEpochs())
        decoder.begin_response(aborted)
        decoder.feed(memoryview(LOG))
        decoder.decompress_deferred()
        taken = decoder.take()
        assert list(taken.values) == expected
        assert decoder.fetch_position == 7
    finally:
        engines.use(before)


@pytest.mark.parametrize(("length", "needed"), [(5000, 5012), (50_000, 10_000), (0x7FFFFFFF, 10_000)])
def test_no_more_of_an_entry_is_asked_for_than_a_message_may_have(length: int, needed: int) -> None:
    options = DecoderOptions(max_message_bytes=10_000)
    decoder = KafkaLogDecoder(TopicPartition("t", 0), Position(0), options, LeaderEpochs())
    decoder.begin_response(None)
    decoder.feed(memoryview(bytes(8) + length.to_bytes(4, "big") + bytes(4)))  # no magic yet, which says how it is read
    decoder.end_response()
    assert (decoder.needed_bytes, decoder.error) == (needed, None)
