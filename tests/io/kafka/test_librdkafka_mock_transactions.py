"""Every error code in the answers of a transaction, from librdkafka's mock cluster: each is handled as the tables say.

Each code meets a producer and a transaction of its own: a record, the position of a consumer, and the commit. The mock
has the first protocol alone: no AddPartitionsToTxn 4, TxnOffsetCommit 5 or EndTxn 5, and no transaction.version. The
second one is tested against scripted coordinators (`test_transactions`) and real ones (`test_transactions_live`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest
from tests.io.kafka.librdkafka import ErrorDecoder, MockCluster
from tests.io.kafka.mock_outcomes import CODES, HASTY, connect, expected, outcomes

import odradek as od
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import ProduceRequest
from odradek.wire.kafka.messages.groups import FindCoordinatorRequest
from odradek.wire.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
)
from odradek.wire.kafka.schema import Request

pytestmark = pytest.mark.anyio

NUMBERS = count()
MORE_RECORDS = 10

FENCED = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}

COORDINATOR_MOVED = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.NETWORK_EXCEPTION}

NEW_EPOCH = {ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.UNKNOWN_PRODUCER_ID}
"""The coordinator has forgotten the producer, which continues in another epoch (KIP-360)."""

ABORTABLE = {
    ErrorCode.TRANSACTION_ABORTABLE,  # KIP-890
    ErrorCode.OPERATION_NOT_ATTEMPTED,  # another partition of the request was refused
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    # The consumer's position is fenced (KIP-447):
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.FENCED_MEMBER_EPOCH,
}


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough for so many cases."""
    return "asyncio"


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    with MockCluster() as mock:
        mock.create_topic("in")
        mock.create_topic("out")
        yield mock


class Workbench:
    """A consumer, and a producer for each transaction. Its batch is the same until a transaction has committed it."""

    def __init__(self, mock: MockCluster, cluster: od.Cluster, consumer: od.Consumer, ids: list[int]) -> None:
        self.mock, self.cluster, self.ids = mock, cluster, ids
        self._batches = consumer.batches(max_records=1)
        self._batch: Any = None

    async def outcomes(self, attempt: Callable[[ErrorCode], Awaitable[str]]) -> dict[str, str]:
        """Return the outcome for each code. The mock draws producer ids, and refuses a producer that has got the id of
        another one: such an attempt is repeated."""

        async def with_new_id(code: ErrorCode) -> str:
            before = set(self.ids)
            self.ids.clear()
            try:
                return await attempt(code)
            except Exception:
                if before.isdisjoint(self.ids):
                    raise
                return await with_new_id(code)
            finally:
                self.ids.extend(before)

        return await outcomes(with_new_id)

    async def outcome(self, api: type[Request[Any]], code: ErrorCode) -> str:
        """Return how a transaction ends one request of which is answered with this error, and raise what ends its
        producer. After an abort the producer has to commit another transaction."""
        mock = self.mock
        mock.push_errors(api, code)
        mock.forget_requests()
        async with self.cluster.producer(transactional_id=f"x{next(NUMBERS)}", tuning=HASTY) as out:
            try:
                await self._transaction(out)
            except od.TransactionAborted as error:
                assert code.name in str(error)
                await self._transaction(out)
                return "aborted, new epoch" if mock.requests()[InitProducerIdRequest.SPEC.key] > 1 else "aborted"
        searches = mock.requests()[FindCoordinatorRequest.SPEC.key]
        return "coordinator found again" if searches > 1 else "committed"

    async def _transaction(self, out: od.Producer) -> None:
        if self._batch is None:
            self._batch = await anext(self._batches)
        async with out.transaction() as tx:
            await out.put("out", b"v")
            tx.done(self._batch)
        self._batch = None


@pytest.fixture
async def bench(mock: MockCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workbench]:
    ids: list[int] = []

    class IdDecoder(ErrorDecoder[Any]):
        def _decode(self, frame: bytes) -> None:
            super()._decode(frame)
            response = self._response
            if isinstance(response, InitProducerIdResponse) and response.producer_epoch == 0:
                ids.append(response.producer_id)

    monkeypatch.setattr("odradek.io.kafka.connection.KafkaResponseDecoder", IdDecoder)
    async with connect(mock, session_s=30.0, heartbeat_s=3.0) as cluster:
        async with cluster.producer() as out:
            await out.send_many("in", [b"v"] * (len(CODES) + MORE_RECORDS))
        async with cluster.consumer("in", group=f"g{next(NUMBERS)}") as consumer:
            yield Workbench(mock, cluster, consumer, ids)


