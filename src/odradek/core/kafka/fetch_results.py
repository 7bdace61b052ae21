"""Interpret responses to Fetch and ListOffsets for one partition (kafka-specification.md 5.3), and remember which
preferred replicas have failed (KIP-392)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import FetchPartitionData, ListOffsetsPartitionResponse

__all__ = ["FailedReplicas", "FetchStep", "ListedOffset", "fetch_step", "list_offsets_step"]

NOT_AVAILABLE = -1

FROM_LEADER_S = 30.0
"""Time for which a leader is asked for the records itself (s). It prefers replicas by what it knows of them: also one
that this client cannot reach, one of a release before 2.4, which serves no clients, and for a time (30 s by default,
replica.lag.time.max.ms) one that does not follow it any more."""


class FetchStep(Enum):
    """Next step for a partition after a response."""

    READ = "read its records and continue after them"
    READ_FROM_REPLICA = "read its records and continue at the preferred replica"
    RETRY = "fetch again after a back-off"
    REFRESH = "refresh the metadata, then fetch again"
    BACK_TO_LEADER = "fetch from the leader: the replica does not have the offset"
    OUT_OF_RANGE = "reset by policy, or raise"
    TRUNCATED = "the log was truncated before the position: seek to its end offset, or raise"
    RAISE = "report the error for this partition; its position does not move"


_FETCH_STEPS: Mapping[int, FetchStep] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: FetchStep.OUT_OF_RANGE,
    # The broker could not read or convert its log; another attempt may succeed.
    ErrorCode.UNKNOWN_SERVER_ERROR: FetchStep.RETRY,
    # The position must not move past damaged data, and another attempt gets the same bytes.
    ErrorCode.CORRUPT_MESSAGE: FetchStep.RAISE,
    # The leader does not know of its own election yet, or not yet how far consumers may read. Or the topic was made
    # again, and its epochs have begun again: the metadata says so (2.4 to 2.7, where topics have no ids).
    ErrorCode.UNKNOWN_LEADER_EPOCH: FetchStep.REFRESH,
    ErrorCode.OFFSET_NOT_AVAILABLE: FetchStep.REFRESH,
}


def _general(code: int) -> FetchStep:
    error = ErrorCode(code)
    return FetchStep.REFRESH if error.refresh_metadata else FetchStep.RETRY if error.retriable else FetchStep.RAISE


def fetch_step(partition: FetchPartitionData, *, position: int = 0, from_replica: bool = False) -> FetchStep:
    """Return the next step for a partition.

    Args:
        partition: Its part of the response.
        position: The position that was asked for.
        from_replica: True if the response came from a follower (KIP-392).
    """
    step = _FETCH_STEPS.get(partition.error_code, _general(partition.error_code))
    if partition.error_code:
        return FetchStep.BACK_TO_LEADER if step is FetchStep.OUT_OF_RANGE and from_replica else step
    if partition.diverging_epoch.epoch >= 0:
        # A follower that is behind its leader answers this, too: its log ends before the position. It is believed once
        # it has the position: its leader compares nothing as long as it prefers the follower.
        is_behind = from_replica and partition.high_watermark < position
        return FetchStep.BACK_TO_LEADER if is_behind else FetchStep.TRUNCATED
    if partition.preferred_read_replica >= 0 and not from_replica:
        return FetchStep.READ_FROM_REPLICA
    return FetchStep.READ


class ListedOffset(Enum):
    """Meaning of one partition's result in a ListOffsets response."""

    OFFSET = "an offset with this time or a later one"
    NONE = "no record has this time or a later one"
    NO_TIMES = "the records of the topic have no times: request the position of a file"
    RETRY = "request it again after a back-off"
    REFRESH = "refresh the metadata, then request it again"
    RAISE = "report the error for this partition"


_LISTED = {FetchStep.RETRY: ListedOffset.RETRY, FetchStep.REFRESH: ListedOffset.REFRESH}


def list_offsets_step(partition: ListOffsetsPartitionResponse) -> ListedOffset:
    """Return the meaning of one partition's result, in the form of version 0 (a list of segments) or of later ones."""
    if partition.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
        return ListedOffset.NO_TIMES
    if partition.error_code in (ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE):
        return _LISTED[_FETCH_STEPS[partition.error_code]]
    if partition.error_code:
        return _LISTED.get(_general(partition.error_code), ListedOffset.RAISE)
    return (
        ListedOffset.OFFSET if partition.old_style_offsets or partition.offset != NOT_AVAILABLE else ListedOffset.NONE
    )


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
