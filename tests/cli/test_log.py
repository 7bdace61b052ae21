"""`odradek log`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.cli.app import run
from odradek.wire.kafka07.message_set import encode_set

PYTHON = [sys.executable, "-m", "odradek.cli"]


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A log directory with 50,000 messages: more than a pipe holds."""
    directory = tmp_path / "orders-3"
    directory.mkdir()
    (directory / "00000000000000000000.kafka").write_bytes(encode_set([b"message %05d" % n for n in range(50_000)]))
    return directory


def test_a_closed_pipe_is_no_error(segment: Path) -> None:
    with subprocess.Popen(
        [*PYTHON, "log", os.fspath(segment)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"message 00000\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_log_dumps_and_counts(segment: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "-c", "2", "-f", r"%t/%p %o %s\n", os.fspath(segment)]) == 0
    assert capfd.readouterr().out == "orders/3 0 message 00000\norders/3 23 message 00001\n"


def test_log_as_json(segment: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "--json", "-c", "1", os.fspath(segment)]) == 0
    assert json.loads(capfd.readouterr().out)["value"] == "message 00000"


def test_log_verifies(segment: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "--verify", os.fspath(segment)]) == 0
    assert capfd.readouterr().out == f"{segment}: ok, 50000 messages, 1150000 bytes\n"
    file = segment / "00000000000000000000.kafka"
    file.write_bytes(file.read_bytes()[:-1])
    assert run(["log", "--verify", "--json", os.fspath(segment)]) == 1
    result = json.loads(capfd.readouterr().out)
    assert (result["ok"], result["messages"], result["faults"][0]["position"]) == (False, 49_999, 1149977)


def test_progress_is_not_written_to_a_pipe(segment: Path) -> None:
    done = subprocess.run([*PYTHON, "log", "--verify", os.fspath(segment)], capture_output=True, check=True)
    assert done.stderr == b""
