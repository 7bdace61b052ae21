"""The interface of an engine. It defines the meaning of every method once; `pure` and `rust/` implement it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from odradek.engine.packed import Headers

__all__ = [
    "NO_LIMIT",
    "Appender",
    "BatchBase",
    "Buffer",
    "BufferBase",
    "ColumnBuilder",
    "DecodedColumns",
    "Engine",
    "PayloadBuilder",
    "RecordBuilder",
]

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes. A view with gaps, or of items other than bytes (formats 'B' and 'c'), raises BufferError."""

NO_LIMIT = 4 + 0x7FFFFFFF
"""The size of the largest entry that a length field can express (bytes)."""


class DecodedColumns(Protocol):
    """Columns that never change: parallel, an element for each row; None: there is no such column.

    They are lists, or `PackedBytes`, `HeaderColumns` and memoryviews of integers: positions and timestamps of 8 bytes
    ('q'), inner indexes of 4 ('i'), types of 1 ('b'). The compiled engine makes each of these
    every time it is asked for it.
    """

    def __len__(self) -> int: ...

    @property
    def payload_bytes(self) -> int:
        """Bytes of all values, keys and headers."""
        ...

    @property
    def is_wide(self) -> bool:
        """True if values or keys have offsets of 8 bytes."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Memory that all rows take, as read-ahead counts it: their payload, and something for each row, column
        and header."""
        ...

    @property
    def values(self) -> Sequence[bytes | None]: ...

    @property
    def positions(self) -> Sequence[int]: ...

    @property
    def next_positions(self) -> Sequence[int]: ...

    @property
    def inner_indexes(self) -> Sequence[int] | None: ...

    @property
    def keys(self) -> Sequence[bytes | None] | None: ...

    @property
    def headers(self) -> Sequence[Headers] | None: ...

    @property
    def timestamps(self) -> Sequence[int] | None: ...

    @property
    def timestamp_types(self) -> Sequence[int] | None: ...

    def value_list(self) -> list[bytes | None]:
        """Return `values` as a list; one that exists already may be returned itself."""
        ...

    def slice(self, start: int, stop: int) -> DecodedColumns:
        """Return some of the rows, which share memory with these.

        Raises:
            ValueError: `start:stop` does not lie within the rows.
        """
        ...

    @staticmethod
    def concat(parts: Sequence[Any]) -> DecodedColumns:
        """Return a copy of the rows of all parts, in order. The parts are of the same class.

        A column that only some of them have holds, for the rows of the others, what its absence means: no key, no
        headers, inner index 0, timestamp and its type -1.
        """
        ...


class PayloadBuilder(Protocol):
    """Payloads without positions: the decompressed contents of a wrapper."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads together."""
        ...

    def __len__(self) -> int: ...

    def decode_run(self, data: Buffer, start: int, stop: int) -> int:
        """Append a run of payloads, like `ColumnBuilder.decode_run` without limit and positions."""
        ...

    def append(self, value: Buffer) -> None: ...

    def tolist(self) -> list[bytes]: ...


class ColumnBuilder(Protocol):
    """Columns under construction. Positions are integers of 8 bytes, inner indexes of 4."""

    def __len__(self) -> int: ...

    def decode_run(self, data: Buffer, start: int, stop: int, base: int = 0, max_entry: int = NO_LIMIT) -> int:
        """Append the run of plain, whole, valid messages at the start of `data[start:stop]`; copy each payload once.

        The run ends before the first entry that is anything else - incomplete, compressed, damaged, larger than
        `max_entry` bytes - which is left to the caller; also, in the last 10 bytes, before a valid entry of magic 0
        with an empty payload. `base` is the position of `data[0]`.

        Returns:
            The index after the last message appended; `start` if there was none.

        Raises:
            ValueError: `start:stop` does not lie within the data.
            OverflowError: `base + stop` does not fit into 8 bytes.
        """
        ...

    def append(self, value: Buffer, position: int, next_position: int, inner_index: int = 0) -> None: ...

    def add_wrapper(self, values: PayloadBuilder, position: int, next_position: int) -> None:
        """Append the messages of one entry. They share its position, and their inner indexes count up from 0; all but
        the last resume at `position` too, the last one at `next_position`."""
        ...

    def take(self) -> DecodedColumns:
        """Return and remove all rows. There are no inner indexes if all are 0."""
        ...


