"""Pipelines as they run: logs in, tables out, read back through their ledgers by others than Spark."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import odradek as od
from odradek.pipeline.checkpoint import Checkpoint
from odradek.pipeline.config import load
from odradek.pipeline.ledger import Ledger, check_ranges
from odradek.pipeline.run import execute, run_flows
from odradek.pipeline.summary import BatchSummary, FlowSummary, RunSummary
from odradek.pipeline.tables import open_table
from odradek.pipeline.verify import verify
from odradek.testing import Kafka07Broker
from odradek.wire.kafka07.message_set import encode_set

from ..payloads import payload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
NOVEMBER = int(datetime(2026, 11, 21, tzinfo=UTC).timestamp()) * 1000

AVRO = {
    "type": "record", "name": "Event", "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "note", "type": ["null", "string"]},
    ],
}  # fmt: skip


class Workspace:
    """A directory with logs, tables and a pipeline's file."""

    def __init__(self, root: Path, spark: SparkSession) -> None:
        self.root, self.spark = root, spark
        self.source = f'logs = ["7@{root}/logs"]'
        self.run_lines = ""
        self.flows = ""
        self.watched: list[tuple[str, BatchSummary]] = []

    def log(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        """Append to a log."""
        folder = self.root / "logs" / f"{topic}-{partition}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{0:020}.kafka").open("ab") as file:
            file.write(encode_set(values))

    def flow(self, name: str, lines: str = "", decode: str = "", sink: str = "", dead: bool = False) -> None:
        head = lines or f'topics = ["{name}"]'
        self.flows += f'[flows.{name}]\n{head}\n[flows.{name}.sink]\npath = "{self.root}/{name}"\n{sink}\n'
        if decode:
            self.flows += f"[flows.{name}.decode]\n{decode}\n"
        if dead:
            self.flows += f'[flows.{name}.dead]\npath = "{self.root}/{name}-dead"\n'

    def file(self) -> Path:
        file = self.root / "pipeline.toml"
        run = f'[run]\ncheckpoint = "{self.root}/checkpoint"\n{self.run_lines}\n'
        file.write_text(f"[source]\n{self.source}\n{run}{self.flows}")
        return file

    def run(self) -> RunSummary:
        def watch(flow: str, batch: BatchSummary) -> None:
            self.watched.append((flow, batch))

        return execute(load(self.file()), "pipeline.toml", watch, lambda flows: run_flows(flows, self.spark))

    def done(self, flow: str) -> FlowSummary:
        """Run; this flow must have got to its end."""
        summary = next(each for each in self.run().flows if each.name == flow)
        assert summary.error == ""
        return summary

    def ledger(self, flow: str) -> Ledger:
        return Ledger(self.root / flow, flow)

    def table(self, flow: str) -> Any:
        """By pyarrow, in the order of the log."""
        paths = [self.root / flow / file.path for file in self.ledger(flow).files()]
        parts = [pq.read_table(path, partitioning=None) for path in paths]
        return pa.concat_tables(parts).sort_by(
            [(name, "ascending") for name in ("topic", "partition", "offset", "index")]
        )

    def duck(self, flow: str, query: str) -> Any:
        """By DuckDB; the table is called t."""
        paths = [str(self.root / flow / file.path) for file in self.ledger(flow).files()]
        with duckdb.connect() as connection:
            connection.execute("set timezone = 'UTC'")
            t = connection.read_parquet(paths, hive_partitioning=True)
            result: Any = t.query("t", query)
            return result.fetchall()

    def dead(self, flow: str) -> list[dict[str, Any]]:
        root = self.root / f"{flow}-dead"
        rows = [row for file in self.ledger(flow).dead_files() for row in pq.read_table(root / file.path).to_pylist()]
        return sorted(rows, key=lambda row: int(row["offset"]))

    def unlisted(self, flow: str) -> list[Path]:
        """Data files that no entry lists."""
        listed = {self.root / flow / file.path for file in self.ledger(flow).files()}
        listed |= {self.root / f"{flow}-dead" / file.path for file in self.ledger(flow).dead_files()}
        roots = (self.root / flow, self.root / f"{flow}-dead")
        return [path for root in roots for path in root.rglob("*.parquet") if path not in listed]


