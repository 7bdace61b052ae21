"""Message sets: encoding, decoding in any split, positions, limits, and what happens to damaged entries.

Source: specification section 2; golden bytes in App. C.
"""

from __future__ import annotations

import time
import tracemalloc
from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import allocation_of

from odradek import engine as engines
from odradek.batch import Batch
from odradek.core.interfaces import DecoderOptions, LogDecoder
from odradek.engine import PackedBytes
from odradek.errors import ConfigError, CorruptMessage, LocalProtocolError, MessageTooLarge, RemoteProtocolError
from odradek.types import Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.compression import COMPRESSIONS
from odradek.wire.kafka07.decompress import MAX_NESTING, ROW_BYTES
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set, entry_bytes

if TYPE_CHECKING:
    from tests.wire.conftest import Decode

    MakeEntry = Callable[..., bytes]
    MakeWrapper = Callable[[CompressionType, bytes], bytes]
    Shape = Callable[[int, str], tuple[object, ...]]

GZIP, SNAPPY = CompressionType.GZIP, CompressionType.SNAPPY
pytestmark = pytest.mark.usefixtures("engine")

PARTITION = TopicPartition("t", 0, 1)
FAIL, SKIP, RAW = DecoderOptions(), DecoderOptions(corrupt="skip"), DecoderOptions(corrupt="raw")


def decoder(options: DecoderOptions = FAIL, start: int = 0) -> MessageSetDecoder:
    return MessageSetDecoder(PARTITION, Position(start), options)


# ---- encoding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "compression", "magic", "golden"),
    [
        ([b"hello", b""], CompressionType.NONE, 1, "0000000b 01 00 3610a686 68656c6c6f 00000006 01 00 00000000"),
        ([b"hello", b""], CompressionType.NONE, 0, "0000000a 00 3610a686 68656c6c6f 00000005 00 00000000"),
        ([], CompressionType.NONE, 1, ""),
        ([], GZIP, 1, ""),
        ([], SNAPPY, 1, ""),
        (
            [b"one", b"two"],
            SNAPPY,
            1,
            "00000036 01 02 2843cb4f 82534e4150505900 00000001 00000001"
            "0000001c 1a64 00000009 01 00 7a6c86f1 6f6e65 00000009 01 00 11ca8a66 74776f",
        ),
    ],
)
def test_golden_sets(values: list[bytes], compression: CompressionType, magic: int, golden: str) -> None:
    assert encode_set(values, compression, magic) == bytes.fromhex(golden)


def test_golden_gzip_set_decodes(decode: Decode) -> None:
    golden = bytes.fromhex(
        "00000031 01 01 2f0e26781f8b08000000000000ff636060e06464a8ca69fb989f97ca00e6089eea4a2b29cf07005706a9481a000000"
    )
    assert decode(golden).columns.values == [b"one", b"two"]
    assert len(encode_set([b"one", b"two"], GZIP)) == len(golden)  # the bytes differ between zlibs


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("size", [0, 1, 1000])
def test_entry_bytes_is_what_an_entry_takes(size: int, magic: int) -> None:
    assert len(encode_set([bytes(size)], magic=magic)) == entry_bytes(size, magic)


@pytest.mark.parametrize(("compression", "magic"), [(GZIP, 0), (CompressionType.NONE, 2)])
def test_what_has_no_bytes_is_refused(compression: CompressionType, magic: int) -> None:
    with pytest.raises(LocalProtocolError):
        encode_set([b""], compression, magic)


def test_a_length_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_long(values: list[bytes], attributes: int) -> bytes:
        raise OverflowError

    monkeypatch.setattr(engines.active, "encode_run", too_long)
    with pytest.raises(LocalProtocolError, match="2 GiB or more"):
        encode_set([b""])


def test_packed_payloads_are_encoded_like_a_list_of_them() -> None:
    packed = PackedBytes(memoryview(array("i", [0, 3, 3, 10])), memoryview(b"onethreefour"))
    for compression in COMPRESSIONS:
        assert encode_set(packed, compression) == encode_set([b"one", b"", b"threefo"], compression)
    assert encode_set(packed[1:2]) == encode_set([b""])
    assert encode_set(packed[1:1], GZIP) == b""
    assert encode_set(packed, magic=0) == encode_set(list(packed), magic=0)


payloads = st.lists(st.binary(max_size=60), max_size=8)
cuts = st.lists(st.integers(0, 10_000), max_size=12)


