"""What decoders refuse, and how they say where."""

from __future__ import annotations

import pytest

from odradek.errors import RemoteProtocolError
from odradek.wire.kafka.decode import decode, decoder
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.messages.data import (
    FetchableTopicResponse,
    FetchPartitionData,
    FetchResponse,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.wire.kafka.messages.groups import JoinGroupRequest
from odradek.wire.kafka.messages.metadata import (
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from odradek.wire.kafka.messages.security import SaslAuthenticateRequest

PRODUCE = ProduceRequest(
    acks=-1, topic_data=(TopicProduceData(name="t", partition_data=(PartitionProduceData(index=3, records=b"abc"),)),)
)


def test_records_are_a_view_of_the_message_and_other_bytes_are_bytes() -> None:
    encoded = encode(PRODUCE, 9)

    records = decode(ProduceRequest, 9, encoded).topic_data[0].partition_data[0].records

    assert isinstance(records, memoryview)
    assert records.obj is encoded
    sasl = decode(SaslAuthenticateRequest, 2, memoryview(encode(SaslAuthenticateRequest(auth_bytes=b"secret"), 2)))
    assert type(sasl.auth_bytes) is bytes


def test_a_decoder_begins_at_a_position_and_says_where_it_ended() -> None:
    encoded = encode(PRODUCE, 3)

    assert decoder(ProduceRequest, 3)(b"xx" + encoded + b"yyy", 2) == (PRODUCE, 2 + len(encoded))
    assert decode(ProduceRequest, 3, b"xx" + encoded, 2) == PRODUCE


def test_bytes_behind_a_message_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="ProduceRequest version 3: 2 unexpected bytes follow at byte 30"):
        decode(ProduceRequest, 3, encode(PRODUCE, 3) + b"xx")


def test_fields_that_the_version_lacks_have_their_defaults() -> None:
    response = decode(MetadataResponse, 0, encode(MetadataResponse(topics=(MetadataResponseTopic(name="a"),)), 0))

    assert response.controller_id == -1
    assert response.topics[0].topic_authorized_operations == -(2**31)
    assert response.cluster_id is None


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (
            "ffff0001 00000000 00000001 0001 74 00000001 00000003 00000004 61",
            r"\.records at byte 27: a length of 4 bytes",
        ),
        (
            "ffff0001 00000000 00000001 0001 74 00000001 00000003 fffffffe",
            r"\.records at byte 27: a negative length, -2",
        ),
        ("ffff0001 00000000 00000001 0001 74 ffffffff", r"\.partition_data at byte 19: null is not allowed"),
        ("ffff0001 00000000 00000001 ffff 00000000", r"topic_data\[0\]\.name at byte 14: null is not allowed"),
        ("ffff0001 00000000 00000001 0002 74ff 00000000", r"topic_data\[0\]\.name at byte 14: not UTF-8"),
        (
            "ffff0001 00000000 00000002 0001 74 00000000",
            r"topic_data at byte 12: a count of 2 elements, but",
        ),
        ("ffff0001 00000000 fffffff0", r"topic_data at byte 12: a negative count, -16"),
        ("ffff0001 000000", "timeout_ms at byte 4: the bytes end too early"),
    ],
)
def test_an_error_names_the_message_the_field_and_the_byte(data: str, where: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"ProduceRequest version 3: .*({where})"):
        decode(ProduceRequest, 3, bytes.fromhex(data))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("0000 01 00000000 01 09 09 00", "a length of 9 bytes, but only 1 bytes are left"),  # an unknown tag
        (
            "0000 01 00000000 01 01 04 000000000000",
            "a tagged field has a size of 4 bytes, but its content takes 8|the bytes end too early",
        ),
        (
            "0000 01 00000000 01 01 09 00000000000000 0000",
            "a size of 9 bytes, but its content takes 8",
        ),
        ("0000 01 00000000 ff ff ff ff 0f", "elements, but only"),
        ("0000 01 00000000 ff ff ff ff ff ff", "a length of more than 32 bits"),
        ("0000 ff ff ff ff 1f", "a length of more than 32 bits"),
        ("0000 ff 80 80 01 00", "elements, but only"),
    ],
)
def test_damaged_lengths_and_tags_are_refused(data: str, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"ApiVersionsResponse version 3: .*({problem})"):
        decode(ApiVersionsResponse, 3, bytes.fromhex(data))


@pytest.mark.parametrize(("data", "problem"), [("05", "the bytes end too early"), ("7f", "63 elements|126 elements")])
def test_damaged_unknown_tags_of_a_struct_without_tags_are_refused(data: str, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match="MetadataRequest version 9"):
        decode(MetadataRequest, 9, bytes.fromhex("01 00 00 00") + bytes.fromhex(data))


def test_unknown_tags_survive_at_every_level() -> None:
    topic = MetadataRequestTopic(name="t", unknown_tags=((7, b"abc"), (300, b"")))
    request = MetadataRequest(topics=(topic,), unknown_tags=((1000000, b"x" * 200),))

    encoded = encode(request, 12)

    assert decode(MetadataRequest, 12, encoded) == request
    assert encode(decode(MetadataRequest, 12, encoded), 12) == encoded


def test_tags_are_written_in_the_order_of_their_numbers() -> None:
    response = ApiVersionsResponse(finalized_features_epoch=5, unknown_tags=((9, b"b"), (0x7FFF, b"c")))
    encoded = encode(response, 3)
    assert encoded.endswith(bytes.fromhex("03 01 08 0000000000000005 09 01 62 ffff01 01 63"))
    assert decode(ApiVersionsResponse, 3, encoded) == response


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16382, 16383, 16384, 2097150, 2097151, 1 << 28])
def test_compact_lengths_of_every_size_are_read(size: int) -> None:
    data = b"\0" * min(size, 1 << 22)
    partition = FetchPartitionData(records=data)
    response = FetchResponse(responses=(FetchableTopicResponse(partitions=(partition,)),))
    assert decode(FetchResponse, 12, encode(response, 12)) == response


def test_a_version_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="JoinGroup has no version 10: there are 0 to 9"):
        decoder(JoinGroupRequest, 10)
    with pytest.raises(ValueError, match="JoinGroup has no version -1"):
        decode(JoinGroupRequest, -1, b"")
