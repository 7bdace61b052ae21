"""Groups of the source continue on the target: their committed positions are translated, exactly, and written there."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import anyio

from odradek.client.cluster import Cluster
from odradek.errors import BrokerError, OdradekError, Unsupported
from odradek.io.gather import gather
from odradek.io.retry import retry
from odradek.mirror.clusters import PAUSES, Clusters, has_members, once_more, open_clusters, read_state, survey
from odradek.mirror.config import MirrorConfig
from odradek.mirror.planning import ClusterTopics, MirrorRefused, check, check_translatable
from odradek.mirror.stored import StoredState
from odradek.mirror.translation import PartitionIndex
from odradek.mirror.translator import Logs, Match, TargetPosition, Translator
from odradek.types import EARLIEST, LATEST, Position, TopicPartition, by_broker

__all__ = ["GroupPosition", "GroupsResult", "groups", "stored_in_zookeeper", "translate_groups"]

log = logging.getLogger(__name__)

Decision = Literal["write", "keep", "refuse"]
Positions = Mapping[TopicPartition, Position]

_UNKNOWN_TOPIC_OR_PARTITION = 3
"""Error code."""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """The position of a group in one partition, on both sides.

    Args:
        group: The group.
        source: The partition on the source.
        committed: What the group has committed there.
        source_lag: From there, or from the oldest record if that is later, to the end: records, in 0.7 bytes; None: no
            broker of the source serves the partition now.
        target: The partition on the target; None: it is not copied yet.
        before: What the group has committed on the target; None: nothing.
        offset: The translated position; None: there is none.
        target_lag: How many of the copied records the group has before it on the target, from `offset` if that is
            written, else from `before`; None: from nowhere.
        match: `exact`: a consumer that begins at the offset gets the very record that comes next on the source. `not
            mirrored`: the group has had records that are not copied yet, and the offset is the end of what is copied.
            `lost`: records were deleted, and the offset is what [groups] lost says. `unknown`: it cannot be said.
        decision: `write`: the offset is committed, or would be; `keep`: the group is there already, or further on;
            `refuse`: nothing is written.
        why: The reason for anything but writing an exact offset; otherwise empty.
    """

    group: str
    source: TopicPartition
    committed: Position
    source_lag: int | None
    target: TopicPartition | None
    before: Position | None
    offset: Position | None
    target_lag: int | None
    match: Match
    decision: Decision
    why: str

    @property
    def ok(self) -> bool:
        """True if the group can continue on the target here as the file says."""
        return self.decision != "refuse" and self.match != "not mirrored"


@dataclass(frozen=True, slots=True)
class GroupsResult:
    """The decisions about groups.

    Args:
        positions: All positions in topics that are copied, by group and partition.
        applied: Those whose decision is `write` were written.
        silent: Groups that the file names, and that have committed nothing in these topics.
    """

    positions: tuple[GroupPosition, ...]
    applied: bool
    silent: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if all groups can continue on the target as the file says."""
        return not self.silent and all(each.ok for each in self.positions)


async def groups(
    config: MirrorConfig,
    *,
    apply: bool = False,
    follow: float | None = None,
    decided: Callable[[GroupsResult], object] = lambda _: None,
) -> GroupsResult:
    """Translate the positions of the source's groups, and with `apply` commit them on the target.

    Args:
        config: The file.
        apply: Commit them, for groups that have no members on the target, and never behind what a group has committed
            there.
        follow: Do so again and again, with this pause (s), until cancelled.
        decided: Called with what was decided, each time.

    Raises:
        MirrorRefused: The file does not fit the clusters. Nothing was written.
        OdradekError: A cluster cannot be reached, or positions could not be read. With `follow`, errors that pass are
            logged, and it is done again.

    Cancellation: safe; some groups may be written then, and others not.
    """
    async with open_clusters(config) as clusters:

        async def once() -> GroupsResult:
            result = await translate_groups(config, clusters, apply=apply)
            decided(result)
            return result

        result = await once() if follow is None else await retry(once, PAUSES, passes=partial(_passes, config))
        while follow is not None:
            await anyio.sleep(follow)
            await retry(partial(once_more, once), PAUSES, passes=partial(_passes, config))
        return result


def _passes(config: MirrorConfig, error: OdradekError) -> bool:
    if error.retriable:
        log.warning("mirror %s: the positions of groups are read again: %s", config.name, error)
    return error.retriable


