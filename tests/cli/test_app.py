"""The command as a process: exit codes, errors, and missing packages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from odradek.cli.app import VERBS, cli, run
from odradek.errors import ConfigError, Unreachable

COMMANDS = sorted(cli.commands)
PYTHON = [sys.executable, "-m", "odradek.cli"]


@pytest.fixture
def breaking() -> Iterator[list[BaseException]]:
    """Add a command that raises the first error of the list."""
    errors: list[BaseException] = []

    @click.command("break")
    def command() -> int:
        raise errors[0]

    cli.add_command(command)
    yield errors
    del cli.commands["break"]


def test_all_commands_are_registered() -> None:
    assert COMMANDS == [
        "acl",
        "broker",
        "cat",
        "cluster",
        "demo",
        "doctor",
        "explain",
        "group",
        "lag",
        "log",
        "ls",
        "mirror",
        "offsets",
        "pipeline",
        "put",
        "quotas",
        "seek",
        "topic",
        "transactions",
        "users",
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_of_commands_has_the_first_sentence_of_each_help(command: str) -> None:
    text = re.sub(r"\s+", " ", cli.commands[command].help or "")
    assert VERBS[command][1] == text.partition(". ")[0].removesuffix(".") + "."
    result = CliRunner().invoke(cli, ["--help"])
    assert re.search(rf"^  {command} +{re.escape(VERBS[command][1][:20])}", result.output, re.MULTILINE)


def test_every_command_is_completed_with_its_help() -> None:
    items = cli.shell_complete(click.Context(cli), "l")
    assert [item.value for item in items] == ["lag", "log", "ls"]
    assert all(item.help and VERBS[item.value][1].startswith(item.help.rstrip(".")) for item in items)
    assert [item.value for item in cli.shell_complete(click.Context(cli), "--v")] == ["--version"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_and_json(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert re.search(rf"^ *(.*\| )?odradek {command}\b", result.output, re.MULTILINE)
    assert "--json" in result.output


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["ls", "--nonsense"], ["log"], ["cat"], ["put"], ["broker", "--port", "many"]]
)
def test_wrong_usage_exits_2(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "Usage: odradek" in capfd.readouterr().err


def test_a_missing_cluster_is_wrong_usage(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
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
def test_an_expected_error_is_one_line_and_an_exit_code(
    error: BaseException, code: int, breaking: list[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    breaking.append(error)
    assert run(["break"]) == code
    assert "Traceback" not in capfd.readouterr().err


def test_an_unexpected_error_is_raised(breaking: list[BaseException]) -> None:
    breaking.append(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run(["break"])


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_a_missing_package_is_named_with_its_extra(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from odradek.cli import main; main(['demo', '--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{missing} is not installed" in done.stderr
    assert "odradek[cli]" in done.stderr


def test_at_the_end_the_collector_does_not_look_at_everything_once_more() -> None:
    code = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 1000, len(gc.get_objects()) < 1000))  # called last
from odradek.cli import main
main(["explain", "--help"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True True"


@pytest.mark.parametrize(
    ("closed", "arguments", "code", "shown"),
    [
        (">&-", "explain 19", 0, b""),
        ("2>&-", "explain no-such-thing", 2, b""),
        ("<&-", "seek g --to-file - -b 127.0.0.1:1", 1, b"odradek: [Errno 9] Bad file descriptor\n"),
    ],
)
def test_a_standard_stream_may_be_closed_from_the_beginning(
    closed: str, arguments: str, code: int, shown: bytes
) -> None:
    program = f"{sys.executable} -c 'from odradek.cli import main; main()' {arguments} {closed}"
    done = subprocess.run(["/bin/sh", "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (code, b"")
    assert shown in done.stderr
    assert b"Traceback" not in done.stderr
