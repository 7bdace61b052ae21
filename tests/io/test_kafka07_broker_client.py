from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, TaskGroup
from anyio.lowlevel import checkpoint
from tests.columns import packed_records
from tests.frames import FrameReader, encode_fetch, encode_multifetch
from tests.memory_pair import memory_pair

from odradek.core.backoff import Backoff
from odradek.core.interfaces import (
    DecoderOptions,
    LogDecoder,
    PartitionBatch,
    PartitionFetch,
    PartitionResult,
    PendingResult,
    ProducerRecord,
)
from odradek.core.produce.packed_records import PackedRecords
from odradek.engine import Buffer
from odradek.errors import (
    BrokerError,
    Closed,
    ConfigError,
    ConnectionLost,
    DeadlineError,
    LocalProtocolError,
    MessageTooLarge,
    OdradekError,
    OffsetOutOfRange,
    RemoteProtocolError,
    Unreachable,
)
from odradek.io.connection import Connection, ConnectionOptions, State
from odradek.io.kafka07.broker_client import BrokerClientOptions, Kafka07BrokerClient
from odradek.types import EARLIEST, LATEST, AtTime, Broker, Position, TopicPartition
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set
from odradek.wire.kafka07.requests import Fetch, MultiFetch, MultiProduce, Offsets, Produce, Request, decode_request
from odradek.wire.kafka07.responses import encode_offsets

from ..payloads import payloads
from .limits import end_time_limits

pytestmark = pytest.mark.anyio

P0, P1 = TopicPartition("t", 0, 1), TopicPartition("t", 1, 1)
WORDS = [b"one", b"two", b"", b"three", b"four!"]
LOG = encode_set(WORDS)


