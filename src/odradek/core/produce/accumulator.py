"""Records on their way out: batches per partition, and when a broker's next request is due.

Pure: the clock comes in as `now` (seconds, any origin), chance as `randrange`. The rules:

- Batches grow until one is full or its first record is `latency` old; then a request takes the oldest batch of every
  partition of that broker (MULTIPRODUCE), up to `request_bytes`. A broker with nothing in flight is sent whatever there
  is at once, if somebody waits for a record of it, or if its last request left `latency` ago: otherwise a quick broker
  would be sent request after request, with next to nothing in each.
- Order per partition: batches leave in the order they were made. A batch that comes back waits until nothing of its
  partition is in flight, and goes out again before everything newer - unless `reorder`, which sends it at once.
- A batch that was on a connection the broker closed becomes a *suspect*: that is how a broker answers a produce it
  does not like (specification 3.1). Suspects go out alone until each has shown what it is.
- Records of a partition that lost its broker go to the topic's other partitions, keyed ones by the new list, before
  newer ones there; records sent to an explicit partition wait for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from operator import attrgetter

from odradek import engine
from odradek.core.interfaces import ProducerRecord, RoutingTable
from odradek.core.produce.batch import (
    PACKED_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    AccumulatorLimits,
    FlushWaiter,
    PartitionQueue,
    ProduceBatch,
    ProduceRequest,
    TopicQueues,
)
from odradek.core.produce.broker_queue import BrokerQueue
from odradek.core.produce.partitioners import JavaHash, KeyHash, Partitioner
from odradek.engine import PackedBytes
from odradek.errors import ConfigError, ConnectionLost, OdradekError
from odradek.types import TopicPartition

__all__ = ["STRIKES", "Accumulator"]

STRIKES = 2
"""So often a living broker closes the connection on a batch sent alone before it is given up: once may be chance."""

_by_age = attrgetter("number")


class Accumulator:
    """See the module. Every method is synchronous; the caller does the waiting.

    Args:
        limits: See `AccumulatorLimits`.
        partitioner: Index or None (no preference) for a record.
        randrange: Chance, for records without preference.
        measure: Bytes of a record on the wire.
        table: Who serves what now.
        stir: Called with each broker whose `take` should be tried again.
    """

    def __init__(
        self,
        limits: AccumulatorLimits,
        partitioner: Partitioner,
        randrange: Callable[[int], int],
        measure: Callable[[ProducerRecord], int],
        table: RoutingTable,
        stir: Callable[[int], None],
    ) -> None:
        self.limits, self.table = limits, table
        self.topics: dict[str, TopicQueues] = {}
        self.live: dict[ProduceBatch, None] = {}
        self.held = 0
        self._takes_runs = isinstance(partitioner, KeyHash | JavaHash)  # without keys they have no preference
        self._partitioner, self._randrange, self._measure, self._stir = partitioner, randrange, measure, stir
        self.entry_bytes = measure(ProducerRecord(b""))
        """What a record that is only a value takes on the wire beyond that."""
        self._links: defaultdict[int, BrokerQueue] = defaultdict(BrokerQueue)
        self._flushes: list[FlushWaiter] = []
        self._numbers = 0

    # ---- records in ----------------------------------------------------------------------------------------

    def fits(self, size: int) -> bool:
        """Whether there is room now for a record of `size` bytes on the wire."""
        return self.held + size + RECORD_OVERHEAD_BYTES <= self.limits.buffer_bytes

    def append(
        self,
        topic: TopicQueues,
        record: bytes | ProducerRecord,
        size: int,
        now: float,
        partition: TopicPartition | None = None,
        tag: object = None,
    ) -> None:
        """Take a record, which may be a plain value. Stirs its broker only when a batch begins or is full.

        Raises:
            ConfigError: The partitioner chose a partition that is not there; the record was not taken.
        """
        if partition is None:
            lane = self._choose(topic, record.key if isinstance(record, tuple) else None, size)
        else:
            lane = self._lane(topic, partition)
        batch, limit = lane.open, self.limits.batch_bytes
        if batch is None or batch.size + size > limit or batch.pinned is (partition is None):
            batch = self._begin(lane, now, partition is not None)
        batch.records.append(record)
        batch.size += size
        self.held += size + RECORD_OVERHEAD_BYTES
        if tag is not None:
            self._tag(batch, len(batch) - 1, tag)
        if batch.size >= limit:
            self._close(lane)

    def extend(
        self,
        topic: TopicQueues,
        values: Sequence[object],
        start: int,
        max_row: int,
        now: float,
        partition: TopicPartition | None,
        tag: object,
    ) -> int:
        """Take plain values from `values[start:]` (a list, or a `PackedBytes`) into one batch: as many as it and the
        buffer have room for, up to the first that is anything but bytes or longer than `max_row`.

        None at all when the partitioner wants to see each.

        Returns:
            The index behind the last one taken.
        """
        first = values[start]
        if type(first) is not bytes or len(first) > max_row or not (partition or self._takes_runs):
            return start
        size = self.entry_bytes + len(first)
        if not self.fits(size):
            return start
        lane = self._choose(topic, None, size) if partition is None else self._lane(topic, partition)
        batch = self._open(lane, size, now, partition is not None, isinstance(values, PackedBytes))
        stop = self._reach(values, start, size, self.limits.batch_bytes - batch.size)
        return self._fill(batch, values, start, stop, max_row, tag)

    def _reach(self, values: Sequence[object], start: int, size: int, room: int) -> int:
        """How far to look at most: the pure engine looks at everything it is given before it says what fits. For a
        list it is a guess by the first one's size; if too little came of it, the next call goes on in the batch."""
        if not isinstance(values, PackedBytes):
            return min(start + max(1, room // size), len(values))
        offsets, entry = values.offsets, self.entry_bytes
        base = offsets[start] + entry * start
        beyond = bisect_right(range(len(offsets)), room + base, start, key=lambda row: offsets[row] + entry * row)
        return max(start + 1, beyond - 1)

    def _open(self, lane: PartitionQueue, size: int, now: float, pinned: bool, packed: bool) -> ProduceBatch:
        """The batch that so many bytes go into."""
        batch = lane.open
        if batch is None or packed or batch.pinned is not pinned or batch.size + size > self.limits.batch_bytes:
            batch = self._begin(lane, now, pinned)
        return batch

    def _fill(
        self, batch: ProduceBatch, values: Sequence[object], start: int, stop: int, max_row: int, tag: object
    ) -> int:
        """Put values from `start` on into a batch, at least one, and close it if nothing more can come into it."""
        entry, fit = self.entry_bytes, engine.active.fit
        overhead = PACKED_OVERHEAD_BYTES if isinstance(values, PackedBytes) else RECORD_OVERHEAD_BYTES
        end, size = fit(values, start, stop, self.limits.batch_bytes - batch.size, entry, max_row)
        if end == start:  # larger than a batch: it travels alone
            end, size = fit(values, start, start + 1, self.limits.buffer_bytes, entry, max_row)
        if size + (entry + overhead) * (end - start) > self.limits.buffer_bytes - self.held:
            end, size = fit(values, start, end, self.limits.buffer_bytes - self.held, entry + overhead, max_row)
        size += entry * (end - start)
        first = len(batch)
        batch.add(values, start, end)
        batch.size += size
        self.held += size + overhead * (end - start)
        self._tag(batch, first, tag)
        if batch.size >= self.limits.batch_bytes or isinstance(values, PackedBytes):
            self._close(batch.lane)
        return end

    def _choose(self, topic: TopicQueues, key: bytes | None, size: int) -> PartitionQueue:
        if not topic.choices:
            return topic.limbo
        lane = self._preferred(topic, key)
        if lane is None:
            lane = topic.sticky
            if lane.open is not None and lane.open.size + size > self.limits.batch_bytes:
                self._close(lane)
            if lane.open is None:
                lane = topic.sticky = topic.choices[self._randrange(len(topic.choices))]
        return lane

    def _preferred(self, topic: TopicQueues, key: bytes | None) -> PartitionQueue | None:
        count = len(topic.choices)
        index = self._partitioner(topic.name, key, count)
        if index is None:
            return None
        if not 0 <= index < count:
            raise ConfigError(f"the partitioner chose {index} of {count} partitions of {topic.name}")
        return topic.choices[index]

    def _lane(self, topic: TopicQueues, partition: TopicPartition) -> PartitionQueue:
        lane = topic.lanes.get(partition)
        if lane is None:
            lane = topic.lanes[partition] = PartitionQueue(topic, partition)
            self._aim(lane)
        return lane

    def _begin(self, lane: PartitionQueue, now: float, pinned: bool) -> ProduceBatch:
        self._numbers += 1
        batch = lane.open = ProduceBatch(lane, self._numbers, now, pinned)
        self.live[batch] = None
        batch.queued = True
        lane.queue.append(batch)
        self._work_for(lane)
        return batch

    def _tag(self, batch: ProduceBatch, first: int, tag: object) -> None:
        """Somebody waits for the records of an open batch from `first` on."""
        batch.tag(first, len(batch), tag)
        broker = batch.lane.broker
        if broker is not None and not (link := self._links[broker]).hurried:
            link.hurried = True
            self._stir(broker)

    def _close(self, lane: PartitionQueue) -> None:
        """Nothing more comes into its open batch, which is due now."""
        lane.open = None
        self._work_for(lane)

    def _work_for(self, lane: PartitionQueue) -> None:
        if self._file(lane) and lane.broker is not None:
            self._stir(lane.broker)

    def _file(self, lane: PartitionQueue) -> bool:
        """Tell its broker's link what the lane wants to send next. Returns whether that is news."""
        blocked = lane.broker is None or (lane.returned and not self.limits.reorder)
        if blocked or not lane.queue:
            lane.filed = None
            return False
        assert lane.broker is not None
        return self._links[lane.broker].file(lane, lane.queue[0])

    # ---- requests out --------------------------------------------------------------------------------------

    def idle(self, broker: int) -> bool:
        """There is nothing for a broker: for who asks often."""
        return self._links[broker].idle

    def take(self, broker: int, now: float) -> ProduceRequest | None:
        """The next request for a broker, if one is due; its batches are in flight from now on."""
        link = self._links[broker]
        if not self._admits(link):
            return None
        suspect = link.suspect
        if suspect is not None:
            return None if link.flying else self._fly(link, broker, [suspect])
        due = link.due(self.limits.latency)
        if due is None or due > now:
            return None
        link.left_at = now
        request = self._fly(link, broker, link.portion(self.limits.request_bytes))
        link.hurried = link.hurried and not link.idle
        return request

    def next_due(self, broker: int) -> float | None:
        """When `take` may have something, if nothing else happens before; None when only an answer can help."""
        link = self._links[broker]
        if not self._admits(link):
            return None
        if (suspect := link.suspect) is not None:
            return None if link.flying else suspect.born
        return link.due(self.limits.latency)

    def _admits(self, link: BrokerQueue) -> bool:
        """A suspect shares its connection with nobody."""
        return len(link.flying) < self.limits.in_flight and not (link.flying and link.flying[-1].exclusive)

    def _fly(self, link: BrokerQueue, broker: int, batches: list[ProduceBatch]) -> ProduceRequest:
        for batch in batches:
            lane = batch.lane
            lane.queue.popleft()
            lane.flying += 1
            batch.queued, batch.flying = False, True
            batch.attempts += 1
            if lane.open is batch:
                lane.open = None
            self._file(lane)
        request = ProduceRequest(broker, batches, exclusive=any(batch.suspect for batch in batches))
        link.flying.append(request)
        return request

    # ---- what became of them -------------------------------------------------------------------------------

    def done(self, request: ProduceRequest) -> list[ProduceBatch]:
        """The request is over, for good: settle what is returned."""
        self._land(request)
        for batch in request.batches:
            self._regroup(batch.lane)
        return [batch for batch in request.batches if not batch.settled]

    def back(self, request: ProduceRequest, error: OdradekError, *, struck: bool = False) -> list[ProduceBatch]:
        """The request failed, and says itself whether it may have been applied: its batches go out again.

        Args:
            struck: It was exclusive, and the broker had just answered something else on its connection.

        Returns:
            Those that were struck too often: settle them.
        """
        self._land(request)
        condemned = []
        for batch in request.batches:
            batch.error = error
            batch.maybe |= error.sent
            batch.suspect |= error.sent and isinstance(error, ConnectionLost)
            batch.strikes += struck
            if batch.strikes >= STRIKES and not batch.settled:
                condemned.append(batch)
            else:
                batch.lane.returned.append(batch)
        for batch in request.batches:
            self._regroup(batch.lane)
        return condemned

    def undo(self, request: ProduceRequest) -> None:
        """The request was not sent after all: as if it had not been taken."""
        self._land(request)
        for batch in request.batches:
            batch.attempts -= 1
            batch.lane.returned.append(batch)
        for batch in request.batches:
            self._regroup(batch.lane)

    def split(self, request: ProduceRequest, batch: ProduceBatch) -> None:
        """Take a batch of several records out of a request; it goes out in two halves instead."""
        request.batches.remove(batch)
        batch.lane.flying -= 1
        middle = len(batch) // 2
        halves = [self._part(batch, batch.lane, rows) for rows in (range(middle), range(middle, len(batch)))]
        self.settle(batch)
        self._merge(batch.lane, halves)
        self._regroup(batch.lane)

    def settle(self, batch: ProduceBatch) -> None:
        """It is over, whatever came of it: gives its room back. In flight it stays until its request is over."""
        batch.settled = True
        del self.live[batch]
        self.held -= batch.held
        if batch.lane.open is batch:
            batch.lane.open = None
        if batch.queued:
            batch.lane.queue.remove(batch)
            self._file(batch.lane)
        if self._flushes:
            for flush in self._flushes:
                flush.left -= batch.number <= flush.last
            self._flushes = [flush for flush in self._flushes if flush.left]

    def expired(self, now: float) -> list[ProduceBatch]:
        """Live batches older than `deliver_within`."""
        return [batch for batch in self.live if batch.born + self.limits.deliver_within <= now]

    def next_expiry(self, now: float) -> float:
        """No batch expires before."""
        return min((batch.born for batch in self.live), default=now) + self.limits.deliver_within

    def flush(self) -> FlushWaiter:
        """Close what is open, so that it is due; the result tells when all of it is over."""
        for batch in self.live:
            if batch.lane.open is batch:
                self._close(batch.lane)
        flush = FlushWaiter(self._numbers, len(self.live))
        if flush.left:
            self._flushes.append(flush)
        return flush

    def _land(self, request: ProduceRequest) -> None:
        self._links[request.broker].flying.remove(request)
        for batch in request.batches:
            batch.flying = False
            batch.lane.flying -= 1

    def _regroup(self, lane: PartitionQueue) -> None:
        """Batches that came back queue again, once nothing of their partition is in flight that may come back too."""
        if lane.flying and not self.limits.reorder:
            self._file(lane)
            return
        if lane.returned:
            returned, lane.returned = lane.returned, []
            self._merge(lane, [batch for batch in returned if not batch.settled])
        if lane.astray and not lane.flying:
            self._scatter(lane)

    def _merge(self, lane: PartitionQueue, batches: list[ProduceBatch]) -> None:
        """Queue batches by age. The open batch is closed: it must not go on growing before a newer one."""
        if batches:
            for batch in batches:
                batch.queued = True
            lane.queue = deque(sorted([*batches, *lane.queue], key=_by_age))
            lane.open = None
        self._work_for(lane)

    def _part(self, whole: ProduceBatch, lane: PartitionQueue, rows: Sequence[int]) -> ProduceBatch:
        """Some rows of a batch, in their order, as a batch of its age and history. Settle the whole afterwards."""
        part = ProduceBatch(lane, whole.number, whole.born, whole.pinned)
        owners = whole.owners()
        part.maybe, part.attempts, part.error = whole.maybe, whole.attempts, whole.error
        if rows[-1] - rows[0] + 1 == len(rows):
            part.add(whole.records, rows[0], rows[-1] + 1)
        else:
            part.records = [whole.records[row] for row in rows]
        for row, owner in enumerate([owners[row] for row in rows]):
            if owner is not None:
                part.tag(row, row + 1, owner)
        part.size = sum(map(self._size_of, part.records))
        self.live[part] = None
        self.held += part.held
        for flush in self._flushes:
            flush.left += part.number <= flush.last
        return part

    # ---- routing -------------------------------------------------------------------------------------------

    def topic(self, name: str, compression: str) -> TopicQueues:
        """A new topic. Its records wait until it is `learned`."""
        topic = self.topics[name] = TopicQueues(name, compression)
        return topic

    def learned(self, topic: TopicQueues) -> None:
        """The table says about this topic what there is to say; before, it could only guess."""
        topic.known, topic.why = True, "no live broker has it"
        self._route(topic)

    def route(self, table: RoutingTable) -> None:
        """From now on this table is true."""
        self.table = table
        for topic in self.topics.values():
            if topic.known:
                self._route(topic)

    def _route(self, topic: TopicQueues) -> None:
        topic.choices = [self._lane(topic, partition) for partition in self.table.partitions(topic.name)]
        choices = set(topic.choices)
        for lane in (topic.limbo, *topic.lanes.values()):
            self._aim(lane)
            lane.astray = lane not in choices
            if lane.astray and lane.open is not None and not lane.open.pinned:
                lane.open = None  # nothing more belongs here
            if lane.astray and not lane.flying:
                self._scatter(lane)

    def _aim(self, lane: PartitionQueue) -> None:
        """Point a lane at the broker that serves it now."""
        known = lane.partition is not None and lane.topic.known
        leader = self.table.leader(lane.partition) if known and lane.partition else None
        broker = None if leader is None else leader.id
        if broker != lane.broker:
            lane.broker, lane.filed = broker, None
            self._work_for(lane)

    def _scatter(self, lane: PartitionQueue) -> None:
        """Move what is not pinned to partitions that can be chosen; it stays while there are none."""
        topic = lane.topic
        astray = [batch for batch in lane.queue if not batch.pinned]
        if not topic.choices or not astray:
            return
        # One home for all records without preference: what was in one partition stays in order.
        home = topic.choices[self._randrange(len(topic.choices))]
        moved: dict[PartitionQueue, list[ProduceBatch]] = {}
        for batch in astray:
            for target, rows in self._destinations(batch, home).items():
                moved.setdefault(target, []).append(self._part(batch, target, rows))
            self.settle(batch)
        for target, parts in moved.items():
            self._merge(target, parts)

    def _destinations(self, batch: ProduceBatch, home: PartitionQueue) -> dict[PartitionQueue, list[int]]:
        rows: dict[PartitionQueue, list[int]] = {}
        for row, record in enumerate(batch.records):
            key = record.key if isinstance(record, ProducerRecord) else None
            rows.setdefault(self._preferred(home.topic, key) or home, []).append(row)
        return rows

    def _size_of(self, record: bytes | ProducerRecord) -> int:
        return self._measure(record) if isinstance(record, ProducerRecord) else self.entry_bytes + len(record)
