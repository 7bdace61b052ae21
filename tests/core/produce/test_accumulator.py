"""The accumulator by table: records in at given times, requests out, outcomes back. No clock, no loop, no chance."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.columns import PRODUCER_RECORDS, packed_records

from odradek.core.interfaces import PartitionResult, ProducerIdentity, ProducerRecord, Stamp
from odradek.core.kafka07.refusal import MAX_REFUSALS, ClosingBrokerPolicy
from odradek.core.kafka07.routing import BrokersChanged, Kafka07RoutingTable, TopicChanged
from odradek.core.produce.accumulator import Accumulator
from odradek.core.produce.batch import (
    PACKED_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    AccumulatorLimits,
    BrokerProduceRequest,
    Effects,
    ProduceBatch,
)
from odradek.core.produce.live_batches import MAX_REUSABLE
from odradek.core.produce.packed_records import PackedRecords
from odradek.core.produce.partitioners import KeyHash, Partitioner, RoundRobin
from odradek.engine import PackedBytes
from odradek.errors import (
    BrokerError,
    ConfigError,
    ConnectionLost,
    DeadlineError,
    LocalProtocolError,
    MessageTooLarge,
    NotWritten,
    OdradekError,
    OutcomeUnknown,
    Rejected,
    Unreachable,
)
from odradek.types import Broker, Position, TopicPartition

CLOSED = ConnectionLost("b1:9092", "closed", True)
UNSENT = ConnectionLost("b1:9092", "closed", False)
REFUSED = Unreachable("tcp", "b1:9092", "refused")
SILENT = DeadlineError("produce", 10, True)


def table(counts: dict[str, dict[int, int]], *live: int) -> Kafka07RoutingTable:
    routing = Kafka07RoutingTable().apply(BrokersChanged({n: Broker(n, f"b{n}", 9092) for n in live}))
    for topic, published in counts.items():
        routing = routing.apply(TopicChanged(topic, published))
    return routing


def newer(old: Kafka07RoutingTable, *live: int) -> Kafka07RoutingTable:
    return old.apply(BrokersChanged({n: Broker(n, f"b{n}", 9092) for n in live}))


def record_size(record: ProducerRecord) -> int:
    return 10 + len(record.value or b"")


class Bench:
    """An accumulator with a topic `t`, and short names for what tests do with it."""

    def __init__(
        self,
        routing: Kafka07RoutingTable | None = None,
        *,
        buffer_bytes: int = 10_000,
        batch_bytes: int = 50,
        request_bytes: int = 1000,
        in_flight: int = 5,
        reorder: bool = False,
        partition_in_flight: int = 1000,
        partitioner: Partitioner | None = None,
        randrange: Any = lambda count: 0,
        record_size: Callable[[ProducerRecord], int] | None = None,
    ) -> None:
        self.routing = routing or table({"t": {1: 2}}, 1)
        limits = AccumulatorLimits(
            buffer_bytes, batch_bytes, request_bytes, in_flight, 1.0, 30.0, reorder, partition_in_flight
        )
        self.due: list[int] = []
        self.finished: list[ProduceBatch] = []
        self.acc = Accumulator(
            limits,
            partitioner or KeyHash(),
            randrange,
            record_size or (lambda r: 10 + len(r.value or b"")),
            self.routing,
            ClosingBrokerPolicy(),
        )
        self.t = self.acc.topic("t", "none")
        self.apply(self.acc.learned(self.t))

    def put(
        self, value: str, *, at: float = 0.0, to: int | None = None, key: bytes | None = None, waiter: object = None
    ) -> None:
        record = value.encode() if key is None else ProducerRecord(value.encode(), key)
        partition = None if to is None else TopicPartition("t", to, 1)
        due = self.acc.append(self.t, 10 + len(value), record, partition, waiter, at)
        assert due is not None
        self.due += due

    def apply(self, effects: Effects) -> list[ProduceBatch]:
        self.due += effects.due
        self.finished += effects.finished
        return list(effects.finished)

    def next(self, now: float = 0.0, broker: int = 1) -> BrokerProduceRequest:
        request = self.acc.broker_queue(broker).next_request(now)
        assert request is not None
        return request

    def values(self, request: BrokerProduceRequest) -> list[str]:
        return [texts(batch) for batch in request.batches]

    def confirm(self, request: BrokerProduceRequest) -> list[ProduceBatch]:
        return self.apply(self.acc.complete(request, None))

    def retry(
        self, request: BrokerProduceRequest, error: OdradekError, *, answered: bool = False
    ) -> list[ProduceBatch]:
        return self.apply(self.acc.retry(request, error, answered=answered))

    def requeue(self, request: BrokerProduceRequest) -> None:
        self.apply(self.acc.requeue(request))

    def route(self, routing: Kafka07RoutingTable) -> None:
        self.apply(self.acc.route(routing))

    def append_run(self, rows: Any, start: int, max_record: int, to: TopicPartition | None = None) -> int:
        end, due = self.acc.append_run(self.t, rows, start, max_record, to, "waiter", 0.0)
        self.due += due
        return end


def texts(batch: ProduceBatch) -> str:
    return " ".join((record.value or b"").decode() for record in batch.as_records())


# ---- batching -------------------------------------------------------------------------------------------------


def test_an_idle_broker_is_sent_what_there_is_at_once() -> None:
    bench = Bench()
    bench.put("a")
    assert bench.due == [1]
    assert bench.values(bench.next()) == ["a"]
    assert bench.acc.broker_queue(1).next_request(99.0) is None


def answered(*, at: float) -> Bench:
    """A broker that has answered a request that left at 10.0; then something was put that nobody waits for."""
    bench = Bench()
    bench.put("a", at=10.0)
    bench.confirm(bench.next(10.0))
    bench.put("b", at=at)
    return bench


@pytest.mark.parametrize(
    ("put", "due"),
    [(10.0, 11.0), (10.4, 11.0), (11.0, 11.0), (11.5, 11.5)],
    ids=["same time", "soon after", "a latency after", "later"],
)
def test_a_broker_that_answers_quickly_is_sent_what_nobody_waits_for_once_in_a_latency(put: float, due: float) -> None:
    bench = answered(at=put)
    assert bench.acc.broker_queue(1).next_due() == due
    if put < due:
        assert bench.acc.broker_queue(1).next_request(due - 0.1) is None
    assert bench.values(bench.next(due)) == ["b"]


def test_what_somebody_waits_for_takes_along_at_once_what_is_there() -> None:
    bench = answered(at=10.1)
    assert bench.acc.broker_queue(1).next_request(10.2) is None
    bench.due.clear()
    bench.put("c", at=10.2, waiter="waiting")
    bench.put("d", at=10.2, to=1, waiter="waiting")
    assert bench.due == [1]
    assert bench.acc.broker_queue(1).next_due() == 10.1
    assert bench.values(bench.next(10.2)) == ["b c", "d"]


def test_a_run_that_somebody_waits_for_goes_at_once() -> None:
    bench = answered(at=10.1)
    assert bench.acc.append_run(bench.t, [b"c"], 0, 100, None, "waiting", 10.2) == (1, (1,))
    assert bench.values(bench.next(10.2)) == ["b c"]


def test_a_sent_record_with_a_waiter_does_not_expedite_later_records() -> None:
    bench = Bench(request_bytes=20)
    bench.put("a", at=10.0, to=0)
    bench.put("b", at=10.0, to=1, waiter="waiting")
    bench.confirm(bench.next(10.0))
    request = bench.next(10.0)  # there was no room for it in the first
    assert bench.values(request) == ["b"]
    bench.confirm(request)
    bench.put("c", at=10.0)
    assert bench.acc.broker_queue(1).next_due() == 11.0


def test_while_a_request_is_in_flight_batches_wait_for_their_latency() -> None:
    bench = Bench()
    bench.put("a")
    bench.next()
    bench.put("b", at=5.0)
    bench.put("c", at=5.9)
    assert bench.acc.broker_queue(1).next_request(5.9) is None
    assert bench.acc.broker_queue(1).next_due() == 6.0  # counted from the first record
    assert bench.values(bench.next(6.0)) == ["b c"]


def test_while_a_request_is_in_flight_a_full_batch_goes_at_once() -> None:
    bench = Bench()
    bench.put("a")
    bench.next()
    bench.due.clear()
    for letter in "bcdef":
        bench.put(letter, at=1.0)
    assert bench.due == [1, 1]  # when the batch began, and when the next one did
    assert bench.values(bench.next(1.0)) == ["b c d e"]


def test_a_batch_that_reaches_its_size_exactly_is_full() -> None:
    bench = Bench()
    bench.put("x" * 40)
    assert bench.acc.live and next(iter(bench.acc.live)).queue.open is None


def test_a_record_larger_than_a_batch_travels_alone() -> None:
    bench = Bench()
    for value in ("a", "x" * 200, "b"):
        bench.put(value)
    assert [texts(batch) for batch in bench.acc.live] == ["a", "x" * 200, "b"]


def test_one_request_takes_the_oldest_batch_of_every_partition() -> None:
    bench = Bench()
    for value, to in (("a", 0), ("b", 1), ("c", 0)):
        bench.put(value, to=to)
    request = bench.next()
    assert [str(batch.partition) for batch in request.batches] == ["t/1-0", "t/1-1"]
    assert bench.values(request) == ["a c", "b"]


def test_a_batch_that_is_due_takes_along_only_those_that_have_waited_nearly_as_long() -> None:
    bench = Bench(table({"t": {1: 4}}, 1))
    bench.put("a", to=0, at=10.0)
    bench.confirm(bench.next(10.0))  # with a latency of 1 s
    for number, at in enumerate((10.1, 10.2, 10.3, 10.4)):
        bench.put(f"{number}", to=number, at=at)
    assert bench.acc.broker_queue(1).next_request(10.9) is None
    assert bench.values(bench.next(11.0)) == ["0", "1"]  # at least three quarters of it
    assert bench.acc.broker_queue(1).next_due() == 11.3
    assert bench.values(bench.next(11.3)) == ["2", "3"]


def test_a_full_batch_takes_along_only_those_that_have_waited_nearly_their_latency() -> None:
    bench = Bench(table({"t": {1: 3}}, 1))
    bench.put("a", to=0, at=10.0)
    bench.confirm(bench.next(10.0))
    for value, to, at in (("old", 1, 10.0), ("young", 2, 10.5), ("x" * 40, 0, 10.8)):
        bench.put(value, to=to, at=at)
    assert bench.values(bench.next(10.8)) == ["old", "x" * 40]
    assert bench.acc.broker_queue(1).next_request(10.8) is None


def test_full_batches_do_not_starve_an_older_one_that_is_not_full() -> None:
    bench = Bench(table({"t": {1: 3}}, 1), request_bytes=60)
    bench.put("a", to=0, at=10.0)
    bench.confirm(bench.next(10.0))
    bench.put("old", to=1, at=10.0)
    for to in (0, 2):
        bench.put("x" * 40, to=to, at=10.9)
    assert bench.values(bench.next(11.0)) == ["old"]
    assert bench.values(bench.next(11.0)) == ["x" * 40]


def test_a_request_is_bounded_and_the_oldest_batches_go_first() -> None:
    bench = Bench(table({"t": {1: 5}}, 1), request_bytes=30)
    for value, to in (("a" * 10, 3), ("b" * 15, 1), ("c", 2)):
        bench.put(value, to=to)
    assert bench.values(bench.next()) == ["a" * 10]
    assert bench.values(bench.next(1.0)) == ["b" * 15]
    assert bench.values(bench.next(1.0)) == ["c"]


def test_at_most_in_flight_requests() -> None:
    bench = Bench(in_flight=2)
    requests = []
    for letter in "abc":
        bench.put(letter * 40)
        if request := bench.acc.broker_queue(1).next_request(0.0):
            requests.append(request)
    assert len(requests) == 2
    assert bench.acc.broker_queue(1).next_due() is None  # only an answer can help
    bench.confirm(requests[0])
    assert bench.values(bench.next()) == ["c" * 40]


def test_a_broker_nobody_knows_has_nothing() -> None:
    assert Bench().acc.broker_queue(77).next_request(0.0) is None
    assert Bench().acc.broker_queue(77).next_due() is None


def test_room_counts_bytes_and_overhead_and_comes_back() -> None:
    bench = Bench()
    bench.put("abc")
    held = 13 + RECORD_OVERHEAD_BYTES
    assert bench.acc.live.buffered_bytes == held
    assert bench.acc.fits(10_000 - held - RECORD_OVERHEAD_BYTES)
    assert not bench.acc.fits(10_000 - held - RECORD_OVERHEAD_BYTES + 1)
    bench.confirm(bench.next())
    assert bench.acc.live.buffered_bytes == 0
    assert not bench.acc.live


def run(bench: Bench, *values: str, packed: bool = False, to: TopicPartition | None = None) -> int:
    """Give it these values together, as often as it takes some; how many it took."""
    rows: Sequence[Any] = [value.encode() for value in values]
    rows = pack(rows) if packed else rows
    end, done = 0, -1
    while done < end < len(rows):
        done, end = end, bench.append_run(rows, end, 999, to)
    return end


def pack(values: Sequence[bytes]) -> PackedBytes:
    offsets = array("i", accumulate(map(len, values), initial=0))
    return PackedBytes(memoryview(offsets), memoryview(b"".join(values)))


@pytest.mark.parametrize("packed", [False, True])
def test_a_run_fills_batches_as_one_by_one_would(packed: bool) -> None:
    bench, other = Bench(), Bench()
    values = ["a", "b" * 5, "c" * 30, "d" * 200, "e", "f" * 40, "g"]
    assert run(bench, *values, packed=packed) == 7
    for value in values:
        other.put(value, waiter="waiter")
    for each in (bench, other):
        assert [texts(batch) for batch in each.acc.live] == ["a " + "b" * 5, "c" * 30, "d" * 200, "e", "f" * 40, "g"]
        assert [batch.waiter_runs for batch in each.acc.live][:2] == [[[0, 2, "waiter"]], [[0, 1, "waiter"]]]
    assert [batch.size for batch in bench.acc.live] == [batch.size for batch in other.acc.live]
    saved = RECORD_OVERHEAD_BYTES - PACKED_OVERHEAD_BYTES if packed else 0
    assert bench.acc.live.buffered_bytes == other.acc.live.buffered_bytes - saved * len(values)


def whole_size(record: ProducerRecord) -> int:
    headers = sum(3 + len(name.encode()) + len(value or b"") for name, value in record.headers)
    return 10 + len(record.value or b"") + len(record.key or b"") + headers


@given(rows=PRODUCER_RECORDS.filter(len), batch_bytes=st.integers(1, 90))
def test_records_in_columns_fill_batches_as_one_by_one_would(rows: list[ProducerRecord], batch_bytes: int) -> None:
    bench, other = (Bench(batch_bytes=batch_bytes, record_size=whole_size) for _ in range(2))
    partition, row = TopicPartition("t", 1, 1), 0
    packed = packed_records(rows)
    while row < len(rows):
        end = bench.append_run(packed, row, 999, partition)
        assert end > row
        row = end
    for record in rows:
        assert other.acc.append(other.t, whole_size(record), record, partition, "waiter", 0.0) is not None
    made, one_by_one = (
        [(batch.as_records(), batch.size, batch.waiter_runs) for batch in each.acc.live] for each in (bench, other)
    )
    assert made == one_by_one
    assert all(type(batch.records) is PackedRecords for batch in bench.acc.live)
    assert all(batch.queue.open is not batch for batch in bench.acc.live)  # nothing can join one
    saved = RECORD_OVERHEAD_BYTES - PACKED_OVERHEAD_BYTES
    assert bench.acc.live.buffered_bytes == other.acc.live.buffered_bytes - saved * len(rows)
    while bench.acc.live:
        bench.confirm(bench.next(9.0))
    assert bench.acc.live.buffered_bytes == 0


def test_records_in_columns_are_taken_as_far_as_there_is_room() -> None:
    bench = Bench(buffer_bytes=1000, batch_bytes=900, record_size=whole_size)
    packed, partition = packed_records([ProducerRecord(b"x" * 10, b"k" * 5)] * 100), TopicPartition("t", 1, 1)
    taken = bench.append_run(packed, 0, 999, partition)
    assert bench.acc.live.buffered_bytes == taken * (25 + PACKED_OVERHEAD_BYTES)
    assert not bench.acc.fits(25)
    assert bench.append_run(packed, taken, 999, partition) == taken
    assert bench.acc.live.buffered_bytes <= 1000


def test_records_in_columns_stop_in_front_of_one_that_is_too_long_and_together_are_no_longer() -> None:
    rows = [ProducerRecord(b"a" * each, b"k" * 10) for each in (10, 10, 21, 10)]
    bench, partition = Bench(batch_bytes=1000, record_size=whole_size), TopicPartition("t", 1, 1)
    taken = [bench.append_run(packed_records(rows), start, 30, partition) for start in range(4)]
    assert taken == [1, 2, 2, 4]
    assert [len(batch) for batch in bench.acc.live] == [1, 1, 1]


KEYED = [ProducerRecord(b"%d" % n, b"k" * n, (("h", None),), n) for n in range(4)]


@pytest.mark.parametrize(
    ("error", "bad", "kept", "rejected"),
    [
        (MessageTooLarge("t/1-1", -1, 100, 99, "max.message.bytes of the topic"), {}, [KEYED[:2], KEYED[2:]], []),
        (BrokerError(87, "INVALID_RECORD"), {1: "why"}, [[KEYED[0], *KEYED[2:]]], [KEYED[1]]),
    ],
    ids=["too large", "one is refused"],
)
def test_records_in_columns_are_divided_like_others(
    error: OdradekError, bad: dict[int, str], kept: list[list[ProducerRecord]], rejected: list[ProducerRecord]
) -> None:
    error.retriable = False
    bench, partition = Bench(batch_bytes=1000, record_size=whole_size), TopicPartition("t", 1, 1)
    assert bench.append_run(packed_records(KEYED), 0, 999, partition) == 4
    finished = bench.apply(bench.acc.complete(bench.next(), [PartitionResult(partition, error, record_errors=bad)]))
    assert [batch.as_records() for batch in bench.acc.live] == kept
    assert [record for batch in finished for record in batch.as_records()] == rejected
    assert [batch.size for batch in bench.acc.live] == [sum(map(whole_size, rows)) for rows in kept]
    while bench.acc.live:
        bench.confirm(bench.next(9.0))
    assert bench.acc.live.buffered_bytes == 0


def test_records_in_columns_without_keys_follow_their_topic_to_another_partition() -> None:
    bench = Bench(table({"t": {1: 1, 2: 1}}, 1, 2), record_size=whole_size)
    rows = [ProducerRecord(b"%d" % n, None, (), n) for n in range(3)]
    assert bench.append_run(packed_records(rows), 0, 999) == 3
    (batch,) = bench.acc.live
    assert batch.partition == TopicPartition("t", 0, 1)
    bench.route(newer(bench.routing, 2))
    (moved,) = bench.acc.live
    assert (moved.partition, moved.as_records()) == (TopicPartition("t", 0, 2), rows)
    assert (moved.size, type(moved.records)) == (batch.size, PackedRecords)


def test_a_run_goes_on_in_the_batch_that_is_open() -> None:
    bench = Bench()
    bench.put("a")
    assert run(bench, "b", "c" * 30) == 2
    assert [texts(batch) for batch in bench.acc.live] == ["a b", "c" * 30]
    assert run(bench, "d" * 40) == 1  # nothing of it fits in
    assert [texts(batch) for batch in bench.acc.live] == ["a b", "c" * 30, "d" * 40]
    assert [batch.waiter_runs for batch in bench.acc.live] == [
        [[1, 2, "waiter"]],
        [[0, 1, "waiter"]],
        [[0, 1, "waiter"]],
    ]


def test_packed_values_have_batches_of_their_own_that_share_their_buffers() -> None:
    bench = Bench()
    bench.put("a")
    assert run(bench, "b", "c", packed=True) == 2
    bench.put("d")
    _, packed, _ = bench.acc.live
    assert [texts(batch) for batch in bench.acc.live] == ["a", "b c", "d"]
    assert isinstance(packed.records, PackedBytes)
    assert packed.queue.open is not packed  # it is due at once: nothing can join it


@pytest.mark.parametrize(("packed", "overhead"), [(False, RECORD_OVERHEAD_BYTES), (True, PACKED_OVERHEAD_BYTES)])
def test_a_run_is_taken_as_far_as_there_is_room(packed: bool, overhead: int) -> None:
    bench = Bench()
    values, partition = ["x" * 10] * 1000, TopicPartition("t", 1, 1)
    taken = run(bench, *values, packed=packed, to=partition)
    assert bench.acc.live.buffered_bytes == taken * (20 + overhead)
    assert not bench.acc.fits(20)
    assert bench.acc.live.buffered_bytes <= 10_000
    assert run(bench, *values, packed=packed, to=partition) == 0
    assert {str(batch.partition) for batch in bench.acc.live} == {"t/1-1"}
    while bench.acc.live:
        bench.confirm(bench.next(9.0))
    assert bench.acc.live.buffered_bytes == 0


def test_a_run_stops_in_front_of_what_is_no_plain_value_or_too_long() -> None:
    bench = Bench()
    rows: list[Any] = [b"a", b"b", ProducerRecord(b"c", b"key"), b"d" * 31, b"e"]
    taken = [bench.append_run(rows, start, 30, None) for start in range(5)]
    assert taken == [2, 2, 2, 3, 5]
    assert [texts(batch) for batch in bench.acc.live] == ["a b b e"]


def test_a_partitioner_that_looks_at_every_record_gets_no_runs() -> None:
    bench = Bench(partitioner=RoundRobin())
    assert run(bench, "a", "b") == 0
    assert run(bench, "a", "b", to=TopicPartition("t", 1, 1)) == 2


# ---- partitions -----------------------------------------------------------------------------------------------


def test_records_without_a_key_stay_together_until_their_batch_has_gone() -> None:
    picks = iter([1, 0])
    bench = Bench(randrange=lambda count: next(picks))
    for letter in "abcd":
        bench.put(letter)
    assert [str(batch.partition) for batch in bench.acc.live] == ["t/1-1"]
    bench.next()
    bench.put("e")
    assert [str(batch.partition) for batch in bench.acc.live] == ["t/1-1", "t/1-0"]


def test_keys_choose_by_the_partitioner() -> None:
    bench = Bench(table({"t": {1: 2, 2: 2}}, 1, 2))
    keys = [b"k%d" % n for n in range(20)]
    for key in keys:
        bench.put("v", key=key)
    choices = bench.routing.partitions("t")
    for batch in bench.acc.live:
        for record in batch.as_records():
            assert choices[KeyHash()("t", record.key, 4) or 0] == batch.partition


@pytest.mark.parametrize("index", [-1, 2])
def test_a_partitioner_that_misses_is_told_and_the_record_not_taken(index: int) -> None:
    bench = Bench(partitioner=lambda topic, key, count: index)
    with pytest.raises(ConfigError, match=rf"chose {index} of 2 partitions of t"):
        bench.put("a")
    assert bench.acc.live.buffered_bytes == 0
    assert not bench.acc.live


def test_an_explicit_partition_waits_for_its_broker() -> None:
    bench = Bench(table({"t": {1: 2, 2: 1}}, 2))
    bench.put("a", to=0)
    assert bench.acc.broker_queue(1).next_request(0.0) is None
    bench.route(newer(bench.routing, 1, 2))
    assert bench.due == [1]
    assert bench.values(bench.next()) == ["a"]


def test_explicit_and_chosen_records_of_a_partition_keep_their_order_in_batches_of_their_own() -> None:
    bench = Bench(table({"t": {1: 1}}, 1))
    bench.put("a")
    bench.put("b", to=0)
    bench.put("c", to=0)
    bench.put("d")
    assert [texts(batch) for batch in bench.acc.live] == ["a", "b c", "d"]


def test_a_topic_keeps_its_records_until_it_is_known() -> None:
    bench = Bench(table({"u": {1: 2}}, 1))
    topic = bench.acc.topic("u", "none")
    bench.acc.append(topic, 11, ProducerRecord(b"a"), None, None, 0.0)
    bench.acc.append(topic, 11, ProducerRecord(b"b"), TopicPartition("u", 1, 1), None, 0.0)
    assert bench.acc.broker_queue(1).next_request(5.0) is None
    bench.acc.learned(topic)
    assert bench.values(bench.next(5.0)) == ["a", "b"]


def test_records_without_any_broker_wait_for_the_first() -> None:
    bench = Bench(table({"t": {1: 2}}))
    bench.put("a")
    bench.put("b", key=b"k")
    assert bench.due == []
    bench.route(newer(bench.routing, 1))
    assert sorted(" ".join(bench.values(bench.next())).split()) == ["a", "b"]


# ---- failures -------------------------------------------------------------------------------------------------


def test_what_was_not_sent_goes_out_again_in_order_before_what_is_newer() -> None:
    bench = Bench(table({"t": {1: 1}}, 1))
    requests = []
    for letter in "abc":
        bench.put(letter * 40)
        requests.append(bench.next())
    bench.put("d" * 40)
    for request in requests:
        assert bench.retry(request, UNSENT) == []
    for letter in "abcd":
        request = bench.next()
        assert bench.values(request) == [letter * 40]
        assert not request.batches[0].may_be_written


def test_a_partition_waits_until_all_of_it_has_come_back() -> None:
    bench = Bench(table({"t": {1: 1}}, 1))
    bench.put("a" * 40)
    first = bench.next()
    bench.put("b" * 40)
    second = bench.next()
    bench.retry(first, SILENT)
    assert bench.acc.broker_queue(1).next_request(9.0) is None
    bench.retry(second, SILENT)
    assert bench.values(bench.next(9.0)) == ["a" * 40]
    assert bench.values(bench.next(9.0)) == ["b" * 40]


def test_a_failed_batch_overtaken_by_a_confirmed_one_still_goes_before_what_is_newer() -> None:
    bench = Bench(table({"t": {1: 1}}, 1))
    bench.put("a" * 40)
    first = bench.next()
    bench.put("b" * 40)
    second = bench.next()
    bench.put("c" * 40)
    bench.retry(first, SILENT)
    assert bench.acc.broker_queue(1).next_request(9.0) is None
    bench.confirm(second)
    assert bench.values(bench.next(9.0)) == ["a" * 40]


def test_with_reorder_nothing_waits() -> None:
    bench = Bench(table({"t": {1: 1}}, 1), reorder=True)
    bench.put("a" * 40)
    first = bench.next()
    bench.put("b" * 40)
    bench.next()
    bench.retry(first, SILENT)
    assert bench.values(bench.next(9.0)) == ["a" * 40]


def test_a_request_that_is_undone_was_never_taken() -> None:
    bench = Bench(table({"t": {1: 1}}, 1))
    bench.put("a")
    request = bench.next()
    bench.put("b" * 40)
    bench.requeue(request)
    again = bench.next()
    assert bench.values(again) == ["a"]
    assert (again.batches[0].attempts, again.batches[0].may_be_written) == (1, False)
    assert bench.values(bench.next(9.0)) == ["b" * 40]


def test_only_requests_that_may_have_arrived_leave_a_doubt() -> None:
    bench = Bench()
    bench.put("a")
    for error, maybe in ((REFUSED, False), (UNSENT, False), (SILENT, True), (REFUSED, True)):
        request = bench.next(9.0)
        bench.retry(request, error)
        assert request.batches[0].may_be_written is maybe
        assert request.batches[0].last_error is error


@pytest.mark.parametrize(("earlier", "kind"), [(UNSENT, Rejected), (SILENT, OutcomeUnknown)])
def test_a_refusal_says_nothing_of_an_earlier_attempt(earlier: OdradekError, kind: type[OdradekError]) -> None:
    bench = Bench()
    bench.put("a")
    bench.retry(bench.next(9.0), earlier)
    request = bench.next(9.0)
    (batch,) = bench.apply(bench.acc.complete(request, [PartitionResult(request.batches[0].partition, FORBIDDEN)]))
    assert type(batch.error) is kind


def trials(bench: Bench, bad: set[str]) -> tuple[list[list[str]], list[ProduceBatch]]:
    """Send what there is to a broker that closes the connection on `bad` values. Return the requests and the refused
    batches."""
    sent, refused = [], []
    while bench.acc.live:
        request = bench.next(9.0)
        sent.append(bench.values(request))
        if bad.intersection(" ".join(sent[-1]).split()):
            refused += bench.retry(request, CLOSED, answered=request.isolated)
        else:
            bench.confirm(request)
    return sent, refused


def test_a_refused_batch_is_found_by_halves_and_the_others_are_written() -> None:
    bench = Bench(table({"t": {1: 4}}, 1))
    for value, to in (("good", 0), ("bad", 1), ("fine", 2), ("well", 3)):
        bench.put(value, to=to)
    assert bench.retry(bench.next(), CLOSED) == []
    bench.put("new", to=0)
    sent, refused = trials(bench, {"bad"})
    assert sent == [
        ["good", "bad", "fine", "well"],
        ["good", "bad"],
        ["good"],
        ["bad"],
        ["bad"],
        ["fine", "well"],
        ["new"],
    ]
    assert [texts(batch) for batch in refused] == ["bad"]
    assert isinstance(refused[0].error, OutcomeUnknown)
    assert "2 times" in str(refused[0].error)


@pytest.mark.parametrize("partitions", [1, 300, 1000])
def test_after_a_cut_line_everything_goes_out_again_in_one_request(partitions: int) -> None:
    bench = Bench(table({"t": {1: partitions}}, 1), request_bytes=100_000, buffer_bytes=1_000_000)
    for number in range(partitions):
        bench.put("a", to=number)
    bench.retry(bench.next(), CLOSED)
    sent, refused = trials(bench, set())
    assert [len(request) for request in sent] == [partitions]
    assert refused == []


@given(st.sets(st.integers(0, 99), min_size=1, max_size=3))
def test_refused_batches_are_found_in_a_logarithmic_number_of_round_trips(bad: set[int]) -> None:
    bench = Bench(table({"t": {1: 100}}, 1), request_bytes=100_000, buffer_bytes=1_000_000)
    for number in range(100):
        bench.put(f"v{number}", to=number)
    bench.retry(bench.next(), CLOSED)
    sent, refused = trials(bench, {f"v{number}" for number in bad})
    assert {texts(batch) for batch in refused} == {f"v{number}" for number in bad}
    assert len(sent) <= 1 + len(bad) * (2 * 7 + 1)


def test_nothing_else_is_in_flight_with_an_isolated_request() -> None:
    bench = Bench(table({"t": {1: 2}}, 1))
    bench.put("a", to=0)
    first = bench.next()
    bench.put("b" * 40, to=1)
    second = bench.next()
    bench.retry(first, CLOSED)
    assert bench.acc.broker_queue(1).next_request(9.0) is None
    assert bench.acc.broker_queue(1).next_due() is None
    bench.retry(second, CLOSED)
    assert bench.next(9.0).isolated
    bench.put("c" * 40, to=1)
    assert bench.acc.broker_queue(1).next_request(9.0) is None


def test_only_a_close_right_after_an_answer_counts_as_refusal() -> None:
    bench = Bench()
    bench.put("a")
    for _ in range(5):
        for error in (REFUSED, UNSENT, SILENT, CLOSED):
            assert bench.retry(bench.next(), error) == []
    for refusal in range(MAX_REFUSALS):
        assert len(bench.retry(bench.next(), CLOSED, answered=True)) == (refusal == MAX_REFUSALS - 1)


@pytest.mark.parametrize(("error", "isolated"), [(REFUSED, False), (UNSENT, False), (SILENT, False), (CLOSED, True)])
def test_only_a_closed_connection_isolates_a_batch(error: Any, isolated: bool) -> None:
    bench = Bench()
    bench.put("a")
    bench.retry(bench.next(), error)
    assert bench.next().isolated is isolated


def test_a_batch_that_is_too_large_goes_out_in_halves_in_its_place() -> None:
    bench = Bench(table({"t": {1: 1}}, 1), batch_bytes=100)
    for letter in "abcde":
        bench.put(letter, waiter=letter)
    bench.put("f" * 95)
    request = bench.next()
    bench.acc.split(request, request.batches[0])
    assert request.batches == []
    assert bench.confirm(request) == []
    order = [bench.next() for _ in range(3)]
    assert [bench.values(each) for each in order] == [["a b"], ["c d e"], ["f" * 95]]
    assert order[1].batches[0].waiter_runs == [[0, 1, "c"], [1, 2, "d"], [2, 3, "e"]]
    for each in order:
        bench.confirm(each)
    assert bench.acc.live.buffered_bytes == 0


@pytest.mark.parametrize("by_broker", [True, False], ids=["refused by a broker", "not sent"])
def test_after_a_batch_that_is_too_large_those_of_its_topic_are_half_as_large(by_broker: bool) -> None:
    bench = Bench(table({"t": {1: 1}, "u": {1: 1}}, 1), buffer_bytes=1 << 20, batch_bytes=100_000)
    other = bench.acc.topic("u", "none")
    bench.apply(bench.acc.learned(other))

    def largest() -> int:
        """Return the size of the batch that waits next, which gets records of 1,000 bytes until it is full."""
        while not bench.acc.broker_queue(1).closed:
            bench.put("x" * 990, to=0)
        return bench.acc.broker_queue(1).closed[0].size

    sizes = []
    for _ in range(5):
        sizes.append(largest())
        request = bench.next()
        (batch,) = request.batches
        if by_broker:
            error = MessageTooLarge("t/1-0", -1, batch.size, batch.size - 1, "max.message.bytes of the topic")
            bench.apply(bench.acc.complete(request, [PartitionResult(batch.partition, error)]))
        else:
            bench.acc.split(request, batch)
            bench.confirm(request)
        while bench.acc.live:  # its halves, which are stored
            bench.confirm(bench.next(9.0))
    assert sizes == [100_000, 50_000, 25_000, 16_000, 16_000]  # no less than 16 KiB, that of a record that did not fit
    assert bench.acc.append(other, 60_000, b"", None, None, 0.0) is not None
    assert other.sticky.open is not None


def test_a_batch_that_was_undone_goes_out_behind_the_halves_of_the_one_before_it() -> None:
    bench = Bench(table({"t": {1: 1}}, 1))
    for value in ("aa", "bb", "c" * 40):
        bench.put(value)
    first, second = bench.next(), bench.next()
    bench.requeue(second)
    bench.acc.split(first, first.batches[0])
    bench.confirm(first)
    assert [bench.values(bench.next()) for _ in range(3)] == [["aa"], ["bb"], ["c" * 40]]


# ---- moving ---------------------------------------------------------------------------------------------------


def test_records_of_a_lost_broker_go_elsewhere_before_what_is_newer_there() -> None:
    routing = table({"t": {1: 1, 2: 1}}, 1, 2)
    keys = {index: next(k for n in range(99) if KeyHash()("t", k := b"%d" % n, 2) == index) for index in (0, 1)}
    bench = Bench(routing)
    bench.put("a1", key=keys[0])
    bench.put("b1", key=keys[1])
    bench.put("a2", key=keys[0], waiter="A")
    bench.put("e", to=0)
    bench.route(newer(routing, 2))
    bench.put("a3", key=keys[0])
    assert [" ".join(bench.values(bench.next(9.0, broker=2))) for _ in range(3)] == ["a1 a2", "b1", "a3"]
    assert bench.acc.broker_queue(1).next_request(9.0) is None
    bench.route(newer(routing, 1, 2))
    assert bench.values(bench.next(9.0)) == ["e"]


def test_tags_move_with_their_records() -> None:
    routing = table({"t": {1: 1, 2: 2}}, 1, 2)
    bench = Bench(routing, partitioner=lambda topic, key, count: int(key or b"0") % count)
    for key in (0, 3, 6):
        bench.put(f"v{key}", key=b"%d" % key, waiter=key)
    bench.route(newer(routing, 2))
    where = {texts(batch): (batch.partition, batch.waiter_runs) for batch in bench.acc.live}
    assert where == {
        "v0 v6": (TopicPartition("t", 0, 2), [[0, 1, 0], [1, 2, 6]]),
        "v3": (TopicPartition("t", 1, 2), [[0, 1, 3]]),
    }


def test_what_was_not_sent_to_a_lost_broker_moves_when_it_comes_back() -> None:
    routing = table({"t": {1: 1, 2: 1}}, 1, 2)
    bench = Bench(routing)
    bench.put("a")
    request = bench.next()
    bench.put("b" * 40, key=None)
    bench.route(newer(routing, 2))
    assert bench.acc.broker_queue(2).next_request(9.0) is None
    bench.due.clear()
    bench.retry(request, UNSENT)
    assert 2 in bench.due
    assert [bench.values(bench.next(9.0, broker=2)) for _ in range(2)] == [["a"], ["b" * 40]]


def test_what_may_be_written_never_moves_and_newer_records_do() -> None:
    routing = table({"t": {1: 1, 2: 1}}, 1, 2)
    bench = Bench(routing)
    bench.put("a")
    request = bench.next()
    bench.put("b" * 40)
    bench.route(newer(routing, 2))
    bench.retry(request, SILENT)
    assert bench.values(bench.next(9.0, broker=2)) == ["b" * 40]
    assert bench.acc.broker_queue(2).next_request(9.0) is None
    bench.route(newer(newer(routing), 1, 2))
    again = bench.next(9.0, broker=1)
    assert (bench.values(again), again.batches[0].may_be_written) == (["a"], True)


def test_a_record_that_the_partitioner_fails_on_is_rejected_alone() -> None:
    def choosy(topic: str, key: bytes | None, count: int) -> int | None:
        return int(key) % count if key else None

    bench = Bench(partitioner=choosy)
    topic = bench.acc.topic("u", "none")
    for key in (b"1", b"bad", b"2"):
        bench.acc.append(topic, 14, ProducerRecord(b"v" + key, key), None, key, 0.0)
    bench.acc.append(topic, 15, b"plain", None, None, 0.0)
    (failed,) = bench.apply(bench.acc.learned(topic))
    assert isinstance(failed.error, Rejected)
    assert isinstance(failed.error.__cause__, ValueError)
    assert (texts(failed), failed.waiters()) == ("vbad", [b"bad"])
    sent = " ".join(text for _ in range(2) for text in bench.values(bench.next(9.0)))
    assert sorted(sent.split()) == ["plain", "v1", "v2"]


def test_records_put_while_a_lost_broker_has_something_in_flight_go_elsewhere_at_once() -> None:
    routing = table({"t": {1: 1, 2: 1}}, 1, 2)
    bench = Bench(routing)
    bench.put("a" * 40)
    bench.next()
    bench.put("b")
    bench.route(newer(routing, 2))
    bench.put("c")
    assert [texts(batch) for batch in bench.acc.live] == ["a" * 40, "b", "c"]
    assert bench.values(bench.next(9.0, broker=2)) == ["c"]


def test_a_broker_that_returns_finds_its_records_where_they_were() -> None:
    routing = table({"t": {1: 1}}, 1)
    bench = Bench(routing)
    bench.put("a")
    bench.route(newer(routing))
    bench.put("b")
    assert bench.acc.broker_queue(1).next_request(9.0) is None
    bench.route(newer(newer(routing), 1))
    assert [bench.values(bench.next(9.0)) for _ in range(2)] == [["a"], ["b"]]


# ---- time -----------------------------------------------------------------------------------------------------


def test_batches_expire_by_their_first_record() -> None:
    bench = Bench()
    bench.put("a", at=1.0)
    bench.put("b" * 40, at=5.0)
    bench.put("c" * 40, at=6.0)
    assert bench.acc.live.next_expiry(7.0) == 31.0
    assert bench.acc.live.expired(30.9) == []
    expired = bench.acc.live.expired(35.0)
    assert [texts(batch) for batch in expired] == ["a", "b" * 40]
    for batch in expired:
        bench.acc.live.time_out(batch)
    assert bench.apply(bench.acc.effects()) == expired
    assert [type(batch.error) for batch in expired] == [NotWritten, NotWritten]
    assert bench.values(bench.next(35.0)) == ["c" * 40]


def overdue(bench: Bench) -> BrokerProduceRequest:
    """A request on the wire whose batch's time is over."""
    bench.put("a", at=1.0)
    request = bench.next(1.0)
    request.batches[0].note_overdue(bench.acc.live.late)
    return request


