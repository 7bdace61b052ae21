"""`odradek pipeline`, as far as it needs no Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from shutil import rmtree

import pytest
from click.testing import CliRunner

from odradek.cli.app import cli, run
from odradek.pipeline.ledger import DataFile, Ledger, LedgerEntry
from odradek.wire.kafka07.message_set import encode_set

COMMANDS = sorted(cli.commands["pipeline"].commands)  # type: ignore[attr-defined]

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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """100 messages of 18 bytes of log, of which 40 are in the table."""
    folder = tmp_path / "logs" / "t-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}.kafka").write_bytes(encode_set([b"%08d" % n for n in range(100)]))
    place = tmp_path / "pipeline.toml"
    place.write_text(FILE.format(root=tmp_path))
    files = (DataFile("date=2026-11-21/x.parquet", 40, 5000),)
    entry = LedgerEntry(
        flow="f", batch=0, start={"t": {"3-0": 0}}, end={"t": {"3-0": 720}}, files=files, rows=40, dead=2, written=1.0
    )
    Ledger(tmp_path / "table", "f").commit(entry)
    return place


def told(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["pipeline", *arguments]) == 0
    return capfd.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_and_json(command: str) -> None:
    shown = CliRunner().invoke(cli, ["pipeline", command, "--help"])
    assert shown.exit_code == 0 and f"odradek pipeline {command} " in shown.output and "--json" in shown.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--conf", "spark.executor.memory"], "expected key=value"),
        (["--conf", "=2g"], "expected key=value"),
        (["--master", "local[2]", "--remote", "sc://127.0.0.1:1"], "not both"),
    ],
)
def test_a_run_is_told_where_and_how_without_contradiction(file: Path, options: list[str], words: str) -> None:
    shown = CliRunner().invoke(cli, ["pipeline", "run", str(file), *options])
    assert shown.exit_code == 2 and words in shown.output


def test_what_spark_submit_has_started_has_its_master(
    file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    rmtree(file.parent / "table")
    assert run(["pipeline", "run", str(file), "--master", "spark://127.0.0.1:1"]) == 2
    assert "spark-submit started this: give --master spark://127.0.0.1:1 to it" in capfd.readouterr().err


def test_a_server_that_is_not_there_is_named(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rmtree(file.parent / "table")
    assert run(["pipeline", "run", str(file), "--remote", "sc://127.0.0.1:1"]) == 2
    assert "there is no Spark Connect server at sc://127.0.0.1:1: " in capfd.readouterr().err


def test_plan_says_what_a_run_would_read(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = told(capfd, "plan", str(file)).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["f", "t", "3-0", "720", "1800", "1080"], ["f", "in", "all", "2", "batches", "1080"]
    ]  # fmt: skip
    (flow,) = map(json.loads, told(capfd, "plan", str(file), "--json").splitlines())
    assert (flow["waiting"], flow["batches"], flow["partitions"][0]["reached"]) == (1080, 2, 720)
    assert not (file.parent / "checkpoint").exists()


def test_lag_is_what_the_table_lacks(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert told(capfd, "lag", str(file)).splitlines()[-1].split() == ["f", "in", "all", "1080"]
    assert run(["pipeline", "lag", str(file), "--fail-over", "1079"]) == 1
    assert run(["pipeline", "lag", str(file), "--fail-over", "1080"]) == 0


def test_status_is_of_the_ledger_and_does_without_the_logs(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (status,) = map(json.loads, told(capfd, "status", str(file), "--json").splitlines())
    assert status == {
        "flow": "f", "batches": 1, "rows": 40, "files": 1, "size": 5000, "dead": 2, "gaps": 0, "last": 1.0, "lag": 1080
    }  # fmt: skip
    file.write_text(file.read_text().replace(f'logs = ["3@{file.parent}/logs"]', 'brokers = "1@127.0.0.1:1"'))
    (status,) = map(json.loads, told(capfd, "status", str(file), "--json").splitlines())
    assert (status["rows"], status["lag"]) == (40, None)


def test_what_is_lost_is_in_the_plan(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = file.parent / "logs" / "t-0"
    (folder / f"{0:020}.kafka").rename(folder / f"{900:020}.kafka")
    assert "deleted by retention: wanted [720, 900)" in told(capfd, "plan", str(file))


@pytest.mark.parametrize("command", ["run", "plan", "status", "lag"])
def test_mistakes_in_the_file_are_told_with_line_and_key_and_exit_2(
    file: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text().replace("batch_bytes", "batch_byte"))
    assert run(["pipeline", command, str(file)]) == 2
    assert f"{file}:6: run.batch_byte: there is no such key" in capfd.readouterr().err


def test_the_command_itself_imports_nothing_of_what_it_needs() -> None:
    heavy = ("pyspark", "pydantic", "pyarrow", "deltalake", "fastavro")
    code = f"import sys, odradek.cli.app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("missing", ["pydantic", "pyspark", "pyarrow"])
def test_what_is_not_installed_is_named_with_what_to_install(file: Path, missing: str) -> None:
    rmtree(file.parent / "table")
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"from odradek.cli.app import run; sys.exit(run(['pipeline', 'run', {str(file)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    named = "Spark" if missing == "pyspark" else missing
    assert f"{named} is not installed: pip install" in done.stderr
