"""Counters of readers and consumers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from odradek.types import TopicPartition

__all__ = ["ConsumerStatistics", "ReaderStatistics"]


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """Counters of a reader.

    `partitions` counts those that are read now. `delivered` counts records: a batch counts as a whole once it is taken
    from the read-ahead, also when it is iterated record by record. `fetches` counts requests, and `fetched_bytes` the
    log bytes of their responses, compressed as they are in the log.

    `buffered` records are fetched and not delivered; they take `buffered_bytes` of memory, out of `read_ahead_bytes`.
    `lag` says how many positions each partition is from its end as the latest response named it; partitions that had
    none yet are missing, and so are all of 0.7, whose responses name no end: `lag()` requests the ends.
    """

    partitions: int
    delivered: int
    fetches: int
    fetched_bytes: int
    buffered: int
    buffered_bytes: int
    read_ahead_bytes: int
    lag: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ConsumerStatistics(ReaderStatistics):
    """Counters of a consumer: those of a reader, and its group's.

    `assigned`, `revoked` and `lost` count how often the group has given partitions to this member, has taken some from
    it in a rebalance, and has removed it because its session expired. `commits` counts requests that stored positions,
    `failed_commits` those that failed or had no response; positions that a transaction stores are in neither.
    """

    assigned: int
    revoked: int
    lost: int
    commits: int
    failed_commits: int
