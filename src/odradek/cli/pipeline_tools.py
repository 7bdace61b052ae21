"""`odradek pipeline verify|files|replay|compact|repair`: for tables that are there; none of it needs Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import odradek as od
from odradek.cli.options import CLUSTER, JSON, QUIET, examples, moment
from odradek.cli.output import echo_json, progress, table
from odradek.cli.pipeline import FILE, needing
from odradek.errors import ConfigError

if TYPE_CHECKING:
    from odradek.pipeline.config import Pipeline
    from odradek.pipeline.replay import Replay
    from odradek.pipeline.verify import VerifyResult

__all__ = ["COMMANDS"]

FLOW = click.option("--flow", "flows", multiple=True, metavar="NAME", help="Only this flow; may be given again.")
BATCH = click.option(
    "--batch",
    "numbers",
    multiple=True,
    metavar="N|A:B",
    help="Only these batches, as 7, 3:9, 3: or :9; again for others.",
)
APPLY = click.option("--apply", is_flag=True, help="Do it. Without, say what would be done.")


def _duration(text: str) -> float:
    """Seconds, from `90s`, `15m`, `12h` or `7d`. Raises click.BadParameter."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text, re.ASCII)
    if match is None:
        raise click.BadParameter(f"{text!r}: expected a time such as 90s, 15m, 12h or 7d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def _size(text: str) -> int:
    """Bytes, from `1048576`, `64k` or `1m`. Raises click.BadParameter."""
    from odradek.spark.values import parse_bytes

    try:
        return parse_bytes(text, "rate")
    except ConfigError:
        raise click.BadParameter(f"{text!r}: expected a number of bytes such as 1048576, 64k or 1m") from None


SINCE = click.option("--since", type=moment, metavar="TIME", help="Only batches committed at or after this time.")
UNTIL = click.option("--until", type=moment, metavar="TIME", help="Only batches committed before this time.")


def _load(file: str, flows: Iterable[str]) -> tuple[Pipeline, list[str]]:
    """The file, and which of its flows are meant."""
    from odradek.pipeline.config import load

    loaded = load(file)
    for name in flows:
        if name not in loaded.flows:
            raise ConfigError(f"{file}: there is no flow {name!r}; there are {', '.join(loaded.flows)}")
    return loaded, list(dict.fromkeys(flows)) or list(loaded.flows)


# ---- verify --------------------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        "odradek pipeline verify pipeline.toml",
        "odradek pipeline verify pipeline.toml --flow orders --since -24h",
        "odradek pipeline verify pipeline.toml --sample 5 --json",
    )
)
@FILE
@FLOW
@BATCH
@SINCE
@UNTIL
@click.option(
    "--sample",
    type=click.FloatRange(min=0, min_open=True, max=100),
    metavar="PERCENT",
    help="Of these batches, so many drawn at random.",
)
@JSON
@QUIET
@needing
def verify(
    file: str,
    flows: tuple[str, ...],
    numbers: tuple[str, ...],
    since: float | None,
    until: float | None,
    sample: float | None,
    as_lines: bool,
    quiet: bool,
) -> int:
    """Read the log again and prove that tables are complete; exit code 1 when they are not.

    The ledger and every file are always checked; what options choose is compared with the log: rows in the table, dead
    letters, what was skipped and what had been lost must be exactly what the log has, by position and, where the table
    keeps it (decode.kind = "raw"), by payload: the column `compared` says which. What retention has removed since
    cannot be compared, and is counted.
    """
    from odradek.pipeline.selection import select
    from odradek.pipeline.tables import batch_ranges, open_table
    from odradek.pipeline.verify import verify as check

    loaded, names = _load(file, flows)
    verdicts: list[VerifyResult] = []
    for name in names:
        there = open_table(name, loaded.flows[name])
        batches = select(there, numbers=numbers, since=since, until=until, sample=sample)
        total = sum(part.size for entry in there.appends if entry.batch in batches for part in batch_ranges(entry))
        with progress(f"{name}: bytes of log", total, quiet=quiet) as advance:
            verdict = od.run(check, loaded, there, batches, advance)
        verdicts.append(verdict)
        if as_lines:
            echo_json(verdict.as_dict())
        else:
            for finding in verdict.findings:
                click.echo(f"{name}: {finding.kind}: {finding.where}: {finding.what}")
    if not as_lines and not quiet:
        head = [
            "flow",
            "checked",
            "rows",
            "dead",
            "skipped",
            "log bytes",
            "lost before",
            "expired",
            "seconds",
            "compared",
            "result",
        ]
        click.echo(table(head, [_verdict_row(verdict) for verdict in verdicts]))
    return 0 if all(verdict.ok for verdict in verdicts) else 1


