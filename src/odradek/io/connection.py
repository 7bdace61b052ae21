"""The connection to one broker: pipelined requests, responses in order.

A *request* is bytes that are sent together and, unless it has no response, one response. `submit` queues one, in order,
and returns an `InFlightRequest` to await. No task lies between a caller and the socket: a `Transport` asks for what is
queued and writes it in few sends; what it reads it passes to the response decoders in order, and each complete response
resolves its request in the same step. Two tasks do the rest: one connects and runs the transport, one watches the
deadlines.

What holds, whatever the network does:

* Every request gets exactly one result: its response, or an error whose `sent` says whether it may have been applied.
* When a request fails for want of a response, everything submitted before that moment fails too. What is submitted
  afterwards is sent over a new connection. So all requests of one `incarnation` use one connection or none.
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
import copy
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import random
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
from anyio.abc import ByteStream, TaskGroup, TaskStatus

from odradek.engine import Buffer
from odradek.errors import (
    Closed,
    ConnectionLost,
    DeadlineError,
    InternalError,
    OdradekError,
    RemoteProtocolError,
    Unreachable,
)
from odradek.io.connection_state import CONNECTION, ConnectionOptions, Event, State, Statistics
from odradek.io.notifier import Notifier
from odradek.io.requests import (
    COALESCE_BYTES,
    Handshake,
    InFlightRequest,
    Reconnect,
    RequestEncoder,
    RequestQueue,
    ResponseDecoder,
    no_handshake,
    resume_handshake,
)
from odradek.io.tcp import connect
from odradek.io.transport import CLOSE_S, StreamTransport, Transport, on_asyncio

__all__ = ["CONNECTION", "Connect", "Connection", "ConnectionOptions", "Event", "State", "Statistics"]

log = logging.getLogger(__name__)

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
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect: Connect = connect,
        handshake: Callable[[], Handshake] = no_handshake,
        options: ConnectionOptions | None = None,
    ) -> None:
        self.host, self.port, self.options = host, port, options or ConnectionOptions()
        self.address = f"{host}:{port}"
        self.state = CONNECTION.start
        self.incarnation = 0
        """Grows whenever everything outstanding has failed: requests of one incarnation share one connection."""
        self.session: Any = None
        """What the last handshake returned."""
        self._connect, self._new_handshake = connect, handshake
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock = anyio.current_time
        self._queue = RequestQueue()
        self._submitted = Notifier()
        self._transport: Transport | None = None
        self._handshake: Handshake | None = None  # while it lasts
        self._handshake_request: InFlightRequest[Any] | None = None  # its next request, not sent yet
        self._interrupted: Handshake | None = None  # one that continues on the next connection
        self._in_callback = False  # in a call of the transport: what is submitted now is sent together at its end
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
        self._connected_at, self._answered = 0.0, False
        self.refusal: Unreachable | None = None
        """Why the last attempt to connect failed; None if it did not."""
        self._last_error = ""
        self._requests = self._sent_bytes = self._received_bytes = self._connects = self._losses = 0

    # ---- the caller's side -----------------------------------------------------------------------------------

    def submit(
        self,
        buffers: Sequence[Buffer],
        reply: ResponseDecoder[T] | None,
        *,
        deadline_s: float,
        request: RequestEncoder[T] | None = None,
    ) -> InFlightRequest[T]:
        """Queue a request, after everything submitted before.

        Never blocks: bounding what is queued is left to the caller (see `queued_bytes`). May be called before `run`
        has started. While there is no connection, the request waits for the next attempt to connect and fails with it.

        Args:
            buffers: What is sent, contiguously; must not change before the result exists.
            reply: Decodes the response; None if none is expected: the result is then None, once all bytes are written.
            deadline_s: Seconds from now to the result. When they pass, the connection is closed (a later response
                could not be told from the next one), and the request fails with DeadlineError.
            request: Instead of `buffers` and `reply`: encoded when it leaves the queue, for the session of the
                handshake.

        Raises:
            Closed: This connection was closed.
        """
        if self.state is State.CLOSED:
            raise Closed(f"connection to {self.address} is closed")
        self._requests += 1
        self._used_at = now = self._clock()
        deadline, queue = now + deadline_s, self._queue
        size = request.size if request is not None else sum(map(len, buffers))
        pending = InFlightRequest(
            self._requests, buffers, reply, request, size, deadline, deadline_s, queue, self._loop
        )
        queue.queued.append(pending)
        queue.queued_bytes += size
        if deadline < self._next_deadline:
            self._set_deadline(deadline)
        if self._transport is None:
            self._submitted.notify()
        elif queue.awaiting or queue.writing:  # many requests make few sends
            if not self._in_callback:
                self._transport.write_soon()
        elif not self._in_callback:  # a caller waits for just this
            self._transport.write()
        return pending

    def submit_request(self, request: RequestEncoder[T], *, deadline_s: float) -> InFlightRequest[T]:
        """Queue a request that is encoded when it leaves the queue, for the session of the handshake. See `submit`."""
        return self.submit((), None, deadline_s=deadline_s, request=request)

    def renew_handshake(self, handshake: Handshake) -> bool:
        """Run another handshake on the live connection: nothing else is sent until it has returned another session.

        Return False, and do nothing, unless there is a connection that is ready.

        Args:
            handshake: Not begun; it must not ask for another connection.
        """
        if self.state is not State.CONNECTED:
            return False
        self._move(Event.HANDSHAKE_DUE)
        self._handshake = handshake
        self._advance_handshake(handshake, None)
        return True

    def pause_sending(self, seconds: float) -> None:
        """Send nothing for so long, as the broker of this connection asked. It ends with the connection."""
        if self.state is State.CONNECTED:
            self._move(Event.THROTTLED)
        if self.state is State.THROTTLED:
            self._resume_at = max(self._resume_at, self._clock() + seconds)
            self._set_deadline(min(self._next_deadline, self._resume_at))

    @property
    def queued_bytes(self) -> int:
        """Bytes submitted and not yet handed to the socket."""
        return self._queue.queued_bytes

    def statistics(self) -> Statistics:
        return Statistics(
            self.state,
            len(self._queue.queued),
            self._queue.queued_bytes,
            self._queue.in_flight,
            self._requests,
            self._sent_bytes,
            self._received_bytes,
            self._connects,
            self._losses,
            self._attempts,
            self._last_error,
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
            self._loop = asyncio.get_running_loop()
            self._clock = self._loop.time  # the same as anyio's clock, without 0.7 us of asking which loop runs
        try:
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                task_status.started()
                if self.state is not State.CLOSED:
                    group.start_soon(self._watch_deadlines)
                    await self._keep_connected()
        except Exception as error:
            defect = self._defect(error)
            self._close(lambda pending: _copy(defect, pending))
            raise defect from defect.__cause__
        finally:
            self.close()
            self._ended.set()

    def close(self) -> None:
        """Close now: what is outstanding fails with ConnectionLost. Idempotent. `run` ends when all is closed."""
        self._close(lambda pending: ConnectionLost(self.address, "closed by this client", pending.sent))

    def _close(self, error_of: Callable[[InFlightRequest[Any]], OdradekError]) -> None:
        if self.state is State.CLOSED:
            return
        self._move(Event.CLOSE)
        self._detach()
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
            try:
                stream = await self._connect(self.host, self.port, self.options.connect_timeout_s)
            except Unreachable as error:
                self._on_connect_failed(error)
            else:
                await self._serve(stream)

    def _on_connect_failed(self, error: Unreachable) -> None:
        self._last_error, self.refusal, self._interrupted = str(error), error, None
        self._move(Event.CONNECT_FAILED)
        self._back_off()
        self._fail_outstanding(lambda pending: _copy(error, pending))

    async def _serve(self, stream: Transport | ByteStream) -> None:
        """Handshake, read and write until the transport is lost."""
        self.refusal, self.session, self._answered = None, None, False
        self._connects += 1
        self._connected_at = self._clock()
        self._move(Event.CONNECTED)
        transport = self._transport = StreamTransport(stream) if isinstance(stream, ByteStream) else stream
        handshake, self._interrupted = self._interrupted or self._new_handshake(), None
        self._handshake = handshake
        self._advance_handshake(handshake, None)
        await transport.run(self)

    def _detach(self) -> None:
        self._handshake = self._handshake_request = None
        self._resume_at = -math.inf
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _back_off(self) -> None:
        self.available_at = self._clock() + self.options.backoff.delay(self._attempts, random())
        self._attempts += 1

    def _move(self, event: Event) -> None:
        if self.state is not State.CLOSED:  # a close overtakes waits that end in the same iteration of the loop
            self.state = CONNECTION.after(self.state, event)

    # ---- the handshake ---------------------------------------------------------------------------------------

    def _advance_handshake(self, handshake: Handshake, answered: InFlightRequest[Any] | None) -> None:
        """Take the next step of the handshake: `answered` is its last request, which has its result."""
        if handshake is not self._handshake:
            return  # that connection is lost
        try:
            step = resume_handshake(handshake, answered)
        except StopIteration as end:
            self._handshake, self.session = None, end.value
            self._answered = False  # no request has been
            self._move(Event.READY)
            self._set_deadline(min(self._next_deadline, self._following_deadline()))
        except Exception as error:
            self._fail_handshake(error)
            return
        else:
            if isinstance(step, Reconnect):
                self._reconnect(handshake)
                return
            self._queue_handshake_request(handshake, step)
        if self._transport is not None and not self._in_callback:
            self._transport.write()

    def _queue_handshake_request(self, handshake: Handshake, request: RequestEncoder[Any]) -> None:
        self._requests += 1
        limit_s = self.options.connect_timeout_s
        before = (earlier.deadline for earlier in self._queue.awaiting)  # of a live connection: answered first
        deadline = max((self._clock(), *before)) + limit_s
        pending = InFlightRequest(
            self._requests, (), None, request, request.size, deadline, limit_s, self._queue, self._loop
        )
        pending.add_done_callback(partial(self._advance_handshake, handshake, pending))
        if self._encode(pending):
            # Awaited before it is sent: late answers to the request before it may be here already.
            self._queue.awaiting.append(pending)
            self._handshake_request = pending
            self._set_deadline(min(deadline, self._next_deadline))

    def _interrupt_handshake(self, error: OdradekError) -> bool:
        """Pass on to the handshake that its connection is lost. Return False if there is none."""
        handshake, self._handshake = self._handshake, None
        if handshake is None:
            return False
        try:
            step = handshake.throw(error)
        except Exception as failure:  # StopIteration, too: without a connection there is no session
            self._fail_handshake(failure)
        else:
            if isinstance(step, Reconnect):
                self._reconnect(handshake)
            else:
                self._fail_handshake(RuntimeError("a request of a handshake, and no connection to send it over"))
        return True

    def _fail_handshake(self, error: Exception) -> None:
        failure = error if isinstance(error, OdradekError) else self._defect(error)
        self._lose(str(failure), lambda pending: _copy(failure, pending))

    def _reconnect(self, handshake: Handshake) -> None:
        """Continue the handshake on another connection. Only its own request can be in flight."""
        self._move(Event.LOST)
        self._detach()
        self._queue.awaiting.clear()
        self._interrupted, self.available_at = handshake, -math.inf

    # ---- what the transport calls ----------------------------------------------------------------------------

    def data_to_send(self) -> list[Buffer]:
        """Return the next burst (TransportHandler). Any byte of it may have reached the peer from here on."""
        if self.state is not State.CONNECTED:
            return self._handshake_to_send()
        burst: list[Buffer] = []
        size = 0
        queue = self._queue
        while queue.queued and size < COALESCE_BYTES:
            pending = queue.queued.popleft()
            queue.queued_bytes -= pending.size
            if pending.request is not None and not self._encode(pending):
                continue
            size += pending.size
            pending.sent = True
            burst += pending.buffers
            pending.buffers = ()
            (queue.writing if pending.reply is None else queue.awaiting).append(pending)
        self._sent_bytes += size
        return burst if len(burst) < 2 or sum(map(len, burst)) > COALESCE_BYTES else [b"".join(burst)]

    def _handshake_to_send(self) -> list[Buffer]:
        pending, self._handshake_request = self._handshake_request, None
        if pending is None:
            return []
        pending.sent = True
        burst, pending.buffers = list(pending.buffers), ()
        return burst

    def _encode(self, pending: InFlightRequest[Any]) -> bool:
        """Encode a request for the session. Return False if nothing is to be sent: then it has its result, such as
        the reason why it cannot be encoded."""
        assert pending.request is not None
        failure: OdradekError | None = None
        try:
            pending.buffers, pending.reply = pending.request.encode(self.session)
        except Exception as error:
            failure = error if isinstance(error, OdradekError) else self._defect(error)
            failure.sent = False
        if failure is None and (pending.buffers or pending.reply is not None):
            pending.request = None
            return True
        inside, self._in_callback = self._in_callback, True
        self._resolve(pending, None, failure)
        self._in_callback = inside
        return False

    def data_sent(self) -> None:
        """Resolve what has no response (TransportHandler)."""
        written, self._queue.writing = self._queue.writing, []
        self._in_callback = True
        for pending in written:
            self._resolve(pending, None, None)
        self._in_callback = False
        if (self._queue.queued or self._handshake_request) and self._transport is not None:
            self._transport.write_soon()

    def data_received(self, data: memoryview) -> None:
        """Decode responses (TransportHandler)."""
        self._received_bytes += len(data)
        self._in_callback = True
        try:
            self._decode(data)
        except Exception as error:
            self._answered = False  # this was no response: back off before the next connection
            failure = error if isinstance(error, OdradekError) else self._defect(error)
            if isinstance(failure, InternalError) or not self._interrupt_handshake(failure):
                self._lose_with(failure, self._queue.awaiting[0] if self._queue.awaiting else None)
        self._in_callback = False
        if (self._queue.queued or self._handshake_request) and self._transport is not None:
            self._transport.write()

    def connection_lost(self, why: str) -> None:
        """Fail what is outstanding (TransportHandler)."""
        if not self._interrupt_handshake(ConnectionLost(self.address, why, True)):
            self._lose(why)

    def _decode(self, data: memoryview) -> None:
        """Feed received bytes to the responses they belong to."""
        transport, awaiting = self._transport, self._queue.awaiting
        while data and self._transport is transport:  # a callback may close it
            if not awaiting:
                raise RemoteProtocolError(f"received {len(data)} bytes with no request outstanding")
            pending = awaiting[0]
            reply = pending.reply
            assert reply is not None  # requests without a response are never here
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
            awaiting.popleft()
            self._answered = True
            self._resolve(pending, value, failed)

    # ---- failures --------------------------------------------------------------------------------------------

    def _lose(self, why: str, error_of: Callable[[InFlightRequest[Any]], OdradekError] | None = None) -> None:
        """The transport is of no use any more: everything outstanding fails, with ConnectionLost by default."""
        established = self.state in (State.CONNECTED, State.THROTTLED)
        self._last_error = why
        self._losses += 1
        self._move(Event.LOST)
        self._detach()
        if established and (self._answered or self._clock() - self._connected_at > self.options.backoff.max_s):
            self._attempts, self.available_at = 0, -math.inf
        else:  # a peer that accepts and hangs up before it has answered is as good as none
            self._back_off()
        self._fail_outstanding(error_of or (lambda pending: ConnectionLost(self.address, why, pending.sent)))

    def _lose_with(self, error: OdradekError, culprit: InFlightRequest[Any] | None = None) -> None:
        """`culprit` fails with `error`, everything else outstanding because of it."""

        def error_of(pending: InFlightRequest[Any]) -> OdradekError:
            if pending is culprit:
                return error
            return _caused(ConnectionLost(self.address, error.message(), pending.sent), error)

        self._lose(error.message(), error_of)

    def _fail_outstanding(self, error_of: Callable[[InFlightRequest[Any]], OdradekError]) -> None:
        outstanding = self._queue.clear()
        self.incarnation += 1
        for pending in outstanding:
            self._resolve(pending, None, error_of(pending))

    def _resolve(self, pending: InFlightRequest[T], value: T | None, error: OdradekError | None) -> None:
        try:
            pending.resolve(value, error)
        except Exception as bug:  # of a callback
            defect = self._defect(bug)
            if self._transport is not None:
                self._lose_with(defect)

    def _defect(self, bug: Exception) -> InternalError:
        """Log a defect with its traceback, and return the error that stands for it."""
        cause = bug
        while isinstance(cause, ExceptionGroup) and len(cause.exceptions) == 1:
            cause = cause.exceptions[0]
        defect = InternalError(f"connection to {self.address}: {type(cause).__name__}: {cause}")
        defect.__cause__ = cause
        log.error("%s; its requests fail, the next one connects again", defect.message(), exc_info=cause)
        return defect

    # ---- deadlines -------------------------------------------------------------------------------------------

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
        if self.state is State.THROTTLED and now >= self._resume_at:
            self._move(Event.RESUMED)
            if self._transport is not None:
                self._transport.write()
        outstanding = self._queue.outstanding()
        if late := [pending for pending in outstanding if pending.deadline <= now]:
            self._fail_late(late)
        elif not outstanding and self.state is State.CONNECTED and now >= self._used_at + self.options.max_idle_s:
            self._move(Event.UNUSED)
            self._detach()
        self._set_deadline(self._following_deadline())

    def _following_deadline(self) -> float:
        outstanding = self._queue.outstanding()
        deadline = min((pending.deadline for pending in outstanding), default=math.inf)
        if self.state is State.THROTTLED:
            return min(deadline, self._resume_at)
        idle = not outstanding and self.state is State.CONNECTED
        return self._used_at + self.options.max_idle_s if idle else deadline

    def _fail_late(self, late: Sequence[InFlightRequest[Any]]) -> None:
        refusal, handshake = self.refusal, self._handshake
        errors = {
            pending: _caused(DeadlineError(self.address, pending.limit_s, pending.sent), refusal) for pending in late
        }
        if handshake is not None and any(pending.request is None and pending.sent for pending in late):
            self._interrupt_handshake(errors[late[-1]])
            return
        why = f"no answer within {late[0].limit_s:g} s"

        def error_of(pending: InFlightRequest[Any]) -> OdradekError:
            return errors.get(pending) or _caused(ConnectionLost(self.address, why, pending.sent), refusal)

        if self._transport is not None:
            self._lose(why, error_of)
        else:
            self._fail_outstanding(error_of)


def _copy(error: OdradekError, pending: InFlightRequest[Any]) -> OdradekError:
    """Return an error of the connection for one of its requests."""
    own = copy.copy(error)
    own.sent = pending.sent
    return _caused(own, error)


def _caused(error: OdradekError, cause: BaseException | None) -> OdradekError:
    error.__cause__ = cause
    return error
