"""The rebalance as plans, and the member's life as a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.kafka07.group import (
    MEMBER,
    GroupSnapshot,
    MemberEvent,
    MemberState,
    blocked_by,
    plan,
    share,
    verdict,
)
from odradek.core.kafka07.znodes import Registration, StaticRegistration, TopicFilter, WildcardRegistration, thread_id
from odradek.types import TopicPartition


def tp(partition: int, topic: str = "t", broker: int = 1) -> TopicPartition:
    return TopicPartition(topic, partition, broker)


def static(**topics: int) -> StaticRegistration:
    return StaticRegistration(topics)


def white(raw: str, count: int = 1) -> WildcardRegistration:
    return WildcardRegistration(TopicFilter.of(raw, exclude=False), count)


def named(found: dict[TopicPartition, int]) -> dict[str, int]:
    return {f"{p.topic}/{p.name}": stream for p, stream in found.items()}


def test_case_39_two_streams_then_a_second_member() -> None:
    topics = {"t": {1: 3}}
    alone = GroupSnapshot({"g_a": static(t=2)}, topics)
    assert named(share("g_a", alone)) == {"t/1-0": 0, "t/1-1": 0, "t/1-2": 1}
    both = GroupSnapshot({"g_a": static(t=2), "g_b": static(t=1)}, topics)
    assert named(share("g_a", both)) == {"t/1-0": 0, "t/1-1": 1}
    assert named(share("g_b", both)) == {"t/1-2": 0}
    held = {tp(0): "g_a-0", tp(1): "g_a-0", tp(2): "g_a-1"}
    decided = plan("g_a", both, held)
    assert decided.release == {tp(1), tp(2)}  # 1-1 changes its stream: its owners node must say so
    assert decided.claim == {tp(1): "g_a-1"}
    assert decided.target == {tp(0): 0, tp(1): 1}


def test_topics_are_cut_independently_among_those_who_want_them() -> None:
    view = GroupSnapshot({"a": static(t=1, u=1), "b": static(t=2), "c": white("u.*")}, {"t": {1: 3}, "u": {1: 3}})
    assert named(share("a", view)) == {"t/1-0": 0, "u/1-0": 0, "u/1-1": 0}
    assert named(share("b", view)) == {"t/1-1": 0, "t/1-2": 1}
    assert named(share("c", view)) == {"u/1-2": 0}


def test_wildcards_take_what_they_match_and_nothing_that_does_not_exist() -> None:
    view = GroupSnapshot({"a": white("z.*", 2)}, {"za": {1: 1}, "zb": {2: 2}, "other": {1: 9}})
    assert named(share("a", view)) == {"za/1-0": 0, "zb/2-0": 0, "zb/2-1": 1}


def test_a_static_topic_that_does_not_exist_yet_has_no_partitions() -> None:
    assert share("a", GroupSnapshot({"a": static(t=1)}, {})) == {}


def test_a_member_that_is_not_registered_owns_nothing() -> None:
    view = GroupSnapshot({"b": static(t=1)}, {"t": {1: 1}})
    assert plan("a", view, {tp(0): "a-0"}).release == {tp(0)}
    assert plan("a", view, {}).target == {}


def test_expiry_is_a_plan_that_claims_everything() -> None:
    view = GroupSnapshot({"a": static(t=1)}, {"t": {1: 2}})
    decided = plan("a", view, {})
    assert (decided.release, decided.claim) == (frozenset(), {tp(0): "a-0", tp(1): "a-0"})


def test_an_unchanged_group_is_an_empty_plan() -> None:
    view = GroupSnapshot({"a": static(t=1)}, {"t": {1: 2}})
    decided = plan("a", view, plan("a", view, {}).claim)
    assert (decided.release, decided.claim) == (frozenset(), {})
    assert decided.target == {tp(0): 0, tp(1): 0}


def test_case_41_four_attempts_and_then_the_start_fails() -> None:
    story = [verdict(n, 4, owned=False, conflict=True) for n in (1, 2, 3, 4)]
    assert story == [*[MemberEvent.BLOCKED] * 3, MemberEvent.REFUSED]


def test_later_a_conflict_waits_for_the_next_change_and_trouble_is_tried_again() -> None:
    assert verdict(4, 4, owned=True, conflict=True) is MemberEvent.EXHAUSTED
    assert verdict(9, 4, owned=True, conflict=False) is MemberEvent.BLOCKED
    assert verdict(4, 4, owned=False, conflict=False) is MemberEvent.REFUSED


def test_the_reason_names_who_is_in_the_way() -> None:
    assert blocked_by({tp(2): "x-1", tp(1): "stranger-0"}) == "t/1-1 belongs to stranger-0 and 1 more"
    assert blocked_by({tp(1): "x-0"}) == "t/1-1 belongs to x-0"


registrations: st.SearchStrategy[Registration] = st.one_of(
    st.dictionaries(st.sampled_from(["t", "u"]), st.integers(1, 3), min_size=1).map(StaticRegistration),
    st.sampled_from([white("t"), white("u", 2), white(".*", 2)]),
)
views = st.builds(
    GroupSnapshot,
    st.dictionaries(st.sampled_from("abcdef"), registrations, min_size=1),
    st.dictionaries(st.sampled_from(["t", "u"]), st.dictionaries(st.integers(1, 12), st.integers(0, 4), max_size=4)),
)


@given(views)
def test_members_with_the_same_view_own_every_wanted_partition_once(view: GroupSnapshot) -> None:
    shares = {member: share(member, view) for member in view.members}
    owned = sorted(p for mine in shares.values() for p in mine)
    wanted = {t for t in view.topics if any(r.streams(t) for r in view.members.values())}
    assert owned == sorted(TopicPartition(t, n, b) for t in wanted for b, c in view.topics[t].items() for n in range(c))
    for member, mine in shares.items():
        assert all(0 <= stream < view.members[member].streams(p.topic) for p, stream in mine.items())


@given(views, views)
def test_releasing_and_claiming_leads_from_any_view_to_any_other(old: GroupSnapshot, new: GroupSnapshot) -> None:
    """Whatever the order: nobody waits for ever, because everybody first releases what is not its own."""
    owners: dict[TopicPartition, str] = {}
    held = {member: dict(plan(member, old, {}).claim) for member in old.members}
    for mine in held.values():
        owners.update(mine)
    plans = {member: plan(member, new, held.get(member, {})) for member in {*old.members, *new.members}}
    for decided in plans.values():
        for p in decided.release:
            del owners[p]
    for decided in plans.values():
        assert not decided.claim.keys() & owners.keys()
        owners.update(decided.claim)
    expected = {p: thread_id(m, s) for m in new.members for p, s in share(m, new).items()}
    assert owners == expected


def test_every_state_is_reachable_and_only_failed_is_an_end() -> None:
    reached, todo = set(), [MEMBER.start]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo.extend(target for (source, _), target in MEMBER.transitions.items() if source is state)
    assert reached == set(MemberState)
    assert reached - {source for source, _ in MEMBER.transitions} == {MemberState.FAILED}


@pytest.mark.parametrize("state", [MemberState.OWNING, MemberState.BACKING_OFF, MemberState.STUCK])
def test_whoever_waits_hears_of_the_group_and_of_the_session(state: MemberState) -> None:
    assert MEMBER.after(state, MemberEvent.CHANGED) is MemberState.JOINING
    assert MEMBER.after(state, MemberEvent.SUSPENDED) is MemberState.SUSPENDED
    assert MEMBER.after(state, MemberEvent.EXPIRED) is MemberState.EXPIRED


def test_every_event_has_a_place() -> None:
    assert {event for _, event in MEMBER.transitions} == set(MemberEvent)
