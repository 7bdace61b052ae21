"""Payloads in tests of 0.7, where none is ever null."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["payload", "payloads"]


def payload(value: bytes | None) -> bytes:
    """Return the value, which must not be null."""
    assert value is not None
    return value


def payloads(values: Iterable[bytes | None]) -> list[bytes]:
    """Return the values, none of which may be null."""
    return list(map(payload, values))
