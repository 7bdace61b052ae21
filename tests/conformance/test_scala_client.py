"""Our clients against what the real Scala clients put on the wire: every case of scala_client.jsonl.

The corpus README, section 5, tells the format. Each case is played with the public API against the embedded broker,
through a proxy that keeps every byte, and compared by meaning. Where we differ on purpose, the reason stands beside
the comparison.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import pytest

import odradek as od
from odradek.core.interfaces import DecoderOptions, PartitionFetch
from odradek.core.produce.partitioners import JavaHash
from odradek.errors import BrokerError, MessageTooLarge, Rejected
from odradek.io.kafka07.broker_client import Kafka07BrokerClient
from odradek.testing import Kafka07Broker, ZooKeeperServer
from odradek.types import EARLIEST, LATEST, Broker, Position, PositionSpec, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.entries import scan
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set
from odradek.wire.kafka07.requests import (
    Fetch,
    MultiFetch,
    MultiProduce,
    Offsets,
    Produce,
    Request,
    encode_request,
)
from odradek.wire.kafka07.responses import FetchReply, MultiFetchReply, OffsetsReply

from ..payloads import payload as present
from ..payloads import payloads
from .scala import CASES, CONFIRM, Case, RunningCase, frames, parts_of, recorded_requests, run_case, shown, until

DEFAULT_FETCH_BYTES = 1 << 20
COMPRESSIONS = {"0": "none", "1": "gzip", "2": "snappy"}

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def zookeeper(engine: str) -> Iterator[ZooKeeperServer]:
    """One for each engine: cases name their chroots."""
    with ZooKeeperServer() as server:
        yield server


def each(letter: str) -> pytest.MarkDecorator:
    cases = [case for case in CASES if case["id"].startswith(letter)]
    return pytest.mark.parametrize("case", cases, ids=[case["id"] for case in cases])


def test_the_corpus_is_whole() -> None:
    assert [sum(case["id"].startswith(letter) for case in CASES) for letter in "PSC"] == [48, 8, 16]
    assert len(CASES) == 72


# ---- P: producers --------------------------------------------------------------------------------------------


class Written(NamedTuple):
    """What producing comes to, for one partition: payloads in order, and how the level-one entries were packed."""

    payloads: list[bytes]
    compressions: set[int]
    raw: bytes


Log = dict[tuple[str, int], Written]


def payloads_of(data: bytes) -> list[bytes]:
    decoder = MessageSetDecoder(TopicPartition("t", 0, 1), Position(0), DecoderOptions())
    decoder.feed(memoryview(data))
    assert decoder.error is None and decoder.fetch_position == len(data)
    return payloads(decoder.take().values)


def written(data: bytes) -> Written:
    return Written(payloads_of(data), {entry.compression for entry in scan(data)}, data)


def produces(requests: Sequence[Request]) -> list[Produce]:
    parts: list[Produce] = []
    for request in requests:
        if isinstance(request, Produce):
            parts.append(request)
        elif isinstance(request, MultiProduce):
            parts += request.parts
    return parts


def log_of(parts: Sequence[Produce]) -> Log:
    """What the broker makes of it. Partition -1 (any) occurs only with brokers that have one partition."""
    sets: dict[tuple[str, int], bytes] = {}
    for part in parts:
        partition = part.topic, max(part.partition, 0)
        sets[partition] = sets.get(partition, b"") + part.message_set
    # A send of no messages is a PRODUCE of an empty set there and nothing at all with us: it stores nothing.
    return {partition: written(data) for partition, data in sets.items() if data}


def log_on_disk(broker: Kafka07Broker) -> Log:
    logs = {}
    for directory in broker.log_dir.glob("*-*"):
        topic, _, partition = directory.name.rpartition("-")
        logs[topic, int(partition)] = written(b"".join(p.read_bytes() for p in sorted(directory.glob("*.kafka"))))
    return {partition: log for partition, log in logs.items() if log.raw}


def same_log(actual: Log, expected: Log) -> None:
    assert {p: log[:2] for p, log in actual.items()} == {p: log[:2] for p, log in expected.items()}
    for partition, log in expected.items():
        if log.compressions == {CompressionType.NONE}:  # compressors differ in their output, also between Java versions
            assert actual[partition].raw == log.raw


def payload(text: str) -> bytes:
    if text.startswith("*"):
        letter, count = text[1:].split("x", 1)
        return letter.encode() * int(count)
    return b"" if text == "%" else text.encode()


def producer_options(case: Case) -> dict[str, Any]:
    config, kind = case["config"], case["kind"]
    compression = COMPRESSIONS[kind.partition(":")[2] or config.get("compression.codec", "0")]
    options: dict[str, Any] = {
        "partitioner": JavaHash(),
        "max_message_bytes": int(config.get("max.message.size", 1_000_000)),
    }
    if "compressed.topics" in config and kind == "async":  # the sync producer ignores it
        return {**options, "compression_by_topic": {config["compressed.topics"]: compression}}
    return {**options, "compression": compression}


def rows_of(case: Case, call: list[Any]) -> Iterator[tuple[str, list[Any], TopicPartition | None]]:
    for topic, key, texts in call:
        values = [payload(text) for text in texts]
        if case["kind"].startswith("syncproducer"):  # the second field is a partition
            yield topic, values, TopicPartition(topic, int(key), 1) if int(key) >= 0 else None
        else:
            yield topic, values if key == "-" else [(key.encode(), value) for value in values], None


async def sync_call(out: od.Producer, case: Case, call: list[Any]) -> str:
    """`ok`, or what the Scala producer would say of our error."""
    for topic, rows, partition in rows_of(case, call):
        acks = await out.send_many(topic, rows, partition=partition)
        assert all(ack.confirmed and not ack.repeated for ack in acks.acks)
        assert acks.written + len(acks.failed) == len(rows)
        for failed in acks.failed:
            assert isinstance(failed.error, Rejected)
            why = failed.error.__cause__
            assert isinstance(why, MessageTooLarge)
            name = "kafka.common.MessageSizeTooLargeException"
            return f"err {name} payload size of {why.size} larger than {why.limit}"
    return "ok"


def async_call(out: od.Producer, case: Case, call: list[Any]) -> str:
    for topic, rows, partition in rows_of(case, call):
        for row in rows:
            key, value = row if isinstance(row, tuple) else (None, row)
            assert out.try_put(topic, value, key=key, partition=partition)
    return "ok"


async def produce(case: Case, running: RunningCase) -> list[str]:
    over_zookeeper = "zk.connect" in case["config"]
    results = []
    async with (
        od.connect(running.url if over_zookeeper else running.static_url) as k,
        k.producer(**producer_options(case)) as out,
    ):
        for call in case["sends"]:
            if case["kind"] == "async":
                results.append(async_call(out, case, call))
                continue
            results.append(await sync_call(out, case, call))
            if over_zookeeper and out.statistics().written and len(results) == 1:
                await running.until_registered({f"{running.chroot}/brokers/topics/{topic}/1" for topic, _, _ in call})
                await k.driver.metadata.refresh()
                await anyio.wait_all_tasks_blocked()  # the producer has the new table
    return results


@pytest.mark.sampled(2, "engine")
@each("P")
async def test_a_producer_writes_what_the_scala_producer_wrote(case: Case, zookeeper: ZooKeeperServer) -> None:
    recorded = produces(recorded_requests(case))
    with run_case(case, zookeeper) as running:
        assert await produce(case, running) == case["results"]
        same_log(log_on_disk(running.broker), log_of(recorded))
        ours = running.requests()
    # We batch by our own rules, and have every produce confirmed by a MULTIFETCH of zero parts right behind it, which
    # Scala does not: 0.7 acknowledges nothing otherwise.
    same_log(log_of([part for requests in ours for part in produces(requests)]), log_of(recorded))
    for requests in ours:
        sent = [n for n, request in enumerate(requests) if isinstance(request, Produce | MultiProduce)]
        assert all(requests[n + 1] == CONFIRM for n in sent)
        # We name a partition where Scala's broker.list producer leaves the choice to the broker (-1): a partition the
        # client knows is one whose order it can keep when it has to send again.
        assert all(part.partition >= 0 for part in produces(requests))


@each("P")
def test_produce_frames_of_scala_decode_and_are_written_again_the_same(case: Case) -> None:
    for data, request in zip(frames(case, "c2b"), recorded_requests(case), strict=True):
        assert isinstance(request, Produce | MultiProduce)
        assert b"".join(encode_request(request)) == data
        parts = request.parts if isinstance(request, MultiProduce) else (request,)
        again = tuple(part._replace(message_set=rewritten(bytes(part.message_set))) for part in parts)
        if not any(entry.compression for part in parts for entry in scan(part.message_set)):
            frame = encode_request(MultiProduce(again) if isinstance(request, MultiProduce) else again[0])
            assert b"".join(frame) == data
        for before, after in zip(parts, again, strict=True):
            assert written(bytes(after.message_set))[:2] == written(bytes(before.message_set))[:2]


def rewritten(message_set: bytes) -> bytes:
    """The same messages, encoded by us: stock producers put all messages of a set into one wrapper, or none."""
    entries = list(scan(message_set))
    compression = entries[0].compression if entries else 0
    assert len(entries) == 1 or not compression
    return encode_set(payloads_of(message_set), CompressionType(compression))


# ---- S: the simple consumer ----------------------------------------------------------------------------------


def request_of(call: list[str]) -> Fetch | MultiFetch | Offsets:
    kind, *rest = call
    if kind == "multifetch":
        return MultiFetch(tuple(fetch_of(part.split(":")) for part in rest))
    topic, partition, time_ms, number = rest
    return Offsets(topic, int(partition), int(time_ms), int(number)) if kind == "offsets" else fetch_of(rest)


def fetch_of(fields: Sequence[str]) -> Fetch:
    topic, *numbers = fields
    return Fetch(topic, *map(int, numbers))


def decoder_of(part: Fetch) -> MessageSetDecoder:
    return MessageSetDecoder(TopicPartition(part.topic, part.partition, 1), Position(part.offset), DecoderOptions())


def messages(decoder: MessageSetDecoder) -> list[str]:
    """Payload, and the position to resume from: what the Scala iterator calls the offset (specification 2.3)."""
    assert decoder.error is None
    columns = decoder.take()
    rows = zip(columns.values, columns.next_positions, strict=True)
    return [f"{shown(present(value))}@{after}" for value, after in rows]


THROWN = {1: "kafka.common.OffsetOutOfRangeException", 3: "kafka.common.InvalidPartitionException"}
"""What Scala's iterator throws for an error code; ours is a BrokerError of that code."""


