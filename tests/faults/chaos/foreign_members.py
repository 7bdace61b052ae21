"""Members of the same groups by other clients: librdkafka and aiokafka. They note deliveries before they commit."""

from __future__ import annotations

import asyncio
import importlib
import signal
import time
from typing import Any

from .journal import Journal
from .members import PAUSE_S, Deliveries

__all__ = ["aiokafka", "librdkafka"]

WAIT_S = 0.2
SESSION_MS = 10_000


class _Stop:
    """Whether SIGTERM came."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


# ---- librdkafka -----------------------------------------------------------------------------------------------


def _deliver_messages(deliveries: Deliveries, messages: list[Any]) -> None:
    by_partition: dict[int, list[int]] = {}
    for message in messages:
        if message.error() is None:
            by_partition.setdefault(message.partition(), []).append(message.offset())
    for partition, positions in by_partition.items():
        deliveries.positions(partition, positions)


def _commit_librdkafka(client: Any, consumer: Any, deliveries: Deliveries) -> None:
    requested = time.monotonic()
    try:
        stored = consumer.commit(asynchronous=False)
    except client.KafkaException as error:
        deliveries.journal.write("not_stored", repr(error))
    else:
        deliveries.stored(
            requested, {each.partition: each.offset for each in stored if each.error is None and each.offset >= 0}
        )


def librdkafka(journal: Journal, bootstrap: str, topic: str, options: dict[str, Any]) -> None:
    """Be a member until SIGTERM; `options` are librdkafka's."""
    client: Any = importlib.import_module("confluent_kafka")
    settings = {"bootstrap.servers": bootstrap, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    settings |= {"socket.timeout.ms": SESSION_MS, "log_level": 4, **options}
    if options.get("group.protocol") != "consumer":
        settings["session.timeout.ms"] = SESSION_MS
    consumer, deliveries, stop, committed = client.Consumer(settings), Deliveries(journal), _Stop(), time.monotonic()
    consumer.subscribe([topic])
    while not stop.asked:
        _deliver_messages(deliveries, consumer.consume(200, WAIT_S))
        deliveries.assigned([each.partition for each in consumer.assignment()])
        if time.monotonic() > committed + PAUSE_S:
            committed = time.monotonic()
            _commit_librdkafka(client, consumer, deliveries)
    consumer.close()


# ---- aiokafka -------------------------------------------------------------------------------------------------


async def _consume_aiokafka(consumer: Any, deliveries: Deliveries, stop: _Stop) -> None:
    """Commit each batch at once: kept for later, it would be committed even if others had the partition meanwhile."""
    while not stop.asked:
        batches = await consumer.getmany(timeout_ms=int(1000 * WAIT_S), max_records=200)
        deliveries.assigned([each.partition for each in consumer.assignment()])
        for partition, records in batches.items():
            deliveries.positions(partition.partition, [record.offset for record in records])
        positions = {partition: records[-1].offset + 1 for partition, records in batches.items()}
        if positions:
            requested = time.monotonic()
            await consumer.commit(positions)
            deliveries.stored(requested, {each.partition: position for each, position in positions.items()})


def aiokafka(journal: Journal, bootstrap: str, topic: str, group: str) -> None:
    """Be a member until SIGTERM, and join again after an error."""
    client: Any = importlib.import_module("aiokafka")
    errors: Any = importlib.import_module("aiokafka.errors")
    assignors: Any = importlib.import_module("aiokafka.coordinator.assignors.range")
    deliveries, stop = Deliveries(journal), _Stop()
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": SESSION_MS,
        "partition_assignment_strategy": [assignors.RangePartitionAssignor],
    }

    async def forever() -> None:
        while not stop.asked:
            try:
                async with client.AIOKafkaConsumer(topic, **settings) as consumer:
                    await _consume_aiokafka(consumer, deliveries, stop)
            except errors.KafkaError as error:
                journal.write("ended", repr(error))
                await asyncio.sleep(PAUSE_S)

    asyncio.run(forever())
