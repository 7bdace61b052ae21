"""What the accumulator moves about: batches, the lanes they queue in, the requests they fly in. Its rules are in
`core.accumulator`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from odradek.core.interfaces import ProducerRecord
from odradek.engine import PackedBytes
from odradek.errors import OdradekError
from odradek.types import TopicPartition

__all__ = [
    "PACKED_OVERHEAD_BYTES",
    "RECORD_OVERHEAD_BYTES",
    "AccumulatorLimits",
    "FlushWaiter",
    "PartitionQueue",
    "ProduceBatch",
    "ProduceRequest",
    "TopicQueues",
    "as_record",
]

RECORD_OVERHEAD_BYTES = 120
"""What a queued record takes in memory beyond its bytes on the wire: its tuple, its bytes object, a list slot.
Without it a buffer full of tiny records would take ten times what was asked for."""

PACKED_OVERHEAD_BYTES = 8
"""The same for a record in a `PackedBytes`: its offset."""


def as_record(record: bytes | ProducerRecord) -> ProducerRecord:
    """The record that a plain value stands for."""
    return ProducerRecord(record) if isinstance(record, bytes) else record


@dataclass(frozen=True, slots=True)
class AccumulatorLimits:
    """The numbers the accumulator decides by. Sizes in bytes, times in seconds."""

    buffer_bytes: int
    batch_bytes: int
    request_bytes: int
    in_flight: int
    latency: float
    deliver_within: float
    reorder: bool = False


class ProduceBatch:
    """Records of one partition that travel together: a list in which a record that is only a value is that value, or
    a `PackedBytes`, to which nothing is added.

    `number` is its age: parts of a batch that was divided share it. `tags` says whose the records are, for those
    whose sender asked: `[start, stop, tag]` runs in order. `pinned` batches stay with their partition. `maybe` is
    set once an attempt may have been applied, and `error` is how the last one failed. `settled` batches are over,
    wherever they still turn up.
    """

    __slots__ = (
        "attempts",
        "born",
        "error",
        "flying",
        "lane",
        "maybe",
        "number",
        "pinned",
        "queued",
        "records",
        "settled",
        "size",
        "strikes",
        "suspect",
        "tags",
    )

    def __init__(self, lane: PartitionQueue, number: int, born: float, pinned: bool) -> None:
        self.lane, self.number, self.born, self.pinned = lane, number, born, pinned
        self.records: Any = []  # list[bytes | Outgoing] | Packed
        self.tags: list[list[Any]] = []
        self.size = self.attempts = self.strikes = 0
        self.queued = self.flying = self.maybe = self.suspect = self.settled = False
        self.error: OdradekError | None = None

    def __len__(self) -> int:
        return len(self.records)

    @property
    def held(self) -> int:
        """Bytes of the buffer it takes."""
        return self.size + self.overhead * len(self.records)

    @property
    def overhead(self) -> int:
        """What each record takes beyond its bytes on the wire."""
        return RECORD_OVERHEAD_BYTES if isinstance(self.records, list) else PACKED_OVERHEAD_BYTES

    def add(self, records: Sequence[Any], start: int, stop: int) -> None:
        """Take in `records[start:stop]`. A `PackedBytes` only as the first and last thing."""
        if isinstance(records, PackedBytes):
            self.records = records[start:stop]
        else:
            self.records += records[start:stop]

    def as_records(self) -> list[ProducerRecord]:
        """Its records as they are shown to users."""
        return list(map(as_record, self.records))

    def tag(self, start: int, stop: int, tag: object) -> None:
        """These records, behind all tagged before, belong to `tag`."""
        last = self.tags[-1] if self.tags else None
        if last and last[2] is tag and last[1] == start:
            last[1] = stop
        else:
            self.tags.append([start, stop, tag])

    def owners(self) -> list[Any]:
        """The tag of every record, None for those without."""
        owners: list[Any] = [None] * len(self.records)
        for start, stop, tag in self.tags:
            owners[start:stop] = [tag] * (stop - start)
        return owners

    def __repr__(self) -> str:
        state = "settled" if self.settled else "open" if self.lane.open is self else "closed"
        return f"<{type(self).__name__} {self.lane.partition} {len(self)} records {self.size} bytes {state}>"


class PartitionQueue:
    """The batches of one partition, oldest first. `partition` None: the records of a topic without partitions.
    `filed`: where its first batch stands in the queues of its broker, if it may be sent."""

    __slots__ = ("astray", "broker", "filed", "flying", "open", "partition", "queue", "returned", "topic")

    def __init__(self, topic: TopicQueues, partition: TopicPartition | None) -> None:
        self.topic, self.partition = topic, partition
        self.broker: int | None = None
        self.astray = True
        self.queue: deque[ProduceBatch] = deque()
        self.open: ProduceBatch | None = None
        self.flying = 0
        self.returned: list[ProduceBatch] = []
        self.filed: tuple[int, int, int, ProduceBatch] | None = None


class TopicQueues:
    """One topic's lanes. `choices` are those that may be chosen now, in canonical order; while there are none, `why`.
    `unpublished`: it did not exist yet when it was learned."""

    __slots__ = ("choices", "compression", "known", "lanes", "limbo", "name", "sticky", "unpublished", "why")

    def __init__(self, name: str, compression: str) -> None:
        self.name, self.compression = name, compression
        self.known = self.unpublished = False
        self.why = "its partitions are not known"
        self.limbo = self.sticky = PartitionQueue(self, None)
        self.choices: list[PartitionQueue] = []
        self.lanes: dict[TopicPartition, PartitionQueue] = {}


@dataclass(slots=True, eq=False)
class ProduceRequest:
    """What goes to one broker in one exchange. `exclusive`: it is one suspect, and nothing else is in flight."""

    broker: int
    batches: list[ProduceBatch]
    exclusive: bool


@dataclass(slots=True, eq=False)
class FlushWaiter:
    """Everything accepted up to a moment; over when `left` is 0."""

    last: int
    left: int
