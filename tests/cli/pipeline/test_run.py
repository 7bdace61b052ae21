"""`odradek pipeline run`, as far as it needs no Spark."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from odradek.cli.app import cli, run
from odradek.pipeline.run import execute

from ...pipeline.workspace import Workspace, in_process


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--conf", "spark.executor.memory"], "expected key=value"),
        (["--conf", "=2g"], "expected key=value"),
        (["--master", "local[2]", "--remote", "sc://127.0.0.1:1"], "exclude each other"),
    ],
)
def test_contradicting_options_are_wrong_usage(file: Path, options: list[str], words: str) -> None:
    shown = CliRunner().invoke(cli, ["pipeline", "run", str(file), *options])
    assert shown.exit_code == 2 and words in shown.output


def test_a_master_is_refused_below_spark_submit(
    file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert run(["pipeline", "run", str(file), "--master", "spark://127.0.0.1:1"]) == 2
    assert (
        "this process was started by spark-submit: give --master spark://127.0.0.1:1 to spark-submit"
        in capfd.readouterr().err
    )


def test_an_unreachable_spark_connect_server_is_named(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "run", str(file), "--remote", "sc://127.0.0.1:1"]) == 2
    assert "no Spark Connect server at sc://127.0.0.1:1: " in capfd.readouterr().err


@pytest.mark.parametrize("missing", ["pydantic", "pyspark", "pyarrow"])
def test_a_missing_package_is_named_with_its_extra(file: Path, missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"from odradek.cli.app import run; sys.exit(run(['pipeline', 'run', {str(file)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    named = "Spark" if missing == "pyspark" else missing
    assert f"{named} is not installed: pip install" in done.stderr


def test_a_run_that_has_nothing_to_do_needs_no_spark(work: Workspace) -> None:
    work.run()
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        f"from odradek.cli.app import run; sys.exit(run(['pipeline', 'run', {str(work.root / 'pipeline.toml')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


SECOND = """
[flows.second]
topics = ["orders"]
decode = { kind = "json", fields = "id bigint" }
sink = { path = "tables/second" }
dead = { path = "tables/second_dead" }
"""


@pytest.mark.parametrize("early", [True, False])
def test_a_run_that_follows_ends_when_one_of_its_flows_fails(work: Workspace, early: bool) -> None:
    file = work.root / "pipeline.toml"
    file.write_text(file.read_text() + SECOND)
    if early:
        (work.root / "tables" / "second").mkdir(parents=True)
        (work.root / "tables" / "second" / "_delta_log").write_text("")
    summary = execute(work.pipeline, "pipeline.toml", lambda *_: None, in_process, every_s=0.01)
    first, second = summary.flows
    assert summary.failed and not first.error and second.error and not second.commits
    assert early or "records could not be decoded" in second.error


def test_a_run_that_follows_commits_what_comes_and_ends_cleanly_with_sigterm(work: Workspace) -> None:
    work.run()
    code = (
        "import sys; from odradek.pipeline import run; from tests.pipeline.workspace import in_process\n"
        "run.on_spark = lambda *_: in_process()\n"
        "from odradek.cli.app import run; "
        f"file = {str(work.root / 'pipeline.toml')!r}; "
        "sys.exit(run(['pipeline', 'run', file, '--follow', '--every', '0.1', '--json']))"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root
    ) as process:
        assert process.stderr is not None and process.stdout is not None
        work.append([b"later"])
        assert process.stderr.readline() == "orders: batch 4: 1 rows, 15 B of log, 0 B left\n"
        work.append([b"even later"])
        assert process.stderr.readline().startswith("orders: batch 5: 1 rows")
        process.send_signal(signal.SIGTERM)
        done = json.loads(process.stdout.read())
        assert process.wait(60) == 0
    assert (done["rows"], done["error"], done["problems"]) == (2, "", [])
    assert (done["log_size"], done["unit"]) == (35, "bytes")
    assert len(work.values()) == 102
