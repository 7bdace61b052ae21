"""What the commands on finished tables make goes on being a table for `run`: with a real Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from odradek.pipeline.compact import compact, delete_retired
from odradek.pipeline.config import load
from odradek.pipeline.repair import plan_repair, repair
from odradek.pipeline.run import execute, run_flows
from odradek.pipeline.summary import RunSummary
from odradek.pipeline.tables import open_table
from odradek.pipeline.verify import VerifyResult, verify
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

from ..columns import damage
from ..pipeline.made import Made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [b'{"id": %d}' % number for number in range(500)]


def ran(made: Made, spark: SparkSession) -> RunSummary:
    summary = execute(load(made.file), str(made.file), lambda *_: None, lambda flows: run_flows(flows, spark))
    assert not summary.failed, summary.flows[0].error
    return summary


async def verified(made: Made) -> VerifyResult:
    result = await verify(made.pipeline, made.table)
    assert result.ok, result.findings
    return result


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_run_goes_on_exactly_with_a_rebuilt_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    made = Made(tmp_path, decode="json")
    made.file.write_text(made.file.read_text().replace("[run]", "[run]\nmax_error_percent = 50"))
    made.log(ROWS)
    made.log(encode_set(ROWS, CompressionType.GZIP), topic="clicks")
    ran(made, spark)
    made.log([*ROWS, b"not JSON"])
    ran(made, spark)
    assert (await verified(made)).counts.rows == 1500
    shutil.rmtree(tmp_path / "checkpoints")
    made.log(ROWS, topic="clicks", partition=1)
    made.log(ROWS)
    assert plan_repair(made.pipeline, "orders").why == "there is no checkpoint"
    repair(made.pipeline, "orders")
    ran(made, spark)
    before = len(made.ledger.entries())
    ran(made, spark)
    result = await verified(made)
    assert result.counts.rows == 2500 and result.counts.dead == 1
    assert len(made.ledger.entries()) == before  # nothing new, nothing committed


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_runs_compactions_and_repairs_in_turn(spark: SparkSession, tmp_path: Path) -> None:
    made = Made(tmp_path)
    flow = made.pipeline.flows["orders"]
    for round_number in range(3):
        made.log(ROWS)
        ran(made, spark)
        if round_number:
            assert compact("orders", flow) is not None
            assert delete_retired("orders", flow, older_than=0)
        if round_number == 1:
            shutil.rmtree(tmp_path / "checkpoints")
            assert repair(made.pipeline, "orders").entry is not None
    assert (await verified(made)).counts.rows == 1500
    assert len(open_table("orders", flow).live) == 1
    paths = [str(made.root / "table" / path) for path in made.table.live]
    assert spark.read.parquet(*paths).count() == 1500


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("policy", ["skip", "dead"])
async def test_corrupt_messages_are_accounted_for(spark: SparkSession, tmp_path: Path, policy: str) -> None:
    made = Made(tmp_path, corrupt=policy)
    made.file.write_text(made.file.read_text().replace("[run]", "[run]\nmax_error_percent = 50"))
    made.log(encode_set(ROWS[:10]) + damage(encode_set([b"x"])) + encode_set(ROWS[10:]))
    ran(made, spark)
    result = await verified(made)
    assert (result.counts.rows, result.counts.dead) == (500, policy == "dead")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_delta_table_verifies(spark: SparkSession, tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.file.write_text(made.file.read_text().replace("[flows.orders.sink]", '[flows.orders.sink]\nkind = "delta"'))
    made.log(ROWS)
    ran(made, spark)
    assert (await verified(made)).counts.rows == 500
    DeltaTable(made.root / "table").delete()
    assert [finding.kind for finding in (await verify(made.pipeline, made.table)).findings] == ["file"]
