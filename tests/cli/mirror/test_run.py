"""`odradek mirror plan` and `odradek mirror run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.cli.app import run
from odradek.testing import KafkaBroker

from ..conftest import Command, Put, jsons


@pytest.fixture
def copied(odradek_kafka: KafkaBroker, topic: str, capfd: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Return the values on the target."""

    def values() -> list[str]:
        assert run(["cat", "--cluster", f"kafka://{odradek_kafka.bootstrap}", topic]) == 0
        return capfd.readouterr().out.split()

    return values


def test_a_run_copies_what_is_there_and_the_next_what_has_come(
    odradek: Command, put: Put, topic: str, file: str, copied: Callable[[], list[str]]
) -> None:
    put(topic, b"one\ntwo\n", "-p", "7-1")
    first, second = jsons(odradek("mirror", "plan", file, "--json"))
    assert first == {
        "topic": topic, "partition": "7-0", "to": topic, "to_partition": 0, "task": 0, "target": "will be made"
    }  # fmt: skip
    assert (second["partition"], second["to_partition"], second["task"]) == ("7-1", 1, 1)
    assert jsons(odradek("mirror", "run", file, "--json")) == [{"topic": topic, "records": 2}]
    assert copied() == ["one", "two"]
    assert jsons(odradek("mirror", "plan", file, "--json"))[0]["target"] == "exists"
    put(topic, b"three\n", "-p", "7-1")
    assert odradek("mirror", "run", file).split() == ["topic", "records", topic, "1"]
    assert jsons(odradek("mirror", "run", file, "--json", "--processes", "1")) == []
    assert copied() == ["one", "two", "three"]


def test_a_refusal_names_the_reason(
    put: Put, topic: str, file: str, capfd: pytest.CaptureFixture[str], copied: Callable[[], list[str]]
) -> None:
    put(topic, b"one\n")
    path = Path(file)
    path.write_text(path.read_text().replace("include = [", 'include = ["no-such-topic", '))
    for verb in ("plan", "run"):
        assert run(["mirror", verb, file]) == 2
        assert capfd.readouterr().err == "odradek: topics.include: the source has no topic 'no-such-topic'\n"
    path.write_text(path.read_text().replace("name =", "nmae ="))
    assert run(["mirror", "run", file]) == 2
    assert f"{file}:2: nmae: unknown key" in capfd.readouterr().err


def test_options_of_spark_need_spark(file: str, capfd: pytest.CaptureFixture[str]) -> None:
    for option in (["--master", "local[2]"], ["--conf", "spark.executor.memory=1g"]):
        assert run(["mirror", "run", file, *option]) == 2
        assert "--master and --conf need --spark" in capfd.readouterr().err
