"""Transactions of an in-memory cluster: what is visible when, positions, fencing, time-outs, faults, cancellation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

import odradek as od
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.errors import (
    BrokerError,
    Closed,
    CommitOutcomeUnknown,
    ConfigError,
    ConnectionLost,
    DeadlineError,
    Fenced,
    GroupError,
    NotWritten,
    OdradekError,
    Rejected,
    TransactionAborted,
    UsageError,
)
from odradek.testing import MemoryCluster
from odradek.types import EARLIEST, LATEST, AtTime, Position, TopicPartition

pytestmark = pytest.mark.anyio

IN, OUT = TopicPartition("in", 0), TopicPartition("out", 0)
LOST = ConnectionLost("memory-1:9092", "reset", True)
QUICK = Tuning(backoff=Backoff(first_s=0.0001, max_s=0.001), fetch_idle=0.001)


def make_cluster(records: int = 0) -> MemoryCluster:
    cluster = MemoryCluster(topics={"in": 1, "out": 1})
    cluster.append("in", [b"%d" % n for n in range(records)])
    return cluster


@asynccontextmanager
async def producing(cluster: MemoryCluster, name: str = "x", **options: Any) -> AsyncIterator[od.Producer]:
    async with cluster.connect(tuning=QUICK) as k, k.producer(transactional_id=name, **options) as out:
        yield out


async def read(cluster: MemoryCluster, isolation: Any = "read_committed") -> list[bytes | None]:
    async with cluster.connect() as k, k.reader("out", until=LATEST, isolation=isolation) as reader:
        return [record.value async for record in reader]


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(30):
        while not condition():
            await checkpoint()


async def abort(out: od.Producer, *values: bytes) -> None:
    with pytest.raises(KeyError):
        async with out.transaction():
            await out.send_many("out", values)
            raise KeyError


async def commit(out: od.Producer, *values: bytes) -> None:
    async with out.transaction():
        await out.send_many("out", values)


# ---- what is visible ------------------------------------------------------------------------------------------


async def test_records_are_visible_after_the_commit_and_never_after_an_abort() -> None:
    cluster = make_cluster()
    async with producing(cluster) as out:
        async with out.transaction() as tx:
            await out.send("out", b"1")
            assert await read(cluster) == [] and await read(cluster, "read_uncommitted") == [b"1"]
        assert tx.outcome == "committed" and await read(cluster) == [b"1"]
        await abort(out, b"2")
        await commit(out, b"3")
    assert await read(cluster) == [b"1", b"3"]
    assert await read(cluster, "read_uncommitted") == [b"1", b"2", b"3"]
    assert [stored.value for stored in cluster.records("out", read_committed=True)] == [b"1", b"3"]
    assert [stored.offset for stored in cluster.records("out")] == [0, 2, 4], "a marker takes an offset"


async def test_a_put_during_the_commit_is_refused_though_a_batch_is_open_and_the_next_transaction_takes_it() -> None:
    cluster, errors = make_cluster(), []
    cluster.hold("produce")
    tuning = Tuning(backoff=QUICK.backoff, in_flight=1)
    async with (
        cluster.connect(tuning=tuning) as k,
        k.producer(transactional_id="x", tuning=tuning) as out,
        anyio.create_task_group() as tasks,
    ):

        async def put_late() -> None:
            await wait_all_tasks_blocked()
            try:
                await out.put("out", b"late")
            except UsageError as error:
                errors.append(str(error))
            cluster.release("produce")

        async with out.transaction():
            for value in (b"in flight", b"open", b"joins"):
                await out.put("out", value)
                await wait_all_tasks_blocked()
            tasks.start_soon(put_late)
        async with out.transaction():
            await out.put("out", b"late")
            await out.put("out", b"later")
    assert len(errors) == 1 and "the transaction is ending" in errors[0]
    assert await read(cluster) == [b"in flight", b"open", b"joins", b"late", b"later"]


async def test_tables_and_batches_have_what_is_committed_and_positions_skip_markers() -> None:
    cluster = make_cluster()
    async with producing(cluster) as out:
        await commit(out, b"1", b"2")
        await abort(out, b"3", b"4")
        await commit(out, b"5")
    options: dict[str, Any] = {"isolation": "read_committed"}
    async with cluster.connect() as k:
        async with k.reader("out", until=LATEST, **options) as reader:
            tables = [table async for table in reader.arrow(max_wait=0.01)]
            assert reader.positions() == {OUT: 8}
        async with k.consumer("out", group="g", start=EARLIEST, **options) as consumer:
            values: list[bytes | None] = []
            async for batch in consumer.batches():
                values += batch.values
                batch.done()
                if b"5" in batch.values:
                    break
    assert [value for table in tables for value in table["value"].to_pylist()] == [b"1", b"2", b"5"] == values
    assert cluster.committed("g") == {OUT: 8}, "the position after the last marker, as with Kafka's own consumers"


@pytest.mark.parametrize("mode", ["records", "batches", "each", "transactions"])
async def test_a_group_that_has_done_everything_has_no_lag(mode: str) -> None:
    cluster = make_cluster()
    async with producing(cluster) as out:
        await commit(out, b"1", b"2")
        await abort(out, b"3", b"4")
    values: list[bytes | None] = []

    async def handle(record: od.Record) -> None:
        values.append(record.value)

    async def consume() -> None:
        if mode == "each":
            await consumer.each(handle)
        elif mode == "records":
            async for record in consumer:
                values.append(record.value)
        async for batch in consumer.batches(max_records=1):
            values.extend(batch.values)
            if mode == "batches":
                batch.done()
                continue
            async with out.transaction() as tx:
                tx.done(batch)

    async with (
        producing(cluster, "of the consumer") as out,
        cluster.connect(tuning=QUICK) as k,
        k.consumer("out", group="g", start=EARLIEST, isolation="read_committed", commit_every=0.01) as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(consume)
        await until(lambda: cluster.committed("g") == {OUT: 6})
        assert (await k.admin.lag("g"))[OUT].lag == 0
        tasks.cancel_scope.cancel()
    assert values == [b"1", b"2"]


async def test_an_end_that_comes_after_the_last_commit_is_passed_over_by_the_next() -> None:
    cluster = make_cluster()
    cluster.append("out", [b"1"])
    options: dict[str, Any] = {"start": EARLIEST, "isolation": "read_committed", "commit_every": None}
    async with (
        producing(cluster) as out,
        cluster.connect(tuning=QUICK) as k,
        k.consumer("out", group="g", **options) as consumer,
    ):
        first = await anext(consumer.batches())
        await abort(out, b"2")
        await until(lambda: consumer.positions() == {OUT: 3})
        assert await consumer.commit() == {OUT: 0}, "the batch is not done"
        first.done()
        assert await consumer.commit() == {OUT: 3}
        await abort(out, b"3")
        await until(lambda: consumer.positions() == {OUT: 5})
        assert await consumer.commit() == {OUT: 5}


async def test_what_is_left_of_a_batch_is_not_passed_over() -> None:
    cluster = make_cluster()
    async with producing(cluster) as out:
        await commit(out, b"1", b"2", b"3")
    async with cluster.connect() as k:
        async with k.consumer("out", group="g", start=EARLIEST, commit_every=None) as consumer:
            await anext(consumer)
            await anext(consumer)
            await until(lambda: consumer._fetcher.cursors[OUT].nothing_before == 4)
            assert await consumer.commit() == {OUT: 1}
            consumer.pause()
            assert await consumer.commit() == {}
        assert cluster.committed("g") == {OUT: 2}, "the block has ended in order"
        async with k.consumer("out", group="g", commit_every=None) as consumer:
            assert (await anext(consumer)).value == b"3"
        assert cluster.committed("g") == {OUT: 4}


async def test_a_reader_waits_for_an_open_transaction_and_not_for_later_ones() -> None:
    cluster = make_cluster()
    async with producing(cluster, "x") as first, producing(cluster, "y") as second, cluster.connect() as k:
        async with first.transaction(), k.reader("out", isolation="read_committed") as reader:
            await first.send("out", b"open")
            await commit(second, b"committed")
            assert await read(cluster) == []
            assert await read(cluster, "read_uncommitted") == [b"open", b"committed"]
            ends = await k.admin.list_offsets({OUT: LATEST}, read_committed=True)
            assert ends.check()[OUT].position == 0
            await until(lambda: reader.watermarks().get(OUT) is not None)
            assert reader.watermarks()[OUT].last_stable_offset == 0
        assert await read(cluster) == [b"open", b"committed"]


async def test_a_waiting_reader_gets_a_transaction_when_it_is_committed() -> None:
    cluster, got = make_cluster(), list[bytes | None]()
    async with producing(cluster) as out, cluster.connect() as k, anyio.create_task_group() as tasks:

        async def follow() -> None:
            async with k.reader("out", isolation="read_committed") as reader:
                async for record in reader:
                    got.append(record.value)

        tasks.start_soon(follow)
        await commit(out, b"1", b"2")
        await until(lambda: got == [b"1", b"2"])
        tasks.cancel_scope.cancel()


async def test_share_groups_deliver_around_markers() -> None:
    cluster = make_cluster()
    cluster.start_share_group("g", EARLIEST)
    async with producing(cluster) as out:
        await commit(out, b"1")
        await commit(out, b"2")
        async with cluster.connect() as k, k.share_consumer("out", group="g") as workers:
            values: list[bytes | None] = []
            async for record in workers:
                values.append(record.value)
                if len(values) == 2:
                    break
    assert values == [b"1", b"2"]


@asynccontextmanager
async def one_open(cluster: MemoryCluster) -> AsyncIterator[od.Producer]:
    """A producer, while the transaction of another one is open: its record is at 2, after the first two offsets."""
    async with producing(cluster, "x") as first, producing(cluster, "y") as second:
        await commit(second, b"before")
        transaction = await first.transaction().__aenter__()
        await first.send("out", b"open")
        yield second
        with suppress(KeyError):
            await transaction.__aexit__(KeyError, KeyError(), None)


async def test_a_transaction_stays_open_when_retention_has_deleted_its_records() -> None:
    cluster = make_cluster()
    async with one_open(cluster) as second:
        cluster.delete_records(OUT, 3)
        async with cluster.connect() as k:
            assert await k.positions("out", EARLIEST) == {OUT: 3} == await k.positions("out", LATEST)
        await commit(second, b"after")
        assert await read(cluster) == []
    assert await read(cluster) == [b"after"]


async def test_a_transaction_whose_records_a_log_has_lost_holds_no_reader_back() -> None:
    cluster = make_cluster()
    async with one_open(cluster) as second:
        cluster.truncate_log(OUT, 2)
        await commit(second, b"after")
        assert await read(cluster) == [b"before", b"after"]


async def test_a_topic_that_is_made_again_has_no_open_transaction() -> None:
    cluster = make_cluster()
    async with one_open(cluster) as second:
        cluster.recreate_topic("out")
        await commit(second, b"after")
        assert await read(cluster) == [b"after"]


# ---- fencing and time-outs ------------------------------------------------------------------------------------


async def test_a_second_producer_ends_what_the_first_left_open_and_fences_it() -> None:
    cluster = make_cluster()
    with pytest.raises(Fenced):
        async with producing(cluster) as first:
            with pytest.raises(Fenced):
                async with first.transaction() as lost:
                    await first.send("out", b"1")
                    async with producing(cluster) as second:
                        assert await read(cluster) == []
                        await commit(second, b"2")
            assert lost.outcome == "aborted"
            with pytest.raises(Fenced):
                await first.transaction().__aenter__()
    assert await read(cluster) == [b"2"]


async def test_a_fenced_producer_cannot_write() -> None:
    cluster = make_cluster()
    with pytest.raises(Fenced):
        async with producing(cluster) as first, first.transaction(), producing(cluster):
            with pytest.raises(Fenced):
                await first.send("out", b"1")
    assert cluster.records("out") == []


async def test_a_transaction_timeout_that_brokers_refuse_is_refused() -> None:
    cluster = make_cluster()
    async with producing(cluster, transaction_timeout=900.0):
        pass
    with pytest.raises(BrokerError, match="INVALID_TRANSACTION_TIMEOUT"):
        async with producing(cluster, transaction_timeout=900.1):
            raise AssertionError("entered")


@pytest.mark.parametrize("way", ["commit", "abort", "send"])
async def test_a_transaction_that_is_open_for_too_long_is_aborted(way: str) -> None:
    """With the same errors as a broker of 4.3.1 (`io/kafka/test_transactions_live.py`)."""
    cluster = make_cluster()
    cluster.clock.hold(1000.0)
    error = {"commit": BrokerError, "abort": KeyError, "send": Fenced}[way]
    with suppress(Fenced, BrokerError):
        async with producing(cluster, transaction_timeout=5.0) as out:
            with pytest.raises(error):
                async with out.transaction() as tx:
                    await out.send("out", b"late")
                    cluster.clock.advance(4.9)
                    assert (await described(cluster, "x"))[0] == "Ongoing"
                    cluster.clock.advance(0.1)
                    assert await described(cluster, "x") == ("CompleteAbort", 1, None, ())
                    if way == "send":
                        await out.send("out", b"later")
                    if way == "abort":
                        raise KeyError
            assert tx.outcome == "aborted"
            if way == "abort":
                await commit(out, b"next")
            else:
                with pytest.raises((Fenced, Closed)):
                    await out.transaction().__aenter__()
    assert await read(cluster) == ([b"next"] if way == "abort" else [])


async def described(cluster: MemoryCluster, name: str) -> tuple[object, ...]:
    async with cluster.connect() as k:
        known = (await k.admin.describe_transactions(name)).check()[name]
    return known.state, known.producer_epoch, known.started, known.partitions


async def test_a_running_clock_ends_a_transaction_that_a_reader_waits_for() -> None:
    cluster = make_cluster()
    with suppress(OdradekError):
        async with producing(cluster, transaction_timeout=0.01) as out, out.transaction():
            await out.send("out", b"late")
            with anyio.fail_after(30):
                while (await described(cluster, "x"))[0] == "Ongoing":
                    await checkpoint()
    assert await read(cluster) == []


# ---- positions ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def moving(
    cluster: MemoryCluster, **options: Any
) -> AsyncIterator[tuple[od.Producer, AsyncIterator[od.GroupBatch]]]:
    """A producer, and batches of two records of a consumer."""
    async with (
        producing(cluster, **options) as out,
        cluster.connect(tuning=QUICK) as k,
        k.consumer("in", group="g", start=EARLIEST, commit_every=0.001) as consumer,
    ):
        yield out, consumer.batches(max_records=2)


async def move(out: od.Producer, batch: od.GroupBatch) -> None:
    async with out.transaction() as tx:
        await out.send_many("out", [record.value or b"" for record in batch])
        tx.done(batch)


async def test_positions_are_stored_with_the_transaction_or_not_at_all() -> None:
    cluster = make_cluster(4)
    async with moving(cluster) as (out, batches):
        batch = await anext(batches)
        with pytest.raises(KeyError):
            async with out.transaction() as tx:
                tx.done(batch)
                raise KeyError
        assert cluster.committed("g").get(IN, 0) == 0
        async with out.transaction() as tx:
            tx.done(batch)
            assert cluster.committed("g").get(IN, 0) == 0
        assert cluster.committed("g") == {IN: 2}
        await move(out, await anext(batches))
    assert cluster.committed("g") == {IN: 4}
    assert [list(request.partitions.items()) for request in cluster.requests("add_positions")] == [[(IN, 2)], [(IN, 4)]]


async def test_a_member_that_lost_its_partitions_aborts() -> None:
    cluster = make_cluster(4)
    async with moving(cluster) as (out, batches):
        batch = await anext(batches)
        cluster.expire("g")
        with pytest.raises(TransactionAborted, match="another member") as caught:
            await move(out, batch)
        assert isinstance(caught.value.__cause__, GroupError)
        await move(out, await anext(batches))
    assert await read(cluster) == [b"0", b"1"] and cluster.committed("g") == {IN: 2}


async def test_a_member_that_loses_its_partitions_meanwhile_is_fenced_by_the_group() -> None:
    cluster = make_cluster(4)
    cluster.hold("add_positions")
    async with moving(cluster) as (out, batches), anyio.create_task_group() as tasks:
        batch, errors = await anext(batches), list[OdradekError]()

        async def fail() -> None:
            try:
                await move(out, batch)
            except OdradekError as error:
                errors.append(error)

        tasks.start_soon(fail)
        await cluster.wait_for_held("add_positions")
        cluster.expire("g")
        cluster.release("add_positions")
        await until(lambda: errors)
        assert isinstance(errors[0], TransactionAborted) and isinstance(errors[0].__cause__, BrokerError)
        assert errors[0].__cause__.name in ("UNKNOWN_MEMBER_ID", "STALE_MEMBER_EPOCH")
    assert await read(cluster) == [] and cluster.committed("g").get(IN, 0) == 0


async def test_positions_are_read_when_the_transaction_that_stores_others_has_ended() -> None:
    cluster = make_cluster(4)
    cluster.hold("commit_transaction")
    async with moving(cluster) as (out, batches), anyio.create_task_group() as tasks:
        tasks.start_soon(move, out, await anext(batches))
        await cluster.wait_for_held("commit_transaction")
        async with cluster.connect(tuning=Tuning(request_timeout=0.01)) as k:
            with pytest.raises(DeadlineError, match="a transaction is open"):
                await k.driver.offsets("g").fetch([IN])
        cluster.expire("g")
        await until(lambda: len(cluster.requests("committed")) == 2)
        cluster.release("commit_transaction")
        assert (await anext(batches)).values == [b"2", b"3"], "the member has joined again and continues behind it"
    assert await read(cluster) == [b"0", b"1"]


async def test_a_transaction_with_positions_of_a_topic_that_was_deleted_aborts() -> None:
    """As with brokers; it was committed."""
    cluster = make_cluster(2)
    async with (
        producing(cluster) as out,
        cluster.connect(tuning=QUICK) as k,
        k.consumer("in", group="g", start=EARLIEST, revoke_within=60.0, commit_every=3600.0) as consumer,
    ):
        batch = await anext(consumer.batches())
        with pytest.raises(TransactionAborted, match="in/0: UNKNOWN_TOPIC_OR_PARTITION"):
            async with out.transaction() as tx:
                await out.send("out", b"1")
                tx.done(batch)
                cluster.delete_topic("in")
        assert await read(cluster) == [] and cluster.committed("g") == {}
        await commit(out, b"2")
    assert await read(cluster) == [b"2"]


async def test_of_several_positions_those_of_a_topic_that_was_deleted_are_not_committed() -> None:
    """As by brokers; they were stored."""
    cluster, other = make_cluster(2), TopicPartition("other", 0)
    cluster.create_topic("other", 1)
    cluster.append("other", [b"1"])
    consumed: Any = {"group": "g", "start": EARLIEST, "revoke_within": 60.0, "commit_every": 3600.0}

    def error() -> Any:
        return pytest.raises(BrokerError, match="positions not stored: in/0: UNKNOWN_TOPIC_OR_PARTITION")

    async with cluster.connect(tuning=QUICK) as k:
        with error():  # of the commit when it leaves, too
            async with k.consumer(["in", "other"], **consumed) as consumer:
                batches = consumer.batches()
                for _ in range(2):
                    await anext(batches)
                cluster.delete_topic("in")
                with error():
                    await consumer.commit({IN: Position(2), other: Position(1)})
                assert cluster.committed("g") == {other: 1}
        with error():
            await k.driver.offsets("g").commit({IN: Position(2), other: Position(0)})
    assert cluster.committed("g") == {other: 0}


async def test_of_two_positions_the_one_counts_that_was_sent_last() -> None:
    cluster = make_cluster(4)
    cluster.hold("commit_transaction")
    async with moving(cluster) as (out, batches), anyio.create_task_group() as tasks:
        tasks.start_soon(move, out, await anext(batches))
        await cluster.wait_for_held("commit_transaction")
        cluster.set_committed("g", {IN: 1})
        cluster.release("commit_transaction")
    assert await read(cluster) == [b"0", b"1"] and cluster.committed("g") == {IN: 1}


async def test_positions_of_another_cluster_are_refused() -> None:
    async with moving(make_cluster(2)) as (_, batches), producing(make_cluster()) as out:
        with pytest.raises(TransactionAborted, match="its own cluster only"):
            await move(out, await anext(batches))


# ---- faults ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["produce", "init_producer", "add_positions", "commit_transaction"])
@pytest.mark.parametrize("applied", [False, True])
async def test_a_lost_request_or_response_is_repeated_with_one_effect(operation: Any, applied: bool) -> None:
    cluster = make_cluster(4)
    cluster.fail(operation, LOST, times=2, applied=applied)
    async with moving(cluster) as (out, batches):
        await move(out, await anext(batches))
        await move(out, await anext(batches))
    assert len(cluster.requests(operation)) >= 3
    assert await read(cluster) == [b"0", b"1", b"2", b"3"] == await read(cluster, "read_uncommitted")
    assert cluster.committed("g") == {IN: 4}


@pytest.mark.parametrize("applied", [False, True])
async def test_an_abort_is_repeated(applied: bool) -> None:
    cluster = make_cluster()
    cluster.fail("abort_transaction", LOST, applied=applied)
    async with producing(cluster) as out:
        await abort(out, b"1")
        await commit(out, b"2")
    assert await read(cluster) == [b"2"]


async def test_a_commit_whose_response_is_lost_and_whose_producer_is_fenced_is_unknown() -> None:
    cluster = make_cluster()
    cluster.fail("commit_transaction", LOST, applied=True)
    with pytest.raises(Fenced):
        async with producing(cluster) as out:
            transaction = out.transaction()
            async with anyio.create_task_group() as tasks:
                await transaction.__aenter__()
                await out.send("out", b"1")
                cluster.hold("commit_transaction")

                async def end() -> None:
                    with pytest.raises(CommitOutcomeUnknown):
                        await transaction.__aexit__(None, None, None)

                tasks.start_soon(end)
                await cluster.wait_for_held("commit_transaction")
                cluster.release("commit_transaction", count=1)
                await cluster.wait_for_requests("commit_transaction", 2)
                async with producing(cluster):
                    cluster.release("commit_transaction")
    assert await read(cluster) == [b"1"] and transaction.outcome == "unknown"


async def test_a_commit_that_is_not_answered_in_time_is_unknown() -> None:
    cluster = make_cluster()
    cluster.hold("commit_transaction")
    with pytest.raises(CommitOutcomeUnknown):
        async with producing(cluster, deliver_within=1.0) as out, out.transaction() as transaction:
            out.try_put("out", b"1")
    assert transaction.outcome == "unknown"
    cluster.release("commit_transaction")
    async with producing(cluster):
        assert await read(cluster) == []


@pytest.mark.parametrize(
    ("operation", "code", "error", "ends"),
    [
        ("produce", 29, TransactionAborted, False),
        ("produce", 47, Fenced, True),
        ("add_positions", 30, TransactionAborted, False),
        ("add_positions", 90, Fenced, True),
        ("commit_transaction", 51, None, False),
        ("commit_transaction", 48, BrokerError, True),
        ("commit_transaction", 90, Fenced, True),
    ],
)
async def test_an_error_of_a_step_is_that_of_a_real_broker(operation: Any, code: int, error: Any, ends: bool) -> None:
    cluster = make_cluster(2)
    cluster.fail(operation, BrokerError(code, "NAME", retriable=code == 51))
    raised: list[type] = []
    with suppress(Fenced, BrokerError):
        async with moving(cluster) as (out, batches):
            batch = await anext(batches)
            try:
                await move(out, batch)
            except OdradekError as caught:
                raised.append(type(caught))
            if not ends and error is not None:
                assert await read(cluster) == []
                await move(out, batch)
            elif ends:
                with pytest.raises((Fenced, Closed)):
                    await out.transaction().__aenter__()
    assert raised == ([] if error is None else [error])
    assert await read(cluster) == ([] if ends else [b"0", b"1"])


async def test_a_transactional_id_can_be_refused() -> None:
    cluster = make_cluster()
    cluster.fail("init_producer", BrokerError(53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"))
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        async with producing(cluster):
            pass
    async with producing(cluster) as out:
        await commit(out, b"1")


@pytest.mark.parametrize("way", ["send", "put", "try_put", "send_many"])
async def test_a_record_that_is_refused_before_it_is_sent_aborts_though_the_error_was_caught(way: str) -> None:
    cluster, large = make_cluster(), b"x" * 1_100_000
    async with producing(cluster) as out:
        with pytest.raises(TransactionAborted, match="larger than") as caught:
            async with out.transaction():
                await out.send("out", b"0")
                with suppress(Rejected):
                    if way == "try_put":
                        out.try_put("out", large)
                    else:
                        await getattr(out, way)("out", [large] if way == "send_many" else large)
        assert isinstance(caught.value.__cause__, Rejected)
        async with out.transaction():
            await out.send("out", b"1")
    assert await read(cluster) == [b"1"]


async def test_a_record_that_got_no_space_in_the_buffer_aborts_though_the_error_was_caught() -> None:
    cluster = make_cluster()
    async with producing(cluster, buffer_bytes=1_500_000, deliver_within=0.1) as out:
        cluster.hold("produce")
        with pytest.raises(TransactionAborted, match="no space in the buffer") as caught:
            async with out.transaction():
                await out.put("out", b"x" * 900_000)
                await cluster.wait_for_held("produce")
                with suppress(NotWritten):
                    await out.put("out", b"x" * 900_000)
                cluster.release("produce")
        assert isinstance(caught.value.__cause__, NotWritten)
    assert await read(cluster) == []


async def test_a_batch_that_is_missing_aborts_what_comes_after_it() -> None:
    """The log has lost a batch, so that the next one has not the sequence that its broker expects."""
    cluster = make_cluster()
    async with producing(cluster, latency=0) as out:
        with pytest.raises(TransactionAborted):
            async with out.transaction():
                await out.send("out", b"1")
                cluster.truncate_log(OUT, 0)
                with pytest.raises(Rejected, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
                    await out.send("out", b"2")
        await commit(out, b"3")
    assert await read(cluster) == [b"3"]


@pytest.mark.parametrize(
    ("operation", "error"), [("commit", LOST), ("commit_transaction", BrokerError(48, "INVALID_TXN_STATE"))]
)
def test_what_cannot_be_lost_is_refused(operation: Any, error: OdradekError) -> None:
    with pytest.raises(ConfigError, match=r"only a lost response to .*commit_transaction.* can be"):
        make_cluster().fail(operation, error, applied=True)


# ---- administration -------------------------------------------------------------------------------------------


async def test_transactions_are_listed_described_and_aborted() -> None:
    cluster = make_cluster()
    cluster.clock.hold(1000.0)
    async with producing(cluster, "x") as out, producing(cluster, "y"), cluster.connect() as k:
        with pytest.raises(KeyError):
            async with out.transaction():
                await out.send("out", b"1")
                cluster.clock.advance(5.0)
                listed = await k.admin.list_transactions()
                assert [(each.transactional_id, each.state) for each in listed] == [("x", "Ongoing"), ("y", "Empty")]
                for chosen in ({"longer_than": 4}, {"pattern": "x.*"}, {"states": "Ongoing"}, {"producer_ids": 0}):
                    assert await k.admin.list_transactions(**chosen) == listed[:1]
                assert await k.admin.list_transactions(longer_than=6) == []
                assert await described(cluster, "x") == ("Ongoing", 0, 1000.0, (OUT,))
                (producer,) = (await k.admin.describe_producers(OUT)).check()[OUT]
                assert (producer.producer_id, producer.last_sequence, producer.transaction_start) == (0, 0, Position(0))
                await k.admin.abort_transaction(OUT, producer)
                with pytest.raises(BrokerError, match="INVALID_TXN_STATE"):
                    await k.admin.abort_transaction(OUT, producer)
                assert await k.positions("out", LATEST) == {OUT: 2}
                raise KeyError
        (producer,) = (await k.admin.describe_producers(OUT)).check()[OUT]
        assert producer.transaction_start is None
        for call in (k.admin.describe_transactions("z"), k.admin.describe_producers(TopicPartition("z", 0))):
            with pytest.raises(BrokerError):
                (await call).check()
    assert await read(cluster) == []


async def test_producers_are_described_although_their_records_are_gone() -> None:
    cluster = make_cluster()
    async with producing(cluster, "x") as out, cluster.connect() as k:
        async with out.transaction():
            await out.send("out", b"1", partition=OUT, timestamp=5)
            await out.send("in", b"1", partition=IN, timestamp=5)
        cluster.delete_records(OUT, 2)
        cluster.truncate_log(IN, 0)
        described = (await k.admin.describe_producers([OUT, IN])).check()
        assert [(each.last_sequence, each.last_timestamp) for each in described[OUT]] == [(0, 5)]
        assert described[IN] == []  # as brokers do, which read their producers from the log again


async def test_a_time_in_an_open_transaction_has_no_offset_for_readers_of_what_is_committed() -> None:
    cluster = make_cluster()
    async with producing(cluster, "x") as out, cluster.connect() as k, out.transaction():
        await out.send("out", b"1", timestamp=5000)
        for committed, position in ((False, 0), (True, None)):
            listed = await k.admin.list_offsets({OUT: AtTime(5)}, read_committed=committed)
            assert listed.check()[OUT].position == position


# ---- a producer that exits while another task is in the block ----------------------------------------------------


async def test_a_producer_that_exits_aborts_the_transaction_of_another_task() -> None:
    """Leaving the block waited for good, and could not be cancelled; readers waited until the transaction timed out."""
    cluster, exited = make_cluster(), anyio.Event()

    async def write(transaction: Any, out: od.Producer) -> None:
        with pytest.raises(TransactionAborted, match="the producer has exited"):
            async with transaction:
                await out.send("out", b"1")
                await exited.wait()
                with pytest.raises(Closed, match="the producer has exited"):
                    await out.send("out", b"2")
        assert transaction.outcome == "aborted"
        with pytest.raises(Closed, match="the producer has exited"):
            await out.transaction().__aenter__()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            async with producing(cluster) as out:
                tasks.start_soon(write, out.transaction(), out)
                await cluster.wait_for_requests("produce", 1)
            cluster.append("out", [b"3"])
            assert await read(cluster, "read_uncommitted") == [b"1", b"3"]
            assert await read(cluster) == [b"3"], "the transaction has ended"
            exited.set()


@pytest.mark.parametrize(
    ("held", "error", "outcome"),
    [("commit_transaction", CommitOutcomeUnknown, "unknown"), ("produce", TransactionAborted, "aborted")],
)
async def test_an_end_that_an_exiting_producer_does_not_wait_for_is_an_error(
    held: Any, error: type[OdradekError], outcome: str
) -> None:
    """The block ended as if its transaction were committed."""
    cluster = make_cluster()
    cluster.hold(held)
    caught: list[OdradekError] = []

    async def write(transaction: Any, out: od.Producer) -> None:
        with pytest.raises(error, match="the producer has exited") as raised:
            async with transaction:
                await out.put("out", b"1")
        caught.append(raised.value)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks, cluster.connect(tuning=QUICK) as k:
            with suppress(od.Undelivered):
                async with k.producer(transactional_id="x", exit_within=0.001) as out:
                    transaction = out.transaction()
                    tasks.start_soon(write, transaction, out)
                    await cluster.wait_for_held(held)
    assert len(caught) == 1 and transaction.outcome == outcome


# ---- cancellation ---------------------------------------------------------------------------------------------


async def test_a_cancellation_at_any_step_leaves_all_or_nothing() -> None:
    cluster = make_cluster(2)
    for steps in count(step=2):
        cluster.append("in", [b"%d" % (steps + 2), b"%d" % (steps + 3)])
        done = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def run(done: anyio.Event = done) -> None:
                async with moving(cluster) as (out, batches):
                    await move(out, await anext(batches))
                    done.set()

            tasks.start_soon(run)
            for _ in range(steps):
                await checkpoint()
            tasks.cancel_scope.cancel()
        moved = await read(cluster)
        assert moved == [b"%d" % n for n in range(len(moved))] and len(moved) % 2 == 0, f"after {steps} steps"
        assert cluster.committed("g").get(IN, 0) == len(moved), f"after {steps} steps"
        if done.is_set():
            break
    assert steps > 20, "a producer and a consumer take more"
