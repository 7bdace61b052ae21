"""What the benchmarks share: cases measured in turns with their limits, the table, processes for the other end.

A *limit* is the same work without odradek, measured right before it in the same run. Only the ratio of the two is worth
comparing between machines, days or branches: absolute rates change with both.
"""

from __future__ import annotations

import argparse
import json
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

from _peer import HEAD, PIECE_BYTES

__all__ = ["Broker", "Case", "Stopwatch", "broker", "compare", "peer", "pull", "push", "quick", "table"]


def quick(doc: str) -> bool:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs and is not far off")
    return bool(parser.parse_args().quick)


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
    """One line of the table.

    Args:
        name: What is measured.
        records, size: How many records it moves, and how many bytes they are on the wire.
        run: Does it once; checks itself that everything was moved.
        limit: Does the same without odradek.
        at_most: The ratio that no machine has an excuse for.
    """

    name: str
    records: int
    size: int
    run: Callable[[], Stopwatch]
    limit: Callable[[], Stopwatch]
    at_most: float


def compare(cases: Sequence[Case], turns: int) -> None:
    """Run every case and its limit in turns, print the table, and check the ratios.

    `ratio` is the time over that of the limit: the median of the turns, and how far the turns' ratios lie apart, in
    percent of it (with an odd one out on either side left away, from five turns on). `busy` and `broker` are the shares
    of the time in which this process and the broker's computed: far below 100 %, it waited for the other side, or for
    a core.
    """
    ratios: list[list[float]] = [[] for _ in cases]
    runs: list[list[Stopwatch]] = [[] for _ in cases]
    for _ in range(turns):
        for number, case in enumerate(cases):
            limit, run = case.limit(), case.run()
            ratios[number].append(run.seconds / limit.seconds)
            runs[number].append(run)
    rows = [_row(*line) for line in zip(cases, ratios, runs, strict=True)]
    table(("", "records/s", "MB/s", "busy", "broker", "ratio", "spread"), rows)
    for case, turned in zip(cases, ratios, strict=True):
        assert median(turned) <= case.at_most, f"{case.name}: {median(turned):.1f} times its limit"


def _row(case: Case, ratios: list[float], runs: list[Stopwatch]) -> tuple[str, ...]:
    seconds, ratio = median(run.seconds for run in runs), median(ratios)
    inner = sorted(ratios)[1:-1] if len(ratios) >= 5 else ratios
    return (
        case.name,
        f"{case.records / seconds:,.0f}",
        f"{case.size / seconds / 1e6:,.1f}",
        f"{median(run.cpu / run.seconds for run in runs):.0%}",
        "-" if runs[0].other is None else f"{median(run.other_cpu / run.seconds for run in runs):.0%}",
        f"{ratio:.3g}",
        f"{(max(inner) - min(inner)) / ratio:.0%}",
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print it: the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        first, *rest = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first, *(cell.strip().rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]))


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
    piece = memoryview(bytes(PIECE_BYTES))
    with socket.create_connection(("127.0.0.1", port)) as bare:
        bare.sendall(HEAD.pack(size, 1))
        with Stopwatch() as watch:
            for start in range(0, size, PIECE_BYTES):
                bare.sendall(piece[: size - start])
            assert bare.recv(1)
    return watch


def pull(port: int, size: int) -> Stopwatch:
    """So many bytes from the peer, over a blocking socket, into a reused buffer."""
    piece = bytearray(PIECE_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as bare:
        bare.sendall(HEAD.pack(1, size))
        with Stopwatch() as watch:
            bare.sendall(b"1")
            while size > 0:
                received = bare.recv_into(piece)
                assert received
                size -= received
    return watch


class Broker(NamedTuple):
    """The embedded broker, in a process of its own."""

    cluster: str
    log_dir: Path
    pid: int

    def appended(self, topic: str) -> int:
        """Bytes its log has of a topic."""
        return sum(file.stat().st_size for file in self.log_dir.glob(f"{topic}-*/*.kafka"))


@contextmanager
def broker(config: Mapping[str, object], *, zookeeper: bool = False) -> Iterator[Broker]:
    """Start one, with keys of its server.properties, and end it with everything it wrote."""
    command = [sys.executable, "-m", "odradek.cli", "broker", "--port", "0", "--json", "--until-eof"]
    command += ["--with-zookeeper"] if zookeeper else []
    command += [word for key, value in config.items() for word in ("--set", f"{key}={value}")]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            said = json.loads(process.stdout.readline())
            yield Broker(said["cluster"], Path(said["log_dir"]), said["pid"])
        finally:
            process.stdin.close()
            process.wait(30)