@given(values=payloads, compression=st.sampled_from(COMPRESSIONS), splits=cuts, start=st.integers(0, 1 << 40))
def test_round_trip_in_any_split(
    values: list[bytes], compression: CompressionType, splits: list[int], start: int
) -> None:
    data = encode_set(values, compression)
    d = decoder(start=start)
    for a, b in pairwise([0, *sorted(min(cut, len(data)) for cut in splits), len(data)]):
        d.feed(memoryview(data)[a:b])
    columns = d.take()
    assert d.error is None
    assert columns.values == values
    assert d.position == d.fetch_position == start + len(data)


# ---- positions ----------------------------------------------------------------------------------------------


def test_case_22_an_empty_payload_is_ten_bytes(decode: Decode) -> None:
    data = bytes.fromhex("00000006 01 00 00000000")
    got = decode(data, start=100)
    assert got.columns.values == [b""]
    assert (got.columns.positions, got.columns.next_positions) == ([100], [110])


def test_case_23_both_magics_mix_in_one_set(decode: Decode) -> None:
    data = encode_set([b"old"], magic=0) + encode_set([b"new"]) + encode_set([b"old again", b""], magic=0)
    for split in ((), range(len(data))):
        got = decode(data, cuts=split)
        assert got.columns.values == [b"old", b"new", b"old again", b""]
        assert got.columns.next_positions == [12, 25, 43, 52]
        assert got.columns.inner_indexes is None


@pytest.fixture
def example(wrapper: MakeWrapper) -> bytes:
    """The example of specification 2.3; sizes of compressed entries depend on the zlib in use."""
    inner = encode_set([b"one", b"two"])
    return b"".join(
        [
            encode_set([b"first"]),
            wrapper(GZIP, inner),
            encode_set([b"last"]),
            wrapper(GZIP, wrapper(GZIP, inner) + encode_set([b"three"])),
            encode_set([b"end"]),
            wrapper(GZIP, b""),
            encode_set([b"x" * 10]),
        ]
    )


@pytest.mark.parametrize("step", [1, 2, 13, 1 << 20])
def test_case_35_positions_of_the_specification_s_example(example: bytes, decode: Decode, step: int) -> None:
    lengths, at = [], 0
    while at < len(example):
        lengths.append(at)
        at += 4 + int.from_bytes(example[at : at + 4], "big")
    first, plain, last, nested, end, empty, x = lengths
    assert (first, plain, last) == (0, 15, 68)
    got = decode(example, cuts=range(0, len(example), step)).columns
    assert got.values == [b"first", b"one", b"two", b"last", b"one", b"two", b"three", b"end", b"x" * 10]
    assert got.positions == [first, plain, plain, last, nested, nested, nested, end, x]
    assert got.next_positions == [15, 15, 68, nested, nested, nested, end, empty, len(example)]
    assert got.inner_indexes == [0, 0, 1, 0, 0, 1, 2, 0, 0]
    records = list(Batch(PARTITION, got))
    assert (records[1].value, records[1].next_position, records[2].next_position) == (b"one", 15, 68)


def test_case_36_gzip_within_snappy_decodes(wrapper: MakeWrapper, decode: Decode) -> None:
    big = b"a" * 40000
    data = wrapper(SNAPPY, wrapper(GZIP, encode_set([b"one", big])) + encode_set([b"two"]))
    assert decode(data).columns.values == [b"one", big, b"two"]
    assert decode(encode_set([big], SNAPPY)).columns.values == [big]


def test_case_37_a_cut_window_gives_what_is_whole_and_keeps_the_rest(decode: Decode) -> None:
    got = decode(encode_set([b"one", b"two"])[:14])
    assert (got.columns.values, got.columns.next_positions) == ([b"one"], [13])
    assert (got.position, got.fetch_position, got.error) == (13, 14, ())


def test_case_37_a_message_larger_than_the_limit_raises_instead_of_looping() -> None:
    d = decoder(DecoderOptions(max_message_bytes=12))
    d.feed(memoryview(encode_set([b"one"])[:4]))
    assert isinstance(d.error, MessageTooLarge)
    assert (d.error.partition, d.error.position, d.error.size, d.error.limit) == ("t/1-0", 0, 13, 12)
    assert "message of 13 bytes is larger than 12 (raise max_message_bytes)" in str(d.error)
    assert (d.position, d.fetch_position, d.pending_bytes) == (0, 0, 0)
    d.feed(memoryview(encode_set([b"x"])))
    assert d.take().values == []


