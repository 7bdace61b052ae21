"""The handshake of a connection, with a peer that answers, or does not, as the releases of Kafka do."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from tests.io.kafka.peer import CLUSTER, EVERYTHING, Answer, Peer, negotiate, of_release

from odradek.core.backoff import Backoff
from odradek.core.kafka.sasl import OAuthBearer, Plain, Scram, UnansweredToken
from odradek.core.kafka.sasl.scram import Keys
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import AuthFailed, ConnectionLost, OdradekError, Unreachable
from odradek.io.connection import ConnectionOptions
from odradek.io.kafka.authentication import TokenSource, login
from odradek.io.kafka.connection import KafkaConnection
from odradek.io.kafka.gssapi import exchange_of
from odradek.io.kafka.handshake import Identity, KafkaHandshake, KnownVersions, Login
from odradek.io.security import Security
from odradek.io.transport import Transport, TransportHandler
from odradek.wire.kafka.messages.groups import OffsetFetchRequest, OffsetFetchResponse
from odradek.wire.kafka.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
)
from odradek.wire.kafka.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

pytestmark = pytest.mark.anyio

PLAIN = Login("PLAIN", lambda host: Plain("alice", "pass-of-alice").exchange())
OPTIONS = ConnectionOptions(connect_timeout_s=20.0, backoff=Backoff(0, 1, 5))
SHORT = ConnectionOptions(connect_timeout_s=0.2, backoff=Backoff(0, 1, 5))


@asynccontextmanager
async def connection_to(
    peer: Peer,
    login: Login | None = None,
    known: KnownVersions | None = None,
    options: ConnectionOptions = OPTIONS,
    clock: Any = anyio.current_time,
    host: str = "b",
) -> AsyncIterator[KafkaConnection]:
    handshake = KafkaHandshake(
        host, 9092, Identity("me", "odradek", "1.0"), known or KnownVersions(clock), login, clock, lambda: 0.5
    )
    async with anyio.create_task_group() as peer.group:
        connection = KafkaConnection(
            host,
            9092,
            connect=peer.dial,
            handshake=handshake,
            client_id="me",
            request_timeout_s=20.0,
            options=options,
        )
        async with connection.connection:
            with anyio.fail_after(30):
                yield connection
        peer.group.cancel_scope.cancel()


async def failure(peer: Peer, login: Login | None = None, options: ConnectionOptions = OPTIONS) -> Any:
    """Return the error of the handshake."""
    async with connection_to(peer, login, options=options) as connection:
        with pytest.raises(OdradekError) as caught:
            await negotiate(connection)
        assert not caught.value.sent
        return caught.value


# ---- versions ----------------------------------------------------------------------------------------------------


async def test_a_modern_broker_is_known_after_one_request_and_the_second_answer_is_skipped() -> None:
    peer = Peer({MetadataRequest: lambda request, version: CLUSTER})
    async with connection_to(peer) as connection:
        versions = await negotiate(connection)
        assert versions.version(MetadataRequest) == 13
        assert await connection.submit(MetadataRequest()) == CLUSTER
        assert peer.names() == ["ApiVersions 3", "Metadata 0", "Metadata 13"]
        assert len(peer.connections) == 1


async def test_a_broker_of_a_known_cluster_is_asked_for_its_versions_only() -> None:
    peer, known = Peer(), KnownVersions(anyio.current_time)
    for _ in range(2):
        async with connection_to(peer, known=known) as connection:
            await negotiate(connection)
    assert peer.names() == ["ApiVersions 3", "Metadata 0", "ApiVersions 3"]


async def test_a_broker_that_does_not_answer_as_the_others_did_is_probed_the_next_time() -> None:
    known = KnownVersions(anyio.current_time)
    async with connection_to(Peer(), known=known) as connection:
        await negotiate(connection)
    old = of_release("0.8.2")
    async with connection_to(old, known=known) as connection:
        with pytest.raises(Unreachable, match="needs a response to ApiVersions, as there was one before"):
            await negotiate(connection)
        assert old.names() == ["ApiVersions 3"]
        assert (await negotiate(connection)).release == "0.8.2"


BEFORE_4 = ApiVersionsResponse(api_keys=tuple(ApiVersion(api_key=key, max_version=4) for key in (0, 1, 3, 15, 18)))
OF_4 = ApiVersionsResponse(
    api_keys=tuple(ApiVersion(api_key=key, min_version=4 * (key == 1), max_version=4) for key in (0, 1, 3, 15, 18))
)


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ("0.9.0", ["ApiVersions 3", "DescribeGroups 0", "ListGroups 0"]),
        ("0.8.2", ["ApiVersions 3", "FindCoordinator 0", "ApiVersions 0"]),
    ],
)
async def test_an_old_broker_of_a_cluster_that_is_upgraded_is_known_without_a_wait(
    release: str, names: list[str]
) -> None:
    known, old = KnownVersions(anyio.current_time), of_release(release)
    async with connection_to(Peer({ApiVersionsRequest: lambda *_: BEFORE_4}), known=known) as connection:
        await negotiate(connection)
    async with connection_to(old, known=known, host="c") as connection:
        assert (await negotiate(connection)).release == release
    assert old.names() == names


async def test_an_old_broker_whose_release_is_remembered_no_longer_is_probed_again_without_a_wait() -> None:
    now = 0.0
    known, old = KnownVersions(lambda: now), of_release("0.9.0")
    async with connection_to(Peer({ApiVersionsRequest: lambda *_: BEFORE_4}), known=known) as connection:
        await negotiate(connection)
    for _ in range(2):
        async with connection_to(old, known=known, host="c") as connection:
            assert (await negotiate(connection)).release == "0.9.0"
        now += 601.0
    assert old.names().count("ApiVersions 3") == 2


@pytest.mark.parametrize(
    ("offered", "names"), [(BEFORE_4, ["ApiVersions 3", "DescribeGroups 0"]), (OF_4, ["ApiVersions 3"])]
)
async def test_only_beside_brokers_before_4_0_may_one_be_that_does_not_answer(
    offered: ApiVersionsResponse, names: list[str]
) -> None:
    known = KnownVersions(anyio.current_time)
    async with connection_to(Peer({ApiVersionsRequest: lambda *_: offered}), known=known) as connection:
        await negotiate(connection)
    other = Peer({ApiVersionsRequest: lambda *_: offered})
    for _ in range(2):  # the second time it has answered
        async with connection_to(other, known=known, host="c") as connection:
            assert (await negotiate(connection)).release is None
    assert other.names() == [*names, "ApiVersions 3"]


async def test_the_client_names_itself() -> None:
    peer = Peer()
    async with connection_to(peer) as connection:
        await negotiate(connection)
    request, _ = peer.requests[0]
    assert (request.client_software_name, request.client_software_version) == ("odradek", "1.0")


@pytest.mark.parametrize("listed", [(), (ApiVersion(api_key=18, max_version=2),)])
async def test_a_refused_version_of_the_question_is_asked_again_in_another(listed: tuple[ApiVersion, ...]) -> None:
    def answer(request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
        return ApiVersionsResponse(error_code=35, api_keys=listed) if version == 3 else EVERYTHING

    peer = Peer({ApiVersionsRequest: answer})
    async with connection_to(peer) as connection:
        assert (await negotiate(connection)).has(MetadataRequest, 12)
        await connection.submit(MetadataRequest())
    assert peer.names() == ["ApiVersions 3", "Metadata 0", f"ApiVersions {2 if listed else 0}", "Metadata 13"]


@pytest.mark.parametrize(("release", "connections"), [("0.9.0", 1), ("0.8.2", 3), ("0.8.1", 4), ("0.8.0", 5)])
async def test_brokers_that_know_no_versions_are_told_apart(release: str, connections: int) -> None:
    peer, known = of_release(release), KnownVersions(anyio.current_time)
    async with connection_to(peer, known=known) as connection:
        assert (await negotiate(connection)).release == release
        await connection.submit(MetadataRequest())
        assert len(peer.connections) == connections
        assert connection.connection.statistics().losses == 0
    before = len(peer.requests)
    async with connection_to(peer, known=known) as connection:
        assert (await negotiate(connection)).release == release  # it is remembered
    assert len(peer.requests) == before


async def test_what_is_remembered_of_an_old_broker_is_forgotten_after_a_time() -> None:
    now = 0.0
    known = KnownVersions(lambda: now)
    known.learn("b:9092", BrokerVersions.of_release("0.8.2"))
    assert known.release("b:9092") is not None
    assert known.release("c:9092") is None
    now = 601.0
    assert known.release("b:9092") is None


async def test_a_broker_that_closed_for_a_reason_of_its_own_is_not_taken_for_an_old_one() -> None:
    peer = Peer()
    closed = iter([ConnectionAbortedError])
    peer.answers[ApiVersionsRequest] = lambda request, version: next(closed, EVERYTHING)
    async with connection_to(peer) as connection:
        assert (await negotiate(connection)).release is None
        assert (await negotiate(connection)).has(MetadataRequest, 13)


async def test_a_broker_that_seemed_old_since_the_line_was_cut_is_probed_again_once_a_connection_is_lost() -> None:
    answer = OffsetFetchResponse()
    peer = Peer({OffsetFetchRequest: lambda request, version: answer if version > 1 else ConnectionAbortedError})
    cuts = iter([ConnectionAbortedError] * 2)  # at the question, and when the release found is confirmed
    peer.answers[ApiVersionsRequest] = lambda request, version: next(cuts, EVERYTHING)
    async with connection_to(peer) as connection:
        assert (await negotiate(connection)).release == "0.8.2"
        with pytest.raises(ConnectionLost):
            await connection.submit(OffsetFetchRequest())
        assert peer.names()[-1] == "OffsetFetch 1"
        await connection.submit(OffsetFetchRequest())
        assert (await negotiate(connection)).release is None
    assert int(peer.names()[-1].removeprefix("OffsetFetch ")) > 1


async def test_a_lost_connection_has_a_modern_broker_asked_for_its_versions_only() -> None:
    peer = Peer({MetadataRequest: lambda request, version: ConnectionAbortedError if version else CLUSTER})
    async with connection_to(peer) as connection:
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await connection.submit(MetadataRequest())
    assert peer.names() == ["ApiVersions 3", "Metadata 0", "Metadata 13", "ApiVersions 3", "Metadata 13"]


async def test_requests_are_encoded_for_the_connection_they_leave_on_again_after_a_reconnect() -> None:
    def only(last: int) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            api_keys=(ApiVersion(api_key=3, max_version=last), ApiVersion(api_key=0, max_version=last))
        )

    offers = iter([only(1), only(5)])
    peer = Peer({ApiVersionsRequest: lambda request, version: next(offers)})
    async with connection_to(peer) as connection:
        await connection.submit(MetadataRequest(topics=None))
        answers = iter([ConnectionAbortedError])
        peer.answers[MetadataRequest] = lambda request, version: next(answers, CLUSTER)
        with pytest.raises(OdradekError):
            await connection.submit(MetadataRequest(topics=None))
        assert await connection.submit(MetadataRequest(topics=None))
    assert [name for name in peer.names() if name[0] == "M"] == ["Metadata 0", "Metadata 1", "Metadata 1", "Metadata 5"]


# ---- peers that are no brokers, or expect something else -----------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "why", "hint"),
    [
        (b"\x15\x03\x03\x00\x02\x02\x50", "the peer speaks TLS", "+ssl"),
        (b"HTTP/1.1 400 Bad Request\r\n", "the peer speaks HTTP", "port of a broker"),
        (b"\x7f\xff\xff\xff", "a response of 2147483647 bytes", "TLS or SASL"),
        (b"\xff\xff\xff\xff", "a response of -1 bytes", "TLS or SASL"),
        (b"\x00\x00\x00\x04\x00\x00\x00\x07", "correlation id 7, expected one of", "TLS or SASL"),
        (b"\x00\x00\x00\x02\x00\x00", "a response of 2 bytes", "TLS or SASL"),
    ],
)
async def test_bytes_that_are_no_answer_name_step_address_and_hint(answer: bytes, why: str, hint: str) -> None:
    error = await failure(Peer({ApiVersionsRequest: lambda request, version: answer}))
    assert isinstance(error, Unreachable)
    assert (error.step, error.address) == ("version", "b:9092")
    assert why in error.why
    assert hint in error.hint
    assert error.retriable == ("speaks" not in why)


async def test_a_peer_that_closes_every_connection_may_expect_another_security_protocol() -> None:
    peer = Peer()
    peer.answers = {}
    peer.default = lambda request, version: ConnectionAbortedError  # type: ignore[assignment,return-value,method-assign]
    error = await failure(peer)
    assert (type(error), error.step, len(peer.connections)) == (Unreachable, "version", 4)
    assert "security protocol" in error.why
    assert "or the broker be one of 0.7" in error.hint


@pytest.mark.parametrize("login", [None, PLAIN], ids=["plaintext", "sasl"])
async def test_a_peer_that_has_answered_before_does_not_expect_another_security_protocol(login: Login | None) -> None:
    """It starts, ends, or has as many connections as it allows."""
    known, closing = KnownVersions(anyio.current_time), Peer()
    async with connection_to(sasl_peer(), login, known=known) as connection:
        await negotiate(connection)
    closing.answers = {}
    closing.default = lambda request, version: ConnectionAbortedError  # type: ignore[assignment,return-value,method-assign]
    async with connection_to(closing, login, known=known) as connection:
        for _ in range(2):
            with pytest.raises(Unreachable, match="a response to ApiVersions, as there was one before") as caught:
                await negotiate(connection)
            assert "max.connections.per.ip" in caught.value.hint and caught.value.retriable


async def test_a_silent_peer_costs_one_time_limit() -> None:
    error = await failure(Peer({ApiVersionsRequest: lambda *_: None, MetadataRequest: lambda *_: None}), options=SHORT)
    assert (type(error), error.step) == (Unreachable, "version")
    assert "there was no response" in error.why


class AlertingTransport:
    """A transport that the peer ends with an alert of TLS after the first request."""

    async def run(self, handler: TransportHandler) -> None:
        alert = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]")
        alert.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
        assert handler.data_to_send()
        handler.data_sent()
        handler.connection_lost(str(alert), alert)

    def write(self) -> None: ...

    def write_soon(self) -> None: ...

    def read_unseen(self) -> None: ...

    def unsent_bytes(self) -> int | None: ...

    def abort(self) -> None: ...

    async def aclose(self) -> None: ...


async def test_an_alert_of_tls_is_no_sign_of_an_old_release() -> None:
    peer = Peer()
    addresses: list[str] = []

    async def dial(host: str, port: int, timeout: float) -> Transport:
        addresses.append(host)
        return AlertingTransport()

    peer.dial = dial  # type: ignore[assignment,method-assign]
    error = await failure(peer)
    assert (type(error), error.step, error.why) == (Unreachable, "tls", "the broker's alert: certificate required")
    assert "ssl_certfile" in error.hint
    assert len(addresses) == 1


def before_2_4(request: ApiVersionsRequest, version: int) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=35) if version == 3 else EVERYTHING


@pytest.mark.parametrize("versions", [lambda *_: EVERYTHING, before_2_4])
async def test_a_listener_that_expects_sasl_says_so(versions: Callable[[Any, int], Answer]) -> None:
    error = await failure(Peer({ApiVersionsRequest: versions, MetadataRequest: lambda *_: ConnectionAbortedError}))
    assert (type(error), error.step, error.retriable) == (Unreachable, "sasl", False)
    assert "+sasl" in error.hint


async def test_a_controller_is_no_listener_with_sasl() -> None:
    """It closes upon Metadata, too."""
    apis = tuple([api for api in EVERYTHING.api_keys if api.api_key != MetadataRequest.SPEC.key])
    peer = Peer({ApiVersionsRequest: lambda request, version: ApiVersionsResponse(api_keys=apis)})
    peer.answers[MetadataRequest] = lambda *_: ConnectionAbortedError
    error = await failure(peer)
    assert (error.step, error.hint) == ("version", "use the address of a listener for clients")
    assert "as a controller of KRaft" in str(error)


@pytest.mark.parametrize("versions", [lambda *_: EVERYTHING, before_2_4])
@pytest.mark.parametrize("cut_again", [False, True])
async def test_a_line_cut_right_after_the_first_answer_is_no_sign_of_sasl(
    cut_again: bool, versions: Callable[[Any, int], Answer]
) -> None:
    """One cut after ApiVersions looks as SASL does; a listener without it refuses to take part in SASL, and a line that
    is cut again says nothing at all."""

    def cut_once(request: MetadataRequest, version: int) -> Answer:
        del peer.answers[MetadataRequest]
        return ConnectionAbortedError

    peer = Peer({ApiVersionsRequest: versions, MetadataRequest: cut_once})
    refused = SaslHandshakeResponse(error_code=34)
    peer.answers[SaslHandshakeRequest] = lambda *_: ConnectionAbortedError if cut_again else refused
    async with connection_to(peer) as connection:
        with pytest.raises(Unreachable) as caught:
            await negotiate(connection)
        assert (caught.value.step, caught.value.retriable) == ("version", True)
        assert (await negotiate(connection)).release is None
    assert peer.names()[:3] == ["ApiVersions 3", "Metadata 0", "SaslHandshake 0"]


async def test_a_listener_that_expects_sasl_names_its_mechanisms() -> None:
    peer = Peer({MetadataRequest: lambda *_: ConnectionAbortedError})
    peer.answers[SaslHandshakeRequest] = lambda *_: SaslHandshakeResponse(
        error_code=33, mechanisms=("SCRAM-SHA-256", "GSSAPI")
    )
    error = await failure(peer)
    assert error.step == "sasl" and error.hint.endswith("+sasl, with SCRAM-SHA-256 or GSSAPI")


async def test_a_line_cut_where_brokers_have_served_without_sasl_is_no_sign_of_sasl() -> None:
    known, peer = KnownVersions(anyio.current_time), Peer()
    async with connection_to(peer, known=known) as connection:
        await negotiate(connection)
    known.forget("b:9092")  # it is probed again
    peer.answers[MetadataRequest] = lambda *_: ConnectionAbortedError
    async with connection_to(peer, known=known) as connection:
        with pytest.raises(Unreachable) as caught:
            await negotiate(connection)
    assert (caught.value.step, caught.value.retriable) == ("version", True)


# ---- SASL --------------------------------------------------------------------------------------------------------


def sasl_peer(lifetime_ms: int = 0) -> Peer:
    return Peer(
        {
            SaslHandshakeRequest: lambda request, version: SaslHandshakeResponse(mechanisms=("PLAIN",)),
            SaslAuthenticateRequest: lambda request, version: SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms),
        }
    )


async def test_nothing_but_versions_precedes_authentication_and_nothing_overtakes_it() -> None:
    peer = sasl_peer()
    async with connection_to(peer, PLAIN) as connection:
        await connection.submit(MetadataRequest())
    assert peer.names() == ["ApiVersions 3", "SaslHandshake 1", "SaslAuthenticate 2", "Metadata 13"]
    assert peer.requests[2][0].auth_bytes == b"\0alice\0pass-of-alice"


async def test_tokens_are_raw_before_1_0() -> None:
    offered = ApiVersionsResponse(
        api_keys=(ApiVersion(api_key=17, max_version=0), ApiVersion(api_key=3, max_version=2), ApiVersion(api_key=0))
    )
    peer = sasl_peer()
    peer.answers[ApiVersionsRequest] = lambda request, version: offered
    tokens: list[bytes] = []

    def raw(frame: bytes) -> bytes | None:
        if frame.startswith(b"\0alice"):
            tokens.append(frame)
            return b""
        return None

    peer.raw = raw
    async with connection_to(peer, PLAIN) as connection:
        await connection.submit(MetadataRequest(topics=None))
    assert peer.names() == ["ApiVersions 3", "SaslHandshake 0", "Metadata 2"]
    assert tokens == [b"\0alice\0pass-of-alice"]


async def test_the_last_raw_token_of_gssapi_has_no_response() -> None:
    """Java's server of GSSAPI has nothing to say to it, and brokers before 1.0 send no frame then, not an empty one."""
    offered = ApiVersionsResponse(
        api_keys=(ApiVersion(api_key=17, max_version=0), ApiVersion(api_key=3, max_version=2), ApiVersion(api_key=0))
    )
    responses = {b"first": b"second", b"": b"offer", b"<no layer>": UnansweredToken()}
    peer = sasl_peer()
    peer.answers[ApiVersionsRequest] = lambda request, version: offered
    peer.raw = responses.get
    ticket = SimpleNamespace(complete=False)

    def step(token: bytes | None = None) -> bytes | None:
        ticket.complete = token is not None
        return None if ticket.complete else b"first"

    ticket.step = step
    ticket.unwrap = lambda token: SimpleNamespace(message=b"\x01\0\0\0")
    ticket.wrap = lambda message, encrypt: SimpleNamespace(message=b"<no layer>")
    login = Login("GSSAPI", lambda host: exchange_of(ticket, (ZeroDivisionError,)))
    async with connection_to(peer, login) as connection:
        with anyio.fail_after(5):
            await connection.submit(MetadataRequest(topics=None))
    assert peer.names() == ["ApiVersions 3", "SaslHandshake 0", "Metadata 2"]


