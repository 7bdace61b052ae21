"""Positions by meaning and by time: what is asked for, and what each answer means."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.core.admin import OffsetChoice, OffsetListing, OffsetSpec
from odradek.core.kafka.list_offsets import list_offsets_request, read_ends, read_list_offsets, read_offset_listing
from odradek.errors import BrokerError, RemoteProtocolError
from odradek.types import EARLIEST, LATEST, AtTime, Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

WHERE = TopicPartition("t", 3)


@pytest.mark.parametrize(
    ("at", "asked"),
    [
        (EARLIEST, -2),
        (LATEST, -1),
        (AtTime(0.0), 0),
        (AtTime(-5.0), 0),
        (AtTime(1_700_000_000.123), 1_700_000_000_123),
        (AtTime(1.0001), 1001),
        (AtTime(1e300), 2**62),
        (OffsetSpec.MAX_TIMESTAMP, -3),
        (OffsetSpec.EARLIEST_NOT_TIERED, -6),
    ],
)
def test_a_time_is_asked_for_in_whole_milliseconds_not_before_it(at: OffsetChoice, asked: int) -> None:
    request = list_offsets_request({WHERE: at}, 2, leader_epoch=lambda partition: 4, read_committed=True)
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (request.replica_id, request.isolation_level, topic.name) == (-1, 1, "t")
    assert (partition.partition_index, partition.timestamp, partition.max_num_offsets) == (3, asked, 2)
    assert partition.current_leader_epoch == 4


def test_partitions_are_asked_for_by_topic_each_with_its_time_and_epoch() -> None:
    wanted: dict[TopicPartition, OffsetChoice] = {
        TopicPartition("t", 0): EARLIEST,
        TopicPartition("u", 1): LATEST,
        TopicPartition("t", 2): AtTime(1.0),
    }
    request = list_offsets_request(wanted, 1, leader_epoch=lambda p: p.partition + 10, read_committed=False)
    assert [
        (topic.name, [(p.partition_index, p.current_leader_epoch, p.timestamp) for p in topic.partitions])
        for topic in request.topics
    ] == [("t", [(0, 10, -2), (2, 12, 1000)]), ("u", [(1, 11, -1)])]


def test_each_partition_has_its_own_answer_or_error() -> None:
    answers = [
        ListOffsetsPartitionResponse(partition_index=1, offset=7),
        ListOffsetsPartitionResponse(partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ListOffsetsPartitionResponse(partition_index=9, offset=1),
    ]
    topics = [ListOffsetsTopicResponse(name=name, partitions=tuple(answers)) for name in ("t", "unasked")]
    wanted = dict.fromkeys([TopicPartition("t", number) for number in range(3)], LATEST)
    outcomes = read_list_offsets(ListOffsetsResponse(topics=tuple(topics)), wanted, "b")
    refused, positions, unnamed = outcomes.values()
    assert list(outcomes) == list(wanted) and positions == [7]
    assert isinstance(refused, BrokerError) and isinstance(unnamed, RemoteProtocolError)


def test_only_ends_have_the_epoch_of_the_leader_that_named_them() -> None:
    answers = [ListOffsetsPartitionResponse(partition_index=number, offset=7, leader_epoch=4) for number in range(4)]
    answers[2] = ListOffsetsPartitionResponse(partition_index=2, offset=7)  # before 2.1
    wanted: dict[TopicPartition, OffsetChoice] = {
        TopicPartition("t", 0): EARLIEST,
        TopicPartition("t", 1): LATEST,
        TopicPartition("t", 2): LATEST,
        TopicPartition("u", 3): LATEST,
    }
    response = ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=tuple(answers)),))
    assert list(read_ends(response, wanted)) == [(TopicPartition("t", 1), 7, 4), (TopicPartition("t", 2), 7, -1)]


def outcome(answer: ListOffsetsResponse) -> Any:
    return read_list_offsets(answer, {WHERE: LATEST}, "b")[WHERE]


def response(index: int = 3, **fields: Any) -> ListOffsetsResponse:
    answer = ListOffsetsPartitionResponse(partition_index=index, **fields)
    return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=(answer,)),))


@pytest.mark.parametrize(
    ("fields", "positions"),
    [
        ({"offset": 7}, [7]),
        ({"offset": -1}, []),
        ({"old_style_offsets": (9, 5, 0)}, [9, 5, 0]),
    ],
)
def test_an_answer_names_positions_or_none(fields: dict[str, Any], positions: list[int]) -> None:
    assert list(outcome(response(**fields))) == positions


def test_a_topic_whose_records_have_no_times_names_no_position_of_one() -> None:
    answer = response(error_code=ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    assert outcome(answer) is None
    assert read_offset_listing(answer, WHERE, "b") == OffsetListing(None, None, None)


@pytest.mark.parametrize(
    ("fields", "listing"),
    [
        ({"offset": 7, "timestamp": 1000, "leader_epoch": 2}, OffsetListing(Position(7), 1000, 2)),
        ({"offset": 7}, OffsetListing(Position(7), None, None)),
        ({"offset": 0, "timestamp": 0, "leader_epoch": 0}, OffsetListing(Position(0), 0, 0)),
        ({"old_style_offsets": (9, 5)}, OffsetListing(Position(9), None, None)),
        ({}, OffsetListing(None, None, None)),
    ],
)
def test_an_offset_is_listed_with_what_is_known_of_its_record(fields: dict[str, Any], listing: OffsetListing) -> None:
    assert read_offset_listing(response(**fields), WHERE, "b") == listing
    with pytest.raises(RemoteProtocolError):
        read_offset_listing(response(2, **fields), WHERE, "b")


@pytest.mark.parametrize(
    ("code", "retriable", "refresh"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True, True),
        (ErrorCode.OFFSET_NOT_AVAILABLE, True, True),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, True, True),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False, False),
    ],
)
def test_an_error_says_what_to_do(code: int, retriable: bool, refresh: bool) -> None:
    error = outcome(response(error_code=code))
    assert isinstance(error, BrokerError)
    assert (error.retriable, error.refresh_metadata) == (retriable, refresh)


@pytest.mark.parametrize(
    "answer", [response(index=4, offset=1), response(offset=-7), response(old_style_offsets=(3, -2))]
)
def test_an_answer_that_cannot_be_is_refused(answer: ListOffsetsResponse) -> None:
    assert isinstance(outcome(answer), RemoteProtocolError)
