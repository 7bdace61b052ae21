"""Offsets of partitions, the positions that a query begins and ends at, and offsets as JSON.

They are `{"v":1,"topics":{"orders":{"0-1":123}}}`; a partition is `broker-partition` (0.7) or its number. From 2.8 on
there is `"ids":{"orders":"..."}`, too: in a topic that was made again, the offsets say nothing. Spark compares offsets
by their text and starts a batch when it differs, so equal offsets must give the same text: names are sorted, as
strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from odradek.arguments import listed
from odradek.errors import ConfigError
from odradek.types import AtTime, Position, PositionSpec, TopicPartition

__all__ = [
    "NO_IDS",
    "NO_OFFSETS",
    "Offsets",
    "PartitionPosition",
    "Positions",
    "TopicIds",
    "checked_integer",
    "checked_partition",
    "each_partition",
    "ids_from_dict",
    "offsets_from_dict",
    "offsets_to_dict",
    "parse_partition",
    "resolve_broker",
    "resolve_per_partition",
    "shown",
]

Offsets = Mapping[TopicPartition, Position]
"""The position of each partition's next message to read."""

NO_OFFSETS: Offsets = {}

TopicIds = Mapping[str, str]
"""Topic -> the id of the topic that positions are in, where it is known: another topic of the same name has another."""

NO_IDS: TopicIds = {}

PartitionPosition = Position | PositionSpec | AtTime
Positions = PositionSpec | AtTime | Mapping[TopicPartition, PartitionPosition]
"""Start or end positions: the same for all partitions, or one for each."""

VERSION = 1

LARGEST = (1 << 63) - 1
"""The largest position, on the wire and in Spark's `bigint`."""

_PARTITION = re.compile(r"(?:(?P<broker>0|[1-9][0-9]{0,9})-)?(?P<partition>0|[1-9][0-9]{0,9})", re.ASCII)


def offsets_to_dict(offsets: Offsets, ids: TopicIds = NO_IDS) -> dict[str, Any]:
    """The value that Spark writes as JSON; the same for equal offsets, also in the order of its keys. With the ids of
    those topics whose id is known."""
    topics: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets, key=lambda p: (p.topic, p.name)):
        topics.setdefault(partition.topic, {})[partition.name] = int(offsets[partition])
    known = {topic: ids[topic] for topic in topics if topic in ids}
    return {"v": VERSION, "topics": topics, **({"ids": known} if known else {})}


def ids_from_dict(value: Any) -> dict[str, str]:
    """The ids of topics in what `offsets_to_dict` returns; earlier versions wrote none. Raises ConfigError."""
    ids = value.get("ids", {}) if type(value.get("v")) is int else {}
    if not isinstance(ids, dict) or not all(isinstance(each, str) for each in ids.values()):
        raise ConfigError(f'offsets: ids of topics are {{"topic":"id"}}, not {shown(ids)}')
    return ids


def offsets_from_dict(value: Any) -> dict[TopicPartition, Position]:
    """The inverse of `offsets_to_dict`, also of offsets as Spark's own source has them in its checkpoints: without
    version, `{"orders":{"0":123}}`, or `{}` before there is a topic. Raises ConfigError, which says what is not as it
    should be."""
    if isinstance(value, dict) and all(isinstance(each, dict) and each for each in value.values()):
        value = {"v": VERSION, "topics": value}
    if not isinstance(value, dict) or value.keys() - {"ids"} != {"v", "topics"}:
        raise ConfigError(f'offsets are {{"v":{VERSION},"topics":{{...}}}}, not {shown(value)}')
    if type(value["v"]) is not int or value["v"] != VERSION:
        raise ConfigError(f"offsets of version {shown(value['v'])}: this version of odradek reads version {VERSION}")
    return {p: Position(checked_integer(n, f"offset of {p}")) for p, n in each_partition(value["topics"], "offsets")}


def parse_partition(topic: str, name: str) -> TopicPartition | None:
    """`broker-partition`, or `partition` where brokers do not count; None: it is neither."""
    match = _PARTITION.fullmatch(name)
    return match and TopicPartition(topic, int(match["partition"]), int(match["broker"] or -1))


def checked_partition(topic: str, name: object, what: str) -> TopicPartition:
    """Return the partition of that name, or number. Raises ConfigError."""
    known = parse_partition(topic, str(name)) if isinstance(name, str) or type(name) is int else None
    if not topic or known is None:
        raise ConfigError(f'{what}: partition {shown(name)} of topic {topic!r} must be "broker-partition", as in "0-1"')
    return known


def each_partition(value: Any, what: str) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield the partitions of `{"topic": {"0-1": ...}}` with their values. Raises ConfigError."""
    if not isinstance(value, dict) or not all(isinstance(names, dict) for names in value.values()):
        raise ConfigError(f'{what}: topics are {{"topic":{{"0-1":...}}}}, not {shown(value)}')
    for topic, names in value.items():
        for name, number in names.items():
            yield checked_partition(topic, name, what), number


def checked_integer(value: Any, what: str, also: str = "") -> int:
    """Return a position. Raises ConfigError for anything else; `also` are other values that are right."""
    if type(value) is int and 0 <= value <= LARGEST:
        return value
    raise ConfigError(f"{what} must be an integer of at least 0{also}, not {shown(value)}")


def shown(value: Any) -> str:
    """Return a value as JSON for an error, cut off if it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


# ---- offsets of the partitions there are ---------------------------------------------------------------------


def resolve_per_partition(
    partitions: Iterable[TopicPartition], wanted: Positions, what: str
) -> dict[TopicPartition, PartitionPosition]:
    """Return the position of each partition. Raises ConfigError, which names `what`, if they are given one by one, but
    not for exactly these partitions (as in Spark)."""
    known = list(partitions)
    if isinstance(wanted, PositionSpec | AtTime):
        return dict.fromkeys(known, wanted)
    wanted = {resolve_broker(partition, known, what): position for partition, position in wanted.items()}
    for wrong, text in (
        (sorted(set(known) - wanted.keys()), "says nothing about"),
        (sorted(wanted.keys() - set(known)), "names partitions that are not part of this query:"),
    ):
        if wrong:
            raise ConfigError(f"{what} {text} {listed(wrong, 10)}")
    return {partition: wanted[partition] for partition in known}


def resolve_broker(partition: TopicPartition, known: Collection[TopicPartition], what: str) -> TopicPartition:
    """Return a partition that is named by its number alone, as from 0.8 on, with the broker of 0.7 that has it.

    Raises ConfigError if several have it.
    """
    if partition.broker >= 0 or partition in known:
        return partition
    matches = sorted(other for other in known if other._replace(broker=-1) == partition)
    if len(matches) > 1:
        names = " or ".join(f'"{other.name}"' for other in matches)
        raise ConfigError(f"{what}: {partition} is on {len(matches)} brokers: name it with its broker, {names}")
    return matches[0] if matches else partition
