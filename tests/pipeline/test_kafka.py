"""The pipeline on a real broker of 0.8 or later: exact ranges of logs whose offsets have holes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner

from odradek.cli.app import cli
from odradek.errors import ConfigError
from odradek.pipeline.committed import open_committed
from odradek.pipeline.config import Pipeline, PipelineFileError, load
from odradek.pipeline.flow import open_flow
from odradek.pipeline.report import FlowSummary
from odradek.pipeline.run import execute
from odradek.pipeline.source import LogReader
from odradek.pipeline.status import status
from odradek.pipeline.verify import VerifyResult, verify
from odradek.ranges.planning import Range
from odradek.testing import KafkaBroker
from odradek.types import Columns, TopicPartition

from ..brokers import foreign
from ..spark.kafka import add_partitions, alter, delete, numbers, recreate, write
from .workspace import in_process

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


class KafkaWorkspace:
    """A pipeline of one flow on a broker."""

    def __init__(self, root: Path, kafka: KafkaBroker, kind: str = "delta", run: str = "", flow: str = "") -> None:
        self.topic = f"flow{uuid4().hex[:12]}"
        kafka.create_topic(self.topic, 2)
        self.file = root / "pipeline.toml"
        self.file.write_text(
            f"""
[source]
kafka = "kafka://{kafka.bootstrap}"
[run]
{run}
[flows.a]
topics = ["{self.topic}"]
{flow}
[flows.a.sink]
kind = "{kind}"
path = "table"
[flows.a.dead]
path = "dead"
"""
        )

    @property
    def pipeline(self) -> Pipeline:
        return load(self.file)

    def run(self) -> FlowSummary:
        summary = execute(self.pipeline, "pipeline.toml", lambda *_: None, in_process)
        return summary.flows[0]

    def rows(self) -> list[dict[str, object]]:
        columns = ["key", "value", "headers", "timestamp", "timestampType", "partition", "offset"]
        table = open_committed(self.pipeline, "a").table
        result = [row for batch in table.rows(columns, None) for row in batch.to_pylist()]
        return sorted(result, key=lambda row: (row["partition"], row["offset"]))

    def values(self) -> list[object]:
        return [row["value"] for row in self.rows()]

    def verified(self) -> VerifyResult:
        return verify(self.pipeline, open_committed(self.pipeline, "a"))


@KINDS
def test_a_table_has_every_committed_record_once_and_verifies(
    odradek_kafka: KafkaBroker, tmp_path: Path, kind: str
) -> None:
    work = KafkaWorkspace(tmp_path, odradek_kafka, kind)
    write(odradek_kafka, work.topic, numbers(500), compression="lz4")
    foreign.write_transactions(odradek_kafka, work.topic)  # the last of four stays open
    foreign.produce("librdkafka", odradek_kafka, work.topic, [(b"key", None, [("h", b"1")], None)], ["none"])
    first = work.run()
    assert (first.error, first.problems, first.rows, first.dead, first.gaps) == ("", (), 502, 0, [])
    assert work.values() == [*numbers(500), b"committed", b"plain"]
    assert not work.run().commits
    result = work.verified()
    assert result.findings == [] and result.rows == 502
    assert first.commits[-1].end[work.topic] == {"0": 505, "1": 0}  # where the open transaction begins


@KINDS
def test_keys_headers_and_times_are_in_the_table(odradek_kafka: KafkaBroker, tmp_path: Path, kind: str) -> None:
    work = KafkaWorkspace(tmp_path, odradek_kafka, kind)
    foreign.produce(
        "librdkafka", odradek_kafka, work.topic, [(b"key", b"value", [("h", b"1")], 1_700_000_000_000)], ["none"]
    )
    assert work.run().error == ""
    (row,) = work.rows()
    assert (row["key"], row["value"], row["headers"]) == (b"key", b"value", [{"key": "h", "value": b"1"}])
    assert str(row["timestamp"]) == "2023-11-14 22:13:20+00:00" and row["timestampType"] == 0


@pytest.mark.parametrize(("decode", "column"), [("", "value"), ('kind = "json"\nfields = "id bigint"', "id")])
def test_the_last_value_of_each_key_is_kept_and_a_tombstone_deletes_it(
    odradek_kafka: KafkaBroker, tmp_path: Path, decode: str, column: str
) -> None:
    work = KafkaWorkspace(tmp_path, odradek_kafka, flow=f"[flows.a.decode]\n{decode}")
    work.file.write_text(work.file.read_text().replace('path = "table"', 'path = "table"\nlast_by = ["key"]'))
    for values in (
        [(b"a", b'{"id": 1}'), (b"b", b'{"id": 2}'), (b"a", b'{"id": 3}')],
        [(b"a", None), (b"b", b'{"id": 4}'), (b"c", b'{"id": 5}'), (b"c", None)],
    ):
        records: list[foreign.Row] = [(key, value, [], None) for key, value in values]
        foreign.produce("librdkafka", odradek_kafka, work.topic, records, ["none"])
        assert work.run().error == ""
    table = open_committed(work.pipeline, "a").table
    rows = [row for batch in table.rows(["key", column], None) for row in batch.to_pylist()]
    assert rows == [{"key": b"b", column: b'{"id": 4}' if column == "value" else 4}]
    with pytest.raises(ConfigError, match="the log has more"):
        work.verified()


def test_batches_have_as_many_records_as_allowed(odradek_kafka: KafkaBroker, tmp_path: Path) -> None:
    work = KafkaWorkspace(tmp_path, odradek_kafka, run="batch_records = 40")
    write(odradek_kafka, work.topic, numbers(100))
    assert open_flow(work.pipeline, "a").batches == 3
    assert [commit.rows for commit in work.run().commits] == [40, 40, 20]
    assert work.values() == numbers(100)
    assert not work.verified().findings
    write(odradek_kafka, work.topic, numbers(7), partition=1)
    assert {log.partition.name: log.waiting for log in open_flow(work.pipeline, "a").backlog} == {"0": 0, "1": 7}


def test_sizes_of_log_are_counted_in_records_by_every_verb(
    odradek_kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.pipeline.run.on_spark", lambda *_: in_process())
    work = KafkaWorkspace(tmp_path, odradek_kafka)
    write(odradek_kafka, work.topic, numbers(100))

    def verb(name: str, *options: str) -> str:
        shown = CliRunner().invoke(cli, ["pipeline", name, str(work.file), *options], standalone_mode=False)
        assert shown.return_value == 0, shown.output
        return shown.output

    assert json.loads(verb("plan", "--json"))["unit"] == "records" and "records" in verb("plan").splitlines()[0]
    assert json.loads(verb("lag", "--json"))["lag"] == 100 and "lag (records)" in verb("lag")
    assert "100 rows, 100 records of log, 0 records left" in (shown := verb("run"))
    assert re.search(r"^a +1 +100 +\d+ +100 records +- ", shown, re.MULTILINE)  # no MB/s
    assert json.loads(verb("status", "--json"))["unit"] == "records"
    assert json.loads(verb("verify", "--json"))["unit"] == "records" and "log (records)" in verb("verify")


def test_a_batch_that_lost_a_row_is_not_committed(
    odradek_kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = KafkaWorkspace(tmp_path, odradek_kafka)
    write(odradek_kafka, work.topic, numbers(10))
    from odradek.pipeline import task
    from odradek.ranges.reader import ColumnsChunk, read_task

    original = read_task

    def lossy(*arguments: object) -> object:
        for chunk in original(*arguments):  # type: ignore[arg-type]
            yield ColumnsChunk(chunk.partition, chunk.rows.slice(1, 10)) if isinstance(chunk, ColumnsChunk) else chunk

    with monkeypatch.context() as patched:
        patched.setattr(task, "read_task", lossy)
        assert f"{work.topic}/0: 1 rows are missing" in work.run().error
    assert work.run().rows == 10


@KINDS
def test_a_topic_that_was_made_again_is_data_loss_for_every_verb(
    odradek_kafka: KafkaBroker, tmp_path: Path, kind: str
) -> None:
    work = KafkaWorkspace(tmp_path, odradek_kafka, kind)
    write(odradek_kafka, work.topic, numbers(20))
    assert work.run().rows == 20
    recreate(odradek_kafka, work.topic, 2)
    write(odradek_kafka, work.topic, numbers(30, 1000))
    says = f"{work.topic}/0: the topic was deleted and made again: wanted everything from 20 on"
    assert says in work.run().error and says in open_flow(work.pipeline, "a").losses[0]
    assert says in status(work.pipeline, "a").problems[0]
    (finding,) = {(finding.kind, finding.what) for finding in work.verified().findings}
    assert finding == ("log", "the topic was deleted and made again: the table was made from another log")
    work.file.write_text(work.file.read_text().replace("[flows.a]", '[flows.a]\ndata_loss = "skip"'))
    result = work.verified()
    assert not result.findings and (result.rows, result.expired) == (0, 20)
    summary = work.run()
    assert (summary.rows, summary.error) == (30, "")
    assert [gap.start for gap in summary.gaps] == [20, 0]
    assert {gap.reason for gap in summary.gaps} == {"the topic was deleted and made again"}
    assert sorted(map(str, work.values())) == sorted(map(str, [*numbers(20), *numbers(30, 1000)]))
    result = work.verified()
    assert not result.findings and (result.rows, result.expired) == (10, 40), "20 positions were in both topics"
    write(odradek_kafka, work.topic, numbers(5, 2000))
    assert work.run().rows == 5 and work.verified().ok


def test_partitions_that_a_topic_made_again_has_no_more_are_named_once(
    odradek_kafka: KafkaBroker, tmp_path: Path
) -> None:
    work = KafkaWorkspace(tmp_path, odradek_kafka)
    work.file.write_text(work.file.read_text().replace("[flows.a]", '[flows.a]\ndata_loss = "skip"'))
    write(odradek_kafka, work.topic, numbers(20))
    write(odradek_kafka, work.topic, numbers(10), partition=1)
    assert work.run().rows == 30
    recreate(odradek_kafka, work.topic, 1)
    summary = work.run()
    assert (summary.batches, summary.problems) == (0, ()), "the new topic is empty"
    write(odradek_kafka, work.topic, numbers(5, 1000))
    summary = work.run()
    assert (summary.rows, [gap.partition for gap in summary.gaps]) == (5, ["0", "1"])
    assert status(work.pipeline, "a").problems == []
    write(odradek_kafka, work.topic, numbers(5, 2000))
    summary = work.run()
    assert (summary.rows, summary.problems, summary.gaps) == (5, (), [])
    add_partitions(odradek_kafka, work.topic, 2)
    write(odradek_kafka, work.topic, numbers(5, 3000), partition=1)
    assert work.run().rows == 5, "a partition that is there again is read from its beginning"
    assert work.verified().ok


def test_a_record_without_the_ids_of_topics_is_continued_and_the_next_one_has_them(
    odradek_kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = KafkaWorkspace(tmp_path, odradek_kafka)
    write(odradek_kafka, work.topic, numbers(20))
    with monkeypatch.context() as patched:
        patched.setattr("odradek.pipeline.flow.topic_ids", lambda extents: {})
        assert work.run().commits[-1].topic_ids == {}
    write(odradek_kafka, work.topic, numbers(5, 20))
    summary = work.run()
    assert (summary.rows, summary.error, list(summary.commits[-1].topic_ids)) == (5, "", [work.topic])
    assert not work.verified().findings


def test_rows_that_a_compacted_topic_does_not_have_any_more_are_counted(
    odradek_kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What compaction does to a log is done to what is read of it here: a cleaner takes its time."""
    work = KafkaWorkspace(tmp_path, odradek_kafka)
    write(odradek_kafka, work.topic, numbers(20))
    assert work.run().rows == 20
    read = LogReader.read

    def compacted(reader: LogReader, ranges: Sequence[Range]) -> Iterator[tuple[TopicPartition, Columns]]:
        return ((partition, columns.slice(15, 20)) for partition, columns in read(reader, ranges))

    monkeypatch.setattr(LogReader, "read", compacted)
    assert [finding.kind for finding in work.verified().findings] == ["extra"], "the topic is not compacted"
    alter(odradek_kafka, work.topic, {"cleanup.policy": "compact,delete"})
    result = work.verified()
    assert result.findings == [] and (result.rows, result.compacted) == (20, 15)


