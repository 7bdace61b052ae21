"""Compressed messages, opened: every level of them, within a bound (specification 2.2 and 2.3)."""

from __future__ import annotations

from odradek import codec
from odradek.wire.compression import BadCompression, Bomb, Codec, decompress
from odradek.wire.kafka07.entries import Entry, Stop, read_entry

__all__ = ["MAX_NESTING", "ROW_BYTES", "Opened"]

MAX_NESTING = 64
"""Wrappers within wrappers that are opened; a deeper one counts as undecodable. Stock producers make one level, the
recorded broker cases four; the broker itself recurses until its stack ends."""

ROW_BYTES = 64
"""What a message out of a wrapper counts beyond its payload: about what its row in the columns takes."""

_ODD_BYTES = 1024  # what a wrapper in a wrapper (its codec's state) or a damaged entry in one (its report) counts

_WINDOW = 1 << 20  # bytes of a wrapper's content decoded between two looks at the room left


class Opened:
    """The messages of a wrapper, of all its levels, in order (specification 2.2).

    `values` has their payloads; `damaged` says by row number what is wrong with those that are raw entries instead.
    When something made it impossible to go on, the last row is the whole wrapper.
    """

    def __init__(self, wrapper: Entry, max_bytes: int) -> None:
        self.values = codec.active.Values()
        self.damaged: dict[int, str] = {}
        self._max_bytes = self._room = max_bytes
        # Depth first without recursion, so that hostile nesting cannot end our stack: (set, index to go on from).
        self._unfinished: list[tuple[bytes, int]] = []
        try:
            self._enter(wrapper)
            while self._unfinished:
                self._go_on(*self._unfinished.pop())
        except BadCompression as error:
            self._add_damaged(wrapper, str(error))

    def _enter(self, wrapper: Entry) -> None:
        if len(self._unfinished) >= MAX_NESTING:
            raise BadCompression(f"wrappers nested more than {MAX_NESTING} deep")
        try:
            data = decompress(Codec(wrapper.codec), wrapper.payload, self._room)
        except Bomb:
            raise self._bomb() from None
        self._room -= len(data)
        self._unfinished.append((data, 0))

    def _go_on(self, data: bytes, start: int) -> None:
        """A run of plain messages, and the one entry behind it that is not."""
        before = len(self.values)
        end = self.values.decode_run(data, start, min(start + _WINDOW, len(data)))
        self._charge(ROW_BYTES * (len(self.values) - before + 1))
        entry = read_entry(memoryview(data), end)
        if isinstance(entry, Stop):
            # A cut tail is ignored, a cut first entry is not, unless even its length is cut (specification 2.3).
            if entry.hopeless or (entry is Stop.CUT and not end and len(data) >= 4):
                raise BadCompression(f"inside a wrapper: {entry.value}")
            return
        self._unfinished.append((data, entry.end))
        if entry.damage or entry.codec:
            self._charge(_ODD_BYTES)
        if entry.damage:
            self._add_damaged(entry, f"inside a wrapper: {entry.damage}")
        elif entry.codec:
            self._enter(entry)
        else:
            self.values.append(entry.payload)

    def _add_damaged(self, entry: Entry, reason: str) -> None:
        self.damaged[len(self.values)] = reason
        self.values.append(entry.raw)

    def _charge(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise self._bomb()

    def _bomb(self) -> Bomb:
        return Bomb(f"grows beyond {self._max_bytes} bytes (max_decompressed_bytes)")
