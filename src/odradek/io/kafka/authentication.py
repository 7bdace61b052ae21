"""Credentials of one cluster: what `Security` says becomes the login of every connection.

Bearer tokens come from an asynchronous function of the user and expire, while the exchange on a connection cannot wait:
a token is fetched before a connection is opened, and again in the background ahead of its expiry.
"""

from __future__ import annotations

import json
import logging
import math
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable
from functools import partial
from random import random
from secrets import token_urlsafe

import anyio

from odradek.core.backoff import Backoff
from odradek.core.kafka.sasl import Exchange, OAuthBearer, Plain, Scram
from odradek.core.kafka.sasl.scram import HASHES
from odradek.errors import AuthFailed, ConfigError, OdradekError, Unreachable
from odradek.io.kafka.handshake import Login
from odradek.io.kafka.msk import MskIam
from odradek.io.kafka.oidc import ClientCredentials
from odradek.io.notifier import Notifier
from odradek.io.security import Security, TokenError, TokenProvider, ask_provider

__all__ = ["TokenSource", "login", "token_provider"]

log = logging.getLogger("odradek.security")

REFRESH_FRACTION = 0.8
"""Part of its lifetime after which a token is replaced: brokers end a session at the expiry of its token."""


class TokenSource:
    """The current bearer token. Its owner runs `run`.

    Args:
        provider: Fetches tokens.
        timeout_s: For one call of the provider (s).
        backoff: Between calls that failed.
        wall_clock: Seconds since the epoch, which expiries refer to.
    """

    def __init__(
        self,
        provider: TokenProvider,
        timeout_s: float,
        backoff: Backoff | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._provider, self._timeout_s, self._backoff = provider, timeout_s, backoff or Backoff()
        self._clock = wall_clock
        self._fetching, self._fetched = anyio.Lock(), Notifier()
        self._token = ""
        self._refresh_at = self._expires_at = math.inf
        self._failure: Exception | None = None  # of the latest call of the provider

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'a token' if self._token else 'no token yet'}>"

    @property
    def token(self) -> str:
        """Latest token. Raises AuthFailed before the first one."""
        if not self._token:
            raise AuthFailed("OAUTHBEARER", "there is no token yet")
        return self._token

    def token_for(self, host: str) -> str:
        """Return the latest token, for a connection to a host that authenticates, maybe again.

        Raises:
            AuthFailed: There was none yet.
            Unreachable: Step `sasl`: it has expired, and the provider fails. The broker would refuse it for good.
        """
        if self._failure is not None and self._clock() >= self._expires_at:
            raise self._unreachable(host, self._failure) from self._failure
        return self.token

    def refused(self) -> None:
        """Record that a broker has refused the token, which may have been revoked before its expiry: it is not shown
        again, and another one is fetched for the next connection. In any thread."""
        self._expires_at = self._refresh_at = min(self._refresh_at, self._clock())

    def accepted(self, lifetime_s: float) -> None:
        """Record for how long (s) a broker has accepted the token: where nothing else says when it expires, it is
        replaced ahead of that, before the connection shows it again. In the thread of `run`; 0: without a limit."""
        if self._expires_at == math.inf and lifetime_s > 0:
            now = self._clock()
            self._expires_at = now + lifetime_s
            self._refresh_at = min(self._refresh_at, now + REFRESH_FRACTION * lifetime_s)
            self._fetched.notify()

    async def ensure(self, address: str) -> None:
        """Fetch a token unless the present one is fresh, or is valid while `run` fetches another one, which may take
        long. Cancellation: safe.

        Args:
            address: The broker's address, for the error.

        Raises:
            Unreachable: Step `sasl`: the provider failed, and there is no token that is still valid.
        """
        if self._is_valid() and (self._failure is not None or self._fetching.locked()):
            return
        async with self._fetching:
            if self._token and self._clock() < self._refresh_at < math.inf:
                return
            try:
                await self._fetch()
            except Exception as error:
                if self._is_valid():
                    return
                raise self._unreachable(address, error) from error

    def _is_valid(self) -> bool:
        """Return True if there is a token that is known not to have expired."""
        return bool(self._token) and self._clock() < self._expires_at < math.inf

    async def run(self) -> None:
        """Replace each token ahead of its expiry, until cancelled. A failure is logged once, and tried again, with a
        back-off, as it is after a token that has to be replaced at once."""
        failures = 0
        while True:
            version, wait = self._fetched.version, self._refresh_at - self._clock()
            if wait > 0:
                await self._fetched.wait(version, wait)
            elif await self._refresh(failures) and self._clock() < self._refresh_at:
                failures = 0
            else:
                await anyio.sleep(self._backoff.delay(failures, random()))
                failures += 1

    async def _refresh(self, failures: int) -> bool:
        async with self._fetching:
            try:
                await self._fetch()
            except Exception as error:
                if not failures:
                    log.warning("%s; trying again", self._problem(error))
                return False
        return True

    def _unreachable(self, address: str, error: Exception) -> Unreachable:
        unreachable = Unreachable("sasl", address, f"no token: {self._problem(error)}")
        unreachable.hint = "the cause of this error says more"
        if isinstance(error, TokenError):
            unreachable.hint, unreachable.retriable = error.hint, error.retriable
        return unreachable

    def _problem(self, error: Exception) -> str:
        """Return what went wrong, in words that cannot contain a secret."""
        if isinstance(error, TokenError):
            return error.message()
        if isinstance(error, TimeoutError):
            own = isinstance(self._provider, ClientCredentials | MskIam)
            return f"{self._provider if own else 'the token provider'}: no answer within {self._timeout_s:g} s"
        return f"the token provider raised {type(error).__name__}"

    async def _fetch(self) -> None:
        try:
            with anyio.fail_after(self._timeout_s):
                answer = await ask_provider(self._provider)
            token, expires_at = answer if isinstance(answer, tuple) else (answer, expiry_of(answer))
        except Exception as error:
            self._failure = error
            raise
        now, self._failure = self._clock(), None
        self._token, self._expires_at = token, expires_at
        self._refresh_at = now + REFRESH_FRACTION * (expires_at - now)  # never, if it does not expire
        self._fetched.notify()


