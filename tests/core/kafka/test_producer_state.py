"""The idempotent producer: sequences that never have a gap, and what each error means."""

from __future__ import annotations

import pytest

from odradek.core.kafka.producer_state import (
    MAX_IN_FLIGHT,
    IdempotentProducer,
    NextStep,
    ProducerIdentity,
    Stamp,
    next_sequence,
)
from odradek.errors import LocalProtocolError
from odradek.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def ready(*, transactional: bool = False) -> IdempotentProducer:
    state = IdempotentProducer(transactional=transactional)
    state.identify(4000, 3)
    return state


def established(acked: int = 1, *, transactional: bool = False) -> IdempotentProducer:
    """A producer of which the broker has a first batch, at offset 0."""
    state = ready(transactional=transactional)
    state.answered(state.stamp(A, acked), 0, 0)
    return state


def nothing(stamp: Stamp) -> bool:
    """No attempt may have been written."""
    return False


def everything(stamp: Stamp) -> bool:
    """Any attempt may have been written."""
    return True


def test_the_last_sequence_is_followed_by_0() -> None:
    assert next_sequence(2**31 - 1, 1) == 0
    assert next_sequence(2**31 - 2, 5) == 3


def test_sequences_follow_each_other_per_partition() -> None:
    state = established()
    stamps = [state.stamp(A, 10), state.stamp(A, 5), state.stamp(B, 1)]
    assert [s.base_sequence for s in stamps] == [1, 11, 0]
    assert all(s.producer == ProducerIdentity(4000, 3) for s in stamps)
    assert stamps[0].following == 11


def test_nothing_is_sent_without_a_producer_id() -> None:
    state = IdempotentProducer()
    assert not state.can_send(A)
    with pytest.raises(LocalProtocolError, match="wait for a producer id"):
        state.stamp(A, 1)
    assert "None" in repr(state)


def test_no_more_than_five_batches_are_on_their_way() -> None:
    state = established()
    stamps = [state.stamp(A, 1) for _ in range(MAX_IN_FLIGHT)]
    assert not state.can_send(A) and state.can_send(B)
    assert state.answered(stamps[0], 0, 100) is NextStep.DONE
    assert state.can_send(A)


def test_until_a_batch_is_acknowledged_only_one_is_on_its_way() -> None:
    state = ready()
    first = state.stamp(A, 1)
    assert not state.can_send(A) and state.can_send(A, first) and state.can_send(B)
    state.answered(first, 0, 5)
    second, third = state.stamp(A, 1), state.stamp(A, 1)
    assert state.can_send(A, second) and state.can_send(A, third)
    assert not state.can_send(A, first) and not state.can_send(B, Stamp(B, second.producer, 0, 1))


def test_batches_that_were_written_before_an_older_one_count_as_on_their_way() -> None:
    """It may have been written in spite of its error. When it comes again, it has to be one of the last five."""
    state = established()
    first, second = state.stamp(A, 1), state.stamp(A, 1)
    assert state.answered(first, 7, may_be_written=True) is NextStep.RETRY
    assert state.answered(second, 0) is NextStep.DONE
    behind = [state.stamp(A, 1) for _ in range(MAX_IN_FLIGHT - 2)]
    assert not state.can_send(A) and state.can_send(A, first) and state.can_send(A, behind[-1])
    assert state.answered(first, 0) is NextStep.DONE
    assert state.can_send(A)
    assert [state.stamp(A, 1).base_sequence for _ in range(2)] == [6, 7]
    assert not state.can_send(A)


def test_a_broker_that_remembers_one_batch_gets_one_at_a_time() -> None:
    remembered = 5
    state = IdempotentProducer(lambda: remembered)
    state.identify(4000, 3)
    state.answered(state.stamp(A, 1), 0, 5)
    first, second = state.stamp(A, 1), state.stamp(A, 1)
    remembered = 1  # a broker of an older release was met
    assert state.can_send(A, first) and not state.can_send(A, second) and not state.can_send(A)
    state.answered(first, 0, 6)
    assert state.can_send(A, second)


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (0, NextStep.DONE),
        (46, NextStep.DUPLICATE),
        (2, NextStep.RETRY),
        (7, NextStep.RETRY),
        (19, NextStep.RETRY),
        (20, NextStep.RETRY),
        (51, NextStep.RETRY),
        (3, NextStep.REFRESH),
        (5, NextStep.REFRESH),
        (6, NextStep.REFRESH),
        (13, NextStep.REFRESH),
        (56, NextStep.REFRESH),
        (74, NextStep.REFRESH),
        (100, NextStep.REFRESH),
        (17, NextStep.FAIL),
        (29, NextStep.FAIL),
        (87, NextStep.FAIL),
        (76, NextStep.FAIL),
        (-1, NextStep.FAIL),
        (9999, NextStep.FAIL),
        (47, NextStep.FENCED),
        (90, NextStep.FENCED),
        (10, NextStep.FAIL),
        (18, NextStep.FAIL),
        (48, NextStep.FATAL),
        (53, NextStep.FATAL),
        (31, NextStep.FATAL),
    ],
)
def test_what_an_error_means(code: int, step: NextStep) -> None:
    state = ready()
    assert state.answered(state.stamp(A, 1), code) is step


