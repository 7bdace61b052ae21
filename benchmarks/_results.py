"""Results of a benchmark: tables, charts and goals, printed as they come and kept for `_report.py`.

Goals and floors are those of the compiled engine; with the pure one everything runs, and nothing is judged.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from _quiet import wait_until_quiet
from odradek import engine

__all__ = ["Bar", "Chart", "Goal", "Line", "Results", "Table", "results"]


@dataclass(frozen=True)
class Goal:
    """A number, and what it should be at least (or, with `at_most`, at most)."""

    name: str
    value: float
    bound: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    @property
    def wanted(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.bound:g}"

    def __str__(self) -> str:
        return f"{self.wanted} {'met' if self.met else 'missed'}"


@dataclass(frozen=True)
class Table:
    """Rows of text; the first column is a name, the others are numbers."""

    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Bar:
    """One value of a chart, and the goal for it."""

    name: str
    value: float
    goal: float | None = None


@dataclass(frozen=True)
class Line:
    """Several values of a chart, at x, and the goal for all of them."""

    name: str
    points: Sequence[tuple[float, float]]
    goal: float | None = None


@dataclass(frozen=True)
class Chart:
    """Bars or lines. `across` is what x means."""

    title: str
    unit: str
    bars: Sequence[Bar] = ()
    lines: Sequence[Line] = ()
    across: str = ""


@dataclass
class Results:
    """Results of one file.

    Args:
        name: The file's name.
        quick: A run of a few seconds, to see that it works and is not far off.
        engine: The engine in use.
        busy: Busy share of all processors before it began, 0 to 1.
        tables, charts, goals: What was measured.
        faults: Results that are wrong on any machine.
    """

    name: str
    quick: bool
    engine: str
    busy: float
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def table(self, title: str, note: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Keep it and print it: the first column to the left, numbers to the right."""
        self.tables.append(Table(title, note, head, rows))
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        print(title)
        for row in (head, *rows):
            first, *rest = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print(
                "  ".join([first, *(cell.strip().rjust(width) for cell, width in zip(rest, widths[1:], strict=True))])
            )
        print(flush=True)

    def chart(
        self, title: str, unit: str, bars: Sequence[Bar] = (), lines: Sequence[Line] = (), across: str = ""
    ) -> None:
        self.charts.append(Chart(title, unit, bars, lines, across))

    @property
    def judged(self) -> bool:
        return self.engine == "compiled"

    def goal(self, name: str, value: float, bound: float, *, at_most: bool = False) -> str:
        """Note what was reached of a goal, and give it as a cell of a table."""
        if not self.judged:
            return ""
        self.goals.append(Goal(name, value, bound, at_most))
        return str(self.goals[-1])

    def check(self, good: bool, fault: str) -> None:
        """Note what no machine has an excuse for; it is said once everything was measured."""
        if self.judged and not good:
            self.faults.append(fault)


@contextmanager
def results(file: str, doc: str | None) -> Iterator[Results]:
    """Read the command line; afterwards keep what was measured, if that was asked for, and fail on faults."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs and is not far off")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to keep tables and charts, for _report.py")
    options = parser.parse_args()
    busy = 0.0 if options.quick else wait_until_quiet()
    measured = Results(Path(file).stem, options.quick, engine.active.NAME, busy)
    print(f"{measured.name}, with the {measured.engine} engine\n")
    yield measured
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(measured)))
    if measured.faults:
        raise SystemExit("\n".join(measured.faults))
