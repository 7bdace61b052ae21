"""What a hostile or damaged log, and a mistaken argument, cannot do to a reader."""

from __future__ import annotations

import logging
import struct
from collections import Counter
from time import thread_time

import anyio
import anyio.lowlevel
import pytest

from odradek.client.consumer.positions import resolve_positions
from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.interfaces import PartitionFetch
from odradek.core.kafka07.routing import Kafka07RoutingTable
from odradek.errors import BrokerError, ConfigError, InternalError, RemoteProtocolError, Unreachable
from odradek.io.gather import CONCURRENT
from odradek.types import EARLIEST, LATEST, AtTime, KiB, MiB, Position, StartPosition, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

from .consuming import BACKOFF_S, LogDriver, tp

pytestmark = pytest.mark.anyio

DAMAGED = struct.pack(">ibbI", 6, 1, 0, 12345)
"""An empty message with a wrong CRC: 10 bytes."""


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % n for n in range(first, first + count)]


async def values_of(reader: Reader) -> list[bytes | None]:
    return [record.value async for record in reader]


def damaged_log(messages: int) -> LogDriver:
    driver = LogDriver(t=1)
    driver.logs[tp()] += DAMAGED * messages
    driver.write(tp(), [b"good"])
    return driver


# ---- damage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("corrupt", ["skip", "raw"])
async def test_many_damaged_messages_stay_within_the_read_ahead(corrupt: str) -> None:
    driver = damaged_log(60_000)
    async with Reader(driver, "t", until=LATEST, corrupt=corrupt, read_ahead_bytes=MiB) as reader:  # type: ignore[arg-type]
        (cursor,) = reader._fetcher.cursors.values()
        most = rows = 0
        async for batch in reader.batches():
            most = max(most, cursor.held_bytes)
            rows += len(batch)
            assert len(reader.reports) <= 1000
        assert rows == (60_001 if corrupt == "raw" else 1)
        first_fetch = 64 * KiB // len(DAMAGED) * 1000
        assert most <= MiB + first_fetch
        assert corrupt == "raw" or len(reader.reports) == 1000


@pytest.mark.parametrize("corrupt", ["skip", "raw"])
async def test_damaged_messages_are_decoded_in_threads_while_the_loop_continues(corrupt: str) -> None:
    driver = damaged_log(60_000)
    longest = 0.0  # processor time of the thread of the loop: it does not depend on what else the machine does

    async def watch() -> None:
        nonlocal longest
        while True:
            begin = thread_time()
            await anyio.sleep(0.001)
            longest = max(longest, thread_time() - begin)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        async with Reader(driver, "t", until=LATEST, corrupt=corrupt) as reader:  # type: ignore[arg-type]
            assert len(await values_of(reader)) == (60_001 if corrupt == "raw" else 1)
        tasks.cancel_scope.cancel()
    assert longest < 0.3  # 0.005 without the measurement of coverage, which counts lines


async def test_skipping_writes_one_line_when_it_begins_and_one_with_the_count_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "odradek.fetch")
    driver = damaged_log(2000)
    driver.write(tp(), numbered(1000))
    async with Reader(driver, "t", until=LATEST, corrupt="skip", tuning=Tuning(fetch_bytes=1000)) as reader:
        assert len(await values_of(reader)) == 1001
    assert [record.getMessage() for record in caplog.records] == [
        "skipping corrupt messages: t/1-0 at 0: CRC mismatch",
        "t/1-0: 2000 corrupt messages skipped",
    ]


async def test_few_compressed_bytes_that_expand_to_megabytes_do_not_block_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[int] = []
    run = anyio.to_thread.run_sync

    async def run_sync(function: object, *args: object, **options: object) -> object:
        used.append(1)
        return await run(function, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("anyio.to_thread.run_sync", run_sync)
    driver = LogDriver(t=1)
    sizes = [driver.write(tp(), [bytes(100_000)] * 20, CompressionType.GZIP) for _ in range(5)]
    assert sizes[0] < 16 * KiB
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=sizes[0])) as reader:
        assert len(await values_of(reader)) == 100
    assert len(used) >= 5, "each of them in a thread, although it is small"


# ---- errors -----------------------------------------------------------------------------------------------------


