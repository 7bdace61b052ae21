"""Configurations of topics of an in-memory cluster: the entries that brokers of 4.3 know, their defaults and values."""

from __future__ import annotations

import re
from collections.abc import Mapping

from odradek.core.kafka.broker_errors import broker_error
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = ["DEFAULTS", "check_config"]

MAX = str((1 << 63) - 1)

DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": MAX,
    "flush.ms": MAX,
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": MAX,
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": MAX,
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}

VALUES = {
    "cleanup.policy": "(compact|delete)?(, *(compact|delete))*",
    "compression.type": "uncompressed|zstd|lz4|snappy|gzip|producer",
    "message.timestamp.type": "CreateTime|LogAppendTime",
    "min.cleanable.dirty.ratio": r"0?\.\d+|[01](\.0*)?",
}
"""Values of entries that are neither numbers, nor true or false, nor lists."""


def check_config(context: str, config: Mapping[str, str]) -> None:
    """Raise BrokerError for an entry that there is not, or a value that it cannot have."""
    for name, value in config.items():
        if name not in DEFAULTS:
            raise broker_error(ErrorCode.INVALID_CONFIG, f"{context}: Unknown topic config name: {name}")
        if not re.fullmatch(VALUES.get(name) or _values(name), value):
            raise broker_error(ErrorCode.INVALID_CONFIG, f"{context}: Invalid value {value} for configuration {name}")


def _values(name: str) -> str:
    """Return a pattern of the values of an entry: those that its default is one of."""
    default = DEFAULTS[name]
    if default == "false":
        return "(?i:true|false)"
    if not default:
        return ".*"
    return r"-?\d{1,19}" if default.startswith("-") or name.startswith("retention.") else r"\d{1,19}"
