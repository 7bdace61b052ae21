"""Which partitions an accumulator takes for missing, and which records it then refuses, by table."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from odradek.core.interfaces import AnsweringBrokerPolicy, PartitionResult, ProducerRecord
from odradek.core.kafka.partitioners import Murmur2
from odradek.core.kafka.routing import BrokerEndpoint, KafkaRoutingTable, Partition, Topic
from odradek.core.kafka.routing_snapshot import RoutingSnapshot
from odradek.core.produce.accumulator import Accumulator
from odradek.core.produce.batch import AccumulatorLimits, Effects
from odradek.errors import BrokerError, ConnectionLost, Rejected
from odradek.types import TopicPartition

STALE = BrokerError(3, "UNKNOWN_TOPIC_OR_PARTITION", retriable=True, refresh_metadata=True)
LOST = ConnectionLost("b:9092", "closed", True)


def table(version: int, numbers: Iterable[int], leader: int = 1) -> RoutingSnapshot:
    topic = Topic("t", partitions={number: Partition(leader) for number in numbers})
    return RoutingSnapshot(version, KafkaRoutingTable({1: BrokerEndpoint(1, "b", 9092)}, {"t": topic}))


class Bench:
    """An accumulator with a topic `t` that has these partitions; its batches take two values of one byte."""

    def __init__(self, numbers: Iterable[int], *, known: bool = True, numbers_by_broker: bool = False) -> None:
        self.acc = Accumulator(
            AccumulatorLimits(10_000, 22, 1000, 5, 0.0, 30.0),
            Murmur2(),
            lambda count: 0,
            lambda record: 10 + len(record.value or b""),
            table(1, numbers),
            AnsweringBrokerPolicy(),
            numbers_by_broker=numbers_by_broker,
        )
        self.t = self.acc.topic("t", "none")
        self.version = 1
        if known:
            self.acc.learned(self.t)

    def put(self, value: str, number: int | None, broker: int = -1) -> None:
        partition = None if number is None else TopicPartition("t", number, broker)
        record = value.encode() if number is not None else ProducerRecord(value.encode(), b"key")
        assert self.acc.append(self.t, 10 + len(value), record, partition, None, 0.0) is not None

    def route(self, *numbers: int, leader: int = 1) -> None:
        self.version += 1
        self.acc.route(table(self.version, numbers, leader))

    def missing(self) -> list[int]:
        return [queue.partition.partition for queue in self.acc.missing]


def values(effects: Effects) -> list[tuple[str, str]]:
    """What was finished: values, and the reason."""
    return [
        (" ".join((record.value or b"").decode() for record in batch.as_records()), batch.error.why)
        for batch in effects.finished
        if batch.error is not None
    ]


@pytest.mark.parametrize(
    ("has", "number", "broker", "missing"),
    [
        ([0, 1, 2], 3, -1, True),
        ([0, 1, 2], 2, -1, False),
        ([0], 2**31 - 1, -1, True),
        ([0, 1, 2], 1, 1, True),
        ([0, 2], 1, -1, False),
        ([0, 2], 3, -1, True),
        ([], 0, -1, False),
        ([], 3, 1, False),
    ],
)
@pytest.mark.parametrize("known", [True, False], ids=["known before", "learned after"])
def test_a_partition_is_missing_behind_the_last_one_of_a_topic_that_has_some(
    has: list[int], number: int, broker: int, missing: bool, known: bool
) -> None:
    bench = Bench(has, known=known)
    bench.put("a", number, broker)
    if not known:
        assert not bench.acc.missing
        bench.acc.learned(bench.t)
    assert bench.missing() == ([number] if missing else [])


def test_where_brokers_number_their_partitions_none_is_missing() -> None:
    bench = Bench([0], numbers_by_broker=True)
    bench.put("a", 3, 1)
    bench.put("b", 3)
    bench.route(0, 1)
    assert not bench.acc.missing and not bench.acc.take_missing()


def test_records_without_an_explicit_partition_are_never_missing() -> None:
    bench = Bench([0, 1, 2])
    bench.put("a", None)
    bench.put("b", 0)
    bench.route(0)
    assert not bench.acc.missing
    assert [len(queue.batches) for queue in bench.t.available_queues] == [2]  # moved


def test_what_was_sent_before_is_refused_and_what_comes_later_is_missing_again() -> None:
    bench = Bench([0])
    for value in "abc":
        bench.put(value, 3)
    taken = bench.acc.take_missing()
    assert not bench.acc.missing
    bench.put("d", 3)  # the batch of `c` had space
    assert bench.missing() == [3]
    why = "t has no partition 3: it has 1, numbered from 0"
    effects = bench.acc.refuse_missing(taken)
    assert values(effects) == [("a b", why), ("c", why)]
    assert {type(batch.error) for batch in effects.finished} == {Rejected}
    assert values(bench.acc.refuse_missing(bench.acc.take_missing())) == [("d", why)]
    assert not bench.acc.live and not bench.acc.live.buffered_bytes
    assert not bench.acc.still_missing(taken)


@pytest.mark.parametrize(
    ("numbers", "leader", "left"),
    [((0, 1, 2, 3), 1, []), ((0, 1, 2, 3), -1, []), ((), 1, []), ((0, 1), 1, [3]), ((0, 4), 1, [])],
    ids=["added", "added without a leader", "deleted", "another added", "partly reported"],
)
def test_only_what_is_still_missing_is_refused(numbers: tuple[int, ...], leader: int, left: list[int]) -> None:
    bench = Bench([0])
    bench.put("a", 3)
    taken = bench.acc.take_missing()
    bench.route(*numbers, leader=leader)
    assert [queue.partition.partition for queue in bench.acc.still_missing(taken)] == left
    assert len(bench.acc.refuse_missing(taken).finished) == len(left)
    if 3 in numbers and leader == 1:
        request = bench.acc.broker_queue(1).next_request(0.0)
        assert request is not None and [batch.partition.partition for batch in request.batches] == [3]


def test_a_partition_that_a_table_does_not_have_any_more_is_missing() -> None:
    bench = Bench([0, 3])
    bench.put("a", 3)
    assert not bench.acc.missing
    bench.route(0)
    assert bench.missing() == [3]


@pytest.mark.parametrize("lost", [False, True], ids=["refused by the broker", "connection lost"])
def test_what_comes_back_for_a_missing_partition_is_refused_unless_it_may_be_written(lost: bool) -> None:
    bench = Bench([0, 3])
    bench.put("a", 3)
    request = bench.acc.broker_queue(1).next_request(0.0)
    assert request is not None
    bench.route(0)
    assert not bench.acc.missing  # it is on the wire
    if lost:
        bench.acc.retry(request, LOST)
    else:
        bench.acc.complete(request, [PartitionResult(TopicPartition("t", 3), error=STALE)])
    assert bench.missing() == [3]
    effects = bench.acc.refuse_missing(bench.acc.take_missing())
    assert len(effects.finished) == (not lost) and len(bench.acc.live) == lost
    assert all(batch.error is not None and batch.error.__cause__ is STALE for batch in effects.finished)


def test_a_batch_whose_time_is_up_meanwhile_is_left_alone() -> None:
    bench = Bench([0])
    bench.put("a", 3)
    taken = bench.acc.take_missing()
    (batch,) = bench.acc.live
    bench.acc.live.time_out(batch)
    assert not bench.acc.still_missing(taken)
    assert [finished.error for finished in bench.acc.refuse_missing(taken).finished] == [batch.error]
