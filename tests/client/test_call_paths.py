"""The figures of docs/DESIGN.md: how many calls a record makes on its way."""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path

import pytest

from odradek import engine

ROOT = Path(__file__).parents[2]
SCRIPT = run_path(str(ROOT / "benchmarks" / "call_paths.py"))
CALL_PATHS = SCRIPT["CALL_PATHS"]
PAGE = (ROOT / "docs" / "DESIGN.md").read_text("utf-8")
FIGURES = re.compile(r"`(kafka(?:07)?)://`[^:]*: (\d+) hops, (\d+) calls out, (\d+) calls back")


def figures() -> dict[str, tuple[int, ...]]:
    return {f"send_{match[1]}": tuple(map(int, match.groups()[1:])) for match in FIGURES.finditer(PAGE)}


def test_the_page_has_the_figures_of_every_path() -> None:
    assert figures().keys() == CALL_PATHS.keys()


@pytest.mark.skipif(engine.active is engine.engine("pure"), reason="the pure engine makes calls of its own")
@pytest.mark.parametrize("name", CALL_PATHS)
def test_a_record_makes_no_more_calls_than_the_page_says(name: str) -> None:
    path = CALL_PATHS[name]()
    counted = len(path.hops(path.out)), len(path.out), len(path.back)
    assert all(now <= said for now, said in zip(counted, figures()[name], strict=True)), f"{counted}\n{path}"
