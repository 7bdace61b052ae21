"""What the user's task takes from the partitions, and what it does to them: without an event loop."""

from __future__ import annotations

from math import inf

import pytest
from tests.core.fetch.test_scheduler import ENTRIES, Bench, tp

from odradek.core.fetch.cursor import Cursor
from odradek.core.fetch.read_range import ExactPosition
from odradek.core.interfaces import DecoderOptions
from odradek.core.states import CursorState
from odradek.errors import BrokerError, ConfigError, CorruptMessage, OffsetOutOfRange
from odradek.types import EARLIEST, LATEST, Position, StartPosition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set

DAMAGED = ENTRIES[:-1] + b"?"
"""Two messages, and one whose CRC is wrong, at position 22."""


def taken(
    bench: Bench, max_records: int | None = None, max_wait: float = 0.0, now: float = 0.0
) -> tuple[int, list[bytes]]:
    """Return the number of a partition and the values of its next rows."""
    rows = bench.set.take(None, max_records, max_wait, now)
    assert not isinstance(rows, float), f"nothing to take for {rows} s"
    partition, columns = rows
    return partition.partition, [value or b"" for value in columns.values]


def filled(partitions: int = 1, data: bytes = ENTRIES) -> Bench:
    bench = Bench(partitions)
    for fetch in bench.next():
        bench.finish(fetch, data)
    return bench


# ---- taking --------------------------------------------------------------------------------------------------


def test_partitions_take_turns() -> None:
    bench = filled(2)
    assert [taken(bench, 2)[0] for _ in range(4)] == [0, 1, 0, 1]
    assert bench.set.take(None, None, 0.0, 0.0) == inf


def test_a_batch_that_is_not_full_waits_for_more_at_most_max_wait() -> None:
    bench = filled()
    assert bench.set.take(None, 10, 5.0, 1.0) == 4.0
    assert taken(bench, 3, 5.0, 1.0) == (0, [b"a", b"b", b"c"])


def test_a_batch_that_has_waited_long_enough_is_taken() -> None:
    assert taken(filled(), 10, 5.0, 5.0) == (0, [b"a", b"b", b"c"])


def test_a_batch_of_a_partition_that_ended_does_not_wait() -> None:
    assert taken(filled(data=DAMAGED), 10, 5.0) == (0, [b"a", b"b"])


def test_an_error_comes_after_all_records_and_once() -> None:
    bench = filled(data=DAMAGED)
    assert taken(bench) == (0, [b"a", b"b"])
    with pytest.raises(CorruptMessage, match=r"t/1-0.*22"):
        taken(bench)
    assert bench.set.finished and bench.set.take(None, None, 0.0, 0.0) == inf


def test_several_partitions_share_the_bytes_of_a_table() -> None:
    bench = filled(3)
    table = bench.set.take_some(None, 4, 0.0)
    assert [(partition.partition, columns.values) for partition, columns in table] == [
        (0, [b"a", b"b", b"c"]),
        (1, [b"a"]),
    ]
    rest = bench.set.take_some(None, 100, 0.0)
    assert sum(len(columns.values) for _, columns in rest) == 5
    assert bench.set.take_some(None, 100, 0.0) == []


def test_a_row_larger_than_a_table_is_taken_alone() -> None:
    bench = Bench()
    (fetch,) = bench.next()
    bench.finish(fetch, encode_set([bytes(50), b"b"]))
    assert [columns.values for _, columns in bench.set.take_some(None, 10, 0.0)] == [[bytes(50)]]


def test_a_stream_takes_only_from_its_own_partitions() -> None:
    bench = Bench(0)
    for number in range(2):
        cursor = Cursor(tp(number), 0, stream=number)
        bench.set.insert(cursor)
        bench.scheduler.join(cursor)
        bench.resolve(cursor)
    for fetch in bench.next():
        bench.finish(fetch, ENTRIES)
    assert [partition.partition for partition, _ in bench.set.take_some(1, 100, 0.0)] == [1]
    assert bench.set.take(1, None, 0.0, 0.0) == inf
    assert taken(bench)[0] == 0


def test_rows_that_are_put_back_are_delivered_next() -> None:
    bench = filled()
    rows = bench.set.take(None, None, 0.0, 0.0)
    assert not isinstance(rows, float)
    bench.set.put_back(tp(0), rows[1], 2)
    assert taken(bench) == (0, [b"b", b"c"])


