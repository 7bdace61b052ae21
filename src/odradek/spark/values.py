"""Options as Spark passes them, and their values; offsets as JSON, in options and in checkpoints.

Spark lower-cases the names of options, so they are compared without regard to case. An option that is not known is an
error: one that is silently ignored loses data sooner or later. Every error names the option and what would be right.

A checkpoint keeps `{"v":1,"topics":{"orders":{"0-1":123}}}`; a partition is `broker-partition` (0.7) or its number.
From 2.8 on it has `"ids":{"orders":"..."}`, too: in a topic that was made again, the offsets say nothing.
Spark compares such offsets by their text and starts a batch when it differs, so equal offsets must give the same text:
names are sorted, as strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field, fields
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, TypeVar

from odradek.errors import ConfigError
from odradek.types import EARLIEST, LATEST, AtTime, GiB, KiB, MiB, Position, PositionSpec, TopicPartition

__all__ = [
    "NO_IDS",
    "Offsets",
    "OptionMap",
    "PartitionPosition",
    "Positions",
    "TopicIds",
    "choice",
    "ids_from_dict",
    "invalid",
    "offsets_from_dict",
    "offsets_to_dict",
    "option",
    "parse_assign",
    "parse_boolean",
    "parse_bytes",
    "parse_count",
    "parse_json",
    "parse_milliseconds",
    "parse_partition",
    "parse_positions",
    "parse_records",
    "parse_seconds",
    "parse_size",
    "parse_text",
    "parse_time",
    "parse_times",
    "resolve_broker",
    "resolve_per_partition",
    "suggestion",
]

T = TypeVar("T")

_UNITS = {"": 1, "b": 1, "k": KiB, "m": MiB, "g": GiB, "t": 1 << 40}
_SECONDS = {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def option(parse: Callable[[str, str], Any], default: Any, *names: str, later: tuple[Any, ...] = ()) -> Any:
    """Declare an option: a field of a dataclass that `OptionMap.fill` sets. The first of its names that is set counts.

    Args:
        parse: Converts the text of the option; it gets its name, too.
        default: The value if the option is not set.
        later: Parser, default and names for clusters of 0.8 and later, where they are others.
    """
    declared = (parse, default, *names)
    return field(default=default, metadata={True: declared, False: later or declared})


class OptionMap:
    """The options of one reader or writer. An option is known once it has been taken; call `finish` at the end.

    Raises ConfigError for an option that is refused.

    Args:
        refused: Names that cannot be meant here -> what to do instead. A name that ends with `*` is a prefix.
        ignored: Names without effect here.
    """

    def __init__(
        self, options: Mapping[str, str], kafka07: bool, refused: Mapping[str, str], ignored: Iterable[str]
    ) -> None:
        self._written, self._kafka07 = tuple(options), kafka07
        self._values = {name.lower(): value for name, value in options.items()}
        self._known = {name.lower(): name for name in ignored}
        self._missing = ""
        for name, instead in refused.items():
            for written in options:
                if re.fullmatch(re.escape(name).replace(r"\*", ".*"), written, re.IGNORECASE | re.DOTALL):
                    raise ConfigError(f"option {written if name.endswith('*') else name}: {instead}")

    def know(self, *names: str) -> None:
        """Take options whose values do not matter here."""
        self._known.update({name.lower(): name for name in names})

    def text(self, name: str, *, may_be_empty: bool = False) -> str | None:
        """Return the text of an option, or None if it is not set. Raises ConfigError if it is empty and must not be."""
        self._known[name.lower()] = name
        value = self._values.get(name.lower())
        if value is not None and not (may_be_empty or value.strip()):
            raise ConfigError(f"option {name} is empty")
        return value

    def take(self, parse: Callable[[str, str], Any], default: T, *names: str) -> T:
        """Return the parsed value of the first of these options that is set, or the default. Each is checked."""
        for name in reversed(names):
            if (text := self.text(name)) is not None:
                default = parse(text, name)
        return default

    def fill(self, kind: Callable[..., T], **others: Any) -> T:
        """Return an object of a dataclass: fields declared by `option` as the options say, the others as given."""
        declared = {each.name: each.metadata[self._kafka07] for each in fields(kind) if each.metadata}  # type: ignore[arg-type]
        return kind(**{name: self.take(*how) for name, how in declared.items()}, **others)

    def one_of(self, *names: str, required: str = "") -> str:
        """Return the one of these options that is set, or "". Raises ConfigError if several are.

        If none is, and `required` says what they name, `finish` raises.
        """
        self.know(*names)
        present = [name for name in names if name.lower() in self._values]
        if len(present) > 1:
            raise ConfigError(f"options {' and '.join(present)} exclude each other")
        if not present and required:
            self._missing = self._missing or f"one of the options {', '.join(names)} is required: {required}"
        return present[0] if present else ""

    def finish(self) -> None:
        """Raise ConfigError if there is an option that nothing has taken, or if a required one is missing."""
        for written in self._written:
            if written.lower() not in self._known:
                of_client = written.lower().startswith("kafka.")
                near = suggestion(written, self._known.values(), 0.85 if of_client else 0.5)
                why = (
                    ": no client for this cluster has it, or it has no meaning here: leave it out" if of_client else ""
                )
                raise ConfigError(f"unknown option {written!r}{near or why}")
        if self._missing:
            raise ConfigError(self._missing)


def suggestion(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return a question after the name that is nearest to an unknown one; "": none is near."""
    by_lower = {other.lower(): other for other in known}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return f": did you mean {by_lower[near[0]]}?" if near else ""


