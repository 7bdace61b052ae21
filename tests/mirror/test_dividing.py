"""Which partition of the target a record goes to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import odradek as od
from odradek.batch import Batch
from odradek.mirror.dividing import Divided, Division, key_of
from odradek.mirror.errors import RuleFailed
from odradek.mirror.stored import CopyRule
from odradek.types import Columns, Record, TopicPartition

SOURCE, TARGET = TopicPartition("orders", 1, 7), TopicPartition("new", 2)
HERE = __name__


def by_length(record: Record, partitions: int) -> int:
    """A rule of a user."""
    return len(record.value or b"") % partitions


def by_nothing(record: Record, partitions: int) -> int:
    return {b"late": partitions, b"text": "1", b"minus": -1, b"yes": True}.get(record.value or b"", 0)  # type: ignore[return-value]


def division(by: str = "key", key_field: str | None = None, partitions: int = 5) -> Division:
    return Division(SOURCE, TARGET, CopyRule(by, key_field, partitions), od.Murmur2())


def columns(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> Columns:
    rows = len(values)
    return Columns(values, list(range(rows)), list(range(1, rows + 1)), keys=keys)


def test_without_a_rule_everything_goes_to_one_partition() -> None:
    rows = columns([b"a", b"b"])
    assert Division(SOURCE, TARGET, None, od.Murmur2()).divide(rows) == [Divided(TARGET, rows)]


KEYS = st.sampled_from([None, b"", b"a", b"b", b"customer 17", b"\xff\x00"])


@settings(max_examples=50)
@given(st.lists(st.tuples(KEYS, st.sampled_from([b"v", b"", None])), max_size=30), st.integers(1, 7))
def test_every_record_goes_once_to_the_partition_of_its_key_in_order(
    records: list[tuple[bytes | None, bytes | None]], partitions: int
) -> None:
    keys, values = [key for key, _ in records], [value for _, value in records]
    divided = division(partitions=partitions).divide(columns(values, keys))
    assert len({to for to, _ in divided}) == len(divided)
    rows = [(to, record) for to, part in divided for record in Batch(SOURCE, part)]
    assert sorted(record.position for _, record in rows) == list(range(len(records)))
    for to, part in divided:
        assert list(part.positions) == sorted(part.positions)
        assert to.topic == "new"
    for to, record in rows:
        assert (record.key, record.value) == records[record.position]
        assert to.partition == (2 if record.key is None else od.Murmur2()("new", record.key, partitions))


def test_records_without_keys_stay_together() -> None:
    rows = columns([b"a", b"b"])
    assert division().divide(rows) == [Divided(TARGET, rows)]


@settings(max_examples=20)
@given(st.lists(st.binary(max_size=4), max_size=20))
def test_a_function_chooses(values: list[bytes]) -> None:
    divided = division(f"{HERE}:by_length", partitions=3).divide(columns(values))
    assert {to.partition: list(part.values) for to, part in divided} == {
        number: [value for value in values if len(value) % 3 == number] for number in {len(v) % 3 for v in values}
    }


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"late", "the function returned 5, and the partitions are 0 to 4"),
        (b"minus", "the function returned -1"),
        (b"text", "the function returned '1'"),
        (b"yes", "the function returned True"),
    ],
)
def test_a_wrong_number_names_the_record(value: bytes, why: str) -> None:
    rows = Columns([b"fine", value, value], [0, 0, 30], [30, 30, 40], [0, 1, 0])
    with pytest.raises(RuleFailed) as raised:
        division(f"{HERE}:by_nothing").divide(rows)
    assert (raised.value.partition, raised.value.position) == ("orders/7-1", "0.1")
    assert why in str(raised.value) and not raised.value.retriable


def test_an_exception_of_a_function_names_the_record() -> None:
    with pytest.raises(RuleFailed, match=r"orders/7-1 at 0: .*TypeError"):
        division("builtins:len").divide(columns([b"a"]))


# ---- keys of values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "field", "key"),
    [
        (b'{"id": "x"}', "id", b"x"),
        (b'{"id": "\\u00e9"}', "id", b"\xc3\xa9"),
        (b'{"id": ""}', "id", b""),
        (b'{"id": 17}', "id", b"17"),
        (b'{"id": 1.50}', "id", b"1.50"),
        (b'{"id": 123456789012345678901234567890}', "id", b"123456789012345678901234567890"),
        (b'{"customer": {"id": -3}}', "customer.id", b"-3"),
    ],
)
def test_a_field_becomes_the_key(value: bytes, field: str, key: bytes) -> None:
    divided = division(key_field=field).divide(columns([value], [b"before"]))
    assert [(to.partition, part.keys, part.values) for to, part in divided] == [
        (od.Murmur2()("new", key, 5), [key], [value])
    ]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "no value"),
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"17", "no field a.b"),
        (b'{"a": 5}', "no field a.b"),
        (b'{"a": {}}', "no field a.b"),
        (b'{"a.b": "x"}', "no field a.b"),
        (b'{"a": {"b": null}}', "neither a text nor a number"),
        (b'{"a": {"b": true}}', "neither a text nor a number"),
        (b'{"a": {"b": NaN}}', "neither a text nor a number"),
        (b'{"a": {"b": {}}}', "neither a text nor a number"),
        (b'{"a": {"b": "\\ud800"}}', "surrogates not allowed"),
    ],
)
def test_a_value_without_the_field_names_the_record(value: bytes | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        key_of(value, ["a", "b"])
    with pytest.raises(RuleFailed, match=f"orders/7-1 at 1: .*{why}"):
        division(key_field="a.b").divide(columns([b'{"a": {"b": 1}}', value]))
