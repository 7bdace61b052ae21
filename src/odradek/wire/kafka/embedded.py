"""Schemas embedded in messages: the consumer protocol and the user data of assignors.

They have no headers. The consumer protocol begins with its version, which `encode_versioned` writes and
`decode_versioned` reads; the user data has none.
"""

from __future__ import annotations

import struct as binary
from contextlib import suppress
from typing import Annotated, TypeVar

from odradek.engine import Buffer
from odradek.errors import RemoteProtocolError
from odradek.wire.kafka.decode import decode, decoder
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.messages.common import TopicPartitions
from odradek.wire.kafka.schema import (
    I32,
    IGNORABLE,
    Bytes,
    Message,
    Str,
    message,
    nullable,
    since,
)

__all__ = [
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "CooperativeStickyUserData",
    "StickyUserData",
    "decode_versioned",
    "encode_versioned",
]

M = TypeVar("M", bound=Message)

_VERSION = binary.Struct(">h")


def encode_versioned(value: Message, version: int) -> bytes:
    """Encode a value after its version, an int16.

    Raises:
        LocalProtocolError: The value cannot be encoded in this version.
        ValueError: There is no such version.
    """
    return _VERSION.pack(version) + encode(value, version)


def decode_versioned(cls: type[M], data: Buffer) -> tuple[M, int]:
    """Decode a value that its version precedes; also return that version.

    A version above the declared ones is read as the highest of them, and the rest is ignored: newer versions only add
    fields at the end (kafka-specification.md 5.1). So one that ends where an older version does has the fields of that:
    kafka-go says 1, and leaves out `owned_partitions`.

    Raises:
        RemoteProtocolError: The bytes are not a valid value.
    """
    if len(data) < _VERSION.size:
        raise RemoteProtocolError(f"{cls.__name__}: {len(data)} bytes, too short for a version")
    (version,) = _VERSION.unpack_from(data)
    first, last = cls.SPEC.versions
    if version < first:
        raise RemoteProtocolError(f"{cls.__name__} has no version {version}")
    try:
        value, _ = decoder(cls, min(version, last))(data, _VERSION.size)
    except RemoteProtocolError:
        for older in range(min(version, last) - 1, first - 1, -1):
            with suppress(RemoteProtocolError):
                return decode(cls, older, data, _VERSION.size), version
        raise
    return value, version


# ---- consumer groups ----------------------------------------------------------------------------------------


@message(versions=(0, 3), flexible=None)
class ConsumerProtocolSubscription(Message):
    """Subscription of a member of a classic group; `metadata` of JoinGroup."""

    topics: tuple[Str, ...] = ()
    user_data: Annotated[Bytes | None, nullable()] = None
    owned_partitions: Annotated[tuple[TopicPartitions, ...], since(1), IGNORABLE] = ()
    generation_id: Annotated[I32, since(2), IGNORABLE] = -1
    rack_id: Annotated[Str | None, since(3), nullable(), IGNORABLE] = None


@message(versions=(0, 3), flexible=None)
class ConsumerProtocolAssignment(Message):
    """Assignment of a member of a classic group; `assignment` of SyncGroup."""

    assigned_partitions: tuple[TopicPartitions, ...] = ()
    user_data: Annotated[Bytes | None, nullable()] = None


@message(versions=(0, 1), flexible=None)
class StickyUserData(Message):
    """User data of the sticky assignor in a subscription. No version precedes it: readers try 1, then 0."""

    previous_assignment: tuple[TopicPartitions, ...] = ()
    generation: Annotated[I32, since(1), IGNORABLE] = -1


@message(versions=(0, 0), flexible=None)
class CooperativeStickyUserData(Message):
    """User data of the cooperative sticky assignor in a subscription."""

    generation: I32 = -1
