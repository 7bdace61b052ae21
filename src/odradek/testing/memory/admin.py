"""Administration of an in-memory cluster (`core.admin.ClusterAdmin`): topics, with configurations of which some have an
effect, records, groups and transactions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from operator import attrgetter
from typing import TypeVar

import anyio.lowlevel

from odradek.core.admin import (
    ClusterAdmin,
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    OffsetChoice,
    OffsetListing,
    OffsetSpec,
    PartitionDescription,
    Results,
    TopicDescription,
    TopicSettings,
)
from odradek.core.admin_transactions import ProducerDescription, TransactionDescription, TransactionListing
from odradek.core.kafka.admin_topics import merged_config
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.list_offsets import time_ms
from odradek.errors import OdradekError
from odradek.testing.memory.configs import DEFAULTS, check_config
from odradek.testing.memory.groups import MemoryGroup
from odradek.testing.memory.log import TOPIC_NAME, MemoryLog
from odradek.testing.memory.share import ShareGroupState
from odradek.testing.memory.state import ClusterState
from odradek.types import EARLIEST, AtTime, Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = ["MemoryAdmin"]

K = TypeVar("K")
V = TypeVar("V")


class MemoryAdmin(ClusterAdmin):
    """Changes take effect at once.

    Args:
        state: The cluster.
    """

    def __init__(self, state: ClusterState) -> None:
        super().__init__("a real broker: an in-memory cluster has topics, groups and transactions only")
        self._state = state

    async def describe_cluster(self) -> ClusterDescription:
        """Return the brokers (see `ClusterAdmin`)."""
        await anyio.lowlevel.checkpoint()
        brokers = tuple(sorted(self._state.table.brokers.values()))
        return ClusterDescription(self._state.cluster_id, brokers[0].id if brokers else None, brokers, {})

    async def create_topics(
        self, topics: Mapping[str, TopicSettings], *, validate_only: bool
    ) -> Results[str, CreatedTopic]:
        """Create topics (see `ClusterAdmin`); each partition has one replica, however many are wanted."""

        def create(name: str) -> CreatedTopic:
            count, replicas = topics[name].partitions or 1, topics[name].replicas or 1
            _check_name(name, self._state.table.topics)
            context = f"creating topic {name!r}"
            if replicas > len(self._state.table.brokers):
                raise broker_error(ErrorCode.INVALID_REPLICATION_FACTOR, f"{context}: {replicas} replicas")
            check_config(context, topics[name].config)
            if not validate_only:
                brokers = sorted(self._state.brokers)
                self._state.set_topic(name, {number: brokers[number % len(brokers)] for number in range(count)})
                self._state.configs[name] = dict(topics[name].config)
            return CreatedTopic(name, self._topic_id(name), count, 1)

        return await _each(topics, create)

    async def delete_topics(self, names: Sequence[str]) -> Results[str, None]:
        """Delete topics (see `ClusterAdmin`)."""

        def delete(name: str) -> None:
            self._partitions(name)
            self._state.set_topic(name, None)

        return await _each(names, delete)

    async def add_partitions(self, totals: Mapping[str, int], *, validate_only: bool) -> Results[str, None]:
        """Add partitions (see `ClusterAdmin`)."""

        def add(name: str) -> None:
            before = len(self._partitions(name))
            if totals[name] <= before:
                raise broker_error(ErrorCode.INVALID_PARTITIONS, f"topic {name!r} has {before} partitions")
            if not validate_only:
                brokers = sorted(self._state.brokers)
                new = range(before, totals[name])
                self._state.add_partitions(name, {number: brokers[number % len(brokers)] for number in new})

        return await _each(totals, add)

    async def describe_topics(self, names: Sequence[str]) -> Results[str, TopicDescription]:
        """Return the partitions of topics (see `ClusterAdmin`)."""

        def describe(name: str) -> TopicDescription:
            if not TOPIC_NAME.fullmatch(name):
                raise broker_error(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name!r}")
            return TopicDescription(
                name, self._topic_id(name), False, tuple(self._described(p) for p in self._partitions(name))
            )

        return await _each(names, describe)

    async def describe_topic_configs(self, names: Sequence[str]) -> Results[str, Mapping[str, ConfigEntry]]:
        """Return the configuration of topics (see `ClusterAdmin`)."""
        return await _each(names, self._config)

    async def alter_topic_configs(
        self, changes: Mapping[str, Mapping[str, ConfigChange]], *, validate_only: bool
    ) -> Results[str, None]:
        """Change entries of the configuration of topics (see `ClusterAdmin`)."""

        def alter(name: str) -> None:
            changed = merged_config(self._config(name), changes[name])
            check_config(f"configuration of {name!r}", changed)
            if not validate_only:
                self._state.configs[name] = changed

        return await _each(changes, alter)

    def _config(self, name: str) -> Mapping[str, ConfigEntry]:
        self._partitions(name)
        entries = {key: ConfigEntry(key, value, ConfigSource.DEFAULT) for key, value in DEFAULTS.items()}
        own = self._state.configs.get(name, {})
        return entries | {key: ConfigEntry(key, value, ConfigSource.TOPIC) for key, value in own.items()}

    async def delete_records(
        self, before: Mapping[TopicPartition, Position | None]
    ) -> Results[TopicPartition, Position]:
        """Delete records (see `ClusterAdmin`)."""

        def delete(partition: TopicPartition) -> Position:
            log, position = _log(self._state, partition), before[partition]
            if not self._state.may_delete(partition.topic):
                raise broker_error(ErrorCode.POLICY_VIOLATION, f"{partition} is compacted")
            if position is not None and position > log.end:
                raise broker_error(ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition} ends at {log.end}")
            log.delete_before(log.end if position is None else position)
            self._state.changed.notify()
            return log.start

        return await _each(before, delete)

    async def list_offsets(
        self, specs: Mapping[TopicPartition, OffsetChoice], *, read_committed: bool
    ) -> Results[TopicPartition, OffsetListing]:
        """Find offsets (see `ClusterAdmin`); there is no other storage."""

        def find(partition: TopicPartition) -> OffsetListing:
            log, at = _log(self._state, partition), specs[partition]
            return _listing(log, at, log.last_stable if read_committed else log.end)

        return await _each(specs, find)

    async def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        """Return groups (see `ClusterAdmin`)."""
        await anyio.lowlevel.checkpoint()
        every = sorted({*self._state.groups, *self._state.share_groups})
        described = [group.describe() for name in every if (group := self._known_group(name)) is not None]
        listed = [GroupListing(group.name, group.protocol_type, group.state, group.type) for group in described]
        of_state = [group for group in listed if not states or group.state in states]
        return [group for group in of_state if not types or group.type in types]

    async def describe_groups(self, names: Sequence[str]) -> Results[str, GroupDescription]:
        """Return the members of groups (see `ClusterAdmin`)."""
        return await _each(names, lambda name: self._group(name).describe())

    async def delete_groups(self, names: Sequence[str]) -> Results[str, None]:
        """Delete groups (see `ClusterAdmin`)."""

        def delete(name: str) -> None:
            group = self._group(name)
            if group.describe().members:
                raise broker_error(ErrorCode.NON_EMPTY_GROUP, f"deleting group {name!r}")
            group.delete()

        return await _each(names, delete)

    async def delete_positions(self, group: str, partitions: Sequence[TopicPartition]) -> Results[TopicPartition, None]:
        """Delete committed positions (see `ClusterAdmin`)."""

        def delete(partition: TopicPartition) -> None:
            self._group(group)
            self._state.group(group).committed.pop(partition, None)

        return await _each(partitions, delete)

    @property
    def transactions(self) -> MemoryTransactionsAdmin:
        """The administration of transactions."""
        return MemoryTransactionsAdmin(self._state)

    def _topic_id(self, name: str) -> str | None:
        known = self._state.table.topic_id(name)
        return None if known is None else known.hex()

    def _partitions(self, topic: str) -> Sequence[TopicPartition]:
        if topic not in self._state.table.topics:
            raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic!r}")
        return self._state.table.partitions(topic)

    def _described(self, partition: TopicPartition) -> PartitionDescription:
        leader = self._state.table.leader(partition)
        copies = () if leader is None else (leader.id,)
        return PartitionDescription(partition, leader and leader.id, None, copies, copies, ())

    def _known_group(self, name: str) -> MemoryGroup | ShareGroupState | None:
        known = (self._state.groups.get(name), self._state.share_groups.get(name))
        return next((group for group in known if group is not None and group.exists), None)

    def _group(self, name: str) -> MemoryGroup | ShareGroupState:
        if (known := self._known_group(name)) is None:
            raise broker_error(ErrorCode.GROUP_ID_NOT_FOUND, f"group {name!r}")
        return known


class MemoryTransactionsAdmin:
    """Administration of transactions (`core.admin_transactions.TransactionsAdmin`).

    Args:
        state: The cluster.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    async def list_transactions(
        self, states: Sequence[str], producer_ids: Sequence[int], longer_than_s: float | None, pattern: str | None
    ) -> list[TransactionListing]:
        """Return transactional ids (see `TransactionsAdmin`)."""
        await anyio.lowlevel.checkpoint()
        began_before = inf if longer_than_s is None else self._state.clock.now() - longer_than_s
        return [
            TransactionListing(name, known.producer_id, known.name, min(self._state.brokers))
            for name, known in sorted(self._state.transactions.ids.items())
            if (not states or known.name in states)
            and (not producer_ids or known.producer_id in producer_ids)
            and (longer_than_s is None or (known.started is not None and known.started < began_before))
            and (pattern is None or re.fullmatch(pattern, name))
        ]

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> Results[str, TransactionDescription]:
        """Return transactions (see `TransactionsAdmin`)."""

        def describe(name: str) -> TransactionDescription:
            if (known := self._state.transactions.ids.get(name)) is None:
                raise broker_error(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"transactional id {name!r}")
            coordinator, partitions = self._state.brokers[min(self._state.brokers)], tuple(sorted(known.partitions))
            numbers = known.producer_id, known.epoch, known.timeout_s, known.started
            return TransactionDescription(name, known.name, *numbers, partitions, coordinator)

        return await _each(transactional_ids, describe)

    async def describe_producers(
        self, partitions: Sequence[TopicPartition]
    ) -> Results[TopicPartition, Sequence[ProducerDescription]]:
        """Return the producers of partitions with transactions (see `TransactionsAdmin`)."""
        return await _each(partitions, lambda partition: _producers(_log(self._state, partition)))

    async def abort_transaction(self, partition: TopicPartition, producer: ProducerDescription) -> None:
        """Write the marker that aborts a transaction (see `TransactionsAdmin`)."""
        await anyio.lowlevel.checkpoint()
        log, number = _log(self._state, partition), producer.producer_id
        if number not in log.open:
            raise broker_error(ErrorCode.INVALID_TXN_STATE, f"{partition}: producer {number} has none open")
        log.end_transaction(number, committed=False)
        self._state.changed.notify()


