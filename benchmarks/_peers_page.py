"""Makes the page about odradek beside other clients of what `peers.py` has measured, and the tables on front pages.

    python benchmarks/_peers_page.py

Reads benchmarks/peers-results.json, and writes docs/topics/peers-benchmarks.md with its figures, and the block between
two comments in README.md and docs/index.md. Each *line* of a table is one number of one case, such as records a second,
or the 99th percentile of a wait. All ratios are turned so that more than 1 is better for odradek.
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

__all__ = ["PARTS", "RESULTS", "figures", "front_pages", "page", "write"]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/peers-results.json"
PAGE = ROOT / "docs/topics/peers-benchmarks.md"
FIGURES = "peers-figures"
OURS = "odradek"

Results = Mapping[str, Any]
"""What `peers.py` keeps of each part: its circumstances, and `cases` with the runs of each client."""


class Part(NamedTuple):
    """What is measured with one broker, and shown under one heading.

    Args:
        heading: What the page calls it.
        rounds: How often each client has its turn.
        note: What the page says below it.
    """

    heading: str
    rounds: int = 3
    note: str = ""


WITHOUT_AIOKAFKA = """\
aiokafka is left out with 10,000 partitions: it takes more than 30 s of processor time to read 30,000 records there."""
SPARK_NOTE = """\
The same topics and options in one session of `local[2]` that odradek has made; only the format's name differs. The
connector runs inside of Spark's Java; for a format in Python Spark starts four Python processes one after the other
before the first rows come, which is all of the first query. A session that `SparkSession.builder` has made takes
two seconds more for it: its Python processes compile pyspark each time."""
PARTS = {
    "core": Part("What most programs do", 5),
    "send": Part("Waiting for each record", 5),
    "start": Part("Start", 9),
    "lz4": Part("Compressed by lz4"),
    "compression": Part("Compressed by snappy and zstd"),
    "uvloop": Part("On uvloop: 100 B"),
    "partitions": Part("Partitions: 100 B", note=WITHOUT_AIOKAFKA),
    "clients": Part("Consumers in one process: 100 B"),
    "idle": Part("Nothing to do", 2),
    "distance": Part("A broker 20 ms away: 100 B"),
    "spark": Part("Spark, beside its own Kafka connector", 5, SPARK_NOTE),
}

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
SHOWN = {"p50": "{:.2f} ms", "p99": "{:.2f} ms", "reached": "{:.2f} s", "started": "{:.2f} s"}
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
    """Return one number of a run."""
    if key == "rate":
        return run["counted"] / run["seconds"]
    return run["computed"] / run["counted"] if key == "each" else run[key]


def lines(results: Results, *, spent: bool = False) -> list[Measured]:
    """Return the lines of all cases; with `spent`, those about processor time and memory of cases about rates."""
    return [line for part in results.values() for case in part["cases"] for line in _lines_of(case, spent)]


def _lines_of(case: Mapping[str, Any], spent: bool) -> Iterator[Measured]:
    if spent and case["measure"] != "rate":
        return
    for way in case["ours"]:
        title = (WAYS.get(way, "") if len(case["ours"]) > 1 else "") + case["title"]
        for added, key in SPENT if spent else MEASURES[case["measure"]]:
            by_name = {name: [number(run, key) for run in runs] for name, runs in case["runs"].items()}
            ours = by_name[f"odradek {way}"]
            theirs = {name.split()[0]: values for name, values in by_name.items() if not name.startswith("odradek ")}
            yield Measured(title + added, key, ours, theirs)


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
    return _shown(line.key, median(line.ours) * UNITS.get(line.key, 1))


def _shown(key: str, value: float) -> str:
    """Return a number with its unit; a rate with two digits, since runs lie further apart."""
    if key != "rate":
        return SHOWN[key].format(value)
    rate = float(f"{value:.2g}")
    return f"{rate / 1e6:.2g} million/s" if rate >= 1e6 else f"{rate:,.0f}/s"


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
            [title, records, *(_shown(key, medians[key]) for key in columns), "; ".join(ratios.get(client, ()))]
        )
    heads = {"rate": "rate", "each": "processor time of a record", "memory": "memory", "reached": "time"}
    heads |= {"started": "processor time", "seconds": "time", "computed": "processor time"}
    yield f"**{case['title']}**\n"
    yield from markdown(("", "records", *(heads.get(key, key) for key in columns), "odradek over it (quartiles)"), rows)


# ---- distance ---------------------------------------------------------------------------------------------------


def remaining(part: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Return what share of the rate each client keeps when the broker is far, by what is done and by client and way."""
    rates: dict[str, dict[int, dict[str, float]]] = {}
    for case in part["cases"]:
        if case["measure"] == "rate":
            medians = {name: median(number(run, "rate") for run in runs) for name, runs in case["runs"].items()}
            rates.setdefault(case["title"].split(",")[0], {})[case["distance_ms"]] = medians
    for title, by_distance in rates.items():
        near, far = by_distance[min(by_distance)], by_distance[max(by_distance)]
        yield title, {name: far[name] / near[name] for name in near}


