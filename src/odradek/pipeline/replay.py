"""Replay: send the rows of a table, or its dead letters, back to topics.

The rows of each log go, in the order of their offsets and indexes, to one partition of the target topic, or to the
partitions of their keys. Progress is recorded after each confirmed chunk, and a replay that ended early continues from
there. Delivery is at least once: rows that were sent but not recorded are sent again.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odradek.client.cluster import Cluster
from odradek.client.producer.producer import Producer
from odradek.errors import ConfigError
from odradek.pipeline.ledger import DataFile, LedgerEntry
from odradek.pipeline.row_checksums import IDENTITY, by_log
from odradek.pipeline.tables import CommittedTable, batch_ranges, read_rows
from odradek.spark.planning import Range
from odradek.types import MiB, TopicPartition

__all__ = ["Replay", "ReplayProgress", "plan_replay", "replay"]

SORT_BYTES, SORT_RANGES = 64 * MiB, 64
"""Maximum log bytes and number of ranges that are sorted in memory at a time."""

CHUNK_BYTES = 4 * MiB
"""Approximate payload bytes that are confirmed and recorded before more is sent; with a rate, at most 0.1 s of it."""

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Replay:
    """The rows to send, and where to.

    Args:
        table: The table.
        batches: The batches whose rows are sent.
        topic: The target topic; None: each row goes to the topic that it came from.
        value: Column of the payload; binary or string.
        key: Column of the key, which then chooses the partition; rows without a key go to any partition.
        rate: Maximum bytes of payload per second; None: no limit.
        target: Name of the target cluster; part of the identity of a replay.
        dead: The dead letters of those batches, instead of rows of the table.
    """

    table: CommittedTable
    batches: tuple[int, ...]
    topic: str | None
    value: str
    key: str | None
    rate: int | None
    target: str
    dead: bool = False

    @property
    def identity(self) -> str:
        """A hash of the replay's rows, columns and target."""
        parts = (self.table.name, self.batches, self.topic, self.value, self.key, self.target, self.dead)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def state(self) -> Path:
        """The default path of the progress file."""
        return self.table.root / "_odradek" / "replay" / f"{self.identity[:16]}.json"

    @property
    def rows(self) -> int:
        """Number of rows that these batches added."""
        chosen = (entry for entry in self.table.appends if entry.batch in self.batches)
        return sum(entry.dead if self.dead else entry.rows for entry in chosen)

    @property
    def root(self) -> Path:
        """The directory of the files. Raises ConfigError if there are no dead letters."""
        if not self.dead:
            return self.table.root
        if self.table.dead_root is None:
            raise ConfigError(f"flow {self.table.name} has no dead letters")
        return self.table.dead_root

    def files_of(self, batches: Collection[int]) -> list[DataFile]:
        """Return the files that have the rows of these batches."""
        if not self.dead:
            return self.table.files_of(batches)
        return [file for entry in self.table.appends if entry.batch in batches for file in entry.dead_files]


