"""The lightweight consumer: the document's procedures, step by step, and what stands for them today."""

from __future__ import annotations

import pytest

from odradek.core.kafka.group_effects import Assign, Compute, Effect, Fail, GroupCoordinator, Lost, Revoke
from odradek.core.kafka.lightweight_consumer import (
    RELEASED,
    Action,
    ConsumedPartition,
    LightweightConsumer,
    LightweightConsumerEvent,
    LightweightConsumerState,
    LightweightTrace,
    event_of,
)
from odradek.errors import ConfigError, LocalProtocolError
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from odradek.wire.kafka.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
COORDINATOR = GroupCoordinator(1, "b1", 9092)


def registered() -> LightweightConsumer:
    consumer = LightweightConsumer(["b1:9092", "b2:9092"], fetch_size=100)
    assert consumer.on_start() == (Action.CONSULT_BROKER,)
    assert consumer.cluster_info(["b1:9092", "b3:9092"], COORDINATOR) == (Action.REGISTER,)
    assert consumer.registry_accepted() == (Action.START_CONNECTOR,)
    return consumer


def fetching() -> LightweightConsumer:
    consumer = registered()
    assert consumer.start_fetchers({A: 5, B: 0}) == (Action.REFRESH_PARTITIONS, Action.START_FETCHERS, Action.RESPOND)
    return consumer


def test_unknown_brokers_are_consulted_round_robin_until_one_answers() -> None:
    consumer = LightweightConsumer(["b1:9092", "b2:9092"])
    consumer.on_start()
    consulted = []
    for _ in range(5):
        consulted.append(consumer.next_broker())
        assert consumer.channel_failed() == (Action.CONSULT_BROKER,)
    assert consulted == ["b1:9092", "b2:9092", "b1:9092", "b2:9092", "b1:9092"]
    assert consumer.state is LightweightConsumerState.CONSULTING


def test_an_accepted_registry_starts_the_connector() -> None:
    consumer = registered()
    assert consumer.state is LightweightConsumerState.CONNECTED and consumer.coordinator == COORDINATOR


def test_a_rejected_registry_takes_the_lost_connection_procedure() -> None:
    consumer = LightweightConsumer(["b1:9092"])
    consumer.on_start()
    consumer.cluster_info([], COORDINATOR)
    assert consumer.registry_rejected() == (
        Action.STOP_FETCHERS,
        Action.CLEAN_QUEUES,
        Action.STOP_CONNECTOR,
        Action.CONSULT_BROKER,
    )
    assert consumer.state is LightweightConsumerState.CONSULTING and consumer.coordinator is None
    assert consumer.next_broker() == "b1:9092"


def test_lost_connection_closes_all_fetchers_and_begins_again() -> None:
    consumer = fetching()
    assert consumer.lost_connection()[-1] is Action.CONSULT_BROKER
    assert consumer.partitions == {} and consumer.state is LightweightConsumerState.CONSULTING


def test_offsets_wanted_are_the_consumed_ones() -> None:
    consumer = fetching()
    consumer.fetched(A, 9)
    consumer.consumed(A, 7)
    assert consumer.offsets_wanted() == (Action.SEND_OFFSETS,)
    assert consumer.consumed_offsets() == {A: 7, B: 0}
    assert consumer.state is LightweightConsumerState.FETCHING


def test_stop_fetchers_sends_the_consumed_offsets_and_forgets_what_was_only_fetched() -> None:
    consumer = fetching()
    consumer.fetched(A, 9)
    assert consumer.stop_fetchers() == (Action.STOP_FETCHERS, Action.CLEAN_QUEUES, Action.SEND_OFFSETS)
    assert consumer.partitions[A] == ConsumedPartition(5, 5, 100)
    assert consumer.state is LightweightConsumerState.CONNECTED


def test_start_fetchers_replaces_the_consumed_partition_info() -> None:
    consumer = fetching()
    consumer.stop_fetchers()
    consumer.start_fetchers({B: 3})
    assert consumer.partitions == {B: ConsumedPartition(3, 3, 100)}
    assert consumer.state is LightweightConsumerState.FETCHING


def test_nothing_is_consumed_before_it_is_fetched() -> None:
    with pytest.raises(LocalProtocolError, match="fetched up to 5 only"):
        fetching().consumed(A, 6)


def test_shutting_down_ends_it() -> None:
    consumer = fetching()
    assert consumer.shut_down() == (Action.STOP_FETCHERS, Action.CLEAN_QUEUES, Action.STOP_CONNECTOR)
    with pytest.raises(LocalProtocolError, match="START_FETCHERS cannot happen in STOPPED"):
        consumer.start_fetchers({})


def test_it_needs_a_broker_to_begin_with() -> None:
    with pytest.raises(LocalProtocolError, match="at least one broker"):
        LightweightConsumer([]).on_start()


