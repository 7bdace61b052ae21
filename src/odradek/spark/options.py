"""The options of the data source and of the sink, from the strings that Spark passes to checked values.

Each option is declared once: by a field of `SourceOptions`, `SinkOptions`, `Topics` or `ClusterOptions`, or in a table
of those that are refused or have no effect. An option that is not known, not for this kind of query or not for this
cluster is an error. Names and meanings are those of Spark's own Kafka source and sink; `docs/howto/spark-read.md` lists
what differs.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, cast

from odradek.core.interfaces import DecoderOptions, PositionUnit, ProducerRecord
from odradek.errors import ConfigError, CorruptMessage, Rejected
from odradek.spark import values
from odradek.spark.cluster import BOOTSTRAP, CLUSTERS, TOKEN, ClusterOptions, parse_cluster
from odradek.spark.planning import DataLoss, PositionGap
from odradek.spark.values import OptionMap, Positions, choice, invalid, option
from odradek.types import EARLIEST, LATEST, MiB, PositionSpec, TopicPartition

__all__ = [
    "IGNORED_KAFKA",
    "IGNORED_KAFKA07",
    "REFUSED_KAFKA",
    "REFUSED_KAFKA07",
    "SINK_REFUSED_KAFKA",
    "ClusterOptions",
    "Directory",
    "OptionNames",
    "SinkOptions",
    "SourceOptions",
    "Topics",
    "log_skipped",
    "parse_directory",
    "parse_sink",
    "parse_source",
]

log = logging.getLogger("odradek.spark")

ENTRY_HEAD = 10
"""Bytes of an entry in front of its payload (specification 2.1)."""


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
    "kafka.sasl.login.callback.handler.class": f"there is no Java: {TOKEN}",
    "kafka.sasl.oauthbearer.token.endpoint.url": TOKEN,
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
    "path": f"{BOOTSTRAP} names a cluster; log directories are read only of 0.7",
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


class Directory(NamedTuple):
    """A partition's log directory, a broker's log.dir with such directories in it, or a pattern of either."""

    path: str
    broker: int = -1  # id of the one it belongs to; -1: not said, and rows have none


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


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics or partitions to read. One of three is set, or none: all logs (log directories only)."""

    names: tuple[str, ...] = option(_parse_names, (), "subscribe")
    pattern: str = option(_parse_pattern, "", "subscribePattern")  # found anywhere in the name, as by Spark
    partitions: tuple[TopicPartition, ...] = option(values.parse_assign, (), "assign")
    whole: bool = False  # the pattern matches the name as a whole instead

    def has(self, topic: str) -> bool:
        """Return True if this topic, or a partition of it, is selected."""
        if self.pattern:
            return (re.fullmatch if self.whole else re.search)(self.pattern, topic) is not None
        if self.partitions:
            return any(partition.topic == topic for partition in self.partitions)
        return not self.names or topic in self.names

    def has_partition(self, partition: TopicPartition) -> bool:
        """Return True if this partition is selected. A selected one without a broker is that of any broker."""
        plain = partition._replace(broker=-1)
        return self.has(partition.topic) and (not self.partitions or not {partition, plain}.isdisjoint(self.partitions))

    def __str__(self) -> str:
        """Name them as Spark's own source does."""
        if self.pattern:
            return f"SubscribePattern[{self.pattern}]"
        if self.partitions:
            return f"Assign[{', '.join(map(str, self.partitions[:10]))}]"
        return f"Subscribe[{', '.join(self.names[:10])}]"


class OptionNames(NamedTuple):
    """Names of options for errors: those of the data source, or of what stands for them in a pipeline file."""

    skip_loss: str = "failOnDataLoss=false"
    path: str = "option path"
    max_message_bytes: str = "maxMessageBytes"