async def test_both_sides_of_scram_are_checked() -> None:
    keys: list[Any] = []

    def server(request: SaslAuthenticateRequest, version: int) -> SaslAuthenticateResponse:
        message = request.auth_bytes.decode()
        if message.startswith("n,,"):
            nonce = message.split("r=")[1] + "more"
            keys[:] = [message[3:], f"r={nonce},s=c2FsdA==,i=4096"]
            return SaslAuthenticateResponse(auth_bytes=keys[1].encode())
        derived = Keys.derive("SCRAM-SHA-256", "right", b"salt", 4096)
        signature = derived.server_signature(f"{keys[0]},{keys[1]},{message.split(',p=')[0]}")
        return SaslAuthenticateResponse(auth_bytes=b"v=" + b64encode(signature))

    peer = sasl_peer()
    peer.answers[SaslAuthenticateRequest] = server
    for password, accepted in (("right", True), ("wrong", False)):
        login = Login("SCRAM-SHA-256", lambda host, p=password: Scram("SCRAM-SHA-256", "u", p).exchange("n" * 24))  # type: ignore[misc]
        if accepted:
            async with connection_to(peer, login) as connection:
                await negotiate(connection)
        else:
            assert "did not prove" in (await failure(peer, login)).why


@pytest.mark.parametrize(
    ("handshake", "authenticate", "why", "hint"),
    [
        (SaslHandshakeResponse(error_code=33, mechanisms=("GSSAPI",)), None, "the broker has GSSAPI", "sasl_mechanism"),
        (SaslHandshakeResponse(error_code=34), None, "ILLEGAL_SASL_STATE", "without +sasl"),
        (
            SaslHandshakeResponse(),
            SaslAuthenticateResponse(error_code=58, error_message="Invalid username or password"),
            "b:9092: SASL_AUTHENTICATION_FAILED: Invalid username or password",
            "",
        ),
    ],
)
async def test_a_refusal_says_why_and_shows_no_secret(
    handshake: SaslHandshakeResponse, authenticate: SaslAuthenticateResponse | None, why: str, hint: str
) -> None:
    peer = sasl_peer()
    peer.answers[SaslHandshakeRequest] = lambda request, version: handshake
    peer.answers[SaslAuthenticateRequest] = lambda request, version: authenticate
    error = await failure(peer, PLAIN)
    assert isinstance(error, AuthFailed)
    assert why in error.why
    assert hint in error.hint
    assert not error.retriable
    assert "pass-of-alice" not in f"{error}{error!r}{error.__cause__!r}"


