"""Transports: the bytes of one connection, driven by callbacks, the same on every event loop.

A transport is run by one task and calls its *handler* for everything: data that was received, data to send, the end. A
call is never made in the middle of another one, except that a handler may call `write` or `abort` at any time.

Backpressure is exact in both directions. Received data is in one buffer until the handler has taken it. The handler may
leave the first part of a response there until it is whole, which then is not copied to be put together. At most one
burst waits for the system to accept it; the rest stays with the handler.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import ssl
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Protocol, cast

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from odradek.engine import Buffer
from odradek.io.notifier import Notifier
from odradek.io.requests import coalesce
from odradek.io.tls import tls_alert
from odradek.wire.decoding import WHOLE_BYTES

__all__ = ["AsyncioTransport", "StreamTransport", "Transport", "TransportHandler", "TrioTransport", "on_asyncio"]

try:
    from sniffio import current_async_library_cvar as _loop_name
except ImportError:  # anyio asks asyncio then
    _loop_name = ContextVar("_loop_name")

_set_sniffio_asyncio = partial(_loop_name.set, "asyncio")
"""Tells sniffio that asyncio runs, in a callback of asyncio.

A callback runs in no task, and what it calls may use anyio, which asks sniffio which loop runs. Sniffio knows from the
current task or from this variable, which is not set in a program that began with plain `asyncio.run`."""

CLOSE_S = 1.0
"""Maximum time of closing (s). It takes no round trip; the bound is for streams that misbehave."""

KEEP_ALIVE_S = {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 10}
"""After how long the system probes an unused connection, and again without an answer (s): tcp(7), and macOS's name."""

ENDED = "closed by the peer"
BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)

MAX_UNSEEN_BYTES = 256 << 10
"""Maximum number of bytes of a response that wait in the kernel until the event loop learns of them."""


class TransportHandler(Protocol):
    """The user of a transport. No method may raise; none is called after `connection_lost` or an `abort`."""

    missing_bytes: int
    """Bytes that have not arrived of the response whose first part was left by the last call of `data_received`, 0 if
    none was left. The next call may come when all of them are there."""

    def data_received(self, data: memoryview, may_leave: bool) -> int:
        """Take bytes of `data`, which is valid during the call only, and return how many.

        Args:
            data: Those that were left by the last call, and those that have arrived behind them.
            may_leave: Those of a response that is not whole, and of at most WHOLE_BYTES when it is, may be left.
        """
        ...

    def data_to_send(self) -> list[Buffer]:
        """Return the next burst, in order; empty when there is nothing to write. Unchanged until `data_sent`."""
        ...

    def data_sent(self) -> None:
        """Learn that the system has accepted all of the last burst."""
        ...

    def connection_lost(self, why: str, alert: ssl.SSLError | None = None) -> None:
        """Learn that the transport is of no use any more.

        Args:
            why: The reason.
            alert: The error of TLS, if the peer ended the connection with an alert.
        """
        ...


class Transport(Protocol):
    """One open connection."""

    async def run(self, handler: TransportHandler) -> None:
        """Carry bytes until the connection is lost or aborted, then close it. Runs once; cancellation closes it too."""
        ...

    def write(self) -> None:
        """Ask the handler for a burst, now if the loop allows it, unless one is being written."""
        ...

    def write_soon(self) -> None:
        """Do the same at the end of this iteration of the loop, so that many requests make one burst."""
        ...

    def read_unseen(self) -> None:
        """Pass on bytes that have arrived and of which the event loop was not told yet (see ReceiveBuffer)."""
        ...

    def unsent_bytes(self) -> int | None:
        """Return how many bytes of bursts the peer's system has not acknowledged; None if that is not known."""
        ...

    def abort(self) -> None:
        """End now, without any more calls. Bytes that the system has not accepted are dropped."""
        ...

    async def aclose(self) -> None:
        """Abort, and wait until all is closed; shielded and bounded. `run` calls it at its end."""
        ...


