"""Producers and transactions of a log of Kafka 0.11 and later, from the headers of its batches."""

from __future__ import annotations

import io
from array import array
from bisect import bisect_right
from typing import NamedTuple

from odradek.core.kafka.read_committed import ABORT_MARKER, COMMIT_MARKER
from odradek.segments._checkpoints import StoredProducerState
from odradek.segments._indexes import AbortedTransactionEntry
from odradek.segments._scan import LARGEST_ENTRY, StoredEntry, read_entry
from odradek.types import KiB
from odradek.wire.compression import CompressionError
from odradek.wire.kafka.records.batch import BatchHeader, batch_header, body_of, control_type, damage_of

__all__ = ["TransactionScan", "marker_of"]

_MARKER_BYTES = 64 * KiB  # more than any marker has


class _Markers(NamedTuple):
    """The ends of one producer's transactions, in order: offsets of markers, and 1 where it committed."""

    offsets: array[int]
    commits: bytearray


class TransactionScan:
    """Finds transactions and the states of producers. Call `add` for all entries of a log, in order.

    Memory: a few numbers for each transaction and for each producer.

    Args:
        high_watermark: Markers at or behind it do not count yet; None: all count.
    """

    def __init__(self, high_watermark: int | None) -> None:
        self._high_watermark = high_watermark
        self._markers: dict[int, _Markers] = {}
        self._first: dict[int, int] = {}  # producer -> first offset of its transaction without a marker
        self._unstable: list[int] = []  # first offsets of those whose marker does not count yet
        self._states: dict[int, StoredProducerState] = {}
        self.aborted: list[AbortedTransactionEntry] = []
        """The transactions that were aborted, in the order of their markers: with the first offset -1 if the log has no
        records of them (any more)."""

    @property
    def states(self) -> list[StoredProducerState]:
        """The state of each producer at the end, by its id."""
        return [
            state._replace(open_since=self._first.get(producer)) for producer, state in sorted(self._states.items())
        ]

    def first_unstable(self) -> int | None:
        """Return the first offset of the first transaction that is not over; None if all are."""
        return min([*self._first.values(), *self._unstable], default=None)

    def add(self, entry: StoredEntry, file: io.FileIO) -> None:
        """Add the next entry of the log, which is in this file."""
        if entry.producer_id < 0:
            return
        if entry.is_control:
            self._add_marker(entry, marker_of(file, entry))
        elif entry.is_transactional and entry.record_count:  # compaction keeps empty batches for their sequence numbers
            self._first.setdefault(entry.producer_id, entry.base_offset)
        self._add_state(entry)

    def is_visible(self, batch: BatchHeader, control: int | None) -> bool:
        """Return True for a batch that readers of committed records get."""
        if control is not None:
            return False
        markers = self._markers.get(batch.producer_id)
        if markers is None:
            return False
        number = bisect_right(markers.offsets, batch.base_offset)
        return number < len(markers.offsets) and bool(markers.commits[number])

    def _add_marker(self, entry: StoredEntry, kind: int | None) -> None:
        if kind not in (ABORT_MARKER, COMMIT_MARKER):
            return
        first = self._first.pop(entry.producer_id, None)
        if self._high_watermark is not None and entry.base_offset >= self._high_watermark:
            self._unstable += [] if first is None else [first]
            return
        markers = self._markers.setdefault(entry.producer_id, _Markers(array("q"), bytearray()))
        markers.offsets.append(entry.base_offset)
        markers.commits.append(kind == COMMIT_MARKER)
        if kind == ABORT_MARKER:
            self.aborted.append(
                AbortedTransactionEntry(entry.producer_id, -1 if first is None else first, entry.base_offset)
            )

    def _add_state(self, entry: StoredEntry) -> None:
        before = self._states.get(entry.producer_id)
        is_new = before is None or before.epoch != entry.producer_epoch
        if entry.is_control:  # a marker has no sequence number
            sequence = -1 if before is None or is_new else before.last_sequence
            offset = -1 if before is None or is_new else before.last_offset
        else:
            sequence, offset = entry.last_sequence, entry.last_offset
        self._states[entry.producer_id] = StoredProducerState(
            entry.producer_id, entry.producer_epoch, sequence, offset, entry.max_timestamp, None
        )


def marker_of(file: io.FileIO, entry: StoredEntry) -> int | None:
    """Return the type of a control batch: `ABORT_MARKER`, `COMMIT_MARKER`, or one that belongs to the brokers; None for
    one that is damaged."""
    if entry.size > _MARKER_BYTES:
        return None
    data = read_entry(file, entry)
    if len(data) < entry.size:
        return None
    batch = batch_header(data)
    if damage_of(batch, data):
        return None
    try:
        return control_type(batch, body_of(batch, data, LARGEST_ENTRY))
    except CompressionError:
        return None
