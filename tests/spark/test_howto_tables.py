"""The commands of the how-to pages about finished tables run as printed."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import odradek.pipeline.run as module
from odradek.cli.app import run
from odradek.testing import Kafka07Broker

from ..pipeline.made import ROWS, Made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = Path(__file__).parents[2] / "docs" / "howto"


@pytest.fixture(autouse=True)
def one_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` uses the session of the tests, instead of starting and stopping one."""

    def run_here(pipeline: Any, file: str, watch: Any, **_: Any) -> Any:
        return module.execute(pipeline, file, watch, lambda flows: module.run_flows(flows, spark))

    monkeypatch.setattr(module, "run", run_here)


def commands(page: str) -> list[tuple[list[str], int]]:
    """The commands of a page, with the exit code that it says they have."""
    lines = re.findall(r"^\$ odradek (.*)$", (PAGES / page).read_text("utf-8"), re.MULTILINE)
    assert lines
    return [(shlex.split(line, comments=True), 1 if "# exit code 1" in line else 0) for line in lines]


@pytest.mark.slow
def test_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    made = Made(tmp_path)
    made.log(ROWS)
    assert run(["pipeline", "run", "pipeline.toml", "--quiet"]) == 0
    shutil.rmtree(tmp_path / "checkpoints")
    made.log(ROWS)
    for arguments, code in commands("recovery.md"):
        capfd.readouterr()
        assert run(arguments) == code, (arguments, capfd.readouterr())
    pages = [page.read_text("utf-8") for page in (tmp_path / "checkpoints" / "reports").glob("*.html")]
    assert sum('class="state done"' in page for page in pages) == 1  # the first one's was lost with the checkpoint
    assert made.table.appends[-1].rows == 100


@pytest.mark.slow
def test_backfill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    made = Made(tmp_path)
    made.log(ROWS)
    made.log(ROWS, partition=1)
    page = (PAGES / "backfill.md").read_text("utf-8")
    (text,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "backfill.toml").write_text(text.replace("/backup/kafka-logs", str(made.logs)))
    with Kafka07Broker(tmp_path / "target", config={"log.flush.interval": "1"}) as broker:
        for arguments, code in commands("backfill.md"):
            capfd.readouterr()
            command = [argument.replace("broker:9092", broker.address) for argument in arguments]
            assert run(command) == code, (arguments, capfd.readouterr())
        sent = b"".join(file.read_bytes() for file in (tmp_path / "target").glob("orders-again-*/*.kafka"))
    assert all(sent.count(row) >= 2 for row in ROWS)
