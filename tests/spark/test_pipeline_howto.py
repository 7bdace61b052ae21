"""The page about pipelines runs as printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import odradek as od
from odradek.pipeline.config import load
from odradek.testing import Kafka07Broker

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "pipeline.md").read_text("utf-8")
SOURCES = str(Path(od.__file__).parents[1])


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def command(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "odradek.cli", *shlex.split(line)[1:]],
        cwd=folder, env={**os.environ, "PYTHONPATH": SOURCES}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.mark.timeout(300)
def test_the_page_runs_as_printed(
    tmp_path: Path,
    odradek_chroot: str,
    odradek_kafka07_broker: Callable[..., Kafka07Broker],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odradek_kafka07_broker(config={"log.flush.interval": "1", "num.partitions": "2"})

    async def send() -> None:
        async with od.connect(f"kafka07+zk://{odradek_chroot}") as k, k.producer() as out:
            values = [json.dumps({"id": n, "user": f"u{n}", "ts": 1_795_000_000_000 + n}).encode() for n in range(999)]
            await out.send_many("orders", [*values, b"no order"])

    od.run(send)
    toml, of_today = blocks("toml")
    (tmp_path / "today.toml").write_text(of_today + toml[toml.index("[flows.orders]") :])
    monkeypatch.setenv("ODRADEK_SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv("ODRADEK_SASL_USERNAME", "u")
    monkeypatch.setenv("ODRADEK_SASL_PASSWORD", "p")
    assert load(tmp_path / "today.toml").source.kafka == "kafka+sasl+ssl://b1:9093,b2:9093"
    (tmp_path / "pipeline.toml").write_text(toml.replace("localhost:2181/kafka", odradek_chroot))
    lines = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]
    said: dict[str, str] = {}
    for line in lines:
        if line.startswith("odradek "):
            done = command(line, tmp_path)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            said[line.split()[2]] = done.stdout
    assert said.keys() == {"plan", "run", "status", "lag"}
    assert "1 batches" in said["plan"] and "done" in said["run"]
    (report,) = (tmp_path / "checkpoint" / "reports").glob("*.html")
    assert report.name in said["run"]
    assert re.search(r"^orders +1 +999 ", said["status"], re.MULTILINE)
    assert said["lag"].splitlines()[-1].split() == ["orders", "total", "0"]
    (read,) = blocks("python")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(read, "pipeline.md", "exec"), names)
    assert names["orders"].aggregate("count(*), count(distinct id)").fetchall() == [(999, 999)]
    assert "2026-11-" in capsys.readouterr().out
