"""The replay itself: it finds differences, and says so; and the corpus has none."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from .case import Record
from .corpus import CORPUS, replayed
from .replay import main

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
def test_the_corpus_has_no_difference_and_less_than_one_percent_is_skipped(path: Path) -> None:
    lines, counts, failures = replayed(path)
    assert failures == ()
    frames = sum(not {"json", "batches"}.isdisjoint(json.loads(line)) for line in lines)
    assert counts["passed"] + counts["skipped"] == frames
    assert counts["skipped"] * 100 < frames


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


def test_the_name_of_a_file_and_whether_it_is_compressed_do_not_matter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "lines.txt"
    plain.write_bytes(gzip.decompress((CORPUS / "headers_shared.jsonl.gz").read_bytes()) + b"\n")
    compressed = tmp_path / "lines"
    compressed.write_bytes((CORPUS / "partitioner_shared.jsonl.gz").read_bytes())
    assert main([str(plain), str(compressed)]) == 0
    assert capsys.readouterr().out == "467 passed, 0 failed, 0 skipped\n"


@pytest.mark.parametrize(
    ("content", "passed", "says"),
    [
        ({"weather": 1}, 0, ":1: fields of no known kind: weather"),
        ([RECORD], 0, ":1: not a JSON object"),
        ("cut", 5, "cannot be read: Compressed file ended"),
        ("not gzip", 0, "cannot be read: "),
        ("not JSON", 1, ":2: not JSON: "),
        ("not UTF-8", 0, "cannot be read: "),
        ("missing", 0, "cannot be read: No such file or directory"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_a_failure_and_the_other_files_are_still_checked(
    content: object, passed: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "damaged"
    contents: dict[object, bytes] = {
        "cut": (CORPUS / "scram_shared.jsonl.gz").read_bytes()[:3000],
        "not gzip": b"\x1f\x8bgarbage",
        "not JSON": json.dumps(RECORD).encode() + b"\n{\n",
        "not UTF-8": b"\xff\n",
    }
    if content != "missing":
        file.write_bytes(contents[content] if isinstance(content, str) else json.dumps(content).encode())
    good = written(tmp_path / "good", RECORD)

    assert main([str(file), good]) == 1

    difference, last = capsys.readouterr().out.splitlines()
    assert says in difference
    assert last == f"{passed + 1} passed, 1 failed, 0 skipped"


def test_a_file_without_lines_has_nothing_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([written(tmp_path / "empty")]) == 0
    output = capsys.readouterr()
    assert output.out == "0 passed, 0 failed, 0 skipped\n"
    assert output.err.endswith("empty: nothing to compare\n")


def test_it_runs_as_a_script() -> None:
    script = Path(__file__).with_name("replay.py")
    file = CORPUS / "headers_shared.jsonl.gz"
    done = subprocess.run([sys.executable, script, file], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1].endswith(" passed, 0 failed, 0 skipped"), done.stderr
