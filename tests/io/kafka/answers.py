"""Answers of brokers that several tests script."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.wire.kafka.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.wire.kafka.schema import ZERO_UUID

__all__ = ["metadata_response", "topic_response"]

ONE: Mapping[int, str] = {1: "b"}


def topic_response(
    name: str | None,
    *leaders: int,
    error: int = 0,
    internal: bool = False,
    epoch: int = -1,
    topic_id: bytes = ZERO_UUID,
) -> MetadataResponseTopic:
    """Return a topic of a Metadata response, given the leader of each partition."""
    partitions = tuple(
        MetadataResponsePartition(partition_index=n, leader_id=leader, leader_epoch=epoch)
        for n, leader in enumerate(leaders)
    )
    return MetadataResponseTopic(
        error_code=error, name=name, topic_id=topic_id, is_internal=internal, partitions=partitions
    )


def metadata_response(
    *topics: MetadataResponseTopic, hosts: Mapping[int, str] = ONE, error: int = 0
) -> MetadataResponse:
    """Return a Metadata response with brokers of these ids and hosts."""
    brokers = tuple(MetadataResponseBroker(node_id=n, host=host, port=9092) for n, host in hosts.items())
    return MetadataResponse(brokers=brokers, cluster_id="c", topics=topics, error_code=error)
