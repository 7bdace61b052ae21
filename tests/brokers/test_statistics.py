"""Counters of readers, consumers and clusters, on a real broker of each release."""

from __future__ import annotations

import anyio
import pytest

import odradek as od
from odradek.testing import KafkaBroker

from .test_data import connect, has

pytestmark = [pytest.mark.anyio, pytest.mark.brokers, pytest.mark.timeout(300)]

COUNT = 200


async def test_counters_agree_with_what_was_sent_and_read(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic, 1)
    async with connect(kafka) as cluster:
        async with cluster.producer() as out:
            await out.send_many(topic, [b"%03d" % n for n in range(COUNT)])
        assert cluster.statistics().sent_bytes > 3 * COUNT
        async with cluster.reader(topic) as reader:
            with anyio.fail_after(60):
                while reader.statistics().delivered < COUNT:
                    await anext(reader.batches())
            counts = reader.statistics()
            assert counts.lag == await reader.lag() == dict.fromkeys(await cluster.partitions(topic), 0)
            assert counts.fetched_bytes > 3 * COUNT and counts.buffered == 0
            reader.seek(reader.partitions[0], od.EARLIEST)
            with anyio.fail_after(60):
                await anext(reader.batches(max_records=50))
            assert reader.statistics().lag == {reader.partitions[0]: COUNT - 50}
        assert cluster.statistics().received_bytes > counts.fetched_bytes
        assert cluster.statistics().brokers == 1
        if has(kafka, (0, 9)):
            async with cluster.consumer(topic, group=topic, commit_every=None, join_within=90) as consumer:
                assert (consumer.statistics().assigned, consumer.statistics().commits) == (1, 0)
                with anyio.fail_after(60):
                    while consumer.statistics().delivered < COUNT:
                        (await anext(consumer.batches())).done()
                await consumer.commit()
                assert (consumer.statistics().commits, consumer.statistics().lost) == (1, 0)
    assert (cluster.statistics().brokers, cluster.statistics().losses) == (0, 0)
    assert cluster.statistics().connects >= 3, "those that have ended count, too"
