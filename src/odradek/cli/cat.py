"""`odradek cat`: messages to standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import click

import odradek as od
from odradek.cli.arrow_output import OUTPUT, write_tables
from odradek.cli.cluster_queries import find_partitions, last_records, message_limit
from odradek.cli.options import (
    COUNT,
    FORMAT,
    JSON,
    MAX_MESSAGE,
    TOPIC,
    Last,
    clustered,
    examples,
    one_topic,
    start_position,
)
from odradek.cli.output import Render, formatter, json_line, progress
from odradek.types import Record, StartPosition

__all__ = ["cat"]


class _RecordPrinter(NamedTuple):
    """Prints records.

    Args:
        render: Makes bytes of a record.
        limit: Maximum number of records, or None for all.
        unbuffered: Flush after each.
    """

    render: Render
    limit: int | None
    unbuffered: bool

    def write(self, records: Iterable[Record], printed: int) -> int:
        """Print records up to the limit; return how many are printed in total, `printed` of them before."""
        out = sys.stdout.buffer
        for record in islice(records, None if self.limit is None else self.limit - printed):
            out.write(self.render(record))
            printed += 1
            if self.unbuffered:
                out.flush()
        out.flush()
        return printed

    def is_done(self, printed: int) -> bool:
        return self.limit is not None and printed >= self.limit


@click.command(
    epilog=examples(
        "odradek cat orders",
        "odradek cat orders -o -10 -F",
        "odradek cat orders -p 1-0 -o 4096 -c 1 --json",
        "odradek cat orders -o @-15m -f '%T %p %o %k %h %s\\n'",
        "odradek cat orders -G billing",
        "odradek cat orders -O parquet > orders.parquet",
    )
)
@click.argument("topic", required=False)
@TOPIC
@click.option("--partition", "-p", metavar="[BROKER-]N", help="Only this partition; without BROKER, on every broker.")
@click.option(
    "--offset",
    "-o",
    default="beginning",
    show_default=True,
    metavar="POSITION",
    help="First position: beginning, end, a number, -N (the last N messages of each partition), @TIME.",
)
@click.option("--follow", "-F", is_flag=True, help="Do not stop at the end; wait for new messages.")
@click.option("--exit", "-e", "at_end", is_flag=True, help="Stop at the end (the default; for users of kcat).")
@click.option("--group", "-G", metavar="GROUP", help="Read as a member of this group, commit, and do not stop.")
@click.option("--delimiter", "-D", default="\\n", metavar="TEXT", help="Text after each message (default: newline).")
@click.option("--key-separator", "-K", metavar="TEXT", help="Print the key and this text before each message.")
@click.option("--null", "-Z", "show_null", is_flag=True, help="Print a key or value that is null as NULL.")
@click.option("--unbuffered", "-u", is_flag=True, help="Flush after every message.")
@FORMAT
@OUTPUT
@COUNT
@MAX_MESSAGE
@JSON
@clustered
def cat(
    url: str,
    topic: str | None,
    named: str | None,
    partition: str | None,
    offset: str,
    follow: bool,
    at_end: bool,
    group: str | None,
    delimiter: str,
    key_separator: str | None,
    show_null: bool,
    unbuffered: bool,
    format: str | None,
    output: str | None,
    count: int | None,
    max_message_bytes: int | None,
    as_lines: bool,
) -> int:
    """Print the messages of TOPIC, from the beginning to its current end.

    Partitions are read concurrently: messages are in order within each partition.
    """
    if follow and at_end:
        raise click.UsageError("--follow and --exit exclude each other")
    if group is not None and (partition is not None or offset != "beginning"):
        raise click.UsageError("--group cannot be combined with -p and -o: the group assigns partitions and positions")
    name = one_topic(topic, named)
    request = _ReadRequest(name, partition, start_position(offset), follow, max_message_bytes)
    if output is not None:
        if as_lines or format is not None or group is not None or isinstance(request.start, Last):
            raise click.UsageError("--output cannot be combined with --json, --format, --group or -o -N")
        return od.run(_cat_tables, url, request, output, count)
    render: Render = json_line if as_lines else _renderer(format, delimiter, key_separator, show_null)
    printer = _RecordPrinter(render, count, unbuffered)
    if group is not None:
        return od.run(_cat_group, url, request, group, printer)
    return od.run(_cat, url, request, printer)


def _renderer(format: str | None, delimiter: str, key_separator: str | None, show_null: bool) -> Render:
    key = "" if key_separator is None else "%k" + key_separator.replace("%", "%%")
    return formatter(format or key + "%s" + delimiter.replace("%", "%%"), show_null=show_null)


class _ReadRequest(NamedTuple):
    """The messages to read."""

    topic: str
    partition: str | None
    start: StartPosition | Last
    follow: bool
    max_message_bytes: int | None

    def limit(self, k: od.Cluster) -> int:
        """Return the size limit of a message (bytes)."""
        return message_limit(k, self.max_message_bytes, 4 * od.MiB)


async def _cat(url: str, request: _ReadRequest, printer: _RecordPrinter) -> int:
    async with od.connect(url) as k:
        partitions = await find_partitions(k, request.topic, request.partition)
        if isinstance(request.start, Last):
            return await _cat_last(k, request, partitions, request.start.messages, printer)
        async with _reader(k, request, partitions, request.start) as r:
            await _print(r, printer, 0)
    return 0


async def _cat_tables(url: str, request: _ReadRequest, output: str, count: int | None) -> int:
    assert not isinstance(request.start, Last)
    async with od.connect(url) as k:
        partitions = await find_partitions(k, request.topic, request.partition)
        async with _reader(k, request, partitions, request.start) as r:
            await write_tables(r.arrow(max_wait=1.0), output, count)
    return 0


def _reader(
    k: od.Cluster, request: _ReadRequest, partitions: Sequence[od.TopicPartition], start: StartPosition
) -> od.Reader:
    # A reader of a topic, rather than of partitions, also reads partitions that appear later.
    topics = request.topic if request.partition is None else dict.fromkeys(partitions, start)
    until = None if request.follow else od.LATEST
    return k.reader(topics, start=start, until=until, max_message_bytes=request.limit(k))


async def _cat_last(
    k: od.Cluster, request: _ReadRequest, partitions: Sequence[od.TopicPartition], count: int, printer: _RecordPrinter
) -> int:
    ends, printed = {}, 0
    for partition in partitions:
        records, ends[partition] = await last_records(k, partition, count, request.limit(k))
        printed = printer.write(records, printed)
    if request.follow and not printer.is_done(printed):
        async with k.reader(ends, max_message_bytes=request.limit(k)) as r:
            await _print(r, printer, printed)
    return 0


async def _print(r: od.Reader, printer: _RecordPrinter, printed: int) -> None:
    with progress("reading", None, quiet=sys.stdout.isatty()) as advance:
        async for batch in r.batches():
            advance(len(batch))
            printed = printer.write(batch, printed)
            if printer.is_done(printed):
                return


async def _cat_group(url: str, request: _ReadRequest, group: str, printer: _RecordPrinter) -> int:
    printed = 0
    async with od.connect(url) as k, k.consumer(request.topic, group=group, max_message_bytes=request.limit(k)) as c:
        async for record in c:
            printed = printer.write([record], printed)
            if printer.is_done(printed):
                break
    return 0
