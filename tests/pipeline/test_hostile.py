"""Files that were edited or cut off, full disks, directories inside of others: nothing is lost, and it is said."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.errors import ConfigError
from odradek.pipeline import staging
from odradek.pipeline.audit import Auditor
from odradek.pipeline.checkpoint import Checkpoint
from odradek.pipeline.commit import TableWriter
from odradek.pipeline.config import Flow, SourceConfig
from odradek.pipeline.errors import CheckpointMismatch, LedgerCorrupted
from odradek.pipeline.ledger import DataFile, Ledger, LedgerEntry, LedgerGap, live_files
from odradek.pipeline.repair import plan_repair, repair
from odradek.pipeline.replay import ReplayProgress
from odradek.pipeline.staging import Stager, file_prefix, is_ours

from .made import ROWS, Made
from .test_commit import Maker, batch, numbered
from .test_staging import job, rows

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
ENTRY = LedgerEntry(
    flow="f", batch=0, start={"t": {"1-0": 0}}, end={"t": {"1-0": 9}}, rows=1, gaps=(LedgerGap("t", "1-0", 0, 1, "w"),),
    files=(DataFile("x.parquet", 1, 2, {"topic": "t"}, 1.0, 2.0),), audit={"0": {"t": 1}}, fields={"a": "int"},
)  # fmt: skip


def key_paths(body: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    return [at, *(key_path for key, value in inner for key_path in key_paths(value, (*at, key)))]


def changed(body: Any, key_path: tuple[Any, ...], value: Any) -> Any:
    if not key_path:
        return value
    copy = json.loads(json.dumps(body))
    inner = copy
    for key in key_path[:-1]:
        inner = inner[key]
    inner[key_path[-1]] = value
    return copy


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(key_paths(json.loads(ENTRY.encode()))), JSON)
def test_an_edited_entry_is_refused_or_decodes_to_its_new_content(
    tmp_path_factory: pytest.TempPathFactory, key_path: tuple[Any, ...], value: Any
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("l"), "f")
    ledger.commit(ENTRY)
    text = json.dumps(changed(json.loads(ENTRY.encode()), key_path, value), sort_keys=True, separators=(",", ":"))
    ledger.path(0).write_text(text + "\n")
    try:
        (entry,) = ledger.entries()
        assert len(live_files([entry])) <= 1
    except LedgerCorrupted as error:
        assert error.where in (str(ledger.path(0)), "batch 0")
        return
    assert entry.encode().decode() == text + "\n" == ledger.path(0).read_text()
    assert ledger.tail() == entry and ledger.reached() in (entry, None)


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 50_000, ENTRY.encode()[:-20], b"\0" * 100])
def test_an_invalid_entry_is_named(tmp_path: Path, data: bytes) -> None:
    ledger = Ledger(tmp_path, "f")
    ledger.commit(ENTRY)
    ledger.path(0).write_bytes(data)
    with pytest.raises(LedgerCorrupted, match=str(ledger.path(0))):
        ledger.tail()


@settings(max_examples=200, deadline=None)
@given(JSON, JSON)
def test_an_edited_checkpoint_is_refused(tmp_path_factory: pytest.TempPathFactory, head: Any, offsets: Any) -> None:
    checkpoint = Checkpoint(tmp_path_factory.mktemp("c"))
    checkpoint.begin(0, {"t": {"1-0": 5}}, 1.0)
    path = checkpoint.directory / "offsets" / "0"
    version, first, last = path.read_text().split("\n")
    for lines in (
        (json.dumps(head), last),
        (first, json.dumps(offsets)),
        (first, json.dumps({"v": 1, "topics": offsets})),
    ):
        path.write_text("\n".join((version, *lines)))
        try:
            offsets = checkpoint.offsets(0)
        except CheckpointMismatch as error:
            assert str(path) in str(error)
        else:
            assert all(isinstance(key_path, int) for key_paths in offsets.values() for key_path in key_paths.values())


def test_a_checkpoint_of_nested_brackets_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.begin(0, {}, 1.0)
    (tmp_path / "offsets" / "0").write_text("v1\n" + "[" * 100_000 + "\n{}")
    with pytest.raises(CheckpointMismatch):
        checkpoint.offsets(0)


def test_progress_files_of_replays_and_audits_are_checked(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    for junk in ({"replay": "x"}, {"replay": "x", "done": 7, "rows": 1, "ended": True}):
        state.write_text(json.dumps(junk))
        with pytest.raises(ConfigError, match=r"state\.json: not a progress file of a replay"):
            ReplayProgress.load(state, "x")
    mark = tmp_path / "mark"
    mark.write_text("")
    with pytest.raises(ConfigError, match="remove the file to send everything again"):
        Auditor(SourceConfig(brokers="1@127.0.0.1:1"), "counts", mark).send([ENTRY])


# ---- a full disk ---------------------------------------------------------------------------------------------


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_after_a_full_disk_while_committing_the_next_run_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    make = Maker(tmp_path, "parquet")
    make.table().commit(batch(1, 0, 10), make.stage(0, 10), "r")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space left"):
            make.table().commit(batch(2, 10, 20), make.stage(10, 20), "r")
    assert make.values() == numbered(10)
    assert {path.suffix for path in make.table().ledger.directory.iterdir()} == {".json"}
    table = make.table()
    table.recover()
    table.commit(batch(2, 10, 20), make.stage(10, 20), "r")
    assert make.values() == numbered(20) and len(make.paths()) == 2


def test_a_full_disk_while_staging_is_reported_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "GROUP_BYTES", 1)
    stager = Stager(job(tmp_path))
    stager.add(rows(10))
    stager.add(rows(10, topic="u"))
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    close = pq.ParquetWriter.close

    def close_in_vain(writer: pq.ParquetWriter) -> None:
        close(writer)
        full()

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "close", close_in_vain)
        with pytest.raises(OSError, match="No space left"):
            stager.finish()
        stager.abandon()
    assert len(list(tmp_path.rglob("*.parquet"))) <= 1  # of the file that was being closed: the driver removes it


# ---- directories in directories ------------------------------------------------------------------------------


def test_dead_letters_within_the_tables_directory_are_not_taken_for_leftovers(tmp_path: Path) -> None:
    for sink, dead in (("t", "t/dead"), ("u/table", "u")):
        flow = Flow.model_validate(
            {"topics": ["t"], "sink": {"path": str(tmp_path / sink)}, "dead": {"path": str(tmp_path / dead)}}
        )
        table = TableWriter("f", flow)
        names = [f"{file_prefix('f', 0, '0123abcd')}{number:016x}.parquet" for number in range(3)]
        for root, name in ((table.root, names[0]), (table.root / "dead", names[2]), (tmp_path / dead, names[1])):
            root.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(b"")
        files = (DataFile(names[0], 0, 0),)
        table.ledger.commit(LedgerEntry("f", 0, {}, {}, files, dead_files=(DataFile(names[1], 0, 0),)))
        table.recover()
        left = {path.name for path in tmp_path.joinpath(sink.partition("/")[0]).rglob("*.parquet")}
        assert left == {names[0], names[1]}


def test_files_of_a_flow_are_not_those_of_one_whose_name_is_longer() -> None:
    for flow in ("orders", "orders-2", "orders-00000001"):
        mine = f"{file_prefix(flow, 1, '0123abcd')}{7:016x}.parquet"
        assert [other for other in ("orders", "orders-2", "orders-00000001") if is_ours(other, mine)] == [flow]
        assert is_ours(flow, f"odradek-{flow}-00000001-{7:032x}.parquet")
        assert not is_ours(flow, f"odradek-{flow}-mine.parquet")


def test_a_table_and_dead_letters_behind_links_are_told_apart(tmp_path: Path) -> None:
    """The directory of the dead letters is one of the table's, under another name."""
    (tmp_path / "disk" / "table" / "letters").mkdir(parents=True)
    (tmp_path / "table").symlink_to(tmp_path / "disk" / "table")
    (tmp_path / "dead").symlink_to(tmp_path / "disk" / "table" / "letters")
    made = Made(tmp_path)
    made.log(ROWS)
    made.run(undecodable=lambda value: value == ROWS[7])
    assert plan_repair(made.pipeline, "orders").orphans == ()
    repair(made.pipeline, "orders")
    TableWriter("orders", made.pipeline.flows["orders"]).recover()
    assert sum(1 for path in tmp_path.joinpath("disk").rglob("*.parquet")) == 2
