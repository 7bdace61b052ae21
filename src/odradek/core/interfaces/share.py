"""Share groups (KIP-932): records that several members acquire one by one, and acknowledge one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from odradek.types import Columns, TopicPartition

__all__ = ["AckType", "AcquiredBatch", "ShareGroup", "ShareSubscription"]


class AckType(IntEnum):
    """Acknowledgements of a record, with their numbers on the wire."""

    GAP = 0
    """Acknowledges an offset that has no record."""
    ACCEPT = 1
    """The record was processed."""
    RELEASE = 2
    """The record is to be delivered again, unless that was tried as often as the group allows."""
    REJECT = 3
    """The record cannot be processed: it is never delivered again."""
    RENEW = 4
    """The record is still being processed: its lock begins again."""


@dataclass(frozen=True, slots=True)
class ShareSubscription:
    """The topics that a member asks its share group for, and limits.

    Args:
        group: Group name.
        topics: Topic names.
        max_records: About how many records to acquire at a time; exactly if `exact`, where brokers can.
        exact: See `max_records`.
        max_bytes: Most bytes of one response.
        max_message_bytes: Size limit of a batch (bytes).
    """

    group: str
    topics: frozenset[str]
    max_records: int = 500
    exact: bool = False
    max_bytes: int = 8 << 20
    max_message_bytes: int = 4 << 20


class AcquiredBatch(NamedTuple):
    """Records of one partition that were acquired together.

    Attributes:
        partition: Where they come from.
        columns: The records, in order.
        delivery_counts: How often each was delivered, this time included.
        acknowledge: Called with a position and the acknowledgement of its record. Returns False if that has no effect:
            the lock has expired, its session is lost, or an acknowledgement was sent before. `ShareGroup.flush` reports
            the first two.
    """

    partition: TopicPartition
    columns: Columns
    delivery_counts: Sequence[int]
    acknowledge: Callable[[int, AckType], bool]


class ShareGroup(Protocol):
    """A member of a share group."""

    @property
    def member_id(self) -> str: ...

    @property
    def problem(self) -> str:
        """The reason why the member reads nothing, or not all; empty while nothing is wrong."""
        ...

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions it reads now. Other members may read them, too."""
        ...

    @property
    def has_joined(self) -> bool:
        """True once the group has given it an assignment, which may be empty."""
        ...

    async def run(self) -> None:
        """Join, read and acknowledge until `leave` has ended. Cancellation: everything ends without acknowledgements;
        what is acquired is released when the cluster notices.

        Raises:
            Unsupported: The brokers have no share groups.
            BrokerError: The group does not accept this member.
        """
        ...

    async def wait_until_joined(self) -> None:
        """Wait until `has_joined`. Raises the error that ended `run`. Cancellation: safe."""
        ...

    async def next_batch(self) -> AcquiredBatch:
        """Wait for records, and return them. Raises the error that ended `run`, and errors of single partitions.
        Cancellation: safe, no record is lost."""
        ...

    async def flush(self) -> None:
        """Wait until every acknowledgement was answered. Cancellation: safe; they are sent all the same.

        Raises:
            GroupError: Some do not count: those records are delivered again.
        """
        ...

    async def leave(self) -> None:
        """Send the acknowledgements, release everything else, and leave the group. Idempotent."""
        ...
