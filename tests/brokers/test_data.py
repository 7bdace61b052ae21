"""Records out and back in, on real brokers of each generation of the protocol, and to and from other clients."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterable
from typing import Any

import anyio
import pytest

import odradek as od
from odradek.client.options import Compression
from odradek.testing import KafkaBroker
from odradek.types import TimestampType

from ..ended_transactions import transactions_ended
from . import foreign
from .conftest import PARTITIONS
from .table import Ran

pytestmark = [pytest.mark.anyio, pytest.mark.brokers, pytest.mark.timeout(300)]

Shape = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int | None]
"""Key, value, headers and timestamp."""

NOW_MS = int(time.time() * 1000)
KEYS: tuple[bytes | None, ...] = (None, b"", b"key", bytes(range(256)))
VALUES: tuple[bytes | None, ...] = (b"", b"value", bytes(range(256)) * 40, "\u00e9\u4e2d".encode())
HEADERS: tuple[tuple[tuple[str, bytes | None], ...], ...] = ((), (("a", b"1"), ("a", None), ("\u00e9", b"")))


def release(kafka: KafkaBroker) -> tuple[int, ...]:
    return tuple(map(int, kafka.version.split(".")))


def has(kafka: KafkaBroker, since: tuple[int, ...]) -> bool:
    return release(kafka) >= since


def shapes(kafka: KafkaBroker) -> list[Shape]:
    """Every combination of key, value, headers and timestamp that the release can store."""
    headers = HEADERS if has(kafka, (0, 11)) else HEADERS[:1]
    times = (None, NOW_MS - 1000) if has(kafka, (0, 10)) else (None,)
    plain = [(k, v, h, t) for k in KEYS for v in VALUES for h in headers for t in times]
    tombstones = [(k, None, h, t) for k in KEYS if k is not None for h in headers for t in times]
    return [*plain, *tombstones]


def compressions_of(kafka: KafkaBroker) -> list[Compression]:
    since: dict[Compression, tuple[int, ...]] = {
        "none": (0,),
        "gzip": (0,),
        "snappy": (0,),
        "lz4": (0, 8, 2),
        "zstd": (2, 1),
    }
    return [compression for compression, release in since.items() if has(kafka, release)]


def connect(kafka: KafkaBroker) -> od.Cluster:
    return od.connect(f"kafka://{kafka.bootstrap}")


async def send(cluster: od.Cluster, topic: str, records: Iterable[Shape], **options: Any) -> od.Acks:
    """Send everything to partition 0."""
    rows = [od.ProducerRecord(value, key, headers, timestamp) for key, value, headers, timestamp in records]
    producer: od.Producer = cluster.producer(**options)
    async with producer as out:
        acks = await out.send_many(topic, rows, partition=0)
    return acks.check()


async def read_all(cluster: od.Cluster, topic: str, **options: Any) -> list[od.Record]:
    async with cluster.reader(topic, until=od.LATEST, **options) as reader:
        return [record async for record in reader]


def as_shape(record: od.Record, sent: Shape, kafka: KafkaBroker) -> Shape:
    """The record with a timestamp that the client chose left out."""
    timestamp = record.timestamp if sent[3] is not None else None
    if sent[3] is None and has(kafka, (0, 10)):
        assert record.timestamp is not None and abs(record.timestamp - NOW_MS) < 86_400_000
    return record.key, record.value, tuple(record.headers), timestamp


async def test_every_shape_of_a_record_survives_with_every_compression(
    kafka: KafkaBroker, topic: str, ran: Ran
) -> None:
    wanted = shapes(kafka)
    async with connect(kafka) as cluster:
        for compression in compressions_of(kafka):
            acks = await send(cluster, topic, wanted, compression=compression)
            assert acks.written == len(wanted)
        records = await read_all(cluster, topic)
        expected = wanted * len(compressions_of(kafka))
        assert [as_shape(r, s, kafka) for r, s in zip(records, expected, strict=True)] == expected
        assert [record.position for record in records] == list(range(len(expected)))
    ran("compression", *compressions_of(kafka))
    ran("records", "keys, values")
    if has(kafka, (0, 10)):
        ran("records", "times")
    if has(kafka, (0, 11)):
        ran("records", "headers")


async def test_the_four_verbs_write(kafka: KafkaBroker, topic: str) -> None:
    async with connect(kafka) as cluster:
        async with cluster.producer() as out:
            ack = await out.send(topic, b"sent", key=b"k")
            assert (ack.position, ack.confirmed, ack.repeated) == (0, True, False)
            await out.put(topic, b"put", partition=ack.partition)
            assert out.try_put(topic, b"tried", partition=ack.partition)
            acks = await out.send_many(topic, [b"many", (b"k", b"pair")], partition=ack.partition)
            assert acks.check().written == 2
        values = [r.value for r in await read_all(cluster, topic) if r.partition == ack.partition]
        assert values == [b"sent", b"put", b"tried", b"many", b"pair"]


async def test_a_batch_that_was_read_is_written_as_it_was(kafka: KafkaBroker, topic: str) -> None:
    wanted, target = shapes(kafka), f"{topic}-copy"
    async with connect(kafka) as cluster:
        await send(cluster, topic, wanted)
        async with cluster.producer() as out, cluster.reader(topic, until=od.LATEST) as reader:
            written = [(await out.send_many(target, b, partition=0)).check().written async for b in reader.batches()]
        before, copied = await read_all(cluster, topic), await read_all(cluster, target)
        assert sum(written) == len(copied) == len(wanted)
        assert [(r.key, r.value, r.headers, r.timestamp) for r in copied] == [
            (r.key, r.value, r.headers, r.timestamp) for r in before
        ]


async def test_large_batches_are_passed_on_without_being_decoded(kafka: KafkaBroker, topic: str) -> None:
    noise, has_batches = random.Random(7).randbytes, has(kafka, (0, 11))
    headers, at = HEADERS[has_batches], NOW_MS if has_batches else None
    large: list[Shape] = [(b"key", noise(20_000), headers, at) for _ in range(3)]
    async with connect(kafka) as cluster:
        for compression in compressions_of(kafka):
            source, target = f"{topic}-{compression}", f"{topic}-{compression}-copy"
            for rows in (large, shapes(kafka)[:5], large):
                await send(cluster, source, rows, compression=compression)
            ids = [None, target] if has_batches else [None]
            for transactional_id in ids:
                await pass_on(cluster, source, target, compression, transactional_id)
            before = await encoded_parts(cluster, source, compression)
            copied = await encoded_parts(cluster, target, compression)
            read = await read_all(cluster, target)
            assert len(before) == 2 * has_batches
            assert [part[61:] for part in copied] == [part[61:] for part in before] * len(ids)
            wanted = [(r.key, r.value, r.headers, r.timestamp) for r in await read_all(cluster, source)] * len(ids)
            assert [(r.key, r.value, r.headers, r.timestamp) for r in read] == wanted


async def pass_on(
    cluster: od.Cluster, source: str, target: str, compression: Any, transactional_id: str | None
) -> None:
    """Send what was read to partition 0, in a transaction or not."""
    options: dict[str, Any] = {} if transactional_id is None else {"transactional_id": transactional_id}
    async with (
        cluster.producer(compression=compression, **options) as out,
        cluster.reader(source, until=od.LATEST, keep_encoded=compression) as reader,
        contextlib.nullcontext() if transactional_id is None else out.transaction(),
    ):
        async for batch in reader.batches():
            (await out.send_many(target, batch, partition=0)).check()


async def encoded_parts(cluster: od.Cluster, topic: str, compression: Any) -> list[bytes]:
    """Return the batches that readers may leave encoded."""
    async with cluster.reader(topic, until=od.LATEST, keep_encoded=compression) as reader:
        batches = [batch async for batch in reader.batches()]
    return [part.encoded.data for batch in batches for part in batch.columns.parts if part.encoded is not None]


def topic_configs(kafka: KafkaBroker) -> list[dict[str, str]]:
    """Configurations of topics whose records brokers change as they append them: their times, or their format."""
    times = [{"message.timestamp.type": "LogAppendTime"}] if has(kafka, (0, 10, 1)) else []
    converted = [{"message.format.version": "0.10.0"}] if has(kafka, (0, 11)) and not has(kafka, (3,)) else []
    return [{}, *times, *converted]


async def test_every_acknowledgement_names_the_positions_of_its_records(kafka: KafkaBroker, topic: str) -> None:
    async with connect(kafka) as cluster:
        for number, config in enumerate(topic_configs(kafka)):
            name, converted = f"{topic}{number}", "message.format.version" in config
            if config:
                (await cluster.admin.create_topics(name, partitions=1, replicas=1, config=config)).check()
            named: dict[int, bytes] = {}
            for compression in set(compressions_of(kafka)) - ({"zstd"} if converted else set()):
                async with cluster.producer(compression=compression, latency=0.1) as out:
                    values = [b"%s %d" % (compression.encode(), n) for n in range(10)]
                    sends = [out.send(name, value, partition=0) for value in values[:5]]
                    sent, many = await asyncio.gather(
                        asyncio.gather(*sends), out.send_many(name, values[5:], partition=0)
                    )
                assert len(many.acks) == 1
                begin = many.acks[0].position
                assert begin is not None
                positions = [*(ack.position for ack in sent), *range(begin, begin + 5)]
                named |= {int(at): value for at, value in zip(positions, values, strict=True) if at is not None}
            assert {record.position: record.value for record in await read_all(cluster, name)} == named


async def test_a_time_in_a_topic_whose_records_have_none_is_never_late(kafka: KafkaBroker, topic: str) -> None:
    """Of a topic in a format before 0.10, brokers know the times of its files."""
    older = {"message.format.version": "0.9.0"} if has(kafka, (0, 10)) and not has(kafka, (3,)) else {}
    kafka.create_topic(topic, config=older)
    start = od.AtTime(time.time() - 3600)
    async with connect(kafka) as cluster:
        await send(cluster, topic, [(None, b"%d" % n, (), None) for n in range(5)])
        async with cluster.reader(topic, start=start, until=od.LATEST) as reader:
            assert [record.value async for record in reader] == [b"%d" % n for n in range(5)]


async def test_headers_are_rejected_by_a_topic_whose_format_has_none(kafka: KafkaBroker, topic: str) -> None:
    if not has(kafka, (0, 11)) or has(kafka, (3,)):
        pytest.skip("without headers, or without older formats")
    kafka.create_topic(topic, config={"message.format.version": "0.10.2"})
    async with connect(kafka) as cluster, cluster.producer(deliver_within=60) as out:
        for value in (b"1", b"2"):
            with pytest.raises(od.Rejected, match=r"UNSUPPORTED_FOR_MESSAGE_FORMAT .* message\.format\.version"):
                await out.send(topic, b"with headers", headers=[("name", b"")])
            await out.send(topic, value)
        assert [record.value async for record in _up_to(cluster, topic, 2)] == [b"1", b"2"]


@pytest.mark.parametrize("acks", ["all", 1, 0])
async def test_records_arrive_with_every_kind_of_acknowledgement(
    kafka: KafkaBroker, topic: str, acks: Any, ran: Ran
) -> None:
    async with connect(kafka) as cluster:
        await send(cluster, topic, [(None, b"first", (), None)])  # so that acks=0 finds its partition
        written = await send(cluster, topic, [(None, b"%d" % n, (), None) for n in range(100)], acks=acks)
        assert written.acks[0].confirmed == (acks != 0)
        with_deadline = [r.value async for r in _up_to(cluster, topic, 101)]
        assert with_deadline == [b"first", *(b"%d" % n for n in range(100))]
    ran("acks", str(acks))


async def _up_to(cluster: od.Cluster, topic: str, count: int) -> Any:
    async with cluster.reader(topic) as reader:
        async for record in reader:
            yield record
            count -= 1
            if not count:
                return


async def test_records_without_a_key_spread_and_keys_stay_together(kafka: KafkaBroker, topic: str) -> None:
    async with connect(kafka) as cluster:
        async with cluster.producer() as out:
            keyed = [await out.send(topic, b"v", key=b"%d" % (n % 4)) for n in range(12)]
        assert [ack.partition for ack in keyed] == [ack.partition for ack in keyed[:4]] * 3


async def test_batches_and_tables_have_the_same_records(kafka: KafkaBroker, topic: str) -> None:
    async with connect(kafka) as cluster:
        await send(cluster, topic, shapes(kafka), compression="gzip")
        records = await read_all(cluster, topic)
        async with cluster.reader(topic, until=od.LATEST) as reader:
            batched = [record async for batch in reader.batches() for record in batch]
        assert batched == records
        async with cluster.reader(topic, until=od.LATEST) as reader:
            rows = [row async for table in reader.arrow() for row in table.to_pylist()]
        assert [(row["key"], row["value"], row["offset"], row["partition"], row["topic"]) for row in rows] == [
            (r.key, r.value, r.position, r.partition.partition, topic) for r in records
        ]
        stamps = [None if row["timestamp"] is None else round(row["timestamp"].timestamp() * 1000) for row in rows]
        assert stamps == [record.timestamp for record in records]


async def test_a_waiting_reader_gets_new_records_at_once(kafka: KafkaBroker, topic: str) -> None:
    async with connect(kafka) as cluster, cluster.producer() as out:
        await out.send(topic, b"first", partition=0)
        async with cluster.reader(topic) as reader:
            assert (await anext(reader)).value == b"first"
            for n in range(3):
                await anyio.sleep(1.2)  # it polls by now, and the broker holds its request back
                begin = time.monotonic()
                await out.send(topic, b"%d" % n, partition=0)
                assert (await anext(reader)).value == b"%d" % n
                assert time.monotonic() - begin < 5.0


async def test_the_time_of_the_broker_is_in_the_ack_and_in_the_records(kafka: KafkaBroker, topic: str) -> None:
    has_times = has(kafka, (0, 10))
    kafka.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"} if has_times else {})
    async with connect(kafka) as cluster:
        async with cluster.producer() as out:
            ack = await out.send(topic, b"v")
        (record,) = await read_all(cluster, topic)
    assert ack.timestamp == record.timestamp
    assert (ack.timestamp is not None) == has_times
    assert record.timestamp_type == (TimestampType.LOG_APPEND_TIME if has_times else None)


async def test_only_the_records_that_a_broker_objects_to_are_refused(kafka: KafkaBroker, topic: str) -> None:
    names_records = has(kafka, (2, 4))
    kafka.create_topic(topic, config={"cleanup.policy": "compact"} if names_records else {})
    rows: list[Any] = [(b"k", b"a"), (None, b"b"), (b"k", b"c"), b"d", (b"k", b"e")]
    async with connect(kafka) as cluster:
        async with cluster.producer() as out:
            acks = await out.send_many(topic, rows, partition=0)
        stored = [record.value for record in await read_all(cluster, topic)]
    refused = [failed.record.value for failed in acks.failed]
    assert refused == ([b"b", b"d"] if names_records else [])
    assert stored == [value for value in (b"a", b"b", b"c", b"d", b"e") if value not in refused]
    assert all(isinstance(failed.error, od.Rejected) for failed in acks.failed)


# ---- positions ----------------------------------------------------------------------------------------------


async def test_reading_begins_and_ends_at_positions_and_bookmarks(kafka: KafkaBroker, topic: str, ran: Ran) -> None:
    async with connect(kafka) as cluster:
        await send(cluster, topic, [(None, b"%d" % n, (), None) for n in range(50)], compression="snappy")
        where = od.TopicPartition(topic, 0)
        async with cluster.reader({where: 7}, until={where: od.Position(12)}) as reader:
            assert [record.value async for record in reader] == [b"7", b"8", b"9", b"10", b"11"]
        async with cluster.reader(topic, until=od.LATEST) as reader:
            for _ in range(20):
                last = await anext(reader)
            mark = reader.bookmark()
        assert last.next_position == 20
        assert [r.position for r in await read_all(cluster, topic, start=mark)] == list(range(20, 50))
    ran("reading", "positions")


async def test_the_first_thing_that_a_client_does_may_be_to_read_partitions(kafka: KafkaBroker, topic: str) -> None:
    """It knows the topic from nothing else, and no position has to be asked for."""
    where = od.TopicPartition(topic, 0)
    async with connect(kafka) as cluster:
        await send(cluster, topic, [(None, b"0", (), None), (None, b"1", (), None)])
    async with connect(kafka) as cluster, cluster.reader({where: od.EARLIEST}) as reader:
        assert (await anext(reader)).value == b"0"
    async with connect(kafka) as cluster, cluster.reader({where: od.Position(1)}) as reader:
        with anyio.fail_after(30):
            assert (await anext(reader)).value == b"1"


async def test_a_time_means_the_first_record_of_that_time_or_later(kafka: KafkaBroker, topic: str, ran: Ran) -> None:
    if not has(kafka, (0, 10, 1)):
        times: list[int | None] = [None] * 3
    else:
        times = [NOW_MS - 3000, NOW_MS - 2000, NOW_MS - 1000]
    async with connect(kafka) as cluster:
        await send(cluster, topic, [(None, b"%d" % n, (), times[n]) for n in range(3)])

        async def first(seconds: float) -> bytes | None:
            async with cluster.reader({od.TopicPartition(topic, 0): od.AtTime(seconds)}, until=od.LATEST) as reader:
                return next(iter([record.value async for record in reader]), None)

        assert await first(0.0) == b"0"
        if times[0] is None:
            assert await first(time.time() - 86400) == b"0"  # the file is not that old: from the beginning
            ran("reading", "times of files")
            return
        assert await first((NOW_MS - 2000) / 1000) == b"1"
        assert await first((NOW_MS - 1999) / 1000) == b"2"
        assert await first((NOW_MS + 10_000) / 1000) is None
    ran("reading", "times")


async def test_a_position_behind_the_log_is_an_error_or_a_reset(kafka: KafkaBroker, topic: str) -> None:
    async with connect(kafka) as cluster:
        await send(cluster, topic, [(None, b"only", (), None)])
        where = od.TopicPartition(topic, 0)
        with pytest.raises(od.OffsetOutOfRange):
            async with cluster.reader({where: 77}) as reader:
                await anext(reader)
        async with cluster.reader({where: 77}, reset=od.EARLIEST) as reader:
            assert (await anext(reader)).value == b"only"


# ---- sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_a_record_larger_than_a_fetch_is_read(kafka: KafkaBroker, topic: str, compression: str) -> None:
    large = bytes(range(256)) * 3000
    tuning = od.Tuning(fetch_bytes=64 * od.KiB)
    async with od.connect(f"kafka://{kafka.bootstrap}", tuning=tuning) as cluster:
        wanted: list[Shape] = [(None, b"small", (), None), (None, large, (), None), (None, b"after", (), None)]
        await send(cluster, topic, wanted, compression=compression)
        records = await read_all(cluster, topic, tuning=tuning)
        assert [record.value for record in records] == [b"small", large, b"after"]


async def test_a_record_larger_than_the_reader_allows_is_an_error_that_says_so(kafka: KafkaBroker, topic: str) -> None:
    async with connect(kafka) as cluster:
        await send(cluster, topic, [(None, bytes(200_000), (), None)])
        with pytest.raises(od.MessageTooLarge, match="max_message_bytes"):
            await read_all(cluster, topic, max_message_bytes=100_000)


async def test_what_the_broker_finds_too_large_is_divided_and_single_records_are_refused(
    kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic, PARTITIONS)  # what a leader was not ready for may be written, and is never divided
    tuning = od.Tuning(batch_bytes=4 * od.MiB, request_bytes=8 * od.MiB)
    async with od.connect(f"kafka://{kafka.bootstrap}", tuning=tuning) as cluster:
        async with cluster.producer(max_message_bytes=8 * od.MiB, tuning=tuning) as out:
            rows = [bytes([n]) * 300_000 for n in range(10)]
            acks = await out.send_many(topic, [*rows[:5], bytes(3_000_000), *rows[5:]], partition=0)
            assert [(len(failed.record.value or b""), type(failed.error)) for failed in acks.failed] == [
                (3_000_000, od.Rejected)
            ], acks.failed[0].error
        assert [record.value for record in await read_all(cluster, topic)] == rows


# ---- other clients ------------------------------------------------------------------------------------------


CLIENTS = {
    "kafka-python": ("none", "gzip", "snappy"),
    "aiokafka": ("none", "gzip", "snappy", "lz4", "zstd"),
    "librdkafka": ("none", "gzip", "snappy", "lz4", "zstd"),
}
"""Other clients, with the compressions that they have here."""
LEVELS: dict[str, Compression] = {"gzip": "gzip:1", "lz4": "lz4:9", "zstd": "zstd:19"}
"""Compressions -> the same at a level of their own."""


def common(kafka: KafkaBroker, client: str) -> list[str]:
    """Compressions that the release and another client have; none if that client does not know the release."""
    if client == "aiokafka" and not has(kafka, (0, 11)):
        return []
    return [compression for compression in compressions_of(kafka) if compression in CLIENTS[client]]


@pytest.mark.parametrize("client", CLIENTS)
async def test_records_of_another_client_are_read(kafka: KafkaBroker, topic: str, client: str) -> None:
    wanted = [(k, v, h if client == "librdkafka" else (), t) for k, v, h, t in shapes(kafka)]
    if client == "kafka-python" and not has(kafka, (0, 8, 1)):
        wanted = [row for row in wanted if row[1] is not None]  # which it refuses to write
    compressions = common(kafka, client) or ["none"]
    kafka.create_topic(topic, PARTITIONS)  # librdkafka can miss that its first question has made it
    foreign.produce(client if common(kafka, client) else "librdkafka", kafka, topic, wanted, compressions)
    expected = wanted * len(compressions)
    async with connect(kafka) as cluster:
        records = await read_all(cluster, topic)
    assert [as_shape(r, s, kafka) for r, s in zip(records, expected, strict=True)] == expected


@pytest.mark.parametrize("client", CLIENTS)
async def test_another_client_reads_the_same_records(kafka: KafkaBroker, topic: str, client: str, ran: Ran) -> None:
    compressions = common(kafka, client) or ["none"]
    async with connect(kafka) as cluster:
        for compression in [*compressions, *(LEVELS[name] for name in compressions if name in LEVELS)]:
            await send(cluster, topic, shapes(kafka), compression=compression)
        records = await read_all(cluster, topic)
    rows = foreign.consume(client if common(kafka, client) else "librdkafka", kafka, topic, len(records))
    assert [(key, value, headers, offset) for key, value, headers, _, offset in rows] == [
        (r.key, r.value, tuple(r.headers), r.position) for r in records
    ]
    if has(kafka, (0, 10)):
        assert [row[3] for row in rows] == [record.timestamp for record in records]
    if common(kafka, client):
        ran("other clients", client)


# ---- transactions -------------------------------------------------------------------------------------------


async def test_committed_records_are_told_from_aborted_and_open_ones(kafka: KafkaBroker, topic: str, ran: Ran) -> None:
    async with connect(kafka) as cluster:
        if not has(kafka, (0, 11)):
            await send(cluster, topic, [(None, b"plain", (), None)])
            assert [r.value for r in await read_all(cluster, topic, isolation="read_committed")] == [b"plain"]
            return
        foreign.write_transactions(kafka, topic)
        everything = [record.value for record in await read_all(cluster, topic)]
        committed = [record.value for record in await read_all(cluster, topic, isolation="read_committed")]
    assert everything == [b"committed", b"aborted", b"plain", b"open"]
    assert committed == [b"committed", b"plain"]
    ran("reading", "read_committed")


async def test_transactions_are_committed_and_aborted_as_a_whole(kafka: KafkaBroker, topic: str, ran: Ran) -> None:
    kafka.create_topic(topic, PARTITIONS)
    async with connect(kafka) as cluster:
        if not has(kafka, (0, 11)):
            with pytest.raises(od.Unsupported, match=r"0\.11"):
                async with cluster.producer(transactional_id=topic):
                    pass
            return
        async with cluster.producer(transactional_id=topic) as out:
            with pytest.raises(KeyError):
                async with out.transaction():
                    await out.send_many(topic, [b"a", b"b"], partition=0)
                    raise KeyError
            async with out.transaction():
                await out.send_many(topic, [b"c", b"d"], partition=0)
        await transactions_ended(cluster, topic)
        committed = [record.value for record in await read_all(cluster, topic, isolation="read_committed")]
        everything = [record.value for record in await read_all(cluster, topic)]
    assert (committed, everything) == ([b"c", b"d"], [b"a", b"b", b"c", b"d"])
    ran("transactions", "committed", "aborted")


# ---- failures -----------------------------------------------------------------------------------------------


async def test_nothing_is_lost_when_the_broker_is_killed_and_restarted(
    kafka: KafkaBroker, topic: str, ran: Ran
) -> None:
    count = 300
    async with connect(kafka) as cluster:
        async with cluster.producer(deliver_within=120, exit_within=120) as out:
            await out.send(topic, b"first", partition=0)
            for n in range(count):
                await out.put(topic, b"%d" % n, partition=0)
                if n == count // 2:
                    await out.flush()
                    kafka.kill()
                if n == count * 2 // 3:
                    kafka.start()
            await out.flush()
            assert not out.failures
        values = [record.value for record in await read_all(cluster, topic)]
    expected = [b"first", *(b"%d" % n for n in range(count))]
    if has(kafka, (0, 11)):
        assert values == expected
    else:  # without idempotence what was in doubt may be there twice
        assert list(dict.fromkeys(values)) == expected
    ran("restart", "nothing lost", *(["nothing twice"] if has(kafka, (0, 11)) else []))
