"""The commands on finished tables, as users run them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.cli.app import run
from odradek.pipeline.selection import select
from odradek.testing import Kafka07Broker

from ..pipeline.made import ROWS, Made

Command = Callable[..., str]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    made = Made(tmp_path)
    for _ in range(3):
        made.log(ROWS)
        made.run()
    return made


@pytest.fixture
def pipeline(made: Made, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command of the group that must end with this exit code; returns what it printed."""
    monkeypatch.delenv("ODRADEK_CLUSTER", raising=False)

    def command(name: str, *arguments: str, code: int = 0) -> str:
        assert run(["pipeline", name, str(made.file), *arguments]) == code
        return capfd.readouterr().out

    return command


# ---- files ---------------------------------------------------------------------------------------------------


def test_files_are_those_in_which_rows_are_now(made: Made, pipeline: Command) -> None:
    paths = pipeline("files").splitlines()
    assert paths == [str(made.root / "table" / file.path) for file in made.table.live.values()]
    assert pipeline("files", "--batch", "1:").splitlines() == paths[1:]
    assert pipeline("files", "--since", "2100-01-01") == ""
    pipeline("compact")
    (told,) = map(json.loads, pipeline("files", "--batch", "2", "--json").splitlines())
    assert (told["rows"], told["partition"]["topic"], Path(told["path"]).is_file()) == (300, "orders", True)


# ---- verify --------------------------------------------------------------------------------------------------


def test_verify_says_that_a_table_is_complete(pipeline: Command) -> None:
    head, row = pipeline("verify").splitlines()
    assert head.split()[:3] == ["flow", "checked", "rows"]
    assert row.split()[:6] == ["orders", "3", "of", "3", "batches", "300"] and row.endswith("  complete")
    assert "  position, payload  " in row
    assert pipeline("verify", "--quiet") == ""


def test_verify_says_what_is_missing(made: Made, pipeline: Command) -> None:
    made.log(ROWS)
    made.run(lose=lambda value: value == ROWS[0])
    out = pipeline("verify", code=1)
    assert (
        out.startswith("orders: missing: orders/1-0 [") and "1 rows of batch 3 of the log are not in the table" in out
    )
    told = json.loads(pipeline("verify", "--json", "--batch", "2:", code=1))
    assert (told["ok"], told["batches"], told["of"], told["rows"]) == (False, 2, 4, 199)
    assert [finding["kind"] for finding in told["findings"]] == ["missing"]
    assert json.loads(pipeline("verify", "--json", "--batch", ":2"))["ok"] is True


def test_verify_of_a_sample_and_of_a_time(pipeline: Command) -> None:
    assert json.loads(pipeline("verify", "--json", "--sample", "34"))["batches"] == 2
    assert json.loads(pipeline("verify", "--json", "--since", "1800000002"))["batches"] == 1
    assert json.loads(pipeline("verify", "--json", "--until", "1800000002"))["batches"] == 2


@pytest.mark.parametrize("wrong", [["--batch", "x"], ["--flow", "none"], ["--sample", "0"], ["--since", "when"]])
def test_what_makes_no_sense_is_wrong_usage(pipeline: Command, wrong: list[str]) -> None:
    assert pipeline("verify", *wrong, code=2) == ""


def test_a_broken_ledger_is_said(made: Made, pipeline: Command) -> None:
    made.ledger.path(1).unlink()
    pipeline("verify", code=1)


def test_batches_are_chosen(made: Made) -> None:
    table = made.table
    assert select(table) == {0, 1, 2}
    assert select(table, numbers=["0", "2:9"]) == {0, 2}
    assert select(table, numbers=["5"]) == set() == select(table, numbers=["5"], sample=50)
    assert len(select(table, sample=1)) == 1


# ---- replay --------------------------------------------------------------------------------------------------


def test_replay_says_first_what_it_would_do(made: Made, pipeline: Command) -> None:
    with Kafka07Broker(config={"log.flush.interval": "1"}) as broker:
        target = ["--cluster", f"kafka07://1@{broker.address}", "--topic", "back"]
        out = pipeline("replay", *target)
        assert out.startswith("orders: 300 rows of 3 batches to back\n0 confirmed") and "nothing was sent" in out
        assert not list(broker.log_dir.glob("back-*"))
        told = json.loads(pipeline("replay", *target, "--batch", "1", "--apply", "--json", "--rate", "10m"))
        assert (told["rows"], told["sent"], told["confirmed"], told["ended"]) == (100, 100, 100, True)
        assert Path(told["state"]).is_file()
        assert "0 of them now" in pipeline("replay", *target, "--batch", "1", "--apply")
        state = str(made.root / "state.json")
        assert json.loads(pipeline("replay", *target, "--state", state, "--apply", "--json"))["sent"] == 300


def test_replay_does_not_send_topics_into_themselves(made: Made, pipeline: Command) -> None:
    pipeline("replay", "--topic", "back", code=2)  # log directories: send where?
    text = made.file.read_text()
    made.file.write_text(text.replace(text.splitlines()[2], 'brokers = "1@127.0.0.1:1"'))
    pipeline("replay", code=2)
    assert "nothing was sent" in pipeline("replay", "--topic", "back")
    assert "nothing was sent" in pipeline("replay", "--cluster", "kafka07://other:9092")


def test_replay_wants_one_flow(made: Made, pipeline: Command) -> None:
    more = f'[flows.other]\ntopics = ["x"]\n[flows.other.sink]\npath = "{made.root}/other"\n'
    made.file.write_text(made.file.read_text() + more)
    pipeline("replay", "--cluster", "kafka07://a", code=2)
    assert pipeline("replay", "--cluster", "kafka07://a", "--flow", "orders")


# ---- compact and repair --------------------------------------------------------------------------------------


def test_compact_makes_one_of_many(made: Made, pipeline: Command) -> None:
    out = pipeline("compact", "--dry-run")
    assert out.splitlines()[1].split() == ["orders", "3", "1", "300", "0"] and out.endswith("nothing was changed\n")
    assert len(made.table.live) == 3
    told = json.loads(pipeline("compact", "--json"))
    assert told == {
        "flow": "orders", "files_before": 3, "files_after": 1, "rows": 300, "deleted": 0, "applied": True
    }  # fmt: skip
    assert len(list((made.root / "table").rglob("*.parquet"))) == 4
    assert json.loads(pipeline("compact", "--json", "--delete-older-than", "1h"))["deleted"] == 0
    assert json.loads(pipeline("compact", "--json", "--delete-older-than", "0s"))["deleted"] == 3
    assert json.loads(pipeline("verify", "--json"))["ok"]


def test_repair_says_first_what_it_would_do(made: Made, pipeline: Command) -> None:
    stray = made.root / "table" / "topic=orders" / "stray.parquet"
    stray.write_bytes(b"torn")
    out = pipeline("repair", code=1)
    assert "there is no checkpoint; a new one would be made" in out and f"{stray}: no entry lists it" in out
    assert "nothing was changed: --apply does" in out and stray.exists()
    assert "a new one made" in pipeline("repair", "--apply") and not stray.exists()
    assert pipeline("repair") == "orders: nothing to repair\n"
    told = json.loads(pipeline("repair", "--json"))
    assert (told["entry"], told["orphans"], told["applied"]) == (None, [], False)
