"""Copying to a real broker: from the embedded one of 0.7, and within what only real brokers refuse."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

import odradek as od
from odradek.client.options import Compression
from odradek.core.admin import ConfigSource
from odradek.core.interfaces import ProducerRecord
from odradek.mirror.clusters import Clusters, open_clusters
from odradek.mirror.config import load
from odradek.mirror.errors import RecordRefused
from odradek.mirror.planning import MirrorRefused
from odradek.mirror.run import plan, run, run_open
from odradek.mirror.sources import ClusterSource
from odradek.mirror.status import status
from odradek.mirror.verify import verify
from odradek.testing import Kafka07Broker, KafkaBroker, MemoryCluster
from odradek.types import Record

from ..ended_transactions import transactions_ended
from ..loops import ASYNCIO, on
from ..topic_configs import alter_topic
from .mirrors import config_of, copied

pytestmark = pytest.mark.anyio
anyio_backend = on(ASYNCIO)


def written(folder: Path, name: str, source: str, kafka: KafkaBroker, more: str = "") -> Path:
    """Write the file of a mirror; all topics of a test begin with the mirror's name."""
    file = folder / "mirror.toml"
    file.write_text(
        f"""name = "{name}"
source = {{url = "{source}"}}
target = {{url = "kafka://{kafka.bootstrap}"}}
{more}
"""
    )
    return file


async def stored(kafka: KafkaBroker, topic: str) -> list[Record]:
    async with od.connect(f"kafka://{kafka.bootstrap}") as k:
        await transactions_ended(k, topic)
        async with k.reader(topic, until=od.LATEST, isolation="read_committed") as reader:
            return [record async for record in reader]


async def topics(kafka: KafkaBroker) -> frozenset[str]:
    async with od.connect(f"kafka://{kafka.bootstrap}") as k:
        return await k.topics()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy"])
async def test_from_07(compression: Compression, tmp_path: Path, kafka: KafkaBroker, name: str) -> None:
    topic, keys = f"{name}.t", {"num.partitions": "2"}
    with Kafka07Broker(config=keys) as old:
        source = f"kafka07://1@{old.host}:{old.port}"
        more = f'[topics]\ninclude = ["{topic}"]\n[run]\ntransaction_bytes = 200\ntasks = 1\n'
        config = load(written(tmp_path, name, source, kafka, more))
        async with od.connect(source) as k:
            async with k.producer(compression=compression, latency=0.05) as out:
                for number in range(2):
                    values = [b"%d %d" % (number, n) for n in range(300)]
                    (await out.send_many(topic, values, partition=od.TopicPartition(topic, number, 1))).check()
            old.flush()
            first = await run(config)
            assert copied(first) == 600
            assert copied(await run(config)) == 0
            async with k.producer(compression=compression) as out:
                await out.send(topic, b"0 last", partition=od.TopicPartition(topic, 0, 1))
            old.flush()
            assert copied(await run(config)) == 1
        now = await status(config)
    assert (now.unit, now.lag) == ("bytes", 0)
    assert [each.records for each in now.partitions] == [301, 300]
    records = await stored(kafka, topic)
    for number in range(2):
        wanted = [b"%d %d" % (number, n) for n in range(300)] + [b"0 last"] * (number == 0)
        assert [record.value for record in records if record.partition.partition == number] == wanted


async def test_a_cluster_is_not_mirrored_to_itself(tmp_path: Path, kafka: KafkaBroker, name: str) -> None:
    async with od.connect(f"kafka://{kafka.bootstrap}") as k:
        (await k.admin.create_topics(name, partitions=1)).check()
    before = await topics(kafka)
    more = f'[topics]\ninclude = ["{name}"]\ntarget = "new.{{topic}}"\n'
    config = load(written(tmp_path, name, f"kafka://localhost:{kafka.port}", kafka, more))
    for call in (plan, run):
        with pytest.raises(MirrorRefused, match="are the same cluster"):
            await call(config)
    assert await topics(kafka) == before


