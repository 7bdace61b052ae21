"""A topic that is deleted and made again while it is read: its first records are not skipped, and no position of the
former log is committed as one of the new log."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from odradek.client.consumer import fetcher, positions
from odradek.client.consumer import reader as reader_module
from odradek.errors import BrokerError, GroupError, OffsetOutOfRange, TopicRecreated
from odradek.testing import MemoryCluster
from odradek.testing.memory.metadata import MemoryRoutingTable
from odradek.types import EARLIEST, LATEST, AtTime, Position, PositionSpec

from .one_member import consuming, make_cluster, numbered, tp, until
from .reading import next_values, read, reading

pytestmark = pytest.mark.anyio

NOT_LEADER = BrokerError(6, "NOT_LEADER_OR_FOLLOWER", retriable=True, refresh_metadata=True)

NEW = [b"new%d" % n for n in range(30)]


def recreate(cluster: MemoryCluster, count: int = 30, *, by_name: bool = False) -> None:
    """Make `t` again, with so many records: by default more than the ten it had."""
    cluster.recreate_topic("t", by_name=by_name)
    cluster.append("t", NEW[:count])


@pytest.mark.parametrize("count", [30, 10, 4], ids=["longer", "as long", "shorter"])
async def test_a_reader_begins_with_the_first_record_of_the_new_log(count: int) -> None:
    cluster = make_cluster()
    async with reading(cluster, reset=EARLIEST) as reader:
        assert await next_values(reader, 10) == numbered(10)
        recreate(cluster, count)
        assert await next_values(reader, count) == NEW[:count]


async def test_a_reader_that_is_to_fail_says_that_the_topic_was_made_again_and_continues_where_it_is_told() -> None:
    cluster = make_cluster()
    async with reading(cluster) as reader:
        assert await next_values(reader, 10) == numbered(10)
        recreate(cluster)
        with pytest.raises(
            TopicRecreated, match=r"t/0: the topic was deleted and made again; .* come to 10 of the former"
        ):
            await anext(reader)
        reader.seek(tp(), Position(20))
        assert await next_values(reader, 10) == NEW[20:]


async def test_a_reader_stores_a_position_in_the_new_log_that_it_had_stored_in_the_former() -> None:
    cluster = make_cluster()
    async with reading(cluster, reset=EARLIEST, group="g") as reader:
        assert await next_values(reader, 10) == numbered(10)
        assert await reader.commit() == {tp(): 10} and await reader.commit() == {}
        recreate(cluster)
        assert await next_values(reader, 10) == NEW[:10]
        assert await reader.commit() == cluster.committed("g") == {tp(): 10}


async def test_a_reader_that_is_reset_to_the_end_gets_what_is_written_from_then_on() -> None:
    cluster = make_cluster()
    async with reading(cluster, reset=LATEST) as reader:
        assert await next_values(reader, 10) == numbered(10)
        recreate(cluster)
        await until(lambda: reader.positions() == {tp(): 30})
        cluster.append("t", [b"then"])
        assert await next_values(reader, 1) == [b"then"]


async def test_where_topics_are_fetched_by_name_the_new_log_is_read_from_its_beginning_once_its_id_is_known() -> None:
    """Kafka 2.8 to 3.0: ids are in Metadata, not in Fetch. What was read of the new log before is delivered again."""
    cluster = make_cluster()
    async with reading(cluster, reset=EARLIEST) as reader:
        assert await next_values(reader, 10) == numbered(10)
        recreate(cluster, by_name=True)
        assert await next_values(reader, 20) == NEW[10:]
        cluster.fail("fetch", NOT_LEADER)
        assert await next_values(reader, 30) == NEW


@pytest.mark.parametrize("start", [EARLIEST, AtTime(0), LATEST])
async def test_a_reader_begins_in_the_topic_that_there_is_and_not_in_the_one_that_its_cluster_knew(
    start: PositionSpec | AtTime,
) -> None:
    cluster = make_cluster()
    async with cluster.connect() as k:
        async with k.reader("t", start=EARLIEST, until=LATEST) as reader:
            assert await next_values(reader, 10) == numbered(10)
        recreate(cluster, by_name=True)
        async with k.reader("t", start=start) as reader:
            await until(lambda: reader.positions() == {tp(): 30 if start is LATEST else 0})
            await reader._driver.metadata.refresh()
            cluster.append("t", [b"then"])
            expected = [*([] if start is LATEST else NEW), b"then"]
            assert await next_values(reader, len(expected)) == expected


async def test_what_a_fetch_by_name_brings_after_the_new_id_is_known_is_not_delivered() -> None:
    cluster = make_cluster(10)
    async with reading(cluster, reset=EARLIEST) as reader:
        assert await next_values(reader, 10) == numbered(10)
        cluster.hold("fetch")
        recreate(cluster, by_name=True)
        await cluster.wait_for_held("fetch")
        await reader._driver.metadata.refresh()
        cluster.release("fetch")
        assert await next_values(reader, 30) == NEW


async def test_a_topic_made_again_several_times_is_read_from_the_beginning_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetcher, "REFRESH_PAUSE_S", 0.001)
    cluster = make_cluster()
    async with reading(cluster, reset=EARLIEST) as reader:
        assert await next_values(reader, 10) == numbered(10)
        for count in (30, 20, 30):
            recreate(cluster, count)
            assert await next_values(reader, count) == NEW[:count]


async def test_a_topic_that_is_gone_for_a_while_is_another_one_when_it_is_back() -> None:
    cluster = make_cluster()
    async with reading(cluster, reset=EARLIEST) as reader:
        assert await next_values(reader, 10) == numbered(10)
        cluster.delete_topic("t")
        reads = len(cluster.requests("metadata"))
        await cluster.wait_for_requests("fetch", len(cluster.requests("fetch")) + 3)
        assert len(cluster.requests("metadata")) == reads  # the topic is looked for without the errors of its fetches
        cluster.create_topic("t")
        cluster.append("t", NEW)
        assert await next_values(reader, 30) == NEW


async def test_a_reader_drops_the_partitions_that_a_topic_made_again_does_not_have(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(positions, "BETWEEN_READS_S", 0.01)
    cluster = MemoryCluster({"t": 3})
    for number in range(3):
        cluster.append("t", [b"old"], partition=number)
    async with reading(cluster, reset=EARLIEST) as reader:
        assert await next_values(reader, 3) == [b"old"] * 3
        cluster.delete_topic("t")
        cluster.create_topic("t")
        cluster.append("t", NEW)
        assert await next_values(reader, 30) == NEW
        await until(lambda: list(reader._fetcher.cursors) == [tp()])
        asked = len(cluster.requests("positions"))
        await anyio.sleep(0.2)
        assert len(cluster.requests("positions")) == asked
        cluster.add_partitions("t", 3)
        cluster.append("t", [b"back"], partition=2)
        assert await next_values(reader, 1) == [b"back"]
    dropped = [each.message for each in caplog.records if "is not read any more" in each.message]
    assert sorted(dropped) == [
        f"t/{number} is not read any more, because the topic was made again: "
        f"t has no partition {number}: it has 1, numbered from 0"
        for number in (1, 2)
    ]


async def test_what_was_read_of_a_partition_that_is_gone_is_delivered_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "BETWEEN_READS_S", 0.01)
    monkeypatch.setattr(reader_module, "BETWEEN_READS_S", 0.01)
    cluster = MemoryCluster({"t": 2})
    cluster.append("t", [b"old"], partition=1)
    async with reading(cluster, reset=EARLIEST) as reader:
        await until(lambda: reader._fetcher.cursor(tp(1)).queue.rows)
        cluster.delete_topic("t")
        cluster.create_topic("t")
        await anyio.sleep(0.2)
        assert await next_values(reader, 1) == [b"old"]
        await until(lambda: list(reader._fetcher.cursors) == [tp()])


@pytest.mark.parametrize("until_end", [False, True])
async def test_a_reader_that_is_to_fail_or_to_end_fails_for_a_partition_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, until_end: bool
) -> None:
    """Without ids of topics, as before 2.8, nothing else tells that the topic was made again."""
    monkeypatch.setattr(positions, "BETWEEN_READS_S", 0.01)
    monkeypatch.setattr(MemoryRoutingTable, "topic_id", lambda self, topic: None)
    cluster = MemoryCluster({"t": 2})
    cluster.append("t", [b"old"] * 2, partition=1)
    options: Any = {"reset": EARLIEST, "until": {tp(1): Position(9)}} if until_end else {}
    async with reading(cluster, {tp(1): Position(0)}, **options) as reader:
        assert await next_values(reader, 2) == [b"old"] * 2
        cluster.delete_topic("t")
        cluster.create_topic("t")
        with pytest.raises(TopicRecreated, match=r"t/1: the topic was deleted and made again; .* come to 2 of the"):
            await anext(reader)


async def test_a_start_by_meaning_is_asked_for_again_if_the_topic_is_made_again_before_it_is_answered() -> None:
    cluster = make_cluster()
    async with reading(cluster, {tp(): Position(0)}) as reader:
        assert await next_values(reader, 10) == numbered(10)
        cluster.delete_records(tp(), 10)
        asked = len(cluster.requests("positions"))
        cluster.hold("positions")
        reader.seek(tp(), EARLIEST)
        await cluster.wait_for_requests("positions", asked + 1)
        recreate(cluster, by_name=True)
        await reader._driver.metadata.refresh()
        cluster.release("positions")
        assert await next_values(reader, 30) == NEW
        assert len(cluster.requests("positions")) == asked + 2


@pytest.mark.parametrize("count", [30, 4], ids=["longer", "shorter"])
async def test_a_reader_with_an_end_in_the_former_topic_fails_whatever_reset_says(count: int) -> None:
    """The new log may have other records up to there, or never get so far."""
    cluster = make_cluster()
    async with reading(cluster, until=Position(20), reset=EARLIEST) as reader:
        assert await next_values(reader, 10) == numbered(10)
        recreate(cluster, count)
        with pytest.raises(TopicRecreated):
            await next_values(reader, 1)


# ---- bookmarks --------------------------------------------------------------------------------------------------


async def test_a_bookmark_of_the_former_topic_is_out_of_range() -> None:
    cluster = make_cluster()
    async with reading(cluster) as reader:
        await next_values(reader, 5)
        bookmark = reader.bookmark()
    recreate(cluster)
    async with reading(cluster, start=bookmark) as reader:
        with pytest.raises(TopicRecreated):
            await anext(reader)
    async with reading(cluster, start=bookmark, reset=EARLIEST) as reader:
        assert await next_values(reader, 30) == NEW
    assert await read(cluster, start=bookmark, reset=EARLIEST) == NEW  # up to the end of the new log


async def test_a_bookmark_of_the_former_topic_is_no_end() -> None:
    cluster = make_cluster()
    async with reading(cluster) as reader:
        await next_values(reader, 5)
        bookmark = reader.bookmark()
    recreate(cluster, 3)
    with pytest.raises(TopicRecreated, match="come to 5 of"):
        async with reading(cluster, until=bookmark, reset=EARLIEST) as reader:
            pass


async def test_a_bookmark_is_of_the_former_topic_until_reading_has_begun_in_the_new_one() -> None:
    cluster = make_cluster()
    async with reading(cluster, reset=EARLIEST) as reader:
        assert await next_values(reader, 5) == numbered(5)
        cluster.hold("positions")
        recreate(cluster)
        await cluster.wait_for_held("positions")
        former = reader.bookmark()
        cluster.release("positions")
        await until(lambda: reader._fetcher.cursors[tp()].queue.rows)
        new = reader.bookmark()
    async with reading(cluster, start=former) as reader:
        with pytest.raises(TopicRecreated, match="come to 5 of"):
            await anext(reader)
    async with reading(cluster, start=new) as reader:
        assert await next_values(reader, 30) == NEW


async def test_a_bookmark_without_ids_is_taken_as_it_is() -> None:
    cluster = make_cluster()
    async with reading(cluster, start='{"odradek":1,"at":[["t",-1,0,7,0]]}') as reader:
        assert await next_values(reader, 3) == numbered(3, 7)


# ---- groups -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(("reset", "first"), [("start", 0), (LATEST, 30)])
async def test_a_group_continues_as_reset_says_and_stores_that(reset: PositionSpec, first: int, by_name: bool) -> None:
    cluster = make_cluster()
    async with consuming(cluster, reset=reset) as consumer:
        assert (await anext(consumer.batches())).done()
        assert await consumer.commit() == {tp(): 10}
        recreate(cluster, by_name=by_name)
        await consumer._driver.metadata.refresh()
        await until(lambda: cluster.committed("g") == {tp(): first})
        cluster.append("t", [b"then"])
        batch = await anext(consumer.batches(max_records=31 - first, max_wait=60))
        assert batch.values == [*NEW, b"then"][first:] and batch.done()
    assert cluster.committed("g") == {tp(): 31}


async def test_batches_of_the_former_log_are_delivered_and_never_committed() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        batches = consumer.batches(max_records=4)
        before = await anext(batches)
        assert before.done() and await consumer.commit() == {tp(): 4}
        held = await anext(batches)
        recreate(cluster)
        await consumer._driver.metadata.refresh()
        assert await consumer.commit() == {}, "in the step in which the new table is known, too"
        assert not held.done()
        last = await anext(batches)
        assert (held.values, last.values) == (numbered(4, 4), numbered(2, 8)) and not last.done()
        assert await consumer.commit() == {} and cluster.committed("g") == {}
        first = await anext(batches)
        assert first.values == NEW[:4] and first.done()
        assert await consumer.commit() == {tp(): 4}


async def test_a_group_that_is_to_fail_commits_nothing_of_the_former_log() -> None:
    cluster = make_cluster()
    async with consuming(cluster, reset="fail") as consumer:
        batches = consumer.batches(max_records=4)
        held = await anext(batches)
        recreate(cluster)
        await consumer._driver.metadata.refresh()
        await until(lambda: consumer._progress[tp()].log_gone)
        assert [(await anext(batches)).done() for _ in range(2)] == [False, False]
        with pytest.raises(TopicRecreated):
            await anext(batches)
        assert not held.done() and await consumer.commit() == {}
        consumer.seek(tp(), Position(26))
        batch = await anext(batches)
        assert batch.values == NEW[26:] and batch.done()
    assert cluster.committed("g") == {tp(): 30}


async def test_a_position_beyond_the_end_of_the_log_is_not_committed_any_more() -> None:
    """Brokers without ids: that the log ends before the position is the only sign of another one."""
    cluster = make_cluster()
    async with consuming(cluster, reset="fail") as consumer:
        batches = consumer.batches(max_records=4)
        held = [await anext(batches) for _ in range(3)]
        cluster.fail("fetch", OffsetOutOfRange(1, "OFFSET_OUT_OF_RANGE"))
        cluster.append("t", [b"x"])
        with pytest.raises(OffsetOutOfRange):
            await anext(batches)
        assert [batch.done() for batch in held] == [False] * 3 and await consumer.commit() == {}
    assert cluster.committed("g") == {}


async def test_a_truncated_log_is_committed_as_far_as_it_is_processed_again() -> None:
    """Or the next member would begin behind records that were written since the log was truncated."""
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        batches = consumer.batches(max_records=4)
        first, second = await anext(batches), await anext(batches)
        assert first.done() and await consumer.commit() == {tp(): 4}
        cluster.truncate_log(tp(), 6)
        cluster.append("t", NEW)
        third, new = await anext(batches), await anext(batches)
        assert (third.values, new.values) == (numbered(2, 8), NEW[:4])
        assert third.done() and await consumer.commit() == {}, "the second one is not done"
        assert second.done() and await consumer.commit() == {tp(): 6}
        assert new.done() and await consumer.commit() == {tp(): 10}


async def test_by_record_a_truncated_log_is_committed_as_far_as_it_is_processed_again() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        read = [(await anext(consumer)).position for _ in range(10)]
        assert await consumer.commit() == {tp(): 9}
        cluster.truncate_log(tp(), 6)
        cluster.append("t", NEW)
        read += [(await anext(consumer)).position for _ in range(3)]
        assert read == [*range(10), 6, 7, 8]
        assert await consumer.commit() == {tp(): 8}
    assert cluster.committed("g") == {tp(): 9}


async def test_a_paused_partition_is_reset_before_it_is_resumed_and_its_batches_do_not_count() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        batches = consumer.batches()
        held = await anext(batches)
        consumer.pause()
        recreate(cluster)
        await consumer._driver.metadata.refresh()
        assert not held.done() or not await consumer.commit()
        consumer.resume()
        assert (await anext(batches)).values == NEW
        assert cluster.committed("g") == {tp(): 0}


async def test_records_of_the_former_log_that_a_handler_did_not_finish_do_not_move_the_new_position() -> None:
    cluster = make_cluster()
    seen: list[bytes | None] = []
    async with consuming(cluster) as consumer:

        async def handle(record: object) -> None:
            recreate(cluster)
            await consumer._driver.metadata.refresh()
            raise ValueError("not finished")

        with pytest.raises(ValueError, match="not finished"):
            await consumer.each(handle, parallel=1)
        while len(seen) < 30 or seen[-1] != NEW[-1]:
            seen.append((await anext(consumer)).value)
        assert seen[-30:] == NEW


async def test_a_transaction_takes_no_position_of_the_former_log() -> None:
    cluster = make_cluster()
    async with consuming(cluster) as consumer:
        batch = await anext(consumer.batches())
        recreate(cluster)
        await consumer._driver.metadata.refresh()
        await until(lambda: consumer._progress[tp()].log_gone)
        spans = [(partition, span) for _, partition, span in batch.transaction_spans()]
        with pytest.raises(GroupError, match="made again"):
            await consumer._committer.after(spans)


async def test_a_member_that_is_assigned_positions_while_the_topic_is_made_again_begins_with_its_first_record() -> None:
    cluster = make_cluster()
    cluster.hold("positions")
    async with cluster.connect() as k, anyio.create_task_group() as tasks:
        got: list[bytes | None] = []

        async def consume() -> None:
            async with k.consumer("t", group="g", commit_every=None, start=LATEST, reset=EARLIEST) as consumer:
                async for record in consumer:
                    got.append(record.value)
                    if len(got) == 30:
                        return

        tasks.start_soon(consume)
        await cluster.wait_for_held("positions")
        recreate(cluster, by_name=True)
        await k.driver.metadata.refresh()
        cluster.release("positions")
        await until(lambda: len(got) == 30)
        assert got == NEW


# ---- producers --------------------------------------------------------------------------------------------------


async def test_what_is_in_flight_when_its_topic_is_made_again_is_written_to_the_new_one_in_order() -> None:
    """Confirmed records went with the old topic; the others are in the new one, once, and none is confirmed that is not
    there."""
    cluster, values = make_cluster(0), numbered(20)
    async with cluster.connect() as k, k.producer() as out:
        await out.send("t", b"before")
        cluster.hold("produce")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(out.send_many, "t", values)
            await cluster.wait_for_held("produce")
            recreate(cluster, 0)
            cluster.release("produce")
    assert [stored.value for stored in cluster.records("t")] == values
