"""Responses that come late, twice, from the past, or with codes nobody expects: tables for members and transactions."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.kafka import test_consumer_group_member as kip848
from tests.core.kafka import test_member as classic
from tests.core.kafka import test_transactions as txn
from tests.core.kafka.test_member import tp
from tests.core.kafka.test_transactions import A, B
from tests.core.kafka.transaction_answers import offsets, partitions

from odradek.core.kafka.assignors import Assignor, CooperativeStickyAssignor, RangeAssignor, without_racks
from odradek.core.kafka.consumer_group_member import ConsumerGroupState
from odradek.core.kafka.group_effects import Assign, Fail, Lost, ResolveTopics, Revoke, Send
from odradek.core.kafka.member_states import ClassicMemberState
from odradek.core.kafka.producer_state import ProducerIdentity
from odradek.core.kafka.transaction_requests import GroupMetadata, Offset
from odradek.core.kafka.transactions import TransactionalProducerState
from odradek.errors import BrokerError, RemoteProtocolError
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.common import TopicIdPartitions
from odradek.wire.kafka.messages.groups import (
    ConsumerGroupHeartbeatAssignment,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupRequest,
    SyncGroupResponse,
)
from odradek.wire.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
)

S, C, T = ClassicMemberState, ConsumerGroupState, TransactionalProducerState
RETRIABLE_BUT_UNEXPECTED = [2, 3, 5, 6, 19, 56, 74, 89]


def leading(driver: classic.Driver, *, skip_assignment: bool = False) -> classic.Driver:
    """Join as the leader of a group of one."""
    request = driver.sent(JoinGroupRequest)
    member = JoinGroupResponseMember(member_id="me", metadata=request.protocols[0].metadata)
    driver.answer(
        JoinGroupResponse(
            generation_id=1,
            protocol_name=request.protocols[0].name,
            leader="me",
            member_id="me",
            members=(member,),
            skip_assignment=skip_assignment,
        )
    )
    return driver


# ---- classic members: heartbeats ----


@pytest.mark.parametrize("computed_before_the_answer", [True, False])
def test_a_rebalance_reported_while_the_leader_assigns_does_not_cost_the_generation(
    computed_before_the_answer: bool,
) -> None:
    """Brokers before 2.5 answer heartbeats that way until the leader's SyncGroup has arrived."""
    driver = leading(classic.Driver().coordinated())
    driver.poll()
    driver.now = 3
    driver.sent(HeartbeatRequest)
    if computed_before_the_answer:
        driver.member.assign(classic.TOPICS)
        driver.answer(HeartbeatResponse(error_code=27))
    else:
        driver.answer(HeartbeatResponse(error_code=27))
        driver.member.assign(classic.TOPICS)
    driver.sync(0, 1, 2, 3)
    assert driver.poll() == [Assign(tp(0, 1, 2, 3))] and driver.state() is S.STABLE
    assert driver.poll() == []


@pytest.mark.parametrize(("code", "again"), [(22, "me"), (25, "")])
def test_a_generation_that_ends_while_the_leader_assigns_is_joined_again(code: int, again: str) -> None:
    driver = leading(classic.Driver().coordinated())
    driver.poll()
    driver.heartbeat(code)
    driver.member.assign(classic.TOPICS)  # computed for the generation that ended
    assert driver.sent(JoinGroupRequest).member_id == again


def test_a_coordinator_that_moves_while_the_leader_assigns_gets_the_assignment_from_the_new_place() -> None:
    driver = leading(classic.Driver().coordinated())
    driver.poll()
    driver.now = 3
    driver.sent(HeartbeatRequest)
    driver.member.assign(classic.TOPICS)
    driver.answer(HeartbeatResponse(error_code=16))
    driver.now = 4
    driver.coordinated()
    assert driver.sync(0).generation_id == 1


@pytest.mark.parametrize("code", [22, 25, 27, 16])
def test_a_heartbeat_of_a_generation_that_ended_meanwhile_says_nothing(code: int) -> None:
    driver = classic.Driver().stable(0)
    driver.now = 3
    driver.sent(HeartbeatRequest)
    driver.member.commit_refused(driver.member.fence, 22)
    driver.answer(HeartbeatResponse(error_code=code))
    lost, send = driver.poll()
    assert lost == Lost(tp(0)) and isinstance(send, Send)
    assert isinstance(send.request, JoinGroupRequest) and send.request.member_id == "me"


# ---- classic members: joining ----