@pytest.mark.parametrize("wrapped", [True, False])
async def test_closes_during_authentication_are_final_after_three_where_brokers_refuse_that_way(wrapped: bool) -> None:
    peer = sasl_peer()
    last = 1 if wrapped else 0
    keys = tuple(ApiVersion(api_key=key, max_version=last) for key in ((0, 3, 17, 36) if wrapped else (0, 3, 17)))
    peer.answers[ApiVersionsRequest] = lambda request, version: ApiVersionsResponse(api_keys=keys)
    peer.answers[SaslHandshakeRequest] = lambda request, version: ConnectionAbortedError
    seen, known = [], KnownVersions(anyio.current_time)
    for _ in range(3):  # entering the block of a cluster opens a connection for each attempt
        async with connection_to(peer, PLAIN, known) as connection:
            with pytest.raises(Unreachable) as caught:
                await negotiate(connection)
            seen.append((caught.value.step, caught.value.retriable))
    assert seen == [("sasl", True), ("sasl", True), ("sasl", wrapped)]


async def test_logins_that_end_in_between_are_counted_from_one_that_works() -> None:
    peer = sasl_peer()
    keys = tuple(ApiVersion(api_key=key) for key in (0, 3, 17))
    peer.answers[ApiVersionsRequest] = lambda request, version: ApiVersionsResponse(api_keys=keys)
    cuts = iter((True, True, False, True, True))
    peer.answers[SaslHandshakeRequest] = lambda request, version: (
        ConnectionAbortedError if next(cuts) else SaslHandshakeResponse(mechanisms=("PLAIN",))
    )
    peer.raw = lambda frame: b"" if frame.endswith(b"pass-of-alice") else None
    async with connection_to(peer, PLAIN) as connection:
        for fails in (True, True, False, True, True):
            if not fails:
                await negotiate(connection)
                await peer.hang_up()
                continue
            with pytest.raises(Unreachable) as caught:
                await negotiate(connection)
            assert caught.value.retriable


