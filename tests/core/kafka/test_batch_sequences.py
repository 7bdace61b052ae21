"""Stamps of batches, alone and in the accumulator: what a broker is sent, and what it makes of each answer."""

from __future__ import annotations

from typing import Any

import pytest
from tests.encoded import encoded_columns

from odradek.core.interfaces import AnsweringBrokerPolicy, PartitionResult, ProducerRecord
from odradek.core.interfaces.produce import SEQUENCES
from odradek.core.kafka.batch_sequences import BatchSequences
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.partitioners import Murmur2
from odradek.core.kafka.produce import read_produce
from odradek.core.kafka.producer_state import IdempotentProducer, ProducerIdentity, Stamp
from odradek.core.kafka.routing import BrokerEndpoint, KafkaRoutingTable, Partition, Topic
from odradek.core.kafka.routing_snapshot import RoutingSnapshot
from odradek.core.kafka.versions import BrokerVersions, VersionRange
from odradek.core.kafka07.routing import BrokersChanged, Kafka07RoutingTable, TopicChanged
from odradek.core.produce.accumulator import Accumulator
from odradek.core.produce.batch import AccumulatorLimits, BrokerProduceRequest, Effects, ProduceBatch
from odradek.core.produce.batch_states import BATCH, BatchEvent
from odradek.core.produce.packed_records import EncodedRecords
from odradek.core.produce.partitioners import KeyHash
from odradek.errors import (
    ConnectionLost,
    Fenced,
    MessageTooLarge,
    NotWritten,
    OdradekError,
    OutcomeUnknown,
    Rejected,
    RemoteProtocolError,
)
from odradek.io.kafka.producer_sequences import KafkaProducerSequences
from odradek.types import Broker, Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

WHERE = TopicPartition("t", 0, 1)
LOST = ConnectionLost("b1:9092", "closed", True)
TOO_LARGE = MessageTooLarge("t/0", -1, 100, 50, "max_message_bytes")


class Sequences(BatchSequences):
    """With an identity that comes at once."""

    async def identify(self) -> None:
        self.set_identity(7, 0)


class Bench:
    """An accumulator of one partition, each record a batch unless said otherwise."""

    def __init__(
        self,
        *,
        ready: bool = True,
        known: bool = True,
        batch_bytes: int = 11,
        in_flight: int = 5,
        sequences: KafkaProducerSequences | None = None,
    ) -> None:
        self.sequences = sequences or Sequences(IdempotentProducer())
        producer = self.sequences.producer
        if ready and sequences is None:
            producer.identify(7, 0)
            if known:  # to the broker: all numbers were used once, and the next one is 0 again
                producer.answered(producer.stamp(WHERE, 1 << 31), 0)
        table = Kafka07RoutingTable().apply(BrokersChanged({1: Broker(1, "b1", 9092)})).apply(TopicChanged("t", {1: 1}))
        limits = AccumulatorLimits(10_000, batch_bytes, 1000, in_flight, 0.0, 30.0)
        self.finished: list[ProduceBatch] = []
        self.fatal: OdradekError | None = None
        refusals = AnsweringBrokerPolicy()
        self.acc = Accumulator(limits, KeyHash(), lambda _: 0, self.size, table, refusals, self.sequences)
        self.topic = self.acc.topic("t", "none")
        self.apply(self.acc.learned(self.topic))

    @staticmethod
    def size(record: ProducerRecord) -> int:
        return 10 + len(record.value or b"")

    def put(self, *values: str) -> None:
        for value in values:
            self.acc.append(self.topic, 10 + len(value), value.encode(), None, None, 0.0)

    def send(self) -> list[BrokerProduceRequest]:
        requests = []
        while (request := self.acc.broker_queue(1).next_request(1.0)) is not None:
            requests.append(request)
        return requests

    def answer(self, request: BrokerProduceRequest, code: int = 0, offset: int = -1, log_start: int = -1) -> None:
        error: OdradekError | None = None
        if code == ErrorCode.MESSAGE_TOO_LARGE:
            error = TOO_LARGE
        elif code:
            error = broker_error(code, "broker 1")
        position = None if offset < 0 else Position(offset)
        start = None if log_start < 0 else Position(log_start)
        result = PartitionResult(WHERE, error, position, None, start)
        self.apply(self.acc.complete(request, [result]))

    def apply(self, effects: Effects) -> None:
        self.finished += effects.finished
        self.fatal = self.fatal or effects.fatal

    def outcomes(self) -> list[str]:
        return [
            f"{texts(batch)}: {type(batch.error).__name__ if batch.error else 'written'}" for batch in self.finished
        ]


