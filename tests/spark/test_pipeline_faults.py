"""Runs that are ended, or lose a process of Spark's, ZooKeeper or their broker, say so; the next one goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import odradek as od
from odradek.pipeline.config import load
from odradek.pipeline.flow import open_table, table_options
from odradek.pipeline.run import execute
from odradek.pipeline.table import Table
from odradek.ranges import process
from odradek.testing import FaultProxy, Kafka07Broker, ZooKeeperServer
from odradek.testing.process import reserve_port

from ..pipeline.workspace import in_process
from .child import SOURCES, Child, until
from .made import append

ROWS = 3000
SIZE = 1000
BATCH = 1_000_000
"""Bytes: about 1,000 of the rows."""

SLOWLY = 100_000
"""Bytes a second: a batch takes longer than to stop it."""

FILE = """
[source]
{source}
[run]
batch_bytes = {batch}
[flows.t]
topics = ["t"]
[flows.t.sink]
path = "{root}/table"
"""


class Workspace:
    """A topic's records, and the table of it."""

    def __init__(self, root: Path, source: str) -> None:
        self.root, self.file, self.values = root, root / "pipeline.toml", list[bytes]()
        self.file.write_text(FILE.format(source=source, root=root, batch=BATCH))

    def more(self) -> list[bytes]:
        """Records that were not there before."""
        first = len(self.values)
        new = [b"%08d" % number + bytes(SIZE - 8) for number in range(first, first + ROWS)]
        self.values += new
        return new

    @property
    def table(self) -> Table | None:
        return open_table(table_options(load(self.file), "t"))

    @property
    def batches(self) -> int:
        newest = None if self.table is None else self.table.newest()
        return 0 if newest is None else newest.batch

    def stored(self) -> Counter[Any]:
        """By pyarrow, from the files that the table lists."""
        assert self.table is not None
        paths = [self.root / "table" / file.path for file in self.table.files()]
        return Counter(value for path in paths for value in pq.ParquetFile(path).read(["value"])["value"].to_pylist())

    def run(self) -> None:
        """A run that nobody disturbs, and that gets everything; its tasks run in this process."""
        summary = execute(load(self.file), str(self.file), lambda *_: None, in_process)
        process.disconnect()
        assert not summary.failed, summary
        assert self.stored() == Counter(self.values)


def at_the_second_batch(child: Child) -> None:
    """One is committed, the next one planned."""
    assert child.said() == "reading", child.errors
    child.go_on()
    assert child.said() == "reading", child.errors


def plain(errors: str) -> bool:
    """Is there nobody's stack in it?"""
    return not any(sign in errors for sign in ("Traceback", "\tat ", "Exception in thread"))


# ---- in the middle of a batch --------------------------------------------------------------------------------


def kill_worker(child: Child) -> None:
    for worker in child.workers():
        worker.kill()


def kill_java(child: Child) -> None:
    java = child.java()
    assert java is not None
    java.kill()


def terminate(child: Child) -> None:
    child.process.send_signal(signal.SIGTERM)


def interrupt(child: Child) -> None:
    """As a terminal does."""
    os.killpg(child.process.pid, signal.SIGINT)


