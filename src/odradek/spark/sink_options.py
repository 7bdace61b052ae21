"""The options of the sink. As for the source, one that is not known is an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from odradek.client.connect import connect
from odradek.core.interfaces import ProducerRecord
from odradek.errors import ConfigError, Rejected
from odradek.spark.option_map import OptionMap
from odradek.spark.options import BOOTSTRAP, CLUSTERS, ClusterOptions, parse_cluster
from odradek.spark.values import at_most, choice, parse_bytes, parse_seconds
from odradek.types import GiB, MiB

__all__ = ["SinkOptions", "parse_sink"]

KNOWN = (
    *CLUSTERS,
    BOOTSTRAP,
    "kafka.protocol",
    "topic",
    "compression",
    "deliverWithin",
    "maxMessageBytes",
    "bufferBytes",
    "reportPath",
)

STREAMING = ("checkpointLocation", "queryName")
"""Spark's own, which it hands over with the rest."""

NO_HEADERS = "0.7 stores neither keys nor headers nor timestamps"

REFUSED = {
    "path": "rows go to a cluster: name it by kafka.zk.connect or kafka.broker.list, and the topic by topic",
    "includeHeaders": NO_HEADERS,
    "subscribe": "that is read from; rows are written to option topic, or to the topics in column topic",
    "kafka.acks": "every produce is confirmed: leave it out",
    "kafka.compression.type": "use compression",
    "kafka.compression.codec": "use compression",
    "kafka.max.request.size": "use maxMessageBytes",
    "kafka.delivery.timeout.ms": "use deliverWithin, such as 2m",
    "kafka.buffer.memory": "use bufferBytes, such as 64m",
    "kafka.enable.idempotence": "0.7 cannot tell a record that is named twice: leave it out",
    "kafka.transactional.id": "0.7 has no transactions: leave it out",
    "kafka.partitioner.class": "the key chooses the partition, or columns broker and partition name it",
    "kafka.key.serializer": "keys are binary or string: cast the column",
    "kafka.value.serializer": "values are binary or string: cast the column",
}
"""Options of Spark's own Kafka sink that cannot be meant here -> what to do instead."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Everything a writer is told. Small, and pickled into every task.

    Args:
        cluster: Where rows go.
        topic: The topic of all rows; "": column topic says it row by row.
        compression: `none`, `gzip` or `snappy`.
        deliver_within_s: How long a row may be on its way before its task fails (s), and how long connecting may take.
        max_message_bytes: The brokers' max.message.size (bytes).
        buffer_bytes: Bytes that a task has on their way at most.
        report_path: A file on the driver, which gets a line for each commit; "": none.
    """

    cluster: ClusterOptions
    topic: str = ""
    compression: str = "none"
    deliver_within_s: float = 120.0
    max_message_bytes: int = 1_000_000
    buffer_bytes: int = 64 * MiB
    report_path: str = ""


def parse_sink(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The options of a writer.

    Args:
        options: As Spark hands them over.
        streaming: For a streaming query: Spark adds some of its own.

    Raises:
        ConfigError: An option that cannot work; says which, what it is and what would be right.
        Unsupported: A cluster that this version does not speak to.
    """
    option_map = OptionMap(options, (*KNOWN, *STREAMING) if streaming else KNOWN, REFUSED)
    cluster = parse_cluster(option_map)
    if cluster is None:
        raise ConfigError(f"one of the options {', '.join(CLUSTERS)} is required: the cluster to write to")
    parsed = SinkOptions(
        cluster=cluster,
        topic=option_map.take("topic", lambda text, _: text, ""),
        compression=option_map.take("compression", choice("none", "gzip", "snappy"), "none"),
        deliver_within_s=option_map.take("deliverWithin", parse_seconds, 120.0),
        max_message_bytes=option_map.take("maxMessageBytes", at_most(1 * GiB, parse_bytes), 1_000_000),
        buffer_bytes=option_map.take("bufferBytes", at_most(1 * GiB, parse_bytes), 64 * MiB),
        report_path=option_map.take("reportPath", lambda text, _: text, ""),
    )
    _check(parsed)
    return parsed


def _check(parsed: SinkOptions) -> None:
    if parsed.buffer_bytes < parsed.max_message_bytes:
        raise ConfigError(
            f"option bufferBytes ({parsed.buffer_bytes}) is smaller than maxMessageBytes ({parsed.max_message_bytes})"
        )
    if not parsed.deliver_within_s:
        raise ConfigError("option deliverWithin must be more than 0")
    if parsed.topic:
        try:
            connect(parsed.cluster.url).driver.validate_record(
                parsed.topic, ProducerRecord(b""), parsed.max_message_bytes
            )  # opens nothing
        except Rejected as error:
            raise ConfigError(f"option topic={parsed.topic[:80]!r}: {error.why}") from None
