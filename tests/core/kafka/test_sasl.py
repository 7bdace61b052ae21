"""SASL exchanges: what is sent, what is refused, and that no secret is shown."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.kafka.scram_server import parse_client_final, parse_client_first

from odradek.core.kafka.sasl import Exchange, OAuthBearer, Plain, Scram, authenticate, authenticate_again_at
from odradek.core.kafka.sasl.exchange import escape_name, unescape_name
from odradek.core.kafka.sasl.scram import Keys
from odradek.errors import AuthFailed, ConfigError, RemoteProtocolError
from odradek.wire.kafka.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def finish(exchange: Exchange, answer: bytes) -> None:
    with pytest.raises(StopIteration):
        exchange.send(answer)


def test_plain_is_one_token() -> None:
    exchange = Plain("alice", "secret").exchange()
    assert next(exchange) == b"\0alice\0secret"
    finish(exchange, b"")


def test_plain_reads_back_what_it_writes() -> None:
    plain = Plain("alice", "secret", "bob")
    assert Plain.decode(plain.encode()) == plain


@pytest.mark.parametrize(
    ("user", "password", "authorize_as"), [("a\0b", "x", None), ("a", "x\0y", None), ("a", "x", "\0"), ("a", "x", "")]
)
def test_plain_refuses_what_cannot_be_written(user: str, password: str, authorize_as: str | None) -> None:
    with pytest.raises(ConfigError, match="PLAIN"):
        Plain(user, password, authorize_as)


@pytest.mark.parametrize("token", [b"\0a", b"\0a\0b\0c", b"\0\0x", b"\0a\0", b"\xff\0a\0b"])
def test_plain_refuses_malformed_tokens(token: bytes) -> None:
    with pytest.raises(AuthFailed, match="PLAIN"):
        Plain.decode(token)


def test_scram_sha_256_is_the_exchange_of_the_rfc() -> None:
    exchange = Scram("SCRAM-SHA-256", "user", "pencil").exchange(NONCE)
    assert next(exchange) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.send(SERVER_FIRST) == CLIENT_FINAL
    finish(exchange, SERVER_FINAL)


@settings(max_examples=20, deadline=None)  # each derives keys, twice
@given(
    st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=20),
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.booleans(),
)
def test_a_server_that_knows_the_password_is_accepted_whatever_the_names(user: str, password: str, token: bool) -> None:
    scram = Scram("SCRAM-SHA-512", user, password, delegation_token=token)
    exchange = scram.exchange("c" * 20)
    first = parse_client_first(next(exchange).decode())
    assert (unescape_name(first.user), first.nonce) == (user, "c" * 20)
    assert first.bare.endswith(",tokenauth=true") is token
    server_first = f"r={first.nonce}s,s={b64encode(b'salt').decode()},i=4096"
    final = parse_client_final(exchange.send(server_first.encode()).decode())
    keys = Keys.derive("SCRAM-SHA-512", password, b"salt", 4096)
    auth = f"{first.bare},{server_first},{final.without_proof}"
    assert final.proof == keys.client_proof(auth)
    finish(exchange, b"v=" + b64encode(keys.server_signature(auth)))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (SERVER_FIRST.replace(b"rOpr", b"XXXX"), "does not continue"),
        (b"r=" + NONCE.encode() + b",s=QUJD,i=4096", "does not continue"),
        (SERVER_FIRST.replace(b"4096", b"4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"4096", b"1000001"), "1000001 iterations"),
        (SERVER_FIRST.replace(b"4096", b"0"), "0 iterations"),
        (SERVER_FIRST.replace(b"4096", b"2147483648"), "2147483648 iterations"),
        (SERVER_FIRST.replace(b"4096", b"99999999999"), "malformed"),
        (b"e=unknown-user", "malformed"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_scram_refuses_a_bad_challenge(answer: bytes, problem: str) -> None:
    exchange = Scram("SCRAM-SHA-256", "user", "pencil").exchange(NONCE)
    next(exchange)
    with pytest.raises(AuthFailed, match=problem) as raised:
        exchange.send(answer)
    assert "pencil" not in str(raised.value)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"e=invalid-proof", "the broker refused: invalid-proof"),
        (SERVER_FINAL.replace(b"6rri", b"7rri"), "wrong signature"),
        (b"v=", "wrong signature"),
        (b"x=1", "malformed"),
        (b"e=other-error,x=1", "malformed"),
        ("e=gr\xf6\xdfer".encode(), "malformed"),
    ],
)
def test_scram_refuses_a_server_that_does_not_prove_itself(answer: bytes, problem: str) -> None:
    exchange = Scram("SCRAM-SHA-256", "user", "pencil").exchange(NONCE)
    next(exchange)
    exchange.send(SERVER_FIRST)
    with pytest.raises(AuthFailed, match=problem):
        exchange.send(answer)


@pytest.mark.parametrize(("mechanism", "user"), [("SCRAM-SHA-1", "u"), ("SCRAM-SHA-256", ""), ("SCRAM-SHA-256", "\0")])
def test_scram_refuses_unusable_credentials(mechanism: str, user: str) -> None:
    with pytest.raises(ConfigError, match="SCRAM"):
        Scram(mechanism, user, "x")


def test_a_name_beyond_ascii_is_sent_as_it_is() -> None:
    assert next(Scram("SCRAM-SHA-256", "j\xf6rg", "x").exchange(NONCE)) == f"n,,n=j\xf6rg,r={NONCE}".encode()


@given(st.text(min_size=1).filter(lambda s: "\0" not in s))
def test_names_are_escaped_and_back(name: str) -> None:
    assert "," not in escape_name(name)
    assert unescape_name(escape_name(name)) == name


@pytest.mark.parametrize("text", ["", "a=b", "a,b", "=2D"])
def test_what_is_no_escaped_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="escaped"):
        unescape_name(text)


def test_oauthbearer_sends_token_and_extensions() -> None:
    bearer = OAuthBearer("abc.def", {"logicalCluster": "lkc-1"}, "me,you")
    exchange = bearer.exchange()
    sent = next(exchange)
    assert sent == b"n,a=me=2Cyou,\x01auth=Bearer abc.def\x01logicalCluster=lkc-1\x01\x01"
    assert OAuthBearer.decode(sent) == bearer
    finish(exchange, b"")


def test_oauthbearer_answers_an_error_before_it_raises() -> None:
    exchange = OAuthBearer("abc").exchange()
    next(exchange)
    assert exchange.send(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(AuthFailed, match="invalid_token"):
        exchange.send(b"")


@pytest.mark.parametrize(
    ("token", "extensions"), [("", {}), ("a b", {}), ("a", {"auth": "x"}), ("a", {"a1": "x"}), ("a", {"a": "\x01"})]
)
def test_oauthbearer_refuses_what_cannot_be_written(token: str, extensions: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="OAUTHBEARER"):
        OAuthBearer(token, extensions)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01", b"n,,\x01auth=Basic abc\x01\x01", b"n,,\x01x=y\x01\x01", b"y,,\x01auth=Bearer a\x01\x01", b"\xff"],
)
def test_oauthbearer_refuses_malformed_messages(data: bytes) -> None:
    with pytest.raises(AuthFailed, match="OAUTHBEARER"):
        OAuthBearer.decode(data)


@pytest.mark.parametrize(
    "secret", [Plain("u", "hunter2"), Scram("SCRAM-SHA-256", "u", "hunter2"), OAuthBearer("hunter2")]
)
def test_no_secret_is_shown(secret: object) -> None:
    assert "hunter2" not in repr(secret) and "hunter2" not in str(secret)


def test_derived_keys_are_not_shown() -> None:
    keys = Keys.derive("SCRAM-SHA-256", "hunter2", b"salt", 4096)
    assert repr(keys.client_key) not in repr(keys)


# ---- how tokens travel ----


def test_tokens_travel_in_requests() -> None:
    run = authenticate("PLAIN", Plain("u", "p").exchange(), sasl_requests=True)
    assert next(run) == SaslHandshakeRequest(mechanism="PLAIN")
    assert run.send(SaslHandshakeResponse(mechanisms=("PLAIN",))) == SaslAuthenticateRequest(auth_bytes=b"\0u\0p")
    with pytest.raises(StopIteration) as stop:
        run.send(SaslAuthenticateResponse(session_lifetime_ms=60_000))
    assert stop.value.value == 60_000


def test_tokens_travel_raw_to_old_brokers() -> None:
    run = authenticate("SCRAM-SHA-256", Scram("SCRAM-SHA-256", "user", "pencil").exchange(NONCE), sasl_requests=False)
    next(run)
    assert run.send(SaslHandshakeResponse()) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert run.send(SERVER_FIRST) == CLIENT_FINAL
    with pytest.raises(StopIteration) as stop:
        run.send(SERVER_FINAL)
    assert stop.value.value == 0


def test_a_mechanism_that_the_broker_does_not_have_is_refused_with_those_it_has() -> None:
    run = authenticate("PLAIN", Plain("u", "p").exchange(), sasl_requests=True)
    next(run)
    with pytest.raises(AuthFailed, match="UNSUPPORTED_SASL_MECHANISM; the broker has GSSAPI, SCRAM-SHA-256"):
        run.send(SaslHandshakeResponse(error_code=33, mechanisms=("GSSAPI", "SCRAM-SHA-256")))


@pytest.mark.parametrize(("text", "shown"), [("wrong password", "FAILED: wrong"), (None, "SASL_AUTHENTICATION_FAILED")])
def test_a_refusal_says_what_the_broker_said(text: str | None, shown: str) -> None:
    run = authenticate("PLAIN", Plain("u", "p").exchange(), sasl_requests=True)
    next(run)
    run.send(SaslHandshakeResponse())
    with pytest.raises(AuthFailed, match=shown):
        run.send(SaslAuthenticateResponse(error_code=58, error_message=text))


def test_answers_to_something_else_are_refused() -> None:
    run = authenticate("PLAIN", Plain("u", "p").exchange(), sasl_requests=True)
    next(run)
    with pytest.raises(RemoteProtocolError, match="in response to SaslHandshake"):
        run.send(SaslAuthenticateResponse())
    run = authenticate("PLAIN", Plain("u", "p").exchange(), sasl_requests=True)
    next(run)
    run.send(SaslHandshakeResponse())
    with pytest.raises(RemoteProtocolError, match="in response to SaslAuthenticate"):
        run.send(SaslHandshakeResponse())


def test_a_session_is_renewed_before_it_ends() -> None:
    assert authenticate_again_at(100, 0, 0.5) is None
    assert authenticate_again_at(100, 60_000, 0.0) == pytest.approx(151)
    assert authenticate_again_at(100, 60_000, 1.0) == pytest.approx(157)
