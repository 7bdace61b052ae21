"""The idempotent producer: sequences that never have a gap, and what each error means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.kafka.producer_state import (
    MAX_IN_FLIGHT,
    IdempotentProducer,
    NextStep,
    ProducerIdentity,
    Stamp,
    next_sequence,
    step_without_sequences,
)
from odradek.errors import LocalProtocolError
from odradek.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def ready(*, transactional: bool = False) -> IdempotentProducer:
    state = IdempotentProducer(transactional=transactional)
    state.identify(4000, 3)
    return state


def test_the_last_sequence_is_followed_by_0() -> None:
    assert next_sequence(2**31 - 1, 1) == 0
    assert next_sequence(2**31 - 2, 5) == 3


def test_sequences_follow_each_other_per_partition() -> None:
    state = ready()
    stamps = [state.stamp(A, 10), state.stamp(A, 5), state.stamp(B, 1)]
    assert [s.base_sequence for s in stamps] == [0, 10, 0]
    assert all(s.producer == ProducerIdentity(4000, 3) for s in stamps)
    assert stamps[0].following == 10


def test_nothing_is_sent_without_a_producer_id() -> None:
    state = IdempotentProducer()
    assert not state.can_send(A)
    with pytest.raises(LocalProtocolError, match="wait for a producer id"):
        state.stamp(A, 1)
    assert "None" in repr(state)


def test_no_more_than_five_batches_are_on_their_way() -> None:
    state = ready()
    stamps = [state.stamp(A, 1) for _ in range(MAX_IN_FLIGHT)]
    assert not state.can_send(A) and state.can_send(B)
    assert state.answered(stamps[0], 0, 100).step is NextStep.DONE
    assert state.can_send(A)


def test_a_new_attempt_waits_for_older_batches() -> None:
    state = ready()
    first, second = state.stamp(A, 1), state.stamp(A, 1)
    assert state.is_first(first) and not state.is_first(second)
    state.answered(first, 0, 5)
    assert state.is_first(second)
    assert not state.is_first(Stamp(B, second.producer, 0, 1))


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
        (18, NextStep.FAIL),
        (29, NextStep.FAIL),
        (87, NextStep.FAIL),
        (76, NextStep.FAIL),
        (-1, NextStep.FAIL),
        (9999, NextStep.FAIL),
        (47, NextStep.FENCED),
        (90, NextStep.FENCED),
        (48, NextStep.FATAL),
        (53, NextStep.FATAL),
        (31, NextStep.FATAL),
    ],
)
def test_what_an_error_means(code: int, step: NextStep) -> None:
    state = ready()
    assert state.answered(state.stamp(A, 1), code).step is step


def test_a_retried_batch_keeps_its_stamp() -> None:
    state = ready()
    stamp = state.stamp(A, 3)
    decision = state.answered(stamp, 7)
    assert decision.step is NextStep.RETRY and not decision.restamped
    assert state.is_first(stamp)


def test_a_refused_batch_lets_those_behind_it_close_up() -> None:
    state = ready()
    first, second, third = state.stamp(A, 10), state.stamp(A, 5), state.stamp(A, 1)
    decision = state.answered(second, 17)
    assert decision.step is NextStep.FAIL
    assert decision.restamped == {third: Stamp(A, third.producer, 10, 1)}
    assert state.is_first(first)
    assert state.stamp(A, 1).base_sequence == 11


def test_a_batch_too_large_is_split_when_it_can_be() -> None:
    state = ready()
    large, behind = state.stamp(A, 2), state.stamp(A, 4)
    decision = state.answered(large, 10)
    assert decision.step is NextStep.SPLIT
    assert decision.restamped == {behind: Stamp(A, behind.producer, 0, 4)}
    single = state.stamp(B, 1)
    assert state.answered(single, 10).step is NextStep.FAIL


def test_out_of_order_behind_a_batch_on_its_way_is_only_tried_again() -> None:
    state = ready()
    state.stamp(A, 1)
    second = state.stamp(A, 1)
    decision = state.answered(second, 45)
    assert decision.step is NextStep.RETRY and not decision.restamped


def test_out_of_order_of_the_first_batch_raises_the_epoch() -> None:
    state = ready()
    done = state.stamp(A, 7)
    state.answered(done, 0, 0)
    first, second = state.stamp(A, 2), state.stamp(A, 3)
    decision = state.answered(first, 45)
    raised = ProducerIdentity(4000, 4)
    assert decision.step is NextStep.RETRY
    assert decision.restamped == {first: Stamp(A, raised, 0, 2), second: Stamp(A, raised, 2, 3)}
    assert state.identity == raised
    assert state.stamp(A, 1).base_sequence == 5


def test_other_partitions_follow_to_the_new_epoch_when_nothing_of_theirs_is_on_its_way() -> None:
    state = ready()
    other = state.stamp(B, 4)
    state.answered(state.stamp(A, 1), 45)
    assert not state.can_send(B)
    state.answered(other, 0, 0)
    stamp = state.stamp(B, 1)
    assert (stamp.producer.epoch, stamp.base_sequence) == (4, 0)


def test_a_second_partition_out_of_order_does_not_raise_the_epoch_twice() -> None:
    state = ready()
    other = state.stamp(B, 4)
    state.answered(state.stamp(A, 1), 45)
    decision = state.answered(other, 45)
    assert decision.restamped == {other: Stamp(B, ProducerIdentity(4000, 4), 0, 4)}
    assert state.identity == ProducerIdentity(4000, 4)


def test_after_the_last_epoch_a_new_id_is_needed() -> None:
    state = IdempotentProducer()
    state.identify(4000, 0x7FFF)
    stamp, other = state.stamp(A, 1), state.stamp(B, 1)
    assert state.answered(stamp, 45).step is NextStep.REINITIALIZE
    assert state.answered(other, 45).step is NextStep.REINITIALIZE
    assert not state.can_send(A)
    raised = ProducerIdentity(4001, 0)
    assert state.identify(4001, 0) == {stamp: Stamp(A, raised, 0, 1), other: Stamp(B, raised, 0, 1)}
    assert state.stamp(A, 1).base_sequence == 1
    assert state.identify(4002, 0) == {}  # nothing waits for an id any more


def test_a_new_id_leaves_batches_alone_that_their_broker_may_still_accept() -> None:
    state = IdempotentProducer()
    state.identify(4000, 0x7FFF)
    stamp, other = state.stamp(A, 1), state.stamp(B, 1)
    state.answered(stamp, 45)
    assert other not in state.identify(4001, 0) and not state.can_send(B)
    assert state.answered(other, 0, 5).step is NextStep.DONE
    assert state.stamp(B, 1) == Stamp(B, ProducerIdentity(4001, 0), 0, 1)


def test_records_removed_by_retention_restart_the_sequences() -> None:
    state = ready()
    state.answered(state.stamp(A, 5), 0, 100)
    stamp = state.stamp(A, 1)
    decision = state.answered(stamp, 59, log_start_offset=105)
    assert decision.restamped == {stamp: Stamp(A, ProducerIdentity(4000, 3), 0, 1)}


def test_a_producer_unknown_for_a_worse_reason_raises_the_epoch() -> None:
    state = ready()
    state.answered(state.stamp(A, 5), 0, 100)
    stamp = state.stamp(A, 1)
    assert state.answered(stamp, 59).step is NextStep.RETRY  # the log start is not known
    decision = state.answered(stamp, 59, log_start_offset=104)
    assert decision.restamped == {stamp: Stamp(A, ProducerIdentity(4000, 4), 0, 1)}


@pytest.mark.parametrize("code", [49, 120])
def test_what_aborts_a_transaction_raises_the_epoch_without_one(code: int) -> None:
    plain, transactional = ready(), ready(transactional=True)
    assert plain.answered(plain.stamp(A, 1), code).step is NextStep.RETRY
    assert plain.identity == ProducerIdentity(4000, 4)
    assert transactional.answered(transactional.stamp(A, 1), code).step is NextStep.ABORT


@pytest.mark.parametrize(("code", "log_start"), [(45, -1), (59, 0), (17, -1)])
def test_a_transaction_that_misses_a_batch_is_aborted(code: int, log_start: int) -> None:
    state = ready(transactional=True)
    state.answered(state.stamp(A, 5), 0, 100)
    assert state.answered(state.stamp(A, 1), code, log_start_offset=log_start).step is NextStep.ABORT
    assert state.identity == ProducerIdentity(4000, 3)


def test_a_batch_given_up_in_doubt_holds_back_the_next_until_the_rest_is_decided() -> None:
    state = ready()
    lost, behind = state.stamp(A, 1), state.stamp(A, 1)
    state.expire(lost)
    assert not state.can_send(A)
    state.answered(behind, 0, 8)  # so the one before it was written too
    stamp = state.stamp(A, 1)
    assert (stamp.producer.epoch, stamp.base_sequence) == (3, 2)


def test_a_gap_that_remains_is_closed_by_a_higher_epoch() -> None:
    state = ready()
    state.expire(state.stamp(A, 1))
    stamp = state.stamp(A, 1)
    assert (stamp.producer.epoch, stamp.base_sequence) == (4, 0)


def test_a_gap_after_the_last_epoch_needs_a_new_id() -> None:
    state = IdempotentProducer()
    state.identify(4000, 0x7FFF)
    state.expire(state.stamp(A, 1))
    assert state.identity is None and not state.can_send(A)


def test_a_batch_taken_back_behind_a_gap_leaves_the_gap() -> None:
    state = ready()
    lost, behind = state.stamp(A, 1), state.stamp(A, 1)
    state.expire(lost)
    assert state.withdraw(behind) == {}
    assert state.stamp(A, 1).producer.epoch == 4


def test_an_expired_batch_of_a_transaction_leaves_the_epoch_to_the_abort() -> None:
    state = ready(transactional=True)
    state.expire(state.stamp(A, 1))
    assert state.stamp(A, 1).producer.epoch == 3


def test_a_gap_is_seen_until_the_next_epoch() -> None:
    state = ready(transactional=True)
    assert not state.has_gap
    state.answered(state.stamp(A, 3), 0, 7)
    assert not state.has_gap
    state.withdraw(state.stamp(A, 2))  # certainly not written
    assert not state.has_gap
    state.expire(state.stamp(B, 1))
    assert state.has_gap
    assert state.identify(4000, 4, "tx", transactions_v2=True) == {}
    assert not state.has_gap
    assert state.stamp(A, 1).producer == ProducerIdentity(4000, 4, "tx", True)


def test_a_refused_batch_of_a_transaction_leaves_nothing_behind_in_the_next_epoch() -> None:
    state = ready(transactional=True)
    assert state.answered(state.stamp(A, 1), 45).step is NextStep.ABORT
    assert state.has_gap
    state.identify(4000, 4)
    assert state.can_send(A) and state.stamp(A, 1).base_sequence == 0


def test_answers_about_batches_that_are_decided_change_nothing() -> None:
    state = ready()
    stamp = state.stamp(A, 1)
    state.expire(stamp)
    state.expire(stamp)
    assert state.answered(stamp, 45).step is NextStep.RETRY
    assert state.answered(Stamp(B, stamp.producer, 0, 1), 0).step is NextStep.DONE
    assert state.withdraw(stamp) == {}


def test_a_batch_that_was_never_written_gives_its_sequences_back() -> None:
    state = ready()
    first, second = state.stamp(A, 3), state.stamp(A, 2)
    assert state.withdraw(first) == {second: Stamp(A, second.producer, 0, 2)}


def test_a_new_identity_starts_all_sequences_at_0() -> None:
    state = ready()
    state.answered(state.stamp(A, 9), 0, 0)
    state.identify(4000, 4)
    assert state.stamp(A, 1) == Stamp(A, ProducerIdentity(4000, 4), 0, 1)
    assert repr(state) == "<IdempotentProducer ProducerIdentity(producer_id=4000, epoch=4), 1 partitions>"


@pytest.mark.parametrize(
    ("code", "count", "step"),
    [
        (0, 1, NextStep.DONE),
        (10, 2, NextStep.SPLIT),
        (10, 1, NextStep.FAIL),
        (47, 1, NextStep.FAIL),
        (6, 1, NextStep.REFRESH),
    ],
)
def test_without_sequences_only_the_plain_rules_hold(code: int, count: int, step: NextStep) -> None:
    assert step_without_sequences(code, count) is step


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (0, NextStep.DONE),
        (46, NextStep.DUPLICATE),
        (45, NextStep.RETRY),
        (47, NextStep.RETRY),
        (90, NextStep.RETRY),
        (10, NextStep.RETRY),
        (48, NextStep.RETRY),
        (9999, NextStep.RETRY),
    ],
)
def test_an_answer_to_an_attempt_with_an_old_stamp_only_counts_if_the_batch_was_written(
    code: int, step: NextStep
) -> None:
    state = ready()
    first, second = state.stamp(A, 1), state.stamp(A, 1)
    restamped = state.answered(first, 45).restamped
    decision = state.answered(second, code)  # it was on its way when the epoch was raised
    assert decision.step is step and not decision.restamped
    assert state.identity == ProducerIdentity(4000, 4)
    assert state.is_first(restamped[first])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_batches_in_flight_across_the_last_sequence_keep_their_order(count: int) -> None:
    state = ready()
    state.answered(state.stamp(A, 2**31 - 2), 0, 0)
    crossing, behind = state.stamp(A, count), state.stamp(A, 4)
    assert (crossing.base_sequence, behind.base_sequence) == (2**31 - 2, (count - 2) % 2**31)
    assert state.answered(crossing, 0, 2**31).step is NextStep.DONE
    assert state.answered(behind, 7).step is NextStep.RETRY
    assert state.answered(behind, 46).step is NextStep.DUPLICATE
    assert state.stamp(A, 1).base_sequence == count + 2


@pytest.mark.parametrize("outcome", ["written", "not written"])
def test_a_batch_given_up_at_the_last_sequence_is_judged_by_the_ones_behind_it(outcome: str) -> None:
    state = ready()
    state.answered(state.stamp(A, 2**31 - 1), 0, 0)
    lost, behind = state.stamp(A, 1), state.stamp(A, 1)
    assert (lost.base_sequence, behind.base_sequence) == (2**31 - 1, 0)
    state.expire(lost)
    if outcome == "written":
        state.answered(behind, 0, 2**31)
        assert state.stamp(A, 1) == Stamp(A, ProducerIdentity(4000, 3), 1, 1)
    else:
        assert state.answered(behind, 45).restamped == {behind: Stamp(A, ProducerIdentity(4000, 4), 0, 1)}


class FakeBroker:
    """Checks sequences as a broker does: the next one, or a duplicate of the last five."""

    def __init__(self) -> None:
        self.epoch = -1
        self.batches: list[tuple[int, int]] = []
        self.records = 0

    def append(self, stamp: Stamp) -> int:
        if stamp.producer.epoch < self.epoch:
            return 47
        if stamp.producer.epoch > self.epoch:
            if stamp.base_sequence != 0:
                return 45
            self.epoch, self.batches = stamp.producer.epoch, []
        if (stamp.base_sequence, stamp.records) in self.batches[-MAX_IN_FLIGHT:]:
            return 46
        expected = next_sequence(*self.batches[-1]) if self.batches else 0
        if stamp.base_sequence != expected:
            return 45
        self.batches.append((stamp.base_sequence, stamp.records))
        self.records += stamp.records
        return 0


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["answer", "lost request", "lost answer"])), max_size=30))
def test_every_batch_is_written_exactly_once_whatever_gets_lost(faults: list[tuple[int, str]]) -> None:
    state, broker = ready(), FakeBroker()
    for count, fault in faults:
        stamp = state.stamp(A, count)
        if fault != "lost request":
            code = broker.append(stamp)
            if fault == "answer":
                assert code == 0
        if fault != "answer":
            assert state.answered(stamp, 7).step is NextStep.RETRY  # no answer: send it again
            code = broker.append(stamp)
        assert state.answered(stamp, code).step in (NextStep.DONE, NextStep.DUPLICATE)
    assert broker.records == sum(count for count, _ in faults)


class Partition:
    """One partition, its broker, and a connection that is cut: requests and responses in order, until they are lost."""

    def __init__(self) -> None:
        self.state, self.broker = ready(), FakeBroker()
        self.written: list[int] = []
        self.stamps: list[Stamp] = []  # batch -> its present stamp
        self.open: list[int] = []  # batches without an outcome, in order
        self.requests: list[tuple[int, Stamp]] = []
        self.responses: list[tuple[int, Stamp, int]] = []
        self.expired: set[int] = set()

    def send_new(self) -> None:
        if self.state.can_send(A):
            self.stamps.append(self.state.stamp(A, 1 + len(self.stamps) % 3))
            self.open.append(len(self.stamps) - 1)
            self.requests.append((self.open[-1], self.stamps[-1]))

    def send_again(self) -> None:
        out = {batch for batch, *_ in [*self.requests, *self.responses]}
        for batch in self.open:
            if batch not in out and self.state.is_first(self.stamps[batch]):
                self.requests.append((batch, self.stamps[batch]))

    def arrive(self) -> None:
        if self.requests:
            batch, stamp = self.requests.pop(0)
            code = self.broker.append(stamp)
            if not code:
                self.written.append(batch)
            self.responses.append((batch, stamp, code))

    def respond(self) -> None:
        if self.responses:
            self.answered(*self.responses.pop(0))

    def cut(self) -> None:
        lost = [*((batch, stamp, 13) for batch, stamp, _ in self.responses), *((b, s, 13) for b, s in self.requests)]
        self.requests, self.responses = [], []
        for batch, stamp, code in lost:
            self.answered(batch, stamp, code)

    def answered(self, batch: int, stamp: Stamp, code: int) -> None:
        if batch in self.expired:
            return
        decision = self.state.answered(stamp, code, offset=100)
        assert decision.step in (NextStep.DONE, NextStep.DUPLICATE, NextStep.RETRY, NextStep.REFRESH), decision
        for old, new in decision.restamped.items():
            self.stamps[self.stamps.index(old)] = new
        if decision.step in (NextStep.DONE, NextStep.DUPLICATE):
            self.open.remove(batch)

    def expire(self) -> None:
        """Give up the oldest batch, unless it is in flight."""
        out = {batch for batch, *_ in [*self.requests, *self.responses]}
        if self.open and self.open[0] not in out:
            batch = self.open.pop(0)
            self.expired.add(batch)
            self.state.expire(self.stamps[batch])


@given(st.lists(st.sampled_from([*("send_new", "send_again", "arrive", "respond") * 3, "cut", "expire"]), max_size=120))
def test_batches_stay_in_order_and_single_while_connections_are_cut_and_batches_expire(events: list[str]) -> None:
    partition = Partition()
    for event in events:
        getattr(partition, event)()
    while partition.open:
        for event in ("send_again", "arrive", "respond"):
            getattr(partition, event)()
    assert partition.written == sorted(set(partition.written))
    assert set(range(len(partition.stamps))) - partition.expired <= set(partition.written)


def test_a_refused_batch_is_divided_in_its_own_numbers() -> None:
    state = ready()
    first, second = state.stamp(A, 4), state.stamp(A, 2)
    parts, restamped = state.divide(first, [3, 1])
    assert [(part.base_sequence, part.records) for part in parts] == [(0, 3), (3, 1)]
    assert restamped == {second: second}
    assert state.is_first(parts[0])
    assert state.divide(first, [4]) == ((), {})


def test_batches_close_up_behind_one_that_loses_records() -> None:
    state = ready()
    first, second = state.stamp(A, 4), state.stamp(A, 2)
    parts, restamped = state.divide(first, [1])
    assert [(part.base_sequence, part.records) for part in parts] == [(0, 1)]
    assert restamped[second].base_sequence == 1
    assert state.stamp(A, 1).base_sequence == 3
