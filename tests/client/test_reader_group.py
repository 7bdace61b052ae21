"""A reader that stores positions under the name of a group, without being a member of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.client.one_member import make_cluster, numbered, tp, until

import odradek as od
from odradek.client.consumer import committed
from odradek.errors import BrokerError, ConfigError, OdradekError, UsageError
from odradek.testing import MemoryCluster

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def reading(cluster: MemoryCluster, topics: Any = "t", **options: Any) -> AsyncIterator[od.Reader]:
    async with cluster.connect() as k, k.reader(topics, **{"group": "g", **options}) as reader:
        yield reader


async def test_what_was_handed_out_is_committed_and_the_next_reader_continues_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = make_cluster(10)
    async with reading(cluster) as reader:
        for _ in range(3):
            await anext(reader)
        assert cluster.committed("g") == {}, "only when it is told to"
        assert await reader.commit() == {tp(): 3}
        assert await reader.commit() == {}, "nothing is new"
        with monkeypatch.context() as patch:
            patch.setattr(committed, "STORED_AGAIN_S", 0.0)
            assert await reader.commit() == {tp(): 3}, "brokers forget what a group without members has"
            assert await reader.commit({tp(): (3, "by hand")}) == {tp(): 3}
            assert await reader.commit() == {}, "which would replace the text"
        assert await reader.commit() == {}
        await anext(reader)
    assert cluster.committed("g") == {tp(): 3} and cluster.members("g") == {}
    async with reading(cluster) as reader:
        assert (await anext(reader.batches(max_records=4))).position == 3
        assert await reader.commit() == {tp(): 7}


async def test_partitions_without_a_committed_position_begin_at_start() -> None:
    cluster = make_cluster(10, 10, 10)
    cluster.set_committed("g", {tp(1): 4})
    async with reading(cluster, start=od.LATEST) as reader:
        assert reader.positions() == {tp(0): 10, tp(1): 4, tp(2): 10}
    async with reading(cluster, {tp(0): 2, tp(1): 2}) as reader:
        assert reader.positions() == {tp(0): 2, tp(1): 4}


async def test_chosen_positions_are_stored_with_texts() -> None:
    cluster = make_cluster(10, 10)
    async with reading(cluster) as reader:
        assert await reader.commit({tp(0): (4, "by hand"), tp(1): 2}) == {tp(0): 4, tp(1): 2}
        assert await reader.committed() == {tp(0): (4, "by hand"), tp(1): (2, "")}
        assert await reader.commit({tp(1): (2, "text")}) == {tp(1): 2}, "the text is new"
        assert await reader.committed([tp(1)]) == {tp(1): (2, "text")}


async def test_a_new_partition_begins_where_the_group_is() -> None:
    cluster = make_cluster(1)
    cluster.set_committed("g", {tp(): 1})
    async with reading(cluster) as reader:
        cluster.fail("metadata", OdradekError("not now"), times=1)
        cluster.add_partitions("t", 2)
        cluster.append("t", numbered(5), partition=1)
        assert (await anext(reader.batches())).partition == tp(1)
        assert await reader.commit() == {tp(0): 1, tp(1): 5}


async def test_after_an_error_or_a_cancellation_the_next_commit_stores_it_again() -> None:
    cluster = make_cluster(10)
    async with reading(cluster) as reader:
        await anext(reader)
        await reader.commit()
        await anext(reader)
        cluster.fail("commit", BrokerError(25, "UNKNOWN_MEMBER_ID"))
        with pytest.raises(BrokerError, match="UNKNOWN_MEMBER_ID"):
            await reader.commit()
        cluster.hold("commit")
        with anyio.move_on_after(0.02) as scope:
            await reader.commit()
        assert scope.cancelled_caught
        cluster.heal()
        assert await reader.commit() == {tp(): 2}


async def test_commits_are_stored_in_the_order_of_their_calls() -> None:
    cluster = make_cluster(10)
    async with reading(cluster) as reader, anyio.create_task_group() as tasks:
        cluster.hold("commit")
        await anext(reader)
        tasks.start_soon(reader.commit)
        await anyio.wait_all_tasks_blocked()
        await anext(reader)
        tasks.start_soon(reader.commit)
        await anyio.wait_all_tasks_blocked()
        cluster.heal()
    assert cluster.committed("g") == {tp(): 2}


async def test_nothing_is_committed_of_a_topic_that_was_made_again() -> None:
    cluster = make_cluster(10)
    async with reading(cluster, reset="fail") as reader:
        await anext(reader.batches(max_records=3))
        cluster.recreate_topic("t")
        table = reader._driver.metadata.table
        await until(lambda: reader._driver.metadata.table is not table)
        assert await reader.commit() == {}
    assert cluster.committed("g") == {}


async def test_without_a_group_there_is_nothing_to_commit_to() -> None:
    cluster = make_cluster(10)
    async with reading(cluster, group=None) as reader:
        for call in (reader.commit(), reader.committed()):
            with pytest.raises(UsageError, match="this reader has no group to store positions for"):
                await call


async def test_a_partition_that_is_not_read_is_refused() -> None:
    cluster = make_cluster(10)
    async with reading(cluster) as reader:
        with pytest.raises(ConfigError, match="t/5 is not currently assigned"):
            await reader.commit({tp(5): 1})