def test_a_batch_on_the_wire_whose_time_is_over_is_written_if_the_answer_says_so() -> None:
    bench = Bench()
    request = overdue(bench)
    assert bench.acc.live.expired(99.0) == []
    assert bench.acc.live.next_expiry(99.0) == 129.0
    assert [batch.error for batch in bench.confirm(request)] == [None]


@pytest.mark.parametrize(("error", "kind"), [(UNSENT, NotWritten), (SILENT, OutcomeUnknown), (CLOSED, OutcomeUnknown)])
def test_a_batch_whose_time_is_over_is_not_sent_again(error: OdradekError, kind: type[OdradekError]) -> None:
    bench = Bench()
    (batch,) = bench.retry(overdue(bench), error)
    assert type(batch.error) is kind
    assert "not delivered within 30 s (t/1-0; 1 attempt, the last failed" in str(batch.error)
    assert not bench.acc.live


@pytest.mark.parametrize(("error", "kind"), [(UNSENT, NotWritten), (SILENT, OutcomeUnknown)])
def test_a_batch_that_was_given_up_while_in_flight_says_why(error: OdradekError, kind: type[OdradekError]) -> None:
    bench = Bench()
    bench.put("a")
    request = bench.next()
    request.batches[0].note_overdue("purged")
    (batch,) = bench.retry(request, error)
    assert type(batch.error) is kind
    assert "purged (t/1-0; 1 attempt, the last failed" in str(batch.error)


