"""The line is cut at every byte of a produce, its confirm, a fetch and its reply.

Nothing confirmed is lost, `send` tells the truth about what is in the log, and a reader sees everything once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import anyio
import pytest
from anyio.abc import TaskStatus

import odradek as od
from odradek.client.options import Compression
from odradek.core.kafka07.znodes import broker_data
from odradek.testing import FaultProxy, Kafka07Broker, ZooKeeperServer
from odradek.types import Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set
from odradek.wire.kafka07.requests import Fetch, Produce, encode_request

from .load import CONFIG, WAIT_S, Load, Received, check_load, read_back

pytestmark = pytest.mark.anyio

PARTITION = TopicPartition("t", 0, 1)
CONFIRM_BYTES, CONFIRMED_BYTES = 8, 6
REPLY_HEAD_BYTES = 6
NEVER_AGAIN = od.Tuning(backoff=od.Backoff(first_s=60, max_s=60))


@pytest.fixture
def broker() -> Iterator[Kafka07Broker]:
    with Kafka07Broker(config=CONFIG) as broker:
        yield broker


@pytest.fixture
def proxy(broker: Kafka07Broker) -> Iterator[FaultProxy]:
    with FaultProxy(broker.host, broker.port) as proxy:
        yield proxy


def value_of(direction: str, byte: int) -> bytes:
    return b"%b %04d" % (direction.encode(), byte)


def request_bytes(compression: str) -> int:
    """Of a produce of one such value, without its confirm."""
    message_set = encode_set([value_of("client", 0)], CompressionType.named(compression))
    return sum(map(len, encode_request(Produce(PARTITION.topic, PARTITION.partition, message_set))))


class Cut(NamedTuple):
    """Where a connection is cut that is to carry one produce and its confirm."""

    value: bytes
    at: dict[str, int]
    arrived: bool
    """The broker gets the whole produce."""
    confirmed: bool
    """The client gets the whole confirm."""


def cuts_of_a_produce(compression: str) -> list[Cut]:
    size = request_bytes(compression)
    return [
        *(Cut(value_of("client", n), {"client_bytes": n}, n >= size, False) for n in range(size + CONFIRM_BYTES + 1)),
        *(
            Cut(value_of("server", n), {"server_bytes": n}, n > 0, n == CONFIRMED_BYTES)
            for n in range(CONFIRMED_BYTES + 1)
        ),
    ]


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(WAIT_S):
        while not condition():  # noqa: ASYNC110 - a proxy's counters have no event
            await anyio.sleep(0.001)


@asynccontextmanager
async def about_to_send(
    proxy: FaultProxy, cut: Cut, compression: Compression, tuning: od.Tuning, within: float
) -> AsyncIterator[od.Producer]:
    """A producer whose next connection will be cut: it has asked for the partitions over another one."""
    async with (
        od.connect(f"kafka07://1@{proxy.address}", tuning=tuning) as k,
        k.producer(compression=compression, deliver_within=within) as out,
    ):
        await k.partitions(PARTITION.topic)
        proxy.cut_after(**cut.at)
        yield out


@pytest.mark.parametrize("compression", ["none", "snappy"])
async def test_a_connection_cut_at_every_byte_of_a_produce_loses_nothing(
    compression: Compression,
    broker: Kafka07Broker,
    proxy: FaultProxy,
    tuning: od.Tuning,
    report: Callable[[object], None],
) -> None:
    """Sent again, every one is confirmed. There twice is exactly what had reached the broker without a confirm."""
    acks: dict[bytes, od.Ack] = {}
    cuts = cuts_of_a_produce(compression)
    for cut in cuts:
        async with about_to_send(proxy, cut, compression, tuning, within=20) as out:
            acks[cut.value] = await out.send(PARTITION.topic, cut.value, partition=PARTITION)
    log = await read_back(PARTITION.topic, broker)
    assert log == {cut.value: 2 if cut.arrived and not cut.confirmed else 1 for cut in cuts}
    for cut in cuts:
        ack = acks[cut.value]
        assert ack.confirmed
        assert ack.repeated or log[cut.value] == 1
        assert not (ack.repeated and cut.confirmed)
    twice = sum(count > 1 for count in log.values())
    report(f"{len(cuts)} cuts, none lost; {twice} twice in the log: the produce had arrived, its confirm had not")


@pytest.mark.parametrize("compression", ["none", "snappy"])
async def test_a_send_that_is_cut_and_not_repeated_tells_the_truth(
    compression: Compression, broker: Kafka07Broker, proxy: FaultProxy, report: Callable[[object], None]
) -> None:
    """All wait for their deadlines together, so that a long one costs its time only once; each begins once the one
    before it has its connection."""
    outcomes: dict[bytes, str] = {}

    async def announce(made: int, task_status: TaskStatus[None]) -> None:
        await until(lambda: proxy.statistics().connections > made)
        task_status.started()

    async def send(cut: Cut, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with (
            about_to_send(proxy, cut, compression, NEVER_AGAIN, within=8) as out,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(announce, proxy.statistics().connections, task_status)
            try:
                await out.send(PARTITION.topic, cut.value, partition=PARTITION)
                outcomes[cut.value] = "Ack"
            except (od.OutcomeUnknown, od.NotWritten) as error:
                outcomes[cut.value] = type(error).__name__

    cuts = cuts_of_a_produce(compression)
    async with anyio.create_task_group() as tasks:
        for cut in cuts:
            await tasks.start(send, cut)
    log = await read_back(PARTITION.topic, broker)
    assert log == {cut.value: 1 for cut in cuts if cut.arrived}
    for cut in cuts:
        assert (outcomes[cut.value] == "Ack") == cut.confirmed
        assert not (cut.arrived and outcomes[cut.value] == "NotWritten")
    report(f"{len(cuts)} cuts: {dict(Counter(outcomes.values()))}; {log.total()} in the log, none of them NotWritten")


def connected_and_cut(proxy: FaultProxy, made: int) -> bool:
    """There was a connection after so many, and it is gone, or even replaced."""
    now = proxy.statistics()
    return now.connections > made and (now.open == 0 or now.connections > made + 1)


async def test_connections_cut_inside_a_confirm_again_and_again_under_load(
    broker: Kafka07Broker, proxy: FaultProxy, tuning: od.Tuning, report: Callable[[object], None]
) -> None:
    """Each time behind more confirms, and with more requests under way that were applied and are sent again."""
    async with (
        od.connect(f"kafka07://1@{proxy.address}", tuning=tuning) as k,
        k.producer() as out,
        anyio.create_task_group() as tasks,
    ):
        load = Load(out, PARTITION.topic, tasks)
        await load.more(100)
        for confirms in range(20):
            proxy.refuse()
            proxy.cut()
            made = proxy.statistics().connections
            proxy.cut_after(server_bytes=CONFIRMED_BYTES * confirms + 3)
            proxy.accept()
            await until(partial(connected_and_cut, proxy, made))
        await load.more(100)
        await load.stop()
    outcome = check_load(load, await read_back(PARTITION.topic, broker))
    report(outcome)
    assert outcome.copies >= 20
    assert outcome.unknown == outcome.not_written == 0


# ---- fetching -----------------------------------------------------------------------------------------------


async def fill(k: od.Cluster) -> list[bytes]:
    """A few plain messages, a gzip and a snappy wrapper."""
    values = [b"%03d" % n for n in range(9)]
    compressions: list[tuple[Compression, int]] = [("none", 0), ("gzip", 3), ("snappy", 6)]
    for compression, start in compressions:
        async with k.producer(compression=compression) as out:
            (await out.send_many(PARTITION.topic, values[start : start + 3], partition=PARTITION)).check()
    return values


async def test_a_connection_cut_at_every_byte_of_a_fetch_and_its_reply_loses_and_repeats_nothing(
    broker: Kafka07Broker, proxy: FaultProxy, tuning: od.Tuning
) -> None:
    async with od.connect(f"kafka07://1@{broker.address}", tuning=tuning) as k:
        values = await fill(k)
        end = (await k.positions(PARTITION.topic, od.LATEST))[PARTITION]
    request = sum(map(len, encode_request(Fetch(PARTITION.topic, 0, 0, 1))))
    cuts = [{"client_bytes": n} for n in range(request + 1)]
    cuts += [{"server_bytes": n} for n in range(REPLY_HEAD_BYTES + end + 1)]
    for cut in cuts:
        async with od.connect(f"kafka07://1@{proxy.address}", tuning=tuning) as k:
            proxy.cut_after(**cut)
            async with k.reader({PARTITION: Position(0)}, until=end) as reader:
                assert [record.value async for record in reader] == values, cut


async def test_a_broker_that_sends_half_an_answer_and_then_nothing_is_left_after_the_time_limit(
    broker: Kafka07Broker, proxy: FaultProxy
) -> None:
    """What had arrived is not fetched again, and nothing of it comes twice."""
    impatient = od.Tuning(request_timeout=2.0, backoff=od.Backoff(0.001, 2, 0.01))
    values = [b"%05d" % n for n in range(20_000)]
    async with od.connect(f"kafka07://1@{broker.address}") as k, k.producer() as out:
        (await out.send_many(PARTITION.topic, values, partition=PARTITION)).check()
        end = (await k.positions(PARTITION.topic, od.LATEST))[PARTITION]
    proxy.throttle(20_000)
    async with (
        od.connect(f"kafka07://1@{proxy.address}", tuning=impatient) as k,
        k.reader({PARTITION: Position(0)}, until=end) as reader,  # whatever is asked is asked again when it takes long
        anyio.create_task_group() as tasks,
    ):
        seen: list[bytes | None] = []

        async def read() -> None:
            seen.extend([record.value async for record in reader])

        tasks.start_soon(read)
        await until(lambda: proxy.statistics().server_bytes > 2_000)
        made = proxy.statistics().connections
        proxy.stall()
        assert proxy.statistics().server_bytes < 10 * len(values), "half an answer"
        await until(lambda: proxy.statistics().connections > made)
        proxy.heal()
        proxy.cut()
    assert seen == values


async def test_a_group_consumer_cut_at_every_byte_of_a_fetch_reply_gets_everything_once(
    odradek_chroot: str, odradek_zookeeper: ZooKeeperServer, tuning: od.Tuning
) -> None:
    """Before each cut something new is stored, so that the first reply of the connection to be cut carries it."""
    received = Received()
    total = 0
    with (
        Kafka07Broker(zookeeper=odradek_chroot, config=CONFIG) as broker,
        FaultProxy(broker.host, broker.port) as proxy,
    ):
        node = f"/{odradek_chroot.partition('/')[2]}/brokers/ids/1"
        odradek_zookeeper.set(node, broker_data(proxy.host, proxy.port, int(time.time() * 1000)))
        async with (
            od.connect(f"kafka07://1@{broker.address}", tuning=tuning) as direct,
            direct.producer() as out,
            od.connect(f"kafka07+zk://{odradek_chroot}", tuning=tuning) as k,
            k.consumer(PARTITION.topic, group="g") as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(received.take, "c", consumer)
            reply = REPLY_HEAD_BYTES + len(encode_set([value_of("x", 0)]))
            for byte in range(reply + 1):
                proxy.refuse()
                proxy.cut()
                value = value_of("x", byte)
                await out.send(PARTITION.topic, value, partition=PARTITION)
                proxy.cut_after(server_bytes=byte)
                proxy.accept()
                await received.all_of(Counter([value]))
                total += 1
            log = await read_back(PARTITION.topic, broker)
            tasks.cancel_scope.cancel()
    assert received.counts() == log
    assert log.total() == total
