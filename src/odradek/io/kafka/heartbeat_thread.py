"""Heartbeats of a group member while its event loop is blocked.

A handler that calls `time.sleep`, or computes for a minute, stops everything on its event loop, heartbeats too: the
coordinator would remove the member, and the next one would get the same record. So a thread watches the loop. If the
loop does not report for a heartbeat interval, the thread opens a connection of its own, on an event loop of its own,
and sends the member's heartbeats until the loop runs again. A session may be no longer than three intervals, of which
one may have gone by when the loop blocks: the thread has to begin well before the second one ends.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import anyio

from odradek.errors import OdradekError
from odradek.io.kafka.connections import BrokerConnections
from odradek.types import Broker
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from odradek.wire.kafka.schema import Request, Response

__all__ = ["SIGNS_PER_INTERVAL", "Heartbeat", "HeartbeatThread", "SentHeartbeat"]

log = logging.getLogger("odradek.group")

SIGNS_PER_INTERVAL = 2
"""Times per heartbeat interval that the loop shows that it runs: after an interval without a sign it is blocked."""

CHECKS_PER_INTERVAL = 4
"""Times per heartbeat interval that the thread checks for a sign."""

POLL_S = 0.05
"""Time after which the thread notices that the loop runs again, or that it was stopped, while it sends (s)."""

PAUSE_S = 1.0
"""Time by which a sleep of the thread has to be late, and by a heartbeat interval, to be reported as a pause (s)."""

_REMOVED = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
)
_RUNNERS = ("asyncio", "trio", "anyio", "uvloop", "odradek")
"""Packages that run the user's coroutine functions."""


class Heartbeat(NamedTuple):
    """The request that keeps a member in its group, and the coordinator that it is for."""

    request: Request[Any]
    coordinator: Broker


class SentHeartbeat(NamedTuple):
    """A heartbeat that the thread has sent, and its response; None before there is one."""

    request: Request[Any]
    response: Response | None


