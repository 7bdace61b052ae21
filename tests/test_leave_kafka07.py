"""The page about leaving Kafka 0.7 runs as printed: from an embedded broker with a real ZooKeeper to one of today."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest
import trustme

import odradek as od
from odradek.cli.app import run
from odradek.mirror.config import load
from odradek.testing import Kafka07Broker, KafkaBroker, ZooKeeperServer

HOWTO = Path(__file__).parents[1] / "docs/howto"
PAGE = (HOWTO / "leave-kafka-07.md").read_text("utf-8")
VERBS = ["status", "verify", "groups", "cutover", "groups", "cutover"]  # after the run has begun
RECORDS = {0: [b"%d" % n for n in range(1, 51)], 1: [b"%d" % n for n in range(51, 101)]}
COMMITTED = {0: b"351", 1: b"240"}  # after 30 and after 20 messages, in bytes


def blocks(language: str, page: str = PAGE) -> list[str]:
    """The blocks of a page in a language, without the indentation of lists."""
    indented = re.findall(rf"^( *)```{language}\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL)
    return [re.sub(f"^{indent}", "", block, flags=re.MULTILINE) for indent, block in indented]


def steps() -> list[tuple[str, str]]:
    """The commands of the page, each with what it prints."""
    parts = re.split(r"^\$ (.*)\n", "".join(blocks("console")), flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


class Move:
    """The page, on servers of its own: names and addresses are replaced.

    Args:
        old, new: URLs of both clusters.
        directory: The working directory of the page's shell.
    """

    def __init__(self, old: str, new: str, directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.old, self.new, self.topic, self.group = old, new, f"orders-{uuid4().hex[:8]}", f"billing-{uuid4().hex[:8]}"
        self.name = f"leave07-{uuid4().hex[:8]}"
        self._directory, self._capfd = directory, capfd
        self._names = {"orders": self.topic, "billing": self.group, "leave07": self.name, "60": "0.1"}

    def here(self, text: str) -> str:
        """Return a text of the page with the names and addresses of this test."""
        text = text.replace("kafka07+zk://zk1:2181,zk2:2181/kafka", self.old).replace(
            "kafka://new1:9092,new2:9092", self.new
        )
        return re.sub(rf"\b({'|'.join(self._names)})\b", lambda name: self._names[name[0]], text)

    def as_on_page(self, printed: str) -> list[list[str]]:
        """Return the words of what a command printed, with the names of the page."""
        for theirs, ours in self._names.items():
            printed = printed.replace(ours, theirs)
        return words(printed)

    def write_file(self) -> Path:
        path = self._directory / f"{self.name}.toml"
        path.write_text(f"{self.here(blocks('toml')[0])}[run]\nrefresh_seconds = 0.5\n")  # a run that ends notices it
        return path

    def command(self, line: str) -> tuple[int, str]:
        """Run a command of the page in this process."""
        self._capfd.readouterr()
        code = run(shlex.split(self.here(line))[1:])
        return code, self._capfd.readouterr().out

    def check(self, line: str, printed: str, code: int = 0) -> None:
        """Run a command, which prints what the page says."""
        done, output = self.command(line)
        assert (done, self.as_on_page(output)) == (code, words(printed)), line

    @contextmanager
    def following(self, line: str) -> Iterator[subprocess.Popen[str]]:
        """The run that follows, in a process of its own."""
        command = [sys.executable, "-m", "odradek.cli", *shlex.split(self.here(line))[1:]]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


def words(text: str) -> list[list[str]]:
    return [re.sub(r"\d{4}-\d\d-\d\dT[\d:+]+", "TIME", line).split() for line in text.splitlines()]


@pytest.fixture
def move(
    odradek_zookeeper: ZooKeeperServer,
    odradek_chroot: str,
    odradek_kafka: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Move]:
    """An old cluster with messages in two partitions, and a group in the middle of both."""
    config = {"num.partitions": "2", "log.flush.interval": "1"}
    with Kafka07Broker(broker_id=1, zookeeper=odradek_chroot, config=config):
        move = Move(f"kafka07+zk://{odradek_chroot}", f"kafka://{odradek_kafka.bootstrap}", tmp_path, capfd)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("ODRADEK_CLUSTER", move.old)
        anyio.run(partial(write, move.old, move.topic, RECORDS))
        root = "/" + odradek_chroot.partition("/")[2]
        for partition, position in COMMITTED.items():
            odradek_zookeeper.create(f"{root}/consumers/{move.group}/offsets/{move.topic}/1-{partition}", position)
        yield move


async def write(url: str, topic: str, records: dict[int, list[bytes]]) -> None:
    async with od.connect(url) as cluster, cluster.producer() as producer:
        for partition, values in records.items():
            (await producer.send_many(topic, values, partition=od.TopicPartition(topic, partition, 1))).check()


async def next_values(url: str, topic: str, group: str, count: int) -> list[int]:
    """Return what a member of the group gets next, and commit it."""
    async with od.connect(url) as cluster, cluster.consumer(topic, group=group, start=od.LATEST) as consumer:
        with anyio.fail_after(60):
            return sorted([int((await anext(consumer)).value or b"0") for _ in range(count)])


def wait_until_copied(move: Move, records: int) -> None:
    """Wait until the mirror has copied so many records, and nothing is left."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        code, printed = move.command("odradek mirror status leave07.toml --json")
        rows = [json.loads(line) for line in printed.splitlines()]
        if code == 0 and sum(row["records"] for row in rows) == records and not any(row["lag"] for row in rows):
            return
    raise AssertionError(f"not copied: {printed}")


