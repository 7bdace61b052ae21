"""Move a group and its producers from an old cluster to a new one at random moments, and check what it has processed.

usage: python -m tests.mirror.cutovers --source 0.7|VERSION --moments N [--seed S] [--compression NAME]

While records are written to the old cluster, and mirrored, members of a group process them, and commit what they have
processed. At a random moment they stop, their positions are translated, and other members go on at the new cluster.
Prints one line of JSON for each moment. The exit code is 1 if a record was missing or was processed twice; records of
one compressed message of 0.7, inside of which that release cannot store a position, may be.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

import odradek as od
from odradek.errors import Fenced
from odradek.mirror.config import MirrorConfig
from odradek.mirror.cutover import cutover
from odradek.mirror.groups import groups
from odradek.mirror.planning import MirrorRefused
from odradek.mirror.run import run as run_mirror
from odradek.mirror.status import status
from odradek.testing import Kafka07Broker, KafkaBroker, ZooKeeperServer
from odradek.types import TopicPartition

from .moving import END, Values, end_all, mirror_of

__all__ = ["Moment", "Old", "main", "move", "repeats"]

PARTITIONS, GROUP = 3, "billing"
LIMIT_S = 60.0
"""Limit for anything that has to become true (s)."""


@dataclass
class Old:
    """The old cluster.

    Args:
        url: As `odradek.connect` takes it.
        broker: That of partitions of 0.7; -1 from 0.8 on.
        compression: Of what is written there.
    """

    url: str
    broker: int = -1
    compression: str = "none"


@dataclass
class Moment:
    """What happened at one of them."""

    number: int
    first: str
    members: int
    written: int = 0
    before: int = 0
    """Records that were processed from the old cluster."""
    repeated: int = 0
    problems: list[str] = field(default_factory=list)


class _Members:
    """Members of a group on one cluster.

    Args:
        url: The cluster.
        topic: What they read.
        processed: Where they put what they have processed.
    """

    def __init__(self, url: str, topic: str, group: str, processed: Values) -> None:
        self._url, self._topic, self._group, self._processed = url, topic, group, processed
        self.count, self.ended = 0, set[int]()
        self._left, self._stopped = 0, False
        self._waits: set[anyio.CancelScope] = set()

    def start(self, tasks: TaskGroup, members: int) -> None:
        for number in range(members):
            self._left += 1
            tasks.start_soon(self._run, 0.3 * number)

    async def stop(self) -> None:
        """Let each process the record that it has, commit, and leave."""
        self._stopped = True
        for scope in self._waits:
            scope.cancel()
        await until(lambda: not self._left, "members that have left")

    async def _run(self, after: float) -> None:
        with anyio.CancelScope() as scope:
            self._waits.add(scope)
            await anyio.sleep(after)
        self._waits.discard(scope)
        if not self._stopped:
            async with (
                od.connect(self._url) as cluster,
                cluster.consumer(self._topic, group=self._group, reset="fail", start=od.EARLIEST) as consumer,
            ):
                while (record := await self._next(consumer)) is not None:
                    self._process(record.partition.partition, record.value)
                    await anyio.sleep(random.choice([0, 0, 0.002]))
        self._left -= 1

    async def _next(self, consumer: Any) -> Any:
        if self._stopped:
            return None
        with anyio.CancelScope() as scope:
            self._waits.add(scope)
            try:
                return await anext(consumer)
            finally:
                self._waits.discard(scope)
        return None

    def _process(self, partition: int, value: bytes) -> None:
        if value == END:
            self.ended.add(partition)
        else:
            self._processed[partition].append(value)
            self.count += 1


class _Writer:
    """Writes numbered values, some at a time, first to the old cluster."""

    def __init__(self, topic: str, written: Values) -> None:
        self._topic, self._written, self._chunks, self._stopped = topic, written, 0, anyio.Event()

    def start(self, tasks: TaskGroup, url: str, compression: str = "none", broker: int = -1) -> None:
        self._stopped, self._ended = anyio.Event(), anyio.Event()
        tasks.start_soon(self._run, url, compression, broker)

    async def stop(self) -> None:
        self._stopped.set()
        await self._ended.wait()

    async def _run(self, url: str, compression: Any, broker: int) -> None:
        async with od.connect(url) as cluster, cluster.producer(compression=compression) as producer:
            while not self._stopped.is_set():
                number, self._chunks = random.randrange(PARTITIONS), self._chunks + 1
                values = [b"%d %d" % (self._chunks, n) for n in range(random.randrange(1, 30))]
                where = number if broker < 0 else TopicPartition(self._topic, number, broker)
                (await producer.send_many(self._topic, values, partition=where)).check()
                self._written[number] += values
                await anyio.sleep(random.uniform(0.0, 0.01))
        self._ended.set()


async def until(true: Callable[[], Any], what: str) -> None:
    """Wait until something is true."""
    with anyio.move_on_after(LIMIT_S):
        while not true():  # noqa: ASYNC110  (what is asked has no event)
            await anyio.sleep(0.01)
        return
    raise TimeoutError(f"no {what} within {LIMIT_S:.0f} s")


async def _asked(ask: Callable[[], Any], true: Callable[[Any], bool]) -> None:
    """Ask until the answer is right. Raises TimeoutError: it never is."""
    answer: Any = None
    with anyio.move_on_after(LIMIT_S):
        while not true(answer := await ask()):  # noqa: ASYNC110
            await anyio.sleep(0.02)
        return
    raise TimeoutError(f"still {answer}")


def repeats(written: Values, processed: Values, *, in_order: bool) -> tuple[int, list[str]]:
    """Return how many records were processed again, and what is wrong: records that are missing, in another order, or
    that were processed twice and are of more than one chunk of a partition."""
    problems, count = [], 0
    for number, values in written.items():
        again, missing = Counter(processed[number]) - Counter(values), Counter(values) - Counter(processed[number])
        count += again.total()
        if missing:
            problems.append(f"partition {number}: {missing.total()} records are missing")
        if len({value.partition(b" ")[0] for value in again}) > 1 or max(again.values(), default=0) > 1:
            problems.append(f"partition {number}: {again.total()} records of more than one message are repeated")
        if in_order and not again and not missing and processed[number] != values:
            problems.append(f"partition {number}: the order is another one")
    return count, problems


async def _mirror(config: MirrorConfig) -> None:
    with suppress(Fenced, MirrorRefused):  # it is finished
        await run_mirror(config, follow=True)


async def move(old: Old, new: str, number: int, first: Any, members: int) -> Moment:
    """Write, mirror and consume, and move at a random moment. The topics exist, or are made by writing.

    Args:
        old: The old cluster.
        new: URL of the new one.
        number: Of the moment; its topic and its group are named after it.
        first: Consumers or producers.
        members: Of the group, on each side.
    """
    moment, topic, group = Moment(number, first, members), f"orders-{number}", f"{GROUP}-{number}"
    written: Values = {each: [] for each in range(PARTITIONS)}
    processed: Values = {each: [] for each in range(PARTITIONS)}
    config = mirror_of(old.url, new, topic, groups={"include": [group]})
    writer = _Writer(topic, written)
    here, after = (_Members(url, topic, group, processed) for url in (old.url, new))
    async with anyio.create_task_group() as tasks:
        writer.start(tasks, old.url, old.compression, old.broker)
        await until(lambda: all(written.values()), "records in all partitions")
        tasks.start_soon(_mirror, config)
        here.start(tasks, members)
        await until(lambda: here.count > 0, "records that were processed")
        await anyio.sleep(random.uniform(0.0, 1.5))
        if first == "producers":
            await _move_producers(config, writer, tasks, new)
        await here.stop()
        moment.before = here.count
        await _asked(partial(groups, config, apply=True), lambda result: result.ok)
        after.start(tasks, members)
        if first == "consumers":
            await anyio.sleep(random.uniform(0.0, 0.5))
            await _move_producers(config, writer, tasks, new)
        await _asked(partial(cutover, config, first, apply=True, quiet_s=0.2), lambda result: result.finished)
        await writer.stop()
        async with od.connect(new) as cluster:
            await end_all(cluster, topic)
        await until(lambda: len(after.ended) == PARTITIONS, "end of all partitions")
        await after.stop()
        tasks.cancel_scope.cancel()
    moment.written = sum(map(len, written.values()))
    moment.repeated, moment.problems = repeats(written, processed, in_order=first == "producers")
    if old.broker < 0 or old.compression == "none":
        moment.problems += ["records were processed twice"] * (moment.repeated > 0)
    return moment


async def _move_producers(config: MirrorConfig, writer: _Writer, tasks: TaskGroup, new: str) -> None:
    await writer.stop()
    await _asked(partial(status, config), lambda result: result.partitions and result.lag == 0)
    writer.start(tasks, new)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="0.7", help="0.7, embedded with a real ZooKeeper, or a release from 0.9 on")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--compression", default="none", help="of what is written to the source")
    options = parser.parse_args()
    random.seed(options.seed)
    ok = True
    with ExitStack() as stack:
        new = stack.enter_context(KafkaBroker(config={"auto.create.topics.enable": "false"}))
        make = _old_07 if options.source == "0.7" else partial(_old_kafka, options.source)
        old, create = make(stack)
        old.compression = options.compression
        for number in range(options.moments):
            topic = f"orders-{number}"
            create(topic)
            first, members = random.choice(["consumers", "producers"]), random.randrange(1, 3)
            if old.broker >= 0 and old.compression != "none":
                members = 1  # a partition that moves between members is read again from the begin of a message
            moment = anyio.run(move, old, f"kafka://{new.bootstrap}", number, first, members)
            ok = ok and not moment.problems
            sys.stdout.write(json.dumps(moment.__dict__) + "\n")
            sys.stdout.flush()
    return 0 if ok else 1


def _old_07(stack: ExitStack) -> tuple[Old, Callable[[str], object]]:
    zookeeper = stack.enter_context(ZooKeeperServer())
    zookeeper.create("/kafka")
    chroot = f"{zookeeper.address}/kafka"
    config = {"num.partitions": str(PARTITIONS), "log.flush.interval": "1"}
    broker = stack.enter_context(Kafka07Broker(zookeeper=chroot, config=config))
    return Old(f"kafka07+zk://{chroot}", broker.broker_id), lambda _: None


def _old_kafka(version: str, stack: ExitStack) -> tuple[Old, Callable[[str], object]]:
    broker = stack.enter_context(KafkaBroker(version))
    return Old(f"kafka://{broker.bootstrap}"), lambda topic: broker.create_topic(topic, PARTITIONS)


if __name__ == "__main__":
    sys.exit(main())
