"""The logs that a query reads, in a cluster or in directories, and the way from its options to tasks that read them."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from glob import glob
from pathlib import Path
from typing import NamedTuple, TypeVar

import anyio
import anyio.to_thread

from odradek import segments
from odradek.client.cluster import Cluster
from odradek.core.interfaces import BrokerClient
from odradek.errors import BrokerError, ConfigError, RemoteProtocolError, TransportError, Unsupported
from odradek.io.gather import gather
from odradek.io.kafka.broker_client import KafkaBrokerClient
from odradek.io.kafka07.raw_fetch import read_raw
from odradek.segments import SegmentedLog, SegmentFile
from odradek.spark import planning
from odradek.spark.cluster import ClusterOptions, connected, retry_until
from odradek.spark.options import Directory, SourceOptions
from odradek.spark.planning import Extent, Extents, Range, SplitPoint
from odradek.spark.values import NO_IDS, Offsets, PartitionPosition, TopicIds, resolve_broker, resolve_per_partition
from odradek.types import EARLIEST, LATEST, AtTime, MiB, Position, TopicPartition
from odradek.wire.kafka07.boundary import BoundarySearch, Proved
from odradek.wire.kafka07.entries import ParseStop, check_log

__all__ = [
    "BrokerCatalog",
    "DirectoryCatalog",
    "LogCatalog",
    "TaskPlan",
    "extent_of",
    "find_logs",
    "plan",
    "plan_all",
    "start_offsets",
]

log = logging.getLogger("odradek.spark")

T = TypeVar("T")

MANY = 1 << 16
"""A number larger than that of a log's segments; the oldest ones beyond it are free cuts lost."""

SEARCHED = 4
"""Cuts searched at a time, with a few of the largest messages in memory for each."""

TAIL = 4
"""Times the largest message: so far from its end the last segment is followed to where its last message ends."""

CHUNK = 4 * MiB
"""Decoded at a time."""

Times = Mapping[TopicPartition, AtTime]


# ---- from options to tasks -----------------------------------------------------------------------------------


class TaskPlan(NamedTuple):
    """The work of one task: its ranges, in reading order, their log directories (none in a cluster), and the ids of the
    topics that they are ranges of."""

    ranges: tuple[Range, ...]
    paths: Mapping[TopicPartition, str]
    topic_ids: TopicIds = NO_IDS


def plan_all(logs: LogCatalog, options: SourceOptions) -> list[TaskPlan]:
    """Return the tasks of a batch query.

    Raises ConfigError for options that do not fit what there is, DataLoss, or that there is no answer from the logs.
    """
    current = logs.extents()
    start = start_offsets(logs, options, current)
    ends = resolve_per_partition(current, options.end, "endingOffsets")
    end = _resolve(logs, ends, current, "endingOffsets")
    for partition, last in end.items():
        if (first := start[partition]) > last:  # which is an error of Spark's own source, too
            raise ConfigError(f"{partition}: starts at {first}, but ends at {last}: nothing is between them")
    return plan(logs, options, start, end, current)


def plan(
    logs: LogCatalog,
    options: SourceOptions,
    start: Offsets,
    end: Offsets,
    current: Extents | None = None,
    *,
    start_ids: TopicIds = NO_IDS,
    end_ids: TopicIds = NO_IDS,
) -> list[TaskPlan]:
    """Return the tasks between two offsets, with the topics they are of; `current` is what `logs` has just said. Raises
    as `plan_all`."""
    extents = logs.extents() if current is None else current
    ids = {**planning.topic_ids(extents), **end_ids}
    extents = planning.of_topics(extents, ids)
    begin, lost = planning.in_current_topics(start, start_ids, extents, ids)
    begin |= {gap.partition: min(begin[gap.partition], end.get(gap.partition, Position(0))) for gap in lost}
    ranges, gaps = planning.clip_to_logs(begin, end, extents)
    options.check_loss([*lost, *gaps])
    tasks, split_size = options.size_tasks(sum(part.size for part in ranges))
    boundaries = logs.boundaries(planning.propose_splits(ranges, extents, split_size))
    parts = planning.split(ranges, [(cut.partition, at) for cut, at in boundaries.items() if at is not None])
    packed = planning.pack(parts, tasks, fetchers=options.fetchers, leader=lambda at: extents[at].broker)
    return [TaskPlan(task, logs.paths({part.partition for part in task}), ids) for task in packed]


