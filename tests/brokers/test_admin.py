"""Administration, on a real broker of each release."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import anyio
import anyio.to_thread
import pytest

import odradek as od
from odradek.core.admin import ConfigSource, PositionChange
from odradek.errors import BrokerError, GroupError
from odradek.testing import KafkaBroker
from odradek.types import EARLIEST, LATEST, Position

from .table import Ran

pytestmark = [pytest.mark.anyio, pytest.mark.brokers, pytest.mark.timeout(300)]

SINCE = {
    "create": (0, 10, 1),
    "delete": (0, 10, 1),
    "validate": (0, 10, 2),
    "brokers choose": (2, 4),
    "configs": (0, 11),
    "incremental": (2, 3),
    "records": (0, 11),
    "partitions": (1, 0),
    "positions": (0, 8, 1),
    "groups": (0, 9),
    "delete group": (1, 1),
    "delete position": (2, 4),
}


@dataclass
class Admin:
    """A connected cluster, and what its release can do."""

    k: od.Cluster
    release: tuple[int, ...]
    broker: KafkaBroker

    def has(self, feature: str) -> bool:
        return self.release >= SINCE[feature]

    async def topic(self, name: str, partitions: int = 2) -> str:
        await anyio.to_thread.run_sync(self.broker.create_topic, name, partitions)
        return name


@pytest.fixture
async def admin(kafka: KafkaBroker) -> AsyncIterator[Admin]:
    async with od.connect(f"kafka://{kafka.bootstrap}") as k:
        yield Admin(k, tuple(int(n) for n in kafka.version.split(".")), kafka)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for brokers, which hear of changes a moment after they were accepted."""
    with anyio.fail_after(60):
        while not await condition():  # noqa: ASYNC110 - of brokers whose events are not for tests
            await anyio.sleep(0.05)


async def topic_is_gone(admin: Admin, topic: str) -> bool:
    return topic in (await admin.k.admin.describe_topics(topic)).failed


async def has_cleaner_threads(admin: Admin, value: str) -> bool:
    number = admin.broker.broker_id
    return (await admin.k.admin.describe_broker_configs(number)).check()[number]["log.cleaner.threads"].value == value


async def has_cleaner_threads_of_all(admin: Admin, value: str) -> bool:
    described = (await admin.k.admin.describe_broker_configs([None, admin.broker.broker_id])).check()
    entries = [each.get("log.cleaner.threads") for each in described.values()]
    return [(each.value, each.source) for each in entries if each] == [(value, ConfigSource.ALL_BROKERS)] * 2


async def test_a_topic_is_created_described_and_deleted(admin: Admin, topic: str, ran: Ran) -> None:
    if not admin.has("create"):
        with pytest.raises(od.Unsupported, match=re.escape("auto.create.topics.enable")):
            await admin.k.admin.create_topics(topic, partitions=1, replicas=1)
        return
    created = await admin.k.admin.create_topics(
        [topic, "not a name"], partitions=3, replicas=1, config={"retention.ms": "3600000"}
    )
    assert created.done.keys() == {topic}
    assert isinstance(error := created.failed["not a name"], BrokerError) and error.name == "INVALID_TOPIC_EXCEPTION"
    described = (await admin.k.admin.describe_topics([topic, f"{topic}-no"])).done
    assert [each.partition for each in described[topic].partitions] == [od.TopicPartition(topic, n) for n in range(3)]
    assert {each.leader for each in described[topic].partitions} == {admin.broker.broker_id}
    again = (await admin.k.admin.create_topics(topic, partitions=1, replicas=1)).failed[topic]
    assert isinstance(again, BrokerError) and again.name == "TOPIC_ALREADY_EXISTS"
    with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
        (await admin.k.admin.create_topics(topic, partitions=1, replicas=1)).check()
    deleted = await admin.k.admin.delete_topics([topic, f"{topic}-no"])
    assert deleted.done.keys() == {topic} and deleted.failed.keys() == {f"{topic}-no"}
    await until(lambda: topic_is_gone(admin, topic))
    ran("administration", "topics")


async def test_describing_an_unknown_topic_does_not_create_it(admin: Admin, topic: str) -> None:
    await admin.topic(f"{topic}-another")  # 0.8.0 names no broker before there is a partition
    for _ in range(2):
        error = (await admin.k.admin.describe_topics(topic)).failed[topic]
        assert isinstance(error, BrokerError) and error.name == "UNKNOWN_TOPIC_OR_PARTITION"
    assert topic not in await admin.k.topics()


