"""Which topics are copied where, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.mirror.planning import (
    ClusterTopics,
    MirrorRefused,
    PlannedTopic,
    TargetTopic,
    check,
    check_running,
    chosen_topics,
    plan_topics,
)
from odradek.mirror.stored import CopiedTopic, CopyRule, CopyTarget, Finished, MirrorIdentity, StoredState
from odradek.types import TopicPartition

from .mirrors import config_of

IDENTITY = MirrorIdentity("old", "new")


def parts(topic: str, count: int, broker: int = -1) -> list[TopicPartition]:
    return [TopicPartition(topic, number, broker) for number in range(count)]


def clusters(target: dict[str, TargetTopic] | None = None, mirrors: Any = None, **source: int) -> ClusterTopics:
    return ClusterTopics(IDENTITY, {name: parts(name, n) for name, n in source.items()}, target or {}, mirrors or {})


def copied(topic: str, count: int, target: str | None = None, target_id: str | None = "1") -> CopiedTopic:
    destinations = {p: CopyTarget(p.partition, 0) for p in parts(topic, count)}
    return CopiedTopic(topic, target or topic, target_id, destinations)


def state(*topics: CopiedTopic, identity: MirrorIdentity | None = IDENTITY) -> StoredState:
    return StoredState("odradek.mirror.m", identity, {topic.source: topic for topic in topics})


NOTHING = StoredState("odradek.mirror.m")
EMPTY = TargetTopic("1", 2, 0)


# ---- what is refused -----------------------------------------------------------------------------------------


def back(*targets: str, source: str = "new") -> StoredState:
    """Return what a mirror stores on the source that copies from our target."""
    return state(*(copied(f"x.{name}", 1, name) for name in targets), identity=MirrorIdentity(source, "old"))


REFUSED = [
    ("the same cluster", NOTHING, replace(clusters(t=2), identity=MirrorIdentity("x", "x")), "source and target are"),
    (
        "another source",
        state(identity=MirrorIdentity("a", "new")),
        clusters(t=2),
        "'m' copies from a, and .* old",
    ),
    ("finished", replace(state(), finished=Finished(5)), clusters(t=2), "the mirror 'm' is finished"),
    ("no such topic", NOTHING, clusters(u=1), "the source has no topic 't'"),
    ("other partitions", NOTHING, clusters({"t": TargetTopic("1", 3, 0)}, t=2), "3 partitions on the target, and 2 on"),
    ("not empty", NOTHING, clusters({"t": TargetTopic("1", 2, 9)}, t=2), "'t' has records on the target"),
    ("target deleted", state(copied("t", 2)), clusters(t=2), "'t' was deleted on the target"),
    ("made again", state(copied("t", 2)), clusters({"t": TargetTopic("2", 2, 0)}, t=2), "deleted and made again on"),
    ("renamed later", state(copied("t", 2, "u")), clusters(t=2), "being copied to 'u', and this file says 't'"),
    ("grown", state(copied("t", 2)), clusters({"t": TargetTopic("1", 5, 9)}, t=3), "'t' has 5 partitions .* and 3 on"),
    (
        "new partition not empty",
        state(copied("t", 2)),
        clusters({"t": TargetTopic("1", 3, 9, (0, 2))}, t=3),
        "'t' has records in partition 2 on the target, which is new on the source",
    ),
    ("a loop", NOTHING, clusters(mirrors={"back": back("t")}, t=2), "'t': the mirror 'back' copies it from the target"),
]


@pytest.mark.parametrize(("before", "now", "noted"), [(None, "1", "1"), ("1", None, "1"), (None, None, None)])
def test_a_target_that_was_upgraded_to_a_release_with_ids_has_the_same_topics(
    before: str | None, now: str | None, noted: str | None
) -> None:
    known, both = state(copied("t", 2, target_id=before)), clusters({"t": TargetTopic(now, 2, 9)}, t=2)
    check(config_of("t"), known, both)
    (planned,) = plan_topics(config_of("t"), known, both, 1)
    assert planned.copied.target_id == noted


BY_KEY = {"partition_by": "key"}


def by_key(partitions: int = 4, key_field: str | None = None, by: str = "key") -> StoredState:
    return state(replace(copied("t", 2), rule=CopyRule(by, key_field, partitions)))


REFUSED_BY_KEY: list[tuple[StoredState, TargetTopic, dict[str, Any], str]] = [
    (NOTHING, TargetTopic("1", 4, 9), BY_KEY, "'t' has records on the target"),
    (NOTHING, TargetTopic("1", 4, 0), {**BY_KEY, "partitions": 5}, "4 partitions on the target, and 5 in this file"),
    (by_key(), TargetTopic("1", 4, 9), {}, "copied by key to 4 partitions, and this file says by source"),
    (state(copied("t", 2)), TargetTopic("1", 2, 9), BY_KEY, "copied by source, and this file says by key"),
    (by_key(), TargetTopic("1", 4, 9), {**BY_KEY, "key_field": "id"}, r"says by key \(id\) to 4 partitions"),
    (by_key(key_field="id"), TargetTopic("1", 4, 9), BY_KEY, r"copied by key \(id\) to 4"),
    (by_key(by="builtins:len"), TargetTopic("1", 4, 9), BY_KEY, "copied by builtins:len to 4"),
    (by_key(), TargetTopic("1", 4, 9), {**BY_KEY, "partitions": 6}, "this file says by key to 6 partitions"),
    (by_key(), TargetTopic("1", 5, 9), BY_KEY, "had 4 partitions .* by key to 4 partitions began, and has 5"),
    (by_key(), TargetTopic("2", 4, 9), BY_KEY, "deleted and made again on the target"),
]


@pytest.mark.parametrize(("before", "target", "keys", "why"), REFUSED_BY_KEY)
def test_refused_by_key(before: StoredState, target: TargetTopic, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(MirrorRefused, match=why):
        check(config_of("t", topics=keys), before, clusters({"t": target}, t=2))


PLANNED_BY_KEY: list[tuple[StoredState, TargetTopic | None, dict[str, Any], int, int | None]] = [
    (NOTHING, None, {}, 3, 3),
    (NOTHING, None, {"partitions": 7}, 7, 7),
    (NOTHING, TargetTopic("1", 5, 0), {}, 5, None),
    (NOTHING, TargetTopic("1", 5, 9), {"append": True}, 5, None),
    (by_key(), TargetTopic("1", 4, 9), {}, 4, None),
    (by_key(), TargetTopic("1", 4, 9), {"partitions": 4}, 4, None),
]


@pytest.mark.parametrize(("before", "target", "keys", "partitions", "create"), PLANNED_BY_KEY)
def test_planned_by_key(
    before: StoredState, target: TargetTopic | None, keys: dict[str, Any], partitions: int, create: int | None
) -> None:
    config = config_of("t", topics={**BY_KEY, **keys})
    topics = clusters({} if target is None else {"t": target}, t=3)
    check(config, before, topics)
    (planned,) = plan_topics(config, before, topics, 2)
    assert planned.copied.rule == CopyRule("key", None, partitions)
    assert (planned.create, planned.grow) == (create, None)
    assert planned.copied.partitions.keys() == set(parts("t", 3))


def test_records_without_keys_of_many_brokers_share_the_partitions() -> None:
    old = replace(clusters(), source={"t": [*parts("t", 2, 5), *parts("t", 3, 9)]})
    (planned,) = plan_topics(config_of("t", topics={**BY_KEY, "partitions": 2}), NOTHING, old, 1)
    assert [to.partition for to in planned.copied.partitions.values()] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(("before", "topics", "why"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused(before: StoredState, topics: ClusterTopics, why: str) -> None:
    with pytest.raises(MirrorRefused, match=why):
        check(config_of("t"), before, topics)


TAKEN = [
    ("new", NOTHING, clusters(t=2), {}),
    ("empty target", NOTHING, clusters({"t": EMPTY}, t=2), {}),
    ("append", NOTHING, clusters({"t": TargetTopic("1", 2, 9)}, t=2), {"append": True}),
    ("goes on", state(copied("t", 2)), clusters({"t": TargetTopic("1", 2, 9)}, t=2), {}),
    ("new partitions", state(copied("t", 2)), clusters({"t": TargetTopic("1", 2, 9)}, t=3), {}),
    ("made before it was stored", state(copied("t", 2)), clusters({"t": TargetTopic("1", 3, 9)}, t=3), {}),
    (
        "new partition, append",
        state(copied("t", 2)),
        clusters({"t": TargetTopic("1", 3, 9, (2,))}, t=3),
        {"append": True},
    ),
    ("copied before", state(copied("t", 3)), clusters({"t": TargetTopic("1", 3, 9, (0, 1, 2))}, t=3), {}),
    ("target grew", state(copied("t", 2)), clusters({"t": TargetTopic("1", 3, 9)}, t=2), {}),
    ("a mirror of other topics", NOTHING, clusters(mirrors={"back": back("u")}, t=2), {}),
    ("a mirror of another cluster", NOTHING, clusters(mirrors={"back": back("t", source="third")}, t=2), {}),
    ("a finished one", NOTHING, clusters(mirrors={"b": replace(back("t"), finished=Finished(1))}, t=2), {}),
    ("a mirror without a state", NOTHING, clusters(mirrors={"b": NOTHING}, t=2), {}),
]


@pytest.mark.parametrize(("before", "topics", "keys"), [row[1:] for row in TAKEN], ids=[row[0] for row in TAKEN])
def test_not_refused(before: StoredState, topics: ClusterTopics, keys: dict[str, Any]) -> None:
    check(config_of("t", topics=keys), before, topics)


def test_all_reasons_are_told() -> None:
    config = config_of("t", "u", "v", topics={"rename": {"u": "t"}})
    with pytest.raises(MirrorRefused) as raised:
        check(config, NOTHING, clusters(t=1, u=1))
    assert raised.value.mistakes == (
        "topics.include: the source has no topic 'v'",
        "topic 't' is one of 2 that would be copied to 't'",
        "topic 'u' is one of 2 that would be copied to 't'",
    )
    assert str(raised.value) == "\n".join(raised.value.mistakes)


# ---- while it copies -----------------------------------------------------------------------------------------


def test_a_new_topic_that_is_refused_leaves_the_others_alone() -> None:
    target = {"t": TargetTopic("1", 2, 9), "u": TargetTopic("5", 1, 4)}
    topics = clusters(target, {"back": back("v")}, t=2, u=1, v=1, w=1)
    taken, refused = check_running(config_of(topics={"pattern": ".*"}), state(copied("t", 2)), topics)
    assert sorted(taken.source) == ["t", "w"]
    assert [text.partition(":")[0] for text in refused] == ["topic 'u' has records on the target", "topic 'v'"]


def test_a_copied_topic_that_is_refused_ends_it() -> None:
    with pytest.raises(MirrorRefused, match="'t' was deleted on the target"):
        check_running(config_of(topics={"pattern": ".*"}), state(copied("t", 2)), clusters(t=2, u=1))


def test_a_new_topic_does_not_take_the_place_of_a_copied_one() -> None:
    config = config_of(topics={"pattern": ".*", "rename": {"u": "t"}})
    taken, refused = check_running(config, state(copied("t", 2)), clusters({"t": TargetTopic("1", 2, 9)}, t=2, u=1))
    assert list(taken.source) == ["t"] and refused == ["topic 'u' is one of 2 that would be copied to 't'"]


def test_a_mirror_that_was_finished_meanwhile_ends_it() -> None:
    with pytest.raises(MirrorRefused, match="is finished"):
        check_running(config_of("t"), replace(state(copied("t", 2)), finished=Finished(1)), clusters({"t": EMPTY}, t=2))


# ---- what goes where -----------------------------------------------------------------------------------------


def test_internal_topics_are_chosen_by_name_alone() -> None:
    topics = ["__consumer_offsets", "odradek.mirror.x", "a", "b"]
    assert chosen_topics(config_of(topics={"pattern": ".*"}), topics) == ["a", "b"]
    assert chosen_topics(config_of("odradek.mirror.x"), topics) == ["odradek.mirror.x"]


def destinations(planned: Iterable[PlannedTopic]) -> dict[TopicPartition, CopyTarget]:
    return {p: to for topic in planned for p, to in topic.copied.partitions.items()}


@settings(max_examples=20)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 5), st.data())
def test_destinations_stay_and_tasks_are_balanced(counts: list[int], tasks: int, data: st.DataObject) -> None:
    config, known = config_of(topics={"pattern": ".*"}), state()
    for _ in range(3):
        source = {f"t{n}": count for n, count in enumerate(counts)}
        target = {name: TargetTopic("1", len(each.partitions), 9) for name, each in known.topics.items()}
        planned = plan_topics(config, known, clusters(target, **source), tasks)
        assert planned == plan_topics(config, known, clusters(target, **source), tasks)
        after = destinations(planned)
        assert {p: after[p] for topic in known.topics.values() for p in topic.partitions} == {
            p: to for topic in known.topics.values() for p, to in topic.partitions.items()
        }
        assert all(to.partition == p.partition for p, to in after.items())
        load = Counter(to.task for to in after.values())
        assert max(load.values()) - min(load[task] for task in range(tasks)) <= 1
        for topic in planned:
            wanted = source[topic.copied.source]
            exists = target.get(topic.copied.target)
            assert topic.create == (wanted if exists is None else None)
            assert topic.grow == (wanted if exists is not None and wanted > exists.partitions else None)
        known = state(*(replace(topic.copied, target_id="1") for topic in planned))
        counts = [count + data.draw(st.integers(0, 3)) for count in counts] + [1]


def test_new_brokers_of_07_keep_the_partitions_of_the_old_ones() -> None:
    config = config_of("t")
    old = replace(clusters(), source={"t": [*parts("t", 2, 5), *parts("t", 1, 9)]})
    first = plan_topics(config, NOTHING, old, 4)
    assert first[0].create == 3
    assert [to.partition for to in destinations(first).values()] == [0, 1, 2]
    both = replace(old, source={"t": [*parts("t", 2, 1), *old.source["t"]]}, target={"t": TargetTopic("1", 3, 4)})
    second = plan_topics(config, state(*(topic.copied for topic in first)), both, 4)
    assert destinations(second).items() >= destinations(first).items()
    assert [destinations(second)[p].partition for p in parts("t", 2, 1)] == [3, 4]
    assert second[0].grow == 5
    fewer = replace(both, source={"t": parts("t", 2, 1)}, target={"t": TargetTopic("1", 5, 4)})
    third = plan_topics(config, state(*(topic.copied for topic in second)), fewer, 4)
    assert destinations(third) == destinations(second) and third[0].grow is None
