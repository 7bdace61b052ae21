"""The producer against brokers that behave as 0.7.2 does, and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.loops import ASYNCIO, on

from odradek.client.connect import connect
from odradek.client.options import Compression, Tuning
from odradek.client.producer.producer import Producer
from odradek.core.backoff import Backoff
from odradek.core.interfaces import DecoderOptions
from odradek.core.produce.partitioners import KeyHash
from odradek.errors import NotWritten, OdradekError, OutcomeUnknown, Undelivered
from odradek.observe import BatchFinished, Observer
from odradek.testing import FaultProxy, Kafka07Broker, ZooKeeperServer
from odradek.types import KiB, Position, TopicPartition
from odradek.wire.kafka07.message_set import MessageSetDecoder

from ..payloads import payloads

pytestmark = pytest.mark.anyio
anyio_backend = on(ASYNCIO)

StartBroker = Callable[..., Kafka07Broker]
HASTY = Tuning(backoff=Backoff(0.001, 2, 0.02))
THREE = {"num.partitions": "3"}


def log(broker: Kafka07Broker, topic: str = "t") -> dict[int, list[bytes]]:
    """What is in the broker's files, by partition."""
    logs = {}
    for directory in broker.log_dir.glob(f"{topic}-*"):
        number = int(directory.name.rpartition("-")[2])
        decoder = MessageSetDecoder(TopicPartition(topic, number, broker.broker_id), Position(0), DecoderOptions())
        for segment in sorted(directory.glob("*.kafka")):
            decoder.feed(memoryview(segment.read_bytes()))
        assert decoder.error is None
        logs[number] = payloads(decoder.take().values)
    return logs


def everything(*brokers: Kafka07Broker, topic: str = "t") -> list[bytes]:
    return [value for broker in brokers for values in log(broker, topic).values() for value in values]


def over_zookeeper(chroot: str) -> str:
    return f"kafka07+zk://{chroot}"


# ---- the main line ---------------------------------------------------------------------------------------------


async def test_records_sent_are_in_the_log(odradek_chroot: str, odradek_kafka07_broker: StartBroker) -> None:
    broker = await anyio.to_thread.run_sync(odradek_kafka07_broker)
    async with connect(over_zookeeper(odradek_chroot)) as k, k.producer() as out:
        ack = await out.send("t", b"one")
        assert (ack.partition, ack.confirmed) == (TopicPartition("t", 0, 1), True)
        assert log(broker) == {0: [b"one"]}
        await out.put("t", b"two")
        assert (await out.send_many("t", [b"three", b"four"])).check().written == 2
    assert sorted(everything(broker)) == [b"four", b"one", b"three", b"two"]


@pytest.mark.parametrize("compression", ["gzip", "snappy"])
async def test_compressed_sets_are_readable(compression: Compression) -> None:
    rows = [b"%05d" % n * 20 for n in range(3000)]
    with Kafka07Broker() as broker:
        async with (
            connect(f"kafka07://{broker.address}") as k,
            k.producer(compression=compression, max_message_bytes=20_000) as out,
        ):
            acks = await out.send_many("t", rows, partition=TopicPartition("t", 0, 0))
        assert acks.check().written == 3000
        assert log(broker) == {0: rows}
        stored = sum(path.stat().st_size for path in broker.log_dir.rglob("*.kafka"))
        assert stored < 100 * 3000 / 2


@pytest.mark.parametrize(("compression", "full"), [("none", 960 * KiB), ("gzip", 256 * KiB)])
async def test_only_batches_without_a_wrapper_are_larger_than_consumers_of_0_7_0_fetch(
    compression: Compression, full: int
) -> None:
    sizes: list[int] = []

    class Sizes(Observer):
        def batch_finished(self, event: BatchFinished) -> None:
            sizes.append(event.bytes)

    with Kafka07Broker() as broker:
        async with (
            connect(f"kafka07://{broker.address}", observer=Sizes()) as k,
            k.producer(compression=compression) as out,
        ):
            acks = await out.send_many("t", [bytes(1000)] * 2000, partition=TopicPartition("t", 0, 0))
        assert acks.check().written == len(log(broker)[0]) == 2000
    assert full - 2000 < max(sizes) <= full


