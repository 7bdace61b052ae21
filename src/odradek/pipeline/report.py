"""The results of a run: as values, as text for people, and as a page of HTML, with an index of all pages.

Names come from topics and data and are not trusted: see `odradek.pages`.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Template

from odradek.pages import count, duration, moment, size, template
from odradek.pipeline.commits import Commit, Gap, replace_text

__all__ = ["FlowSummary", "RunSummary", "log_text", "render", "write_report"]

COUNTS = ("rows", "dead", "payload", "files", "file_bytes", "older")
"""The counts of commits that are added up."""

BARS, LINES = 48, 500
"""Bars that are shown at once (hours: two days), and in all; also commits and gaps of a flow that are kept."""

EXAMPLES = 20
"""Dead letters of a flow that are kept."""


@dataclass(slots=True)
class FlowSummary:
    """The results of a run for one flow. Times are in seconds since the epoch; None is for what is not known."""

    name: str
    started: float
    ended: float
    lag_before: int | None = None  # size of log to read at its start, and at its end
    lag_after: int | None = None
    location: str = ""  # of the table
    error: str = ""  # why the flow failed; "" if it did not
    problems: Sequence[str] = ()  # what could not be read
    unit: str = "bytes"  # of log, or `records` of 0.8 and later
    partitions: Mapping[str, int | None] = field(default_factory=dict)  # -> what is still to be read
    last_commit: float | None = None  # time of the newest commit in the table
    batches: int = 0  # number of commits; below, sums of all
    seconds: float = 0.0  # how long they took
    log_size: int = 0  # size of log that was read, in `unit`
    rows: int = 0
    dead: int = 0
    payload: int = 0  # bytes of the records' values
    files: int = 0
    file_bytes: int = 0
    gap_count: int = 0
    topics: Sequence[str] = ()  # that were read
    reasons: Mapping[str, int] = field(default_factory=dict)  # why records are dead -> how many
    hours: Mapping[str, int] = field(default_factory=dict)  # start of an hour (s since the epoch) -> rows; the newest
    older: int = 0  # rows with an earlier time
    commits: list[Commit] = field(default_factory=list)  # the newest ones
    gaps: list[Gap] = field(default_factory=list)  # the newest ones
    examples: list[str] = field(default_factory=list)  # of dead letters, the newest ones

    def add(self, commit: Commit, seconds: float) -> None:
        """Add a commit that took this long (s). A run that follows its logs has no end: of details the newest stay."""
        self.batches += 1
        self.seconds += seconds
        self.log_size += commit.log_size
        self.gap_count += len(commit.gaps)
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(commit, name))
        self.topics = sorted({*self.topics, *commit.start})
        self.reasons = dict(Counter(self.reasons) + Counter(commit.reasons))
        hours = sorted((Counter(self.hours) + Counter(commit.hours)).items(), key=lambda each: int(each[0]))
        self.hours = dict(hours[-BARS - LINES :])
        self.older += sum(rows for _, rows in hours[: -BARS - LINES])
        self.commits = [*self.commits, commit][-LINES:]
        self.gaps = [*self.gaps, *commit.gaps][-LINES:]
        self.examples = [*self.examples, *commit.examples][-EXAMPLES:]

    @property
    def failed(self) -> bool:
        return bool(self.error or self.problems)


@dataclass(slots=True)
class RunSummary:
    """The results of a run."""

    run: str  # identifies it; `Commit.run` of its commits
    file: str  # the pipeline's file
    code: str  # version of odradek
    started: float  # s since the epoch
    ended: float
    flows: Sequence[FlowSummary] = ()  # in the order of the file
    report: str = ""  # path of its report; "" if nothing has happened
    warnings: Sequence[str] = ()  # the report, or what monitoring is to have, could not be written

    @property
    def failed(self) -> bool:
        return any(flow.failed for flow in self.flows)


def log_text(number: float, unit: str) -> str:
    """Format a size of log in the unit of its positions: 1.2 MiB, or 1,234 records."""
    return size(number) if unit == "bytes" else f"{count(number)} {unit}"


# ---- pages ---------------------------------------------------------------------------------------------------

KEPT = 200
"""Reports that are kept; older ones are removed."""

PARTITIONS = 16
"""Partitions whose lag is shown at once."""

HEAD_CHARACTERS = 2000


class Bar(NamedTuple):
    """One bar of a plot."""

    name: str
    number: float
    text: str  # the number, for people
    rest: bool = False  # it stands for what is left out


def write_report(summary: RunSummary, state: str) -> Path:
    """Write the report of a run and the index of all; return its path. Raises OSError."""
    target = Path(state) / "reports" / f"{summary.run}.html"
    runs = sorted((path.stem for path in target.parent.glob("*.html") if path.stem != "index"), reverse=True)
    replace_text(target, render(summary, runs[0] if runs else ""))
    for run in runs[KEPT - 1 :]:
        target.with_name(f"{run}.html").unlink(missing_ok=True)
    kept = {run: _about(target.with_name(f"{run}.html")) for run in [summary.run, *runs][:KEPT]}
    replace_text(target.with_name("index.html"), _template().render(title="Pipeline runs", runs=kept))
    return target


def _about(page: Path) -> str:
    """Return the description that a page has of itself; empty if it has none."""
    with page.open(encoding="utf-8", errors="replace") as file:
        match = re.search(r'<meta name="description" content="([^"]*)">', file.read(HEAD_CHARACTERS))
    return html.unescape(match[1]) if match else ""


@cache
def _template() -> Template:
    return template("odradek.pipeline", "report.html", log_text)


def render(summary: RunSummary, before: str = "") -> str:
    """Return the page of a run.

    Args:
        summary: Its results.
        before: The run before it; "": there is none.
    """
    took, state = duration(summary.ended - summary.started), "failed" if summary.failed else "done"
    rows, dead = sum(flow.rows for flow in summary.flows), sum(flow.dead for flow in summary.flows)
    about = f"{state}: {count(rows)} records, {count(dead)} dead, {took}"
    return _template().render(
        title=f"Pipeline run {summary.run}", about=about, summary=summary, before=before, state=state,
        flows=[(flow, _plots(flow)) for flow in summary.flows],
    )  # fmt: skip


def _plots(flow: FlowSummary) -> Mapping[str, Any]:
    """Return the bars of a flow."""
    hours, older = _hours(flow)
    lags = [
        Bar(name, waiting or 0, "unknown" if waiting is None else log_text(waiting, flow.unit))
        for name, waiting in sorted(flow.partitions.items(), key=lambda each: -(each[1] or 0))
        if waiting != 0
    ]
    reasons = Counter(flow.reasons).most_common(LINES)
    return {
        "hours": hours, "older_hours": older, "lags": lags[:PARTITIONS], "more_lags": lags[PARTITIONS:LINES],
        "reasons": [Bar(reason, number, count(number)) for reason, number in reasons],
        "batches": [
            Bar(f"batch {commit.batch}, {moment(commit.written)}", commit.rows, f"{count(commit.rows)} records")
            for commit in flow.commits
        ],
    }  # fmt: skip


def _hours(flow: FlowSummary) -> tuple[list[Bar], list[Bar]]:
    """Return the newest two days with records, and older hours."""
    hours = sorted(((int(hour), rows) for hour, rows in flow.hours.items()), reverse=True)
    bars = [Bar(moment(hour, "%Y-%m-%d %H:00"), rows, count(rows)) for hour, rows in hours]
    shown = sum(hour > hours[0][0] - BARS * 3600 for hour, _ in hours)
    rest = flow.older + sum(rows for _, rows in hours[shown:])
    return [*bars[:shown], *([Bar("older", rest, count(rest), rest=True)] if rest else [])], bars[shown:]
