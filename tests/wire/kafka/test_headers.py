"""Frames: header and body."""

from __future__ import annotations

import pytest
from tests.conformance.kafka.apis import decode_request, encode_response
from tests.conformance.kafka.messages.brokers import ControlledShutdownRequest

from odradek.errors import LocalProtocolError, RemoteProtocolError
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.headers import (
    WHOLE_BYTES,
    RequestHeader,
    ResponseHeader,
    decode_response,
    encode_request,
    header_version,
)
from odradek.wire.kafka.messages.data import PartitionProduceData, ProduceRequest, TopicProduceData
from odradek.wire.kafka.messages.groups import HeartbeatRequest, HeartbeatResponse
from odradek.wire.kafka.messages.metadata import ApiVersion, ApiVersionsRequest, ApiVersionsResponse


def test_a_request_has_its_size_and_header_in_front() -> None:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    frame = b"".join(encode_request(request, 0, 5, "me"))
    assert frame == bytes.fromhex("00000016 000c 0000 00000005 0002 6d65 0001 67 00000001 0001 6d")
    header = RequestHeader(request_api_key=12, correlation_id=5, client_id="me")
    assert decode_request(frame[4:]) == (header, request)


def test_the_client_id_keeps_its_old_form_in_flexible_headers() -> None:
    frame = b"".join(encode_request(ApiVersionsRequest(), 3, 5, "me"))
    assert frame[4:] == bytes.fromhex("0012 0003 00000005 0002 6d65 00 01 01 00")
    assert decode_request(frame[4:])[0].client_id == "me"
    assert b"".join(encode_request(ApiVersionsRequest(), 3, 5))[12:15] == bytes.fromhex("ffff00")


def test_headers_have_the_version_of_their_message() -> None:
    assert [header_version(HeartbeatRequest, version) for version in (3, 4)] == [1, 2]
    assert [header_version(HeartbeatResponse, version) for version in (3, 4)] == [0, 1]
    assert [header_version(ApiVersionsResponse, version) for version in (0, 4)] == [0, 0]
    assert [header_version(ControlledShutdownRequest, version) for version in (0, 1, 3)] == [0, 1, 2]


def test_large_record_bytes_are_passed_on_and_not_copied() -> None:
    large, small = memoryview(b"x" * WHOLE_BYTES), b"y" * 10
    data = (
        PartitionProduceData(index=0, records=small),
        PartitionProduceData(index=1, records=large),
        PartitionProduceData(index=2, records=small),
    )
    request = ProduceRequest(topic_data=(TopicProduceData(name="t", partition_data=data),))

    buffers = encode_request(request, 9, 1, None)

    assert [buffer is large for buffer in buffers] == [False, True, False]
    assert int.from_bytes(b"".join(buffers)[:4], "big") == sum(map(len, buffers)) - 4
    assert decode_request(b"".join(buffers)[4:])[1] == request
    ends_large = ProduceRequest(topic_data=(TopicProduceData(partition_data=(PartitionProduceData(records=large),)),))
    assert encode_request(ends_large, 3, 1, None)[-1] is large


@pytest.mark.parametrize("version", [0, 4])
def test_a_response_comes_back_with_its_correlation_id(version: int) -> None:
    response = HeartbeatResponse(error_code=25)
    frame = encode_response(response, version, 77)
    assert decode_response(HeartbeatResponse, version, frame[4:]) == (response, 77)


def test_tagged_fields_in_the_header_of_a_response_are_skipped() -> None:
    header = encode(ResponseHeader(correlation_id=77, unknown_tags=((0, b"new"),)), 1)
    response = HeartbeatResponse(error_code=25)
    assert decode_response(HeartbeatResponse, 4, header + encode(response, 4)) == (response, 77)


def test_an_unsupported_version_is_answered_in_version_0() -> None:
    refused = ApiVersionsResponse(error_code=35, api_keys=(ApiVersion(api_key=18, min_version=0, max_version=2),))
    frame = encode_response(refused, 0, 1)
    assert decode_response(ApiVersionsResponse, 4, frame[4:]) == (refused, 1)


def test_an_unsupported_version_is_understood_even_with_nothing_sound_behind_the_error_code() -> None:
    frame = bytes.fromhex("00000001 0023 ffffff01 00")
    assert decode_response(ApiVersionsResponse, 4, frame) == (ApiVersionsResponse(error_code=35), 1)


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="a request of 3 bytes, too short"):
        decode_request(b"\0\0\0")
    with pytest.raises(RemoteProtocolError, match="unknown request: API key 12, version 5"):
        decode_request(bytes.fromhex("000c 0005 00000000"))
    with pytest.raises(RemoteProtocolError, match="unknown request: API key 500, version 0"):
        decode_request(bytes.fromhex("01f4 0000 00000000"))
    with pytest.raises(RemoteProtocolError, match="ResponseHeader version 0: correlation_id at byte 0"):
        decode_response(HeartbeatResponse, 0, b"\0\0")


def test_a_client_id_that_is_too_long_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="RequestHeader version 2: client_id: "):
        encode_request(ApiVersionsRequest(), 3, 1, "x" * 40000)
