"""Whatever comes in, in whatever order, and whatever fails: every record has exactly one outcome, and it is true."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import anyio
import pyarrow as pa
import pytest
from anyio import wait_all_tasks_blocked
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.client.options import Tuning
from odradek.client.producer import sender
from odradek.client.producer.producer import Producer
from odradek.client.producer.results import Ack, Acks, Failed
from odradek.core.backoff import Backoff
from odradek.core.interfaces import ProducerRecord
from odradek.errors import DeadlineError, DeliveryError, NotWritten, Rejected, Unreachable
from odradek.types import TopicPartition

if TYPE_CHECKING:
    from tests.client.conftest import FakeDriver

PARTITION = TopicPartition("t", 0, 1)
TUNING = Tuning(batch_bytes=120, request_bytes=300, in_flight=3, backoff=Backoff(0.0001, 2, 0.0005))
MAX_MESSAGE = 80

RECORDS = ["send", "put", "keyed", "many", "mixed", "arrow", "arrow keyed", "large"]
FAULTS = ["hold", "release", "answer", "cut", "unsent", "deadline", "down", "up", "away", "back", "cancel"]
Step = tuple[str, int]


@dataclass
class World:
    """A producer, what was given to it, and what it said."""

    driver: FakeDriver
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
    out, partition = world.out, PARTITION if number % 3 == 0 else None
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
    driver, broker = world.driver, world.driver[1 + number % 2]
    if what == "hold":
        broker.holding = True
    elif what == "release":
        broker.release()
    elif what == "answer":
        broker.answer(min(1, len(broker.pending)))
    elif what == "cut":
        broker.cut(applied=min(number % 4, len(broker.pending)))
    elif what == "unsent":
        broker.cut(sent=False)
    elif what == "deadline":
        broker.lose(DeadlineError("produce", 1, True))
    elif what in ("down", "up"):
        broker.down = Unreachable("tcp", "b:9092", "refused") if what == "down" else None
    elif what in ("away", "back"):
        driver.metadata.brokers(*([1, 2] if what == "back" else [1 + number % 2]))
    elif what == "cancel" and world.scopes:
        world.scopes[number % len(world.scopes)].cancel()


async def story(driver: FakeDriver, steps: list[Step], compression: str, buffer_bytes: int) -> None:
    producer = Producer(
        driver,
        tuning=TUNING,
        latency=0,
        buffer_bytes=buffer_bytes,
        compression=compression,
        max_message_bytes=MAX_MESSAGE,
    )
    async with producer as out, anyio.create_task_group() as tasks:
        world = World(driver, out, tasks)
        for what, number in steps:
            (give if what in RECORDS else fail)(world, what, number)
            if number % 2:
                await wait_all_tasks_blocked()
        driver.metadata.brokers(1, 2)
        for number in (1, 2):
            driver[number].down = None
            driver[number].release()
        await wait_all_tasks_blocked()
        await out.flush()
    kept = out.failures.take()
    now = out.statistics()
    assert now.accepted == now.written + now.failed
    assert (now.buffered, now.buffered_bytes, now.waiting) == (0, 0, 0)
    check(world, [*world.failed, *kept])


def check(world: World, failed: list[Failed]) -> None:
    log = [value for values in world.driver.log.values() for value in values]
    assert all(isinstance(each.record, ProducerRecord) for each in failed)
    names = [each.record.value for each in failed]
    assert len(set(names)) == len(names)
    assert not set(names) & set(world.surely)
    assert set(world.surely) <= set(log)
    assert not {each.record.value for each in failed if isinstance(each.error, NotWritten | Rejected)} & set(log)
    for values in world.in_one_partition:
        wanted = set(values)
        firsts = list(dict.fromkeys(value for value in world.driver.log[PARTITION] if value in wanted))
        assert firsts == sorted(firsts)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=settings().max_examples // 2)
@given(
    steps=st.lists(st.tuples(st.sampled_from(RECORDS + FAULTS), st.integers(0, 11)), max_size=30),
    compression=st.sampled_from(["none", "gzip"]),
    buffer_bytes=st.sampled_from([500, 3000, 100_000]),
)
def test_every_record_has_exactly_one_outcome_whatever_happens(
    make_driver: type[FakeDriver], backend: str, steps: list[Step], compression: str, buffer_bytes: int
) -> None:
    with patch.object(sender, "THREAD_BYTES", 60):  # so that some batches are compressed in threads
        anyio.run(story, make_driver(), steps, compression, buffer_bytes, backend=backend)