class ReceiveBuffer:
    """Bytes that were received and not taken yet. The memory is anonymous, whose pages exist once they are written to:
    small responses take only one.

    While a part of a response is left in it, the kernel tells of more only when all that is missing has arrived, or as
    much as `MAX_UNSEEN_BYTES` (SO_RCVLOWAT, socket(7)): a large response takes fewer calls, and Linux acknowledges its
    segments at once, for which a broker whose send buffer is small waits.
    """

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        """The socket whose bytes come here as they are; None with TLS."""
        self._memory = self.free = memoryview(mmap.mmap(-1, WHOLE_BYTES))
        """`free` is where the next bytes are to be written: never empty."""
        self.size = 0
        """Bytes that are in it."""
        self._low_water_mark = 1

    @property
    def has_unseen(self) -> bool:
        """True while bytes may have arrived of which the event loop was not told."""
        return self._low_water_mark > 1

    def keep(self, received: int) -> None:
        """Keep the bytes that were `received` into `free`."""
        self.size += received
        self.free = self._memory[self.size :]

    def pass_on(self, handler: TransportHandler, received: int, *, may_leave: bool = True) -> None:
        """Pass on the bytes that are in it, and those that were `received` into `free`."""
        size = self.size + received
        taken = handler.data_received(self._memory[:size], may_leave)
        left = size - taken
        if left and taken:
            self._memory[:left] = self._memory[taken:size]
        if left or self.size:
            self.size, self.free = left, self._memory[left:]
        if may_leave and (left or self._low_water_mark > 1):
            self._set_low_water_mark(min(handler.missing_bytes, MAX_UNSEEN_BYTES))

    def _set_low_water_mark(self, mark: int) -> None:
        if self.socket is None or mark == self._low_water_mark:
            return
        try:
            # Of a buffer that is full before, Linux does not tell until 4.18, and 10 ms later since then.
            most = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 4
            self._low_water_mark = max(1, min(mark, most))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, self._low_water_mark)
        except OSError:  # no such option, or a connection that has ended
            self.socket = None


