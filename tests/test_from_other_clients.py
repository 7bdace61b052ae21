"""The pages for users of other clients: their program and ours, as printed, share a group that moves to ours."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

import odradek as od
from odradek.testing import KafkaBroker, MemoryCluster

PAGES = Path(__file__).parent.parent / "docs" / "howto"
PARTITIONS = 4
KEYS = [b"k%d" % n for n in range(30)]


def blocks_of(page: str) -> list[str]:
    """The blocks of a page: their program, ours, others."""
    return re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


class Move:
    """A group that moves from the program of another client to ours, with topics of its own."""

    def __init__(self, page: str, broker: KafkaBroker, k: od.Cluster, out: od.Producer) -> None:
        name = f"{page.removesuffix('.md')}-{uuid4().hex}"
        self.orders, self.invoices, self.group = f"orders-{name}", f"invoices-{name}", f"billing-{name}"
        theirs, ours, *_ = blocks_of(page)
        self.their_program = self._own_names(theirs).replace("localhost:9092", broker.bootstrap)
        self.our_program = self._own_names(ours).rpartition("od.run(")[0]
        self._k, self._out, self._round = k, out, 0

    def _own_names(self, program: str) -> str:
        names = {"orders": self.orders, "invoices": self.invoices, "billing": self.group}
        return re.sub(r'"(orders|invoices|billing)"', lambda match: f'"{names[match[1]]}"', program)

    async def run(self, url: str) -> None:
        """Have theirs at work, then both, then ours; every order gets its invoice, in the partition of its key."""
        await self._k.admin.create_topics(dict.fromkeys([self.orders, self.invoices], PARTITIONS), replicas=1)
        names: dict[str, Any] = {}
        exec(compile(self.our_program, "ours", "exec"), names)
        with running(self.their_program) as theirs:
            await self._all_get_invoices(members=1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(names["bill"], url)
                await self._all_get_invoices(members=2)
                theirs.send_signal(signal.SIGINT)
                await self._all_get_invoices(members=1)
                await anyio.to_thread.run_sync(theirs.wait, 60)
                await self._all_is_committed()
                tasks.cancel_scope.cancel()
        written = {key: len(partitions) for key, partitions in (await self._partitions()).items()}
        assert written == dict.fromkeys(KEYS, 1), "a key stays in one partition, whoever writes it"

    async def _all_get_invoices(self, members: int) -> None:
        """Write orders once so many members share the partitions, and wait for the invoice of each."""
        while await self._members() != members:  # noqa: ASYNC110 - of a process that cannot notify
            await anyio.sleep(0.1)
        self._round += 1
        orders = [od.ProducerRecord(b"%s %d" % (key, self._round), key=key) for key in KEYS]
        await self._out.send_many(self.orders, orders)
        wanted = {b"invoice for " + (order.value or b"") for order in orders}
        while wanted - {record.value for record in await self._written()}:  # noqa: ASYNC110
            await anyio.sleep(0.1)

    async def _all_is_committed(self) -> None:
        ends = await self._k.positions(self.orders, od.LATEST)
        while await self._k.admin.group_positions(self.group) != ends:  # noqa: ASYNC110
            await anyio.sleep(0.1)

    async def _members(self) -> int:
        """Members with partitions, once all partitions have one; else 0."""
        group = (await self._k.admin.describe_groups(self.group)).done.get(self.group)
        owned = [] if group is None else [member.partitions for member in group.members if member.partitions]
        return len(owned) if sum(map(len, owned)) == PARTITIONS else 0

    async def _written(self) -> list[od.Record]:
        async with self._k.reader(self.invoices, until=od.LATEST) as reader:
            return [record async for record in reader]

    async def _partitions(self) -> dict[bytes | None, Counter[od.TopicPartition]]:
        written: dict[bytes | None, Counter[od.TopicPartition]] = defaultdict(Counter)
        for record in await self._written():
            written[record.key][record.partition] += 1
        return written


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a process of its own, which is killed at the end if it is still there."""
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_group_moves_from_each_client_while_it_is_at_work(odradek_kafka: KafkaBroker) -> None:
    """All three at a time: most of it is waiting for heartbeats."""
    url = f"kafka://{odradek_kafka.bootstrap}"
    async with od.connect(url) as k, k.producer() as out:
        with anyio.fail_after(240):
            async with anyio.create_task_group() as tasks:
                for page in ("from-aiokafka.md", "from-kafka-python.md", "from-confluent-kafka.md"):
                    tasks.start_soon(Move(page, odradek_kafka, k, out).run, url)


def test_a_thread_sends_through_a_portal(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MemoryCluster(topics={"t": 1})
    monkeypatch.setattr(od, "connect", lambda url: cluster.connect())
    names: dict[str, Any] = {"od": od}
    exec(compile(blocks_of("from-kafka-python.md")[2], "portal", "exec"), names)
    names["send_from_a_thread"]("kafka://b:9092", "t", [b"one", b"two"])
    assert [stored.value for stored in cluster.records("t")] == [b"one", b"two"]
