"""The engines are one: the same results, places to stop and errors on the same bytes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine import fuzz

from odradek.engine import NO_LIMIT

entries = st.lists(
    st.one_of(
        st.tuples(st.binary(max_size=300), st.sampled_from([0, 1]), st.sampled_from([0, 0xFC])),
        st.tuples(st.binary(max_size=30), st.integers(0, 255), st.integers(0, 255)),
        st.tuples(st.binary(max_size=30), st.just(1), st.just(0), st.integers(0, 0xFFFFFFFF)),
        st.tuples(st.binary(max_size=30), st.just(1), st.just(0), st.none(), st.integers(-40, 40)),
        st.binary(max_size=30),
    ),
    max_size=8,
)


def written(parts: list[bytes | tuple[Any, ...]]) -> bytes:
    return b"".join(part if isinstance(part, bytes) else fuzz.entry(*part) for part in parts)


@settings(deadline=None)
@given(parts=entries, start=st.integers(-1, 40), short=st.integers(-1, 40), limit=st.sampled_from([NO_LIMIT, 60]))
def test_runs_of_anything(parts: list[bytes | tuple[Any, ...]], start: int, short: int, limit: int) -> None:
    data = written(parts)
    assert not fuzz.differ("runs", data, start, len(data) - short, 7, limit)
    assert not fuzz.differ("runs", memoryview(bytearray(data)), 0, len(data), 7, limit)


@settings(deadline=None)
@given(parts=entries, cut=st.integers(0, 400))
def test_any_split_of_a_set(parts: list[bytes | tuple[Any, ...]], cut: int) -> None:
    data = written(parts)
    for engine in fuzz.ENGINES:
        rows = engine.ColumnBuilder()
        end = rows.decode_run(data, 0, min(cut, len(data)))
        split = rows.decode_run(data, end, len(data)), fuzz.plain(rows.take())
        assert split == (engine.ColumnBuilder().decode_run(data, 0, len(data)), whole(engine, data))


def whole(engine: object, data: bytes) -> object:
    rows = engine.ColumnBuilder()  # type: ignore[attr-defined]
    rows.decode_run(data, 0, len(data))
    return fuzz.plain(rows.take())


@settings(deadline=None)
@given(
    values=st.lists(st.binary(max_size=40)),
    start=st.integers(-1, 9),
    max_bytes=st.integers(-1, 300),
    row_bytes=st.integers(0, 20),
    max_row=st.integers(-1, 50),
)
def test_lists(values: list[bytes], start: int, max_bytes: int, row_bytes: int, max_row: int) -> None:
    assert not fuzz.differ("lists", values, start, len(values), (max_bytes, row_bytes, max_row))


@settings(deadline=None)
@given(
    offsets=st.lists(st.integers(-2, 45), max_size=6),
    data=st.binary(max_size=40),
    code=st.sampled_from("iq"),
    validity=st.none() | st.binary(min_size=5, max_size=5),
)
def test_strings(offsets: list[int], data: bytes, code: str, validity: bytes | None) -> None:
    some = None if validity is None else validity[: max(0, len(offsets) - 1)]
    for flags in (some, validity):
        assert not fuzz.differ("strings", offsets, data, code, flags)
        assert not fuzz.differ("strings", sorted(offsets), data, code, flags)


@settings(deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_what_the_fuzzer_makes(seed: int) -> None:
    assert fuzz.run(20, seed) == 0


def test_the_fuzzer_sees_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy:
        def __getattr__(self, name: str) -> object:
            return getattr(pure, name)

        def check_run(self, *_: object) -> tuple[int, int]:
            return 0, 0

    pure, compiled = fuzz.ENGINES
    monkeypatch.setattr(fuzz, "ENGINES", [Lazy(), compiled])
    data = pure.encode_run([b"x"])
    assert "runs" in fuzz.differ("runs", data, 0, len(data), 0, NO_LIMIT)
    assert fuzz.run(200, 1) == 1


def test_the_fuzzer_makes_runs_that_are_long_and_end_early() -> None:
    rng = random.Random(1)
    lengths = [fuzz.ENGINES[0].check_run(data, 0, len(data)) for data in (fuzz.some_set(rng) for _ in range(300))]
    assert max(count for _, count in lengths) > 300
    assert sum(count == 0 for _, count in lengths) > 30
