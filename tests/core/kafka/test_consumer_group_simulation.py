"""Whole groups of KIP-848 in memory: the coordinator assigns, and hands over only what was given up.

What must hold whatever happens: no partition is consumed by two members that the coordinator knows, and in the end
every partition is consumed.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from odradek.core.kafka.consumer_group_member import ConsumerGroupMember, ConsumerGroupState
from odradek.core.kafka.group_effects import Assign, Fail, Lost, ResolveTopics, Revoke, Send
from odradek.core.kafka.member_states import MemberSettings
from odradek.types import TopicPartition
from odradek.wire.kafka.messages.common import TopicIdPartitions
from odradek.wire.kafka.messages.groups import (
    ConsumerGroupHeartbeatAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from odradek.wire.kafka.schema import Request, Response

TOPIC_ID, PARTITIONS = b"t" * 16, 12


@dataclass
class Coordinator:
    """A group as a broker keeps it. `owned` is what a member has, or still has until it says otherwise."""

    epoch: int = 0
    owned: dict[str, set[int]] = field(default_factory=dict)
    reported: dict[str, set[int]] = field(default_factory=dict)

    def targets(self) -> dict[str, set[int]]:
        members = sorted(self.owned)
        return {m: set(range(i, PARTITIONS, len(members))) for i, m in enumerate(members)}

    def handle(self, request: ConsumerGroupHeartbeatRequest) -> Response:
        member = request.member_id
        if request.member_epoch < 0:
            self.remove(member)
            return ConsumerGroupHeartbeatResponse(member_epoch=request.member_epoch, heartbeat_interval_ms=1000)
        if request.member_epoch == 0:
            self.epoch += 1
            self.owned[member], self.reported[member] = set(), set()
        elif member not in self.owned:
            return ConsumerGroupHeartbeatResponse(error_code=25, heartbeat_interval_ms=1000)
        if request.topic_partitions is not None:
            said = {n for topic in request.topic_partitions for n in topic.partitions}
            assert said <= self.owned[member], "owns what it was not given"
            self.owned[member] = said
        return self.answer(member, full=request.member_epoch == 0)

    def answer(self, member: str, *, full: bool) -> Response:
        target = self.targets()[member]
        free = target - {n for other, has in self.owned.items() if other != member for n in has}
        assigned = (self.owned[member] & target) | free
        # Until the member says what it has given up, it may still have it.
        self.owned[member] |= assigned
        assignment = None
        if full or assigned != self.reported[member]:
            self.reported[member] = assigned
            topics = (TopicIdPartitions(topic_id=TOPIC_ID, partitions=tuple(sorted(assigned))),) if assigned else ()
            assignment = ConsumerGroupHeartbeatAssignment(topic_partitions=topics)
        return ConsumerGroupHeartbeatResponse(
            member_epoch=self.epoch, heartbeat_interval_ms=1000, assignment=assignment
        )

    def remove(self, member: str) -> None:
        self.owned.pop(member, None)
        self.epoch += 1


class Group:
    """The members, their coordinator, and chance."""

    def __init__(self, seed: int) -> None:
        self.random, self.now, self.coordinator = random.Random(seed), 0.0, Coordinator()
        self.members: list[ConsumerGroupMember] = []
        self.consuming: list[set[TopicPartition]] = []
        self.out: dict[int, Request[Any]] = {}
        self.revoking: dict[int, Revoke] = {}
        self.lost: list[tuple[int, Revoke]] = []

    def add(self) -> None:
        name = f"uuid-{len(self.members)}"
        self.members.append(ConsumerGroupMember(MemberSettings("g"), name, frozenset({"t"})))
        self.consuming.append(set())

    def step(self) -> None:
        """Let one member do something, finish what it gives up, answer it, or lose its connection."""
        index = self.random.randrange(len(self.members))
        member = self.members[index]
        if index in self.revoking and self.random.random() < 0.5:
            member.revoked(self.revoking.pop(index))
        elif self.lost and self.random.random() < 0.1:
            late, revoke = self.lost.pop()
            self.members[late].revoked(revoke)  # the caller finishes what was lost meanwhile
        elif index in self.out:
            request = self.out.pop(index)
            if self.random.random() < 0.05:
                member.connection_lost(self.now)
                if member.state is ConsumerGroupState.LEFT:
                    self.coordinator.remove(member.member_id)  # its session runs out
            elif isinstance(request, FindCoordinatorRequest):
                member.receive(FindCoordinatorResponse(node_id=1, host="b1", port=9092), self.now)
            else:
                assert isinstance(request, ConsumerGroupHeartbeatRequest)
                member.receive(self.coordinator.handle(request), self.now)
        for effect in member.poll(self.now):
            self.execute(index, effect)
        self.now += 0.1
        known = [i for i, m in enumerate(self.members) if m.member_id in self.coordinator.owned and m.epoch > 0]
        owners = Counter(p for i in known for p in self.consuming[i])
        assert all(n == 1 for n in owners.values()), owners

    def execute(self, index: int, effect: object) -> None:
        consuming = self.consuming[index]
        match effect:
            case Send():
                self.out[index] = effect.request
            case Assign():
                assert not consuming & effect.partitions
                consuming |= effect.partitions
            case Revoke():
                assert effect.partitions <= consuming
                consuming -= effect.partitions
                self.revoking[index] = effect
            case Lost():
                consuming -= effect.partitions
                if index in self.revoking:
                    self.lost.append((index, self.revoking.pop(index)))
            case ResolveTopics():
                assert effect.topic_ids == {TOPIC_ID}
                self.members[index].resolved({TOPIC_ID: "t"})
            case Fail():
                raise effect.error

    def stabilize(self) -> None:
        for _ in range(20_000):
            self.step()
            consumed = [
                p.partition
                for index, m in enumerate(self.members)
                for p in self.consuming[index]
                if m.state is ConsumerGroupState.STABLE
            ]
            if sorted(consumed) == list(range(PARTITIONS)) and not self.revoking:
                return
        raise AssertionError(f"never stable: {self.members}")


@pytest.mark.parametrize("seed", range(10))
def test_groups_that_grow_and_shrink_end_with_every_partition_consumed_once(seed: int) -> None:
    group = Group(seed)
    for _ in range(4):
        group.add()
        for _ in range(group.random.randrange(80)):
            group.step()
    group.stabilize()
    leaving = group.random.randrange(4)
    group.members[leaving].leave()
    group.consuming[leaving].clear()
    group.stabilize()


@pytest.mark.parametrize("seed", range(10))
def test_a_member_that_the_coordinator_removed_comes_back(seed: int) -> None:
    group = Group(seed)
    for _ in range(3):
        group.add()
    group.stabilize()
    removed = group.random.choice(group.members)
    group.coordinator.remove(removed.member_id)
    for _ in range(2_000):
        group.step()
    group.stabilize()
    assert removed.epoch > 0 and removed.owned
