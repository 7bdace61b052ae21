"""Log directories of real brokers, read without them, against what their clients and Kafka's own tool say."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

import odradek as od
from odradek import segments
from odradek.ranges.catalog import find_logs, plan_all
from odradek.ranges.reader import ColumnsChunk, read_task
from odradek.segments import KafkaLog
from odradek.spark.options import parse_source
from odradek.testing import KafkaBroker

from . import foreign
from .dumps import Backup, Dump, compare
from .test_data import compressions_of, connect, has, read_all, send, shapes

pytestmark = [pytest.mark.anyio, pytest.mark.brokers, pytest.mark.timeout(300)]

SEGMENT_BYTES = 1 << 20
"""The least that a broker of 4.x takes."""
FORMATS = {"0.9.0": 0, "0.10.0": 1}
"""Formats that brokers from 0.11 to 2.x convert records to -> magic."""


def opened(kafka: KafkaBroker, topic: str) -> KafkaLog:
    log = segments.open(kafka.data_dir / f"{topic}-0")
    assert isinstance(log, KafkaLog)
    return log


def records(log: KafkaLog, *, read_committed: bool = False) -> list[od.Record]:
    return [record for batch in log.batches(read_committed=read_committed) for record in batch]


async def write_all(kafka: KafkaBroker, topic: str) -> None:
    """Write records with every compression; and transactions that are committed, aborted and open."""
    headers = (("a", b"1"), ("b", None)) if has(kafka, (0, 11)) else ()
    rows = [(None if n % 3 else b"k%d" % n, b"v%d" % n, headers if n % 2 else (), None) for n in range(7)]
    async with connect(kafka) as cluster:
        for compression in compressions_of(kafka):
            await send(cluster, topic, rows, compression=compression)
            await send(cluster, topic, [(b"k", None, (), None)], compression=compression)
        if not has(kafka, (0, 11)):
            return
        async with cluster.producer(transactional_id=f"{topic}-a", compression="gzip") as out:
            async with out.transaction():
                await out.send_many(topic, [b"c", b"d"], partition=0)
            with pytest.raises(KeyError):
                async with out.transaction():
                    await out.send_many(topic, [b"e", b"f"], partition=0)
                    raise KeyError
    foreign.write_transactions(kafka, topic)


async def test_files_hold_what_kafka_s_own_tool_says(
    kafka: KafkaBroker, topic: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kafka.create_topic(topic)
    await write_all(kafka, topic)
    log = opened(kafka, topic)
    dump = Dump(kafka, log)
    compare(log, dump)
    Backup(tmp_path, log, capfd).compare(log, dump)
    assert log.facts.topic_id is not None or kafka.mode == "zookeeper"
    assert bool(log.facts.leader_epochs) == has(kafka, (0, 11))


async def test_files_hold_what_consumers_get(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic, config={"segment.bytes": str(SEGMENT_BYTES)})
    large = [(b"large", random.Random(n).randbytes(30_000), (), None) for n in range(100)]
    async with connect(kafka) as cluster:
        for compression in compressions_of(kafka):
            await send(cluster, topic, shapes(kafka), compression=compression)
        await send(cluster, topic, large)
    await write_all(kafka, topic)
    async with connect(kafka) as cluster:
        everything = await read_all(cluster, topic)
        log = opened(kafka, topic)
        with anyio.fail_after(60):
            while log.high_watermark != log.end:  # brokers note it every 5 s
                await anyio.sleep(0.2)
                log = opened(kafka, topic)
        assert records(log) == everything
        if has(kafka, (0, 11)):
            assert records(log, read_committed=True) == await read_all(cluster, topic, isolation="read_committed")
        assert len(log.segments) >= 3
        for record in everything[::40] if has(kafka, (0, 10, 1)) else ():
            assert record.timestamp is not None
            positions = await cluster.positions(topic, od.AtTime(record.timestamp / 1000))
            assert log.position_at(record.timestamp) == positions[record.partition]
    ends = [0, 31, log.end // 2, log.end]
    parts = [log.batches(a, b) for a, b in pairwise(ends)]
    assert [record for part in parts for batch in part for record in batch] == everything
    result = log.verify()
    assert (result.messages, result.faults) == (len(everything), ())
    levels = {"read_uncommitted": everything, "read_committed": records(log, read_committed=True)}
    for isolation, expected in levels.items():
        assert as_ranges(log, isolation) == [(record.position, record.value) for record in expected]


def as_ranges(log: KafkaLog, isolation: str) -> list[tuple[int, bytes | None]]:
    """Offsets and values of a log as Spark's tasks and those of pipelines read it, in seven parts."""
    path, parts = str(log.segments[0].path.parent), {"minPartitions": "7", "maxPartitions": "7"}
    request = parse_source({"path": path, "kafka.isolation.level": isolation, **parts}, streaming=False)
    tasks = plan_all(find_logs(request), request)
    assert len(tasks) > 3
    chunks = [chunk for task in tasks for chunk in read_task(task, request) if isinstance(chunk, ColumnsChunk)]
    return sorted(row for chunk in chunks for row in zip(chunk.rows.positions, chunk.rows.values, strict=True))


