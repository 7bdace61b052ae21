"""Log directories as the source of a mirror: which copies are read, and the answer to each kind of damage."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.kafka_logs import batch, marker, messages, write_log

from odradek import engine
from odradek.batch import Batch
from odradek.core.interfaces import BYTES, RECORDS
from odradek.errors import Closed, ConfigError, CorruptMessage, OdradekError, OffsetOutOfRange, TopicRecreated
from odradek.mirror import directory_batches
from odradek.mirror.clusters import Clusters
from odradek.mirror.directories import DirectorySource
from odradek.mirror.directory_batches import AT_ONCE, PartitionReading
from odradek.mirror.run import run_open
from odradek.mirror.status import status_open
from odradek.mirror.stored import SourcePosition
from odradek.ranges.request import parse_directory
from odradek.testing import MemoryCluster
from odradek.types import Position, TopicPartition

from .mirrors import config_of

pytestmark = pytest.mark.anyio

ORDERS, ORDERS_07 = TopicPartition("orders", 0), TopicPartition("orders", 0, 1)
ID, OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
EVERYTHING = [*range(30)]


def source(*paths: Path | str, over_gaps: bool = False) -> DirectorySource:
    directories = [directory for path in paths if (directory := parse_directory(str(path)))]
    assert len(directories) == len(paths)
    return DirectorySource(directories, over_gaps=over_gaps)


def opened(
    logs: DirectorySource, start: SourcePosition | None = None, *, of: TopicPartition = ORDERS, committed: bool = False
) -> Any:
    return logs.open({of: start}, None, read_committed=committed, max_message_bytes=1 << 20)


async def values(logs: DirectorySource, start: int | None = None, **options: Any) -> list[bytes | None]:
    got: list[bytes | None] = []
    async with opened(logs, None if start is None else SourcePosition(start), **options) as batches:
        while (rows := await batches.next_batch()) is not None:
            got += rows.values
    return got


async def numbers(logs: DirectorySource, start: int | None = None, **options: Any) -> list[int]:
    return [int(value or b"") for value in await values(logs, start, **options)]


async def until_error(
    logs: DirectorySource, kind: type[OdradekError], start: SourcePosition | None = None, **options: Any
) -> tuple[list[bytes | None], OdradekError]:
    """What is read before an error, which asking again does not get over; and the error."""
    got: list[bytes | None] = []
    async with opened(logs, start, **options) as batches:
        with pytest.raises(kind) as first:
            while (rows := await batches.next_batch()) is not None:
                got += rows.values
        with pytest.raises(kind):
            await batches.next_batch()
    return got, first.value


async def latest(logs: DirectorySource, of: TopicPartition = ORDERS) -> int:
    return (await logs.extents([of], read_committed=True))[of].latest


def three_segments(directory: Path) -> Path:
    """Offsets 0 to 29, in three files of two batches each."""
    return write_log(directory, {n: batch(range(n, n + 5)) + batch(range(n + 5, n + 10)) for n in (0, 10, 20)})


def segment(directory: Path, start: int, suffix: str = ".log") -> Path:
    return directory / f"{start:020}{suffix}"


# ---- what there is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        messages(range(30), 0),
        messages(range(30), 1),
        messages(range(10), 0) + messages(range(10, 20), 1) + batch(range(20, 30)),
    ],
    ids=["0.8", "0.10", "all"],
)
async def test_logs_of_every_format_are_read_from_any_offset(data: bytes, tmp_path: Path) -> None:
    write_log(tmp_path / "orders-0", {0: data})
    logs = source(tmp_path)
    assert logs.unit is RECORDS and await latest(logs) == 30
    assert await numbers(logs) == EVERYTHING
    for start in (1, 13, 29, 30):
        assert await numbers(logs, start) == EVERYTHING[start:]


async def test_a_pattern_means_directories_with_logs_that_count(tmp_path: Path) -> None:
    three_segments(tmp_path / "a" / "orders-0")
    three_segments(tmp_path / "b" / "orders-1")
    three_segments(tmp_path / "b" / f"gone-0.{'0' * 32}-delete")
    three_segments(tmp_path / "b" / "__cluster_metadata-0")
    (tmp_path / "b" / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    (tmp_path / "empty").mkdir()
    for logs in (source(tmp_path / "*"), source(tmp_path / "a", f"{tmp_path}/b/*"), source(f"{tmp_path}/[ab]/*")):
        assert await logs.listed() == {"orders"}
        assert await logs.partitions("orders") == [TopicPartition("orders", n) for n in (0, 1)]
    for nothing in (tmp_path / "none", tmp_path / "emp*", tmp_path / "empty"):
        with pytest.raises(ConfigError, match=r"none|emp"):
            await source(tmp_path / "a", nothing).listed()


async def test_partitions_that_no_directory_has_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    three_segments(tmp_path / "orders-2")
    logs = source(tmp_path)
    assert await logs.partitions("orders") == [TopicPartition("orders", 2)]
    assert "orders: no directory has its partitions 0, 1" in caplog.text
    assert await logs.extents([ORDERS], read_committed=True) == {}
    with pytest.raises(ConfigError, match="no directory has orders/0"):
        await values(logs)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_of_several_copies_the_one_that_would_lead_is_read(
    order: Sequence[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends = [(1, 30), (2, 20), (2, 25)]  # each with the last leader epoch
    for number, (epoch, end) in enumerate(ends):
        log = write_log(tmp_path / str(number) / "orders-0", {0: batch(range(end), epoch=epoch)})
        (log / "leader-epoch-checkpoint").write_text(f"0\n1\n{epoch} 0\n")
    logs = source(*(tmp_path / str(number) for number in order), tmp_path / "*")
    assert await numbers(logs) == EVERYTHING[:25] and await latest(logs) == 25
    (text,) = [record.message for record in caplog.records if "read from" in record.message]
    assert f"read from {tmp_path / '2' / 'orders-0'}, which ends at 25" in text
    assert f"{tmp_path / '0' / 'orders-0'} ends at 30" in text


async def test_of_equal_copies_the_one_that_goes_back_furthest_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "abc":
        three_segments(tmp_path / name / "orders-0")
    for name in "ac":
        segment(tmp_path / name / "orders-0", 0).unlink()
    assert await numbers(source(tmp_path / "*")) == EVERYTHING
    assert "read from" not in caplog.text  # which is no news


REFUSED = {
    "two-ids": "are of different topics",
    "numbered": "leave 1@ out",
    "eras": "one of .* is of 0.7, the other one of a later release",
    "clusters": "are of different clusters",
    "brokers": "name their brokers",
}


@pytest.mark.parametrize("what", REFUSED)
async def test_directories_that_do_not_belong_together_are_refused(what: str, tmp_path: Path) -> None:
    paths = [f"1@{tmp_path}/a" if what == "numbered" else f"{tmp_path}/a", f"{tmp_path}/b"]
    for name, topic_id in (("a", ID), ("b", OTHER_ID)):
        if what == "brokers" or (what == "eras" and name == "b"):
            write_07(tmp_path / name / "orders-0", [[b"1"]])
            continue
        log = three_segments(tmp_path / name / "orders-0")
        if what == "two-ids":
            (log / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
        if what == "clusters":
            (tmp_path / name / "meta.properties").write_text(f"#\nversion=0\ncluster.id={topic_id}\nbroker.id=1\n")
    logs = source(*paths)
    with pytest.raises(ConfigError, match=REFUSED[what]):
        await logs.identity()
        await logs.listed()
        await logs.extents([ORDERS], read_committed=True)


async def test_the_identity_is_the_cluster_s_or_the_names(tmp_path: Path) -> None:
    three_segments(tmp_path / "a" / "orders-0")
    three_segments(tmp_path / "b" / "orders-1")
    assert await source(tmp_path / "a", tmp_path / "b").identity() == f"logs:{tmp_path}/a,{tmp_path}/b"
    assert await source(tmp_path / "b", tmp_path / "a").identity() == f"logs:{tmp_path}/a,{tmp_path}/b"
    (tmp_path / "a" / "meta.properties").write_text(f"version=0\ncluster.id={ID}\n")
    assert await source(tmp_path / "a", tmp_path / "b").identity() == ID
    assert await source(f"{tmp_path}/a/*", tmp_path / "b").identity() == ID


async def test_topics_that_were_compacted_are_known(tmp_path: Path) -> None:
    three_segments(tmp_path / "orders-0")
    three_segments(tmp_path / "users-0")
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nusers 0 20\n")
    logs = source(tmp_path)
    assert await logs.topic_configs("users") == {"cleanup.policy": "compact"}
    assert await logs.topic_configs("orders") == {}


# ---- where it ends -------------------------------------------------------------------------------------------


async def test_a_log_is_read_behind_what_the_broker_last_noted(tmp_path: Path) -> None:
    three_segments(tmp_path / "orders-0")
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\norders 0 12\n")
    logs = source(tmp_path)
    assert await latest(logs) == 30
    for committed in (True, False):
        assert await numbers(logs, committed=committed) == EVERYTHING


async def test_transactions_that_have_not_ended_are_left_out_and_nothing_behind_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def part(offsets: range, producer: int) -> bytes:
        return batch(offsets, producer=(producer, 0, 0), is_transactional=True)

    data = [part(range(5), 7), marker(5, 7, commit=True), part(range(6, 8), 7), part(range(8, 10), 8)]
    data += [marker(10, 8, commit=False), batch(range(11, 13)), part(range(13, 15), 9), marker(15, 9, commit=True)]
    write_log(tmp_path / "orders-0", {0: b"".join(data)})
    logs = source(tmp_path)
    assert await latest(logs) == 16
    assert await numbers(logs, committed=True) == [*range(5), 11, 12, 13, 14]
    assert "orders/0: records of a transaction that has not ended are left out: of producer 7, since offset 6" in (
        caplog.text
    )
    assert await numbers(logs) == [*range(5), *range(6, 10), *range(11, 15)]


@pytest.mark.parametrize("follow", [False, True])
async def test_a_mirror_is_at_the_end_behind_transactions_that_were_not_committed(follow: bool, tmp_path: Path) -> None:
    aborted, unfinished = (batch(range(n, n + 3), producer=(n, 0, 0), is_transactional=True) for n in (5, 9))
    write_log(tmp_path / "orders-0", {0: batch(range(5)) + aborted + marker(8, 5, commit=False) + unfinished})
    config, target = config_of("orders"), MemoryCluster()
    async with target.connect() as cluster, anyio.create_task_group() as group:
        clusters = Clusters(source(tmp_path), cluster)
        group.start_soon(partial(run_open, config, clusters, follow=follow))
        with anyio.fail_after(60):
            while (await status_open(config, clusters)).lag != 0:  # noqa: ASYNC110 - of a cluster that notifies nobody
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    assert [record.record.value for record in target.records("orders")] == [b"%d" % n for n in range(5)]


async def test_a_torn_end_is_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    last = segment(three_segments(tmp_path / "orders-0"), 20)
    last.write_bytes(last.read_bytes()[:-7])
    logs = source(tmp_path)
    assert await latest(logs) == 25 and await numbers(logs) == EVERYTHING[:25]
    assert f"{last}: the log ends at 25" in caplog.text


# ---- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "read"), [(0, 5), (10, 15), (20, 25)])
async def test_damage_is_an_error_with_file_and_offset_after_all_before_it(
    start: int, read: int, tmp_path: Path
) -> None:
    file = segment(three_segments(tmp_path / "orders-0"), start)
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    logs = source(tmp_path)
    got, error = await until_error(logs, CorruptMessage)
    assert got == [b"%d" % n for n in range(read)]
    assert str(error).startswith(f"orders/0 at {read}: {file}: ")


async def test_damage_at_the_end_is_met_also_if_that_was_asked_to_be_the_end(tmp_path: Path) -> None:
    file = segment(three_segments(tmp_path / "orders-0"), 20)
    data = bytearray(file.read_bytes())
    data[len(batch(range(20, 25))) + 16] = 9  # the magic of the last batch
    file.write_bytes(data)
    logs = source(tmp_path)
    end = await latest(logs)
    assert end == 25
    for start in (0, 25):
        ends = {ORDERS: Position(end)}
        starts = {ORDERS: SourcePosition(start)}
        async with logs.open(starts, ends, read_committed=True, max_message_bytes=1 << 20) as batches:
            with pytest.raises(CorruptMessage, match=f"orders/0 at 25: {file}"):
                while await batches.next_batch() is not None:
                    pass


async def test_positions_that_the_log_does_not_have_are_out_of_range(tmp_path: Path) -> None:
    log = three_segments(tmp_path / "orders-0")
    segment(log, 0).unlink()
    (log / "partition.metadata").write_text(f"version: 0\ntopic_id: {ID}\n")
    logs = source(tmp_path)
    assert await numbers(logs) == EVERYTHING[10:]
    for at in (SourcePosition(9), SourcePosition(31)):
        got, error = await until_error(logs, OffsetOutOfRange, at)
        assert got == [] and f"orders/0 at {at.position}: the log in its directory is from 10 to 30" in str(error)
    got, error = await until_error(logs, TopicRecreated, SourcePosition(12, 0, "1" * 32))
    assert got == []
    async with opened(logs) as batches:
        await batches.next_batch()
        (at,) = batches.positions().values()
    assert at.topic_id == "0" * 31 + "1"
    async with opened(logs, at._replace(position=15)) as batches:
        assert (await batches.next_batch()).position == 15


async def test_a_file_that_is_gone_is_an_error_of_ours(tmp_path: Path) -> None:
    log = three_segments(tmp_path / "orders-0")
    logs = source(tmp_path)
    assert await latest(logs) == 30
    segment(log, 10).unlink()
    got, error = await until_error(logs, OdradekError)
    assert got == [b"%d" % n for n in range(10)] and str(segment(log, 10)) in str(error)
    shutil.rmtree(log)
    with pytest.raises(OdradekError, match=str(log)):
        await source(log).listed()


# ---- Kafka 0.7 -----------------------------------------------------------------------------------------------


def message(value: bytes) -> bytes:
    data = b"\x00" + engine.active.crc32(value).to_bytes(4, "big") + value
    return len(data).to_bytes(4, "big") + data


def write_07(directory: Path, segments: Sequence[Sequence[bytes]]) -> list[Path]:
    """Segments that are adjacent; returns their files."""
    directory.mkdir(parents=True)
    at, files = 0, []
    for some in segments:
        data = b"".join(map(message, some))
        files.append(directory / f"{at:020}.kafka")
        files[-1].write_bytes(data)
        at += len(data)
    return files


THREE = [[b"%d" % n for n in range(first, first + 10)] for first in (10, 20, 30)]
SIZE = 11
"""Of a message of two bytes."""


async def test_partitions_of_0_7_belong_to_their_brokers(tmp_path: Path) -> None:
    for broker in (1, 2):
        write_07(tmp_path / str(broker) / "orders-0", [[b"of %d" % broker]])
    logs = source(f"1@{tmp_path}/1", f"2@{tmp_path}/2")
    partitions = await logs.partitions("orders")
    assert logs.unit is BYTES and partitions == [TopicPartition("orders", 0, 1), TopicPartition("orders", 0, 2)]
    assert await logs.identity() == f"logs:1@{tmp_path}/1,2@{tmp_path}/2"
    for partition in partitions:
        assert await values(logs, of=partition) == [b"of %d" % partition.broker]


async def test_a_missing_file_of_0_7_is_an_error_unless_told_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = write_07(tmp_path / "orders-0", THREE)
    files[1].unlink()
    got, error = await until_error(source(tmp_path), CorruptMessage)
    assert got == THREE[0] and f"orders/0 at {10 * SIZE}: " in str(error) and str(files[2]) in str(error)
    assert await values(source(tmp_path, over_gaps=True)) == THREE[0] + THREE[2]
    assert "reading on there" in caplog.text


async def test_a_torn_file_of_0_7_is_the_end_or_damage(tmp_path: Path) -> None:
    files = write_07(tmp_path / "orders-0", THREE)
    files[2].write_bytes(files[2].read_bytes()[:-4])
    logs = source(tmp_path)
    assert await latest(logs) == 29 * SIZE and await values(logs) == [*THREE[0], *THREE[1], *THREE[2][:-1]]
    files[1].write_bytes(files[1].read_bytes()[:-SIZE] + message(b"longer than there is room")[:SIZE])
    got, error = await until_error(source(tmp_path), CorruptMessage)
    assert got == [*THREE[0], *THREE[1][:-1]] and f"orders/0 at {19 * SIZE}: {files[1]}: " in str(error)


async def test_damage_of_0_7_names_file_and_position(tmp_path: Path) -> None:
    files = write_07(tmp_path / "orders-0", THREE)
    data = bytearray(files[2].read_bytes())
    data[3 * SIZE + 10] ^= 1
    files[2].write_bytes(data)
    logs = source(f"1@{tmp_path}")
    got, error = await until_error(logs, CorruptMessage, of=ORDERS_07)
    assert len(got) == 23 and str(error).startswith(f"orders/1-0 at {23 * SIZE}: {files[2]}: ")
    got, error = await until_error(logs, CorruptMessage, SourcePosition(12 * SIZE + 3), of=ORDERS_07)
    assert got == [] and str(files[1]) in str(error)  # no message begins there


# ---- how it is read ------------------------------------------------------------------------------------------


async def test_partitions_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_batches, "CHUNK", 64)
    partitions = [TopicPartition("orders", number) for number in range(AT_ONCE + 8)]
    for partition in partitions:
        three_segments(tmp_path / f"orders-{partition.partition}")
    logs = source(tmp_path)
    rows: dict[TopicPartition, list[int]] = {p: [] for p in partitions}
    order = []
    async with logs.open(dict.fromkeys(partitions), None, read_committed=True, max_message_bytes=1) as batches:
        while (batch := await batches.next_batch()) is not None:
            order.append(batch.partition)
            rows[batch.partition] += map(int, filter(None, batch.values))
    assert all(some == EVERYTHING for some in rows.values())
    assert order[:AT_ONCE] == order[AT_ONCE : 2 * AT_ONCE] == partitions[:AT_ONCE]


async def test_what_is_read_ahead_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_batches, "CHUNK", 64)
    monkeypatch.setattr(directory_batches, "READ_AHEAD", 1)
    read_next, read, taken, ahead = PartitionReading.next, 0, 0, []

    def counted(reading: PartitionReading) -> Batch | None:
        nonlocal read
        ahead.append(read - taken)
        read += 1
        return read_next(reading)

    monkeypatch.setattr(PartitionReading, "next", counted)
    three_segments(tmp_path / "orders-0")
    async with opened(source(tmp_path)) as batches:
        while await batches.next_batch() is not None:
            taken += 1
            for _ in range(50):
                await anyio.lowlevel.checkpoint()
    assert read == taken + 1 > 3 and max(ahead) == 0


async def test_a_block_can_be_left_at_any_time_and_then_gives_nothing(tmp_path: Path) -> None:
    three_segments(tmp_path / "orders-0")
    logs = source(tmp_path)
    for steps in range(12):
        async with opened(logs) as batches:
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
        with pytest.raises(Closed):
            await batches.next_batch()
        with anyio.CancelScope() as scope:
            async with opened(logs) as batches:
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught


async def test_an_error_of_the_block_leaves_it_as_it_is(tmp_path: Path) -> None:
    three_segments(tmp_path / "orders-0")
    with pytest.raises(ValueError, match="mine"):
        async with opened(source(tmp_path)):
            raise ValueError("mine")
