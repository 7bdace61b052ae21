"""What is known of a pipeline without running it: as much as there is, quickly, and what is not there by name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

import odradek as od
from odradek.pipeline.commits import Commit
from odradek.pipeline.committed import open_committed
from odradek.pipeline.config import load
from odradek.pipeline.flow import open_flow
from odradek.pipeline.run import execute
from odradek.pipeline.status import status
from odradek.pipeline.table import Table
from odradek.pipeline.verify import verify
from odradek.testing import Kafka07Broker

from .test_flow import numbers
from .workspace import Workspace, in_process

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


@KINDS
def test_only_the_newest_record_is_read_however_many_there_are(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Workspace(tmp_path, kind, run_lines="batch_bytes = 160")
    work.append(numbers(0, 300))
    assert len(work.run().flows[0].commits) == 30
    parsed, parse = [], Commit.from_json

    def count(*arguments: Any) -> Commit:
        parsed.append(parse(*arguments))
        return parsed[-1]

    monkeypatch.setattr(Commit, "from_json", count)
    assert open_flow(work.pipeline, "orders").waiting == 0
    assert {commit.batch for commit in parsed} == {30} and len(parsed) < 5
    parsed.clear()
    assert not work.run().flows[0].commits
    assert {commit.batch for commit in parsed} == {30}


@KINDS
def test_a_state_and_an_empty_run_take_one_look_at_each_table(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an object store each look lists the log of a table, and each search for the newest record lists it again."""
    work = Workspace(tmp_path, kind)
    work.append(numbers(0, 100))
    assert not work.run().failed
    looks: Counter[tuple[str, str]] = Counter()
    table = type(work.table)

    def count(name: str) -> None:
        method = getattr(table, name)

        def counted(self: Table) -> Any:
            looks[Path(self.options.storage.root).name, name] += 1
            return method(self)

        monkeypatch.setattr(table, name, counted)

    expected = Counter({("orders", "refresh"): 1, ("orders", "commits"): 1, ("dead", "refresh"): 1})
    count("refresh")
    count("commits")
    assert status(work.pipeline, "orders").rows == 100
    assert looks == expected
    looks.clear()
    assert not work.run().flows[0].commits
    assert looks == expected


def test_a_state_does_not_list_all_files_of_an_iceberg_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Workspace(tmp_path, "iceberg")
    work.append(numbers(0, 100))
    work.append(numbers(0, 50), topic="refunds")
    assert not work.run().failed
    table = work.table
    listed = table.files()
    expected = (len(listed), 150, sum(file.size for file in listed))
    assert table.totals() == expected and len(listed) == 2
    monkeypatch.setattr(type(table), "files", lambda self: pytest.fail("the files were listed"))
    known = status(work.pipeline, "orders")
    assert (known.files, known.rows, known.size) == expected


@pytest.mark.parametrize("counted", [{"total-records": None}, {"total-delete-files": "1"}])
def test_files_are_counted_where_a_snapshot_of_iceberg_does_not_say_how_many(
    tmp_path: Path, counted: dict[str, str | None]
) -> None:
    work = Workspace(tmp_path, "iceberg")
    work.append(numbers(0, 100))
    assert not work.run().failed
    table = work.table
    expected = table.totals()
    summary = table.loaded.current_snapshot().summary.additional_properties
    for name, value in {"total-files-size": "1", **counted}.items():
        if value is None:
            del summary[name]
        else:
            summary[name] = value
    assert table.totals() == expected and expected.size > 1


def test_a_plan_has_as_many_batches_as_the_run_makes(tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    work.append(numbers(0, 100))
    assert open_flow(work.pipeline, "orders").batches == len(work.run().flows[0].commits) == 1
    work.append(numbers(0, 10), partition=1)  # which the table does not know yet
    work.append(numbers(0, 10), topic="refunds")
    assert open_flow(work.pipeline, "orders").batches == len(work.run().flows[0].commits) == 1
    assert open_flow(work.pipeline, "orders").batches == len(work.run().flows[0].commits) == 0


def test_a_broker_that_is_away_has_no_lag_of_zero(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    flow = '[flows.orders]\ntopics = ["orders"]\n[flows.orders.sink]\npath = "table"\n'

    async def produce(url: str) -> None:
        async with od.connect(url) as k, k.producer() as out:
            (await out.send_many("orders", numbers(0, 100))).check()

    quick = {"log.flush.interval": "1"}
    with Kafka07Broker(broker_id=1, config=quick) as one, Kafka07Broker(broker_id=2, config=quick) as two:
        addresses = [f"{broker.broker_id}@{broker.address}" for broker in (one, two)]
        for address in addresses:
            anyio.run(produce, f"kafka07://{address}")
        file.write_text(f'[source]\nbrokers = "{",".join(addresses)}"\n{flow}')
        assert not execute(load(file), "", lambda *_: None, in_process).failed
        file.write_text(f'[source]\nbrokers = "{addresses[0]}"\n{flow}')
        pipeline = load(file)
        current = open_flow(pipeline, "orders")
        assert current.problems == ["no broker, and no directory, has orders/2-0 now"]
        assert [log.waiting for log in current.backlog] == [0, None]
        assert status(pipeline, "orders").problems == current.problems
        summary = execute(pipeline, "", lambda *_: None, in_process)
        assert summary.failed and tuple(current.problems) == summary.flows[0].problems
        result = verify(pipeline, open_committed(pipeline, "orders"))
        assert [(each.kind, each.where) for each in result.findings] == [("log", "orders/2-0")]
