"""Interfaces between the client and the protocol drivers: what producer, consumer, reader and command line need.

The driver for Kafka 0.7 implements them over ZooKeeper and raw byte logs; the driver for 0.8 and later over Metadata,
Produce, Fetch and group requests. A name is imported when it is first used: a program that reads needs no share groups.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .driver import NOT_OPEN, BrokerClient, ClusterStatistics, PendingResult, ProtocolDriver, SessionPolls
    from .fetch import DecoderOptions, LogDecoder, PartitionFetch
    from .groups import NO_METADATA, Assignment, Membership, OffsetStore, RebalanceListener, Subscription
    from .logs import BYTES, INTERNAL_TOPICS, RECORDS, Extent, Extents, LogAccess, PositionUnit, SplitPoint
    from .metadata import ClusterMetadata, RoutingTable
    from .produce import (
        AnsweringBrokerPolicy,
        PartitionBatch,
        PartitionResult,
        ProducerIdentity,
        ProducerRecord,
        ProducerSequences,
        RefusalPolicy,
        Stamp,
    )
    from .raw import RawRequest, RawResponse
    from .share import AckType, AcquiredBatch, ShareGroup, ShareSubscription
    from .transactions import ConsumerPositions, DeliveredBatch, ProducerTransactions

__all__ = [
    "BYTES",
    "INTERNAL_TOPICS",
    "NOT_OPEN",
    "NO_METADATA",
    "RECORDS",
    "AckType",
    "AcquiredBatch",
    "AnsweringBrokerPolicy",
    "Assignment",
    "BrokerClient",
    "ClusterMetadata",
    "ClusterStatistics",
    "ConsumerPositions",
    "DecoderOptions",
    "DeliveredBatch",
    "Extent",
    "Extents",
    "LogAccess",
    "LogDecoder",
    "Membership",
    "OffsetStore",
    "PartitionBatch",
    "PartitionFetch",
    "PartitionResult",
    "PendingResult",
    "PositionUnit",
    "ProducerIdentity",
    "ProducerRecord",
    "ProducerSequences",
    "ProducerTransactions",
    "ProtocolDriver",
    "RawRequest",
    "RawResponse",
    "RebalanceListener",
    "RefusalPolicy",
    "RoutingTable",
    "SessionPolls",
    "ShareGroup",
    "ShareSubscription",
    "SplitPoint",
    "Stamp",
    "Subscription",
]

_NAMES = {
    "driver": ("NOT_OPEN", "BrokerClient", "ClusterStatistics", "PendingResult", "ProtocolDriver", "SessionPolls"),
    "fetch": ("DecoderOptions", "LogDecoder", "PartitionFetch"),
    "groups": ("NO_METADATA", "Assignment", "Membership", "OffsetStore", "RebalanceListener", "Subscription"),
    "logs": ("BYTES", "INTERNAL_TOPICS", "RECORDS", "Extent", "Extents", "LogAccess", "PositionUnit", "SplitPoint"),
    "metadata": ("ClusterMetadata", "RoutingTable"),
    "produce": (
        "AnsweringBrokerPolicy",
        "PartitionBatch",
        "PartitionResult",
        "ProducerIdentity",
        "ProducerRecord",
        "ProducerSequences",
        "RefusalPolicy",
        "Stamp",
    ),
    "raw": ("RawRequest", "RawResponse"),
    "share": ("AckType", "AcquiredBatch", "ShareGroup", "ShareSubscription"),
    "transactions": ("ConsumerPositions", "DeliveredBatch", "ProducerTransactions"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
