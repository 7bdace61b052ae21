"""Repair of lost checkpoints, and removal of files that killed runs left.

A checkpoint is rebuilt from the ledger: the newest entry that is no compaction has the number of its micro-batch and
its end, and Spark continues with the next one. Spark needs the offsets of two consecutive batches.

Orphans are data files that no entry lists: of runs, and compactions, that were killed before their commit.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from odradek.pipeline.checkpoint import Checkpoint, checkpoint_dir
from odradek.pipeline.config import Pipeline
from odradek.pipeline.delta import DeltaLog
from odradek.pipeline.errors import CheckpointMismatch
from odradek.pipeline.ledger import LedgerEntry
from odradek.pipeline.lock import table_lock
from odradek.pipeline.tables import CommittedTable, open_table

__all__ = ["RepairPlan", "plan_repair", "repair"]


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The repair of one flow.

    Args:
        flow: Name of the flow.
        checkpoint: Directory of the checkpoint.
        why: What is wrong with the checkpoint; "" if nothing is, or if the ledger is empty.
        entry: The entry to rebuild it from; None if it is not rebuilt.
        orphans: Files to remove.
        size: Bytes of those files.
    """

    flow: str
    checkpoint: Path
    why: str
    entry: LedgerEntry | None
    orphans: tuple[Path, ...]
    size: int

    @property
    def needed(self) -> bool:
        return bool(self.entry or self.orphans)


def plan_repair(pipeline: Pipeline, name: str) -> RepairPlan:
    """Return what `repair` would do; change nothing. Raises LedgerCorrupted, OSError."""
    table = open_table(name, pipeline.flows[name])
    reached = next((entry for entry in reversed(table.entries) if entry.kind == "append"), None)
    directory = checkpoint_dir(pipeline.run.checkpoint, name)
    why = _wrong(Checkpoint(directory), reached) if reached else ""
    orphans = tuple(sorted(_orphans(table, _directories(pipeline))))
    size = sum(path.stat().st_size for path in orphans)
    return RepairPlan(name, directory, why, reached if why else None, orphans, size)


def repair(pipeline: Pipeline, name: str) -> RepairPlan:
    """Repair a flow; return what was done. A wrong checkpoint is kept beside the new one, under another name.

    Raises:
        TableLocked: Another process is writing this table.
        LedgerCorrupted, OSError: As for `plan_repair`.
    """
    with table_lock(pipeline.flows[name].sink.path):
        plan = plan_repair(pipeline, name)
        if plan.entry is not None:
            _rebuild(plan.checkpoint, plan.entry)
        for path in plan.orphans:
            path.unlink(missing_ok=True)
    return plan


# ---- the checkpoint ------------------------------------------------------------------------------------------


def _wrong(checkpoint: Checkpoint, reached: LedgerEntry) -> str:
    """Return why a checkpoint does not match the newest entry read from logs; "" if it does.

    Batches that read nothing have no entry, so offsets are compared, not numbers.
    """
    planned, done = checkpoint.planned, checkpoint.done
    if planned is None:
        return "there is no checkpoint"
    if done not in (planned, planned - 1):
        return f"it has planned micro-batch {planned} and done {done}"
    try:
        ends = [checkpoint.offsets(number) for number in (planned, planned - 1) if number >= 0]
    except CheckpointMismatch as error:
        return error.message()
    if reached.end not in (ends if done != planned else ends[:1]):
        return f"micro-batch {planned} does not end where batch {reached.batch} of the ledger ends"
    return ""


def _rebuild(directory: Path, entry: LedgerEntry) -> None:
    """Write the checkpoint under another name, move the old one aside, and rename the new one."""
    scratch = directory.with_name(f".{directory.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    made = Checkpoint(scratch)
    for number, offsets in ((entry.micro_batch - 1, entry.start), (entry.micro_batch, entry.end)):
        if number >= 0:
            made.begin(number, offsets, entry.written)
    if directory.exists():
        directory.rename(directory.with_name(f"{directory.name}.wrong-{time.time_ns()}"))
    scratch.rename(directory)


# ---- orphans -------------------------------------------------------------------------------------------------


def _directories(pipeline: Pipeline) -> set[Path]:
    """Return every directory that a flow writes to."""
    return {
        Path(path).resolve()
        for flow in pipeline.flows.values()
        for path in (flow.sink.path, *([flow.dead.path] if flow.dead else []))
    }


def _orphans(table: CommittedTable, directories: Collection[Path]) -> Iterator[Path]:
    """Yield data files of the table and its dead letters that no entry has ever listed.

    Files that a compaction has replaced are not orphans, nor are files in the directories of other flows or of tables
    inside this one, nor files that the Delta table lists.
    """
    listed = {file.path for entry in table.entries for file in entry.files}
    if table.flow.sink.kind == "delta":
        listed |= DeltaLog(table.root, table.name, table.flow.sink.partition_by).files().keys()
    letters = {file.path for entry in table.entries for file in entry.dead_files}
    for root, known in ((table.root, listed), (table.dead_root, letters)):
        if root is not None and root.is_dir():
            others = {directory for directory in directories if directory != root.resolve()}
            yield from (path for path in _files(root, others) if path.relative_to(root).as_posix() not in known)


def _files(directory: Path, others: Collection[Path]) -> Iterator[Path]:
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            if path.name != "_odradek" and path.resolve() not in others and not (path / "_odradek").exists():
                yield from _files(path, others)
        elif path.suffix == ".parquet":
            yield path