@pytest.fixture
def here(tmp_path: Path, spark: SparkSession) -> Workspace:
    return Workspace(tmp_path, spark)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%08d" % number for number in range(first, first + count)]


# ---- raw -----------------------------------------------------------------------------------------------------


def test_raw_records_arrive_with_where_they_stood(here: Workspace) -> None:
    here.log("t", numbered(1000))
    here.log("t", numbered(500, 1000), partition=1)
    here.flow("t")
    summary = here.done("t")
    table = here.table("t")
    assert [row.decode() for row in table["value"].to_pylist()] == [f"{n:08}" for n in range(1500)]
    assert set(table["topic"].to_pylist()) == {"t"} and set(table["broker"].to_pylist()) == {7}
    assert table["offset"].to_pylist()[:3] == [0, 18, 36] and table["nextOffset"].to_pylist()[:2] == [18, 36]
    assert here.duck("t", "select count(*), count(distinct value) from t") == [(1500, 1500)]
    (entry,) = here.ledger("t").entries()
    assert entry.start == {"t": {"7-0": 0, "7-1": 0}} and entry.end == {"t": {"7-0": 18_000, "7-1": 9_000}}
    assert (entry.rows, entry.payload, entry.dead, entry.gaps) == (1500, 12_000, 0, ())
    assert (summary.rows, summary.log_bytes, summary.lag_before, summary.lag_after) == (1500, 27_000, 27_000, 0)
    assert sum(file.rows for file in entry.files) == 1500
    assert all((here.root / "t" / file.path).stat().st_size == file.size for file in entry.files)


def test_the_next_run_goes_on_exactly_where_the_last_one_ended(here: Workspace) -> None:
    here.flow("t")
    written = 0
    for count in (700, 0, 1, 300):
        here.log("t", numbered(count, written))
        written += count
        here.done("t")
    assert here.table("t")["value"].to_pylist() == numbered(1001)
    entries = here.ledger("t").entries()
    assert [entry.rows for entry in entries] == [700, 1, 300] and list(check_ranges(entries)) == []


def test_a_batch_is_as_large_as_the_file_says_and_each_is_a_commit(here: Workspace) -> None:
    here.log("t", [bytes(1000)] * 5000)
    here.run_lines = 'batch_bytes = "2m"'
    here.flow("t")
    summary = here.done("t")
    assert len(summary.batches) == 3 and max(batch.log_bytes for batch in summary.batches) <= (2 << 20) + 1010
    assert [batch.lag for batch in summary.batches][-1] == 0
    assert [batch for _, batch in here.watched] == list(summary.batches)
    assert here.table("t").num_rows == 5000


@pytest.mark.parametrize("limit", ['max_bytes = "1m"', "max_minutes = 0.0000001"])
def test_a_limit_ends_the_run_between_batches_and_the_next_one_goes_on(here: Workspace, limit: str) -> None:
    values = [b"%05d" % n + bytes(995) for n in range(3000)]
    here.log("t", values)
    here.run_lines = f'batch_bytes = "1m"\n{limit}'
    here.flow("t")
    if limit.startswith("max_minutes"):  # passed before anything has begun
        assert here.done("t").batches == ()
        here.run_lines = 'batch_bytes = "1m"\nmax_bytes = "1m"'
    first = here.done("t")
    assert len(first.batches) == 1 and first.lag_after
    while here.done("t").lag_after:
        pass
    assert here.table("t")["value"].to_pylist() == values


def test_latest_means_what_comes_after_the_first_run(here: Workspace) -> None:
    here.log("t", numbered(100))
    here.flow("t", 'topics = ["t"]\nstart = "latest"')
    assert here.done("t").rows == 0
    here.log("t", numbered(50, 100))
    here.log("t", numbered(7, 1000), partition=3)
    assert here.done("t").rows + here.done("t").rows == 57
    assert here.table("t")["value"].to_pylist() == [*numbered(50, 100), *numbered(7, 1000)]


def test_topics_by_pattern_without_the_excluded_ones(here: Workspace) -> None:
    for topic in ("events_a", "events_b", "events_test", "other"):
        here.log(topic, numbered(10))
    here.flow("all", 'pattern = "events_.*"\nexclude = ["events_test"]')
    here.done("all")
    assert set(here.table("all")["topic"].to_pylist()) == {"events_a", "events_b"}
    assert {file.partition["topic"] for file in here.ledger("all").files()} == {"events_a", "events_b"}


