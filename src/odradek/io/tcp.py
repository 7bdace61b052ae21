"""Opens transports: `connect` for TCP and TLS. Nothing else opens a socket to a broker."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import anyio

from odradek.errors import Unreachable
from odradek.io.retry import staggered
from odradek.io.tls import tls_error
from odradek.io.transport import AsyncioTransport, StreamTransport, Transport, TrioTransport, on_asyncio
from odradek.wire.proxy import ProxyError

if TYPE_CHECKING:
    from odradek.io.proxy import Proxy

__all__ = ["connect"]

NEXT_ADDRESS_S = 0.25
"""Time (s) after which the next address of a host is tried as well: "happy eyeballs", RFC 8305 section 5."""


async def connect(
    host: str,
    port: int,
    timeout: float,
    tls: ssl.SSLContext | None = None,
    proxy: Proxy | None = None,
    failures: int = 0,
) -> Transport:
    """Open a TCP connection, without Nagle's delay, through a proxy if there is one, with TLS if there is a context.

    Cancellation: safe, nothing stays open.

    Args:
        timeout: For look-up, connect, proxy and the TLS handshake together (s).
        tls: The host must be a name of the peer's certificate if it checks that.
        proxy: It looks up the name of the host.
        failures: Connections to this host that were of no use, in a row: another one of its addresses comes first.

    Raises:
        Unreachable: With the step that failed, `dns`, `tcp`, `tls` or `proxy`.
    """
    address, step = f"{host}:{port}", "dns"
    opening = None if tls is None and proxy is None else _Opening(host, port, tls, proxy)
    first, through = (host, port), None
    if not 0 < port < 1 << 16:  # each event loop fails in its own way for it
        raise Unreachable("tcp", address, "no such port")
    try:
        with anyio.fail_after(timeout):
            if proxy is not None:
                proxy.exchange(host, port)  # raises UnicodeError
                first, through = (proxy.host, proxy.port), proxy
            addresses = await _addresses_of(*first)
            step = "tcp"
            hosts = _interleave_families([str(end[0]) for *_, end in addresses])
            begin = failures % len(hosts)
            return await _connect_any(hosts[begin:] + hosts[:begin], first[1], opening)
    except TimeoutError as error:
        step = (opening and opening.step) or step
        raise _unreachable(step, address, error, f"no answer within {timeout:g} s", through) from error
    except (OSError, UnicodeError) as error:  # the latter: what cannot be a host name
        failure = None if opening is None else opening.failure
        if isinstance(failure, ProxyError):
            raise _refused(address, failure, proxy) from error
        if failure is not None:
            raise tls_error(address, failure) from error
        raise _unreachable(step, address, error, _os_error_text(error), through) from error


async def _addresses_of(host: str, port: int) -> Sequence[tuple[object, object, int, str, tuple[object, ...]]]:
    try:
        return await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except RuntimeError:  # once the main thread has ended, asyncio has no threads for it in the other ones
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _interleave_families(hosts: Sequence[str]) -> list[str]:
    """Return IPv6 and IPv4 addresses alternately, beginning with the first (RFC 8305 section 4), each once."""
    first: list[str] = []
    second: list[str] = []
    for host in dict.fromkeys(hosts):
        (first if (":" in host) == (":" in hosts[0]) else second).append(host)
    return [host for pair in zip_longest(first, second) for host in pair if host is not None]


async def _connect_any(hosts: Sequence[str], port: int, opening: _Opening | None) -> Transport:
    """Try the addresses one after the other, without waiting long for any, until one answers."""
    transports: list[Transport] = []
    errors: list[Exception] = []

    async def attempt(host: str) -> bool:
        try:
            transports.append(await _open(host, port, opening))
        except (OSError, ProxyError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            errors.append(error)
            return False
        return True

    try:
        await staggered(hosts, attempt, NEXT_ADDRESS_S)
        if not transports:
            raise OSError("no address answered") from ExceptionGroup("", errors)
        return transports.pop(0)
    finally:  # those that connected too late; all of them when cancelled
        for transport in transports:
            await transport.aclose()


async def _open(host: str, port: int, opening: _Opening | None) -> Transport:
    if opening is not None:
        return await opening.open(host, port)
    if on_asyncio():
        _, transport = await asyncio.get_running_loop().create_connection(AsyncioTransport, host, port)
        return transport
    return TrioTransport(await anyio.connect_tcp(host, port))  # both turn Nagle off


class _Opening:
    """What follows TCP in one call of `connect`: the way through a proxy, and TLS.

    Args:
        host, port: The peer; the name is what its certificate must have, if the context checks it.
        tls: As in `connect`.
        proxy: As in `connect`.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, proxy: Proxy | None) -> None:
        self._host, self._port, self._tls, self._proxy = host, port, tls, proxy
        self._name = None if tls is None else host.rstrip(".")
        self.step = ""
        """The step that is under way or has failed, `proxy` or `tls`; empty until TCP works."""
        self.failure: Exception | None = None

    async def open(self, host: str, port: int) -> Transport:
        """Open a connection to one address. Raises OSError for TCP, and what later steps raise, which is the
        `failure`."""
        opening = self._open_asyncio if on_asyncio() else self._open_trio
        return await opening(host, port)

    async def _open_asyncio(self, host: str, port: int) -> Transport:
        loop, family = asyncio.get_running_loop(), socket.AF_INET6 if ":" in host else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # the number has Nagle turned off
        transport = AsyncioTransport()
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, (host, port))
            await self._pass_proxy(partial(loop.sock_sendall, connection), partial(loop.sock_recv, connection))
            with self._at("tls"):
                await loop.create_connection(
                    lambda: transport, sock=connection, ssl=self._tls, server_hostname=self._name
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
            await self._pass_proxy(stream.send, stream.receive)
            if self._tls is None:
                return TrioTransport(stream)
            from anyio.streams.tls import TLSStream

            with self._at("tls"):
                wrapped = await TLSStream.wrap(
                    stream, hostname=self._name, ssl_context=self._tls, standard_compatible=False
                )
            return StreamTransport(wrapped)
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise

    async def _pass_proxy(
        self, send: Callable[[Any], Awaitable[None]], receive: Callable[[int], Awaitable[bytes]]
    ) -> None:
        if self._proxy is not None:
            with self._at("proxy"):
                await self._proxy.pass_through(self._host, self._port, send, receive)

    @contextmanager
    def _at(self, step: str) -> Iterator[None]:
        self.step = step
        try:
            yield
        except Exception as error:
            self.failure = error
            raise


def _refused(address: str, failure: ProxyError, proxy: Proxy | None) -> Unreachable:
    """Return the error for what a proxy answered."""
    unreachable = Unreachable(failure.step, address, f"the proxy {proxy}: {failure.why}")
    unreachable.retriable = failure.retriable
    unreachable.hint = (
        "check that the broker can be reached from the proxy"
        if failure.step == "tcp"
        else "check the option proxy, and what the proxy allows"
    )
    return unreachable


def _unreachable(step: str, address: str, error: Exception, why: str, proxy: Proxy | None) -> Unreachable:
    if proxy is not None and step != "tls":
        unreachable = Unreachable("proxy", address, f"{proxy}: {why if step == 'proxy' else f'{step}: {why}'}")
        unreachable.hint = "check the option proxy"
        return unreachable
    unreachable = Unreachable(step, address, why)
    if step == "dns":
        unreachable.hint = "check the name in the URL; in 0.7 a broker may have registered it in ZooKeeper"
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
