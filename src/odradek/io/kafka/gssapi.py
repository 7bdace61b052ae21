"""GSSAPI (Kerberos), by the package `gssapi` where it is installed (RFC 4752)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import anyio
import anyio.to_thread

from odradek.core.kafka.sasl import Exchange, UnansweredToken
from odradek.errors import AuthFailed, ConfigError, OdradekError, Unreachable

__all__ = ["exchange_of", "fetch_ticket", "kerberos_exchange"]

KDC_AWAY = {-1765328228, -1765328164, -1765328355}
"""Minor status codes: no KDC of the realm answers, its name cannot be resolved, and it is not in service."""

NO_SECURITY_LAYER = 1
"""Bit of the broker's offer, and of the answer: Kafka has no other layer than TLS."""


def kerberos_exchange(service: str, host: str) -> Exchange:
    """Return the exchange with the service of a host, with the tickets of the environment.

    Raises:
        ConfigError: The package is not installed.
    """
    try:
        gssapi: Any = import_module("gssapi")
    except ImportError:
        raise ConfigError("GSSAPI needs the package gssapi: pip install gssapi") from None

    def failure(error: Exception) -> Unreachable | AuthFailed:
        minor = getattr(error, "min_code", 0)
        away = minor in KDC_AWAY or minor - (1 << 32) in KDC_AWAY
        return _kdc_away(host, str(error)) if away else AuthFailed("GSSAPI", str(error))

    name = gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service)
    context = gssapi.SecurityContext(name=name, usage="initiate")
    return exchange_of(context, (gssapi.exceptions.GSSError,), failure)


async def fetch_ticket(service: str, host: str, timeout: float) -> None:
    """Fetch the ticket for the service of a host in a thread: a KDC may take long to answer, and an exchange waits for
    it in the event loop if the cache of tickets has none. Anything else that is wrong is left to the exchange.

    Cancellation: the thread goes on, and ends by itself.

    Raises:
        Unreachable: Step `sasl`: the KDC does not answer, or not within so many seconds.
    """
    try:
        with anyio.fail_after(timeout):
            await anyio.to_thread.run_sync(_first_token, service, host, abandon_on_cancel=True)
    except TimeoutError:
        raise _kdc_away(host, f"no answer from the KDC within {timeout:g} s") from None
    except (AuthFailed, ConfigError):
        return


def _first_token(service: str, host: str) -> None:
    next(kerberos_exchange(service, host))


def _kdc_away(host: str, why: str) -> Unreachable:
    unreachable = Unreachable("sasl", host, f"no Kerberos ticket: {why}")
    unreachable.hint = "check that the KDC of the realm can be reached: /etc/krb5.conf says where it is"
    return unreachable


def exchange_of(
    context: Any,
    errors: tuple[type[Exception], ...],
    failure: Callable[[Exception], OdradekError] = lambda error: AuthFailed("GSSAPI", str(error)),
) -> Exchange:
    """Run the exchange of a security context: its tokens, then the choice of no security layer.

    Args:
        context: Has `step`, `complete`, `wrap` and `unwrap`, as `gssapi.SecurityContext` does.
        errors: The exceptions they raise.
        failure: What is raised for one of these.

    Raises:
        AuthFailed: There is no ticket, or the broker did not prove its identity.
    """
    try:
        token = context.step()
        while not context.complete:
            token = context.step((yield token or b""))
        offer = context.unwrap((yield token or b"")).message
        if len(offer) != 4 or not offer[0] & NO_SECURITY_LAYER:
            raise AuthFailed("GSSAPI", "the broker wants a security layer, which Kafka has not")
        yield UnansweredToken(context.wrap(bytes([NO_SECURITY_LAYER, 0, 0, 0]), False).message)
    except errors as error:
        raise failure(error) from error