def test_an_inner_tail_is_ignored_a_cut_first_entry_is_not(wrapper: MakeWrapper, decode: Decode) -> None:
    two = encode_set([b"one", b"two"])
    assert decode(wrapper(GZIP, two[:-1])).columns.values == [b"one"]
    assert decode(wrapper(GZIP, two[:16])).columns.values == [b"one"]
    assert decode(wrapper(GZIP, two[:3])).error == ()
    got = decode(wrapper(GZIP, two[:4]), start=7)
    assert got.error == (CorruptMessage, "t/1-0", 7, "inside a wrapper: the last entry is incomplete")


def test_upper_attribute_bits_are_ignored(entry: MakeEntry, decode: Decode) -> None:
    data = entry(b"a", attributes=0x04) + entry(b"b", attributes=0xFC)
    assert decode(data).columns.values == [b"a", b"b"]
    assert decode(data, cuts=range(len(data))).columns.values == [b"a", b"b"]


def test_attribute_bits_5_are_gzip(entry: MakeEntry, decode: Decode) -> None:
    packed = encode_set([b"a"], GZIP)
    data = packed[:5] + b"\x05" + packed[6:]
    assert decode(data).columns.values == [b"a"]


# ---- being fed ----------------------------------------------------------------------------------------------


def test_a_message_is_there_with_its_last_byte() -> None:
    data = encode_set([b"one", b"two"])
    d = decoder()
    got = []
    for i in range(len(data)):
        d.feed(memoryview(data[i : i + 1]))
        got.append(d.take().values)
    assert [i for i, values in enumerate(got) if values] == [12, 25]


def test_the_tail_stays_between_fetches_and_a_reset_forgets_it() -> None:
    data = encode_set([b"one", b"two"])
    d = decoder(start=100)
    assert isinstance(d, MessageSetDecoder)
    _: LogDecoder = d  # the shape holds
    d.feed(memoryview(data[:20]))
    assert (d.fetch_position, d.pending_bytes) == (120, 20)
    assert d.position == 100  # "one" was not taken
    assert repr(d) == "<MessageSetDecoder t/1-0 at 100, 20 bytes pending>"
    assert d.take().values == [b"one"]
    assert (d.position, d.fetch_position, d.pending_bytes) == (113, 120, 7)
    d.feed(memoryview(data[20:]))
    assert d.take().values == [b"two"]
    d.feed(memoryview(data[:20]))
    d.reset(Position(7))
    assert (d.position, d.fetch_position, d.pending_bytes) == (7, 7, 0)
    assert d.take().values == []
    d.feed(memoryview(data))
    assert list(d.take().next_positions) == [20, 33]


def test_a_reset_forgets_the_error_and_keeps_the_reports(entry: MakeEntry) -> None:
    d = decoder(SKIP)
    d.feed(memoryview(entry(b"bad", crc=1) + b"\xff\xff\xff\xff"))
    assert isinstance(d.error, CorruptMessage)
    assert "t/1-0 at 13: negative length: -1" in repr(d)
    d.reset(Position(0))
    assert d.error is None
    d.feed(memoryview(encode_set([b"a"])))
    assert d.take().values == [b"a"]
    assert [report.reason for report in d.take_reports()] == ["CRC mismatch"]
    assert d.take_reports() == []


def test_mutable_buffers_may_be_reused_after_feed() -> None:
    data = encode_set([b"one", b"two", b"three"])
    ring = bytearray(7)
    d = decoder()
    for i in range(0, len(data), 7):
        chunk = data[i : i + 7]
        ring[: len(chunk)] = chunk
        d.feed(memoryview(ring)[: len(chunk)])
        ring[:] = b"#######"
    columns = d.take()
    assert columns.values == [b"one", b"two", b"three"]
    assert {type(value) for value in columns.values} == {bytes}


@pytest.mark.parametrize("options", [FAIL, SKIP, RAW], ids=["fail", "skip", "raw"])
def test_no_buffer_is_held_after_feed(options: DecoderOptions, entry: MakeEntry) -> None:
    """Whatever was in it, down to errors and their tracebacks."""
    plain = encode_set([b"one", b"two"])
    for odd in (b"", entry(b"bad", crc=1), entry(b"", attributes=1), encode_set([b"a"], GZIP), b"\xff\xff\xff\xff"):
        for defer in (False, True):
            buffer = bytearray(plain + odd + plain[:-1])
            d = decoder(options._replace(defer_decompression=defer))
            d.feed(memoryview(buffer))
            buffer.clear()  # a BufferError while there is a view


