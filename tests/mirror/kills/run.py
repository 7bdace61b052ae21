"""One run: a source that is written to, a mirror that is killed, and the comparison of both sides."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from odradek.errors import OdradekError, ServerError
from odradek.mirror.config import MirrorConfig, load
from odradek.mirror.status import status
from odradek.mirror.verify import verify
from odradek.testing import KafkaBroker, KafkaCluster
from odradek.testing.kafka.releases import NEWEST
from odradek.testing.process import ServerProcess

from .directories import DeadSource
from .sources import PARTITIONS, Kafka07Source, KafkaSource, Rows, Source, messages_of

__all__ = ["Report", "differences", "run"]

REACHED_S = 240.0
"""Limit for a mirror to reach the end of the source once all runs (s)."""
ROOT = Path(__file__).parents[3]
START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.mirror.kills.mirror import main; main()"
NAME, TASKS = "kills", 2
FILE = """name = "{name}"
[source]
{source}
[target]
url = "kafka://{target}"
[topics]
include = {topics}
[run]
tasks = {tasks}
transaction_bytes = "64k"
transaction_seconds = 0.05
{more}
"""


@dataclass
class Report:
    """What a run did, and what was wrong."""

    source: str
    target: str
    seed: int
    records: int = 0
    seconds: float = 0.0
    ended: list[str] = field(default_factory=list)
    """Mirrors that could not begin, as a cluster could not be reached."""
    faults: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def line(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps({"ok": self.ok, **self.__dict__})


class _Mirror(ServerProcess):
    """A mirror that follows, as a process."""

    program = "mirror"

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def wait_ready(self, timeout: float = 0.0) -> None:
        """Do not wait: it may be killed at any time."""

    def _command(self) -> Sequence[str]:
        return [sys.executable, "-W", "ignore", "-c", START, str(self._file)]


def command(file: Path) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "odradek.cli", "mirror", "run", str(file), "--quiet"]


class _Run:
    def __init__(
        self, report: Report, source: Source, target: KafkaCluster, mirror: _Mirror, pause_s: float,
        show: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._report, self._source, self._target, self._mirror = report, source, target, mirror
        self._random, self._pause_s, self._show = random.Random(report.seed), pause_s, show

    def run(self, records: int, kills: int) -> None:
        """Write and break things."""
        self._source.write(records // (kills + 1))
        self._mirror.start()
        with ThreadPoolExecutor(1) as threads:
            for number in range(kills):
                writing = threads.submit(self._source.write, records // (kills + 1), 1.5 * self._pause_s)
                self._pause()
                self._fault("cut target", self._cut_target)
                self._fault("cut source", self._cut_source)
                self._fault("leader moved", self._move_leader)
                self._pause()
                self._kill(number)
                self._watch()
                writing.result()

    def _pause(self) -> None:
        time.sleep(self._random.uniform(0.0, self._pause_s))

    def _watch(self) -> None:
        """Start the mirror again if it has ended, which it does if it cannot connect when it begins."""
        if not self._mirror.running:
            log = self._mirror.log_tail(20_000)
            why = log.rpartition("\n")[2]
            known = why.startswith("odradek.errors.Unreachable: ") and "in open_clusters" in log
            (self._report.ended if known else self._report.problems).append(why if known else log)
            self._start_mirror()

    def _start_mirror(self) -> None:
        self._mirror.kill()
        self._mirror.start()

    # ---- the end --------------------------------------------------------------------------------------------

    async def end(self, file: Path) -> None:
        """Let the mirror reach the end, kill it, run it once more, and verify."""
        for broker in self._target.brokers:
            broker.proxy.heal()
        self._source.heal()
        config = load(file)
        await self._wait_for_end(config)
        self._mirror.kill()
        with anyio.move_on_after(REACHED_S) as limit:
            done = await anyio.run_process(command(file), check=False)
            if done.returncode:
                self._report.problems.append(f"the last run: {done.stderr.decode()}")
        if limit.cancelled_caught:
            self._report.problems.append("the last run does not end")
        verified = await verify(config)
        self._report.problems += [f"verify: {each}" for each in verified.partitions if not each.equal]

    async def _wait_for_end(self, config: MirrorConfig) -> None:
        lag: int | str | None = None
        with anyio.move_on_after(REACHED_S):
            while lag != 0:
                self._watch()
                try:
                    lag = (await status(config)).lag
                except OdradekError as error:
                    lag = str(error)
                await anyio.sleep(0.05)
        if lag != 0:
            self._report.problems.append(f"the mirror does not reach the end, {lag}: {self._mirror.log_tail()}")

    # ---- faults ---------------------------------------------------------------------------------------------

    def _fault(self, name: str, call: Callable[[], bool]) -> None:
        """Do it, half of the time."""
        if self._random.randrange(2) and call():
            self._report.faults[name] += 1

    def _broker(self) -> KafkaBroker:
        return self._random.choice(self._target.brokers)

    def _cut_target(self) -> bool:
        proxy = self._broker().proxy
        proxy.cut_after(**{self._random.choice(["client_bytes", "server_bytes"]): self._random.randrange(20_000)})
        proxy.cut()
        return True

    def _cut_source(self) -> bool:
        return self._source.cut(self._random.randrange(20_000))

    def _move_leader(self) -> bool:
        of_mirror = {f"odradek.mirror.{NAME}": TASKS, "__transaction_state": 4}
        topics = {**dict.fromkeys(self._source.topics, PARTITIONS), **of_mirror}
        topic, others = self._random.choice(list(topics)), self._target.brokers
        if len(others) == 1:
            return False
        partition = self._random.randrange(topics[topic])
        try:
            self._target.move_leader(topic, partition, self._random.choice(others))
        except (ServerError, OSError) as error:  # the topic is not there yet
            self._show(f"no leader moved: {error}")
            return False
        return True

    def _kill(self, number: int) -> None:
        """Kill the mirror, three times of five, or a broker of one side."""
        kind = ("mirror", "target", "source" if self._source.runs else "mirror", "mirror", "mirror")[number % 5]
        self._report.faults[f"{kind} killed"] += 1
        if kind == "mirror":
            self._watch()
            self._start_mirror()
        elif kind == "target":
            broker = self._broker()
            broker.kill()
            self._pause()
            broker.launch()
            broker.wait_ready()
        else:
            self._source.restart(self._random.uniform(0.0, self._pause_s))
        self._show(f"{sum(self._report.faults.values())} faults: {dict(self._report.faults)}")


def run(
    source: str,
    records: int,
    kills: int,
    seed: int,
    *,
    target: str | None = None,
    brokers: int = 3,
    pause_s: float = 4.0,
    logs: bool = False,
    show: Callable[[str], None] = lambda _: None,
) -> Report:
    """Write records to a source while a mirror copies them and is killed; compare both sides at the end.

    Args:
        source: 0.7 or a release from 0.8.1 on.
        records: How many are written.
        kills: How often the mirror, a broker of the target, or that of the source is killed.
        seed: Of what is random.
        target: Release of the target.
        brokers: Of the target.
        pause_s: Maximum time between faults (s).
        logs: Copy the log directories of a cluster that has died, which has written everything before.
        show: Called with what happens.
    """
    report, began = Report(source, target or NEWEST, seed), time.monotonic()
    config = {"min.insync.replicas": str(min(2, brokers)), "auto.create.topics.enable": "false"}
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="odradek-kills-") as folder:
        old: Source
        if logs:
            old = DeadSource(Path(folder), source, records, kills * (pause_s + 2.0), seed)
        else:
            old = Kafka07Source(stack, seed) if source == "0.7" else KafkaSource(stack, source, seed)
        new = stack.enter_context(KafkaCluster(report.target, brokers, proxied=True, config=config))
        file = Path(folder) / "mirror.toml"
        file.write_text(
            FILE.format(
                name=NAME, source=old.table, target=new.bootstrap, topics=list(old.topics), tasks=TASKS, more=old.limit
            )
        )
        mirror = stack.enter_context(_stopping(_Mirror(file)))
        one = _Run(report, old, new, mirror, pause_s, show)
        one.run(records, kills)
        show("the faults are over")
        anyio.run(one.end, file)
        direct = ",".join(f"{broker.host}:{broker.plaintext_port}" for broker in new.brokers)
        for topic in old.topics:
            wanted, copied = old.rows(topic), messages_of(direct, topic, old.fields)
            report.records += sum(map(len, wanted.values()))
            report.problems += [f"{topic}: {each}" for each in differences(wanted, copied)]
    report.seconds = round(time.monotonic() - began, 1)
    return report


class _stopping(ExitStack):
    """Stops a server at the end of a block that starts it itself."""

    def __init__(self, server: Any) -> None:
        super().__init__()
        self.callback(server.stop)
        self._server = server

    def __enter__(self) -> Any:
        return self._server


def differences(wanted: Rows, copied: Rows) -> list[str]:
    """Return how the rows of partitions differ."""
    problems = []
    for number, rows in wanted.items():
        copies = copied[number]
        if rows != copies:
            both = enumerate(zip(rows, copies, strict=False))
            same = next((n for n, (one, other) in both if one != other), min(len(rows), len(copies)))
            counts = f"{len(rows)} on the source, {len(copies)} on the target"
            missing, more = Counter(rows) - Counter(copies), Counter(copies) - Counter(rows)
            text = f"{missing.total()} missing, {more.total()} more, differ from record {same} on"
            problems.append(f"partition {number}: {counts}: {text}")
    return problems
