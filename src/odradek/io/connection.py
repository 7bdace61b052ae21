"""The connection to one broker: pipelined requests, responses in order.

A *request* is bytes that are sent together and, unless it has no response, one response. `submit` queues one, in order,
and returns an `InFlightRequest` to await. No task lies between a caller and the socket: a `Transport` asks for what is
queued and writes it in few sends; what it reads it passes to the response decoders in order, and each complete response
resolves its request in the same step (`io.request_pipeline`). Two tasks do the rest: one connects and runs the
transport, one watches the deadlines.

These hold, whatever the network does:

* Every request gets exactly one result: its response, or an error whose `sent` says whether it may have been applied.
* When a request fails for want of a response, everything submitted before that moment fails too. Requests that are
submitted afterwards are sent over a new connection. So all requests of one `incarnation` use one connection or none.
* Cancelling one caller does not affect another: the response to a request without a waiter is read and dropped.
* A callback may submit and close, even in the middle of a read: the state is consistent by then.
* A request is encoded when it leaves the queue, after the handshake of its connection. A handshake may need several
  connections; nothing that is queued fails in between.
* A defect in a decoder, an encoder or a callback costs the requests on this connection and nothing else: they fail with
  an error that names it as the cause, and the next request opens a new connection.

The connection runs in a task group of its owner, started from any task at any time:
`task_group.start_soon(connection.run)`, because a cancel scope entered in one task cannot be left in another.
`async with connection` is the short form for an owner that opens and closes it in one task.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from random import random
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
from anyio.abc import ByteStream, TaskGroup, TaskStatus

from odradek.engine import Buffer
from odradek.errors import Closed, Unreachable
from odradek.io.connection_state import CONNECTION, ConnectionOptions, Event, State, Statistics
from odradek.io.notifier import Notifier
from odradek.io.observation import ConnectionObservation, RequestObservation
from odradek.io.request_errors import ErrorOf, connection_lost, copies_of, deadline_passed, internal_error
from odradek.io.request_pipeline import RequestPipeline
from odradek.io.requests import (
    Handshake,
    InFlightRequest,
    RequestEncoder,
    RequestQueue,
    ResponseDecoder,
    no_handshake,
)
from odradek.io.tcp import connect
from odradek.io.transport import CLOSE_S, StreamTransport, Transport, on_asyncio

__all__ = ["CONNECTION", "Connect", "Connection", "ConnectionOptions", "Event", "State", "Statistics"]

T = TypeVar("T")

Connect = Callable[[str, int, float], Awaitable[Transport | ByteStream]]
"""`io.tcp.connect`, or a stand-in for it."""


class Connection:
    """The connection to one broker, opened when first needed and opened again, with back-off, after a loss.

    Args:
        host, port: Where the broker listens.
        connect: Makes the transport, or a byte stream to make one of; raises Unreachable.
        handshake: Begins the handshake of each new connection.
        options: See ConnectionOptions.
        observation: Told of what happens to this connection.
        on_resumed: Called at the end of a pause, before anything is sent.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect: Connect = connect,
        handshake: Callable[[], Handshake] = no_handshake,
        options: ConnectionOptions | None = None,
        observation: ConnectionObservation | None = None,
        on_resumed: Callable[[], None] = lambda: None,
    ) -> None:
        self.observation, self._on_resumed = observation, on_resumed
        self.host, self.port, self.options = host, port, options or ConnectionOptions()
        self.address = f"{host}:{port}"
        self.state = CONNECTION.start
        self.incarnation = 0
        """Grows whenever everything outstanding has failed: requests of one incarnation share one connection."""
        self.session: Any = None
        """The session that the last handshake returned."""
        self._connect, self._new_handshake = connect, handshake
        self._clock = anyio.current_time
        self._queue = RequestQueue()
        self._submitted = Notifier()
        self._pipeline: RequestPipeline | None = None  # over the present transport
        self._interrupted: Handshake | None = None  # one that continues on the next transport
        self._scope: anyio.CancelScope | None = None  # around everything
        self._ended: anyio.Event | None = None
        self._group: TaskGroup | None = None
        self._next_deadline = math.inf
        self._resume_at, self._used_at = -math.inf, 0.0
        self._deadline_scope: anyio.CancelScope | None = None  # around the sleep of the task that watches deadlines
        self.available_at = -math.inf
        """The time of the event loop from which on a request is not delayed by the back-off after a loss or a failed
        attempt to connect. In the past unless there is a back-off."""
        self._attempts = 0
        self._connected_at = 0.0
        self.refusal: Unreachable | None = None
        """Why the last attempt to connect failed; None if it did not."""
        self._last_error = ""
        self._connects = self._losses = 0
        self.throttled_seconds = 0.0
        """The time that responses said this client is throttled, whether it waits or the broker has waited (s)."""

    # ---- the caller's side -----------------------------------------------------------------------------------

    def submit(
        self,
        buffers: Sequence[Buffer],
        reply: ResponseDecoder[T] | None,
        *,
        deadline_s: float,
        request: RequestEncoder[T] | None = None,
        observation: RequestObservation | None = None,
    ) -> InFlightRequest[T]:
        """Queue a request, after everything submitted before.

        Never blocks: bounding what is queued is left to the caller (see `queued_bytes`). May be called before `run`
        has started. While there is no connection, the request waits for the next attempt to connect and fails with it.

        Args:
            buffers: The bytes to send, contiguously; they must not change before the result exists.
            reply: Decodes the response; None if none is expected: the result is then None, once all bytes are written.
            deadline_s: Seconds from now to the result. When they pass, the connection is closed (a later response
                could not be told from the next one), and the request fails with DeadlineError. While responses arrive
                on the connection, slowly, or the broker has asked for a pause, it gets more time (see
                `InFlightRequest.extend`).
            request: Instead of `buffers` and `reply`: encoded when it leaves the queue, for the session of the
                handshake.
            observation: Told of its size and its result.

        Raises:
            Closed: This connection was closed.
        """
        if self.state is State.CLOSED:
            raise Closed(f"connection to {self.address} is closed")
        self._used_at = now = self._clock()
        deadline, queue = now + deadline_s, self._queue
        size = request.size if request is not None else sum(map(len, buffers))
        queue.requests += 1
        pending = InFlightRequest(queue.requests, buffers, reply, request, size, deadline, deadline_s, queue)
        pending.observation = observation
        queue.queued.append(pending)
        queue.queued_bytes += size
        if deadline < self._next_deadline:
            self._set_deadline(deadline)
        if self._pipeline is None:
            self._submitted.notify()
        else:
            self._pipeline.request_queued()
        return pending

    def renew_handshake(self, handshake: Handshake) -> bool:
        """Run another handshake on the live connection: nothing else is sent until it has returned another session.

        Return False, and do nothing, unless there is a connection that is ready.

        Args:
            handshake: Not begun; it must not ask for another connection.
        """
        if self.state is not State.CONNECTED or self._pipeline is None:
            return False
        self._move(Event.HANDSHAKE_DUE)
        self._pipeline.renew_handshake(handshake)
        return True

    def pause_sending(self, seconds: float) -> None:
        """Send nothing for so long, as the broker of this connection asked. It ends with the connection. The time
        limits of requests begin again at the end of the pause, also those of a handshake on a live connection."""
        resume_at = self._clock() + seconds
        if self.state is State.CONNECTED:
            self._move(Event.THROTTLED)
        if self.state is State.THROTTLED:
            self._resume_at = max(self._resume_at, resume_at)
            self.expect_by(self._resume_at)
        elif self.state is State.HANDSHAKING:
            self._restart_limits(resume_at)

    @property
    def queued_bytes(self) -> int:
        """Bytes submitted and not yet handed to the socket."""
        return self._queue.queued_bytes

    def statistics(self) -> Statistics:
        """Return `Statistics`."""
        queue = self._queue
        return Statistics(
            self.state,
            len(queue.queued),
            queue.queued_bytes,
            queue.in_flight,
            queue.requests,
            queue.sent_bytes,
            queue.received_bytes,
            self._connects,
            self._losses,
            self._attempts,
            self._last_error,
            self.throttled_seconds,
        )

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<Connection {self.address} {s.state.value}, {s.in_flight} in flight, {s.queued} queued>"

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Work until closed or cancelled; at the end everything outstanding fails with ConnectionLost. Runs once.

        Raises InternalError for a defect of the connection itself; everything outstanding has failed with it then.
        """
        self._ended = anyio.Event()
        if on_asyncio():
            loop = self._queue.loop = asyncio.get_running_loop()
            self._clock = loop.time  # the same as anyio's clock, without 0.7 us of asking which loop runs
            if self.observation is not None:
                self.observation.clock = loop.time
        try:
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                task_status.started()
                if self.state is not State.CLOSED:
                    group.start_soon(self._watch_deadlines)
                    await self._keep_connected()
        except Exception as error:
            defect = internal_error(self.address, error)
            self._close(copies_of(defect))
            raise defect from defect.__cause__
        finally:
            self.close()
            self._ended.set()

    def close(self) -> None:
        """Close now: what is outstanding fails with ConnectionLost. Idempotent. `run` ends when all is closed."""
        self._close(connection_lost(self.address, "closed by this client"))

    def _close(self, error_of: ErrorOf) -> None:
        if self.state is State.CLOSED:
            return
        self._move(Event.CLOSE)
        self._detach()
        if self.observation is not None:
            self.observation.ended("closed by this client", lost=False)
        if self._scope is not None:
            self._scope.cancel()
        self._fail_outstanding(error_of)

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
            while not self._queue.queued:
                await self._submitted.wait(self._submitted.version)
            self._move(Event.REQUESTED)
            await anyio.sleep_until(self.available_at)
            if not self._queue.queued:  # their deadlines passed
                self._move(Event.QUEUE_EMPTY)
                continue
            self._move(Event.BACKOFF_OVER)
            if self.observation is not None:
                self.observation.connecting()
            try:
                stream = await self._connect(self.host, self.port, self.options.connect_timeout_s)
            except Unreachable as error:
                self._on_connect_failed(error)
            else:
                await self._serve(stream)

    def _on_connect_failed(self, error: Unreachable) -> None:
        self._last_error, self.refusal, self._interrupted = str(error), error, None
        if self.observation is not None:
            self.observation.ended(str(error))
        self._move(Event.CONNECT_FAILED)
        self._back_off()
        self._fail_outstanding(copies_of(error))

    async def _serve(self, stream: Transport | ByteStream) -> None:
        """Handshake, read and write until the transport is lost."""
        self.refusal = self.session = None
        self._connects += 1
        self._connected_at = self._clock()
        self._move(Event.CONNECTED)
        transport = StreamTransport(stream) if isinstance(stream, ByteStream) else stream
        handshake, self._interrupted = self._interrupted or self._new_handshake(), None
        limit_s = self.options.connect_timeout_s
        pipeline = self._pipeline = RequestPipeline(transport, handshake, limit_s, self._queue, self, self._clock)
        await pipeline.run()

    def _detach(self) -> None:
        self._resume_at = -math.inf
        if self._pipeline is not None:
            self._pipeline.abort()
            self._pipeline = None

    def _back_off(self) -> None:
        self.available_at = self._clock() + self.options.backoff.delay(self._attempts, random())
        self._attempts += 1

    def _move(self, event: Event) -> None:
        if self.state is not State.CLOSED:  # a close overtakes waits that end in the same iteration of the loop
            self.state = CONNECTION.after(self.state, event)

    # ---- what the pipeline calls -----------------------------------------------------------------------------

    def handshake_completed(self, session: Any) -> None:
        """Send requests from now on (see `PipelineHost`)."""
        self.session = session
        self._move(Event.READY)
        if self.observation is not None:
            self.observation.opened()
        self.expect_by(self._following_deadline())

    def reconnect(self, handshake: Handshake) -> None:
        """Continue a handshake on another transport (see `PipelineHost`). Only its own request can be in flight."""
        self._move(Event.LOST)
        self._detach()
        self._queue.awaiting.clear()
        self._interrupted, self.available_at = handshake, -math.inf

    def lose(self, why: str, error_of: ErrorOf | None = None) -> None:
        """Drop the transport, and fail everything outstanding (see `PipelineHost`)."""
        established = self.state in (State.CONNECTED, State.THROTTLED)
        answered = self._pipeline is not None and self._pipeline.answered
        self._last_error = why
        self._losses += 1
        if self.observation is not None:
            self.observation.ended(why)
        self._move(Event.LOST)
        self._detach()
        if established and (answered or self._clock() - self._connected_at > self.options.backoff.max_s):
            self._attempts, self.available_at = 0, -math.inf
        else:  # a peer that closes the connection before its first response counts as unreachable
            self._back_off()
        self._fail_outstanding(error_of or connection_lost(self.address, why))

    def _fail_outstanding(self, error_of: ErrorOf) -> None:
        outstanding = self._queue.clear()
        self.incarnation += 1
        for pending in outstanding:
            if (bug := pending.resolve(None, error_of(pending))) is not None:
                internal_error(self.address, bug)

    # ---- deadlines -------------------------------------------------------------------------------------------

    def expect_by(self, deadline: float) -> None:
        """Look for late requests at this time, if not before (see `PipelineHost`)."""
        self._set_deadline(min(deadline, self._next_deadline))

    def _set_deadline(self, at: float) -> None:
        self._next_deadline = at
        if self._deadline_scope is not None:
            self._deadline_scope.deadline = at

    async def _watch_deadlines(self) -> None:
        """Sleep until the earliest deadline known. It is not moved back when responses arrive: looking again once per
        timeout is cheaper than keeping count."""
        while True:
            with anyio.CancelScope(deadline=self._next_deadline) as self._deadline_scope:
                await anyio.sleep_forever()
            self._expire(self._clock())

    def _expire(self, now: float) -> None:
        if self._pipeline is not None:  # which decides about more time
            self._pipeline.note_progress()
        if self.state is State.THROTTLED and now >= self._resume_at:
            self._move(Event.RESUMED)
            self._restart_limits(now)
            self._on_resumed()
            if self._pipeline is not None:
                self._pipeline.resume()
        outstanding, paused = self._queue.outstanding(), self.state is State.THROTTLED
        late = [pending for pending in outstanding if pending.deadline <= now]
        if not all(pending.extend(now, paused=paused) for pending in late):
            self._fail_late(late)
        elif not outstanding and self.state is State.CONNECTED and now >= self._used_at + self.options.max_idle_s:
            self._move(Event.UNUSED)
            self._detach()
            if self.observation is not None:
                self.observation.ended(f"unused for {self.options.max_idle_s:g} s", lost=False)
        self._set_deadline(self._following_deadline())

    def _restart_limits(self, at: float) -> None:
        """Give all requests their time limits again, from `at` on; one of a handshake is answered after the others."""
        latest = at
        for pending in self._queue.outstanding():
            pending.restart_limit(at if pending.end else latest)
            latest = max(latest, pending.deadline)

    def _following_deadline(self) -> float:
        outstanding = self._queue.outstanding()
        deadline = min((pending.deadline for pending in outstanding), default=math.inf)
        if self.state is State.THROTTLED:
            return min(deadline, self._resume_at)
        idle = not outstanding and self.state is State.CONNECTED
        return self._used_at + self.options.max_idle_s if idle else deadline

    def _fail_late(self, late: Sequence[InFlightRequest[Any]]) -> None:
        why = f"no answer within {late[0].limit_s:g} s"
        error_of = deadline_passed(self.address, why, frozenset(late), self.refusal)
        if self._pipeline is None:
            self._fail_outstanding(error_of)
        # Requests of callers wait for the end of a handshake, or are in flight before one on a live connection.
        elif all(pending.end for pending in late) or not self._pipeline.interrupt_handshake(error_of(late[-1])):
            self.lose(why, error_of)
