"""The recorded cases of a real 0.7.2 broker, as far as they are about bytes.

What the broker stored must decode; what it closed the connection on must not. The corpus names the odd gzip and snappy
streams in its tags, so this is where "accepts exactly what the broker accepts" is shown.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.frames import FrameReader, encode_fetch, encode_multifetch

from odradek.core.interfaces import DecoderOptions
from odradek.errors import RemoteProtocolError
from odradek.types import Position, TopicPartition
from odradek.wire.kafka07.entries import ParseStop, ScanEnd, scan
from odradek.wire.kafka07.message_set import MessageSetDecoder
from odradek.wire.kafka07.requests import (
    Fetch,
    MultiFetch,
    MultiProduce,
    Offsets,
    Produce,
    Request,
    decode_request,
    encode_request,
)
from odradek.wire.kafka07.responses import (
    FetchReply,
    MultiFetchReply,
    OffsetsReply,
    encode_offsets,
)
from odradek.wire.kafka07.topic_names import is_legal_topic

from ..payloads import payload

pytestmark = pytest.mark.usefixtures("engine")

CORPUS = Path(__file__).parents[1] / "conformance" / "kafka07"
SYNC = Offsets("sync", 0, -1, 1)
Case = dict[str, Any]


def cases(*names: str) -> Iterator[Case]:
    for name in names:
        with gzip.open(CORPUS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


class Burst(NamedTuple):
    """What was sent on a connection up to the first answer, and whether the broker closed it then."""

    case: str
    broker: dict[str, str]
    tags: list[str]
    sent: bytes
    closed: bool


def sent_bytes(step: Case) -> bytes:
    if "hex" in step:
        return bytes.fromhex(step["hex"])
    return b"".join(bytes.fromhex(text) * count for text, count in step["data"])


def bursts(case: Case) -> Iterator[Burst]:
    """Whole bursts of a case: everything sent between two silences of the client, and how the connection took it."""
    sent: dict[str, bytes] = {}
    answered: set[str] = set()
    for step in case["steps"]:
        conn = step.get("conn")
        if step["op"] == "send":
            if conn in answered:
                yield Burst(case["id"], case["broker"], case.get("tags", []), sent.pop(conn, b""), False)
                answered.discard(conn)
            sent[conn] = sent.get(conn, b"") + sent_bytes(step)
        elif step["op"] == "recv" and step.get("expect") == "closed":
            yield Burst(case["id"], case["broker"], case.get("tags", []), sent.pop(conn, b""), True)
            answered.discard(conn)
        elif step["op"] == "recv" and "expect" not in step:
            answered.add(conn)
        elif step["op"] in ("connect", "close", "half_close"):
            sent.pop(conn, None)
            answered.discard(conn)


def requests_of(burst: Burst) -> list[Request]:
    """Its requests; none at all if it is cut or holds what is no request."""
    reader = FrameReader(104857600)
    try:
        requests = [decode_request(frame) for frame in reader.feed(burst.sent)]
    except RemoteProtocolError:
        return []
    return [] if reader.error or reader.pending_bytes else requests


def sets_of(burst: Burst) -> list[bytes]:
    """The message sets of a burst in which nothing else can make the broker close."""
    parts: list[Produce] = []
    for request in requests_of(burst):
        match request:
            case Produce():
                parts.append(request)
            case MultiProduce():
                parts += request.parts
            case Fetch() if request.max_bytes >= 0:
                pass
            case MultiFetch() if all(part.max_bytes >= 0 for part in request.parts):
                pass
            case _ if request != SYNC:
                return []
    return [bytes(part.message_set) for part in parts] if all(addressed(part, burst.broker) for part in parts) else []


def addressed(part: Produce, broker: dict[str, str]) -> bool:
    """Whether only the message set decides: topic and partition are fine and no payload is over the limit."""
    count = int(broker.get("num.partitions", "1"))
    limit = int(broker.get("max.message.size", "1000000"))
    return (
        is_legal_topic(part.topic, int(broker.get("max.topic.name.length", "255")))
        and "topic.partition.count.map" not in broker
        and -1 <= part.partition < count
        and all(len(entry.payload) <= limit for entry in scan(part.message_set))
    )


def decodes(data: bytes | memoryview) -> bool:
    """Whether the broker accepts this set, told by our decoder: a cut first entry is the one thing it waits on."""
    decoder = MessageSetDecoder(TopicPartition("t", 0, 1), Position(0), DecoderOptions(max_message_bytes=4 << 30))
    decoder.feed(memoryview(data))
    cut = scan(data)
    count = len(list(cut))
    first_is_cut = not count and cut.end is not None and cut.end.reason is ParseStop.CUT and len(data) >= 4
    return decoder.error is None and not first_is_cut


def test_what_the_broker_closes_on_does_not_decode_and_what_it_takes_does() -> None:
    judged: Counter[bool] = Counter()
    tags: set[str] = set()
    for case in cases("acceptance", "random_shared"):
        for burst in bursts(case):
            if sets := sets_of(burst):
                taken = all(map(decodes, sets))
                assert taken != burst.closed, f"{burst.case} {burst.tags}: {burst.sent.hex()}"
                judged[taken] += 1
                tags.update(tag for tag in burst.tags if tag.startswith(("gzip:", "snappy:")))
    assert (judged[True], judged[False], len(tags)) == (
        580,
        133,
        28,
    )  # every odd stream the corpus names, at least once


def test_everything_the_broker_stored_decodes_whole() -> None:
    logs = 0
    for case in cases("acceptance", "random_shared"):
        if any(step["op"] == "restart" for step in case["steps"]):
            continue  # those put damaged bytes into log files
        for step in case["steps"]:
            for _, size, content in (step["op"] == "expect_log" and step["files"]) or []:
                log = bytes.fromhex(content.get("hex", ""))
                if not log:
                    continue
                decoder = MessageSetDecoder(TopicPartition("t", 0, 1), Position(0), DecoderOptions())
                decoder.feed(memoryview(log))
                assert decoder.error is None, case["id"]
                assert decoder.fetch_position == size == len(log)
                decoder.take()
                assert decoder.position == size
                entries = scan(log)
                assert not any(entry.damage for entry in entries)
                assert entries.end == ScanEnd(size, ParseStop.END)
                logs += 1
    assert logs > 500


def test_the_frames_of_scala_clients_read_and_write_back_the_same() -> None:
    requests = replies = 0
    for case in cases("scala_client"):
        unanswered: dict[int, list[Request]] = {}
        for frame in case["frames"]:
            data, conn = bytes.fromhex(frame["hex"]), frame["conn"]
            if frame["direction"] == "c2b":
                request = decode_request(data[4:])
                assert b"".join(encode_request(request)) == data
                unanswered.setdefault(conn, []).append(request)
                requests += 1
            else:
                request = unanswered[conn].pop(0)
                check_reply(request, data)
                replies += 1
    assert (requests, replies) == (159, 86)


class Collector(bytearray):
    def feed(self, data: memoryview) -> None:
        self.extend(data)


def check_reply(request: Request, data: bytes) -> None:
    """A recorded answer reads as an answer to its request, and writes back the same."""
    if isinstance(request, Offsets):
        offsets = OffsetsReply(request.max_number)
        assert offsets.feed(memoryview(data)) == len(data)
        assert b"".join(encode_offsets(offsets.result())) == data
        return
    assert isinstance(request, Fetch | MultiFetch)
    parts = request.parts if isinstance(request, MultiFetch) else (request,)
    sinks = [Collector() for _ in parts]
    kind = MultiFetchReply if isinstance(request, MultiFetch) else FetchReply
    reply = kind(sinks, sum(part.max_bytes for part in parts))
    assert reply.feed(memoryview(data)) == len(data)
    assert reply.done
    answered = [(result.error_code, bytes(sink)) for result, sink in zip(reply.result(), sinks, strict=True)]
    written = encode_multifetch(answered) if isinstance(request, MultiFetch) else encode_fetch(*answered[0])
    assert b"".join(written) == data


def test_single_fetches_iterate_as_the_scala_consumer_iterates_them() -> None:
    """Payloads and the position to resume from, cut windows included, over plain, compressed and nested sets."""
    compared = 0
    for case in cases("scala_client"):
        if not case["id"].startswith("S"):
            continue
        logs = {(topic, str(partition)): bytes.fromhex(log) for topic, partition, log in case["data"]}
        for (kind, topic, *call), result in zip(case["calls"], case["results"], strict=True):
            error, *expected = result.split(",")
            if kind != "fetch" or error != "err0" or (topic, call[0]) not in logs:
                continue
            offset, window = int(call[1]), int(call[2])
            decoder = MessageSetDecoder(TopicPartition(topic, 0, 1), Position(offset), DecoderOptions())
            decoder.feed(memoryview(logs[topic, call[0]][offset : offset + window]))
            columns = decoder.take()
            assert decoder.error is None
            rows = zip(columns.values, columns.next_positions, strict=True)
            assert [f"{shortened(payload(value))}@{resume}" for value, resume in rows] == expected, case["id"]
            compared += 1
    assert compared == 15


def shortened(payload: bytes) -> str:
    """As the corpus writes payloads."""
    return payload.hex() if len(payload) <= 200 else f"{payload[:8].hex()}..len{len(payload)}"
