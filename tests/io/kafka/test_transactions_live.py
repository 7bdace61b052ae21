"""Transactions on real brokers: of each protocol, with other clients, and with everything that can go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from itertools import count
from typing import Any, Literal

import anyio
import anyio.to_thread
import pytest

import odradek as od
from odradek.client.producer.transaction import Transaction
from odradek.errors import CommitOutcomeUnknown, Unsupported
from odradek.testing import KafkaBroker
from odradek.testing.kafka.releases import NEWEST
from odradek.types import LATEST

from .topics import fill, until_committed, values

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

FIRST = "0.11.0.3"
NUMBERS = count()
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # A broker that is paused for longer than its session leads nothing for a moment, and drops the markers due then.
    "broker.session.timeout.ms": "30000",
    "zookeeper.session.timeout.ms": "30000",
}
SHORT = od.Tuning(request_timeout=3.0)


@pytest.fixture(scope="module", params=[FIRST, NEWEST])
def broker(request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    with KafkaBroker(request.param, config=SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One loop is enough for what real brokers do; cancellation is tested on both."""
    return "asyncio"


@pytest.fixture
async def k(broker: KafkaBroker) -> AsyncIterator[od.Cluster]:
    async with od.connect(f"kafka://{broker.bootstrap}") as cluster:
        yield cluster


@pytest.fixture
def topic() -> str:
    return f"ledger-{next(NUMBERS)}-{random.randrange(1 << 30)}"


# ---- commit and abort -----------------------------------------------------------------------------------------


async def test_what_is_committed_is_read_and_what_is_aborted_is_not(k: od.Cluster, topic: str) -> None:
    async with k.producer(transactional_id=topic) as out:
        async with out.transaction() as first:
            await out.put(topic, b"put")
            await out.send(topic, b"sent", headers=[("h", b"1")])
        with pytest.raises(KeyError) as caught:
            async with out.transaction() as second:
                await out.send(topic, b"aborted")
                raise KeyError
        assert not getattr(caught.value, "__notes__", [])
        async with out.transaction() as third:
            await out.send_many(topic, [b"many", (b"key", b"pair")])
        async with out.transaction() as empty:
            pass
        outcomes = [transaction.outcome for transaction in (first, second, third, empty)]
        assert outcomes == ["committed", "aborted", "committed", "committed"]
    await until_committed(k, topic, [b"put", b"sent", b"many", b"pair"])
    assert await values(k, topic, "read_uncommitted") == [b"put", b"sent", b"aborted", b"many", b"pair"]


async def test_an_open_transaction_is_not_read(k: od.Cluster, topic: str) -> None:
    async with k.producer(transactional_id=topic) as out:
        async with out.transaction():
            await out.send(topic, b"1")
            assert await values(k, topic) == []
            assert await values(k, topic, "read_uncommitted") == [b"1"]
        await until_committed(k, topic, [b"1"])


async def test_a_transaction_holds_many_partitions_of_many_topics(
    k: od.Cluster, broker: KafkaBroker, topic: str
) -> None:
    topics = [f"{topic}-{n}" for n in range(3)]
    for name in topics:
        await anyio.to_thread.run_sync(broker.create_topic, name, 4)
    rows = [od.ProducerRecord(b"%d" % n, key=b"%d" % n) for n in range(100)]
    async with k.producer(transactional_id=topic, latency=0.0) as out, out.transaction():
        for name in topics:
            assert (await out.send_many(name, rows)).check().written == 100
    for name in topics:
        read: list[bytes | None] = []
        with anyio.fail_after(30):
            while len(read) < 100:
                read = await values(k, name)
        assert sorted(read, key=str) == sorted([row.value for row in rows], key=str)


async def test_records_outside_of_a_transaction_are_refused(k: od.Cluster, topic: str) -> None:
    async with k.producer(transactional_id=topic) as out:
        with pytest.raises(od.UsageError, match="no transaction is open"):
            await out.send(topic, b"1")
        async with out.transaction() as transaction:
            with pytest.raises(od.UsageError, match="open already"):
                await out.transaction().__aenter__()
            await out.send(topic, b"2")
        with pytest.raises(od.UsageError, match="used once"):
            await transaction.__aenter__()
        with pytest.raises(od.UsageError, match="not open"):
            transaction.done(None)  # type: ignore[arg-type]
        with pytest.raises(od.UsageError, match="no transaction is open"):
            out.try_put(topic, b"3")
    await until_committed(k, topic, [b"2"])
    async with k.producer() as plain:
        with pytest.raises(od.UsageError, match="make it with a transactional_id"):
            plain.transaction()


