"""Load, and the outcomes of all its records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

import odradek as od
from odradek.testing import Kafka07Broker
from odradek.types import EARLIEST, LATEST, TopicPartition

from ..payloads import payloads

SENDERS = 8
PARTITIONS = 3
CONFIG = {"num.partitions": str(PARTITIONS), "log.flush.interval": "1"}
WAIT_S = 20.0


class Condition:
    """Condition that wakes all its waiters to check again."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def wait_until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(WAIT_S):
            while not condition():
                await self._event.wait()


class Load:
    """Senders that wait for every `send`, each with records of its own, until `stop`."""

    def __init__(self, out: od.Producer, topic: str, tasks: TaskGroup) -> None:
        self.acks: dict[bytes, od.Ack] = {}
        self.unknown: set[bytes] = set()
        self.not_written: set[bytes] = set()
        self._out, self._topic = out, topic
        self._stopping = False
        self._running = SENDERS
        self._condition = Condition()
        for sender in range(SENDERS):
            tasks.start_soon(self._send, sender)

    async def _send(self, sender: int) -> None:
        number = 0
        while not self._stopping:
            value = b"%b/%d/%d" % (self._topic.encode(), sender, number)
            number += 1
            try:
                self.acks[value] = await self._out.send(self._topic, value)
            except od.OutcomeUnknown:
                self.unknown.add(value)
            except od.NotWritten:
                self.not_written.add(value)
            self._condition.notify()
        self._running -= 1
        self._condition.notify()

    async def more(self, count: int) -> None:
        """Wait until `count` more sends have succeeded."""
        target = len(self.acks) + count
        await self._condition.wait_until(lambda: len(self.acks) >= target)

    async def failures(self, count: int) -> None:
        """Wait until `count` more sends have failed."""
        target = len(self.unknown) + len(self.not_written) + count
        await self._condition.wait_until(lambda: len(self.unknown) + len(self.not_written) >= target)

    async def stop(self) -> None:
        """Stop, and wait until every send has an outcome."""
        self._stopping = True
        await self._condition.wait_until(lambda: not self._running)


class LoadResult(NamedTuple):
    """Comparison of the log with the outcomes of sends."""

    confirmed: int
    unknown: int
    not_written: int
    in_doubt: int
    copies: int
    """Copies of records in doubt, beyond the first."""

    def __str__(self) -> str:
        return (
            f"{self.confirmed} confirmed, none lost; {self.in_doubt} in doubt when a fault came between request and "
            f"confirm, {self.copies} more copies of them in the log; "
            f"{self.unknown} unknown, {self.not_written} not written"
        )


def check_load(load: Load, log: Counter[bytes]) -> LoadResult:
    """Check that no confirmed record is lost, no other record is in the log, and only records in doubt are repeated."""
    assert load.acks.keys() <= log.keys(), "confirmed, and lost"
    assert not load.not_written & log.keys(), "said to be not written"
    assert log.keys() <= load.acks.keys() | load.unknown, "never sent"
    assert all(ack.confirmed for ack in load.acks.values())
    in_doubt = {value for value, ack in load.acks.items() if ack.repeated} | load.unknown
    twice = {value for value, count in log.items() if count > 1}
    assert twice <= in_doubt, "repeated, though no confirmation was missing"
    copies = sum(log.values()) - len(log)
    return LoadResult(len(load.acks), len(load.unknown), len(load.not_written), len(in_doubt), copies)


async def read_back(topic: str, *brokers: Kafka07Broker) -> Counter[bytes]:
    """Return the logs of a topic, from the brokers themselves: a routing table may lag behind."""
    log: Counter[bytes] = Counter()
    addresses = ",".join(f"{broker.broker_id}@{broker.address}" for broker in brokers)
    partitions = [TopicPartition(topic, n, broker.broker_id) for broker in brokers for n in range(PARTITIONS)]
    with anyio.fail_after(WAIT_S):
        async with (
            od.connect(f"kafka07://{addresses}") as k,
            k.reader(dict.fromkeys(partitions, EARLIEST), until=LATEST) as reader,
        ):
            async for batch in reader.batches():
                log.update(payloads(batch.values))
    return log


class Received:
    """Records delivered to the members of a group: each value with the members that received it, in order."""

    def __init__(self) -> None:
        self.members: defaultdict[bytes, list[str]] = defaultdict(list)
        self._condition = Condition()
        self._taken = 0

    async def take(self, member: str, consumer: od.Consumer) -> None:
        """Take batches and mark them done, until cancelled."""
        async for batch in consumer.batches():
            for value in payloads(batch.values):
                self.members[value].append(member)
            batch.done()
            self._taken += len(batch)
            self._condition.notify()

    def counts(self) -> Counter[bytes]:
        return Counter({value: len(members) for value, members in self.members.items()})

    async def all_of(self, log: Counter[bytes]) -> None:
        """Wait until every record of the log was delivered at least as often as it is in the log."""
        await self._condition.wait_until(lambda: self._taken >= log.total() and self.counts() >= log)
