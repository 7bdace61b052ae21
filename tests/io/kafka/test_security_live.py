"""Every mechanism with real brokers, and every way of being refused: the right error at once, without any secret."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import anyio
import pytest
from tests.samples import one_in, seed_of

import odradek as od
from odradek.errors import AuthFailed, OdradekError, Unreachable
from odradek.io.kafka.heartbeat_thread import Heartbeat, HeartbeatThread
from odradek.testing import KafkaBroker
from odradek.testing.kafka.releases import NEWEST
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import HeartbeatRequest

from .token_server import TokenServer, token_server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

USER, PASSWORD, WRONG = "alice", "password-of-alice", "wrong-password"
PATIENT = od.Tuning(request_timeout=60)
"""For brokers on a loaded machine."""

NO_SUCH_MEMBER = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""What a coordinator, or a broker that is none yet, answers to the heartbeat of an unknown member."""

AT_ONCE_S = 8.0
"""Less than the time for which addresses are tried again (s)."""


def started(version: str, **options: Any) -> Iterator[KafkaBroker]:
    with KafkaBroker(version, users={USER: PASSWORD}, **options) as broker:
        yield broker


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """All kinds of listeners; a session of SASL ends after 3 s."""
    yield from started(
        NEWEST,
        listeners=("SASL_PLAINTEXT", "SASL_SSL", "SSL", "PLAINTEXT"),
        config={"connections.max.reauth.ms": "3000"},
    )


@pytest.fixture(scope="module")
def old_broker() -> Iterator[KafkaBroker]:
    """Tokens of SASL are raw in 0.10."""
    yield from started("0.10.2.2", listeners=("SASL_PLAINTEXT",))


@pytest.fixture(scope="module")
def demanding() -> Iterator[KafkaBroker]:
    """A listener that asks clients for a certificate."""
    yield from started(NEWEST, listeners=("SSL",), config={"ssl.client.auth": "required"})


CERTIFICATES = {
    "expired": ("certificate has expired", "renew"),
    "untrusted": ("unable to get local issuer certificate", "ssl_cafile"),
    "wrong_host": ("IP address mismatch", "advertised.listeners"),
}
"""Kind of certificate -> what the error says, and its hint."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One of them in a run: each takes a broker of its own."""
    if "bad" in metafunc.fixturenames:
        kinds = one_in(3, list(CERTIFICATES), seed_of(metafunc.config))
        metafunc.parametrize("bad", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def bad(request: pytest.FixtureRequest) -> Iterator[tuple[str, KafkaBroker]]:
    """A listener with a certificate that is not right."""
    for broker in started(NEWEST, listeners=("SSL",), certificate=request.param):
        yield request.param, broker


def url(scheme: str, broker: KafkaBroker, listener: str) -> str:
    return f"{scheme}://{broker.bootstrap_of(listener)}"


def login(mechanism: str, password: str = PASSWORD, **more: Any) -> od.Security:
    return od.Security(sasl_mechanism=mechanism, sasl_username=USER, sasl_password=password, **more)


async def use(address: str, security: od.Security | None) -> None:
    """Write a record over every kind of connection, and read it again."""
    async with od.connect(address, security=security, tuning=PATIENT) as k:
        async with k.producer(deliver_within=60) as out:
            ack = await out.send("secured", b"v")
        positions = await k.positions("secured", od.LATEST)
        assert positions[ack.partition] > (ack.position or 0)


async def refusal(address: str, security: od.Security | None, caplog: pytest.LogCaptureFixture) -> OdradekError:
    """Return the error, which comes at once; neither it nor any log shows a secret."""
    caplog.set_level(logging.DEBUG)
    began = anyio.current_time()
    with pytest.raises(OdradekError) as caught:
        await use(address, security)
    assert anyio.current_time() - began < AT_ONCE_S
    shown = f"{caught.value} {caught.value!r} {caught.value.__cause__!r} {caplog.text}"
    assert PASSWORD not in shown
    assert WRONG not in shown
    return caught.value


# ---- mechanisms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(("scheme", "listener"), [("kafka+sasl", "SASL_PLAINTEXT"), ("kafka+sasl+ssl", "SASL_SSL")])
async def test_user_and_password_work(broker: KafkaBroker, mechanism: str, scheme: str, listener: str) -> None:
    files = {"ssl_cafile": str(broker.certificates.ca_file)} if listener == "SASL_SSL" else {}
    await use(url(scheme, broker, listener), login(mechanism, **files))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_raw_tokens_work(old_broker: KafkaBroker, mechanism: str) -> None:
    await use(url("kafka+sasl", old_broker, "SASL_PLAINTEXT"), login(mechanism))


async def test_bearer_tokens_work(broker: KafkaBroker) -> None:
    async def provide() -> str:
        return broker.token(USER)

    await use(
        url("kafka+sasl", broker, "SASL_PLAINTEXT"),
        od.Security(sasl_mechanism="OAUTHBEARER", sasl_token_provider=provide),
    )


async def test_a_token_by_client_credentials_serves_every_connection(broker: KafkaBroker) -> None:
    with token_server() as server:
        server.says(200, {"access_token": broker.token(USER), "expires_in": 3600})
        await use(url("kafka+sasl", broker, "SASL_PLAINTEXT"), by_client_credentials(server))
        assert len(server.forms) == 1


async def test_a_provider_that_refuses_the_client_is_an_error_at_once(
    broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with token_server() as server:
        server.says(401, {"error": "invalid_client"})
        address = url("kafka+sasl", broker, "SASL_PLAINTEXT")
        error = await refusal(address, by_client_credentials(server), caplog)
        assert isinstance(error, Unreachable)
        assert (error.step, error.retriable) == ("sasl", False)
        assert f"{server.url}: status 401: invalid_client" in error.why
        assert len(server.forms) == 1


def by_client_credentials(server: TokenServer) -> od.Security:
    return od.Security(
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_url=server.url,
        sasl_oauth_client_id=USER,
        sasl_oauth_client_secret=PASSWORD,
        sasl_extensions={"pool": "p1"},
    )


async def test_certificates_work(broker: KafkaBroker) -> None:
    await use(url("kafka+ssl", broker, "SSL"), od.Security(ssl_cafile=str(broker.certificates.ca_file)))


async def test_a_client_certificate_works_where_it_is_asked_for(demanding: KafkaBroker) -> None:
    ca, mine = str(demanding.certificates.ca_file), str(demanding.certificates.client_file)
    address = url("kafka+ssl", demanding, "SSL")
    await use(address, od.Security(ssl_cafile=ca, ssl_certfile=mine))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "OAUTHBEARER"])
