"""A producer that another one has fenced: whatever it still tries raises Fenced."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from tests.client.producing import P0, P1, make_cluster, producing
from tests.core.kafka.transaction_answers import partitions
from tests.io.kafka.answers import metadata_response, topic_response
from tests.io.kafka.peer import Peer

import odradek as od
from odradek.core.backoff import Backoff
from odradek.errors import Closed, Fenced, NotWritten, OdradekError, OutcomeUnknown, Rejected, Undelivered
from odradek.testing import MemoryCluster
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from odradek.wire.kafka.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.kafka.messages.metadata import MetadataRequest
from odradek.wire.kafka.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

pytestmark = pytest.mark.anyio

FENCED = Fenced("transactional id x", "PRODUCER_FENCED")
TEXT = "transactional id x is fenced: PRODUCER_FENCED"


@pytest.fixture
def cluster() -> MemoryCluster:
    return make_cluster()


async def calls(out: od.Producer) -> list[OdradekError]:
    """What each call raises."""
    errors: list[OdradekError] = []
    for call in (
        lambda: out.send("t", b"v"),
        lambda: out.put("t", b"v", partition=0),
        lambda: out.send_many("t", [b"v"]),
        lambda: out.flush(),
    ):
        try:
            await call()
        except OdradekError as error:
            errors.append(error)
    try:
        out.try_put("t", b"v")
    except OdradekError as error:
        errors.append(error)
    return errors


async def test_send_and_all_later_calls_of_a_fenced_producer_raise_fenced(cluster: MemoryCluster) -> None:
    cluster.fail("produce", FENCED)
    with pytest.raises(Fenced, match=TEXT) as at_exit:
        async with producing(cluster) as out:
            with pytest.raises(Fenced, match=TEXT) as caught:
                await out.send("t", b"v", partition=P0)
            assert type(caught.value.__cause__) is NotWritten
            assert isinstance(caught.value.__cause__.__cause__, Fenced)
            errors = await calls(out)
            assert [type(error) for error in errors] == [Fenced] * 5
            assert all(error.__cause__ is at_exit_cause(out) and TEXT in str(error) for error in errors)
            assert len({id(error) for error in (caught.value, at_exit_cause(out), *errors)}) == 7
            assert repr(out).startswith("<Producer closed")
    with pytest.raises(Closed, match="the producer has exited"):
        await out.send("t", b"v")
    assert at_exit.value is at_exit_cause(out)


def at_exit_cause(out: od.Producer) -> Exception | None:
    """The error that ended a producer."""
    return out._dispatcher.failure


async def test_every_send_that_waits_when_the_producer_is_fenced_raises_an_error_of_its_own(
    cluster: MemoryCluster,
) -> None:
    for broker in (1, 2):
        cluster.hold("produce", broker=broker)
    errors: list[OdradekError] = []
    with pytest.raises(Fenced):
        async with producing(cluster, buffer_bytes=3 * 131, latency=0) as out, anyio.create_task_group() as tasks:

            async def send(partition: od.TopicPartition) -> None:
                try:
                    await out.send("t", b"v", partition=partition)
                except OdradekError as error:
                    errors.append(error)

            for partition in (P0, P1, P1, P1):  # in flight, in flight, waiting to be sent, waiting for space
                tasks.start_soon(send, partition)
                await wait_all_tasks_blocked()
            assert out.statistics().waiting == 1
            cluster.fail("produce", FENCED, broker=1)
            cluster.release("produce", broker=1)
    assert [type(error) for error in errors] == [Fenced] * 4
    assert len(set(map(id, errors))) == 4
    causes = sorted(type(error.__cause__).__name__ for error in errors)
    assert causes == ["NotWritten"] * 3 + ["OutcomeUnknown"]


async def test_records_of_put_and_send_many_name_the_fence_as_their_cause(cluster: MemoryCluster) -> None:
    cluster.fail("produce", FENCED)
    with pytest.raises(Undelivered) as caught:
        async with producing(cluster) as out:
            await out.put("t", b"1", partition=0)
            acks = await out.send_many("t", [b"2", b"3"], partition=1)
    failed = [*caught.value.records, *acks.failed]
    assert sorted(each.record.value or b"" for each in failed) == [b"1", b"2", b"3"]
    assert all(isinstance(each.error, NotWritten | OutcomeUnknown) for each in failed)
    assert all(isinstance(each.error.__cause__, Fenced) for each in failed)
    assert isinstance(caught.value.__cause__, Fenced)


# ---- in a transaction ---------------------------------------------------------------------------------------------


class Fencing:
    """The answers of a broker that fences a producer in one of them.

    Attributes:
        produce: The error code of every answer to Produce.
        add: The error code of every answer to AddPartitionsToTxn.
    """

    def __init__(self) -> None:
        self.produce = self.add = 0

    def answers(self) -> dict[type, Callable[[Any, int], Any]]:
        metadata = metadata_response(topic_response("t", 1, epoch=3, topic_id=bytes(range(16))))
        return {
            MetadataRequest: lambda request, version: metadata,
            FindCoordinatorRequest: lambda request, version: FindCoordinatorResponse(node_id=1, host="b", port=9092),
            InitProducerIdRequest: lambda request, version: InitProducerIdResponse(producer_id=7, producer_epoch=0),
            AddPartitionsToTxnRequest: self._add,
            ProduceRequest: self._produce,
        }

    def _add(self, request: Any, version: int) -> AddPartitionsToTxnResponse:
        return partitions((0, self.add))

    def _produce(self, request: ProduceRequest, version: int) -> ProduceResponse:
        (topic,) = request.topic_data
        answer = PartitionProduceResponse(index=0, error_code=self.produce, base_offset=0)
        return ProduceResponse(
            responses=(TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=(answer,)),)
        )


@pytest.fixture
def fencing() -> Fencing:
    return Fencing()


@pytest.fixture
async def kafka(fencing: Fencing, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[od.Cluster]:
    peer = Peer(fencing.answers())

    async def dial(host: str, port: int, timeout: float, *more: Any) -> Any:
        return await peer.dial(host, port, timeout)

    monkeypatch.setattr("odradek.io.kafka.connections.connect", dial)
    async with anyio.create_task_group() as peer.group:
        async with od.connect("kafka://b:9092", tuning=od.Tuning(backoff=Backoff(0.001, 1, 0.001))) as k:
            yield k
        peer.group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("api", "code", "kind"),
    [
        ("produce", ErrorCode.INVALID_PRODUCER_EPOCH, Rejected),
        ("produce", ErrorCode.PRODUCER_FENCED, Rejected),
        ("add", ErrorCode.INVALID_PRODUCER_EPOCH, NotWritten),
        ("add", ErrorCode.PRODUCER_FENCED, NotWritten),
    ],
)
async def test_send_in_a_transaction_of_a_fenced_producer_raises_fenced(
    kafka: od.Cluster, fencing: Fencing, api: str, code: ErrorCode, kind: type[OdradekError]
) -> None:
    setattr(fencing, api, code)
    with pytest.raises(Fenced, match="transactional id x is fenced"):
        async with kafka.producer(transactional_id="x") as out:
            with pytest.raises(Fenced):
                async with out.transaction() as lost:
                    with pytest.raises(Fenced, match="transactional id x is fenced") as caught:
                        await out.send("t", b"v")
                    assert code.name in str(caught.value)
                    assert type(caught.value.__cause__) is kind
                    assert [type(error) for error in await calls(out)] == [Fenced] * 5
            assert lost.outcome == "aborted"
            with pytest.raises(Fenced, match="transactional id x is fenced"):
                await out.transaction().__aenter__()
