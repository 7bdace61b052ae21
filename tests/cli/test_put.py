"""`odradek put`."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from threading import Timer

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import odradek as od
from odradek.cli.app import run
from odradek.cli.put import _LineSplitter, _split_files
from odradek.testing import MemoryCluster

from .conftest import Command, Put, jsons


def test_cat_prints_what_put_wrote(odradek: Command, put_through_pipe: Put, topic: str) -> None:
    done = put_through_pipe(
        topic, b"one\ntwo\n\nlast, without a newline", "-p", "7-0"
    )  # the last may come later than the others
    assert (done.stdout, done.stderr) == (b"", b"4 messages written\n")
    assert odradek("cat", topic) == "one\ntwo\n\nlast, without a newline\n"


def test_put_takes_files_and_prints_the_count_as_json(odradek: Command, put: Put, topic: str, tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_text(json.dumps({"value": f"from {file.name}", "key": "k", "partition": "7-0"}) + "\n")
    done = put(topic, b"", *map(os.fspath, files), "--json", "-z", "snappy").stdout
    assert json.loads(done) == {"topic": topic, "written": 2}
    assert sorted(odradek("cat", "-t", topic).splitlines()) == ["from a", "from b"]


def test_a_null_value_needs_0_8(cluster: str, topic: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "messages"
    file.write_text("key:\n")
    assert run(["put", topic, str(file), "-K", ":", "-Z"]) == 1
    assert capfd.readouterr().err.strip().endswith("a null value is not supported here: it needs Kafka 0.8")


def test_what_cat_prints_as_json_becomes_the_same_messages_again(odradek: Command, put: Put, topic: str) -> None:
    put(topic, b"one\n\xff\n", "-p", "7-1")
    printed = odradek("cat", topic, "--json")
    put(f"{topic}-2", printed.encode(), "--json")
    again = jsons(odradek("cat", f"{topic}-2", "--json"))
    assert [row | {"topic": topic} for row in again] == jsons(printed)
    assert [row["partition"] for row in again] == ["7-1", "7-1"]


def test_a_partition_without_a_broker_is_that_of_the_only_one(odradek: Command, put: Put, topic: str) -> None:
    put(topic, b"one\n", "-p", "1")
    assert odradek("cat", topic, "-p", "7-1") == "one\n"


def test_messages_may_take_longer_than_leaving_a_block_may(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kafka, producer, file = MemoryCluster({"t": 1}), od.Cluster.producer, tmp_path / "messages"
    kafka.delay("produce", 0.3)
    monkeypatch.setattr(od, "connect", lambda url: kafka.connect())
    monkeypatch.setattr(od.Cluster, "producer", lambda k, **options: producer(k, **options, exit_within=0.05))
    file.write_text("one\ntwo\n")
    assert run(["put", "t", str(file), "--cluster", "kafka://memory"]) == 0
    assert capfd.readouterr().err == "2 messages written\n"


def test_put_stops_at_the_count(odradek: Command, put: Put, topic: str) -> None:
    put(topic, b"1\n2\n3\n", "-c", "2")
    assert odradek("cat", topic) == "1\n2\n"


def test_other_delimiters_and_keys(odradek: Command, put: Put, topic: str) -> None:
    put(topic, b"k:one\ntwo\0k:three\0", "-D", r"\0", "-K", ":")
    assert odradek("cat", topic, "-D", "|") == "one\ntwo|three|"


def test_messages_may_be_longer_than_one_read(odradek: Command, put_through_pipe: Put, topic: str) -> None:
    rows = [b"x" * 300_000, b"y" * 700_000]
    put_through_pipe(topic, b"\n".join(rows), "-p", "7-0")
    assert [len(row) for row in odradek("cat", topic).split()] == [300_000, 700_000]


@given(st.binary(max_size=200), st.sampled_from([b"\n", b"aa", b"aba"]), st.lists(st.integers(0, 200), max_size=20))
def test_lines_are_the_same_however_they_arrive(data: bytes, delimiter: bytes, cuts: list[int]) -> None:
    data = bytes(b"ab\n"[byte % 3] for byte in data)
    lines, ends = _LineSplitter(delimiter), [0, *sorted(cuts), len(data)]
    rows = [row for begin, end in pairwise(ends) for row in lines.feed(data[begin:end])]
    assert [*rows, bytes(lines.rest)] == data.split(delimiter)


@pytest.mark.anyio
async def test_waiting_for_the_writer_of_a_named_pipe_can_be_cancelled(tmp_path: Path) -> None:
    pipe, written = tmp_path / "pipe", list[int]()
    os.mkfifo(pipe)
    writer = Timer(10, lambda: written.append(pipe.write_bytes(b"")))  # ends a wait that cannot be cancelled
    writer.start()
    with anyio.move_on_after(0.05) as scope:
        async for _ in _split_files([os.fspath(pipe)], b"\n"):
            pass
    writer.cancel()
    assert scope.cancelled_caught and not written


@pytest.mark.anyio
async def test_a_named_pipe_is_read_until_its_writer_closes_it(tmp_path: Path) -> None:
    pipe, rows = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)

    async def read() -> None:
        async for chunk, _ in _split_files([os.fspath(pipe)], b"\n"):
            rows.extend(chunk)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        with pipe.open("wb", buffering=0) as writer:
            for text in (b"one\ntw", b"o\nlast"):
                writer.write(text)
                await anyio.wait_all_tasks_blocked()
    assert rows == [b"one", b"two", b"last"]


def test_a_long_line_is_copied_once_and_not_with_each_read() -> None:
    lines = _LineSplitter(b"\n")
    assert lines.feed(b"x") == []
    rest = lines.rest
    assert lines.feed(b"y" * 1000) == [] and lines.rest is rest
    assert lines.feed(b"z\nw") == [b"x" + b"y" * 1000 + b"z"] and lines.rest == b"w"


def test_a_message_that_is_too_large_is_exit_code_1(odradek: Command, topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1_000_001)
    odradek("put", topic, os.fspath(tmp_path / "a"), code=1)