async def test_without_confirm_records_arrive_as_well() -> None:
    with Kafka07Broker() as broker:
        async with connect(f"kafka07://{broker.address}") as k:
            async with k.producer(acks=0) as out:
                await out.send("t", b"the topic is known now")
                asked = broker.statistics().requests["multifetch"]
                acks = await out.send_many("t", [b"%d" % n for n in range(100)])
                assert not any(ack.confirmed for ack in acks.acks)
            async with k.producer() as out:
                await out.send("t", b"behind them on the same connection")
        assert len(everything(broker)) == 102
        assert broker.statistics().requests["multifetch"] == asked + 1


async def test_case_45_new_topic_first_partition_0_then_the_published_ones(
    odradek_chroot: str, odradek_kafka07_broker: StartBroker
) -> None:
    broker = await anyio.to_thread.run_sync(partial(odradek_kafka07_broker, config=THREE))
    async with connect(over_zookeeper(odradek_chroot)) as k, k.producer() as out:
        first = await out.send("new", b"first")
        assert first.partition == TopicPartition("new", 0, 1)
        with anyio.fail_after(10):
            table = k.driver.metadata.table
            while not table.registered("new"):
                table = await k.driver.metadata.wait_for_newer(table.version)
        keys = [b"key %d" % n for n in range(30)]
        for key in keys:
            index = KeyHash()("new", key, 3)
            assert (await out.send("new", b"v", key=key)).partition == TopicPartition("new", index or 0, 1)
        for _ in range(60):
            await out.send("new", b"no key")
    counts = {number: values.count(b"no key") for number, values in log(broker, "new").items()}
    assert sorted(counts) == [0, 1, 2]
    assert min(counts.values()) > 5


async def test_case_45_without_zookeeper_a_new_topic_spreads_after_the_first_record() -> None:
    with Kafka07Broker(config=THREE) as broker:
        async with connect(f"kafka07://{broker.address}") as k, k.producer() as out:
            for _ in range(50):
                await out.send("new", b"v")
        assert sorted(log(broker, "new")) == [0, 1, 2]


async def test_case_46_a_bad_produce_is_reported_and_its_neighbours_are_written() -> None:
    with Kafka07Broker(config=THREE) as broker:
        async with connect(f"kafka07://{broker.address}", tuning=HASTY) as k, k.producer() as out:
            await out.send("t", b"known", partition=TopicPartition("t", 0, 0))
            for number in (0, 7, 2):
                assert out.try_put("t", b"to %d" % number, partition=TopicPartition("t", number, 0))
            with anyio.fail_after(10):
                await out.flush()
            (failed,) = out.failures.take()
            assert failed.record.value == b"to 7"
            assert type(failed.error) is OutcomeUnknown
            assert "does it have t/0-7" in failed.error.hint
        logs = log(broker)
        assert logs[2] == [b"to 2"]
        assert set(logs[0]) == {b"known", b"to 0"}


# ---- pains ----------------------------------------------------------------------------------------------------


async def test_pain_trickle_latency() -> None:
    """A record now and then: each is written in no time, none waits for company that does not come."""
    with Kafka07Broker() as broker:
        async with connect(f"kafka07://{broker.address}") as k, k.producer(latency=60) as out:
            await out.send("t", b"the topic is known now")
            begun = time.perf_counter()
            for n in range(50):
                await out.send("t", b"%d" % n)
                await anyio.sleep(0.002)
        assert len(everything(broker)) == 51
        assert time.perf_counter() - begun < 30  # all of them, and one that waited would have taken 60


async def test_pain_trickle_is_delivered_while_other_requests_are_in_flight(
    odradek_fault_proxy: Callable[[str, int], FaultProxy],
) -> None:
    """On a slow line a put waits for its latency at most, counted from the first record of its batch."""
    with Kafka07Broker() as broker:
        proxy = odradek_fault_proxy(broker.host, broker.port)
        async with connect(f"kafka07://{proxy.address}") as k, k.producer(latency=0.01) as out:
            await out.send("t", b"the topic is known now")
            proxy.delay(0.05)
            begun = time.perf_counter()
            for n in range(50):
                await out.put("t", b"%d" % n)
                await anyio.sleep(0.005)
            await out.flush()
            assert time.perf_counter() - begun < 10
        assert len(everything(broker)) == 51


async def test_pain_exit_while_cluster_is_away() -> None:
    with Kafka07Broker() as broker:
        begun = 0.0
        with pytest.raises(Undelivered) as caught:
            async with connect(f"kafka07://{broker.address}") as k, k.producer(exit_within=0.2) as out:
                await out.send("t", b"written")
                broker.kill()
                for n in range(100):
                    await out.put("t", b"%d" % n)
                begun = time.perf_counter()
        assert time.perf_counter() - begun < 10
        assert sorted(failed.record.value for failed in caught.value.records) == sorted(b"%d" % n for n in range(100))
        assert everything(broker) == [b"written"]


