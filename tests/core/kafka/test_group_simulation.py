"""Whole groups in memory: members against a coordinator that follows the protocol, in any order of events.

What must hold whatever happens: no partition is owned by two members that know of their generation, and in the end
every partition is owned.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from odradek.core.kafka.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    without_racks,
)
from odradek.core.kafka.group_effects import Assign, Compute, Fail, Lost, Revoke, Send
from odradek.core.kafka.member import Member
from odradek.core.kafka.member_states import ClassicMemberState, MemberSettings
from odradek.types import TopicPartition
from odradek.wire.kafka.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from odradek.wire.kafka.schema import Request, Response

TOPICS = without_racks({"t": 7, "u": 3})
EVERY = {TopicPartition(topic, n) for topic, partitions in TOPICS.items() for n in range(len(partitions))}


@dataclass
class Coordinator:
    """A group as a broker keeps it: waits for all members to join, then for the leader to sync."""

    generation: int = 0
    members: dict[str, bytes] = field(default_factory=dict)
    joined: dict[str, bytes] = field(default_factory=dict)
    shares: dict[str, bytes] | None = None
    preparing: bool = False
    ids: int = 0

    def handle(self, request: Request[Any]) -> Response | None:
        """Answer now, or None: the answer is ready later and comes from `parked`."""
        match request:
            case FindCoordinatorRequest():
                return FindCoordinatorResponse(node_id=1, host="b1", port=9092)
            case LeaveGroupRequest():
                self.remove(request.members[0].member_id)
                return LeaveGroupResponse()
            case HeartbeatRequest():
                return HeartbeatResponse(error_code=self.check(request.member_id, request.generation_id))
            case SyncGroupRequest():
                return self.sync(request)
            case JoinGroupRequest():
                return self.join(request)
        raise AssertionError(request)

    def check(self, member: str, generation: int) -> int:
        if member not in self.members:
            return 25
        if generation != self.generation:
            return 22
        return 27 if self.preparing else 0

    def join(self, request: JoinGroupRequest) -> Response | None:
        if not request.member_id:
            self.ids += 1
            return JoinGroupResponse(error_code=79, member_id=f"m{self.ids}")
        if request.member_id not in self.members and request.member_id in self.gone:
            return JoinGroupResponse(error_code=25)
        self.preparing = True
        self.members[request.member_id] = self.joined[request.member_id] = request.protocols[0].metadata
        return None

    gone: set[str] = field(default_factory=set)

    def remove(self, member: str) -> None:
        if self.members.pop(member, None) is not None:
            self.joined.pop(member, None)
            self.gone.add(member)
            self.preparing = bool(self.members)

    def complete_join(self) -> bool:
        """When all members have joined, begin the next generation."""
        if not self.preparing or self.joined.keys() != self.members.keys():
            return False
        self.generation, self.preparing, self.shares = self.generation + 1, False, None
        return True

    def join_answer(self, member: str, protocol: str) -> Response:
        leader = min(self.members)
        listed = tuple(JoinGroupResponseMember(member_id=m, metadata=data) for m, data in self.joined.items())
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_name=protocol,
            leader=leader,
            member_id=member,
            members=listed if member == leader else (),
        )

    def sync(self, request: SyncGroupRequest) -> Response | None:
        if code := self.check(request.member_id, request.generation_id):
            return SyncGroupResponse(error_code=code)
        if request.assignments:
            self.shares = {a.member_id: a.assignment for a in request.assignments}
        if self.shares is None:
            return None
        return SyncGroupResponse(assignment=self.shares[request.member_id])


class Group:
    """The members, their coordinator, and chance."""

    def __init__(self, assignor: Assignor, seed: int) -> None:
        self.assignor, self.random, self.now = assignor, random.Random(seed), 0.0
        self.coordinator = Coordinator()
        self.members: list[Member] = []
        self.consuming: dict[int, set[TopicPartition]] = {}
        self.out: dict[int, Request[Any]] = {}

    def add(self) -> None:
        settings = MemberSettings("g", session_timeout_s=1e9, heartbeat_interval_s=1.0)
        self.members.append(Member(settings, [self.assignor], frozenset(TOPICS)))
        self.consuming[len(self.members) - 1] = set()

    def step(self) -> None:
        """Let one member do something, or answer it."""
        index = self.random.randrange(len(self.members))
        member = self.members[index]
        if index in self.out:
            self.answer(index)
        else:
            for effect in member.poll(self.now):
                self.execute(index, effect)
        self.now += 0.2
        self.check_owners()

    def execute(self, index: int, effect: object) -> None:
        member, consuming = self.members[index], self.consuming[index]
        match effect:
            case Send():
                self.out[index] = effect.request
            case Assign():
                consuming |= effect.partitions
            case Revoke():
                consuming -= effect.partitions
                member.revoked(effect)
            case Lost():
                consuming -= effect.partitions
            case Compute():
                assert effect.topics == TOPICS.keys()
                member.assign(TOPICS)
            case Fail():
                raise effect.error

    def answer(self, index: int) -> None:
        request, member = self.out[index], self.members[index]
        if isinstance(request, JoinGroupRequest) and request.member_id in self.coordinator.joined:
            return  # parked: answered with all the others
        response = self.coordinator.handle(request)
        if response is not None:
            del self.out[index]
            member.receive(response, self.now)
        if self.coordinator.complete_join():
            for other, waiting in list(self.out.items()):
                if isinstance(waiting, JoinGroupRequest) and waiting.member_id in self.coordinator.joined:
                    del self.out[other]
                    self.members[other].receive(
                        self.coordinator.join_answer(waiting.member_id, self.assignor.name), self.now
                    )
            self.coordinator.joined = {}

    def check_owners(self) -> None:
        valid = [
            i
            for i, m in enumerate(self.members)
            if m.member_id in self.coordinator.members and m.generation == self.coordinator.generation
        ]
        owners = Counter(p for i in valid for p in self.consuming[i])
        assert all(n == 1 for n in owners.values()), owners

    def stabilize(self) -> None:
        """Run until all members are stable and nothing moves any more."""
        for _ in range(20_000):
            self.step()
            alive = [m for m in self.members if m.state is not ClassicMemberState.LEFT]
            if all(m.state is ClassicMemberState.STABLE for m in alive) and not self.coordinator.preparing:
                owned = [p for m in alive for p in m.owned]
                if set(owned) == EVERY and len(owned) == len(EVERY):
                    return
        raise AssertionError(f"never stable: {self.members}")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "assignor",
    [RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()],
    ids=lambda a: str(a.name),
)
def test_groups_that_grow_and_shrink_end_with_every_partition_owned_once(assignor: Assignor, seed: int) -> None:
    group = Group(assignor, seed)
    group.add()
    group.stabilize()
    for _ in range(3):
        group.add()
        for _ in range(group.random.randrange(60)):
            group.step()
    group.stabilize()
    leaving = group.random.choice(group.members)
    leaving.leave(member_lists=True)
    group.stabilize()
    assert leaving.state is ClassicMemberState.LEFT


@pytest.mark.parametrize("assignor", [StickyAssignor(), CooperativeStickyAssignor()], ids=lambda a: str(a.name))
@pytest.mark.parametrize("seed", range(8))
def test_a_member_that_the_coordinator_removed_comes_back(assignor: Assignor, seed: int) -> None:
    group = Group(assignor, seed)
    for _ in range(3):
        group.add()
    group.stabilize()
    removed = group.random.choice(group.members)
    before = removed.member_id
    group.coordinator.remove(before)
    group.stabilize()
    assert removed.member_id != before and removed.owned


def test_cooperative_members_keep_consuming_what_they_keep() -> None:
    group = Group(CooperativeStickyAssignor(), 1)
    group.add()
    group.stabilize()
    group.add()
    kept = set(EVERY)
    for _ in range(2_000):
        group.step()
        kept &= group.consuming[0]
    assert len(kept) == len(EVERY) // 2
