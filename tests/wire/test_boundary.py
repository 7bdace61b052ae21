"""Boundaries: never a wrong one, whatever logs and payloads contain; found wherever nobody forged anything."""

from __future__ import annotations

import pickle
import random
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.ranges.planning import BoundaryMismatch
from odradek.types import TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.boundary import SEARCH_FACTOR, BoundarySearch, Proved, Unproved
from odradek.wire.kafka07.crc_ranges import SHORT, STEP, RangeCrc
from odradek.wire.kafka07.message_set import encode_set

MOST = 3000
"""Largest entry of the logs here: small, so that windows are."""


class Made(NamedTuple):
    """A log and where its messages begin, its end included."""

    data: bytes
    boundaries: list[int]


def entry(payload: bytes, magic: int = 1, attributes: int = 0) -> bytes:
    body = bytes([magic]) + (bytes([attributes]) if magic else b"") + crc32(payload).to_bytes(4, "big") + payload
    return len(body).to_bytes(4, "big") + body


def nested(chance: random.Random, depth: int) -> bytes:
    """A payload that is a message set, perhaps cut off, perhaps with something behind it, and perhaps of such sets."""
    inner = (nested(chance, depth - 1) if depth else chance.randbytes(chance.randrange(60)) for _ in range(9))
    payload = b"".join(entry(one, chance.randrange(2)) for one in inner)
    ending = chance.randrange(3)
    if ending == 1:
        payload = payload[: chance.randrange(len(payload))]
    elif ending == 2:
        payload += chance.randbytes(chance.randrange(20))
    return payload[: MOST - 20]


def numbers(chance: random.Random, size: int) -> bytes:
    return b"".join(chance.randrange(16).to_bytes(size, "big") for _ in range(chance.randrange(300)))


KINDS: dict[str, Callable[[random.Random], bytes]] = {
    "text": lambda c: entry(b"the quick brown fox %d" % c.randrange(10**9)),
    "random": lambda c: entry(c.randbytes(c.randrange(200)), c.randrange(2)),
    "large": lambda c: entry(c.randbytes(c.randrange(MOST - 10)), c.randrange(2)),
    "largest": lambda c: entry(c.randbytes(MOST - 10)),
    "empty": lambda c: entry(b"", c.randrange(2)),
    "zeros": lambda c: entry(bytes(c.randrange(MOST - 10))),
    "shorts": lambda c: entry(numbers(c, 2)),
    "ints": lambda c: entry(numbers(c, 4)),
    "longs": lambda c: entry(numbers(c, 8)),
    "nested": lambda c: entry(nested(c, 0)),
    "nested twice": lambda c: entry(nested(c, 1)),
    "gzip": lambda c: encode_set([c.randbytes(50) for _ in range(9)], CompressionType.GZIP),
    "snappy": lambda c: encode_set([bytes(50) for _ in range(c.randrange(1, 99))], CompressionType.SNAPPY),
    "attributes": lambda c: entry(c.randbytes(9), 1, 0xFC),
}


def make_log(seed: int, kinds: list[str], size: int = 12 * MOST) -> Made:
    chance = random.Random(seed)
    parts: list[bytes] = []
    left = size
    while left > 0:
        parts.append(KINDS[chance.choice(kinds)](chance))
        left -= len(parts[-1])
    return Made(b"".join(parts), [0, *accumulate(map(len, parts))])


def find_boundary(
    data: bytes, cut: int, *, floor: int = 0, chunk_bytes: int = 1 << 30, most: int = MOST, torn: bool = False
) -> BoundarySearch:
    search = BoundarySearch(cut, floor=floor, ceiling=len(data), most=most, torn=torn)
    while (wanted := search.wanted) is not None:
        start, stop = wanted
        assert floor <= start < stop <= len(data)
        search.feed(data[start : min(stop, start + chunk_bytes)])
    return search


LOGS = st.builds(make_log, st.integers(0, 1 << 32), st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))


