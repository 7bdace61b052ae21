"""Bearer tokens that are fetched ahead of their expiry, and the logins of every mechanism."""

from __future__ import annotations

import asyncio
import json
import math
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import wait_all_tasks_blocked

from odradek.core.backoff import Backoff
from odradek.errors import AuthFailed, ConfigError, Unreachable
from odradek.io.kafka import gssapi
from odradek.io.kafka.authentication import FACTORIES, TokenSource, expiry_of, login
from odradek.io.security import MECHANISMS, Security

pytestmark = pytest.mark.anyio


class Provider:
    """Tokens t1, t2, ..., each with a lifetime, at a time that a test sets; `failures` calls raise first."""

    def __init__(self, lifetime: float | None = 100.0, failures: int = 0) -> None:
        self.lifetime, self.failures = lifetime, failures
        self.calls, self.now = 0, 1000.0
        self.succeeded = anyio.Event()

    async def __call__(self) -> str | tuple[str, float]:
        await anyio.lowlevel.checkpoint()
        self.calls += 1
        if self.calls <= self.failures:
            raise RuntimeError("secret-of-the-provider")
        self.succeeded.set()
        return f"t{self.calls}" if self.lifetime is None else (f"t{self.calls}", self.now + self.lifetime)

    def source(self, timeout_s: float = 5.0) -> TokenSource:
        return TokenSource(self, timeout_s, Backoff(0, 1, 0.001), lambda: self.now)


async def test_a_token_is_fetched_once_for_all_connections() -> None:
    provider = Provider()
    source = provider.source()
    with pytest.raises(AuthFailed, match="no token yet"):
        _ = source.token
    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(source.ensure, "b:1")
    assert (source.token, provider.calls) == ("t1", 1)
    assert "t1" not in repr(source)


async def test_a_token_is_replaced_before_it_expires_while_nothing_connects() -> None:
    provider = Provider(lifetime=0.05)
    source = TokenSource(provider, 5.0, Backoff(0, 1, 0.001), lambda: provider.now + anyio.current_time() - began)
    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(source.run)
        await wait_all_tasks_blocked()
        assert provider.calls == 0
        await source.ensure("b:1")
        with anyio.fail_after(10):
            while source.token == "t1":
                await anyio.sleep(0.01)
                provider.now = 1000.0
        group.cancel_scope.cancel()
    assert provider.calls >= 2


async def test_a_token_past_its_refresh_time_is_replaced_for_the_next_connection() -> None:
    provider = Provider(lifetime=100.0)
    source = provider.source()
    await source.ensure("b:1")
    provider.now += 79.0
    await source.ensure("b:1")
    assert source.token == "t1"
    provider.now += 2.0
    await source.ensure("b:1")
    assert source.token == "t2"


async def test_a_token_without_a_known_expiry_is_fetched_for_every_connection() -> None:
    provider = Provider(lifetime=None)
    source = provider.source()
    for _ in range(3):
        await source.ensure("b:1")
    assert (source.token, provider.calls) == ("t3", 3)


async def test_the_session_that_a_broker_grants_is_the_expiry_of_a_token_that_has_no_other() -> None:
    provider = Provider(lifetime=None)
    source = provider.source()
    await source.ensure("b:1")
    source.accepted(0.0)  # without a limit
    await source.ensure("b:1")
    source.accepted(100.0)
    await source.ensure("b:1")
    assert (source.token, provider.calls) == ("t2", 2)
    provider.now += 81.0
    await source.ensure("b:1")
    assert (source.token, provider.calls) == ("t3", 3)
    source.refused()
    source.accepted(100.0)  # by another broker, before
    await source.ensure("b:1")
    assert (source.token, provider.calls) == ("t4", 4)


async def test_a_token_is_replaced_before_the_session_ends_while_nothing_connects() -> None:
    provider = Provider(lifetime=None)
    source = provider.source()
    await source.ensure("b:1")
    provider.succeeded = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(source.run)
        await wait_all_tasks_blocked()
        source.accepted(0.001)
        provider.now += 1.0
        with anyio.fail_after(10):
            await provider.succeeded.wait()
        group.cancel_scope.cancel()


async def test_a_token_that_says_when_it_expires_outlives_a_session() -> None:
    provider = Provider(lifetime=1000.0)
    source = provider.source()
    await source.ensure("b:1")
    source.accepted(100.0)
    provider.now += 700.0
    await source.ensure("b:1")
    assert provider.calls == 1


async def test_a_provider_that_fails_is_an_error_that_shows_its_kind_and_not_its_text() -> None:
    source = Provider(failures=1).source()
    with pytest.raises(Unreachable, match="b:1: sasl: no token: the token provider raised RuntimeError") as caught:
        await source.ensure("b:1")
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)
    await source.ensure("b:1")
    assert source.token == "t2"


