"""The reader between two points: everything once, whatever happens on the way."""

from __future__ import annotations

import gzip
import json
import logging
import zlib
from collections.abc import AsyncIterator

import anyio
import pytest

from odradek.batch import Batch
from odradek.client.consumer import streams
from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.interfaces import ProtocolDriver
from odradek.errors import BrokerError, Closed, ConfigError, CorruptMessage, MessageTooLarge, TransportError
from odradek.types import EARLIEST, LATEST, AtTime, Position, Record, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

from ..payloads import payload, payloads
from .consuming import LogDriver, tp

pytestmark = pytest.mark.anyio

QUICK = Backoff(first_s=0.0001, max_s=0.001)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % n for n in range(first, first + count)]


async def values_of(reader: Reader) -> list[bytes]:
    return [payload(record.value) async for record in reader]


async def read(driver: ProtocolDriver, *args: object, **options: object) -> list[bytes]:
    async with Reader(driver, *args, **{"until": LATEST, **options}) as reader:  # type: ignore[arg-type]
        return await values_of(reader)


async def batches_until(reader: Reader, total: int) -> AsyncIterator[Batch]:
    got = 0
    async for batch in reader.batches():
        got += len(batch)
        yield batch
        if got >= total:
            return


async def test_it_reads_everything_and_stops_by_itself() -> None:
    driver = LogDriver()
    driver.write(tp(0), numbered(1000))
    driver.write(tp(1), numbered(1000, 1000), CompressionType.SNAPPY)
    assert sorted(await read(driver, "t")) == numbered(2000)


async def test_a_record_knows_where_it_is() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), [b"one", b"two"])
    async with Reader(driver, "t", until=LATEST) as reader:
        records = [record async for record in reader]
    assert records[1] == Record(b"two", None, (), None, None, Position(13), Position(26), 0, tp())


async def test_an_unknown_topic_is_at_its_end_at_once() -> None:
    assert await read(LogDriver(), "nothing") == []


async def test_until_latest_is_what_it_was_at_entry() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(10))
    async with Reader(driver, "t", until=LATEST) as reader:
        driver.write(tp(), numbered(10, 10))
        assert await values_of(reader) == numbered(10)


@pytest.mark.parametrize("until", [32, 33, 47, 48])
async def test_the_last_record_is_the_last_that_starts_before_until(until: int) -> None:
    """Entries of 16 bytes: the third starts at 32."""
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(10))
    expected = 2 if until == 32 else 3
    assert await read(driver, "t", until=until) == numbered(expected)


async def test_until_inside_a_wrapper_takes_the_whole_wrapper() -> None:
    driver = LogDriver(t=1)
    start = driver.write(tp(), [b"first"])
    driver.write(tp(), numbered(5), CompressionType.GZIP)
    driver.write(tp(), [b"behind"])
    assert await read(driver, "t", until=start + 1) == [b"first", *numbered(5)]
    assert await read(driver, "t", until=start) == [b"first"]


async def test_times_are_segment_boundaries() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(6))
    driver.segments[tp()] = [(100.0, 0), (200.0, 32), (300.0, 64)]
    assert await read(driver, "t", start=AtTime(250.0)) == numbered(4, 2)
    assert await read(driver, "t", start=AtTime(50.0)) == numbered(6)
    assert await read(driver, "t", until=AtTime(300.0)) == numbered(4)
    assert await read(driver, "t", until=AtTime(50.0)) == []


async def test_starts_and_ends_by_partition() -> None:
    driver = LogDriver()
    driver.write(tp(0), numbered(10))
    driver.write(tp(1), numbered(10, 10))
    assert await read(driver, {tp(0): 16 * 8, tp(1): LATEST}) == numbered(2, 8)
    assert await read(driver, "t", start={tp(0): LATEST}, until={tp(1): Position(16)}) == [b"000010"]


async def test_from_latest_it_waits_for_what_comes() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(5))
    async with Reader(driver, "t", start=LATEST) as reader:
        driver.write(tp(), numbered(3, 5))
        assert [(await anext(reader)).value for _ in range(3)] == numbered(3, 5)


async def test_new_partitions_are_picked_up_and_read_whole() -> None:
    driver = LogDriver(t=1)
    async with Reader(driver, "t", start=LATEST) as reader:
        driver.publish("t", 2)
        driver.write(tp(1), numbered(3))
        assert [(await anext(reader)).value for _ in range(3)] == numbered(3)


