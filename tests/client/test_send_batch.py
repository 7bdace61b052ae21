"""`Producer.send_many` of a `Batch`: its records as they are, without an object for each."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from tests.client.kafka07_double import Kafka07Double
from tests.client.producing import P0, P3, make_cluster, producing, stored
from tests.columns import RECORDS, packed, plain

from odradek.batch import Batch
from odradek.client.producer.rows import runs
from odradek.core.interfaces import ProducerRecord
from odradek.core.kafka.partitioners import Murmur2
from odradek.core.produce.packed_records import PackedRecords
from odradek.engine import PackedBytes
from odradek.errors import CorruptMessage, Unsupported
from odradek.testing import MemoryCluster
from odradek.types import Columns, TopicPartition

pytestmark = pytest.mark.anyio

VALUES: list[bytes | None] = [b"one", None, b""]
KEYS = [b"k", b"", None]
HEADERS = [(("h", b"1"), ("h", None)), (), ()]
TIMES = [7, 0, 1 << 40]
ROWS = [ProducerRecord(*fields) for fields in zip(VALUES, KEYS, HEADERS, TIMES, strict=True)]
TYPES = [0, 1, 0]


@pytest.fixture
def cluster() -> MemoryCluster:
    return make_cluster()


def columns(**changes: Any) -> Columns:
    return plain(VALUES).replace(keys=KEYS, headers=HEADERS, timestamps=TIMES, timestamp_types=TYPES, **changes)


@pytest.mark.parametrize("form", [packed, lambda columns: columns], ids=["packed", "lists"])
@pytest.mark.parametrize("partition", [P0, None], ids=["partition", "keys choose"])
async def test_records_keep_their_keys_headers_and_times(
    cluster: MemoryCluster, form: Any, partition: TopicPartition | None
) -> None:
    async with producing(cluster) as out:
        await out.send("t", b"the topic is known now", partition=P3)
        acks = await out.send_many("t", Batch(TopicPartition("s", 4), form(columns())), partition=partition)
    assert acks.check().written == 3
    records = [each.record for each in cluster.records("t") if each.value != b"the topic is known now"]
    assert sorted(records, key=ROWS.index) == ROWS
    for row in ROWS:
        chosen = Murmur2()("t", row.key, 4)
        if partition is not None or chosen is not None:
            where = partition or TopicPartition("t", chosen or 0)
            assert row in [each.record for each in cluster.log(where)]


async def test_columns_go_to_the_encoder_as_they_are(cluster: MemoryCluster) -> None:
    batch = Batch(TopicPartition("s", 4), packed(columns()))
    async with producing(cluster) as out:
        await out.send("t", b"the topic is known now", partition=P3)
        await out.send_many("t", batch, partition=P0)
    (request,) = cluster.requests("produce", broker=1)
    (sent,) = (part.records for part in request.batches)
    assert isinstance(sent, PackedRecords)
    assert isinstance(batch.columns.values, PackedBytes)
    assert sent.values.data is batch.columns.values.data


@given(columns=RECORDS)
def test_every_batch_is_the_same_records_in_columns_and_in_lists(columns: Columns) -> None:
    columns = columns.replace(corrupt={})
    rows = [ProducerRecord(row.value, row.key, row.headers, row.timestamp) for row in Batch(P0, columns)]
    for form in columns, packed(columns), packed(columns, "q"):
        made: list[Any] = [row for run in runs(Batch(P0, form)) for row in run]
        assert [ProducerRecord(row) if isinstance(row, bytes) else row for row in made] == rows


async def test_nothing_is_nothing(cluster: MemoryCluster) -> None:
    async with producing(cluster) as out:
        for empty in plain([]), packed(plain([])):
            assert (await out.send_many("t", Batch(P3, empty), partition=P0)).written == 0


async def test_of_a_batch_with_damage_nothing_is_sent(cluster: MemoryCluster) -> None:
    damage = CorruptMessage("s/4", 10, "CRC mismatch")
    async with producing(cluster) as out:
        with pytest.raises(CorruptMessage, match="CRC mismatch"):
            await out.send_many("t", Batch(P3, packed(columns(corrupt={1: damage}))), partition=P0)
        assert out.statistics().accepted == 0
        await out.send("t", b"still fine", partition=P0)
    assert stored(cluster, P0) == [b"still fine"]


async def test_what_0_7_cannot_store_fails_row_by_row_and_keys_are_left_out() -> None:
    double, partition = Kafka07Double(), TopicPartition("t", 0, 1)
    keyed = plain([b"a", b"", b"c"]).replace(keys=KEYS)
    timed = packed(keyed.replace(headers=HEADERS))
    async with double.producing() as out:
        await out.send("t", b"first", partition=partition)
        assert (await out.send_many("t", Batch(P3, packed(keyed)), partition=partition)).check().written == 3
        acks = await out.send_many("t", Batch(P3, timed), partition=partition)
    assert double.log[partition] == [b"first", b"a", b"", b"c", b"", b"c"]
    (failed,) = acks.failed
    assert failed.record == ProducerRecord(b"a", KEYS[0], HEADERS[0])
    assert isinstance(failed.error, Unsupported)
