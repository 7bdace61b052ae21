"""Long polls in a fetch session: which partitions are part of them, from one to the next, and what they may bring."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence

import pytest
from tests.core.fetch.test_scheduler import ENTRIES, LONG_POLL, Bench, tp

from odradek.core.fetch import scheduler
from odradek.core.fetch.cursor import Cursor, CursorFetch
from odradek.core.fetch.read_ahead import ReadAheadLimits
from odradek.core.fetch.scheduler import IDLE_POLL_S, OPENING_POLL_S, FetchPolicy, FetchScheduler, NextFetch
from odradek.core.states import CursorState
from odradek.errors import BrokerError, OdradekError, OffsetOutOfRange
from odradek.types import EARLIEST, Position, PositionSpec
from odradek.wire.kafka07.message_set import encode_set

NOT_LEADER = BrokerError(6, "NOT_LEADER_OR_FOLLOWER", retriable=True)
GONE = OffsetOutOfRange(1, "OFFSET_OUT_OF_RANGE")
LIMITS = ReadAheadLimits(read_ahead_bytes=1 << 20, fetch_bytes=64 << 10, min_bytes=1000)


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop of its own polls any number of partitions."""
    monkeypatch.setattr(scheduler, "MANY_PARTITIONS", 0)


class Session(Bench):
    """A scheduler with partitions that had nothing, after a long poll that has opened a session."""

    def __init__(self, partitions: int = 3, *, opened: bool = True, policy: FetchPolicy = LONG_POLL) -> None:
        super().__init__(partitions, policy, limits=LIMITS)
        while not all(cursor.empty_responses for cursor in self.set.cursors.values()):
            for fetch in self.next():
                self.finish(fetch)
        if opened:
            self.open()

    def open(self, now: float = 0.0) -> None:
        """Open a session with a long poll of some partitions."""
        poll = self.scheduler.next_fetch(now)
        assert poll.max_wait and not poll.max_bytes
        self.answer(poll, poll.fetches, now)

    def add_stream(self, number: int) -> Cursor:
        """Add a quiet partition of another stream."""
        cursor = Cursor(tp(number), 0, stream=1)
        self.set.insert(cursor)
        self.scheduler.join(cursor)
        self.resolve(cursor)
        for fetch in self.next():
            self.finish(fetch)
        return cursor

    def poll(self, now: float = 1.0) -> NextFetch:
        return self.scheduler.next_poll(now)

    def answer(
        self, poll: NextFetch, finished: Collection[CursorFetch] = (), now: float = 1.0, *, in_session: bool = True
    ) -> None:
        """The response is there; those that are `finished` have nothing, unless they were given a result before."""
        self.scheduler.long_poll_finished(finished, in_session=in_session)
        for fetch in finished:
            self.complete(fetch, now)

    def give(self, fetch: CursorFetch, data: bytes = ENTRIES, error: OdradekError | None = None) -> CursorFetch:
        """Set a result."""
        fetch.start()
        fetch.feed(memoryview(data))
        fetch.received, fetch.error = len(data), error
        return fetch

    def numbers(self, fetches: Sequence[CursorFetch]) -> list[int]:
        return sorted(fetch.cursor.partition.partition for fetch in fetches)


def test_all_quiet_partitions_are_in_one_poll_after_the_other_with_the_same_fetches() -> None:
    bench = Session(1000)
    first = bench.poll()
    assert bench.numbers(first.fetches) == list(range(1000)) and first.max_wait == 1.0
    assert bench.poll().fetches == () and bench.poll().wait == math.inf, "one at a time"
    bench.answer(first)
    second = bench.poll(2.0)
    assert set(second.fetches) == set(first.fetches)
    assert bench.next(2.0) == [] and bench[0].share.quota is not None and bench[0].share.quota.reserved == 0


