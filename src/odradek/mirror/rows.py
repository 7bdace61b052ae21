"""Records of the source for the target, and back to where one came from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from odradek.batch import Batch
from odradek.client.producer.results import Failed
from odradek.errors import BrokerError, Fenced, MessageTooLarge, OdradekError, Rejected, Unsupported
from odradek.mirror.errors import RecordRefused
from odradek.types import Columns, Headers, TopicPartition

__all__ = ["Origin", "positions_of_rows", "refused_record"]


class Origin(NamedTuple):
    """The origin of records, for headers.

    Args:
        cluster: Id of the source.
        partition: The source partition.
    """

    cluster: str
    partition: TopicPartition

    def added(self, columns: Columns) -> Columns:
        """Return records with four headers more."""
        return columns.replace(headers=list(self._headers(columns)))

    def _headers(self, columns: Columns) -> Iterator[Headers]:
        cluster, topic = ("odradek.cluster", self.cluster.encode()), ("odradek.topic", self.partition.topic.encode())
        partition = ("odradek.partition", self.partition.name.encode())
        own: Sequence[Headers] = [()] * len(columns) if columns.headers is None else columns.headers
        for headers, position in zip(own, positions_of_rows(columns), strict=True):
            yield (*headers, cluster, topic, partition, ("odradek.position", position.encode()))


def positions_of_rows(columns: Columns) -> Iterable[str]:
    """Return the positions of all records as texts; those inside of a compressed message of 0.7 as `512.3`."""
    inner = columns.inner_indexes
    if inner is None:
        return map(str, columns.positions)
    return [f"{at}.{n}" if n else str(at) for at, n in zip(columns.positions, inner, strict=True)]


def refused_record(partition: TopicPartition, columns: Columns, failed: Failed) -> OdradekError:
    """Return the error of a record that was not written: where it is on the source, if the target does not take it.

    Args:
        partition: The source partition.
        columns: The records that were to be written.
        failed: What came of one of them.
    """
    error = failed.error
    if not isinstance(error, Rejected | Unsupported) or isinstance(error.__cause__, Fenced):
        return error
    value, key, headers, timestamp = failed.record
    refused = (value, key, tuple(headers), timestamp)
    rows = zip(Batch(partition, columns), positions_of_rows(columns), strict=True)
    position = next((at for row, at in rows if (row.value, row.key, tuple(row.headers), row.timestamp) == refused), "?")
    return RecordRefused(str(partition), position, error, _hint(failed))


def _hint(failed: Failed) -> str:
    cause = failed.error.__cause__
    if isinstance(cause, MessageTooLarge):
        return "raise run.max_message_bytes"
    if isinstance(cause, BrokerError) and cause.name in ("MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"):
        return f"raise max.message.bytes of topic {failed.topic!r} on the target"
    if isinstance(cause, BrokerError) and cause.name == "INVALID_TIMESTAMP":
        return f"raise message.timestamp.after.max.ms, or .before.max.ms, of topic {failed.topic!r} on the target"
    return ""
