"""The files of the corpus, each replayed once for all tests that ask."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .replay import lines_of, replay

CORPUS = Path(__file__).with_name("corpus")


class Replayed(NamedTuple):
    """What the replay of a file found."""

    lines: tuple[str, ...]
    counts: Counter[str]
    failures: tuple[str, ...]


@cache
def replayed(path: Path) -> Replayed:
    """Return what a file has and what its replay found."""
    results = list(replay(path))
    counts = Counter(result for result, _ in results)
    return Replayed(tuple(lines_of(path)), counts, tuple(text for result, text in results if result == "failed"))
