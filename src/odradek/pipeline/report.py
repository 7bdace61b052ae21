"""A run's report: one HTML file without network access or scripts.

Every plot has a table of its values. Names come from topics and data and are not trusted: all text goes through
`plots.escape`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from odradek.pipeline import plots
from odradek.pipeline.plots import Bar, TimeSpan, count, duration, escape, log_size, moment, size
from odradek.pipeline.style import STYLE
from odradek.pipeline.summary import BatchSummary, FlowSummary, RunSummary, Volume

__all__ = ["render", "write_report"]

BARS, LINES = 15, 500
"""Maximum number of bars in a plot (the rest share one bar), and of rows in a table (the rest are left out)."""

HOUR = 3600

MAX_COLUMNS = 72
"""Maximum number of columns in a plot; for more hours than this, a column stands for several."""

STEPS = [HOUR * hours for hours in (1, 2, 3, 6, 12, 24, 48, 7 * 24, 28 * 24)]

REST = "the rest"


def write_report(summary: RunSummary, path: str | os.PathLike[str]) -> None:
    """Write a run's report, replacing a file of that name atomically. Raises OSError."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    scratch.write_text(render(summary), "utf-8")
    scratch.replace(target)


def render(summary: RunSummary) -> str:
    """Return the page as HTML."""
    state = "failed" if summary.failed else "done"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Pipeline run {escape(summary.run)}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>Pipeline run <span class="state {state}">{state}</span></h1>
<p class="facts"><span><b>{_name(summary.file)}</b></span> <span>run <code>{escape(summary.run)}</code></span>
<span>{moment(summary.started)} to {moment(summary.ended)}</span>
<span>{duration(summary.ended - summary.started)}</span> <span>odradek {escape(summary.code)}</span></p>
</header>
<main>
{_tiles(summary.flows)}
{_overview(summary.flows)}
{"".join(_flow(number, flow) for number, flow in enumerate(summary.flows))}
</main>
</body>
</html>
"""


# ---- all flows -----------------------------------------------------------------------------------------------


def _tiles(flows: Sequence[FlowSummary]) -> str:
    rows, dead = sum(flow.rows for flow in flows), sum(flow.dead for flow in flows)
    batches = sum(len(flow.batches) for flow in flows)
    behind = [flow.lag_after for flow in flows if flow.lag_after is not None]
    tiles = (
        ("records", count(rows), f"{size(sum(flow.bytes for flow in flows))} of payload"),
        (
            "log read",
            log_size(sum(flow.log_bytes for flow in flows), _unit(flows)),
            _times(batches, "batch"),
        ),
        ("dead letters", count(dead), f"{100 * dead / (rows + dead) if rows + dead else 0:.3g} % of what was read"),
        ("files", count(sum(flow.files for flow in flows)), size(sum(flow.file_bytes for flow in flows))),
        (
            "still to be read",
            log_size(sum(behind), _unit(flows)) if behind else "not known",
            "of log, at the end of the run",
        ),
    )
    each = (
        f'<div class="tile"><dt>{name}</dt><dd>{value}</dd><dd class="more">{more}</dd></div>'
        for name, value, more in tiles
    )
    return f'<dl class="tiles">{"".join(each)}</dl>'


def _overview(flows: Sequence[FlowSummary]) -> str:
    """Plot the lag of all flows before and after the run."""
    known = [flow for flow in flows if flow.lag_before is not None or flow.lag_after is not None]
    known.sort(key=lambda flow: -max(flow.lag_before or 0, flow.lag_after or 0))
    bars = [
        bar
        for flow in known[:BARS]
        for bar in (
            Bar(f"{flow.name}: before", flow.lag_before or 0, "rest"),
            Bar(f"{flow.name}: after", flow.lag_after or 0, "c0"),
        )
    ]
    if not bars:
        return ""
    table = _table(
        "Log still to be read",
        ("flow", "before", "after"),
        [(flow.name, _lag(flow.lag_before, flow.unit), _lag(flow.lag_after, flow.unit)) for flow in known],
    )
    return _figure(
        "Lag",
        plots.rows("Lag of each flow, before and after", bars, lambda number: log_size(number, _unit(flows))),
        table,
    )


# ---- one flow ------------------------------------------------------------------------------------------------


def _flow(number: int, flow: FlowSummary) -> str:
    facts = [
        f"{count(flow.rows)} records",
        f"{size(flow.bytes)} of payload",
        f"{count(flow.dead)} dead",
        _times(len(flow.batches), "batch"),
        _times(flow.files, "file"),
        duration(flow.ended - flow.started),
    ]
    failure = f'<p class="error"><b>The flow failed:</b> {escape(flow.error)}</p>' if flow.error else ""
    nothing = "" if flow.batches or flow.error else "<p>There was nothing new to read.</p>"
    return f"""<section aria-labelledby="flow-{number}">
