"""The rule for names of topics: specification 1.2 and App. H1."""

from __future__ import annotations

import pytest

from odradek.errors import LocalProtocolError
from odradek.wire.kafka07.topic_names import check_topic, is_legal_topic

LEGAL = [
    "t", "a b", "...", "a.", "__", ":", "-", "a-b-1", "x" * 253, "caf\u00e9", "\u4e2d", "\ud7ff", "\uf900", "\uffef",
    "\u4e2d" * 84, " ", "~", "\u00a0",
]  # fmt: skip
ILLEGAL = [
    "", ".", "..", "a/b", "/", "\x00", "a\x1f", "\x7f", "\x9f", "\ud800", "\udfff", "\ue000", "\uf8ff", "\ufff0",
    "\ufffd", "\uffff", "x" * 256, "\U0001f600" * 128,
]  # fmt: skip
HARMFUL = ["orders-\U0001f600", "\U00010000", "\U0010ffff", "x" * 254, "x" * 255, "\u4e2d" * 85]
"""A broker accepts them, and does not start again."""


@pytest.mark.parametrize("name", LEGAL)
def test_names_the_broker_accepts_pass(name: str) -> None:
    assert is_legal_topic(name)
    check_topic(name)


@pytest.mark.parametrize("name", ILLEGAL)
def test_names_the_broker_refuses_raise(name: str) -> None:
    assert not is_legal_topic(name)
    with pytest.raises(LocalProtocolError, match="topic"):
        check_topic(name)


@pytest.mark.parametrize("name", HARMFUL)
def test_names_that_stop_a_broker_raise_although_it_accepts_them(name: str) -> None:
    assert is_legal_topic(name)
    with pytest.raises(LocalProtocolError, match=r"U\+1|bytes in UTF-8, a broker's directory allows 253"):
        check_topic(name)


def test_the_error_says_what_where_and_what_to_do() -> None:
    with pytest.raises(LocalProtocolError, match=r"topic 'ab/c' has U\+002F at index 2.*remove it"):
        check_topic("ab/c")


def test_length_counts_utf16_units_against_the_setting_of_the_broker() -> None:
    assert is_legal_topic("\U0001f600" * 3, max_length=6)
    assert not is_legal_topic("\U0001f600" * 3, max_length=5)
    with pytest.raises(LocalProtocolError, match="has 6 UTF-16 units, the broker allows 5"):
        check_topic("abcdef", max_length=5)