def test_a_batch_that_is_sent_again_keeps_its_stamp() -> None:
    state = ready()
    stamp = state.stamp(A, 3)
    assert state.answered(stamp, 7, may_be_written=True) is NextStep.RETRY
    assert state.resolve_refusals(A, everything) == ((), ())
    assert state.can_send(A, stamp)


# ---- refused batches ----


def test_a_refused_batch_lets_those_behind_it_have_its_numbers() -> None:
    state = established()
    first, second, third = state.stamp(A, 10), state.stamp(A, 5), state.stamp(A, 1)
    assert state.answered(first, 17) is NextStep.FAIL
    assert [state.answered(stamp, 45) for stamp in (second, third)] == [NextStep.RETRY, NextStep.RETRY]
    assert not state.can_send(A)
    assert state.resolve_refusals(A, nothing) == ([], [second, third])
    assert state.stamp(A, 5) == Stamp(A, ProducerIdentity(4000, 3), 1, 5)


def test_the_last_batch_gives_its_numbers_back_at_once() -> None:
    state = established()
    first, second = state.stamp(A, 10), state.stamp(A, 5)
    assert state.answered(second, 17) is NextStep.FAIL
    assert state.stamp(A, 1).base_sequence == 11 and state.can_send(A, first)


@pytest.mark.parametrize("divided", [False, True])
def test_a_batch_before_one_that_was_written_does_not_give_its_numbers_back(divided: bool) -> None:
    """From 2.5 on a broker takes any sequence of a producer that it does not know for the first one: if the topic was
    made again, that of a batch behind one it has refused. The next batch with its numbers would count as written."""
    state = established()
    _, refused, written = state.stamp(A, 2), state.stamp(A, 2), state.stamp(A, 2)
    assert state.answered(written, 0, 0) is NextStep.DONE
    if divided:
        assert [part.base_sequence for part in state.divide(refused, [1, 1])] == [3, 4]
    else:
        state.give_up(refused, may_be_written=False)
    assert state.stamp(A, 2).base_sequence == written.following


def test_a_batch_behind_a_refused_one_is_given_up_if_it_may_be_written() -> None:
    """The connection broke before the broker could say that it refused that, too."""
    state = established()
    first, second, third = state.stamp(A, 10), state.stamp(A, 5), state.stamp(A, 1)
    state.answered(first, 17)
    assert state.answered(second, 45) is NextStep.RETRY
    assert state.resolve_refusals(A, [second].__contains__) == ([second], [third])
    assert state.stamp(A, 1).producer.epoch == 4


def test_a_batch_before_one_that_may_be_written_is_not_written_behind_it() -> None:
    state = established()
    first, second, third = state.stamp(A, 1), state.stamp(A, 2), state.stamp(A, 4)
    state.answered(first, 45)
    assert state.resolve_refusals(A, [second].__contains__) == ([first, second], [third])


def test_a_batch_before_one_that_was_written_is_not_written_behind_it() -> None:
    """A broker that has forgotten the producer takes any sequence for the first one."""
    state = established()
    first, second, third = state.stamp(A, 1), state.stamp(A, 2), state.stamp(A, 4)
    state.answered(first, 19)
    state.answered(second, 0, 7)
    state.answered(first, 45)
    assert state.resolve_refusals(A, nothing) == ([first], [third])
    assert state.stamp(A, 1).base_sequence == second.following


@pytest.mark.parametrize("code", [-1, 17])
def test_a_failed_batch_that_may_be_written_does_not_give_its_numbers_back(code: int) -> None:
    """Under the same numbers the broker would take the next batch for this one, and confirm it."""
    state = established()
    stamp = state.stamp(A, 1)
    assert state.answered(stamp, code, may_be_written=True) is NextStep.FAIL
    assert state.stamp(A, 1) == Stamp(A, ProducerIdentity(4000, 4), 0, 1)


