"""The rules for names of topics (specification.md 1.2 and App. H1)."""

from __future__ import annotations

import re

from odradek.errors import LocalProtocolError

__all__ = ["MAX_TOPIC_BYTES", "MAX_TOPIC_LENGTH", "check_topic", "is_legal_topic"]

MAX_TOPIC_LENGTH = 255
"""The broker's default for max.topic.name.length, in UTF-16 units."""

MAX_TOPIC_BYTES = 253
"""The longest name, in UTF-8, of which a broker can make a directory: most file systems allow 255 bytes, and `-0` is
appended."""

_REFUSED_BY_BROKER = re.compile("[\x00-\x1f/\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")

_REFUSED_BY_ZOOKEEPER = re.compile("[\x00-\x1f/\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
"""The same, and everything beyond U+FFFF: Java sees two surrogates there, which ZooKeeper refuses in a path."""


def check_topic(name: str, max_length: int = MAX_TOPIC_LENGTH) -> None:
    """Raise LocalProtocolError for a name that no topic should get; the message says what is wrong and where.

    That is a name that a 0.7.2 broker refuses, or one that it accepts and cannot cope with: it writes such a topic to
    disk, cannot register it in ZooKeeper, and does not start again before its directory is deleted.

    Args:
        name: The topic.
        max_length: The broker's max.topic.name.length (UTF-16 units).
    """
    problem = _length_problem(name, max_length) or _character_problem(name)
    if not problem and (size := len(name.encode())) > MAX_TOPIC_BYTES:
        problem = f"has {size} bytes in UTF-8, a broker's directory allows {MAX_TOPIC_BYTES}: shorten it"
    if problem:
        raise LocalProtocolError(f"topic {name!r} {problem}")


def is_legal_topic(name: str, max_length: int = MAX_TOPIC_LENGTH) -> bool:
    """Return True if a 0.7.2 broker accepts this topic name, whatever becomes of it."""
    return not (
        name in ("", ".", "..") or _length_problem(name, max_length) or _REFUSED_BY_BROKER.search(name) is not None
    )


def _length_problem(name: str, max_length: int) -> str:
    units = len(name) + sum(character > "\uffff" for character in name)
    return f"has {units} UTF-16 units, the broker allows {max_length}: shorten it" if units > max_length else ""


def _character_problem(name: str) -> str:
    if not name:
        return "is empty: give it a name"
    if name in (".", ".."):
        return "is the name of a directory: choose another one"
    if illegal := _REFUSED_BY_ZOOKEEPER.search(name):
        return f"has U+{ord(illegal[0]):04X} at index {illegal.start()}, which no topic may contain: remove it"
    return ""
