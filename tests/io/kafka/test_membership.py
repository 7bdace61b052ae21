"""Members of a group and committed positions, with a scripted coordinator."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.io.kafka.answers import metadata_response, topic_response
from tests.io.kafka.peer import EVERYTHING, Peer, of_release
from tests.io.limits import TimeLimit

from odradek.client.consumer.consumer import Consumer
from odradek.core.backoff import Backoff
from odradek.core.interfaces import Assignment, Subscription
from odradek.core.kafka.assignors import RangeAssignor
from odradek.core.kafka.member import Member
from odradek.core.kafka.routing_snapshot import RoutingSnapshot
from odradek.core.kafka.subscription import decode_assignment, encode_assignment, encode_subscription
from odradek.errors import (
    BrokerError,
    ConfigError,
    DeadlineError,
    Fenced,
    GroupError,
    OdradekError,
    Unreachable,
    Unsupported,
)
from odradek.io.connection import ConnectionOptions
from odradek.io.kafka import connections, group_topics, member_runner, offsets
from odradek.io.kafka.coordinators import CoordinatorType
from odradek.io.kafka.driver import KafkaDriver, KafkaOptions
from odradek.io.kafka.group_topics import GroupTopics
from odradek.io.kafka.membership import KafkaMembership
from odradek.io.kafka.metadata import NOT_KNOWN_S
from odradek.types import Broker, Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import FetchRequest
from odradek.wire.kafka.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
    SyncGroupRequest,
    SyncGroupResponse,
)
from odradek.wire.kafka.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
)
from odradek.wire.kafka.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

pytestmark = pytest.mark.anyio

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
QUICK = Backoff(0.01, 1, 0.01)


class Coordinator(Peer):
    """A broker that coordinates a group with one member, the leader.

    Attributes:
        errors: Error codes of the next answers to a kind of request.
        positions: What is committed.
        epoch: The epoch that was stored with all of them.
        silent: Kinds of requests that are not answered.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                MetadataRequest: lambda request, version: METADATA,
                FindCoordinatorRequest: self.coordinator,
                JoinGroupRequest: self.join,
                SyncGroupRequest: self.sync,
                HeartbeatRequest: lambda request, version: HeartbeatResponse(error_code=self.error(request)),
                OffsetCommitRequest: self.commit,
                OffsetFetchRequest: self.fetch,
            }
        )
        self.errors: dict[type, list[int]] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.epoch = -1
        self.silent: set[type] = set()
        self.generation = 0

    def error(self, request: Any) -> int:
        codes = self.errors.get(type(request))
        return codes.pop(0) if codes else 0

    def of(self, api: type) -> list[Any]:
        return [request for request, _ in self.requests if type(request) is api]

    async def until_sent(self, api: type, more: int) -> None:
        """Wait until so many more requests have arrived."""
        count = len(self.of(api)) + more
        with anyio.fail_after(10):
            while len(self.of(api)) < count:  # noqa: ASYNC110 - what a peer was sent has no event
                await anyio.sleep(0.01)

    def coordinator(self, request: FindCoordinatorRequest, version: int) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(error_code=self.error(request), node_id=1, host="b", port=9092)

    def join(self, request: JoinGroupRequest, version: int) -> JoinGroupResponse | None:
        if type(request) in self.silent:
            return None
        if error := self.error(request):
            return JoinGroupResponse(error_code=error)
        if not request.member_id:
            return JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=f"m{self.generation}")
        self.generation += 1
        protocol = request.protocols[0]
        member = JoinGroupResponseMember(member_id=request.member_id, metadata=protocol.metadata)
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_name=protocol.name,
            leader=request.member_id,
            member_id=request.member_id,
            members=(member,),
        )

    def sync(self, request: SyncGroupRequest, version: int) -> SyncGroupResponse:
        if error := self.error(request):
            return SyncGroupResponse(error_code=error)
        return SyncGroupResponse(assignment=request.assignments[0].assignment)

    def commit(self, request: OffsetCommitRequest, version: int) -> OffsetCommitResponse:
        topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                error = self.error(request)
                if not error:
                    self.positions[TopicPartition(topic.name, part.partition_index)] = part.committed_offset
                parts.append(OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=error))
            topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=tuple(parts)))
        return OffsetCommitResponse(topics=tuple(topics))

    def fetch(self, request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
        (group,) = request.groups
        if error := self.error(request):
            return OffsetFetchResponse(groups=(OffsetFetchResponseGroup(group_id=group.group_id, error_code=error),))
        topics = tuple(
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=tuple(
                    OffsetFetchResponsePartitions(
                        partition_index=n,
                        committed_offset=self.positions.get(TopicPartition(topic.name, n), -1),
                        committed_leader_epoch=self.epoch,
                    )
                    for n in topic.partition_indexes
                ),
            )
            for topic in group.topics or ()
        )
        return OffsetFetchResponse(groups=(OffsetFetchResponseGroup(group_id=group.group_id, topics=topics),))


METADATA = metadata_response(topic_response("t", 1, 1))