def test_partitions_are_polled_no_more_often_than_an_interval_for_each() -> None:
    bench = Session(1000)
    first = bench.poll(1.0)
    bench.answer(first, [bench.give(first.fetches[0])], 1.0)
    assert bench.poll(1.0).wait == pytest.approx(1000 * IDLE_POLL_S)
    assert len(bench.poll(1.0 + 1001 * IDLE_POLL_S).fetches) == 999


def test_a_partition_with_records_leaves_the_poll_and_comes_back_when_it_has_no_more() -> None:
    bench = Session()
    poll = bench.poll()
    bench.answer(poll, [bench.give(next(fetch for fetch in poll.fetches if fetch.cursor is bench[1]))])
    assert bench[1].queue.rows == 3
    second = bench.poll(2.0)
    assert bench.numbers(second.fetches) == [0, 2]
    (fetch,) = bench.next(2.0)
    bench.finish(fetch, now=2.0)
    assert bench.state(1) is CursorState.BACKING_OFF, "meanwhile it is fetched by itself"
    bench.answer(second)
    third = bench.poll(3.0)
    assert bench.numbers(third.fetches) == [0, 1, 2]
    assert third.fetches[-1].cursor is bench[1] and third.fetches[-1] is not fetch


def test_the_loop_of_the_polls_is_woken_for_a_partition_that_becomes_quiet() -> None:
    bench = Session(1)
    poll = bench.poll()
    bench.answer(poll, [bench.give(poll.fetches[0])])
    assert bench.poll(2.0) == NextFetch((), 0.0, math.inf)
    (fetch,) = bench.next(2.0)
    bench.called.clear()
    bench.finish(fetch, now=2.0)
    assert bench.called["work"] == 1 and len(bench.poll(2.0).fetches) == 1


@pytest.mark.parametrize("end", ["records", "an error", "no session", "a change", "no broker"])
def test_the_other_loops_are_woken_for_what_leaves_the_polls(end: str) -> None:
    bench = Session()
    poll = bench.poll()
    if end in ("a change", "no broker"):
        bench.answer(poll)
        paused(bench)
    bench.called.clear()
    if end == "a change":
        bench.poll(2.0)
    elif end == "no broker":
        bench.scheduler.end_polls(2.0)
        bench.scheduler.end_polls(2.0)
        assert bench.called["work"] == 3, "not again: a loop that waits for the broker calls this when it is woken"
    elif end == "no session":
        bench.scheduler.long_poll_finished(poll.fetches, in_session=False)
    else:
        data, error = (ENTRIES, None) if end == "records" else (b"", NOT_LEADER)
        bench.scheduler.long_poll_finished([bench.give(poll.fetches[0], data, error)], in_session=True)
    assert bench.called["work"]


def test_a_session_that_is_opened_wakes_the_loop_of_the_polls() -> None:
    bench = Session(opened=False)
    assert bench.poll() == NextFetch((), 0.0, math.inf)
    poll = bench.scheduler.next_fetch(0.0)
    bench.called.clear()
    bench.scheduler.long_poll_finished(poll.fetches, in_session=True)
    assert bench.called["work"]
    for fetch in poll.fetches:
        bench.complete(fetch)
    assert len(bench.poll().fetches) == 3


