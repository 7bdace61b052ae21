"""Share groups: what is acquired, how it is acknowledged, and which locks expire."""

from __future__ import annotations

import pytest

from odradek.core.interfaces import AckType, DecoderOptions
from odradek.core.kafka.share_records import AcquiredPartition, AcquiredRows, decode_acquired
from odradek.errors import CorruptMessage, RemoteProtocolError
from odradek.types import Columns, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.messages.share_groups import AcknowledgementBatch, AcquiredRecords
from odradek.wire.kafka.records.encode import encode_batch

WHERE = TopicPartition("t", 0)


def ranges(first: int = 10, last: int = 14, count: int = 1) -> list[AcquiredRecords]:
    return [AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)]


def rows(*offsets: int, error: CorruptMessage | None = None) -> AcquiredRows:
    columns = Columns([b"x"] * len(offsets), list(offsets), [offset + 1 for offset in offsets])
    return AcquiredRows(columns, [1] * len(offsets), error, is_whole=error is None)


def holding(first: int = 10, last: int = 14, until: float = 30.0) -> AcquiredPartition:
    held = AcquiredPartition()
    held.acquire(ranges(first, last), rows(*range(first, last + 1)), until)
    return held


def sent(held: AcquiredPartition) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(b.first_offset, b.last_offset, b.acknowledge_types) for b in held.pop_batches()]


def record_bytes(first: int, count: int) -> bytearray:
    return bytearray(encode_batch([b"%d" % (first + row) for row in range(count)], base_offset=first))


def test_runs_with_one_type_are_sent_as_one() -> None:
    held = holding()
    for offset in (10, 11, 12, 14):
        assert held.acknowledge(offset, AckType.ACCEPT)
    assert held.has_waiting and held.has_unanswered
    assert sent(held) == [(10, 12, (1,)), (14, 14, (1,))]
    assert sent(held) == [] and not held.has_waiting and held.has_unanswered
    assert held.answered(0, 60) == 0 and len(held) == 1 and not held.has_unanswered


def test_runs_with_several_types_have_one_each() -> None:
    held = holding()
    for offset, kind in zip(range(10, 13), (AckType.ACCEPT, AckType.RELEASE, AckType.REJECT), strict=True):
        held.acknowledge(offset, kind)
    expected = AcknowledgementBatch(first_offset=10, last_offset=12, acknowledge_types=(1, 2, 3))
    assert held.pop_batches() == (expected,)


def test_offsets_without_a_record_are_acknowledged_as_gaps() -> None:
    held = AcquiredPartition()
    held.acquire(ranges(), rows(11, 13), 30)
    assert sent(held) == [(10, 10, (0,)), (12, 12, (0,)), (14, 14, (0,))]


def test_offsets_behind_damage_are_released_and_those_before_it_are_gaps() -> None:
    held = AcquiredPartition()
    held.acquire(ranges(), rows(10, 12, error=CorruptMessage("t/0", 13, "CRC mismatch")), 30)
    assert sent(held) == [(11, 11, (0,)), (13, 14, (2,))]


def test_a_later_acknowledgement_replaces_an_earlier_one_until_it_is_sent() -> None:
    held = holding(10, 10)
    assert held.acknowledge(10, AckType.ACCEPT) and held.acknowledge(10, AckType.RELEASE)
    assert sent(held) == [(10, 10, (2,))]
    assert not held.acknowledge(10, AckType.ACCEPT), "it has been sent"
    held.answered(0, 30)
    assert not held.acknowledge(10, AckType.ACCEPT), "it is not acquired any more"


def test_a_renewed_lock_lasts_longer_and_the_record_stays_acquired() -> None:
    held = holding(10, 10)
    held.acknowledge(10, AckType.RENEW)
    assert held.renews
    held.pop_batches()
    assert held.answered(0, 50) == 0 and not held.renews
    assert held.expire(49.9) == 0 and len(held) == 1
    assert held.acknowledge(10, AckType.ACCEPT) and sent(held) == [(10, 10, (1,))]


