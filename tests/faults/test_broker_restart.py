"""A broker dies under load and comes back: nothing confirmed is lost, and what is there twice is explained."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import anyio
import pytest
from anyio.to_thread import run_sync

import odradek as od
from odradek.testing import Kafka07Broker

from .load import CONFIG, Load, Received, check_load, read_back

pytestmark = pytest.mark.anyio


def die(broker: Kafka07Broker, how: str) -> None:
    if how == "killed":
        broker.kill(drop_session=True)
    else:
        broker.stop()


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_broker_killed_and_restarted_under_load(
    how: str, odradek_chroot: str, tuning: od.Tuning, report: Callable[[object], None]
) -> None:
    received = Received()
    with ExitStack() as stack:
        start = partial(Kafka07Broker, zookeeper=odradek_chroot, config=CONFIG)
        first, second = (stack.enter_context(start(broker_id=n)) for n in (1, 2))
        async with (
            od.connect(f"kafka07+zk://{odradek_chroot}", tuning=tuning) as k,
            k.producer() as out,
            k.consumer("t", group="g", commit_every=0.05) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(received.take, "c", consumer)
            load = Load(out, "t", tasks)
            for broker in (first, second, first):
                await load.more(300)
                await run_sync(die, broker, how)
                await load.more(100)  # the other one takes over
                await run_sync(broker.start)
            await load.more(300)
            await load.stop()
            log = await read_back("t", first, second)
            await received.all_of(log)
            tasks.cancel_scope.cancel()
    result = check_load(load, log)
    report(result)
    assert received.counts() == log, "every record of the log was delivered once"
    assert result.unknown == result.not_written == 0, "there was always a broker to send to"


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_the_only_broker_restarts_under_load(
    how: str, tuning: od.Tuning, report: Callable[[object], None]
) -> None:
    """Without ZooKeeper, and with a producer that gives up quickly: some sends fail, and say truly what is known."""
    with Kafka07Broker(config=CONFIG) as broker:
        async with (
            od.connect(f"kafka07://1@{broker.address}", tuning=tuning) as k,
            k.producer(deliver_within=0.2) as out,
            anyio.create_task_group() as tasks,
        ):
            load = Load(out, "t", tasks)
            for _ in range(3):
                await load.more(200)
                await run_sync(die, broker, how)
                await load.failures(20)
                await run_sync(broker.start)
            await load.more(200)
            await load.stop()
            log = await read_back("t", broker)
    result = check_load(load, log)
    report(result)
    assert result.not_written >= 20
