"""Compaction changes files and no rows, whatever happens meanwhile."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odradek.pipeline import compact as module
from odradek.pipeline.compact import compact, delete_retired, plan_compaction, retired
from odradek.pipeline.errors import TableLocked
from odradek.pipeline.ledger import DataFile
from odradek.pipeline.lock import table_lock
from odradek.pipeline.repair import plan_repair, repair
from odradek.pipeline.verify import verify

from .made import ROWS, Made


def filled(root: Path, batches: int = 3) -> Made:
    made = Made(root)
    for _ in range(batches):
        made.log(ROWS)
        made.log(ROWS, topic="clicks")
        made.run()
    return made


def contents(made: Made) -> Counter[tuple[int, int, bytes]]:
    """What a reader of the ledger sees: with pyarrow, and with DuckDB."""
    rows: Counter[tuple[int, int, bytes]] = Counter()
    paths = [str(made.root / "table" / path) for path in made.table.live]
    for path in paths:
        table = pq.read_table(path, partitioning=None)
        rows.update(zip(*(table[name].to_pylist() for name in ("offset", "index", "value")), strict=True))
    if paths:
        with duckdb.connect() as database:
            database.execute(f'select "offset", "index", value from read_parquet({paths})')
            assert Counter(database.fetchall()) == rows
    return rows


def squeeze(made: Made) -> None:
    assert compact("orders", made.pipeline.flows["orders"]) is not None


def test_small_files_become_one_for_each_partition(tmp_path: Path) -> None:
    made = filled(tmp_path)
    before = contents(made)
    entry = compact("orders", made.pipeline.flows["orders"], now=5.0)
    assert entry is not None and (entry.kind, entry.rows, len(entry.removed), entry.written) == ("replace", 600, 6, 5.0)
    assert {path.rpartition("/")[0] for path in made.table.live} == {
        "topic=orders/date=2026-11-21",
        "topic=clicks/date=2026-11-21",
    }
    assert contents(made) == before
    assert len(list((tmp_path / "table").rglob("*.parquet"))) == 8
    assert compact("orders", made.pipeline.flows["orders"]) is None


@pytest.mark.anyio
async def test_a_compacted_table_verifies_and_goes_on(tmp_path: Path) -> None:
    made = filled(tmp_path)
    squeeze(made)
    made.log(ROWS)
    made.run()
    squeeze(made)
    result = await verify(made.pipeline, made.table)
    assert result.ok and result.counts.rows == 700
    assert (await verify(made.pipeline, made.table, {1})).counts.rows == 200


def test_files_are_filled_up_to_the_size_that_is_wanted(tmp_path: Path) -> None:
    made = filled(tmp_path, 5)
    size = max(file.size for file in made.table.live.values())
    text = made.file.read_text().replace("[flows.orders.sink]", f"[flows.orders.sink]\nfile_bytes = {int(2.5 * size)}")
    made.file.write_text(text)
    groups = plan_compaction(made.table)
    assert [len(group.files) for group in groups] == [2, 2, 2, 2]
    made.file.write_text(text.replace(str(int(2.5 * size)), str(size)))
    assert plan_compaction(made.table) == []


def test_old_files_stay_until_they_are_old_enough(tmp_path: Path) -> None:
    made = filled(tmp_path)
    compact("orders", made.pipeline.flows["orders"], now=1000.0)
    before = contents(made)
    assert delete_retired("orders", made.pipeline.flows["orders"], older_than=60, now=1059.0) == []
    assert set(retired(made.table).values()) == {1000.0}
    assert len(delete_retired("orders", made.pipeline.flows["orders"], older_than=60, now=1060.0)) == 6
    assert retired(made.table) == {} and contents(made) == before


def test_columns_that_came_later_are_null_in_older_rows(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.log(ROWS)
    first = made.run()
    path = tmp_path / "table" / first.files[0].path
    when = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
    times = pa.array([when] * 100, pa.timestamp("us", tz="UTC"))
    pq.write_table(
        pq.read_table(path, partitioning=None).append_column("when", times), path, use_deprecated_int96_timestamps=True
    )
    assert pq.read_metadata(path).schema.column(6).physical_type == "INT96"
    made.log(ROWS)
    made.run()
    squeeze(made)
    (file,) = made.table.live.values()
    table = pq.read_table(tmp_path / "table" / file.path, partitioning=None)
    assert table["when"].type == pa.timestamp("us", tz="UTC")
    assert Counter(table["when"].to_pylist()) == {when: 100, None: 100}


def test_a_compaction_that_changes_rows_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = filled(tmp_path)
    before = contents(made)
    monkeypatch.setattr(module, "_batches", lambda *arguments: list(original(*arguments))[1:])
    with pytest.raises(module.CompactionFailed):
        squeeze(made)
    monkeypatch.undo()
    assert contents(made) == before and len(made.table.entries) == 3
    assert len(repair(made.pipeline, "orders").orphans) == 1
    assert contents(made) == before


original = module._batches


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    made = filled(tmp_path)
    with table_lock(tmp_path / "table"), pytest.raises(TableLocked):
        squeeze(made)


KILLED = """
import os, signal, sys
from pathlib import Path
import pyarrow.parquet as pq
from odradek.pipeline.compact import compact, delete_retired
from odradek.pipeline.config import load

