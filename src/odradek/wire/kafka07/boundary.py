"""Proof of where a message begins, from the bytes around a position in a 0.7 log.

A broker answers a fetch from any byte, so a log may be cut anywhere, provided it is known that a message begins there.
Bytes that look like a message need not be one: payloads may contain message sets (a mirror of raw logs stores them),
nested, cut off, or made to deceive. `BoundarySearch` finds the first position at or after a cut that it can prove. Two
facts make a proof; `most` is the largest entry that the log may contain:

*Nothing spans x.* If x were inside an entry of the log, that entry would be valid, start less than `most` before x and
end after it. So if no valid entry starts in (x - most, x) and ends after x - at any byte, nested or not - x is a
boundary. This holds whatever payloads contain. It takes for granted that the entry at x is undamaged.

*A chain leads to x.* Valid entries, each beginning where the one before ends, cover at least `most` bytes before x.
Somewhere in there an entry of the log begins. If it begins where one of the chain's does, chain and log are the same
from there on. Otherwise one of the chain's entries lies across a boundary of the log, and its CRC is right although no
writer computed it: one in 2^32 by chance. This holds whatever is damaged, since damage makes nothing valid.

Both are required. So a wrong boundary needs forged entries, which lie across real ones with the right CRC, and damage
at the same position; and then the ranges on both sides do not end where they should, which a reader of ranges checks.
After a damaged entry nothing is proved for `most` bytes; the search continues after them. After a damaged length field,
which stops every reader, boundaries are those of the messages as they were written.

Shortly after a known boundary no proof is needed: following the lengths from there is what a reader does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from odradek import engine
from odradek.engine import Buffer
from odradek.wire.kafka07.crc_ranges import RangeCrc
from odradek.wire.kafka07.entries import LogEntry, ParseStop, check_length, head_bytes, read_entry

__all__ = ["BoundarySearch", "Proved", "Unproved"]

LOOKBACK_FRACTION = 16
"""Divides `most`: where messages are no larger than that fraction, a search looks at `most` and two such fractions."""

SEARCH_FACTOR = 4
"""The distance after the cut that a search covers, in units of `most`. In a log of nothing but largest messages, one is
for the chain to begin, one for its length, one for the message then begun, one for an entry that may span its end."""

EASY_BUDGET, TOTAL_BUDGET = 20_000, 1_000_000
"""Work for one search, in inspected heads (1 us each): before the search goes further after the cut, where wrong chains
end soon, and in total."""

CRC_COST = 10
"""The cost of a checksum, in inspected heads."""

MAX_CHAIN = 16
"""Maximum number of entry heads that a chain is followed for."""

MAX_CANDIDATES = 32
"""Positions tried for one cut. If a valid entry spans each of them, the log was made to deceive."""

_KINDS = b"(?:\0|\1[" + b"".join(re.escape(bytes([a])) for a in range(256) if a & 3 != 3) + b"])"
"""The bytes after a length: magic 0, or magic 1 and a compression type that exists."""


class Proved(NamedTuple):
    """A message begins here, or the log ends."""

    position: int


class Unproved(NamedTuple):
    """The reason why no boundary could be proved."""

    reason: str


class BoundarySearch:
    """The search for the first provable message boundary at or after `cut`. Sans IO:

        while (wanted := search.wanted) is not None:
            search.feed(...)                # the log's bytes from wanted[0] on, at most up to wanted[1]
        search.result

    Args:
        cut: Where a boundary is wanted.
        floor: A boundary at or before the cut, such as the start of its segment.
        ceiling: Where the log (or its segment) ends, at or after the cut.
        most: Bytes of the largest entry the log may contain. If it contains a larger one, nothing is proved.
        torn: `ceiling` may be inside a message that is not whole (a file that is or was being written to). Otherwise
            it is a boundary, and the answer if there is none before.
    """

    def __init__(self, cut: int, *, floor: int, ceiling: int, most: int, torn: bool = False) -> None:
        if not floor <= cut <= ceiling:
            raise ValueError(f"cut {cut} is not in [{floor}, {ceiling}]")
        lead = max(most // LOOKBACK_FRACTION, 64)
        self._cut, self._ceiling, self._torn = cut, ceiling, torn
        self._most, self._lead = most, lead
        self._base = max(cut - most - lead, floor)
        self._anchored = self._base == floor
        self._stop = min(cut + lead, ceiling)
        self._parts: list[bytes] = []
        self._fed = self._base
        self._window: _Window | None = None
        self._goal = cut
        self._tries = MAX_CANDIDATES
        self.result: Proved | Unproved | None = None
        if cut == floor or (cut == ceiling and not torn):
            self.result = Proved(cut)

    @property
    def wanted(self) -> tuple[int, int] | None:
        """The bytes to feed next, as positions [start, stop); None when there is a `result`."""
        return None if self.result is not None else (self._fed, self._stop)

    @property
    def proved(self) -> int | None:
        """The boundary that was proved; None without one."""
        return self.result.position if isinstance(self.result, Proved) else None

    @property
    def reason(self) -> str:
        """The reason why no boundary could be proved."""
        return self.result.reason if isinstance(self.result, Unproved) else ""

    def feed(self, data: Buffer) -> None:
        """Take the next bytes, any number of them; none: the log has no more."""
        if self.result is not None:
            return
        if not len(data):
            self.result = Unproved(f"the log ends at {self._fed}, before {self._stop}")
            return
        self._parts.append(bytes(data[: self._stop - self._fed]))
        self._fed += len(self._parts[-1])
        if self._fed == self._stop:
            self._scan()

    def _scan(self) -> None:
        self._parts = [b"".join(self._parts)]
        if self._window is None:
            self._window = _Window(self._base, self._ceiling, self._most, self._anchored, self._torn)
        try:
            self._search(self._window, self._parts[0])
        except _Hopeless as why:
            ahead = min(self._goal + 2 * self._most, self._ceiling)
            if not isinstance(why, _Expensive) or self._fed >= ahead:
                self.result = Unproved(str(why))
            else:
                self._window.budget = TOTAL_BUDGET
                self._stop = ahead

    def _search(self, window: _Window, data: bytes) -> None:
        window.show(data)
        while True:
            boundary_at = window.boundary(self._goal)
            if boundary_at is None:
                return self._more(max(window.needs, self._fed + self._lead, 2 * self._fed - self._cut))
            end, valid = (0, False) if self._anchored else window.spanned(boundary_at)
            if not end:
                self.result = Proved(boundary_at)
                return None
            if not valid:
                return self._more(end)
            self._goal = end  # everything before it is spanned as well
            self._tries -= 1
            if not self._tries:
                raise _Hopeless(f"{MAX_CANDIDATES} positions from {self._cut} on are inside entries that look valid")

    def _more(self, stop: int) -> None:
        if self._fed == self._ceiling:
            why = "a message that is not whole ends the log"
            self.result = Unproved(why) if self._torn else Proved(self._ceiling)
        elif self._fed - self._cut >= SEARCH_FACTOR * self._most:
            self.result = Unproved(f"no boundary can be proved within {self._fed - self._cut} bytes of {self._cut}")
        else:
            self._stop = min(stop, self._ceiling)


# ---- entries in the bytes -----------------------------------------------------------------------------------


class _Hopeless(Exception):
    """The bytes so far rule out that a boundary can be proved."""


class _Expensive(_Hopeless):
    """The budget is used up."""


class _Window:
    """The bytes seen so far, and the entries known in them. Positions are those of the log."""

    def __init__(self, base: int, ceiling: int, most: int, anchored: bool, torn: bool) -> None:
        self._base, self._ceiling, self._most = base, ceiling, most
        self._anchored, self._torn = anchored, torn
        self._any, self._classes = _patterns(most - 4)
        self.budget = EASY_BUDGET
        self._sound: set[int] = set()  # indexes of whole entries with the right CRC
        self._invalid: set[int] = set()  # indexes where there is none, or one that leads to none
        self._chain = 0 if anchored else -1  # index where the chain of valid entries begins; -1: there is none
        self._at = 0  # index where it ends so far; without one, where to look for its beginning
        self.needs = 0  # without a boundary: the position up to which bytes are needed, if known

    def show(self, data: bytes) -> None:
        """Replace the bytes by more: the same and those after them."""
        self.data, self._checksums = data, RangeCrc(data)

    def boundary(self, goal: int) -> int | None:
        """Return the first position at or after `goal` that the chain makes a boundary; None: more bytes are needed."""
        view = memoryview(self.data)
        while self._chain >= 0 or self._begin_chain():
            target = goal - self._base
            if not self._anchored:
                target = max(target, self._chain + self._most)
            if self._follow(view, target):
                return self._base + self._at
            if self._chain >= 0:
                return None
        return None

    def _follow(self, view: memoryview, target: int) -> bool:
        """Extend the chain to `target`. Return False if the bytes end first, or the chain does: then there is none."""
        while self._at < target:
            self._at, _ = engine.active.check_run(view, self._at, min(target, len(view)), self._most)
            if self._at >= target:
                break
            entry = read_entry(view, self._at, 0, self._most)
            if isinstance(entry, LogEntry) and (self._anchored or not entry.damage):
                self._at = entry.end
            elif entry is ParseStop.END or (entry is ParseStop.CUT and (self._anchored or self._plausible(self._at))):
                self.needs = self._base + self._end(self._at)
                return False
            elif isinstance(entry, ParseStop) and self._anchored:
                raise _Hopeless(f"damage at {self._base + self._at}: {entry.value}")
            else:
                self._chain = -1
                return False
        return True

    def _begin_chain(self) -> bool:
        """Find the first valid entry from `_at` on. If it ends after the bytes, more are needed: skipping it would mean
        looking into its payload."""
        for match in self._any.finditer(self.data, self._at):
            start = match.start()
            valid = self._valid(start)
            if valid is None:
                self._at, self.needs = start, self._base + self._end(start)
                return False
            if valid:
                self._chain = self._at = start
                return True
        self._at = max(self._at, len(self.data) - 9)
        return False

    def spanned(self, position: int) -> tuple[int, bool]:
        """Return where an entry ends that starts before `position` and ends after it, and whether it is valid: if not,
        the bytes up to its end are needed to tell. (0, False): there is none."""
        index = position - self._base
        heads = position + 5  # where the heads of entries before it end
        if not self._torn:
            heads = min(heads, self._ceiling)
        unknown = heads if heads > self._base + len(self.data) else 0
        for start, end in self._spanning(index):
            valid = self._valid(start)
            if valid:
                return self._base + end, True
            if valid is None:
                unknown = max(unknown, self._base + end)
        return unknown, False

    def _spanning(self, index: int) -> Iterator[tuple[int, int]]:
        for longest, pattern in self._classes:
            for match in pattern.finditer(self.data, max(index - longest - 3, 0), index + 5):
                start = match.start()
                end = self._end(start)
                if start < index < end:
                    yield start, end

    def _end(self, start: int) -> int:
        return start + 4 + int.from_bytes(self.data[start : start + 4], "big", signed=True)

    def _plausible(self, start: int) -> bool:
        """Return True if an entry that begins here may be valid, as far as its head is known."""
        if self._base + start == self._ceiling:
            return True
        head = self.data[start : start + 6]
        if len(head) < 6:
            return True
        if check_length(self._end(start) - start - 4, self._most, head[4:5]):
            return False
        if self._base + self._end(start) > self._ceiling and not self._torn:
            return False
        return head[4] == 0 or (head[4] == 1 and head[5] & 3 != 3)

    def _valid(self, start: int) -> bool | None:
        """Return whether a valid entry begins here and only valid ones follow it; None: it ends after the bytes.

        Some heads are followed from one to the next, and the shortest is checksummed first: payloads of numbers look
        like long messages at many positions, and few of those lead anywhere.
        """
        if start not in self._invalid and start in self._sound:
            return True
        path = self._path(start)
        whole = sorted(
            (self._end(at) - at, number) for number, at in enumerate(path) if self._end(at) <= len(self.data)
        )
        for _, number in whole:
            if not self._checksum(path[number]):
                self._invalid.update(path[: number + 1])
                return False
        if not path:
            return False if start in self._invalid else None
        return True if self._end(start) <= len(self.data) else None

    def _path(self, start: int) -> list[int]:
        """Return the positions of heads from `start` on, each where the entry before ends; none if they lead to bytes
        that cannot be a head."""
        path: list[int] = []
        while len(path) < MAX_CHAIN:
            if start in self._invalid or not self._plausible(start):
                self._invalid.update(path, (start,))
                return []
            if start in self._sound or start + 6 > len(self.data):
                break
            path.append(start)
            start = self._end(start)
        self._spend(len(path))
        return path

    def _checksum(self, start: int) -> bool:
        """Return True if the CRC of the whole entry at `start` is right."""
        self._spend(CRC_COST)
        end, body = self._end(start), start + head_bytes(self.data[start + 4])
        if self._checksums.of(body, end) != int.from_bytes(self.data[body - 4 : body], "big"):
            return False
        self._sound.add(start)
        return True

    def _spend(self, size: int) -> None:
        self.budget -= size
        if self.budget < 0:
            raise _Expensive("payloads look like messages at too many positions")


def _patterns(most: int) -> tuple[re.Pattern[bytes], list[tuple[int, re.Pattern[bytes]]]]:
    """Return patterns that find heads with a length of at most `most`: one for all of them, and one for each number of
    bytes that the length takes, with the longest length of that class. Far from a position, only heads with a length
    that reaches it are of interest.

    A match is one byte long, so that overlapping heads are all found.
    """
    classes = []
    for size in range(1, 5):
        low, high = max(5, 1 << 8 * (size - 1)), min(most, (1 << 8 * size) - 1)
        if low <= high:
            first = [re.escape(bytes([bound >> 8 * (size - 1)])) for bound in (low, high)]
            classes.append((high, b"\0" * (4 - size) + b"[" + b"-".join(first) + b"]" + b"." * (size - 1)))
    return _heads(*(length for _, length in classes)), [(longest, _heads(length)) for longest, length in classes]


def _heads(*lengths: bytes) -> re.Pattern[bytes]:
    if all(length.startswith(b"\0") for length in lengths):  # the search skips to the next zero byte
        return re.compile(b"\0(?=(?:" + b"|".join(length[1:] for length in lengths) + b")" + _KINDS + b")", re.DOTALL)
    return re.compile(b"(?=(?:" + b"|".join(lengths) + b")" + _KINDS + b").", re.DOTALL)
