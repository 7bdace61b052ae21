"""Parsers of option values."""

from __future__ import annotations

import time
from datetime import datetime

import click
import pytest
from click.testing import CliRunner

from odradek.cli.options import APPLY, Last, clustered, moment, start_position
from odradek.types import EARLIEST, LATEST, AtTime


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("beginning", EARLIEST),
        ("earliest", EARLIEST),
        ("end", LATEST),
        ("latest", LATEST),
        ("0", 0),
        ("123", 123),
        ("-5", Last(5)),
        ("@1795206157", AtTime(1795206157.0)),
        ("@1795206157.5", AtTime(1795206157.5)),
        ("@2026-11-21T12:00:00+00:00", AtTime(datetime.fromisoformat("2026-11-21T12:00:00+00:00").timestamp())),
    ],
)
def test_start_positions(text: str, meaning: object) -> None:
    assert start_position(text) == meaning


@pytest.mark.parametrize("text", ["", "stored", "1.5", "--1", "+1", "@", "@yesterday", "-", "0x10", "9" * 5000])
def test_an_invalid_start_position_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        start_position(text)


@pytest.mark.parametrize(("text", "ago"), [("-90s", 90), ("-15m", 900), ("-1.5h", 5400), ("-2d", 172800)])
def test_a_moment_may_be_relative(text: str, ago: float) -> None:
    before = time.time() - ago
    assert before <= moment(text) <= time.time() - ago


def test_a_moment_without_a_zone_is_local() -> None:
    assert moment("2026-11-21T12:00") == datetime(2026, 11, 21, 12, 0).timestamp()


@pytest.mark.parametrize("flags", [[], ["--apply"]])
def test_a_signal_that_ends_a_change_does_not_end_it_silently(flags: list[str]) -> None:
    @click.command()
    @APPLY
    @clustered
    def change(url: str, apply: bool) -> int:
        raise SystemExit(143)

    ended = CliRunner().invoke(change, ["--cluster", "kafka://b:1", *flags])
    assert (ended.exit_code, "may have been done" in ended.stderr) == (143, bool(flags))
