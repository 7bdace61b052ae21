from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.pipeline.errors import LedgerConflict, LedgerCorrupted
from odradek.pipeline.ledger import GENESIS, DataFile, Ledger, LedgerEntry, LedgerGap, check_ranges, live_files


def entry(batch: int, previous: LedgerEntry | None = None, **changes: object) -> LedgerEntry:
    made = LedgerEntry(
        flow="f",
        batch=batch,
        start={"t": {"1-0": 100 * batch}},
        end={"t": {"1-0": 100 * batch + 100}},
        files=(DataFile(f"date=1/part-{batch}.parquet", 10, 1000, {"date": "1"}, 1.5, 2.5),),
        rows=10,
        run="first",
        code="0",
        written=1.0,
        previous=previous.digest if previous else GENESIS,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "table", "f")


def filled(ledger: Ledger, count: int) -> list[LedgerEntry]:
    entries: list[LedgerEntry] = []
    for batch in range(count):
        entries.append(ledger.commit(entry(batch, entries[-1] if entries else None)))
    return entries


def test_a_new_ledger_is_empty(ledger: Ledger) -> None:
    assert (ledger.entries(), ledger.tail(), ledger.files()) == ([], None, [])


def test_entries_are_read_in_commit_order(ledger: Ledger) -> None:
    entries = filled(ledger, 12)
    assert ledger.entries() == entries
    assert ledger.tail() == entries[-1]
    assert [file.path for file in ledger.files()] == [f"date=1/part-{batch}.parquet" for batch in range(12)]


def test_a_batch_that_runs_again_finds_its_commit_and_its_files(ledger: Ledger) -> None:
    first, second = filled(ledger, 2)
    again = replace(first, files=(DataFile("other.parquet", 10, 1001),), run="second", written=9.0)
    assert ledger.commit(again) == first
    assert ledger.commit(replace(second, run="second")) == second
    assert ledger.entries() == [first, second]


@pytest.mark.parametrize(
    "changes", [{"end": {"t": {"1-0": 7}}}, {"rows": 9}, {"dead": 1}, {"gaps": (LedgerGap("t", "1-0", 0, 1, "gone"),)}]
)
def test_a_batch_committed_from_other_input_is_a_conflict(ledger: Ledger, changes: dict[str, object]) -> None:
    (first,) = filled(ledger, 1)
    with pytest.raises(LedgerConflict, match=r"batch 0.*committed by first") as caught:
        ledger.commit(replace(first, run="second", **changes))  # type: ignore[arg-type]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert ledger.entries() == [first]


def test_a_batch_must_follow_the_newest(ledger: Ledger) -> None:
    first, _ = filled(ledger, 2)
    for wrong in (entry(3, first), entry(2, first), entry(2)):
        with pytest.raises(LedgerConflict, match=r"does not follow the newest one \(batch 1\)"):
            ledger.commit(wrong)
    with pytest.raises(LedgerConflict, match=r"newest one \(empty\)"):
        Ledger(ledger.root / "other", "f").commit(entry(1))


def test_one_of_two_concurrent_commits_wins(ledger: Ledger) -> None:
    """The second one looked before the first one linked its file."""
    (first,) = filled(ledger, 1)
    blind = Ledger(ledger.root, "f")
    blind.tail = lambda: None  # type: ignore[method-assign]
    assert blind.commit(replace(first, run="second", written=5.0)) == first
    with pytest.raises(LedgerConflict):
        blind.commit(replace(first, rows=11))


