"""The page about clusters runs as printed, on a standalone cluster and a Spark Connect server on loopback."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pytest

import odradek as od
from odradek.testing import Kafka07Broker

from ..engine.test_build import BUILT, ROOT, build
from .cluster import Interpreter, Machine, interpreter, standalone
from .made import rows_of

PAGE = (ROOT / "docs" / "howto" / "spark-scale.md").read_text("utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
INSTALLED, PACKED, ZIPPED, CONNECT, MONITORING = (
    "Installed on every machine",
    "Shipped as a packed environment",
    "Shipped as a zip of the sources",
    "Spark Connect",
    "Monitoring",
)
BROKER = {"log.flush.interval": "1", "num.partitions": "2"}

FILE = """
[source]
zookeeper = "{zookeeper}"
[run]
{limits}
[flows.orders]
topics = ["orders"]
[flows.orders.decode]
kind = "json"
fields = "id bigint"
[flows.orders.sink]
path = "tables/orders"
[flows.orders.dead]
path = "dead/orders"
[flows.raw]
topics = ["orders"]
[flows.raw.sink]
path = "tables/raw"
"""

JOB = """
import sys
from pyspark.sql import SparkSession

def look(_):
    import odradek.engine
    yield f"{odradek.__file__} {odradek.engine.active.NAME}"

spark = SparkSession.builder.getOrCreate()
source = {"kafka.zk.connect": sys.argv[1], "subscribe": "orders", "minPartitions": "4"}
spark.read.format("odradek").options(**source).load().write.parquet("batch")
rows = spark.readStream.format("odradek").options(**source, startingOffsets="earliest").load()
place = {"path": "stream", "checkpointLocation": "checkpoint"}
rows.writeStream.format("parquet").options(**place).trigger(availableNow=True).start().awaitTermination()
out = spark.read.parquet("batch").selectExpr("value", "'copies' topic")
out.write.format("odradek").mode("append").option("kafka.zk.connect", sys.argv[1]).save()
print(*spark.sparkContext.parallelize([0], 1).flatMap(look).collect())
"""


def blocks(section: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", SECTIONS[section], re.MULTILINE | re.DOTALL)


def commands(section: str) -> list[str]:
    return [line.removeprefix("$ ") for block in blocks(section, "console") for line in block.splitlines()]


def values(count: int, first: int = 0) -> list[bytes]:
    return [json.dumps({"id": number}).encode() for number in range(first, first + count)]


def send(zookeeper: str, some: Sequence[bytes]) -> None:
    async def main() -> None:
        async with od.connect(f"kafka07+zk://{zookeeper}") as k, k.producer() as out:
            await out.send_many("orders", some)

    od.run(main)


def ids(rows: Any) -> list[int]:
    return sorted(json.loads(value)["id"] for value in rows["value"].to_pylist())


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """Without odradek."""
    made = interpreter(tmp_path_factory.mktemp("bare") / "environment")
    tried = subprocess.run(
        [made.python, "-I", "-c", "import pyarrow, odradek"], capture_output=True, text=True, check=False
    )
    assert "No module named 'odradek'" in tried.stderr
    return made


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """With odradek's wheel, built from a copy of the sources."""
    directory = tmp_path_factory.mktemp("wheel")
    checkout = shutil.copytree(ROOT, directory / "checkout", ignore=shutil.ignore_patterns(*BUILT))
    wheel, _ = build("wheel", checkout, os.environ["PATH"])
    made = interpreter(directory / "environment", wheel)
    where = "import odradek, pyspark_odradek as p; print(odradek.__file__, p.__file__)"
    said = subprocess.run(
        [made.python, "-I", "-c", where], capture_output=True, text=True, check=True, cwd=directory
    ).stdout
    assert said.count(str(made.packages)) == 2
    return made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, bare: Interpreter) -> Iterator[str]:
    """The URL of a master."""
    with standalone(Machine(tmp_path_factory.mktemp("cluster") / "machine", bare)) as url:
        yield url


def test_every_command_of_the_page_is_run_here() -> None:
    assert {name for name in SECTIONS if commands(name)} == {INSTALLED, PACKED, ZIPPED, CONNECT, MONITORING}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["zip", "wheel"])
def test_a_cluster_runs_what_comes_to_it(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    form: str,
    cluster: str,
    odradek_chroot: str,
    odradek_kafka07_broker: Callable[..., Kafka07Broker],
) -> None:
    """As a zip, or pipelines from a wheel."""
    broker = odradek_kafka07_broker(config=BROKER)
    if form == "zip":
        runs_what_comes_as_a_zip(tmp_path, request.getfixturevalue("bare"), cluster, odradek_chroot, broker)
    else:
        runs_pipelines_from_a_wheel(tmp_path, request.getfixturevalue("installed"), cluster, odradek_chroot)


