"""Places in many partitions as JSON: what Spark keeps in a checkpoint, and what users write into options.

Kept in a checkpoint: `{"v":1,"topics":{"orders":{"0-1":123}}}`; a partition is `broker-partition` (0.7) or its number.
Spark compares such offsets by their text and starts a batch when it differs, so equal offsets must give the same text:
names are sorted, as strings.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from odradek.errors import ConfigError
from odradek.types import EARLIEST, LATEST, AtTime, Position, PositionSpec, TopicPartition

__all__ = [
    "Offsets",
    "PartitionPosition",
    "Positions",
    "dump_offsets",
    "load_offsets",
    "offsets_from_dict",
    "offsets_to_dict",
    "parse_assign",
    "parse_partition",
    "parse_positions",
    "parse_time",
    "parse_times",
]

Offsets = Mapping[TopicPartition, Position]
"""The position of each partition's next message to read."""

PartitionPosition = Position | PositionSpec | AtTime
Positions = PositionSpec | AtTime | Mapping[TopicPartition, PartitionPosition]
"""Start or end positions: the same for all partitions, or one for each."""

VERSION = 1

LARGEST = (1 << 63) - 1
"""The largest position, on the wire and in Spark's `bigint`."""

_PARTITION = re.compile(r"(?:(?P<broker>0|[1-9][0-9]{0,9})-)?(?P<partition>0|[1-9][0-9]{0,9})", re.ASCII)


# ---- what a checkpoint keeps ---------------------------------------------------------------------------------


def offsets_to_dict(offsets: Offsets) -> dict[str, Any]:
    """The value that Spark writes as JSON; the same for equal offsets, also in the order of its keys."""
    topics: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets, key=lambda p: (p.topic, p.name)):
        topics.setdefault(partition.topic, {})[partition.name] = int(offsets[partition])
    return {"v": VERSION, "topics": topics}


def offsets_from_dict(value: Any) -> dict[TopicPartition, Position]:
    """The inverse of `offsets_to_dict`. Raises ConfigError, which says what is not as it should be."""
    if not isinstance(value, dict) or value.keys() != {"v", "topics"}:
        raise ConfigError(f'offsets are {{"v":{VERSION},"topics":{{...}}}}, not {_shown(value)}')
    if type(value["v"]) is not int or value["v"] != VERSION:
        raise ConfigError(f"offsets of version {_shown(value['v'])}: this version of odradek reads version {VERSION}")
    resolved: dict[TopicPartition, Position] = {}
    for partition, position in _each(value["topics"], "offsets"):
        resolved[partition] = Position(_integer(position, 0, f"offset of {partition}"))
    return resolved


def dump_offsets(offsets: Offsets) -> str:
    """Offsets as JSON, without blanks."""
    return json.dumps(offsets_to_dict(offsets), ensure_ascii=False, separators=(",", ":"))


def load_offsets(text: str) -> dict[TopicPartition, Position]:
    """The inverse of `dump_offsets`, for JSON with any blanks and in any order. Raises ConfigError."""
    return offsets_from_dict(_parse(text, "offsets"))


# ---- what options say ----------------------------------------------------------------------------------------


def parse_assign(text: str, option: str = "assign") -> tuple[TopicPartition, ...]:
    """`{"orders":["0-1","1-1"]}` -> partitions, in canonical order. Raises ConfigError."""
    value = _parse(text, option)
    shape = f'{option}: {{"topic":["0-1",...]}} names partitions as broker-partition'
    if not isinstance(value, dict) or not all(isinstance(names, list) and names for names in value.values()):
        raise ConfigError(f"{shape}, not {_shown(value)}")
    resolved = [_partition(topic, name, option) for topic, names in value.items() for name in names]
    if not resolved:
        raise ConfigError(f"{shape}: it names none")
    twice = [str(partition) for partition, count in Counter(resolved).items() if count > 1]
    if twice:
        raise ConfigError(f"{option}: names {', '.join(sorted(twice))} more than once")
    return tuple(sorted(resolved))


def parse_positions(text: str, option: str, *, anchors: Collection[PositionSpec] = (EARLIEST, LATEST)) -> Positions:
    """`earliest`, `latest`, or `{"orders":{"0-1":123,"1-1":-2}}` with -2 for earliest and -1 for latest.

    Args:
        text: The option's value.
        option: Its name.
        anchors: Which of the two make sense here.
    """
    allowed = {anchor.name.lower(): anchor for anchor in anchors}
    if not text.lstrip().startswith("{"):
        if (anchor := allowed.get(text.strip().lower())) is not None:
            return anchor
        raise ConfigError(f'{option}={text[:80]!r}: must be {", ".join(allowed)} or JSON {{"topic":{{"0-1":123}}}}')
    return {
        partition: _parse_position(number, f"{option}: offset of {partition}", anchors)
        for partition, number in _each(_parse(text, option), option)
    }


def parse_times(text: str, option: str) -> Mapping[TopicPartition, AtTime]:
    """`{"orders":{"0-1":1700000000000}}`, in milliseconds since the epoch. Raises ConfigError."""
    return {
        partition: AtTime(_integer(number, 0, f"{option}: time of {partition}") / 1000)
        for partition, number in _each(_parse(text, option), option)
    }


def parse_time(text: str, option: str) -> AtTime:
    """Milliseconds since the epoch. Raises ConfigError."""
    if not re.fullmatch(r"[0-9]{1,18}", text.strip(), re.ASCII):
        raise ConfigError(f"{option}={text[:80]!r}: must be milliseconds since 1970, such as 1700000000000")
    return AtTime(int(text) / 1000)


def parse_partition(topic: str, name: str) -> TopicPartition | None:
    """`broker-partition`, or `partition` where brokers do not count; None: it is neither."""
    match = _PARTITION.fullmatch(name)
    if match is None:
        return None
    return TopicPartition(topic, int(match["partition"]), -1 if match["broker"] is None else int(match["broker"]))


def _partition(topic: str, name: object, what: str) -> TopicPartition:
    known = parse_partition(topic, str(name)) if isinstance(name, str) or type(name) is int else None
    if not topic or known is None:
        raise ConfigError(
            f'{what}: partition {_shown(name)} of topic {topic!r} must be "broker-partition", as in "0-1"'
        )
    return known


def _each(value: Any, what: str) -> Iterator[tuple[TopicPartition, Any]]:
    """The partitions of `{"topic": {"0-1": ...}}`."""
    if not isinstance(value, dict) or not all(isinstance(names, dict) for names in value.values()):
        raise ConfigError(f'{what}: topics are {{"topic":{{"0-1":...}}}}, not {_shown(value)}')
    for topic, names in value.items():
        for name, number in names.items():
            yield _partition(topic, name, what), number


def _parse_position(value: Any, what: str, anchors: Collection[PositionSpec]) -> PartitionPosition:
    for anchor in anchors:
        if type(value) is int and value == anchor.value:
            return anchor
    return Position(_integer(value, 0, what, "".join(f", or {anchor.value}" for anchor in anchors)))


def _integer(value: Any, least: int, what: str, also: str = "") -> int:
    if type(value) is int and least <= value <= LARGEST:
        return value
    raise ConfigError(f"{what} must be an integer of at least {least}{also}, not {_shown(value)}")


def _parse(text: str, what: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what}={text[:80]!r} is not JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    resolved = dict(pairs)
    if len(resolved) < len(pairs):
        raise ValueError(f"duplicate key: {', '.join(name for name, _ in pairs)[:80]}")
    return resolved


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
