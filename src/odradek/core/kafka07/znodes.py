"""Every znode of a 0.7 cluster: paths and data, both directions (specification.md 5.1).

Encoding gives byte for byte what the Scala broker and consumer write, parsing accepts what they accept: malformed data
raises ZooKeeperError naming the path and the text. Data `None` is a null node; every intermediate node is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from odradek.core.kafka07.topic_filter import TopicFilter
from odradek.errors import ConfigError, ZooKeeperError
from odradek.types import Broker, Position, TopicPartition

__all__ = [
    "BROKERS",
    "GROUPS",
    "TOPICS",
    "Registration",
    "StaticRegistration",
    "WildcardRegistration",
    "broker_data",
    "broker_id",
    "broker_path",
    "check_group",
    "consumer_id",
    "count_path",
    "member_path",
    "members_path",
    "offset_path",
    "owner_path",
    "parse_broker",
    "parse_count",
    "parse_offset",
    "parse_partition",
    "parse_registration",
    "text_of",
    "thread_id",
    "topic_path",
]

BROKERS = "/brokers/ids"
TOPICS = "/brokers/topics"
GROUPS = "/consumers"

# Far beyond any real cluster: the most that a damaged node can make us allocate.
MAX_PARTITIONS = 100_000
MAX_STREAMS = 10_000


# ---- paths --------------------------------------------------------------------------------------------------


def broker_path(broker: int) -> str:
    return f"{BROKERS}/{broker}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def count_path(topic: str, broker: int) -> str:
    return f"{TOPICS}/{topic}/{broker}"


def members_path(group: str) -> str:
    return f"{GROUPS}/{group}/ids"


def member_path(group: str, consumer: str) -> str:
    return f"{GROUPS}/{group}/ids/{consumer}"


def owner_path(group: str, partition: TopicPartition) -> str:
    return f"{GROUPS}/{group}/owners/{partition.topic}/{partition.name}"


def offset_path(group: str, partition: TopicPartition) -> str:
    return f"{GROUPS}/{group}/offsets/{partition.topic}/{partition.name}"


def check_group(group: str, what: str = "group name") -> str:
    """Return the name, or raise ConfigError: it becomes one element of a path, with the rules of ZooKeeper's servers
    (PathUtils.validatePath), which refuse all of it otherwise."""
    if not isinstance(group, str) or not group:
        raise ConfigError(f"{what} {group!r}: must be text, and not empty")
    if group in (".", "..") or "/" in group:
        raise ConfigError(f"{what} {group!r}: must not be '.' or '..', nor contain '/'")
    if illegal := _NOT_IN_PATHS.search(group):
        where = f"U+{ord(illegal[0]):04X} at index {illegal.start()}"
        raise ConfigError(f"{what} {group!r}: {where} is not allowed in the name of a ZooKeeper node")
    return group


# ---- brokers and topics -------------------------------------------------------------------------------------


def broker_data(host: str, port: int, epoch_ms: int) -> bytes:
    """Encode a broker's node: creator (`host-epoch ms`), host, port."""
    return f"{host}-{epoch_ms}:{host}:{port}".encode()


def parse_broker(path: str, data: bytes | None) -> Broker:
    """Parse a broker's node: fields 1 and 2 between colons are host and port; the creator in field 0 is ignored."""
    broker, text = broker_id(path), text_of(path, data)
    fields = text.split(":")
    if len(fields) < 3 or not fields[1]:
        raise _malformed(path, text, "creator:host:port")
    return Broker(broker, fields[1], _integer(path, fields[2], 1, 65535))


def broker_id(path: str) -> int:
    """Return the last element of the path of a broker's or a count's node."""
    name = path.rpartition("/")[2]
    if not _DECIMAL.fullmatch(name):
        raise ZooKeeperError(f"{path}: not named by a broker id")
    return int(name)


def parse_count(path: str, data: bytes | None) -> int:
    return _integer(path, text_of(path, data), 0, MAX_PARTITIONS)


def parse_partition(topic: str, name: str) -> TopicPartition:
    """Parse `B-P` as in owners and offsets nodes. Raises ZooKeeperError when it is not exactly two numbers."""
    broker, dash, partition = name.partition("-")
    if not (dash and _DECIMAL.fullmatch(broker) and _DECIMAL.fullmatch(partition)):
        raise _malformed(f"partition of {topic}", name, "broker-partition")
    return TopicPartition(topic, int(partition), int(broker))


def parse_offset(path: str, data: bytes | None) -> Position:
    """Parse the decimal text of the next position (specification.md 5.1)."""
    return Position(_integer(path, text_of(path, data), -(1 << 63), (1 << 63) - 1))


