"""Readers and group consumers against embedded brokers and a real ZooKeeper."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest
from tests.loops import ASYNCIO, on

from odradek.client.consumer.consumer import Consumer
from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.interfaces import PartitionBatch, ProducerRecord
from odradek.errors import GroupError, Unsupported
from odradek.io.kafka07.driver import Kafka07Driver, Kafka07Options
from odradek.io.kafka07.membership import RebalanceOptions
from odradek.io.zookeeper import ZooKeeper
from odradek.testing import FaultProxy, Kafka07Broker, ZooKeeperServer
from odradek.types import EARLIEST, LATEST, Position, Record, TopicPartition

from ..payloads import payload, payloads

pytestmark = pytest.mark.anyio
anyio_backend = on(ASYNCIO)

TUNING = Tuning(fetch_idle=0.01, backoff=Backoff(first_s=0.01, max_s=0.1))
CONFIG = {"num.partitions": "3", "log.flush.interval": "1"}
OPTIONS = Kafka07Options(rebalance=RebalanceOptions(backoff=0.2))


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % n for n in range(first, first + count)]


@contextmanager
def brokers(chroot: str, *ids: int) -> Iterator[list[Kafka07Broker]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Kafka07Broker(broker_id=n, zookeeper=chroot, config=CONFIG)) for n in ids]


def cluster(chroot: str) -> Kafka07Driver:
    return Kafka07Driver(zookeeper=chroot, options=OPTIONS)


async def write(
    driver: Kafka07Driver, partition: TopicPartition, values: Sequence[bytes], compression: str = "none"
) -> None:
    with anyio.fail_after(20):
        while (broker := driver.metadata.table.brokers.get(partition.broker)) is None:
            await driver.metadata.wait_for_newer(driver.metadata.table.version)
        part = PartitionBatch(partition, [ProducerRecord(value) for value in values], compression)
        await driver.broker(broker, purpose="produce").produce([part], acks=-1)


async def create(driver: Kafka07Driver, topic: str, brokers: Sequence[int] = (1,)) -> list[TopicPartition]:
    """A topic with something in every partition, published in ZooKeeper."""
    table = await driver.metadata.table_for_topic(topic)
    for broker in brokers:
        for n in range(3):
            await write(driver, TopicPartition(topic, n, broker), [b"%d-%d" % (broker, n)])
    with anyio.fail_after(20):
        while len(table.registered(topic)) < 3 * len(brokers):
            table = await driver.metadata.wait_for_newer(table.version)
    return list(table.registered(topic))


@asynccontextmanager
async def consumer(chroot: str, *topics: str, **options: Any) -> AsyncIterator[Consumer]:
    """A consumer with a ZooKeeper session of its own, as another process would have."""
    settings: dict[str, Any] = {"group": "g", "tuning": TUNING, "commit_every": 0.05, **options}
    async with cluster(chroot) as driver, Consumer(driver, topics or None, **settings) as made:
        yield made


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110  # what other processes do has no event here
            await anyio.sleep(0.01)


def nodes(server: ZooKeeperServer, chroot: str, path: str) -> dict[str, bytes | None]:
    """What is below a path of this test's chroot: relative path -> data."""
    root = "/" + chroot.split("/", 1)[1] + path
    return {name.removeprefix(root + "/"): node.data for name, node in server.tree(root).items() if name != root}


async def take(source: Consumer | Reader, count: int) -> list[bytes]:
    with anyio.fail_after(30):
        return [payload((await anext(source)).value) for _ in range(count)]


async def test_a_reader_reads_all_partitions_of_all_brokers(odradek_chroot: str) -> None:
    with brokers(odradek_chroot, 1, 2):
        async with cluster(odradek_chroot) as driver:
            partitions = await create(driver, "t", (1, 2))
            for n, partition in enumerate(partitions):
                await write(driver, partition, numbered(100, 100 * n), ("none", "gzip", "snappy")[n % 3])
            async with Reader(driver, "t", until=LATEST) as reader:
                values = [payload(record.value) async for record in reader]
    assert sorted(value for value in values if b"-" not in value) == numbered(600)
    assert len(values) == 606


async def test_a_reader_needs_no_zookeeper_and_a_group_does() -> None:
    with Kafka07Broker(config=CONFIG) as broker:
        async with Kafka07Driver(brokers=[f"1@{broker.address}"]) as driver:
            await write(driver, TopicPartition("t", 0, 1), numbered(10))
            async with Reader(driver, "t", until=LATEST) as reader:
                assert [record.value async for record in reader] == numbered(10)
            with pytest.raises(Unsupported, match="needs ZooKeeper"):
                async with Consumer(driver, "t", group="g"):
                    pass


