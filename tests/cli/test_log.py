"""`odradek log`."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from odradek import engine
from odradek.cli.app import run
from odradek.wire.kafka07.message_set import encode_set

from ..kafka_logs import T0, batch, marker, write_log
from .conftest import jsons

PYTHON = [sys.executable, "-m", "odradek.cli"]


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A log directory with 50,000 messages: more than a pipe holds."""
    directory = tmp_path / "orders-3"
    directory.mkdir()
    (directory / "00000000000000000000.kafka").write_bytes(encode_set([b"message %05d" % n for n in range(50_000)]))
    return directory


def test_a_closed_pipe_is_no_error(segment: Path) -> None:
    with subprocess.Popen(
        [*PYTHON, "log", os.fspath(segment)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"message 00000\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_log_dumps_and_counts(segment: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "-c", "2", "-f", r"%t/%p %o %s\n", os.fspath(segment)]) == 0
    assert capfd.readouterr().out == "orders/3 0 message 00000\norders/3 23 message 00001\n"


def test_log_as_json(segment: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "--json", "-c", "1", os.fspath(segment)]) == 0
    assert json.loads(capfd.readouterr().out)["value"] == "message 00000"


def test_log_verifies(segment: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "--verify", os.fspath(segment)]) == 0
    assert capfd.readouterr().out == f"{segment}: ok, 50000 messages, 1150000 bytes\n"
    file = segment / "00000000000000000000.kafka"
    file.write_bytes(file.read_bytes()[:-1])
    assert run(["log", "--verify", "--json", os.fspath(segment)]) == 1
    result = json.loads(capfd.readouterr().out)
    assert (result["ok"], result["messages"], result["faults"][0]["position"]) == (False, 49_999, 1149977)


def test_progress_is_not_written_to_a_pipe(segment: Path) -> None:
    done = subprocess.run([*PYTHON, "log", "--verify", os.fspath(segment)], capture_output=True, check=True)
    assert done.stderr == b""


# ---- Kafka 0.8 and later ------------------------------------------------------------------------------------


@pytest.fixture
def broker_directory(tmp_path: Path) -> Path:
    """A broker's directory: a log with transactions, one that ends early, and one of a deleted topic."""
    directory = tmp_path / "logs"
    aborted = batch([2, 3], producer=(9, 0, 0), is_transactional=True) + marker(4, 9, commit=False)
    log = write_log(directory / "orders-3", {0: batch([0, 1]) + aborted + batch([5])})
    (log / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (log / "partition.metadata").write_text("version: 0\ntopic_id: kP5hBd3CSMqZ0VWuBJrYtw")
    (log / f"{0:020}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 9, 2, 4, 0))
    (directory / "replication-offset-checkpoint").write_text("0\n1\norders 3 5\n")
    write_log(directory / "torn-0", {0: batch([0, 1]) + batch([2])[:-1]})
    write_log(directory / f"gone-0.{'0' * 32}-delete", {0: batch([0])})
    return directory


def test_records_of_later_releases(broker_directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = os.fspath(broker_directory / "orders-3")
    assert run(["log", "-f", r"%t/%p %o %k %s %T %h\n", log]) == 0
    output, notes = capfd.readouterr()
    assert output.splitlines()[:2] == [f"orders/3 0 k0 0 {T0} h=0", f"orders/3 1  1 {T0 + 1000} "]
    assert "offsets 5 to 5 are behind the high watermark" in notes
    assert run(["log", "--quiet", "--read-committed", "-f", r"%o\n", log]) == 0
    assert capfd.readouterr() == ("0\n1\n", "")


def test_logs_are_listed(broker_directory: Path, segment: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "--ls", "--json", os.fspath(broker_directory / "torn-0"), os.fspath(broker_directory)]) == 0
    output, notes = capfd.readouterr()
    _, orders, torn = jsons(output)
    assert {name: orders[name] for name in ("topic", "partition", "unit", "start", "end", "high_watermark")} == {
        "topic": "orders", "partition": 3, "unit": "offsets", "start": 0, "end": 6, "high_watermark": 5
    }  # fmt: skip
    assert (orders["topic_id"], orders["leader_epochs"]) == ("kP5hBd3CSMqZ0VWuBJrYtw", ["0 from 0"])
    assert (torn["end"], torn["segments"], torn["leader_epochs"]) == (2, 1, None)
    assert "-delete: left out: the topic or replica was deleted" in notes and "the log ends at 2" in notes
    assert run(["log", "--ls", "-q", os.fspath(segment)]) == 0
    head, row = capfd.readouterr().out.splitlines()
    assert head.split()[:5] == ["topic", "partition", "unit", "start", "end"]
    assert row.split()[:5] == ["orders", "3", "bytes", "0", "1150000"]


def test_batches_are_dumped(broker_directory: Path, capfd: pytest.CaptureFixture[str], segment: Path) -> None:
    log = broker_directory / "orders-3"
    assert run(["log", "--dump", "--json", "-q", os.fspath(log)]) == 0
    lines = jsons(capfd.readouterr().out)
    assert [line.get("position") for line in lines] == [0, 2, 4, 5, None]
    assert [line.get("marker") for line in lines] == [None, None, "abort", None, None]
    assert {name: lines[1][name] for name in ("magic", "compression", "producer_id", "last_sequence", "damage")} == {
        "magic": 2, "compression": "none", "producer_id": 9, "last_sequence": 1, "damage": ""
    }  # fmt: skip
    assert (lines[4]["producer_id"], lines[4]["last_offset"], lines[4]["from"]) == (9, 3, "batches")
    file = log / f"{0:020}.log"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    (log / f"{6:020}.snapshot").write_bytes(snapshot_of_one())
    assert run(["log", "--dump", "-q", os.fspath(log)]) == 0
    text = capfd.readouterr().out.splitlines()
    assert text[1].startswith(f"2-3: {file.name} at ") and "transactional: ok" in text[1]
    assert "marker abort: ok" in text[2] and text[3].endswith("leader epoch 0: CRC mismatch")
    assert text[4].startswith("producer 9 epoch 0: last sequence 1 at 3") and text[5].endswith("(from snapshot at 6)")
    assert run(["log", "--dump", os.fspath(segment)]) == 2


def snapshot_of_one() -> bytes:
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 9, 0, 1, 3, 1, T0, 0, -1)
    return struct.pack(">hI", 1, engine.active.crc32c(body)) + body


def test_logs_of_later_releases_are_verified(broker_directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = broker_directory / "orders-3"
    size = (log / f"{0:020}.log").stat().st_size
    assert run(["log", "--verify", os.fspath(log)]) == 0
    assert capfd.readouterr().out == f"{log}: ok, 5 messages, {size} bytes, leader epochs 0 from 0\n"
    assert run(["log", "--verify", "--json", os.fspath(broker_directory)]) == 1
    orders, torn = jsons(capfd.readouterr().out)
    assert (orders["ok"], orders["messages"], orders["leader_epochs"]) == (True, 5, ["0 from 0"])
    assert (torn["ok"], torn["messages"], torn["faults"][0]["position"]) == (False, 2, 2)


@pytest.mark.parametrize(
    "options", [["--ls", "--dump"], ["--verify", "--ls"], ["--ls", "-O", "parquet"], ["--dump", "--read-committed"]]
)
def test_options_that_exclude_each_other(segment: Path, options: list[str]) -> None:
    assert run(["log", *options, os.fspath(segment)]) == 2
