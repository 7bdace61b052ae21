"""The verbs of `odradek pipeline` that need no Spark."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from odradek.cli.app import run

from ...pipeline.workspace import Workspace


@pytest.fixture
def verb(file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a verb that must exit with `code`; return its output, or what it printed on standard error."""
    monkeypatch.delenv("ODRADEK_CLUSTER", raising=False)

    def command(name: str, *arguments: str, code: int = 0, err: bool = False) -> str:
        assert run(["pipeline", name, str(file), *arguments]) == code
        printed = capfd.readouterr()
        return printed.err if err else printed.out

    return command


def test_plan_prints_what_a_run_would_read(verb: Any) -> None:
    (line,) = map(json.loads, verb("plan", "--json").splitlines())
    assert (line["waiting"], line["unit"], line["batches"], line["problems"]) == (1080, "bytes", 2, [])
    assert line["partitions"][0] == {
        "topic": "orders", "partition": "1-0", "reached": 720, "earliest": 0, "latest": 1800, "waiting": 1080,
        "lost": "",
    }  # fmt: skip


def test_lag_is_what_is_not_in_the_table(verb: Any) -> None:
    head, *_, total = verb("lag").splitlines()
    assert head.split()[-3:] == ["lag", "(bytes)", "lost"] and total.split() == ["orders", "total", "1080"]
    assert verb("lag", "--fail-over", "1080")
    assert verb("lag", "--fail-over", "1079", code=1)


def test_status_has_the_size_of_the_table(verb: Any, work: Workspace) -> None:
    line = json.loads(verb("status", "--json"))
    assert (line["batches"], line["rows"], line["files"], line["lag"], line["problems"]) == (1, 40, 1, 1080, [])
    assert line["unit"] == "bytes" and line["location"] == str(work.root / "tables" / "orders")


@pytest.mark.parametrize("name", ["plan", "lag", "status"])
def test_a_missing_topic_and_a_missing_partition_are_said_and_fail(name: str, verb: Any, work: Workspace) -> None:
    work.append([b"1"], partition=1)
    assert not work.run().failed
    shutil.rmtree(work.root / "logs" / "orders-1")
    file = work.root / "pipeline.toml"
    file.write_text(file.read_text().replace('pattern = ".*"', 'topics = ["orders", "oders"]'))
    errors = verb(name, code=1, err=True)
    assert "orders: topic oders does not exist" in errors
    assert "orders: no broker, and no directory, has orders/1-1 now" in errors


@pytest.mark.parametrize("name", ["plan", "lag", "status"])
def test_a_table_that_is_gone_is_said_by_every_verb(name: str, verb: Any, work: Workspace) -> None:
    shutil.rmtree(work.root / "tables")
    errors = verb(name, code=1, err=True)
    assert "there is no table, but batch 1 was written to" in errors


def test_a_table_that_is_gone_can_be_begun_again(verb: Any, work: Workspace) -> None:
    shutil.rmtree(work.root / "tables")
    assert "there is no table" in work.error()
    assert "there is no table: nothing was run yet" in verb("verify", code=2, err=True)
    assert verb("accept", "--flow", "orders") == f"orders: forgotten: batch 1 at {work.root}/tables/orders\n"
    assert not work.run().failed
    assert len(work.values()) == 100


def test_verify_proves_a_table_complete_or_names_what_is_missing(verb: Any, work: Workspace) -> None:
    assert "complete" in verb("verify") and "log (bytes)" in verb("verify")
    import deltalake

    deltalake.DeltaTable(work.table.options.storage.root).delete("offset = 36")
    result = verb("verify", code=1)
    assert "orders: missing: orders/1-0: 1 rows of batch 1 of the log are not in the table: at 36:0" in result
    assert "NOT COMPLETE" in result


def test_files_are_those_of_the_table(verb: Any, work: Workspace) -> None:
    (path,) = verb("files").splitlines()
    assert Path(path).is_file() and Path(path).is_relative_to(work.root / "tables" / "orders")
    assert json.loads(verb("files", "--json"))["rows"] == 40


def test_compact_merges_files_and_clean_deletes_old_ones(verb: Any, work: Workspace) -> None:
    work.run()
    before = set(verb("files").splitlines())
    assert len(before) == 3
    assert verb("compact") == "orders: 3 files became 1\n"
    assert len(work.values()) == 100
    assert verb("clean", "--older-than", "7d") == ""
    kept = {line.removeprefix("orders: ") for line in verb("clean", "--older-than", "0s", "--dry-run").splitlines()}
    assert len(kept) == 3 and all(Path(path).exists() for path in before)
    verb("clean", "--older-than", "0s")
    assert not any(Path(path).exists() for path in before)
    assert len(work.values()) == 100
    work.append([b"more"])
    assert not work.run().failed
    assert len(work.values()) == 101


def test_export_writes_plain_files_in_directories(verb: Any, work: Workspace, tmp_path: Path) -> None:
    import duckdb

    work.append([b"odd"], topic="odd.name")
    work.run()
    folder = tmp_path / "files"
    assert "101 rows in 2 files" in verb("export", "--flow", "orders", "--to", str(folder))
    query = f"select topic, count(*) from read_parquet('{folder}/**/*.parquet', hive_partitioning=true) group by topic"
    assert dict(duckdb.execute(query).fetchall()) == {"orders": 100, "odd.name": 1}
    assert "is not empty" in verb("export", "--flow", "orders", "--to", str(folder), code=2, err=True)
    said = verb("export", "--flow", "orders", "--to", str(tmp_path / "days"), "--partition-by", "date")
    assert re.search("101 rows in [12] files", said)  # two if it became midnight between the runs


@pytest.mark.parametrize(
    ("key", "line", "says"),
    [
        ("decode.time", 'time = "ts"', "there is no field 'ts'; choose from id"),
        ("decode.time", 'time = "id"\ntime_format = "iso"', "id: time_format 'iso' needs text"),
        ("sink.partition_by", 'partition_by = ["nosuch"]', "there is no column 'nosuch'; choose from key, topic"),
    ],
)
def test_a_plan_says_which_columns_there_are_not(key: str, line: str, says: str, verb: Any, file: Path) -> None:
    shutil.rmtree(file.parent / "tables")
    shutil.rmtree(file.parent / ".odradek")
    decode = '[flows.orders.decode]\nkind = "json"\nfields = "id bigint"\n'
    text = re.sub("partition_by = .*\n", "", file.read_text()) + decode
    table = f"[flows.orders.{key.split('.')[0]}]\n"
    file.write_text(text.replace(table, f"{table}{line}\n"))
    error = verb("plan", code=1, err=True)
    assert error.startswith(f"odradek: orders: {file}:") and f": flows.orders.{key}: {says}" in error
    assert verb("lag") and verb("plan", "--json", code=1).count(says) == 1


@pytest.mark.parametrize("name", ["plan", "lag", "status"])
def test_lost_data_is_said_with_the_key_that_goes_on(name: str, verb: Any, work: Workspace) -> None:
    (log,) = (work.root / "logs" / "orders-0").glob("*.kafka")
    log.rename(log.with_name(f"{10_000:020}.kafka"))
    error = verb(name, code=1, err=True)
    assert "data was lost: orders/1-0: deleted by retention: wanted [720, 10000)" in error
    assert '(data_loss = "skip" goes on behind what is missing and records it)' in error
    file = work.root / "pipeline.toml"
    file.write_text(file.read_text().replace('pattern = ".*"', 'pattern = ".*"\ndata_loss = "skip"'))
    shown = verb(name)
    assert name == "status" or "deleted by retention" in shown
