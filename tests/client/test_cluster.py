"""The cluster object: its options, its lifetime, its listings."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import odradek
from odradek import engine
from odradek.client.cluster import Cluster
from odradek.client.consumer.consumer import Consumer
from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.client.producer.producer import Producer
from odradek.core.interfaces import ProducerRecord
from odradek.errors import Closed, DeadlineError, Unreachable, Unsupported, UsageError, ZooKeeperError
from odradek.testing import MemoryCluster
from odradek.testing.memory.driver import MemoryDriver
from odradek.types import EARLIEST, LATEST, AtTime, TopicPartition

pytestmark = pytest.mark.anyio

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster(topics={"t": 2})


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The drivers that were opened and closed."""
    seen: list[str] = []
    enter, leave = MemoryDriver.__aenter__, MemoryDriver.__aexit__

    async def opened(self: MemoryDriver) -> MemoryDriver:
        await enter(self)
        seen.append("opened")
        return self

    async def closed(self: MemoryDriver, *exception: Any) -> None:
        await leave(self, *exception)
        seen.append("closed")

    monkeypatch.setattr(MemoryDriver, "__aenter__", opened)
    monkeypatch.setattr(MemoryDriver, "__aexit__", closed)
    return seen


@pytest.mark.parametrize("made", [Producer, Consumer, Reader])
async def test_the_cluster_offers_every_option_of_what_it_makes(made: type) -> None:
    method = inspect.signature(getattr(Cluster, made.__name__.lower()))
    theirs = inspect.signature(made)
    ours = {name: (p.default, p.annotation, p.kind) for name, p in method.parameters.items() if name != "self"}
    wanted = {name: (p.default, p.annotation, p.kind) for name, p in theirs.parameters.items() if name != "driver"}
    added = ours.keys() - wanted.keys()
    assert {name.partition("_")[2] for name in added} == {"serializer" if made is Producer else "deserializer"}
    assert {name: option for name, option in ours.items() if name not in added} == wanted


# ---- lifetimes ------------------------------------------------------------------------------------------------


async def test_the_block_opens_and_closes_the_driver(cluster: MemoryCluster, steps: list[str]) -> None:
    async with cluster.connect() as k:
        assert steps == ["opened"]
        assert repr(k).startswith("<Cluster <")
        assert repr(k).endswith(f", {engine.active.NAME} engine>")
    assert steps == ["opened", "closed"]


async def test_what_the_block_raises_comes_out_as_it_is(cluster: MemoryCluster, steps: list[str]) -> None:
    with pytest.raises(ValueError, match="mine"):
        async with cluster.connect():
            raise ValueError("mine")
    assert steps == ["opened", "closed"]


async def test_a_cluster_that_cannot_be_opened_raises_why(cluster: MemoryCluster, steps: list[str]) -> None:
    cluster.fail("connect", Unreachable("tcp", "memory-1:9092", "nobody there"))
    with pytest.raises(Unreachable, match="nobody there"):
        async with cluster.connect():
            raise AssertionError("not reached")
    assert steps == []


async def test_opening_can_be_cancelled_and_has_a_time_limit(cluster: MemoryCluster) -> None:
    cluster.hold("connect")
    with anyio.move_on_after(0.01) as scope:
        async with cluster.connect():
            raise AssertionError("not reached")
    assert scope.cancelled_caught
    with pytest.raises(DeadlineError):
        async with cluster.connect(tuning=Tuning(connect_timeout=0.01)):
            raise AssertionError("not reached")


@pytest.mark.parametrize("block_fails", [False, True])
async def test_an_error_of_closing_is_raised_unless_the_block_raises(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, block_fails: bool
) -> None:
    leave = MemoryDriver.__aexit__

    async def fail(self: MemoryDriver, *exception: Any) -> None:
        await leave(self, *exception)
        raise ZooKeeperError("the session is gone")

    monkeypatch.setattr(MemoryDriver, "__aexit__", fail)
    with pytest.raises(ValueError if block_fails else ZooKeeperError):
        async with cluster.connect():
            if block_fails:
                raise ValueError("mine")


