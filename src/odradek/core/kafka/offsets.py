"""Requests that commit and fetch the offsets of a group, and what responses mean (kafka-specification.md 5.3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from odradek.core.kafka.partitions import by_topic
from odradek.core.kafka.transaction_requests import GroupMetadata, Offset
from odradek.core.kafka.versions import BrokerVersions
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)

__all__ = ["Committed", "OffsetStep", "commit_request", "fetch_request", "read_commit", "read_fetch"]

NO_OFFSET = -1


class OffsetStep(Enum):
    """Next step for one partition after a response."""

    DONE = "committed, or fetched"
    RETRY = "send it again after a back-off"
    FIND_COORDINATOR = "find the coordinator, then send it again"
    REJOIN = "not committed; the member has to join again first"
    REFRESH_EPOCH = "not committed; repeat it with the epoch of the next heartbeat response"
    LOST = "not committed; the member no longer owns the partitions"
    FENCED = "not committed; another process has the instance id"
    FAIL = "report the error"


_STEPS: Mapping[int, OffsetStep] = {
    ErrorCode.NONE: OffsetStep.DONE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: OffsetStep.RETRY,
    ErrorCode.UNKNOWN_SERVER_ERROR: OffsetStep.RETRY,
    ErrorCode.REQUEST_TIMED_OUT: OffsetStep.FIND_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION: OffsetStep.FIND_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: OffsetStep.FIND_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: OffsetStep.FIND_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS: OffsetStep.REJOIN,
    ErrorCode.STALE_MEMBER_EPOCH: OffsetStep.REFRESH_EPOCH,
    ErrorCode.ILLEGAL_GENERATION: OffsetStep.LOST,
    ErrorCode.UNKNOWN_MEMBER_ID: OffsetStep.LOST,
    ErrorCode.FENCED_MEMBER_EPOCH: OffsetStep.LOST,
    ErrorCode.FENCED_INSTANCE_ID: OffsetStep.FENCED,
}


@dataclass(frozen=True, slots=True)
class Committed:
    """Result of one partition.

    Args:
        step: The next step.
        offset: The committed offset; None if nothing was committed.
        error_code: The error that led to `step`; 0 if there was none, also if the response lacks the partition.
    """

    step: OffsetStep
    offset: Offset | None = None
    error_code: int = 0


def step_of(code: int) -> OffsetStep:
    """Return the next step after an error; retriable ones without a special meaning are retried."""
    return _STEPS.get(code, OffsetStep.RETRY if ErrorCode(code).retriable else OffsetStep.FAIL)


def commit_request(
    offsets: Mapping[TopicPartition, Offset], token: GroupMetadata, topic_ids: Mapping[str, bytes]
) -> OffsetCommitRequest:
    """Return the request to commit.

    Args:
        offsets: Offsets to commit.
        token: Identity of the committer: `Member.fence` or `ConsumerGroupMember.fence`, taken while the member owns all
            these partitions. A group without members, whose partitions the user assigned, commits with the bare group.
        topic_ids: The topics in whose logs these are offsets (KIP-848, from version 10 on); all zero: not known.
    """
    return OffsetCommitRequest(
        group_id=token.group,
        generation_id_or_member_epoch=token.generation,
        member_id=token.member_id,
        group_instance_id=token.instance_id,
        topics=tuple(
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=topic_ids[topic],
                partitions=tuple(_committed(n, offsets[TopicPartition(topic, n)]) for n in numbers),
            )
            for topic, numbers in by_topic(offsets).items()
        ),
    )


def _committed(partition: int, offset: Offset) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


def read_commit(response: OffsetCommitResponse, topic_ids: Mapping[str, bytes]) -> dict[TopicPartition, Committed]:
    """Return the result of each partition; `topic_ids` are those of the request."""
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    return {
        TopicPartition(topic.name or names.get(topic.topic_id, ""), p.partition_index): Committed(
            step_of(p.error_code), None, p.error_code
        )
        for topic in response.topics
        for p in topic.partitions
    }


def fetch_request(
    partitions: Iterable[TopicPartition], token: GroupMetadata, versions: BrokerVersions, *, stable: bool = False
) -> OffsetFetchRequest:
    """Return the request for committed offsets.

    Args:
        partitions: Partitions whose offsets are requested; an empty iterable requests none.
        token: Identity of the requester.
        versions: Versions of the coordinator.
        stable: True to get a retriable error while a transaction commits offsets, if the coordinator supports it.
    """
    topics = by_topic(partitions)
    stable = stable and versions.has_stable_offsets
    if not versions.has_group_lists:
        names = tuple(OffsetFetchRequestTopic(name=t, partition_indexes=tuple(n)) for t, n in topics.items())
        return OffsetFetchRequest(group_id=token.group, topics=names, require_stable=stable)
    group = OffsetFetchRequestGroup(
        group_id=token.group,
        member_id=token.member_id or None,
        member_epoch=token.generation if token.member_id else -1,
        topics=tuple(OffsetFetchRequestTopics(name=t, partition_indexes=tuple(n)) for t, n in topics.items()),
    )
    return OffsetFetchRequest(groups=(group,), require_stable=stable)


def read_fetch(response: OffsetFetchResponse, asked: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
    """Return the committed offset of each requested partition.

    An error of the whole group applies to all of them. A partition that the response lacks is requested again:
    treating it as one without a committed offset would reset its position.
    """
    failed = next((group.error_code for group in response.groups if group.error_code), response.error_code)
    if failed:
        return dict.fromkeys(asked, Committed(step_of(failed), None, failed))
    fetched = dict(_fetched(response))
    return {partition: fetched.get(partition, Committed(OffsetStep.RETRY)) for partition in asked}


def _fetched(response: OffsetFetchResponse) -> Iterator[tuple[TopicPartition, Committed]]:
    for topic in response.topics:
        for p in topic.partitions:
            yield TopicPartition(topic.name, p.partition_index), _read(p)
    for group in response.groups:
        for listed in group.topics:
            for q in listed.partitions:
                yield TopicPartition(listed.name, q.partition_index), _read(q)


def _read(answer: OffsetFetchResponsePartition | OffsetFetchResponsePartitions) -> Committed:
    # Version 0, for which the broker reads ZooKeeper, returns this error if nothing was committed.
    if answer.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        known = not answer.error_code and answer.committed_offset != NO_OFFSET
        offset = Offset(answer.committed_offset, answer.committed_leader_epoch, answer.metadata)
        return Committed(OffsetStep.DONE, offset if known else None, answer.error_code)
    return Committed(step_of(answer.error_code), None, answer.error_code)
