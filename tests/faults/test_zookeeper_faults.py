"""ZooKeeper forgets clients and loses its leader under load: nothing confirmed is lost, no record is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

import anyio
import pytest
from anyio.to_thread import run_sync

import odradek as od
from odradek.testing import Kafka07Broker, ZooKeeperEnsemble, ZooKeeperServer
from odradek.testing.zookeeper_client import four_letters

from .load import CONFIG, WAIT_S, Load, Received, check_load, read_back

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

Report = Callable[[object], None]


def sessions(server: ZooKeeperServer) -> set[int]:
    """Of the clients connected now."""
    connections = four_letters(server.host, server.port, "cons", 5)
    return {int(number, 16) for number in re.findall(r"sid=0x([0-9a-f]+)", connections)}


@asynccontextmanager
async def own_session(
    server: ZooKeeperServer, chroot: str, tuning: od.Tuning
) -> AsyncIterator[tuple[od.Cluster, Callable[[], None]]]:
    """A cluster, and what ends its session."""
    before = sessions(server)
    async with od.connect(f"kafka07+zk://{chroot}", tuning=tuning) as k:
        (session,) = sessions(server) - before
        yield k, lambda: server.expire(session)


def owners(server: ZooKeeperServer, chroot: str) -> set[bytes | None]:
    """Who owns the partitions of topic t in group g, each as `group_member-stream`."""
    path = f"/{chroot.partition('/')[2]}/consumers/g/owners/t"
    return {node.data for name, node in server.tree(path).items() if name != path}


async def test_zookeeper_sessions_expire_under_load(
    odradek_chroot: str, odradek_zookeeper: ZooKeeperServer, tuning: od.Tuning, report: Report
) -> None:
    """Of the producer, of a member of the group, and of the broker, one after the other."""
    received = Received()
    with Kafka07Broker(zookeeper=odradek_chroot, config=CONFIG) as broker:
        async with (
            own_session(odradek_zookeeper, odradek_chroot, tuning) as (producing, expire_producer),
            own_session(odradek_zookeeper, odradek_chroot, tuning) as (consuming_a, expire_a),
            own_session(odradek_zookeeper, odradek_chroot, tuning) as (consuming_b, _),
            producing.producer() as out,
            consuming_a.consumer("t", group="g", consumer_id="a", commit_every=0.05) as a,
            consuming_b.consumer("t", group="g", consumer_id="b", commit_every=0.05) as b,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(received.take, "a", a)
            tasks.start_soon(received.take, "b", b)
            load = Load(out, "t", tasks)
            for expire in (expire_producer, expire_a, broker.expire_session):
                await load.more(300)
                await run_sync(expire)
            await load.more(300)
            await load.stop()
            log = await read_back("t", broker)
            await received.all_of(log)
            with anyio.fail_after(WAIT_S):
                # Nodes have no event here.
                while await run_sync(owners, odradek_zookeeper, odradek_chroot) != {b"g_a-0", b"g_b-0"}:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
    again = received.counts() - log
    assert all("a" in received.members[value] for value in again), "only what the expired member had"
    result = check_load(load, log)
    report(f"{result}; {again.total()} of {log.total()} delivered again after the expiry of a member")
    assert result.unknown == result.not_written == 0


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(3) as ensemble:
        yield ensemble


async def test_zookeeper_leader_killed_under_load(
    ensemble: ZooKeeperEnsemble, tuning: od.Tuning, report: Report
) -> None:
    """Records go on meanwhile. Afterwards a new topic is found and a new member gets its share; no session expires."""
    chroot = f"/{uuid4().hex}"
    leader = await run_sync(ensemble.leader)
    await run_sync(leader.create, chroot)
    received = Received()
    loads: dict[str, Load] = {}
    with Kafka07Broker(zookeeper=ensemble.address + chroot, config=CONFIG) as broker:
        async with (
            od.connect(f"kafka07+zk://{ensemble.address}{chroot}", tuning=tuning) as k,
            od.connect(f"kafka07+zk://{ensemble.address}{chroot}", tuning=tuning) as other,
            k.producer() as out,
            k.consumer(include="t.*", group="g", consumer_id="a", commit_every=0.05) as a,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(received.take, "a", a)
            loads["t1"] = Load(out, "t1", tasks)
            await loads["t1"].more(300)
            try:
                await run_sync(leader.kill)
                await loads["t1"].more(300)
                await run_sync(ensemble.leader)
                loads["t2"] = Load(out, "t2", tasks)
                await loads["t2"].more(300)
            finally:
                await run_sync(leader.start)
            async with (
                other.consumer(include="t.*", group="g", consumer_id="b", commit_every=0.05) as b,
                anyio.create_task_group() as taking,
            ):
                taking.start_soon(received.take, "b", b)
                await loads["t1"].more(300)
                log = await logs_delivered(broker, received, loads, report)
                taking.cancel_scope.cancel()
            tasks.cancel_scope.cancel()
    assert received.counts() == log, "every record of the logs was delivered once"


async def logs_delivered(
    broker: Kafka07Broker, received: Received, loads: dict[str, Load], report: Report
) -> Counter[bytes]:
    """Return the logs once all their records were delivered."""
    logs: Counter[bytes] = Counter()
    for topic, load in loads.items():
        await load.stop()
        log = await read_back(topic, broker)
        result = check_load(load, log)
        report(f"{topic}: {result}")
        assert result.unknown == result.not_written == 0
        logs += log
    await received.all_of(logs)
    return logs
