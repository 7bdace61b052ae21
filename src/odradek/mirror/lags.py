"""The lag of a run of a mirror: decided without a clock or requests, and asked for while it copies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import anyio

from odradek.core.observer_calls import ObserverCalls
from odradek.errors import OdradekError
from odradek.mirror.config import MirrorConfig
from odradek.mirror.sources import MirrorSource
from odradek.mirror.task import CopiedRecords
from odradek.observe import MirrorLag
from odradek.types import TopicPartition

__all__ = ["LagWatch", "MirrorLags"]


class MirrorLags:
    """The lag of each partition: see `observe.MirrorLag`. Times are seconds since the epoch.

    Args:
        name: The name of the mirror.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._next: dict[TopicPartition, int] = {}  # what is copied next
        self._ends: dict[TopicPartition, int] = {}
        self._ends_at: dict[TopicPartition, float] = {}  # when the ends were learned
        self._newest: dict[TopicPartition, float] = {}  # the time of the last record that was copied
        self._complete_at: dict[TopicPartition, float] = {}  # all records of before this time were copied

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that are being copied."""
        return list(self._next)

    def begun(self, partitions: Mapping[TopicPartition, tuple[int, int]], now: float) -> None:
        """Partitions are copied from here to there."""
        for partition, (position, end) in partitions.items():
            self._next[partition] = position
            self.ends({partition: end}, now)

    def copied(self, copied: Iterable[CopiedRecords], now: float) -> None:
        """Records were committed."""
        for each in copied:
            self._next[each.partition] = each.position
            if each.timestamp is not None:
                self._newest[each.partition] = each.timestamp / 1000
            if each.end is not None:
                self.ends({each.partition: each.end}, now)
            else:
                self._compare(each.partition)

    def ends(self, ends: Mapping[TopicPartition, int], now: float) -> None:
        """The logs end here now."""
        for partition, end in ends.items():
            self._ends[partition], self._ends_at[partition] = end, now
            self._compare(partition)

    def _compare(self, partition: TopicPartition) -> None:
        end, position = self._ends.get(partition), self._next.get(partition)
        if end is not None and position is not None and position >= end:
            self._complete_at[partition] = self._ends_at[partition]

    def of(self, partitions: Iterable[TopicPartition], now: float) -> list[MirrorLag]:
        """Return the lag of those partitions whose position and end are known."""
        return [self._of(p, now) for p in partitions if p in self._next and p in self._ends]

    def _of(self, partition: TopicPartition, now: float) -> MirrorLag:
        lag = max(0, self._ends[partition] - self._next[partition])
        known = [times[partition] for times in (self._complete_at, self._newest) if partition in times]
        seconds = 0.0 if not lag else max(0.0, now - max(known)) if known else None
        return MirrorLag(self._name, partition, lag, seconds)


class LagWatch:
    """Reports what a run has committed, and its lag: that of the partitions of a transaction after it, and that of all
    each `run.refresh_seconds`.

    Args:
        config: The file.
        source: Open.
        follow: The run goes on: its lag is the distance to the ends of the logs, which are asked for. Otherwise it is
            what it has still to copy.
        calls: The observer of the run; None: there is none.
        lags: Called with the same lags; None: they are only for the observer.
    """

    def __init__(
        self,
        config: MirrorConfig,
        source: MirrorSource,
        *,
        follow: bool,
        calls: ObserverCalls | None = None,
        lags: Callable[[Sequence[MirrorLag]], object] | None = None,
    ) -> None:
        self._config, self._source, self._follow = config, source, follow
        self._calls, self._callback = calls, lags
        self._lags = MirrorLags(config.name)

    def begun(self, partitions: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """A task begins, or begins again: see `TaskSettings`."""
        self._lags.begun(partitions, time.time())
        self._report_lags(partitions)

    def committed(self, copied: Sequence[CopiedRecords]) -> None:
        """A transaction was committed."""
        self._lags.copied(copied, time.time())
        if self._calls is not None and any(each.records for each in copied):
            records = {each.partition: each.records for each in copied}
            sizes = {each.partition: each.bytes for each in copied}
            self._calls.mirror_committed(self._config.name, records, sizes, copied[0].seconds)
        self._report_lags([each.partition for each in copied])

    async def run(self) -> None:
        """Report all lags again and again, until cancelled; return at once if there is nothing to report to."""
        while self._calls is not None or self._callback is not None:
            await anyio.sleep(self._config.run.refresh_seconds)
            if self._follow:
                await self._ask()
            self._report_lags(self._lags.partitions)

    async def _ask(self) -> None:
        committed = self._config.topics.read_committed
        try:
            extents = await self._source.extents(self._lags.partitions, read_committed=committed)
        except OdradekError:
            return  # the ends that are known stay: a task that cannot read says so
        self._lags.ends({partition: extent.latest for partition, extent in extents.items()}, time.time())

    def _report_lags(self, partitions: Iterable[TopicPartition]) -> None:
        lags = self._lags.of(partitions, time.time())
        if self._callback is not None:
            self._callback(lags)
        if self._calls is not None:
            for lag in lags:
                self._calls.mirror_lag(*lag)
