"""Administration of a cluster of Kafka 0.7 (`core.admin.ClusterAdmin`): it has no requests for it, so that all there is
is to read what brokers and consumers wrote to ZooKeeper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from odradek.core.admin import (
    ClusterAdmin,
    ClusterDescription,
    GroupDescription,
    GroupListing,
    MemberDescription,
    Results,
)
from odradek.core.interfaces import ClusterMetadata
from odradek.core.kafka07.znodes import GROUPS, check_group, members_path, owner_path, parse_partition, text_of
from odradek.errors import OdradekError, Unsupported, ZooKeeperError
from odradek.io.gather import gather, gather_outcomes
from odradek.io.zookeeper import ZooKeeper
from odradek.types import TopicPartition

__all__ = ["Kafka07Admin"]

NEEDS = (
    "a later release of Kafka: brokers of 0.7 have no requests for it. The first record for a topic makes it, settings "
    "are in each broker's server.properties, and groups are nodes of ZooKeeper"
)


class Kafka07Admin(ClusterAdmin):
    """Brokers and groups as ZooKeeper has them.

    Args:
        metadata: Knows the brokers.
        zookeeper: Returns the session; raises Unsupported if the cluster has no ZooKeeper.
    """

    def __init__(self, metadata: ClusterMetadata, zookeeper: Callable[[str], ZooKeeper]) -> None:
        super().__init__(NEEDS)
        self._metadata, self._zookeeper = metadata, zookeeper

    async def describe_cluster(self) -> ClusterDescription:
        """Return the registered brokers (see `ClusterAdmin`)."""
        table = await self._metadata.refresh()
        return ClusterDescription(None, None, tuple(sorted(table.brokers.values())), {})

    async def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        """Return the groups that have nodes (see `ClusterAdmin`)."""
        if states or types:
            raise Unsupported("listing groups by state or type", "Kafka 2.6: describe each group instead")
        names = await self._zookeeper("listing groups").children(GROUPS) or []
        return [GroupListing(name, "consumer", type="zookeeper") for name in sorted(names)]

    async def describe_groups(self, names: Sequence[str]) -> Results[str, GroupDescription]:
        """Return the members of groups and what they own (see `ClusterAdmin`)."""
        zk = self._zookeeper("describing a group")
        outcomes = await gather_outcomes(lambda name: _described(zk, name), names)
        answers = dict(zip(names, outcomes, strict=True))
        done = {name: each for name, each in answers.items() if isinstance(each, GroupDescription)}
        return Results(done, {name: each for name, each in answers.items() if isinstance(each, OdradekError)})


async def _described(zk: ZooKeeper, name: str) -> GroupDescription:
    members = await zk.children(members_path(check_group(name)))
    owners = await zk.children(f"{GROUPS}/{name}/owners") or []
    if members is None and await zk.children(f"{GROUPS}/{name}") is None:
        raise ZooKeeperError(f"group {name!r}: there is no such group")
    owned = await _owned(zk, name, owners)
    described = tuple(
        MemberDescription(each, None, "", "", tuple(sorted(owned[each]))) for each in sorted(members or [])
    )
    return GroupDescription(name, "Stable" if members else "Empty", "zookeeper", "consumer", "range", described, None)


async def _owned(zk: ZooKeeper, group: str, topics: Iterable[str]) -> dict[str, list[TopicPartition]]:
    """Return the partitions of each member: an owners node has the name of a stream, which begins with its member's."""

    async def of_topic(topic: str) -> list[TopicPartition]:
        names = await zk.children(f"{GROUPS}/{group}/owners/{topic}") or []
        return [parse_partition(topic, name) for name in names]

    async def owner(partition: TopicPartition) -> str | None:
        path = owner_path(group, partition)
        node = await zk.get(path)
        return None if node is None else text_of(path, node.data).rpartition("-")[0]

    partitions = [partition for listed in await gather(of_topic, topics) for partition in listed]
    owned: dict[str, list[TopicPartition]] = defaultdict(list)
    for partition, member in zip(partitions, await gather(owner, partitions), strict=True):
        if member is not None:
            owned[member].append(partition)
    return owned
