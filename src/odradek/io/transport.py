"""Links: the bytes of one connection, driven by callbacks, alike on every event loop.

A link is run by one task and calls its *user* for everything: what was received, what goes out next, the end. No call
is ever made in the middle of another one, except that a user may `write` or `abort` from wherever it is.

Backpressure is exact in both directions. What was received is in one buffer until the user has taken it, and nothing
more is read meanwhile. What the system does not take at once is at most one burst; the rest stays with the user.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Protocol, cast

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from odradek.engine import Buffer
from odradek.io.requests import joined

__all__ = ["AsyncioTransport", "StreamTransport", "Transport", "TransportHandler", "TrioTransport", "on_asyncio"]

try:
    from sniffio import current_async_library_cvar as _loop_name
except ImportError:  # then anyio asks asyncio
    _loop_name = ContextVar("_loop_name")

READ_BYTES = 1 << 20
"""Most bytes taken in one read."""

CLOSE_S = 1.0
"""What closing may take (s). It takes no round trip; the bound is for streams that misbehave."""

ENDED = "closed by the peer"
BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class TransportHandler(Protocol):
    """Whom a link serves. Nothing here may raise; nothing is called any more after `lost` or an `abort`."""

    def received(self, data: memoryview) -> None:
        """Take all of this: it is valid during the call only."""
        ...

    def next_burst(self) -> list[Buffer]:
        """What goes out next, in order; empty when there is nothing to write. Not to be changed until `written`."""
        ...

    def written(self) -> None:
        """The system has taken all of the last burst."""
        ...

    def lost(self, why: str) -> None:
        """The link is of no use any more."""
        ...


class Transport(Protocol):
    """One open connection."""

    async def run(self, user: TransportHandler) -> None:
        """Carry bytes until the link is lost or aborted, and close it. Runs once; cancellation: closes it too."""
        ...

    def write(self) -> None:
        """Ask the user for a burst, now where the loop allows it, unless one is under way."""
        ...

    def write_soon(self) -> None:
        """The same, once the present turn of the loop is over: so that many exchanges make one burst."""
        ...

    def abort(self) -> None:
        """End it now, without any more calls. What was not taken by the system is dropped."""
        ...

    async def aclose(self) -> None:
        """Abort, and wait until it is closed; shielded and bounded. `run` does it at its end."""
        ...


class AsyncioTransport(asyncio.BufferedProtocol):
    """A link on asyncio and uvloop: the system writes into one buffer, which is used again and again."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gone = anyio.Event()
        self._buffer = _receive_buffer()
        self._user: TransportHandler | None = None  # while it runs
        self._pieces: Iterator[Buffer] = iter(())  # of the burst under way, not yet handed to the transport
        self._early = 0  # bytes that came before it ran
        self._full = self._busy = self._woken = False
        self._why = ""

    async def run(self, user: TransportHandler) -> None:
        self._user = user
        try:
            if not self._transport.is_closing():  # lost already: asyncio says so in the next turn
                self._transport.resume_reading()
                self.write()
            if self._early:
                self.buffer_updated(0)
            await self._gone.wait()
            self._lose(self._why)  # if that was before it ran
        finally:
            await self.aclose()

    def write(self) -> None:
        if self._user is None or self._busy or self._transport.is_closing():
            return
        if burst := self._user.next_burst():
            self._busy, self._pieces = True, joined(burst) if len(burst) > 1 else iter(burst)
            self._hand_over()

    def write_soon(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._wake)

    def abort(self) -> None:
        self._user = None
        self._transport.abort()

    async def aclose(self) -> None:
        self.abort()
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self._gone.wait()

    def _wake(self) -> None:
        _outside_of_tasks()
        self._woken = False
        self.write()

    def _hand_over(self) -> None:
        for piece in self._pieces:
            self._transport.write(piece)
            if self._full or self._transport.is_closing():
                return
        self._busy = False
        if self._user is not None:
            self._user.written()

    def _go_on(self) -> None:
        _outside_of_tasks()
        if self._busy and not self._full and not self._transport.is_closing():
            self._hand_over()

    # ---- what asyncio calls ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(0)  # full as soon as the system does not take everything
        self._transport.pause_reading()  # nobody takes anything before it runs

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._early :] if self._early else self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        _outside_of_tasks()
        size, self._early = self._early + nbytes, 0
        if self._user is not None:
            self._user.received(self._buffer[:size])
        elif not self._transport.is_closing():  # uvloop reads once although it is paused
            self._early = size
            self._transport.pause_reading()

    def eof_received(self) -> None:
        _outside_of_tasks()
        self._lose(ENDED)

    def connection_lost(self, exc: Exception | None) -> None:
        _outside_of_tasks()
        if exc is not None:
            self._read_the_rest()
        self._why = str(exc or ENDED)
        self._lose(self._why)
        self._gone.set()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        # Not now: asyncio calls this in the middle of a write, and loses its count when a transport is closed there.
        self._full = False
        self._loop.call_soon(self._go_on)

    def _read_the_rest(self) -> None:
        """Replies may have arrived before writing broke. asyncio reads no more then, but its socket is still open."""
        number = self._transport.get_extra_info("socket").fileno()
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as rest:
            while self._user is not None and (size := rest.recv_into(self._buffer)):
                self._user.received(self._buffer[:size])

    def _lose(self, why: str) -> None:
        user, self._user = self._user, None
        if user is not None:
            user.lost(why)


