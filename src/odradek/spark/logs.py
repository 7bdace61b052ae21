"""The interface to the logs that a query reads, in a cluster or in directories."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from odradek.spark.brokers import BrokerCatalog
from odradek.spark.directories import DirectoryCatalog
from odradek.spark.options import ClusterOptions, SourceOptions
from odradek.spark.planning import Extent, SplitPoint
from odradek.types import AtTime, Position, TopicPartition

__all__ = ["LogCatalog", "find_logs"]


class LogCatalog(Protocol):
    """The logs that a query can read. Every method may raise OdradekError, and OSError where files are read."""

    def extents(self) -> dict[TopicPartition, Extent]:
        """Return the extent of each log that the options select. Logs of an unreachable broker are left out."""
        ...

    def at(self, times: Mapping[TopicPartition, AtTime]) -> dict[TopicPartition, Position]:
        """The newest position of each that is known to be not after a moment: where a segment starts. Only for logs
        that `extents` found."""
        ...

    def boundaries(self, cuts: Sequence[SplitPoint]) -> dict[SplitPoint, int | None]:
        """The first place at or after each cut that is proved to be where a message begins; None where that cannot be
        proved."""
        ...

    def paths(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """The directory of each; of none in a cluster."""
        ...


def find_logs(options: SourceOptions) -> LogCatalog:
    """The logs that these options name. Nothing is opened yet."""
    where = options.where
    return BrokerCatalog(where, options) if isinstance(where, ClusterOptions) else DirectoryCatalog(where, options)
