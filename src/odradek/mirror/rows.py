"""Records of the source as rows for the target, and back to where one came from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from odradek.client.producer.results import Failed
from odradek.core.interfaces import ProducerRecord
from odradek.errors import BrokerError, Fenced, MessageTooLarge, OdradekError, Rejected, Unsupported
from odradek.mirror.errors import RecordRefused
from odradek.types import Columns, Headers, TopicPartition

__all__ = ["Origin", "refused_record", "rows_of"]


class Origin(NamedTuple):
    """The origin of records, for headers.

    Args:
        cluster: Id of the source.
        partition: The source partition.
    """

    cluster: str
    partition: TopicPartition

    def headers(self, columns: Columns) -> Iterator[Headers]:
        """Yield the headers of each record: its own, and four more."""
        cluster, topic = ("odradek.cluster", self.cluster.encode()), ("odradek.topic", self.partition.topic.encode())
        partition = ("odradek.partition", self.partition.name.encode())
        own: Sequence[Headers] = [()] * len(columns) if columns.headers is None else columns.headers
        for headers, position in zip(own, _positions(columns), strict=True):
            yield (*headers, cluster, topic, partition, ("odradek.position", position.encode()))


def _positions(columns: Columns) -> Iterable[str]:
    """Return the positions of all records as texts; those inside of a compressed message of 0.7 as `512.3`."""
    inner = columns.inner_indexes
    if inner is None:
        return map(str, columns.positions)
    return [f"{at}.{n}" if n else str(at) for at, n in zip(columns.positions, inner, strict=True)]


def rows_of(columns: Columns, origin: Origin | None) -> Iterable[Any]:
    """Return rows for `Producer.send_many`: values, where there is nothing else."""
    if columns.keys is None and columns.headers is None and columns.timestamps is None and origin is None:
        return columns.values
    rows = len(columns)
    headers: Iterable[Headers] = [()] * rows if columns.headers is None else columns.headers
    return map(
        ProducerRecord,
        columns.values,
        [None] * rows if columns.keys is None else columns.keys,
        headers if origin is None else origin.headers(columns),
        [None] * rows if columns.timestamps is None else [None if t < 0 else t for t in columns.timestamps],
    )


def refused_record(
    partition: TopicPartition, parts: Sequence[Columns], failed: Failed, origin: Origin | None
) -> OdradekError:
    """Return the error of a record that was not written: where it is on the source, if the target does not take it."""
    error = failed.error
    if not isinstance(error, Rejected | Unsupported) or isinstance(error.__cause__, Fenced):
        return error
    rows = chain.from_iterable(zip(rows_of(part, origin), _positions(part), strict=True) for part in parts)
    position = next((at for row, at in rows if _is_same(row, failed.record)), "?")
    return RecordRefused(str(partition), position, error, _hint(failed))


def _is_same(row: Any, record: ProducerRecord) -> bool:
    return row == record if isinstance(row, ProducerRecord) else row == record.value


def _hint(failed: Failed) -> str:
    cause = failed.error.__cause__
    if isinstance(cause, MessageTooLarge):
        return "raise run.max_message_bytes"
    if isinstance(cause, BrokerError) and cause.name in ("MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"):
        return f"raise max.message.bytes of topic {failed.topic!r} on the target"
    return ""