def start_offsets(logs: LogCatalog, options: SourceOptions, current: Extents) -> dict[TopicPartition, Position]:
    """Return the start offsets of a query that sees these logs for the first time. Raises as `plan_all`."""
    topics = options.topics
    assigned = {resolve_broker(partition, current.keys(), "option assign") for partition in topics.partitions}
    missing = sorted(set(topics.names) - {partition.topic for partition in current})
    missing += map(str, sorted(assigned - current.keys()))
    if missing:  # which is an error of Spark's own source, too
        text = f"nothing has {', '.join(missing[:10])} now: no live broker, and no directory"
        if options.fail_on_data_loss:
            raise ConfigError(
                f"{text} (failOnDataLoss=false reads the logs that exist; subscribePattern waits for topics to come)"
            )
        log.warning("%s", text)
    wanted = resolve_per_partition(current, options.start, "startingOffsets")
    start = _resolve(logs, wanted, current, "startingOffsets")
    late = sorted(p for p, at in wanted.items() if isinstance(at, AtTime) and start[p] >= current[p].latest)
    if late and not (options.unit.exact or options.start_at_end):
        raise ConfigError(  # as in Spark's own source
            f"no record is as late as the starting time in {', '.join(map(str, late[:10]))}: "
            "startingOffsetsByTimestampStrategy=latest starts these at their ends"
        )
    return dict(sorted(start.items()))


def _resolve(
    logs: LogCatalog, wanted: Mapping[TopicPartition, PartitionPosition], current: Extents, option: str
) -> dict[TopicPartition, Position]:
    times = {partition: at for partition, at in wanted.items() if isinstance(at, AtTime)}
    at_times = logs.at(times, ending=option.startswith("ending"))
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
                f"option {option}: {cut.partition} has no message boundary at {cut.position}: {near}; "
                f"the segment begins at {cut.floor}"
            )
    return resolved


# ---- a cluster -----------------------------------------------------------------------------------------------


class BrokerCatalog:
    """The logs of a cluster. Each question is asked until the options' deadline; all raise OdradekError."""

    def __init__(self, where: ClusterOptions, options: SourceOptions) -> None:
        self._where, self._options = where, options

    def extents(self) -> dict[TopicPartition, Extent]:
        """Return the extent of each log that the options select. Logs of an unreachable broker are left out."""
        return self._ask(self._extents, "looking at the logs")

    def at(self, times: Times, *, ending: bool = False) -> dict[TopicPartition, Position]:
        """Return the positions of times, for logs that `extents` found.

        From 0.10.1 on it is that of the first record of the time or a later one. Before, only the time is known when
        each segment was last written to: it is the start of the newest segment not written to since, or with `ending`
        the start of the segment after that, since all of it is older.
        """

        async def resolve(api: BrokerClient, partition: TopicPartition) -> Position:
            at, committed = times[partition], self._options.read_committed
            start = await api.resolve_position(partition, at, read_committed=committed)
            if not ending or (isinstance(api, KafkaBrokerClient) and api.versions.has_time_index):
                return start
            if not await api.positions(partition, at):  # the segment that starts there was written to after the time
                return start
            starts = await api.positions(partition, LATEST, MANY)
            return min((known for known in starts if known > start), default=start)

        async def ask(cluster: Cluster) -> dict[TopicPartition, Position]:
            await self._refresh(cluster)
            return await _of_each(cluster, times, resolve)

        return self._ask(ask, "asking for positions by time") if times else {}

    def boundaries(self, cuts: Sequence[SplitPoint]) -> dict[SplitPoint, int | None]:
        """Return the first position at or after each cut that is proved to be where a message begins; None where that
        cannot be proved."""
        if not (self._options.unit.exact and cuts):
            return {cut: cut.position for cut in cuts}

        def search(cluster: Cluster) -> Awaitable[list[int | None]]:
            return gather(partial(self._boundary, cluster, anyio.CapacityLimiter(SEARCHED)), cuts)

        return dict(zip(cuts, self._ask(search, "searching boundaries"), strict=True))

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
        deadline_s = self._options.deadline_s
        with connected(self._where, deadline_s) as (portal, cluster):
            return portal.call(retry_until, partial(work, cluster), deadline_s, what)

    async def _refresh(self, cluster: Cluster) -> None:
        """Read the metadata again, where nothing reports changes."""
        if not self._where.has_watches:
            await cluster.driver.metadata.refresh()

    async def _extents(self, cluster: Cluster) -> dict[TopicPartition, Extent]:
        committed = self._options.read_committed
        topics = self._options.topics
        await self._refresh(cluster)
        if topics.pattern:
            names = sorted(filter(topics.has, await cluster.topics()))
        else:
            names = sorted({*topics.names, *(partition.topic for partition in topics.partitions)})
        partitions = [partition for some in await gather(cluster.partitions, names) for partition in some]
        published = list(filter(topics.has_partition, partitions))  # by live brokers
        topic_id = cluster.driver.metadata.table.topic_id  # from before the requests

        async def extent(api: BrokerClient, partition: TopicPartition) -> Extent:
            known = topic_id(partition.topic) or b""
            return (await extent_of(api, partition, read_committed=committed))._replace(topic_id=known.hex())

        extents = await _of_each(cluster, published, extent)
        if not self._options.unit.exact and (missing := sorted(set(published) - extents.keys())):
            raise BrokerError(5, "LEADER_NOT_AVAILABLE", f"{missing[0]}", retriable=True, refresh_metadata=True)
        return extents

    async def _boundary(self, cluster: Cluster, limiter: anyio.CapacityLimiter, cut: SplitPoint) -> int | None:
        search, driver = _search(cut, cut.ceiling, self._options), cluster.driver

        async def read() -> bytes:
            assert search.wanted is not None
            broker = driver.metadata.table.leader(cut.partition)
            if broker is None:
                raise BrokerError(5, "LEADER_NOT_AVAILABLE", f"{cut.partition}")
            return await read_raw(driver.broker(broker, purpose="fetch"), cut.partition, *search.wanted)

        async with limiter:
            while search.wanted is not None:
                what = f"{cut.partition}: reading at {search.wanted[0]}"
                try:
                    data = await retry_until(read, self._options.deadline_s, what)
                except BrokerError as error:
                    log.warning("%s: no boundary at %d: %s", cut.partition, cut.position, error)
                    return None
                await anyio.to_thread.run_sync(search.feed, data)  # up to 0.2 s
        return _boundary_of(search, cut)


