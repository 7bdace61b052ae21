"""Selection of batches of a table by options of the commands."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence

from odradek.errors import ConfigError
from odradek.pipeline.ledger import LedgerEntry
from odradek.pipeline.tables import CommittedTable

__all__ = ["select"]


def select(
    table: CommittedTable,
    *,
    numbers: Sequence[str] = (),
    since: float | None = None,
    until: float | None = None,
    sample: float | None = None,
) -> set[int]:
    """Return the numbers of the selected batches; all batches by default. Compactions are no batches.

    Args:
        table: The table.
        numbers: Any of these: `7`, `3:9` (both included), `3:`, `:9`.
        since: Only batches committed at this time or later (s since the epoch).
        until: Only batches committed before this time (s since the epoch).
        sample: Draw this share of them at random (percent), at least one.

    Raises:
        ConfigError: A malformed number.
    """
    ranges = [_range(text) for text in numbers]
    chosen = [
        entry.batch
        for entry in table.appends
        if (not ranges or any(first <= entry.batch <= last for first, last in ranges)) and _within(entry, since, until)
    ]
    if sample is not None and chosen:
        chosen = random.sample(chosen, max(1, math.ceil(len(chosen) * sample / 100)))
    return set(chosen)


def _within(entry: LedgerEntry, since: float | None, until: float | None) -> bool:
    return (since is None or entry.written >= since) and (until is None or entry.written < until)


def _range(text: str) -> tuple[float, float]:
    match = re.fullmatch(r"(\d*)(:?)(\d*)", text, re.ASCII)
    if match is None or not (match[1] or match[3]):
        raise ConfigError(f"batch {text!r}: must be a number, or like 3:9, 3: or :9")
    first = float(match[1] or 0)
    return (first, float(match[3] or math.inf)) if match[2] else (first, first)