def _verdict_row(verdict: VerifyResult) -> list[object]:
    found = verdict.found
    return [
        verdict.flow, f"{verdict.batches} of {verdict.of} batches", found.rows, found.dead, found.skipped, found.size,
        verdict.gaps, found.expired, f"{verdict.seconds:.1f}", verdict.compared,
        "complete" if verdict.ok else "NOT COMPLETE",
    ]  # fmt: skip


# ---- replay --------------------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        "odradek pipeline replay pipeline.toml --topic orders-again",
        "odradek pipeline replay pipeline.toml --batch 3:9 --topic orders-again --rate 10m --apply",
        "odradek pipeline replay pipeline.toml --flow orders --cluster kafka07+zk://other:2181 --apply",
        "odradek pipeline replay pipeline.toml --dead --topic orders-retry --apply",
    )
)
@FILE
@click.option("--flow", metavar="NAME", help="Of which flow; needed when there are several.")
@BATCH
@SINCE
@UNTIL
@click.option("--topic", metavar="NAME", help="To this topic; without, each row goes to the topic that it came from.")
@CLUSTER
@click.option("--dead", is_flag=True, help="Dead letters instead of rows of the table.")
@click.option("--value", default="value", show_default=True, metavar="COLUMN", help="What is sent.")
@click.option("--key", metavar="COLUMN", help="Chooses the partition. Without, each log goes to one, in order.")
@click.option("--rate", type=_size, metavar="SIZE", help="Most bytes of payload a second, such as 10m.")
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where to write down what is confirmed. Default: in the table's directory.",
)
@APPLY
@JSON
@QUIET
@needing
def replay(
    file: str,
    flow: str | None,
    numbers: tuple[str, ...],
    since: float | None,
    until: float | None,
    topic: str | None,
    cluster: str | None,
    dead: bool,
    value: str,
    key: str | None,
    rate: int | None,
    state: Path | None,
    apply: bool,
    as_lines: bool,
    quiet: bool,
) -> int:
    """Send rows of a table to topics. At least once; run again, it goes on where it ended.

    What was confirmed is written down after every few megabytes; only what was sent when a replay was killed, and not
    confirmed yet, is sent twice. Rows of one log keep their order. The cluster is the pipeline's own unless --cluster
    says otherwise.
    """
    from odradek.pipeline.replay import ReplayProgress, plan_replay
    from odradek.pipeline.selection import select
    from odradek.pipeline.tables import open_table

    loaded, names = _load(file, [flow] if flow else [])
    if len(names) > 1:
        raise click.UsageError(f"which flow? Give --flow: {', '.join(names)}")
    url = _target(loaded, cluster, topic)
    there = open_table(names[0], loaded.flows[names[0]])
    batches = select(there, numbers=numbers, since=since, until=until)
    plan = plan_replay(there, batches=batches, topic=topic, value=value, key=key, rate=rate, target=url, dead=dead)
    done = ReplayProgress.load(state or plan.state, plan.identity)
    sent = 0
    if apply:
        with progress(f"{names[0]}: rows", plan.rows - done.rows, quiet=quiet) as advance:
            sent = od.run(_replay, plan, url, done, advance)
    _say_replay(plan, done, sent, apply, as_lines, quiet)
    return 0


async def _replay(plan: Replay, url: str, done: Any, advance: Callable[[int], None]) -> int:
    from odradek.pipeline.replay import replay as send

    async with od.connect(url) as k:
        return await send(plan, k, done, advance)


def _target(loaded: Pipeline, cluster: str | None, topic: str | None) -> str:
    from odradek.pipeline.logs import cluster_url

    own = cluster_url(loaded.source)
    url = cluster or own
    if url is None:
        raise click.UsageError("the pipeline reads log directories: give --cluster URL to send to")
    if url == own and topic is None:
        raise click.UsageError(
            "rows would go back into the topics that the pipeline reads: give --topic, or the --cluster of another"
        )
    return url


def _say_replay(plan: Replay, done: Any, sent: int, applied: bool, as_lines: bool, quiet: bool) -> None:
    told = {
        "flow": plan.table.name, "batches": len(plan.batches), "rows": plan.rows, "topic": plan.topic,
        "applied": applied, "sent": sent, "confirmed": done.rows, "ended": done.ended, "state": str(done.path),
    }  # fmt: skip
    if as_lines:
        echo_json(told)
    elif not quiet:
        where = plan.topic or "the topics they came from"
        what = "dead letters" if plan.dead else "rows"
        click.echo(f"{plan.table.name}: {plan.rows} {what} of {len(plan.batches)} batches to {where}")
        click.echo(f"{done.rows} confirmed in all, {sent} of them now; written down in {done.path}")
        if not applied:
            click.echo("nothing was sent: --apply does")


