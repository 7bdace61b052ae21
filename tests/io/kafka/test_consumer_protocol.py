"""Members under KIP-848, with a scripted coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
from tests.io.kafka.answers import metadata_response, topic_response
from tests.io.kafka.peer import EVERYTHING
from tests.io.kafka.test_membership import METADATA, A, B, Coordinator, Listener, driver_at, member_of

from odradek.core.interfaces import Subscription
from odradek.errors import BrokerError, Fenced, Unsupported
from odradek.io.kafka.heartbeat_thread import SentHeartbeat
from odradek.types import Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.common import TopicIdPartitions
from odradek.wire.kafka.messages.groups import (
    ConsumerGroupHeartbeatAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
)
from odradek.wire.kafka.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)

pytestmark = pytest.mark.anyio

TOPIC_ID = bytes(range(16))
FEATURE = FinalizedFeatureKey(name="group.version", max_version_level=1, min_version_level=1)
VERSIONS = ApiVersionsResponse(api_keys=EVERYTHING.api_keys, finalized_features=(FEATURE,))


class AssigningCoordinator(Coordinator):
    """A broker that assigns both partitions of a topic to the one member of a group.

    Attributes:
        epoch: Of the member, at its next heartbeat.
        target: Partitions to assign.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 1
        self.target: tuple[int, ...] = (0, 1)
        self.assigned: tuple[int, ...] = ()
        self.answers[ApiVersionsRequest] = lambda request, version: VERSIONS
        self.answers[MetadataRequest] = self.metadata
        self.answers[ConsumerGroupHeartbeatRequest] = self.heartbeat

    def metadata(self, request: MetadataRequest, version: int) -> MetadataResponse:
        if request.topics and request.topics[0].topic_id == TOPIC_ID:
            return MetadataResponse(topics=(MetadataResponseTopic(name="t", topic_id=TOPIC_ID),))
        return METADATA

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest, version: int) -> ConsumerGroupHeartbeatResponse:
        if error := self.error(request):
            return ConsumerGroupHeartbeatResponse(error_code=error, error_message="scripted")
        assignment = None
        if request.member_epoch == 0 or self.assigned != self.target:
            self.assigned = self.target
            parts = TopicIdPartitions(topic_id=TOPIC_ID, partitions=self.target)
            assignment = ConsumerGroupHeartbeatAssignment(topic_partitions=(parts,))
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=self.epoch, heartbeat_interval_ms=50, assignment=assignment
        )


BOTH = {A: None, B: None}


