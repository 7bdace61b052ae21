"""Batches judged and committed, and cut off at every step, without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.pipeline.checkpoint import MicroBatch
from odradek.pipeline.commit import TableWriter, gaps_of, log_bytes
from odradek.pipeline.config import Flow
from odradek.pipeline.decode import DecodeJob
from odradek.pipeline.delta import DeltaLog
from odradek.pipeline.errors import FileNotVisible, InexactRead, LedgerConflict, TableLocked, TooManyDeadLetters
from odradek.pipeline.ledger import Ledger, LedgerGap
from odradek.pipeline.lock import table_lock
from odradek.pipeline.staging import CoveredRange, StageJob, Stager, TaskOutput

from .test_staging import rows


def batch(number: int, first: int, last: int) -> MicroBatch:
    """Messages [first, last) of one log."""
    return MicroBatch(number, {"t": {"1-0": 18 * first}}, {"t": {"1-0": 18 * last}}, 1_795_000_000.0)


class Maker:
    """Tables, and stages that write real files."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root, self.kind = root, kind
        self.staged: list[str] = []

    def table(self, **options: Any) -> TableWriter:
        flow = {"topics": ["t"], "sink": {"path": str(self.root / "table"), "kind": self.kind}, **options}
        return TableWriter("f", Flow.model_validate(flow), 10)

    def stage(
        self, first: int, last: int, spoil: Callable[[TaskOutput], None] = lambda _: None
    ) -> Callable[[str], TaskOutput]:
        def stage(names: str) -> TaskOutput:
            self.staged.append(names)
            job = StageJob(str(self.root / "table"), "", names, DecodeJob("raw"), ("topic", "date"), "UTC", "zstd", 10)
            stager = Stager(job)
            stager.add(rows(last - first, first))
            account = stager.finish()
            spoil(account)
            return account

        return stage

    def values(self) -> list[bytes]:
        root = self.root / "table"
        parts: list[Any] = [pq.read_table(root / file.path, partitioning=None) for file in Ledger(root, "f").files()]
        return sorted(value for part in parts for value in part["value"].to_pylist())

    def paths(self) -> set[Path]:
        return set((self.root / "table").rglob("*.parquet"))


@pytest.fixture(params=["parquet", "delta"])
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Maker:
    return Maker(tmp_path, request.param)


def numbered(count: int) -> list[bytes]:
    return [b"%08d" % number for number in range(count)]


def delta_values(table: TableWriter) -> list[bytes]:
    column: Any = DeltaTable(str(table.root)).to_pyarrow_table()["value"]
    return sorted(column.to_pylist())


def test_batches_are_committed_one_after_another(make: Maker) -> None:
    table = make.table()
    for number in range(3):
        entry = table.commit(
            batch(number + 1, 10 * number, 10 * number + 10), make.stage(10 * number, 10 * number + 10), "r"
        )
        assert entry is not None and (entry.batch, entry.micro_batch, entry.rows) == (number, number + 1, 10)
    assert make.values() == numbered(30) and len(table.ledger.entries()) == 3
    if make.kind == "delta":
        assert delta_values(table) == numbered(30)


def test_a_committed_batch_is_not_staged_again(make: Maker) -> None:
    table = make.table()
    table.commit(batch(1, 0, 10), make.stage(0, 10), "r")
    assert table.commit(batch(1, 0, 10), make.stage(0, 10), "s") is None
    assert len(make.staged) == 1


def test_a_batch_without_anything_to_read_is_none(make: Maker) -> None:
    assert make.table().commit(batch(1, 0, 0), make.stage(0, 0), "r") is None
    assert make.staged == []


