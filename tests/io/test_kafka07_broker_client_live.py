"""The same api over real sockets to the embedded broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from odradek.core.backoff import Backoff
from odradek.core.interfaces import (
    DecoderOptions,
    LogDecoder,
    PartitionBatch,
    PartitionFetch,
    ProducerRecord,
)
from odradek.errors import ConnectionLost, Unreachable
from odradek.io.connection import Connection, ConnectionOptions
from odradek.io.kafka07.broker_client import Kafka07BrokerClient
from odradek.testing import Kafka07Broker
from odradek.types import EARLIEST, LATEST, Broker, Position, TopicPartition
from odradek.wire.kafka07.message_set import encode_set

from ..payloads import payloads

pytestmark = pytest.mark.anyio

P0 = TopicPartition("t", 0, 1)
VISIBLE_AT_ONCE = {"log.flush.interval": "1"}


async def fetch(client: Kafka07BrokerClient, *wanted: tuple[LogDecoder, int]) -> list[PartitionFetch]:
    """Fetch at most this many bytes for each decoder."""
    fetches = [PartitionFetch(decoder, max_bytes) for decoder, max_bytes in wanted]
    await client.fetch(fetches)
    return fetches


@asynccontextmanager
async def connected(broker: Kafka07Broker) -> AsyncIterator[Kafka07BrokerClient]:
    options = ConnectionOptions(backoff=Backoff(0.001, 1, 1))
    async with Connection(broker.host, broker.port, options=options) as connection:
        yield Kafka07BrokerClient(Broker(1, broker.host, broker.port), connection)


def part(*values: bytes, compression: str = "none", partition: TopicPartition = P0) -> PartitionBatch:
    return PartitionBatch(partition, [ProducerRecord(value) for value in values], compression)


async def read(api: Kafka07BrokerClient, decoder: LogDecoder, size: int = 1 << 20) -> list[bytes]:
    values: list[bytes] = []
    while True:
        (result,) = await fetch(api, (decoder, size))
        assert result.error is None
        if not result.received:
            return values
        values += payloads(decoder.take().values)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy"])
@pytest.mark.parametrize("size", [1 << 20, 700])
async def test_what_is_confirmed_can_be_fetched_in_order(compression: str, size: int) -> None:
    with Kafka07Broker(config=VISIBLE_AT_ONCE) as broker:
        async with connected(broker) as api:
            batches = [[b"%d/%d" % (n, m) for m in range(20)] for n in range(20)]
            for pending in [api.produce([part(*batch, compression=compression)], acks=-1) for batch in batches]:
                assert await pending is None
            (end,) = await api.positions(P0, LATEST)
            assert await api.positions(P0, EARLIEST) == [0]
            decoder = api.decoder(P0, Position(0), DecoderOptions())
            assert await read(api, decoder, size) == [value for batch in batches for value in batch]
            assert decoder.position == end
            assert api.connection.statistics().connects == 1


async def test_case_46_the_embedded_broker_closes_on_a_bad_produce_and_it_is_reported() -> None:
    bad = PartitionBatch(P0, [], encoded=encode_set([b"bad"])[:-1] + b"!")
    with Kafka07Broker(config=VISIBLE_AT_ONCE) as broker:
        async with connected(broker) as api:
            pipelined = [api.produce([each], acks=-1) for each in (part(b"good"), bad, part(b"behind"))]
            assert await pipelined[0] is None
            for lost in pipelined[1:]:
                with pytest.raises(ConnectionLost) as caught:
                    await lost
                assert caught.value.sent
            assert await read(api, api.decoder(P0, Position(0), DecoderOptions())) == [b"good"]


async def test_a_partition_the_broker_cannot_have_closes_and_is_named() -> None:
    with Kafka07Broker() as broker:
        async with connected(broker) as api:
            with pytest.raises(ConnectionLost, match="offsets of t/1-99"):
                await api.positions(TopicPartition("t", 99, 1), LATEST)
            assert await api.positions(P0, LATEST) == [0]


async def test_a_killed_broker_is_told_apart_from_an_absent_one_and_found_again() -> None:
    with Kafka07Broker(config=VISIBLE_AT_ONCE) as broker:
        async with connected(broker) as api:
            await api.produce([part(b"before")], acks=-1)
            decoder = api.decoder(P0, Position(0), DecoderOptions())
            await fetch(api, (decoder, 12))  # a tail of 12 bytes that may not be there any more after the restart
            broker.kill()
            with pytest.raises((ConnectionLost, Unreachable)):  # the loss is met, or was noticed before
                await api.produce([part(b"lost")], acks=-1)
            with pytest.raises(Unreachable, match="Connection refused"):
                await api.produce([part(b"nowhere")], acks=-1)
            broker.start()
            assert await api.produce([part(b"after")], acks=-1) is None
            assert await read(api, decoder) == [b"before", b"after"]
