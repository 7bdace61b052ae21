"""Verification finds what is missing, extra or different, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import odradek as od
from odradek.pipeline import compare
from odradek.pipeline.ledger import DataFile, LedgerEntry
from odradek.pipeline.verify import VerifyResult, verify
from odradek.testing import Kafka07Broker
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

from ..columns import damage
from .made import ROWS, Made, gap

pytestmark = pytest.mark.anyio


async def verified(made: Made, batches: set[int] | None = None) -> VerifyResult:
    return await verify(made.pipeline, made.table, batches)


def kinds(result: VerifyResult) -> list[str]:
    return [finding.kind for finding in result.findings]


def rewrite(made: Made, entry: LedgerEntry, change: object, **changes: object) -> None:
    """Change the rows of a batch's first file, and let the ledger's entry follow, as a faulty run would have it."""
    file = entry.files[0]
    path = made.root / "table" / file.path
    table = change(pq.read_table(path, partitioning=None))  # type: ignore[operator]
    pq.write_table(table, path)
    again = DataFile(file.path, table.num_rows, path.stat().st_size, file.partition)
    last = made.ledger.entries()[-1]
    assert last.batch == entry.batch, "only the newest entry can be changed without breaking the chain"
    files = (again, *entry.files[1:])
    changed = replace(entry, files=files, rows=sum(each.rows for each in files), **changes)  # type: ignore[arg-type]
    made.ledger.path(entry.batch).write_bytes(changed.encode())


@pytest.mark.parametrize("decode", ["raw", "json"])
async def test_a_complete_table_is_complete(tmp_path: Path, decode: str) -> None:
    made = Made(tmp_path, decode=decode)
    made.log(ROWS)
    made.log(ROWS, partition=1)
    made.log(encode_set(ROWS, CompressionType.GZIP), topic="clicks")
    made.run()
    made.log(ROWS)
    made.run(undecodable=lambda value: value == ROWS[7])
    result = await verified(made)
    assert result.findings == ()
    assert result.compared == ("position, payload" if decode == "raw" else "position")
    assert (result.batches, result.of, result.counts.rows, result.counts.dead) == (2, 2, 399, 1)
    assert result.counts.size == sum(path.stat().st_size for path in made.logs.rglob("*.kafka"))


async def test_a_cluster_and_its_directories_verify_alike(
    tmp_path: Path, odradek_chroot: str, odradek_kafka07_broker: Callable[..., Kafka07Broker]
) -> None:
    made = Made(tmp_path)
    for partition in range(6):
        made.log(ROWS, partition=partition)
        made.log(encode_set(ROWS, CompressionType.SNAPPY), topic="clicks", partition=partition)
    made.run()
    made.log(ROWS)
    made.run(lose=lambda value: value == ROWS[99])
    keys = {"log.flush.interval": "1", "num.partitions": "6"}
    broker = odradek_kafka07_broker(log_dir=made.logs, broker_id=1, config=keys)
    for source in (f'zookeeper = "{odradek_chroot}"', f'brokers = "1@{broker.address}"'):
        other = Made(tmp_path, source=source)
        result = await verified(other)
        assert (result.counts.rows, [finding.rows for finding in result.findings]) == (1299, [1])
        assert result.counts.size == sum(path.stat().st_size for path in made.logs.rglob("*.kafka"))


async def test_an_unreachable_broker_is_an_error(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.log(ROWS)
    made.run()
    with pytest.raises(od.OdradekError):
        await verified(Made(tmp_path, source='brokers = "1@127.0.0.1:1"'))


async def test_an_empty_table_is_complete(tmp_path: Path) -> None:
    result = await verified(Made(tmp_path))
    assert result.ok and result.batches == 0


async def test_a_row_that_is_missing_is_named(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.log(ROWS)
    made.run(lose=lambda value: value == ROWS[3])
    result = await verified(made)
    (finding,) = result.findings
    assert (finding.kind, finding.rows) == ("missing", 1)
    assert f"at {sum(len(row) + 10 for row in ROWS[:3])}:0 " in finding.what


async def test_a_row_that_is_there_twice_is_extra(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.log(ROWS)
    entry = made.run()
    rewrite(made, entry, lambda table: pa.concat_tables([table, table.slice(5, 2)]))
    result = await verified(made)
    assert [(finding.kind, finding.rows) for finding in result.findings] == [("extra", 2)]


async def test_a_payload_that_differs_is_different(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.log(ROWS)
    entry = made.run()

    def change(table: pa.Table) -> pa.Table:
        values = table["value"].to_pylist()
        values[0], values[1] = values[1], values[0]
        return table.set_column(table.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))

    rewrite(made, entry, change)
    result = await verified(made)
    assert [(finding.kind, finding.rows) for finding in result.findings] == [("different", 2)]


async def test_a_row_not_in_the_log_is_extra(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.log(ROWS)
    entry = made.run()

    def change(table: pa.Table) -> pa.Table:
        column = table.schema.get_field_index("offset")
        stray = table.slice(0, 2).set_column(column, "offset", pa.array([1, 1 << 40], pa.int64()))
        return pa.concat_tables([table, stray])

    rewrite(made, entry, change)
    result = await verified(made)
    assert sorted((finding.kind, finding.rows) for finding in result.findings) == [("extra", 1), ("extra", 1)]
    assert any("no batch has read" in finding.what for finding in result.findings)


async def test_indexes_inside_wrappers_count(tmp_path: Path) -> None:
    made = Made(tmp_path, decode="json")
    made.log(encode_set(ROWS, CompressionType.SNAPPY))
    made.run(lose=lambda value: value == ROWS[42])
    (finding,) = (await verified(made)).findings
    assert finding.kind == "missing" and "at 0:42 " in finding.what


@pytest.mark.parametrize("policy", ["skip", "dead"])
async def test_corrupt_messages_are_skipped_or_dead_letters(tmp_path: Path, policy: str) -> None:
    made = Made(tmp_path, corrupt=policy)
    made.log(encode_set(ROWS[:10]) + damage(encode_set([ROWS[10]])) + encode_set(ROWS[11:]))
    made.run(corrupt=policy)
    result = await verified(made)
    assert result.ok
    assert (result.counts.skipped, result.counts.dead) == ((1, 0) if policy == "skip" else (0, 1))


async def test_wrong_counts_in_the_ledger_are_findings(tmp_path: Path) -> None:
    made = Made(tmp_path, corrupt="skip")
    made.log(encode_set(ROWS) + damage(encode_set([b"x"])))
    made.run(corrupt="skip", gaps=(), dead=3)
    assert kinds(await verified(made)) == ["skipped", "dead"]


async def test_a_gap_excuses_only_its_own_range(tmp_path: Path) -> None:
    made = Made(tmp_path, corrupt="skip")
    made.log(encode_set(ROWS[:50]) + damage(encode_set([b"x"])) + encode_set(ROWS[50:]) + damage(encode_set([b"y"])))
    first, _ = made.run(corrupt="skip").gaps
    assert (await verified(made)).counts.skipped == 2
    rewrite(made, made.ledger.entries()[-1], lambda table: table, gaps=(first,))
    result = await verified(made)
    assert [(finding.kind, finding.rows) for finding in result.findings] == [("skipped", 1)]


async def test_a_gap_does_not_hide_messages_the_log_still_has(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.log(ROWS)
    middle = sum(len(row) + 10 for row in ROWS[:50])
    lost = set(ROWS[:50])
    made.run(lose=lambda value: value in lost, gaps=(gap(0, middle),))
    result = await verified(made)
    assert [(finding.kind, finding.rows) for finding in result.findings] == [("missing", 50)]
    file = made.logs / "orders-0" / f"{0:020}.kafka"
    (file.parent / f"{middle:020}.kafka").write_bytes(file.read_bytes()[middle:])
    file.unlink()
    result = await verified(made)
    assert result.ok and (result.gaps, result.counts.expired) == (middle, 0)


async def test_messages_deleted_by_retention_are_counted_not_findings(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.log(ROWS)
    made.run()
    file = made.logs / "orders-0" / f"{0:020}.kafka"
    cut = sum(len(row) + 10 for row in ROWS[:30])
    (file.parent / f"{cut:020}.kafka").write_bytes(file.read_bytes()[cut:])
    file.unlink()
    result = await verified(made)
    assert result.ok and result.counts.expired == cut and result.counts.rows == 70


async def test_a_recreated_log_is_a_finding(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.log(ROWS)
    made.run()
    file = made.logs / "orders-0" / f"{0:020}.kafka"
    file.write_bytes(encode_set(ROWS[:40]))
    result = await verified(made)
    assert "log" in kinds(result)


async def test_files_are_compared_with_the_ledger(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.log(ROWS)
    made.log(ROWS, topic="clicks")
    entry = made.run()
    (made.root / "table" / entry.files[0].path).unlink()
    path = made.root / "table" / entry.files[1].path
    pq.write_table(pq.read_table(path, partitioning=None).slice(1), path)
    result = await verified(made)
    assert kinds(result) == ["unreadable", "file", "missing", "missing"]


async def test_batches_that_do_not_join_are_found(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.log(ROWS)
    entry = made.run()
    made.log(ROWS)
    made.reached["orders"]["1-0"] += sum(len(row) + 10 for row in ROWS[:5])
    made.run()
    (finding,) = (await verified(made)).findings
    assert finding.kind == "ledger" and f"[{entry.end['orders']['1-0']}," in finding.where


async def test_some_batches_are_checked_alone(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.log(ROWS)
    made.run(lose=lambda value: value == ROWS[3])
    made.log(ROWS)
    made.run()
    assert (await verified(made, {1})).ok
    result = await verified(made, {0})
    assert kinds(result) == ["missing"] and result.batches == 1


async def test_a_long_log_is_compared_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "SLICE_BYTES", 200)
    monkeypatch.setattr(compare, "MAX_DETAILED", 3)
    made = Made(tmp_path)
    made.log(ROWS)
    made.log(encode_set(ROWS, CompressionType.GZIP))
    made.log(ROWS)
    made.run()
    assert (await verified(made)).ok
    entry = made.ledger.entries()[0]
    rewrite(made, entry, lambda table: table.filter(pc.field("value") != ROWS[40]))
    result = await verified(made)
    assert kinds(result) == ["missing"] * 3
    made.log(ROWS)
    made.run(lose=lambda value: True)
    *named, more = (await verified(made)).findings
    assert [finding.kind for finding in named] == ["missing"] * 3
    assert "more slices" in more.where