async def test_batches_are_cut_and_joined_to_the_size_asked_for() -> None:
    driver = LogDriver(t=1)
    for n in range(10):
        driver.write(tp(), numbered(10, 10 * n), CompressionType.NONE if n % 2 else CompressionType.SNAPPY)
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=64)) as reader:
        batches = [batch async for batch in reader.batches(max_records=7, max_wait=60)]
    assert [len(batch) for batch in batches] == [7] * 14 + [2]
    assert [value for batch in batches for value in batch.values] == numbered(100)
    inner = [record.inner_index for batch in batches for record in batch]
    assert inner == [*range(10), *([0] * 10)] * 5


async def test_a_batch_does_not_wait_longer_than_it_may() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(3))
    async with Reader(driver, "t") as reader:
        begun = anyio.current_time()
        batch = await anext(reader.batches(max_records=100, max_wait=0.05))
        assert len(batch) == 3 and 0.04 < anyio.current_time() - begun < 5


async def test_partitions_take_turns() -> None:
    driver = LogDriver()
    for n in range(2):
        driver.write(tp(n), numbered(400))
    async with Reader(driver, "t", until=LATEST) as reader:
        order = [batch.partition.partition async for batch in reader.batches(max_records=100)]
    assert sorted(order[:2]) == sorted(order[2:4]) == [0, 1]


# ---- bookmarks, seek, pause ---------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY])
@pytest.mark.parametrize("taken", [0, 1, 4, 5, 7, 12])
async def test_a_bookmark_resumes_exactly_also_inside_wrappers(compression: CompressionType, taken: int) -> None:
    driver = LogDriver(t=1)
    for n in range(3):
        driver.write(tp(), numbered(4, 4 * n), compression)
    async with Reader(driver, "t", until=LATEST) as reader:
        first = [(await anext(reader)).value for _ in range(taken)]
        token = reader.bookmark()
    assert json.loads(token)
    assert first + await read(driver, "t", start=token) == numbered(12)


async def test_a_bookmark_after_batches_and_after_the_end() -> None:
    driver = LogDriver()
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
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(10))
    async with Reader(driver, "t", until=Position(50)) as reader:
        assert await values_of(reader) == numbered(4)
    assert await read(driver, "t", start=reader.bookmark()) == numbered(6, 4)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"odradek":2,"at":[]}', '{"odradek":1,"at":[["t",1]]}'])
def test_what_is_no_bookmark_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a bookmark"):
        Reader(LogDriver(), "t", start=text)


async def test_seek_forgets_what_was_read_ahead() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(100))
    async with Reader(driver, "t", until=LATEST) as reader:
        assert (await anext(reader)).value == b"000000"
        reader.seek(tp(), Position(16 * 98))
        assert await values_of(reader) == numbered(2, 98)
        reader.seek(tp(), EARLIEST)
        assert len(await values_of(reader)) == 100
        with pytest.raises(ConfigError, match="not currently assigned"):
            reader.seek(tp(7), EARLIEST)


async def test_seek_while_a_fetch_is_under_way() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(100))
    driver.b1.gate = gate = anyio.Event()
    async with Reader(driver, "t", until=LATEST) as reader:
        await anyio.wait_all_tasks_blocked()
        assert driver.b1.fetches
        reader.seek(tp(), Position(16 * 50))
        gate.set()
        assert await values_of(reader) == numbered(50, 50)


async def test_pause_keeps_the_rest_of_a_batch_for_later() -> None:
    driver = LogDriver()
    driver.write(tp(0), numbered(10))
    driver.write(tp(1), numbered(10, 10))
    async with Reader(driver, "t", until=LATEST) as reader:
        first = await anext(reader)
        reader.pause(first.partition)
        other = [await anext(reader) for _ in range(10)]
        assert {record.partition for record in other} == {tp(0), tp(1)} - {first.partition}
        with anyio.move_on_after(0.02) as waited:
            await anext(reader)
        assert waited.cancelled_caught
        reader.resume()
        assert len(await values_of(reader)) == 9


async def test_lag_and_positions_count_what_was_handed_out() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(10))
    async with Reader(driver, "t") as reader:
        assert await reader.lag() == {tp(): 160} and reader.positions() == {tp(): 0}
        for _ in range(3):
            await anext(reader)
        assert await reader.lag() == {tp(): 112} and reader.positions() == {tp(): 48}
        assert reader.partitions == [tp()]


# ---- errors of a partition ----------------------------------------------------------------------------------


