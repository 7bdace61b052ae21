"""Metrics, spans and links of `odradek.observe.otel`, of an in-memory cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import odradek as od
from odradek.observe import HeartbeatLate, Throttled
from odradek.observe.otel import MAX_LINKS, OpenTelemetryObserver, processing, trace_headers
from odradek.testing import MemoryCluster

pytestmark = pytest.mark.anyio


class Telemetry:
    """Providers that keep everything in memory."""

    def __init__(self) -> None:
        self.reader, self.exporter = InMemoryMetricReader(), InMemorySpanExporter()
        self.meters, self.tracers = MeterProvider([self.reader]), TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.tracers.get_tracer("test")

    def observer(self, *, spans: bool = False) -> OpenTelemetryObserver:
        return OpenTelemetryObserver(meter_provider=self.meters, tracer_provider=self.tracers, spans=spans)

    def points(self, name: str) -> dict[tuple[tuple[str, Any], ...], Any]:
        """Return the points of a metric by their attributes: counts of histograms, values of others."""
        data = self.reader.get_metrics_data()
        points: dict[tuple[tuple[str, Any], ...], Any] = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points if metric.name == name else ():
                        labels = tuple(sorted((point.attributes or {}).items()))
                        points[labels] = point.count if hasattr(point, "count") else point.value
        return points

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.meters.shutdown()
    telemetry.tracers.shutdown()


def attributes(operation: str, kind: str, **more: str) -> tuple[tuple[str, Any], ...]:
    """Return the attributes of the conventions."""
    named = {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        **{f"messaging.{name.replace('_', '.')}.name": value for name, value in more.items()},
    }
    return tuple(sorted(named.items()))


async def send_and_consume(telemetry: Telemetry, observer: OpenTelemetryObserver) -> dict[str, Any]:
    """Send ten records and consume them. Return the values of gauges before the consumer leaves."""
    cluster = MemoryCluster({"t": 1})
    options: dict[str, Any] = {"group": "g", "start": od.EARLIEST, "commit_every": None}
    async with cluster.connect(observer=observer) as k:
        async with k.producer() as out:
            await out.send_many("t", [b"12345"] * 10)
        async with k.consumer("t", **options) as consumer:
            (await anext(consumer.batches())).done()
            await consumer.commit()
            return {name: list(telemetry.points(f"odradek.{name}").values()) for name in ("lag", "connections")}


async def test_metrics_of_the_conventions(telemetry: Telemetry) -> None:
    gauges = await send_and_consume(telemetry, telemetry.observer())
    sent = attributes("send", "send", destination="t")
    assert telemetry.points("messaging.client.sent.messages") == {sent: 10}
    received = attributes("poll", "receive", destination="t", consumer_group="g")
    assert telemetry.points("messaging.client.consumed.messages") == {received: 10}
    operations = telemetry.points("messaging.client.operation.duration")
    assert operations[sent] >= 1 and operations[attributes("commit", "settle", consumer_group="g")] == 1
    assert attributes("poll", "receive") in operations
    assert gauges["lag"] == [0] and gauges["connections"][0] >= 3
    assert not telemetry.points("odradek.lag") and list(telemetry.points("odradek.connections").values()) == [0]
    assert not telemetry.exporter.get_finished_spans()


async def test_spans_only_when_asked_one_for_each_batch_and_commit(telemetry: Telemetry) -> None:
    with telemetry.tracer.start_as_current_span("of the application"):
        await send_and_consume(telemetry, telemetry.observer(spans=True))
    sends, (commit,) = telemetry.spans("send t"), telemetry.spans("commit")
    assert sum((span.attributes or {})["messaging.batch.message_count"] for span in sends) == 10  # type: ignore[misc]
    for span in (*sends, commit):
        assert span.parent is None and (span.start_time or 0) <= (span.end_time or 0)
    assert {span.kind for span in sends} == {trace.SpanKind.PRODUCER} and commit.kind is trace.SpanKind.CLIENT
    assert dict(sends[0].attributes or {}).items() >= {
        ("messaging.system", "kafka"),
        ("messaging.operation.name", "send"),
        ("messaging.operation.type", "send"),
        ("messaging.destination.name", "t"),
        ("messaging.destination.partition.id", "0"),
    }


async def test_failures_are_errors_of_spans_and_error_types_of_metrics(telemetry: Telemetry) -> None:
    cluster = MemoryCluster({"t": 1})
    cluster.fail("produce", od.BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"))
    async with cluster.connect(observer=telemetry.observer(spans=True)) as k, k.producer() as out:
        with pytest.raises(od.Rejected):
            await out.send("t", b"v")
        cluster.fail("produce", od.ConnectionLost("memory-1:9092", "cut", True))
        await out.send("t", b"v")
    failed, written = telemetry.spans("send t")
    assert failed.status.status_code is trace.StatusCode.ERROR and written.status.is_unset
    assert (failed.attributes or {})["error.type"] == "TOPIC_AUTHORIZATION_FAILED"
    assert "error.type" not in (written.attributes or {})
    errors = [dict(labels).get("error.type") for labels in telemetry.points("odradek.requests")]
    assert sorted(errors, key=str) == ["ConnectionLost", None]
    assert list(telemetry.points("odradek.connections.lost").values()) == [1]


async def test_the_context_of_a_record_is_linked_by_the_batch_that_has_it(telemetry: Telemetry) -> None:
    cluster, contexts = MemoryCluster({"t": 1}), []
    async with cluster.connect() as k:
        async with k.producer() as out:
            for n in range(3):
                with telemetry.tracer.start_as_current_span(f"request {n}") as span:
                    contexts.append(span.get_span_context())
                    own = [("own", b"header")]
                    for _ in range(2):
                        await out.send("t", b"%d" % n, headers=trace_headers(k, own))
            assert trace_headers(k, own) is own and trace_headers(k) == ()  # there is no span
            await out.send("t", b"without", headers=[("traceparent", b"\xff"), ("x", None)])
        async with k.reader("t", until=od.LATEST) as reader:
            batches = [batch async for batch in reader.batches()]
    assert cluster.records("t")[0].record.headers[0] == ("own", b"header")
    for batch in batches:
        with processing(batch, group="g", tracer_provider=telemetry.tracers) as current:
            assert trace.get_current_span() is current
    spans = telemetry.spans("process t")
    linked = [link.context.span_id for span in spans for link in span.links]
    assert sorted(set(linked)) == sorted(context.span_id for context in contexts)
    assert {span.kind for span in spans} == {trace.SpanKind.CONSUMER}
    assert sum((span.attributes or {})["messaging.batch.message_count"] for span in spans) == 7  # type: ignore[misc]
    assert (spans[0].attributes or {})["messaging.consumer.group.name"] == "g"


async def test_an_error_of_processing_is_recorded_and_raised_and_links_are_bounded(telemetry: Telemetry) -> None:
    cluster = MemoryCluster({"t": 1})
    made = [f"00-{n:032x}-{n:016x}-01".encode() for n in range(1, MAX_LINKS + 10)]
    cluster.append("t", [od.ProducerRecord(b"v", headers=(("traceparent", context),)) for context in made])
    async with cluster.connect() as k, k.reader("t", until=od.LATEST) as reader:
        batch = await anext(reader.batches())
    assert len(batch) > MAX_LINKS
    with pytest.raises(ValueError, match="wrong"), processing(batch, tracer_provider=telemetry.tracers):
        raise ValueError("wrong")
    (span,) = telemetry.spans("process t")
    assert len(span.links) == MAX_LINKS and span.status.status_code is trace.StatusCode.ERROR


def test_no_context_goes_where_records_have_no_headers(telemetry: Telemetry) -> None:
    cluster = od.connect("kafka07://localhost:1")
    with telemetry.tracer.start_as_current_span("request"):
        assert trace_headers(cluster) == ()


def test_events_that_an_in_memory_cluster_does_not_have(telemetry: Telemetry) -> None:
    observer = telemetry.observer()
    observer.throttled(Throttled(od.Broker(1, "b", 9092), "produce", 1.5))
    observer.heartbeat_late(HeartbeatLate("g", 4.0))
    assert list(telemetry.points("odradek.throttled").values()) == [1.5]
    assert list(telemetry.points("odradek.heartbeats.late").values()) == [1]


async def test_without_an_sdk_nothing_is_recorded_and_nothing_fails() -> None:
    await send_and_consume(Telemetry(), OpenTelemetryObserver(spans=True))
