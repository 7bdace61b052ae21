"""Resolve positions: from a meaning (EARLIEST, LATEST, a time) to an exact position, at the serving broker."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from odradek.core.interfaces import ProtocolDriver
from odradek.errors import OdradekError
from odradek.types import AtTime, Broker, Position, PositionSpec, TopicPartition

__all__ = ["resolve_positions"]


async def resolve_positions(
    driver: ProtocolDriver, wanted: Mapping[TopicPartition, PositionSpec | AtTime]
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, OdradekError]]:
    """Resolve positions, all at the same time: return those that are known now, and the errors of the others.

    A partition that no live broker serves is in neither. Cancellation: safe.
    """
    positions: dict[TopicPartition, Position] = {}
    errors: dict[TopicPartition, OdradekError] = {}

    async def resolve(broker: Broker, partition: TopicPartition, at: PositionSpec | AtTime) -> None:
        try:
            positions[partition] = await driver.broker(broker, purpose="control").resolve_position(partition, at)
        except OdradekError as error:
            errors[partition] = error

    async with anyio.create_task_group() as tasks:
        for partition, at in wanted.items():
            if (broker := driver.metadata.table.leader(partition)) is not None:
                tasks.start_soon(resolve, broker, partition, at)
    return positions, errors
