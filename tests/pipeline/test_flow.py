"""A flow from its logs to its table: what is read once, what is refused, and what a killed run leaves."""

from __future__ import annotations

import datetime
import errno
import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import deltalake
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.types import StringType

from odradek.cli.app import run as command
from odradek.pipeline import flow
from odradek.pipeline.config import Pipeline
from odradek.pipeline.errors import StorageError, TableReplaced
from odradek.pipeline.flow import FlowRun, dead_options, open_table, table_options
from odradek.pipeline.layout import Storage
from odradek.pipeline.source import read_request
from odradek.pipeline.table import Table
from odradek.pipeline.task import TaskJob, TaskOutput
from odradek.ranges.request import ReadRequest

from .workspace import Workspace, run_all

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


@KINDS
def test_every_record_is_in_the_table_once(tmp_path: Path, kind: str) -> None:
    work = Workspace(tmp_path, kind)
    work.append(numbers(0, 100))
    work.append(numbers(100, 50), topic="refunds", partition=3)
    summary = work.run()
    assert not summary.failed and summary.flows[0].rows == 150
    assert work.values() == numbers(0, 150)
    work.append(numbers(150, 50))
    assert work.run().flows[0].rows == 50
    assert work.values() == numbers(0, 200)
    assert [commit.batch for commit in work.table.commits()] == [2, 1, 0]


