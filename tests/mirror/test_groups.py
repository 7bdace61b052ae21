"""What is decided about positions of groups, between two clusters in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

import odradek as od
import odradek.mirror.run as run_module
from odradek.core.admin import ClusterDescription
from odradek.core.interfaces import RawResponse
from odradek.errors import BrokerError, Unsupported
from odradek.mirror import clusters
from odradek.mirror.config import ClusterConfig, MirrorConfig
from odradek.mirror.cutover import cutover
from odradek.mirror.groups import GroupPosition, GroupsResult, groups
from odradek.mirror.planning import MirrorRefused
from odradek.mirror.run import run
from odradek.mirror.sources import ClusterSource
from odradek.mirror.stored import StoredState
from odradek.testing import MemoryCluster
from odradek.types import TopicPartition

from .mirrors import url_of
from .moving import mirror_of, rest_of

pytestmark = pytest.mark.anyio

PARTITION = TopicPartition("orders", 0)


class Pair:
    """Two clusters, and a mirror of the topic `orders`."""

    def __init__(self) -> None:
        self.source, self.target = MemoryCluster({"orders": 1, "others": 1}), MemoryCluster()

    def mirror(self, **tables: Any) -> MirrorConfig:
        return mirror_of("kafka://source:1", "kafka://target:1", "orders", **tables)

    def connect(self, config: ClusterConfig) -> od.Cluster:
        return (self.source if "source" in config.url else self.target).connect()

    def write(self, *values: bytes) -> None:
        self.source.append("orders", values)

    async def write_transaction(self, *values: bytes, abort: bool = False) -> None:
        async with self.source.connect() as k, k.producer(transactional_id="writer") as producer:
            try:
                async with producer.transaction():
                    (await producer.send_many("orders", values)).check()
                    if abort:
                        raise LookupError
            except LookupError:
                pass

    def on_target(self, group: str) -> int | None:
        return self.target.committed(group).get(PARTITION) if group in self.groups() else None

    def groups(self) -> set[str]:
        return set(self.target._state.groups)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Pair:
    pair = Pair()
    monkeypatch.setattr(ClusterConfig, "connect", lambda config, _=None: pair.connect(config))
    monkeypatch.setattr(ClusterSource, "identity", url_of)
    return pair


async def only(config: MirrorConfig, *, apply: bool = True) -> GroupPosition:
    """Translate the positions of the only group, which has committed one."""
    (row,) = (await groups(config, apply=apply)).positions
    return row


async def test_every_position_between_markers_and_records_of_aborted_transactions(pair: Pair) -> None:
    for number in range(3):
        pair.write(*(b"%d-%d" % (number, each) for each in range(4)))
        await pair.write_transaction(b"aborted", b"aborted", abort=True)
        await pair.write_transaction(b"%d-a" % number, b"%d-b" % number)
        if number == 1:
            await run(pair.mirror(name="m"))
    mirror = pair.mirror(name="m")
    await run(mirror)
    async with pair.source.connect() as source, pair.target.connect() as target:
        end = (await source.positions("orders", od.LATEST))[PARTITION]
        for position in range(end + 1):
            pair.source.set_committed(f"g{position:03}", {PARTITION: position})
        result = await groups(mirror, apply=True)
        assert result.ok
        assert [row.match for row in result.positions] == ["exact"] * (end + 1)
        for row in result.positions:
            committed = pair.target.committed(row.group)
            assert committed == {PARTITION: row.offset}
            rest = await rest_of(target, committed)
            assert rest == await rest_of(source, {PARTITION: row.committed})
            assert row.target_lag == len(rest[0])
            assert row.source_lag == end - row.committed


async def test_beyond_what_is_mirrored_it_is_the_end_of_that(pair: Pair) -> None:
    mirror = pair.mirror()
    pair.write(b"1", b"2")
    await run(mirror)
    pair.write(b"3", b"4")
    pair.source.set_committed("g", {PARTITION: 3})
    row = await only(mirror)
    assert (row.match, row.decision, row.target_lag, row.ok) == ("not mirrored", "write", 0, False)
    assert pair.on_target("g") == row.offset == 2
    assert "not copied yet" in row.why
    await run(mirror)
    row = await only(mirror)
    assert (row.match, row.decision, row.before, row.target_lag, row.ok) == ("exact", "write", 2, 1, True)
    assert pair.on_target("g") == row.offset == 4  # after the marker of the first transaction, and "3"


async def test_the_ends_of_transactions_alone_are_nothing_to_copy(pair: Pair) -> None:
    mirror = pair.mirror()
    pair.write(b"1", b"2")
    await run(mirror)
    await pair.write_transaction(b"aborted", abort=True)
    pair.source.set_committed("g", {PARTITION: 4})
    assert (await only(mirror)).match == "exact"
    assert pair.on_target("g") == 2


async def test_behind_an_open_transaction_nothing_is_waited_for(pair: Pair) -> None:
    mirror = pair.mirror()
    pair.write(b"1")
    await run(mirror)
    async with pair.source.connect() as k, k.producer(transactional_id="writer") as producer, producer.transaction():
        await producer.send("orders", b"open")
        pair.source.set_committed("g", {PARTITION: 2})
        with anyio.fail_after(30):
            assert (await only(mirror)).match == "not mirrored"


async def test_a_group_never_goes_back(pair: Pair) -> None:
    mirror = pair.mirror()
    pair.write(b"1", b"2", b"3")
    await run(mirror)
    pair.source.set_committed("g", {PARTITION: 1})
    pair.target.set_committed("g", {PARTITION: 2})
    row = await only(mirror)
    assert (row.match, row.decision, row.before, row.offset, row.target_lag) == ("exact", "keep", 2, 1, 1)
    assert row.ok and "further on" in row.why
    assert pair.on_target("g") == 2


async def test_nothing_is_written_without_apply_nor_into_a_group_with_members(pair: Pair) -> None:
    mirror = pair.mirror()
    pair.write(b"1", b"2", b"3")
    await run(mirror)
    pair.source.set_committed("g", {PARTITION: 2})
    assert (await only(mirror, apply=False)).decision == "write"
    assert pair.on_target("g") is None
    async with pair.target.connect() as k, k.consumer("orders", group="g") as consumer:
        await anext(consumer)
        for apply in (False, True):
            row = await only(mirror, apply=apply)
            assert (row.decision, row.ok) == ("refuse", False)
            assert "has members on the target" in row.why
        assert pair.on_target("g") in (None, 0)
    assert (await only(mirror)).ok


async def test_members_that_have_moved_already_are_in_nobodys_way(pair: Pair) -> None:
    mirror = pair.mirror()
    pair.write(b"1", b"2", b"3")
    await run(mirror)
    pair.source.set_committed("g", {PARTITION: 2})
    assert (await only(mirror)).decision == "write"
    async with pair.target.connect() as k, k.consumer("orders", group="g") as consumer:
        await anext(consumer)
        row = await only(mirror)
        assert (row.decision, row.match, row.ok) == ("keep", "exact", True)


async def test_members_that_come_in_between_are_not_written_over(pair: Pair) -> None:
    mirror = pair.mirror()
    pair.write(b"1", b"2", b"3")
    await run(mirror)
    pair.source.set_committed("g", {PARTITION: 2})
    pair.target.fail("commit", BrokerError(25, "UNKNOWN_MEMBER_ID"), times=None)
    row = await only(mirror)
    assert (row.decision, row.target_lag, row.ok) == ("refuse", None, False)
    assert "UNKNOWN_MEMBER_ID" in row.why
    assert pair.on_target("g") is None


@pytest.mark.parametrize(("lost", "offset"), [("fail", None), ("earliest", 0), ("latest", 3)])
async def test_what_the_source_had_deleted(pair: Pair, lost: str, offset: int | None) -> None:
    pair.write(b"1", b"2", b"3", b"4", b"5")
    pair.source.delete_records(PARTITION, 2)
    mirror = pair.mirror(groups={"lost": lost})
    await run(mirror)
    pair.source.set_committed("g", {PARTITION: 1})
    row = await only(mirror)
    assert (row.match, row.offset, row.ok) == ("lost", offset, lost != "fail")
    assert "before they were copied" in row.why
    assert pair.on_target("g") == offset


@pytest.mark.parametrize(("lost", "offset"), [("fail", None), ("earliest", 3), ("latest", 5)])
async def test_what_the_target_has_deleted(pair: Pair, lost: str, offset: int | None) -> None:
    pair.write(b"1", b"2", b"3", b"4", b"5")
    mirror = pair.mirror(groups={"lost": lost})
    await run(mirror)
    pair.target.delete_records(PARTITION, 3)
    pair.source.set_committed("g", {PARTITION: 2})
    pair.source.set_committed("kept", {PARTITION: 3})
    row, kept = (await groups(mirror, apply=True)).positions
    assert (row.match, row.offset, row.ok) == ("lost", offset, lost != "fail")
    assert (kept.match, kept.offset) == ("exact", 3)


@pytest.mark.parametrize("records", [20, 50, 70])
async def test_a_topic_that_was_made_again_on_the_source(pair: Pair, records: int) -> None:
    pair.write(*(b"%d" % number for number in range(50)))
    mirror = pair.mirror(name="m")
    await run(mirror)
    pair.source.recreate_topic("orders")
    pair.write(*(b"new %d" % number for number in range(records)))
    pair.source.set_committed("g", {PARTITION: 5})
    row = await only(mirror)
    assert (row.offset, row.match, row.decision) == (None, "unknown", "refuse")
    assert row.why.startswith("the topic was made again on the source after records had been copied")
    assert pair.on_target("g") is None
    checks = {check.step: check for check in (await cutover(mirror, "producers", apply=True, quiet_s=0)).checks}
    copied = checks["everything is copied"]
    assert (copied.ok, copied.evidence) == (False, f"{records} records are not, in orders/0: let the mirror run")


async def test_a_log_that_was_cut_on_the_source(pair: Pair) -> None:
    pair.write(*(b"%d" % number for number in range(50)))
    mirror = pair.mirror(name="m")
    await run(mirror)
    pair.source.truncate_log(PARTITION, 20)
    pair.source.set_committed("g", {PARTITION: 5})
    row = await only(mirror)
    assert (row.offset, row.match, row.decision) == (None, "unknown", "refuse")
    assert not (await cutover(mirror, "producers", apply=True, quiet_s=0)).finished


async def test_no_mirror_is_finished_while_a_transaction_is_open_on_the_source(pair: Pair) -> None:
    pair.write(b"1")
    mirror = pair.mirror(name="m")
    await run(mirror)
    async with pair.source.connect() as k, k.producer(transactional_id="x") as out, out.transaction():
        await out.send("orders", b"2")
        result = await cutover(mirror, "producers", apply=True, quiet_s=0)
        [missing] = [check for check in result.checks if not check.ok]
        assert not result.finished and missing.evidence.startswith("transactions are open in orders/0")
    await run(mirror)
    assert (await cutover(mirror, "producers", apply=True, quiet_s=0)).finished


async def test_no_mirror_is_finished_before_every_partition_of_the_source_was_copied(pair: Pair) -> None:
    pair.write(b"1")
    mirror = pair.mirror(name="m")
    await run(mirror)
    pair.source.add_partitions("orders", 2)
    pair.source.append("orders", [b"2"], partition=1)
    result = await cutover(mirror, "producers", apply=True, quiet_s=0)
    [missing] = [check for check in result.checks if not check.ok]
    assert not result.finished and missing.evidence == "orders/1 were not copied yet: let the mirror run"
    await run(mirror)
    assert (await cutover(mirror, "producers", apply=True, quiet_s=0)).finished


async def test_no_mirror_is_finished_while_a_group_reads_the_source_and_commits_nothing(pair: Pair) -> None:
    pair.write(b"1")
    mirror = pair.mirror(name="m")
    await run(mirror)
    async with pair.source.connect() as k, k.consumer("others", group="elsewhere"), k.consumer("orders", group="g"):
        assert not pair.source.committed("g")
        result = await cutover(mirror, "consumers", apply=True, quiet_s=0)
        [missing] = [check for check in result.checks if not check.ok]
        assert not result.finished and missing.evidence == "these groups have members: g (1): stop the consumers"
        left_out = pair.mirror(name="m", groups={"exclude": ["g"]})
        assert (await cutover(left_out, "consumers", quiet_s=0)).ok
    assert (await cutover(mirror, "consumers", quiet_s=0)).checks[0].ok


@pytest.mark.parametrize("finished", range(4))
async def test_an_end_that_was_interrupted_is_completed_when_it_is_wanted_again(
    pair: Pair, finished: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.write(b"1")
    mirror = pair.mirror(name="m", run={"tasks": 4})
    await run(mirror)
    inits = len(pair.target.requests("init_producer"))
    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        deciding = run_module._deciding

        def interrupted(config: Any, target: Any, exactly_once: bool, task: int) -> Any:
            if task == finished:
                raise InterruptedError
            return deciding(config, target, exactly_once, task)

        patch.setattr(run_module, "_deciding", interrupted)
        await cutover(mirror, "producers", apply=True, quiet_s=0)
    assert len(pair.target.requests("init_producer")) == inits + finished
    for _ in range(2):
        result = await cutover(mirror, "producers", apply=True, quiet_s=0)
        assert result.finished and result.ok
        async with pair.target.connect() as k:
            stored = [await clusters.read_progress(mirror, k, task) for task in range(4)]
        assert all(each.finished is not None for each in stored)
    checked = await cutover(mirror, "producers", quiet_s=0)
    assert checked.finished and [check.step for check in checked.checks] == ["the mirror is finished"]


@pytest.mark.parametrize(
    ("again", "says"), [(False, "no broker for others/0 now: leave out"), (True, "1 records are not, in others/0")]
)
async def test_a_topic_that_was_deleted_on_the_source_keeps_no_mirror_from_its_end_once_it_is_left_out(
    pair: Pair, again: bool, says: str
) -> None:
    pair.write(b"1")
    pair.source.append("others", [b"2"])
    mirror = pair.mirror(name="m", topics={"pattern": "orders|others"})
    await run(mirror)
    pair.source.delete_topic("others")
    if again:
        pair.source.create_topic("others")
        pair.source.append("others", [b"3"])
    result = await cutover(mirror, "producers", apply=True, quiet_s=0)
    [missing] = [check for check in result.checks if not check.ok]
    assert not result.finished and says in missing.evidence
    without = pair.mirror(name="m", topics={"pattern": "orders|others", "exclude": ["others"]})
    assert (await cutover(without, "producers", apply=True, quiet_s=0)).finished


async def test_which_groups(pair: Pair) -> None:
    pair.write(b"1")
    await run(pair.mirror(name="m"))
    for name in ("a", "ab", "b"):
        pair.source.set_committed(name, {PARTITION: 1})
    pair.source.set_committed("elsewhere", {TopicPartition("others", 0): 0})

    async def chosen(**table: Any) -> tuple[list[str], tuple[str, ...], bool]:
        result = await groups(pair.mirror(name="m", groups=table))
        return [row.group for row in result.positions], result.silent, result.ok

    assert await chosen() == (["a", "ab", "b"], (), True)
    assert await chosen(exclude=["ab"]) == (["a", "b"], (), True)
    assert await chosen(pattern="a.*") == (["a", "ab"], (), True)
    assert await chosen(pattern="a.*", exclude=["a"], include=["b"]) == (["ab", "b"], (), True)
    assert await chosen(include=["b", "elsewhere"]) == (["b"], ("elsewhere",), False)


@pytest.mark.parametrize("release", ["0.8", "0.10.0"])
async def test_groups_have_to_be_named_where_the_source_does_not_list_all(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    """Before 0.10.1, when clusters got ids, brokers did not list a group once its members had left."""
    pair.write(b"1")
    await run(pair.mirror(name="m"))
    pair.source.set_committed("g", {PARTITION: 1})

    async def refuse(self: object, **kinds: object) -> object:
        raise Unsupported("listing groups", "Kafka 0.9")

    async def describe(self: object) -> ClusterDescription:
        return ClusterDescription(None, None, (), {})

    method, answer = ("list_groups", refuse) if release == "0.8" else ("describe_cluster", describe)
    monkeypatch.setattr(f"odradek.client.admin.Admin.{method}", answer)
    for table in ({}, {"exclude": ["other"]}, {"include": ["g"], "pattern": ".*"}):
        with pytest.raises(MirrorRefused, match=r"groups\.include: name all groups"):
            await groups(pair.mirror(name="m", groups=table))
    row = await only(pair.mirror(name="m", groups={"include": ["g"]}))
    assert row.match == "exact"


async def test_a_source_that_stores_no_positions_has_no_groups_to_move(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.8.0, and 0.7 without ZooKeeper: the end of such a mirror depends on its producers alone."""
    pair.write(b"1")
    mirror = pair.mirror(name="m")
    await run(mirror)

    def refuse(*arguments: object, **kinds: object) -> Any:
        raise Unsupported("storing positions under a group name", "Kafka 0.8.1")

    for method in ("list_groups", "describe_groups"):
        monkeypatch.setattr(f"odradek.client.admin.Admin.{method}", refuse)
    monkeypatch.setattr("odradek.testing.memory.groups.MemoryOffsets.fetch", refuse)
    assert (await groups(mirror)).positions == ()
    result = await cutover(mirror, "producers", apply=True, quiet_s=0.01)
    assert result.finished
    assert [check.evidence for check in result.checks][2:] == [
        "brokers know no groups: look yourself",
        "0 positions of 0 groups",
    ]


