"""Responses of coordinators of transactions that have a result for each partition of the topic `t`."""

from __future__ import annotations

from odradek.wire.kafka.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

__all__ = ["offsets", "partitions"]


def partitions(*results: tuple[int, int]) -> AddPartitionsToTxnResponse:
    """Number of a partition, and its error code."""
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=(
            AddPartitionsToTxnTopicResult(
                name="t",
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(partition_index=n, partition_error_code=e) for n, e in results
                ),
            ),
        )
    )


def offsets(*results: tuple[int, int]) -> TxnOffsetCommitResponse:
    """Number of a partition, and its error code."""
    return TxnOffsetCommitResponse(
        topics=(
            TxnOffsetCommitResponseTopic(
                name="t",
                partitions=tuple(TxnOffsetCommitResponsePartition(partition_index=n, error_code=e) for n, e in results),
            ),
        )
    )
