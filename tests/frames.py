"""Size-delimited frames: `i32 size` and that many bytes (specification 1.1); responses of 0.7 to fetches."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain

from odradek.engine import Buffer
from odradek.errors import RemoteProtocolError

__all__ = ["FrameReader", "encode_fetch", "encode_multifetch"]


class FrameReader:
    """Bytes in any split -> bodies of whole frames.

    Memory is held for bytes that arrived, never for bytes that were only announced.

    Args:
        max_bytes: Largest body accepted (bytes); equal is fine (specification 1.1).
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = bytearray()
        self._broken = ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.pending_bytes} bytes pending>"

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame held, its size included."""
        return len(self._held)

    def feed(self, data: Buffer) -> list[bytes]:
        """Take bytes and give the bodies they complete, in order.

        Raises:
            RemoteProtocolError: A size of 0 or less, or over the limit. It is raised by the next call when the same
                bytes completed frames before it, so that those are not lost; the reader stays broken.
        """
        joined = bool(self._held)
        if joined:
            self._held += data
        with memoryview(self._held if joined else data) as view:
            bodies, used = self._cut(view)
            if not joined:
                self._held += view[used:]
        if joined:
            del self._held[:used]
        if self._broken and not bodies:
            raise RemoteProtocolError(self._broken)
        return bodies

    def _cut(self, view: memoryview) -> tuple[list[bytes], int]:
        bodies, pos = [], 0
        while not self._broken and len(view) - pos >= 4:
            size = int.from_bytes(view[pos : pos + 4], "big", signed=True)
            if not 0 < size <= self._max_bytes:
                self._broken = f"a frame of {size} bytes was announced; 1 to {self._max_bytes} are allowed"
            elif len(view) - pos < 4 + size:
                break
            else:
                bodies.append(bytes(view[pos + 4 : pos + 4 + size]))
                pos += 4 + size
        return bodies, (len(view) if self._broken else pos)

    @property
    def error(self) -> RemoteProtocolError | None:
        """What broke the reader: known at once, also when `feed` still had bodies to give."""
        return RemoteProtocolError(self._broken) if self._broken else None


_HEADER = struct.Struct(">ih")  # size (its two error bytes included), error code


def encode_fetch(error: int, data: Buffer) -> list[Buffer]:
    """A FETCH response, or one part of a MULTIFETCH response: they are equal."""
    return [_HEADER.pack(2 + len(data), error), data]


def encode_multifetch(parts: Sequence[tuple[int, Buffer]]) -> list[Buffer]:
    """A MULTIFETCH response of (error code, log bytes) per part, in request order; its outer code is 0."""
    size = 2 + sum(_HEADER.size + len(data) for _, data in parts)
    return [_HEADER.pack(size, 0), *chain.from_iterable(encode_fetch(error, data) for error, data in parts)]
