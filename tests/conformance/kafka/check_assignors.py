"""Compare the assignors with one line of the corpus: Java's answer where it is determined, else its qualities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from odradek.core.kafka.assignors import (
    Assignment,
    Assignor,
    CooperativeStickyAssignor,
    GroupMember,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    Topics,
)
from odradek.types import TopicPartition

from .case import Record

ASSIGNORS: dict[str, Assignor] = {
    assignor.name: assignor
    for assignor in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor())
}


def check(record: Record) -> str | None:
    """Return what differs, or None."""
    return "; ".join(_differences_of(record)) or None


def _differences_of(line: Mapping[str, Any]) -> list[str]:
    assignor = ASSIGNORS[line["assignor"]]
    topics, members = _topics(line), [_member(assignor, entry) for entry in line["members"]]
    ours = assignor.assign(topics, members)
    theirs = {member: [TopicPartition(*p) for p in partitions] for member, partitions in line["assignment"].items()}
    if line["deterministic"]:
        return _differences(ours, theirs, in_order=assignor.name == "roundrobin")
    return _qualities(ours, theirs, topics, members, complete=not assignor.cooperative)


def _topics(line: Mapping[str, Any]) -> Topics:
    racks = line["replica_racks"] or {}
    return {
        topic: [frozenset(r for r in replicas if r) for replicas in racks[topic]]
        if racks.get(topic)
        else [frozenset[str]()] * count
        for topic, count in line["topics"].items()
    }


def _member(assignor: Assignor, entry: Mapping[str, Any]) -> GroupMember:
    owned = [TopicPartition(*p) for p in entry["owned"]]
    user_data = None if entry["user_data"] is None else bytes.fromhex(entry["user_data"])
    claimed, generation = assignor.claims(owned, entry["generation"], user_data)
    return GroupMember(
        entry["member_id"],
        frozenset(entry["topics"]),
        entry["instance_id"],
        entry["rack"],
        tuple(claimed),
        generation,
    )


def _differences(ours: Assignment, theirs: Assignment, *, in_order: bool) -> list[str]:
    arrange = list if in_order else sorted
    return [
        f"{member}: ours {ours.get(member)} theirs {theirs.get(member)}"
        for member in sorted(ours.keys() | theirs.keys())
        if member not in ours or member not in theirs or arrange(ours[member]) != arrange(theirs[member])
    ]


def _qualities(
    ours: Assignment, theirs: Assignment, topics: Topics, members: Sequence[GroupMember], *, complete: bool
) -> list[str]:
    """Check what every good assignment has, and that ours is as balanced and moves as little as Java's."""
    wants = {member.member_id: member.topics for member in members}
    differs = [f"{p} to {m}, which did not subscribe" for m in ours for p in ours[m] if p.topic not in wants[m]]
    counts = Counter(p for partitions in ours.values() for p in partitions)
    differs += [f"{p} assigned {n} times" for p, n in counts.items() if n > 1]
    if complete:
        every = {
            TopicPartition(t, i) for t in topics for i in range(len(topics[t])) if any(t in m.topics for m in members)
        }
        differs += [f"{p} not assigned" for p in sorted(every - counts.keys())]
    if not _gave_unsubscribed(theirs, wants):  # a bug of Java's, with which nothing can be compared
        if complete and _imbalance(ours) > _imbalance(theirs):
            differs.append(f"less balanced: {_imbalance(ours)} against {_imbalance(theirs)}")
        if not _double_claims(members) and _kept(ours, members) < _kept(theirs, members):
            differs.append(f"less sticky: {_kept(ours, members)} kept against {_kept(theirs, members)}")
    return differs


def _kept(assignment: Assignment, members: Sequence[GroupMember]) -> int:
    return sum(len(set(assignment[member.member_id]) & set(member.owned)) for member in members)


def _double_claims(members: Sequence[GroupMember]) -> bool:
    """Say whether two members claim the same partition: then what counts as having stayed is open."""
    claims = [p for member in members for p in member.owned]
    return len(claims) > len(set(claims))


def _imbalance(assignment: Assignment) -> int:
    sizes = [len(partitions) for partitions in assignment.values()]
    return sum(abs(a - b) for a in sizes for b in sizes)


def _gave_unsubscribed(assignment: Assignment, wants: Mapping[str, frozenset[str]]) -> bool:
    return any(p.topic not in wants[member] for member, partitions in assignment.items() for p in partitions)
