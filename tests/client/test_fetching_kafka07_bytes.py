"""Byte logs on their way in: compressed messages opened in threads, and what they grow to; idle partitions polled."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from odradek.client.consumer import broker_fetcher
from odradek.client.consumer.consumer import Consumer
from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.interfaces import DecoderOptions, LogDecoder, PartitionFetch
from odradek.engine.columns import ROW_BYTES
from odradek.errors import CorruptMessage
from odradek.types import LATEST, Broker, Columns, KiB, MiB, Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set

from ..payloads import payload
from .kafka07_bytes import Kafka07LogBroker, Kafka07LogDriver, tp
from .one_member import numbered
from .reading import held, values_of

pytestmark = pytest.mark.anyio

QUICK = Backoff(first_s=0.0001, max_s=0.001)
LONG_S = 20.0


class Gate:
    """Holds threads up in `open`, and knows who is in there."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()
        self.inside: list[TopicPartition] = []
        self.threads: set[int] = set()
        self.opened: list[int] = []

    def shut(self) -> None:
        self._free.clear()

    def open(self) -> None:
        self._free.set()

    def go_through(self, partition: TopicPartition, size: int) -> None:
        self.inside.append(partition)
        self.threads.add(threading.get_ident())
        assert self._free.wait(LONG_S)
        self.opened.append(size)
        self.inside.remove(partition)


class GatedDecoder(MessageSetDecoder):
    """Fails loudly when anybody touches it while a thread is in `open`."""

    def __init__(self, partition: TopicPartition, position: Position, options: DecoderOptions, gate: Gate) -> None:
        self._gate, self._worker = gate, 0
        super().__init__(partition, position, options)

    def decompress_deferred(self) -> None:
        self._worker = threading.get_ident()
        try:
            self._gate.go_through(self.partition, self.deferred_bytes)
            super().decompress_deferred()
        finally:
            self._worker = 0

    def _untouched(self) -> None:
        assert self._worker in (0, threading.get_ident()), "touched while a thread works on it"

    @property
    def position(self) -> Position:
        self._untouched()
        return super().position

    @property
    def fetch_position(self) -> Position:
        self._untouched()
        return super().fetch_position

    @property
    def pending_bytes(self) -> int:
        self._untouched()
        return super().pending_bytes

    def feed(self, data: memoryview) -> None:
        self._untouched()
        super().feed(data)

    def take(self) -> Columns:
        self._untouched()
        return super().take()

    def reset(self, position: Position) -> None:
        self._untouched()
        super().reset(position)


class GatedBroker(Kafka07LogBroker):
    def __init__(self, broker: Broker, driver: GatedDriver) -> None:
        super().__init__(broker, driver)
        self._gated = driver.gate
        self.in_flight: list[set[LogDecoder]] = []
        self.max_in_flight = 0

    def decoder(self, partition: TopicPartition, position: Position, options: DecoderOptions) -> LogDecoder:
        return GatedDecoder(partition, position, options, self._gated)

    async def fetch(self, fetches: Sequence[PartitionFetch], *, max_wait: float = 0.0, min_bytes: int = 1) -> None:
        decoders = {fetch.decoder for fetch in fetches}
        assert not any(decoders & others for others in self.in_flight), "a decoder in two fetches at the same time"
        self.in_flight.append(decoders)
        self.max_in_flight = max(self.max_in_flight, len(self.in_flight))
        try:
            await super().fetch(fetches)
        finally:
            self.in_flight.remove(decoders)


class GatedDriver(Kafka07LogDriver):
    def __init__(self, **counts: int) -> None:
        self.gate = Gate()
        super().__init__(**counts)

    def broker(self, broker: Broker, *, purpose: str) -> Kafka07LogBroker:
        return self.brokers.setdefault(broker, GatedBroker(broker, self))

    @property
    def gated(self) -> GatedBroker:
        broker = self.b1
        assert isinstance(broker, GatedBroker)
        return broker


@pytest.fixture(autouse=True)
def everything_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_fetcher, "INLINE_DECOMPRESS_BYTES", 0)


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(LONG_S):
        while not condition():
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def shut(gate: Gate) -> AsyncIterator[None]:
    """Whatever goes wrong, no thread stays behind."""
    gate.shut()
    try:
        yield
    finally:
        gate.open()


def make_driver(
    partitions: int = 2, each: int = 200, compression: CompressionType = CompressionType.GZIP
) -> GatedDriver:
    """Partition n has the numbers from 1000 n on, in wrappers of 20."""
    driver = GatedDriver(t=partitions)
    for n in range(partitions):
        for first in range(0, each, 20):
            driver.write(tp(n), numbered(20, 1000 * n + first), compression)
    return driver


