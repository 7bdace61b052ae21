"""Runs that are killed at every step and at any time, or lose a process of Spark: their tables are exact, for every
reader, compared with what was appended to the log."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from tests.samples import one_in, seed_of

from odradek.pipeline.committed import open_committed
from odradek.pipeline.flow import dead_options, table_options
from odradek.pipeline.table import TableOptions
from odradek.pipeline.verify import verify

from ..spark.child import Child
from .crash import STEPS
from .forked import Forked
from .test_s3 import Store
from .test_s3 import server as server
from .test_s3 import store as store
from .workspace import Workspace

KILLS = int(os.environ.get("ODRADEK_KILLS", "4"))
"""Kills of runs on Spark: 4 have each process, format, store and kind of records; 30 are all of `MATRIX`. Two of the 4
are in a run that this variable does not change: one of each format, as the random seed says."""

ROWS = 4_000
"""Records that are appended before a run."""

MASTER = "local[2,4]"
"""Spark does a task again when its process was killed."""

JSON = 'kind = "json"\nfields = "id bigint, day timestamp"'


class Records(NamedTuple):
    """What records are like, and what becomes of them. A value is dead if it is not JSON, and JSON is expected.

    Args:
        flow: Lines of the flow.
        sink: Lines of the sink.
        column: The column that tells records apart.
        late: Part of the records are older than others.
    """

    flow: str
    sink: str
    column: str
    late: bool = False


RECORDS = {
    "raw": Records("", 'partition_by = ["topic"]', "value"),
    "json": Records(f"[flows.orders.decode]\n{JSON}", "partition_by = []", "id"),
    "late": Records(f'[flows.orders.decode]\n{JSON}\ntime = "day"', 'partition_by = ["date"]', "id", late=True),
}

MATRIX = {  # format, store, records -> process and step of each kill
    ("delta", "local", "raw"): ("tree writing", "java written", "worker writing", "driver appended", "tree random"),
    ("iceberg", "local", "late"): ("java writing", "tree checked", "driver random", "worker written", "tree letters"),
    ("delta", "s3", "late"): ("worker written", "driver random", "java random", "tree appended", "driver written"),
    ("iceberg", "s3", "json"): ("driver written", "worker random", "tree random", "java writing", "tree remembering"),
    ("delta", "local", "late"): ("tree random", "driver letters", "java written", "tree lettered", "worker random"),
    ("iceberg", "s3", "raw"): ("java random", "tree writing", "driver appended", "tree random", "worker writing"),
}


class CrashWorkspace(Workspace):
    """A log that grows, with records that are late and some that are dead, and the tables of it."""

    def __init__(self, root: Path, kind: str, records: str, store: Store | None = None) -> None:
        self.records, self.store, self.count = RECORDS[records], store, 0
        self.appended: Counter[bytes] = Counter()
        limits = "batch_bytes = 60000\nmax_error_percent = 1"
        super().__init__(
            root, kind, more=f'corrupt = "dead"\n{self.records.flow}', run_lines=limits, sink=self.records.sink
        )

    def write_file(self) -> None:
        super().write_file()
        if self.store is not None:
            file = self.root / "pipeline.toml"
            options = (f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in self.store_options.items())
            text = file.read_text().replace('"tables/', f'"s3://{self.store.bucket}/')
            file.write_text(f"{text}\n[flows.orders.sink.options]\n{''.join(options)}")

    @property
    def store_options(self) -> dict[str, str]:
        return {} if self.store is None else self.store.options(self.kind)

    def grow(self) -> None:
        values = [self._value(number) for number in range(self.count, self.count + ROWS)]
        self.append(values)
        self.appended.update(values)
        self.count += ROWS

    def _value(self, number: int) -> bytes:
        if number % 1000 == 0:
            return b"dead %07d" % number
        month, day = (1 + number % 9, 1 + number % 28) if self.records.late and number % 20 == 0 else (11, 20)
        return json.dumps({"id": number, "day": f"2026-{month:02}-{day:02}T00:00:00Z"}).encode()

    # ---- what readers see ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare the tables with what was appended."""
        expected: Counter[Any] = self.appended
        pipeline = self.pipeline
        if self.records.column == "id":
            letters = Counter({value: count for value, count in expected.items() if value.startswith(b"dead")})
            expected = Counter({json.loads(value)["id"]: count for value, count in (expected - letters).items()})
            dead = dead_options(pipeline, "orders")
            assert dead is not None
            self._check_table(dead, "value", letters)
        self._check_table(table_options(pipeline, "orders"), self.records.column, expected)
        result = verify(pipeline, open_committed(pipeline, "orders"))
        assert result.ok, result.findings

    def _check_table(self, options: TableOptions, column: str, expected: Counter[Any]) -> None:
        """Compare a table as its format's library reads it, and its files as pyarrow and DuckDB read them."""
        read = self._read_delta if options.kind == "delta" else self._read_iceberg
        rows, files = read(options, column)
        assert Counter(rows) == expected
        paths = [self._local(file) for file in files]
        assert Counter(v for path in paths for v in pq.ParquetFile(path).read([column])[column].to_pylist()) == expected
        counts = duckdb.execute(f"select {column}, count(*) from read_parquet({paths!r}) group by all").fetchall()
        assert dict(counts) == expected

    def _read_delta(self, options: TableOptions, column: str) -> tuple[list[Any], Sequence[str]]:
        table = deltalake.DeltaTable(options.storage.root, storage_options=self.store_options)
        return table.to_pyarrow_table(columns=[column])[column].to_pylist(), table.file_uris()

    def _read_iceberg(self, options: TableOptions, column: str) -> tuple[list[Any], Sequence[str]]:
        table = load_catalog("odradek", **{**self.store_options, **options.catalog}).load_table(options.name)
        scan = table.scan(selected_fields=(column,))
        return scan.to_arrow()[column].to_pylist(), [task.file.file_path for task in scan.plan_files()]

    def _local(self, file: str) -> str:
        """Return the path of a file, or of a copy of what a store has."""
        if self.store is None:
            return unquote(file.removeprefix("file://"))
        host = self.store.url.removeprefix("http://")
        source = pa.fs.S3FileSystem(
            access_key="key", secret_key="secret", region="us-east-1", scheme="http", endpoint_override=host
        )
        copy = self.root / "copies" / file.rpartition("/")[2]
        copy.parent.mkdir(exist_ok=True)
        with source.open_input_stream(file.removeprefix("s3://")) as stream:
            copy.write_bytes(stream.read())
        return str(copy)


