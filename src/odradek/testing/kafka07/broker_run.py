"""One run of a broker, from start to stop or kill, on an event loop and a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from odradek.errors import Closed, ConfigError, DeadlineError
from odradek.testing.kafka07.config import MINUTE, BrokerConfig
from odradek.testing.kafka07.errors import BrokerHalted
from odradek.testing.kafka07.log_store import LogStore
from odradek.testing.kafka07.registration import Registration
from odradek.testing.kafka07.requests import Handler
from odradek.testing.kafka07.server import Server

__all__ = ["BrokerRun", "Settings"]

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that stay the same from one run to the next; without `zookeeper`, none is used."""

    broker_id: int
    host: str
    directory: Path
    zookeeper: str | None
    config: BrokerConfig


class BrokerRun:
    """Start it; every other method may be called from any thread but its own."""

    def __init__(self, settings: Settings, port: int) -> None:
        self.settings, self.port = settings, port
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=f"kafka07-broker-{settings.broker_id}", daemon=True)
        self._failure: BaseException | None = None
        self._graceful = True

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """Serve when it returns. Raises StartRefused, ConfigError, Unreachable, OSError."""
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self._thread.join()
            raise

    def end(self, *, graceful: bool) -> None:
        """Stop, or die as of SIGKILL. Raises what ended the run before, if something did."""
        with suppress(RuntimeError):  # over already
            self._loop.call_soon_threadsafe(self._end, graceful)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the broker's loop. Raises Closed when it is not running any more."""

        async def run() -> T:
            return function()

        return self.result(self.submit(run()))

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the broker's loop. Raises Closed."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise Closed("the broker is not running") from self._failure

    def result(self, future: Future[T], timeout: float = math.inf) -> T:
        """Wait for the result of `submit`. Raises Closed if the broker ended before, DeadlineError."""
        deadline = time.monotonic() + timeout
        while not wait([future], timeout=0.2).done:
            if not self.running:
                raise Closed("the broker is not running") from self._failure
            if time.monotonic() > deadline:
                raise DeadlineError("the broker", timeout)
        return future.result()

    def session_id(self) -> int:
        """The id of its ZooKeeper session; 0 if there is none."""
        return self.registration.session_id if self.registration else 0

    def renewed(self) -> Future[None]:
        """Done once the broker is registered again in its next session. Raises ConfigError without ZooKeeper."""
        if self.registration is None:
            raise ConfigError("the broker runs without ZooKeeper")
        return self.submit(self.registration.renewed())

    # ---- on the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:  # whatever policy the test has set
                runner.run(self._main())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            else:
                self._failure = error

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._unexpected)
        self._ending = asyncio.Event()
        settings = self.settings
        self.logs = LogStore(settings.directory, settings.config, self._topic_added, time.time)
        self.handler = Handler(self.logs)
        self.server = Server(settings.config, self.handler, self._halt)
        self.registration: Registration | None = None
        async with AsyncExitStack() as stack:  # each step is taken, whatever becomes of the one before
            # Also after a start that ZooKeeper refused: the real one marks its logs clean then (specification.md 5.2).
            stack.callback(lambda: self.logs.close() if self._graceful else self.logs.abandon())
            stack.push_async_callback(self._unregister)
            stack.push_async_callback(self.server.close)
            await self._serve()

    async def _serve(self) -> None:
        """Run in the order of specification.md 4.5. The port is bound early, because it is registered, but answers
        late, because requests wait for the registration."""
        settings, config = self.settings, self.settings.config
        self.port = self.server.bind(settings.host, self.port)
        if settings.zookeeper is not None:
            await self._register(settings.zookeeper)
        await self.server.serve()
        self._started.set_result(None)
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(_every(config.flush_scheduler_seconds, config.flush_scheduler_seconds, self._flush)),
                tasks.create_task(_every(MINUTE, config.cleanup_seconds, self._clean_up)),
            ]
            if self.registration is not None:
                background.append(tasks.create_task(self.registration.run()))
            await self._ending.wait()
            for task in background:
                task.cancel()

    async def _register(self, hosts: str) -> None:
        settings = self.settings
        host = settings.config.hostname or settings.host
        broker = (settings.broker_id, host, self.port)
        self.registration = Registration(hosts, settings.config, broker, lambda: self.logs.topics, time.time)
        await self.registration.start()

    async def _unregister(self) -> None:
        if self.registration is not None:
            await (self.registration.close() if self._graceful else self.registration.abandon())

    def _topic_added(self, topic: str) -> None:
        if self.registration is not None:
            self.registration.add_topic(topic)

    def _flush(self) -> None:
        self.logs.flush_due(time.time())

    def _clean_up(self) -> None:
        self.logs.clean_up(time.time())

    def _end(self, graceful: bool) -> None:
        if not self._ending.is_set():  # the first reason decides
            self._graceful = graceful
            self._ending.set()

    def _unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A mistake of ours in serving a connection: end, so that a test sees it. (OSError: out of descriptors.)"""
        loop.default_exception_handler(context)
        error = context.get("exception")
        if error is not None and not isinstance(error, OSError):
            self._failure = error
            self._end(graceful=False)

    def _halt(self, why: BrokerHalted) -> None:
        log.critical("halted: %s", why)
        self._failure = why
        self._end(graceful=False)


async def _every(first: float, interval: float, action: Callable[[], None]) -> None:
    """A failed run is logged, and the next one comes nevertheless, as with the real schedulers."""
    await asyncio.sleep(first)
    while True:
        try:
            action()
        except OSError as error:
            log.error("%s", error)
        await asyncio.sleep(interval)
