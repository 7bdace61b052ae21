"""A real broker of today for the commands, and what is written to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from odradek.cli.app import run
from odradek.testing import KafkaBroker

from ..conftest import Command

Run = Callable[..., tuple[int, str, str]]
Put = Callable[..., tuple[str, str]]


@pytest.fixture
def default_broker(odradek_kafka: KafkaBroker) -> KafkaBroker:
    """The broker that commands use without an option."""
    return odradek_kafka


@pytest.fixture
def cluster(default_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"kafka://{default_broker.bootstrap}"
    monkeypatch.setenv("ODRADEK_CLUSTER", url)
    return url


@pytest.fixture
def call(cluster: str, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command; return its exit code, what it printed, and its errors."""

    def command(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(arguments)
        return code, *capfd.readouterr()

    return command


@pytest.fixture
def odradek(call: Run) -> Command:
    """Run a command that must exit with `code`; return its output."""

    def command(*arguments: str, code: int = 0) -> str:
        ended, output, errors = call(*arguments)
        assert ended == code, errors
        return output

    return command


@pytest.fixture
def put(call: Run, tmp_path: Path) -> Put:
    """Run `odradek put` with a file of these bytes; return its standard output and its errors."""
    file = tmp_path / "messages"

    def write(topic: str, data: bytes, *arguments: str, code: int = 0) -> tuple[str, str]:
        file.write_bytes(data)
        ended, output, errors = call("put", topic, str(file), *arguments)
        assert ended == code, errors
        return output, errors

    return write


@pytest.fixture
def created(odradek: Command, topic: str) -> str:
    """A topic with two partitions, whose messages may be of any time."""
    odradek("topic", "create", topic, "--partitions", "2", "--replicas", "1", "-c", "retention.ms=-1")
    return topic
