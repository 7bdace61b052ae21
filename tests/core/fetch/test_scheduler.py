"""Which partitions are fetched next, and what their results do to them: without an event loop, with a clock by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from odradek.core.backoff import Backoff
from odradek.core.fetch.cursor import Cursor, CursorFetch
from odradek.core.fetch.partition_set import PartitionSet
from odradek.core.fetch.read_ahead import ReadAheadLimits
from odradek.core.fetch.scheduler import FetchPolicy, FetchScheduler, SchedulerCallbacks
from odradek.core.interfaces import DecoderOptions
from odradek.core.states import CursorState
from odradek.errors import BrokerError, CorruptMessage, LogTruncated, OdradekError, OffsetOutOfRange
from odradek.types import EARLIEST, Position, StartPosition, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set

LIMITS = ReadAheadLimits(read_ahead_bytes=1 << 20, fetch_bytes=1000, min_bytes=100)
POLICY = FetchPolicy(idle=Backoff(first_s=1, factor=2, max_s=4), retry=Backoff(first_s=10, max_s=10), reset=None)
ENTRIES = encode_set([b"a", b"b", b"c"])


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number, 1)


class Bench:
    """A scheduler of one broker with the partitions it reads, and what it has called."""

    def __init__(
        self,
        partitions: int = 1,
        policy: FetchPolicy = POLICY,
        start: StartPosition = 0,
        limits: ReadAheadLimits = LIMITS,
    ) -> None:
        self.policy = policy
        self.called: Counter[str] = Counter()
        self.set = PartitionSet(limits, lambda: self._count("available"))
        self.scheduler = FetchScheduler(
            self.set.budget,
            policy,
            SchedulerCallbacks(
                lambda: self._count("work"),
                lambda: self._count("resolve"),
                lambda: self._count("space"),
                lambda: self._count("available"),
            ),
        )
        for number in range(partitions):
            self.add(number, start)

    def _count(self, name: str) -> None:
        self.called[name] += 1

    def add(self, number: int, start: StartPosition = 0) -> Cursor:
        cursor = Cursor(tp(number), start)
        self.set.insert(cursor)
        self.scheduler.join(cursor)
        self.resolve(cursor)
        return cursor

    def resolve(self, cursor: Cursor, at: int = 0) -> None:
        self.scheduler.resolving.pop(cursor)
        cursor.resolved(Position(at), MessageSetDecoder(cursor.partition, Position(at), DecoderOptions()))
        self.scheduler.enqueue(cursor)

    def __getitem__(self, number: int) -> Cursor:
        return self.set.cursor(tp(number))

    def state(self, number: int) -> CursorState:
        return self[number].state

    def next(self, now: float = 0.0) -> list[CursorFetch]:
        return list(self.scheduler.next_fetch(now).fetches)

    def finish(
        self, fetch: CursorFetch, data: bytes = b"", error: OdradekError | None = None, *, now: float = 0.0
    ) -> bool:
        fetch.start()
        fetch.feed(memoryview(data))
        fetch.received, fetch.error = len(data), fetch.error or error
        return self.complete(fetch, now)

    def complete(self, fetch: CursorFetch, now: float = 0.0, *, lost: bool = False) -> bool:
        accepted = fetch.cursor.complete(fetch, now, self.policy.reset, lost=lost)
        if accepted:
            self.scheduler.requeue(fetch.cursor, now, 0.999999)
        return accepted


def test_every_ready_partition_is_in_the_next_fetch_and_none_twice() -> None:
    bench = Bench(3)
    assert {fetch.cursor.partition for fetch in bench.next()} == {tp(0), tp(1), tp(2)}
    assert bench.next() == []
    assert {bench[n].state for n in range(3)} == {CursorState.IN_FLIGHT}


def test_a_partition_with_records_is_fetched_again_at_once() -> None:
    bench = Bench()
    (fetch,) = bench.next()
    assert bench.finish(fetch, ENTRIES)
    assert bench[0].state is CursorState.READY and bench[0].queue.rows == 3
    (again,) = bench.next()
    assert again.start() == len(ENTRIES)


def test_the_memory_held_is_that_of_what_is_read_ahead() -> None:
    bench = Bench(2)
    first, second = bench.next()
    assert bench.scheduler.held_bytes == 0
    bench.finish(first, ENTRIES)
    one = bench.scheduler.held_bytes
    bench.finish(second, ENTRIES)
    assert bench.scheduler.held_bytes == 2 * one > 0
    for number in range(2):
        bench[number].take(None, 0.0)
        bench[number].update()
    assert bench.scheduler.held_bytes == 0


FIRST, USUAL, MOST = 64 << 10, 1 << 20, 8 << 20


@pytest.mark.parametrize(
    ("seconds", "is_full", "taken", "sizes"),
    [
        ([0.02] * 8, True, True, [FIRST, *[USUAL] * 3, 2 << 20, 4 << 20, MOST, MOST]),
        ([0.001, *[0.02] * 9], True, True, [FIRST, *[USUAL] * 9]),  # slow later: it is its work, or ours
        ([*[0.02] * 5, 0.001, *[0.02] * 9], True, True, [FIRST, *[USUAL] * 3, 2 << 20, 4 << 20, *[USUAL] * 9]),
        ([0.02] * 9, True, False, [FIRST, *[USUAL] * 8]),  # the user is slower than the broker
        ([0.02] * 9, False, True, [FIRST, *[FIRST - 2] * 8]),
    ],
    ids=["distant", "near", "near after all", "records wait", "responses are not full"],
)
def test_partitions_request_more_of_a_distant_broker_that_the_user_waits_for(
    seconds: list[float], is_full: bool, taken: bool, sizes: list[int]
) -> None:
    bench = Bench(limits=ReadAheadLimits(read_ahead_bytes=64 << 20, fetch_bytes=MOST))
    requested = []
    for response_s in seconds:
        (fetch,) = bench.next()
        requested.append(fetch.max_bytes)
        fetch.start()
        fetch.feed(memoryview(ENTRIES))
        fetch.received = fetch.max_bytes if is_full else FIRST // 2 - 1
        bench.scheduler.responded([fetch], response_s)
        assert bench.complete(fetch)
        if taken:
            bench[0].take(None, 0.0)
            bench.scheduler.unblock(bench[0])
    assert requested == sizes


def test_many_partitions_share_the_larger_request_to_a_distant_broker() -> None:
    bench = Bench(64, limits=ReadAheadLimits(read_ahead_bytes=64 << 20, fetch_bytes=16 << 20))
    together = []
    for _ in range(40):
        fetches = bench.next()
        together.append(sum(fetch.max_bytes for fetch in fetches))
        for fetch in fetches:
            fetch.start()
            fetch.feed(memoryview(ENTRIES))
            fetch.received = fetch.max_bytes
        bench.scheduler.responded(fetches, 0.02)
        for fetch in fetches:
            assert bench.complete(fetch)
            fetch.cursor.take(None, 0.0)
            bench.scheduler.unblock(fetch.cursor)
    assert together[0] == 4 << 20
    assert max(together) == 16 << 20, "each of them still requests no more than its share of the read-ahead"


def test_a_partition_that_a_response_had_no_space_for_is_fetched_first_and_with_more_bytes() -> None:
    bench = Bench(2, limits=ReadAheadLimits(read_ahead_bytes=1 << 20, fetch_bytes=1000, min_bytes=100))
    first, second = bench.next()
    second.left_out = True
    bench.finish(first, encode_set([bytes(30)] * 20)[: first.max_bytes])
    bench.finish(second)
    assert second.max_bytes == 400 and bench[1].empty_responses == 0
    (again,), (other,) = bench.next(), bench.next()  # both have more: each has a request of its own
    assert (again.cursor, again.max_bytes, other.cursor) == (bench[1], 1000, bench[0])
    bench.finish(again)
    assert bench.state(1) is CursorState.BACKING_OFF, "nothing was left out of that one"


def test_partitions_that_are_left_out_again_and_again_take_turns_to_be_first() -> None:
    bench = Bench(3)
    firsts = []
    for _ in range(6):
        fetches = bench.next()
        firsts.append(fetches[0].cursor.partition)
        for fetch in fetches[1:]:
            fetch.left_out = True
        bench.finish(fetches[0], ENTRIES[: len(ENTRIES) // 3])
        for fetch in fetches[1:]:
            bench.finish(fetch)
    assert set(Counter(firsts)) == {tp(number) for number in range(3)}


@pytest.mark.parametrize("event", ["sought", "lost", "failed"])
def test_what_was_left_out_is_forgotten_or_kept_with_what_happens_next(event: str) -> None:
    bench = Bench(2)
    first, second = bench.next()
    second.left_out = True
    if event == "sought":  # in mid-flight: its result does not count
        bench.set.seek(tp(1), Position(0))
        bench.resolve(bench[1])
    bench.finish(first, ENTRIES)
    assert bench.finish(second) is (event != "sought")
    assert bench[1].share.was_left_out is (event != "sought")
    if event != "sought":
        (again,) = (fetch for fetch in bench.next() if fetch.cursor is bench[1])
        if event == "lost":
            bench.complete(again, lost=True)
        else:
            bench.finish(again, error=BrokerError(6, "NOT_LEADER_OR_FOLLOWER", retriable=True))
        assert bench[1].share.was_left_out, "it is still true"
        assert (bench.state(1) is CursorState.BACKING_OFF) is (event == "failed")
        bench.set.seek(tp(1), Position(0))
        assert not bench[1].share.was_left_out


def test_an_empty_partition_backs_off_longer_each_time() -> None:
    bench, now, waits = Bench(), 0.0, []
    for _ in range(4):
        (fetch,) = bench.next(now)
        bench.finish(fetch, now=now)
        assert bench[0].state is CursorState.BACKING_OFF
        wait = bench.scheduler.next_fetch(now).wait
        waits.append(round(wait, 3))
        now += wait
    assert waits == [1, 2, 4, 4]


def test_partitions_whose_back_off_is_nearly_over_share_a_fetch() -> None:
    bench = Bench(2)
    first, second = bench.next()
    bench.finish(first, now=0.0)
    bench.finish(second, now=1.5)
    assert [fetch.cursor for fetch in bench.next(1.0)] == [first.cursor, second.cursor]


def test_a_paused_partition_is_fetched_again_when_it_is_resumed() -> None:
    bench = Bench()
    bench.set.pause("user", [tp(0)])
    bench.set.pause("handlers", [tp(0)])
    assert bench.next() == [] and bench[0].state is CursorState.PAUSED
    bench.set.resume("user", [tp(0)])
    assert bench.next() == []
    bench.called.clear()
    bench.set.resume("handlers", [tp(0)])
    assert bench.called["work"] == 1 and len(bench.next()) == 1


def test_a_full_partition_waits_until_the_user_takes_records() -> None:
    bench = Bench()
    entries = encode_set([bytes(900)])
    while fetches := bench.next():
        bench.finish(fetches[0], entries)
    assert bench[0].state is CursorState.OUT_OF_QUOTA and bench[0].out_of_quota
    held = bench[0].held_bytes
    assert held <= LIMITS.read_ahead_bytes + 1000
    while not bench.next():
        assert not isinstance(bench.set.take(None, None, 0.0, 0.0), float)
    assert bench[0].held_bytes < held


def test_a_seek_does_not_wait_for_the_fetch_in_flight_and_ignores_what_it_brings() -> None:
    bench = Bench()
    (stale,) = bench.next()
    bench.set.seek(tp(0), 500)
    assert bench.state(0) is CursorState.RESOLVING and not stale.is_current
    bench.resolve(bench[0], 500)
    (fetch,) = bench.next()
    assert fetch.start() == 500
    assert not bench.finish(stale, ENTRIES)
    assert bench[0].queue.rows == 0 and bench.state(0) is CursorState.IN_FLIGHT
    bench.finish(fetch)
    assert bench[0].share.quota is not None and bench[0].share.quota.reserved == 0


def test_an_unassigned_partition_takes_nothing_with_it() -> None:
    bench = Bench(2)
    fetches = bench.next()
    bench.finish(fetches[0], ENTRIES)
    quota = bench[0].share.quota
    bench.set.remove_all()
    assert not bench.finish(fetches[1], ENTRIES)
    assert quota is not None and (quota.held, quota.reserved, quota.active, quota.deliverable) == (0, 0, 0, 0)
    assert bench.set.budget.partitions == 0 and bench.next() == []


def test_a_moved_partition_is_fetched_by_its_new_broker_only() -> None:
    bench = Bench()
    other = FetchScheduler(bench.set.budget, POLICY, bench.scheduler.callbacks)
    (fetch,) = bench.next()
    other.join(bench[0])
    assert list(other.next_fetch(0.0).fetches) == []
    bench.finish(fetch, ENTRIES)
    assert bench.next() == []
    assert [each.cursor for each in other.next_fetch(0.0).fetches] == [bench[0]]


def test_a_partition_without_its_position_is_reset_or_fails_as_the_policy_says() -> None:
    error = OffsetOutOfRange(1, "OffsetOutOfRange")
    failing = Bench()
    failing.finish(failing.next()[0], error=error)
    assert failing[0].state is CursorState.FAILED
    with pytest.raises(OffsetOutOfRange):
        failing.set.take(None, None, 0.0, 0.0)
    assert failing.set.finished
    resetting = Bench(policy=FetchPolicy(POLICY.idle, POLICY.retry, reset=EARLIEST))
    resetting.finish(resetting.next()[0], error=error)
    assert resetting[0].state is CursorState.RESOLVING and resetting[0].start is EARLIEST
    assert resetting.scheduler.next_to_resolve(0.0)[0] == [resetting[0]]


def test_what_was_delivered_of_a_compressed_message_says_nothing_of_where_reading_is_reset_to() -> None:
    bench = Bench(policy=FetchPolicy(POLICY.idle, POLICY.retry, reset=EARLIEST))
    bench.set.seek(tp(0), Position(0), 2)
    bench.resolve(bench[0])
    bench.finish(bench.next()[0], error=OffsetOutOfRange(1, "OffsetOutOfRange"))
    bench.resolve(bench[0])
    (fetch,) = bench.next()
    fetch.start()
    fetch.feed(memoryview(encode_set([b"a", b"b", b"c"], CompressionType.GZIP)))
    fetch.decompress()
    fetch.received = 1
    assert bench.complete(fetch)
    assert len(bench[0].take(None, 0.0)) == 3


def test_damage_in_bytes_of_two_fetches_is_an_error_when_it_is_there_once_more() -> None:
    bench = Bench()
    damaged = bytearray(encode_set([b"x" * 100]))
    damaged[-1] ^= 1
    for part in (damaged[:50], damaged[50:]) * 2:
        (fetch,) = bench.next()
        bench.finish(fetch, bytes(part))
    with pytest.raises(CorruptMessage):
        bench[0].take(None, 0.0)


def test_a_batch_that_is_not_full_goes_before_a_position_is_resolved() -> None:
    bench = Bench(policy=FetchPolicy(POLICY.idle, POLICY.retry, reset=EARLIEST))
    bench.finish(bench.next()[0], ENTRIES)
    assert not bench[0].batch_ready(10, 60.0, 0.0)
    bench.finish(bench.next()[0], error=OffsetOutOfRange(1, "OffsetOutOfRange"))
    assert bench[0].batch_ready(10, 60.0, 0.0)


def test_a_truncated_log_is_read_on_from_its_end_or_fails_as_the_policy_says() -> None:
    error = LogTruncated("t/0", 5, 3, 1)
    failing = Bench()
    failing.finish(failing.next()[0], error=error)
    with pytest.raises(LogTruncated, match="truncated to 3"):
        failing.set.take(None, None, 0.0, 0.0)
    resetting = Bench(policy=FetchPolicy(POLICY.idle, POLICY.retry, reset=EARLIEST))
    resetting.finish(resetting.next()[0], error=error)
    assert resetting[0].state is CursorState.RESOLVING and resetting[0].start == 3


def test_a_retriable_error_of_a_partition_is_retried_after_a_back_off() -> None:
    bench = Bench()
    not_leader = BrokerError(6, "NOT_LEADER_OR_FOLLOWER", retriable=True, refresh_metadata=True)
    bench.finish(bench.next()[0], error=not_leader)
    assert bench[0].state is CursorState.BACKING_OFF and bench[0].error is None
    assert bench.next(9.0) == []
    (fetch,) = bench.next(10.0)
    bench.finish(fetch, ENTRIES)
    assert bench[0].queue.rows == 3 and bench[0].attempts == 0


def test_a_lost_connection_keeps_whole_messages_and_fetches_the_rest_again() -> None:
    bench = Bench()
    (fetch,) = bench.next()
    fetch.start()
    fetch.feed(memoryview(ENTRIES)[:-1])
    assert bench.complete(fetch, lost=True)
    assert bench[0].queue.rows == 2 and bench[0].state is CursorState.READY
    assert bench.next()[0].start() == len(encode_set([b"a", b"b"]))


def test_a_lost_connection_does_not_raise_a_refusal_once_more() -> None:
    bench, refused = Bench(), BrokerError(29, "TOPIC_AUTHORIZATION_FAILED")
    bench.finish(bench.next()[0], error=refused)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        bench[0].take(None, 0.0)
    bench.scheduler.unblock(bench[0])
    bench.resolve(bench[0])
    assert bench.complete(bench.next()[0], lost=True)
    bench.finish(bench.next()[0], error=refused)
    assert bench[0].error is None and bench[0].state is CursorState.BACKING_OFF


def test_a_position_that_could_not_be_resolved_is_retried_after_a_back_off() -> None:
    bench = Bench()
    bench.set.seek(tp(0), EARLIEST)
    bench.scheduler.retry_resolving(bench[0], 0.0, 0.999999)
    due, wait = bench.scheduler.next_to_resolve(0.0)
    assert due == [] and round(wait, 3) == 10
    assert bench.scheduler.next_to_resolve(10.0)[0] == [bench[0]]


# ---- long polls -----------------------------------------------------------------------------------------------

LONG_POLL = FetchPolicy(POLICY.idle, POLICY.retry, long_poll_s=0.5)


def test_only_partitions_that_had_nothing_are_polled_long() -> None:
    bench = Bench(policy=LONG_POLL)
    request = bench.scheduler.next_fetch(0.0)
    assert request.max_wait == 0.0
    bench.finish(request.fetches[0])
    assert bench.scheduler.next_fetch(0.0).max_wait == 0.5


def test_a_long_poll_does_not_block_a_partition_that_becomes_ready_meanwhile() -> None:
    bench = Bench(policy=LONG_POLL)
    bench.finish(bench.next()[0])
    poll = bench.scheduler.next_fetch(0.0)
    assert poll.max_wait > 0
    bench.add(1)
    other = bench.scheduler.next_fetch(0.0)
    assert [fetch.cursor for fetch in other.fetches] == [bench[1]] and other.max_wait == 0.0
    bench.finish(other.fetches[0])
    assert bench.scheduler.next_fetch(0.0).wait > 0.9, "it backs off while the poll is in flight"
    bench.scheduler.long_poll_finished(poll.fetches, in_session=False)
    bench.finish(poll.fetches[0])
    assert bench.scheduler.next_fetch(0.0).max_wait == 0.5


# ---- errors of a decoder --------------------------------------------------------------------------------------


class BrokenDecoder(MessageSetDecoder):
    def feed(self, data: memoryview) -> None:
        raise OverflowError("Python int too large to convert")


def test_a_bug_of_a_decoder_ends_its_partition_and_is_the_cause_of_its_error() -> None:
    bench = Bench(2)
    bench.set.seek(tp(0), 7)
    bench.scheduler.resolving.pop(bench[0])
    bench[0].resolved(Position(7), BrokenDecoder(tp(0), Position(7), DecoderOptions()))
    bench.scheduler.enqueue(bench[0])
    for fetch in bench.next():
        bench.finish(fetch, ENTRIES)
    assert bench[0].state is CursorState.FAILED and bench[1].queue.rows == 3
    with pytest.raises(CorruptMessage, match="t/1-0 at 7: cannot be decoded: OverflowError") as raised:
        bench.set.take(None, None, 0.0, 0.0)
    assert isinstance(raised.value.__cause__, OverflowError)
