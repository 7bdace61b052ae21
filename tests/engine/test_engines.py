"""What both engines do, by tables and by bytes written down elsewhere."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from zlib import crc32

import pytest
from tests.engine import fuzz

from odradek import engine as engines
from odradek.engine import Buffer, Engine, PackedBytes

from ..columns import listed

GOLDEN = [
    (b"", "00000006 01 00 00000000"),
    (b"abc", "00000009 01 00 352441c2 616263"),
    (bytes(range(8)), "0000000e 01 00 88aa689f 0001020304050607"),
]
"""Payload -> its entry, as the fields of specification 2.1; the CRCs are those of RFC 1952."""


def packed(values: Sequence[bytes], code: str = "i") -> PackedBytes:
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value))
    return PackedBytes(memoryview(array(code, ends)), memoryview(b"".join(values)))


@pytest.fixture
def entry() -> Callable[..., bytes]:
    make: Callable[..., bytes] = fuzz.entry
    return make


def test_an_engine_says_which_it_is() -> None:
    assert [engines.engine(name).NAME for name in engines.ENGINES] == ["compiled", "pure"]


# ---- encoding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "golden"), GOLDEN)
def test_an_entry_is_what_the_specification_draws(engine: Engine, value: bytes, golden: str) -> None:
    encoded = bytes.fromhex(golden)
    assert engine.encode_run([value]) == encoded
    rows = engine.ColumnBuilder()
    assert rows.decode_run(encoded, 0, len(encoded)) == len(encoded)
    assert list(rows.take().values) == [value]


def test_a_frame_has_its_length_its_head_and_each_run_behind_its_own(engine: Engine) -> None:
    runs: list[Sequence[object]] = [[b"a", (b"bc", b"key", ())], [], packed([b"", b"d"])]
    sets = [engine.encode_run([b"a", b"bc"]), b"", engine.encode_run([b"", b"d"])]
    heads = [b"first", b"", b"third"]
    body = b"head" + b"".join(
        head + len(part).to_bytes(4, "big") + part for head, part in zip(heads, sets, strict=True)
    )
    frame = len(body).to_bytes(4, "big") + body
    assert engine.encode_frame(b"head", heads, runs, b"tail", 23) == frame + b"tail"
    assert engine.encode_frame(b"head", heads, runs, b"", 22) is None
    assert engine.encode_frame(b"", [], [], b"", 0) == bytes(4)


@pytest.mark.parametrize("payload", [None, bytearray(b"x"), "x", (None, b"key"), ("x",)])
def test_a_frame_takes_payloads_of_bytes_alone(engine: Engine, payload: object) -> None:
    with pytest.raises(TypeError):
        engine.encode_frame(b"", [b""], [[b"x", payload]], b"", 100)
    with pytest.raises(ValueError, match="1 heads for 2 runs"):
        engine.encode_frame(b"", [b""], [[], []], b"", 100)


@pytest.mark.parametrize("code", ["i", "q"])
def test_packed_strings_encode_as_a_list_does(engine: Engine, code: str) -> None:
    values = [b"one", b"", b"three" * 50]
    strings = packed(values, code)
    assert engine.encode_run(strings) == engine.encode_run(values) == engine.encode_run(tuple(values))
    assert engine.encode_run(strings[1:]) == engine.encode_run(values[1:])
    assert engine.encode_run(strings[3:]) == engine.encode_run([]) == b""


def test_attributes_go_into_their_field(engine: Engine) -> None:
    assert engine.encode_run([b"", b"x"], 0x85) == engine.encode_run([b"", b"x"]).replace(b"\1\0", b"\1\x85")
    for unfit in (-1, 256, 0xFFFF, 1 << 70):
        with pytest.raises(OverflowError):
            engine.encode_run([b""], unfit)


@pytest.mark.slow
def test_a_payload_whose_length_does_not_fit_is_refused(engine: Engine) -> None:
    most = bytes((1 << 31) - 6)  # zeros that nobody writes: the system need not have them
    with pytest.raises(OverflowError):
        engine.encode_run([b"x", most])


@pytest.mark.parametrize("odd", [None, 7, "text", [b"x"]])
def test_what_is_not_bytes_is_not_encoded(engine: Engine, odd: object) -> None:
    values: list[object] = [b"x", odd]
    with pytest.raises(TypeError):
        engine.encode_run(values)  # type: ignore[arg-type]


def test_other_buffers_encode_as_their_bytes_do(engine: Engine) -> None:
    class Named(bytes):
        pass

    values: list[Buffer] = [b"a", bytearray(b"b"), memoryview(b"xcx")[1:2], Named(b"d")]
    assert engine.encode_run(values) == engine.encode_run([b"a", b"b", b"c", b"d"])  # type: ignore[arg-type]


# ---- decoding -----------------------------------------------------------------------------------------------


def test_a_run_of_both_magics_becomes_rows(engine: Engine, entry: Callable[..., bytes]) -> None:
    parts = [entry(b"one", 1, 0), entry(b"old", 0, 0), entry(b"", 0, 0), entry(b"two", 1, 0xFC), entry(b"", 1, 0)]
    data = b"".join(parts)
    rows = engine.ColumnBuilder()
    assert rows.decode_run(data, 0, len(data), 1000) == len(data)
    assert engine.check_run(data, 0, len(data)) == (len(data), 5)
    values, positions, nexts, inner, *_ = listed(rows.take())
    assert list(values) == [b"one", b"old", b"", b"two", b""]
    assert list(positions) == [1000, 1013, 1025, 1034, 1047]
    assert list(nexts) == [1013, 1025, 1034, 1047, 1057]
    assert inner is None


ODD = {
    "gzip": (1, 1, {}),
    "snappy": (1, 2, {}),
    "no codec": (1, 3, {}),
    "gzip and upper bits": (1, 0xFD, {}),
    "magic 2": (2, 0, {}),
    "magic 255": (255, 0, {}),
    "crc": (1, 0, {"crc": 1}),
    "crc of magic 0": (0, 0, {"crc": 1 << 24}),
    "low byte of the crc of magic 0": (0, 0, {"crc": 1}),
    "too long": (1, 0, {"longer": 1}),
    "too short": (1, 0, {"longer": -1}),
    "length 5": (1, 0, {"longer": -20}),
    "length 0": (1, 0, {"longer": -25}),
    "negative": (1, 0, {"longer": -26}),
    "most negative": (1, 0, {"longer": 1 << 31}),
    "longest": (1, 0, {"longer": 0x7FFFFFFF - 25}),
}


@pytest.mark.parametrize("tail", [0, 1, 9, 10, 40])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_run_stops_in_front_of_anything_odd(
    engine: Engine, entry: Callable[..., bytes], odd: tuple[int, int, dict[str, int]], tail: int
) -> None:
    magic, attributes, damage = odd
    good = entry(b"good", 1, 0)
    data = good + entry(bytes(19), magic, attributes, **damage) + good * (tail // 10) + bytes(tail % 10)
    rows, values = engine.ColumnBuilder(), engine.PayloadBuilder()
    assert rows.decode_run(data, 0, len(data)) == values.decode_run(data, 0, len(data)) == len(good)
    assert engine.check_run(data, 0, len(data)) == (len(good), 1)
    assert len(rows) == len(values) == 1


def test_the_last_ten_bytes_hide_an_empty_old_message(engine: Engine, entry: Callable[..., bytes]) -> None:
    data = entry(b"", 0, 0) * 3
    for stop in range(len(data)):
        assert engine.check_run(data, 0, stop) == (9 * (max(stop - 1, 0) // 9), max(stop - 1, 0) // 9)
    assert engine.check_run(entry(b"x", 0, 0), 0, 10) == (10, 1)


@pytest.mark.parametrize("limit", [-(1 << 40), -1, 0, 4, 9, 10, 12, 13, 14, 110, 111, 1 << 40])
def test_a_run_stops_in_front_of_what_is_larger_than_the_limit(engine: Engine, limit: int) -> None:
    data = engine.encode_run([b"", b"abc", b"abcd", bytes(100), bytes(101)])
    expected = sum(size <= limit for size in (10, 13, 14, 110, 111))
    assert engine.check_run(data, 0, len(data), limit)[1] == expected
    rows = engine.ColumnBuilder()
    rows.decode_run(data, 0, len(data), 0, limit)
    assert len(rows) == expected


def test_every_cut_of_a_set_gives_the_whole_messages_before_it(engine: Engine) -> None:
    data = engine.encode_run([b"x" * n for n in range(9)])
    ends = [0, *(end for _, end in pairwise(range(len(data) + 1)) if engine.check_run(data, 0, end)[0] == end)]
    for stop in range(len(data) + 1):
        whole = max(end for end in ends if end <= stop)
        assert engine.check_run(data, 0, stop) == engine.check_run(data[:stop], 0, stop) == (whole, ends.index(whole))


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (0, 12), (6, 5), (12, 12), (0, -1), (-11, -1)])
def test_a_range_outside_of_the_data_is_refused(engine: Engine, start: int, stop: int) -> None:
    data = engine.encode_run([b"x"])
    for call in (engine.check_run, engine.ColumnBuilder().decode_run, engine.PayloadBuilder().decode_run):
        with pytest.raises(ValueError, match=rf"{start}:{stop} does not lie within 11 bytes of data"):
            call(data, start, stop)


def test_positions_that_do_not_fit_are_refused(engine: Engine) -> None:
    data = engine.encode_run([b"x"])
    rows = engine.ColumnBuilder()
    for base in ((1 << 63) - 11, 1 << 63, -(1 << 63) - 1, 1 << 80):
        with pytest.raises(OverflowError):
            rows.decode_run(data, 0, 11, base)
    assert not len(rows)
    assert rows.decode_run(data, 0, 11, (1 << 63) - 12) == rows.decode_run(data, 0, 11, -(1 << 63)) == 11
    assert list(rows.take().next_positions) == [(1 << 63) - 1, -(1 << 63) + 11]


def test_a_crc_goes_on_from_another(engine: Engine) -> None:
    assert engine.crc32(b"") == 0
    assert engine.crc32(b"123456789") == engine.crc32(b"456789", engine.crc32(b"123")) == 0xCBF43926
    large = bytes(range(256)) * 1000
    for cut in (1, 15, 100, 100_000):
        before = engine.crc32(memoryview(large)[:cut])
        assert engine.crc32(memoryview(bytearray(large))[cut:], before) == crc32(large)


# ---- rows ---------------------------------------------------------------------------------------------------


def test_rows_are_given_up_once(engine: Engine) -> None:
    rows = engine.ColumnBuilder()
    rows.append(b"one", 0, 13)
    first = listed(rows.take())
    rows.append(b"two", 13, 26)
    assert [list(column) for column in first[:3] if column is not None] == [[b"one"], [0], [13]]
    assert [list(column) for column in listed(rows.take())[:3] if column is not None] == [[b"two"], [13], [26]]
    assert [list(column) for column in listed(rows.take())[:3] if column is not None] == [[], [], []]


def test_messages_of_a_wrapper_share_its_position(engine: Engine) -> None:
    rows, values = engine.ColumnBuilder(), engine.PayloadBuilder()
    inner = engine.encode_run([b"a", b"b"])
    assert values.decode_run(inner, 0, len(inner)) == len(inner)
    values.append(memoryview(b"c"))
    assert (len(values), values.payload_bytes, values.tolist()) == (3, 3, [b"a", b"b", b"c"])
    rows.append(b"before", 0, 16)
    rows.add_wrapper(engine.PayloadBuilder(), 5, 6)
    rows.add_wrapper(values, 16, 100)
    rows.decode_run(inner, 0, len(inner), 100)
    rows.append(b"inside", 122, 150, 7)
    assert len(rows) == 7
    taken, positions, nexts, inner_indexes, *_ = listed(rows.take())
    assert list(taken) == [b"before", b"a", b"b", b"c", b"a", b"b", b"inside"]
    assert list(positions) == [0, 16, 16, 16, 100, 111, 122]
    assert list(nexts) == [16, 16, 16, 100, 111, 122, 150]
    assert inner_indexes is not None
    assert list(inner_indexes) == [0, 0, 1, 2, 0, 0, 7]
    assert rows.take().inner_indexes is None


def test_a_wrapper_of_one_message_needs_no_inner_index(engine: Engine) -> None:
    rows, values = engine.ColumnBuilder(), engine.PayloadBuilder()
    values.append(b"alone")
    rows.add_wrapper(values, 1, 2)
    assert rows.take().inner_indexes is None


# ---- fit and unpack -----------------------------------------------------------------------------------------

FITS = [
    # start, stop, max_bytes, row_bytes, max_row, and what comes of the lengths 3, 0, 4, 1
    (0, 4, 100, 10, 100, (4, 8)),
    (0, 4, 27, 10, 100, (2, 3)),
    (0, 4, 37, 10, 100, (3, 7)),
    (0, 4, 12, 10, 100, (0, 0)),
    (0, 4, 1 << 40, 10, 3, (2, 3)),
    (0, 4, 1 << 40, 10, -1, (0, 0)),
    (1, 4, 14, 5, 100, (3, 4)),
    (1, 3, 1 << 40, 0, 100, (3, 4)),
    (4, 4, 100, 0, 100, (4, 0)),
    (0, 4, -1, 0, 100, (0, 0)),
    (0, 4, 7, 0, 100, (3, 7)),
]


@pytest.mark.parametrize(("start", "stop", "max_bytes", "row_bytes", "max_row", "expected"), FITS)
def test_what_fits(
    engine: Engine, start: int, stop: int, max_bytes: int, row_bytes: int, max_row: int, expected: tuple[int, int]
) -> None:
    values = [b"abc", b"", b"abcd", b"a"]
    for some in (values, tuple(values), packed(values), packed(values, "q")):
        assert engine.fit(some, start, stop, max_bytes, row_bytes, max_row) == expected


class Text(bytes):
    pass


@pytest.mark.parametrize("odd", [None, "text", bytearray(b"x"), memoryview(b"x"), Text(b"x"), [b"x"]])
def test_only_bytes_fit(engine: Engine, odd: object) -> None:
    assert engine.fit([b"abc", b"de", odd, b"f"], 0, 4, 1000, 1, 100) == (2, 5)
    assert engine.fit((b"abc", b"de", odd, b"f"), 2, 4, 1000, 1, 100) == (2, 0)


def with_null(code: str = "i") -> PackedBytes:
    """The rows b"abc", None, b"d"; the null has bytes of its own, as it may in Arrow."""
    return PackedBytes(memoryview(array(code, [0, 3, 5, 6])), memoryview(b"abc??d"), memoryview(b"\1\0\1"))


def test_a_null_fits_only_where_nulls_are_allowed(engine: Engine) -> None:
    values = [b"abc", None, b"d"]
    for some in (values, tuple(values), with_null(), with_null("q")):
        assert engine.fit(some, 0, 3, 1000, 1, 100) == (1, 3)
        assert engine.fit(some, 0, 3, 1000, 1, 100, nullable=True) == (3, 4)
        assert engine.fit(some, 1, 3, 2, 1, 100, nullable=True) == (2, 0)


def test_a_null_is_no_payload_of_an_entry(engine: Engine) -> None:
    for some in ([b"abc", None], (b"abc", None), with_null(), with_null("q")):
        with pytest.raises(TypeError):
            engine.encode_run(some)
    assert engine.encode_run(with_null()[2:]) == engine.encode_run([b"d"])


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 4), (2, 1), (4, 4)])
def test_what_is_not_there_does_not_fit(engine: Engine, start: int, stop: int) -> None:
    values = [b"a", b"b", b"c"]
    for some in (values, tuple(values), packed(values)):
        with pytest.raises(ValueError, match=f"{start}:{stop} does not lie within 3 values"):
            engine.fit(some, start, stop, 100, 0, 100)


@pytest.mark.parametrize("code", ["i", "q"])
def test_packed_strings_are_unpacked(engine: Engine, code: str) -> None:
    for offsets, expected in (([0, 3, 3, 5], [b"abc", b"", b"de"]), ([2, 4], [b"cd"]), ([9], []), ([], [])):
        assert engine.unpack(memoryview(array(code, offsets)), b"abcde") == expected
        assert engine.unpack(memoryview(array(code, offsets)), memoryview(bytearray(b"abcde"))) == expected


@pytest.mark.parametrize("code", ["i", "q"])
def test_rows_that_are_not_valid_are_null(engine: Engine, code: str) -> None:
    offsets = memoryview(array(code, [0, 3, 3, 5]))
    assert engine.unpack(offsets, b"abcde", b"\0\1\2") == [None, b"", b"de"]
    assert engine.unpack(offsets, b"abcde", memoryview(bytearray(3))) == [None, None, None]
    assert engine.unpack(offsets, b"abcde", None) == [b"abc", b"", b"de"]
    for validity in (b"", b"\1\1", b"\1\1\1\1"):
        with pytest.raises(ValueError, match=f"validity is for {len(validity)} rows, not 3"):
            engine.unpack(offsets, b"abcde", validity)


@pytest.mark.parametrize("offsets", [[0, 6], [-1, 2], [3, 2], [0, 5, 4], [0, 2, (1 << 31) - 1], [-(1 << 31), 0]])
@pytest.mark.parametrize("code", ["i", "q"])
def test_offsets_that_do_not_ascend_within_the_data_are_refused(engine: Engine, offsets: list[int], code: str) -> None:
    ends = memoryview(array(code, offsets))
    with pytest.raises(ValueError, match="offsets do not ascend"):
        engine.unpack(ends, b"abcde")
    with pytest.raises(ValueError, match="offsets do not ascend"):
        engine.encode_run(PackedBytes(ends, memoryview(b"abcde")))
