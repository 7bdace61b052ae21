"""Random lives of clients that are cancelled at a random step, natively and by scopes, while the cluster misbehaves.

A life is one cluster and a few rounds. In each, a client runs a random choice of a producer, a reader, a consumer and a
consumer with `each`; the cluster misbehaves; and the client is cancelled at a random step, on entering and on leaving
too, sometimes twice. In the end everything works again, and the rest is read.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from random import Random

import anyio
import trio
from anyio.lowlevel import checkpoint

import odradek as od
from odradek.client.consumer.consumer import Consumer
from odradek.client.options import Tuning
from odradek.client.producer.producer import Producer
from odradek.errors import (
    ConfigError,
    InternalError,
    LocalProtocolError,
    NotWritten,
    OdradekError,
    Rejected,
    Undelivered,
    UsageError,
)
from odradek.types import Record, TopicPartition

SEED = os.environ.get("ODRADEK_LIVES_SEED")

MISTAKES = (ConfigError, UsageError, LocalProtocolError, InternalError)
"""Errors that no misbehaving cluster causes."""


class Life:
    """One life: a cluster, and what its clients know of it.

    Args:
        seed: Everything random follows from it, but for the order in which tasks run.
        partitions: The partitions of topic `t`.
    """

    tuning = Tuning()
    patience = 1.0
    """Factor of the time limits of clients."""
    longest_s = 0.0
    """The longest time until a client is cancelled (s); 0: only steps of the event loop count."""
    hangs_after_s = 30.0
    """A life that takes longer hangs (s)."""
    topic, group = "t", "g"

    def __init__(self, seed: int, partitions: Sequence[TopicPartition]) -> None:
        self.chance, self.partitions = Random(seed), partitions
        self.written = 0
        self.acked: set[bytes] = set()
        self.not_written: set[bytes] = set()
        self.producers: list[Producer] = []
        self.done: dict[TopicPartition, set[int]] = {partition: set() for partition in partitions}
        self.read: list[tuple[TopicPartition, int]] = []
        self.bookmark: str | None = None
        self.ended = False

    def value(self) -> bytes:
        self.written += 1
        return b"%d" % self.written

    def connect(self) -> od.Cluster:
        """Return a client of the cluster."""
        raise NotImplementedError

    async def disturb(self) -> None:
        """Let something happen to the cluster."""
        raise NotImplementedError

    async def check(self) -> None:
        """Compare what the clients know with what the cluster has."""
        raise NotImplementedError

    async def finish_reading(self) -> None:
        """Read the rest, with nothing in the way: every record was processed at least once, and read exactly once."""
        raise NotImplementedError

    async def pause(self, most: int) -> None:
        for _ in range(self.chance.randrange(most)):
            await checkpoint()

    # ---- what a client does ----

    async def round(self) -> None:
        """Connect, and run one actor in this task, or several in tasks of their own."""
        self.ended = False
        actors = self.chance.sample([self.produce, self.read_on, self.consume, self.handle], self.chance.randint(0, 4))
        async with self.connect() as k:
            if len(actors) == 1:
                await actors[0](k)
            else:
                async with anyio.create_task_group() as tasks:
                    for actor in actors:
                        tasks.start_soon(self.alone, actor, k)
        self.ended = True

    async def alone(self, actor: Callable[[od.Cluster], Awaitable[None]], k: od.Cluster) -> None:
        """Run an actor whose errors end nothing else."""
        try:
            await actor(k)
        except MISTAKES:
            raise
        except OdradekError:
            pass

    async def produce(self, k: od.Cluster) -> None:
        exit_within = self.chance.choice([0.01, 0.1]) * self.patience
        out = k.producer(
            deliver_within=0.05 * self.patience,
            exit_within=exit_within,
            latency=0.001,
            buffer_bytes=self.chance.choice([1000, 1 * od.MiB]),
        )
        self.producers.append(out)
        async with out, anyio.create_task_group() as tasks:
            for _ in range(self.chance.choice([0, 1, 10, 60])):
                kind = self.chance.randrange(4)
                if self.chance.random() < 0.02:
                    out.purge(in_flight=self.chance.random() < 0.5)
                elif kind == 0:
                    await self.send(out)
                elif kind == 1:
                    tasks.start_soon(self.send, out)
                elif kind == 2:
                    with suppress(OdradekError):
                        await out.put(self.topic, self.value(), key=self.chance.choice([None, b"k"]))
                else:
                    await self.send_many(out)
                await self.pause(5)

    async def send(self, out: Producer) -> None:
        value = self.value()
        try:
            await out.send(self.topic, value, partition=self.chance.choice([None, *self.partitions]))
        except (NotWritten, Rejected):
            self.not_written.add(value)
        except OdradekError:
            pass
        else:
            self.acked.add(value)

    async def send_many(self, out: Producer) -> None:
        values = [self.value() for _ in range(self.chance.randrange(20))]
        with suppress(OdradekError):
            acks = await out.send_many(self.topic, values)
            failed = {each.record.value for each in acks.failed}
            self.acked |= set(values) - failed

    async def read_on(self, k: od.Cluster) -> None:
        async with k.reader(self.topic, start=self.bookmark or od.EARLIEST) as reader:
            if self.chance.random() < 0.5:
                async for record in reader:
                    self.read.append((record.partition, record.position))
                    self.bookmark = reader.bookmark()
                    await self.pause(3)
            async for batch in reader.batches(max_records=7, max_wait=0.001):
                self.read += [(batch.partition, position) for position in batch.columns.positions]
                self.bookmark = reader.bookmark()
                await self.pause(3)

    def consumer(self, k: od.Cluster) -> Consumer:
        return k.consumer(
            self.topic,
            group=self.group,
            commit_every=self.chance.choice([None, 0.001]),
            revoke_within=self.chance.choice([0.005, 0.05]),
            join_within=0.2 * self.patience,
            exit_within=0.1 * self.patience,
        )

    def finish(self, record: Record) -> None:
        self.done[record.partition].add(record.position)

    async def consume(self, k: od.Cluster) -> None:
        left = self.chance.choice([1, 20, 1000])
        async with self.consumer(k) as consumer:
            if self.chance.random() < 0.5:
                async for record in consumer:
                    self.finish(record)  # it is done when the next one is asked for, or at the end of the block
                    await self.pause(3)
                    if (left := left - 1) < 0:
                        break
            else:
                async for batch in consumer.batches(max_records=5):
                    await self.pause(3)
                    for record in batch:
                        self.finish(record)
                    batch.done()
                    if (left := left - 1) < 0:
                        break

    async def handle(self, k: od.Cluster) -> None:
        async def handler(record: Record) -> None:
            await self.pause(3)
            if self.chance.random() < 0.02:
                raise ValueError("once")
            self.finish(record)

        async with self.consumer(k) as consumer:
            for _ in range(self.chance.randrange(4)):
                with suppress(ValueError):
                    await consumer.each(handler, order=self.chance.choice(["partition", "none"]), parallel=5)

    # ---- what happens to it ----

    async def misbehave(self) -> None:
        """Disturb the cluster, until cancelled."""
        while True:
            await self.pause(30)
            await self.disturb()

    # ---- what must hold ----

    def check_producers(self) -> None:
        """Every record has an outcome."""
        for out in self.producers:
            now = out.statistics()
            assert (now.buffered, now.buffered_bytes, now.waiting) == (0, 0, 0), "a producer kept records"
            assert now.accepted == now.written + now.failed, "records without an outcome"

    def check_log(self, values: Counter[bytes | None]) -> None:
        """What was confirmed is in the log, and what was not written is not."""
        lost = self.acked - values.keys()
        assert not lost, f"confirmed records are not in the log: {lost}"
        assert not self.not_written & values.keys(), "a record that failed as not written is in the log"

    def check_reading(self) -> None:
        assert not [each for each, count in Counter(self.read).items() if count > 1], "a reader read a record twice"

    async def consume_until(self, k: od.Cluster, is_done: Callable[[], bool]) -> None:
        """Consume with the group of this life until that is so."""
        async with k.consumer(self.topic, group=self.group, commit_every=None, join_within=30) as consumer:
            while not is_done():
                batch = await anext(aiter(consumer.batches()))
                for record in batch:
                    self.finish(record)
                batch.done()


# ---- cancelling ---------------------------------------------------------------------------------------------------


async def run_on(life: Life) -> None:
    """Let the life go on for a number of steps, or for some time: often few, so that entering is interrupted, too."""
    chance = life.chance
    if life.longest_s and chance.random() < 0.7:
        await anyio.sleep(chance.random() ** 3 * life.longest_s)
    for _ in range(chance.choice([chance.randrange(12), chance.randrange(100), chance.randrange(1500)])):
        await checkpoint()


async def by_scope(life: Life) -> None:
    chance = life.chance
    scope, outcome = anyio.CancelScope(), "not begun"

    async def run() -> None:
        nonlocal outcome
        with scope:
            try:
                await life.round()
                outcome = "ended"
            except Undelivered:
                outcome = "undelivered"
            except MISTAKES:
                raise
            except OdradekError:
                outcome = "failed"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await run_on(life)
        scope.cancel()
        for _ in range(chance.randrange(20)):
            await checkpoint()
        if chance.random() < 0.3:
            tasks.cancel_scope.cancel()
    assert outcome != "not begun" or scope.cancelled_caught or tasks.cancel_scope.cancelled_caught


async def natively(life: Life) -> None:
    chance = life.chance
    task = asyncio.ensure_future(life.round())
    await run_on(life)
    ended = task.done()
    task.cancel()
    for _ in range(chance.randrange(20)):
        await asyncio.sleep(0)
    if chance.random() < 0.3:
        task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        error = task.exception()
        if error is not None and (isinstance(error, MISTAKES) or not isinstance(error, OdradekError)):
            raise error
        assert ended or isinstance(error, Undelivered), "the cancellation was swallowed"


WAYS: dict[str, tuple[str, bool, Callable[[Life], Awaitable[None]]]] = {
    "asyncio natively": ("asyncio", False, natively),
    "uvloop natively": ("asyncio", True, natively),
    "asyncio by scope": ("asyncio", False, by_scope),
    "trio by scope": ("trio", False, by_scope),
}


def tasks_alive() -> int:
    """Return the number of tasks of this loop."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return trio.lowlevel.current_statistics().tasks_living