# ---- sequences that the broker refuses ----


def test_out_of_order_behind_a_batch_on_its_way_is_only_tried_again() -> None:
    state = established()
    first, second = state.stamp(A, 1), state.stamp(A, 1)
    assert state.answered(second, 45) is NextStep.RETRY
    assert state.resolve_refusals(A, nothing) == ((), ())
    assert state.can_send(A, first) and state.can_send(A, second)


def test_out_of_order_of_the_first_batch_raises_the_epoch() -> None:
    state = established(7)
    first, second = state.stamp(A, 2), state.stamp(A, 3)
    assert state.answered(first, 45) is NextStep.RETRY
    assert state.resolve_refusals(A, nothing) == ([], [first, second])
    raised = ProducerIdentity(4000, 4)
    assert state.stamp(A, 2) == Stamp(A, raised, 0, 2)
    assert state.identity == raised and not state.can_send(A)


@pytest.mark.parametrize(("code", "log_start"), [(45, -1), (59, -1), (59, 0), (59, 500), (49, -1), (120, -1)])
def test_a_batch_that_may_be_written_never_gets_another_stamp(code: int, log_start: int) -> None:
    state = established()
    stamp, behind = state.stamp(A, 1), state.stamp(A, 1)
    assert state.answered(stamp, code, -1, log_start, may_be_written=True) is NextStep.RETRY
    assert state.resolve_refusals(A, [stamp].__contains__) == ([stamp], [behind])
    assert state.stamp(A, 1) == Stamp(A, ProducerIdentity(4000, 4), 0, 1)


@pytest.mark.parametrize(("code", "log_start"), [(45, -1), (59, -1), (59, 0), (59, 500), (49, -1), (120, -1)])
def test_a_batch_that_was_not_written_goes_on_with_a_higher_epoch(code: int, log_start: int) -> None:
    state = established()
    stamp = state.stamp(A, 1)
    assert state.answered(stamp, code, -1, log_start) is NextStep.RETRY
    assert state.resolve_refusals(A, nothing) == ([], [stamp])
    assert state.stamp(A, 1) == Stamp(A, ProducerIdentity(4000, 4), 0, 1)


def test_other_partitions_follow_to_the_new_epoch_when_nothing_of_theirs_is_on_its_way() -> None:
    state = ready()
    other = state.stamp(B, 4)
    state.answered(state.stamp(A, 1), 45)
    state.resolve_refusals(A, nothing)
    assert not state.can_send(B)
    state.answered(other, 0, 0)
    assert state.can_send(B)
    stamp = state.stamp(B, 1)
    assert (stamp.producer.epoch, stamp.base_sequence) == (4, 0)


def test_a_second_partition_out_of_order_does_not_raise_the_epoch_twice() -> None:
    state = ready()
    other = state.stamp(B, 4)
    for stamp in (state.stamp(A, 1), other):
        state.answered(stamp, 45)
        state.resolve_refusals(stamp.partition, nothing)
    assert state.stamp(B, 4) == Stamp(B, ProducerIdentity(4000, 4), 0, 4)


def test_after_the_last_epoch_a_new_id_is_needed() -> None:
    state = IdempotentProducer()
    state.identify(4000, 0x7FFF)
    for stamp in (state.stamp(A, 1), state.stamp(B, 1)):
        assert state.answered(stamp, 45) is NextStep.RETRY
        assert state.resolve_refusals(stamp.partition, nothing) == ([], [stamp])
        assert state.identity is None and not state.can_send(A)
    state.identify(4001, 0)
    assert state.stamp(A, 1) == Stamp(A, ProducerIdentity(4001, 0), 0, 1)


def test_a_new_id_leaves_batches_alone_that_their_broker_may_still_accept() -> None:
    state = IdempotentProducer()
    state.identify(4000, 0x7FFF)
    stamp, other = state.stamp(A, 1), state.stamp(B, 1)
    state.answered(stamp, 45)
    state.resolve_refusals(A, nothing)
    state.identify(4001, 0)
    assert not state.can_send(B) and state.can_send(B, other)
    assert state.answered(other, 0, 5) is NextStep.DONE
    assert state.stamp(B, 1) == Stamp(B, ProducerIdentity(4001, 0), 0, 1)


# ---- transactions ----


