"""The how-to pages about pipelines run as printed.

The first page is run as its reader would: by a shell, with a broker, with Spark. On the other pages tasks run in this
process, and Spark only reads.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from odradek.cli.app import run
from odradek.pipeline.config import load
from odradek.testing import Kafka07Broker
from odradek.wire.kafka07.message_set import encode_set

from ..pipeline.test_s3 import SERVER
from ..pipeline.workspace import in_process
from .child import PATHS
from .classes import spark_environ

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = Path(__file__).parents[2] / "docs" / "howto"
INSTALL = ("python3 -m venv", "pip install")
WAIT_S = 300
HOUR = 3600


def text_of(page: str) -> str:
    return (PAGES / page).read_text("utf-8")


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """The commands of a page, without those that install."""
    lines = [line.removeprefix("$ ") for block in blocks(text, "console") for line in block.splitlines()]
    return [line for line in lines if not line.startswith(INSTALL)]


# ---- the first page, by a shell ------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """The command `odradek`, where `pip install` would have put it."""
    script = tmp_path / "venv" / "bin" / "odradek"
    script.parent.mkdir(parents=True)
    own = shlex.join(
        [*(f"{name}={value}" for name, value in spark_environ().items()), f"PYTHONPATH={PATHS}", sys.executable]
    )
    script.write_text(f'#!/bin/sh\nexec env {own} -m odradek.cli "$@"\n')
    script.chmod(0o755)
    return script


@contextmanager
def broker(line: str, folder: Path) -> Iterator[str]:
    """The broker of a page, at a free port; its address."""
    arguments = shlex.split(line.replace("--port 9092", "--port 0"))[1:]
    with subprocess.Popen(
        [sys.executable, "-m", "odradek.cli", *arguments, "--until-eof"],
        cwd=folder, env={**os.environ, "PYTHONPATH": PATHS}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        address = re.search(r" at (\S+),", process.stdout.readline())
        assert address is not None
        yield address[1]
        process.stdin.close()


def shell(line: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_first_table_is_made_and_read_as_the_page_says(
    tmp_path: Path, command: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, folder = text_of("pipeline.md"), tmp_path / "me"
    folder.mkdir()
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    start, export, *lines = commands(text)
    said: dict[str, str] = {}
    with broker(start, folder) as address:
        environment["ODRADEK_CLUSTER"] = export.removeprefix("export ODRADEK_CLUSTER=").replace(
            "127.0.0.1:9092", address
        )
        first, of_today = blocks(text, "toml")
        (folder / "pipeline.toml").write_text(first.replace("127.0.0.1:9092", address))
        for line in lines:
            said[" ".join(line.split()[:3])] = shell(line, folder, environment)
        (schedule,) = blocks(text, "text")
        cron = schedule.split(maxsplit=5)[5].replace("/home/me/venv/bin/odradek", str(command))
        shell(cron.replace("/home/me", str(folder)), Path("/"), {"PATH": "/usr/bin:/bin", "HOME": str(folder)})
    assert "1 batches" in said["odradek pipeline plan"] and "done" in said["odradek pipeline run"]
    assert re.search(r"^orders +1 +1000 ", said["odradek pipeline status"], re.MULTILINE)
    assert said["odradek pipeline lag"].splitlines()[-1].split()[:3] == ["orders", "total", "0"]
    assert said["odradek pipeline verify"].splitlines()[-1].split()[-1] == "complete"
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    for block in blocks(text, "python"):
        exec(compile(block, "pipeline.md", "exec"), names)
    assert [row[1:3] for row in names["by_date"]] == [(1000, 1000)]
    assert names["users"].height == 100
    assert [row[0] for row in names["in_spark"].groupBy("date").count().collect()] != [None]
    assert names["in_spark"].count() == 1000

    for option in ("MECHANISM", "USERNAME", "PASSWORD"):
        monkeypatch.setenv(f"ODRADEK_SASL_{option}", "PLAIN")
    (folder / "today.toml").write_text(of_today + first[first.index("[flows.orders]") :])
    assert load(folder / "today.toml").unit == "records"


# ---- the other pages, in this process ------------------------------------------------------------------------


class Page:
    """Does what a page says: TOML becomes the file, or a part of it; commands and Python are run.

    Args:
        name: Of the page.
        printed: What stands on it -> what is here instead.
        before: What happens when it comes to a heading; "" is its beginning.
    """

    def __init__(self, name: str, before: Mapping[str, Callable[[], None]], printed: Mapping[str, str] = {}) -> None:
        self.name, self.before, self.text = name, dict(before), text_of(name)
        for text, here in printed.items():
            assert text in self.text
            self.text = self.text.replace(text, here)
        self.names: dict[str, Any] = {}

    def play(self) -> dict[str, Any]:
        """Return the names that its Python has bound."""
        self.before.pop("", lambda: None)()
        steps = re.finditer(r"^## ([^\n]+)$|^( *)```(\w+)\n(.*?)^ *```", self.text, re.MULTILINE | re.DOTALL)
        for heading, indent, kind, block in (step.groups() for step in steps):
            if heading is not None:
                self.before.pop(heading, lambda: None)()
            else:
                {"toml": self._toml, "console": self._console, "python": self._python}[kind](
                    re.sub(f"^{indent}", "", block, flags=re.MULTILINE)
                )
        assert not self.before
        return self.names

    def _toml(self, block: str) -> None:
        file = Path("pipeline.toml")
        if block.startswith("[source]"):
            file.write_text(block)
            return
        for table in re.split(r"^(?=\[)", block, flags=re.MULTILINE)[1:]:
            header = re.escape(table.splitlines()[0])
            section = re.compile(rf"^{header}\n(?:[^\[\n].*\n|\n)*", re.MULTILINE)
            text = file.read_text()
            match = section.search(text)
            file.write_text(text.replace(match[0], table) if match else text + table)

    def _console(self, block: str) -> None:
        for line in block.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            match words[0]:
                case "odradek":
                    assert run(words[1:]) == ("# exit code 1" in line), line
                case "export":
                    os.environ |= dict(word.split("=", 1) for word in words[1:])
                case "moto_server":
                    assert words[1:] == ["-H", "127.0.0.1", "-p", "9000"]
                case _:
                    subprocess.run(words, check=True, capture_output=True, timeout=WAIT_S)

    def _python(self, block: str) -> None:
        exec(compile(block, self.name, "exec"), self.names)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a page, in which runs need no Spark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("odradek.pipeline.run.on_spark", lambda *_: in_process())
    return tmp_path


@pytest.fixture
def store() -> Iterator[str]:
    """The address of the store of a page, at a free port."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().decode().strip()}"
        process.stdin.close()


