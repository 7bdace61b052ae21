"""The producer when brokers, routing tables, ZooKeeper and callers fail it, on a cluster in memory."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from time import process_time
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from tests.client.conftest import values

from odradek.client.options import Tuning
from odradek.client.producer.producer import Producer
from odradek.client.producer.results import Ack
from odradek.core.backoff import Backoff
from odradek.core.interfaces import PartitionBatch, ProducerRecord
from odradek.core.produce.partitioners import KeyHash
from odradek.errors import (
    BrokerError,
    Closed,
    ConnectionLost,
    DeadlineError,
    DeliveryError,
    LocalProtocolError,
    NotWritten,
    OdradekError,
    OutcomeUnknown,
    Rejected,
    RemoteProtocolError,
    Undelivered,
    Unreachable,
    ZooKeeperError,
)
from odradek.types import KiB, TopicPartition

if TYPE_CHECKING:
    from tests.client.conftest import Clock, FakeBroker, FakeDriver

pytestmark = pytest.mark.anyio

HASTY = Tuning(backoff=Backoff(0.001, 2, 0.005))
PARTITION = TopicPartition("t", 0, 1)
REFUSED = Unreachable("tcp", "b1:9092", "refused")


async def outcome(out: Producer, value: bytes = b"v", **kw: Any) -> Any:
    """What `send` returned or raised."""
    try:
        return await out.send("t", value, **kw)
    except OdradekError as error:
        return error


class Sends:
    """`send`s in the background and what became of them, by value."""

    def __init__(self, out: Producer, tasks: anyio.abc.TaskGroup) -> None:
        self._out, self._tasks = out, tasks
        self.outcomes: dict[bytes, Any] = {}

    async def start(self, value: bytes, **kw: Any) -> None:
        async def one() -> None:
            self.outcomes[value] = await outcome(self._out, value, **kw)

        self._tasks.start_soon(one)
        await wait_all_tasks_blocked()


HURRY_S = 0.07
"""For `deliver_within` and back-offs where `wait_all_tasks_blocked` is used: anyio looks every 0.1 s whether all tasks
are, and one that wakes up as often, or twice as often, can be awake whenever it looks."""


async def late(clock: Clock, out: Producer, tried: FakeBroker | None = None, **kw: Any) -> Any:
    """What becomes of a record whose time is up: when it was tried once there, if that is said."""
    async with anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"v", **kw)
        if tried is not None:
            await tried.sent(1)
            await wait_all_tasks_blocked()
        clock.now += 1
    return sends.outcomes[b"v"]


# ---- connections lost ------------------------------------------------------------------------------------------


async def test_what_was_surely_not_sent_goes_again_in_order_and_once(driver: FakeDriver) -> None:
    driver[1].holding = True
    async with Producer(driver, tuning=HASTY, latency=0) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        for value in (b"1", b"2", b"3"):
            await sends.start(value, partition=PARTITION)
        assert len(driver[1].pending) == 3
        driver[1].holding = False
        driver[1].cut(sent=False)
    assert driver.log[PARTITION] == [b"1", b"2", b"3"]
    assert [ack.repeated for ack in sends.outcomes.values()] == [False] * 3


async def test_what_may_have_been_applied_goes_again_and_says_so(driver: FakeDriver) -> None:
    driver[1].holding = True
    async with Producer(driver, tuning=HASTY, latency=0) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        for value in (b"1", b"2", b"3"):
            await sends.start(value, partition=PARTITION)
        driver[1].holding = False
        driver[1].cut(applied=2)
        assert not sends.outcomes
    assert driver.log[PARTITION] == [b"1", b"2", b"1", b"2", b"3"]  # at least once, in order
    assert [ack.repeated for ack in sends.outcomes.values()] == [True] * 3
    assert out.statistics().retries == 3


async def test_order_holds_while_newer_records_arrive_during_the_failure(driver: FakeDriver) -> None:
    driver[1].holding = True
    async with Producer(driver, tuning=HASTY, latency=0) as out:
        for n in range(3):
            await out.put("t", b"%d" % n, partition=PARTITION)
            await wait_all_tasks_blocked()
        driver[1].holding = False
        driver[1].cut(sent=False)
        for n in range(3, 6):
            await out.put("t", b"%d" % n, partition=PARTITION)
    assert driver.log[PARTITION] == [b"%d" % n for n in range(6)]


async def test_after_a_lost_connection_records_wait_for_the_back_off_of_the_connection_alone(
    driver: FakeDriver, clock: Clock
) -> None:
    broker, driver.backoff_s = driver[1], HURRY_S
    broker.holding = True
    never = Tuning(backoff=Backoff(1000, 1, 1000))
    async with Producer(driver, tuning=never) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"1", partition=PARTITION)
        broker.holding = False
        broker.cut(sent=False)
        await sends.start(b"2", partition=PARTITION)
        assert len(broker.requests) == 1
        clock.now += HURRY_S
    assert driver.log[PARTITION] == [b"1", b"2"]


async def test_a_request_that_fails_as_a_whole_has_metadata_read_again(driver: FakeDriver) -> None:
    driver[1].down = REFUSED
    async with Producer(driver) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"v", partition=PARTITION)
        assert driver.metadata.refreshed
        driver[1].down = None


async def test_a_broker_that_is_away_for_a_while_costs_nothing_but_time(driver: FakeDriver) -> None:
    driver[1].down = REFUSED
    async with Producer(driver, tuning=HASTY) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"v", partition=PARTITION)
        await driver[1].sent(3)
        driver[1].down = None
    assert driver.log[PARTITION] == [b"v"]
    assert sends.outcomes[b"v"].repeated is False


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unreachable("tcp", "b1:9092", "refused"), NotWritten),
        (ConnectionLost("b1:9092", "reset", False), NotWritten),
        (DeadlineError("connect", 1, False), NotWritten),
        (DeadlineError("produce", 1, True), OutcomeUnknown),
        (RemoteProtocolError("nonsense"), OutcomeUnknown),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
async def test_when_time_is_up_the_error_says_truthfully_what_is_known(
    driver: FakeDriver, clock: Clock, error: OdradekError, kind: type[OdradekError]
) -> None:
    driver[1].down = error
    driver.backoff_s = 10
    async with Producer(driver, deliver_within=HURRY_S) as out:
        result = await late(clock, out, driver[1], partition=PARTITION)
        assert type(result) is kind
        assert isinstance(result, DeliveryError)
        assert result.records == [ProducerRecord(b"v")]
        assert result.__cause__ is error
        assert f"not delivered within {HURRY_S} s (t/1-0; 1 attempt, the last failed: {error})" in str(result)


async def on_the_wire(driver: FakeDriver, clock: Clock, out: Producer, sends: Sends) -> None:
    """A record is on the wire, unanswered, when its time is up."""
    await sends.start(b"v", partition=PARTITION)
    await driver[1].sent(1)
    clock.now += 1
    await anyio.sleep(HURRY_S)
    await wait_all_tasks_blocked()
    assert not sends.outcomes


async def test_a_record_on_the_wire_whose_time_is_up_waits_for_its_answer(driver: FakeDriver, clock: Clock) -> None:
    driver[1].holding = True
    async with Producer(driver, deliver_within=HURRY_S) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await on_the_wire(driver, clock, out, sends)
        driver[1].release()
    assert type(sends.outcomes[b"v"]) is Ack
    assert driver.log[PARTITION] == [b"v"]


async def test_a_record_on_the_wire_that_is_never_answered_is_unknown_and_not_sent_again(
    driver: FakeDriver, clock: Clock
) -> None:
    driver[1].holding = True
    async with Producer(driver, deliver_within=HURRY_S) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await on_the_wire(driver, clock, out, sends)
        driver[1].lose(DeadlineError("produce", 10, True))
    result = sends.outcomes[b"v"]
    assert type(result) is OutcomeUnknown
    assert "1 attempt, the last failed: produce: no answer within 10 s" in str(result)
    assert len(driver[1].requests) == 1


async def test_records_of_which_no_byte_was_sent_are_not_written_when_time_is_up(
    driver: FakeDriver, clock: Clock
) -> None:
    driver[1].connecting = True
    async with Producer(driver, deliver_within=HURRY_S, latency=0) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"1", partition=PARTITION)
        clock.now += 0.05
        await sends.start(b"2", partition=PARTITION)
        await sends.start(b"3", partition=PARTITION._replace(partition=1))
        assert len(driver[1].unsent) == 3
        clock.now += 0.05
        while not sends.outcomes:
            await wait_all_tasks_blocked()
        assert type(sends.outcomes[b"1"]) is NotWritten
        assert len(sends.outcomes) == 1
        driver[1].connect()
    assert driver.log[PARTITION] == [b"2"]
    assert driver.log[PARTITION._replace(partition=1)] == [b"3"]


async def test_at_exit_records_of_which_no_byte_was_sent_are_withdrawn(driver: FakeDriver) -> None:
    driver[1].connecting = True
    with pytest.raises(Undelivered, match="2 not written; first: not delivered within the 0 s of exit_within"):
        async with Producer(driver, exit_within=0) as out:
            await out.put("t", b"1", partition=PARTITION)
            await driver[1].sent(1)
            await out.put("t", b"2", partition=PARTITION)
    driver[1].connect()
    assert driver.log[PARTITION] == []


async def test_a_stale_leader_has_the_routing_table_read_again(driver: FakeDriver) -> None:
    stale = BrokerError(6, "NotLeader", retriable=True, refresh_metadata=True)
    driver[1].answers = lambda part: stale if part.partition == PARTITION and not driver.metadata.refreshed else None
    partitions = [PARTITION, PARTITION._replace(partition=1)]
    async with Producer(driver, tuning=HASTY) as out:
        await out.send("t", b"the topic is known now", partition=TopicPartition("t", 0, 2))
        for partition in partitions:
            await out.put("t", b"v", partition=partition)
    assert driver.metadata.refreshed == 1
    assert [driver.log[partition] for partition in partitions] == [[b"v"], [b"v"]]
    first, *retries = (len(request.parts) for request in driver[1].requests)
    assert (first, set(retries)) == (2, {1})


async def test_what_a_broker_refuses_for_good_is_rejected_and_its_neighbours_are_written(driver: FakeDriver) -> None:
    forbidden = BrokerError(29, "TopicAuthorizationFailed")
    driver[1].answers = lambda part: forbidden if b"bad" in values(part) else None
    async with Producer(driver) as out:
        await out.send("t", b"the topic is known now", partition=TopicPartition("t", 0, 2))
        await out.put("t", b"bad", partition=PARTITION)
        await out.put("t", b"good", partition=PARTITION._replace(partition=1))
        await out.flush()
        (failed,) = out.failures.take()
    assert (failed.record.value, type(failed.error), failed.error.__cause__) == (b"bad", Rejected, forbidden)
    assert driver.log[PARTITION._replace(partition=1)] == [b"good"]


async def test_a_fenced_producer_stops_and_says_why(driver: FakeDriver) -> None:
    fenced = BrokerError(47, "InvalidProducerEpoch", fence=True)
    driver[1].answers = lambda part: fenced
    with pytest.raises(BrokerError, match="InvalidProducerEpoch"):
        async with Producer(driver) as out:
            with pytest.raises(Rejected):
                await out.send("t", b"v", partition=PARTITION)
            with pytest.raises(Closed, match="the producer stopped: BrokerError: InvalidProducerEpoch"):
                await out.send("t", b"v")


async def test_a_partitioner_that_raises_fails_only_that_record_also_of_a_new_topic(driver: FakeDriver) -> None:
    def choosy(topic: str, key: bytes | None, count: int) -> int | None:
        return int(key) % count if key else None

    async with Producer(driver, partitioner=choosy) as out:
        for topic in ("t", "t", "u"):
            with pytest.raises((ValueError, Rejected), match="invalid literal") as caught:
                await out.send(topic, b"v", key=b"bad")
        assert type(caught.value) is Rejected
        await out.send("u", b"v", key=b"1")
    assert driver.values("u") == [b"v"]


async def test_a_failure_while_the_rest_is_failed_does_not_keep_the_tasks_running(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(why: str) -> None:
        raise RuntimeError("a bug")

    out = Producer(driver)
    with pytest.raises(RuntimeError, match="a bug"):
        async with out:
            monkeypatch.setattr(out._dispatcher, "_fail_remaining", broken)
    assert out._dispatcher._background._finished


async def test_an_error_that_no_trying_again_can_help_ends_it_at_once(driver: FakeDriver) -> None:
    driver[1].holding = True
    async with Producer(driver) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"v", partition=PARTITION)
        driver[1].lose(BrokerError(29, "TopicAuthorizationFailed"))
    assert type(sends.outcomes[b"v"]) is NotWritten
    assert "TopicAuthorizationFailed" in str(sends.outcomes[b"v"])


async def test_what_cannot_be_encoded_is_rejected_and_the_producer_goes_on(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(parts: object, *, acks: int) -> Any:
        raise LocalProtocolError("too many parts")

    async with Producer(driver) as out:
        with monkeypatch.context() as patch:
            patch.setattr(driver[1], "produce", refuse)
            with pytest.raises(Rejected, match="too many parts"):
                await out.send("t", b"v", partition=PARTITION)
        await out.send("t", b"v", partition=PARTITION)
    assert driver.log[PARTITION] == [b"v"]


async def test_without_confirm_what_is_handed_over_is_written(driver: FakeDriver) -> None:
    async with Producer(driver, acks=0) as out:
        assert (await out.send("t", b"v")).confirmed is False
    assert [each.acks for n in (1, 2) for each in driver[n].requests] == [0]


async def test_what_was_being_compressed_when_the_connection_died_does_not_overtake(driver: FakeDriver) -> None:
    """While a thread compresses the second batch, the first one's connection dies."""
    encode, go_on = driver.encode, threading.Event()

    def slow(part: PartitionBatch, limit: int) -> bytes:
        if len(part.records) > 1:
            assert go_on.wait(10)
        return encode(part, limit)

    driver.encode = slow  # type: ignore[method-assign, assignment]
    driver[1].holding = True
    rows = [b"%05d" % n * 200 for n in range(100)]
    async with Producer(driver, tuning=HASTY, compression="gzip", latency=0) as out, anyio.create_task_group() as tasks:
        await out.put("t", b"first", partition=PARTITION)
        await driver[1].sent(1)
        tasks.start_soon(partial(out.send_many, "t", rows, partition=PARTITION))
        await wait_all_tasks_blocked()
        driver[1].holding = False
        driver[1].cut(sent=False)
        go_on.set()
    assert driver.log[PARTITION] == [b"first", *rows]


