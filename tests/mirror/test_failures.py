"""What goes wrong on either side while a mirror copies, on clusters in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest

import odradek as od
import odradek.mirror.clusters as clusters_module
import odradek.mirror.run as run_module
import odradek.mirror.task as task_module
from odradek.client.admin import Admin
from odradek.core.admin import Results
from odradek.core.backoff import Backoff
from odradek.core.interfaces import ProducerRecord
from odradek.errors import (
    BrokerError,
    CommitOutcomeUnknown,
    ConnectionLost,
    CorruptMessage,
    Fenced,
    NotWritten,
    OdradekError,
    Unsupported,
)
from odradek.mirror.errors import LostRecords, ProgressLost, RecordRefused, SourceChanged, TargetChanged
from odradek.mirror.planning import MirrorRefused
from odradek.mirror.run import MirrorResult, finish, plan_open, run_open
from odradek.mirror.sources import ClusterSource
from odradek.mirror.stored import IndexEntry, StoredState
from odradek.mirror.task import LostRange
from odradek.testing import MemoryCluster
from odradek.types import Position, TopicPartition

from .mirrors import config_of, copied, opened, partition, records, same
from .test_copy import filled, rows, run_mirror, until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (run_module, task_module):
        monkeypatch.setattr(module, "PAUSES", Backoff(0.001, 2.0, 0.01))


async def error_of(source: MemoryCluster, target: MemoryCluster, config: Any, **options: Any) -> OdradekError:
    with pytest.raises(OdradekError) as raised:
        with anyio.fail_after(60):
            await run_mirror(source, target, config, **options)
    return raised.value


class Cut:
    """Does something once, after a number of commits."""

    def __init__(self, after: int, do: Callable[[], object]) -> None:
        self._left, self._do = after, do

    def __call__(self, _: object) -> None:
        self._left -= 1
        if not self._left:
            self._do()


SMALL = {"tasks": 1, "transaction_bytes": 100}


# ---- errors that pass ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["produce", "fetch", "commit_transaction", "init_producer", "positions"])
@pytest.mark.parametrize("applied", [False, True])
async def test_a_request_that_is_lost(operation: Any, applied: bool) -> None:
    source, target = filled({"t": 2}), MemoryCluster()
    config = config_of("t", run=SMALL)
    cluster = source if operation == "fetch" else target
    applied = applied and cluster is target and operation != "positions"
    error = ConnectionLost("memory", "reset", True)
    cut = Cut(2, lambda: cluster.fail(operation, error, applied=applied))
    await run_mirror(source, target, config, committed=cut)
    assert same(source, target, "t")


@pytest.mark.parametrize("operation", ["positions", "init_producer", "commit_transaction"])
async def test_a_run_that_begins_while_requests_are_lost(operation: Any) -> None:
    source, target = filled({"t": 2}), MemoryCluster()
    config = config_of("t", run=SMALL)
    await run_mirror(source, target, config)
    source.append("t", rows(10), partition=1)
    source.create_topic("u")
    error = ConnectionLost("memory", "reset", True)
    target.fail(operation, error, times=12)
    await run_mirror(source, target, config_of("t", "u", run=SMALL))
    assert same(source, target, "t") and "u" in target._state.table.topics


async def test_a_new_topic_is_copied_although_the_outcome_of_its_commit_was_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target, config = filled({"t1": 1}), MemoryCluster(), config_of(topics={"pattern": "t.*"}, run=SMALL)
    errors: list[OdradekError] = []
    prepare, lost = run_module._prepare, iter([CommitOutcomeUnknown("m", "no response")])

    async def prepare_unknown(*args: Any, running: bool, **options: Any) -> Any:
        prepared = await prepare(*args, running=running, **options)
        if running and (error := next(lost, None)) is not None:
            raise error
        return prepared

    monkeypatch.setattr(run_module, "_prepare", prepare_unknown)

    async def run() -> None:
        errors.append(await error_of(source, target, config, follow=True))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until(lambda: "t1" in target._state.table.topics and same(source, target, "t1"))
        source.create_topic("t2")
        source.append("t2", rows(5))
        await until(lambda: errors or ("t2" in target._state.table.topics and same(source, target, "t2")))
        group.cancel_scope.cancel()
    assert not errors and next(lost, None) is None


async def test_a_run_waits_for_topics_that_were_copied_before(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    config = config_of("t")
    await run_mirror(source, target, config)
    away = TopicsAtTheFourthCall(monkeypatch)
    source.append("t", rows(10))
    assert copied(await run_mirror(source, target, config)) == 10
    monkeypatch.setattr(run_module, "TOPICS_AWAY_S", 0.0)
    away.calls = 0
    error = await error_of(source, target, config)
    assert isinstance(error, MirrorRefused) and str(error) == "topics.include: the source has no topic 't'"


@pytest.mark.parametrize("follow", [True, False])
async def test_a_run_that_follows_waits_for_topics_that_it_never_saw(
    monkeypatch: pytest.MonkeyPatch, *, follow: bool
) -> None:
    """A broker of 0.7 takes its topics away, maybe before a mirror has written what it copies."""
    source, target = filled({"t": 1}), MemoryCluster()
    TopicsAtTheFourthCall(monkeypatch)
    async with opened(source, target) as pair:
        if follow:
            begun = await run_module.begin(config_of("t"), pair, follow=True)
            assert [topic.source for topic in begun.copied] == ["t"]
            return
        with pytest.raises(MirrorRefused, match="the source has no topic 't'"):
            await run_module.begin(config_of("t"), pair, follow=False)


class TopicsAtTheFourthCall:
    """A source that names no topics when it is asked for the first three times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0

        async def listed(cluster: ClusterSource) -> Any:
            self.calls += 1
            return () if self.calls < 4 else await as_it_is(cluster)

        as_it_is = ClusterSource.listed
        monkeypatch.setattr(ClusterSource, "listed", listed)


