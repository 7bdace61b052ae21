"""The options of the data source and of the sink, from the strings that Spark passes to checked values.

Each option is declared once: in a table with the field that it sets, or in one of those that are refused or have no
effect. An option that is not known, not for this kind of query or not for this cluster is an error. Names and meanings
are those of Spark's own Kafka source and sink; `docs/howto/spark-read.md` lists what differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

from odradek.client.options import COMPRESSION, Compression
from odradek.core.interfaces import RECORDS, ProducerRecord
from odradek.errors import ConfigError, Rejected
from odradek.ranges.offsets import Positions
from odradek.ranges.request import (
    MESSAGE_BYTES,
    ClusterConnection,
    Directory,
    ReadRequest,
    RequestNames,
    Topics,
    parse_directory,
)
from odradek.spark import values
from odradek.spark.cluster import BOOTSTRAP, CLUSTERS, TOKEN, parse_cluster
from odradek.spark.values import OptionMap, choice, invalid, option
from odradek.types import EARLIEST, LATEST, MiB, PositionSpec

__all__ = [
    "IGNORED_KAFKA",
    "IGNORED_KAFKA07",
    "REFUSED_KAFKA",
    "REFUSED_KAFKA07",
    "SINK_NAMES",
    "SINK_REFUSED_KAFKA",
    "SinkOptions",
    "SourceOptions",
    "parse_sink",
    "parse_source",
]


# ---- options that are refused -> what to do instead ----------------------------------------------------------


def _kafka(names: str) -> tuple[str, ...]:
    """Return options of Kafka's clients by their names without the prefix."""
    return tuple(f"kafka.{name}" for name in names.split())


_CAST = "keys and values are binary: cast the column"
_BY_BYTES = "0.7 has no record offsets to count by: use "
_BY_RECORDS = "brokers count records: use "
_NO_TRANSACTIONS = "0.7 has no transactions: leave it out"
_NO_JAVA = "there is no Java: see kafka.sasl.jaas.config"

_OF_KAFKA07 = dict.fromkeys(_kafka("security.protocol ssl.* sasl.*"), "0.7 has neither TLS nor SASL: leave it out")
_OF_KAFKA = {
    **dict.fromkeys(CLUSTERS[1:], f"it is for 0.7; {BOOTSTRAP} names the cluster"),
    **dict.fromkeys(_kafka("sasl.client.callback.handler.class sasl.login.class"), _NO_JAVA),
    "kafka.sasl.login.callback.handler.class": (
        f"there is no Java: kafka.sasl.oauthbearer.token.endpoint.url alone is enough, or {TOKEN}"
    ),
}

_OF_SOURCE = {
    **dict.fromkeys(_kafka("auto.offset.reset autooffset.reset"), "use startingOffsets"),
    **dict.fromkeys(_kafka("key.deserializer value.deserializer key.serializer value.serializer"), _CAST),
    "kafka.enable.auto.commit": "nothing is committed: the checkpoint has the offsets",
}

REFUSED_KAFKA07 = {
    **_OF_KAFKA07,
    **_OF_SOURCE,
    "maxOffsetsPerTrigger": _BY_BYTES + "maxBytesPerTrigger, such as 1g",
    "minOffsetsPerTrigger": _BY_BYTES + "minBytesPerTrigger, such as 64m",
    "maxRecordsPerPartition": _BY_BYTES + "maxBytesPerPartition, such as 128m",
    "isolationLevel": _NO_TRANSACTIONS,
    "kafka.isolation.level": _NO_TRANSACTIONS,
}

REFUSED_KAFKA = {
    **_OF_KAFKA,
    **_OF_SOURCE,
    "maxBytesPerTrigger": _BY_RECORDS + "maxOffsetsPerTrigger, such as 1000000",
    "minBytesPerTrigger": _BY_RECORDS + "minOffsetsPerTrigger, such as 10000",
    "maxBytesPerPartition": _BY_RECORDS + "maxRecordsPerPartition, such as 1000000",
    "isolationLevel": "use kafka.isolation.level",
}

_OF_SINK = {
    "subscribe": "that is read from; rows are written to option topic, or to the topics in column topic",
    "path": f"rows go to a cluster: name it by {', '.join(CLUSTERS)}, and the topic by topic",
    **dict.fromkeys(_kafka("key.serializer value.serializer"), "keys and values are binary or string: cast the column"),
    "kafka.compression.codec": "use compression",
    "kafka.partitioner.class": "the key chooses the partition, or columns name it",
}

