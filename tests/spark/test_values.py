"""Positions of partitions as options say them: nothing is accepted that is not exactly one."""

from __future__ import annotations

import pytest

from odradek.errors import ConfigError
from odradek.spark.values import parse_assign, parse_positions, parse_time, parse_times
from odradek.types import EARLIEST, LATEST, AtTime, TopicPartition

A, B, C = TopicPartition("a", 1, 0), TopicPartition("a", 10, 0), TopicPartition("b", 3)


def test_assign_names_partitions_by_broker_or_by_number() -> None:
    assert parse_assign('{"b":["1-0","0-2"],"a":[0,"1"]}') == (
        TopicPartition("a", 0),
        TopicPartition("a", 1),
        TopicPartition("b", 0, 1),
        TopicPartition("b", 2, 0),
    )


@pytest.mark.parametrize(
    "text", ["{}", '{"t":[]}', '{"t":"0-1"}', "[]", '{"t":[1.5]}', '{"t":["x"]}', '{"t":["0-1","0-1"]}', '{"t":[true]}']
)
def test_assign_refuses_what_names_no_partitions(text: str) -> None:
    with pytest.raises(ConfigError, match="assign"):
        parse_assign(text)


def test_places_are_anchors_or_numbers() -> None:
    assert parse_positions("earliest", "startingOffsets") is EARLIEST
    assert parse_positions(" LATEST ", "startingOffsets") is LATEST
    assert parse_positions('{"a":{"0-1":-2,"0-10":-1},"b":{"3":9}}', "startingOffsets") == {
        A: EARLIEST,
        B: LATEST,
        C: 9,
    }


@pytest.mark.parametrize(
    "text", ['{"a":{"0-1":-3}}', '{"a":{"0-1":[1]}}', '{"a":{"0-1":-1.0}}', '{"a":1}', "newest", "{"]
)
def test_places_refuse_what_is_neither(text: str) -> None:
    with pytest.raises(ConfigError, match="startingOffsets"):
        parse_positions(text, "startingOffsets")


def test_only_anchors_that_make_sense_are_taken() -> None:
    with pytest.raises(ConfigError, match="endingOffsets='earliest': must be latest or JSON"):
        parse_positions("earliest", "endingOffsets", anchors=[LATEST])
    with pytest.raises(ConfigError, match="must be an integer of at least 0, or -1, not -2"):
        parse_positions('{"a":{"0-1":-2}}', "endingOffsets", anchors=[LATEST])


def test_times_are_milliseconds() -> None:
    assert parse_times('{"a":{"0-1":1700000000123}}', "o") == {A: AtTime(1700000000.123)}
    assert parse_time("1700000000123", "o") == AtTime(1700000000.123)
    for text in ("", "-1", "1.5", "now"):
        with pytest.raises(ConfigError, match="milliseconds since 1970"):
            parse_time(text, "o")