@pytest.mark.parametrize(
    ("needs", "says"),
    [("Kafka 2.4: give both numbers", "target.replicas: give it a number"), ("Kafka 0.10.1", "target.url: .* old")],
)
async def test_a_target_that_makes_no_such_topics_is_refused_for_its_own_reason(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, needs: str, says: str
) -> None:
    def refuse(*arguments: object, **kinds: object) -> Any:
        raise Unsupported("creating a topic", needs)

    pair.write(b"1")
    monkeypatch.setattr("odradek.client.admin.Admin.create_topics", refuse)
    with pytest.raises(MirrorRefused, match=f"{says}.*it needs {needs}"):
        await run(pair.mirror(name="m"))


async def test_positions_are_followed(pair: Pair) -> None:
    mirror = pair.mirror()
    pair.write(b"1")
    await run(mirror)
    pair.source.set_committed("g", {PARTITION: 1})
    done = anyio.Event()

    def decided(result: GroupsResult) -> None:
        if result.positions[0].committed == 3 and result.ok:
            done.set()

    pair.target.fail("committed", BrokerError(14, "COORDINATOR_LOAD_IN_PROGRESS", retriable=True))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(groups, mirror, apply=True, follow=0.01, decided=decided))
        with anyio.fail_after(30):
            while pair.on_target("g") is None:  # noqa: ASYNC110  # a commit of the other task
                await anyio.sleep(0.01)
            pair.write(b"2", b"3", b"4")
            await run(mirror)
            pair.source.set_committed("g", {PARTITION: 3})
            await done.wait()
        tasks.cancel_scope.cancel()
    assert pair.on_target("g") == 4