def distances(part: Mapping[str, Any]) -> Iterator[str]:
    yield "The share of its rate that each client keeps at 20 ms, of that through the same proxy without delay:\n"
    for title, shares in remaining(part):
        heads, cells = map(_who, shares), (f"{share:.2f}" for share in shares.values())
        yield from markdown(("", *heads), [(title, *cells)])


def _who(name: str) -> str:
    client, way = name.split()
    return CLIENTS[client].title + (f", {way}" if way in WAYS else "")


# ---- charts -----------------------------------------------------------------------------------------------------


def charts(name: str, part: Mapping[str, Any]) -> Iterator[Chart]:
    """Draw a part: ratios with those that are used most, rates, or a curve."""
    if name == "core":
        yield from _ratios(part)
    if name in ("core", "distance"):
        for case in part["cases"]:
            if case["measure"] == "rate" and case["distance_ms"] != 0:
                yield Chart(_plain(case["title"]), "records a second, thousands", _rates(case))
    key = {"partitions": "partitions", "clients": "clients"}.get(name, "")
    batches = [case for case in part["cases"] if case["theirs"] == "batches"]
    if key and len(batches) > 1:
        across = "partitions" if key == "partitions" else "consumers in the process"
        title = f"{PARTS[name].heading}, read in batches"
        yield Chart(title, "thousands of records a second", (), list(_curves(batches, key)), across)


def _ratios(part: Mapping[str, Any]) -> Iterator[Chart]:
    measured = lines({"": part})
    for client in ("confluent_tuned", "confluent", "aiokafka_tuned"):
        bars = [Bar(_plain(line.title), line.cells()[client].middle, 1.0) for line in measured if client in line.theirs]
        if bars:
            yield Chart(f"odradek over {CLIENTS[client].title}", "ratios, more than 1: odradek is better", bars)


def _rates(case: Mapping[str, Any]) -> list[Bar]:
    rates = ((name, median(number(run, "rate") for run in runs)) for name, runs in case["runs"].items())
    return [Bar(_who(name), rate / 1e3) for name, rate in rates]


def _plain(title: str) -> str:
    return title.replace("`", "")


def _curves(cases: Sequence[Mapping[str, Any]], key: str) -> Iterator[Line]:
    for name in cases[0]["runs"]:
        points = [
            (case[key], median(number(run, "rate") for run in case["runs"][name]) / 1e3)
            for case in cases
            if name in case["runs"]
        ]
        yield Line(CLIENTS[name.split()[0]].title, points)


def figures(results: Results) -> dict[str, str]:
    """Return the name of each figure's file, and the file."""
    drawn = [chart for name, part in results.items() for chart in charts(name, part)]
    return {f"{slug(chart.title)}.svg": svg(chart) for chart in drawn}


# ---- the page ---------------------------------------------------------------------------------------------------

METHOD = """\
Each client is a process of its own, and they take turns. A ratio is the median of theirs, turned so that **more than 1
means that odradek is better**; below 1 it is bold. The clock runs from the first records to the last, or until the
client's time is over: start and first fetch count only in the lines that are about them. *Everything*, below, has the
number of records, and the quartiles of the ratios (the least and the most, of three rounds);
`benchmarks/peers-results.json` has all numbers of all rounds. *Tuned* are the best documented settings: see
[below](#the-settings). odradek has its defaults everywhere. All clients wait for all replicas in sync. odradek checks
the checksum of every batch, as aiokafka and kafka-python do; confluent-kafka does not by default. The broker is Kafka's
newest release, and shares the processors with the clients: compare ratios and not rates.
"""


def page(results: Results) -> Iterator[str]:
    """Make the page, part by part."""
    yield "# odradek beside other clients, measured\n"
    yield "`scripts/bench --peers` measures, and writes this page.\n" + METHOD
    yield from _circumstances(results)
    measured, spent = lines(results), lines(results, spent=True)
    if measured:
        yield "## What odradek loses\n"
        yield "Every line in which another client is better, each with all those that are.\n"
        yield from table([*measured, *spent], only_lost=True)
    for name, part in results.items():
        yield f"## {PARTS[name].heading}\n"
        if note := PARTS[name].note:
            yield f"{note}\n"
        if part["cases"]:
            yield from table(lines({name: part}))
        if name == "distance":
            yield from distances(part)
        for made in part.get("tables", ()):
            yield f"{made['note']}\n"
            yield from markdown(made["head"], made["rows"])
        yield from (f"![{_plain(chart.title)}]({FIGURES}/{slug(chart.title)}.svg)\n" for chart in charts(name, part))
    if measured:
        yield "## Processor time and memory\n"
        yield "Processor time is that of all threads of the client's process, memory the most that the process had.\n"
        yield from table(spent)
        yield "## Everything\n"
        for part in results.values():
            for case in part["cases"]:
                yield from details(case)
    yield "## The settings\n"
    yield "```{literalinclude} ../../benchmarks/_peers_settings.py\n:start-at: MIB =\n```\n"


