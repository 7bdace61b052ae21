"""What messages of Kafka 0.8 to 4.3 cost: encoding requests, decoding responses, against kafka-python's codec.

    python benchmarks/kafka_messages.py [--quick]

The messages are those of a busy client: metadata of 30 topics with 12 partitions, produce and fetch requests of 5
topics with 10 partitions, responses to them, a fetch response of 100 partitions with 1,000 B of records each. An
exchange is what a client does: its request is encoded, the response decoded; lines that are one direction alone follow.
The limit is kafka-python's codec, which is compiled from schemas too, on the same values and bytes.

The decoder that a consumer uses takes a fetch response as it arrives and hands the records on: it is compared with
kafka-python decoding the whole, and, for what a partition costs among many, with itself: 10,000 partitions in one
response against 1,000 responses of 10.

To compare two branches run it on each, in rounds, and compare ratios; differences within the spread are noise.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from _common import Case, Stopwatch, compare
from _results import results
from odradek.wire.kafka.decode import decode
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.fetch_response import FetchResponseDecoder
from odradek.wire.kafka.headers import ResponseHeader, header_version
from odradek.wire.kafka.messages.data import (
    FetchableTopicResponse,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from odradek.wire.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.wire.kafka.schema import Message

EXCHANGE_GOAL, EXCHANGE_FLOOR, ALONE_FLOOR = 2.0, 1.2, 0.6
FLAT = 1 / 1.3
CORRELATION_ID, MAX_BYTES, CHUNK_BYTES = 7, 1 << 30, 1 << 16
RECORDS = b"r" * 1000

Work = Callable[[], object]


# ---- messages -----------------------------------------------------------------------------------------------


def topic_name(number: int) -> str:
    return f"topic-{number}"


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def metadata() -> tuple[Message, Message]:
    partitions = tuple(
        MetadataResponsePartition(
            partition_index=number, leader_id=number, leader_epoch=5, replica_nodes=(1, 2, 3), isr_nodes=(1, 2, 3)
        )
        for number in range(12)
    )
    brokers = (MetadataResponseBroker(node_id=number, host=f"broker{number}", port=9092) for number in range(12))
    topics = (
        MetadataResponseTopic(name=topic_name(number), topic_id=topic_id(number), partitions=partitions)
        for number in range(30)
    )
    request = MetadataRequest(topics=tuple(MetadataRequestTopic(name=topic_name(number)) for number in range(30)))
    return request, MetadataResponse(brokers=tuple(brokers), cluster_id="cluster", topics=tuple(topics))


def produce() -> tuple[Message, Message]:
    data = tuple(PartitionProduceData(index=number, records=RECORDS) for number in range(10))
    done = tuple(PartitionProduceResponse(index=number, base_offset=12345) for number in range(10))
    request = ProduceRequest(
        acks=-1,
        timeout_ms=30000,
        topic_data=tuple(TopicProduceData(name=topic_name(t), partition_data=data) for t in range(5)),
    )
    responses = tuple(TopicProduceResponse(name=topic_name(t), partition_responses=done) for t in range(5))
    return request, ProduceResponse(responses=responses)


def fetched(topics: int, partitions: int, records: bytes = RECORDS) -> FetchResponse:
    data = tuple(FetchPartitionData(partition_index=p, high_watermark=1000, records=records) for p in range(partitions))
    return FetchResponse(
        responses=tuple(
            FetchableTopicResponse(topic=topic_name(t), topic_id=topic_id(t), partitions=data) for t in range(topics)
        )
    )


def fetch() -> tuple[Message, Message]:
    asked = tuple(FetchPartition(partition=p, fetch_offset=100, partition_max_bytes=1 << 20) for p in range(10))
    topics = tuple(FetchTopic(topic=topic_name(t), topic_id=topic_id(t), partitions=asked) for t in range(5))
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=topics), fetched(10, 10)


# ---- work ---------------------------------------------------------------------------------------------------


def theirs(message: Message) -> Any:
    """The class of kafka-python; what it warns of when it is imported is not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = [importlib.import_module(f"kafka.protocol.{name}") for name in ("consumer", "metadata", "producer")]
    return next(cls for module in modules if (cls := getattr(module, type(message).__name__, None)))


def repeated(rounds: int, *work: Work) -> Stopwatch:
    with Stopwatch() as watch:
        for _ in range(rounds):
            for step in work:
                step()
    return watch


