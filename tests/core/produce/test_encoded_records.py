"""Batches that are passed on as they are: on their way through the accumulator, divided, and refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.produce.test_accumulator import UNSENT, Bench, table
from tests.encoded import encoded_columns, encoded_of, undecodable

from odradek.core.interfaces import PartitionResult, ProducerRecord
from odradek.core.produce.batch import RECORD_OVERHEAD_BYTES
from odradek.core.produce.packed_records import EncodedRecords, PackedRecords, records_of
from odradek.engine import PackedBytes
from odradek.errors import BrokerError, CorruptMessage, MessageTooLarge, Rejected
from odradek.types import Columns, TopicPartition

P0 = TopicPartition("t", 0, 1)
ROWS = [ProducerRecord(b"%d" % n, b"k" if n else None, (("h", b"v"),) if n == 2 else (), 5 + n) for n in range(4)]
TOO_LARGE = MessageTooLarge("t/1-0", -1, 200, 199, "max.message.bytes of the topic")


def texts(batch: Any) -> list[str]:
    return [(record.value or b"").decode() for record in batch.as_records()]


def append(bench: Bench, columns: Columns, waiter: object = "waiter") -> Any:
    records = EncodedRecords(columns)
    due = bench.acc.append(bench.t, len(records.batch.data), records, P0, waiter, 0.0)
    bench.due += due or ()
    return due


def bench_of(**options: Any) -> Bench:
    return Bench(table({"t": {1: 1}}, 1), **options)


# ---- rows --------------------------------------------------------------------------------------------------------


def test_rows_are_decoded_when_they_are_asked_for() -> None:
    records = EncodedRecords(encoded_columns(ROWS))
    assert len(records) == 4
    assert list(records) == ROWS and records[1] == ROWS[1] and list(records[1:3]) == ROWS[1:3]
    assert isinstance(records.decoded(), PackedRecords)
    assert repr(records) == "<EncodedRecords 4 records>"
    with pytest.raises(CorruptMessage):
        EncodedRecords(undecodable(2))[0]


def test_columns_become_records_with_what_they_have() -> None:
    lists = Columns([b"a", None], [0, 1], [1, 2], None, [b"k", None], [(("h", b"1"),), ()], [7, -1], [0, -1])
    assert records_of(lists) == [ProducerRecord(b"a", b"k", (("h", b"1"),), 7), ProducerRecord(None)]
    assert records_of(Columns([b"a", b"b"], [0, 1], [1, 2])) == [ProducerRecord(b"a"), ProducerRecord(b"b")]
    plain = encoded_columns([ProducerRecord(b"a", None, (), -1)]).replace(timestamps=None)
    assert isinstance(records_of(plain), PackedBytes)


# ---- on their way ------------------------------------------------------------------------------------------------


def test_a_batch_is_sent_alone_in_its_order() -> None:
    bench = bench_of()
    bench.put("before", to=0)
    assert list(append(bench, encoded_columns(ROWS))) == [1]
    bench.put("after", to=0)
    requests = [bench.next(2.0) for _ in range(3)]
    assert [texts(each.batches[0]) for each in requests] == [["before"], ["0", "1", "2", "3"], ["after"]]
    batch = requests[1].batches[0]
    assert isinstance(batch.records, EncodedRecords) and batch.size == len(batch.records.batch.data)
    assert batch.waiter_runs == [[0, 4, "waiter"]] and batch.explicit_partition
    bench.retry(requests[0], UNSENT)
    for request in requests[1:]:
        bench.confirm(request)
    bench.confirm(bench.next(2.0))
    assert bench.acc.live.buffered_bytes == 0


def test_it_waits_for_space_as_a_record_of_its_size_does() -> None:
    columns = encoded_columns(ROWS)
    size = len(EncodedRecords(columns).batch.data) + RECORD_OVERHEAD_BYTES
    bench = bench_of(buffer_bytes=2 * size - 1)
    assert append(bench, columns) is not None
    assert bench.acc.live.buffered_bytes == size
    assert append(bench, columns) is None
    bench.confirm(bench.next())
    assert append(bench, columns) is not None


# ---- divided -----------------------------------------------------------------------------------------------------


def test_one_that_is_too_large_for_the_topic_goes_in_halves() -> None:
    bench = bench_of()
    append(bench, encoded_columns(ROWS))
    bench.apply(bench.acc.complete(bench.next(), [PartitionResult(P0, TOO_LARGE)]))
    halves = [bench.next() for _ in range(2)]
    assert [each.batches[0].as_records() for each in halves] == [ROWS[:2], ROWS[2:]]
    assert all(not isinstance(each.batches[0].records, EncodedRecords) for each in halves)
    for each in halves:
        bench.confirm(each)
    assert bench.acc.live.buffered_bytes == 0


def test_one_that_cannot_be_encoded_as_it_is_goes_in_halves_too() -> None:
    bench = bench_of()
    append(bench, encoded_columns(ROWS))
    request = bench.next()
    bench.acc.split(request, request.batches[0])
    bench.confirm(request)
    assert [bench.next().batches[0].as_records() for _ in range(2)] == [ROWS[:2], ROWS[2:]]


def test_records_that_the_broker_objects_to_are_refused_alone() -> None:
    bench = bench_of()
    append(bench, encoded_columns(ROWS))
    invalid = BrokerError(87, "INVALID_RECORD")
    result = PartitionResult(P0, invalid, record_errors={2: "no key"})
    (refused,) = bench.apply(bench.acc.complete(bench.next(), [result]))
    assert refused.as_records() == [ROWS[2]] and isinstance(refused.error, Rejected)
    assert bench.next().batches[0].as_records() == [ROWS[0], ROWS[1], ROWS[3]]


@pytest.mark.parametrize("how", ["by the broker", "before it was sent"])
def test_one_that_cannot_be_divided_is_rejected_as_a_whole(how: str) -> None:
    bench = bench_of()
    append(bench, undecodable(3))
    request = bench.next()
    if how == "by the broker":
        bench.apply(bench.acc.complete(request, [PartitionResult(P0, TOO_LARGE)]))
    else:
        bench.acc.split(request, request.batches[0])
        bench.confirm(request)
    (batch,) = bench.finished
    assert isinstance(batch.error, Rejected)
    assert batch.as_records() == [ProducerRecord(None)] * 3 == list(batch.error.records)
    assert bench.acc.live.buffered_bytes == 0 and not bench.acc.live


def test_a_batch_of_one_record_is_not_divided() -> None:
    bench = bench_of()
    append(bench, encoded_columns(ROWS[:1]))
    (batch,) = bench.apply(bench.acc.complete(bench.next(), [PartitionResult(P0, TOO_LARGE)]))
    assert isinstance(batch.error, Rejected) and batch.error.records == ROWS[:1]


def test_only_whole_batches_are_encoded_records() -> None:
    with pytest.raises(AssertionError):
        EncodedRecords(Columns.concat([encoded_columns(ROWS), encoded_of(b"", 0, 0)]))  # type: ignore[arg-type]
