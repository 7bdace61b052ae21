"""Helpers that group partitions by topic and sort names as Java does."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from odradek.types import TopicPartition

__all__ = ["by_topic", "java_hash", "java_hash_order", "java_order"]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Group partitions by topic, as requests list them. Keeps the order in which topics and partitions come."""
    partitions_by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        partitions_by_topic.setdefault(partition.topic, []).append(partition.partition)
    return partitions_by_topic


def java_order(text: str) -> bytes:
    """Return the sort key of `text` under Java's String.compareTo, which compares UTF-16 units, not code points."""
    return text.encode("utf-16-be", "surrogatepass")


def java_hash(partition: TopicPartition) -> int:
    """Return the hash code of Kafka's own TopicPartition, as Java's hash tables use it."""
    return _spread(31 * (31 + partition.partition) + _string_hash(partition.topic))


def java_hash_order(keys: Collection[str]) -> list[str]:
    """Return the keys in the order in which Java's HashMap lists them."""
    buckets = 16
    while len(keys) * 4 > buckets * 3:
        buckets *= 2
    return sorted(keys, key=lambda key: _spread(_string_hash(key)) % buckets)


def _string_hash(text: str) -> int:
    code, units = 0, java_order(text)
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code


def _spread(code: int) -> int:
    """Return 32 bits of a hash code without sign, the upper half mixed into the lower one."""
    code &= 0xFFFFFFFF
    return code ^ code >> 16
