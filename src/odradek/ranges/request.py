"""A request to read: where the logs are, which topics, from where to where, and how. The code that makes a request
validates it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from odradek.client.cluster import Cluster
from odradek.client.connect import connect
from odradek.client.options import Tuning
from odradek.core.interfaces import DecoderOptions, PositionUnit
from odradek.errors import SKIP_HINT, ConfigError, CorruptMessage
from odradek.io.drivers import brokers_url
from odradek.io.security import Security
from odradek.ranges.offsets import Positions
from odradek.ranges.planning import DataLoss, PositionGap
from odradek.types import LATEST, MiB, TopicPartition

__all__ = [
    "MESSAGE_BYTES",
    "ClusterConnection",
    "Directory",
    "ReadRequest",
    "RequestNames",
    "Topics",
    "log_skipped",
    "numbered_brokers_url",
    "parse_directory",
]

log = logging.getLogger(__name__)

ENTRY_HEAD = 10
"""Bytes of an entry in front of its payload (specification 2.1)."""

MESSAGE_BYTES = 64 * MiB
"""Limit of a message from 0.8 on, where topics have limits of their own, and this only bounds memory (bytes)."""


# ---- where the logs are --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterConnection:
    """A cluster to be reached over the network: arguments of `odradek.connect`. The URL may hold a password."""

    url: str
    security: Security | None = field(default=None, hash=False)  # None means the environment of each process
    client_id: str = "odradek"
    rack: str | None = None
    request_timeout_s: float | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url.partition('://')[0]}://...>"

    def connect(self, tuning: Tuning | None = None) -> Cluster:
        """Return the cluster, of which nothing is opened yet."""
        return connect(self.url, security=self.security, rack=self.rack, client_id=self.client_id, tuning=tuning)

    def tuning(self, deadline_s: float) -> Tuning:
        """Return connection options under which no single wait exceeds the deadline of all of them together (s)."""
        usual = Tuning()
        return Tuning(
            connect_timeout=min(usual.connect_timeout, deadline_s),
            request_timeout=min(self.request_timeout_s or usual.request_timeout, deadline_s),
        )


def numbered_brokers_url(text: str) -> str:
    """Return the URL for brokers with ids: `id:host:port,...`, as 0.7 writes broker.list, or `id@host:port`, as URLs
    do. Raises ConfigError."""
    items = [re.sub(r"^([0-9]+):(?=[^:]+:[0-9]+$)", r"\1@", item.strip()) for item in text.split(",")]
    if any("@" not in item for item in items):
        raise ConfigError("each broker needs its id, as in 1@host:9092: rows name brokers by their ids")
    return brokers_url(",".join(items))


class Directory(NamedTuple):
    """A partition's log directory, a broker's log.dir with such directories in it, or a pattern of either."""

    path: str
    broker: int = -1  # id of the one it belongs to; -1: not said, and rows have none


def parse_directory(text: str) -> Directory | None:
    """Return the directory of `[broker@]path`; None: it is not written so."""
    match = _DIRECTORY.fullmatch(text)
    return match and Directory(re.sub("^file:(//)?(?=/)", "", match[2]), int(match[1] or -1))


_DIRECTORY = re.compile(r"\s*(?:([0-9]{1,9})@)?+(\S.*?)\s*", re.DOTALL)


# ---- what is read --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics or partitions to read. One of three is set, or none: all logs (log directories only)."""

    names: tuple[str, ...] = ()
    pattern: str = ""  # matches somewhere in the name, as in Spark
    partitions: tuple[TopicPartition, ...] = ()
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


class RequestNames(NamedTuple):
    """Names of the parts of a request in errors, as those who have made it write them."""

    start: str = "start"
    end: str = "end"
    partitions: str = "topics.partitions"
    pattern: str = "topics.pattern"
    path: str = "where"
    max_message_bytes: str = "max_message_bytes"
    skip_loss: str = "fail_on_data_loss=False"
    start_at_end: str = "start_at_end=True"
    corrupt: str = SKIP_HINT


NAMES = RequestNames()


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Everything a reader of ranges needs to know. Small, and pickled into every task. Sizes are in the unit of
    positions.

    Args:
        where: A cluster, or directories.
        topics: Topics or partitions.
        start: The positions of the first query.
        end: The positions at which it ends; pipelines, which plan range by range, do not use it.
        names: See `RequestNames`.
        task_size: Approximate maximum of one task, as far as `max_tasks` allows; None: that of the unit.
        min_tasks: Minimum number of tasks, as far as ranges may be split.
        max_tasks: Maximum number; None: four for each core of the machine that plans, or any if there is a `task_size`.
        fetchers: Maximum number of tasks that read from one broker; None: any number.
        fail_on_data_loss: Fail when something to be read is not there any more; False: go on behind it.
        max_message_bytes: The brokers' max.message.size: the largest payload in a log. See `MESSAGE_BYTES` (bytes).
        fetch_bytes: Size of a fetch (bytes).
        fetch_ahead: Maximum number of fetches that are read ahead of what has been taken.
        deadline_s: How long planning tries to get answers of brokers (s).
        poll_deadline_s: How long a task waits for bytes (s).
        corrupt: The decoder's mode: see `DecoderOptions`.
        read_committed: Leave out what is not committed (0.11 and later).
        start_at_end: A partition that has no record at or after the time of `start` begins at its end; if False, that
            is an error.
    """

    where: ClusterConnection | tuple[Directory, ...]
    topics: Topics
    start: Positions
    end: Positions = LATEST
    names: RequestNames = NAMES
    task_size: int | None = None
    min_tasks: int = 1
    max_tasks: int | None = None
    fetchers: int | None = None
    fail_on_data_loss: bool = True
    max_message_bytes: int = 1_000_000
    fetch_bytes: int = 4 * MiB
    fetch_ahead: int = 4
    deadline_s: float = 60.0
    poll_deadline_s: float = 120.0
    corrupt: str = "fail"
    read_committed: bool = False
    start_at_end: bool = False

    @property
    def max_entry(self) -> int:
        """Bytes of the largest entry in a log."""
        return self.max_message_bytes + ENTRY_HEAD

    def decoder_options(self, *, defer: bool = False) -> DecoderOptions:
        """Return the decoder's options. Messages larger than the limit are not read: where ranges may be cut has been
        decided with it."""
        return DecoderOptions(
            max_message_bytes=self.max_entry,
            corrupt=self.corrupt,
            defer_decompression=defer,
            read_committed=self.read_committed,
        )

    def size_tasks(self, total: int, unit: PositionUnit) -> tuple[int, int]:
        """Return the maximum number of tasks to read `total`, and the size above which a range is split. A task costs
        30 to 50 ms however little it does."""
        tasks = max(-(-total // (self.task_size or unit.task_size)), self.min_tasks)
        if self.max_tasks is not None or self.task_size is None:
            tasks = min(tasks, self.max_tasks or max(self.min_tasks, 4 * (os.cpu_count() or 1)))
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
