"""Committed positions of a consumer group (OffsetCommit, OffsetFetch): `core.interfaces.OffsetStore`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import random
from typing import Any, TypeVar

import anyio

from odradek.arguments import listed
from odradek.core.backoff import Backoff
from odradek.core.interfaces import NO_METADATA
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.leader_epochs import LeaderEpochs
from odradek.core.kafka.offsets import Committed, OffsetStep, commit_request, fetch_request, read_commit, read_fetch
from odradek.core.kafka.transaction_requests import GroupMetadata, Offset
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import DeadlineError, OdradekError, Unsupported
from odradek.io.kafka.connection import VersionLimits
from odradek.io.kafka.connections import BrokerConnections
from odradek.io.kafka.coordinators import Coordinators, CoordinatorType
from odradek.io.kafka.metadata import NOT_KNOWN_S, KafkaMetadata
from odradek.types import CommittedPosition, Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import OffsetCommitRequest, OffsetFetchRequest
from odradek.wire.kafka.schema import Request, Response

__all__ = ["CoordinatorAccess", "DeletedTopics", "KafkaOffsets"]

R = TypeVar("R", bound=Response)

_OTHER_TOPIC = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Codes for a topic that was deleted, and may be made again."""

_MISSING = Committed(OffsetStep.RETRY, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

FINAL_STEPS = (OffsetStep.LOST, OffsetStep.FENCED, OffsetStep.FAIL)


@dataclass(frozen=True, slots=True)
class CoordinatorAccess:
    """The way to the coordinators of one cluster.

    Args:
        connections: Connections to its brokers.
        coordinators: Finds them.
        ask: Sends a request, made for the versions of the broker, to any broker.
        versions: Returns what every broker met so far has.
        epochs: The leader epochs of the records that were read, for commits.
        metadata: Knows the ids of topics.
        timeout_s: From a call to its outcome (s).
        backoff: Between two attempts.
    """

    connections: BrokerConnections
    coordinators: Coordinators
    ask: Callable[..., Awaitable[Any]]
    versions: Callable[[], BrokerVersions]
    epochs: LeaderEpochs
    metadata: KafkaMetadata
    timeout_s: float = 10.0
    backoff: Backoff = Backoff()  # noqa: RUF009 - frozen


class DeletedTopics:
    """Topics that were deleted while positions are stored, as opposed to those that a coordinator does not know yet.

    Args:
        metadata: Knows the topics; read after each answer.
        topics: The topics that the positions are of, as they are known now.
    """

    def __init__(self, metadata: KafkaMetadata, topics: Iterable[str] = ()) -> None:
        self._metadata = metadata
        self._topic_ids = {topic: metadata.table.state.topic_id(topic) for topic in topics}
        self._gone_since: dict[str, float] = {}  # when the metadata was first seen without the topic (s)

    def of(self, unknown: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return those of the partitions that the coordinator does not know whose topics the metadata has not had for
        `NOT_KNOWN_S`."""
        known, now = self._metadata.table.state.topics, anyio.current_time()
        gone = [p for p in unknown if p.topic in known and not known[p.topic].partitions]
        return [p for p in gone if now - self._gone_since.setdefault(p.topic, now) >= NOT_KNOWN_S]

    async def missing_now(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return those of the partitions whose topics do not exist, by metadata that is read now if they were missing
        when it was read last. Raises OdradekError."""
        if self._missing(partitions):
            await self._metadata.refresh()
        return self._missing(partitions)

    async def made_again(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return those of the partitions whose topics have other ids than before, by the metadata of `missing_now`."""
        await self.missing_now(partitions)
        table, before = self._metadata.table.state, self._topic_ids
        return [p for p in partitions if p.topic in before and table.is_recreated(p.topic, before[p.topic])]

    def _missing(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        known, code = self._metadata.table.state.topics, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return [p for p in partitions if p.topic in known and known[p.topic].error_code == code]


class KafkaOffsets:
    """The positions that a group has committed, through its coordinator. Before 0.8.2 there are no coordinators: any
    broker keeps the positions in ZooKeeper, where later brokers do not look for them.

    Args:
        access: The way to the coordinator.
        group: The group.
        metadata: Text to be stored with each position.
    """

    def __init__(self, access: CoordinatorAccess, group: str, metadata: str = "") -> None:
        self._access, self.group, self._metadata = access, group, metadata

    async def fetch(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position | None]:
        """Return the committed positions; None where none was ever committed. See `fetch_offsets`."""
        offsets = await self.fetch_offsets(partitions)
        return {p: None if offset is None else Position(offset.offset) for p, offset in offsets.items()}

    async def fetch_with_metadata(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedPosition | None]:
        """Return the committed positions and their texts; None where none was ever committed. See `fetch_offsets`."""
        offsets = await self.fetch_offsets(partitions)
        return {
            p: None if offset is None else CommittedPosition(Position(offset.offset), offset.metadata or "")
            for p, offset in offsets.items()
        }

    async def fetch_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset | None]:
        """Return the committed positions with the epochs and metadata that were stored with them. Cancellation: safe.

        Positions that a transaction is about to commit are waited for, where brokers can say so (2.5 and later).

        Raises:
            BrokerError, TransportError, DeadlineError: Not all of them could be read.
            Unsupported: The brokers are older than 0.8.1.
        """
        group, epochs = GroupMetadata(self.group), self._access.epochs
        read: dict[TopicPartition, Offset | None] = {}
        not_known: set[TopicPartition] = set()

        async def attempt() -> dict[TopicPartition, Committed]:
            missing = [p for p in partitions if p not in read]
            response = await self._ask(OffsetFetchRequest, lambda v: fetch_request(missing, group, v, stable=True))
            answers = read_fetch(response, missing)
            doubtful = {p for p, answer in answers.items() if answer.step is OffsetStep.DONE and answer.error_code}
            if doubtful := doubtful - not_known:
                not_known.update(doubtful)
                answers |= {p: replace(answers[p], step=OffsetStep.RETRY) for p in doubtful}
                await anyio.sleep(min(NOT_KNOWN_S, self._access.timeout_s / 4))
            for partition, answer in answers.items():
                if answer.step is OffsetStep.DONE:
                    read[partition] = answer.offset
                if answer.offset is not None:
                    epochs.record_committed(partition, answer.offset.offset, answer.offset.leader_epoch)
            return answers

        if partitions:
            await self._until_done(attempt, "positions not read")
        return read

    async def commit(
        self,
        positions: Mapping[TopicPartition, Position],
        metadata: Mapping[TopicPartition, str] = NO_METADATA,
        *,
        token: Callable[[], GroupMetadata] | None = None,
        refused: Callable[[GroupMetadata, int], bool] | None = None,
    ) -> None:
        """Store positions. Positions in a topic that is deleted and made again meanwhile are dropped: in the new log
        they would be the positions of other records. Brokers compare topics from 4.2 on; before, a position may be
        stored
        for a new topic of which this client has not heard yet.

        Cancellation: positions being stored may be stored or not.

        Args:
            positions: By partition; in the topics that are known when this is called.
            metadata: Texts to be stored with some of them, in place of that of this object.
            token: Returns what proves that a member owns them, before each attempt; None: they are stored unfenced,
                which brokers refuse while the group has members.
            refused: Called with the token that was sent, and with each error. Returns True if the positions are to be
                sent again with the next token, although the error is a final one.

        Raises:
            BrokerError, TransportError, DeadlineError: Names partitions that were not stored, and why.
            Unsupported: The brokers are older than 0.8.1, or than 0.8.2 and there is a text.
        """
        topics, left, deleted = self._access.metadata, dict(positions), DeletedTopics(self._access.metadata)
        topic_ids = {p.topic: topics.table.state.topic_id(p.topic) for p in positions}
        if any(metadata.values()) and not self._access.versions().has_offsets_in_kafka:
            raise Unsupported("metadata of committed positions", "Kafka 0.8.2")

        async def attempt() -> dict[TopicPartition, Committed]:
            # A coordinator that takes names (before 4.2) would store the position of a topic that was deleted for one
            # that was made since: what is missing is read again, and nothing is sent of it.
            missing = await deleted.missing_now(left)
            table = topics.table.state
            for partition in [p for p in left if table.is_recreated(p.topic, topic_ids[p.topic])]:
                del left[partition]
            if not left:
                return {}
            # The token is that of now. Between two attempts the heartbeat may have brought a newer epoch (KIP-848), and
            # the coordinator refuses the older one from then on: `refused` says whether the newer one may be accepted.
            sent = GroupMetadata(self.group) if token is None else token()
            to_send = {p: at for p, at in left.items() if p not in missing}
            answers = dict.fromkeys(left, _MISSING)
            answers |= await self._commit_once(self.with_epochs(to_send, metadata), sent, topic_ids)
            for partition, answer in answers.items():
                if answer.step is OffsetStep.DONE:
                    del left[partition]
            codes = {answer.error_code for answer in answers.values()} - {0}
            # The topic was deleted. If it was made again, the metadata has another id for it, and the next attempt
            # leaves its positions out.
            if not codes.isdisjoint(_OTHER_TOPIC):
                await topics.refresh()
                for partition in deleted.of(p for p, answer in answers.items() if answer.error_code in _OTHER_TOPIC):
                    answers[partition] = replace(answers[partition], step=OffsetStep.FAIL)
            again = {code for code in codes if refused is not None and refused(sent, code)}
            return {
                p: replace(answer, step=OffsetStep.REJOIN) if answer.error_code in again else answer
                for p, answer in answers.items()
            }

        if positions:
            await self._until_done(attempt, "positions not stored")

    async def _commit_once(
        self, offsets: Mapping[TopicPartition, Offset], token: GroupMetadata, topic_ids: Mapping[str, bytes]
    ) -> dict[TopicPartition, Committed]:
        """Return the result of one request, for each partition."""
        if not offsets:
            return {}
        request = commit_request(offsets, token, topic_ids)
        response = await self._ask(OffsetCommitRequest, lambda versions: request, topic_ids.values())
        read = read_commit(response, topic_ids)
        return {p: read.get(p, Committed(OffsetStep.RETRY)) for p in offsets}

    def with_epochs(
        self, positions: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str] = NO_METADATA
    ) -> dict[TopicPartition, Offset]:
        """Return positions as they are stored: with the epoch of what is before them, and with metadata."""
        epochs, usual = self._access.epochs, self._metadata
        return {p: Offset(int(at), epochs.to_commit(p, int(at)), metadata.get(p, usual)) for p, at in positions.items()}

    async def _until_done(self, attempt: Callable[[], Any], what: str) -> None:
        """Repeat attempts while their errors are passing ones, and while there is time."""
        failure: OdradekError | None = None
        with anyio.move_on_after(self._access.timeout_s):
            for number in range(1_000):
                try:
                    answers: dict[TopicPartition, Committed] = await attempt()
                except OdradekError as error:
                    if not error.retriable:
                        raise
                    self._forget()
                    failure = error
                else:
                    failure = self._failure(answers, what)
                    if failure is None:
                        return
                    if any(answer.step in FINAL_STEPS for answer in answers.values()):
                        raise failure
                await anyio.sleep(self._access.backoff.delay(number, random()))
        raise failure or DeadlineError(f"group {self.group}: {what}", self._access.timeout_s, sent=True)

    def _failure(self, answers: Mapping[TopicPartition, Committed], what: str) -> OdradekError | None:
        """Return the error for partitions that are not done; None if all are."""
        failed = {p: answer for p, answer in answers.items() if answer.step is not OffsetStep.DONE}
        if not failed:
            return None
        if any(answer.step is OffsetStep.FIND_COORDINATOR for answer in failed.values()):
            self._forget()
        worst = next((a for a in failed.values() if a.step in FINAL_STEPS), next(iter(failed.values())))
        return broker_error(worst.error_code, f"group {self.group}: {what}: {listed(failed)}")

    async def _ask(
        self,
        api: type[Request[R]],
        build: Callable[[BrokerVersions], Request[R]],
        topic_ids: Collection[bytes] | None = None,
    ) -> R:
        versions = self._access.versions()
        if not versions.has_offsets:
            raise Unsupported("storing positions under a group name", "Kafka 0.8.1: keep a reader's bookmark instead")
        if not versions.has_offsets_in_kafka:
            response: R = await self._access.ask(api, build)
        else:
            broker = await self._access.coordinators.find(CoordinatorType.GROUP, self.group)
            connection, limits = self._access.connections.get(broker, "positions"), VersionLimits(topic_ids)
            response = await connection.submit_built(api, build, limits=limits)
        return response

    def _forget(self) -> None:
        self._access.coordinators.forget(CoordinatorType.GROUP, self.group)
