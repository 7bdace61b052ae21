"""Parts that the commands of administration share: calls, changes of configurations, partitions by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

import click

import odradek as od
from odradek.cli.cluster_queries import find_partitions
from odradek.client.admin import Admin
from odradek.core.admin import Append, ConfigChange, Results, Subtract, TopicDescription
from odradek.core.interfaces import INTERNAL_TOPICS

__all__ = [
    "APPEND",
    "SECRET",
    "SUBTRACT",
    "Rows",
    "ask",
    "change_text",
    "config_changes",
    "describe_topics",
    "echo_dry_run",
    "named_partitions",
    "setting",
    "topics_or_all",
    "unchanged",
]

T = TypeVar("T")
Rows = list[list[object]]
SECRET = "(secret)"
"""Printed instead of a value that is secret."""
APPEND = click.option(
    "--append", "appended", multiple=True, metavar="NAME=ITEM", help="An item that a list gets (2.3 and later)."
)
SUBTRACT = click.option(
    "--subtract", "subtracted", multiple=True, metavar="NAME=ITEM", help="An item that a list loses (2.3 and later)."
)


def ask(url: str, call: Callable[[Admin], Awaitable[T]]) -> T:
    """Return what a call of the administration of a cluster returns."""

    async def main() -> T:
        async with od.connect(url) as k:
            return await call(k.admin)

    return od.run(main)


def echo_dry_run(apply: bool, did: str = "changed", *, empty: bool = False) -> None:
    """Say on standard error that a command has only printed what it would do, or that there is nothing to do."""
    if not apply:
        click.echo("there is nothing to do" if empty else f"nothing was {did}: add --apply", err=True)


def unchanged(rows: Rows) -> bool:
    """Return True if the last two columns, before and after, are the same in all rows, and not secret."""
    return all(row[-2] == row[-1] != SECRET for row in rows)


def setting(text: str) -> tuple[str, str]:
    """Return name and value of NAME=VALUE. Raises click.BadParameter."""
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise click.BadParameter(f"{text!r}: expected NAME=VALUE")
    return name, value


def config_changes(
    settings: Sequence[str], resets: Sequence[str], appended: Sequence[str], subtracted: Sequence[str]
) -> dict[str, ConfigChange]:
    """Return the changes of a configuration. Raises click.UsageError if two are about one entry."""
    changes: list[tuple[str, ConfigChange]] = [setting(text) for text in settings]
    changes += [(name, None) for name in resets]
    for texts, kind in ((appended, Append), (subtracted, Subtract)):
        changes += [(name, kind(item)) for name, item in map(setting, texts)]
    names = [name for name, _ in changes]
    if twice := {name for name in names if names.count(name) > 1}:
        raise click.UsageError(f"several changes of {', '.join(sorted(twice))}: one at a time is possible")
    return dict(changes)


def change_text(change: ConfigChange) -> str:
    """Return what an entry becomes, in words."""
    match change:
        case Append(item):
            return f"+{item}"
        case Subtract(item):
            return f"-{item}"
        case None:
            return "default"
        case value:
            return value


async def topics_or_all(k: od.Cluster, names: Collection[str]) -> list[str]:
    """Return these topics, or all topics of the cluster if there are none of them."""
    return list(dict.fromkeys(names)) or sorted(await k.topics())


async def describe_topics(k: od.Cluster, names: Collection[str]) -> Results[str, TopicDescription]:
    """Describe these topics, or all topics of the cluster if there are none of them: those of the brokers, too."""
    if names:
        return await k.admin.describe_topics(names)
    described = await k.admin.describe_topics({*await k.topics(), *INTERNAL_TOPICS})
    failed = {name: error for name, error in described.failed.items() if name not in INTERNAL_TOPICS}
    return Results(dict(sorted(described.done.items())), failed)


async def named_partitions(k: od.Cluster, names: Collection[str]) -> list[od.TopicPartition]:
    """Return the partitions that are called TOPIC/PARTITION, and those of a TOPIC.

    Raises click.ClickException if there is no such partition.
    """
    chosen: list[od.TopicPartition] = []
    for name in names:
        topic, mark, number = name.partition("/")
        chosen += await find_partitions(k, topic, number if mark else None)
    return list(dict.fromkeys(chosen))