def committed_or(other: str) -> Callable[[ErrorCode], str]:
    return lambda code: "committed" if code.retriable else other


async def test_errors_of_finding_the_coordinator(bench: Workbench) -> None:
    async def attempt(code: ErrorCode) -> str:
        return await bench.outcome(FindCoordinatorRequest, code)

    usual = expected(lambda code: "coordinator found again" if code.retriable else "error", {"fenced": FENCED})
    assert await bench.outcomes(attempt) == usual


async def test_errors_of_registering_a_producer(bench: Workbench) -> None:
    """There is no transaction that an abort could end."""

    async def attempt(code: ErrorCode) -> str:
        return await bench.outcome(InitProducerIdRequest, code)

    special = {"fenced": FENCED, "coordinator found again": COORDINATOR_MOVED}
    assert await bench.outcomes(attempt) == expected(committed_or("error"), special)


@pytest.mark.parametrize("api", [AddPartitionsToTxnRequest, AddOffsetsToTxnRequest, TxnOffsetCommitRequest])
async def test_errors_of_additions_to_a_transaction(bench: Workbench, api: type[Request[Any]]) -> None:
    async def attempt(code: ErrorCode) -> str:
        return await bench.outcome(api, code)

    special = {
        "fenced": FENCED,
        "coordinator found again": COORDINATOR_MOVED,
        "aborted": ABORTABLE,
        "aborted, new epoch": NEW_EPOCH,
    }
    assert await bench.outcomes(attempt) == expected(committed_or("error"), special)


async def test_errors_of_commits(bench: Workbench) -> None:
    """An answer that does not tell whether the commit is carried out leaves its outcome unknown."""

    async def attempt(code: ErrorCode) -> str:
        try:
            return await bench.outcome(EndTxnRequest, code)
        except od.errors.CommitOutcomeUnknown as error:
            assert code.name in str(error)
            return "unknown"

    special = {
        "fenced": FENCED,
        "coordinator found again": COORDINATOR_MOVED,
        "aborted": ABORTABLE,
        "aborted, new epoch": NEW_EPOCH,
        "unknown": {ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode(999)},
    }
    assert await bench.outcomes(attempt) == expected(committed_or("error"), special)


async def test_errors_of_aborts(bench: Workbench) -> None:
    """The producer continues if the coordinator has aborted, or does not have the transaction any more."""

    async def attempt(code: ErrorCode) -> str:
        async with bench.cluster.producer(transactional_id=f"x{next(NUMBERS)}", tuning=HASTY) as out:
            with pytest.raises(KeyError):
                async with out.transaction():
                    await out.send("out", b"v")
                    bench.mock.push_errors(EndTxnRequest, code)
                    bench.mock.forget_requests()
                    raise KeyError
            try:
                async with out.transaction():
                    await out.send("out", b"v")
            except od.Closed as error:
                assert isinstance(error.__cause__, od.OdradekError)
                raise error.__cause__ from None
        received = bench.mock.requests()
        if received[FindCoordinatorRequest.SPEC.key]:
            return "coordinator found again"
        if received[InitProducerIdRequest.SPEC.key]:
            return "over, new epoch"
        return "over" if received[EndTxnRequest.SPEC.key] == 2 else "repeated"

    special = {
        "fenced": FENCED,
        "coordinator found again": COORDINATOR_MOVED,
        "over, new epoch": NEW_EPOCH,
    }
    assert await bench.outcomes(attempt) == expected(lambda code: "repeated" if code.retriable else "error", special)


async def test_errors_of_records_in_a_transaction(bench: Workbench) -> None:
    """A record that is refused for good lets the transaction only be aborted."""

    async def attempt(code: ErrorCode) -> str:
        return await bench.outcome(ProduceRequest, code)

    written_before = {ErrorCode.DUPLICATE_SEQUENCE_NUMBER}
    sequence_not_known = {ErrorCode.UNKNOWN_PRODUCER_ID}  # the broker has deleted its records: the same are sent again
    of_the_producer = {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
    with_a_gap = {
        ErrorCode.UNKNOWN_SERVER_ERROR,  # the record may be written
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
    special = {
        "fenced": FENCED,
        "committed": written_before | sequence_not_known,
        "error": of_the_producer,
        "aborted, new epoch": with_a_gap,
    }
    assert await bench.outcomes(attempt) == expected(committed_or("aborted"), special)
