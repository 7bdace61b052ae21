"""What Fetch and ListOffsets answer for one partition."""

from __future__ import annotations

import pytest

from odradek.core.kafka.fetch_results import (
    FROM_LEADER_S,
    FailedReplicas,
    FetchStep,
    ListedOffset,
    fetch_step,
    list_offsets_step,
)
from odradek.types import TopicPartition
from odradek.wire.kafka.messages.data import FetchEpochEndOffset, FetchPartitionData, ListOffsetsPartitionResponse


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (0, FetchStep.READ),
        (1, FetchStep.OUT_OF_RANGE),
        (2, FetchStep.RAISE),
        *((code, FetchStep.REFRESH) for code in (3, 5, 6, 9, 56, 74, 75, 78, 100, 103)),
        (-1, FetchStep.RETRY),
        (29, FetchStep.RAISE),
        (35, FetchStep.RAISE),
        (76, FetchStep.RAISE),
        (12345, FetchStep.RAISE),
    ],
)
def test_what_an_error_of_fetch_means(code: int, step: FetchStep) -> None:
    assert fetch_step(FetchPartitionData(error_code=code)) is step


def test_an_offset_that_a_replica_does_not_have_is_asked_of_the_leader() -> None:
    partition = FetchPartitionData(error_code=1)
    assert fetch_step(partition, from_replica=True) is FetchStep.BACK_TO_LEADER


def test_a_preferred_replica_is_followed_once() -> None:
    partition = FetchPartitionData(preferred_read_replica=3)
    assert fetch_step(partition) is FetchStep.READ_FROM_REPLICA
    assert fetch_step(partition, from_replica=True) is FetchStep.READ


def test_a_diverging_epoch_means_truncation() -> None:
    partition = FetchPartitionData(diverging_epoch=FetchEpochEndOffset(epoch=3, end_offset=100))
    assert fetch_step(partition) is FetchStep.TRUNCATED


@pytest.mark.parametrize(
    ("high_watermark", "step"), [(99, FetchStep.BACK_TO_LEADER), (100, FetchStep.TRUNCATED), (900, FetchStep.TRUNCATED)]
)
def test_a_replica_that_does_not_have_the_position_yet_says_nothing_of_the_log(
    high_watermark: int, step: FetchStep
) -> None:
    behind = FetchEpochEndOffset(epoch=3, end_offset=99)
    partition = FetchPartitionData(diverging_epoch=behind, high_watermark=high_watermark)
    assert fetch_step(partition, position=100, from_replica=True) is step
    assert fetch_step(partition, position=100) is FetchStep.TRUNCATED


@pytest.mark.parametrize(
    ("partition", "step"),
    [
        (ListOffsetsPartitionResponse(offset=5), ListedOffset.OFFSET),
        (ListOffsetsPartitionResponse(old_style_offsets=(7, 3)), ListedOffset.OFFSET),
        (ListOffsetsPartitionResponse(), ListedOffset.NONE),
        (ListOffsetsPartitionResponse(error_code=43), ListedOffset.NO_TIMES),
        (ListOffsetsPartitionResponse(error_code=6), ListedOffset.REFRESH),
        (ListOffsetsPartitionResponse(error_code=78), ListedOffset.REFRESH),
        (ListOffsetsPartitionResponse(error_code=75), ListedOffset.REFRESH),
        (ListOffsetsPartitionResponse(error_code=7), ListedOffset.RETRY),
        (ListOffsetsPartitionResponse(error_code=29), ListedOffset.RAISE),
    ],
)
def test_what_list_offsets_answers(partition: ListOffsetsPartitionResponse, step: ListedOffset) -> None:
    assert list_offsets_step(partition) is step


def test_leaders_are_asked_for_a_time_after_the_last_failure() -> None:
    failed, (one, two) = FailedReplicas(), (TopicPartition("t", 0), TopicPartition("t", 1))
    assert not failed.are_among([one, two], 0.0)
    failed.add([one], 100.0)
    assert failed.are_among([two, one], 100.0) and not failed.are_among([two], 100.0)
    failed.add([one], 110.0)
    assert failed.are_among([one], 109.9 + FROM_LEADER_S)
    assert not failed.are_among([one], 110.0 + FROM_LEADER_S)
    assert repr(failed) == "<FailedReplicas of 0 partitions>"