def _search(cut: SplitPoint, ceiling: int, options: SourceOptions, *, torn: bool = False) -> BoundarySearch:
    return BoundarySearch(cut.position, floor=cut.floor, ceiling=ceiling, most=options.max_entry, torn=torn)


def _boundary_of(search: BoundarySearch, cut: SplitPoint) -> int | None:
    if isinstance(search.result, Proved):
        return search.result.position
    reason = search.result.reason if search.result else ""
    log.info("%s: no boundary at %d: %s", cut.partition, cut.position, reason)
    return None


async def extent_of(api: BrokerClient, partition: TopicPartition, *, read_committed: bool = False) -> Extent:
    """Return the extent of a log, as the broker that serves it says; with `read_committed` its end is that of committed
    transactions. In 0.7, the positions up to the latest are the starts of all segments."""
    starts = await api.positions(partition, LATEST, MANY)
    if not starts:
        raise RemoteProtocolError(f"{partition}: the broker returned no position")
    earliest = starts[-1] if len(starts) < MANY else await api.resolve_position(partition, EARLIEST)
    latest = starts[0]
    if read_committed:
        latest = max(earliest, await api.resolve_position(partition, LATEST, read_committed=True))
    return Extent(earliest, latest, tuple(sorted({earliest, *starts})), api.broker.id)


async def _of_each(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    ask: Callable[[BrokerClient, TopicPartition], Awaitable[T]],
) -> dict[TopicPartition, T]:
    """The answers about those partitions whose broker is there."""
    driver = cluster.driver
    table = driver.metadata.table
    served = {partition: broker for partition in partitions if (broker := table.leader(partition)) is not None}

    async def one(partition: TopicPartition) -> T:
        return await ask(driver.broker(served[partition], purpose="control"), partition)

    return dict(zip(served, await gather(one, served), strict=True))


# ---- log directories -----------------------------------------------------------------------------------------


