"""`odradek cluster configs`: configurations of brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

import odradek as od
from odradek.cli.admin import APPEND, SECRET, SUBTRACT, Rows, ask, change_text, config_changes, echo_dry_run, unchanged
from odradek.cli.options import APPLY, JSON, clustered, examples
from odradek.cli.output import echo_failures, echo_rows
from odradek.core.admin import ConfigChange, ConfigEntry, ConfigSource, Results

__all__ = ["configs"]


@click.command(
    epilog=examples(
        "odradek cluster configs",
        "odradek cluster configs 1 --all --json",
        "odradek cluster configs --set log.cleaner.threads=2 --apply",
        "odradek cluster configs 1 --delete log.cleaner.threads --apply",
    )
)
@click.argument("brokers", nargs=-1, type=click.IntRange(0), metavar="[BROKER]...")
@click.option("--all", "everything", is_flag=True, help="Print Kafka's own defaults as well.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="An entry to set.")
@click.option("--delete", "resets", multiple=True, metavar="NAME", help="An entry that goes back to its default.")
@APPEND
@SUBTRACT
@APPLY
@JSON
@clustered
def configs(
    url: str,
    brokers: Sequence[int],
    everything: bool,
    settings: Sequence[str],
    resets: Sequence[str],
    appended: Sequence[str],
    subtracted: Sequence[str],
    apply: bool,
    as_lines: bool,
) -> int:
    """Print the configuration of BROKERs (0.11 and later), or change it while they run (2.3 and later).

    Without BROKER, it is that of all brokers: what holds where one has nothing else. Without --apply, a change is only
    checked and printed. Values of secrets are never printed.
    """
    numbers: Sequence[int | None] = brokers or [None]  # None: what is set for all of them
    changes = config_changes(settings, resets, appended, subtracted)
    if changes:
        return _change(url, numbers, changes, apply, as_lines)
    described = ask(url, lambda admin: admin.describe_broker_configs(numbers))
    rows: Rows = [
        [_name(number), each.name, _value(each), each.source.name.lower(), each.read_only]
        for number, entries in described.done.items()
        for _, each in sorted(entries.items())
        if everything or each.source is not ConfigSource.DEFAULT
    ]
    echo_rows(["broker", "entry", "value", "source", "read_only"], rows, as_lines)
    return echo_failures(described.failed)


def _name(number: int | None) -> int | str:
    return "all" if number is None else number


def _value(entry: ConfigEntry) -> str | None:
    return SECRET if entry.secret else entry.value


def _change(
    url: str, numbers: Sequence[int | None], changes: Mapping[str, ConfigChange], apply: bool, as_lines: bool
) -> int:
    wanted = dict.fromkeys(numbers, changes)

    async def alter() -> tuple[Results[int | None, Mapping[str, ConfigEntry]], Results[int | None, None]]:
        async with od.connect(url) as k:
            before = await k.admin.describe_broker_configs(numbers)
            checked = await k.admin.alter_broker_configs(wanted, validate_only=True)
            if not apply or checked.failed:
                return before, checked
            return before, await k.admin.alter_broker_configs(wanted)

    before, altered = od.run(alter)
    rows: Rows = [
        [_name(number), name, _before(entry, number), _after(entry, name, change)]
        for number in altered.done
        for name, change in changes.items()
        for entry in [before.done.get(number, {}).get(name)]
    ]
    echo_rows(["broker", "entry", "before", "after"], rows, as_lines)
    echo_dry_run(apply or bool(altered.failed), empty=unchanged(rows))
    return echo_failures(altered.failed)


def _before(entry: ConfigEntry | None, number: int | None) -> str | None:
    """Return what was set for this broker, or for all."""
    if entry is None or entry.source is not (ConfigSource.ALL_BROKERS if number is None else ConfigSource.BROKER):
        return "default"
    return _value(entry)


def _after(entry: ConfigEntry | None, name: str, change: ConfigChange) -> str:
    """Return what an entry becomes; a password is not shown, also where brokers do not say yet that it is one."""
    secret = entry.secret if entry is not None else "password" in name or "jaas" in name
    return SECRET if secret and change is not None else change_text(change)
