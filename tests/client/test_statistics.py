"""Counters of readers, consumers and clusters: what they say after each thing that happens."""

from __future__ import annotations

import anyio
import pytest

from odradek.client.consumer.statistics import ReaderStatistics
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.interfaces import ClusterStatistics
from odradek.errors import ConnectionLost
from odradek.types import EARLIEST, LATEST

from .one_member import consuming, make_cluster, numbered, tp, until
from .reading import reading

pytestmark = pytest.mark.anyio

QUICK = Tuning(backoff=Backoff(first_s=0.0001, max_s=0.001))


async def test_a_reader_counts_what_is_fetched_waits_and_was_delivered() -> None:
    cluster = make_cluster(10, 5)
    async with reading(cluster, read_ahead_bytes=1 << 20) as reader:
        await until(lambda: reader.statistics().buffered == 15)
        before = reader.statistics()
        assert (before.partitions, before.delivered, before.read_ahead_bytes) == (2, 0, 1 << 20)
        assert before.lag == {tp(0): 10, tp(1): 5}
        assert before.buffered_bytes > 15 * 6 and before.fetched_bytes >= 15 * 6 and before.fetches >= 1
        batches = reader.batches(max_records=4)
        await anext(batches)
        after = reader.statistics()
        assert (after.delivered, after.buffered) == (4, 11)
        assert after.buffered_bytes <= before.buffered_bytes and sum(after.lag.values()) == 11
        while reader.statistics().delivered < 15:
            await anext(batches)
        done = reader.statistics()
        assert (done.buffered, done.buffered_bytes, done.lag) == (0, 0, {tp(0): 0, tp(1): 0})
        assert done.fetched_bytes == before.fetched_bytes


async def test_records_that_come_later_are_lag_once_a_response_has_named_them() -> None:
    cluster = make_cluster(3)
    async with reading(cluster) as reader:
        for _ in range(3):
            await anext(reader)
        assert reader.statistics().lag == {tp(): 0}
        reader.pause()
        cluster.append("t", numbered(4), partition=0)
        assert reader.statistics().lag == {tp(): 0}, "nothing was fetched"
        reader.resume()
        await until(lambda: reader.statistics().lag == {tp(): 4})


async def test_a_position_that_is_not_resolved_has_no_lag() -> None:
    cluster = make_cluster(3)
    async with reading(cluster) as reader:
        await anext(reader)
        reader.seek(tp(), EARLIEST)
        assert reader.statistics().lag == {}
        await until(lambda: reader.statistics().lag == {tp(): 3})


async def test_records_that_are_put_back_are_not_delivered() -> None:
    async with reading(make_cluster(10)) as reader:
        for _ in range(3):
            await anext(reader)
        assert reader.statistics().delivered == 10, "the batch counts as a whole"
        reader.pause(tp())
        assert (reader.statistics().delivered, reader.statistics().buffered) == (3, 7)


async def test_a_reader_has_statistics_before_and_after_its_block() -> None:
    cluster = make_cluster(3)
    async with cluster.connect() as k:
        reader = k.reader("t", until=LATEST, read_ahead_bytes=1 << 20)
        assert reader.statistics() == ReaderStatistics(0, 0, 0, 0, 0, 0, 1 << 20, {})
        async with reader:
            assert [record async for record in reader]
    assert reader.statistics().delivered == 3


async def test_a_consumer_counts_assignments_revocations_and_commits() -> None:
    cluster = make_cluster(10, 10)
    async with consuming(cluster) as consumer:
        first = consumer.statistics()
        assert (first.partitions, first.assigned, first.revoked, first.lost, first.commits) == (2, 1, 0, 0, 0)
        (await anext(consumer.batches())).done()
        await consumer.commit()
        await consumer.commit()
        assert consumer.statistics().commits == 1, "there was nothing to store"
        cluster.revoke("g", tp(0))
        await until(lambda: consumer.statistics().revoked == 1)
        await until(lambda: consumer.statistics().partitions == 1)
        now = consumer.statistics()
        assert (now.delivered, now.lost, now.failed_commits) == (10, 0, 0)


async def test_a_consumer_counts_lost_sessions_and_commits_that_fail() -> None:
    cluster = make_cluster(10)
    async with consuming(cluster) as consumer:
        (await anext(consumer.batches())).done()
        cluster.fail("commit", ConnectionLost("memory-1:9092", "reset", True))
        with pytest.raises(ConnectionLost):
            await consumer.commit()
        assert (consumer.statistics().commits, consumer.statistics().failed_commits) == (0, 1)
        await consumer.commit()
        assert (consumer.statistics().commits, consumer.statistics().failed_commits) == (1, 1)
        cluster.expire("g")
        await until(lambda: consumer.statistics().lost == 1)
        await until(lambda: consumer.statistics().assigned == 2)
        assert consumer.statistics().revoked == 0


async def test_a_cancelled_commit_counts_as_neither() -> None:
    cluster = make_cluster(10)
    async with consuming(cluster) as consumer:
        (await anext(consumer.batches())).done()
        cluster.hold("commit")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.commit)
            await cluster.wait_for_held("commit")
            tasks.cancel_scope.cancel()
        cluster.release("commit")
        assert (consumer.statistics().commits, consumer.statistics().failed_commits) == (0, 0)


async def test_a_consumer_has_statistics_before_its_block() -> None:
    async with make_cluster().connect() as k:
        before = k.consumer("t", group="g").statistics()
        assert (before.partitions, before.assigned, before.commits, before.lag) == (0, 0, 0, {})


async def test_a_cluster_counts_connections_requests_and_losses() -> None:
    cluster = make_cluster()
    k = cluster.connect(tuning=QUICK)
    assert k.statistics() == ClusterStatistics()
    async with k, k.producer() as out:
        await out.send("t", b"one")
        one = k.statistics()
        assert (one.brokers, one.connections, one.connects, one.losses) == (1, 1, 1, 0)
        assert one.requests == 1 and one.sent_bytes == one.received_bytes == 0
        cluster.cut(1)
        assert (k.statistics().connections, k.statistics().losses) == (0, 1)
        await out.send("t", b"two")
        two = k.statistics()
        assert (two.brokers, two.connections, two.connects, two.losses) == (1, 1, 2, 1)
        assert two.requests > one.requests
    assert k.statistics().connects == 2, "counters stay"
