"""The broker actor: one connection, pipelined exchanges, ordered replies.

An *exchange* is bytes that go out together and, unless nothing answers them, one reply. `submit` queues one, now and
in order, and gives a `Pending` to await. One task group runs the tasks: a writer that joins what is queued into few
sends, a reader that feeds what comes back to the reply decoders in order, and one that watches the deadlines.

What holds, whatever the network does:

* Every exchange gets exactly one outcome: its reply, or an error whose `sent` says whether it may have been applied.
* When an exchange fails for want of a reply, everything submitted before that moment fails too. What is submitted
  afterwards goes out on a new connection. So all exchanges of one `epoch` go over one connection or over none.
* Nobody's cancellation touches a neighbour: a `Pending` nobody awaits still has its reply read, and dropped.

The actor runs in a task group of its owner, started from any task at any time: `task_group.start_soon(connection.run)`.
It has to be so because a cancel scope entered in one task cannot be left in another. `async with connection` is the
short form for who opens and closes it in one task.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import random
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, cast

import anyio
from anyio.abc import ByteStream, TaskGroup, TaskStatus

from odradek.codec import Buffer
from odradek.core.backoff import Backoff
from odradek.core.states import Machine
from odradek.errors import Closed, ConnectionLost, DeadlineError, OdradekError, RemoteProtocolError, Unreachable
from odradek.io.exchange import JOIN_BYTES, Pending, Reply, joined
from odradek.io.net import connect

__all__ = ["CONNECTION", "Connection", "ConnectionOptions", "Dial", "Event", "State", "Statistics"]

T = TypeVar("T")

Dial = Callable[[str, int, float], Awaitable[ByteStream]]
"""`io.net.connect`, or what stands in for it."""

READ_BYTES = 1 << 20
"""Most bytes taken in one read (reads of 1 MiB were measured twice as fast as of 64 KiB)."""

CLOSE_S = 1.0
"""What closing may take (s). It takes no round trip; the bound is for streams that misbehave."""


class State(Enum):
    """What a connection is doing."""

    IDLE = "idle"
    WAITING = "waiting"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


class Event(Enum):
    """What moves it on."""

    WANTED = "an exchange is queued"
    DUE = "the back-off is over"
    CALM = "nothing is queued any more"
    DIALLED = "connected"
    REFUSED = "no connection"
    LOST = "connection lost"
    CLOSE = "closed by us"


CONNECTION = Machine(
    "connection",
    State.IDLE,
    {
        (State.IDLE, Event.WANTED): State.WAITING,
        (State.WAITING, Event.DUE): State.CONNECTING,
        (State.WAITING, Event.CALM): State.IDLE,
        (State.CONNECTING, Event.DIALLED): State.CONNECTED,
        (State.CONNECTING, Event.REFUSED): State.IDLE,
        (State.CONNECTED, Event.LOST): State.IDLE,
        (State.IDLE, Event.CLOSE): State.CLOSED,
        (State.WAITING, Event.CLOSE): State.CLOSED,
        (State.CONNECTING, Event.CLOSE): State.CLOSED,
        (State.CONNECTED, Event.CLOSE): State.CLOSED,
    },
)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How a connection is made.

    Args:
        connect_timeout_s: For look-up and connect together (s).
        backoff: Between attempts to connect.
    """

    connect_timeout_s: float = 5.0
    backoff: Backoff = field(default_factory=Backoff)


class Statistics(NamedTuple):
    """What a connection does and has done.

    `queued` and `queued_bytes` wait for the socket; `in_flight` exchanges were handed to it and have no outcome yet.
    `attempts` counts the connects in a row that failed or were lost at once. `why` is the last loss or refusal.
    """

    state: State
    queued: int
    queued_bytes: int
    in_flight: int
    exchanges: int
    sent_bytes: int
    received_bytes: int
    connects: int
    losses: int
    attempts: int
    why: str


