"""Commits of batches to the table of a flow, and recovery after a killed run.

    1. rows are written to files that no reader sees yet          Stager, in Spark's tasks
    2. the ranges read are compared with the planned ones; dead records are checked against their limit
    3. Delta only: a commit to the table's log, with the entry in it
    4. the ledger's entry

A run that is killed before step 4 (step 3 for Delta) has changed nothing for readers, and the next run repeats the
batch; a run that is killed later finds the batch done. Between 3 and 4 the entry is in Delta's log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from odradek._version import __version__
from odradek.pipeline.checkpoint import Checkpoint, MicroBatch
from odradek.pipeline.config import Flow
from odradek.pipeline.delta import DeltaLog
from odradek.pipeline.errors import CheckpointMismatch, FileNotVisible, InexactRead, LedgerConflict, TooManyDeadLetters
from odradek.pipeline.ledger import GENESIS, DataFile, Fields, Ledger, LedgerEntry, LedgerGap, Offsets
from odradek.pipeline.staging import CoveredRange, TaskOutput, file_prefix, is_ours

__all__ = ["EMPTY_WRAPPER", "Stage", "TableWriter", "gaps_of", "log_bytes"]

EMPTY_WRAPPER = 64
"""Maximum bytes of a log of 0.7 without a row that are accepted under every loss policy: an empty compressed message
has none. `verify` reads them again."""

Stage = Callable[[str], TaskOutput]
"""A function that writes the rows of a batch to files whose names begin with its argument."""


class TableWriter:
    """The writer of one flow's table and dead letters.

    Args:
        name: Name of the flow.
        flow: Its settings.
        max_error_percent: Maximum share of dead records in a batch (percent).
        max_gap: Maximum length of a part of a log that gave no row and is accepted nevertheless.
    """

    def __init__(self, name: str, flow: Flow, max_error_percent: float = 0.0, *, max_gap: int = EMPTY_WRAPPER) -> None:
        self.name, self.flow = name, flow
        self.root = Path(flow.sink.path)
        self.dead_root = Path(flow.dead.path) if flow.dead else None
        self.ledger = Ledger(self.root, name)
        self.fields: Fields = {}
        """Decoded columns and their types; part of each entry."""
        self._most_dead, self._max_gap = max_error_percent, max_gap
        self._delta = DeltaLog(self.root, name, flow.sink.partition_by) if flow.sink.kind == "delta" else None

    # ---- before a run ----------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Finish the commit that a killed run left undone, and remove files it did not commit.

        Needs the table's lock.
        """
        if self._delta is not None:
            self._delta.finish(self.ledger)
        entries = self.ledger.entries()
        known = {(self.root / file.path).resolve() for entry in entries for file in entry.files}
        if self.dead_root is not None:  # which may be in the table's directory, or the other way round
            known |= {(self.dead_root / file.path).resolve() for entry in entries for file in entry.dead_files}
        for root in filter(None, (self.root, self.dead_root)):
            for path in root.rglob(f"odradek-{self.name}-*.parquet"):
                if is_ours(self.name, path.name) and path.resolve() not in known:
                    path.unlink()

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise CheckpointMismatch unless the checkpoint continues where the ledger ends."""
        reached, done, planned = self.ledger.reached(), checkpoint.done, checkpoint.planned
        directory = str(checkpoint.directory)
        if reached is None:
            if planned is not None and planned > 1:
                raise CheckpointMismatch(directory, f"it is at batch {planned}, but the ledger of {self.root} is empty")
            return
        if planned is None:
            raise CheckpointMismatch(directory, f"it is missing or new; the ledger is at batch {reached.batch}")
        if reached.end not in [checkpoint.offsets(number) for number in {done, planned} if number is not None]:
            raise CheckpointMismatch(
                directory, f"its batch {planned} does not end where batch {reached.batch} of the ledger ended"
            )

    # ---- a batch ---------------------------------------------------------------------------------------------

    def commit(self, batch: MicroBatch, stage: Stage, run: str) -> LedgerEntry | None:
        """Make a batch part of the table.

        Args:
            batch: The range that Spark planned.
            stage: Writes its rows to files.
            run: Identifies the run.

        Returns:
            The new entry; None if the batch was committed before or is empty.

        Raises:
            LedgerConflict: The batch does not follow the newest entry.
            InexactRead: The ranges read are not those of the batch.
            FileNotVisible: A task wrote a file that this machine does not see.
            TooManyDeadLetters: The share of dead records is above the limit.
        """
        reached = self.ledger.reached()
        if batch.start == batch.end or (reached is not None and (reached.start, reached.end) == batch[1:3]):
            return None
        self._check_follows(batch, reached)
        tail = self.ledger.tail()
        number = tail.batch + 1 if tail else 0
        prefix = file_prefix(self.name, number, os.urandom(4).hex())
        try:
            output = stage(prefix)
            self._check_files_visible(output)
            gaps = self._check_result(batch, output)
        except BaseException:
            self._remove_attempt(prefix)
            raise
        entry = self._entry(batch, output, gaps)
        entry = replace(entry, batch=number, previous=tail.digest if tail else GENESIS, run=run)
        if self._delta is not None:
            self._delta.commit(entry)
        return self.ledger.commit(entry)

    def _check_follows(self, batch: MicroBatch, reached: LedgerEntry | None) -> None:
        for topic, partitions in (reached.end if reached else {}).items():
            for name, end in partitions.items():
                start = batch.start.get(topic, {}).get(name)
                if start != end:
                    raise LedgerConflict(
                        self.name, batch.number, f"it reads {topic}/{name} from {start}, but the table ends at {end}"
                    )

    def _check_files_visible(self, output: TaskOutput) -> None:
        """Raise FileNotVisible unless all files are here: tasks may have run on other machines."""
        for root, files in ((self.root, output.files), (self.dead_root, output.dead_files)):
            for file in files:
                path = Path(root or "", file.path)
                if not path.is_file() or path.stat().st_size != file.size:
                    raise FileNotVisible(self.name, str(path))

    def _check_result(self, batch: MicroBatch, output: TaskOutput) -> list[LedgerGap]:
        gaps = gaps_of(self.name, batch, output.runs, self._reason())
        if self.flow.data_loss == "fail" and self.flow.corrupt != "skip":
            for gap in gaps:
                if not 0 < gap.end - gap.start <= self._max_gap:
                    where = f"{gap.topic}/{gap.partition} between {gap.start} and {gap.end}"
                    raise InexactRead(self.name, f"nothing was read from {where}")
        total = output.rows + output.dead
        if total and 100 * output.dead > self._most_dead * total:
            raise TooManyDeadLetters(self.name, output.dead, output.rows, self._most_dead, "; ".join(output.examples))
        return gaps

    def _reason(self) -> str:
        may = [
            *(["the log no longer had it"] if self.flow.data_loss == "skip" else []),
            *(["corrupt messages were left out"] if self.flow.corrupt == "skip" else []),
        ]
        return ", or ".join(may) or "an empty compressed message"

    def _remove_attempt(self, prefix: str) -> None:
        """Remove the files of an attempt."""
        for root in filter(None, (self.root, self.dead_root)):
            for path in root.rglob(f"{prefix}*.parquet"):
                path.unlink()

    def _entry(self, batch: MicroBatch, output: TaskOutput, gaps: Sequence[LedgerGap]) -> LedgerEntry:
        audit: dict[str, dict[str, int]] = {}
        for (bucket, topic), rows in output.audit.items():
            audit.setdefault(str(bucket), {})[topic] = rows
        hours: dict[str, dict[str, dict[str, int]]] = {}
        for (topic, hour, what), amount in output.hours.items():
            hours.setdefault(topic, {}).setdefault(str(hour), {"rows": 0, "bytes": 0})[what] = amount
        return LedgerEntry(
            flow=self.name, batch=0, start=batch.start, end=batch.end, files=_in_order(output.files),
            rows=output.rows, dead=output.dead, gaps=tuple(gaps), audit=audit, micro_batch=batch.number,
            payload=output.payload, reasons=dict(output.reasons), dead_files=_in_order(output.dead_files),
            hours=hours, fields=self.fields if output.files else {}, zone=self.flow.sink.zone, code=__version__,
            written=time.time(),
        )  # fmt: skip


def _in_order(files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    return tuple(sorted(files, key=lambda file: file.path))


def log_bytes(start: Offsets, end: Offsets) -> int:
    """Return the bytes of log between two offsets; of 0.8 and later, the number of offsets."""
    return sum(max(0, last - first) for _, _, first, last in _ranges(start, end))


def _ranges(start: Offsets, end: Offsets) -> Iterable[tuple[str, str, int, int]]:
    """Yield the range of each partition. A partition that is not in `start` is not read yet."""
    for topic, partitions in end.items():
        for name, last in partitions.items():
            first = start.get(topic, {}).get(name, last)
            if first != last:
                yield topic, name, first, last


def gaps_of(flow: str, batch: MicroBatch, runs: Iterable[CoveredRange], reason: str) -> list[LedgerGap]:
    """Return the parts of a batch's ranges that no task read.

    Raises:
        InexactRead: A task read something outside the batch, or something was read twice.
    """
    read: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for run in runs:
        read.setdefault((run.topic, run.partition), []).append((run.start, run.end))
    gaps: list[LedgerGap] = []
    for topic, name, first, last in _ranges(batch.start, batch.end):
        gaps += _holes(flow, LedgerGap(topic, name, first, last, reason), sorted(read.pop((topic, name), [])))
    if read:
        raise InexactRead(flow, f"a task read {'/'.join(next(iter(read)))}, which is not in this batch")
    return gaps


def _holes(flow: str, part: LedgerGap, runs: Sequence[tuple[int, int]]) -> Iterable[LedgerGap]:
    where = f"{part.topic}/{part.partition}"
    reached = part.start
    if part.start > part.end:  # the log was recreated
        yield part
        reached = runs[0][0] if runs else part.end
    for start, end in runs:
        if start < reached:
            raise InexactRead(flow, f"{where}: positions {start}-{reached} were read twice")
        if start > reached:
            yield replace(part, start=reached, end=start)
        reached = end
    if reached > part.end:
        raise InexactRead(flow, f"{where}: rows came from {part.end} up to {reached}, beyond the end of the batch")
    if reached < part.end:
        yield replace(part, start=reached)
