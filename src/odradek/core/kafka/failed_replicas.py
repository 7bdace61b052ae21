"""Partitions of which the replica that their leader prefers has failed (KIP-392)."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.types import TopicPartition

__all__ = ["FailedReplicas"]

FROM_LEADER_S = 30.0
"""Time for which a leader is asked for the records itself (s). It prefers replicas by what it knows of them: also one
that this client cannot reach, one of a release before 2.4, which serves no clients, and for a time (30 s by default,
replica.lag.time.max.ms) one that does not follow it any more."""


class FailedReplicas:
    """The partitions whose leaders are asked without the rack of this client: they would name the same replica again,
    and send no records."""

    def __init__(self) -> None:
        self._until: dict[TopicPartition, float] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._until)} partitions>"

    def add(self, partitions: Iterable[TopicPartition], now: float) -> None:
        """Ask the leaders of these partitions for some time from `now` on (s)."""
        self._until |= dict.fromkeys(partitions, now + FROM_LEADER_S)

    def are_among(self, partitions: Iterable[TopicPartition], now: float) -> bool:
        """Return True if the leader of one of these partitions is to be asked at this time (s)."""
        self._until = {partition: until for partition, until in self._until.items() if now < until}
        return not self._until.keys().isdisjoint(partitions)