async def test_leaders_that_move() -> None:
    source, target = MemoryCluster({"t": 2}, brokers=2), MemoryCluster(brokers=2)
    for number in range(2):
        source.append("t", rows(50), partition=number)
    moves = [
        lambda: target.move_leader(partition("t", 0), 2),
        lambda: source.move_leader(partition("t", 1), 1),
        lambda: target.move_leader(TopicPartition("odradek.mirror.m", 0), 2),
    ]
    await run_mirror(source, target, config_of("t", run=SMALL), committed=lambda _: moves and moves.pop()())
    assert not moves[1:]
    assert same(source, target, "t")


async def test_a_new_leader_that_shows_less_than_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that begins would take older progress for the newest, and copy records twice (0.11 to 2.1)."""
    source, target = filled({"t": 2}), MemoryCluster()
    config = config_of("t", run=SMALL | {"tasks": 1})
    await run_mirror(source, target, config)
    ends, left = clusters_module._ends, 3

    async def ends_of_before(topic: str, cluster: Any, *, waits: bool) -> Mapping[TopicPartition, Position]:
        nonlocal left
        left -= 1
        now = await ends(topic, cluster, waits=waits)
        return now if left < 0 else {partition: Position(end // 2) for partition, end in now.items()}

    read = clusters_module.read_progress

    async def read_from_new_leader(*arguments: Any, **options: Any) -> StoredState:
        monkeypatch.setattr(clusters_module, "_ends", ends_of_before)
        return await read(*arguments, **options)

    monkeypatch.setattr(task_module, "read_progress", read_from_new_leader)
    source.append("t", rows(50))
    await run_mirror(source, target, config)
    assert left < 0 and same(source, target, "t")


@pytest.mark.parametrize("operation", ["produce", "commit_transaction"])
async def test_a_transaction_that_was_open_for_too_long(operation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has aborted it, and fences its producer, as if another process had begun."""
    source, target = filled({"t": 2}), MemoryCluster()
    config, fenced = config_of("t", run=SMALL), Fenced("odradek-mirror-m-0", "a newer epoch")
    error = await error_of(source, target, config, committed=Cut(1, lambda: target.fail(operation, fenced)))
    assert isinstance(error, Fenced) and not same(source, target, "t")
    monkeypatch.setattr(task_module.MirrorTask, "_is_timed_out", lambda _: True)
    source.append("t", rows(50))
    source.append("t", rows(50), partition=1)
    await run_mirror(source, target, config, committed=Cut(1, lambda: target.fail(operation, fenced)))
    assert same(source, target, "t")


