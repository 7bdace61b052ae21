"""Tables that keep the last row of each key, or one row of each id: one commit for each batch, exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from odradek.pipeline.delta import DeltaTable
from odradek.pipeline.errors import TableConflict, TableMismatch, TableReplaced
from odradek.pipeline.flow import FlowRun
from odradek.pipeline.merge import MergeRule, check_rule
from odradek.pipeline.table import make_table

from .test_table import commit, options, write
from .workspace import Workspace

TIME = pa.timestamp("us", tz="UTC")

COLUMNS: Mapping[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "key": pa.binary(),
    "record_time": TIME,
    "value": pa.binary(),
}
SCHEMA = pa.schema(COLUMNS)

HOUR = 3_600_000_000

NO_TOMBSTONES = SCHEMA.empty_table()


def table_of(root: Path, rule: MergeRule, by: tuple[str, ...] = ("date",)) -> DeltaTable:
    table = make_table(replace(options(root, "delta", by), merge=rule))
    assert isinstance(table, DeltaTable) and not table.refresh()
    table.create(pa.schema([*SCHEMA, *(pa.field(name, pa.date32()) for name in by)]), commit(0, 0))
    return table


def rows(*values: tuple[int, bytes | None, int, bytes | None]) -> pa.Table:
    """Return rows of (offset, key, hour, value)."""
    return pa.Table.from_pylist(
        [
            {"topic": "t", "partition": 0, "offset": offset, "key": key, "record_time": hour * HOUR, "value": value}
            for offset, key, hour, value in values
        ],
        schema=pa.schema([field if field.name != "record_time" else field.with_type(pa.int64()) for field in SCHEMA]),
    ).cast(SCHEMA)


def merge(table: DeltaTable, batch: int, data: pa.Table, tombstones: pa.Table = NO_TOMBSTONES) -> None:
    files = [write(table, f"b{batch}-{table.newest_batch()}", data)] if data.num_rows else []
    table.merge(files, tombstones, commit(batch, batch * 10))
    assert not list(Path(table.options.storage.root, "data").glob(f"b{batch}*"))


def content(table: DeltaTable) -> dict[Any, Any]:
    again = make_table(table.options)
    assert again.refresh()
    result = [row for batch in again.rows(["key", "value", "offset"], None) for row in batch.to_pylist()]
    assert len({row["offset"] for row in result}) == len(result)
    return {row["offset"]: (row["key"], row["value"]) for row in result}


LAST = MergeRule(last_by=("key",), value="value")


def test_the_last_row_of_each_key_is_kept_and_tombstones_delete(tmp_path: Path) -> None:
    table = table_of(tmp_path, LAST)
    merge(table, 1, rows((0, b"a", 1, b"1"), (1, b"b", 2, b"1"), (2, b"a", 3, b"2"), (3, None, 4, b"x")))
    assert content(table) == {1: (b"b", b"1"), 2: (b"a", b"2"), 3: (None, b"x")}
    merge(table, 2, rows((4, b"a", 5, b"3"), (5, b"b", 6, None), (6, None, 7, b"y"), (7, b"c", 8, None)))
    assert content(table) == {3: (None, b"x"), 4: (b"a", b"3"), 6: (None, b"y")}
    merge(table, 3, rows((8, b"a", 30, b"4"), (10, b"d", 30, b"1")), rows((9, b"a", 0, None)).drop_columns(["value"]))
    assert content(table) == {3: (None, b"x"), 6: (None, b"y"), 10: (b"d", b"1")}
    assert [each.batch for each in table.commits()] == [3, 2, 1, 0]


UNIQUE = MergeRule(unique="key", hours=2)


def test_an_update_leaves_columns_of_others_alone_and_empties_those_the_flow_has_no_more(tmp_path: Path) -> None:
    table = table_of(tmp_path, MergeRule(last_by=("key",), value="value"), ())
    table.evolve(pa.schema([*SCHEMA, ("once", pa.string())]))
    data = rows((1, b"a", 0, b"1"), (2, b"b", 0, b"2"))
    merge(table, 1, data.append_column("once", pa.array(["x", "y"])))
    loaded = table.loaded
    loaded.alter.add_columns([deltalake.Field("note", deltalake.schema.PrimitiveType("string"))])
    loaded.update({"note": "key"})
    assert table.refresh()
    table.evolve(SCHEMA)
    nothing = pa.nulls(2, pa.string())
    data = rows((3, b"a", 1, b"3"), (4, b"c", 1, b"4"))
    merge(table, 2, data.append_column("once", nothing).append_column("note", nothing))
    assert table.refresh()
    stored = table.loaded.to_pyarrow_table().sort_by("offset").select(["key", "value", "once", "note"]).to_pylist()
    assert [tuple(row.values()) for row in stored] == [
        (b"b", b"2", "y", "b"),
        (b"a", b"3", None, "a"),
        (b"c", b"4", None, None),
    ]


def test_an_id_is_kept_once_within_the_window(tmp_path: Path) -> None:
    table = table_of(tmp_path, UNIQUE)
    merge(table, 1, rows((0, b"a", 10, b"1"), (1, b"a", 12, b"2"), (2, b"a", 13, b"3"), (3, None, 1, b"x")))
    assert sorted(content(table)) == [0, 2, 3]
    merge(table, 2, rows((4, b"a", 15, b"4"), (5, b"a", 8, b"5"), (6, b"a", 16, b"6"), (7, None, 1, b"y")))
    assert sorted(content(table)) == [0, 2, 3, 6, 7]
    merge(table, 3, rows((8, b"a", 16, b"7")))
    assert sorted(content(table)) == [0, 2, 3, 6, 7]
    assert [each.batch for each in table.commits()] == [3, 2, 1, 0]


@pytest.mark.parametrize("rule", [LAST, UNIQUE])
def test_of_two_runs_that_merge_the_same_batch_one_is_refused(tmp_path: Path, rule: MergeRule) -> None:
    table = table_of(tmp_path, rule)
    other = make_table(table.options)
    assert isinstance(other, DeltaTable) and other.refresh()
    merge(table, 1, rows((0, b"a", 1, b"1")))
    file = write(other, "others", rows((0, b"a", 1, b"1")))
    with pytest.raises(TableConflict, match="batch 1 is in the table already"):
        other.merge([file], NO_TOMBSTONES, replace(commit(1, 10), attempt="other"))
    assert sorted(content(table)) == [0]


def test_a_merge_whose_success_was_not_reported_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(tmp_path, UNIQUE)
    original = DeltaTable._merge

    def merge_and_fail(*arguments: Any) -> None:
        original(*arguments)
        raise OSError("the connection was lost")

    monkeypatch.setattr(DeltaTable, "_merge", merge_and_fail)
    merge(table, 1, rows((0, None, 1, b"1")))
    assert sorted(content(table)) == [0]


def test_another_application_that_deletes_rows_meanwhile_does_not_stop_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import deltalake

    table = table_of(tmp_path, LAST)
    merge(table, 1, rows((0, b"a", 1, b"1"), (1, b"b", 1, b"1")))
    original = DeltaTable._merge
    changes = ["offset = 1"]

    def delete_and_merge(*arguments: Any) -> None:
        if changes:
            deltalake.DeltaTable(table.options.storage.root).delete(changes.pop())
        original(*arguments)

    monkeypatch.setattr(DeltaTable, "_merge", delete_and_merge)
    merge(table, 2, rows((2, b"a", 2, b"2")))
    assert content(table) == {2: (b"a", b"2")}


@pytest.mark.parametrize("at", ["load", "merge"])
def test_a_table_that_others_restore_at_the_last_moment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The version that the merge is made on is the one whose newest record was looked at."""
    table = table_of(tmp_path, LAST)
    for batch in (1, 2):
        merge(table, batch, rows((batch, b"%d" % batch, 1, b"x")))
    data = write(table, "b3", rows((3, b"3", 1, b"x")))
    owner, name = (DeltaTable, "_merge") if at == "load" else (deltalake.DeltaTable, "merge")
    original: Any = getattr(owner, name)
    moments = iter([lambda: deltalake.DeltaTable(table.options.storage.root).restore(1)])

    def restore_first(*arguments: Any, **more: Any) -> Any:
        next(moments, lambda: None)()
        return original(*arguments, **more)

    monkeypatch.setattr(owner, name, restore_first)
    with pytest.raises(TableReplaced, match="its newest batch is 1, and this is batch 3"):
        table.merge([data], NO_TOMBSTONES, commit(3, 30))
    assert content(table) == {1: (b"1", b"x")}