async def test_a_reader_with_a_group_needs_zookeeper_too() -> None:
    with Kafka07Broker(config=CONFIG) as broker:
        async with Kafka07Driver(brokers=[f"1@{broker.address}"]) as driver:
            with pytest.raises(Unsupported, match="needs ZooKeeper"):
                Reader(driver, "t", group="g")


async def test_a_reader_stores_positions_for_a_group_and_no_text(odradek_chroot: str) -> None:
    """So does a consumer: ZooKeeper has a number for each partition."""
    with brokers(odradek_chroot, 1):
        async with cluster(odradek_chroot) as driver:
            first, *others = await create(driver, "t")
            async with Reader(driver, "t", group="g", until=LATEST) as reader:
                with pytest.raises(Unsupported, match=r"0\.7 stores a number and nothing else"):
                    await reader.commit({first: (Position(0), "a text")})
                assert sum([1 async for _ in reader]) == 3
                ends = await reader.commit()
                assert ends.keys() == {first, *others} and await reader.commit() == {}
            async with Reader(driver, "t", group="g", until=LATEST) as reader:
                assert [record async for record in reader] == []
        async with consumer(odradek_chroot, "t") as member:
            await until(lambda: member.assignment)
            with pytest.raises(Unsupported, match=r"0\.7 stores a number and nothing else"):
                await member.commit({first: (ends[first], "a text")})
            with pytest.raises(Unsupported, match="commit_metadata"):
                async with consumer(odradek_chroot, "t", commit_metadata="host"):
                    pass
            stored = await member.committed([first])
            assert stored[first] == (ends[first], "")


async def test_a_connection_cut_at_every_byte_of_a_fetch_reply_loses_and_doubles_nothing() -> None:
    partition = TopicPartition("t", 0, 1)
    with Kafka07Broker(config=CONFIG) as broker, FaultProxy(broker.host, broker.port) as proxy:
        async with Kafka07Driver(brokers=[f"1@{broker.address}"]) as driver:
            await write(driver, partition, numbered(3))
            await write(driver, partition, numbered(3, 3), "gzip")
            async with Reader(driver, "t", until=LATEST) as reader:
                assert [record.value async for record in reader] == numbered(6)
            end = reader.positions()[partition]
        for byte in range(1, 6 + end):
            async with Kafka07Driver(brokers=[f"1@{proxy.address}"]) as driver:
                proxy.cut_after(server_bytes=byte)
                async with Reader(driver, {partition: Position(0)}, until=end, tuning=TUNING) as reader:
                    assert [record.value async for record in reader] == numbered(6), byte


async def test_case_39_streams_share_partitions_and_a_second_consumer_takes_its_share(
    odradek_chroot: str, odradek_zookeeper: ZooKeeperServer
) -> None:
    """A-0:{0,1} A-1:{2}, then A-0:{0} A-1:{1} B-0:{2}; nothing twice when what was read is committed."""
    with brokers(odradek_chroot, 1):
        async with cluster(odradek_chroot) as driver, consumer(odradek_chroot, "t", consumer_id="a", streams=2) as a:
            partitions = await create(driver, "t")
            await until(lambda: len(a.assignment) == 3)
            assert [a.assignment[p] for p in partitions] == [0, 0, 1]
            seen: list[bytes] = []
            async with anyio.create_task_group() as tasks:

                async def read(source: Any) -> None:
                    async for record in source:
                        seen.append(record.value)

                for stream in a.streams:
                    tasks.start_soon(read, stream)
                await until(lambda: len(seen) == 3)
                async with (
                    consumer(odradek_chroot, "t", consumer_id="b") as b,
                    anyio.create_task_group() as tasks_of_b,
                ):
                    tasks_of_b.start_soon(read, b)
                    await until(lambda: len(a.assignment) == 2)
                    assert {p: a.assignment[p] for p in partitions[:2]} == {partitions[0]: 0, partitions[1]: 1}
                    assert b.assignment == {partitions[2]: 0}
                    assert nodes(odradek_zookeeper, odradek_chroot, "/consumers/g/owners/t") == {
                        "1-0": b"g_a-0",
                        "1-1": b"g_a-1",
                        "1-2": b"g_b-0",
                    }
                    for n, partition in enumerate(partitions):
                        await write(driver, partition, numbered(10, 10 * n))
                    await until(lambda: len(seen) == 33)
                    await anyio.sleep(0.05)
                    tasks_of_b.cancel_scope.cancel()
                    tasks.cancel_scope.cancel()
    assert sorted(seen) == sorted([*numbered(30), b"1-0", b"1-1", b"1-2"])


