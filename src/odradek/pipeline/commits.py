"""The record of one batch, which rides in the metadata of the commit that made it part of a table.

The newest record of a flow in a table's own log says where the next batch begins. There is no other ledger. But when a
table is gone, or another one or an older version is in its place, its log cannot say so. So each flow keeps a small
file with the newest record (`Remembered`). It is never needed to continue: without it, the table counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from odradek.errors import ConfigError
from odradek.pipeline.errors import TableReplaced
from odradek.ranges.offsets import offsets_from_dict, offsets_to_dict
from odradek.ranges.planning import Range
from odradek.types import Position, TopicPartition

__all__ = [
    "PROPERTY", "Commit", "Gap", "Offsets", "Remembered", "check_dead_table", "check_table", "forget", "recall",
    "remember", "replace_text", "to_offsets", "to_positions",
]  # fmt: skip

VERSION = 1

PROPERTY = "odradek"
"""Beginning of the key of the record in a commit's metadata; the name of the flow follows."""

Offsets: TypeAlias = Mapping[str, Mapping[str, int]]
"""Topic -> name of the partition -> position."""


class Gap(NamedTuple):
    """A part [start, end) of a log in a batch's range that gave no row; the partition by its name, as in offsets."""

    topic: str
    partition: str
    start: int
    end: int
    reason: str

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Commit:
    """The record of one batch."""

    flow: str
    batch: int  # the creation of the table is batch 0
    attempt: str = ""  # identifies the attempt that wrote the files of the batch
    start: Offsets = field(default_factory=dict)  # where its ranges begin; only of partitions that it has read
    end: Offsets = field(default_factory=dict)  # where the next batch begins; of every partition that the flow knows
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # topics that `end` is of, where brokers have ids (2.8)
    rows: int = 0  # in the table
    dead: int = 0  # records that could not be decoded
    payload: int = 0  # bytes of the decoded records' values
    reasons: Mapping[str, int] = field(default_factory=dict)  # why records are dead -> how many
    examples: tuple[str, ...] = ()  # some of the dead records: reason and position
    gaps: tuple[Gap, ...] = ()
    dead_files: tuple[str, ...] = ()  # files of dead letters, which the next step adds to their own table
    hours: Mapping[str, int] = field(default_factory=dict)  # start of an hour (s since the epoch) -> rows; the newest
    older: int = 0  # rows with an earlier time
    files: int = 0
    file_bytes: int = 0
    run: str = ""  # identifies the run
    code: str = ""  # version of odradek
    written: float = 0.0  # when it was committed (s since the epoch)

    def to_json(self) -> str:
        return json.dumps({"v": VERSION, **asdict(self)}, ensure_ascii=False, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str, where: str) -> Commit:
        """Parse what `to_json` returns. Raises ConfigError if a newer version of odradek wrote it."""
        body = json.loads(text)
        if (version := body.get("v")) != VERSION:
            raise ConfigError(f"{where}: a commit of version {version!r}; this version of odradek reads {VERSION}")
        return msgspec.convert(body, cls)

    def ranges(self) -> list[Range]:
        """Return the ranges of the logs that the batch covers, gaps included, in canonical order."""
        ends = to_positions(self.end)
        covered = (Range(partition, start, ends[partition]) for partition, start in to_positions(self.start).items())
        return sorted(part for part in covered if part.start < part.end)

    @property
    def log_size(self) -> int:
        """Size of its ranges: bytes of log, or the number of offsets of 0.8 and later."""
        return sum(part.size for part in self.ranges())

    def gap_ranges(self) -> list[Range]:
        """Return the ranges that gave no row, in canonical order."""
        gaps = (
            Range(partition, start, gap.end)
            for gap in self.gaps
            for partition, start in to_positions({gap.topic: {gap.partition: gap.start}}).items()
        )
        return sorted(gap for gap in gaps if gap.size > 0)


def to_offsets(positions: Mapping[TopicPartition, Position]) -> dict[str, dict[str, int]]:
    """Return positions by topic and name of the partition, sorted."""
    topics: dict[str, dict[str, int]] = offsets_to_dict(positions)["topics"]
    return topics


def to_positions(offsets: Offsets) -> dict[TopicPartition, Position]:
    """Return the inverse of `to_offsets`. Raises ConfigError for a name that is none of a partition."""
    return offsets_from_dict({**offsets_to_dict({}), "topics": offsets})


# ---- the memory of a flow ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remembered:
    """The table of a flow after its last commit."""

    identity: str  # the table's own id
    location: str  # where it was
    batch: int  # number of its newest batch
    written: float  # when that was (s since the epoch)
    dead: str = ""  # the id of the table with its dead letters; "": there was none
    record: str = ""  # the record of that batch, for a table whose log no longer has it

    @property
    def commit(self) -> Commit | None:
        """The record of the newest batch."""
        return Commit.from_json(self.record, "run.state") if self.record else None


def _file(state: Path, flow: str) -> Path:
    return state / f"{flow}.json"


def recall(state: Path, flow: str) -> Remembered | None:
    """Return what is remembered of a flow's table; None: nothing. Raises ConfigError for a file that is no such."""
    file = _file(state, flow)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Remembered)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ConfigError(
            f"{file} is damaged ({error}): remove it; the next run continues where the table ends"
        ) from None


def remember(state: Path, flow: str, known: Remembered) -> None:
    """Note a flow's table after a commit. Raises OSError."""
    replace_text(_file(state, flow), json.dumps(asdict(known)))


def forget(state: Path, flow: str) -> Remembered | None:
    """Forget a flow's table; return what was known of it."""
    known = recall(state, flow)
    _file(state, flow).unlink(missing_ok=True)
    return known


def replace_text(file: Path, text: str) -> None:
    """Write a file whole or not at all, with its directory. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    scratch.write_text(text, "utf-8")
    scratch.replace(file)


def check_table(
    known: Remembered | None, flow: str, location: str, identity: str | None, newest: Commit | None
) -> None:
    """Compare the id of a table (None: there is none) and its newest record with what is remembered of it, if anything.

    Raises:
        TableReplaced: The table is gone, another one, or an older version.
    """
    if known is None:
        return
    last, reached = f"batch {known.batch} was written to {known.location}", -1 if newest is None else newest.batch
    if identity is None:
        raise TableReplaced(flow, location, f"there is no table, but {last}")
    if identity != known.identity:
        raise TableReplaced(flow, location, f"this is another table: {last}, whose id was {known.identity}")
    if reached < known.batch:
        what = "no batch" if newest is None else f"batch {reached}"
        raise TableReplaced(flow, location, f"the table is an older version: its newest is {what}, but {last}")


def check_dead_table(known: Remembered | None, flow: str, location: str, identity: str | None) -> None:
    """Compare the table with the dead letters with what is remembered of it. Raises TableReplaced."""
    if known is not None and known.dead and identity != known.dead:
        what = "there is no table" if identity is None else "this is another table"
        raise TableReplaced(
            flow, location, f"{what}, but dead letters were written to the one with the id {known.dead}"
        )
