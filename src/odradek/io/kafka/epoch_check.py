"""Truncated logs, noticed by the epochs of their leaders, for brokers whose Fetch does not compare them (KIP-320).

After a change of leader, and before anything is fetched from the new one, the new leader says where the epoch of the
last record read ends in its log. If that is before the position, the log was truncated there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from odradek.core.interfaces import PartitionFetch
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import LogTruncated, OffsetOutOfRange
from odradek.io.kafka.connection import KafkaConnection
from odradek.io.kafka.fetch_exchange import KnownPartition
from odradek.io.kafka.log_decoder import KafkaLogDecoder
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

__all__ = ["without_truncated"]

CLIENT = -1
"""The replica id of clients."""


async def without_truncated(
    connection: KafkaConnection,
    versions: BrokerVersions,
    fetches: Sequence[PartitionFetch],
    known: Mapping[TopicPartition, KnownPartition],
) -> Sequence[PartitionFetch]:
    """Return the fetches whose logs have what was read; the others get the error LogTruncated, or OffsetOutOfRange if
    the leader's epochs do not reach that of what was read: its log is another one. Cancellation: safe.

    Raises what awaiting a request raises.
    """
    if not versions.needs_epoch_check:
        return fetches
    asked = {}
    for fetch in fetches:
        decoder, where = fetch.decoder, known.get(fetch.decoder.partition)
        assert isinstance(decoder, KafkaLogDecoder)
        if where is not None and decoder.leader_epoch >= 0 and decoder.checked_epoch != where.leader_epoch:
            asked[decoder.partition] = fetch, decoder, where.leader_epoch
    if not asked:
        return fetches
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for partition, (_, decoder, epoch) in asked.items():
        topics.setdefault(partition.topic, []).append(
            OffsetForLeaderPartition(
                partition=partition.partition, current_leader_epoch=epoch, leader_epoch=decoder.leader_epoch
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
            entry = asked.get(TopicPartition(topic.topic, answer.partition))
            if entry is not None and _apply(*entry, answer):
                truncated.add(entry[0])
    return [fetch for fetch in fetches if fetch not in truncated]


def _apply(fetch: PartitionFetch, decoder: KafkaLogDecoder, epoch: int, answer: EpochEndOffset) -> bool:
    """Return True if the log does not have what was read. An error is left to the fetch, which has the same."""
    position, where = decoder.fetch_position, str(decoder.partition)
    if answer.error_code:
        return False
    if answer.end_offset < 0:
        context = f"{where} at {position}: the leader knows no epoch as late as {decoder.leader_epoch} (KIP-320)"
        fetch.error = OffsetOutOfRange(ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_OUT_OF_RANGE.name, context)
        return True
    if answer.end_offset >= position:
        decoder.checked_epoch = epoch
        return False
    fetch.error = LogTruncated(where, position, answer.end_offset, answer.leader_epoch)
    return True