def test_rows_of_a_partition_that_is_gone_are_not_put_back() -> None:
    bench = filled()
    rows = bench.set.take(None, None, 0.0, 0.0)
    assert not isinstance(rows, float)
    bench.set.remove([tp(0)])
    bench.set.put_back(tp(0), rows[1], 2)
    assert bench.set.take(None, None, 0.0, 0.0) == inf


@pytest.mark.parametrize(("max_bytes", "now", "wait"), [(1, 0.0, 0.0), (1 << 20, 2.0, 3.0), (1 << 20, 9.0, 0.0)])
def test_a_table_waits_until_it_is_filled_or_old_enough(max_bytes: int, now: float, wait: float) -> None:
    assert filled().set.seconds_until_filled(None, max_bytes, 5.0, now, endless=True) == wait


def test_nothing_waits_for_a_table_once_everything_is_read() -> None:
    bench = filled(data=DAMAGED)
    assert bench.set.seconds_until_filled(None, 1 << 20, 5.0, 0.0, endless=True) == 0.0
    bench.set.remove_all()
    assert bench.set.seconds_until_filled(None, 1 << 20, 5.0, 0.0, endless=False) == 0.0
    assert bench.set.seconds_until_filled(None, 1 << 20, 5.0, 0.0, endless=True) == inf


# ---- which partitions ------------------------------------------------------------------------------------------


def test_a_partition_that_is_not_assigned_has_no_cursor() -> None:
    with pytest.raises(ConfigError, match="t/1-7 is not currently assigned"):
        Bench().set.cursor(tp(7))


def test_a_partition_that_is_inserted_again_begins_again() -> None:
    bench = filled()
    former = bench[0]
    bench.add(0)
    assert not former.assigned and bench[0].queue.rows == 0
    assert bench.set.take(None, None, 0.0, 0.0) == inf


def test_removed_partitions_are_not_delivered_and_give_their_memory_back() -> None:
    bench = filled(2)
    quota = bench[0].share.quota
    assert quota is not None
    held = quota.held
    bench.set.remove([tp(0), tp(9)])
    assert quota.held == held / 2
    assert taken(bench)[0] == 1
    assert bench.set.take(None, None, 0.0, 0.0) == inf


def test_without_partitions_everything_is_finished() -> None:
    bench = filled(2)
    assert not bench.set.finished
    bench.set.remove_all()
    bench.scheduler.clear()
    assert bench.set.finished and not bench.set.cursors
    assert bench.next() == []


def test_paused_partitions_are_not_delivered_until_they_are_resumed() -> None:
    bench = filled()
    bench.set.pause("user", [tp(0)])
    assert bench.set.take(None, None, 0.0, 0.0) == inf
    bench.set.resume("user", [tp(0)])
    assert taken(bench) == (0, [b"a", b"b", b"c"])


# ---- positions ---------------------------------------------------------------------------------------------------


def test_the_exact_position_is_that_of_the_next_record_to_deliver() -> None:
    bench = filled()
    taken(bench, 1)
    assert bench[0].exact_position == ExactPosition(Position(11))
    taken(bench)
    assert bench[0].exact_position == ExactPosition(Position(33))


def test_the_exact_position_counts_the_messages_of_a_wrapper() -> None:
    bench = Bench()
    (fetch,) = bench.next()
    bench.finish(fetch, encode_set([b"a", b"b", b"c"], CompressionType.GZIP))
    taken(bench, 2)
    assert bench[0].exact_position == ExactPosition(Position(0), 2)


@pytest.mark.parametrize(("start", "position"), [(5, ExactPosition(Position(5), 2)), (EARLIEST, None), (LATEST, None)])
def test_before_anything_is_resolved_only_a_number_is_a_position(
    start: StartPosition, position: ExactPosition | None
) -> None:
    assert Cursor(tp(0), start, skip=2).exact_position == position


def read_until(until: int, data: bytes) -> Bench:
    bench = Bench(0)
    cursor = Cursor(tp(0), 0, until=Position(until))
    bench.set.insert(cursor)
    bench.scheduler.join(cursor)
    bench.resolve(cursor)
    for fetch in bench.next():
        bench.finish(fetch, data)
    return bench


def test_a_partition_ends_at_until() -> None:
    bench = read_until(22, ENTRIES)
    assert bench.state(0) is CursorState.ENDED
    assert taken(bench) == (0, [b"a", b"b"])
    assert bench.set.finished


def test_a_partition_that_begins_at_until_ends_at_once() -> None:
    bench = read_until(0, ENTRIES)
    assert bench.state(0) is CursorState.ENDED and bench[0].queue.rows == 0


