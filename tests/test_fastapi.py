"""The page about FastAPI: its application and its test run as printed, and no request loses its record."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import odradek as od
from odradek.errors import BrokerError
from odradek.testing import MemoryCluster

PAGE = Path(__file__).parent.parent / "docs" / "howto" / "fastapi.md"


@pytest.fixture
def page() -> dict[str, Any]:
    """The names that the page defines."""
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), names)
    return names


def test_the_test_of_the_page_passes(page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    page["test_orders_are_counted"](monkeypatch)


def test_the_consumer_commits_and_leaves_when_the_application_ends(
    page: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = MemoryCluster(topics={"orders": 1})
    cluster.append("orders", [b"one", b"two"])
    monkeypatch.setattr(od, "connect", lambda url: cluster.connect())
    with TestClient(page["app"]) as client:
        client.post("/orders/ann", content=b"three")
        while client.get("/orders/ann").json() != 1:
            pass
    assert cluster.committed("counting")[od.TopicPartition("orders", 0)] >= 2
    assert cluster.members("counting") == {}


def test_a_record_that_is_refused_is_an_error_of_its_request(
    page: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = MemoryCluster(topics={"orders": 1})
    cluster.fail("produce", BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"), times=1)
    monkeypatch.setattr(od, "connect", lambda url: cluster.connect())
    with TestClient(page["app"]) as client:
        refused = client.post("/orders/ann", content=b"one")
        assert refused.status_code == 503 and "TOPIC_AUTHORIZATION_FAILED" in refused.text
        assert client.post("/orders/ann", content=b"two").status_code == 201
    assert [stored.record.value for stored in cluster.records("orders")] == [b"two"]


def test_a_consumer_that_fails_stops_the_server(page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, raised = MemoryCluster(topics={"orders": 1}), threading.Event()
    cluster.fail("fetch", BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"), times=None)
    monkeypatch.setattr(od, "connect", lambda url: cluster.connect())
    monkeypatch.setattr(signal, "raise_signal", lambda number: raised.set())
    with TestClient(page["app"]) as client:
        assert raised.wait(60)
        assert client.post("/orders/ann", content=b"one").status_code == 201
