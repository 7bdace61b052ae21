"""`odradek cat` and `odradek put`: messages to standard output, messages from standard input."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import anyio
import anyio.lowlevel
import click

import odradek as od
from odradek.cli.columns import OUTPUT, write_tables
from odradek.cli.look import find, last
from odradek.cli.options import COUNT, FORMAT, JSON, QUIET, Last, clustered, examples, place
from odradek.cli.output import Render, echo_json, formatter, json_line, progress, unescape
from odradek.types import Record, StartPosition

__all__ = ["cat", "put"]

CHUNK_BYTES = 1 << 18
TOPIC = click.option("--topic", "-t", "named", metavar="TOPIC", help="The topic, for those used to kcat.")
PARTITION = click.option("--partition", "-p", metavar="[BROKER-]N", help="This partition; without BROKER, on each.")


# ---- cat ----------------------------------------------------------------------------------------------------


class _RecordPrinter(NamedTuple):
    """Where records go, and how.

    Args:
        render: Makes bytes of a record.
        most: So many records, or None for all.
        unbuffered: Flush after each.
    """

    render: Render
    most: int | None
    unbuffered: bool

    def write(self, records: Iterable[Record], done: int) -> int:
        """Print them as far as the count allows; returns how many were printed in all, `done` of them before."""
        out = sys.stdout.buffer
        for record in islice(records, None if self.most is None else self.most - done):
            out.write(self.render(record))
            done += 1
            if self.unbuffered:
                out.flush()
        out.flush()
        return done

    def full(self, done: int) -> bool:
        return self.most is not None and done >= self.most


@click.command(
    epilog=examples(
        "odradek cat orders",
        "odradek cat orders -o -10 -F",
        "odradek cat orders -p 1-0 -o 4096 -c 1 --json",
        "odradek cat orders -o @-15m -f '%p %o %s\\n'",
        "odradek cat orders -G billing",
        "odradek cat orders -O parquet > orders.parquet",
    )
)
@click.argument("topic", required=False)
@TOPIC
@PARTITION
@click.option(
    "--offset",
    "-o",
    default="beginning",
    show_default=True,
    metavar="PLACE",
    help="Where to begin: beginning, end, a position, -N (the last N of each partition), @TIME.",
)
@click.option("--follow", "-F", is_flag=True, help="Do not stop at the end; wait for more.")
@click.option("--exit", "-e", "at_end", is_flag=True, help="Stop at the end. That is so without it, too.")
@click.option("--group", "-G", metavar="GROUP", help="Read as a member of this group, commit, and do not stop.")
@click.option("--delimiter", "-D", default="\\n", metavar="TEXT", help="Between messages, instead of a newline.")
@click.option("--key-separator", "-K", metavar="TEXT", help="Print keys, with this behind them.")
@click.option("--unbuffered", "-u", is_flag=True, help="Flush after every message.")
@FORMAT
@OUTPUT
@COUNT
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
    unbuffered: bool,
    format: str | None,
    output: str | None,
    count: int | None,
    as_lines: bool,
) -> int:
    """Print the messages of TOPIC, from the beginning to where it ends now.

    Partitions are read side by side: messages are in order within each.
    """
    if follow and at_end:
        raise click.UsageError("--follow and --exit contradict each other")
    if group is not None and (partition is not None or offset != "beginning"):
        raise click.UsageError("a group gives the partitions and remembers the positions: -G goes without -p and -o")
    name = _one_topic(topic, named)
    wish = _ReadRequest(name, partition, place(offset), follow)
    if output is not None:
        if as_lines or format is not None or group is not None or isinstance(wish.begin, Last):
            raise click.UsageError("--output goes without --json, --format, --group and the last messages (-o -N)")
        return od.run(_cat_tables, url, wish, output, count)
    render: Render = json_line if as_lines else formatter(format or _format(delimiter, key_separator))
    sink = _RecordPrinter(render, count, unbuffered)
    if group is not None:
        return od.run(_cat_group, url, name, group, sink)
    return od.run(_cat, url, wish, sink)


def _format(delimiter: str, key_separator: str | None) -> str:
    key = "" if key_separator is None else "%k" + key_separator.replace("%", "%%")
    return key + "%s" + delimiter.replace("%", "%%")


def _one_topic(topic: str | None, named: str | None) -> str:
    if (topic is None) == (named is None):
        raise click.UsageError("one TOPIC, please")
    return topic or named or ""


class _ReadRequest(NamedTuple):
    """What is to be read."""

    topic: str
    partition: str | None
    begin: StartPosition | Last
    follow: bool


async def _cat(url: str, wish: _ReadRequest, sink: _RecordPrinter) -> int:
    async with od.connect(url) as k:
        partitions = await find(k, wish.topic, wish.partition)
        if isinstance(wish.begin, Last):
            return await _cat_last(k, partitions, wish.begin.messages, wish.follow, sink)
        async with _reader(k, wish, partitions, wish.begin) as r:
            await _print(r, sink, 0)
    return 0


async def _cat_tables(url: str, wish: _ReadRequest, output: str, count: int | None) -> int:
    assert not isinstance(wish.begin, Last)
    async with od.connect(url) as k:
        partitions = await find(k, wish.topic, wish.partition)
        async with _reader(k, wish, partitions, wish.begin) as r:
            await write_tables(r.arrow(max_wait=1.0), output, count)
    return 0


def _reader(
    k: od.Cluster, wish: _ReadRequest, partitions: Sequence[od.TopicPartition], begin: StartPosition
) -> od.Reader:
    # By name, a follower picks up partitions that appear later.
    topics = wish.topic if wish.partition is None else dict.fromkeys(partitions, begin)
    return k.reader(topics, start=begin, until=None if wish.follow else od.LATEST)


async def _cat_last(
    k: od.Cluster, partitions: Sequence[od.TopicPartition], count: int, follow: bool, sink: _RecordPrinter
) -> int:
    ends, done = {}, 0
    for partition in partitions:
        records, ends[partition] = await last(k, partition, count)
        done = sink.write(records, done)
    if follow and not sink.full(done):
        async with k.reader(ends) as r:
            await _print(r, sink, done)
    return 0


async def _print(r: od.Reader, sink: _RecordPrinter, done: int) -> None:
    with progress("reading", None, quiet=sys.stdout.isatty()) as advance:
        async for batch in r.batches():
            advance(len(batch))
            done = sink.write(batch, done)
            if sink.full(done):
                return


async def _cat_group(url: str, topic: str, group: str, sink: _RecordPrinter) -> int:
    done = 0
    async with od.connect(url) as k, k.consumer(topic, group=group) as c:
        async for record in c:
            done = sink.write([record], done)
            if sink.full(done):
                break
    return 0


# ---- put ----------------------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        "echo hello | odradek put greetings",
        "odradek put orders -z snappy -K : < orders.txt",
        "odradek put orders day1.txt day2.txt",
        "odradek put blobs -D '\\0' < blobs.bin",
    )
)
@click.argument("words", nargs=-1, metavar="TOPIC [FILE]...")
@TOPIC
@click.option("--partition", "-p", metavar="[BROKER-]N", help="Write to this partition only.")
@click.option("--delimiter", "-D", default="\\n", metavar="TEXT", help="Between messages, instead of a newline.")
@click.option("--key-separator", "-K", metavar="TEXT", help="The key ends here; it chooses the partition, no more.")
@click.option("--compression", "-z", type=click.Choice(["none", "gzip", "snappy"]), default="none", help="Compression.")
@COUNT
@JSON
@QUIET
@clustered
def put(
    url: str,
    words: tuple[str, ...],
    named: str | None,
    partition: str | None,
    delimiter: str,
    key_separator: str | None,
    compression: str,
    count: int | None,
    as_lines: bool,
    quiet: bool,
) -> int:
    """Write the lines of FILEs, or of standard input, to TOPIC.

    Ends when every message is confirmed, or with exit code 1 and what is known about those that are not.
    """
    if named is None:
        if not words:
            raise click.UsageError("one TOPIC, please")
        named, words = words[0], words[1:]
    split = partial(_split_key, separator=unescape(key_separator or "").encode())
    written = od.run(
        _put, url, named, partition, compression, _rows(words, unescape(delimiter).encode(), count, quiet), split
    )
    if as_lines:
        echo_json({"topic": named, "written": written})
    elif not quiet:
        click.echo(f"{written} message{'' if written == 1 else 's'} written", err=True)
    return 0


Rows = AsyncIterator[list[bytes]]


async def _put(
    url: str,
    topic: str,
    wanted: str | None,
    compression: str,
    chunks: Rows,
    split: Callable[[bytes], tuple[bytes | None, bytes]],
) -> int:
    async with od.connect(url) as k, k.producer(compression=compression) as out:
        target = None if wanted is None else await _target(k, topic, wanted)
        async for rows in chunks:
            for row in rows:
                key, value = split(row)
                await out.put(topic, value, key=key, partition=target)
            if out.failures:
                break  # the exit names them all
    return out.statistics().written


async def _target(k: od.Cluster, topic: str, name: str) -> od.TopicPartition:
    """The partition of that name; one with a broker need not be published yet: writing to it makes it."""
    if match := re.fullmatch(r"(\d+)-(\d+)", name):
        return od.TopicPartition(topic, int(match[2]), int(match[1]))
    found = await find(k, topic, name)
    if len(found) > 1:
        raise click.UsageError(f"several brokers have a partition {name}: {', '.join(p.name for p in found)}")
    return found[0]


def _split_key(row: bytes, separator: bytes) -> tuple[bytes | None, bytes]:
    if not separator or separator not in row:
        return None, row
    key, _, value = row.partition(separator)
    return key, value


async def _rows(files: Sequence[str], delimiter: bytes, count: int | None, quiet: bool) -> Rows:
    """The messages in all files, as many at a time as came together; at most `count`."""
    left = count
    with progress("writing", _size(files), quiet=quiet or not files) as advance:
        async for data, rest in _pieces(files, delimiter):
            advance(len(rest))
            rows = data if left is None else data[:left]
            yield rows
            if left is not None and (left := left - len(rows)) == 0:
                return


def _size(files: Sequence[str]) -> int:
    return sum(Path(file).stat().st_size for file in files)


def _open(file: str) -> BinaryIO:
    return Path(file).open("rb")


async def _pieces(files: Sequence[str], delimiter: bytes) -> AsyncIterator[tuple[list[bytes], bytes]]:
    names: Sequence[str | None] = files or [None]
    for file in names:
        tail = b""
        with ExitStack() as stack:
            source = sys.stdin.fileno() if file is None else stack.enter_context(_open(file)).fileno()
            while chunk := await _read(source):
                *rows, tail = (tail + chunk).split(delimiter)
                yield rows, chunk
        if tail:
            yield [tail], b""


async def _read(source: int) -> bytes:
    """Some bytes, when there are some. What cannot be waited for (a file) always has some."""
    try:
        await anyio.wait_readable(source)
    except OSError:
        await anyio.lowlevel.checkpoint()
    return os.read(source, CHUNK_BYTES)
