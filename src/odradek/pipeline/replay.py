"""Replay: send the rows of a table, or its dead letters, back to topics.

The rows of each log go, in the order of their offsets and indexes, to one partition of the target topic. A batch is
sent in steps that fit into memory. Progress is recorded after each confirmed step, and a replay that ended early
continues from there. Delivery is at least once: the rows of a step that was not recorded are sent again.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pyarrow as pa
import pyarrow.compute

from odradek.client.cluster import Cluster
from odradek.client.options import LARGEST_MESSAGE
from odradek.client.producer.producer import Producer
from odradek.errors import ConfigError
from odradek.pipeline.commits import Commit, replace_text
from odradek.pipeline.committed import CommittedTable, by_log
from odradek.ranges.planning import Range
from odradek.types import MiB, TopicPartition

__all__ = ["Replay", "ReplayProgress", "replay"]

pc: Any = pyarrow.compute

STEP_BYTES, STEP_ROWS = 32 * MiB, 1 << 17
"""About how much payload, and how many rows, a step has: they are sorted in memory, confirmed and recorded together."""

RECORD = ("key", "headers")
"""Columns of records of 0.8 and later that are sent along, where they have any."""


@dataclass(frozen=True)
class Replay:
    """The rows to send, and where to.

    Raises:
        ConfigError: There are no such batches, no dead letters, or no such column.
    """

    table: CommittedTable
    batches: Sequence[Commit]  # the records of the batches whose rows are sent
    topic: str | None = None  # the target; None: each row goes to the topic that it came from
    value: str = "value"  # column of the payload; binary or string
    target: str = ""  # name of the target cluster; part of the identity of a replay
    dead: bool = False  # True: the dead letters of those batches, instead of rows of the table

    def __post_init__(self) -> None:
        if not self.batches:
            raise ConfigError(f"flow {self.table.name}: none of the requested batches is in the table")
        if self.value not in self._names:
            what = f"there is no column {self.value!r}; there are {', '.join(self._names)}"
            raise ConfigError(f"flow {self.table.name}: {what}")

    @property
    def _names(self) -> Sequence[str]:
        source = self.table.dead if self.dead else self.table.table
        if source is None:
            raise ConfigError(f"flow {self.table.name} has no dead letters")
        return source.schema.names

    @cached_property
    def columns(self) -> Sequence[str]:
        """The columns that are read: the payload's first."""
        return self.value, *(() if "nextOffset" in self._names else RECORD)  # 0.7 has neither

    @property
    def identity(self) -> str:
        """A hash of the replay's table, batches, columns, target and steps."""
        numbers = [commit.batch for commit in self.batches]
        parts = (self.table.table.identity, numbers, self.topic, self.value, self.target, self.dead)
        return hashlib.sha256(json.dumps([*parts, STEP_BYTES, STEP_ROWS]).encode()).hexdigest()

    @property
    def rows(self) -> int:
        """Number of rows that these batches added."""
        return sum(commit.dead if self.dead else commit.rows for commit in self.batches)

    def steps(self) -> Iterator[list[Range]]:
        """Yield the ranges of each step; a row belongs to the step in which it starts."""
        for commit in self.batches:
            count = max(1, -(-commit.payload // STEP_BYTES), -(-(commit.rows + commit.dead) // STEP_ROWS))
            for step in range(count):
                yield [
                    Range(whole.partition, *(whole.start + whole.size * share // count for share in (step, step + 1)))
                    for whole in commit.ranges()
                ]

    def read(self, ranges: Sequence[Range]) -> list[tuple[TopicPartition, pa.Table]]:
        """Return the rows of a step, of each log in order. Raises OSError."""
        tables = list(self.table.rows(ranges, self.columns, dead=self.dead))
        return list(by_log(pa.concat_tables(tables))) if tables else []


@dataclass(slots=True)
class ReplayProgress:
    """The confirmed rows of a replay, in a file."""

    path: Path
    identity: str  # of the replay
    steps: int = 0  # number of confirmed steps
    rows: int = 0  # number of confirmed rows
    ended: bool = False  # True if all rows are confirmed

    @classmethod
    def load(cls, path: Path, identity: str) -> ReplayProgress:
        """Read the file; an absent one is empty. Raises ConfigError if it is damaged, or belongs to another replay."""
        try:
            progress = cls(path, **json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            return cls(path, identity)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path}: not a progress file of a replay: {error!r}") from error
        if progress.identity != identity:
            raise ConfigError(f"{path}: belongs to another replay")
        return progress

    def save(self) -> None:
        """Write the file. Raises OSError."""
        body = asdict(self)
        del body["path"]
        replace_text(self.path, json.dumps(body))


async def replay(plan: Replay, cluster: Cluster, progress: ReplayProgress, advance: Callable[[int], None]) -> int:
    """Send the rows that are not confirmed yet; return their number.

    `progress` is updated and saved after each step, and `advance` is called with the number of its rows. Cancellation:
    the progress of completed steps is recorded.

    Raises:
        DeliveryError: A row was not, or may not have been, written; earlier steps are recorded.
        OSError: A file cannot be read or written.
    """
    before = progress.rows
    async with _producer(cluster) as out:
        route = _Route(cluster, plan)
        for ranges in islice(plan.steps(), progress.steps, None):
            logs = await anyio.to_thread.run_sync(plan.read, ranges)
            for partition, rows in logs:
                await _send(plan, out, route, partition, rows)
            sent = sum(rows.num_rows for _, rows in logs)
            progress.steps, progress.rows = progress.steps + 1, progress.rows + sent
            await anyio.to_thread.run_sync(progress.save)
            advance(sent)
    progress.ended = True
    await anyio.to_thread.run_sync(progress.save)
    return progress.rows - before


def _producer(cluster: Cluster) -> Producer:
    """Return a producer of rows as large as the topic takes. Brokers that cannot refuse a batch drop large ones: there
    it keeps its own limit."""
    if not cluster.driver.refuses_batches:
        return cluster.producer()
    return cluster.producer(max_message_bytes=LARGEST_MESSAGE, buffer_bytes=LARGEST_MESSAGE + 64 * MiB)


async def _send(plan: Replay, out: Producer, route: _Route, source: TopicPartition, rows: pa.Table) -> None:
    topic = plan.topic or source.topic
    record = {name: name for name in plan.columns[1:] if _has_any(rows[name])}
    partition = await route.to(topic, source)
    acks = await out.send_arrow(topic, rows, value=plan.value, partition=partition, **record)
    acks.check()


class _Route:
    """Maps each log to one partition of its target, so that its order is kept."""

    def __init__(self, cluster: Cluster, plan: Replay) -> None:
        self._metadata = cluster.driver.metadata
        self._sources = sorted({part.partition for commit in plan.batches for part in commit.ranges()})
        self._chosen: dict[tuple[str, TopicPartition], TopicPartition | None] = {}

    async def to(self, topic: str, source: TopicPartition) -> TopicPartition | None:
        """Return the partition for a log; None if the topic has none now (the producer waits for one)."""
        if (topic, source) not in self._chosen:
            partitions = (await self._metadata.table_for_topic(topic)).partitions(topic)
            number = bisect_left(self._sources, source)
            self._chosen[topic, source] = partitions[number % len(partitions)] if partitions else None
        return self._chosen[topic, source]


def _has_any(column: Any) -> bool:
    """Return True if a column of keys, or of lists of headers, has any."""
    known = column.drop_null()
    return bool(len(known)) and not (pa.types.is_list(column.type) and not pc.sum(pc.list_value_length(known)).as_py())
