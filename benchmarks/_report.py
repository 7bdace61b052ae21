"""Make a page and charts of what benchmarks kept with --json: `scripts/bench` runs it.

    python benchmarks/_report.py KEPT... --docs docs

Writes DOCS/topics/performance-results.md, which performance.md includes, and DOCS/topics/figures/*.svg, in place of
those that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from _quiet import QUIET_SHARE
from _results import Bar, Chart, Goal, Line, Table
from _svg import svg

ROOT = Path(__file__).parent.parent
FIGURES = "figures"


BUSY = """.
**Others used the machine as well**: ratios of elapsed time, all but those of decoding, encoding, memory and partitions,
are lower and less certain than they would be"""


def machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (match := re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)):
        model = match[1]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores, {platform.system()} {platform.release().split('-')[0]}"


def commit() -> str:
    """What was measured; with a `+` when files differ from it, other than those this program writes."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "rust", "benchmarks/*.py")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def page(kept: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    engine = " and ".join(sorted({file["engine"] for file in kept}))
    yield f"Measured on {date.today()} at commit {commit()}, {engine} engine: {python}, {machine()}."
    busy = max(file["busy"] for file in kept)
    yield f"Processors before each file: at most {busy:.0%} busy{BUSY if busy >= QUIET_SHARE else ''}.\n"
    goals = [Goal(**goal) for file in kept for goal in file["goals"]]
    yield "### Goals\n"
    yield from markdown(("", "measured", "goal", ""), [(g.name, _short(g.value), g.wanted, _met(g)) for g in goals])
    for file in kept:
        yield f"### `{file['name']}.py`\n"
        charts = {chart["title"]: chart for chart in file["charts"]}
        for table in (Table(**table) for table in file["tables"]):
            yield f"**{table.title}.** {table.note}\n"
            yield from markdown(table.head, table.rows)
            if table.title in charts:
                yield f"![{table.title}]({FIGURES}/{slug(table.title)}.svg)\n"


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _met(goal: Goal) -> str:
    return "met" if goal.met else "**missed**"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    yield "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def figures(kept: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for file in kept:
        for chart in file["charts"]:
            bars, lines = [Bar(**bar) for bar in chart["bars"]], [Line(**line) for line in chart["lines"]]
            yield slug(chart["title"]), svg(Chart(chart["title"], chart["unit"], bars, lines, chart["across"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kept", nargs="+", type=Path)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    options = parser.parse_args()
    kept = [json.loads(file.read_text()) for file in options.kept]
    if any(file["quick"] for file in kept):
        sys.exit("quick runs are not worth a page")
    topics = options.docs / "topics"
    (topics / "performance-results.md").write_text("\n".join(page(kept)))
    (topics / FIGURES).mkdir(exist_ok=True)
    for old in (topics / FIGURES).glob("*.svg"):
        old.unlink()
    for name, text in figures(kept):
        (topics / FIGURES / f"{name}.svg").write_text(text)


if __name__ == "__main__":
    main()
