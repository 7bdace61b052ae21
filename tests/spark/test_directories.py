"""Log directories: found wherever they lie, read to their last whole message, and divided without a byte's loss."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odradek.core.interfaces import DecoderOptions
from odradek.errors import ConfigError, CorruptMessage
from odradek.segments import Log
from odradek.spark.directories import at_time, extent, find_boundary, find_logs, read_range
from odradek.spark.errors import BoundaryMismatch
from odradek.spark.options import Directories, parse_source
from odradek.spark.planning import Range, divide, pack, propose_cuts, settle
from odradek.types import Position, TopicPartition
from odradek.wire.compression import Codec
from odradek.wire.kafka07.message_set import encode_set

MOST = 2000
OPTIONS = DecoderOptions(max_message_bytes=MOST)
P = TopicPartition("orders", -1, 0)
Write = Callable[[str, Sequence[bytes]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a log's segments, each from its bytes; the directory."""

    def run(name: str, segments: Sequence[bytes]) -> Path:
        directory = tmp_path / name
        directory.mkdir(parents=True)
        start = 0
        for data in segments:
            (directory / f"{start:020d}.kafka").write_bytes(data)
            start += len(data)
        return directory

    return run


def logs_at(path: object, **topics: str) -> dict[TopicPartition, Log]:
    options = parse_source({"path": str(path)} | topics, streaming=False)
    assert isinstance(options.where, Directories)
    return find_logs(options.where, options.topics)


def never(error: CorruptMessage) -> None:
    raise error


def values(log: Log, part: Range, options: DecoderOptions = OPTIONS) -> list[bytes]:
    return [value for batch in read_range(log, part, options, never) for value in batch.values]


# ---- finding -------------------------------------------------------------------------------------------------


def test_a_log_a_directory_of_logs_and_a_pattern_all_lead_to_logs(write: Write, tmp_path: Path) -> None:
    one = write("b0/orders-0", [encode_set([b"x"])])
    write("b0/orders-1", [b""])
    write("b0/with-dash-3", [b""])
    (tmp_path / "b0/stray-1").mkdir()
    (tmp_path / "b0/stray").touch()
    assert list(logs_at(one)) == [P]
    names = [str(partition) for partition in logs_at(tmp_path / "b0")]
    assert names == ["orders/0", "orders/1", "with-dash/3"]
    assert list(logs_at(tmp_path / "b?/orders-*")) == [P, P._replace(partition=1)]
    assert [str(partition) for partition in logs_at(f"7@{tmp_path}/b[0-9]")] == [
        "orders/7-0",
        "orders/7-1",
        "with-dash/7-3",
    ]


def test_brokers_tell_logs_of_one_name_apart(write: Write, tmp_path: Path) -> None:
    write("b0/orders-0", [encode_set([b"x"])])
    write("b1/orders-0", [encode_set([b"y"])])
    found = logs_at(f"0@{tmp_path}/b0,1@{tmp_path}/b1")
    assert [str(partition) for partition in found] == ["orders/0-0", "orders/1-0"]
    for partition, log in found.items():
        (batch,) = read_range(log, Range(partition, 0, 11), OPTIONS, never)
        assert (batch.partition, batch.values) == (partition, [b"x" if partition.broker == 0 else b"y"])
    with pytest.raises(ConfigError, match=r"orders/0 is in .*b0/orders-0 and .*b1/orders-0: say which broker"):
        logs_at(f"{tmp_path}/b0,{tmp_path}/b1")


def test_only_what_was_asked_for_is_read_and_all_of_it_must_be_there(write: Write, tmp_path: Path) -> None:
    for name in ("orders-0", "orders-1", "views-0"):
        write(f"b0/{name}", [b""])
    where = f"0@{tmp_path}/b0"
    assert [str(p) for p in logs_at(where, subscribe="views")] == ["views/0-0"]
    assert [str(p) for p in logs_at(where, subscribePattern="o.*")] == ["orders/0-0", "orders/0-1"]
    assert [str(p) for p in logs_at(where, assign='{"orders":["0-1"]}')] == ["orders/0-1"]
    with pytest.raises(ConfigError, match="there is no log of clicks in "):
        logs_at(where, subscribe="views,clicks")
    with pytest.raises(ConfigError, match="there is no log of orders/0-9 in "):
        logs_at(where, assign='{"orders":["0-9"]}')


