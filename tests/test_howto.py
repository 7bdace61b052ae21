"""The examples of the how-to pages about columns, segment files, producers and tests run as printed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any
from uuid import uuid4

import anyio
import anyio.lowlevel
import anyio.to_thread
import confluent_kafka
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odradek as od
from odradek import arrow
from odradek.core.kafka.partitioners import murmur2, positive
from odradek.testing import FaultProxy, Kafka07Broker, KafkaBroker, MemoryCluster, ZooKeeperServer
from odradek.wire.kafka07.message_set import encode_set

from .kafka_logs import batch, write_log
from .payloads import payload
from .registry.fake import serving

PAGES = Path(__file__).parent.parent / "docs" / "howto"
BACKUP = "/backup/kafka-logs"
ROWS = [b"%05d" % n for n in range(1000)]


def blocks_of(name: str) -> list[str]:
    blocks = re.findall(r"^```python\n(.*?)^```", (PAGES / name).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    return blocks


def run_page(name: str, folder: Path, **names: Any) -> dict[str, Any]:
    """Run all blocks of a page, one behind the other; returns the names they define, and those they are given."""
    for block in blocks_of(name):
        exec(compile(block.replace(BACKUP, str(folder)), name, "exec"), names)
    return names


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    for name in ("orders-0", "orders-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{0:020}.kafka").write_bytes(encode_set(ROWS))
    return tmp_path


def test_segments(backup: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(Path(f"{backup}-4") / "payments-0", {0: batch(range(250))})
    names = run_page("segments.md", backup)
    printed = capsys.readouterr().out
    assert "0 b'00000'" in printed and "orders 0 0 15000 15000" in printed and "orders 1 0 15000 15000" in printed
    assert [value for part in (names["first"], names["second"]) for batch in part for value in batch.values] == ROWS
    assert f"1000 {arrow.schema().names}" in printed
    assert names["result"].faults == ()
    assert "offsets 0 250 (0, 250)\n0\n" in printed
    assert [record.position for record in names["part"]] == list(range(100, 200))
    assert len(names["committed"]) == 250


class Enough(Exception):
    """Raised by a handler that has seen all."""


async def run_example(block: str, **names: Any) -> dict[str, Any]:
    """Run a block that awaits; return the names it defines."""
    exec(f"async def example():\n{indent(block, '    ')}\n    return locals()", names)
    result: dict[str, Any] = await names["example"]()
    return result


@pytest.mark.anyio
async def test_share_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted, side_by_side, memory = blocks_of("share-groups.md")
    cluster = MemoryCluster({"jobs": 1})
    cluster.start_share_group("workers", od.EARLIEST)
    cluster.append("jobs", [b"one", b"two", b"three"])
    monkeypatch.setattr(od, "connect", lambda url: cluster.connect())
    handled: list[tuple[bytes | None, int]] = []
    ended = anyio.Event()

    async def handle(record: od.ShareRecord) -> None:
        handled.append((record.value, record.delivery_count))
        if record.value == b"two" and record.delivery_count < 3:
            raise Enough
        if record.value == b"two":
            ended.set()
        if record.value == b"three":
            raise ValueError

    with pytest.raises(Enough):
        await run_example(accepted, od=od, handle=handle)
    assert handled == [(b"one", 1), (b"two", 1)]
    handled.clear()
    names = {"od": od, "anyio": anyio, "handle": handle, "TemporaryError": Enough}
    async with cluster.connect() as k, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: run_example(side_by_side, k=k, **names))
        await ended.wait()
        tasks.cancel_scope.cancel()
    assert sorted(handled) == [(b"three", 2), (b"two", 2), (b"two", 3)]
    assert (await run_example(memory, od=od, MemoryCluster=MemoryCluster))["record"].value == b"one"


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
@pytest.mark.parametrize("function", ["copy", "copy_partitions", "pass_on"])
async def test_a_copy_by_columns_keeps_keys_headers_and_times(tmp_path: Path, function: str) -> None:
    """On an in-memory cluster: 0.7, which the rest of the page runs on, has none of them."""
    cluster = MemoryCluster(topics={"t": 1, "copies": 1})
    (block,) = [block for block in blocks_of("arrow.md") if f"async def {function}(" in block]
    names: dict[str, Any] = {"od": MemoryConnections(cluster)}
    exec(compile(block, "arrow.md", "exec"), names)
    async with cluster.connect() as k:
        async with k.producer() as out:
            await out.send("t", b"v", key=b"k", headers=[("h", b"1")], timestamp=1_700_000_000_000)
            await out.send("t", None, key=b"k")
        await names[function]("memory", "t", "copies")
        async with k.reader("t", until=od.LATEST) as r, k.reader("copies", until=od.LATEST) as copies:
            expected = [(one.value, one.key, one.headers, one.timestamp) async for one in r]
            assert [(one.value, one.key, one.headers, one.timestamp) async for one in copies] == expected


class MemoryConnections:
    """The package, as pages use it, but every cluster is this one."""

    LATEST = od.LATEST

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster

    def connect(self, url: str) -> od.Cluster:
        return self._cluster.connect()


@pytest.mark.anyio
async def test_producing(tmp_path: Path, odradek_kafka: KafkaBroker) -> None:
    """The partitions of the page's first two producers are those of the clients that it names."""
    url, topic = f"kafka://{odradek_kafka.bootstrap}", uuid4().hex
    keys = [b"k%d" % n for n in range(100)]
    async with od.connect(url) as k:
        (await k.admin.create_topics({topic: 7, "readings": 2}, replicas=1)).done[topic]
        names = run_page("producing.md", tmp_path, k=k, od=od)
        async with names["default"] as out:
            assert await chosen(out, topic, keys) == [positive(murmur2(key)) % 7 for key in keys]
            await names["send_to_one"](out)
            assert await names["start_over"](out) == ((0, 0, 0), [])
        async with names["as_librdkafka"] as out:
            crc = await chosen(out, topic, keys)
        assert crc == await anyio.to_thread.run_sync(chosen_by_librdkafka, odradek_kafka.bootstrap, topic, keys)


