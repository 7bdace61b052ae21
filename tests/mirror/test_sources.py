"""A cluster and its log directories are the same source of a mirror."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from uuid import uuid4

import anyio
import pytest

import odradek as od
from odradek.errors import BrokerError
from odradek.mirror.directories import DirectorySource
from odradek.mirror.sources import ClusterSource, MirrorSource
from odradek.mirror.stored import SourcePosition
from odradek.ranges.request import Directory
from odradek.testing import Kafka07Broker, KafkaBroker, MemoryCluster
from odradek.types import Position, Record, TopicPartition

from ..ended_transactions import transactions_ended

pytestmark = pytest.mark.anyio

Rows = dict[TopicPartition, list[Record]]


@dataclass(frozen=True)
class Pair:
    """A cluster with one topic, and its directories."""

    url: str
    topic: str
    directory: Directory

    @asynccontextmanager
    async def sources(self) -> AsyncIterator[tuple[MirrorSource, MirrorSource]]:
        async with od.connect(self.url) as cluster:
            yield ClusterSource(cluster, self.url), DirectorySource([self.directory])


async def ends_of(
    source: MirrorSource, partitions: Iterable[TopicPartition], *, read_committed: bool = True
) -> dict[TopicPartition, Position]:
    extents = await source.extents(list(partitions), read_committed=read_committed)
    return {partition: Position(extent.latest) for partition, extent in extents.items()}


async def read(
    source: MirrorSource,
    starts: Mapping[TopicPartition, SourcePosition | None],
    ends: Mapping[TopicPartition, Position] | None = None,
    *,
    read_committed: bool = True,
) -> Rows:
    """Everything between two positions; if None: to where the logs end now."""
    rows: Rows = {p: [] for p in starts}
    if ends is None:
        ends = await ends_of(source, starts, read_committed=read_committed)
    async with source.open(starts, ends, read_committed=read_committed, max_message_bytes=1 << 26) as batches:
        while (batch := await batches.next_batch()) is not None:
            rows[batch.partition] += batch
    return rows


# ---- cases that hold for both, of any release ----------------------------------------------------------------


async def are_described_alike(pair: Pair) -> None:
    async with pair.sources() as (cluster, directory):
        assert cluster.unit is directory.unit
        partitions = await cluster.partitions(pair.topic)
        assert len(partitions) == 3 and list(partitions) == list(await directory.partitions(pair.topic))
        listed = await cluster.listed()
        assert pair.topic in (await directory.listed() or ())
        assert listed is None or pair.topic in listed
        assert await directory.partitions("nothing") == []
        for committed in (True, False):
            extents = await cluster.extents(partitions, read_committed=committed)
            in_files = await directory.extents(partitions, read_committed=committed)
            assert extents.keys() == in_files.keys() == set(partitions)
            for partition, extent in extents.items():
                same = in_files[partition]
                assert (same.earliest, same.latest, same.topic_id) == (extent.earliest, extent.latest, extent.topic_id)


async def have_the_same_records(pair: Pair) -> None:
    async with pair.sources() as (cluster, directory):
        starts = dict.fromkeys(await cluster.partitions(pair.topic))
        for committed in (True, False):
            rows = await read(cluster, starts, read_committed=committed)
            assert all(len(some) > 100 for some in rows.values())
            assert await read(directory, starts, read_committed=committed) == rows


async def begin_and_end_at_any_record(pair: Pair) -> None:
    random = Random(22)
    async with pair.sources() as (cluster, directory):
        every = await read(cluster, dict.fromkeys(await cluster.partitions(pair.topic)))
        for _ in range(12):
            ranges = {p: sorted(random.choices(range(len(rows)), k=2)) for p, rows in every.items()}
            starts = {p: start_of(every[p][first]) for p, (first, _) in ranges.items()}
            ends = {p: every[p][last].position for p, (_, last) in ranges.items()}
            rows = await read(directory, starts, ends)
            assert rows == {
                p: [row for row in every[p][first:] if row.position < ends[p]] for p, (first, _) in ranges.items()
            }
            assert rows == await read(cluster, starts, ends)


async def continue_where_they_were_cancelled(pair: Pair) -> None:
    async with pair.sources() as (cluster, directory):
        every = await read(cluster, dict.fromkeys(await cluster.partitions(pair.topic)))
        for source in (cluster, directory):
            assert await read_with_cancellations(source, list(every), Random(7)) == every


async def read_with_cancellations(source: MirrorSource, partitions: Sequence[TopicPartition], random: Random) -> Rows:
    """Everything, by blocks that are cancelled while they wait for a batch."""
    rows: Rows = {p: [] for p in partitions}
    starts: dict[TopicPartition, SourcePosition | None] = dict.fromkeys(partitions)
    ends = await ends_of(source, partitions)
    ended, blocks = False, 0
    while not ended:
        blocks += 1
        async with source.open(starts, ends, read_committed=True, max_message_bytes=1 << 26) as batches:
            left = random.randrange(1, 4)  # batches of this block
            while left and not ended:
                batch, scope = None, anyio.CancelScope()
                async with anyio.create_task_group() as group:
                    group.start_soon(cancel_after, scope, random.randrange(20))
                    with scope:
                        batch = await batches.next_batch()
                        ended = batch is None
                    group.cancel_scope.cancel()
                if batch is not None:
                    rows[batch.partition] += batch
                    left -= 1
            starts = {**starts, **batches.positions()}
    assert blocks > 1
    return rows


async def cancel_after(scope: anyio.CancelScope, steps: int) -> None:
    for _ in range(steps):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


async def know_where_they_are(pair: Pair) -> None:
    async with pair.sources() as (cluster, directory):
        starts = dict.fromkeys(await cluster.partitions(pair.topic))
        ends = await ends_of(cluster, starts)
        after = []
        for source in (cluster, directory):
            last: dict[TopicPartition, Record] = {}
            async with source.open(starts, ends, read_committed=True, max_message_bytes=1 << 26) as batches:
                while (batch := await batches.next_batch()) is not None:
                    *_, last[batch.partition] = batch
                    at = batches.positions()[batch.partition]
                    assert (at.position, at.inner) >= start_of(last[batch.partition])[:2]
                after.append(batches.positions())
        assert {p: at.topic_id for p, at in after[0].items()} == {p: at.topic_id for p, at in after[1].items()}
        for partition, at in after[1].items():
            rest = {partition: at}
            assert await read(cluster, rest) == await read(directory, rest) == {partition: []}


async def refuse_what_the_log_does_not_have(pair: Pair) -> None:
    async with pair.sources() as (cluster, directory):
        partition = (await directory.partitions(pair.topic))[0]
        behind = (await ends_of(directory, [partition]))[partition] + 1000
        for source in (cluster, directory):
            with pytest.raises(od.OffsetOutOfRange):
                await read(source, {partition: SourcePosition(behind)}, {partition: Position(behind + 1)})


CASES: list[Callable[[Pair], Awaitable[None]]] = [
    are_described_alike,
    have_the_same_records,
    begin_and_end_at_any_record,
    continue_where_they_were_cancelled,
    know_where_they_are,
    refuse_what_the_log_does_not_have,
]

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


def start_of(record: Record) -> SourcePosition:
    return SourcePosition(record.position, record.inner_index)


# ---- Kafka 0.7 -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Segments of 20 kB, messages alone and in wrappers."""
    folder = tmp_path_factory.mktemp("old")
    with Kafka07Broker(folder / "logs", config={"num.partitions": "3", "log.file.size": "20000"}) as broker:
        url = f"kafka07://1@{broker.address}"
        anyio.run(write_old, url)
        yield Pair(url, "orders", Directory(str(folder / "logs"), 1))


