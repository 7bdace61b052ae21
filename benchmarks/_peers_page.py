"""Makes the page about odradek beside other clients of what `peers.py` has measured.

    python benchmarks/_peers_page.py

Reads benchmarks/peers-results.json, and writes docs/topics/peers-benchmarks.md with its figures. Each *line* of a table
is one number of one case, such as records a second, or the 99th percentile of a wait. All ratios are turned so that
more than 1 is better for odradek.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from _peers_settings import CLIENTS
from _report import markdown, slug
from _results import Bar, Chart, Line
from _svg import svg

__all__ = ["RESULTS", "figures", "page", "write"]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/peers-results.json"
PAGE = ROOT / "docs/topics/peers-benchmarks.md"
FIGURES = "peers-figures"

Results = Mapping[str, Any]
"""What `peers.py` keeps: its circumstances, and `cases` with the runs of each client."""

MEASURES: Mapping[str, Sequence[tuple[str, str]]] = {
    "rate": (("", "rate"),),
    "latency": ((", p50", "p50"), (", p99", "p99")),
    "start": (("", "reached"), (": processor time", "started")),
    "seconds": (("", "seconds"), (": processor time", "computed")),
    "idle": ((": processor time", "computed"),),
}
"""What a case is about: the numbers that its lines show, after what is added to its title."""
SPENT = ((": processor time of a record", "each"), (": memory", "memory"))
"""The lines of cases about rates that are told after those."""
WAYS = {"send_many": "`send_many`, ", "put": "`put`, "}
"""Before the title of a case that compares several ways of odradek."""
MORE_IS_BETTER = "rate"
HEADINGS = {
    "more": "More compressions, uvloop, many tasks",
    "partitions": "Partitions: batches of 100 B",
    "clients": "Consumers in one process: batches of 100 B",
    "idle": "Nothing to do",
    "distant": "A broker 20 ms away",
}
SHOWN = {"rate": "{:,.0f}/s", "p50": "{:.2f} ms", "p99": "{:.2f} ms", "reached": "{:.2f} s", "started": "{:.2f} s"}
SHOWN |= {"seconds": "{:.2f} s", "computed": "{:.2f} s", "each": "{:.2f} us", "memory": "{:.0f} MiB"}
UNITS = {"p50": 1e3, "p99": 1e3, "each": 1e6, "memory": 1 / (1 << 20)}


class Cell(NamedTuple):
    """The ratio with one other client: the median and the quartiles of the turns."""

    low: float
    middle: float
    high: float

    @property
    def lost(self) -> bool:
        return round(self.middle, 2) < 1

    def __str__(self) -> str:
        text = f"{self.middle:.2f}" if self.middle < 10 else f"{self.middle:.0f}"
        return f"**{text}**" if self.lost else text


class Measured(NamedTuple):
    """One line: what is measured, odradek's own number in each turn, and those of the others."""

    title: str
    key: str
    group: str
    ours: Sequence[float]
    theirs: Mapping[str, Sequence[float]]

    def cells(self) -> dict[str, Cell]:
        return {client: self._cell(numbers) for client, numbers in self.theirs.items()}

    def _cell(self, numbers: Sequence[float]) -> Cell:
        pairs = zip(self.ours, numbers, strict=True)
        ratios = sorted(our / its if self.key == MORE_IS_BETTER else its / our for our, its in pairs)
        quarter = len(ratios) // 4
        return Cell(ratios[quarter], median(ratios), ratios[-1 - quarter])


def number(run: Mapping[str, float], key: str) -> float:
    """Return one number of a run; those of a record are of all that it moved."""
    if key == "rate":
        return run["records"] / run["seconds"]
    return run["computed"] / run["records"] if key == "each" else run[key]


def lines(results: Results, *, spent: bool = False) -> list[Measured]:
    """Return the lines of all cases; with `spent`, those about processor time and memory of cases about rates."""
    return [line for case in results["cases"] for line in _lines_of(case, spent)]


