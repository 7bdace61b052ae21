"""The times of records: reads them from columns, and maps them to directories."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute
import pyarrow.types as pt

from odradek.errors import ConfigError

__all__ = ["TIME", "check_time", "floor_minutes", "local_hours", "seconds", "times_of"]

pc: Any = pyarrow.compute
Array: TypeAlias = Any
"""A pyarrow array: see `decode`."""

TIME = pa.timestamp("us", tz="UTC")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
# One day less than Python's range on both sides: a zone moves a time by less than a day.
LEAST = (datetime(1, 1, 2, tzinfo=UTC) - EPOCH) // MICROSECOND
MOST = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // MICROSECOND

UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def check_time(kind: pa.DataType, time_format: str, name: str) -> None:
    """Raise ConfigError if a column of this type cannot have times of this format. Timestamps need no format."""
    if pt.is_timestamp(kind):
        return
    if time_format == "iso":
        fits, wanted = pt.is_string(kind), "text"
    else:
        fits, wanted = pt.is_integer(kind) or pt.is_floating(kind), "numbers"
    if not fits:
        raise ConfigError(f'time = "{name}": time_format {time_format!r} needs {wanted} or timestamps, not {kind}')


def times_of(column: Array, time_format: str) -> Array:
    """Return times as `TIME`; null if there is none, or if it is not between the years 1 and 9999."""
    if pt.is_timestamp(column.type):
        return _within(column.cast(pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.int64()), 1)
    if time_format == "iso":
        return pa.array([_iso(text) for text in column.to_pylist()], TIME)
    return _within(column, UNITS[time_format])


def _within(numbers: Array, unit: int) -> Array:
    """Convert numbers with a unit in microseconds. Floats may have a fraction, or be NaN or infinite."""
    possible = pc.and_(
        pc.greater_equal(numbers, pa.scalar(LEAST // unit).cast(numbers.type, safe=False)),
        pc.less(numbers, pa.scalar(MOST // unit).cast(numbers.type, safe=False)),
    ) if _wide(numbers.type) else pc.is_valid(numbers)  # fmt: skip
    kept = pc.if_else(pc.fill_null(possible, False), numbers, pa.scalar(None, numbers.type))
    if pt.is_floating(numbers.type):
        return pc.round(pc.multiply(kept.cast(pa.float64()), float(unit))).cast(pa.int64()).cast(TIME)
    return pc.multiply(kept.cast(pa.int64()), unit).cast(TIME)


def _wide(kind: pa.DataType) -> bool:
    """Return True if numbers of this type can be out of range."""
    return pt.is_floating(kind) or kind.bit_width == 64


def _iso(text: str | None) -> int | None:
    """Parse ISO 8601 to microseconds; a time without a zone is in UTC."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
        number = ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND
    except (ValueError, OverflowError):
        return None
    return number if LEAST <= number < MOST else None


def local_hours(times: Array, zone: str) -> Array:
    """Return the local hour in a zone, as timestamps without a zone. The repeated hour, when clocks go back, is one."""
    local = pc.local_timestamp(times.cast(pa.timestamp("us", tz=zone)))
    return pc.floor_temporal(local, unit="hour")


def floor_minutes(times: Array, minutes: int) -> Array:
    """Return the start of each time's bucket of this length, counted from the epoch (s since the epoch, int64)."""
    length = minutes * 60
    second = pc.floor_temporal(times, unit="second").cast(pa.timestamp("s", tz="UTC")).cast(pa.int64())
    whole = pc.multiply(pc.divide(second, length), length)  # towards zero
    return pc.if_else(pc.greater(whole, second), pc.subtract(whole, length), whole)


def seconds(moment: datetime | None) -> float | None:
    """Return a time as seconds since the epoch."""
    return None if moment is None else (moment - EPOCH) / timedelta(seconds=1)


def directories(hour: datetime, topic: str, columns: tuple[str, ...]) -> Mapping[str, str]:
    """Return the table's partition values for one topic and local hour."""
    known = {"topic": topic, "date": f"{hour.year:04}-{hour.month:02}-{hour.day:02}", "hour": f"{hour.hour:02}"}
    return {column: known[column] for column in columns}
