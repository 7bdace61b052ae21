"""The three responses of 0.7 (specification.md 1.4 and 1.5).

A response does not say what it answers, so each decoder is made for one expected response. Decoders are fed bytes in
any split and pass log bytes on as they arrive; a whole response is never assembled in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from odradek.engine import Buffer
from odradek.errors import BrokerError, OffsetOutOfRange, RemoteProtocolError

__all__ = [
    "ConfirmReply",
    "FetchReply",
    "Kafka07ErrorCode",
    "LogBytesSink",
    "MultiFetchReply",
    "OffsetsReply",
    "PartResult",
    "broker_error",
    "encode_offsets",
]


class Kafka07ErrorCode(IntEnum):
    """The error codes of 0.7. The broker sends only -1, 0, 1 and 3 (specification.md 1.5)."""

    UNKNOWN = -1
    NO_ERROR = 0
    OFFSET_OUT_OF_RANGE = 1
    INVALID_MESSAGE = 2
    WRONG_PARTITION = 3
    INVALID_FETCH_SIZE = 4

    @property
    def protocol_name(self) -> str:
        """The name in Kafka's sources: `OffsetOutOfRange`."""
        return self.name.title().replace("_", "")


class _Policy(NamedTuple):
    """The meaning of an error code for the client."""

    refresh_metadata: bool
    hint: str


_POLICIES = {
    Kafka07ErrorCode.UNKNOWN: _Policy(False, "0.7 brokers answer this to an illegal topic name"),
    Kafka07ErrorCode.OFFSET_OUT_OF_RANGE: _Policy(False, "this position is not in the log: use EARLIEST or LATEST"),
    Kafka07ErrorCode.INVALID_MESSAGE: _Policy(False, ""),
    Kafka07ErrorCode.WRONG_PARTITION: _Policy(True, "the broker has fewer partitions of this topic: list them again"),
    Kafka07ErrorCode.INVALID_FETCH_SIZE: _Policy(False, ""),
}
"""Every code but NO_ERROR. They do not pass by themselves, so they are not retriable; they end no producer or consumer:
an error answer is about one partition. 0.7 does not fence."""


def broker_error(code: int, context: str = "") -> BrokerError:
    """Return the error for a code other than 0; an unknown code keeps its number.

    Args:
        code: The code as received.
        context: The request, and the broker.
    """
    try:
        known = Kafka07ErrorCode(code)
    except ValueError:
        return BrokerError(code, "Unrecognized", context)
    policy = _POLICIES[known]
    kind = OffsetOutOfRange if known is Kafka07ErrorCode.OFFSET_OUT_OF_RANGE else BrokerError
    error = kind(code, known.protocol_name, context, refresh_metadata=policy.refresh_metadata)
    error.hint = policy.hint
    return error


# ---- encoding: the broker --------------------------------------------------------------------------------------

_HEADER = struct.Struct(">ih")  # size (its two error bytes included), error code
_EMPTY_PART = _HEADER.size
_read_header = _HEADER.unpack_from
_EMPTY = _HEADER.pack(2, 0)


def encode_offsets(offsets: Sequence[int]) -> list[Buffer]:
    """Return an OFFSETS response. Its code is always 0: any error closes the connection instead."""
    count = len(offsets)
    return [struct.pack(f">ihi{count}q", 6 + 8 * count, 0, count, *offsets)]


# ---- the client's side --------------------------------------------------------------------------------------


class LogBytesSink(Protocol):
    """The receiver of the log bytes of one part. They are valid during the call only."""

    def feed(self, data: memoryview, /) -> None: ...


class PartResult(NamedTuple):
    """The result of one part of a fetch: its error code, and how many bytes its sink was fed."""

    error_code: int
    received: int


_new_result = tuple.__new__  # without a Python function that names the fields


class FetchReply:
    """Decodes one FETCH response.

    Args:
        sinks: Exactly one: takes the log bytes as they arrive.
        limit: Maximum of log bytes that can answer the request.
    """

    whole_bytes = 0
    """Any piece will do."""
    _opened = True
    """The next header is one of a part, and no longer that of the whole response."""
    _is_exact = False
    """The parts together have as many log bytes as were announced."""

    def __init__(self, sinks: Iterable[LogBytesSink], limit: int) -> None:
        self.done = False
        """True once the response is complete: no byte after it belongs to it."""
        self._sinks = list(sinks)
        self._results: list[PartResult] = []
        self._header = bytearray()  # one that arrived in parts
        self._allowed = limit if self._sinks else 0  # log bytes that may still be announced
        self._error_code = 0
        self._size = 0  # log bytes of the current part
        self._missing = 0  # of them, not yet received

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {len(self._results)} of {len(self._sinks)} parts, {self._missing} bytes missing>"
        )

    def result(self) -> list[PartResult]:
        """Return one result per part, in the order of the sinks."""
        return self._results

    def feed(self, data: memoryview) -> int:
        """Take the next bytes and return how many belong to this response: all of them, unless it is complete.

        Raises:
            RemoteProtocolError: The bytes are not an answer to the request. Feed no more.
        """
        used, end = 0, len(data)
        while used < end and not self.done:
            if missing := self._missing:
                start = used
                used = end if missing > end - start else start + missing
                self._missing = missing - (used - start)
                self._sinks[len(self._results)].feed(data[start:used])
                if not self._missing:
                    self._end_part()
            elif self._header or end - used < _EMPTY_PART:
                used += self._collect_header(data[used : used + _EMPTY_PART - len(self._header)])
            else:
                size, error_code = _read_header(data, used)
                used += _EMPTY_PART
                self._on_header(size - 2, error_code)
        return used

    def _collect_header(self, part: memoryview) -> int:
        """Take a part of a header that arrives in parts. Return how many bytes it is."""
        self._header += part
        if len(self._header) == _EMPTY_PART:
            size, error_code = _HEADER.unpack(self._header)
            self._header.clear()
            self._on_header(size - 2, error_code)
        return len(part)

    def _on_header(self, size: int, error_code: int) -> None:
        if not self._opened:
            self._open(size, error_code)
            return
        if not 0 <= size <= self._allowed:
            raise RemoteProtocolError(f"{size} bytes of log in answer to a request for at most {self._allowed}")
        if size and error_code:
            raise RemoteProtocolError(f"error code {error_code} together with {size} bytes of log")
        self._allowed -= size
        self._error_code, self._size, self._missing = error_code, size, size
        if self._is_exact and self._allowed and len(self._results) + 1 == len(self._sinks):
            raise RemoteProtocolError(f"the parts are {self._allowed} bytes shorter than announced")
        if not size:
            self._end_part()

    def _open(self, size: int, error_code: int) -> None:
        """Take the header of the whole response, which a MULTIFETCH alone has."""
        raise NotImplementedError

    def _end_part(self) -> None:
        results = self._results
        results.append(_new_result(PartResult, (self._error_code, self._size)))
        self.done = len(results) == len(self._sinks)


