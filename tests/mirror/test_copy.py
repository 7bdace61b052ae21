"""Copying between clusters in memory: what is copied, again and again, and cut off anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import anyio
import pytest

from odradek.core.interfaces import ProducerRecord
from odradek.mirror.clusters import Clusters, read_progress, read_state
from odradek.mirror.config import MirrorConfig
from odradek.mirror.planning import MirrorRefused
from odradek.mirror.run import MirrorResult, run_open
from odradek.mirror.sources import ClusterSource
from odradek.mirror.status import status_open
from odradek.mirror.stored import CopyProgress, Progress, SourcePosition, StoredState, stored_records
from odradek.testing import MemoryCluster

from .mirrors import config_of, copied, opened, partition, records, same, url_of

pytestmark = pytest.mark.anyio


def rows(count: int, first: int = 0) -> list[ProducerRecord]:
    """Return records of all kinds: with and without keys, headers and values."""
    return [
        ProducerRecord(
            None if n % 7 == 3 else b"value %d" % n,
            None if n % 3 else b"key %d" % (n % 5),
            (("h", b"%d" % n), ("none", None)) if n % 4 == 0 else (),
            1_700_000_000_000 + n,
        )
        for n in range(first, first + count)
    ]


def filled(topics: dict[str, int], count: int = 50) -> MemoryCluster:
    cluster = MemoryCluster(topics)
    for topic, partitions in topics.items():
        for number in range(partitions):
            cluster.append(topic, rows(count, 1000 * number), partition=number)
    return cluster


async def run_mirror(
    source: MemoryCluster, target: MemoryCluster, config: MirrorConfig, **options: Any
) -> MirrorResult:
    async with opened(source, target) as clusters:
        return await run_open(config, clusters, **options)


def topics_of(cluster: MemoryCluster) -> set[str]:
    return set(cluster._state.table.topics)


async def until(condition: Any) -> None:
    """Wait until something is so."""
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - of clusters that notify nobody
            await anyio.sleep(0.002)


# ---- what is copied ------------------------------------------------------------------------------------------


async def test_everything_of_each_record() -> None:
    source, target = filled({"t": 3, "u": 1}), MemoryCluster()
    config = config_of("t", "u", topics={"rename": {"u": "v"}}, run={"tasks": 2})
    first = await run_mirror(source, target, config)
    assert copied(first) == 200 and first.bytes > 0 and first.lost == set()
    assert same(source, target, "t") and same(source, target, "u", "v")
    assert copied(await run_mirror(source, target, config)) == 0
    source.append("t", rows(5), partition=1)
    assert (await run_mirror(source, target, config)).records == {partition("t", 1): 5}
    assert same(source, target, "t")


async def test_empty_topics_are_made_and_nothing_is_written_twice() -> None:
    source, target = MemoryCluster({"t": 2}), MemoryCluster()
    config = config_of("t", run={"tasks": 1})
    assert copied(await run_mirror(source, target, config)) == 0
    assert target.records("t") == []
    stored = len(target.records(config.topic))
    assert copied(await run_mirror(source, target, config)) == 0
    assert {record.key for record in target.records(config.topic)[stored:]} == {b"began"}


async def test_small_transactions_have_an_index_that_finds_each_record() -> None:
    source, target = filled({"t": 2}), MemoryCluster()
    await run_mirror(source, target, config_of("t", run={"tasks": 1, "transaction_bytes": 1}))
    async with target.connect() as new:
        state, _ = await read_state(config_of("t"), new)
    for number in range(2):
        runs = sorted(run for entry in state.index[partition("t", number)].values() for run in entry.runs)
        assert sum(run.records for run in runs) == 50
        for stored in source.log(partition("t", number)):
            run = max(run for run in runs if run.position <= stored.offset)
            copy = target.log(partition("t", number))[run.offset + stored.offset - run.position]
            assert copy.record.value == stored.record.value


async def test_aborted_records_of_the_source_are_left_out() -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    async with source.connect() as old, old.producer(transactional_id="x") as out:
        with pytest.raises(ZeroDivisionError):
            async with out.transaction():
                await out.send("t", b"aborted")
                raise ZeroDivisionError
        async with out.transaction():
            await out.send("t", b"committed")
    config = config_of("t")
    assert copied(await run_mirror(source, target, config)) == 51
    assert same(source, target, "t")
    assert copied(await run_mirror(source, target, config)) == 0
    async with opened(source, target) as clusters:
        assert (await status_open(config, clusters)).lag == 0


async def test_append_copies_behind_what_there_is() -> None:
    source, target = filled({"t": 1}), MemoryCluster({"t": 1})
    target.append("t", [b"before"])
    config = config_of("t", topics={"append": True})
    await run_mirror(source, target, config)
    assert records(target, "t")[0][1:] == records(source, "t")[0]
    assert copied(await run_mirror(source, target, config)) == 0


async def test_origin_headers() -> None:
    source, target = filled({"t": 1}, 3), MemoryCluster()
    await run_mirror(source, target, config_of("t", topics={"origin_headers": True}))
    for number, record in enumerate(records(target, "t")[0]):
        origin = dict(record.headers)
        assert origin["odradek.topic"] == b"t" and origin["odradek.partition"] == b"0"
        assert origin["odradek.position"] == b"%d" % number
        assert (origin["odradek.cluster"] or b"").startswith(b"memory-")


async def test_limits_slow_a_run_down() -> None:
    source, target = MemoryCluster({"t": 1}), MemoryCluster()
    source.append("t", [b"." * 1000] * 14)
    limited = {"target_bytes_per_second": 10_000, "transaction_bytes": 1000, "source_bytes_per_second": 10_000}
    started = anyio.current_time()
    await run_mirror(source, target, config_of("t", run=limited))
    assert anyio.current_time() - started >= 0.39  # the first second of it is free
    assert same(source, target, "t")


async def test_a_source_that_has_an_id_since_it_was_upgraded_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    config = config_of("t", source={"url": "kafka://source"})
    with monkeypatch.context() as before:  # Kafka 0.10.1 brought ids of clusters
        before.setattr(ClusterSource, "identity", url_of)
        await run_mirror(source, target, config)
    source.append("t", rows(5, 100))
    assert copied(await run_mirror(source, target, config)) == 5
    moved = config_of("t", source={"url": "kafka://elsewhere"})
    assert copied(await run_mirror(source, target, moved)) == 0  # its id is noted now


# ---- following -----------------------------------------------------------------------------------------------


async def test_new_records_partitions_and_topics_are_followed() -> None:
    source, target = filled({"t1": 1}), MemoryCluster()
    source.create_topic("other")
    config = config_of(topics={"pattern": "t.*"}, run={"tasks": 2})
    async with opened(source, target) as clusters, anyio.create_task_group() as group:
        group.start_soon(lambda: run_open(config, clusters, follow=True))
        await until(lambda: "t1" in topics_of(target) and same(source, target, "t1"))
        source.append("t1", rows(5, 100))
        await until(lambda: same(source, target, "t1"))
        source.add_partitions("t1", 3)
        source.append("t1", rows(5, 200), partition=1)
        source.append("t1", rows(5, 300), partition=2)
        await until(lambda: same(source, target, "t1"))
        source.create_topic("t2", 2)
        source.append("t2", rows(5, 400), partition=1)
        await until(lambda: "t2" in topics_of(target) and same(source, target, "t2"))
        source.append("t1", rows(5, 500))
        await until(lambda: same(source, target, "t1"))
        group.cancel_scope.cancel()
    assert "other" not in topics_of(target)
    assert copied(await run_mirror(source, target, config)) == 0
    assert same(source, target, "t1") and same(source, target, "t2")


async def test_a_new_partition_is_not_copied_behind_records_of_others() -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    await run_mirror(source, target, config_of("t"))
    for cluster in (source, target):
        cluster.add_partitions("t", 2)
    source.append("t", rows(5, 100), partition=1)
    target.append("t", [b"of somebody else"], partition=1)
    with pytest.raises(MirrorRefused, match="'t' has records in partition 1 on the target, which is new on the source"):
        await run_mirror(source, target, config_of("t"))
    assert [record.value for record in records(target, "t")[1]] == [b"of somebody else"]
    assert copied(await run_mirror(source, target, config_of("t", topics={"append": True}))) == 5


async def test_a_new_topic_that_is_refused_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    source, target = filled({"t": 1}), MemoryCluster({"u": 1})
    target.append("u", [b"of somebody else"])
    config = config_of(topics={"pattern": ".*"})
    async with opened(source, target) as clusters, anyio.create_task_group() as group:
        group.start_soon(lambda: run_open(config, clusters, follow=True))
        await until(lambda: "t" in topics_of(target) and same(source, target, "t"))
        source.create_topic("u")
        await until(lambda: "a new topic is not copied" in caplog.text)
        source.create_topic("v")
        source.append("v", rows(3))
        await until(lambda: "v" in topics_of(target) and same(source, target, "v"))
        group.cancel_scope.cancel()
    assert caplog.text.count("topic 'u' has records on the target") == 1
    assert [record.value for record in records(target, "u")[0]] == [b"of somebody else"]


async def test_a_target_topic_that_was_made_again_ends_a_run_that_follows() -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    ended: list[MirrorRefused] = []

    async def follow(clusters: Clusters) -> None:
        with pytest.raises(MirrorRefused) as raised:
            await run_open(config_of("t"), clusters, follow=True)
        ended.append(raised.value)

    async with opened(source, target) as clusters, anyio.create_task_group() as group:
        group.start_soon(follow, clusters)
        await until(lambda: "t" in topics_of(target) and same(source, target, "t"))
        target.recreate_topic("t")
        await until(lambda: ended)
    assert "'t' was deleted and made again on the target" in str(ended[0])
    assert target.records("t") == []


# ---- status --------------------------------------------------------------------------------------------------


async def test_status_of_each_partition() -> None:
    source, target = filled({"t": 2}), MemoryCluster()
    config = config_of("t", run={"tasks": 2})
    async with opened(source, target) as clusters:
        none = await status_open(config, clusters)
        assert (none.partitions, none.lag, none.unit, none.finished) == ((), None, "records", None)
        await run_open(config, clusters)
        source.append("t", rows(3), partition=1)
        now = await status_open(config, clusters)
    first, second = now.partitions
    assert (first.source, first.target, first.records, first.position, first.end) == (
        partition("t"),
        partition("t"),
        50,
        50,
        50,
    )
    assert (first.lag, first.lag_seconds) == (0, 0.0) and first.at is not None
    assert (second.records, second.position, second.end, second.lag, now.lag) == (50, 50, 53, 3, 3)
    assert second.lag_seconds is not None and second.lag_seconds > 86400  # the records are of 2023


async def test_status_does_not_wait_for_a_transaction_that_is_open() -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    config = config_of("t", run={"tasks": 1})
    async with opened(source, target) as clusters:
        await run_open(config, clusters)
        source.append("t", rows(3))
        options: Any = {"transactional_id": config.transactional_id(0)}
        async with clusters.target.producer(**options) as killed, killed.transaction():
            later = stored_records([Progress(1, {partition("t"): CopyProgress(SourcePosition(53), 53, 53)})])
            (await killed.send_many(config.topic, [(key, value) for key, value in later], partition=0)).check()
            with anyio.fail_after(60):
                (now,) = (await status_open(config, clusters)).partitions
    assert (now.records, now.position, now.end, now.lag) == (50, 50, 53, 3)


# ---- the newest progress -------------------------------------------------------------------------------------


async def stored_progress(clusters: Clusters, config: MirrorConfig, lines: Iterable[tuple[bytes, Any]]) -> StoredState:
    await clusters.target.admin.create_topics(config.topic, partitions=1)
    async with clusters.target.producer() as out:
        await out.send_many(
            config.topic,
            [(key, json.dumps(value).encode()) for key, value in lines],
            partition=0,
        )
    return await read_progress(config, clusters.target, 0)


INDEX = {"topic": "t", "broker": -1, "partition": 0, "runs": [[5, 0, 9, 2]]}


@pytest.mark.parametrize("after", [0, 1, 63, 64, 65, 1000])
async def test_progress_is_found_however_long_ago(after: int) -> None:
    config = config_of("t")
    lines = [
        (b"progress", {"at": 1, "partitions": []}),
        (b"progress", {"at": 2, "partitions": []}),
        *((b"index t 0 %d" % n, INDEX) for n in range(after)),
    ]
    async with opened(MemoryCluster(), MemoryCluster()) as clusters:
        state = await stored_progress(clusters, config, lines)
    assert state.progress[0].at == 2


async def test_progress_that_there_is_not() -> None:
    config = config_of("t")
    async with opened(MemoryCluster(), MemoryCluster()) as clusters:
        assert (await stored_progress(clusters, config, [])).progress == {}
    async with opened(MemoryCluster(), MemoryCluster()) as clusters:
        assert (await stored_progress(clusters, config, [(b"index t 0 1", INDEX)] * 100)).progress == {}


async def test_progress_behind_a_transaction_that_was_left_open_is_waited_for() -> None:
    config, target = config_of("t"), MemoryCluster({"odradek.mirror.m": 1})
    states: list[StoredState] = []
    async with opened(MemoryCluster(), target) as clusters, clusters.target.producer(transactional_id="dead") as dead:

        async def read() -> None:
            states.append(await read_progress(config, clusters.target, 0))

        async with anyio.create_task_group() as group:
            with pytest.raises(ZeroDivisionError):
                async with dead.transaction():
                    await dead.send(config.topic, b"left", partition=0)
                    async with clusters.target.producer() as out:
                        await out.send(config.topic, b'{"at": 7, "partitions": []}', key=b"progress", partition=0)
                    group.start_soon(read)
                    await target.wait_for_requests("fetch", 2)
                    assert states == []
                    raise ZeroDivisionError
    assert [state.progress[0].at for state in states] == [7]
