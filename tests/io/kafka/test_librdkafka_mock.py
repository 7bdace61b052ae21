"""Every error code of the table in every kind of answer, from librdkafka's mock cluster: each is handled as the table
says. `ErrorCode`'s properties decide; the exceptions, codes with a meaning of their own for a request, are listed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import count
from typing import Any

import anyio
import pytest
from tests.io.kafka.librdkafka import ErrorDecoder, MockCluster
from tests.io.kafka.mock_outcomes import HASTY, connect, expected, outcomes

import odradek as od
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import FetchRequest, ListOffsetsRequest, ProduceRequest
from odradek.wire.kafka.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from odradek.wire.kafka.messages.metadata import MetadataRequest
from odradek.wire.kafka.schema import Request

pytestmark = pytest.mark.anyio

NUMBERS = count()

Api = type[Request[Any]]


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough for so many cases."""
    return "asyncio"


@pytest.fixture(scope="module")
def mock() -> Iterator[MockCluster]:
    with MockCluster() as mock:
        mock.create_topic("t")
        yield mock


@pytest.fixture
async def cluster(mock: MockCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[od.Cluster]:
    monkeypatch.setattr("odradek.io.kafka.connection.KafkaResponseDecoder", ErrorDecoder)
    async with connect(mock) as cluster:
        async with cluster.producer() as out:
            await out.send("t", b"first")
        yield cluster


# ---- produce, fetch, positions ----------------------------------------------------------------------------------


async def test_errors_of_produce(mock: MockCluster, cluster: od.Cluster) -> None:
    """Retriable errors delay records, others refuse them. With an identity that is not valid the producer ends."""

    async def attempt(code: ErrorCode) -> str:
        async with cluster.producer(tuning=HASTY) as out:
            await out.send("t", b"introduces the producer")
            mock.push_errors(ProduceRequest, code)
            mock.forget_requests()
            acks = await out.send_many("t", [b"a", b"b"])
        assert len(acks.failed) in (0, 2)
        if acks.failed:
            assert code.name in str(acks.failed[0].error)
            return "refused"
        await new_metadata(mock, code)
        return "written"

    divided = {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE}
    written_before = {ErrorCode.DUPLICATE_SEQUENCE_NUMBER}
    in_a_new_epoch = {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
    without_numbers = {ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    of_the_producer = {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
    assert await outcomes(attempt) == expected(
        lambda code: "written" if code.retriable else "refused",
        {
            "written": divided | written_before | in_a_new_epoch | without_numbers,
            "error": of_the_producer,
            "fenced": {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED},
        },
    )


def read_or_error(code: ErrorCode) -> str:
    return "read" if code.retriable else "error"


async def new_metadata(mock: MockCluster, code: ErrorCode) -> None:
    """Wait until metadata was requested, if the table calls for it."""
    while code.refresh_metadata and not mock.requests()[MetadataRequest.SPEC.key]:  # noqa: ASYNC110 - no event
        await anyio.sleep(0.001)


@pytest.mark.parametrize("version", [6, 16])
async def test_errors_of_fetch(mock: MockCluster, version: int) -> None:
    """Retriable errors delay a reader, others end it; its position does not move. An error of the whole response, which
    version 7 and later have, is one of each partition."""
    special = {
        "read": {ErrorCode.UNKNOWN_SERVER_ERROR},  # a broker that could not read may be able to later
        "error": {ErrorCode.CORRUPT_MESSAGE},  # damaged bytes stay as they are
        "out of range": {ErrorCode.OFFSET_OUT_OF_RANGE},
    }
    assert await fetch_outcomes(mock, version) == expected(read_or_error, special)


async def fetch_outcomes(mock: MockCluster, version: int) -> dict[str, str]:
    async def attempt(code: ErrorCode) -> str:
        await connected.positions("t", od.EARLIEST)  # the mock has read what the reader before has sent
        mock.forget_requests()
        mock.push_errors(FetchRequest, code)
        async with connected.reader("t", start=od.EARLIEST) as reader:
            try:
                assert (await anext(reader)).position == 0
            except od.OffsetOutOfRange:
                return "out of range"
            await new_metadata(mock, code)
            return "read"

    mock.limit_version(FetchRequest, version)
    async with connect(mock) as connected, connected.producer() as out:
        await out.send("t", b"first")
        return await outcomes(attempt)


async def test_errors_of_positions(mock: MockCluster, cluster: od.Cluster) -> None:
    """Retriable errors delay the answer, others are raised."""

    async def attempt(code: ErrorCode) -> str:
        mock.push_errors(ListOffsetsRequest, code)
        mock.forget_requests()
        positions = await cluster.positions("t", od.EARLIEST)
        await new_metadata(mock, code)
        assert len(positions) == 1
        return "read"

    assert await outcomes(attempt) == expected(
        read_or_error,
        {"read": {ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT}},  # of messages that have no times
    )


# ---- groups -----------------------------------------------------------------------------------------------------


MEMBER_EXCEPTIONS = {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}
"""Errors after which a member joins again."""

FAILED_ONCE = {ErrorCode.UNKNOWN_SERVER_ERROR}
"""Errors that a coordinator may have no longer when it is asked again."""

COMMIT_EXCEPTIONS = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH}
"""Errors after which positions are read or stored again, with the generation that follows."""


def goes_on_or_error(code: ErrorCode) -> str:
    return "goes on" if code.retriable else "error"


async def next_request(mock: MockCluster, consumer: od.Consumer, following: Mapping[Api, int]) -> Api:
    """Wait until the mock has received so many requests of one of these kinds, and return it; raise the error of a
    member that ends instead."""
    ended: list[Exception] = []

    async def read_on() -> None:
        try:
            async for _ in consumer:
                pass
        except od.OdradekError as error:
            ended.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read_on)
        while not ended:
            received = mock.requests()
            for api, number in following.items():
                if received[api.SPEC.key] >= number:
                    tasks.cancel_scope.cancel()
                    return api
            await anyio.sleep(0.001)
    raise ended[0]


@pytest.mark.parametrize(
    ("api", "following", "special"),
    [
        (FindCoordinatorRequest, {JoinGroupRequest: 1}, MEMBER_EXCEPTIONS),
        (JoinGroupRequest, {JoinGroupRequest: 2}, {*MEMBER_EXCEPTIONS, ErrorCode.MEMBER_ID_REQUIRED}),
        (SyncGroupRequest, {JoinGroupRequest: 2}, MEMBER_EXCEPTIONS),
        (OffsetFetchRequest, {OffsetFetchRequest: 2}, COMMIT_EXCEPTIONS),
    ],
)
async def test_errors_of_joining_a_group(
    mock: MockCluster, cluster: od.Cluster, api: Api, following: Mapping[Api, int], special: set[ErrorCode]
) -> None:
    """Retriable errors delay a member, others end it."""

    async def attempt(code: ErrorCode) -> str:
        mock.push_errors(api, code)
        mock.forget_requests()
        following_api: Api | None = None
        try:
            async with cluster.consumer("t", group=f"g{next(NUMBERS)}") as consumer:
                following_api = await next_request(mock, consumer, following)
        except od.BrokerError:
            if following_api is None:  # else the session ran out before the member could leave: the machine is slow
                raise
        return "goes on"

    fenced = set() if api is OffsetFetchRequest else {ErrorCode.FENCED_INSTANCE_ID}
    assert await outcomes(attempt) == expected(goes_on_or_error, {"goes on": special | FAILED_ONCE, "fenced": fenced})


async def test_errors_of_heartbeats(mock: MockCluster) -> None:
    """Errors say what the member has to do: find its coordinator, join again, repeat the heartbeat, or end."""

    async def attempt(code: ErrorCode) -> str:
        # While a member gives up its partitions for a rebalance it continues to send heartbeats.
        heartbeats = 1000 if code is ErrorCode.REBALANCE_IN_PROGRESS else 3
        following = {FindCoordinatorRequest: 1, JoinGroupRequest: 1, HeartbeatRequest: heartbeats}
        api: Api | None = None
        try:
            async with connected.consumer("t", group=f"g{next(NUMBERS)}", exit_within=1, max_blocked=0) as consumer:
                await anext(consumer)
                mock.push_errors(HeartbeatRequest, code)
                mock.forget_requests()
                api = await next_request(mock, consumer, following)
        except od.DeadlineError:
            assert code in MEMBER_EXCEPTIONS  # the mock waits for the member that it still has
        assert api is not None
        return api.SPEC.name

    async with connect(mock, session_s=30.0) as connected:
        async with connected.producer() as out:
            await out.send("t", b"first")
        results = await outcomes(attempt)
    assert results == expected(
        lambda code: "Heartbeat" if code.retriable else "error",
        {
            "FindCoordinator": {
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.NETWORK_EXCEPTION,
                ErrorCode.REQUEST_TIMED_OUT,
            },
            "JoinGroup": MEMBER_EXCEPTIONS,
            "Heartbeat": FAILED_ONCE,
            "fenced": {ErrorCode.FENCED_INSTANCE_ID},
        },
    )


async def test_errors_of_commits(mock: MockCluster, cluster: od.Cluster) -> None:
    """Retriable errors delay a commit, and so does a rebalance. Others are raised: the position is not stored."""

    async def attempt(code: ErrorCode) -> str:
        async with connected.consumer("t", group=f"g{next(NUMBERS)}", exit_within=1) as consumer:
            batch = await anext(consumer.batches())
            mock.push_errors(OffsetCommitRequest, code)
            batch.done()
            await consumer.commit()
        return "goes on"

    async with connect(mock, session_s=30.0) as connected:  # a slow machine must not end a member's session
        results = await outcomes(attempt)
    assert results == expected(goes_on_or_error, {"goes on": COMMIT_EXCEPTIONS | FAILED_ONCE})