def _circumstances(results: Results) -> Iterator[str]:
    """Tell when and where each part was measured, and which parts have not been."""
    by_machine: dict[str, list[Sequence[str]]] = {}
    for name, part in results.items():
        about = PARTS[name].heading, part["date"], part["commit"], f"{part['rounds']}"
        java = part.get("java", "with the quickest compiler and a collector of one thread")
        what = f"{part['python']}, {part['machine']}: {_versions(part)}. The broker's Java: {java}"
        rows = by_machine.setdefault(what, [])
        rows.append((*about, f"{part['minutes']:.1f}", f"{part['busy']:.0%}", f"{part['load']:.1f}"))
    for what, rows in by_machine.items():
        yield f"{what}.\n"
        yield from markdown(
            ("part", "date", "commit", "rounds", "minutes", "processors busy before", "load after"), rows
        )
    if missing := [part.heading for name, part in PARTS.items() if name not in results]:
        yield f"Not measured yet: {'; '.join(missing)}.\n"


def _versions(part: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in part["versions"].items() if name != OURS)


# ---- front pages ------------------------------------------------------------------------------------------------

FRONT = {
    "reading 100 B records: batches; one by one; Arrow tables": (
        "batches, 100 B",
        "record by record, 100 B",
        "Arrow tables, 100 B",
    ),
    "reading 1 KB records: the same": ("batches, 1 KB", "record by record, 1 KB", "Arrow tables, 1 KB"),
    "producing 100 B records: `send_many`; `put` in a loop": (
        "`send_many`, produce loop, 100 B",
        "`put`, produce loop, 100 B",
    ),
    "producing 1 KB records: the same": ("`send_many`, produce loop, 1 KB", "`put`, produce loop, 1 KB"),
    "one awaited `send`: p50; p99": ("one awaited `send`, 100 B, p50", "one awaited `send`, 100 B, p99"),
    "from `python` to the first record": ("from `python` to the first record",),
}
"""The rows of the table in README.md, and the lines that each shows."""
BESIDE = ("confluent_tuned", "confluent", "aiokafka_tuned")
FRONT_PAGES = {
    "README.md": "[everything measured, what is slower first](docs/topics/peers-benchmarks.md)",
    "docs/index.md": "{doc}`everything measured, what is slower first <topics/peers-benchmarks>`",
}
"""How each leads to the page with everything."""
BEGIN, END = "<!-- from here on written by scripts/bench --peers -->", "<!-- to here -->"


def front(results: Results, link: str) -> str | None:
    """Make the text and the table of a front page; None while a part is missing that it shows."""
    by_title = {line.title: line for line in lines(results)}
    if not all(title in by_title for titles in FRONT.values() for title in titles):
        return None
    rows = [[row, *_front_cells([by_title[title] for title in titles])] for row, titles in FRONT.items()]
    text = (
        f"Beside other clients on the same broker, each in a process of its own: {results['core']['python']},\n"
        f"{results['core']['machine']} ({link}). odradek has its defaults,\n"
        "*tuned* is what has its best documented settings, and more than 1 is better for odradek:\n"
    )
    return "\n".join((text, *markdown(("", "odradek", *(f"over {CLIENTS[client].title}" for client in BESIDE)), rows)))


def _front_cells(shown: Sequence[Measured]) -> Iterator[str]:
    yield "; ".join(_own(line) for line in shown)
    for client in BESIDE:
        yield "; ".join(str(line.cells().get(client, "-")) for line in shown)


def with_table(text: str, made: str | None) -> str:
    """Return a front page with this between the two comments; with None, as it is."""
    if made is None:
        return text
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{made}\n{END}{after}"


def front_pages(results: Results) -> dict[str, str]:
    """Return each front page as it is to be."""
    return {name: with_table((ROOT / name).read_text(), front(results, link)) for name, link in FRONT_PAGES.items()}


def write(results: Results) -> None:
    """Keep the results, and write the page and its figures, in place of those that are there."""
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text("\n".join(page(results)))
    folder = PAGE.parent / FIGURES
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    for name, text in figures(results).items():
        (folder / name).write_text(text)
    for name, text in front_pages(results).items():
        (ROOT / name).write_text(text)
    print(f"written: {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    write(json.loads(RESULTS.read_text()))
