"""Stored positions of a consumer group: one ZooKeeper node per partition (specification.md 5.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from odradek.core.interfaces import NO_METADATA
from odradek.core.kafka07.znodes import check_group, offset_path, parse_offset
from odradek.errors import NodeExists, NoNode, OdradekError, SessionExpired, Unsupported, ZooKeeperError
from odradek.io.gather import gather, gather_outcomes
from odradek.io.zookeeper import ZooKeeper
from odradek.types import CommittedPosition, Position, TopicPartition

__all__ = ["LIST_FROM", "ZooKeeperOffsets"]

LIST_FROM = 8
"""Minimum number of partitions of a topic for which the folder of their nodes is read first: that saves a request for
each of them."""

MAX_NAMED = 5
"""Partitions named in one error; further ones are only counted."""


class ZooKeeperOffsets:
    """Implements `core.interfaces.OffsetStore`: one node per partition with its position as decimal text.

    Args:
        zk: An open session.
        group: The group whose positions they are.
    """

    def __init__(self, zk: ZooKeeper, group: str) -> None:
        self._zk = zk
        self.group = check_group(group)
        self._absent: set[TopicPartition] = set()  # read and not found: the first commit creates the node

    async def fetch(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position | None]:
        """Return the stored positions; None where none was ever stored. Raises ZooKeeperError for a malformed node."""
        stored = await self._stored(partitions)
        read = dict(zip(stored, await gather(self._read, stored), strict=True))
        positions = {partition: read.get(partition) for partition in partitions}
        self._absent = self._absent.difference(positions) | {p for p, at in positions.items() if at is None}
        return positions

    async def fetch_with_metadata(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedPosition | None]:
        """Return the stored positions, which have no texts. See `fetch`."""
        positions = await self.fetch(partitions)
        return {p: None if at is None else CommittedPosition(at) for p, at in positions.items()}

    async def commit(
        self,
        positions: Mapping[TopicPartition, Position],
        metadata: Mapping[TopicPartition, str] = NO_METADATA,
        *,
        session: int = 0,
    ) -> None:
        """Store positions, each in its own node; with `session`, in that session or not at all.

        Raises Unsupported for a text to be stored with them: a node has a number alone. Raises SessionExpired when that
        session has ended, ZooKeeperError naming partitions that (perhaps) were not stored, and why, after trying all.
        """
        if any(metadata.values()):
            raise Unsupported("metadata of committed positions", "Kafka 0.8.2: 0.7 stores a number and nothing else")
        results = await gather_outcomes(lambda item: self._store(item, session), positions.items())
        failed = {p: r for p, r in zip(positions, results, strict=True) if isinstance(r, OdradekError)}
        what = f"group {self.group}: {len(failed)} of {len(positions)} positions not stored"
        for error in failed.values():
            if isinstance(error, SessionExpired) and session:
                raise SessionExpired(f"{what}: {error}") from error
        if failed:
            reasons = "; ".join(f"{partition} ({error})" for partition, error in list(failed.items())[:MAX_NAMED])
            more = f"; and {len(failed) - MAX_NAMED} more" if len(failed) > MAX_NAMED else ""
            raise ZooKeeperError(f"{what}: {reasons}{more}") from next(iter(failed.values()))

    async def _stored(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return those of `partitions` that may have a position: one request per topic instead of one for each."""
        counts = Counter(partition.topic for partition in partitions)
        topics = [topic for topic, count in counts.items() if count >= LIST_FROM]
        folders = [offset_path(self.group, TopicPartition(topic, 0, 0)).rpartition("/")[0] for topic in topics]
        listed = dict(zip(topics, map(set, await gather(self._children, folders)), strict=True))
        return [p for p in partitions if p.topic not in listed or p.name in listed[p.topic]]

    async def _children(self, path: str) -> list[str]:
        return await self._zk.children(path) or []

    async def _read(self, partition: TopicPartition) -> Position | None:
        path = offset_path(self.group, partition)
        node = await self._zk.get(path)
        return None if node is None else parse_offset(path, node.data)

    async def _store(self, item: tuple[TopicPartition, Position], session: int) -> None:
        partition, position = item
        path, data = offset_path(self.group, partition), str(int(position)).encode()
        while True:
            if partition not in self._absent:
                with suppress(NoNode):
                    await self._zk.set(path, data, session=session)
                    return
            with suppress(NodeExists):
                await self._zk.create(path, data, parents=True, session=session)
                self._absent.discard(partition)
                return
            self._absent.discard(partition)