async def test_pain_exit_while_zookeeper_is_away_too() -> None:
    async with ZooKeeperServer() as zookeeper:
        with Kafka07Broker(zookeeper=zookeeper.address) as broker:
            with pytest.raises(Undelivered):
                async with connect(over_zookeeper(zookeeper.address)) as k, k.producer(exit_within=0.2) as out:
                    await out.send("t", b"written")
                    await anyio.to_thread.run_sync(zookeeper.kill)
                    await anyio.to_thread.run_sync(broker.kill)
                    await out.put("t", b"lost")
                    begun = time.perf_counter()
            assert time.perf_counter() - begun < 10


async def test_pain_send_while_cluster_is_away_ends_in_time() -> None:
    with Kafka07Broker() as broker:
        async with connect(f"kafka07://{broker.address}") as k, k.producer(deliver_within=1) as out:
            await out.send("t", b"written")
            broker.kill()
            begun = time.perf_counter()
            # Unknown if the first attempt was on the old connection before its end was noticed.
            with pytest.raises((NotWritten, OutcomeUnknown), match="the last failed: cannot connect to"):
                await out.send("t", b"away")
            assert time.perf_counter() - begun < 10


# ---- faults ---------------------------------------------------------------------------------------------------


async def load(out: Producer, target: str, count: int, confirmed: list[bytes], done: anyio.Event) -> None:
    """Send one after the other, and note what was confirmed."""
    for n in range(count):
        value = f"{target}-{n:05}".encode()
        await out.send("t", value, key=target.encode())
        confirmed.append(value)
    done.set()


async def test_a_broker_killed_and_restarted_under_load_loses_nothing_confirmed(
    odradek_chroot: str, odradek_kafka07_broker: StartBroker
) -> None:
    brokers = [
        await anyio.to_thread.run_sync(partial(odradek_kafka07_broker, broker_id=n, config=THREE)) for n in (1, 2)
    ]
    confirmed: list[bytes] = []
    async with connect(over_zookeeper(odradek_chroot), tuning=HASTY) as k, k.producer(latency=0.001) as out:
        await out.send("t", b"warm")
        done = [anyio.Event() for _ in range(20)]
        async with anyio.create_task_group() as tasks:
            for n, event in enumerate(done):
                tasks.start_soon(load, out, f"task{n}", 150, confirmed, event)
            for victim in (brokers[0], brokers[1], brokers[0]):
                await anyio.sleep(0.05)
                await anyio.to_thread.run_sync(partial(victim.kill, drop_session=True))
                await anyio.sleep(0.05)
                await anyio.to_thread.run_sync(victim.start)
        await out.flush()
    counts = Counter(everything(*brokers))
    missing = [value for value in confirmed if not counts[value]]
    duplicates = sum(count - 1 for count in counts.values())
    assert len(confirmed) == 20 * 150
    assert missing == []
    assert duplicates <= out.statistics().retries * 256  # every duplicate is of a request that was sent again
    assert set(counts) == {*confirmed, b"warm"}


async def test_put_under_load_survives_restarts_in_order(odradek_kafka07_broker: StartBroker) -> None:
    """One partition, a connection cut again and again: first occurrences are in order, and nothing is missing."""
    with Kafka07Broker() as broker, FaultProxy(broker.host, broker.port) as proxy:
        partition = TopicPartition("t", 0, 0)
        tuning = Tuning(backoff=Backoff(0.001, 2, 0.01), batch_bytes=2000)
        async with connect(f"kafka07://{proxy.address}", tuning=tuning) as k, k.producer(latency=0) as out:
            for n in range(3000):
                await out.put("t", b"%05d" % n, partition=partition)
                if n % 300 == 299:
                    await anyio.to_thread.run_sync(proxy.cut)
        values = log(broker)[0]
        firsts = list(dict.fromkeys(values))
        assert firsts == [b"%05d" % n for n in range(3000)]