async def collect(reader: Reader) -> tuple[list[bytes], list[Exception]]:
    """Go on after every error."""
    values: list[bytes] = []
    errors: list[Exception] = []
    while True:
        try:
            async for record in reader:
                values.append(payload(record.value))
        except (CorruptMessage, MessageTooLarge, BrokerError) as error:
            errors.append(error)
        else:
            return values, errors


@pytest.mark.parametrize("fetch_bytes", [1 << 20, 20])
async def test_a_corrupt_message_comes_after_the_good_ones_and_the_others_go_on(fetch_bytes: int) -> None:
    driver = LogDriver()
    driver.write(tp(0), numbered(3))
    driver.write(tp(1), numbered(5, 10))
    driver.logs[tp(0)][-1] ^= 1
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=fetch_bytes)) as reader:
        values, errors = await collect(reader)
    assert sorted(values) == numbered(2) + numbered(5, 10)
    (error,) = errors
    assert isinstance(error, CorruptMessage) and (error.partition, error.position) == ("t/1-0", 32)


async def test_damage_behind_until_is_none_of_our_business() -> None:
    driver = LogDriver(t=1)
    end = driver.write(tp(), numbered(3))
    driver.logs[tp()] += b"\xff" * 50
    assert await read(driver, "t", until=Position(end)) == numbered(3)


async def test_a_log_that_ends_inside_a_message_is_an_error_and_not_an_endless_wait() -> None:
    """A clean restart serves whatever stands at the end of the file (specification 4.5, case 32)."""
    driver = LogDriver(t=1)
    end = driver.write(tp(), numbered(2))
    driver.logs[tp()] += b"\0\0\1\0garbage"
    with anyio.fail_after(30):
        async with Reader(driver, "t", until=LATEST) as reader:
            assert (await anext(reader)).value == b"000000"
            assert (await anext(reader)).value == b"000001"
            with pytest.raises(CorruptMessage, match=f"at {end}: the log ends inside this message"):
                await anext(reader)
            with pytest.raises(StopAsyncIteration):
                await anext(reader)


async def test_damage_in_a_wrapper_that_spans_fetches_gives_nothing_twice() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(2))
    good = bytearray(encode_set(numbered(3, 2)))
    good[-1] ^= 1
    driver.logs[tp()] += wrapper_of(bytes(good))
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=40)) as reader:
        values, errors = await collect(reader)
    assert values == numbered(4) and len(errors) == 1


async def test_skipped_messages_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(3))
    driver.logs[tp()][31] ^= 1
    async with Reader(driver, "t", until=LATEST, corrupt="skip") as reader:
        assert await values_of(reader) == [b"000000", b"000002"]
        assert [report.position for report in reader.reports] == [16]
    assert "1 corrupt messages skipped" in caplog.text


async def test_raw_messages_are_named_in_their_batch() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(3))
    driver.logs[tp()][31] ^= 1
    async with Reader(driver, "t", until=LATEST, corrupt="raw") as reader:
        batches = [batch async for batch in reader.batches(max_records=2)]
    assert [sorted(batch.corrupt) for batch in batches] == [[1], []]


async def test_case_37_a_message_larger_than_the_fetch_size_comes_through_or_says_so() -> None:
    """A 14-byte window over 13+13 bytes, and windows far smaller than one message: read on in pieces, never stuck;
    beyond the limit on message size, an error that names it."""
    driver = LogDriver(t=1)
    driver.write(tp(), [b"one", b"two", b"x" * 1000])
    assert await read(driver, "t", tuning=Tuning(fetch_bytes=14)) == [b"one", b"two", b"x" * 1000]
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=14), max_message_bytes=500) as reader:
        values, errors = await collect(reader)
    assert values == [b"one", b"two"]
    assert isinstance(errors[0], MessageTooLarge) and errors[0].position == 26


async def test_a_position_that_is_gone_raises_or_resets() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(10))
    driver.starts[tp()] = 32
    async with Reader(driver, "t", start=0, until=LATEST) as reader:
        values, errors = await collect(reader)
    assert values == [] and [getattr(error, "name", "") for error in errors] == ["OffsetOutOfRange"]
    assert await read(driver, "t", start=0, reset=EARLIEST) == numbered(8, 2)


async def test_a_wrong_partition_is_an_error_of_that_partition_only() -> None:
    driver = LogDriver()
    driver.write(tp(1), numbered(3))
    driver.b1.errors[tp(0)] = BrokerError(3, "WrongPartition")
    async with Reader(driver, {tp(0): 0, tp(1): 0}, until=Position(48)) as reader:
        values, errors = await collect(reader)
    assert values == numbered(3) and [getattr(error, "name", "") for error in errors] == ["WrongPartition"]


