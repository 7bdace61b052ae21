"""The logs of a cluster that a query reads, and the way from a request to tasks, also for logs in directories."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import anyio

from odradek.arguments import listed
from odradek.client.cluster import Cluster
from odradek.core.interfaces import Extent, Extents, SplitPoint
from odradek.errors import BrokerError, ConfigError, TransportError, Unsupported
from odradek.io.gather import gather
from odradek.ranges import planning
from odradek.ranges.offsets import NO_IDS, Offsets, PartitionPosition, TopicIds, resolve_broker, resolve_per_partition
from odradek.ranges.planning import TaskPlan
from odradek.ranges.process import connected, retry_until
from odradek.ranges.request import ClusterConnection, ReadRequest
from odradek.types import EARLIEST, AtTime, Position, TopicPartition

if TYPE_CHECKING:
    from odradek.ranges.directories import DirectoryCatalog

__all__ = [
    "BrokerCatalog",
    "LogCatalog",
    "check_exist",
    "extents_from",
    "find_logs",
    "plan",
    "plan_all",
    "start_offsets",
]

log = logging.getLogger(__name__)

T = TypeVar("T")

SHOWN_WITHIN_S = 5.0
"""Time after which a log that ends before what was read of it was cut, and one that is not there was deleted (s). A
broker before 2.2 that has just become the leader may show less for a moment than others had shown (KIP-207), and one
that has just started may not know every topic."""

ASKED_EACH_S = 0.2

SEARCHED = 4
"""Cuts searched at a time, with a few of the largest messages in memory for each."""

Times = Mapping[TopicPartition, AtTime]


# ---- from a request to tasks -----------------------------------------------------------------------------------


def plan_all(logs: LogCatalog, request: ReadRequest) -> list[TaskPlan]:
    """Return the tasks of a batch query.

    Raises ConfigError for a request that does not fit what there is, DataLoss, or that the logs do not answer.
    """
    current = logs.extents()
    start = start_offsets(logs, request, current)
    ends = resolve_per_partition(current, request.end, request.names.end)
    end = _resolve(logs, ends, current, request.names.end, ending=True)
    for partition, last in end.items():
        if (first := start[partition]) > last:  # which is an error of Spark's own source, too
            raise ConfigError(f"{partition}: starts at {first}, but ends at {last}: nothing is between them")
    late = [partition for partition, last in end.items() if last > max(start[partition], current[partition].latest)]
    for partition, log in sorted(logs.uncommitted(late).items()):
        if (last := end[partition]) <= log.latest:
            raise ConfigError(
                f"{request.names.end}: {partition} is to end at {last}, but transactions are open from "
                f"{current[partition].latest} on, the last stable offset: read_committed ends there until they have "
                f"ended. Query again then (`odradek transactions producers {partition} --open` shows them), end there, "
                "or read uncommitted records, too"
            )
    return plan(logs, request, start, end, current)


def plan(
    logs: LogCatalog,
    request: ReadRequest,
    start: Offsets,
    end: Offsets,
    current: Extents | None = None,
    *,
    start_ids: TopicIds = NO_IDS,
    end_ids: TopicIds = NO_IDS,
) -> list[TaskPlan]:
    """Return the tasks between two offsets, with the topics they are of; `current` is what `logs` has just said. Raises
    as `plan_all`."""
    extents = _extents_between(logs, request, start, end) if current is None else current
    ids = {**planning.topic_ids(extents), **end_ids}
    extents = planning.of_topics(extents, ids)
    begin, lost = planning.in_current_topics(start, start_ids, extents, ids)
    begin |= {gap.partition: min(begin[gap.partition], end.get(gap.partition, Position(0))) for gap in lost}
    ranges, gaps = planning.clip_to_logs(begin, end, extents)
    request.check_loss([*lost, *gaps])
    tasks, split_size = request.size_tasks(sum(part.size for part in ranges), logs.unit)
    boundaries = logs.boundaries(planning.propose_splits(ranges, extents, split_size))
    parts = planning.split(ranges, [(cut.partition, at) for cut, at in boundaries.items() if at is not None])
    packed = planning.pack(parts, tasks, fetchers=request.fetchers, leader=lambda at: extents[at].broker)
    return [TaskPlan(task, logs.paths({part.partition for part in task}), ids) for task in packed]


def extents_from(
    logs: LogCatalog, reached: Offsets, needed: Collection[TopicPartition] = ()
) -> dict[TopicPartition, Extent]:
    """Return the extents of logs that were read up to `reached`. While one ends before that, or one of those that are
    `needed` is not there, they are asked for again, until `SHOWN_WITHIN_S` have passed. A log does not end before that
    because a query that has read open transactions is now to read committed ones. Raises as `extents` of the logs."""
    if logs.unit.exact:  # in 0.7 a partition has one broker
        return logs.extents()

    def is_passing(extents: Extents) -> bool:
        # Brokers that know ids of topics are of 2.8 or later.
        is_shorter = any(reached.get(at, 0) > log.latest and not log.topic_id for at, log in extents.items())
        return is_shorter or any(partition not in extents for partition in needed)

    extents = _extents_within(logs, is_passing, SHOWN_WITHIN_S)
    shorter = [partition for partition, log in extents.items() if reached.get(partition, 0) > log.latest]
    for partition, log in logs.uncommitted(shorter).items():
        if reached[partition] <= log.latest:
            extents[partition] = extents[partition]._replace(latest=reached[partition])
    return extents


def _extents_between(
    logs: LogCatalog, request: ReadRequest, start: Offsets, end: Offsets
) -> dict[TopicPartition, Extent]:
    """Return the extents of logs to be read between two offsets. In 0.7 a broker that is away takes its logs with it:
    what is to be read of them is waited for until the deadline of the request."""
    needed = [partition for partition, last in end.items() if start.get(partition, last) != last]
    if not (isinstance(logs, BrokerCatalog) and logs.names_brokers):
        return extents_from(logs, end, needed)

    def lacks_some(extents: Extents) -> bool:
        return any(partition not in extents for partition in needed)

    return _extents_within(logs, lacks_some, request.deadline_s)


def _extents_within(
    logs: LogCatalog, is_passing: Callable[[Extents], bool], limit_s: float
) -> dict[TopicPartition, Extent]:
    """Return the extents of logs. Those that may pass are requested again, for at most so long (s)."""
    until = time.monotonic() + limit_s
    while True:
        extents = logs.extents()
        if not is_passing(extents) or time.monotonic() >= until:
            return extents
        time.sleep(ASKED_EACH_S)


def check_exist(request: ReadRequest, current: Collection[TopicPartition]) -> None:
    """Raise ConfigError for topics or partitions that the request names and that are not among the current ones, which
    is an error of Spark's own source, too; or log it, if lost data is no error."""
    topics, names = request.topics, request.names
    assigned = {resolve_broker(partition, current, names.partitions) for partition in topics.partitions}
    missing = sorted(set(topics.names) - {partition.topic for partition in current})
    missing += map(str, sorted(assigned - set(current)))
    if missing:
        text = f"nothing has {listed(missing, 10)} now: no live broker, and no directory"
        if request.fail_on_data_loss:
            raise ConfigError(
                f"{text} ({names.skip_loss} reads the logs that exist; {names.pattern} waits for topics to come)"
            )
        log.warning("%s", text)


