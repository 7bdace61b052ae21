"""What a topic may be called (specification 1.2 and App. H1)."""

from __future__ import annotations

import re

from odradek.errors import LocalProtocolError

__all__ = ["MAX_TOPIC_LENGTH", "check_topic", "is_legal_topic"]

MAX_TOPIC_LENGTH = 255
"""The broker's default for max.topic.name.length, in UTF-16 units."""

# By code point: beyond U+FFFF everything is legal, lone surrogates and U+FFFD are not.
_ILLEGAL = re.compile("[\x00-\x1f/\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


def check_topic(name: str, max_length: int = MAX_TOPIC_LENGTH) -> None:
    """Raise LocalProtocolError when a 0.7.2 broker would refuse this topic name; says what is wrong and where.

    Args:
        name: The topic.
        max_length: The broker's max.topic.name.length (UTF-16 units).
    """
    if problem := _problem(name, max_length):
        raise LocalProtocolError(f"topic {name!r} {problem}")


def is_legal_topic(name: str, max_length: int = MAX_TOPIC_LENGTH) -> bool:
    """Whether a 0.7.2 broker accepts this topic name."""
    return not _problem(name, max_length)


def _problem(name: str, max_length: int) -> str:
    if not name:
        return "is empty: give it a name"
    if name in (".", ".."):
        return "is a directory's name: choose another"
    units = len(name) + sum(character > "\uffff" for character in name)
    if units > max_length:
        return f"has {units} UTF-16 units, the broker allows {max_length}: shorten it"
    if illegal := _ILLEGAL.search(name):
        return f"has U+{ord(illegal[0]):04X} at index {illegal.start()}, which no topic may contain: remove it"
    return ""
