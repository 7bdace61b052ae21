"""The replay itself: it finds differences, and says so; and the corpus has none."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from .case import Record
from .replay import main

CORPUS = Path(__file__).with_name("corpus")
KINDS = ("messages", "headers", "embedded", "conversations", "records")
FILES = sorted(path for kind in KINDS for path in CORPUS.glob(f"{kind}_*.jsonl.gz"))

RECORD: Record = {
    "api": "Heartbeat",
    "key": 12,
    "side": "response",
    "version": 1,
    "unstable": False,
    "header_version": 0,
    "source": "3.9.1",
    "kind": "random",
    "hex": "000000070019",
    "json": {"throttleTimeMs": 7, "errorCode": 25},
    "unknown_tags": [],
}


def written(path: Path, *records: Record) -> str:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_corpus_has_no_difference_and_less_than_one_percent_is_skipped(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    passed, _, skipped = (int(part.split()[0]) for part in last.split(", "))
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        frames = sum(not {"json", "batches"}.isdisjoint(json.loads(line)) for line in lines)
    assert passed + skipped == frames
    assert skipped * 100 < frames


def test_differences_are_printed_counted_and_make_the_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(
        tmp_path / "messages_x.jsonl",
        RECORD,
        {**RECORD, "json": {"throttleTimeMs": 7, "errorCode": 26}},
        {**RECORD, "header_version": 1},
        {**RECORD, "hex": "0000"},
        {**RECORD, "api": "ReadShareGroupStateSummary", "unstable": True},
        {**RECORD, "unknown_tags": [{"path": "", "tag": 9, "hex": "00"}]},
    )

    assert main([file, "--reasons"]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines[:4]] == [f"messages_x.jsonl:{n}" for n in (2, 3, 4, 6)]
    assert "expected {'throttleTimeMs': 7, 'errorCode': 26}, got" in lines[0]
    assert lines[-2].startswith("1 skipped: ReadShareGroupStateSummary")
    assert lines[-1] == "1 passed, 4 failed, 1 skipped"


def test_a_file_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"there is no check_\*\.py"):
        main([written(tmp_path / "weather_x.jsonl", RECORD)])


def test_it_runs_as_a_script() -> None:
    script = Path(__file__).with_name("replay.py")
    file = CORPUS / "headers_shared.jsonl.gz"
    done = subprocess.run([sys.executable, script, file], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1].endswith(" passed, 0 failed, 0 skipped"), done.stderr