@pytest.mark.parametrize("whole", [True, False])
def test_payloads_are_copied_once(whole: bool) -> None:
    data = encode_set([bytes(1 << 20)] * 4)
    view = memoryview(data) if whole else memoryview(data + b"\0")[: len(data)]
    assert allocation_of(lambda view: decoder().feed(view), view) < (4 << 20) + 20_000


def test_a_large_message_in_small_pieces_is_put_together_once() -> None:
    data = encode_set([bytes(4_000_000)])
    d = decoder(DecoderOptions(max_message_bytes=5 << 20))
    tracemalloc.start()
    try:
        for i in range(0, len(data), 65536):
            d.feed(memoryview(data)[i : i + 65536])
        assert tracemalloc.get_traced_memory()[1] < 1.3 * len(data)
    finally:
        tracemalloc.stop()
    assert d.take().values == [bytes(4_000_000)]


def test_byte_by_byte_is_linear() -> None:
    def seconds(size: int) -> float:
        data = memoryview(encode_set([bytes(size)]))
        d = decoder()
        began = time.thread_time()
        for i in range(len(data)):
            d.feed(data[i : i + 1])
        took = time.thread_time() - began
        assert len(d.take().values) == 1
        return took

    best_small, best_large = (min(seconds(size) for _ in range(3)) for size in (5_000, 80_000))
    assert best_large < 16 * best_small * 4  # quadratic would be 256 times


def test_interrupted_runs_are_linear(entry: MakeEntry) -> None:
    """What ends a run must not make the rest of a reused buffer be copied."""

    def seconds(count: int) -> float:
        data = memoryview(bytearray(entry(bytes(100), crc=1) * count))
        began = time.thread_time()
        d = decoder(SKIP)
        d.feed(data)
        took = time.thread_time() - began
        assert d.skipped == count and len(d.take_reports()) <= 1000
        return took

    best_small, best_large = (min(seconds(count) for _ in range(3)) for count in (500, 8000))
    assert best_large < 16 * best_small * 4  # quadratic would be 256 times


# ---- damage -------------------------------------------------------------------------------------------------

SKIPPABLE: dict[str, tuple[Callable[[MakeEntry], bytes], str]] = {
    "crc": (lambda entry: entry(b"bad", crc=1), "CRC mismatch"),
    "crc, magic 0": (lambda entry: entry(b"bad", magic=0, crc=1), "CRC mismatch"),
    "codec 3": (lambda entry: entry(b"bad", attributes=3), "unknown compression type 3"),
    "magic 2": (lambda entry: entry(b"bad", magic=2), "unknown magic 2"),
    "magic 255, shortest": (lambda entry: b"\0\0\0\5\xff1234", "unknown magic 255"),
    "empty gzip": (lambda entry: entry(b"", attributes=1), "not in gzip format"),
    "empty snappy": (lambda entry: entry(b"", attributes=2), "a snappy block without a valid length"),
    "junk gzip": (lambda entry: entry(b"junk", attributes=1), "not in gzip format"),
}


@pytest.fixture(params=SKIPPABLE)
def damaged(request: pytest.FixtureRequest, entry: MakeEntry) -> tuple[bytes, str]:
    make, reason = SKIPPABLE[request.param]
    return make(entry), reason


