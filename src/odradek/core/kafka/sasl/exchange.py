"""Common parts of all mechanisms: the type of an exchange, and the escaping of names (RFC 5801, section 4)."""

from __future__ import annotations

import re
from collections.abc import Generator

from odradek.errors import AuthFailed

__all__ = ["Exchange", "UnansweredToken", "decode_text", "escape_name", "unescape_name"]

Exchange = Generator[bytes, bytes, None]


class UnansweredToken(bytes):
    """The last token of a mechanism whose exchange ends with the client: a raw one has no response at all."""


_NAME = re.compile(r"(?:[^=,\0]|=2C|=3D)+")


def escape_name(name: str) -> str:
    """Return the name with `=` and `,` escaped, for a GS2 header or a SCRAM message."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescape_name(text: str) -> str:
    """Undo `escape_name`. Raises ValueError for text that is not an escaped name."""
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not an escaped name")
    return text.replace("=2C", ",").replace("=3D", "=")


def decode_text(token: bytes, mechanism: str) -> str:
    """Decode a token that must be UTF-8. Raises AuthFailed, without the token's content, if it is not."""
    try:
        return token.decode()
    except UnicodeDecodeError as error:
        raise AuthFailed(mechanism, f"a token of {len(token)} bytes is not UTF-8 at byte {error.start}") from None
