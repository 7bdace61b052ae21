"""The demo's second part: its topics become a table, by the pipeline, which is verified and counted.

The run is the command that people use, as a process of its own; how far it is is read from the ledger meanwhile.
What the extra `pipeline` brings is imported where it is used.
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

from odradek.cli.demo_account import TableResult
from odradek.cli.demo_process import run_logged
from odradek.cli.demo_view import DemoProcess, Meter, Scene, View
from odradek.errors import ConfigError

if TYPE_CHECKING:
    from odradek.pipeline.tables import CommittedTable
    from odradek.pipeline.verify import VerifyResult

__all__ = ["TableSource", "check_installed", "count_rows", "make_table"]

NEEDED = ("pyspark", "pyarrow", "pydantic")
LOOK_SECONDS = 0.1
FLOW = "messages"
FILE = """\
[source]
zookeeper = {zookeeper}
# ZooKeeper and the brokers end with the demo; their logs stay. With this line instead, every command goes on working:
# logs = {logs}

[run]
checkpoint = {checkpoint}
batch_bytes = "16m"

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
    """What the pipeline reads.

    Args:
        zookeeper: Of the cluster.
        logs: Log directories of the brokers that were written to, as the pipeline's file has them.
        topics: All that there are.
    """

    zookeeper: str
    logs: Sequence[str]
    topics: Sequence[str]


def check_installed() -> None:
    """Raise ConfigError when something is missing that only the second part needs: before anybody waits for it."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)}: not installed: pip install 'odradek[pipeline,testing]'")


async def make_table(scene: Scene, view: View, place: Path, source: TableSource) -> TableResult:
    """Make the table, verify it, and count what is in it.

    Args:
        scene, view: Where it shows.
        place: A directory for everything.
        source: What is read.

    Raises:
        Died: The run failed.
    """
    file = place / "pipeline.toml"
    file.write_text(_file(place, source), "utf-8")
    began = time.monotonic()
    await _run(scene, view, file)
    seconds = time.monotonic() - began
    view.event(f"odradek pipeline verify {file}")
    table, verdict = await _verify(file)
    rows, distinct = await anyio.to_thread.run_sync(count_rows, table, scene.messages)
    (report,) = (place / "checkpoint" / "reports").glob("*.html")
    return TableResult(
        rows=rows,
        distinct=distinct,
        dead=sum(entry.dead for entry in table.entries),
        files=len(table.live),
        file_bytes=sum(file.size for file in table.live.values()),
        commits=len(table.entries),
        ranges=verdict.found.ranges,
        log_bytes=verdict.found.size,
        findings=[f"{found.kind}: {found.where}: {found.what}" for found in verdict.findings],
        seconds=seconds,
        root=str(table.root),
        ledger=str(table.root / "_odradek" / "ledger"),
        report=str(report),
        pipeline=str(file),
    )


def _file(place: Path, source: TableSource) -> str:
    """What JSON makes of texts and lists of them, TOML understands."""
    paths = {name: str(place / name) for name in ("checkpoint", "table", "dead")}
    values = {**source._asdict(), **paths}
    return FILE.format(**{name: json.dumps(value, ensure_ascii=False) for name, value in values.items()})


async def _run(scene: Scene, view: View, file: Path) -> None:
    """Run the pipeline to its end, and show each commit."""
    from odradek.pipeline.ledger import Ledger

    command = ["pipeline", "run", str(file), "--master", "local[2]"]
    view.event(f"odradek {' '.join(command)}")
    ledger, meter, seen = Ledger(file.with_name("table"), FLOW), Meter(), 0
    actor = scene.actors["pipeline"] = DemoProcess("pipeline", "starting Spark", meter)

    async def look() -> None:
        nonlocal seen
        entries = ledger.entries()
        for entry in entries[seen:]:
            actor.state = f"has committed batch {entry.batch}"
            view.event(f"{actor.name} {actor.state}: {entry.rows:,} rows in {len(entry.files)} files")
        seen = len(entries)
        meter.update(sum(entry.rows for entry in entries), time.monotonic())
        scene.pass_time(time.monotonic())
        view.refresh()
        await anyio.sleep(LOOK_SECONDS)

    await run_logged("pipeline run", ["-m", "odradek.cli", *command, "--quiet"], file.with_name("pipeline.log"), look)
    actor.state = "done"


async def _verify(file: Path) -> tuple[CommittedTable, VerifyResult]:
    from odradek.pipeline.config import load
    from odradek.pipeline.tables import open_table
    from odradek.pipeline.verify import verify

    pipeline = load(file)
    table = open_table(FLOW, pipeline.flows[FLOW])
    return table, await verify(pipeline, table)


def count_rows(table: CommittedTable, messages: int) -> tuple[int, int]:
    """Rows, and different messages among them, of those that were written; read by pyarrow, through the ledger."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from odradek.pipeline.tables import read_rows

    parts = read_rows(table.root, table.live.values(), ["n"])
    numbers = pa.chunked_array([chunk for part in parts for chunk in part.column("n").chunks], pa.int64())
    written = pc.and_(pc.greater_equal(numbers, pa.scalar(0)), pc.less(numbers, pa.scalar(messages)))
    return len(numbers), pc.count_distinct(numbers.filter(written)).as_py()
