"""Metrics for Prometheus (`odradek[prometheus]`)::

from prometheus_client import start_http_server
from odradek.observe.prometheus import PrometheusObserver

start_http_server(8000)
async with od.connect("kafka://localhost:9092", observer=PrometheusObserver()) as k: ...
"""

from __future__ import annotations

from typing import Any

from odradek import observe
from odradek.errors import ConfigError
from odradek.observe import Observer, error_name

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError as missing:
    raise ConfigError(
        "odradek.observe.prometheus needs prometheus-client: pip install 'odradek[prometheus]'"
    ) from missing

__all__ = ["PrometheusObserver"]

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histograms of times (s): from a request in one rack to a delivery that almost failed."""


class _Children(dict[tuple[object, ...], Any]):
    """The children of a metric, by the values of its labels: looking one up in the metric takes a microsecond more."""

    def __init__(self, metric: Counter | Gauge | Histogram) -> None:
        self._metric = metric

    def __missing__(self, labels: tuple[object, ...]) -> Any:
        child = self[labels] = self._metric.labels(*labels)
        return child

    def remove(self, labels: tuple[object, ...]) -> None:
        """Expose these values no more."""
        if self.pop(labels, None) is not None:
            self._metric.remove(*labels)


class PrometheusObserver(Observer):
    """Exposes what clients do as metrics that begin with `odradek_`: docs/howto/observe.md lists them.

    One observer serves any number of clusters, producers and consumers, in one event loop each. Make one for each
    registry: a second one in the same registry is refused by it with ValueError.

    Args:
        registry: Where the metrics are registered.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, text: str, *labels: str) -> _Children:
            return _Children(Counter(f"odradek_{name}", text, labels, registry=registry))

        def gauge(name: str, text: str, *labels: str) -> _Children:
            return _Children(Gauge(f"odradek_{name}", text, labels, registry=registry))

        def seconds(name: str, text: str, *labels: str) -> _Children:
            return _Children(Histogram(f"odradek_{name}_seconds", text, labels, registry=registry, buckets=BUCKETS))

        self._connections = gauge("connections", "Connections that are open", "broker")
        self._connects = seconds("connect", "Time to connect, with TLS and SASL", "broker")
        self._connect_failures = counter("connect_failures", "Attempts to connect that failed", "broker")
        self._losses = counter("connections_lost", "Connections that were lost", "broker")
        self._throttled = counter("throttled_seconds", "Time that quotas have cost", "broker")
        self._requests = seconds("request", "From queueing a request to its response", "broker", "api")
        self._request_errors = counter("request_errors", "Requests that failed as a whole", "broker", "api", "error")
        self._sent = counter("request_bytes", "Bytes of requests", "broker", "api")
        self._received = counter("response_bytes", "Bytes of responses", "broker", "api")

        self._batches_sent = counter("batches_sent", "Batches sent, every attempt counted", "topic")
        self._retries = counter("batch_retries", "Batches that were sent again", "topic")
        self._deliveries = seconds("delivery", "From the first record of a batch to its outcome", "topic")
        self._produced = counter("produced_records", "Records that were written", "topic")
        self._produced_bytes = counter("produced_bytes", "Bytes that were written, uncompressed", "topic")
        self._failed = counter("failed_records", "Records that were not written, or may not be", "topic", "error")
        self._buffer = gauge("buffer_bytes", "Memory of records without an outcome", "producer")
        self._buffer_limit = gauge("buffer_limit_bytes", "Its limit", "producer")
        self._waiting = gauge("buffer_waiting", "Calls that wait for space in the buffer", "producer")

        self._fetched = counter("fetched_bytes", "Bytes of logs that were fetched", "topic")
        self._fetch_errors = counter("fetch_errors", "Errors of partitions in fetches", "topic", "error")
        self._delivered_batches = counter("delivered_batches", "Batches handed to the application", "group", "topic")
        self._delivered = counter("delivered_records", "Records handed to the application", "group", "topic")
        self._delivered_bytes = counter("delivered_bytes", "Keys, values and headers of these", "group", "topic")
        self._lag = gauge("lag_records", "Records after the last one handed over", "group", "topic", "partition")
        self._read_ahead = gauge("read_ahead_bytes", "Memory of records that are read ahead", "reader")
        self._read_ahead_limit = gauge("read_ahead_limit_bytes", "Its limit", "reader")

        self._commits = seconds("commit", "Time of a commit", "group")
        self._commit_errors = counter("commit_errors", "Commits that failed", "group", "error")
        self._rebalances = counter("rebalances", "Partitions assigned, revoked, lost, left", "group", "kind")
        self._rebalance_times = seconds("rebalance", "From giving up partitions to reading new ones", "group")
        self._assigned = gauge("assigned_partitions", "Partitions of members in this process", "group")
        self._late = counter("late_heartbeats", "Times that the event loop was blocked for too long", "group")
        self._late_seconds = counter("late_heartbeat_seconds", "For how long it was blocked", "group")

    # ---- connections and requests ---------------------------------------------------------------------------

    def connection_opened(self, event: observe.ConnectionOpened) -> None:
        broker = (event.broker.id,)
        self._connections[broker].inc()
        self._connects[broker].observe(event.seconds)

    def connection_failed(self, event: observe.ConnectionFailed) -> None:
        self._connect_failures[event.broker.id,].inc()

    def connection_ended(self, event: observe.ConnectionEnded) -> None:
        self._connections[event.broker.id,].dec()
        self._losses[event.broker.id,].inc(event.lost)

    def throttled(self, event: observe.Throttled) -> None:
        self._throttled[event.broker.id,].inc(event.seconds)

    def request_finished(self, event: observe.RequestFinished) -> None:
        labels = (event.broker.id, event.api)
        self._requests[labels].observe(event.seconds)
        self._sent[labels].inc(event.sent_bytes)
        self._received[labels].inc(event.received_bytes)
        if event.error is not None:
            self._request_errors[(*labels, error_name(event.error))].inc()

    # ---- producers ------------------------------------------------------------------------------------------

    def batch_sent(self, event: observe.BatchSent) -> None:
        topic = (event.partition.topic,)
        self._batches_sent[topic].inc()
        if event.attempt > 1:
            self._retries[topic].inc()

    def batch_finished(self, event: observe.BatchFinished) -> None:
        topic = (event.topic,)
        self._deliveries[topic].observe(event.seconds)
        if event.error is None:
            self._produced[topic].inc(event.records)
            self._produced_bytes[topic].inc(event.bytes)
        else:
            self._failed[event.topic, error_name(event.error)].inc(event.records)

    def buffer_level(self, event: observe.BufferLevel) -> None:
        producer = (event.producer,)
        self._buffer[producer].set(event.bytes)
        self._buffer_limit[producer].set(event.limit)
        self._waiting[producer].set(event.waiting)

    # ---- readers and consumers ------------------------------------------------------------------------------

    def part_fetched(self, event: observe.PartFetched) -> None:
        topic = event.partition.topic
        self._fetched[topic,].inc(event.bytes)
        if event.error is not None:
            self._fetch_errors[topic, error_name(event.error)].inc()

    def batch_delivered(self, event: observe.BatchDelivered) -> None:
        group, partition = event.group or "", event.partition
        labels = (group, partition.topic)
        self._delivered_batches[labels].inc()
        self._delivered[labels].inc(event.records)
        self._delivered_bytes[labels].inc(event.bytes)
        if event.lag is not None:
            self._lag[group, partition.topic, partition.name].set(event.lag)

    def read_ahead_level(self, event: observe.ReadAheadLevel) -> None:
        reader = (event.reader,)
        self._read_ahead[reader].set(event.bytes)
        self._read_ahead_limit[reader].set(event.limit)

    def commit_finished(self, event: observe.CommitFinished) -> None:
        self._commits[event.group,].observe(event.seconds)
        if event.error is not None:
            self._commit_errors[event.group, error_name(event.error)].inc()

    def rebalanced(self, event: observe.Rebalanced) -> None:
        group, kind = event.group, event.kind
        self._rebalances[group, kind].inc()
        if kind == "assigned":
            self._rebalance_times[group,].observe(event.seconds)
            self._assigned[group,].inc(len(event.partitions))
            return
        self._assigned[group,].dec(len(event.partitions))
        for partition in event.partitions:
            self._lag.remove((group, partition.topic, partition.name))

    def heartbeat_late(self, event: observe.HeartbeatLate) -> None:
        self._late[event.group,].inc()
        self._late_seconds[event.group,].inc(event.seconds)
