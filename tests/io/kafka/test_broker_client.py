"""The data requests of one broker, against a scripted one that speaks real bytes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.io.kafka.scripted_broker import T0, T1, TOPIC_ID, ScriptedBroker, names, routing, running, versions

from odradek.core.interfaces import DecoderOptions, PartitionBatch, PartitionFetch, ProducerRecord
from odradek.core.kafka.leader_epochs import LeaderEpochs
from odradek.core.kafka.producer_state import ProducerIdentity, Stamp
from odradek.core.kafka.versions import BrokerVersions, VersionRange
from odradek.errors import (
    BrokerError,
    ConfigError,
    ConnectionLost,
    LogTruncated,
    MessageTooLarge,
    OdradekError,
    OffsetOutOfRange,
    RemoteProtocolError,
)
from odradek.io.kafka.broker_client import BrokerClientSettings, KafkaBrokerClient
from odradek.io.kafka.log_access import KafkaLogAccess
from odradek.io.kafka.log_decoder import KafkaLogDecoder, decoder_of
from odradek.types import EARLIEST, LATEST, AtTime, Broker, Position, PositionSpec, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    ProduceResponse,
)
from odradek.wire.kafka.records.encode import encode_batch

pytestmark = pytest.mark.anyio

BEFORE_2_7 = BrokerVersions({**versions(8, 11, 5).offered, 3: VersionRange(0, 9)})

RELEASES: dict[str, BrokerVersions] = {
    "0.8": versions(0, 0),
    "0.9": versions(1, 1),
    "0.10.0": versions(2, 2),
    "0.10.1": versions(2, 3, 1),
    "0.11": versions(3, 5, 2),
    "2.1": versions(7, 10, 4),
    "2.8": versions(9, 12, 6),
    "3.1": versions(9, 13, 7),
    "4.1": versions(13, 18, 10),
}
NEWEST = RELEASES["4.1"]
every_release = pytest.mark.parametrize("release", RELEASES)


def batch(*values: bytes | None, where: TopicPartition = T0, **more: Any) -> PartitionBatch:
    return PartitionBatch(where, [ProducerRecord(value) for value in values], **more)


def fetch_of(
    client: KafkaBrokerClient, where: TopicPartition = T0, position: int = 0, max_bytes: int = 1 << 20, **options: Any
) -> PartitionFetch:
    return PartitionFetch(client.decoder(where, Position(position), DecoderOptions(**options)), max_bytes)


def taken(*fetches: PartitionFetch) -> list[str | None]:
    return [name for fetch in fetches for name in names(fetch.decoder.take().values)]


async def outcome(client: KafkaBrokerClient, *batches: PartitionBatch, acks: int = -1) -> Any:
    """Results, or the error as (type, sent)."""
    try:
        with anyio.fail_after(20):
            return await client.produce(batches, acks=acks)
    except OdradekError as error:
        return type(error), error.sent


# ---- produce ------------------------------------------------------------------------------------------------


@every_release
@pytest.mark.parametrize("topic_id", [bytes(16), TOPIC_ID], ids=["by name", "by id"])
async def test_what_is_produced_is_fetched_on_every_release(release: str, topic_id: bytes) -> None:
    broker = ScriptedBroker(RELEASES[release])
    async with running(broker, topic_id=topic_id) as client:
        results = await client.produce([batch(b"a", b"b"), batch(b"c", where=T1)], acks=-1)
        assert [(r.partition, r.error, r.position) for r in results] == [(T0, None, 0), (T1, None, 0)]
        assert (await client.produce([batch(b"d")], acks=1))[0].position == 2
        fetches = [fetch_of(client), fetch_of(client, T1)]
        await client.fetch(fetches)
        assert taken(*fetches) == ["a", "b", "d", "c"]
        assert [fetch.high_watermark for fetch in fetches] == [3, 1]
        assert [fetch.decoder.position for fetch in fetches] == [3, 1]


@pytest.mark.parametrize("count", [1, 2])
async def test_small_batches_are_encoded_at_once_and_sent_again_as_they_are(count: int) -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker) as client:
        batches = [batch(b"a", b"b"), batch(b"c", where=T1)][:count]
        pending = client.produce_plain(batches, acks=-1, max_message_bytes=1000)
        assert pending is not None
        results = [(T0, None, 0), (T1, None, 0)][:count]
        assert [(r.partition, r.error, r.position) for r in await pending] == results
        once = [each.encoded for each in batches]
        assert None not in once
        assert client.produce_plain(batches, acks=-1, max_message_bytes=1000) is None
        await client.produce(batches, acks=-1)
        assert [each.encoded for each in batches] == once


async def test_what_a_broker_would_refuse_is_encoded_one_by_one() -> None:
    async with running(ScriptedBroker(NEWEST)) as client:
        batches = [batch(b"a"), batch(b"b" * 100, where=T1)]
        assert client.produce_plain(batches, acks=-1, max_message_bytes=100) is None
        assert client.connection.connection.statistics().requests == 0
        assert [each.encoded for each in batches] == [None, None]


@every_release
async def test_without_acknowledgement_a_result_comes_when_the_bytes_are_written(release: str) -> None:
    broker = ScriptedBroker(RELEASES[release])
    async with running(broker) as client:
        assert await outcome(client, batch(b"a"), acks=0) is None
        assert (await client.produce([batch(b"b")], acks=-1))[0].position == 1


async def test_a_produce_of_nothing_proves_that_the_broker_answers() -> None:
    async with running(ScriptedBroker(NEWEST)) as client:
        assert await client.produce([], acks=-1) == []


async def test_results_are_called_back_in_order_and_can_be_taken_back_while_they_wait() -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker) as client:
        order: list[int] = []
        pending = [client.produce([batch(b"%d" % n)], acks=-1) for n in range(3)]
        for n, each in enumerate(pending):
            each.add_done_callback(lambda n=n: order.append(n))  # type: ignore[misc]  # mypy cannot infer it
        assert pending[2].withdraw()
        assert (await pending[1])[0].position == 1
        assert pending[0].done and pending[0].result() is pending[0].result()
        assert order == [0, 1]
        assert not pending[0].withdraw()


async def test_an_error_of_one_partition_leaves_the_others() -> None:
    async with running(ScriptedBroker(NEWEST)) as client:
        good, bad = await client.produce([batch(b"a"), batch(b"b", where=TopicPartition("t", 7))], acks=-1)
        assert good.error is None
        assert isinstance(bad.error, BrokerError) and bad.error.refresh_metadata


async def test_a_partition_that_the_broker_leaves_out_has_no_outcome() -> None:
    broker = ScriptedBroker(NEWEST)
    broker.answers[ProduceRequest] = lambda request, version: ProduceResponse()
    async with running(broker) as client:
        (result,) = await client.produce([batch(b"a")], acks=-1)
        assert isinstance(result.error, RemoteProtocolError) and result.error.sent


async def test_a_batch_leaves_in_the_format_of_the_connection_and_with_its_stamp() -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker) as client:
        made = batch(b"a", stamp=Stamp(T0, ProducerIdentity(7, 1), 5, 1))
        client.encode(made, 1000)
        first = made.encoded
        made.stamp = Stamp(T0, ProducerIdentity(7, 2), 0, 1)
        client.encode(made, 1000)
        assert made.encoded is first
        await client.produce([made], acks=-1)
        sent = broker.requests[0][0].topic_data[0].partition_data[0].records
        assert bytes(sent)[43:57] == (7).to_bytes(8, "big") + (2).to_bytes(2, "big") + bytes(4)


async def test_batches_are_grouped_by_topic_under_the_transactional_id_of_their_stamps() -> None:
    broker = ScriptedBroker(NEWEST)
    identity = ProducerIdentity(7, 3, "tx")
    partitions = (T0, TopicPartition("u", 3), T1)
    async with running(broker) as client:
        await client.produce(
            [batch(b"v", where=where, stamp=Stamp(where, identity, 0, 1)) for where in partitions], acks=-1
        )
    request, _ = broker.requests[0]
    assert [(topic.name, [part.index for part in topic.partition_data]) for topic in request.topic_data] == [
        ("t", [0, 1]),
        ("u", [3]),
    ]
    assert request.transactional_id == "tx"


async def test_a_batch_that_is_too_large_is_not_sent() -> None:
    async with running(ScriptedBroker(NEWEST)) as client:
        with pytest.raises(MessageTooLarge, match="max_message_bytes"):
            client.encode(batch(bytes(1000)), 1000)


async def test_a_produce_reply_cut_anywhere_is_a_lost_connection_and_the_next_one_works() -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker) as client:
        await client.produce([batch(b"x")], acks=-1)
        for cut in range(broker.reply_sizes[0]):
            broker.cut = cut
            before = client.incarnation
            assert await outcome(client, batch(b"a")) == (ConnectionLost, True)
            assert client.incarnation > before
        assert (await client.produce([batch(b"y")], acks=-1))[0].position == broker.reply_sizes[0] + 1


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 40, b"\x7f\xff\xff\xff" * 10, bytes(500)], ids=["short", "ff", "many", "long"]
)
async def test_bytes_that_are_no_answer_to_a_produce_leave_its_outcome_open(content: bytes) -> None:
    broker = ScriptedBroker(NEWEST)
    broker.answers[ProduceRequest] = lambda request, version: content
    async with running(broker) as client:
        assert await outcome(client, batch(b"a")) in [(RemoteProtocolError, True), (ConnectionLost, True)]
        broker.answers.clear()
        assert (await client.produce([batch(b"b")], acks=-1))[0].error is None


# ---- fetch --------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@every_release
@pytest.mark.parametrize("defer", [False, True])
async def test_a_fetch_reply_cut_anywhere_keeps_what_was_decoded_and_continues_behind_it(
    release: str, defer: bool
) -> None:
    broker = ScriptedBroker(RELEASES[release])
    async with running(broker) as client:
        compression = "gzip" if RELEASES[release].has_timestamps else "none"  # a 0.9 broker would compress again
        for value in (b"a", b"b", b"c"):
            await client.produce([batch(value, compression=compression)], acks=-1)
        whole = fetch_of(client, defer_decompression=defer)
        await client.fetch([whole])
        whole.decompress()
        assert taken(whole) == ["a", "b", "c"]
        for cut in range(broker.reply_sizes[-1]):
            broker.cut = cut
            first = fetch_of(client, defer_decompression=defer)
            with pytest.raises(ConnectionLost):
                await client.fetch([first])
            first.decompress()
            again = PartitionFetch(first.decoder, 1 << 20)
            before = taken(first)
            await client.fetch([again])
            again.decompress()
            assert before + taken(again) == ["a", "b", "c"], cut


@every_release
async def test_a_message_larger_than_the_limit_is_fetched_with_a_higher_one(release: str) -> None:
    broker = ScriptedBroker(RELEASES[release])
    async with running(broker) as client:
        await client.produce([batch(b"a" * 500)], acks=-1)
        decoder = fetch_of(client, max_bytes=100).decoder
        for _ in range(2):
            await client.fetch([PartitionFetch(decoder, 100)])
        assert len(decoder.take().values) == 1
        assert decoder.pending_bytes == 0


@every_release
async def test_a_message_larger_than_allowed_is_an_error_that_says_what_to_raise(release: str) -> None:
    broker = ScriptedBroker(RELEASES[release])
    async with running(broker) as client:
        await client.produce([batch(b"a" * 500)], acks=-1)
        fetch = fetch_of(client, max_bytes=100, max_message_bytes=300)
        await client.fetch([fetch])
        error = fetch.decoder.error
        assert isinstance(error, MessageTooLarge) and error.option == "max_message_bytes"


@every_release
async def test_a_fetch_has_the_size_of_the_entry_of_which_only_a_part_has_come(release: str) -> None:
    broker = ScriptedBroker(RELEASES[release])
    async with running(broker) as client:
        for value in (b"a" * 500, b"b" * 700):
            await client.produce([batch(value)], acks=-1)
        whole = fetch_of(client, max_bytes=10_000)
        await client.fetch([whole])
        assert whole.next_entry_bytes == 0
        part = fetch_of(client, max_bytes=whole.received - 100)
        await client.fetch([part])
        rest = PartitionFetch(part.decoder, part.next_entry_bytes)
        await client.fetch([rest])
        assert (rest.received, rest.next_entry_bytes) == (part.next_entry_bytes, 0)
        assert part.next_entry_bytes > 700 and len(part.decoder.take().values) == 2


class Crowded(ScriptedBroker):
    """Gives a batch that is larger than what was asked for only if no other partition has records in the response."""

    has_records = False

    def fetch(self, request: FetchRequest, version: int) -> FetchResponse:
        self.has_records = False
        return super().fetch(request, version)

    def read(self, topic: str, part: FetchPartition, version: int) -> FetchPartitionData:
        data = super().read(topic, part, version)
        if version >= 3 and self.has_records and len(data.records or b"") > part.partition_max_bytes:
            return FetchPartitionData(partition_index=part.partition, high_watermark=data.high_watermark, records=b"")
        self.has_records |= bool(data.records)
        return data


@every_release
async def test_a_partition_whose_batch_had_no_space_is_left_out_from_0_10_1_on(release: str) -> None:
    can = RELEASES[release]
    broker = Crowded(can)
    async with running(broker) as client:
        await client.produce([batch(b"a" * 500), batch(b"b" * 500, where=T1)], acks=-1)
        first, second = fetch_of(client, max_bytes=100), fetch_of(client, T1, max_bytes=100)
        await client.fetch([first, second])
        assert (first.left_out, second.left_out) == (False, can.has_whole_first_message)
        assert (second.received, second.error) == (0 if can.has_whole_first_message else 100, None)
        (again, other) = PartitionFetch(second.decoder, 100), PartitionFetch(first.decoder, 100)
        await client.fetch([again, other])
        assert not again.left_out and not other.left_out
        await client.fetch([PartitionFetch(second.decoder, 100)])
        assert len(second.decoder.take().values) == 1


@pytest.mark.parametrize(
    ("answer", "records", "isolation", "expected"),
    [
        ({"high_watermark": 1}, b"", "read_uncommitted", True),
        ({"high_watermark": 1, "last_stable_offset": 0}, b"", "read_uncommitted", True),
        ({"high_watermark": 1, "last_stable_offset": 0}, b"", "read_committed", False),
        ({"high_watermark": 2, "last_stable_offset": 1}, b"", "read_committed", True),
        ({"high_watermark": 0}, b"", "read_uncommitted", False),
        ({"high_watermark": -1, "error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}, b"", "read_uncommitted", False),
        ({"high_watermark": 1, "error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}, b"", "read_uncommitted", False),
        ({"high_watermark": 1, "preferred_read_replica": 2}, b"", "read_uncommitted", False),
        ({"high_watermark": 1}, bytes(100), "read_uncommitted", False),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
async def test_a_partition_is_left_out_only_if_it_has_more_and_nothing_is_wrong(
    answer: dict[str, Any], records: bytes, isolation: str, expected: bool
) -> None:
    class Answering(ScriptedBroker):
        def read(self, topic: str, part: FetchPartition, version: int) -> FetchPartitionData:
            if part.partition == T0.partition:
                return super().read(topic, part, version)
            return FetchPartitionData(partition_index=part.partition, records=records, **answer)

    broker = Answering(NEWEST)
    async with running(broker) as client:
        await client.produce([batch(b"a")], acks=-1)
        options = {"read_committed": isolation == "read_committed"}
        for position in (0, 1):  # there are records of the other partition, and there are none
            fetch = fetch_of(client, T1, **options)
            await client.fetch([fetch_of(client, T0, position, **options), fetch])
            assert fetch.left_out == (expected and position == 0)


async def test_records_before_the_position_are_left_out() -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker) as client:
        await client.produce([batch(b"a", b"b", b"c")], acks=-1)
        fetch = fetch_of(client, position=1)
        await client.fetch([fetch])
        assert taken(fetch) == ["b", "c"]


async def test_fetching_nothing_sends_nothing() -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker) as client:
        await client.fetch([])
    assert broker.requests == []


def answers(broker: ScriptedBroker, **fields: Any) -> None:
    """The broker answers every fetch like this."""

    def answer(request: FetchRequest, version: int) -> FetchResponse:
        data = FetchPartitionData(partition_index=0, **fields)
        return FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=(data,)),))

    broker.answers[FetchRequest] = answer


@pytest.mark.parametrize(
    ("code", "kind", "retriable", "refresh"),
    [
        (ErrorCode.OFFSET_OUT_OF_RANGE, OffsetOutOfRange, False, False),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, BrokerError, True, True),
        (ErrorCode.FENCED_LEADER_EPOCH, BrokerError, True, True),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, BrokerError, True, True),
        (ErrorCode.OFFSET_NOT_AVAILABLE, BrokerError, True, True),
        (ErrorCode.UNKNOWN_SERVER_ERROR, BrokerError, True, False),
        (ErrorCode.CORRUPT_MESSAGE, BrokerError, False, False),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, BrokerError, False, False),
    ],
)
async def test_an_error_of_a_partition_says_what_to_do(
    code: int, kind: type[OdradekError], retriable: bool, refresh: bool
) -> None:
    broker = ScriptedBroker(NEWEST)
    answers(broker, error_code=code)
    async with running(broker) as client:
        fetch = fetch_of(client)
        await client.fetch([fetch])
        assert type(fetch.error) is kind
        assert fetch.error is not None
        assert (fetch.error.retriable, fetch.error.refresh_metadata) == (retriable, refresh)


async def test_a_truncated_log_is_reported_with_its_end() -> None:
    broker = ScriptedBroker(NEWEST)
    answers(broker, diverging_epoch=FetchEpochEndOffset(epoch=3, end_offset=2), records=encode_batch([b"no"]))
    async with running(broker) as client:
        fetch = fetch_of(client, position=5)
        await client.fetch([fetch])
        assert isinstance(fetch.error, LogTruncated)
        assert (fetch.error.position, fetch.error.end, fetch.error.leader_epoch) == (5, 2, 3)
        assert taken(fetch) == []


async def test_a_replica_that_is_behind_its_leader_is_left() -> None:
    broker = ScriptedBroker(NEWEST)
    answers(broker, diverging_epoch=FetchEpochEndOffset(epoch=3, end_offset=2), high_watermark=2)
    async with running(broker) as client:
        client.broker = Broker(2, "b", 9092)  # the other one leads
        fetch = fetch_of(client, position=5)
        await client.fetch([fetch])
        assert isinstance(fetch.error, BrokerError) and not isinstance(fetch.error, OffsetOutOfRange)
        assert fetch.error.code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert fetch.error.retriable and fetch.error.refresh_metadata


async def test_the_epoch_of_the_last_record_is_sent_to_detect_truncation() -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker, epoch=6) as client:
        entry = bytearray(encode_batch([b"a"]))
        entry[12:16] = (4).to_bytes(4, "big")
        broker.logs[T0].add(0, bytes(entry))
        fetch = fetch_of(client)
        await client.fetch([fetch])
        await client.fetch([PartitionFetch(fetch.decoder, 100)])
        sent = [request.topics[0].partitions[0] for request, _ in broker.requests]
        assert [(part.current_leader_epoch, part.last_fetched_epoch) for part in sent] == [(6, -1), (6, 4)]


@pytest.mark.parametrize(("end", "error"), [(1, LogTruncated), (2, None), (-1, OffsetOutOfRange)])
async def test_before_2_7_the_client_asks_a_new_leader_whether_it_has_what_was_read(
    end: int, error: type[OdradekError] | None
) -> None:
    """-1: its epochs do not reach that of what was read. The log is another one."""
    can = BrokerVersions({**versions(8, 11, 5).offered, 3: VersionRange(0, 9)})
    broker = ScriptedBroker(can)
    broker.epoch_end = end
    entry = bytearray(encode_batch([b"a", b"b"]))
    entry[12:16] = (4).to_bytes(4, "big")
    broker.logs[T0].add(0, bytes(entry), 2)
    async with running(broker, epoch=6) as client:
        first = fetch_of(client)
        await client.fetch([first, fetch_of(client, T1)])
        again = PartitionFetch(first.decoder, 100)
        await client.fetch([again, fetch_of(client, T1)])
        asked = [request for request, _ in broker.requests if isinstance(request, OffsetForLeaderEpochRequest)]
        (partition,) = asked[0].topics[0].partitions
        assert (partition.partition, partition.current_leader_epoch, partition.leader_epoch) == (0, 6, 4)
        assert again.error is None if error is None else type(again.error) is error
        await client.fetch([PartitionFetch(first.decoder, 100)])
        requests = [request for request, _ in broker.requests if isinstance(request, OffsetForLeaderEpochRequest)]
        assert len(requests) == (1 if error is None else 2)


async def test_before_2_7_no_replica_is_asked_whether_it_has_what_was_read() -> None:
    """It would refuse, before every fetch: only the leader compares."""
    broker = ScriptedBroker(BrokerVersions({**versions(8, 11, 5).offered, 3: VersionRange(0, 9)}))
    broker.logs[T0].add(0, of_epoch(4, b"a", b"b"), 2)
    async with running(broker, epoch=6) as client:
        client.broker = Broker(2, "b", 9092)  # the other one leads
        first = fetch_of(client)
        await client.fetch([first])
        await client.fetch([PartitionFetch(first.decoder, 100)])
        assert [type(request) for request, _ in broker.requests] == [FetchRequest, FetchRequest]


def of_epoch(epoch: int, *values: bytes, compression: CompressionType = CompressionType.NONE) -> bytes:
    """Return a batch as the leader of this epoch stores it."""
    entry = bytearray(encode_batch(values, compression=compression))
    entry[12:16] = epoch.to_bytes(4, "big")
    return bytes(entry)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
@pytest.mark.parametrize("defer", [False, True])
async def test_each_record_that_is_delivered_has_its_own_epoch_wherever_the_reply_is_cut(
    compression: CompressionType, defer: bool
) -> None:
    """The first reply of a new leader is cut: what it brought is committed with the epoch of its own batches."""
    broker = ScriptedBroker(NEWEST)
    for epoch, values in ((3, [b"a", b"b"]), (4, [b"c"]), (4, [b"d", b"e"])):
        broker.logs[T0].add(broker.logs[T0].end, of_epoch(epoch, *values, compression=compression), len(values))
    written = [3, 3, 4, 4, 4]
    broker.logs[T1].add(0, encode_batch([bytes(100)]))
    epochs = LeaderEpochs()
    async with running(broker, epoch=6, epochs=epochs) as client:
        await client.fetch([fetch_of(client), fetch_of(client, T1)])
        size, seen = broker.reply_sizes[-1], set()
        for cut in range(size):
            broker.cut = cut
            fetch, epochs._read = fetch_of(client, defer_decompression=defer), {}
            with pytest.raises(ConnectionLost):
                await client.fetch([fetch, fetch_of(client, T1)])
            fetch.decompress()
            delivered = len(fetch.decoder.take().values)
            seen.add(delivered)
            assert [epochs.before(T0, n + 1) for n in range(5)] == (written[:delivered] + 5 * [-1])[:5], cut
        assert seen == {0, 2, 3, 5}


async def test_what_is_read_behind_a_hole_does_not_give_its_epoch_to_what_was_not_read() -> None:
    broker, epochs = ScriptedBroker(NEWEST), LeaderEpochs()
    broker.logs[T0].add(0, of_epoch(3, b"a"))
    broker.logs[T0].add(1, of_epoch(5, b"b"))
    async with running(broker, epoch=6, epochs=epochs) as client:
        fetch = fetch_of(client, position=1)
        await client.fetch([fetch])
        fetch.decoder.take()
    assert [epochs.before(T0, position) for position in (0, 1, 2, 3)] == [-1, -1, 5, -1]


def committed(position: int, epoch: int) -> LeaderEpochs:
    epochs = LeaderEpochs()
    epochs.record_committed(T0, position, epoch)
    return epochs


async def test_the_epoch_of_a_committed_position_is_sent_to_detect_truncation() -> None:
    broker = ScriptedBroker(NEWEST)
    answers(broker, diverging_epoch=FetchEpochEndOffset(epoch=3, end_offset=2))
    async with running(broker, epoch=6, epochs=committed(5, 4)) as client:
        elsewhere, first = fetch_of(client, position=4), fetch_of(client, position=5)
        await client.fetch([elsewhere])
        await client.fetch([first])
        assert isinstance(first.error, LogTruncated)
        assert (first.error.position, first.error.end, first.error.leader_epoch) == (5, 2, 3)
        await client.fetch([fetch_of(client, position=5)])
        sent = [request.topics[0].partitions[0].last_fetched_epoch for request, _ in broker.requests]
        assert sent == [-1, 4, -1]


async def test_a_truncated_log_moves_no_position_forward() -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker, epoch=6) as client:
        entry = bytearray(encode_batch([b"a"]))
        entry[12:16] = (4).to_bytes(4, "big")
        broker.logs[T0].add(0, bytes(entry))
        fetch = fetch_of(client)
        await client.fetch([fetch])
        answers(broker, diverging_epoch=FetchEpochEndOffset(epoch=3, end_offset=9))
        after = PartitionFetch(fetch.decoder, 100)
        await client.fetch([after])
        assert isinstance(after.error, LogTruncated) and after.error.end == 1


async def test_a_committed_epoch_without_records_is_no_truncated_log() -> None:
    """A consumer in Java commits the end with the epoch of the leader, which may have written nothing until the next
    leader came. That one names the end of an earlier epoch, which is the position."""
    broker, epochs = ScriptedBroker(NEWEST), committed(5, 4)
    answers(broker, diverging_epoch=FetchEpochEndOffset(epoch=3, end_offset=5))
    async with running(broker, epoch=6, epochs=epochs) as client:
        first = fetch_of(client, position=5)
        await client.fetch([first])
        assert first.error is None
        await client.fetch([PartitionFetch(first.decoder, 100)])
        await client.fetch([fetch_of(client, position=5)])
        sent = [request.topics[0].partitions[0].last_fetched_epoch for request, _ in broker.requests]
        assert sent == [4, 3, 3]


async def test_an_older_leader_than_that_of_a_committed_position_is_not_asked_about_it() -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker, epoch=3, epochs=committed(5, 4)) as client:
        await client.fetch([fetch_of(client, position=5)])
        ((request, _),) = broker.requests
        assert request.topics[0].partitions[0].last_fetched_epoch == -1


@pytest.mark.parametrize(("end", "lost"), [(4, True), (5, False), (-1, False)])
async def test_before_2_7_the_client_asks_whether_the_log_has_what_was_committed(end: int, lost: bool) -> None:
    broker = ScriptedBroker(BEFORE_2_7)
    broker.epoch_end = end
    broker.logs[T0].add(0, of_epoch(3, b"a"), 5)
    async with running(broker, epoch=6, epochs=committed(5, 4)) as client:
        fetch = fetch_of(client, position=5)
        await client.fetch([fetch])
        (asked,) = [request for request, _ in broker.requests if isinstance(request, OffsetForLeaderEpochRequest)]
        assert asked.topics[0].partitions[0].leader_epoch == 4
        assert isinstance(fetch.error, LogTruncated) == (fetch.error is not None) == lost


async def decoder_at_the_end(can: BrokerVersions, epochs: LeaderEpochs) -> KafkaLogDecoder:
    """A decoder that begins at offset 5, where the log of the leader of epoch 4 ends, and finds nothing there."""
    broker = ScriptedBroker(can)
    broker.logs[T0].add(0, of_epoch(3, b"a"), 5)
    broker.named_epoch = 4
    async with running(broker, epoch=4, epochs=epochs) as client:
        fetch = fetch_of(client, position=await client.resolve_position(T0, LATEST))
        await client.fetch([fetch])
        assert fetch.error is None
        assert epochs_compared(broker) == [-1]
    return decoder_of(fetch)


def epochs_compared(broker: ScriptedBroker) -> list[int]:
    """The epoch that the broker is asked to compare with its log in each request: -1 for none."""
    return [
        request.topics[0].partitions[0].last_fetched_epoch
        if isinstance(request, FetchRequest)
        else request.topics[0].partitions[0].leader_epoch
        for request, _ in broker.requests
        if isinstance(request, FetchRequest | OffsetForLeaderEpochRequest)
    ]


@pytest.mark.parametrize("end", [2, 5], ids=["truncated", "whole"])
async def test_the_next_leader_is_asked_whether_it_has_the_log_up_to_the_end_that_was_named(end: int) -> None:
    """A reader that begins at the end has read nothing yet: a log that was cut before it and has grown past it since
    would be read on as if nothing had been lost. A leader that wrote nothing leaves no epoch in the log: the leader
    after the next one is asked about the one before it."""
    epochs = LeaderEpochs()
    decoder = await decoder_at_the_end(NEWEST, epochs)
    broker = ScriptedBroker(NEWEST)
    answers(broker, diverging_epoch=FetchEpochEndOffset(epoch=3, end_offset=end))
    async with running(broker, epoch=6, epochs=epochs) as client:
        first = PartitionFetch(decoder, 100)
        await client.fetch([first])
        assert isinstance(first.error, LogTruncated) == (end == 2)
        await client.fetch([fetch_of(client, position=5)])
        assert epochs_compared(broker) == [4, -1 if end == 2 else 3]
    if end == 5:
        broker = ScriptedBroker(NEWEST)
        answers(broker, diverging_epoch=FetchEpochEndOffset(epoch=2, end_offset=2))
        async with running(broker, epoch=7, epochs=epochs) as client:
            after = PartitionFetch(decoder, 100)
            await client.fetch([after])
            assert epochs_compared(broker) == [3]
            assert isinstance(after.error, LogTruncated) and after.error.end == 2


@pytest.mark.parametrize("end", [2, 5, -1], ids=["truncated", "whole", "without epochs"])
async def test_before_2_7_the_next_leader_is_asked_where_the_epoch_of_the_end_ends(end: int) -> None:
    epochs = LeaderEpochs()
    decoder = await decoder_at_the_end(BEFORE_2_7, epochs)
    broker = ScriptedBroker(BEFORE_2_7)
    broker.epoch_end = end
    broker.logs[T0].add(0, of_epoch(3, b"a"), 5)
    async with running(broker, epoch=6, epochs=epochs) as client:
        first = PartitionFetch(decoder, 100)
        await client.fetch([first])
        assert epochs_compared(broker)[0] == 4
        assert isinstance(first.error, LogTruncated) == (first.error is not None) == (end == 2)


@pytest.mark.parametrize("start", ["committed", "end"])
async def test_a_leader_without_epochs_has_nothing_to_compare(start: str) -> None:
    """It answers that the offset is out of range, as to one that is: the next answer tells the two apart."""
    epochs = committed(5, 4) if start == "committed" else LeaderEpochs()
    at_end = await decoder_at_the_end(NEWEST, LeaderEpochs())
    broker = ScriptedBroker(NEWEST)
    answers(broker, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    async with running(broker, epoch=6, epochs=epochs) as client:
        decoder = fetch_of(client, position=5).decoder if start == "committed" else at_end
        first, second = PartitionFetch(decoder, 100), PartitionFetch(decoder, 100)
        await client.fetch([first])
        assert first.error is None
        await client.fetch([second])
        assert type(second.error) is OffsetOutOfRange
        assert epochs_compared(broker) == [4, -1]


async def test_the_leader_that_an_answer_names_is_passed_on() -> None:
    broker = ScriptedBroker(NEWEST)
    leader = LeaderIdAndEpoch(leader_id=2, leader_epoch=5)
    answers(broker, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=leader)
    heard: list[tuple[Any, ...]] = []
    async with running(broker, on_leader=lambda *named: heard.append(named)) as client:
        await client.fetch([fetch_of(client)])
    assert heard == [(T0, 2, 5, ())]


async def test_the_preferred_replica_is_passed_on() -> None:
    broker = ScriptedBroker(NEWEST)
    answers(broker, preferred_read_replica=2)
    async with running(broker) as client:
        fetch = fetch_of(client)
        await client.fetch([fetch])
        assert (fetch.preferred_replica, fetch.error) == (2, None)


async def test_a_preferred_replica_that_is_not_known_yet_is_looked_up() -> None:
    """It has started since the metadata was read; its leader names it in every response, without records."""
    broker = ScriptedBroker(NEWEST)
    answers(broker, preferred_read_replica=3)
    async with running(broker) as client:
        fetch = fetch_of(client)
        await client.fetch([fetch])
        assert fetch.preferred_replica is None and fetch.error is not None
        assert fetch.error.retriable and fetch.error.refresh_metadata


IN_A_RACK = BrokerClientSettings(request_timeout_s=10.0, rack="r")


async def racks_of_the_next_fetches(client: KafkaBrokerClient, broker: ScriptedBroker) -> list[str]:
    """Return the racks in fetches of T0, T1, and both from their leader."""
    client.broker = Broker(1, "b", 9092)
    broker.answers.clear()
    broker.requests.clear()
    for partitions in ((T0,), (T1,), (T0, T1)):
        await client.fetch([fetch_of(client, partition) for partition in partitions])
    return [request.rack_id for request, _ in broker.requests]


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE]
)
async def test_after_an_error_of_a_replica_the_leader_sends_the_records_itself(code: ErrorCode) -> None:
    """With the rack it would name the replica again, such as one of a release before 2.4, and send no records."""
    broker = ScriptedBroker(NEWEST)
    answers(broker, error_code=code)
    async with running(broker, settings=IN_A_RACK) as client:
        client.broker = Broker(2, "b", 9092)  # the other one leads
        await client.fetch([fetch_of(client)])
        assert await racks_of_the_next_fetches(client, broker) == ["", "r", ""]


async def test_after_the_loss_of_a_replica_the_leader_sends_the_records_itself() -> None:
    broker = ScriptedBroker(NEWEST)
    broker.cut = 5
    async with running(broker, settings=IN_A_RACK) as client:
        client.broker = Broker(2, "b", 9092)  # the other one leads
        with pytest.raises(ConnectionLost):
            await client.fetch([fetch_of(client)])
        assert await racks_of_the_next_fetches(client, broker) == ["", "r", ""]


async def test_a_leader_that_prefers_a_replica_that_is_not_known_sends_the_records_itself() -> None:
    broker = ScriptedBroker(NEWEST)
    answers(broker, preferred_read_replica=3)
    async with running(broker, settings=IN_A_RACK) as client:
        await client.fetch([fetch_of(client)])
        assert await racks_of_the_next_fetches(client, broker) == ["", "r", ""]


async def test_errors_of_a_leader_leave_the_rack_in_its_requests() -> None:
    broker = ScriptedBroker(NEWEST)
    answers(broker, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    async with running(broker, settings=IN_A_RACK) as client:
        await client.fetch([fetch_of(client)])
        assert await racks_of_the_next_fetches(client, broker) == ["r", "r", "r"]


@pytest.mark.parametrize(("committed", "shown"), [(False, ["a", "b", "c"]), (True, ["b", "c"])])
async def test_records_of_aborted_transactions_are_left_out_on_request(committed: bool, shown: list[str]) -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker) as client:
        log = broker.logs[T0]
        log.add(0, encode_batch([b"a"], producer_id=7, is_transactional=True))
        log.add(1, encode_batch([b"b"], producer_id=8, is_transactional=True))
        log.add(2, encode_batch([b""], [bytes(4)], producer_id=7, is_transactional=True, is_control=True))
        log.add(3, encode_batch([b"c"]))
        answers(
            broker,
            records=log.read(0, 1 << 20, True),
            aborted_transactions=(AbortedTransaction(producer_id=7, first_offset=0),),
        )
        fetch = fetch_of(client, read_committed=committed)
        await client.fetch([fetch])
        assert taken(fetch) == shown
        assert fetch.decoder.position == 4
        assert broker.requests[0][0].isolation_level == committed


async def test_a_partition_that_was_not_asked_for_is_skipped() -> None:
    broker = ScriptedBroker(NEWEST)
    broker.answers[FetchRequest] = lambda request, version: FetchResponse(
        responses=(
            FetchableTopicResponse(
                topic="u", partitions=(FetchPartitionData(partition_index=0, records=encode_batch([b"x"])),)
            ),
            FetchableTopicResponse(
                topic="t",
                partitions=(
                    FetchPartitionData(partition_index=9, records=encode_batch([b"x"])),
                    FetchPartitionData(partition_index=0, records=encode_batch([b"a"])),
                    FetchPartitionData(partition_index=0, records=encode_batch([b"twice"], base_offset=1)),
                ),
            ),
        )
    )
    async with running(broker) as client:
        fetch = fetch_of(client)
        await client.fetch([fetch])
        assert taken(fetch) == ["a"]


async def test_what_began_before_topics_had_ids_is_fetched_by_id_once_they_have_them() -> None:
    """By name it would go on in the log of a topic that is made again after the upgrade."""
    broker = ScriptedBroker(NEWEST)
    async with running(broker) as client:
        decoder = fetch_of(client).decoder
        await client.fetch([PartitionFetch(decoder, 100)])
        upgraded = routing(TOPIC_ID, -1)
        client._routing = lambda: upgraded
        await client.fetch([PartitionFetch(decoder, 100)])
        upgraded = routing(b"n" * 16, -1)
        await client.fetch([PartitionFetch(decoder, 100)])
    assert [version for _, version in broker.requests] == [12, 18, 18]
    assert [request.topics[0].topic_id for request, _ in broker.requests[1:]] == [TOPIC_ID, TOPIC_ID]


async def test_an_answer_much_longer_than_asked_for_is_not_kept() -> None:
    broker = ScriptedBroker(NEWEST)
    entries = b"".join(encode_batch([bytes(100)], base_offset=n) for n in range(1000))
    answers(broker, records=entries)
    async with running(broker) as client:
        fetch = fetch_of(client, max_bytes=1000, max_message_bytes=1000)
        await client.fetch([fetch])
        assert fetch.received == len(entries)
        assert 0 < len(fetch.decoder.take().values) <= 2000 // 170


async def test_damaged_records_end_their_partition_alone() -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker) as client:
        good, bad = encode_batch([b"a"]), bytearray(encode_batch([b"b"]))
        bad[-1] ^= 1
        broker.logs[T0].add(0, bytes(bad))
        broker.logs[T1].add(0, good)
        fetches = [fetch_of(client), fetch_of(client, T1)]
        await client.fetch(fetches)
        assert fetches[0].decoder.error is not None
        assert taken(fetches[1]) == ["a"]


async def test_a_decoder_that_was_reset_takes_nothing_of_a_fetch_in_flight() -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker) as client:
        fetch = fetch_of(client)

        def answer(request: FetchRequest, version: int) -> FetchResponse:
            fetch.decoder.reset(Position(7))
            return broker.fetch(request, version)

        broker.logs[T0].append(encode_batch([b"a"]))
        broker.answers[FetchRequest] = answer
        await client.fetch([fetch])
        assert taken(fetch) == [] and fetch.decoder.position == 7


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 40, bytes(4) + b"\x7f\xff\xff\xff" * 10], ids=["short", "ff", "many"]
)
async def test_bytes_that_are_no_answer_end_the_connection_alone(content: bytes) -> None:
    broker = ScriptedBroker(NEWEST)
    broker.answers[FetchRequest] = lambda request, version: content
    async with running(broker) as client:
        with pytest.raises(RemoteProtocolError):
            await client.fetch([fetch_of(client)])
        broker.answers.clear()
        broker.logs[T0].append(encode_batch([b"a"]))
        fetch = fetch_of(client)
        await client.fetch([fetch])
        assert taken(fetch) == ["a"]


# ---- fetch sessions -----------------------------------------------------------------------------------------


def sessions(broker: ScriptedBroker) -> list[tuple[int, int, list[int]]]:
    """Session, epoch and partitions of each fetch."""
    return [
        (r.session_id, r.session_epoch, [p.partition for t in r.topics for p in t.partitions])
        for r, _ in broker.requests
    ]


async def poll(client: KafkaBrokerClient, *fetches: PartitionFetch) -> None:
    await client.fetch([PartitionFetch(fetch.decoder, 100) for fetch in fetches], max_wait=0.5)


with_sessions = pytest.mark.parametrize("release", ["2.1", "2.8", "3.1", "4.1"])
with_ids = pytest.mark.parametrize("topic_id", [bytes(16), TOPIC_ID], ids=["ids unknown", "ids known"])


@with_sessions
@with_ids
async def test_a_long_poll_names_partitions_once(release: str, topic_id: bytes) -> None:
    """Also on 2.8 to 3.0, which have topic ids in Metadata, and not in Fetch."""
    broker = ScriptedBroker(RELEASES[release])
    async with running(broker, topic_id=topic_id) as client:
        both = fetch_of(client), fetch_of(client, T1)
        await poll(client, *both)
        await poll(client, *both)
        await poll(client, both[1])
        assert sessions(broker) == [(0, 0, [0, 1]), (9, 1, []), (9, 2, [])]
        forgotten = broker.requests[-1][0].forgotten_topics_data
        assert [topic.partitions for topic in forgotten] == [(0,)]
        assert broker.requests[0][0].max_wait_ms == 500


@with_sessions
@with_ids
async def test_an_error_of_a_partition_in_a_session_reaches_its_fetch(release: str, topic_id: bytes) -> None:
    broker = ScriptedBroker(RELEASES[release])
    async with running(broker, topic_id=topic_id) as client:
        decoders = [fetch_of(client, where).decoder for where in (T0, T1)]
        await client.fetch([PartitionFetch(decoder, 100) for decoder in decoders], max_wait=0.5)
        decoders[0].reset(Position(50))
        fetches = [PartitionFetch(decoder, 100) for decoder in decoders]
        await client.fetch(fetches, max_wait=0.5)
        assert [type(fetch.error) for fetch in fetches] == [OffsetOutOfRange, type(None)]
        assert sessions(broker)[1:] == [(9, 1, [0])]


def about(*partitions: FetchPartitionData, topic: str = "t", **fields: Any) -> FetchResponse:
    return FetchResponse(responses=(FetchableTopicResponse(topic=topic, partitions=partitions),), **fields)


OUT_OF_RANGE = FetchPartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)


@pytest.mark.parametrize("max_wait", [0.0, 0.5])
@pytest.mark.parametrize(
    "response",
    [
        about(OUT_OF_RANGE, session_id=9),
        about(OUT_OF_RANGE, FetchPartitionData(partition_index=1), FetchPartitionData(partition_index=5), session_id=9),
        about(OUT_OF_RANGE, error_code=ErrorCode.KAFKA_STORAGE_ERROR),
        about(OUT_OF_RANGE, error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        FetchResponse(
            session_id=9, responses=(*about(OUT_OF_RANGE, topic="u").responses, *about(OUT_OF_RANGE).responses)
        ),
    ],
    ids=["one is missing", "one too many", "an error of the whole", "a refused session", "an unknown topic"],
)
async def test_what_a_response_says_of_a_partition_counts_whatever_else_is_wrong_with_it(
    response: FetchResponse, max_wait: float
) -> None:
    broker = ScriptedBroker(RELEASES["2.8"])
    broker.answers[FetchRequest] = lambda request, version: response
    async with running(broker, topic_id=TOPIC_ID) as client:
        fetches = [fetch_of(client), fetch_of(client, T1)]
        await client.fetch(fetches, max_wait=max_wait)
        assert isinstance(fetches[0].error, OffsetOutOfRange)
        assert getattr(fetches[1].error, "code", 0) == response.error_code
    assert len(broker.requests) == 1


async def test_a_session_whose_response_has_other_partitions_is_closed_by_the_next_request() -> None:
    broker = ScriptedBroker(NEWEST)
    broker.answers[FetchRequest] = lambda request, version: about(FetchPartitionData(), session_id=9)
    async with running(broker) as client:
        both = fetch_of(client), fetch_of(client, T1)
        await poll(client, *both)
        broker.answers.clear()
        await poll(client, *both)
        await poll(client, *both)
        assert sessions(broker) == [(0, 0, [0, 1]), (9, 0, [0, 1]), (9, 1, [])]


async def test_other_fetches_use_no_session() -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker) as client:
        await client.fetch([fetch_of(client)])
        await client.fetch([fetch_of(client)])
        assert sessions(broker) == [(0, -1, [0]), (0, -1, [0])]


@pytest.mark.parametrize(
    ("code", "then"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, (0, 0, [0])),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, (9, 0, [0])),
    ],
)
async def test_a_session_that_the_broker_does_not_know_is_replaced_at_once(code: int, then: tuple[Any, ...]) -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker) as client:
        fetch = fetch_of(client)
        await poll(client, fetch)
        refusals = iter([FetchResponse(error_code=code)])
        broker.answers[FetchRequest] = lambda request, version: next(refusals, None) or broker.fetch(request, version)
        broker.logs[T0].append(encode_batch([b"a"]))
        await poll(client, fetch)
        assert sessions(broker)[1:] == [(9, 1, []), then]
        assert taken(fetch) == ["a"]


async def test_a_broker_that_refuses_every_session_is_a_passing_error() -> None:
    broker = ScriptedBroker(NEWEST)
    broker.answers[FetchRequest] = lambda request, version: FetchResponse(
        error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH
    )
    async with running(broker) as client:
        with pytest.raises(RemoteProtocolError, match="session") as caught:
            await poll(client, fetch_of(client))
        assert caught.value.retriable


@pytest.mark.parametrize("max_wait", [0.0, 0.5])
async def test_an_error_of_the_whole_answer_is_that_of_every_fetch(max_wait: float) -> None:
    broker = ScriptedBroker(NEWEST)
    broker.answers[FetchRequest] = lambda request, version: FetchResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    async with running(broker) as client:
        fetches = [fetch_of(client), fetch_of(client, T1)]
        await client.fetch(fetches, max_wait=max_wait)
        for fetch in fetches:
            assert isinstance(fetch.error, BrokerError) and fetch.error.code == ErrorCode.KAFKA_STORAGE_ERROR
            assert fetch.error.retriable
    assert len(broker.requests) == 1


async def test_after_a_lost_poll_the_session_is_opened_again() -> None:
    broker = ScriptedBroker(NEWEST)
    async with running(broker) as client:
        fetch = fetch_of(client)
        await poll(client, fetch)
        broker.cut = 10
        with pytest.raises(ConnectionLost):
            await poll(client, fetch)
        await poll(client, fetch)
        assert sessions(broker) == [(0, 0, [0]), (9, 1, []), (9, 0, [0])]


# ---- positions ----------------------------------------------------------------------------------------------


@every_release
@pytest.mark.parametrize(
    ("at", "position"), [(EARLIEST, 0), (LATEST, 3), (AtTime(5.0), None)], ids=["earliest", "latest", "time"]
)
async def test_a_position_is_resolved_on_every_release(release: str, at: PositionSpec | AtTime, position: Any) -> None:
    broker = ScriptedBroker(RELEASES[release])
    async with running(broker) as client:
        await client.produce([batch(b"a", b"b", b"c")], acks=-1)
        if position is None:  # no record is that new; files have no time either
            position = 3 if RELEASES[release].has_time_index else 0
        assert await client.resolve_position(T0, at) == position


@every_release
async def test_positions_of_several_partitions_take_one_request_and_another_for_times_without_one(release: str) -> None:
    broker, unknown = ScriptedBroker(RELEASES[release]), TopicPartition("t", 9)
    async with running(broker) as client:
        await client.produce([batch(b"a", b"b", b"c")], acks=-1)
        before = len(broker.requests)
        outcomes = await client.resolve_positions({T0: LATEST, unknown: EARLIEST, T1: EARLIEST})
        assert list(outcomes) == [T0, unknown, T1] and (outcomes[T0], outcomes[T1]) == (3, 0)
        assert isinstance(outcomes[unknown], BrokerError)
        assert len(broker.requests) == before + 1
        outcomes = await client.resolve_positions({T0: AtTime(5.0), unknown: AtTime(5.0), T1: LATEST})
        assert outcomes[T0] == (3 if client.versions.has_time_index else 0) and outcomes[T1] == 0
        assert isinstance(outcomes[unknown], BrokerError)
        assert len(broker.requests) == before + 3
        with pytest.raises(BrokerError):
            await client.resolve_position(unknown, LATEST)


class OlderFormat(ScriptedBroker):
    """A broker whose topic has records without times (message.format.version before 0.10), in two files."""

    def position(self, where: TopicPartition, part: ListOffsetsPartition, version: int) -> ListOffsetsPartitionResponse:
        if part.timestamp < 0:
            return super().position(where, part, version)
        if version:
            code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
            return ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=code)
        offsets = (2,) if part.timestamp >= 5000 else ()
        return ListOffsetsPartitionResponse(partition_index=part.partition_index, old_style_offsets=offsets)


@pytest.mark.parametrize(
    ("first", "seconds", "position"),
    [(0, 5.0, 2), (0, 4.0, 0), (1, 5.0, 3)],
    ids=["of a file", "before the first", "of a broker that does not know files"],
)
async def test_a_time_in_a_topic_without_times_is_that_of_a_file(first: int, seconds: float, position: int) -> None:
    """The end of the log would be a start behind records that are to be read; so would a file's be an end before
    some."""
    offered = {**RELEASES["2.8"].offered, ListOffsetsRequest.SPEC.key: VersionRange(first, 6)}
    broker, at = OlderFormat(BrokerVersions(offered)), AtTime(seconds)
    broker.logs[T0].end = 3
    async with running(broker) as client:
        assert await client.resolve_position(T0, at) == position
        driver: Any = OneClient(client)
        assert await KafkaLogAccess(driver).positions_at({T0: at}, ending=True) == {T0: 3}
        assert await client.positions(T0, at) == []


@every_release
async def test_positions_where_a_log_can_be_cut(release: str) -> None:
    broker = ScriptedBroker(RELEASES[release])
    async with running(broker) as client:
        await client.produce([batch(b"a", b"b", b"c")], acks=-1)
        assert await client.positions(T0, LATEST, 5) == [3, 0]
        assert await client.positions(T0, LATEST) == [3]
        assert await client.positions(T0, EARLIEST, 5) == [0]
        with pytest.raises(ConfigError):
            await client.positions(T0, LATEST, 0)


@pytest.mark.parametrize(("release", "asked"), [("0.10.1", 0), ("0.11", 1), ("4.1", 1)])
async def test_the_end_of_what_is_committed_is_asked_for_where_there_are_transactions(release: str, asked: int) -> None:
    broker = ScriptedBroker(RELEASES[release])
    async with running(broker) as client:
        assert await client.resolve_position(T0, LATEST, read_committed=True) == 0
        assert broker.requests[0][0].isolation_level == asked


class OneClient:
    """A driver whose only broker client is this one."""

    def __init__(self, client: KafkaBrokerClient) -> None:
        self._client, self.metadata = client, self
        self.table = self

    def topic_id(self, topic: str) -> bytes:
        return TOPIC_ID

    def leader(self, partition: TopicPartition) -> Broker:
        return self._client.broker

    def broker(self, broker: Broker, purpose: str) -> KafkaBrokerClient:
        return self._client


@pytest.mark.parametrize("read_committed", [False, True])
@every_release
async def test_the_extent_of_a_log_takes_two_requests_where_brokers_name_one_position(
    release: str, read_committed: bool
) -> None:
    broker = ScriptedBroker(RELEASES[release])

    def answer(request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        broker.logs[T0].end = 2 if request.isolation_level else 3
        return broker.list_offsets(request, version)

    broker.answers[ListOffsetsRequest] = answer
    async with running(broker) as client:
        driver: Any = OneClient(client)
        extents = await KafkaLogAccess(driver).extents([T0], read_committed=read_committed)
        end = 2 if read_committed and client.versions.has_read_committed else 3
        assert extents[T0][:2] == (0, end)
        assert extents[T0][3:] == (1, TOPIC_ID.hex())
        assert {0, end} <= set(extents[T0].boundaries)
        if client.versions.has_time_index:
            assert len(broker.requests) == 2


class Trimmed(ScriptedBroker):
    """A broker that names a beginning behind the end of what is committed."""

    def position(self, where: TopicPartition, part: ListOffsetsPartition, version: int) -> ListOffsetsPartitionResponse:
        return ListOffsetsPartitionResponse(partition_index=part.partition_index, offset={-2: 7, -1: 5}[part.timestamp])


async def test_a_log_whose_beginning_is_behind_its_end_is_empty() -> None:
    async with running(Trimmed(NEWEST)) as client:
        driver: Any = OneClient(client)
        assert (await KafkaLogAccess(driver).extents([T0], read_committed=True))[T0][:3] == (7, 7, (7,))
