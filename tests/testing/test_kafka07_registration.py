"""The embedded broker and a real ZooKeeper; formats and conflicts are in the recorded corpus (cases 33 and 34)."""

from __future__ import annotations

import itertools
import logging
import socket
import time
from collections.abc import Iterator

import pytest

from odradek.errors import ConfigError, Unreachable
from odradek.io.zookeeper import Node
from odradek.testing import Kafka07Broker, ZooKeeperServer
from odradek.testing.kafka07 import StartRefused

from .kafka07_talk import Talk

ID, TOPIC = "/brokers/ids/1", "/brokers/topics/t/1"
SOON = {"zk.sessiontimeout.ms": "3000", "zk.connectiontimeout.ms": "6000"}
numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def root(server: ZooKeeperServer) -> str:
    """A chroot of its own."""
    path = f"/test{next(numbers)}"
    server.create(path)
    return path


def node(server: ZooKeeperServer, path: str) -> Node | None:
    return server.tree(path).get(path)


def eventually(server: ZooKeeperServer, path: str, seconds: float = 30.0) -> Node:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if stored := node(server, path):
            return stored
        time.sleep(0.01)
    raise AssertionError(f"{path} did not appear")


def test_kill_leaves_the_nodes_to_the_session_and_can_drop_it(server: ZooKeeperServer, root: str) -> None:
    broker = Kafka07Broker(zookeeper=f"{server.address}{root}")
    broker.start()
    with Talk(broker) as talk:
        talk.produce("t", b"hello")
    eventually(server, root + TOPIC)
    broker.kill()
    left = node(server, root + ID)
    assert left is not None
    with pytest.raises(StartRefused, match="already registered"):
        broker.start()
    server.expire(left.owner)
    with broker:
        assert node(server, root + TOPIC) is not None
        broker.kill(drop_session=True)
        assert node(server, root + ID) is node(server, root + TOPIC) is None


def test_a_killed_broker_does_not_keep_its_session_alive(server: ZooKeeperServer, root: str) -> None:
    broker = Kafka07Broker(zookeeper=f"{server.address}{root}", config=SOON)
    broker.start()
    eventually(server, root + ID)
    broker.kill()
    deadline = time.monotonic() + 30
    while node(server, root + ID) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_stop_takes_the_nodes_away_at_once(server: ZooKeeperServer, root: str) -> None:
    with Kafka07Broker(zookeeper=f"{server.address}{root}"):
        assert node(server, root + ID) is not None
    assert node(server, root + ID) is None


def test_after_expiry_everything_is_registered_again_when_the_call_returns(server: ZooKeeperServer, root: str) -> None:
    with Kafka07Broker(zookeeper=f"{server.address}{root}") as broker, Talk(broker) as talk:
        talk.produce("t", b"hello")
        before = eventually(server, root + TOPIC)
        for _ in range(2):
            broker.expire_session()
            after = node(server, root + TOPIC)
            assert after is not None
            assert after.owner != before.owner
            assert after.owner == eventually(server, root + ID).owner
            before = after
        talk.sync()


def test_an_id_that_was_taken_during_an_expiry_is_logged_and_the_broker_serves_on(
    server: ZooKeeperServer, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Kafka07Broker(zookeeper=f"{server.address}{root}") as broker, Talk(broker) as talk:
        server.delete(root + ID)
        server.create(root + ID, b"elsewhere-1:10.0.0.9:9092")
        with caplog.at_level(logging.ERROR):
            broker.expire_session()
        assert "already registered" in caplog.text
        assert eventually(server, root + ID).owner == 0
        talk.sync()


def test_a_topic_that_comes_while_zookeeper_is_away_is_registered_when_it_is_back() -> None:
    with ZooKeeperServer() as server, Kafka07Broker(zookeeper=server.address) as broker, Talk(broker) as talk:
        server.kill()
        talk.produce("t", b"hello")
        server.start()
        assert eventually(server, TOPIC).data == b"1"


def test_it_registers_the_hostname_given(server: ZooKeeperServer, root: str) -> None:
    address = f"{server.address}{root}"
    with Kafka07Broker(zookeeper=address, config={"hostname": "kafka.example", "brokerid": "9"}) as broker:
        stored = node(server, f"{root}/brokers/ids/9")
    assert stored is not None
    assert (stored.data or b"").endswith(f":kafka.example:{broker.port}".encode())


def test_without_its_chroot_or_without_zookeeper_it_does_not_start(server: ZooKeeperServer) -> None:
    with pytest.raises(ConfigError, match="chroot"), Kafka07Broker(zookeeper=f"{server.address}/nowhere"):
        pass
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        broker = Kafka07Broker(zookeeper=address, config={"zk.connectiontimeout.ms": "300"})
        with pytest.raises(Unreachable, match=address):
            broker.start()


def test_expiry_of_a_session_it_does_not_have_is_an_error() -> None:
    with Kafka07Broker() as broker, pytest.raises(ConfigError, match="ZooKeeper"):
        broker.expire_session()
