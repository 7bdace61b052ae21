"""One client of `peers.py`, in a process of its own: does one work once and prints what it took, as JSON.

    python benchmarks/_peers_clients.py '{"client": "aiokafka", "work": "consume_batches", ...}'

Every client has its own defaults, except that all of them wait for all replicas, and gather records for up to 5 ms
where many are under way (0 where a single one is awaited). A clock runs from the first record that has arrived, or from
the first record sent after one that has been acknowledged: neither start-up nor metadata is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka
import pyarrow
from confluent_kafka.aio import AIOConsumer, AIOProducer

import odradek

__all__ = ["LINGER_MS", "WORKS", "Work"]

LINGER_MS = 5
POLL_RECORDS = 1000
"""Records that a client with such an option gets at a time."""


class Work(NamedTuple):
    """What a client has to do: `records` records of `size` bytes of one topic, `senders` of them at the same time."""

    bootstrap: str
    topic: str
    records: int
    size: int
    compression: str
    partitions: int
    senders: int = 1

    def values(self) -> list[bytes]:
        """Return payloads that compress as text does: to about half."""
        kinds = [(f"{number:08x}" * (self.size // 8 + 1)).encode()[: self.size] for number in range(7919, 9919)]
        return [kinds[number % len(kinds)] for number in range(self.records)]


class Clock:
    """Seconds and processor seconds since `begin`; the first call of `begin` counts."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self._began: tuple[float, float] | None = None

    def begin(self) -> None:
        if self._began is None:
            self._began = perf_counter(), process_time()

    def result(self, records: int) -> dict[str, float]:
        assert self._began is not None
        seconds, computed = perf_counter() - self._began[0], process_time() - self._began[1]
        p50 = median(self.latencies) if self.latencies else 0.0
        return {"records": records, "seconds": seconds, "computed": computed, "p50": p50}


# ---- odradek ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def reader(work: Work) -> AsyncIterator[odradek.Reader]:
    async with odradek.connect(f"kafka://{work.bootstrap}") as k, k.reader(work.topic, until=odradek.LATEST) as r:
        yield r


async def odradek_consume_batches(work: Work, clock: Clock) -> int:
    received = 0
    async with reader(work) as r:
        async for batch in r.batches():
            clock.begin()
            received += sum(1 for value in batch.values if value)
    return received


async def odradek_consume_records(work: Work, clock: Clock) -> int:
    received = 0
    async with reader(work) as r:
        async for record in r:
            clock.begin()
            received += bool(record.value)
    return received


async def odradek_consume_arrow(work: Work, clock: Clock) -> int:
    received = 0
    async with reader(work) as r:
        async for table in r.arrow():
            clock.begin()
            received += table.num_rows
    return received


@asynccontextmanager
async def producer(work: Work, linger_ms: int) -> AsyncIterator[odradek.Producer]:
    async with (
        odradek.connect(f"kafka://{work.bootstrap}") as k,
        k.producer(latency=linger_ms / 1000, compression=work.compression) as out,
    ):
        await out.send(work.topic, b"first")
        yield out


async def odradek_produce_many(work: Work, clock: Clock) -> int:
    values = work.values()
    async with producer(work, LINGER_MS) as out:
        clock.begin()
        acks = await out.send_many(work.topic, values)
        acks.check()
    return len(values)


async def odradek_send_one(work: Work, clock: Clock) -> int:
    async with producer(work, 0) as out:
        return await send_each(work, clock, lambda value: out.send(work.topic, value))


async def odradek_send_concurrent(work: Work, clock: Clock) -> int:
    async with producer(work, LINGER_MS) as out:
        return await send_concurrently(work, clock, lambda value: out.send(work.topic, value))


# ---- what asyncio clients share -------------------------------------------------------------------------------


async def send_each(work: Work, clock: Clock, send: Callable[[bytes], Awaitable[object]]) -> int:
    values = work.values()
    clock.begin()
    for value in values:
        begin = perf_counter()
        await send(value)
        clock.latencies.append(perf_counter() - begin)
    return len(values)


async def send_concurrently(work: Work, clock: Clock, send: Callable[[bytes], Awaitable[object]]) -> int:
    values = iter(work.values())
    sent = 0

    async def sender() -> None:
        nonlocal sent
        for value in values:
            await send(value)
            sent += 1

    clock.begin()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(work.senders):
            tasks.create_task(sender())
    return sent


