"""Asking brokers for positions by meaning."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from odradek.core.interfaces import BrokerClient, ProtocolDriver
from odradek.errors import DeadlineError, OdradekError, RemoteProtocolError, TransportError
from odradek.types import EARLIEST, AtTime, Broker, Position, PositionSpec, TopicPartition

__all__ = ["AGAIN", "ask_position", "ask_positions"]

AGAIN = (TransportError, DeadlineError, RemoteProtocolError)
"""What the lost-connection procedure is for. Anything else is about one partition, or a mistake of ours."""


async def ask_position(api: BrokerClient, partition: TopicPartition, at: PositionSpec | AtTime) -> Position:
    """One position. Before the oldest segment there is only the beginning."""
    for anchor in (at, EARLIEST):
        if found := await api.positions(partition, anchor):
            return found[0]
    raise RemoteProtocolError(f"{partition}: the broker names no first position")


async def ask_positions(
    driver: ProtocolDriver, wanted: Mapping[TopicPartition, PositionSpec | AtTime]
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, OdradekError]]:
    """Positions by meaning, all asked for at once: what was found, and why the others were not.

    A partition nobody serves now is in neither. Cancellation: safe.
    """
    found: dict[TopicPartition, Position] = {}
    errors: dict[TopicPartition, OdradekError] = {}

    async def one(broker: Broker, partition: TopicPartition, at: PositionSpec | AtTime) -> None:
        try:
            found[partition] = await ask_position(driver.broker(broker, purpose="control"), partition, at)
        except OdradekError as error:
            errors[partition] = error

    async with anyio.create_task_group() as tasks:
        for partition, at in wanted.items():
            if (broker := driver.metadata.table.leader(partition)) is not None:
                tasks.start_soon(one, broker, partition, at)
    return found, errors
