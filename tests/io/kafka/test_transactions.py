"""Transactions against scripted coordinators: every error code in every answer, and answers that are lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import repeat
from typing import Any

import anyio
import pytest
from tests.conformance.kafka.apis import APIS as APIS_BY_KEY
from tests.core.kafka.transaction_answers import offsets, partitions
from tests.io.kafka.answers import metadata_response, topic_response
from tests.io.kafka.peer import EVERYTHING, Peer

import odradek as od
from odradek.core.backoff import Backoff
from odradek.core.interfaces import PartitionBatch, PartitionResult, Subscription
from odradek.core.kafka.transaction_requests import GroupMetadata
from odradek.core.kafka.transaction_states import TransactionReaction, reaction_to
from odradek.errors import CommitOutcomeUnknown
from odradek.io.kafka.driver import KafkaDriver
from odradek.io.kafka.membership import KafkaMembership
from odradek.io.kafka.transactions import KafkaTransactions
from odradek.types import Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from odradek.wire.kafka.messages.metadata import ApiVersionsRequest, FinalizedFeatureKey, MetadataRequest
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

pytestmark = pytest.mark.anyio

T0 = TopicPartition("t", 0)
CODES = [code for code in ErrorCode if code]
HASTY = od.Tuning(backoff=Backoff(0.001, 1, 0.001), request_timeout=5.0)
METADATA = metadata_response(topic_response("t", 1, epoch=3, topic_id=bytes(range(16))))
V2 = EVERYTHING.__class__(
    api_keys=EVERYTHING.api_keys,
    finalized_features=(FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=2),),
)


class Coordinator:
    """Answers of a coordinator of both kinds.

    Attributes:
        api: The request whose next answers have `errors`; 0: none, and anything else is the answer.
        ended: The EndTxn requests it has answered: True for a commit.
        metadata: The answer to Metadata.
    """

    def __init__(self) -> None:
        self.api: type | None = None
        self.errors: Iterator[Any] = iter(())
        self.ended: list[bool] = []
        self.metadata = METADATA
        self.epoch = -1

    def answer(self, request: Any, version: int) -> Any:
        code = next(self.errors, 0) if type(request) is self.api else 0
        if not isinstance(code, int):
            return code
        match request:
            case FindCoordinatorRequest():
                return FindCoordinatorResponse(error_code=code, node_id=1, host="b", port=9092)
            case InitProducerIdRequest():
                self.epoch += not code
                return InitProducerIdResponse(error_code=code, producer_id=7, producer_epoch=self.epoch)
            case AddPartitionsToTxnRequest():
                return partitions((0, code))
            case AddOffsetsToTxnRequest():
                return AddOffsetsToTxnResponse(error_code=code)
            case TxnOffsetCommitRequest():
                return offsets((0, code))
            case EndTxnRequest():
                if not code:
                    self.ended.append(request.committed)
                    self.epoch += version >= 5
                return EndTxnResponse(error_code=code, producer_id=7, producer_epoch=self.epoch)
        raise AssertionError(request)


APIS = (
    FindCoordinatorRequest,
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    EndTxnRequest,
)
CASES = [*[(api, False) for api in APIS], (TxnOffsetCommitRequest, True), (EndTxnRequest, True)]


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough for so many cases."""
    return "asyncio"


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def v2() -> bool:
    """Whether the second protocol is spoken."""
    return False


@pytest.fixture
def peer_answers(coordinator: Coordinator, v2: bool) -> dict[type, Callable[[Any, int], Any]]:
    answers: dict[type, Callable[[Any, int], Any]] = {
        MetadataRequest: lambda request, version: coordinator.metadata,
        **dict.fromkeys(APIS, coordinator.answer),
    }
    if v2:
        answers[ApiVersionsRequest] = lambda request, version: V2
    return answers


