"""Rules for the arguments of `Admin`: one item or several, changes of configurations, offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from odradek import arguments
from odradek.client.options import partition, start_position
from odradek.core.admin import Append, ConfigChange, OffsetChoice, OffsetSpec, Subtract
from odradek.core.interfaces import ProtocolDriver
from odradek.types import TopicPartition

__all__ = ["NAME", "AdminPart", "config_change", "items", "names", "offset_choice", "partitions"]

NAME = arguments.text("a name")
_PARTITION = partition()
_VALUE = arguments.text("a value, as a text, or None", at_least=0)
_ITEM = arguments.text("an item of a list")
_POSITION = start_position(positions=False)


class AdminPart:
    """A part of `Admin`.

    Args:
        driver: Speaks the protocol of the cluster.
    """

    def __init__(self, driver: ProtocolDriver) -> None:
        self._driver = driver


def items(argument: str, values: object, rule: arguments.Rule, one: type, allowed: str) -> list[Any]:
    """Return items without repetitions; one by itself is taken as one, a mapping as its keys."""
    if isinstance(values, one):
        return [rule(argument, values)]
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        arguments.wrong_type(argument, values, allowed)
    return list(dict.fromkeys([rule(argument, each) for each in values]))


def names(argument: str, values: object) -> list[str]:
    """Return names without repetitions."""
    return items(argument, values, NAME, str, "a name, or several")


def partitions(argument: str, values: object) -> list[TopicPartition]:
    """Return partitions without repetitions."""
    return items(argument, values, _PARTITION, TopicPartition, "a TopicPartition, or several")


def config_change(name: str, value: object) -> ConfigChange:
    """Allow a value, None, or a change of one item of a list."""
    if isinstance(value, Append | Subtract):
        return type(value)(_ITEM(name, value.item))
    checked: ConfigChange = None if value is None else _VALUE(name, value)
    return checked


def offset_choice(name: str, value: object) -> OffsetChoice:
    """Allow EARLIEST, LATEST, a time, or an OffsetSpec."""
    choice: OffsetChoice = value if isinstance(value, OffsetSpec) else _POSITION(name, value)
    return choice
