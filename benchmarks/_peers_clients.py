"""One client of `peers.py`, in a process of its own: does one work once and prints what it took, as JSON.

    python benchmarks/_peers_clients.py '{"client": "aiokafka", "way": "batches", ...}'

`_peers_settings.py` says how each is set. A clock runs from the first record that has arrived to the last, or from the
first record sent after one that has been acknowledged to the last acknowledgement: neither start-up nor metadata nor
the end of a client is measured. Each library is imported where it is used, and asyncio where something awaits: a
process that reads one record with confluent-kafka takes no longer than a user's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import monotonic, perf_counter, process_time, time
from typing import TYPE_CHECKING, Any, NamedTuple

from _peers_settings import CLIENTS, Settings

if TYPE_CHECKING:
    import odradek

__all__ = ["WAYS", "Work", "has"]

WARM_UP_S = 3.0
"""Seconds in which a client that is to be idle may still start."""


class Work(NamedTuple):
    """What a client has to do.

    Args:
        client: One of the settings.
        way: One of `WAYS`.
        records, size: Records in all, and bytes of each.
        senders: Tasks that send at the same time.
        clients: Consumers in the process; each gets as many records.
        uvloop: Whether that runs an asyncio client.
        idle_s: Seconds to have nothing to do.
    """

    client: str
    way: str
    bootstrap: str
    topic: str
    records: int
    size: int = 100
    compression: Any = "none"
    partitions: int = 2
    senders: int = 1
    clients: int = 1
    uvloop: bool = False
    idle_s: float = 0.0

    @property
    def settings(self) -> Settings:
        return CLIENTS[self.client]

    @property
    def single(self) -> bool:
        return self.way == "send"

    def values(self) -> list[bytes]:
        """Return payloads that compress to about half."""
        kinds = [(f"{number * 2654435761 % 2**64:x}" * (self.size // 8 + 1)).encode() for number in range(7919, 9919)]
        mixed = [(kind[: self.size // 2] + os.urandom(self.size))[: self.size] for kind in kinds]
        return [mixed[number % len(mixed)] for number in range(self.records)]


class Clock:
    """Seconds and processor seconds from the first call of `begin` to the last of `end`."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.reached = 0.0
        self._began: tuple[float, float] | None = None

    def begin(self) -> None:
        if self._began is None:
            self.reached = time()
            self._began = perf_counter(), process_time()

    def end(self) -> None:
        self._ended = perf_counter(), process_time()

    def result(self, records: int) -> dict[str, float]:
        """Return what it took. `reached` is the time of day of the first record, `started` the processor seconds of the
        process until then, `memory` the most bytes that it had."""
        assert self._began is not None
        times = sorted(self.latencies) or [0.0]
        return {
            "records": records,
            "seconds": self._ended[0] - self._began[0],
            "computed": self._ended[1] - self._began[1],
            "p50": times[len(times) // 2],
            "p99": times[len(times) * 99 // 100],
            "reached": self.reached,
            "started": self._began[1],
            "memory": peak_bytes(),
        }


def peak_bytes() -> int:
    """Return the most memory this program had: getrusage would tell of the one that started it, too."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


# ---- what clients share -----------------------------------------------------------------------------------------


async def read_batches(work: Work, clock: Clock, batches: AsyncIterator[Iterable[object]]) -> int:
    """Look at each value of what comes, until all records are there."""
    received = 0
    async for values in batches:
        clock.begin()
        received += sum(1 for value in values if value)
        if received >= work.records:
            break
    clock.end()
    return received


async def send_each(work: Work, clock: Clock, send: Callable[[bytes], Awaitable[object]]) -> int:
    values = work.values()
    clock.begin()
    for value in values:
        begin = perf_counter()
        await send(value)
        clock.latencies.append(perf_counter() - begin)
    clock.end()
    return len(values)


def call_each(work: Work, clock: Clock, send: Callable[[bytes], object]) -> int:
    values = work.values()
    clock.begin()
    for value in values:
        begin = perf_counter()
        send(value)
        clock.latencies.append(perf_counter() - begin)
    clock.end()
    return len(values)


async def send_concurrently(work: Work, clock: Clock, send: Callable[[bytes], Awaitable[object]]) -> int:
    import asyncio

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
    clock.end()
    return sent


def stay_idle(work: Work, clock: Clock, poll: Callable[[float], object]) -> int:
    """Have a blocking consumer poll for so many seconds, after it has started."""
    end = monotonic() + WARM_UP_S
    while monotonic() < end:
        poll(0.2)
    clock.begin()
    end += work.idle_s
    while (left := end - monotonic()) > 0:
        poll(left)
    clock.end()
    return 0


async def await_idle(work: Work, clock: Clock, read: Callable[[], Awaitable[object]]) -> int:
    """Have a consumer of asyncio wait for records for so many seconds, after it has started."""
    import asyncio

    reading = asyncio.ensure_future(read())
    await asyncio.wait([reading], timeout=WARM_UP_S)
    clock.begin()
    await asyncio.wait([reading], timeout=work.idle_s)
    clock.end()
    assert not reading.done(), "it was to be idle"
    reading.cancel()
    await asyncio.wait([reading])
    return 0


# ---- odradek ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def odradek_reader(work: Work) -> AsyncIterator[odradek.Reader]:
    import odradek

    async with odradek.connect(f"kafka://{work.bootstrap}") as k, k.reader(work.topic) as r:
        yield r


async def odradek_batches(work: Work, clock: Clock) -> int:
    async with odradek_reader(work) as r:
        return await read_batches(work, clock, (batch.values async for batch in r.batches()))


async def odradek_records(work: Work, clock: Clock) -> int:
    received = 0
    async with odradek_reader(work) as r:
        async for record in r:
            clock.begin()
            received += bool(record.value)
            if received == work.records:
                break
        clock.end()
    return received


async def odradek_arrow(work: Work, clock: Clock) -> int:
    received = 0
    async with odradek_reader(work) as r:
        async for table in r.arrow():
            clock.begin()
            received += table.num_rows
            if received >= work.records:
                break
        clock.end()
    return received


async def odradek_idle(work: Work, clock: Clock) -> int:
    async with odradek_reader(work) as r:
        return await await_idle(work, clock, r.batches().__anext__)


@asynccontextmanager
async def odradek_producer(work: Work) -> AsyncIterator[odradek.Producer]:
    import odradek

    async with (
        odradek.connect(f"kafka://{work.bootstrap}") as k,
        k.producer(compression=work.compression) as out,
    ):
        await out.send(work.topic, b"first")
        yield out


async def odradek_send_many(work: Work, clock: Clock) -> int:
    values = work.values()
    async with odradek_producer(work) as out:
        clock.begin()
        acks = await out.send_many(work.topic, values)
        acks.check()
        clock.end()
    return len(values)


async def odradek_put(work: Work, clock: Clock) -> int:
    values = work.values()
    async with odradek_producer(work) as out:
        clock.begin()
        for value in values:
            await out.put(work.topic, value)
        await out.flush()
        clock.end()
    return len(values)


async def odradek_send(work: Work, clock: Clock) -> int:
    async with odradek_producer(work) as out:
        return await send_each(work, clock, lambda value: out.send(work.topic, value))


async def odradek_send_concurrent(work: Work, clock: Clock) -> int:
    async with odradek_producer(work) as out:
        return await send_concurrently(work, clock, lambda value: out.send(work.topic, value))


# ---- confluent-kafka, blocking ----------------------------------------------------------------------------------


def confluent_options(work: Work) -> dict[str, Any]:
    return {"bootstrap.servers": work.bootstrap, "group.id": "peers", "enable.auto.commit": False}


def confluent_partitions(work: Work) -> list[Any]:
    from confluent_kafka import TopicPartition

    return [TopicPartition(work.topic, number, 0) for number in range(work.partitions)]


@contextmanager
def confluent_consumer(work: Work) -> Iterator[Any]:
    from confluent_kafka import Consumer

    consumer = Consumer(confluent_options(work) | dict(work.settings.consumer))
    consumer.assign(confluent_partitions(work))
    try:
        yield consumer
    finally:
        consumer.close()


def confluent_batches(work: Work, clock: Clock) -> int:
    received = 0
    with confluent_consumer(work) as consumer:
        while received < work.records:
            if messages := consumer.consume(work.settings.poll, 1.0):
                clock.begin()
                received += sum(1 for message in messages if message.value())
        clock.end()
    return received


def confluent_records(work: Work, clock: Clock) -> int:
    received = 0
    with confluent_consumer(work) as consumer:
        while received < work.records:
            message = consumer.poll(1.0)
            if message is not None:
                clock.begin()
                received += bool(message.value())
        clock.end()
    return received


def confluent_arrow(work: Work, clock: Clock) -> int:
    """Make columns of what `consume` returns: librdkafka has none."""
    import pyarrow

    received = 0
    with confluent_consumer(work) as consumer:
        while received < work.records:
            if messages := consumer.consume(work.settings.poll, 1.0):
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
        clock.end()
    return received


def confluent_idle(work: Work, clock: Clock) -> int:
    with confluent_consumer(work) as consumer:
        return stay_idle(work, clock, consumer.poll)


def confluent_producer_options(work: Work) -> dict[str, Any]:
    chosen = work.settings.single if work.single else work.settings.producer
    return {"bootstrap.servers": work.bootstrap, "compression.type": work.compression} | dict(chosen)


def confluent_producer(work: Work) -> Any:
    from confluent_kafka import Producer

    out = Producer(confluent_producer_options(work))
    out.produce(work.topic, b"first")
    assert out.flush(30) == 0
    return out


def confluent_produce(work: Work, clock: Clock) -> int:
    values, acknowledged = work.values(), 0

    def delivered(error: Any, _: Any) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    out = confluent_producer(work)
    clock.begin()
    for value in values:
        while True:
            try:
                out.produce(work.topic, value, on_delivery=delivered)
                break
            except BufferError:
                out.poll(0.01)
        out.poll(0)
    out.flush(60)
    clock.end()
    return acknowledged


def confluent_send(work: Work, clock: Clock) -> int:
    out = confluent_producer(work)

    def send(value: bytes) -> None:
        out.produce(work.topic, value)
        out.flush(30)

    return call_each(work, clock, send)


# ---- confluent-kafka, asyncio -----------------------------------------------------------------------------------


@asynccontextmanager
async def confluent_asyncio_consumer(work: Work) -> AsyncIterator[Any]:
    from confluent_kafka.aio import AIOConsumer

    consumer = AIOConsumer(confluent_options(work))
    await consumer.assign(confluent_partitions(work))
    try:
        yield consumer
    finally:
        await consumer.close()


async def confluent_asyncio_batches(work: Work, clock: Clock) -> int:
    received = 0
    async with confluent_asyncio_consumer(work) as consumer:
        while received < work.records:
            if messages := await consumer.consume(work.settings.poll, 1.0):
                clock.begin()
                received += sum(1 for message in messages if message.value())
        clock.end()
    return received


async def confluent_asyncio_records(work: Work, clock: Clock) -> int:
    received = 0
    async with confluent_asyncio_consumer(work) as consumer:
        while received < work.records:
            message = await consumer.poll(1.0)
            if message is not None:
                clock.begin()
                received += bool(message.value())
        clock.end()
    return received


@asynccontextmanager
async def confluent_asyncio_producer(work: Work) -> AsyncIterator[Any]:
    from confluent_kafka.aio import AIOProducer

    batch = 1 if work.single else work.settings.poll
    out = AIOProducer(confluent_producer_options(work), batch_size=batch, buffer_timeout=0.005)
    try:
        first = await out.produce(work.topic, value=b"first")
        await out.flush()
        await first
        yield out
    finally:
        await out.close()


async def confluent_asyncio_produce(work: Work, clock: Clock) -> int:
    import asyncio

    values = work.values()
    async with confluent_asyncio_producer(work) as out:
        clock.begin()
        futures = [await out.produce(work.topic, value=value) for value in values]
        await out.flush()
        await asyncio.gather(*futures)
        clock.end()
    return len(values)


async def confluent_asyncio_send(work: Work, clock: Clock) -> int:
    async with confluent_asyncio_producer(work) as out:

        async def send(value: bytes) -> None:
            await (await out.produce(work.topic, value=value))

        return await send_each(work, clock, send)


async def confluent_asyncio_send_concurrent(work: Work, clock: Clock) -> int:
    async with confluent_asyncio_producer(work) as out:

        async def send(value: bytes) -> None:
            await (await out.produce(work.topic, value=value))

        return await send_concurrently(work, clock, send)


# ---- aiokafka ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def aiokafka_consumer(work: Work) -> AsyncIterator[Any]:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        work.topic,
        bootstrap_servers=work.bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **work.settings.consumer,
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def aiokafka_batches(work: Work, clock: Clock) -> int:
    received = 0
    async with aiokafka_consumer(work) as consumer:
        while received < work.records:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                clock.begin()
                received += sum(1 for record in records if record.value)
        clock.end()
    return received


async def aiokafka_records(work: Work, clock: Clock) -> int:
    received = 0
    async with aiokafka_consumer(work) as consumer:
        async for record in consumer:
            clock.begin()
            received += bool(record.value)
            if received == work.records:
                break
        clock.end()
    return received


async def aiokafka_idle(work: Work, clock: Clock) -> int:
    async with aiokafka_consumer(work) as consumer:
        return await await_idle(work, clock, consumer.getone)


@asynccontextmanager
async def aiokafka_producer(work: Work) -> AsyncIterator[Any]:
    from aiokafka import AIOKafkaProducer

    compression = None if work.compression == "none" else work.compression
    chosen = work.settings.single if work.single else work.settings.producer
    out = AIOKafkaProducer(bootstrap_servers=work.bootstrap, compression_type=compression, **chosen)
    await out.start()
    try:
        await out.send_and_wait(work.topic, b"first")
        yield out
    finally:
        await out.stop()


async def aiokafka_produce(work: Work, clock: Clock) -> int:
    values = work.values()
    async with aiokafka_producer(work) as out:
        clock.begin()
        for future in [await out.send(work.topic, value) for value in values]:
            await future
        clock.end()
    return len(values)


async def aiokafka_send(work: Work, clock: Clock) -> int:
    async with aiokafka_producer(work) as out:
        return await send_each(work, clock, lambda value: out.send_and_wait(work.topic, value))


async def aiokafka_send_concurrent(work: Work, clock: Clock) -> int:
    async with aiokafka_producer(work) as out:
        return await send_concurrently(work, clock, lambda value: out.send_and_wait(work.topic, value))


# ---- kafka-python -----------------------------------------------------------------------------------------------


@contextmanager
def kafka_python_consumer(work: Work) -> Iterator[Any]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=work.bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **work.settings.consumer,
    )
    consumer.assign([TopicPartition(work.topic, number) for number in range(work.partitions)])
    try:
        yield consumer
    finally:
        consumer.close()


def kafka_python_batches(work: Work, clock: Clock) -> int:
    received = 0
    with kafka_python_consumer(work) as consumer:
        while received < work.records:
            for records in consumer.poll(timeout_ms=1000, max_records=work.settings.poll).values():
                clock.begin()
                received += sum(1 for record in records if record.value)
        clock.end()
    return received


def kafka_python_records(work: Work, clock: Clock) -> int:
    received = 0
    with kafka_python_consumer(work) as consumer:
        for record in consumer:
            clock.begin()
            received += bool(record.value)
            if received == work.records:
                break
        clock.end()
    return received


def kafka_python_idle(work: Work, clock: Clock) -> int:
    with kafka_python_consumer(work) as consumer:
        return stay_idle(work, clock, lambda seconds: consumer.poll(timeout_ms=int(seconds * 1000)))


@contextmanager
def kafka_python_producer(work: Work) -> Iterator[Any]:
    from kafka import KafkaProducer

    compression = None if work.compression == "none" else work.compression
    chosen = work.settings.single if work.single else work.settings.producer
    out = KafkaProducer(bootstrap_servers=work.bootstrap, compression_type=compression, **chosen)
    try:
        out.send(work.topic, b"first").get(30)
        yield out
    finally:
        out.close()


def kafka_python_produce(work: Work, clock: Clock) -> int:
    values = work.values()
    with kafka_python_producer(work) as out:
        clock.begin()
        for future in [out.send(work.topic, value) for value in values]:
            future.get(60)
        clock.end()
    return len(values)


def kafka_python_send(work: Work, clock: Clock) -> int:
    with kafka_python_producer(work) as out:
        return call_each(work, clock, lambda value: out.send(work.topic, value).get(30))


# ---- one of them ------------------------------------------------------------------------------------------------

WAYS = ("batches", "records", "arrow", "idle", "send_many", "put", "produce", "send", "send_concurrent")


def has(client: str, way: str) -> bool:
    return f"{CLIENTS[client].library}_{way}" in globals()


def several(work: Work, clock: Clock, once: Callable[[Work, Clock], Any]) -> int:
    """Run as many clients at the same time: in one loop, or each blocking one in a thread."""
    import asyncio

    async def together() -> list[int]:
        if asyncio.iscoroutinefunction(once):
            return list(await asyncio.gather(*(once(work, clock) for _ in range(work.clients))))
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(work.clients) as threads:
            return [int(received) for received in threads.map(lambda _: once(work, clock), range(work.clients))]

    return sum(asyncio.run(together()))


def do(work: Work, clock: Clock) -> int:
    once = globals()[f"{work.settings.library}_{work.way}"]
    if work.clients > 1:
        return several(work, clock, once)
    if not once.__code__.co_flags & 0x80:  # inspect.CO_COROUTINE, without the time that inspect takes to import
        return int(once(work, clock))
    if work.uvloop:
        import uvloop

        return int(uvloop.run(once(work, clock)))
    import asyncio

    return int(asyncio.run(once(work, clock)))


def main() -> None:
    work, clock = Work(**json.loads(sys.argv[1])), Clock()
    done = do(work, clock)
    assert done >= work.records, f"{done} of {work.records} records"
    print(json.dumps(clock.result(done)))


if __name__ == "__main__":
    main()
