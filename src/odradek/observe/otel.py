"""Metrics and spans for OpenTelemetry (`odradek[otel]`), by its conventions for messaging (status: development).

    from odradek.observe.otel import OpenTelemetryObserver, processing, trace_headers

    async with od.connect("kafka://localhost:9092", observer=OpenTelemetryObserver(spans=True)) as k:
        async with k.producer() as out:
            await out.send("orders", b"v", headers=trace_headers(k))
        async with k.consumer("orders", group="billing") as c:
            async for batch in c.batches():
                with processing(batch, group="billing"):
                    ...
                batch.done()

Only the API of OpenTelemetry is used: without an SDK, which the application configures, nothing is recorded.

Source: https://opentelemetry.io/docs/specs/semconv/messaging/ (metrics, spans, Kafka), W3C Trace Context.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from odradek._version import __version__
from odradek.batch import Batch
from odradek.errors import ConfigError
from odradek.observe import (
    BatchDelivered,
    BatchFinished,
    BatchSent,
    BufferLevel,
    CommitFinished,
    ConnectionEnded,
    ConnectionFailed,
    ConnectionOpened,
    HeartbeatLate,
    Observer,
    ReadAheadLevel,
    Rebalanced,
    RequestFinished,
    Throttled,
    error_name,
)

try:
    from opentelemetry import metrics, propagate, trace
except ImportError as missing:
    raise ConfigError(
        "odradek.observe.otel needs opentelemetry-api: pip install 'odradek[otel]', and the SDK to record anything"
    ) from missing

__all__ = ["OpenTelemetryObserver", "processing", "trace_headers"]

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Upper bounds of durations, as the conventions have them (s)."""

MAX_LINKS = 128
"""Maximum number of links of a span: the default of SDKs, which drop the rest."""

SYSTEM = {"messaging.system": "kafka"}

Headers = Sequence[tuple[str, bytes | None]]


