"""The pipeline on a real broker of 0.8 or later: exact ranges of logs whose offsets have holes.

Most tests call what Spark would call; one runs the command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

from odradek.pipeline.checkpoint import MicroBatch
from odradek.pipeline.config import Pipeline, PipelineFileError, load
from odradek.pipeline.errors import InexactRead
from odradek.pipeline.run import FlowRun, RunLimits
from odradek.pipeline.sources import flow_options, range_schema
from odradek.pipeline.staging import Stager, TaskOutput
from odradek.pipeline.tables import open_table, read_rows
from odradek.pipeline.verify import VerifyResult, verify
from odradek.pipeline.view import backlog, plan
from odradek.spark.source import OdradekSource, StreamReader
from odradek.testing import KafkaBroker

from ..brokers import foreign
from .kafka import numbers, write
from .made import types_of


class Workspace:
    """A pipeline of one flow on a broker."""

    def __init__(self, root: Path, kafka: KafkaBroker, run: str = "", flow: str = "") -> None:
        self.root, self.kafka, self.topic = root, kafka, f"flow{uuid4().hex[:12]}"
        kafka.create_topic(self.topic, 2)
        self.file = root / "pipeline.toml"
        self.file.write_text(
            f'[source]\nkafka = "kafka://{kafka.bootstrap}"\n[run]\ncheckpoint = "{root}/checkpoint"\n{run}\n'
            f'[flows.a]\ntopics = ["{self.topic}"]\n{flow}\n[flows.a.sink]\npath = "{root}/table"\n'
            f'[flows.a.dead]\npath = "{root}/dead"\n'
        )

    @property
    def pipeline(self) -> Pipeline:
        return load(self.file)

    def run_batch(self, drop: int = 0) -> Any:
        """Read and commit one micro-batch as Spark would; `drop` rows get lost on the way."""
        pipeline = self.pipeline
        flow = FlowRun("a", pipeline.flows["a"], pipeline, RunLimits(), "run")
        flow.table.root.mkdir(exist_ok=True)
        flow._load_fields()
        reader = OdradekSource(flow_options(pipeline, flow.flow)).streamReader(
            types_of(column.split()[0] for column in range_schema().split(", "))
        )
        assert isinstance(reader, StreamReader)
        reached = flow.table.ledger.reached()
        start: dict[str, Any] = {"v": 1, "topics": reached.end} if reached else reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        tasks = reader.partitions(start, end)

        def stage(prefix: str) -> TaskOutput:
            output = TaskOutput()
            for task in tasks:
                stager = Stager(flow._job(batch, prefix))
                for table in reader.read(task):
                    stager.add(table.slice(drop))
                output.add(stager.finish())
            return output

        batch = MicroBatch(0 if reached is None else reached.micro_batch + 1, start["topics"], end["topics"], 1.0)
        return flow.table.commit(batch, stage, "run")

    def verified(self) -> VerifyResult:
        pipeline = self.pipeline
        return anyio.run(verify, pipeline, open_table("a", pipeline.flows["a"]))

    def values(self) -> list[bytes | None]:
        table = open_table("a", self.pipeline.flows["a"])
        return [
            value
            for part in read_rows(table.root, table.live.values(), ["value"])
            for value in part["value"].to_pylist()
        ]


def test_a_table_has_every_committed_record_once_and_verifies(odradek_kafka: KafkaBroker, tmp_path: Path) -> None:
    here = Workspace(tmp_path, odradek_kafka)
    write(odradek_kafka, here.topic, numbers(500), compression="lz4")
    foreign.write_transactions(odradek_kafka, here.topic)  # the last of four stays open
    foreign.produce("librdkafka", odradek_kafka, here.topic, [(b"key", None, [("h", b"1")], None)], ["none"])
    entry = here.run_batch()
    assert (entry.rows, entry.dead, entry.gaps) == (502, 0, ())
    assert here.values() == [*numbers(500), b"committed", b"plain"]
    assert here.run_batch() is None
    result = here.verified()
    assert result.findings == ()
    assert result.counts.rows == 502
    assert entry.end[here.topic] == {"0": 505, "1": 0}  # the end of what is committed: the open one begins there


def test_batches_have_as_many_records_as_allowed(odradek_kafka: KafkaBroker, tmp_path: Path) -> None:
    here = Workspace(tmp_path, odradek_kafka, run="batch_records = 40")
    write(odradek_kafka, here.topic, numbers(100))
    assert plan(here.pipeline, "a").batches == 3
    assert [here.run_batch().rows for _ in range(3)] == [40, 40, 20]
    assert here.run_batch() is None
    assert here.values() == numbers(100)
    assert here.verified().findings == ()
    write(odradek_kafka, here.topic, numbers(7), partition=1)
    assert {log.partition.name: log.waiting for log in backlog(here.pipeline, "a")} == {"0": 0, "1": 7}


def test_a_batch_that_lost_a_row_is_not_committed(odradek_kafka: KafkaBroker, tmp_path: Path) -> None:
    here = Workspace(tmp_path, odradek_kafka)
    write(odradek_kafka, here.topic, numbers(10))
    with pytest.raises(InexactRead, match=f"{here.topic}/0: 1 rows are missing"):
        here.run_batch(drop=1)
    assert here.run_batch().rows == 10


def test_a_range_without_any_record_is_covered(odradek_kafka: KafkaBroker, tmp_path: Path) -> None:
    here = Workspace(tmp_path, odradek_kafka, run="batch_records = 1")
    foreign.write_transactions(odradek_kafka, here.topic)
    counts = [here.run_batch().rows for _ in range(5)]
    assert sorted(counts) == [0, 0, 0, 1, 1]  # two markers and an aborted record give nothing
    assert here.verified().findings == ()


@pytest.mark.parametrize(
    ("run", "flow", "says"),
    [
        ("batch_bytes = 1000", "", "this source counts records: use batch_records and max_records"),
        ("", 'corrupt = "skip"', "corrupt = 'skip' is for 0.7"),
    ],
)
def test_what_cannot_be_honoured_says_what_to_use(
    odradek_kafka: KafkaBroker, tmp_path: Path, run: str, flow: str, says: str
) -> None:
    here = Workspace(tmp_path, odradek_kafka, run=run, flow=flow)
    with pytest.raises(PipelineFileError, match=says):
        _ = here.pipeline