async def test_creation_may_be_validated_only(admin: Admin, topic: str) -> None:
    if not admin.has("validate"):
        with pytest.raises(od.Unsupported, match=re.escape("0.10")):
            await admin.k.admin.create_topics(topic, partitions=1, replicas=1, validate_only=True)
        return
    results = await admin.k.admin.create_topics(topic, partitions=1, replicas=1, validate_only=True)
    assert results.done.keys() == {topic} and (await admin.k.admin.describe_topics(topic)).failed
    refused = await admin.k.admin.create_topics(topic, partitions=1, replicas=99, validate_only=True)
    assert isinstance(error := refused.failed[topic], BrokerError) and error.name == "INVALID_REPLICATION_FACTOR"


async def test_brokers_may_choose_the_number_of_partitions(admin: Admin, topic: str) -> None:
    if not admin.has("brokers choose"):
        with pytest.raises(od.Unsupported):
            await admin.k.admin.create_topics(topic)
        return
    assert (await admin.k.admin.create_topics(topic)).done[topic].partitions == 3  # as this broker is configured


async def test_partitions_are_added(admin: Admin, topic: str, ran: Ran) -> None:
    await admin.topic(topic)
    if not admin.has("partitions"):
        with pytest.raises(od.Unsupported):
            await admin.k.admin.add_partitions({topic: 4})
        return
    (await admin.k.admin.add_partitions({topic: 4}, validate_only=True)).check()
    assert len((await admin.k.admin.describe_topics(topic)).done[topic].partitions) == 2
    (await admin.k.admin.add_partitions({topic: 4})).check()
    assert len((await admin.k.admin.describe_topics(topic)).done[topic].partitions) == 4
    assert isinstance(error := (await admin.k.admin.add_partitions({topic: 1})).failed[topic], BrokerError)
    assert error.name == "INVALID_PARTITIONS"
    ran("administration", "partitions")


async def test_one_entry_of_a_configuration_is_altered_and_the_others_stay(admin: Admin, topic: str, ran: Ran) -> None:
    await admin.topic(topic)
    if not admin.has("configs"):
        with pytest.raises(od.Unsupported, match=re.escape("0.11")):
            await admin.k.admin.alter_topic_configs({topic: {"retention.ms": "60000"}})
        return
    (await admin.k.admin.alter_topic_configs({topic: {"retention.ms": "60000", "max.message.bytes": "5000"}})).check()
    (await admin.k.admin.alter_topic_configs({topic: {"retention.ms": "70000"}})).check()
    (await admin.k.admin.alter_topic_configs({topic: {"retention.ms": "1"}}, validate_only=True)).check()
    await until(lambda: has_entries(admin, topic, {"retention.ms": "70000", "max.message.bytes": "5000"}))
    (await admin.k.admin.alter_topic_configs({topic: {"retention.ms": None}})).check()
    await until(lambda: has_entries(admin, topic, {"max.message.bytes": "5000"}))
    results = await admin.k.admin.alter_topic_configs({topic: {"retention.ms": "never"}})
    assert isinstance(results.failed[topic], BrokerError)
    await until(lambda: has_entries(admin, topic, {"max.message.bytes": "5000"}))
    ran("administration", "configs of topics")


async def has_entries(admin: Admin, topic: str, expected: dict[str, str]) -> bool:
    entries = (await admin.k.admin.describe_topic_configs(topic)).check()[topic]
    return {name: entry.value for name, entry in entries.items() if entry.source is ConfigSource.TOPIC} == expected


async def test_the_configuration_of_a_broker_is_described_and_altered(admin: Admin, ran: Ran) -> None:
    number = admin.broker.broker_id
    if not admin.has("configs"):
        with pytest.raises(od.Unsupported):
            await admin.k.admin.describe_broker_configs(number)
        return
    described = await admin.k.admin.describe_broker_configs([number, 77])
    assert described.done[number]["log.dirs"].value and described.failed.keys() == {77}
    if not admin.has("incremental"):
        with pytest.raises(od.Unsupported, match=re.escape("2.3")):
            await admin.k.admin.alter_broker_configs({number: {"log.cleaner.threads": "2"}})
        return
    (await admin.k.admin.alter_broker_configs({number: {"log.cleaner.threads": "2"}})).check()
    await until(lambda: has_cleaner_threads(admin, "2"))
    (await admin.k.admin.alter_broker_configs({number: {"log.cleaner.threads": None}})).check()
    (await admin.k.admin.alter_broker_configs({None: {"log.cleaner.threads": "2"}})).check()
    await until(lambda: has_cleaner_threads_of_all(admin, "2"))
    (await admin.k.admin.alter_broker_configs({None: {"log.cleaner.threads": None}})).check()
    ran("administration", "configs of brokers")


