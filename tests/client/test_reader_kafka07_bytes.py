"""The reader of byte logs: compressed messages, bookmarks inside them, damaged bytes, answers that end anywhere."""

from __future__ import annotations

import gzip
import json
import zlib

import anyio
import pytest

from odradek.client.consumer import streams
from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.interfaces import ProtocolDriver
from odradek.errors import CorruptMessage, MessageTooLarge
from odradek.types import LATEST, AtTime, Position, Record
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

from .kafka07_bytes import Kafka07LogDriver, tp
from .one_member import numbered
from .reading import cancelled_after, collect, take_until, values_of

pytestmark = pytest.mark.anyio

QUICK = Backoff(first_s=0.0001, max_s=0.001)


async def read(driver: ProtocolDriver, *args: object, **options: object) -> list[bytes]:
    async with Reader(driver, *args, **{"until": LATEST, **options}) as reader:  # type: ignore[arg-type]
        return await values_of(reader)


async def test_it_reads_everything_and_stops_by_itself() -> None:
    driver = Kafka07LogDriver()
    driver.write(tp(0), numbered(1000))
    driver.write(tp(1), numbered(1000, 1000), CompressionType.SNAPPY)
    assert sorted(await read(driver, "t")) == numbered(2000)


async def test_a_record_knows_where_it_is() -> None:
    driver = Kafka07LogDriver(t=1)
    driver.write(tp(), [b"one", b"two"])
    async with Reader(driver, "t", until=LATEST) as reader:
        records = [record async for record in reader]
    assert records[1] == Record(b"two", None, (), None, None, Position(13), Position(26), 0, tp())


@pytest.mark.parametrize("until", [32, 33, 47, 48])
async def test_the_last_record_is_the_last_that_starts_before_until(until: int) -> None:
    """Entries of 16 bytes: the third starts at 32."""
    driver = Kafka07LogDriver(t=1)
    driver.write(tp(), numbered(10))
    expected = 2 if until == 32 else 3
    assert await read(driver, "t", until=until) == numbered(expected)


async def test_until_inside_a_wrapper_takes_the_whole_wrapper() -> None:
    driver = Kafka07LogDriver(t=1)
    start = driver.write(tp(), [b"first"])
    driver.write(tp(), numbered(5), CompressionType.GZIP)
    driver.write(tp(), [b"behind"])
    assert await read(driver, "t", until=start + 1) == [b"first", *numbered(5)]
    assert await read(driver, "t", until=start) == [b"first"]


async def test_times_are_segment_boundaries() -> None:
    driver = Kafka07LogDriver(t=1)
    driver.write(tp(), numbered(6))
    driver.segments[tp()] = [(100.0, 0), (200.0, 32), (300.0, 64)]
    assert await read(driver, "t", start=AtTime(250.0)) == numbered(4, 2)
    assert await read(driver, "t", start=AtTime(50.0)) == numbered(6)
    assert await read(driver, "t", until=AtTime(300.0)) == numbered(4)
    assert await read(driver, "t", until=AtTime(50.0)) == []


async def test_batches_are_cut_and_joined_to_the_size_asked_for() -> None:
    driver = Kafka07LogDriver(t=1)
    for n in range(10):
        driver.write(tp(), numbered(10, 10 * n), CompressionType.NONE if n % 2 else CompressionType.SNAPPY)
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=64)) as reader:
        batches = [batch async for batch in reader.batches(max_records=7, max_wait=60)]
    assert [len(batch) for batch in batches] == [7] * 14 + [2]
    assert [value for batch in batches for value in batch.values] == numbered(100)
    inner = [record.inner_index for batch in batches for record in batch]
    assert inner == [*range(10), *([0] * 10)] * 5


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY])
@pytest.mark.parametrize("taken", [0, 1, 4, 5, 7, 12])
async def test_a_bookmark_resumes_exactly_also_inside_wrappers(compression: CompressionType, taken: int) -> None:
    driver = Kafka07LogDriver(t=1)
    for n in range(3):
        driver.write(tp(), numbered(4, 4 * n), compression)
    async with Reader(driver, "t", until=LATEST) as reader:
        first = [(await anext(reader)).value for _ in range(taken)]
        token = reader.bookmark()
    assert json.loads(token)
    assert first + await read(driver, "t", start=token) == numbered(12)


async def test_a_bookmark_after_batches_and_after_the_end() -> None:
    driver = Kafka07LogDriver()
    driver.write(tp(0), numbered(10), CompressionType.GZIP)
    async with Reader(driver, "t", until=LATEST) as reader:
        batch = await anext(reader.batches(max_records=3))
        half = reader.bookmark()
        rest = await values_of(reader)
    driver.write(tp(1), numbered(2, 10))
    assert batch.values + rest == numbered(10)
    assert sorted(await read(driver, "t", start=half)) == numbered(9, 3)
    assert await read(driver, "t", start=reader.bookmark()) == numbered(2, 10)


async def test_a_bookmark_before_until_does_not_skip_what_was_cut_off() -> None:
    driver = Kafka07LogDriver(t=1)
    driver.write(tp(), numbered(10))
    async with Reader(driver, "t", until=Position(50)) as reader:
        assert await values_of(reader) == numbered(4)
    assert await read(driver, "t", start=reader.bookmark()) == numbered(6, 4)