async def live(life: Life, cancelled: Callable[[Life], Awaitable[None]]) -> None:
    with anyio.fail_after(life.hangs_after_s):
        before = tasks_alive()
        for _ in range(life.chance.randint(1, 3)):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(life.misbehave)
                await cancelled(life)
                tasks.cancel_scope.cancel()
            assert tasks_alive() == before, "a task is left"
            await life.check()
        await life.finish_reading()
        await life.check()


def run_lives(make: Callable[[int], AbstractContextManager[Life]], way: str, count: int) -> None:
    """Run the share of `count` lives that is lived in this way, or the one that ODRADEK_LIVES_SEED names."""
    backend, uvloop, cancelled = WAYS[way]
    options = {"use_uvloop": uvloop} if backend == "asyncio" else {}
    for seed in range(list(WAYS).index(way), count, len(WAYS)) if SEED is None else [int(SEED)]:
        try:
            with make(seed) as life:
                anyio.run(live, life, cancelled, backend=backend, backend_options=options)
        except BaseException as error:
            error.add_note(f"life {seed}, {way}: ODRADEK_LIVES_SEED={seed} replays it")
            raise
    gc.collect()  # what was never awaited warns here


def wait_for_threads(before: int) -> None:
    """Wait until there are as few threads as before, but for the one that ran blocking calls, which may be idle."""
    deadline = time.monotonic() + 60
    while threading.active_count() > before + 1:
        assert time.monotonic() < deadline, f"threads are left: {threading.enumerate()}"
        time.sleep(0.05)