async def test_a_file_that_is_allocated_in_advance(kafka: KafkaBroker, topic: str) -> None:
    if not has(kafka, (0, 9)):
        return  # 0.8 has no such option
    kafka.create_topic(topic, config={"preallocate": "true", "segment.bytes": str(SEGMENT_BYTES)})
    await write_all(kafka, topic)
    async with connect(kafka) as cluster:
        everything = await read_all(cluster, topic)
    log = opened(kafka, topic)
    assert log.size == SEGMENT_BYTES
    assert records(log) == everything
    assert "are zeros, which were never written" in log.notes[-1] and log.verify().faults == ()


@pytest.mark.parametrize("version", FORMATS)
async def test_records_that_a_broker_converted(
    kafka: KafkaBroker, topic: str, version: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if not has(kafka, (0, 11)) or has(kafka, (3,)):
        assert kafka.version not in ("0.11.0.3", "1.1.1", "2.8.2")  # which can
        return
    kafka.create_topic(topic, config={"message.format.version": version})
    rows = [(b"k%d" % n, b"v%d" % n, (), None) for n in range(7)]
    async with connect(kafka) as cluster:
        for compression in ("none", "gzip", "snappy", "lz4"):
            await send(cluster, topic, rows, compression=compression, acks=1)  # brokers do not convert numbered batches
        everything = await read_all(cluster, topic)
    log = opened(kafka, topic)
    assert {batch.magic for batch in log.stored_batches()} == {FORMATS[version]}
    assert records(log) == everything
    dump = Dump(kafka, log)
    compare(log, dump)
    Backup(tmp_path, log, capfd).compare(log, dump)


async def test_a_compacted_log_of_a_broker_that_stopped(kafka: KafkaBroker, topic: str) -> None:
    config = {"log.cleaner.backoff.ms": "100", "log.cleaner.enable": "true"}
    policy = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    with KafkaBroker(kafka.version, mode=kafka.mode, config=config) as broker:
        broker.create_topic(topic, config=policy)
        async with connect(broker) as cluster:
            with anyio.fail_after(120):
                while True:
                    await send(cluster, topic, [(b"k%d" % (n % 3), b"%d" % n, (), None) for n in range(50)])
                    everything = await read_all(cluster, topic)
                    if everything[-1].position >= len(everything):
                        break
                    await anyio.sleep(0.2)  # segments are rolled by their age
        broker.terminate()
        log = opened(broker, topic)
        read = records(log)
        assert len(read) < log.end == everything[-1].next_position
        assert {r.key: r.value for r in read} == {r.key: r.value for r in everything}
        assert log.verify().faults == ()
        assert 0 < (log.facts.cleaned or 0) <= log.end and not any("in no file" in note for note in log.notes)
        assert (log.high_watermark, log.facts.recovery_point) == (log.end, log.end)
        stored = log.snapshot()
        assert (stored is not None) == has(kafka, (0, 11))
        if stored is not None:
            last = {state.producer_id: state for state in log.producers}
            assert stored[0] == log.end
            both = [(state, last[state.producer_id]) for state in stored[1] if state.producer_id in last]
            assert both and all(mine == theirs for mine, theirs in both)
