"""Messages of the vector list (specification 8.1), byte for byte; docs/topics/conformance.md has the whole list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conformance.kafka.apis import decode_request, encode_response
from tests.conformance.kafka.messages.brokers import ControlledShutdownRequest

from odradek.errors import LocalProtocolError, RemoteProtocolError
from odradek.wire.kafka.decode import decode
from odradek.wire.kafka.embedded import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_versioned,
    encode_versioned,
)
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.headers import ResponseHeader, decode_response, encode_request
from odradek.wire.kafka.messages.common import NodeEndpoint, TopicPartitions
from odradek.wire.kafka.messages.data import (
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchPartitionData,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.wire.kafka.messages.groups import (
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from odradek.wire.kafka.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataRequestTopic,
    SupportedFeatureKey,
)
from odradek.wire.kafka.schema import Request

LINES = (Path(__file__).parent / "vectors" / "record_sets.txt").read_text().splitlines()
VECTORS = {name: bytes.fromhex(data) for name, data in (line.split() for line in LINES if not line.startswith("#"))}
TOPIC_ID = bytes(range(1, 17))

SUBSCRIPTION = bytes.fromhex("0000 00000001 0002 7431 00000000")
JOIN = JoinGroupRequest(
    group_id="g",
    session_timeout_ms=6000,
    protocol_type="consumer",
    protocols=(JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION),),
)
PRODUCE = ProduceRequest(
    acks=1,
    timeout_ms=1000,
    topic_data=(
        TopicProduceData(
            name="t1",
            partition_data=(PartitionProduceData(index=0, records=VECTORS["magic0_none_base100"]),),
        ),
    ),
)


@pytest.mark.parametrize(
    ("name", "request_", "version"),
    [
        ("metadata_v0_all", MetadataRequest(topics=()), 0),
        ("metadata_v1_all", MetadataRequest(topics=None), 1),
        ("metadata_v1_none", MetadataRequest(topics=()), 1),
        ("metadata_v9_t1", MetadataRequest(topics=(MetadataRequestTopic(name="t1"),)), 9),
        ("joingroup_v0", JOIN, 0),
        ("produce_v0", PRODUCE, 0),
        ("apiversions_v0", ApiVersionsRequest(), 0),
        ("apiversions_v3", ApiVersionsRequest(client_software_name="probe", client_software_version="1.0"), 3),
    ],
)
def test_requests_of_the_vector_file_are_read_and_written_byte_for_byte(
    name: str, request_: Request[Any], version: int
) -> None:
    header, decoded = decode_request(VECTORS[name])
    assert (header.correlation_id, header.client_id, header.request_api_version) == (7, "probe", version)
    if name == "produce_v0":  # the file has a record set of its own in it
        assert isinstance(decoded, ProduceRequest)
        (data,) = decoded.topic_data[0].partition_data
        assert data.records == VECTORS["magic0_none_base100"]
    assert decoded == request_
    assert b"".join(encode_request(request_, version, 7, "probe"))[4:] == VECTORS[name]


def test_metadata_12_asks_for_topics_by_id() -> None:
    request = MetadataRequest(topics=(MetadataRequestTopic(topic_id=TOPIC_ID, name=None),))
    encoded = encode(request, 12)
    assert encoded == bytes.fromhex(f"02 {TOPIC_ID.hex()} 00 00 01 00 00")
    assert decode(MetadataRequest, 12, encoded) == request
    with pytest.raises(LocalProtocolError, match=r"topics\[0\]\.name: null is not allowed"):
        encode(request, 9)


def test_join_group_9_has_a_null_reason_and_tags() -> None:
    encoded = encode(JOIN, 9)
    assert encoded == bytes.fromhex(
        "02 67 00001770 ffffffff 01 00 09 636f6e73756d6572 02 06 72616e6765 0f" + SUBSCRIPTION.hex() + "00 00 00"
    )
    assert decode(JoinGroupRequest, 9, encoded) == JOIN


def test_produce_9_has_compact_record_bytes() -> None:
    records = VECTORS["magic2_none_base100"]
    data = PartitionProduceData(index=0, records=records)
    request = ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=(TopicProduceData(name="t1", partition_data=(data,)),)
    )
    encoded = encode(request, 9)
    assert encoded == bytes.fromhex(f"00 ffff 000003e8 02 03 7431 02 00000000 62 {records.hex()} 00 00 00")
    assert decode(ProduceRequest, 9, encoded) == request


# ---- answers to ApiVersions ----

KEYS = (ApiVersion(api_key=3, min_version=0, max_version=13), ApiVersion(api_key=18, min_version=0, max_version=4))


def test_api_versions_3_has_features_in_tags() -> None:
    response = ApiVersionsResponse(
        api_keys=KEYS,
        supported_features=(SupportedFeatureKey(name="transaction.version", min_version=0, max_version=2),),
        finalized_features_epoch=5,
        finalized_features=(FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=1),),
    )
    frame = encode_response(response, 3, 9)[4:]
    assert frame[:4] == bytes.fromhex("00000009")  # header version 0: no tags behind the correlation id
    assert frame[4:11] == bytes.fromhex("0000 03 0003 0000")
    assert decode_response(ApiVersionsResponse, 3, frame) == (response, 9)


@pytest.mark.parametrize(
    ("body", "keys"),
    [
        ("0023 00000000", ()),
        ("0023 00000001 0012 0000 0002", (ApiVersion(api_key=18, min_version=0, max_version=2),)),
        ("0023 00 00000000 00", ()),  # of a test double that answers error 35 in the layout of version 3
    ],
)
def test_an_unsupported_version_is_read_in_every_form_that_brokers_give_it(
    body: str, keys: tuple[ApiVersion, ...]
) -> None:
    response, _ = decode_response(ApiVersionsResponse, 3, bytes.fromhex("00000001" + body))
    assert (response.error_code, response.api_keys) == (35, keys)


# ---- tagged fields ----


def test_unknown_tags_of_the_header_a_struct_and_a_nested_struct_are_skipped_and_kept() -> None:
    header = bytes.fromhex("00000005 01 64 02 aabb")
    assert decode(ResponseHeader, 1, header).correlation_id == 5
    body = bytes.fromhex("00000000 0000 01 63 01 cc")
    response, correlation_id = decode_response(HeartbeatResponse, 4, header + body)
    assert (response.error_code, response.unknown_tags, correlation_id) == (0, ((99, b"\xcc"),), 5)
    topic = bytes.fromhex(f"{TOPIC_ID.hex()} 00 02 63 00 64 01 07")
    request = decode(MetadataRequest, 12, b"\x02" + topic + bytes.fromhex("01 00 01 63 00"))
    assert request.topics is not None
    assert request.topics[0].unknown_tags == ((99, b""), (100, b"\x07"))
    assert request.unknown_tags == ((99, b""),)
    assert encode(request, 12)[1 : 1 + len(topic)] == topic


def test_fetch_answers_carry_truncation_the_new_leader_and_its_address_in_tags() -> None:
    partition = FetchPartitionData(
        partition_index=1,
        error_code=74,
        high_watermark=-1,
        diverging_epoch=FetchEpochEndOffset(epoch=3, end_offset=70),
        current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=9),
    )
    response = FetchResponse(
        responses=(FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=(partition,)),),
        node_endpoints=(NodeEndpoint(node_id=2, host="b2", port=9092),),
    )
    by_name = decode(FetchResponse, 12, encode(_without(response, "node_endpoints", "topic_id"), 12))
    (data,) = by_name.responses[0].partitions
    assert (data.diverging_epoch.end_offset, data.current_leader.leader_id) == (70, 2)
    encoded = encode(_without(response, "topic"), 16)
    newest = decode(FetchResponse, 16, encoded)
    assert newest.node_endpoints == response.node_endpoints
    # tag 0 with a size, an epoch, an offset and the end of the struct; then tag 1
    assert bytes.fromhex("02 00 0d 00000003 0000000000000046 00 01 09 00000002 00000009 00") in encoded


def _without(response: FetchResponse, *names: str) -> FetchResponse:
    """Return the response with the fields left out that a version lacks."""
    (topic,) = response.responses
    return FetchResponse(
        responses=(
            FetchableTopicResponse(
                topic="" if "topic" in names else topic.topic,
                topic_id=bytes(16) if "topic_id" in names else topic.topic_id,
                partitions=topic.partitions,
            ),
        ),
        node_endpoints=() if "node_endpoints" in names else response.node_endpoints,
    )


# ---- the consumer protocol ----

OWNED = (TopicPartitions(topic="t", partitions=(0, 2)),)


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (0, "0000 00000001 0001 74 ffffffff"),
        (1, "0001 00000001 0001 74 ffffffff 00000001 0001 74 00000002 00000000 00000002"),
        (2, "0002 00000001 0001 74 ffffffff 00000001 0001 74 00000002 00000000 00000002 00000005"),
        (3, "0003 00000001 0001 74 ffffffff 00000001 0001 74 00000002 00000000 00000002 00000005 0002 7231"),
        (4, "0004 00000001 0001 74 ffffffff 00000001 0001 74 00000002 00000000 00000002 00000005 0002 7231 beef"),
    ],
)
def test_subscriptions_of_every_version_and_of_a_later_one_are_read(version: int, data: str) -> None:
    expected = ConsumerProtocolSubscription(
        topics=("t",),
        owned_partitions=OWNED if version >= 1 else (),
        generation_id=5 if version >= 2 else -1,
        rack_id="r1" if version >= 3 else None,
    )
    assert decode_versioned(ConsumerProtocolSubscription, bytes.fromhex(data)) == (expected, version)
    if version <= 3:
        assert encode_versioned(expected, version) == bytes.fromhex(data)


def test_assignments_are_read_and_written() -> None:
    data = bytes.fromhex("0000 00000001 0001 74 00000002 00000000 00000002 ffffffff")
    assignment = ConsumerProtocolAssignment(assigned_partitions=OWNED)
    assert decode_versioned(ConsumerProtocolAssignment, data) == (assignment, 0)
    assert encode_versioned(assignment, 0) == data


# ---- frames ----


def test_a_request_without_a_client_id_in_its_header_is_only_controlled_shutdown_0() -> None:
    frame = b"".join(encode_request(ControlledShutdownRequest(broker_id=3), 0, 8))
    assert frame == bytes.fromhex("0000000c 0007 0000 00000008 00000003")
    assert decode_request(frame[4:])[0].client_id == ""
    with pytest.raises(RemoteProtocolError, match="RequestHeader version 1: client_id"):
        decode_request(bytes.fromhex("0003 0000 00000008 0003"))  # Metadata with no client id: the header is refused
