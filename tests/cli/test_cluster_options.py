"""The options that name a cluster, against a running one."""

from __future__ import annotations

import pytest

from odradek.cli.app import run
from odradek.testing import Kafka07Broker

from .conftest import Command, Put


def test_an_unknown_topic_is_exit_code_1(odradek: Command) -> None:
    for command in ("cat", "ls", "offsets"):
        odradek(command, "no-such-topic", code=1)


def test_brokers_may_be_listed_instead_of_zookeeper(
    odradek: Command, put: Put, topic: str, broker: Kafka07Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(topic, b"one\n")
    monkeypatch.delenv("ODRADEK_CLUSTER")
    assert odradek("cat", topic, "-b", f"kafka07://7@{broker.address}") == "one\n"
    odradek("lag", "g", "-b", f"kafka07://{broker.address}", code=1)
    odradek("ls", "-b", f"7@{broker.address}", code=2)


def test_an_unreachable_cluster_is_exit_code_1(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--cluster", "kafka07+zk://127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capfd.readouterr().err
    assert run(["ls", "--cluster", "nonsense"]) == 2
