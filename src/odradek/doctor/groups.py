"""Groups over some seconds, their positions, and transactions that hold them back: facts in, findings out; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from odradek.arguments import listed
from odradek.core.admin import GroupDescription, PartitionLag
from odradek.doctor.causes import Diagnosis, diagnosis, similar
from odradek.types import Position, TopicPartition

__all__ = ["GroupFacts", "StableOffset", "group_findings", "transaction_findings"]

KEEPS_UP = 0.7
"""Part of what is written that a group commits in the same time; less than 1, because commits come in intervals."""

AT_REST = ("Stable", "Empty", "Dead")
CHANGES = 2
"""Changes of members or of the epoch in one examination that are too many: one is a deployment."""

NEGLIGIBLE_LAG = 1
"""Records behind a position that prove nothing: the marker of a transaction is one, and no client commits behind it."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group as it was seen for some seconds.

    Args:
        name: Its name.
        seconds: Time between the two times at which its positions were read (s).
        seen: What its coordinator said in that time; nothing where groups cannot be described.
        first, last: Its positions and lags at the beginning and at the end.
        begins: Where the logs begin.
        names: All groups.
        held: Partitions that an open transaction holds back.
    """

    name: str
    seconds: float
    seen: Sequence[GroupDescription]
    first: Mapping[TopicPartition, PartitionLag]
    last: Mapping[TopicPartition, PartitionLag]
    begins: Mapping[TopicPartition, Position] = field(default_factory=dict)
    names: Collection[str] = ()
    held: Collection[TopicPartition] = ()


class StableOffset(NamedTuple):
    """The end of what is committed in a partition, seen twice.

    Args:
        first, last: At the beginning and at the end of the examination.
        end: The end of the log.
        owner: Whose transaction begins there, in words, as far as it is known.
    """

    first: Position
    last: Position
    end: Position
    owner: str = ""

    @property
    def is_held(self) -> bool:
        """True if a transaction held consumers back all the time."""
        return self.first == self.last < self.end


def transaction_findings(offsets: Mapping[TopicPartition, StableOffset], seconds: float) -> Iterator[Diagnosis]:
    """Return the transactions that held back consumers of committed records for all of an examination."""
    for partition, each in offsets.items():
        if each.is_held:
            evidence = (
                f"{partition}: for {seconds:g} s what is committed has ended at {each.last}; the log ends at {each.end}"
            )
            yield diagnosis("transaction-open", evidence + each.owner)


def group_findings(facts: GroupFacts) -> Iterator[Diagnosis]:
    """Return the findings about a group."""
    latest = facts.seen[-1] if facts.seen else None
    facts = _of_consumed_topics(facts, latest)
    if not facts.last and (latest is None or not latest.members):
        lacks = "no positions" if latest is None else "no members and no positions"
        yield diagnosis("group-missing", f"{facts.name} has {lacks}{similar(facts.name, facts.names)}")
        return
    yield from _position_findings(facts)
    if latest is not None and not latest.members:
        behind = [f"{p} by {lag.lag}" for p, lag in facts.last.items() if lag.lag > NEGLIGIBLE_LAG]
        if behind:
            yield diagnosis("group-has-no-members", f"{facts.name} is {latest.state}, and behind: {listed(behind)}")
    elif evidence := _rebalances(facts):
        yield diagnosis("group-keeps-rebalancing", evidence)
    else:
        yield from _idle_members(latest)
        yield from _lag_findings(facts)


def _of_consumed_topics(facts: GroupFacts, latest: GroupDescription | None) -> GroupFacts:
    """Leave out positions in topics that no member consumes any more: they are those of an earlier subscription."""
    members = () if latest is None else latest.members
    topics = {partition.topic for member in members for partition in member.partitions}
    if not topics:
        return facts
    return replace(facts, last={partition: lag for partition, lag in facts.last.items() if partition.topic in topics})


def _position_findings(facts: GroupFacts) -> Iterator[Diagnosis]:
    for partition, lag in facts.last.items():
        if lag.committed is None:
            continue
        evidence = f"{partition}: the position of {facts.name} is {lag.committed}, and the log"
        if lag.committed < (begin := facts.begins.get(partition, 0)):
            yield diagnosis("records-deleted-unread", f"{evidence} begins at {begin}")
        elif lag.committed > lag.end:
            yield diagnosis("position-beyond-log", f"{evidence} ends at {lag.end}")


def _rebalances(facts: GroupFacts) -> str:
    """Return what was seen of a group that does not come to rest; an empty text for one that does."""
    members = [frozenset(member.member_id for member in each.members) for each in facts.seen]
    changes = sum(before != after for before, after in pairwise(members))
    epochs = sum(before.epoch != after.epoch for before, after in pairwise(facts.seen))
    moving = sum(each.state not in AT_REST for each in facts.seen)
    if max(changes, epochs) < CHANGES and 2 * moving <= len(facts.seen):
        return ""
    return (
        f"{facts.name} in {facts.seconds:g} s: its members changed {changes} times,"
        f" {len(frozenset[str]().union(*members))} different ones were seen,"
        f" and it was not stable in {moving} of {len(facts.seen)} observations"
    )


def _idle_members(latest: GroupDescription | None) -> Iterator[Diagnosis]:
    if latest is None or latest.type == "share" or latest.state != "Stable":
        return
    idle = [f"{each.client_id or each.member_id} {each.host}".strip() for each in latest.members if not each.partitions]
    owned = sum(len(each.partitions) for each in latest.members)
    if idle and owned:
        evidence = f"{latest.name}: {len(latest.members)} members, {owned} partition(s); without one: {listed(idle)}"
        yield diagnosis("idle-members", evidence)


def _lag_findings(facts: GroupFacts) -> Iterator[Diagnosis]:
    """Compare what was committed with what was written in the same time."""
    stuck: list[str] = []
    slow: list[str] = []
    active = 0
    for partition in sorted(facts.first.keys() & facts.last.keys() - set(facts.held)):
        before, after = facts.first[partition], facts.last[partition]
        if before.committed is None or after.committed is None:
            continue
        written, committed = after.end - before.end, after.committed - before.committed
        active += bool(written)
        numbers = f"{partition}: lag {before.lag} -> {after.lag}, {written} written, {committed} committed"
        if committed == 0 and min(before.lag, after.lag) > NEGLIGIBLE_LAG:
            stuck.append(f"{numbers}, position {after.committed}, member {after.member or 'unknown'}")
        elif 0 < committed < KEEPS_UP * written:
            slow.append(numbers)
    if stuck:
        yield diagnosis("partition-stuck", f"in {facts.seconds:g} s: {listed(stuck)}")
    if slow:
        cause = "hot-partition" if len(slow) == 1 < active and not stuck else "consumer-too-slow"
        evidence = f"{len(slow)} of {active} partitions with new records, in {facts.seconds:g} s: {listed(slow)}"
        yield diagnosis(cause, evidence)
