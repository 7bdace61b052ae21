"""Administration: what a driver implements of it, and the results that users get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Generic, TypeVar

from odradek.errors import OdradekError, Unsupported
from odradek.types import AtTime, Broker, Position, PositionSpec, TopicPartition

if TYPE_CHECKING:
    from odradek.core.admin_access import AccessAdmin
    from odradek.core.admin_cluster import BrokersAdmin
    from odradek.core.admin_transactions import TransactionsAdmin

__all__ = [
    "Append",
    "ClusterAdmin",
    "ClusterDescription",
    "ConfigChange",
    "ConfigEntry",
    "ConfigKind",
    "ConfigSource",
    "CreatedTopic",
    "GroupDescription",
    "GroupListing",
    "MemberDescription",
    "OffsetChoice",
    "OffsetListing",
    "OffsetSpec",
    "PartitionDescription",
    "PartitionLag",
    "PositionChange",
    "Results",
    "Subtract",
    "TopicDescription",
    "TopicSettings",
]

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Results(Generic[K, V]):
    """The outcome of each item of one call. Every item is in exactly one of the two.

    Args:
        done: Item -> what became of it.
        failed: Item -> its error, with the broker's text.
    """

    done: Mapping[K, V]
    failed: Mapping[K, OdradekError]

    def check(self) -> Mapping[K, V]:
        """Return `done`.

        Raises:
            OdradekError: An item failed: the error of the first one. The other items were done all the same.
        """
        for error in self.failed.values():
            raise error
        return self.done


# ---- cluster and topics -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers of a cluster.

    Args:
        cluster_id: Its id; None if brokers do not report one (before 0.10.1).
        controller: Id of its controller, or of a broker that forwards to it (KRaft); None if it is not known.
        brokers: The live brokers, by id; 0.8.0 and 0.8.1 only list those that have a partition.
        racks: Id -> rack, of those that have one.
    """

    cluster_id: str | None
    controller: int | None
    brokers: tuple[Broker, ...]
    racks: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a topic.

    Args:
        partition: The partition.
        leader: Id of the broker that leads it; None if there is none now.
        leader_epoch: Grows with every change of leader; None if brokers do not report it.
        replicas: Ids of the brokers that have a copy, the preferred leader first.
        in_sync: Ids of those that are up to date.
        offline: Ids of those that are down.
    """

    partition: TopicPartition
    leader: int | None
    leader_epoch: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic.

    Args:
        name: Its name.
        topic_id: Its id in the form that Kafka's tools print; None if brokers have no ids (before 2.8).
        is_internal: True for Kafka's own topics.
        partitions: By number.
    """

    name: str
    topic_id: str | None
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Settings of a topic to be created.

    Args:
        partitions: How many; None: as many as the brokers are configured to make.
        replicas: Copies of each partition; None: as many as the brokers are configured to make.
        config: Name -> value of entries that differ from the brokers' defaults.
    """

    partitions: int | None
    replicas: int | None
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic as it was created, or would be.

    Args:
        name: Its name.
        topic_id: See `TopicDescription`; None with `validate_only`.
        partitions: How many it has; None if brokers do not say so (before 2.4).
        replicas: Copies of each partition; None if brokers do not say so.
    """

    name: str
    topic_id: str | None
    partitions: int | None
    replicas: int | None


class ConfigKind(IntEnum):
    """Kinds of resources that have a configuration, beside topics and brokers. Numbers as in DescribeConfigs."""

    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """The source of the value of an entry. Numbers as in DescribeConfigs."""

    UNKNOWN = 0
    TOPIC = 1
    """Set for this topic."""
    BROKER = 2
    """Set for this broker while it was running."""
    ALL_BROKERS = 3
    """Set for all brokers while they were running."""
    FILE = 4
    """Set in the properties with which the broker was started."""
    DEFAULT = 5
    """Kafka's own default."""
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One entry of a configuration.

    Args:
        name: Its name.
        value: Its value; None if it has none, or is secret.
        source: Where the value comes from.
        read_only: True if it cannot be altered while the broker runs.
        secret: True if the value is not shown.
    """

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Append:
    """The addition of an item to an entry that is a list, unless it has it: `{"cleanup.policy": Append("compact")}`."""

    item: str


@dataclass(frozen=True, slots=True)
class Subtract:
    """The removal of an item from an entry that is a list, if it has it."""

    item: str


ConfigChange = str | Append | Subtract | None
"""A change of an entry of a configuration: a value to set, an item to add or remove; None: the default again."""


# ---- offsets ------------------------------------------------------------------------------------------------


class OffsetSpec(Enum):
    """An offset named by its meaning, beside EARLIEST and LATEST. Numbers as in ListOffsets."""

    MAX_TIMESTAMP = -3
    """The offset of the record with the highest timestamp (3.0 and later)."""
    EARLIEST_LOCAL = -4
    """The first one that is on the broker's own disk, with tiered storage (3.5 and later)."""
    LATEST_TIERED = -5
    """The last one that is in remote storage (3.9 and later)."""
    EARLIEST_NOT_TIERED = -6
    """The first one that is not in remote storage yet (4.2 and later)."""

    def __repr__(self) -> str:
        return self.name


