"""Metrics, spans and links of `odradek.observe.otel`, of an in-memory cluster."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.observe.exporters import write_while_it_reads

import odradek as od
from odradek.core.observer_calls import ObserverCalls
from odradek.observe import BufferLevel, HeartbeatLate, Observer, ReadAheadLevel, RequestFinished, Throttled
from odradek.observe.otel import MAX_LINKS, MAX_PENDING, OpenTelemetryObserver, processing, trace_headers
from odradek.testing import MemoryCluster

pytestmark = pytest.mark.anyio

BROKER = od.Broker(1, "b", 9092)


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


def test_requests_of_share_groups_are_polls_too(telemetry: Telemetry) -> None:
    observer = telemetry.observer()
    for api in ("Fetch", "ShareFetch", "Metadata"):
        observer.request_finished(RequestFinished(BROKER, "fetch", api, 1, 1, 1, 0.5, None))
    assert telemetry.points("messaging.client.operation.duration") == {attributes("poll", "receive"): 2}


async def test_levels_of_what_has_ended_are_gone(telemetry: Telemetry) -> None:
    cluster, levels = MemoryCluster({"t": 1}), ("buffer.size", "buffer.waiting", "read_ahead.size", "lag")
    async with cluster.connect(observer=telemetry.observer()) as k:
        async with k.producer() as out, k.reader("t") as reader:
            await out.send("t", b"1")
            await anext(reader)
            assert all(telemetry.points(f"odradek.{name}") for name in levels)
        assert not any(telemetry.points(f"odradek.{name}") for name in levels)


def test_producers_and_readers_that_have_ended_take_no_memory(telemetry: Telemetry) -> None:
    observer = telemetry.observer()

    def begin_and_end(numbers: Iterable[int]) -> None:
        for number in numbers:
            for limit in (1000, 0):
                observer.buffer_level(BufferLevel(number, limit, limit, 0))
                observer.read_ahead_level(ReadAheadLevel(number, limit, limit))

    begin_and_end(range(10))
    tracemalloc.start()
    begin_and_end(range(10, 1010))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 10_000


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
    observer.throttled(Throttled(BROKER, "produce", 1.5))
    observer.heartbeat_late(HeartbeatLate("g", 4.0))
    assert list(telemetry.points("odradek.throttled").values()) == [1.5]
    assert list(telemetry.points("odradek.heartbeats.late").values()) == [1]


def calls(observer: OpenTelemetryObserver) -> ObserverCalls:
    """Return an observer as clients call it."""

    def fail(observer: Observer, name: str, error: Exception) -> None:
        raise AssertionError(name) from error

    return ObserverCalls([observer], fail)


def finish_batches(to: ObserverCalls, number: int, topic: str = "t") -> None:
    for _ in range(number):
        to.batch_finished(1, topic, od.TopicPartition(topic, 0), 3, 10, 0.5, 1, None)


DURATION, SENT = "messaging.client.operation.duration", attributes("send", "send", destination="t")


@pytest.mark.parametrize("number", [1, MAX_PENDING - 1, MAX_PENDING, MAX_PENDING + 1, 3 * MAX_PENDING])
def test_every_reading_has_all_durations_once(telemetry: Telemetry, number: int) -> None:
    to = calls(telemetry.observer())
    for readings in (1, 2):
        finish_batches(to, number)
        assert telemetry.points(DURATION) == {SENT: readings * number}
    assert telemetry.points(DURATION) == {SENT: 2 * number}


def test_the_last_durations_are_exported_when_the_provider_is_shut_down() -> None:
    exporter = Exporter()
    meters = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)])
    finish_batches(calls(OpenTelemetryObserver(meter_provider=meters)), 3)
    meters.shutdown()
    assert exporter.counts == [3]


class Exporter(MetricExporter):
    """Keeps how many operations each export has."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        for resource in metrics_data.resource_metrics:
            for scope in resource.scope_metrics:
                named = [metric for metric in scope.metrics if metric.name == DURATION]
                points: list[Any] = [point for metric in named for point in metric.data.data_points]
                self.counts += [point.count for point in points]
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        pass


def test_durations_are_recorded_many_at_a_time_while_nobody_reads(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[float] = []
    monkeypatch.setattr(Histogram, "record", lambda self, seconds, attributes: recorded.append(seconds))
    to = calls(telemetry.observer())
    finish_batches(to, MAX_PENDING - 1)
    assert not recorded
    finish_batches(to, 1)
    assert recorded == [0.5] * MAX_PENDING
    finish_batches(to, 10 * MAX_PENDING + 1)
    assert len(recorded) == 11 * MAX_PENDING


def test_a_span_ends_with_its_batch_and_does_not_wait(telemetry: Telemetry) -> None:
    to = calls(telemetry.observer(spans=True))
    finish_batches(to, 1)
    assert len(telemetry.spans("send t")) == 1


def test_nothing_is_lost_and_nothing_fails_while_another_thread_reads(telemetry: Telemetry) -> None:
    to = calls(telemetry.observer())

    def write(n: int) -> None:  # with new attributes all the time
        finish_batches(to, 1, f"t-{n // 5 % 1500}")
        to.batch_sent(1, BROKER, od.TopicPartition(f"t-{n // 5 % 1500}", 0), 3, 10, 1, 0.5)

    def read() -> float:
        return float(sum(telemetry.points(DURATION).values()))

    written, readings = write_while_it_reads(write, read)
    assert readings == sorted(readings) and readings[-1] <= written
    assert sum(telemetry.points(DURATION).values()) == written
    assert sum(telemetry.points("messaging.client.sent.messages").values()) == 3 * written


async def test_without_an_sdk_nothing_is_recorded_and_nothing_fails() -> None:
    await send_and_consume(Telemetry(), OpenTelemetryObserver(spans=True))