async def test_a_provider_that_is_not_asynchronous_or_returns_no_token_is_an_error_that_says_so_at_once() -> None:
    def synchronous() -> Any:
        return "secret"

    async def nothing() -> Any:
        return ("secret", None)

    for provider, why in (
        (synchronous, r"the token provider is no asynchronous function: its call returned str"),
        (nothing, r"the token provider returned tuple, not a text, or a text and the time when it expires"),
    ):
        with pytest.raises(Unreachable, match=f"no token: {why}") as caught:
            await TokenSource(provider, 1.0).ensure("b:1")
        assert not caught.value.retriable and "secret" not in str(caught.value)


async def test_a_provider_that_fails_does_no_harm_while_the_old_token_is_valid() -> None:
    provider = Provider(lifetime=100.0)
    source = provider.source()
    await source.ensure("b:1")
    provider.failures, provider.now = 99, provider.now + 90.0
    await source.ensure("b:1")
    assert source.token == "t1"
    provider.now += 11.0
    with pytest.raises(Unreachable):
        await source.ensure("b:1")


async def test_a_provider_that_is_silent_holds_up_no_connection_while_the_old_token_is_valid() -> None:
    now, silent = 1000.0, anyio.Event()

    async def provide() -> tuple[str, float]:
        if now > 1000.0:
            silent.set()
            await anyio.sleep_forever()
        return "t1", 1100.0

    source = TokenSource(provide, 3600.0, wall_clock=lambda: now)
    await source.ensure("b:1")
    now = 1081.0
    async with anyio.create_task_group() as group:
        group.start_soon(source.run)
        with anyio.fail_after(10):
            await silent.wait()
            await source.ensure("b:1")
        group.cancel_scope.cancel()
    assert source.token_for("b") == "t1"


async def test_a_token_that_was_refused_is_not_shown_again_while_the_provider_fails() -> None:
    provider = Provider(lifetime=100.0)
    source = provider.source()
    await source.ensure("b:1")
    source.refused()
    provider.failures = 99
    with pytest.raises(Unreachable, match="no token: the token provider raised RuntimeError"):
        await source.ensure("b:1")
    with pytest.raises(Unreachable):
        source.token_for("b")


async def test_a_provider_that_never_returns_costs_its_time_limit() -> None:
    async def never() -> str:
        await anyio.sleep_forever()
        raise AssertionError

    with pytest.raises(Unreachable, match=r"the token provider: no answer within 0\.01 s"):
        await TokenSource(never, 0.01).ensure("b:1")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_provider_that_awaits_a_cancelled_task_fails_and_cancels_nothing(anyio_backend: str) -> None:
    provider, cancels = Provider(), iter((True, True, False))

    async def provide() -> str | tuple[str, float]:
        shared = asyncio.ensure_future(provider())
        if next(cancels):
            shared.cancel()
        return await shared

    source = TokenSource(provide, 5.0, Backoff(0, 1, 0.001), lambda: provider.now)
    async with anyio.create_task_group() as group:
        with pytest.raises(Unreachable, match="no token: the token provider raised CancelledError") as caught:
            await source.ensure("b:1")
        assert caught.value.retriable
        source.refused()  # so that the task in the background has to fetch one
        group.start_soon(source.run)
        with anyio.fail_after(10):
            await provider.succeeded.wait()
        assert not group.cancel_scope.cancel_called
        group.cancel_scope.cancel()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_provider_is_cancelled_with_its_caller(anyio_backend: str) -> None:
    ended = False

    async def provide() -> str:
        nonlocal ended
        try:
            await anyio.sleep_forever()
        finally:
            ended = True
        raise AssertionError

    task = asyncio.ensure_future(TokenSource(provide, 5.0).ensure("b:1"))
    await wait_all_tasks_blocked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended


async def test_failures_in_the_background_are_logged_once_without_their_text(caplog: pytest.LogCaptureFixture) -> None:
    provider = Provider(lifetime=100.0)
    source = provider.source()
    await source.ensure("b:1")
    provider.failures, provider.now, provider.succeeded = 6, provider.now + 81.0, anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(source.run)
        with anyio.fail_after(10):
            await provider.succeeded.wait()
        group.cancel_scope.cancel()
    assert [record.message for record in caplog.records] == ["the token provider raised RuntimeError; trying again"]
    assert "secret" not in caplog.text


@pytest.mark.parametrize("lifetime", [-5.0, 0.0, math.nan], ids=["expired", "none", "not a number"])
async def test_a_token_that_has_expired_when_it_comes_is_replaced_with_a_back_off(lifetime: float) -> None:
    """The clock of this machine is ahead, or the provider gives what it has kept for too long."""
    provider = Provider(lifetime)
    source = TokenSource(provider, 5.0, Backoff(3600, 1, 3600), lambda: provider.now)
    await source.ensure("b:1")
    async with anyio.create_task_group() as group:
        group.start_soon(source.run)
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert (source.token, provider.calls) == ("t2", 2)


@pytest.mark.parametrize("answer", [None, 5, b"token", ("token",), (5, 5.0), ("token", None), ("token", "5")])
async def test_what_is_no_token_is_refused(answer: Any) -> None:
    async def provide() -> Any:
        return answer

    with pytest.raises(Unreachable, match="no token"):
        await TokenSource(provide, 1.0).ensure("b:1")


