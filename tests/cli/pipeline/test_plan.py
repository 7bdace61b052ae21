"""`odradek pipeline plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import output_of


def test_plan_prints_the_ranges_a_run_would_read(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = output_of(capfd, "plan", str(file)).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["f", "t", "3-0", "720", "1800", "1080"], ["f", "total", "2", "batches", "1080"]
    ]  # fmt: skip
    (flow,) = map(json.loads, output_of(capfd, "plan", str(file), "--json").splitlines())
    assert (flow["waiting"], flow["batches"], flow["partitions"][0]["reached"]) == (1080, 2, 720)
    assert not (file.parent / "checkpoint").exists()


def test_plan_prints_what_retention_deleted(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = file.parent / "logs" / "t-0"
    (folder / f"{0:020}.kafka").rename(folder / f"{900:020}.kafka")
    assert "deleted by retention: wanted [720, 900)" in output_of(capfd, "plan", str(file))