@pytest.mark.parametrize("step", ["join", "sync"])
@pytest.mark.parametrize("error", [15, 16, 7, None])
def test_a_coordinator_that_moves_while_a_member_joins_is_joined_at_the_new_place(step: str, error: int | None) -> None:
    driver = classic.Driver(CooperativeStickyAssignor()).stable(0)
    driver.heartbeat(27)
    if step == "sync":
        driver.join(2)
        driver.sent(SyncGroupRequest)
        answer: Any = SyncGroupResponse(error_code=error or 0)
    else:
        driver.sent(JoinGroupRequest)
        answer = JoinGroupResponse(error_code=error or 0)
    if error is None:
        driver.member.connection_lost(driver.now)
    else:
        driver.answer(answer)
    assert driver.poll() == [] and driver.member.owned == tp(0)
    driver.now += 1
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=8, host="b8", port=9092))
    request = driver.sent(JoinGroupRequest)
    assert request.member_id == "me" and classic.owned(request) == tp(0)
    assert driver.member.coordinator is not None and driver.member.coordinator.node_id == 8


@pytest.mark.parametrize("code", RETRIABLE_BUT_UNEXPECTED)
def test_retriable_errors_that_no_group_request_should_get_are_tried_again(code: int) -> None:
    driver = classic.Driver().coordinated()
    driver.expect(JoinGroupRequest, JoinGroupResponse(error_code=code))
    assert driver.poll() == []
    driver.now = 1
    driver.join()
    driver.expect(SyncGroupRequest, SyncGroupResponse(error_code=code))
    driver.now = 2
    driver.join()
    driver.sync(0)
    driver.poll()
    driver.heartbeat(code)
    assert driver.state() is S.STABLE and driver.member.owned == tp(0)


@pytest.mark.parametrize("code", [1, 37, 79, 12345])
def test_errors_without_a_meaning_for_groups_stop_the_member(code: int) -> None:
    driver = classic.Driver().stable(0)
    driver.heartbeat(code)
    lost, fail = driver.poll()
    assert lost == Lost(tp(0)) and isinstance(fail, Fail) and isinstance(fail.error, BrokerError)
    assert fail.error.code == code and "Heartbeat of group g" in str(fail.error)


def test_a_coordinator_that_requires_an_id_and_gives_none_is_not_asked_in_a_loop() -> None:
    driver = classic.Driver().coordinated()
    driver.expect(JoinGroupRequest, JoinGroupResponse(error_code=79, member_id=""))
    assert driver.poll() == [] and driver.member.tick(0) == pytest.approx(0.1)


def test_a_subscription_in_the_group_that_cannot_be_read_stops_the_leader() -> None:
    driver = classic.Driver().coordinated()
    member = JoinGroupResponseMember(member_id="m7", metadata=b"\x00")
    driver.expect(
        JoinGroupRequest,
        JoinGroupResponse(generation_id=1, protocol_name="range", leader="me", member_id="me", members=(member,)),
    )
    (fail,) = driver.poll()
    assert isinstance(fail, Fail) and isinstance(fail.error, RemoteProtocolError) and "m7" in str(fail.error)


def test_an_assignment_that_cannot_be_read_stops_the_member() -> None:
    driver = classic.Driver(CooperativeStickyAssignor()).stable(0)
    driver.heartbeat(27)
    driver.join(2)
    driver.expect(SyncGroupRequest, SyncGroupResponse(assignment=b"\x00\x00\xff"))
    lost, fail = driver.poll()
    assert lost == Lost(tp(0)) and isinstance(fail, Fail) and isinstance(fail.error, RemoteProtocolError)
    assert driver.state() is S.FAILED


def test_a_returning_static_leader_notices_new_partitions_later() -> None:
    driver = leading(classic.Driver(instance_id="i").coordinated(), skip_assignment=True)
    driver.sync(0)
    driver.poll()
    for count, notices in ((4, False), (4, False), (5, True)):
        driver.member.metadata_changed(without_racks({"t": count, "other": count}))
        assert bool(driver.poll()) is notices


# ---- classic members: revocations and commits ----


