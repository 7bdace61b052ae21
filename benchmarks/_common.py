"""What the benchmarks share: cases measured in turns with their limits, processes for the other end.

A *limit* is work without odradek, measured right before the thing itself in the same run. Only the ratio of the two is
worth comparing between machines, days or branches: absolute rates change with both.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
from time import perf_counter, process_time
from types import TracebackType
from typing import NamedTuple, Self

import psutil

from _peer import CHUNK_BYTES, HEAD
from _results import Bar, Results

__all__ = ["Broker", "Case", "Stopwatch", "broker", "compare", "peer", "pull", "push", "spread"]

# ---- measuring ----------------------------------------------------------------------------------------------


class Stopwatch:
    """Seconds that pass inside of its block, and how many of them this process, and one other, computed."""

    def __init__(self, other: int | None = None) -> None:
        self.other = None if other is None else psutil.Process(other)

    def __enter__(self) -> Self:
        self.seconds, self.cpu, self.other_cpu = perf_counter(), process_time(), self._other_time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds, self.cpu = perf_counter() - self.seconds, process_time() - self.cpu
        self.other_cpu = self._other_time() - self.other_cpu

    def _other_time(self) -> float:
        return 0.0 if self.other is None else sum(self.other.cpu_times()[:2])


class Case(NamedTuple):
    """One line of a table.

    Args:
        name: What is measured.
        records, size: How many records it moves, and how many bytes they are on the wire.
        run: Does it once; checks itself that everything was moved.
        limit: Does what it is compared with.
        floor: The ratio that no machine has an excuse to stay below in every turn.
        goal: The ratio to reach; None: there is none.
    """

    name: str
    records: int
    size: int
    run: Callable[[], Stopwatch]
    limit: Callable[[], Stopwatch]
    floor: float
    goal: float | None = None


def compare(
    results: Results, title: str, note: str, cases: Sequence[Case], rounds: int, *, computing: bool = False
) -> None:
    """Run every case and its limit in turns, make a table and a chart of them, and check the ratios.

    `ratio` is the time of the limit over that of the thing itself, so 1 is as fast as the limit, and 2 twice as fast:
    the median of the turns, and how far the turns' ratios lie apart, in percent of it (with an odd one out on either
    side left away, from five turns on). `busy` and `broker` are the shares of the time in which this process and the
    broker's computed: far below 100 %, it waited for the other side, or for a core.

    With `computing` it is processor time that counts, for what does nothing but compute in one thread: then it does not
    matter who else uses the machine.
    """
    ratios: list[list[float]] = [[] for _ in cases]
    runs: list[list[Stopwatch]] = [[] for _ in cases]
    for _ in range(rounds):
        for number, case in enumerate(cases):
            limit, run = case.limit(), case.run()
            ratios[number].append(limit.cpu / run.cpu if computing else limit.seconds / run.seconds)
            runs[number].append(run)
    bars, rows = [], []
    for case, turned, watches in zip(cases, ratios, runs, strict=True):
        ratio = median(turned)
        goal = "" if case.goal is None else results.goal(f"{title}: {case.name}", ratio, case.goal)
        rows.append(_row(case, turned, watches, goal, median(w.cpu if computing else w.seconds for w in watches)))
        bars.append(Bar(case.name, ratio, case.goal))
        best = max(turned)  # others who use the machine can spoil a turn, but not make one better
        results.check(best >= case.floor, f"{case.name}: at best {best:.3g} of its limit, less than {case.floor:g}")
    results.table(title, note, ("", "records/s", "MB/s", "busy", "broker", "ratio", "spread", "goal"), rows)
    results.chart(title, "speed, times that of the limit", bars)


def _row(case: Case, ratios: list[float], runs: list[Stopwatch], goal: str, seconds: float) -> tuple[str, ...]:
    return (
        case.name,
        f"{case.records / seconds:,.0f}",
        f"{case.size / seconds / 1e6:,.1f}",
        f"{median(run.cpu / run.seconds for run in runs):.0%}",
        "-" if runs[0].other is None else f"{median(run.other_cpu / run.seconds for run in runs):.0%}",
        f"{median(ratios):.3g}",
        spread(ratios),
        goal,
    )


def spread(values: Sequence[float]) -> str:
    """How far they lie apart, in percent of their median; from five on without the lowest and the highest."""
    inner = sorted(values)[1:-1] if len(values) >= 5 else values
    return f"{(max(inner) - min(inner)) / median(values):.0%}"


# ---- the other end ------------------------------------------------------------------------------------------


@contextmanager
def peer() -> Iterator[int]:
    """The port of a `_peer` in a process of its own, so that it does not fight with us for the interpreter."""
    with Popen([sys.executable, str(Path(__file__).with_name("_peer.py"))], stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def push(port: int, size: int) -> Stopwatch:
    """So many bytes to the peer, over a blocking socket, until it has them."""
    chunk = memoryview(bytes(CHUNK_BYTES))
    with socket.create_connection(("127.0.0.1", port)) as bare:
        bare.sendall(HEAD.pack(size, 1))
        with Stopwatch() as watch:
            for start in range(0, size, CHUNK_BYTES):
                bare.sendall(chunk[: size - start])
            assert bare.recv(1)
    return watch


def pull(port: int, size: int) -> Stopwatch:
    """So many bytes from the peer, over a blocking socket, into a reused buffer."""
    chunk = bytearray(CHUNK_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as bare:
        bare.sendall(HEAD.pack(1, size))
        with Stopwatch() as watch:
            bare.sendall(b"1")
            while size > 0:
                received = bare.recv_into(chunk)
                assert received
                size -= received
    return watch


class Broker(NamedTuple):
    """The embedded broker, in a process of its own."""

    cluster: str
    address: tuple[str, int]
    log_dir: Path
    pid: int

    def appended(self, topic: str) -> int:
        """Bytes its log has of a topic."""
        return sum(file.stat().st_size for file in self._files(topic))

    def wipe(self, topic: str) -> None:
        """Give back what a topic's files take, of which nobody speaks to the broker any more: pages that were never
        used before cost a virtual machine several times as much to write to as used ones."""
        for file in self._files(topic):
            os.truncate(file, 0)

    def _files(self, topic: str) -> list[Path]:
        return list(self.log_dir.glob(f"{topic}-*/*.kafka"))


@contextmanager
def broker(config: Mapping[str, object], *, zookeeper: bool = False) -> Iterator[Broker]:
    """Start one, with keys of its server.properties, and end it with everything it wrote. It may open as many files as
    the system lets it."""
    command = [sys.executable, "-m", "odradek.cli", "broker", "--port", "0", "--json", "--until-eof"]
    command += ["--with-zookeeper"] if zookeeper else []
    command += [word for key, value in config.items() for word in ("--set", f"{key}={value}")]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            said = json.loads(process.stdout.readline())
            host, _, port = said["address"].rpartition(":")
            yield Broker(said["cluster"], (host, int(port)), Path(said["log_dir"]), said["pid"])
        finally:
            process.stdin.close()
            process.wait(300)  # ten thousand directories take a while to remove
