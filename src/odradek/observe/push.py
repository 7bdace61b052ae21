"""Metrics of a client for the brokers that ask for them (KIP-714, Kafka 3.7 and later; `odradek[push]`)::

    async with od.connect("kafka://localhost:9092", push_metrics=True) as k: ...

The names are those of Java's clients, which KIP-714 derives them from. `docs/howto/observe.md` lists them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from odradek import observe
from odradek._version import __version__
from odradek.errors import ConfigError
from odradek.observe.values import LabelledValues

try:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
    from opentelemetry.proto.metrics.v1 import metrics_pb2 as proto
except ImportError as missing:
    raise ConfigError("push_metrics needs opentelemetry-proto: pip install 'odradek[push]'") from missing

__all__ = ["ClientMetrics"]

PREFIX = "org.apache.kafka."

SHARED = ("admin", "bootstrap", "control", "metrics")
"""Purposes of connections that are neither a producer's nor a consumer's."""

ONLY_HIGHEST = ("consumer.fetch.manager.records.lag",)
"""Samples whose average over partitions would say nothing."""

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]
"""A name without the prefix, and attributes."""


class ClientMetrics(observe.Observer):
    """Counts what the producers and consumers of one cluster do, until it is collected
    (`core.kafka.metrics_push.MetricsSource`).

    Averages and maxima are those since the last collection. Times are in milliseconds.

    Args:
        start_ns: When it begins (ns since the epoch).
        rack: Where the client runs, which metrics name.
    """

    def __init__(self, start_ns: int, rack: str | None = None) -> None:
        self._start_ns, self._rack = start_ns, rack
        self._totals: LabelledValues[Key] = defaultdict(int)
        self._levels: LabelledValues[Key] = defaultdict(int)
        self._samples: dict[Key, list[float]] = {}  # number, sum, maximum
        self._accepted: dict[str, tuple[int, dict[Labels, float]]] = {}  # name -> when, and the totals then
        self._collected: dict[str, tuple[int, dict[Labels, float]]] = {}
        self._rated: tuple[int, Mapping[str, Mapping[Labels, float]]] = start_ns, {}  # at the last collection

    def _sample(self, value: float, name: str, labels: Labels = ()) -> None:
        sample = self._samples.setdefault((name, labels), [0, 0.0, 0.0])
        sample[0] += 1
        sample[1] += value
        sample[2] = max(sample[2], value)

    # ---- what happens ---------------------------------------------------------------------------------------

    def connection_opened(self, event: observe.ConnectionOpened) -> None:
        if role := _role(event.purpose):
            self._totals[f"{role}.connection.creation.total", ()] += 1

    def throttled(self, event: observe.Throttled) -> None:
        names = {"producer": "producer.produce.throttle.time", "consumer": "consumer.fetch.manager.fetch.throttle.time"}
        if role := _role(event.purpose):
            self._sample(event.seconds * 1000, names[role])

    def request_finished(self, event: observe.RequestFinished) -> None:
        role = _role(event.purpose)
        if not role or event.error is not None:
            return
        self._sample(event.seconds * 1000, f"{role}.node.request.latency", (("node_id", str(event.broker.id)),))
        if event.api in ("Fetch", "ShareFetch"):
            self._sample(event.seconds * 1000, "consumer.fetch.manager.fetch.latency")

    def batch_sent(self, event: observe.BatchSent) -> None:
        self._totals["producer.record.send.total", ()] += event.records
        self._sample(event.seconds * 1000, "producer.record.queue.time")
        if event.attempt > 1:
            self._totals["producer.record.retry.total", ()] += event.records

    def batch_finished(self, event: observe.BatchFinished) -> None:
        if event.error is not None:
            self._totals["producer.record.error.total", ()] += event.records

    def batch_delivered(self, event: observe.BatchDelivered) -> None:
        self._totals["consumer.fetch.manager.records.consumed.total", ()] += event.records
        self._totals["consumer.fetch.manager.bytes.consumed.total", ()] += event.bytes
        if event.lag is not None:
            self._sample(event.lag, "consumer.fetch.manager.records.lag")

    def commit_finished(self, event: observe.CommitFinished) -> None:
        if event.error is None:
            self._sample(event.seconds * 1000, "consumer.coordinator.commit.latency", _group(event.group))

    def rebalanced(self, event: observe.Rebalanced) -> None:
        group, gained = _group(event.group), len(event.partitions)
        if event.kind == "assigned":
            self._sample(event.seconds * 1000, "consumer.coordinator.rebalance.latency", group)
            self._totals["consumer.coordinator.rebalance.latency.total", group] += event.seconds * 1000
        else:
            gained = -gained
        self._levels["consumer.coordinator.assigned.partitions", group] += gained

    # ---- collection -----------------------------------------------------------------------------------------

    def collect(self, prefixes: Sequence[str], *, delta: bool, now_ns: int, max_bytes: int) -> bytes:
        """Return metrics as OpenTelemetry's MetricsData (see `MetricsSource`): as many as fit, in the order of their
        names."""
        data, self._collected = proto.MetricsData(), {}
        resource = data.resource_metrics.add()
        if self._rack:
            resource.resource.attributes.append(_attribute("client_rack", self._rack))
        scope = resource.scope_metrics.add(scope=InstrumentationScope(name="odradek", version=__version__))
        totals = _by_name(self._totals.items())
        metrics = [*self._sums(totals, delta, now_ns), *self._gauges(totals, now_ns)]
        for metric in sorted(metrics, key=lambda metric: metric.name):
            if "*" in prefixes or metric.name.startswith(tuple(prefixes)):
                scope.metrics.append(metric)
                if data.ByteSize() > max_bytes:
                    del scope.metrics[-1]
                elif (name := metric.name.removeprefix(PREFIX)) in totals:
                    self._collected[name] = now_ns, totals[name]
        return data.SerializeToString() if scope.metrics else b""

    def accepted(self) -> None:
        """The next deltas begin at the last collection (see `MetricsSource`)."""
        self._accepted |= self._collected

    def _sums(self, totals: Mapping[str, Mapping[Labels, float]], delta: bool, now_ns: int) -> Iterator[proto.Metric]:
        temporality = proto.AGGREGATION_TEMPORALITY_DELTA if delta else proto.AGGREGATION_TEMPORALITY_CUMULATIVE
        for name, values in totals.items():
            since_ns, before = self._accepted.get(name, (self._start_ns, {})) if delta else (self._start_ns, {})
            grown = {labels: value - before.get(labels, 0) for labels, value in values.items()}
            points = _points({labels: value for labels, value in grown.items() if value}, now_ns, since_ns)
            if points:
                total = proto.Sum(data_points=points, aggregation_temporality=temporality, is_monotonic=True)
                yield proto.Metric(name=PREFIX + name, sum=total)

    def _gauges(self, totals: Mapping[str, Mapping[Labels, float]], now_ns: int) -> Iterator[proto.Metric]:
        levels = [*self._levels.items(), *self._rates(totals, now_ns)]
        samples, self._samples = self._samples, {}
        for (name, labels), (number, total, highest) in samples.items():
            levels.append(((f"{name}.max", labels), highest))
            if name not in ONLY_HIGHEST:
                levels.append(((f"{name}.avg", labels), total / number))
        for name, values in _by_name(levels).items():
            yield proto.Metric(name=PREFIX + name, gauge=proto.Gauge(data_points=_points(values, now_ns)))

    def _rates(self, totals: Mapping[str, Mapping[Labels, float]], now_ns: int) -> Iterator[tuple[Key, float]]:
        """Yield connections made per second since the last collection."""
        since_ns, before = self._rated
        self._rated = now_ns, totals
        for role in ("producer", "consumer"):
            name = f"{role}.connection.creation.total"
            if name in totals and now_ns > since_ns:
                made = totals[name][()] - before.get(name, {}).get((), 0)
                yield (f"{role}.connection.creation.rate", ()), made / (now_ns - since_ns) * 1e9


def _role(purpose: str) -> str:
    """Return whose connection it is; empty: that of all."""
    if purpose in SHARED:
        return ""
    return "producer" if purpose.startswith(("produce", "transaction")) else "consumer"


def _group(name: str) -> Labels:
    return (("group_id", name),)


def _by_name(values: Iterable[tuple[Key, float]]) -> Mapping[str, dict[Labels, float]]:
    by_name: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
    for (name, labels), value in values:
        by_name[name][labels] = value
    return by_name


def _points(values: Mapping[Labels, float], now_ns: int, since_ns: int = 0) -> list[proto.NumberDataPoint]:
    return [
        proto.NumberDataPoint(
            attributes=[_attribute(*label) for label in labels],
            start_time_unix_nano=since_ns,
            time_unix_nano=now_ns,
            as_double=value,
        )
        for labels, value in values.items()
    ]


def _attribute(name: str, value: str) -> KeyValue:
    return KeyValue(key=name, value=AnyValue(string_value=value))
