"""The five requests: golden bytes of specification App. C, the layouts of 1.3, and what the broker closes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.errors import LocalProtocolError, RemoteProtocolError
from odradek.wire.kafka07.message_set import encode_set
from odradek.wire.kafka07.requests import (
    Fetch,
    MultiFetch,
    MultiProduce,
    Offsets,
    Produce,
    Request,
    decode_request,
    encode_plain_sets,
    encode_request,
    produce_head,
)

GOLDEN: list[tuple[Request, str]] = [
    (
        Produce("test", 0, encode_set([b"hello", b""])),
        "0000 0004 74657374 00000000 00000019 0000000b 01 00 3610a686 68656c6c6f 00000006 01 00 00000000",
    ),
    (
        Produce("test", -1, encode_set([b"hello", b""])),
        "0000 0004 74657374 ffffffff 00000019 0000000b 01 00 3610a686 68656c6c6f 00000006 01 00 00000000",
    ),
    (Fetch("test", 1, 12345678901, 300), "0001 0004 74657374 00000001 00000002dfdc1c35 0000012c"),
    (
        MultiFetch((Fetch("test", 0, 0, 100), Fetch("ab", 2, 7, 200))),
        "0002 0002 0004 74657374 00000000 0000000000000000 00000064 0002 6162 00000002 0000000000000007 000000c8",
    ),
    (
        MultiProduce((Produce("test", 0, encode_set([b"a"])), Produce("ab", 1, encode_set([b"b"])))),
        "0003 0002 0004 74657374 00000000 0000000b 00000007 01 00 e8b7be43 61"
        "0002 6162 00000001 0000000b 00000007 01 00 71beeff9 62",
    ),
    (Offsets("test", 0, -1, 2), "0004 0004 74657374 00000000 ffffffffffffffff 00000002"),
    (MultiFetch(()), "0002 0000"),
    (MultiProduce(()), "0003 0000"),
]


def frame_of(request: Request) -> bytes:
    return b"".join(encode_request(request))


@pytest.mark.parametrize(("request_", "body"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes(request_: Request, body: str) -> None:
    expected = bytes.fromhex(body)
    assert frame_of(request_) == len(expected).to_bytes(4, "big") + expected
    assert decode_request(expected) == request_


@given(st.lists(st.tuples(st.sampled_from(["t", "other"]), st.integers(0, 9), st.lists(st.binary(max_size=9)))))
def test_sets_that_are_encoded_together_have_the_same_bytes(parts: list[tuple[str, int, list[bytes]]]) -> None:
    heads = [produce_head(topic, partition) for topic, partition, _ in parts]
    produces = tuple(Produce(topic, number, encode_set(values)) for topic, number, values in parts)
    one_by_one = produces[0] if len(produces) == 1 else MultiProduce(produces)
    runs = [[(value, b"key") if n % 2 else value for n, value in enumerate(values)] for _, _, values in parts]
    assert encode_plain_sets(heads, runs, b"tail", 1000) == frame_of(one_by_one) + b"tail"


def test_sets_that_cannot_be_encoded_together_are_left_to_the_caller() -> None:
    assert encode_plain_sets([b""], [[b"x", None]], b"", 100) is None
    assert encode_plain_sets([b""], [[b"x", b"y"]], b"", 21) is None
    assert encode_plain_sets([b""] * 32768, [[]] * 32768, b"", 100) is None
    with pytest.raises(LocalProtocolError, match="cannot be written"):
        produce_head("t" * 40_000, 0)


i32, i64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
topics = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
produces = st.builds(Produce, topics, i32, st.binary(max_size=50))
fetches = st.builds(Fetch, topics, i32, i64, i32)
requests: st.SearchStrategy[Request] = st.one_of(
    produces,
    fetches,
    st.builds(MultiFetch, st.lists(fetches, max_size=5).map(tuple)),
    st.builds(MultiProduce, st.lists(produces, max_size=5).map(tuple)),
    st.builds(Offsets, topics, i32, i64, i32),
)


@given(requests, st.binary(max_size=5))
def test_round_trip_and_surplus_bytes_are_ignored(request_: Request, surplus: bytes) -> None:
    frame = frame_of(request_)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode_request(frame[4:] + surplus) == request_


@given(requests, st.data())
def test_every_cut_body_is_refused(request_: Request, data: st.DataObject) -> None:
    body = frame_of(request_)[4:]
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(RemoteProtocolError):
        decode_request(body[:cut])


def test_message_sets_are_neither_copied_out_nor_in() -> None:
    message_set = bytearray(b"some bytes")
    produce = Produce("t", 0, message_set)
    assert encode_request(produce)[1] is message_set
    assert encode_request(MultiProduce((produce, produce)))[2::2] == [message_set] * 2
    body = frame_of(produce)[4:]
    decoded = decode_request(body)
    assert isinstance(decoded, Produce)
    assert isinstance(decoded.message_set, memoryview)
    assert decoded.message_set.obj is body


FETCH_T = "0001 0001 74 00000000 0000000000000000 00000001"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "00",
        "0005 0001 74 00000000",
        "ffff 0001 74 00000000",
        "0000 ffff 00000000 00000000",
        "0001 8000 00000000 0000000000000000 00000001",
        "0002 ffff",
        "0003 8000",
        "0002 0002 0001 74 00000000 0000000000000000 00000001",
        "0002 0002 0001 74 00000000 0000000000000000 00000001 ffff 00000000 0000000000000000 00000001",
        "0003 0002 0001 74 00000000 00000000",
        "0000 0001 74 00000000 ffffffff",
        "0000 0001 74 00000000 00000002 00",
        "0000 0001 74 00000000 7fffffff 00",
    ],
)
def test_what_the_broker_closes_on_is_refused(body: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_request(bytes.fromhex(body))


def test_fewer_parts_announced_than_present_leaves_the_rest() -> None:
    part = bytes.fromhex(FETCH_T)[2:]
    assert decode_request(b"\0\2\0\1" + part + part) == MultiFetch((Fetch("t", 0, 0, 1),))


def test_a_set_shorter_than_the_rest_leaves_the_rest() -> None:
    body = bytes.fromhex("0000 0001 74 00000000 00000002 616263")
    assert decode_request(body) == Produce("t", 0, b"ab")


def test_a_topic_that_is_not_utf8_cannot_be_legal() -> None:
    request = decode_request(bytes.fromhex(FETCH_T.replace("0001 74", "0002 74ff")))
    assert request == Fetch("t\ufffd", 0, 0, 1)


def test_a_lone_surrogate_on_the_wire_cannot_be_legal() -> None:
    request = decode_request(bytes.fromhex(FETCH_T.replace("0001 74", "0003 eda080")))
    assert isinstance(request, Fetch)
    assert "\ufffd" in request.topic


class Huge(bytearray):
    """Says it is 2 GiB long."""

    def __len__(self) -> int:
        return 0x7FFFFFFF


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Fetch("t", 1 << 31, 0, 0), "Fetch for 't'/2147483648 cannot be written"),
        (Offsets("t", 0, 1 << 63, 0), "Offsets for 't'/0 cannot be written"),
        (Fetch("x" * 32768, 0, 0, 0), "cannot be written"),
        (Fetch("\ud800", 0, 0, 0), "cannot be written"),
        (MultiFetch((Fetch("t", 0, 0, 0),) * 32768), "MultiFetch of 32768 parts cannot be written"),
        (Produce("t", 0, Huge()), "Produce for 't'/0 has 2147483660 bytes, a frame holds 2147483647"),
    ],
    ids=["partition", "time", "long topic", "surrogate", "parts", "frame"],
)
def test_what_has_no_bytes_is_refused_here(request_: Request, message: str) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        encode_request(request_)