def same_part(part: Fetch, code: int, received: int, decoder: MessageSetDecoder, recorded: str) -> None:
    recorded, _, thrown = recorded.partition(";EXC:")
    assert ",".join([f"err{code}", *messages(decoder)]) == recorded
    if thrown == "kafka.common.InvalidMessageSizeException":
        # The window is smaller than its first message. Scala gives up; we keep what came, and the next fetch goes on
        # behind it, so that a message may be larger than a fetch.
        assert (decoder.position, decoder.fetch_position) == (part.offset, part.offset + received)
        assert received == part.max_bytes
    elif thrown:
        assert thrown == THROWN[code]


@each("S")
def test_requests_and_replies_of_the_simple_consumer(case: Case) -> None:
    """Byte by byte the requests we would make, and from the recorded replies the recorded results."""
    asked, answered = frames(case, "c2b"), frames(case, "b2c")
    for call, data, reply, result in zip(case["calls"], asked, answered, case["results"], strict=True):
        request = request_of(call)
        assert b"".join(encode_request(request)) == data
        if isinstance(request, Offsets):
            offsets = OffsetsReply(request.max_number)
            assert offsets.feed(memoryview(reply)) == len(reply) and offsets.done
            assert same_offsets(offsets.result(), result)
            continue
        parts = parts_of(request)
        decoders = [decoder_of(part) for part in parts]
        kind = MultiFetchReply if isinstance(request, MultiFetch) else FetchReply
        decoded = kind(decoders, sum(part.max_bytes for part in parts))
        for n in range(len(reply)):  # byte by byte: whole is what a loopback does in the next test
            assert decoded.feed(memoryview(reply[n : n + 1])) == 1
        assert decoded.done
        recorded = result.split("|")[1:] if isinstance(request, MultiFetch) else [result]
        for part, outcome, decoder, text in zip(parts, decoded.result(), decoders, recorded, strict=True):
            same_part(part, outcome.error_code, outcome.received, decoder, text)