OffsetChoice = PositionSpec | AtTime | OffsetSpec
"""A meaning or a time by which an offset is found."""


@dataclass(frozen=True, slots=True)
class OffsetListing:
    """An offset that was found.

    Args:
        position: The offset; None: there is none, such as a record that is late enough.
        timestamp: Of its record (ms since the epoch); None if it was not found by a timestamp.
        leader_epoch: Of its record; None if brokers do not report it (before 2.1).
    """

    position: Position | None
    timestamp: int | None
    leader_epoch: int | None


# ---- groups -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list.

    Args:
        name: Its name.
        protocol_type: `consumer`, or what else its members are; empty for one that only has positions.
        state: `Stable`, `Empty` and so on; None if brokers do not list it (before 2.6).
        type: `classic`, `consumer` (KIP-848) and so on; None if brokers do not list it (before 3.8).
    """

    name: str
    protocol_type: str = ""
    state: str | None = None
    type: str | None = None


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group.

    Args:
        member_id: The name that the group knows it by.
        instance_id: Its fixed id, if it has one.
        client_id: Its client's name.
        host: Where it runs, as its broker sees it.
        partitions: The partitions that it owns; they are not known of a member that is no consumer.
        rack: Its rack, if it told it; here and below, groups of the classic protocol do not tell.
        epoch: The epoch of the assignment that it has; None if it is not known.
        topics: The topics that it asks for.
        pattern: The pattern of topics that it asks for.
        target: What it is to own once the assignment is done.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    rack: str | None = None
    epoch: int | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    target: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group.

    Args:
        name: Its name.
        state: `Stable`, `Empty`, `PreparingRebalance` and so on.
        type: `classic`, `consumer` for one under the protocol of KIP-848, `share` (KIP-932), `zookeeper` in 0.7.
        protocol_type: `consumer`, or what else its members are.
        assignor: The name of what shares the partitions among its members; empty while it has none.
        members: Its members.
        coordinator: The broker that coordinates it; None in 0.7, where ZooKeeper does.
        epoch: Grows with every change of its members or topics; None under the classic protocol.
        assignment_epoch: The epoch for which the target assignment was made; None under the classic protocol.
    """

    name: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    members: tuple[MemberDescription, ...]
    coordinator: Broker | None
    epoch: int | None = None
    assignment_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class PositionChange:
    """The change that a reset makes to one partition of a group.

    Args:
        before: The position that was committed; None: none.
        after: The position that is committed now, or would be; None: none.
    """

    before: Position | None
    after: Position | None


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Distance of a group from the end of one partition.

    Args:
        committed: The position that the group has committed; None: none.
        end: The end of the partition.
        lag: From the committed position, or from the oldest one if that is later, to the end: records, in 0.7 bytes.
        member: The id of the member that has the partition; None: none has it, or it is not known.
    """

    committed: Position | None
    end: Position
    lag: int
    member: str | None


# ---- what a driver implements -------------------------------------------------------------------------------


class ClusterAdmin:
    """Administration of one cluster. Every method raises Unsupported here: a driver overrides those that its cluster
    has requests for.

    Args:
        needs: The release that a cluster needs for them, and what to do instead.
    """

    def __init__(self, needs: str) -> None:
        self._needs = needs

    async def describe_cluster(self) -> ClusterDescription:
        """Return the brokers. Raises OdradekError if none of them answers."""
        raise Unsupported("describing the cluster", self._needs)

    async def create_topics(
        self, topics: Mapping[str, TopicSettings], *, validate_only: bool
    ) -> Results[str, CreatedTopic]:
        """Create topics, and return when brokers know leaders of their partitions, or after a time-out."""
        raise Unsupported("creating a topic", self._needs)

    async def delete_topics(self, names: Sequence[str]) -> Results[str, None]:
        """Delete topics."""
        raise Unsupported("deleting a topic", self._needs)

    async def add_partitions(self, totals: Mapping[str, int], *, validate_only: bool) -> Results[str, None]:
        """Increase the number of partitions of topics: name -> the number to reach."""
        raise Unsupported("adding partitions", self._needs)

    async def describe_topics(self, names: Sequence[str]) -> Results[str, TopicDescription]:
        """Return the partitions of topics and their replicas. Never creates a topic."""
        raise Unsupported("describing a topic", self._needs)

    async def describe_topic_configs(self, names: Sequence[str]) -> Results[str, Mapping[str, ConfigEntry]]:
        """Return the configuration of topics, by the name of the entry."""
        raise Unsupported("describing a configuration", self._needs)

    async def describe_broker_configs(
        self, brokers: Sequence[int | None]
    ) -> Results[int | None, Mapping[str, ConfigEntry]]:
        """Return the configuration of brokers, by the name of the entry; None: what is set for all of them."""
        raise Unsupported("describing a configuration", self._needs)

    async def alter_topic_configs(
        self, changes: Mapping[str, Mapping[str, ConfigChange]], *, validate_only: bool
    ) -> Results[str, None]:
        """Change entries of the configuration of topics; None: back to the default. Other entries stay."""
        raise Unsupported("altering a configuration", self._needs)

    async def alter_broker_configs(
        self, changes: Mapping[int | None, Mapping[str, ConfigChange]], *, validate_only: bool
    ) -> Results[int | None, None]:
        """Change entries of the configuration of brokers, as `alter_topic_configs` does; None: of all of them."""
        raise Unsupported("altering a configuration", self._needs)

    async def describe_configs(self, kind: ConfigKind, names: Sequence[str]) -> Results[str, Mapping[str, ConfigEntry]]:
        """Return the configuration of resources of one kind, by the name of the entry."""
        raise Unsupported("describing a configuration", self._needs)

    async def alter_configs(
        self, kind: ConfigKind, changes: Mapping[str, Mapping[str, ConfigChange]], *, validate_only: bool
    ) -> Results[str, None]:
        """Change entries of the configuration of resources of one kind, as `alter_topic_configs` does."""
        raise Unsupported("altering a configuration", self._needs)

    async def list_client_metrics(self) -> Sequence[str]:
        """Return the names of subscriptions to metrics of clients, sorted."""
        raise Unsupported("listing subscriptions to metrics of clients", self._needs)

    async def delete_records(
        self, before: Mapping[TopicPartition, Position | None]
    ) -> Results[TopicPartition, Position]:
        """Delete the records before a position; None: all. Returns the position where each log starts now."""
        raise Unsupported("deleting records", self._needs)

    async def list_offsets(
        self, specs: Mapping[TopicPartition, OffsetChoice], *, read_committed: bool
    ) -> Results[TopicPartition, OffsetListing]:
        """Find offsets by their meaning or by a time."""
        raise Unsupported("listing offsets", self._needs)

    async def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> Sequence[GroupListing]:
        """Return the groups in one of the states and of one of the types, or all, sorted by name. Raises OdradekError
        if a broker does not answer."""
        raise Unsupported("listing groups", self._needs)

    async def describe_groups(self, names: Sequence[str]) -> Results[str, GroupDescription]:
        """Return states and members of groups."""
        raise Unsupported("describing a group", self._needs)

    async def delete_groups(self, names: Sequence[str]) -> Results[str, None]:
        """Delete groups that have no members, and their positions."""
        raise Unsupported("deleting a group", self._needs)

    async def group_positions(self, group: str) -> Mapping[TopicPartition, Position] | None:
        """Return all committed positions of a group; None if only those of partitions that are named can be read."""
        return None

    async def delete_positions(self, group: str, partitions: Sequence[TopicPartition]) -> Results[TopicPartition, None]:
        """Delete committed positions of a group."""
        raise Unsupported("deleting a committed position", self._needs)

    @property
    def access(self) -> AccessAdmin:
        """The administration of access: entries, passwords, quotas, tokens."""
        raise Unsupported("administration of access, users, quotas and tokens", self._needs)

    @property
    def brokers(self) -> BrokersAdmin:
        """The administration of replicas, leaders, log directories, the quorum and features."""
        raise Unsupported("administration of replicas, log directories, the quorum and features", self._needs)

    @property
    def transactions(self) -> TransactionsAdmin:
        """The administration of transactions."""
        raise Unsupported("administration of transactions", self._needs)