# ---- parsers: each gets the text and the option's name, and raises ConfigError --------------------------------


def invalid(option: str, text: str, right: str) -> ConfigError:
    """Return the error for a value."""
    return ConfigError(f"option {option}={text[:80]!r}: must be {right}")


def parse_text(text: str, option: str) -> str:
    """Return the text as it is."""
    return text


def parse_bytes(text: str, option: str) -> int:
    """`128m` -> bytes, in powers of 1024 as everywhere in Spark; at least 1."""
    match = re.fullmatch(r"([0-9]{1,15})\s*([bkmgt]?)(?:(?<=[kmgt])i?b)?", text.strip().lower(), re.ASCII)
    if match is None or not int(match[1]):
        raise invalid(option, text, "a number of bytes such as 134217728, 128m or 2g")
    return int(match[1]) * _UNITS[match[2]]


def parse_size(text: str, option: str) -> int:
    """Parse bytes that have to fit in memory."""
    if (size := parse_bytes(text, option)) > GiB:
        raise invalid(option, text, "at most 1g")
    return size


def parse_seconds(text: str, option: str) -> float:
    """`15m` -> seconds; a number alone is in milliseconds, as everywhere in Spark."""
    match = re.fullmatch(r"([0-9]{1,12})\s*(ms|s|min|m|h|d|)", text.strip().lower(), re.ASCII)
    if match is None:
        raise invalid(option, text, "a time such as 500ms, 30s, 15m or 2h")
    return int(match[1]) * _SECONDS[match[2]]


def parse_milliseconds(text: str, option: str) -> float:
    """`60000` -> seconds."""
    return parse_count(text, option) / 1000


def parse_records(text: str, option: str, most: int = (1 << 63) - 1) -> int:
    """Parse a number of records: at least 1, at most the largest offset."""
    if not re.fullmatch(r"[0-9]{1,19}", text.strip(), re.ASCII) or not 0 < int(text) <= most:
        raise invalid(option, text, f"a whole number from 1 to {most}")
    return int(text)


def parse_count(text: str, option: str) -> int:
    """Parse a whole number of at least 1."""
    return parse_records(text, option, 999_999_999)


def choice(choices: Mapping[str, T]) -> Callable[[str, str], T]:
    """Return a parser for one of these words (in lower case) -> its meaning."""

    def parse(text: str, option: str) -> T:
        if (chosen := text.strip().lower()) not in choices:
            raise invalid(option, text, " or ".join(choices))
        return choices[chosen]

    return parse


parse_boolean = choice({"true": True, "false": False})


# ---- offsets -------------------------------------------------------------------------------------------------


Offsets = Mapping[TopicPartition, Position]
"""The position of each partition's next message to read."""

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
        raise ConfigError(f'offsets: ids of topics are {{"topic":"id"}}, not {_shown(ids)}')
    return ids


def offsets_from_dict(value: Any) -> dict[TopicPartition, Position]:
    """The inverse of `offsets_to_dict`, also of offsets as Spark's own source has them in its checkpoints: without
    version, `{"orders":{"0":123}}`. Raises ConfigError, which says what is not as it should be."""
    if isinstance(value, dict) and value and all(isinstance(each, dict) and each for each in value.values()):
        value = {"v": VERSION, "topics": value}
    if not isinstance(value, dict) or value.keys() - {"ids"} != {"v", "topics"}:
        raise ConfigError(f'offsets are {{"v":{VERSION},"topics":{{...}}}}, not {_shown(value)}')
    if type(value["v"]) is not int or value["v"] != VERSION:
        raise ConfigError(f"offsets of version {_shown(value['v'])}: this version of odradek reads version {VERSION}")
    return {p: Position(_integer(n, f"offset of {p}")) for p, n in _each(value["topics"], "offsets")}


