"""Records of the source as rows for the target."""

from __future__ import annotations

import pytest

from odradek.client.producer.results import Failed
from odradek.core.interfaces import ProducerRecord
from odradek.errors import (
    BrokerError,
    Fenced,
    MessageTooLarge,
    NotWritten,
    OdradekError,
    Rejected,
    Unsupported,
)
from odradek.mirror.errors import RecordRefused
from odradek.mirror.rows import Origin, refused_record
from odradek.types import NO_TIMESTAMP, Columns, TopicPartition

PARTITION = TopicPartition("orders", 3, 7)
PLAIN = Columns([b"a", b"b", b"c"], [0, 0, 30], [30, 30, 40], [0, 1, 0])
FULL = Columns(
    [b"a", None],
    [5, 6],
    [6, 7],
    None,
    [None, b"k"],
    [(), (("h", None),)],
    [17, NO_TIMESTAMP],
    [0, NO_TIMESTAMP],
)


def test_four_headers_say_where_a_record_comes_from() -> None:
    columns = Origin("old", PARTITION).added(PLAIN)
    assert columns.headers is not None and columns == PLAIN.replace(headers=columns.headers)
    assert columns.headers[1] == (
        ("odradek.cluster", b"old"),
        ("odradek.topic", b"orders"),
        ("odradek.partition", b"7-3"),
        ("odradek.position", b"0.1"),
    )
    assert [dict(headers)["odradek.position"] for headers in columns.headers] == [b"0", b"0.1", b"30"]


def test_headers_are_added_to_those_of_the_record() -> None:
    headers = Origin("old", PARTITION).added(FULL).headers or ()
    assert headers[1][0] == ("h", None) and dict(headers[1])["odradek.position"] == b"6"


def refused(error: OdradekError, cause: Exception | None = None, row: int = 1) -> OdradekError:
    error.__cause__ = cause
    record = ProducerRecord([*PLAIN.values][row], None, (), None)
    return refused_record(PARTITION, PLAIN, Failed(record, "new", None, error))


@pytest.mark.parametrize(
    ("cause", "hint"),
    [
        (MessageTooLarge("new", -1, 9, 5, "max_message_bytes"), "raise run.max_message_bytes"),
        (BrokerError(10, "MESSAGE_TOO_LARGE"), "raise max.message.bytes of topic 'new' on the target"),
        (BrokerError(87, "INVALID_RECORD"), ""),
    ],
)
def test_a_record_that_is_refused_is_named(cause: OdradekError, hint: str) -> None:
    error = refused(Rejected([], "no"), cause)
    assert isinstance(error, RecordRefused)
    assert str(error).startswith("the record of orders/7-3 at 0.1: the target does not take it: ")
    assert error.hint == hint


def test_what_the_target_does_not_have_is_refused() -> None:
    error = refused(Unsupported("a header", "Kafka 0.11"), row=2)
    assert isinstance(error, RecordRefused) and error.position == "30" and not error.retriable


def test_a_record_is_found_by_all_that_it_has() -> None:
    twice = Columns.concat([FULL, FULL.replace(positions=[8, 9], keys=[None, b"other"])])
    error = refused_record(
        PARTITION, twice, Failed(ProducerRecord(None, b"other", (("h", None),)), "new", None, Rejected([], "no"))
    )
    assert isinstance(error, RecordRefused) and error.position == "9"


@pytest.mark.parametrize("error", [NotWritten([], "late"), Rejected([], "fenced")])
def test_other_errors_stay(error: OdradekError) -> None:
    assert refused(error, Fenced("m", "taken")) is error