async def test_a_restarted_broker_of_the_source_that_knows_no_topics_for_a_moment(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.write(b"1")
    mirror = pair.mirror()
    await run(mirror)
    pair.source.set_committed("g", {PARTITION: 1})
    known, rounds, away = ClusterSource.partitions, [0], iter([True] * 3)

    async def none_at_first(self: ClusterSource, topic: str) -> Any:
        return () if rounds[0] == 1 and next(away, False) else await known(self, topic)

    def decided(result: GroupsResult) -> None:
        rounds[0] += 1
        if rounds[0] == 3:
            tasks.cancel_scope.cancel()

    monkeypatch.setattr(ClusterSource, "partitions", none_at_first)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(groups, mirror, apply=True, follow=0.01, decided=decided))
    assert (rounds, next(away, None)) == ([3], None) and pair.on_target("g") == 1


async def test_before_a_topic_is_copied(pair: Pair) -> None:
    pair.write(b"1")
    pair.source.set_committed("g", {PARTITION: 1})
    row = await only(pair.mirror())
    assert (row.match, row.decision, row.target, row.offset) == ("not mirrored", "refuse", None, None)
    assert (row.source_lag, row.target_lag, row.ok) == (0, None, False)


@pytest.mark.parametrize("append", [False, True])
async def test_a_partition_of_which_nothing_was_copied(pair: Pair, append: bool) -> None:
    """What others have written into the target is none of the group's records."""
    pair.write(b"1", b"2")
    pair.source.delete_records(PARTITION, 2)
    mirror = pair.mirror(topics={"include": ["orders"], "append": append})
    if append:
        pair.target.create_topic("orders")
        pair.target.append("orders", [b"of others"])
    await run(mirror)
    pair.source.set_committed("g", {PARTITION: 2})
    row = await only(mirror)
    assert (row.match, row.offset) == (("unknown", None) if append else ("exact", 0))


