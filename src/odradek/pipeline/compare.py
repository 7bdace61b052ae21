"""Comparison of the rows of a table with the messages of the log, slice by slice."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import anyio.to_thread
import pyarrow as pa

from odradek.pipeline.ledger import LedgerEntry
from odradek.pipeline.logs import LogReader
from odradek.pipeline.row_checksums import IDENTITY, OUTSIDE, RowChecksums
from odradek.pipeline.tables import CommittedTable, batch_gaps, batch_ranges, read_rows, without
from odradek.spark.planning import Extent, Range
from odradek.types import Columns, MiB, TopicPartition

__all__ = ["ComparisonCounts", "Finding", "LogComparison", "joined"]

SLICE_BYTES, SLICE_RECORDS = 8 * MiB, 1 << 16
"""Approximate size of the log slices that are read again where something differs: bytes, or records where positions
count these."""

MAX_DETAILED = 20
"""Maximum number of differing slices that are read again; further ones are only counted."""

MAX_EXAMPLES = 5
"""Maximum number of rows that a finding names."""

Advance = Callable[[int], None]
Row = tuple[int, int, int]
"""Offset, index, and the payload's hash where it counts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    Args:
        kind: `ledger`; `file`, `unreadable`; `log`: not the log that the table was made from; `missing`, `extra` and
            `different` rows; `skipped`: corrupt messages that were left out where the ledger has no gap; `dead`: their
            number is not that of the ledger.
        where: Batch, file, or slice of a log, as text.
        what: The description.
        rows: Number of affected rows, where it is known.
    """

    kind: str
    where: str
    what: str
    rows: int | None = None


@dataclass(slots=True)
class ComparisonCounts:
    """The counts of a comparison.

    Args:
        ranges: Ranges of logs that were read again.
        size: Bytes of log in them.
        rows: Rows in the table.
        dead: Rows in the dead letters.
        skipped: Corrupt messages of the log that are in neither.
        expired: Bytes of log that retention has deleted since, and that cannot be compared any more.
    """

    ranges: int = 0
    size: int = 0
    rows: int = 0
    dead: int = 0
    skipped: int = 0
    expired: int = 0


class LogSlice(NamedTuple):
    """A slice of one log; `batch` is -1 if it is not compared, and -2 if no batch has read it."""

    partition: TopicPartition
    start: int
    end: int
    batch: int

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


UNCOMPARED, UNREAD = -1, -2
FOREVER = 1 << 63


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return the ranges in canonical order, with adjacent ones merged."""
    merged: list[Range] = []
    for part in sorted(ranges):
        if merged and merged[-1].partition == part.partition and part.start <= merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(merged[-1].end, part.end))
        else:
            merged.append(part)
    return merged