@pytest.fixture
async def driver(
    peer_answers: dict[type, Callable[[Any, int], Any]], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[KafkaDriver]:
    peer = Peer(peer_answers)

    async def dial(host: str, port: int, timeout: float, *more: Any) -> Any:
        return await peer.dial(host, port, timeout)

    monkeypatch.setattr("odradek.io.kafka.connections.connect", dial)
    async with anyio.create_task_group() as peer.group:
        async with od.connect("kafka://b:9092", tuning=HASTY) as cluster:
            assert isinstance(cluster.driver, KafkaDriver)
            yield cluster.driver
        peer.group.cancel_scope.cancel()


def _member(driver: KafkaDriver) -> KafkaMembership:
    member = driver.membership(Subscription("g", {"t": 1}))
    assert isinstance(member, KafkaMembership)
    fence = member._runner.member.fence
    member.token = lambda positions: fence  # type: ignore[method-assign] # as if it had joined
    return member


class Bench:
    """One producer whose batches are written as soon as they may be sent."""

    def __init__(self, driver: KafkaDriver) -> None:
        self.driver = driver
        self.transactions: KafkaTransactions = driver.producer_transactions("id", 60.0)
        self.changed = anyio.Event()
        self.failures: list[tuple[od.OdradekError, bool]] = []

    async def run(self) -> None:
        await self.transactions.run(self.notify, self.failed)

    def notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def failed(self, error: od.OdradekError, fatal: bool) -> None:
        self.failures.append((error, fatal))
        self.notify()

    async def transaction(self) -> str:
        """Write a batch and positions, and commit; abort after an error. Return how it ended."""
        transactions = self.transactions
        try:
            transactions.begin()
            await self.write()
            await transactions.add_positions(_member(self.driver), {T0: Position(5)})
            await transactions.commit()
        except od.OdradekError:
            try:
                await transactions.abort()
            except od.OdradekError:
                return "ended"
            return "aborted"
        return "committed"

    async def write(self) -> None:
        batch = PartitionBatch(T0, [b"v"])
        while not self.transactions.may_send(batch, 0):
            if self.failures:
                raise self.failures[0][0]
            await self.changed.wait()
        self.transactions.assign(batch)
        assert self.transactions.resolve(batch, PartitionResult(T0, position=Position(0))).error is None


@pytest.fixture
async def bench(driver: KafkaDriver) -> AsyncIterator[Bench]:
    bench = Bench(driver)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.run)
        yield bench
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("api", "v2"), CASES, ids=lambda value: getattr(value, "__name__", f"v2={value}"))
async def test_every_error_has_the_reaction_of_the_table(
    driver: KafkaDriver, coordinator: Coordinator, api: type, v2: bool
) -> None:
    for code in CODES:
        coordinator.__init__()  # type: ignore[misc]  # as new, for the peer that knows this one
        coordinator.api, coordinator.errors = api, iter([code])
        for key in (0, "g"), (1, "id"):
            driver.coordinators.forget(*key)  # type: ignore[arg-type]
        ended, error = await end_of_transaction(Bench(driver))
        assert (ended, coordinator.ended) == expected_end(api, code), code.name
        if reaction_to(code) is TransactionReaction.FENCED:
            assert isinstance(error, od.Fenced) and "transactional id id" in str(error), code.name
        elif ended == "ended":
            assert isinstance(error, od.BrokerError) and error.code == code, code.name


async def end_of_transaction(bench: Bench) -> tuple[str, od.OdradekError | None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.run)
        with anyio.fail_after(30):
            try:
                await bench.transactions.initialize()
                ended = await bench.transaction()
            except od.OdradekError:
                ended = "ended"
        error = bench.transactions.error
        tasks.cancel_scope.cancel()
    return ended, error


def expected_end(api: type, code: int) -> tuple[str, list[bool]]:
    reaction = reaction_to(code)
    if reaction in (TransactionReaction.RETRY, TransactionReaction.RETRY_SOON, TransactionReaction.FIND_COORDINATOR):
        return "committed", [True]
    before = api in (FindCoordinatorRequest, InitProducerIdRequest)
    if before or reaction in (TransactionReaction.FENCED, TransactionReaction.FATAL):
        return "ended", []
    return "aborted", [] if api is AddPartitionsToTxnRequest else [False]


