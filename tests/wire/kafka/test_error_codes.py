"""The table of error codes."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path

import pytest

from odradek.wire.kafka.error_codes import ErrorCode

CORPUS = Path(__file__).parents[2] / "conformance" / "kafka" / "corpus"


def test_the_table_is_that_of_kafka() -> None:
    with (CORPUS / "errors.csv").open(encoding="utf-8", newline="") as lines:
        rows = {int(row["code"]): row for row in csv.DictReader(lines)}  # those of 4.3.1 come last
    assert {int(code) for code in ErrorCode} == set(rows)
    for code in ErrorCode:
        row = rows[code]
        assert code.name == row["name"]
        assert code.retriable == (row["retriable"] == "true")
        assert code.refresh_metadata == (row["refresh_metadata"] == "true")


@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_properties_do_not_contradict_each_other(code: ErrorCode) -> None:
    assert not (code.retriable and (code.fatal or code.fence))
    assert code.refresh_metadata <= code.retriable
    assert code.since


@pytest.mark.parametrize(
    ("code", "retriable", "refresh_metadata", "fatal", "fence"),
    [
        (ErrorCode.NONE, False, False, False, False),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True, True, False, False),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, False, False, True, False),
        (ErrorCode.PRODUCER_FENCED, False, False, True, True),
        (ErrorCode.ILLEGAL_GENERATION, False, False, False, True),
    ],
)
def test_what_a_code_means(code: ErrorCode, retriable: bool, refresh_metadata: bool, fatal: bool, fence: bool) -> None:
    meaning = (code.retriable, code.refresh_metadata, code.fatal, code.fence)
    assert meaning == (retriable, refresh_metadata, fatal, fence)


def test_an_unknown_number_keeps_its_number() -> None:
    code = ErrorCode(3000)
    assert (code, code.name, code.since) == (3000, "UNKNOWN_3000", "")
    assert not (code.retriable or code.refresh_metadata or code.fatal or code.fence)
    assert pickle.loads(pickle.dumps(code)) == 3000
    assert ErrorCode(-1) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_what_is_no_number_is_no_code() -> None:
    with pytest.raises(ValueError, match="'NONE' is not a valid ErrorCode"):
        ErrorCode("NONE")  # type: ignore[arg-type]  # on purpose