async def translate_groups(config: MirrorConfig, clusters: Clusters, *, apply: bool = False) -> GroupsResult:
    """Do what `groups` does, on clusters that are open."""
    check_translatable(config)
    source = clusters.source_cluster
    topics = await survey(config, clusters)
    state, _ = await read_state(config, clusters.target, whole=False)
    check(config, state, topics)
    partitions = _partitions(topics, state)
    names = await _names(config, source, partitions)
    read = stored_in_zookeeper if config.groups.stored_in == "zookeeper" else _committed
    committed = await read(source, names, partitions)
    translator = await _translator(config, clusters, topics)  # after that: what is copied meanwhile is found
    wanted = defaultdict(set)
    for positions in committed.values():
        for partition, at in positions.items():
            wanted[partition].add(at)
    translations = await translator.translate(wanted)
    rows: list[GroupPosition] = []
    for name, positions in committed.items():
        translated = {partition: translations[partition, at] for partition, at in positions.items()}
        rows += await _decide(translator, name, positions, translated, apply=apply)
    silent = sorted(set(config.groups.include) - {row.group for row in rows})
    return GroupsResult(tuple(rows), apply, tuple(silent))


# ---- what is asked of the clusters ---------------------------------------------------------------------------


async def _names(config: MirrorConfig, source: Cluster, partitions: Sequence[TopicPartition]) -> list[str]:
    """Return the groups that the file asks for."""
    wanted = config.groups
    listed = await _listed(source) if wanted.stored_in == "brokers" else None
    if listed is None:
        if wanted.pattern is None and not wanted.include and not await _has_positions(source, partitions):
            return []
        if wanted.pattern is not None or not wanted.include:
            raise MirrorRefused(
                "groups.include: name all groups, without a pattern: brokers before 0.10.1 do not list those that have "
                "no members, 0.7 keeps none without ZooKeeper, and none lists those that store positions in ZooKeeper"
            )
        return sorted(set(wanted.include))
    return sorted(name for name in {*listed, *wanted.include} if wanted.takes(name))


async def _listed(source: Cluster) -> list[str] | None:
    """Return all groups that can have positions; None if the source does not list them, or not all of them."""
    try:
        listed = await source.admin.list_groups()
    except Unsupported:
        return None
    if not source.driver.logs.names_brokers and (await source.admin.describe_cluster()).cluster_id is None:
        return None  # before 0.10.1
    return [group.name for group in listed if group.type != "share"]


async def _has_positions(source: Cluster, partitions: Sequence[TopicPartition]) -> bool:
    """Return False for a source that stores no positions of any group: 0.8.0, and 0.7 without ZooKeeper."""
    try:
        await source.driver.offsets("odradek").fetch(partitions)
    except Unsupported:
        return False
    return True


def _partitions(topics: ClusterTopics, state: StoredState) -> list[TopicPartition]:
    """Return the partitions of the source's topics, those that were copied before their broker went as well."""
    known = {partition for partitions in topics.source.values() for partition in partitions}
    known |= {p for name in topics.source if name in state.topics for p in state.topics[name].partitions}
    return sorted(known, key=by_broker)


async def _committed(
    cluster: Cluster, names: Sequence[str], partitions: Sequence[TopicPartition]
) -> dict[str, Positions]:
    """Return what groups have committed."""

    async def read(name: str) -> Positions:
        positions = await cluster.driver.offsets(name).fetch(partitions)
        return {partition: at for partition, at in positions.items() if at is not None}

    return dict(zip(names, await gather(read, names), strict=True))


async def stored_in_zookeeper(
    cluster: Cluster, names: Sequence[str], partitions: Sequence[TopicPartition]
) -> dict[str, Positions]:
    """Return what groups have stored in ZooKeeper, where brokers read it for version 0 of the request, up to the last
    release that has ZooKeeper."""
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        topics[partition.topic].append(partition.partition)
    wanted = [{"name": name, "partition_indexes": numbers} for name, numbers in topics.items()]

    async def read(name: str) -> Positions:
        response = await cluster.request("OffsetFetch", {"group_id": name, "topics": wanted}, version=0)
        return {
            TopicPartition(topic["name"], each["partition_index"]): Position(each["committed_offset"])
            for topic in response.fields["topics"]
            for each in topic["partitions"]
            if _is_stored(name, topic["name"], each)
        }

    return dict(zip(names, await gather(read, names), strict=True))