def token_provider(security: Security) -> TokenProvider | None:
    """Return the provider of bearer tokens that `security` describes; None if it needs none.

    Raises:
        ConfigError: Options are missing, or contradict each other.
    """
    if security.sasl_mechanism != "OAUTHBEARER":
        return None
    if security.sasl_token_provider is not None:
        return security.sasl_token_provider
    if security.sasl_oauth_token_url is not None and security.sasl_aws_region is not None:
        raise ConfigError("sasl_oauth_token_url and sasl_aws_region: a token comes from one of them")
    if security.sasl_aws_region is not None:
        return MskIam(security.sasl_aws_region)
    return None if security.sasl_oauth_token_url is None else ClientCredentials(security)


def expiry_of(token: str) -> float:
    """Return when a JSON Web Token expires (s since the epoch); infinity if the text is none, or does not say."""
    parts = token.split(".") if isinstance(token, str) else []
    if len(parts) != 3:
        return math.inf
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def login(security: Security, tokens: TokenSource | None) -> Login:
    """Return the login that `security` describes.

    Args:
        security: Its mechanism is set.
        tokens: The source of bearer tokens (OAUTHBEARER).

    Raises:
        ConfigError: Options are missing, or contradict each other.
    """
    mechanism = security.sasl_mechanism
    if mechanism is None:
        raise ConfigError("SASL needs Security(sasl_mechanism=...), or ODRADEK_SASL_MECHANISM in the environment")
    return FACTORIES[mechanism](security, tokens)


def _plain(security: Security, tokens: TokenSource | None) -> Login:
    plain = Plain(*_user_and_password(security))
    return Login("PLAIN", lambda host: plain.exchange())


def _scram(security: Security, tokens: TokenSource | None) -> Login:
    user, password = _user_and_password(security)
    mechanism = security.sasl_mechanism or ""
    scram = Scram(mechanism, user, password, security.sasl_delegation_token)
    return Login(mechanism, lambda host: scram.exchange(token_urlsafe(24)))


def _user_and_password(security: Security) -> tuple[str, str]:
    user, password = security.sasl_username, security.sasl_password
    if user is None or password is None:
        raise ConfigError(
            f"{security.sasl_mechanism} needs sasl_username and sasl_password, "
            "or ODRADEK_SASL_USERNAME and ODRADEK_SASL_PASSWORD"
        )
    return user, password


def _kerberos(security: Security, tokens: TokenSource | None) -> Login:
    from odradek.io.kafka.gssapi import fetch_ticket, kerberos_exchange

    service = security.sasl_kerberos_service_name or "kafka"
    return Login("GSSAPI", partial(kerberos_exchange, service), partial(fetch_ticket, service))


def _bearer(security: Security, tokens: TokenSource | None) -> Login:
    fixed = security.sasl_token
    if tokens is None and fixed is None:
        raise ConfigError(
            "OAUTHBEARER needs sasl_token_provider, sasl_oauth_token_url, sasl_aws_region or sasl_token, or "
            "ODRADEK_SASL_TOKEN"
        )
    OAuthBearer(fixed or "checked", security.sasl_extensions)  # raises ConfigError now rather than later

    def begin(host: str) -> Exchange:
        token = tokens.token_for(host) if tokens is not None else fixed or ""
        try:
            return OAuthBearer(token, security.sasl_extensions).exchange()
        except OdradekError as error:
            raise AuthFailed("OAUTHBEARER", error.message()) from None

    if tokens is None:
        return Login("OAUTHBEARER", begin)
    return Login("OAUTHBEARER", begin, refused=tokens.refused, accepted=tokens.accepted)


FACTORIES: dict[str, Callable[[Security, TokenSource | None], Login]] = {
    "PLAIN": _plain,
    **dict.fromkeys(HASHES, _scram),
    "OAUTHBEARER": _bearer,
    "GSSAPI": _kerberos,
}
"""Functions that make logins, by the names that `Security` allows. They raise ConfigError if options of theirs are
missing."""
