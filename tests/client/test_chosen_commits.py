"""Commits of positions that the user chose, with texts; and what becomes of marks and later commits."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.client.one_member import consuming, make_cluster, tp, until

import odradek as od
from odradek.errors import ConfigError, DeadlineError, GroupError, OdradekError, UsageError
from odradek.types import CommittedPosition, TopicPartition

pytestmark = pytest.mark.anyio


async def test_a_chosen_position_is_stored_with_its_text_and_read_again() -> None:
    cluster = make_cluster(10, 10)
    async with consuming(cluster, commit_metadata="usual") as consumer:
        assert await consumer.committed() == {tp(0): None, tp(1): None}
        assert await consumer.commit({tp(0): (4, "by hand"), tp(1): 7}) == {tp(0): 4, tp(1): 7}
        assert await consumer.committed() == {tp(0): CommittedPosition(od.Position(4), "by hand"), tp(1): (7, "usual")}
        assert await consumer.committed([tp(1)]) == {tp(1): (7, "usual")}


async def test_what_committed_returns_can_be_committed() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        await consumer.commit({tp(): (4, "x")})
        stored = {p: at for p, at in (await consumer.committed()).items() if at is not None}
        await consumer.commit({tp(): 5})
        await consumer.commit(stored)
        assert await consumer.committed() == {tp(): (4, "x")}


async def test_without_done_only_chosen_positions_are_ever_stored() -> None:
    """Neither the end of the block nor a rebalance commits anything else."""
    cluster = make_cluster()
    async with consuming(cluster, commit_every=0.001) as consumer:
        batches = consumer.batches(max_records=3)
        first, _ = await anext(batches), await anext(batches)
        await consumer.commit({tp(): first.next_position})
        await anyio.sleep(0.02)
        assert cluster.committed("g") == {tp(): 3}
    assert cluster.committed("g") == {tp(): 3}


async def test_iterating_by_record_a_later_commit_does_not_go_back_behind_a_chosen_position() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        for _ in range(3):
            record = await anext(consumer)
        await consumer.commit({tp(): record.next_position})
        assert await consumer.commit() == {}
        assert cluster.committed("g") == {tp(): 3}
        await anext(consumer)
        await anext(consumer)
        assert await consumer.commit() == {tp(): 4}


async def test_batches_before_a_chosen_position_are_done_and_hold_nothing_back() -> None:
    cluster = make_cluster()
    async with consuming(cluster, revoke_within=30) as consumer:
        batches = consumer.batches(max_records=2)
        one, two, three = await anext(batches), await anext(batches), await anext(batches)
        await consumer.commit({tp(): two.next_position})
        assert one.done() and two.done()
        assert three.done()
        assert await consumer.commit() == {tp(): 6}


async def test_a_revoke_does_not_wait_for_batches_that_a_chosen_position_includes() -> None:
    cluster = make_cluster()
    async with consuming(cluster, revoke_within=30) as consumer:
        batch = await anext(consumer.batches(max_records=3))
        await consumer.commit({tp(): batch.next_position})
        cluster.revoke("g", tp())
        await until(lambda: not consumer.assignment)
        assert cluster.committed("g") == {tp(): 3}


async def test_a_position_ahead_of_what_was_delivered_stays_until_delivery_is_behind_it() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        batches = consumer.batches(max_records=4)
        assert (await anext(batches)).done()
        await consumer.commit({tp(): 6})
        assert (await anext(batches)).done()  # up to 8
        assert await consumer.commit() == {tp(): 8}
        await consumer.commit({tp(): 10})
        assert (await anext(batches)).done()
        assert await consumer.commit() == {}
    assert cluster.committed("g") == {tp(): 10}


async def test_a_position_before_what_is_done_is_stored_until_the_next_commit() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        (await anext(consumer.batches(max_records=6))).done()
        assert await consumer.commit({tp(): 2}) == {tp(): 2}
        assert cluster.committed("g") == {tp(): 2}
        assert await consumer.commit() == {tp(): 6}


async def test_a_partition_of_another_member_is_refused_and_nothing_is_stored() -> None:
    cluster = make_cluster(10, 10)
    cluster.revoke("g", tp(1))
    async with consuming(cluster) as consumer:
        with pytest.raises(GroupError, match="t/1 is not assigned to this member: not committed"):
            await consumer.commit({tp(0): 3, tp(1): 3})
    assert cluster.committed("g") == {tp(0): 0}


async def test_after_an_expiry_a_chosen_position_is_refused() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        cluster.expire("g")
        with pytest.raises(GroupError, match="not assigned"):
            await consumer.commit({tp(): 3})
    assert cluster.committed("g").get(tp(), 0) == 0


async def test_a_partition_whose_topic_was_made_again_is_refused() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        consumer._progress[tp()].log_gone = True
        with pytest.raises(GroupError, match="t/0 is of a topic that was deleted and made again"):
            await consumer.commit({tp(): 3})


async def test_a_partition_that_transactions_store_is_refused() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        (await anext(consumer.batches())).span.leave_to_transactions()
        with pytest.raises(UsageError, match="t/0: its position is stored by transactions"):
            await consumer.commit({tp(): 3})


async def test_after_an_error_marks_are_as_before() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        batch = await anext(consumer.batches(max_records=3))
        cluster.fail("commit", OdradekError("refused"))
        with pytest.raises(OdradekError, match="refused"):
            await consumer.commit({tp(): 3})
        assert await consumer.commit() == {tp(): 0}
        assert batch.done()


async def test_a_cancelled_commit_is_stored_or_not_and_the_next_one_is_right() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        (await anext(consumer.batches(max_records=3))).done()
        cluster.hold("commit")
        with anyio.move_on_after(0.02) as scope:
            await consumer.commit({tp(): 5})
        cluster.heal()
        assert scope.cancelled_caught
        assert await consumer.commit() == {tp(): 3}


@pytest.mark.parametrize(
    ("positions", "kind", "text"),
    [
        ([tp()], TypeError, "positions must be a mapping of partitions to positions, or to"),
        ({"t": 1}, TypeError, "positions key must be a TopicPartition"),
        ({tp(): -1}, ConfigError, r"positions\[.*\]"),
        ({tp(): od.LATEST}, TypeError, r"positions\[.*\]"),
        ({tp(): (1, "a", "b")}, TypeError, r"must be a position, or \(position, text\)"),
        ({tp(): (1, 2)}, TypeError, "the text of positions"),
        ({tp(): (1, "x" * 4097)}, ConfigError, "the text of positions"),
    ],
)
async def test_positions_that_cannot_be_are_refused(positions: Any, kind: type[Exception], text: str) -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        with pytest.raises(kind, match=text):
            await consumer.commit(positions)


@pytest.mark.parametrize("partitions", ["t", tp(), 5])
async def test_partitions_that_cannot_be_are_refused(partitions: Any) -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        with pytest.raises(TypeError, match="partitions must be several partitions"):
            await consumer.committed(partitions)
        with pytest.raises(TypeError, match="partitions must be a TopicPartition"):
            await consumer.committed(["t"])  # type: ignore[list-item]


async def test_no_positions_are_no_request() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        cluster.fail("commit", DeadlineError("commit", 1.0))
        assert await consumer.commit({}) == {}
        cluster.heal()


def test_a_committed_position_compares_like_the_pair_that_it_is() -> None:
    assert CommittedPosition(od.Position(4)) == (4, "") and TopicPartition("t", 0) == tp()