def test_records_removed_by_retention_restart_the_sequences_of_a_transaction() -> None:
    state = ready(transactional=True)
    state.answered(state.stamp(A, 5), 0, 100)
    stamp = state.stamp(A, 1)
    assert state.answered(stamp, 59) is NextStep.RETRY  # the log start is not known
    assert state.resolve_refusals(A, nothing) == ((), ())
    assert state.answered(stamp, 59, log_start_offset=105) is NextStep.RETRY
    assert state.resolve_refusals(A, nothing) == ([], [stamp])
    assert state.stamp(A, 1) == Stamp(A, ProducerIdentity(4000, 3), 0, 1)
    assert not state.can_send(A)


@pytest.mark.parametrize(
    ("code", "log_start", "gap"),
    [(45, -1, True), (59, 0, True), (59, 104, True), (49, -1, True), (120, -1, True), (17, -1, False)],
)
def test_a_transaction_that_misses_a_batch_is_aborted(code: int, log_start: int, gap: bool) -> None:
    state = ready(transactional=True)
    state.answered(state.stamp(A, 5), 0, 100)
    stamp = state.stamp(A, 1)
    assert state.answered(stamp, code, log_start_offset=log_start) is NextStep.ABORT
    assert state.identity == ProducerIdentity(4000, 3) and state.has_gap is gap


@pytest.mark.parametrize("others", [0, 2])
def test_a_topic_that_was_made_again_begins_again_in_the_next_transaction(others: int) -> None:
    """From 1.0 to 2.4 brokers refuse the sequence of a producer that they do not know, and there is no other epoch."""
    state = ready(transactional=True)
    state.answered(state.stamp(A, 5), 0, 100)
    state.answered(state.stamp(B, 5), 0, 100)
    stamps = [state.stamp(A, 2) for _ in range(1 + others)]
    assert state.answered(stamps[0], 59, log_start_offset=0) is NextStep.ABORT
    for stamp in stamps[1:]:
        assert state.answered(stamp, 59, log_start_offset=0) is NextStep.ABORT
    state.begin_forgotten_again()
    assert not state.has_gap
    assert (state.stamp(A, 1).base_sequence, state.stamp(B, 1).base_sequence) == (0, 5)


@pytest.mark.parametrize("first", [True, False])
def test_it_does_not_begin_again_where_a_batch_may_yet_be_written(first: bool) -> None:
    state = ready(transactional=True)
    state.answered(state.stamp(A, 5), 0, 100)
    refused, behind = state.stamp(A, 2), state.stamp(A, 2)
    assert state.answered(refused, 59, log_start_offset=0, may_be_written=first) is NextStep.ABORT
    state.begin_forgotten_again()
    assert state.has_gap, "one is in flight"
    state.give_up(behind, may_be_written=not first)
    state.begin_forgotten_again()
    assert state.has_gap


def test_an_expired_batch_of_a_transaction_leaves_the_epoch_to_the_abort() -> None:
    state = ready(transactional=True)
    state.give_up(state.stamp(A, 1), may_be_written=True)
    assert state.has_gap and state.stamp(A, 1).producer.epoch == 3


def test_a_gap_is_seen_until_the_next_epoch() -> None:
    state = ready(transactional=True)
    assert not state.has_gap
    state.answered(state.stamp(A, 3), 0, 7)
    assert not state.has_gap
    state.give_up(state.stamp(A, 2), may_be_written=False)
    assert not state.has_gap
    state.give_up(state.stamp(B, 1), may_be_written=True)
    assert state.has_gap
    state.identify(4000, 4, "tx", transactions_v2=True)
    assert not state.has_gap
    assert state.stamp(A, 1).producer == ProducerIdentity(4000, 4, "tx", True)


def test_a_refused_batch_of_a_transaction_leaves_nothing_behind_in_the_next_epoch() -> None:
    state = ready(transactional=True)
    assert state.answered(state.stamp(A, 1), 45) is NextStep.ABORT
    assert state.has_gap
    state.identify(4000, 4)
    assert state.can_send(A) and state.stamp(A, 1).base_sequence == 0


# ---- batches that are given up ----


def test_a_batch_given_up_in_doubt_holds_back_the_next_until_the_rest_is_decided() -> None:
    state = established()
    lost, behind = state.stamp(A, 1), state.stamp(A, 1)
    state.give_up(lost, may_be_written=True)
    assert not state.can_send(A)
    state.answered(behind, 0, 8)  # so the one before it was written too
    stamp = state.stamp(A, 1)
    assert (stamp.producer.epoch, stamp.base_sequence) == (3, 3)


