"""Size-delimited frames: specification 1.1."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.errors import RemoteProtocolError
from odradek.wire.frames import FrameReader


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
def test_any_split_gives_the_same_bodies(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, bodies))
    edges = [0, *sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8))), len(stream)]
    reader = FrameReader(40)
    got = [body for a, b in pairwise(edges) for body in reader.feed(stream[a:b])]
    assert got == bodies
    assert reader.pending_bytes == 0
    assert reader.error is None


def test_a_frame_is_there_with_its_last_byte() -> None:
    reader = FrameReader(10)
    stream = frame(b"abc")
    assert [reader.feed(stream[i : i + 1]) for i in range(6)] == [[]] * 6
    assert reader.pending_bytes == 6
    assert repr(reader) == "<FrameReader 6 bytes pending>"
    assert reader.feed(memoryview(stream[6:])) == [b"abc"]


@pytest.mark.parametrize("size", [0, -1, -(1 << 31), 11, 0x7FFFFFFF])
def test_a_bad_size_raises_as_soon_as_its_four_bytes_are_there(size: int) -> None:
    reader = FrameReader(10)
    announced = size.to_bytes(4, "big", signed=True)
    assert reader.feed(announced[:3]) == []
    with pytest.raises(RemoteProtocolError, match=f"a frame of {size} bytes.*1 to 10"):
        reader.feed(announced[3:])
    with pytest.raises(RemoteProtocolError):
        reader.feed(frame(b"fine, but too late"))
    assert reader.pending_bytes == 0


def test_frames_in_front_of_a_bad_size_are_not_lost() -> None:
    reader = FrameReader(10)
    assert reader.feed(frame(b"a") + frame(b"0123456789") + b"\0\0\0\0") == [b"a", b"0123456789"]
    assert isinstance(reader.error, RemoteProtocolError)
    with pytest.raises(RemoteProtocolError):
        reader.feed(b"")
