"""`odradek put`: messages from standard input or files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import BinaryIO

import anyio
import anyio.lowlevel
import click

import odradek as od
from odradek.cli.cluster_queries import find_partitions
from odradek.cli.options import COUNT, JSON, QUIET, TOPIC, clustered, examples, one_topic
from odradek.cli.output import echo_json, progress, unescape

__all__ = ["put"]

READ_BYTES = 1 << 18


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
@click.option("--delimiter", "-D", default="\\n", metavar="TEXT", help="Text between messages (default: newline).")
@click.option("--key-separator", "-K", metavar="TEXT", help="Text between key and value. Keys choose the partition.")
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

    Returns when every message is confirmed; otherwise the exit code is 1 and the error says which messages are not.
    """
    topic = one_topic(words[0] if words and named is None else None, named)
    files = words if named is not None else words[1:]
    split = partial(_split_key, separator=unescape(key_separator or "").encode())
    rows = _rows(files, unescape(delimiter).encode(), count, quiet)
    written = od.run(_put, url, topic, partition, compression, rows, split)
    if as_lines:
        echo_json({"topic": topic, "written": written})
    elif not quiet:
        click.echo(f"{written} message{'' if written == 1 else 's'} written", err=True)
    return 0


Rows = AsyncIterator[list[bytes]]


async def _put(
    url: str,
    topic: str,
    partition: str | None,
    compression: str,
    chunks: Rows,
    split: Callable[[bytes], tuple[bytes | None, bytes]],
) -> int:
    async with od.connect(url) as k, k.producer(compression=compression) as out:
        target = None if partition is None else await _target(k, topic, partition)
        async for rows in chunks:
            for row in rows:
                key, value = split(row)
                await out.put(topic, value, key=key, partition=target)
            if out.failures:
                break  # leaving the producer's block raises an error that names all failures
    return out.statistics().written


async def _target(k: od.Cluster, topic: str, name: str) -> od.TopicPartition:
    """Return the partition of that name. One with a broker need not exist yet: writing to it creates it."""
    if match := re.fullmatch(r"(\d+)-(\d+)", name):
        return od.TopicPartition(topic, int(match[2]), int(match[1]))
    partitions = await find_partitions(k, topic, name)
    if len(partitions) > 1:
        names = ", ".join(p.name for p in partitions)
        raise click.UsageError(f"several brokers have a partition {name}; choose from {names}")
    return partitions[0]


def _split_key(row: bytes, separator: bytes) -> tuple[bytes | None, bytes]:
    if not separator or separator not in row:
        return None, row
    key, _, value = row.partition(separator)
    return key, value


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
    return Path(file).open("rb")


async def _split_files(files: Sequence[str], delimiter: bytes) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yield messages and the number of bytes read for them. No files: standard input."""
    names: Sequence[str | None] = files or [None]
    for file in names:
        tail = b""
        with ExitStack() as stack:
            source = sys.stdin.fileno() if file is None else stack.enter_context(_open(file)).fileno()
            while chunk := await _read(source):
                *rows, tail = (tail + chunk).split(delimiter)
                yield rows, len(chunk)
        if tail:
            yield [tail], 0


async def _read(source: int) -> bytes:
    """Read what is available, waiting for it. A regular file cannot be waited for and is always ready."""
    try:
        await anyio.wait_readable(source)
    except OSError:
        await anyio.lowlevel.checkpoint()
    return os.read(source, READ_BYTES)
