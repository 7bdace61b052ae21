"""The connections of one cluster: who may be reached how, and what is left when the block ends."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from tests.client.observed import Recorder
from tests.io.kafka.peer import EVERYTHING, Peer, negotiate
from tests.io.limits import end_time_limits
from tests.memory_pair import memory_pair

from odradek.core.backoff import Backoff
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import Closed, InternalError, OdradekError, Unreachable
from odradek.io.connection import ConnectionOptions, State
from odradek.io.kafka.authentication import TokenSource
from odradek.io.kafka.connections import BOOTSTRAP_ID, BrokerConnections
from odradek.io.observation import observer_calls
from odradek.io.security import Security
from odradek.io.tls import ContextSource
from odradek.observe import ConnectionEnded, ConnectionOpened
from odradek.types import Broker
from odradek.wire.kafka.messages.groups import ConsumerGroupHeartbeatRequest
from odradek.wire.kafka.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
)
from odradek.wire.kafka.messages.transactions import TxnOffsetCommitRequest

pytestmark = pytest.mark.anyio

OPTIONS = ConnectionOptions(connect_timeout_s=20.0, backoff=Backoff(0, 1, 5))


@pytest.fixture
def port() -> Iterator[int]:
    """A port on which nothing listens."""
    with socket.socket() as unheard:  # bound and not listening: refuses for as long as it is open
        unheard.bind(("127.0.0.1", 0))
        yield unheard.getsockname()[1]


@pytest.fixture
def silent() -> Iterator[Broker]:
    """A server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Broker(BOOTSTRAP_ID, *server.getsockname())


def connections_of(*bootstrap: str, tokens: TokenSource | None = None) -> BrokerConnections:
    return BrokerConnections(
        frozenset(bootstrap), client_id="me", request_timeout_s=20.0, options=OPTIONS, tokens=tokens
    )


async def test_an_advertised_address_that_cannot_be_reached_is_named_as_such(port: int) -> None:
    async with connections_of() as connections:
        with pytest.raises(Unreachable, match=r"listener: tcp: Connection refused .*advertised\.listeners") as caught:
            await negotiate(connections.get(Broker(1, "127.0.0.1", port), "control"))
    assert (caught.value.step, caught.value.address) == ("listener", f"127.0.0.1:{port}")


async def test_an_address_of_the_url_that_cannot_be_reached_names_the_step(port: int) -> None:
    async with connections_of(f"127.0.0.1:{port}") as connections:
        for broker in (Broker(1, "127.0.0.1", port), Broker(BOOTSTRAP_ID, "127.0.0.1", port)):
            with pytest.raises(Unreachable, match="tcp: Connection refused") as caught:
                await connections.ask_metadata(broker, lambda versions: MetadataRequest())
            assert caught.value.step == "tcp"


async def test_a_broker_that_is_backed_off_from_is_not_waited_for(port: int) -> None:
    slow = ConnectionOptions(connect_timeout_s=5.0, backoff=Backoff(3600, 1, 3600))
    connections = BrokerConnections(frozenset(), client_id="me", request_timeout_s=3600.0, options=slow)
    async with connections:
        errors = []
        for _ in range(2):
            with anyio.fail_after(20), pytest.raises(Unreachable) as caught:
                await connections.ask(Broker(1, "127.0.0.1", port), MetadataRequest, lambda versions: MetadataRequest())
            errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert "listener: tcp: Connection refused" in errors[0]


async def test_a_server_that_says_nothing_costs_the_time_limit(silent: Broker) -> None:
    async with connections_of(silent.address) as connections, anyio.create_task_group() as tasks:

        async def end_limits() -> None:
            while True:
                for each in connections._connections.values():
                    if each.connection.state is State.HANDSHAKING:  # a short limit could be over before TCP connects
                        end_time_limits(each.connection)
                await anyio.sleep(0.01)

        tasks.start_soon(end_limits)
        with (
            anyio.fail_after(10),
            pytest.raises(Unreachable, match="version: this address needs a Kafka broker"),
        ):
            await connections.ask_metadata(silent, lambda versions: MetadataRequest())
        tasks.cancel_scope.cancel()
        assert repr(connections) == "<BrokerConnections 0 connections>"  # it was for this request only


@asynccontextmanager
async def connected(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, recorder: Recorder | None = None
) -> AsyncIterator[BrokerConnections]:
    """Yield connections that all lead to the peer."""

    async def dial(host: str, port: int, timeout: float, *more: object) -> Any:
        return await peer.dial(host, port, timeout)

    monkeypatch.setattr("odradek.io.kafka.connections.connect", dial)
    async with anyio.create_task_group() as peer.group:
        async with BrokerConnections(
            frozenset(["b:9092"]),
            client_id="me",
            request_timeout_s=20.0,
            options=OPTIONS,
            observer=None if recorder is None else observer_calls(recorder),
        ) as connections:
            yield connections
        peer.group.cancel_scope.cancel()


