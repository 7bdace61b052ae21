"""The commands against a cluster: an embedded broker, a real ZooKeeper."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from odradek.cli.app import run
from odradek.testing import Kafka07Broker, ZooKeeperServer

KEYS = {"num.partitions": "2", "log.flush.interval": "1", "log.file.size": "100"}
Command = Callable[..., str]
Put = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="module")
def chroot(odradek_zookeeper: ZooKeeperServer) -> str:
    odradek_zookeeper.create("/commands")
    return f"{odradek_zookeeper.address}/commands"


@pytest.fixture(scope="module")
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
    """Run a command that must end with this exit code; returns what it printed."""

    def command(*arguments: str, code: int = 0) -> str:
        assert run(arguments) == code
        return capfd.readouterr().out

    return command


@pytest.fixture
def put(cluster: str, chroot: str, odradek_zookeeper: ZooKeeperServer) -> Put:
    """`odradek put` with this on standard input; returns when the topic is published (every message is visible then:
    the broker flushes each)."""
    node = "/" + chroot.partition("/")[2] + "/brokers/topics/"

    def command(topic: str, data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [sys.executable, "-m", "odradek.cli", "put", topic, *arguments], input=data, capture_output=True, check=True
        )
        with odradek_zookeeper.client() as client:
            while len(client.tree(node + topic)) < 2:
                continue
        return done

    return command


def jsons(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_what_was_put_is_what_cat_prints(odradek: Command, put: Put, topic: str) -> None:
    told = put(topic, b"one\ntwo\n\nlast, without a newline")
    assert (told.stdout, told.stderr) == (b"", b"4 messages written\n")
    assert odradek("cat", topic) == "one\ntwo\n\nlast, without a newline\n"


def test_put_takes_files_and_json_tells_how_many(odradek: Command, put: Put, topic: str, tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(b"from %s\n" % file.name.encode())
    told = put(topic, b"", *map(os.fspath, files), "--json", "-z", "snappy").stdout
    assert json.loads(told) == {"topic": topic, "written": 2}
    assert sorted(odradek("cat", "-t", topic).splitlines()) == ["from a", "from b"]


def test_put_stops_at_the_count(odradek: Command, put: Put, topic: str) -> None:
    put(topic, b"1\n2\n3\n", "-c", "2")
    assert odradek("cat", topic) == "1\n2\n"


def test_other_delimiters_and_keys(odradek: Command, put: Put, topic: str) -> None:
    put(topic, b"k:one\ntwo\0k:three\0", "-D", r"\0", "-K", ":")
    assert odradek("cat", topic, "-D", "|") == "one\ntwo|three|"


def test_messages_longer_than_what_is_read_at_once(odradek: Command, put: Put, topic: str) -> None:
    rows = [b"x" * 300_000, b"y" * 700_000]
    put(topic, b"\n".join(rows))
    assert [len(row) for row in odradek("cat", topic).split()] == [300_000, 700_000]


def test_a_message_that_is_too_large_is_exit_code_1(odradek: Command, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1_000_001)
    odradek("put", topic, os.fspath(tmp_path / "a"), code=1)


def test_cat_as_json_from_a_position_of_a_partition(odradek: Command, put: Put, topic: str) -> None:
    put(topic, b"one\ntwo\nthree\n", "-z", "none")
    (name,) = {row["partition"] for row in jsons(odradek("cat", topic, "--json"))}
    assert name == "7-0"
    (row,) = jsons(odradek("cat", topic, "--json", "-p", name, "-o", "13", "-c", "1"))
    assert row == {
        "topic": topic,
        "partition": name,
        "position": 13,
        "next_position": 26,
        "inner_index": 0,
        "value": "two",
    }
    assert odradek("cat", topic, "-p", "0", "-o", "end") == ""
    odradek("cat", topic, "-p", "9-9", code=1)


@pytest.mark.parametrize(
    ("count", "printed"), [(0, ""), (1, "30"), (3, "28 29 30"), (99, " ".join(map(str, range(31))))]
)
def test_the_last_messages_come_from_as_many_segments_as_needed(
    odradek: Command, put: Put, topic: str, count: int, printed: str
) -> None:
    for start in range(0, 31, 8):
        put(topic, "\n".join(map(str, range(start, min(start + 8, 31)))).encode(), "-p", "7-0")
    assert odradek("cat", topic, "-o", f"-{count}").split() == printed.split()


def test_following_prints_what_comes_later(cluster: str, put: Put, topic: str) -> None:
    put(topic, b"early\n")
    command = [sys.executable, "-m", "odradek.cli", "cat", topic, "-F", "-c", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"early\n"
        put(topic, b"late\n")
        assert process.stdout.read() == b"late\n"
    assert process.returncode == 0


def test_following_the_last_ones(cluster: str, put: Put, topic: str) -> None:
    put(topic, b"1\n2\n3\n")
    command = [sys.executable, "-m", "odradek.cli", "cat", topic, "-F", "-o", "-2", "-c", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"2\n"
        assert process.stdout.readline() == b"3\n"
        put(topic, b"4\n", "-p", "7-0")
        assert process.stdout.read() == b"4\n"
    assert process.returncode == 0


def test_a_topic_that_is_not_there_is_exit_code_1(odradek: Command) -> None:
    for command in ("cat", "ls", "offsets"):
        odradek(command, "no-such-topic", code=1)


def test_ls_lists_topics_and_partitions(odradek: Command, put: Put, topic: str, broker: Kafka07Broker) -> None:
    put(topic, b"one\n")
    assert {"topic": topic, "partitions": 2, "brokers": [7]} in jsons(odradek("ls", "--json"))
    assert f"{topic}           2  7" in odradek("ls")
    first, second = jsons(odradek("ls", topic, "--json"))
    assert first == {
        "partition": "7-0",
        "broker": 7,
        "address": broker.address,
        "earliest": 0,
        "latest": 13,
        "bytes": 13,
    }
    assert (second["partition"], second["bytes"]) == ("7-1", 0)


def test_offsets_and_where_a_time_is(odradek: Command, put: Put, topic: str) -> None:
    put(topic, b"one\n")
    assert jsons(odradek("offsets", topic, "--json"))[0] == {"partition": "7-0", "earliest": 0, "latest": 13}
    later = str(time.time() + 100)
    assert jsons(odradek("offsets", topic, "--json", "--at", later))[0] == {"partition": "7-0", "position": 13}
    assert odradek("offsets", topic, "--at", "-1h").splitlines()[1].split() == ["7-0", "0"]
    odradek("offsets", topic, "--at", "yesterday", code=2)


def test_lag_counts_what_a_group_has_not_done(odradek: Command, put: Put, topic: str) -> None:
    group = f"g-{topic}"
    put(topic, b"one\ntwo\nthree\n")
    odradek("lag", group, code=1)
    assert odradek("cat", topic, "-G", group, "-c", "2") == "one\ntwo\n"
    *_, row, total = [r for r in jsons(odradek("lag", group, "--json")) if r.get("partition") != "7-1"]
    assert (row["partition"], row["committed"], row["end"], row["lag"]) == ("7-0", 26, 41, 15)
    assert total == {"group": group, "lag": 15}
    assert {"group": group, "lag": 15} in jsons(odradek("lag", "--json"))
    assert "in all 15" in odradek("lag", group)
    odradek("lag", group, "--fail-over", "15")
    odradek("lag", group, "--fail-over", "14", code=1)
    odradek("lag", group, "--fail-over", "14", "--watch", code=1)


def test_without_zookeeper_by_a_list_of_brokers(
    odradek: Command, put: Put, topic: str, broker: Kafka07Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(topic, b"one\n")
    monkeypatch.delenv("ODRADEK_CLUSTER")
    assert odradek("cat", topic, "-b", f"7@{broker.address}") == "one\n"
    odradek("lag", "g", "-b", broker.address, code=1)
    odradek("ls", "-b", broker.address, "--cluster", "kafka07://x", code=2)


def test_a_cluster_that_is_not_there_is_exit_code_1(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--cluster", "kafka07+zk://127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capfd.readouterr().err
    assert run(["ls", "--cluster", "nonsense"]) == 2
