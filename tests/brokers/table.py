"""The table in the documentation of what ran against which broker: tests tell what they did, the page has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.testing import KafkaBroker
from odradek.testing.kafka.releases import MATRIX, OTHERS, release

__all__ = ["COLUMNS", "FACTS", "PAGE", "RELEASES", "Facts", "label", "parse", "render"]

PAGE = Path(__file__).parents[2] / "docs" / "topics" / "brokers.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"

COLUMNS: dict[str, tuple[str, ...]] = {
    "compression": ("none", "gzip", "snappy", "lz4", "zstd"),
    "records": ("keys, values", "times", "headers"),
    "acks": ("all", "1", "0"),
    "reading": ("positions", "times of files", "times", "read_committed"),
    "groups": ("stored positions", "classic", "consumer"),
    "transactions": ("committed", "aborted"),
    "restart": ("nothing lost", "nothing twice"),
    "other clients": ("librdkafka", "aiokafka", "kafka-python"),
    "administration": ("topics", "partitions", "configs of topics", "configs of brokers", "records", "groups"),
}
"""Columns of the table, and what their cells may have, in this order."""

Facts = dict[str, dict[str, set[str]]]
"""Release -> column -> what ran."""

FACTS = pytest.StashKey[Facts]()
"""What ran in this session."""


def label(version: str, mode: str) -> str:
    """Return the first cell of a row."""
    return f"{version}, {'KRaft' if mode == 'kraft' else 'ZooKeeper'}"


RELEASES = [label(*pair) for pair in sorted([*MATRIX, *OTHERS], key=lambda pair: (release(pair[0]).number, pair[1]))]
"""The rows of the table."""


class Ran:
    """What one test adds to the table: `ran("groups", "classic")`, called when the test has seen it work."""

    def __init__(self, facts: Facts, broker: KafkaBroker) -> None:
        self._row = facts.setdefault(label(broker.version, broker.mode), {column: set() for column in COLUMNS})

    def __call__(self, column: str, *cells: str) -> None:
        assert set(cells) <= set(COLUMNS[column]), f"{column} has no {cells}"
        self._row[column].update(cells)


def render(text: str, facts: Facts) -> str:
    """Return the page with another table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = [["broker", *COLUMNS], ["---"] * (1 + len(COLUMNS))]
    for row in RELEASES:
        if row in facts:
            cells = [
                "; ".join(each for each in COLUMNS[column] if each in facts[row].get(column, ())) for column in COLUMNS
            ]
            lines.append([row, *(cell or "-" for cell in cells)])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{before}{BEGIN}{table}{END}{after}"


def parse(text: str) -> Facts:
    """Return the table of a page."""
    _, _, rest = text.partition(BEGIN)
    lines = [line.strip("| ").split(" | ") for line in rest.partition(END)[0].splitlines()]
    (_, *columns), _, *rows = lines or [["broker"], []]
    return {
        row: {column: set(cell.split("; ")) - {"-"} for column, cell in zip(columns, cells, strict=True)}
        for row, *cells in rows
    }
