"""The counts of the demo are exact: every lost message and every repeated delivery is counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.cli.demo.counts import HandledCounts, count_missing, numbered, total_up


@pytest.mark.parametrize("number", [0, 7, 1234567, 9_999_999_999])
def test_a_message_carries_its_number_and_is_json(number: int) -> None:
    message = numbered(number, 1_795_255_200_000, b'"some text"')
    assert json.loads(message) == {"n": number, "ts": 1_795_255_200_000, "text": "some text"}


@given(st.lists(st.lists(st.integers(0, 19), max_size=40), min_size=1, max_size=4))
def test_lost_and_duplicates_are_counted_exactly(handled: list[list[int]]) -> None:
    counts = [bytes(one.count(n) for n in range(20)) for one in handled]
    everything = [n for one in handled for n in one]
    totals = total_up(counts)
    assert totals.lost == [n for n in range(20) if n not in everything]
    assert totals.duplicates == len(everything) - len(set(everything))
    assert count_missing(counts) == len(totals.lost)


def test_counts_add_up_when_a_file_is_opened_again(tmp_path: Path) -> None:
    for _ in range(2):
        with HandledCounts(tmp_path / "a", 3) as handled:
            handled.add([numbered(number, 0, b'""') for number in (1, 2)])
            counts = handled.counts()
    assert counts == bytes([0, 2, 2])


def test_a_count_does_not_overflow(tmp_path: Path) -> None:
    with HandledCounts(tmp_path / "a", 1) as handled:
        handled.add([numbered(0, 0, b'""')] * 300)
        assert handled.counts() == b"\xff"


def test_counts_of_a_killed_process_are_kept(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom odradek.cli.demo.counts import HandledCounts, numbered\n"
        "counts = HandledCounts(Path(sys.argv[1]), 4)\ncounts.add([numbered(3, 0, b'')])\nos.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, os.fspath(tmp_path / "a")], check=False)
    assert ended.returncode == -signal.SIGKILL
    with HandledCounts(tmp_path / "a", 4) as handled:
        assert handled.counts() == bytes([0, 0, 0, 1])
