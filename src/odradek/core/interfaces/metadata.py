"""The state of a cluster: brokers, topics, partitions and their leaders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from odradek.types import Broker, TopicPartition

__all__ = ["ClusterMetadata", "RoutingTable"]


class RoutingTable(Protocol):
    """An immutable snapshot of who serves what. Replaced whole, never edited."""

    @property
    def version(self) -> int:
        """Grows with every change."""
        ...

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """Live brokers by id."""
        ...

    @property
    def topics(self) -> frozenset[str]:
        """Topics known to have partitions."""
        ...

    def partitions(self, topic: str) -> Sequence[TopicPartition]:
        """Return the partitions that records of `topic` may be sent to now, in the order of a partitioner's indexes.
        Empty when no broker is live. In 0.7 an unknown topic has partition 0 of every live broker."""
        ...

    def registered(self, topic: str) -> Sequence[TopicPartition]:
        """The partitions known to exist: what can be read. A subset of `partitions`."""
        ...

    def leader(self, partition: TopicPartition) -> Broker | None:
        """Return the broker that serves a partition now, or None."""
        ...

    def topic_id(self, topic: str) -> bytes | None:
        """Return what tells a topic from another one of the same name: it changes when the topic is deleted and made
        again. It is None if the topic is not known, or the brokers have no ids (before 2.8)."""
        ...

    def why_unusable(self, topic: str) -> str:
        """Return why a topic has no partitions, in words; empty if brokers have not said so."""
        ...


class ClusterMetadata(Protocol):
    """Brokers, topics and leaders of a cluster, kept up to date in the background.

    An asynchronous context manager: inside it, `table` is current as far as the cluster has reported. A background
    failure is raised from `wait_for_newer`, `table_for_topic` and at exit, never only logged.
    """

    @property
    def table(self) -> RoutingTable: ...

    @property
    def read_at(self) -> float:
        """Time of the event loop at which the ids of topics were asked for that the table has: they are not older.
        Infinity: they are current, or there are none; minus infinity: there was no answer yet, or they are not."""
        ...

    @property
    def reports_changes(self) -> bool:
        """True if `table` is current as soon as something changes; False: a new topic may need a `refresh`."""
        ...

    async def table_for_topic(self, name: str, *, create: bool = False, named: bool = False) -> RoutingTable:
        """A table that knows `name`: reads and watches it the first time, returns at once later.

        Args:
            create: Have the topic created if it does not exist, where asking for it makes brokers do so.
            named: Find out whether this client may know of it, even where such a request makes brokers create it.
        """
        ...

    async def all_topics(self) -> frozenset[str]:
        """Every topic the cluster publishes, and keep watching for more (wildcards, listings)."""
        ...

    async def wait_for_newer(self, version: int, needed: Callable[[], Collection[str]] = frozenset) -> RoutingTable:
        """Wait until `table.version > version`. Cancellation: safe.

        Args:
            needed: Returns topics that are looked for meanwhile, although they do not exist.
        """
        ...

    async def refresh(self) -> RoutingTable:
        """Read everything again now: the table was found wrong."""
        ...
