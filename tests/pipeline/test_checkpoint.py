from __future__ import annotations

import json
from pathlib import Path

import pytest

from odradek.pipeline.checkpoint import Checkpoint, MicroBatch, checkpoint_dir
from odradek.pipeline.errors import CheckpointMismatch

START, END = {"t": {"0-0": 10}}, {"t": {"0-0": 30, "0-1": 0}}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(checkpoint_dir(tmp_path, "f"))


def planned(checkpoint: Checkpoint, number: int, offsets: object, when: int = 1_700_000_000_123) -> None:
    """As Spark does it."""
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": when, "conf": {"some": "thing"}})
    text = f"v1\n{head}\n{json.dumps({'v': 1, 'topics': offsets})}"
    (checkpoint.directory / "offsets" / str(number)).write_text(text)


def test_of_a_new_one_there_is_nothing(checkpoint: Checkpoint) -> None:
    assert (checkpoint.planned, checkpoint.done) == (None, None)


def test_it_begins_with_a_batch_that_is_done(checkpoint: Checkpoint) -> None:
    checkpoint.begin(0, START, 1.5)
    assert (checkpoint.planned, checkpoint.done, checkpoint.offsets(0)) == (0, 0, START)
    identity = (checkpoint.directory / "metadata").read_text()
    assert len(json.loads(identity)["id"]) == 36


def test_a_batch_reads_what_lies_between_its_offsets_and_those_before(checkpoint: Checkpoint) -> None:
    checkpoint.begin(0, START, 1.5)
    planned(checkpoint, 1, END)
    assert checkpoint.batch(1) == MicroBatch(1, START, END, 1_700_000_000.123)
    assert (checkpoint.planned, checkpoint.done) == (1, 0)


def test_what_a_crash_left_of_its_beginning_is_begun_again(checkpoint: Checkpoint) -> None:
    checkpoint.begin(0, START, 1.5)
    (checkpoint.directory / "commits" / "0").unlink()
    checkpoint.begin(0, END, 2.5)
    assert checkpoint.offsets(0) == END and checkpoint.done == 0


def test_what_is_not_a_batch_does_not_count(checkpoint: Checkpoint) -> None:
    checkpoint.begin(0, START, 1.5)
    (checkpoint.directory / "offsets" / ".1.crc").write_bytes(b"x")
    (checkpoint.directory / "offsets" / ".7.tmp").write_bytes(b"x")
    assert checkpoint.planned == 0


@pytest.mark.parametrize("text", ["", "v2\n{}\n{}", "v1\n{}", 'v1\n{"batchTimestampMs": 1}\n[]', "v1\n{\n{", "\xff"])
def test_what_spark_did_not_write_is_told_by_its_place(checkpoint: Checkpoint, text: str) -> None:
    checkpoint.begin(0, START, 1.5)
    path = checkpoint.directory / "offsets" / "1"
    path.write_text(text, "latin-1")
    with pytest.raises(CheckpointMismatch, match="offsets/1"):
        checkpoint.batch(1)


def test_a_batch_that_was_cleaned_up_is_told_by_its_place(checkpoint: Checkpoint) -> None:
    checkpoint.begin(5, START, 1.5)
    with pytest.raises(CheckpointMismatch, match="offsets/4"):
        checkpoint.batch(5)
