"""The page about conformance says what is true: the counts of every file, and a test for every vector."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from .corpus import CORPUS, replayed

TESTS = Path(__file__).parents[2]
PAGE = (TESTS.parent / "docs" / "topics" / "conformance.md").read_text("utf-8")


def test_the_counts_of_every_file_are_those_of_a_replay() -> None:
    documented = {
        name: tuple(map(int, numbers)) for name, *numbers in re.findall(r"`(\w[\w.]+)`" + r" \| (\d+)" * 3, PAGE)
    }
    counted: dict[str, tuple[int, ...]] = {}
    total: Counter[str] = Counter()
    for path in CORPUS.glob("*.jsonl.gz"):
        lines, counts, _ = replayed(path)
        counted[path.name.removesuffix(".jsonl.gz")] = len(lines), counts["passed"], counts["skipped"]
        total += counts
    assert documented == counted
    assert f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped" in PAGE
    assert total["failed"] == 0 and total["skipped"] * 100 < total.total()


def test_every_vector_has_a_test() -> None:
    rows = re.findall(r"^\| (\d[\d, -]*) .*\| (`.*`) \|$", PAGE, re.MULTILINE)
    numbers = {n for ranges, _ in rows for part in ranges.split(", ") for n in _numbers(part.strip())}
    assert numbers == set(range(1, 54))
    for path, name in re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE):
        tree = ast.parse((TESTS / path).read_text("utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{path}::{name}"


def _numbers(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
