"""Progress of a run of a mirror on a terminal: a bar for each topic that is being copied, and one for all."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table

    from odradek.mirror.task import CopiedRecords
    from odradek.observe import MirrorLag
    from odradek.types import TopicPartition

__all__ = ["Bars", "Line", "TopicProgress", "bars", "lines"]

WINDOW_S = 10.0
"""Time that rates are of (s)."""

LINES = 10
"""Maximum number of topics that have a bar of their own."""


class _Sample(NamedTuple):
    at: float
    records: int
    bytes: int
    done: int


class TopicProgress:
    """The progress of a topic, or of all. Times are of any clock that does not go back (s).

    Args:
        name: How it is called.
        now: The time.
    """

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.records = self.bytes = 0
        self.left = 0  # the lag of all partitions that are known
        self.total = 0  # the lag that each of them had at first
        self._lags: dict[TopicPartition, int] = {}
        self._samples: deque[_Sample] = deque([_Sample(now, 0, 0, 0)])

    def lag(self, partition: TopicPartition, lag: int) -> None:
        """Take the lag of a partition."""
        if partition not in self._lags:
            self.total += lag
        self.left += lag - self._lags.get(partition, 0)
        self._lags[partition] = lag

    def copied(self, records: int, size: int, now: float) -> None:
        """Count records that were committed, after the lag that they leave."""
        self.records, self.bytes = self.records + records, self.bytes + size
        sample = _Sample(now, self.records, self.bytes, self.total - self.left)
        if len(self._samples) > 1 and self._samples[-1].at - self._samples[-2].at < WINDOW_S / 20:
            self._samples.pop()  # a few samples are enough
        self._samples.append(sample)

    def is_moving(self, now: float) -> bool:
        """Return True if records came in the time that rates are of."""
        return len(self._samples) > 1 and self._samples[-1].at > now - WINDOW_S

    def rates(self, now: float) -> tuple[float, float, float]:
        """Return the records, their bytes, and the change of the lag per second, of the latest time."""
        while len(self._samples) > 1 and self._samples[1].at <= now - WINDOW_S:
            self._samples.popleft()
        first, last = self._samples[0], self._samples[-1]
        seconds = now - max(first.at, now - WINDOW_S)
        if last is first or seconds <= 0:
            return 0.0, 0.0, 0.0
        return (
            (last.records - first.records) / seconds,
            (last.bytes - first.bytes) / seconds,
            (last.done - first.done) / seconds,
        )


class Line(NamedTuple):
    """A line of the display.

    Args:
        name: The topic.
        done: How much of it is done, from 0 to 1; None: it goes on.
        texts: Columns behind the bar.
    """

    name: str
    done: float | None
    texts: tuple[str, ...]


def lines(topics: Collection[TopicProgress], total: TopicProgress, now: float, *, follow: bool) -> list[Line]:
    """Return what is shown: topics that move, then others with something to copy, not too many; and all together."""
    open_topics = [topic for topic in topics if topic.is_moving(now) or topic.left]
    chosen = sorted(open_topics, key=lambda topic: (not topic.is_moving(now), topic.name))[:LINES]
    shown = [_line(topic, now, follow=follow) for topic in sorted(chosen, key=lambda topic: topic.name)]
    last = _line(total, now, follow=follow)
    count = len(topics)
    return [*shown, last._replace(name=f"{count} topic{'s' if count != 1 else ''}")]


def _line(topic: TopicProgress, now: float, *, follow: bool) -> Line:
    records, size, done = topic.rates(now)
    rates = (f"{topic.records:,} records", f"{records:,.0f}/s", f"{size / 1e6:,.1f} MB/s")
    if follow:
        return Line(topic.name, None, (*rates, f"lag {topic.left:,}"))
    part = (topic.total - topic.left) / topic.total if topic.total else 1.0
    return Line(topic.name, part, (f"{int(100 * part)} %", *rates, _time_left(topic.left, done)))


def _time_left(left: int, per_second: float) -> str:
    if not left:
        return "done"
    return f"{timedelta(seconds=round(left / per_second))} left" if per_second > 0 else ""


class Bars:
    """All topics of a run. Its methods may be called in different threads.

    Args:
        follow: The run goes on, so that no time is left.
        clock: The time (s).
    """

    def __init__(self, *, follow: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._follow, self._clock = follow, clock
        self._lock = Lock()
        self._topics: dict[str, TopicProgress] = {}
        self._total = TopicProgress("", clock())

    def lags(self, lags: Sequence[MirrorLag]) -> None:
        """Take the lag of partitions (`odradek.mirror.run.run`)."""
        with self._lock:
            for each in lags:
                for progress in self._of(each.partition):
                    progress.lag(each.partition, each.lag)

    def committed(self, copied: Sequence[CopiedRecords]) -> None:
        """Count what was committed."""
        with self._lock:
            now = self._clock()
            for each in copied:
                for progress in self._of(each.partition):
                    progress.copied(each.records, each.bytes, now)

    def _of(self, partition: TopicPartition) -> tuple[TopicProgress, TopicProgress]:
        topic = partition.topic
        if topic not in self._topics:
            self._topics[topic] = TopicProgress(topic, self._clock())
        return self._topics[topic], self._total

    def lines(self) -> list[Line]:
        """Return what is shown now."""
        with self._lock:
            return lines(self._topics.values(), self._total, self._clock(), follow=self._follow)

    def table(self) -> Table:
        """Return the same for a terminal."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=40)
        for line in self.lines():
            bar = [] if line.done is None else [ProgressBar(total=1, completed=line.done, width=20)]
            table.add_row(line.name, *bar, *line.texts)
        return table


@contextmanager
def bars(*, follow: bool, quiet: bool) -> Iterator[Bars]:
    """Yield bars; they are shown if standard error is a terminal."""
    shown = Bars(follow=follow)
    if quiet or not sys.stderr.isatty():
        yield shown
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), get_renderable=shown.table, transient=True):
        yield shown
