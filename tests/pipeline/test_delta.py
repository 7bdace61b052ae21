"""Delta tables beside their ledgers: columns that come, names that are odd, compactions, and cuts between the two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from odradek.pipeline.checkpoint import MicroBatch
from odradek.pipeline.commit import TableWriter
from odradek.pipeline.compact import CompactionFailed, compact, delete_retired
from odradek.pipeline.config import Flow, load
from odradek.pipeline.decode import DecodeJob
from odradek.pipeline.ledger import Ledger
from odradek.pipeline.repair import plan_repair
from odradek.pipeline.staging import StageJob, Stager, TaskOutput
from odradek.pipeline.tables import open_table
from odradek.pipeline.verify import _of_delta, _of_files

from .test_staging import SCHEMA, rows

RAW = DecodeJob("raw", read_at=10**15)

TOPIC = "a b%20=c.\u00fc"


class Made:
    """A Delta table in a directory with a space and a letter that is not ASCII, of a topic with an odd name."""

    def __init__(self, root: Path) -> None:
        self.root, self.batches = root / "tables \u00fc", 0
        self.file = root / "pipeline.toml"
        self.file.write_text(
            f'[source]\nlogs = ["1@{root}"]\n[run]\ncheckpoint = {json.dumps(str(root / "checkpoint"))}\n'
            f"[flows.f]\ntopics = [{json.dumps(TOPIC)}]\n[flows.f.sink]\n"
            f'kind = "delta"\npath = {json.dumps(str(self.root))}\npartition_by = ["topic", "date", "hour"]\n'
        )

    @property
    def flow(self) -> Flow:
        return load(self.file).flows["f"]

    def commit(self, job: DecodeJob = RAW, values: list[bytes] | None = None) -> None:
        """A batch of ten rows."""
        first = 10 * self.batches
        self.batches += 1
        batch = rows(10, first, topic=TOPIC)
        if values is not None:
            arrays = [pa.array(values, pa.binary()) if name == "value" else batch[name] for name in SCHEMA.names]
            batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

        def stage(names: str) -> TaskOutput:
            sink = self.flow.sink
            stager = Stager(StageJob(str(self.root), "", names, job, tuple(sink.partition_by), "UTC", "zstd", 10))
            stager.add(batch)
            return stager.finish()

        start, end = ({TOPIC: {"1-0": 18 * row}} for row in (first, first + 10))
        TableWriter("f", self.flow).commit(MicroBatch(self.batches, start, end, 1e9), stage, "r")

    def by_delta(self) -> list[int]:
        content: Any = DeltaTable(str(self.root)).to_pyarrow_table()
        assert set(content["topic"].to_pylist()) == {TOPIC}
        return sorted(content["offset"].to_pylist())

    def by_ledger(self) -> list[int]:
        files = Ledger(self.root, "f").files()
        assert {file.partition["topic"] for file in files} == {TOPIC}
        tables: list[Any] = [pq.read_table(self.root / file.path, partitioning=None) for file in files]
        return sorted(offset for table in tables for offset in table["offset"].to_pylist())

    def check(self, count: int) -> None:
        """Both say the same, and that is all of it."""
        assert self.by_delta() == self.by_ledger() == [18 * number for number in range(count)]
        table = open_table("f", self.flow)
        assert [*_of_delta(table), *_of_files(table)] == []


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_odd_names_are_read_back_by_both(made: Made) -> None:
    made.commit()
    made.commit()
    made.check(20)


def test_a_column_that_comes_later_is_seen(made: Made) -> None:
    def job(*names: str) -> DecodeJob:
        fields = [{"name": name, "type": "long"} for name in names]
        return DecodeJob("avro", json.dumps({"type": "record", "name": "R", "fields": fields}), read_at=10**15)

    made.commit(job("a"), [b"\x02"] * 10)
    made.commit(job("a", "b"), [b"\x04\x06"] * 10)
    made.commit(job("a"), [b"\x08"] * 10)
    made.check(30)
    content: Any = DeltaTable(str(made.root)).to_pyarrow_table().sort_by("offset")
    assert content["a"].to_pylist() == [1] * 10 + [2] * 10 + [4] * 10
    assert content["b"].to_pylist() == [None] * 10 + [3] * 10 + [None] * 10


def test_a_compaction_is_in_both_logs(made: Made) -> None:
    for _ in range(3):
        made.commit()
    entry = compact("f", made.flow)
    assert entry is not None and (len(entry.removed), len(entry.files), entry.rows) == (3, 1, 30)
    assert entry.files[0].partition == Ledger(made.root, "f").entries()[0].files[0].partition
    assert (entry.files[0].least, entry.files[0].most) == (10**9, 10**9)
    made.check(30)
    assert compact("f", made.flow) is None
    made.commit()
    assert len(delete_retired("f", made.flow, older_than=0)) == 3
    made.check(40)


def test_what_deltas_own_tools_compacted_is_taken_over_and_not_removed_as_orphans(made: Made) -> None:
    made.commit()
    made.commit()
    DeltaTable(str(made.root)).optimize.compact()
    assert plan_repair(load(made.file), "f").orphans == ()
    kinds = [finding.kind for finding in _of_delta(open_table("f", made.flow))]
    assert kinds == ["file"] * 3 and made.by_ledger() == made.by_delta()
    assert compact("f", made.flow) is not None
    made.check(20)


def test_a_compaction_that_is_cut_off_between_the_two_logs_is_finished_by_the_next(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.commit()
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            made.commit()  # in Delta's log only
    assert len(Ledger(made.root, "f").entries()) == 1
    with monkeypatch.context() as patch:
        original = Ledger.commit
        patch.setattr(Ledger, "commit", lambda self, entry: original(self, _only_appends(entry)))
        with pytest.raises(KeyboardInterrupt):
            compact("f", made.flow)
    assert made.by_delta() == made.by_ledger() == [18 * number for number in range(20)]
    compact("f", made.flow)
    made.check(20)
    made.commit()
    made.check(30)


def _only_appends(entry: Any) -> Any:
    if entry.kind == "replace":
        raise KeyboardInterrupt
    return entry


def test_rows_that_were_deleted_in_delta_are_not_taken_over(made: Made) -> None:
    made.commit()
    made.commit()
    DeltaTable(str(made.root)).delete("offset < 100")
    with pytest.raises(CompactionFailed, match="do not have the rows"):
        compact("f", made.flow)
    assert len(made.by_ledger()) == 20
