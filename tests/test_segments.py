"""Segment files are read and verified without a broker."""

from __future__ import annotations

import gc
import os
import random
from itertools import pairwise
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek import arrow, segments
from odradek.batch import Batch
from odradek.core.interfaces import DecoderOptions
from odradek.errors import ConfigError, CorruptMessage
from odradek.segments import Fault, LogCheckResult, SegmentedLog
from odradek.types import Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set

from .columns import ENGINES, LOGS, damage, using
from .payloads import payloads


def write(directory: Path, *segments: bytes, start: int = 0) -> Path:
    """A log directory with these segments one behind the other."""
    directory.mkdir(parents=True, exist_ok=True)
    for data in segments:
        (directory / f"{start:020}.kafka").write_bytes(data)
        start += len(data)
    return directory


def values(log: SegmentedLog, start: int | None = None, until: int | None = None) -> list[bytes]:
    return [value for batch in log.batches(start, until) for value in payloads(batch.values)]


FIRST, SECOND = encode_set([b"one", b"two"]), encode_set([b"three"])


def test_a_directory_is_the_log_of_its_partition(tmp_path: Path) -> None:
    log = segments.open(write(tmp_path / "my-topic-7", FIRST, SECOND))
    assert log.partition == TopicPartition("my-topic", 7)
    assert values(log) == [b"one", b"two", b"three"]
    records = [record for batch in log for record in batch]
    assert [(r.position, r.next_position) for r in records] == [(0, 13), (13, 26), (26, 41)]
    assert log.verify() == (3, 41, ())


def test_a_single_file_starts_where_its_name_says(tmp_path: Path) -> None:
    file = write(tmp_path / "t-0", FIRST, start=5000) / "00000000000000005000.kafka"
    log = segments.open(file)
    assert log.partition == TopicPartition("t", 0)
    assert [record.position for batch in log for record in batch] == [5000, 5013]


def test_a_file_of_any_name_starts_at_0(tmp_path: Path) -> None:
    file = tmp_path / "copy.bin"
    file.write_bytes(FIRST)
    log = segments.open(file)
    assert log.partition == TopicPartition(tmp_path.name, 0)
    assert [record.position for batch in log for record in batch] == [0, 13]


def test_short_names_sort_as_numbers(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / "26.kafka").write_bytes(SECOND)
    (directory / "0.kafka").write_bytes(FIRST)
    (directory / "notes.txt").write_bytes(b"ignored, as the broker ignores it")
    assert values(segments.open(directory)) == [b"one", b"two", b"three"]


@pytest.mark.parametrize(("start", "expected"), [(0, 3), (13, 2), (26, 1), (41, 0), (1000, 0)])
def test_reading_from_a_position(tmp_path: Path, start: int, expected: int) -> None:
    log = segments.open(write(tmp_path / "t-0", FIRST, SECOND))
    assert len(values(log, start)) == expected


def test_reading_from_before_the_first_segment_starts_with_it(tmp_path: Path) -> None:
    assert values(segments.open(write(tmp_path / "t-0", FIRST, start=100)), 5) == [b"one", b"two"]


@pytest.mark.parametrize("compression", [CompressionType.GZIP, CompressionType.SNAPPY])
def test_wrappers_are_opened(tmp_path: Path, compression: CompressionType) -> None:
    wrapper = encode_set([b"a", b"b"], compression)
    log = segments.open(write(tmp_path / "t-0", wrapper + FIRST))
    records = [record for batch in log for record in batch]
    assert [(r.value, r.position, r.inner_index) for r in records[:3]] == [
        (b"a", 0, 0),
        (b"b", 0, 1),
        (b"one", len(wrapper), 0),
    ]
    assert records[0].next_position == 0
    assert records[1].next_position == len(wrapper)


# ---- between two positions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "until", "expected"),
    [
        (None, 13, [b"one"]),
        (13, 41, [b"two", b"three"]),
        (0, 26, [b"one", b"two"]),
        (26, 26, []),
        (41, 41, []),
        (30, 13, []),
        (None, 0, []),
    ],
)
def test_a_range_is_what_lies_between_two_positions(
    tmp_path: Path, start: int | None, until: int, expected: list[bytes]
) -> None:
    log = segments.open(write(tmp_path / "t-0", FIRST, SECOND))
    assert values(log, start, until) == expected


