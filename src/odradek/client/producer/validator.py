"""Checks of records before they are accepted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import get_ident

from odradek import arguments
from odradek.client.options import HEADERS, TIMESTAMP
from odradek.client.producer.dispatcher import Dispatcher
from odradek.client.producer.rows import ROWS_AT_ONCE, Row
from odradek.core.interfaces import ProducerRecord, ProtocolDriver
from odradek.core.produce.batch import as_record
from odradek.core.produce.packed_records import EncodedRecords, PackedRecords
from odradek.core.produce.partition_queue import TopicQueues
from odradek.errors import ConfigError, DeliveryError, MessageTooLarge, Rejected, Unsupported
from odradek.types import TopicPartition

__all__ = ["TOPIC", "RecordValidator", "ValidRecord"]

MAX_PARTITION = (1 << 31) - 1
"""Partitions are signed 32-bit numbers on the wire."""

TOPIC = arguments.instance(str, "a str")
"""The rule for the argument `topic`."""

ValidRecord = tuple[TopicQueues, int, bytes | ProducerRecord | EncodedRecords, TopicPartition | None]
"""A record as the accumulator takes it: its topic, its size on the wire, itself, and its explicit partition. Or the
records of a batch that is passed on as it is."""


class RecordValidator:
    """Checks records, and adds topics when their first record comes.

    Args:
        driver: The cluster.
        dispatcher: That of the producer.
        max_message_bytes: The brokers' limit.
        max_record: The most bytes that a record may take on the wire: what the buffer has space for.
        compression, compression_by_topic: Options of the producer.
    """

    def __init__(
        self,
        driver: ProtocolDriver,
        dispatcher: Dispatcher,
        max_message_bytes: int,
        max_record: int,
        compression: str,
        compression_by_topic: Mapping[str, str],
    ) -> None:
        self._driver, self._dispatcher = driver, dispatcher
        self._max_message_bytes, self._max_record = max_message_bytes, max_record
        self._compression, self._compression_by_topic = compression, compression_by_topic
        self._topics = dispatcher.accumulator.topics
        self._record_overhead, self._record_size = dispatcher.accumulator.record_overhead, driver.record_size
        self._unchecked_size = min(max_message_bytes, max_record)
        self.unchecked_value = self._unchecked_size - self._record_overhead
        """A value of at most this many bytes is never too large."""

    def validate(
        self,
        name: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp: int | None,
        partition: TopicPartition | int | None,
    ) -> ValidRecord:
        """Check everything that can be wrong with a record before it is accepted."""
        if self._dispatcher.closed_reason is not None or get_ident() != self._dispatcher.thread:
            self._dispatcher.check_open()
        if not (value is None or isinstance(value, bytes)) or not (key is None or isinstance(key, bytes)):
            raise TypeError(f"value and key must be bytes or None, not {type(value).__name__} and {type(key).__name__}")
        try:
            topic = self._topics.get(name) or self._new_topic(name)
        except TypeError:
            TOPIC("topic", name)  # one that cannot be a key
            raise
        record: bytes | ProducerRecord
        if key is None and not headers and timestamp is None and type(value) is bytes:
            record, size = value, self._record_overhead + len(value)
        else:
            if headers or timestamp is not None:
                headers, timestamp = HEADERS("headers", headers), TIMESTAMP("timestamp", timestamp)
            record = ProducerRecord(value, key, headers, timestamp)
            size = self._record_size(record)
        if size > self._unchecked_size or headers or timestamp is not None or value is None:
            self._check(topic, as_record(record), size)  # a record is never smaller than its payload
        return topic, size, record, None if partition is None else self.partition(name, partition)

    def appender(self, max_run: int) -> Callable[[object, object, object], bool | None]:
        """Return what appends a record for which there is nothing to check (see `Accumulator.appender`)."""
        return self._dispatcher.accumulator.appender(self._unchecked_size, max_run)

    def parts(self, topic: str, run: Sequence[Row], partition: TopicPartition | None) -> Iterable[Sequence[Row]]:
        """Return a run in parts that can be appended: as it is, or as lists if each of its records has to be looked at,
        because its key chooses the partition, or because the cluster may not store all of it.

        Raises:
            CorruptMessage: A batch that was not decoded so far cannot be.
        """
        if isinstance(run, EncodedRecords):
            if self._passes(topic, run, partition):
                return (run,)
            run = run.decoded()
        if not isinstance(run, PackedRecords):
            return (run,)
        if (partition is not None or run.keys is None) and self._stores(topic, run):
            return (run,)
        return (list(run[start : start + ROWS_AT_ONCE]) for start in range(0, len(run), ROWS_AT_ONCE))

    def encoded(self, topic: str, records: EncodedRecords, partition: TopicPartition | None) -> ValidRecord:
        """Return a batch that `parts` has left as it is."""
        self._dispatcher.check_open()
        return self._topics[topic], len(records.batch.data), records, partition

    def _passes(self, topic: str, records: EncodedRecords, partition: TopicPartition | None) -> bool:
        """Return True if a batch may go to the cluster as it is: nothing chooses the partition of each record, it is
        small enough, the topic can be one, and all brokers have its format."""
        if partition is None or len(records.batch.data) > self._unchecked_size or not self._driver.has_headers:
            return False
        try:
            return topic in self._topics or self._new_topic(topic) is not None
        except (DeliveryError, Unsupported):
            return False  # which each of its records is told

    def _stores(self, topic: str, records: PackedRecords) -> bool:
        record = ProducerRecord(
            None if records.values.null_count else b"",
            None if records.keys is None else b"",
            () if records.headers is None else (("", b""),),
            None if records.timestamps is None else 0,
        )
        try:
            self._driver.validate_record(topic, record, sys.maxsize)
        except (DeliveryError, Unsupported):
            return False
        return True

    def partition(self, topic: str, partition: TopicPartition | int) -> TopicPartition:
        """Return the partition that is meant. Raises TypeError or ConfigError for what cannot be one."""
        if isinstance(partition, int) and not isinstance(partition, bool) and not self._driver.logs.names_brokers:
            partition = TopicPartition(topic, partition)
        if not isinstance(partition, TopicPartition):
            allowed = "a TopicPartition" if self._driver.logs.names_brokers else "a TopicPartition or a number"
            arguments.wrong_type("partition", partition, f"{allowed} of this cluster (see Cluster.partitions())")
        if not (type(partition.partition) is int and type(partition.broker) is int):
            raise TypeError(f"partition and broker of {arguments.shown(partition)} must be numbers")
        if partition.topic != topic or not 0 <= partition.partition <= MAX_PARTITION:
            raise ConfigError(f"partition {partition} is not one of topic {topic}")
        return partition

    def _check(self, topic: TopicQueues, record: ProducerRecord, size: int) -> None:
        """Check the size: compressed, only that of the batch counts, and is known when it is encoded."""
        if size > self._max_record:
            too_large = MessageTooLarge(topic.name, -1, size, self._max_record, "buffer_bytes")
            rejected = Rejected([record], str(too_large))
            self._dispatcher.fail_transaction(rejected)
            raise rejected from too_large
        limit = self._max_message_bytes if topic.compression == "none" else self._max_record
        self._check_for(topic.name, record, limit)

    def _check_for(self, topic: str, record: ProducerRecord, limit: int) -> None:
        """Check that the cluster stores a record. In a transaction one that it does not is one that failed."""
        try:
            self._driver.validate_record(topic, record, limit)
        except (DeliveryError, Unsupported) as error:
            self._dispatcher.fail_transaction(error)
            raise

    def _new_topic(self, name: str) -> TopicQueues:
        TOPIC("topic", name)
        self._check_for(name, ProducerRecord(b""), self._max_message_bytes)
        return self._dispatcher.add_topic(name, self._compression_by_topic.get(name, self._compression))
