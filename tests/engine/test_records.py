"""Records of 0.8 and later: both engines do the same, function by function."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.columns import pack, pack_headers
from tests.engine.fuzz import plain

from odradek import engine as engines
from odradek.core.interfaces import ProducerRecord
from odradek.engine import Engine, Headers

PURE, COMPILED = engines.engine("pure"), engines.engine("compiled")
BOTH = (PURE, COMPILED)

strings = st.none() | st.binary(max_size=150)
numbers = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-70, 70)
headers = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=4), strings), max_size=3).map(tuple)
rows = st.lists(st.tuples(strings, strings, headers, numbers), max_size=8)


def outcome(function: object, *arguments: object) -> object:
    try:
        return function(*arguments)  # type: ignore[operator]
    except (ValueError, OverflowError, TypeError) as error:
        return type(error)


def decoded(engine: Engine, data: bytes, start: int, stop: int, batch: tuple[int, int, int, int, int, bool]) -> object:
    made = engine.RecordBuilder()
    story = [
        outcome(made.decode_batch, data, start, stop, *batch),
        outcome(made.decode_messages, data, start, stop, batch[3], batch[1], None, 100),
        outcome(made.decode_batches, data, start, stop, batch[3]),
        outcome(made.decode_messages, memoryview(data), start, stop, 0, 0, batch[4]),
    ]
    made.append(memoryview(b"raw"), 4, 9)
    story.append(outcome(made.decode_batch, memoryview(bytearray(data)), start, stop, *batch))
    count = len(made)
    return story, count, plain(made.take()), plain(made.take())


HEADER_BYTES = 61


@settings(deadline=None)
@given(rows=rows, base=numbers, producer=st.integers(-2, 1 << 15))
def test_records_are_written_alike(
    rows: list[tuple[bytes | None, bytes | None, Headers, int]], base: int, producer: int
) -> None:
    values, keys = [row[0] for row in rows], [row[1] for row in rows]
    pairs, times = [row[2] for row in rows], [row[3] for row in rows]
    for compress in (None, bytes, lambda data: data[::-1] + b"more"):
        fields = values, keys, pairs, times, 16, base, producer, producer, producer, compress
        one, other = (outcome(engine.encode_batch, *fields) for engine in BOTH)
        assert one == other
    assert PURE.encode_batch(values) == COMPILED.encode_batch(values)
    for kind in "iq":
        columns = pack(values, kind), pack(keys, kind), pack_headers(pairs, kind), memoryview(array("q", times))
        for start in range(min(2, len(rows) + 1)):
            listed = [column[start:] for column in (values, keys, pairs, times)]
            packed = [column[start:] for column in columns]
            assert len({str(outcome(engine.encode_batch, *each)) for engine in BOTH for each in (listed, packed)}) == 1
    for magic in (0, 1):
        one, other = (engine.encode_messages(values, keys, times, magic, 8, 1 << 40) for engine in BOTH)
        assert one == other
        assert PURE.encode_messages(values, magic=magic) == COMPILED.encode_messages(values, magic=magic)


records = st.one_of(
    st.binary(max_size=20),
    st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=20), st.just(()), st.none() | numbers),
)
TOO_LARGE = [(1 << 63,), (-(1 << 63) - 1,)]
HOSTILE = [
    None,
    "text",
    7,
    bytearray(b"no bytes"),
    (),
    (b"value",),
    (b"value", b"key", (), None, b"more"),
    (b"value", b"key", None, None),
    (b"value", b"key", 5, None),
    (b"value", b"key", [("name", b"a header")], None),
    ("text", None, (), None),
    (None, "text", (), None),
    (bytearray(b"no bytes"), None, (), None),
    (b"value", None, (), "late"),
    *((b"value", None, (), *time) for time in TOO_LARGE),
]


@settings(deadline=None)
@given(
    runs=st.lists(st.lists(records, max_size=5), max_size=5),
    attributes=st.sampled_from([0, 16, 1 << 15]),
    producer=st.integers(-2, 1 << 15),
    now=numbers,
)
def test_runs_are_written_alike_and_as_one_by_one(
    runs: list[list[Any]], attributes: int, producer: int, now: int
) -> None:
    stamps = [(attributes, producer, producer, number) for number in range(len(runs))]
    one, other = (outcome(engine.encode_batches, runs, stamps, now) for engine in BOTH)
    assert one == other
    if isinstance(one, list):
        rows = [[(each, None, (), None) if isinstance(each, bytes) else each for each in run] for run in runs]
        assert one == [
            PURE.encode_batch(
                [row[0] for row in run],
                [row[1] for row in run],
                None,
                [now if row[3] is None else row[3] for row in run],
                attributes,
                0,
                *stamp[1:],
            )
            for run, stamp in zip(rows, stamps, strict=True)
        ]


@pytest.mark.parametrize("record", HOSTILE, ids=repr)
def test_a_run_with_anything_but_plain_records_is_refused(engine: Engine, record: object) -> None:
    kind = OverflowError if isinstance(record, tuple) and record[3:] in TOO_LARGE else TypeError
    with pytest.raises(kind):
        engine.encode_batches([[b"x"], [b"y", record, b"z"]], [(0, -1, -1, -1)] * 2, 5)
    for runs in ([None], [7], None):
        with pytest.raises(TypeError):
            engine.encode_batches(runs, [(0, -1, -1, -1)], 5)  # type: ignore[arg-type]


def test_there_is_a_stamp_for_each_run(engine: Engine) -> None:
    with pytest.raises(ValueError, match="1 stamps for 2 runs"):
        engine.encode_batches([[b"x"], [b"y"]], [(0, -1, -1, -1)], 5)
    assert engine.encode_batches([], [], 5) == []


def test_runs_of_records_as_bytes(engine: Engine) -> None:
    runs = [[b"a", ProducerRecord(None, b"k", (), 9)], (ProducerRecord(b"c", b""),)]
    batches = engine.encode_batches(runs, [(16, 1, 2, 3), (0, -1, -1, -1)], 7)
    assert batches == [
        engine.encode_batch([b"a", None], [None, b"k"], None, [7, 9], 16, 0, 1, 2, 3),
        engine.encode_batch([b"c"], [b""], None, [7]),
    ]
    assert batches[1].hex() == (
        "0000000000000000"
        "00000039"
        "ffffffff"
        "02"
        "5bed3b58"  # offset, length, leader's epoch, magic, CRC
        "0000"
        "00000000"
        "0000000000000007"
        "0000000000000007"  # attributes, last delta, times
        "ffffffffffffffff"
        "ffff"
        "ffffffff"
        "00000001"  # producer, how many
        "0e"
        "00"
        "00"
        "00"
        "00"
        "0263"
        "00"  # length, attributes, deltas, key, value, headers
    )


@settings(deadline=None)
@given(
    rows=rows,
    junk=st.binary(max_size=40),
    at=st.integers(-1, 200),
    start=st.integers(-1, 3),
    short=st.integers(-1, 3),
    batch=st.tuples(
        st.integers(-1, 9),
        st.integers(0, 5),
        st.integers(-1, 9),
        st.integers(0, 9),
        numbers,
        st.booleans(),
    ),
)
def test_records_sound_or_not_are_read_alike(
    rows: list[tuple[bytes | None, bytes | None, Headers, int]],
    junk: bytes,
    at: int,
    start: int,
    short: int,
    batch: tuple[int, int, int, int, int, bool],
) -> None:
    values, keys, pairs, times = ([row[column] for row in rows] for column in range(4))
    for data in (
        PURE.encode_batch(values, keys, pairs, times)[HEADER_BYTES:],  # type: ignore[arg-type]
        PURE.encode_messages(values, keys, times, 1, 0, batch[3]),  # type: ignore[arg-type]
        PURE.encode_messages(values, keys, None, 0),  # type: ignore[arg-type]
    ):
        changed = data if at < 0 else data[:at] + junk + data[at + len(junk) :]
        one, other = (decoded(engine, changed, start, len(changed) - short, batch) for engine in BOTH)
        assert one == other
        assert PURE.scan_messages(changed) == COMPILED.scan_messages(changed)


@pytest.mark.parametrize("number", [0, 63, 64, -64, -65, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63)])
def test_numbers_at_the_limits_of_their_types(engine: Engine, number: int) -> None:
    data = engine.encode_batch([b"x", b"y"], None, None, [0, number])
    made = engine.RecordBuilder()
    assert made.decode_batch(data, HEADER_BYTES, len(data), 2, 0, 1, 0, 0, False) == (len(data), 2, 2)
    assert plain(made.take().timestamps) == [0, number]


@pytest.mark.parametrize(
    "record",
    [
        b"\x80\x80\x80\x80\x80\x00" + bytes(20),  # a length of 6 bytes
        b"\xfe\xff\xff\xff\x1f" + bytes(20),  # of more than 32 bits
        b"\x1e\0" + b"\xff" * 10 + bytes(4),  # a time of more than 64 bits
        b"\x0c\0\0\0\3\1\0",  # a key of -2 bytes
        b"\x0c\0\0\0\1\3\0",  # a value of -2 bytes
        b"\x0c\0\0\0\1\1\2",  # a header without a byte
        b"\x10\0\0\0\1\1\2\1\1",  # a header without a name
        b"\x0c\0\0\0\1\1\1",  # -1 headers
        b"\x0a\0\0\0\1\1\0",  # a length that is too small
        b"\x0e\0\0\0\1\1\0\0",  # and one that is too large
        b"\1" + bytes(20),  # a negative length
        b"\x0c\0\0\1\1\1\0",  # a negative offset
        b"\x0c\0\0\4\1\1\0",  # an offset that is not of the batch
    ],
)
def test_records_that_cannot_be_are_not_taken(engine: Engine, record: bytes) -> None:
    good = engine.encode_batch([b"x"])[HEADER_BYTES:]
    made = engine.RecordBuilder()
    data = good + record
    assert made.decode_batch(data, 0, len(data), 2, 50, 1, 0, 0, False) == (len(good), 1, 51)
    assert len(made) == 1


def test_crc32c_is_that_of_castagnoli(engine: Engine) -> None:
    assert engine.crc32c(b"123456789") == 0xE3069283
    assert engine.crc32c(b"") == 0
    assert engine.crc32c(bytes(32)) == 0x8A9136AA


@pytest.mark.parametrize("size", [1, 191, 192, 193, 65535, 65536, 65537, 65536 + 100, 65536 + 5000, 200_000])
def test_crc32c_goes_on_from_what_stands_before(size: int) -> None:
    data = random.Random(size).randbytes(size)
    whole = COMPILED.crc32c(data)
    assert PURE.crc32c(data) == whole
    for cut in {0, 1, size // 3, size - 1}:
        for engine in BOTH:
            assert engine.crc32c(memoryview(data)[cut:], engine.crc32c(data[:cut])) == whole


def test_buffers_that_do_not_hold_what_is_asked_for_are_refused(engine: Engine) -> None:
    made = engine.RecordBuilder()
    for start, stop in ((-1, 2), (2, 1), (0, 4)):
        with pytest.raises(ValueError, match=r"does not lie within 3 bytes"):
            made.decode_batches(b"abc", start, stop, 0)
        with pytest.raises(ValueError, match=r"does not lie within 3 bytes"):
            made.decode_batch(b"abc", start, stop, 1, 0, 0, 0, 0, False)
        with pytest.raises(ValueError, match=r"does not lie within 3 bytes"):
            made.decode_messages(b"abc", start, stop, 0)


def test_packed_headers_are_of_as_many_rows_as_the_values(engine: Engine) -> None:
    with pytest.raises(ValueError, match="a column has 1 rows, not 2"):
        engine.encode_batch([b"a", b"b"], None, pack_headers([(("h", b""),)]))


def test_columns_of_times_may_be_views(engine: Engine) -> None:
    times = memoryview(array("q", [5, 6]))
    assert engine.encode_batch([b"a", b"b"], None, None, times) == engine.encode_batch([b"a", b"b"], None, None, [5, 6])
    with pytest.raises(OverflowError):
        engine.encode_batch([b"a"], None, None, [1 << 63])


def test_a_batch_has_the_crc_of_what_stands_behind_it(engine: Engine) -> None:
    data = engine.encode_batch([b"a", None], [None, b"k"], None, [9, 7], 0, 5, 1, 2, 3)
    assert int.from_bytes(data[17:21], "big") == engine.crc32c(data[21:])
    assert int.from_bytes(data[8:12], "big") == len(data) - 12
    assert [int.from_bytes(data[at : at + 8], "big") for at in (0, 27, 35)] == [5, 9, 9]
    assert len(engine.encode_batch([])) == HEADER_BYTES