def same_offsets(offsets: Sequence[int], recorded: str) -> bool:
    return "offs" + ",".join(map(str, offsets)) == recorded


@asynccontextmanager
async def stored(case: Case, zookeeper: ZooKeeperServer) -> AsyncIterator[tuple[RunningCase, od.Cluster]]:
    with run_case(case, zookeeper) as running:
        for data in case["data"]:
            running.store(*data)
        async with od.connect(running.static_url) as k:
            yield running, k


def api_of(k: od.Cluster, running: RunningCase) -> Kafka07BrokerClient:
    api = k.driver.broker(Broker(1, "127.0.0.1", running.recorder.port), purpose="fetch")
    assert isinstance(api, Kafka07BrokerClient)
    return api


@each("S")
async def test_calls_of_the_simple_consumer_by_our_api(case: Case, zookeeper: ZooKeeperServer) -> None:
    async with stored(case, zookeeper) as (running, k):
        api = api_of(k, running)
        for call, result in zip(case["calls"], case["results"], strict=True):
            request = request_of(call)
            if isinstance(request, Offsets):
                await same_positions(api, request, result)
                continue
            parts = parts_of(request)
            decoders = [decoder_of(part) for part in parts]
            outcomes = [PartitionFetch(d, part.max_bytes) for d, part in zip(decoders, parts, strict=True)]
            await api.fetch(outcomes)
            recorded = result.split("|")[1:] if isinstance(request, MultiFetch) else [result]
            for part, outcome, decoder, text in zip(parts, outcomes, decoders, recorded, strict=True):
                same_part(part, code_of(outcome), outcome.received, decoder, text)


