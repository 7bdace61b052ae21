"""`odradek mirror verify`: compare what was copied with the source."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

import odradek as od
from odradek.cli.mirror.options import FILE, needs_mirror
from odradek.cli.options import JSON, QUIET, examples
from odradek.cli.output import echo_json, progress, table

if TYPE_CHECKING:
    from odradek.mirror.verify import VerifiedMirror
    from odradek.mirror.verify_partition import VerifiedPartition
    from odradek.mirror.verify_rule import DividedTopic

__all__ = ["verify"]

HEAD = ("topic", "partition", "copied", "compared", "not compared", "result")
TOPICS_HEAD = ("topic", "copied", "on the source", "on the target", "result")


@click.command(
    epilog=examples(
        "odradek mirror verify leave07.toml",
        "odradek mirror verify leave07.toml --state verify.json --page verify.html",
    )
)
@FILE
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="File that remembers how far the comparison is, so that one that was interrupted goes on.",
)
@click.option(
    "--page", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH", help="Write a page with the result."
)
@JSON
@QUIET
@needs_mirror
def verify(file: str, state: Path | None, page: Path | None, as_lines: bool, quiet: bool) -> int:
    """Compare all records that were copied, in order: keys, values, headers and timestamps. Both sides may change
    meanwhile.

    The exit code is 1 if there is a difference; the first one of each partition is printed. What one side has deleted
    cannot be compared, and is counted. Where topics.partition_by is a key or a function, records of partitions are
    compared whatever their order, and the mirror must not run meanwhile.
    """
    from odradek.mirror.config import load
    from odradek.mirror.verify import verify as compare
    from odradek.mirror.verify_page import verify_page

    seen: dict[object, int] = {}
    with progress("records compared", None, quiet=quiet) as advance:

        def compared(partition: VerifiedPartition) -> None:
            advance(partition.compared - seen.get(partition.source, 0))
            seen[partition.source] = partition.compared

        result = od.run(partial(compare, load(file), state=state, progress=compared))
    if page is not None:
        page.write_text(verify_page(result), "utf-8")
    _print(result, as_lines, quiet)
    return int(not result.equal)


def _print(result: VerifiedMirror, as_lines: bool, quiet: bool) -> None:
    for partition in result.partitions:
        if as_lines:
            echo_json({**asdict(partition), "equal": partition.equal})
        elif partition.error or partition.difference is not None:
            click.echo(f"{partition.source}: {partition.error or _difference(partition)}")
    for topic in result.topics:
        if as_lines:
            echo_json({**asdict(topic), "equal": topic.equal})
        elif not topic.equal:
            click.echo(f"{topic.source}: {topic.error or _different(topic)}")
    if not as_lines and not quiet and result.partitions:
        click.echo(table(HEAD, [_row(partition) for partition in result.partitions]))
    if not as_lines and not quiet and result.topics:
        click.echo(table(TOPICS_HEAD, [_topic_row(topic) for topic in result.topics]))


def _different(topic: DividedTopic) -> str:
    numbers = ", ".join(map(str, topic.different))
    return f"these partitions of the target have not exactly the records that the rule says: {numbers}"


def _topic_row(topic: DividedTopic) -> list[object]:
    result = "equal, whatever the order" if topic.equal else "DIFFERENT"
    return [topic.source, topic.copied, topic.source_records, topic.target_records, result]


def _difference(partition: VerifiedPartition) -> str:
    first = partition.difference
    assert first is not None
    where = f"position {first.position} of the source, offset {first.offset} of the target"
    return f"{first.kind}: {where}: source: {first.source or 'none'}; target: {first.target or 'none'}"


def _row(partition: VerifiedPartition) -> list[object]:
    result = "equal" if partition.equal else "DIFFERENT"
    return [
        partition.source.topic, partition.source.name, partition.copied, partition.compared, partition.not_compared,
        result,
    ]  # fmt: skip
