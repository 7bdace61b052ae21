"""Requests on their way over a connection, and the one response each may have."""

from __future__ import annotations

import asyncio
import math
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

import anyio

from odradek.engine import Buffer
from odradek.errors import OdradekError
from odradek.io.observation import RequestObservation

__all__ = [
    "COALESCE_BYTES",
    "RECONNECT",
    "Handshake",
    "InFlightRequest",
    "Reconnect",
    "RequestEncoder",
    "RequestQueue",
    "ResponseDecoder",
    "coalesce",
    "no_handshake",
    "resume_handshake",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

COALESCE_BYTES = 1 << 16
"""Buffers are joined up to this size and sent as they are from this size on: copying 64 KiB costs about one send."""


EXTENSION = 0.25
"""A request that is late gets this part of its time limit more at a time, while responses go on arriving."""

MAX_EXTENSIONS = 36
"""Maximum number of these parts: a request waits ten times its time limit at most."""

MIN_BYTES_PER_S = 1 << 10
"""Minimum of what has to arrive for that (bytes/s): a peer that sends less is as good as silent."""


class ResponseDecoder(Protocol[T_co]):
    """A sans-IO decoder of exactly one response."""

    @property
    def done(self) -> bool:
        """True once the response is complete."""
        ...

    @property
    def whole_bytes(self) -> int:
        """A response of at most so many bytes, the integer of 4 bytes with its size included, is better fed in one
        piece; 0: any piece will do."""
        ...

    def feed(self, data: memoryview, /) -> int:
        """Take bytes and return how many: all of them unless the response is complete. Raises RemoteProtocolError."""
        ...

    def result(self) -> T_co:
        """Return the value of a complete response. Raises OdradekError for a response that is an error."""
        ...


class RequestEncoder(Protocol[T_co]):
    """A request that is encoded when its connection is ready, for what the handshake of that connection agreed on."""

    @property
    def size(self) -> int:
        """Bytes it takes on the wire, or an estimate: for bounding what is queued."""
        ...

    def encode(self, session: Any) -> tuple[Sequence[Buffer], ResponseDecoder[T_co] | None]:
        """Return the bytes to send, and the decoder of the response, or None when there will be no response.

        Called when the request leaves the queue. Pure; the buffers must not change until the request has its result.
        Raises OdradekError: the request fails with it alone.

        Args:
            session: The value the handshake of the connection returned; None without a handshake.
        """
        ...


class InFlightRequest(Generic[T]):
    """One request and its result (see `core.interfaces.PendingResult`): await it, any number of times, from any task.

    Cancellation: safe; a cancelled wait does not take the request back.

    Args:
        number: Grows from request to request.
        buffers, reply: See `Connection.submit`.
        request: Instead of them, what is to be encoded when it leaves the queue, for the session of the handshake.
        size: Bytes it takes on the wire.
        deadline: When it fails, by the loop's clock (s).
        limit_s: Seconds from its submission to its deadline; grows with it.
        queue: That of its connection.

    Attributes:
        end: What `sent_bytes` of the queue was with its last byte, sys.maxsize before it is sent: what leaves behind it
            says nothing about it. 0 for a request of a handshake.
    """

    __slots__ = (
        "_acknowledged",
        "_callbacks",
        "_error",
        "_extension_s",
        "_extensions",
        "_loop",
        "_queue",
        "_received",
        "_value",
        "buffers",
        "deadline",
        "done",
        "end",
        "limit_s",
        "number",
        "observation",
        "reply",
        "request",
        "sent",
        "size",
    )

    def __init__(
        self,
        number: int,
        buffers: Sequence[Buffer],
        reply: ResponseDecoder[T] | None,
        request: RequestEncoder[T] | None,
        size: int,
        deadline: float,
        limit_s: float,
        queue: RequestQueue,
    ) -> None:
        self.number, self.buffers, self.reply, self.request = number, buffers, reply, request
        self.size, self.deadline, self.limit_s = size, deadline, limit_s
        self._queue, self._loop = queue, queue.loop
        self._extension_s, self._extensions = limit_s * EXTENSION, 0
        self._received, self._acknowledged = queue.received_bytes, queue.acknowledged_bytes
        self.sent, self.end = False, sys.maxsize
        self.done = False
        self.observation: RequestObservation | None = None
        self._callbacks: tuple[Callable[[], None], ...] = ()
        self._value: Any = None
        self._error: OdradekError | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        """Return the value of the response; None, once written, when the request has no response.

        Raises:
            ConnectionLost: The connection died; `sent` says whether the request may have been applied.
            DeadlineError: No response in time; `sent` likewise.
            Unreachable: No connection could be made; nothing was sent.
            RemoteProtocolError: The peer sent what cannot be the response.
            InternalError: Encoding or decoding failed because of a defect; `__cause__` says which.
            OdradekError: The error that the response itself names, or why the request cannot be encoded or the
                handshake failed.
        """
        if not self.done and self._loop is not None:
            waiter = self._loop.create_future()
            self.add_done_callback(partial(_wake_waiter, waiter))
            yield from waiter
        elif not self.done:
            event = anyio.Event()
            self.add_done_callback(event.set)
            yield from event.wait().__await__()
        return self.result()

    def result(self) -> T:
        """Return the value of the response, or raise its error. Only when `done`."""
        assert self.done
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call back in the step in which the result comes; at once if it exists. See `PendingResult`."""
        if self.done:
            callback()
        else:
            self._callbacks = (*self._callbacks, callback)

    def withdraw(self) -> bool:
        """Take it back if none of its bytes has been handed to the socket: it is never sent, and never resolved.

        Return whether that was so.
        """
        return self._queue.withdraw(self)

    def extend(self, now: float, *, paused: bool = False) -> bool:
        """Move the deadline, which has passed, while something moves: its bytes leave, requests before it are answered,
        or responses arrive. They may be large, the line slow, or the broker busy. Return False, and do nothing, if all
        of that has ceased, or the request has waited long enough.

        Args:
            now: The loop's clock (s).
            paused: The broker has asked for a pause, in which nothing moves.
        """
        queue, enough = self._queue, MIN_BYTES_PER_S * self._extension_s
        latest = now - self._extension_s  # many may have come in the time limit before
        moves = (
            queue.answered_at > latest
            or (queue.received_at > latest and queue.received_bytes - self._received >= enough)
            or min(queue.acknowledged_bytes, self.end) - self._acknowledged >= enough
        )
        if not (moves or paused) or self._extensions == MAX_EXTENSIONS:
            return False
        self._extensions += 1
        self._received, self._acknowledged = queue.received_bytes, queue.acknowledged_bytes
        self.limit_s += self._extension_s
        self.deadline = now + self._extension_s
        return True

    def restart_limit(self, now: float) -> None:
        """Give it its time limit again, from the end of a pause on: the broker has answered nothing meanwhile."""
        more = max(0.0, now + self._extension_s / EXTENSION - self.deadline)
        self.limit_s += more
        self.deadline += more

    def resolve(self, value: T | None, error: OdradekError | None) -> Exception | None:
        """Set the result; the first one counts. Only the connection calls this.

        Return what a callback raised, after all of them were called: a defect.
        """
        if self.done:
            return None
        self.done, self._value, self._error = True, value, error
        self.buffers, self.reply, self.request = (), None, None
        if self.observation is not None:
            self.observation.finished(error)
        callbacks, self._callbacks = self._callbacks, ()
        bug = None
        for callback in callbacks:
            try:
                callback()
            except Exception as error:
                bug = bug or error
        return bug


class RequestQueue:
    """Requests of one connection without a result: not sent; sent and awaiting a response; sent without one to come.

    Each list is in order, oldest first.

    Attributes:
        loop: The running loop of asyncio, if known: waiting for a result takes 3 us less with it.
        requests: How many there have been, those of handshakes included.
        sent_bytes, received_bytes: Bytes of requests and of responses; the former without those of handshakes.
        acknowledged_bytes: Those of the sent ones that the peer's system has, as far as known.
        received_at: When the latest of them arrived that left others to wait for, by the loop's clock (s).
        answered_at: When the latest response was whole (s), if it left others to wait for; else -infinity.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.requests = self.sent_bytes = self.received_bytes = self.acknowledged_bytes = 0
        self.received_at = self.answered_at = -math.inf
        self.queued: deque[InFlightRequest[Any]] = deque()
        self.queued_bytes = 0
        self.awaiting: deque[InFlightRequest[Any]] = deque()
        self.writing: list[InFlightRequest[Any]] = []

    def withdraw(self, request: InFlightRequest[Any]) -> bool:
        """Remove a request that was not sent. Return False if it was."""
        if request.sent or request not in self.queued:
            return False
        self.queued.remove(request)
        self.queued_bytes -= request.size
        return True

    @property
    def in_flight(self) -> int:
        return len(self.awaiting) + len(self.writing)

    def outstanding(self) -> list[InFlightRequest[Any]]:
        """Return all of them, oldest first."""
        return sorted((*self.awaiting, *self.writing, *self.queued), key=attrgetter("number"))

    def clear(self) -> list[InFlightRequest[Any]]:
        """Remove all of them, and return them, oldest first."""
        outstanding = self.outstanding()
        self.awaiting.clear()
        self.writing.clear()
        self.queued.clear()
        self.queued_bytes = 0
        return outstanding


class Reconnect:
    """The value a handshake yields to continue on another connection."""


RECONNECT = Reconnect()

Handshake = Generator[RequestEncoder[Any] | Reconnect, Any, Any]
"""The requests that precede all others on a new connection.

It yields requests and is sent their results, or is thrown their errors; it returns the session that later requests are
encoded for. An error it raises fails the attempt to connect. When it yields `RECONNECT`, also in answer to the error
that its connection is lost, it continues on another connection, and nothing that is queued fails."""


def no_handshake() -> Handshake:
    """Agree on nothing."""
    return
    yield


def resume_handshake(handshake: Handshake, answered: InFlightRequest[Any] | None) -> RequestEncoder[Any] | Reconnect:
    """Pass the result of its last request to a handshake, or begin it, and return its next request.

    Raises StopIteration, with the session, when the handshake is complete.
    """
    if answered is None:
        return next(handshake)
    try:
        value = answered.result()
    except OdradekError as error:
        return handshake.throw(error)
    return handshake.send(value)


def _wake_waiter(waiter: asyncio.Future[None]) -> None:
    """Let the task continue that awaits `waiter`."""
    if not waiter.done():  # it was cancelled
        waiter.set_result(None)


def coalesce(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield the same bytes in few buffers: small ones joined up to COALESCE_BYTES, larger ones as they are."""
    small: list[Buffer] = []
    size = 0
    for buffer in buffers:
        if small and size + len(buffer) > COALESCE_BYTES:
            yield b"".join(small)
            small, size = [], 0
        if len(buffer) >= COALESCE_BYTES:
            yield buffer
        else:
            small.append(buffer)
            size += len(buffer)
    if small:
        yield b"".join(small)