def code_of(outcome: PartitionFetch) -> int:
    assert outcome.error is None or isinstance(outcome.error, BrokerError)
    return 0 if outcome.error is None else outcome.error.code


async def same_positions(api: Kafka07BrokerClient, request: Offsets, recorded: str) -> None:
    at = PositionSpec(request.time) if request.time < 0 else od.AtTime(request.time / 1000)
    partition = TopicPartition(request.topic, request.partition, 1)
    assert same_offsets(await api.positions(partition, at, request.max_number), recorded)


@each("S")
async def test_a_reader_gives_what_the_simple_consumer_gave(case: Case, zookeeper: ZooKeeperServer) -> None:
    """Each fetch that had messages, by the public reader: from its offset to the end of its last whole message."""
    async with stored(case, zookeeper) as (_, k):
        for part, recorded in fetches_of(case):
            head, *expected = recorded.split(";")[0].split(",")
            if head != "err0" or not expected:
                continue
            partition = TopicPartition(part.topic, part.partition, 1)
            end = Position(int(expected[-1].rpartition("@")[2]))
            async with k.reader({partition: Position(part.offset)}, until=end) as reader:
                rows = [f"{shown(present(record.value))}@{record.next_position}" async for record in reader]
            assert rows == expected


def fetches_of(case: Case) -> Iterator[tuple[Fetch, str]]:
    for call, result in zip(case["calls"], case["results"], strict=True):
        request = request_of(call)
        if not isinstance(request, Offsets):
            recorded = result.split("|")[1:] if isinstance(request, MultiFetch) else [result]
            yield from zip(parts_of(request), recorded, strict=True)


# ---- C: the high-level consumer ------------------------------------------------------------------------------

Asked = set[tuple[str, int, int]]

KEEPS_TAILS = {"C08": 56, "C09": 26, "C10": 56, "C15": 56}
"""Cases whose window cuts messages -> where their log ends. Scala drops the cut message and fetches it again from its
start; a window smaller than a message stops it for good (C10, C15). We keep the partial message and go on behind it:
each window begins where the last one ended, and every message arrives."""

FOUR = ["ct:666f757221", "ct:6f6e65", "ct:7468726565", "ct:74776f"]
ALL_FOUR = {"C10": FOUR, "C15": FOUR}


def asked(requests: Sequence[Request]) -> tuple[Asked, Asked]:
    """(topic, partition, offset) of what was fetched, and (topic, partition, time) of positions asked for."""
    fetched: Asked = set()
    searched: Asked = set()
    for request in requests:
        if isinstance(request, Offsets):
            searched.add(request[:3])
        elif isinstance(request, Fetch | MultiFetch):
            fetched |= {part[:3] for part in parts_of(request)}
    return fetched, searched


def expected_of(case: Case) -> tuple[Asked, Asked]:
    fetched, searched = asked(recorded_requests(case))
    if (end := KEEPS_TAILS.get(case["id"])) is not None:
        window = int(case["config"]["fetch.size"])
        fetched = {("ct", 0, at) for at in [*range(0, end, window), end]}
    return fetched, searched