async def test_an_error_of_a_request_that_is_not_retriable_ends_its_partitions_and_not_the_reader() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(3))
    async with Reader(driver, "t") as reader:
        assert [(await anext(reader)).value for _ in range(3)] == numbered(3)
        driver.b1.fatal = InternalError("a defect")
        with pytest.raises(InternalError, match="a defect"):
            await anext(reader)
        driver.b1.fatal = None
        reader.seek(tp(), EARLIEST)
        assert [(await anext(reader)).value for _ in range(3)] == numbered(3)


async def test_a_retriable_error_of_a_partition_refreshes_the_metadata_and_is_retried() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(3))
    driver.b1.errors[tp()] = BrokerError(6, "NOT_LEADER_OR_FOLLOWER", retriable=True, refresh_metadata=True)
    refreshed = 0
    refresh = driver.metadata.refresh

    async def counted() -> object:
        nonlocal refreshed
        refreshed += 1
        driver.b1.errors.clear()
        return await refresh()

    driver.metadata.refresh = counted  # type: ignore[assignment,method-assign]
    async with Reader(driver, "t", until=LATEST) as reader:
        assert await values_of(reader) == numbered(3)
    assert refreshed == 1


async def test_a_fetch_that_fails_as_a_whole_refreshes_the_metadata_though_not_at_every_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(3))
    refresh = driver.metadata.refresh
    refreshed = attempts = 0
    enough = anyio.Event()

    async def counted() -> Kafka07RoutingTable:
        nonlocal refreshed
        refreshed += 1
        return await refresh()

    async def unreachable() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 20:
            enough.set()
        await anyio.sleep(BACKOFF_S)
        raise Unreachable("tcp", "b1:9092", "Connection refused")

    driver.metadata.refresh = counted  # type: ignore[method-assign]
    async with Reader(driver, "t") as reader:
        assert [(await anext(reader)).value for _ in range(3)] == numbered(3)
        assert refreshed == 0
        with monkeypatch.context() as patched:
            patched.setattr(driver.b1, "respond", unreachable)
            await enough.wait()
        assert refreshed == 1
        driver.write(tp(), numbered(1, 3))
        assert (await anext(reader)).value == b"000003"


async def test_an_answer_that_refuses_a_whole_fetch_has_its_partitions_back_off() -> None:
    driver = LogDriver(t=2)
    for number in range(2):
        driver.write(tp(number), numbered(3))
    driver.b1.fatal = BrokerError(9, "REPLICA_NOT_AVAILABLE", retriable=True, refresh_metadata=True)
    refresh = driver.metadata.refresh

    async def fixed() -> Kafka07RoutingTable:
        driver.b1.fatal = None
        return await refresh()

    driver.metadata.refresh = fixed  # type: ignore[method-assign]
    starts = {tp(number): Position(0) for number in range(2)}
    async with Reader(driver, starts, tuning=Tuning(backoff=Backoff(first_s=0.05, max_s=0.05))) as reader:
        begin = anyio.current_time()
        assert Counter([(await anext(reader)).value for _ in range(6)]) == Counter(2 * numbered(3))
        assert anyio.current_time() - begin >= 0.02, "they were not fetched again at once"
    assert len(driver.b1.fetches) < 10


