"""Delta and Iceberg tables behind one interface: what a commit makes part of them, and when it is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType

from odradek.errors import ConfigError
from odradek.pipeline.commits import Commit
from odradek.pipeline.errors import TableConflict, TableHistoryLost, TableMismatch, TableReplaced
from odradek.pipeline.layout import Storage, parse_columns, partition_values
from odradek.pipeline.table import DataFile, Table, TableOptions, make_table

COLUMNS: Mapping[str, pa.DataType] = {
    "topic": pa.string(),
    "offset": pa.int64(),
    "record_time": pa.timestamp("us", tz="UTC"),
    "value": pa.binary(),
    "headers": pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
}
SCHEMA = pa.schema(COLUMNS)

DAY_US = 86_400_000_000


def options(root: Path, kind: str, by: tuple[str, ...] = ("topic", "date")) -> TableOptions:
    catalog = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db"} if kind == "iceberg" else {}
    storage = Storage(str(root / "table"), kind)
    return TableOptions(kind, "orders", storage, parse_columns(by, kind), name="shop.orders", catalog=catalog)


def created(root: Path, kind: str, **more: Any) -> Table:
    table = make_table(options(root, kind, **more))
    assert not table.refresh()
    wanted = [*SCHEMA, pa.field("date", pa.date32())] if kind == "delta" else list(SCHEMA)
    table.create(pa.schema(wanted), Commit("orders", 0, end={"orders": {"0": 0}}))
    return table


def rows(first: int, count: int, topic: str = "orders", day: int = 0) -> pa.Table:
    offsets = list(range(first, first + count))
    times = pa.array([day * DAY_US + offset for offset in offsets], SCHEMA.field("record_time").type)
    return pa.table(
        [[topic] * count, offsets, times, [b"%d" % n for n in offsets], [[{"key": "a", "value": b"b"}]] * count],
        schema=SCHEMA,
    )


def write(table: Table, name: str, data: pa.Table) -> DataFile:
    """Write a file as a task does."""
    o = table.options
    values: Mapping[str, Any] = partition_values(o.columns, data, o.kind, o.zone).slice(0, 1).to_pylist()[0]
    schema = table.file_schema()
    path = f"data/{name}.parquet"
    with o.storage.create(path) as file, pq.ParquetWriter(file, schema) as writer:
        writer.write_table(data.select(schema.names).cast(schema))
    with o.storage.open(path) as file:
        footer = pq.read_metadata(file)
    size = o.storage.size(path)
    assert size
    return DataFile(path, size, values, footer)


def commit(batch: int, end: int, attempt: str = "") -> Commit:
    return Commit("orders", batch, attempt or f"a{batch}", end={"orders": {"0": end}}, rows=10)


def counted(table: Table) -> tuple[int, int]:
    """Count rows and different offsets with DuckDB, from the files that the table's library lists."""
    names = [str(Path(table.options.storage.root, file.path)) for file in table.files()]
    query = f'select count(*), count(distinct "offset") from read_parquet({names!r})'
    result = duckdb.execute(query).fetchall()[0]
    return result[0], result[1]


KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


@KINDS
def test_a_table_says_where_its_newest_batch_ends(tmp_path: Path, kind: str) -> None:
    table = created(tmp_path, kind)
    first = table.newest()
    assert first is not None and (first.batch, first.end) == (0, {"orders": {"0": 0}})
    table.append([write(table, "a", rows(0, 10))], commit(1, 10))
    table.append([], commit(2, 12))
    again = make_table(table.options)
    assert again.refresh() and again.identity == table.identity
    assert [each.batch for each in again.commits()] == [2, 1, 0]
    newest = again.newest()
    assert newest is not None and newest.end == {"orders": {"0": 12}}
    assert counted(again) == (10, 10)


@KINDS
def test_of_two_runs_that_commit_the_same_batch_one_is_refused(tmp_path: Path, kind: str) -> None:
    table = created(tmp_path, kind)
    other = make_table(table.options)
    other.refresh()
    mine, others = write(table, "a", rows(0, 10)), write(other, "b", rows(0, 10))
    table.append([mine], commit(1, 10, "mine"))
    with pytest.raises(TableConflict, match="batch 1 is in the table already"):
        other.append([others], commit(1, 10, "other"))
    assert counted(table) == (10, 10)


