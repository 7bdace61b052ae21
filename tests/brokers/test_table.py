"""The table in the documentation. Runs after all other tests of this folder."""

from __future__ import annotations

import pytest

from .table import COLUMNS, FACTS, PAGE, RELEASES, parse, render


def test_the_table_in_the_documentation_has_what_ran_against_each_broker(request: pytest.FixtureRequest) -> None:
    facts = request.config.stash[FACTS]
    if request.config.getoption("--write-broker-table"):
        text = PAGE.read_text("utf-8")
        PAGE.write_text(render(text, parse(text) | facts), "utf-8")
    documented = parse(PAGE.read_text("utf-8"))
    assert list(documented) == RELEASES
    hint = "run pytest tests/brokers --brokers all --write-broker-table"
    assert {row: documented[row] for row in facts} == facts, hint


def test_a_table_is_read_as_it_was_written() -> None:
    text = PAGE.read_text("utf-8")
    facts = {row: {column: set(cells[:n]) for column, cells in COLUMNS.items()} for n, row in enumerate(RELEASES)}
    assert parse(render(text, facts)) == facts
    assert render(render(text, facts), parse(text)) == text
