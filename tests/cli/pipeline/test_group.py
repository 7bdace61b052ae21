"""The group `odradek pipeline`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from odradek.cli.app import cli, run

COMMANDS = sorted(cli.commands["pipeline"].commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_and_json(command: str) -> None:
    shown = CliRunner().invoke(cli, ["pipeline", command, "--help"])
    assert shown.exit_code == 0 and f"odradek pipeline {command} " in shown.output and "--json" in shown.output


@pytest.mark.parametrize("command", ["run", "plan", "status", "lag"])
def test_a_mistake_in_the_file_is_named_with_line_and_key(
    file: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text().replace("batch_bytes", "batch_byte"))
    assert run(["pipeline", command, str(file)]) == 2
    assert f"{file}:5: run.batch_byte: unknown key" in capfd.readouterr().err


def test_the_command_imports_no_package_of_the_extra() -> None:
    heavy = ("pyspark", "pydantic", "pyarrow", "deltalake", "fastavro")
    code = f"import sys, odradek.cli.app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
