"""Faults of an in-memory cluster: errors, delays and held requests, by operation, partition and broker."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import dataclass
from typing import Literal, get_args

from odradek.errors import BrokerError, ConfigError, OdradekError
from odradek.types import TopicPartition

__all__ = ["Faults", "Operation"]

Operation = Literal["connect", "metadata", "produce", "fetch", "positions", "join", "commit"]
"""Requests that a client makes of a cluster: `connect` is entering the block of `MemoryCluster.connect`, `positions` is
to resolve a start such as EARLIEST, `join` and `commit` are those of a group."""

BY_PARTITION = frozenset[Operation](("produce", "fetch", "positions"))
"""Operations in whose answer a BrokerError stands for one partition."""


@dataclass(slots=True)
class _Failure:
    operation: Operation
    error: OdradekError
    times: int
    partition: TopicPartition | None
    broker: int | None
    applied: bool

    @property
    def is_answer(self) -> bool:
        """The broker answers it for a partition; any other error ends the request as a whole."""
        return self.operation in BY_PARTITION and isinstance(self.error, BrokerError)


class Faults:
    """Errors, delays and held operations, as a test sets them."""

    def __init__(self) -> None:
        self.held: set[Operation] = set()
        """Operations whose requests wait until a test releases them."""
        self.delays: dict[Operation, float] = {}
        """How long each request of an operation waits (s)."""
        self._failures: list[_Failure] = []

    def clear(self) -> None:
        """Forget every fault."""
        self.held.clear()
        self.delays.clear()
        self._failures.clear()

    def fail(
        self,
        operation: Operation,
        error: OdradekError,
        times: int,
        partition: TopicPartition | None,
        broker: int | None,
        applied: bool = False,
    ) -> None:
        """Let the next requests fail: see `MemoryCluster.fail`."""
        check_operation(operation)
        self._failures.append(_Failure(operation, error, times, partition, broker, applied))

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
        for failure in self._failures:
            if (
                not failure.is_answer
                and failure.applied == applied
                and _matches(failure, operation, partitions, broker)
            ):
                return self._count(failure)
        return None

    def partition_error(self, operation: Operation, partition: TopicPartition, broker: int) -> OdradekError | None:
        """Return the next error that a broker answers for one partition, and count it."""
        for failure in self._failures:
            if failure.is_answer and _matches(failure, operation, (partition,), broker):
                return self._count(failure)
        return None

    def _count(self, failure: _Failure) -> OdradekError:
        failure.times -= 1
        if failure.times <= 0:
            self._failures.remove(failure)
        return copy(failure.error)  # raised more than once, one object would gather tracebacks


def check_operation(operation: str) -> None:
    """Raise ConfigError for an operation that does not exist: the test would wait for a fault that never comes."""
    if operation not in (names := get_args(Operation)):
        raise ConfigError(f"no operation {operation!r}: choose from {', '.join(names)}")


def _matches(
    failure: _Failure, operation: Operation, partitions: Collection[TopicPartition], broker: int | None
) -> bool:
    return (
        failure.operation == operation
        and (failure.partition is None or failure.partition in partitions)
        and (failure.broker is None or failure.broker == broker)
    )
