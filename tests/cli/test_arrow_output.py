"""`-O arrow` and `-O parquet`: columns on standard output."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odradek import arrow
from odradek.cli.app import run
from odradek.testing import Kafka07Broker
from odradek.wire.kafka07.message_set import encode_set

PYTHON = [sys.executable, "-W", "error", "-m", "odradek.cli"]
ROWS = [b"message %05d" % n for n in range(50_000)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A broker's directory with two logs."""
    for name, rows in [("orders-3", ROWS), ("orders-12", [b"other"])]:
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{0:020}.kafka").write_bytes(encode_set(rows))
    return tmp_path


def output(*arguments: str) -> bytes:
    done = subprocess.run([*PYTHON, *arguments], capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout


def test_segment_files_as_parquet(directory: Path) -> None:
    table = pq.read_table(io.BytesIO(output("log", "-O", "parquet", os.fspath(directory))))
    assert table["value"].to_pylist() == [*ROWS, b"other"]
    assert table["partition"].to_pylist() == [3] * 50_000 + [12]
    assert table.schema.names == arrow.schema().names


def test_segment_files_as_an_arrow_stream(directory: Path) -> None:
    data = output("log", "-O", "arrow", os.fspath(directory / "orders-3"), os.fspath(directory / "orders-12"))
    table = pa.ipc.open_stream(data).read_all()
    assert table.schema == arrow.schema()
    assert table["value"].to_pylist() == [*ROWS, b"other"]


@pytest.mark.parametrize("count", [0, 1, 50_000, 60_000])
def test_count_limits_the_rows(directory: Path, count: int) -> None:
    for kind in ("arrow", "parquet"):
        data = output("log", "-O", kind, "-c", str(count), os.fspath(directory))
        read = pq.read_table(io.BytesIO(data)) if kind == "parquet" else pa.ipc.open_stream(data).read_all()
        assert read["value"].to_pylist() == [*ROWS, b"other"][:count]


def test_a_closed_pipe_is_no_error(directory: Path) -> None:
    for kind in ("arrow", "parquet"):
        command = [*PYTHON, "log", "-O", kind, os.fspath(directory)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.read(4)
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["log", "-O", "parquet", "--verify", "x"],
        ["log", "-O", "parquet", "--json", "x"],
        ["log", "-O", "csv", "x"],
        ["cat", "-O", "arrow", "-G", "g", "t", "-b", "h:1"],
        ["cat", "-O", "arrow", "-o", "-5", "t", "-b", "h:1"],
        ["cat", "-O", "arrow", "-f", "%s", "t", "-b", "h:1"],
    ],
)
def test_excluding_options_are_wrong_usage(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "utput" in capfd.readouterr().err


def test_columns_are_not_written_to_a_terminal(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(["log", "-O", "arrow", os.fspath(directory)]) == 2


def test_a_missing_pyarrow_is_named_with_its_extra(directory: Path) -> None:
    code = "import sys; sys.modules['pyarrow'] = None; from odradek.cli import main; main(sys.argv[1:])"
    arguments = ["log", "-O", "parquet", os.fspath(directory)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "odradek[arrow]" in done.stderr and "Traceback" not in done.stderr


# ---- a cluster ----------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(odradek_chroot: str) -> str:
    return f"kafka07+zk://{odradek_chroot}"


def put(cluster: str, *rows: bytes) -> None:
    command = [*PYTHON, "put", "t", "--cluster", cluster, "-q"]
    subprocess.run(command, input=b"".join(row + b"\n" for row in rows), check=True)


@pytest.mark.usefixtures("quick_broker")
def test_a_topic_as_columns(cluster: str) -> None:
    put(cluster, b"one", b"two", b"three")
    data = output("cat", "t", "-O", "parquet", "--cluster", cluster)
    assert pq.read_table(io.BytesIO(data))["value"].to_pylist() == [b"one", b"two", b"three"]
    data = output("cat", "t", "-O", "arrow", "-p", "1-0", "-o", "13", "-c", "1", "--cluster", cluster)
    assert pa.ipc.open_stream(data).read_all()["value"].to_pylist() == [b"two"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("quick_broker")
def test_a_parquet_file_is_complete_when_following_is_interrupted(cluster: str, number: int, tmp_path: Path) -> None:
    put(cluster, b"one", b"two")
    file = tmp_path / "t.parquet"
    with file.open("wb") as sink:
        process = subprocess.Popen([*PYTHON, "cat", "t", "-F", "-O", "parquet", "--cluster", cluster], stdout=sink)
    try:
        while file.stat().st_size < 100 and process.poll() is None:  # more than its magic bytes: a row group is written
            os.sched_yield()
        process.send_signal(number)
        assert process.wait(100) == 128 + number
    finally:
        process.kill()
    assert pq.read_table(file)["value"].to_pylist() == [b"one", b"two"]


@pytest.fixture
def quick_broker(odradek_kafka07_broker: type[Kafka07Broker]) -> Kafka07Broker:
    """A broker that makes messages visible at once, on a registered partition."""
    return odradek_kafka07_broker(config={"log.flush.interval": "1"})
