"""odradek: one asyncio client for every Kafka. Everything public is named here; nothing is defined here."""

from odradek._version import __version__
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
