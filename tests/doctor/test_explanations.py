"""Causes, errors and error codes in words."""

from __future__ import annotations

import pytest

from odradek import errors
from odradek.doctor import CAUSES, explain
from odradek.errors import ConfigError
from odradek.wire.kafka.error_codes import ErrorCode


def test_a_cause_is_explained() -> None:
    assert explain("tls-expected") == ("tls-expected", *CAUSES["tls-expected"][1:])


@pytest.mark.parametrize("name", ["19", "NOT_ENOUGH_REPLICAS", "not_enough_replicas"])
def test_a_code_is_explained_by_its_number_and_its_name(name: str) -> None:
    explained = explain(name)
    assert explained.name == "NOT_ENOUGH_REPLICAS (19, since Kafka 0.8.2)"
    assert explained.meaning.startswith(CAUSES["too-few-in-sync"].meaning)
    assert explained.meaning.endswith("The same request may succeed later; the client repeats it.")
    assert explained.remedy == CAUSES["too-few-in-sync"].remedy


def test_negative_codes_and_codes_of_brokers_to_come() -> None:
    assert explain("-1").name == "UNKNOWN_SERVER_ERROR (-1, since Kafka 0.8.0)"
    with pytest.raises(ConfigError, match="no cause, error or error code has this name"):
        explain("32000")


def test_an_error_is_explained_by_its_documentation() -> None:
    explained = explain("Fenced")
    assert explained.meaning.startswith("Another producer or group member took over this one's identity")
    assert "Another client may own now" in explained.meaning
    assert explained.remedy == errors.Fenced.hint


def test_everything_that_has_a_name_is_explained() -> None:
    for name in [*CAUSES, *errors.__all__, *ErrorCode.__members__]:
        assert name in explain(name).name


def test_codes_that_are_explained_exist() -> None:
    from odradek.doctor.causes import CAUSE_OF_CODE
    from odradek.doctor.explanations import _CODES

    assert {*_CODES, *CAUSE_OF_CODE} <= ErrorCode.__members__.keys()
    assert not _CODES.keys() & CAUSE_OF_CODE.keys()


def test_a_name_that_does_not_exist_is_refused_with_similar_ones() -> None:
    with pytest.raises(ConfigError, match=r"name='tls-expcted': .*; similar: tls-expected"):
        explain("tls-expcted")
    with pytest.raises(TypeError, match="name"):
        explain(19)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cause", "older"),
    [
        ("topic-missing", ("before 0.10.1 `kafka-topics.sh`", "in 0.7 by a first message")),
        ("leader-imbalance", ("before 2.2 `kafka-preferred-replica-election.sh`",)),
        ("advertised-listener-unreachable", ("0.8 advertised.host.name", "0.7 hostname")),
    ],
)
def test_a_remedy_that_older_releases_refuse_says_what_they_have(cause: str, older: tuple[str, ...]) -> None:
    assert all(words in CAUSES[cause].remedy for words in older)
