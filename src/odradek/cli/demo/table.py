"""The second part of the demo: the pipeline turns the topics into a table, which is then verified and counted.

The pipeline runs as the command `odradek pipeline run`, in a process of its own; its progress is read from the ledger.
Packages of the extra `pipeline` are imported where they are used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread

from odradek.cli.demo.display import DemoProcess, Display, Meter, Scene
from odradek.cli.demo.process import run_logged
from odradek.cli.demo.result import TableResult
from odradek.errors import ConfigError

if TYPE_CHECKING:
    from odradek.pipeline.tables import CommittedTable
    from odradek.pipeline.verify import VerifyResult

__all__ = ["TableSource", "check_installed", "count_rows", "make_table", "pipeline_file"]

NEEDED = ("pyspark", "pyarrow", "pydantic")
POLL_SECONDS = 0.1
FLOW = "messages"
FILE = """\
[source]
{source}

[run]
checkpoint = {checkpoint}
{limit}

[flows.messages]
topics = {topics}
[flows.messages.decode]
kind = "json"
fields = "n bigint, ts bigint, text string"
time = "ts"
[flows.messages.sink]
path = {table}
partition_by = ["topic", "date", "hour"]
[flows.messages.dead]
path = {dead}
"""


class TableSource(NamedTuple):
    """The source of the table.

    Args:
        source: Lines of the pipeline file's table [source].
        limit: Line with the size of a batch.
        topics: All topics.
        by_records: True if positions count records.
    """

    source: str
    limit: str
    topics: Sequence[str]
    by_records: bool = False

    @classmethod
    def kafka07(cls, zookeeper: str, logs: Sequence[str], topics: Sequence[str]) -> TableSource:
        """Return a cluster of 0.7: its ZooKeeper, and the log directories of brokers that have messages."""
        source = (
            f"zookeeper = {_toml(zookeeper)}\n# ZooKeeper and the brokers stop with the demo; their logs remain. With "
            f"this line instead, every command still works:\n# logs = {_toml(logs)}"
        )
        return cls(source, 'batch_bytes = "16m"', topics)

    @classmethod
    def kafka(cls, url: str, topics: Sequence[str]) -> TableSource:
        """Return a cluster of 0.8 or later."""
        return cls(f"kafka = {_toml(url)}  # it stops with the demo", "batch_records = 200000", topics, by_records=True)


def _toml(value: object) -> str:
    """Return a string or a list of strings as JSON, which is valid TOML for them."""
    return json.dumps(value, ensure_ascii=False)


def check_installed() -> None:
    """Raise ConfigError at the start if a package is missing that only the second part needs."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)}: not installed: pip install 'odradek[pipeline,testing]'")


async def make_table(scene: Scene, display: Display, directory: Path, source: TableSource) -> TableResult:
    """Write the table, verify it, and count its rows.

    Args:
        scene, display: What is shown, and how.
        directory: Directory for the table and everything that belongs to it.
        source: The source of the table.

    Raises:
        ProcessFailed: The run failed.
    """
    file = directory / "pipeline.toml"
    file.write_text(pipeline_file(directory, source), "utf-8")
    began = time.monotonic()
    await _run(scene, display, file)
    seconds = time.monotonic() - began
    display.event(f"odradek pipeline verify {file}")
    table, result = await _verify(file)
    rows, distinct = await anyio.to_thread.run_sync(count_rows, table, scene.messages)
    (report,) = (directory / "checkpoint" / "reports").glob("*.html")
    return TableResult(
        rows=rows,
        distinct=distinct,
        dead=sum(entry.dead for entry in table.entries),
        files=len(table.live),
        file_bytes=sum(file.size for file in table.live.values()),
        commits=len(table.entries),
        ranges=result.counts.ranges,
        log_bytes=result.counts.size,
        findings=[f"{finding.kind}: {finding.where}: {finding.what}" for finding in result.findings],
        seconds=seconds,
        root=str(table.root),
        ledger=str(table.root / "_odradek" / "ledger"),
        report=str(report),
        pipeline=str(file),
        log_unit="records" if source.by_records else "bytes",
    )


def pipeline_file(directory: Path, source: TableSource) -> str:
    """Return the pipeline file."""
    paths = {name: _toml(str(directory / name)) for name in ("checkpoint", "table", "dead")}
    return FILE.format(source=source.source, limit=source.limit, topics=_toml(source.topics), **paths)


async def _run(scene: Scene, display: Display, file: Path) -> None:
    """Run the pipeline to its end, and show each commit."""
    from odradek.pipeline.ledger import Ledger

    command = ["pipeline", "run", str(file), "--master", "local[2]"]
    display.event(f"odradek {' '.join(command)}")
    ledger, meter, seen = Ledger(file.with_name("table"), FLOW), Meter(), 0
    process = scene.processes["pipeline"] = DemoProcess("pipeline", "starting Spark", meter)

    async def follow() -> None:
        nonlocal seen
        entries = ledger.entries()
        for entry in entries[seen:]:
            process.state = f"has committed batch {entry.batch}"
            display.event(f"{process.name} {process.state}: {entry.rows:,} rows in {len(entry.files)} files")
        seen = len(entries)
        meter.update(sum(entry.rows for entry in entries), time.monotonic())
        scene.update_rates(time.monotonic())
        display.refresh()
        await anyio.sleep(POLL_SECONDS)

    await run_logged("pipeline run", ["-m", "odradek.cli", *command, "--quiet"], file.with_name("pipeline.log"), follow)
    process.state = "done"


async def _verify(file: Path) -> tuple[CommittedTable, VerifyResult]:
    from odradek.pipeline.config import load
    from odradek.pipeline.tables import open_table
    from odradek.pipeline.verify import verify

    pipeline = load(file)
    table = open_table(FLOW, pipeline.flows[FLOW])
    return table, await verify(pipeline, table)


def count_rows(table: CommittedTable, messages: int) -> tuple[int, int]:
    """Count the rows of a table and the distinct messages among them that were written (numbers below `messages`).

    The files are those that the ledger lists; pyarrow reads them.
    """

    import pyarrow as pa
    import pyarrow.compute as pc

    from odradek.pipeline.tables import read_rows

    parts = read_rows(table.root, table.live.values(), ["n"])
    numbers = pa.chunked_array([chunk for part in parts for chunk in part.column("n").chunks], pa.int64())
    written = pc.and_(pc.greater_equal(numbers, pa.scalar(0)), pc.less(numbers, pa.scalar(messages)))
    return len(numbers), pc.count_distinct(numbers.filter(written)).as_py()
