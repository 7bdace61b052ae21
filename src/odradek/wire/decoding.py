"""Options that the decoders of all protocols take."""

from __future__ import annotations

from typing import Protocol

__all__ = ["DecodingOptions"]


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
