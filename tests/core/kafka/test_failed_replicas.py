"""Partitions of which a preferred replica has failed."""

from __future__ import annotations

from odradek.core.kafka.failed_replicas import FROM_LEADER_S, FailedReplicas
from odradek.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_leaders_are_asked_for_a_time_after_the_last_failure() -> None:
    failed = FailedReplicas()
    assert not failed.are_among([A, B], 0.0)
    failed.add([A], 100.0)
    assert failed.are_among([B, A], 100.0) and not failed.are_among([B], 100.0)
    failed.add([A], 110.0)
    assert failed.are_among([A], 109.9 + FROM_LEADER_S)
    assert not failed.are_among([A], 110.0 + FROM_LEADER_S)
    assert repr(failed) == "<FailedReplicas of 0 partitions>"