OF_SPARK = OptionNames()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Everything a reader is told. Small, and pickled into every task. Sizes are in the unit of positions."""

    where: ClusterOptions | tuple[Directory, ...]  # of 0.7, read without a broker
    topics: Topics
    start: Positions
    end: Positions = LATEST  # also of a streaming query, which has none
    names: OptionNames = OF_SPARK

    # Of a micro-batch: approximate maximum; the minimum to wait for, and how long.
    max_size: int | None = option(
        values.parse_bytes, None, "maxBytesPerTrigger", later=(values.parse_records, None, "maxOffsetsPerTrigger")
    )
    min_size: int = option(
        values.parse_bytes, 0, "minBytesPerTrigger", later=(values.parse_records, 0, "minOffsetsPerTrigger")
    )
    max_delay_s: float = option(values.parse_seconds, 900.0, "maxTriggerDelay")

    # Of tasks: approximate maximum of one, as far as `max_tasks` allows (None: that of the unit); their number (None:
    # four for each core of the machine that plans); how many read from one broker (None: any number).
    task_size: int | None = option(
        values.parse_bytes, None, "maxBytesPerPartition", later=(values.parse_records, None, "maxRecordsPerPartition")
    )
    min_tasks: int = option(values.parse_count, 1, "minPartitions")
    max_tasks: int | None = option(values.parse_count, None, "maxPartitions")
    fetchers: int | None = option(values.parse_count, None, "maxFetchersPerBroker")

    # Fail when something to be read is not there any more; else go on behind it.
    fail_on_data_loss: bool = option(values.parse_boolean, True, "failOnDataLoss")

    # The brokers' max.message.size: the largest payload in a log. From 0.8 on topics have limits of their own, and this
    # only bounds memory.
    max_message_bytes: int = option(
        values.parse_size, 1_000_000, "maxMessageBytes", later=(values.parse_size, 64 * MiB, "maxMessageBytes")
    )

    # Bytes a fetch asks for, and how many fetches are read ahead of what Spark has taken.
    fetch_bytes: int = option(
        values.parse_size, 4 * MiB, "fetchBytes", "kafka.max.partition.fetch.bytes", "kafka.fetch.size"
    )
    fetch_ahead: int = option(values.parse_count, 4, "fetchAhead")

    # How long the driver tries to get answers of brokers, and how long a task waits for bytes.
    deadline_s: float = option(values.parse_milliseconds, 60.0, "fetchOffset.deadlineMs")
    poll_deadline_s: float = option(values.parse_milliseconds, 120.0, "kafkaConsumer.pollTimeoutMs")

    # The decoder's mode (`core.interfaces.DecoderOptions`).
    corrupt: str = option(choice({"fail": "fail", "skip-message": "skip", "dead": "raw"}), "fail", "corrupt")
    headers: bool = option(values.parse_boolean, False, "includeHeaders")

    # Leave out what is not committed (0.11 and later).
    read_committed: bool = option(
        choice({"read_uncommitted": False, "read_committed": True}), False, "kafka.isolation.level"
    )

    # Begin a partition without a record of `start`'s time at its end; otherwise that is an error.
    start_at_end: bool = option(choice({"error": False, "latest": True}), False, "startingOffsetsByTimestampStrategy")

    @property
    def max_entry(self) -> int:
        """Bytes of the largest entry in a log."""
        return self.max_message_bytes + ENTRY_HEAD

    def decoder_options(self, *, defer: bool = False) -> DecoderOptions:
        """Return the decoder's options. Messages larger than the limit are not read: where ranges may be cut has been
        found with it."""
        return DecoderOptions(
            max_message_bytes=self.max_entry,
            corrupt=self.corrupt,
            defer_decompression=defer,
            read_committed=self.read_committed,
        )

    def size_tasks(self, total: int, unit: PositionUnit) -> tuple[int, int]:
        """Return the maximum number of tasks to read `total`, and the size above which a range is split. A task costs
        30 to 50 ms however little it does."""
        most = self.max_tasks or max(self.min_tasks, 4 * (os.cpu_count() or 1))
        tasks = min(max(-(-total // (self.task_size or unit.task_size)), self.min_tasks), most)
        return tasks, max(-(-total // tasks), unit.min_split)

    def check_loss(self, gaps: Sequence[PositionGap]) -> None:
        """Raise DataLoss for gaps if `fail_on_data_loss`; else log them."""
        if gaps and self.fail_on_data_loss:
            raise DataLoss(gaps, self.names.skip_loss)
        for gap in gaps:
            log.warning("data was lost, continuing after it: %s", gap)


def log_skipped(reports: Sequence[CorruptMessage]) -> None:
    """Log how many corrupt messages were left out."""
    if reports:
        log.warning("%d corrupt messages skipped; first: %s", len(reports), reports[0])


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
    required = "the topics to read" if isinstance(where, ClusterOptions) else ""
    option_map.one_of("subscribe", "subscribePattern", "assign", required=required)
    starts = {None: (EARLIEST, LATEST), True: (LATEST, EARLIEST), False: (EARLIEST,)}[streaming]
    parsed = option_map.fill(
        SourceOptions,
        where=where,
        topics=option_map.fill(Topics),
        start=_positions(option_map, "starting", starts),
        end=LATEST if streaming else _positions(option_map, "ending", (LATEST,)),
    )
    option_map.finish()
    _check_order(parsed.min_size, "minBytesPerTrigger" if kafka07 else "minOffsetsPerTrigger", parsed.max_size)
    _check_order(parsed.min_tasks, "minPartitions", parsed.max_tasks)
    return parsed


_POSITIONS = ("Offsets", "Timestamp", "OffsetsByTimestamp")


def _is_kafka07(options: Mapping[str, str]) -> bool:
    """Return True unless the options name a cluster of 0.8 or later."""
    return BOOTSTRAP not in {name.lower() for name in options}


def _check_order(least: int, name: str, most: int | None) -> None:
    if most is not None and least > most:
        raise ConfigError(f"option {name} ({least}) is more than {name.replace('min', 'max')} ({most})")


def _parse_directories(text: str, option: str) -> tuple[Directory, ...]:
    """`[broker@]path,...`, or a JSON array of the same for paths with commas."""
    items = values.parse_json(text, option) if text.lstrip().startswith("[") else text.split(",")
    directories = tuple(parse_directory(item) if isinstance(item, str) else None for item in items)
    if not directories or None in directories:
        right = "[broker@]path,..., or a JSON array of them"
        raise invalid(option, text, f"{right}, as in 0@/var/kafka-0,1@/var/kafka-1")
    return cast(tuple[Directory, ...], directories)


def parse_directory(text: str) -> Directory | None:
    """Return the directory of `[broker@]path`; None: it is not written so."""
    match = _DIRECTORY.fullmatch(text)
    return match and Directory(re.sub("^file:(//)?(?=/)", "", match[2]), int(match[1] or -1))


_DIRECTORY = re.compile(r"\s*(?:([0-9]{1,9})@)?+(\S.*?)\s*", re.DOTALL)


def _positions(option_map: OptionMap, which: str, anchors: tuple[PositionSpec, ...]) -> Positions:
    """Where to start or end; the first anchor is the default. As in Spark, a time for all wins over times for each,
    and those over offsets."""
    offsets: Positions = option_map.take(
        partial(values.parse_positions, anchors=anchors), anchors[0], f"{which}Offsets"
    )
    by_times: Positions = option_map.take(values.parse_times, offsets, f"{which}OffsetsByTimestamp")
    return option_map.take(values.parse_time, by_times, f"{which}Timestamp")


# ---- the sink ------------------------------------------------------------------------------------------------


def _parse_delivery(text: str, option: str) -> float:
    return (values.parse_milliseconds if option.startswith("kafka.") else values.parse_seconds)(text, option)


_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_COMPRESSION = ("none", "compression", "kafka.compression.type")
_ACKS: Mapping[str, Literal["all", 1, 0]] = {"all": "all", "-1": "all", "1": 1, "0": 0}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Everything a writer is told. Small, and pickled into every task."""

    cluster: ClusterOptions
    topic: str = option(values.parse_text, "", "topic")  # of all rows; "": column topic says it row by row
    compression: str = option(
        choice({name: name for name in _COMPRESSIONS[:3]}), *_COMPRESSION,
        later=(choice({name: name for name in _COMPRESSIONS}), *_COMPRESSION),
    )  # fmt: skip

    # How long a row may be on its way before its task fails, and how long connecting may take.
    deliver_within_s: float = option(_parse_delivery, 120.0, "deliverWithin", "kafka.delivery.timeout.ms")

    # The brokers' max.message.size; bytes that a task has on their way at most.
    max_message_bytes: int = option(values.parse_size, 1_000_000, "maxMessageBytes", "kafka.max.request.size")
    buffer_bytes: int = option(values.parse_size, 64 * MiB, "bufferBytes", "kafka.buffer.memory")

    # A file on the driver, which gets a line for each commit; "": none.
    report_path: str = option(values.parse_text, "", "reportPath")
    acks: Literal["all", 1, 0] = option(choice(_ACKS), "all", "kafka.acks")


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """Return the options of a writer. Raises as `parse_source`."""
    kafka07 = _is_kafka07(options)
    option_map = OptionMap(options, kafka07, SINK_REFUSED_KAFKA07 if kafka07 else SINK_REFUSED_KAFKA, SINK_IGNORED)
    option_map.one_of(*CLUSTERS, required="the cluster to write to")
    parsed = option_map.fill(SinkOptions, cluster=parse_cluster(option_map) or ClusterOptions(""))
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