def test_a_run_with_nothing_to_do_starts_nothing(tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    work.append(numbers(0, 10))
    work.run()

    def session() -> Iterator[None]:
        raise AssertionError("Spark is started")

    summary = work.run_with(session)
    assert not summary.failed and not summary.flows[0].commits


def test_limits_divide_the_work_into_batches(tmp_path: Path) -> None:
    work = Workspace(tmp_path, run_lines="batch_bytes = 1000\nmax_bytes = 3000")
    work.append(numbers(0, 1000))
    first = work.run().flows[0]
    assert len(first.commits) >= 3 and first.rows < 1000
    while work.run().flows[0].commits:
        pass
    assert work.values() == numbers(0, 1000)


@KINDS
@pytest.mark.parametrize("dies", [False, True])
def test_tasks_share_the_files_of_small_groups(
    tmp_path: Path, kind: str, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows and of dead letters alike; if writing them fails, nothing is left of the batch."""
    work = Workspace(tmp_path, kind, more='corrupt = "dead"', run_lines="max_error_percent = 100")
    for partition in range(3):
        work.append([*numbers(10 * partition, 10), b""], partition=partition)
        work.append(corrupted(numbers(100, 1)), partition=partition)

    def two_tasks(pipeline: Pipeline, name: str) -> ReadRequest:
        return replace(read_request(pipeline, name), min_tasks=2)

    monkeypatch.setattr(flow, "read_request", two_tasks)
    tasks: list[TaskJob] = []

    def counted(jobs: Sequence[TaskJob]) -> list[TaskOutput]:
        tasks.extend(jobs)
        return run_all(jobs)

    if dies:

        def full(self: Storage, paths: Iterable[str]) -> None:
            if list(paths):  # the tasks themselves have none
                raise StorageError("tables/orders", OSError(errno.ENOSPC, "No space left on device"))

        with monkeypatch.context() as patched:
            patched.setattr(Storage, "sync", full)
            assert "No space left" in work.run(counted).flows[0].error
        assert work.newest.batch == 0 and not list((tmp_path / "tables").rglob("odradek-*.parquet"))
    assert not work.run(counted).flows[0].error
    assert len(tasks) == 2 * (1 + dies)
    assert work.newest.files == 1 and len(work.newest.dead_files) == 1
    assert work.values() == sorted([*numbers(0, 30), b"", b"", b""])
    assert len(work.values(_dead(work))) == 3


class Killed(BaseException):
    """Stands for the death of the process."""


@KINDS
def test_a_run_that_dies_while_writing_leaves_the_table_as_it_was(tmp_path: Path, kind: str) -> None:
    work = Workspace(tmp_path, kind)
    work.append(numbers(0, 100))

    def die(jobs: Sequence[TaskJob]) -> list[TaskOutput]:
        run_all(jobs)
        raise Killed

    with pytest.raises(Killed):
        work.run(die)
    assert work.values() == [] and work.newest.batch == 0
    work.run()
    assert work.values() == numbers(0, 100)


@KINDS
def test_dead_letters_of_a_run_that_died_after_its_commit_are_added(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Workspace(tmp_path, kind, more='corrupt = "dead"', run_lines="max_error_percent = 100")
    work.append(numbers(0, 10))
    work.append(corrupted(numbers(10, 1)))
    work.append(numbers(11, 10))
    with monkeypatch.context() as patched:
        patched.setattr(FlowRun, "_add_dead_letters", _die_after_commit)
        with pytest.raises(Killed):
            work.run()
    assert work.newest.batch == 1 and work.newest.dead == 1
    dead = _dead(work)
    assert work.values(dead) == []
    work.run()
    assert len(work.values(_dead(work))) == 1
    assert work.values() == numbers(0, 10) + numbers(11, 10)
    work.run()
    assert len(work.values(_dead(work))) == 1


def test_dead_letters_whose_files_were_deleted_stop_the_flow_until_that_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Workspace(tmp_path, more='corrupt = "dead"', run_lines="max_error_percent = 100")
    work.append(numbers(0, 10))
    work.append(corrupted(numbers(10, 1)))
    with monkeypatch.context() as patched:
        patched.setattr(FlowRun, "_add_dead_letters", _die_after_commit)
        with pytest.raises(Killed):
            work.run()
    file = str(tmp_path / "pipeline.toml")
    assert command(["pipeline", "clean", file, "--older-than", "0s"]) == 2
    for path in work.newest.dead_files:
        (tmp_path / "tables" / "dead" / path).unlink()
    work.append(numbers(11, 10))
    error = work.error()
    assert "1 files with dead letters of batch 1 are gone" in error and "odradek pipeline accept" in error
    assert command(["pipeline", "accept", file]) == 0
    (flow,) = work.run().flows
    assert (flow.rows, flow.error) == (10, "")
    assert flow.problems[0].startswith("1 files with dead letters of batch 1 are gone")
    assert not work.run().failed and work.values() == numbers(0, 10) + numbers(11, 10)
    assert command(["pipeline", "clean", file, "--older-than", "0s"]) == 0


@KINDS
def test_dead_letters_of_a_table_that_was_begun_again_join_those_that_there_are(tmp_path: Path, kind: str) -> None:
    """The numbers of its batches begin again, too; those of other batches with these numbers are in the table."""
    work = Workspace(tmp_path, kind, more='corrupt = "dead"', run_lines="max_error_percent = 50")
    for batch in range(3):
        work.append([*numbers(10 * batch, 10)])
        work.append(corrupted(numbers(batch, 1)))
        assert not work.run().failed
    shutil.rmtree(tmp_path / "tables" / "orders")
    assert accept(work) == 0 and not work.run().failed
    assert len(work.values(_dead(work))) == 6  # three records came twice, as the page says
    work.append(numbers(30, 10))
    work.append(corrupted(numbers(3, 1)))
    assert not work.run().failed and not work.run().failed
    assert work.newest.batch == 2 and len(work.values(_dead(work))) == 7


def test_a_table_of_dead_letters_that_is_gone_is_made_again_if_that_is_accepted(tmp_path: Path) -> None:
    work = Workspace(tmp_path, more='corrupt = "dead"', run_lines="max_error_percent = 100")
    work.append(numbers(0, 10))
    work.append(corrupted(numbers(10, 1)))
    assert not work.run().failed
    shutil.rmtree(tmp_path / "tables" / "dead")
    assert "there is no table, but dead letters were written" in work.error()
    assert command(["pipeline", "accept", str(tmp_path / "pipeline.toml")]) == 0
    assert work.run().flows[0].problems and not work.run().failed
    work.append(corrupted(numbers(11, 1)))
    assert not work.run().failed and len(work.values(_dead(work))) == 1


def test_a_run_ends_after_its_minutes_whatever_the_wall_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Workspace(tmp_path, run_lines="batch_bytes = 160\nmax_minutes = 5")
    work.append(numbers(0, 100))
    days = count(1_900_000_000, 86_400)
    clock = SimpleNamespace(time=lambda: next(days), monotonic=lambda: 0, strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr("odradek.pipeline.run.time", clock)
    assert work.run().flows[0].rows == 100
    minutes = count(0, 60)
    clock.monotonic = lambda: next(minutes)
    work.append(numbers(100, 100))
    assert 0 < work.run().flows[0].rows < 100


def _die_after_commit(self: object) -> None:
    if self.newest.batch:  # type: ignore[attr-defined]
        raise Killed


def _dead(work: Workspace) -> Table:
    options = dead_options(work.pipeline, "orders")
    assert options is not None
    table = open_table(options)
    assert table is not None
    return table


def corrupted(values: list[bytes]) -> bytes:
    from odradek.wire.kafka07.message_set import encode_set

    data = bytearray(encode_set(values))
    data[-1] ^= 1
    return bytes(data)


@KINDS
def test_a_table_that_is_gone_is_refused_and_not_begun_again(tmp_path: Path, kind: str) -> None:
    work = Workspace(tmp_path, kind)
    work.append(numbers(0, 100))
    work.run()
    if kind == "delta":
        shutil.rmtree(tmp_path / "tables")
    else:
        (tmp_path / ".odradek" / "iceberg.db").unlink()
    error = work.error()
    assert "there is no table, but batch 1 was written" in error and "odradek pipeline accept" in error
    assert not (tmp_path / "tables" / "orders" / "_delta_log").exists()


def test_a_changed_path_is_refused_and_another_place_of_the_same_table_is_not(tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    work.append(numbers(0, 100))
    work.run()
    file = tmp_path / "pipeline.toml"
    file.write_text(file.read_text().replace("tables/orders", "tables/orders_v2"))
    assert "there is no table, but batch 1 was written" in work.error()
    (tmp_path / "tables" / "orders").rename(tmp_path / "tables" / "orders_v2")
    work.append(numbers(100, 10))
    assert not work.run().failed
    assert work.values() == numbers(0, 110)


def test_an_iceberg_table_that_was_deleted_is_begun_again_as_the_page_says(tmp_path: Path) -> None:
    """`rm -r tables`, `accept`, `run`: the default catalog still names it."""
    work = Workspace(tmp_path, "iceberg", more='corrupt = "dead"', run_lines="max_error_percent = 50")
    work.append(corrupted(numbers(0, 1)))
    work.append(numbers(0, 100))
    assert not work.run().failed
    shutil.rmtree(tmp_path / "tables")
    assert "there is no table, but batch 1 was written" in work.error()
    assert accept(work) == 0
    summary = work.run()
    assert (summary.failed, summary.flows[0].rows, summary.flows[0].dead) == (False, 100, 1)
    assert work.values() == numbers(0, 100) and len(work.values(_dead(work))) == 1


def accept(work: Workspace) -> int:
    return command(["pipeline", "accept", str(work.root / "pipeline.toml"), "--flow", "orders"])


@pytest.mark.parametrize("deleted", [True, False])
def test_an_iceberg_flow_goes_on_at_another_path(
    tmp_path: Path, deleted: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """A table that is still there keeps its rows, and a name in the catalog."""
    work = Workspace(tmp_path, "iceberg")
    work.append(numbers(0, 100))
    work.run()
    if deleted:
        shutil.rmtree(tmp_path / "tables")
    file = tmp_path / "pipeline.toml"
    file.write_text(file.read_text().replace("tables/orders", "tables/other"))
    work.append(numbers(100, 10))
    assert "there is no table, but batch 1 was written" in work.error()
    assert accept(work) == 0
    said = capfd.readouterr().out
    name = re.findall(r"odradek\.orders_\w+", said)[0]
    assert ("whose metadata is gone" in said) == deleted and ("which is at" in said) != deleted
    assert not work.run().failed
    assert work.values() == numbers(0, 110)
    if not deleted:
        options = table_options(work.pipeline, "orders")
        kept = load_catalog("odradek", **options.catalog).load_table(name)
        assert kept.scan().to_arrow().num_rows == 100


def test_a_stale_name_in_a_catalog_is_refused_without_a_memory_too(tmp_path: Path) -> None:
    work = Workspace(tmp_path, "iceberg")
    work.append(numbers(0, 100))
    work.run()
    shutil.rmtree(tmp_path / "tables")
    (tmp_path / ".odradek" / "orders.json").unlink()
    error = work.error()
    assert "the catalog has odradek.orders, whose metadata is gone" in error and "odradek pipeline accept" in error
    assert accept(work) == 0 and not work.run().failed
    assert work.values() == numbers(0, 100)


def test_a_batch_that_takes_as_long_as_clean_waits_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine may have slept in between: one of its clocks stood still."""
    work = Workspace(tmp_path)
    work.append(numbers(0, 100))
    clocks = iter([(0.0, 0.0), (60.0, flow.MAX_BATCH_S + 1)])
    with monkeypatch.context() as patched:
        patched.setattr(flow, "_clocks", lambda: next(clocks))
        assert "a batch took 23.0 hours, and may take 23" in work.error()
    assert not list((tmp_path / "tables").rglob("odradek-*.parquet"))
    assert not work.run().failed
    assert work.values() == numbers(0, 100)


def test_an_older_copy_of_the_table_is_refused(tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    work.append(numbers(0, 100))
    work.run()
    shutil.copytree(tmp_path / "tables", tmp_path / "copy")
    work.append(numbers(100, 100))
    work.run()
    shutil.rmtree(tmp_path / "tables")
    (tmp_path / "copy").rename(tmp_path / "tables")
    assert "its newest is batch 1, but batch 2 was written" in work.error()


def test_another_table_at_the_same_path_is_refused(tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    work.append(numbers(0, 100))
    work.run()
    (tmp_path / "tables" / "orders").rename(tmp_path / "elsewhere")
    other = Workspace(tmp_path / "elsewhere" / "..")
    (tmp_path / ".odradek" / "orders.json").rename(tmp_path / "kept")
    other.run()
    (tmp_path / "kept").rename(tmp_path / ".odradek" / "orders.json")
    assert "this is another table" in work.error()


def test_a_table_that_the_flow_has_not_made_is_refused(tmp_path: Path) -> None:
    import deltalake
    import pyarrow as pa

    work = Workspace(tmp_path)
    work.append(numbers(0, 10))
    deltalake.write_deltalake(tmp_path / "tables" / "orders", pa.table({"a": [1]}))
    assert "a table that flow orders has not made" in work.error()


def test_a_flow_without_its_memory_continues_where_the_table_ends(tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    work.append(numbers(0, 100))
    work.run()
    shutil.rmtree(tmp_path / ".odradek")
    work.append(numbers(100, 100))
    assert not work.run().failed
    assert work.values() == numbers(0, 200)


def test_a_new_partition_is_read_from_its_beginning_and_a_missing_one_is_a_problem(tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    work.append(numbers(0, 10))
    work.run()
    work.append(numbers(10, 10), partition=1)
    assert work.run().flows[0].rows == 10
    (tmp_path / "logs" / "orders-1").rename(tmp_path / "away")
    summary = work.run()
    assert summary.failed and "orders/1-1" in summary.flows[0].problems[0]
    assert work.values() == numbers(0, 20)


def test_a_batch_with_too_many_dead_letters_is_not_committed(tmp_path: Path) -> None:
    work = Workspace(tmp_path, more='corrupt = "dead"')
    work.append(numbers(0, 10))
    work.append(corrupted(numbers(10, 1)))
    assert "1 of 11 records could not be decoded" in work.error()
    assert work.newest.batch == 0
    assert not list((tmp_path / "tables").rglob("*.parquet"))


def test_a_schema_file_that_is_missing_fails_its_flow_and_its_plan_and_no_other_verb(tmp_path: Path) -> None:
    work = Workspace(tmp_path, more='[flows.orders.decode]\nkind = "avro"\nschema_file = "orders.avsc"')
    work.append(numbers(0, 10))
    assert f"schema_file = '{tmp_path}/orders.avsc' cannot be read: No such file" in work.error()
    assert not (tmp_path / "tables").exists()
    for verb, code in (("plan", 1), ("lag", 0), ("status", 0)):
        assert command(["pipeline", verb, str(tmp_path / "pipeline.toml")]) == code


def test_a_time_of_avro_is_a_column_of_iceberg(tmp_path: Path) -> None:
    work = Workspace(tmp_path, "iceberg", more='[flows.orders.decode]\nkind = "avro"\nschema_file = "orders.avsc"')
    kinds = {"millis": ("int", "time-millis"), "micros": ("long", "time-micros")}
    fields = [{"name": name, "type": {"type": of, "logicalType": what}} for name, (of, what) in kinds.items()]
    (tmp_path / "orders.avsc").write_text(json.dumps({"type": "record", "name": "R", "fields": fields}))
    work.append([b"\x02\x02", b"\0\0"])  # 1 ms and 1 us after midnight, and midnight
    assert not work.run().failed
    rows = [tuple(row.values()) for batch in work.table.rows(list(kinds), None) for row in batch.to_pylist()]
    at = datetime.time
    assert sorted(rows) == [(at(), at()), (at(microsecond=1000), at(microsecond=1))]


JSON = """corrupt = "dead"
[flows.orders.decode]
kind = "json"
fields = "id bigint not null, user string, at timestamp, tags array<string>, size tinyint"
time = "at"
"""


@KINDS
def test_a_field_that_differs_from_a_column_in_case_alone_is_refused(tmp_path: Path, kind: str) -> None:
    work = Workspace(tmp_path, kind, more=JSON)
    work.append([b'{"id": 1, "user": "u", "at": "2026-01-01T00:00:00Z"}'])
    assert not work.run().failed
    work.more = JSON.replace("user string", "User string")
    work.write_file()
    assert "column User is user in the table, and most readers ignore case" in work.error()
    assert "User" not in work.table.schema.names


@pytest.mark.parametrize("change", ["rename", "drop"])
def test_a_column_that_others_have_removed_is_added_again_before_the_next_batch(tmp_path: Path, change: str) -> None:
    work = Workspace(tmp_path, "iceberg", more=JSON, run_lines="batch_bytes = 200")
    work.append([b'{"id": %d, "user": "u%d", "at": "2026-01-01T00:00:00Z"}' % (n, n) for n in range(12)])
    batches = count(1)

    def changed(jobs: Sequence[TaskJob]) -> list[TaskOutput]:
        if next(batches) == 2:
            with work.table.loaded.update_schema() as update:
                update.rename_column("user", "customer") if change == "rename" else update.delete_column("user")
        return run_all(jobs)

    flow = work.run(changed).flows[0]
    assert not flow.error and flow.batches == 3
    first = sum(commit.rows for commit in flow.commits[:2])
    expected = [None if n < first else f"u{n}" for n in range(12)]
    rows = [row for batch in work.table.rows(["id", "user"], None) for row in batch.to_pylist()]
    assert [row["user"] for row in sorted(rows, key=lambda row: row["id"])] == expected


@pytest.mark.parametrize("change", ["drop", "delete"])
def test_what_others_do_to_a_table_while_a_run_has_nothing_to_read_counts_from_the_next_batch(
    tmp_path: Path, change: str
) -> None:
    work = Workspace(tmp_path, "iceberg", more=JSON)
    work.append([b'{"id": 0, "user": "u0", "at": "2026-01-01T00:00:00Z"}'])
    following = FlowRun("orders", work.pipeline, "run", follow=True)
    following.prepare()
    assert following.step(run_all, None) and not following.step(run_all, None)
    if change == "drop":
        with work.table.loaded.update_schema() as update:
            update.delete_column("user")
    else:
        work.table._catalog.drop_table("odradek.orders")  # type: ignore[attr-defined]
    work.append([b'{"id": 1, "user": "u1", "at": "2026-01-01T00:00:00Z"}'])
    following.refresh_backlog()
    if change == "delete":
        with pytest.raises(TableReplaced, match="the table is gone"):
            following.step(run_all, None)
        return
    assert following.step(run_all, None)
    rows = [row for batch in work.table.rows(["id", "user"], None) for row in batch.to_pylist()]
    assert {row["id"]: row["user"] for row in rows} == {0: None, 1: "u1"}


@pytest.mark.parametrize("conflict", [False, True])
def test_a_table_that_others_divide_in_another_way_is_refused_in_the_middle_of_a_run(
    tmp_path: Path, conflict: bool
) -> None:
    """After the batch that was being written; before its commit if others have changed rows, too."""
    work = Workspace(tmp_path, "iceberg", run_lines="batch_bytes = 400")
    work.append(numbers(0, 100))
    batches = count(1)

    def changed(jobs: Sequence[TaskJob]) -> list[TaskOutput]:
        outputs = run_all(jobs)
        if next(batches) == 2:
            table = work.table.loaded
            with table.update_spec() as update:
                update.remove_field("topic")
                update.add_identity("partition")
            if conflict:
                table.delete("offset = 0")
        return outputs

    flow = work.run(changed).flows[0]
    assert "partitioned by [('partition', 'identity')], the flow by [('topic', 'identity')]" in flow.error
    assert flow.batches == work.newest.batch == (1 if conflict else 2)


@KINDS
def test_a_column_that_others_have_made_and_that_must_not_be_null_is_named(tmp_path: Path, kind: str) -> None:
    work = Workspace(tmp_path, kind, more=JSON)
    work.append([b'{"id": 1, "user": "u", "at": "2026-01-01T00:00:00Z"}'])
    assert not work.error()
    if kind == "delta":
        rank = deltalake.Field("rank", deltalake.schema.PrimitiveType("string"), nullable=False)
        work.table.loaded.alter.add_columns([rank])
    else:
        with work.table.loaded.update_schema(allow_incompatible_changes=True) as update:
            update.add_column("rank", StringType(), required=True)
    work.append([b'{"id": 2, "user": "u", "at": "2026-01-01T00:00:00Z"}'])
    assert "tables/orders: column rank of the table must not be null" in work.error()
    assert work.newest.batch == 1


def test_an_iceberg_table_of_a_format_that_cannot_be_written_stops_a_run_before_it_reads(tmp_path: Path) -> None:
    work = Workspace(tmp_path, "iceberg")
    work.append(numbers(0, 10))
    assert not work.error()
    metadata = Path(work.table.loaded.metadata_location.removeprefix("file://"))
    changed = {**json.loads(metadata.read_bytes()), "format-version": 3, "next-row-id": 10}
    metadata.write_text(json.dumps(changed))
    work.append(numbers(10, 20))
    assert "others have given the table format version 3, and pyiceberg writes 2 at most" in work.error()


def test_a_column_that_others_have_removed_from_the_dead_letters_is_added_again(tmp_path: Path) -> None:
    work = Workspace(tmp_path, "iceberg", more=JSON, run_lines="max_error_percent = 100")
    work.append([b"bad"])
    assert not work.error()
    with _dead(work).loaded.update_schema() as update:
        update.rename_column("value", "bytes")
    work.append([b"worse"])
    assert not work.error()
    rows = [row for batch in _dead(work).rows(["bytes", "value"], None) for row in batch.to_pylist()]
    assert {(row["bytes"], row["value"]) for row in rows} == {(b"bad", None), (None, b"worse")}


def test_a_constraint_on_the_dead_letters_stops_a_run_before_it_commits_rows(tmp_path: Path) -> None:
    work = Workspace(tmp_path, more=JSON, run_lines="max_error_percent = 100")
    work.append([b"bad"])
    assert not work.error()
    _dead(work).loaded.alter.add_constraint({"first": "offset = 0"})
    work.append([b"worse"])
    assert "tables/dead: others have given the table checkConstraints" in work.error()
    assert work.newest.batch == 1


def test_a_constraint_that_others_have_given_the_table_stops_a_run(tmp_path: Path) -> None:
    work = Workspace(tmp_path, run_lines="batch_bytes = 400")
    work.append(numbers(0, 100))
    batches = count(1)

    def constrained(jobs: Sequence[TaskJob]) -> list[TaskOutput]:
        if next(batches) == 2:
            work.table.loaded.alter.add_constraint({"few": "offset < 1000"})
        return run_all(jobs)

    flow = work.run(constrained).flows[0]
    assert "others have given the table checkConstraints" in flow.error and flow.batches == 1


@KINDS
def test_json_becomes_columns_and_what_is_wrong_becomes_dead_letters(tmp_path: Path, kind: str) -> None:
    work = Workspace(tmp_path, kind, more=JSON, run_lines="max_error_percent = 60", sink='partition_by = ["date"]')
    good = [
        b'{"id": %d, "user": "u", "at": "2026-01-0%dT00:00:00Z", "tags": ["a"], "size": 3}' % (n, n) for n in (1, 2)
    ]
    work.append([*good, b'{"id": "x"}', b'{"id": 3, "user": "u"}', b'{"id": 4, "at": null}'])
    assert not work.run().failed
    assert work.newest.reasons == {"type": 1, "time": 2}
    rows = [
        row
        for batch in work.table.rows(["id", "user", "tags", "size", "record_time"], None)
        for row in batch.to_pylist()
    ]
    assert sorted(row["id"] for row in rows) == [1, 2] and rows[0]["tags"] == ["a"] and rows[0]["size"] == 3
    assert len({file.path.split("/")[0] for file in work.table.files()}) == 2
    letters = [
        row for batch in _dead(work).rows(["reason", "field", "expected", "value"], None) for row in batch.to_pylist()
    ]
    assert {(row["reason"], row["field"], row["expected"]) for row in letters} == {
        ("type", "id", "bigint"),
        ("time", None, None),
    }
    assert sorted(row["value"] for row in letters)[0] == b'{"id": "x"}'
