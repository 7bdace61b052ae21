"""Progress bars of `odradek mirror run`, by a clock of the test."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from odradek.cli.mirror.bars import LINES, Bars, Line, bars
from odradek.mirror.task import CopiedRecords
from odradek.observe import MirrorLag
from odradek.types import TopicPartition


class Shown:
    """Bars and their clock."""

    def __init__(self, *, follow: bool = False) -> None:
        self.now = 1000.0
        self.bars = Bars(follow=follow, clock=lambda: self.now)

    def lag(self, topic: str, lag: int, number: int = 0) -> None:
        self.bars.lags([MirrorLag("m", TopicPartition(topic, number), lag, None)])

    def copied(self, topic: str, records: int, size: int, lag: int, number: int = 0) -> None:
        self.lag(topic, lag, number)
        self.bars.committed([CopiedRecords(TopicPartition(topic, number), records, size, 0, None, None, 0.1)])

    def line(self, name: str) -> Line:
        (line,) = [line for line in self.bars.lines() if line.name == name]
        return line


def test_a_topic_while_it_is_copied() -> None:
    shown = Shown()
    shown.lag("t", 600, 0)
    shown.lag("t", 400, 1)
    assert shown.line("t") == Line("t", 0.0, ("0 %", "0 records", "0/s", "0.0 MB/s", ""))
    shown.now += 2
    shown.copied("t", 200, 4_000_000, 400, 0)
    assert shown.line("t") == Line("t", 0.2, ("20 %", "200 records", "100/s", "2.0 MB/s", "0:00:08 left"))
    shown.now += 2
    assert shown.line("t").texts[2:] == ("50/s", "1.0 MB/s", "0:00:16 left")  # it falls while nothing comes
    shown.now += 10
    assert shown.line("t").texts == ("20 %", "200 records", "0/s", "0.0 MB/s", "")
    shown.copied("t", 400, 4_000_000, 0, 0)
    shown.copied("t", 400, 4_000_000, 0, 1)
    assert shown.line("t").texts[0] == "100 %" and shown.line("t").texts[-1] == "done"
    shown.now += 100
    assert [line.name for line in shown.bars.lines()] == ["1 topic"]


def test_rates_are_those_of_the_latest_time() -> None:
    shown = Shown()
    shown.lag("t", 100_000)
    for second in range(1, 101):
        shown.now += 1
        shown.copied("t", 10 if second <= 50 else 1000, 0, 100_000 - second)
    assert shown.line("t").texts[2] == "1,000/s"


def test_many_transactions_in_a_short_time_take_few_samples() -> None:
    shown = Shown()
    shown.lag("t", 100_000)
    for number in range(1, 10_001):
        shown.now += 0.001
        shown.copied("t", 1, 0, 100_000 - number)
    assert shown.line("t").texts[2] == "1,000/s"
    assert len(shown.bars._total._samples) < 30


def test_positions_without_records_count_as_done() -> None:
    """Of compacted topics, and where transactions end."""
    shown = Shown()
    shown.lag("t", 1000)
    shown.now += 1
    shown.copied("t", 10, 100, 500)
    assert shown.line("t").texts == ("50 %", "10 records", "10/s", "0.0 MB/s", "0:00:01 left")


def test_a_run_that_goes_on_shows_its_lag() -> None:
    shown = Shown(follow=True)
    shown.lag("t", 0)
    assert shown.bars.lines()[-1] == Line("1 topic", None, ("0 records", "0/s", "0.0 MB/s", "lag 0"))
    shown.now += 1
    shown.copied("t", 5000, 1_000_000, 7)
    assert shown.line("t") == Line("t", None, ("5,000 records", "5,000/s", "1.0 MB/s", "lag 7"))
    shown.copied("t", 7, 7, 0)
    shown.now += 60
    assert [line.name for line in shown.bars.lines()] == ["1 topic"]  # an idle topic needs no line


def test_nothing_to_copy() -> None:
    shown = Shown()
    assert shown.bars.lines() == [Line("0 topics", 1.0, ("100 %", "0 records", "0/s", "0.0 MB/s", "done"))]


def test_of_many_topics_those_are_shown_that_move() -> None:
    shown = Shown()
    for number in range(300):
        shown.lag(f"t{number:03}", 10)
    assert [line.name for line in shown.bars.lines()] == [*(f"t{n:03}" for n in range(LINES)), "300 topics"]
    shown.now += 1
    for number in (250, 7, 299):
        shown.copied(f"t{number:03}", 5, 5, 5)
    names = [line.name for line in shown.bars.lines()]
    assert len(names) == LINES + 1 and {"t007", "t250", "t299"} < set(names) and names[:-1] == sorted(names[:-1])
    assert shown.bars.lines()[-1].texts[:2] == ("0 %", "15 records")


def text_of(shown: Shown) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    console.print(shown.bars.table())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("follow", [False, True])
def test_bars_on_a_terminal(follow: bool) -> None:
    shown = Shown(follow=follow)
    name = "a-topic-whose-name-is-longer-than-anybody-wants-to-read-it"
    shown.lag(name, 100)
    shown.now += 1
    shown.copied(name, 50, 50, 50)
    first, last = text_of(shown).splitlines()
    assert first.startswith(name[:20]) and "\u2026" in first and "50 records" in first and last.startswith("1 topic")
    assert ("\u2501" in first) is not follow and ("lag 50" in first) is follow


def test_without_a_terminal_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with bars(follow=False, quiet=False) as shown:
        shown.lags([MirrorLag("m", TopicPartition("t", 0), 5, None)])
    assert capsys.readouterr() == ("", "")


def test_with_a_terminal_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    with bars(follow=False, quiet=False) as shown:
        shown.lags([MirrorLag("m", TopicPartition("t", 0), 5, None)])
    assert "1 topic" in stream.getvalue()
