"""The share session with one broker: which request is next, and what its response means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.core.kafka.test_share_records import record_bytes

from odradek.core.interfaces import AckType, DecoderOptions
from odradek.core.kafka.member_states import MAX_UNKNOWN_ERRORS
from odradek.core.kafka.share_session import (
    RefusedAcknowledgements,
    ShareAnswer,
    ShareLimits,
    ShareSession,
    ShareSessionState,
)
from odradek.errors import RemoteProtocolError
from odradek.types import TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.messages.share_groups import (
    AcquiredRecords,
    ShareAcknowledgePartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareLeaderIdAndEpoch,
)
from odradek.wire.kafka.records.encode import encode_batch

S = ShareSessionState
ID = b"t" * 16
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def new_session(*partitions: TopicPartition, **fields: Any) -> ShareSession:
    session = ShareSession("g", "m", ShareLimits(exact=fields.pop("exact", False)), DecoderOptions(), **fields)
    session.wanted = dict.fromkeys(partitions or (P0,), ID)
    return session


def fetch(session: ShareSession, now: float = 0.0) -> ShareFetchRequest:
    request = session.next_request(now, fetch=True)
    assert isinstance(request, ShareFetchRequest)
    return request


def acknowledging(session: ShareSession, now: float = 0.0, *, wants: bool = False) -> ShareAcknowledgeRequest:
    request = session.next_request(now, fetch=wants)
    assert isinstance(request, ShareAcknowledgeRequest)
    return request


def data(
    number: int = 0, first: int = 0, count: int = 3, deliveries: int = 1, **fields: Any
) -> ShareFetchPartitionData:
    acquired = (AcquiredRecords(first_offset=first, last_offset=first + count - 1, delivery_count=deliveries),)
    return ShareFetchPartitionData(
        partition_index=number, records=record_bytes(first, count), acquired_records=acquired, **fields
    )


def response(*parts: ShareFetchPartitionData, **fields: Any) -> ShareFetchResponse:
    topics = (ShareFetchableTopicResponse(topic_id=ID, partitions=parts),) if parts else ()
    return ShareFetchResponse(responses=topics, acquisition_lock_timeout_ms=30_000, **fields)


def acknowledged(*parts: ShareAcknowledgePartitionData, **fields: Any) -> ShareAcknowledgeResponse:
    topics = (ShareAcknowledgeTopicResponse(topic_id=ID, partitions=parts),) if parts else ()
    return ShareAcknowledgeResponse(responses=topics, **fields)


def holding(*partitions: TopicPartition, now: float = 0.0, **fields: Any) -> ShareSession:
    """A session that has acquired three records of each partition."""
    session = new_session(*partitions, **fields)
    fetch(session, now)
    session.fetched(response(*(data(p.partition) for p in session.wanted)))
    return session


def named(request: ShareFetchRequest) -> list[int]:
    return [p.partition_index for topic in request.topics for p in topic.partitions]


def test_the_first_fetch_opens_the_session_and_later_ones_name_what_changed() -> None:
    session = new_session(P0)
    first = fetch(session)
    assert (first.share_session_epoch, named(first)) == (0, [0])
    session.fetched(response())
    second = fetch(session)
    assert (second.share_session_epoch, named(second), second.forgotten_topics_data) == (1, [], ())
    session.fetched(response())
    session.wanted = {P1: ID}
    third = fetch(session)
    assert (third.share_session_epoch, named(third)) == (2, [1])
    assert [(t.topic_id, t.partitions) for t in third.forgotten_topics_data] == [(ID, (0,))]


def test_acquired_records_are_returned_once() -> None:
    session = new_session(P0, P1)
    fetch(session)
    answer = session.fetched(response(data(1, first=5, deliveries=2)))
    (acquired,) = answer.acquired
    assert acquired.partition == P1 and list(acquired.rows.columns.positions) == [5, 6, 7]
    assert acquired.rows.delivery_counts == [2, 2, 2] and session.acquired == 3


def compressed(first: int, count: int, deliveries: int = 1) -> ShareFetchPartitionData:
    """Return batches of one record each, two of which may be decompressed at once."""
    batches = [
        encode_batch([bytes(3000)], base_offset=offset, compression=CompressionType.LZ4)
        for offset in range(first, first + count)
    ]
    return data(0, first, count, deliveries).__replace__(records=b"".join(batches))


def damaged(first: int, count: int, deliveries: int = 1) -> ShareFetchPartitionData:
    part = data(0, first, count, deliveries)
    return part.__replace__(records=bytes(part.records or b"")[:-1] + b"!")


@pytest.mark.parametrize(("part", "fits"), [(compressed, 2), (damaged, 1)])
def test_no_more_is_acquired_than_can_be_decoded_because_a_release_counts_as_a_delivery(
    part: Callable[..., ShareFetchPartitionData], fits: int
) -> None:
    session = ShareSession("g", "m", ShareLimits(), DecoderOptions(max_decompressed_bytes=5000))
    session.wanted = {P0: ID}
    fetch(session)
    session.fetched(response(part(0, 5)))
    limits = []
    # What was released comes again: until then the limit stays. Then it is doubled up to that of the user.
    for answer in (data(0, 2, fits, 2), None, *(data(0, 10 * n) for n in range(1, 10))):
        request = fetch(session)
        limits.append((request.max_records, request.share_acquire_mode))
        session.fetched(response(*([] if answer is None else [answer])))
    assert limits[:5] == [(fits, 1), (fits, 1), (fits, 1), (2 * fits, 1), (4 * fits, 1)]
    last = fetch(session)
    assert (last.max_records, last.batch_size, last.share_acquire_mode) == (500, 500, 0)


def test_a_broker_that_cannot_limit_records_exactly_acquires_few_at_a_time_again() -> None:
    assert fetch(new_session(has_renewal=False)).batch_size == 50
    few = ShareSession("g", "m", ShareLimits(max_records=7), DecoderOptions(), has_renewal=False)
    few.wanted = {P0: ID}
    assert fetch(few).batch_size == 7


def test_acknowledgements_go_with_the_next_fetch() -> None:
    session = holding()
    assert session.acknowledge((ID, 0), 1, AckType.ACCEPT, 1)
    request = fetch(session)
    (part,) = request.topics[0].partitions
    assert [(b.first_offset, b.last_offset, b.acknowledge_types) for b in part.acknowledgement_batches] == [
        (1, 1, (1,))
    ]
    assert session.has_unanswered
    answer = session.fetched(response(data(first=3)))
    assert answer.refused == [] and not session.has_unanswered and session.acquired == 5


def test_acknowledgements_go_alone_while_no_records_are_wanted() -> None:
    session = holding()
    session.acknowledge((ID, 0), 0, AckType.REJECT, 1)
    request = acknowledging(session)
    assert (request.share_session_epoch, request.is_renew_ack) == (1, False)
    session.acknowledged(acknowledged(ShareAcknowledgePartitionData(partition_index=0)))
    assert session.acquired == 2 and session.next_request(0, fetch=False) is None


def test_those_of_partitions_that_are_not_read_any_more_go_before_the_fetch() -> None:
    session = holding(P0, P1)
    session.acknowledge((ID, 0), 0, AckType.ACCEPT, 1)
    session.wanted = {P1: ID}
    request = acknowledging(session, wants=True)
    assert [p.partition_index for t in request.topics for p in t.partitions] == [0]
    session.acknowledged(acknowledged(ShareAcknowledgePartitionData(partition_index=0)))
    assert named(fetch(session)) == []


def test_a_renewal_goes_alone_because_such_a_fetch_brings_no_records() -> None:
    session = holding()
    session.acknowledge((ID, 0), 0, AckType.RENEW, 1)
    request = acknowledging(session, now=20, wants=True)
    assert request.is_renew_ack
    session.acknowledged(acknowledged(ShareAcknowledgePartitionData(partition_index=0)))
    assert session.expire(31) == [] and session.acquired == 1, "the other two expired, without an acknowledgement"
    assert session.expire(50) == [] and session.acquired == 0


def test_acknowledgements_that_are_late_are_reported_and_not_sent() -> None:
    session = holding()
    session.acknowledge((ID, 0), 0, AckType.ACCEPT, 1)
    assert session.expire(30) == [RefusedAcknowledgements(P0, 1, "their locks had expired")]
    assert not session.acknowledge((ID, 0), 1, AckType.ACCEPT, 1)
    assert session.next_request(30, fetch=False) is None


def test_the_lock_begins_when_the_request_leaves() -> None:
    session = holding(now=100.0)
    assert session.expire(129.9) == [] and session.acquired == 3
    assert session.expire(130) == [] and session.acquired == 0


def test_refused_acknowledgements_are_reported_with_the_name_of_the_error() -> None:
    session = holding(P0, P1)
    for number in (0, 1):
        session.acknowledge((ID, number), 0, AckType.ACCEPT, 1)
    fetch(session)
    answer = session.fetched(response(ShareFetchPartitionData(partition_index=0, acknowledge_error_code=121)))
    assert answer.refused == [
        RefusedAcknowledgements(P0, 1, "INVALID_RECORD_STATE"),
        RefusedAcknowledgements(P1, 1, "UNKNOWN_SERVER_ERROR"),
    ], "a response that does not mention acknowledgements has not accepted them"


def test_a_partition_with_an_error_is_named_again() -> None:
    session = new_session(P0, P1)
    fetch(session)
    leader = ShareLeaderIdAndEpoch(leader_id=2, leader_epoch=7)
    answer = session.fetched(response(ShareFetchPartitionData(partition_index=1, error_code=6, current_leader=leader)))
    (problem,) = answer.problems
    assert (problem.partition, problem.code, problem.leader) == (P1, 6, leader)
    assert named(fetch(session)) == [1]
    session.fetched(response())
    assert named(fetch(session)) == []


def test_a_partition_with_an_error_that_is_read_elsewhere_is_forgotten() -> None:
    session = new_session(P0, P1)
    fetch(session)
    session.fetched(response(ShareFetchPartitionData(partition_index=1, error_code=6)))
    session.wanted = {P0: ID}
    request = fetch(session)
    assert named(request) == []
    assert [(t.topic_id, t.partitions) for t in request.forgotten_topics_data] == [(ID, (1,))]
    session.fetched(response())
    assert fetch(session).forgotten_topics_data == ()


@pytest.mark.parametrize("code", [122, 123, 133, 41, -1, 30])
def test_an_error_of_a_whole_response_begins_a_new_session(code: int) -> None:
    """What the broker has acquired for a session stays locked when another one takes its place (seen on 4.3.1)."""
    session = holding()
    session.acknowledge((ID, 0), 0, AckType.ACCEPT, 1)
    fetch(session)
    answer = session.fetched(response(error_code=code))
    assert (answer.code, len(answer.refused), session.acquired) == (code, 1, 0)
    assert answer.passes is (code != 30)
    if code not in (122, 133):  # which say that there is none
        closing = acknowledging(session)
        assert (closing.share_session_epoch, closing.topics) == (-1, ())
        session.acknowledged(acknowledged(error_code=122))
    again = fetch(session)
    assert (again.share_session_epoch, named(again)) == (0, [0])


@pytest.mark.parametrize("lost", [False, True])
def test_a_session_with_an_error_is_closed_once_although_the_member_leaves_meanwhile(lost: bool) -> None:
    session = new_session()
    fetch(session)
    session.fetched(response(error_code=41))
    session.close()
    assert acknowledging(session).share_session_epoch == -1
    answer = session.lost("connection lost") if lost else session.acknowledged(acknowledged(error_code=122))
    assert (answer.refused, session.state) == ([], S.CLOSED)


def test_a_lost_connection_needs_no_closing() -> None:
    session = new_session()
    fetch(session)
    session.fetched(response(error_code=41))
    acknowledging(session)
    session.lost("connection lost")
    assert fetch(session).share_session_epoch == 0


def test_unknown_errors_end_the_session_for_good_only_after_many_in_a_row() -> None:
    """As brokers answer while one of several topics is being deleted."""
    session = new_session()

    def passes(code: int) -> bool:
        if session.state is S.REFUSED:
            acknowledging(session)
            session.acknowledged(acknowledged())
        fetch(session)
        return session.fetched(response(error_code=code)).passes

    assert all(passes(-1) for _ in range(MAX_UNKNOWN_ERRORS))
    assert passes(0)
    assert all(passes(-1) for _ in range(MAX_UNKNOWN_ERRORS))
    assert not passes(-1)


@pytest.mark.parametrize(
    ("code", "passes"),
    [(6, True), (100, True), (15, True), (124, True), (69, True), (2, False), (29, False), (42, False)],
)
def test_an_error_of_a_partition_passes_or_is_for_the_user(code: int, passes: bool) -> None:
    """FENCED_STATE_EPOCH and GROUP_ID_NOT_FOUND pass: the broker reads the state of the group again."""
    session = new_session()
    fetch(session)
    (problem,) = session.fetched(response(ShareFetchPartitionData(error_code=code, records=b""))).problems
    assert problem.passes is passes


def test_unknown_errors_of_a_partition_are_for_the_user_only_after_many_in_a_row() -> None:
    session = new_session(P0, P1)

    def passes(*codes: int) -> list[bool]:
        fetch(session)
        parts = [ShareFetchPartitionData(partition_index=n, error_code=code) for n, code in enumerate(codes) if code]
        return [problem.passes for problem in session.fetched(response(*parts)).problems]

    for _ in range(MAX_UNKNOWN_ERRORS):
        assert passes(-1, 0) == [True]
    assert passes(-1, -1) == [False, True]
    assert passes(0, -1) == [True]
    assert passes(-1, -1) == [True, True]


def test_only_errors_of_leaders_name_one() -> None:
    """Brokers send leader 0 with the others."""
    session = new_session()
    fetch(session)
    (problem,) = session.fetched(response(ShareFetchPartitionData(error_code=3))).problems
    assert problem.leader.leader_id == -1


def test_an_acknowledgement_of_an_earlier_delivery_does_not_count_for_a_later_one() -> None:
    session = holding()
    assert session.expire(30) == []
    fetch(session, 30)
    (again,) = session.fetched(response(data(deliveries=2))).acquired
    assert not session.acknowledge((ID, 0), 0, AckType.ACCEPT, 1)
    assert not session.has_unanswered
    assert session.acknowledge((ID, 0), 0, AckType.ACCEPT, again.number)


def test_acknowledgements_are_reported_that_a_new_delivery_of_their_records_overtakes() -> None:
    session = holding()
    fetch(session, 29.9)
    for offset in (0, 1):
        assert session.acknowledge((ID, 0), offset, AckType.ACCEPT, 1)
    answer = session.fetched(response(data(deliveries=2)))
    assert answer.refused == [RefusedAcknowledgements(P0, 2, "their locks had expired")]
    assert not session.has_unanswered


def test_a_lost_connection_gives_up_what_was_acquired_and_reports_acknowledgements_in_doubt() -> None:
    session = holding()
    session.acknowledge((ID, 0), 0, AckType.ACCEPT, 1)
    fetch(session)
    session.acknowledge((ID, 0), 1, AckType.ACCEPT, 1)
    answer = session.lost("connection lost")
    assert answer.refused == [RefusedAcknowledgements(P0, 2, "connection lost")]
    assert (session.state, session.epoch, session.acquired) == (S.NEW, 0, 0)
    assert not session.acknowledge((ID, 0), 2, AckType.ACCEPT, 1)


def test_closing_sends_the_last_acknowledgements_and_releases_the_rest() -> None:
    session = holding()
    session.acknowledge((ID, 0), 0, AckType.ACCEPT, 1)
    session.close()
    request = acknowledging(session, wants=True)
    assert (request.share_session_epoch, session.state) == (-1, S.CLOSING)
    answer = session.acknowledged(acknowledged(ShareAcknowledgePartitionData(partition_index=0)))
    assert (answer.refused, session.state, session.acquired) == ([], S.CLOSED, 0)
    assert session.next_request(0, fetch=True) is None


def test_an_acknowledgement_behind_the_request_that_closes_does_not_count() -> None:
    session = holding()
    session.acknowledge((ID, 0), 0, AckType.ACCEPT, 1)
    session.close()
    acknowledging(session)
    assert not session.acknowledge((ID, 0), 1, AckType.ACCEPT, 1)
    session.acknowledged(acknowledged(ShareAcknowledgePartitionData(partition_index=0)))
    assert session.state is S.CLOSED


def test_a_fetch_in_flight_is_answered_before_the_session_is_closed() -> None:
    session = new_session()
    fetch(session)
    session.close()
    session.fetched(response(data()))
    assert session.state is S.OPEN
    assert acknowledging(session).share_session_epoch == -1


@pytest.mark.parametrize("opened", [False, True])
def test_closing_ends_without_a_broker(opened: bool) -> None:
    session = new_session()
    session.close()
    if opened:
        session = holding()
        session.close()
        acknowledging(session)
        session.lost("connection lost")
    assert session.next_request(0, fetch=True) is None and session.state is S.CLOSED
    assert session.next_request(0, fetch=True) is None


@pytest.mark.parametrize(
    ("exact", "has_renewal", "mode"), [(False, True, 0), (True, True, 1), (True, False, 0), (False, False, 0)]
)
def test_records_are_limited_exactly_only_where_brokers_can(exact: bool, has_renewal: bool, mode: int) -> None:
    assert fetch(new_session(exact=exact, has_renewal=has_renewal)).share_acquire_mode == mode


def test_topics_that_were_not_asked_for_are_ignored() -> None:
    session = holding()
    fetch(session)
    other = ShareFetchableTopicResponse(topic_id=b"x" * 16, partitions=(data(),))
    assert session.fetched(ShareFetchResponse(responses=(other,))) == ShareAnswer()
    strange = ShareAcknowledgeTopicResponse(topic_id=b"x" * 16, partitions=(ShareAcknowledgePartitionData(),))
    session.acknowledge((ID, 0), 0, AckType.ACCEPT, 1)
    acknowledging(session)
    answer = session.acknowledged(ShareAcknowledgeResponse(responses=(strange,)))
    assert answer.refused == [RefusedAcknowledgements(P0, 1, "UNKNOWN_SERVER_ERROR")]


def test_a_hostile_range_is_refused_before_anything_is_taken() -> None:
    session = new_session()
    fetch(session)
    huge = ShareFetchPartitionData(acquired_records=(AcquiredRecords(first_offset=0, last_offset=2**62),))
    with pytest.raises(RemoteProtocolError, match="acquired records 0 to"):
        session.fetched(response(huge))
    assert session.acquired == 0


def test_the_leader_that_an_acknowledgement_names_is_reported() -> None:
    session = holding()
    session.acknowledge((ID, 0), 0, AckType.ACCEPT, 1)
    acknowledging(session)
    leader = ShareLeaderIdAndEpoch(leader_id=3, leader_epoch=1)
    part = ShareAcknowledgePartitionData(partition_index=0, error_code=6, current_leader=leader)
    answer = session.acknowledged(acknowledged(part))
    assert [(problem.partition, problem.leader) for problem in answer.problems] == [(P0, leader)]
    assert answer.refused == [RefusedAcknowledgements(P0, 1, "NOT_LEADER_OR_FOLLOWER")]


def test_the_largest_epoch_is_followed_by_one() -> None:
    session = new_session()
    fetch(session)
    session.fetched(response())
    session.epoch = 0x7FFFFFFF
    fetch(session)
    session.fetched(response())
    assert session.epoch == 1
    assert repr(session) == "<ShareSession OPEN, epoch 1, 0 acquired>"
