"""A cluster for the commands: an embedded broker and a real ZooKeeper."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from tempfile import TemporaryFile
from typing import Any
from uuid import uuid4

import pytest

from odradek.cli.app import run
from odradek.testing import Kafka07Broker, ZooKeeperServer

KEYS = {"num.partitions": "2", "log.flush.interval": "1", "log.file.size": "100"}
Command = Callable[..., str]
Put = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="session")
def chroot(odradek_zookeeper: ZooKeeperServer) -> str:
    odradek_zookeeper.create("/commands")
    return f"{odradek_zookeeper.address}/commands"


@pytest.fixture(scope="session")
def broker(chroot: str) -> Iterator[Kafka07Broker]:
    with Kafka07Broker(broker_id=7, zookeeper=chroot, config=KEYS) as running:
        yield running


@pytest.fixture
def cluster(broker: Kafka07Broker, chroot: str, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"kafka07+zk://{chroot}"
    monkeypatch.setenv("ODRADEK_CLUSTER", url)
    return url


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex[:8]}"


@pytest.fixture
def odradek(cluster: str, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command that must exit with `code`; return its output."""

    def command(*arguments: str, code: int = 0) -> str:
        assert run(arguments) == code
        return capfd.readouterr().out

    return command


def put_here(capfd: pytest.CaptureFixture[str], *arguments: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run `odradek put` in this process, with a file as its standard input. Raises CalledProcessError if it fails."""
    capfd.readouterr()
    with TemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        file.write(data)
        file.seek(0)
        patch.setattr(sys, "stdin", file)
        code = run(["put", *arguments])
    printed = capfd.readouterr()
    done = subprocess.CompletedProcess(arguments, code, printed.out.encode(), printed.err.encode())
    done.check_returncode()
    return done


@pytest.fixture
def put(registered: Callable[[str], None], capfd: pytest.CaptureFixture[str]) -> Put:
    """Run `odradek put` with this standard input; return when the topic is registered.

    Its messages are visible then: the broker flushes each.
    """

    def command(topic: str, data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        done = put_here(capfd, topic, *arguments, data=data)
        registered(topic)
        return done

    return command


@pytest.fixture
def put_through_pipe(registered: Callable[[str], None]) -> Put:
    """Do the same in a process of its own, whose standard input is a pipe."""

    def command(topic: str, data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        program = [sys.executable, "-m", "odradek.cli", "put", topic, *arguments]
        done = subprocess.run(program, input=data, capture_output=True, check=True)
        registered(topic)
        return done

    return command


@pytest.fixture
def registered(cluster: str, chroot: str, odradek_zookeeper: ZooKeeperServer) -> Callable[[str], None]:
    """A function that returns when ZooKeeper has a topic."""
    node = "/" + chroot.partition("/")[2] + "/brokers/topics/"

    def wait(topic: str) -> None:
        with odradek_zookeeper.client() as client:
            while len(client.tree(node + topic)) < 2:
                continue

    return wait


def jsons(text: str) -> list[dict[str, Any]]:
    """Parse lines of JSON."""
    return [json.loads(line) for line in text.splitlines()]
