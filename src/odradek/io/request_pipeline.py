"""The requests of one connection over one transport: the handshake, then requests out and responses in, both in order.

A pipeline lasts as long as its transport. The queue it sends from belongs to the connection, and lasts longer.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from odradek.engine import Buffer
from odradek.errors import ConnectionLost, InternalError, OdradekError, RemoteProtocolError
from odradek.io.connection_state import State
from odradek.io.request_errors import ErrorOf, copies_of, internal_error, lost_because
from odradek.io.requests import (
    COALESCE_BYTES,
    Handshake,
    InFlightRequest,
    Reconnect,
    RequestEncoder,
    RequestQueue,
    resume_handshake,
)
from odradek.io.tls import tls_error
from odradek.io.transport import Transport
from odradek.wire.decoding import SIZE_BYTES, read_size

__all__ = ["PipelineHost", "RequestPipeline"]


def _missing_bytes(data: memoryview, whole_bytes: int) -> int:
    """Return how many bytes at least are missing of a response of which `data` is the first part, 0 if it is whole or
    is of more than `whole_bytes` when it is."""
    if len(data) < SIZE_BYTES:
        return SIZE_BYTES - len(data)
    size: int = SIZE_BYTES + read_size(data)[0]
    return size - len(data) if len(data) < size <= whole_bytes else 0


class PipelineHost(Protocol):
    """Interface of the connection that owns a pipeline."""

    address: str
    state: State
    session: Any
    """Value that the last handshake returned: requests are encoded for it."""

    def handshake_completed(self, session: Any) -> None:
        """Allow requests to be sent."""
        ...

    def reconnect(self, handshake: Handshake) -> None:
        """Drop this pipeline, and continue its handshake on another transport."""
        ...

    def lose(self, why: str, error_of: ErrorOf | None = None) -> None:
        """Drop this pipeline, and fail everything outstanding: with ConnectionLost by default."""
        ...

    def expect_by(self, deadline: float) -> None:
        """Look for late requests at this time, if not before (s)."""
        ...


class RequestPipeline:
    """Handles one transport: `io.transport.TransportHandler`.

    Args:
        transport: Not run yet.
        handshake: Not begun, or interrupted by the loss of the transport before, for which it asked.
        handshake_limit_s: For each response of the handshake (s).
        queue: The requests of the connection.
        host: The connection.
        clock: That of the event loop (s).
    """

    def __init__(
        self,
        transport: Transport,
        handshake: Handshake,
        handshake_limit_s: float,
        queue: RequestQueue,
        host: PipelineHost,
        clock: Callable[[], float],
    ) -> None:
        self.answered = False
        """A request was answered since the handshake."""
        self._transport, self._queue, self._host, self._clock = transport, queue, host, clock
        self._handshake: Handshake | None = handshake  # while it lasts
        self._handshake_limit_s = handshake_limit_s
        self._handshake_request: InFlightRequest[Any] | None = None  # its next request, not sent yet
        self._open = True
        self._is_begun = False  # the first response awaited: it was fed, and is not complete
        self._left = 0  # bytes that were left to the transport
        self.missing_bytes = 0
        """Those that have not arrived of the response whose first part was left (TransportHandler)."""
        self._in_callback = False  # in a call of the transport: what is submitted now is sent together at its end

    async def run(self) -> None:
        """Send and receive until the transport is lost or this pipeline is aborted."""
        self._advance_handshake(None)
        if self._open:
            await self._transport.run(self)
        else:  # the handshake has failed before its first byte
            await self._transport.aclose()

    def abort(self) -> None:
        """End now: nothing is sent, received or reported any more."""
        self._open = False
        self._handshake = self._handshake_request = None
        self._transport.abort()

    def request_queued(self) -> None:
        """Send what has just been queued: at once if a caller waits for just this; many requests make few sends."""
        if self._in_callback:
            return
        if self._queue.awaiting or self._queue.writing:
            self._transport.write_soon()
        else:
            self._transport.write()

    def resume(self) -> None:
        """Send what is queued, after a pause."""
        self._transport.write()

    def note_progress(self) -> None:
        """Receive what has arrived so far, though the transport waits for more, and note which bytes have left."""
        self._transport.read_unseen()
        queue, unsent = self._queue, self._transport.unsent_bytes()
        if unsent is not None:
            queue.acknowledged_bytes = max(queue.acknowledged_bytes, queue.sent_bytes - unsent)

    # ---- the handshake ---------------------------------------------------------------------------------------

    def renew_handshake(self, handshake: Handshake) -> None:
        """Begin another handshake, after the one before is complete: no other request is sent while it lasts."""
        self._handshake = handshake
        self._advance_handshake(None)

    def interrupt_handshake(self, error: OdradekError) -> bool:
        """Pass on to the handshake that the transport is lost. Return False if there is none."""
        handshake, self._handshake = self._handshake, None
        if handshake is None:
            return False
        try:
            step = handshake.throw(error)
        except Exception as failure:  # StopIteration, too: without a connection there is no session
            self._fail_handshake(failure)
        else:
            if isinstance(step, Reconnect):
                self._host.reconnect(handshake)
            else:
                self._fail_handshake(RuntimeError("a request of a handshake, and no connection to send it over"))
        return True

    def _advance_handshake(self, answered: InFlightRequest[Any] | None) -> None:
        """Take the next step of the handshake: `answered` is its last request, which has its result."""
        handshake = self._handshake
        if handshake is None:
            return  # the transport is lost
        try:
            step = resume_handshake(handshake, answered)
        except StopIteration as end:
            self._handshake, self.answered = None, False
            self._host.handshake_completed(end.value)
        except Exception as error:
            self._fail_handshake(error)
            return
        else:
            if isinstance(step, Reconnect):
                self._host.reconnect(handshake)
                return
            self._queue_handshake_request(step)
        if self._open and not self._in_callback:
            self._transport.write()

    def _queue_handshake_request(self, request: RequestEncoder[Any]) -> None:
        queue, limit_s = self._queue, self._handshake_limit_s
        before = (earlier.deadline for earlier in queue.awaiting)  # of a live connection: answered first
        deadline = max((self._clock(), *before)) + limit_s
        queue.requests += 1
        pending = InFlightRequest(queue.requests, (), None, request, request.size, deadline, limit_s, queue)
        pending.end = 0
        pending.add_done_callback(partial(self._advance_handshake, pending))
        if self._encode(pending):
            if pending.reply is not None:
                # Awaited before it is sent: late answers to the request before it may be here already.
                queue.awaiting.append(pending)
            self._handshake_request = pending
            self._host.expect_by(deadline)

    def _fail_handshake(self, error: Exception) -> None:
        failure = error if isinstance(error, OdradekError) else internal_error(self._host.address, error)
        self._host.lose(str(failure), copies_of(failure))

    # ---- what the transport calls ----------------------------------------------------------------------------

    def data_to_send(self) -> list[Buffer]:
        """Return the next burst (TransportHandler). Any byte of it may have reached the peer from here on."""
        if self._host.state is not State.CONNECTED:
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
            pending.sent, pending.end = True, queue.sent_bytes + size
            if pending.observation is not None:
                pending.observation.sent_bytes = sum(map(len, pending.buffers))
            burst += pending.buffers
            pending.buffers = ()
            (queue.writing if pending.reply is None else queue.awaiting).append(pending)
        queue.sent_bytes += size
        return burst if len(burst) < 2 or sum(map(len, burst)) > COALESCE_BYTES else [b"".join(burst)]

    def _handshake_to_send(self) -> list[Buffer]:
        pending, self._handshake_request = self._handshake_request, None
        if pending is None:
            return []
        pending.sent = True
        if pending.reply is None:
            self._queue.writing.append(pending)
        burst, pending.buffers = list(pending.buffers), ()
        return burst

    def _encode(self, pending: InFlightRequest[Any]) -> bool:
        """Encode a request for the session. Return False if nothing is to be sent: then it has its result, such as
        the reason why it cannot be encoded."""
        assert pending.request is not None
        failure: OdradekError | None = None
        try:
            pending.buffers, pending.reply = pending.request.encode(self._host.session)
        except Exception as error:
            failure = error if isinstance(error, OdradekError) else internal_error(self._host.address, error)
            failure.sent = False
        if failure is None and (pending.buffers or pending.reply is not None):
            pending.request = None
            return True
        # A callback of its result may queue the next request while `data_to_send` is still filling a burst: it must not
        # begin another one inside, which `_in_callback` prevents. This may itself be called from a callback, so the
        # mark is put back as it was.
        inside, self._in_callback = self._in_callback, True
        if (bug := pending.resolve(None, failure)) is not None:
            self._callback_failed(bug)
        self._in_callback = inside
        return False

    def data_sent(self) -> None:
        """Resolve what has no response (TransportHandler)."""
        written, self._queue.writing = self._queue.writing, []
        self._in_callback = True
        for pending in written:
            if (bug := pending.resolve(None, None)) is not None:
                self._callback_failed(bug)
        self._in_callback = False
        if (self._queue.queued or self._handshake_request) and self._open:
            self._transport.write_soon()

    def data_received(self, data: memoryview, may_leave: bool) -> int:
        """Decode responses (TransportHandler)."""
        queue = self._queue
        queue.received_bytes += len(data) - self._left
        taken = len(data)
        self.missing_bytes = 0
        self._in_callback = True
        try:
            taken = self._decode(data, may_leave)
        except Exception as error:
            self._fail_decoding(error if isinstance(error, OdradekError) else internal_error(self._host.address, error))
        self._in_callback = False
        self._left = len(data) - taken
        if queue.awaiting or queue.queued or queue.writing:
            queue.received_at = self._clock()
        if (queue.queued or self._handshake_request) and self._open:
            self._transport.write()
        return taken

    def connection_lost(self, why: str, alert: ssl.SSLError | None = None) -> None:
        """Fail what is outstanding (TransportHandler)."""
        address = self._host.address
        error = ConnectionLost(address, why, True) if alert is None else tls_error(address, alert)
        if not self.interrupt_handshake(error):
            self._host.lose(why)

    def _decode(self, data: memoryview, may_leave: bool) -> int:
        """Feed received bytes to the responses they belong to. Return how many."""
        queue, received = self._queue, len(data)
        awaiting = queue.awaiting
        while data and self._open:  # a callback may close it
            if not awaiting:
                raise RemoteProtocolError(f"received {len(data)} bytes with no request outstanding")
            pending = awaiting[0]
            reply = pending.reply
            assert reply is not None  # requests without a response are never here
            if may_leave and not self._is_begun and reply.whole_bytes:
                self.missing_bytes = _missing_bytes(data, reply.whole_bytes)
                if self.missing_bytes:
                    break
            taken = reply.feed(data)
            if pending.observation is not None:
                pending.observation.received_bytes += taken
            data = data[taken:]
            self._is_begun = not reply.done
            if self._is_begun:
                break
            value = failed = None
            try:
                value = reply.result()
            except OdradekError as error:
                # After bytes that cannot be a response nothing says where the next one begins: that is the end of the
                # connection, and of all that await a response on it. Any other error is that of this request alone.
                if isinstance(error, RemoteProtocolError):
                    raise
                failed = error
            awaiting.popleft()
            self.answered = True
            queue.answered_at = self._clock() if awaiting else -math.inf
            queue.acknowledged_bytes = max(queue.acknowledged_bytes, pending.end)
            if (bug := pending.resolve(value, failed)) is not None:
                self._callback_failed(bug)
        return received - len(data)

    def _fail_decoding(self, failure: OdradekError) -> None:
        self.answered = False  # this was no response: back off before the next connection
        if isinstance(failure, InternalError) or not self.interrupt_handshake(failure):
            self._lose_with(failure, self._queue.awaiting[0] if self._queue.awaiting else None)

    def _callback_failed(self, bug: Exception) -> None:
        defect = internal_error(self._host.address, bug)
        if self._open:
            self._lose_with(defect, None)

    def _lose_with(self, error: OdradekError, culprit: InFlightRequest[Any] | None) -> None:
        self._host.lose(error.message(), lost_because(self._host.address, error, culprit))
