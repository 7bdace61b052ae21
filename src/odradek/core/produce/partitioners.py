"""Partitioners: which partition a record goes to.

A partitioner is a function `(topic, key, count) -> index | None`: an index into the topic's partitions in canonical
order (0.7: by broker, then partition, both numerically; specification 7), or None for "no preference": the record
joins the batch that is being filled, and each new batch picks its partition uniformly at random. So records without a
key are spread evenly and still travel in full batches; 0.7's own producer drew a partition per record.

Randomness is an argument (`randrange`, as `random.Random().randrange`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from struct import iter_unpack
from typing import Protocol
from zlib import crc32

from odradek import arguments

__all__ = [
    "JavaHash",
    "KeyHash",
    "Partitioner",
    "RandomPartitioner",
    "RoundRobin",
    "check_arguments",
    "java_string_hash",
]


_RULES = {
    "topic": arguments.instance(str, "a str"),
    "key": arguments.optional(arguments.binary()),
    "count": arguments.count(),
}
_RANDRANGE = arguments.function("a callable count -> index, such as random.Random().randrange")


class Partitioner(Protocol):
    """Chooses among `count` partitions (at least 1). Must be quick: it runs once per record.

    A partitioner may have an attribute `keyless_is_sticky`. If it is true, records without a key have no preference and
    are not shown to it one by one, which lets runs of them be appended at once. Without it every record is shown.

    A class whose rule is a hash that the engine knows names it in `key_hash` (see `engine.Appender`): `Producer.put`
    does not call its objects then for each record. Subclasses may have another rule, and do not inherit this.
    """

    def __call__(self, topic: str, key: bytes | None, count: int, /) -> int | None: ...


class KeyHash:
    """`crc32(key) % count`, with the CRC-32 of zlib: the same in every process and on every machine, forever. The rule
    of librdkafka (its default, `consistent_random`), and so of confluent-kafka in Python, Go and .NET; those send
    records with an empty key anywhere, this one to partition 0. The default in 0.7.

    Records without a key have no preference.
    """

    keyless_is_sticky = True
    key_hash = "crc32"

    def __call__(self, topic: str, key: bytes | None, count: int) -> int | None:
        try:
            return None if key is None else crc32(key) % count
        except (TypeError, ZeroDivisionError):
            check_arguments(topic, key, count)
            raise


class JavaHash:
    """The rule of the Scala producer's default partitioner for a String key: `abs(key.hashCode) % count`.

    The key's bytes are read as UTF-8. `abs(Int.MinValue)` is negative on the JVM, where such a key is refused
    unless `count` divides it; here it counts as 2147483648, which agrees wherever Scala has an answer at all.
    Records without a key have no preference.
    Source: specification 7, DefaultPartitioner.
    """

    keyless_is_sticky = True

    def __call__(self, topic: str, key: bytes | None, count: int) -> int | None:
        try:
            return None if key is None else abs(java_string_hash(key.decode("utf-8", "replace"))) % count
        except (AttributeError, TypeError, ZeroDivisionError):
            check_arguments(topic, key, count)
            raise


class RandomPartitioner:
    """A uniformly random partition for each record, whatever its key: even spread, small batches."""

    def __init__(self, randrange: Callable[[int], int]) -> None:
        self._randrange: Callable[[int], int] = _RANDRANGE("randrange", randrange)

    def __call__(self, topic: str, key: bytes | None, count: int) -> int | None:
        try:
            return self._randrange(count)
        except Exception:  # `randrange` is the user's
            check_arguments(topic, key, count)
            raise


class RoundRobin:
    """The next partition of the topic for each record, whatever its key."""

    def __init__(self) -> None:
        self._next: defaultdict[str, int] = defaultdict(int)

    def __call__(self, topic: str, key: bytes | None, count: int) -> int | None:
        try:
            index = self._next[topic]
            self._next[topic] = index + 1
            return index % count
        except (TypeError, ZeroDivisionError):
            check_arguments(topic, key, count)
            raise


def check_arguments(topic: object, key: object, count: object) -> None:
    """Raise TypeError or ConfigError for the argument that a partitioner failed on: they are not checked before."""
    arguments.check_all(_RULES, topic=topic, key=key, count=count)


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode`: 31-adic over UTF-16 units, a signed 32-bit result."""
    value = 0
    for (unit,) in iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
