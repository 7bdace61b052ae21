"""The protocol driver of Kafka 0.8 and later (`core.interfaces.ProtocolDriver`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from odradek.core.interfaces import PartitionBatch, ProducerRecord, Subscription
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import Closed, LocalProtocolError, MessageTooLarge, OdradekError, Rejected, Unsupported
from odradek.io.connection import ConnectionOptions
from odradek.io.kafka.broker_client import KafkaBrokerClient
from odradek.io.kafka.connections import BrokerConnections
from odradek.io.kafka.coordinators import Coordinators
from odradek.io.kafka.metadata import KafkaMetadata, MetadataOptions
from odradek.io.security import Security
from odradek.types import Broker

__all__ = ["KafkaDriver", "KafkaOptions"]


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Options of one cluster.

    Args:
        connection: How connections to brokers are made.
        metadata: How brokers and topics are read.
        request_timeout_s: From a call to its outcome (s).
        client_id: In every request; brokers show it in logs, metrics and quotas.
        rack: Where this client runs: fetches go to a replica in the same rack where brokers allow it (KIP-392).
    """

    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    metadata: MetadataOptions = field(default_factory=MetadataOptions)
    request_timeout_s: float = 10.0
    client_id: str = "odradek"
    rack: str | None = None