async def test_the_coordinator_assigns_and_learns_what_is_owned(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = AssigningCoordinator()
    async with member_of(peer, monkeypatch) as (member, listener):
        await listener.until(1)
        await member.commit({A: Position(3)})
        await peer.until_sent(ConsumerGroupHeartbeatRequest, 2)
    assert listener.calls == [("assign", BOTH)]
    assert peer.positions == {A: 3}
    join, *others, leave = peer.of(ConsumerGroupHeartbeatRequest)
    assert (join.member_epoch, join.subscribed_topic_names) == (0, ("t",))
    owned = (TopicIdPartitions(topic_id=TOPIC_ID, partitions=(0, 1)),)
    assert [request.topic_partitions for request in others if request.topic_partitions is not None] == [owned]
    assert (leave.member_epoch, leave.member_id) == (-1, member.consumer_id)


async def test_only_what_moves_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = AssigningCoordinator()
    async with member_of(peer, monkeypatch) as (_, listener):
        await listener.until(1)
        peer.epoch, peer.target = 2, (0,)
        await listener.until(2)
        peer.epoch, peer.target = 3, (0, 1)
        await listener.until(3)
    assert listener.calls == [("assign", BOTH), ("revoke", {B}), ("assign", {B: None})]


async def test_a_partition_that_comes_back_again_and_again_is_assigned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While positions cannot be read. Assigned twice, it would begin again at the position that was read then."""
    peer = AssigningCoordinator()
    peer.errors[OffsetFetchRequest] = [ErrorCode.UNSTABLE_OFFSET_COMMIT] * 10_000
    async with driver_at(peer, monkeypatch, timeout_s=0.2) as driver:
        member, listener = driver.membership(Subscription("g", {"t": 1})), Listener()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.run, listener)
            for peer.epoch, peer.target in ((1, (0, 1)), (2, (0,)), (3, (0, 1)), (4, (0,)), (5, (0, 1))):
                owned = (TopicIdPartitions(topic_id=TOPIC_ID, partitions=peer.target),)
                while all(each.topic_partitions != owned for each in peer.of(ConsumerGroupHeartbeatRequest)[-1:]):
                    await peer.until_sent(ConsumerGroupHeartbeatRequest, 1)
            peer.errors[OffsetFetchRequest] = []
            while member._runner._steps or B not in member._assigned:
                await peer.until_sent(ConsumerGroupHeartbeatRequest, 1)
            tasks.cancel_scope.cancel()
        await member.leave()
    assigned = [partition for _, positions in listener.calls if isinstance(positions, dict) for partition in positions]
    assert sorted(assigned) == [A, B], listener.calls


async def test_a_fenced_member_loses_everything_and_joins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = AssigningCoordinator()
    async with member_of(peer, monkeypatch) as (_, listener):
        await listener.until(1)
        peer.errors[ConsumerGroupHeartbeatRequest] = [ErrorCode.FENCED_MEMBER_EPOCH] * 2
        await listener.until(3)
    assert listener.calls == [("assign", BOTH), ("lost", {A, B}), ("assign", BOTH)]


async def test_a_commit_with_a_stale_epoch_is_repeated_with_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = AssigningCoordinator()

    def commit(request: OffsetCommitRequest, version: int) -> OffsetCommitResponse:
        if request.generation_id_or_member_epoch != peer.epoch:
            peer.errors[OffsetCommitRequest] = [ErrorCode.STALE_MEMBER_EPOCH]
        return peer.commit(request, version)

    peer.answers[OffsetCommitRequest] = commit
    async with member_of(peer, monkeypatch) as (member, listener):
        await listener.until(1)
        peer.epoch = 7
        await member.commit({A: Position(3)})
        assert peer.positions == {A: 3}
        assert peer.of(OffsetCommitRequest)[-1].generation_id_or_member_epoch == 7


@pytest.mark.parametrize("act", ["heartbeat", "commit", "leave"])
async def test_what_is_sent_next_has_the_epoch_that_the_heartbeat_thread_was_given(
    monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """While the loop was blocked, with a heartbeat in flight, its thread was given the epoch after the next."""
    peer, blocked, refused = AssigningCoordinator(), anyio.Event(), 0

    def heartbeat(request: ConsumerGroupHeartbeatRequest, version: int) -> ConsumerGroupHeartbeatResponse:
        nonlocal refused
        if 0 < request.member_epoch < peer.epoch:
            refused += 1
            return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH)
        response = peer.heartbeat(request, version)
        if listener.calls and not blocked.is_set():
            peer.epoch = 3
            sent = SentHeartbeat(request, ConsumerGroupHeartbeatResponse(member_epoch=3))
            member._runner._heartbeats._sent.append(sent)
            blocked.set()
        return response

    peer.answers[ConsumerGroupHeartbeatRequest] = heartbeat
    async with member_of(peer, monkeypatch) as (member, listener):
        await listener.until(1)
        with anyio.fail_after(10):
            await blocked.wait()
        if act == "commit":
            await member.commit({A: Position(3)})
            assert [request.generation_id_or_member_epoch for request in peer.of(OffsetCommitRequest)] == [3]
        elif act == "heartbeat":
            await peer.until_sent(ConsumerGroupHeartbeatRequest, 2)
            assert peer.of(ConsumerGroupHeartbeatRequest)[-1].member_epoch == 3
    assert peer.of(ConsumerGroupHeartbeatRequest)[-1].member_epoch == -1
    assert listener.calls == [("assign", BOTH)] and not refused


async def test_a_group_that_only_classic_members_can_join_is_joined_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = AssigningCoordinator()
    peer.errors[ConsumerGroupHeartbeatRequest] = [ErrorCode.GROUP_ID_NOT_FOUND]
    async with member_of(peer, monkeypatch) as (_, listener):
        await listener.until(1)
        assert peer.of(JoinGroupRequest)
    assert len(peer.of(ConsumerGroupHeartbeatRequest)) == 1


async def test_a_protocol_that_was_asked_for_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = AssigningCoordinator()
    peer.errors[ConsumerGroupHeartbeatRequest] = [ErrorCode.GROUP_ID_NOT_FOUND]
    async with driver_at(peer, monkeypatch) as driver:
        member = driver.membership(Subscription("g", {"t": 1}, group_protocol="consumer"))
        with anyio.fail_after(10):
            with pytest.raises(BrokerError, match="scripted"):
                await member.run(Listener())
            await member.leave()
    assert not peer.of(JoinGroupRequest)


async def test_a_protocol_that_is_switched_on_while_a_cluster_is_connected_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By `group.version`. Connections that were opened before have said that it is off."""
    peer, listener = AssigningCoordinator(), Listener()
    peer.answers[ApiVersionsRequest] = lambda request, version: EVERYTHING
    peer.errors[ConsumerGroupHeartbeatRequest] = [ErrorCode.UNSUPPORTED_VERSION]
    async with driver_at(peer, monkeypatch) as driver:
        member = driver.membership(Subscription("g", {"t": 1}, group_protocol="consumer"))
        with anyio.fail_after(10):
            with pytest.raises(Unsupported, match=r"needs Kafka 4\.0, with group\.version 1"):
                await member.run(listener)
            await member.leave()
        member = driver.membership(Subscription("g", {"t": 1}, group_protocol="consumer"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.run, listener)
            await listener.until(1)
            tasks.cancel_scope.cancel()
        await member.leave()
    assert listener.calls == [("assign", BOTH)]


GONE = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize("code", GONE)
async def test_a_member_whose_group_is_gone_loses_everything_and_joins_again(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    peer = AssigningCoordinator()
    async with member_of(peer, monkeypatch, group_protocol="consumer") as (_, listener):
        await listener.until(1)
        peer.errors[ConsumerGroupHeartbeatRequest] = [code]
        await listener.until(3)
    assert listener.calls == [("assign", BOTH), ("lost", {A, B}), ("assign", BOTH)]


@pytest.mark.parametrize("code", GONE)
async def test_a_member_whose_group_has_become_a_classic_one_loses_everything_before_it_joins_that(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    peer = AssigningCoordinator()
    async with member_of(peer, monkeypatch) as (_, listener):
        await listener.until(1)
        peer.errors[ConsumerGroupHeartbeatRequest] = [code] * 2
        await listener.until(3)
        assert peer.of(JoinGroupRequest)
    assert listener.calls == [("assign", BOTH), ("lost", {A, B}), ("assign", BOTH)]


async def test_a_pattern_is_left_to_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = AssigningCoordinator()
    async with driver_at(peer, monkeypatch) as driver:
        member, listener = driver.membership(Subscription("g", include="t|u")), Listener()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.run, listener)
            await listener.until(1)
            tasks.cancel_scope.cancel()
        await member.leave()
    join = peer.of(ConsumerGroupHeartbeatRequest)[0]
    assert (join.subscribed_topic_names, join.subscribed_topic_regex) == ((), "t|u")
    assert listener.calls == [("assign", BOTH)]


@pytest.mark.parametrize(
    ("topics", "assigned"), [({"include": ".*"}, {}), ({"topics": {"t": 1}}, BOTH)], ids=["pattern", "name"]
)
async def test_a_topic_of_kafka_itself_is_read_only_by_name(
    monkeypatch: pytest.MonkeyPatch, topics: dict[str, Any], assigned: dict[TopicPartition, None]
) -> None:
    """Coordinators assign the topics that match a pattern, also __consumer_offsets: each commit would be a record."""
    peer = AssigningCoordinator()

    def metadata(request: MetadataRequest, version: int) -> MetadataResponse:
        by_id = request.topics and request.topics[0].topic_id == TOPIC_ID
        return peer.metadata(request, version) if by_id else metadata_response(topic_response("t", 1, 1, internal=True))

    peer.answers[MetadataRequest] = metadata
    async with driver_at(peer, monkeypatch) as driver:
        member, listener = driver.membership(Subscription("g", **topics)), Listener()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.run, listener)
            await listener.until(1)
            peer.target = ()
            await peer.until_sent(ConsumerGroupHeartbeatRequest, 3)
            tasks.cancel_scope.cancel()
        await member.leave()
    assert listener.calls == [("assign", assigned), *([("revoke", {A, B})] if assigned else [])]


C = ErrorCode
PASSING = (C.COORDINATOR_NOT_AVAILABLE, C.NOT_COORDINATOR, C.COORDINATOR_LOAD_IN_PROGRESS, C.UNKNOWN_SERVER_ERROR)
RIGHTS = (C.GROUP_AUTHORIZATION_FAILED, C.TOPIC_AUTHORIZATION_FAILED)
FATAL = (*RIGHTS, C.INVALID_REQUEST, C.UNSUPPORTED_ASSIGNOR, C.INVALID_REGULAR_EXPRESSION, ErrorCode(999))
ERRORS: list[tuple[str, type, tuple[ErrorCode, ...], list[str], str]] = [
    ("finding", FindCoordinatorRequest, (*PASSING, C.REQUEST_TIMED_OUT), ["assign"], ""),
    ("finding", FindCoordinatorRequest, (RIGHTS[0], C.INVALID_REQUEST), [], "run"),
    ("joining", ConsumerGroupHeartbeatRequest, (*PASSING, C.UNKNOWN_MEMBER_ID, C.FENCED_MEMBER_EPOCH), ["assign"], ""),
    ("joining", ConsumerGroupHeartbeatRequest, (C.UNRELEASED_INSTANCE_ID,), ["assign"], ""),
    ("joining", ConsumerGroupHeartbeatRequest, (*FATAL, C.GROUP_MAX_SIZE_REACHED, C.FENCED_INSTANCE_ID), [], "run"),
    ("reading positions", OffsetFetchRequest, (*PASSING, C.STALE_MEMBER_EPOCH), ["assign"], ""),
    ("reading positions", OffsetFetchRequest, (*RIGHTS, C.UNKNOWN_MEMBER_ID, ErrorCode(999)), [], "run"),
    ("joined", ConsumerGroupHeartbeatRequest, PASSING, ["assign"], ""),
    ("joined", ConsumerGroupHeartbeatRequest, (C.UNKNOWN_MEMBER_ID,), ["assign", "lost", "assign"], ""),
    ("joined", ConsumerGroupHeartbeatRequest, (*FATAL, C.UNRELEASED_INSTANCE_ID), ["assign", "lost"], "run"),
    ("committing", OffsetCommitRequest, (*PASSING, C.STALE_MEMBER_EPOCH, C.UNKNOWN_TOPIC_ID), ["assign"], ""),
    (
        "committing",
        OffsetCommitRequest,
        (*RIGHTS, C.UNKNOWN_MEMBER_ID, C.FENCED_MEMBER_EPOCH, C.INVALID_COMMIT_OFFSET_SIZE, ErrorCode(999)),
        ["assign"],
        "commit",
    ),
    ("leaving", ConsumerGroupHeartbeatRequest, (*PASSING, C.UNKNOWN_MEMBER_ID, *FATAL), ["assign"], ""),
]


@pytest.mark.parametrize(
    ("state", "kind", "code", "calls", "fails"),
    [
        pytest.param(state, kind, code, calls, fails, id=f"{state}-{code.name}")
        for state, kind, codes, calls, fails in ERRORS
        for code in codes
    ],
)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_each_error_passes_or_is_told_and_the_member_ends(
    state: str, kind: type, code: ErrorCode, calls: list[str], fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, failed = AssigningCoordinator(), list[str]()

    async def attempt(what: str, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except (BrokerError, Fenced) as error:
            assert code.name in str(error) or "scripted" in str(error)
            failed.append(what)

    def refuse_next() -> None:
        peer.errors[kind] = [code]

    if state not in ("joined", "committing", "leaving"):
        refuse_next()
    with anyio.fail_after(10):
        async with driver_at(peer, monkeypatch, timeout_s=2.0) as driver:
            member, listener = driver.membership(Subscription("g", {"t": 1}, group_protocol="consumer")), Listener()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(attempt, "run", partial(member.run, listener))
                while not failed and not listener.calls:  # noqa: ASYNC110 - two kinds of events
                    await anyio.sleep(0.005)
                if state == "joined":
                    refuse_next()
                    await peer.until_sent(kind, 1)
                    while not failed and len(peer.of(kind)) < 4:  # noqa: ASYNC110
                        await anyio.sleep(0.005)
                    await listener.until(len(calls))
                elif state == "committing":
                    refuse_next()
                    await attempt("commit", lambda: member.commit({A: Position(3)}))
                    assert peer.positions == ({} if failed else {A: 3})
                elif state == "leaving":
                    refuse_next()
                await member.leave()
                tasks.cancel_scope.cancel()
    assert [what for what, _ in listener.calls] == calls and failed == ([fails] if fails else [])
    assert peer.errors[kind] == [], "it was refused"