def write(message: Message, version: int) -> tuple[Work, Work]:
    """Encoding it, ours and theirs."""
    encoded = encode(message, version)
    peer = theirs(message).decode(encoded, version=version)
    peer._header = None
    assert bytes(peer.encode(version=version)) == encoded
    return partial(encode, message, version), partial(peer.encode, version=version)


def read(message: Message, version: int) -> tuple[Work, Work]:
    """Decoding it, ours and theirs."""
    encoded = encode(message, version)
    return partial(decode, type(message), version, encoded), partial(theirs(message).decode, encoded, version=version)


class Sink:
    """Takes record bytes and drops them."""

    def feed(self, data: memoryview) -> None:
        pass


SINK = Sink()


def as_it_arrives(version: int, data: memoryview) -> None:
    decoder = FetchResponseDecoder(version, CORRELATION_ID, lambda topic, partition: SINK, MAX_BYTES)
    for start in range(0, len(data), CHUNK_BYTES):
        decoder.feed(data[start : start + CHUNK_BYTES])
    assert decoder.done


def arriving(response: FetchResponse, version: int) -> Work:
    header = encode(ResponseHeader(correlation_id=CORRELATION_ID), header_version(FetchResponse, version))
    frame = header + encode(response, version)
    return partial(as_it_arrives, version, memoryview(len(frame).to_bytes(4, "big") + frame))


# ---- the cases ----------------------------------------------------------------------------------------------


def case(
    name: str, rounds: int, size: int, ours: list[Work], peers: list[Work], floor: float, goal: float | None
) -> Case:
    run, limit = partial(repeated, rounds, *ours), partial(repeated, rounds, *peers)
    return Case(name, rounds, rounds * size, run, limit, floor, goal)


def message_cases(rounds: int) -> Iterator[Case]:
    for name, (request, response), versions in (
        ("Metadata", metadata(), (1, 9, 12)),
        ("Produce", produce(), (3, 9)),
        ("Fetch", fetch(), (4, 11, 12)),
    ):
        for version in versions:
            sent, received = len(encode(request, version)), len(encode(response, version))
            (write_ours, write_peer), (read_ours, read_peer) = write(request, version), read(response, version)
            ours, peers = [write_ours, read_ours], [write_peer, read_peer]
            label, both = f"{name} version {version}", sent + received
            yield case(f"{label}, exchange", rounds, both, ours, peers, EXCHANGE_FLOOR, EXCHANGE_GOAL)
            yield case(f"{label}, request written", rounds, sent, [write_ours], [write_peer], ALONE_FLOOR, None)
            yield case(f"{label}, response read", rounds, received, [read_ours], [read_peer], ALONE_FLOOR, None)


def arriving_cases(rounds: int) -> Iterator[Case]:
    for version in (11, 12):
        response = fetched(10, 10)
        work, peer = arriving(response, version), read(response, version)[1]
        size = len(encode(response, version))
        yield case(f"Fetch version {version}, 100 partitions", rounds, size, [work], [peer], ALONE_FLOOR, None)


def flat_cases(rounds: int) -> Iterator[Case]:
    for version in (11, 12, 16):
        many, few = arriving(fetched(100, 100), version), arriving(fetched(1, 10), version)
        size = len(encode(fetched(100, 100), version))
        few_rounds = partial(repeated, 1000 * rounds, few)
        name = f"version {version}, 10,000 partitions"
        yield Case(name, rounds * 10_000, rounds * size, partial(repeated, rounds, many), few_rounds, 0.6, FLAT)


def main() -> None:
    with results(__file__, __doc__) as report:
        rounds, rounds = (10, 3) if report.quick else (100, 9)
        limit = "Limit: kafka-python's codec. A record is a message."
        compare(report, "Messages", limit, list(message_cases(rounds)), rounds, computing=True)
        limit = "Limit: kafka-python decodes the whole response. A record is a message."
        compare(report, "Fetch as it arrives", limit, list(arriving_cases(rounds)), rounds, computing=True)
        limit = "Limit: 1,000 responses of 10 partitions. A record is a partition."
        compare(report, "Cost of a partition", limit, list(flat_cases(max(1, rounds // 50))), rounds, computing=True)


if __name__ == "__main__":
    main()
