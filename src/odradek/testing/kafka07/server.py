"""The sockets of a broker: frames in, pieces out (specification.md 1.1).

One connection is strictly serial, as the real one: a request is not looked at before the answer to the one before
it went to the socket. Many requests in one read are served in one go, and their small answers leave in one write.
Nothing grows with a slow reader: while the socket does not take more, no request is served and nothing is read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, cast

from odradek.engine import Buffer
from odradek.errors import ConfigError, RemoteProtocolError
from odradek.testing.kafka07.config import BrokerConfig
from odradek.testing.kafka07.errors import BrokerHalted, RequestRefused
from odradek.testing.kafka07.log import Slice
from odradek.testing.kafka07.requests import AnswerPart, Handler
from odradek.wire.kafka07.requests import decode_request

__all__ = ["Server", "Traffic"]

log = logging.getLogger(__name__)

READ_BYTES = 256 << 10
"""First size of a receive buffer, which grows to the size of the frame as its bytes arrive."""

KEPT_BYTES = 4 << 20
"""A buffer that grew beyond this is given back after its frame."""

FILE_READ_BYTES = 64 << 10
"""Bytes read of a file at a time; the rest of a longer range goes from the file to the socket by sendfile."""

_SIZE = struct.Struct(">i")


class Traffic(NamedTuple):
    """Connections open and ever made, those the broker closed on a bad request, bytes in and out."""

    connections: int
    connections_total: int
    refused: int
    bytes_in: int
    bytes_out: int


class Server:
    """Connections of one broker, on the running asyncio loop.

    Args:
        handler: Serves the requests.
        on_halt: Called once an append failed: the broker must die.
    """

    def __init__(self, config: BrokerConfig, handler: Handler, on_halt: Callable[[BrokerHalted], None]) -> None:
        self.config, self.handler, self.on_halt = config, handler, on_halt
        self.connections: set[ServedConnection] = set()
        self.total = self.refused = self.bytes_in = self.bytes_out = 0
        self.closed = False
        self._idle = asyncio.Event()
        self._socket: socket.socket | None = None
        self._listener: asyncio.Server | None = None

    def bind(self, host: str, port: int) -> int:
        """Take the port, and say which. Nobody can connect yet. Raises ConfigError."""
        self._socket = _bound(host, port)
        number: int = self._socket.getsockname()[1]
        return number

    async def serve(self) -> None:
        """Accept connections on the bound port."""
        assert self._socket is not None, "bind comes first"
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: ServedConnection(self), sock=self._socket, backlog=512)

    async def close(self) -> None:
        """Stop accepting and cut every connection."""
        self.closed = True
        if self._listener is not None:
            self._listener.close()
        elif self._socket is not None:
            self._socket.close()
        for connection in list(self.connections):
            connection.cut()
        await asyncio.sleep(0)  # an accept that was under way ends in connection_made
        if self.connections:
            await self._idle.wait()

    def forget(self, connection: ServedConnection) -> None:
        self.connections.discard(connection)
        if self.closed and not self.connections:
            self._idle.set()

    def traffic(self) -> Traffic:
        return Traffic(len(self.connections), self.total, self.refused, self.bytes_in, self.bytes_out)


class ServedConnection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._start = self._end = 0  # what was received and not yet served
        self._answer: deque[AnswerPart] = deque()  # of the request in hand
        self._ready: list[Buffer] = []  # small answers that leave together
        self._ready_bytes = 0
        self._full = self._ended = self._closing = False

    # ---- what asyncio calls -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(0)  # with bytes waiting there, a file's would overtake them
        self._socket = self._transport.get_extra_info("socket")
        tune(self._socket, self._server.config)
        self._server.connections.add(self)
        self._server.total += 1
        if self._server.closed:
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._server.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._end == len(self._buffer):
            self._grow_buffer()
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._server.bytes_in += nbytes
        self._drain()

    def eof_received(self) -> bool:
        """A half-closed client gets its answers first."""
        self._ended = True
        self._drain()
        return True

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        # Not now: asyncio calls this in the middle of a write, and loses its count when a transport is closed there.
        self._full = False
        asyncio.get_running_loop().call_soon(self._drain)

    # ---- serving ------------------------------------------------------------------------------------------

    def cut(self) -> None:
        self._closing = True
        self._transport.abort()

    def _drain(self) -> None:
        """Serve what was received, as far as the socket takes the answers."""
        try:
            while not (self._full or self._closing) and (self._answer or self._next_request()):
                self._send_answer()
        except (RequestRefused, RemoteProtocolError) as error:
            self._refuse(error)
        except BrokerHalted as error:
            self._server.on_halt(error)
            self.cut()
        self._send_ready()
        if self._full:
            self._transport.pause_reading()
        elif self._ended:
            self._close()
        elif not self._closing:
            self._transport.resume_reading()

    def _next_request(self) -> bool:
        """Take and serve the next frame; False when it is not complete. Raises what closes the connection."""
        start = self._start + 4
        if self._end < start:
            return False
        (size,) = _SIZE.unpack_from(self._buffer, self._start)
        if not 0 < size <= self._server.config.max_request_size:
            raise RequestRefused(f"request of {size} bytes")
        if self._end < start + size:
            return False
        body = self._buffer[start : start + size]  # not copied: nobody keeps it
        self._start = start + size
        self._answer.extend(self._server.handler.handle(decode_request(body)))
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > KEPT_BYTES:
                self._buffer = memoryview(bytearray(READ_BYTES))
        return True

    def _send_answer(self) -> None:
        while self._answer and not (self._full or self._closing):
            part = self._answer.popleft()
            if isinstance(part, Slice):
                self._send_stretch(part)
            else:
                self._put(part)

    def _send_stretch(self, stretch: Slice) -> None:
        """The first bytes of a stretch of a file, together with what is ready, and of the others as many as the socket
        takes now, straight from the file. The rest goes back to where it was."""
        segment, position, length = stretch
        if length < 0 or segment.fd < 0:  # not sendable, or deleted meanwhile: breaks off in the middle
            raise RequestRefused(f"{length} bytes of {segment.path}")
        data = os.pread(segment.fd, min(length, FILE_READ_BYTES), position)
        if length and not data:
            raise RequestRefused(f"{segment.path} is shorter than it was")
        self._put(data)
        sent = len(data)
        if sent < length:
            self._send_ready()
            sent += self._send_file(segment.fd, position + sent, length - sent)
        if sent < length:
            self._answer.appendleft(Slice(segment, position + sent, length - sent))

    def _send_file(self, file: int, position: int, length: int) -> int:
        """Send bytes of a file without copying them, and return their number; 0 if the socket is full or dead, or the
        file is too short: the caller then sends them by copying, where such an error is raised."""
        if self._full or self._closing:
            return 0
        try:
            sent = os.sendfile(self._socket.fileno(), file, position, length)
        except OSError:
            return 0
        self._server.bytes_out += sent
        return sent

    def _put(self, data: Buffer) -> None:
        self._ready.append(data)
        self._ready_bytes += len(data)
        if self._ready_bytes >= FILE_READ_BYTES:
            self._send_ready()

    def _send_ready(self) -> None:
        if self._transport.is_closing():
            self._closing = True
        elif self._ready:
            self._server.bytes_out += self._ready_bytes
            self._transport.write(self._ready[0] if len(self._ready) == 1 else b"".join(self._ready))
        self._ready, self._ready_bytes = [], 0

    def _refuse(self, why: Exception) -> None:
        """Close without a word; answers given before still go out."""
        log.debug("closing %s: %s", self._transport.get_extra_info("peername"), why)
        self._server.refused += 1
        self._answer.clear()
        self._send_ready()
        self._close()

    def _close(self) -> None:
        self._closing = True
        self._transport.close()

    def _grow_buffer(self) -> None:
        """The buffer is full of a frame that is not complete: move it to the front, or take a larger buffer, but not
        larger than what has come of it warrants."""
        kept = self._end - self._start
        if self._start == 0 or kept > len(self._buffer) // 2:
            (size,) = _SIZE.unpack_from(self._buffer, self._start)
            buffer = memoryview(bytearray(min(4 + size, 2 * kept) + READ_BYTES))
        else:
            buffer = self._buffer
        buffer[:kept] = self._buffer[self._start : self._end]
        self._buffer, self._start, self._end = buffer, 0, kept


def tune(connection: socket.socket, config: BrokerConfig) -> None:
    """Turn Nagle's delay off, as the real broker does; set the kernel's buffers where the configuration asks for it.

    asyncio turns the delay off only for sockets made with a protocol number, which those accepted here have not: an
    answer right behind another one then waited 40 ms for the peer's delayed acknowledgement.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if config.socket_send_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.socket_send_buffer)
    if config.socket_receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.socket_receive_buffer)


def _bound(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises ConfigError naming the address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)  # without the protocol, asyncio leaves Nagle's delay on
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from error
    return listening