def web_token(**claims: Any) -> str:
    parts = ({"alg": "none"}, claims)
    return ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


@pytest.mark.parametrize(
    ("token", "expires"),
    [
        (web_token(exp=1234), 1234.0),
        (web_token(exp=1234.5, sub="a"), 1234.5),
        (web_token(sub="a"), math.inf),
        (web_token(exp="soon"), math.inf),
        ("opaque", math.inf),
        ("a.b.c", math.inf),
        ("..", math.inf),
        ("a.\u00e9.c", math.inf),
    ],
)
def test_the_expiry_of_a_json_web_token_is_its_own(token: str, expires: float) -> None:
    assert expiry_of(token) == expires


# ---- logins ------------------------------------------------------------------------------------------------------


def first_token(security: Security, tokens: TokenSource | None = None) -> bytes:
    return next(login(security, tokens).begin("b"))


async def test_every_mechanism_begins_with_its_own_token() -> None:
    user: dict[str, Any] = {"sasl_username": "u", "sasl_password": "p"}
    assert first_token(Security(sasl_mechanism="PLAIN", **user)) == b"\0u\0p"
    first, second = (first_token(Security(sasl_mechanism="SCRAM-SHA-512", **user)) for _ in range(2))
    assert first.startswith(b"n,,n=u,r=")
    assert first != second  # nonces
    delegated = first_token(Security(sasl_mechanism="SCRAM-SHA-256", sasl_delegation_token=True, **user))
    assert delegated.endswith(b",tokenauth=true")
    fixed = Security(sasl_mechanism="OAUTHBEARER", sasl_token="tok", sasl_extensions={"pool": "p1"})
    assert first_token(fixed) == b"n,,\x01auth=Bearer tok\x01pool=p1\x01\x01"
    source = Provider().source()
    await source.ensure("b:1")
    assert b"Bearer t1" in first_token(Security(sasl_mechanism="OAUTHBEARER", sasl_token_provider=Provider()), source)


async def test_a_token_that_no_header_can_hold_fails_without_being_shown() -> None:
    async def provide() -> str:
        return "two words"

    source = TokenSource(provide, 1.0)
    await source.ensure("b:1")
    with pytest.raises(AuthFailed) as caught:
        first_token(Security(sasl_mechanism="OAUTHBEARER", sasl_token_provider=provide), source)
    assert "two words" not in f"{caught.value}{caught.value.__cause__}"


def test_extensions_are_checked_before_anything_connects() -> None:
    with pytest.raises(ConfigError, match="extension 'auth'"):
        login(Security(sasl_mechanism="OAUTHBEARER", sasl_token="t", sasl_extensions={"auth": "x"}), None)


def test_gssapi_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(gssapi, "import_module", missing)
    with pytest.raises(ConfigError, match="pip install gssapi"):
        login(Security(sasl_mechanism="GSSAPI"), None).begin("b")


class Ticket:
    """A security context of two steps, whose offer a test sets."""

    def __init__(self, offer: bytes) -> None:
        self.offer, self.complete, self.heard = offer, False, list[bytes | None]()

    def step(self, token: bytes | None = None) -> bytes | None:
        self.heard.append(token)
        if token == b"bad":
            raise ZeroDivisionError("no ticket")
        self.complete = token is not None
        return None if self.complete else b"first"

    def unwrap(self, token: bytes) -> Any:
        return type("Unwrapped", (), {"message": self.offer})

    def wrap(self, message: bytes, encrypt: bool) -> Any:
        assert not encrypt
        return type("Wrapped", (), {"message": b"<" + message + b">"})


def answered(ticket: Ticket, *answers: bytes) -> Iterator[bytes]:
    exchange = gssapi.exchange_of(ticket, (ZeroDivisionError,))
    yield next(exchange)
    for answer in answers:
        try:
            yield exchange.send(answer)
        except StopIteration:
            return


def test_gssapi_exchanges_its_tokens_and_chooses_no_security_layer() -> None:
    tokens = list(answered(Ticket(b"\x07\x00\x10\x00"), b"second", b"offer", b""))
    assert tokens == [b"first", b"", b"<\x01\x00\x00\x00>"]


@pytest.mark.parametrize(
    ("offer", "answers", "why"),
    [
        (b"\x06\x00\x10\x00", (b"second", b"offer"), "security layer"),
        (b"", (b"second", b"offer"), "security layer"),
        (b"\x01\0\0\0", (b"bad",), "no ticket"),
    ],
)
def test_gssapi_fails_where_the_broker_or_the_ticket_does(offer: bytes, answers: tuple[bytes, ...], why: str) -> None:
    with pytest.raises(AuthFailed, match=why):
        list(answered(Ticket(offer), *answers))


def test_there_is_a_login_for_each_mechanism_that_security_allows() -> None:
    assert FACTORIES.keys() == set(MECHANISMS)
