"""Positions out of range, retention, resets, and what a topic that was made again does to them."""

from __future__ import annotations

import os
import time
from typing import Any

import anyio
import pytest

import odradek as od

from .behaviour import Stand, behaviour

SETTINGS_OF_TOPICS: Any = {"since": (0, 8, 1), "without": "topics have no settings of their own before 0.8.1"}
SMALL_SEGMENTS = {"segment.bytes": "1048576", "retention.bytes": "2097152"}
"""Old segments of such a topic are deleted as soon as the broker looks; 4.x has no smaller ones."""


async def next_value(reader: od.Reader) -> bytes | None:
    return (await anext(reader)).value


@behaviour("a start behind the end of the log is OffsetOutOfRange")
async def a_start_behind_the_end_is_an_error(stand: Stand) -> None:
    topic = await stand.create_topic()
    await stand.write(topic, [b"1", b"2"])
    where = od.TopicPartition(topic, 0)
    async with stand.connect() as cluster, cluster.reader({where: od.Position(100)}) as reader:
        with pytest.raises(od.OffsetOutOfRange) as caught:
            await anext(reader)
        assert topic in str(caught.value)


@behaviour("a start behind the end goes on where `reset` says: at the first record")
async def a_start_behind_the_end_is_reset_to_the_first_record(stand: Stand) -> None:
    topic = await stand.create_topic()
    await stand.write(topic, [b"1", b"2"])
    where = od.TopicPartition(topic, 0)
    async with stand.connect() as cluster, cluster.reader({where: od.Position(100)}, reset=od.EARLIEST) as reader:
        assert [await next_value(reader), await next_value(reader)] == [b"1", b"2"]


@behaviour("a start behind the end goes on where `reset` says: at what is written next")
async def a_start_behind_the_end_is_reset_to_what_comes_next(stand: Stand) -> None:
    topic = await stand.create_topic()
    await stand.write(topic, [b"1", b"2"])
    where = od.TopicPartition(topic, 0)
    read: list[od.Record] = []

    async def read_one(reader: od.Reader) -> None:
        read.append(await anext(reader))

    async with (
        stand.connect() as cluster,
        cluster.producer() as out,
        cluster.reader({where: od.Position(100)}, reset=od.LATEST) as reader,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(read_one, reader)
        written = 2
        while not read:
            await out.send(topic, b"%d" % written, partition=0)
            written += 1
            await anyio.sleep(0.05)
    assert read[0].position >= 2
    assert read[0].value == b"%d" % read[0].position


async def _leave_the_log(stand: Stand, topic: str) -> int:
    """Write until the broker has deleted records, and return the first position that is left."""
    where = od.TopicPartition(topic, 0)
    async with stand.connect() as cluster, cluster.producer() as out:
        limit = time.monotonic() + 100
        while time.monotonic() < limit:
            for _ in range(10):
                await out.send(topic, os.urandom(100_000), partition=0)
            if (first := (await cluster.positions(topic, od.EARLIEST))[where]) > 10:
                return first
            await anyio.sleep(0.3)
    raise TimeoutError("the broker deletes nothing")


@behaviour(
    "retention passes the position of a paused reader: OffsetOutOfRange, then nothing is read twice",
    **SETTINGS_OF_TOPICS,
    slow=True,
)
async def retention_passes_a_paused_reader(stand: Stand) -> None:
    topic = await stand.create_topic(config=SMALL_SEGMENTS)
    await stand.write(topic, [b"1"])
    async with stand.connect() as cluster, cluster.reader(topic) as reader:
        assert await next_value(reader) == b"1"
        reader.pause()
        await _leave_the_log(stand, topic)
        reader.resume()
        with pytest.raises(od.OffsetOutOfRange):
            while True:  # what was read ahead comes first
                await anext(reader)


@behaviour(
    "retention passes a position: `reset=EARLIEST` goes on at the first record that is left",
    **SETTINGS_OF_TOPICS,
    slow=True,
)
async def retention_resets_a_paused_reader(stand: Stand) -> None:
    topic = await stand.create_topic(config=SMALL_SEGMENTS)
    await stand.write(topic, [b"1"])
    async with stand.connect() as cluster, cluster.reader(topic, reset=od.EARLIEST) as reader:
        positions = [(await anext(reader)).position]
        reader.pause()
        first = await _leave_the_log(stand, topic)
        reader.resume()
        while positions[-1] < first:
            positions.append((await anext(reader)).position)
    assert positions == sorted(set(positions))


@behaviour(
    "records are deleted under a long poll (DeleteRecords): OffsetOutOfRange, and the other partition goes on",
    since=(0, 11),
    without="DeleteRecords came with 0.11",
)
async def records_are_deleted_under_a_long_poll(stand: Stand) -> None:
    topic = await stand.create_topic(2)
    zero = od.TopicPartition(topic, 0)
    errors: list[od.OffsetOutOfRange] = []
    async with stand.connect() as cluster, cluster.producer() as out, cluster.reader(topic) as reader:
        await out.send(topic, b"first", partition=0)
        assert await next_value(reader) == b"first"
        end = 1
        while not errors:  # again, if a poll that was in flight when the reader paused has brought all that is deleted
            reader.pause(zero)
            for n in range(3):  # in long polls of one session
                await out.send(topic, b"other %d" % n, partition=1)
                assert await next_value(reader) == b"other %d" % n
            await out.send_many(topic, [b"lost"] * 5, partition=0)
            end += 5
            (await cluster.admin.delete_records({zero: od.Position(end)})).check()
            reader.resume(zero)
            await out.send(topic, b"last", partition=1)
            values: list[bytes | None] = []
            while b"last" not in values or not (errors or values.count(b"lost") == 5):
                try:
                    values.append(await next_value(reader))
                except od.OffsetOutOfRange as error:
                    errors.append(error)
            assert set(values) <= {b"last", b"lost"}
    assert len(errors) == 1
    assert f"{topic}/0" in str(errors[0])


@behaviour("a time behind the last record is the end of the log, one before the first its start")
async def times_at_the_ends_of_the_log(stand: Stand) -> None:
    topic = await stand.create_topic()
    await stand.write(topic, [b"1", b"2"])
    where = od.TopicPartition(topic, 0)
    async with stand.connect() as cluster:
        assert (await cluster.positions(topic, od.AtTime(1_000_000_000)))[where] == 0
        assert (await cluster.positions(topic, od.LATEST))[where] == 2
        assert (await cluster.positions(topic, od.EARLIEST))[where] == 0


@behaviour("a bookmark goes on with the record behind it, also after the leader moved")
async def a_bookmark_goes_on_behind_it(stand: Stand) -> None:
    topic = await stand.create_topic(replicas=3)
    values = await stand.write(topic, [b"%d" % n for n in range(10)])
    async with stand.connect() as cluster, cluster.reader(topic) as reader:
        read = [await next_value(reader) for _ in range(4)]
        bookmark = reader.bookmark()
    await stand.move_leader(topic)
    end = od.Position(len(values))  # before 2.2 the end that a new leader tells may be an earlier one for a moment
    assert read + await stand.values(topic, start=bookmark, until=end) == values
