"""Partitions for records, and brokers for partitions, as routing tables come.

Records of a partition that lost its broker go to the topic's other partitions, keyed ones by the new list, before newer
ones there; records sent to an explicit partition, and what may be written already, wait for it.

A partition that its topic does not have, according to the table, is `missing`: its records are refused once the caller
has made sure that the table is right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from odradek import arguments
from odradek.core.interfaces import ProducerSequences, RoutingTable
from odradek.core.missing_partitions import why_missing
from odradek.core.produce.batch import AccumulatorLimits, ProduceBatch
from odradek.core.produce.broker_queue import BrokerQueue
from odradek.core.produce.live_batches import LiveBatches
from odradek.core.produce.partition_queue import PartitionQueue, TopicQueues
from odradek.core.produce.partitioners import Partitioner
from odradek.errors import ConfigError, Rejected
from odradek.types import TopicPartition

__all__ = ["Router"]


class Router:
    """The queues of all partitions, topics and brokers.

    Args:
        limits: The limits of the accumulator.
        partitioner: Returns an index, or None (no preference), for a record.
        randrange: Randomness, for records without preference.
        table: The leaders of partitions now.
        live: All batches.
        sequences: Identifies batches, if the producer is idempotent.
        numbers_by_broker: Partitions are numbered on each broker, and come and go with it: none is ever `missing`.

    Attributes:
        brokers: What waits for each broker, by its id, since it was first asked for (`broker`).
        due: Brokers that became due since the accumulator took the last ones; a set in order.
        missing: Queues that have got explicit batches although their topic has no such partition; a set in order.
        keyless_is_sticky: Records without a key need not be shown to the partitioner.
        key_hash: The rule of the partitioner for keys, if the engine has it (see `Partitioner`); empty otherwise.
    """

    def __init__(
        self,
        limits: AccumulatorLimits,
        partitioner: Partitioner,
        randrange: Callable[[int], int],
        table: RoutingTable,
        live: LiveBatches,
        sequences: ProducerSequences | None,
        numbers_by_broker: bool = False,
    ) -> None:
        self.table = table
        self.topics: dict[str, TopicQueues] = {}
        self.due: dict[int, None] = {}
        self.missing: dict[PartitionQueue, None] = {}
        self.keyless_is_sticky: bool = getattr(partitioner, "keyless_is_sticky", False)
        self.key_hash: str = vars(type(partitioner)).get("key_hash", "")
        self._limits, self._live = limits, live
        self._partitioner, self._randrange, self._sequences = partitioner, randrange, sequences
        self._numbers_by_broker = numbers_by_broker
        self.brokers: dict[int, BrokerQueue] = {}
        self._always_first = sequences is None and limits.partition_in_flight == sys.maxsize
        """The only batch of a partition may be sent, whatever is in flight."""

    # ---- records -------------------------------------------------------------------------------------------

    def choose(self, topic: TopicQueues, key: bytes | None) -> PartitionQueue | None:
        """Return the partition that the partitioner chooses, or None if it has no preference. While there are none to
        choose from, records are unassigned.

        Raises:
            ConfigError: It chose a partition that does not exist. So is what the partitioner itself raises.
        """
        count = len(topic.available_queues)
        if not count:
            return topic.unassigned
        index = self._partitioner(topic.name, key, count)
        if index is None:
            return None
        try:
            if index >= 0:
                return topic.available_queues[index]
        except (IndexError, TypeError):
            pass
        raise ConfigError(f"the partitioner chose {arguments.shown(index)} of {count} partitions of {topic.name}")

    def next_batch(
        self, queue: PartitionQueue, size: int, now: float, *, explicit: bool, sticky: bool, packed: bool = False
    ) -> ProduceBatch:
        """Return the batch for a record that does not fit into the open one of `queue`.

        Args:
            queue: Where the record was to go.
            size: Its bytes on the wire.
            now: The time (s).
            explicit: The record was sent to this very partition.
            sticky: It has no preference: another partition is chosen.
            packed: Nothing else may be in its batch.
        """
        topic = queue.topic
        # Records without a preference stay with one partition until its batch is full, and then go to another one, so
        # that batches become large (KIP-480). Records with keys may have begun a batch there: it is continued, unless
        # its records were sent to that very partition, since those never move to another one.
        if sticky and topic.available_queues:
            if queue.open is not None:
                queue.close()
            queues = topic.queues_with_leader
            queue = topic.sticky = queues[self._randrange(len(queues))] if len(queues) > 1 else queues[0]
            batch = queue.open
            if not (batch is None or packed or batch.explicit_partition or batch.size + size > batch.max_size):
                return batch
        live = self._live
        live.sequence += 1
        if live.reusable:
            batch = live.reusable.pop()
            batch.begin_again(queue, live.sequence, now, explicit)
        else:
            batch = ProduceBatch(queue, live.sequence, now, explicit)
        live.batches[batch] = None
        queue.open = batch
        queue.batches.append(batch)
        broker_queue = queue.broker_queue
        if explicit and queue.orphaned:
            self._note_missing(queue)
        if broker_queue is not None:
            if self._always_first and queue.candidate is None and len(queue.batches) == 1 and not queue.returned:
                broker_queue.offer_newest(queue, batch)
            else:
                broker_queue.offer(queue)
        return batch

    def partition(self, topic: TopicQueues, partition: TopicPartition) -> PartitionQueue:
        """Return the queue of a partition, which need not be one that can be chosen."""
        queue = topic.queues.get(partition)
        if queue is None:
            queue = topic.queues[partition] = PartitionQueue(topic, partition)
            self._update_leader(queue)
        return queue

    # ---- routing tables ------------------------------------------------------------------------------------

    def broker(self, broker: int) -> BrokerQueue:
        """Return what waits for a broker."""
        queue = self.brokers.get(broker)
        if queue is None:
            queue = self.brokers[broker] = BrokerQueue(broker, self._limits, self.due, self._sequences)
        return queue

    def route(self, table: RoutingTable) -> None:
        """Replace the routing table."""
        self.table = table
        for topic in self.topics.values():
            if topic.known:
                self.route_topic(topic)

    def route_topic(self, topic: TopicQueues) -> None:
        """Follow the routing table in one topic."""
        available = [self.partition(topic, partition) for partition in self.table.partitions(topic.name)]
        topic.available_queues = available
        topic.why = self.table.why_unusable(topic.name) or "no live broker has it"
        offered = set(available)
        for queue in (topic.unassigned, *topic.queues.values()):
            self._update_leader(queue)
            queue.orphaned = queue not in offered
            if queue.orphaned and queue.open is not None and not queue.open.explicit_partition:
                queue.open = None  # nothing more belongs here
            if queue.orphaned and not queue.in_flight:
                self.reassign(queue)
        topic.queues_with_leader = [queue for queue in available if queue.broker_queue is not None] or available
        if topic.sticky not in topic.queues_with_leader:
            topic.sticky = topic.unassigned

    def _update_leader(self, queue: PartitionQueue) -> None:
        known = queue.topic.known and queue is not queue.topic.unassigned
        leader = self.table.leader(queue.partition) if known else None
        broker = None if leader is None else self.broker(leader.id)
        if broker is not queue.broker_queue:
            queue.move_to(broker)

    # ---- records of partitions that cannot be chosen any more -----------------------------------------------

    def reassign(self, queue: PartitionQueue) -> None:
        """Move what may be moved to partitions that can be chosen; it stays while there are none."""
        topic = queue.topic
        if any(batch.explicit_partition for batch in queue.batches):
            self._note_missing(queue)
        # A batch whose request was lost may be in the log of this partition. Written to another one, its records would
        # be in the topic twice, and no broker could know: it waits for its partition, or for its time to end.
        movable = [batch for batch in queue.batches if not (batch.explicit_partition or batch.may_be_written)]
        if not topic.available_queues or not movable:
            return
        # One target for all records without preference: what was in one partition stays in order.
        target = topic.available_queues[self._randrange(len(topic.available_queues))]
        moved: dict[PartitionQueue, list[ProduceBatch]] = {}
        for batch in movable:
            for chosen, rows in self._destinations(batch, target).items():
                moved.setdefault(chosen, []).append(self._live.part(batch, chosen, rows))
            self._live.forget(batch)
        for chosen, parts in moved.items():
            chosen.merge(parts)

    def _destinations(self, batch: ProduceBatch, target: PartitionQueue) -> dict[PartitionQueue, list[int]]:
        """Return which rows go where. A record that the partitioner fails on is rejected, alone."""
        rows: dict[PartitionQueue, list[int]] = {}
        for row, record in enumerate(batch.records):
            key = None if isinstance(record, bytes) else record[1]
            try:
                chosen = self.choose(target.topic, key) or target
            except Exception as error:  # the partitioner is the user's
                failed = self._live.part(batch, batch.queue, [row])
                failed.fail(Rejected, f"the partitioner failed: {type(error).__name__}: {error}", error)
                self._live.finish(failed)
            else:
                rows.setdefault(chosen, []).append(row)
        return rows

    # ---- partitions that do not exist ------------------------------------------------------------------------

    def take_missing(self) -> dict[PartitionQueue, int]:
        """Return the missing queues, each with the number of its newest batch, to which nothing is added from now on:
        metadata that is read after this call is newer than all records that may be refused."""
        noted = dict.fromkeys(self.missing, self._live.sequence)
        self.missing.clear()
        missing = self.still_missing(noted)
        for queue in missing:
            queue.close()
        return missing

    def still_missing(self, queues: Mapping[PartitionQueue, int]) -> dict[PartitionQueue, int]:
        """Return those of the queues that `take_missing` returned that have records to refuse."""
        return {
            queue: newest
            for queue, newest in queues.items()
            if self._why_missing(queue) and self._refusable(queue, newest)
        }

    def refuse_missing(self, queues: Mapping[PartitionQueue, int]) -> None:
        """Reject the batches in those queues whose partitions are still missing. Batches that may be written continue
        to wait."""
        for queue, newest in queues.items():
            if why := self._why_missing(queue):
                for batch in self._refusable(queue, newest):
                    batch.fail(Rejected, why, batch.last_error)
                    self._live.finish(batch)

    def _note_missing(self, queue: PartitionQueue) -> None:
        if not self._numbers_by_broker and self._why_missing(queue):
            self.missing[queue] = None

    def _why_missing(self, queue: PartitionQueue) -> str:
        """Return that the topic has no such partition, as far as the table says; empty: it may have it."""
        if not queue.orphaned:
            return ""
        return why_missing(queue.partition, [choice.partition for choice in queue.topic.available_queues])

    def _refusable(self, queue: PartitionQueue, newest: int) -> list[ProduceBatch]:
        """Return the explicit batches up to this number that are certainly not written."""
        return [
            batch
            for batch in queue.batches
            if batch.explicit_partition and batch.sequence <= newest and not batch.may_be_written
        ]
