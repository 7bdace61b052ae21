"""Decompression of wrappers, every level of them, within a bound (specification.md 2.2 and 2.3)."""

from __future__ import annotations

from odradek import engine
from odradek.engine import Buffer
from odradek.wire.compression import CompressionError, CompressionType, DecompressedTooLarge
from odradek.wire.kafka07.compression import decompress
from odradek.wire.kafka07.entries import LogEntry, ParseStop, read_entry

__all__ = ["MAX_NESTING", "ROW_BYTES", "WrapperContents"]

MAX_NESTING = 64
"""Levels of wrappers that are decompressed; a deeper one counts as undecodable. Stock producers make one level, the
recorded broker cases have four; the broker itself recurses until its stack overflows."""

ROW_BYTES = 64
"""Memory that a message of a wrapper counts beyond its payload: about that of its row in the columns."""

_EXCEPTION_BYTES = 1024  # memory that a wrapper in a wrapper (its decompressor) or a damaged entry (its report) counts

_WINDOW = 1 << 20  # bytes of a wrapper's contents decoded between two checks of the limit


class WrapperContents:
    """The messages of a wrapper, of all its levels, in order (specification.md 2.2).

    `values` has their payloads. `damaged` maps the numbers of rows that are raw entries instead to the reason. If the
    rest of the wrapper cannot be decoded, the last row is the whole wrapper. `size` is what counts for the limit
    (bytes).
    """

    def __init__(self, wrapper: LogEntry, max_bytes: int) -> None:
        self.values = engine.active.PayloadBuilder()
        self.damaged: dict[int, str] = {}
        self._max_bytes = self._left = max_bytes
        # Depth first without recursion, so that hostile nesting cannot overflow the stack: (set, index to resume at).
        self._unfinished: list[tuple[Buffer, int]] = []
        try:
            self._enter(wrapper)
            while self._unfinished:
                self._decode(*self._unfinished.pop())
        except CompressionError as error:
            self._add_damaged(wrapper, str(error))
        self.size = max_bytes - self._left

    def _enter(self, wrapper: LogEntry) -> None:
        if len(self._unfinished) >= MAX_NESTING:
            raise CompressionError(f"wrappers nested more than {MAX_NESTING} deep")
        try:
            data = decompress(CompressionType(wrapper.compression), wrapper.payload, self._left)
        except DecompressedTooLarge:
            raise self._too_large() from None
        self._left -= len(data)
        self._unfinished.append((data, 0))

    def _decode(self, data: Buffer, start: int) -> None:
        """Decode a run of plain messages, and the entry after it that is none."""
        before = len(self.values)
        end = self.values.decode_run(data, start, min(start + _WINDOW, len(data)))
        self._charge(ROW_BYTES * (len(self.values) - before + 1))
        entry = read_entry(memoryview(data), end)
        if isinstance(entry, ParseStop):
            # A cut tail is ignored; a cut first entry is not, unless its length is cut as well (specification.md 2.3).
            if entry.hopeless or (entry is ParseStop.CUT and not end and len(data) >= 4):
                raise CompressionError(f"inside a wrapper: {entry.value}")
            return
        self._unfinished.append((data, entry.end))
        if entry.damage or entry.compression:
            self._charge(_EXCEPTION_BYTES)
        if entry.damage:
            self._add_damaged(entry, f"inside a wrapper: {entry.damage}")
        elif entry.compression:
            self._enter(entry)
        else:
            self.values.append(entry.payload)

    def _add_damaged(self, entry: LogEntry, reason: str) -> None:
        self.damaged[len(self.values)] = reason
        self.values.append(entry.raw)

    def _charge(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise self._too_large()

    def _too_large(self) -> DecompressedTooLarge:
        return DecompressedTooLarge(f"grows beyond {self._max_bytes} bytes (max_decompressed_bytes)")
