"""Reading a consumer group from ZooKeeper, with watches: who its members are, and which partitions there are."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TypeVar

from odradek.core.kafka07.group import GroupSnapshot
from odradek.core.kafka07.znodes import (
    TOPICS,
    Registration,
    WildcardRegistration,
    broker_id,
    count_path,
    member_path,
    members_path,
    parse_count,
    parse_registration,
    topic_path,
)
from odradek.errors import ZooKeeperError
from odradek.io.gather import gather
from odradek.io.zookeeper import ZooKeeper

__all__ = ["GroupReader"]

log = logging.getLogger("odradek.group")


class GroupReader:
    """Reads what a member has to know before it rebalances.

    Args:
        zk: An open session.
        group: The group.
        registration: The reader's own: it names the topics to read.
    """

    def __init__(self, zk: ZooKeeper, group: str, registration: Registration) -> None:
        self._zk, self._group, self._registration = zk, group, registration
        self._ignored: dict[str, str] = {}  # ids nodes of others that are left out, and why
        self.watched: set[str] = set()
        """Nodes whose next change makes another read necessary."""

    async def read(self) -> GroupSnapshot:
        """Return the group as it is now, and watch it. Raises ZooKeeperError for a malformed count node."""
        self.watched = set()
        members = await self._read_members()
        listed = await self._children(TOPICS) if isinstance(self._registration, WildcardRegistration) else ()
        topics = sorted(self._registration.wanted(listed))
        return GroupSnapshot(members, dict(zip(topics, await gather(self._read_topic, topics), strict=True)))

    async def _read_members(self) -> dict[str, Registration]:
        async def one(name: str) -> Registration | None:
            path = member_path(self._group, name)
            node = await self._zk.get(path)
            return None if node is None else self._parsed(path, node.data)

        names = await self._children(members_path(self._group))
        return _present(names, await gather(one, names))

    def _parsed(self, path: str, data: bytes | None) -> Registration | None:
        """Parse an ids node. One that cannot be read is no member: it must not keep all others from joining."""
        if data == self._registration.data():  # also a filter that would not be accepted from another member
            return self._registration
        try:
            registration = parse_registration(path, data)
        except ZooKeeperError as error:
            if self._ignored.get(path) != str(error):
                log.warning(
                    "group %s: ignored a member: %s; delete the node if no consumer uses it", self._group, error
                )
            self._ignored[path] = str(error)
            return None
        self._ignored.pop(path, None)
        return registration

    async def _read_topic(self, topic: str) -> Mapping[int, int]:
        async def one(broker: int) -> int | None:
            path = count_path(topic, broker)
            self.watched.add(path)
            node = await self._zk.get(path, watch=True)
            return None if node is None else parse_count(path, node.data)

        path = topic_path(topic)
        brokers = [broker_id(f"{path}/{name}") for name in await self._children(path)]
        return _present(brokers, await gather(one, brokers))

    async def _children(self, path: str) -> list[str]:
        self.watched.add(path)
        return await self._zk.children(path, watch=True) or []


K = TypeVar("K")
V = TypeVar("V")


def _present(keys: Iterable[K], values: Iterable[V | None]) -> dict[K, V]:
    """Return a dict without the nodes that vanished between listing and reading them."""
    return {key: value for key, value in zip(keys, values, strict=True) if value is not None}
