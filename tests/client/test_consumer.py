"""The group consumer: only what is done is committed, revoked partitions stop before they are released."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from odradek.client.consumer.consumer import Consumer
from odradek.client.options import Tuning
from odradek.core.states import ConsumerState
from odradek.errors import (
    BrokerError,
    Closed,
    ConfigError,
    DeadlineError,
    GroupError,
    Unreachable,
    Unsupported,
    ZooKeeperError,
)
from odradek.testing import MemoryCluster
from odradek.types import EARLIEST, LATEST, Position

from ..payloads import payload, payloads
from .one_member import consuming, make_cluster, numbered, revoking, tp, until
from .reading import cancelled_after

pytestmark = pytest.mark.anyio

ALWAYS = 1_000_000
"""Times that something fails, until the cluster is healed."""

REFUSED = Unreachable("tcp", "memory-1:9092", "Connection refused")
NO_QUORUM = ZooKeeperError("no quorum")
OUT_OF_ORDER = GroupError("out of order")


def owned(cluster: MemoryCluster) -> list[set[Any]]:
    """Return the partitions of each member."""
    return [set(partitions) for partitions in cluster.members("g").values()]


# ---- what is committed --------------------------------------------------------------------------------------


async def test_pain_commits_are_coalesced() -> None:
    """A thousand marks while one commit is on its way make one more commit: the latest mark."""
    cluster = make_cluster(1000)
    async with consuming(cluster, commit_every=0.001) as consumer:
        await until(lambda: cluster.committed("g"))
        cluster.hold("commit")
        batches = consumer.batches(max_records=1)
        (await anext(batches)).done()
        await cluster.wait_for_held("commit")
        for _ in range(999):
            (await anext(batches)).done()
        commits = len(cluster.requests("commit"))
        cluster.release("commit")
        await until(lambda: cluster.committed("g") == {tp(): 1000})
        assert len(cluster.requests("commit")) == commits + 1


# ---- rebalances ---------------------------------------------------------------------------------------------


async def test_a_commit_on_its_way_ends_with_the_session() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer, anyio.create_task_group() as tasks:
        await consumer.commit()
        (await anext(consumer.batches())).done()
        cluster.hold("commit")
        outcome: list[object] = []

        async def commit() -> None:
            outcome.append(await consumer.commit())

        tasks.start_soon(commit)
        await cluster.wait_for_held("commit")
        cluster.expire("g")
        await until(lambda: outcome)
        cluster.release("commit")
    assert outcome == [{}] and cluster.committed("g") == {tp(): 0}


async def test_a_failing_commit_does_not_stop_a_rebalance(caplog: pytest.LogCaptureFixture) -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        (await anext(consumer.batches())).done()
        cluster.fail("commit", NO_QUORUM, times=ALWAYS)
        assert owned(cluster) == [{tp()}]
        cluster.revoke("g", tp())
        await until(lambda: owned(cluster) == [set()])
        cluster.heal()
    assert cluster.members("g") == {} and cluster.committed("g") == {} and "no quorum" in caplog.text


# ---- positions that are gone, seek, streams -----------------------------------------------------------------


@pytest.mark.parametrize(("start", "expected"), [(EARLIEST, 2), (LATEST, 10)])
async def test_a_position_that_is_gone_is_reset_and_stored_at_once(start: Any, expected: int) -> None:
    cluster = make_cluster()
    cluster.set_committed("g", {tp(): 9999})
    cluster.delete_records(tp(), before=2)
    async with consuming(cluster, start=start) as consumer:
        await until(lambda: cluster.committed("g") == {tp(): expected})
        cluster.append("t", [b"new"])
        record = await anext(consumer)
        assert record.position == expected


async def test_reset_fail_raises_instead() -> None:
    cluster = make_cluster()
    cluster.set_committed("g", {tp(): 9999})
    with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
        async with consuming(cluster, reset="fail") as consumer:
            await anext(consumer)
    assert cluster.committed("g") == {tp(): 9999}


async def test_seek_moves_the_whole_group() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        before = await anext(consumer.batches(max_records=8))
        consumer.seek(tp(), Position(5))
        assert not before.done()
        assert await consumer.commit() == {tp(): 5}
        assert (await anext(consumer.batches())).values == numbered(5, 5)
        consumer.seek(tp(), EARLIEST)
        await until(lambda: cluster.committed("g") == {tp(): 0})
        assert (await anext(consumer)).value == b"000000"


async def test_a_broker_that_is_away_during_the_assignment_is_asked_later() -> None:
    cluster = make_cluster()
    for operation in ("positions", "fetch"):
        cluster.fail(operation, REFUSED, times=ALWAYS)
    async with consuming(cluster) as consumer:
        assert consumer.assignment == {tp(): 0}
        await until(lambda: cluster.requests("positions"))
        cluster.heal()
        assert (await anext(consumer)).value == b"000000"


async def test_streams_share_the_partitions() -> None:
    cluster = make_cluster(4, 4, 4)
    async with consuming(cluster, streams=2) as consumer:
        assert consumer.assignment == {tp(0): 0, tp(1): 1, tp(2): 0}
        first, second = consumer.streams
        got = [(await anext(second)).value for _ in range(4)]
        assert got == numbered(4, 4)
        batches = first.batches()
        two = [await anext(batches) for _ in range(2)]
        assert sorted(v for batch in two for v in payloads(batch.values)) == [*numbered(4), *numbered(4, 8)]
        assert all(batch.done() for batch in two)
    assert cluster.committed("g") == {tp(n): 4 for n in range(3)}


async def test_pause_and_lag() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        assert (await anext(consumer)).value == b"000000"
        assert await consumer.lag() == {tp(): 9}
        consumer.pause()
        with anyio.move_on_after(0.02) as paused:
            await anext(consumer)
        assert paused.cancelled_caught
        await consumer.commit()
        consumer.resume()
        assert (await anext(consumer)).value == b"000001"
    assert cluster.committed("g") == {tp(): 2}


# ---- coming and going ---------------------------------------------------------------------------------------


async def test_a_cluster_without_groups_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> Any:
        raise Unsupported("a consumer group", "ZooKeeper")

    async with make_cluster().connect() as k:
        monkeypatch.setattr(k.driver, "membership", refuse)
        with pytest.raises(Unsupported, match="needs ZooKeeper"):
            k.consumer("t", group="g")


async def test_pain_background_death_raises_in_async_for() -> None:
    cluster = make_cluster(0)
    async with consuming(cluster) as consumer:
        cluster.fail("join", OUT_OF_ORDER)
        cluster.expire("g")
        with pytest.raises(GroupError, match="out of order"):
            async for _ in consumer:
                pass
        assert consumer.state is ConsumerState.FAILED
        with pytest.raises(GroupError, match="out of order"):
            await consumer.commit()
    assert cluster.members("g") == {}


async def test_a_death_nobody_saw_is_raised_at_the_end() -> None:
    cluster = make_cluster(0)
    with pytest.raises(GroupError, match="out of order"):
        async with consuming(cluster) as consumer:
            cluster.fail("join", OUT_OF_ORDER)
            cluster.expire("g")
            await until(lambda: consumer.state is ConsumerState.FAILED)


async def test_a_group_that_cannot_be_joined_raises_at_entry_and_leaves_nothing() -> None:
    cluster = make_cluster()
    cluster.fail("committed", GroupError("no partitions in 4 attempts"))
    with pytest.raises(GroupError, match="4 attempts"):
        async with consuming(cluster):
            pass
    assert len(cluster.requests("leave")) == 1 and cluster.members("g") == {}


async def test_joining_has_a_deadline() -> None:
    cluster = make_cluster()
    cluster.hold("join")
    with pytest.raises(DeadlineError, match="joining group g"):
        async with consuming(cluster, join_within=0.02):
            pass
    cluster.release("join")
    cluster.hold("committed")
    with pytest.raises(DeadlineError, match="joining group g"):
        async with consuming(cluster, join_within=0.02):
            pass
    assert cluster.members("g") == {}


async def test_leaving_commits_what_is_done_also_when_the_block_is_cancelled() -> None:
    cluster = make_cluster()
    with anyio.CancelScope() as scope:
        async with consuming(cluster) as consumer:
            (await anext(consumer.batches(max_records=4))).done()
            await anext(consumer.batches(max_records=4))
            scope.cancel()
            await anyio.sleep_forever()
    assert cluster.committed("g") == {tp(): 4}
    assert len(cluster.requests("leave")) == 1 and cluster.members("g") == {}


async def test_leaving_tries_everything_and_says_what_did_not_work() -> None:
    cluster = make_cluster()
    with pytest.raises(ZooKeeperError, match="no quorum"):
        async with consuming(cluster) as consumer:
            (await anext(consumer.batches())).done()
            cluster.fail("commit", NO_QUORUM, times=ALWAYS)
    assert len(cluster.requests("leave")) == 1 and cluster.members("g") == {}, "tried all the same"
    assert consumer.state is ConsumerState.CLOSED


async def test_leaving_has_a_budget_and_says_what_is_left() -> None:
    cluster = make_cluster()
    with pytest.raises(
        DeadlineError, match=r"leaving group g \(positions of 1 partitions not stored; 1 not released\)"
    ):
        async with consuming(cluster, exit_within=0.02) as consumer:
            cluster.hold("commit")
            cluster.hold("leave")
            consumer._membership.problem = "1 not released"  # type: ignore[misc]
    assert consumer.state is ConsumerState.CLOSED and cluster.members("g") == {}


async def test_an_exception_of_the_block_is_not_masked(caplog: pytest.LogCaptureFixture) -> None:
    cluster = make_cluster()
    with pytest.raises(ValueError, match="mine"):
        async with consuming(cluster) as consumer:
            (await anext(consumer.batches())).done()
            cluster.fail("commit", NO_QUORUM, times=ALWAYS)
            raise ValueError("mine")
    assert "no quorum" in caplog.text


async def test_used_outside_its_block_it_says_closed() -> None:
    async with make_cluster().connect() as k:
        consumer = k.consumer("t", group="g", commit_every=None, consumer_id="me")
        with pytest.raises(Closed):
            await anext(consumer)
        async with consumer:
            assert repr(consumer) == "<Consumer of g RUNNING 1 partitions>" and consumer.consumer_id == "g_me"
        with pytest.raises(Closed):
            await anext(consumer)


@pytest.mark.parametrize(
    ("streams", "problem"), [(0, "a whole number from 1"), (20_000, "a whole number from 1 to 10000")]
)
def test_streams_are_counted_from_one_to_what_a_member_may_have(streams: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"streams={streams}: must be {problem}"):
        make_cluster().connect().consumer("t", group="g", streams=streams)


async def test_pain_consumer_survives_broker_restart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        assert (await anext(consumer.batches())).values == numbered(10)
        cluster.fail("fetch", REFUSED, times=ALWAYS)
        await until(lambda: "Connection refused" in caplog.text)
        cluster.stop_broker(1)
        await until(lambda: "no longer registered" in caplog.text)
        cluster.append("t", numbered(3, 10))
        cluster.heal()
        assert (await anext(consumer.batches())).values == numbered(3, 10)


async def test_pain_cancellation_at_every_await() -> None:
    """Whatever step a wait is cancelled at, the next wait gets what it would have got: nothing is lost."""
    cluster = make_cluster(100)
    cluster.clock.hold()
    cluster.delay("fetch", 1.0)  # an answer for each step
    got: list[bytes] = []
    async with consuming(cluster, tuning=Tuning(fetch_bytes=100)) as consumer:
        steps = 0
        while len(got) < 100:
            steps += 1
            cluster.clock.advance(1.0)
            async with cancelled_after(steps % 5):
                while len(got) < 100:
                    got.append(payload((await anext(consumer)).value))
        assert await consumer.commit() == {tp(): 99}
    assert got == numbered(100) and steps > 5
    assert cluster.committed("g") == {tp(): 100}


async def test_an_unreachable_broker_is_not_the_death_of_a_consumer() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        await anext(consumer)
        for operation in ("positions", "fetch"):
            cluster.fail(operation, REFUSED, times=ALWAYS)
        with pytest.raises(Unreachable):
            await consumer.lag()
        assert (await anext(consumer)).value == b"000001"


# ---- only what moves is interrupted -------------------------------------------------------------------------


async def test_an_expiry_during_a_revoke_ends_it_without_a_commit() -> None:
    cluster = make_cluster()
    async with consuming(cluster, revoke_within=3600) as consumer:
        await consumer.commit()
        held = await anext(consumer.batches(max_records=3))
        cluster.revoke("g", tp())
        await until(lambda: revoking(consumer))
        cluster.expire("g")
        await until(lambda: cluster.members("g"))  # it has joined again, so that it revokes no more
        assert owned(cluster) == [set()] and not revoking(consumer)
        assert not held.done() and await consumer.commit() == {}
    assert cluster.committed("g") == {tp(): 0}


async def test_a_member_that_stays_blocked_raises_whose_partitions_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(_: object) -> None:
        await anyio.sleep_forever()

    async with make_cluster().connect() as k:
        consumer = k.consumer("t", group="g", join_within=0.02)
        monkeypatch.setattr(consumer._membership, "run", run)
        monkeypatch.setattr(consumer._membership, "problem", "t/0 belongs to stranger")
        with pytest.raises(GroupError, match=r"group g: no partitions within 0\.02 s: t/0 belongs to stranger"):
            async with consumer:
                pass


async def test_whose_partitions_another_member_waits_for_is_known() -> None:
    cluster = make_cluster(3, 3)
    async with consuming(cluster, revoke_within=3600) as first, cluster.connect() as k:
        batches = first.batches()
        held = [await anext(batches) for _ in range(2)]
        second, finished = k.consumer("t", group="g", join_within=3600), anyio.Event()

        async def consume() -> None:
            async with second:
                await finished.wait()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            await until(lambda: second._membership.problem)
            assert second._membership.problem == f"1 partitions belong to other members (t/1 to {first.consumer_id})"
            assert first.assignment.keys() == {tp(0), tp(1)} and second.assignment == {}
            assert all(batch.done() for batch in held)
            await until(lambda: second.assignment.keys() == {tp(1)})
            assert first.assignment.keys() == {tp(0)} and second._membership.problem == ""
            finished.set()


# ---- leaving under native cancellation ----------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("cancellations", [1, 2])
async def test_a_native_cancellation_while_leaving_is_raised_and_leaves_no_task(
    anyio_backend: str, cancellations: int
) -> None:
    for steps in range(25):
        before = asyncio.all_tasks()
        cluster = make_cluster()

        async with cluster.connect() as k:
            connected = asyncio.all_tasks()
            task = asyncio.ensure_future(_work_until_cancelled(cluster, k.consumer("t", group="g", commit_every=None)))
            await cluster.wait_for_held("commit")
            for _ in range(cancellations):
                task.cancel()
                for _ in range(steps):
                    await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert all("MemoryBrokerClient.run" in repr(task) for task in asyncio.all_tasks() - connected)
        assert asyncio.all_tasks() == before
        assert cluster.members("g") == {}
        assert len(cluster.requests("leave")) == 1 or cancellations == 2


async def _work_until_cancelled(cluster: MemoryCluster, consumer: Consumer) -> None:
    async with consumer:
        (await anext(consumer.batches())).done()
        cluster.hold("commit")  # the last one never ends