@pytest.mark.parametrize(
    ("effect", "event"),
    [
        (Revoke(frozenset({A})), LightweightConsumerEvent.STOP_FETCHERS),
        (Assign(frozenset({A})), LightweightConsumerEvent.START_FETCHERS),
        (Lost(frozenset({A})), LightweightConsumerEvent.LOST_CONNECTION),
        (Fail(ConfigError("x")), LightweightConsumerEvent.SHUT_DOWN),
        (Compute(frozenset()), None),
    ],
)
def test_what_a_member_asks_for_is_an_event_of_the_document(
    effect: Effect, event: LightweightConsumerEvent | None
) -> None:
    assert event_of(effect) is event


def test_every_event_of_the_document_has_its_place_in_the_released_protocols() -> None:
    assert RELEASED.keys() == set(LightweightConsumerEvent)
    assert all(released.classic and released.consumer_group for released in RELEASED.values())


# ---- the trace of a member ----------------------------------------------------------------------------------------

E, S = LightweightConsumerEvent, LightweightConsumerState
NAMED = FindCoordinatorResponse(node_id=1, host="b1", port=9092)


def joined() -> LightweightTrace:
    trace = LightweightTrace(["b1:9092", "b2:9092"])
    trace.start()
    trace.answered(MetadataRequest(), None)
    trace.answered(MetadataRequest(), MetadataResponse(brokers=(MetadataResponseBroker(host="b3", port=9092),)))
    trace.answered(FindCoordinatorRequest(), NAMED)
    trace.answered(JoinGroupRequest(), JoinGroupResponse(generation_id=1))
    trace.carried_out(Assign(frozenset({A})), {A: 5})
    return trace


def test_a_member_that_joins_goes_through_on_start() -> None:
    trace = joined()
    assert trace.events == [E.ON_START, E.CHANNEL_FAILED, E.CLUSTER_INFO, E.REGISTRY_ACCEPTED, E.START_FETCHERS]
    assert trace.state is S.FETCHING and trace.consumer.coordinator == COORDINATOR
    assert trace.consumer.consumed_offsets() == {A: 5} and trace.consumer.next_broker() == "b3:9092"


@pytest.mark.parametrize("code", [14, 15, 16, None])
def test_a_rejected_join_consults_the_brokers_again(code: int | None) -> None:
    trace = LightweightTrace(["b1:9092"])
    trace.start()
    trace.answered(FindCoordinatorRequest(), FindCoordinatorResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
    trace.answered(FindCoordinatorRequest(), NAMED)
    trace.answered(JoinGroupRequest(), None if code is None else JoinGroupResponse(error_code=code))
    assert trace.events == [E.ON_START, E.CLUSTER_INFO, E.REGISTRY_REJECTED]
    assert trace.state is S.CONSULTING


def test_a_member_registers_again_with_a_coordinator_that_was_loading_its_groups() -> None:
    trace = LightweightTrace(["b1:9092"])
    trace.start()
    trace.answered(FindCoordinatorRequest(), NAMED)
    trace.answered(JoinGroupRequest(), JoinGroupResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    trace.answered(JoinGroupRequest(), JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED))
    trace.answered(JoinGroupRequest(), JoinGroupResponse(generation_id=1))
    trace.answered(FindCoordinatorRequest(), NAMED)  # of another task, which reads the positions
    trace.carried_out(Assign(frozenset({A})), {A: 5})
    begin = [E.ON_START, E.CLUSTER_INFO, E.REGISTRY_REJECTED]
    assert trace.events == [*begin, E.CLUSTER_INFO, E.REGISTRY_ACCEPTED, E.START_FETCHERS]


def test_a_join_that_is_only_to_be_repeated_rejects_nothing() -> None:
    trace = LightweightTrace(["b1:9092"])
    trace.start()
    trace.answered(FindCoordinatorRequest(), NAMED)
    trace.answered(JoinGroupRequest(), JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED))
    assert trace.state is S.REGISTERING


def test_a_rebalance_stops_and_starts_the_fetchers_and_its_join_is_no_registry() -> None:
    trace = joined()
    trace.answered(HeartbeatRequest(), HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    trace.answered(OffsetCommitRequest(), OffsetCommitResponse())
    trace.carried_out(Revoke(frozenset({A})))
    trace.answered(JoinGroupRequest(), JoinGroupResponse(generation_id=2))
    trace.carried_out(Assign(frozenset({B})), {B: 3})
    assert trace.events[5:] == [E.OFFSETS_WANTED, E.STOP_FETCHERS, E.START_FETCHERS]
    assert trace.consumer.consumed_offsets() == {B: 3}


def test_a_removed_member_that_knows_its_coordinator_registers_at_once() -> None:
    trace = joined()
    trace.carried_out(Lost(frozenset({A})))
    trace.answered(JoinGroupRequest(), JoinGroupResponse(generation_id=3))
    assert trace.events[5:] == [E.LOST_CONNECTION, E.CLUSTER_INFO, E.REGISTRY_ACCEPTED]


def test_a_member_that_leaves_or_fails_shuts_down() -> None:
    left, failed = joined(), joined()
    left.answered(LeaveGroupRequest(), LeaveGroupResponse())
    failed.carried_out(Fail(ConfigError("x")))
    assert left.state is failed.state is S.STOPPED
