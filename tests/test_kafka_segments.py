"""Log directories of Kafka 0.8 and later are read and verified without a broker."""

from __future__ import annotations

import logging
import os
import random
import struct
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek import segments
from odradek.errors import ConfigError, CorruptMessage, OdradekError
from odradek.segments import KafkaLog, LeaderEpoch, SegmentedLog, StoredProducerState
from odradek.types import Record, TimestampType, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.encode import encode_batch, encode_message_set

from .columns import ENGINES, using
from .kafka_logs import T0, batch, index_of, marker, messages, with_crc, write_log

COMPRESSIONS = list(CompressionType)
FILES = {
    0: b"".join(batch(range(n, n + 7), COMPRESSIONS[n % 5]) for n in range(0, 140, 7)),
    140: b"".join(batch(range(n, n + 3)) for n in range(140, 200, 3)),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A sound log of offsets 0 to 199, in two segments with indexes."""
    return write_log(tmp_path / "my-topic-7", FILES, index_every=2)


def opened(path: Path) -> KafkaLog:
    log = segments.open(path)
    assert isinstance(log, KafkaLog)
    return log


def records(
    log: SegmentedLog, start: int | None = None, until: int | None = None, *, read_committed: bool = False
) -> list[Record]:
    return [record for rows in log.batches(start, until, read_committed=read_committed) for record in rows]


def offsets(
    log: SegmentedLog, start: int | None = None, until: int | None = None, *, read_committed: bool = False
) -> list[int]:
    return [int(record.position) for record in records(log, start, until, read_committed=read_committed)]


# ---- sound logs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_records_of_every_compression_are_what_was_written(directory: Path, engine: str) -> None:
    with using(engine):
        log = opened(directory)
        read = records(log)
        assert log.verify().messages == 200
    assert (log.partition, log.unit) == (TopicPartition("my-topic", 7), "offsets")
    assert (log.start, log.end, log.extent(), log.notes) == (0, 200, (0, 200), ())
    assert [(r.position, r.value, r.timestamp) for r in read] == [(n, b"%d" % n, T0 + 1000 * n) for n in range(200)]
    assert [r.key for r in read] == [None if n % 2 else b"k%d" % n for n in range(200)]
    assert [bool(r.headers) for r in read] == [n % 3 == 0 for n in range(200)]


def test_large_batches_stay_encoded_for_who_passes_them_on(directory: Path, engine: str) -> None:
    large = [random.Random(number).randbytes(20_000) for number in range(4)]
    data = [
        batch([0, 1], CompressionType.LZ4),
        batch([2, 3], CompressionType.LZ4, values=large[:2]),
        batch([4, 5], values=large[2:]),
        batch([6, 7], CompressionType.LZ4, values=large[2:]),
    ]
    write_log(directory, {0: b"".join(data)})
    log = opened(directory)
    for keep, kept in (("lz4", [data[1], data[3]]), ("none", [data[2]]), (None, [])):
        parts = [part for columns in log.columns(keep_encoded=keep) for part in columns.parts]
        assert [part.encoded.data for part in parts if part.encoded is not None] == kept
        assert [value for part in parts for value in part.values] == [record.value for record in records(log)]
    cut = list(log.columns(3, 7, keep_encoded="lz4"))
    assert {part.encoded for columns in cut for part in columns.parts} == {None}
    assert [position for columns in cut for position in columns.positions] == [3, 4, 5, 6]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    "kind", [CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY, CompressionType.LZ4]
)
def test_older_formats_and_a_mixture_of_all(tmp_path: Path, magic: int, kind: CompressionType) -> None:
    data = messages(range(10), magic, kind) + messages(range(10, 20), magic) + messages(range(20, 25), 1)
    log = opened(write_log(tmp_path / "t-0", {0: data + batch(range(25, 30))}))
    assert [r.value for r in records(log)] == [b"%d" % n for n in range(30)]
    assert offsets(log, 4, 27) == list(range(4, 27))
    assert {r.timestamp for r in records(log, 0, 20)} == ({None} if not magic else {T0 + 1000 * n for n in range(20)})
    assert records(log)[22].timestamp_type is TimestampType.CREATE_TIME
    assert log.verify() == (30, log.size, ())
    assert log.position_at(T0 + 7000) == (7 if magic else 20)


@pytest.mark.parametrize("kind", [CompressionType.NONE, CompressionType.GZIP])
def test_headers_are_of_what_has_offsets_in_the_range(tmp_path: Path, kind: CompressionType) -> None:
    data = messages(range(5), 1, kind) + messages(range(5, 10), 1, kind) + batch(range(10, 15), kind)
    log = opened(write_log(tmp_path / "t-0", {0: data}))
    every = list(log.stored_batches())
    starts = [0, *(one.next_offset for one in every[:-1])]
    for start in range(16):
        for until in range(start + 1, 17):
            expected = [
                one for first, one in zip(starts, every, strict=True) if max(first, start) < min(one.next_offset, until)
            ]
            assert list(log.stored_batches(start, until)) == expected


def test_any_offsets_divide_a_log(directory: Path) -> None:
    log = opened(directory)
    for step in (1, 13, 70):
        cuts = [*range(0, 200, step), 200]
        assert [n for start, until in pairwise(cuts) for n in offsets(log, start, until)] == list(range(200))
    assert offsets(log, 150, 150) == offsets(log, 20, 10) == offsets(log, 5000) == []


def test_an_end_behind_the_log_is_an_error_behind_its_records(directory: Path) -> None:
    log, seen = opened(directory), []
    with pytest.raises(CorruptMessage, match="the log ends here, in front of 201") as caught:
        for rows in log.batches(190, 201):
            seen += [r.position for r in rows]
    assert (seen, caught.value.position) == (list(range(190, 200)), 200)


def test_arrow_has_what_the_batches_have(directory: Path) -> None:
    log = opened(directory)
    rows = [row for part in log.arrow(20, 180, max_bytes=2000) for row in part.to_pylist()]
    assert [(row["offset"], row["value"], row["key"]) for row in rows] == [
        (r.position, r.value, r.key) for r in records(log, 20, 180)
    ]
    assert len(list(log.arrow(max_bytes=300))) > len(list(log.arrow())) >= 1


def test_holes_between_offsets_are_no_damage(tmp_path: Path) -> None:
    hole = with_crc(batch([20, 21])[:23] + (9).to_bytes(4, "big") + batch([20, 21])[27:])  # to 29, of which 8 are gone
    data = {0: batch([3, 4]) + hole, 100: batch([250])}
    log = opened(write_log(tmp_path / "t-0", data))
    assert offsets(log) == [3, 4, 20, 21, 250]
    assert offsets(log, 5, 21) == [20]
    assert offsets(log, 25, 120) == offsets(log, 30, 250) == []
    assert log.verify() == (5, log.size, ())


def test_an_empty_segment_ends_where_it_begins(tmp_path: Path) -> None:
    log = opened(write_log(tmp_path / "t-0", {0: batch([0, 1]), 2: b""}))
    assert (log.start, log.end, offsets(log), log.verify().faults) == (0, 2, [0, 1], ())
    assert opened(write_log(tmp_path / "new-0", {0: b""})).extent() == (0, 0)


def test_a_single_file_is_a_log(directory: Path) -> None:
    log = opened(directory / f"{140:020}.log")
    assert (log.partition.topic, log.start, log.end, log.size) == ("my-topic", 140, 200, len(FILES[140]))
    assert offsets(log) == list(range(140, 200))


def test_reports_of_what_is_skipped(tmp_path: Path) -> None:
    bad = bytearray(batch([3, 4]))
    bad[-1] ^= 1
    log = opened(write_log(tmp_path / "t-0", {0: batch([0, 1, 2]) + bytes(bad) + batch([5])}))
    reports: list[CorruptMessage] = []
    rows = [n for columns in log.columns(corrupt="skip", report=reports.append) for n in columns.positions]
    assert (rows, [r.position for r in reports]) == ([0, 1, 2, 5], [3])
    assert [(r.position, r.value == bytes(bad)) for rows in log.batches(3, 5, corrupt="raw") for r in rows] == [
        (3, True)
    ]
    with pytest.raises(CorruptMessage, match="CRC"):
        records(log)
    assert [(f.position, f.reason) for f in log.verify().faults] == [(3, "entry at offset 3: CRC mismatch")]


@pytest.mark.parametrize("index_every", [0, 1])
@pytest.mark.parametrize("kind", [CompressionType.NONE, CompressionType.GZIP])
def test_damage_behind_the_range_is_not_that_of_its_records(
    tmp_path: Path, kind: CompressionType, index_every: int
) -> None:
    data = [batch(range(start, start + 5), kind) for start in range(0, 20, 5)]
    data[2] = data[2][:-1] + bytes((data[2][-1] ^ 1,))
    log = opened(write_log(tmp_path / "t-0", {0: b"".join(data)}, index_every=index_every))
    assert offsets(log, 3, 7) == [3, 4, 5, 6]
    assert offsets(log, 0, 10) == [*range(10)]
    assert log.position_at(T0 + 4000) == 4
    reports: list[CorruptMessage] = []
    for start in range(0, 20, 4):  # each piece of damage is reported by the ranges that it is in
        list(log.columns(start, start + 4, corrupt="skip", report=reports.append))
    assert [report.position for report in reports] == [10, 12]
    with pytest.raises(CorruptMessage, match="CRC mismatch"):
        offsets(log, 0, 11)


def test_reading_takes_no_more_memory_than_a_batch(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    with (directory / f"{0:020}.log").open("wb") as file:
        for n in range(0, 100_000, 100):
            file.write(encode_batch([b"x" * 990] * 100, base_offset=n))
    log, process = opened(directory), psutil.Process()
    others = pa.total_allocated_bytes()
    assert sum(map(len, log.batches())) == log.verify().messages == 100_000
    assert sum(part.num_rows for part in log.arrow(until=50_000, read_committed=True)) == 50_000
    before, most = process.memory_info().rss, 0
    for _ in log.arrow(max_bytes=4 << 20, read_committed=True):
        most = max(most, process.memory_info().rss)
    assert most - before < 40_000_000, "of 100 MB"
    assert pa.total_allocated_bytes() - others < 40_000_000


# ---- times --------------------------------------------------------------------------------------------------


def time_index(start: int, *entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qi", time, offset - start) for time, offset in entries)


@pytest.mark.parametrize("index", ["none", "right", "wrong", "disordered", "short"])
def test_the_position_of_a_time_whatever_the_index_says(directory: Path, index: str) -> None:
    entries = {
        "none": b"",
        "right": time_index(0, (T0 + 139_000, 139)),
        "wrong": time_index(0, (T0 + 20_000, 139)),
        "disordered": time_index(0, (T0 + 50_000, 50), (T0 + 3000, 3)),
        "short": time_index(0, (T0 + 69_000, 69)),  # its end was not flushed
    }
    (directory / f"{0:020}.timeindex").write_bytes(entries[index])
    log = opened(directory)
    for time, offset in [(0, 0), (T0 + 1, 1), (T0 + 77_000, 77), (T0 + 139_001, 140), (T0 + 199_000, 199)]:
        assert log.position_at(time) == offset
    assert log.position_at(T0 + 199_001) == log.end
    assert bool(log.verify().faults) == (index in ("wrong", "disordered"))


# ---- indexes ------------------------------------------------------------------------------------------------


@given(data=st.binary(max_size=400))
def test_no_index_changes_what_is_read(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    directory = write_log(tmp_path_factory.mktemp("log") / "t-0", FILES)
    for start in FILES:
        (directory / f"{start:020}.index").write_bytes(data)
        (directory / f"{start:020}.timeindex").write_bytes(data)
    log = opened(directory)
    assert log.end == 200
    assert offsets(log, 100, 190) == list(range(100, 190))
    assert log.position_at(T0 + 150_000) == 150


def test_a_damaged_index_is_named(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = directory / f"{0:020}.index"
    path.write_bytes(struct.pack(">iI", 20, 33) * 3)
    with caplog.at_level(logging.WARNING, "odradek.segments"):
        assert offsets(opened(directory), 30, 35) == list(range(30, 35))
    assert "its index does not fit it" in caplog.text
    (fault,) = opened(directory).verify().faults
    assert (fault.path, fault.position) == (path, 20)
    assert "no batch with offset 20 starts at byte 33; a broker creates it again" in fault.reason


def test_zeros_at_the_end_of_an_index_are_space(directory: Path) -> None:
    path = directory / f"{140:020}.index"
    path.write_bytes(index_of(FILES[140], 140, 2) + bytes(8000))
    (directory / f"{0:020}.index").write_bytes(bytes(8000))
    (directory / f"{0:020}.timeindex").write_bytes(bytes(1200))
    assert offsets(opened(directory), 190) == list(range(190, 200))
    assert opened(directory).verify().faults == ()


# ---- transactions -------------------------------------------------------------------------------------------

COMMITTED, ABORTED, OPEN = (11, 0, 0), (12, 0, 0), (13, 0, 0)
TRANSACTIONS = {
    0: batch([0, 1], producer=COMMITTED, is_transactional=True)
    + batch([2, 3], producer=ABORTED, is_transactional=True),
    4: batch([4]) + marker(5, 12, commit=False) + batch([6], producer=ABORTED, is_transactional=True),
    7: marker(7, 11, commit=True)
    + marker(8, 12, commit=True)
    + batch([9])
    + batch([10, 11], producer=OPEN, is_transactional=True)
    + batch([12]),
}


def test_committed_records_up_to_the_first_open_transaction(tmp_path: Path) -> None:
    log = opened(write_log(tmp_path / "t-0", TRANSACTIONS))
    assert offsets(log) == [0, 1, 2, 3, 4, 6, 9, 10, 11, 12]
    assert offsets(log, read_committed=True) == [0, 1, 4, 6, 9]
    assert offsets(log, 3, 7, read_committed=True) == [4, 6]
    assert (log.last_stable_offset, log.extent(read_committed=True), log.end) == (10, (0, 10), 13)
    assert log.verify() == (10, log.size, log.verify().faults)
    assert log.producers == [
        StoredProducerState(11, 0, 1, 1, T0 + 7000, None),
        StoredProducerState(12, 0, 0, 6, T0 + 8000, None),
        StoredProducerState(13, 0, 1, 11, T0 + 11_000, 10),
    ]


def test_the_index_of_aborted_transactions_is_compared(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "t-0", TRANSACTIONS)
    (fault,) = opened(directory).verify().faults
    assert "only the log has the abort of producer 12 at 5" in fault.reason
    path = directory / f"{4:020}.txnindex"
    path.write_bytes(struct.pack(">hqqqq", 0, 12, 2, 5, 0))
    assert opened(directory).verify().faults == ()
    path.write_bytes(struct.pack(">hqqqq", 0, 99, 2, 5, 0) + b"x")
    (fault,) = opened(directory).verify().faults
    assert "not an index of aborted transactions" in fault.reason
    assert offsets(opened(directory), read_committed=True) == [0, 1, 4, 6, 9]


def without_records(data: bytes) -> bytes:
    """A batch as compaction leaves it for the sequence number of its producer."""
    return with_crc(data[:8] + (49).to_bytes(4, "big") + data[12:57] + bytes(4))


@pytest.mark.parametrize("left", [[], [2]], ids=["nothing", "an empty batch"])
@pytest.mark.parametrize("listed", [True, False])
def test_an_abort_whose_records_are_gone_is_in_its_index_or_not(tmp_path: Path, left: list[int], listed: bool) -> None:
    emptied = b"".join(without_records(batch([n], producer=ABORTED, is_transactional=True)) for n in left)
    directory = write_log(tmp_path / "t-0", {2: emptied + marker(3, 12, commit=False) + batch([4])})
    entries = struct.pack(">hqqqq", 0, 12, 0, 3, 0) if listed else b""
    (directory / f"{2:020}.txnindex").write_bytes(entries)
    log = opened(directory)
    assert log.verify().faults == ()
    assert (offsets(log, read_committed=True), log.last_stable_offset) == ([4], 5)


def test_markers_behind_the_high_watermark_do_not_count(tmp_path: Path) -> None:
    write_log(tmp_path / "t-0", TRANSACTIONS)
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nt 0 8\n")
    log = opened(tmp_path / "t-0")
    assert (log.high_watermark, log.last_stable_offset) == (8, 6)
    assert offsets(log, read_committed=True) == [0, 1, 4]


# ---- what files beside it say -------------------------------------------------------------------------------


def test_checkpoints_and_the_id_of_the_topic(directory: Path) -> None:
    for name, offset in [("log-start", 33), ("replication", 180), ("recovery-point", 150)]:
        (directory.parent / f"{name}-offset-checkpoint").write_text(f"0\n2\nother 0 5\nmy-topic 7 {offset}\n")
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: kP5hBd3CSMqZ0VWuBJrYtw")
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    log = opened(directory)
    assert log.facts == ("kP5hBd3CSMqZ0VWuBJrYtw", (LeaderEpoch(0, 0),), 33, 180, 150, None, ())
    assert (log.start, log.extent(), log.end) == (33, (33, 180), 200)
    assert offsets(log) == list(range(33, 200))
    assert log.position_at(0) == 33
    assert "offsets 180 to 199 are behind the high watermark" in log.notes[0]
    assert log.verify().faults == ()


def test_a_high_watermark_behind_the_end_is_named(directory: Path) -> None:
    """As after a loss of power, which has taken what was not flushed."""
    checkpoint = directory.parent / "replication-offset-checkpoint"
    checkpoint.write_text("0\n1\nmy-topic 7 200\n")
    assert opened(directory).notes == ()
    checkpoint.write_text("0\n1\nmy-topic 7 300\n")
    log = opened(directory)
    assert (log.high_watermark, log.extent()) == (200, (0, 200))
    assert "the log ends at 200, and the broker noted 300 as its high watermark: records" in log.notes[0]


def test_a_start_behind_the_end_is_named(directory: Path) -> None:
    (directory.parent / "log-start-offset-checkpoint").write_text("0\n1\nmy-topic 7 300\n")
    log = opened(directory)
    assert (log.extent(), offsets(log)) == ((200, 200), [])
    assert "the log ends at 200, and 300 was noted as its start" in log.notes[0]


@pytest.mark.parametrize(
    "content", [b"1\n0\n", b"0\n2\nmy-topic 7 5\n", b"0\n1\nmy-topic 7 x\n", b"\xff\xfe", b"0\n1\n7 5\n"]
)
def test_a_damaged_checkpoint_is_ignored_and_named(directory: Path, content: bytes) -> None:
    path = directory.parent / "log-start-offset-checkpoint"
    path.write_bytes(content)
    (directory / "partition.metadata").write_bytes(content)
    log = opened(directory)
    assert (log.start, log.facts.topic_id) == (0, None)
    assert all("ignored" in note for note in log.notes) and len(log.notes) == 2
    assert offsets(log) == list(range(200))


def test_leader_epochs_that_do_not_fit_are_faults(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "t-0", {0: batch([0], epoch=3) + batch([1], epoch=2) + batch([2], epoch=4)})
    (directory / "leader-epoch-checkpoint").write_text("0\n2\n3 0\n4 1\n")
    reasons = [(f.position, f.reason) for f in opened(directory).verify().faults]
    assert reasons == [(1, "leader epoch 2 behind epoch 3"), (1, "says epoch 4, and the log says 2")]


def snapshot(entries: bytes, count: int, version: int = 1) -> bytes:
    from odradek import engine

    body = count.to_bytes(4, "big") + entries
    return struct.pack(">hI", version, engine.active.crc32c(body)) + body


def test_states_of_producers_in_a_snapshot(directory: Path) -> None:
    path = directory / f"{140:020}.snapshot"
    path.write_bytes(snapshot(struct.pack(">qhiqiqiq", 5, 1, 9, 77, 3, T0, 0, -1), 1))
    assert opened(directory).snapshot() == (140, [StoredProducerState(5, 1, 9, 77, T0, None)])
    for bad in (b"", snapshot(b"", 5), snapshot(b"", 0, 9), path.read_bytes()[:-1]):
        path.write_bytes(bad)
        assert opened(directory).snapshot() is None
        (fault,) = opened(directory).verify().faults
        assert fault.path == path


def test_records_that_were_moved_away_are_named(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "t-0", {140: FILES[140]})
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 12\n")
    log = opened(directory)
    assert (log.start, offsets(log, 100)[0]) == (140, 140)
    assert "offsets 12 to 139 are not here" in log.notes[0] and "remote storage" in log.notes[0]


def test_a_missing_file_between_others_is_named_unless_the_log_was_compacted_here(tmp_path: Path) -> None:
    parts = {n: batch([n, n + 1]) for n in (0, 2, 4, 6, 8, 10)}
    directory = write_log(tmp_path / "t-0", parts)
    for missing in (2, 4, 8):
        (directory / f"{missing:020}.log").unlink()
    log = opened(directory)
    assert (offsets(log), log.verify().faults) == ([0, 1, 6, 7, 10, 11], ())
    (note,) = log.notes
    assert "the first of 2 gaps: offsets 2 to 5 are in no file, between two others" in note
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 8\n")
    assert opened(directory).facts.cleaned == 8
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 12\n")
    assert opened(directory).notes == ()


def test_leftovers_are_named_and_not_read(directory: Path) -> None:
    for suffix in ("deleted", "cleaned"):
        (directory / f"{0:020}.log.{suffix}").write_bytes(b"x" * 100)
    log = opened(directory)
    assert offsets(log) == list(range(200))
    assert ["*.deleted" in log.notes[0], "*.cleaned" in log.notes[1]] == [True, True]


def test_a_compaction_that_had_not_ended_is_ended_as_by_a_broker(tmp_path: Path) -> None:
    parts = {n: batch([n, n + 1]) for n in (0, 2, 4, 6)}
    directory = write_log(tmp_path / "t-0", parts)
    swapped = directory / f"{2:020}.log.swap"
    swapped.write_bytes(batch([3]) + batch([5]))
    log = opened(directory)
    assert offsets(log) == [0, 1, 3, 5, 6, 7]
    assert "*.swap: segments of a compaction that had not ended" in log.notes[0] and not log.verify().faults
    (directory / f"{2:020}.log").unlink()
    assert offsets(opened(directory), 3) == [3, 5, 6, 7]
    (directory / f"{4:020}.log.cleaned").touch()
    assert offsets(opened(directory), 3) == [3, 5, 6, 7]
    (directory / f"{2:020}.log.cleaned").touch()
    assert offsets(opened(directory)) == [0, 1, 4, 5, 6, 7]
    assert offsets(opened(swapped)) == [3, 5]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (f"t-3.{'a' * 32}-delete", "was deleted"),
        (f"t-3.{'0' * 32}-future", "being moved"),
        (f"t-3.{'f' * 32}-stray", "had no more"),
        ("__cluster_metadata-0", "KRaft"),
    ],
)
def test_directories_that_are_no_replicas_are_left_out_and_named(tmp_path: Path, name: str, why: str) -> None:
    write_log(tmp_path / "t-0", FILES)
    write_log(tmp_path / name, FILES)
    assert [log.partition for log in segments.logs(tmp_path)] == [TopicPartition("t", 0)]
    (line,) = segments.left_out(tmp_path)
    assert name in line and why in line
    log = opened(tmp_path / name)
    assert log.partition.partition == (0 if name.startswith("_") else 3)
    assert why in log.notes[0] and offsets(log) == list(range(200))
    assert segments.left_out(tmp_path / name) == []


def test_what_is_left_of_a_log_is_not_cut_by_the_offsets_of_another(tmp_path: Path) -> None:
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 150\n")
    for name in ("t-0", f"t-0.{'a' * 32}-delete"):
        write_log(tmp_path / name, FILES)
        (tmp_path / name / f"{0:020}.log").rename(tmp_path / name / f"{0:020}.log.deleted")
    assert opened(tmp_path / "t-0").start == 150
    assert offsets(opened(tmp_path / "t-0" / f"{0:020}.log.deleted")) == list(range(140))
    assert offsets(opened(tmp_path / f"t-0.{'a' * 32}-delete")) == list(range(140, 200))


def test_a_directory_of_both_kinds_is_refused(directory: Path) -> None:
    (directory / f"{0:020}.kafka").touch()
    with pytest.raises(ConfigError, match=r"0\.7 .*later ones"):
        segments.open(directory)


def test_what_expects_bytes_is_refused(directory: Path) -> None:
    with pytest.raises(ConfigError, match="positions are offsets"):
        _ = opened(directory).segments[0].end


# ---- damage -------------------------------------------------------------------------------------------------


@given(cut=st.integers(1, 400))
def test_a_torn_end_is_the_end(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    directory = write_log(tmp_path_factory.mktemp("torn") / "t-0", {**FILES, 140: FILES[140][:-cut]})
    log = opened(directory)
    read = offsets(log)
    assert read == list(range(log.end)) and log.end < 200
    boundary = sum(map(len, (batch(range(n, n + 3)) for n in range(140, log.end, 3)))) == len(FILES[140]) - cut
    assert [f.reason.split(":")[0] for f in log.verify().faults] == ([] if boundary else ["torn tail"])
    assert boundary or f"the log ends at {log.end}: the last" in log.notes[-1]


def test_a_file_that_ends_early_in_the_middle_of_the_log_is_damage(tmp_path: Path) -> None:
    log = opened(write_log(tmp_path / "t-0", {**FILES, 0: FILES[0][:-3]}))
    seen: list[int] = []
    with pytest.raises(CorruptMessage, match="ends in the middle of an entry") as caught:
        for rows in log:
            seen += [r.position for r in rows]
    assert (seen, caught.value.position) == (list(range(133)), 133)
    assert [f.position for f in log.verify().faults] == [133]
    assert offsets(log, 0, 133) == list(range(133))
    assert offsets(log, 140) == list(range(140, 200))


@pytest.mark.parametrize("length", [0, 3, 1 << 20, (1 << 31) - 1])
@pytest.mark.parametrize("start", FILES)
def test_a_damaged_length_is_damage_and_not_a_torn_end(tmp_path: Path, start: int, length: int) -> None:
    data = bytearray(FILES[start])
    data[8:12] = length.to_bytes(4, "big")
    log = opened(write_log(tmp_path / "t-0", {**FILES, start: bytes(data)}))
    with pytest.raises(CorruptMessage) as caught:
        records(log)
    assert caught.value.position == start
    faults = log.verify().faults
    assert [f.position for f in faults] == [start]
    assert log.end == (start or 200)


@pytest.mark.parametrize(
    "following",
    [
        [messages(range(5, 9), magic=0, compression=CompressionType.GZIP)],
        [messages(range(5, 9), magic=1, compression=CompressionType.SNAPPY)],
        [batch([90_000])],  # compaction took what was in between
        [b"a damaged one", batch([70, 71])],
    ],
    ids=["gzip-0", "snappy-1", "hole", "damaged"],
)
def test_a_damaged_length_is_damage_whatever_offset_follows(tmp_path: Path, following: list[bytes]) -> None:
    data = bytearray(batch([4]))
    data[8:12] = (1 << 20).to_bytes(4, "big")
    log = opened(write_log(tmp_path / "t-0", {0: batch(range(4)) + data + b"".join(following)}))
    with pytest.raises(CorruptMessage, match="entries follow it") as caught:
        records(log)
    assert caught.value.position == 4
    assert [f.position for f in log.verify().faults] == [4]


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.SNAPPY, CompressionType.LZ4])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_torn_end_is_no_damage_whatever_is_in_it(tmp_path: Path, magic: int, compression: CompressionType) -> None:
    sets = {
        "zeros": bytes(100_000),
        "messages": messages(range(4, 40), magic=0) + b"x" * 40,
        "batches": b"".join(batch([offset]) for offset in range(4, 40)) + b"x" * 40,
    }
    for name, value in sets.items():
        last = encode_batch([value] * 2, base_offset=4, compression=compression)
        if magic < 2:
            last = encode_message_set([value], None, None, magic=magic, compression=compression)
            last = (4).to_bytes(8, "big") + last[8:]
        log = opened(write_log(tmp_path / f"{name}-0", {0: batch(range(4)) + last[:-1]}))
        assert [r.position for r in records(log)] == [0, 1, 2, 3]
        assert [f.reason.split(":")[0] for f in log.verify().faults] == ["torn tail"]


@pytest.mark.parametrize("offset", [b"\xff" * 8, b"\x80" + bytes(7), b"\x7f" + b"\xff" * 7])
@pytest.mark.parametrize("length", [None, 1 << 20])
def test_an_offset_that_cannot_be_is_damage(tmp_path: Path, offset: bytes, length: int | None) -> None:
    data = bytearray(FILES[140])
    data[:8] = offset
    if length is not None:
        data[8:12] = length.to_bytes(4, "big")
    log = opened(write_log(tmp_path / "t-0", {**FILES, 140: bytes(data)}))
    with pytest.raises(CorruptMessage, match="which cannot be"):
        records(log)
    assert (log.end, [f.position for f in log.verify().faults]) == (140, [140])


def test_zeros_at_the_end_are_space_and_elsewhere_damage(tmp_path: Path) -> None:
    log = opened(write_log(tmp_path / "t-0", {**FILES, 140: FILES[140] + bytes(1_000_000)}))
    assert offsets(log) == list(range(200))
    assert "the last 1000000 bytes are zeros" in log.notes[0] and log.verify().faults == ()
    for data in ({**FILES, 0: FILES[0] + bytes(500)}, {140: FILES[140] + bytes(500) + FILES[140]}):
        log = opened(write_log(tmp_path / f"t{len(data)}-0", data))
        with pytest.raises(CorruptMessage):
            records(log)
        assert len(log.verify().faults) == 1


def test_offsets_that_go_back_are_faults(tmp_path: Path) -> None:
    log = opened(write_log(tmp_path / "t-0", {10: batch([9]) + batch([12, 13]) + batch([13, 14]), 14: batch([15])}))
    assert [(f.position, f.reason) for f in log.verify().faults] == [
        (9, "an entry at offset 9, where 10 is the least"),
        (13, "an entry at offset 13, where 14 is the least"),
    ]


def test_a_file_that_becomes_shorter_meanwhile_ends_early(tmp_path: Path) -> None:
    data = b"".join(batch([n], values=[b"x" * 1000]) for n in range(2000))
    log = opened(write_log(tmp_path / "t-0", {0: data}))
    rows = log.batches()
    assert len(next(rows)) and log.end == 2000
    os.truncate(log.segments[0].path, 5000)
    with pytest.raises(CorruptMessage, match="middle of an entry"):
        list(rows)
    assert log.verify().faults[0].position == 4


MIXED = {
    0: messages(range(8), 0, CompressionType.GZIP)
    + messages(range(8, 16), 1)
    + messages(range(16, 24), 1, CompressionType.LZ4),
    24: b"".join(batch(range(n, n + 4), COMPRESSIONS[n % 5]) for n in range(24, 64, 4)),
    64: batch([64], producer=COMMITTED, is_transactional=True) + marker(65, 11, commit=False) + batch([66, 67]),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("corrupt", ["fail", "skip", "raw"])
@given(seed=st.integers(0, 1 << 32))
def test_damaged_files_give_errors_of_odradek_only(
    tmp_path_factory: pytest.TempPathFactory, engine: str, corrupt: str, seed: int
) -> None:
    rng = random.Random(seed)
    directory = write_log(tmp_path_factory.mktemp("log") / "t-0", MIXED, index_every=2)
    (directory / f"{64:020}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 11, 64, 65, 64))
    (directory / f"{64:020}.timeindex").write_bytes(time_index(64, (T0 + 67_000, 67)))
    for path in rng.sample(sorted(directory.iterdir()), 3):
        data = bytearray(path.read_bytes())
        for _ in range(rng.randrange(1, 4)):
            if data:
                data[rng.randrange(len(data))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        path.write_bytes(data[: rng.choice([len(data), rng.randrange(len(data) + 1)])])
    with using(engine):
        log = opened(directory)
        for read_committed in (False, True):
            seen = 0
            try:
                for rows in log.batches(rng.choice([None, 5, 30]), corrupt=corrupt, read_committed=read_committed):
                    seen += len(rows)
            except OdradekError:
                pass
            assert seen <= 200
        with suppress(OdradekError):
            log.position_at(T0 + 30_000)
        result = log.verify()
        assert result.messages <= 200 and len(list(log.stored_batches())) <= 80


def test_log_files_of_other_programs_are_no_segments(tmp_path: Path) -> None:
    log_dir = tmp_path / "kafka-logs"
    write_log(log_dir / "orders-0", {0: batch(range(3))})
    (log_dir / "server.log").write_text("started")
    assert [str(log.partition) for log in segments.logs(log_dir)] == ["orders/0"]
    with pytest.raises(ConfigError, match=r"no \*\.log files of a log in it; 1 logs in its subdirectories"):
        segments.open(log_dir)
    (log_dir / "orders-0" / "server.log").write_text("started")
    with pytest.raises(ConfigError, match=r"server\.log: a segment is named after its start position"):
        segments.open(log_dir / "orders-0")


@pytest.mark.parametrize("damaged", [None, 2])
def test_batches_that_grow_much_are_decompressed_some_at_a_time(tmp_path: Path, damaged: int | None) -> None:
    batches = [
        bytearray(encode_batch([bytes(40 << 20)], base_offset=n, compression=CompressionType.ZSTD)) for n in range(7)
    ]
    if damaged is not None:
        batches[damaged][23] = 0x80  # of the last offset: where the next batch begins is still known
    log = opened(write_log(tmp_path / "t-0", {0: b"".join(batches[:6]), 6: bytes(batches[6])}))
    read = [[record.position for record in rows] for rows in log.batches(corrupt="skip")]
    assert [position for some in read for position in some] == [n for n in range(7) if n != damaged]
    assert all(len(some) <= 2 for some in read)
