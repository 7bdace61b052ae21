"""The end of a mirror: what has to be true before consumers and producers use the target alone, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import anyio

from odradek.arguments import listed
from odradek.errors import Unsupported
from odradek.mirror.clusters import Clusters, open_clusters, read_state, survey
from odradek.mirror.config import MirrorConfig
from odradek.mirror.groups import GroupPosition, translate_groups
from odradek.mirror.planning import check_translatable
from odradek.mirror.run import finish
from odradek.mirror.status import status_open
from odradek.types import TopicPartition, by_broker

__all__ = ["CutoverCheck", "CutoverFacts", "CutoverResult", "First", "checklist", "cutover"]

First = Literal["consumers", "producers"]
"""The order of the move. Consumers first: they read on the target what is still written on the source. Producers first:
consumers read what these write on the target once they have moved, too."""

QUIET_S = 5.0
"""Time in which nothing may be written to the source (s)."""


@dataclass(frozen=True, slots=True)
class CutoverFacts:
    """The state of both clusters.

    Args:
        lags: Source partition -> what is not copied of it, in `unit`; None: its broker is away.
        unit: What positions count: `records`, or `bytes` (0.7).
        written: Partitions of the source that were written to while they were watched.
        watched_s: For how long that was (s).
        members: Group -> number of its members on the source; None: the source does not know.
        positions: What was decided about the groups' positions.
        silent: Groups that the file names, and that have committed nothing.
        open: Partitions with transactions that have not ended, of which nothing is copied yet.
        new: Partitions of the source that no run has begun to copy.
    """

    lags: Mapping[TopicPartition, int | None]
    unit: str
    written: Sequence[TopicPartition]
    watched_s: float
    members: Mapping[str, int | None]
    positions: Sequence[GroupPosition]
    silent: Sequence[str]
    open: Sequence[TopicPartition] = ()
    new: Sequence[TopicPartition] = ()


@dataclass(frozen=True, slots=True)
class CutoverCheck:
    """One step of the way over.

    Args:
        step: What has to be true.
        ok: It is.
        evidence: What was seen, and if it is not true, what to do.
    """

    step: str
    ok: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class CutoverResult:
    """Result of `cutover`.

    Args:
        checks: In the order in which they come true.
        finished: The mirror has been finished.
    """

    checks: tuple[CutoverCheck, ...]
    finished: bool

    @property
    def ok(self) -> bool:
        """True if nothing is missing."""
        return all(check.ok for check in self.checks)


# ---- decisions; pure -----------------------------------------------------------------------------------------


def checklist(first: First, facts: CutoverFacts) -> tuple[CutoverCheck, ...]:
    """Return what has to be true, in the order in which it comes true."""
    producers = (_nothing_is_written(facts), _everything_is_copied(facts))
    consumers = (_groups_are_empty(facts), _positions_are_written(facts))
    return consumers + producers if first == "consumers" else producers + consumers


def _nothing_is_written(facts: CutoverFacts) -> CutoverCheck:
    step = "no producer writes to the source"
    if facts.written:
        return CutoverCheck(step, False, f"these were written to just now: {listed(facts.written)}: stop the producers")
    if facts.open:
        what = f"transactions are open in {listed(facts.open)}"
        return CutoverCheck(step, False, f"{what}: let their producers end them; odradek transactions shows them")
    return CutoverCheck(step, True, f"{len(facts.lags)} partitions have not grown for {facts.watched_s:g} s")


def _everything_is_copied(facts: CutoverFacts) -> CutoverCheck:
    step = "everything is copied"
    if not facts.lags:
        return CutoverCheck(step, False, "nothing was copied yet: odradek mirror run")
    if facts.new:
        return CutoverCheck(step, False, f"{listed(facts.new)} were not copied yet: let the mirror run")
    if away := [partition for partition, lag in facts.lags.items() if lag is None]:
        what = f"the source has no broker for {listed(away)} now"
        return CutoverCheck(step, False, f"{what}: leave out topics that were deleted (topics.exclude)")
    if behind := [partition for partition, lag in facts.lags.items() if lag]:
        total = sum(lag or 0 for lag in facts.lags.values())
        return CutoverCheck(step, False, f"{total} {facts.unit} are not, in {listed(behind)}: let the mirror run")
    return CutoverCheck(step, True, f"the lag of all {len(facts.lags)} partitions is 0")


def _groups_are_empty(facts: CutoverFacts) -> CutoverCheck:
    step = "no consumer of the groups is left on the source"
    if active := [f"{group} ({members})" for group, members in sorted(facts.members.items()) if members]:
        return CutoverCheck(step, False, f"these groups have members: {listed(active)}: stop the consumers")
    if unknown := sorted(group for group, members in facts.members.items() if members is None):
        return CutoverCheck(step, True, f"brokers do not know the members of these: {listed(unknown)}: look yourself")
    if not facts.members:
        return CutoverCheck(step, True, "brokers know no groups: look yourself")
    return CutoverCheck(step, True, f"{len(facts.members)} groups have no members")


def _positions_are_written(facts: CutoverFacts) -> CutoverCheck:
    step = "the positions of the groups are on the target"
    if facts.silent:
        return CutoverCheck(step, False, f"these groups have committed nothing on the source: {listed(facts.silent)}")
    for position in facts.positions:
        where = f"{position.group} in {position.source}"
        if position.decision == "refuse" or position.match == "not mirrored":
            return CutoverCheck(step, False, f"{where}: {position.why}")
    if waiting := [f"{p.group} in {p.source}" for p in facts.positions if p.decision == "write"]:
        return CutoverCheck(step, False, f"these are not: {listed(waiting)}: odradek mirror groups --apply")
    groups = {position.group for position in facts.positions}
    return CutoverCheck(step, True, f"{len(facts.positions)} positions of {len(groups)} groups")


_FINISHED = (CutoverCheck("the mirror is finished", True, "it copies nothing any more"),)


# ---- facts ---------------------------------------------------------------------------------------------------


async def cutover(
    config: MirrorConfig, first: First, *, apply: bool = False, quiet_s: float = QUIET_S
) -> CutoverResult:
    """Check whether consumers and producers can use the target alone, and with `apply` finish the mirror if they can.

    A finished mirror copies nothing any more, so that another one can copy back. Once it is finished there is nothing
    else to check; `apply` completes an end that was interrupted.

    Args:
        config: The file.
        first: Who moves first: the order of the checks.
        apply: Finish the mirror, if nothing is missing.
        quiet_s: How long nothing may be written to the source (s).

    Raises:
        MirrorRefused: The file does not fit the clusters.
        OdradekError: A cluster cannot be reached.

    Cancellation: safe.
    """
    check_translatable(config)
    async with open_clusters(config) as clusters:
        state, _ = await read_state(config, clusters.target, whole=False)
        finished = state.finished is not None
        checks = _FINISHED if finished else checklist(first, await _facts(config, clusters, quiet_s))
        if apply and all(check.ok for check in checks):
            await finish(config, clusters.target)  # or what is left of it, where that was interrupted
            finished = True
        return CutoverResult(checks, finished)


async def _facts(config: MirrorConfig, clusters: Clusters, quiet_s: float) -> CutoverFacts:
    taken = config.topics.takes
    copied = [p.source for p in (await status_open(config, clusters)).partitions if taken(p.source.topic)]
    before = await clusters.source.extents(copied, read_committed=False)
    await anyio.sleep(quiet_s)
    now = await status_open(config, clusters)
    committed = await clusters.source.extents(copied, read_committed=config.topics.read_committed)
    ends = await clusters.source.extents(copied, read_committed=False)  # after that: what was written between shows
    chosen = await survey(config, clusters)
    groups = await translate_groups(config, clusters)
    return CutoverFacts(
        {each.source: each.lag for each in now.partitions if taken(each.source.topic)},
        now.unit,
        [partition for partition, log in ends.items() if log.latest != before.get(partition, log).latest],
        quiet_s,
        await _members(config, clusters, {position.group for position in groups.positions}),
        groups.positions,
        groups.silent,
        [partition for partition, log in ends.items() if log.latest > committed.get(partition, log).latest],
        sorted({each for topic in chosen.source.values() for each in topic} - set(copied), key=by_broker),
    )


async def _members(config: MirrorConfig, clusters: Clusters, groups: set[str]) -> Mapping[str, int | None]:
    """Return how many members groups have on the source: those with positions, and others that read what is copied.
    Scala consumers of 0.8 and later join through ZooKeeper."""
    if config.groups.stored_in == "zookeeper":
        return dict.fromkeys(groups)
    admin = clusters.source_cluster.admin
    try:
        taken = {group.name for group in await admin.list_groups() if config.groups.takes(group.name)}
        described = await admin.describe_groups(sorted(groups | taken))
    except Unsupported:
        return dict.fromkeys(groups)
    for error in [error for name, error in described.failed.items() if name in groups]:
        raise error
    return {
        name: len(group.members)
        for name, group in described.done.items()
        if name in groups or any(config.topics.takes(p.topic) for each in group.members for p in each.partitions)
    }
