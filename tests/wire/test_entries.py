"""scan: level-one entries, not decompressed, and why the scan stopped."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek import engine
from odradek.engine import NO_LIMIT, Buffer
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.entries import LogEntry, ParseStop, ScanEnd, check_log, scan
from odradek.wire.kafka07.message_set import encode_set

from ..columns import listed
from ..payloads import payloads

pytestmark = pytest.mark.usefixtures("engine")

MakeEntry = Callable[..., bytes]


def test_entries_have_positions_fields_and_views(entry: MakeEntry) -> None:
    data = entry(b"one") + entry(b"old", magic=0) + entry(b"packed", attributes=6)
    entries = scan(data, 100)
    first, second, third = entries
    assert (first.position, first.size, first.end, first.magic, first.attributes) == (100, 13, 113, 1, 0)
    assert (second.position, second.size, second.magic, second.attributes) == (113, 12, 0, 0)
    assert (third.attributes, third.compression, third.damage) == (6, CompressionType.SNAPPY, "")
    assert [bytes(e.payload) for e in (first, second, third)] == [b"one", b"old", b"packed"]
    assert [e.raw for e in (first, second, third)] == [data[:13], data[13:25], data[25:]]
    assert isinstance(first.payload, memoryview)
    assert first.payload.obj is data
    assert entries.end == ScanEnd(100 + len(data), ParseStop.END)


@pytest.mark.parametrize(
    ("fields", "damage"),
    [
        ({"crc": 5}, "CRC mismatch"),
        ({"crc": 5, "magic": 0}, "CRC mismatch"),
        ({"attributes": 3}, "unknown compression type 3"),
        ({"attributes": 7}, "unknown compression type 3"),
        ({"magic": 2}, "unknown magic 2"),
        ({"attributes": 1}, ""),
    ],
)
def test_damaged_entries_are_given_with_what_is_wrong(fields: dict[str, int], damage: str, entry: MakeEntry) -> None:
    data = entry(b"xyz", **fields) + entry(b"next")
    entries = list(scan(data))
    assert [e.damage for e in entries] == [damage, ""]
    assert entries[0].crc_ok == ("crc" not in fields and fields.get("magic", 1) < 2)
    assert b"".join(e.raw for e in entries) == data


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        ("", ParseStop.END),
        ("00", ParseStop.CUT),
        ("000000", ParseStop.CUT),
        ("00000009", ParseStop.CUT),
        ("00000009 01 00 7a6c86f1 6f6e", ParseStop.CUT),
        ("ffffffff", ParseStop.NEGATIVE),
        ("00000000", ParseStop.SHORT),
        ("00000004 01020304", ParseStop.SHORT),
        ("00000005 01", ParseStop.HEADER),
        ("00000005 01020304 05", ParseStop.HEADER),
        ("00000005 00 00", ParseStop.CUT),
        ("7fffffff 01", ParseStop.CUT),
    ],
)
def test_the_walk_says_where_and_why_it_stopped(tail: str, reason: ParseStop) -> None:
    data = encode_set([b"one"]) + bytes.fromhex(tail)
    entries = scan(bytearray(data), 7)
    assert entries.end is None
    assert len(list(entries)) == 1
    assert entries.end == ScanEnd(20, reason)
    assert list(entries) == []
    assert reason.hopeless == (reason in (ParseStop.NEGATIVE, ParseStop.SHORT, ParseStop.HEADER))


def test_the_walk_stops_in_front_of_what_is_too_large() -> None:
    data = encode_set([b"x" * 10, b"x" * 11])
    entries = scan(data, max_bytes=20)
    assert [e.size for e in entries] == [20]
    assert entries.end == ScanEnd(20, ParseStop.TOO_LARGE)


def test_nothing_is_an_empty_walk() -> None:
    entries = scan(b"")
    assert list(entries) == []
    assert entries.end == ScanEnd(0, ParseStop.END)


@given(data=st.data())
def test_a_check_is_a_scan_in_one_go(data: st.DataObject, any_log: st.SearchStrategy[bytes]) -> None:
    log = data.draw(any_log)
    limit = data.draw(st.sampled_from([20, 60, NO_LIMIT]))
    entries = scan(log, 7, limit)
    damage = [entry.damage for entry in entries]
    assert entries.end is not None
    for buffer in (log, bytearray(log)):
        assert check_log(buffer, 7, limit) == (*entries.end, not any(damage))


def test_a_check_tells_a_torn_tail_from_damage(entry: MakeEntry) -> None:
    good = encode_set([b"one"] * 3) + encode_set([b"two"], CompressionType.GZIP)
    assert check_log(good) == (len(good), ParseStop.END, True)
    assert check_log(good + good[:20], 100) == (100 + len(good) + 13, ParseStop.CUT, True)
    assert check_log(good + entry(b"bad", crc=1) + good) == (2 * len(good) + 13, ParseStop.END, False)
    assert check_log(good + bytes(9)) == (len(good), ParseStop.SHORT, True)
    assert check_log(good[1:]).reason is not ParseStop.END


# ---- the seam -----------------------------------------------------------------------------------------------


def decode_run(
    data: Buffer, start: int, stop: int, base: int = 0, max_entry: int = NO_LIMIT
) -> tuple[list[bytes], list[int]]:
    rows = engine.active.ColumnBuilder()
    end = rows.decode_run(data, start, stop, base, max_entry)
    assert engine.active.check_run(data, start, stop, max_entry) == (end, len(rows))
    values, positions, nexts, inner, *_ = listed(rows.take())
    assert [*positions, end + base] == [start + base, *nexts]
    assert inner is None
    assert {type(value) for value in values} <= {bytes}
    return payloads(values), list(nexts)


def test_a_run_stops_in_front_of_anything_unusual(entry: MakeEntry) -> None:
    good = entry(b"one") + entry(b"old", magic=0) + entry(b"two", attributes=0xFC)
    for unusual in (
        entry(b"x", attributes=1),
        entry(b"x", crc=1),
        entry(b"xx", magic=0, crc=1),
        entry(b"x", magic=2),
        b"\xff\xff\xff\xff" + bytes(20),
        b"\0\0\0\0" + bytes(20),
        b"\0\0\0\5\1" + bytes(20),
        entry(bytes(200)),
        entry(bytes(20))[:-1],
    ):
        data = good + unusual
        for buffer in (data, memoryview(data), memoryview(bytearray(data))):
            assert decode_run(buffer, 0, len(data), 1000, 100) == ([b"one", b"old", b"two"], [1013, 1025, 1038])


@pytest.mark.parametrize("before", [*range(65480, 65540), 200_000, 300_000])
def test_a_run_does_not_depend_on_the_kind_of_buffer(before: int, entry: MakeEntry) -> None:
    """Shortest messages and cut ones, wherever one engine or the other may divide a mutable buffer."""
    data = b"".join([entry(b"x" * before), entry(b"", magic=0) * 2, entry(b"y" * 5000), entry(b"")[:-1]])
    expected = decode_run(data, 0, len(data), 7)
    assert len(expected[0]) == 4
    assert decode_run(memoryview(bytearray(data)), 0, len(data), 7) == expected
    assert decode_run(data[::-1] + data, len(data), 2 * len(data)) == decode_run(
        memoryview(data), 0, len(data), len(data)
    )


def test_a_run_keeps_within_its_bounds() -> None:
    data = engine.active.encode_run([b"a", b"b", b"c"])
    assert decode_run(data, 11, 32) == ([b"b"], [22])
    assert decode_run(data, 0, 5) == ([], [])


@given(chunks=st.lists(st.binary(max_size=300), max_size=4), scale=st.sampled_from([1, 1000]))
def test_a_crc_goes_on_from_piece_to_piece(chunks: list[bytes], scale: int) -> None:
    crc = 0
    for chunk in chunks:
        crc = engine.active.crc32(memoryview(bytearray(chunk * scale)), crc)
    assert crc == zlib.crc32(b"".join(chunk * scale for chunk in chunks))
    assert engine.active.crc32(b"123456789") == 0xCBF43926


def test_a_run_and_a_scan_see_the_same(entry: MakeEntry) -> None:
    data = b"".join(entry(bytes(n), magic=n % 2) for n in range(40))
    values, nexts = decode_run(data, 0, len(data))
    entries: list[LogEntry] = list(scan(data))
    assert [bytes(e.payload) for e in entries][: len(values)] == values
    assert [e.end for e in entries][: len(values)] == nexts
    assert len(entries) - len(values) <= 1
