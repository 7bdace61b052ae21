"""Topics and the destinations they are copied to: pure decisions about what both clusters look like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from odradek.errors import ConfigError
from odradek.mirror.config import TOPICS, MirrorConfig
from odradek.mirror.sources import servers_of
from odradek.mirror.stored import CopiedTopic, CopyRule, CopyTarget, MirrorIdentity, StoredState
from odradek.types import TopicPartition, by_broker

__all__ = [
    "ClusterTopics",
    "MirrorRefused",
    "PlannedTopic",
    "TargetTopic",
    "TopicsAway",
    "check",
    "check_running",
    "check_translatable",
    "finished_text",
    "lost_text",
    "plan_topics",
]

INTERNAL = ("__", TOPICS)
"""Beginnings of names of topics that belong to a cluster, or to mirrors, and are not copied by a pattern."""


class MirrorRefused(ConfigError):
    """Copying would be wrong, or would write into what is not the mirror's. Nothing was written.

    Args:
        mistakes: All reasons, each with what to do about it.
    """

    def __init__(self, *mistakes: str) -> None:
        super().__init__(*mistakes)
        self.mistakes = mistakes

    def message(self) -> str:
        return "\n".join(self.mistakes)


class TopicsAway(MirrorRefused):
    """The source has none of the partitions of a topic, and that is all that is wrong. A broker that has just started
    knows no topics for a moment, and in 0.7 the partitions of a broker are away while it is; or the topic was deleted.

    Args:
        mistakes: See `MirrorRefused`.
        copied: All of these topics were copied before.
    """

    def __init__(self, *mistakes: str, copied: bool) -> None:
        super().__init__(*mistakes)
        self.copied = copied


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic of the target.

    Args:
        topic_id: Its id, where brokers have ids.
        partitions: How many it has.
        records: How many offsets its log spans.
        written: Numbers of the partitions that have records.
    """

    topic_id: str | None
    partitions: int
    records: int
    written: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class ClusterTopics:
    """Topics and ids of both clusters.

    Args:
        identity: The clusters.
        source: Topic -> its partitions, of topics that are chosen.
        target: Topic -> what it is, of those that the chosen topics are copied to.
        mirrors: Name -> what it stores, of mirrors that copy to the source.
    """

    identity: MirrorIdentity
    source: Mapping[str, Sequence[TopicPartition]]
    target: Mapping[str, TargetTopic]
    mirrors: Mapping[str, StoredState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """A topic that is copied.

    Args:
        copied: Where its partitions go; `target_id` is None for a topic that has to be made.
        create: How many partitions the topic on the target is to be made with; None: it exists.
        grow: How many partitions it is to have; None: it has enough.
    """

    copied: CopiedTopic
    create: int | None = None
    grow: int | None = None


def chosen_topics(config: MirrorConfig, topics: Iterable[str]) -> list[str]:
    """Return those of a cluster's topics that are to be copied, in order."""
    wanted = config.topics
    return sorted(t for t in topics if wanted.takes(t) and (t in wanted.include or not t.startswith(INTERNAL)))


def check(config: MirrorConfig, state: StoredState, topics: ClusterTopics) -> None:
    """Compare what is to be copied with what both clusters look like.

    Raises:
        TopicsAway: Topics of the source are missing, and nothing else is wrong.
        MirrorRefused: Something is wrong.
    """
    missing = [name for name in config.topics.include if name not in topics.source]
    away = [f"topics.include: the source has no topic {name!r}" for name in missing]
    mistakes = [*_of_clusters(config, state, topics), *away]
    for name in topics.source:
        mistakes += _of_topic(config, state.topics.get(name), name, topics)
    if mistakes != away:
        raise MirrorRefused(*mistakes)
    if away:
        raise TopicsAway(*away, copied=state.topics.keys() >= set(missing))


def check_running(
    config: MirrorConfig, state: StoredState, topics: ClusterTopics
) -> tuple[ClusterTopics, Sequence[str]]:
    """Do the same while a mirror copies: return the topics that can be copied, and why others cannot, which are new.

    Raises:
        MirrorRefused: Something is wrong with what is being copied.
    """
    copied = {name: partitions for name, partitions in topics.source.items() if name in state.topics}
    running = replace(topics, source=copied)
    mistakes = _of_clusters(config, state, running)
    for name in copied:
        mistakes += _of_topic(config, state.topics[name], name, running)
    if mistakes:
        raise MirrorRefused(*mistakes)
    refused = {
        name: [*_of_loops(topics, [name]), *_of_topic(config, None, name, topics)]
        for name in topics.source
        if name not in copied
    }
    taken = {name: partitions for name, partitions in topics.source.items() if not refused.get(name)}
    return replace(topics, source=taken), [mistake for each in refused.values() for mistake in each]


def finished_text(config: MirrorConfig) -> str:
    """Return why a mirror that is finished does not copy."""
    return f"the mirror {config.name!r} is finished, and copies nothing any more: give this one another name"


def lost_text(topic: str) -> str:
    """Return why a mirror cannot go on whose own topic is not the one that it wrote to."""
    return f"{topic} was deleted on the target, or made again: give this mirror another name"


def _of_clusters(config: MirrorConfig, state: StoredState, topics: ClusterTopics) -> list[str]:
    stored, now = state.identity, topics.identity
    if now.source == now.target:
        return [f"source and target are the same cluster ({now.source}): a mirror copies from one cluster to another"]
    if state.finished is not None:
        return [finished_text(config)]
    same = (now.source, servers_of(config.source.url))  # it has an id since it was upgraded to 0.10.1 or later
    if stored is not None and stored.source not in same:
        return [
            f"the mirror {config.name!r} copies from {stored.source}, and this file names {now.source}: "
            "give this mirror another name"
        ]
    return _of_loops(topics, topics.source)


def _of_loops(topics: ClusterTopics, names: Iterable[str]) -> list[str]:
    """Return which topics a mirror in the other direction writes: their records would go round and round."""
    back = {
        (copied.target, mirror)
        for mirror, state in topics.mirrors.items()
        if state.identity is not None and state.identity.source == topics.identity.target and state.finished is None
        for copied in state.topics.values()
    }
    chosen = set(names)
    return [
        f"topic {name!r}: the mirror {mirror!r} copies it from the target to the source, and this one would copy it "
        f"back: leave it out (topics.exclude), or finish {mirror!r} first"
        for name, mirror in sorted(back)
        if name in chosen
    ]


def _of_topic(config: MirrorConfig, copied: CopiedTopic | None, name: str, topics: ClusterTopics) -> list[str]:
    target_name = config.topics.target_name(name)
    target = topics.target.get(target_name)
    if len(same := [each for each in topics.source if config.topics.target_name(each) == target_name]) > 1:
        return [f"topic {name!r} is one of {len(same)} that would be copied to {target_name!r}"]
    if copied is not None and copied.target != target_name:
        return [f"topic {name!r} is being copied to {copied.target!r}, and this file says {target_name!r}"]
    if copied is not None and (target is None or _has_another_id(target, copied)):
        what = "was deleted" if target is None else "was deleted and made again"
        return [
            f"topic {target_name!r} {what} on the target after records had been copied to it: "
            "give this mirror another name to copy them again"
        ]
    if target is None:
        return []
    wanted = len(topics.source[name]) if config.topics.by_source else config.topics.partitions or target.partitions
    if copied is not None:
        return (
            _of_rule(config, copied, target)
            or _of_growth(copied, target, wanted)
            or _of_new_partitions(config, copied, target, topics.source[name])
        )
    if target.partitions != wanted:
        where = "on the source" if config.topics.by_source else "in this file (topics.partitions)"
        return [
            f"topic {target_name!r} has {target.partitions} partitions on the target, and {wanted} {where}: "
            "delete it, or rename it in this file (topics.rename)"
        ]
    if target.records and not config.topics.append:
        return [
            f"topic {target_name!r} has records on the target: delete them, rename it in this file (topics.rename), or "
            "set topics.append = true"
        ]
    return []


def _has_another_id(target: TargetTopic, copied: CopiedTopic) -> bool:
    """Return True if a topic of the target is not the one that was copied to. Brokers that have been upgraded to 2.8
    have an id for a topic that had none."""
    return None not in (target.topic_id, copied.target_id) and target.topic_id != copied.target_id


def _of_rule(config: MirrorConfig, copied: CopiedTopic, target: TargetTopic) -> list[str]:
    """Return why a topic cannot go on by the file's rule: the records of a key would be in two partitions."""
    rule = copied.rule
    before, now = _rule_text(rule), _rule_text(_rule(config, None if rule is None else rule.partitions))
    if before != now:
        return [
            f"topic {copied.source!r} is being copied {before}, and this file says {now}: give this mirror another name"
        ]
    if rule is None or target.partitions == rule.partitions:
        return []
    return [
        f"topic {copied.target!r} had {rule.partitions} partitions on the target when copying {before} began, and has "
        f"{target.partitions}: copy it elsewhere in another mirror"
    ]


def _rule_text(rule: CopyRule | None) -> str:
    if rule is None:
        return "by source"
    field = "" if rule.key_field is None else f" ({rule.key_field})"
    return f"by {rule.by}{field} to {rule.partitions} partitions"


def _rule(config: MirrorConfig, partitions: int | None) -> CopyRule | None:
    """Return the rule of the file."""
    wanted = config.topics
    if wanted.by_source:
        return None
    return CopyRule(wanted.partition_by, wanted.key_field, wanted.partitions or partitions or 0)


def check_translatable(config: MirrorConfig) -> None:
    """Raise MirrorRefused if a rule divides the records of a partition: its positions are nowhere on the target."""
    if not config.topics.by_source:
        raise MirrorRefused(
            f"topics.partition_by is {config.topics.partition_by!r}: a position of a group in one partition of the "
            "source is one in each partition of the target, so that none is translated: let groups begin there at the "
            "start of the topics, at a time, or at their end"
        )


def _of_growth(copied: CopiedTopic, target: TargetTopic, wanted: int) -> list[str]:
    if len(copied.partitions) < wanted < target.partitions:
        return [
            f"topic {copied.target!r} has {target.partitions} partitions on the target, and {wanted} on the source, "
            "where new ones were added: add as many on the source, or copy it elsewhere in another mirror"
        ]
    return []


def _of_new_partitions(
    config: MirrorConfig, copied: CopiedTopic, target: TargetTopic, source: Iterable[TopicPartition]
) -> list[str]:
    """Return why partitions that are new on the source cannot be copied to those that the target has already."""
    if copied.rule is not None or config.topics.append:
        return []
    return [
        f"topic {copied.target!r} has records in partition {number} on the target, which is new on the source: delete "
        "them, or set topics.append = true"
        for _, number in _new_partitions(source, copied.partitions)
        if number in target.written
    ]


def plan_topics(config: MirrorConfig, state: StoredState, topics: ClusterTopics, tasks: int) -> list[PlannedTopic]:
    """Return what is copied where: what the mirror has decided before stays, new partitions are added.

    Args:
        config: The file.
        state: What the topic of the mirror says.
        topics: Both clusters, as `check` accepts them.
        tasks: How many tasks there are.
    """
    load = Counter(to.task for topic in state.topics.values() for to in topic.partitions.values())
    planned = []
    for name, partitions in topics.source.items():
        target_name = config.topics.target_name(name)
        target, known = topics.target.get(target_name), state.topics.get(name)
        destinations = dict(known.partitions) if known is not None else {}
        rule = _rule(config, len(partitions) if target is None else target.partitions) if known is None else known.rule
        for partition, number in _new_partitions(partitions, destinations):
            task = min(range(tasks), key=lambda number: (load[number], number))
            load[task] += 1
            destinations[partition] = CopyTarget(number if rule is None else number % rule.partitions, task)
        count = 1 + max((to.partition for to in destinations.values()), default=0)
        if rule is not None:
            count = rule.partitions
        noted = None if known is None else known.target_id
        target_id = None if target is None else target.topic_id or noted
        copied = CopiedTopic(name, target_name, target_id, destinations, rule)
        grow = count if target is not None and count > target.partitions else None
        planned.append(PlannedTopic(copied, count if target is None else None, grow))
    return planned


def _new_partitions(
    source: Iterable[TopicPartition], known: Mapping[TopicPartition, CopyTarget]
) -> list[tuple[TopicPartition, int]]:
    """Return the partitions that are not known yet, each with its number on the target: its own; of one of a 0.7
    broker, the next that is free."""
    new = sorted(set(source) - known.keys(), key=by_broker)
    return [(p, p.partition if p.broker < 0 else number) for number, p in enumerate(new, len(known))]
