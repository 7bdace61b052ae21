"""The producer on an in-memory cluster: what each call promises, batching, outcomes, statistics."""

from __future__ import annotations

import pickle
import re
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio import wait_all_tasks_blocked
from tests.client.producing import P0, P1, P2, P3, make_cluster, producing, stored, values

from odradek.client.options import Tuning
from odradek.client.producer.producer import Producer
from odradek.client.producer.results import MAX_KEPT_FAILURES, Ack, Acks, Failed, Failures
from odradek.client.producer.validator import RecordValidator
from odradek.core.interfaces import ProducerRecord
from odradek.core.kafka.partitioners import Murmur2
from odradek.core.produce.partitioners import RoundRobin
from odradek.errors import (
    Closed,
    ConfigError,
    DeliveryError,
    MessageTooLarge,
    NotWritten,
    Rejected,
    Undelivered,
    UsageError,
)
from odradek.testing import MemoryCluster
from odradek.types import KiB, Position, TopicPartition

pytestmark = pytest.mark.anyio


@pytest.fixture
def cluster() -> MemoryCluster:
    return make_cluster()


def small(bytes_each: int, records: int) -> int:
    """A buffer with room for so many records."""
    return (10 + bytes_each + 120) * records


async def test_send_returns_when_the_broker_has_it(cluster: MemoryCluster) -> None:
    async with producing(cluster) as out:
        ack = await out.send("t", b"v", key=b"k")
        assert stored(cluster, ack.partition) == [b"v"]
        index = Murmur2()("t", b"k", 4)
        assert index is not None
        assert ack == Ack(TopicPartition("t", index), Position(0), 1, confirmed=True, repeated=False)