@pytest.mark.parametrize("byte_by_byte", [False, True])
class TestDamagedEntryOfPlausibleLength:
    def test_fails_after_what_came_before(
        self, damaged: tuple[bytes, str], byte_by_byte: bool, decode: Decode, corrupt_message: Shape
    ) -> None:
        data = encode_set([b"before"]) + damaged[0] + encode_set([b"after"])
        got = decode(data, start=50, cuts=range(len(data)) if byte_by_byte else ())
        assert got.columns.values == [b"before"]
        assert got.error == corrupt_message(66, damaged[1])
        assert got.fetch_position == 66

    def test_is_skipped_with_a_report(
        self, damaged: tuple[bytes, str], byte_by_byte: bool, decode: Decode, corrupt_message: Shape
    ) -> None:
        data = encode_set([b"before"]) + damaged[0] + encode_set([b"after"])
        got = decode(data, start=50, cuts=range(len(data)) if byte_by_byte else (), options=SKIP)
        assert got.columns.values == [b"before", b"after"]
        assert got.columns.next_positions == [66, 50 + len(data)]
        assert got.reports == [corrupt_message(66, damaged[1])]
        assert got.error == ()

    def test_is_handed_over_raw(
        self, damaged: tuple[bytes, str], byte_by_byte: bool, decode: Decode, corrupt_message: Shape
    ) -> None:
        data = encode_set([b"before"]) + damaged[0] + encode_set([b"after"])
        got = decode(data, start=50, cuts=range(len(data)) if byte_by_byte else (), options=RAW)
        assert got.columns.values == [b"before", damaged[0], b"after"]
        assert got.columns.positions == [50, 66, 66 + len(damaged[0])]
        assert got.columns.next_positions == [66, 66 + len(damaged[0]), 50 + len(data)]
        assert got.corrupt == {1: corrupt_message(66, damaged[1])}
        assert got.error == ()


HOPELESS = {
    "ffffffff": "negative length: -1",
    "80000000": "negative length: -2147483648",
    "00000000": "length too small for a message: 0",
    "00000004 01000000": "length too small for a message: 4",
    "00000005 01 00000000": "length 5 is too small for magic 1: 5",
}


@pytest.mark.parametrize("options", [FAIL, SKIP, RAW], ids=["fail", "skip", "raw"])
@pytest.mark.parametrize("bad", HOPELESS)
def test_a_length_that_cannot_be_is_always_an_error(
    bad: str, options: DecoderOptions, decode: Decode, corrupt_message: Shape
) -> None:
    data = encode_set([b"one"]) + bytes.fromhex(bad)
    for split in ((), range(len(data)), (15,)):
        got = decode(data, options=options, cuts=split)
        assert got.columns.values == [b"one"]
        assert got.error == corrupt_message(13, HOPELESS[bad])


@pytest.mark.parametrize("options", [FAIL, SKIP, RAW], ids=["fail", "skip", "raw"])
def test_too_large_is_always_an_error(options: DecoderOptions, decode: Decode) -> None:
    options = DecoderOptions(max_message_bytes=20, corrupt=options.corrupt)
    data = encode_set([b"0123456789", b"0123456789x"])
    for split in ((), range(len(data)), (10,)):
        got = decode(data, options=options, cuts=split)
        assert got.columns.values == [b"0123456789"]
        assert got.error == (MessageTooLarge, "t/1-0", 20, 21, 20, "max_message_bytes")


def test_messages_inside_a_wrapper_may_be_larger_than_the_limit(decode: Decode) -> None:
    """Specification 3.1: only the wrapper is measured."""
    got = decode(encode_set([b"a" * 1000], GZIP), options=DecoderOptions(max_message_bytes=100))
    assert got.columns.values == [b"a" * 1000]


def test_how_to_treat_damage_must_be_one_of_three() -> None:
    with pytest.raises(ConfigError, match="corrupt='ignore' is not one of fail, skip, raw"):
        decoder(DecoderOptions(corrupt="ignore"))


# ---- damage inside wrappers ---------------------------------------------------------------------------------


@pytest.fixture
def bad_inside(wrapper: MakeWrapper, entry: MakeEntry) -> bytes:
    """13 bytes, then a wrapper of a, a bad CRC, b - the bad one within another wrapper -, then c."""
    inner = wrapper(SNAPPY, encode_set([b"a"]) + entry(b"bad", crc=1)) + encode_set([b"b"])
    return encode_set([b"one"]) + wrapper(GZIP, inner) + encode_set([b"c"])


BAD_CRC = "inside a wrapper: CRC mismatch"


def test_damage_inside_a_wrapper_fails_at_the_wrapper(
    bad_inside: bytes, decode: Decode, corrupt_message: Shape
) -> None:
    got = decode(bad_inside)
    assert got.columns.values == [b"one", b"a"]
    assert got.columns.next_positions == [13, 13]  # "a" resumes where it started: the wrapper was not finished
    assert got.error == corrupt_message(13, BAD_CRC)
    assert got.fetch_position == 13


