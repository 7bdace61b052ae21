"""A short run of the program that kills a mirror and its clusters: `python -m tests.mirror.kills` runs as long as one
likes."""

from __future__ import annotations

import pytest

from .kills.run import run

pytestmark = [pytest.mark.brokers, pytest.mark.slow, pytest.mark.timeout(900)]

SOURCES = ("0.7", "0.10.2.2")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One source in a run of the tests; the random seed says which."""
    if "source" in metafunc.fixturenames:
        metafunc.parametrize("source", [SOURCES[metafunc.config.getoption("randomly_seed", 0) % len(SOURCES)]])


def test_a_mirror_that_is_killed_copies_every_record_once(source: str) -> None:
    done = run(source, 3000, 4, seed=1, brokers=1, pause_s=0.3)
    assert done.problems == []
    assert done.records >= 3000
    assert {"mirror killed", "target killed", "source killed"} <= done.faults.keys()
