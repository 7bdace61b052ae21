"""What the fault tests share: quick retries, and a report of what came twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.loops import ASYNCIO, on

import odradek as od

anyio_backend = on(ASYNCIO)

REPORTS = pytest.StashKey[list[str]]()


@pytest.fixture
def tuning() -> od.Tuning:
    """Retries and polls that do not make a test wait."""
    return od.Tuning(request_timeout=3.0, backoff=od.Backoff(first_s=0.01, max_s=0.1), fetch_idle=0.01)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[object], None]:
    """`report(counts)` is printed at the end of the run."""
    lines = request.config.stash.setdefault(REPORTS, [])
    return lambda text: lines.append(f"{request.node.name}: {text}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash.get(REPORTS, []):
        terminalreporter.section("faults")
        for line in sorted(lines):
            terminalreporter.line(line)
