"""Where links come from: `connect` for TCP; `memory_pair`, two byte streams without a socket, for tests.

Nothing else opens a socket to a broker.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from itertools import zip_longest

import anyio
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint

from odradek.errors import Unreachable
from odradek.io.transport import AsyncioTransport, Transport, TrioTransport, on_asyncio

__all__ = ["connect", "memory_pair"]

NEXT_ADDRESS_S = 0.25
"""A host's next address is tried once the one before it took this long (s): "happy eyeballs", RFC 8305 section 5."""


async def connect(host: str, port: int, timeout: float) -> Transport:
    """Open a TCP connection, without Nagle's delay.

    Cancellation: safe, nothing stays open.

    Args:
        timeout: Seconds for look-up and connect together (s).

    Raises:
        Unreachable: With the step it failed at, `dns` or `tcp`.
    """
    address, step = f"{host}:{port}", "dns"
    if not 0 < port < 1 << 16:  # each loop has a surprise of its own for it
        raise Unreachable("tcp", address, "no such port")
    try:
        with anyio.fail_after(timeout):
            found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            step = "tcp"
            return await _connect_any(_in_turns([str(end[0]) for *_, end in found]), port)
    except TimeoutError as error:
        raise _unreachable(step, address, error, f"no answer within {timeout:g} s") from error
    except (OSError, UnicodeError) as error:  # the latter: what cannot be a host name
        raise _unreachable(step, address, error, _words(error)) from error


def _in_turns(hosts: Sequence[str]) -> list[str]:
    """IPv6 and IPv4 addresses in turns, beginning with the first (RFC 8305 section 4), each once."""
    first: list[str] = []
    second: list[str] = []
    for host in dict.fromkeys(hosts):
        (first if (":" in host) == (":" in hosts[0]) else second).append(host)
    return [host for pair in zip_longest(first, second) for host in pair if host is not None]


async def _connect_any(hosts: Sequence[str], port: int) -> Transport:
    """Try them one after the other without waiting long for any, until one answers."""
    links: list[Transport] = []
    errors: list[OSError] = []

    async def attempt(host: str, over: anyio.Event) -> None:
        try:
            links.append(await _open(host, port))
            group.cancel_scope.cancel()
        except OSError as error:
            errors.append(error)
        finally:
            over.set()

    try:
        async with anyio.create_task_group() as group:
            for host in hosts:
                over = anyio.Event()
                group.start_soon(attempt, host, over)
                with anyio.move_on_after(NEXT_ADDRESS_S):
                    await over.wait()
        if not links:
            raise OSError("no address answered") from ExceptionGroup("", errors)
        return links.pop(0)
    finally:  # those that were too late; or all, when cancelled
        for link in links:
            await link.aclose()


async def _open(host: str, port: int) -> Transport:
    if on_asyncio():
        _, link = await asyncio.get_running_loop().create_connection(AsyncioTransport, host, port)
        return link
    return TrioTransport(await anyio.connect_tcp(host, port))  # both turn Nagle off


def _unreachable(step: str, address: str, error: Exception, why: str) -> Unreachable:
    unreachable = Unreachable(step, address, why)
    if step == "dns":
        unreachable.hint = "check the host name the broker registered"
    elif isinstance(error, TimeoutError):
        unreachable.hint = "check routes and firewalls"
    else:
        unreachable.hint = "check that the broker runs and listens there"
    return unreachable


def _words(error: BaseException) -> str:
    """The operating system's own words, of one error or of many behind it."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(_words, cause.exceptions)))
    if isinstance(cause, OSError):
        return _words(cause)
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)  # asyncio has words of its own for a refused connect
    return getattr(error, "strerror", None) or str(error)


class _Pipe:
    """One direction of a memory pair: at most `capacity` bytes between sender and receiver."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.data = bytearray()
        self.ended = False
        """The sender will send no more."""
        self.refused = False
        """The receiver will take no more."""
        self._changed = anyio.Event()

    def notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def change(self) -> None:
        await self._changed.wait()


class _MemoryStream(ByteStream):
    """One end of a memory pair."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await checkpoint()
        pipe = self._incoming
        while not self._closed and not pipe.data and not pipe.ended:
            await pipe.change()
        if self._closed:
            raise anyio.ClosedResourceError
        if not pipe.data:
            raise anyio.EndOfStream
        data = bytes(pipe.data[:max_bytes])
        del pipe.data[:max_bytes]
        pipe.notify()
        return data

    async def send(self, item: bytes) -> None:
        await checkpoint()
        pipe, rest = self._outgoing, memoryview(item)
        while rest:
            if self._closed:
                raise anyio.ClosedResourceError
            if pipe.refused:
                raise anyio.BrokenResourceError
            room = pipe.capacity - len(pipe.data)
            if room <= 0:
                await pipe.change()
                continue
            pipe.data += rest[:room]
            rest = rest[room:]
            pipe.notify()

    async def send_eof(self) -> None:
        self._outgoing.ended = True
        self._outgoing.notify()

    async def aclose(self) -> None:
        self._closed = True
        self._outgoing.ended = self._incoming.refused = True
        self._outgoing.notify()
        self._incoming.notify()
        await checkpoint()


def memory_pair(capacity: int = 65536) -> tuple[ByteStream, ByteStream]:
    """Two connected streams without a socket: what one sends, the other receives.

    Args:
        capacity: Bytes each direction holds before `send` waits.
    """
    there, back = _Pipe(capacity), _Pipe(capacity)
    return _MemoryStream(back, there), _MemoryStream(there, back)
