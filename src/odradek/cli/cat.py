"""`odradek cat`: messages to standard output."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple, cast

import click

import odradek as od
from odradek.cli.arrow_output import OUTPUT, write_tables
from odradek.cli.cat_records import FILTERS, RecordPrinter, record_filter
from odradek.cli.cluster_queries import beyond_end, find_partitions, find_topics, last_records, message_limit
from odradek.cli.json_records import ENCODERS, ENCODING, json_line
from odradek.cli.options import COUNT, FORMAT, JSON, MAX_MESSAGE, Last, clustered, examples, start_position
from odradek.cli.output import Render, formatter, progress
from odradek.client.options import Isolation
from odradek.serde import Field
from odradek.types import StartPosition

__all__ = ["cat"]


@click.command(
    epilog=examples(
        "odradek cat orders",
        "odradek cat orders payments '^audit-' --json",
        "odradek cat orders -o -10 -F",
        "odradek cat orders -p 1-0 -o 4096 -c 1 --json",
        "odradek cat orders -o @-15m --until @-5m -f '%T %p %o %k %h %s\\n'",
        "odradek cat orders --key customer-7 --grep refund",
        "odradek cat orders --registry http://localhost:8081 --json | jq .value.price",
        "odradek cat orders -G billing",
        "odradek cat orders -O parquet > orders.parquet",
    )
)
@click.argument("words", nargs=-1, metavar="TOPIC...")
@click.option(
    "--topic", "-t", "named", multiple=True, metavar="TOPIC", help="A topic, as an option (for users of kcat)."
)
@click.option("--partition", "-p", metavar="[BROKER-]N", help="Only this partition; without BROKER, on every broker.")
@click.option(
    "--offset",
    "-o",
    default="beginning",
    show_default=True,
    metavar="POSITION",
    help="First position: beginning, end, a number, -N (the last N messages of each partition), @TIME.",
)
@click.option(
    "--until",
    metavar="POSITION",
    help="Stop before this position, a number or @TIME: before the first message of that time or later. Never behind "
    "the end that each partition has at the start, which is the default.",
)
@click.option("--follow", "-F", is_flag=True, help="Do not stop at the end; wait for new messages.")
@click.option("--exit", "-e", "at_end", is_flag=True, help="Stop at the end (the default; for users of kcat).")
@click.option("--group", "-G", metavar="GROUP", help="Read as a member of this group, commit, and do not stop.")
@click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="read_committed: without messages of transactions that were aborted or are open (0.11 and later).",
)
@FILTERS
@click.option(
    "--registry",
    metavar="URL",
    help="Print values as JSON, by their schemas in this registry: Avro, Protobuf, JSON Schema. URL may have "
    "USER:PASSWORD@. Needs odradek[registry].",
)
@click.option("--registry-keys", is_flag=True, help="With --registry: keys, too.")
@click.option("--delimiter", "-D", default="\\n", metavar="TEXT", help="Text after each message (default: newline).")
@click.option("--key-separator", "-K", metavar="TEXT", help="Print the key and this text before each message.")
@click.option("--null", "-Z", "show_null", is_flag=True, help="Print a key or value that is null as NULL.")
@click.option("--unbuffered", "-u", is_flag=True, help="Flush after every message.")
@ENCODING
@FORMAT
@OUTPUT
@COUNT
@MAX_MESSAGE
@JSON
@clustered
def cat(
    url: str,
    words: tuple[str, ...],
    named: tuple[str, ...],
    partition: str | None,
    offset: str,
    until: str | None,
    follow: bool,
    at_end: bool,
    group: str | None,
    isolation: Isolation,
    grep: str | None,
    key: str | None,
    headers: tuple[str, ...],
    registry: str | None,
    registry_keys: bool,
    delimiter: str,
    key_separator: str | None,
    show_null: bool,
    unbuffered: bool,
    encoding: str,
    format: str | None,
    output: str | None,
    count: int | None,
    max_message_bytes: int | None,
    as_lines: bool,
) -> int:
    """Print the messages of TOPICs, from the beginning to their current ends.

    A TOPIC that begins with ^ is a regular expression, and stands for all topics of that kind that there are now.
    Partitions are read concurrently: messages are in order within each partition. Of later messages than those that are
    printed, it keeps up to 64 MiB and one message in memory. The exit code is 1 if a message could not be decoded by
    --registry.
    """
    end = None if until is None else start_position(until)
    request = _ReadRequest(
        (*words, *named), partition, start_position(offset), end, follow, max_message_bytes, isolation
    )
    request.check(group, at_end)
    chosen = record_filter(grep, key, headers)
    if registry_keys and registry is None:
        raise click.UsageError("--registry-keys needs --registry")
    fields: list[Field] = [] if registry is None else ["value", "key"] if registry_keys else ["value"]
    if output is not None:
        if as_lines or format is not None or group is not None or chosen or fields or isinstance(request.start, Last):
            raise click.UsageError(
                "--output cannot be combined with --json, --format, --group, -o -N, --registry, --grep, --key, --header"
            )
        return od.run(_cat_tables, url, request, output, count)

    def render_json(record: od.Record) -> bytes:
        return json_line(record, encoding, fields)

    render: Render = render_json if as_lines else _renderer(format, delimiter, key_separator, show_null, encoding)
    printer = RecordPrinter(render, count, unbuffered, chosen)
    decoding = None if registry is None else (registry, fields)
    od.run(_cat if group is None else _cat_group, url, request, printer, decoding, *([] if group is None else [group]))
    return 1 if printer.undecoded else 0


def _renderer(format: str | None, delimiter: str, key_separator: str | None, show_null: bool, encoding: str) -> Render:
    key = "" if key_separator is None else "%k" + key_separator.replace("%", "%%")
    text = format or key + "%s" + delimiter.replace("%", "%%")
    return formatter(text, show_null=show_null, encode=ENCODERS[encoding])


class _ReadRequest(NamedTuple):
    """The messages to read."""

    words: Sequence[str]
    partition: str | None
    start: StartPosition | Last
    until: StartPosition | Last | None
    follow: bool
    max_message_bytes: int | None
    isolation: Isolation

    @property
    def patterns(self) -> list[str]:
        """The words that are regular expressions."""
        return [word for word in self.words if word.startswith("^")]

    def check(self, group: str | None, at_end: bool) -> None:
        """Raise click.UsageError if this cannot be read."""
        if not self.words:
            raise click.UsageError("at least one TOPIC is required")
        for word in self.patterns:
            try:
                re.compile(word)
            except (re.error, RecursionError, OverflowError) as error:
                raise click.BadParameter(f"{word!r}: not a regular expression: {error}", param_hint="TOPIC") from None
        if self.follow and (at_end or self.until is not None):
            raise click.UsageError("--follow cannot be combined with --exit and --until")
        if isinstance(self.until, Last) or (self.until is not None and isinstance(self.start, Last)):
            raise click.UsageError("--until takes end, a number or @TIME, and cannot be combined with -o -N")
        if group is not None and (self.partition, self.start, self.until) != (None, od.EARLIEST, None):
            raise click.UsageError(
                "--group cannot be combined with -p, -o and --until: the group assigns partitions and positions"
            )
        if group is not None and self.patterns and len(self.words) > 1:
            raise click.UsageError("--group takes names of topics, or one regular expression")

    def limit(self, k: od.Cluster) -> int:
        """Return the size limit of a message (bytes)."""
        return message_limit(k, self.max_message_bytes, 4 * od.MiB)


async def _find(k: od.Cluster, request: _ReadRequest) -> tuple[list[str], list[od.TopicPartition]]:
    """Return the topics, and those of their partitions that are read. Raises click.ClickException."""
    topics = await find_topics(k, request.words)
    partitions = [p for topic in topics for p in await find_partitions(k, topic, request.partition)]
    if beyond := await beyond_end(k, dict.fromkeys(partitions, request.start)):
        raise click.ClickException(
            "; ".join(f"{p}: {request.start} is beyond the end, {end}" for p, end in beyond.items())
        )
    return topics, partitions


Decoding = tuple[str, Sequence[Field]] | None
"""The URL of a registry, and what is decoded by it."""


@asynccontextmanager
async def _open(url: str, printer: RecordPrinter, decoding: Decoding) -> AsyncIterator[od.Cluster]:
    async with AsyncExitStack() as stack:
        if decoding is not None:
            from odradek.cli.registry_values import record_decoder

            printer.decode = await stack.enter_async_context(record_decoder(*decoding))
        k = await stack.enter_async_context(od.connect(url))
        if printer.chosen is not None:
            printer.chosen.check(k)
        yield k


async def _cat(url: str, request: _ReadRequest, printer: RecordPrinter, decoding: Decoding) -> None:
    async with _open(url, printer, decoding) as k:
        topics, partitions = await _find(k, request)
        if isinstance(request.start, Last):
            await _cat_last(k, request, partitions, request.start.messages, printer)
            return
        async with await _reader(k, request, topics, partitions) as r:
            await _print(r, printer)


async def _cat_tables(url: str, request: _ReadRequest, output: str, count: int | None) -> int:
    async with od.connect(url) as k, await _reader(k, request, *await _find(k, request)) as r:
        await write_tables(r.arrow(max_wait=1.0), output, count)
    return 0


async def _reader(
    k: od.Cluster, request: _ReadRequest, topics: Sequence[str], partitions: Sequence[od.TopicPartition]
) -> od.Reader:
    start = cast(StartPosition, request.start)
    # A reader of topics, rather than of partitions, also reads partitions that appear later.
    chosen: Sequence[str] | Mapping[od.TopicPartition, StartPosition] = (
        topics if request.partition is None else dict.fromkeys(partitions, start)
    )
    until: StartPosition | Mapping[od.TopicPartition, StartPosition] | None = None
    if not request.follow:
        wanted = cast(StartPosition, od.LATEST if request.until is None else request.until)
        late = await beyond_end(k, dict.fromkeys(partitions, wanted))
        until = {p: od.LATEST if p in late else wanted for p in partitions}
    limit = request.limit(k)
    return k.reader(chosen, start=start, until=until, max_message_bytes=limit, isolation=request.isolation)


async def _cat_last(
    k: od.Cluster, request: _ReadRequest, partitions: Sequence[od.TopicPartition], count: int, printer: RecordPrinter
) -> None:
    ends, limit, isolation = {}, request.limit(k), request.isolation
    for partition in partitions:
        records, ends[partition] = await last_records(k, partition, count, limit, isolation)
        await printer.write(records)
    if request.follow and not printer.is_done:
        async with k.reader(ends, max_message_bytes=limit, isolation=isolation) as r:
            await _print(r, printer)


async def _print(r: od.Reader, printer: RecordPrinter) -> None:
    with progress("reading", None, quiet=sys.stdout.isatty()) as advance:
        async for batch in r.batches():
            advance(len(batch))
            await printer.write(batch)
            if printer.is_done:
                return


async def _cat_group(url: str, request: _ReadRequest, printer: RecordPrinter, decoding: Decoding, group: str) -> None:
    async with _open(url, printer, decoding) as k:
        topics = None if request.patterns else request.words
        include = f"(?:{request.patterns[0]}).*" if request.patterns else None
        limit, isolation = request.limit(k), request.isolation
        async with k.consumer(topics, group=group, include=include, max_message_bytes=limit, isolation=isolation) as c:
            async for record in c:
                await printer.write([record])
                if printer.is_done:
                    break