async def test_callbacks_name_only_what_moves_and_on_lost_what_an_expired_session_had(
    odradek_chroot: str, odradek_zookeeper: ZooKeeperServer
) -> None:
    calls: list[tuple[str, list[TopicPartition]]] = []

    async def on_assigned(partitions: list[TopicPartition]) -> None:
        calls.append(("assigned", partitions))

    async def on_revoked(partitions: list[TopicPartition]) -> None:
        calls.append(("revoked", partitions))

    async def on_lost(partitions: list[TopicPartition]) -> None:
        calls.append(("lost", partitions))

    callbacks = {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}
    with brokers(odradek_chroot, 1):
        async with cluster(odradek_chroot) as driver:
            partitions = await create(driver, "t")
        async with consumer(odradek_chroot, "t", consumer_id="a", **callbacks) as a:
            async with consumer(odradek_chroot, "t", consumer_id="b") as b:
                await until(lambda: b.assignment)
            await until(lambda: len(a.assignment) == 3)
            ids = f"/{odradek_chroot.split('/', 1)[1]}/consumers/g/ids/g_a"
            odradek_zookeeper.expire(odradek_zookeeper.tree(ids)[ids].owner)
            await until(lambda: len(calls) == 5)
    everything, moved = ("assigned", partitions), partitions[2:]
    assert calls == [
        everything,
        ("revoked", moved),
        ("assigned", moved),
        ("lost", partitions),
        everything,
        ("revoked", partitions),
    ]


async def test_inside_a_wrapper_a_second_each_continues_at_the_record_that_failed(odradek_chroot: str) -> None:
    """All records of a compressed message but its last resume at its start, and are left out again one by one."""
    seen: list[bytes] = []
    failing = [b"000004"]

    async def handle(record: Record) -> None:
        if payload(record.value) in failing:
            failing.clear()
            raise ValueError("once")
        seen.append(payload(record.value))

    with brokers(odradek_chroot, 1):
        async with cluster(odradek_chroot) as driver:
            (first, *_) = await create(driver, "t")
            await write(driver, first, numbered(10), "gzip")
        async with consumer(odradek_chroot, "t", commit_every=None) as c, anyio.create_task_group() as tasks:
            with pytest.raises(ValueError, match="once"):
                await c.each(handle)
            tasks.start_soon(c.each, handle)
            await until(lambda: len(seen) >= 13)
            tasks.cancel_scope.cancel()
    assert sorted(seen) == sorted([*numbered(10), b"1-0", b"1-1", b"1-2"])


@pytest.mark.parametrize(("start", "expected"), [(EARLIEST, b"0"), (LATEST, b"39")])
async def test_case_42_an_offset_beyond_the_log_is_reset_and_the_node_rewritten_at_once(
    odradek_chroot: str, odradek_zookeeper: ZooKeeperServer, start: Any, expected: bytes
) -> None:
    chroot = "/" + odradek_chroot.split("/", 1)[1]
    with brokers(odradek_chroot, 1):
        async with cluster(odradek_chroot) as driver:
            (first, *_) = await create(driver, "t")
            await write(driver, first, [b"x" * 16])
            odradek_zookeeper.create(chroot + "/consumers/g/offsets/t/1-0", b"9999")
            async with consumer(odradek_chroot, "t", start=start, commit_every=None):
                await until(
                    lambda: nodes(odradek_zookeeper, odradek_chroot, "/consumers/g/offsets/t")["1-0"] == expected
                )


