"""Who consumes which partition of one topic: the range rule of the 0.7 consumer group (specification 6.3)."""

from __future__ import annotations

from collections.abc import Collection

from odradek.types import TopicPartition

__all__ = ["range_assignment"]


def range_assignment(
    partitions: Collection[TopicPartition], threads: Collection[str]
) -> dict[str, list[TopicPartition]]:
    """Cut the sorted partitions of one topic into one run per sorted thread; the first get one more each.

    Both sort as *strings* ("1-10" before "1-2", "10-0" before "2-0"), because every member must come to the same
    result, Scala ones included. Every partition is in exactly one run; threads beyond the partitions get none.
    """
    ranked = sorted(partitions, key=lambda partition: partition.name)
    share, extra = divmod(len(ranked), len(threads)) if threads else (0, 0)
    runs: dict[str, list[TopicPartition]] = {}
    start = 0
    for i, thread in enumerate(sorted(threads)):
        end = start + share + (i < extra)
        runs[thread] = ranked[start:end]
        start = end
    return runs
