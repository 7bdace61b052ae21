"""Consumer groups: what a member is given, what it has read, and where groups keep positions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from odradek.types import NO_METADATA, CommittedPosition, Position, TopicPartition

__all__ = ["NO_METADATA", "Assignment", "Membership", "OffsetStore", "RebalanceListener", "Subscription"]


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics that a consumer asks its group for. Exactly one of topics, include, exclude is set.

    Args:
        group: Group name.
        topics: Topic -> number of streams.
        include: Whitelist regular expression, `streams` streams in all.
        exclude: Blacklist regular expression.
        streams: Streams for include/exclude.
        consumer_id: A fixed id; None makes a unique one.
        assignors: Names of the assignors the member supports, the preferred one first; None: the driver's choice.
        group_protocol: The protocol: with `consumer` the brokers assign, with `classic` a member does; None: the
            brokers where they can.
        commit_metadata: Text to be stored with every committed position.
        revoke_within: Longest time that `RebalanceListener.revoke` takes, without its commit (s).
        max_blocked_s: How long the member stays in its group while its event loop is blocked (s); 0: as long as the
            group waits for a heartbeat.
    """

    group: str
    topics: Mapping[str, int] | None = None
    include: str | None = None
    exclude: str | None = None
    streams: int = 1
    consumer_id: str | None = None
    assignors: Sequence[str] | None = None
    group_protocol: str | None = None
    commit_metadata: str = ""
    revoke_within: float = 3.0
    max_blocked_s: float = 0.0

    def selects(self, topic: str) -> bool:
        """Return True if a topic is one of these."""
        if self.topics is not None:
            return topic in self.topics
        matches = re.fullmatch(self.include or self.exclude or "", topic) is not None
        return matches == (self.exclude is None)


class Assignment(NamedTuple):
    """Partitions that a member owns from now on, in addition to those it has.

    `partitions` maps each to the number of its stream (0 when the consumer has one stream); `committed` has the
    stored position of each, or None. `generation` grows with every assignment of the member.
    """

    generation: int
    partitions: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, Position | None]


class RebalanceListener(Protocol):
    """The consumer, as its membership sees it. Partitions that no call names stay and are delivered without a pause."""

    async def revoke(self, partitions: Collection[TopicPartition]) -> None:
        """Stop delivering these partitions, wait (bounded) for records being processed, commit what is done.

        They are released after it returns. `lost` may be called meanwhile and ends it early.
        """
        ...

    async def assign(self, assignment: Assignment) -> None:
        """Deliver these partitions too. Called once per completed rebalance, so possibly with none."""
        ...

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """The session that owned these partitions ended: others may own them already, nothing may be committed."""
        ...


class Membership(Protocol):
    """A member of a group: which partitions it owns, and the positions of those."""

    @property
    def consumer_id(self) -> str:
        """The name of this member in its group; empty before it has one."""
        ...

    @property
    def problem(self) -> str:
        """The reason why the member has no share, or not all of it; empty while nothing is wrong."""
        ...

    @property
    def why_lost(self) -> str:
        """The reason of the latest call of `RebalanceListener.lost`."""
        ...

    async def run(self, listener: RebalanceListener) -> None:
        """Join, then turn every group event into calls of `listener`, until cancelled.

        Retries while others own its partitions, without an end: the caller bounds how long joining may take.
        """
        ...

    async def commit(
        self, positions: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str] = NO_METADATA
    ) -> None:
        """Store positions of owned partitions, fenced by the session that owns them; with texts for some of them, in
        place of `Subscription.commit_metadata`.

        Raises Unsupported for a text where nothing but positions is stored. Raises SessionExpired when that session has
        ended: nothing is stored after it. Raises after trying all; a partial failure names partitions that were not
        stored.
        """
        ...

    async def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Position | None]:
        """Return the stored positions; None where none was ever stored."""
        ...

    async def leave(self) -> None:
        """Release everything this member owns. Idempotent; call it after `run` has ended.

        Cancellation, or an error that it raises, leaves nothing behind either: the rest is released in the background
        as soon as the cluster answers, or ends with the member's session.
        """
        ...


class OffsetStore(Protocol):
    """Committed positions of a group, for those outside of it (lag, tools). Members commit through `Membership`."""

    async def fetch(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Position | None]: ...

    async def fetch_with_metadata(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedPosition | None]: ...

    async def commit(
        self, positions: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str] = NO_METADATA
    ) -> None:
        """Store them unfenced: a member that owns the partitions overwrites them with its next commit.

        Raises Unsupported for a text where nothing but positions is stored. Raises after trying all; a partial failure
        names partitions that were not stored.
        """
        ...