async def test_seek_revives_a_broken_partition() -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(3))
    driver.logs[tp()][15] ^= 1
    async with Reader(driver, "t", until=LATEST) as reader:
        with pytest.raises(CorruptMessage):
            await anext(reader)
        reader.seek(tp(), Position(16))
        assert await values_of(reader) == numbered(2, 1)


# ---- brokers that come and go -------------------------------------------------------------------------------


async def test_a_cut_at_every_byte_of_an_answer_loses_and_doubles_nothing() -> None:
    driver = LogDriver()
    driver.write(tp(0), numbered(3), CompressionType.GZIP)
    driver.write(tp(0), numbered(2, 3))
    driver.write(tp(1), numbered(3, 5))
    for cut in range(1, sum(map(len, driver.logs.values()))):
        driver.b1.cut_after = cut
        values = await read(driver, "t", tuning=Tuning(fetch_bytes=90, fetch_idle=0.001, backoff=QUICK))
        assert sorted(values) == numbered(8), cut
        driver.b1.cut_after = None


async def test_a_tail_from_before_a_truncation_is_not_believed() -> None:
    """Half a message read, then the broker restarts with a shorter log and other bytes behind it."""
    driver = LogDriver(t=1)
    driver.write(tp(), [b"one", b"x" * 100])
    async with Reader(driver, "t", tuning=Tuning(fetch_bytes=20)) as reader:
        driver.b1.gate.set()
        assert (await anext(reader)).value == b"one"
        while len(driver.b1.fetches) < 2:
            await anyio.lowlevel.checkpoint()
        del driver.logs[tp()][13:]
        driver.write(tp(), numbered(20))
        assert [(await anext(reader)).value for _ in range(20)] == numbered(20)


async def test_a_broker_that_moves_is_followed(caplog: pytest.LogCaptureFixture) -> None:
    driver = LogDriver(t=1)
    driver.write(tp(), numbered(3))
    old = driver.b1
    async with Reader(driver, "t") as reader:
        assert [(await anext(reader)).value for _ in range(3)] == numbered(3)
        driver.live()
        while "no longer registered" not in caplog.text:
            await anyio.lowlevel.checkpoint()
        old.down = True
        driver.addresses[1] = driver.addresses[1]._replace(port=9093)
        driver.write(tp(), numbered(3, 3))
        driver.live(1)
        assert [(await anext(reader)).value for _ in range(3)] == numbered(3, 3)
    assert driver.b1 is not old and driver.b1.fetches


async def test_one_log_line_for_an_outage_and_one_for_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "odradek.fetch")
    driver = LogDriver(t=1)
    async with Reader(driver, "t", tuning=Tuning(fetch_idle=0.001, backoff=QUICK)) as reader:
        while not driver.b1.fetches:
            await anyio.lowlevel.checkpoint()
        driver.b1.down = True
        failures = len(driver.b1.fetches) + 4
        while len(driver.b1.fetches) < failures:
            await anyio.lowlevel.checkpoint()
        driver.b1.down = False
        driver.write(tp(), [b"x"])
        await anext(reader)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 and "Connection refused" in lines[0] and "responds again" in lines[1]


async def test_a_start_by_meaning_is_asked_for_again_until_the_broker_answers() -> None:
    driver = LogDriver(t=1)
    async with Reader(driver, "t", start=LATEST) as reader:
        driver.publish("t", 2)
        driver.write(tp(1), numbered(2))
        driver.b1.down = True
        await anyio.wait_all_tasks_blocked()
        driver.b1.down = False
        assert [(await anext(reader)).value for _ in range(2)] == numbered(2)


async def test_entering_fails_honestly_when_an_end_cannot_be_found_out() -> None:
    driver = LogDriver(t=1)
    driver.b1.down = True
    with pytest.raises(TransportError, match="Connection refused"):
        async with Reader(driver, "t", until=LATEST):
            pass
    with pytest.raises(TransportError, match="no live broker"):
        async with Reader(driver, {TopicPartition("t", 0, 9): EARLIEST}):
            pass


# ---- life ---------------------------------------------------------------------------------------------------


async def test_pain_background_death_raises_in_async_for() -> None:
    driver = LogDriver()
    async with Reader(driver, "t") as reader:
        driver.metadata.fail(RuntimeError("watcher died"))
        with pytest.raises(RuntimeError, match="watcher died"):
            await anext(reader)
        driver.b1.fatal = ZeroDivisionError("a bug of ours")
        with pytest.raises(RuntimeError, match="watcher died"):
            await anext(reader)


