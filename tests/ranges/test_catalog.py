"""Log directories without a broker: torn tails, holes, and what belongs to whom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.spark.made import batch_reader, batch_rows, hard_log, read_all, rows_of, write_log

from odradek.core.interfaces import BYTES, Extent
from odradek.errors import ConfigError, CorruptMessage, MessageTooLarge
from odradek.ranges.directories import DirectoryCatalog
from odradek.spark.options import parse_source
from odradek.types import TopicPartition
from odradek.wire.kafka07.message_set import encode_set

MOST = 2000
ORDERS = TopicPartition("orders", 0)


def extents(log_dir: Path, **more: str) -> dict[TopicPartition, Extent]:
    options = parse_source({"path": str(log_dir), "maxMessageBytes": str(MOST), **more}, streaming=False)
    return DirectoryCatalog(options.where, options).extents()  # type: ignore[arg-type]


def last_file(log_dir: Path) -> Path:
    return sorted((log_dir / "orders-0").glob("*.kafka"))[-1]


@pytest.mark.parametrize("messages", [3, 300])
def test_a_torn_tail_is_left_alone_wherever_it_is_torn(tmp_path: Path, messages: int) -> None:
    whole = hard_log(1, messages, MOST - 10)
    torn = encode_set([bytes(200)])
    write_log(tmp_path, "orders", 0, hard_log(2, 20, MOST - 10), whole + torn)
    file, size = last_file(tmp_path), len(whole)
    good = [row for row in rows_of(tmp_path) if row.offset < int(file.stem) + size]
    for kept in (len(torn) - 1, 100, 10, 5, 4, 1, 0):
        os.truncate(file, size + kept)
        assert extents(tmp_path)[ORDERS].latest == int(file.stem) + size
        assert batch_rows(path=tmp_path, maxMessageBytes=MOST) == good


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), tasks=st.integers(1, 9), torn=st.integers(0, 40))
def test_hard_logs_are_cut_exactly_torn_or_not(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, seed: int, tasks: int, torn: int
) -> None:
    monkeypatch.setattr(DirectoryCatalog, "unit", BYTES._replace(min_split=700))
    log_dir = tmp_path_factory.mktemp("logs")
    first, second = hard_log(seed, 60, MOST - 10), hard_log(seed + 1, 60, MOST - 10)
    write_log(log_dir, "orders", 0, first, second)
    whole = rows_of(log_dir)
    write_log(log_dir, "orders", 0, first, second + encode_set([bytes(50)])[:torn])
    reader = batch_reader(path=log_dir, maxMessageBytes=MOST, minPartitions=tasks, maxPartitions=tasks)
    planned = reader.partitions()
    assert len(planned) == tasks
    assert read_all(reader, planned) == whole


def test_a_damaged_length_is_not_taken_for_a_torn_tail(tmp_path: Path) -> None:
    data = bytearray(encode_set([b"%05d" % n for n in range(1000)]))
    write_log(tmp_path, "orders", 0, bytes(data))
    for wrong, error in ((b"\xff\0\0\0", CorruptMessage), (b"\x7f\0\0\0", MessageTooLarge)):
        data[15 * 990 : 15 * 990 + 4] = wrong
        last_file(tmp_path).write_bytes(data)
        assert extents(tmp_path)[ORDERS].latest == len(data)
        with pytest.raises(error, match=r"orders/0 at 14850"):
            batch_rows(path=tmp_path, maxMessageBytes=MOST)


def test_a_segment_that_does_not_end_where_the_next_begins_is_a_hole(tmp_path: Path) -> None:
    sets = [encode_set([b"%d-%d" % (number, n) for n in range(50)]) for number in range(4)]
    starts = write_log(tmp_path, "orders", 0, *sets)
    whole = rows_of(tmp_path)
    os.truncate(tmp_path / "orders-0" / f"{starts[1]:020}.kafka", len(sets[1]) - 4)
    with pytest.raises(ConfigError, match=rf"ends at {starts[2] - 4}, but the next segment starts at {starts[2]}"):
        batch_rows(path=tmp_path)
    assert batch_rows(path=tmp_path, failOnDataLoss="false") == [row for row in whole if row.offset >= starts[2]]


def test_logs_of_several_brokers_are_told_apart(tmp_path: Path) -> None:
    for broker in (1, 2):
        write_log(tmp_path / str(broker), "orders", 0, encode_set([b"of %d" % broker] * 3))
    rows = batch_rows(path=f"1@{tmp_path / '1'},2@{tmp_path / '2'}")
    assert rows == rows_of(tmp_path / "1", 1) + rows_of(tmp_path / "2", 2)
    with pytest.raises(ConfigError, match=r"orders/0 is both .*: name their brokers"):
        batch_rows(path=f"{tmp_path}/*")
    assert batch_rows(path=f"1@{tmp_path / '1'},1@{tmp_path / '1'}/orders-0") == rows_of(tmp_path / "1", 1)


def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"option path: '.*nowhere': no such file or directory"):
        batch_rows(path=tmp_path / "nowhere")


def test_a_file_that_is_being_written_is_read_to_its_last_whole_message(tmp_path: Path) -> None:
    write_log(tmp_path, "orders", 0, encode_set([b"first"] * 3))
    reader = batch_reader(path=tmp_path)
    planned = reader.partitions()
    with last_file(tmp_path).open("ab") as file:
        file.write(encode_set([b"second"])[:-1])
    assert [row.value for row in read_all(reader, planned)] == [b"first"] * 3
    assert [row.value for row in batch_rows(path=tmp_path)] == [b"first"] * 3
