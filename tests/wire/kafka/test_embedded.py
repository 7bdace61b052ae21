"""Schemas inside of messages and records."""

from __future__ import annotations

import pytest

from odradek.errors import RemoteProtocolError
from odradek.wire.kafka.decode import decode
from odradek.wire.kafka.embedded import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    CooperativeStickyUserData,
    StickyUserData,
    decode_versioned,
    encode_versioned,
)
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.messages.common import TopicPartitions

OWNED = (TopicPartitions(topic="t", partitions=(0, 1)),)


def test_the_version_is_in_front() -> None:
    subscription = ConsumerProtocolSubscription(topics=("a", "b"), owned_partitions=OWNED)
    encoded = encode_versioned(subscription, 1)
    assert encoded[:2] == b"\0\1"
    assert decode_versioned(ConsumerProtocolSubscription, encoded) == (subscription, 1)


def test_what_a_version_lacks_is_left_out() -> None:
    subscription = ConsumerProtocolSubscription(topics=("a",), owned_partitions=OWNED, rack_id="r", generation_id=3)
    assert decode_versioned(ConsumerProtocolSubscription, encode_versioned(subscription, 0)) == (
        ConsumerProtocolSubscription(topics=("a",)),
        0,
    )


def test_a_newer_version_is_read_as_the_newest_that_is_known() -> None:
    encoded = encode_versioned(ConsumerProtocolAssignment(assigned_partitions=OWNED), 3)
    newer = b"\0\x09" + encoded[2:] + b"a field of the future"
    assert decode_versioned(ConsumerProtocolAssignment, newer) == (
        ConsumerProtocolAssignment(assigned_partitions=OWNED),
        9,
    )


@pytest.mark.parametrize(("said", "is_of"), [(1, 0), (2, 0), (2, 1), (3, 2), (9, 1)])
def test_one_that_ends_where_an_older_version_does_has_the_fields_of_that(said: int, is_of: int) -> None:
    subscription = ConsumerProtocolSubscription(
        topics=("a",),
        user_data=b"u",
        owned_partitions=OWNED if is_of else (),
        generation_id=3 if is_of == 2 else -1,
    )
    encoded = said.to_bytes(2, "big") + encode_versioned(subscription, is_of)[2:]
    assert decode_versioned(ConsumerProtocolSubscription, encoded) == (subscription, said)
    cut = encoded[:-1]
    with pytest.raises(RemoteProtocolError, match="ConsumerProtocolSubscription"):
        decode_versioned(ConsumerProtocolSubscription, cut)


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\0", b"\0\0\xff\xff\xff\xff"])
def test_what_is_no_subscription_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="ConsumerProtocolSubscription"):
        decode_versioned(ConsumerProtocolSubscription, data)


def test_user_data_of_the_sticky_assignors() -> None:
    newer = StickyUserData(previous_assignment=OWNED, generation=77)
    assert encode(newer, 1).hex() == "0000000100017400000002000000000000000100" + "00004d"
    assert decode(StickyUserData, 1, encode(newer, 1)) == newer
    assert decode(StickyUserData, 0, encode(newer, 0)) == StickyUserData(previous_assignment=OWNED)
    assert encode(CooperativeStickyUserData(generation=5), 0) == b"\0\0\0\5"