async def test_batches_of_one_partition_are_compressed_at_the_same_time_and_sent_in_their_order(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is not through before the second one is."""
    encode, second_done = driver.encode, threading.Event()
    rows = [b"%05d" % n * 200 for n in range(140)]

    def slow(part: PartitionBatch, limit: int) -> bytes:
        if part.records[0] == rows[0]:
            assert second_done.wait(10)
            return encode(part, limit)
        encoded = encode(part, limit)
        second_done.set()
        return encoded

    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    driver.encode = slow  # type: ignore[method-assign, assignment]
    tuning = Tuning(batch_bytes=64 * KiB)
    async with Producer(driver, compression="gzip", tuning=tuning, latency=0) as out:
        await out.send("t", b"the topic is known now", partition=PARTITION)
        assert (await out.send_many("t", rows, partition=PARTITION)).written == 140
    assert driver.log[PARTITION] == [b"the topic is known now", *rows]


async def test_many_small_batches_are_compressed_in_a_thread_too(driver: FakeDriver) -> None:
    encode, here = driver.encode, threading.current_thread()
    encoded: Counter[bool] = Counter()

    def watched(part: PartitionBatch, limit: int) -> bytes:
        encoded[threading.current_thread() is here] += 1
        return encode(part, limit)

    driver.encode = watched  # type: ignore[method-assign, assignment]
    driver.metadata.publish("t", b1=1000)
    partitions = [TopicPartition("t", n, 1) for n in range(1000)]
    async with Producer(driver, compression="gzip") as out:
        await out.send("t", b"the topic is known now", partition=PARTITION)
        assert encoded == {True: 1}
        for partition in partitions:
            assert out.try_put("t", b"v" * 1000, partition=partition)
        await out.flush()
        assert encoded[True] <= 66  # what is left of a request, less than is worth a thread
        assert sum(encoded.values()) == 1001
    assert driver.values() == [b"the topic is known now", *[b"v" * 1000] * 1000]


async def test_what_expires_while_it_is_compressed_is_not_sent(driver: FakeDriver) -> None:
    encode, go_on = driver.encode, threading.Event()

    def slow(part: PartitionBatch, limit: int) -> bytes:
        assert go_on.wait(10)
        return encode(part, limit)

    driver.encode = slow  # type: ignore[method-assign, assignment]
    async with Producer(driver, compression="gzip", deliver_within=0.05) as out:
        acks = await out.send_many("t", [b"%05d" % n * 200 for n in range(100)], partition=PARTITION)
        assert len(acks.failed) == 100
        go_on.set()
    assert driver.log[PARTITION] == []


async def test_a_broker_that_goes_while_its_batch_is_compressed_is_not_written_to(driver: FakeDriver) -> None:
    encode, go_on = driver.encode, threading.Event()

    def slow(part: PartitionBatch, limit: int) -> bytes:
        assert go_on.wait(10)
        return encode(part, limit)

    driver.encode = slow  # type: ignore[method-assign, assignment]
    driver.metadata.brokers(1)
    rows = [b"%05d" % n * 200 for n in range(100)]
    async with Producer(driver, compression="gzip", tuning=HASTY) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(out.send_many, "t", rows)
        await wait_all_tasks_blocked()
        driver.metadata.brokers(2)
        await wait_all_tasks_blocked()
        go_on.set()
    assert driver.values() == rows
    assert {partition.broker for partition in driver.log} == {2}


# ---- poison ---------------------------------------------------------------------------------------------------


def bad(part: PartitionBatch) -> bool:
    return b"bad" in part.records


async def test_case_46_a_produce_the_broker_closes_on_is_reported(driver: FakeDriver) -> None:
    driver[1].refuses = bad
    async with Producer(driver, tuning=HASTY) as out:
        result = await outcome(out, b"bad", partition=PARTITION)
        assert type(result) is OutcomeUnknown
        assert "the broker answered and then closed the connection on this batch, 2 times" in str(result)
        assert "does it have t/1-0" in result.hint
        assert isinstance(result.__cause__, ConnectionLost)
        assert len(driver[1].requests) == 3


async def test_a_line_that_closes_every_connection_is_not_taken_for_a_bad_produce(driver: FakeDriver) -> None:
    driver[1].down = ConnectionLost("proxy:9092", "closed", True)
    async with Producer(driver, tuning=HASTY) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"v", partition=PARTITION)
        await driver[1].sent(8)
        assert not sends.outcomes
        driver[1].down = None
    assert type(sends.outcomes[b"v"]) is Ack
    assert driver.log[PARTITION] == [b"v"]


async def test_case_46_the_innocent_neighbours_of_a_bad_produce_are_written(driver: FakeDriver) -> None:
    driver[1].refuses = bad
    driver[1].holding = True
    partitions = [TopicPartition("t", n, 1) for n in range(3)]
    async with Producer(driver, tuning=HASTY, latency=0) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        for value, index in ((b"good", 0), (b"bad", 1), (b"fine", 2), (b"late", 0)):
            await sends.start(value, partition=partitions[index])
        driver[1].release()
    assert {value: type(result).__name__ for value, result in sends.outcomes.items()} == {
        b"good": "Ack",
        b"bad": "OutcomeUnknown",
        b"fine": "Ack",
        b"late": "Ack",
    }
    assert driver.log[partitions[0]] == [b"good", b"late"]
    assert driver.log[partitions[2]] == [b"fine"]


async def test_case_46_a_bad_part_of_a_multiproduce_is_found(driver: FakeDriver) -> None:
    driver[1].refuses = bad
    partitions = [TopicPartition("t", n, 1) for n in range(3)]
    async with Producer(driver, tuning=HASTY) as out:
        await out.send("t", b"the topic is known now", partition=TopicPartition("t", 0, 2))
        for value, index in ((b"good", 0), (b"bad", 1), (b"fine", 2)):
            assert out.try_put("t", value, partition=partitions[index])
        await out.flush()
        (failed,) = out.failures.take()
    assert (failed.record.value, failed.partition, type(failed.error)) == (b"bad", partitions[1], OutcomeUnknown)
    assert [len(request.parts) for request in driver[1].requests] == [3, 3, 2, 1, 1, 1, 1]
    # The broker stores the parts before the bad one each time before it closes: at least once.
    assert [len(driver.log.get(partition, [])) for partition in partitions] == [4, 0, 1]


# ---- routing --------------------------------------------------------------------------------------------------


async def test_case_45_a_new_topic_goes_to_partition_0_of_a_live_broker_and_then_spreads(driver: FakeDriver) -> None:
    async with Producer(driver) as out:
        first = await out.send("new", b"first")
        assert first.partition in (TopicPartition("new", 0, 1), TopicPartition("new", 0, 2))
        driver.metadata.publish("new", b1=3, b2=3)
        for n in range(200):
            await out.send("new", b"%d" % n)
        assert {partition for partition in driver.log if partition.topic == "new"} == {
            TopicPartition("new", n, broker) for broker in (1, 2) for n in range(3)
        }
        assert driver.metadata.refreshed == 1  # for brokers that only tell when asked


async def test_case_45_a_key_counts_in_the_numerically_sorted_list_of_broker_and_partition(driver: FakeDriver) -> None:
    driver.metadata.brokers(2, 10)
    driver.metadata.publish("t", b10=2, b2=11)
    expected = [TopicPartition("t", n, 2) for n in range(11)] + [TopicPartition("t", n, 10) for n in range(2)]
    async with Producer(driver) as out:
        for n in range(50):
            key = b"key %d" % n
            index = KeyHash()("t", key, 13)
            assert index is not None
            assert (await out.send("t", b"v", key=key)).partition == expected[index]


async def test_case_45_records_without_a_key_are_spread_uniformly(driver: FakeDriver) -> None:
    async with Producer(driver) as out:
        for _ in range(400):
            await out.send("t", b"v")
    assert all(60 < len(values) < 140 for values in driver.log.values())
    assert len(driver.log) == 4


async def test_records_of_a_broker_that_has_gone_are_sent_elsewhere(driver: FakeDriver) -> None:
    key = next(b"%d" % n for n in range(99) if KeyHash()("t", b"%d" % n, 4) == 0)  # partition t/1-0
    driver[1].down = REFUSED
    async with Producer(driver, tuning=HASTY) as out:
        for n in range(5):
            await out.put("t", b"%d" % n, key=key)
        await driver[1].sent(1)
        driver.metadata.brokers(2)
    (partition,) = driver.log
    assert partition.broker == 2
    assert driver.log[partition] == [b"%d" % n for n in range(5)]


async def test_an_explicit_partition_waits_for_its_broker_to_come_back(driver: FakeDriver) -> None:
    driver.metadata.brokers(2)
    async with Producer(driver) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"v", partition=PARTITION)
        assert not sends.outcomes
        driver.metadata.brokers(1, 2)
    assert driver.log[PARTITION] == [b"v"]


async def test_records_without_any_live_broker_wait_for_one(driver: FakeDriver) -> None:
    driver.metadata.brokers()
    async with Producer(driver) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"v")
        driver.metadata.brokers(2)
    assert driver.values() == [b"v"]


async def test_without_any_live_broker_the_error_says_that(driver: FakeDriver, clock: Clock) -> None:
    driver.metadata.brokers()
    async with Producer(driver, deliver_within=HURRY_S) as out:
        result = await late(clock, out)
    assert type(result) is NotWritten
    assert f"not delivered within {HURRY_S} s (t: no live broker has it; 0 attempts)" in str(result)


async def test_a_topic_that_cannot_be_looked_up_yet_is_asked_for_again(driver: FakeDriver) -> None:
    driver.metadata.topic_errors = [ZooKeeperError("away"), ZooKeeperError("still away")]
    async with Producer(driver, tuning=HASTY) as out:
        await out.send("t", b"v")
    assert driver.metadata.asked == ["t", "t", "t"]


async def test_a_topic_that_was_never_found_says_why(driver: FakeDriver, clock: Clock) -> None:
    driver.metadata.topic_errors = [ZooKeeperError("away")]
    once = Tuning(backoff=Backoff(10, 1, 10))
    async with Producer(driver, tuning=once, deliver_within=HURRY_S) as out:
        result = await late(clock, out)
    assert type(result) is NotWritten
    assert "(t: away; 0 attempts)" in str(result)


# ---- what nobody waits for --------------------------------------------------------------------------------------


async def test_failures_of_put_can_be_taken_and_then_exit_is_quiet(driver: FakeDriver) -> None:
    driver.metadata.brokers()
    async with Producer(driver, deliver_within=0.02) as out:
        await out.put("t", b"1")
        assert out.try_put("t", b"2")
        await out.flush()
        taken = out.failures.take()
        assert [(failed.record.value, failed.topic, failed.partition) for failed in taken] == [
            (b"1", "t", None),
            (b"2", "t", None),
        ]
        assert all(type(failed.error) is NotWritten for failed in taken)


async def test_failures_nobody_took_are_raised_at_exit(driver: FakeDriver) -> None:
    driver.metadata.brokers()
    with pytest.raises(Undelivered, match="1 not written; first: not delivered within") as caught:
        async with Producer(driver, deliver_within=0.02) as out:
            await out.put("t", b"v")
            await out.flush()
            assert len(out.failures) == 1
    (failed,) = caught.value.records
    assert failed.record.value == b"v"


# ---- exit -----------------------------------------------------------------------------------------------------


async def test_exit_raises_what_did_not_make_it_and_what_is_known_of_it(driver: FakeDriver) -> None:
    driver[1].holding = True
    with pytest.raises(Undelivered) as caught:
        async with Producer(driver, exit_within=0.05) as out:
            await out.put("t", b"in flight", partition=PARTITION)
            await wait_all_tasks_blocked()
            await out.put("t", b"no broker", partition=TopicPartition("t", 0, 3))
    assert {failed.record.value: type(failed.error) for failed in caught.value.records} == {
        b"in flight": OutcomeUnknown,
        b"no broker": NotWritten,
    }
    assert str(caught.value).startswith("2 records undelivered at exit: 1 unknown, 1 not written; first: ")


async def test_exit_does_not_mask_what_the_block_raised(driver: FakeDriver) -> None:
    driver.hold()
    with pytest.raises(ValueError, match="mine") as caught:
        async with Producer(driver, exit_within=0.02) as out:
            await out.put("t", b"v")
            raise ValueError("mine")
    (note,) = caught.value.__notes__
    assert note.startswith("1 record undelivered at exit: ")
    assert [failed.record.value for failed in out.failures] == [b"v"]


async def test_a_cancelled_block_is_flushed_within_the_budget(driver: FakeDriver) -> None:
    driver.hold()
    async with anyio.create_task_group() as tasks:

        async def release() -> None:
            await wait_all_tasks_blocked()
            driver[1].release()
            driver[2].release()

        with anyio.CancelScope() as scope:
            async with Producer(driver) as out:
                await out.put("t", b"v")
                tasks.start_soon(release)
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
    assert driver.values() == [b"v"]


async def test_a_cancelled_block_that_leaves_records_behind_does_not_hide_it(driver: FakeDriver) -> None:
    driver.hold()
    with anyio.CancelScope() as scope, pytest.raises(Undelivered):
        async with Producer(driver, exit_within=0.02) as out:
            await out.put("t", b"v")
            scope.cancel()
            await anyio.sleep_forever()


async def test_exit_tells_those_who_still_wait(driver: FakeDriver) -> None:
    driver.hold()
    outcomes: list[Any] = []

    async def wait(out: Producer) -> None:
        outcomes.append(await outcome(out, partition=PARTITION))

    async with anyio.create_task_group() as tasks, Producer(driver, buffer_bytes=131, exit_within=0.05) as out:
        tasks.start_soon(wait, out)
        await wait_all_tasks_blocked()
        tasks.start_soon(wait, out)
        await wait_all_tasks_blocked()
    assert sorted(type(result).__name__ for result in outcomes) == ["Closed", "OutcomeUnknown"]


# ---- a background that dies ------------------------------------------------------------------------------------


async def test_a_dead_background_surfaces_everywhere(driver: FakeDriver) -> None:
    driver.hold()
    results: list[Any] = []
    with pytest.raises(ZooKeeperError, match="authentication failed"):
        async with Producer(driver) as out, anyio.create_task_group() as tasks:

            async def wait() -> None:
                results.append(await outcome(out))

            tasks.start_soon(wait)
            await wait_all_tasks_blocked()
            driver.metadata.fail(ZooKeeperError("authentication failed"))
            await wait_all_tasks_blocked()
            assert type(results[0]) is OutcomeUnknown
            for call in (out.put, out.send):
                with pytest.raises(
                    Closed, match="the producer stopped: ZooKeeperError: authentication failed"
                ) as caught:
                    await call("t", b"v")
                assert isinstance(caught.value.__cause__, ZooKeeperError)
            with pytest.raises(Closed):
                out.try_put("t", b"v")


async def test_a_dead_background_with_records_left_is_undelivered_because_of_it(driver: FakeDriver) -> None:
    driver.hold()
    with pytest.raises(Undelivered) as caught:
        async with Producer(driver) as out:
            await out.put("t", b"v")
            await wait_all_tasks_blocked()
            driver.metadata.fail(ZooKeeperError("authentication failed"))
            await wait_all_tasks_blocked()
    assert isinstance(caught.value.__cause__, ZooKeeperError)


async def test_a_mistake_of_ours_in_a_sender_is_not_only_logged(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(part: PartitionBatch, limit: int) -> PartitionBatch:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(driver, "encode", broken)
    with pytest.raises(Undelivered) as caught:
        async with Producer(driver) as out:
            await out.put("t", b"v")
            await out.flush()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# ---- cancellation ----------------------------------------------------------------------------------------------


async def cancelled_after(checkpoints: int, call: Callable[[], Awaitable[object]]) -> bool:
    """Run a call and cancel it after `checkpoints` passes of the loop. Return True if that cancelled it."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                for _ in range(checkpoints):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

            tasks.start_soon(cancel)
            await call()
            tasks.cancel_scope.cancel()
    return scope.cancelled_caught


@pytest.mark.parametrize("call", ["send", "put", "send_many"])
async def test_pain_cancellation_at_every_await_of_send(driver: FakeDriver, call: str) -> None:
    """Neither is the cancel swallowed nor a record lost: what was accepted is written, once; what was not, is not."""
    cancelled = {}
    for checkpoints in range(25):
        value = b"%d" % checkpoints
        arguments = [value] if call == "send_many" else value
        async with Producer(driver, buffer_bytes=2 * 132) as out:
            assert out.try_put("t", b"-", partition=PARTITION)
            assert out.try_put("t", b"-", partition=PARTITION)  # full: the call has to wait for room first
            method = partial(getattr(out, call), "t", arguments, partition=PARTITION)
            cancelled[checkpoints] = await cancelled_after(checkpoints, method)
        accepted = out.statistics().accepted - 2
        assert driver.log[PARTITION].count(value) == accepted
        assert accepted or cancelled[checkpoints]
        assert not out.failures
    assert cancelled[0]
    assert not cancelled[24]


async def test_pain_cancellation_the_outcome_of_a_cancelled_send_goes_to_failures(
    driver: FakeDriver, clock: Clock
) -> None:
    driver[1].connecting = True
    async with Producer(driver, deliver_within=HURRY_S) as out:
        async with anyio.create_task_group() as tasks:
            await Sends(out, tasks).start(b"v", partition=PARTITION)
            await driver[1].sent(1)
            tasks.cancel_scope.cancel()
        assert len(out.failures) == 0
        clock.now += 1
        await out.flush()
        (failed,) = out.failures.take()
        assert (failed.record.value, type(failed.error)) == (b"v", NotWritten)


async def test_pain_cancellation_of_send_many_leaves_its_records_on_their_way(driver: FakeDriver) -> None:
    driver[1].holding = True
    async with Producer(driver, buffer_bytes=131 * 3) as out:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: out.send_many("t", [b"%d" % n for n in range(9)], partition=PARTITION))
                await wait_all_tasks_blocked()
                scope.cancel()
        driver[1].release()
    assert driver.log[PARTITION] == [b"0", b"1", b"2"]
    assert out.statistics().accepted == 3