@pytest.mark.parametrize("failing", [False, True])
async def test_positions_of_many_partitions_are_asked_for_a_few_at_a_time(
    failing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = LogDriver(t=3000)
    running = most = 0

    async def resolve_position(partition: TopicPartition, at: object, **options: object) -> Position:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.lowlevel.checkpoint()
        running -= 1
        if failing and partition.partition % 2:
            raise BrokerError(3, "WrongPartition")
        return Position(partition.partition)

    monkeypatch.setattr(driver.b1, "resolve_position", resolve_position)
    partitions = {tp(number): EARLIEST for number in range(3000)} | {tp(0, "t", 9): EARLIEST}
    positions, errors = await resolve_positions(driver, partitions)
    assert 1 < most <= CONCURRENT
    assert len(errors) == (1500 if failing else 0)
    assert positions == {p: p.partition for p in partitions if p.broker == 1 and p not in errors}


async def test_a_broker_that_does_not_lead_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = LogDriver(t=2)
    refusals = [BrokerError(6, "NOT_LEADER_OR_FOLLOWER", retriable=True, refresh_metadata=True)] * 2

    async def resolve_position(partition: TopicPartition, at: object, **options: object) -> Position:
        await anyio.lowlevel.checkpoint()
        if partition == tp(1) and refusals:
            raise refusals.pop()
        return Position(partition.partition)

    monkeypatch.setattr(driver.b1, "resolve_position", resolve_position)
    assert await resolve_positions(driver, {tp(0): EARLIEST, tp(1): EARLIEST}) == ({tp(0): 0, tp(1): 1}, {})


async def test_a_hostile_position_ends_its_partition_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = LogDriver(t=2)
    driver.write(tp(0), numbered(3))
    driver.write(tp(1), numbered(3, 10))
    far = (1 << 63) - 8
    fill = driver.b1._fill

    async def hostile(fetch: PartitionFetch) -> None:
        if fetch.decoder.partition != tp(1):
            await fill(fetch)
            return
        fetch.start()
        fetch.feed(memoryview(encode_set([b"hello"])))
        fetch.received = 15

    monkeypatch.setattr(driver.b1, "_fill", hostile)
    starts: dict[TopicPartition, StartPosition] = {tp(1): Position(far), tp(0): EARLIEST}
    async with Reader(driver, starts) as reader:
        values: list[bytes | None] = []
        with pytest.raises(RemoteProtocolError, match=f"t/1-1: the broker sent 15 bytes from position {far} on"):
            while True:
                values.append((await anext(reader)).value)
        while len(values) < 3:
            values.append((await anext(reader)).value)
        assert values == numbered(3)


# ---- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_records", [-1, 0, 1.5, "10", True])
async def test_a_number_of_records_that_cannot_be_is_refused(max_records: object) -> None:
    async with Reader(LogDriver(), "t") as reader:
        with pytest.raises((ConfigError, TypeError), match="max_records"):
            reader.batches(max_records=max_records)  # type: ignore[arg-type]


@pytest.mark.parametrize("position", ["latest", 1.5, -1, 2**63, AtTime("x"), b"1", object(), {"t": 1}, [1]])  # type: ignore[arg-type]
@pytest.mark.parametrize("option", ["start", "until"])
def test_an_impossible_position_is_refused(option: str, position: object) -> None:
    with pytest.raises((ConfigError, TypeError), match=option):
        Reader(LogDriver(), "t", **{option: position})  # type: ignore[arg-type]


@pytest.mark.parametrize("topics", [b"t", [b"t"], [tp()], 3, None, {"t": 1}, {tp(): "earliest"}, ""])
def test_topics_that_cannot_be_are_refused(topics: object) -> None:
    with pytest.raises((ConfigError, TypeError), match="topics"):
        Reader(LogDriver(), topics)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [2**63, -1, "earliest", 1.0, None, AtTime(float("nan"))])
async def test_a_seek_to_a_place_that_cannot_be_is_refused_and_changes_nothing(start: object) -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(3))
    async with Reader(driver, "t", until=LATEST) as reader:
        with pytest.raises((ConfigError, TypeError), match="start"):
            reader.seek(tp(), start)  # type: ignore[arg-type]
        assert await values_of(reader) == numbered(3)


async def test_pause_refuses_what_is_no_partition() -> None:
    async with Reader(LogDriver(), "t") as reader:
        with pytest.raises((ConfigError, TypeError), match="partitions"):
            reader.pause("t")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="not currently assigned"):
            reader.pause(TopicPartition("u", 0, 1))


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
@pytest.mark.parametrize("taken", [0, 1, 7, 20])
async def test_until_takes_a_bookmark_and_ends_exactly_there(compression: CompressionType, taken: int) -> None:
    driver = LogDriver(t=1)
    for first in (0, 10):
        driver.write(tp(), numbered(10, first), compression)
    async with Reader(driver, "t") as reader:
        for _ in range(taken):
            await anext(reader)
        mark = reader.bookmark()
    driver.write(tp(), numbered(5, 20))
    async with Reader(driver, "t", until=mark) as reader:
        assert await values_of(reader) == numbered(taken)
    async with Reader(driver, "t", start=mark, until=LATEST) as reader:
        assert await values_of(reader) == numbered(25 - taken, taken)
