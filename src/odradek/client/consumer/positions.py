"""Resolve positions: from a meaning (EARLIEST, LATEST, a time) to an exact position, at the serving broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from random import random

import anyio

from odradek.core.backoff import Backoff
from odradek.core.interfaces import ProtocolDriver
from odradek.errors import BrokerError, OdradekError
from odradek.io.gather import gather_outcomes
from odradek.types import AtTime, Broker, Position, PositionSpec, TopicPartition

__all__ = ["resolve_positions"]

REFUSALS = 8
"""Times that a broker is asked again, with a back-off, while the cluster elects a leader."""

BACKOFF = Backoff()


async def resolve_positions(
    driver: ProtocolDriver,
    wanted: Mapping[TopicPartition, PositionSpec | AtTime],
    *,
    read_committed: bool = False,
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, OdradekError]]:
    """Resolve positions: return those that are known now, and the errors of the others.

    All brokers are asked at the same time, each with a bounded number of requests in progress. A broker that refuses
    because it no longer leads a partition, or not yet, is asked again for some seconds. A partition that no live broker
    serves is in neither. Cancellation: safe.
    """
    positions, errors = await _resolve_once(driver, wanted, read_committed)
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
        async def resolve_one(partition: TopicPartition) -> Position:
            client = driver.broker(broker, purpose="control")
            return await client.resolve_position(partition, wanted[partition], read_committed=read_committed)

        outcomes = await gather_outcomes(resolve_one, partitions)
        for partition, outcome in zip(partitions, outcomes, strict=True):
            if isinstance(outcome, OdradekError):
                errors[partition] = outcome
            else:
                positions[partition] = outcome

    async with anyio.create_task_group() as tasks:
        for broker, partitions in by_broker.items():
            tasks.start_soon(resolve, broker, partitions)
    return positions, errors
