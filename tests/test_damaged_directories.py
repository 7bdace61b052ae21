"""Each kind of damage of a log directory gets the answer that `docs/howto/segments.md` says: from `odradek.segments`,
the command line, the tasks of Spark, and a pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from odradek import segments
from odradek.cli.app import run
from odradek.errors import ConfigError, CorruptMessage
from odradek.pipeline.committed import open_committed
from odradek.pipeline.config import load
from odradek.pipeline.run import execute
from odradek.ranges.catalog import find_logs, plan_all
from odradek.ranges.reader import ColumnsChunk, read_task
from odradek.spark.options import parse_source

from .kafka_logs import batch, write_log
from .pipeline.workspace import in_process

EVERYTHING = range(30)
INDEX = "no batch with offset"
"""A part of the fault of an index, which also has entries behind a torn end or a damaged header."""

FILE = """
[source]
logs = ["logs"]
[flows.a]
pattern = "orders"
[flows.a.sink]
path = "table"
"""


@dataclass(frozen=True)
class Kind:
    """A kind of damage, and the answer to it.

    Args:
        damage: Does it to the directory of a log of offsets 0 to 29, in three files of two batches each.
        read: The offsets that are read, before the error if there is one.
        error: A part of the error of reading; "": there is none.
        faults: Parts of what `verify` finds, in order.
        note: A part of what is said beside the records; "": nothing.
    """

    damage: Callable[[Path], object]
    read: Sequence[int] = EVERYTHING
    error: str = ""
    faults: Sequence[str] = ()
    note: str = ""


def segment(directory: Path, start: int, suffix: str = ".log") -> Path:
    return directory / f"{start:020}{suffix}"


def change(path: Path, at: int, byte: int | None = None) -> None:
    """Set a byte, or flip one of its bits."""
    data = bytearray(path.read_bytes())
    data[at] = data[at] ^ 1 if byte is None else byte
    path.write_bytes(data)


def truncate(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def leave_a_compaction(directory: Path) -> None:
    """What is on the disk when a broker ends after its cleaner has renamed what replaces a file."""
    segment(directory, 10, ".log.swap").write_bytes(batch([12]) + batch([17]))
    segment(directory, 0, ".log.deleted").write_bytes(batch(range(10)))


def begin_a_compaction(directory: Path) -> None:
    segment(directory, 10, ".log.cleaned").write_bytes(batch([12]))
    segment(directory, 10, ".log.swap").write_bytes(batch([12]))


def move_to_remote_storage(directory: Path) -> None:
    segment(directory, 0).unlink()
    (directory.parent / "log-start-offset-checkpoint").write_text("0\n1\norders 0 0\n")


KINDS = {
    "torn end": Kind(
        lambda log: truncate(segment(log, 20), 3), range(25), "", ["torn tail", INDEX], "the log ends at 25"
    ),
    "torn in the middle": Kind(
        lambda log: truncate(segment(log, 10), 3), range(15), "ends in the middle", ["not a whole entry", INDEX]
    ),
    "flipped byte": Kind(lambda log: change(segment(log, 10), -1), range(15), "CRC mismatch", ["CRC mismatch"]),
    "unknown magic": Kind(lambda log: change(segment(log, 10), 16, 9), range(10), "magic 9", ["magic 9", INDEX]),
    "unknown magic at the end": Kind(
        lambda log: change(segment(log, 20), 16, 9), range(20), "magic 9", ["magic 9", INDEX]
    ),
    "missing file": Kind(
        lambda log: segment(log, 10).unlink(), [*range(10), *range(20, 30)], note="offsets 10 to 19 are in no file"
    ),
    "wrong index": Kind(lambda log: change(segment(log, 10, ".index"), -1), faults=[INDEX]),
    "compaction that was complete": Kind(
        leave_a_compaction, [*range(10), 12, 17, *range(20, 30)], note="a compaction that had not ended"
    ),
    "compaction that was not complete": Kind(begin_a_compaction, note="a compaction that had not ended; ignored"),
    "deleted files": Kind(
        lambda log: segment(log, 0).rename(segment(log, 0, ".log.deleted")), range(10, 30), note="not yet deleted"
    ),
    "remote storage": Kind(move_to_remote_storage, range(10, 30), note="offsets 0 to 9 are not here"),
    "bad checkpoint": Kind(
        lambda log: (log.parent / "replication-offset-checkpoint").write_bytes(b"0\n1\n\xff"), note="ignored"
    ),
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The directory of a sound log."""
    files = {n: batch(range(n, n + 5)) + batch(range(n + 5, n + 10)) for n in (0, 10, 20)}
    return write_log(tmp_path / "logs" / "orders-0", files, index_every=1)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, log: Path) -> Kind:
    kind = KINDS[request.param]
    kind.damage(log)
    return kind


