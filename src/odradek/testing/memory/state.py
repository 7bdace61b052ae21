"""State that the clients of an in-memory cluster share: its brokers, logs, groups, faults and clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import count
from math import inf
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from odradek.errors import BrokerError, DeadlineError, OdradekError
from odradek.io.notifier import Notifier
from odradek.testing.memory.clock import MemoryClock
from odradek.testing.memory.configs import DEFAULTS
from odradek.testing.memory.faults import Faults, MemoryRequest, Operation
from odradek.testing.memory.groups import MemoryGroup
from odradek.testing.memory.log import MemoryLog
from odradek.testing.memory.metadata import MemoryRoutingTable
from odradek.testing.memory.share import ShareGroupState
from odradek.testing.memory.transactions import TransactionCoordinator
from odradek.types import Broker, TimestampType, TopicPartition

if TYPE_CHECKING:
    from odradek.testing.memory.driver import MemoryDriver

__all__ = ["ClusterState"]


_NUMBERS = count(1)


class ClusterState:
    """The state of the cluster itself. Every change of it notifies `changed`."""

    def __init__(self, brokers: Mapping[int, Broker]) -> None:
        self.cluster_id = f"memory-{next(_NUMBERS)}"
        self.changed = Notifier()
        self.clock = MemoryClock(self._time_changed)
        self.faults = Faults()
        self.brokers = dict(brokers)
        """All brokers, also stopped ones."""
        self.logs: dict[TopicPartition, MemoryLog] = {}
        self.groups: dict[str, MemoryGroup] = {}
        self.share_groups: dict[str, ShareGroupState] = {}
        self.transactions = TransactionCoordinator(self)
        self.configs: dict[str, dict[str, str]] = {}
        """What was set in configurations of topics; see `timestamp_type` and the following for what has an effect."""
        self.clients: set[MemoryDriver] = set()
        """The clients that are open."""
        self.replicas: dict[TopicPartition, int] = {}
        """The broker that the leader of a partition wants consumers to fetch from."""
        self.table = MemoryRoutingTable(1, dict(brokers))
        """The truth."""
        self.announced = self.table
        """The latest table that every client was told of."""
        self.by_name: frozenset[str] = frozenset()
        """Topics that are fetched by name, from whichever log has it now."""
        self._starts = dict.fromkeys(brokers, 1)
        self._topic_ids = count(1)

    def start_of(self, broker: Broker) -> int:
        """Return the number of a broker's latest start, 0 while nothing listens at this address."""
        return self._starts[broker.id] if self.table.brokers.get(broker.id) == broker else 0

    def now_ms(self) -> int:
        """Return the cluster's time (ms since the epoch)."""
        return int(self.clock.now() * 1000)

    def _time_changed(self) -> None:
        self.transactions.expire()
        self.changed.notify()

    def group(self, name: str) -> MemoryGroup:
        """Return a group, which may be one that does not exist yet."""
        return self.groups.setdefault(name, MemoryGroup(name, self.changed.notify))

    def share_group(self, name: str) -> ShareGroupState:
        """Return a share group, which may be one that does not exist yet."""
        return self.share_groups.setdefault(name, ShareGroupState(name))

    def error_of(
        self, operation: Operation, partition: TopicPartition, broker: int, topic_id: bytes | None = None
    ) -> OdradekError | None:
        """Return why a broker refuses a request for one partition, or None. A fetch has the id of the topic that the
        client knows."""
        if (error := self.faults.partition_error(operation, partition, broker)) is not None:
            return error
        if partition not in self.logs:
            return _error(3, "UNKNOWN_TOPIC_OR_PARTITION", partition)
        if self.is_other_topic(partition.topic, topic_id):
            return _error(100, "UNKNOWN_TOPIC_ID", partition)
        if operation == "fetch" and self.replicas.get(partition) == broker:
            return None
        leader = self.table.leader(partition)
        return None if leader is not None and leader.id == broker else _error(6, "NOT_LEADER_OR_FOLLOWER", partition)

    def is_other_topic(self, topic: str, topic_id: bytes | None) -> bool:
        """Return True if there is another topic now than the one with this id, and brokers compare ids."""
        return topic_id not in (None, self.table.topic_id(topic)) and topic not in self.by_name

    # ---- configuration of topics ------------------------------------------------------------------------------

    def timestamp_type(self, topic: str) -> TimestampType:
        """Return whose time the records of a topic have."""
        is_of_log = self._config(topic, "message.timestamp.type") == "LogAppendTime"
        return TimestampType.LOG_APPEND_TIME if is_of_log else TimestampType.CREATE_TIME

    def largest_batch(self, topic: str) -> int:
        """Return the size limit of a batch (bytes)."""
        return int(self._config(topic, "max.message.bytes"))

    def timestamp_limits(self, topic: str) -> range:
        """Return the timestamps that records of a producer may have now (ms)."""
        before, after = (int(self._config(topic, f"message.timestamp.{name}.max.ms")) for name in ("before", "after"))
        return range(self.now_ms() - before, self.now_ms() + after + 1)

    def needs_keys(self, topic: str) -> bool:
        """Return True if every record of a topic has to have a key: it would be compacted."""
        return "compact" in self._config(topic, "cleanup.policy")

    def may_delete(self, topic: str) -> bool:
        """Return True if the oldest records of a topic may be deleted: it is not only compacted."""
        return "delete" in self._config(topic, "cleanup.policy") or not self.needs_keys(topic)

    def _config(self, topic: str, name: str) -> str:
        return self.configs.get(topic, {}).get(name, DEFAULTS[name])

    # ---- requests ---------------------------------------------------------------------------------------------

    def receive(self, request: MemoryRequest) -> None:
        """Take note of a request that has reached the cluster."""
        self.faults.requests.append(request)
        self.faults.received[request.operation, request.broker] += 1
        self.changed.notify()

    async def serve(
        self,
        operation: Operation,
        timeout: float,
        *,
        what: str = "",
        partitions: Collection[TopicPartition] = (),
        broker: int | None = None,
        ended: Callable[[], bool] = lambda: False,
        has_waited: bool = False,
    ) -> None:
        """Wait as long as an operation is delayed or held, or until `ended`; then raise the error it is to have.

        Takes note of the request, but for one of `produce`, which comes before it is its turn.
        `has_waited`: the request was delayed before, and has waited for something else since; it is not delayed again.

        Raises DeadlineError after `timeout` (s). Cancellation: safe.
        """
        asked = partitions if isinstance(partitions, Mapping) else dict.fromkeys(partitions, 0)
        request = MemoryRequest(operation, broker, asked)
        delay = 0.0
        if not has_waited:
            delay = self.faults.delay_of(operation, broker)
            if operation != "produce":
                self.receive(request)
        with anyio.move_on_after(timeout):
            await self._wait(request, delay, ended)
            self.transactions.expire()
            if (error := self.faults.request_error(operation, partitions, broker)) is not None:
                raise error
            return
        raise DeadlineError(what or f"{operation} request", timeout, sent=operation != "connect")

    async def _wait(self, request: MemoryRequest, delay: float, ended: Callable[[], bool]) -> None:
        await anyio.lowlevel.checkpoint()
        operation, broker = request.operation, request.broker
        until = self.clock.now() + delay
        if self.clock.now() >= until and self.faults.may_pass(operation, broker):
            return
        self.faults.waiting.append(request)
        self.changed.notify()
        try:
            while not ended():
                version, delayed = self.changed.version, self.clock.now() < until
                if not delayed and self.faults.may_pass(operation, broker):
                    return
                await self.changed.wait(version, self.clock.seconds_until(until) if delayed else inf)
        finally:
            _remove(self.faults.waiting, request)
            self.changed.notify()

    def replica_of(self, partition: TopicPartition) -> int | None:
        """Return the live broker that consumers are to fetch a partition from instead of its leader, or None."""
        leader, replica = self.table.leader(partition), self.replicas.get(partition)
        return None if replica not in self.table.brokers or leader is None or leader.id == replica else replica

    # ---- changes ----------------------------------------------------------------------------------------------

    def set_topic(self, topic: str, leaders: Mapping[int, int] | None) -> None:
        """Create a topic with the leader of each partition; None deletes it."""
        self._announce(self._with_topic(topic, leaders))

    def recreate_topic(self, topic: str, *, by_name: bool) -> None:
        """Delete a topic and create it again with the same leaders; clients find out by reading the metadata again."""
        self.by_name = self.by_name | {topic} if by_name else self.by_name - {topic}
        self._replace(self._with_topic(topic, self.table.leaders[topic]))

    def _with_topic(self, topic: str, leaders: Mapping[int, int] | None) -> MemoryRoutingTable:
        """Drop a topic with its configuration, and with what groups have committed, as coordinators do; return a table
        with an empty one, or with none."""
        self.configs.pop(topic, None)
        self.logs = {partition: log for partition, log in self.logs.items() if partition.topic != topic}
        self.replicas = {partition: broker for partition, broker in self.replicas.items() if partition.topic != topic}
        for group in self.groups.values():
            group.forget(topic)
        known, ids = dict(self.table.leaders), dict(self.table.ids)
        known.pop(topic, None)
        ids.pop(topic, None)
        if leaders is not None:
            known[topic], ids[topic] = dict(leaders), next(self._topic_ids).to_bytes(16, "big")
        for number in leaders or ():
            partition = TopicPartition(topic, number)
            self.logs[partition] = MemoryLog(partition)
        return replace(self.table, leaders=known, ids=ids)

    def add_partitions(self, topic: str, leaders: Mapping[int, int]) -> None:
        """Add empty partitions to a topic, each with its leader."""
        for number in leaders:
            partition = TopicPartition(topic, number)
            self.logs[partition] = MemoryLog(partition)
        known = self.table.leaders
        self._announce(replace(self.table, leaders={**known, topic: {**known[topic], **leaders}}))

    def set_leader(self, partition: TopicPartition, broker: int) -> None:
        """Move a partition; clients find out by asking the former leader, if that is live."""
        before = self.table.leader(partition)
        leaders = {**self.table.leaders[partition.topic], partition.partition: broker}
        table = replace(self.table, leaders={**self.table.leaders, partition.topic: leaders})
        if before is None:
            self._announce(table)
        else:
            self._replace(table)

    def cut(self, broker: int, error: OdradekError, applied: int) -> None:
        """Cut every connection to a broker: see `MemoryCluster.cut`."""
        for client in self.clients:
            client.cut(broker, error, applied)
        self.changed.notify()

    def stop_broker(self, broker: int) -> None:
        """Stop a broker: its connections are lost."""
        live = {number: address for number, address in self.table.brokers.items() if number != broker}
        self._announce(replace(self.table, brokers=live))

    def start_broker(self, broker: int, port: int | None = None) -> None:
        """Start a stopped broker, or have one listen on another port: its connections are lost."""
        if port is not None:
            self.brokers[broker] = self.brokers[broker]._replace(port=port)
        self._starts[broker] += self.table.brokers.get(broker) != self.brokers[broker]
        self._announce(replace(self.table, brokers={**self.table.brokers, broker: self.brokers[broker]}))

    def _replace(self, table: MemoryRoutingTable) -> None:
        self.table = replace(table, version=self.table.version + 1)
        self.changed.notify()

    def _announce(self, table: MemoryRoutingTable) -> None:
        self._replace(table)
        self.announced = self.table


def _remove(requests: list[MemoryRequest], request: MemoryRequest) -> None:
    """Remove this one, not one that is equal."""
    for index, other in enumerate(requests):
        if other is request:
            del requests[index]
            return


def _error(code: int, name: str, partition: TopicPartition) -> BrokerError:
    return BrokerError(code, name, str(partition), retriable=True, refresh_metadata=True)