class Peer:
    """Enough of a 0.7 broker to speak real bytes (specification 3, App. D), with a knife and a brake.

    `request_bytes` and `reply_bytes` is what the next connection lets through before it closes; `reply_brake` how many
    reply bytes it lets through before it waits for `release`.
    """

    def __init__(self) -> None:
        self.logs = {P0: bytearray(), P1: bytearray()}
        self.requests: list[Request] = []
        self.request_bytes: int | None = None
        self.reply_bytes: int | None = None
        self.reply_brake: int | None = None
        self.braked, self.release = anyio.Event(), anyio.Event()
        self.refusal: Unreachable | None = None
        self.silent = False
        self.group: TaskGroup | None = None

    async def dial(self, host: str, port: int, timeout: float) -> ByteStream:
        if self.refusal is not None:
            raise self.refusal
        here, remote = memory_pair(1 << 20)
        assert self.group is not None
        self.group.start_soon(self.serve, remote)
        return here

    async def serve(self, stream: ByteStream) -> None:
        frames, lets_in = FrameReader(100 << 20), self.request_bytes
        self.request_bytes = None
        async with stream:
            try:
                while lets_in != 0:
                    data = await stream.receive(lets_in or 65536)
                    lets_in = None if lets_in is None else lets_in - len(data)
                    for body in frames.feed(data):
                        await self.reply(stream, self.handle(decode_request(body)))
            except (anyio.EndOfStream, anyio.BrokenResourceError, ConnectionAbortedError):
                return

    async def reply(self, stream: ByteStream, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        if self.reply_brake is not None:
            brake, self.reply_brake = self.reply_brake, None
            await stream.send(data[:brake])
            self.braked.set()
            await self.release.wait()
            data = data[brake:]
        if self.reply_bytes is not None and data:
            cut, self.reply_bytes = self.reply_bytes, None
            await stream.send(data[:cut])
            raise ConnectionAbortedError
        if data:
            await stream.send(data)

    def handle(self, request: Request) -> Sequence[Buffer]:
        self.requests.append(request)
        match request:
            case Produce():
                self.append(request)
                return []
            case MultiProduce(parts):
                for part in parts:
                    self.append(part)
                return []
            case Fetch() if not self.silent:
                return encode_fetch(*self.slice(request))
            case MultiFetch(parts) if not self.silent:
                return encode_multifetch([self.slice(part) for part in parts])
            case Offsets(topic, partition) if not self.silent:
                if (log := self.logs.get(TopicPartition(topic, partition, 1))) is None:
                    raise ConnectionAbortedError
                return encode_offsets([len(log), 0][: request.max_number])
        return []

    def append(self, part: Produce) -> None:
        log = self.logs.get(TopicPartition(part.topic, part.partition, 1))
        check = MessageSetDecoder(P0, Position(0), DecoderOptions())
        check.feed(memoryview(bytes(part.message_set)))
        if log is None or check.error:
            raise ConnectionAbortedError
        log += part.message_set

    def slice(self, part: Fetch) -> tuple[int, bytes]:
        log = self.logs.get(TopicPartition(part.topic, part.partition, 1))
        if log is None:
            return 3, b""
        if not 0 <= part.offset <= len(log):
            return 1, b""
        return 0, bytes(log[part.offset : part.offset + part.max_bytes])


@pytest.fixture
def peer() -> Peer:
    return Peer()


async def fetch(client: Kafka07BrokerClient, *wanted: tuple[LogDecoder, int]) -> list[PartitionFetch]:
    """Fetch at most this many bytes for each decoder."""
    fetches = [PartitionFetch(decoder, max_bytes) for decoder, max_bytes in wanted]
    await client.fetch(fetches)
    return fetches


@asynccontextmanager
async def running(peer: Peer, options: BrokerClientOptions | None = None) -> AsyncIterator[Kafka07BrokerClient]:
    before = {task.id for task in anyio.get_running_tasks()}
    async with anyio.create_task_group() as peer.group:
        at_once = ConnectionOptions(backoff=Backoff(0, 1, 5))
        async with Connection("b", 1, connect=peer.dial, options=at_once) as connection:
            yield Kafka07BrokerClient(Broker(1, "b", 1), connection, options)
        peer.group.cancel_scope.cancel()
    assert {task.id for task in anyio.get_running_tasks()} <= before


def part(*values: bytes, partition: TopicPartition = P0, compression: str = "none") -> PartitionBatch:
    return PartitionBatch(partition, [ProducerRecord(value) for value in values], compression)


def decoder(api: Kafka07BrokerClient, partition: TopicPartition = P0, position: int = 0) -> LogDecoder:
    return api.decoder(partition, Position(position), DecoderOptions())


async def outcome(awaitable: Awaitable[Any]) -> Any:
    """The value, or the error as (type, sent)."""
    try:
        with anyio.fail_after(10):
            return await awaitable
    except OdradekError as error:
        return type(error), error.sent


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not true():
            await checkpoint()


async def received(api: Kafka07BrokerClient, size: int) -> None:
    await until(lambda: api.connection.statistics().received_bytes == size)


def stored(peer: Peer, partition: TopicPartition = P0) -> list[bytes]:
    reader = MessageSetDecoder(partition, Position(0), DecoderOptions())
    reader.feed(memoryview(bytes(peer.logs[partition])))
    return payloads(reader.take().values)


# ---- produce -------------------------------------------------------------------------------------------------


async def test_a_produce_is_confirmed_by_an_empty_multifetch_in_the_same_write(peer: Peer) -> None:
    async with running(peer) as api:
        results = await api.produce([part(b"one", b"two")], acks=-1)
        assert results is None
        assert peer.requests == [Produce("t", 0, encode_set([b"one", b"two"])), MultiFetch(())]
        assert stored(peer) == [b"one", b"two"]
        statistics = api.connection.statistics()
        assert (statistics.requests, statistics.received_bytes) == (1, 6)


async def test_results_call_back_in_call_order_and_hold_the_value_or_the_error(peer: Peer) -> None:
    async with running(peer) as api:
        topics = (P0, P0, TopicPartition("missing", 0, 1), P0)
        produced: list[PendingResult[Sequence[PartitionResult] | None]] = [
            api.produce([part(b"x", partition=to)], acks=-1) for to in topics
        ]
        order: list[int] = []
        for number, each in enumerate(produced):
            assert not each.done
            each.add_done_callback(partial(order.append, number))
        assert await outcome(produced[3]) == (ConnectionLost, True)
        assert order == [0, 1, 2, 3]
        assert all(each.done for each in produced)
        assert produced[0].result() is produced[1].result() is None
        with pytest.raises(ConnectionLost):
            produced[2].result()


async def test_without_confirm_the_outcome_is_there_once_written(peer: Peer) -> None:
    async with running(peer) as api:
        assert await api.produce([part(b"one")], acks=0) is None
        assert await api.produce([part(b"two")], acks=-1) is None
        assert stored(peer) == [b"one", b"two"]
        assert api.connection.statistics().received_bytes == 6


async def test_several_parts_go_out_as_one_multiproduce(peer: Peer) -> None:
    async with running(peer) as api:
        assert await api.produce([part(b"a"), part(b"b", partition=P1), part(b"c")], acks=-1) is None
        assert isinstance(peer.requests[0], MultiProduce)
        assert (stored(peer), stored(peer, P1)) == ([b"a", b"c"], [b"b"])


@pytest.mark.parametrize("number", [1, 2])
async def test_small_batches_are_encoded_together_to_the_same_bytes(peer: Peer, number: int) -> None:
    async with running(peer) as api:
        keyed = PartitionBatch(P1, [b"b", ProducerRecord(b"c", b"key")])
        for acks in -1, 0:
            others = [part(b"a") for _ in range(number - 1)]
            sent = api.produce_plain([*others, keyed], acks=acks, max_message_bytes=22)
            assert sent is not None
            assert await sent is None
            assert await api.produce([part(b"behind")], acks=-1) is None
        assert keyed.encoded is None
        together = peer.requests[0]
        await api.produce([*others, keyed], acks=-1)
        assert peer.requests.count(together) == 3


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_records_in_columns_are_stored_without_their_keys(
    peer: Peer, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [ProducerRecord(b"a", b"key"), ProducerRecord(b"", None), ProducerRecord(b"b", b"")]
    async with running(peer) as api:
        packed, listed = (PartitionBatch(P0, records, compression) for records in (packed_records(rows), rows))
        with monkeypatch.context() as patched:
            patched.setattr(PackedRecords, "__getitem__", None)  # no record of them is made
            assert await api.produce([packed], acks=-1) is None
        assert await api.produce([listed], acks=-1) is None
        small = [PartitionBatch(P0, packed_records(rows)), part(b"c")]
        sent = api.produce_plain(small, acks=-1, max_message_bytes=100)
        assert sent is not None and await sent is None
    assert packed.encoded == listed.encoded
    assert stored(peer)[-4:] == [b"a", b"", b"b", b"c"]


@pytest.mark.parametrize(
    "others",
    [
        [PartitionBatch(P1, [b"x"], compression="gzip")],
        [PartitionBatch(P1, [b"x"], encoded=encode_set([b"x"]))],
        [PartitionBatch(P1, [b"x"] * 128)],
        [PartitionBatch(P1, [b"x" * 1000])],
        [PartitionBatch(P1, [ProducerRecord(None)])],
    ],
    ids=["compressed", "encoded", "many records", "too large", "null"],
)
async def test_other_batches_have_to_be_encoded_one_by_one(peer: Peer, others: list[PartitionBatch]) -> None:
    async with running(peer) as api:
        assert api.produce_plain([part(b"a"), *others], acks=-1, max_message_bytes=1000) is None
        assert not peer.requests
        await api.produce([part(b"a")], acks=-1)
        assert len(peer.requests) == 2  # and its confirm: nothing was queued before


async def test_produces_are_pipelined_in_call_order_whichever_is_awaited_first(peer: Peer) -> None:
    async with running(peer) as api:
        values = [b"%d" % n for n in range(1000)]
        awaitables = [api.produce([part(value)], acks=-1) for value in values]
        shuffled = random.Random(7).sample(awaitables, len(awaitables))
        assert [await awaitable for awaitable in shuffled] == [None] * 1000
        assert stored(peer) == values


async def test_a_dropped_or_cancelled_produce_is_not_taken_back(peer: Peer) -> None:
    async with running(peer) as api:
        api.produce([part(b"dropped")], acks=-1)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await api.produce([part(b"cancelled")], acks=-1)
        await api.produce([part(b"kept")], acks=-1)
        assert stored(peer) == [b"dropped", b"cancelled", b"kept"]


async def test_what_was_encoded_before_is_sent_as_it_is(peer: Peer) -> None:
    async with running(peer, BrokerClientOptions(max_message_bytes=1)) as api:
        await api.produce([PartitionBatch(P0, [ProducerRecord(b"ignored")], encoded=encode_set([b"other"]))], acks=-1)
        assert stored(peer) == [b"other"]


async def test_what_cannot_be_sent_is_refused_before_anything_is_queued(peer: Peer) -> None:
    async with running(peer, BrokerClientOptions(max_message_bytes=10)) as api:
        with pytest.raises(MessageTooLarge, match=r"t/1-0: message of 11 bytes is larger than 10"):
            api.produce([part(b"fine"), part(b"x" * 11)], acks=-1)
        with pytest.raises(LocalProtocolError, match="32768 parts"):
            api.produce([part(b"x")] * 32768, acks=-1)
        with pytest.raises(LocalProtocolError):
            api.produce([part(b"x", partition=TopicPartition("t" * 40_000, 0, 1))], acks=-1)
        with pytest.raises(ConfigError, match="lz4"):
            api.produce([part(b"x", compression="lz4")], acks=-1)
        assert api.connection.statistics().requests == 0
        before = api.incarnation
    with pytest.raises(Closed):
        api.produce([part(b"x")], acks=-1)
    assert api.incarnation > before


def encode_batch(batch: PartitionBatch, max_message_bytes: int) -> bytes:
    batch.encoded = None
    client = Kafka07BrokerClient(Broker(1, "b", 1), Connection("b", 1))
    client.encode(batch, max_message_bytes)
    assert batch.encoded is not None
    return batch.encoded


def test_the_limit_counts_what_the_broker_measures() -> None:
    assert encode_batch(part(), 0) == encode_batch(part(compression="gzip"), 0) == b""
    assert encode_batch(part(b"x" * 10), 10) == encode_set([b"x" * 10])
    assert encode_batch(part(b"x" * 10, b"y" * 10), 10) == encode_set([b"x" * 10, b"y" * 10])
    with pytest.raises(MessageTooLarge):
        encode_batch(part(b"x" * 10, b"y" * 11), 10)
    many = part(*[b"x" * 100] * 100, compression="snappy")
    wrapper = len(encode_batch(many, 1000)) - 10  # the wrapper's payload, without its header
    encode_batch(many, wrapper)
    with pytest.raises(MessageTooLarge, match=r"\(raise max_message_bytes\)") as caught:
        encode_batch(many, wrapper - 1)
    assert (caught.value.position, caught.value.size, caught.value.limit) == (-1, wrapper, wrapper - 1)


async def test_unreachable_means_not_sent(peer: Peer) -> None:
    peer.refusal = Unreachable("tcp", "b:1", "Connection refused")
    async with running(peer) as api:
        assert await outcome(api.produce([part(b"x")], acks=-1)) == (Unreachable, False)
        assert await outcome(api.produce([part(b"x")], acks=0)) == (Unreachable, False)
        assert peer.requests == []


async def test_a_confirm_that_does_not_come_runs_into_the_deadline(peer: Peer) -> None:
    peer.silent = True
    async with running(peer, BrokerClientOptions(request_timeout_s=20.5)) as api:
        pending = api.produce([part(b"x")], acks=-1)
        await until(lambda: len(peer.requests) == 2)
        end_time_limits(api.connection)
        assert await outcome(pending) == (DeadlineError, True)
        with pytest.raises(DeadlineError, match=r"no answer within 20\.5 s"):
            await pending
        assert stored(peer) == [b"x"]


async def test_an_answer_that_is_no_confirm_proves_nothing(peer: Peer) -> None:
    peer.handle = lambda request: [b"\0\0\0\x02\0\x05"]  # type: ignore[method-assign]
    async with running(peer) as api:
        assert await outcome(api.produce([part(b"x")], acks=-1)) == (RemoteProtocolError, True)


# ---- the line is cut ---------------------------------------------------------------------------------------


async def test_a_produce_cut_at_every_byte_tells_the_truth() -> None:
    frame = 4 + 2 + 3 + 8 + len(LOG)
    for cut in range(1, frame + 8 + 1):
        peer = Peer()
        peer.request_bytes = cut
        async with running(peer) as api:
            first = api.produce([part(*WORDS)], acks=-1)
            behind = api.produce([part(b"behind")], acks=-1)
            got = await outcome(first)
            applied = stored(peer) == WORDS
            assert applied == (cut >= frame), cut
            assert got == ((ConnectionLost, True) if cut < frame + 8 else None), cut
            assert await outcome(behind) == (ConnectionLost, True)
            assert await outcome(api.produce([part(b"again")], acks=-1)) is None
            assert stored(peer) == [*(WORDS if applied else []), b"again"]


async def test_a_connection_cut_before_the_first_byte_applies_nothing(peer: Peer) -> None:
    async with running(peer) as api:
        peer.request_bytes = 0
        lost, _ = await outcome(api.produce([part(b"x")], acks=-1))  # sent or not: it may be seen before or after
        assert lost is ConnectionLost
        assert stored(peer) == []


async def test_a_confirm_cut_at_every_byte_leaves_a_produce_that_may_have_been_applied() -> None:
    for cut in range(6):
        peer = Peer()
        peer.reply_bytes = cut
        async with running(peer) as api:
            assert await outcome(api.produce([part(b"x")], acks=-1)) == (ConnectionLost, True)
            assert stored(peer) == [b"x"]


@pytest.mark.parametrize("partitions", [[P0], [P0, P1]])
async def test_a_fetch_reply_cut_at_every_byte_loses_and_repeats_nothing(partitions: list[TopicPartition]) -> None:
    total = 6 + len(LOG) if len(partitions) == 1 else 6 + 2 * (6 + len(LOG))
    for cut in range(total):
        peer = Peer()
        for log in peer.logs.values():
            log += LOG
        peer.reply_bytes = cut
        async with running(peer) as api:
            decoders = [decoder(api, partition) for partition in partitions]
            wants = [(each, 1000) for each in decoders]
            assert await outcome(fetch(api, *wants)) == (ConnectionLost, True)
            taken = [list(each.take().values) for each in decoders]
            starts = [each.position for each in decoders]
            peer.requests.clear()
            await fetch(api, *wants)
            request = peer.requests[0]
            parts = request.parts if isinstance(request, MultiFetch) else [request]
            assert [each.offset for each in parts if isinstance(each, Fetch)] == starts  # message boundaries
            for values, each in zip(taken, decoders, strict=True):
                assert values + list(each.take().values) == WORDS, cut
                assert each.error is None


async def test_messages_left_in_the_decoder_by_a_lost_fetch_come_once(peer: Peer) -> None:
    peer.logs[P0] += LOG
    peer.reply_bytes = 6 + 30
    async with running(peer) as api:
        reader = decoder(api)
        await outcome(fetch(api, (reader, 1000)))
        assert reader.pending_bytes == 30
        await fetch(api, (reader, 1000))
        assert list(reader.take().values) == WORDS


async def test_case_46_a_broker_that_closes_on_a_bad_produce_is_reported(peer: Peer) -> None:
    bad = PartitionBatch(P0, [], encoded=encode_set([b"bad"])[:-1] + b"!")  # the CRC does not match
    async with running(peer) as api:
        good = api.produce([part(b"good")], acks=-1)
        refused = api.produce([bad], acks=-1)
        behind = api.produce([part(b"behind")], acks=-1)
        assert await good is None
        assert await outcome(refused) == (ConnectionLost, True)
        assert await outcome(behind) == (ConnectionLost, True)
        assert stored(peer) == [b"good"]
        with pytest.raises(ConnectionLost, match="closed by the peer"):
            await refused


async def test_case_46_without_confirm_the_end_is_seen_and_what_follows_is_safe(peer: Peer) -> None:
    bad = PartitionBatch(P0, [], encoded=encode_set([b"bad"])[:-1] + b"!")
    async with running(peer) as api:
        assert await api.produce([bad], acks=0) is None  # it was written, that is all that is known
        await until(lambda: api.connection.state is State.IDLE)
        statistics = api.connection.statistics()
        assert (statistics.state, statistics.losses, statistics.last_error) == (State.IDLE, 1, "closed by the peer")
        # Not written into the dead connection:
        assert await api.produce([part(b"next")], acks=-1) is None
        assert stored(peer) == [b"next"]


# ---- fetch -------------------------------------------------------------------------------------------------


async def test_one_partition_is_a_fetch_and_many_are_a_multifetch(peer: Peer) -> None:
    peer.logs[P0] += LOG
    peer.logs[P1] += encode_set([b"other"])
    async with running(peer) as api:
        assert await fetch(api) == []
        zero, one = decoder(api), decoder(api, P1)
        (result,) = await fetch(api, (zero, 1000))
        assert (result.decoder, result.received, result.error) == (zero, len(LOG), None)
        results = await fetch(api, (one, 1000), (zero, 1000))
        assert [(each.decoder, each.received, each.error) for each in results] == [(one, 15, None), (zero, 0, None)]
        assert (list(zero.take().values), list(one.take().values)) == (WORDS, [b"other"])
        assert peer.requests == [
            Fetch("t", 0, 0, 1000),
            MultiFetch((Fetch("t", 1, 0, 1000), Fetch("t", 0, len(LOG), 1000))),
        ]


async def test_a_partial_tail_is_kept_on_a_connection_and_dropped_with_it(peer: Peer) -> None:
    peer.logs[P0] += LOG
    async with running(peer) as api:
        reader = decoder(api)
        await fetch(api, (reader, 20))
        assert (reader.position, reader.fetch_position) == (0, 20)
        assert list(reader.take().values) == [b"one"]
        await fetch(api, (reader, 2))
        assert (reader.position, reader.fetch_position) == (13, 22)
        peer.reply_bytes = 0
        await outcome(api.positions(P1, LATEST))  # the connection is lost
        await fetch(api, (reader, 1000))
        assert [request.offset for request in peer.requests if isinstance(request, Fetch)] == [0, 20, 13]
        assert list(reader.take().values) == WORDS[1:]


async def test_a_tail_of_another_connection_is_dropped(peer: Peer) -> None:
    peer.logs[P0] += LOG
    reader = MessageSetDecoder(P0, Position(0), DecoderOptions())
    reader.feed(memoryview(LOG)[:20])
    reader.take()
    async with running(peer) as api:
        await fetch(api, (reader, 1000))
        assert peer.requests == [Fetch("t", 0, 13, 1000)]
        assert list(reader.take().values) == WORDS[1:]


async def test_a_tail_that_another_client_has_fed_since_is_dropped(peer: Peer) -> None:
    peer.logs[P0] += LOG
    async with running(peer) as api:
        reader = decoder(api)
        await fetch(api, (reader, 5))
        assert (reader.position, reader.fetch_position) == (0, 5)
        reader.source = object()
        await fetch(api, (reader, 1000))
        assert [request.offset for request in peer.requests if isinstance(request, Fetch)] == [0, 0]
        assert list(reader.take().values) == WORDS


async def test_each_part_has_its_own_error(peer: Peer) -> None:
    peer.logs[P0] += LOG
    async with running(peer) as api:
        wants = [decoder(api), decoder(api, P1, 99), decoder(api, TopicPartition("t", 7, 1))]
        results = await fetch(api, *[(each, 100) for each in wants])
        errors = [each.error for each in results]
        assert [type(error) for error in errors] == [type(None), OffsetOutOfRange, BrokerError]
        assert errors[2] is not None and errors[2].refresh_metadata
        assert str(results[1].error).startswith("b:1: fetch t/1 from 99: OffsetOutOfRange (code 1)")
        (result,) = await fetch(api, (wants[1], 100))
        assert result.error is not None
        assert isinstance(result.error, OffsetOutOfRange)


async def test_more_bytes_than_were_asked_for_close_the_connection(peer: Peer) -> None:
    async with running(peer) as api:
        peer.handle = lambda request: encode_fetch(0, b"x" * 11)  # type: ignore[method-assign]
        assert await outcome(fetch(api, (decoder(api), 10))) == (RemoteProtocolError, True)
        assert api.connection.state is State.IDLE
        assert api.connection.statistics().attempts == 1, "it backs off before it connects again"


@pytest.mark.parametrize("reset", [False, True])
async def test_a_fetch_cancelled_at_every_byte_feeds_nothing_twice_and_nothing_late(reset: bool) -> None:
    total = 6 + len(LOG)
    for brake in range(total + 1):
        peer = Peer()
        peer.logs[P0] += LOG
        peer.reply_brake = brake
        async with running(peer) as api:
            reader = decoder(api)
            async with anyio.create_task_group() as group:
                group.start_soon(partial(fetch, api, (reader, 1000)))
                await peer.braked.wait()
                await received(api, brake)
                neighbour = api.produce([part(b"n", partition=P1)], acks=-1)
                group.cancel_scope.cancel()
            seen = list(reader.take().values)
            if reset:
                reader.reset(Position(0))
                seen = []
            async with anyio.create_task_group() as group:
                group.start_soon(partial(fetch, api, (reader, 1000)))  # waits behind what is still to come of the first
                await until(lambda: api.connection.statistics().requests == 3)
                peer.release.set()
            assert seen + list(reader.take().values) == WORDS, brake
            assert reader.fetch_position == total - 6
            assert await neighbour is None
            assert api.connection.statistics().connects == 1


async def test_a_fetch_that_is_cancelled_before_it_is_sent_is_withdrawn(peer: Peer) -> None:
    peer.logs[P0] += LOG
    async with running(peer) as client:
        decoder = client.decoder(P0, Position(0), DecoderOptions())
        with anyio.CancelScope() as scope:
            scope.cancel()  # the connection is not open yet
            await fetch(client, (decoder, 10))
        assert scope.cancelled_caught
        await fetch(client, (decoder, 1000))
    assert peer.requests == [Fetch(P0.topic, P0.partition, 0, 1000)]


async def test_a_decoder_reset_while_its_fetch_is_under_way_takes_no_stale_byte(peer: Peer) -> None:
    peer.logs[P0] += LOG
    for brake in range(6, 6 + len(LOG)):
        peer.reply_brake, peer.release = brake, anyio.Event()
        async with running(peer) as api:
            reader = decoder(api)
            async with anyio.create_task_group() as group:
                group.start_soon(partial(fetch, api, (reader, 1000)))
                await received(api, brake)
                reader.reset(Position(26))
                peer.release.set()
            # 26 is where the reply would have gone on when it was stopped behind 26 bytes: then they are not stale.
            assert reader.fetch_position == (len(LOG) if brake == 6 + 26 else 26)
            await fetch(api, (reader, 1000))
            assert list(reader.take().values) == WORDS[2:]


# ---- positions ---------------------------------------------------------------------------------------------


async def test_positions_ask_for_an_anchor_or_a_time(peer: Peer) -> None:
    peer.logs[P0] += LOG
    async with running(peer) as api:
        assert await api.positions(P0, LATEST) == [len(LOG)]
        assert await api.positions(P0, EARLIEST, count=5) == [len(LOG), 0]
        for seconds in (1234.5678, 0.0, -0.001, -0.002, float("inf")):
            await api.positions(P0, AtTime(seconds))
        times = [request.time for request in peer.requests if isinstance(request, Offsets)]
        assert times == [-1, -2, 1_234_567, 0, 0, 0, 1 << 62]
        with pytest.raises(ConfigError, match="count"):
            await api.positions(P0, LATEST, count=0)


async def test_a_partition_the_broker_does_not_have_is_named(peer: Peer) -> None:
    async with running(peer) as api:
        with pytest.raises(ConnectionLost, match=r"offsets of t/1-7.*cannot exist") as caught:
            await api.positions(TopicPartition("t", 7, 1), LATEST)
        assert caught.value.sent
        peer.refusal = Unreachable("tcp", "b:1", "refused")
        with pytest.raises(Unreachable):
            await api.positions(P0, LATEST)


async def test_a_position_request_that_was_not_sent_blames_no_partition() -> None:
    async def hang(host: str, port: int, timeout: float) -> ByteStream:
        await anyio.sleep_forever()
        raise AssertionError

    async with Connection("b", 1, connect=hang) as connection:
        api = Kafka07BrokerClient(Broker(1, "b", 1), connection)

        async def ask() -> None:
            with pytest.raises(ConnectionLost, match=r"closed by this client; the request was not sent$"):
                await api.positions(P0, LATEST)

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await until(lambda: connection.state is State.CONNECTING)
            await connection.aclose()


async def test_repr_is_one_line(peer: Peer) -> None:
    async with running(peer) as api:
        assert repr(api) == "<Kafka07BrokerClient broker 1 <Connection b:1 idle, 0 in flight, 0 queued>>"
