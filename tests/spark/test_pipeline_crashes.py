"""Runs that are killed with all their processes, at every step and at any time: their tables are exact."""

from __future__ import annotations

import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from odradek.pipeline.ledger import Ledger, check_ranges
from odradek.wire.kafka07.message_set import encode_set

from .child import Child
from .crash import STEPS

ORDERS = (
    ("begun", "planned", "delta", "staging", "linking", "staged"),
    ("ledger", "judged", "committed", "delta", "ledger", "delta", "linking"),
)
"""Steps at which the runs of a workspace are killed, one after the other.

Behind "delta" a run begins with finishing that batch: there it is killed at the last two.
"""

ROWS = 20_000
"""What is new for each run."""

BATCHES = 5
"""A run has so many of them to do, at least."""

KILLS = int(os.environ.get("ODRADEK_KILLS", "2"))
"""Kills at any time, after those at steps."""

BUSY = 25
"""Steps, of both flows together: of about three batches."""

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


class Workspace:
    """A log that grows, and the tables of it."""

    def __init__(self, root: Path) -> None:
        self.root, self.file = root, root / "pipeline.toml"
        self.values: list[bytes] = []
        (root / "logs" / "t-0").mkdir(parents=True)
        size = self.grow()
        self.file.write_text(FILE.format(root=root, batch=size // BATCHES))

    def grow(self) -> int:
        first = len(self.values)
        new = [b'{"id": %d}' % n if n % 1000 else b"dead %07d" % n for n in range(first, first + ROWS)]
        self.values += new
        with (self.root / "logs" / "t-0" / f"{0:020}.kafka").open("ab") as log:
            return log.write(encode_set(new))

    def finish(self) -> None:
        """A run that nobody ends."""
        with Child.at("all", self.file) as child:
            while child.said():
                pass
            assert child.ended() == 0, child.errors

    def paths(self, flow: str) -> list[Path]:
        return [self.root / flow / file.path for file in Ledger(self.root / flow, flow).files()]

    def check(self) -> None:
        """Each record of the log is there once, in each table, whoever reads it."""
        good = [value for value in self.values if value.startswith(b"{")]
        table, letters = self.paths("parquet"), Ledger(self.root / "parquet", "parquet").dead_files()
        assert Counter(b'{"id": %d}' % number for number in column(table, "id")) == Counter(good)
        dead = column([self.root / "dead" / file.path for file in letters], "value")
        assert Counter([*good, *dead]) == Counter(self.values)
        assert Counter(column(self.paths("delta"), "value")) == Counter(self.values)
        delta = DeltaTable(str(self.root / "delta")).to_pyarrow_table(columns=["value"])
        assert Counter(delta["value"].to_pylist()) == Counter(self.values)
        assert counted(table, "id") == (len(good), len(good))
        assert counted(self.paths("delta"), "value") == (len(self.values), len(self.values))

    def check_ledgers(self) -> None:
        """They have no holes, and nothing lies about that they do not list."""
        for flow in ("parquet", "delta"):
            entries = Ledger(self.root / flow, flow).entries()
            assert list(check_ranges(entries)) == []
            assert sum(entry.rows + entry.dead for entry in entries) == len(self.values)
            assert sorted((self.root / flow).rglob("*.parquet")) == sorted(self.paths(flow))


def column(paths: Iterable[Path], name: str) -> list[Any]:
    """By pyarrow."""
    return [value for path in paths for value in pq.ParquetFile(path).read([name])[name].to_pylist()]


def counted(paths: Iterable[Path], name: str) -> tuple[int, int]:
    """By DuckDB: rows, and how many of them are different."""
    relation = duckdb.read_parquet([str(path) for path in paths]).aggregate(f"count(*), count(distinct {name})")
    ((rows, different),) = relation.fetchall()
    return rows, different


def kill_at_steps(workspace: Workspace, steps: Iterable[str]) -> None:
    for number, step in enumerate(steps):
        if number % 3 == 2:
            workspace.grow()
        with Child.at(step, workspace.file) as child:
            assert child.said() == step, f"{step}: {child.errors}"


def kill_at_random(workspace: Workspace) -> None:
    chance = random.Random(1)
    kills = 0
    while kills < KILLS:
        workspace.grow()
        with Child.at("all", workspace.file) as child:
            kills += runs_so_long(child, chance.randrange(2, BUSY), chance.uniform(0, 0.5))


def runs_so_long(child: Child, steps: int, seconds: float) -> bool:
    for _ in range(steps):
        if not child.said():
            return False
    try:
        code = child.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    assert code == 0, child.errors
    return False


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_runs_that_are_killed_leave_exact_tables(tmp_path: Path) -> None:
    """At every step, and at random. The two take turns on a machine with two cores: most of it is Spark's start."""
    assert {*chain(*ORDERS), "reading"} == set(STEPS)
    workspaces = [Workspace(tmp_path / name) for name in ("first", "second")]

    def kill_runs(workspace: Workspace, steps: Iterable[str]) -> None:
        kill_at_steps(workspace, steps)
        if workspace is workspaces[0]:
            kill_at_random(workspace)
        workspace.finish()

    with ThreadPoolExecutor() as pool:
        list(pool.map(kill_runs, workspaces, ORDERS))
    for workspace in workspaces:
        workspace.check()
        workspace.check_ledgers()