@pytest.mark.parametrize(("partitions", "max_wait"), [(2, 0.5), (3, OPENING_POLL_S)])
def test_the_first_long_poll_of_many_partitions_only_opens_the_session(
    partitions: int, max_wait: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MANY_PARTITIONS", 2)
    assert Session(partitions, opened=False).scheduler.next_fetch(0.0).max_wait == max_wait


def test_without_a_session_there_are_only_long_polls_among_the_fetches() -> None:
    bench = Session(opened=False)
    for now, max_wait in ((0.0, OPENING_POLL_S), (1.0, 0.5), (2.0, 0.5)):
        poll = bench.scheduler.next_fetch(now)
        assert (len(poll.fetches), poll.max_wait, poll.max_bytes) == (3, max_wait, 0)
        assert bench.poll(now).fetches == ()
        bench.answer(poll, poll.fetches, now, in_session=False)
    assert bench[0].share.quota is not None and bench[0].share.quota.reserved == 0


@pytest.mark.parametrize(("partitions", "polled"), [(1, 0), (64, 0), (65, 65)])
def test_a_loop_of_its_own_polls_only_many_partitions(
    partitions: int, polled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MANY_PARTITIONS", 64)
    bench = Session(partitions)
    assert len(bench.poll().fetches) == polled
    if not polled:
        assert bench.scheduler.next_fetch(1.0).max_wait == 0.5, "the loops of the fetches do"


def test_partitions_that_become_few_are_polled_by_the_other_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "MANY_PARTITIONS", 2)
    bench = Session(3)
    poll = bench.poll()
    removed(bench)
    bench.answer(poll)
    assert bench.poll(2.0).fetches == ()
    again = bench.scheduler.next_fetch(2.0)
    assert (bench.numbers(again.fetches), again.max_wait) == ([0, 2], 0.5)


# ---- what ends the fetch of one partition ----


def paused(bench: Session) -> None:
    bench.set.pause("user", [tp(1)])


def sought(bench: Session) -> None:
    bench.set.seek(tp(1), Position(0))


def removed(bench: Session) -> None:
    bench.set.remove([tp(1)])


def assigned_again(bench: Session) -> None:
    bench.add(1)


def moved(bench: Session) -> None:
    other = FetchScheduler(bench.set.budget, LONG_POLL, bench.scheduler.callbacks)
    other.join(bench[1])


def made_again(bench: Session) -> None:
    cursor = bench[1]
    cursor.start = 0
    cursor.compare_topic(b"a" * 16, EARLIEST)
    assert cursor.compare_topic(b"b" * 16, EARLIEST) is not None
    bench.scheduler.enqueue(cursor)


CHANGES: dict[Callable[[Session], None], CursorState] = {
    paused: CursorState.PAUSED,
    sought: CursorState.RESOLVING,
    removed: CursorState.UNASSIGNED,
    assigned_again: CursorState.UNASSIGNED,
    moved: CursorState.READY,
    made_again: CursorState.RESOLVING,
}
each_change = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


@each_change
@pytest.mark.parametrize("moment", ["in the poll", "in the poll that has something", "between two polls"])
def test_a_partition_that_changes_is_in_no_other_poll(change: Callable[[Session], None], moment: str) -> None:
    bench = Session()
    former = bench[1]
    poll = bench.poll()
    (fetch,) = [fetch for fetch in poll.fetches if fetch.cursor is former]
    if moment == "between two polls":
        bench.answer(poll)
        change(bench)
    else:
        change(bench)
        bench.answer(poll, [bench.give(fetch)] if "something" in moment else ())
    second = bench.poll(2.0)
    assert bench.numbers(second.fetches) == [0, 2]
    now = 100.0
    fetches = bench.next(now)
    assert all(each is not fetch for each in fetches)
    if change is moved:
        assert former.share.quota is not None
        other = former.share.quota.scheduler
        assert [each.cursor for each in other.next_fetch(now).fetches] == [former]
    elif change is assigned_again:
        assert [each.cursor for each in fetches] == [bench[1]] and former.state is CursorState.UNASSIGNED
    else:
        assert former.state is CHANGES[change] and fetches == []
    # Only the two are still part of the session, and nothing is reserved for the third.
    quota = bench[0].share.quota
    assert quota is not None and set(quota.polled) == set(second.fetches)
    assert quota.reserved == sum(each.reserved_bytes for each in fetches)


def test_a_partition_that_is_paused_and_resumed_before_the_next_poll_stays() -> None:
    bench = Session()
    poll = bench.poll()
    paused(bench)
    bench.answer(poll)
    bench.set.resume("user", [tp(1)])
    assert set(bench.poll(2.0).fetches) == set(poll.fetches)


def test_a_paused_partition_is_polled_again_when_it_is_resumed() -> None:
    bench = Session()
    bench.answer(bench.poll())
    paused(bench)
    second = bench.poll(2.0)
    assert bench.next(100.0) == [] and bench.state(1) is CursorState.PAUSED
    bench.set.resume("user", [tp(1)])
    (fetch,) = bench.next(100.0)
    bench.finish(fetch, now=100.0)
    bench.answer(second)
    assert bench.numbers(bench.poll(101.0).fetches) == [0, 1, 2]


def test_records_for_a_partition_that_was_paused_in_the_poll_are_kept() -> None:
    bench = Session()
    poll = bench.poll()
    paused(bench)
    bench.answer(poll, [bench.give(next(fetch for fetch in poll.fetches if fetch.cursor is bench[1]))])
    assert bench[1].queue.rows == 3 and isinstance(bench.set.take(None, None, 0.0, 0.0), float)
    bench.set.resume("user", [tp(1)])
    assert not isinstance(bench.set.take(None, None, 0.0, 0.0), float)


@pytest.mark.parametrize(
    ("error", "reset", "state"),
    [
        (NOT_LEADER, None, CursorState.BACKING_OFF),
        (GONE, None, CursorState.FAILED),
        (GONE, EARLIEST, CursorState.RESOLVING),
        (BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"), None, CursorState.FAILED),
    ],
)
def test_an_error_of_one_partition_leaves_the_others_in_the_session(
    error: OdradekError, reset: PositionSpec | None, state: CursorState
) -> None:
    bench = Session(policy=LONG_POLL._replace(reset=reset))
    poll = bench.poll()
    (fetch,) = [fetch for fetch in poll.fetches if fetch.cursor is bench[1]]
    bench.answer(poll, [bench.give(fetch, b"", error)])
    assert bench.state(1) is state
    assert bench.numbers(bench.poll(2.0).fetches) == [0, 2], "one that has failed waits by itself"
    assert bench.state(1) is state


def test_a_partition_that_is_left_out_is_fetched_by_itself_at_once() -> None:
    bench = Session()
    poll = bench.poll()
    full, left_out = poll.fetches[:2]
    left_out.left_out = True
    bench.answer(poll, [bench.give(full), left_out])
    assert {fetch.cursor for fetch in bench.next()} == {full.cursor, left_out.cursor}


# ---- what ends the session ----


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "answered without a session"])
def test_without_the_session_all_partitions_are_polled_as_before(lost: bool) -> None:
    bench = Session()
    poll = bench.poll()
    bench.scheduler.long_poll_finished(poll.fetches, in_session=False)
    for fetch in poll.fetches:
        assert bench.complete(fetch, 1.0, lost=lost)
    assert bench.poll(2.0) == NextFetch((), 0.0, math.inf)
    again = bench.scheduler.next_fetch(2.0)
    opening = ([0, 1, 2], OPENING_POLL_S, 0)
    assert (bench.numbers(again.fetches), again.max_wait, again.max_bytes) == opening
    bench.answer(again, again.fetches, 2.0)
    assert bench.numbers(bench.poll(3.0).fetches) == [0, 1, 2], "that has opened another one"


