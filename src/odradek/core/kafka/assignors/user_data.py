"""The user data of the sticky assignors: what a member tells the leader about its partitions (specification 5.1).

    sticky v1 (2.3 on)      [topic string, [partition int32]] generation int32
    sticky v0               the same without the generation
    cooperative-sticky      generation int32; the partitions stand in the subscription

A reader of sticky tries v1, then v0. Data that is neither counts as a claim to nothing, as it does in Java: a member
with nonsense in its subscription must not keep a group from its assignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error, pack

from odradek.core.kafka.assignors.model import NO_GENERATION
from odradek.core.kafka.partitions import TopicPartition, by_topic
from odradek.errors import LocalProtocolError

__all__ = ["decode_generation", "decode_sticky", "encode_generation", "encode_sticky"]

_INT16, _INT32 = Struct(">h"), Struct(">i")


def encode_sticky(owned: Sequence[TopicPartition], generation: int) -> bytes:
    """Encode sticky user data v1."""
    topics = by_topic(owned)
    parts = [_INT32.pack(len(topics))]
    for topic, partitions in topics.items():
        name = topic.encode()
        if len(name) > 0x7FFF:
            raise LocalProtocolError(f"topic name of {len(name)} bytes: at most 32767 fit into sticky user data")
        parts += [_INT16.pack(len(name)), name, pack(f">{len(partitions) + 1}i", len(partitions), *partitions)]
    return b"".join([*parts, _INT32.pack(generation)])


def decode_sticky(data: bytes | None) -> tuple[list[TopicPartition], int]:
    """Decode sticky user data v1 or v0 into partitions and generation (-1 where it has none)."""
    if not data:
        return [], NO_GENERATION
    try:
        owned, position = _decode_partitions(data)
    except (error, ValueError):
        return [], NO_GENERATION
    if len(data) - position < _INT32.size:
        return owned, NO_GENERATION
    return owned, int(_INT32.unpack_from(data, position)[0])


def _decode_partitions(data: bytes) -> tuple[list[TopicPartition], int]:
    """Decode the array of topics. Counts are bounded by the bytes: unpacking past the end raises struct.error."""
    owned: list[TopicPartition] = []
    (topics,), position = _INT32.unpack_from(data), _INT32.size
    for _ in range(topics):
        (length,) = _INT16.unpack_from(data, position)
        (count,) = _INT32.unpack_from(data, position + _INT16.size + length)
        if length < 0 or count < 0:
            raise ValueError("negative length")
        topic = data[position + _INT16.size : position + _INT16.size + length].decode()
        position += _INT16.size + length + _INT32.size
        numbers = Struct(f">{count}i") if count * 4 <= len(data) - position else None
        if numbers is None:
            raise ValueError("more partitions than bytes")
        owned += [TopicPartition(topic, partition) for partition in numbers.unpack_from(data, position)]
        position += numbers.size
    return owned, position


def encode_generation(generation: int) -> bytes:
    """Encode cooperative-sticky user data."""
    return _INT32.pack(generation)


def decode_generation(data: bytes | None) -> int:
    """Decode cooperative-sticky user data; -1 where there is none."""
    return int(_INT32.unpack_from(data)[0]) if data and len(data) >= _INT32.size else NO_GENERATION
