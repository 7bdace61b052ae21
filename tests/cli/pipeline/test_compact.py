"""`odradek pipeline compact`."""

from __future__ import annotations

import json

from ...pipeline.made import Made
from .conftest import Command


def test_small_files_are_merged(made: Made, pipeline: Command) -> None:
    out = pipeline("compact", "--dry-run")
    assert out.splitlines()[1].split() == ["orders", "3", "1", "300", "0"] and out.endswith("nothing was changed\n")
    assert len(made.table.live) == 3
    result = json.loads(pipeline("compact", "--json"))
    assert result == {
        "flow": "orders", "files_before": 3, "files_after": 1, "rows": 300, "deleted": 0, "applied": True
    }  # fmt: skip
    assert len(list((made.root / "table").rglob("*.parquet"))) == 4
    assert json.loads(pipeline("compact", "--json", "--delete-older-than", "1h"))["deleted"] == 0
    assert json.loads(pipeline("compact", "--json", "--delete-older-than", "0s"))["deleted"] == 3
    assert json.loads(pipeline("verify", "--json"))["ok"]
