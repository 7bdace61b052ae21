"""The ends of logs in responses to fetches: which of them each release tells."""

from __future__ import annotations

import anyio
import pytest

import odradek as od
from odradek.testing import KafkaBroker

from .test_data import connect, has
from .test_groups import until

pytestmark = [pytest.mark.anyio, pytest.mark.brokers, pytest.mark.timeout(300)]


async def test_responses_name_the_high_watermark_and_from_0_11_on_the_last_stable_offset(
    kafka: KafkaBroker, topic: str
) -> None:
    kafka.create_topic(topic, 1)
    partition, transactions = od.TopicPartition(topic, 0), has(kafka, (0, 11))
    async with connect(kafka) as cluster:
        async with cluster.producer() as out:
            await out.send_many(topic, [b"v"] * 5, partition=partition)
        with anyio.fail_after(90):
            async with cluster.reader(topic, isolation="read_committed" if transactions else "read_uncommitted") as r:
                batch = await anext(r.batches(max_records=2))
                await until(r.watermarks)
                ends = r.watermarks()[partition]
                assert batch.position == 0 and (ends.high_watermark, ends.lag) == (5, 3)
                assert (ends.log_start, ends.last_stable_offset) == ((0, 5) if transactions else (None, None))
                if not transactions:
                    return
                async with cluster.producer(transactional_id=topic) as writer:
                    async with writer.transaction():
                        await writer.send(topic, b"open")
                        await until(lambda: r.watermarks()[partition].high_watermark == 6)
                        ends = r.watermarks()[partition]
                        assert (ends.last_stable_offset, ends.lag) == (5, 3), "what is open cannot be read"
                    await until(lambda: r.watermarks()[partition].last_stable_offset == 7)