class DirectoryCatalog:
    """The logs in directories, like `BrokerCatalog`. Every `extents` lists the files; raises OSError, too."""

    def compacted(self, topics: Collection[str]) -> set[str]:
        """Return none: 0.7 does not compact."""
        return set()

    def __init__(self, directories: Sequence[Directory], options: SourceOptions) -> None:
        self._directories, self._options = directories, options
        self._logs: dict[TopicPartition, SegmentedLog] = {}

    def extents(self) -> dict[TopicPartition, Extent]:
        self._logs = {}
        for directory in self._directories:
            for path in _paths(directory, self._options.names.path):
                for paths in segments.logs(path):
                    self._add(paths, directory.broker)
        return {
            partition: Extent(paths.start, self._end(paths), tuple(s.start for s in paths.segments), partition.broker)
            for partition, paths in sorted(self._logs.items())
        }

    def at(self, times: Times, *, ending: bool = False) -> dict[TopicPartition, Position]:
        """Answer like a broker of 0.7; a position may be behind the end of the log, in what is torn there."""
        resolved = {}
        for partition, at in times.items():
            paths = self._logs[partition]
            written = [segment for segment in paths.segments if segment.path.stat().st_mtime <= at.seconds]
            newest = written[-1] if written else paths.segments[0]
            resolved[partition] = newest.end if ending and written else newest.start
        return resolved

    def boundaries(self, cuts: Sequence[SplitPoint]) -> dict[SplitPoint, int | None]:
        moved = {}
        for cut in cuts:
            segment = next(segment for segment in self._logs[cut.partition].segments if segment.end > cut.floor)
            moved[cut] = self._run(_search(cut, min(cut.ceiling, segment.end), self._options), cut, segment)
        return moved

    def paths(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the directories in which executors find the partitions."""
        return {partition: str(self._logs[partition].segments[0].path.parent.absolute()) for partition in partitions}

    def _add(self, paths: SegmentedLog, broker: int) -> None:
        partition = paths.partition._replace(broker=broker)
        if not self._options.topics.has_partition(partition):
            return
        if partition in self._logs:
            first, second = (log.segments[0].path.parent for log in (self._logs[partition], paths))
            if first.resolve() == second.resolve():
                return
            what = f"{partition} is both {first} and {second}: name their brokers, as in 0@..., 1@..."
            raise ConfigError(f"{self._options.names.path}: {what}")
        self._logs[partition] = _connected(paths, self._options)

    def _run(self, search: BoundarySearch, cut: SplitPoint, segment: SegmentFile) -> int | None:
        with segment.path.open("rb", buffering=0) as file:
            while search.wanted is not None:
                start, stop = search.wanted
                file.seek(start - segment.start)
                search.feed(file.read(stop - start))
        return _boundary_of(search, cut)

    def _end(self, paths: SegmentedLog) -> Position:
        """Where its last whole message ends: a file that is or was being written to ends anywhere.

        Only the end is looked at, if a boundary can be proved in front of it. Where a length makes no sense, the end is
        that of the file, so that the damage is met and not taken for an end.
        """
        segment, most = paths.segments[-1], self._options.max_entry
        cut = SplitPoint(paths.partition, max(segment.start, segment.end - TAIL * most), segment.start, segment.end)
        begin = self._run(_search(cut, segment.end, self._options, torn=True), cut, segment)
        at = segment.start if begin is None else begin
        with segment.path.open("rb", buffering=0) as file:
            file.seek(at - segment.start)
            tail = b""
            while chunk := file.read(min(CHUNK, segment.end - at - len(tail))):
                data = tail + chunk
                checked = check_log(data, at, most)
                tail, at = data[checked.position - at :], checked.position
                if checked.reason not in (ParseStop.END, ParseStop.CUT):
                    return segment.end
        return Position(at)


def _paths(directory: Directory, name: str) -> list[str]:
    path = directory.path
    paths = [path] if Path(path).exists() else sorted(glob(path))  # noqa: PTH207 - Path.glob takes no absolute pattern
    if not paths:
        raise ConfigError(f"{name}: {path!r}: no such file or directory")
    return paths


def _connected(paths: SegmentedLog, options: SourceOptions) -> SegmentedLog:
    """The log behind its last hole: there is nothing to read in a hole, and what is there cannot be reached over it."""
    for number in range(len(paths.segments) - 1, 0, -1):
        before, after = paths.segments[number - 1 : number + 1]
        if before.end != after.start:
            text = f"{before.path} ends at {before.end}, but the next segment starts at {after.start}"
            if options.fail_on_data_loss:
                raise ConfigError(f"{text} ({options.names.skip_loss} reads the rest)")
            log.warning("%s: reading the rest", text)
            return SegmentedLog(paths.partition, paths.segments[number:])
    return paths


LogCatalog = BrokerCatalog | DirectoryCatalog


def find_logs(options: SourceOptions) -> LogCatalog:
    """Return the logs that these options name. Nothing is opened yet."""
    where = options.where
    return BrokerCatalog(where, options) if isinstance(where, ClusterOptions) else DirectoryCatalog(where, options)
