"""The commands and the programs of the tutorial run as printed, on a real broker of today."""

from __future__ import annotations

import ast
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import odradek as od

PAGE = (Path(__file__).parents[1] / "docs/tutorial.md").read_text("utf-8")
PROGRAM, WRITE, READ, GROUP, EACH = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
CONSOLE = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PORT_AND_PATH = re.compile(r"(?<=:)\d+|/tmp/.*$")
ORDERS = [b"first", b"second", b"third", b"4", b"5", b"6"]


class Enough(Exception):
    """Everything was handled."""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables of a shell on a machine with the broker of the page, which ends cleanly."""
    command = tmp_path / "odradek"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m odradek.cli "$@"\n')
    command.chmod(0o755)
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    start, printed = next((lines[0], lines[1:]) for block in CONSOLE if len(lines := block.splitlines()) == 3)
    with subprocess.Popen(start.removeprefix("$ ").split(), stdout=subprocess.PIPE, text=True, env=variables) as broker:
        assert broker.stdout is not None
        at, cluster = broker.stdout.readline(), broker.stdout.readline().rstrip()
        assert re.fullmatch(PORT_AND_PATH.sub(".*", printed[0]), at.rstrip())
        assert re.fullmatch(PORT_AND_PATH.sub(".*", printed[1]), cluster)
        directory = Path(at.split()[-1])
        yield {**variables, "ODRADEK_CLUSTER": cluster.removeprefix("cluster: ")}
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(60) == 128 + signal.SIGTERM
        assert not directory.exists()


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


async def execute(block: str, names: dict[str, Any]) -> None:
    """Run a block that awaits without being in a function."""
    code = compile(block, "tutorial.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(code, names)
    if inspect.isawaitable(made):
        await made


@pytest.mark.timeout(300)
def test_the_page_runs_as_printed(environment: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    write_and_read(environment)
    assert "orders" in run([sys.executable, "-W", "error", "-c", PROGRAM], environment)
    anyio.run(use_programs, environment["ODRADEK_CLUSTER"])
    printed = capsys.readouterr().out
    assert all(f"{value!r}" in printed for value in ORDERS)
    watch(environment)


def write_and_read(environment: dict[str, str]) -> None:
    first = next(block for block in CONSOLE if "topic create" in block)
    parts = re.split(r"^\$ (.*)\n", first, flags=re.MULTILINE)[1:]
    steps = list(zip(parts[::2], parts[1::2], strict=True))
    assert steps[0][0].startswith("export ODRADEK_CLUSTER=kafka://")
    for line, printed in steps[1:-1]:
        assert run(["bash", "-c", line], environment) == printed, line
    line, _ = steps[-1]
    assert line == "odradek ls" and "numbers" in run(["bash", "-c", line], environment)


async def use_programs(url: str) -> None:
    handled: list[Any] = []

    def handle(value: Any) -> None:
        handled.append(value)
        if len(handled) == len(ORDERS):
            raise Enough

    async def handle_record(record: od.Record) -> None:
        handle(record.value)

    async with od.connect(url) as k:
        names: dict[str, Any] = {"od": od, "k": k, "handle": handle}
        async with k.producer() as names["out"]:
            await execute(WRITE, names)
        assert names["acks"].failed == ()
        await execute(READ, names)
        assert isinstance(names["token"], str)
        with pytest.raises(Enough):
            await execute(GROUP, names)
        assert sorted(handled) == sorted(ORDERS)
        handled.clear()
        async with k.consumer("orders", group="other", start=od.EARLIEST) as names["c"]:
            names["handle"] = handle_record
            with anyio.fail_after(60), pytest.raises(Enough):
                await execute(EACH.replace("retries=5", "retries=0"), names)
        assert sorted(handled) == sorted(ORDERS)


def watch(environment: dict[str, str]) -> None:
    last = next(block for block in CONSOLE if "--watch" in block)
    lag, watched, offsets = (line.removeprefix("$ ") for line in last.splitlines())
    assert "orders" in run(["bash", "-c", lag], environment)
    assert watched == f"{lag} --watch"
    assert run(["bash", "-c", offsets], environment).splitlines()[1].split() == ["0", "0", "6"]