def test_a_batch_that_times_out_while_in_flight_may_be_written() -> None:
    bench = Bench()
    request = overdue(bench)
    bench.acc.live.time_out(request.batches[0], "the block ended")
    assert [type(batch.error) for batch in bench.apply(bench.acc.effects())] == [OutcomeUnknown]
    assert bench.confirm(request) == []


# ---- a result per partition -----------------------------------------------------------------------------------

STALE = BrokerError(6, "NotLeader", retriable=True, refresh_metadata=True)
FORBIDDEN = BrokerError(29, "TopicAuthorizationFailed")
FENCED = BrokerError(47, "InvalidProducerEpoch", fence=True)


def results(request: BrokerProduceRequest, *errors: OdradekError | None) -> list[PartitionResult]:
    return [PartitionResult(batch.partition, error) for batch, error in zip(request.batches, errors, strict=True)]


def test_each_partition_of_a_request_has_a_result_of_its_own() -> None:
    bench = Bench(table({"t": {1: 3}}, 1))
    for value, to in (("a", 0), ("b", 1), ("c", 2)):
        bench.put(value, to=to)
    request = bench.next()
    effects = bench.acc.complete(request, results(request, None, STALE, FORBIDDEN))
    assert [(texts(batch), type(batch.error)) for batch in effects.finished] == [("a", type(None)), ("c", Rejected)]
    assert (effects.refresh_metadata, effects.fatal) == (True, None)
    assert effects.back_off == {request.batches[1].queue: 1}
    again = bench.next(9.0)
    assert (bench.values(again), again.batches[0].may_be_written, again.isolated) == (["b"], False, False)