def test_a_gap_that_remains_is_closed_by_a_higher_epoch() -> None:
    state = ready()
    state.give_up(state.stamp(A, 1), may_be_written=True)
    stamp = state.stamp(A, 1)
    assert (stamp.producer.epoch, stamp.base_sequence) == (4, 0)


def test_a_gap_after_the_last_epoch_needs_a_new_id() -> None:
    state = IdempotentProducer()
    state.identify(4000, 0x7FFF)
    state.give_up(state.stamp(A, 1), may_be_written=True)
    assert state.identity is None and not state.can_send(A)


def test_a_batch_taken_back_behind_a_gap_leaves_the_gap() -> None:
    state = established()
    lost, behind = state.stamp(A, 1), state.stamp(A, 1)
    state.give_up(lost, may_be_written=True)
    state.give_up(behind, may_be_written=False)
    assert state.stamp(A, 1).producer.epoch == 4


def test_answers_about_batches_that_are_decided_change_nothing() -> None:
    state = ready()
    stamp = state.stamp(A, 1)
    state.give_up(stamp, may_be_written=True)
    state.give_up(stamp, may_be_written=True)
    assert state.identity == ProducerIdentity(4000, 4)
    assert state.answered(stamp, 7) is NextStep.RETRY
    assert state.answered(Stamp(B, stamp.producer, 0, 1), 0) is NextStep.DONE
    assert state.resolve_refusals(B, everything) == ((), ())


def test_a_new_identity_starts_all_sequences_at_0() -> None:
    state = established(9)
    state.identify(4000, 4)
    assert state.stamp(A, 1) == Stamp(A, ProducerIdentity(4000, 4), 0, 1)
    assert repr(state) == "<IdempotentProducer ProducerIdentity(producer_id=4000, epoch=4), 1 partitions>"


# ---- the last sequence ----


@pytest.mark.parametrize("count", [1, 2, 3])
def test_batches_in_flight_across_the_last_sequence_keep_their_order(count: int) -> None:
    state = established(2**31 - 2)
    crossing, behind = state.stamp(A, count), state.stamp(A, 4)
    assert (crossing.base_sequence, behind.base_sequence) == (2**31 - 2, (count - 2) % 2**31)
    assert state.answered(behind, 0, 2**31) is NextStep.DONE
    assert state.answered(crossing, 7) is NextStep.RETRY
    assert state.answered(crossing, 46) is NextStep.DUPLICATE
    assert state.stamp(A, 1).base_sequence == count + 2


@pytest.mark.parametrize("outcome", ["written", "not written"])
def test_a_batch_given_up_at_the_last_sequence_is_judged_by_the_ones_behind_it(outcome: str) -> None:
    state = established(2**31 - 1)
    lost, behind = state.stamp(A, 1), state.stamp(A, 1)
    assert (lost.base_sequence, behind.base_sequence) == (2**31 - 1, 0)
    state.give_up(lost, may_be_written=True)
    if outcome == "written":
        state.answered(behind, 0, 2**31)
        assert state.stamp(A, 1) == Stamp(A, ProducerIdentity(4000, 3), 1, 1)
    else:
        assert state.answered(behind, 45) is NextStep.RETRY
        assert state.resolve_refusals(A, nothing) == ([], [behind])
        assert state.stamp(A, 1) == Stamp(A, ProducerIdentity(4000, 4), 0, 1)


# ---- parts of batches ----


def test_a_refused_batch_is_divided_in_its_own_numbers() -> None:
    state = established()
    first, second = state.stamp(A, 4), state.stamp(A, 2)
    parts = state.divide(first, [3, 1])
    assert [(part.base_sequence, part.records) for part in parts] == [(1, 3), (4, 1)]
    assert state.can_send(A, parts[0]) and state.can_send(A, second)
    assert state.divide(first, [4]) == ()


def test_batches_close_up_behind_one_that_loses_records() -> None:
    state = established()
    first, second = state.stamp(A, 4), state.stamp(A, 2)
    (part,) = state.divide(first, [1])
    assert (part.base_sequence, part.records) == (1, 1)
    state.answered(part, 0, 1)
    assert state.answered(second, 45) is NextStep.RETRY
    assert state.resolve_refusals(A, nothing) == ([], [second])
    assert state.stamp(A, 2).base_sequence == 2


def test_the_last_batch_is_followed_by_what_is_left_of_it() -> None:
    state = established()
    state.divide(state.stamp(A, 4), [1, 1])
    assert state.stamp(A, 1).base_sequence == 3
