"""What benchmarks of Spark share: logs, the same rows as Arrow batches, processor time and memory of all processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import psutil
import pyarrow as pa

from _common import Stopwatch
from odradek import segments
from odradek.ranges.projection import COLUMNS, Projection, join_small
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

__all__ = ["FLAT", "PARTITIONS", "Peaks", "TreeStopwatch", "peaks", "write_batches", "write_logs"]

PARTITIONS = 4
FLAT = 1.15
"""Greatest ratio of memory with a large and a small backlog that counts as flat."""

TOGETHER = 200
"""Messages that are compressed together."""


class TreeStopwatch(Stopwatch):
    """Measures the processor time of this process and all it has started: Spark's Java and its Python workers.

    Args:
        other: A process that is started by this one and does not count: the broker.
    """

    def __enter__(self) -> Self:
        super().__enter__()
        self._before = self._times()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        after = self._times()
        # A Python worker that ended meanwhile is in nobody's times: PySpark's daemon ignores SIGCHLD.
        self.cpu = sum(after.values()) - sum(self._before[process] for process in self._before.keys() & after.keys())

    def _times(self) -> dict[psutil.Process, float]:
        """Return the processor time (s) of each process, with that of its children that it has waited for."""
        root, times = psutil.Process(), {}
        for process in (root, *root.children(recursive=True)):
            if self.other is None or process.pid != self.other.pid:
                with suppress(psutil.Error):
                    times[process] = sum(process.cpu_times()[:4])
        return times


def write_logs(
    log_dir: Path,
    topic: str,
    rows: int,
    value: Callable[[int], bytes],
    compression: CompressionType = CompressionType.NONE,
    partitions: int = PARTITIONS,
) -> int:
    """Write logs with the values of 0, 1, 2..., as a broker has them. Return the bytes of all values."""
    size = 0
    for partition in range(partitions):
        folder = log_dir / f"{topic}-{partition}"
        folder.mkdir(parents=True)
        with (folder / f"{0:020}.kafka").open("wb") as file:
            for first in range(partition, rows, partitions * TOGETHER):
                values = [
                    value(number) for number in range(first, min(rows, first + partitions * TOGETHER), partitions)
                ]
                size += sum(map(len, values))
                file.write(encode_set(values, compression))
    return size


def write_batches(log_dir: Path, topic: str, folder: Path) -> None:
    """Write the batches that the data source yields of a topic."""
    folder.mkdir()
    projection = Projection(COLUMNS)
    for log in segments.logs(log_dir):
        if log.partition.topic == topic:
            named = log.partition._replace(broker=1)
            made = (one for batch in log.batches() for one in projection.batches(named, batch.columns))
            with pa.ipc.new_file(str(folder / f"{named.partition}.arrow"), projection.schema) as file:
                for batch in join_small(made):
                    file.write_batch(batch)


class Peaks(NamedTuple):
    """The largest resident sets (bytes) of one Python worker of Spark, and of its Java."""

    worker: int = 0
    java: int = 0


def resident() -> Peaks:
    peaks = Peaks()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            size = process.memory_info().rss
            if process.name() == "java":
                peaks = peaks._replace(java=max(peaks.java, size))
            elif "pyspark" in " ".join(process.cmdline()):
                peaks = peaks._replace(worker=max(peaks.worker, size))
    return peaks


@contextmanager
def peaks() -> Iterator[list[Peaks]]:
    """What is resident again and again, while the block runs."""
    peaks, done = [Peaks()], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            peaks.append(resident())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()