def test_a_partition_that_backs_off_is_not_sent_before_its_time_and_others_are() -> None:
    bench = Bench(table({"t": {1: 2}}, 1))
    for value, to in (("a", 0), ("b", 1)):
        bench.put(value, to=to)
    request = bench.next()
    effects = bench.acc.complete(request, results(request, STALE, STALE))
    broker = bench.acc.broker_queue(1)
    for queue, until in zip(effects.back_off, (7.0, 5.0), strict=True):
        broker.back_off(queue, until)
        broker.back_off(queue, 4.0)  # of a batch behind, which was sent less often
    bench.put("c", to=0, at=4.0)
    assert broker.next_request(4.5) is None
    assert broker.next_due() == 5.0
    assert bench.values(bench.next(5.0)) == ["b"]
    assert broker.next_due() == 7.0
    assert bench.values(bench.next(7.0)) == ["a"]


def test_the_next_leader_of_a_partition_that_backs_off_is_asked_at_once() -> None:
    bench = Bench(table({"t": {1: 1}}, 1))
    bench.put("a", to=0)
    request = bench.next()
    effects = bench.acc.complete(request, results(request, STALE))
    (queue,) = effects.back_off
    broker = bench.acc.broker_queue(1)
    broker.back_off(queue, 9.0)
    queue.move_to(bench.acc.broker_queue(2))
    again = bench.acc.broker_queue(2).next_request(2.0)
    assert again is not None
    assert bench.values(again) == ["a"]
    broker.back_off(queue, 9.0)  # of an answer that came late
    assert broker.next_due() is None


