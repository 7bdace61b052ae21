"""A pipeline file over a log directory, with a table of a part of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...pipeline.workspace import Workspace


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    """A table of 40 messages of 18 bytes, and 60 more in the log."""
    work = Workspace(tmp_path, run_lines="batch_bytes = 1000")
    work.append([b"%08d" % number for number in range(40)])
    assert not work.run().failed
    work.append([b"%08d" % number for number in range(40, 100)])
    return work


@pytest.fixture
def file(work: Workspace) -> Path:
    return work.root / "pipeline.toml"
