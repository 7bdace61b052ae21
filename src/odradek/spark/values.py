"""The values that options have, from their text. Every error names the option, its value and what would be right."""

from __future__ import annotations

import re
from collections.abc import Callable

from odradek.errors import ConfigError
from odradek.types import GiB, KiB, MiB

__all__ = [
    "at_most",
    "choice",
    "parse_boolean",
    "parse_bytes",
    "parse_count",
    "parse_milliseconds",
    "parse_records",
    "parse_seconds",
]

_UNITS = {"": 1, "b": 1, "k": KiB, "m": MiB, "g": GiB, "t": 1 << 40}
_SECONDS = {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_bytes(text: str, option: str) -> int:
    """`128m` -> bytes, in powers of 1024 as everywhere in Spark; at least 1. Raises ConfigError."""
    match = re.fullmatch(r"([0-9]{1,15})\s*([bkmgt]?)(?:(?<=[kmgt])i?b)?", text.strip().lower(), re.ASCII)
    if match is None or not int(match[1]):
        raise ConfigError(f"option {option}={text[:80]!r}: must be a number of bytes such as 134217728, 128m or 2g")
    return int(match[1]) * _UNITS[match[2]]


def parse_seconds(text: str, option: str) -> float:
    """`15m` -> seconds; a number alone is in milliseconds, as everywhere in Spark. Raises ConfigError."""
    match = re.fullmatch(r"([0-9]{1,12})\s*(ms|s|min|m|h|d|)", text.strip().lower(), re.ASCII)
    if match is None:
        raise ConfigError(f"option {option}={text[:80]!r}: must be a time such as 500ms, 30s, 15m or 2h")
    return int(match[1]) * _SECONDS[match[2]]


def parse_milliseconds(text: str, option: str) -> float:
    """`60000` -> seconds. Raises ConfigError."""
    return parse_count(text, option) / 1000


def parse_count(text: str, option: str) -> int:
    """A whole number of at least 1. Raises ConfigError."""
    if not re.fullmatch(r"[0-9]{1,9}", text.strip(), re.ASCII) or not int(text):
        raise ConfigError(f"option {option}={text[:80]!r}: must be a whole number of at least 1")
    return int(text)


def parse_records(text: str, option: str) -> int:
    """Parse a number of records: as `parse_count`, up to the largest offset. Raises ConfigError."""
    if not re.fullmatch(r"[0-9]{1,19}", text.strip(), re.ASCII) or not 0 < int(text) < 1 << 63:
        raise ConfigError(f"option {option}={text[:80]!r}: must be a whole number of at least 1")
    return int(text)


def parse_boolean(text: str, option: str) -> bool:
    """`true` or `false`. Raises ConfigError."""
    return choice("true", "false")(text, option) == "true"


def choice(*choices: str) -> Callable[[str, str], str]:
    """A parser for one of these words (in lower case)."""

    def parse(text: str, option: str) -> str:
        if (chosen := text.strip().lower()) in choices:
            return chosen
        raise ConfigError(f"option {option}={text[:80]!r}: must be {' or '.join(choices)}")

    return parse


def at_most(limit: int, parse: Callable[[str, str], int]) -> Callable[[str, str], int]:
    """The same parser, with an upper bound."""

    def bounded(text: str, option: str) -> int:
        if (value := parse(text, option)) <= limit:
            return value
        raise ConfigError(f"option {option}={text[:80]!r}: must be at most {limit}")

    return bounded
