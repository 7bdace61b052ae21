"""The reader between two points: everything once, whatever happens on the way."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from odradek.batch import Batch
from odradek.client.consumer import streams
from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.interfaces import ProducerRecord
from odradek.errors import (
    AuthFailed,
    BrokerError,
    Closed,
    ConfigError,
    ConnectionLost,
    CorruptMessage,
    MessageTooLarge,
    OdradekError,
    TransportError,
    Unreachable,
)
from odradek.testing import MemoryCluster
from odradek.testing.memory.broker import MemoryBrokerClient
from odradek.types import EARLIEST, LATEST, AtTime, Position, Record, TimestampType

from .one_member import make_cluster, numbered, tp, until
from .reading import cancelled_after, collect, held, next_values, read, reading, take_until, values_of

pytestmark = pytest.mark.anyio

QUICK = Tuning(backoff=Backoff(first_s=0.0001, max_s=0.001))

ALWAYS = 1_000_000
"""Times that something fails, until the cluster is healed."""

REFUSED = Unreachable("tcp", "memory-1:9092", "Connection refused")
LOST = ConnectionLost("memory-1:9092", "reset", True)


async def batches_until(reader: Reader, total: int) -> AsyncIterator[Batch]:
    got = 0
    async for batch in reader.batches():
        got += len(batch)
        yield batch
        if got >= total:
            return


async def test_it_reads_everything_and_stops_by_itself() -> None:
    assert sorted(await read(make_cluster(1000, 1000))) == numbered(2000)


async def test_a_record_knows_where_it_is() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    cluster.clock.hold(1_700_000_000.5)
    cluster.append("t", [b"one", ProducerRecord(b"two", b"k", (("h", b"1"),), 1000), b"three"])
    async with reading(cluster, until=LATEST) as reader:
        records = [record async for record in reader]
    created = TimestampType.CREATE_TIME
    assert records[1:] == [
        Record(b"two", b"k", (("h", b"1"),), 1000, created, Position(1), Position(2), 0, tp()),
        Record(b"three", None, (), 1_700_000_000_500, created, Position(2), Position(3), 0, tp()),
    ]


async def test_an_unknown_topic_is_at_its_end_at_once() -> None:
    assert await read(make_cluster(), "nothing") == []


async def test_until_latest_is_what_it_was_at_entry() -> None:
    cluster = make_cluster(10)
    async with reading(cluster, until=LATEST) as reader:
        cluster.append("t", numbered(10, 10))
        assert await values_of(reader) == numbered(10)


@pytest.mark.parametrize("until", [0, 1, 2, 3, 9, 10])
async def test_the_last_record_is_the_last_before_until(until: int) -> None:
    assert await read(make_cluster(10), until=until) == numbered(until)


async def test_times_are_those_of_the_records() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    cluster.append("t", [ProducerRecord(b"%06d" % n, timestamp=(n + 1) * 100_000) for n in range(6)])
    assert await read(cluster, start=AtTime(250.0)) == numbered(4, 2)
    assert await read(cluster, start=AtTime(50.0)) == numbered(6)
    assert await read(cluster, until=AtTime(300.0)) == numbered(2)
    assert await read(cluster, until=AtTime(50.0)) == []
    assert await read(cluster, start=AtTime(601.0)) == []


async def test_starts_and_ends_by_partition() -> None:
    cluster = make_cluster(10, 10)
    assert await read(cluster, {tp(0): 8, tp(1): LATEST}) == numbered(2, 8)
    assert await read(cluster, start={tp(0): LATEST}, until={tp(1): Position(1)}) == [b"000010"]


async def test_from_latest_it_waits_for_what_comes() -> None:
    cluster = make_cluster(5)
    async with reading(cluster, start=LATEST) as reader:
        cluster.append("t", numbered(3, 5))
        assert await next_values(reader, 3) == numbered(3, 5)


async def test_new_partitions_are_picked_up_and_read_whole() -> None:
    cluster = make_cluster(0)
    async with reading(cluster, start=LATEST) as reader:
        cluster.add_partitions("t", 2)
        cluster.append("t", numbered(3), partition=1)
        assert await next_values(reader, 3) == numbered(3)


async def test_batches_are_cut_and_joined_to_the_size_asked_for() -> None:
    async with reading(make_cluster(100), until=LATEST, tuning=Tuning(fetch_bytes=64)) as reader:
        batches = [batch async for batch in reader.batches(max_records=7, max_wait=60)]
    assert [len(batch) for batch in batches] == [7] * 14 + [2]
    assert [value for batch in batches for value in batch.values] == numbered(100)


async def test_a_batch_does_not_wait_longer_than_it_may() -> None:
    cluster = make_cluster(3)
    cluster.hold("fetch")
    async with reading(cluster) as reader:
        await cluster.wait_for_held("fetch")
        begun = anyio.current_time()
        cluster.release("fetch")
        with anyio.fail_after(60):
            batch = await anext(reader.batches(max_records=100, max_wait=0.05))
        assert len(batch) == 3 and anyio.current_time() - begun > 0.04


async def test_a_batch_waits_to_be_filled() -> None:
    cluster = make_cluster(3)
    async with reading(cluster) as reader, anyio.create_task_group() as tasks:
        got: list[Batch] = []

        async def take() -> None:
            got.append(await anext(reader.batches(max_records=100, max_wait=3600)))

        tasks.start_soon(take)
        for first in range(3, 99, 2):
            cluster.append("t", numbered(2, first))
            await anyio.lowlevel.checkpoint()
            assert not got
        cluster.append("t", numbered(3, 99))
        await until(lambda: got)
        assert got[0].values == numbered(100)


async def test_partitions_take_turns() -> None:
    async with reading(make_cluster(400, 400), until=LATEST) as reader:
        order = [batch.partition.partition async for batch in reader.batches(max_records=100)]
    assert sorted(order[:2]) == sorted(order[2:4]) == [0, 1]


# ---- bookmarks, seek, pause ---------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [0, 1, 4, 5, 7, 12])
async def test_a_bookmark_resumes_exactly(taken: int) -> None:
    cluster = make_cluster(12)
    async with reading(cluster, until=LATEST) as reader:
        first = await next_values(reader, taken)
        token = reader.bookmark()
    assert json.loads(token)
    assert first + await read(cluster, start=token) == numbered(12)


async def test_a_bookmark_after_batches_and_after_the_end() -> None:
    cluster = make_cluster(10, 0)
    async with reading(cluster, until=LATEST) as reader:
        batch = await anext(reader.batches(max_records=3))
        half = reader.bookmark()
        rest = await values_of(reader)
    cluster.append("t", numbered(2, 10), partition=1)
    assert batch.values + rest == numbered(10)
    assert sorted(await read(cluster, start=half)) == numbered(9, 3)
    assert await read(cluster, start=reader.bookmark()) == numbered(2, 10)


async def test_a_bookmark_before_until_does_not_skip_what_was_cut_off() -> None:
    cluster = make_cluster(10)
    async with reading(cluster, until=Position(4)) as reader:
        assert await values_of(reader) == numbered(4)
    assert await read(cluster, start=reader.bookmark()) == numbered(6, 4)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"odradek":2,"at":[]}', '{"odradek":1,"at":[["t",1]]}'])
def test_what_is_no_bookmark_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a bookmark"):
        make_cluster().connect().reader("t", start=text)


async def test_seek_forgets_what_was_read_ahead() -> None:
    async with reading(make_cluster(100), until=LATEST) as reader:
        assert (await anext(reader)).value == b"000000"
        reader.seek(tp(), Position(98))
        assert await values_of(reader) == numbered(2, 98)
        reader.seek(tp(), EARLIEST)
        assert len(await values_of(reader)) == 100
        with pytest.raises(ConfigError, match="not currently assigned"):
            reader.seek(tp(7), EARLIEST)


async def test_seek_while_a_fetch_is_under_way() -> None:
    cluster = make_cluster(100)
    cluster.hold("fetch")
    async with reading(cluster, until=LATEST) as reader:
        await cluster.wait_for_held("fetch")
        reader.seek(tp(), Position(50))
        cluster.release("fetch")
        assert await values_of(reader) == numbered(50, 50)


async def test_seek_while_a_refusal_is_on_its_way() -> None:
    cluster = make_cluster(100)
    cluster.delete_records(tp(), before=20)
    cluster.hold("fetch")
    async with reading(cluster, start=0, until=LATEST) as reader:
        await cluster.wait_for_held("fetch")
        reader.seek(tp(), Position(50))
        await anyio.wait_all_tasks_blocked()
        cluster.release("fetch")
        assert await values_of(reader) == numbered(50, 50)


async def test_pause_keeps_the_rest_of_a_batch_for_later() -> None:
    async with reading(make_cluster(10, 10), until=LATEST) as reader:
        first = await anext(reader)
        reader.pause(first.partition)
        other = [await anext(reader) for _ in range(10)]
        assert {record.partition for record in other} == {tp(0), tp(1)} - {first.partition}
        with anyio.move_on_after(0.02) as waited:
            await anext(reader)
        assert waited.cancelled_caught
        reader.resume()
        assert len(await values_of(reader)) == 9


async def test_a_partition_that_is_paused_is_not_fetched_until_it_is_resumed() -> None:
    cluster = make_cluster(5)
    cluster.hold("fetch")
    async with reading(cluster) as reader:
        await cluster.wait_for_held("fetch")
        reader.pause()
        cluster.release("fetch")
        await anyio.wait_all_tasks_blocked()
        fetches = len(cluster.requests("fetch"))
        cluster.append("t", numbered(5, 5))
        await anyio.wait_all_tasks_blocked()
        assert len(cluster.requests("fetch")) == fetches == 1
        reader.resume()
        assert await next_values(reader, 10) == numbered(10)


async def test_lag_and_positions_count_what_was_handed_out() -> None:
    async with reading(make_cluster(10)) as reader:
        assert await reader.lag() == {tp(): 10} and reader.positions() == {tp(): 0}
        await next_values(reader, 3)
        assert await reader.lag() == {tp(): 7} and reader.positions() == {tp(): 3}
        assert reader.partitions == [tp()]


# ---- errors of a partition ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fetch_bytes", [1 << 20, 20])
async def test_a_corrupt_message_comes_after_the_good_ones_and_the_others_go_on(fetch_bytes: int) -> None:
    cluster = make_cluster(3, 5)
    cluster.corrupt(tp(0), 2)
    async with reading(cluster, until=LATEST, tuning=Tuning(fetch_bytes=fetch_bytes)) as reader:
        values, errors = await collect(reader)
    assert sorted(values) == [*numbered(2), *numbered(5, 3)]
    (error,) = errors
    assert isinstance(error, CorruptMessage) and (error.partition, error.position) == ("t/0", 2)


async def test_damage_behind_until_is_none_of_our_business() -> None:
    cluster = make_cluster(10)
    cluster.corrupt(tp(), 3)
    assert await read(cluster, until=Position(3)) == numbered(3)


async def test_skipped_messages_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    cluster = make_cluster(3)
    cluster.corrupt(tp(), 1)
    async with reading(cluster, until=LATEST, corrupt="skip") as reader:
        assert await values_of(reader) == [b"000000", b"000002"]
        assert [report.position for report in reader.reports] == [1]
    assert "1 corrupt messages skipped" in caplog.text


async def test_raw_messages_are_named_in_their_batch() -> None:
    cluster = make_cluster(3)
    cluster.corrupt(tp(), 1)
    async with reading(cluster, until=LATEST, corrupt="raw") as reader:
        batches = [batch async for batch in reader.batches(max_records=2)]
    assert [sorted(batch.corrupt) for batch in batches] == [[1], []]


async def test_a_message_larger_than_the_fetch_size_comes_through_or_says_so() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    cluster.append("t", [b"one", b"two", b"x" * 1000])
    assert await read(cluster, tuning=Tuning(fetch_bytes=14)) == [b"one", b"two", b"x" * 1000]
    async with reading(cluster, until=LATEST, tuning=Tuning(fetch_bytes=14), max_message_bytes=500) as reader:
        values, errors = await collect(reader)
    assert values == [b"one", b"two"]
    assert isinstance(errors[0], MessageTooLarge) and errors[0].position == 2


async def test_a_position_that_is_gone_raises_or_resets() -> None:
    cluster = make_cluster(10)
    cluster.delete_records(tp(), before=2)
    async with reading(cluster, start=0, until=LATEST) as reader:
        values, errors = await collect(reader)
    assert values == [] and [getattr(error, "name", "") for error in errors] == ["OFFSET_OUT_OF_RANGE"]
    assert await read(cluster, start=0, reset=EARLIEST) == numbered(8, 2)


async def test_a_wrong_partition_is_an_error_of_that_partition_only() -> None:
    cluster = make_cluster(0, 3)
    cluster.fail("fetch", BrokerError(3, "WrongPartition"), partition=tp(0))
    async with reading(cluster, {tp(0): 0, tp(1): 0}, until=Position(3)) as reader:
        values, errors = await collect(reader)
    assert values == numbered(3) and [getattr(error, "name", "") for error in errors] == ["WrongPartition"]


@pytest.mark.parametrize(
    "refusal", [BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"), AuthFailed("PLAIN", "no such user")], ids=["acl", "user"]
)
async def test_what_was_refused_is_read_once_it_is_allowed(refusal: OdradekError) -> None:
    """The error is raised once; the permission may be given back at any time, without a seek."""
    cluster = make_cluster(3)
    async with reading(cluster, start=EARLIEST, tuning=QUICK) as reader:
        assert await next_values(reader, 3) == numbered(3)
        cluster.fail("fetch", refusal, times=4)
        with pytest.raises(type(refusal)):
            await next_values(reader, 1)
        cluster.append("t", numbered(3, 3))
        assert await next_values(reader, 3) == numbered(3, 3)
        cluster.fail("fetch", refusal)
        with pytest.raises(type(refusal)):  # again, since it was allowed in between
            await next_values(reader, 1)


async def test_a_start_that_was_refused_is_asked_for_until_it_is_allowed() -> None:
    cluster = make_cluster(3)
    async with reading(cluster, start=LATEST, tuning=QUICK) as reader:
        cluster.fail("positions", BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"), times=4)
        cluster.add_partitions("t", 2)
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await next_values(reader, 1)
        cluster.append("t", [b"x"], partition=1)
        assert await next_values(reader, 1) == [b"x"]


async def test_a_reader_with_an_end_does_not_wait_for_what_was_refused() -> None:
    cluster = make_cluster(3, 3)
    cluster.fail("fetch", BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"), times=ALWAYS, partition=tp(0))
    async with reading(cluster, until=LATEST) as reader:
        values, errors = await collect(reader)
    assert values == numbered(3, 3) and len(errors) == 1


async def test_seek_revives_a_broken_partition() -> None:
    cluster = make_cluster(3)
    cluster.corrupt(tp(), 0)
    async with reading(cluster, until=LATEST) as reader:
        with pytest.raises(CorruptMessage):
            await anext(reader)
        reader.seek(tp(), Position(1))
        assert await values_of(reader) == numbered(2, 1)


# ---- brokers that come and go -------------------------------------------------------------------------------


async def test_a_cut_after_every_record_of_an_answer_loses_and_doubles_nothing() -> None:
    cluster = make_cluster(5, 3)
    for cut in range(9):
        cluster.fail("fetch", LOST, after_records=cut)
        assert sorted(await read(cluster, tuning=QUICK)) == numbered(8), cut


async def test_a_cut_of_every_answer_still_gets_on() -> None:
    """As long as one record of each arrives."""
    cluster = make_cluster(20)
    cluster.fail("fetch", LOST, times=ALWAYS, after_records=1)
    async with reading(cluster, tuning=QUICK) as reader:
        assert await next_values(reader, 20) == numbered(20)


async def test_a_truncated_log_is_read_on_from_where_both_logs_end() -> None:
    cluster = make_cluster(5)
    async with reading(cluster, reset=EARLIEST) as reader:
        assert await next_values(reader, 5) == numbered(5)
        cluster.truncate_log(tp(), 3)
        cluster.append("t", [b"other"] * 20)
        assert await next_values(reader, 20) == [b"other"] * 20


async def test_a_broker_that_moves_is_followed(caplog: pytest.LogCaptureFixture) -> None:
    cluster = make_cluster(3)
    async with reading(cluster) as reader:
        assert await next_values(reader, 3) == numbered(3)
        cluster.stop_broker(1)
        await until(lambda: "no longer registered" in caplog.text)
        cluster.append("t", numbered(3, 3))
        before = len(cluster.requests("fetch"))
        cluster.start_broker(1, port=9093)
        assert await next_values(reader, 3) == numbered(3, 3)
        leader = reader._driver.metadata.table.leader(tp())
        assert leader is not None and leader.port == 9093 and len(cluster.requests("fetch")) > before


async def test_one_log_line_for_an_outage_and_one_for_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "odradek.fetch")
    cluster = make_cluster(0)
    async with reading(cluster, tuning=QUICK) as reader:
        await until(lambda: cluster.requests("fetch"))
        failures = len(cluster.requests("fetch")) + 4
        cluster.fail("fetch", REFUSED, times=ALWAYS)
        await until(lambda: len(cluster.requests("fetch")) >= failures)
        cluster.heal()
        cluster.append("t", [b"x"])
        assert await next_values(reader, 1) == [b"x"]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 and "Connection refused" in lines[0] and "responds again" in lines[1]


async def test_a_start_by_meaning_is_asked_for_again_until_the_broker_answers() -> None:
    cluster = make_cluster(0)
    async with reading(cluster, start=LATEST, tuning=QUICK) as reader:
        before = len(cluster.requests("positions"))
        cluster.fail("positions", REFUSED, times=3)
        cluster.add_partitions("t", 2)
        cluster.append("t", numbered(2), partition=1)
        assert await next_values(reader, 2) == numbered(2)
        assert len(cluster.requests("positions")) == before + 4


async def test_a_start_that_cannot_be_resolved_is_the_error_of_its_partition() -> None:
    cluster = make_cluster(3)
    async with reading(cluster, start=LATEST) as reader:
        denied = BrokerError(29, "TOPIC_AUTHORIZATION_FAILED")
        cluster.fail("positions", denied)
        cluster.add_partitions("t", 2)
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await next_values(reader, 1)
        cluster.append("t", [b"x"])
        assert await next_values(reader, 1) == [b"x"]


async def test_entering_fails_honestly_when_an_end_cannot_be_found_out() -> None:
    cluster = make_cluster()
    cluster.fail("positions", REFUSED)
    with pytest.raises(TransportError, match="Connection refused"):
        async with reading(cluster, until=LATEST):
            pass
    cluster.stop_broker(1)
    with pytest.raises(TransportError, match="no live broker"):
        async with reading(cluster, {tp(): EARLIEST}):
            pass


# ---- life ---------------------------------------------------------------------------------------------------


def break_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(MemoryBrokerClient, "fetch", broken)


async def test_pain_background_death_raises_in_async_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make_cluster(0)
    async with reading(cluster) as reader:
        cluster.fail("watch", REFUSED)
        with pytest.raises(Unreachable, match="Connection refused"):
            await anext(reader)
        break_fetches(monkeypatch)
        cluster.append("t", [b"x"])
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(Unreachable, match="Connection refused"):
            await anext(reader)


async def test_a_bug_in_a_fetch_loop_raises_in_async_for(monkeypatch: pytest.MonkeyPatch) -> None:
    break_fetches(monkeypatch)
    async with reading(make_cluster(0), {tp(): 0}) as reader:
        with pytest.raises(ZeroDivisionError):
            await anext(reader)


async def test_used_outside_its_block_it_says_closed() -> None:
    async with make_cluster().connect() as k:
        reader = k.reader("t")
        with pytest.raises(Closed):
            await anext(reader)
        async with reader:
            pass
        with pytest.raises(Closed):
            await anext(reader)


async def test_an_exception_of_the_block_comes_out_as_it_is() -> None:
    async with make_cluster().connect() as k:
        with pytest.raises(ValueError, match="mine"):
            async with k.reader("t"):
                raise ValueError("mine")


async def test_two_tasks_cannot_read_record_by_record_at_once() -> None:
    async with reading(make_cluster(0)) as reader, anyio.create_task_group() as tasks:

        async def wait() -> None:
            await anext(reader)

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await anext(reader)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("options", [{"read_ahead_bytes": 0}, {"max_message_bytes": 0}, {"corrupt": "ignore"}])
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_cluster().connect().reader("t", **options)


async def test_its_repr_says_how_far_it_is() -> None:
    async with reading(make_cluster(0, 0), until=LATEST) as reader:
        await values_of(reader)
        assert repr(reader) == "<Reader 2 partitions, 2 ended, 0 failed>"


async def test_pain_cancellation_at_every_await(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel the read at its n-th step, for every n until it gets through; each time the rest follows."""
    monkeypatch.setattr(streams, "YIELD_EVERY_ROWS", 1)
    cluster = make_cluster(200, 200)
    cluster.clock.hold()
    got: list[bytes] = []
    async with reading(cluster, until=LATEST, tuning=Tuning(fetch_bytes=100)) as reader:
        cluster.delay("fetch", 1.0)  # an answer for each step
        steps = 0
        while len(got) < 400:
            steps += 1
            cluster.clock.advance(1.0)
            async with cancelled_after(steps % 7):
                await take_until(reader, got, 400, in_batches=bool(steps % 2))
    assert sorted(got) == numbered(400)
    assert steps > 5