ENDINGS: dict[Callable[[Child], None], tuple[int, str]] = {
    kill_java: (1, "odradek: t: Spark's Java process has ended"),  # pyspark shows stacks of its own
    kill_worker: (1, "odradek: t: SparkException: Python worker exited unexpectedly (crashed)"),
    terminate: (143, "odradek: stopped; committed: t: 1 batches with "),
    interrupt: (130, "odradek: stopped; committed: t: 1 batches with "),
}


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("endings", [(kill_java, terminate), (kill_worker, interrupt)], ids=["java", "worker"])
def test_whatever_ends_a_batch_in_its_middle_is_told_and_the_next_run_goes_on(
    tmp_path: Path, endings: Sequence[Callable[[Child], None]]
) -> None:
    """A batch that is being read through a slow line that then stands still: a process is killed, and a signal
    comes."""
    with Kafka07Broker(config={"log.flush.interval": "1"}) as broker, FaultProxy(broker.host, broker.port) as line:
        workspace = Workspace(tmp_path, f'brokers = "1@{line.address}"')
        for end in endings:
            code, words = ENDINGS[end]
            append(broker, "t", workspace.more())
            before = workspace.batches
            with Child.reading(workspace.file) as child:
                at_the_second_batch(child)
                line.throttle(SLOWLY)
                enough = line.statistics().server_bytes + SLOWLY
                child.go_on()
                until(lambda enough=enough: line.statistics().server_bytes > enough, "bytes of the batch")  # type: ignore[misc]
                line.stall()
                end(child)
                if code == 1:  # tasks that are left read on, or wait a minute for their broker
                    line.heal()
                assert child.ended() == code, child.errors
                assert words in child.errors
                assert end is kill_java or plain(child.errors), child.errors
                assert list(child.scratch.iterdir()) == []
            line.heal()
            line.cut()
            assert workspace.batches == before + 1
            assert max(workspace.stored().values()) == 1
        workspace.run()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_ended_while_spark_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    with Kafka07Broker(config={"log.flush.interval": "1"}) as broker:
        workspace = Workspace(tmp_path, f'brokers = "1@{broker.address}"')
        append(broker, "t", workspace.more())
        with Child.reading(workspace.file) as child:
            assert child.said() == "reading", child.errors  # Spark is started for the first batch
            child.go_on()
            until(lambda: child.java() is not None, "Java")
            terminate(child)
            assert child.ended() == 143, child.errors
            assert "odradek: stopped; committed: nothing" in child.errors and plain(child.errors), child.errors
            assert list(child.scratch.iterdir()) == []


# ---- the cluster ---------------------------------------------------------------------------------------------


class Broker:
    """`odradek broker`: a process that is killed and started again with the same logs, at the same address."""

    def __init__(self, root: Path, zookeeper: ZooKeeperServer) -> None:
        self._root, self._zookeeper = root, zookeeper
        self.port, self._keeper = reserve_port()  # also while it is away
        self.start()

    def start(self) -> None:
        """As soon as ZooKeeper has forgotten the one that was killed."""
        until(lambda: not self.registered, "the end of its session")
        command = [sys.executable, "-m", "odradek.cli", "broker", "--json", "--until-eof", "--port", str(self.port)]
        command += ["--zookeeper", self._zookeeper.address, "--log-dir", str(self._root)]
        command += ["--set", "log.flush.interval=1", "--set", "zk.sessiontimeout.ms=2000"]
        self._process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": SOURCES}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "it has not started"

    @property
    def registered(self) -> bool:
        return "/brokers/ids/1" in self._zookeeper.tree()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        self.kill()
        self._keeper.close()


@contextmanager
def cluster(root: Path) -> Iterator[tuple[ZooKeeperServer, Broker]]:
    with ZooKeeperServer() as zookeeper:
        broker = Broker(root / "logs", zookeeper)
        try:
            yield zookeeper, broker
        finally:
            broker.close()


def confirmed(zookeeper: ZooKeeperServer, values: list[bytes]) -> None:
    async def send() -> None:
        async with od.connect(f"kafka07+zk://{zookeeper.address}") as k, k.producer() as out:
            await out.send_many("t", values)

    od.run(send)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("zookeeper_returns", [True, False], ids=["zookeeper", "broker"])
def test_a_run_outlives_its_zookeeper_and_its_broker_or_fails_and_the_next_one_is_exact(
    tmp_path: Path, zookeeper_returns: bool
) -> None:
    """ZooKeeper is asked by the driver alone, so that runs that lose it need no Spark. One of the two comes back during
    the run."""
    with cluster(tmp_path) as (zookeeper, broker):
        workspace = Workspace(tmp_path, f'zookeeper = "{zookeeper.address}"')
        for lost, comes_back in ((zookeeper, zookeeper_returns), (broker, not zookeeper_returns)):
            confirmed(zookeeper, workspace.more())
            options = [*(["here"] if lost is zookeeper else []), *([] if comes_back else ["10"])]
            with Child.reading(workspace.file, *options) as child:
                at_the_second_batch(child)
                lost.kill()
                child.go_on()
                if comes_back:
                    lost.start()
                while child.said():
                    child.go_on()
                code = child.ended()
                assert code == 0 or (code == 1 and not comes_back and plain(child.errors)), child.errors
                named = (
                    f"127.0.0.1:{broker.port}",
                    "no registered broker has it",
                )  # the latter once ZooKeeper has forgotten it
                assert lost is zookeeper or comes_back or any(text in child.errors for text in named), child.errors
            assert max(workspace.stored().values()) == 1
            if not comes_back:
                lost.start()
            until(lambda: broker.registered, "the broker in ZooKeeper")
            workspace.run()
