"""Several processes for one mirror, here and on other machines: members of a group on the target share its tasks."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from random import random
from typing import Any

import anyio
from anyio.abc import Process, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from odradek.errors import ConfigError, OdradekError
from odradek.io.gather import background_tasks
from odradek.io.observation import observer_calls
from odradek.mirror.clusters import PAUSES, Clusters, open_clusters, read_progress
from odradek.mirror.config import MirrorConfig
from odradek.mirror.errors import MirrorProcessFailed
from odradek.mirror.lags import LagWatch
from odradek.mirror.limits import share_of
from odradek.mirror.run import Begun, MirrorResult, begin
from odradek.mirror.stored import CopyProgress
from odradek.mirror.task import CopiedRecords
from odradek.mirror.worker import Work, line_of, value_of
from odradek.observe import MirrorLag, Observer
from odradek.types import Position, TopicPartition

__all__ = ["run_processes"]

log = logging.getLogger(__name__)

END_S = 40.0
"""Time in which a process has to end in order before it is killed (s)."""
MAX_LINE = 1 << 26
"""Size of the longest message of a process (bytes)."""
KILLED = 128
"""Exit codes above are those of processes that a signal has ended in order."""


async def run_processes(
    config: MirrorConfig,
    processes: int,
    *,
    follow: bool = False,
    committed: Callable[[Sequence[CopiedRecords]], object] = lambda _: None,
    lags: Callable[[Sequence[MirrorLag]], object] | None = None,
    observer: Observer | None = None,
) -> MirrorResult:
    """Do what `run` does in several processes, which share the tasks (`run.tasks`) as members of the group
    `odradek-mirror-NAME` on the target.

    Other machines may do the same at the same time: their processes are members of the same group. A process that is
    killed is started again; its tasks are the others' once its session has ended, after half a minute. The rate limits
    are those of this call: each process has its part.

    Args:
        config: The file.
        processes: How many; more than there are tasks have nothing to do.
        follow: See `run`. Without it all tasks have to reach their ends, also those of other machines.
        committed: Called after each transaction of these processes with what was committed.
        lags: See `run`.
        observer: Told of the transactions and the lag of the mirror; not of what the processes do on the clusters.

    Returns:
        The records that these processes have committed; those of a transaction are missing after which the process was
        killed before it had told.

    Raises:
        ConfigError: `processes` is not positive.
        MirrorProcessFailed: A process ended for an unexpected reason.
        OdradekError: As `run`.

    Cancellation: safe; all processes end their transactions and leave the group.
    """
    if processes < 1:
        raise ConfigError(f"processes={processes}: must be positive")
    async with open_clusters(config) as clusters, background_tasks() as group:
        begun = await begin(config, clusters, follow=follow, joins=True)
        watch = LagWatch(config, clusters.source, follow=follow, calls=observer_calls(observer), lags=lags)
        group.start_soon(watch.run)
        running = _Processes(config, clusters, begun, committed, watch)
        await running.run(processes, line_of(Work(share_of(config, processes), begun, follow)))
        return running.result


class _Processes:
    """Processes that copy.

    Args:
        config: The file.
        clusters: Open.
        begun: The run.
        committed: See `run_processes`.
        watch: Told how far tasks are.
    """

    def __init__(
        self,
        config: MirrorConfig,
        clusters: Clusters,
        begun: Begun,
        committed: Callable[[Sequence[CopiedRecords]], object],
        watch: LagWatch,
    ) -> None:
        self._config, self._clusters, self._begun = config, clusters, begun
        self._committed, self._watch = committed, watch
        self._unfinished = set(begun.tasks)
        self._error: OdradekError | None = None
        self._group: TaskGroup
        self.result = MirrorResult()

    async def run(self, processes: int, work: bytes) -> None:
        """Run until all tasks are finished; the first error ends all, and is raised."""
        if not self._unfinished and self._begun.ends is not None:
            return
        async with anyio.create_task_group() as self._group:
            for _ in range(processes):
                self._group.start_soon(self._keep_running, work)
            if self._begun.ends is not None:
                self._group.start_soon(self._watch_others, self._begun.ends)
        if self._error is not None:
            raise self._error

    def _take(self, kind: str, value: Any) -> None:
        """Take what a process has told."""
        match kind:
            case "begun":
                self._watch.begun(value)
            case "committed":
                self.result.add(value)
                self._watch.committed(value)
                self._committed(value)
            case "lost":
                self.result.lost.update(value)
            case "finished":
                self._finish(value)
            case _:
                self._fail(value)

    def _finish(self, task: int) -> None:
        self._unfinished.discard(task)
        if not self._unfinished:
            self._group.cancel_scope.cancel()

    def _fail(self, error: OdradekError) -> None:
        if error.retriable:
            log.warning("mirror %s: a process begins again: %s", self._config.name, error)
            return
        self._error = self._error or error
        self._group.cancel_scope.cancel()

    # ---- one process ---------------------------------------------------------------------------------------------

    async def _keep_running(self, work: bytes) -> None:
        """Run a process, and another one whenever it is killed."""
        failures = 0
        while True:
            code = await self._run_process(work)
            if 0 < code < KILLED:
                self._fail(MirrorProcessFailed(self._config.name, code))
            log.warning("mirror %s: a process ended with code %d, and is started again", self._config.name, code)
            await anyio.sleep(PAUSES.delay(failures, random()))
            failures += 1

    async def _run_process(self, work: bytes) -> int:
        """Run it until it ends; return its exit code, negative if a signal has killed it."""
        process = await anyio.open_process(
            [sys.executable, "-m", "odradek.mirror.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            start_new_session=True,  # Ctrl-C is for this process, which ends them in order
        )
        log.info("mirror %s: process %d began", self._config.name, process.pid)
        assert process.stdin is not None and process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        try:
            with suppress(anyio.BrokenResourceError):
                await process.stdin.send(work)
            await self._listen(lines)
        finally:
            with anyio.CancelScope(shield=True):
                with anyio.move_on_after(END_S):
                    await process.stdin.aclose()
                    await self._listen(lines)
                    await process.wait()
                await _kill(process)
        return process.returncode or 0

    async def _listen(self, lines: BufferedByteReceiveStream) -> None:
        """Take all that a process tells until it ends."""
        with suppress(anyio.IncompleteRead, anyio.BrokenResourceError):
            while True:
                self._take(*value_of(await lines.receive_until(b"\n", MAX_LINE)))

    # ---- other machines ------------------------------------------------------------------------------------------

    async def _watch_others(self, ends: Mapping[TopicPartition, Position]) -> None:
        """Look how far tasks are that processes of other machines copy."""
        while True:
            await anyio.sleep(self._config.run.refresh_seconds)
            try:
                for task in sorted(self._unfinished):
                    if await self._is_finished(task, ends):
                        self._finish(task)
            except OdradekError as error:
                log.warning("mirror %s: the progress of others was not read: %s", self._config.name, error)

    async def _is_finished(self, task: int, ends: Mapping[TopicPartition, Position]) -> bool:
        mine = {p for topic in self._begun.copied for p, to in topic.partitions.items() if to.task == task}
        progress = (await read_progress(self._config, self._clusters.target, task)).progress_of(task)
        logs = await self._clusters.source.extents(mine, read_committed=self._config.topics.read_committed)
        if not all(progress[p].next.is_in(logs[p]) for p in progress.keys() & logs.keys()):
            return False  # its source was made again, or cut, which its own process will say
        # Where the broker of a partition was away, its end was not known.
        known = {**{p: Position(log.latest) for p, log in logs.items()}, **ends}
        earliest = {p: Position(log.earliest) for p, log in logs.items()}
        return mine <= known.keys() and is_at_ends({p: known[p] for p in mine}, progress, earliest)


def is_at_ends(
    ends: Mapping[TopicPartition, Position],
    progress: Mapping[TopicPartition, CopyProgress],
    earliest: Mapping[TopicPartition, Position],
) -> bool:
    """Return True if partitions are copied up to these ends. One that is empty has no progress."""
    reached = {**earliest, **{partition: known.next.position for partition, known in progress.items()}}
    return all(reached.get(partition, -1) >= end for partition, end in ends.items())


async def _kill(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
    await process.aclose()
