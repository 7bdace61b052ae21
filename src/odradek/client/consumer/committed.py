"""Arguments of calls about committed positions, as users pass them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from odradek import arguments
from odradek.client.options import COMMIT_METADATA, MAX_POSITION
from odradek.client.options import partition as partition_rule
from odradek.types import Position, TopicPartition

__all__ = ["check_partitions", "split_positions"]

_PARTITION = partition_rule()
_POSITION = arguments.count(0, MAX_POSITION, "a position")


def _with_text(name: str, value: object) -> tuple[Any, str | None]:
    if not isinstance(value, tuple):
        return _POSITION(name, value), None
    if len(value) != 2:
        arguments.wrong_type(name, value, "a position, or (position, text)")
    return _POSITION(name, value[0]), COMMIT_METADATA(f"the text of {name}", value[1])


_POSITIONS = arguments.mapping(_PARTITION, _with_text, "a mapping of partitions to positions, or to (position, text)")


def split_positions(positions: object) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, str]]:
    """Return positions to commit, and the texts of those that have one. Raises TypeError or ConfigError for anything
    but a mapping of partitions to positions, or to (position, text)."""
    checked: Mapping[TopicPartition, tuple[Position, str | None]] = _POSITIONS("positions", positions)
    texts = {partition: text for partition, (_, text) in checked.items() if text is not None}
    return {partition: position for partition, (position, _) in checked.items()}, texts


def check_partitions(partitions: object) -> list[TopicPartition]:
    """Return these partitions, once each. Raises TypeError or ConfigError for anything else."""
    if isinstance(partitions, str | TopicPartition) or not isinstance(partitions, Iterable):
        arguments.wrong_type("partitions", partitions, "several partitions")
    return list(dict.fromkeys(_PARTITION("partitions", each) for each in partitions))