def texts(batch: ProduceBatch) -> str:
    return " ".join((record.value or b"").decode() for record in batch.as_records())


def stamp(request: BrokerProduceRequest) -> Stamp:
    made = request.batches[0].stamp
    assert made is not None
    return made


def sent(requests: list[BrokerProduceRequest]) -> list[tuple[str, int, int]]:
    """Text, epoch and base sequence of what each request has."""
    return [(texts(r.batches[0]), stamp(r).producer.epoch, stamp(r).base_sequence) for r in requests]


def test_batches_are_numbered_in_the_order_in_which_they_are_taken() -> None:
    bench = Bench(batch_bytes=22)
    bench.put("a", "b", "c")
    assert sent(bench.send()) == [("a b", 0, 0), ("c", 0, 2)]


def test_nothing_is_sent_before_the_producer_has_an_identity() -> None:
    bench = Bench(ready=False)
    bench.put("a")
    assert bench.send() == []
    assert bench.acc.broker_queue(1).next_due() is None
    bench.sequences.producer.identify(7, 0)
    assert sent(bench.send()) == [("a", 0, 0)]


def test_a_producer_that_may_not_be_idempotent_has_one_batch_of_a_partition_in_flight() -> None:
    """A broker that refuses one batch accepts the next: nothing would bring them into their order."""
    bench = Bench(ready=False)
    bench.sequences.disable()
    bench.put("a", "b")
    (first,) = bench.send()
    bench.answer(first, ErrorCode.NOT_ENOUGH_REPLICAS)
    for _ in range(2):
        (request,) = bench.send()
        assert request.batches[0].stamp is None
        bench.answer(request)
    assert bench.outcomes() == ["a: written", "b: written"]


class WithoutNumbers(KafkaProducerSequences):
    """Of a cluster of 2.8. It has an identity."""

    def __init__(self) -> None:
        async def ask(request: object) -> Any:
            raise NotImplementedError

        super().__init__(ask, lambda: BrokerVersions({ProduceRequest.SPEC.key: VersionRange(0, 9)}))
        self.set_identity(7, 0)