def test_a_changed_entry_is_found(ledger: Ledger) -> None:
    filled(ledger, 3)
    body = json.loads(ledger.path(1).read_bytes())
    body["rows"] = 11
    ledger.path(1).write_bytes(json.dumps(body, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    with pytest.raises(LedgerCorrupted, match=r"0002\.json: the entry does not follow the one before it"):
        ledger.entries()


def test_a_lost_entry_is_found(ledger: Ledger) -> None:
    filled(ledger, 3)
    ledger.path(1).unlink()
    with pytest.raises(LedgerCorrupted, match="the entry of batch 1 is missing"):
        ledger.entries()


@pytest.mark.parametrize("junk", [b"", b"{}\n", b"[]", b'{"v":1}', b'{"v":2}', b"\xff", b"null"])
def test_junk_is_not_an_entry(ledger: Ledger, junk: bytes) -> None:
    filled(ledger, 2)
    ledger.path(1).write_bytes(junk)
    with pytest.raises(LedgerCorrupted, match=r"0001.json"):
        ledger.tail()
    with pytest.raises(LedgerCorrupted, match="restore the ledger"):
        ledger.entries()


def test_an_entry_of_another_flow_is_found(ledger: Ledger) -> None:
    filled(ledger, 1)
    with pytest.raises(LedgerCorrupted, match="of flow 'f', not of 'g'"):
        Ledger(ledger.root, "g").entries()


def test_what_a_killed_commit_left_is_not_an_entry(ledger: Ledger) -> None:
    first, second = filled(ledger, 2)
    (ledger.directory / ".00000000000000000002.json.123.abcd").write_bytes(b'{"v":1')
    (ledger.directory / "notes.txt").write_text("not ours")
    assert ledger.entries() == [first, second]
    assert ledger.commit(entry(2, second)) == ledger.tail()


def test_a_compaction_replaces_files_in_one_step(ledger: Ledger) -> None:
    entries = filled(ledger, 3)
    removed = tuple(file.path for each in entries[:2] for file in each.files)
    compacted = entry(
        3, entries[-1], kind="replace", removed=removed, files=(DataFile("big.parquet", 20, 1500),), rows=20
    )
    ledger.commit(compacted)
    assert [file.path for file in ledger.files()] == ["date=1/part-2.parquet", "big.parquet"]


def test_a_file_cannot_be_added_twice_or_removed_when_it_is_not_there() -> None:
    first = entry(0)
    with pytest.raises(LedgerCorrupted, match="which is in the table already"):
        live_files([first, replace(entry(1, first), files=first.files)])
    with pytest.raises(LedgerCorrupted, match="which is not in the table"):
        live_files([first, entry(1, first, removed=("nothing.parquet",))])


def test_what_the_newest_run_has_committed_is_found_from_the_end(ledger: Ledger) -> None:
    assert ledger.written_by("a") == []
    newest: LedgerEntry | None = None
    for batch, run in enumerate("aabbb"):
        newest = ledger.commit(entry(batch, newest, run=run))
    ledger.commit(entry(5, newest, kind="compact", run="", files=(), start={}, end={}))
    assert [each.batch for each in ledger.written_by("b")] == [2, 3, 4]
    assert ledger.written_by("a") == ledger.written_by("c") == []


def test_batches_that_do_not_join_are_named() -> None:
    first = entry(0)
    late = entry(1, first, start={"t": {"1-0": 150, "2-0": 7}})
    assert list(check_ranges([first, entry(1, first)])) == []
    assert [gap[:4] for gap in map(_tuple, check_ranges([first, late]))] == [("t", "1-0", 100, 150)]
    recorded = replace(late, gaps=(LedgerGap("t", "1-0", 100, 150, "retention"),))
    assert list(check_ranges([first, recorded])) == []


def _tuple(gap: LedgerGap) -> tuple[str, str, int, int, str]:
    return gap.topic, gap.partition, gap.start, gap.end, gap.reason


names = st.text(max_size=5)
offsets = st.dictionaries(names, st.dictionaries(names, st.integers(0, 2**62), max_size=3), max_size=3)
times = st.none() | st.floats(allow_nan=False, allow_infinity=False)
data_files = st.builds(
    DataFile, names, st.integers(0), st.integers(0), st.dictionaries(names, names, max_size=2), times, times
)


@given(
    st.builds(
        LedgerEntry,
        flow=names,
        batch=st.integers(0, 2**40),
        start=offsets,
        end=offsets,
        files=st.lists(data_files, max_size=3).map(tuple),
        removed=st.lists(names, max_size=3).map(tuple),
        gaps=st.lists(st.builds(LedgerGap, names, names, st.integers(), st.integers(), names), max_size=2).map(tuple),
        audit=offsets,
        written=st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_an_entry_survives_its_bytes(made: LedgerEntry) -> None:
    assert LedgerEntry.decode(made.encode()) == made
    assert LedgerEntry.decode(made.encode()).encode() == made.encode()
    assert made.encode().isascii()


KILLED = """
import os, signal, sys
from odradek.pipeline.ledger import *
ledger = Ledger(sys.argv[1], "f")
step = getattr(os, sys.argv[2])
def die(*args, **options):
    if sys.argv[3] == "after":
        step(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(os, sys.argv[2], die)
tail = ledger.tail()
ledger.commit(LedgerEntry("f", 1, {}, {}, (DataFile("b", 1, 1),), previous=tail.digest))
"""


@pytest.mark.parametrize(
    ("step", "moment"), [("fsync", "before"), ("fsync", "after"), ("link", "before"), ("link", "after")]
)
def test_a_commit_that_is_killed_happened_whole_or_not_at_all(ledger: Ledger, step: str, moment: str) -> None:
    (first,) = filled(ledger, 1)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(ledger.root), step, moment], env={**os.environ}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    happened = (step, moment) == ("link", "after")
    assert len(ledger.entries()) == 1 + happened
    again = LedgerEntry("f", 1, {}, {}, (DataFile("c", 1, 1),), previous=first.digest)
    assert ledger.commit(again).files[0].path == ("b" if happened else "c")
