"""Compaction, removal of what nothing needs, and the cost of a table with many commits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import ManifestEntry
from pyiceberg.table.update.snapshot import _OverwriteFiles

from odradek.pipeline.delta import DeltaTable
from odradek.pipeline.iceberg import MIN_SNAPSHOTS, IcebergTable
from odradek.pipeline.layout import Storage
from odradek.pipeline.table import UNLISTED_S, Table, make_table

from .test_table import commit, counted, created, options, rows, write

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])

MiB = 1 << 20


def filled(root: Path, kind: str, batches: int = 6) -> Table:
    """Create a table with one file of ten rows for each batch, on two days."""
    table = created(root, kind)
    for batch in range(1, batches + 1):
        data = rows(10 * batch, 10, day=batch % 2)
        table.append([write(table, f"f{batch}", data)], commit(batch, 10 * batch + 10))
    return table


def age(root: Path, seconds: float) -> None:
    """Make all files below look older."""
    then = time.time() - seconds
    for path in root.rglob("*"):
        os.utime(path, (then, then))


def offsets(table: Table) -> list[int]:
    return sorted(row["offset"] for batch in table.rows(["offset"], None) for row in batch.to_pylist())


@KINDS
def test_small_files_of_a_partition_become_one(tmp_path: Path, kind: str) -> None:
    table = filled(tmp_path, kind)
    assert table.compact(MiB) == {"removed": 6, "added": 2}
    assert table.compact(MiB) == {"removed": 0, "added": 0}
    again = make_table(table.options)
    assert again.refresh() and len(again.files()) == 2
    assert counted(again) == (60, 60) and offsets(again) == list(range(10, 70))
    assert [each.batch for each in again.commits()] == [6, 5, 4, 3, 2, 1, 0]
    again.append([write(again, "more", rows(70, 10))], commit(7, 80))
    assert counted(again) == (70, 70)


def test_buckets_and_hours_are_merged_within_their_partition(tmp_path: Path) -> None:
    table = make_table(options(tmp_path, "iceberg", ("hour", "bucket(4, topic)")))
    table.refresh()
    table.create(rows(0, 1).schema, commit(0, 0))
    for batch in range(1, 5):
        table.append([write(table, f"f{batch}", rows(batch, 1, day=batch % 2))], commit(batch, batch))
    assert table.compact(MiB) == {"removed": 4, "added": 2}
    assert counted(table) == (4, 4)


def test_a_merge_whose_files_pyiceberg_has_missed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads share what compares a manifest's partitions, so that a search for a file can miss it."""
    table, searches, search = filled(tmp_path, "iceberg"), 0, _OverwriteFiles._deleted_entries

    def missed_at_first(change: _OverwriteFiles) -> list[ManifestEntry]:
        nonlocal searches
        searches += 1
        if searches == 1:
            change._validate_required_deletes([])
        return search(change)

    monkeypatch.setattr(_OverwriteFiles, "_deleted_entries", missed_at_first)
    assert table.compact(MiB) == {"removed": 6, "added": 2} and searches == 2
    assert counted(table) == (60, 60) and offsets(table) == list(range(10, 70))


def test_small_files_whose_rows_others_have_deleted_become_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path, "iceberg")
    monkeypatch.setattr(IcebergTable, "_read", lambda *_: iter(()))  # pyiceberg reads deletes, and writes none
    assert table.compact(MiB) == {"removed": 6, "added": 0}
    assert table.files() == [] and next(iter(table.commits())).batch == 6


def delete_by_another(table: Table) -> None:
    from pyiceberg.catalog import load_catalog

    load_catalog("odradek", **table.options.catalog).load_table(table.options.name).delete("offset == 21")


def append_by_another(table: Table) -> None:
    other = make_table(table.options)
    other.refresh()
    other.append([write(other, "other", rows(70, 10, day=0))], commit(7, 80))


@pytest.mark.parametrize(
    ("change", "done", "expected"),
    [
        (append_by_another, {"removed": 6, "added": 2}, 70),
        (delete_by_another, {"removed": 3, "added": 1}, 59),
    ],
)
def test_what_others_commit_during_a_compaction_is_kept(
    tmp_path: Path, change: Callable[[Table], None], done: Any, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path, "iceberg")
    original = IcebergTable._replace
    changes = [change]

    def replace(*arguments: Any) -> bool:
        if changes:
            changes.pop()(table)
        return original(*arguments)

    monkeypatch.setattr(IcebergTable, "_replace", replace)
    assert table.compact(MiB) == done
    assert counted(table) == (expected, expected)
    merged = list(Path(table.options.storage.root).rglob("odradek-orders-merged-*"))
    assert len(merged) == done["added"]