def test_a_topic_in_a_format_before_0_11_is_written_without_numbers_one_batch_at_a_time() -> None:
    bench = Bench(sequences=WithoutNumbers())
    bench.put("a", "b")
    (first,) = bench.send()
    bench.answer(first, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    for text in "ab":
        (request,) = bench.send()
        (batch,) = request.batches
        assert (texts(batch), batch.stamp) == (text, None)
        bench.answer(request, offset=0)
    assert bench.outcomes() == ["a: written", "b: written"]


@pytest.mark.parametrize("code", [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.CLUSTER_AUTHORIZATION_FAILED])
def test_batches_that_are_refused_for_their_numbers_go_on_without_them_in_order(code: ErrorCode) -> None:
    """The topic was given an older format; or the client has lost the right, which brokers before 2.8 check with each
    batch."""
    bench = Bench(sequences=WithoutNumbers())
    bench.put("a")
    bench.answer(bench.send()[0], offset=0)
    bench.put("b", "c", "d")
    requests = bench.send()
    assert len(requests) == 3
    for request in requests:
        bench.answer(request, code)
    for text in "bcd":
        (request,) = bench.send()
        assert (texts(request.batches[0]), request.batches[0].stamp) == (text, None)
        bench.answer(request, offset=0)
    assert bench.outcomes() == [f"{text}: written" for text in "abcd"] and bench.fatal is None


def test_a_batch_with_headers_is_rejected_by_a_topic_in_a_format_before_0_11() -> None:
    """It keeps its number, for which it is refused: without one, a broker would answer UNKNOWN_SERVER_ERROR."""
    bench = Bench(sequences=WithoutNumbers())
    bench.put("a")
    bench.answer(bench.send()[0], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    bench.answer(bench.send()[0], offset=0)
    for text in "bc":
        record = ProducerRecord(text.encode(), headers=(("h", b""),))
        bench.acc.append(bench.topic, 11, record, None, None, 0.0)
        (request,) = bench.send()
        assert request.batches[0].stamp is not None
        bench.answer(request, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    bench.put("d")
    (request,) = bench.send()
    assert request.batches[0].stamp is None
    bench.answer(request, offset=1)
    assert bench.outcomes() == ["a: written", "b: Rejected", "c: Rejected", "d: written"]


def test_a_batch_that_is_passed_on_is_rejected_for_its_headers_and_written_without_a_number_else() -> None:
    bench = Bench(sequences=WithoutNumbers())
    for text, headers in (("a", (("h", b""),)), ("b", ()), ("c", (("h", b""),))):
        records = EncodedRecords(encoded_columns([ProducerRecord(text.encode(), None, headers, 5)]))
        bench.acc.append(bench.topic, 80, records, WHERE, object(), 0.0)
        (request,) = bench.send()
        bench.answer(request, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
        for again in bench.send():
            assert again.batches[0].stamp is None
            bench.answer(again, offset=0)
    assert bench.outcomes() == ["a: Rejected", "b: written", "c: Rejected"]


def test_a_batch_in_doubt_is_not_written_again_once_the_right_to_be_idempotent_is_lost() -> None:
    bench = Bench(sequences=WithoutNumbers())
    bench.put("z")
    bench.answer(bench.send()[0], offset=0)
    bench.put("a", "b")
    first, second = bench.send()
    bench.apply(bench.acc.retry(first, LOST))
    bench.answer(second, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    bench.answer(bench.send()[0], ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    bench.answer(bench.send()[0], offset=0)
    assert bench.outcomes() == ["z: written", "a: OutcomeUnknown", "b: written"] and bench.fatal is None


def test_a_batch_that_may_be_written_with_a_number_is_not_written_without_one() -> None:
    bench = Bench(sequences=WithoutNumbers())
    bench.put("a")
    bench.apply(bench.acc.retry(bench.send()[0], LOST))
    bench.answer(bench.send()[0], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    assert bench.outcomes() == ["a: OutcomeUnknown"]


def test_no_more_than_five_batches_of_a_partition_are_in_flight() -> None:
    bench = Bench(in_flight=100)
    bench.put(*"abcdefg")
    requests = bench.send()
    assert sent(requests) == [(text, 0, n) for n, text in enumerate("abcde")]
    bench.answer(requests[0])
    assert sent(bench.send()) == [("f", 0, 5)]


def test_a_batch_keeps_its_stamp_on_every_attempt() -> None:
    bench = Bench()
    bench.put("a", "b")
    first = bench.send()
    stamps = [stamp(request) for request in first]
    bench.apply(bench.acc.retry(first[0], LOST))
    bench.apply(bench.acc.retry(first[1], LOST))
    again = bench.send()
    assert [stamp(request) for request in again] == stamps
    bench.answer(again[0], ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    bench.answer(again[1], 0, 5)
    assert bench.outcomes() == ["a: written", "b: written"]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_after_a_passing_error_all_batches_go_again_in_order_with_their_stamps(code: int) -> None:
    bench = Bench()
    bench.put("a", "b", "c")
    requests = bench.send()
    bench.answer(requests[0], code)
    assert bench.send() == []
    bench.answer(requests[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    bench.answer(requests[2], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert sent(bench.send()) == [("a", 0, 0), ("b", 0, 1), ("c", 0, 2)]
    assert bench.finished == [] and bench.fatal is None


def test_a_batch_that_is_refused_frees_its_numbers_for_those_behind_it() -> None:
    bench = Bench()
    bench.put("a", "b")
    requests = bench.send()
    bench.answer(requests[0], ErrorCode.INVALID_TIMESTAMP)
    bench.answer(requests[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert bench.outcomes() == ["a: Rejected"]
    assert sent(bench.send()) == [("b", 0, 0)]


def test_a_batch_that_is_too_large_goes_in_halves_with_numbers_of_their_own() -> None:
    bench = Bench(batch_bytes=22)
    bench.put("a", "b", "c")
    requests = bench.send()
    bench.answer(requests[0], ErrorCode.MESSAGE_TOO_LARGE)
    bench.answer(requests[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    again = bench.send()
    assert sent(again) == [("a", 0, 0), ("b", 0, 1), ("c", 0, 2)]
    for request in again:
        bench.answer(request)
    assert bench.outcomes() == ["a: written", "b: written", "c: written"]


def test_a_batch_that_a_former_leader_refused_is_still_divided_if_it_is_too_large() -> None:
    bench = Bench(batch_bytes=22)
    bench.put("a", "b")
    for code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.MESSAGE_TOO_LARGE):
        (request,) = bench.send()
        partition = PartitionProduceResponse(index=0, error_code=code, base_offset=-1)
        response = ProduceResponse(responses=(TopicProduceResponse(name="t", partition_responses=(partition,)),))
        results = read_produce(response, request.batches, address="b1:9092", topic_ids={})
        bench.apply(bench.acc.complete(request, results))
    assert sent(bench.send()) == [("a", 0, 0), ("b", 0, 1)]


def test_one_record_that_is_too_large_is_refused() -> None:
    bench = Bench()
    bench.put("a", "b")
    requests = bench.send()
    bench.answer(requests[0], ErrorCode.MESSAGE_TOO_LARGE)
    assert bench.outcomes() == ["a: Rejected"]
    assert isinstance(bench.finished[0].error, Rejected)


def test_a_gap_that_cannot_be_closed_raises_the_epoch() -> None:
    bench = Bench()
    bench.put("a", "b")
    requests = bench.send()
    bench.answer(requests[0], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    bench.answer(requests[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    first = bench.send()
    assert sent(first) == [("a", 1, 0)]
    bench.answer(first[0])
    assert sent(bench.send()) == [("b", 1, 1)]


def test_until_the_broker_knows_the_producer_batches_go_one_by_one() -> None:
    bench = Bench(known=False)
    bench.put("a", "b", "c")
    (first,) = bench.send()
    bench.answer(first, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    (again,) = bench.send()
    assert stamp(again).base_sequence == 0 and bench.send() == []
    bench.answer(again)
    assert sent(bench.send()) == [("b", 0, 1), ("c", 0, 2)]


def test_a_number_that_was_freed_belongs_to_the_batch_that_has_it_now() -> None:
    bench = Bench()
    bench.put("a", "b", "c")
    requests = bench.send()
    bench.answer(requests[0], ErrorCode.INVALID_TIMESTAMP)
    for request in requests[1:]:
        bench.answer(request, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    again = bench.send()
    assert sent(again) == [("b", 0, 0), ("c", 0, 1)]
    for request in again:
        bench.answer(request)
    assert bench.outcomes() == ["a: Rejected", "b: written", "c: written"]
    assert "0 batches" in repr(bench.sequences)


def test_records_deleted_by_retention_raise_the_epoch() -> None:
    bench = Bench()
    bench.put("a", "b")
    bench.answer(bench.send()[0], 0, 100)
    bench.put("c")
    request = bench.acc.broker_queue(1).in_flight[0]
    bench.answer(request, ErrorCode.UNKNOWN_PRODUCER_ID, log_start=500)
    assert sent(bench.send())[0] == ("b", 1, 0)


def test_a_batch_given_up_without_an_answer_leaves_a_gap_that_the_next_epoch_closes() -> None:
    bench = Bench()
    bench.put("a", "b")
    requests = bench.send()
    bench.apply(bench.acc.retry(requests[0], LOST))
    bench.acc.live.time_out(requests[0].batches[0])
    bench.put("c")
    assert bench.send() == []
    bench.answer(requests[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    sent_now = bench.send()
    assert isinstance(requests[0].batches[0].error, OutcomeUnknown)
    assert stamp(sent_now[0]).producer == ProducerIdentity(7, 1)
    assert sent(sent_now[:1]) == [("b", 1, 0)]


def test_a_batch_given_up_before_it_was_written_leaves_no_gap() -> None:
    bench = Bench()
    bench.put("a", "b")
    for request in bench.send():
        bench.apply(bench.acc.requeue(request))
    first = next(iter(bench.acc.live))
    bench.acc.live.time_out(first)
    assert isinstance(first.error, NotWritten)
    (request,) = bench.send()
    bench.answer(request, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert sent(bench.send()) == [("b", 0, 0)]


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
def test_another_producer_with_the_same_identity_ends_this_one(code: int) -> None:
    bench = Bench()
    bench.put("a")
    bench.answer(bench.send()[0], code)
    assert isinstance(bench.fatal, Fenced)


def test_missing_rights_end_the_producer() -> None:
    bench = Bench()
    bench.put("a")
    bench.answer(bench.send()[0], ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert bench.fatal is not None and bench.fatal.fatal


def test_an_answer_that_cannot_be_is_no_outcome() -> None:
    bench = Bench()
    bench.put("a")
    request = bench.send()[0]
    before = stamp(request)
    bench.apply(bench.acc.complete(request, [PartitionResult(WHERE, RemoteProtocolError("no such partition"))]))
    assert [stamp(again) for again in bench.send()] == [before]
    assert "1 batches" in repr(bench.sequences)


def test_records_that_the_broker_names_are_refused_alone() -> None:
    bench = Bench(batch_bytes=33)
    bench.put("a", "b", "c", "d")
    requests = bench.send()
    error = broker_error(ErrorCode.INVALID_RECORD, "broker 1")
    result = PartitionResult(WHERE, error, record_errors={1: "no key", 9: "no such row"})
    bench.apply(bench.acc.complete(requests[0], [result]))
    bench.answer(requests[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert bench.outcomes() == ["b: Rejected"]
    assert "no key" in str(bench.finished[0].error)
    first, second = bench.send()
    bench.answer(first)
    bench.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert sent(bench.send()) == [("d", 0, 2)]


def test_batches_that_waited_for_another_id_get_its_stamps() -> None:
    bench = Bench(ready=False)
    bench.sequences.set_identity(7, 0x7FFF)
    bench.put("a")
    bench.answer(bench.send()[0], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert not bench.sequences.ready and bench.send() == []
    bench.sequences.set_identity(8, 0)
    (request,) = bench.send()
    assert stamp(request) == Stamp(WHERE, ProducerIdentity(8, 0), 0, 1)


def test_a_batch_in_doubt_that_the_broker_does_not_recognise_ends_with_the_cause() -> None:
    bench = Bench()
    bench.put("a", "b")
    requests = bench.send()
    bench.apply(bench.acc.retry(requests[0], LOST))
    bench.answer(requests[1], ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    (first, second) = bench.send()
    bench.answer(first, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    bench.answer(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert bench.outcomes() == ["a: OutcomeUnknown"]
    assert "cannot be sent again" in str(bench.finished[0].error)
    assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in str(bench.finished[0].error)
    assert sent(bench.send()) == [("b", 1, 0)]


def routing(version: int, *leaders: int) -> RoutingSnapshot:
    """A table of the topic t whose partitions have these leaders: broker 1, or -1 for none."""
    partitions = {number: Partition(leader) for number, leader in enumerate(leaders)}
    topic = Topic("t", partitions=partitions)
    return RoutingSnapshot(version, KafkaRoutingTable({1: BrokerEndpoint(1, "b", 9092)}, {"t": topic}))


def test_a_batch_that_was_sent_goes_before_older_ones_that_come_from_partitions_which_are_no_more() -> None:
    """A topic was deleted, and made again with fewer partitions. The number of that batch is the first of its
    partition, so that nothing can be written there before it."""
    sequences = Sequences(IdempotentProducer())
    sequences.producer.identify(7, 0)
    limits = AccumulatorLimits(10_000, 1000, 1000, 5, 0.0, 30.0)

    def by_key(topic: str, key: bytes | None, partitions: int) -> int:
        return int(key or b"") % partitions

    acc = Accumulator(limits, by_key, lambda _: 0, Bench.size, routing(1, 1, 1), AnsweringBrokerPolicy(), sequences)
    topic = acc.topic("t", "none")
    acc.learned(topic)
    for key in (b"1", b"0"):
        acc.append(topic, 11, ProducerRecord(b"for " + key, key), None, None, 0.0)
    request = acc.broker_queue(1).next_request(1.0)
    assert request is not None and len(request.batches) == 2
    error = ErrorCode.UNKNOWN_TOPIC_ID
    acc.complete(request, [PartitionResult(batch.partition, broker_error(error, "")) for batch in request.batches])
    acc.route(routing(2, 1))
    for value in ("for 0", "for 1"):
        request = acc.broker_queue(1).next_request(2.0)
        assert request is not None and [texts(batch) for batch in request.batches] == [value]
        acc.complete(request, [PartitionResult(TopicPartition("t", 0), None, Position(0))])
    assert not acc.live


def test_batches_with_a_stamp_go_in_the_order_of_their_numbers_whatever_their_age() -> None:
    """An older batch that came from another partition has got its number behind one that was there before."""
    bench = Bench()
    queue = bench.topic.queues[WHERE]
    batches = [ProduceBatch(queue, age, 0.0, False) for age in range(5)]
    for batch, sequence in zip(batches, (2, None, SEQUENCES - 1, None, 0), strict=True):
        if sequence is not None:
            batch.stamp = Stamp(WHERE, ProducerIdentity(7, 0), sequence, 1)
    for event in (BatchEvent.SEND, BatchEvent.ANSWER, BatchEvent.RETURN):
        for batch in batches:
            batch.state = BATCH.after(batch.state, event)
    queue.merge(batches)
    assert [batch.sequence for batch in queue.batches] == [2, 4, 0, 1, 3]


def test_records_without_a_preference_go_to_partitions_with_a_leader() -> None:
    table = routing(1, -1, 1, -1)
    limits = AccumulatorLimits(10_000, 11, 1000, 5, 0.0, 30.0)
    acc = Accumulator(limits, Murmur2(), lambda count: count - 1, Bench.size, table, AnsweringBrokerPolicy())
    topic = acc.topic("t", "none")
    acc.learned(topic)
    for value in (b"a", b"b"):
        acc.append(topic, 11, value, None, None, 0.0)
    acc.append(topic, 11, ProducerRecord(b"c", b"key"), None, None, 0.0)
    waiting = {queue.partition.partition: len(queue.batches) for queue in topic.queues.values() if queue.batches}
    keyed = Murmur2()("t", b"key", 3)
    assert waiting == ({1: 3} if keyed == 1 else {1: 2, keyed: 1})