async def test_case_43_after_an_expired_session_everything_since_the_last_commit_comes_again(
    odradek_chroot: str, odradek_zookeeper: ZooKeeperServer
) -> None:
    with brokers(odradek_chroot, 1):
        async with cluster(odradek_chroot) as driver:
            (first, *_) = await create(driver, "t")
            await write(driver, first, numbered(10))
            async with (
                cluster(odradek_chroot) as own,
                Consumer(own, "t", group="g", consumer_id="me", commit_every=None, tuning=TUNING) as c,
            ):
                before = await take(c, 7)
                await c.commit()  # all but the one in hand
                committed = nodes(odradek_zookeeper, odradek_chroot, "/consumers/g/offsets/t")
                await take(c, 6)
                ids = f"/{odradek_chroot.split('/', 1)[1]}/consumers/g/ids/g_me"
                odradek_zookeeper.expire(odradek_zookeeper.tree(ids)[ids].owner)
                await until(lambda: not c.assignment)
                await until(lambda: len(c.assignment) == 3)
                assert nodes(odradek_zookeeper, odradek_chroot, "/consumers/g/ids") == {"g_me": b'{ "t": 1 }'}
                assert nodes(odradek_zookeeper, odradek_chroot, "/consumers/g/offsets/t") == committed
                everything = {*numbered(10), b"1-0", b"1-1", b"1-2"}
                assert set(await take(c, 7)) == everything - set(before[:6])


async def test_case_44_a_whitelist_is_registered_normalised_and_picks_up_new_topics(
    odradek_chroot: str, odradek_zookeeper: ZooKeeperServer
) -> None:
    with brokers(odradek_chroot, 1):
        async with cluster(odradek_chroot) as driver:
            await create(driver, "big")
            await create(driver, "seg")
            await create(driver, "other")
            async with consumer(odradek_chroot, include="big.*, seg", consumer_id="me") as c:
                assert nodes(odradek_zookeeper, odradek_chroot, "/consumers/g/ids") == {"g_me": b"*1*big.*|seg"}
                assert {p.topic for p in c.assignment} == {"big", "seg"}
                assert sorted(await take(c, 6)) == sorted([b"1-0", b"1-1", b"1-2"] * 2)
                await create(driver, "bigger")
                assert sorted(await take(c, 3)) == [b"1-0", b"1-1", b"1-2"]
                assert {p.topic for p in c.assignment} == {"big", "seg", "bigger"}


async def test_a_group_that_cannot_claim_its_partitions_raises_at_entry(
    odradek_chroot: str, odradek_zookeeper: ZooKeeperServer
) -> None:
    chroot = "/" + odradek_chroot.split("/", 1)[1]
    with brokers(odradek_chroot, 1):
        async with cluster(odradek_chroot) as driver:
            await create(driver, "t")
            odradek_zookeeper.create(chroot + "/consumers/g/owners/t/1-1", b"stranger-0")
            with pytest.raises(GroupError, match="no partitions within 3 s: t/1-1 belongs to stranger-0"):
                async with consumer(odradek_chroot, "t", join_within=3):
                    pass
            assert nodes(odradek_zookeeper, odradek_chroot, "/consumers/g/ids") == {}


async def test_joining_waits_for_the_session_of_a_dead_member(
    odradek_chroot: str, odradek_zookeeper: ZooKeeperServer
) -> None:
    """Longer than four attempts take: until `join_within`."""
    dead_owner = {"1-1": b"dead-0"}

    def owners() -> dict[str, bytes | None]:
        return nodes(odradek_zookeeper, odradek_chroot, "/consumers/g/owners/t")

    with brokers(odradek_chroot, 1):
        async with cluster(odradek_chroot) as driver:
            await create(driver, "t")
            async with ZooKeeper(odradek_chroot, connect_timeout=10) as dead:
                await dead.create("/consumers/g/owners/t/1-1", b"dead-0", ephemeral=True, parents=True)
                async with anyio.create_task_group() as tasks:

                    async def join() -> None:
                        async with consumer(odradek_chroot, "t", consumer_id="a") as c:
                            assert len(c.assignment) == 3

                    tasks.start_soon(join)
                    await until(lambda: owners() == {**dead_owner, "1-0": b"g_a-0", "1-2": b"g_a-0"})
                    await until(lambda: owners() == dead_owner)  # given up with the last attempt
                    await dead.aclose()


