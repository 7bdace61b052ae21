"""The commands and the program of the how-to page about topics and groups run as printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import anyio
import pytest

from odradek.cli.app import run
from odradek.testing import KafkaBroker

PAGE = (Path(__file__).parents[2] / "docs/howto/admin.md").read_text("utf-8")
CONSOLE = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, str]]:
    """Each command of the page, and what is printed after it."""
    parts = re.split(r"^\$ (.*)\n", "".join(CONSOLE), flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def run_here(line: str) -> int:
    """Do what a shell does with a line, in this process: what may stand before `|` prints the standard input."""
    before, _, command = line.rpartition(" | ")
    words = shlex.split(command)
    first = words.index("odradek")  # behind variables of the environment
    with TemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        subprocess.run(["bash", "-c", before], stdout=file, check=True)
        file.seek(0)
        patch.setattr(sys, "stdin", file)
        for name, value in (word.split("=", 1) for word in words[:first]):
            patch.setitem(os.environ, name, value)
        return run(words[first + 1 :])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_commands_print_what_the_page_says(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (export, _), *rest = steps()
    assert export.startswith("export ODRADEK_CLUSTER=")
    with KafkaBroker() as broker:  # of its own: the names of topics are those of the page
        monkeypatch.setenv("ODRADEK_CLUSTER", f"kafka://{broker.bootstrap}")
        for line, printed in rest:
            capfd.readouterr()
            code = run_here(line)
            out, errors = capfd.readouterr()
            assert (code, out) == (0, printed), (line, errors)


@pytest.mark.timeout(120)
def test_the_program_runs(odradek_kafka: KafkaBroker, capsys: pytest.CaptureFixture[str]) -> None:
    block, *_ = re.findall(
        r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )  # the others: io/kafka/test_admin_live
    names: dict[str, Any] = {}
    exec(compile(block, "admin.md", "exec"), names)
    anyio.run(names["look_after"], f"kafka://{odradek_kafka.bootstrap}")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("['audit'] [\"creating topic 'not a name'") and "INVALID_TOPIC_EXCEPTION" in first
    assert second == "PositionChange(before=None, after=0)"
