"""Tables of log directories of Kafka 0.8 and later."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.pipeline.committed import open_committed
from odradek.pipeline.config import PipelineFileError, load
from odradek.pipeline.report import FlowSummary
from odradek.pipeline.run import execute
from odradek.pipeline.status import status
from odradek.pipeline.verify import verify

from ..kafka_logs import batch, marker, messages, write_log
from .workspace import in_process

FILE = """
[source]
logs = ["logs"]
[run]
{run}
[flows.a]
pattern = "orders"
{flow}
[flows.a.sink]
kind = "{kind}"
path = "table"
[flows.a.dead]
path = "dead"
"""


def workspace(root: Path, kind: str = "delta", run: str = "", flow: str = "") -> Path:
    write_log(root / "logs" / "orders-0", {0: messages(range(10), 1) + batch(range(10, 20)), 20: batch(range(30, 40))})
    transaction = batch(range(4), producer=(7, 0, 0), is_transactional=True)
    write_log(root / "logs" / "orders-1", {0: transaction + marker(4, 7, commit=False) + batch(range(5, 8))})
    file = root / "pipeline.toml"
    file.write_text(FILE.format(kind=kind, run=run, flow=flow))
    return file


def run(file: Path) -> FlowSummary:
    return execute(load(file), "pipeline.toml", lambda *_: None, in_process).flows[0]


def offsets(file: Path) -> list[tuple[int, int]]:
    table = open_committed(load(file), "a").table
    rows = [row for chunk in table.rows(["partition", "offset"], None) for row in chunk.to_pylist()]
    return sorted((row["partition"], row["offset"]) for row in rows)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_has_every_committed_record_once_and_follows_the_files(tmp_path: Path, kind: str) -> None:
    file = workspace(tmp_path, kind, run="batch_records = 15")
    first = run(file)
    assert first.error == "" and first.unit == "records" and len(first.commits) == 4
    expected = [*((0, offset) for offset in (*range(20), *range(30, 40))), (1, 5), (1, 6), (1, 7)]
    assert offsets(file) == expected
    with (tmp_path / "logs" / "orders-1" / f"{0:020}.log").open("ab") as log:
        log.write(batch(range(8, 10)))
    waiting = status(load(file), "a")
    assert (waiting.lag, waiting.unit) == (2, "records")
    assert run(file).rows == 2
    assert offsets(file) == [*expected, (1, 8), (1, 9)]
    result = verify(load(file), open_committed(load(file), "a"))
    assert result.findings == [] and result.rows == 35


def test_offsets_that_are_gone_are_lost_or_a_gap(tmp_path: Path) -> None:
    file = workspace(tmp_path, run="max_records = 10", flow='data_loss = "fail"')
    assert run(file).error == ""
    (tmp_path / "logs" / "orders-0" / f"{0:020}.log").unlink()
    assert "orders/0" in run(file).error
    file.write_text(file.read_text().replace('data_loss = "fail"', 'data_loss = "skip"'))
    assert run(file).error == ""


def test_the_error_of_a_damaged_batch_names_the_key_that_goes_on_behind_it(tmp_path: Path) -> None:
    file = workspace(tmp_path)
    log = tmp_path / "logs" / "orders-0" / f"{20:020}.log"
    data = bytearray(log.read_bytes())
    data[70] ^= 1  # in the records of the batch
    log.write_bytes(data)
    error = run(file).error
    assert "orders/0 at 20: " in error and error.endswith(
        '(corrupt = "dead" continues behind it, and keeps its bytes among the dead letters)'
    )
    file.write_text(FILE.format(kind="delta", run="max_error_percent = 5", flow='corrupt = "dead"'))
    summary = run(file)
    assert (summary.error, summary.rows, summary.dead) == ("", 23, 1)


@pytest.mark.parametrize(
    ("run_line", "flow_line", "why"),
    [
        ("max_bytes = 1000", "", "this source counts records: use batch_records and max_records"),
        ("", 'corrupt = "skip"', "corrupt = 'skip' is for 0.7"),
    ],
)
def test_keys_for_sources_of_0_7_are_refused(tmp_path: Path, run_line: str, flow_line: str, why: str) -> None:
    with pytest.raises(PipelineFileError, match=why):
        load(workspace(tmp_path, run=run_line, flow=flow_line))
