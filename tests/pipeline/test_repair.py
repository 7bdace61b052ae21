"""A checkpoint that is gone, or that belongs to something else, is made anew from the ledger."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from odradek.pipeline.checkpoint import Checkpoint, checkpoint_dir
from odradek.pipeline.compact import compact
from odradek.pipeline.errors import LedgerCorrupted
from odradek.pipeline.repair import plan_repair, repair

from .made import ROWS, Made


@pytest.fixture
def made(tmp_path: Path) -> Made:
    made = Made(tmp_path)
    for _ in range(2):
        made.log(ROWS)
        made.run()
    compact("orders", made.pipeline.flows["orders"])
    return made


def checkpoint(made: Made) -> Checkpoint:
    return Checkpoint(checkpoint_dir(made.pipeline.run.checkpoint, "orders"))


def test_a_checkpoint_is_rebuilt_from_the_newest_batch_read_from_logs(made: Made) -> None:
    plan = plan_repair(made.pipeline, "orders")
    assert plan.needed and plan.why == "there is no checkpoint" and not plan.checkpoint.exists()
    repair(made.pipeline, "orders")
    rebuilt = checkpoint(made)
    entry = made.ledger.reached()
    assert entry is not None and (rebuilt.planned, rebuilt.done) == (2, 2)
    assert rebuilt.batch(2)[1:3] == (entry.start, entry.end)
    assert not plan_repair(made.pipeline, "orders").needed


def test_offsets_are_written_as_the_source_writes_them(made: Made) -> None:
    repair(made.pipeline, "orders")
    *_, offsets = (checkpoint(made).directory / "offsets" / "2").read_text().split("\n")
    end = len(b"".join(ROWS)) * 2 + 2 * 100 * 10
    assert offsets == json.dumps({"v": 1, "topics": {"orders": {"1-0": end}}})


def test_a_sound_checkpoint_is_unchanged(made: Made) -> None:
    repair(made.pipeline, "orders")
    rebuilt = checkpoint(made)
    before = {path: path.read_bytes() for path in rebuilt.directory.rglob("*") if path.is_file()}
    assert repair(made.pipeline, "orders").entry is None
    assert {path: path.read_bytes() for path in rebuilt.directory.rglob("*") if path.is_file()} == before
    end = rebuilt.offsets(2)
    rebuilt.begin(3, {"orders": {"1-0": end["orders"]["1-0"] + 10}}, 0.0)
    (rebuilt.directory / "commits" / "3").unlink()
    assert not plan_repair(made.pipeline, "orders").needed  # a batch was planned, and not committed
    for number in (3, 4):
        rebuilt.begin(number, end, 0.0)
    assert not plan_repair(made.pipeline, "orders").needed  # batches that read nothing


@pytest.mark.parametrize("harm", ["behind", "elsewhere", "ahead", "torn", "lonely"])
def test_a_mismatched_checkpoint_is_kept_aside_and_rebuilt(made: Made, harm: str) -> None:
    repair(made.pipeline, "orders")
    rebuilt = checkpoint(made)
    directory = rebuilt.directory
    match harm:
        case "behind":
            (directory / "offsets" / "2").unlink()
        case "elsewhere":
            rebuilt.begin(2, {"orders": {"1-0": 7}}, 0.0)
        case "ahead":
            rebuilt.begin(3, {"orders": {"1-0": 1 << 40}}, 0.0)
        case "torn":
            (directory / "offsets" / "2").write_text("v1\n{")
        case "lonely":
            (directory / "offsets" / "1").unlink()
    plan = plan_repair(made.pipeline, "orders")
    assert plan.entry is not None and plan.why
    repair(made.pipeline, "orders")
    assert not plan_repair(made.pipeline, "orders").needed
    (aside,) = [path for path in directory.parent.iterdir() if ".wrong-" in path.name]
    assert aside.is_dir()


def test_without_a_ledger_nothing_is_rebuilt(tmp_path: Path) -> None:
    made = Made(tmp_path)
    assert not plan_repair(made.pipeline, "orders").needed
    repair(made.pipeline, "orders")
    assert not checkpoint(made).directory.exists()


def test_a_corrupted_ledger_is_refused(made: Made) -> None:
    made.ledger.path(0).unlink()
    with pytest.raises(LedgerCorrupted):
        repair(made.pipeline, "orders")


def test_leftovers_of_an_earlier_repair_are_replaced(made: Made) -> None:
    directory = checkpoint(made).directory
    scratch = directory.with_name(f".{directory.name}.new")
    (scratch / "offsets").mkdir(parents=True)
    (scratch / "offsets" / "9").write_text("rubbish")
    repair(made.pipeline, "orders")
    assert checkpoint(made).planned == 2 and not scratch.exists()
    shutil.rmtree(directory)
    assert plan_repair(made.pipeline, "orders").needed
