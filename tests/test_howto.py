"""The examples of the how-to pages about columns and segment files run as printed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odradek as od
from odradek import arrow
from odradek.testing import Kafka07Broker, KafkaBroker
from odradek.wire.kafka07.message_set import encode_set

from .payloads import payload

PAGES = Path(__file__).parent.parent / "docs" / "howto"
BACKUP = "/backup/kafka-logs"
ROWS = [b"%05d" % n for n in range(1000)]


def run_page(name: str, folder: Path) -> dict[str, Any]:
    """Run all blocks of a page, one behind the other; returns the names they define."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", (PAGES / name).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block.replace(BACKUP, str(folder)), name, "exec"), names)
    return names


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    for name in ("orders-0", "orders-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{0:020}.kafka").write_bytes(encode_set(ROWS))
    return tmp_path


def test_segments(backup: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("segments.md", backup)
    printed = capsys.readouterr().out
    assert "0 b'00000'" in printed and "orders 0 0 15000 15000" in printed and "orders 1 0 15000 15000" in printed
    assert [value for part in (names["first"], names["second"]) for batch in part for value in batch.values] == ROWS
    assert f"1000 {arrow.schema().names}" in printed
    assert names["result"].faults == ()


@pytest.mark.anyio
async def test_arrow(
    backup: Path, odradek_chroot: str, odradek_kafka07_broker: Callable[..., Kafka07Broker], tmp_path: Path
) -> None:
    odradek_kafka07_broker(config={"log.flush.interval": "1", "num.partitions": "2"})
    url = f"kafka07+zk://{odradek_chroot}"
    names = run_page("arrow.md", backup)
    assert names["result"] == [(933, 933 * 5)]
    async with od.connect(url) as k, k.producer() as out:
        await out.send_many("t", ROWS)
    await published(url, "t", len(ROWS))
    file = tmp_path / "t.parquet"
    bookmark = await names["save"](url, "t", file)
    table = pq.read_table(file)
    assert Counter(table["value"].to_pylist()) == Counter(ROWS)
    async with od.connect(url) as k, k.reader("t", start=bookmark, until=od.LATEST) as r:
        assert [record async for record in r] == []
    assert pl.DataFrame(await names["sizes"](url, "t"))["len"].sum() == 1000
    assert sum([batch.num_rows for batch in await names["batches"](url, "t")]) == 1000
    await names["copy"](url, "t", "copies")
    await published(url, "copies", len(ROWS))
    async with od.connect(url) as k, k.reader("copies", until=od.LATEST) as r:
        assert sorted([payload(record.value) async for record in r]) == ROWS
    await archived(names, url, tmp_path)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_exactly_once(tmp_path: Path, odradek_kafka: KafkaBroker) -> None:
    url, own = f"kafka://{odradek_kafka.bootstrap}", uuid4().hex.encode()  # others may use these topics, too
    orders = [b"%s %d" % (own, n) for n in range(1000)]
    names = run_page("exactly-once.md", tmp_path)
    async with od.connect(url) as k, k.producer() as out:
        await out.send_many("orders", orders)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(names["bill"], url)
        tasks.start_soon(names["bill_with_retries"], url, 3)
        billed: list[bytes] = []
        with anyio.fail_after(60):
            while len(billed) < len(orders):
                billed = [invoice for invoice in await names["invoices"](url) if own in invoice]
        assert sorted(billed) == sorted([b"invoice for " + order for order in orders])
        paid: list[bytes] = []
        async with od.connect(url) as k, k.reader("paid", isolation="read_committed") as reader:
            with anyio.fail_after(60):
                while len(paid) < len(orders):
                    paid += [value for record in [await anext(reader)] if own in (value := record.value or b"")]
        assert paid == [b"paid " + order for order in orders]
        tasks.cancel_scope.cancel()


async def published(url: str, topic: str, count: int) -> None:
    """The broker tells ZooKeeper of a new topic's partitions a moment after it has appended to them."""
    with anyio.fail_after(30):
        present = 0
        while present < count:
            async with od.connect(url) as k, k.reader(topic, until=od.LATEST) as r:
                present = len([record async for record in r])


async def archived(names: dict[str, Any], url: str, folder: Path) -> None:
    """It runs until it is cancelled; what it wrote is committed then."""
    written: list[int] = []
    everything = anyio.Event()

    class Counted:
        @staticmethod
        def write_table(table: pa.Table, file: Path) -> None:
            pq.write_table(table, file)
            written.append(pq.read_metadata(file).num_rows)
            if sum(written) == 1000:
                everything.set()

    names["pq"] = Counted
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(names["archive"], url, "t", folder)
        with anyio.fail_after(60):
            await everything.wait()
        tasks.cancel_scope.cancel()
    async with od.connect(url) as k, k.consumer("t", group="archive") as c:
        assert await c.lag() == dict.fromkeys(c.partitions, 0)
