"""Metrics that a client pushes: what they count, and their form as OpenTelemetry's MetricsData."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

import odradek as od
from odradek.observe import (
    BatchDelivered,
    BatchFinished,
    BatchSent,
    CommitFinished,
    ConnectionOpened,
    Rebalanced,
    RequestFinished,
    Throttled,
)
from odradek.observe.push import ClientMetrics
from odradek.testing import MemoryCluster

from .every_event import report_every_event

BROKER, P0 = od.Broker(1, "b", 9092), od.TopicPartition("t", 0)
PREFIX = "org.apache.kafka."
SECOND = 1_000_000_000
STANDARD = {
    *(f"producer.{name}" for name in ("connection.creation.rate", "connection.creation.total")),
    *(f"producer.node.request.latency.{kind}" for kind in ("avg", "max")),
    *(f"producer.produce.throttle.time.{kind}" for kind in ("avg", "max")),
    *(f"producer.record.queue.time.{kind}" for kind in ("avg", "max")),
    *(f"consumer.{name}" for name in ("connection.creation.rate", "connection.creation.total")),
    *(f"consumer.node.request.latency.{kind}" for kind in ("avg", "max")),
    *(f"consumer.coordinator.commit.latency.{kind}" for kind in ("avg", "max")),
    *(f"consumer.coordinator.rebalance.latency.{kind}" for kind in ("avg", "max", "total")),
    *(f"consumer.fetch.manager.fetch.latency.{kind}" for kind in ("avg", "max")),
    "consumer.coordinator.assigned.partitions",
}
"""What KIP-714 lists for producers and consumers, but `consumer.poll.idle.ratio.avg`: nothing polls here."""


class Point(NamedTuple):
    """A data point."""

    value: float
    attributes: dict[str, str]
    since_ns: int
    at_ns: int


def decoded(data: bytes) -> dict[str, Point]:
    """Return the points of metrics that have one each, by their names without the prefix."""
    points: dict[str, Point] = {}
    for metric in (
        metric
        for resource in MetricsData.FromString(data).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ):
        (point,) = (metric.sum if metric.HasField("sum") else metric.gauge).data_points
        labels = {each.key: each.value.string_value for each in point.attributes}
        points[metric.name.removeprefix(PREFIX)] = Point(
            point.as_double, labels, point.start_time_unix_nano, point.time_unix_nano
        )
        assert metric.name.startswith(PREFIX)
    return points


def collect(metrics: ClientMetrics, **options: Any) -> dict[str, Point]:
    options = {"prefixes": ("*",), "delta": True, "now_ns": 10 * SECOND, "max_bytes": 1 << 20, **options}
    return decoded(metrics.collect(options.pop("prefixes"), **options))


def sent(records: int, attempt: int = 1, seconds: float = 0.01) -> BatchSent:
    return BatchSent(1, BROKER, P0, records, 100, attempt, seconds)


def test_every_standard_metric_is_there_once_its_event_has_happened() -> None:
    metrics = ClientMetrics(0)
    report_every_event(metrics)
    metrics.connection_opened(ConnectionOpened(BROKER, "poll", 0.01))
    metrics.request_finished(RequestFinished(BROKER, "poll", "Fetch", 17, 1, 1, 0.01, None))
    points = collect(metrics)
    assert points.keys() >= STANDARD
    assert points["consumer.coordinator.assigned.partitions"][:2] == (1, {"group_id": "g"})
    assert points["producer.node.request.latency.avg"][:2] == (10, {"node_id": "1"})


def test_nothing_is_said_of_what_has_not_happened() -> None:
    assert ClientMetrics(0).collect(("*",), delta=True, now_ns=1, max_bytes=1 << 20) == b""


def test_averages_and_maxima_are_those_since_the_last_collection() -> None:
    metrics = ClientMetrics(0)
    for seconds in (0.01, 0.03):
        metrics.batch_sent(sent(1, seconds=seconds))
    points = collect(metrics)
    assert [points[f"producer.record.queue.time.{kind}"].value for kind in ("avg", "max")] == [20, 30]
    assert "producer.record.queue.time.avg" not in collect(metrics)
    metrics.batch_sent(sent(1, seconds=0.002))
    assert collect(metrics)["producer.record.queue.time.max"].value == 2


def test_deltas_begin_where_the_last_accepted_collection_ended() -> None:
    metrics, name = ClientMetrics(SECOND), "producer.record.send.total"
    metrics.batch_sent(sent(3))
    assert collect(metrics, now_ns=2 * SECOND)[name] == (3, {}, SECOND, 2 * SECOND)
    metrics.batch_sent(sent(2))
    assert collect(metrics, now_ns=3 * SECOND)[name] == (5, {}, SECOND, 3 * SECOND)  # the first one was not accepted
    metrics.accepted()
    assert name not in collect(metrics, now_ns=4 * SECOND)
    metrics.batch_sent(sent(4))
    assert collect(metrics, now_ns=5 * SECOND)[name] == (4, {}, 3 * SECOND, 5 * SECOND)
    assert collect(metrics, now_ns=5 * SECOND, delta=False)[name] == (9, {}, SECOND, 5 * SECOND)


def test_a_metric_that_was_not_wanted_before_counts_from_the_beginning() -> None:
    metrics = ClientMetrics(SECOND)
    metrics.batch_sent(sent(3))
    metrics.batch_finished(BatchFinished(1, "t", P0, 3, 100, 0.1, 1, od.ConnectionLost("b:9092", "cut", True)))
    assert collect(metrics, prefixes=(f"{PREFIX}producer.record.send",), now_ns=2 * SECOND).keys() == {
        "producer.record.send.total"
    }
    metrics.accepted()
    assert collect(metrics, now_ns=3 * SECOND)["producer.record.error.total"] == (3, {}, SECOND, 3 * SECOND)


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [
        (("*",), {"send", "retry"}),
        (("",), {"send", "retry"}),
        ((f"{PREFIX}producer.record.retry.total", "other."), {"retry"}),
        (("org.apache.kafka.consumer.",), set()),
    ],
)
def test_names_are_wanted_by_their_beginnings(prefixes: tuple[str, ...], expected: set[str]) -> None:
    metrics = ClientMetrics(0)
    metrics.batch_sent(sent(3, attempt=2))
    points = collect(metrics, prefixes=prefixes)
    assert {name.split(".")[2] for name in points if name.endswith(".total")} == expected


def test_what_does_not_fit_is_left_out_and_counted_on() -> None:
    metrics = ClientMetrics(0)
    metrics.batch_sent(sent(3, attempt=2))
    whole = metrics.collect(("*",), delta=True, now_ns=SECOND, max_bytes=1 << 20)
    part = metrics.collect((f"{PREFIX}producer.record",), delta=True, now_ns=SECOND, max_bytes=len(whole) // 2)
    assert 0 < len(part) <= len(whole) // 2 and decoded(part).keys() < decoded(whole).keys()
    metrics.accepted()
    metrics.batch_sent(sent(1, attempt=2))
    counted = {name: point.value for name, point in collect(metrics).items() if name.endswith(".total")}
    left_out = decoded(whole).keys() - decoded(part).keys()
    assert counted == {
        name: 4 if name in left_out else 1 for name in ("producer.record.send.total", "producer.record.retry.total")
    }
    assert metrics.collect(("*",), delta=False, now_ns=SECOND, max_bytes=10) == b""


def test_connections_and_requests_of_all_are_nobodys() -> None:
    metrics = ClientMetrics(0)
    for purpose in ("bootstrap", "control", "admin", "metrics"):
        metrics.connection_opened(ConnectionOpened(BROKER, purpose, 0.01))
        metrics.request_finished(RequestFinished(BROKER, purpose, "Metadata", 9, 1, 1, 0.01, None))
        metrics.throttled(Throttled(BROKER, purpose, 1.0))
    assert not collect(metrics)


@pytest.mark.parametrize(
    ("purpose", "role"),
    [
        ("produce", "producer"),
        ("transactions", "producer"),
        ("transaction x", "producer"),
        ("fetch", "consumer"),
        ("poll", "consumer"),
        ("group g member 1", "consumer"),
        ("share group g member 1", "consumer"),
        ("positions", "consumer"),
    ],
)
def test_connections_are_made_by_producers_or_consumers(purpose: str, role: str) -> None:
    metrics = ClientMetrics(0)
    for _ in range(5):
        metrics.connection_opened(ConnectionOpened(BROKER, purpose, 0.01))
    points = collect(metrics, now_ns=2 * SECOND)
    assert {name: point.value for name, point in points.items()} == {
        f"{role}.connection.creation.total": 5,
        f"{role}.connection.creation.rate": 2.5,
    }
    assert collect(metrics, now_ns=3 * SECOND)[f"{role}.connection.creation.rate"].value == 0


def test_what_a_consumer_does_is_counted() -> None:
    metrics = ClientMetrics(0)
    for records, lag in ((3, 7), (2, 5)):
        metrics.batch_delivered(BatchDelivered(1, "g", P0, records, 10, lag))
    metrics.batch_delivered(BatchDelivered(1, "g", P0, 1, 10, None))
    metrics.commit_finished(CommitFinished("g", {}, 0.5, None))
    metrics.commit_finished(CommitFinished("g", {}, 9.0, od.DeadlineError("commit", 9, sent=True)))
    metrics.rebalanced(Rebalanced("g", "assigned", (P0, od.TopicPartition("t", 1)), "joined", 0.25))
    metrics.rebalanced(Rebalanced("g", "revoked", (P0,), "rebalance", 0.1))
    metrics.throttled(Throttled(BROKER, "poll", 1.5))
    points = {name: point.value for name, point in collect(metrics).items()}
    assert points == {
        "consumer.fetch.manager.records.consumed.total": 6,
        "consumer.fetch.manager.bytes.consumed.total": 30,
        "consumer.fetch.manager.records.lag.max": 7,
        "consumer.fetch.manager.fetch.throttle.time.avg": 1500,
        "consumer.fetch.manager.fetch.throttle.time.max": 1500,
        "consumer.coordinator.commit.latency.avg": 500,
        "consumer.coordinator.commit.latency.max": 500,
        "consumer.coordinator.rebalance.latency.avg": 250,
        "consumer.coordinator.rebalance.latency.max": 250,
        "consumer.coordinator.rebalance.latency.total": 250,
        "consumer.coordinator.assigned.partitions": 1,
    }


def test_the_rack_is_an_attribute_of_the_client() -> None:
    metrics = ClientMetrics(0, "r1")
    metrics.batch_sent(sent(1))
    (resource,) = MetricsData.FromString(metrics.collect(("",), delta=True, now_ns=1, max_bytes=1000)).resource_metrics
    (attribute,) = resource.resource.attributes
    assert (attribute.key, attribute.value.string_value) == ("client_rack", "r1")
    assert resource.scope_metrics[0].scope.name == "odradek"


@pytest.mark.anyio
async def test_a_client_that_sends_and_consumes_is_counted() -> None:
    metrics = ClientMetrics(0)
    async with MemoryCluster({"t": 1}).connect(observer=metrics) as k:
        async with k.producer() as out:
            await out.send_many("t", [b"12345"] * 10)
        async with k.consumer("t", group="g", start=od.EARLIEST) as consumer:
            (await anext(consumer.batches())).done()
    points = collect(metrics)
    assert points["producer.record.send.total"].value == 10
    assert points["consumer.fetch.manager.records.consumed.total"].value == 10
    assert points["producer.record.queue.time.max"].value >= 0


def test_without_the_package_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['opentelemetry.proto'] = None\n"
        "import odradek as od\n"
        "od.connect('kafka://127.0.0.1:1')\n"
        "try: od.connect('kafka://127.0.0.1:1', push_metrics=True)\n"
        "except od.ConfigError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "odradek[push]" in ran.stdout
