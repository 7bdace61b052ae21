"""What an observer is told of a real broker: requests with versions and bytes, throttling, a blocked loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.client.observed import Recorder
from tests.loops import ASYNCIO, on

import odradek as od
from odradek.io.observation import observer_calls
from odradek.observe import (
    BatchDelivered,
    BatchFinished,
    BatchSent,
    CommitFinished,
    ConnectionEnded,
    ConnectionFailed,
    ConnectionOpened,
    HeartbeatLate,
    PartFetched,
    Rebalanced,
    RequestFinished,
)
from odradek.testing import FaultProxy, KafkaBroker

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]
anyio_backend = on(ASYNCIO)

NUMBERS = count()


@pytest.fixture
def topic() -> str:
    return f"observed-{next(NUMBERS)}"


def connect(broker: KafkaBroker, recorder: Recorder) -> od.Cluster:
    return od.connect(f"kafka://{broker.host}:{broker.port}", observer=recorder)


async def test_records_on_their_way_there_and_back(odradek_kafka: KafkaBroker, topic: str) -> None:
    recorder = Recorder()
    options: dict[str, Any] = {"group": topic, "start": od.EARLIEST, "commit_every": None}
    async with connect(odradek_kafka, recorder) as k:
        (await k.admin.create_topics(topic, partitions=1, replicas=1)).check()
        partition = od.TopicPartition(topic, 0)
        async with k.producer() as out:
            await out.send(topic, b"first")
            recorder.events.clear()
            await out.send(topic, b"value")
            after_one_send = list(recorder.events)
        async with k.consumer(topic, **options) as consumer:
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
    assert (sent.partition, sent.records, sent.attempt) == (partition, 1, 1) and sent.broker.id >= 0
    assert (request.api, request.purpose, request.error) == ("Produce", "produce", None)
    assert request.version >= 9 and request.sent_bytes > sent.bytes and request.received_bytes > 20
    assert finished.error is None and 0 <= request.seconds <= finished.seconds + 0.1
    assert sum(batch.records for batch in recorder.of(BatchDelivered)) == 2
    assert recorder.of(BatchDelivered)[-1].lag == 0 and recorder.of(PartFetched)[-1].end == 2
    assert [(each.positions, each.error) for each in recorder.of(CommitFinished)] == [({partition: 2}, None)]
    assert [(each.kind, each.partitions) for each in recorder.of(Rebalanced)] == [
        ("assigned", (partition,)),
        ("left", (partition,)),
    ]
    apis = {request.api for request in recorder.of(RequestFinished)}
    assert {"Fetch", "OffsetFetch", "OffsetCommit", "ConsumerGroupHeartbeat", "FindCoordinator"} <= apis
    assert all(
        each.error is None or not each.error.sent for each in recorder.of(RequestFinished) if each.api != "Fetch"
    )
    purposes = {opened.purpose.split(" ")[0] for opened in recorder.of(ConnectionOpened)}
    assert "group" in purposes and purposes & {"poll", "fetch"}  # it may end before the first long poll
    assert not any(ended.lost for ended in recorder.of(ConnectionEnded))


@pytest.fixture
def broker_behind_a_proxy() -> Iterator[KafkaBroker]:
    with KafkaBroker(proxied=True) as broker:
        yield broker


async def test_a_cut_line_is_told_and_what_is_sent_again(broker_behind_a_proxy: KafkaBroker, topic: str) -> None:
    recorder, broker = Recorder(), broker_behind_a_proxy
    proxy = broker.proxy
    assert isinstance(proxy, FaultProxy)
    async with connect(broker, recorder) as k:
        (await k.admin.create_topics(topic, partitions=1, replicas=1)).check()
        async with k.producer() as out:
            await out.send(topic, b"first")
            recorder.events.clear()
            proxy.cut()
            await out.send(topic, b"second")
    lost = [ended for ended in recorder.of(ConnectionEnded) if ended.lost]
    assert lost and "produce" in {ended.purpose for ended in lost}
    assert [finished.error for finished in recorder.of(BatchFinished)] == [None]
    assert recorder.of(BatchFinished)[0].attempts == recorder.of(BatchSent)[-1].attempt
    assert [opened.purpose for opened in recorder.of(ConnectionOpened)].count("produce") == 1
    assert not recorder.of(ConnectionFailed)


async def test_a_blocked_event_loop_is_a_late_heartbeat(odradek_kafka: KafkaBroker, topic: str) -> None:
    recorder = Recorder()
    async with connect(odradek_kafka, recorder) as k:
        (await k.admin.create_topics(topic, partitions=1, replicas=1)).check()
        async with k.consumer(topic, group=topic, group_protocol="classic"):
            time.sleep(3.5)  # noqa: ASYNC251 - the heartbeat interval is 3 s
            with anyio.fail_after(60):
                while not recorder.of(HeartbeatLate):
                    await anyio.lowlevel.checkpoint()
    (late,) = recorder.of(HeartbeatLate)
    assert late.group == topic and 3 < late.seconds < 30


def test_no_observer_is_no_call() -> None:
    assert observer_calls(None) is None
