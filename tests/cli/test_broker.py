"""`odradek broker`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.cli.app import run

PYTHON = [sys.executable, "-m", "odradek.cli"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_closes_the_broker_cleanly(tmp_path: Path, number: signal.Signals, code: int) -> None:
    command = [*PYTHON, "broker", "--port", "0", "--json", "--log-dir", os.fspath(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        announced = json.loads(process.stdout.readline())
        assert announced["address"].startswith("127.0.0.1:")
        assert announced["cluster"] == f"kafka07://{announced['address']}"
        assert announced["pid"] == process.pid
        process.send_signal(number)
        assert process.stderr.read().strip() == b""
    assert process.returncode == code
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_background_job_that_ignores_ctrl_c_ends_at_sigterm(tmp_path: Path) -> None:
    broker = [*PYTHON, "broker", "--port", "0", "--json", "--log-dir", os.fspath(tmp_path)]
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *broker]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.wait(100)
    assert process.returncode == 143
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_broker_ends_with_its_standard_input() -> None:
    command = [*PYTHON, "broker", "--port", "0", "--until-eof", "--set", "num.partitions=2"]
    done = subprocess.run(command, input=b"ignored\n", capture_output=True, check=True)
    assert done.stdout.startswith(b"broker 1 at 127.0.0.1:")


@pytest.mark.parametrize(
    "arguments", [["--set", "nonsense"], ["--set", "no.such.key=1"], ["--zookeeper", "x:1", "--with-zookeeper"]]
)
def test_an_impossible_configuration_is_wrong_usage(arguments: list[str]) -> None:
    assert run(["broker", "--port", "0", *arguments]) == 2