@pytest.mark.parametrize("rule", [MergeRule(last_by=("user",)), MergeRule(unique="user", hours=1)])
def test_a_column_that_is_missing_is_refused(rule: MergeRule) -> None:
    with pytest.raises(TableMismatch, match="rows are merged by 'user'"):
        check_rule(rule, SCHEMA, "here")


JSON = """[flows.orders.decode]
kind = "json"
fields = "id bigint, at timestamp, state string"
time = "at"
"""


def orders(*values: tuple[int, int, str]) -> list[bytes]:
    return [
        b'{"id": %d, "at": "2026-01-01T%02d:00:00Z", "state": "%s"}' % (order, hour, state.encode())
        for order, hour, state in values
    ]


def states(work: Workspace) -> list[tuple[int, str]]:
    stored = [row for batch in work.table.rows(["id", "state"], None) for row in batch.to_pylist()]
    return sorted((row["id"], row["state"]) for row in stored)


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ('last_by = ["id"]', [(1, "sent"), (2, "paid"), (3, "paid")]),
        ('unique = { field = "id", hours = 3 }', [(1, "new"), (1, "sent"), (2, "new"), (3, "paid")]),
    ],
)
def test_a_flow_merges_each_batch_once_although_runs_die(
    tmp_path: Path, sink: str, expected: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Workspace(tmp_path, more=JSON, sink=f'partition_by = ["date"]\n{sink}')
    work.append(orders((1, 1, "new"), (1, 2, "paid"), (2, 2, "new")))
    assert not work.run().failed
    work.append(orders((2, 3, "paid"), (1, 9, "sent"), (3, 9, "paid")))
    with monkeypatch.context() as patched:
        patched.setattr(FlowRun, "_remember", die)
        with pytest.raises(Killed):
            work.run()
    assert not work.run().failed
    assert states(work) == expected
    assert [commit.batch for commit in work.table.commits()] == [2, 1, 0]
    files = {Path(file.path).name for file in work.table.files()}
    assert {path.name for path in (tmp_path / "tables" / "orders").rglob("odradek-*")} <= files


class Killed(BaseException):
    """Stands for the death of the process."""


def die(*arguments: object) -> None:
    raise Killed
