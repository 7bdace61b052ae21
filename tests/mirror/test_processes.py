"""Several processes for one mirror, between an embedded broker of 0.7 and a real one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

import odradek as od
import odradek.mirror.processes as processes_module
from odradek.errors import BrokerError, ConfigError, ConnectionLost, NotWritten, OdradekError
from odradek.mirror.config import MirrorConfig, load
from odradek.mirror.errors import MirrorProcessFailed, RecordRefused
from odradek.mirror.lags import LagWatch
from odradek.mirror.limits import share_of
from odradek.mirror.processes import is_at_ends, run_processes
from odradek.mirror.run import Begun, MirrorResult, begin, run
from odradek.mirror.status import status
from odradek.mirror.stored import CopiedTopic, CopyProgress, CopyTarget, SourcePosition
from odradek.mirror.task import LostRange
from odradek.mirror.verify import verify
from odradek.mirror.worker import line_of, value_of
from odradek.testing import Kafka07Broker, KafkaBroker, MemoryCluster
from odradek.types import Position, TopicPartition

from ..loops import ASYNCIO, on
from ..topic_configs import alter_topic
from .mirrors import config_of, copied, opened, partition
from .test_copy import filled, run_mirror, until
from .test_real import written

pytestmark = pytest.mark.anyio
anyio_backend = on(ASYNCIO)

PARTITIONS = 4
FOLLOW = """
import logging, sys
import odradek as od
from odradek.mirror.config import load
from odradek.mirror.processes import run_processes
logging.basicConfig(level=logging.INFO)
od.run(lambda: run_processes(load(sys.argv[1]), 3, follow=True))
"""

BEGUN = Begun(
    True, "s", [CopiedTopic("t", "t", None, {partition("t"): CopyTarget(0, 1)})], {partition("t"): Position(5)}
)

LOST = LostRange(partition("t"), 3, 5)

# ---- decisions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "processes", "shares"),
    [
        ((None, None), 3, (None, None)),
        ((3000, None), 3, (1000, None)),
        ((100, 7), 2, (50, 3)),
        ((2, 1 << 30), 4, (1, 1 << 28)),
    ],
)
def test_limits_are_divided(limits: Sequence[int | None], processes: int, shares: Sequence[int | None]) -> None:
    config = config_of("t", run={"source_bytes_per_second": limits[0], "target_bytes_per_second": limits[1]})
    run = share_of(config, processes).run
    assert (run.source_bytes_per_second, run.target_bytes_per_second) == tuple(shares)
    assert run.model_copy(update=dict(config.run)) == config.run


@pytest.mark.parametrize(
    ("ends", "progress", "earliest", "reached"),
    [
        ({}, {}, {}, True),
        ({0: 5}, {0: 5}, {0: 0}, True),
        ({0: 5}, {0: 4}, {0: 0}, False),
        ({0: 5, 1: 3}, {0: 5}, {0: 0, 1: 0}, False),
        ({0: 5, 1: 3}, {0: 6, 1: 3}, {0: 0, 1: 0}, True),
        ({0: 5, 1: 0}, {0: 5}, {0: 0, 1: 0}, True),
        ({0: 5, 1: 7}, {0: 5}, {0: 0, 1: 7}, True),
        ({0: 0}, {}, {}, False),
    ],
)
def test_whether_the_tasks_of_others_are_at_their_ends(
    ends: Mapping[int, int], progress: Mapping[int, int], earliest: Mapping[int, int], reached: bool
) -> None:
    known = {partition("t", n): CopyProgress(SourcePosition(at)) for n, at in progress.items()}
    assert is_at_ends(_positions(ends), known, _positions(earliest)) is reached


def _positions(positions: Mapping[int, int]) -> dict[TopicPartition, Position]:
    return {partition("t", number): Position(at) for number, at in positions.items()}


@pytest.mark.parametrize(
    "value",
    [
        config_of("t", topics={"rename": {"t": "u"}}),
        ("error", MirrorProcessFailed("m", 3)),
        ("error", RecordRefused("t-0", "offset 3", NotWritten((), "no"), "do this")),
        ("finished", 3),
    ],
)
def test_values_pass_through_pipes(value: Any) -> None:
    line = line_of(value)
    assert line.index(b"\n") == len(line) - 1
    assert str(value_of(line)) == str(value)


# ---- processes -----------------------------------------------------------------------------------------------


class World:
    """A broker of 0.7 with a topic, and the file of a mirror of it."""

    def __init__(self, old: Kafka07Broker, kafka: KafkaBroker, folder: Path, name: str) -> None:
        self.old, self.topic, self.url = old, f"{name}.t", f"kafka07://1@{old.host}:{old.port}"
        more = f'[topics]\ninclude = ["{self.topic}"]\n[run]\ntransaction_bytes = 2000\ntransaction_seconds = 0.1\n'
        self.file = written(folder, name, self.url, kafka, more)
        self.config: MirrorConfig = load(self.file)

    async def append(self, values: Sequence[bytes]) -> None:
        async with od.connect(self.url) as k, k.producer(latency=0.05) as out:
            for number in range(PARTITIONS):
                to = od.TopicPartition(self.topic, number, 1)
                (await out.send_many(self.topic, values, partition=to)).check()
        self.old.flush()

    async def wait_for_end(self) -> None:
        with anyio.fail_after(120):
            while (await status(self.config)).lag != 0:  # noqa: ASYNC110 - of clusters that notify nobody
                await anyio.sleep(0.1)

    async def check(self, records: int) -> None:
        verified = await verify(self.config)
        assert verified.equal and sum(each.compared for each in verified.partitions) == records


async def test_processes_share_a_mirror(kafka: KafkaBroker, tmp_path: Path, name: str) -> None:
    counts: list[int] = []
    with Kafka07Broker(config={"num.partitions": str(PARTITIONS)}) as old:
        world = World(old, kafka, tmp_path, name)
        await world.append([b"%d" % n for n in range(300)])
        result = await run_processes(
            world.config, 2, committed=lambda each: counts.append(sum(copied.records for copied in each))
        )
        assert copied(result) == sum(counts) == 300 * PARTITIONS
        assert set(result.records) == {od.TopicPartition(world.topic, number, 1) for number in range(PARTITIONS)}
        assert result.bytes > 0 and result.lost == set()
        await world.check(300 * PARTITIONS)

        async with od.connect(f"kafka://{kafka.bootstrap}") as k:
            await alter_topic(k, world.topic, {"max.message.bytes": "1000"})
        await world.append([b"." * 5000])
        with pytest.raises(RecordRefused, match=r"the target does not take it: .* \(raise max.message.bytes of topic"):
            await run_processes(world.config, 1)


async def test_processes_that_are_killed(kafka: KafkaBroker, tmp_path: Path, name: str) -> None:
    with Kafka07Broker(config={"num.partitions": str(PARTITIONS)}) as old:
        world = World(old, kafka, tmp_path, name)
        await world.append([b"%d" % n for n in range(200)])
        parent = await anyio.open_process(
            [sys.executable, "-W", "ignore", "-c", FOLLOW, str(world.file)], stdin=subprocess.DEVNULL
        )
        assert parent.stderr is not None and parent.stdout is not None
        try:
            async with aclosing(parent.stdout):
                log = BufferedByteReceiveStream(parent.stderr)
                begun = [await _began(log) for _ in range(3)]
                await world.append([b"more %d" % n for n in range(200)])
                os.kill(begun[0], signal.SIGKILL)
                begun[0] = await _began(log)
                await world.wait_for_end()
                os.kill(begun[1], signal.SIGKILL)
                await world.append([b"again %d" % n for n in range(200)])
                parent.kill()
                await parent.wait()
                with anyio.fail_after(120), pytest.raises(anyio.IncompleteRead):
                    while True:  # the others have this pipe, too, and end by themselves
                        await log.receive_until(b"\n", 1 << 20)
        finally:
            if parent.returncode is None:
                parent.kill()
        await run(world.config)
        await world.check(600 * PARTITIONS)


async def _began(log: BufferedByteReceiveStream) -> int:
    """Return the id of the next process that begins."""
    with anyio.fail_after(120):
        while True:
            line = await log.receive_until(b"\n", 1 << 20)
            if match := re.search(rb"process (\d+) began", line):
                return int(match[1])


# ---- a process that ends, by a program in its place ------------------------------------------------------------


class Instead:
    """Programs that run in place of the processes of a mirror."""

    def __init__(self, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.starts = 0
        self._open, self._program = anyio.open_process, REPORT + program
        monkeypatch.setattr(anyio, "open_process", self._open_other)

    async def _open_other(self, command: Sequence[str], **options: Any) -> Any:
        self.starts += 1
        return await self._open([sys.executable, "-c", self._program, str(self.starts)], **options)

    async def run(self, config: MirrorConfig | None = None, clusters: Any = None, begun: Begun = BEGUN) -> MirrorResult:
        config = config or config_of("t", run={"refresh_seconds": 600})
        watch = LagWatch(config, clusters, follow=False)
        running = processes_module._Processes(config, clusters, begun, lambda _: None, watch)
        with anyio.fail_after(120):
            await running.run(1, b"work\n")
        return running.result


REPORT = """
import pickle, base64, os, signal, sys
from odradek.errors import *
from odradek.mirror.task import LostRange
from odradek.types import TopicPartition
assert sys.stdin.readline() == "work\\n"
first = sys.argv[1] == "1"
def report(*value):
    sys.stdout.buffer.write(base64.b64encode(pickle.dumps(value)) + b"\\n")
    sys.stdout.flush()
