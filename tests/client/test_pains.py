"""Rows of the pains table that concern no one class: what users of other clients suffer from, against real servers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import assert_type

import anyio
import pytest
from tests.loops import ASYNCIO, on

import odradek as od
from odradek.io.zookeeper import ZooKeeper
from odradek.testing import Kafka07Broker, ZooKeeperServer

pytestmark = pytest.mark.anyio
anyio_backend = on(ASYNCIO)


async def test_pain_heartbeats_survive_a_handler_that_blocks_the_loop(odradek_zookeeper: ZooKeeperServer) -> None:
    async with ZooKeeper(odradek_zookeeper.address, session_timeout=4) as zk:  # a heartbeat may come seconds late
        before = zk.session_id
        time.sleep(6)  # noqa: ASYNC251  this is the handler that blocks
        assert await zk.exists("/")
        assert zk.session_id == before


async def test_pain_connection_errors_name_the_step_and_the_address() -> None:
    with pytest.raises(od.Unreachable) as caught:
        async with od.connect("kafka07+zk://127.0.0.1:1", tuning=od.Tuning(session_timeout=0.3)):
            pass
    assert (caught.value.step, caught.value.address) == ("zookeeper", "127.0.0.1:1")
    async with od.connect("kafka07://127.0.0.1:1") as k, k.producer(deliver_within=1) as out:
        with pytest.raises(od.OdradekError, match=r"127\.0\.0\.1:1"):
            await out.send("t", b"v")


async def test_pain_no_log_storm_while_a_broker_is_away(
    odradek_chroot: str, odradek_kafka07_broker: Callable[..., Kafka07Broker], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "odradek")
    broker = odradek_kafka07_broker(config={"log.flush.interval": "1"})
    async with od.connect(f"kafka07+zk://{odradek_chroot}", tuning=od.Tuning(backoff=od.Backoff(0.01, 1.5, 0.02))) as k:
        async with k.producer() as out:
            await out.send("t", b"1")
        async with k.reader("t") as reader:
            values = (record.value async for record in reader)
            assert await anext(values) == b"1"
            caplog.clear()
            await anyio.to_thread.run_sync(broker.kill)
            with anyio.move_on_after(0.6):  # some thirty attempts to connect
                await anext(values)
            assert len(caplog.records) < 6, [record.getMessage() for record in caplog.records]


async def test_pain_type_hints_tell_what_comes_out(
    odradek_chroot: str, odradek_kafka07_broker: Callable[..., Kafka07Broker]
) -> None:
    odradek_kafka07_broker(config={"log.flush.interval": "1"})
    async with od.connect(f"kafka07+zk://{odradek_chroot}") as k:
        async with k.producer() as out:
            assert_type(await out.send("t", b"v"), od.Ack)
            assert_type(await out.send_many("t", [b"v"]), od.Acks)
            assert_type(out.try_put("t", b"v"), bool)
        async with k.reader("t", until=od.LATEST) as reader:
            async for record in reader:
                assert_type(record, od.Record)
                assert_type(record.position, od.Position)
                assert record.value == b"v"
        async with k.consumer("t", group="g") as consumer:
            async for batch in consumer.batches():
                assert_type(batch, od.GroupBatch)
                assert batch.values[0] == b"v"
                break
