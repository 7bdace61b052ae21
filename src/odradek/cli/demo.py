"""`odradek demo`: everything at once, counted exactly.

A real ZooKeeper, two embedded brokers, an ingestion worker and a group of consumers, each a process of its own. The
worker writes numbered messages to two topics. Two consumers handle them; a third joins when four tenths are
written, and one is killed with messages in hand when more than half are handled. The worker waits at both points, so
that both happen in the middle of things however fast the machine is. At the end every number must have been handled.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import anyio.to_thread
import click
from anyio.abc import TaskGroup

import odradek as od
from odradek.cli.demo_count import Tally, judge, missing
from odradek.cli.demo_process import Child
from odradek.cli.demo_view import Actor, Meter, Scene, View, view
from odradek.cli.demo_worker import Task
from odradek.cli.options import JSON, QUIET, examples
from odradek.cli.output import echo_json
from odradek.testing import ZooKeeperServer
from odradek.testing.zkclient import PlainClient

__all__ = ["Account", "demo"]

TOPICS = ["clicks", "orders"]
GROUP = "demo"
BUDGET_SECONDS = 110.0
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


@dataclass
class Account:
    """What came of it; printed with --json.

    Args:
        messages: Written and confirmed.
        write_seconds: Time the worker spent writing them, waits at the two points left out.
        handle_seconds: From the first message handled to the last.
        best_per_second: Most messages handled in a second.
        rebalances: How often a consumer was given partitions.
        duplicates: How often a message was handled again.
        lost: How many were never handled.
        first_lost: The first few of them.
        seconds: The whole show.
    """

    messages: int = 0
    write_seconds: float = 0.0
    handle_seconds: float = 0.0
    best_per_second: float = 0.0
    rebalances: int = 0
    duplicates: int = 0
    lost: int = 0
    first_lost: list[int] = field(default_factory=list)
    seconds: float = 0.0


@click.command(
    epilog=examples(
        "odradek demo",
        "odradek demo --messages 100000 --json",
        "odradek demo --input /var/log/syslog",
    )
)
@click.option("--messages", type=click.IntRange(min=1000), metavar="N", help="How many messages (default: 1,000,000).")
@click.option(
    "--input",
    "source",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Take the lines of this file as messages, at most N.",
)
@click.option("--zookeeper", metavar="HOST:PORT,...", help="Use this ZooKeeper (a node of it) and start none.")
@JSON
@QUIET
def demo(messages: int | None, source: str | None, zookeeper: str | None, as_lines: bool, quiet: bool) -> int:
    """Write a million messages, read them with a group that loses a member, count them all.

    Starts a ZooKeeper, two brokers, a producer and three consumers on free ports of this machine, and ends them all.
    Exit code 1 when a message was lost. It takes about ten seconds, and never two minutes.
    """
    if source is not None:
        messages = min(messages or 1 << 62, _count_lines(source))
    scene = Scene(1_000_000 if messages is None else messages)
    if scene.messages < 1000:
        raise click.UsageError(f"{source}: {scene.messages} lines are too few for a show: 1000 at least")
    account = od.run(_perform, scene, source, zookeeper, quiet or as_lines)
    if as_lines:
        echo_json(asdict(account))
    else:
        click.echo(_report(account))
    return 1 if account.lost else 0


def _count_lines(source: str) -> int:
    with Path(source).open("rb") as file:
        return sum(1 for _ in file)


def _report(account: Account) -> str:
    total, write_s, handle_s = account.messages, account.write_seconds, account.handle_seconds
    lost = f"{account.lost:,}" + (f" (the first: {account.first_lost})" if account.lost else "")
    return "\n".join(
        [
            f"written     {total:,} messages in {write_s:.1f} s: {total / write_s:,.0f}/s, all confirmed",
            f"handled     in {handle_s:.1f} s: {total / handle_s:,.0f}/s, {account.best_per_second:,.0f}/s at best",
            f"rebalances  {account.rebalances} assignments given to the three consumers",
            f"duplicates  {account.duplicates:,} (what the killed consumer had handled and not yet committed)",
            f"lost        {lost}",
            f"all in      {account.seconds:.0f} s",
        ]
    )


async def _perform(scene: Scene, source: str | None, zookeeper: str | None, quiet: bool) -> Account:
    with ExitStack() as outer:
        shown = outer.enter_context(view(scene, quiet=quiet))
        scratch = Path(outer.enter_context(tempfile.TemporaryDirectory(prefix="odradek-demo-")))
        show = _Show(scene, shown, scratch, source)
        with anyio.move_on_after(BUDGET_SECONDS) as budget:
            async with AsyncExitStack() as stack:
                await show.play(stack, await stack.enter_async_context(_zookeeper(zookeeper)))
        if budget.cancelled_caught:
            shown.event(f"stopped: not done within {BUDGET_SECONDS:.0f} s")
        return show.account()


@asynccontextmanager
async def _zookeeper(given: str | None) -> AsyncIterator[str]:
    """A ZooKeeper of our own, or a node of our own in one that is there; both go in the end."""
    if given is None:
        async with ZooKeeperServer() as server:
            yield server.address
        return
    host, _, port = given.partition(",")[0].partition(":")
    chroot = f"/odradek-demo-{uuid4().hex[:8]}"

    def change(how: Callable[[PlainClient], None]) -> None:
        with PlainClient(host, int(port or 2181)) as client:
            how(client)

    await anyio.to_thread.run_sync(change, lambda client: client.create(chroot, None))
    try:
        yield given + chroot
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(change, lambda client: client.delete(chroot))


class _Show:
    """The plot, and what has happened so far."""

    def __init__(self, scene: Scene, shown: View, scratch: Path, source: str | None) -> None:
        self.scene, self.view, self._scratch, self._source = scene, shown, scratch, source
        self._url = ""
        self._result = Account(messages=scene.messages)
        self._tallies: dict[str, Tally] = {}
        self._owned: dict[str, int] = {}
        self._shared = 0
        self._waiting = self._finished = self._over = False
        self._handled = Meter()
        self._first_handled = self._last_handled = 0.0

    async def play(self, stack: AsyncExitStack, zookeeper: str) -> None:
        """The whole plot; returns when every message is handled, or nothing moves any more."""
        self._url = f"kafka07+zk://{zookeeper}"
        self.scene.actors["zookeeper"] = Actor("zookeeper", f"at {zookeeper}")
        self.view.event(f"ZooKeeper serves at {zookeeper}")
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(self._watch)
        try:
            await self._acts(stack, tasks, zookeeper)
        finally:
            tasks.cancel_scope.cancel()

    async def _acts(self, stack: AsyncExitStack, tasks: TaskGroup, zookeeper: str) -> None:
        for number in (1, 2):
            await self._start(stack, tasks, f"broker {number}", _broker_command(number, zookeeper, self._scratch))
        await self._until(lambda: all(self.scene.actors[f"broker {n}"].state for n in (1, 2)))
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

    async def _go_on(self, producer: Child) -> None:
        self._waiting = False
        await producer.tell("go")

    # ---- who plays ------------------------------------------------------------------------------------------

    async def _consumer(self, stack: AsyncExitStack, tasks: TaskGroup, letter: str) -> Child:
        name, path = f"consumer {letter}", self._scratch / f"tally-{letter}"
        self._tallies[name] = stack.enter_context(Tally(path, self.scene.messages))
        task = Task("consume", self._url, TOPICS, self.scene.messages, tally=str(path), group=GROUP)
        return await self._start(stack, tasks, name, _worker_command(task), Meter())

    def _produce_task(self) -> Task:
        gates = [int(JOIN_AT * self.scene.messages), int(HOLD_AT * self.scene.messages)]
        return Task("produce", self._url, TOPICS, self.scene.messages, gates=gates, input=self._source)

    async def _start(
        self, stack: AsyncExitStack, tasks: TaskGroup, name: str, command: list[str], meter: Meter | None = None
    ) -> Child:
        actor = self.scene.actors[name] = Actor(name, "" if meter is None else "starting", meter)
        log = self._scratch / f"{name}.log"
        child = Child(name, command, log, lambda event, what: self._heard(actor, event, what))
        stack.push_async_callback(child.end)
        await child.start(tasks)
        return child

    # ---- what they tell -------------------------------------------------------------------------------------

    def _heard(self, actor: Actor, event: str, what: dict[str, Any]) -> None:
        if not self._over and actor.state != KILLED:
            getattr(self, f"_on_{event}")(actor, **what)

    def _on_ready(self, actor: Actor, address: str, **_: Any) -> None:
        actor.state = f"at {address}"
        self.view.event(f"{actor.name} serves at {address}")

    def _on_written(self, actor: Actor, messages: int) -> None:
        actor.state = "writing"
        assert actor.meter is not None
        actor.meter.update(messages, time.monotonic())

    def _on_waiting(self, actor: Actor, written: int) -> None:
        actor.state, self._waiting = "waiting for the plot", True
        self.view.event(f"{actor.name} has written {written:,}, all confirmed")

    def _on_finished(self, actor: Actor, messages: int, seconds: float) -> None:
        actor.state, self._finished = "done", True
        self._result.messages, self._result.write_seconds = messages, seconds
        self.view.event(f"{actor.name} has written {messages:,}, all confirmed")

    def _on_assigned(self, actor: Actor, partitions: int) -> None:
        self._owned[actor.name] = partitions
        self._result.rebalances += 1
        actor.state = f"has {partitions} partitions"
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
            self._still(now)
            self._count(self.scene.messages - missing(list(counts.values())), now)
        self.view.refresh()

    def _still(self, now: float) -> None:
        """The producer tells its progress now and then; in between, time goes on."""
        producer = self.scene.actors.get("producer")
        if producer is not None and producer.meter is not None:
            producer.meter.update(producer.meter.total, now)

    def _count(self, handled: int, now: float) -> None:
        if handled > self._handled.total:
            self._first_handled = self._first_handled or now
            self._last_handled = now
        self._handled.update(handled, now)
        self.scene.handled = handled
        self._result.best_per_second = max(self._result.best_per_second, self._handled.per_second)

    async def _settle(self) -> None:
        """Wait until all is handled and the victim's partitions have new owners, or nothing moves any more."""
        await self._until(lambda: (self._all_handled() and self._taken_over()) or self._stalled())

    def _all_handled(self) -> bool:
        return self._handled.total == self.scene.messages

    def _taken_over(self) -> bool:
        return sum(self._owned.values()) >= self._shared

    def _stalled(self) -> bool:
        return time.monotonic() - self._last_handled > STALL_SECONDS

    async def _until(self, so: Callable[[], bool]) -> None:
        while not so():  # noqa: ASYNC110 - what is waited for happens in other processes
            await anyio.sleep(LOOK_SECONDS)

    def account(self) -> Account:
        """The final count, from the files."""
        counts = [path.read_bytes() for path in sorted(self._scratch.glob("tally-*"))]
        verdict = judge(counts)
        self._result.lost, self._result.first_lost = len(verdict.lost), verdict.lost[:10]
        self._result.duplicates = verdict.duplicates
        self._result.handle_seconds = max(self._last_handled - self._first_handled, LOOK_SECONDS)
        self._result.seconds = self.scene.age()
        return self._result


def _broker_command(number: int, zookeeper: str, scratch: Path) -> list[str]:
    keys = [f"--set={key}={value}" for key, value in BROKER_KEYS.items()]
    place = [f"--id={number}", "--port=0", f"--zookeeper={zookeeper}", f"--log-dir={scratch / f'kafka-{number}'}"]
    return ["-m", "odradek.cli", "broker", *place, *keys, "--until-eof", "--json"]


def _worker_command(task: Task) -> list[str]:
    return ["-m", "odradek.cli.demo_worker", json.dumps(task._asdict())]