async def chosen(out: od.Producer, topic: str, keys: list[bytes]) -> list[int]:
    acks = [await out.send(topic, b"v", key=key) for key in keys]
    return [ack.partition.partition for ack in acks]


def chosen_by_librdkafka(bootstrap: str, topic: str, keys: list[bytes]) -> list[int]:
    partitions: dict[bytes, int] = {}
    out = confluent_kafka.Producer({"bootstrap.servers": bootstrap})

    def delivered(error: object, message: Any) -> None:
        partitions[message.key()] = message.partition()

    for key in keys:
        out.produce(topic, b"v", key=key, on_delivery=delivered)
    assert out.flush(60) == 0
    return [partitions[key] for key in keys]


@pytest.mark.anyio
async def test_serializers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page("serializers.md", tmp_path)
    cluster = MemoryCluster(topics={"orders": 1, "orders.dead": 1})
    async with cluster.connect() as k:
        await names["work"](k)
        assert capsys.readouterr().out == "ann 7 0\n"
        assert await names["typed"](k) == 7
        cluster.append("orders", [b"no JSON", b'{"id": 8, "user": "bob"}'], partition=0)
        order = names["Order"]
        assert await names["patient"](k) == [order(7, "ann"), b"no JSON", order(8, "bob")]
        assert await names["some"](k) == [order(7, "ann")]
        async with anyio.create_task_group() as tasks, k.reader("orders.dead") as dead:
            tasks.start_soon(names["bill"], k)
            assert (await anext(dead)).value == b"no JSON"
            tasks.cancel_scope.cancel()
    cluster = MemoryCluster(topics={"avro-orders": 1})
    with serving() as registry:
        async with cluster.connect() as k:
            await names["with_schemas"](k, registry.url)
    assert capsys.readouterr().out == "[Order(id=7, user='ann')]\n" and "avro-orders-value" in registry.subjects


@pytest.mark.anyio
async def test_testing_without_a_server() -> None:
    """The first example of the page, with code such as it may be about."""

    async def bill_all(k: od.Cluster) -> None:
        async with k.consumer("orders", group="billing") as c, k.producer() as out:
            async for batch in c.batches():
                for value in batch.values:
                    await out.send("bills", b"bill " + payload(value))
                batch.done()
                if b"two" in batch.values:
                    break

    names: dict[str, Any] = {"bill_all": bill_all}
    exec(compile(blocks_of("testing.md")[0], "testing.md", "exec"), names)
    await names["test_orders_are_billed"]()


