"""`odradek pipeline repair`."""

from __future__ import annotations

import json

from ...pipeline.made import Made
from .conftest import Command


def test_nothing_is_changed_without_apply(made: Made, pipeline: Command) -> None:
    stray = made.root / "table" / "topic=orders" / "stray.parquet"
    stray.write_bytes(b"torn")
    out = pipeline("repair", code=1)
    assert "there is no checkpoint; a new one would be created" in out and f"{stray}: no entry lists it" in out
    assert "nothing was changed; use --apply to repair" in out and stray.exists()
    assert "a new one created" in pipeline("repair", "--apply") and not stray.exists()
    assert pipeline("repair") == "orders: nothing to repair\n"
    result = json.loads(pipeline("repair", "--json"))
    assert (result["entry"], result["orphans"], result["applied"]) == (None, [], False)
