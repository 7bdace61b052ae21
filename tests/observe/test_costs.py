"""How many Python calls of the library an event of a request or a batch takes: they are most of what observers cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

import odradek as od
from odradek.core.observer_calls import ObserverCalls
from odradek.observe import Observer
from odradek.observe.otel import OpenTelemetryObserver
from odradek.observe.prometheus import PrometheusObserver

LIBRARY = str(Path(od.__file__).parent)
BROKER, P0 = od.Broker(1, "b", 9092), od.TopicPartition("t", 0)

EVENTS: dict[str, tuple[tuple[object, ...], int, int]] = {
    "request_finished": ((BROKER, "produce", "Produce", 9, 100, 50, 0.01, None), 2, 2),
    "batch_sent": ((1, BROKER, P0, 10, 1000, 1, 0.01), 1, 1),
    "batch_finished": ((1, "t", P0, 10, 1000, 0.02, 1, None), 2, 3),
    "buffer_level": ((1, 1000, 10_000, 3), 1, 1),
    "part_fetched": ((1, BROKER, P0, 1000, od.Position(10), None), 1, 0),
    "batch_delivered": ((1, "g", P0, 10, 1000, 5), 2, 1),
    "read_ahead_level": ((1, 1000, 10_000), 1, 1),
}
"""Fields, and the most calls of each observer: its method, and what that calls."""


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_takes_few_calls(name: str) -> None:
    fields, prometheus, otel = EVENTS[name]
    assert calls_behind(PrometheusObserver(CollectorRegistry()), name, fields) <= prometheus
    meters = MeterProvider([InMemoryMetricReader()])
    assert calls_behind(OpenTelemetryObserver(meter_provider=meters), name, fields) <= otel
    meters.shutdown()


def calls_behind(observer: Observer, name: str, fields: tuple[object, ...]) -> int:
    """Return how many calls of the library are behind that of `ObserverCalls`, once its labels are known."""
    failures: list[object] = []
    call = getattr(ObserverCalls([observer], lambda *failure: failures.append(failure)), name)
    call(*fields)
    counted = count_calls(lambda: call(*fields))
    assert not failures
    return counted - 1


def count_calls(run: Callable[[], None]) -> int:
    """Return how many Python functions of the library are called."""
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event == "call" and frame.f_code.co_filename.startswith(LIBRARY)

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
    return counted
