"""Records of both sides of a mirror, compared: which belong together, their hashes, and how two of them differ. Pure.

A chunk is what some transactions of the mirror copied. Its records have the same hash on both sides, however batches
divide them: each column is hashed by itself, and no object is made for a record.
"""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b, sha256
from itertools import chain
from typing import NamedTuple

from odradek.batch import Batch
from odradek.engine.packed import HeaderColumns, PackedBytes
from odradek.mirror.stored import IndexEntry, Run
from odradek.types import NO_TIMESTAMP, Columns, Headers, Record, TimestampType, TopicPartition

__all__ = [
    "Chunk",
    "ChunkHash",
    "MessagePosition",
    "RecordSums",
    "chunks_of",
    "differing",
    "kind_of_difference",
    "offset_on_target",
    "remaining",
    "rows_before",
    "split_by_runs",
    "without_origin",
]

ORIGIN = ("odradek.cluster", "odradek.topic", "odradek.partition", "odradek.position")
"""The headers that `topics.origin_headers` adds after those of the record."""

_NO_TIMESTAMP = b"\xff" * 8


class MessagePosition(NamedTuple):
    """The position of a message of the source; see `stored.SourcePosition`."""

    position: int
    inner: int = 0


# ---- chunks --------------------------------------------------------------------------------------------------


class Chunk(NamedTuple):
    """Records that are compared at a time.

    Args:
        start, end: Where it starts and ends on the source.
        offset, until: Where it starts and ends on the target.
        runs: Where its records are, by target offset.
    """

    start: MessagePosition
    end: MessagePosition
    offset: int
    until: int
    runs: tuple[Run, ...]

    @property
    def records(self) -> int:
        """Number of records that the mirror copied."""
        return sum(run.records for run in self.runs)


def chunks_of(entries: Sequence[IndexEntry], start: MessagePosition, end: MessagePosition, records: int) -> list[Chunk]:
    """Return the chunks of a partition: at least one, which is empty where there are no entries.

    Args:
        entries: What was copied, in order.
        start: Where the first chunk starts on the source.
        end: Where the last one ends.
        records: A chunk ends with the entry with which it has as many.
    """
    runs = [tuple(sorted(each, key=_offset)) for each in _run_groups(entries, records)] or [()]
    starts = [start, *(MessagePosition(*min(each, key=_first)[:2]) for each in runs[1:])]
    offsets = [each[0].offset if each else 0 for each in runs]
    last = max((run.offset + run.records for run in runs[-1]), default=0)
    return [
        Chunk(*positions, *bounds, each)
        for each, positions, bounds in zip(
            runs,
            zip(starts, [*starts[1:], end], strict=True),
            zip(offsets, [*offsets[1:], last], strict=True),
            strict=True,
        )
    ]


def remaining(entry: IndexEntry, source: int, target: int, *, offsets: bool) -> IndexEntry | None:
    """Return the part of an entry that both logs still have; None: there is none.

    Args:
        entry: The entry.
        source, target: Where the logs begin.
        offsets: Positions of the source are offsets; otherwise a run that is not there as a whole is left out.
    """
    runs = []
    for run in entry.runs:
        gone = max(0, source - run.position, target - run.offset)
        if not gone:
            runs.append(run)
        elif offsets and gone < run.records:
            runs.append(Run(run.position + gone, 0, run.offset + gone, run.records - gone))
    return IndexEntry(entry.source, tuple(runs)) if runs else None


def _run_groups(entries: Iterable[IndexEntry], records: int) -> Iterator[list[Run]]:
    group: list[Run] = []
    size = 0
    for entry in entries:
        group += entry.runs
        size += sum(run.records for run in entry.runs)
        if size >= records:
            yield group
            group, size = [], 0
    if group:
        yield group


def _offset(run: Run) -> int:
    return run.offset


def _first(run: Run) -> tuple[int, int]:
    return run.position, run.inner


# ---- rows ----------------------------------------------------------------------------------------------------


def rows_before(columns: Columns, end: MessagePosition) -> int:
    """Return how many rows start before a position."""
    row = bisect_left(columns.positions, end.position)
    inner = columns.inner_indexes
    while inner is not None and row < len(columns) and (columns.positions[row], inner[row]) < end:
        row += 1
    return row


