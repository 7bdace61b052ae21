"""Runs that are killed, all processes of them, at every step: the tables are exact, whoever reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import odradek
from odradek.pipeline.ledger import Ledger, check_ranges
from odradek.wire.kafka07.message_set import encode_set

SOURCES = str(Path(odradek.__file__).parents[1])
SCRIPT = Path(__file__).with_name("crash.py")
COUNT = 60_000
BATCHES = 12

FILE = """
[source]
logs = ["1@{root}/logs"]
[run]
checkpoint = "{root}/checkpoint"
batch_bytes = {batch}
max_error_percent = 1
[flows.parquet]
topics = ["t"]
[flows.parquet.decode]
kind = "json"
fields = "id bigint"
[flows.parquet.sink]
path = "{root}/parquet"
[flows.parquet.dead]
path = "{root}/dead"
[flows.delta]
topics = ["t"]
[flows.delta.sink]
kind = "delta"
path = "{root}/delta"
"""


def values() -> list[bytes]:
    return [b'{"id": %d}' % number if number % 1000 else b"dead %07d" % number for number in range(COUNT)]


def run(file: Path, step: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(file), step],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def paths(root: Path, flow: str) -> list[Path]:
    return [root / flow / file.path for file in Ledger(root / flow, flow).files()]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_killed_at_every_step_tables_are_exact(tmp_path: Path) -> None:
    log = encode_set(values())
    folder = tmp_path / "logs" / "t-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}.kafka").write_bytes(log)
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE.format(root=tmp_path, batch=len(log) // BATCHES))
    for step in ("begun", "planned", "staging", "staged", "judged", "delta", "linking", "ledger", "committed"):
        done = run(file, step)
        assert done.returncode == -9, f"{step}: {done.returncode}: {done.stderr}"
    done = run(file, "never")
    assert done.returncode == 0, done.stderr
    good = sorted(value for value in values() if value.startswith(b"{"))
    read = [row["id"] for path in paths(tmp_path, "parquet") for row in pq.read_table(path).to_pylist()]
    assert sorted(b'{"id": %d}' % number for number in read) == good
    found = [value for path in paths(tmp_path, "delta") for value in pq.read_table(path)["value"].to_pylist()]
    assert Counter(found) == Counter(values())
    delta = DeltaTable(str(tmp_path / "delta")).to_pyarrow_table()
    assert Counter(delta["value"].to_pylist()) == Counter(values())
    ((rows, different),) = (
        duckdb.read_parquet([str(path) for path in paths(tmp_path, "parquet")])
        .aggregate("count(*), count(distinct id)")
        .fetchall()
    )
    assert (rows, different) == (len(good), len(good))
    ledger = Ledger(tmp_path / "parquet", "parquet")
    dead = [row for part in ledger.dead_files() for row in pq.read_table(tmp_path / "dead" / part.path).to_pylist()]
    assert sorted(row["value"] for row in dead) == sorted(value for value in values() if not value.startswith(b"{"))
    for flow in ("parquet", "delta"):
        entries = Ledger(tmp_path / flow, flow).entries()
        assert list(check_ranges(entries)) == [] and sum(entry.rows + entry.dead for entry in entries) == COUNT
        assert sorted((tmp_path / flow).rglob("*.parquet")) == sorted(paths(tmp_path, flow))
