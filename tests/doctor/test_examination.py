"""An examination of servers that cannot be reached, and its arguments; on both loops."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.doctor import Diagnosis, Report, examine
from odradek.errors import ConfigError
from odradek.testing.process import reserve_port


@pytest.mark.anyio
async def test_each_server_that_cannot_be_reached_is_named_at_once() -> None:
    ports = [reserve_port() for _ in range(2)]
    try:
        report = await examine(f"kafka://127.0.0.1:{ports[0][0]},127.0.0.1:{ports[1][0]}", topic="t", group="g")
    finally:
        for _, keeper in ports:
            keeper.close()
    assert [finding.cause for finding in report.findings] == ["nothing-listens"] * 2
    for (port, _), finding in zip(ports, report.findings, strict=True):
        assert f"127.0.0.1:{port}: tcp: " in finding.evidence
    assert report.checked == ["servers of the URL"]
    assert not report.healthy


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"url": "nonsense://a:1"}, ConfigError, "unknown scheme"),
        ({"url": 1}, TypeError, "url"),
        ({"topic": 1}, TypeError, "topic"),
        ({"group": ""}, ConfigError, "group"),
        ({"seconds": 0}, ConfigError, "seconds"),
        ({"security": "none"}, TypeError, "security"),
    ],
)
async def test_arguments_that_cannot_work_are_errors(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        await examine(**{"url": "kafka://127.0.0.1:1", **options})


def test_notices_are_healthy() -> None:
    notice = Diagnosis("quota-in-force", "notice", "", "")
    assert Report([notice]).healthy
    assert not Report([notice, Diagnosis("idle-members", "warning", "", "")]).healthy