def start_offsets(logs: LogCatalog, request: ReadRequest, current: Extents) -> dict[TopicPartition, Position]:
    """Return the start offsets of a query that sees these logs for the first time. Raises as `plan_all`."""
    names = request.names
    check_exist(request, current)
    wanted = resolve_per_partition(current, request.start, names.start)
    start = _resolve(logs, wanted, current, names.start)
    late = sorted(p for p, at in wanted.items() if isinstance(at, AtTime) and start[p] >= current[p].latest)
    if late and not (logs.unit.exact or request.start_at_end):
        raise ConfigError(  # as in Spark's own source
            f"no record is as late as the starting time in {listed(late, 10)}: "
            f"{names.start_at_end} starts these at their ends"
        )
    return dict(sorted(start.items()))


def _resolve(
    logs: LogCatalog,
    wanted: Mapping[TopicPartition, PartitionPosition],
    current: Extents,
    name: str,
    *,
    ending: bool = False,
) -> dict[TopicPartition, Position]:
    times = {partition: at for partition, at in wanted.items() if isinstance(at, AtTime)}
    at_times = logs.at(times, ending=ending)
    for partition in sorted(times.keys() - at_times.keys()):
        raise TransportError(f"{partition}: its broker is no longer registered")
    resolved = {}
    cuts = []
    for partition, at in wanted.items():
        earliest, latest, boundaries, *_ = current[partition]
        if isinstance(at, AtTime):  # the log may have moved on since
            at = Position(min(max(at_times[partition], earliest), latest))
        at = resolved[partition] = at if isinstance(at, int) else Position(earliest if at is EARLIEST else latest)
        known = sorted({earliest, *boundaries, latest})
        if earliest <= at <= latest and at not in known:
            cuts.append(SplitPoint(partition, at, known[bisect_right(known, at) - 1], known[bisect_left(known, at)]))
    # Messages must begin there: inside of one, what looks like messages may be something else.
    for cut, boundary in logs.boundaries(cuts).items():
        if boundary != cut.position:
            unknown = "cannot verify that a message starts at this position"
            near = unknown if boundary is None else f"the next message is at {boundary}"
            raise ConfigError(
                f"{name}: {cut.partition} has no message boundary at {cut.position}: {near}; "
                f"the segment begins at {cut.floor}"
            )
    return resolved


