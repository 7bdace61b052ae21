"""Programs of transactions, and what they see of a cluster: the same on one in memory and on a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import count
from random import Random
from typing import Any, Literal, NamedTuple

import odradek as od
from odradek.client.producer.transaction import Transaction
from odradek.types import EARLIEST, LATEST

__all__ = ["IDS", "SOURCE_RECORDS", "Run", "Seen", "Step", "make_program", "run_program"]

IDS = ("x", "x", "y")
"""Transactional ids of the producers: the first two fence each other."""

SOURCE_RECORDS = 8

Verb = Literal["open", "begin", "send", "plain", "take", "mark", "commit", "abort"]


class Step(NamedTuple):
    """One step of a program.

    Args:
        verb: What is done. `take` is to take the next batch of a consumer, `mark` to mark those that were taken.
        producer: The number of the producer that does it.
        partition: The partition of the records of `send`; those of `plain` are of no transaction. Of `mark`, 1 is to
            mark the last batch alone.
    """

    verb: Verb
    producer: int = 0
    partition: int = 0


OUTSIDE: dict[Verb, int] = {"begin": 6, "open": 2, "take": 1, "plain": 1}
INSIDE: dict[Verb, int] = {"send": 4, "take": 2, "mark": 2, "commit": 3, "abort": 1}
"""What a producer does outside and inside of a transaction, and how often."""


def make_program(seed: int, length: int = 24) -> list[Step]:
    """Return a random program, for which a producer that was fenced is like any other."""
    chance, open_now = Random(seed), set[int]()
    steps = [Step("open", 0), Step("open", 1), Step("open", 2)]
    while len(steps) < length:
        producer = chance.choice(sorted(open_now) * 2 + [0, 1, 2])
        verbs = INSIDE if producer in open_now else OUTSIDE
        (verb,) = chance.choices(list(verbs), list(verbs.values()))
        steps.append(Step(verb, producer, chance.randrange(2)))
        if verb == "begin":
            open_now.add(producer)
        elif verb in ("commit", "abort"):
            open_now.discard(producer)
    return steps


class Seen(NamedTuple):
    """Observations after a step.

    Args:
        outcome: The types of the error and of its causes; empty: it succeeded.
        committed: Partition, position and value of each record that a reader with `read_committed` gets.
        uncommitted: Those that other readers get.
        ends: The positions of both readers at their ends.
        offsets: The ends of the logs for both, as brokers say.
        transactions: State, epoch and partitions of both transactional ids.
        stored: The position of the group in the source.
    """

    outcome: list[str]
    committed: list[tuple[int, int, bytes | None]]
    uncommitted: list[tuple[int, int, bytes | None]]
    ends: list[dict[int, int]]
    offsets: list[dict[int, int]]
    transactions: list[object]
    stored: int


class Run:
    """A program that runs.

    Args:
        k: The cluster, with the topics NAME-in, of one partition, and NAME-out, of two.
        name: Begins the name of all that the run uses.
        stack: Ends the producers.
        consumer: Consumes NAME-in.
    """

    def __init__(self, k: od.Cluster, name: str, stack: AsyncExitStack, consumer: Any) -> None:
        self._k, self._stack = k, stack
        self._ids, self._out = [f"{name}-{each}" for each in IDS], f"{name}-out"
        self._source = od.TopicPartition(f"{name}-in", 0)
        self._group = f"{name}-group"
        self._batches: AsyncIterator[od.GroupBatch] = consumer.batches(max_records=2)
        self._producers: dict[int, od.Producer] = {}
        self._transactions: dict[int, Transaction] = {}
        self._marked: dict[int, list[od.GroupBatch]] = {}
        self._taken: list[od.GroupBatch] = []
        self._left = SOURCE_RECORDS
        self._numbers = count()

    async def take(self, step: Step) -> list[str]:
        """Take a step, unless it is a mistake now. Return the types of its error and of the causes."""
        try:
            await getattr(self, f"_{step.verb}")(step)
        except od.OdradekError as error:
            return _types(error)
        return []

    async def finish(self) -> None:
        """Abort what is open."""
        for producer in list(self._transactions):
            await self.take(Step("abort", producer))

    async def _open(self, step: Step) -> None:
        if step.producer in self._transactions:
            return
        producer = self._k.producer(
            transactional_id=self._ids[step.producer], latency=0, deliver_within=20.0, exit_within=20.0
        )
        self._producers[step.producer] = await producer.__aenter__()
        self._stack.push_async_exit(_quietly(producer))

    async def _begin(self, step: Step) -> None:
        if step.producer in self._producers and step.producer not in self._transactions:
            self._transactions[step.producer] = await self._producers[step.producer].transaction().__aenter__()
            self._marked[step.producer] = []

    async def _send(self, step: Step) -> None:
        if step.producer in self._transactions:
            values = [b"%d" % next(self._numbers) for _ in range(2)]
            acks = await self._producers[step.producer].send_many(self._out, values, partition=step.partition)
            acks.check()

    async def _plain(self, step: Step) -> None:
        async with self._k.producer() as out:
            await out.send(self._out, b"plain %d" % next(self._numbers), partition=step.partition)

    async def _take(self, step: Step) -> None:
        if self._left:
            batch = await anext(self._batches)
            self._left -= len(batch)
            self._taken.append(batch)

    async def _mark(self, step: Step) -> None:
        if step.producer in self._transactions:
            self._marked[step.producer] = self._taken[-1:] if step.partition else list(self._taken)
            for batch in self._marked[step.producer]:
                self._transactions[step.producer].done(batch)

    async def _commit(self, step: Step) -> None:
        if step.producer in self._transactions:
            await self._transactions.pop(step.producer).__aexit__(None, None, None)
            self._taken = [batch for batch in self._taken if batch not in self._marked[step.producer]]

    async def _abort(self, step: Step) -> None:
        if step.producer in self._transactions:
            why = KeyError()
            await self._transactions.pop(step.producer).__aexit__(KeyError, why, None)

    async def observe(self, outcome: list[str]) -> Seen:
        """Return what is seen now."""
        committed, end = await self._read("read_committed")
        uncommitted, last = await self._read("read_uncommitted")
        partitions = await self._k.partitions(self._out)
        offsets = [await self._ends(partitions, committed) for committed in (True, False)]
        described = await self._k.admin.describe_transactions(sorted(set(self._ids)))
        stored = await self._k.driver.offsets(self._group).fetch([self._source])
        return Seen(
            outcome,
            committed,
            uncommitted,
            [end, last],
            offsets,
            [
                (each.state, each.producer_epoch, [p.partition for p in each.partitions if p.topic == self._out])
                for _, each in sorted(described.done.items())
            ],
            stored[self._source] or 0,
        )

    async def _read(self, isolation: Any) -> tuple[list[tuple[int, int, bytes | None]], dict[int, int]]:
        async with self._k.reader(self._out, until=LATEST, isolation=isolation) as reader:
            records = sorted([(each.partition.partition, int(each.position), each.value) async for each in reader])
            return records, {partition.partition: at for partition, at in sorted(reader.positions().items())}

    async def _ends(self, partitions: Sequence[od.TopicPartition], read_committed: bool) -> dict[int, int]:
        listed = await self._k.admin.list_offsets(dict.fromkeys(partitions, LATEST), read_committed=read_committed)
        return {partition.partition: int(at.position or 0) for partition, at in sorted(listed.done.items())}


async def run_program(
    k: od.Cluster, name: str, steps: Sequence[Step], seen: Callable[[int, Step, Run, list[str]], Awaitable[None]]
) -> None:
    """Run a program.

    Args:
        k: The cluster, with the topics NAME-in, of one partition and SOURCE_RECORDS records, and NAME-out, of two.
        name: Begins the name of all that the run uses.
        steps: The program.
        seen: Called after each step with its number, and with the outcome.
    """
    group: Any = {"group": f"{name}-group", "commit_every": 3600.0, "start": EARLIEST}
    async with k.consumer(f"{name}-in", **group) as consumer, AsyncExitStack() as stack:
        run = Run(k, name, stack, consumer)
        for number, step in enumerate(steps):
            await seen(number, step, run, await run.take(step))
        await run.finish()


def _quietly(producer: od.Producer) -> Any:
    async def leave(*error: Any) -> None:
        with suppress(od.OdradekError):
            await producer.__aexit__(None, None, None)

    return leave


def _types(error: BaseException | None) -> list[str]:
    names = []
    while error is not None:
        names.append(type(error).__name__)
        error = error.__cause__
    return names
