"""Counters of readers, consumers and clusters on an embedded 0.7 broker and a real ZooKeeper."""

from __future__ import annotations

import anyio
import pytest
from tests.loops import ASYNCIO, on

import odradek as od
from odradek.testing import Kafka07Broker

pytestmark = pytest.mark.anyio
anyio_backend = on(ASYNCIO)


async def test_counters_of_all_that_a_cluster_of_0_7_makes(odradek_chroot: str) -> None:
    config = {"num.partitions": "2", "log.flush.interval": "1"}
    with Kafka07Broker(broker_id=1, zookeeper=odradek_chroot, config=config):
        async with od.connect(f"kafka07+zk://{odradek_chroot}") as k:
            async with k.producer() as out:
                await out.send_many("t", [b"%03d" % n for n in range(100)])
                assert (out.statistics().written, out.statistics().failed) == (100, 0)
            written = k.statistics()
            assert (written.brokers, written.losses, written.throttled_seconds) == (1, 0, 0.0)
            assert written.sent_bytes > 300 and written.requests >= 1
            table = await k.driver.metadata.table_for_topic("t")
            while len(list(table.registered("t"))) < 2:  # the broker registers a topic after its first messages
                table = await k.driver.metadata.wait_for_newer(table.version)
            async with k.reader("t", until=od.LATEST) as reader:
                assert len([record async for record in reader]) == 100
                counts = reader.statistics()
            assert (counts.delivered, counts.buffered, counts.lag) == (100, 0, {})
            assert counts.fetched_bytes > 300 and counts.fetches >= 1
            assert k.statistics().received_bytes >= counts.fetched_bytes
            async with k.consumer("t", group="g", commit_every=None) as consumer:
                assert (consumer.statistics().assigned, consumer.statistics().commits) == (1, 0)
                with anyio.fail_after(30):
                    while consumer.statistics().delivered < 100:
                        (await anext(consumer.batches())).done()
                await consumer.commit()
                assert (consumer.statistics().commits, consumer.statistics().revoked) == (1, 0)
            brokers = k.statistics().connections
        after = k.statistics()
        assert brokers >= 2 and (after.brokers, after.connections) == (0, 0), "the block has ended"
        assert after.connects >= brokers, "and its counters stay"