def test_ranges_of_a_log_have_all_of_it_between_them(tmp_path: Path) -> None:
    sets = [
        encode_set([b"%d" % n, b"x" * n], CompressionType.GZIP if n % 3 else CompressionType.NONE) for n in range(60)
    ]
    log = segments.open(write(tmp_path / "t-0", b"".join(sets[:20]), b"".join(sets[20:])))
    whole = [(r.position, r.inner_index, r.value) for batch in log for r in batch]
    ends = [log.start, *sorted({r.next_position for batch in log for r in batch} - {log.start})]
    assert ends[-1] == log.end
    for step in (1, 7, 100):
        marks = [*ends[::step], log.end]
        parts = [log.batches(a, b) for a, b in pairwise(marks)]
        assert [(r.position, r.inner_index, r.value) for part in parts for batch in part for r in batch] == whole


@pytest.mark.parametrize("until", [1, 12, 14, 25, 27, 40, 42, 1000])
def test_an_end_where_no_message_ends_is_an_error_behind_what_is_good(tmp_path: Path, until: int) -> None:
    log = segments.open(write(tmp_path / "t-0", FIRST, SECOND))
    seen: list[bytes] = []
    with pytest.raises(CorruptMessage, match=f"ends at {until}") as caught:
        for batch in log.batches(until=until):
            seen += payloads(batch.values)
    boundaries = [0, 13, 26, 41]
    assert caught.value.position == max(at for at in boundaries if at <= until)
    assert seen == [b"one", b"two", b"three"][: boundaries.index(caught.value.position)]


def test_an_end_behind_a_torn_tail_is_an_error(tmp_path: Path) -> None:
    log = segments.open(write(tmp_path / "t-0", FIRST[:-1]))
    with pytest.raises(CorruptMessage, match="ends at 26") as caught:
        list(log.batches(until=26))
    assert caught.value.position == 13


# ---- as Arrow -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@given(first=LOGS, second=LOGS)
def test_arrow_has_what_the_batches_have(
    tmp_path_factory: pytest.TempPathFactory, engine: str, first: bytes, second: bytes
) -> None:
    with using(engine):
        log = segments.open(write(tmp_path_factory.mktemp("log") / "t-0", first, second))
        rows = [row for batch in log.arrow(corrupt="raw") for row in batch.to_pylist()]
        records = [(r, batch.corrupt.get(n)) for batch in log.batches(corrupt="raw") for n, r in enumerate(batch)]
        assert [(row["offset"], row["index"], row["value"]) for row in rows] == [
            (r.position, r.inner_index, r.value) for r, _ in records
        ]
        assert [row["error"] for row in rows] == [error and error.reason for _, error in records]


def test_a_record_batch_has_about_as_many_bytes_as_asked_for(tmp_path: Path) -> None:
    log = segments.open(write(tmp_path / "t-0", encode_set([b"x" * 990] * 5000)))
    for max_bytes in (1000, 200_000, 1 << 20, 3 << 20, 16 << 20):
        batches = list(log.arrow(max_bytes=max_bytes))
        assert sum(batch.num_rows for batch in batches) == 5000
        assert all(batch.schema == arrow.schema() for batch in batches)
        assert max(990 * batch.num_rows for batch in batches) <= max_bytes
        assert len(batches) <= 2 + 3 * 5_000_000 // max_bytes
    with pytest.raises(ConfigError, match="max_bytes"):
        log.arrow(max_bytes=0)
    (first, *_) = log.arrow(13_000, 26_000)
    assert first["offset"].to_pylist() == list(range(13_000, 26_000, 1000))


def test_an_error_comes_behind_the_rows_before_it(tmp_path: Path) -> None:
    log = segments.open(write(tmp_path / "t-0", FIRST + damage(SECOND) + FIRST))
    tables = log.arrow()
    assert next(tables)["value"].to_pylist() == [b"one", b"two"]
    with pytest.raises(CorruptMessage, match="CRC"):
        next(tables)
    assert [b["value"].to_pylist() for b in log.arrow(corrupt="skip")] == [[b"one", b"two", b"one", b"two"]]


