"""Metrics and spans for OpenTelemetry (`odradek[otel]`), by its conventions for messaging (status: development)::

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
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Protocol

from odradek import observe
from odradek._version import __version__
from odradek.batch import Batch
from odradek.errors import ConfigError
from odradek.observe import Observer, error_name
from odradek.observe.values import LabelledValues
from odradek.types import Broker, TopicPartition

try:
    from opentelemetry import metrics, propagate, trace
except ImportError as missing:
    raise ConfigError(
        "odradek.observe.otel needs opentelemetry-api: pip install 'odradek[otel]', and the SDK to record anything"
    ) from missing

__all__ = ["OpenTelemetryObserver", "processing", "trace_headers"]

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Upper bounds of durations, as the conventions have them (s)."""

MAX_PENDING = 64
"""Durations that are recorded together: that takes less than a millisecond."""

MAX_LINKS = 128
"""Maximum number of links of a span: the default of SDKs, which drop the rest."""

Headers = Sequence[tuple[str, bytes | None]]


class OpenTelemetryObserver(Observer):
    """Records metrics and, if asked, spans.

    Metrics of the conventions: `messaging.client.operation.duration` (of `send`, `poll` and `commit`),
    `messaging.client.sent.messages`, `messaging.client.consumed.messages`. What they do not have begins with
    `odradek.`: docs/howto/observe.md lists them. A client never makes a span for each record; one that is to be
    followed carries its context in its headers (`trace_headers`), and `processing` links to it.

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
        self._producers, self._readers = _Numbered("odradek.producer"), _Numbered("odradek.reader")
        meter = metrics.get_meter("odradek", __version__, meter_provider)

        def seconds(name: str, text: str) -> metrics.Histogram:
            return meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=BUCKETS)

        def values(create: Any, name: str, unit: str, text: str) -> LabelledValues[_Attributes]:
            made: LabelledValues[_Attributes] = defaultdict(int)
            create(name, [lambda options: self._read(made)], unit, text)
            return made

        counter, gauge = meter.create_observable_counter, meter.create_observable_gauge
        self._operations = _Durations(
            seconds("messaging.client.operation.duration", "Duration of send, poll and commit.")
        )
        self._sent = values(counter, "messaging.client.sent.messages", "{message}", "Records sent.")
        self._consumed = values(counter, "messaging.client.consumed.messages", "{message}", "Records delivered.")
        up_down = meter.create_observable_up_down_counter
        self._connections = values(up_down, "odradek.connections", "{connection}", "Open connections.")
        self._connects = seconds("odradek.connect.duration", "Time to connect, with TLS and SASL.")
        self._losses = values(counter, "odradek.connections.lost", "{connection}", "Connections lost.")
        self._connect_failures = values(counter, "odradek.connect.failures", "{attempt}", "Failed attempts to connect.")
        self._throttled = values(counter, "odradek.throttled", "s", "Time that quotas have cost.")
        self._requests = values(counter, "odradek.requests", "{request}", "Requests that have their result.")
        self._request_seconds = values(counter, "odradek.request.time", "s", "From queueing requests to their results.")
        self._request_bytes = values(counter, "odradek.request.size", "By", "Bytes of requests.")
        self._response_bytes = values(counter, "odradek.response.size", "By", "Bytes of responses.")
        self._buffer = values(gauge, "odradek.buffer.size", "By", "Memory of records without an outcome.")
        self._waiting = values(gauge, "odradek.buffer.waiting", "{call}", "Calls that wait for space in the buffer.")
        self._lag = values(gauge, "odradek.lag", "{message}", "Records after the last one delivered.")
        self._read_by: defaultdict[int, set[_Attributes]] = defaultdict(set)  # by reader without a group
        self._read_ahead = values(gauge, "odradek.read_ahead.size", "By", "Memory of records that are read ahead.")
        self._rebalances = seconds("odradek.rebalance.duration", "Duration of rebalances, by kind.")
        self._late = values(counter, "odradek.heartbeats.late", "{heartbeat}", "Times that the loop was blocked.")
        self._copied = values(counter, "odradek.mirror.records", "{message}", "Records that a mirror has committed.")
        self._copied_bytes = values(counter, "odradek.mirror.size", "By", "Keys, values and headers of these.")
        self._transactions = seconds("odradek.mirror.transaction.duration", "Time to write and commit a transaction.")
        self._mirror_lag = values(gauge, "odradek.mirror.lag", "1", "Records that are not copied; of 0.7 bytes.")
        self._mirror_lag_time = values(gauge, "odradek.mirror.lag.time", "s", "Age of the oldest of these, at most.")

    def _read(self, values: LabelledValues[_Attributes]) -> list[metrics.Observation]:
        """Return values for an exporter, which calls this before it looks at histograms."""
        self._operations.record_pending()
        return [metrics.Observation(value, attributes) for attributes, value in dict(values).items()]

    # ---- connections and requests ---------------------------------------------------------------------------

    def connection_opened(self, event: observe.ConnectionOpened) -> None:
        self._connections[_request(event.broker)] += 1
        self._connects.record(event.seconds, _request(event.broker))

    def connection_failed(self, event: observe.ConnectionFailed) -> None:
        self._connect_failures[_request(event.broker)] += 1

    def connection_ended(self, event: observe.ConnectionEnded) -> None:
        self._connections[_request(event.broker)] -= 1
        self._losses[_request(event.broker)] += event.lost

    def throttled(self, event: observe.Throttled) -> None:
        self._throttled[_request(event.broker)] += event.seconds

    def request_finished(self, event: observe.RequestFinished) -> None:
        error = error_name(event.error)
        attributes = _request(event.broker, event.api, error)
        self._requests[attributes] += 1
        self._request_seconds[attributes] += event.seconds
        self._request_bytes[attributes] += event.sent_bytes
        self._response_bytes[attributes] += event.received_bytes
        if event.api in ("Fetch", "ShareFetch"):
            self._operations.record(event.seconds, _operation("poll", "receive", error=error))

    # ---- producers ------------------------------------------------------------------------------------------

    def batch_sent(self, event: observe.BatchSent) -> None:
        self._sent[_operation("send", "send", event.partition.topic)] += event.records

    def batch_finished(self, event: observe.BatchFinished) -> None:
        attributes = _operation("send", "send", event.topic, error=error_name(event.error))
        self._operations.record(event.seconds, attributes)
        if self._tracer is not None:
            more: dict[str, Any] = {"messaging.batch.message_count": event.records}
            if event.partition is not None:
                more["messaging.destination.partition.id"] = event.partition.name
            self._span(f"send {event.topic}", trace.SpanKind.PRODUCER, event, {**attributes, **more})

    def buffer_level(self, event: observe.BufferLevel) -> None:
        producer = self._producers[event.producer]
        if not event.limit:
            for values in (self._buffer, self._waiting):
                values.pop(producer, None)
            del self._producers[event.producer]
            return
        self._buffer[producer] = event.bytes
        self._waiting[producer] = event.waiting

    # ---- readers and consumers ------------------------------------------------------------------------------

    def batch_delivered(self, event: observe.BatchDelivered) -> None:
        topic, group = event.partition.topic, event.group or ""
        self._consumed[_operation("poll", "receive", topic, group)] += event.records
        if event.lag is not None:
            lag = _partition(event.partition, group)
            self._lag[lag] = event.lag
            if event.group is None:
                self._read_by[event.reader].add(lag)

    def read_ahead_level(self, event: observe.ReadAheadLevel) -> None:
        reader = self._readers[event.reader]
        if not event.limit:
            self._read_ahead.pop(reader, None)
            del self._readers[event.reader]
            for lag in self._read_by.pop(event.reader, ()):
                self._lag.pop(lag, None)
            return
        self._read_ahead[reader] = event.bytes

    def commit_finished(self, event: observe.CommitFinished) -> None:
        attributes = _operation("commit", "settle", group=event.group, error=error_name(event.error))
        self._operations.record(event.seconds, attributes)
        self._span("commit", trace.SpanKind.CLIENT, event, attributes)

    def rebalanced(self, event: observe.Rebalanced) -> None:
        self._rebalances.record(event.seconds, _group(event.group, event.kind))
        if event.kind != "assigned":
            for partition in event.partitions:
                self._lag.pop(_partition(partition, event.group), None)

    def heartbeat_late(self, event: observe.HeartbeatLate) -> None:
        self._late[_group(event.group)] += 1

    # ---- mirrors --------------------------------------------------------------------------------------------

    def mirror_committed(self, event: observe.MirrorCommitted) -> None:
        self._transactions.record(event.seconds, _mirror(event.mirror))
        for partition, records in event.records.items():
            self._copied[_mirror(event.mirror, partition.topic)] += records
            self._copied_bytes[_mirror(event.mirror, partition.topic)] += event.bytes[partition]

    def mirror_lag(self, event: observe.MirrorLag) -> None:
        attributes = _mirror(event.mirror, event.partition.topic, event.partition.name)
        self._mirror_lag[attributes] = event.lag
        if event.seconds is None:
            self._mirror_lag_time.pop(attributes, None)
        else:
            self._mirror_lag_time[attributes] = event.seconds

    def _span(
        self,
        name: str,
        kind: trace.SpanKind,
        event: observe.BatchFinished | observe.CommitFinished,
        attributes: Mapping[str, Any],
    ) -> None:
        """Record a span that ends now, if that was asked for."""
        if self._tracer is None:
            return
        end = time.time_ns()
        span = self._tracer.start_span(name, _NOTHING, kind, attributes, start_time=end - int(event.seconds * 1e9))
        if event.error is not None:
            span.set_status(trace.StatusCode.ERROR, str(event.error))
        span.end(end)


class _Durations:
    """A histogram in which durations are recorded many at a time, and all before metrics are read.

    Recording one takes the SDK 10 us, and several times that alone, when a batch has gone through the processor's
    caches since the last one. Called by one thread; read by any.
    """

    def __init__(self, histogram: metrics.Histogram) -> None:
        self._histogram = histogram
        self._pending: deque[tuple[float, _Attributes]] = deque()

    def record(self, seconds: float, attributes: _Attributes) -> None:
        """Record a duration, now or later."""
        self._pending.append((seconds, attributes))
        if len(self._pending) >= MAX_PENDING:
            self.record_pending()

    def record_pending(self) -> None:
        """Record all that wait, each once, also if two threads are here."""
        while self._pending:
            with suppress(IndexError):
                self._histogram.record(*self._pending.popleft())


class _Attributes(dict[str, Any]):
    """A set of attributes, made once; a key of `LabelledValues`."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # of its identity, without a Python call