async def test_transactions_get_smaller_for_a_slow_target_and_larger_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As brokers with a quota are: what waits for longer than `deliver_within` is not written."""
    monkeypatch.setattr(task_module, "LATE_S", 0.0)  # what fails was late
    source, target = filled({"t": 40}, 10), MemoryCluster()
    config = config_of("t", run={"tasks": 1, "transaction_bytes": 3000})
    store, is_slow, sizes = task_module.MirrorTask._store, True, []

    async def store_slowly(task: task_module.MirrorTask, producer: Any, entries: Any) -> Any:
        written = sum(run.records for each in entries if isinstance(each, IndexEntry) for run in each.runs)
        if is_slow and written > 40:
            raise NotWritten((), "late")
        return await store(task, producer, entries)

    def committed(copied: Any) -> None:
        nonlocal is_slow
        sizes.append(sum(each.records for each in copied))
        if len(sizes) == 3:
            is_slow = False
            monkeypatch.setattr(task_module, "LATE_S", 60.0)  # and what is written was not

    monkeypatch.setattr(task_module.MirrorTask, "_store", store_slowly)
    with anyio.fail_after(60):
        await run_mirror(source, target, config, committed=committed)
    assert same(source, target, "t")
    assert max(sizes[:3]) <= 40 < max(sizes[3:])


# ---- two runs ------------------------------------------------------------------------------------------------


async def test_a_second_run_takes_over() -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    config = config_of("t", run={"tasks": 1})
    errors: list[OdradekError] = []

    async def first() -> None:
        errors.append(await error_of(source, target, config, follow=True))

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await until(lambda: "t" in target._state.table.topics and same(source, target, "t"))
        await run_mirror(source, target, config)
        source.append("t", rows(3))
        await until(lambda: errors)
    assert isinstance(errors[0], Fenced)
    assert str(errors[0]) == (
        "task 0 of mirror 'm' is fenced: another process began to run this mirror, and continues after what this one"
        " has committed (run a mirror in one place at a time)"
    )
    assert copied(await run_mirror(source, target, config)) == 3
    assert same(source, target, "t")


async def test_a_run_that_begins_while_another_one_begins() -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    target.hold("produce")
    errors: list[OdradekError] = []

    async def first() -> None:
        errors.append(await error_of(source, target, config_of("t")))

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await target.wait_for_held("produce")  # of what decides
        group.start_soon(run_mirror, source, target, config_of("t"))
        await target.wait_for_held("produce", 2)
        target.release("produce")
    assert isinstance(errors[0], Fenced)
    assert str(errors[0]).startswith("mirror 'm' is fenced: another process began to run this mirror")
    assert same(source, target, "t")


async def test_a_run_does_not_wait_for_the_transaction_of_a_process_that_was_killed() -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    config = config_of("t", run={"tasks": 1})
    await run_mirror(source, target, config)
    source.append("t", rows(10))
    async with target.connect() as cluster:
        with pytest.raises(OdradekError):  # this transaction, which would be open for a minute, is aborted
            async with cluster.producer(transactional_id=config.transactional_id(0)) as killed, killed.transaction():
                (await killed.send_many(config.topic, [ProducerRecord(b"-", b"-")], partition=0)).check()
                with anyio.fail_after(30):
                    assert copied(await run_mirror(source, target, config)) == 10
    assert same(source, target, "t")


async def test_finishing_ends_a_run_for_good() -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    config = config_of("t", run={"tasks": 1})
    errors: list[OdradekError] = []

    async def first() -> None:
        errors.append(await error_of(source, target, config, follow=True))

    async with opened(source, target) as clusters, anyio.create_task_group() as group:
        with pytest.raises(MirrorRefused, match="the target has no mirror 'm'"):
            await finish(config, clusters.target)
        group.start_soon(first)
        await until(lambda: "t" in target._state.table.topics and same(source, target, "t"))
        await finish(config, clusters.target)
        source.append("t", [b"late"])
        await until(lambda: errors)
    assert isinstance(errors[0], Fenced | MirrorRefused)
    assert "is finished" in str(await error_of(source, target, config))
    assert records(target, "t")[0] == records(source, "t")[0][:-1]


async def test_a_mirror_back_is_allowed_once_the_first_is_finished() -> None:
    old, new = filled({"t": 1}), MemoryCluster()
    forth, back = config_of("t", name="forth"), config_of("t", name="back", topics={"append": True})
    await run_mirror(old, new, forth)
    assert "'t': the mirror 'forth' copies it from the target to the source" in str(await error_of(new, old, back))
    assert set(old._state.table.topics) == {"t"}
    async with new.connect() as cluster:
        await finish(forth, cluster)
    async with opened(new, old) as clusters:
        assert [topic.copied.target for topic in (await plan_open(back, clusters)).topics] == ["t"]


# ---- the source ----------------------------------------------------------------------------------------------


async def test_records_that_were_deleted_before_they_were_copied() -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    await run_mirror(source, target, config_of("t"))
    source.append("t", rows(50, 100))
    source.delete_records(partition("t"), 60)
    error = await error_of(source, target, config_of("t"))
    assert isinstance(error, LostRecords)
    assert str(error).startswith("the source deleted records before they were copied: t/0: 50 to 60 (topics.lost")
    assert len(records(target, "t")[0]) == 50
    result = await run_mirror(source, target, config_of("t", topics={"lost": "continue"}))
    assert result.lost == {LostRange(partition("t"), 50, 60)} and copied(result) == 40
    assert records(target, "t")[0][50:] == records(source, "t")[0]


@pytest.mark.parametrize("lost", ["fail", "continue"])
async def test_records_that_are_deleted_while_they_are_copied(lost: str) -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    config = config_of("t", topics={"lost": lost}, run=SMALL)
    results: list[MirrorResult | OdradekError] = []

    async def follow(clusters: Any) -> None:
        ends = Cut(1, lambda: source.hold("fetch"))
        try:
            results.append(await run_open(config, clusters, follow=True, committed=ends))
        except OdradekError as error:
            results.append(error)

    async with opened(source, target) as clusters, anyio.create_task_group() as group:
        group.start_soon(follow, clusters)
        await source.wait_for_held("fetch")
        source.append("t", rows(50, 100))
        source.delete_records(partition("t"), 90)
        source.release("fetch")
        if lost == "continue":
            await until(lambda: [record.value for record in records(target, "t")[0]][-1] == b"value 149")
            group.cancel_scope.cancel()
        else:
            await until(lambda: results)
    values = [record.value for record in records(target, "t")[0]]
    assert len(values) == len(set(values) - {None}) + values.count(None)
    if lost == "fail":
        assert isinstance(results[0], LostRecords)


@pytest.mark.parametrize("lost", ["fail", "continue"])
async def test_a_source_topic_that_was_made_again(lost: str) -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    config = config_of("t", topics={"lost": lost})
    await run_mirror(source, target, config)
    source.recreate_topic("t")
    source.append("t", rows(70, 500))
    error = await error_of(source, target, config)
    assert isinstance(error, SourceChanged)
    assert "the topic was deleted and made again" in str(error)
    assert len(records(target, "t")[0]) == 50


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("end", [0, 30])
async def test_a_source_log_that_was_cut(monkeypatch: pytest.MonkeyPatch, end: int, *, follow: bool) -> None:
    monkeypatch.setattr(task_module, "SHOWN_WITHIN_S", 0.05)
    source, target = filled({"t": 1}), MemoryCluster()
    config = config_of("t", topics={"lost": "continue"})
    await run_mirror(source, target, config)
    source.truncate_log(partition("t"), end)
    error = await error_of(source, target, config, follow=follow)
    assert isinstance(error, SourceChanged) and not error.retriable
    assert len(records(target, "t")[0]) == 50


async def test_a_new_leader_of_the_source_that_shows_less_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.2 (KIP-207)."""
    source, target = filled({"t": 1}), MemoryCluster()
    config = config_of("t")
    await run_mirror(source, target, config)
    extents, calls = ClusterSource.extents, []

    async def less_at_first(self: ClusterSource, *args: Any, **options: Any) -> Any:
        calls.append(args)
        shown = await extents(self, *args, **options)
        return {p: log._replace(latest=log.latest - 10 * (len(calls) < 4)) for p, log in shown.items()}

    monkeypatch.setattr(ClusterSource, "extents", less_at_first)
    assert copied(await run_mirror(source, target, config)) == 0
    source.append("t", rows(10))
    assert copied(await run_mirror(source, target, config)) == 10
    assert same(source, target, "t")


