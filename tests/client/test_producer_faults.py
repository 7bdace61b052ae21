"""The producer when brokers, metadata and callers fail it, on an in-memory cluster."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from time import process_time
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from tests.client.observed import Recorder
from tests.client.producing import P0, P1, P2, P3, ProducerClock, make_cluster, producing, stored, values
from tests.client.reading import cancelled_after

from odradek.client.options import Tuning
from odradek.client.producer import sender
from odradek.client.producer.producer import Producer
from odradek.client.producer.results import Ack
from odradek.core.backoff import Backoff
from odradek.core.interfaces import ProducerRecord
from odradek.errors import (
    BrokerError,
    Closed,
    ConnectionLost,
    DeadlineError,
    DeliveryError,
    NotWritten,
    OdradekError,
    OutcomeUnknown,
    Rejected,
    RemoteProtocolError,
    Undelivered,
    Unreachable,
)
from odradek.observe import BufferLevel
from odradek.testing import MemoryCluster

pytestmark = pytest.mark.anyio

REFUSED = Unreachable("tcp", "memory-1:9092", "refused")
UNSENT = ConnectionLost("memory-1:9092", "reset", False)
DENIED = BrokerError(58, "SASL_AUTHENTICATION_FAILED")


@pytest.fixture
def cluster() -> MemoryCluster:
    return make_cluster()


async def outcome(out: Producer, value: bytes = b"v", topic: str = "t", **kw: Any) -> Any:
    """What `send` returned or raised."""
    try:
        return await out.send(topic, value, **kw)
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


async def late(
    clock: ProducerClock, out: Producer, tried: Callable[[], Awaitable[None]] | None = None, **kw: Any
) -> Any:
    """What becomes of a record whose time is up: once it was tried, if that is said."""
    async with anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"v", **kw)
        if tried is not None:
            await tried()
            await wait_all_tasks_blocked()
        clock.now += 1
    return sends.outcomes[b"v"]


# ---- connections lost ------------------------------------------------------------------------------------------


async def test_what_was_surely_not_sent_goes_again_in_order_and_once(cluster: MemoryCluster) -> None:
    cluster.hold("produce", broker=1)
    async with producing(cluster, latency=0) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        for value, partition in ((b"1", P0), (b"2", P2), (b"3", P0)):
            await sends.start(value, partition=partition)
        assert len(cluster.requests("produce")) == 2, "one of each partition"
        cluster.cut(1, error=UNSENT)
        cluster.release("produce", broker=1)
    assert stored(cluster, P0) == [b"1", b"3"]
    assert stored(cluster, P2) == [b"2"]
    assert [ack.repeated for ack in sends.outcomes.values()] == [False] * 3


@pytest.mark.parametrize("acks", ["all", 1])
async def test_what_may_have_been_applied_goes_again_and_says_so(cluster: MemoryCluster, acks: Any) -> None:
    repeated = acks == 1  # else the producer is idempotent
    cluster.hold("produce", broker=1)
    async with producing(cluster, latency=0, acks=acks) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        for value, partition in ((b"1", P0), (b"2", P2), (b"3", P0)):
            await sends.start(value, partition=partition)
        cluster.cut(1, applied=1)
        await wait_all_tasks_blocked()
        assert not sends.outcomes
        cluster.release("produce", broker=1)
    assert stored(cluster, P0) == [*[b"1"] * (1 + repeated), b"3"]  # at least once, in order
    assert stored(cluster, P2) == [b"2"]
    expected = {b"1": repeated, b"2": repeated, b"3": False}
    assert {value: ack.repeated for value, ack in sends.outcomes.items()} == expected
    assert out.statistics().retries == 1


async def test_order_holds_while_newer_records_arrive_during_the_failure(cluster: MemoryCluster) -> None:
    cluster.hold("produce", broker=1)
    async with producing(cluster, latency=0) as out:
        for n in range(3):
            await out.put("t", b"%d" % n, partition=P0)
            await wait_all_tasks_blocked()
        cluster.release("produce", broker=1)
        cluster.cut(1, error=UNSENT)
        for n in range(3, 6):
            await out.put("t", b"%d" % n, partition=P0)
    assert stored(cluster, P0) == [b"%d" % n for n in range(6)]


async def test_after_a_lost_connection_records_wait_for_the_back_off_of_the_connection_alone(
    cluster: MemoryCluster, producer_clock: ProducerClock
) -> None:
    cluster.hold("produce", broker=1)
    connection, never = Tuning(backoff=Backoff(HURRY_S, 1, HURRY_S)), Tuning(backoff=Backoff(1000, 1, 1000))
    async with (
        cluster.connect(tuning=connection) as k,
        k.producer(tuning=never) as out,
        anyio.create_task_group() as tasks,
    ):
        sends = Sends(out, tasks)
        await sends.start(b"1", partition=P0)
        assert len(cluster.requests("produce")) == 1
        cluster.release("produce", broker=1)
        cluster.cut(1, error=UNSENT)
        await sends.start(b"2", partition=P0)
        assert len(cluster.requests("produce")) == 1
        producer_clock.now = anyio.current_time() + HURRY_S
    assert stored(cluster, P0) == [b"1", b"2"]


async def test_a_request_that_fails_as_a_whole_has_metadata_read_again(cluster: MemoryCluster) -> None:
    cluster.fail("produce", REFUSED, times=None, broker=1)
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: out.send("t", b"v", partition=P0))
        await cluster.wait_for_requests("metadata")
        cluster.stop_failing("produce")


async def test_a_broker_that_is_away_for_a_while_costs_nothing_but_time(cluster: MemoryCluster) -> None:
    cluster.fail("connect", REFUSED, times=None, broker=1)
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        tasks.start_soon(partial(sends.start, b"v", partition=P0))
        await cluster.wait_for_requests("connect", 3, broker=1)
        cluster.stop_failing("connect")
    assert stored(cluster, P0) == [b"v"]
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
    cluster: MemoryCluster, producer_clock: ProducerClock, error: OdradekError, kind: type[OdradekError]
) -> None:
    cluster.fail("produce", error, times=None, broker=1)
    tried = partial(cluster.wait_for_requests, "produce", broker=1)
    once = Tuning(backoff=Backoff(1000, 1, 1000))
    async with producing(cluster, tuning=once, deliver_within=HURRY_S) as out:
        result = await late(producer_clock, out, tried, partition=P0)
        assert type(result) is kind
        assert isinstance(result, DeliveryError)
        assert result.records == [ProducerRecord(b"v")]
        assert type(result.__cause__) is type(error)
        assert str(result.__cause__) == str(error)
        assert f"not delivered within {HURRY_S} s (t/0; 1 attempt, the last failed: {error})" in str(result)


async def on_the_wire(cluster: MemoryCluster, clock: ProducerClock, sends: Sends) -> None:
    """A record is on the wire, unanswered, when its time is up."""
    await sends.start(b"v", partition=P0)
    await cluster.wait_for_requests("produce", broker=1)
    clock.now += 1
    await anyio.sleep(HURRY_S)
    await wait_all_tasks_blocked()
    assert not sends.outcomes


async def test_a_record_on_the_wire_whose_time_is_up_waits_for_its_answer(
    cluster: MemoryCluster, producer_clock: ProducerClock
) -> None:
    cluster.hold("produce", broker=1)
    async with producing(cluster, deliver_within=HURRY_S) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await on_the_wire(cluster, producer_clock, sends)
        cluster.release("produce", broker=1)
    assert type(sends.outcomes[b"v"]) is Ack
    assert stored(cluster, P0) == [b"v"]


async def test_a_record_on_the_wire_that_is_never_answered_is_unknown_and_not_sent_again(
    cluster: MemoryCluster, producer_clock: ProducerClock
) -> None:
    cluster.hold("produce", broker=1)
    async with producing(cluster, deliver_within=HURRY_S) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await on_the_wire(cluster, producer_clock, sends)
        cluster.cut(1, error=DeadlineError("produce", 10, True))
    result = sends.outcomes[b"v"]
    assert type(result) is OutcomeUnknown
    assert "1 attempt, the last failed: produce: no answer within 10 s" in str(result)
    assert len(cluster.requests("produce")) == 1


async def test_records_of_which_no_byte_was_sent_are_not_written_when_time_is_up(
    cluster: MemoryCluster, producer_clock: ProducerClock
) -> None:
    cluster.hold("connect", broker=1)
    async with producing(cluster, deliver_within=HURRY_S, latency=0) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"1", partition=P0)
        producer_clock.now += 0.05
        await sends.start(b"2", partition=P0)
        await sends.start(b"3", partition=P2)
        assert out.statistics().requests == 2, "one of each partition waits for the connection"
        producer_clock.now += 0.05
        while not sends.outcomes:
            await wait_all_tasks_blocked()
        assert type(sends.outcomes[b"1"]) is NotWritten
        assert len(sends.outcomes) == 1
        assert cluster.requests("produce") == []
        cluster.release("connect", broker=1)
    assert stored(cluster, P0) == [b"2"]
    assert stored(cluster, P2) == [b"3"]


async def test_at_exit_records_of_which_no_byte_was_sent_are_withdrawn(cluster: MemoryCluster) -> None:
    cluster.hold("connect", broker=1)
    with pytest.raises(Undelivered, match="2 not written; first: not delivered within the 0 s of exit_within"):
        async with producing(cluster, exit_within=0) as out:
            await out.put("t", b"1", partition=P0)
            await cluster.wait_for_requests("connect", broker=1)
            await out.put("t", b"2", partition=P0)
    cluster.release("connect", broker=1)
    assert stored(cluster, P0) == []


async def test_a_stale_leader_has_the_routing_table_read_again(cluster: MemoryCluster) -> None:
    once = Tuning(backoff=Backoff(1000, 1, 1000))  # of the former leader
    async with producing(cluster, tuning=once) as out:
        await out.send("t", b"the topic is known now", partition=P1)
        cluster.move_leader(P0, 2)
        for partition in (P0, P2):
            await out.put("t", b"v", partition=partition)
    assert len(cluster.requests("metadata")) == 1
    assert [stored(cluster, partition) for partition in (P0, P2)] == [[b"v"], [b"v"]]
    (first,) = cluster.requests("produce", broker=1)
    assert len(first.batches) == 2
    assert [len(request.batches) for request in cluster.requests("produce", broker=2)] == [1, 1]


async def test_a_partition_that_is_refused_for_now_does_not_hold_up_others_of_its_broker(
    cluster: MemoryCluster,
) -> None:
    cluster.fail("produce", BrokerError(19, "NOT_ENOUGH_REPLICAS", retriable=True), partition=P0)
    once = Tuning(backoff=Backoff(1000, 1, 1000))
    with pytest.raises(Undelivered, match="1 not written"):
        async with producing(cluster, tuning=once, exit_within=0) as out:
            await out.put("t", b"refused", partition=P0)
            await cluster.wait_for_requests("produce", broker=1)
            for value in (b"1", b"2"):
                with anyio.fail_after(30):
                    await out.send("t", value, partition=P2)
    assert (stored(cluster, P0), stored(cluster, P2)) == ([], [b"1", b"2"])


async def test_a_partition_that_was_refused_for_now_is_sent_again_while_nothing_else_is(cluster: MemoryCluster) -> None:
    cluster.fail("produce", BrokerError(19, "NOT_ENOUGH_REPLICAS", retriable=True), times=2, partition=P0)
    async with producing(cluster) as out:
        ack = await out.send("t", b"v", partition=P0)
    assert (ack.partition, ack.repeated) == (P0, False)
    assert len(cluster.requests("produce", broker=1)) == 3


async def test_what_a_broker_refuses_for_good_is_rejected_and_its_neighbours_are_written(
    cluster: MemoryCluster,
) -> None:
    cluster.fail("produce", BrokerError(29, "TopicAuthorizationFailed"), partition=P0)
    async with producing(cluster) as out:
        await out.send("t", b"the topic is known now", partition=P1)
        await out.put("t", b"bad", partition=P0)
        await out.put("t", b"good", partition=P2)
        await out.flush()
        (failed,) = out.failures.take()
    assert (failed.record.value, type(failed.error)) == (b"bad", Rejected)
    assert isinstance(failed.error.__cause__, BrokerError)
    assert failed.error.__cause__.code == 29
    assert stored(cluster, P2) == [b"good"]
    assert len(cluster.requests("produce", broker=1)) == 1


async def test_a_fenced_producer_stops_and_says_why(cluster: MemoryCluster) -> None:
    cluster.fail("produce", BrokerError(47, "InvalidProducerEpoch", fence=True))
    with pytest.raises(BrokerError, match="InvalidProducerEpoch"):
        async with producing(cluster, acks=1) as out:
            with pytest.raises(Rejected):
                await out.send("t", b"v", partition=P0)
            with pytest.raises(Closed, match="the producer stopped: BrokerError: InvalidProducerEpoch"):
                await out.send("t", b"v")


async def test_a_partitioner_that_raises_fails_only_that_record_also_of_a_new_topic(cluster: MemoryCluster) -> None:
    def choosy(topic: str, key: bytes | None, count: int) -> int | None:
        return int(key) % count if key else None

    cluster.create_topic("u")
    async with producing(cluster, partitioner=choosy) as out:
        for topic in ("t", "t", "u"):
            with pytest.raises((ValueError, Rejected), match="invalid literal") as caught:
                await out.send(topic, b"v", key=b"bad")
        assert type(caught.value) is Rejected
        await out.send("u", b"v", key=b"1")
    assert values(cluster, "u") == [b"v"]


async def test_a_failure_while_the_rest_is_failed_does_not_keep_the_tasks_running(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(why: str) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        async with producing(cluster) as out:
            monkeypatch.setattr(out._dispatcher, "_fail_remaining", broken)
    assert out._dispatcher._background._finished


async def test_an_error_that_no_trying_again_can_help_ends_it_at_once(cluster: MemoryCluster) -> None:
    cluster.hold("produce", broker=1)
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"v", partition=P0)
        cluster.cut(1, error=BrokerError(29, "TopicAuthorizationFailed"))
    assert type(sends.outcomes[b"v"]) is NotWritten
    assert "TopicAuthorizationFailed" in str(sends.outcomes[b"v"])


async def test_without_confirm_what_is_handed_over_is_written(cluster: MemoryCluster) -> None:
    async with producing(cluster, acks=0) as out:
        assert (await out.send("t", b"v")).confirmed is False
    assert [request.acks for request in cluster.requests("produce")] == [0]


async def test_without_confirm_a_closed_connection_is_a_reason_to_look_for_the_leader(cluster: MemoryCluster) -> None:
    """A broker has no other way to say that it does not lead the partition of a produce that it does not answer. What
    follows waits for the routing table, also if that takes longer than a back-off."""
    async with producing(cluster, acks=0) as out, anyio.create_task_group() as tasks:
        await out.send("t", b"1", partition=P0)
        cluster.move_leader(P0, 2)
        cluster.cut(1)
        cluster.hold("metadata")
        sends = Sends(out, tasks)
        await sends.start(b"2", partition=P0)
        assert not sends.outcomes
        cluster.release("metadata")
    assert stored(cluster, P0) == [b"1", b"2"]


async def test_without_confirm_a_routing_table_that_cannot_be_read_stops_nothing(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "READ_TABLE_S", 0.01)
    async with producing(cluster, acks=0) as out:
        await out.send("t", b"1", partition=P0)
        cluster.cut(1)
        cluster.hold("metadata")
        await out.send("t", b"2", partition=P0)
    assert stored(cluster, P0) == [b"1", b"2"]


# ---- routing --------------------------------------------------------------------------------------------------


async def test_records_without_a_key_are_spread_uniformly(cluster: MemoryCluster) -> None:
    async with producing(cluster) as out:
        for _ in range(400):
            await out.send("t", b"v")
    assert all(60 < len(stored(cluster, partition)) < 140 for partition in (P0, P1, P2, P3))


async def test_records_of_a_broker_that_has_gone_are_sent_to_the_next_leader(cluster: MemoryCluster) -> None:
    cluster.fail("produce", REFUSED, times=None, broker=1)
    async with producing(cluster) as out:
        for n in range(5):
            await out.put("t", b"%d" % n, partition=P0)
        await cluster.wait_for_requests("produce", broker=1)
        cluster.stop_broker(1)
        cluster.move_leader(P0, 2)
    assert stored(cluster, P0) == [b"%d" % n for n in range(5)]
    assert cluster.requests("produce", broker=2)


async def test_an_explicit_partition_waits_for_its_broker_to_come_back(cluster: MemoryCluster) -> None:
    cluster.stop_broker(1)
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"v", partition=P0)
        assert not sends.outcomes
        cluster.start_broker(1)
    assert stored(cluster, P0) == [b"v"]


async def test_records_without_any_live_broker_wait_for_one(cluster: MemoryCluster) -> None:
    cluster.stop_broker(1)
    cluster.stop_broker(2)
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"v")
        assert not sends.outcomes
        cluster.start_broker(1)
        cluster.start_broker(2)
    assert values(cluster) == [b"v"]


async def test_without_any_partition_the_error_says_that(cluster: MemoryCluster, producer_clock: ProducerClock) -> None:
    async with producing(cluster, deliver_within=HURRY_S) as out:
        result = await late(producer_clock, out, topic="none")
    assert type(result) is NotWritten
    assert f"not delivered within {HURRY_S} s (none: no live broker has it; 0 attempts)" in str(result)


async def test_without_any_live_broker_the_error_says_that_it_was_not_tried(
    cluster: MemoryCluster, producer_clock: ProducerClock
) -> None:
    cluster.stop_broker(1)
    async with producing(cluster, deliver_within=HURRY_S) as out:
        result = await late(producer_clock, out, partition=P0)
    assert type(result) is NotWritten
    assert f"not delivered within {HURRY_S} s (t/0; 0 attempts)" in str(result)


async def test_a_topic_that_cannot_be_looked_up_yet_is_asked_for_again(cluster: MemoryCluster) -> None:
    cluster.fail("metadata", REFUSED, times=2)
    async with producing(cluster) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(out.send, "new", b"v")
        await cluster.wait_for_requests("metadata", 3)
        cluster.create_topic("new")
    assert values(cluster, "new") == [b"v"]


async def test_a_topic_that_was_never_found_says_why(cluster: MemoryCluster, producer_clock: ProducerClock) -> None:
    cluster.fail("metadata", REFUSED)
    once = Tuning(backoff=Backoff(1000, 1, 1000))
    async with producing(cluster, tuning=once, deliver_within=HURRY_S) as out:
        result = await late(producer_clock, out, partial(cluster.wait_for_requests, "metadata"), topic="new")
    assert type(result) is NotWritten
    assert f"(new: {REFUSED}; 0 attempts)" in str(result)


# ---- what nobody waits for --------------------------------------------------------------------------------------


async def test_failures_of_put_can_be_taken_and_then_exit_is_quiet(cluster: MemoryCluster) -> None:
    async with producing(cluster, deliver_within=0.02) as out:
        await out.put("none", b"1")
        assert out.try_put("none", b"2")
        await out.flush()
        taken = out.failures.take()
        assert [(failed.record.value, failed.topic, failed.partition) for failed in taken] == [
            (b"1", "none", None),
            (b"2", "none", None),
        ]
        assert all(type(failed.error) is NotWritten for failed in taken)


async def test_failures_nobody_took_are_raised_at_exit(cluster: MemoryCluster) -> None:
    with pytest.raises(Undelivered, match="1 not written; first: not delivered within") as caught:
        async with producing(cluster, deliver_within=0.02) as out:
            await out.put("none", b"v")
            await out.flush()
            assert len(out.failures) == 1
    (failed,) = caught.value.records
    assert failed.record.value == b"v"


# ---- exit -----------------------------------------------------------------------------------------------------


async def test_exit_raises_what_did_not_make_it_and_what_is_known_of_it(cluster: MemoryCluster) -> None:
    cluster.stop_broker(2)
    cluster.hold("produce", broker=1)
    with pytest.raises(Undelivered) as caught:
        async with producing(cluster, exit_within=0.05) as out:
            await out.put("t", b"in flight", partition=P0)
            await wait_all_tasks_blocked()
            await out.put("t", b"no broker", partition=P1)
    assert {failed.record.value: type(failed.error) for failed in caught.value.records} == {
        b"in flight": OutcomeUnknown,
        b"no broker": NotWritten,
    }
    assert str(caught.value).startswith("2 records undelivered at exit: 1 unknown, 1 not written; first: ")


async def test_exit_does_not_mask_what_the_block_raised(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    with pytest.raises(ValueError, match="mine") as caught:
        async with producing(cluster, exit_within=0.02) as out:
            await out.put("t", b"v")
            raise ValueError("mine")
    (note,) = caught.value.__notes__
    assert note.startswith("1 record undelivered at exit: ")
    assert [failed.record.value for failed in out.failures] == [b"v"]


async def test_a_cancelled_block_is_flushed_within_the_budget(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    async with anyio.create_task_group() as tasks:

        async def release() -> None:
            await wait_all_tasks_blocked()
            cluster.release("produce")

        with anyio.CancelScope() as scope:
            async with producing(cluster) as out:
                await out.put("t", b"v")
                tasks.start_soon(release)
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
    assert values(cluster) == [b"v"]


async def test_a_cancelled_block_that_leaves_records_behind_does_not_hide_it(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    with anyio.CancelScope() as scope, pytest.raises(Undelivered):
        async with producing(cluster, exit_within=0.02) as out:
            await out.put("t", b"v")
            scope.cancel()
            await anyio.sleep_forever()


@pytest.mark.parametrize("again", [False, True])
def test_a_native_cancellation_of_the_exit_does_not_hide_what_it_leaves_behind(
    cluster: MemoryCluster, *, again: bool
) -> None:
    recorder = Recorder()
    cluster.hold("produce")

    async def write() -> None:
        async with cluster.connect(observer=recorder) as k, k.producer() as out:
            await out.put("t", b"v")

    async def main() -> None:
        task = asyncio.create_task(write())
        await cluster.wait_for_held("produce")
        task.cancel()
        if again:
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(Undelivered, match="1 unknown; first: the exit was cancelled"):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert recorder.of(BufferLevel)[-1].limit == 0


def test_a_native_cancellation_of_the_exit_comes_out_if_all_callers_were_told(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    sends: list[asyncio.Task[Any]] = []

    async def write() -> None:
        async with producing(cluster) as out:
            sends.append(asyncio.create_task(outcome(out)))
            await cluster.wait_for_held("produce")

    async def main() -> None:
        task = asyncio.create_task(write())
        await cluster.wait_for_held("produce")
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert isinstance(await sends[0], OutcomeUnknown)

    asyncio.run(main())


async def test_exit_tells_those_who_still_wait(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    outcomes: list[Any] = []

    async def wait(out: Producer) -> None:
        outcomes.append(await outcome(out, partition=P0))

    async with anyio.create_task_group() as tasks, producing(cluster, buffer_bytes=131, exit_within=0.05) as out:
        tasks.start_soon(wait, out)
        await wait_all_tasks_blocked()
        tasks.start_soon(wait, out)
        await wait_all_tasks_blocked()
    assert sorted(type(result).__name__ for result in outcomes) == ["Closed", "OutcomeUnknown"]


# ---- a background that dies ------------------------------------------------------------------------------------


async def test_a_dead_background_surfaces_everywhere(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    results: list[Any] = []
    with pytest.raises(BrokerError, match="SASL_AUTHENTICATION_FAILED"):
        async with producing(cluster) as out, anyio.create_task_group() as tasks:

            async def wait() -> None:
                results.append(await outcome(out))

            tasks.start_soon(wait)
            await wait_all_tasks_blocked()
            cluster.fail("watch", DENIED)
            await wait_all_tasks_blocked()
            assert type(results[0]) is OutcomeUnknown
            for call in (out.put, out.send):
                with pytest.raises(
                    Closed, match="the producer stopped: BrokerError: SASL_AUTHENTICATION_FAILED"
                ) as caught:
                    await call("t", b"v")
                assert isinstance(caught.value.__cause__, BrokerError)
            with pytest.raises(Closed):
                out.try_put("t", b"v")


async def test_a_dead_background_with_records_left_is_undelivered_because_of_it(cluster: MemoryCluster) -> None:
    cluster.hold("produce")
    with pytest.raises(Undelivered) as caught:
        async with producing(cluster) as out:
            await out.put("t", b"v")
            await wait_all_tasks_blocked()
            cluster.fail("watch", DENIED)
            await wait_all_tasks_blocked()
    assert isinstance(caught.value.__cause__, BrokerError)


# ---- cancellation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["send", "put", "send_many"])
async def test_pain_cancellation_at_every_await_of_send(cluster: MemoryCluster, call: str) -> None:
    """Neither is the cancel swallowed nor a record lost: what was accepted is written, once; what was not, is not."""
    cancelled: list[bool] = []
    while not cancelled or any(cancelled[-5:]):
        value = b"%d" % len(cancelled)
        arguments = [value] if call == "send_many" else value
        async with producing(cluster, buffer_bytes=2 * 132) as out:
            assert out.try_put("t", b"-", partition=P0)
            assert out.try_put("t", b"-", partition=P0)  # full: the call has to wait for room first
            method = partial(getattr(out, call), "t", arguments, partition=P0)
            async with cancelled_after(len(cancelled)) as scope:
                await method()
            cancelled.append(scope.cancelled_caught)
        accepted = out.statistics().accepted - 2
        assert stored(cluster, P0).count(value) == accepted
        assert accepted or cancelled[-1]
        assert not out.failures
    assert cancelled[0]
    assert len(cancelled) > 10


async def test_pain_cancellation_the_outcome_of_a_cancelled_send_goes_to_failures(
    cluster: MemoryCluster, producer_clock: ProducerClock
) -> None:
    cluster.hold("connect", broker=1)
    async with producing(cluster, deliver_within=HURRY_S) as out:
        async with anyio.create_task_group() as tasks:
            await Sends(out, tasks).start(b"v", partition=P0)
            await cluster.wait_for_requests("connect", broker=1)
            tasks.cancel_scope.cancel()
        assert len(out.failures) == 0
        producer_clock.now += 1
        await out.flush()
        (failed,) = out.failures.take()
        assert (failed.record.value, type(failed.error)) == (b"v", NotWritten)


async def test_pain_cancellation_of_send_many_leaves_its_records_on_their_way(cluster: MemoryCluster) -> None:
    cluster.hold("produce", broker=1)
    async with producing(cluster, buffer_bytes=131 * 3) as out:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: out.send_many("t", [b"%d" % n for n in range(9)], partition=P0))
                await wait_all_tasks_blocked()
                scope.cancel()
        cluster.release("produce", broker=1)
    assert stored(cluster, P0) == [b"0", b"1", b"2"]
    assert out.statistics().accepted == 3


# ---- many at once ----------------------------------------------------------------------------------------------


@pytest.fixture
def _no_gc() -> Iterator[None]:
    """Collections of everything other tests left behind are not what is measured."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def cpu_seconds(cluster: MemoryCluster, senders: int) -> float:
    """What so many concurrent sends on one partition cost, most of them waiting for room first."""
    async with producing(cluster, buffer_bytes=131 * 100) as out:
        begun = process_time()
        async with anyio.create_task_group() as tasks:
            for _ in range(senders):
                tasks.start_soon(partial(out.send, "t", b"v", partition=P0))
        took = process_time() - begun
        assert out.statistics().written == senders
    return took