class LogComparison:
    """A comparison of the log with some batches of a table. Used once.

    Args:
        table: The table.
        chosen: The entries of those batches.
        unreadable: Files to leave out.
        advance: Called with the number of log bytes that were read.
        by_records: True if positions count records (0.8 and later).
    """

    def __init__(
        self,
        table: CommittedTable,
        chosen: Sequence[LedgerEntry],
        unreadable: Collection[str],
        advance: Advance,
        *,
        by_records: bool = False,
    ) -> None:
        self._slice_size = SLICE_RECORDS if by_records else SLICE_BYTES
        self.counts = ComparisonCounts()
        self.findings: list[Finding] = []
        self._table, self._chosen, self._advance = table, chosen, advance
        self._payload = table.keeps_payload
        self._gaps = _spans((entry.batch, gap) for entry in chosen for gap in batch_gaps(entry))
        self._columns = [*IDENTITY, *(["value"] if self._payload else [])]
        files = table.files_of({entry.batch for entry in chosen})
        self._files = [file for file in files if file.path not in unreadable]
        self._dead_files = [file for entry in chosen for file in entry.dead_files if file.path not in unreadable]
        self.partitions = {part.partition for entry in chosen for part in batch_ranges(entry)}

    async def run(self, logs: LogReader) -> None:
        """Compare. Raises OdradekError when the log cannot be read, OSError when a file cannot."""
        compared = self._clip_to_logs(await logs.extents())
        ranges = joined(part for _, part in compared)
        self.counts.ranges, self.counts.size = len(ranges), sum(part.size for part in ranges)
        starts = self._starts(compared)
        checksums = ChecksumSet(starts, self._payload, self._slice_size)
        await logs.read(ranges, lambda partition, columns: self._take(checksums, partition, columns))
        await anyio.to_thread.run_sync(self._add_files, checksums)
        await self._compare_slices(_slices(starts, compared, self._known()), checksums, logs)

    # ---- what is compared ----

    def _clip_to_logs(self, extents: Mapping[TopicPartition, Extent]) -> list[tuple[int, Range]]:
        """Return the parts of the ranges that the log still has.

        A missing beginning is retention; a missing end is a finding.
        """
        compared: list[tuple[int, Range]] = []
        short: dict[TopicPartition, str] = {}
        for entry in self._chosen:
            gaps = batch_gaps(entry)
            for part in batch_ranges(entry):
                extent = extents.get(part.partition)
                if extent is None:
                    short[part.partition] = "no live broker, and no directory, has this log"
                    continue
                start, end = max(part.start, extent.earliest), min(part.end, extent.latest)
                before = part._replace(end=min(start, part.end))
                self.counts.expired += sum(left.size for left in without(before, gaps))
                if without(part._replace(start=max(extent.latest, part.start)), gaps):
                    short[part.partition] = f"it ends at {extent.latest}, and the table has read up to {part.end}"
                if start < end:
                    compared.append((entry.batch, part._replace(start=start, end=end)))
        self.findings += (Finding("log", str(partition), what) for partition, what in short.items())
        return compared

    def _known(self) -> list[Range]:
        """Return the ranges that any batch has read."""
        return joined(part for entry in self._table.appends for part in batch_ranges(entry))

    def _starts(self, compared: Iterable[tuple[int, Range]]) -> dict[TopicPartition, list[int]]:
        """Return the starts of slices that are known before the log is read; reading adds more, at messages."""
        cuts: dict[TopicPartition, set[int]] = {}
        gaps = (Range(partition, *span[:2]) for partition, spans in self._gaps.items() for span in spans)
        for part in (*self._known(), *(part for _, part in compared), *gaps):
            cuts.setdefault(part.partition, set()).update((part.start, part.end))
        return {partition: sorted(positions) for partition, positions in cuts.items()}

    # ---- the two sides ----

    def _take(self, checksums: ChecksumSet, partition: TopicPartition, columns: Columns) -> None:
        checksums.cut(partition, columns)
        good, broken = _parted(columns)
        checksums.good.add_columns(partition, good)
        checksums.corrupt.add_columns(partition, broken)
        self._advance(columns.next_positions[-1] - columns.positions[0])

    def _add_files(self, checksums: ChecksumSet) -> None:
        for rows in self._rows(None):
            checksums.table.add_rows(rows)
        for rows in self._dead_rows(None):
            checksums.dead.add_rows(rows)

    def _rows(self, ranges: Sequence[Range] | None) -> Iterator[pa.Table]:
        return read_rows(self._table.root, self._files, self._columns, ranges=ranges)

    def _dead_rows(self, ranges: Sequence[Range] | None) -> Iterator[pa.Table]:
        root = self._table.dead_root
        return iter(()) if root is None else read_rows(root, self._dead_files, self._columns, ranges=ranges)

    # ---- the comparison ----

    async def _compare_slices(self, slices: Iterable[LogSlice], checksums: ChecksumSet, logs: LogReader) -> None:
        dead: Counter[int] = Counter()
        differing: list[LogSlice] = []
        for log_slice in slices:
            good, broken, rows, letters = (each.of(log_slice.partition, log_slice.start) for each in checksums)
            if log_slice.batch >= 0:
                self.counts.rows += rows.rows
                dead[log_slice.batch] += letters.rows
                if rows + letters == good:
                    self._leave_out(log_slice, broken.rows)
                elif rows + letters != good + broken:
                    differing.append(log_slice)
            elif log_slice.batch == UNREAD and (count := rows.rows + letters.rows):
                self.findings.append(Finding("extra", str(log_slice), f"{count} rows that no batch has read", count))
        self.findings += _outside(checksums)
        for log_slice in differing[:MAX_DETAILED]:
            self._leave_out(log_slice, await self._compare_rows(log_slice, logs))
        if (more := len(differing) - MAX_DETAILED) > 0:
            self.findings.append(Finding("different", f"{more} more slices of the log", "they differ as well"))
        self.counts.dead = dead.total()
        if not (differing or self.counts.expired):
            self._compare_counts(dead)

    def _leave_out(self, log_slice: LogSlice, count: int) -> None:
        """Count corrupt messages that are neither in the table nor among the dead letters.

        Slices begin and end with gaps, so a slice is inside a gap or outside of all.
        """
        self.counts.skipped += count
        if count and _owner(self._gaps.get(log_slice.partition, ()), log_slice.start) != log_slice.batch:
            what = f"{count} corrupt messages are neither in the table nor dead letters, and the ledger has no gap here"
            self.findings.append(Finding("skipped", str(log_slice), what, count))

    def _compare_counts(self, dead: Counter[int]) -> None:
        for entry in self._chosen:
            if dead[entry.batch] != entry.dead:
                what = f"{dead[entry.batch]} dead letters; the ledger says {entry.dead}"
                self.findings.append(Finding("dead", f"batch {entry.batch}", what, abs(dead[entry.batch] - entry.dead)))

    async def _compare_rows(self, log_slice: LogSlice, logs: LogReader) -> int:
        """Compare a slice row by row; return how many corrupt messages were left out."""
        part = Range(log_slice.partition, log_slice.start, log_slice.end)
        good: Counter[Row] = Counter()
        broken: Counter[Row] = Counter()

        def take(_: TopicPartition, columns: Columns) -> None:
            for rows, mine in zip(_parted(columns), (good, broken), strict=True):
                mine.update(_of_columns(rows, self._payload))

        await logs.read([part], take)
        has: Counter[Row] = Counter()
        for source in (self._rows([part]), self._dead_rows([part])):
            for rows in source:
                has.update(_of_rows(rows, self._payload))
        self.findings += _differences(str(log_slice), f"batch {log_slice.batch}", good, broken, has)
        return (broken - has).total()


