"""The configuration of a 0.7.2 broker: every key of specification.md 8, parsed as the real one parses it.

Values are strings, as in `server.properties`. A key nobody knows is an error here (the real broker ignores it):
in a test it is a typing mistake. Keys that only tune the JVM or its sockets' kernel buffers are accepted:

    num.threads, monitoring.period.secs     checked, without effect
    socket.send.buffer, .receive.buffer     set on the sockets only when given; else the kernel tunes them
    zk.synctime.ms                          checked, without effect (the broker never uses it)
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from odradek.errors import ConfigError

__all__ = ["BrokerConfig"]

log = logging.getLogger(__name__)

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_INTEGER = re.compile(r"[+-]?[0-9]+")  # Java's parser: no blanks, no underscores

MINUTE, HOUR = 60.0, 3600.0


def parse_integer(text: str, largest: int) -> int | None:
    """`text` as Java's Integer/Long.parse would read it; None where they throw."""
    if not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -largest - 1 <= value <= largest else None


def _integer(smallest: int, largest: int = _INT_MAX) -> Callable[[str, str], int]:
    def parse(key: str, text: str) -> int:
        value = parse_integer(text, largest)
        if value is None or value < smallest:
            raise ConfigError(f"{key}={text}: not an integer from {smallest} to {largest}")
        return value

    return parse


def _boolean(key: str, text: str) -> bool:
    if text not in ("true", "false"):  # exactly, as the real one insists (specification.md 8)
        raise ConfigError(f"{key}={text}: neither true nor false")
    return text == "true"


def _text(key: str, text: str) -> str:
    return text


def _per_topic(key: str, text: str) -> dict[str, int]:
    """`t:8,u:16`. Malformed items and values below 1 are skipped with a log line (specification.md 8)."""
    partitions: dict[str, int] = {}
    for item in filter(None, text.split(",")):
        topic, _, number = item.rpartition(":")
        value = parse_integer(number.strip(), _INT_MAX)
        if topic and value is not None and value > 0:
            partitions[topic.strip()] = value
        else:
            log.warning("%s: ignoring %r", key, item)
    return partitions


def _key(name: str, parse: Callable[[str, str], Any], default: Any) -> Any:
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata={"key": name, "parse": parse})
    return dataclasses.field(default=default, metadata={"key": name, "parse": parse})


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerConfig:
    """One field a key; sizes in bytes, times in the unit of the name. Defaults are the code defaults of 0.7.2,
    not those of its sample file."""

    broker_id: int | None = _key("brokerid", _integer(0), None)
    port: int | None = _key("port", _integer(0, 65535), None)
    hostname: str | None = _key("hostname", _text, None)
    log_dir: str | None = _key("log.dir", _text, None)

    num_partitions: int = _key("num.partitions", _integer(1), 1)
    partition_counts: Mapping[str, int] = _key("topic.partition.count.map", _per_topic, {})
    max_topic_name_length: int = _key("max.topic.name.length", _integer(1), 255)
    max_message_size: int = _key("max.message.size", _integer(0), 1_000_000)
    max_request_size: int = _key("max.socket.request.bytes", _integer(1), 104_857_600)

    log_file_size: int = _key("log.file.size", _integer(1), 1 << 30)
    log_file_sizes: Mapping[str, int] = _key("topic.log.file.size", _per_topic, {})
    log_roll_hours: int = _key("log.roll.hours", _integer(1), 168)
    log_roll_hours_map: Mapping[str, int] = _key("topic.log.roll.hours", _per_topic, {})
    log_retention_hours: int = _key("log.retention.hours", _integer(1), 168)
    log_retention_hours_map: Mapping[str, int] = _key("topic.log.retention.hours", _per_topic, {})
    log_retention_size: int = _key("log.retention.size", _integer(-_LONG_MAX - 1, _LONG_MAX), -1)
    log_retention_sizes: Mapping[str, int] = _key("topic.log.retention.size", _per_topic, {})
    log_cleanup_interval_mins: int = _key("log.cleanup.interval.mins", _integer(1), 10)

    flush_interval: int = _key("log.flush.interval", _integer(1), 500)
    flush_scheduler_interval_ms: int = _key("log.default.flush.scheduler.interval.ms", _integer(1), 3000)
    flush_interval_ms: int | None = _key("log.default.flush.interval.ms", _integer(-_INT_MAX - 1), None)
    flush_intervals_ms: Mapping[str, int] = _key("topic.flush.intervals.ms", _per_topic, {})

    socket_send_buffer: int | None = _key("socket.send.buffer", _integer(1), None)
    socket_receive_buffer: int | None = _key("socket.receive.buffer", _integer(1), None)
    num_threads: int | None = _key("num.threads", _integer(1), None)
    monitoring_period_secs: int = _key("monitoring.period.secs", _integer(1), 600)

    enable_zookeeper: bool | None = _key("enable.zookeeper", _boolean, None)
    zk_connect: str | None = _key("zk.connect", _text, None)
    zk_session_timeout_ms: int = _key("zk.sessiontimeout.ms", _integer(1), 6000)
    zk_connection_timeout_ms: int | None = _key("zk.connectiontimeout.ms", _integer(1), None)
    zk_sync_time_ms: int = _key("zk.synctime.ms", _integer(1), 2000)

    @classmethod
    def parse(cls, pairs: Mapping[str, str]) -> BrokerConfig:
        """Parse a configuration. Raises ConfigError that names the key that is unknown or has an invalid value."""
        values: dict[str, Any] = {}
        for key, text in pairs.items():
            if key not in _FIELDS:
                raise ConfigError(f"unknown key of a 0.7.2 broker: {key}")
            field = _FIELDS[key]
            values[field.name] = field.metadata["parse"](key, text)
        return cls(**values)

    def partitions(self, topic: str) -> int:
        return self.partition_counts.get(topic, self.num_partitions)

    def segment_size(self, topic: str) -> int:
        return self.log_file_sizes.get(topic, self.log_file_size)

    def roll_seconds(self, topic: str) -> float:
        return self.log_roll_hours_map.get(topic, self.log_roll_hours) * HOUR

    def retention_seconds(self, topic: str) -> float:
        return self.log_retention_hours_map.get(topic, self.log_retention_hours) * HOUR

    def flush_seconds(self, topic: str) -> float:
        """The age of the last flush from which the scheduler flushes the topic's logs."""
        default = self.flush_scheduler_interval_ms if self.flush_interval_ms is None else self.flush_interval_ms
        return self.flush_intervals_ms.get(topic, default) / 1000

    @property
    def flush_scheduler_seconds(self) -> float:
        return self.flush_scheduler_interval_ms / 1000

    @property
    def cleanup_seconds(self) -> float:
        return self.log_cleanup_interval_mins * MINUTE

    @property
    def session_timeout(self) -> float:
        return self.zk_session_timeout_ms / 1000

    @property
    def connection_timeout(self) -> float:
        return (self.zk_connection_timeout_ms or self.zk_session_timeout_ms) / 1000


_FIELDS = {field.metadata["key"]: field for field in dataclasses.fields(BrokerConfig)}
