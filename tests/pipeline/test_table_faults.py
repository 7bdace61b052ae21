"""What others do to a table, and what happens to its storage: a run is refused and says why, or goes on exactly."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from click.testing import CliRunner

from odradek.cli.pipeline.accept import accept
from odradek.pipeline.errors import TableUnreadable
from odradek.pipeline.layout import Storage
from odradek.pipeline.status import status
from odradek.pipeline.task import TaskJob, TaskOutput

from .test_flow import numbers
from .workspace import Workspace, run_all

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


@pytest.fixture
def work(tmp_path: Path, kind: str) -> Workspace:
    """A flow whose table has 100 rows, in one batch."""
    work = Workspace(tmp_path, kind)
    work.append(numbers(0, 100))
    assert not work.run().failed
    return work


MESSAGE = 16
"""Size of a message of six bytes in the log."""


def loaded(work: Workspace) -> Any:
    """Open the table as another application does."""
    options = work.table.options
    if options.kind == "delta":
        return deltalake.DeltaTable(options.storage.root)
    from pyiceberg.catalog import load_catalog

    return load_catalog("odradek", **options.catalog).load_table(options.name)


def append_one(work: Workspace) -> None:
    table = loaded(work)
    row = {"topic": "orders", "partition": 0, "offset": 1 << 40, "value": b"another's"}
    if work.kind == "delta":
        schema = pa.schema(table.schema().to_arrow())
        deltalake.write_deltalake(table, pa.Table.from_pylist([row], schema=schema), mode="append")
    else:
        schema = table.schema().as_arrow()
        table.append(pa.Table.from_pylist([row], schema=schema))


def delete_one(work: Workspace) -> None:
    loaded(work).delete(f"offset = {3 * MESSAGE}")


def compact_all(work: Workspace) -> None:
    table = loaded(work)
    if work.kind == "delta":
        append_one(work)  # there must be something to merge
        table = loaded(work)
        assert table.optimize.compact()["numFilesRemoved"] == 2
    else:
        table.overwrite(table.scan().to_arrow())


def values(work: Workspace) -> list[bytes]:
    return sorted(row["value"] for batch in work.table.rows(["value"], None) for row in batch.to_pylist())


CHANGES: list[tuple[Callable[[Workspace], None], set[bytes], set[bytes]]] = [
    (append_one, {b"another's"}, set()),
    (delete_one, set(), {b"000003"}),
    (compact_all, {b"another's"}, set()),
]


@KINDS
@pytest.mark.parametrize(("change", "more", "fewer"), CHANGES, ids=["append", "delete", "compact"])
def test_a_batch_is_committed_although_another_application_changes_the_table(
    work: Workspace, change: Callable[[Workspace], None], more: set[bytes], fewer: set[bytes]
) -> None:
    def run_and_change(jobs: Sequence[TaskJob]) -> list[TaskOutput]:
        change(work)
        return run_all(jobs)

    work.append(numbers(100, 50))
    summary = work.run(run_and_change)
    assert not summary.failed, summary.flows[0].error
    if change is compact_all and work.kind == "iceberg":
        more = set()
    assert values(work) == sorted((set(numbers(0, 150)) | more) - fewer)
    assert not work.run().flows[0].commits


@KINDS
def test_a_table_whose_directory_was_moved_is_refused_until_it_is_back(work: Workspace, tmp_path: Path) -> None:
    home, away = tmp_path / "tables" / "orders", tmp_path / "away"
    home.rename(away)
    work.append(numbers(100, 50))
    error = work.error()
    assert "there is no table, but batch 1 was written" in error and "put the table back" in error
    assert not home.exists()
    away.rename(home)
    assert not work.run().failed
    assert values(work) == numbers(0, 150)


@KINDS
def test_another_table_in_its_place_is_refused(work: Workspace, tmp_path: Path) -> None:
    memory = tmp_path / ".odradek" / "orders.json"
    memory.rename(tmp_path / "kept")
    if work.kind == "delta":
        (tmp_path / "tables" / "orders").rename(tmp_path / "elsewhere")
    else:
        loaded(work).catalog.drop_table(work.table.options.name)
    work.run()
    (tmp_path / "kept").replace(memory)
    error = work.error()
    assert "this is another table" in error and "odradek pipeline accept" in error


@KINDS
def test_a_restored_table_is_refused_and_after_accept_the_rest_is_read_again(work: Workspace, tmp_path: Path) -> None:
    work.append(numbers(100, 50))
    work.run()
    table = loaded(work)
    if work.kind == "delta":
        table.restore(1)
    else:
        with table.manage_snapshots() as manage:
            manage.rollback_to_snapshot(table.snapshots()[0].snapshot_id)
    assert "its newest is batch 1, but batch 2 was written" in work.error()
    assert values(work) == numbers(0, 100)
    assert CliRunner().invoke(accept, [str(tmp_path / "pipeline.toml")]).exit_code == 0
    work.append(numbers(150, 10))
    assert not work.run().failed
    assert values(work) == numbers(0, 160)


def lose_history(work: Workspace) -> None:
    """Let others commit for so long that the table's log no longer has the record of our batch."""
    append_one(work)
    table = loaded(work)
    if work.kind == "delta":
        table.create_checkpoint()
        for file in Path(table.table_uri.removeprefix("file://"), "_delta_log").glob("*[01].json"):
            file.unlink()
    else:
        table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()


