"""The replay itself: it finds differences, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .replay import Step, main

ASK = {"op": "send", "conn": "a", "hex": "0000000400020000"}  # MULTIFETCH of nothing


def corpus(path: Path, *cases: list[Step]) -> str:
    records = [{"id": f"X{i}", "title": "made up", "broker": {}, "steps": steps} for i, steps in enumerate(cases)]
    path.write_text("".join(f"{json.dumps(record)}\n" for record in [*records, {"id": "P1", "frames": []}]))
    return str(path)


def test_differences_are_printed_counted_and_make_the_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    connect = {"op": "connect", "conn": "a"}
    file = corpus(
        tmp_path / "corpus.jsonl",
        [connect, ASK, {"op": "recv", "conn": "a", "hex": "000000020000"}],
        [connect, ASK, {"op": "recv", "conn": "a", "hex": "000000020001"}],
        [connect, ASK, {"op": "recv", "conn": "a", "expect": "silence"}],
        [connect, ASK, {"op": "recv", "conn": "a", "expect": "closed"}],
        [{"op": "expect_log", "topic": "t", "partition": 0, "files": []}],
        [{"op": "expect_zk", "path": "/brokers/ids/1", "data": "absent"}],
        [{"op": "restart", "mode": "clean", "expect": "refused"}],
    )

    assert main([file]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines[:-1]] == ["X1", "X2", "X3", "X4", "X5", "X6"]
    assert lines[0] == 'X1 (made up) step 2 recv: answer: expected "000000020001", got "000000020000"'
    assert lines[-1] == "1 passed, 6 failed, 1 skipped"


def test_only_runs_the_case_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = corpus(tmp_path / "corpus.jsonl", [{"op": "connect", "conn": "a"}], [{"op": "expect_zk", "path": "/"}])

    assert main([file, "--only", "X0"]) == 0
    assert capsys.readouterr().out == "1 passed, 0 failed, 1 skipped\n"
