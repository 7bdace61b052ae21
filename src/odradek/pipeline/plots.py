"""Plots as inline SVG, for pages without network access or scripts. Every text is escaped here.

Colours are CSS classes and custom properties of the page, so that plots suit light and dark mode.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import NamedTuple

__all__ = ["Bar", "TimeSpan", "columns", "count", "duration", "escape", "moment", "rows", "short", "size", "timeline"]

COLOURS = 7
"""Classes `c0` to `c6`; `rest` is for all remaining series together."""

WIDTH = 880
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 12, 10, 26
_HALF_CHARACTER = 3.8
"""Approximate half width of a label's character."""

Format = Callable[[float], str]
Series = Sequence[tuple[str, Sequence[float]]]


# ---- texts ---------------------------------------------------------------------------------------------------

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


def escape(text: object) -> str:
    """Escape text for HTML, attributes included. Invisible characters, and those that reverse text, become U+FFFD."""
    plain = str(text).encode("utf-8", "replace").decode("utf-8")
    return html.escape(_CONTROL.sub("\ufffd", plain), quote=True)


def short(text: str, most: int) -> str:
    """Return a long name with its middle left out, not escaped."""
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[: most - 3 - half]}...{text[len(text) - half :]}"


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def count(number: float) -> str:
    """Format a number: 1,234,567."""
    return f"{number:,.0f}"


def brief(number: float) -> str:
    """Format a number for an axis: 1.2M."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:g}{unit}"
    return f"{number:g}"


def size(number: float) -> str:
    """Format a number of bytes: 1.2 MiB."""
    unit = 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:,.0f} {_UNITS[unit]}" if number >= 1000 else f"{number:.3g} {_UNITS[unit]}"


def log_size(number: float, unit: str) -> str:
    """Format a size of log in the unit of its positions: 1.2 MiB, or 1,234 records."""
    return size(number) if unit == "bytes" else f"{count(number)} {unit}"


def duration(seconds: float) -> str:
    """Format a number of seconds: 1 h 2 min, 3 min 4 s, or 5.6 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def moment(seconds: float, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """Format a time (s since the epoch): 2026-11-21 12:00:00 UTC, or a number if no calendar has it."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s since 1970"


# ---- the frame -----------------------------------------------------------------------------------------------


def _plot(title: str, height: float, parts: Iterable[str]) -> str:
    body = "".join(parts)
    label = escape(title)
    return f'<svg class="plot" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {height:.0f}">{body}</svg>'


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, kind: str, tip: str) -> str:
    """Return a box with a tooltip, at least one unit wide and high so that it is visible."""
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{max(height, 1):.1f}"'
    return f'<rect class="{kind}" {shape}><title>{escape(tip)}</title></rect>'


def _ticks(top: float, *, binary: bool) -> list[float]:
    """Return about five round numbers from 0 to the first at or above `top`."""
    if top < 1:
        return [0.0, 1.0]
    base = 1024 ** int(math.log(top, 1024)) if binary else 1
    raw = top / base / 4
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw * 0.999)
    if not binary and step < 1:
        step = 1.0
    return [number * step * base for number in range(math.ceil(top / base / step * 0.999) + 1)]


def _grid(ticks: Sequence[float], height: float, label: Format) -> Iterable[str]:
    for tick in ticks:
        y = _TOP + height * (1 - tick / ticks[-1])
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(_LEFT - 8, y + 4, label(tick), "end")


# ---- kinds of plots ------------------------------------------------------------------------------------------


def columns(title: str, labels: Sequence[str], series: Series, *, binary: bool = False) -> str:
    """Return a plot of stacked columns, one for each label on the axis.

    Args:
        title: The text alternative, for screen readers.
        labels: Names on the axis.
        series: Names, each with a value for every label; drawn from the bottom up. Series beyond `COLOURS` are grey.
        binary: The values are bytes.
    """
    height = 190
    show: Format = size if binary else count
    totals = [sum(values) for values in zip(*(values for _, values in series), strict=True)] or [0.0]
    ticks = _ticks(max(totals), binary=binary)
    step = (WIDTH - _LEFT - _RIGHT) / max(len(labels), 1)
    parts = list(_grid(ticks, height, size if binary else brief))
    for at, label in enumerate(labels):
        levels = [0.0, *accumulate(values[at] for _, values in series)]
        for number, (name, values) in enumerate(series):
            if values[at]:
                tall = height * values[at] / ticks[-1]
                y = _TOP + height * (1 - levels[number + 1] / ticks[-1])
                gap = min(2.0, step / 5)
                tip = f"{label}: {name}: {show(values[at])}"
                parts.append(_box(_LEFT + at * step + gap / 2, y, step - gap, tall, colour(number), tip))
    every = math.ceil(len(labels) / 8) or 1
    for at in range(0, len(labels), every):
        x = min(_LEFT + (at + 0.5) * step, WIDTH - _HALF_CHARACTER * len(labels[at]))
        parts.append(_text(x, _TOP + height + 18, labels[at], "middle"))
    return _plot(title, _TOP + height + _BOTTOM, parts)


def colour(number: int) -> str:
    """Return the CSS class of a series."""
    return f"c{number}" if number < COLOURS else "rest"


class Bar(NamedTuple):
    """A horizontal bar; `kind` is the class of its colour."""

    name: str
    value: float
    kind: str = "c0"


def rows(title: str, bars: Sequence[Bar], show: Format = count) -> str:
    """Return a plot of horizontal bars, one below the other, with name and value."""
    most = max((bar.value for bar in bars), default=0) or 1
    left, right, each = 250, 110, 24
    parts: list[str] = []
    for number, bar in enumerate(bars):
        y = 4 + number * each
        wide = (WIDTH - left - right) * bar.value / most
        name = escape(short(bar.name, 30))
        tip = f"<title>{escape(bar.name)}</title>"
        parts.append(f'<text class="label" x="{left - 8}" y="{y + 14}" text-anchor="end">{name}{tip}</text>')
        if bar.value:
            parts.append(_box(left, y, wide, each - 6, bar.kind, f"{bar.name}: {show(bar.value)}"))
        parts.append(_text(left + wide + 6, y + 14, show(bar.value), kind="value"))
    return _plot(title, 8 + len(bars) * each, parts)


class TimeSpan(NamedTuple):
    """A block of a timeline: its start and end (s since the epoch), value and tooltip."""

    start: float
    end: float
    value: float
    tip: str


def timeline(title: str, spans: Sequence[TimeSpan], *, binary: bool = False) -> str:
    """Return a plot of blocks: the width is the duration, the height is the value."""
    height = 110
    first = min((span.start for span in spans), default=0.0)
    last = max((span.end for span in spans), default=1.0)
    wide = (WIDTH - _LEFT - _RIGHT) / max(last - first, 0.001)
    ticks = _ticks(max((span.value for span in spans), default=0), binary=binary)
    parts = list(_grid(ticks, height, size if binary else brief))
    for span in spans:
        tall = height * span.value / ticks[-1]
        x, width = _LEFT + (span.start - first) * wide, (span.end - span.start) * wide
        parts.append(_box(x + 0.5, _TOP + height - tall, width - 1, tall, "c0", span.tip))
    for at in range(5):
        anchor = ("start", "middle", "middle", "middle", "end")[at]
        x = _LEFT + at * (WIDTH - _LEFT - _RIGHT) / 4
        parts.append(_text(x, _TOP + height + 18, moment(first + at * (last - first) / 4, "%H:%M:%S"), anchor))
    return _plot(title, _TOP + height + _BOTTOM, parts)