async def test_every_ack_names_the_position_of_its_own_records(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    acks: dict[bytes, Ack] = {}
    async with producing(cluster, latency=0.0) as out, anyio.create_task_group() as tasks:

        async def send(value: bytes) -> None:
            acks[value] = await out.send("t", value, partition=0)

        async def send_many(*values: bytes) -> None:
            (ack,) = (await out.send_many("t", values, partition=0)).check().acks
            acks[values[0]] = ack

        tasks.start_soon(send, b"a")
        tasks.start_soon(send, b"b")
        tasks.start_soon(send_many, b"c", b"d")
        tasks.start_soon(send, b"e")
        await wait_all_tasks_blocked()
        cluster.release("produce")
    log = [stored.value or b"" for stored in cluster.log(TopicPartition("t", 0))]
    assert sorted(log) == [b"a", b"b", b"c", b"d", b"e"]
    for value, ack in acks.items():
        assert ack.position is not None and log[ack.position] == value
    assert log[log.index(b"c") + 1] == b"d"


async def test_send_waits_for_the_confirm(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(out.send, "t", b"v")
        await wait_all_tasks_blocked()
        assert tasks.cancel_scope.cancel_called is False
        assert out.statistics().buffered == 1
        cluster.release("produce")
    assert values(cluster) == [b"v"]


async def test_put_returns_when_accepted_and_exit_flushes(cluster: MemoryCluster) -> None:
    async with producing(cluster) as out:
        for n in range(300):
            await out.put("t", b"%03d" % n)
    assert values(cluster) == [b"%03d" % n for n in range(300)]


async def test_try_put_never_waits(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    async with producing(cluster, buffer_bytes=small(1, 2)) as out:
        assert [out.try_put("t", b"v") for _ in range(3)] == [True, True, False]
        await wait_all_tasks_blocked()
        assert not out.try_put("t", b"v")  # in flight is not yet out of the buffer
        cluster.release("produce")
        await out.flush()
        assert out.try_put("t", b"v")
    assert values(cluster) == [b"v"] * 3


async def test_send_many_is_one_result_with_counts_per_partition(cluster: MemoryCluster) -> None:
    rows: list[Any] = [b"plain", (b"key", b"pair"), (None, b"keyless"), ProducerRecord(b"whole", b"key")]
    async with producing(cluster) as out:
        acks = await out.send_many("t", rows)
        assert acks.check() is acks
    assert acks.written == 4
    assert not acks.failed
    assert acks.counts == {p: len(stored(cluster, p)) for p in (P0, P1, P2, P3) if stored(cluster, p)}
    assert values(cluster) == [b"keyless", b"pair", b"plain", b"whole"]
    assert repr(acks) == f"<Acks 4 written to {len(acks.counts)} partitions, 0 failed>"


async def test_send_many_to_one_partition_keeps_order_and_comes_in_few_batches(cluster: MemoryCluster) -> None:
    partition = P3
    rows = [b"%05d" % n for n in range(5000)]
    async with producing(cluster) as out:
        acks = await out.send_many("t", iter(rows), partition=partition)
    assert stored(cluster, partition) == values(cluster) == rows
    assert acks.counts == {partition: 5000}
    assert len(acks.acks) < 100


async def test_send_many_collects_what_each_bad_record_died_of(cluster: MemoryCluster) -> None:
    rows: list[Any] = [b"good", b"x" * 200, ProducerRecord(b"v", headers=[("h", b"y" * 200)]), b"fine"]
    async with producing(cluster, max_message_bytes=100) as out:
        acks = await out.send_many("t", rows)
    assert acks.written == 2
    assert [type(failed.error) for failed in acks.failed] == [Rejected, Rejected]
    assert [failed.record.value for failed in acks.failed] == [b"x" * 200, b"v"]
    with pytest.raises(DeliveryError, match="2 records not delivered: 2 rejected; first: "):
        acks.check()


async def test_send_many_of_nothing_and_of_nothing_good(cluster: MemoryCluster) -> None:
    async with producing(cluster, max_message_bytes=1) as out:
        assert await out.send_many("t", []) == Acks((), ())
        assert len((await out.send_many("t", [b"xx"])).failed) == 1


async def test_send_many_waits_for_room(cluster: MemoryCluster) -> None:
    async with producing(cluster, buffer_bytes=small(3, 10)) as out:
        acks = await out.send_many("t", [b"%03d" % n for n in range(500)])
    assert acks.written == 500
    assert len(values(cluster)) == 500


async def test_an_error_of_the_rows_leaves_those_before_on_their_way(cluster: MemoryCluster) -> None:
    def rows() -> Any:
        yield b"one"
        raise RuntimeError("no more")

    async with producing(cluster) as out:
        with pytest.raises(RuntimeError, match="no more"):
            await out.send_many("t", rows())
    assert values(cluster) == [b"one"]


async def test_flush_waits_for_what_was_accepted_before_it(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        await out.put("t", b"before")
        flushed = anyio.Event()

        async def flush() -> None:
            await out.flush()
            flushed.set()

        tasks.start_soon(flush)
        await wait_all_tasks_blocked()
        assert not flushed.is_set()
        cluster.release("produce")
        await flushed.wait()
        assert values(cluster) == [b"before"]


async def test_flush_sends_a_batch_that_would_wait_for_more(cluster: MemoryCluster) -> None:
    cluster.hold("produce", broker=1)
    async with producing(cluster, latency=1000) as out:
        await out.put("t", b"first", partition=P0)
        await wait_all_tasks_blocked()
        await out.put("t", b"second", partition=P2)
        await wait_all_tasks_blocked()
        assert len(cluster.requests("produce", broker=1)) == 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(out.flush)
            await wait_all_tasks_blocked()
            assert len(cluster.requests("produce", broker=1)) == 2
            cluster.release("produce")


# ---- batching -------------------------------------------------------------------------------------------------


async def test_records_put_in_one_burst_share_a_batch(cluster: MemoryCluster) -> None:
    async with producing(cluster) as out:
        await out.send("t", b"the topic is known now")
        before = out.statistics().requests
        for _ in range(100):
            out.try_put("t", b"v")
        await out.flush()
        assert out.statistics().requests == before + 1


async def test_several_partitions_of_a_broker_share_a_request() -> None:
    cluster = MemoryCluster(topics={"t": 2})
    async with producing(cluster, partitioner=RoundRobin()) as out:
        acks = await out.send_many("t", [b"a", b"b", b"c"])
    (request,) = cluster.requests("produce")
    assert [batch.values for batch in request.batches] == [[b"a", b"c"], [b"b"]]
    assert [ack.records for ack in acks.acks] == [2, 1]


async def test_five_batches_of_each_partition_are_in_flight_to_a_broker() -> None:
    cluster = MemoryCluster(topics={"t": 3})
    tuning = Tuning(batch_bytes=1000, request_bytes=1000)  # one batch in a request
    async with producing(cluster, tuning=tuning) as out:
        for partition in range(3):  # until one is acknowledged, no other is in flight
            await out.send("t", b"first", partition=partition)
        cluster.hold("produce")
        before = len(cluster.requests("produce"))
        for number in range(18):
            await out.put("t", bytes(1000), partition=number % 3)
        await wait_all_tasks_blocked()
        assert len(cluster.requests("produce")) - before == 15
        cluster.release("produce")
    assert len(cluster.records("t")) == 21


async def test_a_put_loop_gives_the_senders_a_turn(cluster: MemoryCluster) -> None:
    async with producing(cluster, latency=0) as out:
        for n in range(20_000):
            await out.put("t", b"%d" % n)
        assert len(values(cluster)) > 10_000


@pytest.mark.parametrize("arguments", [{}, {"key": b"k"}, {"partition": P0}, {"timestamp": 1}])
async def test_a_put_cancelled_in_the_turn_of_others_did_nothing(
    cluster: MemoryCluster, arguments: dict[str, Any]
) -> None:
    accepted = 0
    async with producing(cluster, latency=30) as out:
        await out.send("t", b"first")
        with anyio.CancelScope() as scope:
            scope.cancel()
            for _ in range(1000):
                await out.put("t", b"v", **arguments)
                accepted += 1
        assert scope.cancelled_caught
        assert 0 < accepted < 1000
        assert out.statistics().accepted == 1 + accepted
    assert len(values(cluster)) == 1 + accepted


async def test_codec_for_all_topics_and_for_one(cluster: MemoryCluster) -> None:
    cluster.create_topic("plain")
    async with producing(cluster, compression="gzip", compression_by_topic={"plain": "none"}) as out:
        await out.send("t", b"v")
        await out.send("plain", b"v")
    batches = [batch for request in cluster.requests("produce") for batch in request.batches]
    compression_by_topic = {batch.partition.topic: batch.compression for batch in batches}
    assert compression_by_topic == {"t": "gzip", "plain": "none"}


async def test_a_level_goes_with_the_compression_of_all_topics_or_of_one(cluster: MemoryCluster) -> None:
    cluster.create_topic("dense")
    async with producing(cluster, compression="gzip:1", compression_by_topic={"dense": "zstd:19"}) as out:
        await out.send("t", b"v")
        await out.send("dense", b"v")
    batches = [batch for request in cluster.requests("produce") for batch in request.batches]
    assert {batch.partition.topic: batch.compression for batch in batches} == {"t": "gzip:1", "dense": "zstd:19"}


async def test_large_batches_are_compressed_in_a_thread(cluster: MemoryCluster) -> None:
    rows = [b"x" * 1000] * 300
    async with producing(cluster, compression="gzip") as out:
        assert (await out.send_many("t", rows)).written == 300
    assert values(cluster) == rows


async def test_a_wrapper_that_is_too_large_is_split_until_it_fits(cluster: MemoryCluster) -> None:
    partition = P0
    rows = [bytes((n * 7919 + i * i * 31 + (i * n) % 251) % 256 for i in range(40)) for n in range(20)]
    async with producing(cluster, compression="gzip", max_message_bytes=200) as out:
        acks = await out.send_many("t", rows, partition=partition)
    assert acks.written == 20
    assert stored(cluster, partition) == rows
    assert len(acks.acks) > 3


async def test_one_message_whose_wrapper_is_too_large_is_rejected_and_the_others_go(cluster: MemoryCluster) -> None:
    partition = P0
    noise = bytes((i * i * 31 + i * 17 + i // 3) % 256 for i in range(1000))
    async with producing(cluster, compression="gzip", max_message_bytes=100) as out:
        acks = await out.send_many("t", [b"a", noise, b"x" * 1000], partition=partition)
    assert stored(cluster, partition) == [b"a", b"x" * 1000]
    (failed,) = acks.failed
    assert failed.record.value == noise
    assert isinstance(failed.error, Rejected)
    assert isinstance(failed.error.__cause__, MessageTooLarge)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"compression": "lz77"}, ConfigError, "compression='lz77'"),
        ({"compression": None}, TypeError, "compression must be one of"),
        ({"compression": "gzip:10"}, ConfigError, "compression='gzip:10': levels of gzip are 1 to 9"),
        ({"compression": "snappy:3"}, ConfigError, "compression='snappy:3': snappy has no levels"),
        (
            {"compression_by_topic": {"t": "zstd:fast"}},
            ConfigError,
            "compression_by_topic['t']='zstd:fast': levels of zstd",
        ),
        ({"max_message_bytes": 1e9}, TypeError, "max_message_bytes must be"),
        ({"acks": 2}, ConfigError, "acks=2"),
        ({"nonsense": 1}, TypeError, "unknown option 'nonsense'"),
    ],
)
async def test_an_option_the_cluster_cannot_use_is_refused_at_construction(
    cluster: MemoryCluster, options: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=re.escape(match)):
        Producer(cluster.connect().driver, **options)


# ---- refused at the door ---------------------------------------------------------------------------------------


async def test_a_message_over_max_message_is_rejected_with_its_cause(cluster: MemoryCluster) -> None:
    async with producing(cluster, max_message_bytes=10 + 100) as out:
        await out.send("t", b"x" * 100)
        for call in (out.send, out.put):
            with pytest.raises(Rejected) as caught:
                await call("t", b"x" * 101)
            assert isinstance(caught.value.__cause__, MessageTooLarge)
        with pytest.raises(Rejected):
            out.try_put("t", b"x" * 101)
        assert out.statistics().accepted == 1


async def test_a_message_larger_than_the_buffer_is_rejected(cluster: MemoryCluster) -> None:
    for compression, max_message_bytes in (("gzip", 500), ("none", 5000)):
        async with producing(
            cluster, buffer_bytes=1000, compression=compression, max_message_bytes=max_message_bytes
        ) as out:
            with pytest.raises(Rejected, match="raise buffer"):
                await out.put("t", b"x" * 1000)
            acks = await out.send_many("t", [b"fits", b"x" * 1000])
            assert (acks.written, len(acks.failed)) == (1, 1)


@pytest.mark.parametrize(("value", "key"), [("text", None), (bytearray(b"v"), None), (7, None), (b"v", "key")])
async def test_only_bytes_are_taken(cluster: MemoryCluster, value: Any, key: Any) -> None:
    async with producing(cluster) as out:
        with pytest.raises(TypeError, match="value and key must be bytes"):
            await out.put("t", value, key=key)


@pytest.mark.parametrize("row", ["text", "ab", 7, None, (b"k", b"v", b"?"), (b"k", "text")])
async def test_only_rows_are_taken(cluster: MemoryCluster, row: Any) -> None:
    async with producing(cluster) as out:
        with pytest.raises(TypeError, match=r"a row is bytes|must be bytes"):
            await out.send_many("t", [row])


async def test_an_impossible_topic_and_a_partition_of_another_one_are_refused_at_once(cluster: MemoryCluster) -> None:
    async with producing(cluster) as out:
        with pytest.raises(Rejected):
            await out.send("a/b", b"v")
        with pytest.raises(ConfigError, match="partition u/0 is not one of topic t"):
            await out.put("t", b"v", partition=TopicPartition("u", 0))


@pytest.mark.parametrize(
    "option",
    [{"latency": -1}, {"buffer_bytes": 0}, {"deliver_within": 0}, {"exit_within": -0.1}, {"max_message_bytes": 0}],
    ids=lambda option: next(iter(option)),
)
async def test_options_that_cannot_work(cluster: MemoryCluster, option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(ConfigError, match=name):
        Producer(cluster.connect().driver, **option)


@pytest.mark.parametrize("name", ["batch_bytes", "request_bytes", "in_flight", "request_timeout"])
async def test_tuning_that_cannot_work(name: str) -> None:
    with pytest.raises(ConfigError, match=f"Tuning.{name}=0: must be"):
        Tuning(**{name: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 960 * KiB),
        ({"buffer_bytes": 400_000}, 100_000),
        ({"buffer_bytes": 400_000, "tuning": Tuning(batch_bytes=300_000)}, 300_000),
    ],
)
async def test_a_batch_is_as_large_as_brokers_store_or_a_quarter_of_the_buffer_unless_told(
    cluster: MemoryCluster, options: dict[str, Any], size: int
) -> None:
    async with producing(cluster, **options) as out:
        acks = await out.send_many("t", [bytes(10_000)] * 300, partition=P0)
    assert max(each.records for each in acks.acks) == size // 10_010  # the sizes of its records on the wire


async def test_outside_of_its_block_a_producer_takes_nothing(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k:
        out = k.producer()
        with pytest.raises(Closed, match="async with"):
            await out.put("t", b"v")
        async with out:
            await out.put("t", b"v")
        for call in (out.put, out.send):
            with pytest.raises(Closed, match="has exited"):
                await call("t", b"v")
        with pytest.raises(Closed):
            out.try_put("t", b"v")
        with pytest.raises(Closed):
            await out.flush()
        with pytest.raises(Closed, match="create a new one"):
            await out.__aenter__()


# ---- room -----------------------------------------------------------------------------------------------------


async def test_put_waits_for_room_and_those_who_wait_are_served_in_order(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    partition = P0
    async with producing(cluster, buffer_bytes=small(1, 2)) as out, anyio.create_task_group() as tasks:
        for letter in b"abcdef":
            tasks.start_soon(lambda value: out.put("t", value, partition=partition), bytes([letter]))
            await wait_all_tasks_blocked()
        assert out.statistics().waiting == 4
        assert not out.try_put("t", b"barges in")
        cluster.release("produce")
    assert stored(cluster, partition) == [b"a", b"b", b"c", b"d", b"e", b"f"]


async def test_a_large_record_is_not_delayed_forever_by_small_ones(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    partition = P0
    async with (
        producing(cluster, buffer_bytes=small(1, 4), max_message_bytes=400) as out,
        anyio.create_task_group() as tasks,
    ):
        for value in (b"1", b"2", b"3", b"4", b"x" * 300, b"5"):
            tasks.start_soon(lambda value: out.put("t", value, partition=partition), value)
            await wait_all_tasks_blocked()
        assert out.statistics().waiting == 2
        cluster.release("produce")
    assert stored(cluster, partition) == [b"1", b"2", b"3", b"4", b"x" * 300, b"5"]


async def test_a_put_is_looked_at_if_it_begins_a_batch_or_others_wait_for_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A small one that would fit into the open batch waits behind a large one."""
    cluster, looked_at = MemoryCluster(topics={"t": 1}), list[object]()
    validate = RecordValidator.validate

    def note(validator: RecordValidator, topic: str, value: bytes | None, *rest: Any) -> Any:
        looked_at.append(value)
        return validate(validator, topic, value, *rest)

    monkeypatch.setattr(RecordValidator, "validate", note)
    large = b"x" * 300
    async with producing(cluster, buffer_bytes=small(1, 4), max_message_bytes=400, latency=60) as out:
        await out.send("t", b"known")
        async with anyio.create_task_group() as tasks:
            for value in (b"begins", b"joins", large, b"waits"):
                tasks.start_soon(out.put, "t", value)
                await wait_all_tasks_blocked()
            assert out.statistics().waiting == 2
            await out.flush()
        await out.flush()
        await out.put("t", b"begins again")
        await out.put("t", b"joins it")
    assert looked_at == [b"known", b"begins", large, b"waits", b"begins again"]
    assert stored(cluster, P0) == [b"known", b"begins", b"joins", large, b"waits", b"begins again", b"joins it"]


async def test_waiting_for_space_has_a_deadline(cluster: MemoryCluster) -> None:
    cluster.hold("connect", broker=1)
    cluster.hold("connect", broker=2)
    errors: list[NotWritten] = []
    async with producing(cluster, buffer_bytes=small(1, 1), deliver_within=0.3, exit_within=0) as out:

        async def put(value: bytes) -> None:
            try:
                await out.put("t", value)
            except NotWritten as error:
                errors.append(error)

        await out.put("t", b"1")
        async with anyio.create_task_group() as tasks:  # one may get the room of 1, and nobody the room of that one
            tasks.start_soon(put, b"2")
            tasks.start_soon(put, b"3")
        assert errors
        assert str(errors[0]) == "1 record not written: no space in the buffer within 0.3 s"
        await out.flush()
        assert len(out.failures) + out.failures.more + len(errors) == 3
        out.failures.take()


async def test_a_waiting_put_that_is_cancelled_did_nothing_and_lets_the_next_one_in(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    partition = P0
    async with (
        producing(cluster, buffer_bytes=small(1, 2), max_message_bytes=200) as out,
        anyio.create_task_group() as tasks,
    ):
        await out.put("t", b"1", partition=partition)
        with anyio.CancelScope() as scope:
            tasks.start_soon(lambda: out.put("t", b"2", partition=partition))
            await wait_all_tasks_blocked()
            async with anyio.create_task_group() as inner:
                inner.start_soon(lambda: out.put("t", b"x" * 100, partition=partition))
                await wait_all_tasks_blocked()
                tasks.start_soon(lambda: out.put("t", b"3", partition=partition))
                await wait_all_tasks_blocked()
                assert out.statistics().waiting == 2
                scope.cancel()
        assert out.statistics().waiting == 1
        cluster.release("produce")
    assert stored(cluster, partition) == [b"1", b"2", b"3"]


async def test_a_partitioner_that_fails_while_others_wait_fails_only_its_caller(cluster: MemoryCluster) -> None:
    def choosy(topic: str, key: bytes | None, count: int) -> int | None:
        if key == b"bad":
            raise ValueError("do not like it")
        return 0

    cluster.hold("produce")
    async with (
        producing(cluster, buffer_bytes=small(4, 1), partitioner=choosy) as out,
        anyio.create_task_group() as tasks,
    ):
        await out.put("t", b"1")

        async def bad() -> None:
            with pytest.raises(ValueError, match="do not like it"):
                await out.send("t", b"2", key=b"bad")

        await wait_all_tasks_blocked()
        tasks.start_soon(bad)
        await wait_all_tasks_blocked()
        tasks.start_soon(out.put, "t", b"3")
        await wait_all_tasks_blocked()
        cluster.release("produce")
    assert values(cluster) == [b"1", b"3"]


# ---- values ---------------------------------------------------------------------------------------------------


async def test_statistics_and_repr(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    async with producing(cluster) as out:
        await out.put("t", b"v")
        assert repr(out) == "<Producer open 1 buffered 0 written 0 failed>"
        assert out.statistics().buffered_bytes == small(1, 1)
        cluster.release("produce")
        await out.flush()
        now = out.statistics()
        assert (now.accepted, now.written, now.failed, now.buffered, now.buffered_bytes) == (1, 1, 0, 0, 0)
        assert (now.requests, now.retries, now.waiting) == (1, 0, 0)
    assert repr(out) == "<Producer closed 0 buffered 1 written 0 failed>"


async def test_failures_are_bounded_and_the_rest_is_counted() -> None:
    failures = Failures(10_000_000)
    failed = Failed(ProducerRecord(b"v"), "t", None, NotWritten([], "no broker"))
    for _ in range(MAX_KEPT_FAILURES + 5):
        failures.add(failed)
    assert (len(failures), failures.more) == (MAX_KEPT_FAILURES, 5)
    assert repr(failures) == "<Failures 10000 kept, 5 more>"
    assert next(iter(failures)) is failed
    assert len(failures.take()) == MAX_KEPT_FAILURES
    assert (len(failures), failures.more) == (0, 0)


async def test_failures_keep_no_more_payload_than_the_buffer_may_hold(cluster: MemoryCluster) -> None:
    cluster.stop_broker(1)
    cluster.stop_broker(2)
    async with producing(cluster, buffer_bytes=10_000, deliver_within=0.01) as out:
        for _ in range(5):
            for _ in range(4):
                await out.put("t", bytes(2000))
            await out.flush()
        assert sum(len(failed.record.value or b"") for failed in out.failures) == 8000  # the oldest four
        assert out.failures.more == 16
        assert len(out.failures.take()) == 4


@pytest.mark.parametrize(
    ("partition", "error", "match"),
    [
        (0.0, TypeError, r"partition must be a TopicPartition or a number of this cluster .*, not float 0\.0"),
        (True, TypeError, "must be a TopicPartition or a number"),
        ("0", TypeError, "must be a TopicPartition or a number"),
        (("t", 0), TypeError, "must be a TopicPartition or a number"),
        (TopicPartition("t", "0", "0"), TypeError, "must be numbers"),  # type: ignore[arg-type]
        (TopicPartition("t", -1), ConfigError, "is not one of topic t"),
        (-1, ConfigError, "is not one of topic t"),
    ],
)
async def test_a_partition_that_cannot_be_one_is_refused_at_once(
    cluster: MemoryCluster, partition: Any, error: type[Exception], match: str
) -> None:
    async with producing(cluster) as out:
        for call in (out.send, out.put):
            with pytest.raises(error, match=match):
                await call("t", b"v", partition=partition)
        with pytest.raises(error, match=match):
            await out.send_many("t", [b"v"], partition=partition)
        await out.send("t", b"other")
    assert values(cluster) == [b"other"]


async def test_a_number_names_a_partition_where_partitions_have_plain_numbers(cluster: MemoryCluster) -> None:
    async with producing(cluster) as out:
        assert out.try_put("t", b"v", partition=3)
        with pytest.raises(TypeError, match="a TopicPartition or a number"):
            out.try_put("t", b"v", partition="3")  # type: ignore[arg-type]
    assert stored(cluster, P3) == values(cluster) == [b"v"]


async def test_errors_with_their_failed_records_survive_pickling() -> None:
    failed = Failed(ProducerRecord(b"v", b"k"), "t", P0, NotWritten([ProducerRecord(b"v")], "no broker"))
    error = Undelivered([failed], "1 not written; first: no broker")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "1 record undelivered at exit: 1 not written; first: no broker"
    assert copy.records[0].record == failed.record


async def test_a_producer_used_from_another_thread_says_so(cluster: MemoryCluster) -> None:
    async with producing(cluster) as out:
        await out.send("t", b"known")
        for call in (
            lambda: out.try_put("t", b"v"),
            lambda: out.put("t", b"v").send(None),
            lambda: out.send("t", b"v").send(None),
            lambda: out.send_many("t", [b"v"]).send(None),
            lambda: out.flush().send(None),
        ):
            with pytest.raises(UsageError, match=r"used in another thread .* loop\.call_soon_threadsafe"):
                await anyio.to_thread.run_sync(call)
        assert out.statistics().accepted == 1


async def test_a_partitioner_that_returns_nonsense_is_named_and_fails_its_record_alone(cluster: MemoryCluster) -> None:
    chosen: list[Any] = [0, "0", 1.0, -1, 99, 0]
    async with producing(cluster, partitioner=lambda *_: chosen.pop(0)) as out:
        await out.send("t", b"known", key=b"k")
        for wrong in ("'0'", "1.0", "-1", "99"):
            with pytest.raises(ConfigError, match=f"the partitioner chose {wrong} of 4 partitions of t"):
                await out.send("t", b"v", key=b"k")
        assert (await out.send("t", b"v", key=b"k")).records == 1
