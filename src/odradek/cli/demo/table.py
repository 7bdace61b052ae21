"""The second part of the demo: the pipeline turns the topics into a Delta table, which is verified; DuckDB counts it.

The pipeline runs as the command `odradek pipeline run`, in a process of its own; its progress is read from the table's
own log. Packages of the extra `pipeline` are imported where they are used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread

from odradek.cli.demo.display import DemoProcess, Display, Meter, Scene
from odradek.cli.demo.process import run_logged
from odradek.cli.demo.result import TableResult
from odradek.errors import ConfigError

if TYPE_CHECKING:
    from odradek.pipeline.commits import Commit
    from odradek.pipeline.committed import CommittedTable
    from odradek.pipeline.table import TableOptions
    from odradek.pipeline.verify import VerifyResult

__all__ = ["TableSource", "check_installed", "count_rows", "make_table", "pipeline_file"]

NEEDED = ("pyspark", "pyarrow", "pydantic", "deltalake", "duckdb")
POLL_SECONDS = 0.1
FLOW = "messages"
FILE = """\
[source]
{source}

[run]
state = {state}
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
        raise ConfigError(f"{', '.join(missing)}: not installed: pip install 'odradek[demo]'")


async def make_table(scene: Scene, display: Display, directory: Path, source: TableSource) -> TableResult:
    """Write the table, verify it, and count its rows.

    Args:
        scene, display: The contents of the screen, and the way to show them.
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
    table, result = await anyio.to_thread.run_sync(_verify, file)
    root = table.table.options.storage.root
    rows, distinct = await anyio.to_thread.run_sync(count_rows, root, scene.messages)
    (report,) = (path for path in (directory / "state" / "reports").glob("*.html") if path.stem != "index")
    files = table.table.files()
    return TableResult(
        rows=rows,
        distinct=distinct,
        dead=sum(commit.dead for commit in table.commits),
        files=len(files),
        file_bytes=sum(file.size for file in files),
        commits=len(table.batches),
        ranges=result.ranges,
        log_size=result.size,
        findings=[f"{finding.kind}: {finding.where}: {finding.what}" for finding in result.findings],
        seconds=seconds,
        root=root,
        report=str(report),
        pipeline=str(file),
        log_unit="records" if source.by_records else "bytes",
    )


def pipeline_file(directory: Path, source: TableSource) -> str:
    """Return the pipeline file."""
    paths = {name: _toml(str(directory / name)) for name in ("state", "table", "dead")}
    return FILE.format(source=source.source, limit=source.limit, topics=_toml(source.topics), **paths)


async def _run(scene: Scene, display: Display, file: Path) -> None:
    """Run the pipeline to its end, and show each commit."""
    from odradek.pipeline.config import load
    from odradek.pipeline.flow import table_options

    command = ["pipeline", "run", str(file), "--master", "local[2]"]
    display.event(f"odradek {' '.join(command)}")
    options, meter, rows, seen, versions = table_options(load(file), FLOW), Meter(), 0, 0, 0
    process = scene.processes["pipeline"] = DemoProcess("pipeline", "starting Spark", meter)

    async def follow() -> None:
        nonlocal rows, seen, versions
        versions, new = await anyio.to_thread.run_sync(_new_commits, options, versions, seen)
        for commit in new:
            process.state = f"has committed batch {commit.batch}"
            display.event(f"{process.name} {process.state}: {commit.rows:,} rows in {commit.files} files")
            rows, seen = rows + commit.rows, commit.batch
        meter.update(rows, time.monotonic())
        scene.update_rates(time.monotonic())
        display.refresh()
        await anyio.sleep(POLL_SECONDS)

    await run_logged("pipeline run", ["-m", "odradek.cli", *command, "--quiet"], file.with_name("pipeline.log"), follow)
    process.state = "done"


def _new_commits(options: TableOptions, versions: int, seen: int) -> tuple[int, list[Commit]]:
    """Return the number of versions that a table has, and its batches after `seen`. It is only opened for new ones."""
    from odradek.pipeline.flow import open_table

    current = len(list(Path(options.storage.root, "_delta_log").glob("*.json")))
    table = open_table(options) if current > versions else None
    new = [] if table is None else list(takewhile(lambda commit: commit.batch > seen, table.commits()))
    return current, new[::-1]


def _verify(file: Path) -> tuple[CommittedTable, VerifyResult]:
    from odradek.pipeline.committed import open_committed
    from odradek.pipeline.config import load
    from odradek.pipeline.verify import verify
    from odradek.ranges.process import disconnect

    pipeline = load(file)
    table = open_committed(pipeline, FLOW)
    try:
        return table, verify(pipeline, table)
    finally:
        disconnect()  # the servers of the demo end before this process does


def count_rows(root: str, messages: int) -> tuple[int, int]:
    """Count the rows of the Delta table at `root`, and the distinct messages among them that were written.

    Args:
        root: The table's directory.
        messages: Number of messages; they are numbered from 0.
    """
    import duckdb
    from deltalake import DeltaTable

    with duckdb.connect() as database:
        database.register("written", DeltaTable(root).to_pyarrow_dataset())
        query = "SELECT count(*), count(DISTINCT n) FILTER (n >= 0 AND n < ?) FROM written"
        rows, distinct = database.execute(query, [messages]).fetchall()[0]
    return rows, distinct
