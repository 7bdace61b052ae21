"""Machines against brokers that answer anything: they never break, and what stops holds on to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.kafka.transaction_answers import offsets, partitions

from odradek.core.kafka.assignors import CooperativeStickyAssignor, StickyAssignor, without_racks
from odradek.core.kafka.consumer_group_member import ConsumerGroupMember, ConsumerGroupState
from odradek.core.kafka.group_effects import Compute, Effect, Revoke, Send
from odradek.core.kafka.member import Member
from odradek.core.kafka.member_states import ClassicMemberState, MemberSettings
from odradek.core.kafka.subscription import encode_assignment, encode_subscription
from odradek.core.kafka.transaction_requests import GroupMetadata, Offset
from odradek.core.kafka.transactions import TransactionalProducerState, Transactions
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.common import TopicIdPartitions
from odradek.wire.kafka.messages.groups import (
    ConsumerGroupHeartbeatAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
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
from odradek.wire.kafka.schema import Request, Response

TOPICS = without_racks({"t": 4})
PARTITION = TopicPartition("t", 0)
# Most answers are good ones, so that the machines get somewhere.
CODES = st.one_of(st.just(0), st.just(0), st.just(0), st.sampled_from([*ErrorCode, 9999]).map(int))
SUBSCRIPTION = encode_subscription(StickyAssignor(), ["t"], owned=(), previous=(), generation=-1, rack=None)

Answers = dict[type[Request[Any]], Callable[[int], Response]]

GROUP_ANSWERS: Answers = {
    FindCoordinatorRequest: lambda code: FindCoordinatorResponse(error_code=code, node_id=1),
    JoinGroupRequest: lambda code: JoinGroupResponse(
        error_code=code,
        generation_id=4,
        protocol_name="sticky",
        leader="me",
        member_id="me",
        members=(JoinGroupResponseMember(member_id="me", metadata=SUBSCRIPTION),),
    ),
    SyncGroupRequest: lambda code: SyncGroupResponse(
        error_code=code, assignment=encode_assignment([TopicPartition("t", code % 4)])
    ),
    HeartbeatRequest: lambda code: HeartbeatResponse(error_code=code),
    LeaveGroupRequest: lambda code: LeaveGroupResponse(error_code=code),
    ConsumerGroupHeartbeatRequest: lambda code: ConsumerGroupHeartbeatResponse(
        error_code=code,
        member_epoch=3,
        heartbeat_interval_ms=1000,
        assignment=ConsumerGroupHeartbeatAssignment(
            topic_partitions=(TopicIdPartitions(topic_id=b"t" * 16, partitions=(code % 4,)),)
        ),
    ),
}

GONE = (ConsumerGroupState.LEFT, ConsumerGroupState.LEAVING)
KINDS = ["answer", "answer", "answer", "lost", "revoked", "leave", "wait"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), CODES), max_size=60)


def requests(effects: list[Effect]) -> list[Request[Any]]:
    return [effect.request for effect in effects if isinstance(effect, Send)]


@settings(max_examples=3 * settings().max_examples)
@given(steps=STEPS, cooperative=st.booleans(), static=st.booleans())
def test_a_member_survives_every_answer(steps: list[tuple[str, int]], cooperative: bool, static: bool) -> None:
    assignor = CooperativeStickyAssignor() if cooperative else StickyAssignor()
    member = Member(MemberSettings("g", instance_id="i" if static else None), [assignor], frozenset({"t"}))
    out: Request[Any] | None = None
    revokes: list[Revoke] = []
    now = 0.0
    for step, code in steps:
        if step == "answer" and out is not None:
            member.receive(GROUP_ANSWERS[type(out)](code), now)
            out = None
        elif step == "lost" and out is not None:
            member.connection_lost(now)
            out = None
        elif step == "revoked":
            for revoke in revokes:
                member.revoked(revoke)
        elif (
            step == "leave" and code == 0 and member.state not in (ClassicMemberState.LEFT, ClassicMemberState.LEAVING)
        ):
            member.leave(member_lists=True)
        elif step == "wait":
            now += 10
            member.commit_refused(member.fence, code)
        effects = member.poll(now)
        revokes += [effect for effect in effects if isinstance(effect, Revoke)]
        if any(isinstance(effect, Compute) for effect in effects):
            member.assign(TOPICS)
            effects += member.poll(now)
        sent = requests(effects)
        assert len(sent) + (out is not None) <= 1
        out = sent[0] if sent else out
        if member.state is ClassicMemberState.FAILED:
            assert not member.owned and member.fence.generation == -1


@settings(max_examples=3 * settings().max_examples)
@given(steps=STEPS, static=st.booleans())
def test_a_consumer_group_member_survives_every_answer(steps: list[tuple[str, int]], static: bool) -> None:
    member = ConsumerGroupMember(MemberSettings("g", instance_id="i" if static else None), "uuid", frozenset({"t"}))
    out: Request[Any] | None = None
    revokes: list[Revoke] = []
    now = 0.0
    for step, code in steps:
        if step == "answer" and out is not None:
            member.receive(GROUP_ANSWERS[type(out)](code), now)
            out = None
        elif step == "lost" and out is not None:
            member.connection_lost(now)
            out = None
        elif step == "revoked":
            member.resolved({b"t" * 16: "t"})
            for revoke in revokes:
                member.revoked(revoke)
        elif (
            step == "leave" and code == 0 and member.state not in (ConsumerGroupState.LEFT, ConsumerGroupState.LEAVING)
        ):
            member.leave()
        elif step == "wait":
            now += 10
            member.commit_refused(member.fence, code)
        effects = member.poll(now)
        revokes += [effect for effect in effects if isinstance(effect, Revoke)]
        sent = requests(effects)
        assert len(sent) + (out is not None) <= 1
        out = sent[0] if sent else out
        if member.state is ConsumerGroupState.FAILED:
            assert not member.owned


TXN_ANSWERS: Answers = {
    FindCoordinatorRequest: lambda code: FindCoordinatorResponse(error_code=code, node_id=1),
    InitProducerIdRequest: lambda code: InitProducerIdResponse(error_code=code, producer_id=1, producer_epoch=1),
    AddPartitionsToTxnRequest: lambda code: partitions((0, code)),
    AddOffsetsToTxnRequest: lambda code: AddOffsetsToTxnResponse(error_code=code),
    TxnOffsetCommitRequest: lambda code: offsets((0, code)),
    EndTxnRequest: lambda code: EndTxnResponse(error_code=code),
}


@settings(max_examples=3 * settings().max_examples)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["answer", "answer", "answer", "lost", "add", "offsets", "commit", "abort"]), CODES),
        max_size=60,
    ),
    v2=st.booleans(),
    bump=st.booleans(),
)
def test_a_transactional_producer_survives_every_answer(steps: list[tuple[str, int]], v2: bool, bump: bool) -> None:
    txn = Transactions("tx", 1000, has_epoch_bump=bump)
    txn.initialize()
    out: Request[Any] | None = None
    now = 0.0
    for step, code in steps:
        now += 1
        state = txn.state
        if step == "answer" and out is not None:
            txn.receive(TXN_ANSWERS[type(out)](code), now)
            out = None
        elif step == "lost" and out is not None:
            txn.connection_lost(now)
            out = None
        elif state is TransactionalProducerState.READY:
            txn.begin(v2=v2)
        elif state is TransactionalProducerState.OPEN and step == "add":
            txn.add_partition(PARTITION)
        elif state is TransactionalProducerState.OPEN and step == "offsets" and txn.offsets_sent:
            txn.add_offsets({PARTITION: Offset(1)}, GroupMetadata("g"))
        elif state is TransactionalProducerState.OPEN and step == "commit":
            txn.commit()
        elif state in (TransactionalProducerState.OPEN, TransactionalProducerState.FAILED) and step == "abort":
            txn.abort()
        outgoing = txn.next_request(now + 0.5)
        assert outgoing is None or out is None
        out = outgoing.request if outgoing is not None else out
        if txn.state is TransactionalProducerState.FATAL:
            assert txn.error is not None and (out is None or outgoing is None)
