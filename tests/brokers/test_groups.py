"""Groups of consumers on real brokers of each generation of the protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import odradek as od
from odradek.mirror.groups import stored_in_zookeeper
from odradek.testing import KafkaBroker

from .conftest import PARTITIONS
from .table import Ran
from .test_data import connect, has

pytestmark = [pytest.mark.anyio, pytest.mark.brokers, pytest.mark.timeout(300)]

COUNT = 300
WITHIN_S = 90.0


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - of members whose events are not for tests
        await anyio.sleep(0.02)


async def consume(consumer: od.Consumer, records: Counter[bytes | None], count: int) -> None:
    """Add what this member gets, until all members together have so many."""
    async for batch in consumer.batches():
        records.update(record.value for record in batch)
        batch.done()
        if records.total() >= count:
            return


@pytest.mark.parametrize(("protocol", "since"), [("classic", (0, 9)), ("consumer", (4,))])
async def test_members_share_a_topic_commit_and_the_next_member_continues(
    kafka: KafkaBroker, topic: str, protocol: str, since: tuple[int, ...], ran: Ran
) -> None:
    kafka.create_topic(topic, PARTITIONS)
    options: dict[str, Any] = {"group": topic, "group_protocol": protocol, "join_within": WITHIN_S}
    if not has(kafka, since):
        async with connect(kafka) as cluster:
            with pytest.raises(od.Unsupported, match=r"Kafka (0\.9|4\.0)"):
                cluster.consumer(topic, **options)
        return
    values = [b"%d" % n for n in range(COUNT)]
    async with connect(kafka) as cluster, cluster.producer() as out:
        await out.send_many(topic, [od.ProducerRecord(value, key=value) for value in values])
        records: Counter[bytes | None] = Counter()
        with anyio.fail_after(WITHIN_S):
            async with (
                cluster.consumer(topic, **options) as one,
                cluster.consumer(topic, **options) as two,
            ):
                await until(lambda: {len(one.assignment), len(two.assignment)} == {1, 2})
                assert not one.assignment.keys() & two.assignment.keys()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(consume, one, records, COUNT)
                    tasks.start_soon(consume, two, records, COUNT)
                    await until(lambda: records.total() >= COUNT)
                    tasks.cancel_scope.cancel()
            assert records == Counter(values)
            await out.send(topic, b"later")
            async with cluster.consumer(topic, **options) as next_member:
                await consume(next_member, records, COUNT + 1)
        assert records == Counter([*values, b"later"])
    ran("groups", protocol)


@pytest.mark.parametrize(
    ("options", "since"),
    [
        ({"assignors": ["range"]}, (0, 9)),
        ({"assignors": ["cooperative-sticky"]}, (0, 9)),
        ({"group_protocol": "consumer"}, (4,)),
    ],
    ids=["eager", "cooperative", "consumer"],
)
async def test_callbacks_name_what_each_protocol_moves(
    kafka: KafkaBroker, topic: str, options: dict[str, Any], since: tuple[int, ...]
) -> None:
    kafka.create_topic(topic, PARTITIONS)
    if not has(kafka, since):
        return
    calls: list[tuple[str, set[od.TopicPartition]]] = []

    async def on_assigned(partitions: list[od.TopicPartition]) -> None:
        calls.append(("assigned", set(partitions)))

    async def on_revoked(partitions: list[od.TopicPartition]) -> None:
        calls.append(("revoked", set(partitions)))

    group = {"group": topic, "join_within": WITHIN_S, "callback_within": 2, **options}
    async with connect(kafka) as cluster:
        everything = set(await cluster.partitions(topic))
        with anyio.fail_after(WITHIN_S):
            async with cluster.consumer(topic, on_assigned=on_assigned, on_revoked=on_revoked, **group) as one:
                await until(lambda: calls)  # a coordinator of KIP-848 may see a new topic a moment after its leader
                assert calls == [("assigned", everything)]
                async with cluster.consumer(topic, **group) as two:
                    await until(lambda: two.assignment and one.assignment.keys() | two.assignment.keys() == everything)
                    kept, moved = set(one.assignment), set(two.assignment)
                await until(lambda: set(one.partitions) == everything)
            moves_all = options.get("assignors") == ["range"]
            joined = [("revoked", everything), ("assigned", kept)] if moves_all else [("revoked", moved)]
            back = [("revoked", kept), ("assigned", everything)] if moves_all else [("assigned", moved)]
            assert calls == [("assigned", everything), *joined, *back, ("revoked", everything)]


@pytest.mark.parametrize("case", ["other topics", "more partitions", "more partitions later"])
async def test_a_static_member_that_comes_back_gets_what_its_group_lacks(
    kafka: KafkaBroker, topic: str, case: str
) -> None:
    kafka.create_topic(topic, 2)
    kafka.create_topic(f"{topic}-other", 2)
    options: dict[str, Any] = {"group": topic, "group_protocol": "classic", "join_within": WITHIN_S}

    async def grow() -> None:
        (await cluster.admin.add_partitions({topic: 3})).check()

    async with connect(kafka) as cluster:
        if not has(kafka, (2, 3)):
            with pytest.raises(od.Unsupported, match=r"Kafka (0\.9|2\.3)"):
                cluster.consumer(topic, consumer_id="one", **options)
            return
        wanted = f"{topic}-other" if case == "other topics" else topic
        with anyio.fail_after(WITHIN_S):
            async with cluster.consumer(topic, consumer_id="one", **options) as one:
                await until(lambda: len(one.assignment) == 2)  # it leads the group
            if case == "more partitions":
                await grow()
            async with cluster.consumer(wanted, consumer_id="one", **options) as again:
                if case == "more partitions later":
                    await until(lambda: len(again.assignment) == 2)
                    await grow()
                    await cluster.driver.metadata.refresh()
                count = 2 if case == "other topics" else 3
                await until(lambda: again.assignment.keys() == {od.TopicPartition(wanted, n) for n in range(count)})


@pytest.mark.parametrize(("protocol", "since"), [("classic", (0, 9)), ("consumer", (4,))])
async def test_chosen_positions_are_stored_with_their_texts(
    kafka: KafkaBroker, topic: str, protocol: Any, since: tuple[int, ...]
) -> None:
    kafka.create_topic(topic, PARTITIONS)
    if not has(kafka, since):
        return
    async with connect(kafka) as cluster, cluster.producer() as out:
        one, two, three = [od.TopicPartition(topic, number) for number in range(PARTITIONS)]
        for partition in (one, two, three):
            for _ in range(3):
                await out.send(topic, b"v", partition=partition)
        options: dict[str, Any] = {"group": topic, "group_protocol": protocol, "join_within": WITHIN_S}
        with anyio.fail_after(WITHIN_S):
            async with cluster.consumer(topic, commit_metadata="usual", **options) as consumer:
                await until(lambda: len(consumer.assignment) == PARTITIONS)
                await consumer.commit({one: (2, "h\u00e4nd"), two: 1})
                assert await consumer.committed() == {one: (2, "h\u00e4nd"), two: (1, "usual"), three: None}
            async with cluster.consumer(topic, **options) as consumer:
                await until(lambda: consumer.positions() == {one: 2, two: 1, three: 0})


@pytest.mark.parametrize(("protocol", "since"), [("classic", (0, 9)), ("consumer", (4,))])
async def test_a_reader_commits_for_a_group_unless_that_has_members(
    kafka: KafkaBroker, topic: str, protocol: Any, since: tuple[int, ...]
) -> None:
    kafka.create_topic(topic, 1)
    partition = od.TopicPartition(topic, 0)
    async with connect(kafka) as cluster, cluster.producer() as out:
        for _ in range(5):
            await out.send(topic, b"v", partition=partition)
        with anyio.fail_after(WITHIN_S):
            if not has(kafka, (0, 8, 1)):
                with pytest.raises(od.Unsupported, match=r"Kafka 0\.8\.1"):
                    async with cluster.reader(topic, group=topic):
                        pass
                return
            async with cluster.reader(topic, group=topic) as reader:
                await anext(reader)
                assert await reader.commit() == {partition: 1}
                if has(kafka, (0, 8, 2)):
                    await reader.commit({partition: (2, "text")})
                    assert await reader.committed() == {partition: (2, "text")}
                else:
                    with pytest.raises(od.Unsupported, match=r"Kafka 0\.8\.2"):
                        await reader.commit({partition: (2, "text")})
                    await reader.commit({partition: 2})
            async with cluster.reader(topic, group=topic) as reader:
                assert reader.positions() == {partition: 2}
                if not has(kafka, since):
                    return
                await anext(reader)
                async with cluster.consumer(
                    topic, group=topic, group_protocol=protocol, join_within=WITHIN_S
                ) as member:
                    await until(lambda: member.assignment)
                    with pytest.raises(od.BrokerError, match="UNKNOWN_MEMBER_ID"):
                        await reader.commit()
                    assert await member.committed() == {partition: (2, "text")}
                assert await reader.commit() == {partition: 3}


async def test_positions_are_stored_for_a_group_from_0_8_1_on(kafka: KafkaBroker, topic: str, ran: Ran) -> None:
    kafka.create_topic(topic, PARTITIONS)
    async with connect(kafka) as cluster:
        offsets, partitions = cluster.driver.offsets(topic), await cluster.partitions(topic)
        with anyio.fail_after(WITHIN_S):
            if not has(kafka, (0, 8, 1)):
                with pytest.raises(od.Unsupported, match=r"Kafka 0\.8\.1"):
                    await offsets.fetch(partitions)
                return
            assert set((await offsets.fetch(partitions)).values()) == {None}
            await offsets.commit({partitions[1]: od.Position(2)})
            assert await offsets.fetch(partitions[:2]) == {partitions[0]: None, partitions[1]: 2}
    ran("groups", "stored positions")


async def test_positions_that_scala_consumers_store_in_zookeeper_are_read_by_a_mirror(
    kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic, 2)
    partitions = [od.TopicPartition(topic, number) for number in range(2)]
    async with connect(kafka) as cluster:
        if not kafka.zookeeper_connect or not has(kafka, (0, 8, 1)):
            with pytest.raises(od.OdradekError):
                await stored_in_zookeeper(cluster, [topic], partitions)
            return
        chroot = "/" + kafka.zookeeper_connect.partition("/")[2]
        kafka.zookeeper.create(f"{chroot}/consumers/{topic}/offsets/{topic}/1", b"42")
        stored = await stored_in_zookeeper(cluster, [topic, "none"], partitions)
        assert stored == {topic: {partitions[1]: 42}, "none": {}}
