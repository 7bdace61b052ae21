"""Two clusters in memory, and a mirror between them: copied by a run, or written by hand record by record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from odradek.client.cluster import Cluster
from odradek.core.interfaces import ProducerRecord
from odradek.mirror.config import ClusterConfig, MirrorConfig, load
from odradek.mirror.sources import ClusterSource
from odradek.mirror.stored import (
    CopiedTopic,
    CopyProgress,
    CopyTarget,
    IndexEntry,
    MirrorIdentity,
    Progress,
    Run,
    SourcePosition,
    Stored,
    stored_records,
)
from odradek.testing import MemoryCluster
from odradek.types import TopicPartition

from .mirrors import topic_id_of, url_of

__all__ = ["P0", "Pair", "record"]

P0 = TopicPartition("orders", 0)

FILE = """
name = "m"
[source]
url = "kafka://source:9092"
[target]
url = "kafka://target:9092"
[topics]
include = ["orders"]
{topics}
[run]
transaction_bytes = 64
"""


def record(number: int, **changes: Any) -> ProducerRecord:
    """A record with everything that can differ."""
    fields: dict[str, Any] = {
        "value": b"value %d" % number, "key": b"key %d" % number, "headers": (("h", b"%d" % number),),
        "timestamp": 1_700_000_000_000 + number,
    }  # fmt: skip
    return ProducerRecord(**{**fields, **changes})


class Pair:
    """Both clusters; the topic `orders` is on the source.

    Args:
        monkeypatch: Lets the file of the mirror lead to them.
        folder: For the file.
        partitions: Of the topic.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, partitions: int = 1) -> None:
        self.source, self.target = MemoryCluster({"orders": partitions}), MemoryCluster()
        self._folder, self._made = folder, False
        both = {"kafka://source:9092": self.source, "kafka://target:9092": self.target}

        def connect(config: ClusterConfig, _: object = None) -> Cluster:
            return both[config.url].connect()

        monkeypatch.setattr(ClusterConfig, "connect", connect)
        monkeypatch.setattr(ClusterSource, "identity", url_of)

    def config(self, topics: str = "") -> MirrorConfig:
        """The file of the mirror, with more lines in its table `topics`."""
        path = self._folder / "mirror.toml"
        path.write_text(FILE.format(topics=topics))
        return load(path)

    def copied(
        self,
        rows: Sequence[ProducerRecord],
        runs: Sequence[Sequence[tuple[int, int, int]]],
        end: int,
        *,
        records: int | None = None,
        topic_id: str | None = None,
    ) -> None:
        """Write what is on the target by hand.

        Args:
            rows: The records of the topic there.
            runs: Of each transaction: source position, target offset, records.
            end: The progress on the source.
            records: How many records it says were copied; None: as many as the runs have.
            topic_id: Id of the topic on the source.
        """
        if not self._made:
            self.target.create_topic("orders")
            self.target.create_topic("odradek.mirror.m")
            self._made = True
        self.target.append("orders", rows)
        entries = [IndexEntry(P0, tuple(Run(at, 0, to, count) for at, to, count in each)) for each in runs]
        count = sum(run.records for entry in entries for run in entry.runs) if records is None else records
        progress = CopyProgress(SourcePosition(end, 0, topic_id), None, count)
        self.store(
            [
                MirrorIdentity("kafka://source:9092", "kafka://target:9092"),
                CopiedTopic("orders", "orders", topic_id_of(self.target, "orders"), {P0: CopyTarget(0, 0)}),
                *entries,
                Progress(0, {P0: progress}),
            ]
        )

    def store(self, values: Iterable[Stored]) -> None:
        """Write what the mirror stores."""
        rows = [ProducerRecord(value, key) for key, value in stored_records(values)]
        self.target.append("odradek.mirror.m", rows)