@pytest.mark.timeout(300)
def test_the_page_runs_as_printed(move: Move) -> None:
    move.write_file()
    (export, _), *commands = steps()
    assert export == "export ODRADEK_CLUSTER=kafka07+zk://zk1:2181,zk2:2181/kafka"
    names = [" ".join(line.split()[1:3]) for line, _ in commands]
    following = names.index("mirror run")
    before, (run_line, _), after = commands[:following], commands[following], commands[following + 1 :]
    assert names[:following] == ["doctor", "ls", "lag billing", "mirror plan"]
    assert names[following + 1 :] == [f"mirror {verb}" for verb in VERBS]
    status, verify, groups, missing, apply, cutover = after
    for step in before:
        move.check(*step)
    with move.following(run_line) as process:
        wait_until_copied(move, 100)
        for step in (status, verify, groups):
            move.check(*step)
        assert move.topic in Path("verify.html").read_text("utf-8")
        move.check(*missing, code=1)
        move.check(*apply)
        assert anyio.run(next_values, move.new, move.topic, move.group, 50) == [*range(31, 51), *range(71, 101)]
        anyio.run(write, move.old, move.topic, {0: [b"101"]})
        assert anyio.run(next_values, move.new, move.topic, move.group, 1) == [101]
        wait_until_copied(move, 101)
        move.check(*cutover)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 2 and "is finished" in error
    anyio.run(carry_back, move)


async def carry_back(move: Move) -> None:
    """What is written to the new cluster alone goes back to the old one."""
    names: dict[str, Any] = {}
    exec(blocks("python")[0], names)
    since = time.time()
    async with od.connect(move.new) as cluster, cluster.producer() as producer:
        await producer.send(move.topic, b"102")
    async with anyio.create_task_group() as tasks, od.connect(move.old) as cluster:
        tasks.start_soon(names["carry_back"], move.new, move.old, move.topic, since)
        with anyio.fail_after(60):
            while sorted(await values(cluster, move.topic)) != list(range(1, 103)):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()


async def values(cluster: od.Cluster, topic: str) -> list[int]:
    async with cluster.reader(topic, start=od.EARLIEST, until=od.LATEST) as reader:
        return [int(record.value or b"0") async for record in reader]


@pytest.mark.parametrize("page", ["leave-kafka-07", "leave-old-kafka"])
def test_the_files_on_the_pages_are_valid(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_PASSWORD", "secret")
    authority = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(authority))
    texts = blocks("toml", (HOWTO / f"{page}.md").read_text("utf-8"))
    assert texts
    for text in texts:
        path = tmp_path / "mirror.toml"
        path.write_text(text.replace("/etc/kafka/old-ca.pem", str(authority)))
        assert load(path).topics.takes("orders")
