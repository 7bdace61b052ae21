"""A TCP proxy that misbehaves on command."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from odradek import arguments
from odradek.errors import Closed
from odradek.testing.process import LOOPBACK, reserve_port

__all__ = ["Direction", "FaultProxy", "ProxyStatistics"]

Direction = Literal["client", "server"]
"""The sender of bytes: `client` bytes travel from the client to the target, `server` bytes come back."""

CHUNK_BYTES = 65536
QUEUED_CHUNKS = 64
"""Chunks that a delayed direction holds before it stops reading: 4 MiB."""

THROTTLE_STEPS = 20
"""A throttled direction sends this many pieces a second."""

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, zero seconds: closing sends RST."""


_RULES = {
    "target_host": arguments.text("a host"),
    "target_port": arguments.port(),
    "port": arguments.port(),
}


class ProxyStatistics(NamedTuple):
    """Counts since the proxy was made: connections accepted, those not cut or ended, bytes passed on."""

    connections: int
    open: int
    client_bytes: int
    server_bytes: int


@dataclass(frozen=True)
class _Faults:
    """Faults that apply to all connections; `cut_after` applies to the next one only."""

    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    split: int = 0
    stall: bool = False
    cut_after: Mapping[Direction, int] = field(default_factory=dict)


class FaultProxy:
    """Passes bytes between clients and one TCP server, until told to misbehave.

    For a `with` block in plain, asyncio and trio code alike: it runs in a thread of its own, and each command returns
    once it is in force, for every connection that a client had made by then. `delay`, `throttle` and `split` hold for
    open connections and those to come.

    Args:
        target_host: Host that connections go to.
        target_port: Port that connections go to.
        port: Port on 127.0.0.1 to listen on; 0 takes a free one.
    """

    def __init__(self, target_host: str, target_port: int, *, port: int = 0) -> None:
        arguments.check_all(_RULES, target_host=target_host, target_port=target_port, port=port)
        self.host, self.port = LOOPBACK, port
        self._target = (target_host, target_port)
        self._faults = _Faults()
        self._passed: dict[Direction, int] = {"client": 0, "server": 0}
        self._connections = 0
        self._links: dict[_ProxiedConnection, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: socket.socket | None = None
        self._reserved: socket.socket | None = None  # keeps the port while nothing listens

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address} -> {self._target[0]}:{self._target[1]} {self.statistics()}>"

    @property
    def address(self) -> str:
        """`host:port` for clients, the same as long as the proxy lives."""
        return f"{self.host}:{self.port}"

    @property
    def target(self) -> tuple[str, int]:
        """Host and port of the server that connections to come are led to."""
        return self._target

    def statistics(self) -> ProxyStatistics:
        passing = sum(not link.cut for link in list(self._links))
        return ProxyStatistics(self._connections, passing, self._passed["client"], self._passed["server"])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, in a thread that runs until `stop`. Raises OSError when the port is taken."""
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="odradek-fault-proxy", daemon=True)
        self._thread.start()
        try:
            self.port, self._reserved = reserve_port(self.port)
            self.accept()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Reset what is open and end the thread. Idempotent."""
        if self._loop is None:
            return
        self.refuse()
        self.cut(reset=True)
        loop, self._loop = self._loop, None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    # ---- commands -------------------------------------------------------------------------------------------

    def cut(self, *, reset: bool = False) -> None:
        """End every open connection, in both directions: with FIN, so that what was passed on arrives, or RST."""
        self._do(self._cut(reset))

    def cut_after(self, *, client_bytes: int | None = None, server_bytes: int | None = None) -> None:
        """Cut the next connection, and only that one, with FIN once exactly this many bytes went in a direction."""
        limits: dict[Direction, int | None] = {"client": client_bytes, "server": server_bytes}
        cuts = {direction: limit for direction, limit in limits.items() if limit is not None}
        self._do(self._change(cut_after=cuts))

    def delay(self, seconds: float) -> None:
        """Pass everything on later by this time (s). It is a longer line, not a slower one: delays do not add up."""
        self._do(self._change(delay_s=seconds))

    def throttle(self, bytes_per_s: float) -> None:
        """Limit the bytes per second in each direction of each connection; 0 ends the limit."""
        self._do(self._change(bytes_per_s=bytes_per_s))

    def split(self, size: int) -> None:
        """Pass everything on in pieces of at most `size` bytes, each a send of its own; 0 lifts it."""
        self._do(self._change(split=size))

    def half_close(self, direction: Direction) -> None:
        """Send FIN in one direction of every open connection, and swallow what still comes from that side."""
        self._do(self._half_close(direction))

    def stall(self) -> None:
        """Be a half-open peer: take every byte and pass nothing on, no end of stream either. Connections are accepted,
        and go nowhere. Connections that were open, or were opened meanwhile, stay stalled after `heal`; `cut` ends
        it."""
        self._do(self._stall())

    def refuse(self) -> None:
        """Stop listening: who connects is refused. Open connections go on, and the port stays taken."""
        self._do(self._refuse())

    def accept(self) -> None:
        """Listen again, on the same port."""
        self._do(self._accept())

    def retarget(self, host: str, port: int) -> None:
        """Lead connections to come to another server."""
        self._do(self._retarget(host, port))

    def heal(self) -> None:
        """Undo every fault for connections to come, and delay, throttle and split for open ones."""
        self._do(self._change(**asdict(_Faults())))
        self.accept()

    # ---- in the proxy's thread ------------------------------------------------------------------------------

    def _do(self, command: Coroutine[Any, Any, None]) -> None:
        if self._loop is None:
            command.close()
            raise Closed(f"{self!r} is not running")
        asyncio.run_coroutine_threadsafe(self._obey(command), self._loop).result()

    async def _obey(self, command: Coroutine[Any, Any, None]) -> None:
        if self._listener is not None:
            self._take(self._listener)
        await command

    async def _accept(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((self.host, self.port), backlog=1024)
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            asyncio.get_running_loop().add_reader(self._listener, self._take, self._listener)

    async def _refuse(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()

    def _take(self, listener: socket.socket) -> None:
        """Take every connection that waits to be accepted."""
        with suppress(BlockingIOError):
            while True:
                client, _ = listener.accept()
                self._connections += 1
                link = _ProxiedConnection(client, self._faults.cut_after, self._passed)
                self._faults = replace(self._faults, cut_after={})
                target = None if self._faults.stall else self._target
                self._links[link] = asyncio.create_task(self._run(link, target))

    async def _change(self, **faults: Any) -> None:
        self._faults = replace(self._faults, **faults)

    async def _retarget(self, host: str, port: int) -> None:
        self._target = (host, port)

    async def _run(self, link: _ProxiedConnection, target: tuple[str, int] | None) -> None:
        try:
            await link.run(target, lambda: self._faults)
        finally:
            del self._links[link]

    async def _cut(self, reset: bool) -> None:
        await asyncio.sleep(0)  # a task that was cancelled before its first step would not close its sockets
        tasks = list(self._links.values())
        for link in self._links:
            link.end(reset)
        if reset and tasks:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _half_close(self, direction: Direction) -> None:
        for link in self._links:
            link.half_close(direction)

    async def _stall(self) -> None:
        await self._change(stall=True)
        for link in self._links:
            link.stall()


class _ProxiedConnection:
    """One client and its connection to the target."""

    def __init__(self, client: socket.socket, limits: Mapping[Direction, int], passed: dict[Direction, int]) -> None:
        self.cut = False
        self._client, self._server = client, socket.socket()
        self._ways: dict[Direction, _Direction] = {
            "client": _Direction(self, "client", client, self._server, limits, passed),
            "server": _Direction(self, "server", self._server, client, limits, passed),
        }

    async def run(self, target: tuple[str, int] | None, faults: Callable[[], _Faults]) -> None:
        with self._client, self._server:
            for connection in (self._client, self._server):
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                if target is None:
                    await self._ways["client"].drain()
                else:
                    await self._pass(target, faults)
            except* OSError:
                self.end(reset=True)  # one side died: so does the other
            self.cut = True

    async def _pass(self, target: tuple[str, int], faults: Callable[[], _Faults]) -> None:
        await asyncio.get_running_loop().sock_connect(self._server, target)
        if self.cut or any(way.limit == 0 for way in self._ways.values()):
            self.end(reset=False)
        async with asyncio.TaskGroup() as tasks:
            for way in self._ways.values():
                tasks.create_task(way.read())
                tasks.create_task(way.write(faults))

    def end(self, reset: bool) -> None:
        self.cut = True
        for direction, way in self._ways.items():
            if reset:
                way.sink.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            else:
                self.half_close(direction)

    def half_close(self, direction: Direction) -> None:
        self._ways[direction].finish()

    def stall(self) -> None:
        for way in self._ways.values():
            way.swallow = True


class _Direction:
    """One direction of a link: a reader, a queue that is the length of the line, a writer."""

    def __init__(
        self,
        link: _ProxiedConnection,
        direction: Direction,
        source: socket.socket,
        sink: socket.socket,
        limits: Mapping[Direction, int],
        passed: dict[Direction, int],
    ) -> None:
        self.source, self.sink = source, sink
        self.limit = limits.get(direction)
        self.swallow = False
        self._link, self._direction, self._passed = link, direction, passed
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED_CHUNKS)

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        data = b"?"
        while data:
            data = await loop.sock_recv(self.source, CHUNK_BYTES)
            await self._queue.put((loop.time(), data))

    async def drain(self) -> None:
        while await asyncio.get_running_loop().sock_recv(self.source, CHUNK_BYTES):
            pass

    async def write(self, faults: Callable[[], _Faults]) -> None:
        while True:
            arrived, data = await self._queue.get()
            late = arrived + faults().delay_s - asyncio.get_running_loop().time()
            if late > 0:
                await asyncio.sleep(late)
            if not data:
                if not self.swallow:
                    self.finish()
                return
            await self._send(memoryview(data), faults)

    async def _send(self, data: memoryview, faults: Callable[[], _Faults]) -> None:
        while data and not self.swallow:
            now = faults()
            chunk = data[: self._chunk_size(len(data), now)]
            data = data[len(chunk) :]
            self._passed[self._direction] += len(chunk)  # before the receiver can act on them
            try:
                await asyncio.get_running_loop().sock_sendall(self.sink, chunk)
            except OSError:
                if self.swallow:  # finished while it was waiting for room
                    return
                raise
            self._reduce_limit(len(chunk))
            await asyncio.sleep(len(chunk) / now.bytes_per_s if now.bytes_per_s else 0)

    def _chunk_size(self, size: int, now: _Faults) -> int:
        paced = max(1, int(now.bytes_per_s / THROTTLE_STEPS)) if now.bytes_per_s else size
        return min(size, paced, now.split or size, self.limit or size)

    def _reduce_limit(self, size: int) -> None:
        if self.limit is not None:
            self.limit -= size
            if self.limit == 0:
                self._link.end(reset=False)

    def finish(self) -> None:
        """Send FIN behind what was sent; what still comes is read and dropped, so that nobody is reset for it."""
        self.swallow = True
        with suppress(OSError):
            self.sink.shutdown(socket.SHUT_WR)