def sent(topic: str, *values: object, to: str = "kafka-logs") -> Callable[[], None]:
    """What appends messages to a log: bytes as they are, others as JSON."""

    def send() -> None:
        folder = Path(to, f"{topic}-0")
        folder.mkdir(parents=True, exist_ok=True)
        messages = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
        with (folder / f"{0:020}.kafka").open("ab") as file:
            file.write(encode_set(messages))

    return send


def orders(first: int, count: int = 100) -> list[dict[str, Any]]:
    return [{"id": n, "user": f"u{n % 50}", "at": "2026-11-22T12:00:00Z"} for n in range(first, first + count)]


def count(path: str) -> int:
    return DeltaTable(path).to_pyarrow_dataset().count_rows()


def commits(path: str, flow: str = "orders") -> list[dict[str, Any]]:
    """The records of a flow's batches, newest first."""
    entries = (entry.get(f"odradek.{flow}") for entry in DeltaTable(path).history())
    return [json.loads(entry) for entry in entries if entry]


def test_tables_are_where_the_page_says(here: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "")  # which the page sets
    printed = {"http://127.0.0.1:9000": store}
    events = {"": sent("orders", *orders(0)), "S3": sent("orders", *orders(100)), "Small files": lambda: None}
    names = Page("tables.md", events, printed).play()
    assert names["of_one"].num_rows == 2 and len(names["users"]) == 50 and names["days"]["count"].sum() == 100
    assert names["in_delta"].num_rows == 200 and names["topics"] == [("orders", 200)]
    assert count("tables/orders") == 200
    assert [entry["operation"] for entry in DeltaTable("tables/orders").history()].count("OPTIMIZE") == 1