def _is_stored(group: str, topic: str, answer: Mapping[str, Any]) -> bool:
    """Return True for a position; False where there is none, which is an unknown partition for the broker."""
    code = answer["error_code"]
    if code not in (0, _UNKNOWN_TOPIC_OR_PARTITION):
        where = f"position of group {group!r} in {topic}-{answer['partition_index']}"
        raise BrokerError(code, f"error {code}", where)
    return answer["committed_offset"] >= 0 and not code


async def _logs(cluster: Cluster, topics: Iterable[str]) -> Logs:
    logs: dict[TopicPartition, tuple[Position, Position]] = {}
    for topic in topics:
        begins, ends = await cluster.positions(topic, EARLIEST), await cluster.positions(topic, LATEST)
        logs |= {partition: (begins[partition], ends[partition]) for partition in begins.keys() & ends.keys()}
    return logs


async def _translator(config: MirrorConfig, clusters: Clusters, topics: ClusterTopics) -> Translator:
    """Read what is mirrored, and the extents of the logs."""
    source = await _logs(clusters.source_cluster, topics.source)
    state, _ = await read_state(config, clusters.target)
    progress = {p: at for task in state.progress.values() for p, at in task.partitions.items()}
    destinations = {
        partition: TopicPartition(topic.target, to.partition)
        for name, topic in state.topics.items()
        if name in topics.source
        for partition, to in topic.partitions.items()
    }
    target = await _logs(clusters.target, {to.topic for to in destinations.values()})
    indexes = {
        partition: PartitionIndex(state.index.get(partition, {}).values(), progress.get(partition), target[to][0])
        for partition, to in destinations.items()
        if to in target
    }
    extents = await clusters.source.extents(source.keys() & progress.keys(), read_committed=False)
    changed = {partition for partition, log in extents.items() if not progress[partition].next.is_in(log)}
    return Translator(config, clusters, source, target, destinations, indexes, changed)


# ---- one group -----------------------------------------------------------------------------------------------


async def _decide(
    translator: Translator,
    group: str,
    positions: Positions,
    translated: Mapping[TopicPartition, TargetPosition],
    *,
    apply: bool,
) -> list[GroupPosition]:
    """Decide about one group, and write its positions."""
    cluster, to = translator.clusters.target, translator.destinations
    targets = [to[partition] for partition in positions if partition in to]
    before = (await _committed(cluster, [group], targets))[group]
    rows = [
        _row(translator, group, p, at, to.get(p), before.get(to[p]) if p in to else None, translated[p])
        for p, at in positions.items()
    ]
    if rows and await has_members(cluster, group):
        why = "the group has members on the target: stop them first"
        rows = [_refused(translator, row, why) if row.decision == "write" else row for row in rows]
    return await _write(translator, group, rows) if apply else rows


def _row(
    translator: Translator,
    group: str,
    partition: TopicPartition,
    committed: Position,
    target: TopicPartition | None,
    before: Position | None,
    translated: TargetPosition,
) -> GroupPosition:
    offset, match, why = translated
    decision: Decision = "write"
    if offset is None:
        decision = "refuse"
    elif before is not None and before >= offset:
        decision = "keep"
        why = why or f"the group is {'there' if before == offset else 'further on'} already"
    begin, end = translator.source.get(partition, (None, None))
    lag = None if begin is None or end is None else max(0, end - max(begin, committed))
    counted = _target_lag(translator, partition, offset if decision == "write" else before)
    return GroupPosition(group, partition, committed, lag, target, before, offset, counted, match, decision, why)


def _target_lag(translator: Translator, partition: TopicPartition, offset: int | None) -> int | None:
    index = translator.indexes.get(partition)
    return None if offset is None or index is None else index.records_from(offset)


def _refused(translator: Translator, row: GroupPosition, why: str) -> GroupPosition:
    """Return a row of which nothing is written."""
    lag = _target_lag(translator, row.source, row.before)
    return replace(row, decision="refuse", why=why, target_lag=lag)


async def _write(translator: Translator, group: str, rows: Sequence[GroupPosition]) -> list[GroupPosition]:
    """Commit on the target what was decided; return the rows, refused where that failed."""
    wanted = {row.target: row.offset for row in rows if row.decision == "write" and row.target is not None}
    if not wanted:
        return list(rows)
    failed: dict[TopicPartition, OdradekError]
    try:
        failed = dict((await translator.clusters.target.admin.reset_positions(group, wanted)).failed)
    except OdradekError as error:
        failed = dict.fromkeys(wanted, error)
    log.info("mirror %s: wrote %d positions of group %s", translator.config.name, len(wanted) - len(failed), group)
    return [_refused(translator, row, str(failed[row.target])) if row.target in failed else row for row in rows]
