"""Positions by meaning and by time: ListOffsets requests and what responses mean (kafka-specification.md 2, note 14).

Pure. A time means the first record of that time or a later one; brokers before 0.10.1 know only the times of their
files, and name the newest one that is not younger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.fetch_results import ListedOffset, list_offsets_step
from odradek.errors import OdradekError, RemoteProtocolError
from odradek.types import LATEST, AtTime, Position, TopicPartition
from odradek.wire.kafka.messages.data import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:  # which only administration needs
    from odradek.core.admin import OffsetChoice, OffsetListing

__all__ = ["Outcome", "list_offsets_request", "read_ends", "read_list_offsets", "read_offset_listing", "time_ms"]

Outcome = Sequence[Position] | OdradekError | None
"""The positions that a broker names for a partition, newest first; none: no record has the time or a later one. Or the
error of the partition: BrokerError, or RemoteProtocolError if there is no such answer. None: its records have no times;
version 0 names the positions of files, by the times of these."""

CLIENT = -1
"""The replica id of clients."""

_LAST_MS = 2.0**62
"""Stands for any later time: the field is an i64."""


def list_offsets_request(
    wanted: Mapping[TopicPartition, OffsetChoice],
    count: int,
    *,
    leader_epoch: Callable[[TopicPartition], int],
    read_committed: bool,
) -> ListOffsetsRequest:
    """Return the request for some partitions of one broker.

    Args:
        wanted: The time, or EARLIEST or LATEST, by partition.
        count: Most positions to return, where the broker returns several (before 0.10.1).
        leader_epoch: The epoch of a partition's leader as this client knows it; -1 fences nothing.
        read_committed: LATEST is the end of what consumers of this isolation may read.
    """
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for partition, at in wanted.items():
        topics.setdefault(partition.topic, []).append(
            ListOffsetsPartition(
                partition_index=partition.partition,
                current_leader_epoch=leader_epoch(partition),
                timestamp=time_ms(at),
                max_num_offsets=count,
            )
        )
    return ListOffsetsRequest(
        replica_id=CLIENT,
        isolation_level=int(read_committed),
        topics=tuple([ListOffsetsTopic(name=name, partitions=tuple(parts)) for name, parts in topics.items()]),
    )


def read_list_offsets(
    response: ListOffsetsResponse, wanted: Mapping[TopicPartition, OffsetChoice], address: str
) -> dict[TopicPartition, Outcome]:
    """Return the outcome for each of these partitions."""
    answers = {
        TopicPartition(topic.name, answer.partition_index): answer
        for topic in response.topics
        for answer in topic.partitions
    }
    return {
        partition: _outcome(answers.get(partition), f"{address}: position {at!r} of {partition}")
        for partition, at in wanted.items()
    }


def read_ends(
    response: ListOffsetsResponse, wanted: Mapping[TopicPartition, OffsetChoice]
) -> Iterator[tuple[TopicPartition, int, int]]:
    """Return the partitions whose LATEST was requested, each with its offset and the epoch of the leader that named it,
    which is not that of the record before; -1 before 2.1."""
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, answer.partition_index)
            if wanted.get(partition) is LATEST:
                yield partition, answer.offset, answer.leader_epoch


def _outcome(answer: ListOffsetsPartitionResponse | None, context: str) -> Outcome:
    if answer is None:
        return _no_answer(context)
    try:
        return _positions(answer, context)
    except OdradekError as error:
        return error


def read_offset_listing(response: ListOffsetsResponse, partition: TopicPartition, context: str) -> OffsetListing:
    """Return the offset that a response names, with its record's timestamp and leader epoch.

    Raises:
        BrokerError: The partition's error.
        RemoteProtocolError: The response is about something else.
    """
    answer = _answer(response, partition, context)
    positions = _positions(answer, context) or ()
    from odradek.core.admin import OffsetListing
    from odradek.core.kafka.admin_topics import known

    return OffsetListing(positions[0] if positions else None, known(answer.timestamp), known(answer.leader_epoch))


def _answer(response: ListOffsetsResponse, partition: TopicPartition, context: str) -> ListOffsetsPartitionResponse:
    for topic in response.topics:
        for answer in topic.partitions:
            if (topic.name, answer.partition_index) == (partition.topic, partition.partition):
                return answer
    raise _no_answer(context)


def _no_answer(context: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{context}: the response has no such partition")


def _positions(answer: ListOffsetsPartitionResponse, context: str) -> Sequence[Position] | None:
    step = list_offsets_step(answer)
    if step is ListedOffset.NO_TIMES:
        return None
    if step is ListedOffset.NONE:
        return ()
    if step is ListedOffset.OFFSET:
        offsets = answer.old_style_offsets or (answer.offset,)
        if min(offsets) < 0:
            raise RemoteProtocolError(f"{context}: offset {min(offsets)}")
        return [Position(offset) for offset in offsets]
    error: OdradekError = broker_error(answer.error_code, context)
    error.retriable = step in (ListedOffset.RETRY, ListedOffset.REFRESH)
    error.refresh_metadata = step is ListedOffset.REFRESH
    raise error


def time_ms(at: OffsetChoice) -> int:
    """Round up to whole milliseconds. Times before the epoch are all the same, and -1 and -2 mean something else."""
    if not isinstance(at, AtTime):
        return int(at.value)
    return ceil(round(min(max(0.0, at.seconds * 1000), _LAST_MS), 3))
