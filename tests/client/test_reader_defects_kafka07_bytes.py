"""What hostile or damaged bytes cannot do to a reader."""

from __future__ import annotations

import struct
from collections import Counter
from threading import get_ident

import anyio
import anyio.lowlevel
import pytest

from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.core.fetch.cursor import CursorFetch
from odradek.core.interfaces import PartitionFetch
from odradek.errors import RemoteProtocolError
from odradek.types import EARLIEST, LATEST, KiB, MiB, Position, StartPosition, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

from .kafka07_bytes import Kafka07LogDriver, tp
from .one_member import numbered

pytestmark = pytest.mark.anyio

DAMAGED = struct.pack(">ibbI", 6, 1, 0, 12345)
"""An empty message with a wrong CRC: 10 bytes."""


async def values_of(reader: Reader) -> list[bytes | None]:
    return [record.value async for record in reader]


def damaged_log(messages: int) -> Kafka07LogDriver:
    driver = Kafka07LogDriver(t=1)
    driver.stored[tp()] += DAMAGED * messages
    driver.write(tp(), [b"good"])
    return driver


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
async def test_damaged_messages_are_decoded_in_threads_and_not_by_the_loop(
    corrupt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: Counter[bool] = Counter()  # bytes, by whether the thread of the loop decoded them
    loop_thread = get_ident()
    decompress = CursorFetch.decompress

    def counted(fetch: CursorFetch) -> None:
        decoded[get_ident() == loop_thread] += fetch.decoder.deferred_bytes
        decompress(fetch)

    monkeypatch.setattr(CursorFetch, "decompress", counted)
    driver = damaged_log(60_000)
    async with Reader(driver, "t", until=LATEST, corrupt=corrupt) as reader:  # type: ignore[arg-type]
        assert len(await values_of(reader)) == (60_001 if corrupt == "raw" else 1)
    assert decoded[False] >= 59_000 * len(DAMAGED), "all but those that the end of a fetch cut in two"
    assert decoded[True] == 0


async def test_few_compressed_bytes_that_expand_to_megabytes_do_not_block_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[int] = []
    run = anyio.to_thread.run_sync

    async def run_sync(function: object, *args: object, **options: object) -> object:
        used.append(1)
        return await run(function, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("anyio.to_thread.run_sync", run_sync)
    driver = Kafka07LogDriver(t=1)
    sizes = [driver.write(tp(), [bytes(100_000)] * 20, CompressionType.GZIP) for _ in range(5)]
    assert sizes[0] < 16 * KiB
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=sizes[0])) as reader:
        assert len(await values_of(reader)) == 100
    assert len(used) >= 5, "each of them in a thread, although it is small"


async def test_a_hostile_position_ends_its_partition_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Kafka07LogDriver(t=2)
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


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
@pytest.mark.parametrize("taken", [0, 1, 7, 20])
async def test_until_takes_a_bookmark_and_ends_exactly_there(compression: CompressionType, taken: int) -> None:
    driver = Kafka07LogDriver(t=1)
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
