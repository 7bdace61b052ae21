"""Metrics of `odradek.observe.prometheus`, of an in-memory cluster."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.client.one_member import until
from tests.observe.exporters import write_while_it_reads

import odradek as od
from odradek.core.observer_calls import ObserverCalls
from odradek.observe import BatchDelivered, BatchFinished, ConnectionEnded, HeartbeatLate, PartFetched, Throttled
from odradek.observe.prometheus import PrometheusObserver
from odradek.testing import MemoryCluster

pytestmark = pytest.mark.anyio

BROKER, P0 = od.Broker(1, "b", 9092), od.TopicPartition("t", 0)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"odradek_{name}", labels)


async def test_levels_of_what_has_ended_are_gone(registry: CollectorRegistry) -> None:
    cluster = MemoryCluster({"t": 1})
    labelled = ("buffer_bytes", "buffer_limit_bytes", "buffer_waiting", "read_ahead_bytes", "read_ahead_limit_bytes")
    levels = {f"odradek_{name}" for name in (*labelled, "lag_records")}

    def samples() -> set[str]:
        return {sample.name for metric in registry.collect() for sample in metric.samples} & levels

    async with cluster.connect(observer=PrometheusObserver(registry)) as k:
        for _ in range(2):
            async with k.producer() as out, k.reader("t") as reader:
                await out.send("t", b"1")
                await anext(reader)
                assert samples() == levels
            assert samples() == set()
            async with k.consumer("t", group="g", start=od.EARLIEST) as consumer:
                await anext(consumer)
                assert samples() == {name for name in levels if "buffer" not in name}
            assert samples() == set()


async def test_what_is_produced_and_consumed_is_counted(registry: CollectorRegistry) -> None:
    cluster = MemoryCluster({"t": 1})
    options: dict[str, Any] = {"group": "g", "start": od.EARLIEST, "commit_every": None}
    async with cluster.connect(observer=PrometheusObserver(registry)) as k:
        async with k.producer() as out:
            await out.send_many("t", [b"12345"] * 10)
        async with k.consumer("t", **options) as consumer:
            assert value(registry, "assigned_partitions", group="g") == 1
            batches = consumer.batches(max_records=6)
            (await anext(batches)).done()
            assert value(registry, "lag_records", group="g", topic="t", partition="0") == 4
            (await anext(batches)).done()
            assert value(registry, "lag_records", group="g", topic="t", partition="0") == 0
            await consumer.commit()
        assert (value(registry, "connections", broker="1") or 0) >= 3  # to produce, to fetch, for positions
    assert value(registry, "connections", broker="1") == 0
    group_and_topic = {"group": "g", "topic": "t"}
    assert value(registry, "produced_records_total", topic="t") == 10
    assert (value(registry, "produced_bytes_total", topic="t") or 0) >= 50
    assert value(registry, "delivery_seconds_count", topic="t") == value(registry, "batches_sent_total", topic="t")
    assert value(registry, "delivered_records_total", **group_and_topic) == 10
    assert value(registry, "delivered_bytes_total", **group_and_topic) == 50
    assert value(registry, "delivered_batches_total", **group_and_topic) == 2
    assert (value(registry, "fetched_bytes_total", topic="t") or 0) >= 50
    assert value(registry, "commit_seconds_count", group="g") == 1
    assert value(registry, "rebalances_total", group="g", kind="assigned") == 1
    assert value(registry, "rebalances_total", group="g", kind="left") == 1
    assert value(registry, "assigned_partitions", group="g") == 0
    assert value(registry, "lag_records", group="g", topic="t", partition="0") is None
    assert (value(registry, "request_seconds_count", broker="1", api="Produce") or 0) >= 1
    assert value(registry, "request_errors_total", broker="1", api="Produce", error="ConnectionLost") is None


async def test_faults_are_counted(registry: CollectorRegistry) -> None:
    cluster = MemoryCluster({"t": 1})
    async with cluster.connect(observer=PrometheusObserver(registry)) as k, k.producer() as out:
        cluster.fail("connect", od.Unreachable("tcp", "memory-1:9092", "refused"), times=2)
        cluster.fail("produce", od.ConnectionLost("memory-1:9092", "cut", True))
        await out.send("t", b"v")
        refused = od.BrokerError(29, "TOPIC_AUTHORIZATION_FAILED")
        cluster.fail("produce", refused)
        with pytest.raises(od.Rejected):
            await out.send("t", b"v")
    assert value(registry, "connect_failures_total", broker="1") == 2
    assert value(registry, "connections_lost_total", broker="1") == 1
    assert value(registry, "request_errors_total", broker="1", api="Produce", error="ConnectionLost") == 1
    assert value(registry, "batch_retries_total", topic="t") == 3
    assert value(registry, "failed_records_total", topic="t", error="TOPIC_AUTHORIZATION_FAILED") == 1


async def test_revoked_partitions_have_no_lag_any_more(registry: CollectorRegistry) -> None:
    cluster = MemoryCluster({"t": 1})
    cluster.append("t", [b"v"] * 3)
    k = cluster.connect(observer=PrometheusObserver(registry))
    async with k, k.consumer("t", group="g", start=od.EARLIEST) as consumer:
        (await anext(consumer.batches())).done()
        assert value(registry, "lag_records", group="g", topic="t", partition="0") == 0
        cluster.revoke("g", P0)
        await until(lambda: value(registry, "assigned_partitions", group="g") == 0)
        assert value(registry, "lag_records", group="g", topic="t", partition="0") is None


def test_events_that_an_in_memory_cluster_does_not_have(registry: CollectorRegistry) -> None:
    observer = PrometheusObserver(registry)
    observer.throttled(Throttled(BROKER, "produce", 1.5))
    observer.heartbeat_late(HeartbeatLate("g", 4.0))
    observer.connection_ended(ConnectionEnded(BROKER, "produce", "closed by this client", False))
    observer.part_fetched(PartFetched(1, BROKER, P0, 0, None, od.OffsetOutOfRange(1, "OFFSET_OUT_OF_RANGE")))
    observer.batch_delivered(BatchDelivered(1, None, P0, 2, 10, None))
    observer.batch_finished(BatchFinished(1, "t", None, 2, 10, 0.1, 0, od.NotWritten([], "late")))
    assert value(registry, "throttled_seconds_total", broker="1") == 1.5
    assert value(registry, "late_heartbeats_total", group="g") == 1
    assert value(registry, "late_heartbeat_seconds_total", group="g") == 4
    assert value(registry, "connections_lost_total", broker="1") == 0
    assert value(registry, "fetch_errors_total", topic="t", error="OFFSET_OUT_OF_RANGE") == 1
    assert value(registry, "delivered_records_total", group="", topic="t") == 2
    assert value(registry, "failed_records_total", topic="t", error="NotWritten") == 2


def test_nothing_is_lost_and_nothing_fails_while_another_thread_reads(registry: CollectorRegistry) -> None:
    failures: list[object] = []
    to = ObserverCalls([PrometheusObserver(registry)], lambda *failure: failures.append(failure))

    def write(n: int) -> None:  # with new labels all the time
        to.batch_finished(1, f"t-{n // 50}", P0, 3, 10, 0.5, 1, None)

    def read() -> float:
        return sum(total(registry, "produced_records"))

    written, readings = write_while_it_reads(write, read)
    assert readings == sorted(readings) and readings[-1] <= 3 * written
    assert sum(total(registry, "produced_records")) == 3 * written
    assert sum(total(registry, "produced_bytes")) == 10 * written
    assert sum(total(registry, "delivery_seconds", "_count")) == written
    assert sum(total(registry, "delivery_seconds", "_sum")) == 0.5 * written
    assert not failures


def total(registry: CollectorRegistry, name: str, suffix: str = "_total") -> list[float]:
    """Return the values of a metric with all labels."""
    return [
        sample.value
        for metric in registry.collect()
        if metric.name == f"odradek_{name}"
        for sample in metric.samples
        if sample.name.endswith(suffix)
    ]


def test_two_observers_need_two_registries(registry: CollectorRegistry) -> None:
    PrometheusObserver(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        PrometheusObserver(registry)


@pytest.mark.parametrize(("module", "extra"), [("prometheus", "prometheus"), ("otel", "otel")])
def test_an_adapter_without_its_package_names_the_extra_and_odradek_imports_neither(module: str, extra: str) -> None:
    program = f"""
import sys
import odradek, odradek.observe
packages = ("prometheus_client", "opentelemetry")
assert not any(package in sys.modules for package in packages), "imported by odradek"
for package in packages:
    sys.modules[package] = None
try:
    import odradek.observe.{module}
except odradek.ConfigError as error:
    assert "pip install 'odradek[{extra}]'" in str(error), error
else:
    raise AssertionError("it was imported")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
