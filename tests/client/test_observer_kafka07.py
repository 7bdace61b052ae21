"""What an observer is told of brokers that behave as 0.7.2 does, over a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.client.observed import Recorder
from tests.loops import ASYNCIO, on

import odradek as od
from odradek.observe import (
    BatchDelivered,
    BatchFinished,
    BatchSent,
    CommitFinished,
    ConnectionEnded,
    ConnectionOpened,
    PartFetched,
    Rebalanced,
    RequestFinished,
)
from odradek.testing import Kafka07Broker

pytestmark = pytest.mark.anyio
anyio_backend = on(ASYNCIO)

StartBroker = Callable[..., Kafka07Broker]


async def test_records_on_their_way_there_and_back(odradek_kafka07_broker: StartBroker, odradek_chroot: str) -> None:
    recorder, partition = Recorder(), od.TopicPartition("t", 0, 7)
    odradek_kafka07_broker(broker_id=7)
    options: dict[str, Any] = {"group": "g", "start": od.EARLIEST, "commit_every": None}
    async with od.connect(f"kafka07+zk://{odradek_chroot}", observer=recorder) as k:
        async with k.producer() as out:
            await out.send("t", b"first", partition=partition)
            recorder.events.clear()
            await out.send("t", b"value", partition=partition)
            after_one_send = list(recorder.events)
        async with k.consumer("t", **options) as consumer:
            delivered = 0
            async for batch in consumer.batches():
                delivered += len(batch)
                batch.done()
                if delivered == 2:
                    break
            await consumer.commit()
    kinds = [type(event).__name__ for event in after_one_send]
    assert kinds == ["BatchSent", "BufferLevel", "RequestFinished", "BatchFinished", "BufferLevel"]
    sent, _, request, finished, _ = after_one_send
    assert (sent.broker.id, sent.partition, sent.records, sent.attempt) == (7, partition, 1, 1)
    assert (request.api, request.version, request.received_bytes, request.error) == ("Produce", -1, 6, None)
    assert request.sent_bytes > sent.bytes > 5 and finished.error is None
    assert {request.api for request in recorder.of(RequestFinished)} == {"Produce", "Fetch", "Offsets"}
    assert sum(part.bytes for part in recorder.of(PartFetched)) == 2 * (10 + 5)
    assert {part.end for part in recorder.of(PartFetched)} == {None}
    assert {batch.lag for batch in recorder.of(BatchDelivered)} == {None}
    assert [each.positions for each in recorder.of(CommitFinished)] == [{partition: 30}]
    assert [(each.kind, each.partitions) for each in recorder.of(Rebalanced)] == [
        ("assigned", (partition,)),
        ("left", (partition,)),
    ]
    opened, ended = recorder.of(ConnectionOpened), recorder.of(ConnectionEnded)
    assert {each.broker.id for each in opened} == {7} and not any(each.lost for each in ended)


async def test_a_broker_that_is_killed_ends_its_connections(
    odradek_kafka07_broker: StartBroker, odradek_chroot: str
) -> None:
    recorder = Recorder()
    broker = odradek_kafka07_broker(broker_id=7)
    async with od.connect(f"kafka07+zk://{odradek_chroot}", observer=recorder) as k, k.producer() as out:
        await out.send("t", b"first")
        broker.kill(drop_session=True)
        broker.start()
        await out.send("t", b"second")
    assert next(ended.lost for ended in recorder.of(ConnectionEnded) if ended.purpose == "produce")
    assert [finished.error for finished in recorder.of(BatchFinished)] == [None, None]
    assert recorder.of(BatchSent)[-1].attempt == recorder.of(BatchFinished)[-1].attempts