async def test_a_session_is_renewed_on_the_live_connection_before_it_ends() -> None:
    now = 1000.0
    peer = sasl_peer(lifetime_ms=60_000)
    async with connection_to(peer, PLAIN, clock=lambda: now) as connection:
        await connection.submit(MetadataRequest())
        now += 53.0
        await connection.submit(MetadataRequest())
        assert peer.names()[4:] == ["Metadata 13"]  # 90 % of a minute are 54 s
        now += 2.0
        first, second = connection.submit(MetadataRequest()), connection.submit(MetadataRequest())
        await first
        await second
        assert peer.names()[5:] == ["SaslHandshake 1", "SaslAuthenticate 2", "Metadata 13", "Metadata 13"]
        await connection.submit(MetadataRequest())
        assert peer.names()[9:] == ["Metadata 13"]
        assert len(peer.connections) == 1


async def test_a_session_that_ends_during_a_pause_is_renewed_before_anything_else_is_sent() -> None:
    now = 1000.0
    peer = sasl_peer(lifetime_ms=60_000)
    async with connection_to(peer, PLAIN, clock=lambda: now) as connection:
        await connection.submit(MetadataRequest())
        connection.connection.pause_sending(3600)
        pending = connection.submit(MetadataRequest())
        now += 61.0
        connection.connection._resume_at = anyio.current_time()
        connection.connection.expect_by(0.0)
        await pending
        assert peer.names()[4:] == ["SaslHandshake 1", "SaslAuthenticate 2", "Metadata 13"]


