"""`odradek acl`: lists, adds and removes entries of access control."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import product
from typing import Any, TypeVar

import click

import odradek as od
from odradek.cli.admin import Rows, ask, echo_dry_run
from odradek.cli.options import APPLY, JSON, clustered, examples
from odradek.cli.output import echo_failures, echo_rows
from odradek.core.admin import Results
from odradek.core.admin_access import Acl, AclFilter, AclOperation, AclPattern, AclPermission, AclResource

__all__ = ["acl"]

E = TypeVar("E", bound=IntEnum)
HEAD = ["principal", "permission", "operation", "resource", "name", "pattern", "host"]
WHOLE_CLUSTER = "kafka-cluster"


@click.group(
    epilog=examples(
        "odradek acl list --resource topic:orders --pattern match",
        "odradek acl add -p User:bob -o read -o describe -r topic:orders --apply",
        "odradek acl add -p User:bob -o read -r group:billing- --pattern prefixed --apply",
        "odradek acl remove -p User:bob --json",
    )
)
def acl() -> None:
    """List, add and remove entries of access control (0.11 and later; patterns 2.0 and later)."""


def _names(kind: type[E]) -> list[str]:
    """Return the names of what entries can have."""
    return [each.name.lower() for each in kind if each.name not in ("UNKNOWN", "ANY", "MATCH")]


def _entry_options(*, several: bool) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add the options that say which entries are meant.

    Args:
        several: True if there may be several principals, operations and resources.
    """
    many = " Several are possible." if several else ""
    options = (
        click.option("--principal", "-p", multiple=several, metavar="TYPE:NAME", help=f"Who: User:bob.{many}"),
        click.option(
            "--operation",
            "-o",
            multiple=several,
            type=click.Choice(_names(AclOperation), case_sensitive=False),
            metavar="OPERATION",
            help=f"What they do: {', '.join(_names(AclOperation))}.{many}",
        ),
        click.option(
            "--resource",
            "-r",
            multiple=several,
            metavar="TYPE:NAME",
            help=f"{', '.join(_names(AclResource))}: topic:orders, or cluster alone.{many}",
        ),
        click.option("--host", metavar="ADDRESS", help="Where they connect from; * is anywhere."),
        click.option("--permission", type=click.Choice(_names(AclPermission)), help="Whether they may."),
    )

    def add(command: Callable[..., int]) -> Callable[..., int]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


_PATTERN = click.option(
    "--pattern",
    type=click.Choice([*_names(AclPattern), "match"]),
    help="How entries name resources; match: those that concern a resource of this name.",
)


def _filter(options: dict[str, Any]) -> AclFilter:
    resource, name = AclResource.ANY, None
    if options["resource"] is not None:
        resource, name = _resource(options["resource"])
    return AclFilter(
        resource,
        name,
        options["principal"],
        _member(AclOperation, options["operation"]),
        _member(AclPermission, options["permission"]),
        options["host"],
        _member(AclPattern, options["pattern"]),
    )


def _member(kind: type[E], name: str | None) -> E:
    return kind[(name or "any").upper()]


def _resource(text: str) -> tuple[AclResource, str | None]:
    """Return type and name of a resource; None: no matter which. An empty name is none of them."""
    kind, mark, name = text.partition(":")
    kind = kind.lower().replace("-", "_")
    if kind not in _names(AclResource):
        raise click.BadParameter(f"{text!r}: the type must be one of {', '.join(_names(AclResource))}")
    if mark and not name:
        raise click.BadParameter(f"{text!r}: the name is empty")
    if kind == "cluster" and name not in ("", WHOLE_CLUSTER):
        raise click.BadParameter(f"{text!r}: the only name of a cluster is {WHOLE_CLUSTER}, which cluster alone means")
    return AclResource[kind.upper()], name or (WHOLE_CLUSTER if kind == "cluster" else None)


def _row(entry: Acl) -> list[object]:
    return [
        entry.principal,
        entry.permission.name.lower(),
        entry.operation.name.lower(),
        entry.resource.name.lower(),
        entry.name,
        entry.pattern.name.lower(),
        entry.host,
    ]


