"""The lag of a group, from outside of it."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.client.consumer.positions import resolve_positions
from odradek.core.admin import PartitionLag
from odradek.core.interfaces import ProtocolDriver
from odradek.errors import Unsupported
from odradek.types import EARLIEST, LATEST, Position, PositionSpec, TopicPartition

__all__ = ["group_lag"]


async def group_lag(
    driver: ProtocolDriver, group: str, committed: Mapping[TopicPartition, Position]
) -> dict[TopicPartition, PartitionLag]:
    """Return the lag on every partition of the topics for which a group has committed positions: see `Admin.lag`."""
    partitions: list[TopicPartition] = []
    for topic in sorted({partition.topic for partition in committed}):
        partitions += (await driver.metadata.table_for_topic(topic)).registered(topic)
    begins = await _resolve(driver, partitions, EARLIEST)
    ends = await _resolve(driver, partitions, LATEST)
    members = await _members(driver, group) if committed else {}
    lags: dict[TopicPartition, PartitionLag] = {}
    for partition in sorted(begins.keys() & ends.keys()):
        position, end = committed.get(partition), ends[partition]
        lag = max(0, end - max(begins[partition], position or 0))
        lags[partition] = PartitionLag(position, end, lag, members.get(partition))
    return lags


async def _resolve(
    driver: ProtocolDriver, partitions: list[TopicPartition], at: PositionSpec
) -> dict[TopicPartition, Position]:
    positions, errors = await resolve_positions(driver, dict.fromkeys(partitions, at))
    for error in errors.values():
        raise error
    return positions


async def _members(driver: ProtocolDriver, group: str) -> dict[TopicPartition, str]:
    """Return the member that has each partition, if the cluster describes its groups."""
    try:
        described = (await driver.admin().describe_groups([group])).done.get(group)
    except Unsupported:
        return {}
    members = () if described is None else described.members
    return {partition: member.member_id for member in members for partition in member.partitions}