def test_a_result_keeps_position_and_timestamp() -> None:
    bench = Bench()
    bench.put("a")
    request = bench.next()
    result = PartitionResult(request.batches[0].partition, None, Position(77), 123)
    (batch,) = bench.acc.complete(request, [result]).finished
    assert batch.result == result


def test_a_producer_that_was_fenced_cannot_continue() -> None:
    bench = Bench()
    bench.put("a")
    request = bench.next()
    effects = bench.acc.complete(request, results(request, FENCED))
    assert effects.fatal is FENCED
    assert [type(batch.error) for batch in effects.finished] == [Rejected]


def test_a_request_that_trying_again_cannot_help_is_not_retried() -> None:
    bench = Bench()
    bench.put("a")
    (batch,) = bench.retry(bench.next(), FORBIDDEN)
    assert type(batch.error) is NotWritten
    assert not bench.acc.live


@pytest.mark.parametrize("error", [REFUSED, UNSENT, SILENT, STALE], ids=lambda error: type(error).__name__)
def test_a_request_that_fails_as_a_whole_asks_for_metadata_if_its_error_says_so(error: OdradekError) -> None:
    bench = Bench()
    bench.put("a")
    effects = bench.acc.retry(bench.next(), error)
    assert effects.refresh_metadata is error.refresh_metadata
    assert not bench.acc.effects().refresh_metadata  # once