@KINDS
def test_clean_removes_what_nothing_needs_and_nothing_else(tmp_path: Path, kind: str) -> None:
    table = filled(tmp_path, kind)
    root = Path(table.options.storage.root)
    orphan = root / "topic=orders" / "odradek-orders-00000009-dead-1.parquet"
    orphan.parent.mkdir(exist_ok=True)
    orphan.write_bytes(b"never committed")
    foreign = root / "notes.txt"
    foreign.write_text("of a person")
    table.compact(MiB)
    age(root, UNLISTED_S + 3 * 3600)
    young = root / "data" / "odradek-orders-00000010-young-1.parquet"
    young.write_bytes(b"of a task that is running")
    planned = table.clean(3600, dry_run=True)
    assert orphan.exists() and counted(table) == (60, 60)
    removed = table.clean(3600, dry_run=False)
    assert set(planned) <= set(removed) and any(path.endswith(orphan.name) for path in removed)
    assert not orphan.exists() and young.exists() and (kind == "delta" or foreign.exists())
    again = make_table(table.options)
    assert again.refresh() and counted(again) == (60, 60) and offsets(again) == list(range(10, 70))
    newest = again.newest()
    assert newest is not None and newest.batch == 6
    again.append([write(again, "more", rows(70, 10))], commit(7, 80))
    assert counted(again) == (70, 70)


@KINDS
def test_clean_leaves_what_a_run_is_about_to_list_whatever_its_age_must_be(tmp_path: Path, kind: str) -> None:
    """Of what versions have listed, nothing is kept."""
    table = filled(tmp_path, kind)
    root = Path(table.options.storage.root)
    listed = {file.path for file in table.files()}
    assert table.compact(MiB)["removed"] == 6
    running = write(table, "of-a-run", rows(70, 10))
    other = make_table(table.options)
    assert other.refresh()
    assert listed <= set(other.clean(0, dry_run=False))
    assert not any((root / path).exists() for path in listed)
    assert table.refresh()
    table.append([running], commit(7, 80))
    assert offsets(table) == list(range(10, 80)) and counted(table) == (70, 70)


@KINDS
def test_the_age_of_a_file_is_that_of_the_stores_clock(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = filled(tmp_path, kind)
    running = write(table, "of-a-run", rows(70, 10))
    age(tmp_path, 2 * UNLISTED_S)  # this machine's clock is ahead of the store's
    monkeypatch.setattr(Storage, "now", lambda _: time.time() - 2 * UNLISTED_S)
    table.clean(0, dry_run=False)
    assert Path(table.options.storage.root, running.path).exists()
    monkeypatch.undo()
    assert any(path.endswith(running.path) for path in table.clean(0, dry_run=False))


def test_a_store_says_its_time_and_keeps_nothing_of_that(tmp_path: Path) -> None:
    before = time.time()
    assert before - 2 < Storage(str(tmp_path), "delta").now() < time.time() + 2
    assert list(tmp_path.iterdir()) == []


def test_expiry_keeps_the_way_to_the_newest_record(tmp_path: Path) -> None:
    table = filled(tmp_path, "iceberg")
    for _ in range(3):
        delete_by_another(table)
        table.refresh()
    assert isinstance(table, IcebergTable)
    before = len(table.loaded.snapshots())
    table.clean(-10, dry_run=False)
    assert len(table.loaded.snapshots()) < before
    newest = table.newest()
    assert newest is not None and newest.batch == 6
    assert offsets(table) == [offset for offset in range(10, 70) if offset != 21]


def test_the_number_of_snapshots_manifests_and_versions_is_bounded(tmp_path: Path) -> None:
    table = created(tmp_path, "iceberg")
    assert isinstance(table, IcebergTable)
    with table.loaded.transaction() as change:
        change.set_properties({MIN_SNAPSHOTS: "20", "commit.manifest.min-count-to-merge": "10"})
    table.refresh()
    file = write(table, "a", rows(0, 10))
    for batch in range(1, 41):
        table.append([file._replace(path=f"data/f{batch}.parquet")], commit(batch, 10 * batch))
    snapshot = table.loaded.current_snapshot()
    assert snapshot is not None
    assert len(table.loaded.snapshots()) == 20
    assert len(snapshot.manifests(table.loaded.io)) < 12
    assert len(list(tmp_path.rglob("*.metadata.json"))) <= 12
    newest = table.newest()
    assert newest is not None and newest.batch == 40 and len(table.files()) == 40


def test_a_delta_log_gets_checkpoints(tmp_path: Path) -> None:
    table = created(tmp_path, "delta")
    assert isinstance(table, DeltaTable)
    file = write(table, "a", rows(0, 10))
    for batch in range(1, 121):
        table.append([file._replace(path=f"data/f{batch}.parquet")], commit(batch, 10 * batch))
    assert list(tmp_path.rglob("*.checkpoint.parquet"))
    newest = table.newest()
    assert newest is not None and newest.batch == 120 and len(table.files()) == 120
