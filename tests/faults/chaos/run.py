"""One run: brokers, workers, faults, and what must hold afterwards."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odradek.errors import ServerError
from odradek.testing import KafkaCluster
from odradek.testing.kafka.releases import ZOOKEEPER, release

from .checks import check_group, check_outputs, check_produced
from .logs import committed_positions, end_positions, stored_records
from .tracks import PROTOCOL_VERSIONS, Tracks
from .workers import Worker

__all__ = ["Report", "run"]

INPUT, OUTPUT, PARTITIONS = "input", "output", 6
SETTINGS = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",  # the default before 0.11 loses what was acknowledged
    "replica.lag.time.max.ms": "5000",
    "log.segment.bytes": str(16 << 20),
    "offsets.commit.timeout.ms": "5000",
}
LONG_SESSION = {"zookeeper.session.timeout.ms": "30000"}
"""For 0.11 to 2.4.0, longer than a broker is paused: where its session expires and it loads the transactions of a
partition a second time, it remains in COORDINATOR_LOAD_IN_PROGRESS for ever (KAFKA-9307)."""
COMPLETE_S = 120.0
"""Limit for a group to reach the ends of the logs, once all runs and passes again (s)."""
PROGRESS_S = 30.0


@dataclass
class Report:
    """What a run did, and what was wrong."""

    kafka: str
    mode: str
    seed: int
    minutes: float
    upgrade_to: str | None = None
    seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    faults_not_possible: dict[str, int] = field(default_factory=dict)
    produced: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    transactions: dict[str, Any] = field(default_factory=dict)
    foreign_ended: dict[str, int] = field(default_factory=dict)
    """Members of other clients -> how often they ended by themselves."""
    complete_after_s: dict[str, float] = field(default_factory=dict)
    """Group -> how long after the end of all faults and records it reached the ends of the logs (s)."""
    memory_mb: dict[str, int] = field(default_factory=dict)
    """Name of a worker -> the most resident memory that was seen (MB)."""
    problems: list[str] = field(default_factory=list)
    kept: str = ""

    @property
    def ok(self) -> bool:
        return not self.problems

    def line(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps({"ok": self.ok, **self.__dict__})


@dataclass(frozen=True)
class _Group:
    """A group and its members. `foreign`: those of other clients."""

    name: str
    members: Sequence[Worker]
    foreign: Sequence[Worker] = ()
    transforms: bool = False

    @property
    def workers(self) -> list[Worker]:
        return [*self.members, *self.foreign]


class _Run:
    def __init__(self, report: Report, cluster: KafkaCluster, directory: Path, rate: int) -> None:
        self._report, self._cluster, self._directory = report, cluster, directory
        number = release(report.kafka).number
        self._idempotent = number >= (0, 11)
        self._direct = ",".join(f"{broker.host}:{broker.plaintext_port}" for broker in cluster.brokers)
        self._producer = self._worker("producer", "produce", topic=INPUT, rate=rate)
        self._groups = self._all_groups(number)
        self._shown = time.monotonic()

    # ---- workers --------------------------------------------------------------------------------------------

    def _worker(self, name: str, role: str, **arguments: Any) -> Worker:
        return Worker(name, role, self._directory, bootstrap=self._cluster.bootstrap, **arguments)

    def _all_groups(self, number: tuple[int, ...]) -> list[_Group]:
        strategy, classic = "partition.assignment.strategy", {"group_protocol": "classic"}
        cooperative = {**classic, "assignors": ["cooperative-sticky"]}
        aiokafka = self._worker("classic-aiokafka", "aiokafka", topic=INPUT, group="classic")
        groups = [
            self._group("classic", ("batches", "handler"), classic, {strategy: "range"}, aiokafka),
            self._group("cooperative", ("batches", "record"), cooperative, {strategy: "cooperative-sticky"}),
        ]
        newest = {"group_protocol": "consumer"} if number >= (4,) else classic
        if newest is not classic:
            groups.append(self._group("consumer", ("batches", "record"), newest, {"group.protocol": "consumer"}))
        if self._idempotent:
            # Before 2.5 brokers cannot refuse the positions of a member that lost its partitions (KIP-447).
            size = 2 if number >= (2, 5) else 1
            services = [self._service(f"transform-{n}", {"group": "transform", **newest}) for n in range(size)]
            groups.append(_Group("transform", services, transforms=True))
        return groups

    def _group(
        self, name: str, ways: Sequence[str], ours: dict[str, Any], librdkafka: dict[str, str], *others: Worker
    ) -> _Group:
        """Make a group with a member for each way to read, one of librdkafka, and others."""
        members = [
            self._worker(f"{name}-{way}", "odradek", topic=INPUT, way=way, options={"group": name, **ours})
            for way in ways
        ]
        options = {"group.id": name, **librdkafka}
        return _Group(
            name, members, [self._worker(f"{name}-librdkafka", "librdkafka", topic=INPUT, options=options), *others]
        )

    def _service(self, name: str, options: dict[str, Any]) -> Worker:
        return self._worker(name, "transform", source=INPUT, target=OUTPUT, transactional_id=name, options=options)

    @property
    def _workers(self) -> list[Worker]:
        return [self._producer, *(worker for group in self._groups for worker in group.workers)]

    # ---- the course of a run --------------------------------------------------------------------------------

    def run(self, show: Callable[[str], None]) -> None:
        """Start, break things, wait until all is well again, and compare."""
        report, topics = self._report, {INPUT: PARTITIONS}
        if self._idempotent:
            topics[OUTPUT] = PARTITIONS
        for topic in topics:
            self._cluster.create_topic(topic, PARTITIONS)
        try:
            for worker in self._workers:
                worker.start()
            self._break_things(topics, show)
            self._end_workers(show)
        finally:
            for worker in self._workers:
                worker.kill()
        show("the logs are compared with the journals")
        self._compare()
        for result in (report.produced, report.transactions, *report.groups.values()):
            report.problems += result.pop("problems", [])

    def _break_things(self, topics: dict[str, int], show: Callable[[str], None]) -> None:
        of_brokers = {"__consumer_offsets": 4, **({"__transaction_state": 4} if self._idempotent else {})}
        transforms = [worker for group in self._groups if group.transforms for worker in group.workers]
        members = [worker for group in self._groups if not group.transforms for worker in group.workers]
        log = self._directory / "faults.log"
        tracks = Tracks(self._cluster, topics | of_brokers, transforms, members, log, self._report.upgrade_to)
        try:
            tracks.run(self._report.seed, 60 * self._report.minutes, lambda: self._watch(tracks, show))
        finally:
            self._report.faults, self._report.faults_not_possible = dict(tracks.done), dict(tracks.failed)
            self._report.problems += tracks.problems

    def _watch(self, tracks: Tracks, show: Callable[[str], None]) -> None:
        """Start workers again that ended by themselves, which is a problem."""
        for worker in self._workers:
            if (code := worker.crashed) is not None:
                if worker.foreign:
                    self._report.foreign_ended[worker.name] = self._report.foreign_ended.get(worker.name, 0) + 1
                else:
                    self._problem(f"{worker.name} ended by itself with {code}: {worker.log_path}")
                worker.start()
            if (memory := worker.memory_mb) > self._report.memory_mb.get(worker.name, 0):
                self._report.memory_mb[worker.name] = memory
        if time.monotonic() > self._shown + PROGRESS_S:
            self._shown = time.monotonic()
            show(f"{tracks.done.total()} faults: {dict(tracks.done)}")

    def _problem(self, text: str) -> None:
        self._report.problems.append(text)

    def _end_workers(self, show: Callable[[str], None]) -> None:
        """End the producer, wait for the groups, with members of other clients at first, then end the members."""
        show("the faults are over: the producer ends")
        self._leave([self._producer])
        show("the groups go on to the end")
        ends = end_positions(self._direct, INPUT, PARTITIONS)
        behind = self._wait_for_groups(ends, self._groups)
        if behind:
            self._leave([worker for group in self._groups for worker in group.foreign])
            for group in self._wait_for_groups(ends, behind):
                positions = committed_positions(self._direct, group.name, INPUT, PARTITIONS)
                self._problem(f"group {group.name} stays at {positions}, the logs end at {ends}")
        show("the members leave")
        self._leave(self._workers)

    def _wait_for_groups(self, ends: Mapping[int, int], groups: Sequence[_Group]) -> list[_Group]:
        """Return the groups that do not reach the ends in time."""
        began, behind = time.monotonic(), list(groups)
        while behind and time.monotonic() < began + COMPLETE_S:
            time.sleep(1)
            for group in list(behind):
                if committed_positions(self._direct, group.name, INPUT, PARTITIONS) == ends:
                    behind.remove(group)
                    self._report.complete_after_s[group.name] = round(time.monotonic() - began, 1)
        return behind

    def _leave(self, workers: Sequence[Worker]) -> None:
        with ThreadPoolExecutor(len(workers) or 1) as threads:
            self._report.problems += filter(None, threads.map(Worker.leave, workers))

    def _compare(self) -> None:
        report = self._report
        ends = end_positions(self._direct, INPUT, PARTITIONS)
        journals = {self._producer.name: self._producer.journal}
        log = stored_records(self._direct, INPUT, ends, "read_uncommitted")
        report.produced = check_produced(journals, log, idempotent=self._idempotent).as_dict()
        if report.produced["in_log"] != sum(ends.values()):
            self._problem(f"the log has {report.produced['in_log']} records, and ends at {ends}")
        for group in self._groups:
            journals = {worker.name: worker.journal for worker in group.workers}
            if group.transforms:
                outputs = stored_records(
                    self._direct, OUTPUT, end_positions(self._direct, OUTPUT, PARTITIONS), "read_committed"
                )
                report.transactions = check_outputs(journals, outputs, ends).as_dict()
            else:
                report.groups[group.name] = check_group(journals, ends).as_dict()


@contextmanager
def _directory(report: Report) -> Iterator[Path]:
    """A directory for the journals and logs, which stays if the run failed."""
    path = Path(tempfile.mkdtemp(prefix="odradek-chaos-"))
    try:
        yield path
    except BaseException:
        report.kept = str(path)
        raise
    if report.ok:
        shutil.rmtree(path, ignore_errors=True)
    else:
        report.kept = str(path)


def run(
    kafka: str,
    minutes: float,
    seed: int,
    *,
    upgrade_to: str | None = None,
    mode: str | None = None,
    rate: int = 400,
    show: Callable[[str], None],
) -> Report:
    """Run on three brokers of a release (0.10.2 or later), and return what happened.

    Args:
        minutes: How long there are faults; starting and comparing take a minute or two more, at most ten.
        seed: Chooses the faults.
        upgrade_to: A newer release that has the same mode, to which the brokers are upgraded one by one.
        mode: `zookeeper` or `kraft`, where the release has both.
        rate: Records to send in a second.
        show: Is given a line of progress now and then.
    """
    number = release(kafka).number
    if number < (0, 10, 2):
        raise ServerError(f"Kafka {kafka}: from 0.10.2 on, where brokers reach each other without the proxies")
    began = time.monotonic()
    settings = SETTINGS | (LONG_SESSION if (0, 11) <= number < (2, 4, 1) else {})
    mode = mode or release(kafka).modes[0]
    if upgrade_to is not None and mode == ZOOKEEPER:
        settings |= dict.fromkeys(PROTOCOL_VERSIONS, kafka.rpartition(".")[0])
    with ExitStack() as stack:
        cluster = KafkaCluster(kafka, 3, mode=mode, config=settings, proxied=True)
        report = Report(kafka, mode, seed, minutes, upgrade_to)
        directory = stack.enter_context(_directory(report))
        stack.enter_context(cluster)
        show(f"{cluster!r} seed {seed}: {directory}")
        try:
            _Run(report, cluster, directory, rate).run(show)
        finally:
            if report.problems:
                _copy_logs(cluster, directory)
        report.seconds = round(time.monotonic() - began, 1)
    return report


def _copy_logs(cluster: KafkaCluster, directory: Path) -> None:
    for broker in cluster.brokers:
        with suppress(OSError):
            shutil.copyfile(broker.log_path, directory / f"broker-{broker.broker_id}.log")
