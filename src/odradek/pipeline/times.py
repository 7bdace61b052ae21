"""The times of records: out of their columns, and into the directories they belong to."""

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
# A day less on both sides than Python's dates have: zones move a time by less than that.
LEAST = (datetime(1, 1, 2, tzinfo=UTC) - EPOCH) // MICROSECOND
MOST = (datetime(9999, 12, 31, tzinfo=UTC) - EPOCH) // MICROSECOND

UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def check_time(kind: pa.DataType, time_format: str, name: str) -> None:
    """Raise ConfigError when a column of this type cannot have times of this format. One of timestamps needs none."""
    if pt.is_timestamp(kind):
        return
    if time_format == "iso":
        fits, wanted = pt.is_string(kind), "text"
    else:
        fits, wanted = pt.is_integer(kind) or pt.is_floating(kind), "numbers"
    if not fits:
        raise ConfigError(f'time = "{name}": time_format {time_format!r} is of {wanted} or timestamps, not {kind}')


def times_of(column: Array, time_format: str) -> Array:
    """Times as `TIME`; null where there is none, or none between the years 1 and 9999."""
    if pt.is_timestamp(column.type):
        return _within(column.cast(pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.int64()), 1)
    if time_format == "iso":
        return pa.array([_iso(text) for text in column.to_pylist()], TIME)
    return _within(column, UNITS[time_format])


def _within(numbers: Array, unit: int) -> Array:
    """Numbers of so many microseconds each. Floating point ones may have a fraction, or be no number at all."""
    possible = pc.and_(
        pc.greater_equal(numbers, pa.scalar(LEAST // unit).cast(numbers.type, safe=False)),
        pc.less(numbers, pa.scalar(MOST // unit).cast(numbers.type, safe=False)),
    ) if _wide(numbers.type) else pc.is_valid(numbers)  # fmt: skip
    kept = pc.if_else(pc.fill_null(possible, False), numbers, pa.scalar(None, numbers.type))
    if pt.is_floating(numbers.type):
        return pc.round(pc.multiply(kept.cast(pa.float64()), float(unit))).cast(pa.int64()).cast(TIME)
    return pc.multiply(kept.cast(pa.int64()), unit).cast(TIME)


def _wide(kind: pa.DataType) -> bool:
    """Can numbers of this type be out of range at all?"""
    return pt.is_floating(kind) or kind.bit_width == 64


def _iso(text: str | None) -> int | None:
    """A time without a zone is of UTC."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
        number = ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND
    except (ValueError, OverflowError):
        return None
    return number if LEAST <= number < MOST else None


def local_hours(times: Array, zone: str) -> Array:
    """The hour that clocks of a zone show, as timestamps without a zone. An hour that comes twice, when clocks are set
    back, is one."""
    local = pc.local_timestamp(times.cast(pa.timestamp("us", tz=zone)))
    return pc.floor_temporal(local, unit="hour")


def floor_minutes(times: Array, minutes: int) -> Array:
    """The start of the bucket of so many minutes, counted from the epoch, in seconds since it (int64)."""
    length = minutes * 60
    second = pc.floor_temporal(times, unit="second").cast(pa.timestamp("s", tz="UTC")).cast(pa.int64())
    whole = pc.multiply(pc.divide(second, length), length)  # towards zero
    return pc.if_else(pc.greater(whole, second), pc.subtract(whole, length), whole)


def seconds(moment: datetime | None) -> float | None:
    """Return a time as seconds since the epoch."""
    return None if moment is None else (moment - EPOCH) / timedelta(seconds=1)


def directories(hour: datetime, topic: str, columns: tuple[str, ...]) -> Mapping[str, str]:
    """The table's partition values of records of one topic and local hour."""
    known = {"topic": topic, "date": f"{hour.year:04}-{hour.month:02}-{hour.day:02}", "hour": f"{hour.hour:02}"}
    return {column: known[column] for column in columns}
