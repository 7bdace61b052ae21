"""Decoded columns: cut and joined alike by both engines, whatever columns they have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.fuzz import ENGINES, plain

from odradek.engine import DecodedColumns, Engine
from odradek.engine.columns import HEADER_BYTES, PACKED_HEADER_BYTES, PACKED_ROW_BYTES, ROW_BYTES, PlainColumns

strings = st.none() | st.binary(max_size=8)
headers = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=3), strings), max_size=3).map(tuple)
records = st.lists(st.tuples(strings, strings, headers, st.integers(0, 1 << 41)), min_size=1, max_size=5)
messages = st.lists(st.binary(max_size=8), max_size=5)
parts = st.one_of(
    st.tuples(st.just("batch"), records),
    st.tuples(st.just("old"), records),
    st.tuples(st.just("raw"), messages),
    st.tuples(st.just("plain"), messages),
    st.tuples(st.just("wrapper"), messages),
)
cuts = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(sorted)


def decoded(engine: Engine, kind: str, rows: list[Any]) -> DecodedColumns:
    """Rows of one kind, through the builder of their format."""
    if kind in ("plain", "wrapper"):
        builder, data = engine.ColumnBuilder(), engine.encode_run(rows)
        if kind == "plain":
            assert builder.decode_run(data, 0, len(data), 1000) == len(data)
        else:
            payloads = engine.PayloadBuilder()
            payloads.decode_run(data, 0, len(data))
            builder.add_wrapper(payloads, 5, 9)
        return builder.take()
    made = engine.RecordBuilder()
    if kind == "raw":
        for number, row in enumerate(rows):
            made.append(row, number, number + 1)
        return made.take()
    values, keys, pairs, times = map(list, zip(*rows, strict=True))
    if kind == "batch":
        data = engine.encode_batch(values, keys, pairs, times, base_offset=7)
        assert made.decode_batches(data, 0, len(data), 0)[0] == len(data)
    else:
        data = engine.encode_messages(values, keys, magic=0, offset=3)
        assert made.decode_messages(data, 0, len(data), 0)[0] == len(data)
    return made.take()


@given(st.lists(st.tuples(parts, cuts), min_size=1, max_size=5))
def test_slices_and_their_concatenation_are_the_same(shapes: list[tuple[tuple[str, list[Any]], list[int]]]) -> None:
    outcomes = []
    for engine in ENGINES:
        cut = []
        for part, (start, stop) in shapes:
            columns = decoded(engine, *part)
            cut.append(columns.slice(min(start, len(columns)), min(stop, len(columns))))
        joined = type(cut[0]).concat(cut)
        again = type(joined).concat([joined, joined.slice(0, len(joined))])
        outcomes.append([plain(columns) for columns in (*cut, joined, again)])
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.NAME)
@given(parts, cuts)
def test_the_list_of_values_is_that_of_the_column(engine: Engine, part: tuple[str, list[Any]], cut: list[int]) -> None:
    columns = decoded(engine, *part)
    start, stop = (min(end, len(columns)) for end in cut)
    some = columns.slice(start, stop)
    assert some.value_list() == list(some.values) == list(columns.values)[start:stop]
    assert type(columns).concat([columns, some]).value_list() == columns.value_list() + some.value_list()


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.NAME)
@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 3), (2, 1), (3, 3)])
def test_rows_that_are_not_there_are_refused(engine: Engine, start: int, stop: int) -> None:
    with pytest.raises((ValueError, OverflowError)):
        decoded(engine, "plain", [b"a", b"b"]).slice(start, stop)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.NAME)
def test_a_row_takes_more_with_every_column(engine: Engine) -> None:
    def row_bytes(*part: Any) -> int:
        columns = decoded(engine, *part)
        return columns.memory_bytes - columns.payload_bytes

    bare = row_bytes("plain", [b"a"])
    assert bare == (ROW_BYTES if engine.NAME == "pure" else PACKED_ROW_BYTES)
    assert row_bytes("plain", [b"a", b""]) == 2 * bare
    keyed = row_bytes("old", [(b"a", b"k", (), 7)])
    with_header = row_bytes("batch", [(b"a", b"k", (("h", b"v"),), 7)])
    assert bare < keyed < with_header
    header = HEADER_BYTES if engine.NAME == "pure" else PACKED_HEADER_BYTES
    assert row_bytes("batch", [(b"a", b"k", (("", b""),) * 1001, 7)]) == with_header + 1000 * header


def test_only_columns_of_the_compiled_engine_are_joined_by_it() -> None:
    compiled = ENGINES[1]
    with pytest.raises(TypeError):
        type(decoded(compiled, "plain", [b"a"])).concat([PlainColumns([b"a"], [0], [1])])
    assert len(type(decoded(compiled, "plain", [])).concat([])) == 0


def test_columns_of_the_compiled_engine_live_as_long_as_a_view_of_a_slice() -> None:
    columns = decoded(ENGINES[1], "batch", [(b"%d" % n, b"key", (), n) for n in range(1000)]).slice(500, 502)
    values, positions, keys = columns.values, columns.positions, columns.keys
    del columns
    bytearray(100_000)  # something else in the memory, if it were free
    assert (list(values), list(positions), list(keys or ())) == ([b"500", b"501"], [507, 508], [b"key", b"key"])
