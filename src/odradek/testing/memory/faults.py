"""Faults of an in-memory cluster: errors, delays and held requests, by operation, partition and broker."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from odradek.core.interfaces import ProducerRecord
from odradek.core.produce.batch import as_record
from odradek.errors import BrokerError, ConfigError, OdradekError
from odradek.types import TopicPartition

__all__ = ["Faults", "MemoryBatch", "MemoryRequest", "Operation"]

Operation = Literal[
    "connect",
    "metadata",
    "watch",
    "produce",
    "fetch",
    "positions",
    "join",
    "committed",
    "commit",
    "leave",
    "init_producer",
    "add_positions",
    "commit_transaction",
    "abort_transaction",
]
"""Requests that a client makes of a cluster: `connect` is entering the block of `MemoryCluster.connect`, and connecting
to a broker inside it; `watch` is to hear of changed brokers and topics, `positions` is to resolve a start such as
EARLIEST; `join`, `committed` (to read the stored positions), `commit` and `leave` are those of a member of a group;
`init_producer` (to register a transactional id), `add_positions`, `commit_transaction` and `abort_transaction` are
those of a producer with transactions."""

BY_PARTITION = frozenset[Operation](("produce", "fetch", "positions"))
"""Operations in whose answer a BrokerError stands for one partition."""

APPLICABLE = frozenset[Operation](
    ("produce", "init_producer", "add_positions", "commit_transaction", "abort_transaction")
)
"""Operations that can be carried out with their response lost."""

TO_A_BROKER = frozenset[Operation](("connect", "produce", "fetch", "positions"))
"""Operations that are requests to one broker."""

MAX_REQUESTS = 100_000
"""Requests that a cluster remembers."""


class MemoryBatch(NamedTuple):
    """The records of one partition in a produce request.

    Args:
        partition: Where they are to be stored.
        records: The sequence that the producer made of them: each a ProducerRecord, or only its value.
        compression: Name of the compression, or `none`.
    """

    partition: TopicPartition
    records: Sequence[bytes | ProducerRecord]
    compression: str

    @property
    def values(self) -> list[bytes | None]:
        """Payloads of the records."""
        return [as_record(record).value for record in self.records]


class MemoryRequest(NamedTuple):
    """A request that has reached an in-memory cluster, whatever became of it.

    Args:
        operation: The kind of request.
        broker: Id of the broker; None for operations that are not sent to one.
        partitions: The amount that it requests of each of its partitions: of a `fetch` the most bytes that are wanted,
            of `commit` and `add_positions` the position, of a `produce` the number of records, otherwise 0.
        batches: The records of a `produce`.
        acks: The producer waits for all replicas (-1), the leader (1) or nothing (0). It is None unless the request is
            a `produce`.
    """

    operation: Operation
    broker: int | None = None
    partitions: Mapping[TopicPartition, int] = MappingProxyType({})
    batches: tuple[MemoryBatch, ...] = ()
    acks: int | None = None


@dataclass(slots=True)
class _Failure:
    operation: Operation
    error: OdradekError
    times: int | None
    partition: TopicPartition | None
    broker: int | None
    applied: bool
    after_records: int | None

    @property
    def is_answer(self) -> bool:
        """The broker answers it for a partition; any other error ends the request as a whole."""
        return self.operation in BY_PARTITION and isinstance(self.error, BrokerError)


class Faults:
    """Errors, delays and held operations, as a test sets them."""

    def __init__(self) -> None:
        self.delays: dict[tuple[Operation, int | None], float] = {}
        """How long each request of an operation waits (s), by broker; None: of all of them."""
        self.requests: deque[MemoryRequest] = deque(maxlen=MAX_REQUESTS)
        """The latest requests, newest last."""
        self.received: Counter[tuple[Operation, int | None]] = Counter()
        """The number of all requests, by operation and broker."""
        self.waiting: list[MemoryRequest] = []
        """Requests that are held or delayed now."""
        self._held: set[tuple[Operation, int | None]] = set()
        self._released: Counter[tuple[Operation, int | None]] = Counter()  # how many are served although they are held
        self._failures: list[_Failure] = []

    def clear(self) -> None:
        """Forget every fault."""
        self._held.clear()
        self._released.clear()
        self.delays.clear()
        self._failures.clear()

    def received_by(self, operation: Operation, broker: int | None) -> int:
        """Return how many requests of an operation have come, to one broker or to all."""
        return sum(
            count for (other, its), count in self.received.items() if other == operation and broker in (None, its)
        )

    def hold(self, operation: Operation, broker: int | None) -> None:
        """Hold the requests of an operation: see `MemoryCluster.hold`."""
        self._held.add((operation, broker))

    def release(self, operation: Operation, broker: int | None, count: int | None = None) -> None:
        """End that, or serve `count` requests: see `MemoryCluster.release`."""
        if count is not None:
            self._released[operation, broker] += count
            return
        self._held -= {held for held in self._held if held[0] == operation and broker in (None, held[1])}
        for key in [key for key in self._released if key[0] == operation and not self.holds_any(*key)]:
            del self._released[key]

    def is_held(self, operation: Operation, broker: int | None) -> bool:
        """Return True if a request waits until a test releases it."""
        return (operation, None) in self._held or (operation, broker) in self._held

    def holds_any(self, operation: Operation, broker: int | None) -> bool:
        """Return True if a request waits that goes to this broker, or to any if that is None."""
        return self.is_held(operation, broker) or (broker is None and any(held[0] == operation for held in self._held))

    def may_pass(self, operation: Operation, broker: int | None) -> bool:
        """Return True if a request is served now: it is not held, or one of those that were released, and counted."""
        if not self.is_held(operation, broker):
            return True
        for key in ((operation, broker), (operation, None)):
            if self._released[key]:
                self._released[key] -= 1
                return True
        return False

    def delay_of(self, operation: Operation, broker: int | None) -> float:
        """Return how long a request waits (s)."""
        return max(self.delays.get((operation, None), 0.0), self.delays.get((operation, broker), 0.0))

    def fail(
        self,
        operation: Operation,
        error: OdradekError,
        times: int | None,
        partition: TopicPartition | None,
        broker: int | None,
        applied: bool = False,
        after_records: int | None = None,
    ) -> None:
        """Let the next requests fail: see `MemoryCluster.fail`."""
        check_operation(operation)
        self._failures.append(_Failure(operation, error, times, partition, broker, applied, after_records))

    def stop_failing(self, operation: Operation, partition: TopicPartition | None, broker: int | None) -> None:
        """Forget what `fail` was told: see `MemoryCluster.stop_failing`."""
        self._failures = [
            failure
            for failure in self._failures
            if failure.operation != operation
            or partition not in (None, failure.partition)
            or broker not in (None, failure.broker)
        ]

    def request_error(
        self,
        operation: Operation,
        partitions: Collection[TopicPartition] = (),
        broker: int | None = None,
        *,
        applied: bool = False,
    ) -> OdradekError | None:
        """Return the next error of a request as a whole, and count it: any but those of `partition_error`.

        With `applied` it is an error of a request that has been carried out.
        """
        failure = self._request_failure(operation, partitions, broker, applied)
        return None if failure is None else self._count(failure)

    def stops(self, operation: Operation, partitions: Collection[TopicPartition], broker: int) -> bool:
        """Return True if a request would be held now, or fail as a whole."""
        if self.is_held(operation, broker):
            return True
        return self._request_failure(operation, partitions, broker) is not None

    def _request_failure(
        self,
        operation: Operation,
        partitions: Collection[TopicPartition],
        broker: int | None,
        applied: bool = False,
    ) -> _Failure | None:
        for failure in self._failures:
            if (
                not failure.is_answer
                and failure.applied == applied
                and failure.after_records is None
                and _matches(failure, operation, partitions, broker)
            ):
                return failure
        return None

    def partition_error(self, operation: Operation, partition: TopicPartition, broker: int) -> OdradekError | None:
        """Return the next error that a broker answers for one partition, and count it."""
        for failure in self._failures:
            if failure.is_answer and _matches(failure, operation, (partition,), broker):
                return self._count(failure)
        return None

    def cut_of_fetch(self, partitions: Collection[TopicPartition], broker: int) -> tuple[int, OdradekError] | None:
        """Return how many records of an answer to a fetch arrive, and the error that ends it, and count it; None if all
        of them arrive."""
        for failure in self._failures:
            if failure.after_records is not None and _matches(failure, "fetch", partitions, broker):
                return failure.after_records, self._count(failure)
        return None

    def _count(self, failure: _Failure) -> OdradekError:
        if failure.times is not None:
            failure.times -= 1
            if failure.times <= 0:
                self._failures.remove(failure)
        return copy(failure.error)  # raised more than once, one object would gather tracebacks


def check_operation(operation: str) -> None:
    """Raise ConfigError for an operation that does not exist: the test would wait for a fault that never comes."""
    if operation not in (names := get_args(Operation)):
        raise ConfigError(f"no operation {operation!r}: choose from {', '.join(names)}")


def check_failure(operation: str, error: OdradekError, applied: bool, after_records: int | None) -> None:
    """Raise ConfigError for a failure that cannot be: see `MemoryCluster.fail`."""
    is_answer = isinstance(error, BrokerError)
    if applied and (operation not in APPLICABLE or is_answer):
        names = ", ".join(sorted(APPLICABLE))
        raise ConfigError(f"applied=True with {operation!r} and {error!r}: only a lost response to {names} can be")
    if after_records is not None and (operation != "fetch" or is_answer or applied or after_records < 0):
        raise ConfigError(
            f"after_records={after_records} with {operation!r}, {error!r}: only an answer to `fetch` can break off"
        )


def check_request(operation: str, broker: int | None = None) -> None:
    """Raise ConfigError for an operation that does not exist, is no request, or is not sent to a broker."""
    check_operation(operation)
    if operation == "watch":
        raise ConfigError("'watch' can fail, but it is no request that could be held, delayed or counted")
    if broker is not None and operation not in TO_A_BROKER:
        raise ConfigError(f"broker={broker} with {operation!r}: only {', '.join(sorted(TO_A_BROKER))} go to one broker")


def _matches(
    failure: _Failure, operation: Operation, partitions: Collection[TopicPartition], broker: int | None
) -> bool:
    return (
        failure.operation == operation
        and (failure.partition is None or failure.partition in partitions)
        and (failure.broker is None or failure.broker == broker)
    )