@KINDS
def test_a_commit_whose_success_was_not_reported_is_found(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path, kind)
    _fail_after_commit(kind, monkeypatch)
    table.append([write(table, "a", rows(0, 10))], commit(1, 10))
    assert counted(table) == (10, 10)
    assert [each.batch for each in table.commits()] == [1, 0]


def _fail_after_commit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner: Any
    if kind == "delta":
        import deltalake

        owner, name = deltalake.DeltaTable, "create_write_transaction"
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        owner, name = SqlCatalog, "commit_table"
    original = getattr(owner, name)

    def commit_and_fail(*arguments: Any, **more: Any) -> None:
        original(*arguments, **more)
        raise OSError("the connection was lost")

    monkeypatch.setattr(owner, name, commit_and_fail)


@KINDS
def test_a_batch_is_committed_although_others_write_the_table(tmp_path: Path, kind: str) -> None:
    table = created(tmp_path, kind)
    table.append([write(table, "a", rows(0, 10))], commit(1, 10))
    mine = write(table, "b", rows(10, 10))
    _delete_by_another(table)
    table.append([mine], commit(2, 20))
    newest = table.newest()
    assert newest is not None and newest.batch == 2
    assert counted(table) == (19, 19)


def _delete_by_another(table: Table) -> None:
    """Delete a person's row, as another application does."""
    o = table.options
    if o.kind == "delta":
        import deltalake

        deltalake.DeltaTable(o.storage.root).delete("offset = 3")
    else:
        from pyiceberg.catalog import load_catalog

        load_catalog("odradek", **o.catalog).load_table(o.name).delete("offset == 3")


@pytest.mark.parametrize("change", ["rename", "drop", "widen"])
def test_an_iceberg_batch_is_committed_although_others_change_columns_and_rows(tmp_path: Path, change: str) -> None:
    """Files have the ids of columns: their names and types in the table may be others by the time of the commit."""
    table = created(tmp_path, "iceberg")
    table.evolve(pa.schema([pa.field("size", pa.int32())]))
    table.append([write(table, "a", _sized(0))], commit(1, 10))
    mine = write(table, "b", _sized(10))
    other = make_table(table.options)
    assert other.refresh()
    with other.loaded.update_schema() as update:
        match change:
            case "rename":
                update.rename_column("size", "length")
            case "drop":
                update.delete_column("size")
            case _:
                update.update_column("size", LongType())
    _delete_by_another(table)
    table.append([mine], commit(2, 20))
    assert [each.batch for each in table.commits()] == [2, 1, 0]
    name = {"rename": "length", "drop": "offset"}.get(change, "size")
    values = {row[name] for batch in table.rows([name, "offset"], (10, 20)) for row in batch.to_pylist()}
    assert values >= set(range(10, 20))


def _sized(first: int) -> pa.Table:
    data = rows(first, 10)
    return data.append_column("size", data["offset"].cast(pa.int32()))


@KINDS
def test_a_restored_table_continues_where_the_restored_version_ends(tmp_path: Path, kind: str) -> None:
    table = created(tmp_path, kind)
    for batch in (1, 2, 3):
        table.append([write(table, f"f{batch}", rows(10 * batch, 10))], commit(batch, 10 * batch + 10))
    _restore_first_batch(table)
    table.refresh()
    newest = table.newest()
    assert newest is not None and newest.batch == 1
    table.append([write(table, "again", rows(20, 10))], commit(2, 30))
    assert [each.batch for each in table.commits()] == [2, 1, 0]
    assert counted(table) == (20, 20)


def _restore_first_batch(table: Table) -> None:
    """Go back to the version with batch 1, as another application does."""
    o = table.options
    if o.kind == "delta":
        import deltalake

        deltalake.DeltaTable(o.storage.root).restore(1)
    else:
        from pyiceberg.catalog import load_catalog

        other = load_catalog("odradek", **o.catalog).load_table(o.name)
        with other.manage_snapshots() as manage:
            manage.rollback_to_snapshot(other.snapshots()[0].snapshot_id)


