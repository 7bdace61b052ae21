"""Helpers that group partitions by topic and sort names as Java does."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.types import TopicPartition

__all__ = ["by_topic", "java_order"]


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Group partitions by topic, as requests list them. Keeps the order in which topics and partitions come."""
    partitions_by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        partitions_by_topic.setdefault(partition.topic, []).append(partition.partition)
    return partitions_by_topic


def java_order(text: str) -> bytes:
    """Return the sort key of `text` under Java's String.compareTo, which compares UTF-16 units, not code points."""
    return text.encode("utf-16-be", "surrogatepass")
