"""Responses as they arrive."""

from __future__ import annotations

import pytest
from tests.conformance.kafka.apis import encode_response

from odradek.errors import RemoteProtocolError
from odradek.wire.kafka.messages.groups import HeartbeatResponse
from odradek.wire.kafka.messages.metadata import MetadataResponse, MetadataResponseBroker
from odradek.wire.kafka.responses import FrameDecoder, KafkaResponseDecoder, WholeFrameDecoder

RESPONSE = MetadataResponse(brokers=(MetadataResponseBroker(node_id=1, host="b", port=9092),))
FRAME = encode_response(RESPONSE, 9, 7)
BEHIND = b"the next"


def decoder() -> KafkaResponseDecoder[MetadataResponse]:
    return KafkaResponseDecoder(MetadataResponse, 9, 7, max_bytes=1000)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 1000])
def test_a_response_is_decoded_from_pieces_of_any_size(size: int) -> None:
    whole, response = memoryview(FRAME + BEHIND), decoder()
    used = 0
    while not response.done:
        used += response.feed(whole[used : used + size])
    assert used == len(FRAME)
    assert response.result() == RESPONSE
    assert response.feed(whole[used:]) == 0


def test_a_response_that_comes_whole_and_alone_is_decoded_at_once() -> None:
    response = decoder()
    assert response.feed(memoryview(FRAME)) == len(FRAME)
    assert response.done and response.result() == RESPONSE
    assert response.feed(memoryview(FRAME)) == 0


def test_a_size_above_the_limit_or_below_zero_is_refused() -> None:
    for size, text in [(1001, "a response of 1001 bytes; at most 1000 are accepted"), (-1, "a response of -1 bytes")]:
        with pytest.raises(RemoteProtocolError, match=text):
            decoder().feed(memoryview(size.to_bytes(4, "big", signed=True)))


def test_a_frame_of_no_bytes_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="ResponseHeader version 1: correlation_id at byte 0"):
        decoder().feed(memoryview(bytes(4)))


def test_another_correlation_id_is_refused() -> None:
    frame = encode_response(RESPONSE, 9, 8)
    with pytest.raises(RemoteProtocolError, match="MetadataResponse: correlation id 8, expected 7"):
        decoder().feed(memoryview(frame))


def test_a_response_that_is_something_else_is_refused() -> None:
    frame = encode_response(HeartbeatResponse(), 4, 7)
    with pytest.raises(RemoteProtocolError, match="MetadataResponse version 9"):
        decoder().feed(memoryview(frame))


def test_a_decoder_says_how_far_it_is() -> None:
    response = decoder()
    response.feed(memoryview(FRAME[:10]))
    assert repr(response) == "<KafkaResponseDecoder MetadataResponse version 9: 6 bytes>"
    with pytest.raises(AssertionError, match="the response is not complete"):
        response.result()
    response.feed(memoryview(FRAME[10:]))
    assert repr(response) == "<KafkaResponseDecoder MetadataResponse version 9: done>"


def test_what_happens_to_the_bytes_is_up_to_the_subclasses() -> None:
    for data in (b"\0\0\0\1a", b"\0\0\0\0"):
        with pytest.raises(NotImplementedError):
            FrameDecoder(10).feed(memoryview(data))
        with pytest.raises(NotImplementedError):
            WholeFrameDecoder(10).feed(memoryview(data))
