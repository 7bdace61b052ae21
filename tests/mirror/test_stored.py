"""What a mirror stores: round trips, and records that a mirror did not write."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.mirror.stored import (
    CopiedTopic,
    CopyProgress,
    CopyRule,
    CopyTarget,
    Finished,
    IndexEntry,
    MirrorIdentity,
    Progress,
    Run,
    SourcePosition,
    Stored,
    StoredState,
    StoredStateError,
    TaskBegan,
    stored_records,
)
from odradek.types import TopicPartition

NUMBERS = st.integers(0, 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
OPTIONAL_TEXTS = st.none() | TEXTS
SMALL = st.integers(0, 50)


def partitions(topics: st.SearchStrategy[str] = TEXTS) -> st.SearchStrategy[TopicPartition]:
    return st.builds(TopicPartition, topics, SMALL, st.integers(-1, 50))


@st.composite
def copied_topics(draw: st.DrawFn) -> CopiedTopic:
    source = draw(TEXTS)
    partitions_to = draw(st.dictionaries(partitions(st.just(source)), st.builds(CopyTarget, SMALL, SMALL), max_size=5))
    rule = draw(st.none() | st.builds(CopyRule, TEXTS, OPTIONAL_TEXTS, SMALL))
    return CopiedTopic(source, draw(TEXTS), draw(OPTIONAL_TEXTS), partitions_to, rule)


POSITIONS = st.builds(SourcePosition, NUMBERS, SMALL, OPTIONAL_TEXTS)
PROGRESS = st.builds(
    Progress,
    NUMBERS,
    st.dictionaries(partitions(), st.builds(CopyProgress, POSITIONS, st.none() | NUMBERS, NUMBERS), max_size=5),
)
RUNS = st.lists(st.builds(Run, NUMBERS, SMALL, NUMBERS, NUMBERS), min_size=1, max_size=5).map(tuple)
STORED: st.SearchStrategy[Stored] = st.one_of(
    st.builds(MirrorIdentity, TEXTS, TEXTS),
    copied_topics(),
    PROGRESS,
    st.builds(IndexEntry, partitions(), RUNS),
    st.builds(TaskBegan, NUMBERS),
    st.builds(Finished, NUMBERS),
)


@settings(max_examples=20)
@given(st.lists(st.tuples(SMALL, STORED), max_size=20))
def test_later_records_count(stored: list[tuple[int, Stored]]) -> None:
    state, model = StoredState("odradek.mirror.m"), StoredState("odradek.mirror.m")
    for task, value in stored:
        for key, body in stored_records([value]):
            state.add(task, key, body)
        match value:
            case MirrorIdentity():
                model.identity = value
            case CopiedTopic():
                model.topics[value.source] = value
            case Progress():
                model.progress[task] = value
            case IndexEntry():
                model.index.setdefault(value.source, {})[value.runs[0].position, value.runs[0].inner] = value
            case Finished():
                model.finished = value
    assert state == model


@settings(max_examples=20)
@given(st.lists(STORED, max_size=20))
def test_records_that_compaction_keeps_say_the_same(stored: list[Stored]) -> None:
    every, compacted = StoredState("t"), StoredState("t")
    records = stored_records(stored)
    for key, value in records:
        every.add(0, key, value)
    for key, value in dict(records).items():
        compacted.add(0, key, value)
    assert compacted == every


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
KEYS = st.sampled_from([b"mirror", b"topic t", b"progress", b"index t 0 5", b"finished"])
FIELDS = st.sampled_from(
    ["format", "source", "target", "id", "partitions", "at", "topic", "broker", "partition", "runs"]
)


@settings(max_examples=20)
@given(
    KEYS | st.none() | st.binary(max_size=10),
    st.none() | st.binary(max_size=30) | st.dictionaries(FIELDS, JSON).map(lambda fields: json.dumps(fields).encode()),
)
def test_any_bytes_are_understood_or_refused(key: bytes | None, value: bytes | None) -> None:
    state = StoredState("odradek.mirror.m")
    try:
        state.add(0, key, value)
    except StoredStateError as error:
        assert str(error).startswith("odradek.mirror.m: the record ")
        assert state == StoredState("odradek.mirror.m")


GOOD: dict[str, dict[str, Any]] = {
    "mirror": {"format": 1, "source": "a", "target": "b"},
    "topic t": {"source": "t", "target": "u", "id": None, "partitions": [[-1, 0, 0, 2]]},
    "progress": {"at": 5, "partitions": [["t", 0, -1, 7, 0, "id", None, 3]]},
    "index t 0 5": {"topic": "t", "broker": -1, "partition": 0, "runs": [[5, 0, 9, 2]]},
    "finished": {"at": 5},
}


@pytest.mark.parametrize("key", GOOD)
def test_the_good_ones_of_the_next_test_are_read(key: str) -> None:
    state = StoredState("t")
    state.add(0, key.encode(), json.dumps(GOOD[key]).encode())
    assert state != StoredState("t")


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("mirror", {"format": 2}),
        ("mirror", {"source": 1}),
        ("mirror", {"target": None}),
        ("topic t", {"id": 5}),
        ("topic t", {"target": 5}),
        ("topic t", {"partitions": [[-1, 0, 0]]}),
        ("topic t", {"partitions": [[-1, 0, "0", 2]]}),
        ("topic t", {"partitions": 5}),
        ("progress", {"at": 1.5}),
        ("progress", {"partitions": [["t", 0, -1, 7, 0, None, "x", 3]]}),
        ("progress", {"partitions": [["t", 0, -1, 7, 0, 5, None, 3]]}),
        ("progress", {"partitions": [["t", 0, -1, True, 0, None, None, 3]]}),
        ("progress", {"partitions": [["t", 0]]}),
        ("index t 0 5", {"runs": []}),
        ("index t 0 5", {"runs": [[5, 0, 9]]}),
        ("index t 0 5", {"runs": [[5, 0, None, 2]]}),
        ("index t 0 5", {"topic": None}),
        ("finished", {"at": None}),
    ],
)
def test_a_wrong_field_is_refused(key: str, change: dict[str, Any]) -> None:
    with pytest.raises(StoredStateError, match=f"odradek.mirror.m: the record '{key}' cannot be read"):
        StoredState("odradek.mirror.m").add(0, key.encode(), json.dumps({**GOOD[key], **change}).encode())


def test_depth_is_refused() -> None:
    with pytest.raises(StoredStateError, match="RecursionError"):
        StoredState("t").add(0, b"progress", b"[" * 100_000)


def test_a_newer_format_says_so() -> None:
    body = json.dumps({**GOOD["mirror"], "format": 2}).encode()
    with pytest.raises(StoredStateError, match="its format is 2, and this release reads 1"):
        StoredState("t").add(0, b"mirror", body)