# ---- many at once ----------------------------------------------------------------------------------------------


@pytest.fixture
def _no_gc() -> Iterator[None]:
    """Collections of everything other tests left behind are not what is measured."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def cpu_seconds(driver: FakeDriver, senders: int) -> float:
    """What so many concurrent sends on one partition cost, most of them waiting for room first."""
    async with Producer(driver, buffer_bytes=131 * 100) as out:
        begun = process_time()
        async with anyio.create_task_group() as tasks:
            for _ in range(senders):
                tasks.start_soon(partial(out.send, "t", b"v", partition=PARTITION))
        took = process_time() - begun
        assert out.statistics().written == senders
    return took


@pytest.mark.usefixtures("_no_gc")
async def test_pain_4000_concurrent_sends_linear(driver: FakeDriver) -> None:
    few = min([await cpu_seconds(driver, 400) for _ in range(5)])
    many = min([await cpu_seconds(driver, 4000) for _ in range(3)])
    assert many / few < 10 * 3  # quadratic would be 100
    assert driver.log[PARTITION] == [b"v"] * (5 * 400 + 3 * 4000)


@pytest.mark.usefixtures("_no_gc")
async def test_pain_4000_cancelled_sends_linear(driver: FakeDriver) -> None:
    """Cancelling a crowd in front of a full buffer takes no search through it for each."""

    async def cancel(senders: int) -> float:
        driver[1].holding = True
        async with Producer(driver, buffer_bytes=131 * 100, deliver_within=60) as out:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    for _ in range(senders):
                        tasks.start_soon(partial(out.send, "t", b"v", partition=PARTITION))
                    while out.statistics().waiting < senders - 100:
                        await anyio.lowlevel.checkpoint()
                    begun = process_time()
                    scope.cancel()
            took = process_time() - begun
            assert out.statistics().waiting == 0
            driver[1].release()
            return took

    few = min([await cancel(400) for _ in range(3)])
    many = min([await cancel(4000) for _ in range(2)])
    assert many / few < 10 * 3
