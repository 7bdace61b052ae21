"""All logs of a broker: start-up, look-up, creation, flusher and retention (specification.md 4, App. D)."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path

from odradek.testing.kafka07.config import BrokerConfig, parse_integer
from odradek.testing.kafka07.errors import RequestRefused, StartRefused
from odradek.testing.kafka07.log import Clock, LogLimits, PartitionLog
from odradek.wire.kafka07.topic_names import is_legal_topic

__all__ = ["CLEAN_SHUTDOWN", "IllegalTopic", "LogStore", "WrongPartition"]

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

log = logging.getLogger(__name__)


class IllegalTopic(RequestRefused):
    """FETCH answers -1, everything else closes."""


class WrongPartition(RequestRefused):
    """FETCH answers 3, everything else closes."""


class LogStore:
    """The logs below `directory`, loaded and recovered.

    Not thread-safe: one thread owns it.

    Args:
        on_topic: Called with the name of every topic that gets its first log.
        clock: Seconds since the epoch.

    Raises StartRefused where the real broker does not start, OSError.
    """

    def __init__(self, directory: Path, config: BrokerConfig, on_topic: Callable[[str], None], clock: Clock) -> None:
        self.directory, self.config, self.clock = directory, config, clock
        self._on_topic = on_topic
        self._legal = lru_cache(1024)(partial(is_legal_topic, max_length=config.max_topic_name_length))
        self._topics: dict[str, dict[int, PartitionLog]] = {}
        if config.log_retention_sizes:  # a failed cast in the real one (specification.md 8)
            raise StartRefused("topic.log.retention.size crashes the start-up of a 0.7.2 broker")
        directory.mkdir(parents=True, exist_ok=True)
        marker = directory / CLEAN_SHUTDOWN
        clean = marker.exists()
        marker.unlink(missing_ok=True)
        try:
            self._load(needs_recovery=not clean)
        except BaseException:
            self.abandon()
            raise

    def _load(self, needs_recovery: bool) -> None:
        for path in sorted(self.directory.iterdir()):
            if not path.is_dir():
                log.warning("skipping %s: not a directory", path)
                continue
            topic, partition = _names_of(path)
            self._topics.setdefault(topic, {})[partition] = self._open(path, topic, needs_recovery)

    def _open(self, path: Path, topic: str, needs_recovery: bool = False) -> PartitionLog:
        config = self.config
        limits = LogLimits(config.segment_size(topic), config.flush_interval, config.roll_seconds(topic))
        return PartitionLog(path, limits, self.clock, needs_recovery)

    @property
    def topics(self) -> list[str]:
        return list(self._topics)

    def __iter__(self) -> Iterator[tuple[str, PartitionLog]]:
        for topic, partitions in self._topics.items():
            for one in partitions.values():
                yield topic, one

    # ---- requests -----------------------------------------------------------------------------------------

    def find(self, topic: str, partition: int) -> PartitionLog | None:
        """The log, or None while nothing was produced to it. Raises IllegalTopic, WrongPartition."""
        config = self.config
        if not self._legal(topic):
            raise IllegalTopic(f"illegal topic name {topic!r}")
        if not 0 <= partition < config.partitions(topic):
            raise WrongPartition(f"{topic} has {config.partitions(topic)} partitions, not {partition}")
        return self._topics.get(topic, {}).get(partition)

    def find_or_create(self, topic: str, partition: int) -> PartitionLog:
        """Return the log for a produce, creating it if needed; partition -1 is any.

        Raises also OSError: the file system refuses the name.
        """
        if partition == -1:
            partition = random.randrange(self.config.partitions(topic))
        log = self.find(topic, partition)
        if log is None:
            first = topic not in self._topics
            partitions = self._topics.setdefault(topic, {})  # stays when the next step fails, as in the real one
            log = partitions[partition] = self._open(self.directory / f"{topic}-{partition}", topic)
            if first:
                self._on_topic(topic)
        return log

    # ---- time ---------------------------------------------------------------------------------------------

    def flush_due(self, now: float) -> None:
        """Flush the logs that are due, as the flush scheduler does."""
        for topic, one in self:
            if now - one.last_flush >= self.config.flush_seconds(topic):
                one.flush()

    def flush(self) -> None:
        for _, one in self:
            one.flush()

    def clean_up(self, now: float) -> None:
        """Delete old segments, as the retention task does: first by age, then by size."""
        for topic, one in self:
            one.expire(now, self.config.retention_seconds(topic))
            one.shrink(now, self.config.log_retention_size)

    # ---- the end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """An orderly end: the next start trusts the files."""
        self.flush()
        self.abandon()
        mark_clean(self.directory)

    def abandon(self) -> None:
        """Close the files as if the process were gone."""
        for _, one in self:
            one.close()
        self._topics.clear()


def mark_clean(directory: Path) -> None:
    """Tell the next start to trust the files. A real broker whose start fails does so as well (5.2)."""
    (directory / CLEAN_SHUTDOWN).touch()


def _names_of(path: Path) -> tuple[str, int]:
    topic, dash, number = path.name.rpartition("-")
    partition = parse_integer(number, 2**31 - 1)
    if not dash or partition is None:
        raise StartRefused(f"{path}: a directory that is not named topic-partition")
    return topic, partition
