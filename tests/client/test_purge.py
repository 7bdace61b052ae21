"""`Producer.purge`: what waits is dropped and says so, what is on the wire finishes, and what comes later is written.

`client/lives.py` purges at random, on real brokers too, where the log shows what was written, how often and in which
order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from tests.client.producing import P0, P2, make_cluster, producing, stored

import odradek as od
from odradek.client.producer.producer import Producer
from odradek.client.producer.results import Purged
from odradek.client.producer.serializing import SerializingProducer
from odradek.errors import (
    BrokerError,
    Closed,
    ConnectionLost,
    NotWritten,
    OdradekError,
    OutcomeUnknown,
    Undelivered,
    UsageError,
)
from odradek.serde import STRING
from odradek.testing import KafkaBroker, MemoryCluster
from odradek.testing.kafka.releases import NEWEST

pytestmark = pytest.mark.anyio

LIMIT_S = 60.0


@pytest.fixture
def cluster() -> MemoryCluster:
    return make_cluster()


class Sends:
    """`send`s in the background, and what they returned or raised, by value."""

    def __init__(self, out: Producer, tasks: anyio.abc.TaskGroup, topic: str = "t") -> None:
        self._out, self._tasks, self._topic = out, tasks, topic
        self.outcomes: dict[bytes, Any] = {}

    async def start(self, value: bytes, partition: Any) -> None:
        self._tasks.start_soon(self._send, value, partition)
        await wait_all_tasks_blocked()

    async def _send(self, value: bytes, partition: Any) -> None:
        try:
            self.outcomes[value] = await self._out.send(self._topic, value, partition=partition)
        except OdradekError as error:
            self.outcomes[value] = error

    def kinds(self) -> dict[bytes, str]:
        return {value: type(outcome).__name__ for value, outcome in self.outcomes.items()}


async def test_what_waits_fails_and_what_is_on_the_wire_finishes(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    async with producing(cluster, latency=0) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        for value in (b"1", b"2", b"3"):  # one of a partition is in flight at a time here
            await sends.start(value, P0)
        await out.put("t", b"4", partition=P0)
        assert out.purge() == Purged(not_written=3, unknown=0, in_flight=1)
        await wait_all_tasks_blocked()
        assert sends.kinds() == {b"2": "NotWritten", b"3": "NotWritten"}
        assert "purged (t/0; 0 attempts)" in str(sends.outcomes[b"2"])
        assert [failed.record.value for failed in out.failures.take()] == [b"4"]
        assert out.purge() == Purged(0, 0, 1)
        cluster.release("produce")
        await out.send("t", b"5", partition=P0)
    assert sends.kinds()[b"1"] == "Ack"
    assert stored(cluster, P0) == [b"1", b"5"]


async def test_what_is_on_the_wire_is_unknown_if_that_is_not_waited_for(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    async with producing(cluster, latency=0) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        for value, partition in ((b"1", P0), (b"2", P0), (b"3", P2)):
            await sends.start(value, partition)
        assert out.purge(in_flight=True) == Purged(not_written=1, unknown=2, in_flight=0)
        await wait_all_tasks_blocked()
        assert sends.kinds() == {b"1": "OutcomeUnknown", b"2": "NotWritten", b"3": "OutcomeUnknown"}
        assert out.statistics().buffered == 0
        with anyio.fail_after(LIMIT_S):
            await out.flush()
        cluster.release("produce")
        await out.send("t", b"4", partition=P0)
    assert stored(cluster, P0) == [b"1", b"4"]


@pytest.mark.parametrize("sent", [True, False])
async def test_a_request_that_fails_after_a_purge_is_not_repeated(cluster: MemoryCluster, sent: bool) -> None:
    cluster.hold("produce", broker=1)
    async with producing(cluster, latency=0) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"1", P0)
        assert out.purge() == Purged(0, 0, 1)
        cluster.cut(1, error=ConnectionLost("memory-1:9092", "reset", sent))
        cluster.release("produce", broker=1)
        await out.send("t", b"2", partition=P0)
    assert sends.kinds() == {b"1": "OutcomeUnknown" if sent else "NotWritten"}
    assert "purged (t/0; 1 attempt, the last failed: " in str(sends.outcomes[b"1"])
    assert stored(cluster, P0) == [b"2"]


async def test_what_waits_for_its_second_attempt_may_be_written(cluster: MemoryCluster) -> None:
    not_now = BrokerError(7, "REQUEST_TIMED_OUT", retriable=True)
    not_now.sent = True
    cluster.fail("produce", not_now)
    tuning = od.Tuning(backoff=od.Backoff(60, 1, 60))
    async with producing(cluster, tuning=tuning, latency=0) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"1", P0)
        assert out.purge() == Purged(not_written=0, unknown=1, in_flight=0)
    assert sends.kinds() == {b"1": "OutcomeUnknown"}


async def test_callers_that_wait_for_space_in_the_buffer_fail_too(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    value = bytes(300)
    async with producing(cluster, latency=0, buffer_bytes=1000) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        for number in range(6):
            await sends.start(b"%d" % number + value, P0)
        waiting = out.statistics().waiting
        assert waiting
        purged = out.purge()
        assert purged.not_written + purged.in_flight == 6 and purged.not_written > waiting
        await wait_all_tasks_blocked()
        assert list(sends.kinds().values()) == ["NotWritten"] * purged.not_written
        cluster.release("produce")
        assert (await out.send("t", b"after", partition=P0)).confirmed
    assert stored(cluster, P0)[-1] == b"after"


async def test_what_waits_for_its_topic_is_dropped(cluster: MemoryCluster) -> None:
    async with producing(cluster, latency=0) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks, "unknown")
        await sends.start(b"1", None)
        assert out.purge() == Purged(1, 0, 0)
        await wait_all_tasks_blocked()
        cluster.create_topic("unknown")
        await out.send("unknown", b"2")
    assert sends.kinds() == {b"1": "NotWritten"}
    assert [record.value for record in cluster.records("unknown")] == [b"2"]


async def test_records_of_put_are_failures_and_fail_the_exit_unless_they_are_taken(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    with pytest.raises(Undelivered) as caught:
        async with producing(cluster, latency=60) as out:
            for number in range(3):
                await out.put("t", b"%d" % number, partition=P0)
            assert out.purge() == Purged(3, 0, 0)
            cluster.release("produce")
    assert {type(failed.error) for failed in caught.value.records} == {NotWritten}


async def test_a_flush_ends_with_a_purge(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    async with producing(cluster, latency=0) as out, anyio.create_task_group() as tasks:
        await out.put("t", b"1", partition=P0)
        tasks.start_soon(out.flush)
        await wait_all_tasks_blocked()
        out.purge(in_flight=True)
        out.failures.take()
        cluster.release("produce")


async def test_batches_that_are_being_compressed_are_dropped(cluster: MemoryCluster) -> None:
    rows = [bytes(1000)] * 300
    async with producing(cluster, compression="gzip:9", latency=0) as out, anyio.create_task_group() as tasks:
        acks: list[Any] = []
        ended = anyio.Event()

        async def send_many() -> None:
            acks.append(await out.send_many("t", rows, partition=P0))
            ended.set()

        cluster.hold("produce")
        tasks.start_soon(send_many)
        with anyio.fail_after(LIMIT_S):
            while not out.statistics().buffered:
                await anyio.lowlevel.checkpoint()
        assert sum(out.purge()) > 0
        cluster.release("produce")
        with anyio.fail_after(LIMIT_S):
            await ended.wait()
        assert (await out.send("t", b"after", partition=P0)).confirmed
    assert acks[0].written + len(acks[0].failed) == 300
    assert len(stored(cluster, P0)) == acks[0].written + 1


async def test_a_purge_is_refused_where_it_cannot_be(cluster: MemoryCluster) -> None:
    async with producing(cluster) as out:
        pass
    with pytest.raises(Closed):
        out.purge()
    async with producing(cluster) as other:
        with pytest.raises(TypeError, match="in_flight"):
            other.purge(in_flight=1)  # type: ignore[arg-type]
        serializing: SerializingProducer[bytes, str] = SerializingProducer(other, STRING, STRING)  # type: ignore[arg-type]
        assert serializing.purge() == Purged(0, 0, 0)


# ---- a real broker -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(NEWEST, proxied=True) as broker:
        yield broker


@pytest.mark.parametrize("in_flight", [False, True])
async def test_sequence_numbers_go_on_after_a_purge(broker: KafkaBroker, in_flight: bool) -> None:
    """Batches are on the wire, taken back and waiting at that moment; later ones are written, in order and once."""
    topic = f"purged-{uuid4().hex}"
    await anyio.to_thread.run_sync(broker.create_topic, topic)
    tuning = od.Tuning(request_timeout=60, batch_bytes=2000)
    written: list[bytes] = []
    async with od.connect(f"kafka://{broker.bootstrap}", tuning=tuning) as k:
        async with k.producer(latency=0, deliver_within=120) as out:
            await out.send(topic, b"first", partition=0)
            for repeat in range(5):
                broker.proxy.delay(0.05)
                values = [b"%d-%d" % (repeat, number) + bytes(500) for number in range(40)]
                for value in values:
                    await out.put(topic, value, partition=0)
                await anyio.sleep(0.01 * repeat)
                purged = out.purge(in_flight=in_flight)
                broker.proxy.heal()
                assert sum(purged) <= 40
                await out.send(topic, b"after-%d" % repeat, partition=0)
                failed = {each.record.value: type(each.error) for each in out.failures.take()}
                assert len(failed) == purged.not_written + purged.unknown
                written += [value for value in values if value not in failed]
                written.append(b"after-%d" % repeat)
                unknown = {value for value, kind in failed.items() if kind is OutcomeUnknown}
                assert len(unknown) == purged.unknown and (in_flight or not unknown)
        async with k.reader(topic, until=od.LATEST) as reader:
            log = [record.value async for record in reader]
    kept = [value for value in log if value in {b"first", *written}]
    assert kept == [b"first", *written]
    assert len(set(log)) == len(log)


async def test_a_transaction_keeps_its_records(broker: KafkaBroker) -> None:
    async with od.connect(f"kafka://{broker.bootstrap}") as k, k.producer(transactional_id="x") as out:
        with pytest.raises(UsageError, match="raise in its block"):
            out.purge()