<h2 id="flow-{number}">{_name(flow.name)}</h2>
<p class="facts">{" ".join(f"<span>{fact}</span>" for fact in facts)}</p>
{failure}{nothing}{_volumes(flow)}{_topics(flow)}{_batches(flow.batches)}{_reasons(flow)}{_gaps(flow)}
</section>
"""


def _volumes(flow: FlowSummary) -> str:
    """Plot rows and bytes by the time of the records."""
    step, starts = _column_starts({hour for hours in flow.hours.values() for hour in hours})
    if not starts:
        return ""
    series = _series(flow.hours, step, starts)
    names = [moment(start, "%m-%d %H:%M" if step < 24 * HOUR else "%Y-%m-%d") for start in starts]
    table = _table(
        "Records by their time (UTC)",
        ("from", "records", "bytes", "largest topic"),
        [_hour(start, [(name, values[at]) for name, values in series]) for at, start in enumerate(starts)],
    )
    every = "hour" if step == HOUR else f"{step / HOUR:g} hours"
    rows = [(name, [each.rows for each in values]) for name, values in series]
    sizes = [(name, [each.bytes for each in values]) for name, values in series]
    legend = _legend([name for name, _ in series])
    records = plots.columns("Records by time", names, rows)
    volume = plots.columns("Bytes by time", names, sizes, binary=True)
    return "".join(
        (
            _figure(f"Records by topic, per {every} (UTC)", records, legend),
            _figure(f"Bytes by topic, per {every} (UTC)", volume, legend, table),
        )
    )


Hours = Mapping[str, Mapping[int, Volume]]


def _series(hours: Hours, step: int, starts: Sequence[int]) -> list[tuple[str, list[Volume]]]:
    """Return the largest topics, and one series for the rest."""
    topics = _ranked(hours)
    series = [(topic, _by_column([hours[topic]], step, starts)) for topic in topics[: plots.COLOURS]]
    if rest := topics[plots.COLOURS :]:
        series.append(
            (f"{REST}: {_times(len(rest), 'topic')}", _by_column([hours[topic] for topic in rest], step, starts))
        )
    return series


def _ranked(hours: Hours) -> list[str]:
    """Return the topics, those with most records first."""
    return sorted(hours, key=lambda topic: (-_total(hours[topic]).rows, topic))


def _total(hours: Mapping[int, Volume]) -> Volume:
    return sum(hours.values(), Volume())


def _column_starts(hours: set[int]) -> tuple[int, list[int]]:
    """Return the width of a column (s) and the start of each, at most `MAX_COLUMNS`."""
    if not hours:
        return HOUR, []
    first, last = min(hours), max(hours)
    step = next((step for step in STEPS if (last - first) // step < MAX_COLUMNS), (last - first) // MAX_COLUMNS + 1)
    return step, list(range(first - first % step, last + 1, step))


def _by_column(parts: Iterable[Mapping[int, Volume]], step: int, starts: Sequence[int]) -> list[Volume]:
    sums = dict.fromkeys(starts, Volume())
    for hours in parts:
        for hour, volume in hours.items():
            sums[hour - (hour - starts[0]) % step] += volume
    return list(sums.values())


def _hour(start: int, volumes: Sequence[tuple[str, Volume]]) -> tuple[str, str, str, str]:
    total = sum((volume for _, volume in volumes), Volume())
    most = max(volumes, key=lambda each: each[1].rows)[0] if total.rows else ""
    return moment(start, "%Y-%m-%d %H:%M"), count(total.rows), size(total.bytes), most


def _legend(names: Sequence[str]) -> str:
    keys = (
        f'<li title="{escape(name)}"><span class="key {plots.colour(at)}"></span>{_name(plots.short(name, 60))}</li>'
        for at, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(keys)}</ul>'


def _topics(flow: FlowSummary) -> str:
    topics = _ranked(flow.hours)
    if not topics:
        return ""
    totals = [(topic, _total(flow.hours[topic])) for topic in topics]
    bars = [Bar(topic, volume.rows) for topic, volume in totals[:BARS]]
    if rest := totals[BARS:]:
        name = f"{REST}: {_times(len(rest), 'topic')}"
        bars.append(Bar(name, sum(volume.rows for _, volume in rest), "rest"))
    lines = [(topic, count(volume.rows), size(volume.bytes)) for topic, volume in totals]
    table = _table("Records and bytes of each topic", ("topic", "records", "bytes"), lines)
    return _figure("Topics", plots.rows("Records of each topic", bars), table)


def _batches(batches: Sequence[BatchSummary]) -> str:
    if not batches:
        return ""
    spans = [TimeSpan(each.ended - each.seconds, each.ended, each.log_bytes, _tip(each)) for each in batches]
    title = f"Batches: {batches[0].unit} of log, from {moment(spans[0].start)}"
    lines = [
        (
            str(each.batch), moment(each.ended), duration(each.seconds), count(each.rows),
            log_size(each.log_bytes, each.unit),
            count(each.dead), _lag(each.lag, each.unit),
        )
        for each in batches
    ]  # fmt: skip
    head = ("batch", "committed", "took", "records", "log", "dead", "still to be read")
    return _figure(
        title,
        plots.timeline("Batches over time", spans, binary=batches[0].unit == "bytes"),
        _table("Batches", head, lines),
    )


def _tip(batch: BatchSummary) -> str:
    log = log_size(batch.log_bytes, batch.unit)
    return f"batch {batch.batch}: {count(batch.rows)} records of {log} in {duration(batch.seconds)}"


def _reasons(flow: FlowSummary) -> str:
    reasons = sorted(flow.reasons.items(), key=lambda each: (-each[1], each[0]))
    if not reasons:
        return ""
    bars = [Bar(reason, number, "bad") for reason, number in reasons[:BARS]]
    if rest := reasons[BARS:]:
        bars.append(Bar(f"{REST}: {_times(len(rest), 'reason')}", sum(number for _, number in rest), "rest"))
    lines = [(reason, count(number)) for reason, number in reasons]
    table = _table("Dead letters by reason", ("reason", "records"), lines)
    return _figure("Dead letters by reason", plots.rows("Dead letters by reason", bars), table)


def _gaps(flow: FlowSummary) -> str:
    if not flow.gaps:
        return ""
    lines = [
        (
            f"{gap.topic}/{gap.partition}",
            count(gap.start),
            count(gap.end),
            log_size(gap.end - gap.start, flow.unit),
            gap.reason,
        )
        for gap in flow.gaps
    ]
    table = _table("What could not be read", ("log", "from", "up to", "size", "why"), lines)
    return f'<h3>Gaps</h3><p class="error">{_times(len(lines), "range")} of logs could not be read.</p>{table}'


# ---- parts of the page ---------------------------------------------------------------------------------------


def _figure(title: str, plot: str, *below: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{plot}{''.join(below)}</figure>"


def _table(caption: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a collapsed table; the first column names the row."""
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{_name(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in lines[:LINES]
    )
    more = f"; {count(len(lines) - LINES)} more are left out" if len(lines) > LINES else ""
    return (
        f"<details><summary>{escape(caption)}: {_times(min(len(lines), LINES), 'row')}{more}</summary>"
        f"<div><table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


def _name(text: str) -> str:
    """Return a name as HTML that isolates its writing direction."""
    return f"<bdi>{escape(text)}</bdi>"


def _lag(number: int | None, unit: str) -> str:
    return "not known" if number is None else log_size(number, unit)


def _unit(flows: Sequence[FlowSummary]) -> str:
    """Return the unit of positions, the same for all flows of a file."""
    return flows[0].unit if flows else "bytes"


def _times(number: int, what: str) -> str:
    plural = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{count(number)} {what}{plural}"
