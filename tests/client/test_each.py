"""`each`: many handlers at a time, order where it is wanted, contiguous commits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.client import one_member
from tests.client.one_member import make_cluster, numbered, revoking, tp, until

from odradek.client.consumer.consumer import Consumer
from odradek.client.consumer.dead_letters import FailedRecord, send_dead_letter
from odradek.core.backoff import Backoff
from odradek.errors import BrokerError, ConfigError, OdradekError, Rejected, Unsupported
from odradek.testing import MemoryCluster
from odradek.types import EARLIEST, LATEST, Position, Record, TopicPartition

from ..payloads import payload

pytestmark = pytest.mark.anyio

AT_ONCE = Backoff(first_s=0, max_s=0)
Handler = Callable[[Record], Awaitable[object]]

consuming = partial(one_member.consuming, revoke_within=30)


@asynccontextmanager
async def running(consumer: Consumer, handle: Handler, **options: Any) -> AsyncIterator[None]:
    """`each` in the background of the block."""
    async with anyio.create_task_group() as tasks:

        async def work() -> None:
            await consumer.each(handle, **options)

        tasks.start_soon(work)
        yield
        tasks.cancel_scope.cancel()


class Bench:
    """A handler whose every call waits for the test."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, anyio.Event] = {}
        self.begun: list[bytes] = []
        self.done: list[bytes] = []

    async def __call__(self, record: Record) -> None:
        self.begun.append(payload(record.value))
        gate = self.waiting.setdefault(payload(record.value), anyio.Event())
        try:
            await gate.wait()
        finally:
            del self.waiting[payload(record.value)]
        self.done.append(payload(record.value))

    def finish(self, number: int) -> None:
        self.waiting[b"%06d" % number].set()


async def begun(bench: Bench, count: int) -> None:
    await until(lambda: len(bench.begun) == count)


async def finished(bench: Bench, count: int) -> None:
    await until(lambda: len(bench.done) == count)


async def test_every_record_is_handled_and_committed() -> None:
    cluster = make_cluster(300, 200)
    seen: list[bytes] = []

    async def handle(record: Record) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(payload(record.value))

    async with consuming(cluster) as consumer, running(consumer, handle, order="none", parallel=20):
        await until(lambda: len(seen) == 500)
    assert sorted(seen) == numbered(500)
    assert cluster.committed("g") == {tp(0): 300, tp(1): 200}


async def test_pain_each_parallel_contiguous_commits() -> None:
    """Handlers finish in any order; a position is committed only when everything before it is finished."""
    cluster, bench = make_cluster(4), Bench()
    async with consuming(cluster) as consumer, running(consumer, bench, order="none", parallel=4):
        await until(lambda: len(bench.waiting) == 4)
        bench.finish(3)
        bench.finish(1)
        await until(lambda: len(bench.done) == 2)
        await consumer.commit()
        assert cluster.committed("g") == {tp(): 0}
        bench.finish(0)
        await until(lambda: len(bench.done) == 3)
        await consumer.commit()
        assert cluster.committed("g") == {tp(): 2}
        bench.finish(2)
        await until(lambda: len(bench.done) == 4)
        await consumer.commit()
        assert cluster.committed("g") == {tp(): 4}


async def test_no_more_run_at_a_time_than_allowed() -> None:
    cluster, bench = make_cluster(20), Bench()
    async with consuming(cluster) as consumer, running(consumer, bench, order="none", parallel=3):
        for n in range(20):
            await begun(bench, min(20, n + 3))
            assert len(bench.waiting) <= 3
            bench.finish(int(bench.begun[n]))
            await finished(bench, n + 1)
        await until(lambda: len(bench.done) == 20)


async def test_by_partition_one_at_a_time_and_partitions_side_by_side() -> None:
    cluster, bench = make_cluster(3, 3), Bench()
    async with consuming(cluster) as consumer, running(consumer, bench):
        await until(lambda: len(bench.waiting) == 2)
        assert sorted(bench.waiting) == [b"000000", b"000003"]
        bench.finish(3)
        await until(lambda: b"000004" in bench.waiting)
        bench.finish(4)
        await until(lambda: b"000005" in bench.waiting)
        assert b"000000" in bench.waiting