def test_damage_inside_a_wrapper_is_skipped_alone(bad_inside: bytes, decode: Decode, corrupt_message: Shape) -> None:
    got = decode(bad_inside, options=SKIP)
    end = len(bad_inside) - 11
    assert got.columns.values == [b"one", b"a", b"b", b"c"]
    assert got.columns.next_positions == [13, 13, end, end + 11]
    assert got.columns.inner_indexes == [0, 0, 2, 0]
    assert got.reports == [corrupt_message(13, BAD_CRC)]


def test_damage_inside_a_wrapper_is_handed_over_raw(
    bad_inside: bytes, entry: MakeEntry, decode: Decode, corrupt_message: Shape
) -> None:
    got = decode(bad_inside, options=RAW)
    assert got.columns.values == [b"one", b"a", entry(b"bad", crc=1), b"b", b"c"]
    assert got.columns.inner_indexes == [0, 0, 1, 2, 0]
    assert got.corrupt == {2: corrupt_message(13, BAD_CRC)}


def test_a_wrapper_with_nothing_good_in_it_is_skipped(wrapper: MakeWrapper, entry: MakeEntry, decode: Decode) -> None:
    data = wrapper(GZIP, entry(b"bad", crc=1)) + encode_set([b"c"])
    got = decode(data, options=SKIP)
    assert (got.columns.values, len(got.reports), got.columns.positions) == ([b"c"], 1, [len(data) - 11])


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        (b"\xff\xff\xff\xff", "inside a wrapper: negative length"),
        (b"\0\0\0\0", "inside a wrapper: length too small for a message"),
        (b"\0\0\0\x05\x01abcd", "inside a wrapper: length 5 is too small for magic 1"),
        (encode_set([b""])[:5] + b"\1\0\0\0\0", "not in gzip format"),
    ],
)
def test_a_wrapper_whose_rest_is_lost_keeps_what_came_before(
    inner: bytes, reason: str, wrapper: MakeWrapper, decode: Decode, corrupt_message: Shape
) -> None:
    whole = wrapper(GZIP, encode_set([b"a"]) + inner)
    data = whole + encode_set([b"c"])
    failed, skipped, raw = (decode(data, options=options) for options in (FAIL, SKIP, RAW))
    assert (failed.columns.values, failed.error) == ([b"a"], corrupt_message(0, reason))
    assert (skipped.columns.values, skipped.reports) == ([b"a", b"c"], [corrupt_message(0, reason)])
    assert skipped.columns.next_positions == [len(whole), len(data)]
    assert (raw.columns.values, raw.corrupt) == ([b"a", whole, b"c"], {1: corrupt_message(0, reason)})


# ---- bombs and nesting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [GZIP, SNAPPY])
def test_a_bomb_is_refused_within_its_bound(
    compression: CompressionType, decode: Decode, corrupt_message: Shape
) -> None:
    bomb = encode_set([bytes(20 << 20)], compression)
    options = DecoderOptions(max_decompressed_bytes=1 << 20)
    tracemalloc.start()
    try:
        got = decode(bomb, options=options)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(bomb) + (3 << 20)
    finally:
        tracemalloc.stop()
    assert got.error == corrupt_message(0, "grows beyond 1048576 bytes (max_decompressed_bytes)")
    assert got.columns.values == []
    skip = DecoderOptions(max_decompressed_bytes=1 << 20, corrupt="skip")
    assert decode(bomb + encode_set([b"c"]), options=skip).columns.values == [b"c"]


def test_the_bound_covers_all_levels_of_one_wrapper_together(wrapper: MakeWrapper, decode: Decode) -> None:
    part = wrapper(GZIP, encode_set([bytes(10_000)]))
    options = DecoderOptions(max_decompressed_bytes=28_000)
    assert decode(wrapper(GZIP, part * 2) * 3, options=options).error == ()
    assert "grows beyond" in str(decode(wrapper(GZIP, part * 3), options=options).error)


@pytest.mark.parametrize("size", [7, 1 << 20])
@pytest.mark.parametrize("defer", [False, True])
@pytest.mark.parametrize("corrupt", ["fail", "skip"])
def test_all_wrappers_of_a_fetch_have_one_bound_and_the_rest_is_fetched_again(
    corrupt: str, defer: bool, size: int
) -> None:
    options = DecoderOptions(max_decompressed_bytes=10_000, defer_decompression=defer, corrupt=corrupt)
    data = encode_set([bytes(4000)], GZIP) * 5 + encode_set([b"x"])
    fed, counts = decoder(options), list[int]()
    while fed.fetch_position < len(data):
        for at in range(fed.fetch_position, len(data), size):
            fed.feed(memoryview(data)[at : at + size])
        fed.decompress_deferred()
        assert fed.pending_bytes < 15_000 and fed.error is None
        counts.append(len(fed.take()))
    assert (counts, fed.position) == ([3, 3], len(data))