@acl.command(name="list", epilog=examples("odradek acl list", "odradek acl list --principal User:bob --json"))
@_entry_options(several=False)
@_PATTERN
@JSON
@clustered
def list_entries(url: str, as_lines: bool, **options: Any) -> int:
    """List entries: all, or those that have what the options say."""
    which = _filter(options)
    echo_rows(HEAD, [_row(entry) for entry in ask(url, lambda admin: admin.describe_acls(which))], as_lines)
    return 0


@acl.command(
    epilog=examples(
        "odradek acl add -p User:bob -o read -o describe -r topic:orders -r group:billing --apply",
        "odradek acl add -p User:eve -o all -r cluster --permission deny --apply",
    )
)
@_entry_options(several=True)
@click.option(
    "--pattern",
    type=click.Choice(_names(AclPattern)),
    default="literal",
    help="prefixed: the name is the beginning of names (2.0 and later).",
)
@APPLY
@JSON
@clustered
def add(
    url: str,
    principal: Sequence[str],
    operation: Sequence[str],
    resource: Sequence[str],
    host: str | None,
    permission: str | None,
    pattern: str,
    apply: bool,
    as_lines: bool,
) -> int:
    """Add an entry for each principal, operation and resource. One that exists stays.

    Without --apply, print what would be added.
    """
    if not (principal and operation and resource):
        raise click.UsageError("--principal, --operation and --resource are required")
    if wrong := [who for who in principal if not all(who.partition(":"))]:
        raise click.BadParameter(f"{wrong[0]!r}: expected TYPE:NAME, such as User:bob", param_hint="--principal")
    entries = [
        Acl(
            *_whole(name),
            who,
            _member(AclOperation, what),
            _member(AclPermission, permission or "allow"),
            host or "*",
            _member(AclPattern, pattern),
        )
        for who, what, name in product(principal, operation, resource)
    ]
    failed: dict[Acl, od.OdradekError] = {}
    present: Sequence[Acl] = ()
    if apply:
        failed |= ask(url, lambda admin: admin.create_acls(entries)).failed
    else:
        which = AclFilter(pattern=entries[0].pattern)
        present = ask(url, lambda admin: admin.describe_acls(which))  # raises where there can be none
    echo_rows(HEAD, [_row(entry) for entry in entries if entry not in failed], as_lines)
    echo_dry_run(apply, "added", empty=set(entries) <= set(present))
    return echo_failures(failed)


def _whole(text: str) -> tuple[AclResource, str]:
    kind, name = _resource(text)
    if name is None:
        raise click.BadParameter(f"{text!r}: expected TYPE:NAME")
    return kind, name


@acl.command(
    epilog=examples(
        "odradek acl remove -p User:bob",
        "odradek acl remove -p User:bob -r topic:orders --apply",
    )
)
@_entry_options(several=False)
@_PATTERN
@APPLY
@JSON
@clustered
def remove(url: str, apply: bool, as_lines: bool, **options: Any) -> int:
    """Remove all entries that have what the options say. Without --apply, print them.

    A resource that is named is taken literally, unless --pattern says otherwise.
    """
    if not any(value for name, value in options.items() if name != "pattern"):
        raise click.UsageError("which entries? Give --principal, --operation, --resource, --host or --permission")
    if options["pattern"] is None and ":" in (options["resource"] or ""):
        options["pattern"] = "literal"
    which = _filter(options)
    failed: dict[Acl, od.OdradekError] = {}
    if apply:
        removed: Results[Acl, None] = ask(url, lambda admin: admin.delete_acls(which)).check()[which]
        entries, failed = list(removed.done), dict(removed.failed)
    else:
        entries = list(ask(url, lambda admin: admin.describe_acls(which)))
    rows: Rows = sorted((_row(entry) for entry in entries), key=str)
    echo_rows(HEAD, rows, as_lines)
    echo_dry_run(apply, "removed", empty=not rows)
    return echo_failures(failed)
