"""Resolve positions: from a meaning (EARLIEST, LATEST, a time) to an exact position, at the serving broker; refuse
those of partitions that do not exist, and know their topics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from random import random

import anyio

from odradek.core.fetch.read_ahead import MIN_FETCH_BYTES
from odradek.core.interfaces import BrokerClient, DecoderOptions, PartitionFetch, ProtocolDriver, RoutingTable
from odradek.core.missing_partitions import BETWEEN_READS_S, why_missing
from odradek.errors import BrokerError, ConfigError, OdradekError
from odradek.io.gather import CONCURRENT
from odradek.io.log_access import BACKOFF, REFUSALS
from odradek.types import AtTime, Broker, Position, PositionSpec, TopicPartition

__all__ = ["is_removed", "missing_partitions", "refresh_topic_ids", "resolve_positions"]

IDS_AGE_S = 0.1
"""Maximum age of the ids of topics when positions in them are resolved (s)."""


async def missing_partitions(
    driver: ProtocolDriver, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, ConfigError]:
    """Return an error for each partition that its topic does not have, not even after the metadata has been read twice.

    A topic that does not exist has no partition that is missing: it may be created. Cancellation: safe.

    Raises:
        OdradekError: The metadata could not be read.
    """
    if driver.logs.names_brokers:
        return {}
    wanted = list(partitions)
    for topic in dict.fromkeys(partition.topic for partition in wanted):
        await driver.metadata.table_for_topic(topic)
    missing = _missing(driver.metadata.table, wanted)
    if missing:
        missing = _missing(await driver.metadata.refresh(), wanted)
    if missing:
        await anyio.sleep(BETWEEN_READS_S)
        missing = _missing(await driver.metadata.refresh(), wanted)
    return missing


def _missing(table: RoutingTable, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ConfigError]:
    reasons = {partition: why_missing(partition, table.partitions(partition.topic)) for partition in partitions}
    return {partition: ConfigError(why) for partition, why in reasons.items() if why}


async def refresh_topic_ids(driver: ProtocolDriver) -> None:
    """Read the metadata again, unless it was read a moment ago: positions that leaders name are in the topics of
    today, and not in former ones of these names, whose ids an old table has. Cancellation: safe."""
    metadata = driver.metadata
    if metadata.read_at < anyio.current_time() - IDS_AGE_S:
        with suppress(OdradekError):  # the leaders are asked next
            await metadata.refresh()


async def resolve_positions(
    driver: ProtocolDriver,
    wanted: Mapping[TopicPartition, PositionSpec | AtTime],
    *,
    read_committed: bool = False,
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, OdradekError]]:
    """Resolve positions: return those that are known now, and the errors of the others.

    All brokers are asked at the same time, each for a bounded number of partitions at a time. A broker that refuses
    because it no longer leads a partition, or not yet, is asked again for some seconds. If one does not answer, those
    that lead its partitions by now are asked. A partition that no live broker serves is in neither. Cancellation: safe.
    """
    leaders = {partition: driver.metadata.table.leader(partition) for partition in wanted}
    positions, errors = await _resolve_once(driver, wanted, read_committed)
    if any(error.retriable and not isinstance(error, BrokerError) for error in errors.values()):
        with suppress(OdradekError):
            await driver.metadata.refresh()
        table = driver.metadata.table
        moved = {p: wanted[p] for p in errors if table.leader(p) not in (None, leaders[p])}
        more, failed = await _resolve_once(driver, moved, read_committed)
        positions |= more
        errors = {p: error for p, error in (errors | failed).items() if p not in more}
    for attempt in range(REFUSALS):
        refused = {p: wanted[p] for p, error in errors.items() if isinstance(error, BrokerError) and error.retriable}
        if not refused:
            break
        await anyio.sleep(BACKOFF.delay(attempt, random()))
        with suppress(OdradekError):  # the table may have changed all the same
            await driver.metadata.refresh()
        more, failed = await _resolve_once(driver, refused, read_committed)
        positions |= more
        errors = {p: error for p, error in (errors | failed).items() if p not in more}
    return positions, errors


async def _resolve_once(
    driver: ProtocolDriver, wanted: Mapping[TopicPartition, PositionSpec | AtTime], read_committed: bool
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, OdradekError]]:
    by_broker: dict[Broker, list[TopicPartition]] = defaultdict(list)
    for partition in wanted:
        if (leader := driver.metadata.table.leader(partition)) is not None:
            by_broker[leader].append(partition)
    positions: dict[TopicPartition, Position] = {}
    errors: dict[TopicPartition, OdradekError] = {}

    async def resolve(broker: Broker, partitions: list[TopicPartition]) -> None:
        for first in range(0, len(partitions), CONCURRENT):
            some = {p: wanted[p] for p in partitions[first : first + CONCURRENT]}
            outcomes: Mapping[TopicPartition, Position | OdradekError]
            try:
                client = driver.broker(broker, purpose="control")
                outcomes = await client.resolve_positions(some, read_committed=read_committed)
            except OdradekError as error:
                outcomes = dict.fromkeys(some, error)
            for partition, outcome in outcomes.items():
                if isinstance(outcome, OdradekError):
                    errors[partition] = outcome
                else:
                    positions[partition] = outcome

    async with anyio.create_task_group() as tasks:
        for broker, partitions in by_broker.items():
            tasks.start_soon(resolve, broker, partitions)
    return positions, errors


async def is_removed(client: BrokerClient, empty: PartitionFetch, end: int, options: DecoderOptions) -> bool:
    """Return True if a log has no records from the position of an empty response on up to `end`: compaction has removed
    them, and an open transaction follows, until whose end brokers such as 2.8 send nothing to readers of committed
    records. An empty response alone proves nothing: it may be one of remote storage that was too slow."""
    if not options.read_committed or (empty.last_stable or 0) < end:
        return False
    all_records = DecoderOptions(max_message_bytes=options.max_message_bytes)
    decoder = client.decoder(empty.decoder.partition, empty.decoder.position, all_records)
    with suppress(OdradekError):  # the next fetch meets it, too
        await client.fetch([PartitionFetch(decoder, MIN_FETCH_BYTES)])
    rows = decoder.take()
    return decoder.position >= end and not (rows.values and rows.positions[0] < end)
