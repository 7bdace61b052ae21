"""What Kafka's own tool (DumpLogSegments) says of a log of one file, against what each way to read it says."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import odradek as od
from odradek import segments
from odradek.cli.app import run
from odradek.pipeline.committed import open_committed
from odradek.pipeline.config import load
from odradek.pipeline.run import execute
from odradek.pipeline.verify import verify
from odradek.segments import KafkaLog, StoredBatch
from odradek.testing import KafkaBroker

from ..pipeline.workspace import in_process

__all__ = ["Backup", "Dump", "Row", "compare", "compare_rows", "row_of"]

Line = dict[str, str]

BATCH_FIELDS = (
    "baseoffset", "lastoffset", "size", "basesequence", "lastsequence", "producerid", "producerepoch",
    "partitionleaderepoch",
)  # fmt: skip

PIPELINE = """
[source]
logs = ["logs"]
[run]
state = "state"
[flows.delta]
pattern = ".*"
[flows.delta.sink]
path = "delta"
[flows.iceberg]
pattern = ".*"
[flows.iceberg.sink]
kind = "iceberg"
path = "iceberg"
"""


class Row(NamedTuple):
    """A record, however it was read."""

    position: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


# ---- Kafka's own tool ----------------------------------------------------------------------------------------


class Dump:
    """What Kafka's tool prints of the first file of a log: `batches`, and `records` with the markers of transactions.
    Names are small letters."""

    def __init__(self, kafka: KafkaBroker, log: KafkaLog) -> None:
        path = str(log.segments[0].path)
        self.batches = _printed(kafka, "--files", path)
        self.records = _printed(kafka, "--files", path, "--print-data-log", "--deep-iteration")

    @cached_property
    def data(self) -> list[Line]:
        """The records that clients have written."""
        return [line for line in self.records if "endtxnmarker" not in line]

    @cached_property
    def markers(self) -> dict[int, str]:
        """Offset of each marker -> `commit` or `abort`."""
        return {int(line["offset"]): line["endtxnmarker"].lower() for line in self.records if "endtxnmarker" in line}

    @cached_property
    def committed(self) -> list[Line]:
        """The records of committed transactions and of none, in front of the first open transaction."""
        hidden: set[int] = set()
        for batch in (batch for batch in self.batches if batch.get("istransactional") == "true"):
            first, last = int(batch["baseoffset"]), int(batch["lastoffset"])
            end = next((at for at in self._ends(batch["producerid"]) if at >= first), None)
            if end is None:
                return [line for line in self.data if int(line["offset"]) not in hidden and int(line["offset"]) < first]
            hidden.update(range(first, last + 1) if self.markers[end] == "abort" else ())
        return [line for line in self.data if int(line["offset"]) not in hidden]

    def _ends(self, producer: str) -> list[int]:
        own = (int(batch["baseoffset"]) for batch in self.batches if batch["producerid"] == producer)
        return [at for at in own if at in self.markers]


def _printed(kafka: KafkaBroker, *options: str) -> list[Line]:
    """The lines that the tool prints of batches or, from 2.3 on with "|" in front and batches between, of records."""
    package = "org.apache.kafka" if int(kafka.version.split(".")[0]) >= 4 else "kafka"
    done = kafka.java_tool(f"{package}.tools.DumpLogSegments", *options)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    inside = [line for line in printed if line.startswith("|")]
    lines = [re.findall(r"(\w+): (\S+)", line) for line in inside or printed]
    return [{name.lower(): text for name, text in line} for line in lines if len(line) > 2]


# ---- comparison ----------------------------------------------------------------------------------------------


def compare(log: KafkaLog, dump: Dump) -> None:
    """Compare what `odradek.segments` says of a log with what Kafka's tool says."""
    batches = list(log.stored_batches())
    assert len(batches) == len(dump.batches) > 0
    for batch, line in zip(batches, dump.batches, strict=True):
        _compare_batch(batch, line)
    assert {b.base_offset: b.marker for b in batches if b.marker is not None} == dump.markers
    compare_rows(_rows(log.batches()), dump.data)
    assert log.verify() == (len(dump.data), log.size, ())


def _compare_batch(batch: StoredBatch, line: Line) -> None:
    assert (str(batch.at), str(batch.magic)) == (line["position"], line["magic"])
    kind = line["compresscodec"].lower().removesuffix("compressioncodec")
    assert {"no": "none"}.get(kind, kind) == batch.compression
    assert (line["isvalid"], batch.damage) == ("true", "")
    assert int(line.get("createtime", line.get("logappendtime", -1))) == (
        -1 if batch.timestamp is None else batch.timestamp
    )
    if batch.magic < 2:
        assert int(line["offset"]) == batch.base_offset
        return
    assert [int(line[name]) for name in BATCH_FIELDS] == [
        batch.base_offset,
        batch.next_offset - 1,
        batch.size,
        *(-1 if number is None else number for number in (batch.base_sequence, batch.last_sequence)),
        *(-1 if number is None else number for number in (batch.producer_id, batch.producer_epoch)),
        batch.leader_epoch,
    ]
    assert line["istransactional"] == str(batch.is_transactional).lower()
    if "iscontrol" in line:
        assert line["iscontrol"] == str(batch.marker is not None).lower()
        assert int(line["count"]) == batch.record_count


