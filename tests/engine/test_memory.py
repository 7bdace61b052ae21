"""Ownership of memory: buffers borrowed by an engine, and columns borrowed from the compiled one."""

from __future__ import annotations

import gc
import mmap
import sys
from array import array
from collections.abc import Callable
from io import BytesIO
from struct import unpack

import pytest

from odradek import engine as engines
from odradek.engine import Buffer, Engine, PackedBytes

from ..columns import listed
from ..payloads import payloads

VALUES = [b"one", b"", b"three" * 20]


@pytest.fixture
def compiled() -> Engine:
    return engines.engine("compiled")


def rows_of(engine: Engine, data: Buffer) -> list[bytes]:
    rows, values = engine.ColumnBuilder(), engine.PayloadBuilder()
    assert rows.decode_run(data, 0, len(data)) == values.decode_run(data, 0, len(data)) == len(data)
    assert engine.check_run(data, 0, len(data)) == (len(data), len(rows))
    taken = payloads(rows.take().values)
    assert values.tolist() == taken
    return taken


# ---- buffers borrowed by an engine --------------------------------------------------------------------------

KINDS: dict[str, Callable[[bytes], Buffer]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "view of bytes": memoryview,
    "view of a bytearray": lambda data: memoryview(bytearray(data)),
    "read-only view of a bytearray": lambda data: memoryview(bytearray(data)).toreadonly(),
    "part of a view": lambda data: memoryview(b"<" + data + b">")[1:-1],
    "view of an array": lambda data: memoryview(array("B", data)),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_any_buffer_of_bytes_is_read(engine: Engine, kind: Callable[[bytes], Buffer]) -> None:
    assert rows_of(engine, kind(engine.encode_run(VALUES))) == VALUES


def test_a_mapped_file_is_read(engine: Engine) -> None:
    data = engine.encode_run(VALUES)
    with mmap.mmap(-1, len(data)) as mapped, memoryview(mapped) as view:
        view[:] = data
        assert rows_of(engine, view) == VALUES


UNFIT: dict[str, Callable[[bytes], memoryview]] = {
    "every second byte": lambda data: memoryview(data)[::2],
    "backwards": lambda data: memoryview(data)[::-1],
    "signed": lambda data: memoryview(data).cast("b"),
    "integers": lambda data: memoryview(bytes(4 * len(data))).cast("i"),
    "a table": lambda data: memoryview(data).cast("B", (1, len(data))),
}


@pytest.mark.parametrize("unfit", UNFIT.values(), ids=UNFIT)
def test_a_buffer_that_is_not_contiguous_bytes_is_refused(engine: Engine, unfit: Callable[[bytes], memoryview]) -> None:
    buffer = unfit(engine.encode_run(VALUES))
    for call in (engine.check_run, engine.ColumnBuilder().decode_run, engine.PayloadBuilder().decode_run):
        with pytest.raises(BufferError):
            call(buffer, 0, 0)
    with pytest.raises(BufferError):
        engine.unpack(memoryview(array("i", [0])), buffer)


@pytest.mark.parametrize("code", "bBhIQd")
def test_offsets_that_are_not_signed_integers_of_4_or_8_bytes_are_refused(engine: Engine, code: str) -> None:
    with pytest.raises(BufferError):
        engine.unpack(memoryview(array(code, [0, 1])), b"x")


def test_offsets_with_gaps_are_refused(engine: Engine) -> None:
    with pytest.raises(BufferError):
        engine.unpack(memoryview(array("i", [0, 9, 1]))[::2], b"x")


@pytest.mark.parametrize("odd", [None, 5, "text", [1]])
def test_what_has_no_buffer_is_refused(engine: Engine, odd: Buffer) -> None:
    for call in (engine.check_run, engine.ColumnBuilder().decode_run, engine.PayloadBuilder().decode_run):
        with pytest.raises(TypeError):
            call(odd, 0, 0)
    with pytest.raises(TypeError):
        engine.unpack(odd, b"")


def test_a_released_view_is_refused(engine: Engine) -> None:
    view = memoryview(bytearray(20))
    view.release()
    for call in (engine.check_run, engine.ColumnBuilder().decode_run, engine.PayloadBuilder().decode_run):
        with pytest.raises(ValueError, match="released"):
            call(view, 0, 0)


def test_nothing_holds_on_to_a_lent_buffer(engine: Engine) -> None:
    data = bytearray(engine.encode_run(VALUES))
    rows, values = engine.ColumnBuilder(), engine.PayloadBuilder()
    rows.decode_run(data, 0, len(data))
    values.decode_run(data, 0, len(data))
    rows.append(data, 0, 1)
    values.append(data)
    engine.check_run(data, 0, len(data))
    kept = bytes(data)
    data[:] = bytes(2 * len(data))  # would raise BufferError if anybody had it
    assert list(rows.take().values) == values.tolist() == [*VALUES, kept]


def test_a_list_is_given_back_as_it_was(engine: Engine) -> None:
    payload = b"".join([b"a payload ", b"of its own"])
    values, before = [payload] * 10, sys.getrefcount(payload)
    for _ in range(5):
        engine.encode_run(values)
        engine.fit(values, 0, 10, 100, 1, 100)
    assert sys.getrefcount(payload) == before


# ---- what the compiled engine lends -------------------------------------------------------------------------


def test_columns_are_laid_out_as_arrow_has_them(compiled: Engine) -> None:
    data = compiled.encode_run(VALUES)
    rows = compiled.ColumnBuilder()
    rows.decode_run(data, 0, len(data), 7)
    rows.append(b"in a wrapper", 1, 2, 3)
    values, *integers = listed(rows.take())[:4]
    assert isinstance(values, PackedBytes)
    assert (values.offsets.format, values.data.format) == ("i", "B")
    assert unpack("5i", values.offsets) == (0, 3, 3, 103, 115)
    assert bytes(values.data) == b"".join(VALUES) + b"in a wrapper"
    for view, code in zip(integers, "qqi", strict=True):
        assert isinstance(view, memoryview)
        assert (view.format, view.itemsize, view.nbytes) == (code, array(code).itemsize, 4 * array(code).itemsize)
        assert unpack(f"4{code}", view) == tuple(view)
    for view in (values.offsets, values.data, *integers):
        assert isinstance(view, memoryview)
        assert (view.readonly, view.contiguous, view.ndim) == (True, True, 1)


def test_the_garbage_collector_does_not_look_into_lists_of_values(compiled: Engine) -> None:
    rows = compiled.ColumnBuilder()
    data = compiled.encode_run(VALUES)
    rows.decode_run(data, 0, len(data), 1000)
    values = rows.take().value_list()
    assert not gc.is_tracked(values)
    values.append(b"more")
    assert values == [*VALUES, b"more"]


def test_columns_cannot_be_written(compiled: Engine) -> None:
    rows = compiled.ColumnBuilder()
    rows.append(b"abc", 5, 13)
    positions = rows.take().positions
    assert isinstance(positions, memoryview)
    with pytest.raises(TypeError):
        positions[0] = 1
    with pytest.raises(TypeError):
        BytesIO(bytes(8)).readinto(positions.obj)  # asks their owner, not the view
    assert positions.tolist() == [5]


def test_columns_live_as_long_as_a_view_of_them(compiled: Engine) -> None:
    rows = compiled.ColumnBuilder()
    for n in range(1000):
        rows.append(b"%d" % n, n, n + 1)
    values, positions, *_ = listed(rows.take())
    part, some = values[500:502], positions[500:502]
    del rows, values, positions
    gc.collect()
    bytearray(100_000)  # something else in the memory, if it were free
    assert (list(part), list(some)) == ([b"500", b"501"], [500, 501])


def test_rows_go_on_while_columns_are_looked_at(compiled: Engine) -> None:
    rows = compiled.ColumnBuilder()
    rows.append(b"one", 0, 13)
    values = rows.take().values
    rows.append(b"two", 13, 26)
    assert (list(values), list(rows.take().values)) == ([b"one"], [b"two"])


def test_no_columns_are_columns_too(compiled: Engine) -> None:
    values, positions, nexts, inner, *_ = listed(compiled.ColumnBuilder().take())
    assert (list(values), list(positions), list(nexts), inner) == ([], [], [], None)
    assert isinstance(values, PackedBytes)
    assert (values.offsets.tolist(), values.payload_bytes) == ([0], 0)


def test_what_is_taken_is_not_taken_from_the_values_of_a_wrapper(compiled: Engine) -> None:
    rows, values = compiled.ColumnBuilder(), compiled.PayloadBuilder()
    values.append(b"inner")
    rows.add_wrapper(values, 0, 1)
    rows.add_wrapper(values, 1, 2)
    values.append(b"later")
    assert (list(rows.take().values), values.tolist()) == ([b"inner", b"inner"], [b"inner", b"later"])
