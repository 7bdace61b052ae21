"""Every error that brokers answer to a member of a share group, in every state: what the user hears, what is delivered
again, and that the member leaves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream
from tests.io.kafka.peer import EVERYTHING
from tests.io.kafka.share_broker import FEATURE, SharingBroker
from tests.io.kafka.test_membership import driver_at

from odradek.client.consumer.share import ShareConsumer
from odradek.core.kafka.share_session import ShareSession
from odradek.errors import BrokerError, DeadlineError, GroupError, OdradekError, Unreachable, Unsupported
from odradek.io.kafka.driver import KafkaDriver
from odradek.io.kafka.share_group import KafkaShareGroup
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import FindCoordinatorRequest
from odradek.wire.kafka.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from odradek.wire.kafka.messages.share_groups import (
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
)

pytestmark = pytest.mark.anyio
E = ErrorCode
SHARE_REQUESTS = (ShareGroupHeartbeatRequest, ShareFetchRequest, ShareAcknowledgeRequest)

SESSION = (E.SHARE_SESSION_NOT_FOUND, E.INVALID_SHARE_SESSION_EPOCH)
LEADER = (
    E.NOT_LEADER_OR_FOLLOWER,
    E.FENCED_LEADER_EPOCH,
    E.UNKNOWN_LEADER_EPOCH,
    E.LEADER_NOT_AVAILABLE,
    E.KAFKA_STORAGE_ERROR,
    E.UNKNOWN_TOPIC_ID,
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.INCONSISTENT_TOPIC_ID,
)
MOVED, LOADING = (E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR), E.COORDINATOR_LOAD_IN_PROGRESS
COORDINATOR = (*MOVED, LOADING)
MEMBER = (E.UNKNOWN_MEMBER_ID, E.FENCED_MEMBER_EPOCH)
RIGHTS = (E.GROUP_AUTHORIZATION_FAILED, E.TOPIC_AUTHORIZATION_FAILED)
UNKNOWN = (E.UNKNOWN_SERVER_ERROR, E.REQUEST_TIMED_OUT)
STATE = (E.FENCED_STATE_EPOCH, E.GROUP_ID_NOT_FOUND)
FATAL = (E.INVALID_REQUEST, E.UNSUPPORTED_VERSION, ErrorCode(999))


@dataclass
class Refusal:
    """Refuses the next request of a kind in some epochs.

    Args:
        kind: Of the request.
        epochs: Returns True for the epochs of the session or member.
        code: The error.
    """

    kind: type
    epochs: Callable[[int], bool]
    code: int
    left: int = 1
    refused: list[Any] = field(default_factory=list)

    def __call__(self, request: Any, *partition: int) -> int:
        epoch = getattr(request, "share_session_epoch", getattr(request, "member_epoch", 0))
        if not isinstance(request, self.kind) or not self.epochs(epoch) or len(self.refused) == self.left:
            return 0
        self.refused.append(request)
        return self.code


def first(epoch: int) -> bool:
    return epoch == 0


def later(epoch: int) -> bool:
    return epoch > 0


def last(epoch: int) -> bool:
    return epoch < 0


def consumer_of(driver: KafkaDriver, acknowledge: Any = "implicit", **options: Any) -> ShareConsumer:
    return ShareConsumer(
        driver, "t", **{"group": "g", "acknowledge": acknowledge, "exit_within": 5.0, "join_within": 5.0, **options}
    )


@dataclass
class Outcome:
    """What a member that reads everything has heard.

    Attributes:
        raised: By iterating and by committing.
        leaving: By the end of the block.
        early: Records that it was given although the broker had not acquired them for it.
    """

    raised: list[OdradekError] = field(default_factory=list)
    leaving: OdradekError | None = None
    early: list[tuple[int, int]] = field(default_factory=list)


async def read_all(peer: SharingBroker, monkeypatch: pytest.MonkeyPatch, refusal: Refusal) -> Outcome:
    """Read until every record but those acquired last was accepted, then leave the block. Stop at the third error."""
    outcome = Outcome()
    with anyio.fail_after(8):
        async with driver_at(peer, monkeypatch) as driver:
            try:
                async with consumer_of(driver) as consumer:
                    await _read(peer, consumer, outcome)
                    if refusal.kind is ShareGroupHeartbeatRequest and refusal.epochs is later:
                        await _hear_of_refusal(peer, consumer, refusal)
            except OdradekError as error:
                outcome.leaving = error
    return outcome


async def _read(peer: SharingBroker, consumer: ShareConsumer, outcome: Outcome) -> None:
    current: tuple[int, int] | None = None
    while len(outcome.raised) < 3 and peer.all_records - peer.done.keys() - {current}:
        try:
            record = await anext(consumer)
            current = record.partition.partition, record.position
            if peer.held.get(current) != consumer.member_id:
                outcome.early.append(current)
            if record.position % 2 or not peer.all_records - peer.done.keys() - peer.held.keys():
                await consumer.commit()
        except OdradekError as error:
            outcome.raised.append(error)


async def _hear_of_refusal(peer: SharingBroker, consumer: ShareConsumer, refusal: Refusal) -> None:
    """Wait until a heartbeat was refused, and the next one has come or the member has ended."""
    while not refusal.refused or peer.of(refusal.kind)[-1] is refusal.refused[-1]:
        await anyio.sleep(0.005)
        await consumer.commit()


TABLE: list[tuple[str, str, type, Callable[[int], bool], tuple[ErrorCode, ...], str]] = [
    ("finding", "refuse", FindCoordinatorRequest, first, (*COORDINATOR, *UNKNOWN), "passes"),
    ("finding", "refuse", FindCoordinatorRequest, first, (RIGHTS[0], E.INVALID_REQUEST, ErrorCode(999)), "is raised"),
    ("joining", "refuse", ShareGroupHeartbeatRequest, first, (*COORDINATOR, *MEMBER, *UNKNOWN), "passes"),
    ("joining", "refuse", ShareGroupHeartbeatRequest, first, (*RIGHTS, *FATAL, E.GROUP_MAX_SIZE_REACHED), "is raised"),
    ("joining", "refuse", ShareGroupHeartbeatRequest, first, (E.GROUP_ID_NOT_FOUND,), "is raised"),
    ("joined", "refuse", ShareGroupHeartbeatRequest, later, (*COORDINATOR, *MEMBER, *UNKNOWN), "passes"),
    ("joined", "refuse", ShareGroupHeartbeatRequest, later, (E.GROUP_ID_NOT_FOUND,), "passes"),
    ("joined", "refuse", ShareGroupHeartbeatRequest, later, (*RIGHTS, *FATAL), "ends it"),
    ("leaving", "refuse", ShareGroupHeartbeatRequest, last, MOVED, "passes"),
    ("leaving", "refuse", ShareGroupHeartbeatRequest, last, (LOADING, *MEMBER, *UNKNOWN, *RIGHTS, *FATAL), "late"),
    ("first fetch", "refuse", ShareFetchRequest, first, (*UNKNOWN, *LEADER, *COORDINATOR), "passes"),
    ("first fetch", "refuse", ShareFetchRequest, first, (*SESSION, E.SHARE_SESSION_LIMIT_REACHED), "passes"),
    ("first fetch", "refuse", ShareFetchRequest, first, (*RIGHTS, *FATAL), "ends it"),
    ("fetch", "refuse", ShareFetchRequest, later, (*SESSION, *UNKNOWN, *LEADER, *COORDINATOR), "loses"),
    ("fetch", "refuse", ShareFetchRequest, later, (*RIGHTS, *FATAL), "ends it"),
    ("partition", "refuse_partition", ShareFetchRequest, first, (*LEADER, *COORDINATOR, *UNKNOWN, *STATE), "passes"),
    ("partition", "refuse_partition", ShareFetchRequest, later, (*LEADER, *COORDINATOR, *UNKNOWN, *STATE), "passes"),
    ("partition", "refuse_partition", ShareFetchRequest, later, (*RIGHTS, *FATAL, E.CORRUPT_MESSAGE), "is told"),
    (
        "acknowledgements in a fetch",
        "refuse_acknowledgements",
        ShareFetchRequest,
        later,
        (*LEADER, *COORDINATOR, *UNKNOWN, *STATE, *RIGHTS, *FATAL, E.INVALID_RECORD_STATE),
        "loses",
    ),
    ("commit", "refuse", ShareAcknowledgeRequest, later, (*SESSION, *UNKNOWN, *LEADER, *COORDINATOR), "loses"),
    ("commit", "refuse", ShareAcknowledgeRequest, later, (*RIGHTS, *FATAL), "ends it"),
    (
        "commit",
        "refuse_acknowledgements",
        ShareAcknowledgeRequest,
        later,
        (*LEADER, *COORDINATOR, *UNKNOWN, *STATE, *RIGHTS, *FATAL, E.INVALID_RECORD_STATE),
        "loses",
    ),
    ("closing", "refuse", ShareAcknowledgeRequest, last, (*SESSION, *UNKNOWN, *LEADER, *RIGHTS, *FATAL), "loses last"),
    (
        "closing",
        "refuse_acknowledgements",
        ShareAcknowledgeRequest,
        last,
        (*LEADER, *COORDINATOR, *UNKNOWN, *STATE, *RIGHTS, *FATAL, E.INVALID_RECORD_STATE),
        "loses last",
    ),
]
ROWS = [
    pytest.param(refuse, kind, epochs, code, outcome, id=f"{state}-{code.name}")
    for state, refuse, kind, epochs, codes, outcome in TABLE
    for code in codes
]


@pytest.mark.parametrize(("refuse", "kind", "epochs", "code", "expected"), ROWS)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_each_error_passes_or_is_told_and_the_member_leaves(
    refuse: str,
    kind: type,
    epochs: Callable[[int], bool],
    code: ErrorCode,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer, refusal = SharingBroker(), Refusal(kind, epochs, code)
    setattr(peer, refuse, refusal)
    outcome = await read_all(peer, monkeypatch, refusal)
    raised, leaving = outcome.raised, outcome.leaving
    assert len(refusal.refused) == 1 and outcome.early == []
    stays = expected == "late" or (expected == "ends it" and kind is ShareGroupHeartbeatRequest)
    assert stays is bool(peer.members)
    accepted = peer.all_records == peer.done.keys()
    match expected:
        case "passes" | "late":
            assert (raised, leaving, accepted) == ([], None, True)
        case "is told":
            (error,) = raised
            assert isinstance(error, BrokerError) and (error.code, leaving, accepted) == (code, None, True)
        case "loses":  # and with the session also the record that is being processed
            assert 1 <= len(raised) <= (2 if refuse == "refuse" else 1) and (leaving, accepted) == (None, True)
            assert all(isinstance(each, GroupError) for each in raised) and code.name in str(raised[0])
        case "loses last":
            assert raised == [] and isinstance(leaving, GroupError) and code.name in str(leaving)
            assert len(peer.done) == len(peer.all_records) - 1
        case "is raised":
            assert raised == [] and isinstance(leaving, BrokerError | Unsupported) and not accepted
            assert code.name in str(leaving) or "share.version 1" in str(leaving)
        case "ends it":
            ended_by = raised[-1] if raised else leaving
            assert isinstance(ended_by, BrokerError | Unsupported)
            assert code.name in str(ended_by) or "share.version 1" in str(ended_by)
    if expected == "loses" and refuse == "refuse" and code != E.SHARE_SESSION_NOT_FOUND:
        index = peer.requests.index(next(each for each in peer.requests if each[0] is refusal.refused[0]))
        after = [r for r, _ in peer.requests[index + 1 :] if isinstance(r, ShareFetchRequest | ShareAcknowledgeRequest)]
        assert [each.share_session_epoch for each in after[:2]] == [-1, 0], "closed before another one is opened"


async def test_what_a_failed_response_has_acquired_is_released_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As brokers answer while one of several topics is being deleted: they acquire records all the same."""
    peer = SharingBroker(records=2)
    fetch, failed = peer.answers[ShareFetchRequest], list[Any]()

    def fail_once(request: ShareFetchRequest, version: int) -> Any:
        answer = fetch(request, version)
        if not failed:
            failed.append(answer)
            return ShareFetchResponse(error_code=E.UNKNOWN_SERVER_ERROR)
        return answer

    peer.answers[ShareFetchRequest] = fail_once
    async with driver_at(peer, monkeypatch) as driver, consumer_of(driver) as consumer:
        with anyio.fail_after(5):
            assert [(await anext(consumer)).delivery_count for _ in range(2)] == [2, 2]
    assert peer.done.keys() == peer.all_records


