"""Connections of one process to clusters, for code that knows nothing of event loops.

Each process has one loop, in a thread of its own, and connections stay open as long as the process: Spark keeps Python
workers from task to task, and connecting costs more than a small task. Nothing has to be closed in the end: a worker is
killed rather than ended, and a broker keeps nothing for a reader.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from random import random
from threading import Lock, Thread
from typing import TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from odradek.client.cluster import Cluster
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.errors import DeadlineError, OdradekError
from odradek.ranges.request import ClusterConnection

__all__ = ["connected", "disconnect", "retry_until"]

T = TypeVar("T")

log = logging.getLogger(__name__)

PAUSES = Backoff(first_s=0.05, max_s=2.0)


@dataclass(eq=False, slots=True)
class _OpenCluster:
    """A cluster, and how many blocks use it. After an error it is closed once none does: those of other threads go on,
    such as the other flows of a pipeline."""

    cluster: Cluster
    block: AbstractContextManager[Cluster]
    users: int = 0
    error: OdradekError | None = None

    def close(self) -> None:
        if self.error is None:
            self.block.__exit__(None, None, None)
        else:
            self.block.__exit__(type(self.error), self.error, self.error.__traceback__)


class _Process:
    """The connections and the event loop of one process."""

    lock: Lock
    portal: BlockingPortal | None
    clusters: dict[tuple[ClusterConnection, Tuning], _OpenCluster]

    def begin(self) -> None:
        """Begin without a loop and connections: a forked process does not get the threads of its parent."""
        self.lock, self.portal, self.clusters = Lock(), None, {}


_process = _Process()
_process.begin()
os.register_at_fork(after_in_child=_process.begin)


@contextmanager
def connected(where: ClusterConnection, deadline_s: float) -> Iterator[tuple[BlockingPortal, Cluster]]:
    """Yield this cluster, opened at the first use, and the way into its event loop. When the block fails, the next one
    opens it again.

    Raises DeadlineError, which says why, if it could not be reached in time.
    """
    tuning = where.tuning(deadline_s)
    key = (where, tuning)
    with _process.lock:
        portal = _process.portal = _process.portal or _start_loop()
        if key not in _process.clusters:
            block = portal.wrap_async_context_manager(_opened(where, tuning, deadline_s))
            _process.clusters[key] = _OpenCluster(block.__enter__(), block)
        mine = _process.clusters[key]
        mine.users += 1
    try:
        yield portal, mine.cluster
    except OdradekError as error:
        with _process.lock:
            if _process.clusters.get(key) is mine:
                del _process.clusters[key]
                mine.error = error
        raise
    finally:
        with _process.lock:
            mine.users -= 1
            is_left = mine.error is not None and not mine.users
        if is_left:
            mine.close()


def disconnect() -> None:
    """Close everything that this process has open, as long as nothing uses it. Raises what closing raises."""
    with _process.lock:
        while _process.clusters:
            _process.clusters.popitem()[1].close()


@asynccontextmanager
async def _opened(where: ClusterConnection, tuning: Tuning, deadline_s: float) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield await retry_until(
            lambda: stack.enter_async_context(where.connect(tuning)), deadline_s, "connecting to the cluster"
        )


def _start_loop() -> BlockingPortal:
    started: Future[BlockingPortal] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    # A daemon: at the end of its process nobody waits for it.
    Thread(target=anyio.run, args=(serve,), name="odradek", daemon=True).start()
    return started.result()


async def retry_until(work: Callable[[], Awaitable[T]], deadline_s: float, what: str) -> T:
    """Call until it works, with growing pauses; no call begins after the deadline, and each has deadlines of its own.

    Raises DeadlineError, with the last error, or an error that trying again does not help against.
    """
    until = anyio.current_time() + deadline_s
    attempt = 0
    while True:
        try:
            return await work()
        except OdradekError as error:
            if not error.retriable:
                raise
            pause = PAUSES.delay(attempt, random())
            if anyio.current_time() + pause >= until:
                raise DeadlineError(f"{what}: {error}", deadline_s) from error
            if not attempt:
                log.warning("%s: %s; retrying", what, error)
        await anyio.sleep(pause)
        attempt += 1