async def test_a_record_that_is_too_large_for_the_target(tmp_path: Path, kafka: KafkaBroker, name: str) -> None:
    topic = f"{name}.t"
    with Kafka07Broker() as old:
        source = f"kafka07://1@{old.host}:{old.port}"
        async with od.connect(source) as k, k.producer() as out:
            await out.send_many(topic, [b"small", b"." * 5000, b"small"])
        old.flush()
        config = load(written(tmp_path, name, source, kafka, f'[topics]\ninclude = ["{topic}"]\n'))
        async with open_clusters(config) as clusters:
            limits = {"max.message.bytes": "1000"}
            (await clusters.target.admin.create_topics({topic: 1}, config=limits)).check()
        with pytest.raises(RecordRefused) as raised:
            await run(config)
        assert str(raised.value).startswith(f"the record of {topic}/1-0 at 15: the target does not take it: ")
        assert str(raised.value).endswith(f"(raise max.message.bytes of topic {topic!r} on the target)")
        async with open_clusters(config) as clusters:
            await alter_topic(clusters.target, topic, {"max.message.bytes": "10000"})
        assert copied(await run(config)) == 3
    assert [len(record.value or b"") for record in await stored(kafka, topic)] == [5, 5000, 5]


async def test_from_07_by_a_field(tmp_path: Path, kafka: KafkaBroker, name: str) -> None:
    topic, keys = f"{name}.t", {"num.partitions": "2"}
    values = [b'{"customer": "customer %d", "n": %d}' % (n % 50, n) for n in range(400)]
    with Kafka07Broker(config=keys) as old:
        source = f"kafka07://1@{old.host}:{old.port}"
        more = f'[topics]\ninclude = ["{topic}"]\npartition_by = "key"\npartitions = 7\nkey_field = "customer"\n'
        config = load(written(tmp_path, name, source, kafka, more + "[run]\ntransaction_bytes = 2000\n"))
        async with od.connect(source) as k, k.producer(compression="gzip", latency=0.05) as out:
            for number in range(2):
                rows = values[number::2]
                (await out.send_many(topic, rows, partition=od.TopicPartition(topic, number, 1))).check()
        old.flush()
        assert copied(await run(config)) == 400
        result = await verify(config)
        assert [(each.copied, each.target_records, each.equal) for each in result.topics] == [(400, 400, True)]
    records = await stored(kafka, topic)
    assert sorted(record.value or b"" for record in records) == sorted(values)
    async with od.connect(f"kafka://{kafka.bootstrap}") as k:
        (await k.admin.create_topics({f"{name}.u": 7})).check()
        async with k.producer() as out:  # whose partitioner is that of Kafka's own producer
            (await out.send_many(f"{name}.u", [(b"customer %d" % n, b"") for n in range(50)])).check()
    where = {record.key: record.partition.partition for record in await stored(kafka, f"{name}.u")}
    assert all(record.partition.partition == where[record.key] for record in records)
    for key in where:
        numbers = [int((r.value or b"")[:-1].rpartition(b" ")[2]) for r in records if r.key == key]
        for half in range(2):
            assert (part := [n for n in numbers if n % 2 == half]) == sorted(part)


