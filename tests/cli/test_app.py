"""The command as a process: exit codes, pipes, signals, and what is missing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from odradek.cli.app import cli, run
from odradek.errors import ConfigError, Unreachable
from odradek.wire.kafka07.message_set import encode_set

COMMANDS = sorted(cli.commands)
PYTHON = [sys.executable, "-m", "odradek.cli"]


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A log directory with 50,000 messages: more than a pipe holds."""
    directory = tmp_path / "orders-3"
    directory.mkdir()
    (directory / "00000000000000000000.kafka").write_bytes(encode_set([b"message %05d" % n for n in range(50_000)]))
    return directory


@pytest.fixture
def breaking() -> Iterator[list[BaseException]]:
    """A command that raises what is in this list."""
    errors: list[BaseException] = []

    @click.command("break")
    def command() -> int:
        raise errors[0]

    cli.add_command(command)
    yield errors
    del cli.commands["break"]


def test_the_commands_are_these() -> None:
    assert COMMANDS == ["broker", "cat", "demo", "lag", "log", "ls", "offsets", "pipeline", "put"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_and_json(command: str) -> None:
    told = CliRunner().invoke(cli, [command, "--help"])
    assert told.exit_code == 0
    assert "Examples:" in told.output
    assert re.search(rf"^ *(.*\| )?odradek {command}\b", told.output, re.MULTILINE)
    assert "--json" in told.output


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["ls", "--nonsense"], ["log"], ["cat"], ["put"], ["broker", "--port", "many"]]
)
def test_wrong_usage_exits_2(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "Usage: odradek" in capfd.readouterr().err


def test_without_a_cluster_it_says_how_to_name_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ODRADEK_CLUSTER", raising=False)
    assert run(["ls"]) == 2
    assert "ODRADEK_CLUSTER" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unreachable("tcp", "127.0.0.1:1", "refused"), 1),
        (FileNotFoundError(2, "No such file", "x"), 1),
        (ConfigError("an option that cannot work"), 2),
        (KeyboardInterrupt(), 130),
        (ExceptionGroup("tasks", [ExceptionGroup("more", [Unreachable("dns", "h:1", "unknown")])]), 1),
    ],
)
def test_an_error_with_an_explanation_is_a_line_and_an_exit_code(
    error: BaseException, code: int, breaking: list[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    breaking.append(error)
    assert run(["break"]) == code
    assert "Traceback" not in capfd.readouterr().err


def test_an_error_without_an_explanation_is_not_hidden(breaking: list[BaseException]) -> None:
    breaking.append(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run(["break"])


def test_a_reader_that_has_seen_enough_is_no_error(segment: Path) -> None:
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
    told = json.loads(capfd.readouterr().out)
    assert (told["ok"], told["messages"], told["faults"][0]["position"]) == (False, 49_999, 1149977)


def test_nothing_of_progress_goes_into_a_pipe(segment: Path) -> None:
    done = subprocess.run([*PYTHON, "log", "--verify", os.fspath(segment)], capture_output=True, check=True)
    assert done.stderr == b""


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra_it_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from odradek.cli import main; main(['--version'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{missing} is not installed" in done.stderr
    assert "odradek[cli]" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_broker_ends_in_an_orderly_way(tmp_path: Path, number: signal.Signals, code: int) -> None:
    command = [*PYTHON, "broker", "--port", "0", "--json", "--log-dir", os.fspath(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        told = json.loads(process.stdout.readline())
        assert told["address"].startswith("127.0.0.1:")
        assert told["cluster"] == f"kafka07://{told['address']}"
        assert told["pid"] == process.pid
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
        process.wait(20)
    assert process.returncode == 143
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_broker_ends_with_its_standard_input() -> None:
    command = [*PYTHON, "broker", "--port", "0", "--until-eof", "--set", "num.partitions=2"]
    done = subprocess.run(command, input=b"ignored\n", capture_output=True, check=True, timeout=30)
    assert done.stdout.startswith(b"broker 1 at 127.0.0.1:")


@pytest.mark.parametrize(
    "arguments", [["--set", "nonsense"], ["--set", "no.such.key=1"], ["--zookeeper", "x:1", "--with-zookeeper"]]
)
def test_a_broker_that_cannot_be_is_wrong_usage(arguments: list[str]) -> None:
    assert run(["broker", "--port", "0", *arguments]) == 2