class _Numbered(dict[int, _Attributes]):
    """Attributes of producers or readers by number, until they end: a program may have any number of them.

    Args:
        of: Name of the attribute.
    """

    def __init__(self, of: str) -> None:
        self._of = of

    def __missing__(self, number: int) -> _Attributes:
        made = self[number] = _Attributes({self._of: number})
        return made


def _attributes(**values: Any) -> _Attributes:
    """Return those that have a value; `__` in a name stands for a dot."""
    named = {name.replace("__", "."): value for name, value in values.items() if value != ""}
    return _Attributes({"messaging.system": "kafka", **named})


@cache
def _request(broker: Broker, api: str = "", error: str = "") -> _Attributes:
    return _attributes(server__address=broker.host, server__port=broker.port, odradek__request=api, error__type=error)


@cache
def _operation(name: str, kind: str, topic: str = "", group: str = "", error: str = "") -> _Attributes:
    return _attributes(
        messaging__operation__name=name,
        messaging__operation__type=kind,
        messaging__destination__name=topic,
        messaging__consumer__group__name=group,
        error__type=error,
    )


@cache
def _partition(partition: TopicPartition, group: str) -> _Attributes:
    return _attributes(
        messaging__destination__name=partition.topic,
        messaging__destination__partition__id=partition.name,
        messaging__consumer__group__name=group,
    )


@cache
def _group(group: str, kind: str = "") -> _Attributes:
    return _attributes(messaging__consumer__group__name=group, odradek__rebalance__kind=kind)


@cache
def _mirror(name: str, topic: str = "", partition: str = "") -> _Attributes:
    return _attributes(
        odradek__mirror=name, messaging__destination__name=topic, messaging__destination__partition__id=partition
    )


def _tracer(provider: trace.TracerProvider | None) -> trace.Tracer:
    return trace.get_tracer("odradek", __version__, provider)


_NOTHING: Any = trace.set_span_in_context(trace.INVALID_SPAN)
"""The context of what has no parent."""


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
    attributes = _operation("process", "process", topic, group or "") | {
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