def until_error(offsets: Iterator[int], kind: Kind) -> list[int]:
    """The offsets, and then the error if the kind has one."""
    read: list[int] = []
    try:
        for offset in offsets:
            read.append(offset)
    except CorruptMessage as error:
        assert kind.error and kind.error in str(error)
    else:
        assert not kind.error
    return read


def test_segments_answer(log: Path, kind: Kind) -> None:
    opened = segments.open(log)
    assert until_error((int(record.position) for rows in opened for record in rows), kind) == list(kind.read)
    faults = [fault.reason for fault in opened.verify().faults]
    assert len(faults) == len(kind.faults) and all(map(str.__contains__, faults, kind.faults))
    notes = " ".join(opened.notes)
    assert kind.note in notes and bool(kind.note) == bool(notes)


def test_the_command_line_answers(log: Path, kind: Kind, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "-f", r"%o\n", str(log)]) == bool(kind.error)
    output, errors = capfd.readouterr()
    assert output.split() == list(map(str, kind.read))
    assert kind.note in errors and kind.error in errors
    assert run(["log", "--verify", "--json", str(log.parent)]) == bool(kind.faults)
    output, errors = capfd.readouterr()
    result = json.loads(output)
    assert result["ok"] == (not kind.faults) and kind.note in errors
    assert len(result["faults"]) == len(kind.faults)
    for fault, part in zip(result["faults"], kind.faults, strict=True):
        assert part in fault["reason"] and Path(fault["file"]).parent == log
    assert run(["log", "--verify", "--quiet", str(log)]) == bool(kind.faults)
    *lines, last = capfd.readouterr().out.splitlines()
    assert f": {'damaged' if kind.faults else 'ok'}, " in last and len(lines) == len(kind.faults)
    assert run(["log", "--ls", "--quiet", "--json", str(log)]) == 0


def test_tasks_of_spark_answer(log: Path, kind: Kind) -> None:
    request = parse_source({"path": str(log.parent)}, streaming=False)
    tasks = plan_all(find_logs(request), request)
    chunks = (chunk for task in tasks for chunk in read_task(task, request) if isinstance(chunk, ColumnsChunk))
    read = until_error((offset for chunk in chunks for offset in chunk.rows.positions), kind)
    assert read == list(kind.read)


def test_a_pipeline_answers(log: Path, kind: Kind, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE)
    (flow,) = execute(load(file), file.name, lambda *_: None, in_process).flows
    assert kind.error in flow.error and bool(kind.error) == bool(flow.error)
    rows = [row["offset"] for part in open_committed(load(file), "a").rows(None) for row in part.to_pylist()]
    assert sorted(rows) == ([] if kind.error else list(kind.read))


def test_a_file_of_another_program_is_refused_everywhere(
    log: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (log / "server.log").write_text("started")
    why = r"server\.log: a segment is named after its start position, and this name is not a number"
    with pytest.raises(ConfigError, match=why):
        segments.open(log)
    for options in ([], ["--ls"], ["--verify"], ["--dump"]):
        assert run(["log", *options, str(log.parent)]) == 2
        assert "server.log: a segment is named after" in capfd.readouterr().err
    request = parse_source({"path": str(log.parent)}, streaming=False)
    with pytest.raises(ConfigError, match=why):
        find_logs(request).extents()
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE)
    (flow,) = execute(load(file), file.name, lambda *_: None, in_process).flows
    assert "server.log: a segment is named after" in flow.error