@pytest.mark.parametrize("many", [False, True])
async def test_a_record_that_failed_aborts_even_if_its_error_was_caught(k: od.Cluster, topic: str, many: bool) -> None:
    async with k.producer(transactional_id=topic) as out:
        with pytest.raises(od.TransactionAborted, match="1 record rejected") as caught:
            async with out.transaction():
                await out.send(topic, b"1")
                if many:
                    acks = await out.send_many(topic, [b"2", b"3" * 2_000_000])
                    assert [len(failed.record.value or b"") for failed in acks.failed] == [2_000_000]
                else:
                    with pytest.raises(od.DeliveryError):
                        await out.send(topic, b"3" * 2_000_000, partition=0)
                acks = await out.send_many(topic, [b"4"])
                assert len(acks.failed) == 1  # nothing more is written in it
        assert isinstance(caught.value.__cause__, od.Rejected)
        async with out.transaction():
            await out.send(topic, b"5")
        assert not out.failures
    await until_committed(k, topic, [b"5"])


# ---- fencing --------------------------------------------------------------------------------------------------


async def test_a_second_producer_with_the_same_id_fences_the_first(k: od.Cluster, topic: str) -> None:
    with pytest.raises(od.Fenced, match=topic):
        async with k.producer(transactional_id=topic) as first:
            with pytest.raises(od.Fenced) as caught:
                async with first.transaction() as lost:
                    await first.send(topic, b"1")
                    async with k.producer(transactional_id=topic) as second, second.transaction():
                        await second.send(topic, b"2")
                    await first.send(topic, b"3")
            assert isinstance(caught.value.__cause__, od.DeliveryError) and lost.outcome == "aborted"
            with pytest.raises(od.Fenced, match=topic):
                await first.transaction().__aenter__()
            asked_again = True
    assert asked_again
    await until_committed(k, topic, [b"2"])


async def test_a_commit_of_a_fenced_producer_is_refused(k: od.Cluster, topic: str) -> None:
    with pytest.raises(od.Fenced):
        async with k.producer(transactional_id=topic) as first:
            with pytest.raises(od.Fenced, match=topic):
                async with first.transaction() as lost:
                    await first.send(topic, b"1")
                    async with k.producer(transactional_id=topic) as second, second.transaction():
                        await second.send(topic, b"2")
            assert lost.outcome == "aborted"
    await until_committed(k, topic, [b"2"])


async def test_a_transaction_that_is_open_for_too_long_is_aborted_by_the_cluster(k: od.Cluster, topic: str) -> None:
    with pytest.raises(od.OdradekError, match=topic):
        async with k.producer(transactional_id=topic, transaction_timeout=3.0) as out:
            with pytest.raises((od.Fenced, od.TransactionAborted)):  # as releases say it
                async with out.transaction() as late:
                    await out.send(topic, b"late")
                    with anyio.fail_after(60):
                        while not await is_decided(k, topic):  # noqa: ASYNC110 - as above
                            await anyio.sleep(0.2)
            assert late.outcome == "aborted"
    assert await values(k, topic) == []


async def is_decided(k: od.Cluster, topic: str) -> bool:
    """Whether no transaction is open in the topic: its last stable position is its end."""
    (partition,) = await k.partitions(topic)
    leader = k.driver.metadata.table.leader(partition)
    assert leader is not None
    client = k.driver.broker(leader, purpose="control")
    ends = [await client.resolve_position(partition, LATEST, read_committed=committed) for committed in (True, False)]
    return ends[0] == ends[1]


# ---- positions of consumers -----------------------------------------------------------------------------------


async def committed(k: od.Cluster, topic: str) -> list[int | None]:
    positions = await k.driver.offsets(topic).fetch(await k.partitions(topic))
    return list(positions.values())


async def until_stored(k: od.Cluster, topic: str, position: int) -> None:
    """Before 2.5 a read does not wait for positions whose transaction is being committed."""
    with anyio.fail_after(30):
        while await committed(k, topic) != [position]:  # noqa: ASYNC110 - as above
            await anyio.sleep(0.02)


def last_of(batch: od.GroupBatch) -> od.Record:
    return list(batch)[-1]


async def test_positions_are_stored_with_the_transaction_or_not_at_all(k: od.Cluster, topic: str) -> None:
    rows = await fill(k, topic, 20)
    async with (
        k.producer(transactional_id=topic) as out,
        k.consumer(topic, group=topic, commit_every=0.01) as consumer,
    ):
        batches = consumer.batches(max_records=5)
        batch = await anext(batches)
        with pytest.raises(KeyError):
            async with out.transaction() as tx:
                await out.send_many(f"{topic}-out", [record.value or b"" for record in batch])
                tx.done(batch)
                raise KeyError
        await anyio.sleep(0.1)  # the consumer commits meanwhile, and not this one
        assert await committed(k, topic) in ([0], [None])
        while True:
            async with out.transaction() as tx:
                await out.send_many(f"{topic}-out", [record.value or b"" for record in batch])
                tx.done(batch)
            await until_stored(k, topic, last_of(batch).next_position)
            if last_of(batch).value == rows[-1]:
                break
            batch = await anext(batches)
    await until_committed(k, f"{topic}-out", rows)


