from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.errors import ConfigError
from odradek.pipeline.layout import TIME, floor_hours, local_hours
from odradek.pipeline.task import check_time, times_of


def us(*moments: datetime | None) -> Any:
    return pa.array(list(moments), TIME)


T = datetime(2026, 11, 21, 8, 15, 30, 250_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "time_format", "expected"),
    [
        (pa.array([int(T.timestamp() * 1000), None]), "ms", [T, None]),
        (pa.array([int(T.timestamp())], pa.int32()), "s", [T.replace(microsecond=0)]),
        (pa.array([int(T.timestamp() * 1_000_000)]), "us", [T]),
        (pa.array([T.timestamp(), float("nan"), float("inf"), -1e300]), "s", [T, None, None, None]),
        (pa.array([1 << 62, -(1 << 62), 0]), "ms", [None, None, datetime(1970, 1, 1, tzinfo=UTC)]),
        (
            pa.array(["2026-11-21T08:15:30.25Z", "2026-11-21T09:15:30.250+01:00", "2026-11-21 08:15:30.25"]),
            "iso",
            [T] * 3,
        ),
        (pa.array(["yesterday", "", None, "0001-01-01", "9999-12-31T23:59:59-23:00"]), "iso", [None] * 5),
        (pa.array([T], pa.timestamp("ns", tz="UTC")), "ms", [T]),
        (pa.array([T.date(), None], pa.date32()), "ms", [T.replace(hour=0, minute=0, second=0, microsecond=0), None]),
    ],
)
def test_times_are_read_in_their_format(column: Any, time_format: str, expected: list[datetime | None]) -> None:
    assert times_of(column, time_format).to_pylist() == expected


@given(st.lists(st.floats() | st.none()), st.sampled_from(["s", "ms", "us"]))
def test_any_float_gives_a_time_or_null(numbers: list[float | None], time_format: str) -> None:
    times = times_of(pa.array(numbers, pa.float64()), time_format)
    assert len(times) == len(numbers) and times.type == TIME


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)), st.sampled_from(["s", "ms", "us"]))
def test_any_integer_gives_a_time_or_null(numbers: list[int], time_format: str) -> None:
    times = times_of(pa.array(numbers, pa.int64()), time_format)
    assert len(times) == len(numbers) and times.type == TIME
    assert all(time is None or 1 <= time.year <= 9999 for time in times.to_pylist())


@given(st.lists(st.text()))
def test_any_text_gives_a_time_or_null(texts: list[str]) -> None:
    assert len(times_of(pa.array(texts, pa.string()), "iso")) == len(texts)


@pytest.mark.parametrize(
    ("kind", "time_format"), [(pa.string(), "ms"), (pa.int64(), "iso"), (pa.binary(), "iso"), (pa.bool_(), "s")]
)
def test_a_column_that_cannot_have_times_is_refused(kind: pa.DataType, time_format: str) -> None:
    with pytest.raises(ConfigError, match="time_format"):
        check_time(pa.schema([("ts", kind)]), "ts", time_format)


@given(
    st.datetimes(datetime(1980, 1, 1), datetime(2036, 1, 1), timezones=st.just(UTC)),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"]),
)
def test_hours_are_those_that_clocks_show(time: datetime, zone: str) -> None:
    shown = time.astimezone(ZoneInfo(zone)).replace(tzinfo=None, minute=0, second=0, microsecond=0)
    assert local_hours(us(time), zone).to_pylist() == [shown]


def test_the_hour_that_comes_twice_is_one_and_the_one_that_is_left_out_is_none() -> None:
    autumn = [datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1, 2)]
    spring = [datetime(2026, 3, 29, hour, 30, tzinfo=UTC) for hour in (0, 1)]
    assert [time.hour for time in local_hours(us(*autumn), "Europe/Berlin").to_pylist()] == [2, 2, 3]
    assert [time.hour for time in local_hours(us(*spring), "Europe/Berlin").to_pylist()] == [1, 3]


@given(st.integers(-(10**15), 10**15))
def test_hours_are_counted_from_the_epoch_on_both_sides_of_it(microseconds: int) -> None:
    assert floor_hours(pa.array([microseconds]).cast(TIME)).to_pylist() == [microseconds // 3_600_000_000 * 3600]