async def test_a_mirror_of_another_source_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    async def other(source: ClusterSource) -> str:
        return (await url_of(source)).replace("source", "another")

    pair.write(b"1")
    with monkeypatch.context() as before:
        before.setattr(ClusterSource, "identity", other)
        await run(pair.mirror(name="m"))
    pair.source.set_committed("g", {PARTITION: 1})
    with pytest.raises(MirrorRefused, match="copies from"):
        await groups(pair.mirror(name="m"), apply=True)
    assert pair.on_target("g") is None


async def test_records_that_are_copied_meanwhile_count(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions of the source are read first: a group that goes on meanwhile is not beyond what is mirrored."""
    mirror = pair.mirror()
    pair.write(b"1")
    await run(mirror)
    pair.write(b"2", b"3")
    pair.source.set_committed("g", {PARTITION: 3})
    read: Callable[..., Any] = clusters.read_state

    async def copy_first(config: MirrorConfig, cluster: od.Cluster, *, whole: bool = True) -> tuple[StoredState, int]:
        if whole:
            await run(mirror)
        return await read(config, cluster, whole=whole)  # type: ignore[no-any-return]

    monkeypatch.setattr("odradek.mirror.groups.read_state", copy_first)
    row = await only(mirror)
    assert (row.match, row.target_lag, row.ok) == ("exact", 0, True)


async def test_positions_in_zookeeper_are_translated_of_groups_that_are_named(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.write(b"1", b"2", b"3")
    await run(pair.mirror(name="m"))
    code = 0

    async def request(cluster: od.Cluster, api: str, fields: Any, *, version: int) -> RawResponse:
        asked = [{"name": "orders", "partition_indexes": [0]}]
        assert (api, fields, version) == ("OffsetFetch", {"group_id": "billing", "topics": asked}, 0)
        answer = {"partition_index": 0, "committed_offset": 2, "metadata": "", "error_code": code}
        return RawResponse(api, version, 1, {"topics": [{"name": "orders", "partitions": [answer]}]})

    monkeypatch.setattr(od.Cluster, "request", request)
    with pytest.raises(MirrorRefused, match=r"name all groups.*none lists those that store positions in ZooKeeper"):
        await groups(pair.mirror(name="m", groups={"stored_in": "zookeeper"}))
    mirror = pair.mirror(name="m", groups={"stored_in": "zookeeper", "include": ["billing"]})
    row = await only(mirror)
    assert (row.group, row.committed, row.offset, row.match) == ("billing", 2, 2, "exact")
    code = 29
    with pytest.raises(BrokerError, match="position of group 'billing' in orders-0"):
        await groups(mirror)
