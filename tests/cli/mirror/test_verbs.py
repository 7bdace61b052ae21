"""The way from an old cluster to a new one, by the verbs of `odradek mirror`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.cli.app import run
from odradek.testing import KafkaBroker

from ..conftest import Command, Put, jsons

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def mirror(file: str, capfd: pytest.CaptureFixture[str]) -> Call:
    """Run a verb of `odradek mirror` with the file; return its exit code, and what it printed."""

    def verb(name: str, *options: str) -> tuple[int, str]:
        capfd.readouterr()
        code = run(["mirror", name, file, *options])
        return code, capfd.readouterr().out

    return verb


def test_a_topic_and_its_group_move(
    odradek: Command, put: Put, topic: str, mirror: Call, odradek_kafka: KafkaBroker, file: str, tmp_path: Path
) -> None:
    target = f"kafka://{odradek_kafka.bootstrap}"
    group = f"g-{topic}"
    Path(file).write_text(f'{Path(file).read_text()}\n[groups]\ninclude = ["{group}"]\n')
    put(topic, b"one\ntwo\nthree\n", "-p", "7-0")
    assert odradek("cat", topic, "-G", group, "-c", "1") == "one\n"

    code, printed = mirror("cutover", "--first", "consumers", "--quiet-seconds", "0")
    assert code == 1 and "MISSING  everything is copied: nothing was copied yet" in printed
    assert mirror("status") == (
        1,
        "topic  partition  to  to_partition  records  position  end  lag  lag_seconds  committed\n",
    )
    assert mirror("run", "--quiet") == (0, "")
    code, printed = mirror("status", "--json")
    first = json.loads(printed.splitlines()[0])
    assert code == 0 and (first["records"], first["lag"]) == (3, 0)

    page = tmp_path / "verify.html"
    code, printed = mirror("verify", "--page", str(page))
    assert code == 0 and printed.count("equal") == 2
    assert topic in page.read_text("utf-8")

    code, printed = mirror("groups", "--json")
    [position] = [row for row in jsons(printed) if row["partition"] == "7-0"]
    assert (position["offset"], position["match"], position["decision"]) == (1, "exact", "write")
    code, printed = mirror("cutover", "--first", "consumers", "--quiet-seconds", "0")
    assert code == 1 and "odradek mirror groups --apply" in printed
    assert mirror("groups", "--apply")[0] == 0
    assert mirror("cutover", "--first", "producers", "--quiet-seconds", "0")[0] == 0
    assert odradek("cat", "--cluster", target, topic, "-G", group, "-c", "2") == "two\nthree\n"

    code, printed = mirror("cutover", "--first", "consumers", "--quiet-seconds", "0", "--apply")
    assert code == 0 and printed.splitlines()[-1].startswith("done: the mirror is finished")
    assert mirror("run")[0] == 2


def test_a_difference_is_printed(
    odradek: Command, put: Put, topic: str, mirror: Call, odradek_kafka: KafkaBroker, tmp_path: Path
) -> None:
    put(topic, b"one\n", "-p", "7-0")
    assert mirror("run", "--quiet")[0] == 0
    line = tmp_path / "line"
    line.write_bytes(b"foreign\n")
    odradek("put", "--cluster", f"kafka://{odradek_kafka.bootstrap}", topic, str(line), "-p", "0")
    put(topic, b"two\n", "-p", "7-0")
    assert mirror("run", "--quiet")[0] == 0
    code, printed = mirror("verify")
    assert code == 1 and f"{topic}/7-0: extra: " in printed and "DIFFERENT" in printed
    assert [row["equal"] for row in jsons(mirror("verify", "--json")[1])] == [False, True]
