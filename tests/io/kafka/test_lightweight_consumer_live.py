"""The procedures of the lightweight consumer, step by step, as a consumer goes through them on two real brokers."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest

import odradek as od
from odradek.client.consumer.consumer import Consumer
from odradek.client.consumer.owned_partitions import OwnedPartitions
from odradek.client.options import Tuning
from odradek.core.interfaces import Assignment
from odradek.core.kafka.group_effects import Assign, Lost, Revoke
from odradek.core.kafka.lightweight_consumer import (
    Action,
    LightweightConsumerEvent,
    LightweightConsumerState,
    LightweightTrace,
)
from odradek.errors import OdradekError
from odradek.io.kafka.connection import KafkaConnection
from odradek.io.kafka.driver import KafkaDriver, KafkaOptions
from odradek.testing import FaultProxy, KafkaCluster
from odradek.testing.kafka.releases import NEWEST
from odradek.testing.kafka.requests import ask
from odradek.types import Broker, TopicPartition
from odradek.wire.kafka.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse, LeaveGroupRequest

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

PARTITIONS, RECORDS = 4, 5
NUMBERS = count()
TRACED = KafkaOptions(client_id="traced", heartbeat_s=0.2)
E, S = LightweightConsumerEvent, LightweightConsumerState
JOINED = [E.ON_START, E.CLUSTER_INFO, E.REGISTRY_ACCEPTED, E.START_FETCHERS]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster(NEWEST, size=2) as cluster:
        yield cluster


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> LightweightTrace:
    """Follows every request of the client `TRACED`, in the order of the responses."""
    trace = LightweightTrace(["unknown:1"])
    submit: Any = KafkaConnection._submit

    def traced(connection: KafkaConnection, request: Any, timeout_s: float | None) -> Any:
        def answered() -> None:
            try:
                response = pending.result()
            except OdradekError:
                response = None
            trace.answered(request.api(), response)

        pending = submit(connection, request, timeout_s)
        if connection.client_id == TRACED.client_id:
            pending.add_done_callback(answered)
        return pending

    monkeypatch.setattr(KafkaConnection, "_submit", traced)
    return trace


class TracedPartitions(OwnedPartitions):
    """What a consumer owns, which tells the trace what its membership has it do."""

    trace: LightweightTrace
    stopped: list[list[TopicPartition]]

    async def assign(self, assignment: Assignment) -> None:
        positions = {p: position or 0 for p, position in assignment.committed.items()}
        self.trace.carried_out(Assign(frozenset(assignment.partitions)), positions)
        await super().assign(assignment)

    async def revoke(self, partitions: Collection[TopicPartition]) -> None:
        await super().revoke(partitions)
        self.stopped.append(sorted(self.fetcher.cursors))
        self.trace.carried_out(Revoke(frozenset(partitions)))

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        super().lost(partitions)
        self.stopped.append(sorted(self.fetcher.cursors))
        self.trace.carried_out(Lost(frozenset(partitions)))


class TracedConsumer(Consumer):
    """A consumer with such partitions.

    Attributes:
        stopped: For each time that fetchers stopped: the partitions still fetched then.
    """

    stopped: list[list[TopicPartition]]


def consumer_of(driver: KafkaDriver, topic: str, trace: LightweightTrace) -> TracedConsumer:
    consumer = TracedConsumer(
        driver, topic, group=topic, group_protocol="classic", assignors=["range"], commit_every=None
    )
    consumer._owned.__class__ = TracedPartitions
    owned = cast(TracedPartitions, consumer._owned)
    owned.trace, owned.stopped = trace, []
    consumer.stopped = owned.stopped
    return consumer


@asynccontextmanager
async def traced(
    cluster: KafkaCluster, trace: LightweightTrace, driver_type: type[KafkaDriver] = KafkaDriver
) -> AsyncIterator[tuple[TracedConsumer, KafkaDriver, str]]:
    """A consumer with its first partitions, and a topic with some records in each."""
    topic = f"orders-{next(NUMBERS)}"
    await anyio.to_thread.run_sync(lambda: cluster.create_topic(topic, PARTITIONS, replicas=1))
    bootstrap = [Broker(-1, broker.host, broker.port) for broker in cluster.brokers]
    trace.start()
    driver = driver_type(bootstrap, TRACED)
    k = od.Cluster(driver, Tuning())
    async with k, consumer_of(driver, topic, trace) as consumer:
        async with k.producer() as out:
            for n in range(PARTITIONS):
                await out.send_many(topic, [b"v"] * RECORDS, partition=n)
        yield consumer, driver, topic


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - of members whose events are not for tests
            await anyio.sleep(0.02)


def actions_of(trace: LightweightTrace, event: LightweightConsumerEvent) -> Sequence[Action]:
    return next(actions for each, actions in trace.steps if each is event)


def first_tries(events: Sequence[LightweightConsumerEvent]) -> list[LightweightConsumerEvent]:
    """Leave out what is tried again: a broker may be slow to answer, and a coordinator may still load its groups."""
    left: list[LightweightConsumerEvent] = []
    for event in events:
        if event is E.REGISTRY_REJECTED:
            left.pop()
        elif event is not E.CHANNEL_FAILED:
            left.append(event)
    return left


async def take(consumer: Consumer, records: int) -> None:
    """Consume so many records."""
    with anyio.fail_after(60):
        async for batch in consumer.batches():
            batch.done()
            if (records := records - len(batch)) <= 0:
                return


# ---- on start ------------------------------------------------------------------------------------------------------


async def test_unknown_brokers_are_consulted_in_rounds_until_one_answers(
    cluster: KafkaCluster, trace: LightweightTrace
) -> None:
    alive = cluster.brokers[0]
    with FaultProxy(alive.host, alive.plaintext_port) as proxy, socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # and not listening: it refuses for as long as it is open
        dead = unheard.getsockname()[1]
        proxy.refuse()
        driver = KafkaDriver([Broker(-1, "127.0.0.1", dead), Broker(-1, proxy.host, proxy.port)], TRACED)
        trace.start()

        async with anyio.create_task_group() as tasks:

            async def accept() -> None:
                await until(lambda: trace.events.count(E.CHANNEL_FAILED) >= 5)
                await anyio.to_thread.run_sync(proxy.accept)

            tasks.start_soon(accept)
            async with driver:
                assert trace.state is S.CONSULTING
                assert trace.events[0] is E.ON_START and set(trace.events[1:]) == {E.CHANNEL_FAILED}
                assert set(driver.metadata.table.brokers) == {broker.broker_id for broker in cluster.brokers}
    assert all(actions == (Action.CONSULT_BROKER,) for _, actions in trace.steps)


async def test_the_coordinator_is_found_the_registry_accepted_and_the_fetchers_started(
    cluster: KafkaCluster, trace: LightweightTrace
) -> None:
    async with traced(cluster, trace) as (consumer, _, _):
        assert first_tries(trace.events) == JOINED
        assert trace.state is S.FETCHING and trace.consumer.coordinator is not None
        assert trace.consumer.partitions.keys() == consumer.assignment.keys() == set(consumer.partitions)
        await take(consumer, PARTITIONS * RECORDS)


class MisledDriver(KafkaDriver):
    """A driver that is told once that another broker is the coordinator."""

    misled = False

    async def ask(self, api: Any, build: Any) -> Any:
        response = await super().ask(api, build)
        if api is FindCoordinatorRequest and not self.misled and not response.error_code:
            self.misled = True
            other = next(b for b in self.metadata.table.brokers.values() if b.id != response.node_id)
            return FindCoordinatorResponse(node_id=other.id, host=other.host, port=other.port)
        return response


async def test_a_rejected_registry_takes_the_lost_connection_procedure_and_begins_again(
    cluster: KafkaCluster, trace: LightweightTrace
) -> None:
    async with traced(cluster, trace, MisledDriver) as (consumer, _, _):
        rejected = trace.events.index(E.REGISTRY_REJECTED)
        assert trace.events[rejected - 1] is E.CLUSTER_INFO
        assert first_tries(trace.events) == JOINED
        assert actions_of(trace, E.REGISTRY_REJECTED)[-1] is Action.CONSULT_BROKER
        await take(consumer, PARTITIONS * RECORDS)


# ---- the coordinator's requests --------------------------------------------------------------------------------------


async def test_positions_are_sent_while_the_fetchers_run(cluster: KafkaCluster, trace: LightweightTrace) -> None:
    async with traced(cluster, trace) as (consumer, driver, topic):
        await take(consumer, PARTITIONS * RECORDS)
        await consumer.commit()
        assert trace.events[-1] is E.OFFSETS_WANTED and trace.state is S.FETCHING
        committed = await driver.offsets(topic).fetch(sorted(consumer.assignment))
        assert set(committed.values()) == {RECORDS} and len(consumer.partitions) == PARTITIONS


async def test_fetchers_stop_and_start_when_the_group_changes_and_positions_are_sent_in_between(
    cluster: KafkaCluster, trace: LightweightTrace
) -> None:
    async with traced(cluster, trace) as (consumer, _, topic):
        await take(consumer, PARTITIONS * RECORDS)
        before = len(trace.events)
        other = od.Cluster(KafkaDriver([Broker(-1, b.host, b.port) for b in cluster.brokers]), Tuning())
        async with other, other.consumer(topic, group=topic, group_protocol="classic", assignors=["range"]):
            await until(lambda: len(consumer.partitions) == PARTITIONS // 2)
            stop = trace.events.index(E.STOP_FETCHERS)
            assert E.OFFSETS_WANTED in trace.events[before:stop], "the positions are sent before the generation ends"
            assert consumer.stopped == [[]], "every fetcher stops under the eager protocol"
            assert trace.events[-1] is E.START_FETCHERS and trace.state is S.FETCHING
            assert trace.consumer.partitions.keys() == set(consumer.partitions)
            assert set(trace.consumer.consumed_offsets().values()) == {RECORDS}


async def test_a_member_that_the_coordinator_has_removed_stops_its_fetchers_and_registers_again(
    cluster: KafkaCluster, trace: LightweightTrace
) -> None:
    async with traced(cluster, trace) as (consumer, _, topic):
        coordinator = trace.consumer.coordinator
        assert coordinator is not None
        leave = LeaveGroupRequest(group_id=topic, member_id=consumer.consumer_id)
        await anyio.to_thread.run_sync(ask, coordinator.host, coordinator.port, leave, 0)
        await until(lambda: trace.events.count(E.START_FETCHERS) == 2 and len(consumer.partitions) == PARTITIONS)
        lost = trace.events.index(E.LOST_CONNECTION)
        assert first_tries(trace.events[lost:]) == [E.LOST_CONNECTION, *JOINED[1:]]
        assert actions_of(trace, E.LOST_CONNECTION)[:2] == (Action.STOP_FETCHERS, Action.CLEAN_QUEUES)
        assert consumer.stopped == [[]]
        await take(consumer, PARTITIONS * RECORDS)


@pytest.mark.sampled(2)
async def test_a_lost_connection_to_the_coordinator_is_restored_within_the_session_without_stopping_fetchers(
    cluster: KafkaCluster, trace: LightweightTrace
) -> None:
    async with traced(cluster, trace) as (consumer, driver, _):
        before, events = consumer.assignment, len(trace.events)
        (connection,) = (
            each for (_, purpose), each in driver.connections._connections.items() if purpose.startswith("group ")
        )
        losses = connection.connection.statistics().losses
        pipeline = connection.connection._pipeline
        assert pipeline is not None
        pipeline._transport.abort()
        await until(lambda: connection.connection.statistics().losses > losses)
        await take(consumer, PARTITIONS * RECORDS)
        await consumer.commit()
        assert consumer.assignment is before and consumer.stopped == []
        assert set(trace.events[events:]) <= {E.OFFSETS_WANTED}


async def test_shutting_down_sends_the_positions_and_leaves(cluster: KafkaCluster, trace: LightweightTrace) -> None:
    async with traced(cluster, trace) as (consumer, driver, topic):
        partitions = sorted(consumer.assignment)
        await take(consumer, PARTITIONS * RECORDS)
        await consumer.__aexit__(None, None, None)
        assert trace.events[-2:] == [E.OFFSETS_WANTED, E.SHUT_DOWN] and trace.state is S.STOPPED
        assert set((await driver.offsets(topic).fetch(partitions)).values()) == {RECORDS}
