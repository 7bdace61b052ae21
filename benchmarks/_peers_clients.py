"""One client of `peers.py`, in a process of its own: does works one after another, and prints what each took, as JSON.

    python benchmarks/_peers_clients.py '[{"client": "aiokafka", "way": "batches", ...}]'

`_peers_settings.py` says how each is set. A clock runs from the first call that returned records, whose own do not
count, or from the first record sent after one that has been acknowledged: neither start-up nor metadata nor the end of
a client is measured. It ends when all records are there, or when the client's time is over. Each library is imported
where it is used, and asyncio where something awaits: a process that reads one record with confluent-kafka takes no
longer than a user's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import monotonic, perf_counter, process_time, time
from typing import TYPE_CHECKING, Any, NamedTuple

from _peers_settings import CLIENTS, Settings

if TYPE_CHECKING:
    import odradek

__all__ = ["Work", "has"]

WARM_UP_S = 5.0
"""Seconds in which a client that is to be idle may still start."""
KEY = 12
"""Bytes of a key, where records have one: the first of the value. There are 2,000 different ones."""
PART = 1000
"""Records after which a loop looks at the time."""


class Work(NamedTuple):
    """What a client has to do.

    Args:
        client: One of the settings.
        way: One of `WAYS`.
        records, size: Records in all, and bytes of each.
        senders: Tasks that send at the same time.
        clients: Consumers in the process; each gets as many records.
        uvloop: Whether that runs an asyncio client.
        limit_s: When to stop, done or not (s); for an idle client, how long to have nothing to do.
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
    limit_s: float = 60.0

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
    """What one client moved of its work, and when it began and ended.

    Attributes:
        next: The bytes at which to call `came` again.
        moved: Bytes so far; `first` of them came before the clock ran.
        latencies: Seconds of each record that was awaited by itself.
    """

    def __init__(self, work: Work) -> None:
        self.size, self.goal, self.limit_s = work.size, work.records * work.size, work.limit_s
        self.next = self.moved = self.first = 0
        self.latencies: list[float] = []
        self.began = self.ended = self.reached = self.started = self.computed = 0.0

    def begin(self) -> None:
        self.reached = time()
        self.began, self.started = perf_counter(), process_time()

    def end(self) -> None:
        self.ended, self.computed = perf_counter(), process_time() - self.started

    @property
    def over(self) -> bool:
        return perf_counter() - self.began > self.limit_s

    def came(self, moved: int) -> bool:
        """Note that so many bytes have come so far. Return whether that is enough, or the time is over."""
        if not self.began:
            self.begin()
            self.first = moved
        self.moved, self.next = moved, min(self.goal, moved + PART * self.size)
        if moved < self.goal and not self.over:
            return False
        self.end()
        return True

    def parts(self, values: Sequence[bytes], records: int = PART) -> Iterator[Sequence[bytes]]:
        """Yield the values, so many at a time, from now on and until the time is over. All that were count as moved."""
        self.begin()
        for start in range(0, len(values), records):
            part = values[start : start + records]
            self.moved += len(part) * self.size
            yield part
            if self.over:
                return