@KINDS
def test_a_table_whose_log_no_longer_has_the_record_goes_on(work: Workspace) -> None:
    lose_history(work)
    assert not list(work.table.commits())
    work.append(numbers(100, 50))
    summary = work.run()
    assert not summary.failed, summary.flows[0].error
    assert values(work) == sorted([*numbers(0, 150), b"another's"])


@KINDS
def test_a_table_without_its_record_and_without_its_rows_is_refused(work: Workspace) -> None:
    lose_history(work)
    loaded(work).delete("offset < 1000000")
    error = work.error()
    assert "no longer has the record of batch 1" in error and "FLOW.json" in error


@KINDS
def test_a_table_without_its_record_and_without_the_memory_is_refused(work: Workspace, tmp_path: Path) -> None:
    lose_history(work)
    (tmp_path / ".odradek" / "orders.json").unlink()
    assert "no longer has the record of batch 1" in work.error()


def assert_nothing_lost(work: Workspace, error: str) -> None:
    """Assert that a run said that the disk is full and wrote nothing, and that the next one writes it all."""
    assert "No space left on device" in error and "free space" in error
    assert values(work) == numbers(0, 100)
    assert not work.run().failed
    assert values(work) == numbers(0, 150)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_disk(self: Storage, path: str) -> Any:
    """Open a file of a disk that takes nothing."""
    return pa.OSFile("/dev/full", "wb")


@KINDS
def test_a_full_disk_while_tasks_write_changes_nothing(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    work.append(numbers(100, 50))
    with monkeypatch.context() as patched:
        patched.setattr(Storage, "create", full_disk)
        error = work.error()
    assert_nothing_lost(work, error)


@KINDS
def test_a_full_disk_at_the_commit_changes_nothing(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise FULL

    work.append(numbers(100, 50))
    with monkeypatch.context() as patched:
        if work.kind == "delta":
            patched.setattr(deltalake.DeltaTable, "create_write_transaction", fail)
        else:
            patched.setattr("pyiceberg.table.update.snapshot.write_manifest_list", fail)
        error = work.error()
    assert_nothing_lost(work, error)


@KINDS
def test_a_deleted_table_is_refused_and_after_accept_made_again(work: Workspace, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "tables")
    (tmp_path / ".odradek" / "iceberg.db").unlink(missing_ok=True)
    assert "there is no table, but batch 1 was written" in work.error()
    assert CliRunner().invoke(accept, [str(tmp_path / "pipeline.toml")]).exit_code == 0
    assert not work.run().failed
    assert values(work) == numbers(0, 100)


@pytest.mark.parametrize("kind", ["delta"])
def test_a_report_that_cannot_be_written_hides_no_result(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = Path(work.pipeline.run.state) / "reports"
    shutil.rmtree(reports)
    reports.touch()
    work.append(numbers(100, 50))
    with monkeypatch.context() as patched:
        patched.setattr(Storage, "create", full_disk)
        failed = work.run()
    assert "No space left" in failed.flows[0].error
    done = work.run()
    assert (done.failed, done.flows[0].rows, done.report) == (False, 50, "")
    for summary in (failed, done):
        (warning,) = summary.warnings
        assert warning.startswith("the report cannot be written: ") and str(reports) in warning


def newest_file(work: Workspace, pattern: str) -> Path:
    return max(work.root.rglob(pattern), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.parametrize(
    ("kind", "pattern", "content", "why"),
    [
        ("delta", "_delta_log/*.json", b'{"add', "Truncated record"),
        ("iceberg", "metadata/*.metadata.json", b'{"format-version": 2', "TableMetadata"),
        ("iceberg", "metadata/*.metadata.json", b'{"format-version": 2}', "TableMetadata"),
        ("iceberg", "iceberg.db", b"junk" * 1000, "file is not a database"),
    ],
)
def test_a_table_whose_log_or_catalog_is_damaged_is_named(
    work: Workspace, pattern: str, content: bytes, why: str
) -> None:
    newest_file(work, pattern).write_bytes(content)
    work.append(numbers(100, 1))
    error = work.error()
    assert "tables/orders" in error and why in error and "restore what is damaged" in error
    with pytest.raises(TableUnreadable, match="tables/orders"):
        status(work.pipeline, "orders")


@pytest.mark.parametrize("kind", ["iceberg"])
def test_a_catalog_that_another_program_holds_is_named(work: Workspace) -> None:
    work.append(numbers(100, 1))
    with closing(sqlite3.connect(newest_file(work, "iceberg.db"))) as other:
        other.execute("begin exclusive")
        assert "database is locked" in (error := work.error()) and "tables/orders" in error
    assert not work.run().failed
    assert len(work.values()) == 101