def parse_assign(text: str, option: str = "assign") -> tuple[TopicPartition, ...]:
    """`{"orders":["0-1","1-1"]}` -> partitions, in canonical order."""
    value = parse_json(text, option)
    shape = f'{option}: {{"topic":["0-1",...]}} names partitions as broker-partition'
    if not isinstance(value, dict) or not all(isinstance(names, list) and names for names in value.values()):
        raise ConfigError(f"{shape}, not {_shown(value)}")
    resolved = sorted(_partition(topic, name, option) for topic, names in value.items() for name in names)
    if not resolved:
        raise ConfigError(f"{shape}: it names none")
    if twice := {str(one) for one, following in pairwise(resolved) if one == following}:
        raise ConfigError(f"{option}: names {', '.join(sorted(twice))} more than once")
    return tuple(resolved)


def parse_positions(text: str, option: str, *, anchors: Collection[PositionSpec] = (EARLIEST, LATEST)) -> Positions:
    """`earliest`, `latest`, or `{"orders":{"0-1":123,"1-1":-2}}` with -2 and -1 for these two words."""
    words = {anchor.name.lower(): anchor for anchor in anchors}
    if not text.lstrip().startswith("{"):
        if (anchor := words.get(text.strip().lower())) is not None:
            return anchor
        raise invalid(option, text, f'{", ".join(words)} or JSON {{"topic":{{"0-1":123}}}}')
    numbers = {anchor.value: anchor for anchor in anchors}
    also = "".join(f", or {number}" for number in numbers)
    return {
        p: numbers[n] if type(n) is int and n in numbers else Position(_integer(n, f"{option}: offset of {p}", also))
        for p, n in _each(parse_json(text, option), option)
    }


def parse_times(text: str, option: str) -> Mapping[TopicPartition, AtTime]:
    """`{"orders":{"0-1":1700000000000}}`, in milliseconds since the epoch."""
    return {
        p: AtTime(_integer(number, f"{option}: time of {p}") / 1000)
        for p, number in _each(parse_json(text, option), option)
    }


def parse_time(text: str, option: str) -> AtTime:
    """Milliseconds since the epoch."""
    if not re.fullmatch(r"[0-9]{1,18}", text.strip(), re.ASCII):
        raise invalid(option, text, "milliseconds since 1970, such as 1700000000000")
    return AtTime(int(text) / 1000)


def parse_partition(topic: str, name: str) -> TopicPartition | None:
    """`broker-partition`, or `partition` where brokers do not count; None: it is neither."""
    match = _PARTITION.fullmatch(name)
    return match and TopicPartition(topic, int(match["partition"]), int(match["broker"] or -1))


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


def _integer(value: Any, what: str, also: str = "") -> int:
    if type(value) is int and 0 <= value <= LARGEST:
        return value
    raise ConfigError(f"{what} must be an integer of at least 0{also}, not {_shown(value)}")


def parse_json(text: str, option: str) -> Any:
    """Parse JSON whose objects name nothing twice."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"option {option}={text[:80]!r} is not JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    resolved = dict(pairs)
    if len(resolved) < len(pairs):
        raise ValueError(f"duplicate key: {', '.join(name for name, _ in pairs)[:80]}")
    return resolved


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


# ---- offsets of the partitions there are ---------------------------------------------------------------------


def resolve_per_partition(
    partitions: Iterable[TopicPartition], wanted: Positions, option: str
) -> dict[TopicPartition, PartitionPosition]:
    """Return the position of each partition. Raises ConfigError if they are given one by one, but not for exactly these
    partitions (as in Spark).
    """
    known = list(partitions)
    if isinstance(wanted, PositionSpec | AtTime):
        return dict.fromkeys(known, wanted)
    wanted = {resolve_broker(partition, known, f"option {option}"): position for partition, position in wanted.items()}
    for wrong, text in (
        (sorted(set(known) - wanted.keys()), "says nothing about"),
        (sorted(wanted.keys() - set(known)), "names partitions that are not part of this query:"),
    ):
        if wrong:
            more = f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""
            raise ConfigError(f"option {option} {text} {', '.join(map(str, wrong[:10]))}{more}")
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
