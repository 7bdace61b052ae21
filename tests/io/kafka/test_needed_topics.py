"""Topics that do not exist: those that are needed are looked for until they do, others are forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import odradek as od
from odradek.core.interfaces import Subscription
from odradek.io.kafka import metadata
from odradek.io.kafka.driver import KafkaDriver
from odradek.io.kafka.group_topics import GroupTopics
from odradek.wire.kafka.messages.metadata import MetadataRequest

from .admin_peer import TOPIC, Cluster, opened
from .answers import topic_response

pytestmark = pytest.mark.anyio

NEW = topic_response("new", -1)  # without a leader, so that its records wait


@pytest.fixture(autouse=True)
def _forgotten_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "FORGOTTEN_S", 0.1)


async def until(true: Callable[[], object]) -> None:
    with anyio.fail_after(10):
        while not true():  # noqa: ASYNC110 - of a client whose events are not for tests
            await anyio.sleep(0.01)


def reads(peer: Cluster) -> list[MetadataRequest]:
    return [each for each, _ in peer.requests if isinstance(each, MetadataRequest)]


def named(request: MetadataRequest) -> Sequence[str | None]:
    return [topic.name for topic in request.topics or ()]


@asynccontextmanager
async def purged_producer(driver: KafkaDriver) -> AsyncIterator[od.Producer]:
    """A producer whose records are purged at the end."""
    with pytest.raises(od.Undelivered):
        async with od.Cluster(driver, od.Tuning()).producer(acks=1) as producer:
            yield producer
            producer.purge()


async def test_a_reader_looks_for_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    async with opened(peer, monkeypatch) as driver, od.Cluster(driver, od.Tuning()).reader("new"):
        await anyio.sleep(0.5)
        peer.topics = (TOPIC, NEW)
        await until(lambda: driver.metadata.table.partitions("new"))


async def test_what_was_read_before_the_topic_was_deleted_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    peer.topics = (TOPIC, NEW)
    start: Any = {od.TopicPartition("new", 0): od.Position(0)}
    async with opened(peer, monkeypatch) as driver, od.Cluster(driver, od.Tuning()).reader(start):
        peer.topics = (TOPIC,)
        await driver.metadata.refresh()
        await anyio.sleep(0.5)
        peer.topics = (TOPIC, NEW)
        await until(lambda: driver.metadata.table.partitions("new"))


async def test_a_topic_that_is_deleted_is_looked_for_at_once_although_another_one_has_been_missing_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = Cluster()
    peer.topics = (TOPIC, NEW)
    start: Any = {od.TopicPartition("new", 0): od.Position(0)}
    async with opened(peer, monkeypatch) as driver:
        k, table = od.Cluster(driver, od.Tuning()), driver.metadata
        async with k.reader("missing"), k.reader(start):
            table._problem_since -= 1000
            peer.topics = (TOPIC, topic_response("new", 1))
            await table.refresh()
            assert table._due_at() - table.read_at == metadata.MISSING_S
            peer.topics = (TOPIC,)
            await table.refresh()
            assert table._due_at() - table.read_at < 1


async def test_a_producer_looks_for_the_topics_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Cluster()
    async with opened(peer, monkeypatch) as driver, purged_producer(driver) as producer:
        assert producer.try_put("new", b"v")
        await anyio.sleep(0.5)
        peer.topics = (TOPIC, NEW)
        await until(lambda: driver.metadata.table.partitions("new"))


async def test_a_producer_without_records_of_a_deleted_topic_forgets_it_and_the_next_record_creates_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = Cluster()
    peer.topics = (TOPIC, NEW)
    async with opened(peer, monkeypatch) as driver, purged_producer(driver) as producer:
        assert producer.try_put("new", b"v")
        await until(lambda: driver.metadata.table.partitions("new"))
        producer.purge()
        peer.topics = (TOPIC,)
        await driver.metadata.refresh()
        await until(lambda: "new" not in driver.metadata._topics)
        before = len(reads(peer))
        await anyio.sleep(0.2)
        assert len(reads(peer)) == before
        assert producer.try_put("new", b"v")
        await until(lambda: len(reads(peer)) > before)
        assert any(read.allow_auto_topic_creation and named(read) == ["new"] for read in reads(peer)[before:])


async def test_a_member_of_a_group_looks_for_its_topics_and_the_leader_for_those_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = Cluster()
    async with opened(peer, monkeypatch) as driver, anyio.create_task_group() as tasks:
        topics = GroupTopics(Subscription("g", {"mine": 1}), driver.metadata, driver.ask)
        await topics.find(topics.selected())
        await topics.read(["others"])
        tasks.start_soon(topics.wait_for_newer, driver.metadata.table.version)
        await anyio.sleep(0.5)
        peer.topics = (TOPIC, topic_response("mine", 1), topic_response("others", 1))
        await until(lambda: driver.metadata.table.topics >= {"mine", "others"})