async def test_records_before_a_corrupt_one_are_copied() -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    source.corrupt(partition("t"), 20)
    error = await error_of(source, target, config_of("t"))
    assert isinstance(error, CorruptMessage) and "t/0 at 20" in str(error)
    assert records(target, "t")[0] == records(source, "t")[0][:20]


# ---- the target ----------------------------------------------------------------------------------------------


async def test_a_record_that_is_too_large() -> None:
    source, target = filled({"t": 1}, 20), MemoryCluster()
    source.append("t", [b"." * 1970])
    config = config_of("t", topics={"origin_headers": True}, run={"max_message_bytes": 2000, "tasks": 1})
    error = await error_of(source, target, config)
    assert isinstance(error, RecordRefused)
    assert str(error).startswith("the record of t/0 at 20: the target does not take it: ")
    assert str(error).endswith("(raise run.max_message_bytes)")
    assert copied(await run_mirror(source, target, config_of("t"))) == 21
    assert same(source, target, "t")


def without_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make clusters in memory as old as brokers before 0.11."""

    def refuse(self: object, transactional_id: str, timeout_s: float) -> None:
        raise Unsupported("a transaction", "Kafka 0.11")

    monkeypatch.setattr("odradek.testing.memory.driver.MemoryDriver.producer_transactions", refuse)


async def test_a_target_without_transactions_is_copied_to_at_least_once(monkeypatch: pytest.MonkeyPatch) -> None:
    without_transactions(monkeypatch)
    source, target = filled({"t": 2}), MemoryCluster()
    config = config_of("t", run=SMALL)
    async with opened(source, target) as clusters:
        assert not (await plan_open(config, clusters)).exactly_once
    cut = Cut(2, lambda: target.fail("produce", ConnectionLost("memory", "reset", True), applied=True))
    await run_mirror(source, target, config, committed=cut)
    assert copied(await run_mirror(source, target, config)) == 0
    for number in range(2):
        copies, originals = records(target, "t")[number], records(source, "t")[number]
        assert [r for n, r in enumerate(copies) if r not in copies[:n]] == originals
    async with opened(source, target) as clusters:
        await finish(config, clusters.target)
    assert "is finished" in str(await error_of(source, target, config))


async def test_origin_headers_need_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    without_transactions(monkeypatch)
    source, target = filled({"t": 2}), MemoryCluster()
    error = await error_of(source, target, config_of("t", topics={"origin_headers": True}))
    assert isinstance(error, MirrorRefused) and "the target has no headers" in str(error)
    assert not target._state.table.topics


@pytest.mark.parametrize("end", [0, 30])
@pytest.mark.parametrize("more", [0, 5])
async def test_a_target_log_that_was_cut(monkeypatch: pytest.MonkeyPatch, end: int, more: int) -> None:
    """Or whose topic was made again, where brokers have no ids (before 2.8)."""
    monkeypatch.setattr(task_module, "SHOWN_WITHIN_S", 0.05)
    source, target = filled({"t": 1}), MemoryCluster()
    await run_mirror(source, target, config_of("t"))
    source.append("t", rows(more))
    target.truncate_log(partition("t"), end)
    error = await error_of(source, target, config_of("t"))
    assert isinstance(error, TargetChanged) and not error.retriable
    assert f"t/0 ended at {end}, and had records up to 50" in str(error)
    assert len(records(target, "t").get(0, ())) == end


@pytest.mark.parametrize("by", ["source", "key"])
async def test_a_target_topic_that_is_made_again_while_it_is_copied_to(by: str) -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    config = config_of("t", topics={"partition_by": by}, run={"refresh_seconds": 600})

    def spoil() -> None:
        target.recreate_topic("t")
        source.append("t", rows(5))

    error = await error_of(source, target, config, committed=Cut(1, spoil), follow=True)
    assert isinstance(error, TargetChanged), error
    assert "t/0 ended at 0, and had records up to 50: the topic was made again" in str(error)
    assert not records(target, "t")


async def test_a_target_topic_that_is_deleted_before_a_task_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "SHOWN_WITHIN_S", 0.05)
    source, target = filled({"t": 1}), MemoryCluster()
    await run_mirror(source, target, config_of("t"))
    read = clusters_module.read_progress

    async def delete_and_read(*args: Any, **options: Any) -> Any:
        target.delete_topic("t")
        return await read(*args, **options)

    monkeypatch.setattr(task_module, "read_progress", delete_and_read)
    error = await error_of(source, target, config_of("t"))
    assert isinstance(error, TargetChanged) and "topic 't' was deleted" in str(error)


async def test_a_restarted_broker_of_the_target_that_knows_no_topics_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of releases with ZooKeeper, for about half a second: seen with 2.8.2."""
    source, target = filled({"t": 1}), MemoryCluster()
    known, unknown = clusters_module.existing_topics, 0

    async def none_at_first(*args: Any) -> set[str]:
        nonlocal unknown
        unknown -= 1
        return set() if unknown > 0 else await known(*args)

    monkeypatch.setattr(clusters_module, "existing_topics", none_at_first)
    async with opened(source, target) as clusters, anyio.create_task_group() as group:
        group.start_soon(lambda: run_open(config_of("t"), clusters, follow=True))
        await until(lambda: "t" in target._state.table.topics and same(source, target, "t"))
        unknown = 5
        await until(lambda: unknown < -10)
        source.append("t", rows(3))
        await until(lambda: same(source, target, "t"))
        group.cancel_scope.cancel()