class ChecksumSet:
    """Four sets of checksums by the same slices: the log's good and corrupt messages, the table, the dead letters."""

    def __init__(self, starts: dict[TopicPartition, list[int]], payload: bool, slice_size: int) -> None:
        self._starts, self._slice_size = starts, slice_size
        self.good, self.corrupt, self.table, self.dead = self._all = tuple(
            RowChecksums(starts, payload=payload) for _ in range(4)
        )

    def __iter__(self) -> Iterator[RowChecksums]:
        return iter(self._all)

    def cut(self, partition: TopicPartition, columns: Columns) -> None:
        """Begin a new slice at a message where the current one is long enough; call it in the order of the log."""
        starts, positions = self._starts[partition], columns.positions
        at = 0
        while True:
            begun = starts[bisect_right(starts, positions[at]) - 1]
            at = bisect_left(positions, begun + self._slice_size, at)
            if at == len(positions):
                return
            if starts[bisect_right(starts, positions[at]) - 1] == begun:
                insort(starts, positions[at])


def _slices(
    starts: Mapping[TopicPartition, Sequence[int]], compared: Iterable[tuple[int, Range]], known: Iterable[Range]
) -> Iterator[LogSlice]:
    """Yield every slice, with its batch."""
    ours, claimed = _spans(compared), _spans((UNCOMPARED, part) for part in known)
    for partition, mine in starts.items():
        spans, others = ours.get(partition, ()), claimed.get(partition, ())
        for start, end in pairwise([*mine, FOREVER]):
            batch = _owner(spans, start)
            yield LogSlice(partition, start, end, batch if batch != UNREAD else _owner(others, start))


