"""Whole entries of one partition's log -> rows: batches of magic 2, messages of magic 0 and 1, damaged ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from odradek import engine
from odradek.engine import Buffer
from odradek.errors import SKIP_HINT, CorruptMessage
from odradek.types import Columns, TopicPartition
from odradek.wire.compression import CompressionError, CompressionType
from odradek.wire.decoding import DecodingOptions
from odradek.wire.kafka.records.batch import (
    NO_EPOCH,
    ROW_BYTES,
    BatchHeader,
    batch_header,
    body_of,
    control_type,
    damage_of,
    end_of_damaged,
    epochs_of,
)
from odradek.wire.kafka.records.encoded import MIN_BYTES, EncodedColumns, Part, can_stay_encoded, encoded_batch
from odradek.wire.kafka.records.message_set import (
    HEAD_BYTES,
    Wrapper,
    compression_of,
    is_crc_right,
    message_damage,
    open_wrapper,
)

__all__ = ["EntryDecoder", "EpochSpan", "FetchContext", "IsVisible", "end_of", "is_compressed"]

IsVisible = Callable[[BatchHeader, int | None], bool]
"""Function that decides whether the records of a batch are delivered.

It is called in order for each control batch and each batch of a transaction; the batches between them are always
delivered. The second argument is the type of a control batch, None for a batch of data. The result for a control batch
does not matter.
"""

_MAX_OFFSET = (1 << 63) - 1


class FetchContext(NamedTuple):
    """Facts that all entries of one response to a fetch share."""

    first_offset: int
    """The offset that was asked for: records below it are left out."""
    is_visible: IsVisible | None
    """None: all are."""

    def shows(self, batch: BatchHeader, control_type: int | None) -> bool:
        """Return what `is_visible` says of a batch."""
        return self.is_visible is None or self.is_visible(batch, control_type)


class EpochSpan(NamedTuple):
    """A part of a log whose records were all written by the leader of one epoch."""

    first: int
    """The first offset."""
    behind: int
    """The offset behind it."""
    epoch: int


class EntryDecoder:
    """Decodes entries that are whole and whose length and magic are possible.

    Args:
        partition: Named in errors.
        options: See `RecordDecoder`.
        position: The offset of the first record.
        report: Called for each entry that is left out (`corrupt="skip"`).
        epoch: The epoch of the record before `position`; -1 if it is not known.
    """

    def __init__(
        self,
        partition: TopicPartition,
        options: DecodingOptions,
        position: int,
        report: Callable[[CorruptMessage], None],
        epoch: int = NO_EPOCH,
    ) -> None:
        self._partition, self._options, self._report = partition, options, report
        self.end = position
        """The offset behind everything decoded."""
        self._first = position  # of the first row that is not taken
        self._rows = engine.active.RecordBuilder()
        self._parts: list[Part] = []  # what comes before these rows, as far as batches stay encoded
        self._kept = None if options.keep_encoded is None else CompressionType.named(options.keep_encoded)
        self._max_run_entry = options.max_message_bytes
        if self._kept is CompressionType.NONE:
            self._max_run_entry = min(self._max_run_entry, MIN_BYTES - 1)
        self._max_decompressed = options.max_decompressed_bytes if self._kept is None else 0
        self._corrupt: dict[int, CorruptMessage] = {}
        self._epochs = [EpochSpan(position, position, epoch)]  # what was decoded since they were taken, in order
        self.decoded_bytes = self.decompressed_bytes = 0
        """Bytes of the entries, and of what they decompressed to, whose rows are not taken; and the latter alone. A
        record of them counts `ROW_BYTES` more."""

    @property
    def position(self) -> int:
        """The offset of the first row that is not taken."""
        return self._first if self._has_rows else self.end

    @property
    def _has_rows(self) -> bool:
        return bool(self._parts) or len(self._rows) > 0

    @property
    def last_epoch(self) -> EpochSpan:
        """The last part of what was decoded whose epoch is known, or the place where decoding began."""
        return self._epochs[-1]

    def take_epochs(self) -> list[EpochSpan]:
        """Return the epochs of what was decoded since the last call."""
        taken, (_, behind, epoch) = self._epochs, self.last_epoch
        self._epochs = [EpochSpan(behind, behind, epoch)]
        return [span for span in taken if span.first < span.behind and span.epoch != NO_EPOCH]

    def take(self) -> Columns:
        """Return all rows, and forget them."""
        self.decoded_bytes = self.decompressed_bytes = 0
        if self._parts:
            self._end_rows()
            parts, self._parts = self._parts, []
            return Columns.of(EncodedColumns(self._partition, parts, self._options.max_decompressed_bytes))
        taken = Columns.of(self._rows.take(), self._corrupt)
        self._corrupt = {}
        return taken

    def _end_rows(self) -> None:
        """Make the rows decoded last a part, if there are any."""
        if len(self._rows):
            self._parts.append(self._rows.take())

    def decode(self, entry: memoryview, fetch: FetchContext, *, is_sound: bool = False) -> None:
        """Decode one entry. Raises CorruptMessage for a damaged one with `corrupt="fail"`.

        Args:
            entry: Its bytes.
            fetch: The fetch that brought it.
            is_sound: `end_of` has found that its CRC and header are right.
        """
        self.decoded_bytes += len(entry)
        if entry[16] == 2:
            self._decode_batch(entry, fetch, is_sound)
        elif not self._decode_message(entry, fetch):
            self._decode_wrapper(entry, fetch)

    def decode_run(
        self, data: memoryview, start: int, fetch: FetchContext, *, decompress: bool, checked: bool = False
    ) -> int:
        """Decode what the engine decodes by itself, as far as it is not damaged; return the index behind it. Entries
        that may stay encoded are left to `decode`.

        Args:
            data: Entries.
            start: The index of the first one.
            fetch: The fetch that brought them.
            decompress: Compressed batches, too.
            checked: Their CRCs are known to be right.
        """
        if len(data) - start < HEAD_BYTES:
            return start
        self._mark_first()
        if data[start + 16] < 2:
            end, behind = self._rows.decode_messages(
                data, start, len(data), fetch.first_offset, max_entry=self._max_run_entry
            )
        else:
            end, behind, decompressed = self._rows.decode_batches(
                data,
                start,
                len(data),
                fetch.first_offset,
                self._max_run_entry,
                max(0, self._max_decompressed - self.decompressed_bytes) if decompress else 0,
                fetch.is_visible is None,
                checked,
            )
            self._count_decompressed(decompressed)
            if end > start:
                self._note_epochs(epochs_of(data, start, end), behind)
        self.decoded_bytes += end - start
        self.end = max(self.end, behind)
        return end

    def check_run(self, data: memoryview, start: int, fetch: FetchContext) -> tuple[int, int]:
        """Return the index behind the batches that `decode_run` would decode, as far as their headers and CRCs tell,
        and the offset behind them. The first entry is whole."""
        if data[start + 16] < 2:
            return start, -1
        shows_all = fetch.is_visible is None
        return engine.active.check_batches(
            data, start, len(data), self._max_run_entry, self._max_decompressed, shows_all
        )

    def corrupt_message(self, position: int, reason: str, hint: str = SKIP_HINT) -> CorruptMessage:
        """Return the error for damage at a position."""
        error = CorruptMessage(str(self._partition), position, reason)
        error.hint = hint
        return error

    def _note_epochs(self, epochs: list[tuple[int, int]], behind: int) -> None:
        """Note the epochs of the next batches, given the offset at which each begins, and the one behind the batches.

        Offsets that a response leaves out between two batches are not in the log any more (compaction): the last record
        before any of them is the last one of the first batch.
        """
        ends = [*(first for first, _ in epochs[1:]), behind]
        spans = [EpochSpan(first, end, epoch) for (first, epoch), end in zip(epochs, ends, strict=True)]
        last, following = self._epochs[-1], spans[0]
        if last.behind == self.end and last.epoch == following.epoch:
            spans[0] = EpochSpan(min(last.first, following.first), max(last.behind, following.behind), last.epoch)
            self._epochs.pop()
        elif last.behind == self.end:
            self._epochs[-1] = last._replace(behind=max(last.behind, following.first))
        self._epochs += spans

    def _count_decompressed(self, size: int) -> None:
        self.decoded_bytes += size
        self.decompressed_bytes += size

    def _mark_first(self) -> None:
        if not self._has_rows:
            self._first = self.end

    def _decode_message(self, entry: memoryview, fetch: FetchContext) -> bool:
        """Decode a plain message of magic 0 or 1; return False for anything else."""
        self._mark_first()
        end, behind = self._rows.decode_messages(entry, 0, len(entry), fetch.first_offset)
        self.end = max(self.end, behind)
        return end > 0

    def _decode_batch(self, entry: memoryview, fetch: FetchContext, is_sound: bool) -> None:
        batch = batch_header(entry)
        damage = "" if is_sound else damage_of(batch, entry)
        if damage:
            self._add_damaged(
                entry,
                batch.base_offset,
                end_of_damaged(batch, self.end, self._options.max_decompressed_bytes),
                damage,
                fetch,
            )
            return
        self._note_epochs([(batch.base_offset, batch.leader_epoch)], batch.next_offset)
        if batch.is_transactional and not batch.is_control and not fetch.shows(batch, None):
            self.end = max(self.end, batch.next_offset)
            return
        max_bytes = self._options.max_decompressed_bytes
        if batch.compression == self._kept and can_stay_encoded(batch, fetch.first_offset, max_bytes):
            self._mark_first()
            self._end_rows()
            self._parts.append(encoded_batch(batch, entry))
            self.end = max(self.end, batch.next_offset)
            return
        try:
            body = body_of(batch, entry, max_bytes)
        except CompressionError as error:
            damage = str(error)
        else:
            add = self._read_control if batch.is_control else self._add_records
            damage = add(batch, body, fetch)
        if damage:
            self._add_damaged(entry, batch.base_offset, batch.next_offset, damage, fetch)
        self.end = max(self.end, batch.next_offset)

    def _read_control(self, batch: BatchHeader, body: Buffer, fetch: FetchContext) -> str:
        """Show a control batch to the filter; return what is wrong with it."""
        kind = control_type(batch, body)
        if kind is None and batch.record_count:
            return "a control batch whose record cannot be read"
        fetch.shows(batch, -1 if kind is None else kind)
        return ""

    def _add_records(self, batch: BatchHeader, body: Buffer, fetch: FetchContext) -> str:
        """Append the records of a batch; return what is wrong with the first one that is damaged."""
        self._mark_first()
        timestamp = batch.max_timestamp if batch.is_append_time else batch.base_timestamp
        end, count, behind = self._rows.decode_batch(
            body,
            0,
            len(body),
            batch.record_count,
            batch.base_offset,
            batch.last_offset_delta,
            fetch.first_offset,
            timestamp,
            batch.is_append_time,
        )
        if batch.compression:
            self._count_decompressed(len(body) + ROW_BYTES * count)
        self.end = max(self.end, behind)
        if count < batch.record_count:
            return f"record {count + 1} of {batch.record_count} is damaged or missing"
        return f"{len(body) - end} bytes behind {count} records" if end < len(body) else ""

    def _decode_wrapper(self, entry: memoryview, fetch: FetchContext) -> None:
        """Decode a compressed message, or say what is wrong with one that is not taken."""
        offset = int.from_bytes(entry[:8], "big", signed=True)
        damage = message_damage(entry)
        if not damage:
            try:
                wrapper = open_wrapper(entry, self._options.max_decompressed_bytes)
            except CompressionError as error:
                damage = str(error)
            else:
                self._add_inner(wrapper, fetch)
                self.end = max(self.end, offset + 1)
        if damage:
            self._add_damaged(entry, offset, max(offset, self.end) + 1, damage, fetch)

    def _add_inner(self, wrapper: Wrapper, fetch: FetchContext) -> None:
        data, start = memoryview(wrapper.data), 0
        self._count_decompressed(len(data) + ROW_BYTES * wrapper.messages)
        while True:
            self._mark_first()
            start, behind = self._rows.decode_messages(
                wrapper.data, start, len(data), fetch.first_offset, wrapper.shift, wrapper.append_time
            )
            self.end = max(self.end, behind)
            if start == len(data):
                return
            inner = data[start : start + 12 + int.from_bytes(data[start + 8 : start + 12], "big")]
            offset = int.from_bytes(inner[:8], "big", signed=True) + wrapper.shift
            damage = message_damage(inner, "message inside a compressed one")
            self._add_damaged(inner, offset, offset + 1, damage, fetch)
            start += len(inner)

    def _add_damaged(self, entry: memoryview, offset: int, next_offset: int, reason: str, fetch: FetchContext) -> None:
        """Do with a damaged entry, or the rest of one, what the option `corrupt` says."""
        if next_offset <= fetch.first_offset and self._options.corrupt != "fail":
            return  # it was not asked for
        self._mark_first()
        next_offset = min(next_offset, _MAX_OFFSET)
        position = self.end if self._options.corrupt == "fail" else min(max(self.end, offset), next_offset - 1)
        error = self.corrupt_message(position, f"entry at offset {offset}: {reason}")
        if self._options.corrupt == "fail":
            raise error
        error.hint = ""
        if self._options.corrupt == "skip":
            self._report(error)
        else:
            self._corrupt[len(self._rows)] = error
            self._rows.append(entry, position, next_offset)
        self.end = max(self.end, next_offset)


def is_compressed(entry: memoryview) -> bool:
    """Return True for an entry whose records are compressed."""
    return bool(batch_header(entry).compression if entry[16] == 2 else compression_of(entry))


def end_of(entry: memoryview, position: int, max_decompressed_bytes: int) -> tuple[int, bool]:
    """Return the offset behind an entry, and True if its CRC and header are right."""
    if entry[16] == 2:
        batch = batch_header(entry)
        sound = not damage_of(batch, entry)
        end = batch.next_offset if sound else end_of_damaged(batch, position, max_decompressed_bytes)
    else:
        end, sound = int.from_bytes(entry[:8], "big", signed=True) + 1, is_crc_right(entry)
    return min(end, _MAX_OFFSET), sound