def _log(state: ClusterState, partition: TopicPartition) -> MemoryLog:
    if (log := state.logs.get(partition)) is None:
        raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition}")
    return log


def _producers(log: MemoryLog) -> list[ProducerDescription]:
    """Return the producers with transactions that a log knows."""
    described = []
    for number, batches in log.batches.items():
        start, (last, _, timestamp) = log.open.get(number), batches[-1]
        sequence, first = last.base_sequence + last.records - 1, None if start is None else Position(start[0])
        described.append(ProducerDescription(number, last.producer.epoch, sequence, timestamp, None, first))
    return described


def _check_name(name: str, topics: Collection[str]) -> None:
    """Raise BrokerError for a name that a new topic cannot have."""
    context = f"creating topic {name!r}"
    if name in topics:
        raise broker_error(ErrorCode.TOPIC_ALREADY_EXISTS, context)
    if not TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise broker_error(ErrorCode.INVALID_TOPIC_EXCEPTION, context)
    for other in topics:  # names of metrics have "_" in place of "."
        if other.replace(".", "_") == name.replace(".", "_"):
            raise broker_error(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{context}: it collides with topic {other!r}")


def _listing(log: MemoryLog, at: OffsetChoice, end: Position) -> OffsetListing:
    """Return the offset as a broker does: with the timestamp of the record if it was looked up by one. `end` is that of
    what the client may read."""
    if isinstance(at, OffsetSpec):
        newest = max(log.records, key=attrgetter("timestamp"), default=None)
        if at is OffsetSpec.MAX_TIMESTAMP and newest is not None:
            return OffsetListing(Position(newest.offset), newest.timestamp, None)
        return OffsetListing(log.start if at is OffsetSpec.EARLIEST_LOCAL else None, None, None)
    if not isinstance(at, AtTime):
        return OffsetListing(log.start if at is EARLIEST else end, None, None)
    position = log.at_time(time_ms(at))
    if position >= end:
        return OffsetListing(None, None, None)
    return OffsetListing(position, log.records[log.row(position)].timestamp, None)


async def _each(items: Mapping[K, object] | Sequence[K], change: Callable[[K], V]) -> Results[K, V]:
    """Change every item; the results say which could not be changed."""
    await anyio.lowlevel.checkpoint()
    done: dict[K, V] = {}
    failed: dict[K, OdradekError] = {}
    for item in items:
        try:
            done[item] = change(item)
        except OdradekError as error:
            failed[item] = error
    return Results(done, failed)
