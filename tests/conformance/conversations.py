"""The recorded broker cases as conversations: requests, each with its answer; and what a log holds, told simply."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from tests.frames import FrameReader

from odradek.errors import RemoteProtocolError
from odradek.wire.compression import CompressionError, CompressionType
from odradek.wire.kafka07.compression import decompress
from odradek.wire.kafka07.requests import (
    Fetch,
    MultiFetch,
    MultiProduce,
    Offsets,
    Produce,
    Request,
    decode_request,
)

from .replay import Case, Step, bytes_of

T0_MS = 1_790_000_000_000
LIMIT = 104_857_600  # max.socket.request.bytes


class Exchange:
    """A request, its frame's body, and the bytes that answered it: None when nothing did, or only a digest was kept."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.request: Request = decode_request(body)
        self.reply: bytes | None = None

    @property
    def fetches(self) -> tuple[Fetch, ...]:
        match self.request:
            case MultiFetch(parts):
                return parts
            case Fetch():
                return (self.request,)
            case _:
                return ()

    @property
    def produces(self) -> tuple[Produce, ...]:
        match self.request:
            case MultiProduce(parts):
                return parts
            case Produce():
                return (self.request,)
            case _:
                return ()

    @property
    def parts(self) -> tuple[Produce | Fetch | Offsets, ...]:
        return (self.request,) if isinstance(self.request, Offsets) else (*self.produces, *self.fetches)

    @property
    def answered(self) -> bool:
        return isinstance(self.request, Fetch | MultiFetch | Offsets)

    @property
    def breaks_off(self) -> bool:
        """A negative size makes the broker announce nonsense and close (specification 3.2)."""
        return any(part.max_bytes < 0 for part in self.fetches)


class Talk:
    """One connection."""

    def __init__(self, limit: int) -> None:
        self._frames = FrameReader(limit)
        self._waiting: deque[Exchange] = deque()
        self._held = b""

    def send(self, data: bytes) -> Iterator[Exchange]:
        """The requests that become whole, up to the first the broker would close on."""
        try:
            for body in self._frames.feed(data):
                exchange = Exchange(body)
                if exchange.answered:
                    self._waiting.append(exchange)
                yield exchange
        except RemoteProtocolError:
            self._frames = FrameReader(0)  # nothing behind it is read

    def receive(self, data: bytes) -> None:
        self._held += data
        while self._waiting and (size := self._reply_bytes(self._waiting[0])):
            self._waiting.popleft().reply, self._held = self._held[:size], self._held[size:]
        assert not self._held, "recorded answers are whole"

    def _reply_bytes(self, exchange: Exchange) -> int:
        if len(self._held) < 4 or exchange.breaks_off:
            return len(self._held)
        size = 4 + int.from_bytes(self._held[:4], "big")
        return size if size <= len(self._held) else 0

    def skip(self) -> None:
        """One answer of which only a digest was kept."""
        self._waiting.popleft()


def sent_bytes(step: Step) -> bytes:
    data = bytearray(bytes_of(step.get("hex", ""), step.get("data", ())))
    for position, delta in step.get("times", ()):
        struct.pack_into(">q", data, position, T0_MS + delta)
    return bytes(data)


def exchanges(case: Case) -> list[Exchange]:
    """All of a case, in the order they were sent."""
    limit = int(case.broker.get("max.socket.request.bytes", LIMIT))
    talks: dict[str, Talk] = {}
    exchanges: list[Exchange] = []
    for step in case.steps:
        conn = step.get("conn", "")
        match step["op"]:
            case "connect" | "connect_second":
                talks[conn] = Talk(limit)
            case "send":
                exchanges += talks[conn].send(sent_bytes(step))
            case "recv" if "hex" in step:
                talks[conn].receive(bytes.fromhex(step["hex"]))
            case "recv" if "sha256" in step:
                talks[conn].skip()
    return exchanges


# ---- what a log holds --------------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """One level-one entry of a log."""

    position: int
    end: int
    values: list[bytes]


def entries_of(log: bytes, position: int = 0) -> Iterator[Stored]:
    """Entries of a log, straight from the layout of specification 2.1, up to one that is cut or cannot be opened."""
    at = 0
    while at + 4 <= len(log):
        length = int.from_bytes(log[at : at + 4], "big")
        entry = log[at + 4 : at + 4 + length]
        if len(entry) < length or length < 5:
            return
        try:
            yield Stored(position + at, position + at + 4 + length, values_of(entry))
        except (CompressionError, ValueError):  # ValueError: codec 3
            return
        at += 4 + length


def values_of(entry: bytes) -> list[bytes]:
    magic, attributes = entry[0], entry[1] if entry[0] else 0
    payload = entry[5 + magic :]
    if not (compression := attributes & 3):
        return [payload]
    inner = bytes(decompress(CompressionType(compression), payload, 64 << 20))
    return [value for stored in entries_of(inner) for value in stored.values]


Row = tuple[int, int, bytes]


def rows_of(entry: Stored) -> list[Row]:
    """Position, where to resume, value of each message: the rule of specification 2.3."""
    last = len(entry.values) - 1
    return [(entry.position, entry.end if n == last else entry.position, value) for n, value in enumerate(entry.values)]
