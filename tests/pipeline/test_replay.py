"""Rows of a table go back to topics: all, in order, and no more than once where nothing fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

import odradek as od
from odradek.errors import ConfigError, DeliveryError
from odradek.pipeline import replay as module
from odradek.pipeline.compact import compact
from odradek.pipeline.replay import Replay, ReplayProgress, plan_replay, replay
from odradek.testing import Kafka07Broker
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

from ..payloads import payload
from .made import ROWS, Made

pytestmark = pytest.mark.anyio

LOST = [b"%03d" % n for n in range(300)]


def made_table(root: Path) -> Made:
    made = Made(root)
    made.log(LOST[:50])
    made.log(ROWS[:30], partition=1)
    made.run()
    made.log(encode_set(LOST[50:100], CompressionType.GZIP))
    made.log(encode_set(LOST[100:], CompressionType.SNAPPY))
    made.run()
    return made


async def sent(url: str, topic: str) -> list[list[bytes]]:
    """By partition."""
    by_partition: dict[str, list[bytes]] = {}
    async with od.connect(url) as k, k.reader(topic, until=od.LATEST) as r:
        async for record in r:
            by_partition.setdefault(record.partition.name, []).append(payload(record.value))
    return list(by_partition.values())


async def run(plan: Replay, url: str) -> int:
    async with od.connect(url) as k:
        return await replay(plan, k, ReplayProgress.load(plan.state, plan.identity))


@pytest.fixture
def url(tmp_path: Path) -> Any:
    keys = {"log.flush.interval": "1", "num.partitions": "2", "topic.partition.count.map": "back:2"}
    with Kafka07Broker(tmp_path / "target", config=keys) as broker:
        yield f"kafka07://1@{broker.address}"


@pytest.mark.parametrize("compacted", [False, True])
async def test_all_rows_come_in_order(tmp_path: Path, url: str, compacted: bool) -> None:
    made = made_table(tmp_path)
    if compacted:
        assert compact("orders", made.pipeline.flows["orders"]) is not None
    plan = plan_replay(made.table, topic="back")
    assert plan.rows == 330
    assert await run(plan, url) == 330
    lists = await sent(url, "back")
    values = [value for values in lists for value in values]
    assert sorted(values) == sorted(LOST + ROWS[:30])
    for wanted in (LOST, ROWS[:30]):
        (holder,) = [values for values in lists if wanted[0] in values]
        assert [value for value in holder if value in set(wanted)] == wanted


async def test_rows_go_back_to_their_own_topics(tmp_path: Path, url: str) -> None:
    made = made_table(tmp_path)
    made.log(ROWS, topic="clicks")
    made.run()
    await run(plan_replay(made.table, batches={2}), url)
    assert await sent(url, "clicks") == [ROWS]
    assert await sent(url, "orders") == []


async def test_a_replay_that_is_done_sends_nothing_again(tmp_path: Path, url: str) -> None:
    plan = plan_replay(made_table(tmp_path).table, topic="back")
    assert [await run(plan, url) for _ in range(2)] == [330, 0]


async def test_a_replay_that_failed_goes_on(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 100)
    plan = plan_replay(made_table(tmp_path).table, topic="back")
    confirmed = 0

    class Enough(Exception):
        pass

    def count(rows: int) -> None:
        nonlocal confirmed
        confirmed += rows
        if confirmed > 100:
            raise Enough

    async with od.connect(url) as k:
        with pytest.raises(Enough):
            await replay(plan, k, ReplayProgress.load(plan.state, plan.identity), count)
    assert confirmed < 200
    assert await run(plan, url) == 330 - confirmed
    assert sorted(value for values in await sent(url, "back") for value in values) == sorted(LOST + ROWS[:30])


async def test_rows_a_broker_refuses_are_not_confirmed(tmp_path: Path) -> None:
    made = made_table(tmp_path)
    plan = plan_replay(made.table, topic="not/a/name")
    with Kafka07Broker(tmp_path / "target") as broker:
        async with od.connect(f"kafka07://1@{broker.address}") as k:
            with pytest.raises((DeliveryError, od.OdradekError)):
                await replay(plan, k, ReplayProgress.load(plan.state, plan.identity))
    assert ReplayProgress.load(plan.state, plan.identity).rows == 0


async def test_a_rate_is_kept(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def until(moment: float) -> None:
        waits.append(moment)

    monkeypatch.setattr(anyio, "sleep_until", until)
    plan = plan_replay(made_table(tmp_path).table, topic="back", rate=1000)
    await run(plan, url)
    payload = sum(map(len, LOST + ROWS[:30]))
    assert len(waits) >= payload / 100 / 2  # about a tenth of a second's worth at a time


def test_a_missing_column_or_batch_is_named(tmp_path: Path) -> None:
    table = made_table(tmp_path).table
    with pytest.raises(ConfigError, match="no column 'id'"):
        plan_replay(table, value="id")
    with pytest.raises(ConfigError, match="none of the requested batches"):
        plan_replay(table, batches={7})
    plan = plan_replay(table)
    ReplayProgress(plan.state, "another").save()
    with pytest.raises(ConfigError, match="belongs to another replay"):
        ReplayProgress.load(plan.state, plan.identity)


async def test_keys_choose_partitions(tmp_path: Path, url: str) -> None:
    made = made_table(tmp_path)
    await run(plan_replay(made.table, topic="back", key="value"), url)
    lists = await sent(url, "back")
    assert len(lists) == 2 and sorted(value for values in lists for value in values) == sorted(LOST + ROWS[:30])
