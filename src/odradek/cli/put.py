"""`odradek put`: messages from standard input or files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import anyio
import anyio.lowlevel
import click

import odradek as od
from odradek.cli.cluster_queries import find_partitions, message_limit
from odradek.cli.json_records import parse_line
from odradek.cli.options import COUNT, MAX_MESSAGE, QUIET, TOPIC, clustered, examples, one_topic
from odradek.cli.output import argument_bytes, echo_json, progress, unescape
from odradek.client.options import Acks, Compression

__all__ = ["put"]

READ_BYTES = 1 << 18

BUFFERED = 16 * od.MiB
"""Memory for messages that are on their way; one as large as is allowed fits in as well (bytes)."""
DELIVER_S = 120.0
"""Time limit for each message, also behind a full buffer, for which 150 KB a second are enough (s)."""


@click.command(
    epilog=examples(
        "echo hello | odradek put greetings",
        "odradek put orders -z snappy -K : < orders.txt",
        "odradek put orders day1.txt day2.txt",
        "odradek put blobs -D '\\0' < blobs.bin",
        "echo customer-7: | odradek put profiles -K : -Z",
        "echo hello | odradek put greetings -k me -H language=en",
        "odradek cat orders --json | odradek put orders-copy --json",
    )
)
@click.argument("words", nargs=-1, metavar="TOPIC [FILE]...")
@TOPIC
@click.option("--partition", "-p", metavar="[BROKER-]N", help="Write to this partition only.")
@click.option("--delimiter", "-D", default="\\n", metavar="TEXT", help="Text between messages (default: newline).")
@click.option("--key-separator", "-K", metavar="TEXT", help="Text between key and value. Keys choose the partition.")
@click.option("--key", "-k", metavar="TEXT", help="The key of every message.")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="A header of every message.")
@click.option("--null", "-Z", "empty_is_null", is_flag=True, help="Write an empty value or key as null.")
@click.option(
    "--compression",
    "-z",
    default="none",
    metavar="NAME[:LEVEL]",
    help="none (default), gzip, snappy, lz4 or zstd; gzip:9 for a level.",
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="When a message is confirmed: when all replicas in sync have it, when its leader has it, or without waiting.",
)
@COUNT
@MAX_MESSAGE
@click.option(
    "--json",
    "-J",
    "as_lines",
    is_flag=True,
    help="Read lines of JSON as `odradek cat --json` prints them, with key, headers, timestamp and partition; print "
    "the count as JSON.",
)
@QUIET
@clustered
def put(
    url: str,
    words: tuple[str, ...],
    named: str | None,
    partition: str | None,
    delimiter: str,
    key_separator: str | None,
    key: str | None,
    headers: tuple[str, ...],
    empty_is_null: bool,
    compression: Compression,
    acks: str,
    count: int | None,
    max_message_bytes: int | None,
    as_lines: bool,
    quiet: bool,
) -> int:
    """Write the lines of FILEs, or of standard input, to TOPIC.

    Headers are stored from Kafka 0.11 on, timestamps from 0.10 on, keys and null values from 0.8 on. In 0.7 a key only
    chooses the partition. With --json, what `odradek cat --json` has printed becomes the same messages again, in the
    partitions of the same numbers, or in the one of -p; a line whose `partition` was removed goes where its key says.

    Returns when every message is confirmed; otherwise the exit code is 1 and the error says which messages are not.
    """
    topic = one_topic(words[0] if words and named is None else None, named)
    files = words if named is not None else words[1:]
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator exclude each other")
    if not delimiter:
        raise click.BadParameter("--delimiter needs a text")
    if as_lines and (key is not None or key_separator or headers or empty_is_null or delimiter != "\\n"):
        raise click.UsageError("--json has keys, headers and nulls itself: it excludes -k, -K, -H, -Z and -D")
    parse = _JsonParser().parse if as_lines else _line_parser(key_separator, key, headers, empty_is_null).parse
    rows = _rows(files, unescape(delimiter), count, quiet)
    options = _WriteOptions(compression, "all" if acks == "all" else 1 if acks == "1" else 0, max_message_bytes)
    written = od.run(_put, url, topic, partition, options, rows, parse)
    if as_lines:
        echo_json({"topic": topic, "written": written})
    elif not quiet:
        click.echo(f"{written} message{'' if written == 1 else 's'} written", err=True)
    return 0


Rows = AsyncIterator[list[bytes]]
Parsed = tuple[od.ProducerRecord, str | None]
"""A record and the name of its partition."""


class _WriteOptions(NamedTuple):
    """Options of the producer."""

    compression: Compression
    acks: Acks
    max_message_bytes: int | None

    def producer(self, k: od.Cluster) -> od.Producer:
        """Return the producer."""
        limit = message_limit(k, self.max_message_bytes, 1_000_000)
        return k.producer(
            compression=self.compression,
            acks=self.acks,
            deliver_within=DELIVER_S,
            max_message_bytes=limit,
            buffer_bytes=limit + BUFFERED,
        )


async def _put(
    url: str,
    topic: str,
    partition: str | None,
    options: _WriteOptions,
    chunks: Rows,
    parse: Callable[[bytes], Parsed | None],
) -> int:
    targets: dict[str | None, od.TopicPartition | None] = {None: None}
    async with od.connect(url) as k, options.producer(k) as out:
        async for rows in chunks:
            for record, own in filter(None, map(parse, rows)):
                name = own if partition is None else partition
                if name not in targets:
                    targets[name] = await _target(k, topic, str(name))
                value, key, headers, timestamp = record
                target = targets[name]
                await out.put(topic, value, key=key, partition=target, headers=headers, timestamp=timestamp)
            if out.failures:
                break  # leaving the producer's block raises an error that names all failures
        else:
            await out.flush()  # leaving the block waits for `exit_within` only
    return out.statistics().written


async def _target(k: od.Cluster, topic: str, name: str) -> od.TopicPartition:
    """Return the partition of that name. Writing to one of a topic that does not exist creates the topic; so does one
    with a broker."""
    if k.driver.logs.names_brokers and (match := re.fullmatch(r"(\d+)-(\d+)", name)):
        return od.TopicPartition(topic, int(match[2]), int(match[1]))
    if name.isdecimal() and not await k.partitions(topic):
        brokers = k.driver.metadata.table.brokers if k.driver.logs.names_brokers else [-1]
        partitions = [od.TopicPartition(topic, int(name), broker) for broker in brokers]
    else:
        partitions = await find_partitions(k, topic, name)
    if len(partitions) > 1:
        names = ", ".join(p.name for p in partitions)
        raise click.UsageError(f"several brokers have a partition {name}; choose from {names}")
    return partitions[0]


class _JsonParser:
    """Makes records of lines of JSON."""

    def __init__(self) -> None:
        self._line = 0

    def parse(self, line: bytes) -> Parsed | None:
        """Return the record of a line and its partition; None: the line is empty. Raises click.UsageError."""
        self._line += 1
        try:
            return parse_line(line) if line.strip() else None
        except (ValueError, RecursionError) as error:
            raise click.UsageError(f"line {self._line}: {error}; neither it nor what follows is written") from None


class _LineParser(NamedTuple):
    """Makes records of lines.

    Args:
        separator: Text between key and value; empty: lines have no key.
        key: The key of lines without one.
        headers: Headers that every record gets.
        empty_is_null: An empty key or value is null.
    """

    separator: bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    empty_is_null: bool

    def parse(self, line: bytes) -> Parsed:
        """Return the record of a line."""
        key, value = self.key, line
        if self.separator and self.separator in line:
            key, _, value = line.partition(self.separator)
        if self.empty_is_null:
            return od.ProducerRecord(value or None, key or None, self.headers), None
        return od.ProducerRecord(value, key, self.headers), None


def _line_parser(
    key_separator: str | None, key: str | None, headers: Sequence[str], empty_is_null: bool
) -> _LineParser:
    separator, pairs = unescape(key_separator or ""), tuple(_header(text) for text in headers)
    return _LineParser(separator, None if key is None else argument_bytes(key), pairs, empty_is_null)


def _header(text: str) -> tuple[str, bytes]:
    name, mark, value = text.partition("=")
    if not mark:
        raise click.BadParameter(f"{text!r}: a header is NAME=VALUE")
    return name, argument_bytes(value)


async def _rows(files: Sequence[str], delimiter: bytes, count: int | None, quiet: bool) -> Rows:
    """Yield the messages of all files, at most `count`, in lists of those that were read together."""
    left = count
    with progress("writing", _size(files), quiet=quiet or not files) as advance:
        async for data, size in _split_files(files, delimiter):
            advance(size)
            rows = data if left is None else data[:left]
            yield rows
            if left is not None and (left := left - len(rows)) == 0:
                return


def _size(files: Sequence[str]) -> int:
    return sum(Path(file).stat().st_size for file in files)


def _open(file: str) -> BinaryIO:
    """Open a file; a named pipe without waiting for its writer, which no signal could end."""
    no_wait = getattr(os, "O_NONBLOCK", 0)
    return open(file, "rb", opener=lambda path, flags: os.open(path, flags | no_wait))


async def _split_files(files: Sequence[str], delimiter: bytes) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield messages and the number of bytes read for them. No files: standard input."""
    names: Sequence[str | None] = files or [None]
    for file in names:
        lines = _LineSplitter(delimiter)
        with ExitStack() as stack:
            source = sys.stdin.fileno() if file is None else stack.enter_context(_open(file)).fileno()
            while chunk := await _read(source):
                yield lines.feed(chunk), len(chunk)
        if lines.rest:
            yield [bytes(lines.rest)], 0


class _LineSplitter:
    """Divides a stream of bytes; the time it takes grows with the bytes alone, however long a message is.

    Args:
        delimiter: The bytes between two messages.
    """

    def __init__(self, delimiter: bytes) -> None:
        self.rest = bytearray()
        """The bytes after the last delimiter; they contain none."""
        self._delimiter = delimiter

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes, and return the messages that are complete."""
        searched = max(0, len(self.rest) - len(self._delimiter) + 1)
        self.rest += chunk
        if self.rest.find(self._delimiter, searched) < 0:
            return []
        *rows, rest = bytes(self.rest).split(self._delimiter)
        self.rest = bytearray(rest)
        return rows


async def _read(source: int) -> bytes:
    """Read what is available, waiting for it. A regular file cannot be waited for and is always ready."""
    while True:
        try:
            await anyio.wait_readable(source)
        except OSError:
            await anyio.lowlevel.checkpoint()
        with suppress(BlockingIOError):  # another process has read it meanwhile
            return os.read(source, READ_BYTES)
