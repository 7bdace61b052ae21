"""The pages about records that change and records that are late run as printed, from top to bottom."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import odradek.pipeline.run as module
from odradek.cli.app import run
from odradek.pipeline.ledger import Ledger
from odradek.testing import Kafka07Broker
from odradek.wire.kafka07.message_set import encode_set

from .made import append, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = Path(__file__).parents[2] / "docs" / "howto"
HOUR = 3600


@pytest.fixture(autouse=True)
def one_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`run` uses the session of the tests, instead of starting and stopping one."""

    def run_here(pipeline: Any, file: str, watch: Any, **_: Any) -> Any:
        return module.execute(pipeline, file, watch, lambda flows: module.run_flows(flows, spark))

    monkeypatch.setattr(module, "run", run_here)
    monkeypatch.chdir(tmp_path)


class Page:
    """Does what a page says: TOML becomes the file, or part of it; commands and Python are run.

    Args:
        name: Of the page.
        source: In place of the cluster that it names.
        before: What happens when it comes to a heading.
    """

    def __init__(self, name: str, source: str, before: Mapping[str, Callable[[], None]]) -> None:
        self.text = (PAGES / name).read_text("utf-8")
        self.source, self.before = source, dict(before)
        self.names: dict[str, Any] = {}

    def play(self) -> dict[str, Any]:
        """Returns the names that its Python has bound."""
        steps = re.finditer(r"^## ([^\n]+)$|^```(\w+)\n(.*?)^```", self.text, re.MULTILINE | re.DOTALL)
        for heading, kind, block in (step.groups() for step in steps):
            if heading is not None:
                self.before.pop(heading, lambda: None)()
            else:
                {"toml": self._toml, "console": self._console, "python": self._python}[kind](block)
        assert not self.before
        return self.names

    def _toml(self, block: str) -> None:
        file = Path("pipeline.toml")
        if "[source]" in block:
            file.write_text(block.replace('zookeeper = "localhost:2181/kafka"', self.source))
            return
        for table in re.split(r"^(?=\[)", block, flags=re.MULTILINE)[1:]:
            header = re.escape(table.splitlines()[0])
            section = re.compile(rf"^{header}\n(?:[^\[\n].*\n|\n)*", re.MULTILINE)
            text = file.read_text()
            match = section.search(text)
            file.write_text(text.replace(match[0], table) if match else text + table)

    def _console(self, block: str) -> None:
        for line in block.splitlines():
            arguments = shlex.split(line, comments=True)[2:]
            assert run(arguments) == ("# exit code 1" in line), line

    def _python(self, block: str) -> None:
        exec(compile(block, "page", "exec"), self.names)


@pytest.mark.slow
def test_records_that_change(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs = tmp_path / "logs"
    with Kafka07Broker(logs, broker_id=1, config={"log.flush.interval": "1"}) as broker:

        def sent(*records: object) -> Callable[[], None]:
            return lambda: append(broker, "orders", [json.dumps(record).encode() for record in records])

        many: list[object] = [{"id": number, "name": f"n{number}"} for number in range(20)]
        sent(*many, {"id": 3_000_000_000, "name": "large"})()
        events = {
            "Add a field": sent({"id": 20, "name": "n20", "country": "DE"}),
            "Widen a type": sent({"id": 3_000_000_001, "name": "larger", "country": "FR"}),
            "Remove or rename a field": sent({"id": 22, "customer": "c22"}),
            "What is refused": sent({"id": "A-17", "customer": "c"}, *[{"id": 30, "customer": "c"}] * 20),
        }
        names = Page("schema-evolution.md", f'brokers = "1@{broker.address}"', events).play()
        again = "pipeline replay pipeline.toml --flow orders --dead --batch :1 --topic orders-retry --apply"
        assert run(again.split()) == 0
    out, said = capfd.readouterr()
    assert "orders: 1 dead letters of 2 batches" in out and "1 confirmed, 0 of them now" in out
    assert names["by_duckdb"] == [*((number, None) for number in range(20)), (20, "DE")]
    assert names["by_pyarrow"]["country"].to_pylist() == [*[None] * 20, "DE"]
    assert [row.country for row in names["by_spark"].orderBy("id").collect()][-1] == "FR"
    assert names["customers"][-2:] == [(22, "c22"), (3_000_000_001, "larger")] and names["nulls"] == [(0,)]
    assert re.search(r"pipeline.toml:\d+: flows.orders.decode.fields: id is bigint in the table, and cannot", said)
    files = Ledger("tables/orders", "orders").files()
    assert sum(file.rows for file in files if file.partition["topic"] == "orders-retry") == 1
    assert [columns for _, columns in names["history"]][:2] == [
        {"id": "int", "name": "string"}, {"id": "int", "name": "string", "country": "string"}
    ]  # fmt: skip
    assert Ledger("tables/orders-2", "orders-2").entries()[0].rows > 0


@pytest.mark.slow
def test_records_that_are_late(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    now = int(time.time()) // HOUR * HOUR
    logs: list[bytes] = []

    def sent(*hours: float) -> Callable[[], None]:
        def send() -> None:
            first = sum(map(len, logs))
            records = [{"id": first + n, "ts": int(1000 * (now + hour * HOUR))} for n, hour in enumerate(hours)]
            logs.append(encode_set([json.dumps(record).encode() for record in records]))
            write_log(tmp_path / "logs", "events", 0, b"".join(logs))

        return send

    sent(*[-1.0] * 10, *[0.0] * 10)()
    ages = -now / HOUR
    events = {
        "Late rows are new files in old directories": sent(0, -1, -30),
        "Impossible times": sent(*[0] * 30, ages, 24 * 365 * 200),
    }
    names = Page("late-data.md", f'logs = ["1@{tmp_path}/logs"]', events).play()
    assert len(names["changed"]) == 3
    assert [count for *_, count in names["counts"]] == [1, 11, 11]
    entries = Ledger("tables/events", "events").entries()
    assert [entry.kind for entry in entries] == ["append", "append", "replace", "append"]
    assert sum(count for bucket, count in names["records"].items() if bucket >= now) == 41
    assert entries[-1].reasons == {
        "time too long before it was read": 1, "time too long after it was read": 1
    }  # fmt: skip
    listed = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert {tuple(each["partition"].values()) for each in listed} >= names["changed"]
