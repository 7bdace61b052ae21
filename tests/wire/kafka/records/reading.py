"""What the tests of the record formats share: reading bytes in any split, on any engine, now or deferred."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.conformance.kafka.record_sets import Row, rows_of

from odradek.core.interfaces import DecoderOptions
from odradek.errors import OdradekError
from odradek.types import Position, TopicPartition
from odradek.wire.kafka.records.decoder import IsVisible, RecordDecoder

PARTITION = TopicPartition("t", 3)
DEFAULTS = DecoderOptions()


class Reading(NamedTuple):
    """Everything a decoder has to say about some bytes."""

    rows: list[Row]
    next_positions: list[int]
    corrupt: dict[int, tuple[object, ...]]
    reports: list[tuple[object, ...]]
    error: tuple[object, ...]
    position: int
    fetch_position: int


def chunks(data: bytes, cuts: Sequence[int]) -> list[memoryview]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [memoryview(data[a:b]) for a, b in pairwise(edges)]


def read(
    data: bytes,
    cuts: Sequence[int] = (),
    options: DecoderOptions = DEFAULTS,
    start: int = 0,
    is_visible: IsVisible | None = None,
) -> Reading:
    decoder = RecordDecoder(PARTITION, Position(start), options)
    decoder.start_response(is_visible)
    for chunk in chunks(data, cuts):
        decoder.feed(chunk)
    decoder.decompress_deferred()
    assert decoder.deferred_bytes == 0
    columns = decoder.take()
    corrupt = {row: error.args for row, error in columns.corrupt.items()}
    reports = [report.args for report in decoder.take_reports()]
    return Reading(
        rows_of(columns),
        list(columns.next_positions),
        corrupt,
        reports,
        state(decoder.error),
        decoder.position,
        decoder.fetch_position,
    )


def state(error: OdradekError | None) -> tuple[object, ...]:
    """Errors do not compare; their positional arguments are their whole state."""
    return () if error is None else (type(error), *error.args)
