"""How `peers.py` uses each client: every setting that differs from the client's defaults, and where it comes from.

The topic, the address and offsets are not listed; nobody commits positions. All clients wait for all replicas in sync:
where that is not the default it is set, since an acknowledgement of less is another work. The titles are the columns
of the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["BROKER", "CLIENTS", "Settings"]

MIB = 1 << 20
BATCH = 1_000_000
"""Bytes of a batch: brokers refuse more than message.max.bytes, 1,048,588 by default, with what is around it."""


BROKER: Mapping[str, Any] = {
    # Kafka's kafka-server-start.sh and kafka-run-class.sh: KAFKA_HEAP_OPTS, KAFKA_JVM_PERFORMANCE_OPTS.
    "heap": "1g",
    "java_options": (
        *("-XX:-UseSerialGC", "-XX:TieredStopAtLevel=4"),  # Java's own defaults, in place of what tests use
        *("-Xms1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
        *("-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15"),
    ),
}
"""Arguments of `KafkaBroker`: Java runs it as it does when Kafka's own script starts it."""


class Settings(NamedTuple):
    """One way to use a client.

    Args:
        title: Its name on the page.
        library: The library, which is also how its functions in `_peers_clients.py` begin.
        consumer, producer: Options of its consumer, and of a producer of many records.
        single: Options of a producer of which a single record at a time is awaited.
        poll: Records that one call may return, where a call has such a limit.
        buffer, buffer_single: Arguments of an AIOProducer of confluent-kafka for either producer.
        limit_s: When a run of it ends that has not moved all records by then (s): a slow client takes no minutes.
    """

    title: str
    library: str
    consumer: Mapping[str, Any] = {}
    producer: Mapping[str, Any] = {}
    single: Mapping[str, Any] = {}
    poll: int = 1000
    buffer: Mapping[str, Any] = {}
    buffer_single: Mapping[str, Any] = {}
    limit_s: float = 1.5


PAUSES_S = 3.0
"""Time for several of the pauses of a second that confluent-kafka makes when it has fetched enough."""
CONFLUENT_READS = {
    # librdkafka, CONFIGURATION.md: messages per partition to keep fetched ahead, 100,000 by default.
    "queued.min.messages": 1_000_000,
    # The same: bytes of a partition in a fetch, 1 MiB by default.
    "fetch.message.max.bytes": 8 * MIB,
    # The same: the pause of a partition that has enough fetched ahead, 1,000 ms by default; its description says to
    # lower it against pauses of a second between messages.
    "fetch.queue.backoff.ms": 0,
}
CONFLUENT_WRITES = {
    # librdkafka, CONFIGURATION.md: enable.idempotence, "acks=all" is its default and required by it.
    "enable.idempotence": True,
    "acks": "all",
    # librdkafka, CONFIGURATION.md: batch.size, 1,000,000 by default, as message.max.bytes, which limits it, too.
    "batch.size": MIB,
    # librdkafka, INTRODUCTION.md, "High throughput": let many messages gather. More room lets `produce` wait less.
    "queue.buffering.max.messages": 1_000_000,
    "linger.ms": 5,  # the default, named because a single record has another
}
CLIENTS = {
    # Its defaults: idempotent, acks="all", 10 ms of latency for what nobody awaits, fetches of 1 MiB (8 MiB from afar).
    "odradek": Settings("odradek", "odradek"),
    # Its defaults: acks=all, not idempotent, linger.ms=5, 100,000 messages fetched ahead, CRCs not checked. `consume`
    # returns 1 message by default, which nobody calls a batch.
    "confluent": Settings("confluent-kafka", "confluent", limit_s=PAUSES_S),
    "confluent_tuned": Settings(
        "confluent-kafka, tuned",
        "confluent",
        consumer=CONFLUENT_READS,
        producer=CONFLUENT_WRITES,
        # librdkafka, INTRODUCTION.md, "Low latency": linger.ms of 0.
        single=CONFLUENT_WRITES | {"linger.ms": 0},
        poll=10_000,
    ),
    # Its asyncio classes, which call the others in a pool of threads. A producer gathers 1,000 records, or waits 1 s.
    "confluent_asyncio": Settings("its asyncio classes", "confluent_asyncio", limit_s=PAUSES_S),
    "confluent_asyncio_tuned": Settings(
        "its asyncio classes, tuned",
        "confluent_asyncio",
        consumer=CONFLUENT_READS,
        producer=CONFLUENT_WRITES,
        single=CONFLUENT_WRITES | {"linger.ms": 0},
        poll=10_000,
        # Arguments of AIOProducer: records that are handed over at once, and the time to wait for them (s).
        buffer={"buffer_timeout": 0.005},
        buffer_single={"batch_size": 1, "buffer_timeout": 0.005},
    ),
    # Its defaults but for acks: one by default. No linger, batches of 16 KiB, fetches of 1 MiB of a partition.
    "aiokafka": Settings("aiokafka", "aiokafka", producer={"acks": "all"}, single={"acks": "all"}),
    "aiokafka_tuned": Settings(
        "aiokafka, tuned",
        "aiokafka",
        # aiokafka's reference, AIOKafkaConsumer: bytes of a partition in a fetch.
        consumer={"max_partition_fetch_bytes": 4 * MIB},
        # aiokafka's reference, AIOKafkaProducer: max_batch_size, linger_ms; idempotence as every other tuned client.
        producer={"enable_idempotence": True, "acks": "all", "max_batch_size": BATCH, "linger_ms": 5},
        single={"enable_idempotence": True, "acks": "all"},
    ),
    # Its defaults: idempotent, acks all, no linger, batches of 16 KiB, 500 records from `poll`. crc32c is installed, as
    # its README recommends.
    "kafka_python": Settings("kafka-python", "kafka_python", poll=500),
    "kafka_python_tuned": Settings(
        "kafka-python, tuned",
        "kafka_python",
        # Its reference, KafkaConsumer: max_partition_fetch_bytes; max_poll_records.
        consumer={"max_partition_fetch_bytes": 4 * MIB},
        # Its reference, KafkaProducer: batch_size, linger_ms.
        producer={"batch_size": BATCH, "linger_ms": 5},
        poll=10_000,
    ),
}
