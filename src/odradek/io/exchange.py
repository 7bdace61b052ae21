"""Exchanges: what goes out together, and the one reply it may have."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

import anyio

from odradek.codec import Buffer
from odradek.errors import OdradekError

__all__ = ["JOIN_BYTES", "Pending", "Reply", "joined"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

JOIN_BYTES = 1 << 16
"""Buffers are joined up to this size and sent as they are from this size on: copying 64 KiB costs about one send."""


class Reply(Protocol[T_co]):
    """A sans-IO decoder of exactly one reply."""

    @property
    def done(self) -> bool: ...

    def feed(self, data: memoryview, /) -> int:
        """Take bytes and say how many: all of them unless the reply is complete. Raises RemoteProtocolError."""
        ...

    def result(self) -> T_co:
        """The value of a complete reply. Raises OdradekError for an answer that is an error."""
        ...


class Pending(Generic[T]):
    """One exchange and its outcome (see `core.interfaces.Outcome`): await it, any number of times, from any task.

    Cancellation: safe; cancelling the wait takes nothing back.
    """

    __slots__ = (
        "_callback",
        "_error",
        "_event",
        "_value",
        "buffers",
        "deadline",
        "done",
        "limit_s",
        "number",
        "reply",
        "sent",
    )

    def __init__(
        self, number: int, buffers: Sequence[Buffer], reply: Reply[T] | None, deadline: float, limit_s: float
    ) -> None:
        self.number, self.buffers, self.reply, self.deadline, self.limit_s = number, buffers, reply, deadline, limit_s
        self.sent = False
        self.done = False
        self._event: anyio.Event | None = None
        self._callback: Callable[[], None] | None = None
        self._value: T | None = None
        self._error: OdradekError | None = None

    async def wait(self) -> T:
        """The reply's value; None, once written, when nothing answers this exchange.

        Raises:
            ConnectionLost: The connection died; `sent` says whether the exchange may have been applied.
            DeadlineError: No reply in time; `sent` likewise.
            Unreachable: No connection could be made; nothing was sent.
            RemoteProtocolError: The peer sent what cannot be the reply.
            OdradekError: What the reply itself says.
        """
        if not self.done:
            if self._event is None:  # most exchanges are awaited one behind the other: one event for many of them
                self._event = anyio.Event()
            await self._event.wait()
        return self.result()

    def result(self) -> T:
        """The reply's value, or its error, raised. Only when `done`."""
        assert self.done
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def then(self, callback: Callable[[], None]) -> None:
        """Call back when the outcome comes, in the very step; at once if it is there. See `Outcome.then`."""
        assert self._callback is None
        if self.done:
            callback()
        else:
            self._callback = callback

    def __await__(self) -> Generator[Any, Any, T]:
        return self.wait().__await__()

    def finish(self, value: T | None) -> None:
        """For the connection alone, like `fail`: the first outcome counts."""
        if not self.done:
            self.done, self._value = True, value
            self._tell()

    def fail(self, error: OdradekError) -> None:
        if not self.done:
            self.done, self._error = True, error
            self._tell()

    def _tell(self) -> None:
        self.buffers, self.reply = (), None
        if self._event is not None:
            self._event.set()
        if self._callback is not None:
            callback, self._callback = self._callback, None
            callback()


def joined(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes in few pieces: small ones joined up to JOIN_BYTES, larger ones as they are."""
    small: list[Buffer] = []
    size = 0
    for buffer in buffers:
        if small and size + len(buffer) > JOIN_BYTES:
            yield b"".join(small)
            small, size = [], 0
        if len(buffer) >= JOIN_BYTES:
            yield buffer
        else:
            small.append(buffer)
            size += len(buffer)
    if small:
        yield b"".join(small)
