"""Rebalances: revoked partitions are finished and committed before they are released."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest
from tests.client.one_member import consuming, make_cluster, numbered, revoking, tp, until

from odradek.core.states import ConsumerState
from odradek.testing import MemoryCluster
from odradek.types import Record, TopicPartition

pytestmark = pytest.mark.anyio


def owned(cluster: MemoryCluster) -> frozenset[TopicPartition]:
    """What the only member owns."""
    (partitions,) = cluster.members("g").values()
    return partitions


async def test_a_revoke_stops_delivery_waits_for_what_is_in_hand_commits_and_then_releases() -> None:
    cluster = make_cluster()
    async with consuming(cluster, revoke_within=30) as consumer, anyio.create_task_group() as tasks:
        batches = consumer.batches(max_records=3)
        in_hand = await anext(batches)
        cluster.revoke("g", tp())
        await until(lambda: revoking(consumer))
        with anyio.move_on_after(0.02) as nothing_comes:
            await anext(batches)
        assert nothing_comes.cancelled_caught
        assert owned(cluster) == {tp()}, "not released while a batch is in hand"
        assert in_hand.done()
        await until(lambda: not owned(cluster))
        assert cluster.committed("g") == {tp(): 3} and consumer.assignment == {}
        assert consumer.state is ConsumerState.RUNNING
        tasks.cancel_scope.cancel()


async def test_a_revoke_waits_for_the_record_in_hand_and_drops_the_rest_of_its_batch() -> None:
    cluster = make_cluster()
    async with consuming(cluster, revoke_within=30) as consumer, anyio.create_task_group() as tasks:
        await anext(consumer)
        await anext(consumer)
        cluster.revoke("g", tp())
        await until(lambda: revoking(consumer))
        await anyio.wait_all_tasks_blocked()
        assert owned(cluster) == {tp()}
        records: list[Record] = []

        async def go_on() -> None:
            records.append(await anext(consumer))

        tasks.start_soon(go_on)
        await until(lambda: not owned(cluster))
        assert cluster.committed("g") == {tp(): 2} and not records
        cluster.restore("g")
        await until(lambda: consumer.assignment)
        await until(lambda: records)
        assert [record.value for record in records] == numbered(1, 2)


async def test_pain_a_revoke_names_the_slow_consumer_before_its_limit_and_late_marks_say_that_they_do_not_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = make_cluster()
    async with consuming(cluster, revoke_within=0.02) as consumer:
        late = await anext(consumer.batches(max_records=3))
        cluster.revoke("g", tp())
        await until(lambda: not owned(cluster))
        cluster.restore("g")
        await until(lambda: consumer.assignment)
        assert not late.done()
        assert (await anext(consumer.batches(max_records=3))).values == numbered(3), "delivered again"
    slow, ended = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert slow.startswith("g: slow: consumer ") and " still processes records of t/0: " in slow
    assert ended == "g: rebalance continues without t/0"
    assert cluster.committed("g") == {tp(): 0}


async def test_what_is_revoked_and_what_is_assigned_may_differ() -> None:
    cluster = MemoryCluster(topics={"t": 2})
    for number in (0, 1):
        cluster.append("t", numbered(5, 5 * number), partition=number)
    cluster.revoke("g", tp(1))
    async with consuming(cluster) as consumer:
        assert [(await anext(consumer)).value for _ in range(5)] == numbered(5)
        cluster.restore("g")
        cluster.revoke("g", tp(0))
        await until(lambda: revoking(consumer))
        consumer._stream.finish_current()
        await until(lambda: consumer.partitions == [tp(1)])
        assert consumer.assignment == {tp(1): 0}
        assert [(await anext(consumer)).value for _ in range(5)] == numbered(5, 5)


async def test_after_an_expired_session_nothing_is_committed() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        await consumer.commit()
        first = await anext(consumer.batches(max_records=3))
        assert first.done()
        cluster.expire("g")
        assert not first.done() and consumer.assignment == {}
        assert await consumer.commit() == {}
        await until(lambda: consumer.assignment)
        assert (await anext(consumer.batches(max_records=3))).values == numbered(3)
    assert cluster.committed("g") == {tp(): 0}


async def test_a_revoke_leaves_the_other_partitions_their_read_ahead_and_their_delivery() -> None:
    cluster = MemoryCluster(topics={"t": 2})
    for number in (0, 1):
        cluster.append("t", numbered(5, 5 * number), partition=number)
    async with consuming(cluster, revoke_within=30) as consumer:
        batches = consumer.batches(max_records=2)
        moving = await anext(batches)
        while moving.partition != tp(1):
            moving = await anext(batches)
        kept = consumer._fetcher.cursors[tp(0)]
        cluster.revoke("g", tp(1))
        await until(lambda: revoking(consumer))
        assert consumer.partitions == [tp(0)] and consumer.state is ConsumerState.RUNNING
        assert (await anext(batches)).partition == tp(0), "delivered while the other one is being revoked"
        assert consumer._fetcher.cursors[tp(0)] is kept
        moving.done()
        await until(lambda: owned(cluster) == {tp(0)})
        assert consumer.assignment == {tp(0): 0} and cluster.committed("g")[tp(1)] == 2
        cluster.restore("g")
        await until(lambda: consumer.assignment == {tp(0): 0, tp(1): 0})
