"""`Cluster.admin`, on an in-memory cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import odradek as od
from odradek.core.admin import (
    Append,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    OffsetChoice,
    OffsetListing,
    OffsetSpec,
    PartitionLag,
    PositionChange,
)
from odradek.errors import GroupError
from odradek.testing import MemoryCluster
from odradek.types import EARLIEST, LATEST, Position, StartPosition

pytestmark = pytest.mark.anyio

P0, P1 = od.TopicPartition("t", 0), od.TopicPartition("t", 1)


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster({"t": 2})
    cluster.append("t", [b"%d" % n for n in range(10)])
    return cluster


async def test_topics_are_created_described_and_deleted(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k:
        results = await k.admin.create_topics(["u", "t", "u"], partitions=3)
        assert results.done.keys() == {"u"} and results.failed.keys() == {"t"}
        with pytest.raises(od.BrokerError, match="TOPIC_ALREADY_EXISTS"):
            results.check()
        assert len((await k.admin.describe_topics("u")).check()["u"].partitions) == 3
        assert (await k.admin.delete_topics(["u", "v"])).failed.keys() == {"v"}
        assert await k.topics() == {"t"}


async def test_topics_are_created_with_a_number_of_partitions_each(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k:
        (await k.admin.create_topics({"u": 3, "v": 1})).check()
        described = (await k.admin.describe_topics(["u", "v"])).check()
        assert {name: len(topic.partitions) for name, topic in described.items()} == {"u": 3, "v": 1}
        with pytest.raises(od.ConfigError, match="one of the two"):
            await k.admin.create_topics({"w": 3}, partitions=2)
        with pytest.raises(od.ConfigError, match="number of partitions"):
            await k.admin.create_topics({"w": 0})
        with pytest.raises(od.BrokerError, match="INVALID_TOPIC_EXCEPTION"):
            (await k.admin.create_topics({"w w": 1})).check()
        assert await k.topics() == {"t", "u", "v"}


async def test_a_topic_that_is_made_again_has_nothing_of_the_former_configuration(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k:
        for make_again in (recreate, delete_and_create):
            (await k.admin.alter_topic_configs({"t": {"retention.ms": "1"}})).check()
            make_again(cluster)
            assert own_entries((await k.admin.describe_topic_configs("t")).check()["t"]) == {}


def own_entries(config: Mapping[str, ConfigEntry]) -> dict[str, str | None]:
    return {name: entry.value for name, entry in config.items() if entry.source is ConfigSource.TOPIC}


def recreate(cluster: MemoryCluster) -> None:
    cluster.recreate_topic("t")


def delete_and_create(cluster: MemoryCluster) -> None:
    cluster.delete_topic("t")
    cluster.create_topic("t")


async def test_records_are_deleted_up_to_a_position_or_a_meaning(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k:
        assert (await k.admin.delete_records({P0: 4})).check() == {P0: 4}
        assert (await k.admin.delete_records({P0: EARLIEST})).check() == {P0: 4}
        assert (await k.admin.delete_records({P0: LATEST})).check() == {P0: 10}


async def test_records_are_not_deleted_beyond_the_end_or_of_a_partition_that_is_missing(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k:
        results = await k.admin.delete_records({P0: 11, P1: 0, od.TopicPartition("t", 9): 0})
        names = {p.partition: error.name for p, error in results.failed.items() if isinstance(error, od.BrokerError)}
        assert names == {0: "OFFSET_OUT_OF_RANGE", 9: "UNKNOWN_TOPIC_OR_PARTITION"}
        assert results.done == {P1: 0} and await k.positions("t", EARLIEST) == {P0: 0, P1: 0}


@pytest.mark.parametrize("policy", ["", "delete", "compact", "compact,delete"])
async def test_records_of_a_topic_that_is_only_compacted_are_not_deleted(cluster: MemoryCluster, policy: str) -> None:
    async with cluster.connect() as k:
        (await k.admin.alter_topic_configs({"t": {"cleanup.policy": policy}})).check()
        results = await k.admin.delete_records({P0: 4, P1: 99})
        names = {p: error.name for p, error in results.failed.items() if isinstance(error, od.BrokerError)}
        if policy == "compact":
            assert (names, results.done) == ({P0: "POLICY_VIOLATION", P1: "POLICY_VIOLATION"}, {})
        else:
            assert (names, results.done) == ({P1: "OFFSET_OUT_OF_RANGE"}, {P0: 4})


async def test_positions_are_reset_only_without_a_dry_run_and_can_be_put_back(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k:
        await k.driver.offsets("g").commit({P0: Position(3)})
        wanted: dict[od.TopicPartition, StartPosition | None] = {P0: LATEST, P1: 0}
        changes = (await k.admin.reset_positions("g", wanted, dry_run=True)).check()
        assert changes == {P0: PositionChange(Position(3), Position(10)), P1: PositionChange(None, Position(0))}
        assert await k.admin.group_positions("g") == {P0: 3}
        assert (await k.admin.reset_positions("g", wanted)).check() == changes
        assert await k.admin.group_positions("g") == {P0: 10, P1: 0}
        (await k.admin.reset_positions("g", {p: change.before for p, change in changes.items()})).check()
        assert await k.admin.group_positions("g") == {P0: 3}


async def test_a_group_exists_from_its_first_position_until_it_is_deleted(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k, k.reader("t", group="g", start=EARLIEST) as reader:
        assert await k.admin.group_positions("g") == {} and await k.admin.list_groups() == []
        with pytest.raises(od.BrokerError, match="GROUP_ID_NOT_FOUND"):
            (await k.admin.describe_groups("g")).check()
        for position in (1, 2):
            await reader.commit({P0: position})
            assert [group.name for group in await k.admin.list_groups()] == ["g"]
            assert cluster.committed("g") == await k.admin.group_positions("g") == {P0: position}
            (await k.admin.delete_groups("g")).check()
            assert cluster.committed("g") == await k.admin.group_positions("g") == {}


async def test_positions_of_a_group_with_members_are_stored_by_these_alone(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k, k.reader("t", group="g", start=EARLIEST) as reader:
        async with k.consumer("t", group="g"):
            with pytest.raises(od.BrokerError, match="UNKNOWN_MEMBER_ID"):
                await reader.commit({P0: 1})
        await reader.commit({P0: 1})
        assert cluster.committed("g")[P0] == 1


async def test_a_group_with_members_is_neither_reset_nor_deleted(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k:
        async with k.consumer("t", group="g"):
            (group,) = (await k.admin.describe_groups("g")).check().values()
            assert (group.state, group.members[0].partitions) == ("Stable", (P0, P1))
            for dry_run in (False, True):
                with pytest.raises(GroupError, match="stop them first"):
                    await k.admin.reset_positions("g", {P0: 0}, dry_run=dry_run)
            assert "NON_EMPTY_GROUP" in str((await k.admin.delete_groups("g")).failed["g"])
        assert [group.name for group in await k.admin.list_groups()] == ["g"]
        (await k.admin.delete_groups("g")).check()
        assert await k.admin.list_groups() == []


async def test_a_partition_without_a_leader_has_an_error_of_its_own() -> None:
    cluster = MemoryCluster({"t": 2}, brokers=2)
    cluster.stop_broker(2)
    async with cluster.connect() as k:
        results = await k.admin.reset_positions("g", {P0: LATEST, P1: LATEST})
        assert results.done.keys() == {P0} and "no broker leads" in str(results.failed[P1])


@pytest.mark.parametrize("at", [EARLIEST, od.AtTime(0.0), 1])
async def test_a_topic_that_may_not_be_read_does_not_keep_others_from_new_positions(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, at: Any
) -> None:
    denied = od.TopicPartition("denied", 0)
    async with cluster.connect() as k:
        read = k.driver.metadata.table_for_topic

        async def refuse(topic: str) -> Any:
            if topic == "denied":
                raise od.BrokerError(29, "TOPIC_AUTHORIZATION_FAILED")
            return await read(topic)

        monkeypatch.setattr(k.driver.metadata, "table_for_topic", refuse)
        results = await k.admin.reset_positions("g", {denied: at, P0: at})
        assert results.done.keys() == {P0}
        assert "TOPIC_AUTHORIZATION_FAILED" in str(results.failed[denied])
        if at != 1:
            deleted = await k.admin.delete_records({denied: at, P0: at})
            assert deleted.done == {P0: 0} and deleted.failed.keys() == {denied}


async def test_a_position_that_cannot_be_stored_does_not_keep_others_from_it(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.connect() as k:
        store = k.driver.offsets("g")
        commit = type(store).commit

        async def refuse(self: object, positions: dict[od.TopicPartition, Position]) -> None:
            if P1 in positions:
                raise od.BrokerError(29, "TOPIC_AUTHORIZATION_FAILED")
            await commit(store, positions)

        monkeypatch.setattr(type(store), "commit", refuse)
        results = await k.admin.reset_positions("g", {P0: 1, P1: 1})
        assert results.done.keys() == {P0} and results.failed.keys() == {P1}
        assert await k.admin.group_positions("g") == {P0: 1}


async def test_offsets_are_listed_by_meaning_and_time(cluster: MemoryCluster) -> None:
    cluster.append("t", [od.ProducerRecord(b"late", timestamp=5_000_000_000_000)], partition=0)
    async with cluster.connect() as k:
        newest = OffsetListing(Position(10), 5_000_000_000_000, None)
        offsets: dict[OffsetChoice, OffsetListing] = {
            EARLIEST: OffsetListing(Position(0), None, None),
            LATEST: OffsetListing(Position(11), None, None),
            OffsetSpec.MAX_TIMESTAMP: newest,
            OffsetSpec.EARLIEST_LOCAL: OffsetListing(Position(0), None, None),
            OffsetSpec.LATEST_TIERED: OffsetListing(None, None, None),
            od.AtTime(4e9): newest,
            od.AtTime(6e9): OffsetListing(None, None, None),
        }
        for at, listing in offsets.items():
            assert (await k.admin.list_offsets({P0: at})).check() == {P0: listing}
        failed = (await k.admin.list_offsets({od.TopicPartition("t", 9): LATEST})).failed
        assert "UNKNOWN_TOPIC" in str(failed[od.TopicPartition("t", 9)])
        with pytest.raises(TypeError, match="EARLIEST, LATEST"):
            await k.admin.list_offsets({P0: 3})  # type: ignore[dict-item]


async def test_groups_are_listed_by_state_and_type(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k:
        await k.driver.offsets("g").commit({P0: Position(3)})
        assert [group.name for group in await k.admin.list_groups(states="Empty", types=["classic"])] == ["g"]
        assert await k.admin.list_groups(states=["Stable"]) == await k.admin.list_groups(types="share") == []


@pytest.mark.parametrize("wrong", ["", 7, b"t", ["t", 7]])
async def test_names_are_texts(cluster: MemoryCluster, wrong: object) -> None:
    async with cluster.connect() as k:
        with pytest.raises((TypeError, od.ConfigError), match="topics"):
            await k.admin.describe_topics(wrong)  # type: ignore[arg-type]


async def test_configurations_are_kept_as_they_were_set(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k:
        (await k.admin.create_topics("u", config={"retention.ms": "1", "flush.ms": "7"})).check()
        changes: dict[str, ConfigChange] = {
            "retention.ms": None,
            "cleanup.policy": Append("compact"),
            "segment.ms": "3",
        }
        (await k.admin.alter_topic_configs({"u": changes}, validate_only=True)).check()
        assert (await k.admin.alter_topic_configs({"u": changes, "no": {}})).failed.keys() == {"no"}
        described = await k.admin.describe_topic_configs(["u", "t", "no"])
        own = {"flush.ms": "7", "cleanup.policy": "delete,compact", "segment.ms": "3"}
        assert own_entries(described.done["u"]) == own
        assert own_entries(described.done["t"]) == {} and described.failed.keys() == {"no"}
        assert described.done["u"]["retention.ms"] == ConfigEntry("retention.ms", "604800000", ConfigSource.DEFAULT)
        (await k.admin.delete_topics("u")).check()
        (await k.admin.create_topics("u")).check()
        assert own_entries((await k.admin.describe_topic_configs("u")).check()["u"]) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.msec", "1"),
        ("retention.ms", "1d"),
        ("retention.ms", ""),
        ("segment.bytes", "-1"),
        ("cleanup.policy", "compacted"),
        ("compression.type", "none"),
        ("unclean.leader.election.enable", "1"),
        ("min.cleanable.dirty.ratio", "2"),
    ],
)
async def test_entries_and_values_that_brokers_refuse_are_refused(
    cluster: MemoryCluster, name: str, value: str
) -> None:
    async with cluster.connect() as k:
        created = await k.admin.create_topics("u", config={name: value}, validate_only=True)
        altered = await k.admin.alter_topic_configs({"t": {name: value}})
        for error in (created.failed["u"], altered.failed["t"]):
            assert "INVALID_CONFIG" in str(error) and name in str(error)


async def test_every_default_can_be_set(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k:
        defaults = (await k.admin.describe_topic_configs("t")).check()["t"]
        changes: dict[str, ConfigChange] = {name: entry.value for name, entry in defaults.items()}
        (await k.admin.alter_topic_configs({"t": changes})).check()
        assert own_entries((await k.admin.describe_topic_configs("t")).check()["t"]) == changes


@pytest.mark.parametrize(("name", "error"), [(".", 17), ("..", 17), ("a_b", 17), ("a/b", 17), ("a.b", 36)])
async def test_names_that_brokers_refuse_are_refused(cluster: MemoryCluster, name: str, error: int) -> None:
    async with cluster.connect() as k:
        (await k.admin.create_topics("a.b")).check()
        failed = (await k.admin.create_topics(name)).failed[name]
        assert isinstance(failed, od.BrokerError) and failed.code == error


async def test_there_are_no_more_replicas_than_brokers(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k:
        (await k.admin.create_topics("u", replicas=1)).check()
        failed = (await k.admin.create_topics("v", replicas=9)).failed["v"]
        assert "INVALID_REPLICATION_FACTOR" in str(failed)


async def test_an_error_of_administration_says_whether_it_passes(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k:
        unknown = (await k.admin.describe_topics("u")).failed["u"]
        assert unknown.retriable and not (await k.admin.create_topics("t")).failed["t"].retriable


async def test_what_a_cluster_cannot_do_says_what_it_needs(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k:
        with pytest.raises(od.Unsupported, match="a real broker"):
            await k.admin.describe_broker_configs(1)


async def test_the_lag_of_a_group_has_position_end_and_member_of_each_partition(cluster: MemoryCluster) -> None:
    cluster.append("t", [b"v"] * 4, partition=1)
    cluster.set_committed("g", {P0: 7})
    async with cluster.connect() as k:
        assert await k.admin.lag("g") == {
            P0: PartitionLag(Position(7), Position(10), 3, None),
            P1: PartitionLag(None, Position(4), 4, None),
        }
        cluster.delete_records(P0, 8)
        assert (await k.admin.lag("g"))[P0].lag == 2  # what was deleted cannot be read any more
        async with k.consumer("t", group="g", consumer_id="me"):
            assert {partition: row.member for partition, row in (await k.admin.lag("g")).items()} == {
                P0: "g_me",
                P1: "g_me",
            }
        assert await k.admin.lag("unknown") == {}
        with pytest.raises(TypeError, match="group must be"):
            await k.admin.lag(7)  # type: ignore[arg-type]


async def test_a_lag_that_cannot_be_known_raises_and_one_beyond_the_end_is_none(cluster: MemoryCluster) -> None:
    cluster.set_committed("g", {P0: 12})
    async with cluster.connect() as k:
        assert (await k.admin.lag("g"))[P0] == PartitionLag(Position(12), Position(10), 0, None)
        cluster.fail("positions", od.BrokerError(29, "TOPIC_AUTHORIZATION_FAILED"), partition=P0)
        with pytest.raises(od.BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            await k.admin.lag("g")
