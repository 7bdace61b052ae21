"""The line to a real broker is cut at every byte of a produce and its answer, of a fetch and its answer.

Every record is acknowledged and in the log once, in order, and a reader sees each once. A share group gets each at
least once, wherever the line is cut.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pytest

import odradek as od
from odradek.io.tcp import connect
from odradek.testing import FaultProxy, KafkaBroker

from .test_share_groups import begin_at_the_start

pytestmark = [pytest.mark.anyio, pytest.mark.brokers, pytest.mark.timeout(300)]

TUNING = od.Tuning(backoff=od.Backoff(0.001, 2, 0.01))


@pytest.fixture
def proxy(odradek_kafka: KafkaBroker) -> Iterator[FaultProxy]:
    with FaultProxy(odradek_kafka.host, odradek_kafka.port) as proxy:
        yield proxy


@pytest.fixture
async def cluster(
    odradek_kafka: KafkaBroker, proxy: FaultProxy, topic: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[od.Cluster]:
    """A cluster all of whose connections go through the proxy, and a topic with one partition."""

    async def dial(host: str, port: int, timeout: float, *more: Any) -> Any:
        return await connect(proxy.host, proxy.port, timeout, *more)

    await anyio.to_thread.run_sync(odradek_kafka.create_topic, topic)
    monkeypatch.setattr("odradek.io.kafka.connections.connect", dial)
    async with od.connect(f"kafka://{odradek_kafka.bootstrap}", tuning=TUNING) as cluster:
        yield cluster


class Passed(NamedTuple):
    """Bytes that have passed a proxy in each direction."""

    client_bytes: int
    server_bytes: int

    @classmethod
    def by(cls, proxy: FaultProxy) -> Passed:
        statistics = proxy.statistics()
        return cls(statistics.client_bytes, statistics.server_bytes)

    @classmethod
    def least(cls, calls: Iterable[Passed]) -> Passed:
        """Return the fewest bytes of any call in each direction."""
        return cls(*map(min, zip(*calls, strict=True)))

    def since(self, before: Passed) -> Passed:
        return Passed(self.client_bytes - before.client_bytes, self.server_bytes - before.server_bytes)


def cuts(connection: Passed, exchange: Passed) -> list[dict[str, int]]:
    """Return the cuts at every byte of the last exchange of a connection.

    Args:
        connection: Bytes of the whole connection, its handshake included.
        exchange: Bytes of a request and its response.
    """
    return [
        {direction: byte}
        for direction in Passed._fields
        for byte in range(
            getattr(connection, direction) - getattr(exchange, direction), getattr(connection, direction) + 1
        )
    ]


async def cut_everywhere(proxy: FaultProxy, call: Callable[[], Awaitable[Passed]]) -> None:
    """Repeat a call with its connection cut at another byte each time."""
    await call()
    connections, exchanges = [], []
    for _ in range(5):  # the metadata may be refreshed through the proxy during any of the calls
        proxy.cut()
        connections.append(await call())
        exchanges.append(await call())
    connection, exchange = Passed.least(connections), Passed.least(exchanges)
    assert 0 < exchange.server_bytes < connection.server_bytes < 5000
    made = proxy.statistics().connections
    cut_points = cuts(connection, exchange)
    for cut in cut_points:
        proxy.cut()
        proxy.cut_after(**cut)
        await call()
    assert proxy.statistics().connections - made > len(cut_points)


async def test_a_line_cut_at_every_byte_of_a_produce_and_its_answer_loses_and_repeats_nothing(
    cluster: od.Cluster, proxy: FaultProxy, topic: str
) -> None:
    values = iter([b"%05d" % n for n in range(100_000)])
    sent: list[bytes] = []

    async def send() -> Passed:
        before = Passed.by(proxy)
        sent.append(next(values))
        ack = await out.send(topic, sent[-1])
        assert ack.confirmed
        assert ack.position == len(sent) - 1
        return Passed.by(proxy).since(before)

    async with cluster.producer(tuning=TUNING) as out:
        await cut_everywhere(proxy, send)
    async with cluster.reader(topic, until=od.LATEST) as reader:
        assert [record.value async for record in reader] == sent


async def test_a_line_cut_at_every_byte_of_a_fetch_and_its_answer_loses_and_repeats_nothing(
    cluster: od.Cluster, proxy: FaultProxy, topic: str
) -> None:
    values = [b"%d" % n for n in range(9)]
    for compression in ("none", "gzip", "lz4"):
        async with cluster.producer(compression=compression) as out:
            (await out.send_many(topic, values)).check()
    partition = od.TopicPartition(topic, 0)

    async def read() -> Passed:
        before = Passed.by(proxy)
        async with cluster.reader({partition: 0}, until={partition: od.Position(27)}) as reader:
            assert [record.value async for record in reader] == values * 3
        return Passed.by(proxy).since(before)

    await cut_everywhere(proxy, read)


async def test_lines_cut_again_and_again_lose_no_record_of_a_share_group(
    cluster: od.Cluster, proxy: FaultProxy, topic: str, odradek_kafka: KafkaBroker
) -> None:
    begin_at_the_start(odradek_kafka, topic)
    values = [b"%d" % number for number in range(100)]
    async with cluster.producer() as out:
        await out.send_many(topic, [*values, b"end"])
    delivered: list[bytes | None] = []
    refused = 0
    with anyio.fail_after(120):
        async with cluster.share_consumer(topic, group=topic, acknowledge="explicit", max_records=10) as consumer:
            async for batch in consumer.batches():
                if len(delivered) % 3 == 0:
                    proxy.cut()  # before the records are accepted: the broker releases them
                delivered += batch.values
                batch.accept()
                try:
                    await consumer.commit()
                except od.GroupError:
                    refused += 1  # nobody knows whether the broker has taken them
                if b"end" in batch.values:
                    break
    assert set(delivered) == {*values, b"end"} and refused