def consumer_options(case: Case) -> dict[str, Any]:
    config = case["config"]
    options: dict[str, Any] = {
        "group": config["groupid"],
        "consumer_id": config["consumerid"],
        "start": {"smallest": EARLIEST, "largest": LATEST}[config["autooffset.reset"]],
        "commit_every": None,  # as good as autocommit.interval.ms=600000
    }
    kind, *rest = case["streams"].split(";")
    if kind == "w":
        return {**options, "include": rest[0], "streams": int(rest[1])}
    counts = (item.split(":") for item in case["streams"].split(";"))
    return {**options, "topics": {topic: int(count) for topic, count in counts}}


def window_of(case: Case) -> int:
    return int(case["config"].get("fetch.size", DEFAULT_FETCH_BYTES))


def tree(running: RunningCase) -> dict[str, list[str | None]]:
    """As the corpus writes trees."""
    nodes = running.zookeeper.tree(f"{running.chroot}/consumers")
    return {
        path.removeprefix(running.chroot): [
            None if node.data is None else node.data.decode(),
            "ephemeral" if node.owner else "persistent",
        ]
        for path, node in nodes.items()
    }


def committed(case: Case) -> dict[str, list[str | None]]:
    after: dict[str, list[str | None]] = dict(case["zk_after_commit"])
    if case["id"] in ALL_FOUR:  # Scala is stuck at 0
        after["/consumers/cg/offsets/ct/1-0"] = [str(KEEPS_TAILS[case["id"]]), "persistent"]
    return after


@each("C")
async def test_a_consumer_gets_and_leaves_what_the_scala_consumer_did(case: Case, zookeeper: ZooKeeperServer) -> None:
    expected_fetches, expected_searches = expected_of(case)
    expected_messages: list[str] = ALL_FOUR.get(case["id"]) or case["messages"]
    received: list[str] = []

    async def work(consumer: od.Consumer) -> None:
        async for batch in consumer.batches():
            topic = "*" if case["streams"].startswith("w;") else batch.topic  # the corpus does not say it there
            received.extend(f"{topic}:{shown(present(value))}" for value in batch.values)
            batch.done()

    with run_case(case, zookeeper) as running:

        def ours() -> tuple[Asked, Asked]:
            return asked([request for requests in running.requests() for request in requests])

        for data in case["data"]:
            running.store(*data)
        for path, offset in case["offsets"].items():
            zookeeper.create(f"{running.chroot}/consumers/cg/offsets/{path}", offset.encode())
        await running.until_registered({f"{running.chroot}/brokers/topics/{topic}/1" for topic, _, _ in case["data"]})
        tuning = od.Tuning(fetch_bytes=window_of(case), fetch_idle=0.02)
        async with (
            od.connect(running.url, tuning=tuning) as k,
            k.consumer(**consumer_options(case)) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(work, consumer)
            await until(lambda: not case["data"] or ours()[0])
            for data in case["later"]:
                running.store(*data)
            await until(lambda: len(received) >= len(expected_messages) and ours()[0] >= expected_fetches)
            before = tree(running)
            await consumer.commit()
            after = tree(running)
            tasks.cancel_scope.cancel()
        assert ours() == (expected_fetches, expected_searches)
        check_fetches(case, running.requests())
    assert sorted(received) == expected_messages
    assert before == case["zk_before_commit"]
    assert after == committed(case)


def check_fetches(case: Case, lines: Sequence[Sequence[Request]]) -> None:
    """Ours are FETCH for one partition, where Scala always sends MULTIFETCH, and ask for less at first: 64 KiB tell
    what a byte of the log grows to in memory."""
    for request in (request for line in lines for request in line):
        if isinstance(request, Fetch | MultiFetch):
            parts = parts_of(request)
            assert len({part[:2] for part in parts}) == len(parts)
            assert isinstance(request, Fetch) == (len(parts) == 1)
            assert all(0 < part.max_bytes <= window_of(case) for part in parts)


def test_what_keeping_tails_changes_is_named_case_by_case() -> None:
    """The corpus holds no other case in which Scala fetched a partial message."""
    cut = set()
    for case in CASES:
        if case["id"].startswith("C"):
            windows = [part for request in recorded_requests(case) for part in window_parts(request)]
            cut |= {case["id"] for part in windows if part.max_bytes < DEFAULT_FETCH_BYTES}
    assert cut == set(KEEPS_TAILS)


def window_parts(request: Request) -> tuple[Fetch, ...]:
    return parts_of(request) if isinstance(request, Fetch | MultiFetch) else ()