@KINDS
def test_a_batch_is_not_committed_on_top_of_a_version_without_the_batch_before(tmp_path: Path, kind: str) -> None:
    """The table was restored while the batch was read: the rows of the batches in between would be missing for ever."""
    table = created(tmp_path, kind)
    for batch in (1, 2):
        table.append([write(table, f"f{batch}", rows(10 * batch, 10))], commit(batch, 10 * batch + 10))
    mine = write(table, "f3", rows(30, 10))
    _restore_first_batch(table)
    with pytest.raises(TableReplaced, match="its newest batch is 1, and this is batch 3"):
        table.append([mine], commit(3, 40))
    table.refresh()
    assert [each.batch for each in table.commits()] == [1, 0]
    assert counted(table) == (10, 10)


@KINDS
def test_columns_are_added_and_types_are_not_changed(tmp_path: Path, kind: str) -> None:
    table = created(tmp_path, kind)
    table.append([write(table, "a", rows(0, 10))], commit(1, 10))
    table.evolve(pa.schema([*table.schema, pa.field("user", pa.string())]))
    assert table.file_schema().field("user").type in (pa.string(), pa.large_string())
    data = rows(10, 5).append_column("user", pa.array(["x"] * 5))
    table.append([write(table, "b", data)], commit(2, 15))
    assert counted(table) == (15, 15)
    with pytest.raises(TableMismatch, match="user"):
        table.evolve(pa.schema([*SCHEMA, pa.field("user", pa.int64())]))


def test_iceberg_widens_columns_and_keeps_them_wide(tmp_path: Path) -> None:
    table = created(tmp_path, "iceberg")
    table.evolve(pa.schema([*SCHEMA, pa.field("size", pa.int32())]))
    table.append([write(table, "a", rows(0, 2).append_column("size", pa.array([1, 2], pa.int32())))], commit(1, 2))
    wide = pa.schema([*SCHEMA, pa.field("size", pa.int64())])
    table.evolve(wide)
    table.append([write(table, "b", rows(2, 1).append_column("size", pa.array([1 << 40])))], commit(2, 3))
    table.evolve(pa.schema([*SCHEMA, pa.field("size", pa.int32())]))
    assert table.file_schema().field("size").type == pa.int64()
    sizes = [row["size"] for batch in table.rows(["size"], None) for row in batch.to_pylist()]
    assert sorted(sizes) == [1, 2, 1 << 40]
    assert table.compact(1 << 20) == {"removed": 2, "added": 1}
    assert sorted(row["size"] for batch in table.rows(["size"], None) for row in batch.to_pylist()) == sorted(sizes)


def test_delta_refuses_another_type_and_says_what_to_do(tmp_path: Path) -> None:
    table = created(tmp_path, "delta")
    with pytest.raises(TableMismatch, match=r"offset is int64 in the table.*give the field another name"):
        table.evolve(pa.schema([pa.field("offset", pa.int32())]))


def test_bytes_of_a_fixed_size_are_bytes_in_delta_tables(tmp_path: Path) -> None:
    table = created(tmp_path, "delta")
    nested = pa.struct([pa.field("hash", pa.binary(16))])
    wanted = pa.schema([*SCHEMA, pa.field("id", pa.binary(4)), pa.field("more", nested)])
    for _ in range(2):
        table.evolve(wanted)
    assert table.file_schema().field("id").type == pa.binary()
    assert table.file_schema().field("more").type == pa.struct([pa.field("hash", pa.binary())])


def test_delta_refuses_a_column_that_it_has_no_type_for(tmp_path: Path) -> None:
    table = make_table(options(tmp_path, "delta", ()))
    fields: Any = [pa.field("offset", pa.int64()), pa.field("at", pa.time64("us"))]
    with pytest.raises(TableMismatch, match=r"column at is time64\[us\], which Delta tables cannot have"):
        table.create(pa.schema(fields), Commit("orders", 0))
    assert not table.refresh()


