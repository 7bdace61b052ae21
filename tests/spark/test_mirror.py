"""The tasks of a mirror on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from uuid import uuid4

import anyio
import psutil
import pytest
from pyspark.sql import SparkSession

import odradek as od
from odradek.errors import ConfigError, Fenced, OdradekError
from odradek.mirror.config import MirrorConfig, load
from odradek.mirror.errors import RecordRefused
from odradek.mirror.run import Begun, MirrorResult
from odradek.mirror.spark import SparkFailed, _add, _check, _TaskEnd, run_on_spark
from odradek.mirror.status import status
from odradek.mirror.stored import CopyProgress, SourcePosition
from odradek.mirror.task import CopiedRecords, LostRange
from odradek.mirror.verify import verify
from odradek.testing import Kafka07Broker, KafkaBroker
from odradek.types import Position, TopicPartition

from ..mirror.mirrors import config_of
from .child import until

RECORDS, SIZE = 2000, 50
ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


@dataclass
class World:
    """A topic of 0.7 with two partitions, and a mirror of it."""

    old: Kafka07Broker
    target: str
    folder: Path
    topic: str

    def config(self, more: str = "") -> MirrorConfig:
        file = self.folder / "mirror.toml"
        file.write_text(
            f"""name = "{self.topic}"
source = {{url = "{self.source}"}}
target = {{url = "{self.target}"}}
topics = {{include = ["{self.topic}"]}}
[run]
tasks = 2
transaction_bytes = 2000
{more}
"""
        )
        return load(file)

    @property
    def source(self) -> str:
        return f"kafka07://1@{self.old.host}:{self.old.port}"

    def write(self, *values: bytes) -> None:
        """Write the values to both partitions."""

        async def send() -> None:
            async with od.connect(self.source) as k, k.producer() as out:
                for number in range(2):
                    where = TopicPartition(self.topic, number, 1)
                    (await out.send_many(self.topic, list(values), partition=where)).check()

        anyio.run(send)
        self.old.flush()

    def copied(self) -> int:
        """Return how many records are there; 0 before there is a mirror."""
        with suppress(OdradekError):
            return sum(each.records for each in anyio.run(status, self.config()).partitions)
        return 0

    def copying(self) -> list[psutil.Process]:
        """Return Spark's Python processes that are connected to the old broker."""
        return [each for each in psutil.Process().children(recursive=True) if self._reads(each)]

    def _reads(self, process: psutil.Process) -> bool:
        try:
            return any(each.raddr and each.raddr.port == self.old.port for each in process.net_connections("tcp"))
        except psutil.Error:  # it has just ended
            return False


@pytest.fixture
def world(odradek_kafka: KafkaBroker, tmp_path: Path) -> Iterator[World]:
    with Kafka07Broker(config={"num.partitions": "2"}) as old:
        yield World(old, f"kafka://{odradek_kafka.bootstrap}", tmp_path, f"m-{uuid4().hex[:8]}")


def test_what_a_killed_python_process_had_committed_is_not_copied_again(spark: SparkSession, world: World) -> None:
    world.write(*(b"%05d" % number + bytes(SIZE - 5) for number in range(RECORDS)))
    slow = world.config('source_bytes_per_second = "20k"')  # ten seconds
    raised: list[BaseException] = []

    def copy() -> None:
        try:
            run_on_spark(slow, spark)
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=copy)
    thread.start()
    until(lambda: world.copied() and world.copying(), "a task that copies")
    for process in world.copying():
        process.kill()
    thread.join()
    assert [type(error) for error in raised] == [SparkFailed]
    assert "Python worker exited unexpectedly" in str(raised[0])
    before, noted = world.copied(), list[CopiedRecords]()
    assert 0 < before < 2 * RECORDS
    result = run_on_spark(world.config(), spark, committed=noted.extend)
    assert sum(result.records.values()) == sum(each.records for each in noted) == 2 * RECORDS - before
    assert result.bytes == SIZE * (2 * RECORDS - before)
    verified = anyio.run(verify, world.config())
    assert [each.equal for each in verified.partitions] == [True, True]


def test_an_error_that_does_not_pass_is_raised_as_it_is_elsewhere(spark: SparkSession, world: World) -> None:
    world.write(b"small", b"." * 5000)

    async def make() -> None:
        async with od.connect(world.target) as k:
            limits = {"max.message.bytes": "1000"}
            (await k.admin.create_topics({world.topic: 2}, config=limits)).check()

    anyio.run(make)
    with pytest.raises(RecordRefused, match=r"raise max\.message\.bytes"):
        run_on_spark(world.config(), spark)


def test_what_all_attempts_have_copied_is_counted() -> None:
    result, lost = MirrorResult(), LostRange(ONE, 3, 5)
    progress = {
        partition: CopyProgress(SourcePosition(at), records=records)
        for partition, at, records in ((ONE, 12, 10), (TWO, 7, 7))
    }
    end = _TaskEnd(progress, {ONE: 30}, {lost}, 2.5)
    begun = Begun(True, "c", (), {ONE: Position(12), TWO: Position(7)})
    assert _add(result, end, begun, {ONE: 4, TWO: 7}) == [CopiedRecords(ONE, 6, 30, 12, 12, None, 2.5)]
    away = begun._replace(ends={TWO: Position(7)})  # when the run began
    assert _add(MirrorResult(), end, away, {ONE: 4, TWO: 7}) == [CopiedRecords(ONE, 6, 30, 12, None, None, 2.5)]
    assert result == MirrorResult({ONE: 6}, 30, {lost})


def test_a_task_that_was_fenced_ends_the_run() -> None:
    with pytest.raises(Fenced):
        ended = _TaskEnd({}, {}, set(), 0.0, Fenced("task 0", "another run"))
        _add(MirrorResult(), ended, Begun(True, "c", (), {}), {})


@pytest.mark.parametrize(
    ("logs", "speculates", "master", "why"),
    [
        (False, True, "spark://host:7077", r"spark\.speculation: must be false"),
        (True, False, "spark://host:7077", r"source\.logs: only on one machine"),
        (True, False, None, r"source\.logs: only on one machine"),
    ],
)
def test_what_would_be_wrong_is_refused(logs: bool, speculates: bool, master: str | None, why: str) -> None:
    keys = {"source": {"logs": ["/logs"]}} if logs else {}
    config = config_of("t", **keys)
    with pytest.raises(ConfigError, match=why):
        _check(config, speculates, master)
    _check(config, False, "local[2]")
