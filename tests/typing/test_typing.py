"""Type checkers accept a program as users write it, and find mistakes in another one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROJECT = HERE.parent.parent
NOT_FOR_MYPY = "# mypy: ignore-errors\n"

pytestmark = pytest.mark.timeout(600)  # mypy, and Node.js, on a slow machine where nothing is cached


def marked() -> set[int]:
    """The lines of mistakes.py that are wrong."""
    lines = (HERE / "mistakes.py").read_text("utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# mistake")}


def test_mypy_accepts_the_service_and_finds_each_mistake(tmp_path: Path) -> None:
    program = (HERE / "mistakes.py").read_text("utf-8")
    assert NOT_FOR_MYPY in program
    copy = tmp_path / "mistakes.py"
    copy.write_text(program.replace(NOT_FOR_MYPY, "\n"), "utf-8")
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        HERE / "service.py",
        copy,
    ]
    printed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False).stdout
    errors = re.findall(r"^(.*?):(\d+): error:", printed, re.MULTILINE)
    assert {Path(file).name for file, _ in errors} == {"mistakes.py"}, printed
    assert {int(line) for _, line in errors} == marked(), printed


def test_pyright_accepts_the_service_and_finds_each_mistake() -> None:
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "basedpyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        HERE,
    ]
    printed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False).stdout
    report = json.loads(printed)
    assert report["summary"]["filesAnalyzed"] == 2
    errors = [(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in report["generalDiagnostics"]]
    assert {file for file, _ in errors} == {"mistakes.py"}, errors
    assert {line for _, line in errors} == marked(), errors
