"""The ephemeral nodes of a group member: its ids node, and the owners nodes of its partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from weakref import WeakKeyDictionary

from odradek.core.kafka07.znodes import Registration, member_path, owner_path
from odradek.errors import Closed, ConnectionLost, NodeExists, NoNode, OdradekError, SessionExpired
from odradek.io.gather import gather, gather_outcomes
from odradek.io.kafka07.offsets import LIST_FROM
from odradek.io.zookeeper import Node, ZooKeeper
from odradek.types import TopicPartition

__all__ = ["MemberNodes"]


_CREATED: WeakKeyDictionary[ZooKeeper, dict[tuple[int, str], object]] = WeakKeyDictionary()
"""Nodes whose creation was answered, by session and path, and who created each: members of one session may have equal
nodes."""


class MemberNodes:
    """The nodes that a member has created in one session; in the next one it begins with a new object.

    Everything is bound to that session: after it expired, nothing more is created or deleted, and SessionExpired is
    raised instead. An existing node blocks a claim unless this object may have created it: also a node with our own id
    left by an earlier process, whose session has yet to expire.

    Args:
        zk: An open session.
        group: The group.
        consumer_id: Name of the ids node.
        registration: Content of the ids node.
        session: The session; 0 if there is none yet, and nothing was created.
    """

    def __init__(self, zk: ZooKeeper, group: str, consumer_id: str, registration: Registration, session: int = 0):
        self._zk, self._group, self.session = zk, group, session
        self.path, self._data = member_path(group, consumer_id), registration.data().decode()
        self.registered = False
        """The ids node was created."""
        self.owned: dict[TopicPartition, str] = {}
        """Partitions whose owners node is ours, with its content."""
        self.blockers: set[str] = set()
        """Nodes of others that were in the way of claims, and are watched."""
        self._unconfirmed: dict[str, str] = {}  # nodes whose creation was not answered: path -> data
        self._created, self._myself = _CREATED.setdefault(zk, {}), object()
        for key in [key for key in self._created if session and key[0] != session]:  # they went with their session
            del self._created[key]
        self._folders: dict[str, int | None] = {}  # topic -> last change of its owners, after our claims

    @property
    def is_current(self) -> bool:
        """True while the session is that of these nodes."""
        return self.session != 0 and self.session == self._zk.session_id

    def describe(self) -> str:
        """Return in words what is not released."""
        if not self.owned:
            return f"{self.path} is not deleted yet"
        first = min(self.owned)
        others = f" and {len(self.owned) - 1} more" if len(self.owned) > 1 else ""
        return f"{len(self.owned)} partitions ({first}{others}) are not released yet"

    async def register(self) -> bool:
        """Create the ids node, unless it was. Returns False if there is one that belongs to another session."""
        if not self.registered:
            self.registered = await self._create(self.path, self._data) is None
        return self.registered

    async def claim(self, claims: Mapping[TopicPartition, str]) -> dict[TopicPartition, str]:
        """Create owners nodes with these contents. Returns the owners of the partitions that others have.

        One request for each partition, one for each that is blocked, and one for each larger topic.
        """
        paths = {owner_path(self._group, partition) for partition in claims}
        await gather(self._delete, [item for item in self._unconfirmed.items() if item[0] not in paths])
        owners = await gather(self._claim, claims.items())
        claimed, owned = _count_by_topic(claims), _count_by_topic(self.owned)
        topics = [topic for topic, count in claimed.items() if LIST_FROM <= count == owned[topic]]
        self._folders.update(zip(topics, await gather(self._last_change, topics), strict=True))
        return {partition: owner for partition, owner in zip(claims, owners, strict=True) if owner is not None}

    async def release(self, partitions: Collection[TopicPartition]) -> None:
        """Delete the owners nodes of these partitions; raise the first error after trying all.

        A node may have been deleted by hand, and created by another member: it is read before it is deleted, unless
        nothing has changed in its folder since our claims. That makes one request for each partition, or two.
        """
        for error in await self._release(partitions):
            raise error

    async def release_all(self) -> None:
        """Delete everything, the ids node last, so that the others find everything free.

        An ids node that is not ours stays, also one that looks like ours: that of a member with the same id in the same
        session. Raises the first error after trying all, but for the end of the session, with which the nodes go.
        """
        errors = await self._release(self.owned)
        others = list(self._unconfirmed.items())
        for nodes in (others, [(self.path, self._data)] if self.registered else []):
            errors += _errors(await gather_outcomes(self._delete, nodes))
        for error in errors:
            if not isinstance(error, SessionExpired | Closed):
                raise error

    async def _release(self, partitions: Collection[TopicPartition]) -> list[OdradekError]:
        counts = _count_by_topic(partitions)
        topics = [topic for topic in self._folders if counts[topic] >= LIST_FROM]
        changes = await gather_outcomes(self._last_change, topics)
        unchanged = {topic for topic, at in zip(topics, changes, strict=True) if at == self._folders[topic]}

        async def one(item: tuple[TopicPartition, str]) -> None:
            partition, owner = item
            await self._delete((owner_path(self._group, partition), owner), is_ours=partition.topic in unchanged)
            self.owned.pop(partition, None)

        owned = sorted(self.owned.keys() & set(partitions))
        return _errors(await gather_outcomes(one, [(partition, self.owned[partition]) for partition in owned]))

    async def _claim(self, item: tuple[TopicPartition, str]) -> str | None:
        partition, owner = item
        other = await self._create(owner_path(self._group, partition), owner)
        if other is None:
            self.owned[partition] = owner
        return other

    async def _last_change(self, topic: str) -> int | None:
        """Return the transaction that last created or deleted an owners node of this topic."""
        return await self._zk.last_child_change(owner_path(self._group, TopicPartition(topic, 0, 0)).rpartition("/")[0])

    async def _create(self, path: str, data: str) -> str | None:
        """Create an ephemeral node. Returns None when it is ours, else its data; then it is a blocker."""
        while True:
            unanswered = self._unconfirmed.get(path) == data
            self._unconfirmed[path] = data
            try:
                await self._zk.create(path, data.encode(), ephemeral=True, parents=True, session=self.session)
                self._unconfirmed.pop(path, None)
                self._created[self.session, path] = self._myself
                return None
            except SessionExpired:
                self._unconfirmed.pop(path, None)
                raise
            except NodeExists:
                if not unanswered:
                    self._unconfirmed.pop(path, None)
            node = await self._zk.get(path, watch=True)
            if node is not None:
                self._unconfirmed.pop(path, None)
                if unanswered and self._is_ours(path, data, node):
                    self._created[self.session, path] = self._myself
                    return None
                self.blockers.add(path)
                return (node.data or b"").decode(errors="replace")

    def _is_ours(self, path: str, data: str, node: Node) -> bool:
        is_equal = (node.data, node.owner) == (data.encode(), self.session)
        return is_equal and self._created.get((self.session, path), self._myself) is self._myself

    async def _delete(self, item: tuple[str, str], is_ours: bool = False) -> None:
        """Delete a node if it is ours: read it first, unless that is known."""
        path, data = item
        while True:
            if not is_ours:
                node = await self._zk.get(path)
                if node is None or not self._is_ours(path, data, node):
                    break
            is_ours = False
            with suppress(NoNode, ConnectionLost):  # after a lost connection: look again
                await self._zk.delete(path, session=self.session)
                break
        self._unconfirmed.pop(path, None)
        if self._created.get((self.session, path)) is self._myself:
            del self._created[self.session, path]


def _count_by_topic(partitions: Iterable[TopicPartition]) -> Counter[str]:
    return Counter(partition.topic for partition in partitions)


def _errors(results: Iterable[object]) -> list[OdradekError]:
    return [result for result in results if isinstance(result, OdradekError)]
