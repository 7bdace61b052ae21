"""Source positions to target offsets: what an index entry has, made of batches and acknowledgements. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from odradek.client.producer.results import Ack
from odradek.errors import OdradekError
from odradek.mirror.stored import Run
from odradek.types import Columns

__all__ = ["UnknownOffset", "runs_of"]


class UnknownOffset(OdradekError):
    """A broker acknowledged records without saying where they are: an earlier attempt had written them."""

    retriable = True

    def message(self) -> str:
        return "a broker had the records from an earlier attempt, and did not say where they are"


def runs_of(parts: Sequence[Columns], acks: Iterable[Ack], *, offsets: bool) -> tuple[Run, ...]:
    """Return where the records of one partition are.

    Args:
        parts: The records, in order.
        acks: What came of them, in order, of as many records.
        offsets: Positions of the source are offsets: a run ends where the next record is not at the next offset.

    Raises:
        UnknownOffset: An acknowledgement has no offset.
    """
    runs: list[Run] = []
    for positions, inner, offset in _written([each for part in parts for each in part.parts], acks):
        for run in _runs(positions, inner, offset, offsets=offsets):
            if runs and _adjacent(runs[-1], run, offsets=offsets):
                runs[-1] = runs[-1]._replace(records=runs[-1].records + run.records)
            else:
                runs.append(run)
    return tuple(runs)


def _written(
    parts: Sequence[Columns], acks: Iterable[Ack]
) -> Iterator[tuple[Sequence[int], Sequence[int] | None, int]]:
    """Yield positions and inner indexes of rows of one part that were written together, and the offset of the first on
    the target."""
    unread = iter(parts)
    part, row = next(unread, Columns([], [], [])), 0
    for ack in acks:
        if ack.position is None:
            raise UnknownOffset
        done = 0
        while done < ack.records:
            if row == len(part):
                part, row = next(unread), 0
            stop = min(len(part), row + ack.records - done)
            inner = part.inner_indexes
            yield part.positions[row:stop], None if inner is None else inner[row:stop], ack.position + done
            done += stop - row
            row = stop


def _runs(positions: Sequence[int], inner: Sequence[int] | None, offset: int, *, offsets: bool) -> Iterator[Run]:
    start = 0
    while start < len(positions):
        stop = _gap(positions, start) if offsets else len(positions)
        yield Run(positions[start], 0 if inner is None else inner[start], offset + start, stop - start)
        start = stop


def _gap(positions: Sequence[int], start: int) -> int:
    """Return the first row after `start` that is not at the next offset, or the number of rows."""
    rows = len(positions)
    if positions[rows - 1] - positions[start] == rows - 1 - start:
        return rows  # as in nearly every batch
    row = start + 1
    while row < rows and positions[row] == positions[row - 1] + 1:
        row += 1
    return row


def _adjacent(last: Run, following: Run, *, offsets: bool) -> bool:
    if last.offset + last.records != following.offset:
        return False
    return not offsets or last.position + last.records == following.position
