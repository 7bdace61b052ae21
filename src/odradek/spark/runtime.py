"""Clusters for code that knows nothing of event loops, which is all that Spark calls.

Each process has one loop, in a thread of its own, and connections stay open as long as the process: Spark keeps Python
workers from task to task, and connecting costs more than a small task. Nothing has to be closed in the end: a worker is
killed rather than ended, and a 0.7 broker keeps nothing for a reader.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from random import random
from threading import Lock, Thread
from typing import NamedTuple, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from odradek.client.cluster import Cluster
from odradek.client.connect import connect
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.errors import DeadlineError, OdradekError
from odradek.spark.client_options import ClusterOptions

__all__ = ["ClusterHandle", "connected", "disconnect", "retry_until"]

T = TypeVar("T")

log = logging.getLogger("odradek.spark")

PAUSES = Backoff(first_s=0.05, max_s=2.0)


class ClusterHandle(NamedTuple):
    """An open cluster, and the way into its event loop."""

    portal: BlockingPortal
    cluster: Cluster

    def run(self, work: Callable[[Cluster], Awaitable[T]], deadline_s: float, what: str) -> T:
        """Do this in the loop, as `patiently` does it, and wait."""
        return self.portal.call(retry_until, partial(work, self.cluster), deadline_s, what)


class _Key(NamedTuple):
    where: ClusterOptions
    tuning: Tuning


class _Open(NamedTuple):
    connected: ClusterHandle
    block: AbstractContextManager[Cluster]


class _Process:
    """What one process has open. Used by one thread at a time, as everything in a Python worker."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.portal: BlockingPortal | None = None
        self.clusters: dict[_Key, _Open] = {}


_process = _Process()


def _forget() -> None:
    """Threads, and with them loops, stay behind in the parent when a process forks."""
    global _process
    _process = _Process()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def connected(where: ClusterOptions, tuning: Tuning, deadline_s: float) -> Iterator[ClusterHandle]:
    """Return this cluster, opened at the first use. When the block fails, the next one opens it again.

    Raises:
        DeadlineError: It could not be reached in time; says why.
        OdradekError: What the block raises.
    """
    key = _Key(where, tuning)
    with _process.lock:
        if key not in _process.clusters:
            _process.clusters[key] = _open(key, deadline_s)
        cached = _process.clusters[key]
    try:
        yield cached.connected
    except OdradekError as error:
        with _process.lock:
            mine = _process.clusters.get(key) is cached
            if mine:
                del _process.clusters[key]
        if mine:
            _close(cached, error)
        raise


def disconnect() -> None:
    """Close everything that this process has open, as long as nothing uses it. Raises what closing raises."""
    with _process.lock:
        while _process.clusters:
            _process.clusters.popitem()[1].block.__exit__(None, None, None)


def _open(key: _Key, deadline_s: float) -> _Open:
    portal = _process.portal = _process.portal or _start_loop()
    block = portal.wrap_async_context_manager(_opened(key, deadline_s))
    return _Open(ClusterHandle(portal, block.__enter__()), block)


def _close(open_: _Open, error: OdradekError) -> None:
    try:
        open_.block.__exit__(None, None, None)
    except OdradekError as closing:
        error.add_note(f"closing the cluster failed as well: {closing}")


@asynccontextmanager
async def _opened(key: _Key, deadline_s: float) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:

        async def attempt() -> Cluster:
            return await stack.enter_async_context(connect(key.where.url, tuning=key.tuning, **key.where.arguments))

        yield await retry_until(attempt, deadline_s, "connecting to the cluster")


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
    """Call until it works, with growing pauses.

    Args:
        work: Each call has deadlines of its own.
        deadline_s: No call begins later than this (s).
        what: It is, in words.

    Raises:
        DeadlineError: It never worked; with the last error.
        OdradekError: One that trying again does not help against.
    """
    until = anyio.current_time() + deadline_s
    for attempt in count():
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
    raise AssertionError("count() never ends")
