"""The options of the data source, from the strings that Spark hands over to checked values.

Spark lower-cases the names of options, so they are compared without regard to case. An option that is not known, not
for this kind of query or not for this cluster is an error: one that is silently ignored loses data sooner or later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from odradek.client.connect import connect
from odradek.errors import ConfigError, OdradekError
from odradek.io.drivers import brokers_url, zookeeper_url
from odradek.spark.admission import ReadLimits
from odradek.spark.client_options import BOOTSTRAP, ClusterOptions, kafka_cluster
from odradek.spark.offsets import Positions, parse_assign, parse_positions, parse_time, parse_times
from odradek.spark.option_map import OptionMap
from odradek.spark.option_names import BATCH, CLUSTERS, KAFKA, KAFKA07, STREAM, OptionNames
from odradek.spark.planning import BYTES, RECORDS, PositionUnit
from odradek.spark.schema import Column, columns
from odradek.spark.values import (
    at_most,
    choice,
    parse_boolean,
    parse_bytes,
    parse_count,
    parse_milliseconds,
    parse_seconds,
)
from odradek.types import EARLIEST, LATEST, GiB, MiB, PositionSpec, TopicPartition

__all__ = [
    "ClusterOptions",
    "Directories",
    "Directory",
    "ReadLimits",
    "SourceOptions",
    "TaskLimits",
    "Topics",
    "parse_cluster",
    "parse_kind",
    "parse_source",
]

ENTRY_HEAD = 10
"""Bytes of an entry in front of its payload (specification 2.1)."""

CORRUPT = {"fail": "fail", "skip-message": "skip", "dead": "raw"}
"""Value of the option -> name of the decoder's mode."""


@dataclass(frozen=True, slots=True)
class Directory:
    """One place on disk.

    Args:
        path: A partition's log directory, a broker's log.dir with such directories in it, or a pattern of either
            (`*`, `?`, `[...]`).
        broker: The id of the broker it belongs to; -1: not said, and rows have none.
    """

    path: str
    broker: int = -1


@dataclass(frozen=True, slots=True)
class Directories:
    """Log directories of 0.7 that are read without a broker."""

    directories: tuple[Directory, ...]


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics or partitions to read. One of three is set, or none: all logs (log directories only).

    Args:
        names: Topics, sorted.
        pattern: A regular expression; a topic is read if it matches as a whole.
        partitions: Partitions, sorted.
    """

    names: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    def has(self, topic: str) -> bool:
        """Return True if this topic, or a partition of it, is selected."""
        if self.pattern:
            return re.fullmatch(self.pattern, topic) is not None
        if self.partitions:
            return any(partition.topic == topic for partition in self.partitions)
        return not self.names or topic in self.names


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Limits for the division of work into tasks.

    Args:
        max_size: Approximate maximum per task, in the unit of positions, as far as `max_tasks` allows.
        min_tasks: Minimum number of tasks, if there is enough to divide.
        max_tasks: Maximum number of tasks; None: four per core of the machine that plans (the driver's).
        fetchers: Maximum number of tasks that read from one broker; None: any number.
    """

    max_size: int = BYTES.task_size
    min_tasks: int = 1
    max_tasks: int | None = None
    fetchers: int | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Everything a reader is told. Small, and pickled into every task.

    Args:
        where: The cluster or directories.
        topics: What to read.
        start: Where to begin.
        end: Where to end (a batch query); LATEST in a streaming one.
        limits: How much a micro-batch reads.
        packing: How work is divided.
        fail_on_data_loss: Fail when something to be read is not there any more; else go on behind it.
        max_message_bytes: The brokers' max.message.size: bytes of the largest payload in a log.
        fetch_bytes: Bytes a fetch asks for.
        fetch_ahead: Fetches read ahead of what Spark has taken.
        deadline_s: How long the driver tries to get answers of brokers (s).
        poll_deadline_s: How long a task waits for bytes (s).
        corrupt: `fail`, `skip` or `raw`, as in `core.interfaces.DecoderOptions`.
        headers: Is there a headers column?
        read_committed: Read committed records of transactions only (0.11 and later).
        start_at_end: A partition without a record of `start`'s time begins at its end; otherwise that is an error.
    """

    where: ClusterOptions | Directories
    topics: Topics
    start: Positions
    end: Positions = LATEST
    limits: ReadLimits = field(default_factory=ReadLimits)
    packing: TaskLimits = TaskLimits()
    fail_on_data_loss: bool = True
    max_message_bytes: int = 1_000_000
    fetch_bytes: int = 1 * MiB
    fetch_ahead: int = 4
    deadline_s: float = 60.0
    poll_deadline_s: float = 120.0
    corrupt: str = "fail"
    headers: bool = False
    read_committed: bool = False
    start_at_end: bool = False

    @property
    def unit(self) -> PositionUnit:
        """Return what positions count."""
        is_kafka07 = isinstance(self.where, Directories) or self.where.url.startswith("kafka07")
        return BYTES if is_kafka07 else RECORDS

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a query that names none."""
        return columns(headers=self.headers, positions=self.unit.exact)

    @property
    def max_entry(self) -> int:
        """Bytes of the largest entry in a log."""
        return self.max_message_bytes + ENTRY_HEAD


