"""Effects that group members, classic or of KIP-848, ask the calling code to carry out.

A member never waits and sends nothing itself. `poll` returns effects; the caller carries them out and reports back:
`receive` with a response, `connection_lost` without one, `revoked` when everything a `Revoke` asks for is done. Call
`poll` again after each of these, and at the time that `tick` returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from odradek.errors import OdradekError
from odradek.types import TopicPartition
from odradek.wire.kafka.schema import Request

__all__ = ["Assign", "Compute", "Effect", "Fail", "GroupCoordinator", "Lost", "ResolveTopics", "Revoke", "Send"]


@dataclass(frozen=True, slots=True)
class GroupCoordinator:
    """The broker that coordinates a group."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request and report its response. At most one is in flight.

    Args:
        request: The request.
        node: The coordinator, on a connection that carries only the group's requests; None: any broker.
        timeout_s: Time limit for the response (s); None: the usual limit of a request.
    """

    request: Request[Any]
    node: GroupCoordinator | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Revoke:
    """Stop fetching these partitions, finish delivered records, commit (the token is still valid), then call
    `revoked`. Other partitions continue."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Assign:
    """Read the committed offsets of these partitions and begin to fetch them. Other partitions continue."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Lost:
    """Stop fetching these partitions at once; nothing of theirs can be committed, others may have them already."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Compute:
    """This member leads the group: get fresh metadata of these topics and call `assign`."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class ResolveTopics:
    """The assignment names topics by ids that are not known: get metadata by id and call `resolved`."""

    topic_ids: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class Fail:
    """The member has stopped for good; everything it had is lost."""

    error: OdradekError


Effect = Send | Revoke | Assign | Lost | Compute | ResolveTopics | Fail
