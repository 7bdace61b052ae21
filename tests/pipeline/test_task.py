"""What tasks give back: times of records, reasons of dead ones, and no result twice or not at all."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from odradek.pipeline.layout import TIME
from odradek.pipeline.task import TimeRule

from .workspace import Workspace, run_all

PLANNED = 1_763_800_000_000_000
"""In November 2025 (us)."""


def rows(*timestamps: int | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(timestamps, pa.int64()).cast(TIME)], ["timestamp"])


def numbers(times: Any) -> list[int | None]:
    result: list[int | None] = times.cast(pa.int64()).to_pylist()
    return result


def test_a_record_without_a_time_that_a_calendar_has_gets_the_time_of_planning() -> None:
    year_20000, before_year_1 = 568_971_820_800_000_000, -62_200_000_000_000_000
    times = TimeRule(planned=PLANNED).times(rows(None, year_20000, before_year_1, 7))
    assert numbers(times) == [PLANNED, PLANNED, PLANNED, 7]
    assert times[0].as_py() == datetime.fromtimestamp(PLANNED / 1e6, UTC)


@pytest.mark.parametrize("results", [0, 2])
def test_a_batch_with_another_number_of_results_than_tasks_is_not_committed(tmp_path: Path, results: int) -> None:
    work = Workspace(tmp_path, more='data_loss = "skip"')  # which would take a missing range for a lost one
    work.append([b"1", b"2"])
    (flow,) = work.run(lambda jobs: run_all(jobs) * results).flows
    assert f"1 tasks have {results} results" in flow.error
    assert work.newest.batch == 0 and not list(work.root.rglob("orders/**/*.parquet"))
