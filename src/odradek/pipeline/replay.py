"""Rows of a table, or its dead letters, back into topics.

Each log of the table goes, in the order of its offsets and indexes, to one partition of the target topic, or by its
keys. What is confirmed is written down piece by piece; a replay that ends early goes on there. At least once: what was
sent when it ended, and not written down, is sent again.
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
from odradek.pipeline.tables import CommittedTable, batch_ranges, read_rows
from odradek.pipeline.tally import IDENTITY, by_log
from odradek.spark.planning import Range
from odradek.types import MiB, TopicPartition

__all__ = ["Replay", "ReplayProgress", "plan_replay", "replay"]

PIECE_BYTES, PIECE_RANGES = 64 * MiB, 64
"""Of log, and of partitions: so much is sorted in memory at a time."""

CHUNK_BYTES = 4 * MiB
"""Of payload, about: confirmed and written down before more is sent. With a rate, what it allows in 0.1 s."""

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Replay:
    """What is to be sent.

    Args:
        table: From which table.
        batches: Rows of these.
        topic: Where to; None: each row to the topic that it came from.
        value: Column of the payload; binary or string.
        key: Column of the key, which chooses the partition then; rows without a key go anywhere.
        rate: Most bytes of payload a second; None: as fast as it goes.
        target: The cluster, in words: part of what makes two replays the same.
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
        """The same for the same rows, columns and target."""
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
        """The directory of the files. Raises ConfigError: there are no dead letters."""
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
        identity: Of the replay.
        done: Partition as text -> [batch, offset, index] of the last row that was confirmed.
        rows: That were confirmed.
        ended: All are.
    """

    path: Path
    identity: str
    done: dict[str, list[int]] = field(default_factory=dict)
    rows: int = 0
    ended: bool = False

    @classmethod
    def load(cls, path: Path, identity: str) -> ReplayProgress:
        """Read the file; an absent one is empty. Raises ConfigError: the file belongs to another replay."""
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
        """Whole or not at all, also when the machine stops."""
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
        there = [*pq.read_schema(plan.root / file.path).names, *file.partition]
        for column in (value, *([key] if key else [])):
            if column not in there:
                raise ConfigError(f"flow {table.name}: there is no column {column!r}; there are {', '.join(there)}")
    return plan


async def replay(plan: Replay, cluster: Cluster, progress: ReplayProgress, advance: Advance = lambda rows: None) -> int:
    """Send what is not confirmed yet; returns how many rows that were.

    Cancellation: what was confirmed is written down.

    Raises:
        DeliveryError: A row was not, or not surely, written; everything before it is written down.
        OSError, pyarrow.ArrowException: A file cannot be read.
    """
    sent = 0
    async with cluster.producer() as out:
        route = _Route(cluster, plan)
        pieces = _pieces(plan, progress)
        while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
            rows = piece.rows
            await _send(plan, out, route, piece)
            progress.done[str(piece.partition)] = piece.last
            progress.rows += rows.num_rows
            sent += rows.num_rows
            await anyio.to_thread.run_sync(progress.save)
            advance(rows.num_rows)
    progress.ended = True
    await anyio.to_thread.run_sync(progress.save)
    return sent


async def _send(plan: Replay, out: Producer, route: _Route, piece: _Piece) -> None:
    topic = plan.topic or piece.partition.topic
    begun = anyio.current_time()
    partition = None if plan.key else await route.to(topic, piece.partition)
    acks = await out.send_arrow(topic, piece.rows, value=plan.value, key=plan.key, partition=partition)
    acks.check()
    if plan.rate is not None:
        await anyio.sleep_until(begun + _payload(piece.rows[plan.value]) / plan.rate)


class _Route:
    """Each log to one partition of its target, so that its order is kept."""

    def __init__(self, cluster: Cluster, plan: Replay) -> None:
        self._metadata = cluster.driver.metadata
        ranges = (part for entry in _entries(plan) for part in batch_ranges(entry))
        self._sources = sorted({part.partition for part in ranges})
        self._chosen: dict[tuple[str, TopicPartition], TopicPartition | None] = {}

    async def to(self, topic: str, source: TopicPartition) -> TopicPartition | None:
        """None: nobody has a partition for it now, and the producer may wait for one."""
        if (topic, source) not in self._chosen:
            there = (await self._metadata.table_for_topic(topic)).partitions(topic)
            number = bisect_left(self._sources, source)
            self._chosen[topic, source] = there[number % len(there)] if there else None
        return self._chosen[topic, source]


# ---- rows, in order ------------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """Rows of one log, in order."""

    batch: int
    partition: TopicPartition
    rows: pa.Table

    @property
    def last(self) -> list[int]:
        """Where it ends: batch, offset and index."""
        return [self.batch, *(self.rows[name][-1].as_py() for name in ("offset", "index"))]


def _entries(plan: Replay) -> list[LedgerEntry]:
    return [entry for entry in plan.table.appends if entry.batch in plan.batches]


def _pieces(plan: Replay, progress: ReplayProgress) -> Iterator[_Piece]:
    """What is not confirmed yet, batch by batch, and each log in its order."""
    columns = list(dict.fromkeys([*IDENTITY, plan.value, *([plan.key] if plan.key else [])]))
    size = CHUNK_BYTES if plan.rate is None else min(CHUNK_BYTES, max(1, plan.rate // 10))
    for entry in _entries(plan):
        files = plan.files_of({entry.batch})
        for bundle in _bundles(batch_ranges(entry)):
            found = list(read_rows(plan.root, files, columns, ranges=bundle))
            if found:
                rows = pa.concat_tables(found).sort_by([(name, "ascending") for name in IDENTITY])
                for partition, part in by_log(rows):
                    left = _behind(part, entry.batch, progress.done.get(str(partition)))
                    yield from (_Piece(entry.batch, partition, some) for some in _chunks(left, plan.value, size))


def _bundles(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Ranges of about `PIECE_BYTES` together; a row belongs to the one in which it starts."""
    bundle: list[Range] = []
    room = PIECE_BYTES
    for whole in ranges:
        for start in range(whole.start, whole.end, PIECE_BYTES):
            part = whole._replace(start=start, end=min(start + PIECE_BYTES, whole.end))
            if bundle and (part.size > room or len(bundle) == PIECE_RANGES):
                yield bundle
                bundle, room = [], PIECE_BYTES
            bundle.append(part)
            room -= part.size
    if bundle:
        yield bundle


def _behind(rows: pa.Table, batch: int, done: Sequence[int] | None) -> pa.Table:
    """Rows that are not confirmed."""
    if done is None or batch > done[0]:
        return rows
    if batch < done[0]:
        return rows.slice(0, 0)
    same = (pc.field("offset") == done[1]) & (pc.field("index") > done[2])
    return rows.filter((pc.field("offset") > done[1]) | same)


def _chunks(rows: pa.Table, value: str, size: int) -> Iterator[pa.Table]:
    """Runs of rows of about so many bytes of payload, at least a row each."""
    while rows.num_rows:
        each = max(1, _payload(rows[value]) // rows.num_rows)
        count = max(1, size // each)
        yield rows.slice(0, count)
        rows = rows.slice(count)


def _payload(column: Any) -> int:
    """Bytes."""
    return int(pc.sum(pc.binary_length(column)).as_py() or 0)
