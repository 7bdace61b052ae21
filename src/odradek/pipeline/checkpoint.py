"""Spark's checkpoint of a streaming query, as far as a pipeline has to read, compare and create it.

    <checkpoint>/metadata     an id of the query
    <checkpoint>/offsets/7    what micro-batch 7 reads: up to here; written before it begins
    <checkpoint>/commits/7    it is done; written after it

Spark does not record where its first batch begins: after a crash it would resolve the start offsets again, and `latest`
or the earliest message may have moved. So a new checkpoint starts with a batch 0 that reads nothing and is done.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from odradek.pipeline.errors import CheckpointMismatch
from odradek.pipeline.ledger import Offsets

__all__ = ["Checkpoint", "MicroBatch", "checkpoint_dir"]

VERSION = "v1"


class MicroBatch(NamedTuple):
    """The range of one of Spark's micro-batches.

    Args:
        number: Spark's number of the batch.
        start, end: The positions between which it reads.
        planned: When it was planned (s since the epoch). A batch that is run again keeps it.
    """

    number: int
    start: Offsets
    end: Offsets
    planned: float


def checkpoint_dir(root: str | os.PathLike[str], flow: str) -> Path:
    """Return the directory of a flow's checkpoint, below the one that the pipeline file names."""
    return Path(root) / flow


class Checkpoint:
    """A query's checkpoint on this machine's file system."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.directory}>"

    @property
    def planned(self) -> int | None:
        """The number of the newest planned batch; None if there is none."""
        return self._newest("offsets")

    @property
    def done(self) -> int | None:
        """The number of the newest batch that Spark has recorded as done; None if there is none."""
        return self._newest("commits")

    def offsets(self, number: int) -> Offsets:
        """Return the end of a batch.

        Raises:
            CheckpointMismatch: The file is missing, or not in the form that Spark and the data source write.
        """
        return self._read(number)[1]

    def batch(self, number: int) -> MicroBatch:
        """Return the range of a batch. Raises as `offsets`."""
        (when, end), (_, start) = self._read(number), self._read(number - 1)
        return MicroBatch(number, start, end, when)

    def begin(self, number: int, offsets: Offsets, now: float) -> None:
        """Make the query continue from these offsets, as if it had done the batch of this number.

        Call it only for an empty checkpoint, or to finish what a crash interrupted.
        """
        head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": int(now * 1000), "conf": {}})
        end = _as_the_source_writes(offsets)
        self._write("metadata", json.dumps({"id": str(uuid4())}))
        self._write(f"offsets/{number}", VERSION, head, end)
        self._write(f"commits/{number}", VERSION, json.dumps({"nextBatchWatermarkMs": 0}))

    def _write(self, name: str, *lines: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.tmp")
        scratch.write_text("\n".join(lines), "utf-8")
        scratch.replace(path)

    def _newest(self, kind: str) -> int | None:
        numbers = [int(path.name) for path in (self.directory / kind).glob("*") if path.name.isdigit()]
        return max(numbers, default=None)

    def _read(self, number: int) -> tuple[float, Offsets]:
        path = self.directory / "offsets" / str(number)
        try:
            version, head, offsets = path.read_text("utf-8").split("\n")
            if version != VERSION:
                raise ValueError(f"of version {version}")
            return json.loads(head)["batchTimestampMs"] / 1000, _topics(json.loads(offsets))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointMismatch(str(path), f"not an offsets file of Spark: {error}") from error


def _topics(body: Any) -> Offsets:
    topics: dict[str, dict[str, int]] = body["topics"]
    if not all(isinstance(position, int) for partitions in topics.values() for position in partitions.values()):
        raise ValueError("a position is not a number")
    return topics


def _as_the_source_writes(offsets: Offsets) -> str:
    """Encode offsets exactly as the data source does.

    Spark compares offsets as text, and runs an empty batch when they differ.
    """
    return json.dumps({"v": 1, "topics": {topic: dict(sorted(offsets[topic].items())) for topic in sorted(offsets)}})