class Listener:
    """Records what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []
        self.changed = anyio.Event()

    def record(self, what: str, value: object) -> None:
        self.calls.append((what, value))
        self.changed.set()
        self.changed = anyio.Event()

    async def assign(self, assignment: Assignment) -> None:
        self.record("assign", dict(assignment.committed))

    async def revoke(self, partitions: Collection[TopicPartition]) -> None:
        self.record("revoke", set(partitions))

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self.record("lost", set(partitions))

    async def until(self, count: int) -> None:
        with anyio.fail_after(10):
            while len(self.calls) < count:
                await self.changed.wait()


@asynccontextmanager
async def driver_at(peer: Peer, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 20.0) -> AsyncIterator[KafkaDriver]:
    async def dial(host: str, port: int, timeout: float, *more: object) -> Any:
        return await peer.dial(host, port, timeout)

    monkeypatch.setattr(connections, "connect", dial)
    options = KafkaOptions(
        ConnectionOptions(backoff=QUICK), request_timeout_s=timeout_s, session_timeout_s=9.0, heartbeat_s=0.05
    )
    async with anyio.create_task_group() as peer.group:
        async with KafkaDriver([Broker(-1, "b", 9092)], options) as driver:
            yield driver
        peer.group.cancel_scope.cancel()


@asynccontextmanager
async def member_of(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, **subscription: Any
) -> AsyncIterator[tuple[KafkaMembership, Listener]]:
    """A member that runs."""
    async with driver_at(peer, monkeypatch) as driver:
        member, listener = driver.membership(Subscription("g", {"t": 1}, **subscription)), Listener()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.run, listener)
            yield member, listener
            tasks.cancel_scope.cancel()
        with anyio.fail_after(30):
            await member.leave()


NONE_COMMITTED = {A: None, B: None}


async def test_a_member_joins_gets_its_positions_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    peer.positions[B] = 7
    async with member_of(peer, monkeypatch) as (member, listener):
        await listener.until(1)
        assert listener.calls == [("assign", {A: None, B: 7})]
        await member.commit({A: Position(3)})
        assert member.consumer_id == "m0"
        assert member.problem == ""
    assert peer.positions == {A: 3, B: 7}
    (commit,) = peer.of(OffsetCommitRequest)
    assert (commit.generation_id_or_member_epoch, commit.member_id) == (1, "m0")
    (left,) = peer.of(LeaveGroupRequest)
    assert left.members[0].member_id == "m0"


async def test_a_leader_that_may_not_read_a_topic_fails_and_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or all other members would wait for its assignment until its session has timed out."""
    peer = Coordinator()
    refused = metadata_response(topic_response("t", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    peer.answers[MetadataRequest] = lambda request, version: refused
    async with driver_at(peer, monkeypatch) as driver:
        member = driver.membership(Subscription("g", {"t": 1}))
        with anyio.fail_after(10):
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                await member.run(Listener())
            before = len(peer.of(HeartbeatRequest))
            await anyio.sleep(0.2)  # four intervals of heartbeats
            assert len(peer.of(HeartbeatRequest)) == before
            assert not peer.of(LeaveGroupRequest), "what was read before is yet to be committed"
            await member.leave()
    assert [left.members[0].member_id for left in peer.of(LeaveGroupRequest)] == ["m0"]
    assert not peer.of(SyncGroupRequest)


@pytest.mark.parametrize("name", ["..", "a/b", "bad name", "x" * 250])
async def test_a_name_that_no_topic_can_have_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where brokers assign, a member would wait for a topic of this name for ever."""
    async with driver_at(Coordinator(), monkeypatch) as driver:
        with pytest.raises(ConfigError, match="a name has 1 to 249 of the characters"):
            Consumer(driver, ["t", name], group="g")


async def test_a_coordinator_is_found_after_the_cluster_has_sent_the_client_back_to_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No broker is known then, which passes."""
    peer = Coordinator()
    async with driver_at(peer, monkeypatch) as driver:
        peer.answers[MetadataRequest] = lambda request, version: MetadataResponse(error_code=129)
        with pytest.raises(BrokerError):
            await driver.metadata.refresh()
        with pytest.raises(BrokerError, match="REBOOTSTRAP_REQUIRED") as caught:
            await driver.coordinator(CoordinatorType.GROUP, "g")
        assert caught.value.retriable
        peer.answers[MetadataRequest] = lambda request, version: METADATA
        assert (await driver.coordinator(CoordinatorType.GROUP, "g")).address == "b:9092"


@pytest.mark.parametrize("what", ["coordinator", "producer id"])
async def test_brokers_that_all_got_other_addresses_are_looked_up_again(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Otherwise only once the metadata are five minutes old, where nothing is fetched or sent."""
    peer = Coordinator()
    old = MetadataResponse(brokers=(MetadataResponseBroker(node_id=1, host="old", port=9092),))
    peer.answers[MetadataRequest] = lambda request, version: old
    dial = peer.dial

    async def dial_new(host: str, port: int, timeout: float) -> Any:
        if host == "old":
            raise Unreachable("tcp", f"{host}:{port}", "refused")
        return await dial(host, port, timeout)

    monkeypatch.setattr(peer, "dial", dial_new)
    async with driver_at(peer, monkeypatch) as driver:

        async def ask() -> object:
            if what == "coordinator":
                return await driver.coordinator(CoordinatorType.GROUP, "g")
            return await driver.ask(InitProducerIdRequest, lambda versions: InitProducerIdRequest())

        peer.answers[MetadataRequest] = lambda request, version: METADATA
        with pytest.raises(Unreachable):
            await ask()
        await ask()


async def test_a_broker_that_is_older_than_others_does_not_end_a_producer_that_asks_for_its_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """During an upgrade to 0.11: whichever is asked first."""
    peer = Coordinator()
    old = tuple([api for api in EVERYTHING.api_keys if api.api_key != InitProducerIdRequest.SPEC.key])

    def versions(request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        return ApiVersionsResponse(api_keys=old) if peer.connections[-1] == "old:9092" else EVERYTHING

    peer.answers[ApiVersionsRequest] = versions
    hosts = ("b", "old")
    brokers = tuple([MetadataResponseBroker(node_id=n, host=host, port=9092) for n, host in enumerate(hosts, 1)])
    peer.answers[MetadataRequest] = lambda request, version: MetadataResponse(brokers=brokers)
    peer.answers[InitProducerIdRequest] = lambda request, version: InitProducerIdResponse(producer_id=5)
    monkeypatch.setattr("odradek.io.kafka.driver.shuffle", lambda each: each.sort(key=lambda broker: -broker.id))
    async with driver_at(peer, monkeypatch) as driver:
        sequences = driver.producer_sequences()
        assert sequences is not None
        await sequences.identify()
        assert sequences.ready
    assert peer.connections == ["b:9092", "old:9092"]


async def test_commits_carry_metadata_and_the_epoch_of_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    async with driver_at(peer, monkeypatch) as driver:
        member, listener = driver.membership(Subscription("g", {"t": 1}, commit_metadata="host 1")), Listener()
        driver.epochs.record(A, 0, 3, 4)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.run, listener)
            await listener.until(1)
            await member.commit({A: Position(3), B: Position(3)})
            tasks.cancel_scope.cancel()
        await member.leave()
    (commit,) = peer.of(OffsetCommitRequest)
    parts = {p.partition_index: p for p in commit.topics[0].partitions}
    assert [parts[n].committed_leader_epoch for n in range(2)] == [4, -1]
    assert {p.committed_metadata for p in parts.values()} == {"host 1"}


async def test_a_position_that_is_stored_again_keeps_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the next member that begins there does not notice that the log was truncated before it."""
    peer = Coordinator()
    peer.positions[A], peer.epoch = 7, 4
    async with member_of(peer, monkeypatch) as (member, listener):
        await listener.until(1)
        await member.commit({A: Position(7)})
    (commit,) = peer.of(OffsetCommitRequest)
    assert commit.topics[0].partitions[0].committed_leader_epoch == 4


async def test_a_rebalance_takes_everything_from_an_eager_member(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    async with member_of(peer, monkeypatch) as (_, listener):
        await listener.until(1)
        peer.errors[HeartbeatRequest] = [ErrorCode.REBALANCE_IN_PROGRESS]
        await listener.until(3)
    assert listener.calls == [("assign", NONE_COMMITTED), ("revoke", {A, B}), ("assign", NONE_COMMITTED)]


async def test_a_rebalance_does_not_wait_for_positions_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the transaction of a producer that was killed stores others: it is aborted when its time is over."""
    peer = Coordinator()
    peer.errors[OffsetFetchRequest] = [ErrorCode.UNSTABLE_OFFSET_COMMIT] * 10_000
    async with driver_at(peer, monkeypatch, timeout_s=0.3) as driver:
        member, listener = driver.membership(Subscription("g", {"t": 1})), Listener()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.run, listener)
            await peer.until_sent(OffsetFetchRequest, 1)
            peer.errors[HeartbeatRequest] = [ErrorCode.REBALANCE_IN_PROGRESS]
            await peer.until_sent(SyncGroupRequest, 1)
            peer.errors[OffsetFetchRequest] = []
            await listener.until(2)
            tasks.cancel_scope.cancel()
        await member.leave()
    assert listener.calls == [("assign", {}), ("assign", NONE_COMMITTED)]


async def test_a_rebalance_takes_from_a_cooperative_member_only_what_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    async with member_of(peer, monkeypatch, assignors=["cooperative-sticky"]) as (_, listener):
        await listener.until(1)
        peer.answers[SyncGroupRequest] = lambda request, version: SyncGroupResponse(assignment=encode_assignment([A]))
        peer.errors[HeartbeatRequest] = [ErrorCode.REBALANCE_IN_PROGRESS]
        await listener.until(4)
    assert listener.calls == [("assign", NONE_COMMITTED), ("revoke", {B}), ("assign", {}), ("assign", {})]


@pytest.mark.parametrize(
    ("code", "member_id"), [(ErrorCode.UNKNOWN_MEMBER_ID, "m1"), (ErrorCode.ILLEGAL_GENERATION, "m0")]
)
async def test_a_member_that_was_removed_loses_everything_and_joins_again(
    monkeypatch: pytest.MonkeyPatch, code: int, member_id: str
) -> None:
    peer = Coordinator()
    async with member_of(peer, monkeypatch) as (member, listener):
        await listener.until(1)
        peer.errors[HeartbeatRequest] = [code]
        await listener.until(3)
        assert listener.calls[1:] == [("lost", {A, B}), ("assign", NONE_COMMITTED)]
        assert member.consumer_id == member_id


async def test_positions_of_a_topic_that_was_made_again_meanwhile_are_of_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member without a partition of it has not heard of that. The positions were taken for those of the former."""
    monkeypatch.setattr(group_topics, "CURRENT_S", 0.0)
    peer, ids = Coordinator(), []
    peer.positions[A] = 7
    topics = [topic_response("t", 1, topic_id=b"1" * 16)]
    peer.answers[MetadataRequest] = lambda request, version: metadata_response(topics[-1])

    class Ids(Listener):
        async def assign(self, assignment: Assignment) -> None:
            ids.append(driver.metadata.table.topic_id("t"))
            await super().assign(assignment)

    async with driver_at(peer, monkeypatch) as driver:
        member, listener = driver.membership(Subscription("g", {"t": 1}, assignors=["cooperative-sticky"])), Ids()
        peer.answers[SyncGroupRequest] = lambda request, version: SyncGroupResponse()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.run, listener)
            await listener.until(1)
            topics.append(topic_response("t", 1, topic_id=b"2" * 16))
            assigned = SyncGroupResponse(assignment=encode_assignment([A]))
            peer.answers |= {JoinGroupRequest: follow(peer), SyncGroupRequest: lambda request, version: assigned}
            peer.errors[HeartbeatRequest] = [ErrorCode.REBALANCE_IN_PROGRESS]
            await listener.until(2)
            tasks.cancel_scope.cancel()
        await member.leave()
    assert listener.calls == [("assign", {}), ("assign", {A: 7})]
    assert ids == [b"1" * 16, b"2" * 16]


def follow(peer: Coordinator) -> Any:
    """Answers of a group that another member leads."""

    def join(request: JoinGroupRequest, version: int) -> JoinGroupResponse | None:
        answer = peer.join(request, version)
        return answer and answer.__replace__(leader="another", members=())

    return join


async def test_a_commit_of_an_ended_generation_is_refused_and_the_member_joins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = Coordinator()
    async with member_of(peer, monkeypatch) as (member, listener):
        await listener.until(1)
        peer.errors[OffsetCommitRequest] = [ErrorCode.ILLEGAL_GENERATION]
        with pytest.raises(BrokerError, match=r"t/0: ILLEGAL_GENERATION"):
            await member.commit({A: Position(3)})
        await listener.until(3)
        assert peer.positions == {}


async def test_a_commit_that_is_refused_while_the_member_joins_is_repeated_in_the_next_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group with members of both protocols begins the next generation as soon as JoinGroup has arrived."""
    peer, refused = Coordinator(), anyio.Event()

    def commit(request: OffsetCommitRequest, version: int) -> OffsetCommitResponse:
        if request.generation_id_or_member_epoch == 1:
            peer.errors[OffsetCommitRequest] = [ErrorCode.ILLEGAL_GENERATION]
            refused.set()
        return peer.commit(request, version)

    peer.answers[OffsetCommitRequest] = commit
    async with member_of(peer, monkeypatch, assignors=["cooperative-sticky"]) as (member, listener):
        await listener.until(1)
        peer.silent.add(JoinGroupRequest)
        peer.errors[HeartbeatRequest] = [ErrorCode.REBALANCE_IN_PROGRESS]
        await peer.until_sent(JoinGroupRequest, 1)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(member.commit, {A: Position(3)})
                await refused.wait()
                peer.silent.clear()
                await peer.hang_up()
        assert peer.positions == {A: 3}
        assert peer.of(OffsetCommitRequest)[-1].generation_id_or_member_epoch == 2
        await listener.until(2)
    assert [call for call, _ in listener.calls] == ["assign", "assign"]


async def test_what_a_member_lost_is_not_committed_without_its_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers take a commit that names no generation, if the group has no members any more."""
    peer = Coordinator()
    async with member_of(peer, monkeypatch) as (member, listener):
        await listener.until(1)
        runner = member._runner
        runner.commit_refused(runner.member.fence, ErrorCode.UNKNOWN_MEMBER_ID)
        with pytest.raises(GroupError, match="t/0 does not belong to this member"):
            await member.commit({A: Position(3)})
        await listener.until(3)
    assert not peer.of(OffsetCommitRequest)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REBALANCE_IN_PROGRESS,
    ],
)
async def test_a_commit_is_repeated_after_a_passing_error(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    peer = Coordinator()
    async with member_of(peer, monkeypatch, assignors=["cooperative-sticky"]) as (member, listener):
        await listener.until(1)
        peer.errors[OffsetCommitRequest] = [0, code]
        await member.commit({A: Position(3), B: Position(4)})
        assert peer.positions == {A: 3, B: 4}
        assert len(peer.of(OffsetCommitRequest)) == 2


@pytest.mark.parametrize("version", [9, 10])
async def test_a_position_of_a_topic_that_was_made_again_is_not_committed_in_the_new_one(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """From 10 on (4.2) the topic is named by its id, and the broker refuses one that is gone."""
    peer, sent = Coordinator(), []
    topics = [b"1" * 16]

    def commit(request: OffsetCommitRequest, version: int) -> OffsetCommitResponse:
        (topic,) = request.topics
        sent.append((topic.name, topic.topic_id))
        topics.append(b"2" * 16)
        error = ErrorCode.UNKNOWN_TOPIC_ID if version == 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        part = OffsetCommitResponsePartition(partition_index=0, error_code=error)
        return OffsetCommitResponse(
            topics=(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=(part,)),)
        )

    peer.answers[OffsetCommitRequest] = commit
    peer.answers[MetadataRequest] = lambda request, version: metadata_response(
        topic_response("t", 1, topic_id=topics[-1])
    )
    api = OffsetCommitRequest.SPEC.key
    at_most = [each for each in EVERYTHING.api_keys if each.api_key != api]
    peer.answers[ApiVersionsRequest] = lambda request, _: ApiVersionsResponse(
        api_keys=(*at_most, ApiVersion(api_key=api, min_version=2, max_version=version))
    )
    async with driver_at(peer, monkeypatch) as driver:
        await driver.metadata.table_for_topic("t")
        with anyio.fail_after(10):
            await driver.offsets("g").commit({A: Position(100)})
    assert sent == [("", b"1" * 16) if version == 10 else ("t", bytes(16))]


@pytest.mark.parametrize("deleted_for", [0, 2])
async def test_a_position_of_a_topic_that_was_deleted_is_not_stored_once_it_is_made_again(
    monkeypatch: pytest.MonkeyPatch, deleted_for: int
) -> None:
    """Brokers before 4.2 take names: it would be stored for the new topic, whose first records were skipped."""
    peer, now = Coordinator(), [topic_response("t", 2, topic_id=b"1" * 16)]
    again = topic_response("t", 2, topic_id=b"2" * 16)
    peer.answers[MetadataRequest] = lambda request, version: metadata_response(now.pop(0) if len(now) > 1 else now[0])
    api = OffsetCommitRequest.SPEC.key
    others = [each for each in EVERYTHING.api_keys if each.api_key != api]
    peer.answers[ApiVersionsRequest] = lambda request, _: ApiVersionsResponse(
        api_keys=(*others, ApiVersion(api_key=api, min_version=2, max_version=9))
    )
    async with driver_at(peer, monkeypatch) as driver:
        await driver.metadata.table_for_topic("t")
        peer.errors[OffsetCommitRequest] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        now[:] = [*[UNKNOWN] * (1 + deleted_for), again]
        with anyio.fail_after(10):
            await driver.offsets("g").commit({A: Position(100)})
    assert len(peer.of(OffsetCommitRequest)) == 1
    assert peer.positions == {}


async def test_positions_of_a_topic_that_was_deleted_are_an_error_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    async with driver_at(peer, monkeypatch) as driver:
        await driver.metadata.table_for_topic("t")
        peer.errors[OffsetCommitRequest] = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000
        peer.answers[MetadataRequest] = lambda request, version: metadata_response(UNKNOWN)
        with anyio.fail_after(NOT_KNOWN_S + 3), pytest.raises(BrokerError, match="not stored: t/0") as caught:
            await driver.offsets("g").commit({A: Position(100)})
    assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(peer.of(MetadataRequest)) > 3  # it was asked again


async def test_positions_of_others_are_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    async with member_of(peer, monkeypatch) as (member, listener):
        await listener.until(1)
        with pytest.raises(GroupError, match=r"t/9 does not belong to this member"):
            await member.commit({TopicPartition("t", 9): Position(1)})
    assert not peer.of(OffsetCommitRequest)


@pytest.mark.parametrize("pattern", [{"include": "t|u.*"}, {"exclude": "v"}])
async def test_a_pattern_selects_topics_and_follows_new_ones(
    monkeypatch: pytest.MonkeyPatch, pattern: dict[str, Any]
) -> None:
    peer = Coordinator()
    changed = metadata_response(*METADATA.topics, topic_response("u", 1), topic_response("v", 1))
    async with driver_at(peer, monkeypatch) as driver:
        member, listener = driver.membership(Subscription("g", streams=2, **pattern)), Listener()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.run, listener)
            await listener.until(1)
            peer.answers[MetadataRequest] = lambda request, version: changed
            await driver.metadata.refresh()
            await listener.until(3)
            tasks.cancel_scope.cancel()
    assert listener.calls[0] == ("assign", NONE_COMMITTED)
    assert listener.calls[-1] == ("assign", {**NONE_COMMITTED, TopicPartition("u", 0): None})


async def test_topics_that_appear_while_the_member_joins_are_joined_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata that is read for the assignment is the first that has them, and nothing changes after that."""
    peer = Coordinator()

    def join(request: JoinGroupRequest, version: int) -> JoinGroupResponse | None:
        peer.answers[MetadataRequest] = lambda request, version: changed
        return peer.join(request, version)

    changed = metadata_response(*METADATA.topics, topic_response("u", 1))
    async with driver_at(peer, monkeypatch) as driver:
        member, listener = driver.membership(Subscription("g", include="t|u")), Listener()
        peer.answers[JoinGroupRequest] = join
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.run, listener)
            await listener.until(2)
            tasks.cancel_scope.cancel()
    assert listener.calls[-1] == ("assign", {**NONE_COMMITTED, TopicPartition("u", 0): None})
    assert len(peer.of(SyncGroupRequest)) == 2


UNKNOWN = topic_response("t", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.mark.parametrize("topics", [{"topics": {"t": 1, "u": 1}}, {"include": "t|u"}])
async def test_topics_that_a_broker_does_not_know_yet_are_no_reason_to_join_again(
    monkeypatch: pytest.MonkeyPatch, topics: dict[str, Any]
) -> None:
    """As brokers with ZooKeeper that have just started. Topics that are missing for longer were deleted."""
    monkeypatch.setattr(member_runner, "NOT_KNOWN_S", 0.2)
    monkeypatch.setattr(group_topics, "NOT_KNOWN_S", 0.2)
    peer, other = Coordinator(), topic_response("u", 1)
    answers = [metadata_response(*METADATA.topics, other)]
    peer.answers[MetadataRequest] = lambda request, version: answers[-1]
    async with driver_at(peer, monkeypatch) as driver:
        member, listener = driver.membership(Subscription("g", **topics)), Listener()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.run, listener)
            await listener.until(1)
            answers.append(metadata_response(UNKNOWN, other))
            await driver.metadata.refresh()
            answers.pop()
            await driver.metadata.refresh()
            await anyio.sleep(0.4)
            assert len(peer.of(SyncGroupRequest)) == 1
            answers.append(metadata_response(UNKNOWN, other))
            await driver.metadata.refresh()
            await listener.until(3)
            tasks.cancel_scope.cancel()
        await member.leave()
    assert listener.calls[-1] == ("assign", {TopicPartition("u", 0): None})
    assert len(peer.of(SyncGroupRequest)) == 2


async def test_an_assignment_is_not_made_of_topics_that_a_broker_does_not_know_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_topics, "NOT_KNOWN_S", 0.2)
    peer, known_at = Coordinator(), math.inf

    def metadata(request: MetadataRequest, version: int) -> MetadataResponse:
        nonlocal known_at
        if peer.of(JoinGroupRequest):
            known_at = min(known_at, anyio.current_time() + 0.1)  # half of the time until it is read again
            if anyio.current_time() < known_at:
                return metadata_response(UNKNOWN)
        return METADATA

    peer.answers[MetadataRequest] = metadata
    async with driver_at(peer, monkeypatch) as driver:
        await driver.metadata.table_for_topic("t")
        member, listener = driver.membership(Subscription("g", {"t": 1})), Listener()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.run, listener)
            await listener.until(1)
            tasks.cancel_scope.cancel()
        await member.leave()
    assert listener.calls == [("assign", NONE_COMMITTED)]


async def test_an_assignment_is_not_made_of_the_topics_of_a_generation_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The metadata for the first generation comes when the second one, in which a member wants more, is computed."""
    peer, second = Coordinator(), anyio.Event()
    both = encode_subscription(RangeAssignor(), ["t", "u"], owned=(), previous=(), generation=-1, rack=None)
    read, reads = GroupTopics.read, 0

    async def delayed(topics: GroupTopics, names: Collection[str]) -> RoutingSnapshot:
        nonlocal reads
        reads += 1
        if reads == 1:
            await second.wait()
        else:
            second.set()
            await anyio.sleep(0.1)
        return await read(topics, names)

    def join(request: JoinGroupRequest, version: int) -> JoinGroupResponse | None:
        response = peer.join(request, version)
        assert response is not None
        if peer.generation < 2:
            peer.errors[HeartbeatRequest] = [ErrorCode.ILLEGAL_GENERATION]
            return response
        return response.__replace__(members=(JoinGroupResponseMember(member_id="other", metadata=both),))

    monkeypatch.setattr(GroupTopics, "read", delayed)
    peer.answers[JoinGroupRequest] = join
    peer.answers[MetadataRequest] = lambda request, version: metadata_response(*METADATA.topics, topic_response("u", 1))
    async with driver_at(peer, monkeypatch) as driver:
        member, listener = driver.membership(Subscription("g", {"t": 1}, assignors=["range"])), Listener()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member.run, listener)
            await listener.until(1)
            tasks.cancel_scope.cancel()
        await member.leave()
    (share,) = peer.of(SyncGroupRequest)[0].assignments
    assert decode_assignment(share.assignment) == [A, B, TopicPartition("u", 0)]


