"""The first part of the demo: a worker writes messages, and a consumer group that loses a member handles them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from odradek.cli.demo.counts import HandledCounts, count_missing, total_up
from odradek.cli.demo.display import DemoProcess, Display, Meter, Scene
from odradek.cli.demo.process import ChildProcess
from odradek.cli.demo.result import DemoResult
from odradek.cli.demo.worker import WorkerTask
from odradek.io.drivers import zookeeper_url

__all__ = ["BROKERS", "KAFKA_STALL_SECONDS", "PARTITIONS", "STALL_SECONDS", "TOPICS", "MessageDemo"]

BROKERS = (1, 2)
TOPICS = ["clicks", "orders"]
GROUP = "demo"
STALL_SECONDS = 30.0
"""Longer than ZooKeeper takes to expire the killed consumer's session and the group to rebalance."""
KAFKA_STALL_SECONDS = 75.0
"""Longer than a broker of 0.9 or later takes to do that: its members have 30 s between two heartbeats."""
PARTITIONS = 4
"""Partitions of each topic; in 0.7, on each broker."""
POLL_SECONDS = 0.1
KILLED = "killed"
JOIN_FRACTION, KILL_FRACTION, PAUSE_FRACTION = 0.4, 0.55, 0.7
"""Fractions of the messages: written when the third consumer joins; handled when one is killed; written when the worker
waits for that kill."""
# 0.7's own server.properties, by which messages become visible after a second; and more partitions.
BROKER_KEYS = {
    "num.partitions": str(PARTITIONS),
    "log.flush.interval": "10000",
    "log.default.flush.interval.ms": "1000",
    "log.default.flush.scheduler.interval.ms": "1000",
}


