"""Options and sizes for the decoders of all protocols."""

from __future__ import annotations

import struct
from typing import Protocol

__all__ = ["SIZE_BYTES", "WHOLE_BYTES", "DecodingOptions", "read_size"]

SIZE_BYTES = 4
"""Bytes of the integer with which a response begins: its size, without this."""

read_size = struct.Struct(">i").unpack_from

WHOLE_BYTES = 2 << 20
"""Responses with records are decoded in one piece, where they were received, up to this size: the usual one."""


class DecodingOptions(Protocol):
    """The options of a decoder: `core.interfaces.DecoderOptions`, by shape."""

    @property
    def max_message_bytes(self) -> int: ...

    @property
    def max_decompressed_bytes(self) -> int: ...

    @property
    def corrupt(self) -> str: ...

    @property
    def defer_decompression(self) -> bool: ...

    @property
    def keep_encoded(self) -> str | None: ...