async def test_a_static_member_keeps_its_partitions_when_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    async with member_of(peer, monkeypatch, consumer_id="me") as (member, listener):
        await listener.until(1)
        await member.commit({A: Position(3)})
    assert {join.group_instance_id for join in peer.of(JoinGroupRequest)} == {"me"}
    assert peer.of(OffsetCommitRequest)[0].group_instance_id == "me"
    assert not peer.of(LeaveGroupRequest)


@pytest.mark.parametrize("api", [FindCoordinatorRequest, JoinGroupRequest, SyncGroupRequest, OffsetFetchRequest])
async def test_passing_errors_delay_joining_only(monkeypatch: pytest.MonkeyPatch, api: type) -> None:
    peer = Coordinator()
    peer.errors[api] = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
    async with member_of(peer, monkeypatch) as (member, listener):
        await listener.until(1)
        assert listener.calls == [("assign", NONE_COMMITTED)]
        assert member.problem == ""
    assert len(peer.of(api)) > 3


@pytest.mark.parametrize(
    ("code", "kind"), [(ErrorCode.GROUP_AUTHORIZATION_FAILED, BrokerError), (ErrorCode.FENCED_INSTANCE_ID, Fenced)]
)
async def test_an_error_that_trying_again_cannot_change_ends_the_member(
    monkeypatch: pytest.MonkeyPatch, code: int, kind: type[OdradekError]
) -> None:
    peer = Coordinator()
    peer.errors[JoinGroupRequest] = [code]
    async with driver_at(peer, monkeypatch) as driver:
        member = driver.membership(Subscription("g", {"t": 1}))
        with anyio.fail_after(10):
            with pytest.raises(kind, match=ErrorCode(code).name):
                await member.run(Listener())
            await member.leave()