left = int(sys.argv[2])

def mined(call):
    def step(*arguments, **options):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return call(*arguments, **options)
    return step

flow = load(sys.argv[1]).flows["orders"]
os.fsync, os.link, Path.unlink = mined(os.fsync), mined(os.link), mined(Path.unlink)
pq.ParquetWriter.write_table = mined(pq.ParquetWriter.write_table)
pq.ParquetWriter.close = mined(pq.ParquetWriter.close)
compact("orders", flow)
delete_retired("orders", flow, older_than=0)
"""


@pytest.mark.slow
def test_a_kill_at_any_step_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    killed = 0
    for step in range(100):
        made = filled(tmp_path / str(step))
        before = contents(made)
        command = [sys.executable, "-c", KILLED, str(made.file), str(step)]
        code = subprocess.run(command, env=os.environ, timeout=60, check=False).returncode
        assert contents(made) == before
        repair(made.pipeline, "orders")
        assert contents(made) == before
        on_disk = {path.relative_to(made.table.root).as_posix() for path in made.table.root.rglob("*.parquet")}
        assert on_disk == made.table.live.keys() | retired(made.table).keys()
        if code == 0:
            break
        assert code == -signal.SIGKILL
        killed += 1
    assert killed >= 15
    assert len(made.table.live) == 2 and retired(made.table) == {}


def test_orphans_are_files_no_entry_lists(tmp_path: Path) -> None:
    made = filled(tmp_path)
    squeeze(made)
    made.run(undecodable=lambda value: True)
    made.log(ROWS)
    made.run(undecodable=lambda value: True)
    stray = tmp_path / "table" / "topic=orders" / "odradek-orders-7.parquet"
    letter = tmp_path / "dead" / "letters" / "odradek-orders-7.parquet"
    other = tmp_path / "table" / "inner" / "theirs.parquet"
    for path in (stray, letter, other):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    (other.parent / "_odradek").mkdir()
    plan = plan_repair(made.pipeline, "orders")
    assert set(plan.orphans) == {stray, letter} and plan.size == 10
    assert stray.exists()
    repair(made.pipeline, "orders")
    assert not stray.exists() and not letter.exists() and other.exists()
    assert plan_repair(made.pipeline, "orders").orphans == ()


def test_a_data_file_is_described(tmp_path: Path) -> None:
    made = filled(tmp_path)
    squeeze(made)
    for file in made.table.live.values():
        path = tmp_path / "table" / file.path
        assert file == DataFile(file.path, pq.read_metadata(path).num_rows, path.stat().st_size, file.partition)
