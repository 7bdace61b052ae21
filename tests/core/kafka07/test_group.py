"""The rebalance as plans, and the states of a member as a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.kafka07.group import (
    MEMBER,
    GroupSnapshot,
    MemberEvent,
    MemberState,
    assigned_partitions,
    describe_owners,
    event_after_attempt,
    plan,
)
from odradek.core.kafka07.topic_filter import TopicFilter
from odradek.core.kafka07.znodes import Registration, StaticRegistration, WildcardRegistration, thread_id
from odradek.types import TopicPartition


def tp(partition: int, topic: str = "t", broker: int = 1) -> TopicPartition:
    return TopicPartition(topic, partition, broker)


def static(**topics: int) -> StaticRegistration:
    return StaticRegistration(topics)


def white(raw: str, count: int = 1) -> WildcardRegistration:
    return WildcardRegistration(TopicFilter.of(raw, exclude=False), count)


def named(assigned: dict[TopicPartition, int]) -> dict[str, int]:
    return {f"{p.topic}/{p.name}": stream for p, stream in assigned.items()}


def test_case_39_two_streams_then_a_second_member() -> None:
    topics = {"t": {1: 3}}
    alone = GroupSnapshot({"g_a": static(t=2)}, topics)
    assert named(assigned_partitions("g_a", alone)) == {"t/1-0": 0, "t/1-1": 0, "t/1-2": 1}
    both = GroupSnapshot({"g_a": static(t=2), "g_b": static(t=1)}, topics)
    assert named(assigned_partitions("g_a", both)) == {"t/1-0": 0, "t/1-1": 1}
    assert named(assigned_partitions("g_b", both)) == {"t/1-2": 0}
    owned = {tp(0): "g_a-0", tp(1): "g_a-0", tp(2): "g_a-1"}
    steps = plan("g_a", both, owned)
    assert steps.release == {tp(1), tp(2)}  # 1-1 changes its stream: its owners node must say so
    assert steps.claim == {tp(1): "g_a-1"}
    assert steps.target == {tp(0): 0, tp(1): 1}


def test_topics_are_divided_independently_among_their_consumers() -> None:
    group = GroupSnapshot({"a": static(t=1, u=1), "b": static(t=2), "c": white("u.*")}, {"t": {1: 3}, "u": {1: 3}})
    assert named(assigned_partitions("a", group)) == {"t/1-0": 0, "u/1-0": 0, "u/1-1": 0}
    assert named(assigned_partitions("b", group)) == {"t/1-1": 0, "t/1-2": 1}
    assert named(assigned_partitions("c", group)) == {"u/1-2": 0}


def test_wildcards_get_existing_topics_that_match() -> None:
    group = GroupSnapshot({"a": white("z.*", 2)}, {"za": {1: 1}, "zb": {2: 2}, "other": {1: 9}})
    assert named(assigned_partitions("a", group)) == {"za/1-0": 0, "zb/2-0": 0, "zb/2-1": 1}


def test_a_static_topic_that_does_not_exist_yet_has_no_partitions() -> None:
    assert assigned_partitions("a", GroupSnapshot({"a": static(t=1)}, {})) == {}


def test_a_member_that_is_not_registered_owns_nothing() -> None:
    group = GroupSnapshot({"b": static(t=1)}, {"t": {1: 1}})
    assert plan("a", group, {tp(0): "a-0"}).release == {tp(0)}
    assert plan("a", group, {}).target == {}


def test_expiry_is_a_plan_that_claims_everything() -> None:
    group = GroupSnapshot({"a": static(t=1)}, {"t": {1: 2}})
    steps = plan("a", group, {})
    assert (steps.release, steps.claim) == (frozenset(), {tp(0): "a-0", tp(1): "a-0"})


def test_an_unchanged_group_is_an_empty_plan() -> None:
    group = GroupSnapshot({"a": static(t=1)}, {"t": {1: 2}})
    steps = plan("a", group, plan("a", group, {}).claim)
    assert (steps.release, steps.claim) == (frozenset(), {})
    assert steps.target == {tp(0): 0, tp(1): 0}


def test_case_41_after_four_conflicts_a_member_waits_for_the_owners() -> None:
    events = [event_after_attempt(n, 4, conflict=True) for n in (1, 2, 3, 4)]
    assert events == [*[MemberEvent.BLOCKED] * 3, MemberEvent.EXHAUSTED]


def test_a_failure_of_zookeeper_is_retried_for_as_long_as_it_lasts() -> None:
    assert {event_after_attempt(n, 4, conflict=False) for n in range(1, 10)} == {MemberEvent.BLOCKED}


def test_the_reason_names_the_owner_of_the_first_partition() -> None:
    assert describe_owners({tp(2): "x-1", tp(1): "stranger-0"}) == "t/1-1 belongs to stranger-0 and 1 more"
    assert describe_owners({tp(1): "x-0"}) == "t/1-1 belongs to x-0"


registrations: st.SearchStrategy[Registration] = st.one_of(
    st.dictionaries(st.sampled_from(["t", "u"]), st.integers(1, 3), min_size=1).map(StaticRegistration),
    st.sampled_from([white("t"), white("u", 2), white(".*", 2)]),
)
groups = st.builds(
    GroupSnapshot,
    st.dictionaries(st.sampled_from("abcdef"), registrations, min_size=1),
    st.dictionaries(st.sampled_from(["t", "u"]), st.dictionaries(st.integers(1, 12), st.integers(0, 4), max_size=4)),
)


@given(groups)
def test_members_with_the_same_snapshot_own_every_wanted_partition_once(group: GroupSnapshot) -> None:
    shares = {member: assigned_partitions(member, group) for member in group.members}
    owned = sorted(p for mine in shares.values() for p in mine)
    wanted = {t for t in group.topics if any(r.streams(t) for r in group.members.values())}
    assert owned == sorted(
        TopicPartition(t, n, b) for t in wanted for b, c in group.topics[t].items() for n in range(c)
    )
    for member, mine in shares.items():
        assert all(0 <= stream < group.members[member].streams(p.topic) for p, stream in mine.items())


@given(groups, groups)
def test_releasing_and_claiming_leads_from_any_snapshot_to_any_other(old: GroupSnapshot, new: GroupSnapshot) -> None:
    """In any order: no member waits forever, because each first releases what is not its own."""
    owners: dict[TopicPartition, str] = {}
    owned = {member: dict(plan(member, old, {}).claim) for member in old.members}
    for mine in owned.values():
        owners.update(mine)
    plans = {member: plan(member, new, owned.get(member, {})) for member in {*old.members, *new.members}}
    for steps in plans.values():
        for p in steps.release:
            del owners[p]
    for steps in plans.values():
        assert not steps.claim.keys() & owners.keys()
        owners.update(steps.claim)
    expected = {p: thread_id(m, s) for m in new.members for p, s in assigned_partitions(m, new).items()}
    assert owners == expected


def test_every_state_is_reachable_and_none_is_final() -> None:
    reached, todo = set(), [MEMBER.start]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo.extend(target for (source, _), target in MEMBER.transitions.items() if source is state)
    assert reached == set(MemberState)
    assert reached == {source for source, _ in MEMBER.transitions}


@pytest.mark.parametrize("state", [MemberState.OWNING, MemberState.BACKING_OFF, MemberState.DEGRADED])
def test_a_waiting_member_reacts_to_the_group_and_to_the_session(state: MemberState) -> None:
    assert MEMBER.after(state, MemberEvent.CHANGED) is MemberState.JOINING
    assert MEMBER.after(state, MemberEvent.SUSPENDED) is MemberState.SUSPENDED
    assert MEMBER.after(state, MemberEvent.EXPIRED) is MemberState.EXPIRED


def test_every_event_has_a_place() -> None:
    assert {event for _, event in MEMBER.transitions} == set(MemberEvent)