def runs_what_comes_as_a_zip(
    tmp_path: Path, bare: Interpreter, cluster: str, odradek_chroot: str, broker: Kafka07Broker
) -> None:
    send(odradek_chroot, values(5000))
    machine = Machine(tmp_path / "machine", bare)
    (tmp_path / "src").symlink_to(ROOT / "src")
    (tmp_path / "job.py").write_text(JOB)
    pack, submit = commands(ZIPPED)
    machine.run(pack, tmp_path)
    said = machine.run(f"{submit.replace('spark://master:7077', cluster)} {odradek_chroot}", tmp_path)
    assert re.search(r"odradek\.zip/odradek/__init__\.py pure$", said, re.MULTILINE)
    for directory in ("batch", "stream"):
        assert ids(pq.read_table(tmp_path / directory)) == [*range(5000)]
    sent = rows_of(broker.log_dir, topic="copies")
    assert sorted(json.loads(row.value)["id"] for row in sent) == [*range(5000)]


def runs_pipelines_from_a_wheel(tmp_path: Path, installed: Interpreter, cluster: str, odradek_chroot: str) -> None:
    machine = Machine(tmp_path / "machine", installed)
    (tmp_path / "environment").symlink_to(installed.folder)
    (tmp_path / "pipeline.toml").write_text(FILE.format(zookeeper=odradek_chroot, limits=""))
    (script,) = blocks(INSTALLED, "python")
    (tmp_path / "run.py").write_text(script)
    runs = 0
    for line in [*commands(INSTALLED), *commands(PACKED)]:
        if "pipeline run" in line:
            send(odradek_chroot, values(1000, 1000 * runs))
            runs += 1
        machine.run(line.replace("spark://master:7077", cluster), tmp_path)
    check_tables(tmp_path, count=1000 * runs, batches=runs)
    said = [machine.run(line, tmp_path) for line in commands(MONITORING)]
    reports = [[json.loads(line) for line in each.splitlines()] for each in said]
    assert [flow["rows"] for flow in reports[0]] == [1000 * runs] * 2 and [flow["lag"] for flow in reports[1]] == [0, 0]
    assert [flow["ok"] for flow in reports[2]] == [True, True]


def check_tables(folder: Path, *, count: int, batches: int | None = None) -> None:
    """Both tables have each of the records once; in so many commits."""
    for name, column in (("orders", "id"), ("raw", "value")):
        table = deltalake.DeltaTable(folder / "tables" / name)
        stored: list[Any] = table.to_pyarrow_table(columns=[column])[column].to_pylist()
        numbers = stored if name == "orders" else [json.loads(value)["id"] for value in stored]
        assert sorted(numbers) == [*range(count)]
        assert batches in (None, table.transaction_version(f"odradek:{name}"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_everything_works_over_spark_connect(
    tmp_path: Path,
    bare: Interpreter,
    installed: Interpreter,
    odradek_chroot: str,
    odradek_kafka07_broker: Callable[..., Kafka07Broker],
) -> None:
    broker = odradek_kafka07_broker(config=BROKER)
    send(odradek_chroot, values(5000))
    machine = Machine(tmp_path / "machine", installed)
    serve, run = commands(CONNECT)
    local = "--conf spark.connect.grpc.binding.address=127.0.0.1 --conf spark.connect.grpc.binding.port=0"
    command = shlex.split(f"{serve} {local} --conf spark.ui.enabled=false")
    sign = r"Spark Connect server started at: (\S+:\d+)"
    (script,) = blocks(CONNECT, "python")
    (tmp_path / "client.py").write_text(script)
    with machine.started("connect", command, sign) as address:
        said = machine.run(f"{bare.python} client.py sc://{address} {odradek_chroot}", tmp_path)
        assert said.split() == ["batch", "5000", "sql", "5000", "stream", "5000"]
        sent = rows_of(broker.log_dir, topic="copies")
        assert sorted(json.loads(row.value)["id"] for row in sent) == [*range(5000)]
        size = sum(part.stat().st_size for part in broker.log_dir.glob("orders-*/*.kafka"))
        limits = f"batch_bytes = {size // 3}\nmax_bytes = {size // 2}"
        pipeline_over_connect(
            machine, tmp_path, run.replace("sc://server:15002", f"sc://{address}"), odradek_chroot, limits
        )


def pipeline_over_connect(machine: Machine, folder: Path, line: str, zookeeper: str, limits: str) -> None:
    """Ended by its limits, and then to the end."""
    file = folder / "pipeline.toml"
    file.write_text(FILE.format(zookeeper=zookeeper, limits=limits))
    first = [json.loads(flow) for flow in machine.run(f"{line} --json", folder).splitlines()]
    committed = sum(len(flow["commits"]) for flow in first)
    assert 2 <= committed < 6 and 0 < sum(flow["rows"] for flow in first) < 10_000
    file.write_text(FILE.format(zookeeper=zookeeper, limits=""))
    second = [json.loads(flow) for flow in machine.run(f"{line} --json", folder).splitlines()]
    assert [a["rows"] + b["rows"] for a, b in zip(first, second, strict=True)] == [5000, 5000]
    assert [flow["lag_after"] for flow in second] == [0, 0]
    check_tables(folder, count=5000)
