"""Consumer groups on real brokers."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from functools import cache
from itertools import count
from typing import Any, Literal, NamedTuple

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.io.kafka.groups import ASYNCIO, cluster, new_topic, until

import odradek as od
from odradek.errors import Unsupported
from odradek.io.kafka.offsets import KafkaOffsets
from odradek.testing import KafkaBroker
from odradek.testing.kafka.releases import NEWEST
from odradek.types import LATEST, Position

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

PARTITIONS = 4
NUMBERS = count()


class Setting(NamedTuple):
    """A broker, a protocol and a loop."""

    release: str
    protocol: str
    backend: tuple[str, dict[str, bool]]

    @property
    def options(self) -> dict[str, Any]:
        """Options of consumers."""
        return {"group_protocol": self.protocol}

    @property
    def incremental(self) -> dict[str, Any]:
        """Options of consumers that keep the partitions that do not move in a rebalance."""
        return self.options | ({"assignors": ["cooperative-sticky"]} if self.protocol == "classic" else {})


UVLOOP = ("asyncio", {"use_uvloop": True})
SETTINGS = [
    Setting("0.9.0.1", "classic", ASYNCIO),
    Setting("0.10.1.1", "classic", ("trio", {})),
    Setting(NEWEST, "classic", UVLOOP),
    Setting(NEWEST, "consumer", ASYNCIO),
    Setting(NEWEST, "consumer", ("trio", {})),
]
"""Each broker, each protocol and each loop, but not all of one with all of the others: a rebalance takes its time."""


@pytest.fixture(params=SETTINGS, ids=lambda s: f"{s.release}-{s.protocol}-{s.backend[0]}")
def setting(request: pytest.FixtureRequest) -> Setting:
    chosen: Setting = request.param
    return chosen


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The loop of the setting; asyncio for tests without one."""
    return request.getfixturevalue("setting").backend if "setting" in request.fixturenames else ASYNCIO


@pytest.fixture(scope="module")
def brokers(odradek_kafka: KafkaBroker) -> Iterator[Callable[[str], KafkaBroker]]:
    """A broker of each release: the session's of the newest, the module's of others, started when first asked for."""
    with ExitStack() as stack:
        others = cache(lambda release: stack.enter_context(KafkaBroker(release)))
        yield lambda release: odradek_kafka if release == NEWEST else others(release)


@pytest.fixture
def broker(setting: Setting, brokers: Callable[[str], KafkaBroker]) -> KafkaBroker:
    return brokers(setting.release)


@asynccontextmanager
async def cluster_with_records(broker: KafkaBroker, records: int) -> AsyncIterator[tuple[od.Cluster, str]]:
    """A cluster, and a topic of its own with so many different records, some in each partition."""
    topic = await new_topic(broker, PARTITIONS)
    async with cluster(broker) as k:
        async with k.producer() as out:
            values = [str(n).encode() for n in range(records)]
            await out.send_many(topic, [od.ProducerRecord(value, key=value) for value in values])
        yield k, topic


async def take(consumer: od.Consumer, records: Counter[bytes], until: int) -> None:
    """Take records until there are so many, all members together."""
    async for batch in consumer.batches():
        records.update(record.value or b"" for record in batch)
        batch.done()
        if records.total() >= until:
            return