@pytest.mark.parametrize("fetch_bytes", [1 << 20, 20])
async def test_a_corrupt_message_comes_after_the_good_ones_and_the_others_go_on(fetch_bytes: int) -> None:
    driver = Kafka07LogDriver()
    driver.write(tp(0), numbered(3))
    driver.write(tp(1), numbered(5, 10))
    driver.stored[tp(0)][-1] ^= 1
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=fetch_bytes)) as reader:
        values, errors = await collect(reader)
    assert sorted(values) == numbered(2) + numbered(5, 10)
    (error,) = errors
    assert isinstance(error, CorruptMessage) and (error.partition, error.position) == ("t/1-0", 32)


async def test_damage_behind_until_is_none_of_our_business() -> None:
    driver = Kafka07LogDriver(t=1)
    end = driver.write(tp(), numbered(3))
    driver.stored[tp()] += b"\xff" * 50
    assert await read(driver, "t", until=Position(end)) == numbered(3)


async def test_a_log_that_ends_inside_a_message_is_an_error_and_not_an_endless_wait() -> None:
    """A clean restart serves whatever stands at the end of the file (specification 4.5, case 32)."""
    driver = Kafka07LogDriver(t=1)
    end = driver.write(tp(), numbered(2))
    driver.stored[tp()] += b"\0\0\1\0garbage"
    with anyio.fail_after(30):
        async with Reader(driver, "t", until=LATEST) as reader:
            assert (await anext(reader)).value == b"000000"
            assert (await anext(reader)).value == b"000001"
            with pytest.raises(CorruptMessage, match=f"at {end}: the log ends inside this message"):
                await anext(reader)
            with pytest.raises(StopAsyncIteration):
                await anext(reader)


async def test_damage_in_a_wrapper_that_spans_fetches_gives_nothing_twice() -> None:
    driver = Kafka07LogDriver(t=1)
    driver.write(tp(), numbered(2))
    good = bytearray(encode_set(numbered(3, 2)))
    good[-1] ^= 1
    driver.stored[tp()] += wrapper_of(bytes(good))
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=40)) as reader:
        values, errors = await collect(reader)
    assert values == numbered(4) and len(errors) == 1


async def test_case_37_a_message_larger_than_the_fetch_size_comes_through_or_says_so() -> None:
    """A 14-byte window over 13+13 bytes, and windows far smaller than one message: read on in pieces, never stuck;
    beyond the limit on message size, an error that names it."""
    driver = Kafka07LogDriver(t=1)
    driver.write(tp(), [b"one", b"two", b"x" * 1000])
    assert await read(driver, "t", tuning=Tuning(fetch_bytes=14)) == [b"one", b"two", b"x" * 1000]
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=14), max_message_bytes=500) as reader:
        values, errors = await collect(reader)
    assert values == [b"one", b"two"]
    assert isinstance(errors[0], MessageTooLarge) and errors[0].position == 26


async def test_a_cut_at_every_byte_of_an_answer_loses_and_doubles_nothing() -> None:
    driver = Kafka07LogDriver()
    driver.write(tp(0), numbered(3), CompressionType.GZIP)
    driver.write(tp(0), numbered(2, 3))
    driver.write(tp(1), numbered(3, 5))
    for cut in range(1, sum(map(len, driver.stored.values()))):
        driver.b1.cut_after = cut
        values = await read(driver, "t", tuning=Tuning(fetch_bytes=90, fetch_idle=0.001, backoff=QUICK))
        assert sorted(values) == numbered(8), cut
        driver.b1.cut_after = None


async def test_a_tail_from_before_a_truncation_is_not_believed() -> None:
    """Half a message read, then the broker restarts with a shorter log and other bytes behind it."""
    driver = Kafka07LogDriver(t=1)
    driver.write(tp(), [b"one", b"x" * 100])
    async with Reader(driver, "t", tuning=Tuning(fetch_bytes=20)) as reader:
        driver.b1.gate.set()
        assert (await anext(reader)).value == b"one"
        while len(driver.b1.fetches) < 2:
            await anyio.lowlevel.checkpoint()
        del driver.stored[tp()][13:]
        driver.write(tp(), numbered(20))
        assert [(await anext(reader)).value for _ in range(20)] == numbered(20)


async def test_pain_cancellation_at_every_await(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel the read at its n-th step, for every n until it gets through; each time the rest follows."""
    monkeypatch.setattr(streams, "YIELD_EVERY_ROWS", 1)
    driver = Kafka07LogDriver()
    driver.write(tp(0), numbered(200), CompressionType.SNAPPY)
    driver.write(tp(1), numbered(200, 200))
    got: list[bytes] = []
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=100, fetch_idle=0.001)) as reader:
        steps = 0
        while len(got) < 400:
            steps += 1
            async with cancelled_after(steps % 7):
                await take_until(reader, got, 400, in_batches=bool(steps % 2))
    assert sorted(got) == numbered(400)
    assert steps > 5


async def test_compressed_data_is_counted_by_what_it_grows_to() -> None:
    """A small first request; then, as every byte turns out to become hundreds, the smallest there is."""
    driver = Kafka07LogDriver(t=1)
    wrapper = encode_set([b"x" * 1000] * 100, CompressionType.GZIP)
    driver.stored[tp()] += wrapper * 500
    async with Reader(driver, "t", read_ahead_bytes=1_000_000, until=LATEST) as reader:
        assert sum([len(batch) async for batch in reader.batches()]) == 50_000
    first, *others = [fetch[tp()] for fetch in driver.b1.fetches]
    assert first == 65_536 and others and set(others) == {16_384}


def wrapper_of(inner: bytes) -> bytes:
    body = gzip.compress(inner)
    return (len(body) + 6).to_bytes(4, "big") + b"\x01\x01" + zlib.crc32(body).to_bytes(4, "big") + body
