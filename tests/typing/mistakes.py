"""Mistakes that mypy and pyright find, one in each line that ends in `# mistake`: they are checked, and not run."""

# mypy: ignore-errors

from __future__ import annotations

import odradek as od
from odradek.observe import BatchFinished, Observer
from odradek.serde import JSON, STRING


async def sync_is_wrong(partitions: list[od.TopicPartition]) -> None: ...


def not_async(partitions: list[od.TopicPartition]) -> None: ...


async def of_one(partition: od.TopicPartition) -> None: ...


async def handles_bytes(value: bytes) -> None: ...


def texts_only(topic: str, key: str, count: int) -> int:
    return 0


class Wrong(Observer):
    def batch_finished(self, event: BatchFinished, more: int) -> None: ...  # mistake


async def mistakes(k: od.Cluster, record: od.Record) -> None:
    k.consumer("orders")  # mistake
    k.consumer("orders", group_id="billing")  # mistake
    k.consumer("orders", group="billing", start="earliest")  # mistake
    k.consumer("orders", group="billing", on_assigned=not_async)  # mistake
    k.consumer("orders", group="billing", on_revoked=of_one)  # mistake
    k.consumer("orders", group="billing", isolation="committed")  # mistake
    k.producer(compression="brotli")  # mistake
    k.producer(linger_ms=5)  # mistake
    k.producer(acks=2)  # mistake
    k.producer(latency="5 ms")  # mistake
    k.producer(partitioner=texts_only)  # mistake
    k.share_consumer("jobs", group="workers", acknowledge="later")  # mistake
    od.connect("kafka://b1", bootstrap_servers="b1")  # mistake
    od.Security(sasl_user="me")  # mistake
    async with k.producer() as out:
        await out.send("orders", "a text")  # mistake
        await out.send("orders", b"value", key="a text")  # mistake
        await out.send("orders", b"value", headers={"trace": b"1"})  # mistake
        await out.send_many("orders", ["a text"])  # mistake
        await out.send_many("orders", [record])  # mistake
    async with k.producer(key_serializer=STRING, value_serializer=JSON) as typed:
        await typed.send("orders", {"a": 1}, key=1)  # mistake
    async with k.consumer("orders", group="billing", on_assigned=sync_is_wrong) as c:
        await c.each(handles_bytes)  # mistake
        c.batches(records=10)  # mistake
        await c.commit({"orders": 3})  # mistake
        print(record.value.decode())  # mistake