def test_partitions_without_space_leave_the_polls_too_when_the_session_is_lost() -> None:
    bench = Session(2)
    quiet, quota = bench.add_stream(2), bench[0].share.quota
    bench.answer(bench.poll())
    assert quota is not None
    quota.deliverable, quota.held = 1, 2 << 20
    poll = bench.poll(2.0)
    assert [fetch.cursor for fetch in poll.fetches] == [quiet] and len(quota.polled) == 2
    bench.scheduler.long_poll_finished(poll.fetches, in_session=False)
    assert bench.complete(poll.fetches[0], 2.0, lost=True)
    again = bench.scheduler.next_fetch(2.0)  # before the loop of the polls has waited for the connection
    assert again.max_wait == OPENING_POLL_S
    assert bench.poll(2.0).fetches == () and not quota.polled
    quota.deliverable = quota.held = 0
    assert bench.numbers(bench.next(100.0)) == [0, 1]


def test_a_broker_that_is_gone_takes_no_partition_with_it() -> None:
    bench = Session()
    poll = bench.poll()
    bench.scheduler.end_polls(1.0)
    assert bench.state(0) is CursorState.IN_FLIGHT, "a poll in flight ends first"
    bench.answer(poll)
    bench.scheduler.end_polls(1.0)
    assert bench.poll(2.0).fetches == ()
    other = FetchScheduler(bench.set.budget, LONG_POLL, bench.scheduler.callbacks)
    for number in range(3):
        other.join(bench[number])
    assert bench.numbers(other.next_fetch(2.0).fetches) == [0, 1, 2]