def cluster(*addresses: tuple[int, str, int]) -> Peer:
    brokers = tuple([MetadataResponseBroker(node_id=id_, host=host, port=port) for id_, host, port in addresses])
    return Peer({MetadataRequest: lambda request, version: MetadataResponse(brokers=brokers)})


async def test_a_connection_to_an_address_goes_on_as_that_of_the_broker_there(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, recorder = cluster((1, "other", 9092), (2, "b", 9092)), Recorder()
    bootstrap, broker = Broker(BOOTSTRAP_ID, "b", 9092), Broker(2, "b", 9092)
    async with connected(peer, monkeypatch, recorder) as connections:
        await connections.ask_metadata(bootstrap, lambda versions: MetadataRequest())
        await connections.ask(broker, MetadataRequest, lambda versions: MetadataRequest())
        assert peer.connections == ["b:9092"]
        for _ in range(2):  # the address once more, while its broker has a connection: for this request only
            await connections.ask_metadata(bootstrap, lambda versions: MetadataRequest())
        assert peer.connections == ["b:9092"] * 3
        assert repr(connections) == "<BrokerConnections 1 connections>"
    opened, ended = recorder.of(ConnectionOpened), recorder.of(ConnectionEnded)
    assert [(event.broker.id, event.purpose) for event in opened[:2]] == [(-1, "bootstrap"), (2, "control")]
    assert ended[0] == ConnectionEnded(bootstrap, "bootstrap", "continues for control", False)
    assert sorted(event[:2] for event in opened) == sorted(event[:2] for event in ended)


async def test_a_request_whose_connection_was_closed_with_another_has_its_answer_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bootstrap = Broker(BOOTSTRAP_ID, "b", 9092)
    async with connected(cluster((2, "b", 9092)), monkeypatch) as connections:

        def build(versions: BrokerVersions) -> MetadataRequest:
            return MetadataRequest()

        keep = connections._keep

        def keep_late(address: Broker, response: MetadataResponse) -> None:
            connections.close(address, "bootstrap")  # as a cancelled request for this address does
            keep(address, response)

        monkeypatch.setattr(connections, "_keep", keep_late)
        response = await connections.ask_metadata(bootstrap, build)
        assert response.brokers[0].node_id == 2
        assert repr(connections) == "<BrokerConnections 0 connections>"


async def test_a_connection_to_an_address_that_no_broker_names_is_for_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected(cluster((1, "b", 9093), (2, "c", 9092)), monkeypatch) as connections:
        await connections.ask_metadata(Broker(BOOTSTRAP_ID, "b", 9092), lambda versions: MetadataRequest())
        assert repr(connections) == "<BrokerConnections 0 connections>"


async def test_a_defect_in_a_connection_that_went_on_as_that_of_a_broker_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer, broker = cluster((2, "b", 9092)), Broker(2, "b", 9092)
    async with connected(peer, monkeypatch) as connections:
        await connections.ask_metadata(Broker(BOOTSTRAP_ID, "b", 9092), lambda versions: MetadataRequest())
        kept = connections.get(broker, "control")

        async def fail(*arguments: object) -> Any:
            raise LookupError("a defect")

        monkeypatch.setattr(kept.connection, "_connect", fail)
        await peer.hang_up()
        with anyio.fail_after(30):
            while repr(connections) != "<BrokerConnections 0 connections>":
                with pytest.raises(OdradekError):
                    await connections.ask(broker, MetadataRequest, lambda versions: MetadataRequest())
        monkeypatch.undo()
        assert connections.get(broker, "control") is not kept


async def test_what_the_cluster_can_do_is_up_to_its_brokers_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of the URL leads to any of them, and is not asked again after they were upgraded."""
    peer = cluster((1, "b1", 9092), (2, "b2", 9092))
    old = ApiVersionsResponse(
        api_keys=tuple([api for api in EVERYTHING.api_keys if api.api_key != ConsumerGroupHeartbeatRequest.SPEC.key])
    )

    def has_heartbeat(versions: BrokerVersions) -> bool:
        return versions.has(ConsumerGroupHeartbeatRequest)

    async with connected(peer, monkeypatch) as connections:

        async def ask(broker: Broker, response: ApiVersionsResponse) -> None:
            peer.answers[ApiVersionsRequest] = lambda request, version: response
            await connections.ask_metadata(broker, lambda versions: MetadataRequest())

        known = connections.known
        await ask(Broker(BOOTSTRAP_ID, "b", 9092), old)
        assert not known.all_have(has_heartbeat)
        await ask(Broker(1, "b1", 9092), EVERYTHING)
        assert known.all_have(has_heartbeat)
        await ask(Broker(2, "b2", 9092), old)
        assert not known.all_have(has_heartbeat)
        peer.answers[MetadataRequest] = cluster((1, "b1", 9092), (3, "b3", 9092)).answers[MetadataRequest]
        await ask(Broker(1, "b1", 9092), EVERYTHING)
        assert known.all_have(has_heartbeat), "the older broker has left"


def offer(offered: ApiVersionsResponse, request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
    return offered


@pytest.mark.parametrize("older", [1, 2])
async def test_what_all_brokers_have_does_not_follow_from_their_version_of_produce(
    older: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers of 2.4 and 2.5 have the same one."""
    peer = cluster((1, "b1", 9092), (2, "b2", 9092))
    before = ApiVersionsResponse(
        api_keys=tuple(
            each.__replace__(max_version=2) if each.api_key == TxnOffsetCommitRequest.SPEC.key else each
            for each in EVERYTHING.api_keys
        )
    )
    async with connected(peer, monkeypatch) as connections:
        for number in (1, 2):
            peer.answers[ApiVersionsRequest] = partial(offer, before if number == older else EVERYTHING)
            await connections.ask_metadata(Broker(number, f"b{number}", 9092), lambda versions: MetadataRequest())
        common = connections.known.common()
        assert common is not None and not common.has_group_fencing
        peer.answers[MetadataRequest] = cluster((3 - older, f"b{3 - older}", 9092)).answers[MetadataRequest]
        await connections.ask_metadata(Broker(3 - older, f"b{3 - older}", 9092), lambda versions: MetadataRequest())
        common = connections.known.common()
        assert common is not None and common.has_group_fencing, "the older broker has left"


async def test_a_name_behind_which_a_broker_does_not_answer_is_tried_at_its_next_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer, failures = cluster((1, "c", 9092)), list[object]()
    bootstrap = Broker(BOOTSTRAP_ID, "b", 9092)
    async with connected(peer, monkeypatch) as connections:

        async def dial(host: str, port: int, timeout: float, tls: object, proxy: object, failed: int) -> Any:
            failures.append(failed)
            if failed == 2:
                return await peer.dial(host, port, timeout)
            near, far = memory_pair(1 << 20)
            await far.aclose()
            return near

        monkeypatch.setattr("odradek.io.kafka.connections.connect", dial)
        for _ in range(2):
            with pytest.raises(Unreachable):
                await connections.ask_metadata(bootstrap, lambda versions: MetadataRequest())
        await connections.ask_metadata(bootstrap, lambda versions: MetadataRequest())
        assert failures.pop() == 2
        assert set(failures) == {0, 1}
        with pytest.raises(Unreachable):
            await connections.ask_metadata(bootstrap, lambda versions: MetadataRequest())
        assert failures.pop() == 0


async def test_every_connection_has_the_context_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, contexts = cluster((1, "b", 9092)), []

    async def dial(host: str, port: int, timeout: float, tls: object, *more: object) -> Any:
        contexts.append(tls)
        return await peer.dial(host, port, timeout)

    monkeypatch.setattr("odradek.io.kafka.connections.connect", dial)
    authority = trustme.CA().cert_pem.bytes()
    with trustme.Blob(authority).tempfile() as file:
        connections = BrokerConnections(
            frozenset(["b:9092"]),
            client_id="me",
            request_timeout_s=20.0,
            options=OPTIONS,
            tls=ContextSource(Security(ssl_cafile=file)),
        )
        async with anyio.create_task_group() as peer.group, connections:
            for purpose in ("produce", "fetch"):
                await connections.ask(
                    Broker(1, "b", 9092), MetadataRequest, lambda versions: MetadataRequest(), purpose
                )
                Path(file).write_bytes(authority * 2)  # noqa: ASYNC240 - a small one
            await peer.hang_up()
    assert len(contexts) == len(set(contexts)) == 2


async def test_each_kind_of_work_has_its_own_until_it_is_closed() -> None:
    async with connections_of() as connections:
        broker = Broker(1, "b", 9092)
        fetch, produce = connections.get(broker, "fetch"), connections.get(broker, "produce")
        assert connections.get(broker, "fetch") is fetch
        assert fetch is not produce
        connections.close(broker, "fetch")
        connections.close(broker, "unknown")
        assert connections.get(broker, "fetch") is not fetch
        await anyio.wait_all_tasks_blocked()
        assert not fetch.is_open
        assert produce.is_open
    assert not produce.is_open
    with pytest.raises(Closed):
        connections.get(broker, "fetch")


async def test_a_defect_ends_one_connection_and_the_next_use_opens_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connections_of() as connections:
        broker = Broker(1, "b", 9092)
        first, other = connections.get(broker, "fetch"), connections.get(broker, "produce")

        async def fail() -> None:
            raise InternalError("a defect")

        monkeypatch.setattr(first.connection, "run", fail)
        await anyio.wait_all_tasks_blocked()
        assert connections.get(broker, "fetch") is not first
        assert connections.get(broker, "produce") is other


async def test_a_token_is_fetched_before_a_connection_is_opened(silent: Broker) -> None:
    async def fail() -> str:
        raise LookupError("secret")

    async with connections_of(silent.address, tokens=TokenSource(fail, 1.0)) as connections:
        with pytest.raises(Unreachable, match="sasl: no token: the token provider raised LookupError") as caught:
            await connections.ask_metadata(silent, lambda versions: MetadataRequest())
        assert "secret" not in str(caught.value)
