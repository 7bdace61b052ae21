"""Message sets: consecutive entries, as they are in the log (specification.md 2).

`MessageSetDecoder` turns the bytes of one partition's log into columns, incrementally; `encode_set` is its inverse.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from io import BytesIO
from zlib import crc32

from odradek import engine
from odradek.engine import Buffer
from odradek.errors import (
    ConfigError,
    CorruptMessage,
    LocalProtocolError,
    MessageTooLarge,
    OdradekError,
    RemoteProtocolError,
)
from odradek.types import Columns, Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.decoding import DecodingOptions
from odradek.wire.kafka07.compression import compress
from odradek.wire.kafka07.decompress import WrapperContents
from odradek.wire.kafka07.entries import (
    LogEntry,
    ParseStop,
    check_length,
    entry_at,
    entry_size,
    head_bytes,
    is_wrapper,
    make_entry,
)

MAX_REPORTS = 1000
"""Reports of skipped messages that a decoder keeps: a damaged log may have one every few bytes."""

__all__ = ["DecodingOptions", "MessageSetDecoder", "encode_set", "entry_bytes"]

MAX_POSITION = (1 << 63) - 1
"""The field is a signed i64."""

# ---- encoding -----------------------------------------------------------------------------------------------


def entry_bytes(payload_bytes: int, magic: int = 1) -> int:
    """Return the bytes of an entry in the log: 10 more than its payload, 9 in magic 0."""
    return payload_bytes + 9 + magic


def encode_set(
    values: Sequence[bytes | None],
    compression: CompressionType = CompressionType.NONE,
    magic: int = 1,
    level: int | None = None,
) -> bytes:
    """Return a message set of these payloads; compressed, it is one wrapper around them.

    No payloads give no bytes, whatever the compression (specification.md 2.2).

    Args:
        values: Payloads.
        compression: How to compress them together.
        magic: 1, as every 0.7 writer emits; 0 as older writers did, which has no compression.
        level: The level of the compression; None: the usual one.

    Raises:
        LocalProtocolError: Magic 0 with compression, another magic, a payload that is None, or a length that does not
            fit into its field.
        ConfigError: A compression type that 0.7 does not have.
    """
    if magic != 1:
        return _old_set(values, compression, magic)
    if compression and values:
        values = [compress(compression, encode_set(values), level)]
    try:
        return engine.active.encode_run(values, compression)
    except OverflowError:
        raise LocalProtocolError("a message of 2 GiB or more does not fit into its length field: split it") from None
    except TypeError:
        if None not in values:
            raise
        raise _null_payload() from None


def _old_set(values: Sequence[bytes | None], compression: CompressionType, magic: int) -> bytes:
    if magic or compression:
        raise LocalProtocolError(f"magic {magic} has no compression type {compression}: use magic 1")
    if None in values:
        raise _null_payload()
    return b"".join([_old_entry(value or b"") for value in values])


def _null_payload() -> LocalProtocolError:
    return LocalProtocolError('a 0.7 message always has a payload: send b"" instead of None, or leave the record out')


def _old_entry(value: bytes) -> bytes:
    return b"%b\0%b%b" % ((len(value) + 5).to_bytes(4, "big"), crc32(value).to_bytes(4, "big"), value)


# ---- decoding -----------------------------------------------------------------------------------------------


class MessageSetDecoder:
    """The bytes of one partition's log -> columns, incrementally. Implements `core.interfaces.Decoder`.

    Fed any split of the bytes, it has every message as soon as its last byte is there. A partial entry at the end is
    kept and goes on with the next feed, of the same fetch or of the next one (at `fetch_position`).

    Positions follow specification.md 2.3: messages of one level-one wrapper share its start; all but the last also
    resume there. An error inside a wrapper is therefore reported at the wrapper's start.

    `max_message_bytes` bounds level-one entries and is checked as soon as a length is there; what a wrapper holds is
    bounded by `max_decompressed_bytes`, in which each message also counts what its row takes (`wrappers.ROW_BYTES`).

    All that was decompressed and is not taken is bounded, too: once it has reached that limit, the rest is ignored up
    to the next `take`, and the next fetch begins there.

    With `corrupt="skip"` or `"raw"` decoding goes on behind a damaged entry of plausible length, on whichever level it
    stands. Damage that hides where the next entry starts, or a wrapper in a wrapper that cannot be opened, gives up the
    rest of the level-one wrapper (raw: it is handed over whole, behind what could be read of it). On level one a length
    that cannot be is always an error, as is a message that is too large.

    With `defer_decompression` compressed messages, and damaged ones unless `corrupt="fail"`, are left to
    `decompress_deferred`, which may run in a thread: from the first whole one on, `feed` keeps the bytes without
    looking at them.

    Args:
        partition: Named in errors and batches.
        position: Where the first byte that will be fed stands in the log.
        options: Limits (bytes); what to do about damage: `fail`, `skip` or `raw`; and whether to defer.
    """

    source: object = None
    """A mark of the broker client that fed it last (`LogDecoder.source`)."""

    def __init__(self, partition: TopicPartition, position: Position, options: DecodingOptions) -> None:
        if options.corrupt not in ("fail", "skip", "raw"):
            raise ConfigError(f"corrupt={options.corrupt!r} is not one of fail, skip, raw")
        self.partition = partition
        self._options = options
        self._max_entry = options.max_message_bytes
        self._deferring = options.defer_decompression
        self._reports: deque[CorruptMessage] | None = None
        self.skipped = 0
        """Messages left out so far (`corrupt="skip"`)."""
        self._error: OdradekError | None = None
        self._fetch_position = position
        self.reset(position)

    def __repr__(self) -> str:
        state = f", {self._error}" if self._error else ""
        return f"<{type(self).__name__} {self.partition} at {self.position}, {self.pending_bytes} bytes pending{state}>"

    @property
    def position(self) -> Position:
        """The start of the first message not yet taken: what a reset or a new connection resumes from."""
        return Position(self._first if len(self._rows) else self._at)

    @property
    def fetch_position(self) -> Position:
        """The start of the next fetch: after everything decoded, deferred, and the partial tail that is kept."""
        return self._fetch_position

    @property
    def pending_bytes(self) -> int:
        """Memory held: messages not yet taken, deferred bytes, and the partial tail."""
        if self._deferred is None and not self._head:
            return self._decoded_bytes
        return self._decoded_bytes + self.deferred_bytes + self._tail_bytes

    @property
    def deferred_bytes(self) -> int:
        """Bytes from the first whole compressed message on, which wait for `decompress_deferred()`. 0 without
        `defer_decompression`."""
        return 0 if self._deferred is None else self._deferred.tell()

    @property
    def error(self) -> OdradekError | None:
        """Set once decoding cannot go on: CorruptMessage, MessageTooLarge, or RemoteProtocolError for a position that
        cannot be. Take what came before it first."""
        return self._error

    def feed(self, data: memoryview) -> None:
        """Take the next bytes, of a buffer that may be used again afterwards. Never raises; what is fed after an error
        is ignored."""
        if self._error is None and not self._full:
            if (end := self._fetch_position + len(data)) > MAX_POSITION:
                self._error = RemoteProtocolError(
                    f"{self.partition}: the broker sent {len(data)} bytes from position {self.fetch_position} on: "
                    f"no log is longer than {MAX_POSITION}"
                )
                return
            self._fetch_position = Position(end)
            self._feed(data)

    def decompress_deferred(self) -> None:
        """Decode what `feed` has left deferred. Never raises; see `error`.

        Pure: it may run in a thread, while nobody else touches this decoder.
        """
        if self._deferred is not None:
            data = self._deferred.getvalue()
            self._drop_deferred()
            self._deferring = False
            try:
                self._feed(memoryview(data))
            finally:
                self._deferring = self._options.defer_decompression

    def take(self) -> Columns:
        """Give up everything decoded since the last take. May be empty."""
        taken = self._rows.take()
        columns = Columns.of(taken, self._corrupt) if self._corrupt else Columns.of(taken)
        self._begin_rows()
        return columns

    def take_reports(self) -> list[CorruptMessage]:
        """Return the reports of messages skipped since the last call, the latest 1000. A reset keeps them."""
        reports, self._reports = self._reports, None
        return list(reports or ())

    def reset(self, position: Position) -> None:
        """Forget everything not taken, and the error, and go on from `position` (seek, new connection)."""
        self._at = int(position)  # the log position behind everything decoded
        self._error = None
        self._drop_tail()
        self._drop_deferred()
        self._drop_decoded()
        self._fetch_position = position

    def _drop_tail(self) -> None:
        self._head = b""
        self._body: BytesIO | None = None  # a payload's pieces, which it gives up as one `bytes` without another copy

    def _drop_deferred(self) -> None:
        self._deferred: BytesIO | None = None  # gives up its bytes without another copy, too

    def _defer(self, *data: Buffer) -> None:
        if self._deferred is None:
            self._deferred = BytesIO()
        self._deferred.writelines(data)

    def _drop_decoded(self) -> None:
        self._rows = engine.active.ColumnBuilder()
        self._begin_rows()

    def _begin_rows(self) -> None:
        self._first = self._at  # the position of the first of them, if there is one
        self._corrupt: dict[int, CorruptMessage] | None = None
        self._decoded_bytes = self._decompressed_bytes = 0
        self._full = False  # nothing more is decoded before the next `take`

    @property
    def _tail_bytes(self) -> int:
        return len(self._head) + (0 if self._body is None else self._body.tell())

    # -- from bytes to entries --

    def _feed(self, data: memoryview) -> None:
        try:
            used = self._continue(data) if self._head else 0
            if self._deferred is not None:
                self._defer(data[used:])
            elif self._full:
                self._fetch_position = Position(self._at)
            elif not self._head and used < len(data):
                self._decode(data, used)
        except (CorruptMessage, MessageTooLarge) as error:
            self._drop_tail()
            self._fetch_position = Position(self._at + self.deferred_bytes)
            self._error = error.with_traceback(None)  # whose frames hold on to the buffer

    def _decode(self, data: memoryview, start: int) -> None:
        """Decode everything from `start`, where an entry begins, and keep the tail."""
        base, stop, rows = self._at - start, len(data), self._rows
        while True:
            if not len(rows):
                self._first = self._at
            end = rows.decode_run(data, start, stop, base, self._max_entry)
            self._decoded_bytes += end - start
            self._at = base + end
            if end == stop:
                return
            start = end
            size = entry_size(data, start, self._max_entry)
            if isinstance(size, ParseStop):
                break
            if self._deferring and is_wrapper(data[start:]):
                self._defer(data[start:])
                return
            entry = entry_at(data, start, size, base)
            if self._deferring and entry.damage and self._options.corrupt != "fail":
                self._defer(data[start:])  # there may be many, and each takes as long as a hundred good ones
                return
            self._add_entry(entry)
            start += size
            if self._full:
                self._fetch_position = Position(self._at)
                return
        self._continue(data[start:])

    def _continue(self, data: memoryview) -> int:
        """Collect an entry that spans feeds, and add it when it is whole: then `_head` is empty again.

        Returns:
            How many bytes belong to it.
        """
        used = 0
        while len(self._head) < (want := self._head_wanted()):
            part = data[used : used + want - len(self._head)]
            if not part:
                return used
            self._head += bytes(part)
            used += len(part)
            if len(self._head) == want:
                self._check_head()
        length = int.from_bytes(self._head[:4], "big")
        part = data[used : used + 4 + length - self._tail_bytes]
        if self._body is None:
            self._body = BytesIO()
        self._body.write(part)
        if self._tail_bytes == 4 + length:
            self._complete(self._head, self._body.getvalue())
        return used + len(part)

    def _complete(self, head: bytes, payload: bytes) -> None:
        """Add the entry in the tail, which is whole now."""
        self._drop_tail()
        if self._deferring and is_wrapper(head):
            self._defer(head, payload)
        else:
            self._add_entry(make_entry(self._at, head, payload))

    def _head_wanted(self) -> int:
        """Return how much of the head to collect: its length field, its magic, and as much as that requires."""
        known = len(self._head)
        return 4 if known < 4 else 5 if known < 5 else head_bytes(self._head[4])

    def _check_head(self) -> None:
        """Refuse an impossible length before waiting for more."""
        length = int.from_bytes(self._head[:4], "big", signed=True)
        bad = check_length(length, self._max_entry, self._head[4:5])
        if bad is ParseStop.TOO_LARGE:
            limit = self._max_entry
            raise MessageTooLarge(str(self.partition), self._at, 4 + length, limit, "max_message_bytes")
        if bad:
            raise self._corrupt_message(f"{bad.value}: {length}")

    # -- from entries to rows --

    def _mark_first(self) -> None:
        if not len(self._rows):
            self._first = self._at

    def _advance(self, size: int) -> None:
        """Move past plain messages that were decoded."""
        self._decoded_bytes += size
        self._at += size

    def _add_entry(self, entry: LogEntry) -> None:
        """Add one whole entry of any kind, sound or damaged."""
        self._mark_first()
        if entry.damage:
            self._add_damaged([entry.raw], {0: entry.damage}, entry.end)
        elif not entry.compression:
            self._rows.append(entry.payload, self._at, entry.end)
            self._advance(entry.size)
        else:
            contents = WrapperContents(entry, self._options.max_decompressed_bytes)
            self._decompressed_bytes += contents.size
            self._full = self._decompressed_bytes >= self._options.max_decompressed_bytes
            if contents.damaged:
                self._add_damaged(contents.values.tolist(), contents.damaged, entry.end)
            else:
                self._rows.add_wrapper(contents.values, self._at, entry.end)
                self._decoded_bytes += contents.values.payload_bytes
                self._at = entry.end

    def _add_damaged(self, values: list[bytes], damaged: dict[int, str], end: int) -> None:
        """Add the rows of one entry, some of which are damaged, as the option `corrupt` says."""
        if self._options.corrupt == "raw":
            row = len(self._rows)
            self._corrupt = self._corrupt or {}
            self._corrupt.update((row + i, self._corrupt_message(reason)) for i, reason in damaged.items())
            self._add_rows(values, range(len(values)), end)
        elif self._options.corrupt == "skip":
            if self._reports is None:
                self._reports = deque(maxlen=MAX_REPORTS)
            self._reports += map(self._corrupt_message, damaged.values())
            self.skipped += len(damaged)
            good = [i for i in range(len(values)) if i not in damaged]
            self._add_rows([values[i] for i in good], good, end)
        else:
            first = min(damaged)
            self._add_rows(values[:first], range(first), self._at)
            raise self._corrupt_message(damaged[first])

    def _add_rows(self, values: list[bytes], inner: Sequence[int], end: int) -> None:
        """Add messages of one entry: they share its start; the last one resumes at `end`."""
        for left, value, index in zip(range(len(values) - 1, -1, -1), values, inner, strict=True):
            self._rows.append(value, self._at, self._at if left else end, index)
        self._decoded_bytes += sum(map(len, values))
        self._at = end

    def _corrupt_message(self, reason: str) -> CorruptMessage:
        return CorruptMessage(str(self.partition), self._at, reason)