async def test_a_connection_cut_at_every_byte_of_a_produce_and_its_confirm_loses_nothing() -> None:
    with Kafka07Broker() as broker, FaultProxy(broker.host, broker.port) as proxy:
        partition = TopicPartition("t", 0, 0)
        sent: list[tuple[bytes, bool]] = []
        async with connect(f"kafka07://{proxy.address}", tuning=HASTY) as k, k.producer() as out:
            size = 4 + 2 + 2 + 1 + 4 + 4 + 14 + 8  # PRODUCE of one 4-byte payload to topic t, and the confirm
            await out.send("t", b"warm", partition=partition)
            cuts: list[dict[str, Any]] = [{"client_bytes": n} for n in range(size + 1)]
            cuts += [{"server_bytes": n} for n in range(7)]
            for n, cut in enumerate(cuts):
                proxy.cut()
                proxy.cut_after(**cut)
                value = b"%04d" % n
                sent.append((value, (await out.send("t", value, partition=partition)).repeated))
        counts = Counter(log(broker)[0])
        for value, repeated in sent:
            assert counts[value] >= 1
            assert counts[value] == 1 or repeated


async def test_a_broker_that_comes_back_elsewhere_is_found(
    odradek_chroot: str, odradek_kafka07_broker: StartBroker
) -> None:
    first = await anyio.to_thread.run_sync(odradek_kafka07_broker)
    partition = TopicPartition("t", 0, 1)
    async with connect(over_zookeeper(odradek_chroot), tuning=HASTY) as k, k.producer() as out:
        await out.send("t", b"here", partition=partition)
        await anyio.to_thread.run_sync(partial(first.kill, drop_session=True))
        second = await anyio.to_thread.run_sync(odradek_kafka07_broker)
        assert second.address != first.address
        await out.send("t", b"there", partition=partition)
    assert (everything(first), everything(second)) == ([b"here"], [b"there"])


async def test_records_of_a_dead_broker_go_to_the_living_one(
    odradek_chroot: str, odradek_kafka07_broker: StartBroker
) -> None:
    brokers = [await anyio.to_thread.run_sync(partial(odradek_kafka07_broker, broker_id=n)) for n in (1, 2)]
    async with connect(over_zookeeper(odradek_chroot), tuning=HASTY) as k, k.producer() as out:
        for broker in brokers:
            await out.send("t", b"warm", partition=TopicPartition("t", 0, broker.broker_id))
        await anyio.to_thread.run_sync(partial(brokers[0].kill, drop_session=True))
        acks = await out.send_many("t", [(b"key %d" % n, b"%d" % n) for n in range(200)])
    assert acks.check().written == 200
    assert len(everything(brokers[1])) == 201


async def outcome(out: Producer, value: bytes) -> str:
    try:
        return type(await out.send("t", value)).__name__
    except OdradekError as error:
        return type(error).__name__


async def test_every_send_of_a_run_of_restarts_tells_the_truth() -> None:
    """With a deadline too short to sit restarts out: Ack is in the log, NotWritten is not."""
    with Kafka07Broker() as broker:
        results: dict[bytes, str] = {}
        async with connect(f"kafka07://{broker.address}", tuning=HASTY) as k, k.producer(deliver_within=0.03) as out:
            async with k.producer() as warm:
                await warm.send("t", b"warm")

            async def one(value: bytes) -> None:
                results[value] = await outcome(out, value)

            first = 0
            while "Ack" not in results.values():  # on a busy machine not each is confirmed in time
                first += 1
                await one(b"first %d" % first)
            async with anyio.create_task_group() as tasks:
                for n in range(300):
                    if n % 100 == 20:
                        await anyio.to_thread.run_sync(broker.kill)
                    if n % 100 == 90:
                        await anyio.to_thread.run_sync(broker.start)
                    tasks.start_soon(one, b"%d" % n)
                    await anyio.sleep(0.001)
            assert not out.failures
        counts = Counter(everything(broker))
        assert len(results) == first + 300
        assert all(counts[value] >= 1 for value, result in results.items() if result == "Ack")
        assert all(counts[value] == 0 for value, result in results.items() if result == "NotWritten")
        assert {"Ack", "NotWritten"} <= set(results.values()) <= {"Ack", "NotWritten", "OutcomeUnknown"}


def test_it_runs_on_a_plain_asyncio_loop_where_anyio_knows_nothing_of_callbacks() -> None:
    """Answers of brokers come in callbacks of the loop, outside of any task: new topics, compression and what waits
    for room are all dealt with there."""

    async def main(address: str) -> int:
        async with connect(f"kafka07://{address}") as k, k.producer(compression="gzip", buffer_bytes=200_000) as out:
            acks = await out.send_many("new", [b"%05d" % n * 200 for n in range(2000)])
            await asyncio.gather(*(out.send("new", b"v") for _ in range(100)))
            return acks.check().written

    with Kafka07Broker() as broker:
        assert asyncio.run(main(broker.address)) == 2000
        assert len(everything(broker, topic="new")) == 2100
