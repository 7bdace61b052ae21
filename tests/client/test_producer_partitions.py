"""Records that are sent to partitions which their topic does not have, on an in-memory cluster: they are refused once
two reads of the metadata agree, and nothing else is."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pyarrow as pa
import pytest
from anyio import wait_all_tasks_blocked
from tests.client.kafka07_double import Kafka07Double
from tests.client.producing import P0, ProducerClock, add_partitions, make_cluster, producing, stored, values

from odradek.client.options import Tuning
from odradek.client.producer import lookups
from odradek.client.producer.producer import Producer
from odradek.client.producer.results import Ack
from odradek.core.backoff import Backoff
from odradek.errors import NotWritten, OdradekError, Rejected, Undelivered, Unreachable
from odradek.testing import MemoryCluster
from odradek.types import TopicPartition

pytestmark = pytest.mark.anyio

REFUSED = Unreachable("tcp", "memory-1:9092", "refused")
NO_99 = "t has no partition 99: it has 4, numbered from 0"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two reads follow each other at once."""
    monkeypatch.setattr(lookups, "BETWEEN_READS_S", 0.0)


@pytest.fixture
def cluster() -> MemoryCluster:
    return make_cluster()


class Sends:
    """`send`s in the background and what became of them, by value."""

    def __init__(self, out: Producer, tasks: anyio.abc.TaskGroup) -> None:
        self._out, self._tasks = out, tasks
        self.outcomes: dict[bytes, Any] = {}

    def start(self, value: bytes, partition: TopicPartition | int) -> None:
        self._tasks.start_soon(self._one, value, partition)

    async def _one(self, value: bytes, partition: TopicPartition | int) -> None:
        try:
            self.outcomes[value] = await self._out.send("t", value, partition=partition)
        except OdradekError as error:
            self.outcomes[value] = error


# ---- every way to send ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False], ids=["known topic", "first record of a topic"])
async def test_a_partition_that_does_not_exist_is_refused_with_their_number(
    cluster: MemoryCluster, known: bool
) -> None:
    async with producing(cluster) as out:
        if known:
            await out.send("t", b"known", partition=0)
        with pytest.raises(Rejected) as caught:
            await out.send("t", b"v", partition=99)
        assert str(caught.value) == f"1 record rejected: {NO_99}"
        assert caught.value.records[0].value == b"v"
        await out.send("t", b"after", partition=0)
        assert not out.statistics().buffered
    assert not out.failures


async def test_rows_for_a_partition_that_does_not_exist_are_refused(cluster: MemoryCluster) -> None:
    async with producing(cluster, tuning=Tuning(batch_bytes=40)) as out:
        await out.send("t", b"known", partition=0)
        for acks in (
            await out.send_many("t", [b"1", b"2", (b"key", b"3")], partition=99),
            await out.send_arrow("t", pa.array([b"1", b"2", b"3"]), partition=99),
        ):
            assert not acks.acks
            assert sorted(failed.record.value or b"" for failed in acks.failed) == [b"1", b"2", b"3"]
            assert {type(failed.error) for failed in acks.failed} == {Rejected}
            assert all(NO_99 in str(failed.error) for failed in acks.failed)


@pytest.mark.parametrize("known", [True, False], ids=["known topic", "first record of a topic"])
async def test_put_to_a_partition_that_does_not_exist_is_a_failure(cluster: MemoryCluster, known: bool) -> None:
    with pytest.raises(Undelivered, match=f"2 rejected; first: {NO_99}") as caught:
        async with producing(cluster) as out:
            if known:
                await out.send("t", b"known", partition=0)
            await out.put("t", b"1", partition=99)
            assert out.try_put("t", b"2", partition=99)
    assert [(failed.record.value, failed.partition) for failed in caught.value.records] == [
        (b"1", TopicPartition("t", 99)),
        (b"2", TopicPartition("t", 99)),
    ]


async def test_records_that_wait_for_space_are_refused_too_and_free_it(cluster: MemoryCluster) -> None:
    async with producing(cluster, buffer_bytes=2 * (10 + 1 + 120)) as out:
        plain: list[Any] = [b"%d" % n for n in range(6)]
        for rows in (plain, [(b"k", value) for value in plain]):
            acks = await out.send_many("t", rows, partition=99)
            assert [failed.record.value for failed in acks.failed] == plain
        await out.send("t", b"v", partition=0)
    assert values(cluster) == [b"v"]


