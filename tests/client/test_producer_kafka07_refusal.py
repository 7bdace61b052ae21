"""The producer on brokers that refuse a batch by closing the connection, as those of Kafka 0.7 do: it finds that batch,
and writes the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from tests.client.kafka07_double import Kafka07Double

from odradek.client.producer.results import Ack
from odradek.errors import ConnectionLost, OdradekError, OutcomeUnknown
from odradek.types import TopicPartition

if TYPE_CHECKING:
    from odradek.client.producer.producer import Producer
    from odradek.core.interfaces import PartitionBatch

pytestmark = pytest.mark.anyio

PARTITIONS = [TopicPartition("t", n, 1) for n in range(3)]


@pytest.fixture
def double() -> Kafka07Double:
    double = Kafka07Double()
    double.refuses = bad
    return double


def bad(batch: PartitionBatch) -> bool:
    return b"bad" in batch.records


async def outcome(out: Producer, value: bytes, partition: TopicPartition) -> Any:
    """What `send` returned or raised."""
    try:
        return await out.send("t", value, partition=partition)
    except OdradekError as error:
        return error


async def test_case_46_a_produce_the_broker_closes_on_is_reported(double: Kafka07Double) -> None:
    async with double.producing() as out:
        result = await outcome(out, b"bad", PARTITIONS[0])
        assert type(result) is OutcomeUnknown
        assert "the broker answered and then closed the connection on this batch, 2 times" in str(result)
        assert "does it have t/1-0" in result.hint
        assert isinstance(result.__cause__, ConnectionLost)
        assert len(double.cluster.requests("produce", broker=1)) == 3


async def test_a_line_that_closes_every_connection_is_not_taken_for_a_bad_produce(double: Kafka07Double) -> None:
    double.cluster.fail("produce", ConnectionLost("proxy:9092", "closed", True), times=None, broker=1)
    results = []

    async def send() -> None:
        results.append(await outcome(out, b"v", PARTITIONS[0]))

    async with double.producing() as out, anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        await double.cluster.wait_for_requests("produce", 8, broker=1)
        assert not results
        double.cluster.stop_failing("produce")
    assert type(results[0]) is Ack
    assert double.log[PARTITIONS[0]] == [b"v"]


async def test_case_46_the_innocent_neighbours_of_a_bad_produce_are_written(double: Kafka07Double) -> None:
    double.cluster.hold("produce", broker=1)
    outcomes: dict[bytes, str] = {}

    async def send(value: bytes, index: int) -> None:
        outcomes[value] = type(await outcome(out, value, PARTITIONS[index])).__name__

    async with double.producing(latency=0) as out, anyio.create_task_group() as tasks:
        for value, index in ((b"good", 0), (b"bad", 1), (b"fine", 2), (b"late", 0)):
            tasks.start_soon(send, value, index)
            await wait_all_tasks_blocked()
        assert len(double.cluster.requests("produce", broker=1)) == 4
        double.cluster.release("produce", broker=1)
    assert outcomes == {b"good": "Ack", b"bad": "OutcomeUnknown", b"fine": "Ack", b"late": "Ack"}
    assert double.log[PARTITIONS[0]] == [b"good", b"late"]
    assert double.log[PARTITIONS[2]] == [b"fine"]


async def test_case_46_a_bad_part_of_a_multiproduce_is_found(double: Kafka07Double) -> None:
    async with double.producing() as out:
        await out.send("t", b"the topic is known now", partition=TopicPartition("t", 0, 2))
        for value, partition in zip((b"good", b"bad", b"fine"), PARTITIONS, strict=True):
            assert out.try_put("t", value, partition=partition)
        await out.flush()
        (failed,) = out.failures.take()
    assert (failed.record.value, failed.partition, type(failed.error)) == (b"bad", PARTITIONS[1], OutcomeUnknown)
    requests = double.cluster.requests("produce", broker=1)
    assert [len(request.batches) for request in requests] == [3, 3, 2, 1, 1, 1, 1]
    # The broker stores the parts before the bad one each time before it closes: at least once.
    assert [len(double.log.get(partition, [])) for partition in PARTITIONS] == [4, 0, 1]