async def test_a_session_is_not_renewed_twice_in_a_second_however_short_it_is() -> None:
    now = 1000.0
    peer = sasl_peer(lifetime_ms=100)
    async with connection_to(peer, PLAIN, clock=lambda: now) as connection:
        await connection.submit(MetadataRequest())
        now += 1.0
        await connection.submit(MetadataRequest())
        assert peer.names()[4:] == ["Metadata 13"]
        now += 0.2
        await connection.submit(MetadataRequest())
        assert peer.names()[5:] == ["SaslHandshake 1", "SaslAuthenticate 2", "Metadata 13"]


async def test_a_refused_renewal_fails_what_waits_for_it() -> None:
    now = 1000.0
    peer = sasl_peer(lifetime_ms=60_000)
    async with connection_to(peer, PLAIN, clock=lambda: now) as connection:
        await connection.submit(MetadataRequest())
        now += 59.0
        peer.answers[SaslAuthenticateRequest] = lambda *_: SaslAuthenticateResponse(
            error_code=58, error_message="expired"
        )
        with pytest.raises(AuthFailed, match="expired"):
            await connection.submit(MetadataRequest())


async def test_an_outage_of_the_token_provider_that_outlasts_the_token_is_no_refusal_by_the_broker() -> None:
    """A new connection waits for a token, too."""
    now, fails = 1000.0, False

    async def provider() -> tuple[str, float]:
        await anyio.lowlevel.checkpoint()
        if fails:
            raise OSError("the provider is away")
        return f"token{now:.0f}", now + 60.0

    tokens = TokenSource(provider, 5.0, wall_clock=lambda: now)
    bearer = login(Security(sasl_mechanism="OAUTHBEARER", sasl_token_provider=provider), tokens)
    peer = sasl_peer(lifetime_ms=60_000)

    async def dial(host: str, port: int, timeout: float) -> Any:
        await tokens.ensure(f"{host}:{port}")
        return await Peer.dial(peer, host, port, timeout)

    peer.dial = dial  # type: ignore[method-assign]
    async with connection_to(peer, bearer, clock=lambda: now) as connection:
        await connection.submit(MetadataRequest())
        now, fails = now + 61.0, True
        with pytest.raises(Unreachable):
            await tokens.ensure("b:9092")  # as the task that replaces tokens does
        peer.answers[SaslAuthenticateRequest] = lambda *_: SaslAuthenticateResponse(error_code=58)
        with pytest.raises(Unreachable, match="no token: the token provider raised OSError") as caught:
            await connection.submit(MetadataRequest())
        assert caught.value.retriable
        fails, peer.answers[SaslAuthenticateRequest] = False, lambda *_: SaslAuthenticateResponse()
        await connection.submit(MetadataRequest())