@pytest.mark.parametrize(
    ("variable", "kind"),
    [("cluster", MemoryCluster), ("broker", Kafka07Broker), ("zk", ZooKeeperServer), ("proxy", FaultProxy)],
)
def test_what_the_testing_page_calls_exists(variable: str, kind: type) -> None:
    blocks = [block for block in blocks_of("testing.md") if "KafkaCluster" not in block]
    called = {name for block in blocks for name in re.findall(rf"\b{variable}\.(\w+)\(", block)}
    assert called and called <= set(dir(kind))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_exactly_once(tmp_path: Path, odradek_kafka: KafkaBroker) -> None:
    url, own = f"kafka://{odradek_kafka.bootstrap}", uuid4().hex.encode()  # others may use these topics, too
    orders = [b"%s %d" % (own, n) for n in range(1000)]
    names = run_page("exactly-once.md", tmp_path)
    async with od.connect(url) as k, k.producer() as out:
        await out.send_many("orders", orders)
    await names["test_each_order_has_one_invoice"]()
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


class Database:
    """What the page about rebalances writes to."""

    def __init__(self) -> None:
        self.rows: list[bytes | None] = []
        self.positions: dict[od.TopicPartition, od.Position] = {}

    async def insert(
        self, rows: list[bytes | None], positions: dict[od.TopicPartition, od.Position] | None = None
    ) -> None:
        self.rows += rows
        self.positions |= positions or {}

    async def position(self, partition: od.TopicPartition) -> od.Position | None:
        return self.positions.get(partition)


@pytest.mark.anyio
async def test_rebalances(tmp_path: Path) -> None:
    cluster, database = MemoryCluster(topics={"orders": 1}), Database()
    cluster.append("orders", ROWS[:5])
    partition = od.TopicPartition("orders", 0)
    names = run_page("rebalances.md", tmp_path)
    service = names["Service"](database)
    async with cluster.connect() as k:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.run, k)
            with anyio.fail_after(60):
                while not service.buffers.get(partition):
                    await anyio.lowlevel.checkpoint()
            assert database.rows == [], "they are kept"
            cluster.revoke("billing", partition)
            with anyio.fail_after(60):
                while cluster.committed("billing") != {partition: 5}:
                    await anyio.lowlevel.checkpoint()
            assert database.rows == ROWS[:5] and service.buffers == {}
            tasks.cancel_scope.cancel()
        database.positions[partition] = od.Position(3)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(names["copy"], k, database)
            with anyio.fail_after(60):
                while database.positions[partition] != 5:
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    assert database.rows == [*ROWS[:5], *ROWS[3:5]]


@pytest.mark.anyio
async def test_positions(tmp_path: Path) -> None:
    cluster = MemoryCluster(topics={"orders": 2})
    cluster.append("orders", ROWS[:5])
    names, partition = run_page("positions.md", tmp_path), od.TopicPartition("orders", 0)
    async with cluster.connect() as k, anyio.create_task_group() as tasks:
        tasks.start_soon(names["every_hundredth"], k)
        with anyio.fail_after(60):
            while cluster.committed("billing") != {partition: 5}:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    async with cluster.connect() as k:
        assert await names["since"](k, 0) == ROWS[:5]
        async with k.consumer("orders", group="new") as c:
            await anext(aiter(c.batches(max_records=2)))
            assert names["behind"](c) == 3
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(names["copy_two"], k, 0)
            with anyio.fail_after(60):
                while cluster.committed("copy").get(partition) != 5:
                    await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_failures(tmp_path: Path) -> None:
    names = run_page("failures.md", tmp_path)
    cluster = MemoryCluster(topics={"orders": 1, "orders.failed": 1, **dict.fromkeys(names["LATER"], 1)})
    cluster.append("orders", ROWS[:5])
    names["LATER"].update(dict.fromkeys(names["LATER"], 0.001))
    calls: Counter[bytes | None] = Counter()

    async def bill(order: od.Record) -> None:
        calls[order.value] += 1
        if order.value == ROWS[1]:
            raise ValueError("no such customer")

    async with cluster.connect() as k, anyio.create_task_group() as tasks:
        tasks.start_soon(names["bill_all"], k, bill)
        with anyio.fail_after(60):
            while not cluster.records("orders.failed"):
                await anyio.lowlevel.checkpoint()
        assert await names["failed"](k) == [(ROWS[1], "no such customer")]
        tasks.cancel_scope.cancel()
    assert calls[ROWS[1]] == 9


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
