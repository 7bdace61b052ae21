"""Commits of a consumer: only what is done is committed, as far as everything before it is done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from tests.client.one_member import consuming, make_cluster, numbered, tp, until

from odradek.client.consumer import committed
from odradek.client.consumer.committer import Committer
from odradek.client.consumer.consumer import Consumer
from odradek.client.consumer.group_batches import GroupBatch
from odradek.core.interfaces import NO_METADATA, Membership
from odradek.errors import BrokerError, DeadlineError, ZooKeeperError
from odradek.types import LATEST, Position, TopicPartition

pytestmark = pytest.mark.anyio


async def test_a_batch_is_committed_once_it_is_done() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        batches = consumer.batches(max_records=4)
        first = await anext(batches)
        assert isinstance(first, GroupBatch) and first.values == numbered(4)
        assert await consumer.commit() == {tp(): 0}, "where the group starts"
        assert first.done()
        assert await consumer.commit() == {tp(): 4}
        assert await consumer.commit() == {}, "nothing new"
    assert cluster.committed("g") == {tp(): 4}


async def test_a_position_that_does_not_move_is_stored_again_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers before 2.1 forget one that was not stored for a day, also while its group is at work."""
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        assert (await anext(consumer.batches(max_records=4))).done()
        assert await consumer.commit() == {tp(): 4} and await consumer.commit() == {}
        cluster._state.group("g").committed.clear()
        with monkeypatch.context() as patch:
            patch.setattr(committed, "STORED_AGAIN_S", 0.0)
            assert await consumer.commit() == {tp(): 4}
        assert cluster.committed("g") == {tp(): 4}
        assert await consumer.commit() == {}
        await consumer.commit({tp(): (4, "by hand")})
        with monkeypatch.context() as patch:
            patch.setattr(committed, "STORED_AGAIN_S", 0.0)
            await consumer.commit()
            cluster.fail("commit", BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"))
            with pytest.raises(BrokerError):
                await consumer.commit()
        assert await consumer.commit() == {tp(): 4}, "the outcome of the last one counts as unknown"
        assert await consumer.committed() == {tp(): (4, "by hand")}


async def test_batches_done_out_of_order_are_committed_in_order() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        batches = consumer.batches(max_records=2)
        first, second, third = [await anext(batches) for _ in range(3)]
        assert third.done() and second.done()
        assert await consumer.commit() == {tp(): 0}
        first.done()
        assert await consumer.commit() == {tp(): 6}


async def test_by_record_the_one_in_hand_is_not_done() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        for n in range(4):
            assert (await anext(consumer)).value == numbered(1, n)[0]
            await consumer.commit()
            assert cluster.committed("g") == {tp(): n}
        with pytest.raises(ValueError, match="mine"):
            async with consuming(make_cluster()):
                raise ValueError("mine")
    assert cluster.committed("g") == {tp(): 4}, "leaving without an exception says the last one is done"


async def test_after_an_exception_the_record_in_hand_comes_again() -> None:
    cluster = make_cluster()
    with pytest.raises(ValueError, match="mine"):
        async with consuming(cluster) as consumer:
            async for record in consumer:
                if record.value == b"000003":
                    raise ValueError("mine")
    assert cluster.committed("g") == {tp(): 3}


async def test_a_wait_for_more_means_all_before_is_done() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer, anyio.create_task_group() as tasks:

        async def work() -> None:
            async for _ in consumer:
                pass

        tasks.start_soon(work)
        await until(lambda: consumer.positions() == {tp(): 10} and consumer._stream.batch is None)
        assert await consumer.commit() == {tp(): 10}
        tasks.cancel_scope.cancel()


async def test_where_a_group_starts_is_stored_so_that_the_next_owner_starts_there() -> None:
    """Else what is written between a release and a claim would be skipped by start=LATEST."""
    cluster = make_cluster()
    async with consuming(cluster, start=LATEST):
        pass
    assert cluster.committed("g") == {tp(): 10}
    cluster.append("t", [b"in between"])
    async with consuming(cluster, start=LATEST) as consumer:
        assert (await anext(consumer)).value == b"in between"


async def test_forgetting_done_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = make_cluster(1001)
    async with consuming(cluster) as consumer:
        batches = consumer.batches(max_records=1)
        for _ in range(1001):
            await anext(batches)
    assert caplog.text.count("1000 batches were delivered after one that is not done()") == 1


async def test_commits_that_fail_are_tried_again_with_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    cluster = make_cluster()
    async with consuming(cluster, commit_every=0.001) as consumer:
        cluster.fail("commit", ZooKeeperError("no quorum"), times=1_000_000)
        (await anext(consumer.batches())).done()
        with pytest.raises(ZooKeeperError, match="no quorum"):
            await consumer.commit()
        await until(lambda: "commits fail" in caplog.text)
        await anyio.sleep(0.01)
        cluster.heal()
        await until(lambda: cluster.committed("g").get(tp()) == 10)
        await until(lambda: "commits are succeeding again" in caplog.text)
    assert caplog.text.count("commits fail") == 1


async def test_a_commit_of_nothing_does_not_end_a_failure(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the group has taken the partitions away, because the member may not use it any more."""
    cluster = make_cluster()
    outcomes = list[object]()
    commit = Committer.commit

    async def noted(committer: Committer, *args: Any) -> dict[TopicPartition, Position]:
        outcomes.append(None)
        outcomes[-1] = stored = await commit(committer, *args)
        return stored

    monkeypatch.setattr(Committer, "commit", noted)
    async with consuming(cluster, commit_every=0.001) as consumer:
        cluster.fail("commit", ZooKeeperError("no quorum"), times=1_000_000)
        (await anext(consumer.batches())).done()
        await until(lambda: "commits fail" in caplog.text)
        cluster.revoke("g", tp())
        outcomes.clear()
        await until(lambda: outcomes.count({}) > 1)
        assert "commits are succeeding again" not in caplog.text
        cluster.heal()


class Unanswered:
    """A membership whose commits are stored, and have no response."""

    def __init__(self, membership: Any, end: Exception | None) -> None:
        self.membership, self.end = membership, end
        self.stored = anyio.Event()

    async def commit(
        self, positions: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str] = NO_METADATA
    ) -> None:
        await self.membership.commit(positions)
        self.stored.set()
        if self.end is not None:
            raise self.end
        await anyio.sleep_forever()


@asynccontextmanager
async def commit_of_unknown_outcome(consumer: Consumer, end: Exception | None) -> AsyncIterator[None]:
    """Commit 10 where 4 is stored, so that the consumer does not learn what became of it."""
    batches = consumer.batches(max_records=4)
    (await anext(batches)).done()
    assert await consumer.commit() == {tp(): 4}
    for _ in range(2):
        (await anext(batches)).done()
    membership = consumer._committer.membership
    unanswered = Unanswered(membership, end)
    consumer._committer.membership = cast(Membership, unanswered)
    async with anyio.create_task_group() as tasks:

        async def commit() -> None:
            with suppress(DeadlineError):
                await consumer.commit()

        tasks.start_soon(commit)
        await unanswered.stored.wait()
        tasks.cancel_scope.cancel()
    consumer._committer.membership = membership
    yield


@pytest.mark.parametrize("end", [None, DeadlineError("positions not stored", 10.0, sent=True)])
async def test_a_seek_back_after_a_commit_of_unknown_outcome_is_stored(end: Exception | None) -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer, commit_of_unknown_outcome(consumer, end):
        assert cluster.committed("g") == {tp(): 10}
        consumer.seek(tp(), 4)
        assert await consumer.commit() == {tp(): 4}
    assert cluster.committed("g") == {tp(): 4}


async def test_a_commit_of_unknown_outcome_that_arrives_after_the_next_one_is_replaced() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer, commit_of_unknown_outcome(consumer, None):
        consumer.seek(tp(), 4)
        assert await consumer.commit() == {tp(): 4}
        await consumer._committer.membership.commit({tp(): Position(10)})  # the one before, by a slower connection
        assert await consumer.commit() == {tp(): 4}
        assert await consumer.commit() == {}
    assert cluster.committed("g") == {tp(): 4}
