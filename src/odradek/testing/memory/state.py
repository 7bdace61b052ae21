"""State that the clients of an in-memory cluster share: its brokers, logs, groups, faults and clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import inf

import anyio
import anyio.lowlevel

from odradek.errors import BrokerError, DeadlineError, OdradekError
from odradek.io.notifier import Notifier
from odradek.testing.memory.clock import MemoryClock
from odradek.testing.memory.faults import Faults, Operation
from odradek.testing.memory.groups import MemoryGroup
from odradek.testing.memory.log import MemoryLog
from odradek.testing.memory.metadata import MemoryRoutingTable
from odradek.types import Broker, TopicPartition

__all__ = ["ClusterState"]


class ClusterState:
    """The state of the cluster itself. Every change of it notifies `changed`."""

    def __init__(self, brokers: Mapping[int, Broker]) -> None:
        self.changed = Notifier()
        self.clock = MemoryClock(self.changed.notify)
        self.faults = Faults()
        self.brokers = brokers
        self.logs: dict[TopicPartition, MemoryLog] = {}
        self.groups: dict[str, MemoryGroup] = {}
        self.table = MemoryRoutingTable(1, dict(brokers))
        """The truth."""
        self.announced = self.table
        """The latest table that every client was told of."""
        self._starts = dict.fromkeys(brokers, 1)

    def start_of(self, broker: int) -> int:
        """Return the number of a broker's latest start, 0 while it is stopped."""
        return self._starts[broker] if broker in self.table.brokers else 0

    def now_ms(self) -> int:
        """Return the cluster's time (ms since the epoch)."""
        return int(self.clock.now() * 1000)

    def group(self, name: str) -> MemoryGroup:
        """Return a group, which exists from the first call on."""
        return self.groups.setdefault(name, MemoryGroup(name, self.changed.notify))

    def error_of(self, operation: Operation, partition: TopicPartition, broker: int) -> OdradekError | None:
        """Return why a broker refuses a request for one partition, or None."""
        if (error := self.faults.partition_error(operation, partition, broker)) is not None:
            return error
        if partition not in self.logs:
            return _error(3, "UNKNOWN_TOPIC_OR_PARTITION", partition)
        leader = self.table.leader(partition)
        return None if leader is not None and leader.id == broker else _error(6, "NOT_LEADER_OR_FOLLOWER", partition)

    async def serve(
        self,
        operation: Operation,
        timeout: float,
        *,
        what: str = "",
        partitions: Collection[TopicPartition] = (),
        broker: int | None = None,
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait as long as an operation is delayed or held, or until `ended`; then raise the error it is to have.

        Raises DeadlineError after `timeout` (s). Cancellation: safe.
        """
        with anyio.move_on_after(timeout):
            await self._wait(operation, ended)
            if (error := self.faults.request_error(operation, partitions, broker)) is not None:
                raise error
            return
        raise DeadlineError(what or f"{operation} request", timeout, sent=True)

    async def _wait(self, operation: Operation, ended: Callable[[], bool]) -> None:
        await anyio.lowlevel.checkpoint()
        until = self.clock.now() + self.faults.delays.get(operation, 0.0)
        while not ended():
            version, held = self.changed.version, operation in self.faults.held
            if not held and self.clock.now() >= until:
                return
            await self.changed.wait(version, inf if held else self.clock.seconds_until(until))

    # ---- changes ----------------------------------------------------------------------------------------------

    def set_topic(self, topic: str, leaders: Mapping[int, int] | None) -> None:
        """Create a topic with the leader of each partition; None deletes it."""
        others = {name: known for name, known in self.table.leaders.items() if name != topic}
        self.logs = {partition: log for partition, log in self.logs.items() if partition.topic != topic}
        for number in leaders or ():
            partition = TopicPartition(topic, number)
            self.logs[partition] = MemoryLog(partition)
        self._announce(replace(self.table, leaders=others if leaders is None else {**others, topic: dict(leaders)}))

    def set_leader(self, partition: TopicPartition, broker: int) -> None:
        """Move a partition; clients find out by asking the former leader, if that is live."""
        before = self.table.leader(partition)
        leaders = {**self.table.leaders[partition.topic], partition.partition: broker}
        table = replace(self.table, leaders={**self.table.leaders, partition.topic: leaders})
        if before is None:
            self._announce(table)
        else:
            self._replace(table)

    def stop_broker(self, broker: int) -> None:
        """Stop a broker: its connections are lost."""
        live = {number: address for number, address in self.table.brokers.items() if number != broker}
        self._announce(replace(self.table, brokers=live))

    def start_broker(self, broker: int) -> None:
        """Start a stopped broker."""
        self._starts[broker] += broker not in self.table.brokers
        self._announce(replace(self.table, brokers={**self.table.brokers, broker: self.brokers[broker]}))

    def _replace(self, table: MemoryRoutingTable) -> None:
        self.table = replace(table, version=self.table.version + 1)
        self.changed.notify()

    def _announce(self, table: MemoryRoutingTable) -> None:
        self._replace(table)
        self.announced = self.table


def _error(code: int, name: str, partition: TopicPartition) -> BrokerError:
    return BrokerError(code, name, str(partition), retriable=True, refresh_metadata=True)
