"""`odradek doctor` and `odradek explain`."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Command, jsons

from odradek.cli.app import run
from odradek.doctor import CAUSES
from odradek.testing.process import reserve_port


def test_causes_are_printed_with_evidence_and_remedy(capfd: pytest.CaptureFixture[str]) -> None:
    port, keeper = reserve_port()
    with keeper:
        assert run(["doctor", "-b", f"127.0.0.1:{port}"]) == 1
    printed = capfd.readouterr().out
    assert printed.startswith(f"error: nothing-listens\n  cannot connect to 127.0.0.1:{port}: tcp: ")
    assert "\n  remedy: check that the broker runs and listens there\n" in printed
    assert printed.endswith("1 finding; checked: servers of the URL\n")


def test_causes_are_lines_of_json(capfd: pytest.CaptureFixture[str]) -> None:
    port, keeper = reserve_port()
    with keeper:
        assert run(["doctor", "-b", f"127.0.0.1:{port}", "--json"]) == 1
    (finding,) = jsons(capfd.readouterr().out)
    assert finding.keys() == {"cause", "severity", "evidence", "remedy"}
    assert finding["cause"] == "nothing-listens"


def test_a_healthy_cluster_has_no_findings_and_what_was_not_checked_is_said(
    cluster: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor"]) == 0
    printed = capfd.readouterr()
    assert printed.out == "0 findings; checked: servers of the URL, advertised addresses\n"
    assert "not checked: quotas: " in printed.err


def test_explain_lists_causes_and_explains_one(odradek: Command, capfd: pytest.CaptureFixture[str]) -> None:
    assert [row["cause"] for row in jsons(odradek("explain", "--json"))] == list(CAUSES)
    cause = CAUSES["tls-expected"]
    assert odradek("explain", "tls-expected") == f"tls-expected\n  {cause.meaning}\n  remedy: {cause.remedy}\n"
    assert json.loads(odradek("explain", "19", "--json"))["name"].startswith("NOT_ENOUGH_REPLICAS (19")
    assert odradek("explain", "CONCURRENT_TRANSACTIONS").count("\n") == 2
    assert run(["explain", "nonsense"]) == 2
    assert "nonsense" in capfd.readouterr().err
