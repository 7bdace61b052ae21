"""Columns on standard output: Arrow's stream format, or Parquet."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, Callable, Iterator
from contextlib import contextmanager
from io import IOBase
from typing import TYPE_CHECKING, cast

import anyio.lowlevel
import click

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["OUTPUT", "write_tables"]

OUTPUT = click.option(
    "--output",
    "-O",
    type=click.Choice(["arrow", "parquet"]),
    help="Write columns instead of text: Arrow's stream format, or a Parquet file. Needs odradek[arrow].",
)


async def write_tables(tables: AsyncIterable[pa.Table], output: str, count: int | None) -> None:
    """Write tables to standard output, at most `count` rows of them.

    However this ends, cancellation included, a Parquet file is complete and has the tables written until then.
    """
    with _writer(output) as write:
        if count == 0:
            return
        async for table in tables:
            write(table.slice(0, count))
            if count is not None and (count := count - table.num_rows) <= 0:
                return
            await anyio.lowlevel.checkpoint()


@contextmanager
def _writer(output: str) -> Iterator[Callable[[pa.Table], None]]:
    from odradek.arrow import schema  # first: without pyarrow, its error says what to install

    if sys.stdout.isatty():
        raise click.UsageError(f"refusing to write {output} to a terminal; redirect it to a file")
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.PythonFile(cast(IOBase, sys.stdout.buffer), mode="w")
    with pq.ParquetWriter(sink, schema()) if output == "parquet" else pa.ipc.new_stream(sink, schema()) as writer:

        def write(table: pa.Table) -> None:
            writer.write_table(table.cast(schema()))
            sys.stdout.buffer.flush()

        yield write
    sys.stdout.buffer.flush()