async def test_pain_memory_bounded_with_slow_reader() -> None:
    """A reader that takes one batch and then nothing: fetching stops, with no more asked for than the budget."""
    cluster = MemoryCluster(topics={"t": 4})
    for n in range(4):
        cluster.append("t", [b"x" * 90] * 5000, partition=n)
    read_ahead_bytes, tuning = 400_000, Tuning(fetch_bytes=32_768)
    async with reading(cluster, read_ahead_bytes=read_ahead_bytes, tuning=tuning) as reader:
        await anext(reader.batches(max_records=1))
        await anyio.wait_all_tasks_blocked()
        fetches = len(cluster.requests("fetch"))
        await anyio.sleep(0.02)
        assert len(cluster.requests("fetch")) == fetches, "still fetching"
        assert read_ahead_bytes / 4 < held(reader) <= read_ahead_bytes
        total = 1
        async for batch in batches_until(reader, 19_999):
            total += len(batch)
            assert held(reader) <= read_ahead_bytes
        assert total == 20_000


async def test_after_a_seek_positions_and_bookmarks_are_those_of_the_seek() -> None:
    async with reading(make_cluster(10)) as reader:
        assert await next_values(reader, 4) == numbered(4)
        reader.seek(tp(), Position(7))
        assert reader.positions() == {tp(): 7}
        bookmark = reader.bookmark()
        assert await next_values(reader, 1) == numbered(1, 7) and reader.positions() == {tp(): 8}
    assert (await read(make_cluster(10), start=bookmark, until=LATEST))[0] == numbered(1, 7)[0]