def lose():
    report("lost", {LostRange(TopicPartition("t", 0), 3, 5)})
"""


@pytest.mark.parametrize(
    ("program", "starts"),
    [
        ("report('finished', 1)\nsys.stdin.read()\nlose()", 1),
        ("if first: os.kill(os.getpid(), signal.SIGKILL)\nlose()\nreport('finished', 1)", 2),
        ("if first: sys.exit(143)\nlose()\nreport('finished', 1)", 2),
        ("if first: report('error', Unreachable('tcp', 'memory', 'no')); sys.exit(0)\n"
         "lose()\nreport('finished', 1)", 2),
    ],
)  # fmt: skip
async def test_what_a_process_tells(program: str, starts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    instead = Instead(program, monkeypatch)
    assert (await instead.run()).lost == {LOST}
    assert instead.starts == starts


@pytest.mark.parametrize(
    ("program", "error", "text"),
    [
        (
            "sys.exit(3)",
            MirrorProcessFailed,
            "mirror m: a process ended with the exit code 3; its standard",
        ),
        ("report('error', ConfigError('no'))\nsys.stdin.read()", ConfigError, "no"),
        ("report('error', BrokerError(29, 'TOPIC_AUTHORIZATION_FAILED'))", BrokerError, "TOPIC_AUTHORIZATION_FAILED"),
    ],
)
async def test_errors_of_a_process_end_all(
    program: str, error: type[OdradekError], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(error) as raised:
        await Instead(program, monkeypatch).run()
    assert text in str(raised.value)


async def test_a_process_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes_module, "END_S", 0.05)
    stuck = "report('finished', 1)\nimport time\ntime.sleep(1000)"
    instead = Instead(stuck, monkeypatch)
    await instead.run()
    assert instead.starts == 1


async def test_tasks_that_another_machine_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = filled({"t": 3}), MemoryCluster({})
    source.create_topic("empty")
    config = config_of("t", "empty", run={"refresh_seconds": 0.05, "tasks": 2})
    async with opened(source, target) as clusters, anyio.create_task_group() as group:
        begun = await begin(config, clusters, follow=False)
        instead, ended = Instead("sys.stdin.read()", monkeypatch), anyio.Event()

        async def wait() -> None:
            assert copied(await instead.run(config, clusters, begun)) == 0
            ended.set()

        group.start_soon(wait)
        await until(lambda: instead.starts == 1)
        target.fail("positions", ConnectionLost("memory", "reset", True))
        assert not ended.is_set()
        await run_mirror(source, target, config)
        await ended.wait()
    assert instead.starts == 1


async def test_a_partition_whose_broker_was_away_when_the_run_began(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = MemoryCluster({"t": 2}, brokers=2), MemoryCluster({})
    for number in range(2):
        source.append("t", [b"value"] * 5, partition=number)
    config = config_of("t", run={"refresh_seconds": 0.05})
    await run_mirror(source, target, config)
    source.stop_broker(1)
    async with opened(source, target) as clusters, anyio.create_task_group() as group:
        begun = await begin(config, clusters, follow=False)
        assert begun.ends is not None and len(begun.ends) == 1
        instead = Instead("sys.stdin.read()", monkeypatch)
        group.start_soon(instead.run, config, clusters, begun)
        await until(lambda: instead.starts == 1)
        source.start_broker(1)


NOTICES_LATE = """
import select
if not select.select([sys.stdin], [], [], 1.0)[0]:
    report("error", ConfigError("the source has changed"))
sys.stdin.read()
"""


@pytest.mark.parametrize("recreated", [True, False])
async def test_a_source_that_ends_before_what_was_copied_is_not_at_its_end(
    monkeypatch: pytest.MonkeyPatch, *, recreated: bool
) -> None:
    source, target = filled({"t": 1}), MemoryCluster({})
    config = config_of("t", run={"refresh_seconds": 0.02})
    await run_mirror(source, target, config)
    if recreated:
        source.recreate_topic("t")
    else:
        source.truncate_log(partition("t"), 20)
    async with opened(source, target) as clusters:
        begun = await begin(config, clusters, follow=False)
        with pytest.raises(ConfigError, match="the source has changed"):
            await Instead(NOTICES_LATE, monkeypatch).run(config, clusters, begun)


async def test_nothing_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    instead = Instead("", monkeypatch)
    await instead.run(begun=BEGUN._replace(copied=()))
    assert instead.starts == 0


async def test_a_number_of_processes_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match="processes=0: must be positive"):
        await run_processes(config_of("t"), 0)
