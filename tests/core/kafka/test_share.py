"""Share groups: what is acquired, what is said about it, and what runs out."""

from __future__ import annotations

import pytest

from odradek.core.kafka.share import Acknowledgements, AckType, ShareSession, ShareSessionState
from odradek.errors import LocalProtocolError, RemoteProtocolError
from odradek.wire.kafka.messages.share_groups import AcknowledgementBatch, AcquiredRecords


def acquired(first: int = 10, last: int = 14, count: int = 1) -> list[AcquiredRecords]:
    return [AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)]


def holding(first: int = 10, last: int = 14) -> Acknowledgements:
    acks = Acknowledgements(30.0)
    assert acks.acquire(acquired(first, last), range(first, last + 1), now=0) == list(range(first, last + 1))
    return acks


def batches(acks: Acknowledgements) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(b.first_offset, b.last_offset, b.acknowledge_types) for b in acks.pop_batches()]


def test_runs_with_one_type_are_sent_as_one() -> None:
    acks = holding()
    for offset in (10, 11, 12, 14):
        acks.acknowledge(offset, AckType.ACCEPT)
    assert batches(acks) == [(10, 12, (1,)), (14, 14, (1,))]
    assert batches(acks) == []
    assert acks.answered(0, now=1) == [] and len(acks) == 1


def test_runs_with_several_types_have_one_each() -> None:
    acks = holding()
    for offset, kind in zip(range(10, 13), (AckType.ACCEPT, AckType.RELEASE, AckType.REJECT), strict=True):
        acks.acknowledge(offset, kind)
    assert acks.pop_batches() == [
        AcknowledgementBatch(first_offset=10, last_offset=12, acknowledge_types=(1, 2, 3)),
    ]


def test_offsets_without_a_record_are_said_to_be_gaps() -> None:
    acks = Acknowledgements(30.0)
    assert acks.acquire(acquired(), [11, 13], now=0) == [11, 13]
    assert batches(acks) == [(10, 10, (0,)), (12, 12, (0,)), (14, 14, (0,))]


def test_the_delivery_count_is_known() -> None:
    acks = Acknowledgements(30.0)
    acks.acquire(acquired(count=3), range(10, 15), now=0)
    assert acks.delivery_count(10) == 3
    with pytest.raises(LocalProtocolError, match="offset 99 is not acquired"):
        acks.delivery_count(99)


def test_a_later_word_replaces_an_earlier_one_until_it_is_sent() -> None:
    acks = holding(10, 10)
    acks.acknowledge(10, AckType.ACCEPT)
    acks.acknowledge(10, AckType.RELEASE)
    assert batches(acks) == [(10, 10, (2,))]
    with pytest.raises(LocalProtocolError, match="has been sent"):
        acks.acknowledge(10, AckType.ACCEPT)


def test_a_renewed_lock_begins_with_the_answer() -> None:
    acks = holding(10, 10)
    acks.acknowledge(10, AckType.RENEW)
    acks.pop_batches()
    acks.answered(0, now=20)
    assert acks.next_deadline() == 50
    acks.acknowledge(10, AckType.ACCEPT)
    assert batches(acks) == [(10, 10, (1,))]


def test_a_refused_acknowledgement_means_another_delivery() -> None:
    acks = holding(10, 11)
    acks.acknowledge(10, AckType.ACCEPT)
    acks.pop_batches()
    assert acks.answered(121, now=1) == [10]
    assert len(acks) == 1


def test_locks_run_out_unless_the_acknowledgement_is_on_its_way() -> None:
    acks = holding(10, 12)
    acks.acknowledge(11, AckType.ACCEPT)
    acks.pop_batches()
    acks.acknowledge(12, AckType.ACCEPT)
    assert acks.next_deadline() == 30
    assert acks.expire(29.9) == []
    assert acks.expire(30) == [10, 12]
    assert acks.next_deadline() is None and len(acks) == 1


@pytest.mark.parametrize(("first", "last"), [(5, 4), (0, 1 << 20), (0, 2**62)])
def test_ranges_that_no_broker_acquires_are_refused(first: int, last: int) -> None:
    acks = Acknowledgements(30.0)
    with pytest.raises(RemoteProtocolError, match="acquired records"):
        acks.acquire([*acquired(), *acquired(first, last)], [], now=0)
    assert len(acks) == 0


def test_all_ranges_together_are_bounded() -> None:
    acks = holding()
    ranges = [record for first in range(100, 1 << 40, 1 << 32) for record in acquired(first, first + (1 << 16))]
    with pytest.raises(RemoteProtocolError, match="more than 1048576 acquired"):
        acks.acquire(ranges, [], now=0)
    assert len(acks) == 5


def test_a_record_delivered_again_before_its_acknowledgement_is_answered_is_acquired_again() -> None:
    acks = holding(10, 10)
    acks.acknowledge(10, AckType.RELEASE)
    acks.pop_batches()
    assert acks.acquire(acquired(10, 10, count=2), [10], now=1) == [10]
    assert acks.answered(0, now=1) == [] and acks.delivery_count(10) == 2


def test_a_share_session_counts_its_epoch() -> None:
    session = ShareSession()
    assert session.epoch == 0
    assert session.answered(0) and session.epoch == 1
    assert session.answered(0) and session.epoch == 2
    session.epoch = 0x7FFFFFFF
    assert session.answered(0) and session.epoch == 1


@pytest.mark.parametrize("error", [122, 123, 133])
def test_a_lost_session_is_opened_again(error: int) -> None:
    session = ShareSession()
    session.answered(0)
    assert not session.answered(error)
    assert (session.state, session.epoch) == (ShareSessionState.NEW, 0)


def test_closing_a_session() -> None:
    session = ShareSession()
    session.answered(0)
    session.close()
    assert (session.state, session.epoch) == (ShareSessionState.CLOSING, -1)
    session.answered(0)
    assert session.state is ShareSessionState.CLOSED
    unopened = ShareSession()
    unopened.close()
    assert unopened.state is ShareSessionState.CLOSED


def test_a_lost_connection_ends_the_session() -> None:
    session = ShareSession()
    session.answered(0)
    session.lost()
    assert (session.state, session.epoch) == (ShareSessionState.NEW, 0)
