"""The producer and `BrokerClient.encode`, which may run in a thread, fail, or take until everything has changed.

About the interface to drivers, so it looks behind the in-memory cluster: `encode` of its broker clients is replaced.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from tests.client.producing import P0, make_cluster, producing, stored

from odradek.client.options import Tuning
from odradek.core.interfaces import PartitionBatch
from odradek.errors import LocalProtocolError, Rejected, Undelivered
from odradek.testing import MemoryCluster
from odradek.testing.memory.broker import MemoryBrokerClient, MemoryProduce
from odradek.types import TopicPartition

pytestmark = pytest.mark.anyio

ROWS = [b"%05d" % n * 200 for n in range(100)]
"""Enough to be compressed in a thread."""
LONG_S = 60
"""More than any test takes."""

Encode = Callable[[MemoryBrokerClient, PartitionBatch, int], None]


@pytest.fixture
def cluster() -> MemoryCluster:
    return make_cluster()


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Every thread that encodes waits for this."""
    go_on, encode = threading.Event(), MemoryBrokerClient.encode

    def slow(client: MemoryBrokerClient, batch: PartitionBatch, limit: int) -> None:
        assert go_on.wait(LONG_S)
        encode(client, batch, limit)

    monkeypatch.setattr(MemoryBrokerClient, "encode", slow)
    return go_on


async def test_many_small_batches_are_compressed_in_a_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, here = MemoryBrokerClient.encode, threading.current_thread()
    encoded: Counter[bool] = Counter()

    def watched(client: MemoryBrokerClient, batch: PartitionBatch, limit: int) -> None:
        encoded[threading.current_thread() is here] += 1
        encode(client, batch, limit)

    monkeypatch.setattr(MemoryBrokerClient, "encode", watched)
    cluster = MemoryCluster(topics={"t": 1000})
    partitions = [TopicPartition("t", n) for n in range(1000)]
    async with producing(cluster, compression="gzip") as out:
        await out.send("t", b"the topic is known now", partition=P0)
        assert encoded == {True: 1}
        for partition in partitions:
            assert out.try_put("t", b"v" * 1000, partition=partition)
        await out.flush()
        assert encoded[True] <= 66  # what is left of a request, less than is worth a thread
        assert sum(encoded.values()) == 1001
    assert stored(cluster, P0) == [b"the topic is known now", b"v" * 1000]
    assert all(stored(cluster, partition) == [b"v" * 1000] for partition in partitions[1:])


async def test_what_expires_while_it_is_compressed_is_not_sent(cluster: MemoryCluster, go_on: threading.Event) -> None:
    async with producing(cluster, compression="gzip", deliver_within=0.05) as out:
        acks = await out.send_many("t", ROWS, partition=P0)
        assert len(acks.failed) == 100
        go_on.set()
    assert stored(cluster, P0) == []
    assert cluster.requests("produce") == []


async def test_a_broker_that_goes_while_its_batch_is_compressed_is_not_written_to(
    cluster: MemoryCluster, go_on: threading.Event
) -> None:
    async with producing(cluster, compression="gzip") as out, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(out.send_many, "t", ROWS, partition=P0))
        await wait_all_tasks_blocked()
        cluster.stop_broker(1)
        cluster.move_leader(P0, 2)
        await wait_all_tasks_blocked()
        go_on.set()
    assert stored(cluster, P0) == ROWS
    assert {request.broker for request in cluster.requests("produce")} == {2}


async def test_what_cannot_be_encoded_is_rejected_and_the_producer_goes_on(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(client: MemoryBrokerClient, batches: object, *, acks: int) -> Any:
        raise LocalProtocolError("too many parts")

    async with producing(cluster) as out:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryBrokerClient, "produce", refuse)
            with pytest.raises(Rejected, match="too many parts"):
                await out.send("t", b"v", partition=P0)
        await out.send("t", b"v", partition=P0)
    assert stored(cluster, P0) == [b"v"]


async def test_results_that_are_available_at_once_are_taken_one_after_the_other(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def produce_at_once(client: MemoryBrokerClient, batches: Sequence[PartitionBatch], *, acks: int) -> MemoryProduce:
        request = MemoryProduce(client, batches, acks)
        request.resolve(client._apply(request))
        return request

    monkeypatch.setattr(MemoryBrokerClient, "produce", produce_at_once)
    rows = [b"%05d" % n for n in range(1000)]
    async with producing(cluster, tuning=Tuning(batch_bytes=100)) as out:
        assert (await out.send_many("t", rows, partition=P0)).written == 1000
    assert stored(cluster, P0) == rows


async def test_a_mistake_of_ours_in_a_sender_is_not_only_logged(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(client: MemoryBrokerClient, batch: PartitionBatch, limit: int) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(MemoryBrokerClient, "encode", broken)
    with pytest.raises(Undelivered) as caught:
        async with producing(cluster) as out:
            await out.put("t", b"v")
            await out.flush()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
