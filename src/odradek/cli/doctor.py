"""`odradek doctor`: what may be wrong with a cluster; `odradek explain`: what an error means."""

from __future__ import annotations

from dataclasses import asdict

import click

import odradek as od
from odradek.cli.options import JSON, clustered, examples
from odradek.cli.output import echo_json, echo_rows
from odradek.doctor import CAUSES, Report, examine
from odradek.doctor import explain as explain_name

__all__ = ["doctor", "explain"]


@click.command(
    epilog=examples(
        "odradek doctor",
        "odradek doctor --group billing",
        "odradek doctor --topic orders --client-id invoices",
        "odradek doctor --json | jq -r .cause",
    )
)
@click.option("--group", "-g", metavar="GROUP", help="Examine this group, its positions and their topics as well.")
@click.option("--topic", "-t", metavar="TOPIC", help="Examine this topic as well.")
@click.option("--client-id", default="odradek", metavar="ID", help="Show the quotas of this client id.")
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=12.0,
    metavar="S",
    help="Observe group and topic for this time: at least twice the time between two commits. Default: 12.",
)
@JSON
@clustered
def doctor(url: str, group: str | None, topic: str | None, client_id: str, seconds: float, as_lines: bool) -> int:
    """Find out why a cluster cannot be reached, a group rebalances or falls behind, or a producer is slow.

    Prints causes, each with evidence and remedy, the worst first. Exits with 1 if something is wrong.
    """

    async def main() -> Report:
        return await examine(url, client_id=client_id, topic=topic, group=group, seconds=seconds)

    report = od.run(main)
    for finding in report.findings:
        if as_lines:
            echo_json(asdict(finding))
        else:
            click.echo(f"{finding.severity}: {finding.cause}\n  {finding.evidence}\n  remedy: {finding.remedy}")
    if not as_lines:
        count = len(report.findings)
        click.echo(f"{count} finding{'s' * (count != 1)}; checked: {', '.join(report.checked)}")
    for name, why in report.skipped.items():
        click.echo(f"not checked: {name}: {why}", err=True)
    return 0 if report.healthy else 1


@click.command(
    epilog=examples(
        "odradek explain",
        "odradek explain tls-expected",
        "odradek explain Unreachable",
        "odradek explain 19",
        "odradek explain NOT_ENOUGH_REPLICAS --json",
    )
)
@click.argument("name", required=False)
@JSON
def explain(name: str | None, as_lines: bool) -> int:
    """Explain NAME: a cause that `doctor` names, an error of odradek, or an error code of brokers.

    Without NAME, list the causes.
    """
    if name is None:
        echo_rows(["cause", "severity", "meaning"], [[cause, *each[:2]] for cause, each in CAUSES.items()], as_lines)
    elif as_lines:
        echo_json(explain_name(name)._asdict())
    else:
        explained = explain_name(name)
        click.echo(
            f"{explained.name}\n  {explained.meaning}" + (f"\n  remedy: {explained.remedy}" * bool(explained.remedy))
        )
    return 0
