"""The ledger of a flow: one file per batch; it alone decides which data files are part of the table.

    <root>/_odradek/ledger/00000000000000000042.json

A batch is committed at the moment its ledger file appears under its name: the file is written under another name,
forced to disk, and then linked, which fails if the name exists. So if two drivers commit the same batch, one wins, and
a batch that is run again after a crash finds its own commit.

Every entry carries the SHA-256 of the one before it: reading detects an edited or missing file.

Readers ignore data files that no entry lists, such as those of a killed run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from odradek.pipeline.errors import LedgerConflict, LedgerCorrupted

__all__ = ["DataFile", "Ledger", "LedgerEntry", "LedgerGap"]

GENESIS = "0" * 64
"""The hash before the first entry."""

Offsets = Mapping[str, Mapping[str, int]]
"""Topic -> partition's name (`broker-partition` in 0.7) -> position."""

Fields = Mapping[str, Any]
"""Decoded column -> its type, as `evolution.type_name` writes it."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the table.

    Args:
        path: Relative to the table's root, with `/`.
        rows: Number of rows.
        size: Bytes of the file.
        partition: The table's partition values, by column.
        least, most: Smallest and largest record time in it, seconds since the epoch; None without times.
    """

    path: str
    rows: int
    size: int
    partition: Mapping[str, str] = field(default_factory=dict)
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class LedgerGap:
    """A range of one partition, from `start` up to `end`, that gave no rows, and the reason."""

    topic: str
    partition: str
    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The changes of one batch to the table.

    Args:
        flow: Name of the flow.
        batch: Its number; batches count up by one.
        kind: `append`; or `replace`, a compaction: `files` replace the `removed` files, with the same rows.
        start, end: The range that was read: from each position of `start` up to, and without, that of `end`.
        files: Files it added to the table.
        removed: Paths it removed from the table.
        rows: Rows in `files`.
        dead: Records that could not be decoded; they are in the dead letters.
        gaps: Ranges without rows: lost before they could be read, corrupt and left out, or empty.
        audit: Time bucket (seconds since the epoch, its start, as text) -> topic -> records.
        micro_batch: Its number in the checkpoint; -1 for a compaction. The numbers differ from those of the ledger
            after the first compaction.
        payload: Bytes of the payloads in `rows`.
        reasons: Why records are dead -> how many.
        dead_files: Files it added to the dead letters; relative to their directory.
        hours: Topic -> hour of the records' times (seconds since the epoch, its start, as text) -> `rows`, `bytes`.
        fields: Decoded columns of `files`; empty for a compaction.
        zone: Time zone of the dates and hours in `files`' directories.
        run: Identifies the run that wrote it.
        code: Version of odradek.
        written: When, seconds since the epoch.
        previous: SHA-256 of the entry before, in hexadecimal; zeros for the first.
        v: Version of this format.
    """

    flow: str
    batch: int
    start: Offsets
    end: Offsets
    files: tuple[DataFile, ...]
    kind: str = "append"
    removed: tuple[str, ...] = ()
    rows: int = 0
    dead: int = 0
    gaps: tuple[LedgerGap, ...] = ()
    audit: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    micro_batch: int = -1
    payload: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    dead_files: tuple[DataFile, ...] = ()
    hours: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    fields: Fields = field(default_factory=dict)
    zone: str = ""
    run: str = ""
    code: str = ""
    written: float = 0.0
    previous: str = GENESIS
    v: Literal[1] = 1

    def encode(self) -> bytes:
        """Return the canonical bytes: the same entry always gives the same bytes."""
        body = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return body.encode() + b"\n"

    @staticmethod
    def decode(data: bytes) -> LedgerEntry:
        """Decode an entry. Raises ValueError for anything that `encode` did not make."""
        try:
            entry = _adapter().validate_json(data, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"not a ledger entry: {where}: {first['msg']}") from None
        if entry.encode() != data:
            raise ValueError("not in the canonical form of a ledger entry")
        return entry

    @property
    def digest(self) -> str:
        """SHA-256 of its bytes, in hexadecimal: `previous` of the next entry."""
        return hashlib.sha256(self.encode()).hexdigest()

    def says_the_same(self, other: LedgerEntry) -> bool:
        """Return True if both entries were made from the same input, as when a batch is run again."""
        mine, others = (_without_author(entry) for entry in (self, other))
        return mine == others


@cache
def _adapter() -> TypeAdapter[LedgerEntry]:
    return TypeAdapter(LedgerEntry)


def _without_author(entry: LedgerEntry) -> dict[str, Any]:
    body = asdict(entry)
    for name in ("files", "dead_files", "run", "code", "written"):  # file names are new in every attempt
        del body[name]
    return body


class Ledger:
    """The entries of one flow, on a file system with hard links.

    One driver writes at a time; a second one is not prevented, but its commit raises LedgerConflict.

    Args:
        root: Directory of the table.
        flow: Name of the flow.
    """

    def __init__(self, root: str | os.PathLike[str], flow: str) -> None:
        self.root = Path(root)
        self.flow = flow
        self.directory = self.root / "_odradek" / "ledger"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.flow} in {self.directory}>"

    def path(self, batch: int) -> Path:
        """The file of an entry."""
        return self.directory / f"{batch:020d}.json"

    # ---- reading ---------------------------------------------------------------------------------------------

    def entries(self) -> list[LedgerEntry]:
        """Return every entry, oldest first, checked.

        Raises:
            LedgerCorrupted: A file is missing, changed, or of another flow; the message names it.
        """
        entries: list[LedgerEntry] = []
        previous = GENESIS
        for number, path in enumerate(self._paths()):
            entry = self._read(path)
            if path != self.path(number):
                raise LedgerCorrupted(str(path), f"the entry of batch {number} is missing before it")
            if entry.batch != number or entry.flow != self.flow:
                raise LedgerCorrupted(
                    str(path), f"it is batch {entry.batch} of flow {entry.flow!r}, not of {self.flow!r}"
                )
            if entry.previous != previous:
                raise LedgerCorrupted(
                    str(path), "the entry does not follow the one before it: one of the two was changed"
                )
            previous = entry.digest
            entries.append(entry)
        return entries

    def tail(self) -> LedgerEntry | None:
        """Return the newest entry, or None; only that one file is read."""
        paths = self._paths()
        return self._read(paths[-1]) if paths else None

    def files(self) -> list[DataFile]:
        """Return the current files of the table, in the order they were added."""
        return list(live_files(self.entries()).values())

    def dead_files(self) -> list[DataFile]:
        """Return the files of the dead letters, relative to their directory, in the order they were added."""
        return [file for entry in self.entries() for file in entry.dead_files]

    def reached(self) -> LedgerEntry | None:
        """Return the newest entry that is no compaction, or None: its `end` is the end of the table.

        Only that entry and newer ones are read.
        """
        newest = map(self._read, reversed(self._paths()))
        return next((entry for entry in newest if entry.kind == "append"), None)

    def written_by(self, run: str) -> list[LedgerEntry]:
        """Return the entries of this run without compactions, oldest first, if it is the newest run.

        Only those entries and one more are read.
        """
        newest = (entry for entry in map(self._read, reversed(self._paths())) if entry.kind == "append")
        return [*takewhile(lambda entry: entry.run == run, newest)][::-1]

    def _paths(self) -> list[Path]:
        if not self.directory.is_dir():
            return []
        return sorted(path for path in self.directory.iterdir() if path.suffix == ".json" and path.stem.isdigit())

    def _read(self, path: Path) -> LedgerEntry:
        try:
            return LedgerEntry.decode(path.read_bytes())
        except (OSError, ValueError) as error:
            raise LedgerCorrupted(str(path), str(error)) from error

    # ---- writing ---------------------------------------------------------------------------------------------

    def commit(self, entry: LedgerEntry) -> LedgerEntry:
        """Make a batch part of the table: the entry appears whole, or not at all, and survives a loss of power.

        Returns:
            The entry in the ledger: an earlier one if the batch was already committed from the same input. Then that
            entry's data files are part of the table, and the caller's are not.

        Raises:
            LedgerConflict: This batch was committed before from other input, or the entry does not follow the newest
                one: another driver writes this table, or the checkpoint belongs to another table.
            LedgerCorrupted: The newest entry cannot be read.
        """
        tail = self.tail()
        if tail is not None and entry.batch <= tail.batch:
            return self._again(entry)
        if entry.batch != (tail.batch + 1 if tail else 0) or entry.previous != (tail.digest if tail else GENESIS):
            newest = f"batch {tail.batch}" if tail else "empty"
            raise LedgerConflict(self.flow, entry.batch, f"the entry does not follow the newest one ({newest})")
        if not self._put(self.path(entry.batch), entry.encode()):
            return self._again(entry)
        return entry

    def _again(self, entry: LedgerEntry) -> LedgerEntry:
        existing = self._read(self.path(entry.batch))
        if not existing.says_the_same(entry):
            raise LedgerConflict(
                self.flow, entry.batch, f"it was committed by {existing.run or 'another run'} with other content"
            )
        return existing

    def _put(self, path: Path, data: bytes) -> bool:
        """Write a file if it does not exist. Return False if it does."""
        self.directory.mkdir(parents=True, exist_ok=True)
        scratch = self.directory / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}"
        try:
            with scratch.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(scratch, path)
            except FileExistsError:
                return False
        finally:
            scratch.unlink(missing_ok=True)
        _sync_directory(self.directory)
        return True


def live_files(entries: Sequence[LedgerEntry]) -> dict[str, DataFile]:
    """Return the files that are in the table after these entries, by path.

    Raises:
        LedgerCorrupted: An entry removes a file that is not in the table, or adds one that is.
    """
    files: dict[str, DataFile] = {}
    for entry in entries:
        for path in entry.removed:
            if files.pop(path, None) is None:
                raise LedgerCorrupted(f"batch {entry.batch}", f"it removes {path}, which is not in the table")
        for file in entry.files:
            if file.path in files:
                raise LedgerCorrupted(f"batch {entry.batch}", f"it adds {file.path}, which is in the table already")
            files[file.path] = file
    return files


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_ranges(entries: Sequence[LedgerEntry]) -> Iterator[LedgerGap]:
    """Find gaps between consecutive batches: every `append` must start where the one before it ended, or record it."""
    reached: dict[tuple[str, str], int] = {}
    for entry in entries:
        if entry.kind != "append":
            continue
        known = {(gap.topic, gap.partition, gap.start, gap.end) for gap in entry.gaps}
        for topic, partitions in entry.start.items():
            for name, start in partitions.items():
                before = reached.get((topic, name), start)
                if start != before and (topic, name, before, start) not in known:
                    yield LedgerGap(
                        topic, name, before, start, f"batch {entry.batch} does not start where the last one ended"
                    )
        for topic, partitions in entry.end.items():
            reached.update(((topic, name), end) for name, end in partitions.items())
