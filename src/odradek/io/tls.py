"""TLS: contexts from options, and errors of the TLS handshake in words."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from odradek.errors import ConfigError, Unreachable
from odradek.io.security import Security

__all__ = ["client_context", "tls_error"]

_EXPIRED, _NOT_YET_VALID, _HOST_MISMATCH, _ADDRESS_MISMATCH = 10, 9, 62, 64
"""Numbers of OpenSSL's verification errors (X509_V_ERR_...)."""

_CLOSED = (ssl.SSLZeroReturnError, ssl.SSLEOFError)
"""The peer closed the connection without a word: of several errors, releases of Python choose different ones."""

_PLAINTEXT = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")


def client_context(security: Security) -> ssl.SSLContext:
    """Return the context for connections to brokers.

    Raises:
        ConfigError: A file has no certificate or key, or its password is wrong.
    """
    if security.ssl_context is not None:
        return security.ssl_context
    try:
        context = ssl.create_default_context(cafile=security.ssl_cafile)
    except OSError as error:
        raise ConfigError(
            f"ssl_cafile={security.ssl_cafile!r}: no certificates in PEM format: {_text(error)}"
        ) from None
    context.check_hostname = security.ssl_check_hostname
    if security.ssl_keyfile is not None and security.ssl_certfile is None:
        raise ConfigError("ssl_keyfile without ssl_certfile: a key needs the certificate it belongs to")
    if security.ssl_certfile is not None:
        _load_key(context, security.ssl_certfile, security)
    return context


def _load_key(context: ssl.SSLContext, certificate: str, security: Security) -> None:
    asked: list[bool] = []
    password = security.ssl_password
    try:
        context.load_cert_chain(certificate, security.ssl_keyfile, _password(password, asked))
    except OSError as error:
        why = _text(error)
        if asked:
            why = "its private key is encrypted: " + ("wrong ssl_password" if password else "set ssl_password")
        raise ConfigError(f"ssl_certfile={certificate!r}: {why}") from None


def _password(password: str | None, asked: list[bool]) -> Callable[[], str]:
    """Return the function that OpenSSL asks for the password; without one it would ask on the terminal."""

    def ask() -> str:
        asked.append(True)
        return password or ""

    return ask


def tls_error(address: str, error: Exception) -> Unreachable:
    """Return the error for a TLS handshake that failed."""
    unreachable = Unreachable("tls", address, _text(error))
    if isinstance(error, ssl.SSLCertVerificationError):
        unreachable.why = f"the broker's certificate is not accepted: {error.verify_message}"
        unreachable.hint = _certificate_hint(error.verify_code)
        unreachable.retriable, unreachable.fatal = False, True
    elif isinstance(error, ssl.SSLError) and (error.reason or "") in _PLAINTEXT:
        unreachable.hint = "the listener does not speak TLS: use a URL without +ssl, or another port"
        unreachable.retriable = False
    elif isinstance(error, ssl.SSLError) and not isinstance(error, _CLOSED):
        unreachable.hint = "the broker's log says what it does not accept; it may ask for a client certificate"
    else:
        unreachable.hint = "the listener may not speak TLS: use a URL without +ssl, or another port"
    return unreachable


def _certificate_hint(code: int) -> str:
    if code == _EXPIRED:
        return "renew the broker's certificate"
    if code == _NOT_YET_VALID:
        return "check the clocks of this machine and of the broker"
    if code in (_HOST_MISMATCH, _ADDRESS_MISMATCH):
        return "use a name of the certificate in the URL and in advertised.listeners"
    return "set Security(ssl_cafile=...) to the authority that signed it"


def _text(error: Exception) -> str:
    if isinstance(error, _CLOSED):
        return "closed by the peer"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error) or "closed by the peer"