@pytest.mark.parametrize("denied", ["t", "odradek.mirror.m"])
@pytest.mark.parametrize("follow", [True, False])
async def test_a_topic_of_the_target_that_may_not_be_described_is_not_taken_for_one_that_was_deleted(
    monkeypatch: pytest.MonkeyPatch, denied: str, *, follow: bool
) -> None:
    source, target = filled({"t": 1}), MemoryCluster()
    await run_mirror(source, target, config_of("t"))
    topics, describe = od.Cluster.topics, Admin.describe_topics

    async def listed(self: od.Cluster) -> frozenset[str]:
        is_target = self.driver._state is target._state  # type: ignore[attr-defined]
        return await topics(self) - ({denied} if is_target else set())

    async def described(self: Admin, names: Any) -> Any:
        results = await describe(self, names)
        error = BrokerError(29, "TOPIC_AUTHORIZATION_FAILED", f"describing topic {denied!r}")
        return Results({}, {denied: error}) if denied in names else results

    monkeypatch.setattr(od.Cluster, "topics", listed)
    monkeypatch.setattr(Admin, "describe_topics", described)
    source.append("t", rows(3))
    error = await error_of(source, target, config_of("t"), follow=follow)
    assert str(error) == f"describing topic {denied!r}: TOPIC_AUTHORIZATION_FAILED (code 29)"


