"""Incremental decoders of responses: they are fed bytes as they arrive, starting with the size of the frame.

Brokers respond in the order of the requests, so a decoder is made for one expected response and stops at its end.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from odradek.errors import RemoteProtocolError
from odradek.wire.decoding import SIZE_BYTES, read_size
from odradek.wire.kafka.headers import decode_response
from odradek.wire.kafka.schema import Response

__all__ = ["FrameDecoder", "KafkaResponseDecoder", "WholeFrameDecoder"]

R = TypeVar("R", bound=Response)


class FrameDecoder:
    """Base class: counts the bytes of one frame, which its subclasses process.

    Args:
        max_bytes: Limit of the frame (bytes), without its size.
    """

    done = False
    """The frame is complete: no byte after it belongs to it."""
    whole_bytes = 0
    """Size up to which it is better fed in one piece (bytes, its size field included)."""
    _size = b""
    _left = 0  # missing bytes of the frame, once its size is known

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def feed(self, data: memoryview) -> int:
        """Process the next bytes and return how many belonged to this frame: all of them, unless it is complete.

        Raises:
            RemoteProtocolError: The bytes are not the expected response. Do not call `feed` again.
        """
        used = 0
        if len(self._size) < SIZE_BYTES:
            used = self._take_size(data)
            if len(self._size) < SIZE_BYTES:
                return used
        part = data[used : used + self._left]
        self._left -= len(part)
        if part:
            self._take(part)
        if not self._left and not self.done:
            self._end()
            self.done = True
        return used + len(part)

    def _take_size(self, data: memoryview) -> int:
        part = data[: SIZE_BYTES - len(self._size)]
        self._size += part
        if len(self._size) == SIZE_BYTES:
            self._left = int.from_bytes(self._size, "big", signed=True)
            if not 0 <= self._left <= self._max_bytes:
                raise RemoteProtocolError(f"a response of {self._left} bytes; at most {self._max_bytes} are accepted")
        return len(part)

    def _take(self, part: memoryview) -> None:
        """Process bytes of the frame, at least one."""
        raise NotImplementedError

    def _end(self) -> None:
        """Finish: all bytes of the frame have been processed."""
        raise NotImplementedError


class WholeFrameDecoder(FrameDecoder):
    """Base class: has the frame as a whole before its subclasses look at it."""

    _frame: bytes | bytearray = b""

    def feed(self, data: memoryview) -> int:
        """Process the next bytes (`FrameDecoder.feed`). A frame that comes whole and alone, as most do, is decoded from
        where it is."""
        size = len(data) - SIZE_BYTES
        if self._size or not 0 <= size <= self._max_bytes or read_size(data)[0] != size:
            return super().feed(data)
        self._size = bytes(data[:SIZE_BYTES])
        self._decode(bytes(data[SIZE_BYTES:]))
        self.done = True
        return len(data)

    def _take(self, part: memoryview) -> None:
        if self._frame:
            self._frame += part
        else:
            self._frame = bytearray(part)

    def _end(self) -> None:
        frame, self._frame = bytes(self._frame), b""
        self._decode(frame)

    def _decode(self, frame: bytes) -> None:
        """Process the frame, without its size."""
        raise NotImplementedError


class KafkaResponseDecoder(WholeFrameDecoder, Generic[R]):
    """Decodes one response.

    Args:
        cls: The expected response.
        version: The version of the request.
        correlation_id: The correlation id of the request.
        max_bytes: Limit of the response (bytes), without its size.
    """

    def __init__(self, cls: type[R], version: int, correlation_id: int, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._cls, self._version, self._correlation_id = cls, version, correlation_id
        self._response: R | None = None

    def __repr__(self) -> str:
        state = "done" if self.done else f"{len(self._frame)} bytes"
        return f"<{type(self).__name__} {self._cls.__name__} version {self._version}: {state}>"

    def result(self) -> R:
        """Return the response, once `done`."""
        assert self._response is not None, "the response is not complete"
        return self._response

    def _decode(self, frame: bytes) -> None:
        self._response, correlation_id = decode_response(self._cls, self._version, frame)
        if correlation_id != self._correlation_id:
            raise RemoteProtocolError(
                f"{self._cls.__name__}: correlation id {correlation_id}, expected {self._correlation_id}"
            )