class AsyncioTransport(asyncio.BufferedProtocol):
    """A transport on asyncio and uvloop: the system writes into one buffer, which is reused."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._closed = anyio.Event()
        self._received = ReceiveBuffer()
        self._handler: TransportHandler | None = None  # during `run`
        self._unwritten: Iterator[Buffer] = iter(())  # of the current burst, not yet passed to asyncio
        self._paused = self._writing = self._write_scheduled = False
        self._why = ""
        self._alert: ssl.SSLError | None = None

    @property
    def is_connected(self) -> bool:
        """True once there is a connection, also after it was lost."""
        return hasattr(self, "_transport")

    async def run(self, handler: TransportHandler) -> None:
        self._handler = handler
        try:
            if not self._transport.is_closing():  # else asyncio reports the loss in its next iteration
                self._transport.resume_reading()
                self.write()
            if self._received.size:  # before `run`
                self.buffer_updated(0)
            await self._closed.wait()
            self._lose(self._why)  # if that happened before `run`
        finally:
            await self.aclose()

    def write(self) -> None:
        if self._handler is None or self._paused or self._transport.is_closing():
            return
        if not self._writing:
            burst = self._handler.data_to_send()
            if not burst:
                return
            self._writing, self._unwritten = True, coalesce(burst) if len(burst) > 1 else iter(burst)
        for buffer in self._unwritten:
            self._transport.write(buffer)
            if self._paused or self._transport.is_closing():
                return
        self._writing = False
        if self._handler is not None:
            self._handler.data_sent()

    def write_soon(self) -> None:
        if not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self._write_later)

    def read_unseen(self) -> None:
        if self._received.has_unseen:
            self._read_the_rest()

    def unsent_bytes(self) -> int | None:
        return _unsent_bytes(self._transport.get_extra_info("socket"), self._transport.get_write_buffer_size())

    def abort(self) -> None:
        self._handler = None
        self._transport.abort()

    async def aclose(self) -> None:
        self.abort()
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self._closed.wait()

    def _write_later(self) -> None:
        _set_sniffio_asyncio()
        self._write_scheduled = False
        self.write()

    # ---- what asyncio calls ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Paused as soon as the system does not accept everything. With TLS, asyncio pauses at the limit, not above it:
        # a limit of 0 would pause an empty buffer, and nothing would resume it.
        secured = self._transport.get_extra_info("ssl_object") is not None
        self._transport.set_write_buffer_limits(1 if secured else 0, 0)
        connected = self._transport.get_extra_info("socket")
        _keep_alive(connected)
        if not secured:
            self._received.socket = connected
        self._transport.pause_reading()  # nothing is accepted before `run`

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received.free

    def buffer_updated(self, nbytes: int) -> None:
        _set_sniffio_asyncio()
        if self._handler is not None:
            self._received.pass_on(self._handler, nbytes)
        elif not self._transport.is_closing():
            # uvloop reads once although reading is paused; asyncio of 3.11.2 reads on until it is paused again.
            self._received.keep(nbytes)
            self._transport.resume_reading()
            self._transport.pause_reading()

    def eof_received(self) -> None:
        _set_sniffio_asyncio()
        self._lose(ENDED)

    def connection_lost(self, exc: Exception | None) -> None:
        _set_sniffio_asyncio()
        if exc is not None and self._transport.get_extra_info("ssl_object") is None:
            self._read_the_rest()
        self._why, self._alert = str(exc or ENDED), tls_alert(exc)
        self._lose(self._why)
        self._closed.set()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        # Not now: asyncio calls this in the middle of a write, and its accounting breaks if that closes the transport.
        self._paused = False
        self._loop.call_soon(self._write_later)

    def _read_the_rest(self) -> None:
        """Read what has arrived and asyncio has not read: since writing failed, though its socket is still open, or
        since the kernel has not told of it."""
        number = self._transport.get_extra_info("socket").fileno()
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as rest:
            rest.setblocking(False)  # whatever socket.setdefaulttimeout says
            while self._handler is not None and (size := rest.recv_into(self._received.free)):
                self._received.pass_on(self._handler, size)

    def _lose(self, why: str) -> None:
        if self._handler is not None and self._received.size:
            self._received.pass_on(self._handler, 0, may_leave=False)
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.connection_lost(why, self._alert)


class StreamTransport:
    """A transport over any byte stream of anyio: for streams without a socket of their own.

    Args:
        stream: Closed by the transport.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._work = Notifier()
        self._scope = anyio.CancelScope()
        self._handler: TransportHandler | None = None  # during `run`
        self._broken = ""  # why nothing more can be sent
        self._alert: ssl.SSLError | None = None
        if (connected := stream.extra(SocketAttribute.raw_socket, None)) is not None:
            _keep_alive(connected)

    async def run(self, handler: TransportHandler) -> None:
        self._handler = handler
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    self.write()
                    group.start_soon(self._send)
                    why = await self._receive()
                    if self._handler is not None:
                        self.abort()
                        handler.connection_lost(why, self._alert)
        finally:
            await self.aclose()

    def write(self) -> None:
        self._work.notify()

    def write_soon(self) -> None:
        self._work.notify()

    def read_unseen(self) -> None:
        pass

    def unsent_bytes(self) -> int | None:
        return None

    def abort(self) -> None:
        self._handler = None
        self._scope.cancel()

    async def aclose(self) -> None:
        self.abort()
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self._stream.aclose()

    async def _send(self) -> None:
        try:
            while self._handler is not None:
                version = self._work.version
                if burst := self._handler.data_to_send():
                    for buffer in coalesce(burst):
                        await self._stream.send(cast(bytes, buffer))
                    if self._handler is not None:
                        self._handler.data_sent()
                else:
                    await self._work.wait(version)
        except BROKEN as error:  # responses may have arrived before: they are read first
            self._broken = _os_error_text(error)

    async def _receive(self) -> str:
        """Pass on what is received, and return why it ended."""
        try:
            while await self._receive_some():
                pass
            return self._broken or ENDED
        except anyio.EndOfStream:
            return self._broken or ENDED
        except BROKEN as error:
            self._alert = tls_alert(error)
            return _os_error_text(error)

    async def _receive_some(self) -> bool:
        """Receive the next bytes, and pass them on. Return False at the end."""
        data = memoryview(await self._stream.receive(WHOLE_BYTES))
        if self._handler is None or not data:
            return False
        self._handler.data_received(data, False)
        return True


