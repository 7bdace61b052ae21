"""What brokers refuse, and what a producer makes of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import odradek as od

from .behaviour import Stand, behaviour
from .positions import SETTINGS_OF_TOPICS


@behaviour("the ack of each record has its position, whatever shares its batch")
async def acks_have_positions(stand: Stand) -> None:
    topic = await stand.create_topic()
    values = [b"%d" % n for n in range(50)]
    async with stand.producer(latency=0.05) as out:
        acks = await asyncio.gather(*(out.send(topic, value, partition=0) for value in values))
    stored = await stand.values(topic)
    assert [stored[ack.position or 0] for ack in acks] == values
    assert sorted(ack.position or 0 for ack in acks) == list(range(50))


@behaviour("with acks=1 as with acks=all; with acks=0 there is no position, and the record arrives")
async def each_kind_of_acknowledgement(stand: Stand) -> None:
    topic = await stand.create_topic()
    async with stand.producer(acks="all") as out:
        assert (await out.send(topic, b"all", partition=0)).position == 0
    async with stand.producer(acks=1) as out:
        assert (await out.send(topic, b"1", partition=0)).position == 1
    async with stand.producer(acks=0) as out:
        ack = await out.send(topic, b"0", partition=0)
        assert (ack.position, ack.confirmed) == (None, False)
        # Old brokers may drop a request whose connection is closed right behind it.
        while len(values := await stand.values(topic)) < 3:  # noqa: ASYNC110 - nothing tells when it is written
            await asyncio.sleep(0.05)
    assert values == [b"all", b"1", b"0"]


@behaviour(
    "a record that the topic finds too large is refused alone, with the limit; the others are written",
    **SETTINGS_OF_TOPICS,
)
async def a_record_that_is_too_large(stand: Stand) -> None:
    topic = await stand.create_topic(config={"max.message.bytes": "5000"})
    async with stand.producer(latency=0.05) as out:
        sends = [out.send(topic, value, partition=0) for value in (b"a" * 1000, b"b" * 20_000, b"c" * 1000)]
        first, large, last = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(first, od.Ack)
    assert isinstance(last, od.Ack)
    assert isinstance(large, od.Rejected)
    assert "MESSAGE_TOO_LARGE" in str(large) or "max.message.bytes" in str(large)
    assert {value[:1] for value in await stand.values(topic) if value} == {b"a", b"c"}


@behaviour(
    "a record without a key for a compacted topic is refused, and says why; records with keys are written",
    since=(0, 9),
    without="brokers before 0.9 have no error for it: they close the connection, or take the record",
)
async def a_record_without_a_key_for_a_compacted_topic(stand: Stand) -> None:
    topic = await stand.create_topic(config={"cleanup.policy": "compact"})
    async with stand.producer(deliver_within=5.0) as out:
        await out.send(topic, b"1", key=b"k", partition=0)
        with pytest.raises((od.Rejected, od.NotWritten)):
            await out.send(topic, b"2", partition=0)
        await out.send(topic, b"3", key=b"k", partition=0)
    assert [value for value in await stand.values(topic) if value != b"1"] == [b"3"]


@behaviour(
    "a time that the topic does not allow is refused; from 2.4 on the other records of its batch are written",
    since=(0, 10),
    without="records have times from 0.10 on",
)
async def a_time_that_the_topic_does_not_allow(stand: Stand) -> None:
    limit = "message.timestamp.before.max.ms" if stand.has(4) else "message.timestamp.difference.max.ms"
    topic = await stand.create_topic(config={limit: "3600000"})
    now = int(time.time() * 1000)
    async with stand.producer(latency=0.05, deliver_within=10.0) as out:
        if not stand.has(2, 4):  # such a broker refuses the batch, and does not say which record it means
            with pytest.raises(od.Rejected, match="INVALID_TIMESTAMP"):
                await out.send(topic, b"long ago", partition=0, timestamp=now - 86_400_000)
            await out.send(topic, b"now", partition=0, timestamp=now)
        else:
            sends = [
                out.send(topic, b"now", partition=0, timestamp=now),
                out.send(topic, b"long ago", partition=0, timestamp=now - 86_400_000),
            ]
            good, bad = await asyncio.gather(*sends, return_exceptions=True)
            assert isinstance(good, od.Ack)
            assert isinstance(bad, od.Rejected)
    assert await stand.values(topic) == [b"now"]


@behaviour(
    "too few replicas in sync: NotWritten names the error, and the record is written when they are back",
    since=(0, 9),
    without="min.insync.replicas is a setting of topics from 0.8.2 on, and their error is retried from 0.9 on",
    slow=True,
)
async def too_few_replicas_in_sync(stand: Stand) -> None:
    topic = await stand.create_topic(replicas=3, config={"min.insync.replicas": "3"})
    await stand.write(topic, [b"first"])
    follower = (await stand.followers(topic))[0]
    await stand.run(follower.kill)
    async with stand.producer(deliver_within=8.0) as out:
        with pytest.raises((od.NotWritten, od.OutcomeUnknown), match="NOT_ENOUGH_REPLICAS"):
            await out.send(topic, b"second", partition=0)
    await stand.run(follower.start)
    await stand.write(topic, [b"third"], deliver_within=60.0)
    values = await stand.values(topic)
    assert (values[0], values[-1]) == (b"first", b"third")


@behaviour("every compression that the release has, in one log, is read in order")
async def every_compression(stand: Stand) -> None:
    topic = await stand.create_topic()
    since = {"none": (0,), "gzip": (0,), "snappy": (0,), "lz4": (0, 8, 2), "zstd": (2, 1)}
    expected: list[bytes] = []
    for compression, release in since.items():
        if stand.number >= release:
            async with stand.producer(compression=compression) as out:
                values = [b"%s %d" % (compression.encode(), n) for n in range(100)]
                (await out.send_many(topic, values, partition=0)).check()
                expected += values
    assert await stand.values(topic) == expected


@behaviour(
    "a compression that the release does not have is refused before anything is sent",
    before=(2, 1),
    without="2.1 and later have all of them",
)
async def a_compression_of_a_later_release(stand: Stand) -> None:
    async with stand.connect() as cluster:
        with pytest.raises(od.ConfigError, match="zstd"):
            cluster.producer(compression="zstd")


@behaviour("a record larger than a fetch is read")
async def a_record_larger_than_a_fetch(stand: Stand) -> None:
    topic = await stand.create_topic()
    large = bytes(range(256)) * 2000
    values = await stand.write(topic, [b"before", large, b"after"])
    assert await stand.values(topic, tuning=od.Tuning(fetch_bytes=od.KiB * 32)) == values


@behaviour("times, headers and null values survive; what the release does not have is refused")
async def shapes_of_records(stand: Stand) -> None:
    topic = await stand.create_topic()
    now = int(time.time() * 1000)
    async with stand.producer() as out:
        await out.send(topic, b"plain", partition=0)
        await out.send(topic, None, key=b"k", partition=0)
        newer: list[tuple[tuple[int, ...], dict[str, Any]]] = [
            ((0, 10), {"timestamp": now}),
            ((0, 11), {"headers": [("h", b"1"), ("h", None)]}),
        ]
        for since, options in newer:
            if stand.number >= since:
                await out.send(topic, b"v", partition=0, **options)
            else:
                with pytest.raises(od.Unsupported):
                    await out.send(topic, b"v", partition=0, **options)
    stored = await stand.stored(topic)
    assert (stored[1].key, stored[1].value) == (b"k", None)
    if stand.has(0, 10):
        assert stored[2].timestamp == now
    if stand.has(0, 11):
        assert list(stored[3].headers) == [("h", b"1"), ("h", None)]


@behaviour(
    "a topic in an older format of records is written and read",
    since=(0, 10),
    before=(4,),
    without="only one format before 0.10; topics of 4.0 and later have the newest alone",
)
async def an_older_format_of_records(stand: Stand) -> None:
    older = "0.9.0" if not stand.has(0, 11) else "0.10.0"
    topic = await stand.create_topic(config={"message.format.version": older})
    values = [b"%d" % n for n in range(50)]
    for compression in ("none", "gzip"):
        async with stand.producer(compression=compression, acks=1) as out:
            (await out.send_many(topic, values, partition=0)).check()
    assert await stand.values(topic) == values * 2