@pytest.mark.parametrize("assignor", [RangeAssignor(), CooperativeStickyAssignor()], ids=lambda a: str(a.name))
def test_a_revocation_that_ends_after_its_partitions_were_lost_does_not_end_the_next_one(assignor: Assignor) -> None:
    driver = classic.Driver(assignor).stable(0, 1)
    driver.heartbeat(27)
    if assignor.cooperative:
        driver.join(2)
        driver.sync(1)
    driver.poll()
    late = driver.revokes[-1]
    driver.heartbeat(25)  # the session ended while the application was still finishing
    driver.member.revoked(late)
    assert driver.poll()[0] == Lost(tp(0, 1) - (tp(0) if assignor.cooperative else tp()))
    driver.answer(JoinGroupResponse(generation_id=7, protocol_name=assignor.name, leader="other", member_id="me"))
    driver.sync(0, 1)
    driver.poll()
    driver.heartbeat(27)
    if assignor.cooperative:
        driver.join(8)
        driver.sync(1)
    assert driver.poll()[0] == Revoke(late.partitions)
    driver.member.revoked(late)
    assert driver.state() is S.REVOKING
    driver.revoked()
    driver.sent(JoinGroupRequest)


@pytest.mark.parametrize("code", [22, 25, 27, 82])
def test_a_commit_of_the_last_generation_does_not_disturb_the_present_one(code: int) -> None:
    driver = classic.Driver(CooperativeStickyAssignor()).stable(0)
    before = driver.member.fence
    driver.heartbeat(27)
    driver.join(2)
    driver.sync(0)
    driver.poll()
    driver.member.commit_refused(before, code)
    assert driver.poll() == [] and driver.state() is S.STABLE and driver.member.owned == tp(0)


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (27, S.REVOKING),
        (22, S.UNJOINED),
        (25, S.UNJOINED),
        (82, S.FAILED),
        (12, S.STABLE),
        (14, S.STABLE),
        (0, S.STABLE),
    ],
)
def test_what_a_refused_commit_of_this_generation_does(code: int, state: ClassicMemberState) -> None:
    driver = classic.Driver().stable(0)
    driver.now = 3
    driver.sent(HeartbeatRequest)  # so that the next step waits
    driver.member.commit_refused(driver.member.fence, code)
    driver.answer(HeartbeatResponse())
    if state is S.REVOKING:
        driver.poll()
    assert driver.state() is state


def test_a_commit_refused_during_the_rebalance_that_it_reports_does_not_begin_another() -> None:
    driver = classic.Driver(CooperativeStickyAssignor()).stable(0)
    driver.heartbeat(27)
    driver.sent(JoinGroupRequest)
    driver.member.commit_refused(driver.member.fence, 27)
    driver.answer(JoinGroupResponse(generation_id=2, protocol_name="cooperative-sticky", leader="o", member_id="me"))
    driver.member.commit_refused(driver.member.fence, 27)
    driver.sync(0)
    assert driver.poll() == [Assign(frozenset())] and driver.poll() == []


@pytest.mark.parametrize("code", [15, 16])
def test_a_commit_that_meets_the_wrong_coordinator_makes_the_member_search_it(code: int) -> None:
    driver = classic.Driver().stable(0)
    driver.member.commit_refused(GroupMetadata("g", 0, "me"), code)  # also one of an older generation
    driver.coordinated()
    assert driver.state() is S.STABLE


def test_a_commit_refused_while_leaving_leaves_the_way_to_the_coordinator() -> None:
    driver = classic.Driver().stable(0)
    driver.member.leave(member_lists=True)
    driver.member.commit_refused(driver.member.fence, 16)
    (send,) = driver.poll()
    assert isinstance(send, Send) and send.node is not None


# ---- members under KIP-848 ----


def test_a_regex_taken_back_in_a_heartbeat_that_was_lost_is_taken_back_again() -> None:
    driver = kip848.Driver(regex="t.*").joined(0)
    driver.member.subscribe(frozenset({"t"}))
    assert driver.sent().subscribed_topic_regex == ""
    driver.member.connection_lost(driver.now)
    driver.now = 1
    driver.coordinated()
    assert driver.sent().subscribed_topic_regex == ""


def test_known_partitions_do_not_wait_for_topics_that_nobody_can_name() -> None:
    driver = kip848.Driver().joined(0, 1)
    driver.now = 5
    topics = tuple(TopicIdPartitions(topic_id=i, partitions=n) for i, n in ((kip848.ID_T, (1,)), (kip848.ID_U, (0,))))
    driver.expect(kip848.beat(2, assignment=ConsumerGroupHeartbeatAssignment(topic_partitions=topics)))
    assert driver.poll() == [ResolveTopics(frozenset({kip848.ID_U}))]
    driver.member.resolved({})
    assert driver.poll() == [Revoke(tp(0))]
    driver.revoked()
    assert driver.expect(kip848.beat(2)).topic_partitions == (TopicIdPartitions(topic_id=kip848.ID_T, partitions=(1,)),)
    assert driver.poll() == [ResolveTopics(frozenset({kip848.ID_U}))]
    driver.member.resolved({kip848.ID_U: "u"})
    assert driver.poll()[0] == Assign(tp(0, topic="u"))