def test_bytes_once_encoded_are_kept_for_every_attempt() -> None:
    bench = Bench()
    bench.put("a")
    request = bench.next()
    request.batches[0].encoded = b"once"
    bench.retry(request, SILENT)
    assert bench.next(9.0).batches[0].encoded == b"once"


# ---- the end --------------------------------------------------------------------------------------------------


def test_nothing_live_expires_no_sooner_than_something_new_could() -> None:
    assert Bench().acc.live.next_expiry(7.0) == 37.0


def test_a_batch_finished_while_its_partition_waits_is_not_sent_again() -> None:
    bench = Bench(table({"t": {1: 1}}, 1))
    bench.put("a" * 40)
    first = bench.next()
    bench.put("b" * 40)
    second = bench.next()
    bench.retry(first, SILENT)
    bench.acc.live.time_out(first.batches[0])
    bench.retry(second, SILENT)
    assert bench.values(bench.next()) == ["b" * 40]


def test_a_flush_makes_everything_due_and_knows_when_all_of_it_is_over() -> None:
    routing = table({"t": {1: 1, 2: 2}}, 1, 2)
    bench = Bench(routing, partitioner=lambda topic, key, count: int(key or b"0") % count)
    bench.put("x", key=b"1")
    other = bench.next(broker=2)
    bench.put("a", at=5.0, key=b"0")
    bench.put("b", at=5.0, key=b"3")
    flush = bench.acc.live.flush()
    assert flush.left == 2  # x, and a with b
    bench.put("later", at=5.0, key=b"0")
    bench.route(newer(routing, 2))  # the batch of a and b is divided
    assert flush.left == 3
    request = bench.next(5.0, broker=2)
    assert sorted(bench.values(request)) == ["a", "b"]
    bench.confirm(request)
    assert flush.left == 1
    bench.confirm(other)
    assert flush.left == 0
    assert [texts(batch) for batch in bench.acc.live] == ["later"]


