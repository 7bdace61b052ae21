"""What the demo shows: a picture that moves on a terminal, lines elsewhere."""

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

__all__ = ["Meter", "Scene", "View", "view"]

LINE_SECONDS = 2.0
"""Without a terminal: a status line that often."""
NEWEST = 8
"""So many events stay in the picture."""


class Meter:
    """A number that grows, and how fast it does: over the last second or so."""

    def __init__(self) -> None:
        self.total = 0
        self._marks: list[tuple[float, int]] = []

    def update(self, total: int, now: float) -> None:
        self.total = total
        self._marks = [mark for mark in self._marks if mark[0] >= now - 1.0] + [(now, total)]

    @property
    def per_second(self) -> float:
        """0 until two updates are known."""
        (then, before), (now, total) = self._marks[0], self._marks[-1]
        return (total - before) / (now - then) if now > then else 0.0


@dataclass
class DemoProcess:
    """A process in the picture.

    Args:
        name: What it is called.
        state: What it does, in a few words.
        meter: Messages written or handled; None for servers.
    """

    name: str
    state: str = ""
    meter: Meter | None = None


@dataclass
class Scene:
    """Everything the display needs to know."""

    messages: int
    actors: dict[str, DemoProcess] = field(default_factory=dict)
    handled: int = 0
    news: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def age(self) -> float:
        return time.monotonic() - self.started

    def pass_time(self, now: float) -> None:
        """For all meters: what has told nothing new has become slower."""
        for actor in self.actors.values():
            if actor.meter is not None:
                actor.meter.update(actor.meter.total, now)


class View(Protocol):
    """How a scene is shown."""

    def event(self, text: str) -> None:
        """Something happened."""
        ...

    def refresh(self) -> None:
        """The scene has moved on; called several times a second."""
        ...


@contextmanager
def view(scene: Scene, *, quiet: bool) -> Iterator[View]:
    """The view that fits standard output: none, a picture, or lines."""
    console = Console()
    if quiet:
        yield Silent(scene)
    elif console.is_terminal:
        with Live(console=console, refresh_per_second=8) as live:
            yield Picture(scene, live)
    else:
        yield Lines(scene)


class Silent:
    """For --json and --quiet: nothing but the account at the end."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def event(self, text: str) -> None:
        self.scene.news.append(f"{self.scene.age():5.1f} s  {text}")

    def refresh(self) -> None:
        pass


class Lines(Silent):
    """One line for each event, and a status line now and then."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._next = LINE_SECONDS

    def event(self, text: str) -> None:
        super().event(text)
        click.echo(self.scene.news[-1])

    def refresh(self) -> None:
        if self.scene.age() < self._next or self.scene.handled == self.scene.messages:
            return
        self._next = self.scene.age() + LINE_SECONDS
        busy = [actor for actor in self.scene.actors.values() if actor.meter is not None and actor.meter.total]
        told = ", ".join(f"{actor.name} {_count(actor.meter)}" for actor in busy)
        if told:
            click.echo(f"{self.scene.age():5.1f} s  {told}; handled {self.scene.handled:,} of {self.scene.messages:,}")


class Picture(Silent):
    """A table that is redrawn in place."""

    def __init__(self, scene: Scene, live: Live) -> None:
        super().__init__(scene)
        self._live = live

    def event(self, text: str) -> None:
        super().event(text)
        self.refresh()

    def refresh(self) -> None:
        scene = self.scene
        rows = Table(box=None, pad_edge=False)
        for heading in ("process", "messages", "a second"):
            rows.add_column(heading, justify="left" if heading == "process" else "right")
        rows.add_column("state")
        for actor in scene.actors.values():
            total, rate = (f"{actor.meter.total:,}", f"{actor.meter.per_second:,.0f}") if actor.meter else ("", "")
            rows.add_row(actor.name, total, rate, actor.state)
        done = Table.grid(padding=(0, 1))
        told = f"handled {scene.handled:,} of {scene.messages:,}; {scene.age():.0f} s"
        done.add_row(ProgressBar(total=scene.messages, completed=scene.handled, width=30), told)
        self._live.update(Group(rows, done, Text("\n".join(scene.news[-NEWEST:]), style="dim")))


def _count(meter: Meter | None) -> str:
    return f"{meter.total:,} ({meter.per_second:,.0f}/s)" if meter else ""
