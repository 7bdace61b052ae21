"""Records as lines of JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.cli.json_records import ENCODERS, json_line, parse_line
from odradek.core.interfaces import ProducerRecord
from odradek.types import Position, Record, TopicPartition

NAMES = st.text(st.characters(codec="utf-8"), max_size=9)
CONTENTS = st.none() | st.binary(max_size=30) | NAMES.map(str.encode)
HEADERS = st.lists(st.tuples(NAMES, CONTENTS), max_size=3)
PARTITIONS = st.builds(TopicPartition, st.just("t"), st.integers(0, 1 << 31), st.integers(-1, 9))


@given(CONTENTS, CONTENTS, HEADERS, st.none() | st.integers(0, 1 << 62), PARTITIONS, st.sampled_from([*ENCODERS]))
def test_a_line_is_the_same_record_again(
    value: bytes | None,
    key: bytes | None,
    headers: list[tuple[str, bytes | None]],
    timestamp: int | None,
    partition: TopicPartition,
    encoding: str,
) -> None:
    record = Record(value, key, tuple(headers), timestamp, None, Position(1), Position(2), 0, partition)
    line = json_line(record, encoding)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert parse_line(line) == (ProducerRecord(value, key, headers, timestamp), partition.name)


def test_what_is_not_utf8_is_in_base64_and_all_of_it_can_be() -> None:
    record = Record(
        b"v\xff", b"k", (("h", b"\0"), ("n", None)), 5, None, Position(1), Position(2), 0, TopicPartition("t", 3)
    )
    head = {"topic": "t", "partition": 3, "position": 1, "next_position": 2, "inner_index": 0, "timestamp": 5}
    nothing = {"name": "n", "value": None}
    assert json.loads(json_line(record)) == {
        **head, "headers": [{"name": "h", "value": "\0"}, nothing], "key": "k", "value_base64": "dv8="
    }  # fmt: skip
    assert json.loads(json_line(record, "base64")) == {
        **head,
        "headers": [{"name": "h", "value_base64": "AA=="}, nothing],
        "key_base64": "aw==",
        "value_base64": "dv8=",
    }  # fmt: skip
    assert json.loads(json_line(record, "hex")) == {
        **head, "headers": [{"name": "h", "value_hex": "00"}, nothing], "key_hex": "6b", "value_hex": "76ff"
    }  # fmt: skip


def test_a_part_that_is_json_already_becomes_a_part_of_the_line() -> None:
    record = Record(b'{"a": [1]}', None, (), None, None, Position(1), Position(2), 0, TopicPartition("t", 3))
    assert json.loads(json_line(record, parsed=["key", "value"]))["value"] == {"a": [1]}
    assert json.loads(json_line(record._replace(value=None), parsed=["value"]))["value"] is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nonsense", "Expecting value"),
        (b"[1]", "not a JSON object"),
        (b"\xff", "can't decode"),
        (b'{"key": "k"}', "no value"),
        (b'{"value": 5}', "value: must be a text or null, not 5"),
        (b'{"value": {"a": 1}}', "must be a text or null, not {"),
        (b'{"value": "a", "value_hex": "61"}', "both value and value_hex"),
        (b'{"value_hex": "6"}', "value_hex: "),
        (b'{"value_base64": "!"}', "value_base64: "),
        (b'{"value": "\\ud800"}', "value: .*surrogates"),
        (b'{"value": "a", "key": true}', "key: must be a text"),
        (b'{"value": "a", "timestamp": -1}', "timestamp: -1"),
        (b'{"value": "a", "timestamp": true}', "timestamp: True"),
        (b'{"value": "a", "timestamp": "now"}', "timestamp: 'now'"),
        (b'{"value": "a", "partition": 1.5}', "partition: 1.5"),
        (b'{"value": "a", "headers": {"a": "b"}}', "headers: must be a list"),
        (b'{"value": "a", "headers": ["b"]}', "headers: must be a list"),
        (b'{"value": "a", "headers": [{"value": "b"}]}', "headers: one has no name"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_line(line)
