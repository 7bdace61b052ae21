"""`odradek put` at a real broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ..conftest import Command
from .conftest import Put, Run

CONTENTS = [None, b"", b"text", "\u00e9\u20ac".encode(), b"\xff\0", b"line\nbreak", b"\\x"]


def lines_of_every_kind() -> bytes:
    """Return JSON of records with every kind of key, value and header."""
    rows: list[dict[str, Any]] = []
    for number, value in enumerate(CONTENTS):
        for ending in ("hex", "base64"):
            row: dict[str, Any] = {"partition": number % 2, "timestamp": 1_700_000_000_000 + number}
            row |= {"value": None} if value is None else {"value_hex": value.hex()}
            key = CONTENTS[(number + 3) % len(CONTENTS)]
            row |= {} if key is None else {"key_hex": key.hex()}
            headers = [{"name": f"h{ending}", "value": None}, {"name": "", "value_hex": (value or b"").hex()}]
            rows.append(row | {"headers": headers if number % 3 else []})
    return "\n".join(map(json.dumps, rows)).encode()


@pytest.mark.parametrize("encoding", ["text", "base64", "hex"])
def test_what_cat_prints_as_json_becomes_the_same_messages_again(
    odradek: Command, put: Put, created: str, encoding: str
) -> None:
    copy = f"{created}-copy"
    odradek("topic", "create", copy, "--partitions", "2", "--replicas", "1", "-c", "retention.ms=-1")
    output, errors = put(created, lines_of_every_kind() + b"\n\n", "--json")
    assert (json.loads(output), errors) == ({"topic": created, "written": 2 * len(CONTENTS)}, "")
    first = odradek("cat", created, "--json", "--encoding", encoding)
    put(copy, first.encode(), "--json", "--acks", "1")
    second = odradek("cat", copy, "--json", "--encoding", encoding)
    assert sorted(second.replace(copy, created).splitlines()) == sorted(first.splitlines())
    assert len(first.splitlines()) == 2 * len(CONTENTS)


def test_a_partition_on_the_command_line_is_taken_instead_of_that_of_the_lines(
    odradek: Command, put: Put, created: str
) -> None:
    put(created, b'{"partition": 0, "value": "a"}\n{"partition": "1", "value": "b"}\n', "--json")
    put(created, b'{"partition": 0, "value": "c"}\n{"value": "d"}\n', "--json", "-p", "1", "--acks", "0")
    assert sorted(odradek("cat", created, "-f", "%p%s ").split()) == ["0a", "1b", "1c", "1d"]


def test_a_line_that_is_wrong_is_named_and_nothing_behind_it_is_written(
    odradek: Command, put: Put, created: str
) -> None:
    _, errors = put(created, b'{"value": "a"}\n\n{"value": 5}\n{"value": "b"}\n', "--json", code=2)
    assert "line 3: value: must be a text or null, not 5" in errors
    assert odradek("cat", created) == "a\n"
    _, errors = put(created, b'{"value": "a", "partition": 7}\n', "--json", code=1)
    assert "no partition 7; choose from 0, 1" in errors


def test_a_topic_is_made_by_writing_to_its_first_partition(odradek: Command, put: Put, topic: str) -> None:
    put(topic, b"a\nb\n", "-p", "0")
    assert odradek("cat", topic, "-f", "%p%s ") == "0a 0b "
    _, errors = put(topic, b"c\n", "-p", "5", code=1)
    assert "no partition 5" in errors


@pytest.mark.parametrize(
    "arguments", [["--json", "-K", ":"], ["--json", "-k", "x"], ["--json", "-H", "a=b"], ["--json", "-Z"],
                  ["--json", "-D", ";"], ["--acks", "2"]]
)  # fmt: skip
def test_wrong_usage_is_exit_code_2(call: Run, arguments: list[str]) -> None:
    assert call("put", "t", *arguments)[0] == 2
