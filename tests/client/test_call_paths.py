"""The figures of docs/DESIGN.md: how many calls a record, a rebalance and a batch of a pipeline make on their way.

Each is counted on a KafkaBroker of its own, or the embedded one of 0.7.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

from odradek import engine

ROOT = Path(__file__).parents[2]
SCRIPT = run_path(str(ROOT / "benchmarks" / "call_paths.py"))
CALL_PATHS, TRACES = SCRIPT["CALL_PATHS"], SCRIPT["TRACES"]
PAGE = (ROOT / "docs" / "DESIGN.md").read_text("utf-8")
FIGURES = re.compile(r"`(kafka(?:07)?)://`[^:]*: (\d+) hops, (\d+) calls out, (\d+) calls back")
TRACE = re.compile(r"\(`(\w+)`\): (\d+) stops, (\d+) calls\.\n\n```\n(.*?)```", re.DOTALL)
STOP = re.compile(r"^ *\d+ (\S+) +(\w+) +(\d+)  \S", re.MULTILINE)

PRINTED_STOP = re.compile(r"^ *\d+ (\S+) +(\w+) +(\d+)$", re.MULTILINE)

TOLERANCE = {"fetch_kafka": 0.02, "fetch_kafka07": 0.02, "rebalance": 0.1, "pipeline": 0.1}
"""How many more calls a trace may make than the page says, as a part of them. A fetch is counted several times, and the
shortest time is nearly always the same. A rebalance waits for answers, and in a wait a timer of the member or the
committer may come in between (20 calls); a batch of a pipeline has two threads, and the metadata may be read (70
calls)."""

counts_calls = pytest.mark.skipif(
    engine.active is engine.engine("pure"), reason="the pure engine makes calls of its own"
)


def figures() -> dict[str, tuple[int, ...]]:
    return {f"send_{match[1]}": tuple(map(int, match.groups()[1:])) for match in FIGURES.finditer(PAGE)}


def traces() -> dict[str, tuple[int, int, list[tuple[str, str, int]]]]:
    """Return number of stops, calls, and the stops of each trace on the page."""
    return {
        match[1]: (int(match[2]), int(match[3]), [(name, ring, int(n)) for name, ring, n in STOP.findall(match[4])])
        for match in TRACE.finditer(PAGE)
    }


def test_the_page_has_the_figures_of_every_path() -> None:
    assert figures().keys() == CALL_PATHS.keys()
    assert traces().keys() == TRACES.keys() == TOLERANCE.keys()


@pytest.mark.parametrize("name", TRACES)
def test_the_stops_of_a_walk_are_what_its_figures_say(name: str) -> None:
    number, calls, stops = traces()[name]
    assert (number, calls) == (len(stops), sum(n for _, _, n in stops))


@counts_calls
@pytest.mark.parametrize("name", CALL_PATHS)
def test_a_record_makes_no_more_calls_than_the_page_says(name: str) -> None:
    path = CALL_PATHS[name]()
    counted = len(path.hops(path.out)), len(path.out), len(path.back)
    assert all(now <= said for now, said in zip(counted, figures()[name], strict=True)), f"{counted}\n{path}"


@counts_calls
@pytest.mark.parametrize("name", TRACES)
def test_a_walk_has_the_stops_of_the_page_and_no_more_calls(name: str) -> None:
    # In a process of its own: the event loop of ranges is a thread that lives as long as the process, and a profiler
    # only sees threads that start after it.
    command = [sys.executable, "-m", "benchmarks.call_paths", name]
    printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    counted, (_, calls, stops) = PRINTED_STOP.findall(printed), traces()[name]
    assert [stop[:2] for stop in counted] == [stop[:2] for stop in stops]
    assert sum(int(n) for _, _, n in counted) <= calls * (1 + TOLERANCE[name]), printed
