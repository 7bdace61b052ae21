"""The options of a flow's data source, and its backlog, without Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from odradek.pipeline.config import Flow, Pipeline, SourceConfig
from odradek.pipeline.ledger import Offsets
from odradek.spark.admission import backlog, end_offsets
from odradek.spark.gaps import PositionGap
from odradek.spark.logs import find_logs
from odradek.spark.offsets import offsets_from_dict, offsets_to_dict
from odradek.spark.options import parse_source
from odradek.spark.planning import Extent, clip_to_logs
from odradek.spark.queries import start_offsets
from odradek.spark.schema import COLUMNS, ERROR, RANGE_ROWS, ddl
from odradek.types import Position, TopicPartition

__all__ = ["PartitionBacklog", "backlog_of", "first_offsets", "flow_options", "location_options", "range_schema"]

CORRUPT = {"fail": "fail", "skip": "skip-message", "dead": "dead"}


RANGE_COLUMNS = tuple(
    column
    for column in COLUMNS
    if column.name in {"value", "topic", "partition", "offset", "broker", "index", "nextOffset"}
)
"""Columns of the data source that tables are made of."""


def range_schema() -> str:
    """Return the schema of a cluster of 0.8 or later: every range that was read has a row of its own, because not every
    offset has a record, and the reason why a row is corrupt has a column, because records have headers."""
    return ddl((*RANGE_COLUMNS, RANGE_ROWS, ERROR))


def flow_options(pipeline: Pipeline, flow: Flow) -> dict[str, str]:
    """Return the options of the data source. Positions in a checkpoint override `startingOffsets`."""
    source = pipeline.source
    return {
        **location_options(source),
        **_topics(flow),
        "startingOffsets": flow.start,
        "failOnDataLoss": str(flow.data_loss == "fail").lower(),
        "corrupt": CORRUPT[flow.corrupt],
        "includeHeaders": str(flow.corrupt == "dead").lower(),
        "maxFetchersPerBroker": str(source.fetchers_per_broker),
        ("maxOffsetsPerTrigger" if source.kafka else "maxBytesPerTrigger"): str(pipeline.batch_size),
    }


def location_options(source: SourceConfig) -> Mapping[str, str]:
    """Return the options of the data source that locate the logs, and say what is read of them."""
    limit = {"maxMessageBytes": str(source.max_message_bytes)}
    if source.kafka is not None:
        scheme, _, servers = source.kafka.partition("://")
        return {
            "kafka.bootstrap.servers": servers,
            "kafka.security.protocol": _PROTOCOLS[scheme],
            "kafka.isolation.level": "read_committed",
            **(limit if "max_message_bytes" in source.model_fields_set else {}),
        }
    if source.zookeeper is not None:
        return {"kafka.zk.connect": source.zookeeper, **limit}
    if source.brokers is not None:
        return {"kafka.broker.list": source.brokers, **limit}
    return {"path": json.dumps(source.logs), **limit}


_PROTOCOLS = {
    "kafka": "PLAINTEXT",
    "kafka+ssl": "SSL",
    "kafka+sasl": "SASL_PLAINTEXT",
    "kafka+sasl+ssl": "SASL_SSL",
}


def _topics(flow: Flow) -> Mapping[str, str]:
    if flow.topics is not None:
        return {"subscribe": ",".join(topic for topic in flow.topics if topic not in flow.exclude)}
    excluded = "|".join(map(re.escape, flow.exclude))
    return {"subscribePattern": f"(?!(?:{excluded})$)(?:{flow.pattern})" if excluded else flow.pattern or ""}


# ---- backlog -------------------------------------------------------------------------------------------------


class PartitionBacklog(NamedTuple):
    """The part of one partition that is not in the table.

    Args:
        partition: The log.
        reached: End of what was read; None: the partition is new.
        earliest, latest: The range that the log has.
        waiting: Size to read: bytes, or records of 0.8 and later.
        gap: Data that was lost before it could be read, or None.
    """

    partition: TopicPartition
    reached: Position | None
    earliest: int
    latest: int
    waiting: int
    gap: PositionGap | None


def first_offsets(options: Mapping[str, str]) -> Offsets:
    """Return the start offsets of a flow that has not begun. Raises OdradekError if the logs do not answer."""
    parsed = parse_source(options, streaming=True)
    logs = find_logs(parsed)
    topics: Offsets = offsets_to_dict(start_offsets(logs, parsed, logs.extents()))["topics"]
    return topics


def backlog_of(options: Mapping[str, str], reached: Offsets | None) -> list[PartitionBacklog]:
    """Return the backlog of a flow, partition by partition.

    Args:
        options: Options of the data source.
        reached: End of the table; None: the flow has not begun.

    Raises:
        OdradekError: The logs do not answer.
    """
    parsed = parse_source(options, streaming=True)
    logs = find_logs(parsed)
    extents = logs.extents()
    start = start_offsets(logs, parsed, extents) if reached is None else offsets_from_dict({"v": 1, "topics": reached})
    return _backlogs(start, extents)


def _backlogs(
    start: Mapping[TopicPartition, Position], extents: Mapping[TopicPartition, Extent]
) -> list[PartitionBacklog]:
    new = {partition: Position(log.earliest) for partition, log in extents.items() if partition not in start}
    begin = {**start, **new}
    end = end_offsets(begin, extents)
    waiting = backlog(begin, end, extents)
    gaps = {gap.partition: gap for gap in clip_to_logs(begin, end, extents, fail_on_data_loss=False).gaps}
    return [
        PartitionBacklog(
            partition, start.get(partition), *extents.get(partition, Extent(-1, -1))[:2],
            waiting.get(partition, 0), gaps.get(partition),
        )
        for partition in sorted(end)
    ]  # fmt: skip
