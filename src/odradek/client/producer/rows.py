"""The rows of `Producer.send_many`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from odradek import arguments
from odradek.batch import Batch
from odradek.core.interfaces import ProducerRecord
from odradek.core.produce.packed_records import EncodedRecords, records_of
from odradek.types import Columns

__all__ = ["ROWS_AT_ONCE", "Row", "fields", "runs"]

ROWS_AT_ONCE = 512
"""Rows taken from an iterator at once; and as many are accepted before other tasks run."""

Row = bytes | tuple[bytes | None, bytes] | ProducerRecord
"""Argument type of `send_many`: a value, a (key, value) pair, or a whole record."""


def runs(rows: Iterable[Row] | Batch) -> Iterator[Sequence[Row]]:
    """Cut rows into runs. When `rows` raises, the rows before that come first.

    Raises:
        CorruptMessage: A row of a batch could not be decoded.
    """
    if isinstance(rows, list):
        return iter((rows,))
    if isinstance(rows, Batch):
        return _runs_of_batch(rows)
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        arguments.wrong_type("rows", rows, "a Batch, or an iterable of bytes, (key, value) pairs or ProducerRecords")
    return _lists(rows)


def _runs_of_batch(batch: Batch) -> Iterator[Sequence[Row]]:
    for error in batch.corrupt.values():
        raise error
    return map(_run_of, batch.columns.parts)


def _run_of(part: Columns) -> Sequence[Row]:
    return records_of(part) if part.encoded is None else EncodedRecords(part)


def _lists(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Cut rows into lists. When `rows` raises, the rows before that come first."""
    source, error = iter(rows), None
    while error is None:
        run: list[Row] = []
        try:
            run.extend(islice(source, ROWS_AT_ONCE))
        except Exception as raised:
            error = raised
        if not run:
            break
        yield run
    if error is not None:
        raise error


def fields(row: Row) -> tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int | None]:
    """Return value, key, headers and timestamp."""
    if isinstance(row, ProducerRecord):
        return row
    if isinstance(row, tuple) and len(row) == 2:
        return row[1], row[0], (), None
    if not isinstance(row, bytes):
        arguments.wrong_type("a row of rows", row, "bytes, a (key, value) pair or a ProducerRecord")
    return row, None, (), None