class OpenTelemetryObserver(Observer):
    """Records metrics and, if asked, spans.

    Metrics of the conventions: `messaging.client.operation.duration` (of `send`, `poll` and `commit`),
    `messaging.client.sent.messages`, `messaging.client.consumed.messages`. What they do not have begins with
    `odradek.`: see {doc}`/howto/observe`. A client never makes a span for each record; one that is to be followed
    carries its context in its headers (`trace_headers`), and `processing` links to it.

    Args:
        meter_provider, tracer_provider: None: the global ones.
        spans: Also record a span for each batch that has its outcome, and for each commit. They are roots of traces of
            their own, because the records of a batch come from many.
    """

    def __init__(
        self,
        *,
        meter_provider: metrics.MeterProvider | None = None,
        tracer_provider: trace.TracerProvider | None = None,
        spans: bool = False,
    ) -> None:
        self._tracer = _tracer(tracer_provider) if spans else None
        meter = metrics.get_meter("odradek", __version__, meter_provider)
        counter, gauge = meter.create_counter, meter.create_gauge

        def seconds(name: str, text: str) -> metrics.Histogram:
            return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=BUCKETS)

        self._operations = seconds("messaging.client.operation.duration", "Duration of send, poll and commit.")
        self._sent = counter("messaging.client.sent.messages", "{message}", "Records sent.")
        self._consumed = counter("messaging.client.consumed.messages", "{message}", "Records delivered.")
        self._connections = meter.create_up_down_counter("odradek.connections", "{connection}", "Open connections.")
        self._connects = seconds("odradek.connect.duration", "Time to connect, with TLS and SASL.")
        self._losses = counter("odradek.connections.lost", "{connection}", "Connections lost.")
        self._connect_failures = counter("odradek.connect.failures", "{attempt}", "Attempts to connect that failed.")
        self._throttled = counter("odradek.throttled", "s", "Time that quotas have cost.")
        self._requests = seconds("odradek.request.duration", "From queueing a request to its response.")
        self._request_bytes = counter("odradek.request.size", "By", "Bytes of requests.")
        self._response_bytes = counter("odradek.response.size", "By", "Bytes of responses.")
        self._buffer = gauge("odradek.buffer.size", "By", "Memory of records without an outcome.")
        self._waiting = gauge("odradek.buffer.waiting", "{call}", "Calls that wait for space in the buffer.")
        self._lag = gauge("odradek.lag", "{message}", "Records after the last one delivered.")
        self._read_ahead = gauge("odradek.read_ahead.size", "By", "Memory of records that are read ahead.")
        self._rebalances = seconds("odradek.rebalance.duration", "Duration of rebalances, by kind.")
        self._late = counter("odradek.heartbeats.late", "{heartbeat}", "Times that the event loop was blocked.")
        self._attributes = _Attributes()

    # ---- connections and requests ---------------------------------------------------------------------------

    def connection_opened(self, event: ConnectionOpened) -> None:
        server = self._attributes.server(event.broker.host, event.broker.port)
        self._connections.add(1, server)
        self._connects.record(event.seconds, server)

    def connection_failed(self, event: ConnectionFailed) -> None:
        self._connect_failures.add(1, self._attributes.server(event.broker.host, event.broker.port))

    def connection_ended(self, event: ConnectionEnded) -> None:
        server = self._attributes.server(event.broker.host, event.broker.port)
        self._connections.add(-1, server)
        if event.lost:
            self._losses.add(1, server)

    def throttled(self, event: Throttled) -> None:
        self._throttled.add(event.seconds, self._attributes.server(event.broker.host, event.broker.port))

    def request_finished(self, event: RequestFinished) -> None:
        broker, error = event.broker, error_name(event.error)
        attributes = self._attributes.request(broker.host, broker.port, event.api, error)
        self._requests.record(event.seconds, attributes)
        self._request_bytes.add(event.sent_bytes, attributes)
        self._response_bytes.add(event.received_bytes, attributes)
        if event.api == "Fetch":
            self._operations.record(event.seconds, self._attributes.operation("poll", "receive", error=error))

    # ---- producers ------------------------------------------------------------------------------------------

    def batch_sent(self, event: BatchSent) -> None:
        self._sent.add(event.records, self._attributes.operation("send", "send", event.partition.topic))

    def batch_finished(self, event: BatchFinished) -> None:
        attributes = self._attributes.operation("send", "send", event.topic, error=error_name(event.error))
        self._operations.record(event.seconds, attributes)
        if self._tracer is not None:
            partition = {} if event.partition is None else {"messaging.destination.partition.id": event.partition.name}
            self._span(f"send {event.topic}", trace.SpanKind.PRODUCER, event, attributes, partition, event.records)

    def buffer_level(self, event: BufferLevel) -> None:
        attributes = {"odradek.producer": event.producer}
        self._buffer.set(event.bytes, attributes)
        self._waiting.set(event.waiting, attributes)

    # ---- readers and consumers ------------------------------------------------------------------------------

    def batch_delivered(self, event: BatchDelivered) -> None:
        group, partition = event.group or "", event.partition
        self._consumed.add(event.records, self._attributes.operation("poll", "receive", partition.topic, group))
        if event.lag is not None:
            self._lag.set(event.lag, self._attributes.partition(partition.topic, partition.name, group))

    def read_ahead_level(self, event: ReadAheadLevel) -> None:
        self._read_ahead.set(event.bytes, {"odradek.reader": event.reader})

    def commit_finished(self, event: CommitFinished) -> None:
        attributes = self._attributes.operation("commit", "settle", group=event.group, error=error_name(event.error))
        self._operations.record(event.seconds, attributes)
        if self._tracer is not None:
            self._span("commit", trace.SpanKind.CLIENT, event, attributes, {})

    def rebalanced(self, event: Rebalanced) -> None:
        attributes = {"messaging.consumer.group.name": event.group, "odradek.rebalance.kind": event.kind}
        self._rebalances.record(event.seconds, attributes)

    def heartbeat_late(self, event: HeartbeatLate) -> None:
        self._late.add(1, {"messaging.consumer.group.name": event.group})

    def _span(
        self,
        name: str,
        kind: trace.SpanKind,
        event: BatchFinished | CommitFinished,
        attributes: dict[str, Any],
        more: dict[str, Any],
        records: int | None = None,
    ) -> None:
        """Record a span that ends now."""
        assert self._tracer is not None
        end = time.time_ns()
        begin = end - int(event.seconds * 1e9)
        if records is not None:
            more["messaging.batch.message_count"] = records
        root: Any = trace.set_span_in_context(trace.INVALID_SPAN)
        span = self._tracer.start_span(name, root, kind, {**attributes, **more}, start_time=begin)
        if event.error is not None:
            span.set_status(trace.StatusCode.ERROR, str(event.error))
        span.end(end)