async def test_a_token_that_a_broker_has_refused_is_not_shown_again() -> None:
    """It may have been revoked long before its expiry."""
    fetched: list[str] = []

    async def provider() -> tuple[str, float]:
        await anyio.lowlevel.checkpoint()
        fetched.append(f"token{len(fetched)}")
        return fetched[-1], 3600.0

    tokens = TokenSource(provider, 5.0, wall_clock=lambda: 0.0)
    bearer = login(Security(sasl_mechanism="OAUTHBEARER", sasl_token_provider=provider), tokens)
    peer, shown = sasl_peer(), list[bytes]()

    def answer(request: SaslAuthenticateRequest, version: int) -> SaslAuthenticateResponse:
        shown.append(bytes(request.auth_bytes))
        return SaslAuthenticateResponse(error_code=58 if b"token0" in request.auth_bytes else 0)

    peer.answers[SaslAuthenticateRequest] = answer

    async def dial(host: str, port: int, timeout: float) -> Any:
        await tokens.ensure(f"{host}:{port}")
        return await Peer.dial(peer, host, port, timeout)

    peer.dial = dial  # type: ignore[method-assign]
    async with connection_to(peer, bearer) as connection:
        with pytest.raises(AuthFailed):
            await connection.submit(MetadataRequest())
        await connection.submit(MetadataRequest())
    assert fetched == ["token0", "token1"] and b"token1" in shown[-1]


