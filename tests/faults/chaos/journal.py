"""What workers write down for the checks: lines of words, each written at once, so that a kill loses none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

__all__ = ["CONFIRMED", "NOT_WRITTEN", "REPEATED", "UNKNOWN", "Journal", "read"]

UNKNOWN, CONFIRMED, REPEATED, NOT_WRITTEN = range(4)
"""Outcomes of records; REPEATED: confirmed, and perhaps written twice where the producer is not idempotent."""


class Journal:
    """The journal of one worker: what an earlier process of the same worker wrote stays."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, kind: str, *fields: object) -> None:
        """Write a line. A text is the last of its fields: it may have blanks."""
        line = " ".join(map(str, (kind, *fields)))
        self._file.write(line.replace("\n", " ").encode() + b"\n")


def read(path: Path) -> Iterator[list[str]]:
    """Yield the words of every whole line."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):
                yield line.split()
