"""Committing and fetching offsets: the shape of requests, and what answers mean."""

from __future__ import annotations

import pytest

from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.offsets import (
    Committed,
    OffsetStep,
    commit_request,
    fetch_request,
    read_commit,
    read_fetch,
)
from odradek.core.kafka.transaction_requests import GroupMetadata, Offset
from odradek.core.kafka.versions import BrokerVersions, VersionRange
from odradek.types import TopicPartition
from odradek.wire.kafka.messages.groups import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
TOKEN = GroupMetadata("g", 5, "m", "i")
ID = b"1" * 16


def test_a_commit_carries_the_token() -> None:
    request = commit_request({A: Offset(10, 3, "note"), B: Offset(20)}, TOKEN, {"t": ID})
    assert (request.group_id, request.generation_id_or_member_epoch, request.member_id) == ("g", 5, "m")
    assert request.group_instance_id == "i" and request.topics[0].topic_id == ID
    first, second = request.topics[0].partitions
    assert (first.committed_offset, first.committed_leader_epoch, first.committed_metadata) == (10, 3, "note")
    assert (second.partition_index, second.committed_offset) == (1, 20)


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (0, OffsetStep.DONE),
        (3, OffsetStep.RETRY),
        (14, OffsetStep.RETRY),
        (88, OffsetStep.RETRY),
        (7, OffsetStep.FIND_COORDINATOR),
        (15, OffsetStep.FIND_COORDINATOR),
        (16, OffsetStep.FIND_COORDINATOR),
        (27, OffsetStep.REJOIN),
        (113, OffsetStep.REFRESH_EPOCH),
        (22, OffsetStep.LOST),
        (25, OffsetStep.LOST),
        (110, OffsetStep.LOST),
        (82, OffsetStep.FENCED),
        (12, OffsetStep.FAIL),
        (28, OffsetStep.FAIL),
        (29, OffsetStep.FAIL),
        (30, OffsetStep.FAIL),
    ],
)
def test_what_became_of_a_commit(code: int, step: OffsetStep) -> None:
    partition = OffsetCommitResponsePartition(partition_index=1, error_code=code)
    response = OffsetCommitResponse(topics=(OffsetCommitResponseTopic(name="t", partitions=(partition,)),))
    assert read_commit(response, {"t": bytes(16)}) == {B: Committed(step, None, code)}
    by_id = OffsetCommitResponse(topics=(OffsetCommitResponseTopic(topic_id=ID, partitions=(partition,)),))
    assert read_commit(by_id, {"t": ID, "other": bytes(16)}) == {B: Committed(step, None, code)}


def test_old_coordinators_are_asked_for_one_group() -> None:
    request = fetch_request([A, B], TOKEN, BrokerVersions({9: VersionRange(0, 5)}), stable=True)
    assert request.topics is not None
    assert (request.group_id, request.topics[0].partition_indexes, request.groups) == ("g", (0, 1), ())
    assert not request.require_stable


def test_new_coordinators_are_asked_with_the_member() -> None:
    request = fetch_request([A], TOKEN, BrokerVersions({9: VersionRange(1, 9)}), stable=True)
    (group,) = request.groups
    assert (group.group_id, group.member_id, group.member_epoch) == ("g", "m", 5)
    assert group.topics is not None and group.topics[0].partition_indexes == (0,)
    assert request.require_stable and request.topics == ()


def test_without_a_member_none_is_named() -> None:
    request = fetch_request([A], GroupMetadata("g"), BrokerVersions({9: VersionRange(1, 9)}))
    assert (request.groups[0].member_id, request.groups[0].member_epoch) == (None, -1)


def test_committed_offsets_are_read_in_both_shapes() -> None:
    old = OffsetFetchResponse(
        topics=(
            OffsetFetchResponseTopic(
                name="t",
                partitions=(
                    OffsetFetchResponsePartition(partition_index=0, committed_offset=7, committed_leader_epoch=2),
                    OffsetFetchResponsePartition(partition_index=1, committed_offset=-1, error_code=3),
                ),
            ),
        )
    )
    assert read_fetch(old, [A, B]) == {
        A: Committed(OffsetStep.DONE, Offset(7, 2)),
        B: Committed(OffsetStep.DONE, None, 3),
    }
    new = OffsetFetchResponse(
        groups=(
            OffsetFetchResponseGroup(
                group_id="g",
                topics=(
                    OffsetFetchResponseTopics(
                        name="t",
                        partitions=(
                            OffsetFetchResponsePartitions(partition_index=0, committed_offset=-1),
                            OffsetFetchResponsePartitions(partition_index=1, error_code=88),
                        ),
                    ),
                ),
            ),
        )
    )
    assert read_fetch(new, [A, B]) == {A: Committed(OffsetStep.DONE), B: Committed(OffsetStep.RETRY, None, 88)}


def test_a_partition_missing_in_a_response_is_asked_for_again_and_others_are_ignored() -> None:
    other = OffsetFetchResponsePartition(partition_index=7, committed_offset=3)
    response = OffsetFetchResponse(topics=(OffsetFetchResponseTopic(name="t", partitions=(other,)),))
    assert read_fetch(response, [A]) == {A: Committed(OffsetStep.RETRY)}


@pytest.mark.parametrize(
    "response",
    [
        OffsetFetchResponse(error_code=16),
        OffsetFetchResponse(groups=(OffsetFetchResponseGroup(group_id="g", error_code=16),)),
    ],
)
def test_an_error_of_the_group_counts_for_all_partitions(response: OffsetFetchResponse) -> None:
    failed = Committed(OffsetStep.FIND_COORDINATOR, None, 16)
    assert read_fetch(response, [A, B]) == {A: failed, B: failed}


@pytest.mark.parametrize(
    ("code", "name", "retriable", "fatal"),
    [
        (14, "COORDINATOR_LOAD_IN_PROGRESS", True, False),
        (30, "GROUP_AUTHORIZATION_FAILED", False, True),
        (999, "UNKNOWN_999", False, False),
    ],
)
def test_an_error_answers_as_the_error_table_does(code: int, name: str, retriable: bool, fatal: bool) -> None:
    error = broker_error(code, "OffsetCommit of group g")
    assert (error.code, error.name, error.retriable, error.fatal) == (code, name, retriable, fatal)
    assert str(error) == f"OffsetCommit of group g: {name} (code {code})"