def test_forgetting_all_partitions_forgets_those_of_the_polls() -> None:
    bench = Session()
    poll = bench.poll()
    bench.set.remove_all()
    bench.scheduler.clear()
    bench.answer(poll)
    bench.add(7)
    assert bench.poll(2.0).fetches == () and bench.numbers(bench.next(2.0)) == [7]


# ---- memory ----


def records(size: int) -> bytes:
    """Return entries of at most `size` bytes."""
    one = encode_set([bytes(100)])
    return one * (size // len(one))


def test_a_poll_may_bring_a_quarter_of_the_memory() -> None:
    bench = Session(1000)
    assert 1000 < bench.poll().max_bytes <= LIMITS.usual_fetch_bytes
    quota = bench[0].share.quota
    assert quota is not None and 0 < quota.for_polls <= quota.allowance // 4


def test_a_poll_for_several_quotas_may_bring_as_much_as_the_one_with_the_least_space_allows() -> None:
    bench = Session(4)
    one = bench.add_stream(4)
    poll = bench.poll()
    assert one.share.quota is not None and bench[0].share.quota is not None
    least = one.share.quota.for_polls
    assert (
        poll.max_bytes * one.share.expansion == pytest.approx(least, abs=10) and least < bench[0].share.quota.for_polls
    )


def test_memory_for_what_a_poll_has_brought_is_reserved_until_it_is_decoded() -> None:
    bench = Session(2)
    poll, quota = bench.poll(), bench[0].share.quota
    assert quota is not None
    fetch = bench.give(poll.fetches[0])
    bench.scheduler.long_poll_finished([fetch], in_session=True)
    assert quota.reserved == len(ENTRIES) * fetch.cursor.share.expansion
    bench.complete(fetch, 1.0)
    assert quota.reserved == 0 and quota.held > 0


def test_a_quota_without_space_is_in_no_poll_until_records_are_taken() -> None:
    bench = Session(2)
    quiet, quota = bench.add_stream(2), bench[0].share.quota
    first = bench.poll()
    assert bench.numbers(first.fetches) == [0, 1, 2] and quota is not None
    bench.answer(first)
    busy = bench.add(3)
    while fetches := bench.next(1.0):
        for fetch in fetches:
            bench.finish(fetch, records(fetch.max_bytes), now=1.0)
    quota.held += 1 << 20  # as if records had expanded to more than expected
    second = bench.poll(2.0)
    assert [fetch.cursor for fetch in second.fetches] == [quiet], "the other stream is not affected"
    bench.answer(second)
    quota.held -= 1 << 20
    bench.called.clear()
    while busy.queue.rows:
        bench.set.take(0, None, 0.0, 0.0)
    assert bench.called["work"]
    assert bench.numbers(bench.poll(3.0).fetches) == [0, 1, 2]


def test_partitions_that_hold_everything_and_are_paused_stop_neither_polls_nor_fetches() -> None:
    bench = Session(2)
    bench.answer(bench.poll())
    quota = bench[0].share.quota
    assert quota is not None
    quota.held += 2 << 20  # what paused partitions hold
    poll = bench.poll(2.0)
    assert len(poll.fetches) == 2 and poll.max_bytes == LIMITS.min_bytes
    bench.add(2)
    (fetch,) = bench.next(2.0)
    assert fetch.max_bytes == LIMITS.min_bytes


def test_the_memory_of_the_polls_is_free_for_fetches_when_no_partition_is_quiet() -> None:
    bench = Session(1)
    quota = bench[0].share.quota
    assert quota is not None
    poll = bench.poll()
    before = quota.free
    bench.answer(poll, [bench.give(poll.fetches[0])])
    bench.set.take(None, None, 0.0, 0.0)
    assert quota.free == before + quota.for_polls == quota.allowance


class Life(Session):
    """Random responses, pauses, seeks, assignments and losses, and a slow user."""

    def __init__(self, seed: int) -> None:
        super().__init__(30)
        self.chance, self.now = random.Random(seed), 1.0
        self.flights: list[NextFetch] = []

    def happen(self) -> None:
        """Let something happen to a partition."""
        cursor, event = self[self.chance.randrange(30)], self.chance.random()
        if event < 0.1:
            self.set.pause("user", [cursor.partition])
        elif event < 0.2:
            self.set.resume("user", [cursor.partition])
        elif event < 0.25:
            self.set.seek(cursor.partition, Position(0))
            self.resolve(cursor)
        elif event < 0.3:
            self.add(cursor.partition.partition)
        elif event < 0.7:
            self.set.take(None, None, 0.0, self.now)

    def send(self) -> None:
        """Send what is next on all loops."""
        for what_is_next in (self.scheduler.next_fetch, self.scheduler.next_fetch, self.scheduler.next_poll):
            following = what_is_next(self.now)
            if following.fetches:
                assert len({fetch.cursor.partition for fetch in following.fetches}) == len(following.fetches)
                self.flights.append(following)
        assert sum(flight.max_wait > 0 for flight in self.flights) <= 1, "one long poll at a time"

    def respond(self, has_more: float) -> None:
        """Answer one request, if one is in flight."""
        if not self.flights or self.chance.random() < 0.3:
            return
        request = self.flights.pop(self.chance.randrange(len(self.flights)))
        finished = self.fill(request, has_more) if request.max_bytes else list(request.fetches)
        lost = self.chance.random() < 0.05
        in_session = not lost and self.chance.random() < 0.95
        if lost or not in_session:
            finished = list(request.fetches)
        if request.max_wait:
            self.scheduler.long_poll_finished(finished, in_session=in_session)
        else:
            self.fill(request, has_more)
        for fetch in finished:
            self.complete(fetch, self.now, lost=lost)

    def fill(self, request: NextFetch, has_more: float) -> list[CursorFetch]:
        """Give some of its partitions records, within the limits. Return those that the response names."""
        left, named = request.max_bytes or 1 << 30, []
        for fetch in self.chance.sample(request.fetches, len(request.fetches)):
            more = self.chance.random() < has_more and fetch.is_current
            data = records(self.chance.randint(0, min(left, fetch.max_bytes)) if more else 0)
            left -= len(data)
            if data or self.chance.random() < 0.1:
                named.append(self.give(fetch, data))
        return named

    @property
    def memory(self) -> tuple[int, int]:
        """What is held or may come (bytes), and what may be."""
        quota = self[0].share.quota
        assert quota is not None
        polled = quota.for_polls if any(flight.max_bytes > LIMITS.min_bytes for flight in self.flights) else 0
        return quota.held + quota.reserved + polled, quota.allowance


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_no_partition_is_lost_and_memory_stays_within_its_bound(seed: int) -> None:
    bench = Life(seed)
    for _ in range(400):
        bench.now += bench.chance.random() / 10
        bench.happen()
        bench.send()
        bench.respond(has_more=bench.chance.choice([0.0, 0.1, 0.9]))
        taken, most = bench.memory
        assert taken <= most + 2 * LIMITS.min_bytes
    bench.set.resume("user", list(bench.set.cursors))
    asked = set[Cursor]()
    for _ in range(100):
        bench.now += 5.0
        while not isinstance(bench.set.take(None, None, 0.0, bench.now), float):
            pass
        bench.send()
        bench.respond(has_more=0.0)
        asked.update(fetch.cursor for flight in bench.flights for fetch in flight.fetches if fetch.is_current)
    assert asked == set(bench.set.cursors.values())