def test_a_late_revocation_of_a_fenced_member_does_not_end_the_next_one() -> None:
    driver = kip848.Driver().joined(0, 1)
    driver.now = 5
    driver.expect(kip848.target(1, epoch=2))
    driver.poll()
    late = driver.revokes[-1]
    driver.now = 10
    driver.expect(kip848.beat(error_code=25))
    assert driver.poll()[0] == Lost(tp(0, 1))
    driver.member.receive(kip848.target(0, 1, epoch=7), driver.now)
    driver.poll()
    driver.member.receive(kip848.target(1, epoch=8), driver.now)
    assert driver.poll() == [Revoke(tp(0))]
    driver.member.revoked(late)
    assert driver.state() is C.REVOKING and driver.member.owned == tp(0, 1)


@pytest.mark.parametrize(
    ("code", "old", "at_once"),
    [
        (113, False, True),
        (110, False, True),
        (25, False, True),
        (113, True, False),
        (25, True, False),
        (14, False, False),
    ],
)
def test_a_refused_commit_asks_the_coordinator_at_once_if_it_knows_more(code: int, old: bool, at_once: bool) -> None:
    driver = kip848.Driver().joined(0)
    token = GroupMetadata("g", 0, "uuid") if old else driver.member.fence
    driver.member.commit_refused(token, code)
    assert bool(driver.poll()) is at_once
    assert driver.member.owned == tp(0)


def test_a_commit_that_meets_the_wrong_coordinator_makes_the_new_kind_of_member_search_it() -> None:
    driver = kip848.Driver().joined(0)
    driver.member.commit_refused(driver.member.fence, 16)
    driver.coordinated()


@pytest.mark.parametrize("interval", [0, -5])
def test_a_coordinator_without_a_heartbeat_interval_is_not_asked_in_a_loop(interval: int) -> None:
    driver = kip848.Driver().coordinated()
    driver.expect(ConsumerGroupHeartbeatResponse(member_epoch=1, heartbeat_interval_ms=interval))
    assert driver.poll() == [Assign(tp())] and driver.member.tick(0) == 3


@pytest.mark.parametrize("code", RETRIABLE_BUT_UNEXPECTED)
def test_retriable_errors_that_no_heartbeat_should_get_are_tried_again(code: int) -> None:
    driver = kip848.Driver().joined(0)
    driver.now = 5
    driver.expect(kip848.beat(error_code=code))
    driver.now = 10
    assert driver.expect(kip848.beat()).subscribed_topic_names == ("t",)
    assert driver.member.owned == tp(0)


# ---- transactions ----


@pytest.mark.parametrize("added", [True, False])
def test_an_abort_asks_again_whether_a_partition_whose_answer_was_lost_was_added(added: bool) -> None:
    """Without EndTxn a transaction that the coordinator has stays open until it times out."""
    driver = txn.Driver().opened()
    driver.txn.add_partition(A)
    assert isinstance(driver.out().request, AddPartitionsToTxnRequest)
    driver.txn.connection_lost(driver.now)
    driver.txn.abort()
    driver.now = 1
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=8))
    request = driver.expect(AddPartitionsToTxnRequest, partitions((0, 0 if added else 29)))
    assert request.v3_and_below_topics[0].partitions == (0,)
    # TOPIC_AUTHORIZATION_FAILED says nothing of the lost request; INVALID_TXN_STATE says that there is no transaction.
    ended = EndTxnResponse(error_code=0 if added else ErrorCode.INVALID_TXN_STATE)
    assert not driver.expect(EndTxnRequest, ended).committed
    assert driver.idle() and driver.state() is T.READY


def test_an_abort_asks_again_whether_a_group_whose_answer_was_lost_was_added() -> None:
    driver = txn.Driver().opened()
    driver.txn.add_offsets({A: Offset(1)}, txn.GROUP)
    driver.out()
    driver.txn.abort()  # while the request is in flight
    driver.txn.connection_lost(driver.now)
    driver.now = 1
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=8))
    assert driver.expect(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse(error_code=51)).group_id == "g"
    driver.now = 2
    driver.expect(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse())
    assert not driver.expect(EndTxnRequest, EndTxnResponse()).committed


