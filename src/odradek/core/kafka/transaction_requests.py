"""Contents of a transaction, and the requests that carry them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from odradek.core.kafka.partitions import by_topic
from odradek.core.kafka.producer_state import ProducerIdentity
from odradek.types import TopicPartition
from odradek.wire.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

__all__ = ["Contents", "GroupMetadata", "Offset", "Requests", "unfenced"]


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """Identity of the member that commits offsets: fences a member that lost its partitions (KIP-447).

    Args:
        group: The group.
        generation: The generation, or the member epoch of KIP-848; -1 without group management.
        member_id: "" without group management.
        instance_id: The instance id of a static member.
    """

    group: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Offset:
    """An offset to commit: that of the next record to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""


@dataclass(slots=True)
class Contents:
    """Partitions and offsets of the open transaction.

    Args:
        wanted: Partitions not yet added at the coordinator.
        added: Partitions to which records may be sent.
        offsets: Offsets that are not committed yet.
        group: The group of the offsets.
        group_added: True once the coordinator has added the group.
        started: True once the coordinator has the transaction, so that it must be ended there.
        in_doubt: The last request to add partitions or a group that may be applied although there was no such answer.
        undecidable: True once repeating that request cannot tell whether the coordinator has the transaction.
    """

    wanted: dict[TopicPartition, None] = field(default_factory=dict)
    added: set[TopicPartition] = field(default_factory=set)
    offsets: dict[TopicPartition, Offset] = field(default_factory=dict)
    group: GroupMetadata | None = None
    group_added: bool = False
    started: bool = False
    in_doubt: AddPartitionsToTxnRequest | AddOffsetsToTxnRequest | None = None
    undecidable: bool = False


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of one producer."""

    transactional_id: str
    identity: ProducerIdentity

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> AddPartitionsToTxnRequest:
        """Return the request that makes partitions part of the transaction."""
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.epoch,
            v3_and_below_topics=tuple(
                AddPartitionsToTxnTopic(name=topic, partitions=tuple(numbers))
                for topic, numbers in by_topic(partitions).items()
            ),
        )

    def add_group(self, group: GroupMetadata) -> AddOffsetsToTxnRequest:
        """Return the request that makes a group's offsets part of the transaction."""
        return AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            group_id=group.group,
        )

    def commit_offsets(self, group: GroupMetadata, offsets: Mapping[TopicPartition, Offset]) -> TxnOffsetCommitRequest:
        """Return the request that commits offsets with the transaction."""
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group.group,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            generation_id=group.generation,
            member_id=group.member_id,
            group_instance_id=group.instance_id,
            topics=tuple(
                TxnOffsetCommitRequestTopic(
                    name=topic, partitions=tuple(_offset(n, offsets[TopicPartition(topic, n)]) for n in numbers)
                )
                for topic, numbers in by_topic(offsets).items()
            ),
        )

    def end(self, *, committed: bool) -> EndTxnRequest:
        """Return the request that commits or aborts."""
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=committed,
        )


def unfenced(request: TxnOffsetCommitRequest) -> TxnOffsetCommitRequest:
    """Return the request for a coordinator that knows no fence (before 2.5): with the name of the group alone."""
    return request.__replace__(generation_id=-1, member_id="", group_instance_id=None)


def _offset(partition: int, offset: Offset) -> TxnOffsetCommitRequestPartition:
    return TxnOffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )
