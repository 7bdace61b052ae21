"""Rows of a table go back to topics: all, in order, and no more than once where nothing fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import anyio
import pytest
from click.testing import CliRunner

import odradek as od
from odradek.cli.app import cli
from odradek.errors import ConfigError
from odradek.pipeline import replay as module
from odradek.pipeline.committed import open_committed
from odradek.pipeline.replay import Replay, ReplayProgress, replay
from odradek.testing import Kafka07Broker, KafkaBroker
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

from ..brokers import foreign
from .test_flow import corrupted
from .test_kafka import KafkaWorkspace
from .workspace import Workspace

pytestmark = pytest.mark.anyio

FIRST = [b"%03d" % number for number in range(300)]
SECOND = [b"other %02d" % number for number in range(30)]


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough here: producers and readers are tested with all of them elsewhere."""
    return "asyncio"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka07Broker]:
    keys = {"log.flush.interval": "1", "num.partitions": "2"}
    with Kafka07Broker(tmp_path_factory.mktemp("target"), config=keys) as broker:
        yield broker


@pytest.fixture
def url(broker: Kafka07Broker) -> str:
    return f"kafka07://1@{broker.address}"


def made(root: Path, **more: str) -> Workspace:
    work = Workspace(root, **more)
    work.append(FIRST[:50])
    work.append(SECOND, partition=1)
    assert not work.run().failed
    work.append(encode_set(FIRST[50:100], CompressionType.GZIP))  # one position, and an index for each
    work.append(FIRST[100:])
    assert not work.run().failed
    return work


def planned(work: Workspace, topic: str | None = None, **more: object) -> Replay:
    table = open_committed(work.pipeline, "orders")
    return Replay(table, table.batches, topic=topic or f"back{uuid4().hex[:8]}", **more)  # type: ignore[arg-type]


async def send(plan: Replay, url: str, state: Path) -> int:
    async with od.connect(url) as k:
        return await replay(plan, k, ReplayProgress.load(state, plan.identity), lambda rows: None)


async def received(url: str, topic: str | None) -> list[list[bytes | None]]:
    """Return the values of each partition."""
    values: dict[str, list[bytes | None]] = {}
    async with od.connect(url) as k, k.reader(topic or "", until=od.LATEST) as reader:
        async for record in reader:
            values.setdefault(record.partition.name, []).append(record.value)
    return list(values.values())


