"""Names of the options of the data source for each family of clusters, and of those refused: what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from odradek.spark import client_options
from odradek.spark.client_options import BOOTSTRAP
from odradek.spark.planning import BYTES, RECORDS, PositionUnit
from odradek.spark.values import parse_bytes, parse_records
from odradek.types import MiB

__all__ = ["BATCH", "BOTH", "CLUSTERS", "KAFKA", "KAFKA07", "STREAM", "OptionNames"]

CLUSTERS = ("kafka.zk.connect", "kafka.broker.list")
"""Options that name a cluster of 0.7."""

BOTH = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxPartitions",
    "maxFetchersPerBroker",
    "maxMessageBytes",
    "fetchBytes",
    "fetchAhead",
    "fetchOffset.deadlineMs",
    "kafkaConsumer.pollTimeoutMs",
    "corrupt",
    "includeHeaders",
)
"""Options of every query, on every cluster."""

BATCH = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
"""Options of batch queries only."""


class OptionNames(NamedTuple):
    """The options for one family of clusters.

    Args:
        every: Of every query.
        stream: Of streaming queries only.
        no_effect: Accepted, because they change nothing of what is read.
        refused: Options that cannot be meant -> what to do instead.
        max_size, min_size: The options that limit a micro-batch.
        task_size: The option that limits a task.
        unit: What positions count.
        parse_size: Parses a size in that unit.
        max_message_bytes: Default of maxMessageBytes.
    """

    every: tuple[str, ...]
    stream: tuple[str, ...]
    no_effect: tuple[str, ...]
    refused: Mapping[str, str]
    max_size: str
    min_size: str
    task_size: str
    unit: PositionUnit
    parse_size: Callable[[str, str], int]
    max_message_bytes: int

    @property
    def known(self) -> tuple[str, ...]:
        """All that are accepted."""
        return (*self.every, *BATCH, *self.stream, *self.no_effect)


_OFFSETS_ONLY = "0.7 has no record offsets to count by: use "
_NO_GROUP = "no consumer group is used, and nothing is committed to one: leave it out"

_NEVER = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.key.deserializer": "keys are bytes: cast the column",
    "kafka.value.deserializer": "values are bytes: cast the column",
    "kafka.key.serializer": "keys are bytes: cast the column",
    "kafka.value.serializer": "values are bytes: cast the column",
    "kafka.enable.auto.commit": "nothing is committed: the checkpoint has the offsets",
    "kafka.interceptor.classes": "there are no interceptors",
}

KAFKA07 = OptionNames(
    every=(*CLUSTERS, BOOTSTRAP, "kafka.protocol", "path", *BOTH, "maxBytesPerPartition"),
    stream=("maxBytesPerTrigger", "minBytesPerTrigger", "maxTriggerDelay"),
    no_effect=(),
    refused={
        "maxOffsetsPerTrigger": _OFFSETS_ONLY + "maxBytesPerTrigger, such as 1g",
        "minOffsetsPerTrigger": _OFFSETS_ONLY + "minBytesPerTrigger, such as 64m",
        "maxRecordsPerPartition": _OFFSETS_ONLY + "maxBytesPerPartition, such as 128m",
        "fetchOffset.numRetries": "tries go on until fetchOffset.deadlineMs",
        "fetchOffset.retryIntervalMs": "tries go on, with growing pauses, until fetchOffset.deadlineMs",
        "groupIdPrefix": _NO_GROUP,
        "kafka.group.id": _NO_GROUP,
        "isolationLevel": "0.7 has no transactions: leave it out",
        "kafka.isolation.level": "0.7 has no transactions: leave it out",
        **_NEVER,
    },
    max_size="maxBytesPerTrigger",
    min_size="minBytesPerTrigger",
    task_size="maxBytesPerPartition",
    unit=BYTES,
    parse_size=parse_bytes,
    max_message_bytes=1_000_000,
)
"""Clusters and log directories of 0.7."""

KAFKA = OptionNames(
    every=(
        *client_options.USED,
        *BOTH,
        "maxRecordsPerPartition",
        "kafka.isolation.level",
        "kafka.max.partition.fetch.bytes",
    ),
    stream=("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    no_effect=(
        *client_options.NO_EFFECT,
        "groupIdPrefix",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        *(
            f"kafka.{name}"
            for name in (
                *("allow.auto.create.topics", "check.crcs", "exclude.internal.topics", "fetch.max.bytes"),
                *("fetch.max.wait.ms", "fetch.min.bytes", "group.id", "group.instance.id", "group.protocol"),
                *("heartbeat.interval.ms", "max.poll.interval.ms", "max.poll.records"),
                *("partition.assignment.strategy", "session.timeout.ms"),
            )
        ),
    ),
    refused={
        **client_options.REFUSED,
        "path": f"{BOOTSTRAP} names a cluster; log directories are read only of 0.7",
        "kafka.protocol": f"{BOOTSTRAP} says it: leave it out",
        "maxBytesPerTrigger": "brokers count records: use maxOffsetsPerTrigger, such as 1000000",
        "minBytesPerTrigger": "brokers count records: use minOffsetsPerTrigger, such as 10000",
        "maxBytesPerPartition": "brokers count records: use maxRecordsPerPartition, such as 1000000",
        "isolationLevel": "use kafka.isolation.level",
        **_NEVER,
    },
    max_size="maxOffsetsPerTrigger",
    min_size="minOffsetsPerTrigger",
    task_size="maxRecordsPerPartition",
    unit=RECORDS,
    parse_size=parse_records,
    max_message_bytes=64 * MiB,
)
"""Clusters of 0.8 and later: the options of Spark's own Kafka source. Brokers limit messages topic by topic, so
maxMessageBytes only bounds memory."""

STREAM = tuple(dict.fromkeys((*KAFKA07.stream, *KAFKA.stream)))
