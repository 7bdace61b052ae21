"""Heartbeats of a group member while its event loop is blocked.

A handler that calls `time.sleep`, or computes for a minute, stops everything on its event loop, heartbeats too: the
coordinator would remove the member, and the next one would get the same record. So a thread watches the loop. If the
loop does not report for one and a half heartbeat intervals, the thread opens a connection of its own, on an event loop
of its own, and sends the member's heartbeats until the loop runs again.
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

__all__ = ["Heartbeat", "HeartbeatAnswer", "HeartbeatThread"]

log = logging.getLogger("odradek.group")

BLOCKED_INTERVALS = 1.5
"""Heartbeat intervals without a sign of the loop, which gives one per interval, after which it counts as blocked."""

POLL_S = 0.05
"""Time after which the thread notices that the loop runs again, or that it was stopped, while it sends (s)."""

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


class HeartbeatAnswer(NamedTuple):
    """The answer of the coordinator to a heartbeat of the thread."""

    request: Request[Any]
    response: Response


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
        self._loop_thread = 0
        self._stopped = threading.Event()
        self._answers: deque[HeartbeatAnswer] = deque(maxlen=1)

    # ---- called by the loop ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. It watches the loop of the calling thread."""
        self._loop_thread, self._alive_at = threading.get_ident(), time.monotonic()
        threading.Thread(target=self._run, name=f"odradek heartbeats of {self._group}", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end, without waiting for it."""
        self._stopped.set()

    def loop_runs(self, heartbeat: Heartbeat | None) -> HeartbeatAnswer | None:
        """Note that the loop runs. Called at least once per heartbeat interval, and when the generation changes.

        Args:
            heartbeat: What to send once the loop is blocked; None: nothing.

        Returns:
            The latest answer to a heartbeat that the thread has sent since the last call.
        """
        self._heartbeat, self._alive_at = heartbeat, time.monotonic()
        return self._answers.pop() if self._answers else None

    @property
    def has_answer(self) -> bool:
        """True if the next call of `loop_runs` returns an answer."""
        return bool(self._answers)

    # ---- in the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s / 2):
            if self._is_blocked():
                self._name_blocking_call()
                anyio.run(self._stand_in)
                self._report_end()

    def _blocked_s(self) -> float:
        """Return for how long the loop has given no sign (s)."""
        return time.monotonic() - self._alive_at

    def _is_blocked(self) -> bool:
        """Return True while heartbeats have to be sent for the loop."""
        limits = BLOCKED_INTERVALS * self._interval_s < self._blocked_s() < self._max_blocked_s
        return limits and self._heartbeat is not None and not self._stopped.is_set()

    async def _stand_in(self) -> None:
        """Send heartbeats until the loop runs again, or for `max_blocked_s` in all."""
        async with self._new_connections() as connections, anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_heartbeats, connections)
            while self._is_blocked():  # noqa: ASYNC110 - the loop that ends this must not pay for it
                await anyio.sleep(POLL_S)
            tasks.cancel_scope.cancel()

    async def _send_heartbeats(self, connections: BrokerConnections) -> None:
        problem = ""
        while (heartbeat := self._heartbeat) is not None:
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
        self._answers.append(HeartbeatAnswer(heartbeat.request, response))
        if self._heartbeat is not heartbeat:
            return
        if getattr(response, "error_code", 0) in _REMOVED:
            self._heartbeat = None
            return
        request = heartbeat.request
        if isinstance(request, ConsumerGroupHeartbeatRequest) and isinstance(response, ConsumerGroupHeartbeatResponse):
            following = ConsumerGroupHeartbeatRequest(  # nothing but the epoch has changed
                group_id=request.group_id,
                member_id=request.member_id,
                member_epoch=max(request.member_epoch, response.member_epoch),
                instance_id=request.instance_id,
            )
            self._heartbeat = heartbeat._replace(request=following)

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

    def _report_end(self) -> None:
        if self._blocked_s() >= self._max_blocked_s:
            log.warning(
                "%s: %s has blocked the event loop for %.1f s: no more heartbeats, the group gives the partitions of "
                "this member to others",
                self._group,
                describe_call(self._loop_thread),
                self._blocked_s(),
            )


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
