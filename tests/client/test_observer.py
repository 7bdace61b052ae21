"""What an observer is told, on an in-memory cluster: exact sequences, faults, rebalances, errors of its own."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.client.observed import Recorder
from tests.client.one_member import until

import odradek as od
from odradek.observe import (
    BatchDelivered,
    BatchFinished,
    BatchSent,
    BufferLevel,
    CommitFinished,
    ConnectionEnded,
    ConnectionFailed,
    ConnectionOpened,
    Observer,
    PartFetched,
    ReadAheadLevel,
    Rebalanced,
    RequestFinished,
)
from odradek.testing import MemoryCluster

pytestmark = pytest.mark.anyio

P0, P1 = od.TopicPartition("t", 0), od.TopicPartition("t", 1)


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster({"t": 1})


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


# ---- producers ----------------------------------------------------------------------------------------------


async def test_a_send_is_a_batch_a_request_and_levels_of_the_buffer(cluster: MemoryCluster, recorder: Recorder) -> None:
    async with cluster.connect(observer=recorder) as k, k.producer(buffer_bytes=od.MiB) as out:
        await out.send("t", b"value")
    assert recorder.kinds == [
        *("BatchSent", "BufferLevel", "ConnectionOpened", "RequestFinished", "BatchFinished", "BufferLevel"),
        *("BufferLevel", "ConnectionEnded"),
    ]
    (opened,), (request,) = recorder.of(ConnectionOpened), recorder.of(RequestFinished)
    assert (opened.broker.id, opened.purpose) == (1, "produce")
    assert (request.broker, request.purpose, request.api, request.version) == (opened.broker, "produce", "Produce", -1)
    assert request.error is None and request.seconds >= 0
    (sent,), (finished,) = recorder.of(BatchSent), recorder.of(BatchFinished)
    assert sent[1:4] == (opened.broker, P0, 1) and sent.attempt == 1 and sent.bytes > 5
    assert finished[:5] == (sent.producer, "t", P0, 1, sent.bytes) and finished[6:] == (1, None)
    full, empty, last = recorder.of(BufferLevel)
    assert full.bytes >= sent.bytes and (empty.bytes, empty.limit, empty.waiting) == (0, od.MiB, 0)
    assert last == empty._replace(limit=0)


async def test_a_lost_connection_is_told_with_what_it_fails_and_what_is_sent_again(
    cluster: MemoryCluster, recorder: Recorder
) -> None:
    async with cluster.connect(observer=recorder) as k, k.producer() as out:
        cluster.hold("produce")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(out.send, "t", b"v")
            await cluster.wait_for_held("produce")
            cluster.cut(1)
            cluster.release("produce")
    ended, closed = recorder.of(ConnectionEnded)
    assert not closed.lost and ended.lost and "lost" in ended.reason
    lost, served = recorder.of(RequestFinished)
    assert isinstance(lost.error, od.ConnectionLost) and served.error is None
    assert recorder.events.index(ended) < recorder.events.index(lost)
    assert [sent.attempt for sent in recorder.of(BatchSent)] == [1, 2]
    assert [(done.attempts, done.error) for done in recorder.of(BatchFinished)] == [(2, None)]
    assert len(recorder.of(ConnectionOpened)) == 2


async def test_records_that_fail_are_told_with_their_error(cluster: MemoryCluster, recorder: Recorder) -> None:
    cluster.stop_broker(1)
    async with cluster.connect(observer=recorder) as k, k.producer(deliver_within=0.05) as out:
        with pytest.raises(od.NotWritten):
            await out.send("t", b"v")
    (failed,) = recorder.of(BatchFinished)
    assert failed.topic == "t" and failed.records == 1 and isinstance(failed.error, od.NotWritten)
    assert recorder.of(BufferLevel)[-1].bytes == 0


async def test_attempts_to_connect_that_fail_are_told(cluster: MemoryCluster, recorder: Recorder) -> None:
    async with cluster.connect(observer=recorder) as k, k.producer() as out:
        cluster.fail("connect", od.Unreachable("tcp", "memory-1:9092", "refused"), times=2)
        await out.send("t", b"v")
    assert recorder.kinds.count("ConnectionFailed") == 2
    assert recorder.of(ConnectionFailed)[0].reason and len(recorder.of(ConnectionOpened)) == 1
    assert [ended.lost for ended in recorder.of(ConnectionEnded)] == [False]


async def test_a_cancelled_send_is_told_when_it_has_its_outcome(cluster: MemoryCluster, recorder: Recorder) -> None:
    async with cluster.connect(observer=recorder) as k, k.producer() as out:
        cluster.hold("produce")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(out.send, "t", b"v")
            await cluster.wait_for_held("produce")
            tasks.cancel_scope.cancel()
        assert not recorder.of(BatchFinished)
        cluster.release("produce")
    assert [done.error for done in recorder.of(BatchFinished)] == [None]


async def test_many_records_are_few_events(cluster: MemoryCluster, recorder: Recorder) -> None:
    async with cluster.connect(observer=recorder) as k, k.producer() as out:
        await out.send_many("t", [b"v" * 100] * 5_000)
        async with k.reader("t", until=od.LATEST) as reader:
            assert len([record async for record in reader]) == 5_000
    assert sum(batch.records for batch in recorder.of(BatchSent)) == 5_000
    assert sum(batch.records for batch in recorder.of(BatchFinished)) == 5_000
    assert sum(batch.records for batch in recorder.of(BatchDelivered)) == 5_000
    assert len(recorder.events) < 200


async def test_records_that_are_put_back_and_delivered_again_are_told_once(
    cluster: MemoryCluster, recorder: Recorder
) -> None:
    cluster.append("t", [b"%d" % n for n in range(10)])
    async with cluster.connect(observer=recorder) as k, k.reader("t") as reader:
        for _ in range(3):
            await anext(reader)
        for _ in range(2):
            reader.pause(P0)
            reader.resume(P0)
            await anext(reader)
        reader.pause(P0)
        cluster.append("t", [b"%d" % n for n in range(10, 14)])
        reader.resume(P0)
        assert [int((await anext(reader)).value or b"") for _ in range(9)] == list(range(5, 14))
        assert sum(batch.records for batch in recorder.of(BatchDelivered)) == 14
        assert sum(batch.bytes for batch in recorder.of(BatchDelivered)) == 18
        reader.pause(P0)
        reader.seek(P0, od.EARLIEST)  # what was read before is delivered again
        reader.resume(P0)
        await anext(reader)
    assert sum(batch.records for batch in recorder.of(BatchDelivered)) == 28


# ---- consumers ----------------------------------------------------------------------------------------------


async def test_a_consumer_tells_of_its_group_its_records_and_its_commits(
    cluster: MemoryCluster, recorder: Recorder
) -> None:
    cluster.append("t", [b"%d" % n for n in range(10)])
    options: dict[str, Any] = {"group": "g", "start": od.EARLIEST, "commit_every": None}
    async with cluster.connect(observer=recorder) as k, k.consumer("t", **options) as consumer:
        batches = consumer.batches(max_records=4)
        for _ in range(3):
            (await anext(batches)).done()
        await consumer.commit()
    interesting = ("Rebalanced", "PartFetched", "BatchDelivered", "CommitFinished")
    assert [kind for kind in recorder.kinds if kind in interesting] == [
        *("Rebalanced", "PartFetched", "BatchDelivered", "BatchDelivered", "BatchDelivered", "CommitFinished"),
        "Rebalanced",
    ]
    joined, left = recorder.of(Rebalanced)
    assert joined[:4] == ("g", "assigned", (P0,), "joined the group") and joined.seconds >= 0
    assert left[:4] == ("g", "left", (P0,), "the consumer has left its block")
    (part,) = recorder.of(PartFetched)
    assert (part.partition, part.end, part.error) == (P0, 10, None) and part.bytes > 10
    delivered = recorder.of(BatchDelivered)
    assert [(batch.group, batch.partition) for batch in delivered] == [("g", P0)] * 3
    assert [(batch.records, batch.lag, batch.bytes) for batch in delivered] == [(4, 6, 4), (4, 2, 4), (2, 0, 2)]
    (commit,) = recorder.of(CommitFinished)
    assert (commit.group, commit.positions, commit.error) == ("g", {P0: 10}, None)
    assert any(level.bytes > 0 for level in recorder.of(ReadAheadLevel))
    assert {request.api for request in recorder.of(RequestFinished)} == {"Fetch", "ListOffsets"}


async def test_records_of_a_retry_topic_are_delivered_when_they_are_due(recorder: Recorder) -> None:
    cluster = MemoryCluster({"t": 1, "later": 1})
    cluster.append("t", [b"1", b"2", b"3"])
    handled: list[str] = []

    async def handle(record: od.Record) -> None:
        handled.append(record.topic)
        if record.topic == "t":
            raise ZeroDivisionError

    async with (
        cluster.connect(observer=recorder) as k,
        k.consumer(["t", "later"], group="g", start=od.EARLIEST) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(lambda: consumer.each(handle, retry_topics={"later": 0.1}))
        await until(lambda: len(handled) == 6)
        tasks.cancel_scope.cancel()
    delivered = [event.partition.topic for event in recorder.of(BatchDelivered) for _ in range(event.records)]
    assert sorted(delivered) == sorted(handled)


async def test_a_share_consumer_tells_of_its_records(cluster: MemoryCluster, recorder: Recorder) -> None:
    cluster.start_share_group("g", od.EARLIEST)
    cluster.append("t", [b"12", b"345"])
    async with cluster.connect(observer=recorder) as k, k.share_consumer("t", group="g") as consumer:
        await anext(consumer.batches())
    (delivered,) = recorder.of(BatchDelivered)
    assert delivered[1:] == ("g", P0, 2, 5, None)


async def test_revoked_lost_and_given_again(recorder: Recorder) -> None:
    cluster = MemoryCluster({"t": 2})
    async with cluster.connect(observer=recorder) as k, k.consumer("t", group="g") as consumer:
        cluster.revoke("g", P1)
        await until(lambda: len(consumer.assignment) == 1)
        cluster.restore("g")
        await until(lambda: len(recorder.of(Rebalanced)) == 3)
        cluster.expire("g")
        await until(lambda: len(recorder.of(Rebalanced)) == 5)
    events = [(event.kind, set(event.partitions), event.reason) for event in recorder.of(Rebalanced)]
    assert events == [
        ("assigned", {P0, P1}, "joined the group"),
        ("revoked", {P1}, "the assignment has changed"),
        ("assigned", {P1}, "the assignment has changed"),
        ("lost", {P0, P1}, "the session has expired"),
        ("assigned", {P0, P1}, "joined the group again"),
        ("left", {P0, P1}, "the consumer has left its block"),
    ]


async def test_what_is_lost_while_it_is_being_assigned_was_never_assigned(recorder: Recorder) -> None:
    cluster = MemoryCluster({"t": 2})
    cluster.revoke("g", P1)
    async with cluster.connect(observer=recorder) as k, k.consumer("t", group="g") as consumer:
        cluster.hold("positions")
        cluster.restore("g")
        await cluster.wait_for_held("positions")
        assert consumer.assignment.keys() == {P0, P1}
        cluster.expire("g")
        cluster.release("positions")
        await until(lambda: len(recorder.of(Rebalanced)) == 3)
    events = [(event.kind, set(event.partitions)) for event in recorder.of(Rebalanced)]
    assert events == [("assigned", {P0}), ("lost", {P0}), ("assigned", {P0, P1}), ("left", {P0, P1})]


async def test_a_commit_that_fails_is_told_with_its_error(cluster: MemoryCluster, recorder: Recorder) -> None:
    cluster.append("t", [b"v"])
    options: dict[str, Any] = {"group": "g", "start": od.EARLIEST, "commit_every": None}
    async with cluster.connect(observer=recorder) as k, k.consumer("t", **options) as consumer:
        (await anext(consumer.batches())).done()
        cluster.fail("commit", od.ConnectionLost("memory-1:9092", "cut", True))
        with pytest.raises(od.ConnectionLost):
            await consumer.commit()
        await consumer.commit()
    assert [type(commit.error) for commit in recorder.of(CommitFinished)] == [
        od.ConnectionLost,
        type(None),
        type(None),  # of the exit, because the outcome of the first one is unknown
    ]


async def test_a_commit_that_is_cancelled_has_no_outcome_to_tell(cluster: MemoryCluster, recorder: Recorder) -> None:
    cluster.append("t", [b"v"])
    options: dict[str, Any] = {"group": "g", "start": od.EARLIEST, "commit_every": None}
    async with cluster.connect(observer=recorder) as k, k.consumer("t", **options) as consumer:
        (await anext(consumer.batches())).done()
        cluster.hold("commit")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.commit)
            await cluster.wait_for_held("commit")
            tasks.cancel_scope.cancel()
        cluster.release("commit")
        assert not recorder.of(CommitFinished)
    assert [commit.error for commit in recorder.of(CommitFinished)] == [None]  # that of the exit


async def test_a_consumer_that_cannot_leave_in_order_has_left_all_the_same(
    cluster: MemoryCluster, recorder: Recorder
) -> None:
    cluster.append("t", [b"v"])
    options: dict[str, Any] = {"group": "g", "start": od.EARLIEST, "commit_every": None, "exit_within": 0.05}
    async with cluster.connect(observer=recorder) as k:
        with anyio.CancelScope() as scope:
            async with k.consumer("t", **options) as consumer:
                (await anext(consumer.batches())).done()
                cluster.hold("commit")
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        cluster.release("commit")
    assert [(event.kind, event.partitions) for event in recorder.of(Rebalanced)] == [
        ("assigned", (P0,)),
        ("left", (P0,)),
    ]
    assert recorder.of(Rebalanced)[-1].seconds >= 0.05


async def test_an_error_of_a_partition_is_told(cluster: MemoryCluster, recorder: Recorder) -> None:
    cluster.append("t", [b"v"])
    refused = od.BrokerError(29, "TOPIC_AUTHORIZATION_FAILED")
    cluster.fail("fetch", refused, partition=P0)
    async with cluster.connect(observer=recorder) as k, k.reader("t") as reader:
        with pytest.raises(od.BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await anext(reader.batches())
    (part,) = recorder.of(PartFetched)
    assert part.bytes == 0 and isinstance(part.error, od.BrokerError) and not recorder.of(BatchDelivered)


async def test_a_reader_has_no_group_and_readers_have_numbers(cluster: MemoryCluster, recorder: Recorder) -> None:
    cluster.append("t", [b"v"])
    async with cluster.connect(observer=recorder) as k:
        for _ in range(2):
            async with k.reader("t", until=od.LATEST) as reader:
                assert len([batch async for batch in reader.batches()]) == 1
    first, second = recorder.of(BatchDelivered)
    assert first.group is second.group is None and first.reader < second.reader
    assert {level.reader for level in recorder.of(ReadAheadLevel)} == {first.reader, second.reader}


# ---- observers that are wrong --------------------------------------------------------------------------------


class Broken(Observer):
    """Raises from every method."""

    calls = 0

    def __getattribute__(self, name: str) -> Any:
        if not hasattr(Observer, name) or name.startswith("__"):
            return super().__getattribute__(name)

        def fail(event: object) -> None:
            Broken.calls += 1
            raise RuntimeError(name)

        return fail


async def test_an_observer_that_raises_harms_nothing_and_is_logged_once_for_each_method(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "odradek.observe")
    async with cluster.connect(observer=Broken()) as k:
        async with k.producer() as out:
            for n in range(5):
                await out.send("t", b"%d" % n)
            cluster.cut(1)
            await out.send("t", b"5")
        async with k.consumer("t", group="g", start=od.EARLIEST) as consumer:
            async for record in consumer:
                if record.value == b"5":
                    break
        assert cluster.committed("g") == {P0: 6} or cluster.committed("g") == {P0: 5}
    lines = [record.getMessage() for record in caplog.records if record.name == "odradek.observe"]
    named = {line.split(" ")[0] for line in lines}
    assert {"Broken.batch_sent", "Broken.request_finished", "Broken.rebalanced", "Broken.commit_finished"} <= named
    assert len(lines) == len(named) < Broken.calls
    assert all(record.exc_info for record in caplog.records if record.name == "odradek.observe")


async def test_what_is_no_observer_is_refused() -> None:
    class Late(Observer):
        async def throttled(self, event: object) -> None:  # type: ignore[override]
            pass

    with pytest.raises(TypeError, match=r"observer must be an odradek\.observe\.Observer"):
        od.connect("kafka://localhost:1", observer=print)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Late\.throttled must be a plain function"):
        od.connect("kafka://localhost:1", observer=Late())
