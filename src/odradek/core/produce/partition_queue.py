"""The batches of one partition in their order, and the partitions of one topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from odradek.core.interfaces.produce import SEQUENCES
from odradek.core.produce.batch import ProduceBatch
from odradek.types import TopicPartition

if TYPE_CHECKING:
    from odradek.core.produce.broker_queue import BrokerQueue

__all__ = ["PartitionQueue", "TopicQueues"]

MIN_LEARNED_BATCH_BYTES = 16 << 10
"""A topic may have had a limit far too low for a moment: batches do not stay that small."""

_by_age = attrgetter("sequence")


class PartitionQueue:
    """The batches of one partition, oldest first; those that come from other partitions, behind those with a stamp.

    Attributes:
        partition: Its number is -1 for the records of a topic without known partitions, which are unassigned.
        broker_queue: That of the broker that serves it now, if one does.
        batches: The batches that wait to be sent; `open` is the last of them, if it takes more records.
        in_flight: How many batches are.
        returned: Batches of failed requests; they queue again when nothing of the partition is in flight. Looked at for
            every batch, and nearly always empty: the same tuple for all partitions, which is in the processor's cache.
        orphaned: Its records may go to other partitions of the topic.
        candidate: The batch that waits in the broker's queue.
    """

    __slots__ = (
        "batches",
        "broker_queue",
        "candidate",
        "in_flight",
        "open",
        "orphaned",
        "partition",
        "returned",
        "topic",
    )

    def __init__(self, topic: TopicQueues, partition: TopicPartition) -> None:
        self.topic, self.partition = topic, partition
        self.broker_queue: BrokerQueue | None = None
        self.orphaned = True
        self.batches: deque[ProduceBatch] = deque()
        self.open: ProduceBatch | None = None
        self.candidate: ProduceBatch | None = None
        self.in_flight = 0
        self.returned: Sequence[ProduceBatch] = ()

    def close(self) -> None:
        """Add nothing more to the open batch, which is due now."""
        self.open = None
        self.offer()

    def offer(self) -> None:
        """Tell the broker's queue that the first batch may be another one, or may be closed."""
        if self.broker_queue is not None:
            self.broker_queue.offer(self)

    def merge(self, batches: list[ProduceBatch]) -> None:
        """Queue batches in their order. The open batch is closed: it must not keep growing ahead of a newer one."""
        if batches:
            for batch in batches:
                batch.queue_again()
            self.batches = deque(_in_order([*batches, *self.batches]))
            self.open = None
        self.offer()

    def take_back(self, batches: Sequence[ProduceBatch]) -> None:
        """Add batches of a failed request to `returned`."""
        self.returned = [*self.returned, *batches]
        for batch in batches:
            batch.take_back()

    def remove(self, batch: ProduceBatch) -> None:
        """Remove a batch that has got an outcome, or was replaced by others, while it was queued."""
        if self.open is batch:
            self.open = None
        self.batches.remove(batch)
        self.offer()

    def move_to(self, broker_queue: BrokerQueue | None) -> None:
        """Follow the broker that serves the partition now."""
        if self.broker_queue is not None:
            self.broker_queue.forget(self)
        self.broker_queue = broker_queue
        self.offer()


def _in_order(batches: Sequence[ProduceBatch]) -> list[ProduceBatch]:
    """Return batches of one partition in the order in which they can be written: by age, but those with a stamp first.

    A batch gets its number in the partition when it is first sent. None with a later number can be written before it,
    also not an older one, whose records were for a partition that there is no more.
    """
    ordered = sorted(batches, key=_by_age)
    numbers = {batch: batch.stamp.base_sequence for batch in ordered if batch.stamp is not None}
    if numbers:
        least = next(iter(numbers.values())) - SEQUENCES // 2  # numbers begin again at 0
        ordered.sort(key=lambda batch: (numbers[batch] - least) % SEQUENCES if batch in numbers else SEQUENCES)
    return ordered


class TopicQueues:
    """The partition queues of one topic.

    Attributes:
        batch_bytes: Size at which a new batch will be full: less than at first if the brokers store no batch as large.
        known: The routing table says what partitions it has; until then `why` says why not.
        registered: It had partitions in the cluster when it was looked up.
        loaded_at: When it was looked up, or that began (s).
        available_queues: The queues of the partitions that may be chosen now, in canonical order.
        queues_with_leader: The available queues that a broker serves, or all: for records without a preference.
        unassigned: The queue of records while there are no choices.
        sticky: The queue that records without a preference go to, until its batch is full.
    """

    __slots__ = (
        "available_queues",
        "batch_bytes",
        "compression",
        "known",
        "loaded_at",
        "name",
        "queues",
        "queues_with_leader",
        "registered",
        "sticky",
        "unassigned",
        "why",
    )

    def __init__(self, name: str, compression: str, batch_bytes: int) -> None:
        self.name, self.compression, self.batch_bytes = name, compression, batch_bytes
        self.known, self.registered = False, True
        self.loaded_at = -inf
        self.why = "its partitions are not known"
        self.unassigned = self.sticky = PartitionQueue(self, TopicPartition(name, -1))
        self.available_queues: list[PartitionQueue] = []
        self.queues_with_leader: list[PartitionQueue] = []
        self.queues: dict[TopicPartition, PartitionQueue] = {}

    @property
    def is_missing(self) -> bool:
        """True if the routing table says that it has no partitions: it was deleted, or is yet to be created."""
        return self.known and not self.available_queues

    def note_too_large(self, batch: ProduceBatch) -> None:
        """Make new batches half as large as one that was refused for its size: each would be sent in vain."""
        self.batch_bytes = min(self.batch_bytes, max(batch.size // 2, MIN_LEARNED_BATCH_BYTES))
