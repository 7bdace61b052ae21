"""A pipeline file over log directories, with and without tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.cli.app import run
from odradek.pipeline.ledger import DataFile, Ledger, LedgerEntry
from odradek.wire.kafka07.message_set import encode_set

from ...pipeline.made import ROWS, Made

FILE = """
[source]
logs = ["3@{root}/logs"]
[run]
checkpoint = "{root}/checkpoint"
batch_bytes = 1000
[flows.f]
topics = ["t"]
[flows.f.sink]
path = "{root}/table"
"""
Command = Callable[..., str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a log of 100 messages of 18 bytes, a table of 40 of them, and a pipeline file."""
    folder = tmp_path / "logs" / "t-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}.kafka").write_bytes(encode_set([b"%08d" % n for n in range(100)]))
    path = tmp_path / "pipeline.toml"
    path.write_text(FILE.format(root=tmp_path))
    files = (DataFile("date=2026-11-21/x.parquet", 40, 5000),)
    entry = LedgerEntry(
        flow="f", batch=0, start={"t": {"3-0": 0}}, end={"t": {"3-0": 720}}, files=files, rows=40, dead=2, written=1.0
    )
    Ledger(tmp_path / "table", "f").commit(entry)
    return path


def output_of(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a verb that must succeed; return its output."""
    assert run(["pipeline", *arguments]) == 0
    return capfd.readouterr().out


@pytest.fixture
def made(tmp_path: Path) -> Made:
    made = Made(tmp_path)
    for _ in range(3):
        made.log(ROWS)
        made.run()
    return made


@pytest.fixture
def pipeline(made: Made, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a verb on the file of `made` that must exit with `code`; return its output."""
    monkeypatch.delenv("ODRADEK_CLUSTER", raising=False)

    def command(name: str, *arguments: str, code: int = 0) -> str:
        assert run(["pipeline", name, str(made.file), *arguments]) == code
        return capfd.readouterr().out

    return command
