"""Lag and observers of a run: decided by tables, and reported by runs between clusters in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from odradek.mirror.config import ClusterConfig
from odradek.mirror.lags import MirrorLags
from odradek.mirror.run import run
from odradek.mirror.sources import ClusterSource
from odradek.mirror.task import CopiedRecords
from odradek.observe import BatchDelivered, BatchFinished, MirrorCommitted, MirrorLag, Observer
from odradek.observe.prometheus import PrometheusObserver
from odradek.testing import MemoryCluster

from .mirrors import config_of, partition, url_of
from .test_copy import filled, rows, until

pytestmark = pytest.mark.anyio

P0, P1 = partition("t"), partition("t", 1)


# ---- decided -------------------------------------------------------------------------------------------------


def moved(position: int, *, end: int | None, at: float | None = None) -> CopiedRecords:
    return CopiedRecords(P0, 1, 1, position, end, None if at is None else round(at * 1000), 0.1)


@pytest.mark.parametrize(
    ("begun", "steps", "now", "lag", "seconds"),
    [
        ((0, 10), [], 100, 10, None),  # nothing says how old the records are
        ((10, 10), [], 100, 0, 0.0),
        ((12, 10), [], 100, 0, 0.0),  # the end that is known is older
        ((0, 10), [(5, moved(4, end=None, at=2.0))], 100, 6, 98.0),  # the first copy: the records are old
        ((0, 10), [(5, moved(10, end=None, at=2.0))], 100, 0, 0.0),  # idle for long
        ((0, 10), [(5, moved(10, end=None, at=2.0)), (90, 11)], 100, 1, 98.0),  # it was at an end of time 1
        ((0, 10), [(5, moved(10, end=10, at=2.0)), (90, 11)], 100, 1, 95.0),  # it was at the end at 5
        ((0, 10), [(5, moved(10, end=10)), (90, 11)], 100, 1, 95.0),  # without timestamps
        ((0, 10), [(5, moved(10, end=10)), (80, 10), (90, 11)], 100, 1, 20.0),  # and again at 80
        ((0, 10), [(5, moved(8, end=12)), (80, moved(12, end=20))], 100, 8, None),  # the end was moving on
        ((0, 10), [(5, moved(8, end=12)), (6, 12), (80, moved(12, end=None))], 100, 0, 0.0),
        ((0, 10), [(5, moved(8, end=12)), (6, 12), (80, moved(12, end=None)), (90, 13)], 100, 1, 94.0),
        ((0, 10), [(5, moved(4, end=10, at=200.0))], 100, 6, 0.0),  # a clock that is ahead
    ],
)
def test_the_lag_of_a_partition(
    begun: tuple[int, int], steps: list[tuple[float, Any]], now: float, lag: int, seconds: float | None
) -> None:
    lags = MirrorLags("m")
    lags.begun({P0: begun}, 1)
    for at, step in steps:
        if isinstance(step, int):
            lags.ends({P0: step}, at)
        else:
            lags.copied([step], at)
    assert lags.of([P0, P1], now) == [MirrorLag("m", P0, lag, seconds)]


def test_partitions_of_which_not_both_ends_are_known_have_no_lag() -> None:
    lags = MirrorLags("m")
    lags.ends({P0: 10}, 1)
    lags.copied([CopiedRecords(P1, 1, 1, 4, None, None, 0.1)], 2)
    assert lags.of([P0, P1], 3) == [] and lags.partitions == [P1]


# ---- reported ------------------------------------------------------------------------------------------------


class Seen(Observer):
    """Keeps the events of a mirror, and counts others."""

    def __init__(self) -> None:
        self.committed: list[MirrorCommitted] = []
        self.lags: list[MirrorLag] = []
        self.read = self.written = 0

    def mirror_committed(self, event: MirrorCommitted) -> None:
        self.committed.append(event)

    def mirror_lag(self, event: MirrorLag) -> None:
        self.lags.append(event)

    def batch_delivered(self, event: BatchDelivered) -> None:
        self.read += event.records if event.partition.topic == "t" else 0

    def batch_finished(self, event: BatchFinished) -> None:
        self.written += event.records if event.topic == "t" else 0


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """A source with two partitions, and a target, which `run` connects to."""
    source, target = filled({"t": 2}), MemoryCluster()

    def connect(config: ClusterConfig, observer: Observer | None = None) -> Any:
        return (source if "source" in config.url else target).connect(observer=observer)

    monkeypatch.setattr(ClusterConfig, "connect", connect)
    monkeypatch.setattr(ClusterSource, "identity", url_of)
    return source


SMALL = {"transaction_bytes": 200, "tasks": 1}


async def test_a_run_tells_its_observer_of_transactions_lag_and_both_clusters(source: MemoryCluster) -> None:
    seen = Seen()
    result = await run(config_of("t", run=SMALL), observer=seen)
    assert seen.read == seen.written == 100
    assert {event.mirror for event in seen.committed} == {"m"}
    for number in range(2):
        of = partition("t", number)
        assert sum(event.records.get(of, 0) for event in seen.committed) == result.records[of] == 50
        lags = [event.lag for event in seen.lags if event.partition == of]
        assert lags[0] == 50 and lags == sorted(lags, reverse=True) and lags[-1] == 0
    assert sum(sum(event.bytes.values()) for event in seen.committed) == result.bytes
    assert all(event.seconds >= 0 for event in seen.committed)


async def test_nothing_new_is_no_transaction_and_has_a_lag_of_0(source: MemoryCluster) -> None:
    await run(config_of("t"))
    seen = Seen()
    await run(config_of("t"), observer=seen)
    assert seen.committed == []
    assert {(event.partition, event.lag, event.seconds) for event in seen.lags} == {(P0, 0, 0.0), (P1, 0, 0.0)}


async def test_a_run_that_goes_on_asks_where_logs_end(source: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that it does not copy are seen all the same."""
    seen, latest = Seen(), dict[Any, MirrorLag]()

    def keep(lags: Sequence[MirrorLag]) -> None:
        latest.update({each.partition: each for each in lags})

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: run(config_of("t"), follow=True, lags=keep, observer=seen))
        await until(lambda: sum(sum(event.records.values()) for event in seen.committed) == 100)
        await until(lambda: {each.lag for each in latest.values()} == {0} and len(latest) == 2)
        monkeypatch.setattr("odradek.mirror.task._Gathered.add", lambda *_: None)  # what is read is not copied
        source.append("t", rows(3), partition=1)
        await until(lambda: latest[P1].lag == 3 and (latest[P1].seconds or 0) > 0)
        group.cancel_scope.cancel()
    assert (latest[P1].seconds or 0) < 600  # not since 2023: it was at the end before
    assert latest[P0].lag == 0 and {P0, P1} == {event.partition for event in seen.lags}


async def test_metrics_for_prometheus(source: MemoryCluster) -> None:
    registry = CollectorRegistry()
    await run(config_of("t", run=SMALL), observer=PrometheusObserver(registry))
    text = generate_latest(registry).decode()
    for line in (
        'odradek_mirror_records_total{mirror="m",topic="t"} 100.0',
        'odradek_mirror_lag{mirror="m",partition="1",topic="t"} 0.0',
        'odradek_mirror_lag_seconds{mirror="m",partition="1",topic="t"} 0.0',
        'odradek_delivered_records_total{group="",topic="t"} 100.0',
        'odradek_produced_records_total{topic="t"} 100.0',
    ):
        assert line in text, line
    assert registry.get_sample_value("odradek_mirror_bytes_total", {"mirror": "m", "topic": "t"}) > 0  # type: ignore[operator]
    assert registry.get_sample_value("odradek_mirror_transaction_seconds_count", {"mirror": "m"}) >= 1  # type: ignore[operator]