async def test_a_bug_in_a_fetch_loop_raises_in_async_for() -> None:
    driver = LogDriver()
    driver.b1.fatal = ZeroDivisionError("a bug of ours")
    async with Reader(driver, {tp(): 0}) as reader:
        with pytest.raises(ZeroDivisionError):
            await anext(reader)


async def test_used_outside_its_block_it_says_closed() -> None:
    reader = Reader(LogDriver(), "t")
    with pytest.raises(Closed):
        await anext(reader)
    async with reader:
        pass
    with pytest.raises(Closed):
        await anext(reader)


async def test_an_exception_of_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(ValueError, match="mine"):
        async with Reader(LogDriver(), "t"):
            raise ValueError("mine")


async def test_two_tasks_cannot_read_record_by_record_at_once() -> None:
    async with Reader(LogDriver(), "t") as reader, anyio.create_task_group() as tasks:

        async def wait() -> None:
            await anext(reader)

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await anext(reader)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("options", [{"read_ahead_bytes": 0}, {"max_message_bytes": 0}, {"corrupt": "ignore"}])
def test_options_that_cannot_work_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Reader(LogDriver(), "t", **options)  # type: ignore[arg-type]


async def test_its_repr_says_how_far_it_is() -> None:
    async with Reader(LogDriver(), "t", until=LATEST) as reader:
        await values_of(reader)
        assert repr(reader) == "<Reader 2 partitions, 2 ended, 0 failed>"


async def test_pain_cancellation_at_every_await(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel the read at its n-th step, for every n until it gets through; each time the rest follows."""
    monkeypatch.setattr(streams, "YIELD_EVERY_ROWS", 1)
    driver = LogDriver()
    driver.write(tp(0), numbered(200), CompressionType.SNAPPY)
    driver.write(tp(1), numbered(200, 200))
    got: list[bytes] = []
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=100, fetch_idle=0.001)) as reader:
        steps = 0
        while len(got) < 400:
            steps += 1
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:

                    async def cancel(after: int = steps % 7, scope: anyio.CancelScope = scope) -> None:
                        for _ in range(after):
                            await anyio.lowlevel.checkpoint()
                        scope.cancel()

                    tasks.start_soon(cancel)
                    while len(got) < 400:
                        if steps % 2:
                            got += payloads((await anext(reader.batches(max_records=3))).values)
                        else:
                            got.append(payload((await anext(reader)).value))
                    tasks.cancel_scope.cancel()
    assert sorted(got) == numbered(400)
    assert steps > 5


async def test_pain_memory_bounded_with_slow_reader() -> None:
    """A reader that takes one batch and then nothing: fetching stops, with no more asked for than the budget."""
    driver = LogDriver(t=4)
    for n in range(4):
        driver.write(tp(n), [b"x" * 90] * 20_000)
    read_ahead_bytes = 400_000
    async with Reader(
        driver, "t", read_ahead_bytes=read_ahead_bytes, tuning=Tuning(fetch_bytes=32_768, fetch_idle=0.001)
    ) as reader:
        await anext(reader.batches(max_records=1))
        await anyio.wait_all_tasks_blocked()
        fetches = len(driver.b1.fetches)
        await anyio.sleep(0.02)
        assert len(driver.b1.fetches) == fetches, "still fetching"
        held = sum(cursor.held_bytes for cursor in reader._fetcher.cursors.values())
        assert read_ahead_bytes / 4 < held <= read_ahead_bytes
        total = 1
        async for batch in batches_until(reader, 79_999):
            total += len(batch)
            assert sum(cursor.held_bytes for cursor in reader._fetcher.cursors.values()) <= read_ahead_bytes
        assert total == 80_000


async def test_compressed_data_is_counted_by_what_it_grows_to() -> None:
    """A small first request; then, as every byte turns out to become hundreds, the smallest there is."""
    driver = LogDriver(t=1)
    wrapper = encode_set([b"x" * 1000] * 100, CompressionType.GZIP)
    driver.logs[tp()] += wrapper * 500
    async with Reader(driver, "t", read_ahead_bytes=1_000_000, until=LATEST) as reader:
        assert sum([len(batch) async for batch in reader.batches()]) == 50_000
    first, *others = [fetch[tp()] for fetch in driver.b1.fetches]
    assert first == 65_536 and others and set(others) == {16_384}


def wrapper_of(inner: bytes) -> bytes:
    body = gzip.compress(inner)
    return (len(body) + 6).to_bytes(4, "big") + b"\x01\x01" + zlib.crc32(body).to_bytes(4, "big") + body
