"""The proof that a table is complete: it holds for good tables, and names what is missing, doubled or foreign."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import deltalake
import duckdb
import pytest

from odradek.pipeline.commits import Commit, Gap
from odradek.pipeline.committed import open_committed, select
from odradek.pipeline.errors import TableMismatch
from odradek.pipeline.source import LogReader
from odradek.pipeline.verify import Finding, VerifyResult, _of_records, verify
from odradek.ranges.planning import Range
from odradek.types import Columns, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

from .test_flow import corrupted, numbers
from .workspace import Workspace

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


def check(work: Workspace, *batches: str) -> VerifyResult:
    table = open_committed(work.pipeline, "orders")
    chosen = select(table.batches, numbers=batches)
    return verify(work.pipeline, table, chosen)


def made(root: Path, kind: str = "delta", **more: str) -> Workspace:
    work = Workspace(root, kind, **more)
    work.append(numbers(0, 100))
    work.append(numbers(100, 100), topic="refunds")
    work.run()
    work.append(numbers(200, 100))
    work.run()
    return work


def kinds(findings: list[Finding]) -> list[tuple[str, int | None]]:
    return [(finding.kind, finding.rows) for finding in findings]


@KINDS
def test_a_table_is_complete(tmp_path: Path, kind: str) -> None:
    result = check(made(tmp_path, kind))
    assert result.ok, result.findings
    assert (result.rows, result.batches, result.of, result.compared) == (300, 2, 2, "position, payload")


@KINDS
def test_some_batches_are_checked_alone(tmp_path: Path, kind: str) -> None:
    result = check(made(tmp_path, kind), "2")
    assert result.ok, result.findings
    assert (result.rows, result.batches, result.of) == (100, 1, 2)


@KINDS
def test_rows_that_another_application_has_deleted_are_missing(tmp_path: Path, kind: str) -> None:
    work = made(tmp_path, kind)
    if kind == "delta":
        import deltalake

        deltalake.DeltaTable(work.table.options.storage.root).delete("\"offset\" < 32 and topic = 'orders'")
    else:
        from pyiceberg.catalog import load_catalog

        options = work.table.options
        load_catalog("odradek", **options.catalog).load_table(options.name).delete(
            "\"offset\" < 32 and topic == 'orders'"
        )
    assert kinds(check(work).findings) == [("missing", 2)]


def test_rows_that_another_application_has_added_are_extra(tmp_path: Path) -> None:
    import deltalake

    work = made(tmp_path)
    root = work.table.options.storage.root
    again = deltalake.DeltaTable(root).to_pyarrow_table().slice(0, 3)
    deltalake.write_deltalake(root, again, mode="append")
    assert kinds(check(work).findings) == [("extra", 3)]


def test_a_payload_that_another_application_has_changed_is_different(tmp_path: Path) -> None:
    import deltalake

    work = made(tmp_path)
    root, chosen = work.table.options.storage.root, "\"offset\" < 32 and topic = 'orders'"
    rows = duckdb.from_arrow(deltalake.DeltaTable(root).to_pyarrow_table())
    changed = rows.filter(chosen).project("* replace ('other'::blob as value)").arrow().read_all()
    deltalake.DeltaTable(root).delete(chosen)
    deltalake.write_deltalake(root, changed, mode="append")
    (finding,) = check(work).findings
    assert (finding.kind, finding.where, finding.rows) == ("different", "orders/1-0", 2)
    assert finding.what.endswith("batch 1 have another payload than in the log: at 0:0, 16:0 (position:index)")


def test_a_feature_that_deltalake_does_not_read_is_an_error(tmp_path: Path) -> None:
    work = made(tmp_path)
    feature = deltalake.TableFeatures.DeletionVectors
    work.table.loaded.alter.add_feature([feature], allow_protocol_versions_increase=True)
    with pytest.raises(TableMismatch, match=r"tables/orders: its rows cannot be read here: .*deletionVectors"):
        check(work)


@pytest.mark.parametrize("name", ["value", "offset", "topic"])
def test_a_column_that_another_application_has_renamed_is_an_error(tmp_path: Path, name: str) -> None:
    work = made(tmp_path, "iceberg", sink="partition_by = []")
    with work.table.loaded.update_schema(allow_incompatible_changes=True) as update:
        update.rename_column(name, f"{name}_2")
    with pytest.raises(TableMismatch, match=f"has no column {name} any more: others have renamed or dropped it"):
        check(work)


def test_rows_of_positions_that_no_batch_has_read_are_extra(tmp_path: Path) -> None:
    import deltalake
    import pyarrow as pa

    work = made(tmp_path)
    root = work.table.options.storage.root
    rows = deltalake.DeltaTable(root).to_pyarrow_table().slice(0, 3)
    beyond = rows.set_column(rows.schema.get_field_index("offset"), "offset", pa.array([10**9] * 3, pa.int64()))
    deltalake.write_deltalake(root, beyond, mode="append")
    assert kinds(check(work).findings) == [("extra", 3)]
    assert check(work, "1").ok  # whose ranges have none of them


@pytest.mark.parametrize("most", [1, 7, 100])
def test_a_long_log_is_compared_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("odradek.pipeline.verify.MAX_ROWS", most)
    whole = LogReader.read

    def read(self: LogReader, ranges: Sequence[Range]) -> Iterator[tuple[TopicPartition, Columns]]:
        for partition, columns in whole(self, ranges):
            for first in range(0, len(columns.values), 6):
                yield partition, columns.slice(first, first + 6)

    monkeypatch.setattr(LogReader, "read", read)
    work = Workspace(tmp_path)
    for _ in range(3):
        work.append(numbers(0, 20))
        work.append(encode_set(numbers(100, 20), CompressionType.GZIP))  # of one position
        work.append(numbers(200, 20), topic="refunds")
    assert not work.run().failed
    result = check(work)
    assert result.ok, result.findings
    assert (result.rows, result.ranges, result.size) == (180, 2, work.newest.log_size)
    import deltalake

    deltalake.DeltaTable(work.table.options.storage.root).delete("index = 19")
    assert sum(finding.rows or 0 for finding in check(work).findings) == 3


def test_what_retention_has_deleted_is_counted_and_no_finding(tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    work.append(numbers(0, 100))
    assert not work.run().failed
    file = tmp_path / "logs" / "orders-0" / f"{0:020}.kafka"
    file.with_name(f"{320:020}.kafka").write_bytes(file.read_bytes()[320:])
    file.unlink()
    result = check(work)
    assert result.ok, result.findings
    assert (result.expired, result.rows) == (320, 80)


def test_a_number_of_dead_letters_that_differs_from_the_records_is_found(tmp_path: Path) -> None:
    work = Workspace(tmp_path, more='corrupt = "dead"', run_lines="max_error_percent = 50")
    work.append(numbers(0, 10))
    work.append(corrupted(numbers(10, 1)))
    assert not work.run().failed
    table = open_committed(work.pipeline, "orders")
    wrong = [replace(commit, dead=7) for commit in table.batches]
    result = verify(work.pipeline, table, wrong)
    assert [finding.what for finding in result.findings] == ["1 dead letters; the records say 7"]


def test_a_changed_log_is_another_log(tmp_path: Path) -> None:
    work = made(tmp_path)
    file = tmp_path / "logs" / "orders-0" / f"{0:020}.kafka"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2 // 16 * 16])
    assert "log" in {finding.kind for finding in check(work).findings}


def test_a_log_without_an_id_that_has_begun_again_is_compared_from_there(tmp_path: Path) -> None:
    """Of 0.7, or a broker before 2.8: what the table has of the former log is not in the log, at the same positions."""
    work = Workspace(tmp_path, more='data_loss = "skip"')
    work.append(numbers(0, 20))
    size = sum(path.stat().st_size for path in (tmp_path / "logs" / "orders-0").iterdir())
    assert not work.run().failed
    shutil.rmtree(tmp_path / "logs" / "orders-0")
    work.append(numbers(100, 5))
    summary = work.run().flows[0]
    assert (summary.rows, [gap.start for gap in summary.gaps]) == (5, [size])
    work.append(numbers(105, 40))
    assert work.run().flows[0].rows == 40
    result = check(work)
    assert not result.findings and (result.rows, result.expired) == (25, 2 * size), "20 positions were in both logs"
    assert len(work.values()) == 65


def test_messages_that_were_left_out_are_in_a_gap_of_the_record(tmp_path: Path) -> None:
    work = Workspace(tmp_path, more='corrupt = "skip"')
    work.append(numbers(0, 10))
    work.append(corrupted(numbers(10, 1)))
    work.append(numbers(11, 10))
    assert not work.run().failed
    assert len(work.newest.gaps) == 1
    result = check(work)
    assert result.ok and result.skipped == 1 and result.rows == 20


@KINDS
def test_dead_letters_are_counted(tmp_path: Path, kind: str) -> None:
    work = Workspace(tmp_path, kind, more='corrupt = "dead"', run_lines="max_error_percent = 50")
    work.append(numbers(0, 10))
    work.append(corrupted(numbers(10, 1)))
    assert not work.run().failed
    result = check(work)
    assert result.ok, result.findings
    assert (result.rows, result.dead) == (10, 1)


def test_rows_of_batches_that_the_log_of_the_table_has_forgotten_are_not_extra(tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    work.append(numbers(0, 10))
    work.append(numbers(10, 10), partition=1)
    assert not work.run().failed
    work.append(numbers(20, 10))  # the second batch reads nothing of the other partition
    assert not work.run().failed
    table = open_committed(work.pipeline, "orders")
    result = verify(work.pipeline, replace(table, commits=table.commits[2:]))
    assert (result.findings, result.batches, result.rows) == ([], 1, 10)


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ((), ["t/0 [70, 100)"]),
        ((Gap("t", "0", 70, 100, "deleted by retention"),), ["t/0 [70, 100)"]),  # of a range that it does not have
        ((Gap("t", "0", 70, 70, "the topic was made again"),), []),
    ],
)
def test_a_batch_that_does_not_start_where_the_last_one_ended_is_found(
    gaps: tuple[Gap, ...], expected: list[str]
) -> None:
    first = Commit("r", batch=0, start={"t": {"0": 0}}, end={"t": {"0": 70}})
    second = Commit("r", batch=1, start={"t": {"0": 100}}, end={"t": {"0": 150}}, gaps=gaps)
    assert [finding.where for finding in _of_records([first, second])] == expected
