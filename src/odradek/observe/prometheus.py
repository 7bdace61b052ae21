"""Metrics for Prometheus (`odradek[prometheus]`)::

from prometheus_client import start_http_server
from odradek.observe.prometheus import PrometheusObserver

start_http_server(8000)
async with od.connect("kafka://localhost:9092", observer=PrometheusObserver()) as k: ...
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from odradek import observe
from odradek.errors import ConfigError
from odradek.observe import error_name
from odradek.observe.values import Histogram, LabelledValues

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
except ImportError as missing:
    raise ConfigError(
        "odradek.observe.prometheus needs prometheus-client: pip install 'odradek[prometheus]'"
    ) from missing

__all__ = ["PrometheusObserver"]

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histograms of times (s): from a request in one rack to a delivery that almost failed."""


Labels = tuple[str | int, ...]


class PrometheusObserver(observe.Observer):
    """Exposes what clients do as metrics that begin with `odradek_`: docs/howto/observe.md lists them.

    One observer serves any number of producers and consumers, in one event loop. No label names their cluster: give
    clusters that have topics or groups of the same name an observer each. Make one for each registry: a second one in
    the same registry is refused by it with ValueError. It is a collector of its own, so that the
    package's mode for several processes does not see it: let each process be scraped.

    Args:
        registry: Where the metrics are registered.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._families: list[Callable[[], Metric]] = []

        counter, gauge = (partial(self._values, kind) for kind in (CounterMetricFamily, GaugeMetricFamily))

        def seconds(name: str, text: str, *labels: str) -> Histogram[Labels]:
            histogram: Histogram[Labels] = Histogram(BUCKETS)
            self._families.append(partial(_histogram_family, f"odradek_{name}_seconds", text, labels, histogram))
            return histogram

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

        self._read_by: defaultdict[int, set[Labels]] = defaultdict(set)  # by reader without a group, whose lag is known

        self._commits = seconds("commit", "Time of a commit", "group")
        self._commit_errors = counter("commit_errors", "Commits that failed", "group", "error")
        self._rebalances = counter("rebalances", "Partitions assigned, revoked, lost, left", "group", "kind")
        self._rebalance_times = seconds("rebalance", "From giving up partitions to reading new ones", "group")
        self._assigned = gauge("assigned_partitions", "Partitions of members in this process", "group")
        self._late = counter("late_heartbeats", "Times that the event loop was blocked for too long", "group")
        self._late_seconds = counter("late_heartbeat_seconds", "For how long it was blocked", "group")

        self._copied = counter("mirror_records", "Records that a mirror has committed", "mirror", "topic")
        self._copied_bytes = counter("mirror_bytes", "Keys, values and headers of these", "mirror", "topic")
        self._transactions = seconds("mirror_transaction", "Time to write and commit a transaction", "mirror")
        self._mirror_lag = gauge(
            "mirror_lag", "Records that are not copied; of 0.7 bytes", "mirror", "topic", "partition"
        )
        self._mirror_lag_seconds = gauge(
            "mirror_lag_seconds", "Age of the oldest of these, at most", "mirror", "topic", "partition"
        )
        registry.register(self)

    def _values(self, family: type[Any], name: str, text: str, *labels: str) -> LabelledValues[Labels]:
        values: LabelledValues[Labels] = defaultdict(int)
        self._families.append(partial(_family, family, f"odradek_{name}", text, labels, values))
        return values

    def collect(self) -> list[Metric]:
        """Return all metrics (see prometheus_client's `Collector`)."""
        return [family() for family in self._families]

    describe = collect

    # ---- connections and requests ---------------------------------------------------------------------------

    def connection_opened(self, event: observe.ConnectionOpened) -> None:
        broker = (event.broker.id,)
        self._connections[broker] += 1
        self._connects.observe(event.seconds, broker)

    def connection_failed(self, event: observe.ConnectionFailed) -> None:
        self._connect_failures[(event.broker.id,)] += 1

    def connection_ended(self, event: observe.ConnectionEnded) -> None:
        self._connections[(event.broker.id,)] -= 1
        self._losses[(event.broker.id,)] += event.lost

    def throttled(self, event: observe.Throttled) -> None:
        self._throttled[(event.broker.id,)] += event.seconds

    def request_finished(self, event: observe.RequestFinished) -> None:
        labels = (event.broker.id, event.api)
        self._requests.observe(event.seconds, labels)
        self._sent[labels] += event.sent_bytes
        self._received[labels] += event.received_bytes
        if event.error is not None:
            self._request_errors[(*labels, error_name(event.error))] += 1

    # ---- producers ------------------------------------------------------------------------------------------

    def batch_sent(self, event: observe.BatchSent) -> None:
        topic = (event.partition.topic,)
        self._batches_sent[topic] += 1
        if event.attempt > 1:
            self._retries[topic] += 1

    def batch_finished(self, event: observe.BatchFinished) -> None:
        topic = (event.topic,)
        self._deliveries.observe(event.seconds, topic)
        if event.error is None:
            self._produced[topic] += event.records
            self._produced_bytes[topic] += event.bytes
        else:
            self._failed[event.topic, error_name(event.error)] += event.records

    def buffer_level(self, event: observe.BufferLevel) -> None:
        producer = (event.producer,)
        if not event.limit:
            for values in (self._buffer, self._buffer_limit, self._waiting):
                values.pop(producer, None)
            return
        self._buffer[producer] = event.bytes
        self._buffer_limit[producer] = event.limit
        self._waiting[producer] = event.waiting

    # ---- readers and consumers ------------------------------------------------------------------------------

    def part_fetched(self, event: observe.PartFetched) -> None:
        topic = event.partition.topic
        self._fetched[(topic,)] += event.bytes
        if event.error is not None:
            self._fetch_errors[topic, error_name(event.error)] += 1

    def batch_delivered(self, event: observe.BatchDelivered) -> None:
        group, partition = event.group or "", event.partition
        labels = (group, partition.topic)
        self._delivered_batches[labels] += 1
        self._delivered[labels] += event.records
        self._delivered_bytes[labels] += event.bytes
        if event.lag is not None:
            lag = group, partition.topic, partition.name
            self._lag[lag] = event.lag
            if event.group is None:
                self._read_by[event.reader].add(lag)

    def read_ahead_level(self, event: observe.ReadAheadLevel) -> None:
        reader = (event.reader,)
        if not event.limit:
            for values in (self._read_ahead, self._read_ahead_limit):
                values.pop(reader, None)
            for lag in self._read_by.pop(event.reader, ()):
                self._lag.pop(lag, None)
            return
        self._read_ahead[reader] = event.bytes
        self._read_ahead_limit[reader] = event.limit

    def commit_finished(self, event: observe.CommitFinished) -> None:
        self._commits.observe(event.seconds, (event.group,))
        if event.error is not None:
            self._commit_errors[event.group, error_name(event.error)] += 1

    def rebalanced(self, event: observe.Rebalanced) -> None:
        group, kind = event.group, event.kind
        self._rebalances[group, kind] += 1
        if kind == "assigned":
            self._rebalance_times.observe(event.seconds, (group,))
            self._assigned[(group,)] += len(event.partitions)
            return
        self._assigned[(group,)] -= len(event.partitions)
        for partition in event.partitions:
            self._lag.pop((group, partition.topic, partition.name), None)

    def heartbeat_late(self, event: observe.HeartbeatLate) -> None:
        self._late[(event.group,)] += 1
        self._late_seconds[(event.group,)] += event.seconds

    # ---- mirrors --------------------------------------------------------------------------------------------

    def mirror_committed(self, event: observe.MirrorCommitted) -> None:
        self._transactions.observe(event.seconds, (event.mirror,))
        for partition, records in event.records.items():
            self._copied[event.mirror, partition.topic] += records
            self._copied_bytes[event.mirror, partition.topic] += event.bytes[partition]

    def mirror_lag(self, event: observe.MirrorLag) -> None:
        labels = (event.mirror, event.partition.topic, event.partition.name)
        self._mirror_lag[labels] = event.lag
        if event.seconds is None:
            self._mirror_lag_seconds.pop(labels, None)
        else:
            self._mirror_lag_seconds[labels] = event.seconds


def _family(kind: type[Any], name: str, text: str, labels: Sequence[str], values: LabelledValues[Labels]) -> Metric:
    family: Any = kind(name, text, labels=labels)
    for which, value in dict(values).items():
        family.add_metric(list(map(str, which)), value)
    made: Metric = family
    return made


def _histogram_family(name: str, text: str, labels: Sequence[str], histogram: Histogram[Labels]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    bounds = [*map(str, BUCKETS), "+Inf"]
    for which, counts, total in histogram.items():
        family.add_metric(list(map(str, which)), list(zip(bounds, accumulate(counts), strict=True)), total)
    return family
