"""Reading: the decoder of one log, and the object that carries one partition of a fetch there and back."""

from typing import NamedTuple, Protocol

from odradek.errors import CorruptMessage, OdradekError
from odradek.types import Columns, Position, TopicPartition

__all__ = ["DecoderOptions", "LogDecoder", "PartitionFetch"]


class DecoderOptions(NamedTuple):
    """Options for decoding fetched bytes.

    Args:
        max_message_bytes: A message (its whole entry) larger than this raises MessageTooLarge.
        max_decompressed_bytes: Maximum size of one compressed entry when decompressed, all nesting levels together.
            Once those that are not taken have reached it, nothing more is decoded: the next fetch begins there.
        corrupt: `fail` ends the partition with CorruptMessage; `skip` leaves the message out and reports it;
            `raw` hands the undecoded entry over as a record named in `Columns.corrupt`.
        defer_decompression: Leave compressed messages to `LogDecoder.decompress_deferred`.
        read_committed: Leave out records of transactions that were aborted; of no effect where there are none.
        keep_encoded: Leave whole record batches of this compression (`none` is one) encoded until their records are
            asked for (`Columns.parts`); None: decode all. Needs `corrupt="fail"`.
    """

    max_message_bytes: int = 4 << 20
    max_decompressed_bytes: int = 64 << 20
    corrupt: str = "fail"
    defer_decompression: bool = False
    read_committed: bool = False
    keep_encoded: str | None = None


class LogDecoder(Protocol):
    """Bytes of one partition's log -> columns, incrementally. One per partition; survives from fetch to fetch."""

    partition: TopicPartition

    source: object
    """A mark of the broker client that fed it last, None before: what it keeps of a message that is not complete may be
    continued from there alone."""

    @property
    def position(self) -> Position:
        """Position of the next message not yet taken: a reset, a bookmark or a new connection resumes from here."""
        ...

    @property
    def fetch_position(self) -> Position:
        """Position where the next fetch starts: after all bytes fed, the partial tail included."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Memory held (bytes): decoded and not yet taken, plus what is deferred, plus the partial tail."""
        ...

    @property
    def deferred_bytes(self) -> int:
        """Bytes that wait for `decompress_deferred`: from the first whole compressed message on. 0 unless
        `DecoderOptions.defer_decompression`."""
        ...

    @property
    def error(self) -> OdradekError | None:
        """Set once decoding cannot continue (CorruptMessage, MessageTooLarge). Take what came before it first."""
        ...

    def feed(self, data: memoryview) -> None:
        """Decode the next bytes, as they come from the socket. Bad bytes do not raise; see `error`."""
        ...

    def decompress_deferred(self) -> None:
        """Decode what was deferred: the same rows, positions and errors as without `defer_decompression`. What is
        left when `max_decompressed_bytes` is reached is no longer kept: `fetch_position` moves back to it.

        Bad bytes do not raise; see `error`. Pure: may run in a thread, as long as no other task uses the decoder.
        """
        ...

    def take(self) -> Columns:
        """Return everything decoded since the last take, and forget it. May be empty."""
        ...

    @property
    def skipped(self) -> int:
        """Messages left out so far (`corrupt="skip"`)."""
        ...

    def take_reports(self) -> list[CorruptMessage]:
        """Return the latest 1000 reports of messages skipped since the last call, and forget them."""
        ...

    def reset(self, position: Position) -> None:
        """Forget everything not taken, and the error, and continue from `position` (seek, new connection)."""
        ...


class PartitionFetch:
    """One partition's part of one fetch: the request on its way out, its result on its way back.

    A broker client calls `start` for the position to ask for, passes the log bytes of the response to `feed` as they
    arrive, and sets the result. Fields a protocol does not have stay None.

    Args:
        decoder: The partition's decoder; fed from its `fetch_position`. No other fetch may use it meanwhile.
        max_bytes: Maximum log bytes to return (bytes).
    """

    __slots__ = (
        "_expected",
        "answered",
        "decoder",
        "error",
        "high_watermark",
        "last_stable",
        "leader_epoch",
        "left_out",
        "log_start",
        "max_bytes",
        "next_entry_bytes",
        "preferred_replica",
        "received",
    )

    def __init__(self, decoder: LogDecoder, max_bytes: int) -> None:
        self.decoder, self.max_bytes = decoder, max_bytes
        self._expected = -1  # where the next bytes start; -1: they are not wanted
        self.answered = False
        """The response names it: in a fetch session it may leave out partitions that have nothing new."""
        self.received = 0
        """Log bytes the response had for it."""
        self.left_out = False
        """The log has more for it, and all the space of the response went to other partitions."""
        self.next_entry_bytes = 0
        """The size of the entry at its end of which it has only a part, which is requested once more (bytes); 0: there
        is none, or its size is not known."""
        self.error: OdradekError | None = None
        """The partition's error, from the broker or from its decoder; its attributes say what to do about it."""
        self.high_watermark: Position | None = None
        """The end of what consumers may read."""
        self.log_start: Position | None = None
        """The first position of the log."""
        self.last_stable: Position | None = None
        """The end of what `read_committed` consumers may read."""
        self.leader_epoch: int | None = None
        self.preferred_replica: int | None = None
        """Id of the broker to fetch from instead."""

    def __repr__(self) -> str:
        state = self.error or f"{self.received} bytes received"
        return f"<{type(self).__name__} {self.decoder.partition} up to {self.max_bytes} bytes: {state}>"

    def start(self) -> Position:
        """Return the position to fetch from, and accept the bytes from there on."""
        self._expected = position = self.decoder.fetch_position
        return position

    def feed(self, data: memoryview) -> None:
        """Pass log bytes on to the decoder; ignore them once it was reset, or after `cancel`. Never raises: a bug of
        the decoder becomes the partition's `error`."""
        decoder = self.decoder
        if self._expected != decoder.fetch_position:
            self._expected = -1
            return
        try:
            decoder.feed(data)
            self._expected = decoder.fetch_position
        except Exception as error:
            self._decoder_failed(error)

    def decompress(self) -> None:
        """Decode what the decoder has deferred. Never raises, like `feed`. May run in a thread."""
        try:
            self.decoder.decompress_deferred()
        except Exception as error:
            self._decoder_failed(error)

    def cancel(self) -> None:
        """Ignore what is still to come."""
        self._expected = -1

    def _decoder_failed(self, cause: Exception) -> None:
        self._expected = -1
        reason = f"cannot be decoded: {type(cause).__name__}: {cause}"
        self.error = CorruptMessage(str(self.decoder.partition), self.decoder.position, reason)
        self.error.__cause__ = cause
