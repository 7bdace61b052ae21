"""Errors that end a mirror."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.errors import CommitOutcomeUnknown, Fenced, OdradekError
from odradek.types import TopicPartition

__all__ = [
    "LostRecords",
    "MirrorProcessFailed",
    "ProgressLost",
    "RecordRefused",
    "RuleFailed",
    "SourceChanged",
    "TargetChanged",
    "another_run",
    "is_fenced",
    "passes",
]

_COPY_AGAIN = "delete what was copied, and copy it again in a mirror of another name"


class LostRecords(OdradekError):
    """The source deleted records before they were copied.

    Args:
        ranges: Partitions with what is missing (`LostRange`).
    """

    hint = 'topics.lost = "continue" copies what there is'

    def __init__(self, ranges: Sequence[object]) -> None:
        super().__init__(ranges)
        self.ranges = ranges

    def message(self) -> str:
        return f"the source deleted records before they were copied: {'; '.join(map(str, self.ranges))}"


class SourceChanged(OdradekError):
    """A topic of the source was made again, or its log was cut: what was copied is not what it has now.

    Args:
        mirror: Name of the mirror.
        why: What reading it says.
    """

    hint = "copy the topic again to another topic, in a mirror of another name, or leave it out of this one"

    def __init__(self, mirror: str, why: OdradekError) -> None:
        super().__init__(mirror, why)
        self.mirror, self.why = mirror, why

    def message(self) -> str:
        return f"mirror {self.mirror}: the source does not have any more what was copied: {self.why.message()}"


class TargetChanged(OdradekError):
    """A topic of the target was deleted, or made again, or its log was cut: it lacks records that were copied to it.

    Args:
        mirror: Name of the mirror.
        why: What the target says.
    """

    hint = _COPY_AGAIN

    def __init__(self, mirror: str, why: str) -> None:
        super().__init__(mirror, why)
        self.mirror, self.why = mirror, why

    def message(self) -> str:
        return f"mirror {self.mirror}: the target does not have any more what was copied to it: {self.why}"


class ProgressLost(OdradekError):
    """The mirror's topic does not have what was committed there: it was made again, or its log was cut.

    Args:
        topic: The topic.
        partition: A source partition that was further.
        records: How many of its records had been copied.
    """

    hint = _COPY_AGAIN

    def __init__(self, topic: str, partition: TopicPartition, records: int) -> None:
        super().__init__(topic, partition, records)
        self.topic, self.partition, self.records = topic, partition, records

    def message(self) -> str:
        return f"{self.topic} does not say any more that {self.records} records of {self.partition} were copied"


class RecordRefused(OdradekError):
    """The target does not take a record. Records before it were copied, but for those of the same transaction.

    Args:
        partition: The source partition as text.
        position: Where the record is there.
        why: The error of the target.
        hint: What to do.
    """

    def __init__(self, partition: str, position: str, why: OdradekError, hint: str = "") -> None:
        super().__init__(partition, position, why, hint)
        self.partition, self.position, self.why, self.hint = partition, position, why, hint or why.hint

    def message(self) -> str:
        return f"the record of {self.partition} at {self.position}: the target does not take it: {self.why.message()}"


class RuleFailed(OdradekError):
    """The file's rule has no key, or no partition, for a record. Nothing of its transaction was copied, nor after it.

    Args:
        partition: The source partition as text.
        position: Where the record is there.
        why: What is wrong.
    """

    hint = "copy the topic by a rule that takes this record, such as a function, in a mirror of another name"

    def __init__(self, partition: str, position: str, why: str) -> None:
        super().__init__(partition, position, why)
        self.partition, self.position, self.why = partition, position, why

    def message(self) -> str:
        return f"the record of {self.partition} at {self.position}: no partition for it: {self.why}"


class MirrorProcessFailed(OdradekError):
    """A process of a mirror ended for a reason that only its standard error names: a defect, or an installation that
    does not work.

    Args:
        mirror: Name of the mirror.
        code: Its exit code.
    """

    def __init__(self, mirror: str, code: int) -> None:
        super().__init__(mirror, code)
        self.mirror, self.code = mirror, code

    def message(self) -> str:
        return f"mirror {self.mirror}: a process ended with the exit code {self.code}; its standard error says why"


def passes(error: OdradekError) -> bool:
    """Return True if the same is to be done again after an error: what counts is what was committed."""
    return error.retriable or isinstance(error, CommitOutcomeUnknown)


def is_fenced(error: OdradekError) -> bool:
    """Return True if another process has taken a transactional id; records that were not written for it say so, too."""
    return isinstance(error, Fenced) or isinstance(error.__cause__, Fenced)


def another_run(mirror: str, task: int | None = None) -> Fenced:
    """Return the error of a run from which another one has taken an id: that of a task, or of what decides."""
    what = f"mirror {mirror!r}" if task is None else f"task {task} of mirror {mirror!r}"
    fenced = Fenced(what, "another process began to run this mirror, and continues after what this one has committed")
    fenced.hint = "run a mirror in one place at a time"
    return fenced
