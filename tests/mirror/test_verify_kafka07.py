"""Verify of a mirror of a Kafka 0.7: compressed messages, whose messages share a position; no keys, no timestamps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.loops import ASYNCIO, on
from tests.mirror.mirrors import topic_id_of, url_of
from tests.mirror.verifying import FILE

import odradek
from odradek.client.cluster import Cluster
from odradek.core.interfaces import ProducerRecord
from odradek.mirror import verify_partition
from odradek.mirror.config import ClusterConfig, MirrorConfig, load
from odradek.mirror.run import run
from odradek.mirror.sources import ClusterSource
from odradek.mirror.stored import (
    CopiedTopic,
    CopyProgress,
    CopyTarget,
    IndexEntry,
    MirrorIdentity,
    Progress,
    Run,
    SourcePosition,
    Stored,
    stored_records,
)
from odradek.mirror.verify import VerifiedPartition, verify
from odradek.testing import Kafka07Broker, MemoryCluster
from odradek.types import Record, TopicPartition

pytestmark = pytest.mark.anyio
anyio_backend = on(ASYNCIO)

TARGET = "kafka://target:9092"
VALUES = [b"%d" % number for number in range(20)]


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka07Broker]:
    with Kafka07Broker(config={"log.flush.interval": "1"}) as running:
        yield running


@pytest.fixture
def target() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def config(
    broker: Kafka07Broker, target: MemoryCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> MirrorConfig:
    """A mirror of a topic of the test's own."""
    connect = ClusterConfig.connect

    def connected(config: ClusterConfig, _: object = None) -> Cluster:
        return target.connect() if config.url == TARGET else connect(config)

    monkeypatch.setattr(ClusterConfig, "connect", connected)
    monkeypatch.setattr(ClusterSource, "identity", url_of)
    monkeypatch.setattr(verify_partition, "CHUNK_RECORDS", 1)
    text = FILE.format(topics="").replace("kafka://source:9092", _url(broker)).replace("orders", tmp_path.name)
    (tmp_path / "mirror.toml").write_text(text)
    return load(tmp_path / "mirror.toml")


def _url(broker: Kafka07Broker) -> str:
    return f"kafka07://1@{broker.host}:{broker.port}"


@pytest.fixture
async def written(broker: Kafka07Broker, config: MirrorConfig) -> list[Record]:
    """Two compressed messages of ten messages each, as they are read."""
    [topic] = config.topics.include
    async with odradek.connect(_url(broker)) as k:
        for start in (0, 10):
            async with k.producer(compression="gzip") as out:
                (await out.send_many(topic, VALUES[start : start + 10])).check()
        async with k.reader(topic) as reader:  # which gets them once the broker has flushed them
            with anyio.fail_after(60):
                return [await anext(reader) for _ in VALUES]


async def test_what_a_run_has_copied_is_equal(config: MirrorConfig, written: list[Record]) -> None:
    await run(config)
    [partition] = (await verify(config)).partitions
    assert partition.equal and partition.source.broker == 1
    assert (partition.source_records, partition.target_records) == (20, 20)


def _copied(target: MemoryCluster, config: MirrorConfig, written: list[Record], cuts: list[int]) -> TopicPartition:
    """Write by hand what transactions that end at these records would have copied."""
    [topic] = config.topics.include
    source = written[0].partition
    target.create_topic(topic)
    target.create_topic(config.topic)
    target.append(topic, [ProducerRecord(record.value) for record in written])
    bounds = list(zip([0, *cuts], [*cuts, len(written)], strict=True))
    entries = [
        IndexEntry(source, (Run(written[start].position, written[start].inner_index, start, stop - start),))
        for start, stop in bounds
    ]
    progress = CopyProgress(SourcePosition(written[-1].next_position), len(written), len(written))
    stored: list[Stored] = [
        MirrorIdentity(config.source.url, TARGET),
        CopiedTopic(topic, topic, topic_id_of(target, topic), {source: CopyTarget(0, 0)}),
        *entries,
        Progress(0, {source: progress}),
    ]
    target.append(config.topic, [ProducerRecord(value, key) for key, value in stored_records(stored)])
    return TopicPartition(topic, 0)


async def test_a_difference_within_a_compressed_message_is_found(
    config: MirrorConfig, written: list[Record], target: MemoryCluster
) -> None:
    on_target = _copied(target, config, written, [3, 13, 17])
    [partition] = (await verify(config)).partitions
    assert partition.equal and partition.source_records == 20
    target.truncate_log(on_target, 15)
    target.append(on_target.topic, [ProducerRecord(b"other"), *(ProducerRecord(value) for value in VALUES[16:])])
    difference = (await verify(config)).partitions[0].difference
    assert difference is not None and (difference.kind, difference.index, difference.offset) == ("value", 2, 15)
    assert (difference.position, difference.inner) == (written[15].position, 5)


@pytest.mark.parametrize("after", [1, 2, 3])
async def test_an_interrupted_comparison_goes_on_within_a_compressed_message(
    config: MirrorConfig, written: list[Record], target: MemoryCluster, tmp_path: Path, after: int
) -> None:
    _copied(target, config, written, [3, 13, 17])
    seen: list[int] = []

    def interrupt(partition: VerifiedPartition) -> None:
        seen.append(partition.source_records)
        if len(seen) == after:
            raise InterruptedError

    with pytest.raises(ExceptionGroup):
        await verify(config, state=tmp_path / "state", progress=interrupt)
    [partition] = (await verify(config, state=tmp_path / "state")).partitions
    assert partition.equal
    assert (seen[-1], partition.source_records, partition.compared) == ([3, 13, 17][after - 1], 20, 20)