async def test_a_table_can_be_done_by_a_transaction(k: od.Cluster, topic: str) -> None:
    rows = await fill(k, topic, 10)
    async with k.producer(transactional_id=topic) as out, k.consumer(topic, group=topic) as consumer:
        async for table in consumer.arrow(max_wait=0.5):
            async with out.transaction() as tx:
                await out.send_arrow(f"{topic}-out", table.table, value="value")
                tx.done(table)
            if table.table["value"][-1].as_py() == rows[-1]:
                break
    await until_stored(k, topic, 10)
    await until_committed(k, f"{topic}-out", rows)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_positions_are_fenced_by_members_of_both_group_protocols(
    odradek_kafka: KafkaBroker, topic: str, protocol: Literal["classic", "consumer"]
) -> None:
    async with od.connect(f"kafka://{odradek_kafka.bootstrap}") as k:
        await fill(k, topic, 10)
        async with (
            k.producer(transactional_id=topic) as out,
            k.consumer(topic, group=topic, group_protocol=protocol) as consumer,
        ):
            async for batch in consumer.batches():
                async with out.transaction() as tx:
                    await out.send(f"{topic}-out", b"done")
                    tx.done(batch)
                if last_of(batch).value == b"9":
                    break
        await until_stored(k, topic, 10)


async def test_after_a_failed_record_the_others_do_not_wait(k: od.Cluster, topic: str) -> None:
    async with k.producer(transactional_id=topic, deliver_within=120.0) as out:
        with pytest.raises(od.TransactionAborted, match="is larger than"), anyio.fail_after(60):
            async with out.transaction():
                acks = await out.send_many(topic, [b"1", b"2" * 2_000_000, b"3"])
                assert len(acks.failed) >= 1
                with pytest.raises((od.TransactionAborted, od.NotWritten)):
                    await out.send(topic, b"4")
        async with out.transaction():
            await out.send(topic, b"5")
    await until_committed(k, topic, [b"5"])


async def test_a_batch_after_one_that_is_not_done_aborts(k: od.Cluster, topic: str) -> None:
    await fill(k, topic, 10)
    async with k.producer(transactional_id=topic) as out, k.consumer(topic, group=topic) as consumer:
        batches = consumer.batches(max_records=5)
        first, second = await anext(batches), await anext(batches)
        with pytest.raises(od.TransactionAborted, match="an earlier batch is not done"):
            async with out.transaction() as tx:
                await out.send(f"{topic}-out", b"second")
                tx.done(second)
        async with out.transaction() as tx:
            await out.send(f"{topic}-out", b"both")
            tx.done(second)
            tx.done(first)
    await until_stored(k, topic, 10)
    await until_committed(k, f"{topic}-out", [b"both"])


async def test_a_member_that_lost_its_partitions_cannot_commit_their_positions(k: od.Cluster, topic: str) -> None:
    await fill(k, topic, 10)
    async with k.producer(transactional_id=topic) as out:
        async with k.consumer(topic, group=topic) as consumer:
            batch = await anext(consumer.batches(max_records=5))
        with pytest.raises(od.TransactionAborted, match="another member"):
            async with out.transaction() as tx:
                await out.send(f"{topic}-out", b"late")
                tx.done(batch)
        with pytest.raises(TypeError, match="batch must be a batch or a table of a consumer"):
            async with out.transaction() as tx:
                tx.done(topic)  # type: ignore[arg-type]
    assert await committed(k, topic) in ([0], [None])
    assert await values(k, f"{topic}-out") == []


# ---- cancellation and time-outs -------------------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("native", [False, True])
async def test_a_cancellation_at_any_moment_leaves_all_or_nothing(
    k: od.Cluster, topic: str, native: bool, anyio_backend_name: str
) -> None:
    transactions: dict[int, Transaction] = {}

    async def write(number: int) -> None:
        async with k.producer(transactional_id=topic, tuning=SHORT) as out, out.transaction() as tx:
            transactions[number] = tx
            await out.send_many(topic, [b"%d" % number] * 3)
            await out.put(topic, b"%d" % number)

    moments = random.Random()
    for number in range(12):
        delay = moments.random() ** 2 * 0.15
        with anyio.fail_after(60):
            if native and anyio_backend_name == "asyncio":
                await cancel_natively(write(number), delay)
            else:
                with anyio.move_on_after(delay):
                    await write(number)
    with anyio.fail_after(60):
        await write(12)
        while (await values(k, topic))[-4:] != [b"12"] * 4:  # noqa: ASYNC110 - as above
            await anyio.sleep(0.05)
    counts = Counter(await values(k, topic))
    outcomes = {number: tx.outcome for number, tx in transactions.items()}
    assert {number: counts[b"%d" % number] for number, outcome in outcomes.items() if outcome == "committed"} == {
        number: 4 for number, outcome in outcomes.items() if outcome == "committed"
    }
    assert counts.keys() <= {b"%d" % number for number, outcome in outcomes.items() if outcome == "committed"}