def _lines_of(case: Mapping[str, Any], spent: bool) -> Iterator[Measured]:
    if spent and case["measure"] != "rate":
        return
    for way in case["ours"]:
        title = (WAYS.get(way, "") if len(case["ours"]) > 1 else "") + case["title"]
        for added, key in SPENT if spent else MEASURES[case["measure"]]:
            by_name = {name: [number(run, key) for run in runs] for name, runs in case["runs"].items()}
            ours = by_name[f"odradek {way}"]
            theirs = {name.split()[0]: values for name, values in by_name.items() if not name.startswith("odradek ")}
            yield Measured(title + added, key, case["group"], ours, theirs)


# ---- tables -----------------------------------------------------------------------------------------------------


def table(shown: Sequence[Measured], *, only_lost: bool = False) -> Iterator[str]:
    """Make a table of ratios, a column for each client that has any; with `only_lost`, of those that odradek loses."""
    cells = [(line, line.cells()) for line in shown]
    if only_lost:
        cells = [(line, {who: cell for who, cell in one.items() if cell.lost}) for line, one in cells]
        cells = [(line, one) for line, one in cells if one]
    clients = [client for client in CLIENTS if any(client in one for _, one in cells)]
    rows = [[line.title, _own(line), *(str(one.get(client, "")) for client in clients)] for line, one in cells]
    yield from markdown(("", "odradek", *(CLIENTS[client].title for client in clients)), rows)


def _own(line: Measured) -> str:
    return SHOWN[line.key].format(median(line.ours) * UNITS.get(line.key, 1))


def details(case: Mapping[str, Any]) -> Iterator[str]:
    """Make a table of what each client did, with the quartiles of its ratios."""
    columns = [key for _, key in MEASURES[case["measure"]]]
    columns += [key for _, key in SPENT] if case["measure"] == "rate" else []
    ratios: dict[str, list[str]] = {}
    for line in _lines_of(case, spent=False):
        for client, cell in line.cells().items():
            ratios.setdefault(client, []).append(f"{cell} ({cell.low:.2f} to {cell.high:.2f})")
    rows = []
    for name, runs in case["runs"].items():
        client, way = name.split()
        title = CLIENTS[client].title + (f", `{way}`" if client == "odradek" and len(case["ours"]) > 1 else "")
        medians = {key: median(number(run, key) for run in runs) * UNITS.get(key, 1) for key in columns}
        records = f"{runs[0]['records']:,}"
        rows.append(
            [title, records, *(SHOWN[key].format(medians[key]) for key in columns), "; ".join(ratios.get(client, ()))]
        )
    heads = {"rate": "rate", "each": "processor time of a record", "memory": "memory", "reached": "time"}
    heads |= {"started": "processor time", "seconds": "time", "computed": "processor time"}
    yield f"**{case['title']}**\n"
    yield from markdown(("", "records", *(heads.get(key, key) for key in columns), "odradek over it (quartiles)"), rows)


# ---- charts -----------------------------------------------------------------------------------------------------


def charts(results: Results) -> Iterator[Chart]:
    core = [line for line in lines(results) if line.group == "core" and ":" not in line.title]
    for client in ("confluent_tuned", "confluent", "aiokafka"):
        bars = [Bar(_plain(line.title), line.cells()[client].middle, 1.0) for line in core if client in line.theirs]
        yield Chart(f"odradek over {CLIENTS[client].title}", "ratios, more than 1: odradek is better", bars)
    for case in results["cases"]:
        if case["group"] == "core" and case["measure"] == "rate" and case["compression"] == "none":
            yield Chart(_plain(case["title"]), "records a second, thousands", list(_rates(case)))
    for group, across in (("partitions", "partitions"), ("clients", "consumers in the process")):
        across_cases = [case for case in results["cases"] if case["group"] == group]
        if len(across_cases) > 1:
            key = "partitions" if group == "partitions" else "clients"
            yield Chart(HEADINGS[group], "thousands of records a second", (), list(_curves(across_cases, key)), across)


def _plain(title: str) -> str:
    return title.replace("`", "")


