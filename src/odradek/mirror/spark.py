"""The tasks of a mirror on Spark: the first copy of a large cluster, made by many machines.

The driver does what a run begins with. Then each task is a job of its own, of one Spark task, and all jobs are
submitted at once: Spark has as many of them running as it has cores, and the first error cancels the others. The
records of a partition keep their order, so its range is not divided any further: `run.tasks`, which the first run
fixes, is the limit of what is copied at the same time.

What a lost executor had committed stays. Spark starts its Spark task again, on another executor, and that attempt does
what every task does that begins: it takes the transactional id, which aborts what the lost one had open and fences it
if it still runs, and continues after the newest progress. Spark ignores the result of the older attempt. Errors of
odradek that do not pass are the result of a Spark task, and no failure of it, so that Spark does not repeat what has
to end: above all `Fenced`, since the next attempt would in turn fence the run that has taken over. Only what another
executor may do better counts as a failure for Spark (`spark.task.maxFailures`, 4 by default; on `local[N]` it is 1,
and 4 on `local[N,4]`): a Python process that was killed, a cluster that cannot be reached from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from odradek.errors import ConfigError, OdradekError, Unsupported
from odradek.io.gather import gather
from odradek.io.retry import retry
from odradek.mirror.clusters import PAUSES, Clusters, open_clusters, read_progress
from odradek.mirror.config import MirrorConfig
from odradek.mirror.limits import share_of
from odradek.mirror.run import Begun, MirrorResult, begin
from odradek.mirror.stored import CopyProgress
from odradek.mirror.task import CopiedRecords, LostRange, MirrorTask
from odradek.spark.errors import describe_error
from odradek.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkFailed", "run_on_spark"]

CANCEL_S = 0.2
"""Time between two attempts to cancel what runs: a job that is just starting cannot be cancelled (s)."""


class SparkFailed(OdradekError):
    """Spark could not run a task of a mirror.

    Args:
        why: The cause, in one line.
    """

    hint = "the next run continues after what was committed"

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def message(self) -> str:
        return f"Spark could not run a task of the mirror: {self.why}"


class _TaskEnd(NamedTuple):
    """The end of a task.

    Args:
        progress: Source partition -> how far it is copied, by all runs.
        bytes: Source partition -> bytes of what the last attempt has committed.
        lost: What the last attempt could not copy.
        seconds: How long the last attempt took (s).
        error: The error that ended it.
    """

    progress: Mapping[TopicPartition, CopyProgress]
    bytes: Mapping[TopicPartition, int]
    lost: set[LostRange]
    seconds: float
    error: OdradekError | None = None


def run_on_spark(
    config: MirrorConfig,
    spark: SparkSession,
    *,
    committed: Callable[[Sequence[CopiedRecords]], object] = lambda _: None,
) -> MirrorResult:
    """Copy what the source has when the run begins, with the executors of Spark. For a thread without an event loop.

    Executors import odradek, and connect to both clusters. Values `env:NAME` of the file, and the variables
    ODRADEK_SSL_... and ODRADEK_SASL_..., are those of each executor (`spark.executorEnv.NAME`) and of the driver. Each
    task keeps to its share of the run's rate limits, also while fewer tasks run.

    Args:
        config: The file.
        spark: The session; not one of Spark Connect.
        committed: Called with what all attempts of a task have committed, once it has ended.

    Returns:
        What the run has copied. Of a task that Spark has started again, bytes and what was lost are those of its last
        attempt.

    Raises:
        ConfigError, MirrorRefused, Unsupported: This source or target, or this Spark, cannot be used.
        SparkFailed: A Spark task failed too often.
        OdradekError: As `odradek.mirror.run.run`.

    Cancellation: Ctrl-C cancels the jobs; the next run continues after what was committed.
    """
    context = spark.sparkContext
    _check(config, context.getConf().get("spark.speculation", "false") == "true", context.master)
    begun, before = anyio.run(_begin, config)
    shared = context.broadcast((config, begun))
    group = config.transactional_id()

    def job(number: int) -> _TaskEnd:
        context.setJobGroup(group, f"mirror {config.name}", interruptOnCancel=True)
        try:
            return context.parallelize([number], 1).map(lambda task: _copy(*shared.value, task)).collect()[0]
        except Exception as error:
            raise SparkFailed(describe_error(error)) from error

    result = MirrorResult()
    with ThreadPoolExecutor(len(begun.tasks) or 1, thread_name_prefix="odradek-mirror") as pool:
        running = [pool.submit(job, number) for number in begun.tasks]
        try:
            for ended in as_completed(running):
                committed(_add(result, ended.result(), begun, before))
        except BaseException:
            _cancel(running, lambda: context.cancelJobGroup(group))
            raise
    return result


def _check(config: MirrorConfig, speculates: bool, master: str | None) -> None:
    """Raise ConfigError for what would be wrong on this Spark."""
    if speculates:
        raise ConfigError("spark.speculation: must be false, since a second copy of a task would fence the first one")
    if config.source.logs is not None and not (master or "").startswith("local"):
        raise ConfigError(f"source.logs: only on one machine, with a master such as local[*], and not on {master}")


def _cancel(running: Sequence[Future[_TaskEnd]], cancel: Callable[[], object]) -> None:
    while wait(running, CANCEL_S).not_done:
        with suppress(OSError, Py4JError):  # Java may be gone, and then all of them fail
            cancel()


async def _begin(config: MirrorConfig) -> tuple[Begun, Mapping[TopicPartition, int]]:
    """Do what a run begins with; return that, and how many records were copied before.

    All transactional ids are taken, so that no other process goes on copying.
    """
    async with open_clusters(config) as clusters:
        begun = await begin(config, clusters, follow=False)
        if not begun.exactly_once:
            raise Unsupported("a mirror on Spark", "a target with transactions, which Kafka 0.11 brought")

        async def take(number: int) -> Mapping[TopicPartition, CopyProgress]:
            async with clusters.target.producer(transactional_id=config.transactional_id(number)):
                return await _copied(config, clusters, number)

        counts = await gather(lambda number: retry(partial(take, number), PAUSES), begun.tasks)
        return begun, {partition: known.records for each in counts for partition, known in each.items()}


async def _copied(config: MirrorConfig, clusters: Clusters, number: int) -> Mapping[TopicPartition, CopyProgress]:
    """Return how far the partitions of a task are copied."""
    return (await read_progress(config, clusters.target, number)).progress_of(number)


def _add(
    result: MirrorResult, end: _TaskEnd, begun: Begun, before: Mapping[TopicPartition, int]
) -> Sequence[CopiedRecords]:
    """Count what a task has copied, and return it. Raises its error."""
    if end.error is not None:
        raise end.error
    ends = begun.ends or {}
    copied = [
        CopiedRecords(
            partition,
            known.records - before.get(partition, 0),
            end.bytes.get(partition, 0),
            position=known.next.position,
            end=ends.get(partition),
            timestamp=None,
            seconds=end.seconds,
        )
        for partition, known in end.progress.items()
        if known.records > before.get(partition, 0)
    ]
    result.add(copied)
    result.lost |= end.lost
    return copied


# ---- on an executor ------------------------------------------------------------------------------------------


def _copy(config: MirrorConfig, begun: Begun, number: int) -> _TaskEnd:
    """Copy a task to the ends of its partitions. Raises OdradekError: another executor may do better."""
    return anyio.run(_copy_task, config, begun, number)


async def _copy_task(config: MirrorConfig, begun: Begun, number: int) -> _TaskEnd:
    sizes: Counter[TopicPartition] = Counter()
    lost: set[LostRange] = set()
    begun_at = anyio.current_time()

    def count(copied: Sequence[CopiedRecords]) -> None:
        for each in copied:
            sizes[each.partition] += each.bytes

    try:
        async with open_clusters(config) as clusters:
            share = share_of(config, len(begun.tasks))
            settings = begun.settings(share, clusters, committed=count, lost=lost.update)
            await MirrorTask(settings, number, begun.copied).run()
            return _TaskEnd(await _copied(config, clusters, number), sizes, lost, anyio.current_time() - begun_at)
    except OdradekError as error:
        if error.retriable:
            raise
        return _TaskEnd({}, sizes, lost, anyio.current_time() - begun_at, error)
