"""Assignors: worked examples, and what must hold for every group. Java's answers are in the conformance corpus."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.core.kafka.assignors import (
    Assignment,
    Assignor,
    CooperativeStickyAssignor,
    GroupMember,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    Topics,
    without_racks,
)
from odradek.core.kafka.assignors.sticky import resolve_claims
from odradek.types import TopicPartition

ALL: list[Assignor] = [RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()]
T0 = TopicPartition("t", 0)
STICKY: list[Assignor] = [StickyAssignor(), CooperativeStickyAssignor()]


def member(name: str, *topics: str, instance: str | None = None, rack: str | None = None) -> GroupMember:
    return GroupMember(name, frozenset(topics), instance, rack)


def owning(who: GroupMember, generation: int, *partitions: tuple[str, int]) -> GroupMember:
    return replace(who, owned=tuple(TopicPartition(*p) for p in partitions), generation=generation)


def names(assignment: Assignment) -> dict[str, list[str]]:
    return {who: [str(p) for p in partitions] for who, partitions in assignment.items()}


@pytest.mark.parametrize("assignor", ALL, ids=lambda a: str(a.name))
def test_a_group_without_members_gets_nothing(assignor: Assignor) -> None:
    assert assignor.assign(without_racks({"t": 3}), []) == {}


@pytest.mark.parametrize("assignor", ALL, ids=lambda a: str(a.name))
def test_topics_that_do_not_exist_are_left_out(assignor: Assignor) -> None:
    assignment = assignor.assign(without_racks({"empty": 0}), [member("a", "empty", "unknown")])
    assert assignment == {"a": []}


def test_range_gives_consecutive_partitions_and_the_first_members_one_more() -> None:
    assignment = RangeAssignor().assign(without_racks({"t": 5, "u": 2}), [member("b", "t", "u"), member("a", "t")])
    assert names(assignment) == {"a": ["t/0", "t/1", "t/2"], "b": ["t/3", "t/4", "u/0", "u/1"]}


def test_static_members_come_first_in_order_of_their_instance() -> None:
    members = [member("a", "t"), member("z", "t", instance="1"), member("y", "t", instance="2")]
    assert names(RangeAssignor().assign(without_racks({"t": 3}), members)) == {
        "z": ["t/0"],
        "y": ["t/1"],
        "a": ["t/2"],
    }


def test_round_robin_skips_members_that_did_not_subscribe() -> None:
    members = [member("a", "t"), member("b", "t", "u"), member("c", "t", "u")]
    assert names(RoundRobinAssignor().assign(without_racks({"t": 2, "u": 3}), members)) == {
        "a": ["t/0"],
        "b": ["t/1", "u/1"],
        "c": ["u/0", "u/2"],
    }


def test_range_follows_racks_within_the_shares() -> None:
    topics: Topics = {"t": [frozenset({"r2"}), frozenset({"r1"})]}
    members = [member("a", "t", rack="r1"), member("b", "t", rack="r2")]
    assert names(RangeAssignor().assign(topics, members)) == {"a": ["t/1"], "b": ["t/0"]}


def test_range_prefers_co_partitioning_to_racks() -> None:
    topics: Topics = {
        "t": [frozenset({"r2"}), frozenset({"r1"})],
        "u": [frozenset({"r2"}), frozenset({"r2"})],
    }
    members = [member("a", "t", "u", rack="r1"), member("b", "t", "u", rack="r2")]
    assignment = RangeAssignor().assign(topics, members)
    assert names(assignment) == {"a": ["t/1", "u/1"], "b": ["t/0", "u/0"]}


def test_topics_of_members_without_racks_are_cut_as_ranges_beside_others() -> None:
    topics: Topics = {
        "near": [frozenset({"r2"}), frozenset({"r1"})],
        "t": [frozenset({"r2"}), frozenset({"r1"})],
        "u": [frozenset({"r2"}), frozenset({"r1"})],
    }
    members = [member("a", "near", rack="r1"), member("b", "near", rack="r2"), member("c", "t", "u")]
    assignment = RangeAssignor().assign(topics, members)
    assert names(assignment) == {"a": ["near/1"], "b": ["near/0"], "c": ["t/0", "t/1", "u/0", "u/1"]}


@pytest.mark.parametrize("assignor", STICKY, ids=lambda a: str(a.name))
def test_sticky_leaves_everything_in_place_when_nothing_changed(assignor: Assignor) -> None:
    members = [
        owning(member("a", "t"), 4, ("t", 3), ("t", 1)),
        owning(member("b", "t"), 4, ("t", 0), ("t", 2)),
    ]
    assignment = assignor.assign(without_racks({"t": 4}), members)
    assert {who: sorted(p.partition for p in got) for who, got in assignment.items()} == {"a": [1, 3], "b": [0, 2]}


def test_sticky_moves_only_what_a_new_member_needs() -> None:
    members = [
        owning(member("a", "t"), 4, ("t", 0), ("t", 1), ("t", 2)),
        owning(member("b", "t"), 4, ("t", 3), ("t", 4), ("t", 5)),
        member("c", "t"),
    ]
    assignment = StickyAssignor().assign(without_racks({"t": 6}), members)
    assert {who: len(got) for who, got in assignment.items()} == {"a": 2, "b": 2, "c": 2}
    assert set(assignment["a"]) < set(members[0].owned)
    assert set(assignment["b"]) < set(members[1].owned)


def test_cooperative_hands_over_in_two_rounds() -> None:
    topics = without_racks({"t": 2})
    first = [owning(member("a", "t"), 4, ("t", 0), ("t", 1)), member("b", "t")]
    round_1 = CooperativeStickyAssignor().assign(topics, first)
    assert names(round_1) == {"a": ["t/0"], "b": []}
    second = [owning(member("a", "t"), 5, ("t", 0)), owning(member("b", "t"), 5)]
    assert names(CooperativeStickyAssignor().assign(topics, second)) == {"a": ["t/0"], "b": ["t/1"]}


def test_the_newest_generation_wins_a_double_claim() -> None:
    members = [owning(member("a", "t"), 3, ("t", 0)), owning(member("b", "t"), 4, ("t", 0))]
    claims = resolve_claims(without_racks({"t": 1}), members)
    assert claims.owned == {"a": [], "b": [T0]}
    assert claims.earlier == {T0: "a"}
    assert names(CooperativeStickyAssignor().assign(without_racks({"t": 1}), members))["b"] == ["t/0"]


def test_equal_claims_cancel_each_other() -> None:
    members = [owning(member("a", "t"), 4, ("t", 0)), owning(member("b", "t"), 4, ("t", 0))]
    claims = resolve_claims(without_racks({"t": 1}), members)
    assert claims.owned == {"a": [], "b": []} and claims.disputed == {T0}
    assert CooperativeStickyAssignor().assign(without_racks({"t": 1}), members) == {"a": [], "b": []}


def test_claims_to_partitions_that_do_not_exist_are_dropped() -> None:
    members = [owning(member("a", "t"), 4, ("t", 7), ("gone", 0), ("t", -1))]
    assert resolve_claims(without_racks({"t": 1}), members).owned == {"a": []}


def test_a_member_gets_nothing_it_did_not_subscribe_to() -> None:
    members = [owning(member("a", "u"), 4, ("t", 0)), member("b", "t", "u"), member("c")]
    assignment = StickyAssignor().assign(without_racks({"t": 2, "u": 1}), members)
    assert {str(p) for p in assignment["b"]} == {"t/0", "t/1"}
    assert names(assignment)["a"] == ["u/0"] and assignment["c"] == []


def test_an_earlier_owner_gets_a_partition_back_when_it_has_less() -> None:
    # d came last and owns most; what it has belonged to a in an earlier generation.
    members = [
        owning(member("a", "t", "u"), 3, ("t", 0), ("t", 1)),
        owning(member("d", "t", "u", "v"), 4, ("t", 0), ("t", 1), ("t", 2), ("t", 3)),
    ]
    assignment = StickyAssignor().assign(without_racks({"t": 4, "u": 0, "v": 0}), members)
    assert {str(p) for p in assignment["a"]} == {"t/0", "t/1"}


def test_a_partition_that_moves_away_and_back_has_not_moved() -> None:
    members = [
        owning(
            member("m0", "t", "u", "v", "w"),
            2,
            *(("t", 0), ("u", 2), ("u", 3), ("v", 0), ("v", 2), ("v", 3), ("v", 4), ("w", 0)),
        ),
        owning(member("m1", "t", "v", "w"), 1, ("v", 1), ("w", 1), ("w", 2)),
        owning(member("m2", "u"), 2, ("u", 0), ("u", 1)),
        owning(member("m3", "u"), 2),
        owning(member("m4", "t", "u", "v", "w"), 1),
    ]
    assignment = StickyAssignor().assign(without_racks({"t": 1, "u": 4, "v": 5, "w": 3}), members)
    assert TopicPartition("v", 3) in assignment["m0"]
    assert sorted(len(got) for got in assignment.values()) == [2, 2, 3, 3, 3]
    assert set(members[1].owned) == set(assignment["m1"])


def test_equal_shares_follow_racks() -> None:
    topics: Topics = {"t": [frozenset({"r1"}), frozenset({"r1"}), frozenset({"r2"}), frozenset({"r2"})]}
    members = [member("a", "t", rack="r2"), member("b", "t", rack="r1")]
    assignment = StickyAssignor().assign(topics, members)
    assert {who: sorted(p.partition for p in got) for who, got in assignment.items()} == {"a": [2, 3], "b": [0, 1]}


def test_racks_never_unbalance_equal_shares() -> None:
    topics: Topics = {"t": [frozenset({"r1"})] * 4 + [frozenset({"r2"})]}
    members = [member("a", "t", rack="r1"), member("b", "t", rack="r1"), member("c", "t", rack="r3")]
    sizes = sorted(len(got) for got in StickyAssignor().assign(topics, members).values())
    assert sizes == [1, 2, 2]


def test_a_partition_in_another_rack_is_given_up() -> None:
    topics: Topics = {"t": [frozenset({"r1"}), frozenset({"r2"})]}
    members = [
        owning(member("a", "t", rack="r1"), 4, ("t", 1)),
        owning(member("b", "t", rack="r2"), 4, ("t", 0)),
    ]
    assert names(StickyAssignor().assign(topics, members)) == {"a": ["t/0"], "b": ["t/1"]}


def test_the_balancer_follows_racks_too() -> None:
    topics: Topics = {"t": [frozenset({"r1"}), frozenset({"r2"})], "u": [frozenset({"r2"})]}
    members = [member("a", "t", rack="r2"), member("b", "t", "u", rack="r1")]
    assignment = StickyAssignor().assign(topics, members)
    assert names(assignment)["a"] == ["t/1"]
    assert sorted(names(assignment)["b"]) == ["t/0", "u/0"]


# ---- user data ----


def test_sticky_says_in_its_user_data_what_it_owned() -> None:
    owned = [TopicPartition("t", 1), TopicPartition("u", 0), TopicPartition("t", 5)]
    data = StickyAssignor().user_data(owned, 9)
    assert StickyAssignor().claims([], -1, data) == (
        [TopicPartition("t", 1), TopicPartition("t", 5), TopicPartition("u", 0)],
        9,
    )


def test_sticky_user_data_without_a_generation_is_read() -> None:
    data = StickyAssignor().user_data([TopicPartition("t", 1)], 9)
    assert data is not None
    assert StickyAssignor().claims([], 3, data[:-4]) == ([TopicPartition("t", 1)], -1)


@pytest.mark.parametrize("data", [None, b"", b"\x00", b"\x00\x00\x00\x01", b"\x7f\xff\xff\xff" * 2])
def test_sticky_user_data_that_cannot_be_read_claims_nothing(data: bytes | None) -> None:
    assert StickyAssignor().claims([TopicPartition("t", 0)], 3, data) == ([], -1)


def test_cooperative_takes_the_generation_from_the_field_or_else_the_user_data() -> None:
    assignor = CooperativeStickyAssignor()
    owned = [TopicPartition("t", 0)]
    data = assignor.user_data(owned, 7)
    assert assignor.claims(owned, -1, data) == (owned, 7)
    assert assignor.claims(owned, 8, data) == (owned, 8)
    assert assignor.claims(owned, -1, b"\x00") == (owned, -1)


@pytest.mark.parametrize("assignor", [RangeAssignor(), RoundRobinAssignor()], ids=lambda a: str(a.name))
def test_range_and_round_robin_have_no_user_data(assignor: Assignor) -> None:
    owned = [TopicPartition("t", 0)]
    assert assignor.user_data(owned, 3) is None
    assert assignor.claims(owned, 3, None) == (owned, 3)


# ---- what holds for every group ----

TOPIC_NAMES = ["t", "u", "v", "w"]
RACKS = ["r1", "r2", "r3"]


@st.composite
def groups(draw: st.DrawFn) -> tuple[Topics, list[GroupMember]]:
    racks = st.frozensets(st.sampled_from(RACKS), max_size=2)
    topics: Topics = {topic: draw(st.lists(racks, max_size=9)) for topic in draw(st.sets(st.sampled_from(TOPIC_NAMES)))}
    every = [TopicPartition(topic, n) for topic in topics for n in range(len(topics[topic]))]
    same = draw(st.booleans())
    wanted = draw(st.frozensets(st.sampled_from(TOPIC_NAMES)))
    members = []
    for i in range(draw(st.integers(0, 6))):
        owned = draw(st.lists(st.sampled_from(every), unique=True, max_size=6)) if every else []
        members.append(
            GroupMember(
                f"m{i}",
                wanted if same else draw(st.frozensets(st.sampled_from(TOPIC_NAMES))),
                draw(st.one_of(st.none(), st.just(f"i{9 - i}"))),
                draw(st.one_of(st.none(), st.sampled_from(RACKS))),
                tuple(owned),
                draw(st.integers(-1, 3)),
            )
        )
    return topics, members


@pytest.mark.parametrize("assignor", ALL, ids=lambda a: str(a.name))
@settings(max_examples=2 * settings().max_examples)
@given(group=groups())
def test_every_partition_goes_once_to_a_subscriber(assignor: Assignor, group: tuple[Topics, list[GroupMember]]) -> None:
    topics, members = group
    assignment = assignor.assign(topics, members)
    assert assignment.keys() == {m.member_id for m in members}
    wants = {m.member_id: m.topics for m in members}
    assert all(p.topic in wants[who] for who, got in assignment.items() for p in got)
    counts = Counter(p for got in assignment.values() for p in got)
    assert all(n == 1 for n in counts.values())
    every = {TopicPartition(t, n) for t in topics for n in range(len(topics[t])) if any(t in m.topics for m in members)}
    assert counts.keys() <= every
    if not assignor.cooperative:
        assert counts.keys() == every


@settings(max_examples=2 * settings().max_examples)
@given(group=groups())
def test_sticky_is_balanced(group: tuple[Topics, list[GroupMember]]) -> None:
    topics, members = group
    assignment = StickyAssignor().assign(topics, members)
    owner = {p: who for who, got in assignment.items() for p in got}
    for m in members:
        for partition, who in owner.items():
            if partition.topic in m.topics:
                assert len(assignment[who]) <= len(assignment[m.member_id]) + 1


@given(group=groups())
def test_a_second_sticky_round_changes_nothing(group: tuple[Topics, list[GroupMember]]) -> None:
    topics, members = group
    members = [replace(m, rack=None) for m in members]
    first = StickyAssignor().assign(topics, members)
    again = [replace(m, owned=tuple(first[m.member_id]), generation=9) for m in members]
    second = StickyAssignor().assign(topics, again)
    assert {who: set(got) for who, got in second.items()} == {who: set(got) for who, got in first.items()}


@given(group=groups())
def test_cooperative_rounds_end_in_the_sticky_assignment(group: tuple[Topics, list[GroupMember]]) -> None:
    topics, members = group
    members = [replace(m, owned=(), generation=-1) for m in members]
    for generation in range(3):
        assignment = CooperativeStickyAssignor().assign(topics, members)
        members = [replace(m, owned=tuple(assignment[m.member_id]), generation=generation) for m in members]
    every = {TopicPartition(t, n) for t in topics for n in range(len(topics[t])) if any(t in m.topics for m in members)}
    assert {p for m in members for p in m.owned} == every
