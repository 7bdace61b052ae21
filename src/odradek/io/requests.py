"""Exchanges: what goes out together, and the one reply it may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

import anyio

from odradek.engine import Buffer
from odradek.errors import OdradekError

__all__ = ["JOIN_BYTES", "InFlightRequest", "ResponseDecoder", "joined", "wake"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

JOIN_BYTES = 1 << 16
"""Buffers are joined up to this size and sent as they are from this size on: copying 64 KiB costs about one send."""


class ResponseDecoder(Protocol[T_co]):
    """A sans-IO decoder of exactly one reply."""

    @property
    def done(self) -> bool: ...

    def feed(self, data: memoryview, /) -> int:
        """Take bytes and say how many: all of them unless the reply is complete. Raises RemoteProtocolError."""
        ...

    def result(self) -> T_co:
        """The value of a complete reply. Raises OdradekError for an answer that is an error."""
        ...


class InFlightRequest(Generic[T]):
    """One exchange and its outcome (see `core.interfaces.Outcome`): await it, any number of times, from any task.

    Cancellation: safe; cancelling the wait takes nothing back.

    Args:
        number: Grows from exchange to exchange.
        buffers, reply: See `Connection.submit`.
        deadline: When it fails, by the loop's clock (s).
        limit_s: How long that is from its beginning (s).
        loop: Asyncio's, if that is what runs and is known: waiting takes 3 us less with it.
    """

    __slots__ = (
        "_error",
        "_loop",
        "_tell",
        "_value",
        "buffers",
        "deadline",
        "done",
        "limit_s",
        "number",
        "reply",
        "sent",
        "size",
    )

    def __init__(
        self,
        number: int,
        buffers: Sequence[Buffer],
        reply: ResponseDecoder[T] | None,
        deadline: float,
        limit_s: float,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.number, self.buffers, self.reply, self.deadline, self.limit_s = number, buffers, reply, deadline, limit_s
        self._loop = loop
        self.size = sum(map(len, buffers))
        self.sent = False
        self.done = False
        self._tell: tuple[Callable[[], None], ...] = ()  # who wants to be called when it is done
        self._value: T | None = None
        self._error: OdradekError | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        """The reply's value; None, once written, when nothing answers this exchange.

        Raises:
            ConnectionLost: The connection died; `sent` says whether the exchange may have been applied.
            DeadlineError: No reply in time; `sent` likewise.
            Unreachable: No connection could be made; nothing was sent.
            RemoteProtocolError: The peer sent what cannot be the reply.
            OdradekError: What the reply itself says.
        """
        if not self.done and self._loop is not None:
            waiter = self._loop.create_future()
            self.then(partial(wake, waiter))
            yield from waiter
        elif not self.done:
            event = anyio.Event()
            self.then(event.set)
            yield from event.wait().__await__()
        return self.result()

    def result(self) -> T:
        """The reply's value, or its error, raised. Only when `done`."""
        assert self.done
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def then(self, callback: Callable[[], None]) -> None:
        """Call back when the outcome comes, in the very step; at once if it is there. See `Outcome.then`."""
        if self.done:
            callback()
        else:
            self._tell = (*self._tell, callback)

    def settle(self, value: T | None, error: OdradekError | None) -> None:
        """For the connection alone: the first outcome counts."""
        if self.done:
            return
        self.done, self._value, self._error = True, value, error
        self.buffers, self.reply = (), None
        tell, self._tell = self._tell, ()
        for callback in tell:
            callback()


def wake(waiter: asyncio.Future[None]) -> None:
    """Whoever waits for it may go on."""
    if not waiter.done():  # it was cancelled
        waiter.set_result(None)


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
