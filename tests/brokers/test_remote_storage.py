"""What a real broker leaves on its disk of a topic whose older files are in remote storage (KIP-405)."""

from __future__ import annotations

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
from odradek.testing.jars import maven_jars
from odradek.testing.kafka.releases import NEWEST

from .test_data import connect, read_all, send

pytestmark = [pytest.mark.anyio, pytest.mark.brokers, pytest.mark.timeout(300)]

STORAGE = f"org.apache.kafka:kafka-storage:{NEWEST}:test"
"""The jar of Kafka's own tests, which has a remote storage in a directory."""
SEGMENT_BYTES = 1 << 20
RECORDS = 60


def remote_storage(directory: Path) -> dict[str, str]:
    """Properties of a broker that has its remote storage in a directory, and moves files soon."""
    (jar,) = maven_jars((STORAGE,), transitive=False)
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "remote.log.storage.manager.class.path": str(jar),
        "rsm.config.dir": str(directory),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "remote.log.manager.task.interval.ms": "500",
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "100",
    }


def names_of_logs(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("*.log")]


async def test_what_is_left_here_is_read_and_what_was_moved_is_named(topic: str, tmp_path: Path) -> None:
    policy = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES), "local.retention.bytes": "1"}
    with KafkaBroker(NEWEST, config=remote_storage(tmp_path)) as broker:
        broker.create_topic(topic, config=policy)
        here = broker.data_dir / f"{topic}-0"
        async with connect(broker) as cluster:
            for n in range(RECORDS):
                await send(cluster, topic, [(b"%d" % n, bytes(100_000), (), None)])
            with anyio.fail_after(60):
                while len(names_of_logs(here)) > 1:  # noqa: ASYNC110 - files are taken away some time later
                    await anyio.sleep(0.2)
            everything = await read_all(cluster, topic)
            earliest = await cluster.positions(topic, od.EARLIEST)
        assert [record.position for record in everything] == list(range(RECORDS))
        assert set(earliest.values()) == {0}
        broker.terminate()
        moved = sorted(int(name[:20]) for name in names_of_logs(tmp_path))
        log = segments.open(here)
        assert isinstance(log, KafkaLog)
        first = int(log.segments[0].start)
        assert len(moved) > 2 and moved[-1] < first <= log.start < log.end == RECORDS
        assert [record for batch in log for record in batch] == everything[first:]
        assert (log.facts.log_start, log.extent(), log.verify().faults) == (0, (first, RECORDS), ())
        assert f"offsets 0 to {first - 1} are not here" in log.notes[0] and "remote storage" in log.notes[0]
        request = parse_source({"path": str(broker.data_dir), "subscribe": topic}, streaming=False)
        tasks = plan_all(find_logs(request), request)
        chunks = [chunk for task in tasks for chunk in read_task(task, request) if isinstance(chunk, ColumnsChunk)]
        assert sorted(n for chunk in chunks for n in chunk.rows.positions) == list(range(first, RECORDS))