def result(work: Work, clocks: Sequence[Clock]) -> dict[str, float]:
    """Return what it took all clients of the process.

    `records` are all that were moved and `counted` those while the clock ran; `reached` is the time of day of the first
    one, `started` the processor seconds of the process until then, `memory` the most bytes that it had.
    """
    first, last = min(clocks, key=lambda one: one.began), max(clocks, key=lambda one: one.ended)
    times = sorted(first.latencies) or [0.0]
    moved = sum(one.moved for one in clocks)
    measured = {
        "records": moved // work.size,
        "counted": max((moved - first.first) // work.size, 1),
        "seconds": last.ended - first.began,
        "computed": last.computed + last.started - first.started,
        "p50": times[len(times) // 2],
        "p99": times[len(times) * 99 // 100],
        "reached": first.reached,
        "started": first.started,
        "memory": peak_bytes(),
    }
    return {name: round(value, 7) for name, value in measured.items()}


def peak_bytes() -> int:
    """Return the most memory this program had: getrusage would tell of the one that started it, too."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


# ---- what clients share -----------------------------------------------------------------------------------------


async def read_batches(clock: Clock, batches: AsyncIterator[Iterable[bytes]]) -> None:
    """Look at each value of what comes, until that is enough."""
    moved = 0
    async for values in batches:
        moved += sum(map(len, values))
        if clock.came(moved):
            return


async def send_each(work: Work, clock: Clock, send: Callable[[bytes], Awaitable[object]]) -> None:
    for (value,) in clock.parts(work.values(), 1):
        begin = perf_counter()
        await send(value)
        clock.latencies.append(perf_counter() - begin)
    clock.end()


def call_each(work: Work, clock: Clock, send: Callable[[bytes], object]) -> None:
    for (value,) in clock.parts(work.values(), 1):
        begin = perf_counter()
        send(value)
        clock.latencies.append(perf_counter() - begin)
    clock.end()


async def send_concurrently(work: Work, clock: Clock, send: Callable[[bytes], Awaitable[object]]) -> None:
    import asyncio

    values = (value for part in clock.parts(work.values()) for value in part)

    async def sender() -> None:
        for value in values:
            await send(value)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(work.senders):
            tasks.create_task(sender())
    clock.end()


def stay_idle(clock: Clock, poll: Callable[[float], object]) -> None:
    """Have a blocking consumer poll for so many seconds, after it has started."""
    end = monotonic() + WARM_UP_S
    while monotonic() < end:
        poll(0.2)
    clock.begin()
    end += clock.limit_s
    while (left := end - monotonic()) > 0:
        poll(left)
    clock.end()


async def await_idle(clock: Clock, read: Callable[[], Awaitable[object]]) -> None:
    """Have a consumer of asyncio wait for records for so many seconds, after it has started."""
    import asyncio

    reading = asyncio.ensure_future(read())
    await asyncio.wait([reading], timeout=WARM_UP_S)
    clock.begin()
    await asyncio.wait([reading], timeout=clock.limit_s)
    clock.end()
    assert not reading.done(), "it was to be idle"
    reading.cancel()
    await asyncio.wait([reading])


# ---- odradek ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def odradek_reader(work: Work) -> AsyncIterator[odradek.Reader]:
    import odradek

    async with odradek.connect(f"kafka://{work.bootstrap}") as k, k.reader(work.topic) as r:
        yield r


async def odradek_batches(work: Work, clock: Clock) -> None:
    async with odradek_reader(work) as r:
        await read_batches(clock, (batch.values async for batch in r.batches()))


async def odradek_records(work: Work, clock: Clock) -> None:
    moved = 0
    async with odradek_reader(work) as r:
        async for record in r:
            moved += len(record.value or b"")
            if moved >= clock.next and clock.came(moved):
                return


async def odradek_arrow(work: Work, clock: Clock) -> None:
    from pyarrow import compute

    moved = 0
    async with odradek_reader(work) as r:
        async for table in r.arrow():
            moved += compute.sum(compute.binary_length(table["value"])).as_py()
            if clock.came(moved):
                return


async def odradek_idle(work: Work, clock: Clock) -> None:
    async with odradek_reader(work) as r:
        await await_idle(clock, r.batches().__anext__)


@asynccontextmanager
async def odradek_producer(work: Work) -> AsyncIterator[odradek.Producer]:
    import odradek

    async with (
        odradek.connect(f"kafka://{work.bootstrap}") as k,
        k.producer(compression=work.compression) as out,
    ):
        await out.send(work.topic, b"first")
        yield out


async def odradek_send_many(work: Work, clock: Clock) -> None:
    async with odradek_producer(work) as out:
        for values in clock.parts(work.values(), work.records):
            acks = await out.send_many(work.topic, values)
            acks.check()
        clock.end()


async def odradek_put(work: Work, clock: Clock) -> None:
    async with odradek_producer(work) as out:
        for part in clock.parts(work.values()):
            for value in part:
                await out.put(work.topic, value)
        await out.flush()
        clock.end()


async def odradek_put_keys(work: Work, clock: Clock) -> None:
    async with odradek_producer(work) as out:
        for part in clock.parts(work.values()):
            for value in part:
                await out.put(work.topic, value, key=value[:KEY])
        await out.flush()
        clock.end()


async def odradek_send(work: Work, clock: Clock) -> None:
    async with odradek_producer(work) as out:
        await send_each(work, clock, lambda value: out.send(work.topic, value))


async def odradek_send_concurrent(work: Work, clock: Clock) -> None:
    async with odradek_producer(work) as out:
        await send_concurrently(work, clock, lambda value: out.send(work.topic, value))


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


def confluent_batches(work: Work, clock: Clock) -> None:
    moved = 0
    with confluent_consumer(work) as consumer:
        while True:
            if messages := consumer.consume(work.settings.poll, 1.0):
                moved += sum(len(message.value()) for message in messages)
                if clock.came(moved):
                    return


def confluent_records(work: Work, clock: Clock) -> None:
    moved = 0
    with confluent_consumer(work) as consumer:
        while True:
            message = consumer.poll(1.0)
            if message is not None:
                moved += len(message.value())
                if moved >= clock.next and clock.came(moved):
                    return


def confluent_arrow(work: Work, clock: Clock) -> None:
    """Make columns of what `consume` returns: librdkafka has none."""
    import pyarrow
    from pyarrow import compute

    moved = 0
    with confluent_consumer(work) as consumer:
        while True:
            if messages := consumer.consume(work.settings.poll, 1.0):
                columns = {
                    "key": pyarrow.array([message.key() for message in messages], pyarrow.binary()),
                    "value": pyarrow.array([message.value() for message in messages], pyarrow.binary()),
                    "partition": pyarrow.array([message.partition() for message in messages], pyarrow.int32()),
                    "offset": pyarrow.array([message.offset() for message in messages], pyarrow.int64()),
                    "timestamp": pyarrow.array(
                        [message.timestamp()[1] for message in messages], pyarrow.timestamp("ms", "UTC")
                    ),
                }
                table = pyarrow.table(columns)
                moved += compute.sum(compute.binary_length(table["value"])).as_py()
                if clock.came(moved):
                    return


def confluent_idle(work: Work, clock: Clock) -> None:
    with confluent_consumer(work) as consumer:
        stay_idle(clock, consumer.poll)


def confluent_producer_options(work: Work) -> dict[str, Any]:
    chosen = work.settings.single if work.single else work.settings.producer
    return {"bootstrap.servers": work.bootstrap, "compression.type": work.compression} | dict(chosen)


def confluent_producer(work: Work) -> Any:
    from confluent_kafka import Producer

    out = Producer(confluent_producer_options(work))
    out.produce(work.topic, b"first")
    assert out.flush(30) == 0
    return out


def confluent_produce(work: Work, clock: Clock) -> None:
    acknowledged, keyed = 0, work.way == "produce_keys"

    def delivered(error: Any, _: Any) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    out = confluent_producer(work)
    for part in clock.parts(work.values()):
        for value in part:
            while True:
                try:
                    out.produce(work.topic, value, value[:KEY] if keyed else None, on_delivery=delivered)
                    break
                except BufferError:
                    out.poll(0.01)
        out.poll(0)
    out.flush(60)
    clock.end()
    assert acknowledged * work.size == clock.moved


confluent_produce_keys = confluent_produce


def confluent_send(work: Work, clock: Clock) -> None:
    out = confluent_producer(work)

    def send(value: bytes) -> None:
        out.produce(work.topic, value)
        out.flush(30)

    call_each(work, clock, send)


# ---- confluent-kafka, asyncio -----------------------------------------------------------------------------------


@asynccontextmanager
async def confluent_asyncio_consumer(work: Work) -> AsyncIterator[Any]:
    from confluent_kafka.aio import AIOConsumer

    consumer = AIOConsumer(confluent_options(work) | dict(work.settings.consumer))
    await consumer.assign(confluent_partitions(work))
    try:
        yield consumer
    finally:
        await consumer.close()


async def confluent_asyncio_batches(work: Work, clock: Clock) -> None:
    moved = 0
    async with confluent_asyncio_consumer(work) as consumer:
        while True:
            if messages := await consumer.consume(work.settings.poll, 1.0):
                moved += sum(len(message.value()) for message in messages)
                if clock.came(moved):
                    return


async def confluent_asyncio_records(work: Work, clock: Clock) -> None:
    moved = 0
    async with confluent_asyncio_consumer(work) as consumer:
        while True:
            message = await consumer.poll(1.0)
            if message is not None:
                moved += len(message.value())
                if moved >= clock.next and clock.came(moved):
                    return


@asynccontextmanager
async def confluent_asyncio_producer(work: Work) -> AsyncIterator[Any]:
    from confluent_kafka.aio import AIOProducer

    buffer = work.settings.buffer_single if work.single else work.settings.buffer
    out = AIOProducer(confluent_producer_options(work), **buffer)
    try:
        first = await out.produce(work.topic, value=b"first")
        await out.flush()
        await first
        yield out
    finally:
        await out.close()


async def confluent_asyncio_produce(work: Work, clock: Clock) -> None:
    import asyncio

    async with confluent_asyncio_producer(work) as out:
        parts = clock.parts(work.values())
        futures = [await out.produce(work.topic, value=value) for part in parts for value in part]
        await out.flush()
        await asyncio.gather(*futures)
        clock.end()


async def confluent_asyncio_send(work: Work, clock: Clock) -> None:
    run = send_each if work.single else send_concurrently
    async with confluent_asyncio_producer(work) as out:

        async def send(value: bytes) -> None:
            await (await out.produce(work.topic, value=value))

        await run(work, clock, send)


confluent_asyncio_send_concurrent = confluent_asyncio_send


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


async def aiokafka_batches(work: Work, clock: Clock) -> None:
    moved = 0
    async with aiokafka_consumer(work) as consumer:
        while True:
            if several := await consumer.getmany(timeout_ms=1000):
                moved += sum(len(record.value) for records in several.values() for record in records)
                if clock.came(moved):
                    return


async def aiokafka_records(work: Work, clock: Clock) -> None:
    moved = 0
    async with aiokafka_consumer(work) as consumer:
        async for record in consumer:
            moved += len(record.value)
            if moved >= clock.next and clock.came(moved):
                return


async def aiokafka_idle(work: Work, clock: Clock) -> None:
    async with aiokafka_consumer(work) as consumer:
        await await_idle(clock, consumer.getone)


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


async def aiokafka_produce(work: Work, clock: Clock) -> None:
    keyed = work.way == "produce_keys"
    async with aiokafka_producer(work) as out:
        parts = clock.parts(work.values())
        futures = [
            await out.send(work.topic, value, key=value[:KEY] if keyed else None) for part in parts for value in part
        ]
        for future in futures:
            await future
        clock.end()


aiokafka_produce_keys = aiokafka_produce


async def aiokafka_send(work: Work, clock: Clock) -> None:
    async with aiokafka_producer(work) as out:
        await send_each(work, clock, lambda value: out.send_and_wait(work.topic, value))


async def aiokafka_send_concurrent(work: Work, clock: Clock) -> None:
    async with aiokafka_producer(work) as out:
        await send_concurrently(work, clock, lambda value: out.send_and_wait(work.topic, value))


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


def kafka_python_batches(work: Work, clock: Clock) -> None:
    moved = 0
    with kafka_python_consumer(work) as consumer:
        while True:
            if several := consumer.poll(timeout_ms=1000, max_records=work.settings.poll):
                moved += sum(len(record.value) for records in several.values() for record in records)
                if clock.came(moved):
                    return


def kafka_python_records(work: Work, clock: Clock) -> None:
    moved = 0
    with kafka_python_consumer(work) as consumer:
        for record in consumer:
            moved += len(record.value)
            if moved >= clock.next and clock.came(moved):
                return


def kafka_python_idle(work: Work, clock: Clock) -> None:
    with kafka_python_consumer(work) as consumer:
        stay_idle(clock, lambda seconds: consumer.poll(timeout_ms=int(seconds * 1000)))


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


def kafka_python_produce(work: Work, clock: Clock) -> None:
    with kafka_python_producer(work) as out:
        for future in [out.send(work.topic, value) for part in clock.parts(work.values()) for value in part]:
            future.get(60)
        clock.end()


def kafka_python_send(work: Work, clock: Clock) -> None:
    with kafka_python_producer(work) as out:
        call_each(work, clock, lambda value: out.send(work.topic, value).get(30))


# ---- one of them ------------------------------------------------------------------------------------------------


def has(client: str, way: str) -> bool:
    return f"{CLIENTS[client].library}_{way}" in globals()


def do(work: Work, clocks: Sequence[Clock]) -> None:
    """Have a client for each clock do the work at the same time: in one loop, or each blocking one in a thread."""
    once = globals()[f"{work.settings.library}_{work.way}"]
    if once.__code__.co_flags & 0x80:  # inspect.CO_COROUTINE, without the time that inspect takes to import
        do_asyncio(work, clocks, once)
    elif len(clocks) == 1:
        once(work, clocks[0])
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(clocks)) as threads:
            list(threads.map(lambda clock: once(work, clock), clocks))


def do_asyncio(work: Work, clocks: Sequence[Clock], once: Callable[[Work, Clock], Awaitable[None]]) -> None:
    import asyncio

    async def together() -> None:
        await asyncio.gather(*(once(work, clock) for clock in clocks))

    if work.uvloop:
        import uvloop

        uvloop.run(together())
    else:
        asyncio.run(together())


def main() -> None:
    results = []
    for fields in json.loads(sys.argv[1]):
        work = Work(**fields)
        clocks = [Clock(work) for _ in range(work.clients)]
        do(work, clocks)
        results.append(result(work, clocks))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
