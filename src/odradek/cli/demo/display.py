"""Display of the demo: a table redrawn in place on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

__all__ = ["DemoProcess", "Display", "Meter", "Scene", "display_for"]

LINE_SECONDS = 2.0
"""Interval of status lines without a terminal."""
EVENTS_SHOWN = 8
"""Number of latest events below the table."""


class Meter:
    """A growing number and its rate over the last second or so."""

    def __init__(self) -> None:
        self.total = 0
        self._samples: list[tuple[float, int]] = []

    def update(self, total: int, now: float) -> None:
        """Record the number at a time (s)."""
        self.total = total
        self._samples = [sample for sample in self._samples if sample[0] >= now - 1.0] + [(now, total)]

    @property
    def per_second(self) -> float:
        """The rate; 0 before the second update."""
        if not self._samples:
            return 0.0
        (then, before), (now, total) = self._samples[0], self._samples[-1]
        return (total - before) / (now - then) if now > then else 0.0


@dataclass
class DemoProcess:
    """A process in the display.

    Args:
        name: Its name.
        state: A few words about its present work.
        meter: Messages written or handled; None for servers.
    """

    name: str
    state: str = ""
    meter: Meter | None = None


@dataclass
class Scene:
    """The state of the demo, as the display shows it."""

    messages: int
    processes: dict[str, DemoProcess] = field(default_factory=dict)
    handled: int = 0
    events: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def age(self) -> float:
        """Return the time since the start of the demo (s)."""
        return time.monotonic() - self.started

    def update_rates(self, now: float) -> None:
        """Let the rates of all meters fall that have not been updated recently."""
        for process in self.processes.values():
            if process.meter is not None:
                process.meter.update(process.meter.total, now)


class Display(Protocol):
    """A way to show a scene."""

    def event(self, text: str) -> None:
        """Show an event."""
        ...

    def refresh(self) -> None:
        """Show the current state of the scene; called several times a second."""
        ...


@contextmanager
def display_for(scene: Scene, *, quiet: bool) -> Iterator[Display]:
    """Choose the display for standard output: none if `quiet`, a table on a terminal, else lines."""
    console = Console()
    if quiet:
        yield SilentDisplay(scene)
    elif console.is_terminal:
        with Live(console=console, refresh_per_second=8) as live:
            yield TableDisplay(scene, live)
    else:
        yield LineDisplay(scene)


class SilentDisplay:
    """A display that prints nothing, for --json and --quiet."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def event(self, text: str) -> None:
        """Record an event."""
        self.scene.events.append(f"{self.scene.age():5.1f} s  {text}")

    def refresh(self) -> None:
        """Do nothing."""


class LineDisplay(SilentDisplay):
    """A display that prints one line per event, and a status line every LINE_SECONDS."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._next = LINE_SECONDS

    def event(self, text: str) -> None:
        """Print an event."""
        super().event(text)
        click.echo(self.scene.events[-1])

    def refresh(self) -> None:
        """Print a status line if it is time for one."""
        if self.scene.age() < self._next or self.scene.handled == self.scene.messages:
            return
        self._next = self.scene.age() + LINE_SECONDS
        busy = [process for process in self.scene.processes.values() if process.meter and process.meter.total]
        rates = ", ".join(f"{process.name} {_count(process.meter)}" for process in busy)
        if rates:
            click.echo(f"{self.scene.age():5.1f} s  {rates}; handled {self.scene.handled:,} of {self.scene.messages:,}")


class TableDisplay(SilentDisplay):
    """A display that redraws a table of all processes."""

    def __init__(self, scene: Scene, live: Live) -> None:
        super().__init__(scene)
        self._live = live

    def event(self, text: str) -> None:
        """Show an event below the table."""
        super().event(text)
        self.refresh()

    def refresh(self) -> None:
        """Redraw the table."""
        scene = self.scene
        rows = Table(box=None, pad_edge=False)
        for heading in ("process", "messages", "per second"):
            rows.add_column(heading, justify="left" if heading == "process" else "right")
        rows.add_column("state")
        for process in scene.processes.values():
            meter = process.meter
            total, rate = (f"{meter.total:,}", f"{meter.per_second:,.0f}") if meter else ("", "")
            rows.add_row(process.name, total, rate, process.state)
        summary = Table.grid(padding=(0, 1))
        text = f"handled {scene.handled:,} of {scene.messages:,}; {scene.age():.0f} s"
        summary.add_row(ProgressBar(total=scene.messages, completed=scene.handled, width=30), text)
        self._live.update(Group(rows, summary, Text("\n".join(scene.events[-EVENTS_SHOWN:]), style="dim")))


def _count(meter: Meter | None) -> str:
    return f"{meter.total:,} ({meter.per_second:,.0f}/s)" if meter else ""
