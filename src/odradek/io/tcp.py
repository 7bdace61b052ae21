"""Opens transports: `connect` for TCP and TLS. Nothing else opens a socket to a broker."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest

import anyio
from anyio.streams.tls import TLSStream

from odradek.errors import Unreachable
from odradek.io.tls import tls_error
from odradek.io.transport import AsyncioTransport, StreamTransport, Transport, TrioTransport, on_asyncio

__all__ = ["connect"]

NEXT_ADDRESS_S = 0.25
"""Time (s) after which the next address of a host is tried as well: "happy eyeballs", RFC 8305 section 5."""


async def connect(host: str, port: int, timeout: float, tls: ssl.SSLContext | None = None) -> Transport:
    """Open a TCP connection, without Nagle's delay, with TLS if there is a context for it.

    Cancellation: safe, nothing stays open.

    Args:
        timeout: For look-up, connect and the TLS handshake together (s).
        tls: The host must be a name of the peer's certificate if it checks that.

    Raises:
        Unreachable: With the step that failed, `dns`, `tcp` or `tls`.
    """
    address, step = f"{host}:{port}", "dns"
    secured = None if tls is None else _Tls(tls, host)
    if not 0 < port < 1 << 16:  # each event loop fails in its own way for it
        raise Unreachable("tcp", address, "no such port")
    try:
        with anyio.fail_after(timeout):
            addresses = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            step = "tcp"
            return await _connect_any(_interleave_families([str(end[0]) for *_, end in addresses]), port, secured)
    except TimeoutError as error:
        if secured is not None and secured.connected:
            step = "tls"
        raise _unreachable(step, address, error, f"no answer within {timeout:g} s") from error
    except (OSError, UnicodeError) as error:  # the latter: what cannot be a host name
        if secured is not None and secured.failure is not None:
            raise tls_error(address, secured.failure) from error
        raise _unreachable(step, address, error, _os_error_text(error)) from error


def _interleave_families(hosts: Sequence[str]) -> list[str]:
    """Return IPv6 and IPv4 addresses alternately, beginning with the first (RFC 8305 section 4), each once."""
    first: list[str] = []
    second: list[str] = []
    for host in dict.fromkeys(hosts):
        (first if (":" in host) == (":" in hosts[0]) else second).append(host)
    return [host for pair in zip_longest(first, second) for host in pair if host is not None]


async def _connect_any(hosts: Sequence[str], port: int, tls: _Tls | None) -> Transport:
    """Try the addresses one after the other, without waiting long for any, until one answers."""
    transports: list[Transport] = []
    errors: list[Exception] = []

    async def attempt(host: str, finished: anyio.Event) -> None:
        try:
            transports.append(await _open(host, port, tls))
            group.cancel_scope.cancel()
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            errors.append(error)
        finally:
            finished.set()

    try:
        async with anyio.create_task_group() as group:
            for host in hosts:
                finished = anyio.Event()
                group.start_soon(attempt, host, finished)
                with anyio.move_on_after(NEXT_ADDRESS_S):
                    await finished.wait()
        if not transports:
            raise OSError("no address answered") from ExceptionGroup("", errors)
        return transports.pop(0)
    finally:  # those that connected too late; all of them when cancelled
        for transport in transports:
            await transport.aclose()


async def _open(host: str, port: int, tls: _Tls | None) -> Transport:
    if tls is not None:
        return await tls.open(host, port)
    if on_asyncio():
        _, transport = await asyncio.get_running_loop().create_connection(AsyncioTransport, host, port)
        return transport
    return TrioTransport(await anyio.connect_tcp(host, port))  # both turn Nagle off


class _Tls:
    """TLS for one call of `connect`.

    Args:
        context: As in `connect`.
        name: The name that the certificate must have, if the context checks it.
    """

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        self._context, self._name = context, name.rstrip(".")
        self.connected = False
        """TCP works: only TLS is missing."""
        self.failure: Exception | None = None

    async def open(self, host: str, port: int) -> Transport:
        """Open a connection to one address. Raises OSError for TCP, and what TLS raises, which is the `failure`."""
        opening = self._open_asyncio if on_asyncio() else self._open_trio
        return await opening(host, port)

    async def _open_asyncio(self, host: str, port: int) -> Transport:
        loop = asyncio.get_running_loop()
        connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        transport = AsyncioTransport()
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, (host, port))
            with self._handshake():
                await loop.create_connection(
                    lambda: transport, sock=connection, ssl=self._context, server_hostname=self._name
                )
        except BaseException:
            if transport.is_connected:  # cancelled in the moment in which the handshake had ended
                transport.abort()
            connection.close()
            raise
        return transport

    async def _open_trio(self, host: str, port: int) -> Transport:
        stream = await anyio.connect_tcp(host, port)
        try:
            with self._handshake():
                wrapped = await TLSStream.wrap(
                    stream, hostname=self._name, ssl_context=self._context, standard_compatible=False
                )
            return StreamTransport(wrapped)
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise

    @contextmanager
    def _handshake(self) -> Iterator[None]:
        self.connected = True
        try:
            yield
        except Exception as error:
            self.failure = error
            raise


def _unreachable(step: str, address: str, error: Exception, why: str) -> Unreachable:
    unreachable = Unreachable(step, address, why)
    if step == "dns":
        unreachable.hint = "check the host name the broker registered"
    elif step == "tls":
        unreachable.hint = "the listener may not speak TLS: use a URL without +ssl, or another port"
    elif isinstance(error, TimeoutError):
        unreachable.hint = "check routes and firewalls"
    else:
        unreachable.hint = "check that the broker runs and listens there"
    return unreachable


def _os_error_text(error: BaseException) -> str:
    """Return what the operating system says, of one error or of several causes."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(_os_error_text, cause.exceptions)))
    if isinstance(cause, OSError):
        return _os_error_text(cause)
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)  # asyncio describes a refused connect in its own words
    return getattr(error, "strerror", None) or str(error)
