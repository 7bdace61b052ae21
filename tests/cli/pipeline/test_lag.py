"""`odradek pipeline lag`."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.cli.app import run

from .conftest import output_of


def test_lag_is_the_log_that_is_not_in_the_table(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert output_of(capfd, "lag", str(file)).splitlines()[-1].split() == ["f", "total", "1080"]
    assert run(["pipeline", "lag", str(file), "--fail-over", "1079"]) == 1
    assert run(["pipeline", "lag", str(file), "--fail-over", "1080"]) == 0
