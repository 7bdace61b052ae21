"""Resolve positions: from a meaning (EARLIEST, LATEST, a time) to an exact position, at the serving broker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import anyio

from odradek.core.interfaces import ProtocolDriver
from odradek.errors import OdradekError
from odradek.io.gather import gather_outcomes
from odradek.types import AtTime, Broker, Position, PositionSpec, TopicPartition

__all__ = ["resolve_positions"]


async def resolve_positions(
    driver: ProtocolDriver,
    wanted: Mapping[TopicPartition, PositionSpec | AtTime],
    *,
    read_committed: bool = False,
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, OdradekError]]:
    """Resolve positions: return those that are known now, and the errors of the others.

    All brokers are asked at the same time, each with a bounded number of requests in progress. A partition that no live
    broker serves is in neither. Cancellation: safe.
    """
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
