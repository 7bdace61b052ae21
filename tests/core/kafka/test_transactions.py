"""Transactions: the order of requests, and what answers do, without a broker."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.kafka.transaction_answers import offsets, partitions

from odradek.core.kafka.producer_state import ProducerIdentity
from odradek.core.kafka.transaction_requests import GroupMetadata, Offset
from odradek.core.kafka.transactions import Destination, Outgoing, TransactionalProducerState, Transactions
from odradek.errors import BrokerError, Fenced, LocalProtocolError
from odradek.types import TopicPartition
from odradek.wire.kafka.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse, HeartbeatResponse
from odradek.wire.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
)
from odradek.wire.kafka.schema import Response

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = GroupMetadata("g", 5, "m", "i")
S = TransactionalProducerState


class Driver:
    """Runs a transactional producer against answers given by the test."""

    def __init__(self, *, bump: bool = True) -> None:
        self.txn = Transactions("tx", 60_000, has_epoch_bump=bump)
        self.now = 0.0

    def state(self) -> TransactionalProducerState:
        return self.txn.state

    def out(self) -> Outgoing:
        outgoing = self.txn.next_request(self.now)
        assert outgoing is not None
        return outgoing

    def expect(self, kind: type[Any], response: Response) -> Any:
        """The next request must be of this kind; answer it."""
        outgoing = self.out()
        assert isinstance(outgoing.request, kind), outgoing
        self.txn.receive(response, self.now)
        return outgoing.request

    def idle(self) -> bool:
        return self.txn.next_request(self.now) is None

    def initialized(self) -> Driver:
        self.txn.initialize()
        self.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=7))
        self.expect(InitProducerIdRequest, InitProducerIdResponse(producer_id=4000, producer_epoch=0))
        return self

    def opened(self, *, v2: bool = False) -> Driver:
        self.initialized().txn.begin(v2=v2)
        return self

    def added(self) -> Driver:
        self.opened().txn.add_partition(A)
        self.expect(AddPartitionsToTxnRequest, partitions((0, 0)))
        return self


def test_the_first_step_asks_who_coordinates_and_for_an_id() -> None:
    driver = Driver()
    assert driver.idle()
    driver.txn.initialize()
    outgoing = driver.out()
    assert outgoing.destination is Destination.ANY
    assert outgoing.request == FindCoordinatorRequest(key="tx", key_type=1)
    assert driver.idle()  # one request is out
    driver.txn.receive(FindCoordinatorResponse(node_id=7), 0.0)
    outgoing = driver.out()
    assert (outgoing.destination, outgoing.node_id) == (Destination.TRANSACTION_COORDINATOR, 7)
    assert outgoing.request == InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000)
    driver.txn.receive(InitProducerIdResponse(producer_id=4000, producer_epoch=3), 0.0)
    assert driver.state() is S.READY and driver.txn.identity == ProducerIdentity(4000, 3)
    assert "tx READY" in repr(driver.txn)


def test_a_partition_is_added_before_it_is_sent_to() -> None:
    driver = Driver().opened()
    driver.txn.add_partition(A)
    driver.txn.add_partition(B)
    assert not driver.txn.may_send(A)
    request = driver.expect(AddPartitionsToTxnRequest, partitions((0, 0), (1, 0)))
    assert request.v3_and_below_topics[0].partitions == (0, 1)
    assert (request.v3_and_below_producer_id, request.v3_and_below_transactional_id) == (4000, "tx")
    assert driver.txn.may_send(A) and driver.txn.may_send(B)
    driver.txn.add_partition(A)
    assert driver.idle()


def test_a_commit_ends_the_transaction() -> None:
    driver = Driver().added()
    driver.txn.commit()
    request = driver.expect(EndTxnRequest, EndTxnResponse())
    assert request.committed and request.producer_id == 4000
    assert driver.state() is S.READY
    driver.txn.begin(v2=False)
    assert not driver.txn.may_send(A)


def test_a_transaction_with_nothing_in_it_ends_without_a_request() -> None:
    driver = Driver().opened()
    driver.txn.commit()
    assert driver.idle() and driver.state() is S.READY
    driver.txn.begin(v2=False)
    driver.txn.abort()
    assert driver.idle() and driver.state() is S.READY


def test_offsets_are_committed_by_the_group_coordinator_before_the_end() -> None:
    driver = Driver().opened()
    driver.txn.add_offsets({A: Offset(9, 2, "x"), B: Offset(4)}, GROUP)
    driver.txn.commit()
    assert driver.expect(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse()).group_id == "g"
    search = driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=8))
    assert (search.key, search.key_type) == ("g", 0)
    outgoing = driver.out()
    assert (outgoing.destination, outgoing.node_id) == (Destination.GROUP_COORDINATOR, 8)
    request = outgoing.request
    assert isinstance(request, TxnOffsetCommitRequest)
    assert (request.generation_id, request.member_id, request.group_instance_id) == (5, "m", "i")
    first = request.topics[0].partitions[0]
    assert (first.committed_offset, first.committed_leader_epoch, first.committed_metadata) == (9, 2, "x")
    assert not driver.txn.offsets_sent
    driver.txn.receive(offsets((0, 0), (1, 0)), 0.0)
    assert driver.txn.offsets_sent
    assert driver.expect(EndTxnRequest, EndTxnResponse()).committed


def test_offsets_with_a_passing_error_are_sent_again() -> None:
    driver = Driver().opened()
    driver.txn.add_offsets({A: Offset(9), B: Offset(4)}, GROUP)
    with pytest.raises(LocalProtocolError, match="still being sent"):
        driver.txn.add_offsets({A: Offset(10)}, GROUP)
    driver.expect(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse())
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=8))
    driver.expect(TxnOffsetCommitRequest, offsets((0, 0), (1, 14)))
    assert driver.idle() and driver.txn.tick(driver.now) == pytest.approx(0.1)
    driver.now = 0.1
    assert driver.txn.tick(driver.now) is None
    request = driver.expect(TxnOffsetCommitRequest, offsets((1, 0)))
    assert [p.partition_index for p in request.topics[0].partitions] == [1]
    driver.txn.add_offsets({A: Offset(12)}, GROUP)  # the group is known already
    driver.expect(TxnOffsetCommitRequest, offsets((0, 0)))
    driver.txn.add_offsets({A: Offset(12)}, GroupMetadata("another"))
    driver.expect(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse())
    assert driver.out().request == FindCoordinatorRequest(key="another", key_type=0)


def test_the_second_protocol_adds_by_sending_and_gets_its_next_epoch_with_the_end() -> None:
    driver = Driver().opened(v2=True)
    driver.txn.add_partition(A)
    assert driver.txn.may_send(A) and driver.idle()
    driver.txn.add_offsets({A: Offset(1)}, GROUP)
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=8))
    driver.expect(TxnOffsetCommitRequest, offsets((0, 0)))
    driver.txn.commit()
    assert driver.out().transactions_v2
    driver.txn.receive(EndTxnResponse(producer_id=4000, producer_epoch=1), 0.0)
    assert driver.txn.identity == ProducerIdentity(4000, 1) and driver.state() is S.READY


def test_a_transaction_of_the_second_protocol_with_offsets_alone_is_ended() -> None:
    driver = Driver().opened(v2=True)
    driver.txn.add_offsets({A: Offset(9)}, GROUP)
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=8))
    driver.expect(TxnOffsetCommitRequest, offsets((0, 0)))
    driver.txn.commit()
    assert driver.expect(EndTxnRequest, EndTxnResponse(producer_id=4000, producer_epoch=1)).committed


def test_a_coordinator_that_moved_is_searched_and_asked_again() -> None:
    driver = Driver().added()
    driver.txn.commit()
    driver.expect(EndTxnRequest, EndTxnResponse(error_code=16))
    driver.now = 1
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(error_code=15))
    assert driver.idle()
    driver.now = 2
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=9))
    assert driver.out().node_id == 9


def test_a_lost_connection_means_the_coordinator_may_have_moved() -> None:
    driver = Driver().added()
    driver.txn.commit()
    driver.out()
    driver.txn.connection_lost(0.0)
    driver.now = 1
    assert isinstance(driver.out().request, FindCoordinatorRequest)


def test_an_addition_without_an_answer_is_repeated_before_the_transaction_ends() -> None:
    """The coordinator may have the transaction, and would keep it open, or may not, and would refuse its end."""
    driver = Driver().opened()
    driver.txn.add_partition(A)
    lost = driver.out().request
    driver.txn.connection_lost(0.0)
    driver.txn.abort()
    driver.now = 1
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=7))
    assert driver.expect(AddPartitionsToTxnRequest, partitions((0, 0))) == lost
    driver.expect(EndTxnRequest, EndTxnResponse())
    assert driver.state() is TransactionalProducerState.READY


def test_an_addition_with_an_answer_that_leaves_it_open_is_repeated_before_the_transaction_ends() -> None:
    """A coordinator whose log has not enough replicas in sync answers so, and may have the transaction later."""
    driver = Driver().opened()
    driver.txn.add_partition(A)
    driver.expect(AddPartitionsToTxnRequest, partitions((0, 15)))
    driver.txn.abort()
    driver.now = 1
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=7))
    driver.expect(AddPartitionsToTxnRequest, partitions((0, 0)))
    assert not driver.expect(EndTxnRequest, EndTxnResponse()).committed


def aborting_in_doubt() -> Driver:
    """A transaction that is aborted after the answer to its only addition was lost."""
    driver = Driver().opened()
    driver.txn.add_partition(A)
    driver.out()
    driver.txn.connection_lost(0.0)
    driver.txn.abort()
    driver.now = 1
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=7))
    return driver


@pytest.mark.parametrize("code", [3, 29])
@pytest.mark.parametrize("ended", [0, 48], ids=["the coordinator has it", "it has none"])
def test_an_addition_without_an_answer_whose_topic_is_gone_is_decided_by_the_end(code: int, ended: int) -> None:
    """Repeating it would give the same error for ever."""
    driver = aborting_in_doubt()
    driver.expect(AddPartitionsToTxnRequest, partitions((0, code)))
    assert not driver.expect(EndTxnRequest, EndTxnResponse(error_code=ended)).committed
    assert driver.state() is S.READY and driver.idle()
    driver.txn.begin(v2=False)
    driver.txn.add_partition(B)
    driver.expect(AddPartitionsToTxnRequest, partitions((1, 0)))
    driver.txn.abort()
    driver.expect(EndTxnRequest, EndTxnResponse(error_code=48))
    assert driver.state() is S.FATAL, "the coordinator had this one"


def test_the_end_that_decides_about_an_addition_is_repeated_after_passing_errors() -> None:
    driver = aborting_in_doubt()
    driver.expect(AddPartitionsToTxnRequest, partitions((0, 3)))
    driver.expect(EndTxnRequest, EndTxnResponse(error_code=51))
    driver.now = 2
    driver.expect(EndTxnRequest, EndTxnResponse(error_code=48))
    assert driver.state() is S.READY


def test_an_addition_in_doubt_that_is_refused_for_good_is_not_repeated() -> None:
    driver = aborting_in_doubt()
    driver.expect(AddPartitionsToTxnRequest, partitions((0, 49)))
    request = driver.expect(InitProducerIdRequest, InitProducerIdResponse(producer_id=4001, producer_epoch=0))
    assert request.producer_id == 4000 and driver.state() is S.READY


def test_an_addition_stays_in_doubt_when_the_next_one_is_refused() -> None:
    driver = Driver().opened()
    driver.txn.add_partition(A)
    lost = driver.out().request
    driver.txn.connection_lost(0.0)
    driver.now = 1
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=7))
    driver.expect(AddPartitionsToTxnRequest, partitions((0, 29)))
    driver.txn.abort()
    assert driver.expect(AddPartitionsToTxnRequest, partitions((0, 0))) == lost
    assert not driver.expect(EndTxnRequest, EndTxnResponse()).committed


@pytest.mark.parametrize("code", [3, 14, 51])
def test_a_transaction_whose_only_addition_was_refused_ends_without_a_request(code: int) -> None:
    """The partition of a topic that was deleted would be refused for ever."""
    driver = Driver().opened()
    driver.txn.add_partition(A)
    driver.expect(AddPartitionsToTxnRequest, partitions((0, code)))
    driver.txn.abort()
    driver.now = 1
    assert driver.idle() and driver.state() is S.READY


def test_concurrent_transactions_are_tried_again_soon() -> None:
    driver = Driver().opened()
    driver.txn.add_partition(A)
    driver.expect(AddPartitionsToTxnRequest, partitions((0, 51)))
    assert driver.txn.tick(0.0) == pytest.approx(0.02)
    driver.now = 0.02
    driver.expect(AddPartitionsToTxnRequest, partitions((0, 0)))
    assert driver.txn.may_send(A)


@pytest.mark.parametrize("other", [3, 55], ids=["not known", "not added because of the first"])
def test_of_several_errors_the_one_that_asks_for_most_counts(other: int) -> None:
    driver = Driver().opened()
    driver.txn.add_partition(A)
    driver.txn.add_partition(B)
    driver.expect(AddPartitionsToTxnRequest, partitions((0, other), (1, 29)))
    assert driver.state() is S.FAILED
    assert isinstance(driver.txn.error, BrokerError) and driver.txn.error.code == 29


def test_partitions_that_were_not_added_because_of_another_one_wait_with_it() -> None:
    """A coordinator that has not heard of a new topic yet adds none of the partitions of the request."""
    driver = Driver().opened()
    driver.txn.add_partition(A)
    driver.txn.add_partition(B)
    driver.expect(AddPartitionsToTxnRequest, partitions((0, 55), (1, 3)))
    assert driver.state() is S.OPEN
    driver.txn.add_partition(B)
    driver.now = 1
    request = driver.expect(AddPartitionsToTxnRequest, partitions((0, 0), (1, 0)))
    assert request.v3_and_below_topics[0].partitions == (0, 1)
    assert driver.txn.may_send(A) and driver.txn.may_send(B)


def test_a_partition_that_does_not_exist_keeps_no_other_one_waiting() -> None:
    """Its records may have gone to other partitions of their topic, or have failed."""
    driver = Driver().opened()
    driver.txn.add_partition(A)
    driver.txn.add_partition(B)
    driver.expect(AddPartitionsToTxnRequest, partitions((0, 55), (1, 3)))
    driver.now = 1
    request = driver.expect(AddPartitionsToTxnRequest, partitions((0, 0)))
    assert request.v3_and_below_topics[0].partitions == (0,)
    driver.txn.commit()
    assert driver.expect(EndTxnRequest, EndTxnResponse()).committed


@pytest.mark.parametrize("code", [22, 25, 82, 113, 30, 120])
def test_an_error_that_aborting_gets_over(code: int) -> None:
    driver = Driver().opened()
    driver.txn.add_offsets({A: Offset(1)}, GROUP)
    driver.expect(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse())
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=8))
    driver.expect(TxnOffsetCommitRequest, offsets((0, code)))
    assert driver.state() is S.FAILED and driver.idle()
    with pytest.raises(LocalProtocolError, match="FAILED"):
        driver.txn.add_partition(A)
    driver.txn.abort()
    assert not driver.expect(EndTxnRequest, EndTxnResponse()).committed
    assert driver.state() is S.READY and driver.txn.error is None


def test_a_failed_batch_aborts_and_asks_for_a_new_epoch() -> None:
    driver = Driver().added()
    driver.txn.batch_failed(BrokerError(45, "OUT_OF_ORDER_SEQUENCE_NUMBER"), new_epoch=True)
    driver.txn.batch_failed(BrokerError(45, "a second one"))
    assert driver.state() is S.FAILED and "OUT_OF_ORDER" in str(driver.txn.error)
    driver.txn.abort()
    driver.expect(EndTxnRequest, EndTxnResponse())
    request = driver.expect(InitProducerIdRequest, InitProducerIdResponse(producer_id=4000, producer_epoch=1))
    assert (request.producer_id, request.producer_epoch) == (4000, 0)
    assert driver.state() is S.READY and driver.txn.identity == ProducerIdentity(4000, 1)


def test_nothing_is_sent_to_a_partition_of_a_transaction_that_failed() -> None:
    driver = Driver().added()
    assert driver.txn.may_send(A)
    driver.txn.batch_failed(BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"))
    assert not driver.txn.may_send(A)


def test_an_empty_transaction_that_failed_still_asks_for_the_epoch() -> None:
    driver = Driver().opened()
    driver.txn.batch_failed(BrokerError(59, "UNKNOWN_PRODUCER_ID"), new_epoch=True)
    driver.txn.abort()
    assert isinstance(driver.out().request, InitProducerIdRequest)


def test_the_second_protocol_needs_no_other_epoch_after_an_abort() -> None:
    driver = Driver().opened(v2=True)
    driver.txn.add_partition(A)
    driver.txn.batch_failed(BrokerError(45, "OUT_OF_ORDER_SEQUENCE_NUMBER"), new_epoch=True)
    driver.txn.abort()
    driver.expect(EndTxnRequest, EndTxnResponse(producer_id=4000, producer_epoch=1))
    assert driver.state() is S.READY


@pytest.mark.parametrize("code", [49, 59])
def test_a_mapping_that_is_gone_needs_a_coordinator_that_can_raise_epochs(code: int) -> None:
    able, unable = Driver().added(), Driver(bump=False).added()
    for driver in (able, unable):
        driver.txn.commit()
        driver.expect(EndTxnRequest, EndTxnResponse(error_code=code))
    assert able.txn.state is S.FAILED
    assert unable.txn.state is S.FATAL and unable.idle()


def test_an_abort_of_what_the_coordinator_has_forgotten_is_over() -> None:
    driver = Driver().added()
    driver.txn.abort()
    driver.expect(EndTxnRequest, EndTxnResponse(error_code=49))
    assert driver.state() is S.INITIALIZING
    driver.expect(InitProducerIdRequest, InitProducerIdResponse(producer_id=4000, producer_epoch=1))
    assert driver.state() is S.READY


def test_an_abort_that_is_answered_with_the_order_to_abort_stops_the_producer() -> None:
    """The coordinator still has the transaction: its records would be committed with those of the next one."""
    driver = Driver().added()
    driver.txn.abort()
    driver.expect(EndTxnRequest, EndTxnResponse(error_code=120))
    assert driver.state() is S.FATAL and driver.idle()


def test_what_fails_while_an_abort_waits_does_not_end_it() -> None:
    driver = Driver().added()
    driver.txn.add_partition(B)
    driver.out()
    driver.txn.abort()
    driver.txn.batch_failed(BrokerError(45, "late"), new_epoch=True)
    driver.txn.receive(partitions((1, 29)), 0.0)
    assert driver.state() is S.ABORTING
    assert not driver.expect(EndTxnRequest, EndTxnResponse()).committed
    assert driver.state() is S.INITIALIZING


@pytest.mark.parametrize("code", [47, 90])
def test_a_fenced_producer_stops(code: int) -> None:
    driver = Driver().added()
    driver.txn.commit()
    driver.expect(EndTxnRequest, EndTxnResponse(error_code=code))
    assert driver.state() is S.FATAL and isinstance(driver.txn.error, Fenced)
    driver.txn.batch_failed(BrokerError(47, "late"))
    assert isinstance(driver.txn.error, Fenced)


@pytest.mark.parametrize("code", [48, 53, 50, 12345])
def test_what_does_not_pass_stops_the_producer(code: int) -> None:
    driver = Driver()
    driver.txn.initialize()
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=7))
    driver.expect(InitProducerIdRequest, InitProducerIdResponse(error_code=code))
    assert driver.state() is S.FATAL and driver.txn.error is not None


@pytest.mark.parametrize("code", [120, 59])
def test_there_is_nothing_to_abort_while_initializing(code: int) -> None:
    driver = Driver()
    driver.txn.initialize()
    driver.expect(FindCoordinatorRequest, FindCoordinatorResponse(node_id=7))
    driver.expect(InitProducerIdRequest, InitProducerIdResponse(error_code=code))
    assert driver.state() is S.FATAL


def test_answers_that_fit_nothing_are_refused() -> None:
    driver = Driver().initialized()
    with pytest.raises(LocalProtocolError, match="no request is in flight"):
        driver.txn.receive(EndTxnResponse(), 0.0)
    driver.txn.begin(v2=False)
    driver.txn.add_partition(A)
    driver.out()
    with pytest.raises(LocalProtocolError, match="HeartbeatResponse is not a response"):
        driver.txn.receive(HeartbeatResponse(), 0.0)


@pytest.mark.parametrize("act", ["commit", "abort"])
def test_without_a_transaction_there_is_nothing_to_end(act: str) -> None:
    with pytest.raises(LocalProtocolError, match="cannot happen in READY"):
        getattr(Driver().initialized().txn, act)()
