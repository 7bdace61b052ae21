"""One partition's log in the embedded broker, with a clock that stands still; the rest is in the recorded corpus."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import pytest

from odradek.testing.kafka07 import StartRefused
from odradek.testing.kafka07.errors import OffsetNotInLog
from odradek.testing.kafka07.log import LogLimits, PartitionLog
from odradek.testing.kafka07.validate import check_set
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.compression import compress
from odradek.wire.kafka07.message_set import encode_set

NEVER = LogLimits(segment_size=1 << 30, flush_interval=1 << 30, roll_seconds=1e9)
OPEN_FILES = Path("/proc/self/fd")


class Clock:
    """Seconds since the epoch, as told."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Store:
    """Logs that are closed at the end of the test."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.clock = directory, Clock()
        self.opened: list[PartitionLog] = []

    def open(self, limits: LogLimits = NEVER, *, recover: bool = False) -> PartitionLog:
        log = PartitionLog(self.directory, limits, self.clock, needs_recovery=recover)
        self.opened.append(log)
        return log

    def files(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in sorted(self.directory.iterdir())}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "t-0")
    yield store
    for log in store.opened:
        log.close()


def append(log: PartitionLog, data: bytes) -> None:
    log.append(data, check_set(data, 1 << 30))


def name(start: int) -> str:
    return f"{start:020}.kafka"


ENTRY = encode_set([bytes(90)])  # 100 bytes


def test_a_segment_that_got_its_first_entry_too_long_ago_is_rolled_at_the_next_append(store: Store) -> None:
    log = store.open(LogLimits(1 << 30, 1, roll_seconds=60))
    store.clock.now += 100  # an empty segment does not age
    append(log, ENTRY)
    store.clock.now += 60
    append(log, ENTRY)
    store.clock.now += 0.001
    append(log, ENTRY)
    assert store.files() == {name(0): 200, name(200): 100}


def test_age_is_not_known_after_a_restart(store: Store) -> None:
    limits = LogLimits(1 << 30, 1, roll_seconds=60)
    append(store.open(limits), ENTRY)
    store.clock.now += 100
    append(store.open(limits), ENTRY)
    assert store.files() == {name(0): 200}


def test_unflushed_bytes_are_written_and_not_readable(store: Store) -> None:
    log = store.open(LogLimits(1 << 30, flush_interval=3, roll_seconds=1e9))
    append(log, ENTRY)
    assert store.files() == {name(0): 100}
    assert (log.high_water, log.read(0, 1000)) == (0, None)
    with pytest.raises(OffsetNotInLog):
        log.read(100, 1000)
    append(log, encode_set([b"a", b"b"], CompressionType.GZIP))
    assert log.high_water == store.files()[name(0)]


def test_a_roll_over_uncounted_bytes_deletes_them_and_starts_again_at_the_same_offset(store: Store) -> None:
    """App. H 2: wrappers without messages are never flushed, so the roll finds the old high-water mark as its name."""
    log = store.open(LogLimits(segment_size=20, flush_interval=1, roll_seconds=1e9))
    payload = compress(CompressionType.GZIP, b"")
    empty = struct.pack(">iBBI", 6 + len(payload), 1, 1, crc32(payload)) + payload
    append(log, empty)
    assert (store.files(), log.high_water) == ({name(0): len(empty)}, 0)
    append(log, empty + ENTRY)
    assert store.files() == {name(0): len(empty) + 100}
    assert log.offsets_before(-1, 10) == [len(empty) + 100, 0, 0]
    log.expire(store.clock.now + 1e9, 3600)
    assert store.files() == {name(len(empty) + 100): 0}


def test_a_flush_with_nothing_counted_does_not_count_as_one(store: Store) -> None:
    log = store.open()
    store.clock.now += 5
    log.flush()
    assert log.last_flush == store.clock.now - 5
    append(log, ENTRY)
    log.flush()
    assert log.last_flush == store.clock.now


def test_retention_closes_the_files_it_deletes(store: Store) -> None:
    log = store.open(LogLimits(segment_size=50, flush_interval=1, roll_seconds=1e9))
    for _ in range(5):
        append(log, ENTRY)
    doomed = log.segments[:3]
    for segment in doomed:
        os.utime(segment.path, (0, 0))
    os.utime(log.segments[3].path, (store.clock.now, store.clock.now))
    log.expire(store.clock.now, 3600)
    assert list(store.files()) == [name(300), name(400)]
    assert [segment.fd for segment in doomed] == [-1, -1, -1]


def test_retention_of_everything_goes_on_at_the_next_offset_and_then_renews_the_empty_segment(store: Store) -> None:
    log = store.open(LogLimits(1 << 30, 1, 1e9))
    append(log, ENTRY)
    log.expire(store.clock.now + 1e9, 3600)
    assert store.files() == {name(100): 0}

    os.utime(log.active.path, (0, 0))
    log.expire(store.clock.now, 3600)
    assert store.files() == {name(100): 0}
    assert log.active.path.stat().st_mtime == store.clock.now


def test_shrinking_keeps_at_least_the_size_asked_for(store: Store) -> None:
    log = store.open(LogLimits(segment_size=50, flush_interval=1, roll_seconds=1e9))
    for _ in range(5):
        append(log, ENTRY)
    log.shrink(store.clock.now, -1)
    assert log.size == 500
    log.shrink(store.clock.now, 250)
    assert (log.size, log.segments[0].start) == (300, 200)


@pytest.mark.parametrize("recover", [True, False])
def test_only_recovery_cuts_a_damaged_tail(store: Store, recover: bool) -> None:
    append(store.open(), ENTRY + ENTRY)
    damaged = bytearray((store.directory / name(0)).read_bytes() + b"\0\0")
    damaged[150] ^= 1
    (store.directory / name(0)).write_bytes(damaged)
    assert store.open(recover=recover).high_water == (100 if recover else 202)


@pytest.mark.parametrize(("file", "complaint"), [("x.kafka", "x.kafka"), (name(50), "starts at 50")])
def test_a_refused_log_leaves_no_file_open(
    store: Store, file: str, complaint: str, open_files: Callable[[], int]
) -> None:
    log = store.open()
    append(log, ENTRY)
    log.close()
    (store.directory / file).touch()
    before = open_files()
    with pytest.raises(StartRefused, match=complaint):
        store.open()
    assert open_files() == before


@pytest.fixture
def open_files() -> Callable[[], int]:
    """Files below a log directory that this process has open."""

    def count() -> int:
        count = 0
        for link in OPEN_FILES.iterdir():
            with suppress(OSError):
                count += link.readlink().suffix == ".kafka"
        return count

    return count
