"""The short way of a record (`Accumulator.appender`) leads to what `append` leads to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek import engine
from odradek.core.interfaces import ProducerRecord
from odradek.core.kafka07.refusal import ClosingBrokerPolicy
from odradek.core.kafka07.routing import BrokersChanged, Kafka07RoutingTable, TopicChanged
from odradek.core.produce.accumulator import Accumulator
from odradek.core.produce.batch import AccumulatorLimits, as_record
from odradek.core.produce.partitioners import KeyHash, Partitioner, RoundRobin
from odradek.types import Broker, TopicPartition

FIRST = TopicPartition("t", 0, 1)
Row = tuple[bytes, bytes | None, bool]
"""Value, key, and whether it goes to `FIRST`."""


def routing(partitions: int) -> Kafka07RoutingTable:
    routing = Kafka07RoutingTable().apply(BrokersChanged({1: Broker(1, "b1", 9092)}))
    return routing.apply(TopicChanged("t", {1: partitions}))


def record_size(record: ProducerRecord) -> int:
    return 10 + len(record.value or b"") + 2 * len(record.key or b"")


def accumulator(partitioner: Partitioner | None = None) -> Accumulator:
    limits = AccumulatorLimits(4000, 100, 1000, 5, 1.0, 30.0)
    numbers = iter(range(1_000_000))
    made = Accumulator(
        limits,
        partitioner or KeyHash(),
        lambda count: next(numbers) % count,
        record_size,
        routing(3),
        ClosingBrokerPolicy(),
    )
    made.learned(made.topic("t", "none"))
    made.live.admit(limits.buffer_bytes)
    return made


def append(acc: Accumulator, row: Row) -> Any:
    value, key, placed = row
    record = value if key is None else ProducerRecord(value, key)
    return acc.append(acc.topics["t"], record_size(as_record(record)), record, FIRST if placed else None, None, 0.0)


def state(acc: Accumulator) -> Any:
    batches = [
        (each.partition, each.as_records(), each.size, each.explicit_partition, each.queue.open is each)
        for each in acc.live
    ]
    return batches, acc.live.buffered_bytes


rows = st.lists(st.tuples(st.binary(max_size=95), st.none() | st.binary(max_size=3), st.booleans()), max_size=30)


@pytest.mark.parametrize("name", ["pure", "compiled"])
@settings(max_examples=50, deadline=None)
@given(rows=rows)
def test_the_short_way_leads_to_the_same_batches(name: str, rows: list[Row]) -> None:
    before = engine.active.NAME
    engine.use(name)
    try:
        short, long = accumulator(), accumulator()
        add = short.appender(60, 1000)
        for row in rows:
            added = not row[2] and add("t", *row[:2])
            due = append(long, row)
            assert due == () if added else append(short, row) == due
            assert state(short) == state(long)
    finally:
        engine.use(before)


class Other(KeyHash):
    def __call__(self, topic: str, key: bytes | None, count: int) -> int | None:
        return 2


def test_a_subclass_of_a_known_rule_is_asked_for_every_key() -> None:
    acc = accumulator(Other())
    add = acc.appender(60, 1000)
    append(acc, (b"one", b"key", False))
    append(acc, (b"two", None, False))
    assert add("t", b"three", b"key") is False
    assert add("t", b"four", None) is True


def test_a_partitioner_that_sees_every_record_is_asked_for_each() -> None:
    acc = accumulator(RoundRobin())
    append(acc, (b"one", None, False))
    assert acc.appender(60, 1000)("t", b"two", None) is False


def with_keys(count: int) -> Accumulator:
    """Return one with a batch of one partition, to which all but the first of its records came by the short way."""
    acc = accumulator()
    add = acc.appender(60, 1000)
    append(acc, (b"0", b"key", False))
    assert all(add("t", b"%d" % number, b"key") for number in range(1, count))
    return acc


def test_its_records_move_to_other_partitions_with_their_keys() -> None:
    acc = with_keys(3)
    (batch,) = acc.live
    size = batch.size
    assert batch.partition != FIRST
    acc.route(routing(1))
    (moved,) = acc.live
    assert moved.as_records() == [ProducerRecord(b"%d" % number, b"key") for number in range(3)]
    assert (moved.partition, moved.size) == (FIRST, size)


def test_its_records_fail_as_records() -> None:
    acc = with_keys(2)
    (batch,) = acc.live
    acc.live.time_out(batch)
    assert batch.error is not None
    assert batch.error.records == [ProducerRecord(b"0", b"key"), ProducerRecord(b"1", b"key")]
    assert acc.live.buffered_bytes == 0
