"""Share consumers on an in-memory cluster: deliveries, acknowledgements, locks, cancellation and leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.loops import BOTH, on

import odradek as od
from odradek.core.admin import GroupListing
from odradek.testing import MemoryCluster
from odradek.testing.memory.share import LOCK_S, MAX_DELIVERIES

pytestmark = pytest.mark.anyio
anyio_backend = on(BOTH)


def make_cluster(*values: bytes, partitions: int = 1) -> MemoryCluster:
    """A cluster whose group "g" reads the topic "t" from its start."""
    cluster = MemoryCluster({"t": partitions})
    cluster.start_share_group("g", od.EARLIEST)
    cluster.append("t", values)
    return cluster


async def values_left(cluster: MemoryCluster) -> dict[bytes | None, int]:
    """The values that another member gets now, with their delivery counts."""
    cluster.append("t", [b"end"])
    left: dict[bytes | None, int] = {}
    async with cluster.connect() as k, k.share_consumer("t", group="g") as consumer:
        async for record in consumer:
            if record.value == b"end":
                return left
            left[record.value] = record.delivery_count
    raise AssertionError("the iteration has an end")


async def test_a_record_is_accepted_when_the_next_one_is_asked_for_and_when_the_block_ends() -> None:
    cluster = make_cluster(b"a", b"b", b"c")
    async with cluster.connect() as k, k.share_consumer("t", group="g") as consumer:
        assert [(await anext(consumer)).value for _ in range(2)] == [b"a", b"b"]
    assert await values_left(cluster) == {b"c": 2}


async def test_a_block_that_ends_with_an_exception_accepts_no_more() -> None:
    cluster = make_cluster(b"a", b"b")
    with pytest.raises(ZeroDivisionError):
        async with cluster.connect() as k, k.share_consumer("t", group="g") as consumer:
            async for record in consumer:
                if record.value == b"b":
                    raise ZeroDivisionError
    assert await values_left(cluster) == {b"b": 2}


async def test_records_are_released_rejected_and_renewed_one_by_one() -> None:
    cluster = make_cluster(b"accept", b"release", b"reject", b"renew")
    calls: dict[bytes, Callable[[od.ShareRecord], bool]] = {
        b"accept": od.ShareRecord.accept,
        b"release": od.ShareRecord.release,
        b"reject": od.ShareRecord.reject,
        b"renew": od.ShareRecord.renew,
    }
    async with cluster.connect() as k, k.share_consumer("t", group="g", acknowledge="explicit") as consumer:
        batch = await anext(consumer.batches())
        for record in batch:
            assert record.value is not None and calls[record.value](record)
            assert record.is_acknowledged is (record.value != b"renew")
        await consumer.commit()
        again = await anext(consumer)
        assert (again.value, again.delivery_count) == (b"release", 2)
        assert again.accept()
    assert await values_left(cluster) == {b"renew": 2}


async def test_explicit_acknowledgement_leaves_the_rest_locked_until_the_member_leaves() -> None:
    cluster = make_cluster(b"a", b"b")
    async with cluster.connect() as k, k.share_consumer("t", group="g", acknowledge="explicit") as consumer:
        first, second = await anext(consumer), await anext(consumer)
        assert second.accept() and not first.is_acknowledged
    assert await values_left(cluster) == {b"a": 2}


async def test_batches_are_accepted_as_a_whole_but_for_what_was_acknowledged_otherwise() -> None:
    cluster = make_cluster(b"a", b"b", b"c")
    async with cluster.connect() as k, k.share_consumer("t", group="g") as consumer:
        async for batch in consumer.batches():
            if batch.delivery_counts[0] > 1:
                assert batch.values == [b"b"]
                break
            next(record for record in batch if record.value == b"b").release()
            assert batch.delivery_counts == [1, 1, 1]
    assert await values_left(cluster) == {}


async def test_two_members_share_the_records_of_one_partition() -> None:
    cluster = make_cluster(*[b"%d" % number for number in range(10)])
    async with (
        cluster.connect() as k,
        k.share_consumer("t", group="g", max_records=3) as one,
        k.share_consumer("t", group="g", max_records=3) as two,
    ):
        assert one.assignment == two.assignment == {od.TopicPartition("t", 0)} and one.member_id != two.member_id
        first, second = await anext(one.batches()), await anext(two.batches())
        assert [first.values, second.values] == [[b"0", b"1", b"2"], [b"3", b"4", b"5"]]


async def test_an_expired_lock_delivers_the_record_again_and_commit_says_what_does_not_count() -> None:
    cluster = make_cluster(b"a")
    cluster.clock.hold()
    async with cluster.connect() as k, k.share_consumer("t", group="g", acknowledge="explicit") as slow:
        record = await anext(slow)
        async with k.share_consumer("t", group="g") as other:
            cluster.clock.advance(LOCK_S)
            again = await anext(other)
            assert (again.value, again.delivery_count) == (b"a", 2)
            assert not record.accept()
            with pytest.raises(od.GroupError, match=r"1 of t/0 .*delivered again"):
                await slow.commit()
            await slow.commit()  # reported once


async def test_a_renewed_lock_lasts_longer() -> None:
    cluster = make_cluster(b"a")
    cluster.clock.hold()
    async with cluster.connect() as k, k.share_consumer("t", group="g", acknowledge="explicit") as consumer:
        batch = await anext(consumer.batches())
        cluster.clock.advance(LOCK_S - 1)
        assert batch.renew()
        cluster.clock.advance(LOCK_S - 1)
        assert batch.accept()
    assert await values_left(cluster) == {}


async def test_a_record_is_delivered_only_as_often_as_the_group_allows() -> None:
    cluster = make_cluster(b"poison", b"good")
    counts: list[int] = []
    async with cluster.connect() as k, k.share_consumer("t", group="g", max_records=1) as consumer:
        async for record in consumer:
            if record.value == b"good":
                break
            counts.append(record.delivery_count)
            record.release()
    assert counts == list(range(1, MAX_DELIVERIES + 1))


async def test_a_corrupt_record_is_an_error_after_those_before_it() -> None:
    cluster = make_cluster(b"a", b"b", b"c")
    cluster.corrupt(od.TopicPartition("t", 0), 1)
    async with cluster.connect() as k, k.share_consumer("t", group="g") as consumer:
        assert (await anext(consumer)).value == b"a"
        with pytest.raises(od.CorruptMessage, match="CRC mismatch"):
            await anext(consumer)


async def test_cancelled_waits_lose_nothing() -> None:
    cluster = make_cluster()
    async with cluster.connect() as k, k.share_consumer("t", group="g") as consumer:
        batches = consumer.batches()
        for _ in range(3):
            with anyio.move_on_after(0.01) as scope:
                await anext(batches)
            assert scope.cancelled_caught
        cluster.append("t", [b"a"])
        assert (await anext(batches)).values == [b"a"]


async def test_a_group_begins_at_the_end_unless_it_was_told_otherwise() -> None:
    cluster = MemoryCluster({"t": 1})
    cluster.append("t", [b"before"])
    async with cluster.connect() as k, k.share_consumer("t", group="new") as consumer:
        await anyio.wait_all_tasks_blocked()
        cluster.append("t", [b"after"])
        assert (await anext(consumer)).value == b"after"


async def test_errors_of_joining_and_fetching_reach_the_user() -> None:
    cluster = make_cluster(b"a")
    denied = od.BrokerError(30, "GROUP_AUTHORIZATION_FAILED", "g")
    cluster.fail("join", denied)
    with pytest.raises(od.BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        async with cluster.connect() as k, k.share_consumer("t", group="g"):
            raise AssertionError("entered")
    cluster.stop_failing("join")
    cluster.fail("fetch", od.BrokerError(29, "TOPIC_AUTHORIZATION_FAILED", "t"), times=1)
    async with cluster.connect() as k, k.share_consumer("t", group="g") as consumer:
        with pytest.raises(od.BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await anext(consumer)
        assert (await anext(consumer)).value == b"a"


async def test_a_share_group_is_administrated_as_one_and_no_consumer_group_has_its_name() -> None:
    cluster = make_cluster(b"a")
    partition = od.TopicPartition("t", 0)
    async with cluster.connect() as k:
        async with k.share_consumer("t", group="g") as consumer:
            assert await k.admin.list_groups(types="share") == [GroupListing("g", "share", "Stable", "share")]
            described = (await k.admin.describe_groups("g")).check()["g"]
            assert [(each.member_id, each.partitions) for each in described.members] == [
                (consumer.member_id, (partition,))
            ]
            assert "NON_EMPTY_GROUP" in str((await k.admin.delete_groups("g")).failed["g"])
            with pytest.raises(od.GroupError, match="is a share group"):
                await k.admin.reset_positions("g", {partition: 1})
        with pytest.raises(od.BrokerError, match="INCONSISTENT_GROUP_PROTOCOL"):
            async with k.consumer("t", group="g"):
                raise AssertionError("entered")
        async with k.reader("t", group="g") as reader:
            with pytest.raises(od.BrokerError, match="GROUP_ID_NOT_FOUND"):
                await reader.commit({partition: 1})
        (await k.admin.delete_groups("g")).check()
        assert await k.admin.list_groups() == []
        async with k.consumer("t", group="g"):
            assert await k.admin.list_groups(types="consumer") == [GroupListing("g", "consumer", "Stable", "consumer")]
        with pytest.raises(od.BrokerError, match="GROUP_ID_NOT_FOUND"):
            async with k.share_consumer("t", group="g"):
                raise AssertionError("entered")


async def test_joining_takes_no_longer_than_allowed() -> None:
    cluster = make_cluster()
    cluster.hold("join")
    with pytest.raises(od.DeadlineError, match="joining share group g"):
        async with cluster.connect() as k, k.share_consumer("t", group="g", join_within=0.05):
            raise AssertionError("entered")
    cluster.release("join")


@pytest.mark.parametrize("steps", range(12))
async def test_a_block_can_be_cancelled_at_any_step(steps: int) -> None:
    cluster = make_cluster(b"a", b"b")

    async def consume() -> None:
        async with cluster.connect() as k, k.share_consumer("t", group="g") as consumer:
            async for record in consumer:
                assert record.value in (b"a", b"b")
                await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consume)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert cluster._state.share_group("g").members == []
    assert set(await values_left(cluster)) <= {b"a", b"b"}


@pytest.mark.parametrize("steps", range(12))
async def test_a_task_can_be_cancelled_natively_at_any_step(steps: int, anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        return
    cluster = make_cluster(b"a", b"b")

    async def consume() -> None:
        async with cluster.connect() as k, k.share_consumer("t", group="g") as consumer:
            async for _ in consumer:
                await anyio.lowlevel.checkpoint()

    task = asyncio.ensure_future(consume())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cluster._state.share_group("g").members == []


async def test_what_cannot_work_is_refused_at_once() -> None:
    cluster = make_cluster()
    async with cluster.connect() as k:
        wrong: list[tuple[Any, dict[str, Any], type[Exception]]] = [
            ("t", {}, TypeError),
            ("t", {"group": "g", "acknowledge": "auto"}, od.ConfigError),
            ("t", {"group": "g", "max_records": 0}, od.ConfigError),
            (b"t", {"group": "g"}, TypeError),
            ([], {"group": "g"}, od.ConfigError),
            (7, {"group": "g"}, TypeError),
        ]
        for topics, options, error in wrong:
            with pytest.raises(error):
                k.share_consumer(topics, **options)
        consumer = k.share_consumer("t", group="g")
        with pytest.raises(od.UsageError, match="outside of its `async with` block"):
            await anext(consumer)
        async with consumer:
            assert repr(consumer) == "<ShareConsumer of g, 1 partitions>"
        with pytest.raises(od.UsageError, match="entered before"):
            async with consumer:
                raise AssertionError("entered")
        with pytest.raises(od.Closed):
            await anext(consumer)


async def test_kafka_07_has_none() -> None:
    k = od.connect("kafka07://127.0.0.1:1")
    with pytest.raises(od.Unsupported, match="share group"):
        k.share_consumer("t", group="g")


async def test_a_record_that_was_given_back_and_is_gone_is_not_delivered_again() -> None:
    cluster = make_cluster(b"1", b"2")
    async with cluster.connect() as k, k.share_consumer("t", group="g", acknowledge="explicit") as c:
        batch = await anext(aiter(c.batches()))
        batch.release()
        cluster.truncate_log(od.TopicPartition("t", 0), 1)
        again = await anext(aiter(c.batches()))
        assert again.values == [b"1"]


async def test_a_topic_that_is_deleted_while_another_one_is_fetched_is_passed_over() -> None:
    cluster = make_cluster(b"1")
    cluster.create_topic("u")
    cluster.hold("fetch")
    cluster.fail("fetch", od.BrokerError(6, "NOT_LEADER_OR_FOLLOWER", retriable=True))
    async with cluster.connect() as k, k.share_consumer(["t", "u"], group="g") as c, anyio.create_task_group() as tasks:
        got: list[bytes | None] = []

        async def consume() -> None:
            got.append((await anext(c)).value)

        tasks.start_soon(consume)
        await cluster.wait_for_held("fetch")
        cluster.delete_topic("u")
        cluster.release("fetch")
    assert got == [b"1"]