@given(LOGS, st.floats(0, 1), st.integers(1, 5000))
def test_a_boundary_is_found_and_is_one(made: Made, where: float, chunk_bytes: int) -> None:
    cut = int(where * len(made.data))
    search = find_boundary(made.data, cut, chunk_bytes=max(chunk_bytes, 100))
    assert isinstance(search.result, Proved)
    result = search.result.position
    assert result in made.boundaries
    assert cut <= result <= cut + SEARCH_FACTOR * MOST
    assert search.wanted is None


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_log_is_cut_near_the_cut(kind: str) -> None:
    made = make_log(1, [kind], 20 * MOST)
    largest = max(b - a for a, b in zip(made.boundaries, made.boundaries[1:], strict=False))
    for cut in range(3 * MOST, len(made.data) - 5 * MOST, MOST // 3):
        result = find_boundary(made.data, cut).result
        assert isinstance(result, Proved)
        assert result.position in made.boundaries
        assert result.position - cut <= MOST // 16 + SEARCH_FACTOR * largest


@given(LOGS, st.floats(0, 1), st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=8))
def test_damaged_logs_are_cut_where_messages_were_written_or_not_at_all(
    made: Made, where: float, damage: list[tuple[float, int]]
) -> None:
    damaged = bytearray(made.data)
    for fraction, change in damage:
        damaged[int(fraction * (len(damaged) - 1))] ^= change
    cut = int(where * len(damaged))
    # Not from the start of the log: there no proof is asked for, and a damaged length is believed.
    if cut > 2 * MOST:
        result = find_boundary(bytes(damaged), cut).result
        if isinstance(result, Proved):
            assert result.position in made.boundaries


def test_behind_damage_boundaries_are_found_again() -> None:
    made = make_log(3, ["random", "nested"], 20 * MOST)
    damaged = bytearray(made.data)
    bad = made.boundaries[bisect_left(made.boundaries, 5 * MOST)] + 12
    damaged[bad] ^= 1
    for cut in range(bad, bad + 2 * MOST, 200):
        result = find_boundary(bytes(damaged), cut).result
        assert isinstance(result, Proved)
        assert result.position in made.boundaries
        assert result.position >= bad + MOST


def parallel_chains(count: int, overlap: int) -> Made:
    """Entries that are whole and right, and others that are, too, each across the boundary between two of the former,
    ending `overlap` bytes behind it. Where those begin which are false: 410 bytes behind a boundary.

    Made from the end: each CRC covers the head of the next entry of the other chain.
    """
    data = entry(bytes(900))
    boundaries = [0, len(data)]
    for _ in range(count):
        false = entry(b"f" * 400 + data[:overlap])
        data = entry(b"r" * 400 + false[:-overlap]) + data
        boundaries.append(len(data))
    return Made(data, sorted(len(data) - fraction for fraction in boundaries))


def test_forged_entries_across_boundaries_never_make_a_wrong_one() -> None:
    made = parallel_chains(100, 410)  # two parallel logs, of which one ends at the other's end
    results = [find_boundary(made.data, cut).result for cut in range(3 * MOST, len(made.data), 97)]
    assert not any(isinstance(result, Proved) and result.position not in made.boundaries for result in results)
    assert sum(isinstance(result, Unproved) for result in results) > len(results) // 2


def test_forged_entries_that_lead_to_nothing_are_no_obstacle() -> None:
    made = parallel_chains(40, 100)
    for cut in range(3 * MOST, len(made.data) - 5 * MOST, 37):
        result = find_boundary(made.data, cut).result
        assert isinstance(result, Proved)
        assert result.position in made.boundaries


def test_forged_entries_are_given_up_before_long() -> None:
    made = parallel_chains(1200, 410)
    result = find_boundary(made.data, 100 * MOST, most=40 * MOST).result
    assert isinstance(result, Unproved)
    assert "inside entries that look valid" in result.reason


