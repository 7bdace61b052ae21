"""Listeners of real brokers with TLS and SASL, seen by a plain socket."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

from odradek.core.kafka.sasl import Exchange, OAuthBearer, Plain, Scram, authenticate
from odradek.errors import AuthFailed, ConfigError
from odradek.testing import KafkaBroker
from odradek.testing.kafka.config import properties_text
from odradek.testing.kafka.releases import KRAFT, PROTOCOLS, ZOOKEEPER, release
from odradek.testing.kafka.requests import exchange, receive
from odradek.wire.kafka.messages.metadata import ApiVersionsRequest, MetadataRequest
from odradek.wire.kafka.messages.security import (
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

pytestmark = pytest.mark.timeout(300)  # of several programs in Java, which a loaded machine starts slowly

BROKERS = [("4.3.1", KRAFT), ("3.9.1", ZOOKEEPER), ("0.10.2.2", ZOOKEEPER)]
USERS = {"alice": "alice-secret", "b.ob": 'pass"word\\ \u00e9'}

Start = Callable[[str, str], KafkaBroker]


@pytest.fixture(scope="module")
def secure() -> Iterator[Start]:
    """A broker with all listeners, started when first asked for."""
    with ExitStack() as stack:

        @cache
        def start(version: str, mode: str) -> KafkaBroker:
            config = {"ssl.client.auth": "requested"}
            broker = KafkaBroker(version, mode=mode, listeners=PROTOCOLS, users=USERS, config=config)
            return stack.enter_context(broker)

        yield start


@contextmanager
def connected(broker: KafkaBroker, listener: str, context: ssl.SSLContext | None = None) -> Iterator[socket.socket]:
    host, port = broker.bootstrap_of(listener).split(":")
    with socket.create_connection((host, int(port)), 10.0) as plain:
        if not listener.endswith("SSL"):
            yield plain
            return
        context = context or ssl.create_default_context(cafile=broker.certificates.ca_file)
        with context.wrap_socket(plain, server_hostname="localhost") as encrypted:
            yield encrypted


def log_in(connection: socket.socket, mechanism: str, credentials: Exchange, *, sasl_requests: bool) -> None:
    steps = authenticate(mechanism, credentials, sasl_requests=sasl_requests)
    request = next(steps)
    try:
        while True:
            if isinstance(request, bytes):
                connection.sendall(struct.pack(">i", len(request)) + request)
                request = steps.send(receive(connection))
            else:
                answer = exchange(connection, request, int(isinstance(request, SaslHandshakeRequest) and sasl_requests))
                assert isinstance(answer, SaslHandshakeResponse | SaslAuthenticateResponse)
                request = steps.send(answer)
    except StopIteration:
        pass


def credentials_of(broker: KafkaBroker, mechanism: str, user: str, password: str) -> Exchange:
    if mechanism == "OAUTHBEARER":
        return OAuthBearer(broker.token(user)).exchange()
    if mechanism == "PLAIN":
        return Plain(user, password).exchange()
    return Scram(mechanism, user, password).exchange("n" * 24)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("version", "mode"), BROKERS)
def test_every_listener_and_mechanism_lets_its_users_in(secure: Start, version: str, mode: str) -> None:
    broker = secure(version, mode)
    sasl_requests = release(version).number >= (1, 0)
    expected = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", *(["OAUTHBEARER"] if version != "0.10.2.2" else [])]
    assert list(broker.mechanisms) == expected
    for listener in PROTOCOLS:
        with connected(broker, listener) as connection:
            assert {3, 18} <= {api.api_key for api in exchange(connection, ApiVersionsRequest(), 0).api_keys}
        for mechanism in broker.mechanisms if listener.startswith("SASL") else ():
            for user, password in USERS.items():
                with connected(broker, listener) as connection:
                    credentials = credentials_of(broker, mechanism, user, password)
                    log_in(connection, mechanism, credentials, sasl_requests=sasl_requests)
                    (known,) = exchange(connection, MetadataRequest(), 0).brokers
                    assert f"{known.host}:{known.port}" == broker.bootstrap_of(listener)


def test_wrong_secrets_and_expired_tokens_are_refused(secure: Start) -> None:
    broker = secure("4.3.1", KRAFT)
    wrong = {
        "PLAIN": Plain("alice", "wrong").exchange(),
        "SCRAM-SHA-512": Scram("SCRAM-SHA-512", "alice", "wrong").exchange("n" * 24),
        "OAUTHBEARER": OAuthBearer(broker.token("alice", lifetime_s=-60)).exchange(),
        "GSSAPI": Plain("alice", "wrong").exchange(),
    }
    for mechanism, credentials in wrong.items():
        with connected(broker, "SASL_PLAINTEXT") as connection, pytest.raises(AuthFailed):
            log_in(connection, mechanism, credentials, sasl_requests=True)


def test_a_client_shows_its_certificate_and_trusts_only_the_right_authority(secure: Start) -> None:
    broker = secure("4.3.1", KRAFT)
    files = broker.certificates
    context = ssl.create_default_context(cafile=files.ca_file)
    context.load_cert_chain(files.client_file)
    with connected(broker, "SSL", context) as connection:
        assert exchange(connection, ApiVersionsRequest(), 0).error_code == 0
    other = ssl.create_default_context(cafile=files.other_ca_file)
    with (
        pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"),
        connected(broker, "SSL", other),
    ):
        pass


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("certificate", "reason"),
    [("expired", "certificate has expired"), ("untrusted", "local issuer"), ("wrong_host", "Hostname mismatch")],
)
def test_each_wrong_certificate_is_refused_for_its_own_reason(certificate: str, reason: str) -> None:
    with (
        KafkaBroker("0.10.1.1", listeners=["SSL"], certificate=certificate) as broker,
        pytest.raises(ssl.SSLCertVerificationError, match=reason),
        connected(broker, "SSL"),
    ):
        pass


def test_listeners_that_a_release_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Kafka 0\.8\.2\.2 has no SSL, but PLAINTEXT"):
        KafkaBroker("0.8.2.2", listeners=["SSL"])
    with pytest.raises(ConfigError, match=r"Kafka 0\.9\.0\.1 has no SASL_SSL, but PLAINTEXT, SSL"):
        KafkaBroker("0.9.0.1", listeners=["SASL_SSL"])
    broker = KafkaBroker("0.9.0.1")
    with pytest.raises(ConfigError, match=r"listener='SSL': .* has PLAINTEXT"):
        broker.bootstrap_of("SSL")
    with pytest.raises(ConfigError, match="has no listener with TLS"):
        _ = broker.certificates


def test_mechanisms_without_users_are_not_offered() -> None:
    """In KRaft mode, users of SCRAM are made when a directory is formatted, which 3.5 brought."""
    assert release("2.8.2").mechanisms(KRAFT) == ("PLAIN", "OAUTHBEARER")
    assert release("2.8.2").mechanisms(ZOOKEEPER) == ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
    assert release("0.10.1.1").mechanisms(ZOOKEEPER) == ("PLAIN",)


def test_any_text_can_be_a_property(tmp_path: Path) -> None:
    assert properties_text({"a": 1, "b": "c\\d\n\u00e9\U0001f600"}) == "a=1\nb=c\\\\d\\n\\u00e9\\ud83d\\ude00\n"
