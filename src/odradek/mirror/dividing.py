"""Division of records among partitions of the target: as on the source, by key, or by a function. Pure, but for the
function, which is the user's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import NamedTuple, TypeAlias, TypeVar

from odradek.batch import Batch
from odradek.core.produce.partitioners import Partitioner
from odradek.mirror.errors import RuleFailed
from odradek.mirror.rows import positions_of_rows
from odradek.mirror.stored import BY_KEY, CopiedTopic, CopyRule
from odradek.types import Columns, Record, TopicPartition

__all__ = ["Divided", "Division", "PartitionFunction", "key_of"]

T = TypeVar("T")
R = TypeVar("R")

PartitionFunction: TypeAlias = Callable[[Record, int], int]
"""A function of the user: a record of the source, with the key that it gets, and how many partitions the topic has on
the target -> number of the partition."""


class Divided(NamedTuple):
    """Records for one partition of the target, in order.

    Args:
        partition: The partition.
        columns: The records, with the keys that they get.
    """

    partition: TopicPartition
    columns: Columns


@dataclass(frozen=True, slots=True)
class Division:
    """The way of the records of one source partition to the target.

    Args:
        source: The partition.
        target: The partition that all of them go to; where the rule is by key, those that have none.
        rule: The rule; None: there is none.
        partitioner: Chooses the partition of a key.
    """

    source: TopicPartition
    target: TopicPartition
    rule: CopyRule | None
    partitioner: Partitioner

    @classmethod
    def of(cls, topic: CopiedTopic, source: TopicPartition, partitioner: Partitioner) -> Division:
        """Return that of a partition of a topic."""
        target = TopicPartition(topic.target, topic.partitions[source].partition)
        return cls(source, target, topic.rule, partitioner)

    def divide(self, columns: Columns) -> list[Divided]:
        """Divide records; the order within each partition stays.

        Raises:
            RuleFailed: The rule has no key or no partition for a record.
        """
        rule = self.rule
        if rule is None:
            return [Divided(self.target, columns)]
        if rule.key_field is not None:
            path = rule.key_field.split(".")
            columns = columns.replace(keys=self._each(columns, columns.values, lambda value: key_of(value, path)))
        rows: dict[int, list[int]] = {}
        for row, number in enumerate(self._numbers(columns, rule)):
            rows.setdefault(number, []).append(row)
        return [
            Divided(self.target._replace(partition=number), columns.pick(picked) if len(rows) > 1 else columns)
            for number, picked in rows.items()
        ]

    def _numbers(self, columns: Columns, rule: CopyRule) -> Sequence[int]:
        """Return the partition of each record."""
        if rule.by == BY_KEY:
            return self._by_key(columns, rule.partitions)
        function: PartitionFunction = resolve_name(rule.by)
        records = Batch(self.source, columns)
        return self._each(columns, records, lambda record: _checked(function(record, rule.partitions), rule.partitions))

    def _by_key(self, columns: Columns, partitions: int) -> Sequence[int]:
        """Hash each key once. Records without a key stay in one partition, and so in order."""
        keys = [None] * len(columns) if columns.keys is None else list(columns.keys)
        numbers: dict[bytes | None, int] = {}
        for key in set(keys):
            chosen = self.partitioner(self.target.topic, key, partitions)
            numbers[key] = self.target.partition if chosen is None else chosen
        return [numbers[key] for key in keys]

    def _each(self, columns: Columns, items: Iterable[T], call: Callable[[T], R]) -> list[R]:
        """Return what a call returns for each record. Raises RuleFailed: it raises something for one of them."""
        results: list[R] = []
        try:
            results.extend(map(call, items))
        except Exception as error:
            position = list(positions_of_rows(columns))[len(results)]
            raise RuleFailed(str(self.source), position, f"{type(error).__name__}: {error}") from error
        return results


def _checked(number: int, partitions: int) -> int:
    if type(number) is not int or not 0 <= number < partitions:
        raise ValueError(f"the function returned {number!r}, and the partitions are 0 to {partitions - 1}")
    return number


def key_of(value: bytes | None, path: Sequence[str]) -> bytes:
    """Return the key that a field of a JSON value is: the UTF-8 of a text, or a number as it is written there.

    Args:
        value: The value of a record.
        path: Names of the field and of the objects that it is in, the outermost first.

    Raises:
        ValueError: The value is not JSON, or has no text or number there.
    """
    if value is None:
        raise ValueError("there is no value that could have the field")
    try:
        field = json.loads(value, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the value is not JSON: {error}") from error
    for name in path:
        if not isinstance(field, dict) or name not in field:
            raise ValueError(f"the value has no field {'.'.join(path)}")
        field = field[name]
    if not isinstance(field, str):
        raise ValueError(f"the field {'.'.join(path)} is neither a text nor a number")
    return field.encode()