def _spans(parts: Iterable[tuple[int, Range]]) -> dict[TopicPartition, list[tuple[int, int, int]]]:
    """Return start, end and owner of each range, in order, by partition."""
    spans: dict[TopicPartition, list[tuple[int, int, int]]] = {}
    for owner, part in sorted(parts, key=lambda each: each[1]):
        spans.setdefault(part.partition, []).append((part.start, part.end, owner))
    return spans


def _owner(spans: Sequence[tuple[int, int, int]], position: int) -> int:
    """Return the owner of the span that a position is in."""
    at = bisect_right(spans, (position, FOREVER, 0)) - 1
    return spans[at][2] if at >= 0 and position < spans[at][1] else UNREAD


def _outside(checksums: ChecksumSet) -> Iterator[Finding]:
    """Yield findings for rows before every range that was read, and of logs that were not read."""
    counts: Counter[TopicPartition] = Counter()
    for side in (checksums.table, checksums.dead):
        counts.update({partition: of.rows for (partition, start), of in side.sums.items() if start == OUTSIDE})
    for partition, count in counts.items():
        yield Finding("extra", str(partition), f"{count} rows that no batch has read", count)


# ---- rows by themselves --------------------------------------------------------------------------------------


def _parted(columns: Columns) -> tuple[Columns, Columns]:
    """Return the good messages, and those that cannot be decoded."""
    if not columns.corrupt:
        return columns, Columns([], [], [])
    rows = range(len(columns.values))
    return (
        _picked(columns, [row for row in rows if row not in columns.corrupt]),
        _picked(columns, sorted(columns.corrupt)),
    )


def _picked(columns: Columns, rows: Sequence[int]) -> Columns:
    values, positions, nexts, inner = columns[:4]
    return Columns(
        [values[row] for row in rows],
        [positions[row] for row in rows],
        [nexts[row] for row in rows],
        None if inner is None else [inner[row] for row in rows],
    )


def _of_columns(columns: Columns, payload: bool) -> Iterator[Row]:
    inner = columns.inner_indexes or repeat(0, len(columns.values))
    hashes = map(hash, columns.values) if payload else repeat(0)
    return zip(columns.positions, inner, hashes, strict=False)


def _of_rows(rows: pa.Table, payload: bool) -> Iterator[Row]:
    hashes = map(hash, rows["value"].to_pylist()) if payload else repeat(0)
    offsets: list[Any] = rows["offset"].to_pylist()
    indexes: list[Any] = rows["index"].to_pylist()
    return zip(offsets, indexes, hashes, strict=False)


def _differences(
    where: str, batch: str, good: Counter[Row], broken: Counter[Row], has: Counter[Row]
) -> Iterator[Finding]:
    missing, extra = good - has, has - good - broken
    twice = Counter({row: count for row, count in extra.items() if row in good or row in broken})
    changed = {row[:2] for row in missing} & {row[:2] for row in extra - twice}
    groups = (
        ("missing", "of the log are not in the table", [row for row in missing.elements() if row[:2] not in changed]),
        ("extra", "are in the table more than once", list(twice.elements())),
        ("extra", "are not in the log", [row for row in (extra - twice).elements() if row[:2] not in changed]),
        ("different", "have another payload than in the log", sorted(changed)),
    )
    for kind, what, rows in groups:
        if rows:
            named = ", ".join(f"{row[0]}:{row[1]}" for row in sorted(rows)[:MAX_EXAMPLES])
            more = ", ..." if len(rows) > MAX_EXAMPLES else ""
            text = f"{len(rows)} rows of {batch} {what}: at {named}{more} (position:index)"
            yield Finding(kind, where, text, len(rows))
