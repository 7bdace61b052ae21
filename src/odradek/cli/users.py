"""`odradek users`: users that log in by SCRAM."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import click

import odradek as od
from odradek.cli.admin import Rows, ask, echo_dry_run
from odradek.cli.options import APPLY, JSON, clustered, examples
from odradek.cli.output import echo_failures, echo_rows
from odradek.cli.profiles import read_secret
from odradek.core.admin_access import ScramPassword

__all__ = ["users"]

PASSWORD = "ODRADEK_NEW_PASSWORD"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@click.group(
    epilog=examples(
        "odradek users list",
        "odradek users set bob --apply",
        "odradek users remove bob --apply",
        "odradek users list --json | jq -r .user",
    )
)
def users() -> None:
    """List users that log in by SCRAM, set and remove their passwords (2.7 and later; in KRaft mode 3.5)."""


@users.command(name="list", epilog=examples("odradek users list", "odradek users list bob --json"))
@click.argument("names", nargs=-1, metavar="[USER]...")
@JSON
@clustered
def list_users(url: str, names: Sequence[str], as_lines: bool) -> int:
    """List USERs, or all that have a password, and for which mechanisms it is."""
    described = ask(url, lambda admin: admin.describe_users(names or None))
    rows: Rows = [[user, *each] for user, passwords in sorted(described.done.items()) for each in passwords]
    echo_rows(["user", "mechanism", "iterations"], rows, as_lines)
    return echo_failures(described.failed)


@users.command(
    name="set",
    epilog=examples(
        "odradek users set bob",
        "odradek users set bob --password-file bob.txt --apply",
        f"{PASSWORD}=$(pwgen 32 1) odradek users set bob --mechanism SCRAM-SHA-256 --apply",
    ),
)
@click.argument("user", metavar="USER")
@click.option(
    "--mechanism", type=click.Choice(MECHANISMS, case_sensitive=False), default=MECHANISMS[-1], show_default=True
)
@click.option("--iterations", type=click.IntRange(4096, 16384), default=8192, show_default=True, metavar="N")
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help=f"The password; without it, it is taken from {PASSWORD}, or asked for.",
)
@APPLY
@JSON
@clustered
def set_password(
    url: str, user: str, mechanism: str, iterations: int, password_file: str | None, apply: bool, as_lines: bool
) -> int:
    """Set the password of USER, who need not exist. That for the other mechanism stays.

    It is hashed here: brokers do not get it. Without --apply, print what would be set.
    """
    before = _passwords(url, [user])[user]
    if apply:
        password = _password(password_file)
        results = ask(
            url, lambda admin: admin.set_passwords({user: password}, mechanism=mechanism, iterations=iterations)
        )
        results.check()
    known = next((each.iterations for each in before if each.mechanism == mechanism), None)
    echo_rows(
        ["user", "mechanism", "iterations_before", "iterations"], [[user, mechanism, known, iterations]], as_lines
    )
    echo_dry_run(apply)
    return 0


def _passwords(url: str, names: Sequence[str]) -> Mapping[str, Sequence[ScramPassword]]:
    """Return what passwords users have; none of those that do not exist."""
    described = ask(url, lambda admin: admin.describe_users(names))
    for error in described.failed.values():
        if not (isinstance(error, od.BrokerError) and error.name == "RESOURCE_NOT_FOUND"):
            raise error
    return {name: described.done.get(name, ()) for name in names}


def _password(file: str | None) -> str:
    if file is not None:
        return read_secret(file)
    if password := os.environ.get(PASSWORD):
        return password
    if not _is_terminal():
        raise click.UsageError(f"no password: give --password-file FILE, or set {PASSWORD}; or run it on a terminal")
    typed: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return typed


def _is_terminal() -> bool:
    return sys.stdin.isatty()


@users.command(
    epilog=examples("odradek users remove bob", "odradek users remove bob --mechanism SCRAM-SHA-256 --apply")
)
@click.argument("names", nargs=-1, required=True, metavar="USER...")
@click.option("--mechanism", type=click.Choice(MECHANISMS, case_sensitive=False), help="Default: all that there are.")
@APPLY
@JSON
@clustered
def remove(url: str, names: Sequence[str], mechanism: str | None, apply: bool, as_lines: bool) -> int:
    """Remove the passwords of USERs: they cannot log in by SCRAM any more. Connections that they have stay.

    Without --apply, print what would be removed.
    """
    present = {
        (name, each.mechanism)
        for name, passwords in _passwords(url, names).items()
        for each in passwords
        if mechanism in (None, each.mechanism)
    }
    failed: dict[object, od.OdradekError] = {}
    for each in MECHANISMS if apply else ():
        owners = sorted(name for name, kind in present if kind == each)
        if owners:
            results = ask(url, lambda admin: admin.delete_passwords(owners, mechanism=each))  # noqa: B023 - awaited here
            failed |= {(name, each): error for name, error in results.failed.items()}
    rows: Rows = [[*pair, apply] for pair in sorted(present) if pair not in failed]
    echo_rows(["user", "mechanism", "removed"], rows, as_lines)
    echo_dry_run(apply, "removed", empty=not rows)
    without = sorted(set(names) - {name for name, _ in present})
    for name in without:
        click.echo(f"odradek: {name}: there is no such password", err=True)
    return echo_failures(failed) or int(bool(without))
