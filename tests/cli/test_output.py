"""Formats of the commands' output."""

from __future__ import annotations

import json
import os

import click
import pytest

from odradek.cli.json_records import json_line
from odradek.cli.output import echo_failures, formatter, table, unescape
from odradek.errors import OdradekError
from odradek.types import Position, Record, TopicPartition


def record(value: bytes = b"hello", key: bytes | None = None) -> Record:
    return Record(value, key, (), None, None, Position(15), Position(68), 1, TopicPartition("orders", 10, 2))


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (r"%s\n", b"hello\n"),
        ("%t/%p@%o-%n.%i", b"orders/2-10@15-68.1"),
        ("%S %k|%K", b"5 |-1"),
        (r"100%% \x41\t\\n", b"100% A\t\\n"),
        ("", b""),
        ("no fields", b"no fields"),
        ("%T %h|", b"-1 |"),
        ("%R", b"\0\0\0\5"),
    ],
)
def test_format(text: str, printed: bytes) -> None:
    assert formatter(text)(record()) == printed


def test_escapes_and_arguments_are_bytes() -> None:
    """kcat's `\\xHH` is a byte, and so is what a shell passes that is not UTF-8."""
    assert formatter(r"\xff%s\n")(record()) == b"\xffhello\n"
    assert formatter(os.fsdecode(b"\xff%s"))(record()) == b"\xffhello"
    assert (unescape(r"\xc3\xa9\0\\"), unescape("\u00e9")) == (b"\xc3\xa9\0\\", b"\xc3\xa9")


def test_format_of_a_key() -> None:
    assert formatter("%k:%K")(record(key=b"abc")) == b"abc:3"


def test_format_of_headers_a_timestamp_and_nulls() -> None:
    headers = (("a", b"1"), ("b", None))
    full = record()._replace(value=None, headers=headers, timestamp=1_700_000_000_000)
    assert formatter("%k|%s|%h|%T")(full) == b"||a=1,b=NULL|1700000000000"
    assert formatter("%k|%s|%S%R", show_null=True)(full) == b"NULL|NULL|-1\xff\xff\xff\xff"


@pytest.mark.parametrize("text", ["%", "%z", "abc %"])
def test_an_unknown_field_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        formatter(text)


def test_a_record_as_json() -> None:
    assert json.loads(json_line(record("h\u00e9".encode(), b"k"))) == {
        "topic": "orders",
        "partition": "2-10",
        "position": 15,
        "next_position": 68,
        "inner_index": 1,
        "key": "k",
        "value": "h\u00e9",
    }


def test_a_value_that_is_not_utf8_is_base64_in_json() -> None:
    result = json.loads(json_line(record(b"\xff\x00")))
    assert result["value_base64"] == "/wA="
    assert "value" not in result


def test_a_table_aligns_numbers_to_the_right() -> None:
    assert table(["topic", "bytes"], [["a", 5], ["long", 12345]]) == "topic  bytes\na          5\nlong   12345"
    assert table(["topic", "bytes"], []) == "topic  bytes"


def test_an_error_that_several_items_have_is_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert echo_failures({"a": OdradekError("no"), "b": OdradekError("no"), "c": OdradekError("other")}) == 1
    assert capfd.readouterr().err == "odradek: no\nodradek: other\n"
