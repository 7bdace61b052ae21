"""The page of the documentation that says which behaviour held on which release, and why one was not tried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase

import pytest

from odradek.testing.kafka.releases import release

from .behaviour import BEHAVIOURS, Behaviour
from .releases import RELEASES

__all__ = ["HELD", "PAGE", "Held", "missing", "parse", "render"]

PAGE = Path(__file__).parents[3] / "docs" / "topics" / "behaviours.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
HELD_MARK, NOT_YET = "+", "?"
GENERATIONS = ((0, 8), (1,), (3,))
"""Releases from which on a table of its own begins."""

Held = dict[str, set[str]]
"""Release -> texts of the behaviours that held."""

HELD = pytest.StashKey[Held]()
"""What held in this session."""


def render(text: str, held: Held) -> str:
    """Return the page with other tables."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{''.join(_lines(held))}{END}{after}"


def parse(text: str) -> Held:
    """Return what the tables of a page say."""
    held: Held = {}
    releases: list[str] = []
    for line in text.partition(BEGIN)[2].partition(END)[0].splitlines():
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if first == "behaviour":
            releases = cells
        elif len(cells) == len(releases) > 0:
            for version, cell in zip(releases, cells, strict=True):
                if cell == HELD_MARK:
                    held.setdefault(version, set()).add(first)
    return held


def missing(held: Held) -> list[str]:
    """Return what was not tried although it should have been."""
    return [
        f"{version}: {each.text}"
        for version in RELEASES
        for each in BEHAVIOURS
        if each.is_about(release(version).number) and each.text not in held.get(version, ())
    ]


def _lines(held: Held) -> Iterator[str]:
    reasons = {
        why: ascii_lowercase[n] for n, why in enumerate(dict.fromkeys(e.without for e in BEHAVIOURS if e.without))
    }
    for generation in _generations():
        yield f"\n## {generation[0]} to {generation[-1]}\n\n"
        yield _row("behaviour", generation)
        yield _row("---", ["---"] * len(generation))
        for each in BEHAVIOURS:
            yield _row(each.text, [_cell(each, version, held, reasons) for version in generation])
    yield "\n| | why not |\n| --- | --- |\n"
    yield from (_row(letter, [why]) for why, letter in reasons.items())
    yield "\n| in runs of the tests | because from it on the client may do something else |\n| --- | --- |\n"
    yield from (_row(version, [why]) for version, why in RELEASES.items() if why)
    yield "\n"


def _generations() -> list[list[str]]:
    parts: list[list[str]] = [[] for _ in GENERATIONS]
    for version in RELEASES:
        parts[sum(release(version).number >= begin for begin in GENERATIONS) - 1].append(version)
    return parts


def _row(first: str, cells: list[str]) -> str:
    return f"| {' | '.join([first, *cells])} |\n"


def _cell(each: Behaviour, version: str, held: Held, reasons: dict[str, str]) -> str:
    if not each.is_about(release(version).number):
        return reasons[each.without]
    return HELD_MARK if each.text in held.get(version, ()) else NOT_YET
