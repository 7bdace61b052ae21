"""odradek: one asyncio client for every Kafka. Everything public is named here; nothing is defined here.

A name is imported when it is first used: a program that only reads a topic does not wait for transactions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from odradek._version import __version__

if TYPE_CHECKING:
    from odradek.batch import Batch
    from odradek.client.cluster import Cluster
    from odradek.client.connect import connect
    from odradek.client.consumer.consumer import Consumer
    from odradek.client.consumer.group_batches import GroupBatch, GroupTable
    from odradek.client.consumer.reader import Reader
    from odradek.client.consumer.share import ShareBatch, ShareConsumer, ShareRecord
    from odradek.client.options import Tuning
    from odradek.client.producer.producer import Producer
    from odradek.client.producer.results import Ack, Acks, Failed
    from odradek.client.run import run
    from odradek.core.backoff import Backoff
    from odradek.core.interfaces import ProducerRecord
    from odradek.core.kafka.partitioners import Murmur2
    from odradek.core.produce.partitioners import JavaHash, KeyHash, RandomPartitioner, RoundRobin
    from odradek.errors import (
        AuthFailed,
        BrokerError,
        Closed,
        ConfigError,
        ConnectionLost,
        CorruptMessage,
        DeadlineError,
        DeliveryError,
        Fenced,
        GroupError,
        InternalError,
        LocalProtocolError,
        LogTruncated,
        MessageTooLarge,
        NotWritten,
        OdradekError,
        OffsetOutOfRange,
        OutcomeUnknown,
        ProtocolError,
        Rejected,
        RemoteProtocolError,
        TopicRecreated,
        TransactionAborted,
        TransportError,
        Undelivered,
        Unreachable,
        Unsupported,
        UsageError,
        ZooKeeperError,
    )
    from odradek.io.security import Security
    from odradek.types import (
        EARLIEST,
        LATEST,
        AtTime,
        Broker,
        GiB,
        KiB,
        MiB,
        Position,
        Record,
        TopicPartition,
    )

__all__ = [
    "EARLIEST",
    "LATEST",
    "Ack",
    "Acks",
    "AtTime",
    "AuthFailed",
    "Backoff",
    "Batch",
    "Broker",
    "BrokerError",
    "Closed",
    "Cluster",
    "ConfigError",
    "ConnectionLost",
    "Consumer",
    "CorruptMessage",
    "DeadlineError",
    "DeliveryError",
    "Failed",
    "Fenced",
    "GiB",
    "GroupBatch",
    "GroupError",
    "GroupTable",
    "InternalError",
    "JavaHash",
    "KeyHash",
    "KiB",
    "LocalProtocolError",
    "LogTruncated",
    "MessageTooLarge",
    "MiB",
    "Murmur2",
    "NotWritten",
    "OdradekError",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "Position",
    "Producer",
    "ProducerRecord",
    "ProtocolError",
    "RandomPartitioner",
    "Reader",
    "Record",
    "Rejected",
    "RemoteProtocolError",
    "RoundRobin",
    "Security",
    "ShareBatch",
    "ShareConsumer",
    "ShareRecord",
    "TopicPartition",
    "TopicRecreated",
    "TransactionAborted",
    "TransportError",
    "Tuning",
    "Undelivered",
    "Unreachable",
    "Unsupported",
    "UsageError",
    "ZooKeeperError",
    "__version__",
    "connect",
    "run",
]

_HOMES = {
    "Ack": "client.producer.results",
    "Acks": "client.producer.results",
    "AtTime": "types",
    "AuthFailed": "errors",
    "Backoff": "core.backoff",
    "Batch": "batch",
    "Broker": "types",
    "BrokerError": "errors",
    "Closed": "errors",
    "Cluster": "client.cluster",
    "ConfigError": "errors",
    "ConnectionLost": "errors",
    "Consumer": "client.consumer.consumer",
    "CorruptMessage": "errors",
    "DeadlineError": "errors",
    "DeliveryError": "errors",
    "EARLIEST": "types",
    "Failed": "client.producer.results",
    "Fenced": "errors",
    "GiB": "types",
    "GroupBatch": "client.consumer.group_batches",
    "GroupError": "errors",
    "GroupTable": "client.consumer.group_batches",
    "InternalError": "errors",
    "JavaHash": "core.produce.partitioners",
    "KeyHash": "core.produce.partitioners",
    "KiB": "types",
    "LATEST": "types",
    "LocalProtocolError": "errors",
    "LogTruncated": "errors",
    "MessageTooLarge": "errors",
    "MiB": "types",
    "Murmur2": "core.kafka.partitioners",
    "NotWritten": "errors",
    "OdradekError": "errors",
    "OffsetOutOfRange": "errors",
    "OutcomeUnknown": "errors",
    "Position": "types",
    "Producer": "client.producer.producer",
    "ProducerRecord": "core.interfaces",
    "ProtocolError": "errors",
    "RandomPartitioner": "core.produce.partitioners",
    "Reader": "client.consumer.reader",
    "Record": "types",
    "Rejected": "errors",
    "RemoteProtocolError": "errors",
    "RoundRobin": "core.produce.partitioners",
    "Security": "io.security",
    "ShareBatch": "client.consumer.share",
    "ShareConsumer": "client.consumer.share",
    "ShareRecord": "client.consumer.share",
    "TopicPartition": "types",
    "TopicRecreated": "errors",
    "TransactionAborted": "errors",
    "TransportError": "errors",
    "Tuning": "client.options",
    "Undelivered": "errors",
    "Unreachable": "errors",
    "Unsupported": "errors",
    "UsageError": "errors",
    "ZooKeeperError": "errors",
    "connect": "client.connect",
    "run": "client.run",
}
"""Name -> its module in this package."""
_MODULES = ("arrow", "batch", "client", "core", "engine", "errors", "io", "serde", "types")
"""Modules that can be named after `import odradek` alone."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