# ---- compact -------------------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        "odradek pipeline compact pipeline.toml --dry-run",
        "odradek pipeline compact pipeline.toml --delete-older-than 7d",
    )
)
@FILE
@FLOW
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--delete-older-than",
    "older_than",
    type=_duration,
    metavar="TIME",
    help="Delete files that were replaced longer ago than this, such as 12h or 7d. Without, they stay.",
)
@JSON
@QUIET
@needing
def compact(
    file: str, flows: tuple[str, ...], dry_run: bool, older_than: float | None, as_lines: bool, quiet: bool
) -> int:
    """Make few large files of many small ones, of about `sink.file_bytes`; one commit for each flow.

    Who reads the table by its ledger sees either the old files or the new ones. Old files are needed by who began to
    read before; delete them when no reader can be that old. A run cannot write the table meanwhile.
    """
    from odradek.pipeline import compact as module
    from odradek.pipeline.tables import open_table

    loaded, names = _load(file, flows)
    rows: list[list[object]] = []
    for name in names:
        flow = loaded.flows[name]
        if dry_run:
            groups = module.plan_compaction(open_table(name, flow))
            before, after, count = sum(len(group.files) for group in groups), len(groups), sum(g.rows for g in groups)
            deleted = 0
        else:
            entry = module.compact(name, flow)
            before, after = (len(entry.removed), len(entry.files)) if entry else (0, 0)
            count = entry.rows if entry else 0
            deleted = 0 if older_than is None else len(module.delete_retired(name, flow, older_than=older_than))
        rows.append([name, before, after, count, deleted])
    if as_lines:
        for row in rows:
            keys = ("flow", "files_before", "files_after", "rows", "deleted")
            echo_json({**dict(zip(keys, row, strict=True)), "applied": not dry_run})
    elif not quiet:
        click.echo(table(["flow", "files", "become", "rows", "old ones deleted"], rows))
        if dry_run:
            click.echo("nothing was changed")
    return 0


# ---- repair --------------------------------------------------------------------------------------------------


@click.command(
    epilog=examples("odradek pipeline repair pipeline.toml", "odradek pipeline repair pipeline.toml --apply")
)
@FILE
@FLOW
@APPLY
@JSON
@QUIET
@needing
def repair(file: str, flows: tuple[str, ...], apply: bool, as_lines: bool, quiet: bool) -> int:
    """Make lost checkpoints of the ledger, and remove files that were never committed.

    After it, `run` goes on exactly behind the newest commit. A checkpoint that does not fit is kept under another name.
    Without --apply, it only says what it would do; exit code 1 then when there is something.
    """
    from odradek.pipeline.repair import plan_repair
    from odradek.pipeline.repair import repair as mend

    loaded, names = _load(file, flows)
    needed = False
    for name in names:
        plan = mend(loaded, name) if apply else plan_repair(loaded, name)
        needed |= plan.needed
        if as_lines:
            told = asdict(plan) | {
                "checkpoint": str(plan.checkpoint), "orphans": [str(path) for path in plan.orphans],
                "entry": plan.entry.batch if plan.entry else None, "applied": apply,
            }  # fmt: skip
            echo_json(told)
        elif not quiet:
            _say_repair(plan, apply)
    return 1 if needed and not apply else 0


def _say_repair(plan: Any, applied: bool) -> None:
    did, removed = ("made", "removed") if applied else ("would be made", "would be removed")
    if plan.entry is not None:
        after = f"batch {plan.entry.batch} of the ledger, micro-batch {plan.entry.micro_batch}"
        click.echo(f"{plan.flow}: {plan.checkpoint}: {plan.why}; a new one {did}, to go on behind {after}")
    for path in plan.orphans:
        click.echo(f"{plan.flow}: {path}: no entry lists it; {removed}")
    if not plan.needed:
        click.echo(f"{plan.flow}: nothing to repair")
    elif not applied:
        click.echo(f"{plan.flow}: nothing was changed: --apply does")


# ---- files ---------------------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        "odradek pipeline files pipeline.toml",
        "odradek pipeline files pipeline.toml --flow orders --batch 17:",
        "odradek pipeline files pipeline.toml --since -24h --json",
    )
)
@FILE
@FLOW
@BATCH
@SINCE
@UNTIL
@JSON
@needing
def files(
    file: str,
    flows: tuple[str, ...],
    numbers: tuple[str, ...],
    since: float | None,
    until: float | None,
    as_lines: bool,
) -> int:
    """Print the files in which a table's rows are now: all of them, or those of some batches.

    With --json, a line for each file has the table's partition that it is in, its rows, and its smallest and largest
    record time in seconds since the epoch.
    """
    from odradek.pipeline.selection import select
    from odradek.pipeline.tables import open_table

    loaded, names = _load(file, flows)
    for name in names:
        there = open_table(name, loaded.flows[name])
        for each in there.files_of(select(there, numbers=numbers, since=since, until=until)):
            place = str(there.root / each.path)
            if as_lines:
                echo_json({"flow": name, **asdict(each), "path": place})
            else:
                click.echo(place)
    return 0


COMMANDS = (verify, files, replay, compact, repair)
"""For the group `pipeline`."""