# ---- off the loop -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [CompressionType.GZIP, CompressionType.SNAPPY])
async def test_compressed_messages_are_opened_in_threads_in_order(compression: CompressionType) -> None:
    driver = make_driver(compression=compression)
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=300)) as reader:
        values = await values_of(reader)
    for n in range(2):
        assert [v for v in values if int(v) // 1000 == n] == numbered(200, 1000 * n)
    assert driver.gate.threads and threading.get_ident() not in driver.gate.threads


async def test_few_compressed_bytes_of_known_expansion_are_decompressed_on_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_fetcher, "INLINE_DECOMPRESS_BYTES", 1 << 20)
    driver = make_driver()
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=300)) as reader:
        assert len(await values_of(reader)) == 400
    assert driver.gate.threads > {threading.get_ident()}, "only the first one is decompressed in a thread"


async def test_what_is_not_compressed_needs_no_thread() -> None:
    driver = make_driver(compression=CompressionType.NONE)
    async with Reader(driver, "t", until=LATEST) as reader:
        assert len(await values_of(reader)) == 400
    assert not driver.gate.threads


async def test_other_partitions_go_on_meanwhile() -> None:
    driver = make_driver(1)
    driver.publish("t", 2)
    driver.write(tp(1), numbered(3000, 5000))
    async with Reader(driver, "t", tuning=Tuning(fetch_bytes=1000)) as reader, shut(driver.gate):
        await until(lambda: driver.gate.inside)
        others = [(await anext(reader)).value for _ in range(3000)]
        assert others == numbered(3000, 5000) and driver.gate.inside == [tp(0)]
        driver.gate.open()
        assert [(await anext(reader)).value for _ in range(200)] == numbered(200)


async def test_places_are_known_while_a_thread_works() -> None:
    driver = make_driver(1)
    async with Reader(driver, {tp(): 0}) as reader, shut(driver.gate):
        await until(lambda: driver.gate.inside)
        assert reader.positions() == {tp(): 0}
        assert (await reader.lag())[tp()] == len(driver.stored[tp()])
        token = reader.bookmark()
        driver.gate.open()
        assert [(await anext(reader)).value for _ in range(200)] == numbered(200)
    async with Reader(driver, {tp(): 0}, start=token, until=LATEST) as reader:
        assert await values_of(reader) == numbered(200)


async def test_seek_while_a_thread_works_drops_what_it_makes() -> None:
    driver = make_driver(1)
    plain = driver.write(tp(), [])
    driver.write(tp(), numbered(30, 500))
    async with Reader(driver, "t", until=LATEST) as reader, shut(driver.gate):
        await until(lambda: driver.gate.inside)
        reader.seek(tp(), Position(plain))
        reader.seek(tp(), Position(plain))
        await anyio.wait_all_tasks_blocked()
        driver.gate.open()
        assert await values_of(reader) == numbered(30, 500)


async def test_pause_while_a_thread_works_delivers_nothing_until_resumed() -> None:
    driver = make_driver(1)
    async with Reader(driver, "t", until=LATEST) as reader, shut(driver.gate):
        await until(lambda: driver.gate.inside)
        reader.pause()
        driver.gate.open()
        await until(lambda: not driver.gate.inside)
        with anyio.move_on_after(0.02) as waited:
            await anext(reader)
        assert waited.cancelled_caught
        reader.resume()
        assert await values_of(reader) == numbered(200)


async def test_cancelling_the_reader_of_what_a_thread_makes_loses_nothing() -> None:
    driver = make_driver(1)
    async with Reader(driver, "t", until=LATEST) as reader, shut(driver.gate):
        await until(lambda: driver.gate.inside)
        with anyio.move_on_after(0.01) as waited:
            await anext(reader)
        assert waited.cancelled_caught
        driver.gate.open()
        assert await values_of(reader) == numbered(200)


@pytest.mark.parametrize("how", ["leave", "cancel", "raise"])
async def test_leaving_waits_for_the_thread_and_leaves_nothing_behind(how: str) -> None:
    driver = make_driver(1)
    driver.gate.shut()
    helper = threading.Timer(0.05, driver.gate.open)
    with anyio.CancelScope() as scope:
        try:
            async with Reader(driver, "t", until=LATEST):
                await until(lambda: driver.gate.inside)
                helper.start()
                if how == "cancel":
                    scope.cancel()
                    await anyio.sleep_forever()
                if how == "raise":
                    raise ValueError("mine")
        except ValueError:
            assert how == "raise"
    assert not driver.gate.inside, "a thread is still at it"
    helper.join()
    gc.collect()  # a task or coroutine left behind would warn here


async def test_revoked_while_a_thread_works_nothing_of_it_is_delivered_and_the_next_owner_gets_all() -> None:
    driver = make_driver(1)
    driver.initial = {tp(): 0}
    async with Consumer(driver, "t", group="g", commit_every=None) as consumer, shut(driver.gate):
        await until(lambda: driver.gate.inside)
        await driver.member.revoke()
        await driver.member.assign(tp())
        driver.gate.open()
        values = [(await anext(consumer)).value for _ in range(200)]
        assert values == numbered(200)
        with anyio.move_on_after(0.02) as waited:
            await anext(consumer)
        assert waited.cancelled_caught


