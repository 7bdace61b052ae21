"""Administration of brokers and partitions: replicas, leaders, log directories, the quorum of controllers, features."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from odradek.core.admin import Results
from odradek.errors import OdradekError
from odradek.types import TopicPartition

__all__ = [
    "BrokersAdmin",
    "Features",
    "LogDirectory",
    "QuorumDescription",
    "QuorumReplica",
    "Reassignment",
    "Replica",
    "ReplicaInDirectory",
    "VersionLevels",
]


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A move of the replicas of a partition that is in progress.

    Args:
        replicas: Ids of the brokers that have, or get, a replica.
        adding: Those of them that are to get one.
        removing: Those of them that are to lose theirs.
        in_sync: Those of them that are up to date.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    in_sync: tuple[int, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """The brokers that do not have the whole log yet: once there is none, the others lose their replicas."""
        return tuple(broker for broker in self.adding if broker not in self.in_sync)


class Replica(NamedTuple):
    """The replica of a partition on a broker."""

    broker: int
    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class ReplicaInDirectory:
    """A replica in a log directory.

    Args:
        size: Of its segments (bytes).
        lag: Records that it is behind: its leader's end, or if it is a future replica, the one that it replaces.
        is_future: True for a copy that replaces the replica in another directory once it is complete.
    """

    size: int
    lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A directory of logs of a broker.

    Args:
        path: Where it is, on the broker.
        error: Why it cannot be used; None: it can.
        total_bytes: Size of its volume; None if brokers do not say so (before 3.3).
        usable_bytes: What is free of it; None if brokers do not say so (before 3.3).
        replicas: The replicas in it.
        is_cordoned: True if it gets no new replicas (4.3 and later).
    """

    path: str
    error: OdradekError | None
    total_bytes: int | None
    usable_bytes: int | None
    replicas: Mapping[TopicPartition, ReplicaInDirectory]
    is_cordoned: bool = False


class QuorumReplica(NamedTuple):
    """A controller, or a broker that follows the controllers.

    Args:
        id: Its number.
        directory_id: The id of its directory; None if it has none (before 3.9, and without KIP-853).
        end_offset: The end of its copy of the metadata.
        last_fetch: When it last fetched; here and below: seconds since the epoch, None if it is not known.
        last_caught_up: When it last had everything.
    """

    id: int
    directory_id: str | None
    end_offset: int
    last_fetch: float | None
    last_caught_up: float | None


@dataclass(frozen=True, slots=True)
class QuorumDescription:
    """The quorum of controllers.

    Args:
        leader: Id of the active controller.
        leader_epoch: Grows with every change of it.
        high_watermark: The metadata before this offset is committed.
        voters: The controllers.
        observers: The brokers that follow them.
    """

    leader: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


class VersionLevels(NamedTuple):
    """The lowest and the highest level of a feature."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Features:
    """Features of a cluster (KIP-584).

    Args:
        supported: Name -> the levels that the broker has that was asked.
        finalized: Name -> the levels that the cluster uses.
        epoch: Grows with every change of `finalized`; None if the broker does not know them yet.
    """

    supported: Mapping[str, VersionLevels]
    finalized: Mapping[str, VersionLevels]
    epoch: int | None


class BrokersAdmin(Protocol):
    """Administration of brokers and of where partitions are. Every method may raise Unsupported, TransportError and
    DeadlineError."""

    async def reassign(self, targets: Mapping[TopicPartition, Sequence[int] | None]) -> Results[TopicPartition, None]:
        """Begin to move replicas to these brokers; None: cancel it."""
        ...

    async def list_reassignments(
        self, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, Reassignment]:
        """Return the moves in progress of these partitions, or of all."""
        ...

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, *, unclean: bool
    ) -> Results[TopicPartition, bool]:
        """Elect leaders; False: the one that there was is right."""
        ...

    async def describe_log_dirs(self, brokers: Sequence[int] | None) -> Results[int, Sequence[LogDirectory]]:
        """Return the log directories of brokers; None: of all."""
        ...

    async def move_replicas(self, targets: Mapping[Replica, str]) -> Results[Replica, None]:
        """Begin to move replicas to other directories of their brokers."""
        ...

    async def describe_quorum(self) -> QuorumDescription:
        """Return the state of the quorum of controllers."""
        ...

    async def add_voter(self, voter: int, directory_id: str, listeners: Mapping[str, tuple[str, int]]) -> None:
        """Add a controller to the quorum."""
        ...

    async def remove_voter(self, voter: int, directory_id: str) -> None:
        """Remove a controller from the quorum."""
        ...

    async def unregister_broker(self, broker: int) -> None:
        """Forget a broker that will not come back."""
        ...

    async def describe_features(self) -> Features:
        """Return the features of the cluster."""
        ...

    async def update_features(
        self, levels: Mapping[str, int], *, downgrade: bool, unsafe: bool, validate_only: bool
    ) -> Results[str, None]:
        """Set finalized levels of features; 0 removes one."""
        ...
