"""Real clusters of three brokers: leaders move, brokers die and come back, metadata follows."""

from __future__ import annotations

import anyio
import psutil
import pytest

import odradek as od
from odradek.errors import ConfigError, ServerError
from odradek.testing import KafkaCluster, ZooKeeperServer
from odradek.testing.kafka.releases import KRAFT, NEWEST, ZOOKEEPER

pytestmark = pytest.mark.timeout(600)  # of several programs in Java, which a loaded machine starts slowly


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("version", "mode"),
    [(NEWEST, KRAFT), ("0.8.2.2", ZOOKEEPER), pytest.param("3.9.1", ZOOKEEPER, marks=pytest.mark.slow)],
)
def test_leaders_move_and_survive_the_death_of_a_broker(version: str, mode: str) -> None:
    with KafkaCluster(version, mode=mode) as cluster:
        assert repr(cluster) == f"<KafkaCluster {version} {mode} 3 of 3 brokers running>"
        assert cluster.bootstrap == ",".join(broker.bootstrap for broker in cluster.brokers)
        cluster.create_topic("orders", 3)
        assert {len(part.replica_nodes) for part in cluster.brokers[0].metadata().topics[0].partitions} == {3}
        first = cluster.leader("orders", 1)
        second = next(broker for broker in cluster.brokers if broker is not first)
        cluster.move_leader("orders", 1, second)
        assert cluster.leader("orders", 1) is second
        second.kill()
        third = cluster.leader("orders", 1)
        assert third is not second
        assert third.running
        second.start()
        assert [broker.running for broker in cluster.brokers] == [True, True, True]
        if mode == KRAFT:  # a controller of 0.8 waits longer for a broker that is silent
            third.pause()
            assert cluster.leader("orders", 1) is not third
        pids = [broker._process.pid for broker in cluster.brokers if broker._process]
    assert len(pids) == 3
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("version", ["0.8.2.2", NEWEST])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_each_broker_of_a_proxied_cluster_is_reached_through_its_own_proxy(version: str) -> None:
    async with KafkaCluster(version, proxied=True) as cluster:
        proxies = [broker.proxy for broker in cluster.brokers]
        assert cluster.bootstrap == ",".join(proxy.address for proxy in proxies)
        await anyio.to_thread.run_sync(cluster.create_topic, "orders", 3)
        async with od.connect(f"kafka://{cluster.bootstrap}") as k, k.producer() as out:
            for partition in range(3):
                await out.send("orders", b"x" * 10_000, partition=partition)
        assert min(proxy.statistics().client_bytes for proxy in proxies) > 10_000
        if version == NEWEST:
            for proxy in proxies:
                proxy.refuse()
            await anyio.to_thread.run_sync(cluster.create_topic, "among-themselves")  # with three replicas
            cluster.brokers[0].kill()
            assert cluster.leader("among-themselves").running


def test_topics_have_the_replicas_and_the_properties_asked_for() -> None:
    with ZooKeeperServer() as zookeeper, KafkaCluster("0.8.2.2", 2, zookeeper=zookeeper) as cluster:
        cluster.create_topic("one", 2, 1, config={"retention.ms": "5000"})
        (topic,) = cluster.brokers[0].metadata().topics
        assert {each.partition_index: each.replica_nodes for each in topic.partitions} == {0: (1,), 1: (2,)}
        (path,) = [path for path in zookeeper.tree() if path.endswith("/config/topics/one")]
        assert zookeeper.tree(path)[path].data == b'{"version": 1, "config": {"retention.ms": "5000"}}'
        with pytest.raises(ServerError, match="broker 2 has no replica of one-0, brokers"):
            cluster.move_leader("one", 0, cluster.brokers[1])
    assert not zookeeper.running


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"size": 0}, "size=0: must be"),
        ({"size": 10}, "size=10: must be"),
        ({"version": "0.7.2"}, "must be a version of Kafka"),
        ({"mode": "zookeeper"}, "Kafka 4.3.1 runs in mode kraft"),
        ({"listeners": ["TLS"]}, r"listeners\[0\]"),
        ({"listeners": []}, "listeners: must name at least one"),
        ({"users": {"a b": "x"}}, r"users: 'a b': a name has ASCII letters"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(options: dict[str, object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        KafkaCluster(**options)  # type: ignore[arg-type]