@pytest.mark.parametrize("again", [True, False])
async def test_the_mirrors_topic_that_was_made_again_while_it_copies(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters_module, "SHOWN_WITHIN_S", 0.05)
    source, target = filled({"t": 1}), MemoryCluster()
    config = config_of("t", run=SMALL)

    def spoil() -> None:
        target.recreate_topic(config.topic)
        if again:
            source.fail("fetch", ConnectionLost("memory", "reset", True))
            target.fail("commit_transaction", BrokerError(48, "INVALID_TXN_STATE", "test"))

    error = await error_of(source, target, config, committed=Cut(1, spoil), follow=True)
    assert isinstance(error, ProgressLost | MirrorRefused), error
    assert same_prefix(source, target)


def same_prefix(source: MemoryCluster, target: MemoryCluster) -> bool:
    copies = records(target, "t")[0]
    return copies == records(source, "t")[0][: len(copies)]


# ---- refused, and nothing is written -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topics", "target_topics", "why"),
    [
        ({}, {"t": 3}, "'t' has 3 partitions on the target, and 2 on the source"),
        ({"rename": {"t": "u"}}, {"u": 2}, "'u' has records on the target"),
        ({"include": ["t", "none"]}, {}, "the source has no topic 'none'"),
    ],
)
async def test_refused_and_nothing_is_written(topics: dict[str, Any], target_topics: dict[str, int], why: str) -> None:
    source, target = filled({"t": 2}), MemoryCluster(target_topics)
    for topic in target_topics:
        target.append(topic, [ProducerRecord(b"before")])
    before = {topic: target.records(topic) for topic in target._state.table.topics}
    error = await error_of(source, target, config_of("t", topics=topics))
    assert isinstance(error, MirrorRefused) and why in str(error)
    assert {topic: target.records(topic) for topic in target._state.table.topics} == before
    assert not target.requests("produce")


