"""Records for tests of decoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from odradek.pipeline.decode import DEAD_FIELDS, Decoded, Decoder

__all__ = ["batch", "check_partition", "dead_of", "outcomes"]


def batch(values: Sequence[bytes | None]) -> pa.RecordBatch:
    """Return records with these values and their indexes as offsets."""
    columns: list[Any] = [
        pa.nulls(len(values), pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(["t"] * len(values), pa.string()),
        pa.array(range(len(values)), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value", "topic", "offset"])


def check_partition(values: Sequence[bytes | None], decoded: Decoded) -> None:
    """Check that rows and dead letters are all records, in order, with valid arrays."""
    rows, dead = decoded
    rows.validate(full=True)
    dead.validate(full=True)
    good: list[Any] = rows["offset"].to_pylist()
    bad: list[Any] = dead["offset"].to_pylist()
    assert good == sorted(good)
    assert bad == sorted(bad)
    assert sorted(good + bad) == list(range(len(values)))
    assert dead["value"].to_pylist() == [values[offset] for offset in bad]
    assert dead.schema.names[-len(DEAD_FIELDS) :] == [field.name for field in DEAD_FIELDS]


def outcomes(decoder: Decoder, values: Sequence[bytes | None]) -> list[Any]:
    """Return a dict for each good record, and a tuple (reason, field, expected, position) for each dead one."""
    decoded = decoder.decode(batch(values))
    check_partition(values, decoded)
    result: list[Any] = [None] * len(values)
    columns = [decoded.rows[name].to_pylist() for name in decoder.schema.names]
    for offset, *row in zip(decoded.rows["offset"].to_pylist(), *columns, strict=True):
        result[offset] = dict(zip(decoder.schema.names, row, strict=True))
    for letter in decoded.dead.to_pylist():
        assert letter["message"]
        assert len(letter["message"]) < 1000
        result[letter["offset"]] = tuple(letter[name] for name in ("reason", "field", "expected", "position"))
    return result


def dead_of(decoder: Decoder, value: bytes | None) -> dict[str, Any]:
    """Return the dead letter of the only record."""
    rows, dead = decoder.decode(batch([value]))
    assert (rows.num_rows, dead.num_rows) == (0, 1)
    letter: dict[str, Any] = dead.to_pylist()[0]
    return letter
