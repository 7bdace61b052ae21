"""`odradek broker`."""

from __future__ import annotations

import json
import os
import signal
import socket
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


def test_a_port_that_is_taken_is_wrong_usage(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert run(["broker", "--kafka", "4.3.1", "--port", str(port)]) == 2
        assert f"cannot listen on 127.0.0.1:{port}" in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--set", "nonsense"],
        ["--set", "no.such.key=1"],
        ["--zookeeper", "x:1", "--with-zookeeper"],
        ["--kafka", "4.3"],
        ["--kafka", "4.3.1", "--with-zookeeper"],
        ["--kafka", "4.3.1", "--log-dir", "x"],
        ["--kafka", "4.3.1", "--host", "0.0.0.0"],
    ],
)
def test_an_impossible_configuration_is_wrong_usage(arguments: list[str]) -> None:
    assert run(["broker", "--port", "0", *arguments]) == 2