def on_spark(step: str, work: CrashWorkspace) -> Child:
    return Child(["-m", "tests.pipeline.crash", step, str(work.root / "pipeline.toml"), MASTER], work.root)


def forked(step: str, work: CrashWorkspace) -> Forked:
    return Forked((step, str(work.root / "pipeline.toml")), work.root)


def finish(work: CrashWorkspace) -> None:
    """Run to the end, and compare."""
    with forked("all", work) as process:
        wait_to_end(process)
        assert process.ended() == 0, process.errors
    work.check()


def wait_to_end(process: Child | Forked) -> None:
    while process.said():
        pass


# ---- every step ----------------------------------------------------------------------------------------------


def kill_at_steps(work: CrashWorkspace, steps: Iterable[str]) -> None:
    for step in steps:
        with forked(step, work) as process:
            assert process.said() == step, f"{step}: {process.errors}"
        (process.scratch / "stayed").unlink()
        if step in ("created", "appended", "remembered"):
            work.grow()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_runs_that_are_killed_at_each_step_leave_exact_tables(tmp_path: Path, kind: str) -> None:
    work = CrashWorkspace(tmp_path, kind, "late")
    work.grow()
    kill_at_steps(work, STEPS)
    finish(work)


# ---- processes of Spark --------------------------------------------------------------------------------------


def kill_workers(process: Child) -> None:
    """Spark starts others, which do their tasks again."""
    for worker in process.workers():
        worker.kill()
    wait_to_end(process)
    assert process.ended() == 0, process.errors


def kill_java(process: Child) -> None:
    java = process.java()
    if java is not None:  # at a random moment the run may just have ended
        java.kill()
    wait_to_end(process)
    assert process.ended() in (0, 1), process.errors  # 0: after its last batch


VICTIMS: dict[str, Callable[[Child], None]] = {
    "tree": Child.kill,
    "driver": Child.kill_driver,
    "java": kill_java,
    "worker": kill_workers,
}


def kill_one(work: CrashWorkspace, victim: str, step: str) -> None:
    random_step = random.Random(f"{work.root.name} {victim} {work.count}")
    with on_spark("all" if step == "random" else step, work) as process:
        if step == "random":
            for _ in range(random_step.randrange(8, 40)):
                assert process.said(), process.errors
            with_pause(process, random_step.uniform(0, 0.1))
        else:
            assert process.said() == step, process.errors
        VICTIMS[victim](process)
    (process.scratch / "stayed").unlink(missing_ok=True)


def with_pause(process: Child, seconds: float) -> None:
    """Let it run on for a moment."""
    try:
        process.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kills" in metafunc.fixturenames:
        seed = None if "ODRADEK_KILLS" in os.environ else seed_of(metafunc.config)
        several = list(cases())
        pairs = one_in(2, [several[at : at + 2] for at in range(0, len(several), 2)], seed)
        metafunc.parametrize(("kind", "where", "records", "kills"), [case for pair in pairs for case in pair])


def cases() -> Iterable[Any]:
    """Yield workspaces with their kills: the first of each one, then the second ones, as far as `KILLS` goes."""
    for number, (workspace, kills) in enumerate(MATRIX.items()):
        chosen = [kill for index, kill in enumerate(kills) if index * len(MATRIX) + number < KILLS]
        if chosen:
            yield pytest.param(*workspace, chosen, id="-".join(workspace))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_runs_on_spark_that_lose_processes_leave_exact_tables(
    tmp_path: Path, kind: str, where: str, records: str, kills: Sequence[str], request: pytest.FixtureRequest
) -> None:
    work = CrashWorkspace(tmp_path, kind, records, request.getfixturevalue("store") if where == "s3" else None)
    for kill in kills:
        work.grow()
        kill_one(work, *kill.split())
    finish(work)
