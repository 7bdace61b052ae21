"""`connect` and the cluster object: URLs, lifetimes, listings. With a cluster in memory and with nothing at all."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from odradek import engine
from odradek.client.cluster import Cluster
from odradek.client.connect import connect
from odradek.client.consumer.consumer import Consumer
from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.client.producer.producer import Producer
from odradek.errors import ConfigError, Unreachable, UsageError, ZooKeeperError
from odradek.io.kafka07 import driver as driver_module
from odradek.types import EARLIEST, LATEST, AtTime, Position, TopicPartition

if TYPE_CHECKING:
    from tests.client.conftest import FakeDriver

pytestmark = pytest.mark.anyio


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments with which `connect` makes the driver."""
    seen: dict[str, Any] = {}

    def make(**options: Any) -> object:
        seen.update(options)
        return driver_module.Kafka07Driver(**options)

    monkeypatch.setattr("odradek.io.kafka07.urls.Kafka07Driver", make)
    return seen


@pytest.mark.parametrize(
    ("url", "zookeeper", "auth"),
    [
        ("kafka07+zk://zk1", "zk1:2181", []),
        ("kafka07+zk://zk1,zk2:2182/chroot", "zk1:2181,zk2:2182/chroot", []),
        ("kafka07+zk://zk1/", "zk1:2181", []),
        ("kafka07+zk://zk1/a/b/", "zk1:2181/a/b", []),
        ("kafka07+zk://user:pw@zk1,zk2", "zk1:2181,zk2:2181", [("digest", "user:pw")]),
        ("kafka07+zk://us%2Fer:p%40%3Aw@zk1/c", "zk1:2181/c", [("digest", "us/er:p@:w")]),
        ("kafka07+zk://[::1]:2181,[fe80::2]", "[::1]:2181,[fe80::2]:2181", []),
    ],
)
async def test_zookeeper_urls(url: str, zookeeper: str, auth: list[Any], arguments: dict[str, Any]) -> None:
    connect(url)
    assert (arguments["zookeeper"], arguments["auth"]) == (zookeeper, auth)


@pytest.mark.parametrize(
    ("url", "brokers"),
    [
        ("kafka07://b1", ["b1:9092"]),
        ("kafka07://b1:6667, b2/", ["b1:6667", "b2:9092"]),
        ("kafka07://7@b1,8@b2:1", ["7@b1:9092", "8@b2:1"]),
        ("kafka07://[::1]", ["[::1]:9092"]),
    ],
)
async def test_broker_urls(url: str, brokers: list[str], arguments: dict[str, Any]) -> None:
    connect(url)
    assert arguments["brokers"] == brokers