def test_a_flush_of_nothing_is_over() -> None:
    assert Bench().acc.live.flush().left == 0


def test_repr_tells_the_state() -> None:
    bench = Bench()
    bench.put("a", to=1)
    (batch,) = bench.acc.live
    assert repr(batch) == "<ProduceBatch t/1-1 1 records 11 bytes open>"
    bench.next()
    assert repr(batch) == "<ProduceBatch t/1-1 1 records 11 bytes in flight>"
    bench.acc.live.finish(batch)
    assert repr(batch) == "<ProduceBatch t/1-1 1 records 11 bytes finished>"


# ---- batches that are used again -------------------------------------------------------------------------------


def reused(bench: Bench, batch: ProduceBatch) -> bool:
    """Report a batch; is the next one that begins the same object?"""
    assert batch.finished
    bench.acc.live.reuse([batch])
    bench.put("next", at=50.0, to=1)
    return bench.t.queues[TopicPartition("t", 1, 1)].open is batch


def state_of(batch: ProduceBatch) -> dict[str, object]:
    names = (name for kind in ProduceBatch.__mro__ for name in getattr(kind, "__slots__", ()))
    return {name: getattr(batch, name) for name in names}


def test_a_batch_that_is_used_again_is_like_a_new_one() -> None:
    bench, other = Bench(), Bench()
    bench.put("a", to=0)
    (batch,) = bench.next().batches
    batch.encoded, batch.stamp = b"as Kafka does", Stamp(batch.partition, ProducerIdentity(7, 0), 0, 1)
    batch.encoded_stamp = batch.stamp
    batch.result = PartitionResult(batch.partition)
    bench.acc.live.finished.clear()
    bench.confirm(bench.acc.broker_queue(1).in_flight[0])
    assert reused(bench, batch)
    other.put("a", to=0)
    other.confirm(other.next())
    other.put("next", at=50.0, to=1)
    new = other.t.queues[TopicPartition("t", 1, 1)].open
    assert new is not None
    of_bench = {"queue": other.t.queues[TopicPartition("t", 1, 1)], "waiting_queue": other.acc.broker_queue(1).waiting}
    assert state_of(batch) | of_bench == state_of(new)