class StreamTransport:
    """A link over any byte stream of anyio: for what has no socket of its own.

    Args:
        stream: Closed by the link.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._work = anyio.Event()
        self._scope = anyio.CancelScope()
        self._user: TransportHandler | None = None  # while it runs
        self._broken = ""  # why it takes nothing more to send

    async def run(self, user: TransportHandler) -> None:
        self._user = user
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    self.write()
                    group.start_soon(self._send)
                    why = await self._receive()
                    if self._user is not None:
                        self.abort()
                        user.lost(why)
        finally:
            await self.aclose()

    def write(self) -> None:
        self._work.set()

    def write_soon(self) -> None:
        self._work.set()

    def abort(self) -> None:
        self._user = None
        self._scope.cancel()

    async def aclose(self) -> None:
        self.abort()
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self._stream.aclose()

    async def _send(self) -> None:
        try:
            while self._user is not None:
                if burst := self._user.next_burst():
                    for piece in joined(burst):
                        await self._stream.send(cast(bytes, piece))
                    if self._user is not None:
                        self._user.written()
                else:
                    await self._work.wait()
                    self._work = anyio.Event()
        except BROKEN as error:  # replies may have arrived before the break: they are read first
            self._broken = _words(error)

    async def _receive(self) -> str:
        """Hand over what is received, and give why it ended."""
        try:
            while True:
                data = await self._receive_some()
                if self._user is None or not data:
                    return self._broken or ENDED
                self._user.received(data)
        except anyio.EndOfStream:
            return self._broken or ENDED
        except BROKEN as error:
            return _words(error)

    async def _receive_some(self) -> memoryview:
        return memoryview(await self._stream.receive(READ_BYTES))


class TrioTransport(StreamTransport):
    """A link on trio: what needs no waiting is done without its tasks, and one buffer is read into.

    Args:
        stream: Closed by the link.
    """

    def __init__(self, stream: SocketStream) -> None:
        super().__init__(stream)
        self._socket = stream.extra(SocketAttribute.raw_socket)
        self._buffer = _receive_buffer()
        self._rest: deque[Buffer] = deque()  # of the burst under way: what the socket did not take yet

    def write(self) -> None:
        if self._user is None or self._rest:
            return
        if burst := self._user.next_burst():
            self._rest.extend(joined(burst))
            self._hand_over()
            if self._rest:
                self._work.set()

    def _hand_over(self) -> None:
        """Send what the socket takes now."""
        try:
            while self._rest:
                sent = self._socket.send(self._rest[0])
                self._rest[0] = memoryview(self._rest[0])[sent:]
                if not self._rest[0]:
                    self._rest.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            self._broken = _words(error)
            return
        if self._user is not None:
            self._user.written()

    async def _send(self) -> None:
        while not self._broken:
            if self._rest:
                await anyio.wait_writable(self._socket)
                self._hand_over()
            else:
                await self._work.wait()
                self._work = anyio.Event()
                self.write()

    async def _receive_some(self) -> memoryview:
        while True:
            await anyio.wait_readable(self._socket)  # first, so that a flood leaves room for others
            with suppress(BlockingIOError):
                return self._buffer[: self._socket.recv_into(self._buffer)]


def on_asyncio() -> bool:
    """This is a task of asyncio (trio may be a guest of its loop, but trio's tasks are not asyncio's)."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


def _outside_of_tasks() -> None:
    """asyncio calls us in no task, and whom we call may start one: anyio then asks sniffio which loop this is, and that
    knows it from a task or from this variable, which whoever began with plain `asyncio.run` has not set."""
    _loop_name.set("asyncio")


def _receive_buffer() -> memoryview:
    """Pages of an anonymous map exist once they are written to: who only gets small answers takes up one."""
    return memoryview(mmap.mmap(-1, READ_BYTES))


def _words(error: BaseException) -> str:
    return str(error.__cause__ or error) or "broken"
