"""Our consumers leave in ZooKeeper what the real Scala consumers left there: every stage of scala_zk.jsonl.

The corpus README, section 6, tells the format. Compared by meaning: generated ids in their order, sets without order.
Brokers are their nodes, and consuming is knowing where each log ends: this is about ZooKeeper alone.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from odradek.core.interfaces import Assignment, Subscription
from odradek.core.kafka07.znodes import broker_data
from odradek.io.kafka07.membership import RebalanceOptions, ZooKeeperMembership
from odradek.io.kafka07.offsets import ZooKeeperOffsets
from odradek.io.zookeeper import ZooKeeper
from odradek.testing import ZooKeeperServer
from odradek.types import Position, TopicPartition

CORPUS = Path(__file__).parent / "kafka07" / "scala_zk.jsonl.gz"
CASES: list[dict[str, Any]] = [json.loads(line) for line in gzip.decompress(CORPUS.read_bytes()).splitlines()]
MORE = 14  # bytes of a message "more"
BACKOFF_S = 3.0

Tree = dict[str, tuple[str | None, str]]

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


class Logs:
    """Where each partition's log ends, and the nodes that say which partitions there are."""

    def __init__(self, case: dict[str, Any], zk: ZooKeeper) -> None:
        self._zk = zk
        self._count = int(case["broker"]["num.partitions"])
        self._brokers = [int(broker) for broker in case["broker_ids"]]
        self.ends: dict[TopicPartition, int] = {}

    async def store(self, topic: str, partition: int, size: int, brokers: list[int] | None = None) -> None:
        for broker in brokers or self._brokers[:1]:
            where = TopicPartition(topic, partition, broker)
            self.ends[where] = self.ends.get(where, 0) + size
            path = f"/brokers/topics/{topic}/{broker}"
            if not await self._zk.exists(path):
                await self._zk.create(path, str(self._count).encode(), ephemeral=True, parents=True)

    async def start(self, data: list[list[Any]]) -> None:
        for broker in self._brokers:
            node = broker_data("127.0.0.1", 9092, 1795206157048)
            await self._zk.create(f"/brokers/ids/{broker}", node, ephemeral=True, parents=True)
        for topic, partition, stored in data:
            await self.store(topic, partition, len(stored) // 2, self._brokers)


class Consumer:
    """Reads everything there is at once, and commits when the Scala consumer does."""

    def __init__(self, zk: ZooKeeper, subscription: Subscription, config: dict[str, str], logs: Logs) -> None:
        attempts = int(config.get("rebalance.retries.max", 4))
        # A pause ends when the partitions are released. It is as long as that may take on a slow machine: a member that
        # has used up its attempts is at rest, and its case would go on.
        self.membership = ZooKeeperMembership(zk, subscription, RebalanceOptions(attempts, BACKOFF_S))
        self.generated = subscription.consumer_id is None
        self._commits_at_exit = config.get("autocommit.enable") != "false"
        self._interval = int(config.get("autocommit.interval.ms", 600_000)) / 1000
        self._offsets = ZooKeeperOffsets(zk, subscription.group)
        self._joining: anyio.CancelScope
        self.blocked = False
        self._mine: set[TopicPartition] = set()
        self._logs = logs
        self._leave = anyio.Event()
        self.left = anyio.Event()

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.join)
            tasks.start_soon(self._autocommit)
            await self._leave.wait()
            tasks.cancel_scope.cancel()
        if self._commits_at_exit:
            await self.commit()
        await self.membership.leave()
        self.left.set()

    async def join(self) -> None:
        """Run the membership. Cancelled when its attempts are used up, where the Scala consumer raises: that claims
        partitions again at the next event (specification, appendix H.10), and ours as soon as their owner goes."""
        self.blocked = False
        with anyio.CancelScope() as self._joining:
            await self.membership.run(self)

    async def _autocommit(self) -> None:
        while True:
            await anyio.sleep(self._interval)
            await self.commit()

    async def leave(self) -> None:
        self._leave.set()
        await self.left.wait()

    async def commit(self) -> None:
        await self._offsets.commit({p: Position(self._logs.ends.get(p, 0)) for p in self._mine})

    async def revoke(self, partitions: Collection[TopicPartition]) -> None:
        await self.commit()
        self._mine -= set(partitions)

    async def assign(self, assignment: Assignment) -> None:
        await self.commit()  # at every rebalance, as Scala's does, which releases everything
        self._mine |= assignment.partitions.keys()

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        raise AssertionError("no session expires here")

    @property
    def at_rest(self) -> bool:
        if " DEGRADED " in repr(self.membership) and not self.blocked:
            self.blocked = True
            self._joining.cancel()
        return self.left.is_set() or self.blocked or " OWNING " in repr(self.membership)


def subscription_of(name: str, streams: str, fixed: int) -> Subscription:
    consumer_id = name if fixed else None
    kind, *rest = streams.split(";")
    if kind in ("w", "b"):
        regex, count = rest
        return Subscription(
            "zg",
            include=regex if kind == "w" else None,
            exclude=regex if kind == "b" else None,
            streams=int(count),
            consumer_id=consumer_id,
        )
    topics = dict(item.split(":") for item in streams.split(";"))
    return Subscription("zg", {topic: int(count) for topic, count in topics.items()}, consumer_id=consumer_id)