def test_a_catalog_of_sqlite_that_another_process_creates_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has created the tables of the catalog after this one has looked for them, then the namespace, then the table:
    its first run wins, and this one's ends with the error that says so."""
    from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable

    create_tables, exists = SqlCatalog.create_tables, SqlCatalog.namespace_exists

    def create_tables_too_late(catalog: SqlCatalog) -> None:
        create_tables(catalog)
        SqlCatalogBaseTable.metadata.create_all(catalog.engine, checkfirst=False)

    answers = [False]  # the first one
    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "create_tables", create_tables_too_late)
        late = make_table(options(tmp_path, "iceberg"))
        assert not late.refresh()
    created(tmp_path, "iceberg")
    monkeypatch.setattr(SqlCatalog, "namespace_exists", lambda *args: answers.pop() if answers else exists(*args))
    with pytest.raises(TableConflict, match="another process has created it"):
        late.create(SCHEMA, Commit("orders", 0))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"delta.columnMapping.mode": "name"}, "columnMapping"),
        ({"delta.constraints.positive": "offset >= 0"}, "checkConstraints"),
    ],
)
def test_a_delta_table_that_others_have_changed_beyond_plain_columns_is_refused(
    tmp_path: Path, settings: Mapping[str, str], name: str
) -> None:
    table = created(tmp_path, "delta")
    log = Path(table.options.storage.root, "_delta_log", f"{0:020}.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (metadata,) = (action["metaData"] for action in actions if "metaData" in action)
    metadata["configuration"] = dict(settings)
    numbers = count(1)

    def map_column(part: dict[str, Any]) -> dict[str, Any]:
        if "metadata" in part:
            number = next(numbers)
            mapped = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
            part["metadata"] = mapped
        return part

    metadata["schemaString"] = json.dumps(json.loads(metadata["schemaString"], object_hook=map_column))
    upgrade = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}
    lines = [json.dumps(action) for action in ({"metaData": metadata}, upgrade)]
    log.with_name(f"{1:020}.json").write_text("\n".join(lines))
    table.refresh()
    with pytest.raises(TableMismatch, match=name):
        table.check()


@KINDS
def test_another_partitioning_is_refused(tmp_path: Path, kind: str) -> None:
    created(tmp_path, kind)
    other = make_table(options(tmp_path, kind, ("topic",)))
    assert other.refresh()
    with pytest.raises(TableMismatch, match="partitioned"):
        other.check()


@KINDS
def test_readers_skip_files_by_statistics(tmp_path: Path, kind: str) -> None:
    table = created(tmp_path, kind)
    for batch, day in ((1, 0), (2, 1)):
        table.append([write(table, f"f{batch}", rows(batch * 10, 10, day=day))], commit(batch, batch * 10 + 10))
    assert list(_bounds(table)) == [(10, 19, 0), (20, 29, 0)]