@dataclass(slots=True)
class ReplayProgress:
    """The confirmed rows of a replay, in a file.

    Args:
        path: The file.
        identity: Identity of the replay.
        done: Partition as text -> [batch, offset, index] of its last confirmed row.
        rows: Number of confirmed rows.
        ended: True if all rows are confirmed.
    """

    path: Path
    identity: str
    done: dict[str, list[int]] = field(default_factory=dict)
    rows: int = 0
    ended: bool = False

    @classmethod
    def load(cls, path: Path, identity: str) -> ReplayProgress:
        """Read the file; an absent one is empty. Raises ConfigError if the file belongs to another replay."""
        try:
            body = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return cls(path, identity)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: not a progress file of a replay: {error}") from error
        if not isinstance(body, dict) or body.get("replay") != identity:
            raise ConfigError(f"{path}: belongs to another replay")
        try:
            return cls(path, identity, dict(body["done"]), int(body["rows"]), bool(body["ended"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}: not a progress file of a replay: {error!r}") from error

    def save(self) -> None:
        """Write the file atomically and force it to disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_name(f".{self.path.name}.new")
        body = {"replay": self.identity, "done": self.done, "rows": self.rows, "ended": self.ended}
        with scratch.open("w", encoding="utf-8") as file:
            json.dump(body, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.path)


def plan_replay(
    table: CommittedTable,
    *,
    batches: Collection[int] | None = None,
    topic: str | None = None,
    value: str = "value",
    key: str | None = None,
    rate: int | None = None,
    target: str = "",
    dead: bool = False,
) -> Replay:
    """Plan a replay. `batches`: None for all; unknown numbers are ignored.

    Raises:
        ConfigError: The table has no such column, or no such batches.
    """
    chosen = tuple(entry.batch for entry in table.appends if batches is None or entry.batch in batches)
    if not chosen:
        raise ConfigError(f"flow {table.name}: none of the requested batches is in the table")
    plan = Replay(table, chosen, topic, value, key, rate, target, dead)
    for file in plan.files_of(chosen)[:1]:
        names = [*pq.read_schema(plan.root / file.path).names, *file.partition]
        for column in (value, *([key] if key else [])):
            if column not in names:
                raise ConfigError(f"flow {table.name}: there is no column {column!r}; there are {', '.join(names)}")
    return plan


async def replay(plan: Replay, cluster: Cluster, progress: ReplayProgress, advance: Advance = lambda rows: None) -> int:
    """Send the rows that are not confirmed yet; return their number.

    Cancellation: the progress of completed chunks is recorded.

    Raises:
        DeliveryError: A row was not, or may not have been, written; earlier chunks are recorded.
        OSError, pyarrow.ArrowException: A file cannot be read.
    """
    sent = 0
    async with cluster.producer() as out:
        route = _Route(cluster, plan)
        chunks = _unconfirmed_chunks(plan, progress)
        while (chunk := await anyio.to_thread.run_sync(next, chunks, None)) is not None:
            rows = chunk.rows
            await _send(plan, out, route, chunk)
            progress.done[str(chunk.partition)] = chunk.last
            progress.rows += rows.num_rows
            sent += rows.num_rows
            await anyio.to_thread.run_sync(progress.save)
            advance(rows.num_rows)
    progress.ended = True
    await anyio.to_thread.run_sync(progress.save)
    return sent


async def _send(plan: Replay, out: Producer, route: _Route, chunk: _ReplayChunk) -> None:
    topic = plan.topic or chunk.partition.topic
    begun = anyio.current_time()
    partition = None if plan.key else await route.to(topic, chunk.partition)
    acks = await out.send_arrow(topic, chunk.rows, value=plan.value, key=plan.key, partition=partition)
    acks.check()
    if plan.rate is not None:
        await anyio.sleep_until(begun + _payload(chunk.rows[plan.value]) / plan.rate)


class _Route:
    """Maps each log to one partition of its target, so that its order is kept."""

    def __init__(self, cluster: Cluster, plan: Replay) -> None:
        self._metadata = cluster.driver.metadata
        ranges = (part for entry in _entries(plan) for part in batch_ranges(entry))
        self._sources = sorted({part.partition for part in ranges})
        self._chosen: dict[tuple[str, TopicPartition], TopicPartition | None] = {}

    async def to(self, topic: str, source: TopicPartition) -> TopicPartition | None:
        """Return the partition for a log; None if the topic has none now (the producer waits for one)."""
        if (topic, source) not in self._chosen:
            partitions = (await self._metadata.table_for_topic(topic)).partitions(topic)
            number = bisect_left(self._sources, source)
            self._chosen[topic, source] = partitions[number % len(partitions)] if partitions else None
        return self._chosen[topic, source]


# ---- rows, in order ------------------------------------------------------------------------------------------


class _ReplayChunk(NamedTuple):
    """Rows of one log, in order."""

    batch: int
    partition: TopicPartition
    rows: pa.Table

    @property
    def last(self) -> list[int]:
        """Batch, offset and index of the last row."""
        return [self.batch, *(self.rows[name][-1].as_py() for name in ("offset", "index"))]


def _entries(plan: Replay) -> list[LedgerEntry]:
    return [entry for entry in plan.table.appends if entry.batch in plan.batches]


def _unconfirmed_chunks(plan: Replay, progress: ReplayProgress) -> Iterator[_ReplayChunk]:
    """Yield the rows that are not confirmed yet, batch by batch, each log in its order."""
    columns = list(dict.fromkeys([*IDENTITY, plan.value, *([plan.key] if plan.key else [])]))
    size = CHUNK_BYTES if plan.rate is None else min(CHUNK_BYTES, max(1, plan.rate // 10))
    for entry in _entries(plan):
        files = plan.files_of({entry.batch})
        ranges = batch_ranges(entry)
        for bundle in _bundles(ranges, _sort_size(entry, ranges)):
            tables = list(read_rows(plan.root, files, columns, ranges=bundle))
            if tables:
                rows = pa.concat_tables(tables).sort_by([(name, "ascending") for name in IDENTITY])
                for partition, part in by_log(rows):
                    left = _unconfirmed(part, entry.batch, progress.done.get(str(partition)))
                    yield from (_ReplayChunk(entry.batch, partition, some) for some in _chunks(left, plan.value, size))


def _sort_size(entry: LedgerEntry, ranges: Iterable[Range]) -> int:
    """Return how many positions have about `SORT_BYTES`: one byte each in 0.7, a record each later."""
    positions = sum(part.size for part in ranges)
    return SORT_BYTES if entry.payload <= positions else max(1, SORT_BYTES * positions // entry.payload)


def _bundles(ranges: Iterable[Range], size: int) -> Iterator[list[Range]]:
    """Yield groups of ranges of about this size together; a row belongs to the range in which it starts."""
    bundle: list[Range] = []
    remaining = size
    for whole in ranges:
        for start in range(whole.start, whole.end, size):
            part = whole._replace(start=start, end=min(start + size, whole.end))
            if bundle and (part.size > remaining or len(bundle) == SORT_RANGES):
                yield bundle
                bundle, remaining = [], size
            bundle.append(part)
            remaining -= part.size
    if bundle:
        yield bundle


def _unconfirmed(rows: pa.Table, batch: int, done: Sequence[int] | None) -> pa.Table:
    """Return the rows that are not confirmed."""
    if done is None or batch > done[0]:
        return rows
    if batch < done[0]:
        return rows.slice(0, 0)
    same = (pc.field("offset") == done[1]) & (pc.field("index") > done[2])
    return rows.filter((pc.field("offset") > done[1]) | same)


def _chunks(rows: pa.Table, value: str, size: int) -> Iterator[pa.Table]:
    """Yield slices of about `size` bytes of payload, at least one row each."""
    while rows.num_rows:
        each = max(1, _payload(rows[value]) // rows.num_rows)
        count = max(1, size // each)
        yield rows.slice(0, count)
        rows = rows.slice(count)


def _payload(column: Any) -> int:
    """Return the bytes of a column's values."""
    return int(pc.sum(pc.binary_length(column)).as_py() or 0)
