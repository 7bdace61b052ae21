"""Random lives of clients that are cancelled at a random step, natively and by scopes, while the cluster misbehaves.

A life is one in-memory cluster and a few rounds. In each, a client runs a random choice of a producer, a reader, a
consumer and a consumer with `each`; brokers stop, leaders move, requests fail, wait or are held, members expire; and
the client is cancelled at a random step, on entering and on leaving too, sometimes twice. In the end everything works
again, and the rest is read.

    ODRADEK_LIVES=2000 pytest tests/client/test_lives.py            # that many lives, in all
    ODRADEK_LIVES_SEED=123 pytest tests/client/test_lives.py        # life 123 again, in each way
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint

import odradek as od
from odradek.client.consumer.consumer import Consumer
from odradek.client.options import Tuning
from odradek.client.producer.producer import Producer
from odradek.core.backoff import Backoff
from odradek.errors import BrokerError, ConnectionLost, DeadlineError, NotWritten, OdradekError, Rejected, Undelivered
from odradek.testing import MemoryCluster
from odradek.testing.memory.faults import Operation
from odradek.types import Record, TopicPartition

LIVES = int(os.environ.get("ODRADEK_LIVES", "300"))
SEED = os.environ.get("ODRADEK_LIVES_SEED")

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
TUNING = Tuning(backoff=Backoff(0.0002, 2, 0.002), request_timeout=0.03, connect_timeout=0.03, fetch_idle=0.002)
HANGS_AFTER_S = 30.0

HELD: list[Operation] = ["produce", "fetch", "positions", "metadata", "join", "commit", "connect"]
ERRORS: list[OdradekError] = [
    BrokerError(5, "LEADER_NOT_AVAILABLE", retriable=True, refresh_metadata=True),
    BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"),
    ConnectionLost("memory", "reset", True),
    ConnectionLost("memory", "reset", False),
    DeadlineError("a request", 1.0, sent=True),
]


class Life:
    """One life: the cluster, and what its clients know of it."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.cluster = MemoryCluster(topics={"t": len(PARTITIONS)}, brokers=2)
        self.written = 0
        self.acked: set[bytes] = set()
        self.not_written: set[bytes] = set()
        self.producers: list[Producer] = []
        self.done: dict[TopicPartition, set[int]] = {partition: set() for partition in PARTITIONS}
        self.read: list[tuple[TopicPartition, int]] = []
        self.bookmark: str | None = None
        self.ended = False
        for _ in range(self.chance.randrange(40)):
            self.append()

    def value(self) -> bytes:
        self.written += 1
        return b"%d" % self.written

    def append(self) -> None:
        self.cluster.append("t", [self.value()], partition=self.chance.randrange(len(PARTITIONS)))

    async def pause(self, most: int) -> None:
        for _ in range(self.chance.randrange(most)):
            await checkpoint()

    # ---- what a client does ----

    async def round(self) -> None:
        """Connect, and run one actor in this task, or several in tasks of their own."""
        self.ended = False
        actors = self.chance.sample([self.produce, self.read_on, self.consume, self.handle], self.chance.randint(0, 4))
        async with self.cluster.connect(tuning=TUNING) as k:
            if len(actors) == 1:
                await actors[0](k)
            else:
                async with anyio.create_task_group() as tasks:
                    for actor in actors:
                        tasks.start_soon(self.alone, actor, k)
        self.ended = True

    async def alone(self, actor: Callable[[od.Cluster], Awaitable[None]], k: od.Cluster) -> None:
        """Run an actor whose errors end nothing else."""
        with suppress(OdradekError):
            await actor(k)

    async def produce(self, k: od.Cluster) -> None:
        out = k.producer(deliver_within=0.05, exit_within=self.chance.choice([0.01, 0.1]), latency=0.001)
        self.producers.append(out)
        async with out, anyio.create_task_group() as tasks:
            for _ in range(self.chance.choice([0, 1, 10, 60])):
                kind = self.chance.randrange(4)
                if kind == 0:
                    await self.send(out)
                elif kind == 1:
                    tasks.start_soon(self.send, out)
                elif kind == 2:
                    with suppress(OdradekError):
                        await out.put("t", self.value(), key=self.chance.choice([None, b"k"]))
                else:
                    await self.send_many(out)
                await self.pause(5)

    async def send(self, out: Producer) -> None:
        value = self.value()
        try:
            await out.send("t", value, partition=self.chance.choice([None, 0, 1]))
        except (NotWritten, Rejected):
            self.not_written.add(value)
        except OdradekError:
            pass
        else:
            self.acked.add(value)

    async def send_many(self, out: Producer) -> None:
        values = [self.value() for _ in range(self.chance.randrange(20))]
        with suppress(OdradekError):
            acks = await out.send_many("t", values)
            failed = {each.record.value for each in acks.failed}
            self.acked |= set(values) - failed

    async def read_on(self, k: od.Cluster) -> None:
        async with k.reader("t", start=self.bookmark or od.EARLIEST) as reader:
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
        every, within = self.chance.choice([None, 0.0005]), self.chance.choice([0.005, 0.05])
        return k.consumer("t", group="g", commit_every=every, revoke_within=within, join_within=0.2, exit_within=0.1)

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
            self.disturb()

    def disturb(self) -> None:
        cluster, chance = self.cluster, self.chance
        broker, operation = chance.choice([1, 2]), chance.choice(HELD)
        match chance.randrange(10):
            case 0:
                cluster.stop_broker(broker)
            case 1 | 2:
                cluster.start_broker(broker)
            case 3:
                cluster.move_leader(chance.choice(PARTITIONS), broker)
            case 4:
                cluster.fail(operation, chance.choice(ERRORS), chance.randint(1, 3), broker=chance.choice([None, 1]))
            case 5:
                cluster.hold(operation)
            case 6:
                for each in HELD:
                    cluster.release(each)
            case 7:
                cluster.delay(operation, chance.choice([0, 0, 0.001]))
            case 8:
                cluster.expire("g")
            case _:
                self.append()

    # ---- what must hold ----

    def check(self) -> None:
        """Compare what the clients know with what the cluster has."""
        values = Counter(stored.value for stored in self.cluster.records("t"))
        assert max(values.values(), default=1) == 1, "a record was written twice, although none was lost on its way"
        assert self.acked <= values.keys(), "a confirmed record is not in the log"
        assert not self.not_written & values.keys(), "a record that failed as not written is in the log"
        for out in self.producers:
            now = out.statistics()
            assert (now.buffered, now.buffered_bytes, now.waiting) == (0, 0, 0), "a producer kept records"
            assert now.accepted == now.written + now.failed, "records without an outcome"
        for partition, position in self.cluster.committed("g").items():
            assert self.done[partition] >= set(range(position)), f"{partition}: committed beyond what was done"
        assert not self.cluster.members("g"), "a member did not leave"
        assert not [each for each, count in Counter(self.read).items() if count > 1], "a reader read a record twice"

    async def finish_reading(self) -> None:
        """Read the rest, with nothing in the way: every record was processed at least once, and read exactly once."""
        self.cluster.heal()
        ends = {partition: len(self.cluster.log(partition)) for partition in PARTITIONS}
        async with self.cluster.connect() as k:
            async with k.reader("t", start=self.bookmark or od.EARLIEST, until=od.LATEST) as reader:
                self.read += [(record.partition, record.position) async for record in reader]
            assert sorted(self.read) == sorted((p, n) for p, end in ends.items() for n in range(end))
            async with k.consumer("t", group="g", commit_every=None) as consumer:
                while any(self.done[p] != set(range(end)) for p, end in ends.items()):
                    batch = await anext(aiter(consumer.batches()))
                    for record in batch:
                        self.finish(record)
                    batch.done()
        assert all(at <= ends[p] for p, at in self.cluster.committed("g").items())


