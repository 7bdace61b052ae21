"""`odradek cat`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from odradek.cli.app import run

from .conftest import Command, Put, jsons


def test_cat_as_json_from_a_position_of_a_partition(odradek: Command, put: Put, topic: str) -> None:
    put(topic, b"one\ntwo\nthree\n", "-z", "none")
    (name,) = {row["partition"] for row in jsons(odradek("cat", topic, "--json"))}
    assert name == "7-0"
    (row,) = jsons(odradek("cat", topic, "--json", "-p", name, "-o", "13", "-c", "1"))
    assert row == {
        "topic": topic,
        "partition": name,
        "position": 13,
        "next_position": 26,
        "inner_index": 0,
        "value": "two",
    }
    assert odradek("cat", topic, "-p", "0", "-o", "end") == ""
    odradek("cat", topic, "-p", "9-9", code=1)


@pytest.mark.parametrize(
    ("count", "printed"), [(0, ""), (1, "30"), (3, "28 29 30"), (99, " ".join(map(str, range(31))))]
)
def test_the_last_messages_come_from_as_many_segments_as_needed(
    odradek: Command, put: Put, topic: str, count: int, printed: str
) -> None:
    for start in range(0, 31, 8):
        put(topic, "\n".join(map(str, range(start, min(start + 8, 31)))).encode(), "-p", "7-0")
    assert odradek("cat", topic, "-o", f"-{count}").split() == printed.split()


@pytest.mark.parametrize("option", [("--key", "k"), ("--header", "h=1")])
def test_what_records_of_0_7_do_not_have_cannot_be_chosen(
    option: tuple[str, str], put: Put, cluster: str, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    put(topic, b"one\n")
    for more in ([], ["-o", "-1"], ["-G", "g"]):
        assert run(["cat", topic, *option, *more]) == 1
        printed = capfd.readouterr()
        assert printed.out == "" and f"{option[0]} is not supported here: it needs Kafka 0." in printed.err


def test_following_prints_new_messages(cluster: str, put: Put, topic: str) -> None:
    put(topic, b"early\n")
    command = [sys.executable, "-m", "odradek.cli", "cat", topic, "-F", "-c", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"early\n"
        put(topic, b"late\n")
        assert process.stdout.read() == b"late\n"
    assert process.returncode == 0


def test_following_may_start_with_the_last_messages(cluster: str, put: Put, topic: str) -> None:
    put(topic, b"1\n2\n3\n")
    command = [sys.executable, "-m", "odradek.cli", "cat", topic, "-F", "-o", "-2", "-c", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"2\n"
        assert process.stdout.readline() == b"3\n"
        put(topic, b"4\n", "-p", "7-0")
        assert process.stdout.read() == b"4\n"
    assert process.returncode == 0


def test_a_position_beyond_the_end_is_an_error_and_until_is_a_position(
    odradek: Command, put: Put, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    put(topic, b"one\ntwo\nthree\n", "-p", "7-0")
    assert odradek("cat", topic, "-p", "7-0", "--until", "26") == "one\ntwo\n"
    assert odradek("cat", f"^{topic}$", "--until", "99", "--grep", "o$") == "two\n"
    assert run(["cat", topic, "-o", "42"]) == 1
    assert f"{topic}/7-0: 42 is beyond the end, 41" in capfd.readouterr().err