@pytest.mark.parametrize("wrong", [batch(2, 9, 20), batch(2, 11, 20), MicroBatch(2, {}, {"t": {"1-0": 20}}, 1.0)])
def test_a_batch_that_does_not_follow_is_refused_before_it_is_read(make: Maker, wrong: MicroBatch) -> None:
    table = make.table()
    table.commit(batch(1, 0, 10), make.stage(0, 10), "r")
    with pytest.raises(LedgerConflict, match="t/1-0"):
        table.commit(wrong, make.stage(0, 10), "r")
    assert len(make.staged) == 1


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        (0, 9, None),
        (0, 5, "nothing was read from t/1-0 between 90 and 180"),
        (0, 11, "beyond the end"),
        (5, 10, "between 0 and 90"),
    ],
)
def test_ranges_read_must_equal_ranges_planned(make: Maker, first: int, last: int, words: str | None) -> None:
    table = make.table()
    if words is None:  # as much as a compressed message takes that has none in it: it is put down
        entry = table.commit(batch(1, 0, 10), make.stage(first, last), "r")
        assert entry is not None
        assert entry.gaps == (LedgerGap("t", "1-0", 162, 180, "an empty compressed message"),)
        return
    with pytest.raises(InexactRead, match=words):
        table.commit(batch(1, 0, 10), make.stage(first, last), "r")
    assert table.ledger.entries() == [] and make.paths() == set()


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 39)), st.sampled_from(["fail", "skip"]))
def test_every_hole_is_an_error_or_a_gap_under_every_policy(
    tmp_path_factory: pytest.TempPathFactory, left_out: set[int], loss: str
) -> None:
    make = Maker(tmp_path_factory.mktemp("t"), "parquet")

    def stage(names: str) -> TaskOutput:
        runs = [CoveredRange("t", "1-0", 18 * n, 18 * n + 18) for n in range(40) if n not in left_out]
        return TaskOutput(runs=runs)

    try:
        entry = make.table(data_loss=loss).commit(batch(1, 0, 40), stage, "r")
    except InexactRead:
        assert loss == "fail" and left_out
        return
    assert entry is not None
    missing = {n for gap in entry.gaps for n in range(gap.start // 18, gap.end // 18)}
    assert missing == left_out


def test_rows_read_twice_are_refused(make: Maker) -> None:
    def twice(account: TaskOutput) -> None:
        account.runs.append(CoveredRange("t", "1-0", 18, 36))

    with pytest.raises(InexactRead, match="were read twice"):
        make.table().commit(batch(1, 0, 10), make.stage(0, 10, twice), "r")


def elsewhere(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("lose", [elsewhere, cut_short])
def test_files_that_the_driver_does_not_see_are_not_committed(make: Maker, lose: Callable[[Path], None]) -> None:
    def spoil(account: TaskOutput) -> None:
        lose(make.root / "table" / account.files[0].path)

    table = make.table()
    with pytest.raises(FileNotVisible, match="the driver does not see it") as caught:
        table.commit(batch(1, 0, 10), make.stage(0, 10, spoil), "r")
    assert "under the same path" in caught.value.hint
    assert table.ledger.entries() == [] and make.paths() == set()


def test_too_many_dead_records_are_refused(make: Maker) -> None:
    def spoil(account: TaskOutput) -> None:
        account.reasons.update({"bad": 2})

    with pytest.raises(TooManyDeadLetters, match="2 of 12 records"):
        make.table().commit(batch(1, 0, 10), make.stage(0, 10, spoil), "r")
    assert make.paths() == set()


def test_an_entry_is_in_deltas_log_once_however_often_it_is_committed(tmp_path: Path) -> None:
    make = Maker(tmp_path, "delta")
    table = make.table()
    for number in (0, 1):
        first, last = 10 * number, 10 * number + 10
        entry = table.commit(batch(number + 1, first, last), make.stage(first, last), "r")
        assert entry is not None
        DeltaLog(table.root, "f", ["topic", "date"]).commit(entry)
        assert DeltaTable(str(table.root)).version() == number
    assert delta_values(table) == numbered(20)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with table_lock(tmp_path), pytest.raises(TableLocked, match="locked by another run"), table_lock(tmp_path):
        raise AssertionError("both have it")
    with table_lock(tmp_path):
        pass


# ---- cut off -------------------------------------------------------------------------------------------------


class Cut(BaseException):
    """In place of a kill: nothing of the run does anything behind it."""


def cuts() -> Iterator[tuple[str, Any, str, bool]]:
    """Name, what is patched, and whether the step is done before the cut."""
    yield "staged", TableWriter, "_check_result", False
    yield "judged", TableWriter, "_entry", False
    yield "before delta", DeltaLog, "commit", False
    yield "behind delta", DeltaLog, "commit", True
    yield "before ledger", Ledger, "commit", False
    yield "before link", os, "link", False
    yield "behind link", os, "link", True
    yield "behind ledger", Ledger, "commit", True


@pytest.mark.parametrize(("name", "owner", "method", "done"), list(cuts()), ids=[name for name, *_ in cuts()])
@pytest.mark.parametrize("at", [0, 1])
def test_after_a_kill_at_any_step_the_next_run_makes_the_table_exact(
    make: Maker, name: str, owner: Any, method: str, done: bool, at: int
) -> None:
    steps = [batch(number + 1, 10 * number, 10 * number + 10) for number in range(3)]
    original = getattr(owner, method)

    def cut(*arguments: Any, **options: Any) -> None:
        if done:
            original(*arguments, **options)
        raise Cut

    for step in steps[:at]:
        make.table().commit(step, make.stage(10 * (step.number - 1), 10 * step.number), "r")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, cut)
        patch.setattr(TableWriter, "_remove_attempt", lambda *_: None)
        if make.kind == "parquet" and owner is DeltaLog:
            make.table().commit(steps[at], make.stage(10 * at, 10 * at + 10), "r")
        else:
            with pytest.raises(Cut):
                make.table().commit(steps[at], make.stage(10 * at, 10 * at + 10), "r")
    assert make.values() in (numbered(10 * at), numbered(10 * at + 10))
    table = make.table()
    table.recover()
    for step in steps[at:]:
        table.commit(step, make.stage(10 * (step.number - 1), 10 * step.number), "s")
    assert make.values() == numbered(30)
    assert make.paths() == {table.root / file.path for file in table.ledger.files()}
    if make.kind == "delta":
        assert delta_values(table) == numbered(30)


# ---- what was read -------------------------------------------------------------------------------------------


@given(st.sets(st.integers(1, 99), max_size=8), st.sets(st.integers(0, 9)), st.randoms())
def test_gaps_are_the_ranges_no_task_covers(cuts: set[int], left_out: set[int], random: Any) -> None:
    edges = [0, *sorted(cuts), 100]
    parts = list(pairwise(edges))
    runs = [CoveredRange("t", "0-0", *part) for number, part in enumerate(parts) if number not in left_out]
    random.shuffle(runs)
    made = MicroBatch(1, {"t": {"0-0": 0}}, {"t": {"0-0": 100}}, 0.0)
    gaps = gaps_of("f", made, runs, "why")
    covered = sorted([*((gap.start, gap.end) for gap in gaps), *(run[2:] for run in runs)])
    assert covered[0][0] == 0 and covered[-1][1] == 100
    assert all(one[1] == other[0] for one, other in pairwise(covered))


def test_a_partition_that_enters_is_not_read_yet_and_one_that_is_not_to_be_read_is_refused() -> None:
    made = MicroBatch(1, {"t": {"0-0": 5}}, {"t": {"0-0": 5, "0-1": 700}}, 0.0)
    assert gaps_of("f", made, [], "") == [] and log_bytes(made.start, made.end) == 0
    with pytest.raises(InexactRead, match="t/0-1, which is not in this batch"):
        gaps_of("f", made, [CoveredRange("t", "0-1", 0, 5)], "")


def test_a_recreated_log_leaves_a_gap_with_a_reason() -> None:
    made = MicroBatch(1, {"t": {"0-0": 500}}, {"t": {"0-0": 90}}, 0.0)
    assert gaps_of("f", made, [CoveredRange("t", "0-0", 0, 90)], "lost") == [LedgerGap("t", "0-0", 500, 90, "lost")]
