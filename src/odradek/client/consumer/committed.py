"""Committed positions: arguments of calls about them, and those of a reader, which is no member of its group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import anyio

from odradek import arguments
from odradek.client.options import COMMIT_METADATA, MAX_POSITION
from odradek.client.options import partition as partition_rule
from odradek.types import NO_METADATA, CommittedPosition, Position, TopicPartition

if TYPE_CHECKING:
    from odradek.core.interfaces import OffsetStore

__all__ = ["CommitsOfNoMember", "check_partitions", "split_positions"]

STORED_AGAIN_S = 600.0
"""Positions that have not moved are stored again after this time (s). Brokers before 2.1 forget what was not stored for
offsets.retention.minutes, a day by default, also while the group has members (KIP-211)."""

_PARTITION = partition_rule()
_POSITION = arguments.count(0, MAX_POSITION, "a position")


def _with_text(name: str, value: object) -> tuple[Any, str | None]:
    if not isinstance(value, tuple):
        return _POSITION(name, value), None
    if len(value) != 2:
        arguments.wrong_type(name, value, "a position, or (position, text)")
    return _POSITION(name, value[0]), COMMIT_METADATA(f"the text of {name}", value[1])


_POSITIONS = arguments.mapping(_PARTITION, _with_text, "a mapping of partitions to positions, or to (position, text)")


def split_positions(positions: object) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, str]]:
    """Return positions to commit, and the texts of those that have one. Raises TypeError or ConfigError for anything
    but a mapping of partitions to positions, or to (position, text)."""
    checked: Mapping[TopicPartition, tuple[Position, str | None]] = _POSITIONS("positions", positions)
    texts = {partition: text for partition, (_, text) in checked.items() if text is not None}
    return {partition: position for partition, (position, _) in checked.items()}, texts


def check_partitions(partitions: object) -> list[TopicPartition]:
    """Return these partitions, once each. Raises TypeError or ConfigError for anything else."""
    if isinstance(partitions, str | TopicPartition) or not isinstance(partitions, Iterable):
        arguments.wrong_type("partitions", partitions, "several partitions")
    return list(dict.fromkeys(_PARTITION("partitions", each) for each in partitions))


class CommitsOfNoMember:
    """Stores positions under the name of a group without being a member: one commit at a time.

    Args:
        store: The positions of the group.
        topic_id: Returns the id of a topic; None: not known. Brokers drop the positions of a topic that is deleted.
    """

    def __init__(self, store: OffsetStore, topic_id: Callable[[str], bytes | None]) -> None:
        self._store, self._topic_id = store, topic_id
        self._one_at_a_time = anyio.Lock()
        self._stored: dict[TopicPartition, tuple[Position, bytes | None]] = {}  # for certain, in the topic of this id
        self._stored_since = math.inf  # what is in `_stored`
        self._with_text: set[TopicPartition] = set()  # of those: a commit without it would replace it

    async def positions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return the committed positions of those partitions that have one."""
        known = await self._store.fetch(list(partitions))
        return {partition: position for partition, position in known.items() if position is not None}

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedPosition | None]:
        """Return the committed positions with their texts."""
        return {**await self._store.fetch_with_metadata(list(partitions))}

    async def commit(
        self, positions: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str] = NO_METADATA
    ) -> dict[TopicPartition, Position]:
        """Store positions and return them. Those that were stored last are left out, unless they have a text, or that
        was long ago."""
        async with self._one_at_a_time:
            now = anyio.current_time()
            if now - self._stored_since >= STORED_AGAIN_S:  # brokers forget what a group without members has
                self._stored = {p: known for p, known in self._stored.items() if p in self._with_text}
                self._stored_since = now
            elif not self._stored:
                self._stored_since = now
            wanted = {p: (at, self._topic_id(p.topic)) for p, at in positions.items()}
            due = {p: at for p, at in positions.items() if p in metadata or self._stored.get(p) != wanted[p]}
            if due:
                for partition in due:
                    self._stored.pop(partition, None)
                await self._store.commit(due, metadata)
                self._stored |= {partition: wanted[partition] for partition in due}
                self._with_text = (self._with_text - due.keys()) | (due.keys() & metadata.keys())
            return due