class RecordBuilder(Protocol):
    """Records of 0.8 and later on their way into columns. Offsets are integers of 8 bytes."""

    def __len__(self) -> int: ...

    def decode_batch(
        self,
        data: Buffer,
        start: int,
        stop: int,
        count: int,
        base_offset: int,
        last_delta: int,
        first_offset: int,
        timestamp: int,
        append_time: bool,
    ) -> tuple[int, int, int]:
        """Append the records of a batch of magic 2, whose body `data[start:stop]` is (specification.md 3.3).

        Stops in front of the first record that is damaged: it does not end where its length says, a number is longer
        than its type, a length is below -1, or its offset is not one of the batch. Bytes of a header's name that are
        not UTF-8 become U+FFFD.

        Args:
            data: The batch, or its decompressed body.
            start: Index of the first record.
            stop: Index behind the last one.
            count: How many records there are.
            base_offset: The offset that offset deltas count from.
            last_delta: The largest offset delta of the batch. If `count` records are all of `data[start:stop]`,
                the last row resumes behind it.
            first_offset: Records with a lower offset are not appended.
            timestamp: The time that timestamp deltas count from (ms); with `append_time` the timestamp of every record.
            append_time: The broker set the timestamp.

        Returns:
            The index behind the last record that is not damaged, how many they are, and the highest of their offsets
            + 1 (`base_offset` when there are none).
        """
        ...

    def decode_batches(
        self,
        data: Buffer,
        start: int,
        stop: int,
        first_offset: int,
        max_entry: int = NO_LIMIT,
        max_decompressed: int = 0,
        transactional: bool = False,
        checked: bool = False,
    ) -> tuple[int, int, int]:
        """Append a run of whole, valid batches of magic 2.

        Stops in front of the first entry that is anything else: incomplete, a control batch, damaged in its header or
        in a record, of another magic, larger than `max_entry` bytes; or compressed, unless it is compressed as nearly
        all writers do it, by snappy, lz4 or zstd. The pure engine decompresses none.

        Args:
            data: Entries.
            start: Index of the first one.
            stop: Index behind the last one.
            first_offset: Records with a lower offset are not appended.
            max_entry: Limit for a whole entry (bytes).
            max_decompressed: Limit for the records of all compressed batches together (bytes), of which each counts 64
                more; 0: such a batch ends the run.
            transactional: Batches of transactions do not end it.
            checked: The CRCs are known to be right.

        Returns:
            The index behind the last batch, the highest offset behind a batch (negative when there was none), and what
            counts for `max_decompressed` (bytes).
        """
        ...

    def decode_messages(
        self,
        data: Buffer,
        start: int,
        stop: int,
        first_offset: int,
        shift: int = 0,
        append_time: int | None = None,
        max_entry: int = NO_LIMIT,
    ) -> tuple[int, int]:
        """Append a run of plain, whole, valid messages of magic 0 and 1 (specification.md 3.2).

        Stops in front of the first entry that is anything else: incomplete, compressed, damaged, of another magic,
        with a negative offset, or larger than `max_entry` bytes.

        Args:
            data: Entries.
            start: Index of the first one.
            stop: Index behind the last one.
            first_offset: Messages with a lower offset are not appended.
            shift: Added to the offset of each.
            append_time: The timestamp of every message, set by the broker (ms); None: each has its own.
            max_entry: Limit for a whole entry (bytes).

        Returns:
            The index behind the last message, and the highest offset + 1 (a negative number when there was none).
        """
        ...

    def append(self, value: Buffer, position: int, next_position: int) -> None:
        """Append a row that is no record: bytes which cannot be decoded."""
        ...

    def take(self) -> DecodedColumns:
        """Return and remove all rows. There are no keys or headers if no row has any, and neither timestamps nor their
        types if no row's format has them."""
        ...


class BatchBase(Protocol):
    """The base class of produce batches: the attributes that an `Appender` reads and writes for every record, where it
    has them without a look-up. Made with any arguments; all is 0 and False then.

    Attributes:
        size: Sum of the sizes of its records (bytes).
        max_size: Of this size it is full, and must be closed. A record that would fill it is not appended.
        explicit_partition: They were sent to this very partition.
    """

    size: int
    max_size: int
    explicit_partition: bool


class BufferBase(Protocol):
    """The base class of what counts the memory of a producer, likewise. At first nothing is appended to it.

    Attributes:
        buffered_bytes: What is taken of the buffer.
    """

    buffered_bytes: int

    def admit(self, limit: int) -> None:
        """Let appenders append as long as no more than `limit` bytes of the buffer are taken (0: not at all), and only
        in the thread of this call."""
        ...

    def takes(self, memory: int) -> bool:
        """Return True if an appender may take so many bytes more of it now, in this thread."""
        ...