async def test_by_key_one_at_a_time_across_partitions() -> None:
    cluster, bench = make_cluster(4, 4), Bench()
    async with (
        consuming(cluster) as consumer,
        running(consumer, bench, order="key", key=lambda record: int(record.value) % 2),
    ):
        for n in range(4):
            await until(lambda: len(bench.waiting) == 2)
            assert sorted(int(value) % 2 for value in bench.waiting) == [0, 1]
            for value in list(bench.waiting):
                bench.waiting[value].set()
            await finished(bench, 2 * n + 2)


async def test_order_by_key_without_keys_says_what_it_needs() -> None:
    async with consuming(make_cluster(3)) as consumer:
        with pytest.raises(Unsupported, match="key=lambda record"):
            await consumer.each(Bench(), order="key")


@pytest.mark.parametrize("options", [{"parallel": 0}, {"retries": -1}, {"order": "random"}, {"dead_letter": ""}])
async def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    async with consuming(make_cluster(1)) as consumer:
        with pytest.raises(ConfigError):
            await consumer.each(Bench(), **options)


async def test_a_slow_partition_does_not_hold_back_the_others_nor_grow_without_bound() -> None:
    cluster = make_cluster(5000, 500)
    bench = Bench()

    async def handle(record: Record) -> None:
        if record.partition == tp(0):
            await bench(record)
        else:
            bench.done.append(payload(record.value))

    async with consuming(cluster) as consumer, running(consumer, handle, parallel=5):
        await finished(bench, 500)
        assert consumer._progress[tp(0)].in_hand <= 30
        for n in range(40):
            await begun(bench, n + 1)
            bench.finish(n)


async def test_what_waits_is_bounded_in_bytes() -> None:
    cluster = MemoryCluster(topics={"t": 8})
    for number in range(8):
        cluster.append("t", [b"x" * 1000] * 50, partition=number)
    gate = anyio.Event()

    async def handle(record: Record) -> None:
        await gate.wait()

    async with consuming(cluster, read_ahead_bytes=100_000) as consumer, running(consumer, handle, parallel=20):

        def in_hand() -> int:
            return sum(progress.in_hand for progress in consumer._progress.values())

        await until(lambda: in_hand() >= 100)
        await anyio.wait_all_tasks_blocked()
        assert in_hand() <= 100 + 40 + 8
        gate.set()
        await until(lambda: all(progress.position == 50 for progress in consumer._progress.values()))


# ---- handlers that fail -------------------------------------------------------------------------------------


async def test_a_failing_handler_is_tried_again() -> None:
    cluster, attempts = make_cluster(1), []

    async def handle(record: Record) -> None:
        attempts.append(record.value)
        if len(attempts) < 3:
            raise ValueError("not yet")

    async with consuming(cluster) as consumer, running(consumer, handle, retries=2, backoff=AT_ONCE):
        await until(lambda: consumer._progress[tp()].position == 1)
    assert len(attempts) == 3


async def test_a_handler_that_fails_for_good_ends_each_with_its_error_and_commits_what_came_before() -> None:
    cluster, seen = make_cluster(5), []

    async def handle(record: Record) -> None:
        if record.value == b"000003":
            raise ValueError("mine")
        seen.append(record.value)

    async with consuming(cluster) as consumer:
        with pytest.raises(ValueError, match="mine"):
            await consumer.each(handle, retries=1, backoff=AT_ONCE)
    assert seen == numbered(3)
    assert cluster.committed("g") == {tp(): 3}


async def test_what_cannot_be_handled_goes_to_the_dead_letters() -> None:
    cluster = make_cluster(5)
    cluster.create_topic("t.dlq")

    async def handle(record: Record) -> None:
        if int(payload(record.value)) % 2:
            raise ValueError("mine")

    async with consuming(cluster) as consumer, running(consumer, handle, dead_letter="t.dlq"):
        await until(lambda: consumer._progress[tp()].position == 5)
    assert [stored.value for stored in cluster.records("t.dlq")] == [b"000001", b"000003"]


