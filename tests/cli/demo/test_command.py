"""The demo loses nothing, reports what was lost, and leaves nothing running."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from rich.live import Live

from odradek.cli.app import run
from odradek.cli.demo import command as module
from odradek.cli.demo.counts import numbered
from odradek.cli.demo.display import DemoProcess, Meter, Scene, TableDisplay
from odradek.cli.demo.result import DemoResult, TableResult, differences, report
from odradek.cli.demo.table import TableSource, count_rows, pipeline_file
from odradek.cli.demo.worker import texts, times
from odradek.pipeline.config import load
from odradek.pipeline.flow import open_table, table_options

from ...spark.classes import STARTUP, spark_environ

TABLE = TableResult(1000, 1000, 0, 4, 5000, 1, 16, 60_000, [], 20.0, "/t", "/r.html", "/p.toml")
SUCCESS = DemoResult(1000, 1.0, 1.0, table=TABLE, directory="/d")
DEMO = [sys.executable, "-m", "odradek.cli", "demo"]


def environment(scratch: Path) -> dict[str, str]:
    """Return an environment with its temporary files in `scratch`, and for a Spark that starts quickly."""
    paths = os.pathsep.join(filter(None, [os.fspath(STARTUP), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "TMPDIR": os.fspath(scratch), **spark_environ(), "PYTHONPATH": paths}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo_takes_the_lines_of_a_file_through_to_a_table(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [b'line %d \t"quoted" \xff\xe2\x82\xac' % n for n in range(1500)]
    file = tmp_path / "lines"
    file.write_bytes(b"\r\n".join(lines))
    done = subprocess.run(
        [*DEMO, "--input", os.fspath(file)],
        capture_output=True,
        timeout=380,
        text=True,
        check=False,
        env=environment(tmp_path),
    )
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        "consumer c is assigned", "consumer b is killed", "pipeline has committed batch 1: 1,500 rows",
        "written     1,500 messages", "lost        0\n", "table       1,500 rows in ", "dead        0 ", ": complete\n",
    ):  # fmt: skip
        assert line in done.stdout
    paths = {name: Path(path) for name, path in re.findall(r"^(report|table in|pipeline)  +(/.*)$", done.stdout, re.M)}
    assert "<h2" in paths["report"].read_text("utf-8")
    table = open_table(table_options(load(paths["pipeline"]), "messages"))
    assert table is not None
    files = [paths["table in"] / file.path for file in table.files()]
    assert all({"topic", "date", "hour"} == {name.partition("=")[0] for name in path.parts[-4:-1]} for path in files)
    rows = Counter(text for path in files for text in pq.ParquetFile(path).read(["text"]).column("text").to_pylist())
    assert rows == Counter(text.decode(errors="replace") for text in lines)
    # The brokers have stopped, but their logs remain.
    text = paths["pipeline"].read_text("utf-8")
    paths["pipeline"].write_text(re.sub("^zookeeper.*$", "", text, flags=re.M).replace("# logs =", "logs ="), "utf-8")
    assert run(["pipeline", "verify", os.fspath(paths["pipeline"])]) == 0
    assert re.search(r"1 of 1 batches +1500 ", capfd.readouterr().out)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("moment", "programs"), [(b"consumer a is assigned", 5), (b"odradek pipeline run", 6)])
def test_a_demo_that_is_terminated_leaves_nothing(moment: bytes, programs: int, tmp_path: Path) -> None:
    command = [*DEMO, "--messages", "1000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(tmp_path)
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        lines: list[bytes] = []
        while not lines or moment not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], (lines, process.stderr.read(), process.wait())  # it has ended before
        deadline = time.monotonic() + 180
        while (
            len(children := psutil.Process(process.pid).children(recursive=True)) < programs
        ):  # the last one is Spark's
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=180)
    assert (process.returncode, errors) == (143, b"")
    assert psutil.wait_procs(children, timeout=180)[1] == []
    assert list(tmp_path.glob("odradek-demo-*")) == []


def test_a_missing_package_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert run(["demo"]) == 2
    printed = capfd.readouterr()
    assert (printed.out, "pyspark: not installed: pip install 'odradek[demo]'" in printed.err) == ("", True)


@pytest.mark.parametrize(("lost", "rows", "code"), [(0, 1000, 0), (1, 1000, 1), (0, 999, 1)])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_exit_code_says_whether_something_was_lost(
    lost: int, rows: int, code: int, form: list[str],
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path,
) -> None:  # fmt: skip
    async def perform(*_: Any) -> DemoResult:
        return replace(SUCCESS, lost=lost, first_lost=[17][:lost], table=replace(TABLE, rows=rows, distinct=rows))

    monkeypatch.setenv("TMPDIR", os.fspath(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(module, "_perform", perform)
    assert run(["demo", *form]) == code
    printed = capfd.readouterr()
    assert (printed.err == "") is (code == 0)
    if form:
        result = json.loads(printed.out)
        assert (result["lost"], result["table"]["rows"], result["messages"]) == (lost, rows, 1000)
    else:
        assert f"lost        {lost}" in printed.out and ("17" in printed.out) is bool(lost)


@pytest.mark.parametrize(
    ("result", "beginnings"),
    [
        (SUCCESS, []),
        (replace(SUCCESS, table=None), ["no table was written"]),
        (replace(SUCCESS, table=replace(TABLE, rows=1001)), ["1 rows of the table are duplicates or"]),
        (replace(SUCCESS, table=replace(TABLE, rows=999, distinct=999)), ["1 of 1,000 messages are not in the table"]),
        (replace(SUCCESS, table=replace(TABLE, distinct=998)), ["2 of 1,000 messages are not", "2 rows of the table"]),
        (replace(SUCCESS, table=replace(TABLE, dead=3)), ["3 messages could not be decoded"]),
        (replace(SUCCESS, table=replace(TABLE, findings=["missing: t: rows"])), ["missing: t: rows"]),
    ],
)
def test_every_difference_is_reported(result: DemoResult, beginnings: list[str]) -> None:
    lines = list(differences(result))
    assert len(lines) == len(beginnings)
    assert all(line.startswith(beginning) for line, beginning in zip(lines, beginnings, strict=True))


def test_an_incomplete_table_is_reported_as_not_complete() -> None:
    assert "NOT COMPLETE" in report(replace(SUCCESS, table=replace(TABLE, findings=["missing: t: rows"])))
    assert report(replace(SUCCESS, table=None)).endswith("see         /d")


def test_too_few_lines_are_wrong_usage(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"just one\n")
    assert run(["demo", "--input", os.fspath(file)]) == 2


def test_a_real_broker_has_no_zookeeper_of_the_users(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--kafka", "4.3.1", "--zookeeper", "localhost:2181"]) == 2
    assert "leave out --zookeeper" in capfd.readouterr().err


def test_offsets_are_not_reported_as_bytes() -> None:
    table = replace(TABLE, log_size=1_003, log_unit="records")
    assert "16 log ranges, 1,003 offsets read again: complete" in report(replace(SUCCESS, table=table))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (TableSource.kafka07("zk:1/a", ["1@/d"], ["t"]), {"zookeeper": "zk:1/a"}),
        (TableSource.kafka("kafka://h:9092", ["t"]), {"kafka": "kafka://h:9092"}),
    ],
)
def test_the_pipeline_file_names_the_cluster(source: TableSource, expected: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(pipeline_file(tmp_path, source), "utf-8")
    assert load(file).source.model_dump(exclude_unset=True) == expected


def test_generated_messages_have_about_100_bytes() -> None:
    messages = list(map(numbered, range(2000), times(2000, 1_795_255_200.0), texts(None)))
    assert 90 <= sum(map(len, messages)) / len(messages) <= 100
    assert [json.loads(message)["n"] for message in messages] == list(range(2000))


def test_generated_messages_are_spread_over_a_day_and_densest_at_noon() -> None:
    now = 1_795_255_200.0
    made = [(time_ms / 1000 - now) / 3600 + 24 for time_ms in times(10_000, now)]
    assert made == sorted(made) and made[0] == 0.0 and 23.9 < made[-1] < 24.0
    hours = Counter(map(int, made))
    assert sorted(hours) == list(range(24))
    assert min(hours.values()) > 200 and hours[12] > 2 * hours[0]


@pytest.mark.parametrize(
    ("numbers", "counted"), [([0, 1, 2], (3, 3)), ([0, 1, 1], (3, 2)), ([0, 1, 7, -1, None], (5, 2)), ([], (0, 0))]
)
def test_rows_and_distinct_messages_are_counted(
    numbers: list[int | None], counted: tuple[int, int], tmp_path: Path
) -> None:
    table = pa.table({"n": pa.array(numbers, pa.int64())})
    deltalake.write_deltalake(tmp_path, table)
    assert count_rows(os.fspath(tmp_path), 3) == counted


def test_a_meter_has_the_rate_of_the_last_second() -> None:
    meter = Meter()
    assert (meter.total, meter.per_second) == (0, 0.0)
    for now, total in [(0.0, 0), (0.5, 100), (1.0, 300), (1.5, 300)]:
        meter.update(total, now)
    assert (meter.total, meter.per_second) == (300, 200.0)
    meter.update(300, 9.0)
    assert meter.per_second == 0.0


def test_the_table_shows_a_process_that_has_counted_nothing_yet() -> None:
    """An event redraws the table, also one of a consumer whose first count is still to come."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    scene = Scene(10, {"consumer 1": DemoProcess("consumer 1", "joining", Meter())})
    with Live(console=console) as live:
        TableDisplay(scene, live).event("consumer 1 has joined")
    assert "consumer 1 has joined" in console.file.getvalue()  # type: ignore[attr-defined]
