"""The producer on a cluster that stores values only and numbers partitions on each broker, as one of Kafka 0.7 does."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from tests.client.kafka07_double import Kafka07Double

from odradek.client.producer.producer import Producer
from odradek.core.interfaces import ProducerRecord
from odradek.errors import ConfigError, DeliveryError, Rejected, Unsupported
from odradek.types import TopicPartition

pytestmark = pytest.mark.anyio

PARTITION = TopicPartition("t", 0, 1)


@pytest.fixture
def double() -> Kafka07Double:
    return Kafka07Double()


async def test_a_record_that_0_7_cannot_store_is_refused_at_once(double: Kafka07Double) -> None:
    async with double.producing() as out:
        with pytest.raises(Unsupported):
            await out.put("t", b"v", headers=[("h", b"v")])
        with pytest.raises(Unsupported):
            await out.put("t", b"v", timestamp=1)
        with pytest.raises(Unsupported):
            await out.put("t", None)
        with pytest.raises(Rejected):
            await out.send("a/b", b"v")
        with pytest.raises(ConfigError, match="partition u/1-0 is not one of topic t"):
            await out.put("t", b"v", partition=TopicPartition("u", 0, 1))


async def test_send_many_collects_what_each_bad_record_died_of(double: Kafka07Double) -> None:
    rows: list[Any] = [b"good", b"x" * 200, ProducerRecord(b"v", headers=[("h", b"")]), b"fine"]
    async with double.producing(max_message_bytes=100) as out:
        acks = await out.send_many("t", rows)
    assert acks.written == 2
    assert [type(failed.error) for failed in acks.failed] == [Rejected, Unsupported]
    assert [failed.record.value for failed in acks.failed] == [b"x" * 200, b"v"]
    with pytest.raises(DeliveryError, match="2 records not delivered: 1 rejected, 1 Unsupported; first: "):
        acks.check()


async def test_rows_that_the_cluster_cannot_store_fail_alone(double: Kafka07Double) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[], [("h", b"1")], None, []], kind)
    times = pa.array([None, None, 5, None], pa.int64())
    data = pa.table({"value": [b"a", b"b", b"c", None], "headers": headers, "time": times})
    async with double.producing() as out:
        acks = await out.send_arrow("t", data, headers="headers", timestamp="time", partition=PARTITION)
    assert double.log[PARTITION] == [b"a"]
    assert [failed.record for failed in acks.failed] == [
        ProducerRecord(b"b", None, (("h", b"1"),)),
        ProducerRecord(b"c", None, (), 5),
        ProducerRecord(None),
    ]
    assert all(isinstance(failed.error, Unsupported) for failed in acks.failed)


@pytest.mark.parametrize(
    ("partition", "error", "match"),
    [
        (0, TypeError, "partition must be a TopicPartition of this cluster .*, not int 0"),
        (True, TypeError, "must be a TopicPartition of"),
        ("0", TypeError, "must be a TopicPartition of"),
        (("t", 0, 1), TypeError, "must be a TopicPartition of"),
        (TopicPartition("t", "0", "0"), TypeError, "must be numbers"),  # type: ignore[arg-type]
        (TopicPartition("t", -1, 1), ConfigError, "is not one of topic t"),
    ],
)
async def test_a_partition_that_cannot_be_one_is_refused_at_once(
    double: Kafka07Double, partition: Any, error: type[Exception], match: str
) -> None:
    async with double.producing() as out:
        for call in (out.send, out.put):
            with pytest.raises(error, match=match):
                await call("t", b"v", partition=partition)
        with pytest.raises(error, match=match):
            await out.send_many("t", [b"v"], partition=partition)
        await out.send("t", b"other")
    assert double.values() == [b"other"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"compression": "lz4"}, "compression 'lz4' is not supported by this cluster: choose from gzip"),
        ({"compression_by_topic": {"t": "zstd"}}, "compression 'zstd' is not supported"),
    ],
)
async def test_a_compression_that_the_cluster_does_not_have_is_refused_at_construction(
    double: Kafka07Double, options: Any, match: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(match)):
        Producer(double.driver(), **options)
