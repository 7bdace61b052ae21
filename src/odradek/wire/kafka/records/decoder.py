"""The bytes of one partition's log -> columns, incrementally, in any mixture of the three record formats.

A response to a fetch holds whole entries - batches of magic 2, messages of magic 0 and 1 - and may end in the middle of
one. It may begin before the offset asked for, because brokers return whole entries (kafka-specification.md 3).
"""

from __future__ import annotations

from collections import deque

from odradek.errors import ConfigError, CorruptMessage, MessageTooLarge, OdradekError
from odradek.types import Columns, Position, TopicPartition
from odradek.wire.decoding import DecodingOptions
from odradek.wire.kafka.records import batch as batches
from odradek.wire.kafka.records.entries import EntryDecoder, EpochSpan, FetchContext, IsVisible, end_of, is_compressed
from odradek.wire.kafka.records.message_set import HEAD_BYTES, MIN_LENGTH

__all__ = ["DecodingOptions", "IsVisible", "RecordDecoder"]

_FILLER = -1
"""Offset of an entry that only fills a response, after down-conversion; nothing follows it."""

_NO_NEXT_HINT = "nothing says where the next one begins: read on from a later offset"

_MAX_REPORTS = 1000


class RecordDecoder:
    """Decodes the log of one partition. Implements `core.interfaces.LogDecoder`.

    Call `start_response` in front of the bytes of each response, then `feed` with any split of them: each entry is
    decoded as soon as its last byte is there. The partial entry at the end of a response is forgotten by the next
    `start_response`, because the broker sends it again, from its beginning.

    Positions are offsets. The last record of a batch resumes behind the whole batch, so that offsets whose records were
    compacted away are not asked for again. Control batches, batches without records and those that `is_visible` hides
    move the position, too.

    With `corrupt="skip"` a batch, or a message of magic 0 or 1, that is damaged is left out and reported; with `"raw"`
    its bytes are one row, named in `Columns.corrupt`. Records in front of the damage inside a batch are delivered. A
    length or a magic that cannot be is always an error, because nothing behind it can be found.

    With `defer_decompression` compressed batches are left to `decompress_deferred`, which may run in a thread: from the
    first whole one on, entries are kept as they are.

    What compressed entries become is bounded, too: once all that is not taken has reached `max_decompressed_bytes`, the
    rest of the response is ignored, and the next fetch begins there (`is_full`).

    With `keep_encoded` whole batches of that compression are checked, and not decoded: see `Columns.parts`.

    Args:
        partition: Named in errors.
        position: The offset that the first response was asked for.
        options: Limits (bytes); what to do about damage: `fail`, `skip` or `raw`; and whether to defer.
        epoch: The leader epoch of the record before `position`; -1 if it is not known.
    """

    _entries: EntryDecoder
    _error: OdradekError | None
    _failed: bool

    unread_bytes = 0
    """Bytes at the end of what was fed last that are ignored because of `is_full`."""

    source: object = None
    """A mark of the broker client that fed it last (`LogDecoder.source`)."""

    def __init__(
        self,
        partition: TopicPartition,
        position: Position,
        options: DecodingOptions,
        epoch: int = batches.NO_EPOCH,
    ) -> None:
        if options.corrupt not in ("fail", "skip", "raw"):
            raise ConfigError(f"corrupt={options.corrupt!r} is not one of fail, skip, raw")
        if options.keep_encoded is not None and options.corrupt != "fail":
            raise ConfigError(f"keep_encoded needs corrupt='fail', not {options.corrupt!r}")
        self.partition = partition
        self._options = options
        self._reports: deque[CorruptMessage] = deque(maxlen=_MAX_REPORTS)
        self.skipped = 0
        """Entries left out so far (`corrupt="skip"`)."""
        self._begin(position, epoch)

    def __repr__(self) -> str:
        state = f", {self._error}" if self._error else ""
        return f"<{type(self).__name__} {self.partition} at {self.position}, {self.pending_bytes} bytes pending{state}>"

    @property
    def position(self) -> Position:
        """Position of the next record not yet taken: a reset or a new connection resumes from here."""
        return Position(self._entries.position)

    @property
    def fetch_position(self) -> Position:
        """Start of the next fetch: behind all whole entries that were fed, the deferred ones included."""
        return Position(max(self._entries.end, self._deferred_end))

    @property
    def pending_bytes(self) -> int:
        """Memory held (bytes): decoded and not yet taken, plus what is deferred, plus the partial entry."""
        return self._entries.decoded_bytes + self._deferred_bytes + len(self._tail)

    @property
    def leader_epoch(self) -> int:
        """The epoch of the leader that wrote the record before `fetch_position`; -1 if it is not known: it was not
        read, or is deferred, or damaged, or of a format without epochs (magic 0 and 1)."""
        last = self._entries.last_epoch
        return last.epoch if last.behind == self.fetch_position else batches.NO_EPOCH

    @property
    def deferred_bytes(self) -> int:
        """Bytes that wait for `decompress_deferred`. 0 unless `DecodingOptions.defer_decompression`."""
        return self._deferred_bytes

    @property
    def partial_bytes(self) -> int:
        """Bytes of the entry that is not complete. A response that is nothing else was asked for with too small a
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

    @property
    def at_filler(self) -> bool:
        """True once there was an entry that only fills a response: nothing behind it is decoded. There is none in a log
        on disk."""
        return self._at_filler

    @property
    def is_full(self) -> bool:
        """True if nothing is decoded before `take`: compressed entries have become `max_decompressed_bytes`."""
        return self._entries.decompressed_bytes >= self._options.max_decompressed_bytes

    def start_response(self, is_visible: IsVisible | None = None) -> None:
        """Begin with the response to a fetch from `fetch_position`.

        Args:
            is_visible: Returns whether the batch of a transaction is delivered (`read_committed`); None: all are.
        """
        self._fetch = FetchContext(self.fetch_position, is_visible)
        self._drop_tail()

    def feed(self, data: memoryview) -> None:
        """Decode the next bytes of a response. Bad bytes do not raise; see `error`."""
        self.unread_bytes = len(data) if self.is_full else 0
        if self._failed or self._at_filler or self.unread_bytes:
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
            while self._deferred and not self.is_full:
                entry, fetch, is_sound = self._deferred.popleft()
                self._deferred_bytes -= len(entry)
                if len(entry) <= HEAD_BYTES:
                    self._check_head(memoryview(entry))
                else:
                    self._decode_deferred(memoryview(entry), fetch, is_sound)
            if self._deferred:
                self._failed = False  # what is wrong comes with the next fetch
            self._drop_deferred()
        except (CorruptMessage, MessageTooLarge) as error:
            self._fail(error)

    def _decode_deferred(self, entries: memoryview, fetch: FetchContext, is_sound: bool) -> None:
        """Decode an entry, or several that are sound."""
        start = 0
        while start < len(entries) and not self.is_full:
            if is_sound:
                start = self._entries.decode_run(entries, start, fetch, decompress=True, checked=True)
            if start < len(entries) and not self.is_full:
                end = start + 12 + int.from_bytes(entries[start + 8 : start + 12], "big")
                self._entries.decode(entries[start:end], fetch, is_sound=is_sound)
                start = end

    def take(self) -> Columns:
        """Return everything decoded since the last take, and forget it. May be empty."""
        return self._entries.take()

    def take_epochs(self) -> list[EpochSpan]:
        """Return the leader epochs of what was decoded since the last call, as far as they are known. Like rows that
        are not taken, they are forgotten by a reset."""
        return self._entries.take_epochs()

    def take_reports(self) -> list[CorruptMessage]:
        """Return the reports of entries skipped since the last call, the latest 1000. A reset keeps them."""
        reports = list(self._reports)
        self._reports.clear()
        return reports

    def reset(self, position: Position) -> None:
        """Forget everything not taken, and the error, and continue from `position` (seek, new connection)."""
        last = self._entries.last_epoch
        self._begin(position, last.epoch if last.behind == position else batches.NO_EPOCH)

    def _begin(self, position: Position, epoch: int) -> None:
        self._entries = EntryDecoder(self.partition, self._options, int(position), self._report, epoch)
        self._fetch = FetchContext(int(position), None)
        self._error = None
        self._failed = False
        self._drop_tail()
        self._drop_deferred()

    def _report(self, error: CorruptMessage) -> None:
        self.skipped += 1
        self._reports.append(error)

    def _drop_tail(self) -> None:
        self._tail = bytearray()
        self._at_filler = False

    def _drop_deferred(self) -> None:
        # An entry, and whether its CRC and header are known to be right; or several that are. The last one may be a
        # head that cannot be.
        self._deferred: deque[tuple[bytes, FetchContext, bool]] = deque()
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
            if not self._deferred:
                decompress = not self._options.defer_decompression
                start = self._entries.decode_run(data, start, self._fetch, decompress=decompress)
                if self.is_full:
                    self.unread_bytes = len(data) - start
                    return
            size = self._entry_size(data[start : start + HEAD_BYTES])
            if self._at_filler or self._failed:
                return
            if size is None or size > len(data) - start:
                self._tail += data[start:]
                return
            start = self._add(data, start, start + size)

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
                self._add(entry, 0, size)
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
            self._add_deferred(head, is_sound=False)
            self._failed = True
            return None
        return 12 + length if len(head) == HEAD_BYTES else None

    def _check_head(self, head: memoryview) -> None:
        """Refuse a length or a magic that cannot be, before waiting for more."""
        offset, length = int.from_bytes(head[:8], "big", signed=True), int.from_bytes(head[8:12], "big", signed=True)
        magic = head[16] if len(head) == HEAD_BYTES else 0
        where = max(self._entries.end, offset)
        if length < (batches.MIN_LENGTH if magic == 2 else MIN_LENGTH):
            raise self._entries.corrupt_message(where, f"an entry whose length field says {length}", _NO_NEXT_HINT)
        if magic > 2:
            raise self._entries.corrupt_message(where, f"unknown magic {magic}", _NO_NEXT_HINT)
        if len(head) == HEAD_BYTES and 12 + length > self._options.max_message_bytes:
            raise MessageTooLarge(
                str(self.partition), where, 12 + length, self._options.max_message_bytes, "max_message_bytes"
            )

    def _add(self, data: memoryview, start: int, end: int) -> int:
        """Decode or defer a whole entry, with those behind it that need no further look either; return the index behind
        them."""
        entry = data[start:end]
        if not (self._options.defer_decompression and (self._deferred or is_compressed(entry))):
            self._entries.decode(entry, self._fetch)
            return end
        run_end, behind = self._entries.check_run(data, start, self._fetch)
        if run_end == start:
            self._defer(entry)
            return end
        self._add_deferred(data[start:run_end], is_sound=True)
        self._deferred_end = max(behind, self.fetch_position)
        return run_end

    def _defer(self, entry: memoryview) -> None:
        end, is_sound = end_of(entry, self.fetch_position, self._options.max_decompressed_bytes)
        self._add_deferred(entry, is_sound=is_sound)
        if is_sound or self._options.corrupt != "fail":
            self._deferred_end = max(end, self.fetch_position)
        else:
            self._failed = True  # nothing behind it will be decoded

    def _add_deferred(self, entries: memoryview, *, is_sound: bool) -> None:
        self._deferred.append((bytes(entries), self._fetch, is_sound))
        self._deferred_bytes += len(entries)