def test_an_abort_of_what_is_known_to_be_open_asks_nothing_else() -> None:
    driver = txn.Driver().added()
    driver.txn.add_partition(B)
    driver.out()
    driver.txn.connection_lost(driver.now)
    driver.txn.abort()
    driver.now = 1
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=8))
    assert not driver.expect(EndTxnRequest, EndTxnResponse()).committed


def test_another_group_in_the_next_transaction_has_a_coordinator_of_its_own() -> None:
    driver = txn.Driver().opened()
    for group, node in (("g1", 8), ("g2", 9)):
        driver.txn.add_offsets({A: Offset(1)}, GroupMetadata(group))
        driver.expect(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse())
        assert driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=node)).key == group
        assert driver.out().node_id == node
        driver.txn.receive(offsets((0, 0)), driver.now)
        driver.txn.commit()
        driver.expect(EndTxnRequest, EndTxnResponse())
        driver.txn.begin(v2=False)
    driver.txn.add_offsets({A: Offset(1)}, GroupMetadata("g1"))
    driver.expect(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse())
    assert driver.out().node_id == 8  # known from the first transaction


@pytest.mark.parametrize("code", RETRIABLE_BUT_UNEXPECTED)
def test_retriable_errors_that_no_transactional_request_should_get_are_tried_again(code: int) -> None:
    driver = txn.Driver().added()
    driver.txn.commit()
    driver.expect(EndTxnRequest, EndTxnResponse(error_code=code))
    assert driver.idle()
    driver.now = 1
    if code == 13:
        driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=8))
    assert driver.expect(EndTxnRequest, EndTxnResponse()).committed


@pytest.mark.parametrize("lost", [True, False])
def test_a_stopped_producer_ignores_what_was_in_flight(lost: bool) -> None:
    driver = txn.Driver()
    driver.txn.initialize()
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=7))
    driver.out()
    error = BrokerError(48, "INVALID_TXN_STATE")
    driver.txn.fatal(error)
    if lost:
        driver.txn.connection_lost(driver.now)
    else:
        driver.txn.receive(InitProducerIdResponse(producer_id=1, producer_epoch=0), driver.now)
    assert driver.state() is T.FATAL and driver.txn.error is error and driver.idle()


@pytest.mark.parametrize("v2", [True, False])
def test_after_the_last_epoch_the_coordinator_gives_another_id(v2: bool) -> None:
    driver = txn.Driver()
    driver.txn.initialize()
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=7))
    driver.expect(InitProducerIdRequest, InitProducerIdResponse(producer_id=4000, producer_epoch=0x7FFE))
    driver.txn.begin(v2=v2)
    driver.txn.add_partition(A)
    if not v2:
        driver.expect(AddPartitionsToTxnRequest, partitions((0, 0)))
    driver.txn.batch_failed(BrokerError(45, "OUT_OF_ORDER_SEQUENCE_NUMBER"), new_epoch=True)
    driver.txn.abort()
    if v2:
        driver.expect(EndTxnRequest, EndTxnResponse(producer_id=4001, producer_epoch=0))
    else:
        driver.expect(EndTxnRequest, EndTxnResponse())
        driver.expect(InitProducerIdRequest, InitProducerIdResponse(producer_id=4001, producer_epoch=0))
    assert driver.state() is T.READY and driver.txn.identity == ProducerIdentity(4001, 0)


@pytest.mark.parametrize("code", [12, 28, 110])
def test_offsets_that_the_coordinator_does_not_take_cost_the_transaction_and_no_more(code: int) -> None:
    driver = txn.Driver().opened()
    driver.txn.add_offsets({A: Offset(1)}, txn.GROUP)
    driver.expect(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse())
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=8))
    driver.expect(TxnOffsetCommitRequest, offsets((0, code)))
    assert driver.state() is T.FAILED


def test_a_rebalance_during_a_transaction_aborts_it_and_the_next_one_takes_the_new_generation() -> None:
    driver = txn.Driver().opened()
    driver.txn.add_offsets({A: Offset(1)}, GroupMetadata("g", 1, "m"))
    driver.expect(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse())
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=8))
    driver.expect(TxnOffsetCommitRequest, offsets((0, 22)))
    driver.txn.abort()
    driver.expect(EndTxnRequest, EndTxnResponse())
    driver.txn.begin(v2=False)
    driver.txn.add_offsets({A: Offset(1)}, GroupMetadata("g", 2, "m"))
    driver.expect(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse())
    assert driver.expect(TxnOffsetCommitRequest, offsets((0, 0))).generation_id == 2