async def test_after_an_expiry_in_the_middle_of_a_revoke_nothing_is_committed(
    odradek_chroot: str, odradek_zookeeper: ZooKeeperServer
) -> None:
    """The old member's position must not replace that of the new owner, whichever session it has by then."""

    def stored() -> bytes | None:
        return nodes(odradek_zookeeper, odradek_chroot, "/consumers/g/offsets/t").get("1-2")

    with brokers(odradek_chroot, 1):
        async with cluster(odradek_chroot) as driver:
            *_, last = await create(driver, "t")
            await write(driver, last, numbered(10))
            async with (
                cluster(odradek_chroot) as own,
                Consumer(own, "t", group="g", consumer_id="a", revoke_within=60, tuning=TUNING) as a,
            ):
                held = None
                with anyio.fail_after(30):
                    async for batch in a.batches(max_records=5):
                        if batch.partition == last:
                            held = batch
                            break
                assert held is not None
                async with anyio.create_task_group() as tasks:

                    async def drain() -> None:
                        async with consumer(odradek_chroot, "t", consumer_id="b") as b:
                            async for batch in b.batches():
                                batch.done()

                    tasks.start_soon(drain)
                    await until(lambda: last not in a.partitions)
                    ids = f"/{odradek_chroot.split('/', 1)[1]}/consumers/g/ids/g_a"
                    odradek_zookeeper.expire(odradek_zookeeper.tree(ids)[ids].owner)
                    end = await driver.broker(driver.metadata.table.brokers[1], purpose="control").positions(
                        last, LATEST
                    )
                    await until(lambda: stored() == str(end[0]).encode())
                    await until(lambda: last not in a.assignment)
                    assert not held.done()
                    await until(lambda: len(a.assignment) == 2)
                    await a.commit()
                    assert stored() == str(end[0]).encode()
                    tasks.cancel_scope.cancel()


async def test_two_consumers_and_a_late_third_lose_nothing(odradek_chroot: str) -> None:
    """Three members, joining and leaving while records are written: every record at least once, few twice."""
    seen: Counter[bytes] = Counter()
    total = 6 * 200
    with brokers(odradek_chroot, 1, 2):
        async with cluster(odradek_chroot) as driver:
            partitions = await create(driver, "t", (1, 2))
            duplicates = 0

            async def member(name: str, leave_after: int | None = None) -> None:
                async with consumer(odradek_chroot, "t", consumer_id=name) as c:
                    count = 0
                    async for batch in c.batches(max_records=20):
                        await anyio.sleep(0.001)
                        seen.update(payloads(batch.values))
                        batch.done()
                        count += len(batch)
                        if leave_after is not None and count >= leave_after:
                            return

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(member, "a")
                tasks.start_soon(member, "b", 150)
                for round_ in range(10):
                    for n, partition in enumerate(partitions):
                        await write(driver, partition, numbered(20, 200 * n + 20 * round_))
                    if round_ == 3:
                        tasks.start_soon(member, "c")
                await until(lambda: len(seen) == total + 6)
                duplicates = sum(seen.values()) - len(seen)
                tasks.cancel_scope.cancel()
    assert set(numbered(total)) <= set(seen)
    assert duplicates <= 20 * 6, "only what was in hand when a session ended"


async def test_pain_consumer_survives_broker_restart(odradek_chroot: str) -> None:
    with brokers(odradek_chroot, 1) as (broker,):
        async with cluster(odradek_chroot) as driver:
            (first, *_) = await create(driver, "t")
            async with consumer(odradek_chroot, "t") as c:
                assert len(await take(c, 3)) == 3
                await anyio.to_thread.run_sync(broker.stop)
                await anyio.to_thread.run_sync(broker.start)
                await write(driver, first, numbered(5))
                assert await take(c, 5) == numbered(5)


async def test_each_by_partition_over_a_rebalance_keeps_order_and_loses_nothing(odradek_chroot: str) -> None:
    """Also the values of one partition come in order, as often as they come."""
    seen: dict[TopicPartition, list[int]] = {}
    with brokers(odradek_chroot, 1):
        async with cluster(odradek_chroot) as driver:
            partitions = await create(driver, "t")
            for partition in partitions:
                await write(driver, partition, numbered(100))

            async def handle(record: Any) -> None:
                await anyio.sleep(0.001)
                if b"-" not in record.value:
                    seen.setdefault(record.partition, []).append(int(record.value))

            async def member(name: str) -> None:
                async with consumer(odradek_chroot, "t", consumer_id=name) as c:
                    await c.each(handle, parallel=10)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(member, "a")
                await until(lambda: sum(map(len, seen.values())) > 30)
                tasks.start_soon(member, "b")
                await until(lambda: sum(len(set(numbers)) for numbers in seen.values()) == 300)
                tasks.cancel_scope.cancel()
    assert all(numbers == sorted(numbers) and set(numbers) == set(range(100)) for numbers in seen.values())
