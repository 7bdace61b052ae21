"""What Java decides, we decide: assignors, hashes, SASL; and the checkers see a difference where there is one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from .case import Record
from .replay import checker, kind_of, main

CORPUS = Path(__file__).with_name("corpus")
KINDS = ("assignors", "partitioner", "sasl", "scram", "sticky_user_data")
FILES = sorted(path for kind in KINDS for path in CORPUS.glob(f"{kind}_*.jsonl.gz"))
GENERATED = sorted(Path(__file__).with_name("generated").glob("*.jsonl.gz"))
"""Cases of `compare.py` of which an earlier version decided otherwise: second moves of a partition, claims of the same
generation in groups with different subscriptions, the extra partition; escaped names, extensions of errors."""


def lines(name: str) -> list[Record]:
    with gzip.open(CORPUS / f"{name}_shared.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("path", [*FILES, *GENERATED], ids=lambda path: path.name)
def test_the_corpus_has_no_difference_and_nothing_is_skipped(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    passed, failed, skipped = (int(part.split()[0]) for part in last.split(", "))
    with gzip.open(path, "rt", encoding="utf-8") as file:
        assert (passed, failed, skipped) == (sum(1 for _ in file), 0, 0)


def differs(name: str, record: Record) -> str | None:
    return checker(kind_of(record))(record)


def swapped(assignment: dict[str, list[list[object]]]) -> dict[str, list[list[object]]]:
    """Two members have each other's partitions."""
    first, second = [member for member, got in assignment.items() if got][:2]
    return {**assignment, first: assignment[second], second: assignment[first]}


def test_another_assignment_is_a_difference() -> None:
    compared = 0
    for record in lines("assignors"):
        if record["deterministic"] and sum(bool(got) for got in record["assignment"].values()) > 1:
            compared += 1
            assert differs("assignors", {**record, "assignment": swapped(record["assignment"])}) is not None
    assert compared > 300


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("partitioner", {"murmur2": 1}),
        ("partitioner", {"partition": {"7": 99}}),
        ("scram", {"client_final": "c=biws"}),
        ("scram", {"server_final": "v=AAAA"}),
        ("sasl_plain", {"hex": "00"}),
        ("sasl_oauthbearer", {"hex": "6e2c2c01617574683d4265617265722061626301780101"}),
        ("sticky_user_data", {"generation": 5555}),
    ],
)
def test_another_answer_is_a_difference(name: str, change: Record) -> None:
    assert differs(name, {**lines(name)[0], **change}) is not None


@pytest.mark.parametrize(
    ("name", "parsed"),
    [("scram_parse", {"parsed": {}}), ("sasl_plain", {}), ("sasl_oauthbearer", {"token": "", "extensions": {}})],
)
def test_taking_what_java_refuses_is_a_difference(name: str, parsed: Record) -> None:
    for record in lines(name):
        if "accepted" in record:
            other = {"authzid": "", **record, **parsed, "accepted": not record["accepted"]}
            assert differs(name, other) is not None