async def test_old_records_are_deleted(admin: Admin, topic: str, ran: Ran) -> None:
    await admin.topic(topic, 1)
    partition = od.TopicPartition(topic, 0)
    async with admin.k.producer() as out:
        await out.send_many(topic, [b"%d" % n for n in range(10)])
    if not admin.has("records"):
        with pytest.raises(od.Unsupported, match="by age"):
            await admin.k.admin.delete_records({partition: LATEST})
        return
    assert (await admin.k.admin.delete_records({partition: 4})).check() == {partition: 4}
    assert await admin.k.positions(topic, EARLIEST) == {partition: 4}
    results = await admin.k.admin.delete_records({partition: LATEST, od.TopicPartition(topic, 7): LATEST})
    assert results.done == {partition: 10} and results.failed.keys() == {od.TopicPartition(topic, 7)}
    ran("administration", "records")


async def test_the_cluster_is_described(admin: Admin, topic: str) -> None:
    await admin.topic(topic)  # 0.8.0 only lists brokers that have a partition
    cluster = await admin.k.admin.describe_cluster()
    assert [broker.id for broker in cluster.brokers] == [admin.broker.broker_id]
    assert (cluster.cluster_id is not None) == (admin.release >= (0, 10, 1))


async def test_a_group_is_listed_described_reset_and_deleted(admin: Admin, topic: str, ran: Ran) -> None:
    if not admin.has("groups"):
        for call in (admin.k.admin.list_groups(), admin.k.admin.describe_groups(topic)):
            with pytest.raises(od.Unsupported, match=re.escape("0.9")):
                await call
        return
    await admin.topic(topic)
    first, second = od.TopicPartition(topic, 0), od.TopicPartition(topic, 1)
    async with admin.k.producer() as out:
        for partition in (first, second):
            await out.send_many(topic, [b"%d" % n for n in range(10)], partition=partition)
    async with admin.k.consumer(topic, group=topic, start=EARLIEST) as c:
        async for batch in c.batches():
            batch.done()
            if not any((await c.lag()).values()):
                break
        listed = {group.name: group for group in await admin.k.admin.list_groups()}
        assert listed[topic].protocol_type == "consumer"
        group = (await admin.k.admin.describe_groups(topic)).check()[topic]
        assert group.state == "Stable" and group.members[0].partitions == (first, second)
        with pytest.raises(GroupError, match="has 1 members"):
            await admin.k.admin.reset_positions(topic, {first: 0})
        if admin.has("delete group"):
            error = (await admin.k.admin.delete_groups(topic)).failed[topic]
            assert isinstance(error, BrokerError) and error.name == "NON_EMPTY_GROUP"
    assert await admin.k.admin.group_positions(topic) == {first: 10, second: 10}
    change = {first: PositionChange(Position(10), Position(0))}
    assert (await admin.k.admin.reset_positions(topic, {first: EARLIEST}, dry_run=True)).check() == change
    assert await admin.k.admin.group_positions(topic) == {first: 10, second: 10}
    assert (await admin.k.admin.reset_positions(topic, {first: EARLIEST})).check() == change
    assert await admin.k.admin.group_positions(topic) == {first: 0, second: 10}
    if admin.has("delete position"):
        await admin.k.admin.reset_positions(topic, {second: None})
        assert await admin.k.admin.group_positions(topic) == {first: 0}
    if admin.has("delete group"):
        results = await admin.k.admin.delete_groups([topic, f"{topic}-no"])
        assert results.done.keys() == {topic} and results.failed.keys() == {f"{topic}-no"}
        assert isinstance((await admin.k.admin.describe_groups(topic)).failed[topic], BrokerError)
    ran("administration", "groups")


async def test_positions_are_reset_where_there_are_no_groups_but_positions(admin: Admin, topic: str) -> None:
    await admin.topic(topic, 1)
    partition = od.TopicPartition(topic, 0)
    if not admin.has("positions"):
        with pytest.raises(od.Unsupported, match=re.escape("0.8.1")):
            await admin.k.admin.group_positions(topic)
        return
    assert (await admin.k.admin.reset_positions(topic, {partition: LATEST})).check() == {
        partition: PositionChange(None, Position(0))
    }
    assert await admin.k.admin.group_positions(topic) == {partition: 0}
