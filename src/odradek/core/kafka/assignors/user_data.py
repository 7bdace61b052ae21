"""User data of the sticky assignors: the partitions that a member owned (kafka-specification.md 5.1).

Malformed user data is a claim to nothing, as in Java: one member with a malformed subscription must not prevent the
assignment of a whole group.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.core.kafka.assignors.model import NO_GENERATION
from odradek.core.kafka.partitions import by_topic
from odradek.errors import RemoteProtocolError
from odradek.types import TopicPartition
from odradek.wire.kafka.decode import decoder
from odradek.wire.kafka.embedded import CooperativeStickyUserData, StickyUserData
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.messages.common import TopicPartitions

__all__ = ["decode_generation", "decode_sticky", "encode_generation", "encode_sticky"]


def encode_sticky(owned: Sequence[TopicPartition], generation: int) -> bytes:
    """Encode sticky user data, version 1."""
    topics = (TopicPartitions(topic=t, partitions=tuple(numbers)) for t, numbers in by_topic(owned).items())
    return encode(StickyUserData(previous_assignment=tuple(topics), generation=generation), 1)


def decode_sticky(data: bytes | None) -> tuple[list[TopicPartition], int]:
    """Decode sticky user data of version 1, or else 0, into partitions and generation (-1 if there is none)."""
    for version in (1, 0):
        try:
            value, _ = decoder(StickyUserData, version)(data or b"", 0)
        except RemoteProtocolError:
            continue
        return [TopicPartition(t.topic, n) for t in value.previous_assignment for n in t.partitions], value.generation
    return [], NO_GENERATION


def encode_generation(generation: int) -> bytes:
    """Encode cooperative-sticky user data."""
    return encode(CooperativeStickyUserData(generation=generation), 0)


def decode_generation(data: bytes | None) -> int:
    """Decode cooperative-sticky user data; -1 if there is none."""
    try:
        return decoder(CooperativeStickyUserData, 0)(data or b"", 0)[0].generation
    except RemoteProtocolError:
        return NO_GENERATION
