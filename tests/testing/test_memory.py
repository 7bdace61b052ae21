"""The in-memory cluster, by the clients that users drive it with: every call, and what a client makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pyarrow as pa
import pytest
from anyio.lowlevel import checkpoint

import odradek as od
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.interfaces import ProducerRecord
from odradek.errors import BrokerError, ConfigError, ConnectionLost, DeadlineError, Rejected, Unreachable
from odradek.testing import MemoryCluster
from odradek.types import AtTime, Record, TimestampType, TopicPartition

pytestmark = pytest.mark.anyio

ORDERS = TopicPartition("orders", 0)
IMPATIENT = Tuning(request_timeout=0.05, backoff=Backoff(0.001, 2, 0.002))

FULL = [
    ProducerRecord(b"v", b"k", (("h", b"1"), ("null", None)), 1_600_000_000_000),
    ProducerRecord(None, b"tombstone", (), 1_600_000_000_001),
    ProducerRecord(b"", None, (("e", b""),), 0),
    ProducerRecord(b"plain"),
]
"""Records with and without each thing that a record may lack."""


def cluster_of(values: int = 0, partitions: int = 1, brokers: int = 1) -> MemoryCluster:
    cluster = MemoryCluster(topics={"orders": partitions}, brokers=brokers)
    cluster.append("orders", [b"%d" % n for n in range(values)])
    return cluster


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(20):
        while not condition():
            await checkpoint()


async def read(cluster: MemoryCluster, **options: object) -> list[Record]:
    async with cluster.connect() as k, k.reader("orders", **{"until": od.LATEST, **options}) as reader:  # type: ignore[call-overload]
        return [record async for record in reader]


# ---- records --------------------------------------------------------------------------------------------------


async def send_all(k: od.Cluster, records: list[ProducerRecord]) -> None:
    async with k.producer() as out:
        for value, key, headers, timestamp in records:
            await out.send("orders", value, key=key, headers=headers, timestamp=timestamp)


async def test_null_values_keys_headers_and_timestamps_are_stored_as_sent() -> None:
    cluster = cluster_of()
    cluster.clock.hold(1_700_000_000.5)
    async with cluster.connect() as k:
        await send_all(k, FULL)
    stored = cluster.records("orders")
    assert [each.record._replace(headers=tuple(each.record.headers)) for each in stored] == FULL
    assert [each.offset for each in stored] == [0, 1, 2, 3]
    assert [each.timestamp for each in stored] == [1_600_000_000_000, 1_600_000_000_001, 0, 1_700_000_000_500]
    assert [each.timestamp_type for each in stored] == [TimestampType.CREATE_TIME] * 4
    assert cluster.log(ORDERS) == stored


async def test_a_reader_gets_null_values_keys_headers_and_timestamps() -> None:
    cluster = cluster_of()
    cluster.clock.hold(1_700_000_000)
    cluster.append("orders", FULL)
    records = await read(cluster)
    assert [(r.value, r.key, tuple(r.headers)) for r in records] == [(v, k, h) for v, k, h, _ in FULL]
    assert [r.timestamp for r in records] == [1_600_000_000_000, 1_600_000_000_001, 0, 1_700_000_000_000]
    assert [(r.position, r.next_position) for r in records] == [(0, 1), (1, 2), (2, 3), (3, 4)]


async def test_arrow_tables_carry_null_values_keys_headers_and_timestamps() -> None:
    cluster = cluster_of()
    cluster.append("orders", FULL[:3])
    async with cluster.connect() as k, k.reader("orders", until=od.LATEST) as reader:
        table = pa.concat_tables([table async for table in reader.arrow()])
    assert table.column("value").to_pylist() == [b"v", None, b""]
    assert table.column("key").to_pylist() == [b"k", b"tombstone", None]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [record.timestamp for record in FULL[:3]]


async def test_an_arrow_table_with_nulls_is_sent_and_read_back() -> None:
    cluster = cluster_of()
    values, keys = [b"a", None, b"c"], [None, b"k", b""]
    table = pa.table({"value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.binary())})
    async with cluster.connect() as k, k.producer() as out:
        (await out.send_arrow("orders", table, key="key")).check()
    assert [(each.value, each.key) for each in cluster.records("orders")] == list(zip(values, keys, strict=True))
    assert [(r.value, r.key) for r in await read(cluster)] == list(zip(values, keys, strict=True))


async def test_a_consumer_gets_every_record_and_what_is_done_is_committed() -> None:
    cluster = cluster_of(values=5)
    async with cluster.connect() as k, k.consumer("orders", group="g") as consumer:
        async for batch in consumer.batches(max_records=3):
            batch.done()
            if batch.values[-1] == b"4":
                break
    assert cluster.committed("g") == {ORDERS: 5}
    assert cluster.committed("other") == {}


async def test_each_calls_the_handler_and_commits_with_null_values_on_the_way() -> None:
    cluster = cluster_of()
    cluster.append("orders", FULL)
    seen: list[bytes | None] = []

    async with cluster.connect() as k, k.consumer("orders", group="g") as consumer, anyio.create_task_group() as tasks:

        async def handle(record: Record) -> None:
            seen.append(record.value)

        tasks.start_soon(consumer.each, handle)
        await until(lambda: len(seen) == 4)
        tasks.cancel_scope.cancel()
    assert seen == [b"v", None, b"", b"plain"]
    assert cluster.committed("g") == {ORDERS: 4}


async def test_a_deleted_part_of_the_log_is_not_read() -> None:
    cluster = cluster_of(values=5)
    cluster.delete_records(ORDERS, before=3)
    assert [r.value for r in await read(cluster)] == [b"3", b"4"]
    assert [each.offset for each in cluster.log(ORDERS)] == [3, 4]


async def test_a_time_is_resolved_to_the_first_record_from_then_on() -> None:
    cluster = cluster_of()
    cluster.append("orders", [ProducerRecord(b"%d" % n, timestamp=1000 * n) for n in range(4)])
    async with cluster.connect() as k:
        assert await k.positions("orders", AtTime(2.0)) == {ORDERS: 2}
        assert await k.positions("orders", AtTime(9.0)) == {ORDERS: 4}


async def test_a_time_between_two_milliseconds_is_the_later_one() -> None:
    cluster = cluster_of()
    cluster.append("orders", [ProducerRecord(b"%d" % n, timestamp=1_700_000_000_122 + n) for n in range(3)])
    async with cluster.connect() as k:
        assert await k.positions("orders", AtTime(1_700_000_000.123)) == {ORDERS: 1}  # as a float, it is a little less
        assert await k.positions("orders", AtTime(1_700_000_000.1231)) == {ORDERS: 2}


async def test_a_record_larger_than_the_limit_is_rejected() -> None:
    cluster = cluster_of()
    async with cluster.connect() as k, k.producer(max_message_bytes=100) as out:
        with pytest.raises(Rejected, match="max_message_bytes"):
            await out.send("orders", bytes(101))
    assert cluster.records("orders") == []


# ---- topics ---------------------------------------------------------------------------------------------------


async def test_records_wait_until_their_topic_is_created() -> None:
    cluster = MemoryCluster()
    async with cluster.connect() as k, k.producer() as out, anyio.create_task_group() as tasks:
        tasks.start_soon(out.send, "late", b"x")
        await until(lambda: out.statistics().buffered)
        cluster.create_topic("late", 2)
    assert [each.value for each in cluster.records("late")] == [b"x"]


async def test_a_reader_of_an_open_end_finds_a_new_topic() -> None:
    cluster = MemoryCluster()
    async with cluster.connect() as k, k.reader("late") as reader:
        cluster.create_topic("late")
        cluster.append("late", [b"x"])
        with anyio.fail_after(20):
            assert (await anext(reader)).value == b"x"


async def test_topics_and_partitions_are_listed_until_they_are_deleted() -> None:
    cluster = MemoryCluster(topics={"a": 2, "b": 1})
    async with cluster.connect() as k:
        assert await k.topics() == {"a", "b"}
        assert await k.partitions("a") == (TopicPartition("a", 0), TopicPartition("a", 1))
        cluster.delete_topic("a")
        assert await k.topics() == {"b"}
        assert await k.partitions("a") == ()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cluster: cluster.create_topic("orders"),
        lambda cluster: cluster.create_topic("new", 0),
        lambda cluster: cluster.delete_topic("none"),
        lambda cluster: cluster.append("orders", [b"x"], partition=7),
        lambda cluster: cluster.records("none"),
        lambda cluster: cluster.log(TopicPartition("orders", 7)),
        lambda cluster: cluster.stop_broker(9),
        lambda cluster: cluster.move_leader(ORDERS, 9),
        lambda cluster: cluster.fail("teleport", Unreachable("tcp", "x", "y")),
        lambda cluster: cluster.fail("fetch", Unreachable("tcp", "x", "y"), broker=9),
        lambda cluster: cluster.fail("fetch", Unreachable("tcp", "x", "y"), applied=True),
        lambda cluster: cluster.fail("produce", BrokerError(5, "X"), applied=True),
        lambda cluster: cluster.revoke("g", TopicPartition("orders", 7)),
        lambda cluster: cluster.delay("teleport", 1),
        lambda cluster: cluster.hold("teleport"),
        lambda cluster: cluster.release("teleport"),
        lambda cluster: cluster.expire("g", "g_1"),
        lambda cluster: MemoryCluster(brokers=0),
    ],
)
def test_a_test_that_names_what_does_not_exist_gets_a_config_error(wrong: Callable[[MemoryCluster], object]) -> None:
    with pytest.raises(ConfigError):
        wrong(cluster_of())


# ---- brokers --------------------------------------------------------------------------------------------------


async def test_a_producer_follows_a_leader_that_moved_unannounced() -> None:
    cluster = cluster_of(brokers=2)
    async with cluster.connect() as k, k.producer() as out:
        await out.send("orders", b"before")
        cluster.move_leader(ORDERS, 2)
        leader = k.driver.metadata.table.leader(ORDERS)
        assert leader is not None
        assert leader.id == 1, "clients are not told"
        with anyio.fail_after(20):
            await out.send("orders", b"after")
        leader = k.driver.metadata.table.leader(ORDERS)
        assert leader is not None
        assert leader.id == 2
    assert [each.value for each in cluster.records("orders")] == [b"before", b"after"]


async def test_a_reader_follows_a_leader_that_moved_unannounced() -> None:
    cluster = cluster_of(values=1, brokers=2)
    async with cluster.connect() as k, k.reader("orders") as reader:
        assert (await anext(reader)).value == b"0"
        cluster.move_leader(ORDERS, 2)
        cluster.append("orders", [b"1"])
        with anyio.fail_after(20):
            assert (await anext(reader)).value == b"1"


async def test_records_wait_while_their_broker_is_stopped() -> None:
    cluster = cluster_of()
    async with cluster.connect() as k, k.producer() as out, anyio.create_task_group() as tasks:
        await out.send("orders", b"0")
        cluster.stop_broker(1)
        tasks.start_soon(out.send, "orders", b"1")
        for _ in range(20):
            await checkpoint()
        assert len(cluster.records("orders")) == 1
        cluster.start_broker(1)
    assert [each.value for each in cluster.records("orders")] == [b"0", b"1"]


async def test_partitions_of_a_stopped_broker_are_moved_and_read_on() -> None:
    cluster = cluster_of(values=1, brokers=2)
    async with cluster.connect() as k, k.reader("orders") as reader:
        assert (await anext(reader)).value == b"0"
        cluster.stop_broker(1)
        cluster.move_leader(ORDERS, 2)
        cluster.append("orders", [b"1"])
        with anyio.fail_after(20):
            assert (await anext(reader)).value == b"1"


async def test_a_request_in_flight_to_a_stopped_broker_is_sent_again_when_it_starts() -> None:
    cluster = cluster_of()
    cluster.hold("produce")
    async with cluster.connect() as k, k.producer() as out, anyio.create_task_group() as tasks:
        tasks.start_soon(out.send, "orders", b"x")
        for _ in range(20):
            await checkpoint()
        cluster.stop_broker(1)
        cluster.release("produce")
        cluster.start_broker(1)
    assert [each.value for each in cluster.records("orders")] == [b"x"]


# ---- faults ---------------------------------------------------------------------------------------------------

LOADING = BrokerError(5, "LEADER_NOT_AVAILABLE", retriable=True, refresh_metadata=True)
LOST = ConnectionLost("memory-1:9092", "reset", True)
DENIED = BrokerError(29, "TOPIC_AUTHORIZATION_FAILED", fatal=False)


@pytest.mark.parametrize("error", [LOADING, LOST], ids=["answered", "lost"])
async def test_a_retriable_error_of_a_produce_is_retried(error: od.OdradekError) -> None:
    cluster = cluster_of()
    cluster.fail("produce", error, times=3)
    async with cluster.connect() as k, k.producer() as out:
        with anyio.fail_after(20):
            await out.send("orders", b"x")
        assert out.statistics().retries == 3
    assert [each.value for each in cluster.records("orders")] == [b"x"]


@pytest.mark.parametrize("acks", ["all", 1])
async def test_a_record_whose_response_is_lost_is_stored_once_or_twice_and_says_so(acks: Any) -> None:
    cluster = cluster_of()
    async with cluster.connect() as k, k.producer(acks=acks) as out:
        await out.send("orders", b"w")
        cluster.fail("produce", LOST, applied=True)
        with anyio.fail_after(20):
            ack = await out.send("orders", b"x")
    assert (ack.repeated, ack.position) == ((False, 1) if acks == "all" else (True, 2))
    assert [each.value for each in cluster.records("orders")] == [b"w", *[b"x"] * (1 + ack.repeated)]


@pytest.mark.parametrize("lose", ["truncate", "recreate"])
async def test_an_idempotent_producer_goes_on_in_a_log_that_has_lost_its_records(lose: str) -> None:
    cluster = cluster_of()
    async with cluster.connect() as k, k.producer(latency=0) as out:
        for value in (b"1", b"2"):
            await out.send("orders", value)
        if lose == "truncate":
            cluster.truncate_log(ORDERS, 1)
        else:
            cluster.recreate_topic("orders")
        for value in (b"3", b"4"):
            await out.send("orders", value)
    kept = [b"1"] if lose == "truncate" else []
    assert [each.value for each in cluster.records("orders")] == [*kept, b"3", b"4"]


async def test_a_final_error_of_a_produce_is_raised_for_its_partition_only() -> None:
    cluster = cluster_of(partitions=2)
    cluster.fail("produce", DENIED, partition=ORDERS)
    async with cluster.connect() as k, k.producer() as out:
        with pytest.raises(Rejected, match="TOPIC_AUTHORIZATION_FAILED"):
            await out.send("orders", b"x", partition=0)
        await out.send("orders", b"y", partition=1)
        await out.send("orders", b"z", partition=0)
    assert [each.value for each in cluster.records("orders")] == [b"z", b"y"]


@pytest.mark.parametrize("error", [LOADING, LOST], ids=["answered", "lost"])
async def test_a_retriable_error_of_a_fetch_costs_nothing(error: od.OdradekError) -> None:
    cluster = cluster_of(values=3)
    cluster.fail("fetch", error, times=2, broker=1)
    assert [r.value for r in await read(cluster)] == [b"0", b"1", b"2"]


async def test_a_final_error_of_a_fetch_is_raised_to_the_reader() -> None:
    cluster = cluster_of(values=3)
    cluster.fail("fetch", DENIED, partition=ORDERS)
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        await read(cluster)


async def test_metadata_that_cannot_be_read_is_an_error_once() -> None:
    cluster = cluster_of()
    cluster.fail("metadata", LOST)
    async with cluster.connect() as k:
        with pytest.raises(ConnectionLost):
            await k.topics()
        assert await k.topics() == {"orders"}


async def test_connecting_and_resolving_positions_can_fail() -> None:
    cluster = cluster_of()
    cluster.fail("connect", Unreachable("tcp", "memory-1:9092", "refused"))
    with pytest.raises(Unreachable, match="refused"):
        async with cluster.connect():
            pass
    async with cluster.connect() as k:
        cluster.fail("positions", DENIED)
        with pytest.raises(BrokerError):
            await k.positions("orders", od.LATEST)
        assert await k.positions("orders", od.LATEST) == {ORDERS: 0}


async def test_a_failed_commit_is_stored_by_the_next_one() -> None:
    cluster = cluster_of(values=1)
    async with cluster.connect() as k, k.consumer("orders", group="g", commit_every=None) as consumer:
        batch = await anext(aiter(consumer.batches()))
        batch.done()
        cluster.fail("commit", LOST)
        with pytest.raises(ConnectionLost):
            await consumer.commit()
        assert cluster.committed("g") == {}
        assert await consumer.commit() == {ORDERS: 1}
    assert cluster.committed("g") == {ORDERS: 1}


async def test_joining_is_retried_after_a_retriable_error_and_fails_after_a_final_one() -> None:
    cluster = cluster_of()
    async with cluster.connect() as k:
        for operation in ("join", "committed"):
            cluster.fail(operation, LOADING, times=2)
        async with k.consumer("orders", group="g") as consumer:
            assert set(consumer.assignment) == {ORDERS}
        cluster.fail("join", DENIED)
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            async with k.consumer("orders", group="g"):
                pass


async def test_a_held_operation_waits_until_it_is_released() -> None:
    cluster = cluster_of()
    cluster.hold("produce")
    async with cluster.connect() as k, k.producer() as out, anyio.create_task_group() as tasks:
        tasks.start_soon(out.send, "orders", b"x")
        for _ in range(20):
            await checkpoint()
        assert cluster.records("orders") == []
        cluster.release("produce")
    assert len(cluster.records("orders")) == 1


async def test_a_held_operation_ends_at_the_time_limit_of_its_client() -> None:
    cluster = cluster_of()
    cluster.hold("positions")
    async with cluster.connect(tuning=IMPATIENT) as k:
        with pytest.raises(DeadlineError):
            await k.positions("orders", od.LATEST)
    cluster.hold("connect")
    with pytest.raises(DeadlineError):
        async with cluster.connect(tuning=Tuning(connect_timeout=0.05)):
            pass


async def test_a_healed_cluster_has_no_fault_left() -> None:
    cluster = cluster_of(values=1, brokers=2)
    cluster.stop_broker(1)
    cluster.hold("connect")
    cluster.delay("metadata", 1e9)
    cluster.fail("positions", DENIED, times=100)
    cluster.heal()
    assert [r.value for r in await read(cluster)] == [b"0"]


# ---- the clock ------------------------------------------------------------------------------------------------


async def test_a_delay_lasts_until_the_held_clock_is_advanced() -> None:
    cluster = cluster_of()
    cluster.clock.hold(1000.0)
    cluster.delay("produce", 5.0)
    async with cluster.connect() as k, k.producer() as out, anyio.create_task_group() as tasks:
        tasks.start_soon(out.send, "orders", b"x")
        for seconds in (0.0, 4.5):
            cluster.clock.advance(seconds)
            for _ in range(20):
                await checkpoint()
            assert cluster.records("orders") == []
        cluster.clock.advance(0.5)
    assert [each.timestamp for each in cluster.records("orders")] == [1_005_000]


async def test_a_delay_passes_by_itself_while_the_clock_runs() -> None:
    cluster = cluster_of()
    cluster.delay("produce", 0.01)
    begin = cluster.clock.now()
    async with cluster.connect() as k, k.producer() as out:
        await out.send("orders", b"x")
    assert cluster.clock.now() >= begin + 0.01


def test_only_a_held_clock_can_be_advanced() -> None:
    clock = MemoryCluster().clock
    with pytest.raises(RuntimeError, match="hold"):
        clock.advance(1)
    clock.hold(10.0)
    clock.advance(1)
    assert clock.now() == 11.0
    clock.release()
    assert clock.now() > 1_000_000


# ---- groups ---------------------------------------------------------------------------------------------------


async def test_consumers_of_several_clients_share_the_partitions_and_take_over() -> None:
    cluster = cluster_of(partitions=4)
    async with cluster.connect() as one, cluster.connect() as two, one.consumer("orders", group="g") as first:
        assert len(first.assignment) == 4
        async with two.consumer("orders", group="g") as second:
            await until(lambda: len(first.assignment) == len(second.assignment) == 2)
            assert not first.assignment.keys() & second.assignment.keys()
            owned = cluster.members("g")
            assert owned == {c.consumer_id: set(c.assignment) for c in (first, second)}
        await until(lambda: len(first.assignment) == 4)
        assert await one.driver.groups() == ["g"]
    assert cluster.members("g") == {}


async def test_partitions_that_are_revoked_belong_to_nobody_until_they_are_restored() -> None:
    cluster = cluster_of(partitions=2)
    cluster.append("orders", [b"x"])
    async with cluster.connect() as k, k.consumer("orders", group="g", commit_every=None) as consumer:
        batch = await anext(aiter(consumer.batches()))
        cluster.revoke("g", ORDERS)
        batch.done()
        with anyio.fail_after(10):
            while ORDERS in cluster.members("g")[consumer.consumer_id]:
                await anyio.lowlevel.checkpoint()
            assert cluster.committed("g")[ORDERS] == 1, "committed before it is released"
            assert len(consumer.assignment) == 1, "the other one stays"
            cluster.restore("g")
            while ORDERS not in consumer.assignment:
                await anyio.lowlevel.checkpoint()


async def test_an_expired_member_commits_nothing_and_joins_again() -> None:
    cluster = cluster_of(values=2)
    async with cluster.connect() as k, k.consumer("orders", group="g", commit_every=None) as consumer:
        batches = consumer.batches(max_records=1)
        batch = await anext(batches)
        cluster.expire("g", consumer.consumer_id)
        batch.done()
        assert await consumer.commit() == {}
        assert cluster.committed("g") == {}
        again = await anext(batches)
        assert again.values[0] == b"0"
        again.done()
        assert await consumer.commit() == {ORDERS: 1}


async def test_a_commit_that_is_under_way_when_the_session_expires_is_not_stored() -> None:
    cluster = cluster_of(values=1)
    async with cluster.connect() as k, k.consumer("orders", group="g", commit_every=None) as consumer:
        (await anext(aiter(consumer.batches()))).done()
        cluster.hold("commit")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.commit)
            for _ in range(20):
                await checkpoint()
            cluster.expire("g")
            cluster.release("commit")
    assert cluster.committed("g") == {}


async def test_a_pattern_takes_the_topics_that_match_and_new_ones_too() -> None:
    cluster = MemoryCluster(topics={"a1": 1, "b": 1})
    async with cluster.connect() as k, k.consumer(include="a.*", group="g") as consumer:
        assert {p.topic for p in consumer.assignment} == {"a1"}
        cluster.create_topic("a2")
        await until(lambda: {p.topic for p in consumer.assignment} == {"a1", "a2"})


async def test_positions_of_a_group_are_read_and_set_from_outside() -> None:
    cluster = cluster_of(values=3)
    async with cluster.connect() as k:
        await k.driver.offsets("g").commit({ORDERS: od.Position(2)})
        assert await k.driver.offsets("g").fetch([ORDERS]) == {ORDERS: 2}
        async with k.consumer("orders", group="g") as consumer:
            assert (await anext(aiter(consumer))).value == b"2"


def test_one_cluster_serves_one_event_loop_after_the_other() -> None:
    cluster = cluster_of()

    async def send() -> None:
        async with cluster.connect() as k, k.producer() as out:
            await out.send("orders", b"x")

    for backend in ("asyncio", "trio", "asyncio"):
        anyio.run(send, backend=backend)
    assert len(cluster.records("orders")) == 3