async def test_a_dead_letter_keeps_everything_and_says_where_it_comes_from_and_why() -> None:
    cluster = MemoryCluster(topics={"t": 1, "t.dlq": 1})
    async with cluster.connect() as k, k.producer() as out:
        await out.send("t", b"v", key=b"k", headers=[("trace", b"7")], timestamp=1_700_000_000_000)

    async def handle(record: Record) -> None:
        raise ValueError("mine")

    async with consuming(cluster) as consumer, running(consumer, handle, dead_letter="t.dlq"):
        await until(lambda: consumer._progress[tp()].position == 1)
    async with cluster.connect() as k, k.reader("t.dlq", until=LATEST) as reader:
        (stored,) = [record async for record in reader]
    assert (stored.value, stored.key, stored.timestamp) == (b"v", b"k", 1_700_000_000_000)
    assert dict(stored.headers) == {
        "trace": b"7",
        "odradek.topic": b"t",
        "odradek.partition": b"0",
        "odradek.position": b"0",
        "odradek.error_type": b"ValueError",
        "odradek.error": b"mine",
        "odradek.attempts": b"1",
    }


@pytest.mark.parametrize(("has_timestamps", "sent"), [(True, ((), 5)), (False, ((), None))])
async def test_a_dead_letter_goes_without_what_its_cluster_cannot_store(has_timestamps: bool, sent: object) -> None:
    class OldProducer:
        """A producer of a cluster of 0.10, or older."""

        def __init__(self) -> None:
            self.sent: list[object] = []

        async def send(self, topic: str, value: bytes, *, key: bytes, headers: Any = (), timestamp: Any = None) -> None:
            if headers:
                raise Unsupported("a header", "Kafka 0.11")
            if timestamp is not None and not has_timestamps:
                raise Unsupported("a timestamp", "Kafka 0.10")
            self.sent.append((headers, timestamp))

    producer = OldProducer()
    record = Record(b"v", b"k", (("h", b"1"),), 5, None, Position(3), Position(4), 0, tp())
    await send_dead_letter(producer, "t.dlq", FailedRecord(record, ValueError("\ud800" * 5000), 1))
    assert producer.sent == [sent]


