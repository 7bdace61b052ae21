"""Each error that a broker may answer with, in answers of a real one: to Fetch, Produce, OffsetCommit and Heartbeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import anyio
import pytest

import odradek as od
from odradek.io.kafka.coordinators import CoordinatorType
from odradek.testing import KafkaBroker
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import (
    FetchRequest,
    FetchResponse,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from odradek.wire.kafka.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from odradek.wire.kafka.schema import Request, Response

from .behaviour import Stand, behaviour
from .groups import CLASSIC, CONSUMER, new_group, options, taking, until
from .injection import injected
from .transactions import coordinator

UNKNOWN = ErrorCode(999)
"""A code that no table has."""

FETCHED_AGAIN = (
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)
FETCH_FAILS = (
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    UNKNOWN,
)
SENT_AGAIN = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
"""Nothing was written."""

WRITTEN_AND_SENT_AGAIN = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
"""A broker may say so when the records are in its log."""

REFUSED = (
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_REQUIRED_ACKS,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.INVALID_RECORD,
)
NUMBERED_REFUSED = (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,)
"""Sent again without numbers where batches have some (0.11 and later), otherwise refused."""

COMMITTED_AGAIN = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
COMMIT_FAILS = (
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    UNKNOWN,
)
HEARTBEATS_GO_ON = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)


def known(stand: Stand, codes: tuple[ErrorCode, ...]) -> list[ErrorCode]:
    """Those that the release has, and the one that none has."""
    return [each for each in codes if stand.has(*map(int, (each.since or "0").split(".")))]


class TwoPartitions(NamedTuple):
    """Two partitions that one broker leads, and what was written to each of them."""

    one: od.TopicPartition
    other: od.TopicPartition
    broker: KafkaBroker
    written: dict[od.TopicPartition, list[bytes]]

    @classmethod
    async def made(cls, stand: Stand) -> TwoPartitions:
        """Create their topic."""
        topic = await stand.create_topic(4)
        leaders: dict[int, od.TopicPartition] = {}
        for number in range(4):
            leader = await stand.leader(topic, number)
            here = od.TopicPartition(topic, number)
            if leader.broker_id in leaders:
                return cls(leaders[leader.broker_id], here, leader, {leaders[leader.broker_id]: [], here: []})
            leaders[leader.broker_id] = here
        raise AssertionError("four partitions on three brokers")

    async def write(self, out: od.Producer, text: bytes) -> None:
        for where, texts in self.written.items():
            texts.append(b"%d %s" % (where.partition, text))
            await out.send(where.topic, texts[-1], partition=where.partition)


class OneError:
    """An error in place of what the broker says of a partition, in an answer that is meant: in one if it passes, in all
    from then on if it stays, because a fetch may be given up before its answer is there."""

    def __init__(self, partition: od.TopicPartition, code: ErrorCode, is_meant: Callable[[FetchRequest], bool]) -> None:
        self._partition, self._code, self._is_meant = partition, code, is_meant
        self.done = anyio.Event()

    def __call__(self, request: FetchRequest, answer: FetchResponse) -> FetchResponse:
        if (self.done.is_set() and self._code not in FETCH_FAILS) or not self._is_meant(request):
            return answer
        return answer.__replace__(responses=tuple(map(self._changed_topic, answer.responses)))

    def _changed_topic(self, topic: Any) -> Any:  # the only topic of the reader, by its name or its id
        return topic.__replace__(partitions=tuple(map(self._changed, topic.partitions)))

    def _changed(self, part: Any) -> Any:
        if part.partition_index != self._partition.partition:
            return part
        self.done.set()
        return part.__replace__(error_code=self._code, high_watermark=-1, records=None, aborted_transactions=None)


async def _follow(reader: od.Reader, values: list[bytes], errors: list[od.BrokerError]) -> None:
    while True:
        try:
            values.append((await anext(reader)).value or b"")
        except od.BrokerError as error:
            errors.append(error)


async def _one_error(stand: Stand, two: TwoPartitions, code: ErrorCode, stage: str) -> None:
    """Read two partitions from their ends on. One gets an error: it is read again or fails, the other goes on.

    Args:
        stage: Of the request whose answer has the error: `plain`, `poll` (of partitions without records), `session`.
    """
    one, other = two.one, two.other
    ends = {each: len(texts) for each, texts in two.written.items()}
    values: list[bytes] = []
    errors: list[od.BrokerError] = []

    def read(where: od.TopicPartition) -> list[bytes]:
        return [each for each in values if each.startswith(b"%d " % where.partition)]

    def written(where: od.TopicPartition) -> list[bytes]:
        return two.written[where][ends[where] :]

    def all_read(*partitions: od.TopicPartition) -> bool:
        return all(len(read(each)) >= len(written(each)) for each in partitions)

    one_error = OneError(one, code, STAGES[stage])
    async with stand.producer() as out, injected(two.broker, FetchRequest) as injection, stand.connect() as cluster:
        if stage == "plain":
            await two.write(out, b"first")
        if stage != "session":
            injection.changed = one_error
        async with cluster.reader(ends) as reader, anyio.create_task_group() as tasks:
            tasks.start_soon(_follow, reader, values, errors)
            if stage == "session":
                for n in range(3):  # so that the session is open, and the partitions are in it
                    await two.write(out, b"%d" % n)
                    await until(lambda: all_read(one, other))
                injection.changed = one_error
                await two.write(out, b"error")
            await one_error.done.wait()
            await two.write(out, b"last")
            await until(lambda: bool(errors) and all_read(other) if code in FETCH_FAILS else all_read(one, other))
            tasks.cancel_scope.cancel()
    assert read(other) == written(other)
    if code in FETCH_FAILS:
        for error in errors:  # again after a fetch that has worked: not all of them have the error
            assert error.code == code
            assert str(one) in str(error)
        assert read(one) == written(one)[: len(read(one))]
    else:
        assert errors == []
        assert read(one) == written(one)


STAGES: dict[str, Callable[[FetchRequest], bool]] = {
    "plain": lambda request: request.max_wait_ms == 0,
    "poll": lambda request: request.max_wait_ms > 0 and request.session_epoch <= 0,
    "session": lambda request: request.session_epoch > 0,
}


async def _each_error_of_fetches(stand: Stand, stage: str) -> None:
    two = await TwoPartitions.made(stand)
    for code in known(stand, FETCHED_AGAIN + FETCH_FAILS):
        try:
            await _one_error(stand, two, code, stage)
        except BaseException as error:
            error.add_note(f"{code.name} in an answer to Fetch, {stage}")
            raise


@behaviour("each error of a partition in an answer that is there at once: read again, or raised", proxied=True)
async def each_error_of_a_plain_fetch(stand: Stand) -> None:
    await _each_error_of_fetches(stand, "plain")


@behaviour("each error of a partition in a long poll: read again, or raised; the other goes on", proxied=True)
async def each_error_of_a_long_poll(stand: Stand) -> None:
    await _each_error_of_fetches(stand, "poll")


@behaviour(
    "each error of a partition in a fetch session: read again, or raised; the other goes on",
    since=(1, 1),
    without="fetch sessions came with 1.1",
    proxied=True,
)
async def each_error_in_a_session(stand: Stand) -> None:
    await _each_error_of_fetches(stand, "session")


@behaviour(
    "the broker forgets a session, counts otherwise or misses a topic's id: another one, nothing is lost",
    since=(1, 1),
    without="fetch sessions came with 1.1",
    proxied=True,
)
async def sessions_that_the_broker_forgets(stand: Stand) -> None:
    codes = (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
    topic = await stand.create_topic()
    pending = known(stand, codes)
    written: list[bytes] = []

    def refuse(request: FetchRequest) -> FetchResponse | None:
        return FetchResponse(error_code=pending.pop(0)) if pending and STAGES["session"](request) else None

    async with stand.producer() as out, injected(await stand.leader(topic), FetchRequest) as injection:
        injection.instead = refuse
        async with stand.connect() as cluster, cluster.reader(topic) as reader:
            while pending:
                written.append(b"%d" % len(written))
                await out.send(topic, written[-1], partition=0)
                assert (await anext(reader)).value == written[-1]
    assert await stand.values(topic) == written


def _refusal(request: ProduceRequest, code: ErrorCode) -> ProduceResponse:
    """Answer in place of a broker that has written nothing."""
    return ProduceResponse(
        responses=tuple(
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(
                    PartitionProduceResponse(index=part.index, error_code=code, base_offset=-1)
                    for part in topic.partition_data
                ),
            )
            for topic in request.topic_data
        )
    )


def _with_error(answer: ProduceResponse, code: ErrorCode) -> ProduceResponse:
    """Answer as a broker that has appended the records: the offset stays."""
    return answer.__replace__(
        responses=tuple(
            topic.__replace__(
                partition_responses=tuple(part.__replace__(error_code=code) for part in topic.partition_responses)
            )
            for topic in answer.responses
        )
    )


async def _one_error_of_producing(
    stand: Stand, topic: str, broker: KafkaBroker, code: ErrorCode, written: bool
) -> tuple[list[bytes], set[bytes], list[od.OdradekError]]:
    """Send three records of which the second gets an error; return those confirmed, those that may be twice, errors."""
    confirmed: list[bytes] = []
    repeated: set[bytes] = set()
    errors: list[od.OdradekError] = []
    pending: list[ErrorCode] = []

    def instead(request: ProduceRequest) -> ProduceResponse | None:
        return _refusal(request, pending.pop()) if pending and not written else None

    def changed(request: ProduceRequest, answer: ProduceResponse) -> ProduceResponse:
        return _with_error(answer, pending.pop()) if pending else answer

    async with injected(broker, ProduceRequest) as injection, stand.producer(deliver_within=30.0) as out:
        injection.instead, injection.changed = instead, changed
        for text in (b"before", b"error", b"after"):
            value = b"%s %s" % (code.name.encode(), text)
            if text == b"error":
                pending.append(code)
            try:
                ack = await out.send(topic, value, partition=0)
            except od.OdradekError as error:
                errors.append(error)
                continue
            confirmed.append(value)
            if ack.repeated:
                repeated.add(value)
        assert not pending
    return confirmed, repeated, errors


@behaviour("each error of producing that may pass, nothing is written: sent again, once in the log", proxied=True)
async def each_passing_error_of_producing(stand: Stand) -> None:
    topic = await stand.create_topic()
    broker, expected = await stand.leader(topic), []
    for code in known(stand, (*SENT_AGAIN, *(NUMBERED_REFUSED if stand.has(0, 11) else ()))):
        confirmed, _, errors = await _one_error_of_producing(stand, topic, broker, code, False)
        assert (len(confirmed), errors) == (3, []), code.name
        expected += confirmed
    assert await stand.values(topic) == expected


@behaviour("each error of producing whose records are written: sent again, once if idempotent", proxied=True)
async def each_error_of_producing_behind_the_append(stand: Stand) -> None:
    topic = await stand.create_topic()
    broker, expected, twice = await stand.leader(topic), [], set()
    for code in known(stand, WRITTEN_AND_SENT_AGAIN):
        confirmed, repeated, errors = await _one_error_of_producing(stand, topic, broker, code, True)
        assert (len(confirmed), errors) == (3, []), code.name
        expected += confirmed
        twice |= repeated
    values = await stand.values(topic)
    assert list(dict.fromkeys(values)) == expected
    assert {each for each in values if values.count(each) > 1} == (set() if stand.has(0, 11) else twice)
    if not stand.has(0, 11):
        assert {each.split()[1] for each in twice} == {b"error"}


@behaviour("each error of producing that stays: raised with its name; the next record is written", proxied=True)
async def each_lasting_error_of_producing(stand: Stand) -> None:
    topic = await stand.create_topic()
    broker, expected = await stand.leader(topic), []
    for code in known(stand, (*REFUSED, *(() if stand.has(0, 11) else NUMBERED_REFUSED))):
        confirmed, _, errors = await _one_error_of_producing(stand, topic, broker, code, False)
        (error,) = errors
        assert isinstance(error, od.Rejected), code.name
        assert code.name in str(error)
        assert [each.split()[1] for each in confirmed] == [b"before", b"after"], code.name
        expected += confirmed
    assert await stand.values(topic) == expected


async def _one_error_of_committing(stand: Stand, topic: str, code: ErrorCode, *, passes: bool) -> None:
    """Commit position 3 with one error in an answer, then again if it was raised."""
    group, where = new_group(), od.TopicPartition(topic, 0)
    pending: list[ErrorCode] = []

    def refuse(request: OffsetCommitRequest) -> OffsetCommitResponse | None:
        return _refused_commit(request, pending.pop()) if pending else None

    broker = await coordinator(stand, CoordinatorType.GROUP, group)
    async with injected(broker, OffsetCommitRequest) as injection, stand.connect() as cluster:
        injection.instead = refuse
        async with cluster.consumer(topic, **options(group), commit_every=None) as member:
            batch = await anext(aiter(member.batches(max_records=3)))
            batch.done()
            pending.append(code)
            if not passes:
                with pytest.raises(od.BrokerError) as caught:
                    await member.commit()
                assert caught.value.code == code
            assert (await member.commit())[where] == 3
            assert not pending
        assert await cluster.driver.offsets(group).fetch([where]) == {where: 3}


def _refused_commit(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    topics = [
        OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(
                OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code)
                for part in topic.partitions
            ),
        )
        for topic in request.topics
    ]
    return OffsetCommitResponse(topics=tuple(topics))


@behaviour(
    "each error of a commit: sent again, or raised, and the next commit stores it",
    proxied=True,
    **CLASSIC,
    slow=True,
)
async def each_error_of_a_commit(stand: Stand) -> None:
    topic = await stand.create_topic()
    await stand.write(topic, [b"%d" % n for n in range(5)])
    for codes, passes in ((COMMITTED_AGAIN, True), (COMMIT_FAILS, False)):
        for code in known(stand, codes):
            try:
                await _one_error_of_committing(stand, topic, code, passes=passes)
            except BaseException as error:
                error.add_note(code.name)
                raise


async def _errors_of_heartbeats(
    stand: Stand, protocol: str, api: type[Request[Any]], answer: Callable[..., Response], codes: tuple[ErrorCode, ...]
) -> None:
    """Answer heartbeats with errors: the member goes on, or joins again, and gets each record."""
    topic, group = await stand.create_topic(), new_group()
    taken: Counter[bytes | None] = Counter()
    pending: list[ErrorCode] = []

    def refuse(request: Any) -> Response | None:
        return answer(error_code=pending.pop()) if pending and not _is_leaving(request) else None

    broker = await coordinator(stand, CoordinatorType.GROUP, group)
    async with injected(broker, api) as injection, stand.producer() as out, stand.connect() as cluster:
        injection.instead = refuse
        async with cluster.consumer(topic, **options(group, protocol)) as member, taking(member, taken):
            for code in known(stand, codes):
                await until(lambda: len(member.assignment) == 1)
                pending.append(code)
                await until(lambda: not pending)
                value = code.name.encode()
                await out.send(topic, value, partition=0)
                try:
                    await until(lambda: value in taken)  # noqa: B023 - waited for here
                except BaseException as error:
                    error.add_note(code.name)
                    raise
            await stored_soon(cluster, group, {od.TopicPartition(topic, 0): len(taken)})


def _is_leaving(request: Any) -> bool:
    return getattr(request, "member_epoch", 0) < 0


async def stored_soon(cluster: od.Cluster, group: str, positions: dict[od.TopicPartition, int]) -> None:
    """Wait until a group has these positions: its member may be joining again."""
    offsets = cluster.driver.offsets(group)
    while await offsets.fetch(list(positions)) != positions:  # noqa: ASYNC110 - nothing tells when they are stored
        await anyio.sleep(0.05)


@behaviour("classic: each error of a heartbeat: the member goes on, or joins again", proxied=True, **CLASSIC, slow=True)
async def each_error_of_a_heartbeat_of_the_classic_protocol(stand: Stand) -> None:
    joins_again = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
    codes = HEARTBEATS_GO_ON + joins_again
    await _errors_of_heartbeats(stand, "classic", HeartbeatRequest, HeartbeatResponse, codes)


@behaviour(
    "consumer (KIP-848): each error of a heartbeat: the member goes on, or joins again",
    proxied=True,
    **CONSUMER,
    slow=True,
)
async def each_error_of_a_heartbeat_of_the_consumer_protocol(stand: Stand) -> None:
    codes = (*HEARTBEATS_GO_ON, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
    await _errors_of_heartbeats(stand, "consumer", ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, codes)