# ---- aiokafka -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def aiokafka_consumer(work: Work) -> AsyncIterator[Any]:
    consumer = aiokafka.AIOKafkaConsumer(
        work.topic, bootstrap_servers=work.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def aiokafka_consume_batches(work: Work, clock: Clock) -> int:
    received = 0
    async with aiokafka_consumer(work) as consumer:
        while received < work.records:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                clock.begin()
                received += sum(1 for record in records if record.value)
    return received


async def aiokafka_consume_records(work: Work, clock: Clock) -> int:
    received = 0
    async with aiokafka_consumer(work) as consumer:
        async for record in consumer:
            clock.begin()
            received += bool(record.value)
            if received == work.records:
                break
    return received


@asynccontextmanager
async def aiokafka_producer(work: Work, linger_ms: int) -> AsyncIterator[Any]:
    compression = None if work.compression == "none" else work.compression
    out = aiokafka.AIOKafkaProducer(
        bootstrap_servers=work.bootstrap, acks="all", linger_ms=linger_ms, compression_type=compression
    )
    await out.start()
    try:
        await out.send_and_wait(work.topic, b"first")
        yield out
    finally:
        await out.stop()


async def aiokafka_produce_many(work: Work, clock: Clock) -> int:
    values = work.values()
    async with aiokafka_producer(work, LINGER_MS) as out:
        clock.begin()
        for future in [await out.send(work.topic, value) for value in values]:
            await future
    return len(values)


async def aiokafka_send_one(work: Work, clock: Clock) -> int:
    async with aiokafka_producer(work, 0) as out:
        return await send_each(work, clock, lambda value: out.send_and_wait(work.topic, value))


async def aiokafka_send_concurrent(work: Work, clock: Clock) -> int:
    async with aiokafka_producer(work, LINGER_MS) as out:
        return await send_concurrently(work, clock, lambda value: out.send_and_wait(work.topic, value))


# ---- confluent-kafka, blocking ----------------------------------------------------------------------------------


def confluent_consumer_options(work: Work) -> dict[str, Any]:
    return {"bootstrap.servers": work.bootstrap, "group.id": "peers", "enable.auto.commit": False}


def confluent_partitions(work: Work) -> list[Any]:
    return [confluent_kafka.TopicPartition(work.topic, number, 0) for number in range(work.partitions)]


def confluent_messages(work: Work, poll: Callable[[Any], list[Any]]) -> Iterator[list[Any]]:
    consumer = confluent_kafka.Consumer(confluent_consumer_options(work))
    consumer.assign(confluent_partitions(work))
    try:
        received = 0
        while received < work.records:
            messages = [message for message in poll(consumer) if message is not None]
            received += len(messages)
            yield messages
    finally:
        consumer.close()


async def confluent_consume_batches(work: Work, clock: Clock) -> int:
    received = 0
    for messages in confluent_messages(work, lambda consumer: consumer.consume(POLL_RECORDS, 1.0)):
        clock.begin()
        received += sum(1 for message in messages if message.value())
    return received


async def confluent_consume_records(work: Work, clock: Clock) -> int:
    received = 0
    for messages in confluent_messages(work, lambda consumer: [consumer.poll(1.0)]):
        clock.begin()
        received += sum(1 for message in messages if message.value())
    return received


async def confluent_consume_arrow(work: Work, clock: Clock) -> int:
    """Make columns of what `consume` returns: librdkafka has none."""
    received = 0
    for messages in confluent_messages(work, lambda consumer: consumer.consume(POLL_RECORDS, 1.0)):
        clock.begin()
        columns = {
            "key": pyarrow.array([message.key() for message in messages], pyarrow.binary()),
            "value": pyarrow.array([message.value() for message in messages], pyarrow.binary()),
            "partition": pyarrow.array([message.partition() for message in messages], pyarrow.int32()),
            "offset": pyarrow.array([message.offset() for message in messages], pyarrow.int64()),
            "timestamp": pyarrow.array(
                [message.timestamp()[1] for message in messages], pyarrow.timestamp("ms", "UTC")
            ),
        }
        received += pyarrow.table(columns).num_rows
    return received


def confluent_producer_options(work: Work, linger_ms: int) -> dict[str, Any]:
    return {
        "bootstrap.servers": work.bootstrap,
        "linger.ms": linger_ms,
        "compression.type": work.compression,
        "queue.buffering.max.messages": 1_000_000,
    }


def confluent_producer(work: Work, linger_ms: int) -> Any:
    out = confluent_kafka.Producer(confluent_producer_options(work, linger_ms))
    out.produce(work.topic, b"first")
    assert out.flush(30) == 0
    return out


async def confluent_produce_many(work: Work, clock: Clock) -> int:
    values, acknowledged = work.values(), 0

    def delivered(error: Any, _: Any) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    out = confluent_producer(work, LINGER_MS)
    clock.begin()
    for value in values:
        while True:
            try:
                out.produce(work.topic, value, on_delivery=delivered)
                break
            except BufferError:
                out.poll(0.1)
        out.poll(0)
    out.flush(60)
    return acknowledged


async def confluent_send_one(work: Work, clock: Clock) -> int:
    out = confluent_producer(work, 0)

    async def send(value: bytes) -> None:
        out.produce(work.topic, value)
        out.flush(30)

    return await send_each(work, clock, send)


# ---- confluent-kafka, asyncio -----------------------------------------------------------------------------------


async def confluent_asyncio_consume(work: Work, clock: Clock, ask: Callable[[Any], Awaitable[list[Any]]]) -> int:
    consumer, received = AIOConsumer(confluent_consumer_options(work)), 0
    await consumer.assign(confluent_partitions(work))
    try:
        while received < work.records:
            messages = [message for message in await ask(consumer) if message is not None]
            clock.begin()
            received += sum(1 for message in messages if message.value())
    finally:
        await consumer.close()
    return received


async def confluent_asyncio_consume_batches(work: Work, clock: Clock) -> int:
    return await confluent_asyncio_consume(work, clock, lambda consumer: consumer.consume(POLL_RECORDS, 1.0))


async def confluent_asyncio_consume_records(work: Work, clock: Clock) -> int:
    async def poll(consumer: Any) -> list[Any]:
        return [await consumer.poll(1.0)]

    return await confluent_asyncio_consume(work, clock, poll)


@asynccontextmanager
async def confluent_asyncio_producer(work: Work, linger_ms: int, batch: int) -> AsyncIterator[Any]:
    out = AIOProducer(confluent_producer_options(work, linger_ms), batch_size=batch, buffer_timeout=LINGER_MS / 1000)
    try:
        first = await out.produce(work.topic, value=b"first")
        await out.flush()
        await first
        yield out
    finally:
        await out.close()


async def confluent_asyncio_produce_many(work: Work, clock: Clock) -> int:
    values = work.values()
    async with confluent_asyncio_producer(work, LINGER_MS, POLL_RECORDS) as out:
        clock.begin()
        futures = [await out.produce(work.topic, value=value) for value in values]
        await out.flush()
        await asyncio.gather(*futures)
    return len(values)


async def confluent_asyncio_send_one(work: Work, clock: Clock) -> int:
    async with confluent_asyncio_producer(work, 0, 1) as out:

        async def send(value: bytes) -> None:
            await (await out.produce(work.topic, value=value))

        return await send_each(work, clock, send)


async def confluent_asyncio_send_concurrent(work: Work, clock: Clock) -> int:
    async with confluent_asyncio_producer(work, LINGER_MS, POLL_RECORDS) as out:

        async def send(value: bytes) -> None:
            await (await out.produce(work.topic, value=value))

        return await send_concurrently(work, clock, send)


# ---- kafka-python -----------------------------------------------------------------------------------------------


def kafka_python_consumer(work: Work) -> Any:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=work.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign([kafka.TopicPartition(work.topic, number) for number in range(work.partitions)])
    return consumer


async def kafka_python_consume_batches(work: Work, clock: Clock) -> int:
    received, consumer = 0, kafka_python_consumer(work)
    while received < work.records:
        for records in consumer.poll(timeout_ms=1000, max_records=POLL_RECORDS).values():
            clock.begin()
            received += sum(1 for record in records if record.value)
    consumer.close()
    return received


async def kafka_python_consume_records(work: Work, clock: Clock) -> int:
    received, consumer = 0, kafka_python_consumer(work)
    for record in consumer:
        clock.begin()
        received += bool(record.value)
        if received == work.records:
            break
    consumer.close()
    return received


def kafka_python_producer(work: Work, linger_ms: int) -> Any:
    compression = None if work.compression == "none" else work.compression
    out = kafka.KafkaProducer(
        bootstrap_servers=work.bootstrap, acks="all", linger_ms=linger_ms, compression_type=compression
    )
    out.send(work.topic, b"first").get(30)
    return out


async def kafka_python_produce_many(work: Work, clock: Clock) -> int:
    values, out = work.values(), kafka_python_producer(work, LINGER_MS)
    clock.begin()
    for future in [out.send(work.topic, value) for value in values]:
        future.get(60)
    acknowledged = len(values)
    out.close()
    return acknowledged


async def kafka_python_send_one(work: Work, clock: Clock) -> int:
    out = kafka_python_producer(work, 0)

    async def send(value: bytes) -> None:
        out.send(work.topic, value).get(30)

    sent = await send_each(work, clock, send)
    out.close()
    return sent


# ---- one of them --------------------------------------------------------------------------------------------------

WORKS = {
    f"{client} {work}": function
    for client in ("odradek", "confluent", "confluent_asyncio", "aiokafka", "kafka_python")
    for work in (
        "consume_batches",
        "consume_records",
        "consume_arrow",
        "produce_many",
        "send_one",
        "send_concurrent",
    )
    if (function := globals().get(f"{client}_{work}"))
}


def main() -> None:
    asked = json.loads(sys.argv[1])
    work, clock = Work(**asked["work"]), Clock()
    done = asyncio.run(WORKS[asked["name"]](work, clock))
    assert done >= work.records, f"{done} of {work.records} records"
    print(json.dumps(clock.result(done)))


if __name__ == "__main__":
    main()