@pytest.mark.usefixtures("_no_gc")
async def test_pain_4000_concurrent_sends_linear(cluster: MemoryCluster) -> None:
    few = min([await cpu_seconds(cluster, 400) for _ in range(5)])
    many = min([await cpu_seconds(cluster, 4000) for _ in range(3)])
    assert many / few < 10 * 3  # quadratic would be 100
    assert stored(cluster, P0) == [b"v"] * (5 * 400 + 3 * 4000)


@pytest.mark.usefixtures("_no_gc")
async def test_pain_4000_cancelled_sends_linear(cluster: MemoryCluster) -> None:
    """Cancelling a crowd in front of a full buffer takes no search through it for each."""

    async def cancel(senders: int) -> float:
        cluster.hold("produce", broker=1)
        async with producing(cluster, buffer_bytes=131 * 100, deliver_within=60) as out:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    for _ in range(senders):
                        tasks.start_soon(partial(out.send, "t", b"v", partition=P0))
                    while out.statistics().waiting < senders - 100:
                        await anyio.lowlevel.checkpoint()
                    begun = process_time()
                    scope.cancel()
            took = process_time() - begun
            assert out.statistics().waiting == 0
            cluster.release("produce", broker=1)
            return took

    few = min([await cancel(400) for _ in range(3)])
    many = min([await cancel(4000) for _ in range(2)])
    assert many / few < 10 * 3
