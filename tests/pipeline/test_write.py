"""The files of a task: rows by partition of the table, in order, in as few files as there are partitions."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.pipeline import write
from odradek.pipeline.delta import column_statistics
from odradek.pipeline.errors import StorageError
from odradek.pipeline.layout import Storage, column_types, parse_columns, partition_values
from odradek.pipeline.table import DataFile
from odradek.pipeline.write import FileWriter, SmallGroups, WriteTarget

COLUMNS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "offset": pa.int64(),
    "record_time": pa.timestamp("us", tz="UTC"),
}
HOUR_US = 3_600_000_000
HOURLY = ("topic", "date", "hour")
ROWS = st.tuples(st.none() | st.text(max_size=3), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-1000, 1000))


def batch(rows: Sequence[tuple[str | None, int, int]]) -> pa.RecordBatch:
    """Rows of topic, offset and hour."""
    times = [hour * HOUR_US for _, _, hour in rows]
    return pa.record_batch([[row[0] for row in rows], [row[1] for row in rows], times], schema=pa.schema(COLUMNS))


def written(
    root: Path, batches: list[pa.RecordBatch], by: tuple[str, ...] = ("topic", "date", "hour")
) -> list[DataFile]:
    target = WriteTarget(
        Storage(str(root), "delta"), pa.schema({"offset": pa.int64()}), "delta", parse_columns(by, "delta"), prefix="p-"
    )
    writer = FileWriter(target)
    for each in batches:
        writer.add(each)
    return writer.finish()


def offsets(root: Path, file: DataFile) -> list[int]:
    result: Any = pq.ParquetFile(root / file.path).read()["offset"].to_pylist()
    return list(result)


def test_late_rows_make_one_file_for_each_partition_and_task(tmp_path: Path) -> None:
    rows = [("orders", n, 500_000 + (n % 20 or n % 700)) for n in range(20_000)]
    files = written(tmp_path, [batch(rows[n : n + 500]) for n in range(0, len(rows), 500)], ("date", "hour"))
    assert len(files) == len({hour for _, _, hour in rows})
    assert sorted(offset for file in files for offset in offsets(tmp_path, file)) == list(range(20_000))


def hourly(root: Path) -> FileWriter:
    columns = parse_columns(("date", "hour"), "delta")
    return FileWriter(WriteTarget(Storage(str(root), "delta"), pa.schema({"offset": pa.int64()}), "delta", columns))


@pytest.mark.parametrize("most", [1 << 20, 500, 0])
def test_small_groups_of_several_writers_share_files_up_to_a_size(tmp_path: Path, most: int) -> None:
    hours = [n % 50 or 1 for n in range(300)]
    left: list[SmallGroups] = []
    files: list[DataFile] = []
    for first in (0, 300, 600):
        writer = hourly(tmp_path)
        for n in range(0, 300, 60):
            writer.add(batch([("t", first + k, hours[k]) for k in range(n, n + 60)]))
        left += pickle.loads(pickle.dumps(writer.take_small(most)))
        files += writer.finish()
    assert all(small.rows.nbytes <= most for small in left)
    assert len(files) == 3 * 49 - sum(len(small.keys) for small in left)
    shared = hourly(tmp_path)
    for small in left:
        shared.add_small(small)
    mine = shared.finish()
    assert len(mine) == len({key for small in left for key in small.keys})
    for file in (*files, *mine):
        numbers = offsets(tmp_path, file)
        day = file.partition["date"].toordinal() - date(1970, 1, 1).toordinal()
        assert {hours[number % 300] for number in numbers} == {file.partition["hour"] + 24 * day}
        assert numbers == sorted(numbers)
    assert sorted(offset for file in (*files, *mine) for offset in offsets(tmp_path, file)) == list(range(900))
    if most == 1 << 20:
        assert not files and len(mine) == 49


def test_a_group_that_has_a_file_already_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "DIVIDE_BYTES", 1)
    monkeypatch.setattr(write, "GROUP_BYTES", 100)
    writer = hourly(tmp_path)
    writer.add(batch([("t", n, 5) for n in range(50)]))
    writer.add(batch([("t", 50, 5), ("t", 51, 6)]))
    (small,) = writer.take_small(1 << 20)
    assert small.rows["offset"].to_pylist() == [51]
    (file,) = writer.finish()
    assert offsets(tmp_path, file) == list(range(51))


def test_rows_keep_their_order_within_a_partition(tmp_path: Path) -> None:
    files = written(tmp_path, [batch([(f"t{n % 3}", n, 0) for n in range(first, first + 100)]) for first in (0, 100)])
    assert len(files) == 3
    for file in files:
        assert offsets(tmp_path, file) == sorted(offsets(tmp_path, file))


def test_a_null_is_a_partition_of_its_own(tmp_path: Path) -> None:
    files = written(tmp_path, [batch([(None, 1, 0), ("a", 2, 0), (None, 3, 0)])], ("topic",))
    assert {(file.partition["topic"], tuple(offsets(tmp_path, file))) for file in files} == {
        (None, (1, 3)),
        ("a", (2,)),
    }


@pytest.mark.parametrize(
    ("kind", "value", "folder"),
    [
        (pa.binary(), "Z\u00fcrich 1".encode(), "by=Z%C3%BCrich%201"),
        (pa.decimal128(20, 8), Decimal("0.00000001"), "by=0.00000001"),
        (pa.bool_(), True, "by=true"),
        (pa.date32(), date(2026, 1, 31), "by=2026-01-31"),
        (pa.string(), None, "by=__HIVE_DEFAULT_PARTITION__"),
    ],
    ids=str,
)
def test_folders_of_plain_files_have_the_values_as_text(
    tmp_path: Path, kind: pa.DataType, value: Any, folder: str
) -> None:
    schema = pa.schema({"offset": pa.int64()})
    target = WriteTarget(Storage(str(tmp_path), "parquet"), schema, "parquet", parse_columns(("by",), "delta"))
    with FileWriter(target) as writer:
        writer.add(pa.record_batch({"offset": pa.array([1]), "by": pa.array([value], kind)}))
        (file,) = writer.finish()
    assert file.path.split("/")[0] == folder


def test_values_of_any_length_and_with_any_characters_have_a_folder(tmp_path: Path) -> None:
    values = ["x" * 5_000, "x" * 5_001, "\0/../..", "\U0001f600" * 100]
    files = written(tmp_path, [batch([(value, n, 0) for n, value in enumerate(values)])], ("topic",))
    assert {file.partition["topic"]: offsets(tmp_path, file) for file in files} == {
        v: [n] for n, v in enumerate(values)
    }
    assert all((tmp_path / file.path).resolve().parent.parent == tmp_path for file in files)


def test_memory_is_bounded_by_writing_the_largest_groups_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "DIVIDE_BYTES", 1_000)
    monkeypatch.setattr(write, "HELD_BYTES", 5_000)
    monkeypatch.setattr(write, "OPEN_FILES", 3)
    rows = [(f"t{n % 10 if n % 3 else 0}", n, 0) for n in range(5_000)]
    files = written(tmp_path, [batch(rows[n : n + 50]) for n in range(0, 5_000, 50)], ("topic",))
    assert sorted(offset for file in files for offset in offsets(tmp_path, file)) == list(range(5_000))
    assert max(file.footer.num_row_groups for file in files) > 1


def test_what_is_abandoned_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "DIVIDE_BYTES", 1)
    monkeypatch.setattr(write, "GROUP_BYTES", 1)
    target = WriteTarget(Storage(str(tmp_path), "delta"), pa.schema({"offset": pa.int64()}), "delta", prefix="p-")
    writer = FileWriter(target)
    writer.add(batch([("a", 1, 0)]))
    assert list(tmp_path.rglob("*.parquet"))
    writer.abandon()
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("rest", [0, 1, 8, 100])
def test_a_full_disk_is_what_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rest: int) -> None:
    """However much of a file is left when the disk is full: closing it again fails in a way of its own, which says
    nothing of the disk."""
    with hourly(tmp_path) as writer:
        writer.add(batch([("a", 0, 0)]))
        (whole,) = writer.finish()
    disk, fits = pa.fs.LocalFileSystem(), whole.size - rest
    monkeypatch.setattr(Storage, "create", lambda *_: disk.open_output_stream("/dev/full", buffer_size=fits))
    with pytest.raises(StorageError, match="No space left on device"), hourly(tmp_path) as writer:
        writer.add(batch([("a", 0, 0)]))
        writer.finish()


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(ROWS, max_size=40))
def test_any_rows_are_in_the_files_of_their_partitions(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str | None, int, int]]
) -> None:
    root = tmp_path_factory.mktemp("table")
    files = written(root, [batch(rows)] if rows else [])
    result = {
        (file.partition["topic"], file.partition["hour"], offset) for file in files for offset in offsets(root, file)
    }
    assert result == {(topic, hour % 24, offset) for topic, offset, hour in rows}


def test_days_and_hours_are_those_of_the_zone_in_delta_and_of_the_epoch_in_iceberg() -> None:
    rows = pa.Table.from_batches([batch([("a", 0, -1), ("a", 1, 23)])])
    columns = parse_columns(("date", "hour"), "delta")
    local = partition_values(columns, rows, "delta", "Asia/Tokyo").to_pylist()
    assert [(str(row["date"]), row["hour"]) for row in local] == [("1970-01-01", 8), ("1970-01-02", 8)]
    (hour,) = parse_columns(("date", "hour"), "iceberg")
    assert partition_values((hour,), rows, "iceberg", "UTC").to_pylist() == [{"hour": -1}, {"hour": 23}]
    (day,) = parse_columns(("date",), "iceberg")
    assert partition_values((day,), rows, "iceberg", "UTC").to_pylist() == [{"date": -1}, {"date": 0}]


def test_columns_that_cannot_divide_a_table_are_refused() -> None:
    from odradek.errors import ConfigError

    fields: dict[str, pa.DataType] = {"a": pa.list_(pa.int64()), "b": pa.float64(), "c": pa.string()}
    for name, words in (("a", "cannot divide"), ("b", "cannot divide"), ("d", "there is no column 'd'")):
        with pytest.raises(ConfigError, match=words):
            column_types(parse_columns((name,), "delta"), fields)


def test_statistics_are_those_of_the_footer(tmp_path: Path) -> None:
    kinds: dict[str, pa.DataType] = {
        "number": pa.int32(), "text": pa.string(), "day": pa.date32(), "time": pa.timestamp("us", tz="UTC"),
        "real": pa.float64(), "flag": pa.bool_(), "bytes": pa.binary(), "list": pa.list_(pa.int64()),
        "map": pa.map_(pa.string(), pa.int64()), "inner": pa.struct([pa.field("x", pa.int64())]), "empty": pa.string(),
    }  # fmt: skip
    first = {"number": 3, "text": "b" * 70, "day": 0, "time": 1, "real": 1.5, "flag": True, "inner": {"x": 7}}
    second = {"number": -1, "text": "a" * 70, "day": 1, "time": 2, "real": float("inf"), "bytes": b"x"}
    nested = ({"list": [1]}, {"map": [("k", 1)]})
    table = pa.Table.from_pylist([first | nested[0], second | nested[1]], schema=pa.schema(kinds))
    pq.write_table(table, tmp_path / "x.parquet")
    result = column_statistics(pq.read_metadata(tmp_path / "x.parquet"))
    assert result["numRecords"] == 2
    assert result["minValues"] == {
        "number": -1, "text": "a" * 64, "day": "1970-01-01", "time": "1970-01-01T00:00:00.000001Z", "real": 1.5,
        "inner": {"x": 7},
    }  # fmt: skip
    assert result["maxValues"] == {
        "number": 3, "day": "1970-01-02", "time": "1970-01-01T00:00:00.000002Z", "inner": {"x": 7}
    }  # fmt: skip
    assert result["nullCount"] == {
        "number": 0, "text": 0, "day": 0, "time": 0, "real": 0, "flag": 1, "bytes": 1, "inner": {"x": 1}, "empty": 2,
    }  # fmt: skip


def test_statistics_of_names_with_dots_are_not_mixed_up(tmp_path: Path) -> None:
    inner = pa.field("b", pa.int64(), nullable=False)
    schema = pa.schema([pa.field("a", pa.struct([inner])), pa.field("c", pa.int64(), nullable=False)])
    row = {"a": {"b": 1}, "c": 2}
    for more, expected in (
        ({}, row), ({"a.b": 3}, {"a.b": 3, "c": 2}), ({"c.d": {"e": 4}}, {"c": 2}), ({"f": {"g.h": 5}}, {"c": 2}),
    ):  # fmt: skip
        fields = pa.unify_schemas([schema, pa.Table.from_pylist([more]).schema])
        pq.write_table(pa.Table.from_pylist([row | more], fields), tmp_path / "x.parquet")
        result = column_statistics(pq.read_metadata(tmp_path / "x.parquet"))
        assert result["minValues"] == result["maxValues"] == expected