class Appender(Protocol):
    """The short way of a record into the open batch of its partition: what `core.produce.Accumulator.append` does with
    a record that needs nothing else, in one call. It belongs to one producer, and keeps nothing itself but how many
    calls there were in a row.

    Args:
        topics: Name -> an object with the attributes `sticky`, the queue of records without a key, and
            `available_queues`, a list of those among which a key chooses. A queue has `open`: None or a batch, which is
            a `BatchBase` of the same engine and has `records`.
        live: A `BufferBase` of the same engine.
        key_hash: `murmur2` or `crc32`: the partition of a key is its hash modulo their number, murmur2 without its sign
            bit. Empty: no record with a key is appended.
        record_bytes: The size of a record is this, its value,
        key_byte: and so much for each byte of its key.
        memory_bytes: A record takes its size and this of the buffer.
        max_record: Records of a larger size are not appended.
        max_run: Of so many calls with records that pass the checks of their own, the last returns None.

    Raises:
        ValueError: There is no such hash.
    """

    def append(self, topic: object, value: object, key: object, /) -> bool | None:
        """Append a record to the open batch of its partition and count it: the value, or with a key the tuple
        `(value, key, (), None)`.

        Returns:
            False: Nothing was done. An argument is not exactly a `str`, `bytes` or, for the key, None; the topic is
            unknown; there is no open batch, its records were sent to an explicit partition, or are not a list; a limit
            would be reached; or the buffer does not admit this thread. None: Nothing was done, because it is the turn
            of others (see `max_run`).
        """
        ...


