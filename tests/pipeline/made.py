"""Logs, and the tables that a run makes of them, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from odradek import segments
from odradek.pipeline.config import Pipeline, load
from odradek.pipeline.ledger import GENESIS, DataFile, Ledger, LedgerEntry, LedgerGap
from odradek.pipeline.tables import KINDS, CommittedTable, open_table
from odradek.wire.kafka07.message_set import encode_set

from ..payloads import payload

ROWS = [b'{"id": %d}' % n for n in range(100)]

SCHEMA = pa.schema([pa.field(name, kind) for name, kind in {**KINDS, "value": pa.binary()}.items()])


class Made:
    """A broker's directory and a flow over it.

    Args:
        root: Where everything is.
        decode, corrupt: As in the pipeline's file.
        source: Instead of the directory, as in the pipeline's file.
    """

    def __init__(self, root: Path, *, decode: str = "raw", corrupt: str = "fail", source: str = "") -> None:
        self.root, self.logs, self.file = root, root / "logs", root / "pipeline.toml"
        self.logs.mkdir(parents=True, exist_ok=True)
        kinds = {"raw": 'kind = "raw"', "json": 'kind = "json"\nfields = "id bigint"'}
        self.file.write_text(
            f"""
[source]
{source or f"logs = {json.dumps([f'1@{self.logs}'])}"}
[run]
checkpoint = {json.dumps(str(root / "checkpoints"))}
[flows.orders]
pattern = ".*"
corrupt = "{corrupt}"
[flows.orders.decode]
{kinds[decode]}
[flows.orders.sink]
path = {json.dumps(str(root / "table"))}
partition_by = ["topic", "date"]
[flows.orders.dead]
path = {json.dumps(str(root / "dead"))}
"""
        )
        self.decode = decode
        self.reached: dict[str, dict[str, int]] = {}

    @property
    def pipeline(self) -> Pipeline:
        return load(self.file)

    @property
    def table(self) -> CommittedTable:
        return open_table("orders", self.pipeline.flows["orders"])

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.root / "table", "orders")

    def log(self, data: bytes | Sequence[bytes], topic: str = "orders", partition: int = 0) -> None:
        """Append to a log: a message set, or messages."""
        directory = self.logs / f"{topic}-{partition}"
        directory.mkdir(exist_ok=True)
        with (directory / f"{0:020}.kafka").open("ab") as file:
            file.write(data if isinstance(data, bytes) else encode_set(list(data)))

    def run(
        self,
        *,
        undecodable: Callable[[bytes], bool] = lambda value: False,
        lose: Callable[[bytes], bool] = lambda value: False,
        corrupt: str = "fail",
        **changes: object,
    ) -> LedgerEntry:
        """Commit one batch of all there is, as a run does: one file for each topic, its rows in no order."""
        start = {topic: dict(partitions) for topic, partitions in self.reached.items()}
        rows: dict[str, list[dict[str, object]]] = {}
        letters: list[dict[str, object]] = []
        gaps: list[LedgerGap] = []
        for log in segments.logs(self.logs):
            name = f"1-{log.partition.partition}"
            mine = start.setdefault(log.partition.topic, {})
            mine.setdefault(name, log.start)
            self.reached.setdefault(log.partition.topic, {})[name] = log.end
            for batch in log.batches(mine[name], corrupt="raw"):
                for number, record in enumerate(batch):
                    row = {
                        "topic": record.topic,
                        "broker": 1,
                        "partition": record.partition.partition,
                        "offset": record.position,
                        "index": record.inner_index,
                        "nextOffset": record.next_position,
                        "value": record.value,
                    }
                    if number in batch.corrupt and corrupt == "skip":
                        gaps.append(LedgerGap(record.topic, name, record.position, record.next_position, "corrupt"))
                    elif number in batch.corrupt or undecodable(payload(record.value)):
                        letters.append(row)
                    elif not lose(payload(record.value)):
                        rows.setdefault(record.topic, []).append(row)
        files = [self.write(topic, part[::-1]) for topic, part in rows.items()]
        dead_files = [self.write_dead(letters)] if letters else []
        entries = self.ledger.entries()
        appends = [each for each in entries if each.kind == "append"]
        entry = LedgerEntry(
            flow="orders",
            batch=len(entries),
            start=start,
            end={topic: dict(partitions) for topic, partitions in self.reached.items()},
            files=tuple(files),
            rows=sum(file.rows for file in files),
            dead=len(letters),
            dead_files=tuple(dead_files),
            gaps=tuple(gaps),
            micro_batch=appends[-1].micro_batch + 1 if appends else 1,
            run="made",
            written=1_800_000_000.0 + len(entries),
            previous=entries[-1].digest if entries else GENESIS,
        )
        return self.ledger.commit(replace(entry, **changes))  # type: ignore[arg-type]

    def write(self, topic: str, rows: list[dict[str, object]]) -> DataFile:
        """A file of the table; the topic is in its path alone, as Spark writes it."""
        directory = f"topic={topic}/date=2026-11-21"
        names = [name for name in SCHEMA.names if name != "topic" and (name != "value" or self.decode == "raw")]
        table = pa.Table.from_pylist(rows, SCHEMA).select(names)
        return self._write(self.root / "table", directory, table, {"topic": topic, "date": "2026-11-21"})

    def write_dead(self, rows: list[dict[str, object]]) -> DataFile:
        return self._write(self.root / "dead", "letters", pa.Table.from_pylist(rows, SCHEMA), {})

    def _write(self, root: Path, directory: str, table: pa.Table, partition: Mapping[str, str]) -> DataFile:
        path = f"{directory}/part-{uuid4().hex}.parquet"
        (root / directory).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, root / path)
        return DataFile(path, table.num_rows, (root / path).stat().st_size, partition)


def gap(start: int, end: int) -> LedgerGap:
    return LedgerGap("orders", "1-0", start, end, "deleted by retention")
