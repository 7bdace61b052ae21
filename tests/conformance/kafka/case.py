"""What the checkers of the corpus have in common."""

from __future__ import annotations

from typing import Any

__all__ = ["NoCaseError", "Record", "SkippedError", "difference"]

Record = dict[str, Any]
"""One line of a corpus file."""


class NoCaseError(Exception):
    """The line has nothing to compare and does not count."""


class SkippedError(Exception):
    """The line is not compared; the text says why."""


def difference(what: str, expected: object, got: object) -> str | None:
    """Return None when both are equal, else what differs, shortened to what can be read."""
    if expected == got:
        return None
    return f"{what}: expected {_short(expected)}, got {_short(got)}"


def _short(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."