async def test_a_token_without_a_known_expiry_is_replaced_before_a_session_is_renewed() -> None:
    """The broker knows when it expires, and would refuse it."""
    now, replaced = 1000.0, anyio.Event()
    fetched: list[str] = []

    async def provider() -> str:
        await anyio.lowlevel.checkpoint()
        fetched.append(f"token{len(fetched)}")
        if len(fetched) == 2:
            replaced.set()
        return fetched[-1]

    tokens = TokenSource(provider, 5.0, wall_clock=lambda: now)
    bearer = login(Security(sasl_mechanism="OAUTHBEARER", sasl_token_provider=provider), tokens)
    peer, shown = sasl_peer(), list[bytes]()

    def answer(request: SaslAuthenticateRequest, version: int) -> SaslAuthenticateResponse:
        shown.append(bytes(request.auth_bytes))
        return SaslAuthenticateResponse(session_lifetime_ms=60_000)

    peer.answers[SaslAuthenticateRequest] = answer
    await tokens.ensure("b:9092")
    async with connection_to(peer, bearer, clock=lambda: now) as connection, anyio.create_task_group() as tasks:
        await connection.submit(MetadataRequest())
        now += 50.0
        tasks.start_soon(tokens.run)
        await replaced.wait()
        await anyio.wait_all_tasks_blocked()
        now += 5.0
        await connection.submit(MetadataRequest())
        tasks.cancel_scope.cancel()
    assert [b"token0" in shown[0], b"token1" in shown[1]] == [True, True] and len(peer.connections) == 1