class HeartbeatThread:
    """The thread of one member, from `start` to `stop`. It keeps no process alive.

    It cannot help against code that keeps Python's global lock, and not in the moments in which the member joins: its
    generation is unknown then, and the session timeout counts.

    Args:
        group: The group, for the log.
        new_connections: Makes connections for the event loop of the thread.
        interval_s: The heartbeat interval of the member (s).
        max_blocked_s: After a loop has been blocked this long, no more heartbeats are sent for it (s).
        rebalance_timeout_s: How long a rebalance waits for the member, for the log (s).
    """

    def __init__(
        self,
        group: str,
        new_connections: Callable[[], BrokerConnections],
        *,
        interval_s: float,
        max_blocked_s: float,
        rebalance_timeout_s: float,
    ) -> None:
        self._group, self._new_connections = group, new_connections
        self._interval_s, self._max_blocked_s = interval_s, max_blocked_s
        self._rebalance_timeout_s = rebalance_timeout_s
        self._heartbeat: Heartbeat | None = None
        self._alive_at = 0.0
        self._awake = _Times()
        self._loop_thread = 0
        self._stopped = threading.Event()
        self._sent: deque[SentHeartbeat] = deque(maxlen=1)  # the latest one that the loop has not taken

    # ---- called by the loop ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. It watches the loop of the calling thread."""
        self._loop_thread, self._alive_at = threading.get_ident(), time.monotonic()
        threading.Thread(target=self._run, name=f"odradek heartbeats of {self._group}", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end, without waiting for it."""
        self._stopped.set()

    def loop_runs(self, heartbeat: Heartbeat | None) -> None:
        """Note that the loop runs. Called `SIGNS_PER_INTERVAL` times at least, and when the generation changes.

        Args:
            heartbeat: The heartbeat to send once the loop is blocked, or None.
        """
        self._heartbeat, self._alive_at = heartbeat, time.monotonic()

    def take_sent(self) -> SentHeartbeat | None:
        """Return the latest heartbeat that the thread has sent, if the loop does not know it yet. One that has no
        response so far comes again when it has one."""
        return self._sent.pop() if self._sent else None

    # ---- in the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._awake = _Times()
        interval_s = self._interval_s / CHECKS_PER_INTERVAL
        while not self._stopped.wait(interval_s):
            self._leave_out_pause(interval_s)
            if self._is_blocked():
                self._name_blocking_call()
                anyio.run(self._stand_in)
                self._report_end()

    def _leave_out_pause(self, asked_s: float) -> None:
        """Do not count a time in which this thread could not run either, although it asked for a sleep of `asked_s`:
        no call in the loop is to blame for a process that was stopped."""
        before, self._awake = self._awake, _Times()
        late_s = self._awake.clock - before.clock - asked_s
        if late_s > max(PAUSE_S, self._interval_s):
            self._alive_at = min(self._awake.clock, self._alive_at + late_s)
            self._report_pause(late_s, self._awake.cpu - before.cpu)

    def _blocked_s(self) -> float:
        """Return for how long the loop has given no sign (s)."""
        return time.monotonic() - self._alive_at

    def _is_blocked(self) -> bool:
        """Return True while heartbeats have to be sent for the loop."""
        limits = self._interval_s < self._blocked_s() < self._max_blocked_s
        return limits and self._heartbeat is not None and not self._stopped.is_set()

    async def _stand_in(self) -> None:
        """Send heartbeats until the loop runs again, or for `max_blocked_s` in all."""
        async with self._new_connections() as connections, anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_heartbeats, connections)
            self._awake = _Times()
            while self._is_blocked():  # the loop that ends this must not pay for it
                await anyio.sleep(POLL_S)
                self._leave_out_pause(POLL_S)
            tasks.cancel_scope.cancel()

    async def _send_heartbeats(self, connections: BrokerConnections) -> None:
        problem = ""
        while self._is_blocked() and (heartbeat := self._heartbeat) is not None:
            self._sent.append(SentHeartbeat(heartbeat.request, None))
            try:
                response = await connections.get(heartbeat.coordinator, "heartbeat").submit(heartbeat.request)
            except OdradekError as error:
                if not problem:
                    log.warning("%s: a heartbeat sent by the thread: %s; trying again", self._group, error)
                problem = str(error)
            else:
                problem = ""
                self._receive(heartbeat, response)
            await anyio.sleep(self._interval_s)

    def _receive(self, heartbeat: Heartbeat, response: Response) -> None:
        self._sent.append(SentHeartbeat(heartbeat.request, response))
        if self._heartbeat is not heartbeat:
            return
        request = heartbeat.request
        if getattr(response, "error_code", 0) in _REMOVED:
            self._heartbeat = None
        elif isinstance(request, ConsumerGroupHeartbeatRequest) and isinstance(
            response, ConsumerGroupHeartbeatResponse
        ):
            epoch = max(request.member_epoch, response.member_epoch)
            self._heartbeat = heartbeat._replace(request=request.__replace__(member_epoch=epoch))

    # ---- the log ---------------------------------------------------------------------------------------------

    def _name_blocking_call(self) -> None:
        log.warning(
            "%s: %s has blocked the event loop for %.1f s: a thread sends heartbeats for at most %g s, and a rebalance "
            "waits at most %g s",
            self._group,
            describe_call(self._loop_thread),
            self._blocked_s(),
            self._max_blocked_s,
            self._rebalance_timeout_s,
        )

    def _report_pause(self, seconds: float, cpu_s: float) -> None:
        reason = (
            "the process did not run (it was stopped, the machine was suspended, or there was no processor for it)"
            if cpu_s < seconds / 2
            else "a call kept Python's global lock, so that no other thread could run"
        )
        log.warning("%s: no heartbeats for %.1f s: %s", self._group, seconds, reason)

    def _report_end(self) -> None:
        if self._blocked_s() >= self._max_blocked_s:
            log.warning(
                "%s: %s has blocked the event loop for %.1f s: no more heartbeats, the group gives the partitions of "
                "this member to others",
                self._group,
                describe_call(self._loop_thread),
                self._blocked_s(),
            )


class _Times:
    """The time now, and the processor time of all threads of the process until now (s)."""

    def __init__(self) -> None:
        self.clock, self.cpu = time.monotonic(), time.process_time()


def describe_call(thread: int) -> str:
    """Return the function that a thread executes now, and its line: of the user's functions the one that the event loop
    or this library has called."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "a thread that has ended"
    while frame.f_back is not None and not _is_runner(frame) and not _is_runner(frame.f_back):
        frame = frame.f_back
    code = frame.f_code
    return f"{_module(frame)}.{code.co_qualname} ({code.co_filename}:{frame.f_lineno})"


def _is_runner(frame: FrameType) -> bool:
    return _module(frame).partition(".")[0] in _RUNNERS


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "?"))
