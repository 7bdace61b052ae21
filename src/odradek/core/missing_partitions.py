"""Partitions that a topic does not have, where partitions have plain numbers (0.8 and later)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from odradek.core.interfaces import RoutingTable
from odradek.types import TopicPartition

__all__ = ["BETWEEN_READS_S", "any_missing", "why_missing"]

BETWEEN_READS_S = 1.0
"""Time between the two reads of the metadata that must agree that a partition does not exist (s): brokers learn of
added partitions at different times, mostly within milliseconds, and each read may be answered by another one."""


def why_missing(partition: TopicPartition, existing: Sequence[TopicPartition]) -> str:
    """Return that a topic does not have a partition, and how many it has; an empty text if it may have it.

    A number below the highest one is not missing: numbers have no gaps, so that the answer was incomplete. While a
    topic has no partitions at all, it may not be created yet.

    Args:
        partition: The partition.
        existing: The partitions that the topic has now, in canonical order.
    """
    if not existing or (partition.broker < 0 and partition.partition <= existing[-1].partition):
        return ""
    return f"{partition.topic} has no partition {partition.name}: it has {len(existing)}, numbered from 0"


def any_missing(partitions: Iterable[TopicPartition], table: RoutingTable) -> bool:
    """Return True if a topic in the table lacks one of the partitions: it is new, and its group heard of it first."""
    return any(why_missing(p, table.partitions(p.topic)) for p in partitions if table.leader(p) is None)
