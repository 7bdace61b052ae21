"""A short run of the chaos driver, which runs for an hour as `python -m tests.faults.chaos --minutes 60`."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest

from odradek.testing.kafka.releases import NEWEST

from .chaos.run import run

pytestmark = [pytest.mark.brokers, pytest.mark.slow, pytest.mark.timeout(900)]

MINUTES = 0.4


def children() -> set[psutil.Process]:
    """The processes that this one started, those of servers that several tests share among them."""
    return {each for each in psutil.Process().children(recursive=True) if each.is_running()}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("version", "upgrade_to"), [(NEWEST, None), ("0.11.0.3", None), ("3.9.1", NEWEST)])
def test_nothing_is_lost_doubled_or_skipped_while_brokers_lines_and_clients_fail(
    version: str, upgrade_to: str | None, report: Callable[[object], None]
) -> None:
    before = children()
    shown: list[str] = []
    done = run(version, MINUTES, seed=1, upgrade_to=upgrade_to, show=shown.append)
    report(done.line())
    assert done.problems == []
    assert sum(done.faults.values()) >= 5
    produced = done.produced
    assert 300 < produced["confirmed"] <= produced["in_log"] <= produced["confirmed"] + produced["unknown"]
    for group in done.groups.values():
        assert group["delivered"] - group["delivered_again"] == produced["in_log"]
    assert done.transactions["outputs"] == done.transactions["inputs"] == produced["in_log"]
    assert children() <= before, "a process of the run is left"