def test_places_without_logs_are_errors(write: Write, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, why in (("empty", "neither a log nor"), ("none", "no such directory"), ("none*", "matches no directory")):
        with pytest.raises(ConfigError, match=why):
            logs_at(tmp_path / path)
    directory = write("orders-0", [encode_set([b"x"])])
    (directory / f"{99:020d}.kafka").touch()
    with pytest.raises(ConfigError, match="ends at 11, but the next segment starts at 99"):
        logs_at(directory)


# ---- how far a log goes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 40, 500])
def test_a_message_that_is_not_whole_is_not_in_the_log(write: Write, size: int) -> None:
    first, second = encode_set([bytes(90)] * 9), encode_set([b"whole"] * size)
    torn = encode_set([b"a message that is cut off"])
    for cut in (1, 3, 4, 5, 9, 20, len(torn) - 1):
        directory = write(f"cut{cut}/orders-0", [first, second + torn[:cut]])
        log = logs_at(directory)[P]
        assert extent(log, MOST) == (0, len(first + second), (0, len(first)))
        assert values(log, Range(P, len(first), len(first + second))) == [b"whole"] * size


def test_a_whole_log_ends_at_its_end(write: Write) -> None:
    log = logs_at(write("orders-0", [encode_set([b"x"] * 1000), b""]))[P]
    assert extent(log, MOST) == (0, 11_000, (0, 11_000))


def test_damage_at_the_end_is_left_for_the_reader_to_see(write: Write) -> None:
    whole = encode_set([b"x"] * 1000)
    for number, tail in enumerate((bytes(30), b"\xff" * 30, b"\0\1\0\0" + bytes(30))):
        log = logs_at(write(f"{number}/orders-0", [whole + tail]))[P]
        assert extent(log, MOST).latest == len(whole + tail)


def test_times_are_those_of_files(write: Write) -> None:
    directory = write("orders-0", [encode_set([b"x"])] * 3)
    for number, file in enumerate(sorted(directory.iterdir())):
        os.utime(file, (0, 1000 + 100 * number))
    log = logs_at(directory)[P]
    there = extent(log, MOST)
    places = {999: 0, 1000: 0, 1099.9: 0, 1100: 11, 1250: 22, 1999: 22, 2000: 33, 9000: 33}
    assert {t: at_time(log, there, t, now=2000.0) for t in places} == places


# ---- reading -------------------------------------------------------------------------------------------------


def test_a_range_that_ends_inside_a_message_is_an_error(write: Write) -> None:
    log = logs_at(write("orders-0", [encode_set([b"one", b"two"])]))[P]
    assert values(log, Range(P, 13, 26)) == [b"two"]
    with pytest.raises(BoundaryMismatch, match=r"orders/0: the messages from 0 on end at 13, not at 20"):
        values(log, Range(P, 0, 20))
    with pytest.raises(BoundaryMismatch, match="not at 40"):
        values(log, Range(P, 0, 40))


def test_damage_is_treated_as_asked(write: Write) -> None:
    data = bytearray(encode_set([b"one", b"two", b"six"]))
    data[25] ^= 1
    log = logs_at(write("orders-0", [bytes(data)]))[P]
    whole = Range(P, 0, 39)
    with pytest.raises(CorruptMessage, match="CRC mismatch"):
        values(log, whole)
    skipped: list[CorruptMessage] = []
    good = read_range(log, whole, DecoderOptions(MOST, corrupt="skip"), skipped.append)
    assert [value for batch in good for value in batch.values] == [b"one", b"six"]
    assert [error.position for error in skipped] == [13]
    (raw,) = read_range(log, whole, DecoderOptions(MOST, corrupt="raw"), never)
    assert list(raw.corrupt) == [1]


def segments(seed: int, count: int) -> list[bytes]:
    """Sets of all kinds, and payloads that contain some."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        data = b""
        while len(data) < chance.randrange(1, 40_000):
            inner = encode_set([chance.randbytes(chance.randrange(50)) for _ in range(chance.randrange(1, 15))])
            kind = chance.randrange(4)
            data += encode_set([inner, b""]) if kind == 0 else inner if kind == 1 else b""
            data += encode_set([inner, bytes(80)], Codec(chance.randrange(3))) if kind == 2 else b""
            data += encode_set([encode_set([inner])], magic=0) if kind == 3 else b""
        made.append(data)
    return made


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.integers(0, 1 << 32), st.integers(1, 4), st.integers(100, 20_000), st.integers(1, 5))
def test_divided_in_any_way_a_log_is_read_once_and_whole(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, piece: int, tasks: int
) -> None:
    directory = tmp_path_factory.mktemp("logs") / "orders-0"
    directory.mkdir()
    start = 0
    for data in segments(seed, count):
        (directory / f"{start:020d}.kafka").write_bytes(data)
        start += len(data)
    log = logs_at(directory)[P]
    logs = {P: extent(log, MOST)}
    ranges = settle({P: Position(0)}, {P: Position(logs[P].latest)}, logs, fail_on_data_loss=True).ranges
    cuts = propose_cuts(ranges, logs, piece)
    found = [(P, place) for cut in cuts if (place := find_boundary(log, cut, MOST)) is not None]
    assert len(found) == len(cuts)
    pieces = sorted(r for task in pack(divide(ranges, found), tasks) for r in task.ranges)
    whole = [value for batch in log for value in batch.values]
    assert [value for r in pieces for value in values(log, r)] == whole