class Stage:
    """A case being played: everybody in it, and what ZooKeeper looks like."""

    def __init__(self, case: dict[str, Any], server: ZooKeeperServer, root: str, tasks: Any, zk: ZooKeeper) -> None:
        self._case, self._server, self._root, self._tasks, self._zk = case, server, root, tasks, zk
        self.logs = Logs(case, zk)
        self._consumers: dict[str, Consumer] = {}

    async def play(self, action: Any) -> str:
        verb, *arguments = action
        result: str | None = await getattr(self, f"_{verb}")(*arguments)
        return result or "ok"

    async def _join(self, name: str, streams: str, fixed: int) -> str | None:
        zk = await self._session()
        consumer = Consumer(zk, subscription_of(name, streams, fixed), self._case["config"], self.logs)
        earlier = list(self._consumers.values())
        self._consumers[name] = consumer
        self._tasks.start_soon(consumer.run)
        await self._until(lambda: self._registered(consumer))
        for other in earlier:
            if other.blocked:
                self._tasks.start_soon(other.join)
        await self._until(lambda: consumer.at_rest)
        return f"err {consumer.membership.problem}" if consumer.blocked else None

    def _registered(self, consumer: Consumer) -> bool:
        return bool(self._server.tree(f"{self._root}/consumers/zg/ids/{consumer.membership.consumer_id}"))

    async def _session(self) -> ZooKeeper:
        """One of its own for each, until the case ends."""
        opened: list[ZooKeeper] = []
        ready = anyio.Event()

        async def hold() -> None:
            async with ZooKeeper(self._server.address + self._root, connect_timeout=10) as zk:
                opened.append(zk)
                ready.set()
                await anyio.sleep_forever()

        self._tasks.start_soon(hold)
        await ready.wait()
        return opened[0]

    async def _leave(self, name: str) -> None:
        await self._consumers[name].leave()

    async def _commit(self, name: str) -> None:
        await self._consumers[name].commit()

    async def _produce(self, topic: str, partition: int) -> None:
        await self.logs.store(topic, partition, MORE)

    async def _zkcreate(self, path: str, data: str) -> None:
        await self._zk.create(path, data.encode(), parents=True)

    async def _zkdelete(self, path: str) -> None:
        await self._zk.delete(path)

    async def tree(self, expected: Tree) -> Tree:
        """Return the tree as soon as it is as expected and all consumers rest, or as it is after a time limit."""
        current: Tree = {}

        def as_expected() -> bool:
            nonlocal current
            current = self._read_tree()
            return current == expected and all(consumer.at_rest for consumer in self._consumers.values())

        with anyio.move_on_after(60):
            await self._until(as_expected)
        return current

    async def _until(self, condition: Any) -> None:
        while True:
            if condition():
                return
            await anyio.sleep(0.01)

    def _read_tree(self) -> Tree:
        nodes = self._server.tree(f"{self._root}/consumers")
        generated = sorted(c.membership.consumer_id for c in self._consumers.values() if c.generated)
        masks = {each: f"zg_{{host}}-{{ms{k}}}-{{uuid{k}}}" for k, each in enumerate(generated, 1)}
        tree: Tree = {}
        for path, node in nodes.items():
            data = None if node.data is None else masked(node.data.decode(), masks)
            kind = "ephemeral" if node.owner else "persistent"
            tree[masked(path.removeprefix(self._root), masks)] = (data, kind)
        return tree


def masked(text: str, masks: dict[str, str]) -> str:
    for original, mask in masks.items():
        text = text.replace(original, mask)
    return text


@asynccontextmanager
async def stage(case: dict[str, Any], server: ZooKeeperServer) -> AsyncIterator[Stage]:
    root = f"/{case['id']}"
    server.create(root)
    async with (
        ZooKeeper(server.address + root, connect_timeout=10) as zk,
        anyio.create_task_group() as tasks,
    ):
        yield Stage(case, server, root, tasks, zk)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("case", CASES, ids=[f"{case['id']} {case['title']}" for case in CASES])
async def test_every_stage_leaves_the_nodes_the_scala_consumers_left(
    case: dict[str, Any], zookeeper: ZooKeeperServer
) -> None:
    async with stage(case, zookeeper) as now:
        await now.logs.start(case["data"])
        for step in case["stages"][1:]:
            result = await now.play(step["action"])
            assert result.split()[0] == step["result"].split()[0], (step["action"], result)
            expected: Tree = {path: (data, kind) for path, (data, kind) in step["tree"].items()}
            assert await now.tree(expected) == expected, step["action"]


def test_the_brokers_nodes_are_those_the_corpus_starts_with() -> None:
    for case in CASES:
        for path, (data, _) in case["stages"][0]["tree"].items():
            if re.fullmatch(r"/brokers/ids/\d+", path):
                ours = broker_data("127.0.0.1", 9092, 1795206157048).decode()
                assert re.sub(r"\{port\d\}", "9092", data.replace("{ms}", "1795206157048")) == ours


def test_the_corpus_is_whole() -> None:
    assert [case["id"] for case in CASES] == [f"Z{n:02}" for n in range(1, 15)]
