"""A member of a consumer group (Kafka 0.9 and later): `core.interfaces.Membership`.

A `MemberRunner` keeps the member in its group in a task of its own, so that heartbeats go on while the listener gives
up partitions, and while a consumer commits for the last time. `run` calls the listener, one call at a time, in the
order in which the member decided.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import anyio

from odradek.core.interfaces import NO_METADATA, Assignment, RebalanceListener
from odradek.core.kafka.group_effects import Assign, Lost, Revoke
from odradek.core.kafka.transaction_positions import TransactionPositions
from odradek.core.kafka.transaction_requests import GroupMetadata, Offset
from odradek.errors import GroupError
from odradek.io.kafka.member_runner import MemberRunner
from odradek.io.kafka.offsets import CoordinatorAccess, KafkaOffsets
from odradek.io.notifier import Notifier
from odradek.types import Position, TopicPartition

__all__ = ["KafkaMembership"]

log = logging.getLogger("odradek.group")


class KafkaMembership:
    """One member of one group.

    The member exists from `run` until `leave`; in between it stays in the group, also after `run` was cancelled.

    Args:
        runner: Runs it.
    """

    def __init__(self, runner: MemberRunner) -> None:
        self._runner, self._group = runner, runner.subscription.group
        self._offsets = KafkaOffsets(runner.access, self._group, runner.subscription.commit_metadata)
        self._in_transactions, self._transaction_ended = TransactionPositions(), Notifier()
        self._assigned: dict[TopicPartition, int] = {}  # what the listener has, with its stream
        self._listener: RebalanceListener | None = None
        self._generation = self._losses = 0
        self.why_lost = ""
        """Reason of the latest loss (see `Membership.why_lost`)."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._runner!r}>"

    @property
    def consumer_id(self) -> str:
        """The id that the coordinator gave this member; empty before it has joined."""
        return self._runner.member.member_id

    @property
    def problem(self) -> str:
        """The last error, until a request succeeds; empty while nothing is wrong."""
        return self._runner.problem

    async def run(self, listener: RebalanceListener) -> None:
        """Join, and call `listener`, until cancelled. Cancellation: the member stays in the group until `leave`.

        Raises:
            Unsupported, ConfigError: See `group_protocol`.
            Fenced: Another process has this member's identity.
            BrokerError, ConfigError: The group does not accept this member; trying again cannot change that.
        """
        await self._runner.start(self._lose)
        self._listener = listener
        try:
            while True:
                await self._carry_out(await self._runner.next_step(), listener)
        finally:
            self._listener = None

    async def leave(self) -> None:
        """Leave the group. Does nothing if it never joined. Cancellation: it leaves in the background."""
        self._assigned.clear()
        await self._runner.leave()

    # ---- positions -------------------------------------------------------------------------------------------

    async def commit(
        self, positions: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str] = NO_METADATA
    ) -> None:
        """Store positions of assigned partitions, fenced by the generation of the member.

        Raises:
            GroupError: A partition is not assigned to this member (any more).
            BrokerError: The generation of this member has ended, or the group refuses the positions. Nothing more of
                them is stored.
            TransportError, DeadlineError: They may be stored or not.
        """
        self._in_transactions.forget(positions)
        await self._offsets.commit(
            positions, metadata, token=lambda: self.token(positions), refused=self._runner.commit_refused
        )

    def shares(self, access: CoordinatorAccess) -> bool:
        """Return True if this member belongs to the cluster of these coordinators."""
        return self._runner.access.coordinators is access.coordinators

    def offsets(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Offset]:
        """Return positions as this member stores them."""
        return self._offsets.with_epochs(positions)

    def token(self, positions: Mapping[TopicPartition, Position]) -> GroupMetadata:
        """Return the current generation, if the member has all these partitions in it; else raise GroupError."""
        fence = self._runner.member.fence
        # Without a generation it has lost all of them, but the step of the runner that says so is still to come.
        foreign = sorted(positions.keys() - self._assigned.keys() if fence.generation > 0 else positions)
        if foreign:
            raise GroupError(f"group {self._group}: {foreign[0]} does not belong to this member: not committed")
        return fence

    def transaction_began(self) -> None:
        """Note that a transaction is about to send positions of this member, which brokers do not tell of until it has
        ended and its marker is written (before 2.5): see `TransactionPositions`."""
        self._in_transactions.begin()

    def transaction_ended(self, committed: Mapping[TopicPartition, Position]) -> None:
        """Note that it has ended, and what it has committed for certain."""
        self._in_transactions.end(committed, anyio.current_time())
        self._transaction_ended.notify()

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position | None]:
        """Return the committed positions; None where none was ever committed. See `KafkaOffsets.fetch`. Waits for
        transactions of this process that store some of this member."""
        while self._in_transactions.open:
            await self._transaction_ended.wait(self._transaction_ended.version)
        return self._in_transactions.newest(await self._offsets.fetch(partitions), anyio.current_time())

    # ---- the listener ----------------------------------------------------------------------------------------

    async def _carry_out(self, step: Revoke | Assign, listener: RebalanceListener) -> None:
        if isinstance(step, Revoke):
            if revoked := step.partitions & self._assigned.keys():
                await listener.revoke(revoked)
            for partition in revoked:
                self._assigned.pop(partition, None)
            self._runner.revoked(step)
        else:
            await self._assign(step, listener)

    async def _assign(self, step: Assign, listener: RebalanceListener) -> None:
        """Give the listener what is still owned, with positions read now. Positions that cannot be read yet, because a
        transaction stores others, are read after partitions were given up: all other members may wait for those. A
        partition that was given up and came back meanwhile is in several steps."""
        losses, wanted = self._losses, (step.partitions & self._runner.member.owned) - self._assigned.keys()
        committed = await self._runner.retry(
            lambda: self._read_committed(wanted),
            needed=lambda: losses == self._losses and not self._runner.has_to_revoke,
        )
        if losses != self._losses:
            return
        if committed is None:
            self._runner.postpone(step)
            return
        leaves_out = self._runner.topics.leaves_out
        added = sorted(p for p in wanted & self._runner.member.owned if not leaves_out(p.topic))
        streams = self._choose_streams(added)
        self._assigned.update(streams)
        self._generation += 1
        generation = self._runner.member.fence.generation
        log.info("%s owns %d partitions, generation %d", self._group, len(self._assigned), generation)
        await listener.assign(Assignment(self._generation, streams, {p: committed[p] for p in added}))

    async def _read_committed(self, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, Position | None]:
        # While a member had no partition of a topic, nothing has told it that the topic was made again: the positions
        # that the group has committed in the new one would count as those of the former.
        if partitions:
            await self._runner.topics.find_current({p.topic for p in partitions})
        return await self.committed(sorted(partitions))

    def _choose_streams(self, added: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the stream of each new partition: of those of its topic, the one with the fewest."""
        wanted = self._runner.subscription
        counts = wanted.topics or {}
        used = Counter((p.topic, stream) for p, stream in self._assigned.items())
        chosen: dict[TopicPartition, int] = {}
        for partition in added:
            streams = [(partition.topic, stream) for stream in range(counts.get(partition.topic, wanted.streams))]
            fewest = min(streams, key=used.__getitem__)
            chosen[partition] = fewest[1]
            used[fewest] += 1
        return chosen

    def _lose(self, effect: Lost) -> None:
        """Take partitions from the listener at once."""
        self._losses += 1
        lost = effect.partitions & self._assigned.keys()
        for partition in lost:
            del self._assigned[partition]
        if lost and self._listener is not None:
            log.warning("%s: lost %d partitions: %s", self._group, len(lost), effect.reason)
            self.why_lost = effect.reason
            self._listener.lost(lost)