class TrioTransport(StreamTransport):
    """A transport on trio: writes without a task switch when the socket accepts the data, and reads into one buffer.

    Args:
        stream: Closed by the transport.
    """

    def __init__(self, stream: SocketStream) -> None:
        super().__init__(stream)
        self._socket = stream.extra(SocketAttribute.raw_socket)
        self._received = ReceiveBuffer()
        self._received.socket = self._socket
        self._rest: deque[Buffer] = deque()  # of the current burst: what the socket has not accepted yet

    def write(self) -> None:
        if self._handler is None or self._rest:
            return
        if burst := self._handler.data_to_send():
            self._rest.extend(coalesce(burst))
            self._write_pending()
            if self._rest:
                self._work.notify()

    def read_unseen(self) -> None:
        with suppress(OSError):
            while self._handler is not None and self._received.has_unseen and self._receive_now():
                pass

    def unsent_bytes(self) -> int | None:
        return _unsent_bytes(self._socket, sum(map(len, self._rest)))

    def _write_pending(self) -> None:
        """Send what the socket accepts now."""
        try:
            while self._rest:
                sent = self._socket.send(self._rest[0])
                self._rest[0] = memoryview(self._rest[0])[sent:]
                if not self._rest[0]:
                    self._rest.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            self._broken = _os_error_text(error)
            return
        if self._handler is not None:
            self._handler.data_sent()

    async def _send(self) -> None:
        seen = 0  # not the present version: a request may have been announced before this task began
        while not self._broken:
            if self._rest:
                await anyio.wait_writable(self._socket)
                self._write_pending()
            else:
                await self._work.wait(seen)
                seen = self._work.version
                self.write()

    async def _receive(self) -> str:
        why = await super()._receive()
        if self._handler is not None and self._received.size:
            self._received.pass_on(self._handler, 0, may_leave=False)
        return why

    async def _receive_some(self) -> bool:
        await anyio.wait_readable(self._socket)  # first, so that other tasks run during a flood
        try:
            return self._receive_now()
        except BlockingIOError:
            return True

    def _receive_now(self) -> bool:
        """Pass on what has arrived. Return False at the end. Raises BlockingIOError if nothing has."""
        size = self._socket.recv_into(self._received.free)
        if self._handler is None or not size:
            return False
        self._received.pass_on(self._handler, size)
        return True


def _keep_alive(connected: socket.socket) -> None:
    """Have the system probe an unused connection: it does not become unused for a load balancer, some of which forget
    connections after 4 minutes without a word, and the end of a peer that has vanished is noticed."""
    with suppress(OSError):  # a connection that has ended
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in KEEP_ALIVE_S.items():
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)


def _unsent_bytes(connected: socket.socket, waiting: int) -> int | None:
    """Return how many bytes wait to be written to a socket, and those that the kernel keeps until the peer's has
    acknowledged them (SIOCOUTQ, tcp(7)); None where it does not say."""
    try:
        from fcntl import ioctl
        from termios import TIOCOUTQ

        return waiting + int.from_bytes(ioctl(connected.fileno(), TIOCOUTQ, bytes(4)), sys.byteorder)
    except (ImportError, OSError, ValueError):  # another system, or a socket that is closed
        return None


def on_asyncio() -> bool:
    """Return True in a task of asyncio. Trio may run as a guest of its loop, but trio's tasks are not asyncio's."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


def _os_error_text(error: BaseException) -> str:
    return str(error.__cause__ or error) or "broken"
