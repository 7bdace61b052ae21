"""Two connected byte streams without a socket."""

from __future__ import annotations

import anyio
from anyio.abc import ByteStream
from anyio.lowlevel import checkpoint

from odradek.io.notifier import Notifier


class _Pipe:
    """One direction of a memory pair: at most `capacity` bytes between sender and receiver."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.data = bytearray()
        self.ended = False
        """The sender sends no more."""
        self.refused = False
        """The receiver accepts no more."""
        self.changed = Notifier()


class _MemoryStream(ByteStream):
    """One end of a memory pair."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await checkpoint()
        pipe = self._incoming
        while not self._closed and not pipe.data and not pipe.ended:
            await pipe.changed.wait(pipe.changed.version)
        if self._closed:
            raise anyio.ClosedResourceError
        if not pipe.data:
            raise anyio.EndOfStream
        data = bytes(pipe.data[:max_bytes])
        del pipe.data[:max_bytes]
        pipe.changed.notify()
        return data

    async def send(self, item: bytes) -> None:
        await checkpoint()
        pipe, rest = self._outgoing, memoryview(item)
        while rest:
            if self._closed:
                raise anyio.ClosedResourceError
            if pipe.refused:
                raise anyio.BrokenResourceError
            free = pipe.capacity - len(pipe.data)
            if free <= 0:
                await pipe.changed.wait(pipe.changed.version)
                continue
            pipe.data += rest[:free]
            rest = rest[free:]
            pipe.changed.notify()

    async def send_eof(self) -> None:
        self._outgoing.ended = True
        self._outgoing.changed.notify()

    async def aclose(self) -> None:
        self._closed = True
        self._outgoing.ended = self._incoming.refused = True
        self._outgoing.changed.notify()
        self._incoming.changed.notify()
        await checkpoint()


def memory_pair(capacity: int = 65536) -> tuple[ByteStream, ByteStream]:
    """Return two connected streams without a socket: what one sends, the other receives.

    Args:
        capacity: Bytes that each direction holds before `send` waits.
    """
    first, second = _Pipe(capacity), _Pipe(capacity)
    return _MemoryStream(first, second), _MemoryStream(second, first)
