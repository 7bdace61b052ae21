"""Responses as they arrive: decoders that are fed bytes in any split, beginning with the size of the frame.

Brokers answer in the order of the requests, so each decoder is made for one expected response and stops at its end.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from odradek.errors import RemoteProtocolError
from odradek.wire.kafka.headers import decode_response
from odradek.wire.kafka.schema import Response

__all__ = ["FrameDecoder", "KafkaResponseDecoder"]

R = TypeVar("R", bound=Response)

_SIZE_BYTES = 4


class FrameDecoder:
    """Counts the bytes of one frame; what it does with them is up to its subclasses.

    Args:
        max_bytes: Most bytes a frame may announce.
    """

    def __init__(self, max_bytes: int) -> None:
        self.done = False
        """The frame is complete: no byte after it belongs to it."""
        self._max_bytes = max_bytes
        self._size = bytearray()
        self._left = 0  # bytes of the frame that have not come yet, once its size is known

    def feed(self, data: memoryview) -> int:
        """Take the next bytes and return how many belonged to this frame: all of them, unless it is complete.

        Raises:
            RemoteProtocolError: The bytes are not the response that is expected. Feed no more.
        """
        used = 0
        if len(self._size) < _SIZE_BYTES:
            used = self._take_size(data)
            if len(self._size) < _SIZE_BYTES:
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
        part = data[: _SIZE_BYTES - len(self._size)]
        self._size += part
        if len(self._size) == _SIZE_BYTES:
            self._left = int.from_bytes(self._size, "big", signed=True)
            if not 0 <= self._left <= self._max_bytes:
                raise RemoteProtocolError(f"a response of {self._left} bytes, the limit is {self._max_bytes}")
        return len(part)

    def _take(self, part: memoryview) -> None:
        """Take bytes of the frame, at least one."""
        raise NotImplementedError

    def _end(self) -> None:
        """Notice that all bytes of the frame have been taken."""
        raise NotImplementedError


class KafkaResponseDecoder(FrameDecoder, Generic[R]):
    """Decodes one response.

    Args:
        cls: The expected response.
        version: As it was requested.
        correlation_id: As it was requested.
        max_bytes: Most bytes the response may have, without its size.
    """

    def __init__(self, cls: type[R], version: int, correlation_id: int, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self._cls, self._version, self._correlation_id = cls, version, correlation_id
        self._frame = bytearray()
        self._response: R | None = None

    def __repr__(self) -> str:
        state = "done" if self.done else f"{len(self._frame)} bytes"
        return f"<{type(self).__name__} {self._cls.__name__} version {self._version}: {state}>"

    def result(self) -> R:
        """Return the response, once `done`."""
        assert self._response is not None, "the response is not complete"
        return self._response

    def _take(self, part: memoryview) -> None:
        self._frame += part

    def _end(self) -> None:
        self._response, correlation_id = decode_response(self._cls, self._version, self._frame)
        self._frame.clear()
        if correlation_id != self._correlation_id:
            raise RemoteProtocolError(
                f"{self._cls.__name__}: correlation id {correlation_id}, expected {self._correlation_id}"
            )
