"""The idempotent producer against models of brokers of every kind: nothing confirmed is doubled, lost or out of order.

A model remembers producers as its releases do. Between it and the producer connections break, and requests of a broken
connection arrive later or never; the broker refuses batches, answers with an error what it has written, and forgets
producers whose records were deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odradek.core.interfaces import AnsweringBrokerPolicy, ProducerRecord
from odradek.core.kafka.batch_sequences import BatchSequences
from odradek.core.kafka.produce import read_produce
from odradek.core.kafka.producer_state import IdempotentProducer, ProducerIdentity, Stamp
from odradek.core.kafka07.routing import BrokersChanged, Kafka07RoutingTable, TopicChanged
from odradek.core.produce.accumulator import Accumulator
from odradek.core.produce.batch import AccumulatorLimits, BrokerProduceRequest, Effects, ProduceBatch
from odradek.core.produce.partitioners import KeyHash
from odradek.errors import ConnectionLost, NotWritten, OutcomeUnknown, Rejected
from odradek.types import Broker, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

WHERE = TopicPartition("t", 0, 1)
LOST = ConnectionLost("b1:9092", "closed", True)


class Release(NamedTuple):
    """How the brokers of some releases remember producers.

    Args:
        remembered: Number of batches that they recognise when they come again.
        unknown: The error for a producer they do not know, and a sequence other than 0; 0: they take any.
        stale: The error for a batch older than those remembered.
    """

    remembered: int
    unknown: int
    stale: int = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


RELEASES = {
    "0.11": Release(1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    "1.0 to 1.1": Release(5, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.DUPLICATE_SEQUENCE_NUMBER),
    "2.0 to 2.4": Release(5, ErrorCode.UNKNOWN_PRODUCER_ID),
    "2.5 to 4.x": Release(5, ErrorCode.NONE),
}


class Known(NamedTuple):
    """What a broker remembers of a producer: its epoch, and (base sequence, records) -> offset of its last batches."""

    epoch: int
    batches: dict[tuple[int, int], int]

    @property
    def expected(self) -> int:
        return sum(list(self.batches)[-1]) if self.batches else 0


class ModelBroker:
    """One partition."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.known: dict[int, Known] = {}
        self.log: list[int] = []
        self.deleted: list[list[int]] = []
        self.start = 0

    def append(self, stamp: Stamp, records: Sequence[int]) -> tuple[int, int]:
        """Return the error code and the offset."""
        producer_id, epoch, *_ = stamp.producer
        known, batch = self.known.get(producer_id), (stamp.base_sequence, stamp.records)
        code = self._check(known, epoch, batch)
        if code:
            return code, -1
        batches = known.batches if known is not None and known.epoch == epoch else {}
        if batch in batches:
            return 0, batches[batch]
        offset = self.start + len(self.log)
        self.log += records
        self.known[producer_id] = Known(epoch, dict([*batches.items(), (batch, offset)][-self.release.remembered :]))
        return 0, offset

    def _check(self, known: Known | None, epoch: int, batch: tuple[int, int]) -> int:
        if known is None:
            return self.release.unknown if batch[0] else 0
        if epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if epoch == known.epoch and batch in known.batches:
            return 0
        expected = known.expected if epoch == known.epoch else 0
        if batch[0] == expected:
            return 0
        return self.release.stale if batch[0] < expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def forget(self) -> None:
        """Delete all records, as retention does, and so forget their producers."""
        self.deleted.append(self.log)
        self.start += len(self.log)
        self.log, self.known = [], {}


class Sent(NamedTuple):
    """A request as it is on the wire."""

    request: BrokerProduceRequest
    stamp: Stamp
    records: list[int]