def test_a_range_without_any_record_is_covered(odradek_kafka: KafkaBroker, tmp_path: Path) -> None:
    work = KafkaWorkspace(tmp_path, odradek_kafka, run="batch_records = 1")
    foreign.write_transactions(odradek_kafka, work.topic)
    assert sorted(commit.rows for commit in work.run().commits) == [0, 0, 0, 1, 1]  # markers, and what was aborted
    assert not work.verified().findings


def test_a_topic_that_does_not_exist_is_a_problem(odradek_kafka: KafkaBroker, tmp_path: Path) -> None:
    work = KafkaWorkspace(tmp_path, odradek_kafka)
    write(odradek_kafka, work.topic, numbers(10))
    work.file.write_text(work.file.read_text().replace('topics = ["', 'topics = ["no-such-topic", "'))
    summary = work.run()
    assert (summary.rows, summary.problems) == (10, ("topic no-such-topic does not exist",))
    assert open_flow(work.pipeline, "a").problems == ["topic no-such-topic does not exist"]


@pytest.mark.parametrize("loss", ["fail", "skip"])
def test_a_topic_of_a_pattern_that_is_deleted_is_named_unless_lost_data_is_skipped(
    odradek_kafka: KafkaBroker, tmp_path: Path, loss: str
) -> None:
    work = KafkaWorkspace(tmp_path, odradek_kafka, flow=f'data_loss = "{loss}"')
    other = f"{work.topic}-other"
    odradek_kafka.create_topic(other, 2)
    text = work.file.read_text()
    work.file.write_text(text.replace(f'topics = ["{work.topic}"]', f'pattern = "{work.topic}.*"'))
    for topic in (work.topic, other):
        write(odradek_kafka, topic, numbers(10))
    assert work.run().rows == 20
    delete(odradek_kafka, other)
    write(odradek_kafka, work.topic, numbers(10, 10))
    summary = work.run()
    assert (summary.rows, summary.error) == (10, "")
    expected = [f"topic {other} does not exist"] if loss == "fail" else []
    assert list(summary.problems) == open_flow(work.pipeline, "a").problems == expected
    result = work.verified()
    findings = {(finding.where, finding.what) for finding in result.findings}
    gone = {(f"{other}/0", "no live broker, and no directory, has this log")}
    assert (findings, result.expired) == ((gone, 0) if loss == "fail" else (set(), 10))
    assert result.rows == 20


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
    work = KafkaWorkspace(tmp_path, odradek_kafka, run=run, flow=flow)
    with pytest.raises(PipelineFileError, match=says):
        _ = work.pipeline
