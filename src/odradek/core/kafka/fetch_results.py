"""Interpret responses to Fetch and ListOffsets for one partition (specification 5.3)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import FetchPartitionData, ListOffsetsPartitionResponse

__all__ = ["FetchStep", "ListedOffset", "fetch_step", "list_offsets_step"]

NOT_AVAILABLE = -1


class FetchStep(Enum):
    """Next step for a partition after a response."""

    READ = "read its records and continue after them"
    READ_FROM_REPLICA = "read its records and continue at the preferred replica"
    RETRY = "ask again after a back-off"
    REFRESH = "refresh the metadata, then ask again"
    BACK_TO_LEADER = "ask the leader: the replica does not have the offset"
    OUT_OF_RANGE = "reset by policy, or raise"
    TRUNCATED = "the log was truncated before the position: seek to its end offset, or raise"
    RAISE = "report the error for this partition; its position does not move"


_FETCH_STEPS: Mapping[int, FetchStep] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: FetchStep.OUT_OF_RANGE,
    # The broker could not read its log or convert it; another attempt may find it healed.
    ErrorCode.UNKNOWN_SERVER_ERROR: FetchStep.RETRY,
    # The position must not move past data that is damaged, however often it is fetched.
    ErrorCode.CORRUPT_MESSAGE: FetchStep.RAISE,
    # The leader has not taken notice of its own election, or of all that it may hand out.
    ErrorCode.UNKNOWN_LEADER_EPOCH: FetchStep.RETRY,
    ErrorCode.OFFSET_NOT_AVAILABLE: FetchStep.REFRESH,
}


def _general(code: int) -> FetchStep:
    error = ErrorCode(code)
    return FetchStep.REFRESH if error.refresh_metadata else FetchStep.RETRY if error.retriable else FetchStep.RAISE


def fetch_step(partition: FetchPartitionData, *, from_replica: bool = False) -> FetchStep:
    """Return what to do.

    Args:
        partition: The partition's part of the answer.
        from_replica: True when a follower was asked (KIP-392).
    """
    step = _FETCH_STEPS.get(partition.error_code, _general(partition.error_code))
    if partition.error_code:
        return FetchStep.BACK_TO_LEADER if step is FetchStep.OUT_OF_RANGE and from_replica else step
    if partition.diverging_epoch.epoch >= 0:
        return FetchStep.TRUNCATED
    if partition.preferred_read_replica >= 0 and not from_replica:
        return FetchStep.READ_FROM_REPLICA
    return FetchStep.READ


class ListedOffset(Enum):
    """Meaning of one partition's result in a ListOffsets response."""

    OFFSET = "an offset with this time or a later one"
    NONE = "no record has this time or a later one"
    RETRY = "ask again after a back-off"
    REFRESH = "refresh the metadata, then ask again"
    RAISE = "report the error for this partition"


_LISTED = {FetchStep.RETRY: ListedOffset.RETRY, FetchStep.REFRESH: ListedOffset.REFRESH}


def list_offsets_step(partition: ListOffsetsPartitionResponse) -> ListedOffset:
    """Return what a part of an answer means, in the shape of version 0 (a list of segments) or of later ones."""
    if partition.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
        return ListedOffset.NONE  # the topic's format has no times
    if partition.error_code in (ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE):
        return _LISTED[_FETCH_STEPS[partition.error_code]]
    if partition.error_code:
        return _LISTED.get(_general(partition.error_code), ListedOffset.RAISE)
    return (
        ListedOffset.OFFSET if partition.old_style_offsets or partition.offset != NOT_AVAILABLE else ListedOffset.NONE
    )