def split_by_runs(columns: Columns, runs: Sequence[Run]) -> Iterator[tuple[bool, Columns]]:
    """Yield the rows of the target that are in runs (True), and those between them (False), in order."""
    positions, rows, row = columns.positions, len(columns), 0
    first = max(0, bisect_right(runs, positions[0], key=_offset) - 1)
    for run in runs[first:]:
        start = bisect_left(positions, run.offset, row)
        if start > row:
            yield False, columns.slice(row, start)
        row = bisect_left(positions, run.offset + run.records, start)
        if row > start:
            yield True, columns.slice(start, row)
        if row == rows:
            return
    yield False, columns.slice(row, rows)


def without_origin(columns: Columns) -> Columns:
    """Return rows of the target without the headers that say where records come from."""
    if columns.headers is None:
        return columns
    return columns.replace(headers=[_without_origin(headers) for headers in columns.headers])


def _without_origin(headers: Headers) -> Headers:
    return headers[: -len(ORIGIN)] if tuple(name for name, _ in headers[-len(ORIGIN) :]) == ORIGIN else headers


# ---- hashes --------------------------------------------------------------------------------------------------


class _StringsHash:
    """The hash of a column of strings."""

    def __init__(self) -> None:
        self._data, self._lengths, self._validity = sha256(), sha256(), sha256()

    def add(self, column: Sequence[bytes | None] | None, rows: int) -> None:
        """Add strings; None: that many rows have none."""
        if isinstance(column, PackedBytes) and column.offsets.format == "i":
            offsets = column.offsets
            self._data.update(column.data[offsets[0] : offsets[-1]])
            self._lengths.update(_lengths(offsets))
            self._validity.update(b"\x01" * rows if column.validity is None else column.validity)
        elif column is None:
            self._lengths.update(bytes(4 * rows))
            self._validity.update(bytes(rows))
        else:
            self._add_listed(column)

    def _add_listed(self, column: Sequence[bytes | None]) -> None:
        strings = [value or b"" for value in column]
        self._data.update(b"".join(strings))
        self._lengths.update(array("i", map(len, strings)))
        self._validity.update(bytes(value is not None for value in column))

    def digest(self) -> bytes:
        return self._data.digest() + self._lengths.digest() + self._validity.digest()


def _lengths(offsets: memoryview) -> bytes:
    """Return the differences of neighbours as integers of 4 bytes.

    Offsets ascend, so that no difference borrows from the next one: all are the one difference of two large integers.
    """
    ends, starts = (int.from_bytes(part.tobytes(), sys.byteorder) for part in _shifted(offsets))
    return (ends - starts).to_bytes(4 * (len(offsets) - 1), sys.byteorder)


def _shifted(offsets: memoryview) -> tuple[memoryview, memoryview]:
    return offsets[1:], offsets[:-1]


def _numbers(column: Sequence[int], kind: str) -> bytes:
    return column.tobytes() if isinstance(column, memoryview) else array(kind, column).tobytes()