async def test_two_members_share_the_partitions_and_deliver_every_record_once(
    setting: Setting, broker: KafkaBroker
) -> None:
    async with cluster_with_records(broker, 400) as (k, topic):
        records: Counter[bytes] = Counter()
        async with (
            k.consumer(topic, group=topic, commit_metadata="host", **setting.options) as first,
            k.consumer(topic, group=topic, commit_metadata="host", **setting.options) as second,
        ):
            with anyio.fail_after(60):
                await until(lambda: len(first.assignment) == len(second.assignment) == PARTITIONS // 2)
                assert not first.assignment.keys() & second.assignment.keys()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(take, first, records, 400)
                    tasks.start_soon(take, second, records, 400)
                    await until(lambda: records.total() >= 400)
                    tasks.cancel_scope.cancel()
            assert topic in await k.driver.groups()
        assert records == Counter(str(n).encode() for n in range(400))
        store = k.driver.offsets(topic)
        assert isinstance(store, KafkaOffsets)
        partitions = await k.partitions(topic)
        assert await store.fetch(partitions) == await k.positions(topic, LATEST)
        epoch = 0 if setting.release == NEWEST else -1
        stored = await store.fetch_offsets(partitions)
        assert {(offset.leader_epoch, offset.metadata) for offset in stored.values() if offset} == {(epoch, "host")}


async def test_the_partitions_of_a_member_that_leaves_go_to_the_other_one(
    setting: Setting, broker: KafkaBroker
) -> None:
    async with cluster_with_records(broker, 100) as (k, topic):
        records: Counter[bytes] = Counter()
        async with k.consumer(topic, group=topic, **setting.options) as first:
            with anyio.fail_after(60):
                async with k.consumer(topic, group=topic, **setting.options) as second:
                    await until(lambda: len(second.assignment) == PARTITIONS // 2)
                await until(lambda: len(first.assignment) == PARTITIONS)
                await take(first, records, 100)
    assert records == Counter(str(n).encode() for n in range(100))


@pytest.mark.sampled(2)
async def test_members_cancelled_at_random_moments_leave_a_group_that_works(
    setting: Setting, broker: KafkaBroker
) -> None:
    seed = random.randrange(1 << 30)
    moments = random.Random(seed)
    async with cluster_with_records(broker, 50) as (k, topic):
        for _ in range(12):
            with anyio.move_on_after(moments.random() ** 3 * 2):
                async with k.consumer(topic, group=topic, exit_within=5.0, **setting.options):
                    await anyio.sleep_forever()
        records: Counter[bytes] = Counter()
        with anyio.fail_after(90):
            async with k.consumer(topic, group=topic, join_within=90, **setting.options) as last:
                await until(lambda: len(last.assignment) == PARTITIONS)
                await take(last, records, 50)
    assert records == Counter(str(n).encode() for n in range(50)), seed


async def test_members_keep_the_partitions_that_do_not_move(setting: Setting, broker: KafkaBroker) -> None:
    async with cluster_with_records(broker, 10) as (k, topic):
        with anyio.fail_after(60):
            async with k.consumer(topic, group=topic, **setting.incremental) as first:
                before = dict(first.assignment)
                assert len(before) == PARTITIONS
                sizes: set[int] = set()
                async with k.consumer(topic, group=topic, **setting.incremental) as second:

                    def shared() -> bool:
                        sizes.add(len(first.assignment))
                        return len(second.assignment) == PARTITIONS // 2

                    await until(shared)
                    assert first.assignment.items() < before.items()
                    assert 0 not in sizes


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("by_pattern", [False, True], ids=["by-name", "by-pattern"])
async def test_a_topic_that_is_created_later_is_consumed_from_its_start(
    odradek_kafka: KafkaBroker, protocol: Literal["classic", "consumer"], by_pattern: bool
) -> None:
    topic = f"later-{next(NUMBERS)}"
    chosen: dict[str, Any] = {"include": f"{topic}|other"} if by_pattern else {"topics": topic}
    async with cluster(odradek_kafka) as k:
        records: Counter[bytes] = Counter()
        with anyio.fail_after(60):
            async with k.consumer(**chosen, group=topic, group_protocol=protocol) as consumer:
                assert not consumer.assignment
                await anyio.to_thread.run_sync(odradek_kafka.create_topic, topic, PARTITIONS)
                async with k.producer() as out:
                    await out.send(topic, b"first")
                await take(consumer, records, 1)
                await until(lambda: len(consumer.assignment) == PARTITIONS)
        assert records == {b"first": 1}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_static_member_that_restarts_gets_its_partitions_again_without_a_rebalance(
    odradek_kafka: KafkaBroker, protocol: Literal["classic", "consumer"]
) -> None:
    async with cluster_with_records(odradek_kafka, 10) as (k, topic):

        def consumer(name: str) -> od.Consumer:
            return k.consumer(topic, group=topic, consumer_id=name, group_protocol=protocol)

        with anyio.fail_after(60):
            async with consumer("one") as first:
                async with consumer("two") as second:
                    await until(lambda: len(first.assignment) == len(second.assignment) == PARTITIONS // 2)
                    kept, theirs = first.assignment, second.assignment
                async with consumer("two") as again:
                    await until(lambda: again.assignment == theirs)
                    assert first.assignment is kept


async def test_the_command_line_prints_the_lag_of_a_group(odradek_kafka: KafkaBroker) -> None:
    async with cluster_with_records(odradek_kafka, 10) as (k, topic):
        first, *_ = await k.partitions(topic)
        await k.driver.offsets(topic).commit({first: Position(1)})
        command = ["lag", topic, "--json", "--cluster", f"kafka://{odradek_kafka.bootstrap}"]
        done = await anyio.run_process([sys.executable, "-m", "odradek.cli", *command])
        total = {"group": topic, "state": "Empty", "members": 0, "lag": 9}
        assert json.loads(done.stdout.splitlines()[-1]) == total


async def test_members_survive_a_restart_of_their_coordinator() -> None:
    with KafkaBroker(NEWEST) as broker:
        async with cluster_with_records(broker, 50) as (k, topic):
            taken: dict[str, Counter[bytes]] = {"classic": Counter(), "consumer": Counter()}
            with anyio.fail_after(120):
                async with (
                    k.consumer(topic, group="classic", group_protocol="classic") as classic,
                    k.consumer(topic, group="consumer", group_protocol="consumer") as consumer,
                ):
                    for member, records in zip((classic, consumer), taken.values(), strict=True):
                        await take(member, records, 50)
                        await member.commit()
                    await anyio.to_thread.run_sync(broker.kill)
                    await anyio.to_thread.run_sync(broker.start)
                    async with k.producer() as out:
                        await out.send_many(topic, [b"later"] * 10)
                    for member, records in zip((classic, consumer), taken.values(), strict=True):
                        await take(member, records, 60)
                        await member.commit()
            for group, records in taken.items():
                committed = await k.driver.offsets(group).fetch(await k.partitions(topic))
                assert committed == await k.positions(topic, LATEST)
                assert records[b"later"] == 10


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("release", "stores"), [("0.8.0", False), ("0.8.1.1", True), ("0.8.2.2", True)])
async def test_kafka_0_8_has_no_groups_but_stores_positions_from_0_8_1_on(release: str, stores: bool) -> None:
    with KafkaBroker(release) as broker:
        async with cluster_with_records(broker, 10) as (k, topic):
            with pytest.raises(Unsupported, match=r"Kafka 0\.9"):
                k.consumer(topic, group="g")
            offsets = k.driver.offsets("g")
            partitions = await k.partitions(topic)
            if not stores:
                with pytest.raises(Unsupported, match=r"Kafka 0\.8\.1"):
                    await offsets.fetch(partitions)
                return
            assert set((await offsets.fetch(partitions)).values()) == {None}
            await offsets.commit({partitions[1]: Position(2)})
            assert await offsets.fetch(partitions[:2]) == {partitions[0]: None, partitions[1]: 2}