async def test_pain_ctrl_c_a_cancelled_block_flushes_before_the_driver_closes(
    cluster: MemoryCluster, steps: list[str]
) -> None:
    with anyio.CancelScope() as scope:
        async with cluster.connect() as k, k.producer() as out:
            await out.put("t", b"v")
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert [stored.value for stored in cluster.records("t")] == [b"v"]
    assert steps == ["opened", "closed"]


async def test_a_cluster_is_entered_once(cluster: MemoryCluster) -> None:
    k = cluster.connect()
    async with k:
        pass
    with pytest.raises(UsageError, match=r"was entered before: call connect\(\) again"):
        async with k:
            raise AssertionError("not reached")


def clusters() -> dict[str, Cluster]:
    return {
        "memory": MemoryCluster(topics={"t": 1}).connect(),
        "kafka": odradek.connect("kafka://127.0.0.1:1"),
        "kafka07": odradek.connect("kafka07://0@127.0.0.1:1"),
        "kafka07+zk": odradek.connect("kafka07+zk://127.0.0.1:1"),
    }


USES: dict[str, Callable[[Cluster], Awaitable[object]]] = {
    "topics": lambda k: k.topics(),
    "partitions": lambda k: k.partitions("t"),
    "positions": lambda k: k.positions("t", LATEST),
    "a producer": lambda k: k.producer().__aenter__(),
    "a reader of topics": lambda k: k.reader("t").__aenter__(),
    "a reader of partitions": lambda k: k.reader({FIRST: 0}).__aenter__(),
    "a consumer": lambda k: k.consumer("t", group="g").__aenter__(),
    "describe_cluster": lambda k: k.admin.describe_cluster(),
    "create_topics": lambda k: k.admin.create_topics("u"),
    "describe_topics": lambda k: k.admin.describe_topics("t"),
    "list_groups": lambda k: k.admin.list_groups(),
    "group_positions": lambda k: k.admin.group_positions("g"),
    "reset_positions": lambda k: k.admin.reset_positions("g", {FIRST: 0}),
}


@pytest.mark.parametrize("protocol", clusters())
@pytest.mark.parametrize("use", USES)
async def test_a_cluster_that_was_not_entered_says_so_at_once(protocol: str, use: str) -> None:
    with pytest.raises((Closed, Unsupported)) as caught, anyio.fail_after(5):
        await USES[use](clusters()[protocol])
    if protocol != "kafka07":  # without ZooKeeper it has no groups, open or not
        assert caught.type is Closed and "not open" in str(caught.value)


@pytest.mark.parametrize("protocol", ["memory", "kafka", "kafka07+zk"])
async def test_readers_and_consumers_may_be_made_before_the_cluster_is_entered(protocol: str) -> None:
    k = clusters()[protocol]
    for made in (k.consumer("t", group="g"), k.reader("t"), k.reader({FIRST: 0})):
        with pytest.raises(Closed, match="not open"), anyio.fail_after(5):
            await made.__aenter__()


@pytest.mark.parametrize("use", USES)
async def test_a_cluster_that_was_left_says_so_at_once(cluster: MemoryCluster, use: str) -> None:
    async with cluster.connect() as k:
        pass
    with pytest.raises(Closed, match="not open"):
        await USES[use](k)


# ---- listings -------------------------------------------------------------------------------------------------


async def test_topics_and_partitions(cluster: MemoryCluster) -> None:
    cluster.create_topic("u")
    async with cluster.connect() as k:
        assert await k.topics() == {"t", "u"}
        assert await k.partitions("t") == (FIRST, SECOND)
        assert await k.partitions("nobody published this") == ()


async def test_positions_by_meaning() -> None:
    cluster = MemoryCluster(topics={"t": 2}, brokers=2)
    cluster.append("t", [ProducerRecord(b"v", timestamp=time) for time in (1000, 5000, 9000)])
    cluster.append("t", [b"v"] * 7, partition=1)
    cluster.delete_records(SECOND, 4)
    async with cluster.connect() as k:
        assert await k.positions("t", EARLIEST) == {FIRST: 0, SECOND: 4}
        assert await k.positions("t", LATEST) == {FIRST: 3, SECOND: 7}
        assert await k.positions("t", AtTime(5.0)) == {FIRST: 1, SECOND: 4}
        cluster.fail("positions", Unreachable("tcp", "memory-2:9092", "refused"), broker=2)
        with pytest.raises(Unreachable):
            await k.positions("t", LATEST)
