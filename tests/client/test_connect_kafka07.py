"""URLs of Kafka 0.7: what `connect` makes of them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from odradek.client.connect import connect
from odradek.client.options import Tuning
from odradek.errors import ConfigError, Unreachable, UsageError
from odradek.io.kafka07 import driver as driver_module

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
    connect("kafka07://b1")
    assert arguments["options"].session_timeout_s == 6


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("", "no scheme; it is kafka07"),
        ("b1", "no scheme; it is kafka07"),
        ("b1:9092,b2", "no scheme; it is kafka07"),
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
        ("kafka07://u:p@b1", "broker '...@b1'"),
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


@pytest.mark.parametrize("url", ["kafka07://127.0.0.1:1", "kafka07+zk://127.0.0.1:1"])
async def test_a_cluster_that_could_not_be_entered_is_not_entered_again(url: str) -> None:
    k = connect(url, tuning=Tuning(session_timeout=0.2))
    with suppress(Unreachable):
        async with k:
            pass
    with pytest.raises(UsageError, match=r"was entered before: call connect\(\) again"):
        async with k:
            raise AssertionError("not reached")