# ---- a cluster -----------------------------------------------------------------------------------------------


class BrokerCatalog:
    """The logs of a cluster. Each question is asked until the deadline of the request; all raise OdradekError."""

    def __init__(self, where: ClusterConnection, request: ReadRequest) -> None:
        self._where, self._request = where, request
        logs = where.connect().driver.logs
        self.unit, self.names_brokers = logs.unit, logs.names_brokers

    def extents(self) -> dict[TopicPartition, Extent]:
        """Return the extent of each log that the request selects. Logs of an unreachable broker are left out."""
        return self._ask(self._extents, "looking at the logs")

    def uncommitted(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Extent]:
        """Return the extents of these logs, with what `extents` leaves out because a transaction is open; of none if it
        leaves out nothing."""

        async def ask(cluster: Cluster) -> dict[TopicPartition, Extent]:
            return await cluster.driver.logs.extents(partitions)

        return self._ask(ask, "looking at the logs") if partitions and self._request.read_committed else {}

    def at(self, times: Times, *, ending: bool = False) -> dict[TopicPartition, Position]:
        """Return the positions of times, for logs that `extents` found (see `LogAccess.positions_at`)."""

        async def ask(cluster: Cluster) -> dict[TopicPartition, Position]:
            await _refresh(cluster)
            committed = self._request.read_committed
            return await cluster.driver.logs.positions_at(times, read_committed=committed, ending=ending)

        return self._ask(ask, "asking for positions by time") if times else {}

    def boundaries(self, cuts: Sequence[SplitPoint]) -> dict[SplitPoint, int | None]:
        """Return the first position at or after each cut that is proved to be where a message begins; None where that
        cannot be proved."""

        async def search(cluster: Cluster) -> list[int | None]:
            return await gather(partial(self._boundary, cluster, anyio.CapacityLimiter(SEARCHED)), cuts)

        return dict(zip(cuts, self._ask(search, "searching boundaries"), strict=True)) if cuts else {}

    def paths(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the directory of each; of none in a cluster."""
        return {}

    def compacted(self, topics: Collection[str]) -> set[str]:
        """Return those of these topics that brokers compact, as far as they say so: from 0.11 on, to clients that may
        read the configuration."""

        async def ask(cluster: Cluster) -> set[str]:
            try:
                configs = await cluster.admin.describe_topic_configs(topics)
            except Unsupported:
                return set()
            policies = {name: entries["cleanup.policy"].value or "" for name, entries in configs.done.items()}
            return {name for name, policy in policies.items() if "compact" in policy}

        return self._ask(ask, "reading the configuration of topics") if topics else set()

    def _ask(self, work: Callable[[Cluster], Awaitable[T]], what: str) -> T:
        deadline_s = self._request.deadline_s
        with connected(self._where, deadline_s) as (portal, cluster):
            return portal.call(retry_until, partial(work, cluster), deadline_s, what)

    async def _extents(self, cluster: Cluster) -> dict[TopicPartition, Extent]:
        topics = self._request.topics
        await _refresh(cluster)
        if topics.pattern:
            names = sorted(filter(topics.has, await cluster.topics()))
        else:
            names = sorted({*topics.names, *(partition.topic for partition in topics.partitions)})
        partitions = [partition for some in await gather(cluster.partitions, names) for partition in some]
        published = list(filter(topics.has_partition, partitions))  # by live brokers
        extents = await cluster.driver.logs.extents(published, read_committed=self._request.read_committed)
        if not self.names_brokers and (missing := sorted(set(published) - extents.keys())):
            raise BrokerError(5, "LEADER_NOT_AVAILABLE", f"{missing[0]}", retriable=True, refresh_metadata=True)
        return extents

    async def _boundary(self, cluster: Cluster, limiter: anyio.CapacityLimiter, cut: SplitPoint) -> int | None:
        search = partial(cluster.driver.logs.boundary, cut, self._request.max_entry)
        async with limiter:
            return await retry_until(search, self._request.deadline_s, f"{cut.partition}: reading at {cut.position}")


async def _refresh(cluster: Cluster) -> None:
    """Read the metadata again, where nothing reports changes."""
    if not cluster.driver.metadata.reports_changes:
        await cluster.driver.metadata.refresh()


LogCatalog: TypeAlias = "BrokerCatalog | DirectoryCatalog"


def find_logs(request: ReadRequest) -> LogCatalog:
    """Return the logs that a request names. Nothing is opened yet."""
    where = request.where
    if isinstance(where, ClusterConnection):
        return BrokerCatalog(where, request)
    from odradek.ranges.directories import DirectoryCatalog

    return DirectoryCatalog(where, request)
