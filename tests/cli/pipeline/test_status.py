"""`odradek pipeline status`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import output_of


def test_status_comes_from_the_ledger_and_needs_no_logs(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (status,) = map(json.loads, output_of(capfd, "status", str(file), "--json").splitlines())
    assert status == {
        "flow": "f", "batches": 1, "rows": 40, "files": 1, "size": 5000, "dead": 2, "gaps": 0, "last": 1.0, "lag": 1080
    }  # fmt: skip
    file.write_text(file.read_text().replace(f'logs = ["3@{file.parent}/logs"]', 'brokers = "1@127.0.0.1:1"'))
    (status,) = map(json.loads, output_of(capfd, "status", str(file), "--json").splitlines())
    assert (status["rows"], status["lag"]) == (40, None)
