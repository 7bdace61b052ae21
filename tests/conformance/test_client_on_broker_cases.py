"""The client's wire code on the recorded broker cases: all of their requests, and all replies that were kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from odradek.core.interfaces import DecoderOptions
from odradek.errors import OdradekError, RemoteProtocolError
from odradek.types import Columns, Position, TopicPartition
from odradek.wire.kafka07.message_set import MessageSetDecoder
from odradek.wire.kafka07.requests import Fetch, MultiFetch, Offsets, encode_request
from odradek.wire.kafka07.responses import FetchReply, MultiFetchReply, OffsetsReply, PartResult

from .conversations import Exchange, Row, entries_of, exchanges, rows_of
from .replay import Case, read_cases

pytestmark = pytest.mark.usefixtures("engine")

CORPUS = Path(__file__).parent / "kafka07"
CASES = [case for name in ("acceptance", "random_shared") for case in read_cases(CORPUS / f"{name}.jsonl.gz") if case]
TALKS = {case.id: exchanges(case) for case in CASES}
CHUNK_BYTES = (1, 7, 1460)
"""Replies are fed whole, and in pieces of these sizes: byte by byte only those that are not long."""

LONG_BYTES = 2000


# ---- requests -----------------------------------------------------------------------------------------------


def rewritten(exchange: Exchange) -> str:
    """How our encoder writes the request again: the same, or the same without bytes the broker ignores."""
    if any("\ufffd" in part.topic for part in exchange.parts):
        return "not UTF-8"  # an illegal topic in any case: the bytes themselves do not matter
    body = b"".join(encode_request(exchange.request))[4:]
    assert exchange.body.startswith(body)
    return "same" if body == exchange.body else "surplus"


def test_every_valid_request_is_read_and_written_again_the_same() -> None:
    outcomes = Counter(rewritten(exchange) for talk in TALKS.values() for exchange in talk)
    assert outcomes == {"same": 13159, "surplus": 111, "not UTF-8": 168}


# ---- replies ------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """What one part of a fetch came to."""

    result: PartResult
    columns: Columns
    error: tuple[Any, ...]
    position: int
    fetch_position: int


def fed(reply: FetchReply | OffsetsReply, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        chunk = data[start : start + size]
        assert reply.feed(memoryview(chunk)) == len(chunk)
    assert reply.done


def shape(error: OdradekError | None) -> tuple[Any, ...]:
    return () if error is None else (type(error), *error.args)


def fetched(exchange: Exchange, data: bytes, chunk_bytes: int) -> list[Part]:
    parts = exchange.fetches
    decoders = [
        MessageSetDecoder(TopicPartition(part.topic, part.partition, 1), Position(part.offset), DecoderOptions())
        for part in parts
    ]
    kind = MultiFetchReply if isinstance(exchange.request, MultiFetch) else FetchReply
    reply = kind(decoders, sum(max(part.max_bytes, 0) for part in parts))
    fed(reply, data, chunk_bytes)
    return [
        Part(result, decoder.take(), shape(decoder.error), decoder.position, decoder.fetch_position)
        for result, decoder in zip(reply.result(), decoders, strict=True)
    ]


def positions(request: Offsets, data: bytes, chunk_bytes: int) -> list[int]:
    reply = OffsetsReply(request.max_number)
    fed(reply, data, chunk_bytes)
    return reply.result()


def decoded(exchange: Exchange, data: bytes, chunk_bytes: int) -> Any:
    """What the client makes of a reply; an odradek error is an outcome, anything else is not."""
    try:
        if isinstance(exchange.request, Offsets):
            return positions(exchange.request, data, chunk_bytes)
        return fetched(exchange, data, chunk_bytes)
    except OdradekError as error:
        return shape(error)


def answered(case: Case) -> Iterator[tuple[Exchange, bytes]]:
    for exchange in TALKS[case.id]:
        if exchange.reply is not None:
            yield exchange, exchange.reply


class Log:
    """What a case tells of the logs: their files whenever it looked, and what was sent to them."""

    def __init__(self, case: Case) -> None:
        self._segments: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        self.sent: set[bytes] = set()
        sent: dict[tuple[str, int], bytes] = {}
        for part in (part for exchange in TALKS[case.id] for part in exchange.produces):
            partition = part.topic, part.partition
            sent[partition] = sent.get(partition, b"") + part.message_set
            self.sent.update(value for entry in entries_of(bytes(part.message_set)) for value in entry.values)
        for partition, sets in sent.items():
            self._segments[partition] = [(0, sets)]
        for step in case.steps:
            for name, size, content in (step["op"] == "expect_log" and step["files"]) or ():
                if size and "hex" in content and name.endswith(".kafka"):
                    segment = int(name.removesuffix(".kafka")), bytes.fromhex(content["hex"])
                    self._segments.setdefault((step["topic"], step["partition"]), []).append(segment)

    def rows(self, part: Fetch, data: bytes) -> list[Row] | None:
        """The messages stored whole in these bytes of the log; None where the case does not tell, or where the bytes
        do not begin with an entry."""
        end = part.offset + len(data)
        for start, segment in self._segments.get((part.topic, part.partition), ()):
            if start <= part.offset and segment[part.offset - start : end - start] == data:
                entries = [entry for entry in entries_of(segment, start) if part.offset <= entry.position]
                if entries and entries[0].position == part.offset:
                    return [row for entry in entries if entry.end <= end for row in rows_of(entry)]
        return None


def damaged(case: Case) -> bool:
    """Bytes that are no messages were put into its files while the broker was down."""
    return any(step["op"] == "restart" and step.get("down") for step in case.steps)


def log_bytes(exchange: Exchange, data: bytes, parts: list[Part]) -> Iterator[bytes]:
    """The bytes of each part, cut out by the sizes alone."""
    at = 6 if isinstance(exchange.request, MultiFetch) else 0
    for part in parts:
        yield data[at + 6 : at + 6 + part.result.received]
        at += 6 + part.result.received


@pytest.mark.sampled(2, "engine")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_every_reply_decodes_whole_and_split(case: Case) -> None:
    for exchange, data in answered(case):
        whole = decoded(exchange, data, len(data))
        for chunk_bytes in CHUNK_BYTES[len(data) > LONG_BYTES :]:
            assert decoded(exchange, data, chunk_bytes) == whole
        # Asked for a negative number of bytes the broker announces as many, and hangs up.
        assert isinstance(whole, list) or (exchange.breaks_off and whole[0] is RemoteProtocolError)


def test_replies_hold_the_messages_that_were_stored() -> None:
    """Position, resume position and value of each. Where the corpus does not tell the bytes of the log (a digest, or a
    fetch from inside a message, case 5), at least nothing is made up."""
    seen: Counter[str] = Counter()
    for case in CASES:
        log = Log(case)
        for exchange, data in answered(case):
            if not exchange.fetches or exchange.breaks_off:
                continue
            parts = fetched(exchange, data, len(data))
            for part, actual, stored in zip(exchange.fetches, parts, log_bytes(exchange, data, parts), strict=True):
                if not stored:
                    assert not actual.columns.values
                elif (expected := log.rows(part, stored)) is None:
                    assert damaged(case) or log.sent >= set(actual.columns.values)
                    seen.update(untold=1, untold_rows=len(actual.columns.values))
                else:
                    same_rows(case, actual, expected)
                    seen.update(compared=1, rows=len(expected))
    assert seen == {"compared": 749, "rows": 3534, "untold": 473, "untold_rows": 86}


def same_rows(case: Case, actual: Part, expected: list[Row]) -> None:
    if actual.error:  # decoding ends at the damage
        assert damaged(case)
        expected = [row for row in expected if row[0] < actual.position]
    c = actual.columns
    assert list(zip(c.positions, c.next_positions, c.values, strict=True)) == expected
