"""`odradek pipeline verify`."""

from __future__ import annotations

import json

import pytest

from odradek.pipeline.selection import select

from ...pipeline.made import ROWS, Made
from .conftest import Command


def test_a_complete_table_passes(pipeline: Command) -> None:
    head, row = pipeline("verify").splitlines()
    assert head.split()[:3] == ["flow", "checked", "rows"]
    assert row.split()[:6] == ["orders", "3", "of", "3", "batches", "300"] and row.endswith("  complete")
    assert "  position, payload  " in row
    assert pipeline("verify", "--quiet") == ""


def test_missing_rows_are_reported(made: Made, pipeline: Command) -> None:
    made.log(ROWS)
    made.run(lose=lambda value: value == ROWS[0])
    out = pipeline("verify", code=1)
    assert (
        out.startswith("orders: missing: orders/1-0 [") and "1 rows of batch 3 of the log are not in the table" in out
    )
    result = json.loads(pipeline("verify", "--json", "--batch", "2:", code=1))
    assert (result["ok"], result["batches"], result["of"], result["rows"]) == (False, 2, 4, 199)
    assert [finding["kind"] for finding in result["findings"]] == ["missing"]
    assert json.loads(pipeline("verify", "--json", "--batch", ":2"))["ok"] is True


def test_batches_may_be_sampled_or_chosen_by_time(pipeline: Command) -> None:
    assert json.loads(pipeline("verify", "--json", "--sample", "34"))["batches"] == 2
    assert json.loads(pipeline("verify", "--json", "--since", "1800000002"))["batches"] == 1
    assert json.loads(pipeline("verify", "--json", "--until", "1800000002"))["batches"] == 2


@pytest.mark.parametrize("wrong", [["--batch", "x"], ["--flow", "none"], ["--sample", "0"], ["--since", "when"]])
def test_invalid_options_are_wrong_usage(pipeline: Command, wrong: list[str]) -> None:
    assert pipeline("verify", *wrong, code=2) == ""


def test_a_broken_ledger_is_exit_code_1(made: Made, pipeline: Command) -> None:
    made.ledger.path(1).unlink()
    pipeline("verify", code=1)


def test_batches_are_selected_by_number_and_sample(made: Made) -> None:
    table = made.table
    assert select(table) == {0, 1, 2}
    assert select(table, numbers=["0", "2:9"]) == {0, 2}
    assert select(table, numbers=["5"]) == set() == select(table, numbers=["5"], sample=50)
    assert len(select(table, sample=1)) == 1
