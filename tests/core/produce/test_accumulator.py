"""The accumulator by table: records in at given times, requests out, outcomes back. No clock, no loop, no chance."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.interfaces import ProducerRecord
from odradek.core.kafka07.routing import BrokersChanged, Kafka07RoutingTable, TopicChanged
from odradek.core.produce.accumulator import STRIKES, Accumulator
from odradek.core.produce.batch import (
    PACKED_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    AccumulatorLimits,
    ProduceBatch,
    ProduceRequest,
)
from odradek.core.produce.partitioners import KeyHash, Partitioner, RoundRobin
from odradek.engine import PackedBytes
from odradek.errors import ConfigError, ConnectionLost, DeadlineError, Unreachable
from odradek.types import Broker, TopicPartition

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


class Bench:
    """An accumulator with a topic `t`, and short names for what tests do with it."""

    def __init__(
        self,
        routing: Kafka07RoutingTable | None = None,
        *,
        batch_bytes: int = 50,
        request_bytes: int = 1000,
        in_flight: int = 5,
        reorder: bool = False,
        partitioner: Partitioner | None = None,
        randrange: Any = lambda count: 0,
    ) -> None:
        self.routing = routing or table({"t": {1: 2}}, 1)
        limits = AccumulatorLimits(10_000, batch_bytes, request_bytes, in_flight, 1.0, 30.0, reorder)
        self.stirred: list[int] = []
        self.acc = Accumulator(
            limits, partitioner or KeyHash(), randrange, lambda r: 10 + len(r.value), self.routing, self.stirred.append
        )
        self.t = self.acc.topic("t", "none")
        self.acc.learned(self.t)

    def put(self, value: str, *, at: float = 0.0, to: int | None = None, key: bytes | None = None, **kw: Any) -> None:
        record = value.encode() if key is None else ProducerRecord(value.encode(), key)
        partition = None if to is None else TopicPartition("t", to, 1)
        self.acc.append(self.t, record, 10 + len(value), at, partition, **kw)

    def take(self, now: float = 0.0, broker: int = 1) -> ProduceRequest:
        request = self.acc.take(broker, now)
        assert request is not None
        return request

    def values(self, request: ProduceRequest) -> list[str]:
        return [texts(batch) for batch in request.batches]

    def confirm(self, request: ProduceRequest) -> None:
        for batch in self.acc.done(request):
            self.acc.settle(batch)


def texts(batch: ProduceBatch) -> str:
    return " ".join(record.value.decode() for record in batch.as_records())


# ---- batching -------------------------------------------------------------------------------------------------


def test_an_idle_broker_is_sent_what_there_is_at_once() -> None:
    bench = Bench()
    bench.put("a")
    assert bench.stirred == [1]
    assert bench.values(bench.take()) == ["a"]
    assert bench.acc.take(1, 99.0) is None


def answered(*, at: float) -> Bench:
    """A broker that has answered a request that left at 10.0; then something was put that nobody waits for."""
    bench = Bench()
    bench.put("a", at=10.0)
    bench.confirm(bench.take(10.0))
    bench.put("b", at=at)
    return bench


@pytest.mark.parametrize(
    ("put", "due"),
    [(10.0, 11.0), (10.4, 11.0), (11.0, 11.0), (11.5, 11.5)],
    ids=["same time", "soon after", "a latency after", "later"],
)
def test_a_broker_that_answers_quickly_is_sent_what_nobody_waits_for_once_in_a_latency(put: float, due: float) -> None:
    bench = answered(at=put)
    assert bench.acc.next_due(1) == due
    if put < due:
        assert bench.acc.take(1, due - 0.1) is None
    assert bench.values(bench.take(due)) == ["b"]


def test_what_somebody_waits_for_takes_along_at_once_what_is_there() -> None:
    bench = answered(at=10.1)
    assert bench.acc.take(1, 10.2) is None
    bench.stirred.clear()
    bench.put("c", at=10.2, tag="waiting")
    bench.put("d", at=10.2, to=1, tag="waiting")
    assert bench.stirred == [1, 1]  # for the first that is waited for, and for a new batch
    assert bench.acc.next_due(1) == 10.1
    assert bench.values(bench.take(10.2)) == ["b c", "d"]


def test_a_run_that_somebody_waits_for_goes_at_once() -> None:
    bench = answered(at=10.1)
    assert bench.acc.extend(bench.t, [b"c"], 0, 100, 10.2, None, "waiting") == 1
    assert bench.values(bench.take(10.2)) == ["b c"]


def test_nothing_is_hurried_any_more_when_what_was_waited_for_has_left() -> None:
    bench = Bench(request_bytes=20)
    bench.put("a", at=10.0, to=0)
    bench.put("b", at=10.0, to=1, tag="waiting")
    bench.confirm(bench.take(10.0))
    request = bench.take(10.0)  # there was no room for it in the first
    assert bench.values(request) == ["b"]
    bench.confirm(request)
    bench.put("c", at=10.0)
    assert bench.acc.next_due(1) == 11.0


def test_while_a_request_is_in_flight_batches_wait_for_their_latency() -> None:
    bench = Bench()
    bench.put("a")
    bench.take()
    bench.put("b", at=5.0)
    bench.put("c", at=5.9)
    assert bench.acc.take(1, 5.9) is None
    assert bench.acc.next_due(1) == 6.0  # counted from the first record
    assert bench.values(bench.take(6.0)) == ["b c"]


def test_while_a_request_is_in_flight_a_full_batch_goes_at_once() -> None:
    bench = Bench()
    bench.put("a")
    bench.take()
    bench.stirred.clear()
    for letter in "bcdef":
        bench.put(letter, at=1.0)
    assert bench.stirred == [1, 1]  # when the batch began, and when the next one did
    assert bench.values(bench.take(1.0)) == ["b c d e"]


def test_a_batch_that_reaches_its_size_exactly_is_full() -> None:
    bench = Bench()
    bench.put("x" * 40)
    assert bench.acc.live and next(iter(bench.acc.live)).lane.open is None


def test_a_record_larger_than_a_batch_travels_alone() -> None:
    bench = Bench()
    for value in ("a", "x" * 200, "b"):
        bench.put(value)
    assert [texts(batch) for batch in bench.acc.live] == ["a", "x" * 200, "b"]


def test_one_request_takes_the_oldest_batch_of_every_partition() -> None:
    bench = Bench()
    for value, to in (("a", 0), ("b", 1), ("c", 0)):
        bench.put(value, to=to)
    request = bench.take()
    assert [str(batch.lane.partition) for batch in request.batches] == ["t/1-0", "t/1-1"]
    assert bench.values(request) == ["a c", "b"]


def test_a_request_is_bounded_and_the_oldest_batches_go_first() -> None:
    bench = Bench(table({"t": {1: 5}}, 1), request_bytes=30)
    for value, to in (("a" * 10, 3), ("b" * 15, 1), ("c", 2)):
        bench.put(value, to=to)
    assert bench.values(bench.take()) == ["a" * 10]
    assert bench.values(bench.take(1.0)) == ["b" * 15]
    assert bench.values(bench.take(1.0)) == ["c"]


def test_at_most_in_flight_requests() -> None:
    bench = Bench(in_flight=2)
    requests = []
    for letter in "abc":
        bench.put(letter * 40)
        if request := bench.acc.take(1, 0.0):
            requests.append(request)
    assert len(requests) == 2
    assert bench.acc.next_due(1) is None  # only an answer can help
    bench.confirm(requests[0])
    assert bench.values(bench.take()) == ["c" * 40]


def test_a_broker_nobody_knows_has_nothing() -> None:
    assert Bench().acc.take(77, 0.0) is None
    assert Bench().acc.next_due(77) is None


def test_room_counts_bytes_and_overhead_and_comes_back() -> None:
    bench = Bench()
    bench.put("abc")
    held = 13 + RECORD_OVERHEAD_BYTES
    assert bench.acc.held == held
    assert bench.acc.fits(10_000 - held - RECORD_OVERHEAD_BYTES)
    assert not bench.acc.fits(10_000 - held - RECORD_OVERHEAD_BYTES + 1)
    bench.confirm(bench.take())
    assert bench.acc.held == 0
    assert not bench.acc.live


def run(bench: Bench, *values: str, packed: bool = False, to: TopicPartition | None = None) -> int:
    """Give it these values together, as often as it takes some; how many it took."""
    rows: Sequence[Any] = [value.encode() for value in values]
    rows = pack(rows) if packed else rows
    end, done = 0, -1
    while done < end < len(rows):
        done, end = end, bench.acc.extend(bench.t, rows, end, 999, 0.0, to, "tag")
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
        other.put(value, tag="tag")
    for each in (bench, other):
        assert [texts(batch) for batch in each.acc.live] == ["a " + "b" * 5, "c" * 30, "d" * 200, "e", "f" * 40, "g"]
        assert [batch.tags for batch in each.acc.live][:2] == [[[0, 2, "tag"]], [[0, 1, "tag"]]]
    assert [batch.size for batch in bench.acc.live] == [batch.size for batch in other.acc.live]
    saved = RECORD_OVERHEAD_BYTES - PACKED_OVERHEAD_BYTES if packed else 0
    assert bench.acc.held == other.acc.held - saved * len(values)


def test_a_run_goes_on_in_the_batch_that_is_open() -> None:
    bench = Bench()
    bench.put("a")
    assert run(bench, "b", "c" * 30) == 2
    assert [texts(batch) for batch in bench.acc.live] == ["a b", "c" * 30]
    assert run(bench, "d" * 40) == 1  # nothing of it fits in
    assert [texts(batch) for batch in bench.acc.live] == ["a b", "c" * 30, "d" * 40]
    assert [batch.tags for batch in bench.acc.live] == [[[1, 2, "tag"]], [[0, 1, "tag"]], [[0, 1, "tag"]]]


def test_packed_values_have_batches_of_their_own_that_share_their_buffers() -> None:
    bench = Bench()
    bench.put("a")
    assert run(bench, "b", "c", packed=True) == 2
    bench.put("d")
    _, packed, _ = bench.acc.live
    assert [texts(batch) for batch in bench.acc.live] == ["a", "b c", "d"]
    assert isinstance(packed.records, PackedBytes)
    assert packed.lane.open is not packed  # it is due at once: nothing can join it


@pytest.mark.parametrize(("packed", "overhead"), [(False, RECORD_OVERHEAD_BYTES), (True, PACKED_OVERHEAD_BYTES)])
def test_a_run_is_taken_as_far_as_there_is_room(packed: bool, overhead: int) -> None:
    bench = Bench()
    values, place = ["x" * 10] * 1000, TopicPartition("t", 1, 1)
    taken = run(bench, *values, packed=packed, to=place)
    assert bench.acc.held == taken * (20 + overhead)
    assert not bench.acc.fits(20)
    assert bench.acc.held <= 10_000
    assert run(bench, *values, packed=packed, to=place) == 0
    assert {str(batch.lane.partition) for batch in bench.acc.live} == {"t/1-1"}
    while bench.acc.live:
        bench.confirm(bench.take(9.0))
    assert bench.acc.held == 0


def test_a_run_stops_in_front_of_what_is_no_plain_value_or_too_long() -> None:
    bench = Bench()
    rows: list[Any] = [b"a", b"b", ProducerRecord(b"c", b"key"), b"d" * 31, b"e"]
    taken = [bench.acc.extend(bench.t, rows, start, 30, 0.0, None, "tag") for start in range(5)]
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
    assert [str(batch.lane.partition) for batch in bench.acc.live] == ["t/1-1"]
    bench.take()
    bench.put("e")
    assert [str(batch.lane.partition) for batch in bench.acc.live] == ["t/1-1", "t/1-0"]


def test_keys_choose_by_the_partitioner() -> None:
    bench = Bench(table({"t": {1: 2, 2: 2}}, 1, 2))
    keys = [b"k%d" % n for n in range(20)]
    for key in keys:
        bench.put("v", key=key)
    choices = bench.routing.partitions("t")
    for batch in bench.acc.live:
        for record in batch.as_records():
            assert choices[KeyHash()("t", record.key, 4) or 0] == batch.lane.partition


@pytest.mark.parametrize("index", [-1, 2])
def test_a_partitioner_that_misses_is_told_and_the_record_not_taken(index: int) -> None:
    bench = Bench(partitioner=lambda topic, key, count: index)
    with pytest.raises(ConfigError, match=rf"chose {index} of 2 partitions of t"):
        bench.put("a")
    assert bench.acc.held == 0
    assert not bench.acc.live


def test_an_explicit_partition_waits_for_its_broker() -> None:
    bench = Bench(table({"t": {1: 2, 2: 1}}, 2))
    bench.put("a", to=0)
    assert bench.acc.take(1, 0.0) is None
    bench.acc.route(newer(bench.routing, 1, 2))
    assert bench.stirred == [1]
    assert bench.values(bench.take()) == ["a"]


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
    bench.acc.append(topic, ProducerRecord(b"a"), 11, 0.0)
    bench.acc.append(topic, ProducerRecord(b"b"), 11, 0.0, TopicPartition("u", 1, 1))
    assert bench.acc.take(1, 5.0) is None
    bench.acc.learned(topic)
    assert bench.values(bench.take(5.0)) == ["a", "b"]


def test_records_without_any_broker_wait_for_the_first() -> None:
    bench = Bench(table({"t": {1: 2}}))
    bench.put("a")
    bench.put("b", key=b"k")
    assert bench.stirred == []
    bench.acc.route(newer(bench.routing, 1))
    assert sorted(" ".join(bench.values(bench.take())).split()) == ["a", "b"]


# ---- failures -------------------------------------------------------------------------------------------------


def test_what_was_not_sent_goes_out_again_in_order_before_what_is_newer() -> None:
    bench = Bench(table({"t": {1: 1}}, 1))
    requests = []
    for letter in "abc":
        bench.put(letter * 40)
        requests.append(bench.take())
    bench.put("d" * 40)
    for request in requests:
        assert bench.acc.back(request, UNSENT) == []
    for letter in "abcd":
        request = bench.take()
        assert bench.values(request) == [letter * 40]
        assert not request.batches[0].maybe


def test_a_partition_waits_until_all_of_it_has_come_back() -> None:
    bench = Bench(table({"t": {1: 1}}, 1))
    bench.put("a" * 40)
    first = bench.take()
    bench.put("b" * 40)
    second = bench.take()
    bench.acc.back(first, SILENT)
    assert bench.acc.take(1, 9.0) is None
    bench.acc.back(second, SILENT)
    assert bench.values(bench.take(9.0)) == ["a" * 40]
    assert bench.values(bench.take(9.0)) == ["b" * 40]


def test_a_failed_batch_overtaken_by_a_confirmed_one_still_goes_before_what_is_newer() -> None:
    bench = Bench(table({"t": {1: 1}}, 1))
    bench.put("a" * 40)
    first = bench.take()
    bench.put("b" * 40)
    second = bench.take()
    bench.put("c" * 40)
    bench.acc.back(first, SILENT)
    assert bench.acc.take(1, 9.0) is None
    bench.confirm(second)
    assert bench.values(bench.take(9.0)) == ["a" * 40]


def test_with_reorder_nothing_waits() -> None:
    bench = Bench(table({"t": {1: 1}}, 1), reorder=True)
    bench.put("a" * 40)
    first = bench.take()
    bench.put("b" * 40)
    bench.take()
    bench.acc.back(first, SILENT)
    assert bench.values(bench.take(9.0)) == ["a" * 40]


def test_a_request_that_is_undone_was_never_taken() -> None:
    bench = Bench(table({"t": {1: 1}}, 1))
    bench.put("a")
    request = bench.take()
    bench.put("b" * 40)
    bench.acc.undo(request)
    again = bench.take()
    assert bench.values(again) == ["a"]
    assert (again.batches[0].attempts, again.batches[0].maybe) == (1, False)
    assert bench.values(bench.take(9.0)) == ["b" * 40]


def test_only_requests_that_may_have_arrived_leave_a_doubt() -> None:
    bench = Bench()
    bench.put("a")
    for error, maybe in ((REFUSED, False), (UNSENT, False), (SILENT, True), (REFUSED, True)):
        request = bench.take(9.0)
        bench.acc.back(request, error)
        assert request.batches[0].maybe is maybe
        assert request.batches[0].error is error


def test_what_was_closed_upon_in_company_goes_out_alone_until_the_guilty_one_is_found() -> None:
    bench = Bench(table({"t": {1: 3}}, 1))
    for value, to in (("good", 0), ("bad", 1), ("fine", 2)):
        bench.put(value, to=to)
    assert bench.acc.back(bench.take(), CLOSED) == []
    bench.put("new", to=0)
    condemned, sent = [], []
    while bench.acc.live:
        request = bench.take(9.0)
        assert bench.acc.take(1, 9.0) is None or "new" in bench.values(request)
        sent.append(bench.values(request))
        if "bad" in sent[-1]:
            condemned += bench.acc.back(request, CLOSED, struck=True)
            for batch in condemned:
                bench.acc.settle(batch)
        else:
            bench.confirm(request)
    assert sent == [["good"], ["bad"], ["bad"], ["fine"], ["new"]]
    assert [texts(batch) for batch in condemned] == ["bad"]


def test_no_suspect_flies_while_anything_else_does() -> None:
    bench = Bench(table({"t": {1: 2}}, 1))
    bench.put("a", to=0)
    first = bench.take()
    bench.put("b" * 40, to=1)
    second = bench.take()
    bench.acc.back(first, CLOSED)
    assert bench.acc.take(1, 9.0) is None
    assert bench.acc.next_due(1) is None
    bench.acc.back(second, CLOSED)
    assert bench.take(9.0).exclusive


def test_only_strikes_condemn() -> None:
    bench = Bench()
    bench.put("a")
    for _ in range(5):
        for error in (REFUSED, UNSENT, SILENT, CLOSED):
            assert bench.acc.back(bench.take(), error) == []
    for strike in range(STRIKES):
        assert len(bench.acc.back(bench.take(), CLOSED, struck=True)) == (strike == STRIKES - 1)


@pytest.mark.parametrize(("error", "suspect"), [(REFUSED, False), (UNSENT, False), (SILENT, False), (CLOSED, True)])
def test_only_a_connection_closed_upon_it_makes_a_suspect(error: Any, suspect: bool) -> None:
    bench = Bench()
    bench.put("a")
    bench.acc.back(bench.take(), error)
    assert bench.take().exclusive is suspect


def test_a_batch_that_is_too_large_goes_out_in_halves_in_its_place() -> None:
    bench = Bench(table({"t": {1: 1}}, 1), batch_bytes=100)
    for letter in "abcde":
        bench.put(letter, tag=letter)
    bench.put("f" * 95)
    request = bench.take()
    bench.acc.split(request, request.batches[0])
    assert request.batches == []
    assert bench.acc.done(request) == []
    order = [bench.take() for _ in range(3)]
    assert [bench.values(each) for each in order] == [["a b"], ["c d e"], ["f" * 95]]
    assert order[1].batches[0].tags == [[0, 1, "c"], [1, 2, "d"], [2, 3, "e"]]
    for each in order:
        bench.confirm(each)
    assert bench.acc.held == 0


def test_a_batch_that_was_undone_goes_out_behind_the_halves_of_the_one_before_it() -> None:
    bench = Bench(table({"t": {1: 1}}, 1))
    for value in ("aa", "bb", "c" * 40):
        bench.put(value)
    first, second = bench.take(), bench.take()
    bench.acc.undo(second)
    bench.acc.split(first, first.batches[0])
    bench.confirm(first)
    assert [bench.values(bench.take()) for _ in range(3)] == [["aa"], ["bb"], ["c" * 40]]


# ---- moving ---------------------------------------------------------------------------------------------------


def test_records_of_a_lost_broker_go_elsewhere_before_what_is_newer_there() -> None:
    routing = table({"t": {1: 1, 2: 1}}, 1, 2)
    keys = {index: next(k for n in range(99) if KeyHash()("t", k := b"%d" % n, 2) == index) for index in (0, 1)}
    bench = Bench(routing)
    bench.put("a1", key=keys[0])
    bench.put("b1", key=keys[1])
    bench.put("a2", key=keys[0], tag="A")
    bench.put("e", to=0)
    bench.acc.route(newer(routing, 2))
    bench.put("a3", key=keys[0])
    assert [" ".join(bench.values(bench.take(9.0, broker=2))) for _ in range(3)] == ["a1 a2", "b1", "a3"]
    assert bench.acc.take(1, 9.0) is None
    bench.acc.route(newer(routing, 1, 2))
    assert bench.values(bench.take(9.0)) == ["e"]


def test_tags_move_with_their_records() -> None:
    routing = table({"t": {1: 1, 2: 2}}, 1, 2)
    bench = Bench(routing, partitioner=lambda topic, key, count: int(key or b"0") % count)
    for key in (0, 3, 6):
        bench.put(f"v{key}", key=b"%d" % key, tag=key)
    bench.acc.route(newer(routing, 2))
    where = {texts(batch): (batch.lane.partition, batch.tags) for batch in bench.acc.live}
    assert where == {
        "v0 v6": (TopicPartition("t", 0, 2), [[0, 1, 0], [1, 2, 6]]),
        "v3": (TopicPartition("t", 1, 2), [[0, 1, 3]]),
    }


def test_what_is_in_flight_to_a_lost_broker_moves_when_it_comes_back() -> None:
    routing = table({"t": {1: 1, 2: 1}}, 1, 2)
    bench = Bench(routing)
    bench.put("a")
    request = bench.take()
    bench.put("b" * 40, key=None)
    bench.acc.route(newer(routing, 2))
    assert bench.acc.take(2, 9.0) is None
    bench.stirred.clear()
    bench.acc.back(request, SILENT)
    assert 2 in bench.stirred
    moved = [bench.take(9.0, broker=2) for _ in range(2)]
    assert [bench.values(each) for each in moved] == [["a"], ["b" * 40]]
    assert [each.batches[0].maybe for each in moved] == [True, False]


def test_records_put_while_a_lost_broker_has_something_in_flight_go_elsewhere_at_once() -> None:
    routing = table({"t": {1: 1, 2: 1}}, 1, 2)
    bench = Bench(routing)
    bench.put("a" * 40)
    bench.take()
    bench.put("b")
    bench.acc.route(newer(routing, 2))
    bench.put("c")
    assert [texts(batch) for batch in bench.acc.live] == ["a" * 40, "b", "c"]
    assert bench.values(bench.take(9.0, broker=2)) == ["c"]


def test_a_broker_that_returns_finds_its_records_where_they_were() -> None:
    routing = table({"t": {1: 1}}, 1)
    bench = Bench(routing)
    bench.put("a")
    bench.acc.route(newer(routing))
    bench.put("b")
    assert bench.acc.take(1, 9.0) is None
    bench.acc.route(newer(newer(routing), 1))
    assert [bench.values(bench.take(9.0)) for _ in range(2)] == [["a"], ["b"]]


# ---- the end --------------------------------------------------------------------------------------------------


def test_batches_expire_by_their_first_record_wherever_they_are() -> None:
    bench = Bench()
    bench.put("a", at=1.0)
    request = bench.take(1.0)
    bench.put("b" * 40, at=5.0)
    bench.put("c" * 40, at=6.0)
    assert bench.acc.next_expiry(7.0) == 31.0
    assert bench.acc.expired(30.9) == []
    expired = bench.acc.expired(35.0)
    assert [texts(batch) for batch in expired] == ["a", "b" * 40]
    for batch in expired:
        bench.acc.settle(batch)
    assert bench.acc.done(request) == []
    assert bench.values(bench.take(35.0)) == ["c" * 40]


def test_nothing_live_expires_no_sooner_than_something_new_could() -> None:
    assert Bench().acc.next_expiry(7.0) == 37.0


def test_a_batch_settled_while_its_partition_waits_is_not_sent_again() -> None:
    bench = Bench(table({"t": {1: 1}}, 1))
    bench.put("a" * 40)
    first = bench.take()
    bench.put("b" * 40)
    second = bench.take()
    bench.acc.back(first, SILENT)
    bench.acc.settle(first.batches[0])
    bench.acc.back(second, SILENT)
    assert bench.values(bench.take()) == ["b" * 40]


def test_a_flush_makes_everything_due_and_knows_when_all_of_it_is_over() -> None:
    routing = table({"t": {1: 1, 2: 2}}, 1, 2)
    bench = Bench(routing, partitioner=lambda topic, key, count: int(key or b"0") % count)
    bench.put("x", key=b"1")
    other = bench.take(broker=2)
    bench.put("a", at=5.0, key=b"0")
    bench.put("b", at=5.0, key=b"3")
    flush = bench.acc.flush()
    assert flush.left == 2  # x, and a with b
    bench.put("later", at=5.0, key=b"0")
    bench.acc.route(newer(routing, 2))  # the batch of a and b is divided
    assert flush.left == 3
    request = bench.take(5.0, broker=2)
    assert sorted(bench.values(request)) == ["a", "b"]
    bench.confirm(request)
    assert flush.left == 1
    bench.confirm(other)
    assert flush.left == 0
    assert [texts(batch) for batch in bench.acc.live] == ["later"]


def test_a_flush_of_nothing_is_over() -> None:
    assert Bench().acc.flush().left == 0


def test_repr_tells_the_state() -> None:
    bench = Bench()
    bench.put("a", to=1)
    (batch,) = bench.acc.live
    assert repr(batch) == "<ProduceBatch t/1-1 1 records 11 bytes open>"
    bench.take()
    assert repr(batch) == "<ProduceBatch t/1-1 1 records 11 bytes closed>"
    bench.acc.settle(batch)
    assert repr(batch) == "<ProduceBatch t/1-1 1 records 11 bytes settled>"


# ---- whatever happens ------------------------------------------------------------------------------------------

ERRORS = [REFUSED, UNSENT, SILENT, CLOSED]


@dataclass
class World:
    """A run of random events, checked against what must hold in every one of them."""

    bench: Bench
    put: list[tuple[bytes, str]]
    written: list[tuple[TopicPartition | None, str]]
    flying: list[ProduceRequest]


@given(
    events=st.lists(
        st.tuples(st.sampled_from(["put", "put", "take", "done", "back", "undo", "brokers"]), st.integers(0, 11)),
        max_size=80,
    )
)
def test_nothing_is_lost_and_within_a_partition_nothing_overtakes_whatever_happens(
    events: list[tuple[str, int]],
) -> None:
    routing = table({"t": {1: 2, 2: 2}}, 1, 2)
    world = World(Bench(routing, in_flight=3), [], [], [])
    for step, (event, number) in enumerate(events):
        happen(world, event, number, float(step), routing)
    world.bench.acc.route(newer(newer(routing), 1, 2))
    for request in world.flying:
        settle(world, request)
    drain(world)
    assert sorted(value for _, value in world.written) == sorted(value for _, value in world.put)
    assert world.bench.acc.held == 0
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
    elif event == "take":
        if request := bench.acc.take(1 + number % 2, now):
            world.flying.append(request)
    elif event == "done" and world.flying:
        settle(world, world.flying.pop(0))
    elif event == "back" and world.flying:
        request = world.flying.pop(0)
        struck = number % 4 == 3 and request.exclusive
        for batch in bench.acc.back(request, ERRORS[number % 4], struck=struck):
            write(world, batch)
    elif event == "undo" and world.flying:
        bench.acc.undo(world.flying.pop())
    elif event == "brokers":
        bench.acc.route(newer(newer(routing), *[[1], [2], [1, 2]][number % 3]))


def write(world: World, batch: ProduceBatch) -> None:
    world.written += [(batch.lane.partition, record.value.decode()) for record in batch.as_records()]
    world.bench.acc.settle(batch)


def settle(world: World, request: ProduceRequest) -> None:
    for batch in world.bench.acc.done(request):
        write(world, batch)


def drain(world: World) -> None:
    for _ in range(200):
        for broker in (1, 2):
            if request := world.bench.acc.take(broker, 1e6):
                settle(world, request)
