"""Typed requests over one connection: versions, decoders, pauses, and lines that are cut."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.client.observed import Recorder
from tests.io.kafka.peer import CLUSTER, EVERYTHING, Peer, negotiate
from tests.io.kafka.test_handshake import SHORT, connection_to
from tests.io.limits import end_time_limits
from tests.loops import EVERY_LOOP, on

from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import (
    Closed,
    ConnectionLost,
    DeadlineError,
    LocalProtocolError,
    OdradekError,
    RemoteProtocolError,
    Unreachable,
    Unsupported,
)
from odradek.io.connection import State
from odradek.io.kafka.connection import KafkaConnection, VersionLimits
from odradek.io.observation import ConnectionObservation, observer_calls
from odradek.io.requests import InFlightRequest
from odradek.observe import Throttled
from odradek.types import Broker
from odradek.wire.kafka.fetch_response import FetchResponseDecoder
from odradek.wire.kafka.messages.data import (
    FetchableTopicResponse,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
)
from odradek.wire.kafka.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)

pytestmark = pytest.mark.anyio
anyio_backend = on(EVERY_LOOP)


def offers(**last: int) -> ApiVersionsResponse:
    keys = {"Produce": 0, "Fetch": 1, "Metadata": 3}
    return ApiVersionsResponse(
        api_keys=tuple(ApiVersion(api_key=keys[name], max_version=v) for name, v in last.items())
    )


async def outcome(pending: InFlightRequest[Any]) -> Any:
    try:
        return await pending
    except OdradekError as error:
        return type(error), error.sent


async def test_requests_are_pipelined_and_responses_matched() -> None:
    answers = iter(MetadataResponse(cluster_id=str(n)) for n in range(100))
    peer = Peer()
    async with connection_to(peer) as connection:
        await negotiate(connection)
        peer.answers[MetadataRequest] = lambda request, version: next(answers)
        pending = [connection.submit(MetadataRequest()) for _ in range(100)]
        assert [(await each).cluster_id for each in pending] == [str(n) for n in range(100)]


async def test_a_request_is_built_for_the_versions_of_its_connection() -> None:
    peer = Peer({ApiVersionsRequest: lambda request, version: offers(Metadata=0, Produce=0)})
    built: list[bool] = []

    def build(versions: BrokerVersions) -> MetadataRequest:
        built.append(versions.has_null_topics)
        return MetadataRequest(topics=() if not versions.has_null_topics else None)

    async with connection_to(peer) as connection:
        assert connection.versions is None
        await connection.submit_built(MetadataRequest, build)
        peer.answers[ApiVersionsRequest] = lambda request, version: offers(Metadata=9, Produce=0)
        await peer.hang_up()
        await anyio.wait_all_tasks_blocked()  # the loss is noticed
        await connection.submit_built(MetadataRequest, build)
        assert connection.versions is not None and connection.versions.has_null_topics
    assert built == [False, True]


@pytest.mark.parametrize(("limits", "version"), [(VersionLimits(), 12), (VersionLimits(topic_ids=[b"1" * 16]), 18)])
async def test_what_is_known_of_a_request_limits_its_version(limits: VersionLimits, version: int) -> None:
    peer = Peer()
    async with connection_to(peer) as connection:
        await connection.submit(FetchRequest(), limits=limits)
    assert peer.names()[-1] == f"Fetch {version}"


async def test_a_request_that_the_broker_lacks_or_cannot_read_fails_alone_and_unsent() -> None:
    peer = Peer({ApiVersionsRequest: lambda request, version: offers(Metadata=0, Produce=0)})
    async with connection_to(peer) as connection:
        missing, unwritable, fine = (
            connection.submit(FetchRequest()),
            connection.submit(MetadataRequest(topics=None)),
            connection.submit(MetadataRequest()),
        )
        assert await outcome(missing) == (Unsupported, False)
        assert await outcome(unwritable) == (LocalProtocolError, False)
        assert isinstance(await fine, MetadataResponse)
        assert connection.connection.statistics().losses == 0


async def test_a_response_may_have_a_decoder_of_its_own_that_gets_bytes_as_they_come() -> None:
    data = FetchPartitionData(partition_index=0, records=bytes(100))
    answer = FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=(data,)),))
    peer = Peer({FetchRequest: lambda request, version: answer})
    peer.capacity = 32
    fed: list[int] = []

    class Sink:
        def feed(self, data: memoryview) -> None:
            fed.append(len(data))

    async with connection_to(peer) as connection:
        response: InFlightRequest[FetchResponse] = connection.submit_decoded(
            FetchRequest,
            lambda versions: FetchRequest(),
            lambda version, number: FetchResponseDecoder(version, number, lambda topic, part: Sink(), 1000),
        )
        assert (await response).responses[0].topic == "t"
    assert sum(fed) == 100
    assert len(fed) > 2


# ---- pauses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("last", "pauses"), [(5, False), (6, True)])
async def test_a_throttled_connection_pauses_where_brokers_leave_waiting_to_clients(last: int, pauses: bool) -> None:
    peer = Peer({ApiVersionsRequest: lambda request, version: offers(Metadata=last, Produce=0)})
    async with connection_to(peer) as connection:
        await negotiate(connection)
        peer.answers[MetadataRequest] = lambda request, version: MetadataResponse(throttle_time_ms=3_600_000)
        await connection.submit(MetadataRequest(topics=None))
        assert (connection.connection.state is State.THROTTLED) == pauses
        assert connection.connection.statistics().throttled_seconds == 3600, "whoever waits"
        peer.answers[MetadataRequest] = lambda request, version: CLUSTER
        sent, pending = len(peer.requests), connection.submit(MetadataRequest(topics=None))
        await anyio.wait_all_tasks_blocked()
        assert (len(peer.requests) == sent) == pauses
        if pauses:  # the hour is over
            connection.connection._resume_at = anyio.current_time()
            connection.connection.expect_by(0.0)
        assert await pending == CLUSTER
        assert connection.connection.state is State.CONNECTED


@pytest.mark.parametrize("last", [5, 6])
async def test_a_throttled_connection_is_told_also_where_the_broker_waits(last: int) -> None:
    recorder, broker = Recorder(), Broker(1, "b", 1)
    calls = observer_calls(recorder)
    assert calls is not None
    peer = Peer({ApiVersionsRequest: lambda request, version: offers(Metadata=last, Produce=0)})
    async with connection_to(peer) as connection:
        connection.observation = ConnectionObservation(calls, broker, "control")
        await negotiate(connection)
        recorder.events.clear()
        peer.answers[MetadataRequest] = lambda request, version: MetadataResponse(throttle_time_ms=1500)
        await connection.submit(MetadataRequest(topics=None))
    request, throttled = recorder.events
    assert (request.api, request.version, request.error) == ("Metadata", last, None)
    assert throttled == Throttled(broker, "control", 1.5)


# ---- failures ----------------------------------------------------------------------------------------------------


async def test_a_frozen_peer_costs_the_time_limit_of_a_request_and_the_connection() -> None:
    peer = Peer()
    async with connection_to(peer) as connection:
        await negotiate(connection)
        peer.answers[MetadataRequest] = lambda request, version: None
        late = connection.submit(MetadataRequest())
        behind = connection.submit(MetadataRequest())
        sent = len(peer.requests)
        while len(peer.requests) < sent + 2:
            await anyio.lowlevel.checkpoint()
        end_time_limits(connection.connection, late)
        assert await outcome(late) == (DeadlineError, True)
        assert await outcome(behind) == (ConnectionLost, True)
        del peer.answers[MetadataRequest]
        await connection.submit(MetadataRequest())


async def test_a_wrong_correlation_id_closes_the_connection() -> None:
    peer = Peer()
    async with connection_to(peer) as connection:
        await negotiate(connection)
        peer.answers[MetadataRequest] = lambda request, version: bytes([0, 0, 0, 8, 0, 0, 0, 99, 0, 0, 0, 0])
        first, second = connection.submit(MetadataRequest()), connection.submit(MetadataRequest())
        assert await outcome(first) == (RemoteProtocolError, True)
        assert await outcome(second) == (ConnectionLost, True)


@pytest.mark.parametrize("size", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x10\x00\x00\x01"])
async def test_a_hostile_length_is_refused_before_memory_is_taken(size: bytes) -> None:
    peer = Peer()
    async with connection_to(peer) as connection:
        await negotiate(connection)
        peer.answers[MetadataRequest] = lambda request, version: size
        with pytest.raises(RemoteProtocolError, match="a response of"):
            await connection.submit(MetadataRequest())


async def test_a_line_cut_at_any_byte_of_a_response_fails_the_request_and_heals() -> None:
    peer = Peer({MetadataRequest: lambda request, version: CLUSTER})
    async with connection_to(peer) as connection:
        await connection.submit(MetadataRequest())
        began = peer.sent
        await connection.submit(MetadataRequest())
        for cut in range(peer.sent - began):
            peer.cut = peer.sent + cut
            assert await outcome(connection.submit(MetadataRequest())) == (ConnectionLost, True)
            peer.cut = None
            assert await connection.submit(MetadataRequest()) == CLUSTER


async def test_a_silent_peer_fails_what_is_queued_after_the_time_limit_of_connecting() -> None:
    peer = Peer({ApiVersionsRequest: lambda *_: None, MetadataRequest: lambda *_: None})
    async with connection_to(peer, options=SHORT) as connection:
        began = anyio.current_time()
        assert await outcome(connection.submit(MetadataRequest())) == (Unreachable, False)
        assert anyio.current_time() - began < 10


async def test_a_handshake_that_is_late_before_its_first_byte_has_failed_all_the_same() -> None:
    """As after a pause of the process that is longer than the time limit."""
    peer = Peer({ApiVersionsRequest: lambda *_: None, MetadataRequest: lambda *_: None})
    async with connection_to(peer, options=SHORT._replace(connect_timeout_s=0.0)) as connection:
        assert await outcome(connection.submit(MetadataRequest())) == (Unreachable, False)


async def test_a_withdrawn_request_is_not_sent_and_after_the_end_there_is_none() -> None:
    peer = Peer()
    async with connection_to(peer) as connection:
        withdrawn = connection.submit(MetadataRequest())
        assert withdrawn.withdraw()
        await negotiate(connection)
        assert peer.requests[-1][1] == 0  # the probe's
        assert connection.is_open
    assert not connection.is_open
    with pytest.raises(Closed):
        connection.submit(MetadataRequest())


async def test_correlation_ids_of_requests_are_not_those_of_handshakes() -> None:
    async def ids(connection: KafkaConnection) -> list[int]:
        return [connection.next_correlation_id() for _ in range(3)]

    async with connection_to(Peer({ApiVersionsRequest: lambda request, version: EVERYTHING})) as connection:
        assert await ids(connection) == [1, 2, 3]
        connection._next_id = 0x7FFFFFFF
        assert await ids(connection) == [0, 1, 2]
