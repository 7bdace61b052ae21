"""The response to Fetch as it arrives."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tests.conformance.kafka.apis import encode_response
from tests.wire.kafka import fuzz

from odradek.engine import Buffer
from odradek.errors import RemoteProtocolError
from odradek.wire.kafka.fetch_response import FetchResponseDecoder
from odradek.wire.kafka.messages.common import NodeEndpoint
from odradek.wire.kafka.messages.data import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchPartitionData,
    FetchResponse,
    LeaderIdAndEpoch,
)

VERSIONS = range(FetchResponse.SPEC.versions[1] + 1)
TOPIC_ID = bytes(range(16))
MAX_BYTES = 1 << 20

Key = tuple[str, bytes, int]


class Sinks:
    """Collects the records of the partitions that were asked for."""

    def __init__(self, skipped: Sequence[int] = ()) -> None:
        self.skipped = skipped
        self.collected: dict[Key, list[bytes]] = {}
        self.opened: list[FetchPartitionData] = []

    def open(self, topic: FetchableTopicResponse, partition: FetchPartitionData) -> Sink | None:
        self.opened.append(partition)
        if partition.partition_index in self.skipped:
            return None
        return Sink(self.collected.setdefault((topic.topic, topic.topic_id, partition.partition_index), []))

    def records(self) -> dict[Key, bytes]:
        return {key: b"".join(parts) for key, parts in self.collected.items()}


class Sink:
    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts

    def feed(self, data: memoryview) -> None:
        self.parts.append(bytes(data))


def partition(index: int, records: bytes | None) -> FetchPartitionData:
    return FetchPartitionData(partition_index=index, high_watermark=index + 5, records=records)


def topics(*partitions: FetchPartitionData) -> tuple[FetchableTopicResponse, ...]:
    return (FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=partitions),)


def fed(version: int, response: FetchResponse, sinks: Sinks, size: int) -> FetchResponse:
    """Decode in pieces of a size."""
    data = memoryview(encode_response(response, version, 7) + b"the next")
    decoder = FetchResponseDecoder(version, 7, sinks.open, MAX_BYTES)
    used = 0
    while not decoder.done:
        used += decoder.feed(data[used : used + size])
    assert len(data) - used == len(b"the next")
    return decoder.result()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000, MAX_BYTES])
@pytest.mark.parametrize("version", VERSIONS)
def test_records_go_to_their_sinks_in_every_version_and_split(version: int, size: int) -> None:
    response = FetchResponse(
        responses=(
            *topics(partition(0, b"a" * 300), partition(1, None), partition(2, b""), partition(3, b"b" * 20)),
            FetchableTopicResponse(topic="none", topic_id=bytes(16)),
            FetchableTopicResponse(topic="u", topic_id=b"u" * 16, partitions=(partition(0, b"c"),)),
        )
    )
    sinks = Sinks()

    result = fed(version, response, sinks, size)

    names = [("t", TOPIC_ID), ("none", bytes(16)), ("u", b"u" * 16)]
    keys = [(name, bytes(16)) if version < 13 else ("", id) for name, id in names]
    assert [(topic.topic, topic.topic_id) for topic in result.responses] == keys
    assert sinks.records() == {(*keys[0], 0): b"a" * 300, (*keys[0], 3): b"b" * 20, (*keys[2], 0): b"c"}
    assert [[part.partition_index for part in topic.partitions] for topic in result.responses] == [
        [0, 1, 2, 3],
        [],
        [0],
    ]
    assert [part.high_watermark for part in result.responses[0].partitions] == [5, 6, 7, 8]
    assert all(part.records is None for topic in result.responses for part in topic.partitions)


def test_a_response_without_topics_has_its_error() -> None:
    response = FetchResponse(throttle_time_ms=3, error_code=71, session_id=9)
    for version in (7, 12):
        assert fed(version, response, Sinks(), 1) == response


def test_a_result_has_everything_but_the_records() -> None:
    aborted = tuple(AbortedTransaction(producer_id=i, first_offset=2 * i) for i in range(200))
    full = FetchPartitionData(
        partition_index=1,
        error_code=6,
        last_stable_offset=4,
        log_start_offset=2,
        diverging_epoch=FetchEpochEndOffset(epoch=3, end_offset=8),
        current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=4),
        aborted_transactions=aborted,
        preferred_read_replica=2,
        unknown_tags=((9, b"new"),),
    )
    response = FetchResponse(
        responses=topics(full), node_endpoints=(NodeEndpoint(node_id=1, host="b", port=9),), unknown_tags=((77, b""),)
    )
    expected = FetchResponse(
        responses=(FetchableTopicResponse(topic_id=TOPIC_ID, partitions=(full,)),),
        node_endpoints=response.node_endpoints,
        unknown_tags=response.unknown_tags,
    )
    for size in (1, 100, 5000):
        assert fed(16, response, Sinks(), size) == expected


def test_a_sink_is_opened_when_the_aborted_transactions_are_known() -> None:
    aborted = (AbortedTransaction(producer_id=5, first_offset=6),)
    sinks = Sinks()
    with_aborted = FetchPartitionData(partition_index=1, aborted_transactions=aborted, records=b"r")
    fed(11, FetchResponse(responses=topics(with_aborted)), sinks, 1)
    assert sinks.opened[0].aborted_transactions == aborted


def test_a_long_section_that_comes_byte_by_byte_is_not_decoded_with_every_byte() -> None:
    aborted = tuple(AbortedTransaction(producer_id=i, first_offset=i) for i in range(500))
    response = FetchResponse(responses=topics(FetchPartitionData(aborted_transactions=aborted, records=b"r" * 9)))
    data = memoryview(encode_response(response, 4, 7))
    sinks = Sinks()
    decoder = FetchResponseDecoder(4, 7, sinks.open, MAX_BYTES)
    sections, attempts = decoder._sections, 0

    def counting(part: Buffer, start: int) -> tuple[FetchPartitionData, int, int]:
        nonlocal attempts
        attempts += 1
        return sections.partition(part, start)

    decoder._sections = sections._replace(partition=counting)
    for at in range(len(data)):
        decoder.feed(data[at : at + 1])

    assert decoder.result().responses[0].partitions[0].aborted_transactions == aborted
    assert sinks.records() == {("t", bytes(16), 0): b"r" * 9}
    assert attempts < 20


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_what_a_sink_raises_is_passed_on(size: int) -> None:
    class Broken:
        def feed(self, part: memoryview) -> None:
            raise IndexError("a mistake of the sink")

    def broken(topic: FetchableTopicResponse, part: FetchPartitionData) -> Broken:
        if part.partition_index:
            raise IndexError("a mistake of the caller")
        return Broken()

    for index, text in enumerate(("a mistake of the sink", "a mistake of the caller")):
        response = FetchResponse(responses=topics(partition(index, b"x" * 500)))
        data = memoryview(encode_response(response, 12, 7))
        decoder = FetchResponseDecoder(12, 7, broken, MAX_BYTES)
        with pytest.raises(IndexError, match=text):
            for start in range(0, len(data), size):
                decoder.feed(data[start : start + size])


def test_partitions_without_a_sink_are_skipped() -> None:
    sinks = Sinks(skipped=[0, 2])
    response = FetchResponse(responses=topics(*(partition(i, bytes([i]) * 50) for i in range(4))))
    fed(12, response, sinks, 30)
    assert sinks.records() == {("t", bytes(16), 1): b"\1" * 50, ("t", bytes(16), 3): b"\3" * 50}


def test_record_bytes_are_views_of_what_was_fed() -> None:
    data = memoryview(encode_response(FetchResponse(responses=topics(partition(0, b"x" * 5000))), 12, 7))
    owners: list[object] = []

    class Owner:
        def feed(self, part: memoryview) -> None:
            owners.append(part.obj)

    decoder = FetchResponseDecoder(12, 7, lambda topic, part: Owner(), MAX_BYTES)
    decoder.feed(data[:100])
    decoder.feed(data[100:])
    assert [owner is data.obj for owner in owners] == [True, True]


def test_no_prefix_of_a_response_is_complete_and_every_shorter_frame_is_refused() -> None:
    rng = random.Random(5)
    for version in VERSIONS:
        frame = encode_response(fuzz.random_value(rng, FetchResponse, version), version, 7)[4:]
        for size in range(min(len(frame), 300)):
            decoder = FetchResponseDecoder(version, 7, Sinks().open, MAX_BYTES)
            decoder.feed(memoryview(len(frame).to_bytes(4, "big") + frame[:size]))
            assert not decoder.done
            decoder = FetchResponseDecoder(version, 7, Sinks().open, MAX_BYTES)
            with pytest.raises(RemoteProtocolError, match=f"FetchResponse version {version}: "):
                decoder.feed(memoryview(size.to_bytes(4, "big") + frame[:size]))


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("version", "body", "problem"),
    [
        (
            0,
            "7fffffff 0000",
            "the message before byte 1?[0-9]: a count of 2147483647 elements, but",
        ),
        (0, "fffffffe", "a negative count, -2"),
        (0, "00000000 00", "1 unexpected bytes follow"),
        (
            0,
            "00000001 0001 74 00000001 00000000 0000 0000000000000000 00000009 aa",
            r"\.partitions\[0\].*: a length of 9 bytes",
        ),
        (0, "00000001 0001 74 00000001 00000000 0000 0000000000000000 fffffffe", "a negative length, -2"),
        (0, "00000001 0001 74 ffffffff 00000000 0000 0000000000000000 ffffffff", r"responses\[0\].*: null is not"),
        (0, "00000001 0001 ff 00000000 000000000000000000000000", "not UTF-8"),
        (0, "00000001 7fff 74 00000000 000000000000000000000000", "a length of 32767 bytes, but only"),
        (0, "00000001 0001 74 00000000 00", "the bytes end too early|1 unexpected bytes follow|a count of 1 elements"),
        (12, "00 00000000 0000 00000000 01 ffffffffff", "a length of more than 32 bits"),
        (12, "00 00000000 0000 00000000 01 02 00 0a", "0 bytes are left|elements, but only|a length of 10 bytes"),
    ],
)
def test_damage_is_refused(version: int, body: str, problem: str, size: int) -> None:
    frame = bytes.fromhex("00000007" + body)
    data = memoryview(len(frame).to_bytes(4, "big") + frame)
    decoder = FetchResponseDecoder(version, 7, Sinks().open, MAX_BYTES)
    with pytest.raises(RemoteProtocolError, match=f"FetchResponse version {version}: .*({problem})"):
        for start in range(0, len(data), size):
            decoder.feed(data[start : start + size])


def test_another_correlation_id_is_refused() -> None:
    frame = encode_response(FetchResponse(), 4, 8)
    with pytest.raises(RemoteProtocolError, match="correlation id 8, expected 7"):
        FetchResponseDecoder(4, 7, Sinks().open, MAX_BYTES).feed(memoryview(frame))


def test_a_version_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="Fetch has no version 19"):
        FetchResponseDecoder(19, 7, Sinks().open, MAX_BYTES)


def test_a_decoder_says_how_far_it_is() -> None:
    data = memoryview(encode_response(FetchResponse(responses=topics(partition(0, b"x" * 50))), 4, 7))
    decoder = FetchResponseDecoder(4, 7, Sinks().open, MAX_BYTES)
    decoder.feed(data[:-5])
    assert repr(decoder) == "<FetchResponseDecoder version 4: 0 topics, 5 bytes missing>"
    with pytest.raises(AssertionError, match="the response is not complete"):
        decoder.result()
    decoder.feed(data[-5:])
    assert repr(decoder) == "<FetchResponseDecoder version 4: done>"
