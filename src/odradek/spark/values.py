"""Options as Spark passes them, and their values.

Spark lower-cases the names of options, so they are compared without regard to case. An option that is not known is an
error: one that is silently ignored loses data sooner or later. Every error names the option and what would be right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from odradek import arguments
from odradek.errors import ConfigError
from odradek.ranges.offsets import Positions, checked_integer, checked_partition, each_partition, shown
from odradek.types import EARLIEST, LATEST, AtTime, GiB, Position, PositionSpec, TopicPartition

__all__ = [
    "OptionMap",
    "OptionSpec",
    "choice",
    "invalid",
    "option",
    "parse_assign",
    "parse_boolean",
    "parse_bytes",
    "parse_count",
    "parse_json",
    "parse_milliseconds",
    "parse_positions",
    "parse_records",
    "parse_seconds",
    "parse_size",
    "parse_text",
    "parse_time",
    "parse_times",
    "suggestion",
]

T = TypeVar("T")

_SECONDS = {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class OptionSpec(NamedTuple):
    """An option. The first of its names that is set counts; each is checked."""

    parse: Callable[[str, str], Any]  # converts the text of the option; it gets its name, too
    names: tuple[str, ...]
    default: Any  # `UNSET`: that of the field that the option sets
    later: OptionSpec | None  # for clusters of 0.8 and later, if it is another one there


UNSET: Any = object()


def option(
    parse: Callable[[str, str], Any], *names: str, default: Any = UNSET, later: OptionSpec | None = None
) -> OptionSpec:
    """Return an option (see `OptionSpec`)."""
    return OptionSpec(parse, names, default, later)


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

    def has(self, name: str) -> bool:
        """Return True if the option is set."""
        return name.lower() in self._values

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

    def fill(self, kind: Callable[..., T], specs: Mapping[str, OptionSpec], **others: Any) -> T:
        """Return an object with fields as the options say, and the others as given; one whose option is not set has its
        default."""
        own = {name: spec if self._kafka07 else spec.later or spec for name, spec in specs.items()}
        values = {name: self.take(spec.parse, spec.default, *spec.names) for name, spec in own.items()}
        return kind(**{name: value for name, value in values.items() if value is not UNSET}, **others)

    def one_of(self, *names: str, required: str = "") -> str:
        """Return the one of these options that is set, or "". Raises ConfigError if several are.

        If none is, and `required` says what they name, `finish` raises.
        """
        self.know(*names)
        present = [name for name in names if self.has(name)]
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
    if (size := arguments.bytes_of_text(text)) is None:
        raise invalid(option, text, "a number of bytes such as 134217728, 128m or 2g")
    return size


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


def parse_records(text: str, option: str, maximum: int = (1 << 63) - 1) -> int:
    """Parse a number of records: at least 1, at most the largest offset."""
    if not re.fullmatch(r"[0-9]{1,19}", text.strip(), re.ASCII) or not 0 < int(text) <= maximum:
        raise invalid(option, text, f"a whole number from 1 to {maximum}")
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


def parse_assign(text: str, option: str = "assign") -> tuple[TopicPartition, ...]:
    """`{"orders":["0-1","1-1"]}` -> partitions, in canonical order."""
    value = parse_json(text, option)
    shape = f'{option}: {{"topic":["0-1",...]}} names partitions as broker-partition'
    if not isinstance(value, dict) or not all(isinstance(names, list) and names for names in value.values()):
        raise ConfigError(f"{shape}, not {shown(value)}")
    resolved = sorted(checked_partition(topic, name, option) for topic, names in value.items() for name in names)
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
        p: numbers[n]
        if type(n) is int and n in numbers
        else Position(checked_integer(n, f"{option}: offset of {p}", also))
        for p, n in each_partition(parse_json(text, option), option)
    }


def parse_times(text: str, option: str) -> Mapping[TopicPartition, AtTime]:
    """`{"orders":{"0-1":1700000000000}}`, in milliseconds since the epoch."""
    return {
        p: AtTime(checked_integer(number, f"{option}: time of {p}") / 1000)
        for p, number in each_partition(parse_json(text, option), option)
    }


def parse_time(text: str, option: str) -> AtTime:
    """Milliseconds since the epoch."""
    if not re.fullmatch(r"[0-9]{1,18}", text.strip(), re.ASCII):
        raise invalid(option, text, "milliseconds since 1970, such as 1700000000000")
    return AtTime(int(text) / 1000)


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
