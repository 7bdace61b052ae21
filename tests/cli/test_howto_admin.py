"""The commands and the program of the how-to page about topics and groups run as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from odradek.testing import KafkaBroker

PAGE = (Path(__file__).parents[2] / "docs/howto/admin.md").read_text("utf-8")
CONSOLE = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, str]]:
    """Each command of the page, and what is printed after it."""
    parts = re.split(r"^\$ (.*)\n", "".join(CONSOLE), flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_commands_print_what_the_page_says(tmp_path: Path) -> None:
    command = tmp_path / "odradek"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m odradek.cli "$@"\n')
    command.chmod(0o755)
    (export, _), *rest = steps()
    assert export.startswith("export ODRADEK_CLUSTER=")
    with KafkaBroker() as broker:  # of its own: the names of topics are those of the page
        for line, printed in rest:
            script = f'PATH="{tmp_path}:$PATH"; export ODRADEK_CLUSTER=kafka://{broker.bootstrap}; {line}'
            done = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
            assert (done.returncode, done.stdout.decode()) == (0, printed), (line, done.stderr.decode())


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