def test_a_partition_ends_where_nothing_is_left_in_front_of_until() -> None:
    bench = read_until(40, ENTRIES)
    assert taken(bench) == (0, [b"a", b"b", b"c"])
    (fetch,) = bench.next()
    assert bench[0].end_after(fetch) == 40
    fetch.decoder.reset(Position(40))
    bench.finish(fetch)
    assert bench[0].end_after(fetch) is None
    assert (bench.state(0), bench[0].exact_position) == (CursorState.ENDED, ExactPosition(Position(40)))
    assert bench.set.finished


def test_damage_after_until_does_not_matter() -> None:
    bench = read_until(22, DAMAGED)
    assert bench.state(0) is CursorState.ENDED and bench[0].error is None


def test_a_log_that_ends_inside_the_last_message_is_an_error() -> None:
    bench = read_until(30, ENTRIES[:-1])
    (fetch,) = bench.next()
    bench.finish(fetch)
    assert taken(bench) == (0, [b"a", b"b"])
    with pytest.raises(CorruptMessage, match="the log ends inside this message"):
        taken(bench)


# ---- damage ------------------------------------------------------------------------------------------------------


def test_damage_in_bytes_of_two_fetches_is_believed_when_it_is_there_in_one() -> None:
    bench = Bench()
    (fetch,) = bench.next()
    bench.finish(fetch, DAMAGED[:30])
    (fetch,) = bench.next()
    bench.finish(fetch, DAMAGED[30:])
    assert taken(bench) == (0, [b"a", b"b"])
    assert bench[0].error is None
    (fetch,) = bench.next()
    assert fetch.start() == 22
    bench.finish(fetch, DAMAGED[22:])
    with pytest.raises(CorruptMessage):
        taken(bench)


def test_damage_that_only_came_from_two_connections_is_gone_in_one_fetch() -> None:
    bench = Bench()
    (fetch,) = bench.next()
    bench.finish(fetch, ENTRIES[:30])
    (fetch,) = bench.next()
    bench.finish(fetch, b"???")
    (fetch,) = bench.next()
    bench.finish(fetch, ENTRIES[22:])
    assert [taken(bench), taken(bench)] == [(0, [b"a", b"b"]), (0, [b"c"])]


def test_a_position_that_the_log_lost_inside_a_message_is_tried_again_at_its_start() -> None:
    bench = filled(data=ENTRIES[:30])
    (fetch,) = bench.next()
    bench.finish(fetch, error=OffsetOutOfRange(1, "OFFSET_OUT_OF_RANGE", "t/0"))
    (fetch,) = bench.next()
    assert fetch.start() == 22 and bench[0].error is None


def skipping(data: bytes) -> Bench:
    bench = Bench(0)
    cursor = Cursor(tp(0), 0)
    bench.set.insert(cursor)
    bench.scheduler.join(cursor)
    bench.scheduler.resolving.pop(cursor)
    cursor.resolved(Position(0), MessageSetDecoder(tp(0), Position(0), DecoderOptions(corrupt="skip")))
    bench.scheduler.enqueue(cursor)
    (fetch,) = bench.next()
    bench.finish(fetch, data)
    return bench


def test_messages_left_out_are_counted_and_reported_once() -> None:
    cursor = skipping(DAMAGED)[0]
    assert cursor.skipped == 1
    assert [report.position for report in cursor.take_reports()] == [22]
    assert cursor.take_reports() == ()
    assert (cursor.end_of_skipped(), cursor.skipped) == (1, 0)


def test_what_another_decoder_has_left_out_is_counted_from_zero() -> None:
    bench = skipping(DAMAGED)
    bench.set.take(None, None, 0.0, 0.0)
    (fetch,) = bench.next()
    bench.finish(fetch, error=BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"))
    with pytest.raises(BrokerError):
        bench.set.take(None, None, 0.0, 0.0)
    bench.resolve(bench[0], at=66)
    (fetch,) = bench.next()
    assert bench[0].end_of_skipped() == 1
    bench.finish(fetch, ENTRIES)
    assert bench[0].skipped == 0


# ---- memory ------------------------------------------------------------------------------------------------------


def test_what_one_byte_becomes_is_learned_from_what_was_fetched() -> None:
    bench = Bench(2)
    first, second = bench.next()
    assert not bench[0].share.expansion_known and bench[0].share.expansion == 4.0
    bench.finish(first, ENTRIES)
    assert bench[0].share.expansion_known and bench[1].share.expansion_known
    bench.finish(second)
    assert bench[1].share.expansion == bench[0].share.expansion