class _Attributes:
    """Sets of attributes, made once: there are few, and each batch needs one."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], dict[str, Any]] = {}

    def server(self, host: str, port: int) -> dict[str, Any]:
        """Return those of a broker."""
        return self._made.get((host, port)) or self._keep((host, port), _server(host, port))

    def request(self, host: str, port: int, api: str, error: str) -> dict[str, Any]:
        """Return those of a request."""
        key = ("request", host, port, api, error)
        return self._made.get(key) or self._keep(
            key, {**_server(host, port), "odradek.request": api, "error.type": error}
        )

    def operation(self, name: str, kind: str, topic: str = "", group: str = "", error: str = "") -> dict[str, Any]:
        """Return those of an operation of the conventions."""
        key = (name, topic, group, error)
        return self._made.get(key) or self._keep(key, _operation(name, kind, topic, group, error))

    def partition(self, topic: str, partition: str, group: str) -> dict[str, Any]:
        """Return those of a partition that a group reads."""
        key = ("partition", topic, partition, group)
        return self._made.get(key) or self._keep(
            key,
            {
                "messaging.destination.name": topic,
                "messaging.destination.partition.id": partition,
                "messaging.consumer.group.name": group,
            },
        )

    def _keep(self, key: tuple[object, ...], attributes: dict[str, Any]) -> dict[str, Any]:
        """Keep those that have a value."""
        made = self._made[key] = SYSTEM | {name: value for name, value in attributes.items() if value != ""}
        return made


def _server(host: str, port: int) -> dict[str, Any]:
    return {"server.address": host, "server.port": port}


def _operation(name: str, kind: str, topic: str, group: str, error: str) -> dict[str, Any]:
    return {
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
        "messaging.consumer.group.name": group,
        "error.type": error,
    }


def _tracer(provider: trace.TracerProvider | None) -> trace.Tracer:
    return trace.get_tracer("odradek", __version__, provider)


# ---- trace context in records -------------------------------------------------------------------------------


class _HasHeaders(Protocol):
    @property
    def has_headers(self) -> bool: ...


class _HasDriver(Protocol):
    @property
    def driver(self) -> _HasHeaders: ...


def trace_headers(k: _HasDriver, headers: Headers = ()) -> Headers:
    """Return headers of a record with the context of the current span, by the global propagator: `traceparent` and
    `tracestate` of W3C unless it is configured otherwise.

    Where records have no headers (before 0.11), and without a span, `headers` are returned as they are.

    Args:
        k: The cluster that the record is sent to.
        headers: Those of the record; none of them is replaced.
    """
    carrier: dict[str, str] = {}
    if k.driver.has_headers:
        propagate.inject(carrier)
    return [*headers, *((name, value.encode()) for name, value in carrier.items())] if carrier else headers


@contextmanager
def processing(
    batch: Batch, *, group: str | None = None, tracer_provider: trace.TracerProvider | None = None
) -> Iterator[trace.Span]:
    """Process a batch in a span, which has a link to each context that its records carry, up to 128.

    An exception of the block is recorded, and raised. The duration is that of the span.

    Args:
        batch: Records of one partition.
        group: The consumer's group.
        tracer_provider: None: the global one.
    """
    topic = batch.partition.topic
    attributes = _Attributes().operation("process", "process", topic, group or "") | {
        "messaging.destination.partition.id": batch.partition.name,
        "messaging.batch.message_count": len(batch),
    }
    tracer, links = _tracer(tracer_provider), _links(batch.columns.headers or ())
    with tracer.start_as_current_span(
        f"process {topic}", kind=trace.SpanKind.CONSUMER, attributes=attributes, links=links
    ) as span:
        yield span


def _links(headers_of_records: Iterable[Headers]) -> list[trace.Link]:
    """Return links to the different contexts that records carry, the first ones."""
    contexts: dict[tuple[int, int], trace.SpanContext] = {}
    for headers in headers_of_records:
        if len(contexts) == MAX_LINKS:
            break
        carrier = {name: value.decode("utf-8", "replace") for name, value in headers if value is not None}
        if carrier:
            context = trace.get_current_span(propagate.extract(carrier, _NOTHING)).get_span_context()
            if context.is_valid:
                contexts.setdefault((context.trace_id, context.span_id), context)
    return [trace.Link(context) for context in contexts.values()]


_NOTHING: Any = trace.set_span_in_context(trace.INVALID_SPAN)