async def test_a_record_that_gets_space_because_another_caller_left_is_refused_too(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    never = 1000.0  # no record is so old that something else looks
    async with (
        producing(cluster, buffer_bytes=3 * (10 + 1 + 120), deliver_within=never) as out,
        anyio.create_task_group() as tasks,
    ):
        await out.put("t", b"v", partition=0)
        sends = Sends(out, tasks)
        async with anyio.create_task_group() as large:
            large.start_soon(partial(out.put, "t", b"x" * 150, partition=0))
            await wait_all_tasks_blocked()
            sends.start(b"1", 99)
            await wait_all_tasks_blocked()
            assert out.statistics().waiting == 2
            large.cancel_scope.cancel()
        await cluster.wait_for_requests("metadata", 2)
        await wait_all_tasks_blocked()
        assert type(sends.outcomes[b"1"]) is Rejected
        cluster.release("produce")
    assert values(cluster) == [b"v"]


async def test_a_partition_of_another_kind_of_cluster_is_refused(cluster: MemoryCluster) -> None:
    async with producing(cluster) as out:
        with pytest.raises(Rejected, match="t has no partition 1-0: it has 4, numbered from 0"):
            await out.send("t", b"v", partition=TopicPartition("t", 0, 1))


# ---- when -------------------------------------------------------------------------------------------------------


async def test_other_partitions_of_the_topic_do_not_wait(cluster: MemoryCluster) -> None:
    cluster.hold("metadata")
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        sends.start(b"v", 99)
        await cluster.wait_for_requests("metadata")
        await out.send("t", b"other", partition=0)
        await out.send("t", b"keyed", key=b"k")
        assert not sends.outcomes
        cluster.release("metadata")
    assert type(sends.outcomes[b"v"]) is Rejected
    assert values(cluster) == [b"keyed", b"other"]


async def test_many_partitions_that_do_not_exist_cost_two_reads(cluster: MemoryCluster) -> None:
    cluster.create_topic("u")
    async with producing(cluster) as out:
        await out.send("t", b"known", partition=0)
        await out.send("u", b"known", partition=0)
        before = len(cluster.requests("metadata"))
        for number in range(10, 60):
            await out.put("t", b"v", partition=number)
            await out.put("u", b"v", partition=number)
        await out.flush()
        assert len(out.failures.take()) == 100
    assert len(cluster.requests("metadata")) == before + 2


async def test_the_second_read_comes_a_while_after_the_first(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "BETWEEN_READS_S", 1000.0)
    with pytest.raises(Undelivered, match="1 not written"):
        async with producing(cluster, exit_within=0) as out:
            await out.put("t", b"v", partition=99)
            await wait_all_tasks_blocked()
            assert len(cluster.requests("metadata")) == 1
            assert not out.failures


async def test_a_record_is_refused_only_by_reads_that_began_after_it_was_sent(cluster: MemoryCluster) -> None:
    cluster.hold("metadata")
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        sends.start(b"1", 99)
        await cluster.wait_for_requests("metadata")
        sends.start(b"2", 99)
        await wait_all_tasks_blocked()
        cluster.release("metadata", count=2)
        await cluster.wait_for_requests("metadata", 3)
        await wait_all_tasks_blocked()
        assert {value: type(outcome) for value, outcome in sends.outcomes.items()} == {b"1": Rejected}
        add_partitions(cluster, "t", 100)
        cluster.release("metadata")
    assert isinstance(sends.outcomes[b"2"], Ack)
    assert stored(cluster, TopicPartition("t", 99)) == [b"2"]


async def test_metadata_that_cannot_be_read_is_read_again(cluster: MemoryCluster) -> None:
    async with producing(cluster) as out:
        await out.send("t", b"known", partition=0)
        cluster.fail("metadata", REFUSED, times=3)
        with pytest.raises(Rejected, match=NO_99):
            await out.send("t", b"v", partition=99)
    assert len(cluster.requests("metadata")) == 5


async def test_while_metadata_cannot_be_read_the_record_waits_until_its_time_is_up(
    cluster: MemoryCluster, producer_clock: ProducerClock
) -> None:
    cluster.fail("metadata", REFUSED, times=None)
    tuning = Tuning(backoff=Backoff(0.001, 1, 0.001))
    async with producing(cluster, deliver_within=0.07, tuning=tuning) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        sends.start(b"v", 99)
        await cluster.wait_for_requests("metadata", 3)
        assert not sends.outcomes
        producer_clock.now += 1
    assert type(sends.outcomes[b"v"]) is NotWritten


# ---- partitions and topics that come and go -----------------------------------------------------------------------


@pytest.mark.parametrize("read", [1, 2])
async def test_a_partition_that_one_of_the_reads_has_gets_its_records(cluster: MemoryCluster, read: int) -> None:
    cluster.hold("metadata")
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        sends.start(b"1", 5)
        sends.start(b"2", 5)
        sends.start(b"v", 99)
        await cluster.wait_for_requests("metadata")
        if read == 2:
            cluster.release("metadata", count=1)
            await cluster.wait_for_requests("metadata", 2)
        add_partitions(cluster, "t", 6)
        cluster.release("metadata")
    assert set(stored(cluster, TopicPartition("t", 5))) == {b"1", b"2"}
    assert "t has no partition 99: it has 6, numbered from 0" in str(sends.outcomes[b"v"])


@pytest.mark.parametrize(("partitions", "exists"), [(6, True), (4, False)])
async def test_a_topic_that_is_deleted_meanwhile_is_waited_for(
    cluster: MemoryCluster, partitions: int, exists: bool
) -> None:
    cluster.hold("metadata")
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        sends.start(b"v", 5)
        await cluster.wait_for_requests("metadata")
        cluster.delete_topic("t")
        cluster.release("metadata")
        await wait_all_tasks_blocked()
        assert not sends.outcomes
        cluster.create_topic("t", partitions)
    assert isinstance(sends.outcomes[b"v"], Ack if exists else Rejected)
    assert values(cluster) == ([b"v"] if exists else [])


async def test_records_for_a_partition_of_a_topic_that_is_made_again_with_fewer_are_refused(
    cluster: MemoryCluster,
) -> None:
    cluster.stop_broker(2)
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        sends.start(b"v", 3)  # its broker does not run: it is waited for
        await wait_all_tasks_blocked()
        assert not sends.outcomes and not cluster.requests("metadata")
        cluster.delete_topic("t")
        cluster.create_topic("t", 2)
    assert "t has no partition 3: it has 2, numbered from 0" in str(sends.outcomes[b"v"])


@pytest.mark.parametrize("creates", [True, False])
async def test_a_deleted_topic_is_created_again_after_records_have_waited_for_it_in_vain(
    cluster: MemoryCluster, producer_clock: ProducerClock, monkeypatch: pytest.MonkeyPatch, *, creates: bool
) -> None:
    asked: list[str] = []

    async def later(value: bytes, over: bytes | None = None) -> None:
        producer_clock.now += 0.04
        sends.start(value, int(value))  # in a batch of its own
        while over is not None and over not in sends.outcomes:
            await anyio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()

    async with cluster.connect() as k, k.producer(deliver_within=0.07) as out, anyio.create_task_group() as tasks:
        original = k.driver.metadata.table_for_topic

        async def table_for_topic(name: str, *, create: bool = False) -> Any:
            asked.extend([name] * create)
            if creates:
                cluster.create_topic(name, 8)
            return await original(name)

        sends = Sends(out, tasks)
        await out.send("t", b"before", partition=0)
        monkeypatch.setattr(k.driver.metadata, "table_for_topic", table_for_topic)
        cluster.delete_topic("t")
        await later(b"1")
        await later(b"2")
        assert not sends.outcomes and not asked
        await later(b"3", b"1")
        assert asked == ["t"], "once, when the time of the first one is over"
        if not creates:
            await later(b"4", b"2")
            await later(b"5", b"3")
            assert asked == ["t"], "they were sent before it was looked up"
            await later(b"6", b"4")
            assert asked == ["t", "t"]
            cluster.create_topic("t", 8)
    written = {value for value, outcome in sends.outcomes.items() if isinstance(outcome, Ack)}
    assert written == ({b"2", b"3"} if creates else {b"5", b"6"})


async def test_where_brokers_number_their_partitions_nothing_is_looked_up_or_refused() -> None:
    double = Kafka07Double()
    double.metadata.brokers(1)
    unknown = TopicPartition("t", 0, 2)
    async with double.producing() as out, anyio.create_task_group() as tasks:
        await out.send("t", b"known", partition=TopicPartition("t", 0, 1))
        before = double.metadata.refreshed
        tasks.start_soon(partial(out.send, "t", b"v", partition=unknown))
        tasks.start_soon(partial(out.send_many, "t", [b"many"], partition=unknown))
        await wait_all_tasks_blocked()
        assert out.statistics().buffered == 2
        assert double.metadata.refreshed == before
        double.metadata.brokers(1, 2)
    assert sorted(double.log[unknown]) == [b"many", b"v"]


async def test_a_cancelled_send_to_a_partition_that_does_not_exist_is_a_failure(cluster: MemoryCluster) -> None:
    cluster.hold("metadata")
    async with producing(cluster) as out:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(out.send, "t", b"v", partition=99))
            await cluster.wait_for_requests("metadata")
            tasks.cancel_scope.cancel()
        cluster.release("metadata")
        await out.flush()
        (failed,) = out.failures.take()
        assert type(failed.error) is Rejected and failed.record.value == b"v"
        assert stored(cluster, P0) == []