class MessageDemo:
    """The sequence of events, and what has happened so far.

    Args:
        scene, display: The contents of the screen, and the way to show them.
        directory: Directory for logs and counts.
        source: File whose lines are the messages; None generates messages.
        stall_seconds: The group is given up after this long without a message that is handled (s).
    """

    def __init__(
        self, scene: Scene, display: Display, directory: Path, source: str | None, stall_seconds: float = STALL_SECONDS
    ) -> None:
        self.scene, self.display, self.directory, self._source = scene, display, directory, source
        self._stall_seconds = stall_seconds
        self._url = ""
        self._result = DemoResult(messages=scene.messages)
        self._counts: dict[str, HandledCounts] = {}
        self._owned: dict[str, int] = {}
        self._owned_before_kill = 0
        self._waiting = self._finished = self._over = False
        self._handled = Meter()
        self._first_handled = self._last_handled = 0.0

    async def start_brokers(self, stack: AsyncExitStack, tasks: TaskGroup, zookeeper: str) -> str:
        """Start the brokers of 0.7, which keep running until `stack` ends; return the URL of their cluster.

        Args:
            stack, tasks: As for `run`.
            zookeeper: ZooKeeper's address.
        """
        self.show_server("zookeeper", "ZooKeeper", zookeeper)
        for number in BROKERS:
            await self._start(
                stack, tasks, f"broker {number}", _broker_command(number, zookeeper, self.log_dir(number))
            )
        while not all(self.scene.processes[f"broker {number}"].state for number in BROKERS):
            self.display.refresh()
            await anyio.sleep(POLL_SECONDS)
        return zookeeper_url(zookeeper)

    def show_server(self, name: str, title: str, address: str) -> None:
        """Show a server that serves."""
        self.scene.processes[name] = DemoProcess(name, f"at {address}")
        self.display.event(f"{title} serves at {address}")

    async def run(self, stack: AsyncExitStack, tasks: TaskGroup, url: str) -> None:
        """Run the whole sequence; return when every message is handled, or none was for `stall_seconds`.

        Args:
            stack: Ends every process.
            tasks: Runs the readers of their events.
            url: The cluster.

        Raises:
            ProcessFailed: A process failed; raised from `tasks`.
        """
        self._url = url
        async with anyio.create_task_group() as watching:
            watching.start_soon(self._watch)
            await self._sequence(stack, tasks)
            watching.cancel_scope.cancel()

    async def _sequence(self, stack: AsyncExitStack, tasks: TaskGroup) -> None:
        first, victim = [await self._consumer(stack, tasks, name) for name in ("a", "b")]
        producer = await self._start(stack, tasks, "producer", _worker_command(self._produce_task()), Meter())
        await self._until(lambda: self._waiting)
        third = await self._consumer(stack, tasks, "c")
        await self._until(lambda: self._owned.get(third.name, 0) > 0)
        await self._resume(producer)
        await self._until(lambda: self._handled.total >= KILL_FRACTION * self.scene.messages)
        self._kill(victim)
        await self._until(lambda: self._waiting)
        await self._resume(producer)
        await self._until(lambda: self._finished)
        await self._until(lambda: (self.complete and self._taken_over()) or self._stalled())
        self._over = True  # ignore the assignments that change while the consumers leave
        for child in (first, third):
            tasks.start_soon(child.end)
        for child in (first, third):
            await child.ended.wait()
            self.scene.processes[child.name].state = "done"

    def _kill(self, victim: ChildProcess) -> None:
        self._owned_before_kill = sum(self._owned.values())
        victim.kill()
        self._owned.pop(victim.name, None)
        self.scene.processes[victim.name].state = KILLED
        self.display.event(f"{victim.name} is killed (SIGKILL, process {victim.pid})")

    def log_dir(self, number: int) -> Path:
        """Return the directory of a broker's logs."""
        return self.directory / f"kafka-{number}"

    async def _resume(self, producer: ChildProcess) -> None:
        self._waiting = False
        await producer.send_line("go")

    # ---- processes ------------------------------------------------------------------------------------------

    async def _consumer(self, stack: AsyncExitStack, tasks: TaskGroup, letter: str) -> ChildProcess:
        name, path = f"consumer {letter}", self.directory / f"counts-{letter}"
        self._counts[name] = stack.enter_context(HandledCounts(path, self.scene.messages))
        task = WorkerTask("consume", self._url, TOPICS, self.scene.messages, counts=str(path), group=GROUP)
        return await self._start(stack, tasks, name, _worker_command(task), Meter())

    def _produce_task(self) -> WorkerTask:
        gates = [int(JOIN_FRACTION * self.scene.messages), int(PAUSE_FRACTION * self.scene.messages)]
        return WorkerTask("produce", self._url, TOPICS, self.scene.messages, gates=gates, input=self._source)

    async def _start(
        self, stack: AsyncExitStack, tasks: TaskGroup, name: str, command: list[str], meter: Meter | None = None
    ) -> ChildProcess:
        process = self.scene.processes[name] = DemoProcess(name, "" if meter is None else "starting", meter)
        log = self.directory / f"{name}.log"
        child = ChildProcess(name, command, log, lambda event, fields: self._handle(process, event, fields))
        stack.push_async_callback(child.end)
        await child.start(tasks)
        return child

    # ---- events ---------------------------------------------------------------------------------------------

    def _handle(self, process: DemoProcess, event: str, fields: dict[str, Any]) -> None:
        if not self._over and process.state != KILLED:
            getattr(self, f"_on_{event}")(process, **fields)

    def _on_ready(self, process: DemoProcess, address: str, **_: Any) -> None:
        process.state = f"at {address}"
        self.display.event(f"{process.name} serves at {address}")

    def _on_written(self, process: DemoProcess, messages: int) -> None:
        process.state = "writing"
        assert process.meter is not None
        process.meter.update(messages, time.monotonic())

    def _on_waiting(self, process: DemoProcess, written: int) -> None:
        process.state, self._waiting = "waiting for the demo", True
        self.display.event(f"{process.name} has written {written:,}, all confirmed")

    def _on_finished(self, process: DemoProcess, messages: int, seconds: float) -> None:
        process.state, self._finished = "done", True
        self._result.messages, self._result.write_seconds = messages, seconds
        self.display.event(f"{process.name} has written {messages:,}, all confirmed")

    def _on_assigned(self, process: DemoProcess, partitions: int) -> None:
        self._owned[process.name] = partitions
        process.state = f"has {partitions} partitions"
        if partitions:  # none during a rebalance
            self._result.rebalances += 1
            self.display.event(f"{process.name} is assigned {partitions} partitions")

    # ---- counting -------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            self._update()
            await anyio.sleep(POLL_SECONDS)

    def _update(self) -> None:
        now, counts = time.monotonic(), {name: one.counts() for name, one in self._counts.items()}
        if counts:
            for name, one in counts.items():
                meter = self.scene.processes[name].meter
                assert meter is not None
                meter.update(len(one) - one.count(0), now)
            self.scene.update_rates(now)
            self._count(self.scene.messages - count_missing(list(counts.values())), now)
        self.display.refresh()

    def _count(self, handled: int, now: float) -> None:
        if handled > self._handled.total:
            self._first_handled = self._first_handled or now
            self._last_handled = now
        self._handled.update(handled, now)
        self.scene.handled = handled
        self._result.best_per_second = max(self._result.best_per_second, self._handled.per_second)

    @property
    def complete(self) -> bool:
        """True if every message is handled."""
        return self._handled.total == self.scene.messages

    def _taken_over(self) -> bool:
        """Return True if all partitions of the killed consumer have new owners."""
        return sum(self._owned.values()) >= self._owned_before_kill

    def _stalled(self) -> bool:
        return time.monotonic() - self._last_handled > self._stall_seconds

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - the awaited events happen in other processes
            await anyio.sleep(POLL_SECONDS)

    def result(self) -> DemoResult:
        """Return the result, with the final counts from the consumers' files."""
        counts = [path.read_bytes() for path in sorted(self.directory.glob("counts-*"))]
        totals = total_up(counts)
        self._result.lost, self._result.first_lost = len(totals.lost), totals.lost[:10]
        self._result.duplicates = totals.duplicates
        self._result.handle_seconds = max(self._last_handled - self._first_handled, POLL_SECONDS)
        return self._result


def _broker_command(number: int, zookeeper: str, log_dir: Path) -> list[str]:
    keys = [f"--set={key}={value}" for key, value in BROKER_KEYS.items()]
    options = [f"--id={number}", "--port=0", f"--zookeeper={zookeeper}", f"--log-dir={log_dir}"]
    return ["-m", "odradek.cli", "broker", *options, *keys, "--until-eof", "--json"]


def _worker_command(task: WorkerTask) -> list[str]:
    return ["-m", "odradek.cli.demo.worker", json.dumps(task._asdict())]