async def test_a_defect_ends_one_member_and_is_raised_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    async with driver_at(peer, monkeypatch) as driver:
        with monkeypatch.context() as patch, anyio.fail_after(10):
            patch.setattr(Member, "tick", lambda *_: 1 // 0)
            member = driver.membership(Subscription("g", {"t": 1}))
            with pytest.raises(ZeroDivisionError):
                await member.run(Listener())
            await member.leave()
        with anyio.fail_after(10):
            other, listener = driver.membership(Subscription("h", {"t": 1})), Listener()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(other.run, listener)
                await listener.until(1)
                tasks.cancel_scope.cancel()
            await other.leave()


async def test_members_have_the_time_to_revoke_that_their_consumer_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    async with member_of(peer, monkeypatch, revoke_within=100.0) as (_, listener):
        await listener.until(1)
    assert {join.rebalance_timeout_ms for join in peer.of(JoinGroupRequest)} == {140_000}


async def test_brokers_without_a_rebalance_timeout_bound_the_time_to_revoke(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = of_release("0.9.0")
    peer.answers[MetadataRequest] = lambda request, version: METADATA
    async with driver_at(peer, monkeypatch) as driver:
        with pytest.raises(ConfigError, match=r"revoke_within=9 .*: brokers before 0\.10\.1"):
            driver.membership(Subscription("g", {"t": 1}, revoke_within=9.0))
        with pytest.raises(Unsupported, match=r"static member"):
            driver.membership(Subscription("g", {"t": 1}, consumer_id="one"))


async def test_a_member_stays_in_its_group_over_lost_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    async with member_of(peer, monkeypatch) as (member, listener):
        await listener.until(1)
        await peer.hang_up()
        await peer.until_sent(HeartbeatRequest, 3)
        await member.commit({A: Position(5)})
        assert listener.calls == [("assign", NONE_COMMITTED)]


async def test_leaving_does_not_wait_for_other_members_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    async with member_of(peer, monkeypatch) as (_, listener):
        await listener.until(1)
        peer.silent = {JoinGroupRequest}
        peer.errors[HeartbeatRequest] = [ErrorCode.REBALANCE_IN_PROGRESS]
        await peer.until_sent(JoinGroupRequest, 1)
    (left,) = peer.of(LeaveGroupRequest)
    assert left.members[0].member_id == "m0"


async def test_a_member_that_leaves_before_it_has_its_id_waits_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    async with driver_at(peer, monkeypatch) as driver:
        member = driver.membership(Subscription("g", {"t": 1}))
        with anyio.CancelScope() as scope:

            def join(request: JoinGroupRequest, version: int) -> JoinGroupResponse | None:
                scope.cancel()
                return peer.join(replace_id(request), version)

            peer.answers[JoinGroupRequest] = join
            await member.run(Listener())
        with anyio.fail_after(30):
            await member.leave()
    (left,) = peer.of(LeaveGroupRequest)
    assert left.members[0].member_id == "old"


def replace_id(request: JoinGroupRequest) -> JoinGroupRequest:
    """The request, as if the coordinator had chosen the id of the member at once, as brokers before 2.2 do."""
    return JoinGroupRequest(group_id=request.group_id, member_id="old", protocols=request.protocols)


async def test_a_member_that_never_ran_has_nothing_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    async with driver_at(peer, monkeypatch) as driver:
        await driver.membership(Subscription("g", {"t": 1})).leave()
    assert not peer.of(LeaveGroupRequest)


async def test_an_unknown_assignor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with driver_at(Coordinator(), monkeypatch) as driver:
        with pytest.raises(ConfigError, match="'best' is none of range, roundrobin, sticky, cooperative-sticky"):
            driver.membership(Subscription("g", {"t": 1}, assignors=["best"]))


async def test_brokers_before_0_9_have_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = of_release("0.8.2")
    peer.answers[MetadataRequest] = lambda request, version: METADATA
    async with driver_at(peer, monkeypatch) as driver:
        with pytest.raises(Unsupported, match=r"Kafka 0\.9"):
            driver.membership(Subscription("g", {"t": 1}))
        with pytest.raises(Unsupported, match=r"Kafka 0\.9"):
            await driver.groups()


async def test_brokers_before_0_8_1_store_no_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = of_release("0.8.0")
    peer.answers[MetadataRequest] = lambda request, version: METADATA
    async with driver_at(peer, monkeypatch) as driver:
        with pytest.raises(Unsupported, match=r"Kafka 0\.8\.1"):
            await driver.offsets("g").fetch([A])


async def test_0_8_1_is_asked_twice_whether_nothing_was_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just started does not know the topic, and answers in the same way."""
    peer, answers = of_release("0.8.1"), [{}, {0: 7}]
    peer.answers[MetadataRequest] = lambda request, version: METADATA

    def fetch(request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
        if not request.topics:
            return OffsetFetchResponse()  # which only shows the release
        known = answers.pop(0)
        parts = tuple(
            OffsetFetchResponsePartition(
                partition_index=n, committed_offset=known.get(n, -1), error_code=0 if n in known else 3
            )
            for n in request.topics[0].partition_indexes
        )
        return OffsetFetchResponse(topics=(OffsetFetchResponseTopic(name="t", partitions=parts),))

    peer.answers[OffsetFetchRequest] = fetch
    monkeypatch.setattr(offsets, "NOT_KNOWN_S", 0.01)
    async with driver_at(peer, monkeypatch) as driver:
        assert await driver.offsets("g").fetch([A, B]) == {A: 7, B: None}
    assert not answers


async def test_positions_are_stored_and_read_from_outside_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    peer.errors[OffsetFetchRequest] = [ErrorCode.NOT_COORDINATOR]
    async with driver_at(peer, monkeypatch) as driver:
        store = driver.offsets("g")
        assert await store.fetch([]) == {}
        await store.commit({})
        await store.commit({A: Position(2)})
        assert await store.fetch([A, B]) == {A: 2, B: None}
        (commit,) = peer.of(OffsetCommitRequest)
        assert (commit.generation_id_or_member_epoch, commit.member_id) == (-1, "")
        peer.errors[OffsetCommitRequest] = [ErrorCode.UNKNOWN_MEMBER_ID]
        with pytest.raises(BrokerError, match=r"positions not stored: t/0: UNKNOWN_MEMBER_ID"):
            await store.commit({A: Position(3)})


async def test_storing_positions_ends_with_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    peer.answers[OffsetCommitRequest] = lambda request, version: None
    limit = TimeLimit(20.5, monkeypatch)

    async def end_limit() -> None:
        await peer.until_sent(OffsetCommitRequest, 1)
        limit.end()

    async with driver_at(peer, monkeypatch, timeout_s=20.5) as driver, anyio.create_task_group() as tasks:
        tasks.start_soon(end_limit)
        with pytest.raises(DeadlineError):
            await driver.offsets("g").commit({A: Position(2)})


async def test_groups_of_consumers_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Coordinator()
    kinds = {"b": "consumer", "a": "", "w": "connect"}
    listed = tuple(ListedGroup(group_id=name, protocol_type=kind) for name, kind in kinds.items())
    peer.answers[ListGroupsRequest] = lambda request, version: ListGroupsResponse(groups=listed)
    async with driver_at(peer, monkeypatch) as driver:
        assert await driver.groups() == ["a", "b"]
        peer.answers[ListGroupsRequest] = lambda request, version: ListGroupsResponse(error_code=29)
        with pytest.raises(BrokerError, match="ListGroups"):
            await driver.groups()


async def consume(driver: KafkaDriver) -> None:
    async with Consumer(driver, "t", group="g", exit_within=3.0, max_blocked=0):
        await anyio.sleep(0.05)


def with_everything_committed() -> Coordinator:
    """A coordinator, on a broker that answers no Fetch."""
    peer = Coordinator()
    peer.positions = {A: 1, B: 1}
    peer.answers[FetchRequest] = lambda request, version: None
    return peer


async def test_a_partition_is_read_that_its_group_heard_of_before_this_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator assigns it (KIP-848), or a leader whose metadata is newer."""
    peer, asked = with_everything_committed(), anyio.Event()
    new = TopicPartition("t", 2)
    grown = metadata_response(topic_response("t", 1, 1, 1))

    def sync(request: SyncGroupRequest, version: int) -> SyncGroupResponse:
        peer.answers[MetadataRequest] = lambda request, version: grown if len(peer.of(OffsetFetchRequest)) else METADATA
        return SyncGroupResponse(assignment=encode_assignment([A, B, new]))

    def fetch(request: FetchRequest, version: int) -> None:
        if any(part.partition == 2 for topic in request.topics for part in topic.partitions):
            asked.set()

    peer.answers |= {SyncGroupRequest: sync, FetchRequest: fetch}
    peer.positions[new] = 1
    async with driver_at(peer, monkeypatch) as driver, Consumer(driver, "t", group="g", exit_within=3.0, max_blocked=0):
        with anyio.fail_after(10):
            await asked.wait()


async def test_a_consumer_may_be_cancelled_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = with_everything_committed()
    async with driver_at(peer, monkeypatch) as driver:
        for checkpoints in range(0, 160, 4):
            with anyio.fail_after(30):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(consume, driver)
                    for _ in range(checkpoints):
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
        await consume(driver)
    assert len(peer.of(LeaveGroupRequest)) > 5


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_consumer_may_be_cancelled_natively_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = with_everything_committed()
    async with driver_at(peer, monkeypatch) as driver:
        for checkpoints in range(0, 160, 4):
            task = asyncio.create_task(consume(driver))
            for _ in range(checkpoints):
                await asyncio.sleep(0)
            task.cancel()
            with anyio.fail_after(30):
                await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None
        await consume(driver)
    assert len(peer.of(LeaveGroupRequest)) > 5