async def test_tuning_reaches_the_driver(arguments: dict[str, Any]) -> None:
    connect("kafka07://b1", tuning=Tuning(request_timeout=3, connect_timeout=2, session_timeout=1))
    options = arguments["options"]
    assert (options.api.request_timeout_s, options.connection.connect_timeout_s, options.session_timeout_s) == (3, 2, 1)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("", "no scheme; it is kafka07"),
        ("b1:9092", "no scheme; it is kafka07"),
        ("http://b1", r"unknown scheme 'http' .* it is kafka07\+zk://.* or kafka07://"),
        ("kafka07+zk://", "ZooKeeper server ''"),
        ("kafka07+zk://zk1,,zk2", "ZooKeeper server ''"),
        ("kafka07+zk://zk1:none", "ZooKeeper server 'zk1:none'"),
        ("kafka07+zk://zk1:0", "ZooKeeper server 'zk1:0'"),
        ("kafka07+zk://zk1:65536", "ZooKeeper server 'zk1:65536'"),
        ("kafka07+zk://zk1//x", "chroot //x"),
        ("kafka07+zk://zk1/a?b=c", r"chroot /a\?b=c"),
        ("kafka07+zk://user@zk1", "user:password@"),
        ("kafka07+zk://:pw@zk1", "user:password@"),
        ("kafka07://b1/chroot", "only kafka07.zk:// has a chroot"),
        ("kafka07://b1:x", "broker 'b1:x'"),
        ("kafka07://u:p@b1", "broker 'u:p@b1'"),
        ("kafka07://1@b1,1@b2", "id 1 already"),
        ("kafka07://::1", "broker '::1'"),
    ],
)
async def test_malformed_urls_say_what_and_where(url: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        connect(url)


async def test_a_malformed_url_does_not_give_its_password_away() -> None:
    for url in ("kafka07+zk://user:secret@zk1:none", "kafka07+zk://secret@zk1"):
        with pytest.raises(ConfigError) as caught:
            connect(url)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("made", [Producer, Consumer, Reader])
async def test_the_cluster_offers_every_option_of_what_it_makes(made: type) -> None:
    method = inspect.signature(getattr(Cluster, made.__name__.lower()))
    theirs = inspect.signature(made)
    ours = {name: (p.default, p.annotation, p.kind) for name, p in method.parameters.items() if name != "self"}
    wanted = {name: (p.default, p.annotation, p.kind) for name, p in theirs.parameters.items() if name != "driver"}
    assert ours == wanted


# ---- lifetimes ------------------------------------------------------------------------------------------------


async def test_the_block_opens_and_closes_the_driver(driver: FakeDriver) -> None:
    async with Cluster(driver, Tuning()) as k:
        assert (driver.opened, driver.closed) == (1, 0)
        assert repr(k).startswith("<Cluster <")
        assert repr(k).endswith(f", {engine.active.NAME} engine>")
    assert driver.closed == 1


async def test_what_the_block_raises_comes_out_as_it_is(driver: FakeDriver) -> None:
    with pytest.raises(ValueError, match="mine"):
        async with Cluster(driver, Tuning()):
            raise ValueError("mine")
    assert driver.closed == 1


async def test_a_cluster_that_cannot_be_opened_raises_why(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(self: object) -> None:
        raise Unreachable("zookeeper", "zk1:2181", "nobody there")

    monkeypatch.setattr(type(driver), "__aenter__", refuse)
    with pytest.raises(Unreachable, match="nobody there"):
        async with Cluster(driver, Tuning()):
            raise AssertionError("not reached")
    assert driver.closed == 0


async def test_opening_can_be_cancelled(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(driver), "__aenter__", lambda self: anyio.sleep_forever())
    with anyio.move_on_after(0.01) as scope:
        async with Cluster(driver, Tuning()):
            raise AssertionError("not reached")
    assert scope.cancelled_caught


@pytest.mark.parametrize("block_fails", [False, True])
async def test_an_error_of_closing_is_raised_unless_the_block_raises(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, block_fails: bool
) -> None:
    async def fail(self: object, *exception: object) -> None:
        raise ZooKeeperError("the session is gone")

    monkeypatch.setattr(type(driver), "__aexit__", fail)
    with pytest.raises(ValueError if block_fails else ZooKeeperError):
        async with Cluster(driver, Tuning()):
            if block_fails:
                raise ValueError("mine")


async def test_pain_ctrl_c_a_cancelled_block_flushes_before_the_driver_closes(driver: FakeDriver) -> None:
    with anyio.CancelScope() as scope:
        async with Cluster(driver, Tuning()) as k, k.producer() as out:
            await out.put("t", b"v")
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert driver.values() == [b"v"]
    assert driver.closed == 1


@pytest.mark.parametrize("url", ["kafka07://127.0.0.1:1", "kafka07+zk://127.0.0.1:1"])
async def test_a_cluster_is_entered_once(url: str) -> None:
    k = connect(url, tuning=Tuning(session_timeout=0.2))
    with suppress(Unreachable):
        async with k:
            pass
    with pytest.raises(UsageError, match=r"was entered before: call connect\(\) again"):
        async with k:
            raise AssertionError("not reached")


# ---- listings -------------------------------------------------------------------------------------------------


async def test_topics_and_partitions(driver: FakeDriver) -> None:
    driver.metadata.publish("u", b2=1)
    async with Cluster(driver, Tuning()) as k:
        assert await k.topics() == {"t", "u"}
        assert await k.partitions("t") == tuple(TopicPartition("t", n, b) for b in (1, 2) for n in (0, 1))
        assert await k.partitions("nobody published this") == ()


async def test_positions_by_meaning(driver: FakeDriver) -> None:
    driver.metadata.publish("t", b1=1, b2=1)
    first, second = TopicPartition("t", 0, 1), TopicPartition("t", 0, 2)
    for partition, start, end in ((first, 0, 100), (second, 50, 70)):
        positions = driver[partition.broker].listed_positions
        positions[partition, EARLIEST], positions[partition, LATEST] = [Position(start)], [Position(end)]
    driver[1].listed_positions[first, AtTime(5.0)] = [Position(30)]
    async with Cluster(driver, Tuning()) as k:
        assert await k.positions("t", LATEST) == {first: 100, second: 70}
        assert await k.positions("t", AtTime(5.0)) == {first: 30, second: 50}
        driver[2].down = Unreachable("tcp", "b2:9092", "refused")
        with pytest.raises(Unreachable):
            await k.positions("t", LATEST)
