"""Records of a mirror in its topic on the target: which partitions are copied where, how far, and an index.

The topic is compacted, and has a partition for each task. Keys are texts, values JSON:

    mirror                          partition 0     the clusters
    topic TOPIC                     partition 0     where its partitions go
    progress                        of a task       how far each of its partitions is, with each transaction
    began                           of a task       a process takes the task
    finished                        of each task    nothing is copied any more
    index TOPIC PARTITION POSITION  of a task       where the records of a transaction are on the target
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from odradek.core.interfaces import Extent
from odradek.errors import OdradekError
from odradek.types import TopicPartition

__all__ = [
    "BY_KEY",
    "CopiedTopic",
    "CopyProgress",
    "CopyRule",
    "CopyTarget",
    "Finished",
    "IndexEntry",
    "MirrorIdentity",
    "Progress",
    "Run",
    "SourcePosition",
    "StoredState",
    "StoredStateError",
    "TaskBegan",
    "stored_records",
]

FORMAT = 1

BY_KEY = "key"
"""`CopyRule.by` of records that their keys divide."""

V = TypeVar("V")


class StoredStateError(OdradekError):
    """A record in the topic of a mirror is not what a mirror writes: another program wrote there, or a newer release.

    Args:
        topic: The topic of the mirror.
        key: The key of the record.
        why: What is wrong with it.
    """

    def __init__(self, topic: str, key: str, why: str) -> None:
        super().__init__(topic, key, why)
        self.topic, self.key, self.why = topic, key, why

    def message(self) -> str:
        return f"{self.topic}: the record {self.key!r} cannot be read: {self.why}"


class SourcePosition(NamedTuple):
    """A place between two records of a source partition.

    Args:
        position: See `odradek.Position`.
        inner: How many messages of a compressed message of 0.7 that starts there come before the place.
        topic_id: Id of the topic, where brokers have ids: in a topic that was made again the place is none.
    """

    position: int
    inner: int = 0
    topic_id: str | None = None

    def is_in(self, log: Extent) -> bool:
        """Return False if this is no place in a log as it is now: its topic was made again, or it was cut before."""
        return (not log.topic_id or self.topic_id in (None, log.topic_id)) and self.position <= log.latest


class Run(NamedTuple):
    """Records that are adjacent on the target and in order on the source; where positions are offsets (0.8 and later)
    they are adjacent on the source, too.

    Args:
        position, inner: Where the first is on the source; see `SourcePosition`.
        offset: Where it is on the target.
        records: How many there are.
    """

    position: int
    inner: int
    offset: int
    records: int


class CopyProgress(NamedTuple):
    """The progress of a partition.

    Args:
        next: What is copied next.
        target_next: The offset after the last record copied; None: there was none yet.
        records: How many records were copied.
    """

    next: SourcePosition
    target_next: int | None = None
    records: int = 0


class CopyTarget(NamedTuple):
    """The partition that records of a source partition go to.

    Args:
        partition: Number of the partition on the target. Where a rule divides records, that of those without a key.
        task: Number of the task that copies it.
    """

    partition: int
    task: int


class CopyRule(NamedTuple):
    """A rule that says to which partition of the target a record goes.

    Args:
        by: `BY_KEY`, or the function's name: `MODULE:FUNCTION`.
        key_field: The field of JSON values that becomes the key; None: records keep their keys.
        partitions: The number of partitions on the target.
    """

    by: str
    key_field: str | None
    partitions: int


@dataclass(frozen=True, slots=True)
class MirrorIdentity:
    """The clusters of a mirror.

    Args:
        source: Text that is the same whenever the source is the same cluster.
        target: Id of the target.
    """

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class CopiedTopic:
    """A topic of the source, and where its partitions go.

    Args:
        source: Its name on the source.
        target: Its name on the target.
        target_id: Id of the topic on the target, where brokers have ids (2.8 and later).
        partitions: Source partition -> where it goes.
        rule: The rule that divides records; None: each source partition has a partition on the target.
    """

    source: str
    target: str
    target_id: str | None
    partitions: Mapping[TopicPartition, CopyTarget]
    rule: CopyRule | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of all partitions of a task.

    Args:
        at: When it was written (ms since the epoch).
        partitions: By source partition.
    """

    at: int
    partitions: Mapping[TopicPartition, CopyProgress]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """Records of one partition that were committed together, and where they are on the target.

    Args:
        source: The partition on the source.
        runs: In order.
    """

    source: TopicPartition
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class TaskBegan:
    """A process takes a task. What it reads afterwards has to reach this record: see `odradek.mirror.task`.

    Args:
        at: When (ms since the epoch).
    """

    at: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The mirror has ended for good: see `odradek.mirror.run.finish`.

    Args:
        at: When (ms since the epoch).
    """

    at: int


Stored = MirrorIdentity | CopiedTopic | Progress | IndexEntry | TaskBegan | Finished


# ---- to records ----------------------------------------------------------------------------------------------


def stored_records(values: Iterable[Stored]) -> list[tuple[bytes, bytes]]:
    """Return keys and values of the records for the topic."""
    return [(_key(value).encode(), json.dumps(_fields(value), separators=(",", ":")).encode()) for value in values]


def _key(value: Stored) -> str:
    match value:
        case MirrorIdentity():
            return "mirror"
        case CopiedTopic():
            return f"topic {value.source}"
        case Progress():
            return "progress"
        case TaskBegan():
            return "began"
        case Finished():
            return "finished"
        case IndexEntry():
            first = value.runs[0]
            inner = f".{first.inner}" if first.inner else ""
            return f"index {value.source.topic} {value.source.name} {first.position}{inner}"


def _fields(value: Stored) -> dict[str, Any]:
    match value:
        case MirrorIdentity():
            return {"format": FORMAT, "source": value.source, "target": value.target}
        case CopiedTopic():
            rows = [[p.broker, p.partition, *to] for p, to in value.partitions.items()]
            rule = {} if value.rule is None else {"rule": value.rule}
            return {"source": value.source, "target": value.target, "id": value.target_id, "partitions": rows, **rule}
        case Progress():
            return {"at": value.at, "partitions": [_progress_row(p, at) for p, at in value.partitions.items()]}
        case TaskBegan() | Finished():
            return {"at": value.at}
        case IndexEntry():
            return {**_partition_fields(value.source), "runs": value.runs}


def _partition_fields(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "broker": partition.broker, "partition": partition.partition}


def _progress_row(partition: TopicPartition, progress: CopyProgress) -> list[Any]:
    return [*partition, *progress.next, progress.target_next, progress.records]


# ---- from records --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StoredState:
    """Everything that records of the topic say; later ones count. `add` takes them in the order of each partition.

    Args:
        topic: The topic of the mirror, for errors.
    """

    topic: str
    identity: MirrorIdentity | None = None
    topics: dict[str, CopiedTopic] = field(default_factory=dict)
    progress: dict[int, Progress] = field(default_factory=dict)  # by task
    index: dict[TopicPartition, dict[tuple[int, int], IndexEntry]] = field(default_factory=dict)  # by first position
    finished: Finished | None = None

    def progress_of(self, task: int) -> Mapping[TopicPartition, CopyProgress]:
        """Return the progress of the partitions of a task, as far as it has begun them."""
        stored = self.progress.get(task)
        return {} if stored is None else stored.partitions

    def add(self, task: int, key: bytes | None, value: bytes | None) -> None:
        """Take a record.

        Args:
            task: The partition that it is in.
            key, value: As they are in the log.

        Raises:
            StoredStateError: It is not what a mirror writes.
        """
        name = "" if key is None else key.decode("utf-8", "replace")
        try:
            self._add(task, name.partition(" ")[0], json.loads(value or b""))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoredStateError(self.topic, name, f"{type(error).__name__}: {error}") from error

    def _add(self, task: int, kind: str, fields: dict[str, Any]) -> None:
        match kind:
            case "mirror":
                if fields["format"] != FORMAT:
                    raise ValueError(f"its format is {fields['format']}, and this release reads {FORMAT}")
                self.identity = MirrorIdentity(_text(fields["source"]), _text(fields["target"]))
            case "topic":
                topic = _copied_topic(fields)
                self.topics[topic.source] = topic
            case "progress":
                self.progress[task] = _progress(fields)
            case "began":
                pass  # it counts only for the process that wrote it
            case "finished":
                self.finished = Finished(_number(fields["at"]))
            case "index":
                entry = _index_entry(fields)
                self.index.setdefault(entry.source, {})[entry.runs[0][:2]] = entry
            case _:
                raise ValueError("a mirror has no such key")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no number")
    return value


def _or_none(check: Callable[[Any], V], value: Any) -> V | None:
    return None if value is None else check(value)


def _partition(topic: Any, partition: Any, broker: Any) -> TopicPartition:
    return TopicPartition(_text(topic), _number(partition), _number(broker))


def _copied_topic(fields: dict[str, Any]) -> CopiedTopic:
    source = _text(fields["source"])
    partitions = {
        _partition(source, number, broker): CopyTarget(_number(to), _number(task))
        for broker, number, to, task in fields["partitions"]
    }
    rule = _or_none(_rule, fields.get("rule"))
    return CopiedTopic(source, _text(fields["target"]), _or_none(_text, fields["id"]), partitions, rule)


def _rule(fields: Any) -> CopyRule:
    by, key_field, partitions = fields
    return CopyRule(_text(by), _or_none(_text, key_field), _number(partitions))


def _progress(fields: dict[str, Any]) -> Progress:
    partitions = {
        _partition(topic, number, broker): CopyProgress(
            SourcePosition(_number(position), _number(inner), _or_none(_text, topic_id)),
            _or_none(_number, target_next),
            _number(records),
        )
        for topic, number, broker, position, inner, topic_id, target_next, records in fields["partitions"]
    }
    return Progress(_number(fields["at"]), partitions)


def _index_entry(fields: dict[str, Any]) -> IndexEntry:
    runs = tuple(Run(*map(_number, run)) for run in fields["runs"])
    if not runs:
        raise ValueError("it has no runs")
    return IndexEntry(_partition(fields["topic"], fields["partition"], fields["broker"]), runs)