async def test_a_partition_that_the_coordinator_does_not_know_is_a_reason_to_read_the_metadata(
    bench: Bench, coordinator: Coordinator, driver: KafkaDriver
) -> None:
    """No leader is asked before the partition is part of the transaction, so that none says that the topic is gone."""
    coordinator.api, coordinator.errors = AddPartitionsToTxnRequest, iter([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
    with anyio.fail_after(30):
        await bench.transactions.initialize()
        before = driver.metadata.read_at
        assert await bench.transaction() == "committed"
    assert driver.metadata.read_at > before


async def test_positions_of_a_topic_that_was_deleted_abort_the_transaction_soon(
    bench: Bench, coordinator: Coordinator, driver: KafkaDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were sent again until the time of the commit was over. A topic that has only just gone may be on its way."""
    monkeypatch.setattr("odradek.io.kafka.offsets.NOT_KNOWN_S", 0.05)
    await driver.metadata.table_for_topic("t")
    coordinator.api, coordinator.errors = TxnOffsetCommitRequest, repeat(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    with anyio.fail_after(30):
        await bench.transactions.initialize()
        bench.transactions.begin()
        await bench.write()
        coordinator.metadata = metadata_response(topic_response("t", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        with pytest.raises(od.BrokerError, match="TxnOffsetCommit of id: t/0: UNKNOWN_TOPIC_OR_PARTITION"):
            await bench.transactions.add_positions(_member(driver), {T0: Position(5)})
        await bench.transactions.abort()
        coordinator.errors = iter(())
        bench.failures.clear()
        assert coordinator.ended == [False] and await bench.transaction() == "committed"


@pytest.mark.parametrize("deleted_for", [0, 2])
async def test_positions_of_a_topic_that_is_made_again_abort_the_transaction(
    bench: Bench, coordinator: Coordinator, driver: KafkaDriver, deleted_for: int
) -> None:
    """Requests name topics: they would be stored for the new one, whose first records the next member skipped."""
    coordinator.metadata = metadata_response(topic_response("t", 1, topic_id=b"1" * 16))
    await driver.metadata.table_for_topic("t")
    await driver.metadata.refresh()
    coordinator.api, coordinator.errors = TxnOffsetCommitRequest, refuse_once(coordinator, deleted_for)
    with anyio.fail_after(30):
        await bench.transactions.initialize()
        bench.transactions.begin()
        await bench.write()
        with pytest.raises(od.BrokerError, match="TxnOffsetCommit of id: t/0 was made again: UNKNOWN_TOPIC"):
            await bench.transactions.add_positions(_member(driver), {T0: Position(5)})
        await bench.transactions.abort()
        bench.failures.clear()
        assert coordinator.ended == [False] and await bench.transaction() == "committed"


def refuse_once(coordinator: Coordinator, deleted_for: int) -> Iterator[int]:
    """The topic is deleted, and made again at once or after some reads of the metadata."""
    coordinator.metadata = metadata_response(topic_response("t", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    if not deleted_for:
        coordinator.metadata = metadata_response(topic_response("t", 1, topic_id=b"2" * 16))
    yield ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for _ in range(deleted_for):
        yield ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    coordinator.metadata = metadata_response(topic_response("t", 1, topic_id=b"2" * 16))
    yield ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    "api", [InitProducerIdRequest, AddPartitionsToTxnRequest, TxnOffsetCommitRequest, EndTxnRequest]
)
async def test_what_has_to_be_tried_again_is_a_problem_and_waits_longer_each_time(
    bench: Bench, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, api: type
) -> None:
    transactions, waits = bench.transactions, []

    class Waits(Backoff):
        def delay(self, attempt: int, jitter: float) -> float:
            waits.append((attempt, None if transactions.problem is None else transactions.problem.message()))
            return 0.0

    monkeypatch.setattr(transactions, "_backoff", Waits())
    coordinator.api, coordinator.errors = api, iter([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3)
    with anyio.fail_after(30):
        await transactions.initialize()
        assert await bench.transaction() == "committed"
    assert transactions.problem is None
    assert [attempt for attempt, problem in waits if problem is not None] == [1, 2, 3]
    assert all("COORDINATOR_LOAD_IN_PROGRESS" in problem for attempt, problem in waits if problem is not None)


async def test_a_lost_answer_to_a_commit_is_asked_for_again(bench: Bench, coordinator: Coordinator) -> None:
    coordinator.api, coordinator.errors = EndTxnRequest, iter([ConnectionAbortedError])
    with anyio.fail_after(30):
        await bench.transactions.initialize()
        assert await bench.transaction() == "committed"
    assert coordinator.ended == [True]


@pytest.mark.parametrize(
    "code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.UNKNOWN_PRODUCER_ID]
)
@pytest.mark.parametrize("first", [ConnectionAbortedError, ErrorCode.COORDINATOR_NOT_AVAILABLE, 999])
async def test_a_commit_that_is_refused_after_an_answer_that_leaves_it_open_is_in_doubt(
    bench: Bench, coordinator: Coordinator, first: object, code: ErrorCode
) -> None:
    coordinator.api, coordinator.errors = EndTxnRequest, iter([first, code])
    with anyio.fail_after(30):
        await bench.transactions.initialize()
        bench.transactions.begin()
        await bench.write()
        with pytest.raises(CommitOutcomeUnknown, match=f"{code.name}|UNKNOWN_999"):
            await bench.transactions.commit()


@pytest.mark.parametrize("v2", [False, True])
async def test_a_gap_in_the_sequences_gets_a_new_epoch(bench: Bench, coordinator: Coordinator, v2: bool) -> None:
    transactions, lost = bench.transactions, PartitionBatch(T0, [b"v"])
    with anyio.fail_after(30):
        await transactions.initialize()
        transactions.begin()
        while not transactions.may_send(lost, 0):
            await bench.changed.wait()
        transactions.assign(lost)
        transactions.release(lost, may_be_written=True)
        transactions.fail(od.OutcomeUnknown([b"v"], "no answer"))
        await transactions.abort()
        assert coordinator.ended == [False] and coordinator.epoch == 1
        assert await bench.transaction() == "committed"
        stamp = transactions.producer.stamp(T0, 1)
    assert (stamp.producer.epoch, stamp.base_sequence) == ((2, 0) if v2 else (1, 1))
    assert (stamp.producer.transactional_id, stamp.producer.transactions_v2) == ("id", v2)


async def test_positions_of_another_cluster_are_refused(bench: Bench, driver: KafkaDriver) -> None:
    await bench.transactions.initialize()
    bench.transactions.begin()
    other = od.connect("kafka://b:9092", tuning=HASTY)
    async with other:
        with pytest.raises(od.UsageError, match="of its own cluster"):
            await bench.transactions.add_positions(other.driver.membership(Subscription("g", {"t": 1})), {})
    with pytest.raises(od.GroupError, match="does not belong to this member"):
        await bench.transactions.add_positions(driver.membership(Subscription("g", {"t": 1})), {T0: Position(1)})


# ---- positions of brokers before 2.5, which do not say that a transaction is about to store others --------------


BEFORE_2_5 = EVERYTHING.__class__(
    api_keys=tuple(
        api.__replace__(max_version={TxnOffsetCommitRequest: 2, OffsetFetchRequest: 5}[request])
        if (request := APIS_BY_KEY[api.api_key].request) in (TxnOffsetCommitRequest, OffsetFetchRequest)
        else api
        for api in EVERYTHING.api_keys
    )
)


@pytest.fixture
def named(peer_answers: dict[type, Callable[[Any, int], Any]]) -> list[int]:
    """The position of T0 that OffsetFetch names, as the only entry: that from before the transaction."""
    position = [3]

    def fetch(request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
        partition = OffsetFetchResponsePartition(partition_index=0, committed_offset=position[0])
        topic = OffsetFetchResponseTopic(name="t", partitions=(partition,))
        return OffsetFetchResponse(topics=(topic,))

    peer_answers[ApiVersionsRequest] = lambda request, version: BEFORE_2_5
    peer_answers[OffsetFetchRequest] = fetch
    return position


@pytest.fixture
def stored(peer_answers: dict[type, Callable[[Any, int], Any]], coordinator: Coordinator) -> list[tuple[Any, int]]:
    """TxnOffsetCommit requests and their versions. The group's coordinator, another broker, is of a release before 2.5;
    nothing is known of it until the request goes there."""
    requests: list[tuple[Any, int]] = []
    answer, versions = coordinator.answer, [EVERYTHING]

    def find(request: FindCoordinatorRequest, version: int) -> FindCoordinatorResponse:
        if request.key_type:
            return FindCoordinatorResponse(node_id=1, host="b", port=9092)
        versions[0] = BEFORE_2_5
        return FindCoordinatorResponse(node_id=2, host="c", port=9092)

    def store(request: TxnOffsetCommitRequest, version: int) -> Any:
        requests.append((request, version))
        return answer(request, version)

    peer_answers[ApiVersionsRequest] = lambda request, version: versions[0]
    peer_answers[FindCoordinatorRequest] = find
    peer_answers[TxnOffsetCommitRequest] = store
    return requests


async def test_an_older_coordinator_of_the_group_gets_positions_without_the_member(
    stored: list[tuple[Any, int]], bench: Bench, coordinator: Coordinator, driver: KafkaDriver
) -> None:
    member = _member(driver)
    member.token = lambda positions: GroupMetadata("g", 3, "me", "instance")  # type: ignore[method-assign]
    await bench.transactions.initialize()
    bench.transactions.begin()
    await bench.transactions.add_positions(member, {T0: Position(9)})
    await bench.transactions.commit()
    ((request, version),) = stored
    assert version == 2 and request.group_id == "g"
    assert coordinator.ended == [True]


async def _member_in_transaction(bench: Bench, driver: KafkaDriver) -> KafkaMembership:
    """Return a member whose position 9 is part of an open transaction."""
    member = _member(driver)
    await bench.transactions.initialize()
    bench.transactions.begin()
    await bench.transactions.add_positions(member, {T0: Position(9)})
    return member


async def test_positions_are_not_read_while_a_transaction_stores_others_and_are_then_those(
    named: list[int], bench: Bench, coordinator: Coordinator, driver: KafkaDriver
) -> None:
    transactions, member, read = bench.transactions, await _member_in_transaction(bench, driver), []

    async def read_positions() -> None:
        read.append(await member.committed([T0]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read_positions)
        await anyio.wait_all_tasks_blocked()
        assert read == []
        await transactions.commit()
    assert read == [{T0: 9}]
    assert coordinator.ended == [True]
    named[0] = 12
    assert await member.committed([T0]) == {T0: 12}


async def test_positions_of_a_transaction_that_is_aborted_are_not_taken_for_committed(
    named: list[int], bench: Bench, driver: KafkaDriver
) -> None:
    member = await _member_in_transaction(bench, driver)
    await bench.transactions.abort()
    assert await member.committed([T0]) == {T0: 3}


async def test_a_producer_that_ends_inside_of_a_transaction_keeps_no_member_waiting(
    named: list[int], bench: Bench, driver: KafkaDriver
) -> None:
    member = await _member_in_transaction(bench, driver)
    bench.transactions.stop(od.Fenced("id", "a test"))
    with anyio.fail_after(10):
        assert await member.committed([T0]) == {T0: 3}


@pytest.mark.parametrize("bump", [False, True])
async def test_a_producer_goes_on_in_a_topic_that_was_made_again(
    bench: Bench, coordinator: Coordinator, bump: bool
) -> None:
    """Before 2.5 there is no new epoch: the sequences of the partition begin again in the same one."""
    transactions, refused = bench.transactions, PartitionBatch(T0, [b"v"])
    transactions._machine.has_epoch_bump = bump
    unknown = od.BrokerError(ErrorCode.UNKNOWN_PRODUCER_ID, "UNKNOWN_PRODUCER_ID")
    with anyio.fail_after(30):
        await transactions.initialize()
        assert await bench.transaction() == "committed"
        transactions.begin()
        while not transactions.may_send(refused, 0):
            await bench.changed.wait()
        transactions.assign(refused)
        error = transactions.resolve(refused, PartitionResult(T0, unknown, log_start=Position(0))).error
        assert error is unknown and not error.retriable
        transactions.fail(error)
        await transactions.abort()
        assert coordinator.ended == [True, False] and coordinator.epoch == bump
        assert await bench.transaction() == "committed"
        stamp = transactions.producer.stamp(T0, 1)
    assert (stamp.producer.epoch, stamp.base_sequence) == (bump, 1)
