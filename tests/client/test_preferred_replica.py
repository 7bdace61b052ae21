"""Fetching from a replica that the leader prefers (KIP-392)."""

from __future__ import annotations

import pytest

from odradek.errors import BrokerError
from odradek.testing import MemoryCluster

from .one_member import tp, until
from .reading import next_values, reading

pytestmark = pytest.mark.anyio


def make_cluster() -> MemoryCluster:
    """Broker 1 leads the only partition, and wants it to be fetched from broker 2."""
    cluster = MemoryCluster(topics={"t": 1}, brokers=2)
    cluster.append("t", [b"a", b"b"])
    cluster.prefer_replica(tp(), 2)
    return cluster


async def test_records_come_from_the_replica_that_the_leader_names() -> None:
    cluster = make_cluster()
    async with reading(cluster) as reader:
        assert await next_values(reader, 2) == [b"a", b"b"]
        cluster.append("t", [b"c"])
        assert await next_values(reader, 1) == [b"c"]
    assert len(cluster.requests("fetch", broker=1)) == 1


async def test_after_an_error_of_the_replica_the_leader_is_asked_again() -> None:
    cluster = make_cluster()
    refused = BrokerError(1, "OFFSET_OUT_OF_RANGE", retriable=True, refresh_metadata=True)
    cluster.fail("fetch", refused, times=1_000_000, broker=2)
    async with reading(cluster) as reader:
        await until(lambda: len(cluster.requests("fetch", broker=1)) > 1)
        cluster.heal()
        assert await next_values(reader, 2) == [b"a", b"b"]


async def test_a_replica_that_is_gone_leaves_the_partition_to_its_leader() -> None:
    cluster = make_cluster()
    async with reading(cluster) as reader:
        assert await next_values(reader, 2) == [b"a", b"b"]
        asked = len(cluster.requests("fetch", broker=1))
        cluster.stop_broker(2)
        await until(lambda: len(cluster.requests("fetch", broker=1)) > asked)
        cluster.append("t", [b"c"])
        assert await next_values(reader, 1) == [b"c"]