async def test_a_dead_letter_that_cannot_be_sent_is_not_lost() -> None:
    cluster = make_cluster(5)
    cluster.create_topic("t.dlq")
    cluster.fail("produce", BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"))

    async def handle(record: Record) -> None:
        raise ValueError("mine")

    async with consuming(cluster) as consumer:
        with pytest.raises(Rejected, match="TOPIC_AUTHORIZATION_FAILED") as raised:
            await consumer.each(handle, dead_letter="t.dlq")
    assert f"sending {tp()}@0 to t.dlq, because of ValueError: mine" in raised.value.__notes__
    assert cluster.committed("g") == {tp(): 0}


@pytest.mark.parametrize("ends_by", ["a scope", "a task", "an error"])
async def test_a_dead_letter_that_is_cancelled_is_no_error(anyio_backend_name: str, ends_by: str) -> None:
    cluster = make_cluster(2)
    cluster.create_topic("t.dlq")
    cluster.hold("produce")
    ended: list[BaseException] = []

    async def handle(record: Record) -> None:
        if record.position == 1:
            await cluster.wait_for_held("produce")
        raise ValueError("mine") if record.position == 0 else KeyboardInterrupt

    async with cluster.connect() as k:
        producer = partial(k.producer, exit_within=0.01)
        options: dict[str, Any] = {"group": "g", "start": EARLIEST, "dead_letter_producer": producer}
        async with k.consumer("t", **options) as consumer:

            async def work() -> None:
                with scope:
                    try:
                        await consumer.each(handle, dead_letter="t.dlq", order="none", parallel=2)
                    except BaseException as error:
                        ended.append(error)
                        if ends_by != "an error":
                            raise

            if ends_by != "an error":
                cluster.truncate_log(tp(), 1)
            scope = anyio.CancelScope()
            if ends_by == "a task" and anyio_backend_name == "asyncio":  # those of trio are cancelled by scopes
                task = asyncio.create_task(work())
                await cluster.wait_for_held("produce")
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled()
            else:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(work)
                    await cluster.wait_for_held("produce")
                    if ends_by != "an error":
                        scope.cancel()
    expected = KeyboardInterrupt if ends_by == "an error" else anyio.get_cancelled_exc_class()
    assert [type(error) for error in ended] == [expected]
    assert cluster.committed("g") == {tp(): 0}


# ---- rebalances ---------------------------------------------------------------------------------------------


async def test_a_revoke_lets_running_handlers_finish_and_drops_the_rest() -> None:
    cluster, bench = make_cluster(10), Bench()
    async with consuming(cluster) as consumer, running(consumer, bench):
        await until(lambda: b"000000" in bench.waiting)
        cluster.revoke("g", tp())
        await until(lambda: revoking(consumer))
        assert cluster.members("g")[consumer.consumer_id] == {tp()}, "not released yet"
        bench.finish(0)
        await until(lambda: not cluster.members("g")[consumer.consumer_id])
        assert cluster.committed("g") == {tp(): 1} and bench.begun == [b"000000"]
        cluster.restore("g")
        await until(lambda: b"000001" in bench.waiting)


async def test_a_revoke_cancels_handlers_that_take_too_long(caplog: pytest.LogCaptureFixture) -> None:
    cluster, bench = make_cluster(10), Bench()
    async with consuming(cluster, revoke_within=0.05) as consumer, running(consumer, bench):
        await until(lambda: b"000000" in bench.waiting)
        cluster.revoke("g", tp())
        await until(lambda: not cluster.members("g")[consumer.consumer_id])
        assert bench.waiting == {} and bench.done == []
        cluster.restore("g")
        await until(lambda: b"000000" in bench.waiting)
    assert "cancelled because its partition is revoked: handler " in caplog.text
    assert cluster.committed("g") == {tp(): 0}


async def test_an_expired_session_cancels_handlers_at_once() -> None:
    cluster, bench = make_cluster(10), Bench()
    async with consuming(cluster) as consumer, running(consumer, bench):
        await until(lambda: b"000000" in bench.waiting)
        cluster.hold("join")
        cluster.expire("g")
        await until(lambda: not bench.waiting)
        assert bench.done == [] and consumer.assignment == {}
        cluster.release("join")


async def test_pain_a_slow_handler_is_named_before_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "odradek.each")
    cluster, bench = make_cluster(1), Bench()
    async with consuming(cluster, revoke_within=0.04) as consumer, running(consumer, bench.__call__):
        await until(lambda: "slow: handler Bench.__call__ has been running for" in caplog.text)
        await anyio.sleep(0.05)
    assert caplog.text.count("slow: ") == 1


async def test_the_death_of_the_consumer_ends_each() -> None:
    async with consuming(make_cluster(0)) as consumer:
        failure = RuntimeError("out of order")
        consumer._fetcher.fail(failure)
        with pytest.raises(RuntimeError, match="out of order"):
            await consumer.each(Bench())


async def test_cancelling_each_commits_only_what_was_finished() -> None:
    cluster, seen, scope = make_cluster(100), list[TopicPartition](), anyio.CancelScope()

    async def handle(record: Record) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(record.partition)
        if len(seen) == 7:
            scope.cancel()

    async with consuming(cluster) as consumer:
        with scope:
            await consumer.each(handle)
    assert 7 <= len(seen) < 100
    assert cluster.committed("g") == {tp(): len(seen)}


# ---- what each leaves behind --------------------------------------------------------------------------------


async def handled_by_a_second_each(consumer: Consumer, count: int) -> list[bytes | None]:
    again: list[bytes | None] = []

    async def handle(record: Record) -> None:
        again.append(record.value)

    async with running(consumer, handle):
        await until(lambda: len(again) >= count)
    return again


async def test_after_a_failed_handler_a_second_each_continues_exactly_there() -> None:
    cluster, seen = make_cluster(1000), list[bytes | None]()

    async def handle(record: Record) -> None:
        if record.value == b"000005":
            raise ValueError("once")
        seen.append(record.value)

    async with consuming(cluster) as consumer:
        with pytest.raises(ValueError, match="once"):
            await consumer.each(handle, parallel=10)
        assert seen == numbered(5)
        assert await handled_by_a_second_each(consumer, 995) == numbered(995, 5)
    assert cluster.committed("g") == {tp(): 1000}


