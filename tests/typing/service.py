"""A service as its users may write it, which mypy and pyright accept: it is checked, and not run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_type

import odradek as od
from odradek.client.consumer.decoded import DecodedConsumer, DecodedReader
from odradek.client.producer.serializing import SerializingProducer
from odradek.observe import BatchFinished, Observer
from odradek.serde import STRING, DecodedRecord, Deserializer, SerdeContext


@dataclass
class Order:
    number: int


class OrderSerde:
    """Serializer and deserializer of orders."""

    def serialize(self, value: Order, context: SerdeContext) -> bytes:
        return b"%d" % value.number

    def deserialize(self, data: bytes, context: SerdeContext) -> Order:
        return Order(int(data))


class SlowOrders(Deserializer[Order]):
    """A deserializer that awaits."""

    async def deserialize(self, data: bytes, context: SerdeContext) -> Order:
        await asyncio.sleep(0)
        return Order(int(data))


class Failures(Observer):
    def batch_finished(self, event: BatchFinished) -> None:
        print(event.topic, event.records, event.error)


class Positions:
    """Positions that are kept elsewhere, and callbacks that use them."""

    def __init__(self) -> None:
        self.stored: dict[od.TopicPartition, od.Position] = {}

    async def assigned(self, partitions: list[od.TopicPartition]) -> Mapping[od.TopicPartition, od.Position]:
        return {partition: self.stored[partition] for partition in partitions if partition in self.stored}

    async def revoked(self, partitions: list[od.TopicPartition]) -> None:
        for partition in partitions:
            self.stored.pop(partition, None)


def by_length(topic: str, key: bytes | None, count: int) -> int | None:
    return None if key is None else len(key) % count


class FirstPartition:
    """A partitioner with a state of its own."""

    def __call__(self, topic: str, key: bytes | None, count: int) -> int:
        return 0


def cluster() -> od.Cluster:
    security = od.Security(sasl_mechanism="SCRAM-SHA-512", sasl_username="me", sasl_password="secret")
    return od.connect(
        "kafka+sasl+ssl://b1:9093",
        security=security,
        observer=Failures(),
        tuning=od.Tuning(backoff=od.Backoff(max_s=5.0), fetch_bytes=4 * od.MiB),
    )


async def produce(k: od.Cluster) -> None:
    async with k.producer(compression="zstd", compression_by_topic={"images": "none"}, latency=0.05) as out:
        ack = await out.send("orders", b"1", key=b"k", headers=[("trace", b"1")], timestamp=0)
        assert_type(ack, od.Ack)
        await out.put("orders", None, partition=od.TopicPartition("orders", 1))
        assert_type(out.try_put("orders", b"2", partition=0), bool)
        acks = await out.send_many("orders", [od.ProducerRecord(b"3", key=b"k")])
        assert_type(acks, od.Acks)
        await out.send_many("orders", [b"4", b"5"])
        async with k.reader("orders-old", until=od.LATEST) as r:
            async for batch in r.batches():
                assert_type(await out.send_many("orders", batch, partition=batch.partition.partition), od.Acks)
        for failed in acks.failed:
            print(failed.error)
    for partitioner in (od.Murmur2(), od.KeyHash(), od.JavaHash(), od.RoundRobin(), by_length, FirstPartition()):
        k.producer(partitioner=partitioner)
    k.producer(partitioner=lambda topic, key, count: 0, acks=1)


async def serialize(k: od.Cluster) -> None:
    async with k.producer(key_serializer=STRING, value_serializer=OrderSerde()) as out:
        assert_type(out, SerializingProducer[str, Order])
        await out.send("orders", Order(1), key="one")
    async with k.consumer("orders", group="g", value_deserializer=SlowOrders()) as c:
        assert_type(c, DecodedConsumer[bytes, Order])
        async for record in c:
            assert_type(record, DecodedRecord[bytes, Order])
            if record.value is not None:
                print(record.value.number, record.record.position)
    async with k.reader("orders", until=od.LATEST, key_deserializer=STRING, value_deserializer=OrderSerde()) as r:
        assert_type(r, DecodedReader[str, Order])


async def handle(record: od.Record) -> None:
    print(record.topic, record.key, record.value, record.headers)


async def consume(k: od.Cluster, positions: Positions) -> None:
    async with k.consumer(
        ["orders", "returns"],
        group="billing",
        start=od.AtTime(1_700_000_000),
        on_assigned=positions.assigned,
        on_revoked=positions.revoked,
        isolation="read_committed",
    ) as c:
        async for batch in c.batches(max_records=500, max_wait=0.2):
            assert_type(batch, od.GroupBatch)
            for record in batch:
                assert_type(record, od.Record)
            batch.done()
            await c.commit({batch.partition: batch.next_position})
        await c.each(handle, parallel=10, order="key", retries=3, backoff=od.Backoff(), dead_letter="orders.dead")
        assert_type(await c.lag(), dict[od.TopicPartition, int])


async def read(k: od.Cluster) -> str:
    async with k.reader("orders", start={od.TopicPartition("orders", 0): od.EARLIEST}, until=od.LATEST) as r:
        async for table in r.arrow(max_bytes=16 * od.MiB):
            print(table.num_rows)
        return r.bookmark()


async def share(k: od.Cluster) -> None:
    async with k.share_consumer("jobs", group="workers", acknowledge="explicit", max_records=10) as jobs:
        async for job in jobs:
            assert_type(job, od.ShareRecord)
            if job.delivery_count > 3:
                job.reject()
            else:
                job.accept()
            await jobs.commit()


async def transact(k: od.Cluster) -> None:
    async with k.producer(transactional_id="billing-1") as out, k.consumer("orders", group="billing") as c:
        async for batch in c.batches():
            try:
                async with out.transaction() as tx:
                    for record in batch:
                        await out.put("invoices", record.value, key=record.key)
                    tx.done(batch)
            except od.TransactionAborted as error:
                print(error.retriable)


async def main() -> int:
    async with cluster() as k:
        await produce(k)
        created = await k.admin.create_topics({"orders": 6})
        return len(created.done)


if __name__ == "__main__":
    assert_type(od.run(main), int)
