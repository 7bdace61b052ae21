"""Groups that are shared with Java's, librdkafka's and aiokafka's consumers on a real broker."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from itertools import count
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.io.kafka.foreign_member import CONSUMER, ForeignMember
from tests.io.kafka.groups import ASYNCIO, cluster, new_topic

import odradek as od
from odradek.testing import KafkaBroker

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400), pytest.mark.parametrize("anyio_backend", [ASYNCIO])]

PARTITIONS = 6
OURS = "odradek"


class Group:
    """A group with members of several clients, and records that are written while they come and go."""

    def __init__(self, out: od.Producer, topic: str) -> None:
        self._out, self._topic = out, topic
        self._ours: list[tuple[int, bytes]] = []
        self._others: dict[str, ForeignMember] = {}
        self._numbers = count()

    def add(self, name: str, member: ForeignMember) -> None:
        """Count what a member of another client delivers."""
        self._others[name] = member

    def member(self, name: str) -> ForeignMember:
        return self._others[name]

    async def take(self, consumer: od.Consumer) -> None:
        """Deliver the records of our own member."""
        async for batch in consumer.batches():
            self._ours += [(record.partition.partition, record.value or b"") for record in batch]
            batch.done()

    async def until_owned_by(self, *names: str) -> None:
        """Write records to every partition again and again. All must be delivered; return once all those written last
        were delivered once, each partition by one member, and each of these members has partitions."""
        with anyio.fail_after(90):
            while True:
                deliveries = await self._deliver({f"{next(self._numbers)}".encode() for _ in range(10 * PARTITIONS)})
                owners = {partition: {name for name, _ in by} for partition, by in deliveries.items()}
                once = all(len(by) == len({value for _, value in by}) for by in deliveries.values())
                if once and all(len(by) == 1 for by in owners.values()) and set.union(*owners.values()) == set(names):
                    return

    async def _deliver(self, values: set[bytes]) -> dict[int, list[tuple[str, bytes]]]:
        """Write records, wait until each was delivered, and return by whom, by partition."""
        await self._out.send_many(self._topic, [od.ProducerRecord(value, key=value) for value in values])
        while True:
            deliveries: dict[int, list[tuple[str, bytes]]] = defaultdict(list)
            records = {OURS: self._ours, **{name: member.records for name, member in self._others.items()}}
            for name, delivered in records.items():
                for partition, value in list(delivered):
                    if value in values:
                        deliveries[partition].append((name, value))
            if {value for by in deliveries.values() for _, value in by} == values:
                return deliveries
            await anyio.sleep(0.05)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("strategy", "options", "clients"),
    [
        ("range", {"assignors": ["range"]}, ["java", "librdkafka", "aiokafka"]),
        ("roundrobin", {"assignors": ["roundrobin"]}, ["java", "librdkafka", "aiokafka"]),
        ("cooperative-sticky", {"assignors": ["cooperative-sticky"]}, ["java", "librdkafka"]),
        (CONSUMER, {}, ["java", "librdkafka"]),
        ("range", {}, ["java", "librdkafka", "aiokafka"]),  # ours under KIP-848, the others classic members
    ],
    ids=["range", "roundrobin", "cooperative-sticky", "consumer", "both-protocols"],
)
async def test_every_record_is_delivered_while_members_of_all_clients_join_leave_and_die(
    odradek_kafka: KafkaBroker, strategy: str, options: dict[str, Any], clients: list[str]
) -> None:
    topic = await new_topic(odradek_kafka, PARTITIONS)
    async with cluster(odradek_kafka) as k, k.producer() as out:
        group = Group(out, topic)
        with ExitStack() as stack:
            async with k.consumer(topic, group=topic, **options) as first, anyio.create_task_group() as tasks:
                tasks.start_soon(group.take, first)
                await group.until_owned_by(OURS)
                for client in clients:
                    member = stack.enter_context(ForeignMember(client, odradek_kafka, topic, strategy))
                    group.add(client, member)
                await group.until_owned_by(OURS, *clients)
                tasks.cancel_scope.cancel()
            await group.until_owned_by(*clients)
            async with k.consumer(topic, group=topic, **options) as second, anyio.create_task_group() as tasks:
                tasks.start_soon(group.take, second)
                await group.until_owned_by(OURS, *clients)
                await anyio.to_thread.run_sync(group.member(clients[0]).kill)
                await group.until_owned_by(OURS, *clients[1:])
                for client in clients[1:]:
                    await anyio.to_thread.run_sync(group.member(client).leave)
                await group.until_owned_by(OURS)
                tasks.cancel_scope.cancel()