async def test_after_a_timeout_around_each_batches_continue_exactly_there() -> None:
    cluster, seen, scope = make_cluster(1000), list[bytes | None](), anyio.CancelScope()

    async def handle(record: Record) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(record.value)
        if len(seen) == 7:
            scope.cancel()

    async with consuming(cluster) as consumer:
        with scope:
            await consumer.each(handle, parallel=10)
        done = len(seen)
        got: list[bytes | None] = []
        async for batch in consumer.batches():
            got += batch.values
            batch.done()
            if len(got) == 1000 - done:
                break
    assert seen + got == numbered(1000)
    assert cluster.committed("g") == {tp(): 1000}


async def test_without_order_everything_from_the_first_unfinished_record_comes_again() -> None:
    cluster, bench = make_cluster(6), Bench()
    async with consuming(cluster) as consumer:
        async with running(consumer, bench, order="none", parallel=4):
            await begun(bench, 4)
            bench.finish(0)
            bench.finish(2)
            await finished(bench, 2)
        assert await handled_by_a_second_each(consumer, 5) == numbered(5, 1)
    assert cluster.committed("g") == {tp(): 6}


async def test_a_key_function_that_raises_loses_nothing() -> None:
    cluster = make_cluster(10)

    def key(record: Record) -> int:
        raise ValueError("no key")

    async with consuming(cluster) as consumer:
        with pytest.raises(ValueError, match="no key"):
            await consumer.each(Bench(), order="key", key=key)
        assert await handled_by_a_second_each(consumer, 10) == numbered(10)


async def test_a_pause_by_the_user_survives_the_end_of_each() -> None:
    cluster, bench = make_cluster(10), Bench()
    async with consuming(cluster) as consumer:
        async with running(consumer, bench):
            await begun(bench, 1)
            consumer.pause()
        with anyio.move_on_after(0.02) as paused:
            await anext(consumer)
        assert paused.cancelled_caught
        consumer.resume()
        assert (await anext(consumer)).value == b"000000"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_handler_that_awaits_something_cancelled_elsewhere_fails(anyio_backend: str) -> None:
    cluster, seen = make_cluster(10), list[bytes | None]()

    async def handle(record: Record) -> None:
        if record.value == b"000005":
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        seen.append(record.value)

    async with consuming(cluster) as consumer:
        with pytest.raises(OdradekError, match="it awaited something that was cancelled elsewhere"):
            await consumer.each(handle, retries=1, backoff=AT_ONCE)
    assert seen == numbered(5)
    assert cluster.committed("g") == {tp(): 5}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_native_cancellation_of_each_cancels_it(anyio_backend: str) -> None:
    cluster, bench = make_cluster(10), Bench()
    async with consuming(cluster) as consumer:
        task = asyncio.ensure_future(consumer.each(bench))
        await begun(bench, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert bench.waiting == {}
        assert await handled_by_a_second_each(consumer, 10) == numbered(10)


@pytest.mark.parametrize("order", ["none", "key"])
async def test_memory_behind_a_handler_that_hangs_is_bounded(order: Any) -> None:
    cluster, seen = make_cluster(5_000), list[bytes | None]()
    gate, all_others = anyio.Event(), anyio.Event()

    async def handle(record: Record) -> None:
        if record.value == b"000000":
            await gate.wait()
        seen.append(record.value)
        if len(seen) == 4_999:
            all_others.set()

    async with consuming(cluster) as consumer, running(consumer, handle, order=order, key=lambda record: record.value):
        await all_others.wait()
        await anyio.wait_all_tasks_blocked()
        progress = consumer._progress[tp()]
        spans, span = 0, progress._first
        while span is not None:
            spans, span = spans + 1, span._next
        assert progress.outstanding == 5_000 and spans == 2
        assert len(consumer._owned.pools[0]._queues._queues) == 1
        gate.set()
        await until(lambda: progress.position == 5_000)
