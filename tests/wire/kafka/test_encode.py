"""What encoders refuse, and how they say where."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.errors import LocalProtocolError
from odradek.wire.kafka.decode import decode
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.messages.data import (
    FetchableTopicResponse,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    ReplicaState,
)
from odradek.wire.kafka.messages.groups import ConsumerGroupHeartbeatRequest, LeaveGroupRequest, MemberIdentity
from odradek.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic


def test_a_field_that_the_version_lacks_is_refused_when_it_is_set() -> None:
    request = FetchRequest(replica_state=ReplicaState(replica_id=7))
    with pytest.raises(LocalProtocolError, match="FetchRequest version 14: replica_state: it is set, but this version"):
        encode(request, 14)
    assert decode(FetchRequest, 15, encode(request, 15)) == request


def test_a_field_deep_inside_is_named_with_the_indexes() -> None:
    partitions = (FetchPartition(), FetchPartition(last_fetched_epoch=3))
    request = FetchRequest(topics=(FetchTopic(), FetchTopic(partitions=partitions)))
    where = r"FetchRequest version 11: topics\[1\]\.partitions\[1\]\.last_fetched_epoch: it is set, but this version"
    with pytest.raises(LocalProtocolError, match=where):
        encode(request, 11)


def test_a_struct_that_equals_the_default_is_not_set() -> None:
    partition = FetchPartitionData(current_leader=LeaderIdAndEpoch())
    response = FetchResponse(responses=(FetchableTopicResponse(partitions=(partition,)),))
    assert decode(FetchResponse, 4, encode(response, 4)) == response


def test_an_ignorable_field_is_dropped() -> None:
    request = FetchRequest(max_bytes=5, session_id=9, rack_id="r")
    assert decode(FetchRequest, 0, encode(request, 0)) == FetchRequest()


def test_null_is_refused_where_it_is_not_legal() -> None:
    request = MetadataRequest(topics=None)
    assert decode(MetadataRequest, 1, encode(request, 1)) == request
    with pytest.raises(LocalProtocolError, match="MetadataRequest version 0: topics: null is not allowed"):
        encode(request, 0)
    with pytest.raises(LocalProtocolError, match=r"MetadataRequest version 9: topics\[0\].name: null is not"):
        encode(MetadataRequest(topics=(MetadataRequestTopic(name=None),)), 9)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"max_wait_ms": 2**31}, "version 13: max_wait_ms: .*format requires"),
        ({"min_bytes": -(2**40)}, "version 13: min_bytes: .*format requires"),
        ({"session_id": None}, "version 13: session_id: .*required argument is not an integer"),
        ({"max_wait_ms": "soon"}, "version 13: max_wait_ms: .*required argument is not an integer"),
        ({"rack_id": "\ud800"}, "rack_id: 'utf-8' codec can't encode"),
        ({"rack_id": "x" * 32768}, "rack_id: a string of 32768 bytes in UTF-8; at most 32767"),
        ({"rack_id": b"bytes"}, "rack_id: 'bytes' object has no attribute 'encode'"),
        ({"topics": (FetchTopic(topic_id=b"short"),)}, r"topics\[0\]\.topic_id: a uuid that is not 16 bytes"),
        ({"topics": 5}, "topics: object of type 'int' has no len"),
    ],
)
def test_values_that_cannot_be_written_are_refused(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(LocalProtocolError, match=problem):
        encode(FetchRequest(**changed), 13)


def test_unknown_tags_are_refused_in_a_version_without_tags() -> None:
    request = MetadataRequest(unknown_tags=((9, b"x"),))
    assert decode(MetadataRequest, 9, encode(request, 9)) == request
    with pytest.raises(LocalProtocolError, match=r"MetadataRequest version 8: .*this version cannot have any"):
        encode(request, 8)


def test_the_longest_string_and_long_arrays_are_written() -> None:
    request = LeaveGroupRequest(group_id="g" * 32767, members=(MemberIdentity(member_id="m"),) * 300)
    assert decode(LeaveGroupRequest, 5, encode(request, 5)) == request
    assert decode(LeaveGroupRequest, 3, encode(request, 3)) == request


def test_arrays_may_be_any_sequence() -> None:
    as_list: Any = ["a", "b"]
    request = ConsumerGroupHeartbeatRequest(subscribed_topic_names=as_list)
    assert decode(ConsumerGroupHeartbeatRequest, 0, encode(request, 0)).subscribed_topic_names == ("a", "b")


def test_a_version_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="Metadata has no version 14: there are 0 to 13"):
        encode(MetadataRequest(), 14)