def test_a_batch_that_is_used_again_keeps_none_of_its_records() -> None:
    bench = Bench()
    bench.put("a")
    (batch,) = bench.confirm(bench.next())
    bench.acc.live.reuse([batch])
    assert not batch.records


def test_a_batch_that_a_queue_of_its_broker_may_still_have_is_not_used_again() -> None:
    bench = Bench()
    bench.put("a", to=0)
    bench.put("b" * 40, to=1)  # full: it is due, and leaves its place among those that are not
    request = bench.next()
    assert [batch.in_former_queue for batch in request.batches] == [False, True]
    _, batch = bench.confirm(request)
    assert not reused(bench, batch)


def test_a_batch_that_followed_its_partition_to_another_broker_is_not_used_again() -> None:
    bench = Bench()
    bench.put("a", to=1)
    bench.route(newer(bench.routing))
    bench.route(bench.routing)
    (batch,) = bench.confirm(bench.next())
    assert not reused(bench, batch)


def test_a_batch_that_was_taken_back_is_not_used_again() -> None:
    """A thread may still be encoding it for the request that was not sent, and would encode other records."""
    bench = Bench()
    bench.put("a")
    bench.requeue(bench.next())
    (batch,) = bench.confirm(bench.next())
    assert batch.attempts == 1
    assert not reused(bench, batch)


def test_a_batch_that_was_sent_twice_is_not_used_again() -> None:
    bench = Bench()
    bench.put("a")
    bench.retry(bench.next(), UNSENT)
    (batch,) = bench.confirm(bench.next())
    assert not reused(bench, batch)


def test_a_batch_whose_time_was_over_is_not_used_again() -> None:
    bench = Bench()
    bench.put("a")
    request = bench.next()
    request.batches[0].note_overdue("late")
    (batch,) = bench.confirm(request)
    assert not reused(bench, batch)


def test_a_batch_that_was_not_written_is_not_used_again() -> None:
    bench = Bench()
    bench.put("a")
    request = bench.next()
    (batch,) = bench.apply(bench.acc.complete(request, [PartitionResult(request.batches[0].partition, FORBIDDEN)]))
    assert batch.error is not None
    assert not reused(bench, batch)


@pytest.mark.parametrize("packed", [False, True])
def test_a_batch_with_a_waiter_or_of_packed_values_is_not_used_again(packed: bool) -> None:
    bench = Bench()
    bench.append_run(pack([b"a"]) if packed else [b"a"], 0, 100)
    (batch,) = bench.confirm(bench.next())
    if packed:
        batch.waiter_runs = ()
    assert not reused(bench, batch)


def test_few_batches_are_kept_for_use() -> None:
    bench, live = Bench(), Bench().acc.live
    batches = [ProduceBatch(bench.t.unassigned, 1, 0.0, False) for _ in range(MAX_REUSABLE + 1)]
    for batch in batches:
        batch.attempts = 1
    live.reuse(batches)
    assert len(live.reusable) == MAX_REUSABLE


# ---- whatever happens ------------------------------------------------------------------------------------------

ERRORS = [REFUSED, UNSENT, SILENT, CLOSED]


@dataclass
class World:
    """A run of random events, checked against what must hold in every one of them."""

    bench: Bench
    put: list[tuple[bytes, str]]
    written: list[tuple[TopicPartition, str]]
    in_flight: list[BrokerProduceRequest]


@given(
    events=st.lists(
        st.tuples(st.sampled_from(["put", "put", "next", "done", "retry", "requeue", "brokers"]), st.integers(0, 11)),
        max_size=80,
    )
)
@example(events=[("put", 0), ("next", 0), ("put", 0), ("next", 0), ("retry", 0)])
def test_nothing_is_lost_and_within_a_partition_nothing_overtakes_whatever_happens(
    events: list[tuple[str, int]],
) -> None:
    routing = table({"t": {1: 2, 2: 2}}, 1, 2)
    world = World(Bench(routing, in_flight=3), [], [], [])
    for step, (event, number) in enumerate(events):
        happen(world, event, number, float(step), routing)
    world.bench.route(newer(newer(routing), 1, 2))
    for request in world.in_flight:
        complete(world, request)
    drain(world)
    assert sorted(value for _, value in world.written) == sorted(value for _, value in world.put)
    assert world.bench.acc.live.buffered_bytes == 0
    if all(event != "brokers" for event, _ in events):
        for key in {key for key, _ in world.put}:
            sent = [value for each, value in world.put if each == key]
            assert [value for _, value in world.written if value in sent] == sent


def happen(world: World, event: str, number: int, now: float, routing: Kafka07RoutingTable) -> None:
    bench = world.bench
    if event == "put":
        key = b"%d" % (number % 4)
        value = f"{len(world.put):03}"
        world.put.append((key, value))
        bench.put(value, at=now, key=key)
    elif event == "next":
        if request := bench.acc.broker_queue(1 + number % 2).next_request(now):
            world.in_flight.append(request)
    elif event == "done" and world.in_flight:
        complete(world, world.in_flight.pop(0))
    elif event == "retry" and world.in_flight:
        lost = [request for request in world.in_flight if request.broker == world.in_flight[0].broker]
        for request in lost:  # with a connection all of its requests fail
            world.in_flight.remove(request)
            before = {batch: batch.partition for batch in request.batches}
            write(world, bench.retry(request, ERRORS[number % 4], answered=number % 4 == 3 and request.isolated))
            assert all(batch.partition == before[batch] for batch in request.batches if batch.may_be_written)
    elif event == "requeue" and world.in_flight:
        bench.requeue(world.in_flight.pop())
    elif event == "brokers":
        bench.route(newer(newer(routing), *[[1], [2], [1, 2]][number % 3]))


def write(world: World, batches: Sequence[ProduceBatch]) -> None:
    for batch in batches:
        world.written += [(batch.partition, (record.value or b"").decode()) for record in batch.as_records()]
    world.bench.acc.live.reuse(batches)


def complete(world: World, request: BrokerProduceRequest) -> None:
    write(world, world.bench.confirm(request))


def drain(world: World) -> None:
    for _ in range(200):
        for broker in (1, 2):
            if request := world.bench.acc.broker_queue(broker).next_request(1e6):
                complete(world, request)


def test_one_batch_of_a_partition_is_in_flight_where_the_next_could_be_written_before_it() -> None:
    bench = Bench(partition_in_flight=1)
    for value in ("a" * 40, "b" * 40, "c" * 40):
        bench.put(value, to=0)
    bench.put("d" * 40, to=1)
    request = bench.next()
    assert [text[0] for text in bench.values(request)] == ["a", "d"]
    assert bench.acc.broker_queue(1).next_request(99.0) is None
    bench.confirm(request)
    assert [text[0] for text in bench.values(bench.next())] == ["b"]


def test_after_a_batch_that_cannot_be_written_the_next_of_its_partition_is_sent() -> None:
    bench = Bench(partition_in_flight=1)
    for value in ("a" * 40, "b" * 40):
        bench.put(value, to=0)
    request = bench.next()
    bench.due.clear()
    bench.acc.reject(request, request.batches[0], LocalProtocolError("too many parts"))
    (failed,) = bench.confirm(request)
    assert isinstance(failed.error, Rejected)
    assert bench.due == [1]
    assert [text[0] for text in bench.values(bench.next())] == ["b"]
