"""A consumer group's rebalance as pure plans, and the states of a member as a table (specification.md 6.1, 6.2).

A member reads the group (`GroupSnapshot`), computes its own share, releases what is no longer its own, claims what is
new, and only then reads the positions of that. There is no leader: all members compute the same division, and the
owners nodes prevent two members with different views from consuming the same partition. Differences from the Scala
consumer, which other members notice only by being interrupted less often:

- A partition that is owned and stays owned keeps its owners node and is delivered without a pause; Scala releases and
  claims everything again. This cannot deadlock: a member releases what is not its own before it claims anything, and
  whether or not its claims succeed.
- Positions are read after claiming, so the previous owner's last commit is never missed (the race in 6.2).
- A wait for another owner ends as soon as its nodes are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from odradek.core.kafka07.range_assignor import assign_range
from odradek.core.kafka07.znodes import Registration, thread_id
from odradek.core.states import Machine
from odradek.types import TopicPartition

__all__ = [
    "MEMBER",
    "GroupSnapshot",
    "MemberEvent",
    "MemberState",
    "RebalancePlan",
    "assigned_partitions",
    "describe_owners",
    "event_after_attempt",
    "plan",
]


# ---- the plan -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """The state of the group that a member reads before it rebalances.

    Args:
        members: Consumer id -> registration, of all members.
        topics: Topic -> broker -> number of partitions, at least for the topics this member consumes. As registered,
            whether the broker is live or not.
    """

    members: Mapping[str, Registration]
    topics: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """The steps of a rebalance, in this order: release, then claim.

    Args:
        release: Owners nodes to delete.
        claim: Owners nodes to create: partition -> thread id.
        target: Everything owned when all claims succeed: partition -> stream number.
    """

    release: frozenset[TopicPartition]
    claim: Mapping[TopicPartition, str]
    target: Mapping[TopicPartition, int]


def assigned_partitions(consumer: str, group: GroupSnapshot) -> dict[TopicPartition, int]:
    """Return the partitions of this member, each with the number of its stream. Empty for a non-member."""
    assigned: dict[TopicPartition, int] = {}
    registration = group.members.get(consumer)
    if registration is None:
        return assigned
    for topic in sorted(registration.wanted(group.topics.keys())):
        counts = group.topics.get(topic, {})
        partitions = [TopicPartition(topic, n, broker) for broker, count in counts.items() for n in range(count)]
        threads = [thread_id(c, k) for c, r in group.members.items() for k in range(r.streams(topic))]
        ranges = assign_range(partitions, threads)
        for stream in range(registration.streams(topic)):
            assigned.update(dict.fromkeys(ranges[thread_id(consumer, stream)], stream))
    return assigned


def plan(consumer: str, group: GroupSnapshot, owned: Mapping[TopicPartition, str]) -> RebalancePlan:
    """Return the steps from what is owned (partition -> thread id in its owners node) to this member's share.

    After an expired session nothing is owned, and the plan claims everything again. A partition that moves to another
    stream of the same member is released and claimed: its owners node names the stream.
    """
    target = assigned_partitions(consumer, group)
    owners = {partition: thread_id(consumer, stream) for partition, stream in target.items()}
    return RebalancePlan(
        release=frozenset(p for p, owner in owned.items() if owners.get(p) != owner),
        claim={p: owner for p, owner in owners.items() if owned.get(p) != owner},
        target=target,
    )


def describe_owners(owners: Mapping[TopicPartition, str]) -> str:
    """Return in words which of our partitions belong to others."""
    first = min(owners)
    others = f" and {len(owners) - 1} more" if len(owners) > 1 else ""
    return f"{first} belongs to {owners[first]}{others}"


# ---- the states of a member ---------------------------------------------------------------------------------


class MemberState(Enum):
    """The state of a member. Partitions that it keeps are delivered in every state until the session expires; losing
    the connection does not stop delivery."""

    STARTING = "no session yet"
    JOINING = "makes sure of its ids node"
    BALANCING = "reads the group, releases, claims"
    BACKING_OFF = "between two attempts"
    OWNING = "its share is assigned"
    DEGRADED = "out of attempts: keeps what it owns, and waits for the owners of the rest"
    SUSPENDED = "the connection is lost, the session perhaps not"
    EXPIRED = "the session is gone, and everything it owned"


class MemberEvent(Enum):
    """Events of a member."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "session expired"
    JOINED = "registered"
    BALANCED = "owns its share"
    BLOCKED = "owned by others, or ZooKeeper failed"
    CHANGED = "the group or its topics changed"
    FREED = "the blocking nodes are gone"
    RETRY = "back-off has passed"
    EXHAUSTED = "attempts used up"


_S, _E = MemberState, MemberEvent

MEMBER: Machine[MemberState, MemberEvent] = Machine(
    "group member",
    _S.STARTING,
    {
        (_S.STARTING, _E.CONNECTED): _S.JOINING,
        (_S.STARTING, _E.EXPIRED): _S.EXPIRED,
        (_S.JOINING, _E.JOINED): _S.BALANCING,
        (_S.BALANCING, _E.BALANCED): _S.OWNING,
        **{(trying, _E.BLOCKED): _S.BACKING_OFF for trying in (_S.JOINING, _S.BALANCING)},
        **{(trying, _E.EXHAUSTED): _S.DEGRADED for trying in (_S.JOINING, _S.BALANCING)},
        (_S.BACKING_OFF, _E.RETRY): _S.JOINING,
        **{
            (waiting, event): target
            for waiting in (_S.BACKING_OFF, _S.OWNING, _S.DEGRADED)
            for event, target in {
                _E.CHANGED: _S.JOINING,
                _E.FREED: _S.JOINING,
                _E.SUSPENDED: _S.SUSPENDED,
                _E.EXPIRED: _S.EXPIRED,
                _E.CONNECTED: _S.JOINING,  # lost and restored between two events
            }.items()
        },
        (_S.SUSPENDED, _E.CONNECTED): _S.JOINING,
        (_S.SUSPENDED, _E.EXPIRED): _S.EXPIRED,
        (_S.EXPIRED, _E.CONNECTED): _S.JOINING,
        (_S.EXPIRED, _E.EXPIRED): _S.EXPIRED,
    },
)


def event_after_attempt(attempt: int, attempts: int, *, conflict: bool) -> MemberEvent:
    """Return what follows from a failed attempt (the first is 1).

    After a conflict with other owners a member whose attempts are used up waits until they are gone or the group
    changes. A failure of ZooKeeper is retried for as long as it lasts.
    """
    return MemberEvent.EXHAUSTED if conflict and attempt >= attempts else MemberEvent.BLOCKED