# ---- the options ---------------------------------------------------------------------------------------------


def parse_source(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a reader.

    Args:
        options: As Spark hands them over.
        streaming: For a streaming query: what it starts from by default and which options it has differ.

    Raises:
        ConfigError: An option that cannot work; says which, what it is and what would be right.
        Unsupported: A cluster that this version does not speak to.
    """
    names = _names_for(options)
    option_map = OptionMap(options, names.known, names.refused)
    _check_kind(option_map, names, streaming)
    where = _where(option_map)
    starts = (LATEST, EARLIEST) if streaming else (EARLIEST,)
    headers = option_map.take("includeHeaders", parse_boolean, False)
    return SourceOptions(
        where=where,
        topics=_topics(option_map, optional=isinstance(where, Directories)),
        start=_positions(option_map, "starting", starts),
        end=LATEST if streaming else _positions(option_map, "ending", (LATEST,)),
        limits=_limits(option_map, names),
        packing=_packing(option_map, names),
        fail_on_data_loss=option_map.take("failOnDataLoss", parse_boolean, True),
        max_message_bytes=option_map.take("maxMessageBytes", at_most(1 * GiB, parse_bytes), names.max_message_bytes),
        fetch_bytes=_fetch_bytes(option_map),
        fetch_ahead=option_map.take("fetchAhead", parse_count, 4),
        deadline_s=option_map.take("fetchOffset.deadlineMs", parse_milliseconds, 60.0),
        poll_deadline_s=option_map.take("kafkaConsumer.pollTimeoutMs", parse_milliseconds, 120.0),
        corrupt=_corrupt(option_map, headers),
        headers=headers,
        read_committed=option_map.take("kafka.isolation.level", choice(*_ISOLATION), _ISOLATION[0]) == _ISOLATION[1],
        start_at_end=option_map.take("startingOffsetsByTimestampStrategy", choice("error", "latest"), "error")
        == "latest",
    )


_ISOLATION = ("read_uncommitted", "read_committed")


def _names_for(options: Mapping[str, str]) -> OptionNames:
    """Return the options for the cluster that these options name."""
    return KAFKA if BOOTSTRAP in {name.lower() for name in options} else KAFKA07


def _fetch_bytes(option_map: OptionMap) -> int:
    default = option_map.take("kafka.max.partition.fetch.bytes", at_most(1 * GiB, parse_bytes), 1 * MiB)
    return option_map.take("fetchBytes", at_most(1 * GiB, parse_bytes), default)


def parse_kind(options: Mapping[str, str]) -> SourceOptions:
    """Parse options like `parse_source`, for a query of unknown kind, batch or streaming.

    The kind follows from options that only one kind has.
    """
    option_map = {name.lower() for name in options}
    if option_map & {name.lower() for name in STREAM}:
        return parse_source(options, streaming=True)
    try:
        return parse_source(options, streaming=False)
    except OdradekError:
        if option_map & {name.lower() for name in BATCH}:
            raise
    return parse_source(options, streaming=True)


def _check_kind(option_map: OptionMap, names: OptionNames, streaming: bool) -> None:
    """Refuse options of the other kind of query. As in Spark, limits of micro-batches are ignored in a batch query of
    0.8 and later."""
    wrong: tuple[str, ...] = BATCH
    why = "a streaming query has no end"
    if not streaming:
        wrong, why = names.stream if names is KAFKA07 else (), "a batch query reads all there is"
    for name in wrong:
        if option_map.has(name):
            raise ConfigError(f"option {name}: {why}")


def _where(option_map: OptionMap) -> ClusterOptions | Directories:
    locations = (BOOTSTRAP, *CLUSTERS, "path")
    if not option_map.one_of(locations):
        raise ConfigError(f"one of the options {', '.join(locations)} is required: the location of the logs")
    return parse_cluster(option_map) or option_map.take("path", _directories, Directories(()))


def parse_cluster(option_map: OptionMap) -> ClusterOptions | None:
    """The cluster that is named, if one is.

    Raises:
        ConfigError: An address that cannot be one, or two of them.
        Unsupported: A cluster that this version does not speak to.
    """
    if option_map.text(BOOTSTRAP) is not None:
        return kafka_cluster(option_map)
    option_map.take("kafka.protocol", _protocol, "auto")
    name = option_map.one_of(CLUSTERS)
    parse = _zookeeper if name == CLUSTERS[0] else _brokers
    return option_map.take(name, parse, None) if name else None


def _protocol(text: str, option: str) -> str:
    if text.lower() == "modern":
        raise ConfigError(f"option {option}={text}: a cluster of 0.8 or later is named by {BOOTSTRAP}")
    return choice("auto", "0.7")(text, option)


def _zookeeper(text: str, option: str) -> ClusterOptions:
    return _cluster(zookeeper_url(text.strip()), option)


def _brokers(text: str, option: str) -> ClusterOptions:
    """`id:host:port`, as 0.7 writes broker.list, or `id@host:port`, as URLs do."""
    items = [re.sub(r"^([0-9]+):(?=[^:]+:[0-9]+$)", r"\1@", item.strip()) for item in text.split(",")]
    if any("@" not in item for item in items):
        raise ConfigError(f"option {option}={text[:80]!r}: must be id:host:port,...: rows name brokers by their ids")
    return _cluster(brokers_url(",".join(items)), option)


def _cluster(url: str, option: str) -> ClusterOptions:
    try:
        connect(url)  # which opens nothing
    except ConfigError as error:
        raise ConfigError(f"option {option}: {error.message()}") from None
    return ClusterOptions(url)


def _directories(text: str, option: str) -> Directories:
    """`[broker@]path,...`, or a JSON array of the same for paths with commas. Raises ConfigError."""
    items: Any = text.split(",")
    if text.lstrip().startswith("["):
        try:
            items = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"option {option}={text[:80]!r} is not JSON: {error}") from None
    directories = [_directory(item) for item in items]
    if not directories or None in directories:
        right = "[broker@]path,..., or a JSON array of them"
        raise ConfigError(f"option {option}={text[:80]!r}: must be {right}, as in 0@/var/kafka-0,1@/var/kafka-1")
    return Directories(tuple(directory for directory in directories if directory is not None))


def _directory(item: object) -> Directory | None:
    match = re.fullmatch(r"\s*(?:([0-9]{1,9})@)?+(\S.*?)\s*", item, re.DOTALL) if isinstance(item, str) else None
    return match and Directory(match[2].removeprefix("file://"), -1 if match[1] is None else int(match[1]))


def _topics(option_map: OptionMap, *, optional: bool) -> Topics:
    names = ("subscribe", "subscribePattern", "assign")
    name = option_map.one_of(names)
    if not name and not optional:
        raise ConfigError(f"one of the options {', '.join(names)} is required: the topics to read")
    return Topics(
        option_map.take("subscribe", _names, ()),
        option_map.take("subscribePattern", _pattern, ""),
        option_map.take("assign", parse_assign, ()),
    )


def _names(text: str, option: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ConfigError(f"option {option}={text[:80]!r}: must be topics separated by commas")
    return tuple(sorted(set(names)))


def _pattern(text: str, option: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"option {option}={text[:80]!r} is not a regular expression of Python: {error}") from None
    return text


def _positions(option_map: OptionMap, which: str, anchors: tuple[PositionSpec, ...]) -> Positions:
    """Where to start or end; the first anchor is the default. As in Spark, a time for all wins over times for each,
    and those over offsets."""
    by_time: Positions | None = option_map.take(f"{which}Timestamp", parse_time, None)
    by_times: Positions | None = option_map.take(f"{which}OffsetsByTimestamp", parse_times, None)

    def parse(text: str, option: str) -> Positions:
        return parse_positions(text, option, anchors=anchors)

    offsets: Positions | None = option_map.take(f"{which}Offsets", parse, None)
    return next((directories for directories in (by_time, by_times, offsets) if directories is not None), anchors[0])


def _limits(option_map: OptionMap, names: OptionNames) -> ReadLimits:
    parse = names.parse_size
    limits = ReadLimits(
        option_map.take(names.max_size, parse, None),
        option_map.take(names.min_size, parse, 0),
        option_map.take("maxTriggerDelay", parse_seconds, 900.0),
    )
    if limits.max_size is not None and limits.min_size > limits.max_size:
        numbers = f"{limits.min_size} and {limits.max_size}"
        raise ConfigError(f"options {names.min_size} and {names.max_size}: {numbers} {names.unit.name} leave no room")
    return limits


def _packing(option_map: OptionMap, names: OptionNames) -> TaskLimits:
    packing = TaskLimits(
        option_map.take(names.task_size, names.parse_size, names.unit.task_size),
        option_map.take("minPartitions", parse_count, 1),
        option_map.take("maxPartitions", parse_count, None),
        option_map.take("maxFetchersPerBroker", parse_count, None),
    )
    if packing.max_tasks is not None and packing.min_tasks > packing.max_tasks:
        raise ConfigError(f"minPartitions ({packing.min_tasks}) is more than maxPartitions ({packing.max_tasks})")
    return packing


def _corrupt(option_map: OptionMap, headers: bool) -> str:
    asked = option_map.take("corrupt", choice(*CORRUPT), "fail")
    if asked == "dead" and not headers:
        raise ConfigError("option corrupt=dead needs includeHeaders=true: a header marks dead rows")
    return CORRUPT[asked]
