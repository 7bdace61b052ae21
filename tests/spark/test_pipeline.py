"""The pipeline on Spark: tasks in its workers, both formats, and a reader that has nothing of odradek."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import duckdb
import pytest

from odradek.pipeline.config import load
from odradek.pipeline.flow import open_table, table_options
from odradek.wire.kafka07.message_set import encode_set

from ..pipeline.workspace import Workspace
from .child import Child, until

ROWS = 30_000

FILE = """
[source]
logs = ["1@logs"]
[run]
batch_bytes = 1000000
[flows.raw]
pattern = ".*"
[flows.raw.sink]
path = "tables/raw"
[flows.json]
pattern = ".*"
[flows.json.decode]
kind = "json"
fields = "id bigint, day timestamp"
time = "day"
[flows.json.sink]
kind = "iceberg"
path = "tables/json"
partition_by = ["date"]
[flows.json.dead]
path = "tables/dead"
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_flows_on_spark_write_both_formats(tmp_path: Path) -> None:
    values = [
        json.dumps({"id": number, "day": f"2026-11-{1 + number % 20:02}T00:00:00Z"}).encode() for number in range(ROWS)
    ]
    for partition in range(3):
        folder = tmp_path / "logs" / f"orders-{partition}"
        folder.mkdir(parents=True)
        (folder / f"{0:020}.kafka").write_bytes(encode_set(values[partition::3]))
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE)
    with Child(
        ["-m", "odradek.cli", "pipeline", "run", str(file), "--master", "local[2]", "--json"], tmp_path
    ) as child:
        results = [json.loads(child.said()) for _ in range(2)]
        assert child.ended() == 0, child.errors
        assert list(child.scratch.iterdir()) == []
    assert [(flow["name"], flow["rows"], flow["error"], flow["lag_after"]) for flow in results] == [
        ("raw", ROWS, "", 0),
        ("json", ROWS, "", 0),
    ]
    assert all(len(flow["commits"]) > 1 for flow in results)
    pipeline = load(file)
    for name, column, expected in (
        ("raw", "value", Counter(values)),
        ("json", "id", Counter(range(ROWS))),
    ):
        table = open_table(table_options(pipeline, name))
        assert table is not None
        paths = [str(Path(table.options.storage.root, each.path)) for each in table.files()]
        result = duckdb.execute(f"select {column}, count(*) from read_parquet({paths!r}) group by all").fetchall()
        assert dict(result) == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_follows_starts_spark_for_the_first_rows_and_ends_cleanly_with_sigterm(tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    work.append([b"before"])
    assert not work.run().failed
    options = ["--follow", "--every", "0.1", "--master", "local[2]", "--json"]
    with Child(["-m", "odradek.cli", "pipeline", "run", str(tmp_path / "pipeline.toml"), *options], tmp_path) as child:
        for number in range(3):
            work.append([b"row %d" % number])
            until(lambda number=number: f"batch {number + 2}: 1 rows" in child.errors, "its batch")  # type: ignore[misc]
        child.process.send_signal(signal.SIGTERM)
        result = json.loads(child.said())
        assert child.ended() == 0, child.errors
        assert list(child.scratch.iterdir()) == []
    assert (result["rows"], result["error"], result["problems"]) == (3, "", [])
    assert work.values() == sorted([b"before", *(b"row %d" % number for number in range(3))])