class ChunkHash:
    """The hash of the records of one side of a chunk.

    Attributes:
        records: How many there are.
        bytes: Bytes of their values, keys and headers.
    """

    def __init__(self) -> None:
        self.records = self.bytes = 0
        self._values, self._keys, self._names, self._header_values = (_StringsHash() for _ in range(4))
        self._header_counts, self._timestamps = sha256(), sha256()
        self._stamped = self._kept = 0  # how many have a timestamp, and one that the broker did not set

    def add(self, columns: Columns) -> None:
        """Add records."""
        rows = len(columns)
        self.records += rows
        self.bytes += columns.payload_bytes
        self._values.add(columns.values, rows)
        self._keys.add(columns.keys, rows)
        self._add_headers(columns.headers, rows)
        self._add_timestamps(columns)

    def _add_headers(self, headers: Sequence[Headers] | None, rows: int) -> None:
        if headers is None:
            self._header_counts.update(bytes(4 * rows))
        elif isinstance(headers, HeaderColumns):
            self._header_counts.update(_lengths(headers.offsets))
            self._add_pairs(
                *(each[headers.offsets[0] : headers.offsets[-1]] for each in (headers.names, headers.values))
            )
        else:
            self._header_counts.update(array("i", map(len, headers)))
            pairs = list(chain.from_iterable(headers))
            self._add_pairs([name.encode() for name, _ in pairs], [value for _, value in pairs])

    def _add_pairs(self, names: Sequence[bytes | None], values: Sequence[bytes | None]) -> None:
        self._names.add(names, len(names))
        self._header_values.add(values, len(values))

    def _add_timestamps(self, columns: Columns) -> None:
        if columns.timestamps is None or columns.timestamp_types is None:
            return
        stamps = _numbers(columns.timestamps, "q")
        absent = list(columns.timestamps).count(NO_TIMESTAMP) if _NO_TIMESTAMP in stamps else 0
        self._timestamps.update(stamps)
        self._stamped += len(columns) - absent
        self._kept += _numbers(columns.timestamp_types, "b").count(TimestampType.CREATE_TIME)

    def same(self, target: ChunkHash) -> bool:
        """Return True if the records of the target are the same as these of the source; False: they have to be compared
        one by one, because they differ, or only some of them have timestamps that can be compared."""
        if self.records != target.records or self._content() != target._content():
            return False
        if not self._stamped or not target._kept:
            return True
        whole = self._stamped == target._kept == self.records
        return whole and self._timestamps.digest() == target._timestamps.digest()

    def _content(self) -> bytes:
        """Return the hash of values, keys and headers."""
        parts = (self._values, self._keys, self._names, self._header_values)
        return sha256(b"".join(part.digest() for part in parts) + self._header_counts.digest()).digest()

    def following(self, digest: str) -> str:
        """Return the hash (hexadecimal) of these records and of all before them, of which it is `digest`."""
        return sha256(bytes.fromhex(digest) + self._content() + self._timestamps.digest()).hexdigest()


class RecordSums:
    """Sums of the hashes of records, whatever their order: with values, keys and headers, and with the timestamp, too.

    Attributes:
        records: How many there are.
    """

    def __init__(self) -> None:
        self.records = self._content = self._all = 0
        self._stamped = self._kept = 0  # as in ChunkHash

    def add(self, columns: Columns) -> None:
        """Add records."""
        self.records += len(columns)
        for record in Batch(TopicPartition("", 0), columns):
            content = repr((record.value, record.key, tuple(record.headers)))
            self._content += _hash(content)
            self._all += _hash(f"{content}{record.timestamp}")
            self._stamped += record.timestamp is not None
            self._kept += record.timestamp_type is TimestampType.CREATE_TIME

    def same(self, target: RecordSums) -> bool:
        """Return True if the records of the target are the same as these of the source. Timestamps count where all
        records of both sides have one of their producer's."""
        if self.records != target.records or self._content % _SUMS != target._content % _SUMS:
            return False
        return self._stamped != self.records or target._kept != self.records or self._all % _SUMS == target._all % _SUMS


_SUMS = 1 << 128


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big")


def offset_on_target(runs: Sequence[Run], position: int) -> int | None:
    """Return where the record at a position of the source is on the target, where positions are offsets; None: it was
    not copied."""
    number = bisect_right(runs, position, key=_position) - 1
    if number < 0 or position - runs[number].position >= runs[number].records:
        return None
    return runs[number].offset + position - runs[number].position


def _position(run: Run) -> int:
    return run.position


# ---- one by one ----------------------------------------------------------------------------------------------


def differing(source: Record, target: Record) -> list[str]:
    """Return what differs: value, key, headers, timestamp. The timestamp counts where the source has one, and the
    target keeps those of producers."""
    names = [name for name in ("value", "key", "headers") if getattr(source, name) != getattr(target, name)]
    kept = source.timestamp is not None and target.timestamp_type is TimestampType.CREATE_TIME
    return [*names, "timestamp"] if kept and source.timestamp != target.timestamp else names


def kind_of_difference(source: Sequence[Record], target: Sequence[Record]) -> str:
    """Return what is wrong where two sides begin to differ.

    Args:
        source, target: The next records, some of them; fewer at the end. One side at least has one.
    """
    if not source or not target:
        return "missing" if source else "extra"
    missing, extra = _first_same(target[0], source), _first_same(source[0], target)
    if missing == extra:
        return ", ".join(differing(source[0], target[0])) if missing == math.inf else "order"
    return "missing" if missing < extra else "extra"


def _first_same(record: Record, others: Sequence[Record]) -> float:
    """Return the number of the first of the others that is the same as a record; infinite: none is."""
    return next((number for number, other in enumerate(others) if not differing(record, other)), math.inf)
