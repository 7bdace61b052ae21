"""The options of the sink. As for the source, one that is not known is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from odradek.client.connect import connect
from odradek.core.interfaces import ProducerRecord
from odradek.errors import ConfigError, Rejected
from odradek.spark import client_options
from odradek.spark.client_options import BOOTSTRAP, ClusterOptions
from odradek.spark.option_map import OptionMap
from odradek.spark.option_names import CLUSTERS
from odradek.spark.options import parse_cluster
from odradek.spark.values import at_most, choice, parse_bytes, parse_milliseconds, parse_seconds
from odradek.types import GiB, MiB

__all__ = ["SinkOptions", "parse_sink"]

STREAMING = ("checkpointLocation", "queryName")
"""Spark's own, which it hands over with the rest."""

_OWN = ("topic", "compression", "deliverWithin", "maxMessageBytes", "bufferBytes", "reportPath")

_NEVER = {
    "subscribe": "that is read from; rows are written to option topic, or to the topics in column topic",
    "kafka.key.serializer": "keys are binary or string: cast the column",
    "kafka.value.serializer": "values are binary or string: cast the column",
}


class SinkOptionNames(NamedTuple):
    """The options of the sink for one family of clusters.

    Args:
        known: Options that are accepted.
        refused: Options of Spark's own Kafka sink that cannot be meant -> what to do instead.
        compressions: Values of option compression.
    """

    known: tuple[str, ...]
    refused: Mapping[str, str]
    compressions: tuple[str, ...]


KAFKA07 = SinkOptionNames(
    known=(*CLUSTERS, BOOTSTRAP, "kafka.protocol", *_OWN),
    refused={
        "path": "rows go to a cluster: name it by kafka.zk.connect or kafka.broker.list, and the topic by topic",
        "includeHeaders": "0.7 stores neither keys nor headers nor timestamps",
        "kafka.acks": "every produce is confirmed: leave it out",
        "kafka.compression.type": "use compression",
        "kafka.compression.codec": "use compression",
        "kafka.max.request.size": "use maxMessageBytes",
        "kafka.delivery.timeout.ms": "use deliverWithin, such as 2m",
        "kafka.buffer.memory": "use bufferBytes, such as 64m",
        "kafka.enable.idempotence": "0.7 cannot tell a record that is named twice: leave it out",
        "kafka.transactional.id": "0.7 has no transactions: leave it out",
        "kafka.partitioner.class": "the key chooses the partition, or columns broker and partition name it",
        **_NEVER,
    },
    compressions=("none", "gzip", "snappy"),
)

KAFKA = SinkOptionNames(
    known=(
        *client_options.USED,
        *client_options.NO_EFFECT,
        *_OWN,
        "includeHeaders",
        "kafka.acks",
        "kafka.compression.type",
        "kafka.max.request.size",
        "kafka.delivery.timeout.ms",
        "kafka.buffer.memory",
        *(
            f"kafka.{name}"
            for name in (
                *("batch.size", "enable.idempotence", "linger.ms", "max.block.ms", "metadata.max.idle.ms"),
                *("max.in.flight.requests.per.connection", "retries"),
            )
        ),
    ),
    refused={
        **client_options.REFUSED,
        "path": f"rows go to a cluster: name it by {BOOTSTRAP}, and the topic by topic",
        "kafka.protocol": f"{BOOTSTRAP} says it: leave it out",
        "kafka.compression.codec": "use kafka.compression.type",
        "kafka.transactional.id": "Spark runs each task in a process of its own, and again when it fails: leave it out",
        "kafka.partitioner.class": "the key chooses the partition as in Java's clients, or column partition names it",
        **_NEVER,
    },
    compressions=("none", "gzip", "snappy", "lz4", "zstd"),
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Everything a writer is told. Small, and pickled into every task.

    Args:
        cluster: Where rows go.
        topic: The topic of all rows; "": column topic says it row by row.
        compression: `none`, `gzip`, `snappy`, or from 0.8 on `lz4` or `zstd`.
        deliver_within_s: How long a row may be on its way before its task fails (s), and how long connecting may take.
        max_message_bytes: The brokers' max.message.size (bytes).
        buffer_bytes: Bytes that a task has on their way at most.
        report_path: A file on the driver, which gets a line for each commit; "": none.
        acks: Which replicas must have a row before it counts as written (see `Cluster.producer`).
    """

    cluster: ClusterOptions
    topic: str = ""
    compression: str = "none"
    deliver_within_s: float = 120.0
    max_message_bytes: int = 1_000_000
    buffer_bytes: int = 64 * MiB
    report_path: str = ""
    acks: Literal["all", 1, 0] = "all"

    @property
    def is_kafka07(self) -> bool:
        """True if the cluster is one of 0.7."""
        return self.cluster.url.startswith("kafka07")


def parse_sink(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """The options of a writer.

    Args:
        options: As Spark hands them over.
        streaming: For a streaming query: Spark adds some of its own.

    Raises:
        ConfigError: An option that cannot work; says which, what it is and what would be right.
        Unsupported: A cluster that this version does not speak to.
    """
    names = KAFKA if BOOTSTRAP in {name.lower() for name in options} else KAFKA07
    option_map = OptionMap(options, (*names.known, *STREAMING) if streaming else names.known, names.refused)
    cluster = parse_cluster(option_map)
    if cluster is None:
        raise ConfigError(
            f"one of the options {', '.join((BOOTSTRAP, *CLUSTERS))} is required: the cluster to write to"
        )
    parsed = SinkOptions(
        cluster=cluster,
        topic=option_map.take("topic", lambda text, _: text, ""),
        compression=_first(option_map, ("compression", "kafka.compression.type"), choice(*names.compressions), "none"),
        deliver_within_s=option_map.take(
            "deliverWithin", parse_seconds, option_map.take("kafka.delivery.timeout.ms", parse_milliseconds, 120.0)
        ),
        max_message_bytes=_first(option_map, ("maxMessageBytes", "kafka.max.request.size"), _SIZE, 1_000_000),
        buffer_bytes=_first(option_map, ("bufferBytes", "kafka.buffer.memory"), _SIZE, 64 * MiB),
        report_path=option_map.take("reportPath", lambda text, _: text, ""),
        acks=_ACKS[option_map.take("kafka.acks", choice(*_ACKS), "all")],
    )
    _check(parsed)
    return parsed


_SIZE = at_most(1 * GiB, parse_bytes)

_ACKS: Mapping[str, Literal["all", 1, 0]] = {"all": "all", "-1": "all", "1": 1, "0": 0}

T = TypeVar("T")


def _first(option_map: OptionMap, names: tuple[str, ...], parse: Callable[[str, str], T], default: T) -> T:
    """Return the first of these options that is set; each is checked."""
    for name in reversed(names):
        default = option_map.take(name, parse, default)
    return default


def _check(parsed: SinkOptions) -> None:
    if parsed.buffer_bytes < parsed.max_message_bytes:
        raise ConfigError(
            f"option bufferBytes ({parsed.buffer_bytes}) is smaller than maxMessageBytes ({parsed.max_message_bytes})"
        )
    if not parsed.deliver_within_s:
        raise ConfigError("option deliverWithin must be more than 0")
    if parsed.topic:
        try:
            driver = connect(parsed.cluster.url, **parsed.cluster.arguments).driver  # which opens nothing
            driver.validate_record(parsed.topic, ProducerRecord(b""), parsed.max_message_bytes)
        except Rejected as error:
            raise ConfigError(f"option topic={parsed.topic[:80]!r}: {error.why}") from None