class World:
    """A producer, a broker, and the connection between them. Records are numbers, sent in ascending order."""

    def __init__(self, release: Release) -> None:
        self.broker = ModelBroker(release)
        self.sequences = Sequences(IdempotentProducer(lambda: release.remembered))
        self.sequences.set_identity(7, 0)
        table = Kafka07RoutingTable().apply(BrokersChanged({1: Broker(1, "b1", 9092)})).apply(TopicChanged("t", {1: 1}))
        limits = AccumulatorLimits(100_000, 26, 1000, 5, 0.0, 30.0)
        policy = AnsweringBrokerPolicy()
        self.acc = Accumulator(limits, KeyHash(), lambda _: 0, self.size, table, policy, self.sequences)
        self.topic = self.acc.topic("t", "none")
        self.acc.learned(self.topic)
        self.count = 0
        self.requests: list[Sent] = []
        self.responses: list[tuple[Sent, PartitionProduceResponse]] = []
        self.late: list[Sent] = []
        self.error, self.error_is_written = 0, False
        self.outcomes: dict[int, str] = {}

    @staticmethod
    def size(record: ProducerRecord) -> int:
        return 10 + len(record.value or b"")

    # ---- the producer ----

    def put(self) -> None:
        """Put a full batch: two records."""
        for _ in range(2):
            self.acc.append(self.topic, 13, b"%03d" % self.count, None, None, 0.0)
            self.count += 1

    def send(self) -> None:
        while (request := self.acc.broker_queue(1).next_request(1.0)) is not None:
            (batch,) = request.batches
            stamp = batch.stamp
            assert stamp is not None
            self.requests.append(Sent(request, stamp, numbers(batch)))

    def respond(self) -> None:
        if self.responses:
            sent, answer = self.responses.pop(0)
            response = ProduceResponse(responses=(TopicProduceResponse(name="t", partition_responses=(answer,)),))
            results = read_produce(response, sent.request.batches, address="b1:9092", topic_ids={})
            self.apply(self.acc.complete(sent.request, results))

    def expire(self) -> None:
        """Let the time of the oldest batch be over."""
        batch = next(iter(self.acc.live), None)
        if batch is not None and batch.request is None:
            self.acc.live.time_out(batch)
        elif batch is not None:
            batch.note_overdue("late")
        self.apply(self.acc.effects())

    def apply(self, effects: Effects) -> None:
        assert effects.fatal is None
        for batch in effects.finished:
            self.outcomes |= dict.fromkeys(numbers(batch), type(batch.error).__name__ if batch.error else "written")
        if not self.sequences.ready:
            self.sequences.set_identity(8, 0)

    # ---- the network ----

    def cut(self, *, late: bool = True) -> None:
        """Break the connection. What has not reached the broker may do so later."""
        outstanding = sorted(
            [sent.request for sent, _ in self.responses] + [sent.request for sent in self.requests],
            key=self.acc.broker_queue(1).in_flight.index,
        )
        self.late += self.requests if late else []
        self.requests, self.responses = [], []
        for request in outstanding:
            self.apply(self.acc.retry(request, LOST))

    def drop(self) -> None:
        self.cut(late=False)

    def arrive_late(self) -> None:
        if self.late:
            sent = self.late.pop(0)
            self.broker.append(sent.stamp, sent.records)

    # ---- the broker ----

    def arrive(self) -> None:
        if not self.requests:
            return
        sent, code, offset = self.requests.pop(0), self.error, -1
        if not code or self.error_is_written:
            refused, offset = self.broker.append(sent.stamp, sent.records)
            code = refused or code
        self.error, self.error_is_written = 0, False
        answer = PartitionProduceResponse(
            index=0, error_code=code, base_offset=-1 if code else offset, log_start_offset=self.broker.start
        )
        self.responses.append((sent, answer))

    def refuse(self) -> None:
        self.error, self.error_is_written = ErrorCode.NOT_ENOUGH_REPLICAS, False

    def reject(self) -> None:
        self.error, self.error_is_written = ErrorCode.INVALID_TIMESTAMP, False

    def divide(self) -> None:
        self.error, self.error_is_written = ErrorCode.MESSAGE_TOO_LARGE, False

    def move(self) -> None:
        self.error, self.error_is_written = ErrorCode.NOT_LEADER_OR_FOLLOWER, False

    def time_out(self) -> None:
        self.error, self.error_is_written = ErrorCode.REQUEST_TIMED_OUT, True

    def fail(self) -> None:
        self.error, self.error_is_written = ErrorCode.UNKNOWN_SERVER_ERROR, False

    def fail_written(self) -> None:
        self.error, self.error_is_written = ErrorCode.UNKNOWN_SERVER_ERROR, True

    def forget(self) -> None:
        self.broker.forget()

    # ---- the end ----

    def finish(self) -> None:
        for _ in range(40 * (self.count + 1)):
            self.send()
            self.arrive()
            self.respond()
        while self.late:
            self.arrive_late()
        assert not self.acc.live, "batches without an outcome"

    def check(self) -> None:
        """Compare what the producer has said with what the broker has."""
        logs = [*self.broker.deleted, self.broker.log]
        for log in logs:
            assert log == sorted(set(log)), "doubled, or out of order"
        stored = {number for log in logs for number in log}
        assert self.outcomes.keys() == set(range(self.count))
        for number, outcome in self.outcomes.items():
            assert outcome in ("written", NotWritten.__name__, Rejected.__name__, OutcomeUnknown.__name__)
            assert outcome != "written" or number in stored, "lost"
            assert outcome in ("written", OutcomeUnknown.__name__) or number not in stored, "said not to be written"