class Connection:
    """The connection to one broker, made when first needed and made again, with back-off, after a loss.

    Args:
        host, port: Where the broker listens.
        dial: Makes the byte stream; raises Unreachable.
        options: See ConnectionOptions.
    """

    def __init__(
        self, host: str, port: int, *, dial: Dial = connect, options: ConnectionOptions = ConnectionOptions()
    ) -> None:
        self.host, self.port, self.options = host, port, options
        self.address = f"{host}:{port}"
        self.state = CONNECTION.start
        self.epoch = 0
        """Grows whenever everything outstanding has failed: exchanges of one epoch share one connection."""
        self._dial = dial
        # Outstanding: begun and awaiting a reply; begun with no reply to come; not begun. Each oldest first.
        self._awaiting: deque[Pending[Any]] = deque()
        self._writing: list[Pending[Any]] = []
        self._queued: deque[Pending[Any]] = deque()
        self._queued_bytes = 0
        self._wake: anyio.Event | None = None  # of who waits for work: the writer, or the supervisor without a stream
        self._stream: ByteStream | None = None
        self._link: anyio.CancelScope | None = None  # around reader and writer of `_stream`
        self._scope: anyio.CancelScope | None = None  # around everything
        self._ended: anyio.Event | None = None
        self._group: TaskGroup | None = None
        self._alarm_at = math.inf
        self._alarm: anyio.CancelScope | None = None  # around the sleep of who watches the deadlines
        self._attempts, self._retry_at = 0, -math.inf
        self._connected_at, self._proven = 0.0, False
        self._refusal: Unreachable | None = None
        self._why = ""
        self._exchanges = self._sent_bytes = self._received_bytes = self._connects = self._losses = 0

    # ---- the caller's side -----------------------------------------------------------------------------------

    def submit(self, buffers: Sequence[Buffer], reply: Reply[T] | None, *, deadline_s: float) -> Pending[T]:
        """Queue one exchange, now, behind everything submitted before.

        Synchronous and never blocking: bounding what is queued is the caller's business (see `queued_bytes`). May be
        called before `run` has started. While there is no connection, the exchange waits for the next attempt to
        make one and fails with it.

        Args:
            buffers: What goes out, contiguously; not to be changed before the outcome is there.
            reply: Decodes what comes back; None when nothing will: the outcome is then None, once all is written.
            deadline_s: Seconds from now to the outcome. When they pass, the connection is closed (a reply that came
                later could not be told from the next one's), and the exchange fails with DeadlineError.

        Raises:
            Closed: This connection was closed.
        """
        if self.state is State.CLOSED:
            raise Closed(f"connection to {self.address} is closed")
        pending = Pending(buffers, reply, anyio.current_time() + deadline_s, deadline_s)
        self._queued.append(pending)
        self._queued_bytes += sum(map(len, buffers))
        self._exchanges += 1
        if pending.deadline < self._alarm_at:
            self._set_alarm(pending.deadline)
        if self._wake is not None:
            self._wake.set()
            self._wake = None
        return pending

    @property
    def queued_bytes(self) -> int:
        """Bytes submitted and not yet handed to the socket."""
        return self._queued_bytes

    def statistics(self) -> Statistics:
        return Statistics(
            self.state,
            len(self._queued),
            self._queued_bytes,
            len(self._awaiting) + len(self._writing),
            self._exchanges,
            self._sent_bytes,
            self._received_bytes,
            self._connects,
            self._losses,
            self._attempts,
            self._why,
        )

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<Connection {self.address} {s.state.value}, {s.in_flight} in flight, {s.queued} queued>"

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Work until closed or cancelled; at the end everything outstanding fails with ConnectionLost. Runs once."""
        self._ended = anyio.Event()
        try:
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                task_status.started()
                if self.state is not State.CLOSED:
                    group.start_soon(self._watch_deadlines)
                    await self._keep_connected()
        finally:
            self._close()
            self._ended.set()

    async def aclose(self) -> None:
        """Close now: what is outstanding fails with ConnectionLost. Idempotent, shielded, and bounded."""
        self._close()
        if self._ended is not None:
            with anyio.move_on_after(2 * CLOSE_S, shield=True):
                await self._ended.wait()

    async def __aenter__(self) -> Self:
        self._group = await anyio.create_task_group().__aenter__()
        self._group.start_soon(self.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._group is not None
        await self.aclose()
        return await self._group.__aexit__(kind, error, trace)

    # ---- connecting ------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        while True:
            await self._work()
            self._move(Event.WANTED)
            await anyio.sleep_until(self._retry_at)
            if not self._queued:  # they ran into their deadlines
                self._move(Event.CALM)
                continue
            self._move(Event.DUE)
            try:
                stream = await self._dial(self.host, self.port, self.options.connect_timeout_s)
            except Unreachable as error:
                self._refuse(error)
            else:
                await self._serve(stream)

    def _refuse(self, error: Unreachable) -> None:
        self._why, self._refusal = str(error), error
        self._move(Event.REFUSED)
        self._back_off()
        self._fail_outstanding(lambda _: _caused(copy.copy(error), error))

    async def _serve(self, stream: ByteStream) -> None:
        """Read and write until the stream is lost."""
        self._refusal, self._proven = None, False
        self._connects += 1
        self._connected_at = anyio.current_time()
        self._move(Event.DIALLED)
        try:
            async with anyio.create_task_group() as group:
                self._stream, self._link = stream, group.cancel_scope
                group.start_soon(self._write, stream)
                await self._read(stream)
        finally:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await stream.aclose()

    def _lose(self, stream: ByteStream, why: str) -> None:
        """The stream is of no use any more. Who finds out first says why; what others find is its echo."""
        if self._stream is not stream:
            return
        self._why = why
        self._losses += 1
        self._move(Event.LOST)
        self._detach()
        if self._proven or anyio.current_time() - self._connected_at > self.options.backoff.max_s:
            self._attempts, self._retry_at = 0, -math.inf
        else:  # a peer that accepts and hangs up is as good as none
            self._back_off()
        self._fail_outstanding(lambda pending: ConnectionLost(self.address, why, pending.sent))

    def _close(self) -> None:
        if self.state is State.CLOSED:
            return
        self._move(Event.CLOSE)
        self._detach()
        if self._scope is not None:
            self._scope.cancel()
        self._fail_outstanding(lambda pending: ConnectionLost(self.address, "closed by this client", pending.sent))

    def _detach(self) -> None:
        self._stream = None
        if self._link is not None:
            self._link.cancel()
            self._link = None

    def _back_off(self) -> None:
        self._retry_at = anyio.current_time() + self.options.backoff.delay(self._attempts, random())
        self._attempts += 1

    def _move(self, event: Event) -> None:
        if self.state is not State.CLOSED:  # a close overtakes waits that end in the same turn of the loop
            self.state = CONNECTION.after(self.state, event)

    # ---- writer and reader -----------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Wait until something is queued."""
        if not self._queued:
            self._wake = anyio.Event()
            await self._wake.wait()

    async def _write(self, stream: ByteStream) -> None:
        while True:
            await self._work()
            if self._stream is not stream:  # lost while we waited: what is queued now is for the next one
                return
            try:
                for chunk in joined(self._begin()):
                    self._sent_bytes += len(chunk)
                    await stream.send(cast(bytes, chunk))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                return  # replies may have arrived before the break: the reader takes them, and then meets it
            self._written()

    def _begin(self) -> list[Buffer]:
        """Move exchanges from queued to begun, until they make a decent send. From here on any byte of them may
        have reached the peer."""
        burst: list[Buffer] = []
        size = 0
        while self._queued and size < JOIN_BYTES:
            pending = self._queued.popleft()
            pending.sent = True
            burst += pending.buffers
            size += sum(map(len, pending.buffers))
            pending.buffers = ()
            (self._writing if pending.reply is None else self._awaiting).append(pending)
        self._queued_bytes -= size
        return burst

    def _written(self) -> None:
        for pending in self._writing:
            pending.finish(None)
        self._writing.clear()

    async def _read(self, stream: ByteStream) -> None:
        try:
            while True:
                data = await stream.receive(READ_BYTES)
                if self._stream is not stream:
                    return
                self._take(memoryview(data))
        except anyio.EndOfStream:
            self._lose(stream, "closed by the peer")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            self._lose(stream, str(error.__cause__ or error) or "broken")
        except OdradekError as error:
            self._lose(stream, error.message())

    def _take(self, data: memoryview) -> None:
        """Feed what came to the replies it belongs to."""
        self._received_bytes += len(data)
        self._proven = True
        while data:
            if not self._awaiting:
                raise RemoteProtocolError(f"{len(data)} bytes that answer nothing")
            pending = self._awaiting[0]
            reply = pending.reply
            assert reply is not None  # those without never come here
            try:
                used = reply.feed(data)
                if not reply.done:
                    return
                pending.finish(reply.result())
            except OdradekError as error:
                pending.fail(error)
                if error.fatal_to_connection:
                    raise
            self._awaiting.popleft()
            data = data[used:]

    # ---- failures --------------------------------------------------------------------------------------------

    def _fail_outstanding(self, error_of: Callable[[Pending[Any]], OdradekError]) -> None:
        outstanding = [*self._awaiting, *self._writing, *self._queued]
        self._awaiting.clear()
        self._writing.clear()
        self._queued.clear()
        self._queued_bytes = 0
        self.epoch += 1
        for pending in outstanding:
            pending.fail(error_of(pending))

    def _set_alarm(self, at: float) -> None:
        self._alarm_at = at
        if self._alarm is not None:
            self._alarm.deadline = at

    async def _watch_deadlines(self) -> None:
        """Sleep until the earliest deadline known. It is not moved back when replies arrive: looking again once a
        time-out's length is cheaper than keeping count."""
        while True:
            with anyio.CancelScope(deadline=self._alarm_at) as self._alarm:
                await anyio.sleep_forever()
            self._expire(anyio.current_time())

    def _expire(self, now: float) -> None:
        outstanding = [*self._awaiting, *self._writing, *self._queued]
        late = [pending for pending in outstanding if pending.deadline <= now]
        if not late:
            self._set_alarm(min((pending.deadline for pending in outstanding), default=math.inf))
            return
        for pending in late:
            pending.fail(_caused(DeadlineError(self.address, pending.limit_s, pending.sent), self._refusal))
        self._set_alarm(math.inf)
        why = f"no answer within {late[0].limit_s:g} s"
        if self._stream is not None:
            self._lose(self._stream, why)
        else:
            self._fail_outstanding(lambda _: _caused(ConnectionLost(self.address, why, False), self._refusal))


def _caused(error: OdradekError, cause: OdradekError | None) -> OdradekError:
    error.__cause__ = cause
    return error
