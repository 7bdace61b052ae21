"""The range assignor of 0.7 consumer groups: which thread consumes which partition (specification.md 6.3)."""

from __future__ import annotations

from collections.abc import Collection

from odradek.types import TopicPartition

__all__ = ["assign_range"]


def assign_range(partitions: Collection[TopicPartition], threads: Collection[str]) -> dict[str, list[TopicPartition]]:
    """Divide the sorted partitions of one topic into one range per sorted thread; the first ones get one more each.

    Both are sorted as *strings* ("1-10" before "1-2", "10-0" before "2-0"): every member, Scala ones included, must
    compute the same result. Every partition is in exactly one range; surplus threads get empty ones.
    """
    ranked = sorted(partitions, key=lambda partition: partition.name)
    size, extra = divmod(len(ranked), len(threads)) if threads else (0, 0)
    ranges: dict[str, list[TopicPartition]] = {}
    start = 0
    for i, thread in enumerate(sorted(threads)):
        end = start + size + (i < extra)
        ranges[thread] = ranked[start:end]
        start = end
    return ranges