async def test_connections_outlive_their_sessions(broker: KafkaBroker, mechanism: str) -> None:
    """The broker ends a session after 3 s; tokens live for 8 s. Work goes on over the same connections for 8 s."""
    tokens: list[str] = []

    async def provide() -> str:
        tokens.append(broker.token(USER, 8.0))
        return tokens[-1]

    bearer = od.Security(sasl_mechanism="OAUTHBEARER", sasl_token_provider=provide)
    address = url("kafka+sasl", broker, "SASL_PLAINTEXT")
    security = bearer if mechanism == "OAUTHBEARER" else login(mechanism)
    async with od.connect(address, security=security) as k:
        async with k.producer() as out:
            times = [time.monotonic()]
            while times[-1] - times[0] < 8:
                await out.send("secured", b"v")
                await anyio.sleep(0.05)
                times.append(time.monotonic())
        # A session is renewed by a request in the last tenth of it. On a slow machine none may fall into that.
        late = sum(after - before > 0.15 for before, after in pairwise(times))
        driver: Any = k.driver
        statistics = [each.connection.connection.statistics() for each in driver._clients.values()]
        assert len(times) > 20
        assert all(each.losses <= late and each.connects == 1 + each.losses for each in statistics)
    assert len(tokens) == 0 if mechanism != "OAUTHBEARER" else 2 <= len(tokens) <= 6


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "OAUTHBEARER"])
async def test_the_thread_that_sends_heartbeats_uses_tls_and_the_credentials(
    broker: KafkaBroker, mechanism: str
) -> None:
    async def provide() -> str:
        return broker.token(USER)

    ca = str(broker.certificates.ca_file)
    bearer = od.Security(sasl_mechanism="OAUTHBEARER", sasl_token_provider=provide, ssl_cafile=ca)
    security = bearer if mechanism == "OAUTHBEARER" else login(mechanism, ssl_cafile=ca)
    async with od.connect(url("kafka+sasl+ssl", broker, "SASL_SSL"), security=security, tuning=PATIENT) as k:
        driver: Any = k.driver
        thread = HeartbeatThread(
            "g", driver.connections.for_thread, interval_s=0.1, max_blocked_s=60.0, rebalance_timeout_s=60.0
        )
        heartbeat = Heartbeat(
            HeartbeatRequest(group_id="g", generation_id=1, member_id="m"),
            next(iter(driver.metadata.table.brokers.values())),
        )
        try:
            thread.start()
            thread.loop_runs(heartbeat)
            while (sent := thread.take_sent()) is None or sent.response is None:
                time.sleep(0.05)  # noqa: ASYNC251  it sends while this loop is blocked
        finally:
            thread.stop()
    assert sent.request is heartbeat.request
    assert getattr(sent.response, "error_code", 0) in NO_SUCH_MEMBER


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_refused(
    broker: KafkaBroker, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = await refusal(url("kafka+sasl", broker, "SASL_PLAINTEXT"), login(mechanism, WRONG), caplog)
    assert isinstance(error, AuthFailed)
    assert f"{mechanism} failed: {broker.bootstrap_of('SASL_PLAINTEXT')}: SASL_AUTHENTICATION_FAILED" in str(error)


async def test_a_missing_client_certificate_is_refused_with_the_alert_of_tls(
    demanding: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    security = od.Security(ssl_cafile=str(demanding.certificates.ca_file))
    error = await refusal(url("kafka+ssl", demanding, "SSL"), security, caplog)
    assert isinstance(error, Unreachable)
    assert error.step == "tls" and "the broker's alert: " in error.why and "ssl_certfile" in error.hint


async def test_a_wrong_password_is_refused_by_closing_in_0_10(
    old_broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    error = await refusal(url("kafka+sasl", old_broker, "SASL_PLAINTEXT"), login("PLAIN", WRONG), caplog)
    assert isinstance(error, Unreachable)
    assert (error.step, error.retriable) == ("sasl", False)
    assert "password" in error.hint


async def test_a_mechanism_that_the_broker_lacks_names_those_it_has(
    old_broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    security = od.Security(sasl_mechanism="OAUTHBEARER", sasl_token=old_broker.token(USER))
    error = await refusal(url("kafka+sasl", old_broker, "SASL_PLAINTEXT"), security, caplog)
    assert isinstance(error, AuthFailed)
    assert "the broker has" in str(error)
    assert "PLAIN" in error.why
    assert "sasl_mechanism" in error.hint


async def test_an_expired_token_is_refused(broker: KafkaBroker, caplog: pytest.LogCaptureFixture) -> None:
    security = od.Security(sasl_mechanism="OAUTHBEARER", sasl_token=broker.token(USER, -10.0))
    error = await refusal(url("kafka+sasl", broker, "SASL_PLAINTEXT"), security, caplog)
    assert isinstance(error, AuthFailed)
    assert "invalid_token" in error.why


async def test_a_bad_certificate_is_refused(bad: tuple[str, KafkaBroker], caplog: pytest.LogCaptureFixture) -> None:
    kind, broker = bad
    why, hint = CERTIFICATES[kind]
    security = od.Security(ssl_cafile=str(broker.certificates.ca_file))
    error = await refusal(url("kafka+ssl", broker, "SSL"), security, caplog)
    assert isinstance(error, Unreachable)
    assert error.step == "tls"
    assert why in error.why
    assert hint in error.hint


async def test_the_name_in_a_certificate_does_not_matter_if_it_is_not_checked(bad: tuple[str, KafkaBroker]) -> None:
    kind, broker = bad
    security = od.Security(ssl_cafile=str(broker.certificates.ca_file), ssl_check_hostname=False)
    if kind == "wrong_host":
        await use(url("kafka+ssl", broker, "SSL"), security)
        return
    with pytest.raises(Unreachable, match="tls: "):
        await use(url("kafka+ssl", broker, "SSL"), security)


@pytest.mark.parametrize(
    ("scheme", "listener", "step", "hint"),
    [
        ("kafka", "SASL_PLAINTEXT", "sasl", "use a URL with +sasl"),
        ("kafka", "SSL", "version", "use a URL with +ssl"),
        ("kafka+sasl", "SASL_SSL", "version", "use a URL with +ssl"),
        ("kafka+sasl", "PLAINTEXT", None, "use a URL without +sasl"),
        ("kafka+ssl", "PLAINTEXT", "tls", "use a URL without +ssl"),
        ("kafka+sasl+ssl", "SASL_PLAINTEXT", "tls", "use a URL without +ssl"),
        ("kafka+ssl", "SASL_SSL", "sasl", "use a URL with +sasl"),
        ("kafka+sasl+ssl", "SSL", None, "use a URL without +sasl"),
    ],
)
async def test_the_wrong_scheme_for_a_listener_says_which_one_it_expects(
    broker: KafkaBroker, scheme: str, listener: str, step: str | None, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    ca = str(broker.certificates.ca_file) if "ssl" in scheme else None
    security = login("PLAIN", ssl_cafile=ca) if "sasl" in scheme else od.Security(ssl_cafile=ca)
    error = await refusal(url(scheme, broker, listener), security, caplog)
    assert hint in error.hint
    assert getattr(error, "step", None) == step
