"""What a damaged log, errors that no broker should answer, and a mistaken argument cannot do to a reader."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from odradek.client.consumer import fetcher
from odradek.client.consumer.positions import is_removed, resolve_positions
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.interfaces import DecoderOptions, PartitionFetch
from odradek.errors import BrokerError, ConfigError, InternalError, Unreachable
from odradek.io.gather import CONCURRENT
from odradek.testing import MemoryCluster
from odradek.testing.memory.broker import MemoryBrokerClient
from odradek.testing.memory.log import StoredRecord
from odradek.types import EARLIEST, LATEST, AtTime, Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.decoder import RecordDecoder
from odradek.wire.kafka.records.encode import encode_batch

from .one_member import make_cluster, numbered, tp, until
from .reading import next_values, reading, values_of

pytestmark = pytest.mark.anyio

NOT_LEADER = BrokerError(6, "NOT_LEADER_OR_FOLLOWER", retriable=True, refresh_metadata=True)


async def test_skipping_writes_one_line_when_it_begins_and_one_with_the_count_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "odradek.fetch")
    cluster = make_cluster(3001)
    for offset in range(2000):
        cluster.corrupt(tp(), offset)
    async with reading(cluster, until=LATEST, corrupt="skip", tuning=Tuning(fetch_bytes=1000)) as reader:
        assert await values_of(reader) == numbered(1001, 2000)
        assert len(reader.reports) == 1000
    assert [record.getMessage() for record in caplog.records] == [
        "skipping corrupt messages: t/0 at 0: CRC mismatch",
        "t/0: 2000 corrupt messages skipped",
    ]


# ---- errors -----------------------------------------------------------------------------------------------------


async def test_an_error_of_a_request_that_is_not_retriable_ends_its_partitions_and_not_the_reader() -> None:
    cluster = make_cluster(3)
    async with reading(cluster) as reader:
        assert await next_values(reader, 3) == numbered(3)
        cluster.fail("fetch", InternalError("a defect"))
        with pytest.raises(InternalError, match="a defect"):
            await anext(reader)
        reader.seek(tp(), EARLIEST)
        assert await next_values(reader, 3) == numbered(3)


async def test_a_retriable_error_of_a_partition_refreshes_the_metadata_and_is_retried() -> None:
    cluster = make_cluster(3)
    cluster.fail("fetch", NOT_LEADER)
    async with reading(cluster, until=LATEST) as reader:
        assert await values_of(reader) == numbered(3)
    assert len(cluster.requests("metadata")) == 1


async def test_metadata_that_cannot_be_read_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetcher, "REFRESH_PAUSE_S", 0.001)
    cluster = MemoryCluster(topics={"t": 1}, brokers=2)
    cluster.append("t", numbered(3))
    async with reading(cluster) as reader:
        assert await next_values(reader, 3) == numbered(3)
        cluster.fail("metadata", Unreachable("tcp", "memory-1:9092", "Connection refused"), times=3)
        cluster.move_leader(tp(), 2)
        cluster.append("t", numbered(1, 3))
        assert await next_values(reader, 1) == numbered(1, 3)
    assert len(cluster.requests("metadata")) >= 4 and "cannot refresh metadata: " in caplog.text


async def test_a_fetch_that_fails_as_a_whole_refreshes_the_metadata_though_not_at_every_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetcher, "REFRESH_PAUSE_S", 3600.0)
    cluster = make_cluster(3)
    async with reading(cluster) as reader:
        assert await next_values(reader, 3) == numbered(3)
        assert not cluster.requests("metadata")
        attempts = len(cluster.requests("fetch")) + 20
        cluster.fail("fetch", Unreachable("tcp", "memory-1:9092", "Connection refused"), times=1_000_000)
        await until(lambda: len(cluster.requests("fetch")) >= attempts)
        assert len(cluster.requests("metadata")) == 1
        cluster.heal()
        cluster.append("t", numbered(1, 3))
        assert await next_values(reader, 1) == [b"000003"]


async def test_an_answer_that_refuses_a_whole_fetch_has_its_partitions_back_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = make_cluster(3, 3)
    fetch = MemoryBrokerClient.fetch
    refused = 0

    async def refuse(client: MemoryBrokerClient, fetches: Sequence[Any], **options: Any) -> None:
        nonlocal refused
        if not cluster.requests("metadata"):
            refused += 1
            await anyio.lowlevel.checkpoint()
            raise BrokerError(9, "REPLICA_NOT_AVAILABLE", retriable=True, refresh_metadata=True)
        await fetch(client, fetches, **options)

    monkeypatch.setattr(MemoryBrokerClient, "fetch", refuse)
    starts = {tp(number): Position(0) for number in range(2)}
    begin = anyio.current_time()
    async with reading(cluster, starts, tuning=Tuning(backoff=Backoff(first_s=0.05, max_s=0.05))) as reader:
        assert Counter(await next_values(reader, 6)) == Counter(numbered(6))
        assert anyio.current_time() - begin >= 0.02, "they were not fetched again at once"
    assert 0 < refused < 10


@pytest.mark.parametrize("failing", [False, True])
async def test_positions_of_many_partitions_are_asked_for_a_few_at_a_time(
    failing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = most = 0

    async def resolve_position(_: object, partition: TopicPartition, at: object, **options: object) -> Position:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.lowlevel.checkpoint()
        running -= 1
        if failing and partition.partition % 2:
            raise BrokerError(3, "WrongPartition")
        return Position(partition.partition)

    monkeypatch.setattr(MemoryBrokerClient, "resolve_position", resolve_position)
    known = {tp(number) for number in range(3000)}
    async with MemoryCluster(topics={"t": 3000}).connect() as k:
        wanted = dict.fromkeys([*known, TopicPartition("led by nobody", 0)], EARLIEST)
        positions, errors = await resolve_positions(k.driver, wanted)
    assert 1 < most <= CONCURRENT
    assert len(errors) == (1500 if failing else 0)
    assert positions == {p: p.partition for p in known if p not in errors}


async def test_a_broker_that_does_not_lead_yet_is_asked_again() -> None:
    cluster = make_cluster(3, 3)
    cluster.delete_records(tp(1), before=2)
    cluster.fail("positions", NOT_LEADER, times=2, partition=tp(1))
    async with cluster.connect() as k:
        assert await resolve_positions(k.driver, {tp(0): EARLIEST, tp(1): EARLIEST}) == ({tp(0): 0, tp(1): 2}, {})
    assert len(cluster.requests("positions")) == 4


# ---- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_records", [-1, 0, 1.5, "10", True])
async def test_a_number_of_records_that_cannot_be_is_refused(max_records: object) -> None:
    async with reading(make_cluster()) as reader:
        with pytest.raises((ConfigError, TypeError), match="max_records"):
            reader.batches(max_records=max_records)  # type: ignore[arg-type]


@pytest.mark.parametrize("position", ["latest", 1.5, -1, 2**63, AtTime("x"), b"1", object(), {"t": 1}, [1]])  # type: ignore[arg-type]
@pytest.mark.parametrize("option", ["start", "until"])
def test_an_impossible_position_is_refused(option: str, position: object) -> None:
    with pytest.raises((ConfigError, TypeError), match=option):
        make_cluster().connect().reader("t", **{option: position})  # type: ignore[call-overload]


@pytest.mark.parametrize("topics", [b"t", [b"t"], [tp()], 3, None, {"t": 1}, {tp(): "earliest"}, ""])
def test_topics_that_cannot_be_are_refused(topics: object) -> None:
    with pytest.raises((ConfigError, TypeError), match="topics"):
        make_cluster().connect().reader(topics)  # type: ignore[call-overload]


@pytest.mark.parametrize("start", [2**63, -1, "earliest", 1.0, None, AtTime(float("nan"))])
async def test_a_seek_to_a_place_that_cannot_be_is_refused_and_changes_nothing(start: object) -> None:
    async with reading(make_cluster(3), until=LATEST) as reader:
        with pytest.raises((ConfigError, TypeError), match="start"):
            reader.seek(tp(), start)  # type: ignore[arg-type]
        assert await values_of(reader) == numbered(3)


async def test_pause_refuses_what_is_no_partition() -> None:
    async with reading(make_cluster()) as reader:
        with pytest.raises((ConfigError, TypeError), match="partitions"):
            reader.pause("t")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="not currently assigned"):
            reader.pause(TopicPartition("u", 0))


@pytest.mark.parametrize("taken", [0, 1, 7, 20])
async def test_until_takes_a_bookmark_and_ends_exactly_there(taken: int) -> None:
    cluster = make_cluster(20)
    async with reading(cluster) as reader:
        await next_values(reader, taken)
        mark = reader.bookmark()
    cluster.append("t", numbered(5, 20))
    async with reading(cluster, until=mark) as reader:
        assert await values_of(reader) == numbered(taken)
    async with reading(cluster, start=mark, until=LATEST) as reader:
        assert await values_of(reader) == numbered(25 - taken, taken)


@pytest.mark.parametrize("removed", [True, False])
async def test_a_reader_ends_where_compaction_has_removed_all_up_to_an_open_transaction(
    removed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = MemoryCluster({"t": 1})
    log = cluster._log(tp())

    def read(position: int, max_bytes: int, *, read_committed: bool = False) -> tuple[list[StoredRecord], Position]:
        """As brokers read: nothing is said of offsets without records, and remote storage may be too slow."""
        records = [] if read_committed else [each for each in log.records if each.offset >= position]
        return records, Position(records[-1].offset + 1 if records else position)

    async with cluster.connect() as k, k.producer(transactional_id="t") as out:
        cluster.append("t", [b"0", b"1", b"2"])
        async with out.transaction():
            await out.send("t", b"open")
            monkeypatch.setattr(log, "read", read)
            if removed:
                del log.records[:3]
            async with k.reader("t", until=LATEST, isolation="read_committed") as reader:
                with anyio.move_on_after(3 if removed else 0.3) as scope:
                    assert await values_of(reader) == []
                assert scope.cancelled_caught != removed
                if removed:
                    assert await values_of(reader) == []
                    assert json.loads(reader.bookmark())["at"][0][3] == 3


@pytest.mark.parametrize(("first", "removed"), [(3, True), (2, False)])
async def test_what_an_open_transaction_has_written_compressed_says_that_all_before_it_was_removed(
    first: int, removed: bool
) -> None:
    class Leader:
        """What a broker sends to readers of all records."""

        def decoder(self, partition: TopicPartition, position: Position, options: DecoderOptions) -> RecordDecoder:
            return RecordDecoder(partition, position, options)

        async def fetch(self, fetches: Sequence[PartitionFetch]) -> None:
            written = encode_batch([b"open"], base_offset=first, compression=CompressionType.GZIP)
            fetches[0].start()
            fetches[0].feed(memoryview(written))

    options = DecoderOptions(defer_decompression=True, read_committed=True)
    empty = PartitionFetch(RecordDecoder(tp(), Position(0), options), 1000)
    assert not await is_removed(Leader(), empty, 3, options)  # type: ignore[arg-type]  # nothing says what is stable
    empty.last_stable = Position(3)
    assert await is_removed(Leader(), empty, 3, options) == removed  # type: ignore[arg-type]
