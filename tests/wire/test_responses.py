"""The three responses: layouts and golden bytes of specification 1.4 and 1.5, in any split."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.frames import encode_fetch, encode_multifetch

from odradek.errors import BrokerError, OffsetOutOfRange, RemoteProtocolError
from odradek.wire.kafka07.responses import (
    ConfirmReply,
    FetchReply,
    Kafka07ErrorCode,
    MultiFetchReply,
    OffsetsReply,
    PartResult,
    broker_error,
    encode_offsets,
)


class Collector(bytearray):
    """A sink that keeps what it is fed."""

    def feed(self, data: memoryview) -> None:
        assert len(data)
        self.extend(data)


Reply = FetchReply | OffsetsReply


def pour(reply: Reply, stream: bytes, cuts: Sequence[int] = ()) -> int:
    """Feed a stream in pieces until the reply has enough; gives how many bytes it took."""
    edges, used = [0, *sorted(cuts), len(stream)], 0
    for a, b in pairwise(edges):
        took = reply.feed(memoryview(stream[a:b]))
        used += took
        assert reply.done or took == b - a
    return used


parts_strategy = st.lists(
    st.one_of(
        st.tuples(st.just(0), st.binary(max_size=40)),
        st.tuples(st.sampled_from([-1, 1, 3, 17]), st.just(b"")),
    ),
    max_size=5,
)
cuts_strategy = st.lists(st.integers(0, 300), max_size=10)


@given(parts_strategy, cuts_strategy, st.binary(max_size=9))
def test_multifetch_round_trip_in_any_split(parts: list[tuple[int, bytes]], cuts: list[int], behind: bytes) -> None:
    stream = b"".join(encode_multifetch(parts))
    sinks = [Collector() for _ in parts]
    reply = MultiFetchReply(sinks, 40 * 5)
    cuts = [min(cut, len(stream) + len(behind)) for cut in cuts]
    assert pour(reply, stream + behind, cuts) == len(stream)
    assert reply.done
    assert reply.result() == [PartResult(error, len(data)) for error, data in parts]
    assert [bytes(sink) for sink in sinks] == [data for _, data in parts]


@given(st.binary(max_size=60), st.binary(max_size=9))
def test_fetch_round_trip_byte_by_byte(data: bytes, behind: bytes) -> None:
    stream = b"".join(encode_fetch(0, data))
    sink = Collector()
    reply = FetchReply([sink], 60)
    assert pour(reply, stream + behind, range(len(stream))) == len(stream)
    assert reply.result() == [PartResult(0, len(data))]
    assert bytes(sink) == data


@given(st.lists(st.integers(0, (1 << 63) - 1), max_size=8), cuts_strategy, st.binary(max_size=9))
def test_offsets_round_trip_in_any_split(offsets: list[int], cuts: list[int], behind: bytes) -> None:
    stream = b"".join(encode_offsets(offsets))
    reply = OffsetsReply(8)
    cuts = [min(cut, len(stream) + len(behind)) for cut in cuts]
    assert not reply.done
    assert pour(reply, stream + behind, cuts) == len(stream)
    assert reply.done
    assert reply.result() == offsets


def test_golden_offsets() -> None:
    stream = bytes.fromhex("00000016 0000 00000002 0000000000000038 0000000000000000")
    assert b"".join(encode_offsets([56, 0])) == stream
    reply = OffsetsReply(2)
    assert reply.feed(memoryview(stream)) == len(stream)
    assert reply.result() == [56, 0]


def test_golden_multifetch_of_an_empty_part_and_a_bad_partition() -> None:
    stream = bytes.fromhex("0000000e 0000 00000002 0000 00000002 0003")
    assert b"".join(encode_multifetch([(0, b""), (3, b"")])) == stream
    reply = MultiFetchReply([Collector(), Collector()], 2000)
    assert reply.feed(memoryview(stream)) == len(stream)
    assert reply.result() == [PartResult(0, 0), PartResult(3, 0)]


def test_a_multifetch_of_no_parts_is_answered_by_six_bytes() -> None:
    stream = bytes.fromhex("00000002 0000")
    assert b"".join(encode_multifetch([])) == stream
    reply = MultiFetchReply([], 0)
    assert not reply.done
    assert reply.feed(memoryview(stream + stream)) == 6
    assert reply.done
    assert reply.result() == []


@pytest.mark.parametrize("cut", range(6))
def test_the_answer_to_zero_parts_is_taken_in_any_split_and_nothing_behind_it(cut: int) -> None:
    reply, stream = ConfirmReply(), b"".join(encode_multifetch([]))
    assert reply.feed(memoryview(stream[:cut])) == cut
    assert not reply.done
    assert reply.feed(memoryview(stream[cut:] + stream)) == 6 - cut
    assert reply.done


@pytest.mark.parametrize("answer", ["00000002 0001", "00000003 0000", "00000001 0000"])
def test_anything_else_does_not_answer_zero_parts(answer: str) -> None:
    with pytest.raises(RemoteProtocolError):
        ConfirmReply().feed(memoryview(bytes.fromhex(answer)))


def test_log_bytes_are_passed_on_as_they_arrive_and_not_copied() -> None:
    seen: list[memoryview] = []

    class Sink:
        def feed(self, data: memoryview) -> None:
            seen.append(data)

    head, body = encode_fetch(0, b"x" * 100)
    reply = FetchReply([Sink()], 100)
    chunk = bytes(head) + bytes(body)[:30]
    reply.feed(memoryview(chunk))
    assert [len(view) for view in seen] == [30]
    assert seen[0].obj is chunk
    assert repr(reply) == "<FetchReply 0 of 1 parts, 70 bytes missing>"


@pytest.mark.parametrize(
    "stream", ["00000067 0000", "00000001 0000", "fffffffd 0000", "80000000 0000", "00000003 0001"]
)
def test_a_fetch_reply_that_cannot_be_is_refused_at_its_header(stream: str) -> None:
    reply = FetchReply([Collector()], 100)
    with pytest.raises(RemoteProtocolError):
        reply.feed(memoryview(bytes.fromhex(stream)))


@pytest.mark.parametrize(
    "stream",
    [
        "0000000e 0001",  # the outer code is always 0
        "0000000d 0000",  # no room for two parts
        "00000073 0000",  # 101 log bytes for 100
        "0000000e 0000 00000003 0000",  # the part is longer than the whole
        "0000000f 0000 00000002 0000 00000002 0000",  # the parts are shorter than the whole
        "0000000f 0000 00000002 0000 00000004 0000",
        "0000000f 0000 00000003 0001",
    ],
)
def test_a_multifetch_reply_that_cannot_be_is_refused(stream: str) -> None:
    reply = MultiFetchReply([Collector(), Collector()], 100)
    with pytest.raises(RemoteProtocolError):
        reply.feed(memoryview(bytes.fromhex(stream)))


def test_nothing_but_a_header_answers_a_multifetch_of_no_parts() -> None:
    with pytest.raises(RemoteProtocolError):
        MultiFetchReply([], 100).feed(memoryview(bytes.fromhex("00000003 0000 00")))


@pytest.mark.parametrize(
    "stream",
    [
        "00000002",
        "fffffffe",
        "0000001e",  # three positions for two
        "00000007",
        "0000000e 0000 00000002 0000000000000038",
        "0000000e 0000 ffffffff 0000000000000038",
    ],
)
def test_an_offsets_reply_that_cannot_be_is_refused(stream: str) -> None:
    with pytest.raises(RemoteProtocolError):
        OffsetsReply(2).feed(memoryview(bytes.fromhex(stream)))


@pytest.mark.parametrize("max_number", [0, -1, 1])
def test_one_position_may_come_whatever_was_asked(max_number: int) -> None:
    """Specification 4.1: without a log, -1 and -2 are answered by [0], ignoring max_number."""
    reply = OffsetsReply(max_number)
    reply.feed(memoryview(b"".join(encode_offsets([0]))))
    assert reply.result() == [0]


def test_an_error_code_in_an_offsets_reply_is_a_broker_error() -> None:
    reply = OffsetsReply(1)
    reply.feed(memoryview(bytes.fromhex("00000006 0003 00000000")))
    assert reply.done
    assert repr(reply) == "<OffsetsReply 10 of 10 bytes>"
    with pytest.raises(BrokerError) as caught:
        reply.result()
    assert (caught.value.code, caught.value.name) == (3, "WrongPartition")


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (-1, "Unknown"),
        (1, "OffsetOutOfRange"),
        (2, "InvalidMessage"),
        (3, "WrongPartition"),
        (4, "InvalidFetchSize"),
        (77, "Unrecognized"),
    ],
)
def test_error_codes_have_their_names_and_unknown_ones_keep_their_number(code: int, name: str) -> None:
    error = broker_error(code, "fetch t/0")
    assert (error.code, error.name, error.context) == (code, name, "fetch t/0")
    assert f"code {code}" in str(error)
    assert bool(error.hint) == (code in (-1, 1, 3))


@pytest.mark.parametrize("code", [-1, 1, 2, 3, 4, 77])
def test_errors_answer_from_the_table(code: int) -> None:
    error = broker_error(code)
    answers = (error.retriable, error.refresh_metadata, error.fatal, error.fence)
    assert answers == (False, code == Kafka07ErrorCode.WRONG_PARTITION, False, False)
    assert isinstance(error, OffsetOutOfRange) == (code == Kafka07ErrorCode.OFFSET_OUT_OF_RANGE)


@pytest.mark.parametrize("position", [-1, -(2**63)])
def test_a_negative_position_is_refused(position: int) -> None:
    reply = OffsetsReply(2)
    reply.feed(memoryview(b"".join(encode_offsets([2**63 - 1, position]))))
    with pytest.raises(RemoteProtocolError, match=f"position {position} of a log"):
        reply.result()


def test_zero_is_no_error() -> None:
    assert Kafka07ErrorCode(0).protocol_name == "NoError"