def test_a_pipeline_is_recovered(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    events = {"": sent("orders", *orders(0)), "Was anything lost?": sent("orders", *orders(100))}
    Page("recovery.md", events).play()
    said = capfd.readouterr().err
    assert f"there is no table, but batch 1 was written to {here}/tables/orders" in said
    assert "the table is an older version: its newest is batch 0, but batch 1" in said
    assert count("tables/orders") == 100
    assert run(["pipeline", "run", "pipeline.toml", "--quiet"]) == 0
    assert count("tables/orders") == 200


def test_rows_are_deleted_and_runs_go_on(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    events = {"": sent("orders", *orders(0)), "Afterwards": sent("orders", *orders(100))}
    names = Page("delete-rows.md", events).play()
    assert names["deleted"]["num_deleted_rows"] == 2
    assert "2 rows of batch 1 of the log are not in the table" in capfd.readouterr().out
    lake = names["catalog"].load_table("odradek.lake").scan().to_arrow()
    for rows in (DeltaTable("tables/orders").to_pyarrow_table(), lake):
        assert sorted(rows["id"].to_pylist()) == [n for n in range(200) if n not in (17, 67)]
    assert len(DeltaTable("tables/orders").file_uris()) == len(list(Path("tables/orders").glob("topic=*/**/*.parquet")))


def test_records_that_change(here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    many = [{"id": n, "name": f"n{n}"} for n in range(20)]
    events = {
        "": sent("orders", *many, {"id": 3_000_000_000, "name": "large"}),
        "Add a field": sent("orders", {"id": 20, "name": "n20", "country": "DE"}),
        "Remove or rename a field": sent("orders", {"id": 22, "customer": "c22"}),
    }
    with Kafka07Broker(here / "broker", config={"log.flush.interval": "1"}) as broker:
        monkeypatch.setenv("ODRADEK_CLUSTER", f"kafka07://{broker.broker_id}@{broker.address}")
        names = Page("schema-evolution.md", events).play()
        (sent_again,) = (here / "broker" / "orders-retry-0").glob("*.kafka")
        assert b'{"id": 3000000000, "name": "large"}' in sent_again.read_bytes()
    assert names["countries"] == [*((number, None) for number in range(20)), (20, "DE")]
    assert names["customers"][-2:] == [(20, "n20"), (22, "c22")] and names["nulls"] == [(0,)]
    assert (names["lake"].num_rows, str(names["lake"].schema.field("id").type)) == (22, "int64")
    assert names["reasons"] == [("range", "id", "int", 1)]
    assert "column id is int32 in the table, and would be int64" in capfd.readouterr().err
    assert (count("tables/orders"), count("tables/orders-2")) == (22, 23)


def test_records_that_are_late(here: Path) -> None:
    now = int(time.time()) // HOUR * HOUR
    ids = iter(range(1000))

    def at(*hours: float) -> Callable[[], None]:
        return sent("events", *({"id": next(ids), "ts": int(1000 * (now + hour * HOUR))} for hour in hours))

    events = {
        "": at(*[-1.0] * 10, *[0.0] * 10),
        "Recompute results that depend on them": lambda: None,
        "Many small files": lambda: None,
    }
    page = Page("late-data.md", events)
    late = "More records arrive, some of them late:"
    assert late in page.text
    page.text = page.text.replace(late, f"## {late}")
    page.before[late] = at(0, -1, -30)
    names = page.play()
    assert [rows for *_, rows in names["counts"]] == [1, 11, 11]
    assert count("tables/events") == 23


def test_older_data_is_added(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = orders(0)
    sent("orders", *records, to="backup/kafka-logs")()
    sent("orders", *records, *orders(100), to="kafka-logs")()
    Path("newer.toml").write_text(blocks(text_of("tables.md"), "toml")[0])
    assert run(["pipeline", "run", "newer.toml", "--quiet"]) == 0
    with Kafka07Broker(here / "broker", config={"log.flush.interval": "1"}) as broker:
        monkeypatch.setenv("ODRADEK_CLUSTER", f"kafka07://{broker.broker_id}@{broker.address}")
        names = Page("backfill.md", {}, {"/backup/kafka-logs": "backup/kafka-logs"}).play()
    assert names["both"] == [(200,)]
    again = b"".join(file.read_bytes() for file in (here / "broker").glob("orders-again-*/*.kafka"))
    assert [again.count(json.dumps(record).encode()) for record in records] == [1] * 100