# ---- cancelling ---------------------------------------------------------------------------------------------------


def steps_of(chance: Random) -> int:
    """Return a number of steps: often few, so that entering is interrupted, too."""
    return chance.choice([chance.randrange(12), chance.randrange(100), chance.randrange(1500)])


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
            except OdradekError:
                outcome = "failed"

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for _ in range(steps_of(chance)):
            await checkpoint()
        scope.cancel()
        for _ in range(chance.randrange(20)):
            await checkpoint()
        if chance.random() < 0.3:
            tasks.cancel_scope.cancel()
    assert outcome != "not begun" or scope.cancelled_caught or tasks.cancel_scope.cancelled_caught


async def natively(life: Life) -> None:
    chance = life.chance
    task = asyncio.ensure_future(life.round())
    for _ in range(steps_of(chance)):
        await asyncio.sleep(0)
    ended = task.done()
    task.cancel()
    for _ in range(chance.randrange(20)):
        await asyncio.sleep(0)
    if chance.random() < 0.3:
        task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        error = task.exception()
        assert error is None or isinstance(error, OdradekError), error
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


async def live(seed: int, cancelled: Callable[[Life], Awaitable[None]]) -> None:
    life = Life(seed)
    with anyio.fail_after(HANGS_AFTER_S):
        before = tasks_alive()
        for _ in range(life.chance.randint(1, 3)):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(life.misbehave)
                await cancelled(life)
                tasks.cancel_scope.cancel()
            assert tasks_alive() == before, "a task is left"
            life.check()
        await life.finish_reading()
        life.check()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("way", WAYS)
def test_no_life_hangs_leaves_a_task_or_loses_what_was_confirmed(way: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="odradek")  # they have much to complain about
    backend, uvloop, cancelled = WAYS[way]
    options = {"use_uvloop": uvloop} if backend == "asyncio" else {}
    numbers = range(list(WAYS).index(way), LIVES, len(WAYS)) if SEED is None else [int(SEED)]
    for seed in numbers:
        try:
            anyio.run(live, seed, cancelled, backend=backend, backend_options=options)
        except BaseException as error:
            error.add_note(f"life {seed}, {way}: ODRADEK_LIVES_SEED={seed} replays it")
            raise
    gc.collect()  # what was never awaited warns here