def compare_rows(rows: Sequence[Row], lines: Sequence[Line]) -> None:
    """Compare records with lines of Kafka's tool."""
    assert [_as_line(row, line) for row, line in zip(rows, lines, strict=True)] == list(lines)


def _as_line(row: Row, line: Line) -> Line:
    """The line with everything in it that is also in the row as the row says."""
    known: dict[str, Any] = {"offset": row.position}
    if "createtime" in line:
        known["createtime"] = row.timestamp
    if row.key is not None and ("key" in line or row.value is not None):  # 0.8 and 0.9 leave it out
        known["key"] = row.key.decode()
    if row.value is not None:
        known["payload"] = row.value.decode()
    elif "payload" in line:
        known["payload"] = "null"
    if "headerkeys" in line:
        known["headerkeys"] = f"[{','.join(name for name, _ in row.headers)}]"
    sizes = {"keysize": row.key, "valuesize": row.value, "payloadsize": row.value}
    known |= {name: -1 if sizes[name] is None else len(sizes[name] or b"") for name in sizes if name in line}
    return {**line, **{name: str(fact) for name, fact in known.items()}}


def _rows(batches: Iterable[od.Batch]) -> list[Row]:
    return [Row(r.position, r.timestamp, r.key, r.value, tuple(r.headers)) for batch in batches for r in batch]


# ---- the command line and a pipeline -------------------------------------------------------------------------


class Backup:
    """A copy of a log's directory, `logs`, without the checkpoints of its broker: all of it can be read at once, and
    nothing changes it. It is read by the command line and by a pipeline, and compared with what Kafka's tool says."""

    def __init__(self, root: Path, log: KafkaLog, capfd: pytest.CaptureFixture[str]) -> None:
        self.logs, self._root, self._capfd = root / "logs", root, capfd
        self.directory = Path(shutil.copytree(log.directory, self.logs / log.directory.name))

    def compare(self, log: KafkaLog, dump: Dump) -> None:
        """Compare all with a log that was compared itself, and with what Kafka's tool says of it."""
        self._compare_list(log, dump)
        self._compare_batches(log)
        self._compare_records(dump)
        self._compare_tables(dump)

    def _printed(self, *options: str) -> list[dict[str, Any]]:
        assert run(["log", "--quiet", "--json", *options]) == 0
        return [json.loads(line) for line in self._capfd.readouterr().out.splitlines()]

    def _compare_list(self, log: KafkaLog, dump: Dump) -> None:
        (row,) = self._printed("--ls", str(self.logs))
        names = ("topic", "partition", "unit", "start", "end", "segments", "bytes", "topic_id")
        size, end = log.segments[0].path.stat().st_size, int(dump.records[-1]["offset"]) + 1
        facts = (log.partition.topic, log.partition.partition, "offsets", 0, end, 1, size, log.facts.topic_id)
        assert tuple(row[name] for name in names) == facts
        (checked,) = self._printed("--verify", str(self.logs))
        assert (checked["ok"], checked["messages"], checked["faults"]) == (True, len(dump.data), [])
        assert checked["leader_epochs"] == (row["leader_epochs"] or [])

    def _compare_batches(self, log: KafkaLog) -> None:
        lines = [line for line in self._printed("--dump", str(self.directory)) if "at" in line]
        batches = [batch._asdict() | {"path": batch.path.name} for batch in log.stored_batches()]
        renamed = {"path": "file", "base_offset": "position", "next_offset": "next_position"}
        assert [{name: line[renamed.get(name, name)] for name in StoredBatch._fields} for line in lines] == batches

    def _compare_records(self, dump: Dump) -> None:
        compare_rows([_row_of_json(line) for line in self._printed(str(self.logs))], dump.data)
        compare_rows(_rows(segments.open(self.directory).batches(read_committed=True)), dump.committed)
        committed = self._printed("--read-committed", str(self.directory))
        compare_rows([_row_of_json(line) for line in committed], dump.committed)

    def _compare_tables(self, dump: Dump) -> None:
        """Compare tables of both formats, which have what is committed."""
        file = self._root / "pipeline.toml"
        file.write_text(PIPELINE)
        for flow in execute(load(file), file.name, lambda *_: None, in_process).flows:
            assert (flow.error, flow.problems, flow.rows) == ("", (), len(dump.committed)), flow
            table = open_committed(load(file), flow.name)
            parts = table.rows(None, ["key", "value", "timestamp", "headers"])
            rows = sorted((row_of(fields) for part in parts for fields in part.to_pylist()), key=itemgetter(0))
            compare_rows(rows, dump.committed)
            assert verify(load(file), table).findings == []


def _row_of_json(line: Mapping[str, Any]) -> Row:
    headers = tuple((header["name"], _bytes(header, "value")) for header in line.get("headers", ()))
    return Row(line["position"], line.get("timestamp"), _bytes(line, "key"), _bytes(line, "value"), headers)


def _bytes(line: Mapping[str, Any], name: str) -> bytes | None:
    if (text := line.get(name)) is not None:
        return str(text).encode()
    return base64.b64decode(line[f"{name}_base64"]) if f"{name}_base64" in line else None


def row_of(fields: Mapping[str, Any]) -> Row:
    """The row of a table, or of Spark's data source, as a record."""
    time, headers = fields["timestamp"], fields["headers"] or ()
    return Row(
        fields["offset"],
        None if time is None else round(time.timestamp() * 1000),
        fields["key"],
        fields["value"],
        tuple((header["key"], header["value"]) for header in headers),
    )
