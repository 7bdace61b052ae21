"""Reports of the sink: from each task to the driver, and from the driver to logs and report files."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from odradek.client.producer.results import Acks, Failed
from odradek.errors import DeliveryError, OdradekError, OutcomeUnknown, Rejected
from odradek.types import MiB, TopicPartition

__all__ = ["Attempt", "Report", "TaskCommit", "WriteCounts", "WriteError", "report"]

log = logging.getLogger("odradek.spark.sink")

REASONS = 3
"""Maximum number of different failure reasons in a report."""

TAIL_BYTES = 1 * MiB
"""Bytes read from the end of a report file: only the last batch of a query can be written again."""


class Attempt(NamedTuple):
    """The identity of one run of one task.

    Args:
        partition: Spark's number of the task's part of the rows.
        number: The attempt, from 0. (Python is not told that Spark runs all tasks of a stage again, as it does
            when an executor is lost with its shuffle files.)
        query: Id of the streaming query; "" in a batch query.
        run: Id of its run, which changes when the query is restarted.
        batch: Batch id of the streaming query; -1 in a batch query.
    """

    partition: int
    number: int
    query: str = ""
    run: str = ""
    batch: int = -1

    @property
    def retried(self) -> bool:
        """An earlier one may have written some of the same rows."""
        return self.number > 0

    def __str__(self) -> str:
        batch = f"query {self.query} batch {self.batch} " if self.query else ""
        return f"{batch}partition {self.partition} attempt {self.number}"


@dataclass(slots=True)
class WriteCounts:
    """Counts of what was written to one partition of a topic.

    Args:
        rows: Number of rows.
        repeated: Number of rows that may be duplicates, because the producer had to send them again.
        first: Position of their first batch, if the cluster reports it (0.7 does not).
        last: Position of their last batch, likewise.
    """

    rows: int = 0
    repeated: int = 0
    first: int | None = None
    last: int | None = None

    def add(self, other: WriteCounts) -> None:
        self.rows += other.rows
        self.repeated += other.repeated
        self.first = min((at for at in (self.first, other.first) if at is not None), default=None)
        self.last = max((at for at in (self.last, other.last) if at is not None), default=None)

    def as_json(self) -> dict[str, int]:
        positions = {} if self.first is None or self.last is None else {"first": self.first, "last": self.last}
        return {"rows": self.rows, "repeated": self.repeated, **positions}


@dataclass
class TaskCommit(WriterCommitMessage):
    """A task's commit message.

    Args:
        attempt: Whose.
        bytes: Of values, uncompressed.
        places: By partition.
    """

    attempt: Attempt
    bytes: int = 0
    partitions: dict[TopicPartition, WriteCounts] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(counts.rows for counts in self.partitions.values())

    def add(self, acks: Acks) -> None:
        """Count what was written."""
        for ack in acks.acks:
            counts = WriteCounts(ack.records, ack.records * ack.repeated, ack.position, ack.position)
            self.partitions.setdefault(ack.partition, WriteCounts()).add(counts)


class WriteError(OdradekError):
    """A task could not write all of its rows.

    Args:
        attempt: Which one, in words.
        written: Rows that were.
        rejected: Rows that will never be.
        not_written: Rows that surely were not.
        unknown: Rows that may have been.
        reasons: The first different ones.
    """

    hint = "what was written stays, and another attempt of the task writes all of its rows again"

    def __init__(
        self, attempt: str, written: int, rejected: int, not_written: int, unknown: int, reasons: Sequence[str]
    ) -> None:
        super().__init__(attempt, written, rejected, not_written, unknown, tuple(reasons))
        self.attempt, self.written, self.reasons = attempt, written, tuple(reasons)
        self.rejected, self.not_written, self.unknown = rejected, not_written, unknown

    @classmethod
    def of(cls, written: TaskCommit, failed: Sequence[Failed]) -> WriteError:
        """Make the error for a task whose last rows failed."""
        kinds = Counter(type(one.error) for one in failed)
        reasons = dict.fromkeys(f"{one.partition or one.topic}: {_why(one.error)}" for one in failed)
        rejected, unknown = kinds[Rejected], kinds[OutcomeUnknown]
        surely_not = len(failed) - rejected - unknown
        return cls(str(written.attempt), written.rows, rejected, surely_not, unknown, list(reasons)[:REASONS])

    def message(self) -> str:
        failed = {"rejected": self.rejected, "not written": self.not_written, "in an unknown state": self.unknown}
        counts = ", ".join(f"{count} {state}" for state, count in failed.items() if count)
        return f"{self.attempt}: {self.written} rows written, {counts}: {'; '.join(self.reasons)}"


def _why(error: OdradekError) -> str:
    return error.why if isinstance(error, DeliveryError) else str(error)


# ---- on the driver -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """All of a commit, or of what an aborted one leaves behind.

    Args:
        outcome: `committed` or `aborted`.
        tasks: What those tasks say that ended well.
        lost: So many others did not.
        replayed: An earlier line of the report file is about the same batch of the same query.
    """

    outcome: str
    tasks: tuple[TaskCommit, ...]
    lost: int
    replayed: bool = False

    def as_json(self) -> dict[str, Any]:
        """A line of the report file."""
        partitions: dict[TopicPartition, WriteCounts] = {}
        for task in self.tasks:
            for partition, counts in task.partitions.items():
                partitions.setdefault(partition, WriteCounts()).add(counts)
        by_topic: dict[str, dict[str, dict[str, int]]] = {}
        for partition, counts in sorted(partitions.items()):
            by_topic.setdefault(partition.topic, {})[partition.name] = counts.as_json()
        return {
            "outcome": self.outcome,
            **self.batch(),
            "tasks": len(self.tasks),
            "lost": self.lost,
            "retried": sum(task.attempt.retried for task in self.tasks),
            "replayed": self.replayed,
            "rows": sum(task.rows for task in self.tasks),
            "bytes": sum(task.bytes for task in self.tasks),
            "topics": by_topic,
        }

    def batch(self) -> dict[str, Any]:
        """The fields that identify the streaming query, if there is one."""
        streaming = [task.attempt for task in self.tasks if task.attempt.query]
        return {"query": streaming[0].query, "run": streaming[0].run, "batch": streaming[0].batch} if streaming else {}


def report(outcome: str, messages: Sequence[WriterCommitMessage | None], path: str) -> Report:
    """Sum up what tasks say: one line in the log and, if there is a path, one in that file.

    Args:
        outcome: `committed` or `aborted`.
        messages: One of each task; None of one that failed.
        path: Of the report file.
    """
    tasks = tuple(message for message in messages if isinstance(message, TaskCommit))
    report = Report(outcome, tasks, len(messages) - len(tasks))
    if path:
        report = Report(outcome, tasks, report.lost, _reported(Path(path), report.batch()))
        _append(Path(path), report.as_json())
    _speak(report)
    return report


def _reported(path: Path, batch: Mapping[str, Any]) -> bool:
    """Is there a line about this batch?"""
    if not batch or not path.exists():
        return False
    wanted = (batch["query"], batch["batch"])
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        for line in file:
            with suppress(ValueError):  # not the whole line: its begin is not there, or the driver died in it
                entry = json.loads(line)
                if (entry.get("query"), entry.get("batch")) == wanted:
                    return True
    return False


def _append(path: Path, line: Mapping[str, Any]) -> None:
    """On a line of its own, even behind one that was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        cut_off = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * cut_off + json.dumps(line).encode("ascii") + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _speak(report: Report) -> None:
    _be_heard()
    said = report.as_json()
    of = f"query {said['query']} batch {said['batch']}: " if "query" in said else ""
    partitions = sum(len(partitions) for partitions in said["topics"].values())
    text = f"{of}{report.outcome} {said['rows']} rows, {said['bytes']} bytes, {partitions} partitions of topics"
    notes = {
        f"{said['retried']} tasks were tried again": said["retried"],
        "the batch was written before": report.replayed,
        f"{report.lost} tasks failed, and what they wrote stays": report.lost,
    }
    odd = [note for note, true in notes.items() if true]
    if not odd:
        log.info("%s", text)
    else:
        log.warning("%s; rows may be duplicates: %s", text, ", ".join(odd))


def _be_heard() -> None:
    """The process in which Spark commits is Spark's, and nobody sets up logging there: what it writes to its standard
    error is what the driver shows."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