async def test_a_bad_bearer_token_of_the_provider_is_an_authentication_failure() -> None:
    error = await failure(sasl_peer(), Login("OAUTHBEARER", lambda host: OAuthBearer("not a token").exchange()))
    assert "not a token" not in str(error)


# ---- cut lines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("login", [None, PLAIN], ids=["plaintext", "sasl"])
async def test_a_line_cut_at_any_byte_of_the_handshake_fails_at_once_and_heals(login: Login | None) -> None:
    """Whatever was cut, the error is one of the network, nothing hangs, and the next attempt works."""
    whole = sasl_peer()
    async with connection_to(whole, login) as connection:
        await negotiate(connection)
    for cut in [*range(24), *range(24, whole.sent, 37), whole.sent - 1]:
        peer = sasl_peer()
        peer.cut = cut
        async with connection_to(peer, login) as connection:
            with pytest.raises(Unreachable) as caught:
                await negotiate(connection)
            assert caught.value.step in ("version", "sasl")
            peer.cut = None
            assert (await negotiate(connection)).release is None


async def test_answers_that_come_byte_by_byte_are_the_same() -> None:
    peer = sasl_peer()
    peer.capacity = 1
    async with connection_to(peer, PLAIN) as connection:
        assert (await negotiate(connection)).has(MetadataRequest, 13)