def test_messages_without_payload_are_bounded_too(decode: Decode) -> None:
    """A row costs memory even when its payload does not."""
    bomb = encode_set([b""] * 200_000, GZIP)
    tracemalloc.start()
    try:
        got = decode(bomb, options=DecoderOptions(max_decompressed_bytes=3_000_000, corrupt="skip"))
        assert tracemalloc.get_traced_memory()[1] < 4 * 3_000_000
    finally:
        tracemalloc.stop()
    assert len(got.reports) == 1
    fits = encode_set([b""] * 1000, GZIP)
    enough = DecoderOptions(max_decompressed_bytes=1000 * (10 + ROW_BYTES) + 2 * ROW_BYTES)
    assert len(decode(fits, options=enough).columns.values) == 1000


def test_wrappers_and_damage_within_a_wrapper_are_bounded_too(
    wrapper: MakeWrapper, entry: MakeEntry, decode: Decode
) -> None:
    """A few kilobytes must not keep a processor busy for long, nor make reports without end."""
    options = DecoderOptions(max_decompressed_bytes=1 << 20, corrupt="skip")
    for odd in (entry(b"", crc=1), wrapper(GZIP, b"")):
        got = decode(wrapper(GZIP, odd * 20_000), options=options)
        assert "grows beyond" in str(got.reports[-1])
        assert len(got.reports) < 1100


@pytest.mark.parametrize("compressions", [(GZIP,), (SNAPPY,), (GZIP, SNAPPY)])
def test_nesting_is_read_down_to_its_bound_and_no_deeper(
    compressions: tuple[CompressionType, ...], wrapper: MakeWrapper, decode: Decode, corrupt_message: Shape
) -> None:
    data = encode_set([b"core"])
    for level in range(MAX_NESTING):
        data = wrapper(compressions[level % len(compressions)], data)
    assert decode(data).columns.values == [b"core"]
    got = decode(wrapper(GZIP, data))
    assert got.error == corrupt_message(0, f"wrappers nested more than {MAX_NESTING} deep")


def test_nesting_beyond_any_stack_is_an_error_like_any_other(wrapper: MakeWrapper, decode: Decode) -> None:
    data = encode_set([b"core"])
    for _ in range(2000):
        data = wrapper(SNAPPY, data)
    assert "nested" in str(decode(data).error)


# ---- whole equals split, for anything -----------------------------------------------------------------------


@pytest.mark.parametrize("corrupt", ["fail", "skip", "raw"])
@given(data=st.data())
def test_any_split_of_anything_decodes_like_the_whole(
    corrupt: str, data: st.DataObject, any_log: st.SearchStrategy[bytes], decode: Decode
) -> None:
    options = DecoderOptions(max_message_bytes=300, max_decompressed_bytes=9000, corrupt=corrupt)
    stream = data.draw(any_log)
    whole = decode(stream, options=options, start=1000)
    assert decode(stream, options=options, start=1000, cuts=range(len(stream))) == whole
    random_cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6))
    assert decode(stream, options=options, start=1000, cuts=random_cuts) == whole
    assert len(whole.columns.values) == len(whole.columns.positions) == len(whole.columns.next_positions)
    assert not whole.error or list(whole.columns.next_positions[-1:]) <= [whole.fetch_position]


@pytest.mark.parametrize("beyond", [1, 8])
def test_a_log_beyond_the_largest_position_is_an_error_of_its_partition(beyond: int) -> None:
    data = encode_set([b"hello"])
    d = decoder(start=(1 << 63) - 1 - len(data) + beyond)
    d.feed(memoryview(data))
    assert isinstance(d.error, RemoteProtocolError)
    assert f"no log is longer than {(1 << 63) - 1}" in str(d.error)
    assert list(d.take().values) == []


def test_a_log_up_to_the_largest_position_is_read() -> None:
    data = encode_set([b"hello"])
    d = decoder(start=(1 << 63) - 1 - len(data))
    d.feed(memoryview(data))
    assert d.error is None
    assert list(d.take().values) == [b"hello"]