def _rates(case: Mapping[str, Any]) -> Iterator[Bar]:
    for name, runs in case["runs"].items():
        client, way = name.split()
        title = CLIENTS[client].title + (f", {way}" if client == "odradek" and len(case["ours"]) > 1 else "")
        yield Bar(title, median(number(run, "rate") for run in runs) / 1e3)


def _curves(cases: Sequence[Mapping[str, Any]], key: str) -> Iterator[Line]:
    for name in cases[0]["runs"]:
        points = [(case[key], median(number(run, "rate") for run in case["runs"][name]) / 1e3) for case in cases]
        yield Line(CLIENTS[name.split()[0]].title, points)


def figures(results: Results) -> dict[str, str]:
    """Return the name of each figure's file, and the file."""
    return {f"{slug(chart.title)}.svg": svg(chart) for chart in charts(results)}


# ---- the page ---------------------------------------------------------------------------------------------------


def page(results: Results) -> Iterator[str]:
    """Make the page, part by part."""
    yield "# odradek beside other clients, measured\n"
    yield from _introduction(results)
    measured, spent = lines(results), lines(results, spent=True)
    yield "## What odradek loses\n"
    yield "Every line in which another client is better, each with all those that are.\n"
    yield from table([*measured, *spent], only_lost=True)
    yield "## What most programs do\n"
    yield from table([line for line in measured if line.group == "core"])
    drawn = list(figures(results))
    yield from (f"![{name.removesuffix('.svg')}]({FIGURES}/{name})\n" for name in drawn[:3])
    for group, heading in HEADINGS.items():
        if shown := [line for line in measured if line.group == group]:
            yield f"## {heading}\n"
            yield from table(shown)
            name = f"{slug(heading)}.svg"
            if name in drawn:
                yield f"![{heading}]({FIGURES}/{name})\n"
    yield "## Processor time and memory\n"
    yield "Processor time is that of all threads of the client's process, memory the most that the process had.\n"
    yield from table(spent)
    yield "## Rates\n"
    rest = [name for name in drawn[3:] if name not in {f"{slug(heading)}.svg" for heading in HEADINGS.values()}]
    yield from (f"![{name.removesuffix('.svg')}]({FIGURES}/{name})\n" for name in rest)
    yield "## Everything\n"
    for case in results["cases"]:
        yield from details(case)
    yield "## The settings\n"
    yield "```{literalinclude} ../../benchmarks/_peers_settings.py\n:start-at: MIB =\n```\n"


def _introduction(results: Results) -> Iterator[str]:
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items() if name != "odradek")
    least, most = min(results["load"]), max(results["load"])
    yield (
        f"Measured by `scripts/bench --peers` on {results['date']} at commit {results['commit']}: {results['python']}, "
        f"{results['machine']}, {versions}. The broker is Kafka's newest release on the same machine, whose load was "
        f"{least:.1f} to {most:.1f}, measurements included: compare ratios and not rates.\n"
    )
    yield (
        f"Each client is a process of its own, and they take turns: {results['rounds']} rounds. A ratio is their "
        "median, turned so that **more than 1 means that odradek is better**; below 1 it is bold. The clock runs from "
        "the first record to the last: start and first fetch count only in the lines that are about them. "
        "*Everything*, below, has the number of records and the quartiles; `benchmarks/peers-results.json` has all "
        "numbers of all rounds. *Tuned* are the best documented settings: see [below](#the-settings). odradek has its "
        "defaults everywhere. All clients wait for all replicas in sync. odradek checks the checksum of every batch, "
        "as aiokafka and kafka-python do; confluent-kafka does not by default.\n"
    )
    measured = {case["title"] for case in results["cases"]}
    if missing := [title for title in results["asked"] if title not in measured]:
        yield f"The run was ended before these were measured: {'; '.join(missing)}.\n"


def write(results: Results) -> None:
    """Write the page and its figures, in place of those that are there."""
    PAGE.write_text("\n".join(page(results)))
    folder = PAGE.parent / FIGURES
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    for name, text in figures(results).items():
        (folder / name).write_text(text)
    print(f"written: {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    write(json.loads(RESULTS.read_text()))
