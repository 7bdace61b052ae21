"""The files of one task, without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.errors import ConfigError
from odradek.pipeline import staging
from odradek.pipeline.decode import DecodeJob, avro_fields, decode
from odradek.pipeline.staging import CoveredRange, StageJob, Stager, TaskOutput, file_prefix
from odradek.spark.schema import COLUMNS, HEADERS

AT = int(datetime(2026, 11, 21, 23, 30, tzinfo=UTC).timestamp() * 1e6)
SCHEMA = pa.schema([pa.field(column.name, column.arrow) for column in COLUMNS])


def rows(count: int, first: int = 0, topic: str = "t", partition: int = 0, broker: int | None = 1) -> pa.RecordBatch:
    """As the data source makes them: 18 bytes of log each."""
    one = {"key": None, "topic": topic, "partition": partition, "broker": broker, "index": 0, "timestampType": -1}
    return pa.RecordBatch.from_pylist(
        [
            {**one, "value": b"%08d" % n, "offset": 18 * n, "nextOffset": 18 * n + 18}
            for n in range(first, first + count)
        ],
        schema=SCHEMA,
    )


def job(root: Path, **changes: Any) -> StageJob:
    usual = StageJob(
        str(root),
        "",
        file_prefix("f", 3, "ab"),
        DecodeJob("raw", read_at=AT),
        ("topic", "date", "hour"),
        "UTC",
        "zstd",
        10,
    )
    return usual._replace(**changes)


def staged(made: StageJob, *batches: pa.RecordBatch) -> TaskOutput:
    stager = Stager(made)
    for batch in batches:
        stager.add(batch)
    return stager.finish()


def test_rows_are_in_files_of_their_partitions_and_all_of_them_are_accounted_for(tmp_path: Path) -> None:
    account = staged(job(tmp_path), rows(10), rows(5, 10), rows(7, 3, topic="u"))
    assert (account.rows, account.payload, account.dead) == (22, 176, 0)
    files = {file.partition["topic"]: file for file in account.files}
    assert files["t"].path.startswith("topic=t/date=2026-11-21/hour=23/odradek-f-00000003-ab-")
    assert (files["t"].rows, files["u"].rows, files["t"].least, files["t"].most) == (
        15,
        7,
        AT / 1e6,
        AT / 1e6,
    )
    table = pq.read_table(tmp_path / files["t"].path, partitioning=None)
    assert table["value"].to_pylist() == [b"%08d" % n for n in range(15)]
    assert account.runs == [CoveredRange("t", "1-0", 0, 270), CoveredRange("u", "1-0", 54, 180)]
    bucket = AT // 1_000_000 // 600 * 600
    assert account.audit == {(bucket, "t"): 15, (bucket, "u"): 7}
    assert account.hours["t", AT // 1_000_000 // 3600 * 3600, "bytes"] == 120


def test_hours_are_those_of_the_zone(tmp_path: Path) -> None:
    (file,) = staged(job(tmp_path, zone="Asia/Kathmandu"), rows(1)).files
    assert file.partition == {"topic": "t", "date": "2026-11-22", "hour": "05"}


def test_two_attempts_never_have_a_file_in_common(tmp_path: Path) -> None:
    paths = [file.path for _ in range(2) for file in staged(job(tmp_path), rows(1)).files]
    assert len(set(paths)) == 2 and len(list(tmp_path.rglob("*.parquet"))) == 2


def test_an_abandoned_task_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "OPEN_FILES", 1)
    monkeypatch.setattr(staging, "GROUP_BYTES", 1)
    stager = Stager(job(tmp_path))
    for topic in ("t", "u", "t"):
        stager.add(rows(3, topic=topic))
    assert list(tmp_path.rglob("*.parquet"))
    stager.abandon()
    assert not list(tmp_path.rglob("*.parquet"))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=12), st.integers(1, 3), st.integers(1, 4000))
def test_nothing_is_lost_however_few_files_are_open_and_bytes_held(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int]], open_files: int, held: int
) -> None:
    root = tmp_path_factory.mktemp("table")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "OPEN_FILES", open_files)
        patch.setattr(staging, "HELD_BYTES", held)
        reached: dict[int, int] = {}
        batches = []
        for topic, count in parts:
            first = reached.get(topic, 0)
            batches.append(rows(count, first, f"t{topic}"))
            reached[topic] = first + count
        account = staged(job(root), *batches)
    read: dict[str, list[int]] = {}
    for file in account.files:
        for row in pq.read_table(root / file.path, partitioning=None).to_pylist():
            read.setdefault(row["topic"], []).append(row["offset"])
    assert {topic: sorted(offsets) for topic, offsets in read.items()} == {
        f"t{topic}": [18 * n for n in range(count)] for topic, count in reached.items()
    }


def test_runs_have_no_holes_and_end_where_there_is_one(tmp_path: Path) -> None:
    account = staged(job(tmp_path), rows(2), rows(2, 2), rows(2, 5), rows(1, 7, partition=1), rows(1, 8, broker=None))
    assert account.runs == [
        CoveredRange("t", "1-0", 0, 72), CoveredRange("t", "1-0", 90, 126),
        CoveredRange("t", "1-1", 126, 144), CoveredRange("t", "0", 144, 162)
    ]  # fmt: skip


def test_a_compressed_wrapper_is_one_run(tmp_path: Path) -> None:
    batch = pa.Table.from_batches([rows(4)]).to_pylist()
    for index, row in enumerate(batch):
        row.update(index=index, offset=100, nextOffset=100 if index < 3 else 250)
    whole = pa.RecordBatch.from_pylist(batch, schema=SCHEMA)
    for cut in range(5):
        account = staged(job(tmp_path), whole.slice(0, cut), whole.slice(cut))
        assert account.runs == [CoveredRange("t", "1-0", 100, 250)]


def test_rows_that_the_source_could_not_decode_are_dead(tmp_path: Path) -> None:
    batch = rows(3)
    headers = pa.array([None, [{"key": "error", "value": b"crc"}], None], HEADERS.arrow)
    batch = pa.RecordBatch.from_arrays(
        [*batch.columns, headers], schema=SCHEMA.append(pa.field("headers", headers.type))
    )
    account = staged(job(tmp_path / "t", dead_root=str(tmp_path / "dead")), batch)
    assert (account.rows, account.reasons, account.examples) == (
        2, {"corrupt message": 1}, ["corrupt message: t/1-0 at 18"]
    )  # fmt: skip
    (file,) = account.dead_files
    assert "/" not in file.path and (file.rows, file.partition) == (1, {})


# ---- Avro ----------------------------------------------------------------------------------------------------


def test_avro_types_have_columns() -> None:
    fields = avro_fields(
        json.dumps({
            "type": "record", "name": "R", "namespace": "n", "fields": [
                {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
                {"name": "again", "type": ["n.E", "null"]},
                {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
                {"name": "m", "type": {"type": "map", "values": "double"}},
                {"name": "x", "type": {"type": "fixed", "name": "F", "size": 4}},
                {"name": "in", "type": {"type": "record", "name": "I", "fields": [{"name": "a", "type": "int"}]}},
            ],
        })
    )  # fmt: skip
    assert fields == {
        "e": pa.string(), "again": pa.string(), "d": pa.decimal128(9, 2), "m": pa.map_(pa.string(), pa.float64()),
        "x": pa.binary(4), "in": pa.struct([("a", pa.int32())]),
    }  # fmt: skip


@pytest.mark.parametrize("kind", [["int", "string"], "R", {"type": "array", "items": "Nothing"}])
def test_avro_types_that_have_none_are_refused(kind: object) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
    with pytest.raises(ConfigError):
        avro_fields(json.dumps(schema))


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_hostile_bytes_become_dead_letters(values: list[bytes]) -> None:
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "a", "type": {"type": "array", "items": ["null", "string"]}}, {"name": "n", "type": "long"},
    ]}  # fmt: skip
    batch = rows(len(values))
    arrays = [pa.array(values, pa.binary()) if name == "value" else batch[name] for name in SCHEMA.names]
    decoded = decode(DecodeJob("avro", json.dumps(schema)), pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
    assert len(decoded.reasons) == len(decoded.columns[0]) == len(values)
