"""GSSAPI (Kerberos), by the package `gssapi` where it is installed (RFC 4752)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from odradek.core.kafka.sasl import Exchange, UnansweredToken
from odradek.errors import AuthFailed, ConfigError

__all__ = ["exchange_of", "kerberos_exchange"]

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
    name = gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service)
    context = gssapi.SecurityContext(name=name, usage="initiate")
    return exchange_of(context, (gssapi.exceptions.GSSError,))


def exchange_of(context: Any, errors: tuple[type[Exception], ...]) -> Exchange:
    """Run the exchange of a security context: its tokens, then the choice of no security layer.

    Args:
        context: Has `step`, `complete`, `wrap` and `unwrap`, as `gssapi.SecurityContext` does.
        errors: The exceptions they raise.

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
        raise AuthFailed("GSSAPI", str(error)) from error