class Engine(Protocol):
    """One implementation of the loops. They keep no state, wait for nothing and know no socket.

    Buffers must not change during a call: large ones are processed without the interpreter's lock.
    """

    NAME: str
    """`compiled` or `pure`."""

    BatchBase: type
    BufferBase: type

    def ColumnBuilder(self) -> ColumnBuilder: ...

    def PayloadBuilder(self) -> PayloadBuilder: ...

    def RecordBuilder(self) -> RecordBuilder: ...

    def check_run(self, data: Buffer, start: int, stop: int, max_entry: int = NO_LIMIT) -> tuple[int, int]:
        """Validate a run like `ColumnBuilder.decode_run`. Return the index after it, and its number of messages."""
        ...

    def crc32(self, data: Buffer, before: int = 0, /) -> int:
        """Return the CRC-32 of `data`, continued from `before`, the CRC-32 of the bytes before it."""
        ...

    def check_batches(
        self, data: Buffer, start: int, stop: int, max_entry: int, max_decompressed: int, transactional: bool
    ) -> tuple[int, int]:
        """Return the index behind the run that `RecordBuilder.decode_batches` takes with these limits, as far as
        headers and CRCs tell, and the highest offset behind a batch (negative when there is none)."""
        ...

    def lz4_content(self, blocks: Sequence[tuple[Buffer, bool, int]], max_bytes: int) -> Buffer:
        """Return what blocks of an LZ4 frame hold, one behind the other.

        Args:
            blocks: Of each block its bytes, True if it is not compressed, and the most bytes that it may hold.
            max_bytes: The most that all of them may hold.

        Raises:
            OverflowError: They hold more than `max_bytes`.
            ValueError: A block is damaged, or holds more than it may. Of what the format forbids, the pure engine reads
                an offset of 0, as zeros, and the compiled engine a last match without five literals behind it.
        """
        ...

    def encode_run(self, values: Sequence[bytes | None], attributes: int = 0) -> bytes:
        """Return magic-1 entries of these payloads (a list or `PackedBytes`), concatenated.

        Raises:
            OverflowError: A payload's length, or `attributes`, does not fit into its field.
            TypeError: A payload is None: a 0.7 entry cannot say so.
        """
        ...

    def encode_frame(
        self, head: bytes, heads: Sequence[bytes], runs: Sequence[Sequence[Any]], tail: bytes, max_run: int
    ) -> bytes | None:
        """Return a frame of several runs of magic-1 entries: its length (4 bytes, without themselves), `head`, and for
        each run its own head, its length (4 bytes) and its entries. `tail` follows the frame.

        Args:
            head: The first bytes of the frame.
            heads: The head of each run.
            runs: Lists whose items are a payload (`bytes`), or a tuple that begins with one.
            tail: The bytes after the frame.
            max_run: The most that the entries of one run may have (bytes).

        Returns:
            None if a run has more.

        Raises:
            OverflowError: A length does not fit into its field.
            TypeError: A payload is not `bytes`.
            ValueError: There are not as many heads as runs.
        """
        ...

    def fit(
        self,
        values: Sequence[object],
        start: int,
        stop: int,
        max_bytes: int,
        row_bytes: int,
        max_row: int,
        nullable: bool = False,
    ) -> tuple[int, int]:
        """Count how many of `values[start:stop]` (a list or `PackedBytes`) fit into `max_bytes`.

        Each counts its length and `row_bytes`. Stops before a value that is longer than `max_row`, or that is not
        exactly of type `bytes`. A null stops it, too, unless `nullable` is set: then its length is 0.

        Returns:
            The index after the last value that fits, and the sum of the lengths.

        Raises:
            ValueError: `start:stop` does not lie within the values.
        """
        ...

    def unpack(self, offsets: Buffer, data: Buffer, validity: Buffer | None = None) -> list[bytes | None]:
        """Return `data[offsets[i]:offsets[i + 1]]` for each i; None where `validity[i]` is 0.

        Args:
            offsets: A memoryview of 'i' or 'q'.
            data: The bytes.
            validity: A byte per row; None: no row is null.

        Raises:
            BufferError: A buffer of another format.
            ValueError: Offsets that do not ascend within the data, or a `validity` of another length.
        """
        ...

    # ---- Kafka 0.8 and later --------------------------------------------------------------------------------

    def crc32c(self, data: Buffer, before: int = 0, /) -> int:
        """Return the CRC-32C (Castagnoli) of `data`, going on from `before`, that of the bytes in front of it."""
        ...

    def Appender(
        self,
        topics: dict[str, Any],
        live: Any,
        key_hash: str,
        record_bytes: int,
        key_byte: int,
        memory_bytes: int,
        max_record: int,
        max_run: int,
    ) -> Appender: ...

    def murmur2(self, data: Buffer, /) -> int:
        """Return the 32-bit murmur2 hash of `data` with Kafka's seed, as a signed number, as Java does.

        Source: org.apache.kafka.common.utils.Utils.murmur2.
        """
        ...

    def scan_messages(self, data: Buffer) -> tuple[int, int, int]:
        """Count the plain, whole messages of magic 0 and 1 at the start of `data`, without checking their CRCs.

        Returns:
            The index behind them, how many they are, and the offset field of the last one (0 when there is none).
        """
        ...

    def encode_batch(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        timestamps: Sequence[int] | None = None,
        attributes: int = 0,
        base_offset: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        compress: Callable[[bytes], bytes] | None = None,
    ) -> bytes:
        """Return a batch of magic 2 with consecutive offsets (specification.md 3.3).

        Args:
            values: A list or `PackedBytes`.
            keys: As many, likewise; None: no record has one.
            headers: As many, a list or `HeaderColumns`; None: no record has any.
            timestamps: As many, in ms, a list or a memoryview of 'q'; None: the records have none.
            attributes: The attributes of the batch.
            base_offset: The offset of the first record.
            producer_id: -1: not idempotent.
            producer_epoch: That of the id.
            base_sequence: The sequence number of the first record.
            compress: Compresses the records, as `attributes` say.

        Raises:
            OverflowError: A length, timestamp or number does not fit into its field.
            ValueError: Columns of different lengths.
        """
        ...

    def encode_batches(
        self, runs: Sequence[Sequence[Any]], stamps: Sequence[tuple[int, int, int, int]], now: int
    ) -> list[bytes]:
        """Return a batch of magic 2 for each run of records without headers: the bytes `encode_batch` makes of it.

        Args:
            runs: Lists whose items are a value (`bytes`), or a tuple of value, key, headers (none) and timestamp; each
                of value, key and timestamp may be None.
            stamps: For each run its attributes, producer id, producer epoch and base sequence.
            now: The timestamp of records without one (ms).

        Raises:
            OverflowError: A length, timestamp or number does not fit into its field.
            TypeError: A record is anything else, or has headers.
            ValueError: There are not as many stamps as runs.
        """
        ...

    def encode_messages(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[int] | None = None,
        magic: int = 1,
        attributes: int = 0,
        offset: int = 0,
    ) -> bytes:
        """Return messages of magic 0 or 1 with offsets that count up from `offset` (specification.md 3.2).

        Raises:
            OverflowError: A length or timestamp does not fit into its field.
            ValueError: Columns of different lengths.
        """
        ...