async def test_a_session_lost_while_a_thread_works() -> None:
    driver = make_driver(1)
    driver.initial = {tp(): 0}
    async with Consumer(driver, "t", group="g", commit_every=None) as consumer, shut(driver.gate):
        await until(lambda: driver.gate.inside)
        await driver.member.expire()
        driver.gate.open()
        await until(lambda: not driver.gate.inside)
        await anyio.wait_all_tasks_blocked()
        assert consumer.partitions == [] and not consumer._fetcher.take_some(None, MiB, anyio.current_time())


async def test_damage_inside_comes_behind_what_is_good() -> None:
    driver = make_driver(1, each=60)
    driver.stored[tp()][-1] ^= 1
    values: list[bytes] = []
    async with Reader(driver, "t", until=LATEST) as reader:
        with pytest.raises(CorruptMessage):
            async for record in reader:
                values.append(payload(record.value))
    assert values == numbered(40)


async def test_a_connection_lost_in_the_middle_keeps_whole_messages_that_were_not_opened_yet() -> None:
    """Otherwise a line that breaks every few kilobytes would never get on."""
    driver = make_driver(1, each=2000)
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(backoff=QUICK, fetch_idle=0.001)) as reader:
        for _ in range(3):
            before = len(driver.b1.fetches)
            driver.b1.cut_after = 1000
            await until(lambda before=before: len(driver.b1.fetches) > before)  # type: ignore[misc]
        driver.b1.cut_after = None
        assert await values_of(reader) == numbered(2000)


async def test_a_connection_lost_while_a_thread_works_on_another_partition(caplog: pytest.LogCaptureFixture) -> None:
    driver = make_driver(1)
    driver.publish("t", 2)
    driver.write(tp(1), numbered(300, 5000))  # not compressed: it is fetched meanwhile, and polled for more
    tuning = Tuning(fetch_bytes=400, fetch_idle=0.001, backoff=QUICK)
    async with Reader(driver, "t", tuning=tuning) as reader, shut(driver.gate):
        await until(lambda: driver.gate.inside)
        driver.b1.down = True
        await until(lambda: "Connection refused" in caplog.text)
        assert driver.gate.inside == [tp(0)]
        driver.b1.down = False
        driver.gate.open()
        values = [(await anext(reader)).value for _ in range(500)]
    assert sorted(map(payload, values)) == [*numbered(200), *numbered(300, 5000)]


async def test_a_bug_of_a_decoder_in_a_thread_ends_its_partition_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = make_driver(1)

    def broken(self: MessageSetDecoder) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(GatedDecoder, "decompress_deferred", broken)
    driver.publish("t", 2)
    driver.write(tp(1), numbered(5))
    async with Reader(driver, "t") as reader:
        values: list[bytes | None] = []
        with pytest.raises(CorruptMessage, match=r"t/1-0 at 0: cannot be decoded: ZeroDivisionError") as raised:
            while True:
                values.append((await anext(reader)).value)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        while len(values) < 5:
            values.append((await anext(reader)).value)
        assert values == numbered(5)


# ---- brokers that cannot hold an empty answer back: idle partitions are polled -------------------------------


async def test_quiet_partitions_share_a_request() -> None:
    driver = make_driver(20, each=0)
    async with Reader(driver, "t", tuning=Tuning(fetch_idle=0.01)):
        await until(lambda: len(driver.b1.fetches) >= 10)
    assert all(len(fetch) == 20 for fetch in driver.b1.fetches[1:9])


# ---- room ------------------------------------------------------------------------------------------------------


def swelling(size: int, grown: int) -> bytes:
    """A wrapper of about `size` bytes that opens to `grown` ones."""
    noise = b"".join(n.to_bytes(8, "big") * 0 + bytes([n * 197 % 251, n * n % 253]) for n in range(size // 8))
    return encode_set([noise, *[bytes(grown // 60)] * 60], CompressionType.GZIP)


async def test_wrappers_that_swell_are_opened_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that grew by nothing so far turns into wrappers hundreds of times their size: of all that arrives at once,
    only as many are opened as threads can be at it, before the reader takes what came of the first."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    partitions, read_ahead_bytes, grown = 8, 4 * MiB, 6 * MiB
    wrapper = swelling(64 * KiB, grown)
    driver = GatedDriver(t=partitions)
    for n in range(partitions):
        driver.write(tp(n), [bytes(1000)] * 200)
        driver.stored[tp(n)] += wrapper * 3
    most = rows = 0
    async with Reader(driver, "t", until=LATEST, read_ahead_bytes=read_ahead_bytes) as reader:
        async for batch in reader.batches():
            await anyio.wait_all_tasks_blocked()
            await until(lambda: reader._fetcher.decompress_slots.value == 2)  # no thread is at it
            most = max(most, held(reader))
            rows += len(batch)
    assert rows == partitions * (200 + 3 * 61)
    assert min(driver.gate.opened) >= broker_fetcher.THREAD_DECOMPRESS_BYTES or len(driver.gate.opened) > partitions, (
        "none shared a thread hop"
    )
    assert grown < most <= read_ahead_bytes + 2 * 3 * (grown + 64 * KiB + 61 * ROW_BYTES)
