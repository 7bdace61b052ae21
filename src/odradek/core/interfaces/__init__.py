"""Interfaces between the client and the protocol drivers: what producer, consumer, reader and command line need.

The driver for Kafka 0.7 implements them over ZooKeeper and raw byte logs; the driver for 0.8 and later over Metadata,
Produce, Fetch and group requests.
"""

from .driver import NOT_OPEN, BrokerClient, ClusterStatistics, PendingResult, ProtocolDriver
from .fetch import DecoderOptions, LogDecoder, PartitionFetch
from .groups import NO_METADATA, Assignment, Membership, OffsetStore, RebalanceListener, Subscription
from .logs import BYTES, RECORDS, Extent, Extents, LogAccess, PositionUnit, SplitPoint
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
    "ShareGroup",
    "ShareSubscription",
    "SplitPoint",
    "Stamp",
    "Subscription",
]
