"""A consumer group's rebalance as pure plans, and the life of a member as a table (specification 6.1, 6.2).

A member reads the group (`GroupSnapshot`), computes its own share, releases what is no longer its own, claims what is
new,
and reads the positions only then. Nobody leads: all members come to the same cut by themselves, and the owners nodes
make sure that two with different views never consume the same partition. Differences to the Scala consumer, none of
which another member can see except that it is left alone more often:

- What is owned and stays owned keeps its owners node; Scala releases and claims everything anew. No deadlock comes of
  it, because a member releases what is not its own before and regardless of whether its claims succeed.
- Positions are read after claiming, so that a last commit of the previous owner is never missed (the race in 6.2).
- A wait for a foreign owner ends as soon as its nodes are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from odradek.core.kafka07.range_assignor import range_assignment
from odradek.core.kafka07.znodes import Registration, thread_id
from odradek.core.states import Machine
from odradek.types import TopicPartition

__all__ = [
    "MEMBER",
    "GroupSnapshot",
    "MemberEvent",
    "MemberState",
    "RebalancePlan",
    "blocked_by",
    "plan",
    "share",
    "verdict",
]


# ---- the plan -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """What a member reads before it rebalances.

    Args:
        members: Consumer id -> registration, of all members.
        topics: Topic -> broker -> number of partitions, at least for the topics this member consumes. As registered:
            whether the broker lives is not asked.
    """

    members: Mapping[str, Registration]
    topics: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """What to do, in this order: release, then claim. Values are thread ids (owners data) and stream numbers.

    Args:
        release: Owners nodes to delete.
        claim: Owners nodes to create: partition -> thread id.
        target: What is owned when all claims succeeded: partition -> stream number.
    """

    release: frozenset[TopicPartition]
    claim: Mapping[TopicPartition, str]
    target: Mapping[TopicPartition, int]


def share(consumer: str, view: GroupSnapshot) -> dict[TopicPartition, int]:
    """The partitions of this member, each with the number of the stream it goes to. Empty for a non-member."""
    mine: dict[TopicPartition, int] = {}
    registration = view.members.get(consumer)
    if registration is None:
        return mine
    for topic in sorted(registration.wanted(view.topics.keys())):
        counts = view.topics.get(topic, {})
        partitions = [TopicPartition(topic, n, broker) for broker, count in counts.items() for n in range(count)]
        threads = [thread_id(c, k) for c, r in view.members.items() for k in range(r.streams(topic))]
        runs = range_assignment(partitions, threads)
        for stream in range(registration.streams(topic)):
            mine.update(dict.fromkeys(runs[thread_id(consumer, stream)], stream))
    return mine


def plan(consumer: str, view: GroupSnapshot, held: Mapping[TopicPartition, str]) -> RebalancePlan:
    """From what is held (partition -> thread id in its owners node) to this member's share.

    After an expired session nothing is held, and the plan claims everything anew.
    """
    target = share(consumer, view)
    owners = {partition: thread_id(consumer, stream) for partition, stream in target.items()}
    return RebalancePlan(
        release=frozenset(p for p, owner in held.items() if owners.get(p) != owner),
        claim={p: owner for p, owner in owners.items() if held.get(p) != owner},
        target=target,
    )


def blocked_by(owners: Mapping[TopicPartition, str]) -> str:
    """In words: these partitions of ours belong to others."""
    first = min(owners)
    others = f" and {len(owners) - 1} more" if len(owners) > 1 else ""
    return f"{first} belongs to {owners[first]}{others}"


# ---- the life of a member -----------------------------------------------------------------------------------


class MemberState(Enum):
    """Where a member is. Delivery stops when balancing finds the group changed, and goes on in OWNING, or in STUCK with
    what it could keep; losing the connection does not stop it, losing the session does."""

    STARTING = "no session yet"
    JOINING = "makes sure of its ids node"
    BALANCING = "reads the group, releases, claims"
    BACKING_OFF = "between two attempts"
    OWNING = "its share is assigned"
    STUCK = "out of attempts"
    SUSPENDED = "the connection is gone, the session perhaps not"
    EXPIRED = "the session is gone, and everything it owned"
    FAILED = "could not join; its ids node stays until it leaves"


class MemberEvent(Enum):
    """What happens to a member."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "session expired"
    JOINED = "registered"
    BALANCED = "owns its share"
    BLOCKED = "foreign owners, or ZooKeeper refused"
    CHANGED = "the group or its topics changed"
    FREED = "the blocking nodes are gone"
    RETRY = "back-off has passed"
    EXHAUSTED = "attempts used up"
    REFUSED = "attempts used up at the start"


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
        **{(trying, _E.EXHAUSTED): _S.STUCK for trying in (_S.JOINING, _S.BALANCING)},
        **{(trying, _E.REFUSED): _S.FAILED for trying in (_S.JOINING, _S.BALANCING)},
        (_S.BACKING_OFF, _E.RETRY): _S.JOINING,
        **{
            (waiting, event): target
            for waiting in (_S.BACKING_OFF, _S.OWNING, _S.STUCK)
            for event, target in {
                _E.CHANGED: _S.JOINING,
                _E.FREED: _S.JOINING,
                _E.SUSPENDED: _S.SUSPENDED,
                _E.EXPIRED: _S.EXPIRED,
                _E.CONNECTED: _S.JOINING,  # the connection was lost and back before anybody looked
            }.items()
        },
        (_S.SUSPENDED, _E.CONNECTED): _S.JOINING,
        (_S.SUSPENDED, _E.EXPIRED): _S.EXPIRED,
        (_S.EXPIRED, _E.CONNECTED): _S.JOINING,
        (_S.EXPIRED, _E.EXPIRED): _S.EXPIRED,
    },
)


def verdict(attempt: int, attempts: int, *, owned: bool, conflict: bool) -> MemberEvent:
    """What a failed attempt (the first is 1) means.

    A member that never owned anything is refused when its attempts are used up. Later it waits for the next change
    of the group after a conflict with other owners; trouble with ZooKeeper is tried again for as long as it lasts.
    """
    if attempt < attempts:
        return MemberEvent.BLOCKED
    if not owned:
        return MemberEvent.REFUSED
    return MemberEvent.EXHAUSTED if conflict else MemberEvent.BLOCKED