def test_reading_takes_no_more_memory_than_a_batch(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    with (directory / "0.kafka").open("wb") as file:
        for _ in range(100):
            file.write(encode_set([b"x" * 990] * 1000))
    log, process = segments.open(directory), psutil.Process()
    assert log.verify().messages == sum(len(batch) for batch in log) == 100_000
    gc.collect()
    before, most, others = process.memory_info().rss, 0, pa.total_allocated_bytes()
    for batch in log.arrow(max_bytes=4 << 20):
        most = max(most, process.memory_info().rss, batch.num_rows)
    assert log.verify().messages == 100_000
    assert max(most, process.memory_info().rss) - before < 40_000_000, "of 100 MB"
    assert pa.total_allocated_bytes() - others < 40_000_000


# ---- what is wrong ------------------------------------------------------------------------------------------


@given(cut=st.integers(1, 12))
@settings(max_examples=12)
def test_a_torn_tail_is_left_out_and_verify_names_it(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    directory = write(tmp_path_factory.mktemp("torn") / "t-0", FIRST[:-cut])
    log = segments.open(directory)
    assert values(log) == [b"one"]
    (fault,) = log.verify().faults
    assert (fault.path, fault.position) == (log.segments[0].path, 13)
    assert f"the last {13 - cut} bytes" in fault.reason


def test_a_bad_checksum_ends_reading_behind_what_is_good(tmp_path: Path) -> None:
    broken = bytearray(FIRST + SECOND)
    broken[25] ^= 1
    log = segments.open(write(tmp_path / "t-0", bytes(broken)))
    seen: list[bytes] = []
    with pytest.raises(CorruptMessage) as caught:
        for batch in log:
            seen += payloads(batch.values)
    assert seen == [b"one"]
    assert caught.value.position == 13


def test_verify_goes_on_behind_a_bad_checksum(tmp_path: Path) -> None:
    broken = bytearray(FIRST + SECOND + FIRST)
    broken[25] ^= 1
    broken[-1] ^= 1
    log = segments.open(write(tmp_path / "t-0", bytes(broken)))
    check = log.verify()
    assert check.messages == 3
    assert [fault.position for fault in check.faults] == [13, 54]
    assert all("CRC" in fault.reason for fault in check.faults)


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\0\0\0\0"])
def test_verify_ends_at_a_length_that_makes_no_sense(tmp_path: Path, length: bytes) -> None:
    log = segments.open(write(tmp_path / "t-0", FIRST + length + b"x" * 100))
    check = log.verify()
    assert check.messages == 2
    assert [fault.position for fault in check.faults] == [26]


def test_a_gap_between_segments_is_a_fault(tmp_path: Path) -> None:
    directory = write(tmp_path / "t-0", FIRST)
    write(directory, SECOND, start=30)
    log = segments.open(directory)
    assert log.verify().faults == (
        Fault(log.segments[0].path, log.segments[0].end, "ends at 26, but the next segment starts at 30"),
    )
    assert values(log) == [b"one", b"two", b"three"]


def test_an_empty_segment_is_no_fault(tmp_path: Path) -> None:
    log = segments.open(write(tmp_path / "t-0", FIRST, b""))
    assert log.verify() == (2, 26, ())
    assert values(log) == [b"one", b"two"]


def test_messages_across_chunk_borders(tmp_path: Path) -> None:
    dice = random.Random(1)
    payloads = [dice.randbytes(dice.randrange(200_000)) for _ in range(40)]
    log = segments.open(write(tmp_path / "t-0", encode_set(payloads)))
    assert values(log) == payloads
    steps: list[int] = []
    assert log.verify(steps.append) == (40, log.segments[0].size, ())
    assert len(steps) > 1
    assert sum(steps) == log.segments[0].size


def test_what_is_written_after_opening_is_not_read(tmp_path: Path) -> None:
    directory = write(tmp_path / "t-0", FIRST)
    log = segments.open(directory)
    write(directory, FIRST + SECOND)
    assert values(log) == [b"one", b"two"]


def test_what_cannot_be_a_log_is_refused(tmp_path: Path) -> None:
    for path in [tmp_path / "missing", write(tmp_path / "empty-0")]:
        with pytest.raises(ConfigError, match=path.name):
            segments.open(os.fspath(path))
    named = write(tmp_path / "named-0")
    (named / "abc.kafka").write_bytes(b"")
    with pytest.raises(ConfigError, match="not a number"):
        segments.open(named)


# ---- verify -------------------------------------------------------------------------------------------------


def decoded(log: SegmentedLog) -> LogCheckResult:
    """What `verify` should find, by decoding everything."""
    (segment,) = log.segments
    decoder = MessageSetDecoder(
        log.partition, log.start, DecoderOptions(max_message_bytes=(1 << 31) - 1, corrupt="skip")
    )
    decoder.feed(memoryview(segment.path.read_bytes()))
    faults = [Fault(segment.path, Position(r.position), r.reason) for r in decoder.take_reports()]
    messages = len(decoder.take().values)
    if isinstance(decoder.error, CorruptMessage):
        faults.append(Fault(segment.path, Position(decoder.error.position), decoder.error.reason))
    elif torn := log.end - decoder.position:
        reason = f"torn tail: the last {torn} bytes are not a whole message"
        faults.append(Fault(segment.path, decoder.position, reason))
    return LogCheckResult(messages, log.size, tuple(faults))


@pytest.mark.parametrize("engine", ENGINES)
@given(
    log_bytes=LOGS,
    flips=st.dictionaries(st.integers(0, 300), st.integers(1, 255), max_size=3),
    chunk=st.integers(1, 64),
)
def test_verify_finds_what_decoding_finds(
    tmp_path_factory: pytest.TempPathFactory, engine: str, log_bytes: bytes, flips: dict[int, int], chunk: int
) -> None:
    data = bytearray(log_bytes)
    for at, mask in flips.items():
        if at < len(data):
            data[at] ^= mask
    log = segments.open(write(tmp_path_factory.mktemp("log") / "t-0", bytes(data), start=1 << 40))
    with using(engine), pytest.MonkeyPatch.context() as patch:
        expected = decoded(log)
        assert log.verify() == expected
        patch.setattr(segments.kafka07, "_CHECK_BYTES", chunk)
        assert log.verify() == expected


def test_a_length_behind_the_end_takes_no_memory(tmp_path: Path) -> None:
    log = segments.open(write(tmp_path / "t-0", FIRST + b"\x7f\xff\xff\xff" + b"x" * 2_000_000))
    process = psutil.Process()
    before = process.memory_info().rss
    (fault,) = log.verify().faults
    assert fault.position == 26 and "the last 2000004 bytes" in fault.reason
    assert process.memory_info().rss - before < 20_000_000


def test_a_file_that_becomes_shorter_meanwhile_ends_early(tmp_path: Path) -> None:
    """A mapping of it would end the process."""
    directory = write(tmp_path / "t-0", encode_set([b"x" * 100] * 50_000))
    log = segments.open(directory)
    batches = log.batches()
    assert len(next(batches))
    os.truncate(log.segments[0].path, 110)
    assert sum(len(batch) for batch in batches) == 0
    check = log.verify()
    assert check.messages == 1 and check.faults[0].position == 110


# ---- a broker's directory -----------------------------------------------------------------------------------


def test_all_logs_of_a_broker_sorted_by_partition(tmp_path: Path) -> None:
    for name in ("t-10", "t-2", "a-b-0"):
        write(tmp_path / name, FIRST)
    (tmp_path / "t-3").mkdir()
    (tmp_path / "not a log").mkdir()
    (tmp_path / ".kafka_cleanshutdown").touch()
    logs = segments.logs(tmp_path)
    assert [(log.partition.topic, log.partition.partition) for log in logs] == [("a-b", 0), ("t", 2), ("t", 10)]
    assert all(values(log) == [b"one", b"two"] for log in logs)
    for path in (tmp_path / "t-2", tmp_path / "t-2" / f"{0:020}.kafka"):
        assert [log.partition.partition for log in segments.logs(path)] == [2]


def test_a_broker_s_directory_is_not_a_log_and_the_error_says_what_to_open(tmp_path: Path) -> None:
    write(tmp_path / "t-1", FIRST)
    with pytest.raises(ConfigError, match=r"1 logs in its subdirectories.*logs\(\)"):
        segments.open(tmp_path)
    with pytest.raises(ConfigError, match=r"no \*\.kafka files"):
        segments.logs(write(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="no such file"):
        segments.logs(tmp_path / "missing")


def test_the_position_of_a_time_is_the_newest_file_not_written_to_since(tmp_path: Path) -> None:
    log = segments.open(write(tmp_path / "t-0", FIRST, SECOND))
    for segment, seconds in zip(log.segments, (1000, 2000), strict=True):
        os.utime(segment.path, (seconds, seconds))
    assert [log.position_at(ms) for ms in (0, 999_999, 1_000_000, 1_999_999, 2_000_000)] == [0, 0, 0, 0, 26]
    assert (log.extent(), log.extent(read_committed=True), log.unit, log.notes) == ((0, 41), (0, 41), "bytes", ())


def test_iterating_over_a_log_yields_batches(tmp_path: Path) -> None:
    log = segments.open(write(tmp_path / "t-0", FIRST))
    assert [type(batch) for batch in log] == [Batch]
    assert (log.start, log.end, log.size) == (0, 26, 26)


def test_wrappers_that_grow_much_are_decompressed_some_at_a_time(tmp_path: Path) -> None:
    wrapper = encode_set([bytes(40 << 20)], CompressionType.GZIP)
    log = segments.open(write(tmp_path / "t-0", wrapper * 5))
    assert [[record.position // len(wrapper) for record in rows] for rows in log.batches()] == [[0, 1], [2, 3], [4]]