@pytest.mark.parametrize("acknowledge", ["implicit", "explicit"])
async def test_an_acknowledgement_that_comes_too_late_is_reported_by_commit(
    acknowledge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = SharingBroker(records=2)
    async with driver_at(peer, monkeypatch) as driver, consumer_of(driver, acknowledge) as consumer:
        first, session = await anext(consumer), _session_of(consumer)
        assert session.expire(math.inf) == []
        peer.release(consumer.member_id)
        if acknowledge == "explicit":
            assert (first.accept(), first.accept(), first.renew()) == (False, False, False)
        second = await anext(consumer)
        with pytest.raises(GroupError, match=r"1 of t/0 \(their locks had expired, or the session .*delivered again"):
            await consumer.commit()
        await consumer.commit()  # reported once
        again = await anext(consumer)
        if acknowledge == "explicit":
            assert (again.position, again.delivery_count, again.accept()) == (first.position, 2, True)
            assert (await anext(consumer)).accept()
        else:
            with pytest.raises(GroupError, match="1 of t/0"):
                await consumer.commit()
            assert await anext(consumer) == second
    assert peer.done.keys() == peer.all_records


async def test_an_acknowledgement_of_an_earlier_delivery_leaves_the_later_one_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = SharingBroker(records=1)
    async with driver_at(peer, monkeypatch) as driver, consumer_of(driver, "explicit") as consumer:
        slow = await anext(consumer)
        _session_of(consumer).expire(math.inf)
        peer.release(consumer.member_id)
        again = await anext(consumer)
        assert not slow.release() and again.accept()
        with pytest.raises(GroupError, match="1 of t/0"):
            await consumer.commit()
    assert peer.done == {(0, 0): 1}


@pytest.mark.parametrize("kind", [ShareFetchRequest, ShareAcknowledgeRequest, ShareGroupHeartbeatRequest])
async def test_leaving_is_bounded_while_a_broker_is_silent(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, silent = SharingBroker(), list[bool]()
    answer = peer.answers[kind]
    peer.answers[kind] = lambda request, version: None if silent else answer(request, version)
    with anyio.fail_after(5):
        async with driver_at(peer, monkeypatch) as driver:
            with pytest.raises(DeadlineError, match="leaving share group g"):
                async with consumer_of(driver, exit_within=0.2) as consumer:
                    for _ in range(2):
                        await anext(consumer)
                    silent.append(True)
                    if kind is ShareFetchRequest:
                        with anyio.move_on_after(0.05):
                            await anext(consumer)


async def test_a_broker_that_refuses_again_and_again_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    peer = SharingBroker()
    peer.refuse = Refusal(ShareFetchRequest, first, E.SHARE_SESSION_LIMIT_REACHED, left=6)
    async with driver_at(peer, monkeypatch) as driver, consumer_of(driver) as consumer:
        await anext(consumer)
    warnings = [each.message for each in caplog.records if "SHARE_SESSION_LIMIT_REACHED" in each.message]
    assert warnings == ["share group g: b:9092: ShareFetch: SHARE_SESSION_LIMIT_REACHED (code 133); trying again"]


class LosingBroker(SharingBroker):
    """Two brokers, of which the second one leads until it is gone."""

    def __init__(self) -> None:
        super().__init__(records=2, per_fetch=1)
        self.leader = 2
        self.asked = 0  # how often the new leader is not elected yet when metadata is read

    def end(self, member_id: str) -> None:
        """End the second broker, and what it knows of a member."""
        self.leader, self.asked = -1, 3
        self.sessions.clear()
        self.release(member_id)

    def _metadata(self, request: MetadataRequest, version: int) -> MetadataResponse:
        if self.leader < 0:
            self.asked -= 1
            self.leader = 2 if self.asked else 1
            response = super()._metadata(request, version)
            self.leader = -1 if self.asked else 1
            return response
        return super()._metadata(request, version)

    async def dial(self, host: str, port: int, timeout: float) -> ByteStream:
        if host == "c" and self.leader != 2:
            raise Unreachable("tcp", "c:9092", "Connection refused")
        return await super().dial(host, port, timeout)


async def test_a_new_leader_is_read_after_the_broker_of_the_old_one_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the loss of its connections says so."""
    peer = LosingBroker()
    async with driver_at(peer, monkeypatch) as driver, consumer_of(driver) as consumer:
        await anext(consumer)
        peer.end(consumer.member_id)
        await peer.hang_up()
        with anyio.fail_after(5):
            assert {(await anext(consumer)).delivery_count for _ in range(2)} == {1, 2}
        with pytest.raises(GroupError, match="1 of t/0"):
            await consumer.commit()
    assert peer.done.keys() == peer.all_records


async def consume(driver: KafkaDriver, acknowledge: str) -> None:
    async with consumer_of(driver, acknowledge) as consumer:
        async for record in consumer:
            if acknowledge == "explicit":
                record.accept()
            if record.position % 3 == 0:
                await consumer.commit()
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("acknowledge", ["implicit", "explicit"])
@pytest.mark.parametrize("natively", [False, True])
async def test_a_block_may_be_cancelled_at_any_moment(
    natively: bool, acknowledge: str, monkeypatch: pytest.MonkeyPatch, anyio_backend_name: str
) -> None:
    """Afterwards nothing is acquired, and the member has left."""
    if natively and anyio_backend_name != "asyncio":
        return
    for checkpoints in range(0, 250, 11):
        peer = SharingBroker(records=8, per_fetch=3)
        with anyio.fail_after(5):
            async with driver_at(peer, monkeypatch) as driver:
                if natively:
                    task = asyncio.create_task(consume(driver, acknowledge))
                    for _ in range(checkpoints):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])
                    assert task.cancelled()
                else:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(consume, driver, acknowledge)
                        for _ in range(checkpoints):
                            await anyio.lowlevel.checkpoint()
                        tasks.cancel_scope.cancel()
                assert (peer.held, peer.members, peer.sessions) == ({}, {}, {}), checkpoints
                assert all(purpose != "share group g member 1" for _, purpose in driver.connections._connections)
    assert peer.done, "records were accepted before the last cancellation"


@pytest.mark.parametrize("first", [120, 200])
async def test_a_second_native_cancellation_while_a_member_leaves_is_raised_and_it_leaves(
    first: int, monkeypatch: pytest.MonkeyPatch, anyio_backend_name: str
) -> None:
    """Otherwise the coordinator would keep partitions for it until its session has timed out."""
    if anyio_backend_name != "asyncio":
        return
    for second in range(1, 40, 2):
        peer = SharingBroker(records=8, per_fetch=3)
        with anyio.fail_after(5):
            async with driver_at(peer, monkeypatch) as driver:
                task = asyncio.create_task(consume(driver, "implicit"))
                for checkpoints in (first, second):
                    for _ in range(checkpoints):
                        await asyncio.sleep(0)
                    task.cancel()
                await asyncio.wait([task])
                assert task.cancelled()
                assert (peer.held, peer.members, peer.sessions) == ({}, {}, {}), second


@pytest.mark.parametrize("release", ["3.9", "4.0"])
async def test_a_cluster_without_share_groups_is_named_with_the_release_that_has_them(
    release: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The early access of 4.0 has version 0 of the requests."""
    peer, keys = SharingBroker(), {each.SPEC.key for each in SHARE_REQUESTS}
    apis = {api.api_key: api for api in EVERYTHING.api_keys}
    if release == "3.9":
        apis = {key: api for key, api in apis.items() if key not in keys}
    else:
        apis |= {key: ApiVersion(api_key=key, min_version=0, max_version=0) for key in keys}
    peer.answers[ApiVersionsRequest] = lambda request, version: ApiVersionsResponse(
        api_keys=tuple(apis.values()), finalized_features=(FEATURE,)
    )
    async with driver_at(peer, monkeypatch) as driver:
        with pytest.raises(Unsupported, match=r"a share group .* needs Kafka 4\.1, and share\.version 1"):
            async with consumer_of(driver):
                raise AssertionError("entered")
    assert [each.message for each in caplog.records] == [], "what is raised is not logged as well"


async def test_share_groups_that_are_switched_on_while_a_cluster_is_connected_are_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `share.version` of 4.1. Connections that were opened before have said that it is off."""
    peer = SharingBroker()
    peer.answers[ApiVersionsRequest] = lambda request, version: EVERYTHING
    peer.refuse = Refusal(ShareGroupHeartbeatRequest, first, E.UNSUPPORTED_VERSION)
    async with driver_at(peer, monkeypatch) as driver:
        with pytest.raises(Unsupported, match=r"a share group .* needs Kafka 4\.1, and share\.version 1"):
            async with consumer_of(driver):
                raise AssertionError("entered")
        async with consumer_of(driver) as consumer:
            assert await anext(consumer)


def _session_of(consumer: ShareConsumer) -> ShareSession:
    assert isinstance(consumer._group, KafkaShareGroup)
    (fetcher,) = consumer._group._fetchers.values()
    return fetcher.session
