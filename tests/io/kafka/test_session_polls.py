"""Long polls in a fetch session (KIP-227), against a broker that remembers partitions as brokers do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tests.io.kafka.answers import topic_response
from tests.io.kafka.scripted_broker import T0, T1, TOPIC_ID, ScriptedBroker, names, routing, running
from tests.io.kafka.test_broker_client import RELEASES, of_epoch, with_ids, with_sessions
from tests.io.kafka.test_topic_check import Metadata

from odradek.core.interfaces import DecoderOptions, PartitionFetch
from odradek.core.kafka.versions import BrokerVersions, VersionRange
from odradek.errors import (
    BrokerError,
    ConnectionLost,
    LogTruncated,
    OdradekError,
    OffsetOutOfRange,
    RemoteProtocolError,
    TopicRecreated,
)
from odradek.io.kafka.broker_client import KafkaBrokerClient
from odradek.io.kafka.log_decoder import decoder_of
from odradek.io.kafka.topic_check import TopicCheck
from odradek.types import Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from odradek.wire.kafka.records.encode import encode_batch

pytestmark = pytest.mark.anyio


class SessionBroker(ScriptedBroker):
    """Remembers the partitions of one session. In it, a response has those alone that have something new.

    Attributes:
        refusal: The error of the next request in a session.
        results: Replaces the result of a partition.
        exceeds: It returns more than was asked for.
    """

    def __init__(self, release: str = "4.1") -> None:
        super().__init__(RELEASES[release])
        self.refusal: int | None = None
        self.results: dict[int, FetchPartitionData] = {}
        self.exceeds = False
        self._session = self._epoch = 0
        self._partitions: dict[tuple[str, bytes, int], FetchPartition] = {}
        self._ends: dict[tuple[str, bytes, int], int] = {}

    def fetch(self, request: FetchRequest, version: int) -> FetchResponse:
        if request.session_epoch < 0:
            return super().fetch(request, version)
        if request.session_epoch == 0:
            self._session, self._partitions, self._ends = self._session + 1, {}, {}
        elif self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            return FetchResponse(error_code=refusal)
        elif (request.session_id, request.session_epoch) != (self._session, self._epoch):
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._epoch = request.session_epoch + 1
        for gone in request.forgotten_topics_data:
            for number in gone.partitions:
                del self._partitions[gone.topic, gone.topic_id, number]
                self._ends.pop((gone.topic, gone.topic_id, number))
        for topic in request.topics:
            for part in topic.partitions:
                self._partitions[topic.topic, topic.topic_id, part.partition] = part
        return self._changed(request, version)

    def _changed(self, request: FetchRequest, version: int) -> FetchResponse:
        left, changed = request.max_bytes, []
        for key, part in self._partitions.items():
            data = self.results.pop(part.partition, None) or self.read(key[0], part, version)
            if left <= 0 and not self.exceeds:
                data = data.__replace__(records=b"")
            if (
                data.records
                or data.error_code
                or data.high_watermark != self._ends.get(key)
                or not request.session_epoch
            ):
                changed.append(FetchableTopicResponse(topic=key[0], topic_id=key[1], partitions=(data,)))
            left -= len(data.records or b"")
            self._ends[key] = data.high_watermark
        return FetchResponse(session_id=self._session, responses=tuple(changed))


class Polls:
    """Partitions in the long polls of a client, as a reader has them: those without a result stay."""

    def __init__(self, client: KafkaBrokerClient, *partitions: TopicPartition, position: int = 0) -> None:
        self.client = client
        self.fetches = [self.fetch(where, position) for where in partitions or (T0, T1)]
        self.last: object = None

    def fetch(self, where: TopicPartition, position: int = 0) -> PartitionFetch:
        return PartitionFetch(self.client.decoder(where, Position(position), DecoderOptions()), 100)

    async def open(self) -> None:
        """Open a session with a fetch."""
        await self.client.fetch([PartitionFetch(fetch.decoder, 100) for fetch in self.fetches], max_wait=0.5)
        assert self.client.polls.in_session

    async def poll(self, max_bytes: int = 1000) -> list[PartitionFetch]:
        """Return the fetches that are finished."""
        last, self.last = self.last, None
        self.last = await self.client.poll(self.fetches, max_wait=0.5, max_bytes=max_bytes, last=last)
        finished = [fetch for fetch in self.fetches if fetch.answered or fetch.error is not None]
        self.fetches = [fetch for fetch in self.fetches if fetch not in finished]
        return finished


def named(broker: ScriptedBroker) -> list[tuple[list[int], list[int]]]:
    """The partitions that each fetch has named: to fetch, and to forget."""
    return [
        (
            [part.partition for topic in request.topics for part in topic.partitions],
            [number for topic in request.forgotten_topics_data for number in topic.partitions],
        )
        for request, _ in broker.requests
        if isinstance(request, FetchRequest)
    ]


def taken(fetch: PartitionFetch) -> list[str | None]:
    return names(fetch.decoder.take().values)


@with_sessions
@with_ids
async def test_a_partition_stays_in_the_polls_until_it_has_something(release: str, topic_id: bytes) -> None:
    broker = SessionBroker(release)
    async with running(broker, topic_id=topic_id) as client:
        polls = Polls(client)
        await polls.open()
        assert await polls.poll() == await polls.poll() == []
        broker.logs[T1].append(encode_batch([b"a"]))
        (finished,) = await polls.poll()
        assert taken(finished) == ["a"] and finished.high_watermark == 1
        assert await polls.poll() == []
        broker.logs[T0].append(encode_batch([b"b"]))
        assert taken((await polls.poll())[0]) == ["b"]
    assert named(broker) == [([0, 1], []), ([], []), ([], []), ([], []), ([], [1]), ([], [])]
    assert {(request.max_wait_ms, request.max_bytes) for request, _ in broker.requests[1:]} == {(500, 1000)}


@with_sessions
async def test_a_partition_that_joins_the_polls_is_named_once(release: str) -> None:
    broker = SessionBroker(release)
    async with running(broker) as client:
        polls = Polls(client, T0)
        await polls.open()
        await polls.poll()
        polls.fetches.append(polls.fetch(T1))
        (listed,) = await polls.poll()
        assert (listed.decoder.partition, listed.received, listed.high_watermark) == (T1, 0, 0), "brokers list new ones"
        polls.fetches.append(PartitionFetch(listed.decoder, 100))
        assert await polls.poll() == await polls.poll() == []
    assert named(broker)[2:] == [([1], []), ([], []), ([], [])]


@with_sessions
async def test_a_partition_that_goes_on_elsewhere_is_named_with_its_position(release: str) -> None:
    broker = SessionBroker(release)
    broker.logs[T0].append(encode_batch([b"a"]))
    async with running(broker) as client:
        polls = Polls(client, position=1)
        polls.fetches[1] = polls.fetch(T1)
        await polls.open()
        await polls.poll()
        polls.fetches[0] = polls.fetch(T0)  # after a seek
        (finished,) = await polls.poll()
        assert taken(finished) == ["a"]
    assert named(broker)[2:] == [([0], [])]


@with_sessions
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
async def test_a_session_that_the_broker_does_not_go_on_with_is_opened_again_in_the_same_poll(
    release: str, code: int
) -> None:
    broker = SessionBroker(release)
    async with running(broker) as client:
        polls = Polls(client)
        await polls.open()
        await polls.poll()
        broker.refusal = code
        assert len(await polls.poll()) == 2, "a full response has all"
        assert client.polls.in_session
    assert named(broker)[2:] == [([], []), ([0, 1], [])]


async def test_a_broker_that_has_no_session_left_answers_all() -> None:
    broker = SessionBroker()
    async with running(broker) as client:
        polls = Polls(client)
        await polls.open()
        broker.refusal = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        full = broker.fetch

        def without_session(request: FetchRequest, version: int) -> FetchResponse:
            return full(request, version).__replace__(session_id=0)

        broker.answers[FetchRequest] = without_session
        assert len(await polls.poll()) == 2 and not client.polls.in_session


async def test_an_error_of_the_whole_response_is_that_of_every_fetch_and_ends_the_session() -> None:
    broker = SessionBroker()
    async with running(broker) as client:
        polls = Polls(client)
        await polls.open()
        broker.answers[FetchRequest] = lambda *_: FetchResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        finished = await polls.poll()
        assert [type(fetch.error) for fetch in finished] == [BrokerError] * 2 and not client.polls.in_session


async def test_a_throttled_response_that_opens_a_session_leaves_all_partitions_in_it() -> None:
    broker = SessionBroker()
    async with running(broker) as client:
        polls = Polls(client)
        await polls.open()
        broker.refusal = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        normal = broker.fetch

        def throttled(request: FetchRequest, version: int) -> FetchResponse:
            response = normal(request, version)
            return response if response.error_code else response.__replace__(responses=())

        broker.answers[FetchRequest] = throttled
        assert await polls.poll() == [] and client.polls.in_session
        broker.answers.clear()
        broker.logs[T1].append(encode_batch([b"a"]))
        (finished,) = await polls.poll()
        assert taken(finished) == ["a"]


@pytest.mark.parametrize("cut", [0, 10, 70])
async def test_after_a_lost_poll_all_may_be_fetched_again(cut: int) -> None:
    broker = SessionBroker()
    async with running(broker) as client:
        polls = Polls(client)
        await polls.open()
        await polls.poll()
        broker.logs[T0].append(encode_batch([b"a"]))
        broker.cut = cut
        with pytest.raises(ConnectionLost):
            await polls.poll()
        assert not client.polls.in_session and polls.last is None
        again = [PartitionFetch(fetch.decoder, 100) for fetch in polls.fetches]
        await client.fetch(again, max_wait=0.5)
        assert client.polls.in_session and taken(again[0]) == ["a"]
    assert named(broker)[-1] == ([0, 1], [])


async def test_a_poll_that_is_cancelled_feeds_nothing_afterwards() -> None:
    broker = SessionBroker()
    async with running(broker) as client:
        polls = Polls(client)
        await polls.open()
        await polls.poll()
        broker.logs[T0].append(encode_batch([b"a"]))
        with anyio.CancelScope() as scope:
            answer = broker.fetch

            def cancelled(request: FetchRequest, version: int) -> FetchResponse:
                scope.cancel()
                return answer(request, version)

            broker.answers[FetchRequest] = cancelled
            await polls.poll()
        assert scope.cancelled_caught and not client.polls.in_session
        assert not client.connection.is_open  # the broker would answer what follows after the poll only
        await anyio.wait_all_tasks_blocked()  # the response has been sent
        assert polls.fetches[0].decoder.fetch_position == 0


async def test_a_poll_that_is_cancelled_before_it_is_sent_is_withdrawn() -> None:
    broker = SessionBroker()
    async with running(broker) as client:
        polls = Polls(client)
        with anyio.CancelScope() as scope:
            scope.cancel()  # the connection is not open yet
            await client.fetch(polls.fetches, max_wait=0.5)
        assert scope.cancelled_caught and not client.polls.in_session
        await polls.open()
        assert client.polls.in_session
    assert [request.session_epoch for request, _ in broker.requests] == [0]


@with_sessions
@pytest.mark.parametrize(
    ("result", "error"),
    [
        (FetchPartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, high_watermark=-1), BrokerError),
        (FetchPartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=-1), OffsetOutOfRange),
        (FetchPartitionData(error_code=ErrorCode.UNKNOWN_TOPIC_ID, high_watermark=-1), BrokerError),
    ],
    ids=["not the leader", "out of range", "made again"],
)
async def test_what_a_response_says_of_one_partition_leaves_the_others_in_the_session(
    release: str, result: FetchPartitionData, error: type[OdradekError]
) -> None:
    broker = SessionBroker(release)
    async with running(broker) as client:
        polls = Polls(client)
        await polls.open()
        await polls.poll()
        broker.results[0] = result
        (finished,) = await polls.poll()
        assert finished.decoder.partition == T0 and type(finished.error) is error
        assert await polls.poll() == [] and client.polls.in_session
    assert named(broker)[-1] == ([], [0])


async def test_a_preferred_replica_is_the_result_of_its_partition_alone() -> None:
    broker = SessionBroker()
    async with running(broker) as client:
        polls = Polls(client)
        await polls.open()
        await polls.poll()
        broker.results[0] = FetchPartitionData(preferred_read_replica=2, high_watermark=1)
        (finished,) = await polls.poll()
        assert (finished.decoder.partition, finished.preferred_replica, finished.received) == (T0, 2, 0)
        assert await polls.poll() == []


async def test_another_leader_epoch_is_sent() -> None:
    broker = SessionBroker()
    async with running(broker, epoch=3) as client:
        polls = Polls(client)
        await polls.open()
        await polls.poll()
        later = routing(bytes(16), 4)
        client._routing = lambda: later
        assert await polls.poll() == await polls.poll() == []
    assert named(broker)[2:] == [([0, 1], []), ([], [])]
    (topic,) = broker.requests[2][0].topics
    assert [part.current_leader_epoch for part in topic.partitions] == [4, 4]


async def test_a_topic_that_was_made_again_is_forgotten_under_its_former_id() -> None:
    broker = SessionBroker()
    async with running(broker, topic_id=TOPIC_ID) as client:
        polls = Polls(client)
        await polls.open()
        await polls.poll()
        later = routing(b"n" * 16, -1)
        client._routing = lambda: later
        polls.fetches[0] = polls.fetch(T0)
        assert len(await polls.poll()) == 1
    request = broker.requests[-1][0]
    assert [(topic.topic_id, topic.partitions) for topic in request.forgotten_topics_data] == [(TOPIC_ID, (0,))]
    assert [topic.topic_id for topic in request.topics] == [b"n" * 16]


@pytest.mark.parametrize("exceeds", [False, True])
async def test_a_poll_brings_no_more_than_was_asked_for_and_the_first_batch(exceeds: bool) -> None:
    broker = SessionBroker()
    broker.exceeds = exceeds
    async with running(broker) as client:
        polls = Polls(client)
        await polls.open()
        await polls.poll()
        for where in (T0, T1):
            broker.logs[where].append(encode_batch([bytes(200)]))
        first, second = await polls.poll(max_bytes=150)
        assert first.received > 200 and not first.left_out
        assert second.received == 0 and second.left_out and second.decoder.fetch_position == 0
        await client.fetch(again := [PartitionFetch(second.decoder, 100)])
        assert len(again[0].decoder.take()) == 1


async def test_a_broker_that_is_of_a_release_without_sessions_now_is_not_asked_for_everything_at_once() -> None:
    broker = SessionBroker()
    async with running(broker) as client:
        polls = Polls(client)
        await polls.open()
        broker.cut = 0
        with pytest.raises(ConnectionLost):
            await client.fetch([polls.fetch(T1)])
        broker.can, asked = RELEASES["0.11"], len(broker.requests)
        with pytest.raises(RemoteProtocolError, match="older release") as caught:
            await polls.poll()
        assert caught.value.retriable and not client.polls.in_session
        assert len(broker.requests) == asked
        await client.fetch([polls.fetch(T0)], max_wait=0.5)
        assert not client.polls.in_session


async def test_the_end_of_a_response_that_was_cut_is_fetched_again() -> None:
    broker = SessionBroker()
    async with running(broker) as client:
        polls = Polls(client)
        await polls.open()
        await polls.poll()
        for value in (b"a", b"b"):
            broker.logs[T0].append(encode_batch([value]))
        (finished,) = await polls.poll()
        assert taken(finished) == ["a"] and finished.received == 100 and finished.decoder.pending_bytes == 0
        await client.fetch(again := [PartitionFetch(finished.decoder, 100)])
        assert taken(again[0]) == ["b"]


async def test_from_2_8_to_3_0_a_poll_makes_sure_of_the_topics_of_all_its_partitions() -> None:
    broker = SessionBroker("2.8")
    broker.can = BrokerVersions({**broker.can.offered, 3: VersionRange(0, 11)})
    async with running(broker, topic_id=TOPIC_ID) as client:
        client._topics = TopicCheck(Metadata(topic_response("t", 1, 1, topic_id=TOPIC_ID)))
        polls = Polls(client)
        await polls.open()
        sure_until = [decoder_of(fetch).sure_until for fetch in polls.fetches]
        assert await polls.poll() == []
        for fetch, before in zip(polls.fetches, sure_until, strict=True):
            assert decoder_of(fetch).sure_until > before and decoder_of(fetch).unanswered_since == -math.inf


async def test_from_2_8_to_3_0_metadata_from_before_a_decoder_was_made_is_not_enough_for_its_first_fetch() -> None:
    """However new it is: the topic may have been made again since."""
    broker = SessionBroker("2.8")
    broker.can = BrokerVersions({**broker.can.offered, 3: VersionRange(0, 11)})
    async with running(broker, topic_id=TOPIC_ID) as client:
        metadata = Metadata(topic_response("t", 1, 1, topic_id=TOPIC_ID))
        client._topics = TopicCheck(metadata)
        await client.fetch(Polls(client).fetches)  # the versions of the broker are known from here on
        await metadata.refresh()
        metadata.topic = topic_response("t", 1, 1, topic_id=bytes(15) + b"2")
        await client.fetch(fetches := Polls(client).fetches)
        assert [type(fetch.error) for fetch in fetches] == [TopicRecreated] * len(fetches)


def ends(*offsets: int) -> Callable[[OffsetForLeaderEpochRequest, int], Any]:
    def answer(request: OffsetForLeaderEpochRequest, version: int) -> OffsetForLeaderEpochResponse:
        parts = request.topics[0].partitions
        answers = tuple(
            [
                EpochEndOffset(partition=part.partition, leader_epoch=3, end_offset=offsets[part.partition])
                for part in parts
            ]
        )
        return OffsetForLeaderEpochResponse(
            topics=(OffsetForLeaderTopicResult(topic=request.topics[0].topic, partitions=answers),)
        )

    return answer


async def test_before_2_7_a_truncated_log_ends_its_fetch_alone() -> None:
    broker = SessionBroker("2.1")
    broker.can = BrokerVersions({**broker.can.offered, 3: VersionRange(0, 9)})
    async with running(broker, epoch=3) as client:
        polls = Polls(client)
        for where in (T0, T1):
            broker.logs[where].append(of_epoch(3, b"a"))
        await client.fetch(polls.fetches)
        polls.fetches = [PartitionFetch(fetch.decoder, 100) for fetch in polls.fetches]
        broker.answers[OffsetForLeaderEpochRequest] = ends(1, 1)
        await polls.open()
        await polls.poll()
        later = routing(bytes(16), 4)
        client._routing = lambda: later
        broker.answers[OffsetForLeaderEpochRequest] = ends(0, 1)
        (finished,) = await polls.poll()
        assert type(finished.error) is LogTruncated and finished.decoder.partition == T0
        assert await polls.poll() == [] and client.polls.in_session
    assert named(broker)[-2:] == [([1], [0]), ([], [])]