def test_a_log_with_a_larger_entry_than_may_be_is_not_cut_in_it() -> None:
    big = entry(b"".join(entry(b"%d" % number) for number in range(4000)))
    data = make_log(5, ["random"]).data + big + make_log(6, ["random"]).data
    start = len(make_log(5, ["random"]).data)
    result = find_boundary(data, start + len(big) // 2).result
    assert isinstance(result, Proved)
    assert result.position != start  # what the proof takes for granted does not hold: the walk finds out


# ---- near what is known --------------------------------------------------------------------------------------


def test_known_places_need_no_bytes() -> None:
    assert BoundarySearch(7, floor=7, ceiling=99, most=MOST).result == Proved(7)
    assert BoundarySearch(99, floor=7, ceiling=99, most=MOST).result == Proved(99)
    with pytest.raises(ValueError, match=r"cut 6 is not in \[7, 99\]"):
        BoundarySearch(6, floor=7, ceiling=99, most=MOST)


@given(LOGS, st.floats(0, 1), st.data())
def test_close_behind_a_known_boundary_the_very_next_one_is_found(
    made: Made, where: float, data: st.DataObject
) -> None:
    floor = data.draw(st.sampled_from(made.boundaries[:-1]))
    cut = min(floor + int(where * MOST), len(made.data))
    expected = made.boundaries[bisect_left(made.boundaries, cut)]
    assert find_boundary(made.data, cut, floor=floor).result == Proved(expected)


def test_close_behind_a_known_boundary_damage_is_walked_over_as_a_reader_does() -> None:
    damaged = entry(b"two")[:-1] + b"?"
    data = b"".join([entry(b"one"), damaged, entry(b"three"), entry(b"four")])
    third = len(entry(b"one")) + len(damaged)
    assert find_boundary(data, third - 1).result == Proved(third)


def test_a_length_that_cannot_be_ends_the_walk_from_a_known_boundary() -> None:
    data = entry(b"one") + bytes(4) + entry(b"two") * 9
    result = find_boundary(data, 20).result
    assert isinstance(result, Unproved)
    assert result.reason == "damage at 13: length too small for a message"


def test_the_end_is_a_boundary_unless_the_log_may_be_torn() -> None:
    made = make_log(8, ["text"], 6 * MOST)
    cut = made.boundaries[-2] + 1
    assert find_boundary(made.data, cut).result == Proved(len(made.data))
    torn = made.data[:-3]
    result = find_boundary(torn, cut, torn=True).result
    assert isinstance(result, Unproved)
    assert find_boundary(torn, made.boundaries[-2] - 1, torn=True).result == Proved(made.boundaries[-2])


def test_a_log_that_ends_too_early_proves_nothing() -> None:
    search = BoundarySearch(9 * MOST, floor=0, ceiling=99 * MOST, most=MOST)
    search.feed(entry(b"one"))
    search.feed(b"")
    assert isinstance(search.result, Unproved)
    assert search.wanted is None
    search.feed(b"more")
    assert isinstance(search.result, Unproved)


# ---- checksums -----------------------------------------------------------------------------------------------


@given(st.integers(0, 1 << 32), st.data())
def test_checksums_of_parts_are_those_of_zlib(seed: int, data: st.DataObject) -> None:
    whole = random.Random(seed).randbytes(data.draw(st.integers(0, 5 * SHORT)))
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    assert RangeCrc(whole).of(start, end) == crc32(whole[start:end])


@pytest.mark.parametrize("length", [0, 1, SHORT, SHORT + 1, SHORT + STEP, 40 * STEP, 40 * STEP + 1])
def test_checksums_at_the_edges(length: int) -> None:
    whole = random.Random(length).randbytes(60 * STEP)
    for start in (0, 1, STEP - 1, STEP, len(whole) - length):
        assert RangeCrc(whole).of(start, start + length) == crc32(whole[start : start + length])


# ---- landing -------------------------------------------------------------------------------------------------


def test_a_range_that_ends_inside_a_message_is_an_error_with_the_numbers() -> None:
    error = BoundaryMismatch(str(TopicPartition("orders", 0, 1)), 10, 20, 17)
    assert "orders/1-0: the messages from 10 on end at 17, not at 20" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert (again.partition, again.start, again.end, again.landed) == ("orders/1-0", 10, 20, 17)