# ---- consumers ----------------------------------------------------------------------------------------------


def consumer_id(group: str, host: str, epoch_ms: int, hex8: str) -> str:
    """Return the id that the Scala consumer makes: `hex8` is the beginning of a random UUID. It is not a UUID, and not
    sorted by age once the milliseconds gain a digit."""
    return f"{group}_{host}-{epoch_ms}-{hex8}"


def thread_id(consumer: str, stream: int) -> str:
    """Return the content of an owners node; the number is the same for every topic of the consumer."""
    return f"{consumer}-{stream}"


@dataclass(frozen=True, slots=True)
class StaticRegistration:
    """A consumer of named topics: topic -> number of streams (1 or more)."""

    topics: Mapping[str, int]

    def streams(self, topic: str) -> int:
        """Return how many of its threads share this topic; 0 when it does not consume it."""
        return self.topics.get(topic, 0)

    def wanted(self, listed: Collection[str]) -> frozenset[str]:
        """Return the topics it consumes, given those that exist: all it named, so that they are watched before they
        exist."""
        return frozenset(self.topics)

    def data(self) -> bytes:
        """Encode it exactly as TopicCount does, but escape quotes and backslashes in topics, which Scala forgets."""
        items = ",".join(f"{json.dumps(topic, ensure_ascii=False)}: {n}" for topic, n in self.topics.items())
        return f"{{ {items} }}".encode()


@dataclass(frozen=True, slots=True)
class WildcardRegistration:
    """A consumer of all topics that a filter accepts, with the same number of streams for each."""

    filter: TopicFilter
    count: int

    def streams(self, topic: str) -> int:
        return self.count if topic in self.filter else 0

    def wanted(self, listed: Collection[str]) -> frozenset[str]:
        return frozenset(topic for topic in listed if topic in self.filter)

    def data(self) -> bytes:
        marker = "!" if self.filter.exclude else "*"
        return f"{marker}{self.count}{marker}{self.filter.pattern.pattern}".encode()


Registration = StaticRegistration | WildcardRegistration
"""The content of an ids node: the topics of its consumer."""


def parse_registration(path: str, data: bytes | None) -> Registration:
    """Parse either form of an ids node. Accepts any JSON object with integer values, as Scala does."""
    text = text_of(path, data)
    wildcard = _WILDCARD.fullmatch(text)
    return _static(path, text) if wildcard is None else _wildcard(path, text, wildcard)


def _static(path: str, text: str) -> StaticRegistration:
    try:
        topics = json.loads(text)
    except (ValueError, RecursionError):
        topics = None
    if not isinstance(topics, dict) or not all(_is_streams(n) for n in topics.values()):
        raise _malformed(path, text, "topics and stream counts")
    return StaticRegistration(topics)


def _wildcard(path: str, text: str, match: re.Match[str]) -> WildcardRegistration:
    marker, digits, raw = match.groups()
    if not _is_streams(count := int(digits)):
        raise _malformed(path, text, "a number of streams")
    try:
        topics = TopicFilter.of(raw, exclude=marker == "!")
    except ConfigError as e:
        raise _malformed(path, text, f"usable ({e})") from None
    if topics.is_costly():
        raise _malformed(path, text, "a filter that can be matched in bounded time (too many repeats, or nested ones)")
    return WildcardRegistration(topics, count)


# ---- helpers ------------------------------------------------------------------------------------------------

# Beyond U+FFFF a Java string has surrogates, which ZooKeeper refuses as well.
_NOT_IN_PATHS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
_DECIMAL = re.compile(r"[0-9]{1,10}")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_WILDCARD = re.compile(r"([*!])([0-9]{1,10})\1(.*)")


def text_of(path: str, data: bytes | None) -> str:
    """Return a node's text. Raises ZooKeeperError for a null node or bytes that are not UTF-8."""
    if data is None:
        raise ZooKeeperError(f"{path}: a null node where text is expected")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ZooKeeperError(f"{path}: not UTF-8: {data[:100]!r}") from None


def _is_streams(n: object) -> bool:
    return type(n) is int and 1 <= n <= MAX_STREAMS


def _integer(path: str, text: str, low: int, high: int) -> int:
    """Parse an integer as Java does: no blanks, no underscores, ASCII digits."""
    if not _INTEGER.fullmatch(text) or not low <= (n := int(text)) <= high:
        raise _malformed(path, text, f"a number in {low}..{high}")
    return n


def _malformed(path: str, text: str, expected: str) -> ZooKeeperError:
    return ZooKeeperError(f"{path}: not {expected}: {text[:200]!r}")
