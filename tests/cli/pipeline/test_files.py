"""`odradek pipeline files`."""

from __future__ import annotations

import json
from pathlib import Path

from ...pipeline.made import Made
from .conftest import Command


def test_files_prints_the_current_files_of_a_table(made: Made, pipeline: Command) -> None:
    paths = pipeline("files").splitlines()
    assert paths == [str(made.root / "table" / file.path) for file in made.table.live.values()]
    assert pipeline("files", "--batch", "1:").splitlines() == paths[1:]
    assert pipeline("files", "--since", "2100-01-01") == ""
    pipeline("compact")
    (printed,) = map(json.loads, pipeline("files", "--batch", "2", "--json").splitlines())
    assert (printed["rows"], printed["partition"]["topic"], Path(printed["path"]).is_file()) == (300, "orders", True)
