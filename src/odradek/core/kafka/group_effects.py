"""Effects that group members, classic or of KIP-848, ask the calling code to carry out.

A member does no IO. `poll` returns effects; the caller carries them out and reports back: `receive` with a response,
`connection_lost` without one, `revoked` after a `Revoke` is carried out. Call `poll` again after each of these, and at
the time that `tick` returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from odradek.errors import OdradekError
from odradek.types import TopicPartition
from odradek.wire.kafka.schema import Request

__all__ = [
    "Assign",
    "Compare",
    "Compute",
    "Effect",
    "Fail",
    "GroupCoordinator",
    "Lost",
    "ResolveTopics",
    "Revoke",
    "Send",
]


@dataclass(frozen=True, slots=True)
class GroupCoordinator:
    """The broker that coordinates a group."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request and report its response. At most one request is in flight.

    Args:
        request: The request.
        node: The coordinator, to be reached by a connection that carries only the group's requests; None: any broker.
        timeout_s: Time limit for the response (s); None: the usual limit of a request.
    """

    request: Request[Any]
    node: GroupCoordinator | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Revoke:
    """Stop fetching these partitions, finish delivered records, commit (the token is still valid), then pass this
    object to `revoked`. Other partitions continue."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Assign:
    """Read the committed offsets of these partitions and begin to fetch them. Other partitions continue."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Lost:
    """Stop fetching these partitions at once. Their offsets can no longer be committed: other members may already
    have the partitions.

    Args:
        partitions: The partitions.
        reason: The event, for the log.
    """

    partitions: frozenset[TopicPartition]
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Compute:
    """Get fresh metadata of these topics and call `assign`: this member leads the group."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Compare:
    """Describe the group, get fresh metadata of these topics and call `compare`: this static member may have got the
    place of its predecessor, with what that had."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class ResolveTopics:
    """Get metadata of these topics, which the assignment has by id only, and call `resolved`."""

    topic_ids: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class Fail:
    """Report the error: the member has stopped for good. `Lost` precedes this if it had partitions."""

    error: OdradekError


Effect = Send | Revoke | Assign | Lost | Compute | Compare | ResolveTopics | Fail
