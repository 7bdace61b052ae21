"""Where byte streams come from: `connect` for TCP, `memory_pair` for tests.

A stream is an `anyio.abc.ByteStream`: receive, send, send_eof, aclose. Nothing else opens a socket to a broker.
"""

from __future__ import annotations

import os
import socket

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.lowlevel import checkpoint

from odradek.errors import Unreachable

__all__ = ["connect", "memory_pair"]


async def connect(host: str, port: int, timeout: float) -> ByteStream:
    """Open a TCP connection, without Nagle's delay.

    Cancellation: safe, nothing stays open.

    Args:
        timeout: Seconds for look-up and connect together (s).

    Raises:
        Unreachable: With the step it failed at, `dns` or `tcp`.
    """
    address, step = f"{host}:{port}", "dns"
    if not 0 < port < 1 << 16:  # anyio lets each loop's own surprise through
        raise Unreachable("tcp", address, "no such port")
    try:
        with anyio.fail_after(timeout):
            # connect_tcp looks names up as well; asking first is what tells a slow resolver from a slow host.
            await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            step = "tcp"
            stream = await anyio.connect_tcp(host, port)
    except TimeoutError as error:
        raise _unreachable(step, address, error, f"no answer within {timeout:g} s") from error
    except (OSError, UnicodeError) as error:  # the latter: what cannot be a host name
        raise _unreachable(step, address, error, _words(error)) from error
    stream.extra(SocketAttribute.raw_socket).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


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
    """The operating system's own words; anyio wraps one or many of them."""
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