def test_an_acknowledgement_during_a_renewal_is_sent_after_its_answer() -> None:
    held = holding(10, 11)
    for offset in (10, 11):
        held.acknowledge(offset, AckType.RENEW)
    assert sent(held) == [(10, 11, (4,))]
    assert held.acknowledge(10, AckType.RELEASE) and held.acknowledge(10, AckType.ACCEPT)
    assert sent(held) == [], "the renewal is in flight"
    assert held.answered(0, 50) == 0 and held.has_waiting
    assert sent(held) == [(10, 10, (1,))] and not held.acknowledge(10, AckType.ACCEPT)
    assert held.answered(0, 60) == 0 and len(held) == 1


def test_a_renewal_that_is_refused_takes_the_acknowledgement_after_it_along() -> None:
    held = holding(10, 10)
    held.acknowledge(10, AckType.RENEW)
    held.pop_batches()
    held.acknowledge(10, AckType.ACCEPT)
    assert held.answered(121, 50) == 1 and len(held) == 0


def test_refused_acknowledgements_are_counted_without_gaps() -> None:
    held = AcquiredPartition()
    held.acquire(ranges(10, 12), rows(10, 11), 30)
    held.acknowledge(10, AckType.ACCEPT)
    held.pop_batches()
    assert held.answered(121, 30) == 1
    assert len(held) == 1, "the record without an acknowledgement"


def test_locks_expire_unless_the_acknowledgement_is_in_flight() -> None:
    held = holding(10, 12)
    held.acknowledge(11, AckType.ACCEPT)
    held.pop_batches()
    held.acknowledge(12, AckType.ACCEPT)
    assert held.expire(29.9) == 0 and len(held) == 3
    assert held.expire(30) == 1, "one acknowledgement was too late"
    assert len(held) == 1


@pytest.mark.parametrize(("first", "last"), [(5, 4), (0, 1 << 20), (0, 2**62), (12, 13), (-3, -1)])
def test_ranges_that_no_broker_acquires_are_refused(first: int, last: int) -> None:
    held = AcquiredPartition()
    with pytest.raises(RemoteProtocolError, match="acquired records"):
        held.acquire([*ranges(), *ranges(first, last)], rows(), 30)
    assert len(held) == 0


def test_all_ranges_together_are_bounded() -> None:
    held = holding()
    many = [record for first in range(100, 1 << 40, 1 << 32) for record in ranges(first, first + (1 << 16))]
    with pytest.raises(RemoteProtocolError, match="more than 1048576 acquired"):
        held.acquire(many, rows(), 30)
    assert len(held) == 5


def test_only_acquired_records_of_whole_batches_are_returned_with_their_counts() -> None:
    data = record_bytes(10, 5) + record_bytes(15, 3)
    acquired = [*ranges(11, 12, 1), *ranges(14, 15, 4)]
    decoded = decode_acquired(WHERE, memoryview(data), acquired, DecoderOptions())
    assert list(decoded.columns.positions) == [11, 12, 14, 15]
    assert list(decoded.columns.values) == [b"11", b"12", b"14", b"15"]
    assert (decoded.delivery_counts, decoded.error) == ([1, 1, 4, 4], None)


def test_every_record_of_a_batch_is_returned_without_a_copy_of_the_columns() -> None:
    decoded = decode_acquired(WHERE, memoryview(record_bytes(10, 5)), ranges(10, 14, 2), DecoderOptions())
    assert list(decoded.columns.positions) == [10, 11, 12, 13, 14] and decoded.delivery_counts == [2] * 5


def test_records_before_damage_are_returned_with_the_error() -> None:
    data = record_bytes(10, 2) + record_bytes(12, 2)
    data[-1] ^= 1
    decoded = decode_acquired(WHERE, memoryview(data), ranges(10, 13), DecoderOptions())
    assert list(decoded.columns.positions) == [10, 11]
    assert isinstance(decoded.error, CorruptMessage) and decoded.error.position == 12


def test_records_behind_all_that_may_be_decompressed_at_once_are_released() -> None:
    data = b"".join(encode_batch([bytes(3000)], base_offset=n, compression=CompressionType.ZSTD) for n in range(10, 15))
    acquired, options = ranges(10, 14), DecoderOptions(max_decompressed_bytes=5000)
    decoded = decode_acquired(WHERE, memoryview(data), acquired, options)
    held = AcquiredPartition()
    held.acquire(acquired, decoded, 30)
    assert list(decoded.columns.positions) == [10, 11]
    assert sent(held) == [(12, 14, (2,))]