def test_topics_with_odd_names_have_directories_of_their_own(here: Workspace) -> None:
    here.log("a b%20=c", numbered(3))
    here.flow("odd", 'topics = ["a b%20=c"]')
    here.done("odd")
    (file,) = here.ledger("odd").files()
    assert file.path.startswith("topic=a%20b%2520%3Dc/date=")
    assert here.duck("odd", "select distinct topic from t") == [("a b%20=c",)]


# ---- JSON and Avro -------------------------------------------------------------------------------------------

JSON = 'kind = "json"\nfields = "id bigint, ts bigint, user string"\ntime = "ts"'


def event(number: int, ts: int, **more: object) -> bytes:
    return json.dumps({"id": number, "ts": ts, "user": f"u{number}", **more}).encode()


def test_json_becomes_columns_and_hours_become_directories_across_a_change_of_clocks(here: Workspace) -> None:
    start = int(datetime(2026, 10, 24, 22, 0, tzinfo=UTC).timestamp()) * 1000
    here.log("t", [event(n, start + n * HOUR_MS // 4) for n in range(100)])
    here.flow("t", decode=JSON, sink='partition_by = ["date", "hour"]\nzone = "Europe/Berlin"', dead=True)
    summary = here.done("t")
    rows = here.duck("t", "select date::varchar, hour, count(*), min(id) from t group by all order by 1, 2")
    assert len(rows) == 24 and {row[0] for row in rows} == {"2026-10-25"}
    assert [row[2] for row in rows] == [4, 4, 8, *[4] * 21]
    assert [row[3] for row in rows][:4] == [0, 4, 8, 16]
    assert here.table("t")["user"].to_pylist() == [f"u{n}" for n in range(100)]
    assert here.table("t")["record_time"].to_pylist()[1] == datetime(2026, 10, 24, 22, 15, tzinfo=UTC)
    files = here.ledger("t").files()
    assert min(file.least or 0 for file in files) == start / 1000
    assert max(file.most or 0 for file in files) == start / 1000 + 99 * 900
    assert sum(volume.rows for volume in summary.hours["t"].values()) == 100 and len(summary.hours["t"]) == 25
    (entry,) = here.ledger("t").entries()
    assert sum(counts["t"] for counts in entry.audit.values()) == 100


def test_what_cannot_be_decoded_is_put_aside_with_its_reason_and_its_place(here: Workspace) -> None:
    bad = {
        "empty": b"",
        "not UTF-8": b'{"id": 1, "ts": 1, "user": "\xff"}',
        "not JSON of these fields": b'{"id": "one", "ts": 1}',
        "no time that can be used": b'{"id": 1, "ts": 999999999999999999}',
    }
    good = [event(n, NOVEMBER + n) for n in range(20)]
    here.log("t", [*good[:10], *bad.values(), *good[10:]])
    here.run_lines = "max_error_percent = 20"
    here.flow("t", decode=JSON, dead=True)
    summary = here.done("t")
    dead = here.dead("t")
    assert {row["reason"]: row["value"] for row in dead} == bad
    assert [(row["topic"], row["broker"], row["partition"], row["index"]) for row in dead] == [("t", 7, 0, 0)] * 4
    first = sum(len(value) + 10 for value in good[:10])
    assert dead[0]["offset"] == first and dead[0]["nextOffset"] == dead[1]["offset"]
    assert summary.reasons == dict.fromkeys(bad, 1) and summary.dead == 4
    assert here.table("t")["id"].to_pylist() == list(range(20))


def test_only_what_is_json_from_its_first_to_its_last_byte_is_json(here: Workspace) -> None:
    start = b'{"id": 7, "ts": 1795000000000, "user": "u"'
    whole = start + b"}"
    deep = start + b', "x": ' + b"[" * 100 + b"]" * 100 + b"}"
    good = [b" \r\n" + whole + b"\t ", start + b', "id": 7}', deep, start[:-2] + b"x" * (1 << 20) + b'"}']
    bad = [
        whole + b" xyz", whole + whole, whole + b"\n" + whole, whole + b"}", whole + b"]", whole + b"\0", whole + b",",
        whole[:-1], b" ", b"[" + whole + b"]", b"7", b"null", b'"x"', b"\xef\xbb\xbf" + whole,
        whole.replace(b'"', b"'"),
        start + b', "x": NaN}', start + b', "x": -Infinity}', start + b', "x": 01}', start + b', "x": "\\ud800"}',
        start + b', "x": "a\nb"}', start + b', "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", b"// no\n" + whole,
    ]  # fmt: skip
    text = [start + b', "x": "\xff"}', whole + b"\xff"]
    here.log("t", [*good, *bad, *text])
    here.run_lines = "max_error_percent = 90"
    here.source += "\nmax_message_bytes = '2m'"
    here.flow("t", decode=JSON, dead=True)
    reasons = {row["value"]: row["reason"] for row in here.dead("t")} if here.done("t") else {}
    assert reasons == {**dict.fromkeys(bad, "not JSON of these fields"), **dict.fromkeys(text, "not UTF-8")}
    assert here.table("t")["id"].to_pylist() == [7] * len(good)


def test_a_compressed_message_with_nothing_in_it_is_put_down_as_what_no_row_came_of(here: Workspace) -> None:
    full = encode_set(numbered(3))
    nothing = encode_set([gzip.compress(b"")])
    empty = nothing[:5] + bytes([1]) + nothing[6:]  # its attributes: gzip
    here.log("t", [])
    (here.root / "logs" / "t-0" / f"{0:020}.kafka").write_bytes(full + empty + full)
    here.flow("t")
    assert here.done("t").rows == 6
    (entry,) = here.ledger("t").entries()
    assert [(gap.start, gap.end) for gap in entry.gaps] == [(len(full), len(full) + len(empty))]
    result = od.run(verify, load(here.file()), open_table("t", load(here.file()).flows["t"]))
    assert result.ok and result.counts.rows == 6


def test_more_dead_records_than_allowed_keep_the_batch_from_being_committed(here: Workspace) -> None:
    here.log("t", [*(event(n, NOVEMBER) for n in range(97)), b"no", b"no", b"no"])
    here.run_lines = "max_error_percent = 2.9"
    here.flow("t", decode=JSON, dead=True)
    here.log("other", numbered(5))
    here.flow("other")
    failed, other = here.run().flows
    assert (
        "3 of 100 records could not be decoded: 3 %, where 2.9 % are allowed; not JSON of these fields: t/7-0"
        in failed.error
    )
    assert (other.error, other.rows) == ("", 5)
    assert here.ledger("t").entries() == [] and here.unlisted("t") == []
    here.run_lines = "max_error_percent = 3"
    assert [(flow.error, flow.rows) for flow in here.run().flows] == [("", 97), ("", 0)]
    assert len(here.dead("t")) == 3


def test_fields_with_names_of_the_tables_own_columns_keep_their_values(here: Workspace) -> None:
    here.log("t", [json.dumps({"offset": 77, "topic": "x", "record_time": 5}).encode()])
    here.flow("t", decode='kind = "json"\nfields = "offset bigint, topic string, record_time bigint"', dead=True)
    here.done("t")
    (row,) = here.table("t").to_pylist()
    assert (row["offset"], row["offset_"], row["topic"], row["topic_"], row["record_time_"]) == (0, 77, "t", "x", 5)


def avro(number: int, at: datetime, tags: Sequence[str] = (), note: str | None = None) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), {"id": number, "at": at, "tags": tags, "note": note})
    return out.getvalue()


def test_avro_becomes_columns(here: Workspace) -> None:
    at = datetime(2026, 11, 21, 8, tzinfo=UTC)
    whole = avro(3, at, ["a", "b"], "n")
    here.log("t", [avro(1, at), whole, whole[:-1], whole + b"x", b"", avro(2, at, ["c"])])
    (here.root / "event.avsc").write_text(json.dumps(AVRO))
    here.run_lines = "max_error_percent = 50"
    decode = f'kind = "avro"\nschema_file = "{here.root}/event.avsc"\ntime = "at"'
    here.flow("t", decode=decode, sink='partition_by = ["date", "hour"]', dead=True)
    assert here.done("t").reasons == {"not Avro of this schema": 3}
    rows = here.table("t").to_pylist()
    assert [row["id"] for row in rows] == [1, 3, 2] and [row["tags"] for row in rows] == [[], ["a", "b"], ["c"]]
    assert [row["note"] for row in rows] == [None, "n", None] and {row["at"] for row in rows} == {at}
    assert {row["record_time"] for row in rows} == {at}
    assert [row["value"] for row in here.dead("t")] == [whole[:-1], whole + b"x", b""]


@pytest.mark.parametrize(
    ("decode", "words"),
    [
        ('kind = "json"\nfields = "id biggest"', "fields = 'id biggest'"),
        ('kind = "json"\nfields = "id bigint"\ntime = "ts"', 'time = "ts": no such field; choose from id'),
        (
            'kind = "json"\nfields = "ts string"\ntime = "ts"',
            "'ms' needs numbers or timestamps, not string",
        ),
        ('kind = "avro"\nschema_file = "/nowhere/x.avsc"', "schema_file /nowhere/x.avsc: "),
    ],
)
def test_what_cannot_be_decoded_at_all_is_said_before_anything_is_read(
    here: Workspace, decode: str, words: str
) -> None:
    here.log("t", numbered(1))
    here.flow("t", decode=decode, dead=True)
    (flow,) = here.run().flows
    assert words in flow.error and here.unlisted("t") == []


# ---- Delta ---------------------------------------------------------------------------------------------------


def test_a_delta_table_has_the_same_rows_and_the_same_entries(here: Workspace) -> None:
    here.run_lines = 'batch_bytes = "1m"'
    here.flow("t", decode=JSON, sink='kind = "delta"\npartition_by = ["topic", "date", "hour"]', dead=True)
    count = 0
    for _ in range(2):
        here.log("t", [event(n, NOVEMBER + n * 1000, user="x" * 500) for n in range(count, count + 3000)])
        count += 3000
        here.done("t")
    delta = DeltaTable(str(here.root / "t"))
    table = delta.to_pyarrow_table().sort_by("id")
    assert table["id"].to_pylist() == list(range(6000)) and set(table["topic"].to_pylist()) == {"t"}
    assert set(table["hour"].to_pylist()) == {0, 1}
    entries = here.ledger("t").entries()
    assert len(entries) >= 4 and delta.transaction_version("odradek:t") == entries[-1].batch
    assert [commit["odradek"] for commit in reversed(delta.history())] == [entry.encode().decode() for entry in entries]
    assert here.table("t")["id"].to_pylist() == list(range(6000))


# ---- what does not fit together ------------------------------------------------------------------------------


def test_a_checkpoint_of_something_else_is_refused(here: Workspace) -> None:
    here.log("t", numbered(10))
    here.flow("t")
    here.done("t")
    (here.root / "checkpoint" / "t").rename(here.root / "kept")
    (flow,) = here.run().flows
    assert "it is missing or new" in flow.error and "odradek pipeline repair" in flow.error
    (here.root / "kept").rename(here.root / "checkpoint" / "t")
    ledger = here.ledger("t")
    entry = ledger.tail()
    assert entry is not None
    ledger.path(0).unlink()
    ledger.commit(replace(entry, end={"t": {"7-0": 4}}))
    (flow,) = here.run().flows
    assert "does not end where batch 0 of the ledger ended" in flow.error
    assert here.unlisted("t") == []


def test_files_that_were_never_committed_are_removed_by_the_next_run_and_others_are_left_alone(
    here: Workspace,
) -> None:
    here.log("t", numbered(10))
    here.flow("t")
    here.done("t")
    (file,) = here.ledger("t").files()
    ours = here.root / "t" / "topic=t" / "odradek-t-00000001-deadbeef-0123456789abcdef.parquet"
    theirs = [here.root / "t" / "topic=t" / name for name in ("mine.parquet", "odradek-u-00000001-a-0.parquet")]
    for path in (ours, *theirs):
        path.write_bytes(b"PAR1")
    here.done("t")
    assert not ours.exists() and all(path.exists() for path in theirs) and (here.root / "t" / file.path).exists()


def test_what_the_log_has_lost_fails_or_is_recorded(here: Workspace) -> None:
    here.log("t", numbered(10))
    here.flow("t")
    here.done("t")
    folder = here.root / "logs" / "t-0"
    (folder / f"{0:020}.kafka").unlink()
    (folder / f"{900:020}.kafka").write_bytes(encode_set(numbered(5, 50)))
    (flow,) = here.run().flows
    assert "data was lost" in flow.error and "wanted [180, 900)" in flow.error
    here.flows = here.flows.replace('topics = ["t"]', 'topics = ["t"]\ndata_loss = "skip"')
    summary = here.done("t")
    assert [(gap.partition, gap.start, gap.end) for gap in summary.gaps] == [("7-0", 180, 900)]
    assert here.table("t")["value"].to_pylist() == [*numbered(10), *numbered(5, 50)]
    assert list(check_ranges(here.ledger("t").entries())) == []


@pytest.mark.parametrize("how", ["fail", "skip", "dead"])
def test_corrupt_messages_fail_or_are_left_out_or_put_aside(here: Workspace, how: str) -> None:
    data = bytearray(encode_set(numbered(10)))
    data[18 * 4 + 12] ^= 1  # in the payload of the fifth
    folder = here.root / "logs" / "t-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}.kafka").write_bytes(data)
    here.run_lines = "max_error_percent = 10"
    here.flow("t", f'topics = ["t"]\ncorrupt = "{how}"', dead=True)
    (flow,) = here.run().flows
    if how == "fail":
        assert "t/7-0 at 72" in flow.error and here.ledger("t").entries() == [] and here.unlisted("t") == []
        return
    assert flow.error == "" and here.table("t")["value"].to_pylist() == numbered(4) + numbered(5, 5)
    if how == "skip":
        assert [(gap.start, gap.end) for gap in flow.gaps] == [(72, 90)]
    else:
        assert [(row["offset"], row["reason"]) for row in here.dead("t")] == [(72, "corrupt message")]


