"""TLS: contexts from options, and errors of the TLS handshake in words."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from odradek.errors import ConfigError, Unreachable

if TYPE_CHECKING:
    from odradek.io.security import Security

__all__ = ["ContextSource", "client_context", "tls_alert", "tls_error"]

log = logging.getLogger("odradek.security")

_EXPIRED, _NOT_YET_VALID, _HOST_MISMATCH, _ADDRESS_MISMATCH = 10, 9, 62, 64
"""Numbers of OpenSSL's verification errors (X509_V_ERR_...)."""

_CLOSED = (ssl.SSLZeroReturnError, ssl.SSLEOFError)
"""The peer closed the connection without a word: of several errors, releases of Python choose different ones."""

_PLAINTEXT = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")


_ALERT = "_ALERT_"
"""Part of OpenSSL's reasons for alerts of the peer, such as TLSV13_ALERT_CERTIFICATE_REQUIRED."""

_OF_CERTIFICATE = ("certificate", "unknown ca")
"""Parts of the names of alerts about the certificate of the client."""


class ContextSource:
    """The context for new connections, which is made again once a file of certificates or keys has changed: what
    renews certificates replaces the files, and the ones before are refused some time later.

    Args:
        security: Options of TLS.

    Raises:
        ConfigError: See `client_context`.
    """

    def __init__(self, security: Security) -> None:
        self._security = security
        self._read = self._refused = self._versions()
        self._context = client_context(security)

    def current(self) -> ssl.SSLContext:
        """Return the context for a connection that is about to be opened. While the files are no certificate with its
        key, because only one of them is written so far, it is the one before; that is logged once for each change."""
        versions = self._versions()  # before they are read: a change meanwhile is noticed the next time
        if versions != self._read:
            try:
                self._context = client_context(self._security)
            except ConfigError as error:
                if versions != self._refused:
                    log.warning("%s; connections are opened with what was read before", error)
                self._refused = versions
            else:
                self._read = self._refused = versions
        return self._context

    def _versions(self) -> list[tuple[int, ...] | None]:
        """Return what changes with the contents of each file."""
        return [_version(file) for file in _files(self._security)]


def _files(security: Security) -> list[str]:
    """Return the files that a context is made of."""
    if security.ssl_context is not None:
        return []
    authorities = [security.ssl_cafile if security.ssl_ca_pem is None else None]
    own = [security.ssl_certfile, security.ssl_keyfile] if security.ssl_certificate_pem is None else []
    return [file for file in authorities + own if file is not None]


def _version(file: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(file)  # noqa: PTH116 -- pathlib is not imported for this alone
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def client_context(security: Security) -> ssl.SSLContext:
    """Return the context for connections to brokers.

    Raises:
        ConfigError: A file or text has no certificate or key, or its password is wrong.
    """
    if security.ssl_context is not None:
        return security.ssl_context
    context = _trusting(security)
    context.check_hostname = security.ssl_check_hostname
    password = security.ssl_password
    if security.ssl_certificate_pem is not None:
        with _pem_file(security.ssl_certificate_pem + "\n" + (security.ssl_key_pem or "")) as file:
            _load_key(context, file, None, password, "ssl_certificate_pem")
    elif security.ssl_key_pem is not None:
        raise ConfigError("ssl_key_pem without ssl_certificate_pem: a key needs the certificate it belongs to")
    elif security.ssl_certfile is not None:
        option = f"ssl_certfile={security.ssl_certfile!r}"
        _load_key(context, security.ssl_certfile, security.ssl_keyfile, password, option)
    elif security.ssl_keyfile is not None:
        raise ConfigError("ssl_keyfile without ssl_certfile: a key needs the certificate it belongs to")
    return context


def _trusting(security: Security) -> ssl.SSLContext:
    """Return a context that trusts the authorities of the options."""
    text, file = security.ssl_ca_pem, security.ssl_cafile
    option = f"ssl_cafile={file!r}" if text is None else "ssl_ca_pem"
    try:
        context = ssl.create_default_context(cafile=file) if text is None else ssl.create_default_context(cadata=text)
    except (OSError, TypeError) as error:  # TypeError: it is not ASCII
        raise ConfigError(f"{option}: no certificates in PEM format: {_text(error)}") from None
    return context


@contextmanager
def _pem_file(text: str) -> Iterator[str]:
    """Write a text to a file that this user alone can read: OpenSSL takes a private key from a file only. It is closed,
    because Windows opens no temporary file a second time."""
    import tempfile  # with shutil, and all that it can unpack
    from pathlib import Path

    try:
        with tempfile.TemporaryDirectory(prefix="odradek-") as directory:
            file = Path(directory, "client.pem")
            file.write_text(text, "utf-8", "replace")
            yield str(file)
    except OSError as error:
        raise ConfigError(f"ssl_certificate_pem: no temporary file, which OpenSSL needs: {_text(error)}") from None


def _load_key(context: ssl.SSLContext, certificate: str, key: str | None, password: str | None, option: str) -> None:
    """Load certificate and key of a client from files; an error names the option."""
    asked: list[bool] = []
    try:
        context.load_cert_chain(certificate, key, _password(password, asked))
    except OSError as error:
        why = _text(error)
        if asked:
            why = "its private key is encrypted: " + ("wrong ssl_password" if password else "set ssl_password")
        raise ConfigError(f"{option}: {why}") from None


def _password(password: str | None, asked: list[bool]) -> Callable[[], str]:
    """Return the function that OpenSSL asks for the password; without one it would ask on the terminal."""

    def ask() -> str:
        asked.append(True)
        return password or ""

    return ask


def tls_alert(error: BaseException | None) -> ssl.SSLError | None:
    """Return the error of TLS if the peer ended the connection with an alert. From TLS 1.3 on it comes after the
    client's handshake where a broker does not accept the certificate of the client, or misses one (RFC 8446, 4.4.2.4).

    Args:
        error: That of a transport; of anyio's streams it may be the cause.
    """
    for each in (error, getattr(error, "__cause__", None)):
        if isinstance(each, ssl.SSLError) and _ALERT in (each.reason or ""):
            return each
    return None


def tls_error(address: str, error: Exception) -> Unreachable:
    """Return the error for a TLS handshake that failed, also one whose failure the peer tells afterwards."""
    unreachable = Unreachable("tls", address, _text(error))
    if isinstance(error, ssl.SSLCertVerificationError):
        unreachable.why = f"the broker's certificate is not accepted: {error.verify_message}"
        unreachable.hint = _certificate_hint(error.verify_code)
        unreachable.retriable, unreachable.fatal = False, True
    elif isinstance(error, ssl.SSLError) and (error.reason or "") in _PLAINTEXT:
        unreachable.hint = "the listener does not speak TLS: use a URL without +ssl, or another port"
        unreachable.retriable = False
    elif tls_alert(error) is not None and any(word in unreachable.why for word in _OF_CERTIFICATE):
        unreachable.hint = "the broker asks for a client certificate that it trusts: set Security(ssl_certfile=...)"
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
    if (alert := tls_alert(error)) is not None and alert.reason:
        return "the broker's alert: " + alert.reason.partition(_ALERT)[2].lower().replace("_", " ")
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error) or "closed by the peer"
