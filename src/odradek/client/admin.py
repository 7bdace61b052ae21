"""`Admin`: looks after topics, configurations, groups and their positions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from odradek import arguments
from odradek.client.admin_access import AdminOfAccess
from odradek.client.admin_arguments import NAME, config_change, names, offset_choice
from odradek.client.admin_cluster import AdminOfBrokers
from odradek.client.consumer.positions import missing_partitions, resolve_positions
from odradek.client.group_lag import group_lag
from odradek.client.options import partition as partition_rule
from odradek.client.options import start_position
from odradek.core.admin import (
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigKind,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    OffsetChoice,
    OffsetListing,
    PartitionLag,
    PositionChange,
    Results,
    TopicDescription,
    TopicSettings,
)
from odradek.errors import BrokerError, ConfigError, GroupError, OdradekError, Unreachable, Unsupported
from odradek.io.gather import gather_outcomes
from odradek.types import LATEST, AtTime, Position, PositionSpec, TopicPartition

__all__ = ["Admin"]

K = TypeVar("K")

_CONFIG = arguments.mapping(NAME, arguments.text("a value, as a text", at_least=0), "a mapping of names to values")
_CHANGES = arguments.mapping(
    NAME,
    config_change,
    "a mapping of names to values",
)
_BROKER = arguments.optional(arguments.count(0, unit="a broker id, or None"))
_PARTITION, _POSITION = partition_rule(), start_position()
_FLAGS = {"read_committed": arguments.flag()}
_RULES: Mapping[str, arguments.Rule] = {
    "partitions": arguments.optional(arguments.count(1, 1 << 20, "a number of partitions")),
    "replicas": arguments.optional(arguments.count(1, (1 << 15) - 1, "a number of replicas")),
    "config": arguments.optional(_CONFIG),
    "validate_only": arguments.flag(),
    "dry_run": arguments.flag(),
    "totals": arguments.mapping(
        NAME, arguments.count(1, 1 << 20, "a number of partitions"), "a mapping of topics to numbers of partitions"
    ),
    "topic_changes": arguments.mapping(NAME, _CHANGES, "a mapping of topics to changes"),
    "broker_changes": arguments.mapping(_BROKER, _CHANGES, "a mapping of broker ids to changes"),
    "group_changes": arguments.mapping(NAME, _CHANGES, "a mapping of groups to changes"),
    "metrics_changes": arguments.mapping(NAME, _CHANGES, "a mapping of subscriptions to changes"),
    "group": arguments.text("a group name"),
    "positions": arguments.mapping(
        _PARTITION, arguments.optional(_POSITION), "a mapping of partitions to positions, or None"
    ),
    "specs": arguments.mapping(_PARTITION, offset_choice, "a mapping of partitions to what is looked up"),
    "before": arguments.mapping(_PARTITION, _POSITION, "a mapping of partitions to positions"),
}


class Admin(AdminOfAccess, AdminOfBrokers):
    """Administration of a cluster: `Cluster.admin`. Used inside the block of the cluster.

    Methods for several items return `Results`: each item is done, or has an error of its own. A method that the cluster
    has no request for raises Unsupported, which says what it needs and what to do instead; it has changed nothing then.
    Cancelling a change leaves it done or not done; cancelling a question is safe.

    Args:
        driver: Speaks the protocol of the cluster.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._driver!r}>"

    async def describe_cluster(self) -> ClusterDescription:
        """Return the brokers of the cluster, and its id.

        Raises:
            TransportError, DeadlineError: No broker answered.
        """
        return await self._driver.admin().describe_cluster()

    # ---- topics ---------------------------------------------------------------------------------------------

    async def create_topics(
        self,
        topics: str | Iterable[str] | Mapping[str, int],
        *,
        partitions: int | None = None,
        replicas: int | None = None,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> Results[str, CreatedTopic]:
        """Create topics that are alike, and return when they can be used.

        Args:
            topics: A name, or several; or topic -> number of partitions.
            partitions: How many each has, if `topics` does not say so; None: as many as brokers are configured to
                make (2.4 and later).
            replicas: Copies of each partition; None: as many as brokers are configured to make (2.4 and later).
            config: Entries of their configuration, such as `{"retention.ms": "3600000"}`.
            validate_only: Find out whether they can be created, without doing it (0.10.2 and later).

        Raises:
            Unsupported: The brokers are older than 0.10.1, or than an argument needs.
            TransportError, DeadlineError: No answer; topics may have been created if the error says `sent`.
            ConfigError, TypeError: An argument that cannot work.
        """
        arguments.check_all(
            _RULES, partitions=partitions, replicas=replicas, config=config, validate_only=validate_only
        )
        if isinstance(topics, Mapping):
            if partitions is not None:
                raise ConfigError("partitions: `topics` says how many each topic has; give one of the two")
            counts: Mapping[str, int | None] = _RULES["totals"]("topics", topics)
        else:
            counts = dict.fromkeys(names("topics", topics), partitions)
        wanted = {name: TopicSettings(count, replicas, dict(config or {})) for name, count in counts.items()}
        return await self._driver.admin().create_topics(wanted, validate_only=validate_only)

    async def delete_topics(self, topics: str | Iterable[str]) -> Results[str, None]:
        """Delete topics with all their records. Brokers go on deleting after this has returned.

        Raises:
            Unsupported: The brokers are older than 0.10.1.
            TransportError, DeadlineError: No answer; topics may have been deleted if the error says `sent`.
        """
        return await self._driver.admin().delete_topics(names("topics", topics))

    async def add_partitions(self, totals: Mapping[str, int], *, validate_only: bool = False) -> Results[str, None]:
        """Add partitions to topics. Records stay where they are, but keys may go to other partitions from then on.

        Args:
            totals: Topic -> the number of partitions that it has afterwards.
            validate_only: Find out whether they can be added, without doing it.

        Raises:
            Unsupported: The brokers are older than 1.0.
            TransportError, DeadlineError: No answer; partitions may have been added if the error says `sent`.
        """
        _RULES["validate_only"]("validate_only", validate_only)
        return await self._driver.admin().add_partitions(
            _RULES["totals"]("totals", totals), validate_only=validate_only
        )

    async def describe_topics(self, topics: str | Iterable[str]) -> Results[str, TopicDescription]:
        """Return partitions, leaders and replicas of topics. Never creates a topic.

        Raises:
            TransportError, DeadlineError: No broker answered.
        """
        return await self._driver.admin().describe_topics(names("topics", topics))

    async def delete_records(
        self, before: Mapping[TopicPartition, Position | int | PositionSpec | AtTime]
    ) -> Results[TopicPartition, Position]:
        """Delete the oldest records of partitions.

        Args:
            before: Partition -> position of the first record that is kept; LATEST deletes all records.

        Returns:
            Where the log of each partition starts now.

        Raises:
            Unsupported: The brokers are older than 0.11.
        """
        wanted: dict[TopicPartition, Any] = _RULES["before"]("before", before)
        exact: dict[TopicPartition, Position | None] = {p: None for p, at in wanted.items() if at is LATEST}
        resolved, failed = await self._resolve({p: at for p, at in wanted.items() if at is not LATEST})
        results = await self._driver.admin().delete_records({**exact, **resolved})
        return Results(results.done, {**failed, **results.failed})

    async def list_offsets(
        self, specs: Mapping[TopicPartition, OffsetChoice], *, read_committed: bool = False
    ) -> Results[TopicPartition, OffsetListing]:
        """Find offsets of partitions by their meaning or by a time. Cancellation: safe.

        Args:
            specs: Partition -> EARLIEST, LATEST, `AtTime(seconds)`, or an `OffsetSpec`.
            read_committed: LATEST is the end of what consumers of this isolation may read (0.11 and later).

        Raises:
            Unsupported: The brokers are too old for one of them (see `OffsetSpec`).
        """
        arguments.check_all(_FLAGS, read_committed=read_committed)
        wanted = _RULES["specs"]("specs", specs)
        return await self._driver.admin().list_offsets(wanted, read_committed=read_committed)

    # ---- configuration --------------------------------------------------------------------------------------

    async def describe_topic_configs(self, topics: str | Iterable[str]) -> Results[str, Mapping[str, ConfigEntry]]:
        """Return the configuration of topics: the name of each entry -> its value and where that comes from.

        Raises:
            Unsupported: The brokers are older than 0.11.
            TransportError, DeadlineError: No broker answered.
        """
        return await self._driver.admin().describe_topic_configs(names("topics", topics))

    async def describe_broker_configs(
        self, brokers: int | Iterable[int | None] | None
    ) -> Results[int | None, Mapping[str, ConfigEntry]]:
        """Return the configuration of brokers, by id, as `describe_topic_configs` does.

        Args:
            brokers: Their ids; None stands for what is set for all brokers while they run (1.1 and later).

        Raises:
            Unsupported: The brokers are older than 0.11, or than None needs.
        """
        listed = brokers if isinstance(brokers, Iterable) else [brokers]
        return await self._driver.admin().describe_broker_configs([_BROKER("brokers", each) for each in listed])

    async def alter_topic_configs(
        self, changes: Mapping[str, Mapping[str, ConfigChange]], *, validate_only: bool = False
    ) -> Results[str, None]:
        """Change entries of the configuration of topics; others stay as they are.

        Before 2.3 brokers can only replace the configuration of a topic as a whole: it is read, changed and written,
        and undoes a change that another client makes in between.

        Args:
            changes: Topic -> entry -> the value to set; None goes back to the brokers' default; `Append` and `Subtract`
                change one item of a list.
            validate_only: Find out whether they can be changed, without doing it.

        Raises:
            Unsupported: The brokers are older than 0.11.
            TransportError, DeadlineError: No broker answered.
        """
        _RULES["validate_only"]("validate_only", validate_only)
        checked = _RULES["topic_changes"]("changes", changes)
        return await self._driver.admin().alter_topic_configs(checked, validate_only=validate_only)

    async def alter_broker_configs(
        self, changes: Mapping[int | None, Mapping[str, ConfigChange]], *, validate_only: bool = False
    ) -> Results[int | None, None]:
        """Change entries of the configuration of brokers, by id, as `alter_topic_configs` does.

        Args:
            changes: Broker id, or None for all brokers -> entry -> the change.
            validate_only: As for topics.

        Raises:
            Unsupported: The brokers are older than 2.3.
        """
        _RULES["validate_only"]("validate_only", validate_only)
        checked = _RULES["broker_changes"]("changes", changes)
        return await self._driver.admin().alter_broker_configs(checked, validate_only=validate_only)

    async def describe_group_configs(self, groups: str | Iterable[str]) -> Results[str, Mapping[str, ConfigEntry]]:
        """Return the configuration of groups, as `describe_topic_configs` does: limits and intervals of the protocols
        in which brokers assign partitions (KIP-848, KIP-932). A group need not exist.

        Raises:
            Unsupported: The brokers are older than 4.0.
        """
        return await self._driver.admin().describe_configs(ConfigKind.GROUP, names("groups", groups))

    async def alter_group_configs(
        self, changes: Mapping[str, Mapping[str, ConfigChange]], *, validate_only: bool = False
    ) -> Results[str, None]:
        """Change entries of the configuration of groups, by name, as `alter_topic_configs` does.

        Raises:
            Unsupported: The brokers are older than 4.0.
        """
        _RULES["validate_only"]("validate_only", validate_only)
        checked = _RULES["group_changes"]("changes", changes)
        return await self._driver.admin().alter_configs(ConfigKind.GROUP, checked, validate_only=validate_only)

    async def list_client_metrics(self) -> Sequence[str]:
        """Return the names of subscriptions to metrics that clients push (KIP-714), sorted. Cancellation: safe.

        Raises:
            Unsupported: The brokers are older than 3.7, or not in KRaft mode.
        """
        return await self._driver.admin().list_client_metrics()

    async def describe_client_metrics(
        self, subscriptions: str | Iterable[str]
    ) -> Results[str, Mapping[str, ConfigEntry]]:
        """Return subscriptions to metrics of clients, as `describe_topic_configs` does: `metrics` (prefixes of names),
        `interval.ms`, and `match` (which clients). One that does not exist has defaults only.

        Raises:
            Unsupported: The brokers are older than 3.7, or not in KRaft mode.
        """
        wanted = names("subscriptions", subscriptions)
        return await self._driver.admin().describe_configs(ConfigKind.CLIENT_METRICS, wanted)

    async def alter_client_metrics(
        self, changes: Mapping[str, Mapping[str, ConfigChange]], *, validate_only: bool = False
    ) -> Results[str, None]:
        """Change subscriptions to metrics of clients, by name, as `alter_topic_configs` does. The first change of a
        name makes a subscription; one without entries of its own does not exist any more.

        Raises:
            Unsupported: The brokers are older than 3.7, or not in KRaft mode.
        """
        _RULES["validate_only"]("validate_only", validate_only)
        checked = _RULES["metrics_changes"]("changes", changes)
        kind = ConfigKind.CLIENT_METRICS
        return await self._driver.admin().alter_configs(kind, checked, validate_only=validate_only)

    # ---- groups ---------------------------------------------------------------------------------------------

    async def list_groups(
        self, *, states: str | Iterable[str] = (), types: str | Iterable[str] = ()
    ) -> Sequence[GroupListing]:
        """Return groups of all kinds, sorted by name. Brokers before 0.10.1 list no group without members.

        Args:
            states: Those in one of these states only, such as `Empty` (2.6 and later).
            types: Those of one of these types only: `classic`, `consumer`, `share` (3.8 and later).

        Raises:
            Unsupported: The cluster has no groups (0.8), or nothing to keep them in (0.7 without ZooKeeper).
            TransportError, DeadlineError: A broker did not answer: its groups would be missing.
        """
        return await self._driver.admin().list_groups(names("states", states), names("types", types))

    async def describe_groups(self, groups: str | Iterable[str]) -> Results[str, GroupDescription]:
        """Return states and members of groups.

        Raises:
            Unsupported: As `list_groups`.
        """
        return await self._driver.admin().describe_groups(names("groups", groups))

    async def delete_groups(self, groups: str | Iterable[str]) -> Results[str, None]:
        """Delete groups and their positions. One that has members is not deleted, and has an error.

        Raises:
            Unsupported: The brokers are older than 1.1.
        """
        return await self._driver.admin().delete_groups(names("groups", groups))

    async def group_positions(self, group: str) -> Mapping[TopicPartition, Position]:
        """Return all positions that a group has committed. Empty if there is no such group.

        Raises:
            Unsupported: The cluster stores no positions.
            TransportError, DeadlineError, BrokerError, ZooKeeperError: They could not be read.
        """
        _RULES["group"]("group", group)
        positions = await self._driver.admin().group_positions(group)
        if positions is not None:
            return positions
        topics = sorted(await self._driver.metadata.all_topics())
        partitions: list[TopicPartition] = []
        for topic in topics:
            partitions += (await self._driver.metadata.table_for_topic(topic)).registered(topic)
        committed = await self._driver.offsets(group).fetch(partitions)
        return {partition: position for partition, position in committed.items() if position is not None}

    async def lag(self, group: str) -> Mapping[TopicPartition, PartitionLag]:
        """Return how far a group is from the end of every partition of the topics for which it has committed positions.
        Empty if it has none. A partition that no live broker serves is left out.

        Raises:
            Unsupported: The cluster stores no positions.
            TransportError, DeadlineError, BrokerError, ZooKeeperError: Positions or ends could not be read.
        """
        return await group_lag(self._driver, group, await self.group_positions(group))

    async def reset_positions(
        self,
        group: str,
        positions: Mapping[TopicPartition, Position | int | PositionSpec | AtTime | None],
        *,
        dry_run: bool = False,
    ) -> Results[TopicPartition, PositionChange]:
        """Commit other positions for a group that has no members at the moment.

        To undo it, pass what `PositionChange.before` said.

        Args:
            group: The group; one that does not exist is made.
            positions: Partition -> the position to commit; None deletes the committed position (2.4 and later).
            dry_run: Find out what would change, and change nothing.

        Returns:
            The position of each partition before and after.

        Raises:
            GroupError: The group has members, which would commit over it: stop them first; or it is a share group. In
                a dry run, too.
            Unsupported: The cluster stores no positions.
        """
        arguments.check_all(_RULES, group=group, dry_run=dry_run)
        wanted: dict[TopicPartition, Any] = _RULES["positions"]("positions", positions)
        unknown: dict[TopicPartition, OdradekError] = {**await self._read_topics(wanted)}
        unknown |= await missing_partitions(self._driver, [p for p in wanted if p not in unknown])
        after, failed = await self._resolve({p: at for p, at in wanted.items() if p not in unknown})
        failed |= unknown
        before = await self._driver.offsets(group).fetch(list(after))
        unwanted = [p for p, at in after.items() if at is None and before.get(p) is not None]
        await self._refuse_group(group)
        if not dry_run:
            failed |= await self._commit(group, {p: at for p, at in after.items() if at is not None})
        failed |= await self._delete_positions(group, unwanted, dry_run=dry_run)
        done = {p: PositionChange(before.get(p), at) for p, at in after.items() if p not in failed}
        return Results(done, failed)

    async def _resolve(
        self, wanted: Mapping[TopicPartition, Any]
    ) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, OdradekError]]:
        """Return exact positions, None where None is wanted, and errors."""
        exact = {p: None if at is None else Position(at) for p, at in wanted.items() if not _has_meaning(at)}
        meanings = {p: at for p, at in wanted.items() if _has_meaning(at)}
        unknown = await self._read_topics(meanings)
        resolved, failed = await resolve_positions(self._driver, {p: meanings[p] for p in meanings if p not in unknown})
        failed |= unknown
        for partition in meanings.keys() - resolved.keys() - failed.keys():
            failed[partition] = Unreachable("tcp", str(partition), "no broker leads this partition now")
        return {**exact, **resolved}, failed

    async def _read_topics(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, BrokerError]:
        """Read the topics of partitions, so that their leaders are known. Return the error of one topic, such as that
        this client may not know of it, for its partitions."""
        refused: dict[str, BrokerError] = {}
        for topic in {partition.topic for partition in partitions}:
            try:
                await self._driver.metadata.table_for_topic(topic)
            except BrokerError as error:
                refused[topic] = error
        return {partition: refused[partition.topic] for partition in partitions if partition.topic in refused}

    async def _refuse_group(self, group: str) -> None:
        try:
            described = (await self._driver.admin().describe_groups([group])).done.get(group)
        except Unsupported:
            return
        if described is not None and described.type == "share":
            raise GroupError(
                f"group {group!r} is a share group, which commits no positions: kafka-share-groups.sh resets offsets"
            )
        if described is not None and described.members:
            raise GroupError(
                f"group {group!r} has {len(described.members)} members ({described.state}), which would commit over"
                " new positions: stop them first"
            )

    async def _commit(
        self, group: str, positions: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, OdradekError]:
        """Commit all positions together; if some are refused, each by itself, so that every one has its own error."""
        store = self._driver.offsets(group)
        try:
            await store.commit(positions)
            return {}
        except OdradekError as error:
            if len(positions) == 1:
                return dict.fromkeys(positions, error)
        outcomes = await gather_outcomes(lambda partition: store.commit({partition: positions[partition]}), positions)
        return {p: each for p, each in zip(positions, outcomes, strict=True) if each is not None}

    async def _delete_positions(
        self, group: str, partitions: Sequence[TopicPartition], *, dry_run: bool
    ) -> dict[TopicPartition, OdradekError]:
        """Delete positions. A dry run deletes none, which also fails where none can be deleted."""
        if not partitions:
            return {}
        try:
            return dict((await self._driver.admin().delete_positions(group, () if dry_run else partitions)).failed)
        except OdradekError as error:
            return dict.fromkeys(partitions, error)


def _has_meaning(position: object) -> bool:
    return isinstance(position, PositionSpec | AtTime)