async def cancel_natively(work: Coroutine[Any, Any, None], delay: float) -> None:
    task = asyncio.ensure_future(work)
    await asyncio.wait([task], timeout=delay)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or task.exception() is None, task.exception()


@pytest.fixture
async def paused(broker: KafkaBroker, k: od.Cluster, topic: str) -> AsyncIterator[od.Producer]:
    """A producer with short limits. The test pauses the broker, which runs again afterwards."""
    async with od.connect(f"kafka://{broker.bootstrap}", tuning=SHORT) as cluster:
        async with k.producer(transactional_id=topic) as patient, patient.transaction():
            await patient.send(topic, b"0")  # the first one may have to wait for topics that brokers create
        await until_committed(k, topic, [b"0"])
        out = cluster.producer(transactional_id=topic, deliver_within=5.0, exit_within=2.0)
        await out.__aenter__()
        try:
            yield out
        finally:
            if broker.paused:
                broker.resume()
            with contextlib.suppress(od.OdradekError):
                await out.__aexit__(None, None, None)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_commit_without_an_answer_has_an_unknown_outcome(
    broker: KafkaBroker, k: od.Cluster, paused: od.Producer, topic: str, cancelled: bool
) -> None:
    with anyio.fail_after(30), pytest.raises(CommitOutcomeUnknown, match=topic) as caught:
        with anyio.CancelScope() as scope:
            async with paused.transaction() as tx:
                await paused.send(topic, b"1")
                broker.pause()
                if cancelled:  # while the commit waits for its answer
                    scope.deadline = anyio.current_time() + 1.0
    assert tx.outcome == "unknown" and isinstance(caught.value, od.OutcomeUnknown) and caught.value.fatal
    with pytest.raises(od.Closed, match="committed or will be aborted"):
        await paused.transaction().__aenter__()
    broker.resume()
    async with k.producer(transactional_id=topic) as out:
        before = await values(k, topic)
        assert before in ([b"0"], [b"0", b"1"])
        async with out.transaction():
            await out.send(topic, b"2")
    await until_committed(k, topic, [*filter(None, before), b"2"])


async def test_an_abort_without_an_answer_ends_the_producer_in_time(
    broker: KafkaBroker, k: od.Cluster, paused: od.Producer, topic: str
) -> None:
    with anyio.fail_after(30), pytest.raises(KeyError) as caught:
        async with paused.transaction() as tx:
            await paused.send(topic, b"1")
            broker.pause()
            raise KeyError
    assert tx.outcome == "aborted"
    assert any("aborting a transaction: no answer" in note for note in caught.value.__notes__)
    with pytest.raises(od.Closed, match="aborting a transaction"):
        await paused.transaction().__aenter__()
    broker.resume()
    async with k.producer(transactional_id=topic) as out, out.transaction():
        await out.send(topic, b"2")
    await until_committed(k, topic, [b"0", b"2"])


async def test_registering_has_a_deadline_and_can_be_cancelled(broker: KafkaBroker, topic: str) -> None:
    async with od.connect(f"kafka://{broker.bootstrap}", tuning=SHORT) as cluster:
        broker.pause()
        try:
            with anyio.fail_after(30):
                with pytest.raises(od.DeadlineError, match=f"registering transactional id {topic}"):
                    await cluster.producer(transactional_id=topic, deliver_within=1.0).__aenter__()
                with anyio.move_on_after(0.2) as scope:
                    await cluster.producer(transactional_id=topic).__aenter__()
                assert scope.cancelled_caught
        finally:
            broker.resume()


# ---- brokers without transactions -----------------------------------------------------------------------------


@pytest.mark.releases("0.10.1.1")
async def test_older_brokers_refuse(any_kafka: KafkaBroker) -> None:
    async with od.connect(f"kafka://{any_kafka.bootstrap}") as cluster:
        with pytest.raises(Unsupported, match=r"Kafka 0\.11") as caught:
            cluster.producer(transactional_id="t")
        assert caught.value.feature == "a transaction (transactional_id)"
        with pytest.raises(od.ConfigError, match="acks"):
            cluster.producer(transactional_id="t", acks=1)
