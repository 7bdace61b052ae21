"""The demo's first part: messages go in, a group that loses a member handles them, and what happens is followed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from odradek.cli.demo_account import DemoResult
from odradek.cli.demo_count import HandledCounts, judge, missing
from odradek.cli.demo_process import Child
from odradek.cli.demo_view import DemoProcess, Meter, Scene, View
from odradek.cli.demo_worker import WorkerTask

__all__ = ["BROKERS", "TOPICS", "MessageDemo"]

BROKERS = (1, 2)
TOPICS = ["clicks", "orders"]
GROUP = "demo"
STALL_SECONDS = 30.0
"""Longer than it takes until ZooKeeper gives up the killed consumer and the others have taken over."""
LOOK_SECONDS = 0.1
KILLED = "killed"
JOIN_AT, KILL_AT, HOLD_AT = 0.4, 0.55, 0.7
"""Shares of the messages: written when the third joins; handled when one is killed; written when that must be over."""
# The broker configuration that 0.7 was shipped with makes messages visible after a second; and more partitions.
BROKER_KEYS = {
    "num.partitions": "4",
    "log.flush.interval": "10000",
    "log.default.flush.interval.ms": "1000",
    "log.default.flush.scheduler.interval.ms": "1000",
}


class MessageDemo:
    """The plot, and what has happened so far.

    Args:
        scene, shown: Where it shows.
        place: A directory for logs and counts.
        source: A file whose lines are the messages; None makes some up.
    """

    def __init__(self, scene: Scene, shown: View, place: Path, source: str | None) -> None:
        self.scene, self.view, self.place, self._source = scene, shown, place, source
        self._url = ""
        self._result = DemoResult(messages=scene.messages)
        self._tallies: dict[str, HandledCounts] = {}
        self._owned: dict[str, int] = {}
        self._shared = 0
        self._waiting = self._finished = self._over = False
        self._handled = Meter()
        self._first_handled = self._last_handled = 0.0

    async def play(self, stack: AsyncExitStack, tasks: TaskGroup, zookeeper: str) -> None:
        """The whole plot; returns when every message is handled, or nothing moves any more. The brokers go on.

        Args:
            stack: Ends every process.
            tasks: Listens to them.
            zookeeper: Where it serves.

        Raises:
            Died: A process failed; by way of `tasks`.
        """
        self._url = f"kafka07+zk://{zookeeper}"
        self.scene.actors["zookeeper"] = DemoProcess("zookeeper", f"at {zookeeper}")
        self.view.event(f"ZooKeeper serves at {zookeeper}")
        async with anyio.create_task_group() as watching:
            watching.start_soon(self._watch)
            await self._acts(stack, tasks, zookeeper)
            watching.cancel_scope.cancel()

    async def _acts(self, stack: AsyncExitStack, tasks: TaskGroup, zookeeper: str) -> None:
        for number in BROKERS:
            await self._start(
                stack, tasks, f"broker {number}", _broker_command(number, zookeeper, self.log_dir(number))
            )
        await self._until(lambda: all(self.scene.actors[f"broker {number}"].state for number in BROKERS))
        first, victim = [await self._consumer(stack, tasks, name) for name in ("a", "b")]
        producer = await self._start(stack, tasks, "producer", _worker_command(self._produce_task()), Meter())
        await self._until(lambda: self._waiting)
        third = await self._consumer(stack, tasks, "c")
        await self._until(lambda: self._owned.get(third.name, 0) > 0)
        await self._go_on(producer)
        await self._until(lambda: self._handled.total >= KILL_AT * self.scene.messages)
        self._shared = sum(self._owned.values())
        victim.kill()
        self._owned.pop(victim.name, None)
        self.scene.actors[victim.name].state = KILLED
        self.view.event(f"{victim.name} is killed (SIGKILL, process {victim.pid})")
        await self._until(lambda: self._waiting)
        await self._go_on(producer)
        await self._until(lambda: self._finished)
        await self._settle()
        self._over = True  # what they tell on their way out is no part of the story
        for child in (first, third):
            tasks.start_soon(child.end)
        for child in (first, third):
            await child.ended.wait()
            self.scene.actors[child.name].state = "done"

    def log_dir(self, number: int) -> Path:
        """Where a broker has its logs."""
        return self.place / f"kafka-{number}"

    async def _go_on(self, producer: Child) -> None:
        self._waiting = False
        await producer.tell("go")

    # ---- who plays ------------------------------------------------------------------------------------------

    async def _consumer(self, stack: AsyncExitStack, tasks: TaskGroup, letter: str) -> Child:
        name, path = f"consumer {letter}", self.place / f"tally-{letter}"
        self._tallies[name] = stack.enter_context(HandledCounts(path, self.scene.messages))
        task = WorkerTask("consume", self._url, TOPICS, self.scene.messages, tally=str(path), group=GROUP)
        return await self._start(stack, tasks, name, _worker_command(task), Meter())

    def _produce_task(self) -> WorkerTask:
        gates = [int(JOIN_AT * self.scene.messages), int(HOLD_AT * self.scene.messages)]
        return WorkerTask("produce", self._url, TOPICS, self.scene.messages, gates=gates, input=self._source)

    async def _start(
        self, stack: AsyncExitStack, tasks: TaskGroup, name: str, command: list[str], meter: Meter | None = None
    ) -> Child:
        actor = self.scene.actors[name] = DemoProcess(name, "" if meter is None else "starting", meter)
        log = self.place / f"{name}.log"
        child = Child(name, command, log, lambda event, what: self._heard(actor, event, what))
        stack.push_async_callback(child.end)
        await child.start(tasks)
        return child

    # ---- what they tell -------------------------------------------------------------------------------------

    def _heard(self, actor: DemoProcess, event: str, what: dict[str, Any]) -> None:
        if not self._over and actor.state != KILLED:
            getattr(self, f"_on_{event}")(actor, **what)

    def _on_ready(self, actor: DemoProcess, address: str, **_: Any) -> None:
        actor.state = f"at {address}"
        self.view.event(f"{actor.name} serves at {address}")

    def _on_written(self, actor: DemoProcess, messages: int) -> None:
        actor.state = "writing"
        assert actor.meter is not None
        actor.meter.update(messages, time.monotonic())

    def _on_waiting(self, actor: DemoProcess, written: int) -> None:
        actor.state, self._waiting = "waiting for the plot", True
        self.view.event(f"{actor.name} has written {written:,}, all confirmed")

    def _on_finished(self, actor: DemoProcess, messages: int, seconds: float) -> None:
        actor.state, self._finished = "done", True
        self._result.messages, self._result.write_seconds = messages, seconds
        self.view.event(f"{actor.name} has written {messages:,}, all confirmed")

    def _on_assigned(self, actor: DemoProcess, partitions: int) -> None:
        self._owned[actor.name] = partitions
        actor.state = f"has {partitions} partitions"
        if partitions:  # in the middle of a rebalance it has none
            self._result.rebalances += 1
            self.view.event(f"{actor.name} is given {partitions} partitions")

    # ---- counting -------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            self._look()
            await anyio.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        now, counts = time.monotonic(), {name: tally.counts() for name, tally in self._tallies.items()}
        if counts:
            for name, one in counts.items():
                meter = self.scene.actors[name].meter
                assert meter is not None
                meter.update(len(one) - one.count(0), now)
            self.scene.pass_time(now)
            self._count(self.scene.messages - missing(list(counts.values())), now)
        self.view.refresh()

    def _count(self, handled: int, now: float) -> None:
        if handled > self._handled.total:
            self._first_handled = self._first_handled or now
            self._last_handled = now
        self._handled.update(handled, now)
        self.scene.handled = handled
        self._result.best_per_second = max(self._result.best_per_second, self._handled.per_second)

    async def _settle(self) -> None:
        """Wait until all is handled and the victim's partitions have new owners, or nothing moves any more."""
        await self._until(lambda: (self.complete and self._taken_over()) or self._stalled())

    @property
    def complete(self) -> bool:
        """Is every message handled?"""
        return self._handled.total == self.scene.messages

    def _taken_over(self) -> bool:
        return sum(self._owned.values()) >= self._shared

    def _stalled(self) -> bool:
        return time.monotonic() - self._last_handled > STALL_SECONDS

    async def _until(self, so: Callable[[], bool]) -> None:
        while not so():  # noqa: ASYNC110 - what is waited for happens in other processes
            await anyio.sleep(LOOK_SECONDS)

    def account(self) -> DemoResult:
        """The final count, from the files."""
        counts = [path.read_bytes() for path in sorted(self.place.glob("tally-*"))]
        verdict = judge(counts)
        self._result.lost, self._result.first_lost = len(verdict.lost), verdict.lost[:10]
        self._result.duplicates = verdict.duplicates
        self._result.handle_seconds = max(self._last_handled - self._first_handled, LOOK_SECONDS)
        return self._result


def _broker_command(number: int, zookeeper: str, log_dir: Path) -> list[str]:
    keys = [f"--set={key}={value}" for key, value in BROKER_KEYS.items()]
    place = [f"--id={number}", "--port=0", f"--zookeeper={zookeeper}", f"--log-dir={log_dir}"]
    return ["-m", "odradek.cli", "broker", *place, *keys, "--until-eof", "--json"]


def _worker_command(task: WorkerTask) -> list[str]:
    return ["-m", "odradek.cli.demo_worker", json.dumps(task._asdict())]
