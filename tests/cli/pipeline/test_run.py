"""`odradek pipeline run`, as far as it needs no Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import rmtree

import pytest
from click.testing import CliRunner

from odradek.cli.app import cli, run


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
    rmtree(file.parent / "table")
    assert run(["pipeline", "run", str(file), "--master", "spark://127.0.0.1:1"]) == 2
    assert (
        "this process was started by spark-submit: give --master spark://127.0.0.1:1 to spark-submit"
        in capfd.readouterr().err
    )


def test_an_unreachable_spark_connect_server_is_named(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rmtree(file.parent / "table")
    assert run(["pipeline", "run", str(file), "--remote", "sc://127.0.0.1:1"]) == 2
    assert "no Spark Connect server at sc://127.0.0.1:1: " in capfd.readouterr().err


@pytest.mark.parametrize("missing", ["pydantic", "pyspark", "pyarrow"])
def test_a_missing_package_is_named_with_its_extra(file: Path, missing: str) -> None:
    rmtree(file.parent / "table")
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"from odradek.cli.app import run; sys.exit(run(['pipeline', 'run', {str(file)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    named = "Spark" if missing == "pyspark" else missing
    assert f"{named} is not installed: pip install" in done.stderr