async def test_remote_storage_of_the_source_is_not_asked_of_the_target(
    kafka: KafkaBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = {"remote.storage.enable": "true", "local.retention.ms": "1000", "retention.ms": "3600000"}

    async def topic_configs(self: ClusterSource, topic: str) -> dict[str, str]:
        return configs

    monkeypatch.setattr(ClusterSource, "topic_configs", topic_configs)
    source = MemoryCluster({name: 1})
    source.append(name, [b"value"])
    async with source.connect() as old, od.connect(f"kafka://{kafka.bootstrap}") as new:
        clusters = Clusters(ClusterSource(old, "kafka://source"), new)
        assert copied(await run_open(config_of(name, name=name), clusters)) == 1
        stored = (await new.admin.describe_topic_configs(name)).check()[name]
        own = {entry.name: entry.value for entry in stored.values() if entry.source is ConfigSource.TOPIC}
        assert own == {"retention.ms": "3600000", "message.timestamp.after.max.ms": str((1 << 63) - 1)}


@pytest.mark.releases("2.8.2", "4.3.1")
async def test_configurations_of_the_source_that_would_refuse_copied_records(
    any_kafka: KafkaBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One broker has no second replica, and what is copied is older than when it was written to the source."""
    limits = ("message.timestamp.difference.max.ms", "message.timestamp.before.max.ms")

    async def topic_configs(self: ClusterSource, topic: str) -> dict[str, str]:
        return {"min.insync.replicas": "2", "retention.ms": "-1", **dict.fromkeys(limits, "3600000")}

    monkeypatch.setattr(ClusterSource, "topic_configs", topic_configs)
    source = MemoryCluster({name: 1})
    source.append(name, [ProducerRecord(b"value", timestamp=1_700_000_000_000)])
    async with source.connect() as old, od.connect(f"kafka://{any_kafka.bootstrap}") as new:
        clusters = Clusters(ClusterSource(old, "kafka://source"), new)
        with anyio.fail_after(60):
            assert copied(await run_open(config_of(name, name=name), clusters)) == 1
        stored = (await new.admin.describe_topic_configs(name)).check()[name]
        own = {entry.name: entry.value for entry in stored.values() if entry.source is ConfigSource.TOPIC}
        own.pop("message.timestamp.after.max.ms", None)
        assert own == {"retention.ms": "-1"}


async def test_timestamps_in_the_future_are_copied_where_the_source_takes_them(kafka: KafkaBroker, name: str) -> None:
    """Brokers from 4.0 on take those up to an hour ahead by default, older ones all."""
    ahead = round(time.time() * 1000) + 86_400_000
    source = MemoryCluster({name: 1})
    source.append(name, [ProducerRecord(b"value", timestamp=ahead)])
    async with source.connect() as old, od.connect(f"kafka://{kafka.bootstrap}") as new:
        (await old.admin.alter_topic_configs({name: {"message.timestamp.after.max.ms": str((1 << 63) - 1)}})).check()
        clusters = Clusters(ClusterSource(old, "kafka://source"), new)
        assert copied(await run_open(config_of(name, name=name), clusters)) == 1
    assert [record.timestamp for record in await stored(kafka, name)] == [ahead]


async def test_a_topic_that_takes_no_timestamps_in_the_future_is_named(kafka: KafkaBroker, name: str) -> None:
    source = MemoryCluster({name: 1})
    source.append(name, [ProducerRecord(b"value", timestamp=round(time.time() * 1000) + 86_400_000)])
    async with source.connect() as old, od.connect(f"kafka://{kafka.bootstrap}") as new:
        (await new.admin.create_topics({name: 1})).check()
        clusters = Clusters(ClusterSource(old, "kafka://source"), new)
        with pytest.raises(RecordRefused, match=rf"raise message\.timestamp\.after\.max\.ms.* of topic '{name}'"):
            await run_open(config_of(name, name=name), clusters)


@pytest.mark.releases("3.9.1", "4.3.1")
async def test_a_source_with_a_limit_of_timestamps_gives_it_to_the_target(
    any_kafka: KafkaBroker, kafka: KafkaBroker, name: str
) -> None:
    async with od.connect(f"kafka://{any_kafka.bootstrap}") as old, od.connect(f"kafka://{kafka.bootstrap}") as new:
        (await old.admin.create_topics({name: 1})).check()
        async with old.producer() as out:
            await out.send(name, b"value")
        clusters = Clusters(ClusterSource(old, "kafka://source"), new)
        assert copied(await run_open(config_of(name, name=name), clusters)) == 1
        configs = [(await k.admin.describe_topic_configs(name)).check()[name] for k in (old, new)]
    first, second = (config["message.timestamp.after.max.ms"].value for config in configs)
    assert first == second == ("3600000" if any_kafka.version == "4.3.1" else str((1 << 63) - 1))


@pytest.mark.releases("4.3.1")
@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_large_batches_go_from_log_to_log_as_they_are(
    any_kafka: KafkaBroker, compression: Compression, tmp_path: Path, kafka: KafkaBroker, name: str
) -> None:
    topic, noise = f"{name}.t", random.Random(3).randbytes
    source = f"kafka://{any_kafka.bootstrap}"
    rules = f'[topics]\ninclude = ["{topic}"]\n[run]\ncompression = "{compression}"\n'
    config = load(written(tmp_path, name, source, kafka, rules + 'transaction_bytes = "200k"\n'))
    async with od.connect(source) as k:
        (await k.admin.create_topics({topic: 2})).check()
        async with k.producer(compression=compression, transactional_id=name) as out:
            for number in range(12):
                large = number % 3 != 1
                values = [noise(9000) if large else b"%d" % n for n in range(5)]
                with suppress(KeyError):
                    async with out.transaction():
                        rows = [od.ProducerRecord(value, b"k", (("h", b"v"),)) for value in values]
                        (await out.send_many(topic, rows, partition=number // 6)).check()
                        if number % 6 == 2:
                            raise KeyError
        await transactions_ended(k, topic)
    async with open_clusters(config) as clusters:
        (await clusters.target.admin.create_topics({topic: 2}, config={"max.message.bytes": "50000"})).check()
    assert copied(await run(config)) == 50
    first, second = [await encoded(f"kafka://{at.bootstrap}", topic, compression) for at in (any_kafka, kafka)]
    assert first == second != []
    assert (await verify(config)).equal
    async with open_clusters(config) as clusters:  # less than a batch, more than a record
        await alter_topic(clusters.target, topic, {"max.message.bytes": "20000"})
    async with od.connect(source) as k, k.producer(compression=compression) as out:
        (await out.send_many(topic, [noise(9000) for _ in range(5)], partition=0)).check()
    assert copied(await run(config)) == 5
    assert (await verify(config)).equal


async def encoded(url: str, topic: str, compression: Compression) -> list[bytes]:
    """Return the records of batches that readers may leave encoded, as they are stored."""
    options: Any = {"keep_encoded": compression, "isolation": "read_committed"}
    async with od.connect(url) as k:
        await transactions_ended(k, topic)
        async with k.reader(topic, until=od.LATEST, **options) as reader:
            batches = [batch async for batch in reader.batches()]
    parts = [part.encoded for batch in batches for part in batch.columns.parts]
    return sorted(part.data[61:] for part in parts if part is not None)


@pytest.mark.releases("0.8.2.2", "0.10.1.1")
async def test_a_plan_for_a_target_that_is_too_old_is_refused(
    any_kafka: KafkaBroker, tmp_path: Path, name: str
) -> None:
    topic = f"{name}.t"
    with Kafka07Broker(config={"log.flush.interval": "1"}) as old:
        source = f"kafka07://1@{old.host}:{old.port}"
        async with od.connect(source) as k, k.producer() as out:
            await out.send(topic, b"value")
        more = f'[topics]\ninclude = ["{topic}"]\n'
        file = written(tmp_path, name, source, any_kafka, more)
        needs = r"target\.replicas: give it a number.*2\.4"
        if any_kafka.version == "0.8.2.2":
            needs = r"target\.url: this cluster is too old.*0\.10\.1"
        with pytest.raises(MirrorRefused, match=needs):
            await plan(load(file))
        file.write_text(file.read_text().replace(f'{any_kafka.bootstrap}"', f'{any_kafka.bootstrap}", replicas = 1'))
        if any_kafka.version == "0.8.2.2":
            with pytest.raises(MirrorRefused, match=needs):
                await plan(load(file))
        else:
            assert [each.create for each in (await plan(load(file))).topics] == [1]
        assert f"odradek.mirror.{name}" not in await topics(any_kafka)
