"""Draws a state machine as SVG: a column for each state, a row for each pair of states that events lead between.
A row without an arrow is an event that leaves the state as it is."""

from __future__ import annotations

import html
from collections.abc import Iterator

from odradek.core.states import Machine

COLUMN, ROW, TOP, CHARACTER = 150, 34, 46, 6.2
STYLE = "font:12px sans-serif;max-width:100%;height:auto;background:#fff;color:#222"
ARROWHEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#2a6"/></marker></defs>'
)


def draw(machine: Machine) -> str:
    """The picture, as an `<svg>` element that needs nothing from elsewhere."""
    arrows: dict[tuple[int, int], list[str]] = {}
    states = list(type(machine.start))
    for (state, event), target in machine.transitions.items():
        arrows.setdefault((states.index(state), states.index(target)), []).append(str(event.value))
    height = TOP + ROW * (len(arrows) + 1)
    rows = [(a, b, ", ".join(events)) for (a, b), events in arrows.items()]
    width = max([COLUMN * len(states), *(_label_x(a, b, text) + CHARACTER * len(text) / 2 for a, b, text in rows)])
    parts = [f'<svg viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" role="img" style="{STYLE}">', ARROWHEAD]
    for i, state in enumerate(states):
        parts += _column(i, state.name, height, state is machine.start)
    for row, (a, b, text) in enumerate(rows):
        parts += _arrow(a, b, text, TOP + ROW * (row + 1))
    return "".join([*parts, "</svg>"])


def _x(column: int) -> float:
    return COLUMN * (column + 0.5)


def _label_x(a: int, b: int, text: str) -> float:
    """The label's middle: over its arrow, and inside the picture."""
    return max((_x(a) + _x(b)) / 2, CHARACTER * len(text) / 2 + 4)


def _column(i: int, name: str, height: int, start: bool) -> Iterator[str]:
    x, stroke = _x(i), 2 if start else 1
    yield f'<line x1="{x}" y1="32" x2="{x}" y2="{height - 8}" stroke="#bbb" stroke-dasharray="3 3"/>'
    box = f'x="{x - 55}" y="8" width="110" height="24" rx="6"'
    yield f'<rect {box} fill="#eef6f2" stroke="#2a6" stroke-width="{stroke}"/>'
    yield f'<text x="{x}" y="24" text-anchor="middle" font-weight="bold">{name}</text>'


def _arrow(a: int, b: int, text: str, y: int) -> Iterator[str]:
    if a != b:
        line = f'<line x1="{_x(a)}" y1="{y}" x2="{_x(b)}" y2="{y}"'
        yield f'{line} stroke="#2a6" stroke-width="1.5" marker-end="url(#head)"/>'
    yield f'<circle cx="{_x(a)}" cy="{y}" r="3" fill="#2a6"/>'
    label = f'<text x="{_label_x(a, b, text):.0f}" y="{y - 5}" text-anchor="middle"'
    yield f'{label} paint-order="stroke" stroke="#fff" stroke-width="3">{html.escape(text)}</text>'
