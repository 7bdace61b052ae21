"""Requests to brokers of the in-memory cluster: what a test sees of them, and how it holds, cuts and refuses them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked

import odradek as od
from odradek.client.options import Tuning
from odradek.client.producer.producer import Producer
from odradek.core.backoff import Backoff
from odradek.core.interfaces import ProducerRecord
from odradek.errors import (
    BrokerError,
    ConfigError,
    ConnectionLost,
    DeadlineError,
    MessageTooLarge,
    NotWritten,
    OutcomeUnknown,
    Rejected,
    Undelivered,
    Unreachable,
)
from odradek.testing import MemoryCluster
from odradek.testing.memory import MemoryBatch, MemoryRequest
from odradek.types import TimestampType, TopicPartition

pytestmark = pytest.mark.anyio

T0, T1, T2, T3 = (TopicPartition("t", number) for number in range(4))
"""Broker 1 leads the first and third, broker 2 the others."""
LOST = ConnectionLost("memory-1:9092", "reset", True)
REFUSED = Unreachable("tcp", "memory-1:9092", "refused")
UNSENT = ConnectionLost("memory-1:9092", "reset", False)


def cluster_of_two() -> MemoryCluster:
    return MemoryCluster(topics={"t": 4}, brokers=2)


@asynccontextmanager
async def producing(cluster: MemoryCluster, tuning: Tuning | None = None, **options: Any) -> AsyncIterator[Producer]:
    async with cluster.connect(tuning=tuning) as k, k.producer(**options) as out:
        yield out


def values(cluster: MemoryCluster) -> list[bytes | None]:
    return [stored.value for stored in cluster.records("t")]


# ---- what a test sees of them ---------------------------------------------------------------------------------


async def test_produce_requests_are_seen_with_their_records() -> None:
    cluster = cluster_of_two()
    async with producing(cluster, compression="gzip", acks=1) as out:
        assert (await out.send_many("t", [(b"k", b"a"), b"b"], partition=T0)).written == 2
        await out.send("t", b"c", partition=T1)
    first, second = cluster.requests("produce")
    assert (first.broker, first.acks, dict(first.partitions)) == (1, 1, {T0: 2})
    assert first.batches == (MemoryBatch(T0, [ProducerRecord(b"a", b"k"), b"b"], "gzip"),)
    assert first.batches[0].values == [b"a", b"b"]
    assert cluster.requests("produce", broker=2) == [second]


async def test_requests_of_every_operation_are_seen() -> None:
    cluster = cluster_of_two()
    async with cluster.connect() as k:
        await k.topics()
        await k.positions("t", od.LATEST)
        async with k.reader("t", until=od.LATEST) as reader:
            assert [record async for record in reader] == []
    assert cluster.requests("connect")[0] == MemoryRequest("connect", None)
    assert {request.broker for request in cluster.requests("connect")} == {None, 1, 2}
    assert cluster.requests("metadata")
    assert {p for request in cluster.requests("positions", broker=2) for p in request.partitions} == {T1, T3}
    assert cluster.requests("produce") == []


async def test_a_test_can_wait_for_requests_that_are_held() -> None:
    cluster = cluster_of_two()
    cluster.hold("produce")
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: out.send("t", b"a", partition=T0))
        await cluster.wait_for_requests("produce")
        tasks.start_soon(lambda: out.send("t", b"b", partition=T1))
        await cluster.wait_for_requests("produce", broker=2)
        await cluster.wait_for_requests("produce", 2)
        assert values(cluster) == []
        cluster.release("produce")
    assert values(cluster) == [b"a", b"b"]


# ---- holding --------------------------------------------------------------------------------------------------


async def test_requests_to_one_broker_are_held_and_those_to_another_served() -> None:
    cluster = cluster_of_two()
    cluster.hold("produce", broker=1)
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: out.send("t", b"held", partition=T0))
        await out.send("t", b"served", partition=T1)
        await cluster.wait_for_requests("produce", broker=1)
        cluster.release("produce", broker=2)
        await wait_all_tasks_blocked()
        assert values(cluster) == [b"served"]
        cluster.release("produce", broker=1)
    assert values(cluster) == [b"held", b"served"]


async def test_held_requests_are_released_one_by_one() -> None:
    cluster = cluster_of_two()
    cluster.hold("produce", broker=1)
    async with producing(cluster, latency=0) as out:
        for value, partition in ((b"a", T0), (b"b", T2)):
            await out.put("t", value, partition=partition)
            await wait_all_tasks_blocked()
        assert len(cluster.requests("produce")) == 2
        cluster.release("produce", count=1)
        await wait_all_tasks_blocked()
        assert values(cluster) == [b"a"]
        cluster.release("produce", broker=1, count=1)
        await out.flush()
        assert values(cluster) == [b"a", b"b"]
        cluster.release("produce")
        cluster.hold("produce")
        await out.put("t", b"c", partition=T0)
        await wait_all_tasks_blocked()
        assert len(values(cluster)) == 2, "no release is left over"
        cluster.release("produce")
    assert values(cluster) == [b"a", b"c", b"b"]


async def test_entering_a_client_is_not_held_with_the_connections_to_one_broker() -> None:
    cluster = cluster_of_two()
    cluster.hold("connect", broker=1)
    async with producing(cluster) as out:
        await out.send("t", b"v", partition=T1)
    assert values(cluster) == [b"v"]


async def test_what_waits_for_a_connection_can_be_taken_back() -> None:
    cluster = cluster_of_two()
    cluster.hold("connect", broker=1)
    with pytest.raises(Undelivered) as caught:
        async with producing(cluster, exit_within=0) as out:
            await out.put("t", b"v", partition=T0)
            await cluster.wait_for_requests("connect", broker=1)
    (failed,) = caught.value.records
    assert type(failed.error) is NotWritten
    assert cluster.requests("produce") == []
    cluster.release("connect")
    assert values(cluster) == []


async def test_what_waits_for_a_connection_is_sent_when_there_is_one() -> None:
    cluster = cluster_of_two()
    cluster.hold("connect", broker=1)
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: out.send("t", b"v", partition=T0))
        await cluster.wait_for_requests("connect", broker=1)
        assert cluster.requests("produce") == []
        cluster.release("connect", broker=1)
    assert values(cluster) == [b"v"]


async def test_connecting_for_too_long_is_an_error_after_which_nothing_was_sent() -> None:
    cluster = cluster_of_two()
    cluster.hold("connect", broker=1)
    async with cluster.connect(tuning=Tuning(connect_timeout=0.01)) as k:
        with pytest.raises(DeadlineError, match="connecting to memory-1:9092") as caught:
            await k.positions("t", od.LATEST)
    assert not caught.value.sent


async def test_a_connection_that_is_refused_is_tried_again() -> None:
    cluster = cluster_of_two()
    cluster.fail("connect", REFUSED, times=2, broker=1)
    async with producing(cluster) as out:
        assert not (await out.send("t", b"v", partition=T0)).repeated
    assert len(cluster.requests("connect", broker=1)) == 3


# ---- cutting --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [0, 1, 2])
@pytest.mark.parametrize("acks", ["all", 1])
async def test_after_a_cut_what_was_applied_is_stored_twice_unless_the_producer_is_idempotent(
    applied: int, acks: Any
) -> None:
    cluster, repeated = cluster_of_two(), acks == 1
    cluster.hold("produce", broker=1)
    async with producing(cluster, latency=0, acks=acks) as out, anyio.create_task_group() as tasks:
        done: dict[bytes, od.Ack] = {}

        async def send(value: bytes, partition: TopicPartition) -> None:
            done[value] = await out.send("t", value, partition=partition)

        for value, partition in ((b"a", T0), (b"b", T2)):
            tasks.start_soon(send, value, partition)
            await wait_all_tasks_blocked()
        cluster.cut(1, applied=applied)
        cluster.release("produce")
    assert [stored.value for stored in cluster.log(T0)] == [b"a"] * (1 + (repeated and applied > 0))
    assert [stored.value for stored in cluster.log(T2)] == [b"b"] * (1 + (repeated and applied > 1))
    assert [ack.repeated for ack in done.values()] == [repeated] * 2
    assert len(cluster.requests("connect", broker=1)) == 2


async def test_after_a_cut_before_anything_was_sent_nothing_is_repeated() -> None:
    cluster = cluster_of_two()
    cluster.hold("produce", broker=1)
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        acks: list[od.Ack] = []

        async def send() -> None:
            acks.append(await out.send("t", b"v", partition=T0))

        tasks.start_soon(send)
        await cluster.wait_for_requests("produce")
        cluster.cut(1, error=UNSENT)
        cluster.release("produce")
    assert not acks[0].repeated
    assert values(cluster) == [b"v"]


async def test_a_cut_ends_requests_with_its_error_and_spares_other_brokers() -> None:
    cluster = cluster_of_two()
    cluster.hold("positions", broker=1)
    async with cluster.connect() as k, anyio.create_task_group() as tasks:
        errors: list[Exception] = []

        async def ask() -> None:
            try:
                await k.positions("t", od.LATEST)
            except DeadlineError as error:
                errors.append(error)

        tasks.start_soon(ask)
        await cluster.wait_for_requests("positions", broker=1)
        await wait_all_tasks_blocked()
        cluster.cut(2)
        await wait_all_tasks_blocked()
        assert not errors
        cluster.cut(1, error=DeadlineError("positions", 10, True))
    assert ["no answer within 10 s" in str(error) for error in errors] == [True]


async def test_a_cut_during_a_long_fetch_loses_nothing() -> None:
    cluster = cluster_of_two()
    async with cluster.connect() as k, k.reader("t") as reader:
        await cluster.wait_for_requests("fetch", broker=1)
        cluster.cut(1)
        cluster.append("t", [b"v"])
        assert (await anext(reader)).value == b"v"


async def test_a_broker_that_restarts_before_it_served_anything_has_lost_its_connections() -> None:
    cluster = cluster_of_two()
    async with producing(cluster) as out:
        await out.send("t", b"a", partition=T0)
        assert out.try_put("t", b"b", partition=T0)
        cluster.hold("produce", broker=1)
        await cluster.wait_for_requests("produce", 2)
        cluster.stop_broker(1)
        cluster.start_broker(1)
        cluster.release("produce")
        await out.flush()
    assert len(cluster.requests("connect", broker=1)) == 2
    assert values(cluster) == [b"a", b"b"]


# ---- refusing -------------------------------------------------------------------------------------------------


async def test_what_fails_every_time_ends_when_a_test_says_so() -> None:
    cluster = cluster_of_two()
    cluster.fail("produce", REFUSED, times=None, broker=1)
    cluster.fail("produce", REFUSED, times=None, broker=2)
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: out.send("t", b"v", partition=T0))
        await cluster.wait_for_requests("produce", 4, broker=1)
        cluster.stop_failing("produce", broker=1)
        cluster.stop_failing("fetch")
        with pytest.raises(NotWritten, match="refused"):
            async with producing(cluster, deliver_within=0.5) as other:
                await other.send("t", b"v", partition=T1)
    assert values(cluster) == [b"v"]


async def test_one_partition_stops_failing_and_another_does_not() -> None:
    cluster = cluster_of_two()
    denied = BrokerError(29, "TOPIC_AUTHORIZATION_FAILED")
    cluster.fail("produce", denied, times=None, partition=T0)
    cluster.fail("produce", denied, times=None, partition=T2)
    async with producing(cluster) as out:
        cluster.stop_failing("produce", partition=T0)
        await out.send("t", b"v", partition=T0)
        for _ in range(3):
            with pytest.raises(Rejected):
                await out.send("t", b"v", partition=T2)


async def test_a_client_that_cannot_hear_of_changes_has_ended() -> None:
    cluster = cluster_of_two()
    with pytest.raises(BrokerError, match="SASL_AUTHENTICATION_FAILED"):
        async with producing(cluster) as out:
            await out.send("t", b"v")
            cluster.fail("watch", BrokerError(58, "SASL_AUTHENTICATION_FAILED"))
            await wait_all_tasks_blocked()
            with pytest.raises(od.Closed, match="the producer stopped"):
                await out.send("t", b"v")


async def test_a_request_in_flight_when_the_client_ends_is_unknown() -> None:
    cluster = cluster_of_two()
    cluster.hold("produce")
    outcomes: list[Exception] = []
    with pytest.raises(ConnectionLost):
        async with producing(cluster) as out, anyio.create_task_group() as tasks:

            async def send() -> None:
                try:
                    await out.send("t", b"v")
                except OutcomeUnknown as error:
                    outcomes.append(error)

            tasks.start_soon(send)
            await cluster.wait_for_requests("produce")
            cluster.fail("watch", LOST)
    assert len(outcomes) == 1


NOISE = bytes((n * n * 31 + n * 17 + n // 3) % 256 for n in range(1000))


async def test_of_a_compressed_batch_the_compressed_size_counts() -> None:
    cluster = cluster_of_two()
    async with producing(cluster, compression="lz4", max_message_bytes=200) as out:
        acks = await out.send_many("t", [b"x" * 1000, NOISE, b"y" * 1000], partition=T0)
    assert values(cluster) == [b"x" * 1000, b"y" * 1000]
    (failed,) = acks.failed
    assert failed.record.value == NOISE
    assert isinstance(failed.error.__cause__, MessageTooLarge)


async def test_a_compressed_batch_that_is_too_large_is_sent_in_parts() -> None:
    cluster = cluster_of_two()
    rows = [NOISE[n : n + 50] for n in range(20)]
    async with producing(cluster, compression="gzip", max_message_bytes=100) as out:
        acks = await out.send_many("t", rows, partition=T0)
    assert values(cluster) == rows
    assert len(acks.acks) > 3


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cluster: cluster.hold("produce", broker=9),
        lambda cluster: cluster.hold("commit", broker=1),
        lambda cluster: cluster.hold("watch"),
        lambda cluster: cluster.release("produce", broker=9),
        lambda cluster: cluster.release("produce", count=1),
        lambda cluster: cluster.release("connect", broker=1),
        lambda cluster: cluster.release("fetch", count=0),
        lambda cluster: cluster.release("positions", broker=2, count=1),
        lambda cluster: cluster.release("fetch", broker=1, count=1),
        lambda cluster: cluster.requests("teleport"),
        lambda cluster: cluster.requests("join", broker=1),
        lambda cluster: cluster.wait_for_requests("teleport").send(None),
        lambda cluster: cluster.wait_for_requests("fetch", broker=9).send(None),
        lambda cluster: cluster.cut(9),
        lambda cluster: cluster.cut(1, applied=-1),
        lambda cluster: cluster.fail("fetch", LOST, times=0),
        lambda cluster: cluster.stop_failing("teleport"),
        lambda cluster: cluster.stop_failing("fetch", broker=9),
        lambda cluster: cluster.stop_failing("fetch", partition=TopicPartition("t", 9)),
    ],
)
def test_what_does_not_exist_is_a_config_error(wrong: Callable[[Any], object]) -> None:
    cluster = cluster_of_two()
    cluster.hold("fetch", broker=1)
    cluster.hold("positions", broker=1)
    cluster.hold("connect")
    with pytest.raises(ConfigError):
        wrong(cluster)


def test_a_client_that_was_given_a_backoff_waits_that_long_after_a_cut() -> None:
    async def main() -> None:
        cluster = cluster_of_two()
        tuning = Tuning(backoff=Backoff(1000, 1, 1000))
        cluster.hold("produce", broker=1)
        with pytest.raises(Undelivered):
            async with producing(cluster, tuning, exit_within=0) as out:
                await out.put("t", b"v", partition=T0)
                await cluster.wait_for_requests("produce")
                cluster.cut(1)
                cluster.release("produce")
                await wait_all_tasks_blocked()
                assert len(cluster.requests("connect", broker=1)) == 1

    anyio.run(main)


# ---- what the configuration of a topic allows -------------------------------------------------------------------


async def configure(k: od.Cluster, **config: str) -> None:
    changes = {name.replace("_", "."): value for name, value in config.items()}
    (await k.admin.alter_topic_configs({"t": changes})).check()


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_a_batch_larger_than_the_topic_allows_is_sent_in_parts_and_such_a_record_is_refused(
    compression: Any,
) -> None:
    cluster = MemoryCluster(topics={"t": 1})
    async with cluster.connect() as k, k.producer(compression=compression) as out:
        await configure(k, max_message_bytes="200")
        many = [bytes([n]) * 90 for n in range(12)] if compression == "none" else [random_bytes(n) for n in range(12)]
        (await out.send_many("t", many)).check()
        with pytest.raises(Rejected, match="MESSAGE_TOO_LARGE"):
            await out.send("t", random_bytes(99, 300))
        await configure(k, max_message_bytes="400")
        await out.send("t", random_bytes(99, 300))
    assert values(cluster) == [*many, random_bytes(99, 300)]


async def test_a_topic_takes_what_a_broker_takes_by_default() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    async with cluster.connect() as k, k.producer(max_message_bytes=10_000_000) as out:
        await out.send("t", bytes(1_000_000))
        with pytest.raises(Rejected, match=r"MESSAGE_TOO_LARGE.*raise max\.message\.bytes of the topic"):
            await out.send("t", bytes(1_048_588))
    assert [len(each or b"") for each in values(cluster)] == [1_000_000]


def random_bytes(seed: int, size: int = 90) -> bytes:
    return Random(seed).randbytes(size)


async def test_the_time_of_records_is_that_of_the_log_if_the_topic_says_so() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    cluster.clock.hold(1_700_000_000.0)
    async with cluster.connect() as k, k.producer() as out:
        assert (await out.send("t", b"1", timestamp=5)).timestamp is None
        await configure(k, message_timestamp_type="LogAppendTime")
        assert (await out.send("t", b"2", timestamp=5)).timestamp == 1_700_000_000_000
        cluster.append("t", [ProducerRecord(b"3", timestamp=5)])
    times = [(stored.timestamp, stored.timestamp_type) for stored in cluster.records("t")]
    of_log = 1_700_000_000_000, TimestampType.LOG_APPEND_TIME
    assert times == [(5, TimestampType.CREATE_TIME), of_log, of_log]


async def test_records_of_a_time_that_the_topic_does_not_take_are_refused_without_the_others() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    cluster.clock.hold(1_700_000_000.0)
    now, hour = 1_700_000_000_000, 3_600_000
    async with cluster.connect() as k, k.producer() as out:
        records = [ProducerRecord(b"%d" % n, timestamp=time) for n, time in enumerate([now + hour, now + hour + 1, 0])]
        acks = await out.send_many("t", records)
        assert [failure.record.value for failure in acks.failed] == [b"1"]
        assert "INVALID_TIMESTAMP" in str(acks.failed[0].error)
        cluster.clock.advance(0.001)
        await out.send("t", b"1", timestamp=now + hour + 1)
        await configure(k, message_timestamp_before_max_ms="10")
        with pytest.raises(Rejected, match="INVALID_TIMESTAMP"):
            await out.send("t", b"old", timestamp=now - 10)
        await configure(k, message_timestamp_type="LogAppendTime")
        await out.send("t", b"old", timestamp=0)
    assert values(cluster) == [b"0", b"2", b"1", b"old"]


async def test_records_of_a_topic_that_is_compacted_need_keys() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    async with cluster.connect() as k, k.producer() as out:
        await configure(k, cleanup_policy="delete,compact")
        acks = await out.send_many("t", [ProducerRecord(b"1", b"k"), ProducerRecord(b"2"), ProducerRecord(b"3", b"k")])
        assert [failure.record.value for failure in acks.failed] == [b"2"]
        assert "without key" in str(acks.failed[0].error)
    assert values(cluster) == [b"1", b"3"]


@pytest.mark.parametrize(
    "change", [{"max_message_bytes": "x"}, {"message_timestamp_type": "x"}, {"cleanup_policy": "x"}]
)
async def test_values_that_a_topic_cannot_have_are_refused(change: dict[str, str]) -> None:
    async with MemoryCluster(topics={"t": 1}).connect() as k:
        with pytest.raises(BrokerError, match="INVALID_CONFIG"):
            await configure(k, **change)