def test_a_time_after_the_year_9999_is_stored_in_an_iceberg_table(tmp_path: Path) -> None:
    """As of a producer whose timestamps are in microseconds: 1.7e15 ms is the year 55,840."""
    table = created(tmp_path, "iceberg", by=("topic",))
    late = rows(10, 10, day=1_700_000_000_000_000 * 1000 // DAY_US)
    table.append([write(table, "late", late)], commit(1, 20))
    assert list(_bounds(table)) == [(10, 19, 0)]
    stored = pa.Table.from_batches(table.rows(["record_time"], None))
    assert stored["record_time"].cast(pa.int64()).equals(late["record_time"].cast(pa.int64()))


def _bounds(table: Table) -> list[tuple[int, int, int]]:
    """Return least and largest offset and number of nulls, as the library reads them from the table's log."""
    o = table.options
    if o.kind == "delta":
        import deltalake

        result = pa.table(deltalake.DeltaTable(o.storage.root).get_add_actions(flatten=True)).to_pylist()
        return sorted((each["min.offset"], each["max.offset"], each["null_count.offset"]) for each in result)
    from pyiceberg.catalog import load_catalog

    files = load_catalog("odradek", **o.catalog).load_table(o.name).inspect.files().to_pylist()
    metrics = [each["readable_metrics"]["offset"] for each in files]
    return sorted((each["lower_bound"], each["upper_bound"], each["null_value_count"]) for each in metrics)


@KINDS
def test_buckets_and_hours_divide_as_the_format_has_them(tmp_path: Path, kind: str) -> None:
    by = ("hour", "bucket(4, topic)") if kind == "iceberg" else ("date", "hour")
    table = make_table(options(tmp_path, kind, by))
    table.refresh()
    wanted = (
        list(SCHEMA) if kind == "iceberg" else [*SCHEMA, pa.field("date", pa.date32()), pa.field("hour", pa.int32())]
    )
    table.create(pa.schema(wanted), Commit("orders", 0))
    table.append([write(table, "a", rows(7_200_000_000, 1))], commit(1, 10))
    table.check()
    assert counted(table) == (1, 1)
    if kind == "iceberg":
        from pyiceberg.catalog import load_catalog

        result = load_catalog("odradek", **table.options.catalog).load_table("shop.orders")
        assert result.scan(row_filter="topic == 'orders'").to_arrow().num_rows == 1


DIVIDING: Sequence[tuple[pa.DataType, list[Any]]] = [
    (pa.date32(), [date(2026, 1, 31), date(1, 1, 1), None]),
    (pa.timestamp("us", tz="UTC"), [datetime(2026, 1, 31, 1, 2, 3, 4, UTC), None]),
    (pa.timestamp("us"), [datetime(2026, 1, 31, 1, 2, 3, 4), None]),
    (pa.bool_(), [True, False, None]),
    (pa.decimal128(20, 8), [Decimal("0.00000001"), Decimal(0), Decimal("12.5"), None]),
    (pa.binary(), ["Z\u00fcrich".encode(), b"a/b", None]),
]


@KINDS
@pytest.mark.parametrize(("column", "values"), DIVIDING, ids=[str(column) for column, _ in DIVIDING])
def test_a_column_with_one_value_divides_a_table(
    tmp_path: Path, kind: str, column: pa.DataType, values: list[Any]
) -> None:
    table, data = divided(tmp_path, kind, column, values)
    files = [write(table, f"{row}", data.slice(row, 1)) for row in range(len(values))]
    table.append(files, commit(1, 10))
    stored = pa.Table.from_batches(table.rows(["offset", "by"], None))
    assert stored.sort_by("offset")["by"].to_pylist() == values


def test_delta_tables_are_not_divided_by_bytes_that_are_no_text(tmp_path: Path) -> None:
    table, data = divided(tmp_path, "delta", pa.binary(), [b"\xff"])
    with pytest.raises(ConfigError, match=r"partition_by has a column with the value b'\\xff', which is not UTF-8"):
        table.append([write(table, "a", data)], commit(1, 10))
    assert table.newest_batch() == 0


def divided(root: Path, kind: str, column: pa.DataType, values: Sequence[Any]) -> tuple[Table, pa.Table]:
    """Return a new table that is divided by a column, and rows for it."""
    schema = pa.schema([("offset", pa.int64()), ("by", column)])
    table = make_table(options(root, kind, ("by",)))
    assert not table.refresh()
    table.create(schema, Commit("orders", 0))
    return table, pa.table([list(range(len(values))), list(values)], schema=schema)


def test_a_log_without_the_newest_record_is_refused(tmp_path: Path) -> None:
    table = created(tmp_path, "delta")
    table.append([write(table, "a", rows(0, 10))], commit(1, 10))
    import deltalake

    raw = deltalake.DeltaTable(table.options.storage.root)
    raw.create_checkpoint()
    for name in ("00000000000000000000.json", "00000000000000000001.json"):
        Path(table.options.storage.root, "_delta_log", name).unlink()
    table.refresh()
    with pytest.raises(TableHistoryLost, match="batch 1"):
        table.newest()


def test_a_record_survives_its_way_through_json() -> None:
    made = replace(commit(3, 30), reasons={"corrupt": 2}, dead_files=("dead/x.parquet",), hours={"3600": 7})
    assert Commit.from_json(made.to_json(), "here") == made