# ---- a cluster -----------------------------------------------------------------------------------------------


def test_a_cluster_through_zookeeper(
    here: Workspace, odradek_chroot: str, odradek_kafka07_broker: Callable[..., Kafka07Broker]
) -> None:
    for broker_id in (1, 2):
        odradek_kafka07_broker(broker_id=broker_id, config={"log.flush.interval": "1", "num.partitions": "2"})

    async def send(values: Sequence[bytes]) -> None:
        async with od.connect(f"kafka07+zk://{odradek_chroot}") as k, k.producer(compression="gzip") as out:
            for first in range(0, len(values), 50):  # each chooses a partition by chance
                await out.send_many("t", values[first : first + 50])

    async def counts() -> list[dict[str, Any]]:
        async with od.connect(f"kafka07+zk://{odradek_chroot}") as k, k.reader("counts", until=od.LATEST) as r:
            return [json.loads(payload(record.value)) async for record in r]

    here.source = f'zookeeper = "{odradek_chroot}"'
    here.flow("t")
    here.flows += '[flows.t.audit]\ntopic = "counts"\n'
    od.run(send, numbered(2000))
    here.done("t")
    od.run(send, numbered(1000, 2000))
    here.done("t")
    here.done("t")  # partitions that were new enter one batch before they are read
    table = here.table("t")
    assert sorted(table["value"].to_pylist()) == numbered(3000)
    assert set(table["broker"].to_pylist()) == {1, 2} and max(table["index"].to_pylist()) > 0
    entries = here.ledger("t").entries()
    sent = sorted(od.run(counts), key=lambda each: int(each["batch"]))
    assert [(each["flow"], each["batch"], each["counts"]) for each in sent] == [
        ("t", entry.batch, entry.audit) for entry in entries
    ]


def test_counts_can_only_be_sent_to_a_cluster(here: Workspace) -> None:
    here.log("t", numbered(1))
    here.flow("t")
    here.flows += '[flows.t.audit]\ntopic = "counts"\n'
    (flow,) = here.run().flows
    assert 'audit.topic = "counts": log directories cannot be written to' in flow.error


def test_checkpoints_begin_where_reading_begins(here: Workspace) -> None:
    here.log("t", numbered(10))
    here.flow("t")
    here.done("t")
    checkpoint = Checkpoint(here.root / "checkpoint" / "t")
    assert checkpoint.offsets(0) == {"t": {"7-0": 0}} and checkpoint.offsets(1) == {"t": {"7-0": 180}}
    assert (checkpoint.planned, checkpoint.done) == (1, 1)
