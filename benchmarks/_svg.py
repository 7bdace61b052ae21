"""Two kinds of charts as SVG, by hand: bars with marks where goals are, and lines over a logarithmic or even axis.

No library: what is drawn is a few rectangles and lines, and its text can be read, searched and compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from math import ceil, floor, log10

from _results import Bar, Chart

__all__ = ["svg"]

WIDTH, MARGIN = 760, 16
TITLE, ROW, BAR = 34, 22, 14
NAMES, NUMBERS, NUMBER = 230, 64, 40
PLOT = 280
"""Height of a chart of lines."""

INK, FAINT, FILL, GOAL = "#24292f", "#d0d7de", "#4c78a8", "#c2410c"
COLOURS = ("#4c78a8", "#e08214", "#3a923a", "#8856a7", "#c2410c")
FONT = "font-family='system-ui, sans-serif' font-size='12'"


def svg(chart: Chart) -> str:
    """The whole file."""
    height, body = _bars(chart) if chart.bars else _lines(chart)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' role='img' {FONT}>\n"
        f"<title>{escape(chart.title)}</title>\n"
        f"<rect width='{WIDTH}' height='{height}' rx='6' fill='#ffffff'/>\n"
        + _text(MARGIN, 22, f"{chart.title}: {chart.unit}", weight="bold")
        + "".join(body)
        + "</svg>\n"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal", fill: str = INK) -> str:
    style = f"text-anchor='{anchor}' font-weight='{weight}' fill='{fill}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(text)}</text>\n"


def _rule(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, dashes: str = "none") -> str:
    style = f"stroke='{colour}' stroke-width='{width}' stroke-dasharray='{dashes}'"
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' {style}/>\n"


# ---- bars ---------------------------------------------------------------------------------------------------


def _bars(chart: Chart) -> tuple[int, list[str]]:
    left, width = MARGIN + NAMES, WIDTH - 2 * MARGIN - NAMES - NUMBERS
    most = max(max(bar.value, bar.goal or 0.0) for bar in chart.bars)
    bottom = TITLE + ROW * len(chart.bars)
    body = []
    for tick in _ticks(0, most):
        x = left + width * tick / most
        body += [_rule(x, TITLE, x, bottom, FAINT), _text(x, bottom + 16, f"{tick:g}", "middle")]
    for number, bar in enumerate(chart.bars):
        body += _bar(bar, TITLE + ROW * number, left, width / most)
    key = "mark: the goal" if any(bar.goal is not None for bar in chart.bars) else ""
    return bottom + 28, [*body, _text(WIDTH - MARGIN, 22, key, "end", fill=GOAL)]


def _bar(bar: Bar, top: float, left: float, scale: float) -> Iterable[str]:
    y = top + (ROW - BAR) / 2
    yield _text(left - 8, top + 15, bar.name, "end")
    yield f"<rect x='{left}' y='{y:.1f}' width='{bar.value * scale:.1f}' height='{BAR}' fill='{FILL}'/>\n"
    end = left + bar.value * scale
    if bar.goal is not None:
        x = left + bar.goal * scale
        yield _rule(x, y - 3, x, y + BAR + 3, GOAL, 2.5)
        end = x if end < x < end + NUMBER else end
    yield _text(end + 6, top + 15, f"{bar.value:.2g}" if bar.value < 10 else f"{bar.value:.0f}")


# ---- lines --------------------------------------------------------------------------------------------------


def _lines(chart: Chart) -> tuple[int, list[str]]:
    left, right, top, bottom = MARGIN + 60, WIDTH - MARGIN - 130, TITLE + 10, TITLE + PLOT
    points = [point for line in chart.lines for point in line.points]
    least_x, most_x = min(x for x, _ in points), max(x for x, _ in points)
    goals = [line.goal for line in chart.lines if line.goal is not None]
    most_y, wide = max(*(y for _, y in points), *goals) or 1.0, most_x > 50 * least_x

    def across(x: float) -> float:
        part = log10(x / least_x) / log10(most_x / least_x) if wide else (x - least_x) / (most_x - least_x or 1)
        return left + part * (right - left)

    def up(y: float) -> float:
        return bottom - y / (1.05 * most_y) * (bottom - top)

    body = []
    for tick in _ticks(0, most_y):
        body += [_rule(left, up(tick), right, up(tick), FAINT), _text(left - 8, up(tick) + 4, f"{tick:,g}", "end")]
    ticks = (
        [10.0**n for n in range(ceil(log10(least_x)), floor(log10(most_x)) + 1)] if wide else _ticks(least_x, most_x)
    )
    body += [_text(across(tick), bottom + 18, f"{tick:,g}", "middle") for tick in ticks]
    body.append(_text((left + right) / 2, bottom + 36, chart.across, "middle"))
    labels = _apart([up(line.points[-1][1]) + 4 for line in chart.lines])
    for line, colour, label in zip(chart.lines, COLOURS, labels, strict=False):
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line.points)
        body.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>\n")
        body += [f"<circle cx='{across(x):.1f}' cy='{up(y):.1f}' r='3' fill='{colour}'/>\n" for x, y in line.points]
        body.append(_text(right + 10, label, line.name, fill=colour))
        if line.goal is not None:
            body.append(_rule(left, up(line.goal), right, up(line.goal), colour, 1.5, "3 5"))
    key = "dotted: the goal, not to be crossed" if goals else ""
    return bottom + 48, [*body, _text(WIDTH - MARGIN, 22, key, "end", fill=GOAL)]


def _apart(positions: Sequence[float]) -> list[float]:
    """The same, moved until none is less than a line's height from the next."""
    moved = list(positions)
    order = sorted(range(len(moved)), key=moved.__getitem__, reverse=True)
    for below, above in pairwise(order):
        moved[above] = min(moved[above], moved[below] - 15)
    return moved


def _ticks(least: float, most: float) -> list[float]:
    """Four to ten round numbers."""
    step = 10.0 ** floor(log10((most - least) / 4 or 1.0))
    step *= next(f for f in (1, 2, 2.5, 5, 10) if (most - least) / (f * step) <= 8)
    first = ceil(least / step)
    return [number * step for number in range(first, floor(most / step) + 1)]
