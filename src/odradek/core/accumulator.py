"""Records on their way out: batches per partition, and when a broker's next request is due.

Pure: the clock comes in as `now` (seconds, any origin), chance as `randrange`. The rules:

- A broker with nothing in flight is sent whatever there is, at once. While requests are in flight, batches grow until
  one is full or its first record is `latency` old; then a request takes the oldest batch of every partition of that
  broker (MULTIPRODUCE), up to `request_bytes`.
- Order per partition: batches leave in the order they were made. A batch that comes back waits until nothing of its
  partition is in flight, and goes out again before everything newer - unless `reorder`, which sends it at once.
- A batch that was on a connection the broker closed becomes a *suspect*: that is how a broker answers a produce it
  does not like (specification 3.1). Suspects go out alone until each has shown what it is.
- Records of a partition that lost its broker go to the topic's other partitions, keyed ones by the new list, before
  newer ones there; records sent to an explicit partition wait for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter

from odradek.core.batches import RECORD_OVERHEAD_BYTES, Flush, Lane, Limits, OutBatch, Request, Topic
from odradek.core.interfaces import Outgoing, RoutingTable
from odradek.core.partitioners import JavaHash, KeyHash, Partitioner
from odradek.errors import ConfigError, ConnectionLost, OdradekError
from odradek.types import TopicPartition

__all__ = ["STRIKES", "Accumulator"]

STRIKES = 2
"""So often a living broker closes the connection on a batch sent alone before it is given up: once may be chance."""

_by_age = attrgetter("number")


@dataclass(slots=True)
class _Link:
    """One broker as the accumulator sees it: the lanes that have something for it, and what it has not answered."""

    lanes: dict[Lane, None] = field(default_factory=dict)
    flying: list[Request] = field(default_factory=list)


class Accumulator:
    """See the module. Every method is synchronous; the caller does the waiting.

    Args:
        limits: See `Limits`.
        partitioner: Index or None (no preference) for a record.
        randrange: Chance, for records without preference.
        measure: Bytes of a record on the wire.
        table: Who serves what now.
        stir: Called with each broker whose `take` should be tried again.
    """

    def __init__(
        self,
        limits: Limits,
        partitioner: Partitioner,
        randrange: Callable[[int], int],
        measure: Callable[[Outgoing], int],
        table: RoutingTable,
        stir: Callable[[int], None],
    ) -> None:
        self.limits, self.table = limits, table
        self.topics: dict[str, Topic] = {}
        self.live: dict[OutBatch, None] = {}
        self.held = 0
        self._partitioner, self._randrange, self._measure, self._stir = partitioner, randrange, measure, stir
        self._links: dict[int, _Link] = {}
        self._flushes: list[Flush] = []
        self._numbers = 0

    # ---- records in ----------------------------------------------------------------------------------------

    def fits(self, size: int) -> bool:
        """Whether there is room now for a record of `size` bytes on the wire."""
        return self.held + size + RECORD_OVERHEAD_BYTES <= self.limits.buffer

    def append(
        self,
        topic: Topic,
        record: Outgoing,
        size: int,
        now: float,
        partition: TopicPartition | None = None,
        tag: object = None,
    ) -> None:
        """Take a record. Stirs its broker only when a batch begins or is full.

        Raises:
            ConfigError: The partitioner chose a partition that is not there; the record was not taken.
        """
        lane = self._choose(topic, record.key) if partition is None else self._lane(topic, partition)
        batch, limit = lane.open, self.limits.batch_bytes
        if batch is None or batch.size + size > limit or batch.pinned is (partition is None):
            batch = self._begin(lane, now, partition is not None)
        batch.records.append(record)
        batch.size += size
        self.held += size + RECORD_OVERHEAD_BYTES
        if tag is not None:
            batch.tag(len(batch.records) - 1, tag)
        if batch.size >= limit:
            lane.open = None
            self._work_for(lane)

    def extend(
        self,
        topic: Topic,
        records: Sequence[Outgoing],
        sizes: Sequence[int],
        now: float,
        partition: TopicPartition | None,
        tag: object,
    ) -> int:
        """Take as many of these records without keys as there is room for, in runs; returns how many.

        None at all when the partitioner wants to see each.
        """
        if partition is None and not isinstance(self._partitioner, KeyHash | JavaHash):
            return 0
        ends = list(accumulate(sizes))
        room = self.limits.buffer - self.held
        allowed = bisect_right(range(len(ends)), room, key=lambda row: ends[row] + RECORD_OVERHEAD_BYTES * (row + 1))
        done = 0
        while done < allowed:
            lane = self._choose(topic, None) if partition is None else self._lane(topic, partition)
            done = self._fill(lane, records, ends, done, allowed, now, partition is not None, tag)
        return done

    def _fill(
        self,
        lane: Lane,
        records: Sequence[Outgoing],
        ends: Sequence[int],
        start: int,
        stop: int,
        now: float,
        pinned: bool,
        tag: object,
    ) -> int:
        """Put records from `start` on into the open batch, and close it if it is full. Returns where to go on."""
        batch, limit = lane.open, self.limits.batch_bytes
        if batch is None or batch.pinned is not pinned:
            batch = self._begin(lane, now, pinned)
        before = ends[start - 1] if start else 0
        fitting = bisect_right(ends, before + limit - batch.size, start, stop)
        if fitting == start and not batch.records:
            fitting += 1  # larger than a batch: it travels alone
        if fitting > start:
            first = len(batch.records)
            batch.records += records[start:fitting]
            batch.size += ends[fitting - 1] - before
            self.held += ends[fitting - 1] - before + RECORD_OVERHEAD_BYTES * (fitting - start)
            batch.tag(first, tag)
        if fitting < stop or batch.size >= limit:
            lane.open = None
            self._work_for(lane)
        return fitting

    def _choose(self, topic: Topic, key: bytes | None) -> Lane:
        if not topic.choices:
            return topic.limbo
        lane = self._preferred(topic, key)
        if lane is None:
            lane = topic.sticky
            if lane.open is None:
                lane = topic.sticky = topic.choices[self._randrange(len(topic.choices))]
        return lane

    def _preferred(self, topic: Topic, key: bytes | None) -> Lane | None:
        count = len(topic.choices)
        index = self._partitioner(topic.name, key, count)
        if index is None:
            return None
        if not 0 <= index < count:
            raise ConfigError(f"the partitioner chose {index} of {count} partitions of {topic.name}")
        return topic.choices[index]

    def _lane(self, topic: Topic, partition: TopicPartition) -> Lane:
        lane = topic.lanes.get(partition)
        if lane is None:
            lane = topic.lanes[partition] = Lane(topic, partition)
            self._aim(lane)
        return lane

    def _begin(self, lane: Lane, now: float, pinned: bool) -> OutBatch:
        self._numbers += 1
        batch = lane.open = OutBatch(lane, self._numbers, now, pinned)
        self.live[batch] = None
        batch.queued = True
        lane.queue.append(batch)
        self._work_for(lane)
        return batch

    def _work_for(self, lane: Lane) -> None:
        if lane.broker is not None and lane.queue:
            self._links.setdefault(lane.broker, _Link()).lanes[lane] = None
            self._stir(lane.broker)

    # ---- requests out --------------------------------------------------------------------------------------

    def take(self, broker: int, now: float) -> Request | None:
        """The next request for a broker, if one is due; its batches are in flight from now on."""
        link = self._links.get(broker)
        if link is None or not self._admits(link):
            return None
        heads = self._heads(link)
        suspects = [batch for batch in heads if batch.suspect]
        if suspects:
            return None if link.flying else self._fly(link, broker, [min(suspects, key=_by_age)])
        if not heads or (link.flying and not any(self._due(batch) <= now for batch in heads)):
            return None
        return self._fly(link, broker, self._portion(heads))

    def next_due(self, broker: int) -> float | None:
        """When `take` may have something, if nothing else happens before; None when only an answer can help."""
        link = self._links.get(broker)
        if link is None or not self._admits(link):
            return None
        heads = self._heads(link)
        if not heads or any(batch.suspect for batch in heads):
            return None
        return min(map(self._due, heads))

    def _admits(self, link: _Link) -> bool:
        """A suspect shares its connection with nobody."""
        return len(link.flying) < self.limits.in_flight and not (link.flying and link.flying[-1].exclusive)

    def _heads(self, link: _Link) -> list[OutBatch]:
        for lane in [lane for lane in link.lanes if not lane.queue]:
            del link.lanes[lane]
        return [lane.queue[0] for lane in link.lanes if self.limits.reorder or not lane.returned]

    def _due(self, batch: OutBatch) -> float:
        return batch.born + self.limits.latency if batch.lane.open is batch else batch.born

    def _portion(self, heads: Iterable[OutBatch]) -> list[OutBatch]:
        portion: list[OutBatch] = []
        room = self.limits.request_bytes
        for batch in sorted(heads, key=_by_age):
            if not portion or batch.size <= room:
                portion.append(batch)
                room -= batch.size
        return portion

    def _fly(self, link: _Link, broker: int, batches: list[OutBatch]) -> Request:
        for batch in batches:
            lane = batch.lane
            lane.queue.popleft()
            lane.flying += 1
            batch.queued, batch.flying = False, True
            batch.attempts += 1
            if lane.open is batch:
                lane.open = None
        request = Request(broker, batches, exclusive=any(batch.suspect for batch in batches))
        link.flying.append(request)
        return request

    # ---- what became of them -------------------------------------------------------------------------------

    def done(self, request: Request) -> list[OutBatch]:
        """The request is over, for good: settle what is returned."""
        self._land(request)
        for batch in request.batches:
            self._regroup(batch.lane)
        return [batch for batch in request.batches if not batch.settled]

    def back(self, request: Request, error: OdradekError, *, struck: bool = False) -> list[OutBatch]:
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

    def undo(self, request: Request) -> None:
        """The request was not sent after all: as if it had not been taken."""
        self._land(request)
        for batch in request.batches:
            batch.attempts -= 1
            batch.lane.returned.append(batch)
        for batch in request.batches:
            self._regroup(batch.lane)

    def split(self, request: Request, batch: OutBatch) -> None:
        """Take a batch of several records out of a request; it goes out in two halves instead."""
        request.batches.remove(batch)
        batch.lane.flying -= 1
        middle = len(batch) // 2
        halves = [self._part(batch, batch.lane, rows) for rows in (range(middle), range(middle, len(batch)))]
        self.settle(batch)
        self._merge(batch.lane, halves)

    def settle(self, batch: OutBatch) -> None:
        """It is over, whatever came of it: gives its room back. In flight it stays until its request is over."""
        batch.settled = True
        del self.live[batch]
        self.held -= batch.held
        if batch.lane.open is batch:
            batch.lane.open = None
        if batch.queued:
            batch.lane.queue.remove(batch)
        for flush in self._flushes:
            flush.left -= batch.number <= flush.last
        self._flushes = [flush for flush in self._flushes if flush.left]

    def expired(self, now: float) -> list[OutBatch]:
        """Live batches older than `deliver_within`."""
        return [batch for batch in self.live if batch.born + self.limits.deliver_within <= now]

    def next_expiry(self, now: float) -> float:
        """No batch expires before."""
        return min((batch.born for batch in self.live), default=now) + self.limits.deliver_within

    def flush(self) -> Flush:
        """Close what is open, so that it is due; the result tells when all of it is over."""
        for batch in self.live:
            if batch.lane.open is batch:
                batch.lane.open = None
        flush = Flush(self._numbers, len(self.live))
        if flush.left:
            self._flushes.append(flush)
        return flush

    def _land(self, request: Request) -> None:
        self._links[request.broker].flying.remove(request)
        for batch in request.batches:
            batch.flying = False
            batch.lane.flying -= 1

    def _regroup(self, lane: Lane) -> None:
        """Batches that came back queue again, once nothing of their partition is in flight that may come back too."""
        if lane.flying and not self.limits.reorder:
            return
        returned, lane.returned = lane.returned, []
        self._merge(lane, [batch for batch in returned if not batch.settled])
        if lane.astray and not lane.flying:
            self._scatter(lane)

    def _merge(self, lane: Lane, batches: list[OutBatch]) -> None:
        """Queue batches by age. The open batch is closed: it must not go on growing before a newer one."""
        if batches:
            for batch in batches:
                batch.queued = True
            lane.queue = deque(sorted([*batches, *lane.queue], key=_by_age))
            lane.open = None
            self._work_for(lane)

    def _part(self, whole: OutBatch, lane: Lane, rows: Iterable[int]) -> OutBatch:
        """Some rows of a batch as a batch of its age and history. Settle the whole afterwards."""
        part = OutBatch(lane, whole.number, whole.born, whole.pinned)
        owners = whole.owners()
        part.maybe, part.attempts, part.error = whole.maybe, whole.attempts, whole.error
        for row in rows:
            part.records.append(whole.records[row])
            if owners[row] is not None:
                part.tag(len(part) - 1, owners[row])
        part.size = sum(map(self._measure, part.records))
        self.live[part] = None
        self.held += part.held
        for flush in self._flushes:
            flush.left += part.number <= flush.last
        return part

    # ---- routing -------------------------------------------------------------------------------------------

    def topic(self, name: str, codec: str) -> Topic:
        """A new topic. Its records wait until it is `learned`."""
        topic = self.topics[name] = Topic(name, codec)
        return topic

    def learned(self, topic: Topic) -> None:
        """The table says about this topic what there is to say; before, it could only guess."""
        topic.known, topic.why = True, "no live broker has it"
        self._route(topic)

    def route(self, table: RoutingTable) -> None:
        """From now on this table is true."""
        self.table = table
        for topic in self.topics.values():
            if topic.known:
                self._route(topic)

    def _route(self, topic: Topic) -> None:
        topic.choices = [self._lane(topic, partition) for partition in self.table.partitions(topic.name)]
        choices = set(topic.choices)
        for lane in (topic.limbo, *topic.lanes.values()):
            self._aim(lane)
            lane.astray = lane not in choices
            if lane.astray and lane.open is not None and not lane.open.pinned:
                lane.open = None  # nothing more belongs here
            if lane.astray and not lane.flying:
                self._scatter(lane)

    def _aim(self, lane: Lane) -> None:
        """Point a lane at the broker that serves it now."""
        known = lane.partition is not None and lane.topic.known
        leader = self.table.leader(lane.partition) if known and lane.partition else None
        broker = None if leader is None else leader.id
        if broker != lane.broker:
            if lane.broker in self._links:
                self._links[lane.broker].lanes.pop(lane, None)
            lane.broker = broker
            self._work_for(lane)

    def _scatter(self, lane: Lane) -> None:
        """Move what is not pinned to partitions that can be chosen; it stays while there are none."""
        topic = lane.topic
        astray = [batch for batch in lane.queue if not batch.pinned]
        if not topic.choices or not astray:
            return
        # One home for all records without preference: what was in one partition stays in order.
        home = topic.choices[self._randrange(len(topic.choices))]
        moved: dict[Lane, list[OutBatch]] = {}
        for batch in astray:
            for target, rows in self._destinations(batch, home).items():
                moved.setdefault(target, []).append(self._part(batch, target, rows))
            self.settle(batch)
        for target, parts in moved.items():
            self._merge(target, parts)

    def _destinations(self, batch: OutBatch, home: Lane) -> dict[Lane, list[int]]:
        rows: dict[Lane, list[int]] = {}
        for row, record in enumerate(batch.records):
            rows.setdefault(self._preferred(home.topic, record.key) or home, []).append(row)
        return rows
