"""The demo loses nothing, says so when something was lost, and leaves nothing running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest

from odradek.cli import demo as module
from odradek.cli.app import run
from odradek.cli.demo import Account
from odradek.cli.demo_count import numbered
from odradek.cli.demo_view import Meter
from odradek.cli.demo_worker import texts

DEMO = [sys.executable, "-m", "odradek.cli", "demo"]


def started_by(process: psutil.Process) -> list[psutil.Process]:
    return process.children(recursive=True)


@pytest.mark.slow
def test_the_demo_handles_every_message(tmp_path: Path) -> None:
    done = subprocess.run([*DEMO, "--messages", "20000", "--json"], stdout=subprocess.PIPE, check=True, timeout=110)
    account = json.loads(done.stdout)
    assert (account["messages"], account["lost"], account["first_lost"]) == (20_000, 0, [])
    assert account["rebalances"] >= 3
    assert account["duplicates"] < 20_000


@pytest.mark.slow
def test_the_demo_takes_the_lines_of_a_file_and_tells_its_story(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"line %d\n" % n for n in range(1500)))
    done = subprocess.run([*DEMO, "--input", os.fspath(file)], capture_output=True, check=True, timeout=110, text=True)
    for told in ("consumer c is given", "consumer b is killed", "written     1,500 messages", "lost        0\n"):
        assert told in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
def test_a_demo_that_is_terminated_leaves_nothing_running() -> None:
    with subprocess.Popen([*DEMO], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while b"consumer a is given" not in process.stdout.readline():
            continue
        children = started_by(psutil.Process(process.pid))
        assert len(children) >= 5
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 143
    assert psutil.wait_procs(children, timeout=30)[1] == []


@pytest.mark.parametrize(("lost", "code"), [(0, 0), (1, 1)])
def test_the_exit_code_says_whether_something_was_lost(
    lost: int, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def perform(*_: Any) -> Account:
        return Account(1000, 1.0, 1.0, lost=lost, first_lost=[17][:lost])

    monkeypatch.setattr(module, "_perform", perform)
    assert run(["demo"]) == code
    told = capfd.readouterr().out
    assert f"lost        {lost}" in told
    assert ("17" in told) is bool(lost)


def test_too_few_lines_are_wrong_usage(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"just one\n")
    assert run(["demo", "--input", os.fspath(file)]) == 2


def test_made_up_messages_have_about_100_bytes() -> None:
    sizes = [len(numbered(number, text)) for number, text in enumerate(islice(texts(None), 2000))]
    assert 90 <= sum(sizes) / len(sizes) <= 100


def test_a_meter_tells_the_rate_of_the_last_second() -> None:
    meter = Meter()
    for now, total in [(0.0, 0), (0.5, 100), (1.0, 300), (1.5, 300)]:
        meter.update(total, now)
    assert (meter.total, meter.per_second) == (300, 200.0)
    meter.update(300, 9.0)
    assert meter.per_second == 0.0