class MultiFetchReply(FetchReply):
    """Decodes one MULTIFETCH response.

    Args:
        sinks: One for each part of the request, in order; none for a request of zero parts.
        limit: Maximum of log bytes that can answer the whole request.
    """

    _opened = False
    _is_exact = True

    def _open(self, size: int, error_code: int) -> None:
        self._opened = True
        empty = _EMPTY_PART * len(self._sinks)
        if error_code or not empty <= size <= empty + self._allowed:
            raise RemoteProtocolError(
                f"code {error_code} and {size} bytes in answer to {len(self._sinks)} parts of {self._allowed} bytes"
            )
        self._allowed = size - empty
        self.done = not self._sinks


class ConfirmReply:
    """Decodes the response to a MULTIFETCH of zero parts: 6 bytes, which hardly ever arrive in parts."""

    whole_bytes = 0
    """Any piece will do."""

    done = False
    """True once the response is complete: no byte after it belongs to it."""
    _received = b""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {_EMPTY_PART if self.done else len(self._received)} of {_EMPTY_PART} bytes>"

    def feed(self, data: memoryview) -> int:
        """Take the next bytes and return how many belong to this response.

        Raises:
            RemoteProtocolError: The bytes are not an answer to the request. Feed no more.
        """
        if not self._received and data[:_EMPTY_PART] == _EMPTY:
            self.done = True
            return _EMPTY_PART
        part = bytes(data[: _EMPTY_PART - len(self._received)])
        self._received += part
        if len(self._received) == _EMPTY_PART:
            if self._received != _EMPTY:
                size, error_code = _HEADER.unpack(self._received)
                raise RemoteProtocolError(f"code {error_code} and {size - 2} bytes in answer to a request for nothing")
            self.done = True
        return len(part)

    def result(self) -> None:
        """Return None: there is nothing to tell."""


class OffsetsReply:
    """Decodes one OFFSETS response.

    Args:
        max_number: As in the request. One position may arrive even for 0 (specification.md 4.1).
    """

    whole_bytes = 0
    """Any piece will do."""

    def __init__(self, max_number: int) -> None:
        self._max_number = max(max_number, 1)
        self._received = bytearray()
        self._size = 4  # bytes of the whole response, as far as known: first of its size field alone

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._received)} of {self._size} bytes>"

    @property
    def done(self) -> bool:
        """True once the response is complete: no byte after it belongs to it."""
        return len(self._received) == self._size > 4

    def result(self) -> list[int]:
        """Return the positions, newest first.

        Raises:
            BrokerError: The code is not 0; no 0.7 broker sends another one.
            RemoteProtocolError: A position is negative.
        """
        if error_code := int.from_bytes(self._received[4:6], "big", signed=True):
            raise broker_error(error_code, "OFFSETS")
        positions = list(struct.unpack_from(f">{self._count}q", self._received, 10))
        if negative := [position for position in positions if position < 0]:
            raise RemoteProtocolError(f"position {negative[0]} of a log; positions are not negative")
        return positions

    def feed(self, data: memoryview) -> int:
        """Take the next bytes and return how many belong to this response: all of them, unless it is complete.

        Raises:
            RemoteProtocolError: The bytes are not an answer to the request. Feed no more.
        """
        used = self._take(data)
        if len(self._received) == self._size == 4:
            size = int.from_bytes(self._received, "big", signed=True)
            if not 6 <= size <= 6 + 8 * self._max_number or size % 8 != 6:
                raise RemoteProtocolError(f"{size} bytes in answer to a request for {self._max_number} positions")
            self._size = 4 + size
            used += self._take(data[used:])
        if self.done and int.from_bytes(self._received[6:10], "big", signed=True) != self._count:
            raise RemoteProtocolError(f"{self._count} positions came with another count")
        return used

    @property
    def _count(self) -> int:
        return (self._size - 10) // 8

    def _take(self, data: memoryview) -> int:
        taken = data[: self._size - len(self._received)]
        self._received += taken
        return len(taken)
