"""The bytes of one partition's log -> columns, incrementally, in any mixture of the three record formats.

An answer to a fetch holds whole entries - batches of magic 2, messages of magic 0 and 1 - and may end in the middle of
one. It may begin before the offset asked for, because brokers return whole entries (specification 3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from odradek import engine
from odradek.errors import ConfigError, CorruptMessage, MessageTooLarge, OdradekError
from odradek.types import Columns, Position, TopicPartition
from odradek.wire.compression import CompressionError
from odradek.wire.decoding import DecodingOptions
from odradek.wire.kafka.records import batch as batches
from odradek.wire.kafka.records.batch import (
    NO_EPOCH,
    BatchHeader,
    batch_header,
    body_of,
    control_type,
    damage_of,
    end_of_damaged,
    last_epoch,
)
from odradek.wire.kafka.records.message_set import (
    HEAD_BYTES,
    LEAST_LENGTH,
    Wrapper,
    compression_of,
    is_crc_right,
    message_damage,
    open_wrapper,
)

__all__ = ["DecodingOptions", "IsVisible", "RecordDecoder"]

IsVisible = Callable[[BatchHeader, int | None], bool]
"""Decides whether the records of a batch are shown; called in order for each control batch and each batch of a
transaction. The batches between them are always shown. The second argument is the type of a control batch; None for a
batch of data. What it returns for a control batch does not matter."""

_FILLER = -1
"""The offset of an entry that only fills an answer, after down-conversion; nothing follows it."""

_MAX_OFFSET = (1 << 63) - 1

_HINT = 'corrupt="skip" continues behind it, corrupt="raw" hands over its bytes'


class _Answer(NamedTuple):
    """What all entries of one answer to a fetch have in common."""

    first_offset: int
    is_visible: IsVisible


def _all_visible(_: BatchHeader, __: int | None) -> bool:
    return True


class RecordDecoder:
    """Decodes the log of one partition. Implements `core.interfaces.LogDecoder`.

    Call `start_response` in front of the bytes of each answer, then `feed` with any split of them: each entry is
    decoded as soon as its last byte is there. The partial entry at the end of an answer is forgotten by the next
    `start_response`, because the broker sends it again, from its beginning.

    Positions are offsets. The last record of a batch resumes behind the whole batch, so that offsets whose records were
    compacted away are not asked for again. Control batches, batches without records and those that `is_visible` hides
    move the position, too.

    With `corrupt="skip"` a batch, or a message of magic 0 or 1, that is damaged is left out and reported; with `"raw"`
    its bytes are one row, named in `Columns.corrupt`. Records in front of the damage inside a batch are delivered. A
    length or a magic that cannot be is always an error, because nothing behind it can be found.

    With `defer_decompression` compressed batches are left to `decompress_deferred`, which may run in a thread: from the
    first whole one on, entries are kept as they are.

    Args:
        partition: Named in errors.
        position: The offset that the first answer was asked for.
        options: Limits (bytes); what to do about damage: `fail`, `skip` or `raw`; and whether to defer.
    """

    _error: OdradekError | None
    _failed: bool
    _rows: engine.RecordBuilder
    _corrupt: dict[int, CorruptMessage]

    def __init__(self, partition: TopicPartition, position: Position, options: DecodingOptions) -> None:
        if options.corrupt not in ("fail", "skip", "raw"):
            raise ConfigError(f"corrupt={options.corrupt!r} is not one of fail, skip, raw")
        self.partition = partition
        self._options = options
        self._max_entry = options.max_message_bytes
        self._reports: list[CorruptMessage] = []
        self.skipped = 0
        """Entries left out so far (`corrupt="skip"`)."""
        self.reset(position)

    def __repr__(self) -> str:
        state = f", {self._error}" if self._error else ""
        return f"<{type(self).__name__} {self.partition} at {self.position}, {self.pending_bytes} bytes pending{state}>"

    @property
    def position(self) -> Position:
        """Position of the next record not yet taken: a reset or a new connection resumes from here."""
        return Position(self._first if len(self._rows) else self._at)

    @property
    def fetch_position(self) -> Position:
        """Start of the next fetch: behind all whole entries that were fed, the deferred ones included."""
        return Position(max(self._at, self._deferred_end))

    @property
    def pending_bytes(self) -> int:
        """Memory held (bytes): decoded and not yet taken, plus what is deferred, plus the partial entry."""
        return self._decoded_bytes + self._deferred_bytes + len(self._tail)

    @property
    def deferred_bytes(self) -> int:
        """Bytes that wait for `decompress_deferred`. 0 unless `DecodingOptions.defer_decompression`."""
        return self._deferred_bytes

    @property
    def partial_bytes(self) -> int:
        """Bytes of the entry that is not complete. An answer that is nothing else was asked for with too small a
        limit (Fetch 0 to 2)."""
        return len(self._tail)

    @property
    def partial_size(self) -> int:
        """The size that the entry which is not complete will have (bytes); 0 if there is none, or it is not known."""
        return 12 + int.from_bytes(self._tail[8:12], "big") if len(self._tail) >= 12 else 0

    @property
    def error(self) -> OdradekError | None:
        """Set once decoding cannot go on (CorruptMessage, MessageTooLarge). Take what came before it first."""
        return self._error

    def start_response(self, is_visible: IsVisible | None = None) -> None:
        """Begin with the answer to a fetch from `fetch_position`.

        Args:
            is_visible: Which batches of transactions are shown (`read_committed`). None: all of them.
        """
        self._answer = _Answer(self.fetch_position, is_visible or _all_visible)
        self._drop_tail()

    def feed(self, data: memoryview) -> None:
        """Decode the next bytes of an answer. Bad bytes do not raise; see `error`."""
        if self._failed or self._at_filler:
            return
        try:
            self._feed(data)
        except (CorruptMessage, MessageTooLarge) as error:
            self._fail(error)

    def decompress_deferred(self) -> None:
        """Decode what was deferred: the same rows, positions and errors as without `defer_decompression`.

        Bad bytes do not raise; see `error`. Pure: may run in a thread, as long as no other task uses the decoder.
        """
        try:
            while self._deferred:
                entry, answer = self._deferred.popleft()
                self._deferred_bytes -= len(entry)
                if len(entry) <= HEAD_BYTES:
                    self._check_head(memoryview(entry))
                else:
                    self._decode(memoryview(entry), answer)
            self._drop_deferred()
        except (CorruptMessage, MessageTooLarge) as error:
            self._fail(error)

    def take(self) -> Columns:
        """Return everything decoded since the last take, and forget it. May be empty."""
        values, positions, nexts, keys, headers, times, types = self._rows.take()
        taken = Columns(values, positions, nexts, None, keys, headers, times, types, self._corrupt)
        self._corrupt, self._decoded_bytes = {}, 0
        return taken

    def take_reports(self) -> list[CorruptMessage]:
        """Return the reports of entries skipped since the last call, and forget them. A reset keeps them."""
        reports, self._reports = self._reports, []
        return reports

    def reset(self, position: Position) -> None:
        """Forget everything not taken, and the error, and continue from `position` (seek, new connection)."""
        self._at = self._first = int(position)  # behind everything decoded; where the first row that is not taken lies
        self.leader_epoch = NO_EPOCH
        """The epoch of the leader that wrote the last batch decoded; -1 where there is none (magic 0 and 1)."""
        self._answer = _Answer(self._at, _all_visible)
        self._error = None
        self._failed = False
        self._rows = engine.active.RecordBuilder()
        self._decoded_bytes = 0
        self._corrupt = {}
        self._drop_tail()
        self._drop_deferred()

    def _drop_tail(self) -> None:
        self._tail = bytearray()
        self._at_filler = False

    def _drop_deferred(self) -> None:
        self._deferred: deque[tuple[bytes, _Answer]] = deque()  # entries; the last one may be a head that cannot be
        self._deferred_bytes = 0
        self._deferred_end = -1

    def _fail(self, error: OdradekError) -> None:
        self._failed = True
        self._drop_tail()
        self._drop_deferred()
        self._error = error.with_traceback(None)  # whose frames hold on to the buffer

    # -- from bytes to entries --

    def _feed(self, data: memoryview) -> None:
        start = self._continue(data) if self._tail else 0
        if self._tail:
            return
        while not self._failed and start < len(data):
            start = self._decode_run(data, start)
            size = self._entry_size(data[start : start + HEAD_BYTES])
            if self._at_filler or self._failed:
                return
            if size is None or size > len(data) - start:
                self._tail += data[start:]
                return
            self._add(data[start : start + size])
            start += size

    def _continue(self, data: memoryview) -> int:
        """Continue an entry that spans feeds, and decode it when it is whole: then `_tail` is empty again.

        Returns how many bytes belonged to it.
        """
        used = min(len(data), max(0, HEAD_BYTES - len(self._tail)))
        self._tail += data[:used]
        size = self._entry_size(memoryview(self._tail)[:HEAD_BYTES])
        if self._at_filler or self._failed:
            self._tail = bytearray()
            return len(data)
        if size is not None:
            chunk = data[used : used + size - len(self._tail)]
            self._tail += chunk
            used += len(chunk)
            if len(self._tail) == size:
                entry, self._tail = memoryview(self._tail), bytearray()
                self._add(entry)
        return used

    def _entry_size(self, head: memoryview) -> int | None:
        """Return the size of the entry with this beginning (bytes); None as long as that is not known."""
        if len(head) < 12:
            return None
        offset, length = int.from_bytes(head[:8], "big", signed=True), int.from_bytes(head[8:12], "big", signed=True)
        if offset == _FILLER:
            self._at_filler = True
            return None
        try:
            self._check_head(head)
        except (CorruptMessage, MessageTooLarge):
            if not self._deferred:
                raise
            self._deferred.append((bytes(head), self._answer))
            self._deferred_bytes += len(head)
            self._failed = True
            return None
        return 12 + length if len(head) == HEAD_BYTES else None

    def _check_head(self, head: memoryview) -> None:
        """Refuse a length or a magic that cannot be, before waiting for more."""
        offset, length = int.from_bytes(head[:8], "big", signed=True), int.from_bytes(head[8:12], "big", signed=True)
        magic = head[16] if len(head) == HEAD_BYTES else 0
        where = max(self._at, offset)
        if length < (batches.LEAST_LENGTH if magic == 2 else LEAST_LENGTH):
            raise self._corrupt_message(where, f"an entry whose length field says {length}")
        if magic > 2:
            raise self._corrupt_message(where, f"unknown magic {magic}")
        if len(head) == HEAD_BYTES and 12 + length > self._max_entry:
            raise MessageTooLarge(str(self.partition), where, 12 + length, self._max_entry, "max_message_bytes")

    def _add(self, entry: memoryview) -> None:
        """Decode or defer a whole entry."""
        if self._options.defer_decompression and (self._deferred or _is_compressed(entry)):
            self._defer(entry)
        else:
            self._decode(entry, self._answer)

    def _defer(self, entry: memoryview) -> None:
        self._deferred.append((bytes(entry), self._answer))
        self._deferred_bytes += len(entry)
        end, is_sound = _end_of(entry, self.fetch_position)
        if is_sound or self._options.corrupt != "fail":
            self._deferred_end = max(end, self.fetch_position)
        else:
            self._failed = True  # nothing behind it will be decoded

    # -- from entries to rows --

    def _decode(self, entry: memoryview, answer: _Answer) -> None:
        self._decoded_bytes += len(entry)
        if entry[16] == 2:
            self._decode_batch(entry, answer)
        elif not self._decode_message(entry, answer):
            self._decode_wrapper(entry, answer)

    def _mark_first(self) -> None:
        if not len(self._rows):
            self._first = self._at

    def _decode_run(self, data: memoryview, start: int) -> int:
        """Decode plain entries that are not damaged; return the index behind them."""
        if self._deferred or len(data) - start < HEAD_BYTES:
            return start
        self._mark_first()
        decode = self._rows.decode_messages if data[start + 16] < 2 else self._rows.decode_batches
        end, behind = decode(data, start, len(data), self._answer.first_offset, max_entry=self._max_entry)
        self._decoded_bytes += end - start
        self._at = max(self._at, behind)
        if end > start and data[start + 16] == 2:
            self.leader_epoch = last_epoch(data, start, end)
        return end

    def _decode_message(self, entry: memoryview, answer: _Answer) -> bool:
        """Decode a plain message of magic 0 or 1; return False for anything else."""
        self._mark_first()
        end, behind = self._rows.decode_messages(entry, 0, len(entry), answer.first_offset)
        self._at = max(self._at, behind)
        return end > 0

    def _decode_batch(self, entry: memoryview, answer: _Answer) -> None:
        batch = batch_header(entry)
        damage = damage_of(batch, entry)
        if damage:
            self._add_damaged(entry, batch.base_offset, end_of_damaged(batch, self._at), damage, answer)
            return
        self.leader_epoch = batch.leader_epoch
        if batch.is_transactional and not batch.is_control and not answer.is_visible(batch, None):
            self._at = max(self._at, batch.next_offset)
            return
        try:
            body = body_of(batch, entry, self._options.max_decompressed_bytes)
        except CompressionError as error:
            damage = str(error)
        else:
            add = self._read_control if batch.is_control else self._add_records
            damage = add(batch, body, answer)
        if damage:
            self._add_damaged(entry, batch.base_offset, batch.next_offset, damage, answer)
        self._at = max(self._at, batch.next_offset)

    def _read_control(self, batch: BatchHeader, body: memoryview | bytes, answer: _Answer) -> str:
        """Show a control batch to the filter; return what is wrong with it."""
        kind = control_type(batch, body)
        if kind is None and batch.record_count:
            return "a control batch whose record cannot be read"
        answer.is_visible(batch, -1 if kind is None else kind)
        return ""

    def _add_records(self, batch: BatchHeader, body: memoryview | bytes, answer: _Answer) -> str:
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
            answer.first_offset,
            timestamp,
            batch.is_append_time,
        )
        self._decoded_bytes += len(body) if batch.compression else 0
        self._at = max(self._at, behind)
        if count < batch.record_count:
            return f"record {count + 1} of {batch.record_count} is damaged or missing"
        return f"{len(body) - end} bytes behind {count} records" if end < len(body) else ""

    def _decode_wrapper(self, entry: memoryview, answer: _Answer) -> None:
        """Decode a compressed message, or say what is wrong with one that is not taken."""
        offset = int.from_bytes(entry[:8], "big", signed=True)
        damage = message_damage(entry)
        if not damage:
            try:
                wrapper = open_wrapper(entry, self._options.max_decompressed_bytes)
            except CompressionError as error:
                damage = str(error)
            else:
                self._add_inner(wrapper, answer)
                self._at = max(self._at, offset + 1)
        if damage:
            self._add_damaged(entry, offset, max(offset, self._at) + 1, damage, answer)

    def _add_inner(self, wrapper: Wrapper, answer: _Answer) -> None:
        data, start = memoryview(wrapper.data), 0
        self._decoded_bytes += len(data)
        while True:
            self._mark_first()
            start, behind = self._rows.decode_messages(
                wrapper.data, start, len(data), answer.first_offset, wrapper.shift, wrapper.append_time
            )
            self._at = max(self._at, behind)
            if start == len(data):
                return
            inner = data[start : start + 12 + int.from_bytes(data[start + 8 : start + 12], "big")]
            offset = int.from_bytes(inner[:8], "big", signed=True) + wrapper.shift
            damage = message_damage(inner, "message inside a compressed one")
            self._add_damaged(inner, offset, offset + 1, damage, answer)
            start += len(inner)

    def _add_damaged(self, entry: memoryview, offset: int, next_offset: int, reason: str, answer: _Answer) -> None:
        """Do with a damaged entry, or the rest of one, what the option `corrupt` says."""
        if next_offset <= answer.first_offset and self._options.corrupt != "fail":
            return  # it was not asked for
        self._mark_first()
        next_offset = min(next_offset, _MAX_OFFSET)
        position = self._at if self._options.corrupt == "fail" else min(max(self._at, offset), next_offset - 1)
        error = self._corrupt_message(position, f"entry at offset {offset}: {reason}")
        if self._options.corrupt == "fail":
            raise error
        error.hint = ""
        if self._options.corrupt == "skip":
            self.skipped += 1
            self._reports.append(error)
        else:
            self._corrupt[len(self._rows)] = error
            self._rows.append(entry, position, next_offset)
        self._at = max(self._at, next_offset)

    def _corrupt_message(self, position: int, reason: str) -> CorruptMessage:
        error = CorruptMessage(str(self.partition), position, reason)
        error.hint = _HINT
        return error


def _is_compressed(entry: memoryview) -> bool:
    return bool(batch_header(entry).compression if entry[16] == 2 else compression_of(entry))


def _end_of(entry: memoryview, position: int) -> tuple[int, bool]:
    """Return where to continue behind an entry, and whether its CRC and header are right."""
    if entry[16] == 2:
        batch = batch_header(entry)
        sound = not damage_of(batch, entry)
        return batch.next_offset if sound else end_of_damaged(batch, position), sound
    return int.from_bytes(entry[:8], "big", signed=True) + 1, is_crc_right(entry)
