"""Marks of done records become contiguous positions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.core.fetch.progress import DeliveredSpan, PartitionProgress
from odradek.core.states import OwnershipEvent
from odradek.types import Position

P = Position


def test_only_done_spans_count() -> None:
    progress = PartitionProgress(P(0), P(0))
    first = progress.deliver(P(13))
    assert progress.position == 0 and progress.to_commit is None and progress.in_hand == 1
    assert first.done()
    assert progress.position == 13 == progress.to_commit and progress.in_hand == 0


def test_out_of_order_marks_wait_for_the_gap() -> None:
    progress = PartitionProgress(P(0))
    spans = [progress.deliver(P(n)) for n in (10, 20, 30)]
    assert spans[2].done() and spans[1].done()
    assert progress.position == 0 and progress.outstanding == 3 and progress.in_hand == 1
    assert spans[0].done()
    assert progress.position == 30 and progress.outstanding == 0


def test_a_mark_counts_once() -> None:
    progress = PartitionProgress(P(0))
    span = progress.deliver(P(10))
    assert span.done() and span.done()
    assert progress.in_hand == 0 and progress.position == 10


def test_an_abandoned_span_holds_back_everything_after_it() -> None:
    progress = PartitionProgress(P(0))
    first, second = progress.deliver(P(10)), progress.deliver(P(20))
    first.reach(P(4))
    first.abandon()
    assert second.done() and not first.done()
    first.reach(P(9))
    assert progress.position == 4 and progress.in_hand == 0


def test_the_starting_position_is_worth_storing_when_nothing_is_stored() -> None:
    assert PartitionProgress(P(7)).to_commit == 7
    assert PartitionProgress(P(7), P(7)).to_commit is None
    assert PartitionProgress(None).to_commit is None


def test_a_chosen_position_ends_what_is_before_it_and_is_never_gone_behind() -> None:
    progress = PartitionProgress(P(0))
    first, second, third = (progress.deliver(P(n)) for n in (10, 20, 30))
    first.abandon()
    progress.process_until(P(20))
    assert progress.position == 20 and (progress.in_hand, progress.outstanding) == (1, 1)
    assert second.done() and first.done(), "they count, and change nothing"
    third.reach(P(15))
    progress.process_until(P(5))
    assert progress.position == 20
    third.reach(P(25))
    assert progress.position == 25
    progress.process_until(P(40))
    fourth = progress.deliver(P(35))
    assert progress.position_after({fourth}) == 40
    assert third.done() and fourth.done() and progress.position == 40
    assert progress.deliver(P(50)).done() and progress.position == 50
    assert (progress.in_hand, progress.outstanding) == (0, 0)


def test_a_chosen_position_where_none_is_known() -> None:
    progress = PartitionProgress(None)
    progress.process_until(P(7))
    assert progress.to_commit == 7


def test_what_a_transaction_stores_is_not_worth_storing() -> None:
    progress = PartitionProgress(P(0))
    span = progress.deliver(P(10))
    span.leave_to_transactions()
    assert progress.to_commit is None
    span.done()
    assert progress.position == 10 and progress.to_commit is None
    assert progress.restart(P(5)).to_commit == 5


def test_a_position_from_before_a_transaction_is_worth_storing_after_seek() -> None:
    progress = PartitionProgress(P(5), P(5))
    progress.deliver(P(10)).leave_to_transactions()
    assert progress.restart(P(5)).to_commit == 5, "the transaction may have stored 10"


def test_spans_give_a_position_once_everything_before_them_is_done_or_among_them() -> None:
    progress = PartitionProgress(P(0))
    first, second, third = (progress.deliver(P(n)) for n in (10, 20, 30))
    assert progress.position_after({first}) == 10
    assert progress.position_after({second}) is None
    assert progress.position_after({first, second}) == 20
    assert progress.position_after({third, first}) is None
    second.done()
    assert progress.position_after({first}) == 20 and progress.position_after({first, third}) == 30
    assert progress.position == 0 and progress.position_after(set()) == 0


def test_what_was_taken_back_is_not_done() -> None:
    progress = PartitionProgress(P(0))
    span = progress.deliver(P(30))
    span.cut(P(20))
    assert span.done() and progress.position == 20
    span.cut(P(10))
    assert span.next_position == 20, "it is over"


def test_what_is_not_delivered_is_passed_over_once_everything_before_it_is_done() -> None:
    progress = PartitionProgress(P(0), P(0))
    first, second = progress.deliver(P(10)), progress.deliver(P(20))
    progress.pass_over(P(21))
    assert progress.to_commit is None
    assert progress.position_after({first}) == 10 and progress.position_after({first, second}) == 21
    second.done()
    assert progress.position == 0 and progress.position_after({first}) == 21
    first.done()
    assert progress.to_commit == 21
    progress.pass_over(P(23))
    assert progress.to_commit == 23
    third = progress.deliver(P(30))
    progress.pass_over(P(31))
    progress.deliver(P(40))
    third.done()
    assert progress.position == 30
    progress.process_until(P(40))
    assert progress.position == 40


def test_what_was_taken_back_is_not_passed_over() -> None:
    progress = PartitionProgress(P(0))
    span = progress.deliver(P(30))
    progress.pass_over(P(31))
    span.cut(P(20))
    assert progress.position_after({span}) == 20
    assert span.done() and progress.position == 20


def test_nothing_is_passed_over_from_a_position_that_is_not_known() -> None:
    progress = PartitionProgress(None)
    progress.pass_over(P(3))
    assert progress.to_commit is None


def test_marks_after_the_release_do_not_count() -> None:
    progress = PartitionProgress(P(0))
    span = progress.deliver(P(10))
    progress.apply(OwnershipEvent.REVOKE)
    late = progress.deliver(P(20))
    assert span.done() and progress.to_commit == 10, "done while it is being revoked"
    progress.apply(OwnershipEvent.RELEASE)
    assert not late.done() and not late.counts


def test_a_restart_moves_the_position_and_ends_old_spans() -> None:
    old = PartitionProgress(P(50), P(50))
    span = old.deliver(P(60))
    new = old.restart(P(20))
    assert not span.done()
    assert new.position == 20 == new.to_commit and new.in_hand == 0 and new.committed == 50


def test_inside_a_wrapper_the_wrapper_start_is_committed() -> None:
    """first@15 one@15 two@68 of specification 2.3, one record a span, finished in the worst order."""
    progress = PartitionProgress(P(0))
    first, one, two = (progress.deliver(P(n)) for n in (15, 15, 68))
    assert one.done() and progress.position == 0
    assert first.done() and progress.position == 15
    two.reach(P(15))
    assert progress.position == 15 and progress.in_hand == 1
    assert two.done() and progress.position == 68


def test_memory_follows_the_spans_being_processed_and_not_the_records_done() -> None:
    """One record is never finished: a million after it must not be kept one by one."""
    progress = PartitionProgress(P(0))
    stuck = progress.deliver(P(1))
    for n in range(1, 1001):
        assert progress.deliver(P(n + 1)).done()
    assert progress.outstanding == 1001 and progress.position == 0
    assert len(linked(progress)) == 2
    assert stuck.done() and progress.position == 1001 and progress.outstanding == 0 and linked(progress) == []


def linked(progress: PartitionProgress) -> list[DeliveredSpan]:
    spans, span = [], progress._first
    while span is not None:
        spans.append(span)
        span = span._next
    return spans


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.data(),
)
def test_the_position_is_always_the_longest_done_prefix(steps: list[int], data: st.DataObject) -> None:
    """Against the definition, for any growth of positions (0: inside a wrapper) and any order of marks."""
    progress = PartitionProgress(P(0))
    ends = [sum(steps[: n + 1]) for n in range(len(steps))]
    spans: list[DeliveredSpan] = [progress.deliver(P(end)) for end in ends]
    finished: set[int] = set()
    for n in data.draw(st.permutations(range(len(spans)))):
        if data.draw(st.booleans()):
            finished.add(n)
            assert spans[n].done()
        else:
            spans[n].abandon()
        prefix = 0
        while prefix in finished:
            prefix += 1
        assert progress.position == (ends[prefix - 1] if prefix else 0)
        assert progress.in_hand == sum(span.open for span in spans)
        assert len(linked(progress)) <= 2 * (len(spans) - len(finished)) + 1
    assert progress.outstanding == len(spans) - prefix
