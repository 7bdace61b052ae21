"""Send the tokens of an exchange, and schedule re-authentication (kafka-specification.md 4.3; KIP-152, KIP-368)."""

from __future__ import annotations

from collections.abc import Generator

from odradek.core.kafka.sasl.exchange import Exchange
from odradek.errors import AuthFailed, RemoteProtocolError
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

__all__ = ["Authentication", "Outgoing", "authenticate", "authenticate_again_at"]

Outgoing = SaslHandshakeRequest | SaslAuthenticateRequest | bytes
"""A request, or a raw token: a frame that has only the size and the bytes."""

Authentication = Generator[Outgoing, SaslHandshakeResponse | SaslAuthenticateResponse | bytes | None, int]
"""The exchange of one login; the response to a raw token that is an `UnansweredToken` is None, once it is written."""


def authenticate(mechanism: str, exchange: Exchange, *, sasl_requests: bool) -> Authentication:
    """Run an exchange: choose the mechanism, then send token after token.

    No other request may use the connection meanwhile, and correlation ids must not be reused: a late response must not
    be mistaken for another.

    Args:
        mechanism: The name of the mechanism.
        exchange: The exchange, not started.
        sasl_requests: `BrokerVersions.has_sasl_requests`. True: tokens are sent in SaslAuthenticate, and SaslHandshake
            in version 1; False: tokens are raw frames, and SaslHandshake is sent in version 0.

    Returns:
        How long the broker accepts the connection (ms); 0 for no limit. Pass it to `authenticate_again_at`.

    Raises:
        AuthFailed: The broker refused, or did not prove its identity.
    """
    chosen = yield SaslHandshakeRequest(mechanism=mechanism)
    if not isinstance(chosen, SaslHandshakeResponse):
        raise RemoteProtocolError(f"{type(chosen).__name__} in response to SaslHandshake")
    if chosen.error_code:
        names = ", ".join(chosen.mechanisms) or "none"
        raise AuthFailed(mechanism, f"{ErrorCode(chosen.error_code).name}; the broker has {names}")
    lifetime_ms = 0
    token = next(exchange)
    while True:
        if sasl_requests:
            answer, lifetime_ms = _answer(mechanism, (yield SaslAuthenticateRequest(auth_bytes=token)))
        else:
            received = yield token
            answer = received if isinstance(received, bytes) else b""
        try:
            token = exchange.send(answer)
        except StopIteration:
            return lifetime_ms


def _answer(mechanism: str, response: object) -> tuple[bytes, int]:
    if not isinstance(response, SaslAuthenticateResponse):
        raise RemoteProtocolError(f"{type(response).__name__} in response to SaslAuthenticate")
    if response.error_code:
        name = ErrorCode(response.error_code).name
        raise AuthFailed(mechanism, f"{name}: {response.error_message}" if response.error_message else name)
    return bytes(response.auth_bytes), response.session_lifetime_ms


def authenticate_again_at(now: float, lifetime_ms: int, jitter: float) -> float | None:
    """Return when to authenticate again on the live connection; None for never.

    Args:
        now: The time of the broker's last response (s).
        lifetime_ms: The result of `authenticate`.
        jitter: In [0, 1): spreads the clients between 85 and 95 % of the lifetime.
    """
    return now + lifetime_ms / 1000 * (0.85 + 0.1 * jitter) if lifetime_ms > 0 else None
