"""Places in many partitions as JSON: one text for equal offsets, and nothing accepted that is not exactly one."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from odradek.errors import ConfigError
from odradek.ranges.offsets import ids_from_dict, offsets_from_dict, offsets_to_dict, parse_partition
from odradek.spark.values import parse_json
from odradek.types import Position, TopicPartition

PARTITIONS = st.builds(TopicPartition, st.text(min_size=1), st.integers(0, 2**31 - 1), st.integers(-1, 2**31 - 1))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1).map(Position))


def dump_offsets(offsets: Mapping[TopicPartition, Position]) -> str:
    """Offsets as Spark keeps them."""
    return json.dumps(offsets_to_dict(offsets), ensure_ascii=False, separators=(",", ":"))


def load_offsets(text: str) -> dict[TopicPartition, Position]:
    return offsets_from_dict(parse_json(text, "offsets"))


A, B, C = TopicPartition("a", 1, 0), TopicPartition("a", 10, 0), TopicPartition("b", 3)


# ---- what a checkpoint keeps ---------------------------------------------------------------------------------


def test_offsets_look_as_documented() -> None:
    assert dump_offsets({C: Position(7), B: Position(0), A: Position(5)}) == (
        '{"v":1,"topics":{"a":{"0-1":5,"0-10":0},"b":{"3":7}}}'
    )
    assert dump_offsets({}) == '{"v":1,"topics":{}}'


def test_offsets_have_the_ids_of_those_topics_whose_id_is_known() -> None:
    dumped = offsets_to_dict({C: Position(7), A: Position(5)}, {"b": "0b", "gone": "0c"})
    assert dumped == {"v": 1, "topics": {"a": {"0-1": 5}, "b": {"3": 7}}, "ids": {"b": "0b"}}
    assert (offsets_from_dict(dumped), ids_from_dict(dumped)) == ({A: 5, C: 7}, {"b": "0b"})
    assert ids_from_dict({"v": 1, "topics": {}}) == ids_from_dict({"ids": {"0": 123}}) == {}
    with pytest.raises(ConfigError, match="ids of topics are"):
        ids_from_dict({"v": 1, "topics": {}, "ids": {"b": 7}})


@given(OFFSETS)
def test_offsets_survive_the_round_trip(offsets: dict[TopicPartition, Position]) -> None:
    assert load_offsets(dump_offsets(offsets)) == offsets
    assert offsets_from_dict(json.loads(json.dumps(offsets_to_dict(offsets)))) == offsets


@given(OFFSETS, st.randoms(use_true_random=False))
def test_equal_offsets_have_one_text_however_they_came_about(
    offsets: dict[TopicPartition, Position], chance: object
) -> None:
    items = list(offsets.items())
    chance.shuffle(items)  # type: ignore[attr-defined]
    assert dump_offsets(dict(items)) == dump_offsets(offsets)
    assert json.dumps(offsets_to_dict(dict(items))) == json.dumps(offsets_to_dict(offsets))
    assert json.loads(dump_offsets(offsets)) == offsets_to_dict(offsets)


@given(OFFSETS, OFFSETS)
def test_different_offsets_have_different_texts(
    one: dict[TopicPartition, Position], other: dict[TopicPartition, Position]
) -> None:
    assert (dump_offsets(one) == dump_offsets(other)) == (one == other)


def test_offsets_of_a_checkpoint_of_sparks_own_source_are_taken_over() -> None:
    theirs = {"orders": {"0": 5, "10": 0}, "v": {"0": 1}, "topics": {"0": 2}}
    offsets = offsets_from_dict(theirs)
    assert offsets == offsets_from_dict({"v": 1, "topics": theirs})
    assert offsets[TopicPartition("v", 0)] == 1 and len(offsets) == 4
    before_a_topic = offsets_from_dict({})
    assert before_a_topic == {} == ids_from_dict({})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", r"offsets are \{"),
        ('{"v":1}', r"offsets are \{"),
        ('{"v":1,"topics":{},"more":1}', r"offsets are \{"),
        ('{"v":2,"topics":{}}', "offsets of version 2: this version of odradek reads version 1"),
        ('{"v":true,"topics":{}}', "offsets of version true"),
        ('{"v":1,"topics":[]}', r"topics are \{"),
        ('{"v":1,"topics":{"t":[1]}}', r"topics are \{"),
        ('{"v":1,"topics":{"":{"0-1":1}}}', "of topic ''"),
        ('{"v":1,"topics":{"t":{"0-1":-1}}}', "offset of t/0-1 must be an integer of at least 0, not -1"),
        ('{"v":1,"topics":{"t":{"0-1":1.0}}}', "offset of t/0-1 must be an integer"),
        ('{"v":1,"topics":{"t":{"0-1":true}}}', "offset of t/0-1 must be an integer"),
        ('{"v":1,"topics":{"t":{"0-1":null}}}', "offset of t/0-1 must be an integer"),
        ('{"v":1,"topics":{"t":{"0-1":9223372036854775808}}}', "offset of t/0-1 must be an integer"),
        ('{"v":1,"topics":{"t":{"0-1":NaN}}}', "must be an integer of at least 0, not NaN"),
        ('{"v":1,"topics":{"t":{"0-1":1,"0-1":2}}}', "duplicate key: 0-1, 0-1"),
        ('{"v":1,"topics":{"t":{"00-1":1}}}', "partition \"00-1\" of topic 't'"),
        ('{"v":1,"topics":{"t":{"0-01":1}}}', 'partition "0-01" of topic'),
        ('{"v":1,"topics":{"t":{"-1":1}}}', 'partition "-1" of topic'),
        ('{"v":1,"topics":{"t":{" 1":1}}}', 'partition " 1" of topic'),
    ],
)
def test_what_is_not_offsets_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_offsets(text)


@given(st.text() | st.integers() | st.recursive(st.none() | st.text(), lambda x: st.dictionaries(st.text(), x)))
def test_anything_else_raises_the_one_error(value: object) -> None:
    assume(value != {})
    with pytest.raises(ConfigError):
        offsets_from_dict(value)


# ---- names of partitions -------------------------------------------------------------------------------------


def test_partitions_have_one_name_each() -> None:
    assert parse_partition("t", "0-1") == TopicPartition("t", 1, 0)
    assert parse_partition("t", "7") == TopicPartition("t", 7)
    for name in ("", "-", "1-", "-1", "1-2-3", "01", "a", "1-2 "):
        assert parse_partition("t", name) is None


@given(PARTITIONS)
def test_a_partition_is_found_by_its_name(partition: TopicPartition) -> None:
    assert parse_partition(partition.topic, partition.name) == partition