@pytest.mark.parametrize("rows", [7, 1000])
async def test_all_rows_come_in_the_order_of_their_logs(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(module, "STEP_ROWS", rows)
    plan = planned(made(tmp_path))
    assert plan.rows == 330 and await send(plan, url, tmp_path / "state") == 330
    partitions = await received(url, plan.topic)
    assert sum(map(len, partitions)) == 330
    for wanted in (FIRST, SECOND):
        (holder,) = [values for values in partitions if wanted[0] in values]
        assert [value for value in holder if value in set(wanted)] == wanted


async def test_a_replay_that_ended_sends_nothing_again(tmp_path: Path, url: str) -> None:
    plan = planned(made(tmp_path))
    assert [await send(plan, url, tmp_path / "state") for _ in range(2)] == [330, 0]


async def test_a_replay_that_failed_continues(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_BYTES", 100)
    plan, state, confirmed = planned(made(tmp_path)), tmp_path / "state", 0

    class Enough(Exception):
        pass

    def count(rows: int) -> None:
        nonlocal confirmed
        confirmed += rows
        if confirmed > 100:
            raise Enough

    async with od.connect(url) as k:
        with pytest.raises(Enough):
            await replay(plan, k, ReplayProgress.load(state, plan.identity), count)
    assert confirmed < 200
    assert await send(plan, url, state) == 330 - confirmed
    assert sorted(value or b"" for values in await received(url, plan.topic) for value in values) == FIRST + SECOND


async def test_dead_letters_are_sent_as_they_were(tmp_path: Path, url: str) -> None:
    work = Workspace(tmp_path, more='corrupt = "dead"', run_lines="max_error_percent = 50")
    work.append(FIRST[:10])
    work.append(corrupted(FIRST[10:11]))
    assert not work.run().failed
    plan = planned(work, dead=True)
    assert plan.rows == 1 and await send(plan, url, tmp_path / "state") == 1
    ((value,),) = await received(url, plan.topic)
    assert value == corrupted(FIRST[10:11])


async def test_keys_and_headers_go_along(odradek_kafka: KafkaBroker, tmp_path: Path) -> None:
    work = KafkaWorkspace(tmp_path, odradek_kafka)
    records = [(b"key", b"value", [("h", b"1")], None), (None, b"plain", [], None)]
    foreign.produce("librdkafka", odradek_kafka, work.topic, records, ["none"])
    assert work.run().error == ""
    table = open_committed(work.pipeline, "a")
    topic = f"back{uuid4().hex[:8]}"
    odradek_kafka.create_topic(topic, 2)
    plan = Replay(table, table.batches, topic=topic)
    url = f"kafka://{odradek_kafka.bootstrap}"
    assert await send(plan, url, tmp_path / topic) == 2
    async with od.connect(url) as k, k.reader(topic, until=od.LATEST) as reader:
        sent = [(record.key, record.value, list(record.headers)) async for record in reader]
    assert sorted(sent, key=str) == [(None, b"plain", []), (b"key", b"value", [("h", b"1")])]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    table = open_committed(made(tmp_path).pipeline, "orders")
    with pytest.raises(ConfigError, match="there is no column 'id'; there are "):
        Replay(table, table.batches, value="id")
    with pytest.raises(ConfigError, match="none of the requested batches"):
        Replay(table, [])
    with pytest.raises(ConfigError, match="no dead letters"):
        Replay(replace(table, dead=None), table.batches, dead=True)
    plan, state = Replay(table, table.batches), tmp_path / "state"
    ReplayProgress(state, "another").save()
    with pytest.raises(ConfigError, match="belongs to another replay"):
        ReplayProgress.load(state, plan.identity)
    state.write_text("{}")
    with pytest.raises(ConfigError, match="not a progress file"):
        ReplayProgress.load(state, plan.identity)


def test_the_verb_sends_nothing_without_apply_and_each_row_once(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ODRADEK_CLUSTER", raising=False)
    work, topic = made(tmp_path), f"back{uuid4().hex[:8]}"

    def verb(*options: str) -> str:
        command = ["pipeline", "replay", str(tmp_path / "pipeline.toml"), "--topic", topic, *options]
        shown = CliRunner().invoke(cli, command, standalone_mode=False)
        assert shown.return_value == 0, shown.exception or shown.output
        return shown.output

    assert verb("--cluster", url).startswith(f"orders: 330 rows of 2 batches to {topic}\n0 confirmed")
    result = json.loads(verb("--cluster", url, "--batch", "1", "--apply", "--json"))
    assert (result["rows"], result["sent"], result["confirmed"], result["ended"]) == (80, 80, 80, True)
    assert Path(result["state"]).parent == Path(work.pipeline.run.state) / "replay"
    assert "0 of them now" in verb("--cluster", url, "--batch", "1", "--apply")
    assert sum(map(len, anyio.run(received, url, topic))) == 80


def test_rows_do_not_go_back_to_the_topics_that_the_pipeline_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ODRADEK_CLUSTER", raising=False)
    made(tmp_path)
    file = tmp_path / "pipeline.toml"
    command = ["pipeline", "replay", str(file)]
    assert "name the target" in CliRunner().invoke(cli, [*command, "--topic", "back"]).output
    file.write_text(file.read_text().replace('logs = ["1@logs"]', 'brokers = "1@127.0.0.1:1"'))
    assert "back to the topics that the pipeline reads" in CliRunner().invoke(cli, command).output
