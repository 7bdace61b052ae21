"""`MemoryCluster`: what a test does to an in-memory cluster, and sees of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from odradek.client.cluster import Cluster
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.interfaces import ProducerRecord
from odradek.core.produce.batch import as_record
from odradek.errors import ConfigError, ConnectionLost, OdradekError
from odradek.io.observation import observer_calls
from odradek.testing.memory.clock import MemoryClock
from odradek.testing.memory.driver import MemoryDriver
from odradek.testing.memory.faults import MemoryRequest, Operation, check_failure, check_operation, check_request
from odradek.testing.memory.log import MemoryLog, StoredRecord
from odradek.testing.memory.state import ClusterState
from odradek.types import Broker, Position, PositionSpec, TopicPartition

if TYPE_CHECKING:
    from odradek.observe import Observer

__all__ = ["MemoryCluster"]

FIRST_PORT = 9092

QUICK = Tuning(backoff=Backoff(first_s=0.001, max_s=0.02), fetch_idle=0.01)
"""The tuning of clients that are not given one: nothing has to be waited for here."""


class MemoryCluster:
    """A whole cluster in memory, for unit tests: no server, no socket, no thread, no bytes::

        cluster = MemoryCluster(topics={"orders": 3})
        async with cluster.connect() as k:
            async with k.producer() as out:
                await out.send("orders", b"one", key=b"k")
        assert [stored.value for stored in cluster.records("orders")] == [b"one"]

    Clients are real: producers, consumers and readers run as they do against servers, and only the broker behind them
    is replaced. Records have values, keys, headers and timestamps, each of which may be absent; positions are offsets.
    Consumers of one group share its partitions, whichever client they belong to. Transactions are those of Kafka 4.

    Everything else is a test's to decide: stop brokers, move leaders, let requests fail, delay or hold them. All
    methods but those of clients are plain functions and take effect at once. Use them, and every client, in one thread.

    Args:
        topics: Number of partitions of each topic. Leaders are dealt out to the brokers in turn. No topic comes into
            being by being used: see `create_topic`.
        brokers: Number of brokers; their ids are 1, 2, ...

    Raises:
        ConfigError: A number that is not positive.
    """

    def __init__(self, topics: Mapping[str, int] | None = None, *, brokers: int = 1) -> None:
        if brokers < 1:
            raise ConfigError(f"brokers={brokers}: a cluster has at least one")
        addresses = {n: Broker(n, f"memory-{n}", FIRST_PORT) for n in range(1, brokers + 1)}
        self._state = ClusterState(addresses)
        for topic, partitions in (topics or {}).items():
            self.create_topic(topic, partitions)

    def __repr__(self) -> str:
        table = self._state.table
        return f"<{type(self).__name__} {len(table.topics)} topics, {len(table.brokers)} live brokers>"

    def connect(self, *, tuning: Tuning | None = None, observer: Observer | None = None) -> Cluster:
        """Return a client of this cluster, to be used as `async with`, like that of `odradek.connect`.

        Args:
            tuning: Time limits, and waits after failures; by default those are short.
            observer: As in `odradek.connect`. Requests have no bytes and no versions here; those of groups, and late
                heartbeats, are no events.
        """
        tuning = tuning or QUICK
        return Cluster(MemoryDriver(self._state, tuning, observer_calls(observer)), tuning)

    @property
    def clock(self) -> MemoryClock:
        """Clock of the cluster, which a test can hold and advance."""
        return self._state.clock

    # ---- topics and records -----------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Create a topic. Raises ConfigError if it exists, or for fewer than one partition."""
        if partitions < 1:
            raise ConfigError(f"topic {topic!r}: {partitions} partitions: it needs at least one")
        if topic in self._state.table.topics:
            raise ConfigError(f"topic {topic!r} exists")
        self._state.set_topic(topic, self._leaders(range(partitions)))

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic, up to this number. Raises ConfigError if it does not exist or has as many."""
        if partitions <= (before := len(self._partitions(topic))):
            raise ConfigError(f"topic {topic!r}: {partitions} partitions: it has {before} already")
        self._state.add_partitions(topic, self._leaders(range(before, partitions)))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its records. Raises ConfigError if it does not exist."""
        self._partitions(topic)
        self._state.set_topic(topic, None)

    def recreate_topic(self, topic: str, *, by_name: bool = False) -> None:
        """Delete a topic and create it again at once: its logs are empty, and it has another id. A client that reads it
        gets UNKNOWN_TOPIC_ID, reads the metadata again, and continues as its option `reset` says. Raises ConfigError if
        the topic does not exist.

        Args:
            topic: The topic.
            by_name: Brokers do not compare ids, as those of Kafka 2.8 to 3.0: a client that reads the topic gets
                records of the new logs, until it reads the metadata for another reason.
        """
        self._partitions(topic)
        self._state.recreate_topic(topic, by_name=by_name)

    def append(
        self, topic: str, records: Iterable[bytes | ProducerRecord], *, partition: int = 0
    ) -> list[StoredRecord]:
        """Store records, without a client and without any fault, and return them as they are stored.

        Args:
            topic: The topic.
            records: Each a value, or a ProducerRecord.
            partition: Number of the partition that gets all of them; keys do not matter.

        Raises:
            ConfigError: There is no such partition.
        """
        log = self._log(TopicPartition(topic, partition))
        times = self._state.timestamp_type(topic)
        stored = log.append([as_record(record) for record in records], self._state.now_ms(), timestamp_type=times)
        self._state.changed.notify()
        return stored

    def records(self, topic: str, *, read_committed: bool = False) -> list[StoredRecord]:
        """Return everything that a topic stores, by partition and offset; with `read_committed` only what a reader of
        that isolation gets: nothing of transactions that are open or aborted. Raises ConfigError if it does not exist.
        """
        logs = [self._state.logs[partition] for partition in self._partitions(topic)]
        return [each for log in logs for each in log.read(log.start, sys.maxsize, read_committed=read_committed)[0]]

    def log(self, partition: TopicPartition) -> list[StoredRecord]:
        """Return what one partition stores, by offset. Raises ConfigError if it does not exist."""
        return list(self._log(partition).records)

    def delete_records(self, partition: TopicPartition, before: int) -> None:
        """Delete the records of a partition whose offset is lower than `before`, as retention does. A client that reads
        there gets OffsetOutOfRange."""
        self._log(partition).delete_before(before)
        self._state.changed.notify()

    def truncate_log(self, partition: TopicPartition, end: int) -> None:
        """Lose the records of a partition from the offset `end` on, as the election of a leader does that never had
        them. A client that has read any of them gets LogTruncated, also when others have taken their offsets. Committed
        positions stay.

        Raises:
            ConfigError: There is no such partition.
        """
        self._log(partition).truncate(end)
        self._state.changed.notify()

    def corrupt(self, partition: TopicPartition, offset: int, reason: str = "CRC mismatch") -> None:
        """Damage a stored record: readers and consumers get CorruptMessage for it, or what their option `corrupt` says.

        Raises:
            ConfigError: There is no such partition, or no record at this offset.
        """
        log = self._log(partition)
        if offset not in (stored.offset for stored in log.records):
            raise ConfigError(f"no record at {offset} of {partition}: it has {log.start} to {log.end}")
        log.corrupt[offset] = reason

    # ---- brokers ----------------------------------------------------------------------------------------------

    def stop_broker(self, broker: int) -> None:
        """Stop a broker: its connections are lost, and its partitions cannot be used until it starts again or they are
        moved to another one. Nothing that it stores is lost."""
        self._state.stop_broker(self._broker(broker))

    def start_broker(self, broker: int, *, port: int | None = None) -> None:
        """Start a stopped broker; it leads what it led before, as far as that was not moved.

        Args:
            broker: Its id.
            port: Listen on this port from now on, as a broker does that comes back elsewhere.
        """
        self._state.start_broker(self._broker(broker), port)

    def move_leader(self, partition: TopicPartition, broker: int) -> None:
        """Let another broker lead a partition.

        Clients are not told, unless the former leader is stopped: it answers NOT_LEADER_OR_FOLLOWER, on which they read
        the metadata again.
        """
        self._log(partition)
        self._state.set_leader(partition, self._broker(broker))

    def prefer_replica(self, partition: TopicPartition, broker: int | None) -> None:
        """Let the leader of a partition send consumers and readers to another broker to fetch from (KIP-392), as long
        as that one runs; None: they fetch from the leader again.

        Raises:
            ConfigError: There is no such partition or broker.
        """
        self._log(partition)
        if broker is None:
            self._state.replicas.pop(partition, None)
        else:
            self._state.replicas[partition] = self._broker(broker)
        self._state.changed.notify()

    def cut(self, broker: int, *, error: OdradekError | None = None, applied: int = 0) -> None:
        """Cut every connection to a broker, of every client, now; clients connect again.

            cluster.cut(1)                                                              # it may have got everything
            cluster.cut(1, error=ConnectionLost("memory-1:9092", "reset", sent=False))  # it has got nothing

        Args:
            broker: Its id.
            error: The error of the outstanding requests; by default a ConnectionLost that leaves open whether they
                were carried out.
            applied: So many produce requests of each connection are carried out first, the oldest ones: only their
                responses are lost.

        Raises:
            ConfigError: There is no such broker, or `applied` is negative.
        """
        if applied < 0:
            raise ConfigError(f"applied={applied}: a number of requests is not negative")
        address = self._state.brokers[self._broker(broker)].address
        self._state.cut(broker, error or ConnectionLost(address, "the connection was cut", True), applied)

    # ---- faults -----------------------------------------------------------------------------------------------

    def fail(
        self,
        operation: Operation,
        error: OdradekError,
        times: int | None = 1,
        *,
        partition: TopicPartition | None = None,
        broker: int | None = None,
        applied: bool = False,
        after_records: int | None = None,
    ) -> None:
        """Let the next requests of an operation fail, of any client; nothing of them is carried out.

            cluster.fail("produce", BrokerError(5, "LEADER_NOT_AVAILABLE", retriable=True, refresh_metadata=True))
            cluster.fail("fetch", ConnectionLost("memory-1:9092", "reset", sent=True), times=3, broker=1)

        In answers to `produce`, `fetch` and `positions` a BrokerError is that of one partition. Any other error ends
        the whole request and the connection it came over.

        Args:
            operation: `connect`, `metadata`, `watch`, `produce`, `fetch`, `positions`, `join`, `committed`, `commit` or
                `leave`. An error of `watch` (hearing of changed brokers and topics) is final for the client. `connect`
                is to enter the block of `connect`, or to connect to a broker inside it, which is tried again.
                A producer with transactions has `init_producer` (to register its id), `add_positions`,
                `commit_transaction` and `abort_transaction`, too.
            error: The error that the client gets. Its attributes (`retriable`, ...) decide what the client does; of
                a BrokerError in a transaction its `code` does.
            times: How often; None: until `stop_failing` or `heal`.
            partition: Only requests with this partition.
            broker: Only requests to this broker.
            applied: The request is carried out, and only its response is lost, so that a producer has to send its
                records again without knowing that they are stored. Only for `produce` and the requests of
                transactions, and not with a BrokerError.
            after_records: The connection is lost in the middle of the answer, after this many records. Only for
                `fetch`, and not with a BrokerError.

        Raises:
            ConfigError: There is no such operation, partition or broker, `times` is not positive, or the request cannot
                fail in this way.
        """
        if times is not None and times < 1:
            raise ConfigError(f"times={times}: a request fails at least once")
        check_failure(operation, error, applied, after_records)
        if partition is not None:
            self._log(partition)
        if broker is not None:
            self._broker(broker)
        self._state.faults.fail(operation, error, times, partition, broker, applied, after_records)
        self._state.changed.notify()

    def stop_failing(
        self, operation: Operation, *, partition: TopicPartition | None = None, broker: int | None = None
    ) -> None:
        """Forget what `fail` has asked for.

        Args:
            operation: See `fail`.
            partition: Only what was asked for this partition.
            broker: Only what was asked for this broker.

        Raises:
            ConfigError: There is no such operation, partition or broker.
        """
        check_operation(operation)
        if partition is not None:
            self._log(partition)
        if broker is not None:
            self._broker(broker)
        self._state.faults.stop_failing(operation, partition, broker)

    def delay(self, operation: Operation, seconds: float, *, broker: int | None = None) -> None:
        """Let every request of an operation wait before it is served, on the cluster's clock (s); 0 ends it.

        Args:
            operation: See `fail`.
            seconds: How long (s).
            broker: Only requests to this broker: a slow one.

        Raises:
            ConfigError: There is no such operation or broker.
        """
        self._check(operation, broker)
        self._state.faults.delays[operation, broker] = seconds

    def hold(self, operation: Operation, *, broker: int | None = None) -> None:
        """Let the requests of an operation wait until `release`; their clients' time limits stay in force.

        Args:
            operation: See `fail`.
            broker: Only requests to this broker.

        Raises:
            ConfigError: There is no such operation or broker.
        """
        self._check(operation, broker)
        self._state.faults.hold(operation, broker)

    def release(self, operation: Operation, *, broker: int | None = None, count: int | None = None) -> None:
        """Serve the requests of an operation that were held, and from now on all of them at once.

        Args:
            operation: See `fail`.
            broker: Only requests that were held for this broker.
            count: Serve only this many requests, the oldest ones, and go on holding the others. Not for `fetch`,
                which may be held again after it has waited for records.

        Raises:
            ConfigError: There is no such operation or broker, there is a `count` and nothing is held, or a `broker` and
                requests are held for every one.
        """
        self._check(operation, broker)
        if broker is not None and count is None and self._state.faults.is_held(operation, None):
            raise ConfigError(f"{operation!r} is held for every broker: release it without broker=, too")
        if count is not None and (
            count < 1 or operation == "fetch" or not self._state.faults.holds_any(operation, broker)
        ):
            raise ConfigError(
                f"count={count} with {operation!r}: release at least one request, of an operation that is held, and "
                f"that is not 'fetch'"
            )
        self._state.faults.release(operation, broker, count)
        self._state.changed.notify()

    async def wait_for_held(self, operation: Operation, requests: int = 1, *, broker: int | None = None) -> None:
        """Wait until a number of requests of an operation are held or delayed at the same time, so that a test knows
        that they are under way::

            cluster.hold("commit")
            tasks.start_soon(consumer.commit)
            await cluster.wait_for_held("commit")

        Cancellation: safe.

        Raises:
            ConfigError: There is no such operation or broker.
        """
        self._check(operation, broker)
        faults, changed = self._state.faults, self._state.changed
        while True:
            version = changed.version
            if sum(_is_of(request, operation, broker) for request in faults.waiting) >= requests:
                return
            await changed.wait(version)

    async def wait_for_requests(self, operation: Operation, count: int = 1, *, broker: int | None = None) -> None:
        """Wait until a number of requests of an operation have reached the cluster since it was made, whatever became
        of
        them. Cancellation: safe.

        Args:
            operation: See `fail`.
            count: How many.
            broker: Only requests to this broker.

        Raises:
            ConfigError: There is no such operation or broker.
        """
        self._check(operation, broker)
        faults, changed = self._state.faults, self._state.changed
        while faults.received_by(operation, broker) < count:
            await changed.wait(changed.version)

    def requests(self, operation: Operation, *, broker: int | None = None) -> list[MemoryRequest]:
        """Return the requests of an operation that have reached the cluster so far, also those that are held and those
        that fail: the latest of 100,000 of all operations. Requests to `produce` have their records::

            assert [batch.values for batch in cluster.requests("produce")[0].batches] == [[b"one", b"two"]]

        Args:
            operation: See `fail`.
            broker: Only requests to this broker.

        Raises:
            ConfigError: There is no such operation or broker.
        """
        self._check(operation, broker)
        return [request for request in self._state.faults.requests if _is_of(request, operation, broker)]

    def heal(self) -> None:
        """End every fault: start all brokers, and forget what `fail`, `delay` and `hold` have asked for."""
        self._state.faults.clear()
        for broker in self._state.brokers:
            self._state.start_broker(broker)

    # ---- groups -----------------------------------------------------------------------------------------------

    def committed(self, group: str) -> dict[TopicPartition, Position]:
        """Return the stored positions of a group: where each partition continues. Empty if there is no such group."""
        known = self._state.groups.get(group)
        return {} if known is None else dict(known.committed)

    def set_committed(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        """Store positions of a group, as if it had committed them: where its members continue that are given these
        partitions from now on. Raises ConfigError for a partition that does not exist."""
        for partition in positions:
            self._log(partition)
        stored = {partition: Position(position) for partition, position in positions.items()}
        self._state.group(group).store(stored, {})

    def start_share_group(self, group: str, start: PositionSpec) -> None:
        """Set where a share group begins with new partitions: share.auto.offset.reset, LATEST by default."""
        self._state.share_group(group).start = start

    def members(self, group: str) -> dict[str, frozenset[TopicPartition]]:
        """Return the members of a group by consumer id, each with the partitions that it owns."""
        known = self._state.groups.get(group)
        return {} if known is None else {name: frozenset(member.owned) for name, member in known.sessions.items()}

    def expire(self, group: str, consumer_id: str | None = None) -> None:
        """End the session of a member, or of all members: they lose their partitions at once, can commit nothing more
        of them, and join again.

        Raises:
            ConfigError: There is no such member.
        """
        known = self._state.groups.get(group)
        sessions: Mapping[str, object] = {} if known is None else known.sessions
        if consumer_id is not None and consumer_id not in sessions:
            raise ConfigError(f"group {group!r} has no member {consumer_id!r}: it has {', '.join(sessions) or 'none'}")
        for session in () if known is None else list(known.sessions.values()):
            if consumer_id in (None, session.membership.consumer_id):
                session.membership.expire()

    def revoke(self, group: str, *partitions: TopicPartition) -> None:
        """Take partitions from their members, as a rebalance does, and give them to no other member until `restore`.

        Members finish what they are processing first: see `revoke_within` of consumers. Raises ConfigError for a
        partition that does not exist.
        """
        for partition in partitions:
            self._log(partition)
        self._state.group(group).withheld.update(partitions)
        self._state.changed.notify()

    def restore(self, group: str) -> None:
        """Give the members everything that `revoke` has taken from them."""
        self._state.group(group).withheld.clear()
        self._state.changed.notify()

    # ---- checks -----------------------------------------------------------------------------------------------

    def _check(self, operation: Operation, broker: int | None) -> None:
        check_request(operation, broker)
        if broker is not None:
            self._broker(broker)

    def _leaders(self, numbers: Iterable[int]) -> dict[int, int]:
        brokers = sorted(self._state.brokers)
        return {number: brokers[number % len(brokers)] for number in numbers}

    def _broker(self, broker: int) -> int:
        if broker not in self._state.brokers:
            raise ConfigError(f"no broker {broker}: there are {', '.join(map(str, self._state.brokers))}")
        return broker

    def _partitions(self, topic: str) -> Sequence[TopicPartition]:
        if topic not in self._state.table.topics:
            raise ConfigError(f"no topic {topic!r}: create_topic() makes one")
        return self._state.table.partitions(topic)

    def _log(self, partition: TopicPartition) -> MemoryLog:
        if (log := self._state.logs.get(partition)) is None:
            raise ConfigError(f"no partition {partition}")
        return log


def _is_of(request: MemoryRequest, operation: Operation, broker: int | None) -> bool:
    return request.operation == operation and broker in (None, request.broker)
