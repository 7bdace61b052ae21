"""The five requests of 0.7, both directions (specification.md 1.1-1.3, golden bytes in App. C)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from odradek import engine
from odradek.engine import Buffer
from odradek.errors import LocalProtocolError, RemoteProtocolError

__all__ = [
    "Fetch",
    "MultiFetch",
    "MultiProduce",
    "Offsets",
    "Produce",
    "Request",
    "decode_request",
    "encode_plain_sets",
    "encode_request",
    "produce_head",
]


class Produce(NamedTuple):
    """Append a message set. Never answered. Partition -1: the broker chooses one."""

    topic: str
    partition: int
    message_set: Buffer


class Fetch(NamedTuple):
    """Read at most `max_bytes` raw log bytes from byte position `offset`."""

    topic: str
    partition: int
    offset: int
    max_bytes: int


class MultiFetch(NamedTuple):
    """A list of fetches, answered together, in order. With zero parts it is the cheapest request that is answered."""

    parts: tuple[Fetch, ...]


class MultiProduce(NamedTuple):
    """A list of produces, applied in order. Never answered."""

    parts: tuple[Produce, ...]


class Offsets(NamedTuple):
    """Ask for at most `max_number` segment positions at or before `time` (ms; -1 latest, -2 earliest)."""

    topic: str
    partition: int
    time: int
    max_number: int


Request = Produce | Fetch | MultiFetch | MultiProduce | Offsets

_PRODUCE, _FETCH, _MULTIFETCH, _MULTIPRODUCE, _OFFSETS = range(5)
_MAX_FRAME = 0x7FFFFFFF
_PARTITION_LENGTH, _PARTITION_LONG_INT = struct.Struct(">ii"), struct.Struct(">iqi")


def encode_request(request: Request) -> list[Buffer]:
    """Return the whole frame, its size first, as buffers to be written one after the other. Message sets are passed on
    without a copy.

    Raises:
        LocalProtocolError: A number, a topic, the number of parts or the whole frame does not fit into its field.
    """
    try:
        match request:
            case Produce(topic, partition, message_set):  # the request that callers wait for one by one
                head = b"\0\0" + _topic(topic) + _PARTITION_LENGTH.pack(partition, len(message_set))
                buffers: list[Buffer] = [head, message_set]
            case _:
                buffers = _encode_body(request)
    except (struct.error, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"{_summary(request)} cannot be written: {error}") from None
    size = sum(map(len, buffers))
    if size > _MAX_FRAME:
        raise LocalProtocolError(f"{_summary(request)} has {size} bytes, a frame holds {_MAX_FRAME}: send fewer")
    return [size.to_bytes(4, "big") + buffers[0], *buffers[1:]]


def produce_head(topic: str, partition: int) -> bytes:
    """Return what a part of a produce begins with, for `encode_plain_sets`.

    Raises:
        LocalProtocolError: The topic or the number does not fit into its field.
    """
    try:
        return _topic(topic) + struct.pack(">i", partition)
    except (struct.error, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"{topic!r}/{partition} cannot be written: {error}") from None


def encode_plain_sets(heads: Sequence[bytes], runs: Sequence[Sequence[Any]], tail: bytes, max_set: int) -> bytes | None:
    """Return the frame of a PRODUCE, or of a MULTIPRODUCE of several parts, of records that are not compressed, in one
    buffer, and `tail` behind it.

    The same bytes as `encode_request` and `message_set.encode_set` make, for a fraction of what a small part costs.

    Args:
        heads: The `produce_head` of each part; at most 32,767.
        runs: The records of each part: payloads, or tuples that begin with one.
        tail: The bytes to send right after the frame.
        max_set: The most that the message set of one part may have (bytes).

    Returns:
        None if a message set has more, a payload is not `bytes`, or the frame would be too large.
    """
    try:
        start = b"\0\0" if len(heads) == 1 else _count(_MULTIPRODUCE, heads)
        return engine.active.encode_frame(start, heads, runs, tail, max_set)
    except (OverflowError, TypeError, struct.error):
        return None


def decode_request(body: Buffer) -> Request:
    """Return the request in a frame's body (without its size).

    All parts are parsed before anything is returned, surplus bytes are ignored, message sets are views into `body`.

    A topic that is not UTF-8 is decoded with U+FFFD, which no topic may contain.

    Raises:
        RemoteProtocolError: The broker would close the connection: unknown type, a field beyond the end, a negative
            length or count.
    """
    cursor = _Cursor(body)
    kind = cursor.i16()
    if not 0 <= kind < len(_DECODERS):
        raise RemoteProtocolError(f"request type {kind} does not exist")
    return _DECODERS[kind](cursor)


# ---- encoding -----------------------------------------------------------------------------------------------


def _encode_body(request: Fetch | MultiFetch | MultiProduce | Offsets) -> list[Buffer]:
    """Return the body as buffers; the first one is `bytes`."""
    match request:
        case Fetch():
            return [b"\0\1" + _fetch(request)]
        case MultiFetch(parts):
            return [_count(_MULTIFETCH, parts) + b"".join(map(_fetch, parts))]
        case MultiProduce(parts):
            buffers: list[Buffer] = [_count(_MULTIPRODUCE, parts)]
            for topic, partition, message_set in parts:
                buffers += _topic(topic) + _PARTITION_LENGTH.pack(partition, len(message_set)), message_set
            return buffers
        case _:
            topic, *numbers = request
            return [b"\0\4" + _topic(topic) + _PARTITION_LONG_INT.pack(*numbers)]


def _count(kind: int, parts: Sequence[object]) -> bytes:
    return struct.pack(">hh", kind, len(parts))


@lru_cache(maxsize=1024)
def _topic(topic: str) -> bytes:
    name = topic.encode()
    return struct.pack(">h", len(name)) + name


def _fetch(part: Fetch) -> bytes:
    topic, partition, offset, max_bytes = part
    return _topic(topic) + _PARTITION_LONG_INT.pack(partition, offset, max_bytes)


def _summary(request: Request) -> str:
    match request:
        case MultiFetch(parts) | MultiProduce(parts):
            return f"{type(request).__name__} of {len(parts)} parts"
        case _:
            return f"{type(request).__name__} for {request.topic!r}/{request.partition}"


# ---- decoding -----------------------------------------------------------------------------------------------


class _Cursor:
    """Reads fields one after the other; any read beyond the end raises RemoteProtocolError."""

    __slots__ = ("_data", "_pos")

    def __init__(self, body: Buffer) -> None:
        self._data = memoryview(body)
        self._pos = 0

    def take(self, size: int, what: str) -> memoryview:
        start = self._pos
        if not 0 <= size <= len(self._data) - start:
            raise RemoteProtocolError(f"{what} of {size} bytes at {start}, but the body has {len(self._data)}")
        self._pos = start + size
        return self._data[start : self._pos]

    def i16(self) -> int:
        return int.from_bytes(self.take(2, "a number"), "big", signed=True)

    def topic(self) -> str:
        return str(self.take(self.i16(), "a topic"), "utf-8", "replace")

    def count(self) -> int:
        if (count := self.i16()) < 0:
            raise RemoteProtocolError(f"a request of {count} parts")
        return count

    def produce(self) -> Produce:
        topic = self.topic()
        partition, size = _PARTITION_LENGTH.unpack(self.take(8, "partition and length"))
        return Produce(topic, partition, self.take(size, "a message set"))

    def fetch(self) -> Fetch:
        return Fetch(self.topic(), *_PARTITION_LONG_INT.unpack(self.take(16, "a fetch")))

    def offsets(self) -> Offsets:
        return Offsets(self.topic(), *_PARTITION_LONG_INT.unpack(self.take(16, "an offsets request")))


_DECODERS: Sequence[Callable[[_Cursor], Request]] = (
    _Cursor.produce,
    _Cursor.fetch,
    lambda cursor: MultiFetch(tuple([cursor.fetch() for _ in range(cursor.count())])),
    lambda cursor: MultiProduce(tuple([cursor.produce() for _ in range(cursor.count())])),
    _Cursor.offsets,
)
