"""`odradek quotas`: lists, sets and removes quotas of clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import click

import odradek as od
from odradek.cli.admin import Rows, ask, echo_dry_run, setting, unchanged
from odradek.cli.options import APPLY, JSON, clustered, examples
from odradek.cli.output import echo_failures, echo_rows
from odradek.core.admin import Results
from odradek.core.admin_access import QuotaEntity, QuotaName

__all__ = ["quotas"]

HEAD = ["user", "client_id", "ip", "quota"]
KINDS = ("user", "client-id", "ip")
DEFAULT = "<default>"

_ENTITY = (
    click.option("--user", metavar="NAME", help="Of a user."),
    click.option("--client-id", metavar="NAME", help="Of clients with this id; with --user: of these of the user."),
    click.option("--ip", metavar="ADDRESS", help="Of an address."),
    click.option(
        "--default", "defaults", multiple=True, type=click.Choice(KINDS), help="Of those that have none of their own."
    ),
)
Quotas = Mapping[QuotaEntity, Mapping[str, float]]


@click.group(
    epilog=examples(
        "odradek quotas list --json",
        "odradek quotas set producer_byte_rate=1000000 --user bob --apply",
        "odradek quotas set consumer_byte_rate=5000000 --default user --apply",
        "odradek quotas remove producer_byte_rate --user bob --apply",
    )
)
def quotas() -> None:
    """List, set and remove quotas of clients (2.6 and later)."""


def _of_entity(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that name clients to a command, and pass it the argument `entity`."""

    @wraps(command)
    def with_entity(
        *, user: str | None, client_id: str | None, ip: str | None, defaults: Sequence[str], **options: Any
    ) -> int:
        return command(entity=_entity(user, client_id, ip, defaults), **options)

    wrapped: Callable[..., int] = with_entity
    for option in reversed(_ENTITY):
        wrapped = option(wrapped)
    return wrapped


def _entity(user: str | None, client_id: str | None, ip: str | None, defaults: Sequence[str]) -> QuotaEntity:
    names: dict[str, str | QuotaName | None] = {"user": user, "client-id": client_id, "ip": ip}
    for kind in defaults:
        if names[kind] is not None:
            raise click.UsageError(f"--default {kind} cannot be combined with --{kind}")
        names[kind] = QuotaName.DEFAULT
    return QuotaEntity(*names.values())


def _whole(value: float | None) -> float | None:
    """Return a whole number without its `.0`."""
    return int(value) if value is not None and value.is_integer() else value


def _row(entity: QuotaEntity) -> list[object]:
    return [DEFAULT if name is QuotaName.DEFAULT else name for name in (entity.user, entity.client_id, entity.ip)]


@quotas.command(name="list", epilog=examples("odradek quotas list", "odradek quotas list --user bob --json"))
@_of_entity
@JSON
@clustered
def list_quotas(url: str, entity: QuotaEntity, as_lines: bool) -> int:
    """List quotas: all, or those of clients that have these names."""
    described = ask(url, lambda admin: admin.describe_quotas(entity))
    rows: Rows = [
        [*_row(clients), name, _whole(each)] for clients, quotas in described.items() for name, each in quotas.items()
    ]
    echo_rows([*HEAD, "value"], sorted(rows, key=str), as_lines)
    return 0


@quotas.command(
    name="set",
    epilog=examples(
        "odradek quotas set producer_byte_rate=1000000 consumer_byte_rate=2000000 --user bob --apply",
        "odradek quotas set request_percentage=50 --user bob --client-id reports --apply",
        "odradek quotas set connection_creation_rate=10 --default ip --apply",
    ),
)
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...")
@_of_entity
@APPLY
@JSON
@clustered
def set_quotas(url: str, settings: Sequence[str], entity: QuotaEntity, apply: bool, as_lines: bool) -> int:
    """Set quotas: producer_byte_rate, consumer_byte_rate (bytes per second and broker), request_percentage,
    controller_mutation_rate; of an address connection_creation_rate.

    Without --apply, print what would be set; brokers check whether it can be.
    """
    wanted = dict(_quota(text) for text in settings)
    return _change(url, _named(entity), wanted, apply, as_lines)


@quotas.command(epilog=examples("odradek quotas remove producer_byte_rate --user bob --apply"))
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_of_entity
@APPLY
@JSON
@clustered
def remove(url: str, names: Sequence[str], entity: QuotaEntity, apply: bool, as_lines: bool) -> int:
    """Remove quotas. Without --apply, print what would be removed."""
    return _change(url, _named(entity), dict.fromkeys(names), apply, as_lines)


def _named(entity: QuotaEntity) -> QuotaEntity:
    if entity == QuotaEntity():
        raise click.UsageError("whose quotas? Give --user, --client-id, --ip or --default")
    return entity


def _quota(text: str) -> tuple[str, float]:
    name, value = setting(text)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise click.BadParameter(f"{text!r}: expected NAME=VALUE, a number")
    return name, number


def _change(url: str, entity: QuotaEntity, wanted: Mapping[str, float | None], apply: bool, as_lines: bool) -> int:
    async def alter() -> tuple[Quotas, Results[QuotaEntity, None]]:
        async with od.connect(url) as k:
            before = await k.admin.describe_quotas(entity, strict=True)
            return before, await k.admin.alter_quotas({entity: wanted}, validate_only=not apply)

    before, results = od.run(alter)
    known = before.get(entity, {})
    rows: Rows = [[*_row(entity), name, _whole(known.get(name)), _whole(value)] for name, value in wanted.items()]
    echo_rows([*HEAD, "before", "after"], rows if results.done else [], as_lines)
    echo_dry_run(apply or bool(results.failed), empty=unchanged(rows))
    return echo_failures(results.failed)
