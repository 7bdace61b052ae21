"""Segment files are read and verified without a broker."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.errors import ConfigError, CorruptMessage
from odradek.segments import Fault, Log, open_log
from odradek.types import TopicPartition
from odradek.wire.compression import Codec
from odradek.wire.kafka07.message_set import encode_set


def write(directory: Path, *segments: bytes, start: int = 0) -> Path:
    """A log directory with these segments one behind the other."""
    directory.mkdir(parents=True, exist_ok=True)
    for data in segments:
        (directory / f"{start:020}.kafka").write_bytes(data)
        start += len(data)
    return directory


def values(log: Log, start: int | None = None) -> list[bytes]:
    return [value for batch in log.batches(start) for value in batch.values]


FIRST, SECOND = encode_set([b"one", b"two"]), encode_set([b"three"])


def test_a_directory_is_the_log_of_its_partition(tmp_path: Path) -> None:
    log = open_log(write(tmp_path / "my-topic-7", FIRST, SECOND))
    assert log.partition == TopicPartition("my-topic", -1, 7)
    assert values(log) == [b"one", b"two", b"three"]
    records = [record for batch in log for record in batch]
    assert [(r.position, r.next_position) for r in records] == [(0, 13), (13, 26), (26, 41)]
    assert log.verify() == (3, 41, ())


def test_a_single_file_starts_where_its_name_says(tmp_path: Path) -> None:
    file = write(tmp_path / "t-0", FIRST, start=5000) / "00000000000000005000.kafka"
    log = open_log(file)
    assert log.partition == TopicPartition("t", -1, 0)
    assert [record.position for batch in log for record in batch] == [5000, 5013]


def test_a_file_of_any_name_starts_at_0(tmp_path: Path) -> None:
    file = tmp_path / "copy.bin"
    file.write_bytes(FIRST)
    log = open_log(file)
    assert log.partition == TopicPartition(tmp_path.name, -1, 0)
    assert [record.position for batch in log for record in batch] == [0, 13]


def test_short_names_sort_as_numbers(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / "26.kafka").write_bytes(SECOND)
    (directory / "0.kafka").write_bytes(FIRST)
    (directory / "notes.txt").write_bytes(b"ignored, as the broker ignores it")
    assert values(open_log(directory)) == [b"one", b"two", b"three"]


@pytest.mark.parametrize(("start", "expected"), [(0, 3), (13, 2), (26, 1), (41, 0), (1000, 0)])
def test_reading_from_a_position(tmp_path: Path, start: int, expected: int) -> None:
    log = open_log(write(tmp_path / "t-0", FIRST, SECOND))
    assert len(values(log, start)) == expected


def test_reading_from_before_the_first_segment_starts_with_it(tmp_path: Path) -> None:
    assert values(open_log(write(tmp_path / "t-0", FIRST, start=100)), 5) == [b"one", b"two"]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_wrappers_are_opened(tmp_path: Path, codec: Codec) -> None:
    wrapper = encode_set([b"a", b"b"], codec)
    log = open_log(write(tmp_path / "t-0", wrapper + FIRST))
    records = [record for batch in log for record in batch]
    assert [(r.value, r.position, r.inner_index) for r in records[:3]] == [
        (b"a", 0, 0),
        (b"b", 0, 1),
        (b"one", len(wrapper), 0),
    ]
    assert records[0].next_position == 0
    assert records[1].next_position == len(wrapper)


@given(cut=st.integers(1, 12))
@settings(max_examples=12)
def test_a_torn_tail_is_left_out_and_verify_names_it(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    directory = write(tmp_path_factory.mktemp("torn") / "t-0", FIRST[:-cut])
    log = open_log(directory)
    assert values(log) == [b"one"]
    (fault,) = log.verify().faults
    assert (fault.path, fault.position) == (log.segments[0].path, 13)
    assert f"the last {13 - cut} bytes" in fault.reason


def test_a_bad_checksum_ends_reading_behind_what_is_good(tmp_path: Path) -> None:
    broken = bytearray(FIRST + SECOND)
    broken[25] ^= 1
    log = open_log(write(tmp_path / "t-0", bytes(broken)))
    seen: list[bytes] = []
    with pytest.raises(CorruptMessage) as caught:
        for batch in log:
            seen += batch.values
    assert seen == [b"one"]
    assert caught.value.position == 13


def test_verify_goes_on_behind_a_bad_checksum(tmp_path: Path) -> None:
    broken = bytearray(FIRST + SECOND + FIRST)
    broken[25] ^= 1
    broken[-1] ^= 1
    log = open_log(write(tmp_path / "t-0", bytes(broken)))
    verdict = log.verify()
    assert verdict.messages == 3
    assert [fault.position for fault in verdict.faults] == [13, 54]
    assert all("CRC" in fault.reason for fault in verdict.faults)


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\0\0\0\0"])
def test_verify_ends_at_a_length_that_makes_no_sense(tmp_path: Path, length: bytes) -> None:
    log = open_log(write(tmp_path / "t-0", FIRST + length + b"x" * 100))
    verdict = log.verify()
    assert verdict.messages == 2
    assert [fault.position for fault in verdict.faults] == [26]


def test_a_gap_between_segments_is_a_fault(tmp_path: Path) -> None:
    directory = write(tmp_path / "t-0", FIRST)
    write(directory, SECOND, start=30)
    log = open_log(directory)
    assert log.verify().faults == (
        Fault(log.segments[0].path, log.segments[0].end, "ends at 26, but the next segment starts at 30"),
    )
    assert values(log) == [b"one", b"two", b"three"]


def test_an_empty_segment_is_no_fault(tmp_path: Path) -> None:
    log = open_log(write(tmp_path / "t-0", FIRST, b""))
    assert log.verify() == (2, 26, ())
    assert values(log) == [b"one", b"two"]


def test_messages_across_chunk_borders(tmp_path: Path) -> None:
    dice = random.Random(1)
    payloads = [dice.randbytes(dice.randrange(200_000)) for _ in range(40)]
    log = open_log(write(tmp_path / "t-0", encode_set(payloads)))
    assert values(log) == payloads
    steps: list[int] = []
    assert log.verify(steps.append) == (40, log.segments[0].size, ())
    assert len(steps) > 1
    assert sum(steps) == log.segments[0].size


def test_what_is_written_after_opening_is_not_read(tmp_path: Path) -> None:
    directory = write(tmp_path / "t-0", FIRST)
    log = open_log(directory)
    write(directory, FIRST + SECOND)
    assert values(log) == [b"one", b"two"]


def test_what_cannot_be_a_log_is_refused(tmp_path: Path) -> None:
    for path in [tmp_path / "missing", write(tmp_path / "empty-0")]:
        with pytest.raises(ConfigError, match=path.name):
            open_log(os.fspath(path))
    named = write(tmp_path / "named-0")
    (named / "abc.kafka").write_bytes(b"")
    with pytest.raises(ConfigError, match="not a number"):
        open_log(named)
