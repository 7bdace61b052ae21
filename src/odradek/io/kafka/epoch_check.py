"""Truncated logs, noticed by the epochs of their leaders, for brokers whose Fetch does not compare them (KIP-320).

After a change of leader, and before anything is fetched from the new one, the new leader says where the epoch of the
last record read ends in its log. If that is before the position, the log was truncated there.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import LogTruncated, OffsetOutOfRange
from odradek.io.kafka.connection import KafkaConnection
from odradek.io.kafka.fetch_exchange import PartitionExchange
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

__all__ = ["exclude_truncated"]

CLIENT = -1
"""The replica id of clients."""


async def exclude_truncated(
    connection: KafkaConnection, versions: BrokerVersions, parts: Sequence[PartitionExchange]
) -> Sequence[PartitionExchange]:
    """Return the parts whose logs have what was read; the fetches of the others get the error LogTruncated, or
    OffsetOutOfRange if the leader's epochs do not reach that of what was read: its log is another one. Cancellation:
    safe.

    Raises what awaiting a request raises.
    """
    if not versions.needs_epoch_check:
        return parts
    # Once for each leader epoch of a partition: as long as the leader is the same, its log only grows. Nothing can be
    # asked if the epoch of the last record is not known, as of records in the formats before 0.11, and only leaders
    # answer: a preferred replica is named by one.
    asked = {
        part.partition: part
        for part in parts
        if part.is_leader and part.decoder.leader_epoch >= 0 and part.decoder.checked_epoch != part.leader_epoch
    }
    if not asked:
        return parts
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for partition, part in asked.items():
        topics.setdefault(partition.topic, []).append(
            OffsetForLeaderPartition(
                partition=partition.partition,
                current_leader_epoch=part.leader_epoch,
                leader_epoch=part.decoder.leader_epoch,
            )
        )
    request = OffsetForLeaderEpochRequest(
        replica_id=CLIENT,
        topics=tuple([OffsetForLeaderTopic(topic=name, partitions=tuple(parts)) for name, parts in topics.items()]),
    )
    response = await connection.submit(request)
    truncated = set()
    for topic in response.topics:
        for answer in topic.partitions:
            asked_part = asked.get(TopicPartition(topic.topic, answer.partition))
            if asked_part is not None and _apply(asked_part, answer):
                truncated.add(asked_part)
    return [part for part in parts if part not in truncated]


def _apply(part: PartitionExchange, answer: EpochEndOffset) -> bool:
    """Return True if the log does not have what was read. An error is left to the fetch, which has the same."""
    fetch, decoder = part.fetch, part.decoder
    position, where = decoder.fetch_position, str(decoder.partition)
    if answer.error_code:
        return False
    if answer.end_offset < 0:
        if decoder.forget_start_epoch():
            return False
        context = f"{where} at {position}: the leader knows no epoch as late as {decoder.leader_epoch} (KIP-320)"
        fetch.error = OffsetOutOfRange(ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_OUT_OF_RANGE.name, context)
        return True
    if answer.end_offset >= position:
        decoder.checked_epoch = part.leader_epoch
        return False
    fetch.error = LogTruncated(where, position, answer.end_offset, answer.leader_epoch)
    return True