async def write_old(url: str) -> None:
    async with od.connect(url) as k:
        for compression in ("none", "gzip", "snappy"):
            async with k.producer(compression=compression) as producer:
                for partition in range(3):
                    values = [b"%s %d %d" % (compression.encode(), partition, n) + bytes(n % 90) for n in range(400)]
                    await producer.send_many("orders", values, partition=TopicPartition("orders", partition, 1))


@each_case
async def test_directories_of_0_7_are_the_cluster(old: Pair, case: Callable[[Pair], Awaitable[None]]) -> None:
    await case(old)


# ---- Kafka 0.8 and later -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def new(any_kafka: KafkaBroker) -> Pair:
    topic = f"orders{uuid4().hex[:8]}"
    any_kafka.create_topic(topic, partitions=3)
    anyio.run(write_new, f"kafka://{any_kafka.bootstrap}", topic)
    ids = [any_kafka.data_dir / f"{topic}-{number}" / "partition.metadata" for number in range(3)]
    until = time.monotonic() + 60
    while not all(file.exists() for file in ids) and time.monotonic() < until:  # which the broker writes by and by
        time.sleep(0.01)
    return Pair(f"kafka://{any_kafka.bootstrap}", topic, Directory(str(any_kafka.data_dir)))


async def write_new(url: str, topic: str) -> None:
    async with od.connect(url) as k:
        for compression in ("none", "gzip", "lz4"):
            async with k.producer(compression=compression) as producer:
                for partition in range(3):
                    rows = [od.ProducerRecord(b"%d" % n + bytes(n % 90), b"k%d" % n) for n in range(400)]
                    (await producer.send_many(topic, rows, partition=partition)).check()
        try:
            k.driver.producer_transactions(topic, 60.0)
        except od.Unsupported:  # before 0.11
            return
        await write_transactions(k, topic)


async def write_transactions(k: od.Cluster, topic: str) -> None:
    """Of each three the second is aborted."""
    async with k.producer(transactional_id=topic) as producer:
        for number in range(6):
            with suppress(RuntimeError):
                async with producer.transaction():
                    for partition in range(3):
                        await producer.send_many(topic, [b"t%d" % number] * 5, partition=partition)
                    if number % 3 == 1:
                        raise RuntimeError
    await transactions_ended(k, topic)


@each_case
@pytest.mark.releases("4.3.1")
async def test_directories_of_later_releases_are_the_cluster(
    new: Pair, case: Callable[[Pair], Awaitable[None]]
) -> None:
    await case(new)


@pytest.mark.releases("4.3.1")
async def test_a_cluster_that_notes_its_id_is_known_by_it_in_its_directories(new: Pair) -> None:
    async with new.sources() as (cluster, directory):
        assert await cluster.identity() == await directory.identity()


async def test_leaders_that_move_are_asked_again_for_the_ends_of_logs() -> None:
    cluster = MemoryCluster({"t": 2})
    cluster.append("t", [od.ProducerRecord(b"1")])
    partitions = [TopicPartition("t", number) for number in range(2)]
    async with cluster.connect() as k:
        logs = ClusterSource(k, "kafka://memory")
        moved = BrokerError(6, "NOT_LEADER_OR_FOLLOWER", retriable=True, refresh_metadata=True)
        cluster.fail("positions", moved, times=3)
        extents = await logs.extents(partitions, read_committed=False)
        assert [extents[partition].latest for partition in partitions] == [1, 0]
        cluster.fail("positions", BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"))
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await logs.extents(partitions, read_committed=False)
