"""A producer whose brokers, connections and callers fail at random, and a check that every record has exactly one
outcome, and a true one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from unittest.mock import patch

import anyio
import pyarrow as pa
from anyio.lowlevel import checkpoint
from hypothesis import strategies as st

from odradek.client.cluster import Cluster
from odradek.client.options import Tuning
from odradek.client.producer import sender
from odradek.client.producer.producer import Producer
from odradek.client.producer.results import Ack, Acks, Failed
from odradek.core.backoff import Backoff
from odradek.core.interfaces import ProducerRecord
from odradek.errors import ConfigError, ConnectionLost, DeadlineError, DeliveryError, NotWritten, Rejected, Unreachable
from odradek.testing import MemoryCluster
from odradek.types import TopicPartition

__all__ = ["STORIES", "Brokers", "run"]

TUNING = Tuning(batch_bytes=120, request_bytes=300, in_flight=3, backoff=Backoff(0.0001, 2, 0.0005))
MAX_MESSAGE = 80

RECORDS = ["send", "put", "keyed", "many", "mixed", "arrow", "arrow keyed", "large"]
FAULTS = ["hold", "release", "answer", "cut", "unsent", "deadline", "down", "up", "away", "back", "cancel"]
FAULTS += ["no connections", "connections"]
Step = tuple[str, int]

STORIES = {
    "steps": st.lists(st.tuples(st.sampled_from(RECORDS + FAULTS), st.integers(0, 11)), max_size=30),
    "compression": st.sampled_from(["none", "gzip"]),
    "buffer_bytes": st.sampled_from([500, 3000, 100_000]),
}
"""Arguments of `run`."""


class Brokers(Protocol):
    """Brokers 1 and 2 of one kind of cluster, with a topic `t`."""

    cluster: MemoryCluster
    """Holds, cuts and fails requests."""
    partition: TopicPartition
    """Led by broker 1."""

    def client(self, tuning: Tuning) -> Cluster: ...

    def live(self, *ids: int) -> None:
        """These are live now, and no others."""

    def log(self, partition: TopicPartition | None = None) -> list[bytes | None]:
        """Return what is stored in a partition, in its order, or in all."""


@dataclass
class World:
    """A producer, what was given to it, and what it said."""

    brokers: Brokers
    out: Producer
    tasks: anyio.abc.TaskGroup
    numbers: int = 0
    scopes: list[anyio.CancelScope] = field(default_factory=list)
    written: int = 0
    in_one_partition: list[list[bytes]] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    surely: list[bytes] = field(default_factory=list)
    """These were said to be written."""

    def values(self, count: int, size: int = 4) -> list[bytes]:
        first, self.numbers = self.numbers, self.numbers + count
        return [b"%0*d" % (size, n) for n in range(first, self.numbers)]

    def start(self, values: list[bytes], call: Callable[[], Awaitable[Any]]) -> None:
        scope = anyio.CancelScope()
        self.scopes.append(scope)
        self.tasks.start_soon(self._outcome, values, call, scope)

    async def _outcome(self, values: list[bytes], call: Callable[[], Awaitable[Any]], scope: anyio.CancelScope) -> None:
        with scope:
            try:
                result = await call()
            except DeliveryError as error:
                self.failed += [Failed(record, "t", None, error) for record in error.records]
                return
            if isinstance(result, Acks):
                lost = {failed.record.value for failed in result.failed}
                assert len(lost) == len(result.failed)
                assert lost <= set(values)
                assert result.written == len(values) - len(lost)
                self.failed += result.failed
                self.surely += [value for value in values if value not in lost]
            elif isinstance(result, Ack):
                assert result.records == 1
                self.surely += values


def give(world: World, what: str, number: int) -> None:
    """A call that brings records."""
    out, partition = world.out, world.brokers.partition if number % 3 == 0 else None
    if what in ("send", "put", "keyed", "large"):
        (value,) = values = world.values(1, MAX_MESSAGE + 1 if what == "large" else 4)
        key = b"%d" % number if what == "keyed" else None
        method = out.put if what == "put" else out.send
        world.start(values, partial(method, "t", value, key=key, partition=partition))
        return
    values = world.values(3 * number + 1)
    if partition is not None:
        world.in_one_partition.append(values)
    if what.startswith("arrow"):
        keys = [None if n % 3 else b"%d" % n for n in range(len(values))]
        data = pa.table({"value": values, "key": pa.array(keys, pa.binary())})
        key_column = "key" if what == "arrow keyed" else None
        world.start(values, partial(out.send_arrow, "t", data, key=key_column, partition=partition))
    else:
        rows: list[Any] = list(values)
        if what == "mixed":
            rows[1::3] = [(b"k", value) for value in rows[1::3]]
            rows[2::3] = [ProducerRecord(value, b"%d" % number) for value in rows[2::3]]
        world.start(values, partial(out.send_many, "t", rows, partition=partition))


def fail(world: World, what: str, number: int) -> None:
    """Something happens to a broker, or to a caller."""
    brokers, cluster, broker = world.brokers, world.brokers.cluster, 1 + number % 2
    refused = Unreachable("tcp", "b:9092", "refused")
    faults: dict[str, Callable[[], None]] = {
        "hold": lambda: cluster.hold("produce", broker=broker),
        "release": lambda: cluster.release("produce", broker=broker),
        "answer": lambda: cluster.release("produce", broker=broker, count=1),
        "cut": lambda: cluster.cut(broker, applied=number % 4),
        "unsent": lambda: cluster.cut(broker, error=ConnectionLost("b:9092", "reset", False)),
        "deadline": lambda: cluster.cut(broker, error=DeadlineError("produce", 1, True)),
        "down": lambda: cluster.fail("produce", refused, times=None, broker=broker),
        "up": lambda: cluster.stop_failing("produce", broker=broker),
        "no connections": lambda: cluster.hold("connect", broker=broker),
        "connections": lambda: cluster.release("connect", broker=broker),
        "away": lambda: brokers.live(broker),
        "back": lambda: brokers.live(1, 2),
        "cancel": lambda: world.scopes[number % len(world.scopes)].cancel(),
    }
    with suppress(ConfigError, ZeroDivisionError):  # nothing is held, or there was no call
        faults[what]()


async def let_others_run() -> None:
    """Let other tasks run. Not until all wait: on a slow machine one that is refused again and again never does."""
    for _ in range(100):
        await checkpoint()


async def story(brokers: Brokers, steps: list[Step], compression: str, buffer_bytes: int) -> None:
    options: Any = {"compression": compression, "buffer_bytes": buffer_bytes, "max_message_bytes": MAX_MESSAGE}
    async with (
        brokers.client(TUNING) as k,
        k.producer(latency=0, **options) as out,
        anyio.create_task_group() as tasks,
    ):
        world = World(brokers, out, tasks)
        for what, number in steps:
            (give if what in RECORDS else fail)(world, what, number)
            if number % 2:
                await let_others_run()
        brokers.live(1, 2)
        brokers.cluster.stop_failing("produce")
        brokers.cluster.release("produce")
        brokers.cluster.release("connect")
        await let_others_run()
        await out.flush()
    kept = out.failures.take()
    now = out.statistics()
    assert now.accepted == now.written + now.failed
    assert (now.buffered, now.buffered_bytes, now.waiting) == (0, 0, 0)
    check(world, [*world.failed, *kept])


def check(world: World, failed: list[Failed]) -> None:
    log = world.brokers.log()
    assert all(isinstance(each.record, ProducerRecord) for each in failed)
    names = [each.record.value for each in failed]
    assert len(set(names)) == len(names)
    assert not set(names) & set(world.surely)
    assert set(world.surely) <= set(log)
    assert not {each.record.value for each in failed if isinstance(each.error, NotWritten | Rejected)} & set(log)
    for values in world.in_one_partition:
        wanted = set(values)
        firsts = list(dict.fromkeys(value for value in world.brokers.log(world.brokers.partition) if value in wanted))
        assert firsts == sorted(firsts)


def run(brokers: Brokers, backend: str, steps: list[Step], compression: str, buffer_bytes: int) -> None:
    """Run one story; fail if an outcome is missing, or untrue."""
    with patch.object(sender, "THREAD_BYTES", 60):  # so that some batches are compressed in threads
        anyio.run(story, brokers, steps, compression, buffer_bytes, backend=backend)