class Sequences(BatchSequences):
    async def identify(self) -> None:
        """The world gives the identity."""


def numbers(batch: ProduceBatch) -> list[int]:
    return [int(record.value or b"") for record in batch.as_records()]


COMMON = ("put", "send", "arrive", "respond")


def run(release: Release, events: Sequence[str], *, known: bool = True) -> World:
    """Carry out events, by default after a first batch has made the producer known, and check what became of all."""
    world = World(release)
    for event in (*COMMON, *events) if known else events:
        getattr(world, event)()
    world.finish()
    world.check()
    return world


PASSING = ("cut", "drop", "arrive_late", "refuse", "time_out")
FAULTS = (*PASSING, "expire", "reject", "divide", "fail", "fail_written")

of_every_kind = pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)


def events_of(*kinds: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from([*COMMON * 4, *kinds]), max_size=120)


@of_every_kind
@given(events=events_of(*FAULTS))
def test_nothing_confirmed_is_doubled_lost_or_out_of_order(release: Release, events: list[str]) -> None:
    run(release, events)


@of_every_kind
@given(events=events_of(*FAULTS, "forget"))
def test_so_it_is_where_brokers_forget_the_producer(release: Release, events: list[str]) -> None:
    run(release, events)


@of_every_kind
@example(
    events=["put", "put", "send", "time_out", *["put"] * 4, "arrive", "arrive", "respond", "refuse"], known=True
).via("five batches written behind one that comes again")
@given(events=events_of(*PASSING), known=st.booleans())
def test_what_only_meets_passing_errors_is_written(release: Release, events: list[str], known: bool) -> None:
    world = run(release, events, known=known)
    assert set(world.outcomes.values()) <= {"written"}
    assert world.sequences.producer.identity == ProducerIdentity(7, 0)


ONE, TWO = "put send", "put send put send"

SITUATIONS = {
    "its answer is lost": (f"{ONE} arrive drop", "written"),
    "its request is lost": (f"{ONE} drop", "written"),
    "its request comes after the repetition": (f"{ONE} cut send arrive arrive_late", "written"),
    "it is refused for now": (f"{ONE} refuse arrive", "written"),
    "it is not replicated in time": (f"{ONE} time_out arrive", "written"),
    "the broker fails before it writes": (f"{ONE} fail arrive", "OutcomeUnknown"),
    "the broker fails after it has written": (f"{ONE} fail_written arrive", "OutcomeUnknown"),
    "it is refused for good": (f"{ONE} reject arrive", "Rejected"),
    "it is too large": (f"{ONE} divide arrive", "written"),
    "it is too large for the next leader": (f"{ONE} move arrive respond send divide arrive", "written"),
    "it is too large after its answer was lost": (f"{ONE} arrive drop send divide arrive", "OutcomeUnknown"),
    "the broker has forgotten all before it": (f"forget {ONE}", "written"),
}
"""Events -> the outcome of a batch behind the first, whatever the release."""


@of_every_kind
@pytest.mark.parametrize(("events", "outcome"), SITUATIONS.values(), ids=SITUATIONS)
def test_a_batch_ends_as_its_answers_allow(release: Release, events: str, outcome: str) -> None:
    assert run(release, events.split()).outcomes[2] == outcome


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("0.11", "OutcomeUnknown"),
        ("1.0 to 1.1", "OutcomeUnknown"),
        ("2.0 to 2.4", "OutcomeUnknown"),
        ("2.5 to 4.x", "written"),
    ],
)
def test_a_batch_that_may_be_written_to_a_broker_that_forgot_it_is_not_written_again(kind: str, outcome: str) -> None:
    """Later brokers take the same numbers once more: what they had, they have deleted."""
    assert run(RELEASES[kind], f"{ONE} arrive forget drop".split()).outcomes[2] == outcome


@of_every_kind
@pytest.mark.parametrize(
    "late", ["send arrive arrive_late respond arrive_late", "send arrive respond arrive_late arrive_late"]
)
def test_batches_behind_one_that_was_given_up_are_not_written_twice(release: Release, late: str) -> None:
    """Two batches are lost with a connection, and the time of the first is over: the second is refused for its number.
    Under another one it would be written again, should the lost ones reach the broker after all."""
    world = run(release, f"{TWO} cut expire {late}".split())
    assert world.outcomes[2] == "OutcomeUnknown"
    assert world.outcomes[4] == ("written" if release.remembered == 1 else "OutcomeUnknown")
