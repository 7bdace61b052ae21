"""The broker actor: one connection, pipelined exchanges, ordered replies.

An *exchange* is bytes that go out together and, unless nothing answers them, one reply. `submit` queues one, now and
in order, and gives a `InFlightRequest` to await. No task lies between a caller and the socket: a `Transport` asks for
what is
queued and writes it in few sends; what it reads it hands over, to be fed to the reply decoders in order, which settles
their exchanges there and then. Two tasks do the rest: one connects and runs the link, one watches the deadlines.

What holds, whatever the network does:

* Every exchange gets exactly one outcome: its reply, or an error whose `sent` says whether it may have been applied.
* When an exchange fails for want of a reply, everything submitted before that moment fails too. What is submitted
  afterwards goes out on a new connection. So all exchanges of one `epoch` go over one connection or over none.
* Nobody's cancellation touches a neighbour: a `InFlightRequest` nobody awaits still has its reply read, and dropped.
* Who is called back may submit and close, in the middle of a read as well: the state is consistent by then.
* A bug in a decoder or in who is called back ends the connection like a close, and `run` raises it.

The actor runs in a task group of its owner, started from any task at any time: `task_group.start_soon(connection.run)`.
It has to be so because a cancel scope entered in one task cannot be left in another. `async with connection` is the
short form for who opens and closes it in one task.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import islice
from operator import attrgetter
from random import random
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import anyio
from anyio.abc import ByteStream, TaskGroup, TaskStatus

from odradek.core.backoff import Backoff
from odradek.core.states import Machine
from odradek.engine import Buffer
from odradek.errors import Closed, ConnectionLost, DeadlineError, OdradekError, RemoteProtocolError, Unreachable
from odradek.io.requests import JOIN_BYTES, InFlightRequest, ResponseDecoder
from odradek.io.tcp import connect
from odradek.io.transport import CLOSE_S, StreamTransport, Transport, on_asyncio

__all__ = ["CONNECTION", "Connect", "Connection", "ConnectionOptions", "Event", "State", "Statistics"]

T = TypeVar("T")

Connect = Callable[[str, int, float], Awaitable[Transport | ByteStream]]
"""`io.net.connect`, or what stands in for it."""


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
        dial: Makes the link, or a byte stream to make one of; raises Unreachable.
        options: See ConnectionOptions.
    """

    def __init__(
        self, host: str, port: int, *, dial: Connect = connect, options: ConnectionOptions = ConnectionOptions()
    ) -> None:
        self.host, self.port, self.options = host, port, options
        self.address = f"{host}:{port}"
        self.state = CONNECTION.start
        self.epoch = 0
        """Grows whenever everything outstanding has failed: exchanges of one epoch share one connection."""
        self._dial = dial
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock = anyio.current_time
        # Outstanding: begun and awaiting a reply; begun with no reply to come; not begun. Each oldest first.
        self._awaiting: deque[InFlightRequest[Any]] = deque()
        self._writing: list[InFlightRequest[Any]] = []
        self._queued: deque[InFlightRequest[Any]] = deque()
        self._queued_bytes = 0
        self._wake: anyio.Event | None = None  # of who waits for work without a link
        self._link: Transport | None = None
        self._inside = False  # in a call of the link: what is submitted now goes out together at its end
        self._bug: Exception | None = None
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

    def submit(
        self, buffers: Sequence[Buffer], reply: ResponseDecoder[T] | None, *, deadline_s: float
    ) -> InFlightRequest[T]:
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
        self._exchanges += 1
        pending = InFlightRequest(self._exchanges, buffers, reply, self._clock() + deadline_s, deadline_s, self._loop)
        self._queued.append(pending)
        self._queued_bytes += pending.size
        if pending.deadline < self._alarm_at:
            self._set_alarm(pending.deadline)
        if self._link is not None:
            self._push(self._link)
        elif self._wake is not None:
            self._wake.set()
            self._wake = None
        return pending

    def _push(self, link: Transport) -> None:
        """Have the queue written: at once when nothing is under way, since then somebody waits for just this; else
        at the end of the turn, so that many make few sends."""
        if self._inside:
            return
        if self._awaiting or self._writing:
            link.write_soon()
        else:
            link.write()

    def withdraw(self, request: InFlightRequest[Any]) -> bool:
        """Take a request back if none of its bytes has been handed to the socket: it is never sent, and never resolved.

        Return whether that was so."""
        if request.sent or request.done or request not in self._queued:
            return False
        self._queued.remove(request)
        self._queued_bytes -= request.size
        return True

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
        """Work until closed or cancelled; at the end everything outstanding fails with ConnectionLost. Runs once.

        Raises what was a bug of a decoder, or of who was called back."""
        self._ended = anyio.Event()
        if on_asyncio():
            self._loop = asyncio.get_running_loop()
            self._clock = self._loop.time  # what anyio gives, after 0.7 us of asking which loop it is
        try:
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                task_status.started()
                if self.state is not State.CLOSED:
                    group.start_soon(self._watch_deadlines)
                    await self._keep_connected()
        finally:
            self.close()
            self._ended.set()
        if self._bug is not None:
            raise self._bug

    def close(self) -> None:
        """Close now: what is outstanding fails with ConnectionLost. Idempotent. `run` ends when all is closed."""
        if self.state is State.CLOSED:
            return
        self._move(Event.CLOSE)
        self._detach()
        if self._scope is not None:
            self._scope.cancel()
        self._fail_outstanding(lambda pending: ConnectionLost(self.address, "closed by this client", pending.sent))

    async def aclose(self) -> None:
        """`close`, and wait for the end of `run`. Idempotent, shielded, and bounded."""
        self.close()
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

    async def _serve(self, stream: Transport | ByteStream) -> None:
        """Read and write until the link is lost."""
        self._refusal, self._proven = None, False
        self._connects += 1
        self._connected_at = self._clock()
        self._move(Event.DIALLED)
        self._link = StreamTransport(stream) if isinstance(stream, ByteStream) else stream
        await self._link.run(self)

    def _detach(self) -> None:
        if self._link is not None:
            self._link.abort()
            self._link = None

    def _back_off(self) -> None:
        self._retry_at = self._clock() + self.options.backoff.delay(self._attempts, random())
        self._attempts += 1

    def _move(self, event: Event) -> None:
        if self.state is not State.CLOSED:  # a close overtakes waits that end in the same turn of the loop
            self.state = CONNECTION.after(self.state, event)

    async def _work(self) -> None:
        """Wait until something is queued."""
        if not self._queued:
            self._wake = anyio.Event()
            await self._wake.wait()

    # ---- what the link calls ---------------------------------------------------------------------------------

    def next_burst(self) -> list[Buffer]:
        """See LinkUser. From here on any byte of these exchanges may have reached the peer."""
        burst: list[Buffer] = []
        size = 0
        while self._queued and size < JOIN_BYTES:
            pending = self._queued.popleft()
            pending.sent = True
            burst += pending.buffers
            size += pending.size
            pending.buffers = ()
            (self._writing if pending.reply is None else self._awaiting).append(pending)
        self._queued_bytes -= size
        self._sent_bytes += size
        return burst

    def written(self) -> None:
        """See LinkUser."""
        written, self._writing = self._writing, []
        self._inside = True
        for pending in written:
            self._settle(pending, None, None)
        self._inside = False
        if self._queued and self._link is not None:
            self._link.write_soon()

    def received(self, data: memoryview) -> None:
        """See LinkUser."""
        self._received_bytes += len(data)
        self._proven = True
        self._inside = True
        try:
            self._take(data)
        except OdradekError as error:
            self._lose(error.message(), dict.fromkeys(islice(self._awaiting, 1), error))
        except Exception as bug:
            self._crash(bug)
        self._inside = False
        if self._queued and self._link is not None:
            self._link.write()

    def lost(self, why: str) -> None:
        """See LinkUser."""
        self._lose(why, {})

    def _take(self, data: memoryview) -> None:
        """Feed what came to the replies it belongs to."""
        link = self._link
        while data and self._link is link:  # who is called back may close it
            if not self._awaiting:
                raise RemoteProtocolError(f"{len(data)} bytes that answer nothing")
            pending = self._awaiting[0]
            reply = pending.reply
            assert reply is not None  # those without never come here
            data = data[reply.feed(data) :]
            if not reply.done:
                return
            value = failed = None
            try:
                value = reply.result()
            except OdradekError as error:
                if isinstance(error, RemoteProtocolError):
                    raise
                failed = error
            self._awaiting.popleft()
            self._settle(pending, value, failed)

    # ---- failures --------------------------------------------------------------------------------------------

    def _lose(self, why: str, own: Mapping[InFlightRequest[Any], OdradekError]) -> None:
        """The link is of no use any more. `own`: who gets an error of its own."""
        self._why = why
        self._losses += 1
        self._move(Event.LOST)
        self._detach()
        if self._proven or self._clock() - self._connected_at > self.options.backoff.max_s:
            self._attempts, self._retry_at = 0, -math.inf
        else:  # a peer that accepts and hangs up is as good as none
            self._back_off()
        self._fail_outstanding(lambda each: own.get(each) or ConnectionLost(self.address, why, each.sent))

    def _fail_outstanding(self, error_of: Callable[[InFlightRequest[Any]], OdradekError]) -> None:
        outstanding = self._outstanding()
        self._awaiting.clear()
        self._writing.clear()
        self._queued.clear()
        self._queued_bytes = 0
        self.epoch += 1
        for pending in outstanding:
            self._settle(pending, None, error_of(pending))

    def _outstanding(self) -> list[InFlightRequest[Any]]:
        return sorted((*self._awaiting, *self._writing, *self._queued), key=attrgetter("number"))

    def _settle(self, pending: InFlightRequest[T], value: T | None, error: OdradekError | None) -> None:
        try:
            pending.settle(value, error)
        except Exception as bug:  # of who is called back
            self._crash(bug)

    def _crash(self, bug: Exception) -> None:
        self._bug = self._bug or bug
        self.close()

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
            self._expire(self._clock())

    def _expire(self, now: float) -> None:
        outstanding = self._outstanding()
        late = {
            pending: _caused(DeadlineError(self.address, pending.limit_s, pending.sent), self._refusal)
            for pending in outstanding
            if pending.deadline <= now
        }
        self._set_alarm(math.inf if late else min((each.deadline for each in outstanding), default=math.inf))
        if not late:
            return
        why = f"no answer within {next(iter(late)).limit_s:g} s"
        if self._link is not None:
            self._lose(why, late)
        else:
            neighbour = partial(ConnectionLost, self.address, why, False)
            self._fail_outstanding(lambda each: late.get(each) or _caused(neighbour(), self._refusal))


def _caused(error: OdradekError, cause: OdradekError | None) -> OdradekError:
    error.__cause__ = cause
    return error