SINK_REFUSED_KAFKA07 = {
    **_OF_KAFKA07,
    **_OF_SINK,
    "includeHeaders": "0.7 stores neither keys nor headers nor timestamps",
    "kafka.acks": "every produce is confirmed: leave it out",
    "kafka.enable.idempotence": "0.7 cannot tell a record that is named twice: leave it out",
    "kafka.transactional.id": _NO_TRANSACTIONS,
}

SINK_REFUSED_KAFKA = {
    **_OF_KAFKA,
    **_OF_SINK,
    "kafka.compression.*.level": "kafka.compression.type takes the level, too: zstd:9",
    "kafka.transactional.id": "Spark runs each task in a process of its own, and again when it fails: leave it out",
}


# ---- options without effect on what is read or written -------------------------------------------------------


_CONNECTIONS = _kafka(
    """auto.include.jmx.reporter client.dns.lookup connections.max.idle.ms default.api.timeout.ms enable.metrics.push
    metadata.max.age.ms metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
    receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms
    send.buffer.bytes socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.keystore.password
    ssl.truststore.password sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter"""
)
_GROUPS = (  # which nothing joins; tries go on until fetchOffset.deadlineMs
    *("groupIdPrefix", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    *_kafka(
        """group.id group.instance.id group.protocol heartbeat.interval.ms session.timeout.ms max.poll.interval.ms
        max.poll.records partition.assignment.strategy"""
    ),
)
IGNORED_KAFKA07 = _GROUPS + _kafka(
    """groupid socket.timeout.ms socket.buffersize backoff.increment.ms queuedchunks.max consumer.timeout.ms
    autocommit.enable autocommit.interval.ms rebalance.retries.max mirror.topics.whitelist
    zk.sessiontimeout.ms zk.connectiontimeout.ms zk.synctime.ms"""
)
IGNORED_KAFKA = (
    *_CONNECTIONS,
    *_GROUPS,
    *_kafka("allow.auto.create.topics check.crcs exclude.internal.topics"),
    *_kafka("fetch.max.bytes fetch.max.wait.ms fetch.min.bytes"),
)
SINK_IGNORED = (
    *("checkpointLocation", "queryName"),  # of Spark's own writer, which passes them on with the rest
    *_CONNECTIONS,
    "includeHeaders",
    *_kafka("batch.size enable.idempotence linger.ms max.block.ms metadata.max.idle.ms retries"),
    *_kafka("max.in.flight.requests.per.connection"),
)


# ---- the source ----------------------------------------------------------------------------------------------


def _parse_names(text: str, option: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise invalid(option, text, "topics separated by commas")
    return tuple(sorted(set(names)))


def _parse_pattern(text: str, option: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"option {option}={text[:80]!r} is not a regular expression of Python: {error}") from None
    return text


_TOPICS = {
    "names": option(_parse_names, "subscribe"),
    "pattern": option(_parse_pattern, "subscribePattern"),
    "partitions": option(values.parse_assign, "assign"),
}

_NAMES = RequestNames(
    partitions="option assign",
    pattern="subscribePattern",
    path="option path",
    max_message_bytes="maxMessageBytes",
    skip_loss="failOnDataLoss=false",
    start_at_end="startingOffsetsByTimestampStrategy=latest",
    corrupt="corrupt=skip-message continues behind it, corrupt=dead makes a row of its bytes",
)


@dataclass(frozen=True, slots=True)
class SourceOptions(ReadRequest):
    """The request of a query. Small, and pickled into every task.

    Args:
        max_size: Approximate maximum of a micro-batch; None: no limit.
        min_size: The minimum to wait for.
        max_delay_s: How long to wait for it (s).
        headers: Rows have a column of headers.
    """

    max_size: int | None = None
    min_size: int = 0
    max_delay_s: float = 900.0
    headers: bool = False


_SOURCE = {
    "max_size": option(
        values.parse_bytes, "maxBytesPerTrigger", later=option(values.parse_records, "maxOffsetsPerTrigger")
    ),
    "min_size": option(
        values.parse_bytes, "minBytesPerTrigger", later=option(values.parse_records, "minOffsetsPerTrigger")
    ),
    "max_delay_s": option(values.parse_seconds, "maxTriggerDelay"),
    "task_size": option(
        values.parse_bytes, "maxBytesPerPartition", later=option(values.parse_records, "maxRecordsPerPartition")
    ),
    "min_tasks": option(values.parse_count, "minPartitions"),
    "max_tasks": option(values.parse_count, "maxPartitions"),
    "fetchers": option(values.parse_count, "maxFetchersPerBroker"),
    "fail_on_data_loss": option(values.parse_boolean, "failOnDataLoss"),
    "max_message_bytes": option(
        values.parse_size,
        "maxMessageBytes",
        later=option(values.parse_size, "maxMessageBytes", default=MESSAGE_BYTES),
    ),
    "fetch_bytes": option(values.parse_size, "fetchBytes", "kafka.max.partition.fetch.bytes", "kafka.fetch.size"),
    "fetch_ahead": option(values.parse_count, "fetchAhead"),
    "deadline_s": option(values.parse_milliseconds, "fetchOffset.deadlineMs"),
    "poll_deadline_s": option(values.parse_milliseconds, "kafkaConsumer.pollTimeoutMs"),
    "corrupt": option(choice({"fail": "fail", "skip-message": "skip", "dead": "raw"}), "corrupt"),
    "headers": option(values.parse_boolean, "includeHeaders"),
    "read_committed": option(choice({"read_uncommitted": False, "read_committed": True}), "kafka.isolation.level"),
    "start_at_end": option(choice({"error": False, "latest": True}), "startingOffsetsByTimestampStrategy"),
}


def parse_source(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Return the options of a reader. A streaming query has another default start and no end; None: not known yet.

    Raises ConfigError, which says what would be right, and Unsupported for a cluster that is not spoken to.
    """
    kafka07 = _is_kafka07(options)
    endless = {f"ending{name}": "a streaming query has no end" for name in _POSITIONS} if streaming else {}
    refused = {**(REFUSED_KAFKA07 if kafka07 else REFUSED_KAFKA), **endless}
    option_map = OptionMap(options, kafka07, refused, IGNORED_KAFKA07 if kafka07 else IGNORED_KAFKA)
    option_map.one_of(*CLUSTERS, "path", required="the location of the logs")
    where = parse_cluster(option_map) or option_map.take(_parse_directories, (), "path")
    required = "the topics to read" if isinstance(where, ClusterConnection) else ""
    option_map.one_of("subscribe", "subscribePattern", "assign", required=required)
    starts = {None: (EARLIEST, LATEST), True: (LATEST, EARLIEST), False: (EARLIEST,)}[streaming]
    parsed = option_map.fill(
        SourceOptions,
        _SOURCE,
        where=where,
        topics=option_map.fill(Topics, _TOPICS),
        names=_NAMES._replace(start=_deciding(option_map, "starting"), end=_deciding(option_map, "ending")),
        start=_positions(option_map, "starting", starts),
        end=LATEST if streaming else _positions(option_map, "ending", (LATEST,)),
    )
    option_map.finish()
    _check_order(parsed.min_size, "minBytesPerTrigger" if kafka07 else "minOffsetsPerTrigger", parsed.max_size)
    _check_order(parsed.min_tasks, "minPartitions", parsed.max_tasks)
    return parsed


_POSITIONS = ("Timestamp", "OffsetsByTimestamp", "Offsets")
"""Options that say where to start or end, without `starting` or `ending`: as in Spark, the first that is set counts."""


def _is_kafka07(options: Mapping[str, str]) -> bool:
    """Return True unless the options name a cluster of 0.8 or later, or directories that have its logs. Raises
    ConfigError for a wrong path."""
    by_name = {name.lower(): text for name, text in options.items()}
    path = by_name.get("path", "").strip()
    if BOOTSTRAP in by_name or not path:
        return BOOTSTRAP not in by_name
    from odradek.ranges.directories import unit_of_directories

    return unit_of_directories(_parse_directories(path, "path")) is not RECORDS


def _check_order(minimum: int, name: str, maximum: int | None) -> None:
    if maximum is not None and minimum > maximum:
        raise ConfigError(f"option {name} ({minimum}) is more than {name.replace('min', 'max')} ({maximum})")


def _parse_directories(text: str, option: str) -> tuple[Directory, ...]:
    """`[broker@]path,...`, or a JSON array of the same for paths with commas."""
    items = values.parse_json(text, option) if text.lstrip().startswith("[") else text.split(",")
    directories = tuple(parse_directory(item) if isinstance(item, str) else None for item in items)
    if not directories or None in directories:
        right = "[broker@]path,..., or a JSON array of them"
        raise invalid(option, text, f"{right}, as in 0@/var/kafka-0,1@/var/kafka-1")
    return cast(tuple[Directory, ...], directories)


def _positions(option_map: OptionMap, which: str, anchors: tuple[PositionSpec, ...]) -> Positions:
    """Where to start or end; the first anchor is the default."""
    offsets: Positions = option_map.take(
        partial(values.parse_positions, anchors=anchors), anchors[0], f"{which}Offsets"
    )
    by_times: Positions = option_map.take(values.parse_times, offsets, f"{which}OffsetsByTimestamp")
    return option_map.take(values.parse_time, by_times, f"{which}Timestamp")


def _deciding(option_map: OptionMap, which: str) -> str:
    """Return the option that says where to start or end, for errors."""
    names = [f"{which}{name}" for name in _POSITIONS]
    present = (name for name in names if option_map.has(name))
    return f"option {next(present, names[-1])}"


# ---- the sink ------------------------------------------------------------------------------------------------


def _parse_delivery(text: str, option: str) -> float:
    return (values.parse_milliseconds if option.startswith("kafka.") else values.parse_seconds)(text, option)


def _compression(*names: str) -> Callable[[str, str], Compression]:
    """Return a parser for one of these names, with or without a level: `gzip:9`."""
    name_alone = choice({name: name for name in names})

    def parse(text: str, option: str) -> Compression:
        name, colon, level = text.partition(":")
        compression: Compression = COMPRESSION(f"option {option}", name_alone(name, option) + colon + level.strip())
        return compression

    return parse


_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_COMPRESSION = ("compression", "kafka.compression.type")
_ACKS: Mapping[str, Literal["all", 1, 0]] = {"all": "all", "-1": "all", "1": 1, "0": 0}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a writer. Small, and pickled into every task.

    Args:
        cluster: Where to write.
        topic: The topic of all rows; "" if the column topic has it, row by row.
        compression: The compression of batches.
        deliver_within_s: How long a row may be on its way before its task fails, and how long connecting may take (s).
        max_message_bytes: The brokers' max.message.size (bytes).
        buffer_bytes: Maximum of what a task has on its way (bytes).
        report_path: A file on the driver, which gets a line for each commit; "": none.
        acks: See `Cluster.producer`.
    """

    cluster: ClusterConnection
    topic: str = ""
    compression: Compression = "none"
    deliver_within_s: float = 120.0
    max_message_bytes: int = 1_000_000
    buffer_bytes: int = 64 * MiB
    report_path: str = ""
    acks: Literal["all", 1, 0] = "all"


_SINK = {
    "topic": option(values.parse_text, "topic"),
    "compression": option(
        _compression(*_COMPRESSIONS[:3]), *_COMPRESSION, later=option(_compression(*_COMPRESSIONS), *_COMPRESSION)
    ),
    "deliver_within_s": option(_parse_delivery, "deliverWithin", "kafka.delivery.timeout.ms"),
    "max_message_bytes": option(values.parse_size, "maxMessageBytes", "kafka.max.request.size"),
    "buffer_bytes": option(values.parse_size, "bufferBytes", "kafka.buffer.memory"),
    "report_path": option(values.parse_text, "reportPath"),
    "acks": option(choice(_ACKS), "kafka.acks"),
}  # fmt: skip
SINK_NAMES = {field: spec.names[0] for field, spec in _SINK.items()}
"""Field of the options -> the option of the sink that sets it, for errors."""


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """Return the options of a writer. Raises as `parse_source`."""
    kafka07 = _is_kafka07(options)
    option_map = OptionMap(options, kafka07, SINK_REFUSED_KAFKA07 if kafka07 else SINK_REFUSED_KAFKA, SINK_IGNORED)
    option_map.one_of(*CLUSTERS, required="the cluster to write to")
    parsed = option_map.fill(SinkOptions, _SINK, cluster=parse_cluster(option_map) or ClusterConnection(""))
    option_map.finish()
    if parsed.buffer_bytes < parsed.max_message_bytes:
        raise ConfigError(
            f"option bufferBytes ({parsed.buffer_bytes}) is smaller than maxMessageBytes ({parsed.max_message_bytes})"
        )
    if not parsed.deliver_within_s:
        raise ConfigError("option deliverWithin must be more than 0")
    if parsed.topic:
        try:
            parsed.cluster.connect().driver.validate_record(parsed.topic, ProducerRecord(b""), parsed.max_message_bytes)
        except Rejected as error:
            raise ConfigError(f"option topic={parsed.topic[:80]!r}: {error.why}") from None
    return parsed