async def test_no_topic_is_made_if_the_target_would_not_make_all(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_the_configuration_of(monkeypatch, "u")
    source, target, config = filled({"t": 1, "u": 1}), MemoryCluster(), config_of("t", "u")
    error = await error_of(source, target, config)
    assert isinstance(error, MirrorRefused)
    assert str(error) == (
        "creating topic 'u': Invalid value none for configuration cleanup.policy: INVALID_CONFIG (code 40): make topic "
        "'u' yourself, with 1 partitions, or leave it out"
    )
    assert target._state.table.topics == {config.topic}
    async with opened(source, target) as clusters:
        with pytest.raises(MirrorRefused, match="topic 'u': Invalid value none"):
            await plan_open(config, clusters)
    target.create_topic("u")
    await run_mirror(source, target, config)
    assert same(source, target, "t") and same(source, target, "u")


async def test_a_new_topic_that_the_target_would_not_make_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_the_configuration_of(monkeypatch, "u")
    source, target, config = filled({"t": 1}), MemoryCluster(), config_of(topics={"pattern": "."})
    async with opened(source, target) as clusters, anyio.create_task_group() as group:
        group.start_soon(lambda: run_open(config, clusters, follow=True))
        await until(lambda: "t" in target._state.table.topics and same(source, target, "t"))
        source.create_topic("u")
        source.append("u", rows(3))
        await until(lambda: "a new topic is not copied: creating topic 'u': Invalid value none" in caplog.text)
        source.create_topic("v")
        source.append("v", rows(3))
        await until(lambda: "v" in target._state.table.topics and same(source, target, "v"))
        target.create_topic("u")
        await until(lambda: same(source, target, "u"))
        group.cancel_scope.cancel()
    assert caplog.text.count("a new topic is not copied") == 1


def refuse_the_configuration_of(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """Configure a topic of the source as no target takes it."""

    async def topic_configs(self: ClusterSource, topic: str) -> dict[str, str]:
        return {"cleanup.policy": "none"} if topic == refused else {}

    monkeypatch.setattr(ClusterSource, "topic_configs", topic_configs)


async def test_a_cluster_is_not_mirrored_to_itself() -> None:
    cluster = filled({"t": 1})
    error = await error_of(cluster, cluster, config_of("t", topics={"rename": {"t": "u"}}))
    assert "source and target are the same cluster (memory-" in str(error)
    assert set(cluster._state.table.topics) == {"t"}
